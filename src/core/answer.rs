//! Computes the numbers of a decision from the counters of a rule's limits.
//!
//! Pure arithmetic over [`Counter`]s that were rolled to `now` by the store's clock. Called by the shard and by the
//! embedded store, so that both answer alike.

use super::call::Counter;
use super::decision::{Decision, Reason, Source, Verdict};
use super::limit::MAX_LIMITS;
use super::rule::{OnStoreLoss, Rule};
use super::time::{Instant, Micros, Timestamp};

/// The outcome of a check, before its numbers are filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution {
    /// The verdict.
    pub verdict: Verdict,
    /// The reason.
    pub reason: Reason,
    /// What the decision is based on.
    pub source: Source,
    /// The wait to report, if it is not computed from the counters.
    pub retry_after: Option<Micros>,
}

impl Resolution {
    /// Allowed.
    #[must_use]
    pub const fn allow(source: Source) -> Self {
        Self { verdict: Verdict::Allow, reason: Reason::Ok, source, retry_after: None }
    }

    /// A denial whose wait is computed from the counters.
    #[must_use]
    pub const fn deny(reason: Reason, source: Source) -> Self {
        Self { verdict: Verdict::Deny, reason, source, retry_after: None }
    }

    /// The same outcome with a given wait.
    #[must_use]
    pub const fn after(mut self, wait: Micros) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

/// The state of one limit of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Tokens that are left; never more than the limit has.
    pub remaining: u64,
    /// The time until the limit is whole again.
    pub reset_after: Micros,
}

/// The state of each limit of a rule at `now`, in order.
#[must_use]
pub fn standings(rule: &Rule, counters: &[Counter], now: Timestamp) -> Vec<Standing> {
    let each = rule.limits.iter().zip(counters).map(|(limit, counter)| Standing {
        remaining: counter.left(limit, now).min(limit.capacity()),
        reset_after: counter.whole_at(limit, now).since(now),
    });
    each.collect()
}

/// Fills in a decision. `counters` are those after the decision, with tokens that this node still holds counted as
/// left; `cost` is what was asked for.
///
/// # Panics
/// Never: a rule has at least one limit.
#[must_use]
pub fn decision(rule: &Rule, counters: &[Counter], now: Timestamp, cost: u64, ending: Resolution) -> Decision {
    let denied = ending.verdict == Verdict::Deny && ending.reason != Reason::Cost;
    // With one limit there is nothing to pick by the wait.
    let waits = denied && (rule.limits.len() > 1 || ending.retry_after.is_none());
    let mut pick = (0, u64::MAX, Micros::ZERO);
    for (index, (limit, counter)) in rule.limits.iter().zip(counters).enumerate() {
        let left = counter.left(limit, now).min(limit.capacity());
        let wait = if waits { counter.wait(limit, now, cost).unwrap_or(Micros::ZERO) } else { Micros::ZERO };
        // On a denial, the limit with the longest wait is shown; otherwise the one with the fewest tokens left.
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
        epoch: 0,
    }
}

/// The outcome of a check that a bound of this node turns away for `wait`.
pub(super) fn turned_away(rule: &Rule, wait: Micros) -> Resolution {
    match rule.on_store_loss {
        OnStoreLoss::Allow => Resolution { reason: Reason::Overload, ..Resolution::allow(Source::Policy) },
        _ => Resolution::deny(Reason::Overload, Source::Policy).after(wait),
    }
}

/// The decision about a key for which there is no room, so that nothing is known of it.
pub(super) fn overload(rule: &Rule, now: Instant, cost: u64) -> Decision {
    let counters = [Counter::default(); MAX_LIMITS];
    let mut decision = decision(rule, &counters, Timestamp(now.0), cost, turned_away(rule, Micros::from_secs(1)));
    if decision.verdict == Verdict::Deny {
        decision.remaining = 0;
    }
    decision
}
