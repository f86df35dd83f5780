//! The shared store on a real Redis Cluster, and what becomes of calls when parts of it fail.
#![cfg(feature = "daemon")]

#[path = "support/cluster.rs"]
mod cluster;
#[path = "support/load.rs"]
mod load;
#[path = "support/poll.rs"]
mod poll;
#[path = "support/server.rs"]
mod server;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rationd::clock::Clock;
use rationd::core::key::Digest;
use rationd::store::redis::{BreakerState, RedisOptions, RedisStore};
use tokio::runtime::Runtime;

use cluster::{NODE_TIMEOUT_MS, RedisCluster};
use load::{Load, acquire_one, endless, settle, summary};
use poll::{wait_for, wait_until};

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

fn scene() -> Scene {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = RedisCluster::start();
    let clock = Clock::start();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let store = {
        let _inside = runtime.enter();
        Arc::new(RedisStore::new(&RedisOptions::new(&cluster.url(), "node-a"), clock).expect("good options"))
    };
    assert!(runtime.block_on(store.ready(Duration::from_secs(5))), "not connected: {:?}", store.snapshot());
    let digests = load::digests(4, |key| cluster.slot_of(key));
    Scene { cluster, store, runtime, clock, digests, _turn: turn }
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
fn live_reshard_and_script_flush_lose_and_double_nothing() {
    let scene = scene();
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
}

#[test]
fn killed_master_stops_its_shard_only() {
    let mut scene = scene();
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
    assert!(gaps[1].max(gaps[2]) < Duration::from_millis(400), "healthy shards: {gaps:?}");
    assert_eq!(stored, granted, "confirmed leases survive a failover");
}

#[test]
fn hung_master_stops_its_shard_only_and_is_left_after_the_failover() {
    let scene = scene();
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
    assert!(gaps[0].max(gaps[2]) < Duration::from_millis(400), "healthy shards: {gaps:?}");
    settle(&scene.runtime, &scene.store, &scene.clock, &books);
}

#[test]
fn storm_of_killed_connections_doubles_nothing() {
    let scene = scene();
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
fn grants_are_unconfirmed_while_the_replica_hangs() {
    let scene = scene();
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
