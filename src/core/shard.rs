//! The state machine: one shard of the key space. `check`, `handle_*`, `poll_*`.
//!
//! The one invariant for drivers: after every call that takes `&mut self`, drain
//! [`Shard::poll_effect`] until it is empty.

use std::sync::Arc;

use super::call::{Call, Grant, StoreError};
use super::decision::Decision;
use super::key::Digest;
use super::policy::Rule;
use super::stats::{PolicyStats, ShardStats};
use super::time::{Instant, Micros, Timestamp};

/// A shard's bounds and habits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most keys held.
    pub max_keys: usize,
    /// Longest wait of a check for the store.
    pub timeout: Micros,
    /// Lease more than what waits. Off for the embedded store, which is asked in line.
    pub lease_ahead: bool,
}

/// One question about one key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The limits that apply.
    pub rule: &'a Arc<Rule>,
    /// `Digest::of(rule.policy, key)`.
    pub digest: Digest,
    /// The key's bytes, kept (within bounds) for listings only.
    pub key: &'a [u8],
    /// Tokens asked for; of a refund, tokens given back.
    pub cost: u64,
    /// Report and charge nothing. A cost of 0 is a peek too.
    pub peek: bool,
}

/// A parked request. Unique within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The immediate outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Here is the answer.
    Decided(Decision),
    /// The answer comes as `Effect::Reply` with this ticket, by the deadline.
    Parked(Ticket),
}

/// What the driver must do.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Ask the store; report with `Shard::handle_outcome`.
    Call(Call),
    /// Answer a parked request.
    Reply {
        /// Which one.
        ticket: Ticket,
        /// The answer. For a refund or reset that the store did not take, `reason` is `store`.
        decision: Decision,
    },
}

/// What a shard knows of one key, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The digest.
    pub digest: Digest,
    /// The key's bytes, when they are still remembered.
    pub key: Option<Box<[u8]>>,
    /// The limits that applied last.
    pub rule: Arc<Rule>,
    /// Tokens held.
    pub held: u64,
    /// What a peek would answer.
    pub decision: Decision,
}

/// One shard. Owns no clock, no IO, no thread, no source of randomness.
#[derive(Debug)]
pub struct Shard {
    settings: Settings,
}

impl Shard {
    /// An empty shard. `seed` feeds its jitter and its table's secret; call ids grow from
    /// `first_id` in steps of `id_step`, so that the shards of a node never share one; `clock` is
    /// the wall clock at this moment, a first estimate of the store's.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, first_id: u64, id_step: u64, clock: (Instant, Timestamp)) -> Self {
        let _ = (seed, first_id, id_step, clock);
        Self { settings }
    }

    /// Decides, or parks until the store has been asked. Allocates nothing when `Decided`.
    pub fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let _ = (now, request, self.settings);
        unimplemented!()
    }

    /// Takes back a cost that was spent, as far as it was spent here from what is still held, the
    /// rest in the store.
    pub fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check(now, request)
    }

    /// Forgets the key, fleet-wide.
    pub fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check(now, request)
    }

    /// Takes the outcome of an `Effect::Call`.
    pub fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        let _ = (now, call, outcome);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Leaving: hands everything back, lends nothing more. Checks are still answered.
    pub fn handle_drain(&mut self, now: Instant) {
        let _ = now;
    }

    /// What the driver must do next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        None
    }

    /// When `handle_timeout` wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Counts of the shard.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        ShardStats::default()
    }

    /// Counts per policy.
    pub fn policy_stats(&self) -> impl Iterator<Item = (&Arc<str>, &PolicyStats)> {
        std::iter::empty()
    }

    /// Up to `most` keys that the shard knows.
    #[must_use]
    pub fn keys(&self, now: Instant, most: usize) -> Vec<KeyInfo> {
        let _ = (now, most);
        Vec::new()
    }
}
