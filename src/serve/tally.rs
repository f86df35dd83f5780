//! What a data thread counts: plain integers under the thread's own lock, summed at the scrape.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::decision::Decision;
use crate::core::key::Digest;
use crate::core::policy::Policy;
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
    /// Denials that shards counted and policies that only watch did not carry out.
    pub shadows: HashMap<Arc<str>, PolicyStats>,
}

impl Tally {
    /// Counts a decision of the policy alone.
    pub fn count(&mut self, policy: &Arc<str>, decision: &Decision) {
        count(&mut self.policies, policy, decision);
    }

    /// `decision` of a shard as the policy carries it out; counted if that differs.
    pub fn enforced(&mut self, policy: &Policy, digest: Digest, decision: Decision, charged: bool) -> Decision {
        let enforced = policy.enforced(digest, decision);
        if charged && enforced.reason != decision.reason {
            count(&mut self.shadows, &policy.name, &decision);
        }
        enforced
    }
}

fn count(stats: &mut HashMap<Arc<str>, PolicyStats>, policy: &Arc<str>, decision: &Decision) {
    match stats.get_mut(policy) {
        Some(stats) => stats.count(decision),
        None => stats.entry(policy.clone()).or_default().count(decision),
    }
}
