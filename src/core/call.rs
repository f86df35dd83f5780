//! Calls to a store and their answers, as plain values.
//!
//! Every call has an id. A store executes a call with a given node and id at most once, and repeats its answer. So a
//! call with an unknown outcome is sent again under the *same* id; its outcome is never guessed.

use std::sync::Arc;

use super::key::Digest;
use super::limit::MAX_LIMITS;
use super::rule::Rule;
use super::time::{Instant, Micros, StoredTime, Timestamp};

/// A call to the store. It leaves the core in an `Effect`, and its outcome comes back with its `id`.
#[derive(Clone, Debug)]
pub struct Call {
    /// Unique per node and growing, also across restarts. 0 means that the call will never be repeated, so the store
    /// keeps no record of it (the inline calls of the embedded store).
    pub id: u64,
    /// The key.
    pub digest: Digest,
    /// The limits that apply, in order.
    pub rule: Arc<Rule>,
    /// What is asked.
    pub op: Op,
    /// When the core decided to send it, which is before any byte was sent.
    pub sent_at: Instant,
}

impl Call {
    /// Whether tokens of the call's limits are set aside. A call without an id has no part in that, because it leaves
    /// no record.
    #[must_use]
    pub fn sets_aside(&self) -> bool {
        self.id != 0 && self.rule.is_entitled()
    }
}

/// For each limit, the `Counter::at` of a window. `None` for a bucket, which has no windows, and where any window will do.
pub type Windows = [Option<StoredTime>; MAX_LIMITS];

/// For each limit, whichever window is open (see [`Op::Refund`]).
pub const OPEN: Windows = [None; MAX_LIMITS];

/// For each bucket, how long ago a node spent its tokens. That is the age at which all of them, spent in one go,
/// would have left the bucket in the state in which they left it one by one.
pub type Ages = [Micros; MAX_LIMITS];

/// The tokens were spent just now, or there are none.
pub const JUST_NOW: Ages = [Micros::ZERO; MAX_LIMITS];

/// The operation of a call. Amounts are tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Lends tokens.
    Acquire(Acquire),
    /// Takes back unspent tokens, into the windows that lent them or not at all.
    Return {
        /// Tokens that are returned.
        amount: u64,
        /// The epoch of the key under which they were lent.
        epoch: u64,
        /// Tokens that this node keeps. Under GCRA it has spent the rest of what it was lent.
        held: u64,
        /// See [`Ages`].
        ages: Ages,
        /// `Counter::at` of each limit when the tokens were lent.
        windows: Windows,
        /// An acquire that this node has abandoned, which this return declares void.
        voids: Option<Voided>,
    },
    /// Reads the counters, and changes nothing.
    Peek,
    /// Takes back a cost that was spent, in all limits or in none.
    Refund {
        /// Tokens that are credited.
        amount: u64,
        /// The epoch of the key, as its node knew it, under which the cost was charged; 0 where that does not matter or is not known.
        /// If a reset has begun another one since, the charge is forgotten and nothing is credited.
        epoch: u64,
        /// For each limit the `Counter::at` of the window that was charged, if only that may be credited. Under GCRA, the time
        /// from which on the bucket has filled up since.
        windows: Windows,
    },
    /// For a concurrent limit: reports how many permits are in use here, and how many this node would like.
    Occupy(Occupy),
    /// Resets the key: counters become zero under a new epoch, so that no node restores what it knows from the old
    /// one.
    Reset,
}

/// The arguments of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Tokens for those who wait for this answer.
    pub need: u64,
    /// Tokens that the batch tuner would like, at least `need`.
    pub want: u64,
    /// The smallest useful amount. If less is left, nothing is lent.
    pub least: u64,
    /// The window that the tokens are of.
    pub window: Window,
    /// The epoch of the key as this node knows it; 0 for none. `known` counts only if the store has lost that epoch.
    pub epoch: u64,
    /// Tokens of earlier grants that this node still holds. Under GCRA it has spent the rest.
    pub held: u64,
    /// See [`Ages`].
    pub ages: Ages,
    /// For each limit, what this node has spent or holds. It is added again to a store that has lost it.
    pub known: [Known; MAX_LIMITS],
    /// The store's time after which, and [`CALL_LIFE`] before which, a store that remembers no acquire of this node
    /// does not execute the call. It may have executed it before and have forgotten that, together with the key. A call
    /// that is sent for the first time may have none, since no connection delivers it twice; one that is sent again
    /// always has one.
    pub until: Option<StoredTime>,
    /// What this node says of its entitlement, if tokens of this rule are set aside ([`Rule::is_entitled`]).
    pub claim: Option<Claim>,
}

/// The store remembers for at least this long that it has executed an acquire: it is the shortest census period.
pub const CALL_LIFE: Micros = Micros::from_secs(1);

/// Half of [`CALL_LIFE`]. The span in which an acquire may be executed reaches so far to either side of the time that
/// the store's clock most likely shows. If checks may wait for the store for longer than this, acquires name no such
/// span, because a store that takes so long could answer none of them within it.
pub(super) const HALF_CALL_LIFE: Micros = Micros(CALL_LIFE.0 / 2);

/// A time that every store's clock has passed.
const PASSED: Timestamp = Timestamp(1);

impl Acquire {
    /// The acquire as it is sent once more, because its answer was lost. If it had no time, the store may have executed
    /// it and forgotten that. So it gets a time that has passed: a store that does not remember it will not execute it,
    /// and one that does answers what it has lent.
    #[must_use]
    pub(super) fn repeated(self) -> Self {
        Self { until: self.until.or(PASSED.stored()), ..self }
    }

    /// Whether a store that remembers no acquire of this node does nothing at that time of its clock.
    #[must_use]
    pub fn is_late(&self, now: Timestamp) -> bool {
        self.until.map(StoredTime::time).is_some_and(|until| now > until || now + CALL_LIFE < until)
    }
}

/// What an acquire says of the tokens that are set aside for its node. Amounts are tokens of one window; of a bucket, `believes` is a part
/// of the limit in millionths, and `demand` tokens of a period of accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The tokens that the node believes to be set aside for it. They stay set aside until a call believes fewer.
    /// `None`: this process has not learned of any, so an earlier one under the node's name may have spent what is set
    /// aside in this window.
    pub believes: Option<u64>,
    /// The tokens that it uses in a window.
    pub demand: u64,
    /// When the call may free what is set aside for this node in its window; from then on the node spends what it is
    /// lent.
    pub frees: Frees,
    /// Of a bucket, the tokens that the node has admitted by its part and that have not leaked away yet. They are
    /// charged at once.
    pub owes: u64,
}

impl Claim {
    /// The tokens that the node believes in.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.believes.unwrap_or(0)
    }

    /// Whether the call only looks whether the store answers.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.frees == Frees::Never
    }
}

/// When by the store's clock a call that claims frees what is set aside for its node. At another time it changes nothing and is lent
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Frees {
    /// The call only looks whether the store answers.
    #[default]
    Never,
    /// Up to this time, inclusive: later the node may already admit checks by its entitlement, without the store.
    Until(Timestamp),
    /// The node knows of no entitlement that it could spend, so the call may come at any time.
    AtAnyTime,
}

impl Frees {
    /// The number that stands for [`Frees::AtAnyTime`] in a call: a time that never comes.
    const NEVER_OVER: u64 = (1 << 53) - 1;

    /// Whether a call that is executed at that time frees it.
    #[must_use]
    pub fn at(self, now: Timestamp) -> bool {
        match self {
            Self::Never => false,
            Self::Until(last) => now <= last,
            Self::AtAnyTime => true,
        }
    }

    /// From the argument of a call.
    #[must_use]
    pub fn from_wire(number: u64) -> Self {
        match number {
            0 => Self::Never,
            Self::NEVER_OVER => Self::AtAnyTime,
            last => Self::Until(Timestamp(last)),
        }
    }

    /// The argument of a call.
    #[must_use]
    pub fn on_wire(self) -> u64 {
        match self {
            Self::Never => 0,
            Self::Until(last) => last.0,
            Self::AtAnyTime => Self::NEVER_OVER,
        }
    }
}

/// The window that an acquire asks for tokens of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// Whichever window is open when the store executes the call. Of a bucket, what is in it.
    Current,
    /// The window that begins at this time of the store's clock, when the present one ends (aligned `fixed` limits
    /// only). Its tokens are leased in advance, so that nobody waits for the store when it begins.
    Next {
        /// When it begins.
        begins: Timestamp,
    },
}

impl Window {
    /// From the argument of a call: zero, or when the next window begins.
    #[must_use]
    pub fn from_wire(number: u64) -> Self {
        match number {
            0 => Self::Current,
            begins => Self::Next { begins: Timestamp(begins) },
        }
    }

    /// The argument of a call.
    #[must_use]
    pub fn on_wire(self) -> u64 {
        self.begins().map_or(0, |begins| begins.0)
    }

    /// When it begins, if it has yet to begin.
    #[must_use]
    pub fn begins(self) -> Option<Timestamp> {
        match self {
            Self::Current => None,
            Self::Next { begins } => Some(begins),
        }
    }

    /// Whether the window has yet to begin.
    #[must_use]
    pub fn is_next(self) -> bool {
        matches!(self, Self::Next { .. })
    }
}

/// An acquire that was sent earlier and abandoned, so that whatever it was lent is taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Voided {
    /// The id of the call.
    pub id: u64,
    /// Its [`Acquire::need`], which a bucket was charged at once. Where tokens of a window are set aside, some of it
    /// may have been meant to pay for what the node has spent of its entitlement.
    pub need: u64,
    /// Of a bucket, tokens that the acquire, or unanswered returns before it, reported as spent. They are spent whether
    /// or not the store executed those calls.
    pub reported: u64,
    /// Of a bucket, tokens that were spent since then. The rest of what the store has lent is free.
    pub spent: u64,
    /// Of a bucket, the id of this node's last acquire or return that was answered; 0 for none. If the store's
    /// account is older, all of it counts as spent.
    pub answered: u64,
}

/// A node's report about its permits of a concurrent limit. It replaces the node's last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupy {
    /// Permits that its clients hold. The store records them even above the limit.
    pub used: u64,
    /// Further permits, for waiters.
    pub need: u64,
    /// All permits that it would like, at least `used`. If these are fewer than it has, the rest is free for others. [`MAX_SLOTS`] of them
    /// say that it does not know how many it has: it keeps those, and is lent no more than it needs.
    ///
    /// [`MAX_SLOTS`]: super::limit::MAX_SLOTS
    pub want: u64,
    /// How long the permits stay the node's if it reports nothing more.
    pub lease: Micros,
}

/// What one node has spent or holds of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Tokens. Under GCRA, those that were spent and not reported.
    pub used: u64,
    /// `Counter::at` of the window. Under GCRA, the latest known TAT. 0 for nothing.
    pub at: Timestamp,
}

impl Known {
    /// The window is known.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.at.0 > 0
    }
}

/// The state of one limit in the store's terms. The meaning of the three numbers:
///
/// | algorithm | `used` | `prev` | `at` |
/// |---|---|---|---|
/// | gcra | lent, and not known to be spent | depth (us) of the bucket that was charged last; 0 = not known | theoretical arrival time (TAT); 0 = full bucket |
/// | fixed | lent in this window | lent ahead of the next | end of this window; 0 = none open |
/// | sliding | lent in this window | lent in the last, frozen | start of this window |
/// | concurrent | slots of all nodes | those that the node that asks had before | when those of the node that asks lapse |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// See the table above.
    pub used: u64,
    /// See the table above.
    pub prev: u64,
    /// See the table above.
    pub at: Timestamp,
}

impl Counter {
    /// No window is open, or the bucket is full.
    #[must_use]
    pub fn is_unopened(&self) -> bool {
        self.at.0 == 0
    }
}

/// The store's answer to a call: what it has lent, and the counters afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens that are lent, from 0 to `want`; or all permits that this node has now; or tokens that are credited.
    pub granted: u64,
    /// The answer is that of an earlier execution.
    pub replayed: bool,
    /// Nothing was done: this node has used a higher id for the key, because its clock was ahead in an earlier run; or the
    /// answer is `late`.
    pub outdated: bool,
    /// Nothing was done, because the call came outside of the time in which it may be executed: see [`Acquire::until`].
    pub late: bool,
    /// A replica has confirmed the grant (always true when `store.confirm` is off).
    pub confirmed: bool,
    /// A stored value was invalid, and was treated as missing.
    pub damaged: bool,
    /// The key's epoch. If it differs from the last one, the store has lost or reset the key.
    pub epoch: u64,
    /// The epoch began with a reset.
    pub reset: bool,
    /// Nodes that asked for this key in this or the last census window; at least 1.
    pub nodes: u32,
    /// The store's clock at the answer.
    pub now: Timestamp,
    /// The counters after the call, one per limit of the rule; the rest are zero. What is set aside for other nodes counts as
    /// used.
    pub counters: [Counter; MAX_LIMITS],
    /// Tokens of each window that are set aside for this node, or its part of a bucket: see [`Claim`].
    pub entitled: u64,
    /// Of a bucket, tokens that the node said it holds and may not keep, because others may spend them without the store.
    pub not_kept: u64,
}

/// Why a store gave no answer. It is data for the core, and never a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// It is unknown whether the call was executed.
    Unknown,
    /// The call was surely not executed: refused, breaker open, no route, table full.
    Away {
        /// The time since which this part of the store has not answered.
        since: Instant,
    },
    /// The call was not sent because too many were waiting: the store is busy, not lost.
    Busy {
        /// About how long the waiting calls need.
        wait: Micros,
    },
    /// The table of the embedded store is full of live keys.
    Full,
}
