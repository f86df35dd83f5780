//! A rolling upgrade under load: daemons of an earlier build and of this one share a real Redis, one after the other is replaced, by
//! request or by a crash, and no limit is exceeded at any time.
//!
//! `tests/run mixed` builds the earlier daemon, without which nothing is run here. The simulator has the same with many seeds (`simulations/scenarios/mixed-versions.toml`), and `store_earlier.rs` with keys that were dumped.

use crate::support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::clock::wait_for_boundary;
use support::demand::{self, Client, Pace};
use support::fleet::{Issuer, Sight, Sights};
use support::ledger::Ledger;
use support::process::Daemon;
use support::server::{Place, Server};
use support::skip::skipped;

/// Where `tests/run mixed` builds the daemon of before.
const EARLIER: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/earlier/debug/rationd");
const NODES: usize = 4;
const LIMIT: u64 = 1_000;
const PERIOD: Duration = Duration::from_secs(1);
/// A load begins this long before a window does.
const MARGIN: Duration = Duration::from_millis(150);
/// As many windows are watched with each mixture of builds.
const WINDOWS: u32 = 4;

/// What is asked for: each policy with one key of a thousand tokens a second.
const POLICIES: [(&str, &str); 3] =
    [("window", "1000/1s fixed"), ("sliding", "1000/1s sliding"), ("bucket", "1000/1s burst 1000")];

struct Fleet {
    redis: Server,
    daemons: Vec<Daemon>,
}

impl Fleet {
    /// All daemons are of the earlier build.
    fn start(earlier: &str) -> Self {
        let mut fleet = Self { redis: Server::plain(), daemons: Vec::new() };
        fleet.daemons = (0..NODES).map(|_| fleet.daemon(earlier)).collect();
        fleet
    }

    fn daemon(&self, program: &str) -> Daemon {
        let policies: String =
            POLICIES.iter().map(|(name, limit)| format!("[policy.{name}]\nlimits = [\"{limit}\"]\n")).collect();
        let config = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n{policies}", self.redis.port);
        Daemon::start_built(program, &Place::here(), &config)
    }

    /// All together ask for half as much again as there is of one policy.
    fn clients(&self, policy: &str) -> Vec<Client> {
        let clients = self.daemons.iter().enumerate().map(|(node, daemon)| Client {
            node: u8::try_from(node).expect("few nodes"),
            socket: daemon.socket(),
            policy: policy.into(),
            key: "k".into(),
            pace: Pace::PerSecond(1.5 * LIMIT as f64 / NODES as f64),
        });
        clients.collect()
    }

    /// What clients see of each policy for some windows; in the midst of those of policy `during`, `meanwhile` is done.
    fn watch(&mut self, during: usize, meanwhile: impl Fn(&mut Self)) -> Vec<Ledger> {
        let ledgers = POLICIES.iter().enumerate().map(|(index, (policy, _))| {
            let clients = self.clients(policy);
            wait_for_boundary(PERIOD, MARGIN);
            demand::run(&clients, MARGIN + PERIOD * WINDOWS, |watch| {
                if index == during {
                    watch.pause_until(MARGIN + PERIOD + PERIOD / 3);
                    meanwhile(self);
                }
            })
        });
        ledgers.collect()
    }
}

/// A check counts for the second in which it surely was, by the clock that the store and the clients have in common.
const EDGE_US: u64 = 2_000;

/// What trickles into a bucket while an answer of the store is under way, and a token: nodes admit what they were lent as much later.
const LATER: f64 = 10.0 + 1.0;

/// How much was admitted beyond a limit.
fn over(ledger: &Ledger, policy: &str) -> u64 {
    let mut admitted: Vec<_> = ledger.checks.iter().filter(|check| check.answer.allowed).collect();
    match policy {
        "window" => ledger.worst().saturating_sub(LIMIT),
        "sliding" => {
            let mut seconds = BTreeMap::new();
            let edge =
                |at: u64| (at / 1_000_000 * 1_000_000 + EDGE_US)..(at / 1_000_000 * 1_000_000 + 1_000_000 - EDGE_US);
            for check in admitted.iter().filter(|check| {
                let second = edge(check.sent_us);
                second.contains(&check.sent_us) && second.contains(&check.replied_us)
            }) {
                *seconds.entry(check.sent_us / 1_000_000).or_insert(0) += 1;
            }
            seconds.into_values().max().unwrap_or(0_u64).saturating_sub(LIMIT)
        }
        _ => {
            // Between any two checks no more pass than a burst, and what comes meanwhile.
            admitted.sort_unstable_by_key(|check| check.replied_us);
            let first = admitted.first().map_or(0, |check| check.replied_us);
            let (mut least, mut worst) = (f64::MAX, 0.0_f64);
            for (number, check) in admitted.iter().enumerate() {
                let beyond = number as f64 - LIMIT as f64 * (check.replied_us - first) as f64 / 1e6;
                least = least.min(beyond);
                worst = worst.max(beyond - least + 1.0);
            }
            (worst - LIMIT as f64 - LATER).max(0.0).ceil() as u64
        }
    }
}

/// A line for each policy, and what was broken.
fn judge(step: &str, ledgers: &[Ledger], is_calm: bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (ledger, (policy, _)) in ledgers.iter().zip(POLICIES) {
        let over = over(ledger, policy);
        let admitted = ledger.checks.iter().filter(|check| check.answer.allowed).count() as u64;
        let used = 100 * admitted / (LIMIT * u64::from(WINDOWS));
        eprintln!(
            "{step}: {policy}: {} checks, {admitted} admitted, {used} % of the rate, {over} over",
            ledger.checks.len()
        );
        // The windows in which a daemon starts or ends are not used to the last token: it may have held some.
        let least = if is_calm { 95 } else { 80 };
        if over > 0 || used < least || !ledger.errors.is_empty() {
            broken.push(format!("{step}: {policy}: {over} over, {used} % used of {least}: {:?}", ledger.errors));
        }
    }
    broken
}

#[test]
fn a_rolling_upgrade_exceeds_no_limit() {
    if !Path::new(EARLIER).exists() {
        return skipped("mixed_builds", "`tests/run mixed` builds a daemon of before", EARLIER);
    }
    let today = env!("CARGO_BIN_EXE_rationd");
    let mut fleet = Fleet::start(EARLIER);
    let ledgers = fleet.watch(0, |_| {});
    let mut broken = judge("all of before", &ledgers, true);
    for node in 0..NODES {
        let ledgers = fleet.watch(node % POLICIES.len(), |fleet| {
            if node % 2 == 0 {
                assert!(fleet.daemons[node].terminate().success(), "{}", fleet.daemons[node].log());
            } else {
                fleet.daemons[node].kill();
            }
            fleet.daemons[node] = fleet.daemon(today);
        });
        broken.extend(judge(&format!("{} replaced", node + 1), &ledgers, false));
        let ledgers = fleet.watch(0, |_| {});
        broken.extend(judge(&format!("{} of today", node + 1), &ledgers, true));
    }
    // And one goes back, as after a bad release.
    let ledgers = fleet.watch(1, |fleet| fleet.daemons[0] = fleet.daemon(EARLIER));
    broken.extend(judge("one goes back", &ledgers, false));
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

/// A build without looks says nothing of them when it greets a peer, so it is not asked, and its row says why. Asked itself, it says what it
/// says to any word that it does not know.
#[test]
fn a_node_of_before_is_shown_as_one_that_cannot_be_asked() {
    if !Path::new(EARLIER).exists() {
        return skipped("mixed_builds", "`tests/run mixed` builds a daemon of before", EARLIER);
    }
    let (redis, issuer) = (Server::plain(), Issuer::new("prod"));
    let config =
        format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n[policy.window]\nlimits = [\"1000/1s fixed\"]\n", redis.port);
    let today = Daemon::start(&format!("{}{config}", issuer.node("today")));
    let seeds = format!("seeds = [{:?}]\n", today.fleet_address());
    let before = Daemon::start_built(EARLIER, &Place::here(), &format!("{}{seeds}{config}", issuer.node("before")));
    let both = [today, before];
    let seen = Sights::new("window").until(&both, Sight::of_whole(2, 500), Duration::from_secs(20));
    assert!(seen.is_some(), "the two have not come together");
    let malformed = || both[1].metrics().sum("rationd_gossip_bad_frames_total", &["why=\"malformed\""]);
    let counted = malformed();
    for _ in 0..3 {
        let told: Value = serde_json::from_str(&both[0].ask("RATION.TOP FLEET").text()).expect("JSON");
        let nodes: Vec<_> =
            told["nodes"].as_array().expect("a list").iter().map(|node| (&node["node"], &node["away"])).collect();
        assert_eq!(nodes, [(&Value::from("before"), &Value::from(false)), (&"today".into(), &Value::Null)], "{told}");
        let why = told["nodes"][0]["problem"].as_str().unwrap_or_default();
        assert!(why.contains("earlier version"), "{told}");
    }
    assert_eq!(malformed(), counted, "nothing was sent that it does not know");
    let asked = Command::new(env!("CARGO_BIN_EXE_rationd"))
        .arg("--socket")
        .arg(both[1].socket())
        .args(["top", "--fleet", "--once"])
        .output()
        .expect("cargo built it");
    assert!(String::from_utf8_lossy(&asked.stderr).contains("earlier version"), "{asked:?}");
}
