//! The answer to a check: verdict, numbers, and why.

use std::num::NonZeroU64;

use super::time::{Micros, Timestamp};

/// May the request pass? It is no bool, because the services that came before return the same bool with opposite
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
    /// The request may pass; its cost has been charged (unless it was a peek).
    Allow,
    /// The request must not pass; nothing has been charged.
    Deny,
}

/// Why a decision is as it is (contract: field `reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Tokens were there.
    Ok,
    /// The limit is spent.
    Rate,
    /// The store is away and this node's share is spent.
    Share,
    /// The store is away and the policy says to deny then.
    Store,
    /// The cost can never pass: it is above what the limit ever holds.
    Cost,
    /// The policy blocks this key.
    Blocked,
    /// It would have been denied, but the policy only watches.
    Shadow,
    /// A bound of this node (keys, waiters) is reached.
    Overload,
}

/// What answered (contract: field `source`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Tokens or knowledge that this node already held.
    Lease,
    /// The store was asked for this very check.
    Store,
    /// What is known of the whole fleet's spending.
    Prefilter,
    /// This node's share, while the store is away.
    Share,
    /// The policy alone.
    Policy,
}

/// The answer to one check. The tightest limit of the policy fills the numbers; on a denial, the one
/// that denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request may pass.
    pub verdict: Verdict,
    /// Tokens the limit holds when it is whole.
    pub limit: u64,
    /// Tokens that are left; never above `limit`.
    pub remaining: u64,
    /// The wait after which this cost is admitted if nobody else spends. Only on a denial; `None`
    /// there means never.
    pub retry_after: Option<Micros>,
    /// The wait until the limit is whole again.
    pub reset_after: Micros,
    /// When the limit is whole again, on the store's clock.
    pub reset_at: Timestamp,
    /// Why.
    pub reason: Reason,
    /// What answered.
    pub source: Source,
    /// Which limit of the policy fills the numbers: an index into `Rule::limits`.
    pub limit_index: u8,
    /// The slot that an admission took of a concurrent limit, unique on this node: to be released.
    pub slot: Option<NonZeroU64>,
}

impl Reason {
    /// Every reason, in the order of its discriminants.
    pub const ALL: [Self; 8] =
        [Self::Ok, Self::Rate, Self::Share, Self::Store, Self::Cost, Self::Blocked, Self::Shadow, Self::Overload];

    /// The word users see.
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
    pub const ALL: [Self; 5] = [Self::Lease, Self::Store, Self::Prefilter, Self::Share, Self::Policy];

    /// The word users see.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lease => "lease",
            Self::Store => "store",
            Self::Prefilter => "prefilter",
            Self::Share => "share",
            Self::Policy => "policy",
        }
    }
}

impl Verdict {
    /// The word metrics and tables use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}
