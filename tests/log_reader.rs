//! A log that nobody reads: the daemon answers on, finds its store again, and leaves when it is asked to.
//!
//! RATIOND_STALLED_SECONDS: for how long (12 by default; 90 shows more than one round of everything).

use crate::support;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use support::clock::{Starved, Watch};
use support::poll::{wait_for, wait_until};
use support::process::{signal, without_settings};
use support::resp::{Connection, Reply};
use support::server::Server;

/// The longest wait for an answer: `store.timeout` and what a busy machine adds.
const LATEST: Duration = Duration::from_millis(150);

/// A pipe that is full and that nobody reads, for as long as the reader lives.
fn full_pipe() -> (std::io::PipeReader, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let _inside = runtime.enter();
    let filler = tokio::net::unix::pipe::Sender::from_owned_fd(writer.into()).expect("it is a pipe");
    runtime.block_on(filler.writable()).expect("it is a pipe");
    while filler.try_write(&[b'x'; 4096]).is_ok() {}
    (reader, filler.into_blocking_fd().expect("it is ours"))
}

struct Stalled {
    child: Child,
    directory: tempfile::TempDir,
    reader: std::io::PipeReader,
}

impl Stalled {
    fn start(config: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, socket) = (directory.path().join("rationd.toml"), directory.path().join("rationd.sock"));
        std::fs::write(&file, format!("[listen]\nsocket = {socket:?}\nadmin = \"off\"\n{config}")).expect("a file");
        let (reader, writer) = full_pipe();
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        command.arg("-vv").arg("-c").arg(&file).arg("serve").stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
        let child = command.spawn().expect("cargo built it");
        let stalled = Self { child, directory, reader };
        wait_for("it listens", 20, || stalled.connect().ok());
        stalled
    }

    fn connect(&self) -> std::io::Result<Connection<UnixStream>> {
        let stream = UnixStream::connect(self.directory.path().join("rationd.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Connection::new(stream))
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a check of `key` was decided by the store or from its tokens, and how long it took.
fn check(connection: &mut Connection<UnixStream>, key: &str) -> (String, Duration) {
    let watch = Watch::start();
    let reply = connection.ask_text(&format!("RATION.CHECK api {key}")).expect("an answer");
    let Reply::Array(fields) = reply else { panic!("{reply:?}") };
    (fields[9].text(), watch.elapsed())
}

#[test]
fn a_reader_that_has_stalled_stops_nothing() {
    let seconds = std::env::var("RATIOND_STALLED_SECONDS").map_or(12, |text| text.parse().expect("seconds"));
    let mut redis = Server::plain();
    let mut daemon = Stalled::start(&format!(
        "[store]\nurl = {:?}\ntimeout = \"50ms\"\n[policy.api]\nlimits = [\"1000000/1h fixed\"]\n",
        redis.url()
    ));
    let starved = Starved::watch();
    let mut connection = daemon.connect().expect("it accepts");
    let (mut asked, mut latest, mut late) = (0_u64, Duration::ZERO, Vec::new());
    let mut from_store = [0_u64; 2];
    let watch = Watch::start();
    let (away, back) = (Duration::from_secs(seconds) / 4, Duration::from_secs(seconds) / 2);
    let (mut killed, mut restarted) = (false, false);
    while watch.elapsed() < Duration::from_secs(seconds) {
        if !killed && watch.elapsed() > away {
            redis.kill();
            killed = true;
        }
        if !restarted && watch.elapsed() > back {
            redis.restart();
            restarted = true;
        }
        starved.take();
        let (source, took) = check(&mut connection, &format!("user:{asked}"));
        let excused = if took > LATEST { starved.take_whole() } else { Duration::ZERO };
        latest = latest.max(took.saturating_sub(excused));
        if took > LATEST + excused {
            late.push((took, excused, source.clone()));
        }
        if source == "store" || source == "lease" {
            from_store[usize::from(restarted)] += 1;
        }
        // What any client can make the daemon log.
        if asked % 50 == 0 {
            let reload = Watch::start();
            connection.ask_text("RATION.RELOAD").expect("an answer");
            connection.ask_text("RATION.STATS").expect("an answer");
            assert!(reload.elapsed() < Duration::from_secs(2), "a reload took {:?}", reload.elapsed());
        }
        asked += 1;
        watch.pause_until(Duration::from_millis(asked * 2));
    }
    eprintln!("{asked} checks in {seconds} s, the latest after {latest:?}; from the store {from_store:?}");
    assert!(late.is_empty(), "{} of {asked} answers came late: {late:?}", late.len());
    assert!(from_store.iter().all(|&count| count > 10), "the store was not found again: {from_store:?}");
    let watch = Watch::start();
    signal(daemon.child.id(), "TERM");
    let status = wait_for("it leaves", 10, || daemon.child.try_wait().expect("it is our child"));
    let took = watch.elapsed();
    assert!(status.success() && took < Duration::from_secs(2), "{status} after {took:?}");
}

/// Whoever reads again is told what is missing.
#[test]
fn dropped_lines_are_counted_in_the_log() {
    let mut daemon = Stalled::start("[policy.api]\nlimits = [\"10/1s\"]\n");
    // Each connection to a socket of ours is a few lines at this level; a megabyte of them waits, the rest is dropped.
    let mut connection = daemon.connect().expect("it accepts");
    for _ in 0..100 {
        connection.ask_text("RATION.RELOAD").expect("an answer");
    }
    let (mut reader, text) = (daemon.reader.try_clone().expect("a descriptor"), std::sync::Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut part = [0; 4096];
            while let Ok(read @ 1..) = reader.read(&mut part) {
                text.lock().expect("nobody panics").extend_from_slice(&part[..read]);
            }
        });
        let has = |word: &str| String::from_utf8_lossy(&text.lock().expect("nobody panics")).contains(word);
        wait_until("what waited is read", 20, || has("listening on"));
        signal(daemon.child.id(), "TERM");
        wait_until("the last line is read", 20, || has("left: everything is settled"));
        wait_for("it leaves", 10, || daemon.child.try_wait().expect("it is our child"));
        let reloads =
            String::from_utf8_lossy(&text.lock().expect("nobody panics")).matches("configuration reloaded").count();
        assert!((1..100).contains(&reloads), "{reloads} reloads are in the log: they are limited");
    });
}
