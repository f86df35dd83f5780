//! Nobody is lost because somebody is not run: a daemon that stands still for a moment or hardly gets the processor,
//! and a Redis that has more to do than it can. No share is opened, nobody is declared away, nothing is over; and
//! whoever is turned away is told so at once, with a wait that is no longer than the queue.

use crate::support;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use support::clock::wait_for_boundary;
use support::demand::{self, Client, Pace};
use support::fleet::{Issuer, Sight};
use support::fresh::{Tally, load};
use support::poll::wait_until;
use support::process::Daemon;
use support::served::{LATEST, LIMIT, MARGIN, PERIOD, assert_bucket_holds, assert_none_over, assert_served, print};
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

#[test]
fn starved_daemon_declares_nobody_lost() {
    if !support::goals::are_tried("a starved daemon answers each check within a second") {
        return;
    }
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
        // How long a starved daemon takes is the machine's doing; demand's patience is three seconds.
        assert_served(&format!("a starved daemon, {policy}"), &ledger, Duration::from_secs(3));
        if is_bucket {
            assert_bucket_holds(policy, &ledger, LATEST);
        } else {
            assert_none_over(policy, &ledger);
        }
    }
}

fn told(name: &str, tally: &Tally) {
    print(&format!(
        "{name}: {:.0} a second admitted, denied {:?}, longest {:?}, longest retry {} ms",
        tally.rate(),
        tally.denied,
        tally.longest,
        tally.longest_retry_ms
    ));
    let others: Vec<_> = tally.denied.keys().filter(|reason| *reason != "overload").collect();
    assert!(others.is_empty(), "{name}: the store was there, and each key was new: {:?}", tally.denied);
    assert!(tally.longest <= LATEST + tally.late, "{name}: an answer took {:?}", tally.longest);
    assert!(tally.longest_retry_ms <= 1_000, "{name}: told to wait {} ms", tally.longest_retry_ms);
}

#[test]
fn saturated_redis_is_not_lost() {
    if !support::goals::are_tried("no answer takes longer than store.timeout and 100 ms at 32,000 checks a second") {
        return;
    }
    let _turn = alone();
    let redis = Server::plain();
    let daemon = daemon(&redis.url(), "");
    // Redis runs for a tenth of the time or so.
    let id = redis.id();
    let slowed = Busy(vec![shell(&format!(
        "while kill -s STOP {id} && sleep 0.018 && kill -s CONT {id} && sleep 0.002; do :; done; kill -s CONT {id}"
    ))]);
    let length = Duration::from_secs(2);
    let (mut asked, mut capacity) = (1_000.0, 0.0);
    // Until twice as much does not bring half as much again.
    let saturated = (0..6).find_map(|round| {
        asked *= 2.0;
        let tally = load(&daemon, ("login", &format!("rising{round}")), 8, asked, length);
        told(&format!("{asked:.0} a second"), &tally);
        let is_most = tally.rate() < 1.5 * capacity;
        capacity = tally.rate().max(capacity);
        is_most.then_some(())
    });
    let below = load(&daemon, ("login", "below"), 8, capacity / 4.0, length);
    told("a quarter of the capacity", &below);
    let twice = load(&daemon, ("login", "twice"), 8, capacity * 2.0, length);
    told("twice the capacity", &twice);
    drop(slowed);
    redis.resume();
    let asked = below.admitted + below.denials();
    assert!(below.denials() * 100 <= asked, "{} of {asked} denied below saturation", below.denials());
    let part = 100.0 * twice.rate() / capacity;
    print(&format!("admitted at twice the capacity of {capacity:.0} a second ({saturated:?}): {part:.0} % of it"));
    // 90 % on a machine of its own; what a shared one gives Redis changes from second to second.
    assert!(part >= 50.0, "{part:.0} % of {capacity:.0} a second");
}
