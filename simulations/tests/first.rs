//! Two nodes share a limit through one store, on virtual time: the shipped core and the shipped
//! store, with nothing between them but a millisecond each way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::decision::{Decision, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;

const LIMIT: u64 = 1000;
const SECONDS: u64 = 5;
/// One step of the world, and the delay of a message.
const STEP: Micros = Micros(1_000);
/// The store's clock at the start: a whole second.
const START: Timestamp = Timestamp(1_800_000_000_000_000);

/// A node, and the messages on their way to and from it.
struct Node {
    name: &'static str,
    shard: Shard,
    asked: VecDeque<Call>,
    answered: VecDeque<(Call, Result<Grant, StoreError>)>,
}

/// What happened.
#[derive(Debug, Default, PartialEq, Eq)]
struct History {
    /// Admitted in each window, by its end.
    admitted: BTreeMap<Timestamp, u64>,
    checks: u64,
    calls: u64,
    waited: u64,
}

impl History {
    fn take(&mut self, decision: &Decision) {
        let admitted = self.admitted.entry(decision.reset_at).or_default();
        *admitted += u64::from(decision.verdict == Verdict::Allow);
    }
}

impl Node {
    fn new(name: &'static str, seed: u64) -> Self {
        let settings = Settings { max_keys: 100, timeout: Micros(50_000), lease_ahead: true };
        let shard = Shard::new(settings, seed, START.0, 1, (Instant(START.0), START));
        Self { name, shard, asked: VecDeque::new(), answered: VecDeque::new() }
    }

    /// What was asked a step ago reaches the store, what was answered a step ago reaches the node.
    fn deliver(&mut self, now: Micros, store: &mut MemoryStore, history: &mut History) {
        while let Some((call, outcome)) = self.answered.pop_front() {
            self.shard.handle_outcome(Instant(START.0) + now, &call, outcome);
            self.drain(history);
        }
        while let Some(call) = self.asked.pop_front() {
            let outcome = store.call(START + now, self.name, &call);
            self.answered.push_back((call, outcome));
        }
        if self.shard.poll_timeout().is_some_and(|due| due <= Instant(START.0) + now) {
            self.shard.handle_timeout(Instant(START.0) + now);
            self.drain(history);
        }
    }

    fn check(&mut self, now: Micros, rule: &Arc<Rule>, history: &mut History) {
        let request = Request { rule, digest: Digest::of("api", b"key"), key: b"key", cost: 1, peek: false };
        history.checks += 1;
        match self.shard.check(Instant(START.0) + now, request) {
            Outcome::Decided(decision) => history.take(&decision),
            Outcome::Parked(_) => history.waited += 1,
        }
        self.drain(history);
    }

    fn drain(&mut self, history: &mut History) {
        while let Some(effect) = self.shard.poll_effect() {
            match effect {
                Effect::Call(call) => {
                    history.calls += 1;
                    self.asked.push_back(call);
                }
                Effect::Reply { decision, .. } => history.take(&decision),
            }
        }
    }
}

/// Both nodes ask once a millisecond: twice the limit.
fn run(seed: u64) -> History {
    let rule = Arc::new(Rule::of("api", &[Limit::parse("1000/1s fixed").expect("a limit")]));
    let mut store = MemoryStore::new(100, u128::from(seed));
    let mut nodes = [Node::new("a", seed), Node::new("b", seed + 1)];
    let mut history = History::default();
    let mut now = Micros::ZERO;
    while now < Micros::from_secs(SECONDS) {
        for node in &mut nodes {
            node.deliver(now, &mut store, &mut history);
            node.check(now, &rule, &mut history);
        }
        now = now + STEP;
    }
    history
}

#[test]
fn two_nodes_admit_the_limit_exactly() {
    for seed in 1..=20 {
        let history = run(seed);
        for (end, admitted) in &history.admitted {
            assert!(*admitted <= LIMIT, "seed {seed}: {admitted} admitted in the window until {}", end.0);
        }
        let all: u64 = history.admitted.values().sum();
        assert!(all >= LIMIT * SECONDS * 99 / 100, "seed {seed}: {all} admitted in {SECONDS} windows");
        let calls = 1000 * history.calls / history.checks;
        assert!(calls <= 80, "seed {seed}: {calls} store calls per 1000 checks");
        let waited = 100 * history.waited;
        assert!(waited <= history.checks, "seed {seed}: {} of {} checks waited", history.waited, history.checks);
    }
}

#[test]
fn same_seed_repeats_the_same_history() {
    assert_eq!(run(7), run(7));
}
