//! A lone node on virtual time: the shipped core over the shipped memory store, with a trip between them.

use std::sync::Arc;

use rationd::core::decision::Decision;
use rationd::core::key::Digest;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;

const START: u64 = 1_800_000_000_123_457;
const BEGIN: u64 = 3_600_000_000;

/// A shard whose calls take `trip` there and back; the store reads its clock half-way.
pub struct Lone {
    shard: Shard,
    store: MemoryStore,
    now: Instant,
    trip: Micros,
    /// So much longer answers take that leave now.
    pub late: Micros,
    /// Calls to the store so far.
    pub calls: u64,
    /// What was asked of the store and answered, for who reads a failure.
    pub log: Vec<String>,
    /// Checks that waited for the store.
    pub waits: u64,
    /// Answers on their way: when they arrive.
    answers:
        Vec<(Instant, rationd::core::call::Call, Result<rationd::core::call::Grant, rationd::core::call::StoreError>)>,
}

impl Lone {
    pub fn new(trip: Micros) -> Self {
        let now = Instant(BEGIN);
        let settings = Settings { max_keys: 10, timeout: Micros(50_000), lease_ahead: true };
        let shard = Shard::new(settings, 7, 1, 1, (now, Timestamp(START)));
        Self {
            shard,
            store: MemoryStore::new(100, 7),
            now,
            trip,
            late: Micros::ZERO,
            calls: 0,
            log: Vec::new(),
            waits: 0,
            answers: Vec::new(),
        }
    }

    /// The store's clock now.
    pub fn store_time(&self) -> Timestamp {
        Timestamp(START - BEGIN + self.now.0)
    }

    pub fn check(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        self.ask(rule, cost, false)
    }

    pub fn peek(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        self.ask(rule, cost, true)
    }

    /// Takes back a cost that was spent.
    pub fn refund(&mut self, rule: &Arc<Rule>, cost: u64) -> Decision {
        let digest = Digest::of("p", b"k");
        let outcome = self.shard.refund(self.now, Request { rule, digest, key: b"k", cost, peek: false });
        self.outcome(outcome)
    }

    fn ask(&mut self, rule: &Arc<Rule>, cost: u64, peek: bool) -> Decision {
        let digest = Digest::of("p", b"k");
        let outcome = self.shard.check(self.now, Request { rule, digest, key: b"k", cost, peek });
        self.outcome(outcome)
    }

    /// The answer, when it has come.
    fn outcome(&mut self, outcome: Outcome) -> Decision {
        let mut reply = self.settle();
        if let Outcome::Decided(decision) = outcome {
            return decision;
        }
        self.waits += 1;
        while reply.is_none() {
            let next = self.next_event().expect("a parked check has a deadline");
            reply = self.step(next);
        }
        reply.expect("the loop ends with one")
    }

    /// Lets time pass, with all that is due in it.
    pub fn wait(&mut self, span: Micros) {
        let end = self.now + span;
        while let Some(at) = self.next_event().filter(|at| *at <= end) {
            self.step(at);
        }
        self.now = self.now.max(end);
    }

    fn next_event(&self) -> Option<Instant> {
        self.shard.poll_timeout().into_iter().chain(self.answers.iter().map(|(at, ..)| *at)).min()
    }

    fn step(&mut self, at: Instant) -> Option<Decision> {
        self.now = self.now.max(at);
        if let Some(place) = self.answers.iter().position(|(at, ..)| *at <= self.now) {
            let (_, call, outcome) = self.answers.remove(place);
            self.shard.handle_outcome(self.now, &call, outcome);
        } else {
            self.shard.handle_timeout(self.now);
        }
        self.settle()
    }

    fn settle(&mut self) -> Option<Decision> {
        let mut reply = None;
        while let Some(effect) = self.shard.poll_effect() {
            match effect {
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("nobody told it of peers to ask"),
                Effect::Reply { decision, .. } => reply = Some(decision),
                Effect::Call(call) => {
                    self.calls += 1;
                    let half = Micros(self.trip.0 / 2);
                    let outcome = self.store.call(self.store_time() + half, "n", &call);
                    self.log.push(format!(
                        "    {:?} -> {:?}",
                        call.op,
                        outcome.as_ref().map(|grant| (grant.granted, grant.now, grant.counters))
                    ));
                    self.answers.push((self.now + self.trip + self.late, *call, outcome));
                    self.answers.sort_by_key(|(at, ..)| *at);
                }
            }
        }
        reply
    }
}
