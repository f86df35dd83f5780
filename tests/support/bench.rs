//! A shard on a test bench: the test is its clock and its store.

use std::sync::Arc;

use rationd::core::ask::{Answer, Ask};
use rationd::core::call::{Acquire, Call, Counter, Grant, Op, StoreError};
use rationd::core::decision::{Decision, Verdict};
use rationd::core::gcra;
use rationd::core::key::Digest;
use rationd::core::limit::{Algorithm, Limit, MAX_LIMITS};
use rationd::core::page::Place;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};

/// How long a check waits for the store.
const TIMEOUT: Micros = Micros(50_000);

/// One second.
pub const SECOND: Micros = Micros(1_000_000);

/// The store's clock is this far ahead of the bench's.
const SKEW: u64 = 1_800_000_000_000_000 - 1_000_000_000;

/// A shard and everything around it.
pub struct Bench {
    pub shard: Shard,
    pub now: Instant,
    pub rule: Arc<Rule>,
    /// What the store will say is used, after the next grant.
    pub used: u64,
    pub epoch: u64,
    pub was_reset: bool,
    /// What the store answers it repeats.
    pub replayed: bool,
    /// How many the store says share a key.
    pub nodes: u32,
    /// So long ago the store gave the answer that comes now.
    pub behind: u64,
    /// What the store says that it sets aside of each window for this node.
    pub entitled: u64,
    /// What it says that nodes may not keep of a bucket.
    pub not_kept: u64,
    /// What others have spent of a bucket.
    pub owed_by_others: u64,
    pub last: Option<Decision>,
    calls: Vec<Call>,
    asks: Vec<Ask>,
    replies: Vec<Decision>,
}

impl Bench {
    pub fn new(limit: &str) -> Self {
        Self::build(limit, OnStoreLoss::Share, 1_000)
    }

    pub fn with_loss(limit: &str, on_store_loss: OnStoreLoss) -> Self {
        Self::build(limit, on_store_loss, 1_000)
    }

    pub fn with_keys(limit: &str, max_keys: usize) -> Self {
        Self::build(limit, OnStoreLoss::Share, max_keys)
    }

    pub fn with_timeout(limit: &str, timeout: Micros) -> Self {
        let mut bench = Self::new(limit);
        let settings = Settings { max_keys: 1_000, timeout, lease_ahead: true };
        bench.shard = Shard::new(settings, 7, 1, 1, (bench.now, bench.store_now()));
        bench
    }

    fn build(limit: &str, on_store_loss: OnStoreLoss, max_keys: usize) -> Self {
        let mut rule = Rule::of("test", &[Limit::parse(limit).expect(limit)]);
        rule.on_store_loss = on_store_loss;
        let now = Instant(1_000_000_000);
        let settings = Settings { max_keys, timeout: TIMEOUT, lease_ahead: true };
        let shard = Shard::new(settings, 7, 1, 1, (now, Timestamp(now.0 + SKEW)));
        let (calls, asks, replies) = (Vec::new(), Vec::new(), Vec::new());
        let rule = Arc::new(rule);
        Self {
            shard,
            now,
            rule,
            used: 0,
            epoch: 5,
            was_reset: false,
            replayed: false,
            nodes: 1,
            behind: 0,
            entitled: 0,
            not_kept: 0,
            owed_by_others: 0,
            last: None,
            calls,
            asks,
            replies,
        }
    }

    /// Checks key 0; `None` when it is parked.
    pub fn check(&mut self, cost: u64) -> Option<Verdict> {
        self.check_key(0, cost)
    }

    pub fn check_key(&mut self, key: u8, cost: u64) -> Option<Verdict> {
        self.check_that_came(Micros(0), key, cost)
    }

    /// The same of a check that came so long ago.
    pub fn check_that_came(&mut self, ago: Micros, key: u8, cost: u64) -> Option<Verdict> {
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: Digest::of("test", &[key]), key: &[key], cost, peek: false };
        let outcome = self.shard.check_by(self.now, self.now - ago + TIMEOUT, request);
        self.collect();
        match outcome {
            Outcome::Decided(decision) => {
                self.last = Some(decision);
                Some(decision.verdict)
            }
            Outcome::Parked(_) => None,
        }
    }

    /// Refunds on key 0; true when the shard settled it alone.
    pub fn refund(&mut self, cost: u64) -> bool {
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost, peek: false };
        let outcome = self.shard.refund(self.now, request);
        self.collect();
        matches!(outcome, Outcome::Decided(_))
    }

    /// Peeks at key 0; true when the shard answers by itself.
    pub fn peek(&mut self) -> bool {
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: 1, peek: true };
        let outcome = self.shard.check(self.now, request);
        self.collect();
        match outcome {
            Outcome::Decided(decision) => {
                self.last = Some(decision);
                true
            }
            Outcome::Parked(_) => false,
        }
    }

    pub fn reset(&mut self) {
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: Digest::of("test", &[0]), key: &[0], cost: 0, peek: false };
        self.shard.reset(self.now, request);
        self.collect();
    }

    /// Lets time pass in steps, as timers would see it.
    pub fn advance(&mut self, span: Micros) {
        let end = self.now + span;
        while let Some(at) = self.shard.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.shard.handle_timeout(self.now);
            self.collect();
        }
        self.now = end;
        self.shard.handle_timeout(self.now);
        self.collect();
    }

    /// Lets time pass with no timer seen (the process was stopped, say).
    pub fn settle_window(&mut self, span: Micros) {
        self.now = self.now + span;
    }

    fn collect(&mut self) {
        while let Some(effect) = self.shard.poll_effect() {
            match effect {
                Effect::Ask { ask, .. } => self.asks.push(ask),
                Effect::Answer { .. } => panic!("no peer has asked it"),
                Effect::Call(call) => self.calls.push(*call),
                Effect::Reply { decision, .. } => {
                    self.last = Some(decision);
                    self.replies.push(decision);
                }
            }
        }
    }

    /// The calls sent since this was last asked.
    pub fn calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// The asks sent since this was last asked.
    pub fn asks(&mut self) -> Vec<Ask> {
        std::mem::take(&mut self.asks)
    }

    /// The one ask sent since.
    pub fn try_ask(&mut self) -> Option<Ask> {
        let mut asks = self.asks();
        assert!(asks.len() <= 1, "more than one ask: {asks:?}");
        asks.pop()
    }

    /// A peer answers an ask.
    pub fn answer(&mut self, ask: &Ask, answer: &Answer) {
        self.shard.handle_answer(self.now, ask.digest, ask.id, answer);
        self.collect();
    }

    /// The store's clock.
    pub fn store_time(&self) -> Timestamp {
        Timestamp(self.now.0 + SKEW)
    }

    /// The verdicts of parked checks answered since this was last asked.
    pub fn replies(&mut self) -> Vec<Verdict> {
        std::mem::take(&mut self.replies).into_iter().map(|decision| decision.verdict).collect()
    }

    /// The one acquire sent since; other calls are dropped.
    pub fn try_acquire(&mut self) -> Option<Call> {
        let mut acquires: Vec<_> = self.calls().into_iter().filter(|call| matches!(call.op, Op::Acquire(_))).collect();
        assert!(acquires.len() <= 1, "more than one acquire: {acquires:?}");
        acquires.pop()
    }

    pub fn acquire(&mut self) -> Call {
        self.try_acquire().expect("an acquire was sent")
    }

    pub fn order(&self, call: &Call) -> Acquire {
        match call.op {
            Op::Acquire(order) => order,
            other => panic!("not an acquire: {other:?}"),
        }
    }

    /// The store grants so many tokens, now.
    pub fn grant(&mut self, call: &Call, tokens: u64) {
        let store = Timestamp(self.now.0 - self.behind + SKEW);
        let period = self.rule.limits[0].period.0;
        self.used = (self.used + tokens).min(self.rule.limits[0].count);
        let mut counters = [Counter::default(); MAX_LIMITS];
        let sent = call.sent_at.0 + SKEW;
        let ends = Timestamp(sent / period * period + period);
        let is_sliding = self.rule.limits[0].algorithm == Algorithm::Sliding;
        counters[0] = Counter { used: self.used, prev: 0, at: if is_sliding { ends - Micros(period) } else { ends } };
        if self.rule.limits[0].algorithm == Algorithm::Gcra {
            counters[0].at = store;
        }
        if let (Algorithm::Gcra, Op::Acquire(order)) = (self.rule.limits[0].algorithm, call.op) {
            let at_once = order.need.min(tokens);
            let at = store + gcra::cost(&self.rule.limits[0], at_once + self.owed_by_others);
            // Where nothing is lent, others hold what is used.
            let used = if tokens == 0 { self.used } else { order.held + tokens - at_once };
            counters[0] = Counter { used, prev: 0, at };
        }
        // Beside a bucket, of a fixed window so much was used as was ever lent.
        for (limit, counter) in self.rule.limits.iter().zip(&mut counters).skip(1) {
            let period = limit.period.0;
            if limit.algorithm == Algorithm::Fixed && self.rule.limits[0].algorithm == Algorithm::Gcra {
                *counter = Counter { used: self.used, prev: 0, at: Timestamp((sent / period + 1) * period) };
            }
        }
        let grant = Grant {
            granted: tokens,
            replayed: self.replayed,
            outdated: false,
            entitled: self.entitled,
            not_kept: self.not_kept,
            late: false,
            confirmed: true,
            damaged: false,
            epoch: self.epoch,
            reset: self.was_reset,
            nodes: self.nodes,
            now: store,
            counters,
        };
        self.shard.handle_outcome(self.now, call, Ok(grant));
        self.collect();
    }

    /// The store's clock, which the shard was told of at its start.
    pub fn store_now(&self) -> Timestamp {
        Timestamp(self.now.0 + SKEW)
    }

    /// The store, whose clock reads so, has lent so many tokens of the window that ends then.
    pub fn answer_as_of(&mut self, call: &Call, tokens: u64, now: Timestamp, ends: Timestamp) {
        let mut counters = [Counter::default(); MAX_LIMITS];
        counters[0] = Counter { used: self.used, prev: 0, at: ends };
        let grant = Grant {
            granted: tokens,
            replayed: false,
            outdated: false,
            late: false,
            entitled: self.entitled,
            not_kept: self.not_kept,
            confirmed: true,
            damaged: false,
            epoch: self.epoch,
            reset: self.was_reset,
            nodes: self.nodes,
            now,
            counters,
        };
        self.shard.handle_outcome(self.now, call, Ok(grant));
        self.collect();
    }

    /// The store, whose clock reads so, remembers nothing of the key and has not executed the call, which came outside of its
    /// time.
    pub fn refuse(&mut self, call: &Call, now: Timestamp) {
        let grant = Grant {
            granted: 0,
            replayed: false,
            outdated: true,
            late: true,
            entitled: 0,
            not_kept: 0,
            confirmed: true,
            damaged: false,
            epoch: 0,
            reset: false,
            nodes: 1,
            now,
            counters: Default::default(),
        };
        self.shard.handle_outcome(self.now, call, Ok(grant));
        self.collect();
    }

    pub fn fail(&mut self, call: &Call, error: StoreError) {
        self.shard.handle_outcome(self.now, call, Err(error));
        self.collect();
    }

    /// Tokens held for key 0.
    pub fn held(&self) -> u64 {
        self.shard.keys(self.now, Place::default(), 10).iter().map(|(_, key)| key.held).sum()
    }

    /// Makes key 0 hold `tokens` and be warm.
    pub fn hold(&mut self, tokens: u64) {
        for _ in 0..4 {
            self.check(1);
        }
        let call = self.acquire();
        self.grant(&call, 1);
        self.now = self.now + Micros(2_000);
        let call = self.acquire();
        self.grant(&call, 3 + tokens);
        self.replies();
        assert_eq!(self.held(), tokens);
    }

    /// Spends until a background refill is sent.
    pub fn spend_to_low_water(&mut self) {
        while self.calls.is_empty() {
            self.now = self.now + Micros(1_000);
            assert_eq!(self.check(1), Some(Verdict::Allow));
        }
    }
}
