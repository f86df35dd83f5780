//! What a node asks of a peer, and what a peer answers: plain values.
//!
//! A peer that leases a key from the store can lend on what it holds: it spends tokens as for a check of its own, and whoever
//! asked for them admits as many. So the store counts each token once, when it lends it. Nothing of an ask is remembered: one
//! whose answer is lost is never asked again under its id, and what was lent for it is lost.
//!
//! A peer that cannot reach the store, either, may lend tokens of a window that the store has set aside for it: it
//! admits so many fewer itself, and the store counts them together with what that peer has admitted.

use std::sync::Arc;

use super::call::Counter;
use super::key::Digest;
use super::limit::MAX_LIMITS;
use super::rule::Rule;
use super::time::{Micros, Timestamp};

/// An ask for a peer: leaves the core in an `Effect`, and its outcome comes back with its `id`.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Unique and growing per node, across restarts.
    pub id: u64,
    /// The key.
    pub digest: Digest,
    /// Its bytes, all of them: the peer finds its limits by them.
    pub key: Box<[u8]>,
    /// The limits that apply, in order.
    pub rule: Arc<Rule>,
    /// What is wanted.
    pub terms: Terms,
    /// For how long its answer is awaited, from when it leaves.
    pub awaited: Micros,
}

/// What is wanted of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// [`Rule::fingerprint`] of the limits by which the tokens are to be spent.
    pub rule: u64,
    /// Tokens that would serve everybody who waits.
    pub want: u64,
    /// The fewest that are of any use; at least 1.
    pub least: u64,
    /// How long after the arrival of the ask the peer may still answer: [`Ask::awaited`] less the trip there and back.
    /// Under several limits it is all of `awaited`, because the peer lends no tokens that end before.
    pub patience: Micros,
    /// A peer that cannot reach the store, either, may lend of what the store has set aside for it.
    pub aside: bool,
}

/// Who had lent the tokens with which a debt is paid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// The store, which counts them as lent to this node.
    Store,
    /// A peer, which counts them as its own: the store has lent them to that.
    Peer,
}

/// Tokens that a peer lends on, if any, and what it knows of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loan {
    /// Tokens: none, or `least` to `want` of them.
    pub tokens: u64,
    /// How long they may be spent from when the peer answered: no longer than by the peer itself. `None`: they are a
    /// bucket's, and must be spent when they arrive.
    pub lasts: Option<Micros>,
    /// The earliest and the latest that the store's clock can have read when the peer answered.
    pub clock: [Timestamp; 2],
    /// The key's epoch as the peer knows it, for the decision's field. It decides nothing, because the store has
    /// counted these tokens under any epoch.
    pub epoch: u64,
    /// The counters that the peer's own clients are answered by, one per limit of the rule; the rest are zero.
    pub counters: [Counter; MAX_LIMITS],
    /// If fewer tokens were lent than were wanted, the time after which there may be more.
    pub wait: Micros,
    /// The peer cannot reach the store, and lends what is set aside for it. The loan then says nothing of the store but
    /// its clock and the time of the window.
    pub aside: bool,
}

/// Why a peer lends nothing on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// It has other limits for this key.
    OtherRule,
    /// Its part of the store does not answer it, either.
    NoStore,
    /// It leaves.
    Leaving,
    /// It asks a peer for this key itself, and loans are not lent on.
    Asks,
    /// It has no room for the key or no time for the ask.
    Busy,
}

impl Refusal {
    /// Every one, in the order of their discriminants.
    pub const ALL: [Self; 5] = [Self::OtherRule, Self::NoStore, Self::Leaving, Self::Asks, Self::Busy];

    /// Whether the peer would refuse asks for other keys, too, so that it is left out for a while.
    #[must_use]
    pub fn lasts(self) -> bool {
        matches!(self, Self::NoStore | Self::Leaving)
    }
}

/// A peer's answer to an ask.
pub type Answer = Result<Loan, Refusal>;
