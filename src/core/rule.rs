//! The rule for a key: the limits that apply, or that none apply.

use std::sync::Arc;

use super::decision::{Decision, Reason, Source, Verdict};
use super::gcra;
use super::key::Digest;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::time::{Micros, Timestamp};

/// What to do with a key whose store server is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreLoss {
    /// Go on within this node's share of the limit.
    #[default]
    Share,
    /// Go on within what the store has set aside for this node, as far as [`Rule::is_entitled`], or has lent it, as far as
    /// [`Rule::is_entitled_concurrent`]; else as [`Self::Share`].
    Entitled,
    /// Admit everything.
    Allow,
    /// Deny everything.
    Deny,
}

/// The limits that apply to a key, all or none, and what to do while the store is away. Shared and immutable.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The policy's name. It is part of the key's digest, and a label of metrics.
    pub policy: Arc<str>,
    /// One to [`MAX_LIMITS`] limits.
    pub limits: Box<[Limit]>,
    /// What to do while the store is away.
    pub on_store_loss: OnStoreLoss,
}

/// What a policy says of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Its limits apply.
    Limited(Arc<Rule>),
    /// Nothing is limited.
    Unlimited,
    /// Every check is denied.
    Blocked,
}

/// The longest window of which tokens are set aside. A node that loses the store admits nothing new until the window in
/// which that happens has ended, and clients should not wait for longer than this. Of a concurrent limit it is the longest time of a slot: in
/// the last of it before the end of a lease a node gives out none.
const LONGEST_ENTITLED: Micros = Micros::from_secs(60);

/// The most tokens of a limit of which some are set aside: products of two such numbers are exact in the scripts.
const MOST_ENTITLED: u64 = 1 << 26;

impl Rule {
    /// Whether the store sets aside, for each node, what that may admit without the store: see
    /// `docs/decisions/0013-entitlements.md`. That is so for one bucket alone, and for one limit with windows of a minute at most, fixed,
    /// from the first request or sliding.
    #[must_use]
    pub fn is_entitled(&self) -> bool {
        self.on_store_loss == OnStoreLoss::Entitled && can_be_entitled(&self.limits)
    }

    /// Whether the store does so for a bucket.
    #[must_use]
    pub fn is_entitled_bucket(&self) -> bool {
        self.is_entitled() && self.limits[0].algorithm == Algorithm::Gcra
    }

    /// Whether the store does so for a fixed or sliding window.
    #[must_use]
    pub fn is_entitled_window(&self) -> bool {
        self.is_entitled() && matches!(self.limits[0].algorithm, Algorithm::Fixed | Algorithm::Sliding)
    }

    /// Whether the store does so for a window that opens with the first request.
    #[must_use]
    pub fn is_entitled_from_first(&self) -> bool {
        self.is_entitled() && self.limits[0].algorithm == Algorithm::FixedFromFirst
    }

    /// Whether what a node admits without the store can be paid by the store alone, because the tokens stay set aside until then.
    #[must_use]
    pub fn owes_store_alone(&self) -> bool {
        self.is_entitled_window() || self.is_entitled_from_first()
    }

    /// Whether the store does so for a sliding window.
    #[must_use]
    pub fn is_entitled_sliding(&self) -> bool {
        self.is_entitled() && self.limits[0].algorithm == Algorithm::Sliding
    }

    /// Whether a node that has lost the store gives out only slots that it was lent before, which nobody else is lent until they have ended:
    /// see `docs/decisions/0013-entitlements.md`. That is so for a concurrent limit whose slots end after a minute at most.
    #[must_use]
    pub fn is_entitled_concurrent(&self) -> bool {
        self.on_store_loss == OnStoreLoss::Entitled && has_short_slots(&self.limits)
    }

    /// Whether a node goes on within a part of the limits while the store is away.
    #[must_use]
    pub fn has_share(&self) -> bool {
        matches!(self.on_store_loss, OnStoreLoss::Share | OnStoreLoss::Entitled)
    }

    /// How many units ([`gcra::UNIT`]) a period of accounts has. It is one where parts are set aside: a node that has
    /// not called for a period counts as silent there, so a short period finds out sooner.
    #[must_use]
    pub fn account_units(&self) -> u64 {
        if self.is_entitled_bucket() { 1 } else { gcra::units(&self.limits) }
    }

    /// How often what is held of a bucket must be accounted for.
    #[must_use]
    pub fn account_period(&self) -> Micros {
        Micros(self.account_units() * gcra::UNIT.0)
    }

    /// The longest that tokens of a bucket can be lent without being accounted for.
    #[must_use]
    pub fn lease_life(&self) -> Micros {
        gcra::lease_life(self.account_units())
    }

    /// The rule of an anonymous policy with these limits.
    ///
    /// # Panics
    /// When there is no limit or more than [`MAX_LIMITS`]: the caller writes the list.
    #[must_use]
    pub fn of(policy: &str, limits: &[Limit]) -> Self {
        assert!((1..=MAX_LIMITS).contains(&limits.len()), "a rule has 1 to {MAX_LIMITS} limits");
        Self { policy: policy.into(), limits: limits.into(), on_store_loss: OnStoreLoss::Share }
    }

    /// A hash of its limits, by which two nodes see whether theirs are the same.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let numbers = |limit: &Limit| [limit.algorithm as u64, limit.count, limit.period.0, limit.burst];
        let bytes: Vec<u8> = self.limits.iter().flat_map(numbers).flat_map(u64::to_le_bytes).collect();
        Digest::of(&self.policy, &bytes).0 as u64
    }

    /// Whether it has a concurrent limit.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        self.limits[0].algorithm == Algorithm::Concurrent
    }
}

/// Whether these limits are a concurrent one of which a node may be lent slots for so long that clients cannot outlast it.
#[must_use]
pub(super) fn has_short_slots(limits: &[Limit]) -> bool {
    matches!(limits, [limit] if limit.algorithm == Algorithm::Concurrent && limit.period <= LONGEST_ENTITLED)
}

/// Whether tokens of these limits can be set aside.
#[must_use]
pub(super) fn can_be_entitled(limits: &[Limit]) -> bool {
    let fits = |limit: &Limit| match limit.algorithm {
        Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Sliding => limit.period <= LONGEST_ENTITLED,
        algorithm => algorithm == Algorithm::Gcra,
    };
    matches!(limits, [limit] if fits(limit) && limit.count.max(limit.burst) <= MOST_ENTITLED)
}

impl Plan {
    /// The decision of a plan without limits; `None` where limits apply.
    #[must_use]
    pub fn fixed_decision(&self) -> Option<Decision> {
        let (verdict, reason) = match self {
            Self::Limited(_) => return None,
            Self::Unlimited => (Verdict::Allow, Reason::Ok),
            Self::Blocked => (Verdict::Deny, Reason::Blocked),
        };
        Some(Decision {
            verdict,
            limit: 0,
            remaining: 0,
            retry_after: None,
            reset_after: Micros::ZERO,
            reset_at: Timestamp::default(),
            reason,
            source: Source::Policy,
            limit_index: 0,
            slot: None,
            epoch: 0,
        })
    }
}
