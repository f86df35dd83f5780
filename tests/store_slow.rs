//! Slow is not lost: a store that is stopped for a while, far away, asked too much, or asked by a process
//! that is itself not run.
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use crate::support::{far, load, poll, server};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use rationd::clock::Clock;
use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::key::Digest;
use rationd::store::redis::{BreakerState, CallOutcome, RedisOptions, RedisStore, Snapshot};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, unconstrained};

use load::{acquire_one, endless, peek};
use poll::wait_until;
use server::Server;

type Outcome = Result<Grant, StoreError>;

/// A store with the default timeout of 50 ms.
struct Bench {
    store: Arc<RedisStore>,
    runtime: Runtime,
    clock: Clock,
}

impl Bench {
    fn connected(url: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let clock = Clock::start();
        let store = {
            let _inside = runtime.enter();
            Arc::new(RedisStore::new(&RedisOptions::new(url, "node-a"), clock).expect("good options"))
        };
        let ready = runtime.block_on(store.ready(Duration::from_secs(10)));
        assert!(ready, "not connected: {:?}", store.snapshot());
        Self { store, runtime, clock }
    }

    /// Sends these in this order, as the daemon does.
    fn send(&self, calls: Vec<Call>) -> Vec<JoinHandle<Outcome>> {
        self.runtime.block_on(async {
            let mut tasks = Vec::new();
            for call in calls {
                let store = self.store.clone();
                let mut outcome = Box::pin(unconstrained(async move { store.call(&call).await }));
                let begun = poll_fn(|cx| Poll::Ready(outcome.as_mut().poll(cx))).await;
                tasks.push(match begun {
                    Poll::Ready(outcome) => tokio::spawn(async { outcome }),
                    Poll::Pending => tokio::spawn(outcome),
                });
            }
            tasks
        })
    }

    fn acquire(&self, key: u64, id: u64) -> Call {
        acquire_one(&self.clock, &endless(), digest(key), id)
    }

    fn await_all(&self, tasks: Vec<JoinHandle<Outcome>>) -> Vec<Outcome> {
        let all = async {
            let mut outcomes = Vec::new();
            for task in tasks {
                outcomes.push(task.await.expect("no panic"));
            }
            outcomes
        };
        self.runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), all).await.expect("all end") })
    }

    fn used(&self, key: u64) -> u64 {
        let call = peek(&self.clock, &endless(), digest(key));
        self.runtime.block_on(self.store.call(&call)).expect("a peek").counters[0].used
    }

    fn seen(&self) -> Snapshot {
        self.store.snapshot()
    }
}

fn digest(key: u64) -> Digest {
    Digest::of("slow", &key.to_be_bytes())
}

fn pass(time: Duration) {
    let began = Instant::now();
    wait_until("the time has passed", 60, || began.elapsed() >= time);
}

#[test]
fn a_call_is_answered_however_late_while_its_connection_lives() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    for (id, stopped) in [(1, 150), (2, 400)] {
        server.pause();
        let tasks = bench.send((0..20).map(|key| bench.acquire(key, id)).collect());
        pass(Duration::from_millis(stopped));
        assert!(!tasks.iter().any(JoinHandle::is_finished), "no answer can have come");
        server.resume();
        for outcome in bench.await_all(tasks) {
            let grant = outcome.expect("slow is not lost");
            assert_eq!((grant.granted, grant.replayed), (1, false));
        }
    }
    let seen = bench.seen();
    assert_eq!((seen.breaker_opened, seen.dials), (0, 1), "{seen:?}");
    assert!((0..20).all(|key| bench.used(key) == 2));
}

#[test]
fn a_server_that_says_nothing_for_a_second_is_given_up() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    server.pause();
    let began = Instant::now();
    let tasks = bench.send((0..20).map(|key| bench.acquire(key, 1)).collect());
    for outcome in bench.await_all(tasks) {
        assert_eq!(outcome.err(), Some(StoreError::Unknown));
    }
    let given_up = began.elapsed();
    assert!(given_up >= Duration::from_secs(1), "after {given_up:?}");
    let seen = bench.seen();
    assert_eq!((seen.breaker_opened, seen.servers[0].breaker), (1, BreakerState::Open), "{seen:?}");
    assert!(matches!(bench.await_all(bench.send(vec![bench.acquire(99, 1)]))[..], [Err(StoreError::Away { .. })]));
    wait_until("3 s have passed", 5, || began.elapsed() > Duration::from_secs(3));
    server.resume();
    println!("silent for 3 s: given up after {given_up:?}");
    // The same ids again: what was executed when the server went on is replayed.
    for key in 0..20 {
        wait_until("the same call is answered", 5, || {
            bench.await_all(bench.send(vec![bench.acquire(key, 1)]))[0].as_ref().is_ok_and(|grant| grant.granted == 1)
        });
        assert_eq!(bench.used(key), 1);
    }
}

#[test]
fn a_server_that_is_asked_nothing_may_be_silent() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    bench.await_all(bench.send(vec![bench.acquire(0, 1)]));
    server.pause();
    pass(Duration::from_millis(1_500));
    let tasks = bench.send(vec![bench.acquire(0, 2)]);
    server.resume();
    assert!(bench.await_all(tasks)[0].is_ok());
    let seen = bench.seen();
    assert_eq!((seen.breaker_opened, seen.dials), (0, 1), "{seen:?}");
}

#[test]
fn a_server_that_is_far_away_serves() {
    let server = Server::plain();
    let way = Duration::from_millis(80);
    let address = far::far_away(server.address().parse().expect("an address"), way);
    let bench = Bench::connected(&format!("redis://{address}"));
    for id in 1..=5 {
        let began = Instant::now();
        // More than the first window: some wait for a trip before they leave.
        let outcomes = bench.await_all(bench.send((0..60).map(|key| bench.acquire(key, id)).collect()));
        assert!(outcomes.iter().all(|outcome| outcome.as_ref().is_ok_and(|grant| grant.granted == 1)), "{outcomes:?}");
        assert!(began.elapsed() >= way * 2, "it is far away");
    }
    let seen = bench.seen();
    assert_eq!((seen.breaker_opened, seen.dials), (0, 1), "{seen:?}");
    assert_eq!(seen.calls_that_ended(CallOutcome::Ok), 300);
}

#[test]
fn calls_of_one_key_leave_in_the_order_of_their_ids() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    // The script is known: what must be sent with its source comes behind those after it.
    bench.await_all(bench.send(vec![bench.acquire(1, 1)]));
    // Many times the window, so that most wait; a peek now and then, which has a line of its own.
    let calls = (1..=1_000).map(|id| match id % 5 {
        0 => Call { id, ..peek(&bench.clock, &endless(), digest(0)) },
        _ => bench.acquire(0, id),
    });
    let outcomes = bench.await_all(bench.send(calls.collect()));
    let mut answered = 0;
    for outcome in &outcomes {
        match outcome {
            Ok(grant) => {
                assert!(!grant.outdated, "a later call has passed it by");
                answered += grant.granted;
            }
            Err(error) => assert!(matches!(error, StoreError::Busy { .. }), "{error:?}"),
        }
    }
    assert_eq!(bench.used(0), answered);
    // All of the first window leave at once, and one in five of them is a peek.
    assert!(answered >= 50, "{answered} tokens");
    println!("in order: {answered} tokens, {} busy", bench.seen().calls_that_ended(CallOutcome::Busy));
}

#[test]
fn a_server_that_is_asked_too_much_is_busy_and_not_away() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    // More than the largest window and a line, 4,096 of each: in a window that a quick server has opened six thousand found room.
    let (callers, rounds) = (9_000, 3);
    let mut ended = [0_u64; 2];
    for id in 1..=rounds {
        // It answers nothing while they come, once it is known how long it takes: a quick one would be as quick as whoever asks it.
        if id > 1 {
            server.pause();
        }
        let tasks = bench.send((0..callers).map(|key| bench.acquire(key, id)).collect());
        server.resume();
        for outcome in bench.await_all(tasks) {
            match outcome {
                Ok(grant) => ended[0] += grant.granted,
                Err(StoreError::Busy { wait }) => ended[1] += u64::from(wait.0 > 0),
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    let seen = bench.seen();
    println!("{} calls at once: {} granted, {} busy; {:?}", callers, ended[0], ended[1], seen.servers[0]);
    assert_eq!(ended[0] + ended[1], callers * rounds);
    // Lines are bounded, so that of nine thousand at once some find no place.
    assert!(ended[1] > 0 && ended[0] > 0, "{ended:?}");
    assert_eq!((seen.breaker_opened, seen.dials), (0, 1), "{seen:?}");
    assert_eq!((seen.servers[0].out, seen.servers[0].waiting), (0, 0), "every place is given back");
    assert_eq!((0..callers).map(|key| bench.used(key)).sum::<u64>(), ended[0]);
}

#[test]
fn calls_wait_for_a_stopped_server_no_longer_than_checks_do() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    server.pause();
    let tasks = bench.send((0..200).map(|key| bench.acquire(key, 1)).collect());
    let window = bench.seen().servers[0].window as usize;
    wait_until("those beyond the window are told", 5, || {
        tasks.iter().filter(|task| task.is_finished()).count() == 200 - window
    });
    server.resume();
    let outcomes = bench.await_all(tasks);
    let busy = outcomes.iter().filter(|outcome| matches!(outcome, Err(StoreError::Busy { .. }))).count();
    assert_eq!((busy, outcomes.iter().filter(|outcome| outcome.is_ok()).count()), (200 - window, window));
    // Those who were told have not left.
    assert_eq!((0..200).map(|key| bench.used(key)).sum::<u64>(), window as u64);
}

#[test]
fn a_process_that_was_not_run_gives_up_nobody() {
    let server = Server::plain();
    let bench = Bench::connected(&server.url());
    for id in 1..=3 {
        server.pause();
        let tasks = bench.send((0..20).map(|key| bench.acquire(key, id)).collect());
        // The only thread that reads replies and rings alarms is not run for longer than silence may last.
        let began = Instant::now();
        let not_run = bench.runtime.spawn(async move {
            let busy = || began.elapsed() < Duration::from_millis(1_500);
            while busy() {
                std::hint::spin_loop();
            }
        });
        wait_until("a second and more has passed", 5, || began.elapsed() > Duration::from_millis(1_200));
        server.resume();
        bench.runtime.block_on(not_run).expect("it ends");
        for outcome in bench.await_all(tasks) {
            assert!(outcome.is_ok_and(|grant| !grant.replayed));
        }
    }
    let seen = bench.seen();
    assert_eq!((seen.breaker_opened, seen.dials), (0, 1), "{seen:?}");
}
