//! How often the daemons of a fleet wake up that has nothing to do. It is counted as the book counts it (docs/internals/testing.md).

use crate::support;

use std::fs;
use std::io::Write;
use std::time::Duration;

use support::clock::Watch;
use support::fleet::{Issuer, Sight, Sights};
use support::process::Daemon;
use support::server::Server;

const NODES: u64 = 3;
/// Ten seconds after the last node has come a fleet is calm.
const CALM: Duration = Duration::from_secs(15);
const SPAN: Duration = Duration::from_secs(10);
/// The goal is ten a second. On a busy machine a thread wakes up a little more often, as what comes together else comes apart.
const MOST: u64 = 13;

/// Who writes files has nothing to write, either.
const FILES: &str = "[record]\nfile = \"arrivals\"\n[denials]\nfile = \"denials\"\n";

#[test]
fn a_fleet_that_has_nothing_to_do_wakes_up_seldom() {
    let (redis, issuer) = (Server::plain(), Issuer::new("prod"));
    let (mut seeds, mut daemons) = (String::new(), Vec::new());
    for name in ["a", "b", "c"] {
        let rest =
            format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n{FILES}[policy.api]\nlimits = [\"99/1m\"]\n", redis.port);
        daemons.push(Daemon::start(&format!("{}{seeds}\n{rest}", issuer.node(name))));
        seeds = format!("seeds = [{:?}]\n", daemons[0].fleet_address());
    }
    let whole = Sight::of_whole(NODES, 99_u64.div_ceil(NODES));
    assert!(Sights::new("api").until(&daemons, whole, CALM).is_some(), "the fleet has not come together");
    let watch = Watch::start();
    watch.pause_until(CALM);
    let waits = || daemons.iter().map(|daemon| waits_of(daemon.id())).collect::<Vec<_>>();
    let before = waits();
    watch.pause_until(CALM + SPAN);
    let seen: Vec<_> = waits().iter().zip(before).map(|(after, before)| (after - before) / SPAN.as_secs()).collect();
    writeln!(std::io::stderr(), "wake-ups a second of each of three: {seen:?}").expect("stderr takes a line");
    assert!(seen.iter().all(|each| *each <= MOST), "wake-ups a second of each: {seen:?}");
}

/// How often the threads of a process have begun to wait.
fn waits_of(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let status = threads.map(|thread| fs::read_to_string(thread.expect("a thread").path().join("status")));
    // A thread may have ended since.
    let waits = status.filter_map(Result::ok).filter_map(|status| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    });
    waits.sum()
}
