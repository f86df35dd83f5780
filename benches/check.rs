//! What one check costs inside the process, without a socket: `cargo bench --bench check`

use std::hint::black_box;
use std::sync::Arc;

use rationd::clock::{self, Clock};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::embedded::Embedded;
use rationd::store::memory::MemoryStore;

/// Checks timed together, under one reading of the clock, as a read batch has it.
const BATCH: u64 = 1_000;
/// The fastest of so many runs is told: what disturbs only adds.
const RUNS: usize = 7;

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    println!("nanoseconds a check, digest of the key included; the fastest of {RUNS} runs\n");
    digests();
    for (name, limit, keys) in [
        ("one key, admitted", "1000000000/1s", 1),
        ("one key, denied", "1/1h", 1),
        ("a million random keys", "100/1s", 1_000_000),
    ] {
        leased(name, limit, keys);
        embedded(name, limit, keys);
    }
}

fn report(name: &str, nanos: f64) {
    println!("{name:<48} {nanos:>7.1}");
}

/// Runs `check` on batches of numbers, and reports the time of the fastest run.
fn time(name: &str, batches: u64, mut check: impl FnMut(u64)) {
    let clock = Clock::start();
    let mut fastest = f64::MAX;
    let mut number = 0_u64;
    for _ in 0..RUNS {
        let start = clock.nanos();
        for _ in 0..batches * BATCH {
            // A Weyl sequence: scattered, and as cheap as counting.
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
            check(number >> 32);
        }
        fastest = fastest.min((clock.nanos() - start) as f64 / (batches * BATCH) as f64);
    }
    report(name, fastest);
}

fn key(number: u64) -> [u8; 14] {
    let mut key = *b"key:0000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8; // one digit
        rest /= 10;
    }
    key
}

fn digests() {
    time("digest of a key of 14 bytes", 1_000, |number| {
        black_box(Digest::of("bench", black_box(&key(number))));
    });
}

fn request<'a>(rule: &'a Arc<Rule>, key: &'a [u8]) -> Request<'a> {
    Request { rule, digest: Digest::of("bench", key), key, cost: 1, peek: false }
}

fn rule(limit: &str) -> Arc<Rule> {
    Arc::new(Rule::of("bench", &[Limit::parse(limit).expect("a limit of this bench")]))
}

/// A shard that leases from a store in this process; the store's work is in the figure when a lease
/// is spent.
fn leased(name: &str, limit: &str, keys: u64) {
    let rule = rule(limit);
    let clock = Clock::start();
    let (start, wall) = (clock.now(), clock::wall());
    let settings =
        Settings { max_keys: 2 * keys.max(512) as usize, timeout: Micros::from_millis(50), lease_ahead: true };
    let mut shard = Shard::new(settings, 7, 1, 1, (start, wall));
    let mut store = MemoryStore::new(settings.max_keys, 7);
    let (mut now, mut left, mut calls, mut denied, mut checks) = (start, 0, 0_u64, 0_u64, 0_u64);
    time(&format!("leased: {name}"), if keys == 1 { 2_000 } else { 3_000 }, |number| {
        if left == 0 {
            left = BATCH;
            now = clock.now();
            shard.handle_timeout(now);
        }
        left -= 1;
        checks += 1;
        let key = key(number % keys);
        let outcome = shard.check(now, request(&rule, &key));
        if let Outcome::Decided(decision) = &outcome {
            denied += u64::from(decision.verdict == rationd::core::decision::Verdict::Deny);
        }
        black_box(&outcome);
        while let Some(effect) = shard.poll_effect() {
            if let Effect::Call(call) = effect {
                calls += 1;
                let at = Timestamp(wall.0 + now.since(start).0);
                shard.handle_outcome(now, &call, store.call(at, "bench", &call));
            }
        }
    });
    println!(
        "{:<48} {:>6.1}% denied, {:.2} store calls per 1000 checks",
        "",
        percent(denied, checks),
        10.0 * percent(calls, checks)
    );
}

/// The embedded store, which decides by itself.
fn embedded(name: &str, limit: &str, keys: u64) {
    let rule = rule(limit);
    let clock = Clock::start();
    let (start, wall) = (clock.now(), clock::wall());
    let mut store = Embedded::new(2 * keys.max(512) as usize, 7);
    let (mut now, mut left) = (Instant::default(), 0);
    time(&format!("embedded: {name}"), if keys == 1 { 2_000 } else { 3_000 }, |number| {
        if left == 0 {
            left = BATCH;
            now = clock.now();
        }
        left -= 1;
        let key = key(number % keys);
        black_box(store.check(Timestamp(wall.0 + now.since(start).0), request(&rule, &key)));
    });
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}
