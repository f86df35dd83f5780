//! Sub-leases: processes that decide by themselves, from tokens that the daemon lent them.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rationd::client::{Client, Limiter, OnDaemonLoss};
use support::daemon::TestDaemon;
use support::poll::wait_until;

const LIMIT: u64 = 20_000;
const PLACE: &str = "RATIOND_TEST_LIMITER";

fn policies() -> rationd::core::policy::PolicySet {
    use rationd::core::policy::{PolicySet, PolicySpec};
    let spec = |limit: &str| PolicySpec { limits: vec![limit.to_owned()], ..PolicySpec::default() };
    let specs = [
        ("day".to_owned(), spec(&format!("{LIMIT}/1d fixed from-first"))),
        ("bucket".to_owned(), spec("100/1h")),
        ("free".to_owned(), PolicySpec { unlimited: true, ..PolicySpec::default() }),
    ];
    PolicySet::compile(&specs.into()).expect("the policies are right")
}

fn daemon() -> TestDaemon {
    TestDaemon::with(|options| options.policies.store(std::sync::Arc::new(policies())))
}

/// Asks until it was denied, and tells how often it was not. With `until`, stops there and waits to be killed.
fn spend(socket: &Path, until: u64) {
    let limiter = Limiter::new(socket, "day", b"k", OnDaemonLoss::Deny);
    let mut admitted = 0;
    while admitted < until && limiter.allow(1) {
        admitted += 1;
    }
    println!("admitted {admitted}");
    std::io::stdout().flush().expect("our parent listens");
    if until < u64::MAX {
        std::io::stdin().read_line(&mut String::new()).expect("our parent kills us first");
    }
}

/// Not a test of its own: what the processes of the others run.
#[test]
fn child() {
    if let Ok(place) = std::env::var(PLACE) {
        let (until, socket) = place.split_once(' ').expect("a number and a path");
        spend(Path::new(socket), until.parse().expect("a number"));
    }
}

fn start(socket: &Path, until: u64) -> Child {
    let this = std::env::current_exe().expect("this test has a file");
    Command::new(this)
        .args(["limiter::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(PLACE, format!("{until} {}", socket.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this test can be run once more")
}

fn counted(output: impl BufRead) -> u64 {
    let told =
        output.lines().map_while(Result::ok).find_map(|line| line.split_once("admitted ")?.1.trim().parse().ok());
    told.expect("a child tells how much it admitted")
}

#[test]
fn eight_processes_admit_the_limit_and_one_that_is_killed_loses_what_it_held() {
    let daemon = daemon();
    // It was lent 1, 2, 4 … 256, and has spent all but some of the last.
    let mut killed = start(&daemon.socket, 300);
    let lost = counted(BufReader::new(killed.stdout.as_mut().expect("it is piped")));
    killed.kill().expect("it runs");
    killed.wait().expect("it is our child");
    let others: Vec<Child> = (0..7).map(|_| start(&daemon.socket, u64::MAX)).collect();
    let outputs = others.into_iter().map(|child| child.wait_with_output().expect("it is our child"));
    let sum: u64 = outputs.map(|output| counted(BufReader::new(&*output.stdout))).sum();
    assert_eq!(lost, 300);
    assert!(sum + lost <= LIMIT, "{sum} + {lost} of {LIMIT} admitted");
    assert!(sum + 511 >= LIMIT, "{sum} of {LIMIT} admitted, and the one that was killed held 511 at most");
}

#[test]
fn what_is_left_is_handed_back() {
    let daemon = daemon();
    let limiter = Limiter::new(&daemon.socket, "day", b"r", OnDaemonLoss::Deny);
    let also = limiter.clone();
    for _ in 0..100 {
        assert!(limiter.allow(1));
    }
    assert!(also.allow(7));
    drop(limiter);
    let mut client = Client::connect(&daemon.socket).unwrap();
    assert!(client.peek("day", b"r", 1).unwrap().remaining < LIMIT - 107, "a clone still holds some");
    drop(also);
    assert_eq!(client.peek("day", b"r", 1).unwrap().remaining, LIMIT - 107);
}

#[test]
fn more_than_is_lent_at_once_and_what_is_not_limited() {
    let daemon = daemon();
    let limiter = Limiter::new(&daemon.socket, "day", b"m", OnDaemonLoss::Deny);
    assert!(limiter.allow(LIMIT / 2), "a quarter is lent at most, and this is asked for by itself");
    assert!(!limiter.allow(LIMIT));
    let free = Limiter::new(&daemon.socket, "free", b"m", OnDaemonLoss::Deny);
    assert!((0..1_000).all(|_| free.allow(3)));
    let bucket = Limiter::new(&daemon.socket, "bucket", b"m", OnDaemonLoss::Deny);
    assert_eq!((0..1_000).filter(|_| bucket.allow(1)).count(), 100);
}

#[test]
fn a_daemon_that_is_away_leaves_what_the_caller_chose() {
    let mut daemon = daemon();
    let all = [OnDaemonLoss::Allow, OnDaemonLoss::Deny, OnDaemonLoss::LastShare];
    let limiters =
        all.map(|on_daemon_loss| Limiter::new(&daemon.socket, "bucket", format!("{on_daemon_loss:?}"), on_daemon_loss));
    for limiter in &limiters {
        assert!((0..30).all(|_| limiter.allow(1)), "{:?}", limiter.last_error());
    }
    daemon.stop();
    let [allow, deny, share] = &limiters;
    wait_until("what was lent is over", 10, || !deny.allow(1));
    assert!((0..1_000).all(|_| allow.allow(1)));
    assert!(deny.last_error().is_some_and(|why| why.contains("rationd.sock")), "{:?}", deny.last_error());
    // 1, 2, 4, 8, 16: so much is lent for half a second at a time, and so much passes.
    let passed = (0..1_000).filter(|_| share.allow(1)).count();
    assert!((1..=40).contains(&passed), "{passed}");
    let nobody = Limiter::new("/nowhere/rationd.sock", "bucket", b"k", OnDaemonLoss::LastShare);
    assert!(!nobody.allow(1), "nothing was ever lent");
}
