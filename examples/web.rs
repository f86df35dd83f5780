//! A web server that admits as many requests a second as the policy `api` says, for all processes and hosts together.
//!
//! `cargo run --release -- --socket /tmp/rationd.sock serve`, then `cargo run --example web -- /tmp/rationd.sock`, and
//! ask it with `curl -i http://127.0.0.1:8080/`. Most decisions are made in this process, from tokens that the
//! daemon has lent it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

use rationd::client::{Limiter, OnDaemonLoss};

fn main() -> std::io::Result<()> {
    let socket = std::env::args().nth(1).unwrap_or_else(|| "/run/rationd/rationd.sock".to_owned());
    // While the daemon is away, as much passes as it lent last: a restart of the daemon denies nobody.
    let limiter = Limiter::new(socket, "api", "site", OnDaemonLoss::LastShare);
    for stream in TcpListener::bind("127.0.0.1:8080")?.incoming() {
        // Clones share what is held.
        let (limiter, stream) = (limiter.clone(), stream?);
        std::thread::spawn(move || {
            if let Err(error) = serve(&stream, &limiter) {
                eprintln!("a connection ended early: {error}");
            }
        });
    }
    Ok(())
}

/// Answers one request, and closes.
fn serve(mut stream: &TcpStream, limiter: &Limiter) -> std::io::Result<()> {
    for line in BufReader::new(stream).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let (status, body) = if limiter.allow(1) { ("200 OK", "hello\n") } else { ("429 Too Many Requests", "later\n") };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}
