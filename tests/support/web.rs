//! HTTP as a client of a proxy sees it, and a backend for the proxy to stand before.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::clock::Watch;

/// A response as it came, and after how long.
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
    pub took: Duration,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// A request on a connection of its own.
pub fn ask(port: u16, path: &str, body: &str) -> io::Result<Response> {
    let watch = Watch::start();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    stream.write_all(format!("{head}content-length: {length}\r\n\r\n{body}").as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Response { status, head: head.to_owned(), body: body.to_owned(), took: watch.elapsed() })
}

/// What the proxies stand before: it greets, and repeats the body of the request; it is `/forbidden`, or it
/// `/breaks` without an answer. `requests` came whole.
pub struct Backend {
    pub address: SocketAddr,
    pub requests: Arc<AtomicUsize>,
}

impl Backend {
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A proxy may connect and send nothing.
                let _ = greet(stream, &seen);
            }
        });
        Self { address, requests }
    }
}

fn greet(mut stream: TcpStream, seen: &AtomicUsize) -> io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut text = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer)?;
        text.extend_from_slice(&buffer[..len]);
        let came = String::from_utf8_lossy(&text).to_ascii_lowercase();
        let Some((head, body)) = came.split_once("\r\n\r\n").filter(|_| len > 0) else {
            if len == 0 { return Err(io::ErrorKind::UnexpectedEof.into()) } else { continue }
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
        if body.len() >= length.unwrap_or(0) {
            seen.fetch_add(1, Ordering::SeqCst);
            let path = head.split(' ').nth(1).unwrap_or_default();
            if path == "/breaks" {
                return Ok(());
            }
            let status = if path == "/forbidden" { "403 Forbidden" } else { "200 OK" };
            let said = format!("hello {body}\n");
            let length = said.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            return stream.write_all((head + &said).as_bytes());
        }
    }
}
