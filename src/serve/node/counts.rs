//! What a node reports of itself: counts, keys, and the tokens it holds. Part of `node.rs`.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Engine, Node};
use crate::core::answer::Standing;
use crate::core::key::Digest;
use crate::core::page::Place;
use crate::core::policy::Rule;
use crate::core::shard::{KeyInfo, Request};
use crate::core::stats::{PolicyStats, ShardStats};
use crate::core::time::Instant;

/// Keys that are listed under one lock of a shard, whose checks wait meanwhile.
const PART: usize = 256;

/// A position in the listing of this node's keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    cell: usize,
    place: Place,
}

impl Cursor {
    /// The cursor whose [`Self::number`] this is; 0 is the beginning.
    #[must_use]
    pub fn of(number: u128) -> Self {
        let place = Place::of(number & ((1 << Place::BITS) - 1));
        Self { cell: (number >> Place::BITS) as usize, place }
    }

    /// The cursor as a number for clients. Never 0 after a key.
    #[must_use]
    pub fn number(self) -> u128 {
        (self.cell as u128) << Place::BITS | self.place.number()
    }
}

impl Node {
    /// Counts of all shards together.
    #[must_use]
    pub fn stats(&self) -> (ShardStats, HashMap<Arc<str>, PolicyStats>) {
        let mut total = ShardStats::default();
        let mut policies: HashMap<Arc<str>, PolicyStats> = HashMap::new();
        for cell in &self.cells {
            let stats = match &cell.lock().engine {
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

    /// Up to `most` keys of this node, from a cursor on, each with the cursor after it. Fewer when the listing ends.
    /// `rule_of` gives the rule that a policy applies to a key now.
    #[must_use]
    pub fn keys(
        &self,
        now: Instant,
        from: Cursor,
        most: usize,
        rule_of: impl Fn(&str, &[u8]) -> Option<Arc<Rule>>,
    ) -> Vec<(Cursor, KeyInfo)> {
        let mut keys: Vec<(Cursor, KeyInfo)> = Vec::new();
        for (index, cell) in self.cells.iter().enumerate().skip(from.cell) {
            let mut place = if index == from.cell { from.place } else { Place::default() };
            loop {
                let left = most - keys.len();
                // The embedded store removes duplicates only within one call, so this asks for all that is wanted in
                // one.
                let (wanted, part) = match &mut cell.lock().engine {
                    Engine::Embedded(embedded) => (left, embedded.keys(self.store_time(now), place, left, &rule_of)),
                    Engine::Leasing(leasing) => (left.min(PART), leasing.shard.keys(now, place, left.min(PART))),
                };
                let is_over = part.len() < wanted || left == part.len();
                place = part.last().map_or(place, |(behind, _)| *behind);
                keys.extend(part.into_iter().map(|(place, info)| (Cursor { cell: index, place }, info)));
                if is_over {
                    break;
                }
            }
            if keys.len() == most {
                break;
            }
        }
        keys
    }

    /// The state of each limit of a key, as far as this node knows it.
    #[must_use]
    pub fn standings(&self, now: Instant, request: &Request<'_>) -> Option<Vec<Standing>> {
        if request.rule.is_concurrent() {
            return None;
        }
        match &mut self.cell(request.digest).lock().engine {
            Engine::Embedded(embedded) => embedded.standings(self.store_time(now), request),
            Engine::Leasing(leasing) => leasing.shard.standings(now, request.digest),
        }
    }

    /// Tokens that this node holds of a key; `None` when it does not know the key, or leases nothing.
    #[must_use]
    pub fn held(&self, now: Instant, digest: Digest) -> Option<u64> {
        match &mut self.cell(digest).lock().engine {
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
