//! Clients that make the daemon keep as much as they can, all at once: it stays within `node.max_memory`, and whoever
//! asks for little is answered. In a cgroup of 256 MiB, where the machine lets a test make one.

use crate::support;

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use support::memory::{peak_of, resident_of};
use support::poll::wait_until;
use support::process::Daemon;
use support::resp::{Decoder, encode};
use support::served::print;
use support::server::{Place, Server};

const MIB: u64 = 1 << 20;

/// `node.max_memory` of the daemon.
const BUDGET: u64 = 64 * MIB;

/// What the process takes beside: threads' buffers, what the allocator has and does not use.
const BESIDE: u64 = 64 * MIB;

/// A cgroup that ends with the test; processes in it end when they take more.
struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// `None`: the machine does not let us.
    fn make() -> Option<Self> {
        let name = format!("rationd-test-{}-{:x}", std::process::id(), rationd::clock::random());
        for (root, file) in [("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")] {
            let group = Self { path: PathBuf::from(root).join(&name) };
            let is_made = fs::create_dir(&group.path).is_ok();
            if is_made && fs::write(group.path.join(file), (256 * MIB).to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }

    /// Where processes run in it.
    fn place(&self) -> Place {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        Place { way: ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec(), ..Place::here() }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

fn connect(path: &std::path::Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("the daemon accepts");
    stream.set_nonblocking(true).expect("a socket can");
    stream
}

/// Writes as much of `bytes`, again and again, as is taken; at most so many.
fn stuff(stream: &mut UnixStream, bytes: &[u8], most: usize) {
    let (mut written, mut refused) = (0, 0);
    while written < most && refused < 20 {
        match stream.write(&bytes[written % bytes.len()..]) {
            Ok(len) => (written, refused) = (written + len, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                std::thread::park_timeout(Duration::from_millis(2));
            }
            // It may be closed.
            Err(_) => return,
        }
    }
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes, words);
    bytes
}

/// Asks for so many keys of so many bytes, a batch at a time, and reads what is answered.
fn keys(daemon: &Daemon, verb: &[&str], count: usize, bytes: usize) {
    const BATCH: usize = 50;
    let mut stream = UnixStream::connect(daemon.socket()).expect("the daemon accepts");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out is not zero");
    let mut decoder = Decoder::default();
    for from in (0..count).step_by(BATCH) {
        let mut batch = Vec::new();
        for number in from..from + BATCH {
            let name = format!("{number:0>bytes$}");
            let words: Vec<_> =
                verb.iter().map(|word| if *word == "KEY" { name.as_bytes() } else { word.as_bytes() }).collect();
            encode(&mut batch, &words);
        }
        stream.write_all(&batch).expect("the daemon reads");
        for _ in 0..BATCH {
            while decoder.next().is_none() {
                assert!(decoder.fill(&mut stream).expect("an answer"), "the daemon closed the connection");
            }
        }
    }
}

/// A second client is answered, and its keys are counted.
fn bystander(daemon: &Daemon, round: u32) {
    for number in 0..10 {
        let reply = daemon.ask(&format!("RATION.CHECK api bystander-{round}-{number}"));
        let told: Vec<_> = reply.items().iter().map(|field| format!("{field:?}")).collect();
        assert!(reply.items().len() == 10, "{told:?}");
    }
    assert_eq!(daemon.ask("PING").text(), "PONG");
}

/// An Envoy that sends the beginning of requests: HTTP/2 by hand.
fn half_streams(path: &std::path::Path) -> UnixStream {
    let mut stream = connect(path);
    let frame = |kind: u8, flags: u8, id: u32, payload: &[u8]| {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(id.to_be_bytes());
        bytes.extend_from_slice(payload);
        bytes
    };
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    let path = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    // POST, http, the path, an authority, application/grpc.
    let mut head = vec![0x83, 0x86, 0x04, path.len() as u8];
    head.extend_from_slice(path);
    head.extend_from_slice(b"\x01\x01x\x0f\x10\x10application/grpc");
    for id in (1..=31).step_by(2) {
        bytes.extend(frame(1, 4, id, &head));
        let mut body = vec![0, 0, 1, 0xf0, 0];
        body.resize(60_000, b'x');
        body.chunks(16_000).for_each(|part| bytes.extend(frame(0, 0, id, part)));
    }
    let length = bytes.len();
    stuff(&mut stream, &bytes, length);
    stream
}

#[test]
fn clients_that_take_all_they_can_leave_the_daemon_within_its_budget() {
    let cgroup = Cgroup::make();
    if cgroup.is_none() {
        print("no cgroup can be made here: the bounds are looked at all the same");
    }
    let redis = Server::plain();
    let place = cgroup.as_ref().map_or_else(Place::here, Cgroup::place);
    let door = tempfile::tempdir().expect("a directory");
    let envoy = door.path().join("rls.sock");
    let mut daemon = Daemon::start_at(
        &place,
        &format!(
            "envoy = {envoy:?}\nmax_connections_per_uid = 4000\n[node]\nmax_memory = \"64MiB\"\n\
             [store]\nurl = \"redis://127.0.0.1:{}\"\n[policy.api]\nlimits = [\"10/1d fixed\"]\n\
             [policy.free]\nunlimited = true\n",
            redis.port
        ),
    );
    bystander(&daemon, 0);
    let base = resident_of(daemon.id());
    let report = |what: &str, daemon: &Daemon, round: u32| {
        bystander(daemon, round);
        let (now, peak) = (resident_of(daemon.id()), peak_of(daemon.id()));
        print(&format!("{what}: {} MiB resident, {} MiB at most, {} MiB before", now / MIB, peak / MIB, base / MIB));
        assert!(peak <= base + BUDGET + BESIDE, "{what}: {} MiB", peak / MIB);
    };

    keys(&daemon, &["RATION.CHECK", "api", "KEY"], 20_000, 10);
    report("20,000 short keys", &daemon, 1);
    keys(&daemon, &["RATION.CHECK", "api", "KEY"], 500, 60_000);
    report("500 keys of 60,000 bytes", &daemon, 2);
    keys(&daemon, &["RATION.HOLD", "api", "KEY", "1", "TTL", "86400000"], 500, 60_000);
    report("500 holds of such keys", &daemon, 3);

    let socket = daemon.socket();
    let mut kept = Vec::new();
    let half = [b"*2\r\n$4\r\nECHO\r\n$1000000\r\n".to_vec(), vec![b'x'; 990_000]].concat();
    for _ in 0..200 {
        let mut stream = connect(&socket);
        stuff(&mut stream, &half, half.len());
        kept.push(stream);
    }
    report("200 requests of 1 MB that are half", &daemon, 4);
    for _ in 0..100 {
        let mut stream = connect(&socket);
        let head = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 250000\r\n\r\n".to_vec();
        let body = [head, vec![b'x'; 240_000]].concat();
        stuff(&mut stream, &body, body.len());
        kept.push(stream);
    }
    report("100 HTTP bodies that are half", &daemon, 5);
    kept.extend((0..60).map(|_| half_streams(&envoy)));
    report("60 connections of Envoy with 16 requests that are half", &daemon, 6);
    for _ in 0..30 {
        let mut stream = connect(&socket);
        let mut exec = b"MULTI\r\n".to_vec();
        exec.extend(b"COMMAND DOCS\r\n".repeat(1_000));
        exec.extend(b"EXEC\r\n");
        stuff(&mut stream, &exec, exec.len());
        kept.push(stream);
    }
    report("30 transactions with unread answers", &daemon, 7);
    for _ in 0..30 {
        let mut stream = connect(&socket);
        stuff(&mut stream, &b"RATION.KEYS COUNT 1000\r\n".repeat(20), 480);
        kept.push(stream);
    }
    report("600 unread listings", &daemon, 8);
    for _ in 0..30 {
        let mut stream = connect(&socket);
        stuff(&mut stream, &command(&[b"RATION.CHECK", b"free", b"k"]).repeat(1_000), 8 << 20);
        kept.push(stream);
    }
    report("30 pipelines that are not read", &daemon, 9);
    assert!(daemon.is_running());
    drop(kept);
    wait_until("what they kept is free", 20, || daemon.metrics().sum("rationd_connections_kept_bytes", &[]) == 0.0);
    bystander(&daemon, 10);
}
