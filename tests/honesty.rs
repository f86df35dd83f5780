//! What a decision promises is kept: who waits `retry_after` is admitted if nobody else spends, no
//! number exceeds its limit, and a window's end does not wobble. For the embedded store, and for a
//! shard that leases over a network with a delay.

use std::sync::Arc;

use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::embedded::Embedded;
use rationd::store::memory::MemoryStore;

const START: u64 = 1_800_000_000_123_457;

const RULES: [&[&str]; 8] = [
    &["7/3s burst 5"],
    &["1000/1s burst 3"],
    &["1/1m"],
    &["20/1s fixed"],
    &["20/700ms fixed from-first"],
    &["30/1s sliding"],
    &["5/1s fixed", "40/10s sliding"],
    &["10/1s", "30/5s fixed"],
];

/// Something that decides, and a clock.
trait Limiter {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision;
    fn wait(&mut self, span: Micros);
}

struct InLine {
    store: Embedded,
    now: Timestamp,
}

impl Limiter for InLine {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        let digest = Digest::of("p", b"k");
        self.store.check(self.now, Request { rule, digest, key: b"k", cost, peek: false })
    }

    fn wait(&mut self, span: Micros) {
        self.now = self.now + span;
    }
}

/// A shard whose calls take `trip` there and back, the store's clock being read half-way.
struct Leasing {
    shard: Shard,
    store: MemoryStore,
    now: Instant,
    trip: Micros,
}

impl Leasing {
    fn new(trip: Micros) -> Self {
        let now = Instant(3_600_000_000);
        let settings = Settings { max_keys: 10, timeout: Micros(50_000), lease_ahead: true };
        let shard = Shard::new(settings, 7, 1, 1, (now, Timestamp(START)));
        Self { shard, store: MemoryStore::new(100, 7), now, trip }
    }

    /// Carries out what the shard asks for until nothing is left to do; the reply seen, if any.
    fn settle(&mut self) -> Option<Decision> {
        let mut reply = None;
        while let Some(effect) = self.shard.poll_effect() {
            match effect {
                Effect::Reply { decision, .. } => reply = Some(decision),
                Effect::Call(call) => {
                    let half = Micros(self.trip.0 / 2);
                    let outcome = self.store.call(Timestamp(START - 3_600_000_000 + (self.now + half).0), "n", &call);
                    self.now = self.now + self.trip;
                    self.shard.handle_outcome(self.now, &call, outcome);
                }
            }
        }
        reply
    }
}

impl Limiter for Leasing {
    fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        let digest = Digest::of("p", b"k");
        let outcome = self.shard.check(self.now, Request { rule, digest, key: b"k", cost, peek: false });
        let mut reply = self.settle();
        if let Outcome::Decided(decision) = outcome {
            return decision;
        }
        loop {
            if let Some(decision) = reply {
                return decision;
            }
            self.now = self.now.max(self.shard.poll_timeout().expect("a parked check has a deadline"));
            self.shard.handle_timeout(self.now);
            reply = self.settle();
        }
    }

    fn wait(&mut self, span: Micros) {
        let end = self.now + span;
        while let Some(at) = self.shard.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.shard.handle_timeout(self.now);
            self.settle();
        }
        self.now = self.now.max(end);
    }
}

/// Spends until denied, waits as told, and must be admitted; over and over, with pauses between.
fn holds_to_its_word(limiter: &mut impl Limiter, rule: &Arc<Rule>, what: &str) {
    let capacity = rule.limits.iter().map(Limit::capacity).min().unwrap();
    for round in 0..200_u64 {
        let cost = 1 + round * 7 % capacity.min(4);
        let mut decision = limiter.check(rule, cost);
        for _ in 0..100 {
            assert!(decision.remaining <= decision.limit, "{what}: {decision:?}");
            if decision.verdict == Verdict::Deny {
                break;
            }
            decision = limiter.check(rule, cost);
        }
        if decision.verdict == Verdict::Deny {
            assert_eq!(decision.reason, Reason::Rate, "{what}, round {round}");
            let wait = decision.retry_after.expect("it will pass some day");
            limiter.wait(wait);
            let again = limiter.check(rule, cost);
            assert_eq!(again.verdict, Verdict::Allow, "{what}, round {round}: told {wait:?}, then {again:?}");
        }
        limiter.wait(Micros(round * 104_729 % 900_000));
    }
}

fn rule(limits: &[&str]) -> Arc<Rule> {
    let limits: Vec<_> = limits.iter().map(|text| Limit::parse(text).expect(text)).collect();
    Arc::new(Rule::of("p", &limits))
}

#[test]
fn embedded_store_holds_to_its_word() {
    for limits in RULES {
        let mut limiter = InLine { store: Embedded::new(100, 7), now: Timestamp(START) };
        holds_to_its_word(&mut limiter, &rule(limits), &format!("{limits:?}"));
    }
}

#[test]
fn leasing_shard_holds_to_its_word() {
    for trip in [Micros(0), Micros(300), Micros(4_000)] {
        for limits in RULES {
            holds_to_its_word(&mut Leasing::new(trip), &rule(limits), &format!("{limits:?} at {trip:?}"));
        }
    }
}
