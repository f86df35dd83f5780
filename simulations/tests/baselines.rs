//! The baselines keep their word: what they admit, and what that costs, beside the shipped core on
//! the same store. One step of the world is a millisecond, and so is the way of a message.

use std::collections::VecDeque;
use std::sync::Arc;

use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::decision::{Decision, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;
use simulations::brain::limiter;
use simulations::limiter::{Limiter, Start};
use simulations::observe::Balance;
use simulations::plan::Brain;

const START: Timestamp = Timestamp(1_800_000_000_000_000);
const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// What came of two windows of a thousand tokens.
#[derive(Debug, Default)]
struct Tally {
    checks: u64,
    answers: u64,
    admitted: u64,
    calls: u64,
}

struct Node {
    name: &'static str,
    limiter: Box<dyn Limiter>,
    asked: VecDeque<Call>,
    answered: VecDeque<(Call, Result<Grant, StoreError>)>,
}

impl Node {
    fn new(brain: Brain, name: &'static str) -> Self {
        let settings = Settings { max_keys: 10, timeout: Micros::from_millis(50), lease_ahead: true };
        let start = Start { settings, seed: 1, first_id: 1, clock: (Instant(0), START), shards: 1 };
        let mut limiter = limiter(brain, start);
        limiter.set_nodes(NODES.len() as u32);
        Self { name, limiter, asked: VecDeque::new(), answered: VecDeque::new() }
    }

    /// What was asked a step ago reaches the store, what was answered a step ago reaches the node.
    fn deliver(&mut self, now: Micros, store: Option<&mut MemoryStore>, tally: &mut Tally) {
        while let Some((call, outcome)) = self.answered.pop_front() {
            self.limiter.handle_outcome(Instant(now.0), &call, outcome);
        }
        let asked = std::mem::take(&mut self.asked);
        if let Some(store) = store {
            let answer = |call: Call| (call.clone(), store.call(START + now, self.name, &call));
            self.answered = asked.into_iter().map(answer).collect();
        }
        if self.limiter.poll_timeout().is_some_and(|due| due <= Instant(now.0)) {
            self.limiter.handle_timeout(Instant(now.0));
        }
        self.drain(tally);
    }

    fn check(&mut self, now: Micros, rule: &Arc<Rule>, cost: u64, tally: &mut Tally) {
        let request = Request { rule, digest: Digest::of("p", b"key"), key: b"key", cost, peek: false };
        tally.checks += 1;
        if let Outcome::Decided(decision) = self.limiter.check(Instant(now.0), request) {
            tally.take(&decision, cost);
        }
        self.drain(tally);
    }

    fn drain(&mut self, tally: &mut Tally) {
        while let Some(effect) = self.limiter.poll_effect() {
            match effect {
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("baselines ask no peers"),
                Effect::Call(call) => {
                    tally.calls += 1;
                    self.asked.push_back(*call);
                }
                Effect::Reply { decision, .. } => tally.take(&decision, 1),
            }
        }
    }
}

impl Tally {
    fn take(&mut self, decision: &Decision, cost: u64) {
        self.answers += 1;
        self.admitted += if decision.verdict == Verdict::Allow { cost } else { 0 };
    }
}

/// Each of four nodes asks once a millisecond for two seconds: four times the limit.
fn run(brain: Brain, limit: &str, is_away: bool) -> Tally {
    let rule = Arc::new(Rule::of("p", &[Limit::parse(limit).expect("a limit")]));
    let mut store = MemoryStore::new(100, 7);
    let mut nodes = NODES.map(|name| Node::new(brain, name));
    let mut tally = Tally::default();
    for step in 0..2_100 {
        let now = Micros::from_millis(step);
        for node in &mut nodes {
            node.deliver(now, (!is_away).then_some(&mut store), &mut tally);
            if step < 2_000 {
                node.check(now, &rule, 1, &mut tally);
            }
        }
    }
    for node in &nodes {
        let Balance { granted, spent, returned, expired, held } = node.limiter.balance(Instant(2_100_000));
        assert_eq!(granted, spent + returned + expired + held, "{brain:?}");
        assert_eq!(node.limiter.waiting(), 0, "{brain:?}");
    }
    assert_eq!(tally.answers, tally.checks, "{brain:?}");
    tally
}

const ALL: [Brain; 7] = [
    Brain::Rationd,
    Brain::PerRequest,
    Brain::Remembered,
    Brain::BatchOne,
    Brain::BatchThousand,
    Brain::GrowHalve,
    Brain::Split,
];

#[test]
fn nobody_admits_more_than_the_limit() {
    for brain in ALL {
        let tally = run(brain, "1000/1s fixed", false);
        // Who asked in the last ten milliseconds may be answered in the third window.
        assert!((1_900..=2_000 + 10 * NODES.len() as u64).contains(&tally.admitted), "{brain:?}: {tally:?}");
        let tally = run(brain, "1000/1s burst 100", false);
        assert!(tally.admitted <= 2_150, "{brain:?}: {tally:?}");
    }
}

#[test]
fn price_of_asking_each_time_is_a_call_per_check() {
    let tally = run(Brain::PerRequest, "1000/1s fixed", false);
    assert_eq!(tally.calls, tally.checks);
    let remembered = run(Brain::Remembered, "1000/1s fixed", false);
    assert!(remembered.calls < tally.calls / 2, "{remembered:?}");
    assert_eq!(remembered.admitted, 2_000);
}

#[test]
fn larger_batches_cost_fewer_calls() {
    let [one, grow, thousand, split] = [Brain::BatchOne, Brain::GrowHalve, Brain::BatchThousand, Brain::Split]
        .map(|brain| run(brain, "1000/1s fixed", false).calls);
    assert!(one >= 1_000 && grow < 200 && thousand < grow && split == 0, "{one} {grow} {thousand} {split}");
}

#[test]
fn store_that_is_away_denies_all_that_ask_it() {
    for brain in [Brain::PerRequest, Brain::BatchThousand] {
        assert_eq!(run(brain, "1000/1s fixed", true).admitted, 0);
    }
    assert_eq!(run(Brain::Split, "1000/1s fixed", true).admitted, 2_000);
}
