//! From the counters of a rule's limits to the numbers of a decision.
//!
//! Pure arithmetic over [`Counter`]s that have been rolled to `now` (the store's clock). Called by
//! the shard and by the embedded store, so both answer alike.

use super::call::Counter;
use super::decision::{Decision, Reason, Source, Verdict};
use super::limit::MAX_LIMITS;
use super::rule::{OnStoreLoss, Rule};
use super::time::{Instant, Micros, Timestamp};

/// How a check ended, before its numbers are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// Whether it may pass.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// What answered.
    pub source: Source,
    /// The wait to report instead of what the counters say.
    pub retry_after: Option<Micros>,
}

impl Resolution {
    /// Allowed.
    #[must_use]
    pub const fn allow(source: Source) -> Self {
        Self { verdict: Verdict::Allow, reason: Reason::Ok, source, retry_after: None }
    }

    /// Denied; the counters say for how long.
    #[must_use]
    pub const fn deny(reason: Reason, source: Source) -> Self {
        Self { verdict: Verdict::Deny, reason, source, retry_after: None }
    }

    /// The same, with a wait of its own.
    #[must_use]
    pub const fn after(mut self, wait: Micros) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

/// One limit of a key, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Tokens that are left; never above what the limit holds.
    pub remaining: u64,
    /// The wait until it is whole again.
    pub reset_after: Micros,
}

/// How each limit of a rule stands at `now`, in order.
#[must_use]
pub fn standings(rule: &Rule, counters: &[Counter], now: Timestamp) -> Vec<Standing> {
    let each = rule.limits.iter().zip(counters).map(|(limit, counter)| Standing {
        remaining: counter.left(limit, now).min(limit.capacity()),
        reset_after: counter.whole_at(limit, now).since(now),
    });
    each.collect()
}

/// Fills in a decision. `counters` are the limits' counters as they stand after the decision, less
/// whatever this node still holds of them; `cost` is what was asked for.
///
/// # Panics
/// Never: a rule has at least one limit.
#[must_use]
pub fn decision(rule: &Rule, counters: &[Counter], now: Timestamp, cost: u64, ending: Resolution) -> Decision {
    let denied = ending.verdict == Verdict::Deny && ending.reason != Reason::Cost;
    let mut pick = (0, u64::MAX, Micros::ZERO);
    for (index, (limit, counter)) in rule.limits.iter().zip(counters).enumerate() {
        let left = counter.left(limit, now).min(limit.capacity());
        let wait = if denied { counter.wait(limit, now, cost).unwrap_or(Micros::ZERO) } else { Micros::ZERO };
        // On a denial the limit with the longest wait denied; otherwise the smallest rest is the tightest.
        if index == 0 || wait > pick.2 || (wait == pick.2 && left < pick.1) {
            pick = (index, left, wait);
        }
    }
    let (index, remaining, wait) = pick;
    let (limit, counter) = (&rule.limits[index], &counters[index]);
    let reset_at = counter.whole_at(limit, now);
    Decision {
        verdict: ending.verdict,
        limit: limit.capacity(),
        remaining,
        retry_after: denied.then(|| ending.retry_after.unwrap_or(wait).max(Micros(1))),
        reset_after: reset_at.since(now),
        reset_at,
        reason: ending.reason,
        source: ending.source,
        limit_index: index as u8, // at most MAX_LIMITS
        slot: None,
    }
}

/// The ending of a check that a bound of this node turns away, for that long.
pub(super) fn turned_away(rule: &Rule, wait: Micros) -> Resolution {
    match rule.on_store_loss {
        OnStoreLoss::Allow => Resolution { reason: Reason::Overload, ..Resolution::allow(Source::Policy) },
        _ => Resolution::deny(Reason::Overload, Source::Policy).after(wait),
    }
}

/// What a check is answered of a key that there is no room for: nothing is known of it.
pub(super) fn overload(rule: &Rule, now: Instant, cost: u64) -> Decision {
    let counters = [Counter::default(); MAX_LIMITS];
    let mut decision = decision(rule, &counters, Timestamp(now.0), cost, turned_away(rule, Micros::from_secs(1)));
    if decision.verdict == Verdict::Deny {
        decision.remaining = 0;
    }
    decision
}
