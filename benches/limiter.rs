//! What a decision costs in the caller's own process: `cargo bench --bench limiter`
//!
//! `Limiter` on tokens that a real daemon lent, beside the `governor` crate on the same machine in the same run:
//! rounds in turn, one thread, medians.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;

use arc_swap::ArcSwap;
use governor::{Quota, RateLimiter};
use rationd::client::{Limiter, OnDaemonLoss};
use rationd::clock::Clock;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::{Backend, Daemon, Limits, StartOptions};

/// Decisions timed together.
const DECISIONS: u64 = 1_000_000;
const ROUNDS: usize = 21;

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory for the socket");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let daemon = {
        let _inside = runtime.enter();
        Daemon::start(options(directory.path().join("rationd.sock"))).expect("the daemon starts")
    };
    let limiter = Limiter::new(daemon.socket(), "bench", b"k", OnDaemonLoss::Deny);
    let quota = Quota::per_second(NonZeroU32::new(4_000_000_000).expect("it is not 0"));
    let governor = RateLimiter::direct(quota);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(time(|| limiter.allow(1)));
        theirs.push(time(|| governor.check().is_ok()));
    }
    let (ours, theirs) = (median(ours), median(theirs));
    println!("nanoseconds a decision, one thread, medians of {ROUNDS} rounds in turn");
    println!("{:<32} {ours:>6.1}\n{:<32} {theirs:>6.1}\n{:<32} {:>6.2}", "Limiter", "governor", "ratio", ours / theirs);
    drop(limiter);
    runtime.block_on(daemon.drain_and_stop());
}

fn time(mut decide: impl FnMut() -> bool) -> f64 {
    let clock = Clock::start();
    let start = clock.nanos();
    let mut admitted = 0_u64;
    for _ in 0..DECISIONS {
        admitted += u64::from(black_box(decide()));
    }
    let nanos = clock.nanos() - start;
    assert_eq!(admitted, DECISIONS, "a denial would be cheaper");
    nanos as f64 / DECISIONS as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn options(socket: std::path::PathBuf) -> StartOptions {
    let spec = PolicySpec { limits: vec!["4000000000/1d fixed from-first".to_owned()], ..PolicySpec::default() };
    let policies = PolicySet::compile(&BTreeMap::from([("bench".to_owned(), spec)])).expect("the policy is right");
    StartOptions {
        clock: rationd::clock::Clock::start(),
        socket,
        mode: 0o600,
        group: None,
        limits: Limits::default(),
        threads: 1,
        store: Backend::Memory,
        policies: Arc::new(ArcSwap::from_pointee(policies)),
        in_fleet: false,
        settings: Settings { max_keys: 1_000, timeout: Micros::from_millis(50), lease_ahead: false },
        digests: rationd::core::key::DigestKey::default(),
        reload: None,
        envoy: None,
        tcp: None,
        remote: Arc::default(),
    }
}
