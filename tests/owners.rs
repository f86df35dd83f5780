//! Three real daemons that ask each other for keys they use seldom, and one real Redis: exact, for fewer calls; and what
//! an owner that stands still or dies, and a node that Redis cannot be reached from, cost their clients.

use crate::support;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use support::clock::{Starved, Watch, wait_for_boundary, wall_us};
use support::fleet::Issuer;
use support::metrics::Metrics;
use support::poll::wait_until;
use support::process::Daemon;
use support::proxy::{Mode, Proxy};
use support::resp::Connection;
use support::server::Server;

const NODES: usize = 3;
/// Windows of the limits, and how long after a window begins its checks are sent.
const PERIOD: Duration = Duration::from_secs(2);
const INTO: Duration = Duration::from_millis(300);
/// Most in a window of `ample`, of which nobody is denied, and of `tight`, which is less than what is asked for.
const AMPLE: u64 = 100;
const TIGHT: u64 = 2;
/// `store.timeout` and what a busy machine adds.
const LATEST: Duration = Duration::from_millis(150);

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn print(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
}

/// Daemons that see each other, and what one of their clients was told.
struct Trio {
    daemons: Vec<Daemon>,
    clients: Vec<Connection<UnixStream>>,
    starved: Starved,
    /// Its files are read again while the daemons run.
    _issuer: Issuer,
}

/// One check and its answer.
struct Check {
    key: String,
    allowed: bool,
    reset_at: i64,
    source: String,
    /// Without the time for which this machine kept threads waiting, where it was long.
    waited: Duration,
}

impl Trio {
    /// Daemons of which each reaches the store at an address of its own.
    fn start(owner: &str, stores: [&str; NODES]) -> Self {
        let issuer = Issuer::new("prod");
        let config = |number: usize, seeds: &[String]| {
            let section = issuer.node(&format!("node-{number}"));
            format!(
                "[store]\nurl = \"{}\"\ntimeout = \"50ms\"\n\n{section}\nowner = \"{owner}\"\nseeds = {seeds:?}\n\n\
                 [policy.ample]\nlimits = [\"{AMPLE}/2s fixed\"]\n\n[policy.tight]\nlimits = [\"{TIGHT}/2s fixed\"]\n",
                stores[number]
            )
        };
        let mut daemons = vec![Daemon::start(&config(0, &[]))];
        let seeds = [daemons[0].fleet_address()];
        daemons.extend((1..NODES).map(|number| Daemon::start(&config(number, &seeds))));
        wait_until("all see each other", 20, || {
            daemons.iter().all(|daemon| daemon.metrics().sum("rationd_fleet_nodes", &["state=\"up\""]) == NODES as f64)
        });
        let clients = daemons.iter().map(|daemon| daemon.connect().expect("it listens")).collect();
        Self { daemons, clients, starved: Starved::watch(), _issuer: issuer }
    }

    /// Daemons that all reach this store.
    fn on(owner: &str, store: &Server) -> Self {
        let url = store.url();
        Self::start(owner, [&url; NODES])
    }

    fn check(&mut self, node: usize, policy: &str, key: &str) -> Check {
        self.starved.take();
        let watch = Watch::start();
        let reply = self.clients[node].ask(&[b"RATION.CHECK", policy.as_bytes(), key.as_bytes()]);
        let mut waited = watch.elapsed();
        if waited > LATEST {
            waited = waited.saturating_sub(self.starved.take_whole());
        }
        let reply = reply.unwrap_or_else(|error| panic!("{error}; log:\n{}", self.daemons[node].log()));
        let items = reply.items();
        let (allowed, reset_at, source) = (items[0].int() == 0, items[6].int(), items[9].text());
        Check { key: key.to_owned(), allowed, reset_at, source, waited }
    }

    /// In each of so many windows each of `nodes` is asked once for each key, in an order that changes.
    fn rounds(&mut self, policy: &str, keys: &[String], windows: usize, nodes: &[usize]) -> Vec<Check> {
        let mut checks = Vec::new();
        for window in 0..windows {
            wait_for_boundary(PERIOD, PERIOD - INTO);
            for (number, key) in keys.iter().enumerate() {
                for turn in 0..nodes.len() {
                    checks.push(self.check(nodes[(number + window + turn) % nodes.len()], policy, key));
                }
            }
        }
        checks
    }

    fn metrics(&self) -> Vec<Metrics> {
        self.daemons.iter().map(Daemon::metrics).collect()
    }

    fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        self.metrics().iter().map(|metrics| metrics.sum(name, labels)).sum()
    }

    /// Asks that were not answered in time. What was lent for them is lost.
    fn late(&self) -> u64 {
        self.sum("rationd_peer_asks_total", &["outcome=\"late\""]) as u64
    }

    fn store_calls(&self) -> f64 {
        self.sum("rationd_store_calls_total", &[])
    }
}

/// The name of a key's owner, as a daemon sees it.
fn owner(daemon: &Daemon, policy: &str, key: &str) -> String {
    let answer = daemon.ask(&format!("RATION.EXPLAIN {policy} {key}")).text();
    let answer: serde_json::Value = serde_json::from_str(&answer).expect("JSON");
    answer["owner"].as_str().unwrap_or_else(|| panic!("no owner in {answer}")).to_owned()
}

fn keys(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name}-{number}")).collect()
}

/// Admitted of each key in each window.
fn admitted(checks: &[Check]) -> BTreeMap<(&str, i64), u64> {
    let mut admitted = BTreeMap::new();
    for check in checks {
        *admitted.entry((&*check.key, check.reset_at)).or_default() += u64::from(check.allowed);
    }
    admitted
}

fn count(checks: &[Check], source: &str) -> usize {
    checks.iter().filter(|check| check.source == source).count()
}

fn longest(checks: &[Check]) -> Duration {
    checks.iter().map(|check| check.waited).max().expect("there were some")
}

/// What holds of all checks: no window over its limit, and nobody waited for long.
fn assert_bounds(what: &str, checks: &[Check], limit: u64) {
    let most = admitted(checks).into_values().max().expect("there were some");
    let (longest, peers, shares) = (longest(checks), count(checks, "peer"), count(checks, "share"));
    let count = checks.len();
    print(&format!(
        "{what}: {count} checks, most {most} of {limit}, by peers {peers}, by a share {shares}, longest {longest:?}"
    ));
    assert!(most <= limit, "{what}: {most} of {limit}");
    assert!(longest <= LATEST, "{what}: a check took {longest:?}");
}

#[test]
fn keys_that_each_node_uses_seldom_cost_fewer_calls_where_nodes_ask_their_owners() {
    let _turn = alone();
    let redis = Server::plain();
    let mut figures = Vec::new();
    for owner in ["never", "auto"] {
        let mut trio = Trio::on(owner, &redis);
        let keys = keys(owner, 60);
        let before = trio.store_calls();
        let checks = trio.rounds("ample", &keys, 4, &[0, 1, 2]);
        let calls = trio.store_calls() - before;
        assert_bounds(owner, &checks, AMPLE);
        assert!(checks.iter().all(|check| check.allowed), "nobody asks for more than there is");
        let (lent, late) = (trio.sum("rationd_peer_asks_total", &["outcome=\"lent\""]), trio.late());
        let per_thousand = calls * 1_000.0 / checks.len() as f64;
        print(&format!("{owner}: {per_thousand:.0} calls for 1000 checks, {lent} asks were lent tokens, {late} late"));
        assert_eq!(count(&checks, "peer") > 0, owner == "auto");
        assert_eq!(lent > 0.0, owner == "auto");
        figures.push(calls);
        if owner == "auto" {
            // One call for each key and window, of three checks. Whoever was answered late asks the store as well.
            let windows = admitted(&checks).len() as f64;
            assert!(calls <= 1.1 * windows + 2.0 * late as f64, "{calls} calls for {windows} windows, {late} late");
        }
    }
    assert!(figures[1] <= 0.6 * figures[0], "{figures:?}");
}

#[test]
fn all_nodes_name_the_same_owner_of_a_key_and_who_owns_keys() {
    let _turn = alone();
    let redis = Server::plain();
    let mut trio = Trio::on("auto", &redis);
    let (mut names, keys) = (Vec::new(), keys("k", 30));
    for key in &keys {
        let owners: Vec<_> = trio.daemons.iter().map(|daemon| owner(daemon, "ample", key)).collect();
        assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
        names.extend(owners.into_iter().next());
    }
    let counted = |name: &str| names.iter().filter(|owner| *owner == name).count() as u64;
    let counts: Vec<_> = (0..NODES).map(|node| counted(&format!("node-{node}"))).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    // A daemon counts the keys that it has asked for.
    for key in &keys {
        assert!(trio.check(0, "ample", key).allowed);
    }
    let peers = trio.daemons[0].ask("RATION.PEERS").text();
    let peers: serde_json::Value = serde_json::from_str(&peers).expect("JSON");
    let mut owning: Vec<_> = peers["peers"].as_array().into_iter().flatten().collect();
    owning.sort_unstable_by_key(|peer| peer["name"].as_str());
    assert!(owning.iter().all(|peer| peer["owner"] == "auto"), "{peers}");
    assert_eq!(owning.iter().filter_map(|peer| peer["owns"].as_u64()).collect::<Vec<_>>(), counts, "{peers}");
    let top = trio.daemons[0].ask("RATION.TOP").text();
    let top: serde_json::Value = serde_json::from_str(&top).expect("JSON");
    let told = top["fleet"]["peers"].as_array().expect("a fleet");
    let owns = |peer: &serde_json::Value| {
        told.iter().find(|seen| seen["name"] == peer["name"]).map(|seen| seen["owns"].clone())
    };
    assert!(owning.iter().all(|peer| owns(peer).as_ref() == Some(&peer["owns"])), "{top}");
}

#[test]
fn a_limit_that_is_asked_for_at_all_nodes_is_exact_where_they_ask_its_owner() {
    let _turn = alone();
    let redis = Server::plain();
    let mut trio = Trio::on("auto", &redis);
    let checks = trio.rounds("tight", &keys("k", 40), 4, &[0, 1, 2]);
    assert_bounds("tight", &checks, TIGHT);
    let admitted = admitted(&checks);
    let all: u64 = admitted.values().sum();
    let there_is = TIGHT * admitted.len() as u64;
    let used = 100.0 * all as f64 / there_is as f64;
    let late = trio.late();
    print(&format!("tight: {used:.1} % of what there is was admitted, in {} windows; {late} late", admitted.len()));
    assert!(all + TIGHT * late >= there_is * 99 / 100, "{used:.1} %, {late} late");
    assert!(count(&checks, "peer") > 0);
}

/// Of three nodes one owns a key, and the others have to hear what it admits: one of them would own it next. So who was lent one of two tokens
/// knows, before it asks again, that the owner has spent the other.
#[test]
fn who_was_lent_by_an_owner_hears_what_that_has_admitted_since() {
    let _turn = alone();
    let redis = Server::plain();
    let mut trio = Trio::on("auto", &redis);
    let owned: Vec<_> =
        keys("k", 60).into_iter().filter(|key| owner(&trio.daemons[0], "tight", key) == "node-1").collect();
    wait_for_boundary(PERIOD, PERIOD - INTO);
    let first: Vec<_> = owned.iter().map(|key| trio.check(0, "tight", key)).collect();
    let second: Vec<_> = owned.iter().map(|key| trio.check(1, "tight", key)).collect();
    // Of a key whose owner answered late a token is lost, or the store has lent it.
    let was_lent = |(first, second): &(&Check, &Check)| first.source == "peer" && first.allowed && second.allowed;
    let lent: Vec<_> = first.iter().zip(&second).filter(was_lent).map(|(first, _)| first.key.clone()).collect();
    // Two rounds and a half of gossip later; until a second after its answer a node goes by what it hears.
    wait_for_boundary(PERIOD, PERIOD - INTO - Duration::from_millis(500));
    let again: Vec<_> = lent.iter().map(|key| trio.check(0, "tight", key)).collect();
    let heard = count(&again, "prefilter");
    print(&format!("of {} keys {} were lent, and {heard} of them are known to be spent", owned.len(), lent.len()));
    assert!(2 * lent.len() > owned.len(), "{} of {} were lent", lent.len(), owned.len());
    assert!(again.iter().all(|check| !check.allowed));
    assert!(2 * heard > lent.len(), "{heard} of {}", lent.len());
}

#[test]
fn an_owner_that_stands_still_or_dies_delays_nobody_and_costs_no_token() {
    let _turn = alone();
    let redis = Server::plain();
    let mut trio = Trio::on("auto", &redis);
    let keys = keys("k", 60);
    let before = trio.rounds("tight", &keys, 2, &[0, 1, 2]);
    assert_bounds("all there", &before, TIGHT);
    trio.daemons[2].signal("STOP");
    let still = trio.rounds("tight", &keys, 2, &[0, 1]);
    assert_bounds("one stands still", &still, TIGHT);
    trio.daemons[2].kill();
    trio.daemons.truncate(2);
    let late = trio.late();
    let dead = trio.rounds("tight", &keys, 2, &[0, 1]);
    let late = trio.late() - late;
    assert_bounds("one is dead", &dead, TIGHT);
    // Two ask for what there is.
    let (all, there_is) = (dead.iter().filter(|check| check.allowed).count() as u64, dead.len() as u64);
    print(&format!("one is dead: {all} of {there_is} were admitted, {late} answers were late"));
    assert!(all + TIGHT * late >= there_is * 97 / 100, "{all} of {there_is} were admitted, {late} answers were late");
    assert_eq!(count(&still, "share") + count(&dead, "share"), 0, "the store was there");
}

#[test]
fn a_node_that_cannot_reach_redis_is_served_by_peers_that_can() {
    let _turn = alone();
    let redis = Server::plain();
    let address: SocketAddr = redis.address().parse().expect("an address");
    let proxy = Proxy::start(address);
    let (near, cut) = (redis.url(), format!("redis://{}", proxy.address()));
    let mut trio = Trio::start("auto", [&near, &near, &cut]);
    let keys = keys("k", 60);
    let before = trio.rounds("tight", &keys, 1, &[0, 1, 2]);
    assert_bounds("all reach it", &before, TIGHT);
    proxy.set(Mode::Shut);
    let begun = wall_us();
    wait_until("it knows that it is cut off", 20, || {
        let _ = trio.check(2, "ample", &format!("probe-{begun}"));
        trio.metrics()[2].sum("rationd_store_server_up", &[]) == 0.0
    });
    let during = trio.rounds("tight", &keys, 3, &[0, 1, 2]);
    assert_bounds("one is cut off", &during, TIGHT);
    let mut alone = trio.rounds("ample", &keys, 2, &[2]);
    let (peers, all) = (count(&alone, "peer"), alone.len());
    print(&format!("alone with its keys: {peers} of {all} by peers"));
    assert!(peers * 10 >= all * 9, "{peers} of {all}");
    assert!(alone.iter().all(|check| check.allowed));
    proxy.set(Mode::Pass);
    wait_until("it is back", 20, || {
        alone = trio.rounds("ample", &keys[..8], 1, &[2]);
        alone.iter().all(|check| check.allowed && check.source != "share")
    });
    assert_eq!(trio.metrics()[2].sum("rationd_store_server_up", &[]), 1.0);
}
