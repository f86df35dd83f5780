//! The client for tokio against a scripted server, in one runtime.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use super::super::{ClientError, Reply, Timeouts};
use super::AsyncClient;
use super::line::{End, Job, Line};

/// A timeout that passes only when something is wrong.
const BOUND: Duration = Duration::from_secs(20);
const SHORT: Timeouts = Timeouts { connect: Duration::from_secs(5), answer: Duration::from_millis(300) };
const LONG: Timeouts = Timeouts { connect: BOUND, answer: BOUND };

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, test).await.expect("it ends") })
}

/// A socket in a directory that is removed afterwards.
struct Peer {
    directory: tempfile::TempDir,
    listener: UnixListener,
}

impl Peer {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("sock")).unwrap();
        Self { directory, listener }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    async fn accept(&self) -> UnixStream {
        self.listener.accept().await.unwrap().0
    }
}

fn echo(word: &str) -> String {
    format!("*2\r\n$4\r\nECHO\r\n${}\r\n{word}\r\n", word.len())
}

async fn expect(stream: &mut UnixStream, wanted: &str) {
    let mut seen = vec![0; wanted.len()];
    stream.read_exact(&mut seen).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&seen), wanted);
}

fn ask(client: &AsyncClient, word: &'static str) -> tokio::task::JoinHandle<Result<Reply, ClientError>> {
    let client = client.clone();
    tokio::spawn(async move { client.command(&[b"ECHO", word.as_bytes()]).await })
}

fn bulk(word: &str) -> Reply {
    Reply::Bulk(word.as_bytes().to_vec())
}

#[test]
fn who_gives_up_keeps_its_place_in_the_row() {
    run(async {
        let peer = Peer::new();
        let client = AsyncClient::with_timeouts(peer.path(), LONG);
        let first = ask(&client, "a");
        let mut stream = peer.accept().await;
        expect(&mut stream, &echo("a")).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = ask(&client, "b");
        expect(&mut stream, &echo("b")).await;
        // The answers come in pieces, and the first is of the request that was given up.
        for part in ["$1\r\na\r", "\n$1\r\n", "b\r\n"] {
            stream.write_all(part.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert_eq!(second.await.unwrap().unwrap(), bulk("b"));
    });
}

#[test]
fn what_was_given_up_before_it_was_sent_is_not_sent() {
    run(async {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (jobs, mut queue) = mpsc::channel(4);
        for (word, waits) in [("gone", false), ("there", true), ("nobody", true)] {
            let (asker, answer) = oneshot::channel();
            let asker = (word != "nobody").then_some(asker);
            jobs.try_send(Job { bytes: echo(word).into_bytes(), asker }).unwrap();
            // The stream is leaked, so that it stays open until the end.
            if waits {
                std::mem::forget(answer);
            }
        }
        let mut line = Line::new(ours, BOUND);
        let serving = tokio::spawn(async move { std::future::poll_fn(|cx| line.poll(cx, &mut queue)).await });
        expect(&mut theirs, &(echo("there") + &echo("nobody"))).await;
        drop(jobs);
        theirs.write_all(b"$5\r\nthere\r\n$6\r\nnobody\r\n").await.unwrap();
        assert!(matches!(serving.await.unwrap(), End::Left));
    });
}

#[test]
fn a_silent_daemon_is_hung_up_on_and_the_next_one_found() {
    run(async {
        let peer = Peer::new();
        let client = AsyncClient::with_timeouts(peer.path(), SHORT);
        let asked = ask(&client, "a");
        let mut stream = peer.accept().await;
        let late = asked.await.unwrap().unwrap_err();
        assert!(matches!(late, ClientError::TimedOut { after, .. } if after == SHORT.answer), "{late}");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&all), echo("a"), "and then it hung up");
        let next = tokio::spawn(async move {
            let mut stream = peer.accept().await;
            // Reads all requests that have come meanwhile, and answers them.
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"$1\r\nb\r\n").await;
            stream
        });
        loop {
            match client.command(&[b"ECHO", b"b"]).await {
                Ok(reply) => break assert_eq!(reply, bulk("b")),
                Err(error) => assert!(matches!(error, ClientError::Unreachable { .. }), "it rests: {error}"),
            }
            tokio::task::yield_now().await;
        }
        drop(next);
    });
}

#[test]
fn refusals_go_on_and_what_is_no_resp_does_not() {
    run(async {
        let peer = Peer::new();
        let client = AsyncClient::with_timeouts(peer.path(), LONG);
        let asked = [ask(&client, "a"), ask(&client, "b"), ask(&client, "c"), ask(&client, "d")];
        let mut stream = peer.accept().await;
        expect(&mut stream, &["a", "b", "c", "d"].map(echo).concat()).await;
        stream.write_all(b"-ERR no\r\n$1\r\nb\r\nHTTP/1.1 400\r\n").await.unwrap();
        let [a, b, c, d] = asked;
        assert!(matches!(a.await.unwrap(), Err(ClientError::Refused { message }) if message == "ERR no"));
        assert_eq!(b.await.unwrap().unwrap(), bulk("b"));
        assert!(matches!(c.await.unwrap(), Err(ClientError::Protocol { .. })));
        assert!(matches!(d.await.unwrap(), Err(ClientError::Broken { .. })));
        // The connection had worked, so another one is opened at once.
        let again = ask(&client, "e");
        let mut stream = peer.accept().await;
        expect(&mut stream, &echo("e")).await;
        stream.write_all(b"$1\r\ne\r\n").await.unwrap();
        assert_eq!(again.await.unwrap().unwrap(), bulk("e"));
    });
}

#[test]
fn a_client_outlives_a_runtime() {
    let directory = tempfile::tempdir().unwrap();
    let client = AsyncClient::with_timeouts(directory.path().join("none.sock"), LONG);
    for _ in 0..2 {
        let error = run(client.command(&[b"PING"])).unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }
}
