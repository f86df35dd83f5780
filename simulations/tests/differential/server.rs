//! A real redis-server on a Unix socket, whose wall clock stands still until the test moves it. It
//! lives in a directory of its own; both are gone with the test.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rationd::wire::value::Value;
use tempfile::TempDir;

const CLOCK: &str = include_str!("clock.c");

/// The server and one connection to it.
pub(crate) struct Server {
    child: Child,
    _log: BufReader<ChildStdout>,
    socket: UnixStream,
    clock: File,
    /// Bytes of replies that were not taken yet.
    input: Vec<u8>,
    _dir: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts it; panics with what to do when something is not installed.
    pub(crate) fn start() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let library = compile(dir.path());
        let clock = File::create_new(dir.path().join("clock")).expect("a new file");
        set(&clock, 1_800_000_000_000_000);
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--unixsocket", "redis.sock", "--save", "", "--appendonly", "no"]);
        command.args(["--enable-debug-command", "local", "--dir"]).arg(dir.path());
        command.env("LD_PRELOAD", library).env("TEST_CLOCK", dir.path().join("clock"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| {
            panic!("redis-server cannot be run ({error}): install version 7, for example: apt-get install redis-server")
        });
        let mut log = BufReader::new(child.stdout.take().expect("a pipe"));
        wait_until_ready(&mut log);
        let socket = UnixStream::connect(dir.path().join("redis.sock")).expect("a server that is ready");
        let mut server = Self { child, _log: log, socket, clock, input: Vec::new(), _dir: dir };
        // Keys that expired vanish when they are asked for, not also by a timer of the real world.
        assert_eq!(server.ask(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]), Value::Simple("OK".into()));
        server
    }

    /// Moves the clock. No command may be under way.
    pub(crate) fn set_clock(&self, us: u64) {
        set(&self.clock, us);
    }

    /// Sends a command, whose reply is to be received later.
    pub(crate) fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.socket.write_all(&request).expect("a server that lives");
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> Value {
        loop {
            if let Some((reply, length)) = Value::parse(&self.input).expect("replies of Redis") {
                self.input.drain(..length);
                return reply;
            }
            let mut more = [0; 16 << 10];
            let read = self.socket.read(&mut more).expect("a server that lives");
            assert!(read > 0, "redis-server closed the connection");
            self.input.extend_from_slice(&more[..read]);
        }
    }

    /// Sends a command and receives its reply.
    pub(crate) fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        self.send(words);
        self.receive()
    }
}

/// The library that gives the server its clock.
fn compile(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
    std::fs::write(&source, CLOCK).expect("a writable directory");
    let status = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library).arg(&source).status();
    let status = status.unwrap_or_else(|error| {
        panic!("cc cannot be run ({error}): install a C compiler, for example: apt-get install gcc")
    });
    assert!(status.success(), "cc refused clock.c");
    library
}

/// One write of eight bytes: the server never sees half a time.
fn set(clock: &File, us: u64) {
    clock.write_all_at(&us.to_ne_bytes(), 0).expect("a writable file");
}

fn wait_until_ready(log: &mut BufReader<ChildStdout>) {
    let mut said = String::new();
    while !said.contains("eady to accept connections") {
        let more = log.read_line(&mut said).expect("what redis-server says");
        assert!(more > 0, "redis-server ended; version 7 or later is needed:\n{said}");
    }
}
