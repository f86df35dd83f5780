//! The blocking client against a scripted server.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Client, ClientError, Limiter, OnDaemonLoss, Reply, Timeouts};
use crate::core::decision::Verdict;

const SHORT: Timeouts = Timeouts { connect: Duration::from_millis(200), answer: Duration::from_millis(30) };

/// A socket that serves each connection with `serve`, in a directory that is removed afterwards.
struct Peer {
    directory: tempfile::TempDir,
    thread: Option<JoinHandle<()>>,
}

impl Peer {
    fn new(connections: usize, mut serve: impl FnMut(usize, UnixStream) + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("sock")).unwrap();
        let thread = std::thread::spawn(move || {
            for index in 0..connections {
                serve(index, listener.accept().unwrap().0);
            }
        });
        Self { directory, thread: Some(thread) }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Reads until `wanted` has come, then writes `answer`.
fn answer_once(stream: &mut UnixStream, wanted: &[u8], answer: &[u8]) {
    let mut seen = vec![0; wanted.len()];
    stream.read_exact(&mut seen).unwrap();
    assert_eq!(seen.escape_ascii().to_string(), wanted.escape_ascii().to_string());
    stream.write_all(answer).unwrap();
}

#[test]
fn a_check_reads_all_ten_fields() {
    let peer = Peer::new(1, |_, mut stream| {
        let wanted = b"*5\r\n$12\r\nRATION.CHECK\r\n$3\r\napi\r\n$3\r\nk\0\n\r\n$4\r\nCOST\r\n$1\r\n2\r\n";
        let answer = b"*11\r\n:1\r\n:100\r\n:0\r\n:2\r\n:5\r\n:1234\r\n:99000\r\n$4\r\nrate\r\n$5\r\n100/m\r\n$5\r\nlease\r\n:7\r\n";
        answer_once(&mut stream, wanted, answer);
    });
    let mut client = Client::connect(peer.path()).unwrap();
    let decision = client.check("api", b"k\0\n", 2).unwrap();
    assert_eq!(decision.verdict, Verdict::Deny);
    assert!(!decision.is_allowed());
    assert_eq!((decision.limit, decision.remaining), (100, 0));
    assert_eq!(decision.retry_after, Some(Duration::from_millis(1_234)));
    assert_eq!((decision.reset_after, decision.reset_at_ms), (Duration::from_secs(5), 99_000));
    assert_eq!((decision.reason.as_str(), decision.source.as_str()), ("rate", "lease"));
    peer.join();
}

#[test]
fn answers_come_in_the_order_of_the_commands() {
    let peer = Peer::new(1, |_, mut stream| {
        answer_once(
            &mut stream,
            b"*2\r\n$4\r\nECHO\r\n$1\r\na\r\n*1\r\n$3\r\nBAD\r\n*1\r\n$4\r\nPING\r\n",
            b"$1\r\na\r\n-ERR no\r\n+PO",
        );
        stream.write_all(b"NG\r\n").unwrap();
        answer_once(&mut stream, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n");
    });
    let mut client = Client::connect(peer.path()).unwrap();
    client.send(&[b"ECHO", b"a"]).unwrap();
    client.send(&[b"BAD"]).unwrap();
    client.send(&[b"PING"]).unwrap();
    assert_eq!(client.receive().unwrap(), Reply::Bulk(b"a".to_vec()));
    assert!(matches!(client.receive(), Err(ClientError::Refused { message }) if message == "ERR no"));
    assert_eq!(client.waiting(), 1);
    assert_eq!(client.command(&[b"PING"]).unwrap(), Reply::Simple("PONG".into()));
    assert!(matches!(client.receive(), Err(ClientError::NothingSent)));
    peer.join();
}

#[test]
fn a_missing_daemon_is_named_with_the_next_step() {
    let directory = tempfile::tempdir().unwrap();
    let error = Client::connect(directory.path().join("none.sock")).unwrap_err();
    assert!(error.is_unreachable());
    let text = error.to_string();
    assert!(text.contains("none.sock: there is no such socket; start one with `rationd serve`"), "{text}");
}

#[test]
fn a_dead_daemons_socket_is_told_from_a_missing_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("dead.sock");
    drop(UnixListener::bind(&path).unwrap());
    let text = Client::connect(&path).unwrap_err().to_string();
    assert!(text.contains("nobody listens"), "{text}");
}

#[test]
fn a_silent_daemon_costs_the_patience_and_the_next_command_connects_anew() {
    let peer = Peer::new(2, |index, mut stream| match index {
        // Says nothing until the client closes the connection.
        0 => drop(stream.read_to_end(&mut Vec::new())),
        _ => answer_once(&mut stream, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"),
    });
    let mut client = Client::connect_with(peer.path(), SHORT).unwrap();
    let error = client.command(&[b"HANG"]).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { after, .. } if after == SHORT.answer), "{error}");
    assert!(error.is_unreachable());
    assert_eq!(client.waiting(), 0);
    client.timeouts = Timeouts::default();
    assert_eq!(client.command(&[b"PING"]).unwrap(), Reply::Simple("PONG".into()));
    peer.join();
}

#[test]
fn a_trickling_answer_does_not_stretch_the_patience() {
    let (done, finished) = std::sync::mpsc::channel();
    let peer = Peer::new(1, move |_, mut stream| {
        // Each byte by itself arrives well within the timeouts.
        while finished.recv_timeout(Duration::from_millis(5)).is_err() {
            if stream.write_all(b"+").is_err() {
                return;
            }
        }
    });
    let mut client = Client::connect_with(peer.path(), SHORT).unwrap();
    let error = client.command(&[b"PING"]).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { .. }), "{error}");
    done.send(()).unwrap_or_default();
    peer.join();
}

#[test]
fn a_closed_connection_says_so() {
    let peer = Peer::new(1, |_, mut stream| answer_once(&mut stream, b"*1\r\n$4\r\nPING\r\n", b"+PO"));
    let mut client = Client::connect(peer.path()).unwrap();
    let text = client.command(&[b"PING"]).unwrap_err().to_string();
    assert!(text.contains("closed by the daemon"), "{text}");
    peer.join();
}

#[test]
fn what_is_no_resp_is_told() {
    let peer = Peer::new(1, |_, mut stream| answer_once(&mut stream, b"*1\r\n$4\r\nPING\r\n", b"HTTP/1.1 400\r\n"));
    let mut client = Client::connect(peer.path()).unwrap();
    let error = client.command(&[b"PING"]).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }) && error.to_string().contains("is it a rationd socket?"));
    peer.join();
}

#[test]
fn another_kind_of_answer_is_no_decision() {
    let peer = Peer::new(1, |_, mut stream| {
        stream.write_all(b"*2\r\n:0\r\n:1\r\n").unwrap();
        drop(stream.read_to_end(&mut Vec::new()));
    });
    let mut client = Client::connect(peer.path()).unwrap();
    assert!(matches!(client.check("p", "k", 1), Err(ClientError::Unexpected { .. })));
    drop(client);
    peer.join();
}

#[test]
fn a_daemon_that_comes_back_is_found_after_a_rest() {
    let peer = Peer::new(1, |_, mut stream| answer_once(&mut stream, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n"));
    let path = peer.path();
    let mut client = Client::connect(&path).unwrap();
    assert_eq!(client.command(&[b"PING"]).unwrap(), Reply::Simple("PONG".into()));
    // The socket's file is still there, but nobody listens.
    let Peer { directory, mut thread } = peer;
    thread.take().unwrap().join().unwrap();
    assert!(client.command(&[b"PING"]).unwrap_err().is_unreachable(), "the old connection is gone");
    for _ in 0..3 {
        let text = client.command(&[b"PING"]).unwrap_err().to_string();
        assert!(text.contains("nobody listens"), "tried or not: {text}");
    }
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let back = std::thread::spawn(move || {
        answer_once(&mut listener.accept().unwrap().0, b"*1\r\n$4\r\nPING\r\n", b"+PONG\r\n");
    });
    let timeouts = crate::clock::Clock::start();
    while client.command(&[b"PING"]).is_err() {
        assert!(timeouts.nanos() < 20_000_000_000, "it is there, and is not found");
        std::thread::yield_now();
    }
    back.join().unwrap();
    drop(directory);
}

#[test]
fn a_check_that_fails_is_decided_as_when_the_daemon_is_away() {
    for (on_daemon_loss, passes) in
        [(OnDaemonLoss::Allow, true), (OnDaemonLoss::Deny, false), (OnDaemonLoss::LastShare, false)]
    {
        // Nine tokens are wanted and two are lent; the check of the single cost is read, and the connection ends.
        let peer = Peer::new(1, |_, mut stream| {
            let wanted = b"*4\r\n$12\r\nRATION.LEASE\r\n$3\r\napi\r\n$1\r\nk\r\n$1\r\n9\r\n";
            let decision =
                ":0\r\n:100\r\n:0\r\n:-1\r\n:5\r\n:-1\r\n:99000\r\n$2\r\nok\r\n$5\r\n100/m\r\n$5\r\nlease\r\n";
            answer_once(&mut stream, wanted, format!("*12\r\n:2\r\n:60000\r\n{decision}").as_bytes());
            answer_once(&mut stream, b"*5\r\n$12\r\nRATION.CHECK", b"");
        });
        let limiter = Limiter::new(peer.path(), "api", "k", on_daemon_loss);
        assert_eq!(limiter.allow(9), passes, "{on_daemon_loss:?}");
        assert!(limiter.last_error().is_some());
        peer.join();
    }
}
