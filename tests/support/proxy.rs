//! A TCP proxy before a store. One kind loses and delays its replies: requests always get through, so
//! what the store did and what its client learnt differ. The other is a long way there and back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use super::clock::Watch;

/// What happens to replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All get through.
    Pass,
    /// Every so many-th is lost and its connection closed.
    CutEvery(u64),
    /// Every so many-th comes later by that much, and what follows it on its connection as well.
    DelayEvery(u64, Duration),
    /// None gets through, and nobody is let in.
    Shut,
}

/// A running proxy. Its threads end with the connections they serve, or with the test.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mode: Mutex<Mode>,
    replies: AtomicU64,
    spoiled: AtomicU64,
}

impl Proxy {
    /// Stands before `store`, on a port of the operating system's choice.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start(store: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { mode: Mutex::new(Mode::Pass), replies: 0.into(), spoiled: 0.into() });
        let of_thread = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if *of_thread.mode.lock().expect("no holder panics") == Mode::Shut {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(store) {
                    serve(&client, &server, &of_thread);
                }
            }
        });
        Self { address, shared }
    }

    /// Stands as far before `store` as bytes take so long each way. As many as like are on the way at once.
    ///
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn far(store: SocketAddr, each_way: Duration) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared { mode: Mutex::new(Mode::Pass), replies: 0.into(), spoiled: 0.into() });
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Ok(server) = TcpStream::connect(store) {
                    let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle");
                    for stream in [&client, &server] {
                        stream.set_nodelay(true).expect("a TCP socket");
                    }
                    carry(clone(&client), clone(&server), each_way);
                    carry(server, client, each_way);
                }
            }
        });
        Self { address, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes what happens to replies from now on.
    ///
    /// # Panics
    /// Never: no holder of the lock panics.
    pub fn set(&self, mode: Mode) {
        *self.shared.mode.lock().expect("no holder panics") = mode;
    }

    /// How many replies were cut off or delayed.
    #[must_use]
    pub fn spoiled(&self) -> u64 {
        self.shared.spoiled.load(Ordering::Relaxed)
    }
}

fn serve(client: &TcpStream, server: &TcpStream, shared: &Arc<Shared>) {
    for stream in [client, server] {
        stream.set_nodelay(true).expect("a TCP socket");
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("a second handle");
    let (from_client, to_server) = (clone(client), clone(server));
    thread::spawn(move || pump(from_client, to_server, || true));
    let (from_server, to_client, shared) = (clone(server), clone(client), shared.clone());
    thread::spawn(move || pump(from_server, to_client, || shared.treat_reply()));
}

/// Copies until either side ends or `treat` says so, then closes both.
fn pump(mut from: TcpStream, mut to: TcpStream, mut treat: impl FnMut() -> bool) {
    let mut chunk = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if !treat() || to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Copies, each chunk so much later than it came, until either side ends.
fn carry(mut from: TcpStream, mut to: TcpStream, later: Duration) {
    let (leaves, arrives) = mpsc::channel::<(Watch, Vec<u8>)>();
    thread::spawn(move || {
        let mut chunk = [0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            if leaves.send((Watch::start(), chunk[..count].to_vec())).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        for (watch, bytes) in arrives {
            watch.pause_until(later);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

impl Shared {
    /// Whether the reply gets through.
    fn treat_reply(&self) -> bool {
        let mode = *self.mode.lock().expect("no holder panics");
        let count = self.replies.fetch_add(1, Ordering::Relaxed) + 1;
        match mode {
            Mode::CutEvery(each) if count.is_multiple_of(each) => {
                self.spoiled.fetch_add(1, Ordering::Relaxed);
                false
            }
            Mode::Shut => {
                self.spoiled.fetch_add(1, Ordering::Relaxed);
                false
            }
            Mode::DelayEvery(each, by) if count.is_multiple_of(each) => {
                self.spoiled.fetch_add(1, Ordering::Relaxed);
                Watch::start().pause_until(by);
                true
            }
            _ => true,
        }
    }
}
