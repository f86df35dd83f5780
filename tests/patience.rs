//! Requests that stay half: they hold memory, and so they end.

use crate::support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rationd::serve::Limits;
use support::daemon::{Client, TestDaemon, encode, until};

/// A daemon that waits a moment for the rest of a request.
fn impatient() -> TestDaemon {
    TestDaemon::with(|options| options.limits.patience = Duration::from_millis(100))
}

#[test]
fn half_a_request_is_waited_for_as_long_as_the_readme_says() {
    assert_eq!(Limits::default().patience, Duration::from_secs(30));
}

#[test]
fn a_request_that_stays_half_is_closed_and_others_are_not() {
    let daemon = impatient();
    let mut calm = [daemon.client(), daemon.client()];
    assert_eq!(calm[0].ask("PING"), "PONG");
    assert_eq!(calm[1].ask("MULTI"), "OK");
    assert_eq!(calm[1].ask("PING"), "QUEUED");
    for half in [&b"*2\r\n$4\r\nECHO\r\n$5\r\nab"[..], b"PIN", b"*", b"GET /v1/check?policy=api", b"\r\nPOST /v1"] {
        let mut client = daemon.client();
        client.send(half);
        assert!(client.is_closed(), "{}", half.escape_ascii());
        let mut client = daemon.client();
        client.send(b"PING\r\n");
        assert!(client.reply().is_some());
        client.send(half);
        assert!(client.is_closed(), "behind a command: {}", half.escape_ascii());
    }
    until("only the calm ones are left", || daemon.daemon().stats().connections == 2);
    assert_eq!(calm[0].ask("PING"), "PONG");
    assert_eq!(calm[1].ask("EXEC"), "PONG");
}

#[test]
fn a_byte_now_and_then_buys_no_time() {
    let daemon = impatient();
    let mut client = daemon.client();
    client.send(b"*2\r\n$4\r\nECHO\r\n$1000000\r\n");
    until("a request that trickles in is closed", || client.stream.write_all(b"x").is_err());
}

#[test]
fn a_long_transaction_without_an_end_is_closed() {
    let daemon = impatient();
    let queued = |client: &mut Client| {
        assert_eq!(client.ask("MULTI"), "OK");
        client.send(&encode(&[b"ECHO", &vec![b'x'; 100_000]]));
        assert!(client.reply().is_some());
    };
    let (mut open, mut ended) = (daemon.client(), daemon.client());
    queued(&mut open);
    queued(&mut ended);
    ended.send(b"EXEC\r\n");
    assert!(ended.reply().is_some());
    assert!(open.is_closed());
    assert_eq!(ended.ask("PING"), "PONG");
}

const GET: &[u8] = b"GET /v1/check?policy=api&key=k&cost=0 HTTP/1.1\r\nhost: x\r\n\r\n";

/// An HTTP connection over which one request was answered.
fn http(daemon: &TestDaemon) -> UnixStream {
    let mut stream = UnixStream::connect(&daemon.socket).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    answer(&mut stream);
    stream
}

fn answer(stream: &mut UnixStream) {
    stream.write_all(GET).expect("the daemon reads");
    let mut text = Vec::new();
    while !text.ends_with(b"}") {
        let mut buffer = [0; 4096];
        let len = stream.read(&mut buffer).expect("a response");
        assert!(len > 0, "closed after {}", text.escape_ascii());
        text.extend_from_slice(&buffer[..len]);
    }
    assert!(text.starts_with(b"HTTP/1.1 200"), "{}", text.escape_ascii());
}

/// What comes until the daemon closes.
fn rest(mut stream: UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an end");
    text
}

#[test]
fn half_a_head_is_closed_and_a_connection_at_rest_is_not() {
    let daemon = impatient();
    let mut calm = http(&daemon);
    for half in [&b"G"[..], b"GET /v1/check", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\nGET /"] {
        let mut stream = http(&daemon);
        stream.write_all(half).expect("the daemon reads");
        assert_eq!(rest(stream), "", "{}", half.escape_ascii());
    }
    let mut first = UnixStream::connect(&daemon.socket).expect("the daemon listens");
    first.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
    first.write_all(b"GET / HTTP/1.1\r\nhost:").expect("the daemon reads");
    assert_eq!(rest(first), "");
    answer(&mut calm);
}

#[test]
fn half_a_body_is_told_so_and_closed() {
    let daemon = impatient();
    for framing in ["content-length: 20\r\n\r\npolicy", "transfer-encoding: chunked\r\n\r\n6\r\npolicy\r\n"] {
        let mut stream = http(&daemon);
        let head = "POST /v1/check HTTP/1.1\r\nhost: x\r\n";
        stream.write_all(format!("{head}{framing}").as_bytes()).expect("the daemon reads");
        let told = rest(stream);
        assert!(told.starts_with("HTTP/1.1 408") && told.contains("connection: close"), "{told}");
        assert!(told.contains("the body did not come within 0.1 s"), "{told}");
    }
}
