//! The client for tokio with a real daemon: many tasks on one connection, and a daemon that comes and goes.

use crate::support;

use std::future::Future;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rationd::client::{AsyncClient, AsyncLimiter, Client, ClientError, OnDaemonLoss, Reply, Timeouts};
use rationd::core::policy::{PolicySet, PolicySpec};
use support::clock::Watch;
use support::daemon::TestDaemon;
use support::poll::wait_until;
use support::process::Daemon;

const LIMIT: u64 = 5_000;
const TASKS: u64 = 100;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn daemon() -> TestDaemon {
    let spec = PolicySpec { limits: vec![format!("{LIMIT}/1d fixed from-first")], ..PolicySpec::default() };
    let policies = PolicySet::compile(&[("day".to_owned(), spec)].into()).expect("the policy is right");
    TestDaemon::with(|options| options.policies.store(Arc::new(policies)))
}

/// Runs `task` so often at once, and sums up.
fn sum<F: Future<Output = u64> + Send + 'static>(runtime: &tokio::runtime::Runtime, task: impl Fn(u64) -> F) -> u64 {
    runtime.block_on(async {
        let tasks: Vec<_> = (0..TASKS).map(|index| tokio::spawn(task(index))).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.expect("no panic");
        }
        sum
    })
}

#[test]
fn a_hundred_tasks_on_one_connection_get_exactly_the_limit() {
    let (daemon, runtime) = (daemon(), runtime());
    let client = AsyncClient::new(&daemon.socket);
    let admitted = sum(&runtime, |_| {
        let client = client.clone();
        async move {
            let mut admitted = 0;
            for _ in 0..2 * LIMIT / TASKS {
                admitted += u64::from(client.check("day", b"k", 1).await.expect("an answer").is_allowed());
            }
            admitted
        }
    });
    assert_eq!(admitted, LIMIT);
    assert_eq!(daemon.daemon().stats().accepted, 1, "all of it over one connection");
}

#[test]
fn limiters_share_tokens_and_hand_back_what_is_left() {
    let (daemon, runtime) = (daemon(), runtime());
    let client = AsyncClient::new(&daemon.socket);
    let limiter = AsyncLimiter::new(&client, "day", b"l", OnDaemonLoss::Deny);
    let admitted = sum(&runtime, |_| {
        let limiter = limiter.clone();
        async move {
            let mut admitted = 0;
            for _ in 0..20 {
                admitted += u64::from(limiter.allow(1).await);
            }
            admitted
        }
    });
    assert_eq!(admitted, 20 * TASKS, "as long as there is enough, all are admitted");
    let mut blocking = Client::connect(&daemon.socket).expect("it listens");
    let mut left = || blocking.peek("day", b"l", 1).expect("an answer").remaining;
    assert!(left() < LIMIT - admitted, "it holds some");
    drop(limiter);
    wait_until("the rest is handed back", 10, || left() == LIMIT - admitted);
    let rest = AsyncLimiter::new(&client, "day", b"l", OnDaemonLoss::Deny);
    let all = sum(&runtime, |_| {
        let rest = rest.clone();
        async move {
            let mut admitted = 0;
            while rest.allow(1).await {
                admitted += 1;
            }
            admitted
        }
    });
    assert_eq!(admitted + all, LIMIT);
}

/// Polls `future` so often at most, and then drops it.
async fn give_up_after<F: Future>(future: F, polls: u64) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    std::future::poll_fn(move |cx| {
        left -= 1;
        match Pin::as_mut(&mut future).poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await
}

#[test]
fn futures_that_are_dropped_leave_every_other_its_own_answer() {
    let (daemon, runtime) = (daemon(), runtime());
    let client = AsyncClient::new(&daemon.socket);
    let given_up = sum(&runtime, |task| {
        let client = client.clone();
        async move {
            let mut given_up = 0;
            for number in 0..100 {
                let word = format!("{task}:{number}");
                let command = [b"ECHO", word.as_bytes()];
                let asked = client.command(&command);
                let answer = if (task + number) % 3 == 0 {
                    give_up_after(asked, 1 + (task + number) % 40).await
                } else {
                    Some(asked.await)
                };
                match answer {
                    Some(reply) => assert_eq!(reply.expect("an answer"), Reply::Bulk(word.into_bytes())),
                    None => given_up += 1,
                }
            }
            given_up
        }
    });
    assert!((100..TASKS * 100 / 3 + TASKS).contains(&given_up), "{given_up} were given up");
    assert_eq!(daemon.daemon().stats().accepted, 1, "and the connection lives");
}

const CONFIG: &str = "[policy.bucket]\nlimits = [\"100/1h\"]\n[policy.day]\nlimits = [\"3/30d fixed from-first\"]\n";
const PATIENCE: Timeouts = Timeouts { connect: Duration::from_millis(300), answer: Duration::from_millis(300) };
/// The patience, and what a busy machine adds.
const SOON: Duration = Duration::from_secs(3);

fn client(path: &Path) -> AsyncClient {
    AsyncClient::with_timeouts(path, PATIENCE)
}

#[test]
fn without_a_daemon_the_caller_chose_and_with_the_next_one_limits_hold_again() {
    let (mut daemon, runtime) = (Daemon::start(CONFIG), runtime());
    let client = client(&daemon.socket());
    let limiters = [OnDaemonLoss::Allow, OnDaemonLoss::Deny, OnDaemonLoss::LastShare]
        .map(|on_daemon_loss| AsyncLimiter::new(&client, "bucket", format!("{on_daemon_loss:?}"), on_daemon_loss));
    let allow = |limiter: &AsyncLimiter| runtime.block_on(limiter.allow(1));
    for limiter in &limiters {
        assert!((0..30).all(|_| allow(limiter)), "{:?}", runtime.block_on(limiter.last_error()));
    }
    daemon.kill();
    let watch = Watch::start();
    let error = runtime.block_on(client.check("day", b"k", 1)).expect_err("it is dead");
    assert!(error.is_unreachable(), "{error}");
    assert!(watch.elapsed() < SOON, "{:?}", watch.elapsed());
    let [open, closed, share] = &limiters;
    wait_until("what was lent is over", 10, || !allow(closed));
    assert!((0..1_000).all(|_| allow(open)));
    assert!(runtime.block_on(closed.last_error()).is_some_and(|why| why.contains("rationd.sock")));
    // 1, 2, 4, 8, 16: so much is lent for half a second at a time, and so much passes.
    let passed = (0..1_000).filter(|_| allow(share)).count();
    assert!((1..=40).contains(&passed), "{passed}");
    daemon.restart();
    let check = || runtime.block_on(client.check("day", b"k", 1));
    wait_until("the new one is found", 10, || check().is_ok());
    let rest: Vec<bool> = (0..4).map(|_| check().expect("an answer").is_allowed()).collect();
    assert_eq!(rest, [true, true, false, false], "three pass, and one has already");
    wait_until("limiters find it, too", 10, || allow(closed) && runtime.block_on(closed.last_error()).is_none());
    wait_until("and it limits", 10, || !allow(open));
}

#[test]
fn a_daemon_that_hangs_costs_the_deadline_and_no_more() {
    let (daemon, runtime) = (Daemon::start(CONFIG), runtime());
    let client = client(&daemon.socket());
    let limiter = AsyncLimiter::new(&client, "bucket", b"h", OnDaemonLoss::Allow);
    assert!(runtime.block_on(client.check("day", b"h", 1)).expect("an answer").is_allowed());
    daemon.signal("STOP");
    let watch = Watch::start();
    let waited = sum(&runtime, |_| {
        let (client, limiter) = (client.clone(), limiter.clone());
        async move {
            let checked = client.check("day", b"h", 1).await;
            assert!(checked.as_ref().is_err_and(ClientError::is_unreachable), "{checked:?}");
            u64::from(limiter.allow(1).await)
        }
    });
    assert_eq!(waited, TASKS, "the limiter lets all pass");
    assert!(watch.elapsed() < SOON, "{:?}", watch.elapsed());
    daemon.signal("CONT");
    wait_until("it answers again", 10, || runtime.block_on(client.check("day", b"other", 1)).is_ok());
}
