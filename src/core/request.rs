//! What drivers ask of a shard, and what it asks of them.

use std::sync::Arc;

use super::call::Call;
use super::decision::Decision;
use super::key::Digest;
use super::rule::Rule;
use super::time::Micros;

/// Checks that may wait for one key; more are turned away as overload.
pub(super) const MAX_LINE: usize = 8_192;

/// A shard's bounds and habits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most keys held.
    pub max_keys: usize,
    /// Longest wait of a check for the store.
    pub timeout: Micros,
    /// Lease more than what waits, refill in the background, give back.
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
#[allow(clippy::large_enum_variant, reason = "a few wait at a time, until the driver drains them")]
pub enum Effect {
    /// Ask the store; report with [`Shard::handle_outcome`](super::shard::Shard::handle_outcome).
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
    /// The key's first bytes, when they are still remembered.
    pub key: Option<Box<[u8]>>,
    /// The limits that applied last.
    pub rule: Arc<Rule>,
    /// Tokens held.
    pub held: u64,
    /// What a peek would answer.
    pub decision: Decision,
}
