//! A daemon in this process on a socket of its own, and a client that shows whole replies.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rationd::core::key::DigestKey;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::{Backend, Daemon, Limits, StartOptions};
use rationd::wire::value::Value;

/// A daemon under test. Ends with the test.
pub struct TestDaemon {
    pub daemon: Option<Daemon>,
    pub socket: PathBuf,
    pub runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

/// The policies that the tests use.
pub fn policies() -> PolicySet {
    let limited = |limits: &[&str]| PolicySpec {
        limits: limits.iter().map(|&l| l.to_owned()).collect(),
        ..PolicySpec::default()
    };
    let mut api = limited(&["100/1h", "5/1h fixed"]);
    api.overrides.insert("acme".into(), limited(&["1000/1h burst 2000"]));
    api.overrides.insert("evil".into(), PolicySpec { blocked: true, ..PolicySpec::default() });
    api.overrides.insert("root".into(), PolicySpec { unlimited: true, ..PolicySpec::default() });
    let specs = BTreeMap::from([
        ("api".to_owned(), api),
        ("watched".to_owned(), PolicySpec { shadow: true, ..limited(&["1/1h"]) }),
        ("free".to_owned(), PolicySpec { unlimited: true, ..PolicySpec::default() }),
    ]);
    PolicySet::compile(&specs).expect("the policies of the tests are right")
}

impl TestDaemon {
    /// One data thread, embedded store.
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    /// As `change` says.
    pub fn with(change: impl FnOnce(&mut StartOptions)) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the socket");
        let socket = directory.path().join("rationd.sock");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a control runtime");
        let mut options = StartOptions {
            clock: rationd::clock::Clock::start(),
            socket: socket.clone(),
            mode: 0o600,
            group: None,
            envoy: None,
            tcp: None,
            remote: Arc::default(),
            limits: Limits::default(),
            threads: 1,
            store: Backend::Memory,
            policies: Arc::new(ArcSwap::from_pointee(policies())),
            in_fleet: false,
            settings: Settings { max_keys: 100_000, timeout: Micros::from_millis(50), lease_ahead: false },
            digests: DigestKey::default(),
            reload: None,
        };
        change(&mut options);
        let daemon = {
            let _inside = runtime.enter();
            Daemon::start(options).expect("the daemon starts")
        };
        Self { daemon: Some(daemon), socket, runtime, _directory: directory }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("it has not been stopped")
    }

    /// Stops it as SIGTERM does.
    pub fn stop(&mut self) -> usize {
        let daemon = self.daemon.take().expect("it has not been stopped");
        self.runtime.block_on(daemon.drain_and_stop())
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.runtime.block_on(daemon.drain_and_stop());
        }
    }
}

/// A blocking client. No reply may take longer than 10 s.
pub struct Client {
    pub stream: UnixStream,
    input: Vec<u8>,
    used: usize,
}

impl Client {
    pub fn connect(path: &std::path::Path) -> Self {
        Self::over(UnixStream::connect(path).expect("the daemon listens"))
    }

    /// A client over a stream that is open.
    pub fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        stream.set_write_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        Self { stream, input: Vec::new(), used: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the daemon reads");
    }

    /// The next reply, or `None` when the daemon has closed.
    pub fn reply(&mut self) -> Option<Value> {
        loop {
            if let Some((value, len)) = Value::parse(&self.input[self.used..]).expect("a reply is RESP") {
                self.used += len;
                if self.used == self.input.len() {
                    self.input.clear();
                    self.used = 0;
                }
                return Some(value);
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(len) => self.input.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    /// The next reply, or `None` when the daemon has closed, before a reply or in something that is none.
    pub fn reply_or_end(&mut self) -> Option<Value> {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(len) if len > 0 => Value::parse(&buffer[..len]).ok().flatten().map(|(value, _)| value),
            _ => None,
        }
    }

    /// Shows the reply to `line`, or `None` when the daemon has closed.
    pub fn ask_or_end(&mut self, line: &str) -> Option<String> {
        let _ = self.stream.write_all(format!("{line}\r\n").as_bytes());
        self.reply_or_end().map(|reply| show(&reply))
    }

    /// The length of an array whose items are the next replies.
    pub fn array(&mut self) -> usize {
        loop {
            let rest = &self.input[self.used..];
            if let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
                assert_eq!(rest[0], b'*', "an array was wanted");
                let len = std::str::from_utf8(&rest[1..end]).expect("digits").parse().expect("a length");
                self.used += end + 2;
                return len;
            }
            let mut buffer = [0; 16 << 10];
            let len = self.stream.read(&mut buffer).expect("a reply");
            assert!(len > 0, "the daemon closed before an array");
            self.input.extend_from_slice(&buffer[..len]);
        }
    }

    pub fn ask_bytes(&mut self, words: &[&[u8]]) -> Value {
        self.send(&encode(words));
        self.reply().expect("a reply")
    }

    /// Sends the words of `line` (split at spaces) as an array and shows the reply.
    pub fn ask(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        show(&self.ask_bytes(&words))
    }

    /// Nothing has come, and the connection has not ended.
    pub fn is_silent(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket can");
        let read = self.stream.read(&mut [0; 1]);
        self.stream.set_nonblocking(false).expect("a socket can");
        self.used == self.input.len() && read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Nothing more comes, and the connection ends.
    pub fn is_closed(&mut self) -> bool {
        self.reply().is_none()
    }
}

/// How much `client` can write before the daemon no longer reads.
pub fn flood(client: &mut Client, line: &[u8]) -> usize {
    client.stream.set_nonblocking(true).expect("a socket can");
    let mut written = 0;
    let mut refused = 0;
    while refused < 20 {
        match client.stream.write(&line[written % line.len()..]) {
            Ok(len) => (written, refused) = (written + len, 0),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refused += 1;
                std::thread::park_timeout(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(written < 64 << 20, "the daemon never stopped reading");
    }
    client.stream.set_nonblocking(false).expect("a socket can");
    written
}

/// A command as clients write it.
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A reply on one line, much as `redis-cli --no-raw` would show it.
pub fn show(value: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(show).collect::<Vec<_>>().join(" ");
    match value {
        Value::Simple(text) => text.clone(),
        Value::Error(text) => format!("-{text}"),
        Value::Integer(number) => number.to_string(),
        Value::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(values) => list(values),
        Value::Map(pairs) => {
            let pairs: Vec<String> =
                pairs.iter().map(|(key, value)| format!("{}={}", show(key), show(value))).collect();
            format!("{{{}}}", pairs.join(" "))
        }
        Value::Null => "nil".into(),
        other => format!("{other:?}"),
    }
}

/// Waits until `holds`, at most ten seconds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if holds() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("{what}: not within 10 s");
}
