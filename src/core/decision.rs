//! The answer to a check: verdict, numbers, and why.

use std::num::NonZeroU64;

use super::time::{Micros, Timestamp};

/// The verdict of a check. It is no bool, because redis-cell and throttlecrab return the same bool with opposite
/// meanings: redis-cell's 1 is a denial, throttlecrab's an admission.
///
/// ```
/// use rationd::core::decision::Verdict;
///
/// let status = |verdict| match verdict {
///     Verdict::Allow => 200,
///     Verdict::Deny => 429,
/// };
/// assert_eq!(status(Verdict::Deny), 429);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is admitted, and its cost was charged (unless it was a peek).
    Allow,
    /// The request is denied, and nothing was charged.
    Deny,
}

/// The reason of a decision (field `reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There were enough tokens.
    Ok,
    /// The limit is spent.
    Rate,
    /// The store is away, and this node's share is spent.
    Share,
    /// The store is away, and the policy denies then.
    Store,
    /// The cost can never be admitted, because it is above what the limit ever has.
    Cost,
    /// The policy blocks this key.
    Blocked,
    /// The check would have been denied, but the policy is in shadow mode.
    Shadow,
    /// A bound of this node is reached (keys, waiters), or the store did not answer in time.
    Overload,
}

/// What a decision is based on (field `source`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Tokens or knowledge that this node already held.
    Lease,
    /// The store was asked for this check.
    Store,
    /// What is known of the whole fleet's spending.
    Prefilter,
    /// This node's share, while the store is away.
    Share,
    /// The policy alone, without counting.
    Policy,
    /// A peer that leases the key, which was asked for this very check.
    Peer,
}

/// The answer to one check. The numbers are those of the policy's tightest limit; on a denial, of the limit that
/// denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is admitted.
    pub verdict: Verdict,
    /// Tokens that the limit has when it is whole.
    pub limit: u64,
    /// Tokens that are left; never above `limit`.
    pub remaining: u64,
    /// The wait after which this cost is admitted if nobody else spends. Only on a denial, where `None` means never.
    pub retry_after: Option<Micros>,
    /// The time until the limit is whole again.
    pub reset_after: Micros,
    /// When the limit is whole again, on the store's clock.
    pub reset_at: Timestamp,
    /// The reason.
    pub reason: Reason,
    /// What the decision is based on.
    pub source: Source,
    /// The limit that the numbers are of: an index into `Rule::limits`.
    pub limit_index: u8,
    /// The permit that an admission took of a concurrent limit, unique on this node.
    pub slot: Option<NonZeroU64>,
    /// The epoch of the key as its node knew it, under which an admission was charged; 0 where it knew none.
    pub epoch: u64,
}

impl Reason {
    /// Every reason, in the order of its discriminants.
    pub const ALL: [Self; 8] =
        [Self::Ok, Self::Rate, Self::Share, Self::Store, Self::Cost, Self::Blocked, Self::Shadow, Self::Overload];

    /// The word for users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Rate => "rate",
            Self::Share => "share",
            Self::Store => "store",
            Self::Cost => "cost",
            Self::Blocked => "blocked",
            Self::Shadow => "shadow",
            Self::Overload => "overload",
        }
    }
}

impl Source {
    /// Every source, in the order of its discriminants.
    pub const ALL: [Self; 6] = [Self::Lease, Self::Store, Self::Prefilter, Self::Share, Self::Policy, Self::Peer];

    /// The word for users.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Store => "store",
            Self::Prefilter => "prefilter",
            Self::Share => "share",
            Self::Policy => "policy",
            Self::Peer => "peer",
        }
    }
}

impl Verdict {
    /// The word in metrics and tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}
