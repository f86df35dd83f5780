//! Nobody is lost because somebody is not run: a daemon that stands still for a moment or hardly gets the processor,
//! and a Redis that has more to do than it can. No share is opened, nobody is declared away, nothing is over; and
//! whoever is turned away is told so at once, with a wait that is no longer than the queue.

use crate::support;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use support::clock::{Watch, wait_for_boundary};
use support::demand::{self, Client, Pace};
use support::fleet::{Issuer, Sight};
use support::fresh::{Tally, load};
use support::goals;
use support::poll::wait_until;
use support::process::Daemon;
use support::resp::{Decoder, encode};
use support::served::{
    LATEST, LIMIT, MARGIN, PERIOD, assert_bucket_holds, assert_nobody_shared, assert_none_over, assert_served, print,
};
use support::server::Server;

const POLICIES: &str = "
[policy.hot]
limits = [\"1000/1s fixed\"]
[policy.bucket]
limits = [\"1000/1s\"]
[policy.login]
limits = [\"5/1h\"]
";

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn daemon(url: &str, more: &str) -> Daemon {
    Daemon::start(&format!("[store]\nurl = \"{url}\"\n{more}{POLICIES}"))
}

fn client(daemon: &Daemon, node: u8, policy: &str, rate: f64) -> Client {
    Client { node, socket: daemon.socket(), policy: policy.into(), key: "k".into(), pace: Pace::PerSecond(rate) }
}

/// Processes that end with the test.
struct Busy(Vec<Child>);

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn shell(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().expect("sh is there")
}

/// When a daemon is stopped, and for how long: milliseconds.
const STOPS: [(u64, u64); 8] =
    [(800, 100), (1_300, 300), (2_000, 200), (2_600, 150), (3_200, 300), (3_900, 250), (4_500, 120), (5_000, 300)];

#[test]
fn daemon_that_stands_still_for_a_moment_loses_nobody() {
    let _turn = alone();
    let redis = Server::plain();
    let issuer = Issuer::new("starved");
    let first = daemon(&redis.url(), &issuer.node("one"));
    let seeds = format!("seeds = {:?}\n", [first.fleet_address()]);
    let second = daemon(&redis.url(), &(issuer.node("two").trim_end().to_owned() + "\n" + &seeds));
    let daemons = [first, second];
    let sight = |daemon: &Daemon| Sight::of(&daemon.metrics(), "hot");
    wait_until("both see both", 15, || daemons.iter().all(|daemon| sight(daemon).up == 2));
    for (policy, is_bucket) in [("hot", false), ("bucket", true)] {
        let clients = [0, 1].map(|node: u8| client(&daemons[usize::from(node)], node, policy, LIMIT as f64));
        let mut missed = 0;
        wait_for_boundary(PERIOD, MARGIN);
        let ledger = demand::run(&clients, PERIOD * 6 + MARGIN * 2, |watch| {
            for (at, length) in STOPS {
                watch.pause_until(Duration::from_millis(at));
                daemons[1].signal("STOP");
                watch.pause_until(Duration::from_millis(at + length));
                daemons[1].signal("CONT");
                missed += daemons.iter().map(|daemon| sight(daemon).missed).sum::<u64>();
            }
        });
        let longest_stop = Duration::from_millis(300);
        assert_served(&format!("a daemon of two stands still, {policy}"), &ledger, LATEST + longest_stop);
        assert_eq!(missed, 0, "{policy}: both were there");
        if is_bucket {
            assert_bucket_holds(policy, &ledger, longest_stop * 2);
        } else {
            assert_none_over(policy, &ledger);
        }
    }
}

/// Checks that wait in the socket of a daemon that stands still.
const WAITING: usize = 1_000;
const LONG_STOP: Duration = Duration::from_secs(10);

/// Reads so many decisions: of those that were admitted, when their window ends, and what else was said.
fn decisions(mut stream: &UnixStream, count: usize) -> (BTreeMap<u64, u64>, Vec<String>) {
    let (mut decoder, mut admitted, mut words) = (Decoder::default(), BTreeMap::new(), Vec::new());
    for _ in 0..count {
        let reply = loop {
            if let Some(reply) = decoder.next() {
                break reply;
            }
            assert!(decoder.fill(&mut stream).expect("an answer"), "the daemon closed the connection");
        };
        let fields = reply.items();
        if fields[0].int() == 0 {
            *admitted.entry(u64::try_from(fields[6].int()).expect("a time")).or_default() += 1;
        }
        words.push(format!("{} {}", fields[7].text(), fields[9].text()));
    }
    (admitted, words)
}

#[test]
fn daemon_that_stands_still_for_ten_seconds_spends_nothing_that_is_over() {
    let _turn = alone();
    let redis = Server::plain();
    let (first, second) = (daemon(&redis.url(), ""), daemon(&redis.url(), ""));
    let mut stream = UnixStream::connect(second.socket()).expect("it accepts");
    stream.set_read_timeout(Some(LONG_STOP)).expect("a time-out is not zero");
    let mut check = Vec::new();
    encode(&mut check, &[b"RATION.CHECK", b"hot", b"k"]);
    let mut ask = |count: usize| stream.write_all(&check.repeat(count)).map(|()| stream.try_clone().expect("a handle"));
    let (mut by_second, mut resumed) = (Vec::new(), (Duration::ZERO, Vec::new()));
    wait_for_boundary(PERIOD, MARGIN);
    let ledger = demand::run(&[client(&first, 0, "hot", 2.0 * LIMIT as f64)], LONG_STOP + PERIOD * 4, |watch| {
        // Early in a window there are tokens for both; what the one that is stopped holds it holds still.
        let early = MARGIN + PERIOD / 10;
        watch.pause_until(PERIOD + early);
        by_second.push(decisions(&ask(20).expect("it reads"), 20).0);
        second.signal("STOP");
        let waiting = ask(WAITING).expect("the socket takes as much");
        watch.pause_until(PERIOD + LONG_STOP + early);
        second.signal("CONT");
        let since = Watch::start();
        by_second.push(decisions(&waiting, WAITING).0);
        resumed.0 = since.elapsed();
        watch.pause_until(LONG_STOP + PERIOD * 3 + early);
        let (admitted, words) = decisions(&ask(20).expect("it reads"), 20);
        by_second.push(admitted);
        resumed.1 = words;
    });
    assert_served("beside a daemon that stands still", &ledger, LATEST);
    let mut windows: BTreeMap<u64, u64> =
        ledger.windows().into_iter().map(|(end, window)| (end, window.admitted())).collect();
    for (end, admitted) in by_second.iter().flatten() {
        *windows.entry(*end).or_default() += admitted;
    }
    let (took, words) = resumed;
    let late: u64 = by_second[1].values().sum();
    print(&format!("{late} of {WAITING} that waited were admitted, all answered in {took:.1?}; then {words:?}"));
    assert!(took <= LATEST * 4, "{took:?}");
    assert!(words.iter().all(|word| !word.ends_with("share")), "nobody is lost: {words:?}");
    assert!(windows.values().all(|admitted| *admitted <= LIMIT), "{windows:?}");
}

#[test]
fn starved_daemon_declares_nobody_lost() {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url(), "");
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.id())).expect("it runs").flatten() {
        let task = task.file_name().into_string().expect("a number");
        let niced = Command::new("renice").args(["-n", "19", "-p", &task]).stdout(Stdio::null()).status();
        assert!(niced.expect("renice is there").success(), "renice of {task}");
    }
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    for (policy, is_bucket) in [("hot", false), ("bucket", true)] {
        let busy = Busy((0..cores).map(|_| shell("while :; do :; done")).collect());
        wait_for_boundary(PERIOD, MARGIN);
        let clients = [client(&daemon, 0, policy, 300.0), client(&daemon, 0, policy, 300.0)];
        let ledger = demand::run(&clients, PERIOD * 4 + MARGIN * 2, |_| {});
        drop(busy);
        let name = format!("a starved daemon, {policy}");
        assert_nobody_shared(&name, &ledger);
        // How long a starved daemon takes is the machine's doing.
        let longest = Duration::from_micros(ledger.waits_us().0);
        let seen = format!("{name}: longest {longest:.1?}, unanswered {}", ledger.unanswered);
        let goal = "a starved daemon answers each check within a second";
        goals::judge(goal, seen, longest <= Duration::from_secs(1) && ledger.unanswered == 0);
        if is_bucket {
            assert_bucket_holds(policy, &ledger, LATEST);
        } else {
            assert_none_over(policy, &ledger);
        }
    }
}

/// So many that none has more checks under way than a connection may: beyond that they wait in its socket, behind its
/// own.
const CONNECTIONS: usize = 64;

fn print_tally(name: &str, tally: &Tally) {
    print(&format!(
        "{name}: {:.0} a second admitted, {:.0} of them by the store, denied {:?}, longest {:?}, longest retry {} ms",
        tally.rate(),
        tally.rate_of_store(),
        tally.denied,
        tally.longest,
        tally.longest_retry_ms
    ));
    let others: Vec<_> = tally.denied.keys().filter(|reason| *reason != "overload").collect();
    assert!(others.is_empty(), "{name}: the store was there, and each key was new: {:?}", tally.denied);
    let goal = "no answer takes longer than store.timeout and 100 ms, and as much as its client was late";
    let seen = format!("{name}: {:.1?}, late {:.1?}", tally.longest, tally.late);
    goals::judge(goal, seen, tally.longest <= LATEST + tally.late);
    assert!(tally.longest_retry_ms <= 1_000, "{name}: told to wait {} ms", tally.longest_retry_ms);
}

#[test]
fn saturated_redis_is_not_lost() {
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url(), "");
    // Redis runs for a tenth of the time or so.
    let id = redis.id();
    let slowed = Busy(vec![shell(&format!(
        "while kill -s STOP {id} && sleep 0.018 && kill -s CONT {id} && sleep 0.002; do :; done; kill -s CONT {id}"
    ))]);
    let length = Duration::from_secs(2);
    let (mut asked, mut capacity) = (500.0, 0.0);
    // What the store itself answers in time, until twice as much does not bring half as much again. What it does not is
    // admitted by the share of a fresh key, and would pass for its capacity.
    let saturated = (0..6).find_map(|round| {
        asked *= 2.0;
        let tally = load(&daemon, ("login", &format!("rising{round}")), CONNECTIONS, asked, length);
        print_tally(&format!("{asked:.0} a second"), &tally);
        let is_most = tally.rate_of_store() < 1.5 * capacity;
        capacity = tally.rate_of_store().max(capacity);
        is_most.then_some(())
    });
    let below: Vec<_> = [0.25, 0.5, 0.85]
        .map(|part| {
            let tally = load(&daemon, ("login", &format!("below{part}")), CONNECTIONS, capacity * part, length);
            print_tally(&format!("{part} of the capacity"), &tally);
            (part, tally)
        })
        .into();
    let twice = load(&daemon, ("login", "twice"), CONNECTIONS, capacity * 2.0, length);
    print_tally("twice the capacity", &twice);
    drop(slowed);
    redis.resume();
    for (part, tally) in &below {
        let (denied, shared) = (tally.denials(), tally.admitted - tally.by_store);
        goals::judge(
            &format!("nobody is denied at {part} of the capacity"),
            format!("{denied} of {}, and {shared} decided by the share of a fresh key", tally.admitted + denied),
            denied == 0,
        );
    }
    // On a machine of its own; what a shared one gives Redis changes from second to second.
    let part = 100.0 * twice.rate() / capacity;
    let seen = format!("{part:.0} % of {capacity:.0} a second ({saturated:?})");
    goals::judge("90 % of the capacity is admitted at twice of it", seen, part >= 90.0);
    assert!(part >= 50.0, "{part:.0} % of {capacity:.0} a second");
    let part = 100.0 * twice.rate_of_store() / capacity;
    let seen = format!("{part:.0} % of {capacity:.0} a second");
    goals::judge("75 % of the capacity is answered by the store in time at twice of it", seen, part >= 75.0);
    assert!(part >= 25.0, "answered in time: {part:.0} % of {capacity:.0} a second");
}
