//! What the core asks of a store, and what a store answers: plain values.
//!
//! Every call carries an id. A store executes a call with a given node and id at most once and
//! repeats its answer, so an unknown outcome is asked again under the *same* id, never guessed.

use std::sync::Arc;

use super::key::Digest;
use super::limit::MAX_LIMITS;
use super::rule::Rule;
use super::time::{Instant, Micros, Timestamp};

/// A call for the store: leaves the core in an `Effect`, and its outcome comes back with its `id`.
#[derive(Clone, Debug)]
pub struct Call {
    /// Unique and growing per node, across restarts; 0 means "will never be repeated", and the
    /// store then remembers nothing of it (the embedded store's inline calls).
    pub id: u64,
    /// The key.
    pub digest: Digest,
    /// The limits that apply, in order.
    pub rule: Arc<Rule>,
    /// What is asked.
    pub op: Op,
    /// When the core decided to send it: earlier than any byte left.
    pub sent_at: Instant,
}

/// Of each limit, whatever window is open (see [`Op::Refund`]).
pub const OPEN: [Timestamp; MAX_LIMITS] = [Timestamp::NONE; MAX_LIMITS];

/// Per bucket, how long ago a node spent those of its tokens that it holds no more: the moment at which all of
/// them, spent in one go, would have left the bucket as they did one by one.
pub type Ages = [Micros; MAX_LIMITS];

/// They were spent just now, or there were none.
pub const JUST_NOW: Ages = [Micros::ZERO; MAX_LIMITS];

/// What is asked of the store. Amounts are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Lend tokens.
    Acquire(Acquire),
    /// Take back unspent tokens, into the windows that lent them or not at all.
    Return {
        /// Tokens handed back.
        amount: u64,
        /// The epoch of the key that lent them.
        epoch: u64,
        /// Tokens lent that this node keeps: under gcra the rest of what it was lent is spent.
        held: u64,
        /// See [`Ages`].
        ages: Ages,
        /// `Counter::at` of each limit as it was when they were lent.
        windows: [Timestamp; MAX_LIMITS],
        /// An order whose answer nobody here waits for any more.
        voids: Voided,
    },
    /// Report the counters and change nothing.
    Peek,
    /// Take back a cost that was spent: of all limits, or of none.
    Refund {
        /// Tokens credited.
        amount: u64,
        /// Per limit 0, or the `Counter::at` of the window that was charged, if only that may be credited; for
        /// gcra the time from which on the bucket has filled up since.
        windows: [Timestamp; MAX_LIMITS],
    },
    /// Of a concurrent limit: say how many slots are in use here, and how many this node would like.
    Occupy(Occupy),
    /// Forget the key: counters to zero under a new epoch, so that nobody's knowledge of the old
    /// one comes back.
    Reset,
}

/// The arguments of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// What waits for this answer.
    pub need: u64,
    /// What the batch tuner would like, at least `need`.
    pub want: u64,
    /// The smallest amount that is of any use; when less is left, nothing is lent.
    pub least: u64,
    /// Of which window the tokens are.
    pub window: Window,
    /// The epoch of the key as this node knows it; 0 for none. `known` counts only when the store
    /// has lost that epoch.
    pub epoch: u64,
    /// Tokens lent before that this node has not spent: under gcra the rest of what it was lent is.
    pub held: u64,
    /// See [`Ages`].
    pub ages: Ages,
    /// Per limit, what this node spent or holds: added again to a store that has lost it.
    pub known: [Known; MAX_LIMITS],
}

/// The window that an acquire asks for tokens of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Whichever is open when the store executes the call; of a bucket, what is in it.
    Current,
    /// The one that begins at this time of the store's clock, when the open one ends (aligned `fixed` only): tokens are
    /// leased ahead of it, so that nobody waits for the store at its start.
    Next {
        /// When it begins.
        begins: Timestamp,
    },
}

impl Window {
    /// As calls write it: zero, or when the next one begins.
    #[must_use]
    pub fn from_wire(begins: Timestamp) -> Self {
        if begins.is_none() { Self::Current } else { Self::Next { begins } }
    }

    /// The same the other way.
    #[must_use]
    pub fn on_wire(self) -> Timestamp {
        match self {
            Self::Current => Timestamp::NONE,
            Self::Next { begins } => begins,
        }
    }

    /// Whether it has yet to begin.
    #[must_use]
    pub fn is_next(self) -> bool {
        matches!(self, Self::Next { .. })
    }
}

/// An acquire sent before, under limits that this node has left since: whatever it was lent goes back. Nothing
/// but zeros: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voided {
    /// The id of the call.
    pub id: u64,
    /// [`Acquire::need`]: what a bucket was charged at once.
    pub need: u64,
    /// Of a bucket, tokens that it told to be spent: they are, whether it was executed or not.
    pub told: u64,
    /// Of a bucket, tokens spent since: the rest of what the store lent is free.
    pub spent: u64,
    /// Of a bucket, the id of this node's last acquire or return that was answered; 0: there is none. Of an account
    /// that is older, all counts as spent.
    pub answered: u64,
}

/// What a node says of its slots of a concurrent limit. It replaces what it said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupy {
    /// Slots that its clients hold: the store takes note of them, whatever the limit.
    pub used: u64,
    /// Slots beyond those that somebody waits for.
    pub need: u64,
    /// All that it would like, at least `used`. Less than it has: the rest is free for others.
    pub want: u64,
    /// How long they are this node's if it says nothing more.
    pub lease: Micros,
}

/// What one node spent or holds of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Tokens; for gcra those spent that the store has not been told of.
    pub used: u64,
    /// `Counter::at` of the window this is about; for gcra the latest TAT known. 0: nothing.
    pub at: Timestamp,
}

/// The state of one limit, in the store's own terms. What the three numbers mean:
///
/// | algorithm | `used` | `prev` | `at` |
/// |---|---|---|---|
/// | gcra | lent, and not known to be spent | depth (us) of the bucket that was charged last; 0 = not known | theoretical arrival time (TAT); 0 = full bucket |
/// | fixed | lent in this window | lent ahead of the next | end of this window; 0 = none open |
/// | sliding | lent in this window | lent in the last, frozen | start of this window |
/// | concurrent | slots of all nodes | – | when those of the node that asks lapse |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// See the table above.
    pub used: u64,
    /// See the table above.
    pub prev: u64,
    /// See the table above.
    pub at: Timestamp,
}

/// The store's answer to any call: what it lent, and the counters after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens lent: 0 to `want`; all slots that this node has now. For other calls: tokens credited.
    pub granted: u64,
    /// This answer had been given before.
    pub replayed: bool,
    /// This node has used a higher id for the key: its clock was ahead when it started before.
    /// Nothing was done.
    pub outdated: bool,
    /// The store holds it on a majority (always true where `store.confirm` is off).
    pub confirmed: bool,
    /// A stored value made no sense and was taken as missing.
    pub damaged: bool,
    /// The key's epoch: another one than before means that the store lost or reset it.
    pub epoch: u64,
    /// The epoch began with a reset.
    pub reset: bool,
    /// Nodes that asked for this key in this or the last census window; at least 1.
    pub nodes: u32,
    /// The store's clock when it answered.
    pub now: Timestamp,
    /// The counters after the call, one per limit of the rule; the rest are zero.
    pub counters: [Counter; MAX_LIMITS],
}

/// Why a store gave no answer. Data for the core, never a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It is not known whether the call was executed.
    Unknown,
    /// The call was surely not executed: refused, breaker open, no route, table full.
    Away {
        /// Since when this part of the store has not answered.
        since: Instant,
    },
    /// The call never left, because too many were waiting to leave: the store is busy, not lost.
    Busy {
        /// About the time that the calls which wait need.
        wait: Micros,
    },
    /// An embedded store's table is full of live keys.
    Full,
}
