//! What a shard counts: plain integers under the shard's lock, summed by whoever scrapes.

use super::decision::{Decision, Reason, Source, Verdict};

/// Counts of one policy in one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyStats {
    checks: [[[u64; 5]; 8]; 2],
    /// Tokens that the store lent.
    pub granted: u64,
    /// Lent tokens that admitted a check.
    pub spent: u64,
    /// Lent tokens handed back.
    pub returned: u64,
    /// Lent tokens whose window ended, or that lapsed, unspent.
    pub expired: u64,
    /// Checks that had to wait for the store.
    pub parked: u64,
    /// Tokens asked for in the latest refill.
    pub batch: u64,
}

/// Counts of one shard as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Keys held.
    pub keys: u64,
    /// Keys evicted to make room, or forgotten when idle.
    pub evicted: u64,
    /// Checks that wait for the store now.
    pub waiting: u64,
    /// Keys that live on this node's share, because their part of the store is away.
    pub degraded: u64,
    /// Grants of a store that had lost what it knew.
    pub lost_epochs: u64,
    /// Stored values that made no sense and were taken as missing.
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
    }

    /// A decision that came to nothing: it is not counted any more.
    pub fn uncount(&mut self, decision: &Decision) {
        let count = &mut self.checks[decision.verdict as usize][decision.reason as usize][decision.source as usize];
        *count = count.saturating_sub(1);
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

    /// Moves denials that were not carried out, as counted in `denied`, to allowed shadows.
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
    }
}
