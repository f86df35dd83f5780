//! The shared store on a real Redis Cluster, and what becomes of calls when parts of it fail.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use crate::support::{behaviour, cluster, load, poll, server, store_suite};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rationd::clock::Clock;
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::key::Digest;
use rationd::store::redis::{BreakerState, RedisOptions, RedisStore};
use tokio::runtime::Runtime;

use behaviour::{NODES, compare_with_memory};
use cluster::{NODE_TIMEOUT_MS, RedisCluster};
use load::{Load, acquire_one, endless, peek, settle, summary};
use poll::{wait_for, wait_until};
use server::{Server, free_port};

const PACE: Duration = Duration::from_millis(2);

/// One cluster at a time: six servers and a load share few cores, and gaps are measured.
static TURN: Mutex<()> = Mutex::new(());

struct Scene {
    cluster: RedisCluster,
    store: Arc<RedisStore>,
    runtime: Runtime,
    clock: Clock,
    digests: Vec<(usize, Digest)>,
    _turn: MutexGuard<'static, ()>,
}

/// The deadline of the default configuration.
const DEFAULT: Duration = Duration::from_millis(50);

/// A deadline that a short stall of a busy machine does not miss, which would open healthy breakers.
const PATIENT: Duration = Duration::from_millis(250);

/// Longest gap of a shard that nothing happened to. A failover takes more than twice as long.
const UNHARMED: Duration = Duration::from_secs(1);

/// A deadline that a busy machine meets, where deadlines are not what is tested.
const AMPLE: Duration = Duration::from_millis(500);

fn scene(timeout: Duration) -> Scene {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = RedisCluster::start();
    let clock = Clock::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = Arc::new(connect(&cluster, &runtime, clock, "node-a", timeout));
    let digests = load::digests(4, |key| cluster.slot_of(key));
    Scene { cluster, store, runtime, clock, digests, _turn: turn }
}

fn connect(cluster: &RedisCluster, runtime: &Runtime, clock: Clock, node: &str, timeout: Duration) -> RedisStore {
    let _inside = runtime.enter();
    let options = RedisOptions { timeout, ..RedisOptions::new(&cluster.url(), node) };
    let store = RedisStore::new(&options, clock).expect("good options");
    assert!(runtime.block_on(store.ready(Duration::from_secs(5))), "not connected: {:?}", store.snapshot());
    store
}

impl Scene {
    fn load(&self) -> Load {
        Load::start(&self.runtime, &self.store, self.clock, &self.digests, PACE)
    }

    /// Waits until the load has got about this many grants more out of the cluster.
    fn let_pass(&self, calls: u64) {
        let answered = || self.store.snapshot().latency.iter().sum::<u64>();
        let goal = answered() + calls;
        wait_until("the load makes progress", 20, || answered() >= goal);
    }

    /// Waits until every server that takes calls answers.
    fn heal(&self, seconds: u64) -> Duration {
        let began = Instant::now();
        wait_until("every shard answers again", seconds, || {
            let servers = self.store.snapshot().servers;
            servers.len() == 3 && servers.iter().all(|server| server.breaker == BreakerState::Closed)
        });
        began.elapsed()
    }
}

#[test]
fn cluster_behaves_like_the_memory_store() {
    let scene = scene(AMPLE);
    let stores = NODES.map(|node| connect(&scene.cluster, &scene.runtime, scene.clock, node, AMPLE));
    let call = |node: usize, call: &Call| scene.runtime.block_on(stores[node].call(call));
    store_suite::run(&mut Nodes(call));
    compare_with_memory(1_500, rationd::clock::random(), &scene.clock, call);
}

struct Nodes<F>(F);

impl<F: FnMut(usize, &Call) -> Result<Grant, StoreError>> store_suite::Stores for Nodes<F> {
    fn call(&mut self, node: usize, call: &Call) -> Grant {
        let mut grant = (self.0)(node, call).expect("an answer");
        // The suite knows nothing of replicas; a replayed grant is never confirmed.
        grant.confirmed = true;
        grant
    }
}

#[test]
fn cluster_that_is_gone_is_left_in_peace() {
    let mut scene = scene(DEFAULT);
    for server in &mut scene.cluster.servers {
        server.kill();
    }
    wait_until("every shard is noticed to be away", 5, || {
        scene.store.snapshot().servers.iter().all(|server| server.breaker == BreakerState::Open)
    });
    let attempts = |store: &RedisStore| store.snapshot().dials;
    let (before, began) = (attempts(&scene.store), Instant::now());
    wait_until("three seconds have passed", 5, || began.elapsed() > Duration::from_secs(3));
    let rate = (attempts(&scene.store) - before) as f64 / began.elapsed().as_secs_f64();
    println!("all away: {rate:.1} attempts a second");
    assert!((1.0..=20.5).contains(&rate), "{rate} attempts a second");
}

#[test]
fn live_reshard_and_script_flush_lose_and_double_nothing() {
    let scene = scene(AMPLE);
    let load = scene.load();
    scene.let_pass(500);
    scene.cluster.flush_scripts();
    scene.let_pass(500);
    // Every slot that a key of the load is in, and some around it.
    for (shard, digest) in &scene.digests {
        let slot = scene.cluster.slot_of(&scene.store.key_of(*digest));
        scene.cluster.reshard(slot.saturating_sub(5).max(*shard as u16 * 5_461)..=slot, *shard, (shard + 1) % 3);
    }
    scene.let_pass(500);
    let books = load.finish(&scene.runtime);
    let (granted, open, stored) = settle(&scene.runtime, &scene.store, &scene.clock, &books);
    let (_, line) = summary(&books);
    let seen = scene.store.snapshot();
    println!("reshard and flush: {line}; moved {}, ask {}, noscript {}", seen.moved, seen.ask, seen.noscript);
    assert_eq!((granted, open), (stored, 0));
    assert!(seen.noscript > 0 && seen.moved > 0, "{seen:?}");
    let errors: u64 = books.iter().map(|book| book.unknown + book.away).sum();
    assert_eq!(errors, 0, "{line}");
    scene.cluster.servers.iter().for_each(server::Server::assert_nothing_was_denied);
}

#[test]
fn key_in_motion_is_found_where_it_went() {
    let scene = scene(AMPLE);
    let (from, digest) = scene.digests[0];
    let (to, rule, key) = ((from + 1) % 3, endless(), scene.store.key_of(digest));
    let slot = scene.cluster.slot_of(&key);
    let call = |id| {
        let grant = scene.runtime.block_on(scene.store.call(&acquire_one(&scene.clock, &rule, digest, id)));
        grant.expect("an answer").counters[0].used
    };
    assert_eq!(call(1), 1);
    scene.cluster.open_slot(slot, from, to);
    assert_eq!((call(2), scene.store.snapshot().ask), (2, 0), "the key is still where it was");
    scene.cluster.move_keys(slot, from, to);
    assert_eq!((call(3), call(4), scene.store.snapshot().ask), (3, 4, 2));
    scene.cluster.hand_over(slot, from, to);
    assert_eq!((call(5), scene.store.snapshot().moved), (5, 1));
    wait_until("the map is read anew", 5, || {
        let moved = scene.store.snapshot().moved;
        call(6);
        scene.store.snapshot().moved == moved
    });
}

#[test]
fn killed_master_stops_its_shard_only() {
    let mut scene = scene(PATIENT);
    let load = scene.load();
    scene.let_pass(1_000);
    scene.cluster.servers[0].kill();
    let killed = Instant::now();
    wait_until("the shard is noticed to be away", 5, || {
        scene.store.snapshot().servers.iter().any(|server| server.breaker == BreakerState::Open)
    });
    let healed = killed.elapsed() + scene.heal(20);
    scene.let_pass(1_000);
    let books = load.finish(&scene.runtime);
    let (gaps, line) = summary(&books);
    let (granted, open, stored) = settle(&scene.runtime, &scene.store, &scene.clock, &books);
    println!("kill -9: {line}; healed after {healed:?}; granted {granted}, open {open}, stored {stored}");
    let failover = Duration::from_millis(NODE_TIMEOUT_MS + 3_000);
    assert!(gaps[0] < failover, "the failed shard: {gaps:?}");
    assert!(gaps[1].max(gaps[2]) < UNHARMED, "healthy shards: {gaps:?}");
    assert!(granted <= stored && stored <= granted + open, "confirmed leases survive a failover");
}

/// Else the first check after a failover would go to the dead master, and be denied for it.
#[test]
fn a_master_that_dies_while_nobody_asks_is_noticed_and_replaced() {
    let mut scene = scene(PATIENT);
    let asked = || scene.store.snapshot().latency.iter().sum::<u64>();
    let before = asked();
    scene.cluster.servers[0].kill();
    wait_until("the shard is noticed to be away", 5, || {
        scene.store.snapshot().servers.iter().any(|server| server.breaker == BreakerState::Open)
    });
    println!("kill -9, and nobody asked; healed after {:?}", scene.heal(20));
    assert_eq!(asked(), before, "nobody has asked");
}

#[test]
fn hung_master_stops_its_shard_only_and_is_left_after_the_failover() {
    let scene = scene(PATIENT);
    let load = scene.load();
    scene.let_pass(1_000);
    scene.cluster.servers[1].pause();
    let hung = Instant::now();
    wait_until("the shard is noticed to be away", 5, || {
        scene.store.snapshot().servers.iter().any(|server| server.breaker == BreakerState::Open)
    });
    let noticed = hung.elapsed();
    let healed = hung.elapsed() + scene.heal(20);
    wait_until("8 s have passed", 10, || hung.elapsed() > Duration::from_secs(8));
    scene.cluster.servers[1].resume();
    scene.let_pass(2_000);
    let books = load.finish(&scene.runtime);
    let (gaps, line) = summary(&books);
    println!("SIGSTOP for 8 s: {line}; noticed after {noticed:?}, healed after {healed:?}");
    assert!(gaps[1] < Duration::from_millis(NODE_TIMEOUT_MS + 3_000), "the hung shard: {gaps:?}");
    assert!(gaps[0].max(gaps[2]) < UNHARMED, "healthy shards: {gaps:?}");
    settle(&scene.runtime, &scene.store, &scene.clock, &books);
}

#[test]
fn storm_of_killed_connections_doubles_nothing() {
    let scene = scene(DEFAULT);
    let load = scene.load();
    scene.let_pass(500);
    for round in 0..60 {
        let _ = scene.cluster.servers[round % 3].ask("CLIENT KILL TYPE normal SKIPME yes");
        scene.let_pass(20);
    }
    let books = load.finish(&scene.runtime);
    let (_, line) = summary(&books);
    println!("60 kills of connections: {line}");
    let (granted, open, stored) = settle(&scene.runtime, &scene.store, &scene.clock, &books);
    assert!(granted <= stored && stored <= granted + open, "{granted} granted, {open} open, {stored} stored");
    assert!(books.iter().map(|book| book.unknown + book.away).sum::<u64>() > 0, "the storm hit nobody");
}

#[test]
fn grants_of_a_slow_master_are_confirmed() {
    let scene = scene(DEFAULT);
    let (_, digest) = scene.digests.iter().find(|(shard, _)| *shard == 2).copied().expect("a key of shard 2");
    let rule = endless();
    let mut id = 0;
    // A replica may be slow, too, on a busy machine: one of several tries must show it.
    wait_until("a grant that took several deadlines is confirmed", 20, || {
        id += 1;
        scene.cluster.servers[2].pause();
        let (store, call) = (scene.store.clone(), acquire_one(&scene.clock, &rule, digest, id));
        let answer = scene.runtime.spawn(async move { store.call(&call).await });
        let began = Instant::now();
        wait_until("200 ms have passed", 5, || began.elapsed() > Duration::from_millis(200));
        scene.cluster.servers[2].resume();
        scene.runtime.block_on(answer).expect("no panic").expect("slow is not lost").confirmed
    });
    assert_eq!(scene.store.snapshot().breaker_opened, 0);
}

/// An acquire that is to be confirmed waits behind the `WAIT` of another. What is asked for its key afterwards comes
/// after it all the same: a refund that overtook it would give back what is not charged yet.
#[test]
fn what_follows_an_acquire_does_not_overtake_it() {
    let scene = scene(AMPLE);
    let (_, digest) = scene.digests.iter().find(|(shard, _)| *shard == 2).copied().expect("a key of shard 2");
    let rule = endless();
    let acquire = |id| acquire_one(&scene.clock, &rule, digest, id);
    assert!(scene.runtime.block_on(scene.store.call(&acquire(1))).expect("an answer").confirmed);
    scene.cluster.servers[5].pause();
    let (store, first) = (scene.store.clone(), acquire(2));
    let first = scene.runtime.spawn(async move { store.call(&first).await });
    // It is executed, and its `WAIT` is under way for as long as a replica is waited for.
    wait_until("the master waits", 5, || scene.cluster.servers[2].text("INFO clients").contains("blocked_clients:1"));
    let (second, third) = (acquire(3), peek(&scene.clock, &rule, digest));
    let both = async { tokio::join!(scene.store.call(&second), scene.store.call(&third)) };
    let (second, third) = scene.runtime.block_on(both);
    scene.cluster.servers[5].resume();
    let used = |grant: Result<Grant, StoreError>| grant.expect("an answer").counters[0].used;
    let (second, third) = (used(second), used(third));
    scene.runtime.block_on(first).expect("no panic").expect("an answer");
    assert!(third >= second, "a peek saw {third} used, and the acquire before it left {second}");
}

#[test]
fn replicas_that_join_and_leave_later_are_noticed() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let master = Server::start(|_, _| {
        let pairs = [
            ("--cluster-enabled", "yes".to_owned()),
            ("--cluster-port", free_port().to_string()),
            ("--repl-diskless-sync-delay", "0".to_owned()),
        ];
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    });
    master.ask("CLUSTER ADDSLOTSRANGE 0 16383").expect("slots");
    wait_until("the cluster is whole", 20, || master.text("CLUSTER INFO").contains("cluster_state:ok"));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let clock = Clock::start();
    let store = {
        let _inside = runtime.enter();
        let url = format!("redis-cluster://{}", master.address());
        RedisStore::new(&RedisOptions { timeout: AMPLE, ..RedisOptions::new(&url, "node-a") }, clock).expect("good")
    };
    assert!(runtime.block_on(store.ready(Duration::from_secs(5))), "not connected: {:?}", store.snapshot());
    let rule = endless();
    let mut id = 0;
    let mut call = || {
        id += 1;
        let began = Instant::now();
        let grant = runtime.block_on(store.call(&acquire_one(&clock, &rule, Digest::of("load", b"k"), id)));
        (grant.expect("an answer").confirmed, began.elapsed())
    };
    let waits = || master.info("commandstats", "cmdstat_wait");
    call();
    assert_eq!(waits(), None, "nobody waits for a replica that is not there");
    let mut replica = Server::start(|_, _| vec!["--replicaof".into(), "127.0.0.1".into(), master.port.to_string()]);
    // The map of slots does not name it, and is not read again meanwhile: the server's own word must do.
    wait_until("grants are confirmed", 20, || call().0 && waits().is_some());
    replica.kill();
    wait_until("no replica is seen", 20, || store.snapshot().servers[0].replicas == Some(0));
    let waited = waits().expect("some waited");
    let (confirmed, took) = call();
    assert!(!confirmed && took < AMPLE, "confirmed: {confirmed}, after {took:?}");
    assert_eq!(waits(), Some(waited), "a grant waited for a replica that is gone");
}

#[test]
fn grants_are_unconfirmed_while_the_replica_hangs() {
    let scene = scene(AMPLE);
    let (_, digest) = scene.digests.iter().find(|(shard, _)| *shard == 2).copied().expect("a key of shard 2");
    let rule = endless();
    let mut id = 0;
    let mut call = || {
        id += 1;
        let began = Instant::now();
        let grant = scene.runtime.block_on(scene.store.call(&acquire_one(&scene.clock, &rule, digest, id)));
        (grant.expect("an answer").confirmed, began.elapsed())
    };
    assert!(call().0, "a replica is in step");
    scene.cluster.servers[5].pause();
    let (confirmed, first) = call();
    assert!(!confirmed);
    let second = wait_for("calls do not wait for a replica that is away", 5, || {
        let (confirmed, took) = call();
        assert!(!confirmed);
        (took < Duration::from_millis(10)).then_some(took)
    });
    scene.cluster.servers[5].resume();
    wait_until("grants are confirmed again", 10, || call().0);
    println!("unconfirmed: the first took {first:?}, a later one {second:?}");
    assert!(scene.store.snapshot().unconfirmed > 1);
}
