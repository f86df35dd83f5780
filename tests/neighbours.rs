//! Noisy neighbours: clients that ask the store for as much as they can, and a bystander who asks it for little. He is
//! answered by the store as if they were not there: by no share, and never turned away.
//!
//! Of 400 checks of fresh keys beside eight connections, the store answered so many while calls left first come, first
//! served, and so many since they leave in turn (`store.timeout` 50 ms, the default, two cores, a debug build):
//!
//! | the eight ask for | answered by the store | p99 | since | p99 |
//! |---|---|---|---|---|
//! | resets of one key | 0 | none within 20 s | 400 | 11 ms |
//! | resets of many keys | 0 | none within 20 s | 400 | 15 ms |
//! | refunds of one key | 389 | 62 ms | 400 | 19 ms |
//! | peeks | 0 | 349 ms | 400 | 11 ms |
//! | fresh keys | 0, by a share 86 | 256 ms | 398 to 400 | 44 ms |
//!
//! Beside eight connections of Envoy with 256 requests each half of his answers took 235 ms; since such requests await
//! no more at a time than commands do, 11 ms. Of requests of 64 fresh keys 43 % were answered `overload`, and none since.
//! One connection that asks for fresh keys without end had 11 % of what the store answered beside eight of another
//! user; 24 % since users have even parts.
//!
//! The floods, their clients and the machine's other work share two cores with him: checks may wait much longer here than
//! by default, because the time until everybody was run once is not what is looked at. His latencies are told, and how
//! many answers the others got while he waited for one of his, in the median (of 8,000 under way: fresh keys 1,800,
//! peeks 190, resets 30 to 270).

use crate::support;
use crate::support::envoy as rls;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rationd::config::ListenAddress;
use rationd::serve::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest};
use rls::Rls;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use support::clock::Watch;
use support::poll::wait_until;
use support::process::Daemon;
use support::resp::{Connection, Decoder, Reply, encode};
use support::served::print;
use support::server::Server;
use support::skip::skipped;

/// Connections of the flood, and what each has under way at a time.
const FLOODS: usize = 8;
const AT_ONCE: usize = 1_000;

/// What the bystander asks: a fresh key each time, one after another.
const CHECKS: u32 = 400;
const PAUSE: Duration = Duration::from_millis(5);

/// He asks no longer than this, on a machine where all of them take longer.
const LONG: Duration = Duration::from_secs(8);

/// What a check waits for the store at most.
const TIMEOUT_MS: u64 = 2_000;

/// Requests of a connection of Envoy at once: as many as the door takes.
const STREAMS: usize = 256;

const POLICIES: &str = "
[[descriptors.edge]]
match = [\"user\"]
policy = \"day\"
[policy.day]
limits = [\"10/366d fixed\"]
[policy.hour]
limits = [\"5/1h\"]
";

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn daemon(redis: &Server) -> Daemon {
    daemon_with(redis, "")
}

fn daemon_with(redis: &Server, listen: &str) -> Daemon {
    let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\ntimeout = \"{TIMEOUT_MS}ms\"\n", redis.port);
    let daemon = Daemon::start(&format!("{listen}envoy = \"./rls.sock\"\n{store}{POLICIES}"));
    let mut probe = 0;
    wait_until("the store is asked", 20, || {
        probe += 1;
        daemon.ask(&format!("RATION.CHECK day probe-{probe}")).items()[9].text() == "store"
    });
    daemon
}

/// Answers by who gave them and why.
type Answers = BTreeMap<(String, String), u64>;

fn name(reply: &Reply) -> (String, String) {
    match reply {
        Reply::Array(fields) => (fields[9].text(), fields[7].text()),
        Reply::Simple(text) => ("store".to_owned(), text.clone()),
        other => ("nobody".to_owned(), format!("{other:?}")),
    }
}

/// What the bystander was answered.
#[derive(Debug, Default)]
struct Bystander {
    answers: Answers,
    took: Vec<Duration>,
    /// Answers that others got between his request and his answer.
    overtaken: Vec<u64>,
}

impl Bystander {
    fn ask(daemon: &Daemon, others: &Flood) -> Self {
        Self::ask_on(daemon.connect().expect("the daemon accepts"), others)
    }

    fn ask_on(mut connection: Connection<UnixStream>, others: &Flood) -> Self {
        let (mut seen, begun) = (Self::default(), Watch::start());
        for number in (0..CHECKS).take_while(|_| begun.elapsed() < LONG) {
            begun.pause_until(PAUSE * number);
            let policy = if number % 2 == 0 { "day" } else { "hour" };
            let (watch, before) = (Watch::start(), others.answered());
            let reply = connection.ask_text(&format!("RATION.CHECK {policy} bystander-{number}")).expect("an answer");
            seen.took.push(watch.elapsed());
            seen.overtaken.push(others.answered() - before);
            *seen.answers.entry(name(&reply)).or_default() += 1;
        }
        seen.took.sort();
        seen.overtaken.sort_unstable();
        seen
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.took[(self.took.len() - 1) * percent / 100]
    }
}

/// What the flood was answered, and whether it is over.
#[derive(Debug, Default)]
struct Flood {
    answers: Mutex<Answers>,
    is_over: AtomicBool,
}

impl Flood {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers of the store. Where one request asks for several keys, those after the first are often answered from what
    /// the store has lent while the first one waited: of fresh keys that is an answer of the store as well.
    fn served(&self) -> u64 {
        let is_served = |source: &str| matches!(source, "store" | "lease");
        self.answers().iter().filter(|((source, _), _)| is_served(source)).map(|(_, count)| count).sum()
    }

    fn answered(&self) -> u64 {
        self.answers().values().sum()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn note(&self, source: &str, reason: &str) {
        *self.answers().entry((source.to_owned(), reason.to_owned())).or_default() += 1;
    }

    /// Connections that each ask for `path(number)` over HTTP, and then for the next.
    fn ask_http(&self, socket: &Path, connections: usize, path: impl Fn(usize) -> String) {
        let connect = |_| {
            let stream = UnixStream::connect(socket).expect("the daemon accepts");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out is not zero");
            BufReader::new(stream)
        };
        let mut all: Vec<_> = (0..connections).map(connect).collect();
        for round in 0.. {
            if self.is_over() {
                return;
            }
            for (index, connection) in all.iter_mut().enumerate() {
                let head = format!("GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n", path(round * connections + index));
                connection.get_mut().write_all(head.as_bytes()).expect("the daemon reads");
            }
            for connection in &mut all {
                let body: serde_json::Value = serde_json::from_slice(&body(connection)).expect("JSON");
                let word = |name: &str| body[name].as_str().unwrap_or("none").to_owned();
                self.note(&word("source"), &word("reason"));
            }
        }
    }

    /// A connection of Envoy that has as many requests under way as it may, of so many descriptors each.
    fn ask_envoy(&self, door: &Path, descriptors: usize, user: impl Fn(usize) -> String) {
        let rls = Rls::connect(&ListenAddress::Path(door.to_owned()));
        for round in 0.. {
            if self.is_over() {
                return;
            }
            let mut last = round * STREAMS * descriptors;
            let mut descriptor = || {
                last += 1;
                let entries = vec![Entry { key: "user".into(), value: user(last) }];
                RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
            };
            let mut request = || {
                let descriptors = (0..descriptors).map(|_| descriptor()).collect();
                RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 }
            };
            rls.ask_each((0..STREAMS).map(|_| request()).collect(), |answer| {
                match answer {
                    Ok(response) => self.note(rls::told(&response, "source"), rls::told(&response, "reason")),
                    Err(status) => self.note("nobody", status.message()),
                }
                if self.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
    }

    /// A connection that writes `batch(from)` for ever, and reads what it is answered.
    fn run(&self, stream: &UnixStream, batch: impl Fn(usize) -> Vec<u8>) {
        let (mut decoder, mut writer, mut reader) = (Decoder::default(), stream, stream);
        for round in 0.. {
            if self.is_over() {
                return;
            }
            writer.write_all(&batch(round * AT_ONCE)).expect("the daemon reads");
            for _ in 0..AT_ONCE {
                let reply = loop {
                    match decoder.next() {
                        Some(reply) => break reply,
                        None => assert!(decoder.fill(&mut reader).expect("an answer"), "the connection was closed"),
                    }
                };
                *self.answers().entry(name(&reply)).or_default() += 1;
            }
        }
    }
}

/// Ends the flood, also where a test fails.
struct Resolution<'a>(&'a Flood);

impl Drop for Resolution<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// The body of a response.
fn body(connection: &mut BufReader<UnixStream>) -> Vec<u8> {
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        assert!(connection.read_line(&mut line).expect("an answer") > 0, "the connection was closed");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    connection.read_exact(&mut body).expect("an answer");
    body
}

/// The bystander beside eight connections that ask what `words` says of their number and that of the request.
fn beside(name: &str, words: impl Fn(usize, usize) -> Vec<String> + Sync) {
    beside_all(name, |daemon, flood, connection| {
        let stream = UnixStream::connect(daemon.socket()).expect("the daemon accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out is not zero");
        flood.run(&stream, |from| {
            let mut bytes = Vec::new();
            for number in from..from + AT_ONCE {
                let words = words(connection, number);
                encode(&mut bytes, &words.iter().map(String::as_bytes).collect::<Vec<_>>());
            }
            bytes
        });
    });
}

/// The bystander beside eight threads that each do what `noise` says of its number until the flood is over.
fn beside_all(name: &str, noise: impl Fn(&Daemon, &Flood, usize) + Sync) {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis);
    let flood = Flood::default();
    let calm = Bystander::ask(&daemon, &flood);
    let (seen, served) = thread::scope(|scope| {
        for number in 0..FLOODS {
            let (noise, daemon, flood) = (&noise, &daemon, &flood);
            scope.spawn(move || noise(daemon, flood, number));
        }
        let _ending = Resolution(&flood);
        wait_until(&format!("{name}: the flood has begun"), 20, || flood.served() > 100);
        let (watch, before) = (Watch::start(), flood.served());
        let seen = Bystander::ask(&daemon, &flood);
        (seen, (flood.served() - before) as f64 / watch.elapsed().as_secs_f64())
    });
    let [median, high, longest] = [50, 99, 100].map(|percent| seen.percentile(percent));
    let overtaken = seen.overtaken[seen.overtaken.len() / 2];
    print(&format!(
        "{name}: the bystander was answered {:?}, p50 {median:?}, p99 {high:?}, longest {longest:?}, overtaken by \
         {overtaken}; before the flood p99 {:?}; the flood: {served:.0} a second by the store, {:?}",
        seen.answers,
        calm.percentile(99),
        flood.answers(),
    ));
    if calm.percentile(99) > Duration::from_millis(50) {
        // Nobody was noisy then: what he is answered now tells of the machine.
        return print(&format!("{name}: this machine has too much else to do, and nothing is judged"));
    }
    for ((source, reason), count) in &seen.answers {
        assert!(matches!(source.as_str(), "store" | "lease"), "{count} answers by {source}: {reason}");
    }
    assert!(flood.answers().keys().all(|(source, _)| source != "share"), "the store was there: {:?}", flood.answers());
}

#[test]
fn resets_of_one_key_leave_others_alone() {
    beside("resets of one key", |_, _| ["RATION.RESET", "day", "noisy"].map(str::to_owned).to_vec());
}

#[test]
fn resets_of_many_keys_leave_others_alone() {
    beside("resets of many keys", |connection, number| {
        ["RATION.RESET", "day", &format!("noisy-{connection}-{number}")].map(str::to_owned).to_vec()
    });
}

#[test]
fn refunds_leave_others_alone() {
    beside("refunds of one key", |_, _| ["RATION.REFUND", "day", "noisy", "1"].map(str::to_owned).to_vec());
}

#[test]
fn peeks_leave_others_alone() {
    beside("peeks", |connection, number| {
        ["RATION.CHECK", "hour", &format!("noisy-{connection}-{}", number / 100), "PEEK"].map(str::to_owned).to_vec()
    });
}

#[test]
fn fresh_keys_without_end_leave_others_alone() {
    beside("fresh keys", |connection, number| {
        ["RATION.CHECK", "day", &format!("noisy-{connection}-{number}")].map(str::to_owned).to_vec()
    });
}

#[test]
fn fresh_keys_over_http_leave_others_alone() {
    beside_all("fresh keys over HTTP", |daemon, flood, thread| {
        flood.ask_http(&daemon.socket(), 100, |number| format!("/v1/check?policy=day&key=noisy-{thread}-{number}"));
    });
}

#[test]
fn fresh_keys_of_envoy_leave_others_alone() {
    beside_all("fresh keys of Envoy", |daemon, flood, thread| {
        flood.ask_envoy(&daemon.directory().join("rls.sock"), 1, |number| format!("noisy-{thread}-{number}"));
    });
}

#[test]
fn many_fresh_keys_a_request_of_envoy_leave_others_alone() {
    beside_all("64 fresh keys a request of Envoy", |daemon, flood, thread| {
        flood.ask_envoy(&daemon.directory().join("rls.sock"), 64, |number| format!("noisy-{thread}-{number}"));
    });
}

/// A connection of another user. Who somebody is the operating system notes when he connects: by the effective uid of
/// the thread.
fn connect_as(uid: u32, socket: &Path) -> UnixStream {
    let connect = || {
        set_thread_res_uid(None::<Uid>, Uid::from_raw(uid), None::<Uid>).expect("root may");
        UnixStream::connect(socket).expect("anybody may connect")
    };
    let stream = thread::scope(|scope| scope.spawn(connect).join().expect("no panic"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out is not zero");
    stream
}

/// One connection of a user, who asks for fresh keys without end, beside eight threads of another user's: he has his
/// part of what the store answers, and his other connection is a bystander.
///
/// The one client shares two cores with eight: where it is not run it asks for less than its part. One of three tries
/// must show it.
fn beside_another_user(name: &str, noise: impl Fn(&Daemon, &Flood, usize) + Sync) {
    if std::fs::metadata("/proc/self").expect("there is a /proc").uid() != 0 {
        return skipped(name, "two users connect", "root");
    }
    let _turn = alone();
    // Of his half a connection leaves as much to his others.
    let has_his_part = |_| {
        let (one, many) = served_beside_another_user(name, &noise);
        4 * one >= many
    };
    assert!((0..3).any(has_his_part), "{name}: that is no part");
}

/// What the store answered to the one connection, and to the other user's.
fn served_beside_another_user(name: &str, noise: &(impl Fn(&Daemon, &Flood, usize) + Sync)) -> (u64, u64) {
    const OTHER: u32 = 65_534;
    let redis = Server::plain();
    let daemon = daemon_with(&redis, "mode = \"0666\"\n");
    std::fs::set_permissions(daemon.directory(), PermissionsExt::from_mode(0o755)).expect("it is ours");
    let connect = || connect_as(OTHER, &daemon.socket());
    let (many, one) = (Flood::default(), Flood::default());
    let (seen, many_served, one_served) = thread::scope(|scope| {
        for number in 0..FLOODS {
            let (daemon, many) = (&daemon, &many);
            scope.spawn(move || noise(daemon, many, number));
        }
        let _ending = [Resolution(&many), Resolution(&one)];
        wait_until("the flood has begun", 20, || many.served() > 100);
        scope.spawn(|| one.run(&connect(), |from| fresh_checks("one", from)));
        wait_until("the other has begun", 20, || one.served() > 100);
        let before = (many.served(), one.served());
        let seen = Bystander::ask_on(Connection::new(connect()), &many);
        (seen, many.served() - before.0, one.served() - before.1)
    });
    let [median, high] = [50, 99].map(|percent| seen.percentile(percent));
    print(&format!(
        "{name}: one connection was served {one_served}, the other user's {many_served}; its bystander {:?}, p50 \
         {median:?}, p99 {high:?}",
        seen.answers
    ));
    for answers in [&seen.answers, &one.answers()] {
        assert!(answers.keys().all(|(source, _)| matches!(source.as_str(), "store" | "lease")), "{answers:?}");
    }
    (one_served, many_served)
}

/// Checks of keys that nobody has asked for.
fn fresh_checks(name: &str, from: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in from..from + AT_ONCE {
        encode(&mut bytes, &[b"RATION.CHECK", b"day", format!("{name}-{number}").as_bytes()]);
    }
    bytes
}

#[test]
fn a_user_has_his_part_beside_pipelines_of_another() {
    beside_another_user("a user beside pipelines", |daemon, flood, thread| {
        let stream = UnixStream::connect(daemon.socket()).expect("the daemon accepts");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out is not zero");
        flood.run(&stream, |from| fresh_checks(&format!("noisy-{thread}"), from));
    });
}

#[test]
fn a_user_has_his_part_beside_many_connections_of_another() {
    beside_another_user("a user beside many connections", |daemon, flood, thread| {
        flood.ask_http(&daemon.socket(), 100, |number| format!("/v1/check?policy=day&key=noisy-{thread}-{number}"));
    });
}
