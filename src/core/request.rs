//! The requests of drivers to a shard, and the shard's effects, which drivers carry out.

use std::sync::Arc;

use super::ask::{Answer, Ask};
use super::call::Call;
use super::decision::Decision;
use super::key::Digest;
use super::rule::Rule;
use super::time::Micros;
use super::usage::PeerIndex;

/// Most checks that wait for one key. Further ones are turned away as overload.
pub(super) const MAX_LINE: usize = 8_192;

/// The bounds and settings of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most keys held.
    pub max_keys: usize,
    /// How long a check waits for the store.
    pub timeout: Micros,
    /// Lease more than waiters need, refill in the background, and return what is not needed.
    pub lease_ahead: bool,
}

/// A request about one key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The limits that apply.
    pub rule: &'a Arc<Rule>,
    /// `Digest::of(rule.policy, key)`.
    pub digest: Digest,
    /// The key's bytes, of which some are kept for listings.
    pub key: &'a [u8],
    /// Tokens that are asked for; in a refund, tokens that are given back.
    pub cost: u64,
    /// Charge nothing. A cost of 0 means the same.
    pub peek: bool,
}

/// Identifies a parked request within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The immediate result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The decision.
    Decided(Decision),
    /// The decision will come as `Effect::Reply` with this ticket, by the deadline.
    Parked(Ticket),
}

/// The immediate outcome of a peer's ask.
#[allow(clippy::large_enum_variant, reason = "it is made and taken apart by one caller, and never kept")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// Here is the answer.
    Answered(Answer),
    /// The answer comes as `Effect::Answer` with this ticket, in the time that the peer waits.
    Parked(Ticket),
}

/// What the driver must do.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a few wait at a time, until the driver drains them")]
pub enum Effect {
    /// Send this call to the store, which is large and passes through many hands; its outcome goes to
    /// [`Shard::handle_outcome`](super::shard::Shard::handle_outcome).
    Call(Box<Call>),
    /// Answer a parked request.
    Reply {
        /// The request's ticket.
        ticket: Ticket,
        /// The decision. If the store did not execute a refund or reset, `reason` is `store`.
        decision: Decision,
    },
    /// Ask a peer, once; report with [`Shard::handle_answer`](super::shard::Shard::handle_answer) if it answers.
    Ask {
        /// Which one.
        peer: PeerIndex,
        /// What.
        ask: Ask,
    },
    /// Answer a peer that was parked by [`Shard::handle_ask`](super::shard::Shard::handle_ask).
    Answer {
        /// Which one.
        ticket: Ticket,
        /// The answer.
        answer: Answer,
    },
}

/// What a shard knows of one key, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The digest.
    pub digest: Digest,
    /// The first bytes of the key, if they are still stored.
    pub key: Option<Box<[u8]>>,
    /// The limits that applied last.
    pub rule: Arc<Rule>,
    /// Tokens held.
    pub held: u64,
    /// The decision of a peek.
    pub decision: Decision,
}
