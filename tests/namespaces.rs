//! Five daemons and a Redis Cluster of six nodes, each in a network namespace of its own, while real cuts
//! part them: gossip alone, two daemons from everybody else (under shares, and under what the store sets aside), a daemon and a
//! master from everybody else.
//!
//! Runs as root, with iproute2 and nftables; elsewhere it says that it was skipped. The figures of each
//! scenario go to stderr whether it passes or not; `RATIOND_NAMESPACES=gossip,store` runs a part.

use crate::support;

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use rationd::core::key::Digest;
use support::clock::{Watch, wait_for_boundary, wall_us};
use support::cluster::RedisCluster;
use support::demand::{self, Client, Pace};
use support::fleet::{Issuer, Sight, Sights};
use support::ledger::{Check, word};
use support::namespaces::{Network, within};
use support::process::Daemon;
use support::run::Run;

const NODES: usize = 5;
const LIMIT: u64 = 1000;
const PERIOD: Duration = Duration::from_secs(1);
/// What each of so many nodes leases of it at most: an even part, rounded up.
const PARTS: [u64; NODES + 1] = [0, 1000, 500, 334, 250, 200];
/// Twice the limit, evenly.
const RATE: f64 = 2.0 * LIMIT as f64 / NODES as f64;
/// A load begins this long before a window does.
const MARGIN: Duration = Duration::from_millis(150);
/// How long nodes may take to give up those that they cannot hear, and to see them again.
const LOST: Duration = Duration::from_secs(10);
const FOUND: Duration = Duration::from_secs(8);
/// How long after a cut is healed every node may take to spend what the store lends.
const LENT: Duration = Duration::from_secs(4);
/// Longest that a scenario's load may last.
const LONGEST: Duration = Duration::from_secs(40);
/// When a client could not send for this long, the machine stood still for too long for a store's time-out
/// of 50 ms to mean anything: the scenario is run again, on another key, but not more often than this.
const STALL: Duration = Duration::from_millis(25);
const RUNS: u32 = 3;

struct Fleet {
    network: Network,
    cluster: RedisCluster,
    /// Its files are read again while the daemons run.
    _issuer: Issuer,
    daemons: Vec<Daemon>,
}

/// A cut and what it does to whom.
struct Cut {
    sides: [Vec<String>; 2],
    /// Daemons on the second side.
    away: Vec<usize>,
}

/// When the cut was made, and when it was healed: Unix microseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    cut: u64,
    healed: u64,
}

/// Loads a key, cuts and heals, and judges what its clients saw.
type Scenario = fn(&mut Fleet, &str) -> Run;

#[test]
fn a_fleet_in_namespaces_survives_real_cuts() {
    within("namespaces::a_fleet_in_namespaces_survives_real_cuts", |network| {
        let chosen = std::env::var("RATIOND_NAMESPACES").unwrap_or_default();
        let watch = Watch::start();
        let mut fleet = Fleet::start(network);
        print(&format!("all came up in {:.1} s\n{}", watch.elapsed().as_secs_f64(), Run::head()));
        let scenarios: [(&str, Scenario); 5] = [
            ("gossip", gossip_parted),
            ("store", store_on_one_side),
            ("entitled", entitled_on_one_side),
            ("opened", entitled_to_opened_on_one_side),
            ("master", master_isolated),
        ];
        let mut failures = Vec::new();
        for (name, scenario) in scenarios {
            if chosen.is_empty() || chosen.split(',').any(|part| part == name) {
                failures.extend(fleet.judge(name, scenario));
            }
        }
        print(&format!("all took {:.1} s", watch.elapsed().as_secs_f64()));
        fleet.print_logs(failures.is_empty());
        assert!(failures.is_empty(), "\n{}\n", failures.join("\n"));
    });
}

/// Three nodes and two do not hear each other; the store hears all.
fn gossip_parted(fleet: &mut Fleet, key: &str) -> Run {
    let mut run = Run::new(LIMIT, PERIOD, 0.97);
    let cut = Cut { sides: [nodes(0..3), nodes(3..5)], away: vec![3, 4] };
    fleet.parted(&mut run, "shared", key, &cut);
    run
}

/// Two nodes hear neither the others nor the store: they live on their shares, while the others lease. No
/// limit is kept then: nobody on either side can know what the other admits ("a share on top
/// of leases" in docs/concepts/guarantees.md). What it may come to is the limit and their part of 95 % of it: two fifths, give or take what they
/// happened to admit just before.
fn store_on_one_side(fleet: &mut Fleet, key: &str) -> Run {
    let mut run = Run { most: LIMIT * 145 / 100, ..Run::new(LIMIT, PERIOD, 0.97) };
    let cut = two_cut_off();
    let times = fleet.parted(&mut run, "shared", key, &cut);
    run.judge_cut(times, &cut);
    run
}

/// The same under a policy of which the store sets aside what those may admit who lose it: no window comes to more than the
/// limit, and of what is set aside little stays unused.
fn entitled_on_one_side(fleet: &mut Fleet, key: &str) -> Run {
    let mut run = Run::new(LIMIT, PERIOD, 0.85);
    let cut = two_cut_off();
    let times = fleet.parted(&mut run, "entitled", key, &cut);
    run.judge_cut(times, &cut);
    run.demand_set_aside(&cut);
    run
}

/// The same of windows that open with the first request. Those who are away do not know when, so that theirs are not the
/// store's: what they admit while one of its windows is open counts for that. For the first second after the cut they admit nothing.
fn entitled_to_opened_on_one_side(fleet: &mut Fleet, key: &str) -> Run {
    let mut run = Run::new(LIMIT, PERIOD, 0.85);
    let cut = two_cut_off();
    let times = fleet.parted(&mut run, "opened", key, &cut);
    let used = run.used(times.cut + 1_500_000, times.healed);
    run.notes.push(format!("{used:.1} % used from 1.5 s after the cut until its end"));
    run.demand(used >= 85.0, || format!("{used:.1} % used in the cut"));
    run.place_in_opened();
    run.judge_cut(times, &cut);
    run.demand_set_aside(&cut);
    run
}

/// Two nodes from the others and the store.
fn two_cut_off() -> Cut {
    let near: Vec<_> = nodes(0..3).into_iter().chain((0..6).map(redis)).collect();
    Cut { sides: [near, nodes(3..5)], away: vec![3, 4] }
}

/// A node and the master of the key hear each other and nobody else, until a replica has taken over and
/// after. Until it sees that it is alone, which takes it a second, the master lends small leases that no
/// replica confirms, while the others live on their shares; then the others lease, and the node has its share.
/// Which part of a limit that is follows what it admitted just before, with the master to itself.
fn master_isolated(fleet: &mut Fleet, key: &str) -> Run {
    let mut run = Run { most: LIMIT * 130 / 100, ..Run::new(LIMIT, PERIOD, 0.9) };
    let slot_key = format!("ration:{{{}}}", Digest::of("shared", key.as_bytes()));
    let master = fleet.cluster.master_of(&slot_key, 5);
    let near = nodes(0..4).into_iter().chain((0..6).filter(|server| *server != master).map(redis)).collect();
    let cut = Cut { sides: [near, vec![node(4), redis(master)]], away: vec![4] };
    let times = fleet.parted(&mut run, "shared", key, &cut);
    run.judge_cut(times, &cut);
    let slot = fleet.cluster.slot_of(&slot_key);
    let owner = fleet.cluster.owner_of(slot, 5);
    run.notes.push(format!("the key's master was {master} and is {owner:?}"));
    run.demand(owner.is_some_and(|owner| owner != master), || "no replica took over".into());
    run
}

impl Run {
    /// Nodes that are away have admitted something.
    fn demand_set_aside(&mut self, cut: &Cut) {
        let own = |check: &&Check| cut.away.contains(&usize::from(check.node)) && check.answer.source == word(b"share");
        let admitted = self.ledger.checks.iter().filter(own).filter(|check| check.answer.allowed).count();
        self.demand(admitted > 0, || "nobody has admitted what was set aside".into());
    }

    /// Checks that the store's tokens did not pass name the store's window in which they were, whatever they said; those of which
    /// it is not sure in which that was are left out.
    fn place_in_opened(&mut self) {
        let is_lent = |check: &Check| check.answer.allowed && check.answer.source != word(b"share");
        let lent = self.ledger.checks.iter().filter(|check| is_lent(check));
        let ends: BTreeSet<u64> = lent.map(|check| check.answer.reset_at_ms).collect();
        let before = self.ledger.checks.len();
        self.ledger.checks.retain_mut(|check| {
            if is_lent(check) {
                return true;
            }
            // The ends are whole milliseconds.
            let Some(end) = ends.range(check.replied_us / 1_000 + 1..).next() else { return false };
            check.answer.reset_at_ms = *end;
            check.sent_us >= (end + 1) * 1_000 - PERIOD.as_micros() as u64
        });
        let left = before - self.ledger.checks.len();
        self.notes.push(format!("{left} checks were sent or answered where a window ended"));
    }

    /// What was admitted in that time (Unix microseconds), in percent of what the limit lets pass.
    fn used(&self, from: u64, until: u64) -> f64 {
        let within = |check: &&Check| (from..until).contains(&check.sent_us) && check.answer.allowed;
        let admitted = self.ledger.checks.iter().filter(within).count() as f64;
        100.0 * admitted * PERIOD.as_micros() as f64 / (self.limit * (until - from)) as f64
    }

    /// What holds however a store is parted from nodes: leases keep the limit, shares are spent by those
    /// alone who cannot reach it, and both end soon after the cut.
    fn judge_cut(&mut self, times: Times, cut: &Cut) {
        let (limit, period) = (self.limit, PERIOD.as_micros() as u64);
        let windows = self.ledger.windows();
        let during = windows.iter().filter(|(end, _)| (times.cut..times.healed).contains(&(**end * 1_000)));
        let over: Vec<_> = during.map(|(_, window)| 100.0 * (window.admitted() as f64 / limit as f64 - 1.0)).collect();
        self.notes.push(format!("over the limit by % in the windows that ended in the cut: {over:.1?}"));
        for (end, window) in &windows {
            self.demand(window.lent <= limit, || format!("{window:?} until {end}: more lent than {limit}"));
            let healed = end * 1_000 >= times.healed + period * 3;
            self.demand(!healed || window.admitted() <= limit, || format!("{window:?} until {end}, after the cut"));
        }
        let flows = (0..NODES as u8).map(|node| {
            let lent = self.ledger.checks.iter().filter(|check| {
                check.node == node && check.sent_us >= times.healed && check.answer.source == word(b"lease")
            });
            lent.filter(|check| check.answer.allowed).map(|check| check.sent_us - times.healed).min()
        });
        let flows: Vec<_> = flows.map(|after| after.map(Duration::from_micros)).collect();
        self.notes.push(format!("each node spends leases so long after the cut: {flows:.2?}"));
        let latest = flows.iter().copied().reduce(|one, other| Some(one?.max(other?))).flatten();
        self.took(latest, LENT, &format!("all nodes spend leases, {:?} of them cut off before", cut.away));
    }
}

impl Fleet {
    fn start(mut network: Network) -> Self {
        let servers = [0, 1, 2, 3, 4, 5].map(|number| network.place(&redis(number)));
        let places: Vec<_> = (0..NODES).map(|number| network.place(&node(number))).collect();
        let cluster = RedisCluster::start_at(&servers, "no");
        let issuer = Issuer::new("prod");
        let configs: Vec<_> = places
            .iter()
            .enumerate()
            .map(|(number, place)| {
                let section = issuer.node_at(&node(number), &format!("{}:7946", place.host));
                let url = cluster.url();
                format!(
                    "[store]\nurl = \"{url}\"\n\n{section}\nseeds = [\"{}:7946\"]\n\n\
                     [policy.shared]\nlimits = [\"{LIMIT}/1s fixed\"]\n\n\
                     [policy.entitled]\nlimits = [\"{LIMIT}/1s fixed\"]\non_store_loss = \"entitled\"\n\n\
                     [policy.opened]\nlimits = [\"{LIMIT}/1s fixed from-first\"]\non_store_loss = \"entitled\"\n",
                    places[0].host
                )
            })
            .collect();
        let daemons = std::thread::scope(|scope| {
            let starting: Vec<_> = places
                .iter()
                .zip(&configs)
                .map(|(place, config)| scope.spawn(move || Daemon::start_at(place, config)))
                .collect();
            starting.into_iter().map(|daemon| daemon.join().expect("it came up")).collect()
        });
        let fleet = Self { network, cluster, _issuer: issuer, daemons };
        let seen = Sights::new("shared").until(&fleet.daemons, whole(), LOST);
        assert!(seen.is_some(), "the nodes do not see each other");
        fleet
    }

    /// Runs a scenario until the machine kept up with it, and returns which promises were broken.
    fn judge(&mut self, name: &str, scenario: Scenario) -> Vec<String> {
        let mut failures = Vec::new();
        for number in 1..=RUNS {
            let watch = Watch::start();
            let run = scenario(self, &format!("{name}-{number}"));
            print(&run.lines(name, watch.elapsed()));
            let late = run.ledger.late;
            failures = run.failures();
            if failures.is_empty() || late < STALL {
                break;
            }
            print(&format!("{name}: {failures:?}, but a client stood still for {late:?}"));
        }
        if !failures.is_empty() {
            failures.extend(self.state_of_stores());
        }
        failures.into_iter().map(|what| format!("{name}: {what}")).collect()
    }

    /// What each node knows of the store and of its keys, for who reads a failure.
    fn state_of_stores(&self) -> impl Iterator<Item = String> + use<'_> {
        self.daemons.iter().enumerate().map(|(node, daemon)| {
            let told: serde_json::Value = serde_json::from_str(&daemon.ask("RATION.TOP").text()).unwrap_or_default();
            let log = daemon.log();
            let last: Vec<_> = log.lines().rev().take(12).collect();
            format!(
                "node {node}: store {}, keys {}, last of the log {last:#?}",
                told["store"],
                daemon.ask("RATION.KEYS COUNT 9").text()
            )
        })
    }

    /// The last that each daemon had to say, unless all is well.
    fn print_logs(&self, well: bool) {
        for daemon in self.daemons.iter().filter(|_| !well) {
            let log = daemon.log();
            let lines: Vec<_> = log.lines().collect();
            print(&format!("-- log of a daemon\n{}", lines[lines.len().saturating_sub(8)..].join("\n")));
        }
    }

    /// Loads a key at twice the limit, cuts, waits until every node sees who is left, lets two windows pass,
    /// heals, waits until every node sees everybody, and lets three windows pass.
    fn parted(&mut self, run: &mut Run, policy: &'static str, key: &str, cut: &Cut) -> Times {
        let mut times = Times::default();
        let mut sights = Sights::new(policy);
        let before: Vec<_> = self.daemons.iter().map(Daemon::metrics).collect();
        let clients = self.clients(policy, key);
        wait_for_boundary(PERIOD, MARGIN);
        run.ledger = demand::run_while(&clients, LONGEST, |watch| {
            sights.look(&self.daemons);
            watch.pause_until(PERIOD * 3 + MARGIN * 3);
            self.network.cut([&cut.sides[0], &cut.sides[1]]);
            times.cut = wall_us();
            let seen = sights.until_each(&self.daemons, LOST, |node, sight| sight == cut.left_for(node));
            run.took(seen, LOST, "each sees who is left on its side");
            wait_windows(2);
            let taken = self.network.heal();
            times.healed = wall_us();
            run.notes.push(format!("the cut took {taken} packets"));
            run.demand(taken > 0, || "the cut took nothing".into());
            let seen = sights.until(&self.daemons, whole(), FOUND);
            run.took(seen, FOUND, "all see all again");
            wait_windows(3);
        });
        run.metrics = before.into_iter().zip(self.daemons.iter().map(Daemon::metrics)).collect();
        run.notes.extend(sights.lines());
        times
    }

    /// Two clients for each daemon.
    fn clients(&self, policy: &str, key: &str) -> Vec<Client> {
        let client = |node: usize| Client {
            node: node as u8,
            socket: self.daemons[node].socket(),
            policy: policy.into(),
            key: key.into(),
            pace: Pace::PerSecond(RATE / 2.0),
        };
        (0..NODES).chain(0..NODES).map(client).collect()
    }
}

impl Cut {
    /// What a node should see while it lasts.
    fn left_for(&self, node: usize) -> Sight {
        let away = self.away.len();
        let up = if self.away.contains(&node) { away } else { NODES - away } as u64;
        Sight { missed: NODES as u64 - up, ..Sight::of_whole(up, PARTS[up as usize]) }
    }
}

/// What all should see while nothing is cut.
fn whole() -> Sight {
    Sight::of_whole(NODES as u64, PARTS[NODES])
}

fn node(number: usize) -> String {
    format!("node-{number}")
}

fn nodes(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(node).collect()
}

fn redis(number: usize) -> String {
    format!("redis-{number}")
}

/// Returns when so many windows have passed whole.
fn wait_windows(count: u32) {
    let watch = Watch::start();
    wait_for_boundary(PERIOD, Duration::ZERO);
    watch.pause_until(watch.elapsed() + PERIOD * count);
}

/// Past the test harness, which would keep it from those who look at a run that passes.
fn print(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
}
