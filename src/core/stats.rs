//! The counts of a shard: plain integers under the shard's lock, which are summed up when they are read.

use super::decision::{Decision, Reason, Source, Verdict};

/// Counts of one policy in one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    checks: [[[u64; Source::ALL.len()]; Reason::ALL.len()]; 2],
    /// Tokens that the store lent, or a peer.
    pub granted: u64,
    /// Lent tokens that admitted a check, or were lent on to a peer.
    pub spent: u64,
    /// Lent tokens that were returned.
    pub returned: u64,
    /// Lent tokens that were never spent, because their window ended or they lapsed.
    pub expired: u64,
    /// Checks that had to wait for the store.
    pub parked: u64,
    /// Tokens asked for in the latest refill.
    pub batch: u64,
    /// Admissions that left a tenth of the limit or less.
    pub near: u64,
}

/// Counts of one shard as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Keys in the shard.
    pub keys: u64,
    /// Keys evicted to make room, or forgotten when idle.
    pub evicted: u64,
    /// Checks that wait for the store.
    pub waiting: u64,
    /// Keys that are decided by this node's share, because their store server is away.
    pub degraded: u64,
    /// Grants that showed a loss of data in the store.
    pub lost_epochs: u64,
    /// Stored values that were invalid, and were treated as missing.
    pub damaged: u64,
}

impl ShardStats {
    /// Adds another shard's counts.
    pub fn add(&mut self, other: &Self) {
        self.keys += other.keys;
        self.evicted += other.evicted;
        self.waiting += other.waiting;
        self.degraded += other.degraded;
        self.lost_epochs += other.lost_epochs;
        self.damaged += other.damaged;
    }
}

impl PolicyStats {
    /// Counts a decision.
    pub fn count(&mut self, decision: &Decision) {
        self.checks[decision.verdict as usize][decision.reason as usize][decision.source as usize] += 1;
        self.near += u64::from(is_near(decision));
    }

    /// Removes a decision from the counts, because its request was denied by another key.
    pub fn uncount(&mut self, decision: &Decision) {
        let count = &mut self.checks[decision.verdict as usize][decision.reason as usize][decision.source as usize];
        *count = count.saturating_sub(1);
        self.near = self.near.saturating_sub(u64::from(is_near(decision)));
    }

    /// All counts of checks that are not zero.
    pub fn checks(&self) -> impl Iterator<Item = (Verdict, Reason, Source, u64)> + '_ {
        [Verdict::Allow, Verdict::Deny].into_iter().flat_map(move |verdict| {
            Reason::ALL.into_iter().flat_map(move |reason| {
                Source::ALL.into_iter().filter_map(move |source| {
                    let count = self.checks[verdict as usize][reason as usize][source as usize];
                    (count > 0).then_some((verdict, reason, source, count))
                })
            })
        })
    }

    /// Turns denials that were not enforced, as counted in `denied`, into admissions with the reason `shadow`.
    pub fn turn_to_shadow(&mut self, denied: &Self) {
        for (verdict, reason, source, count) in denied.checks() {
            let counted = &mut self.checks[verdict as usize][reason as usize][source as usize];
            *counted = counted.saturating_sub(count);
            self.checks[Verdict::Allow as usize][Reason::Shadow as usize][source as usize] += count;
        }
    }

    /// Adds another shard's counts of the same policy.
    pub fn add(&mut self, other: &Self) {
        for (verdict, reason, source, count) in other.checks() {
            self.checks[verdict as usize][reason as usize][source as usize] += count;
        }
        self.granted += other.granted;
        self.spent += other.spent;
        self.returned += other.returned;
        self.expired += other.expired;
        self.parked += other.parked;
        self.batch = self.batch.max(other.batch);
        self.near += other.near;
    }
}

/// An admission is near its limit when no more than this fraction of the limit is left after it. A larger fraction
/// would warn of keys that are never denied; a smaller one would warn too late. The description of
/// `rationd_checks_near_limit_total` names it.
const NEAR_PART: u64 = 10;

/// Whether an admission left so little that the next ones may be denied. A decision without a limit is never near it.
fn is_near(decision: &Decision) -> bool {
    decision.verdict == Verdict::Allow
        && decision.limit > 0
        && decision.remaining <= decision.limit / NEAR_PART
        && decision.reason != Reason::Shadow
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::policy::Plan;

    #[test]
    fn an_admission_is_near_the_limit_when_a_tenth_is_left() {
        let free = Plan::Unlimited.fixed_decision().expect("it is fixed");
        let left = |remaining| Decision { limit: 100, remaining, ..free };
        let mut stats = PolicyStats::default();
        stats.count(&free);
        stats.count(&left(11));
        stats.count(&Decision { verdict: Verdict::Deny, reason: Reason::Rate, ..left(0) });
        assert_eq!(stats.near, 0);
        stats.count(&left(10));
        stats.count(&left(0));
        assert_eq!(stats.near, 2);
        stats.uncount(&left(10));
        assert_eq!(stats.near, 1);
    }
}
