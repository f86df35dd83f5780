//! A TCP proxy that makes a server far away: every byte arrives later by a fixed time, in order, and as many
//! may be on their way as there are.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The address at which `server` is reached over a way of `away` in each direction. Its threads end with the
/// connections, or with the test.
pub fn far_away(server: SocketAddr, away: Duration) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(server) else { continue };
            for stream in [&client, &server] {
                stream.set_nodelay(true).expect("a TCP socket");
            }
            let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle");
            carry(clone(&client), clone(&server), away);
            carry(server, client, away);
        }
    });
    address
}

fn carry(mut from: TcpStream, mut to: TcpStream, away: Duration) {
    let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut chunk = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            if sender.send((Instant::now() + away, chunk[..count].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        while let Ok((due, bytes)) = receiver.recv() {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
