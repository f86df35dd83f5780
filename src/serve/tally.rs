//! What a data thread counts: plain integers under the thread's own lock, summed at the scrape.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::decision::Decision;
use crate::core::stats::PolicyStats;

/// Counts of one thread.
#[derive(Debug, Default)]
pub struct Tally {
    /// Commands understood or refused.
    pub commands: u64,
    /// Error replies.
    pub errors: u64,
    /// Decisions that no shard was asked for: unlimited and blocked keys.
    pub policies: HashMap<Arc<str>, PolicyStats>,
}

impl Tally {
    /// Counts a decision of the policy alone.
    pub fn count(&mut self, policy: &Arc<str>, decision: &Decision) {
        match self.policies.get_mut(policy) {
            Some(stats) => stats.count(decision),
            None => self.policies.entry(policy.clone()).or_default().count(decision),
        }
    }
}
