//! What a node can tell of itself: counts, keys, what it holds. Part of `node.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Engine, Node};
use crate::core::key::Digest;
use crate::core::policy::Rule;
use crate::core::shard::KeyInfo;
use crate::core::stats::{PolicyStats, ShardStats};
use crate::core::time::Instant;

impl Node {
    /// Counts of all shards together.
    #[must_use]
    pub fn stats(&self) -> (ShardStats, HashMap<Arc<str>, PolicyStats>) {
        let mut total = ShardStats::default();
        let mut policies: HashMap<Arc<str>, PolicyStats> = HashMap::new();
        for cell in &self.cells {
            let engine = cell.lock();
            let stats = match &*engine {
                Engine::Embedded(embedded) => {
                    add(&mut policies, embedded.policy_stats());
                    embedded.stats()
                }
                Engine::Leasing(leasing) => {
                    add(&mut policies, leasing.shard.policy_stats());
                    leasing.shard.stats()
                }
            };
            total.add(&stats);
        }
        (total, policies)
    }

    /// Up to `most` keys that this node knows. `rule_of` gives the rule that a policy applies to a
    /// key now.
    #[must_use]
    pub fn keys(&self, now: Instant, most: usize, rule_of: impl Fn(&str, &[u8]) -> Option<Arc<Rule>>) -> Vec<KeyInfo> {
        let mut keys = Vec::new();
        for cell in &self.cells {
            let left = most - keys.len();
            if left == 0 {
                break;
            }
            let mut part = match &mut *cell.lock() {
                Engine::Embedded(embedded) => embedded.keys(self.store_time(now), left, &rule_of),
                Engine::Leasing(leasing) => leasing.shard.keys(now, left),
            };
            part.truncate(left);
            keys.append(&mut part);
        }
        keys
    }

    /// Tokens that this node holds of a key; `None`: it does not know it, or leases nothing.
    #[must_use]
    pub fn held(&self, now: Instant, digest: Digest) -> Option<u64> {
        match &mut *self.cell(digest).lock() {
            Engine::Embedded(_) => None,
            Engine::Leasing(leasing) => leasing.shard.held_of(now, digest),
        }
    }
}

fn add<'a>(total: &mut HashMap<Arc<str>, PolicyStats>, part: impl Iterator<Item = (&'a Arc<str>, &'a PolicyStats)>) {
    for (name, stats) in part {
        match total.get_mut(name) {
            Some(known) => known.add(stats),
            None => drop(total.insert(name.clone(), stats.clone())),
        }
    }
}
