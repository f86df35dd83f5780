//! The shared store on a single Redis server: every way to connect, and every way to fail.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use crate::support::{behaviour, load, poll, server, store_suite};
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rationd::clock::Clock;
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::store::redis::{BreakerState, CallOutcome, Confirm, RedisOptions, RedisStore};
use rationd::store::script;
use tokio::runtime::Runtime;

use behaviour::{NODES, compare_with_memory};
use load::{acquire_one, endless, peek};
use poll::wait_until;
use server::{ACL_RULES, Certificates, Server};

struct Bench {
    store: RedisStore,
    runtime: Runtime,
    clock: Clock,
}

impl Bench {
    fn new(options: &RedisOptions) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let clock = Clock::start();
        let store = {
            let _inside = runtime.enter();
            RedisStore::new(options, clock).unwrap_or_else(|error| panic!("{error}"))
        };
        Self { store, runtime, clock }
    }

    fn connected(options: &RedisOptions) -> Self {
        let bench = Self::new(options);
        assert!(bench.is_ready(5), "not connected: {:?}", bench.store.snapshot());
        bench
    }

    fn is_ready(&self, seconds: u64) -> bool {
        self.runtime.block_on(self.store.ready(Duration::from_secs(seconds)))
    }

    fn call(&self, call: &Call) -> Result<Grant, StoreError> {
        self.runtime.block_on(self.store.call(call))
    }

    fn acquire(&self, key: &[u8], id: u64) -> Result<Grant, StoreError> {
        self.call(&acquire_one(&self.clock, &endless(), Digest::of("load", key), id))
    }

    fn used(&self, key: &[u8]) -> u64 {
        let grant = self.call(&peek(&self.clock, &endless(), Digest::of("load", key))).expect("a peek");
        grant.counters[0].used
    }

    fn breaker(&self) -> BreakerState {
        self.store.snapshot().servers[0].breaker
    }
}

/// Nodes that reach the store in this way get the answers that every store gives.
fn behaves(options: &RedisOptions) {
    let mut nodes = NODES.map(|node| Bench::connected(&RedisOptions { node: node.into(), ..options.clone() }));
    store_suite::run(&mut nodes);
    let seed = rationd::clock::random();
    compare_with_memory(1_500, seed, &nodes[0].clock, |node, call| nodes[node].call(call));
}

impl store_suite::Stores for [Bench; NODES.len()] {
    fn call(&mut self, node: usize, call: &Call) -> Grant {
        self[node].call(call).expect("an answer")
    }
}

/// A deadline that a busy machine meets; what is about deadlines sets its own.
fn options(url: &str) -> RedisOptions {
    RedisOptions { timeout: Duration::from_millis(500), ..RedisOptions::new(url, "node-a") }
}

#[test]
fn serves_over_tcp_and_unix_socket() {
    let server = Server::plain();
    behaves(&options(&server.url()));
    let unix =
        RedisOptions { prefix: "other".into(), ..options(&format!("redis+unix://{}", server.socket().display())) };
    behaves(&unix);
    let names: Vec<String> = redis::from_redis_value(server.ask("KEYS *").expect("KEYS")).expect("names");
    assert!(names.iter().any(|name| name.starts_with("other:{")), "{names:?}");
}

#[test]
fn serves_over_tls_with_certificates_on_both_sides_only() {
    let certificates = Certificates::make();
    let server = Server::start(|port, _| certificates.settings(port));
    let url = format!("rediss://127.0.0.1:{}", server.port);
    let good = RedisOptions {
        ca: Some(certificates.path("ca.pem")),
        cert: Some(certificates.path("client.pem")),
        key: Some(certificates.path("client.key")),
        ..options(&url)
    };
    behaves(&good);
    let nameless = Bench::new(&RedisOptions { cert: None, key: None, ..good.clone() });
    let others = Certificates::make();
    let deceived = Bench::new(&RedisOptions { ca: Some(others.path("ca.pem")), ..good });
    for (bench, what) in [(&nameless, "without a certificate"), (&deceived, "with another CA")] {
        wait_until("a connection is tried", 5, || bench.store.snapshot().dials > 1);
        assert!(matches!(bench.acquire(b"k", 1), Err(StoreError::Away { .. })), "{what}");
    }
}

#[test]
fn serves_a_cluster_over_tls() {
    let certificates = Certificates::make();
    let server = Server::start(|port, _| {
        let bus = server::free_port().to_string();
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"].map(str::to_owned);
        [certificates.settings(port), cluster.to_vec()].concat()
    });
    server.ask("CLUSTER ADDSLOTSRANGE 0 16383").expect("ADDSLOTSRANGE");
    wait_until("the cluster is whole", 10, || server.text("CLUSTER INFO").contains("cluster_state:ok"));
    behaves(&RedisOptions {
        ca: Some(certificates.path("ca.pem")),
        cert: Some(certificates.path("client.pem")),
        key: Some(certificates.path("client.key")),
        ..options(&format!("rediss-cluster://localhost:{}", server.port))
    });
}

#[test]
fn needs_no_more_than_the_documented_rights() {
    let server = Server::plain();
    println!("ACL SETUSER rationd {ACL_RULES}");
    server.ask(&format!("ACL SETUSER rationd {ACL_RULES}")).expect("ACL SETUSER");
    let url = format!("redis://rationd:secret@127.0.0.1:{}", server.port);
    behaves(&options(&url));
    server.assert_nothing_was_denied();
    // And on our prefix only.
    let astray = Bench::connected(&RedisOptions { prefix: "other".into(), ..options(&url) });
    assert!(matches!(astray.acquire(b"k", 1), Err(StoreError::Away { .. })));
    let wrong = Bench::new(&options(&format!("redis://rationd:wrong@127.0.0.1:{}", server.port)));
    wait_until("a connection is tried", 5, || wrong.store.snapshot().dials > 1);
    assert!(matches!(wrong.acquire(b"k", 1), Err(StoreError::Away { .. })));
}

#[test]
fn missing_script_is_sent_once() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    for id in 1..=6 {
        if id % 2 == 1 {
            server.ask("SCRIPT FLUSH SYNC").expect("SCRIPT FLUSH");
        }
        assert_eq!(bench.acquire(b"k", id).expect("a grant").granted, 1);
    }
    assert_eq!((bench.used(b"k"), bench.store.snapshot().noscript), (6, 4), "three acquires and the peek");
}

/// Servers are shared with others, whom each script that nobody calls would cost a millisecond and twenty kilobytes.
#[test]
fn a_script_that_few_policies_need_is_loaded_with_its_first_call() {
    let server = Server::plain();
    let cached = || server.info("memory", "number_of_cached_scripts").expect("Redis says it").parse::<usize>();
    for confirm in [Confirm::Off, Confirm::On] {
        server.ask("SCRIPT FLUSH SYNC").expect("SCRIPT FLUSH");
        let bench = Bench::connected(&RedisOptions { confirm, ..options(&server.url()) });
        // And the script that shows how the server writes large numbers.
        assert_eq!(cached(), Ok(script::usual().len() + 1));
        let limit = Limit::parse("100/1m fixed").expect("a limit");
        let rule = Rule { on_store_loss: OnStoreLoss::Entitled, ..Rule::of("load", &[limit]) };
        let rule = Arc::new(rule);
        for id in 1..=3 {
            let call = acquire_one(&bench.clock, &rule, Digest::of("load", b"k"), id);
            bench.call(&call).expect("an answer");
            assert_eq!(cached(), Ok(script::usual().len() + 2));
        }
        assert_eq!(bench.store.snapshot().noscript, 0);
        // Lost with the others, it is brought along once.
        server.ask("SCRIPT FLUSH SYNC").expect("SCRIPT FLUSH");
        for id in 4..=5 {
            let call = acquire_one(&bench.clock, &rule, Digest::of("load", b"k"), id);
            bench.call(&call).expect("an answer");
        }
        assert_eq!(bench.store.snapshot().noscript, 1);
        server.ask("FLUSHALL").expect("FLUSHALL");
    }
}

/// Keys that are asked for in one go.
const AT_ONCE: u8 = 40;

/// What each of some keys is answered when all of them are asked for in one go.
fn acquire_all(bench: &Bench, id: u64) -> Vec<Result<Grant, StoreError>> {
    let calls: Vec<_> = (0..AT_ONCE)
        .map(|key| acquire_one(&bench.clock, &endless(), Digest::of("load", &[key]), id + u64::from(key)))
        .collect();
    let mut asked: Vec<_> = calls.iter().map(|call| Box::pin(bench.store.call(call))).collect();
    let mut answers: Vec<_> = calls.iter().map(|_| None).collect();
    bench.runtime.block_on(poll_fn(|cx| {
        for (answer, asked) in answers.iter_mut().zip(&mut asked).filter(|(answer, _)| answer.is_none()) {
            if let Poll::Ready(said) = asked.as_mut().poll(cx) {
                *answer = Some(said);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    }));
    answers.into_iter().flatten().collect()
}

/// Script calls that a server has counted.
fn scripts_run(server: &Server) -> u64 {
    let counted = server.info("commandstats", "cmdstat_evalsha").unwrap_or_default();
    let calls = counted.split(',').find_map(|part| part.strip_prefix("calls="));
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

#[test]
fn calls_of_one_moment_are_one_command_and_each_has_its_answer() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    let mut rounds = 0;
    let mut ask = |why: &str, fewer: bool| {
        wait_until(why, 10, || {
            let before = scripts_run(&server);
            let answers = acquire_all(&bench, 1_000 * (rounds + 1));
            rounds += 1;
            for (key, answer) in answers.iter().enumerate() {
                let grant = answer.as_ref().unwrap_or_else(|error| panic!("{why}: key {key}: {error:?}"));
                assert_eq!((grant.granted, grant.counters[0].used), (1, rounds), "{why}: key {key}");
            }
            (scripts_run(&server) - before < u64::from(AT_ONCE)) == fewer
        });
    };
    ask("calls that leave at once are fewer commands", true);
    // Nothing is lost with the scripts, and from then on each call leaves alone.
    server.ask("SCRIPT FLUSH SYNC").expect("SCRIPT FLUSH");
    ask("calls leave alone", false);
    ask("and do so later", false);
}

#[test]
fn keys_of_a_cluster_are_asked_for_one_by_one() {
    let server = Server::start(|_, _| vec!["--cluster-enabled".into(), "yes".into()]);
    server.ask("CLUSTER ADDSLOTSRANGE 0 16383").expect("ADDSLOTSRANGE");
    wait_until("the cluster is whole", 10, || server.text("CLUSTER INFO").contains("cluster_state:ok"));
    // Also where the URL says that it is a single server.
    for (round, url) in [server.url(), server.url().replace("redis:", "redis-cluster:")].iter().enumerate() {
        let bench = Bench::connected(&options(url));
        let answers = acquire_all(&bench, 1_000 * (round as u64 + 1));
        assert!(
            answers.iter().all(|answer| answer.as_ref().is_ok_and(|grant| grant.granted == 1)),
            "{url}: {answers:?}"
        );
        assert_eq!(bench.store.snapshot().calls_that_ended(CallOutcome::Ok), u64::from(AT_ONCE), "{url}");
    }
}

/// In a failover a server may tell a map in which some slots are nobody's. All servers of that map are there, so no call and no breaker
/// says that it is of yesterday.
#[test]
fn slots_that_nobody_owned_are_looked_for_again() {
    let half = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"].map(str::to_owned);
    let server = Server::start(|_, _| half.to_vec());
    server.ask("CLUSTER ADDSLOTSRANGE 0 8191").expect("ADDSLOTSRANGE");
    wait_until("it serves its half", 10, || server.text("CLUSTER INFO").contains("cluster_state:ok"));
    let bench = Bench::connected(&options(&server.url().replace("redis:", "redis-cluster:")));
    let keys: Vec<_> = (0..8_u8).map(|number| [b'k', number]).collect();
    let answered = || keys.iter().filter(|key| bench.acquire(&key[..], 1).is_ok()).count();
    assert!((1..keys.len()).contains(&answered()), "some keys are in slots of nobody, and some are not");
    server.ask("CLUSTER ADDSLOTSRANGE 8192 16383").expect("ADDSLOTSRANGE");
    wait_until("all keys have an owner", 5, || answered() == keys.len());
}

#[test]
fn a_server_that_cannot_serve_refuses_all_keys_of_a_command() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    server.ask("CONFIG SET maxmemory 1").expect("CONFIG SET");
    for answer in acquire_all(&bench, 1_000) {
        assert!(matches!(answer, Err(StoreError::Away { .. })), "nothing of it was done: {answer:?}");
    }
    server.ask("CONFIG SET maxmemory 0").expect("CONFIG SET");
    wait_until("it is found again", 10, || bench.acquire(b"another", 1).is_ok());
    for answer in acquire_all(&bench, 2_000) {
        assert_eq!(answer.expect("a grant").counters[0].used, 1);
    }
}

#[test]
fn lost_reply_is_replayed_and_debits_once() {
    let server = Server::plain();
    let bench = Bench::connected(&RedisOptions::new(&server.url(), "node-a"));
    bench.acquire(b"k", 1).expect("a grant");
    server.pause();
    let began = Instant::now();
    assert_eq!(bench.acquire(b"k", 2), Err(StoreError::Unknown));
    assert!(began.elapsed() >= Duration::from_secs(1), "slow is not lost: {:?}", began.elapsed());
    server.resume();
    let mut replay = None;
    wait_until("the same id is answered", 5, || {
        replay = bench.acquire(b"k", 2).ok();
        replay.is_some()
    });
    let replay = replay.expect("just seen");
    assert_eq!((replay.granted, replay.replayed), (1, true));
    assert_eq!(bench.used(b"k"), 2);
    assert_eq!(bench.store.snapshot().calls_that_ended(CallOutcome::Replayed), 1);
}

#[test]
fn dead_server_is_away_at_once_and_found_again() {
    let mut server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    bench.acquire(b"k", 1).expect("a grant");
    server.kill();
    wait_until("the lost connection is noticed without a call", 5, || bench.breaker() == BreakerState::Open);
    let (before, began) = (bench.store.snapshot().dials, Instant::now());
    let mut slowest = Duration::ZERO;
    wait_until("two seconds of calls have passed", 5, || {
        let began_call = Instant::now();
        assert!(matches!(bench.acquire(b"k", 2), Err(StoreError::Away { .. })));
        slowest = slowest.max(began_call.elapsed());
        began.elapsed() > Duration::from_secs(2)
    });
    let dials = bench.store.snapshot().dials - before;
    println!("away for 2 s: {dials} attempts to connect, slowest call {slowest:?}");
    assert!((2..=40).contains(&dials), "{dials} attempts");
    assert!(slowest < Duration::from_millis(20), "{slowest:?}");
    server.restart();
    let restarted = Instant::now();
    wait_until("calls pass again", 5, || bench.acquire(b"k", 2).is_ok());
    println!("found again after {:?}", restarted.elapsed());
}

#[test]
fn idle_connection_that_was_closed_costs_no_call() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    for id in 1..=5 {
        let dials = bench.store.snapshot().dials;
        server.ask("CLIENT KILL TYPE normal SKIPME yes").expect("CLIENT KILL");
        wait_until("another connection stands", 5, || {
            bench.store.snapshot().dials > dials && bench.breaker() == BreakerState::Closed
        });
        assert_eq!(bench.acquire(b"k", id).expect("a grant").granted, 1);
    }
}

#[test]
fn server_that_cannot_serve_is_away_until_it_can() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    let troubles = [
        ("OOM", "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("READONLY", "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("NOREPLICAS", "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ];
    let mut id = 0;
    for (name, begin, end) in troubles {
        id += 1;
        bench.acquire(b"k", id).expect("a grant");
        server.ask(begin).expect(begin);
        let opened = bench.store.snapshot().breaker_opened;
        for _ in 0..20 {
            assert!(matches!(bench.acquire(b"k", id + 1), Err(StoreError::Away { .. })), "{name}");
        }
        assert_eq!(bench.store.snapshot().breaker_opened, opened + 1, "{name}: one refusal opens the breaker");
        server.ask(end).expect(end);
        id += 1;
        wait_until("calls pass again", 5, || bench.acquire(b"k", id).is_ok());
    }
    assert_eq!(bench.used(b"k"), id);
}

/// One call tries a server that had refused calls, however long after it answers again. All that came before that call was
/// answered failed, and their keys went by their shares.
#[test]
fn calls_that_come_while_a_server_is_tried_wait_for_the_outcome() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    server.ask("CONFIG SET maxmemory 1").expect("no memory");
    assert!(matches!(bench.acquire(b"k", 1), Err(StoreError::Away { .. })));
    server.ask("CONFIG SET maxmemory 0").expect("memory");
    wait_until("a call may try the server", 5, || bench.breaker() == BreakerState::HalfOpen);
    server.ask("CLIENT PAUSE 100 ALL").expect("a pause");
    let failed: Vec<_> = std::thread::scope(|scope| {
        let bench = &bench;
        let call = |id: u8| scope.spawn(move || bench.acquire(&[id], id.into()).err());
        let calls: Vec<_> = (2..22).map(call).collect();
        calls.into_iter().filter_map(|call| call.join().expect("an outcome")).collect()
    });
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(bench.breaker(), BreakerState::Closed);
}

#[test]
fn busy_server_is_away_until_its_script_ends() {
    let server = Server::start(|_, _| vec!["--busy-reply-threshold".into(), "20".into()]);
    let bench = Bench::connected(&options(&server.url()));
    bench.acquire(b"k", 1).expect("a grant");
    let mut connection = server.connect().expect("a connection");
    let spinner = std::thread::spawn(move || redis::cmd("EVAL").arg("while true do end").arg(0).exec(&mut connection));
    wait_until("calls are refused", 5, || matches!(bench.acquire(b"k", 2), Err(StoreError::Away { .. })));
    wait_until("the script is stopped", 5, || server.ask("SCRIPT KILL").is_ok());
    assert!(spinner.join().expect("the thread").is_err());
    wait_until("calls pass again", 5, || bench.acquire(b"k", 2).is_ok());
    assert_eq!(bench.used(b"k"), 2);
}

#[test]
fn single_server_is_never_made_to_wait() {
    let server = Server::plain();
    for (confirm, confirmed) in [(Confirm::Auto, true), (Confirm::Off, true), (Confirm::On, false)] {
        let bench = Bench::connected(&RedisOptions { confirm, ..options(&server.url()) });
        let grant = bench.acquire(format!("{confirm:?}").as_bytes(), 1).expect("a grant");
        assert_eq!(grant.confirmed, confirmed, "{confirm:?}");
    }
    assert_eq!(server.info("commandstats", "cmdstat_wait"), None);
}

#[test]
fn eviction_policy_is_reported() {
    let server = Server::start(|_, _| vec!["--maxmemory-policy".into(), "allkeys-lru".into()]);
    let bench = Bench::connected(&options(&server.url()));
    let seen = &bench.store.snapshot().servers[0];
    assert_eq!(seen.maxmemory_policy.as_deref(), Some("allkeys-lru"));
    assert_eq!((seen.replicas, seen.full_coverage), (Some(0), None));
}

#[test]
fn value_of_a_wrong_type_is_an_alarm_and_counts_as_missing() {
    let server = Server::plain();
    let bench = Bench::connected(&options(&server.url()));
    let key = bench.store.key_of(Digest::of("load", b"k"));
    server.ask(&format!("SET {key} nonsense")).expect("SET");
    let grant = bench.acquire(b"k", 1).expect("a grant");
    assert_eq!((grant.granted, grant.damaged), (1, true));
}
