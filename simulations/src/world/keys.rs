//! The keys of a run, numbered in the order of their first requests.

use std::sync::Arc;

use rationd::core::key::Digest;
use rationd::core::policy::Rule;
use rationd::store::script;

use crate::maps::Map;

/// Prefix of all keys in Redis.
pub(super) const PREFIX: &str = "s";

/// The name of a key's hash.
pub(super) fn hash_of(digest: Digest) -> String {
    script::key(PREFIX, digest)
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) bytes: Box<[u8]>,
    pub(super) digest: Digest,
    pub(super) policy: u32,
    rank: Rank,
}

/// A policy, a generation, and a rank in it.
type Rank = (u32, u64, u32);

/// All keys so far.
#[derive(Debug)]
pub(super) struct Keys {
    policies: Vec<Arc<str>>,
    list: Vec<Key>,
    by_rank: Map<Rank, u32>,
    by_digest: Map<u128, u32>,
}

impl Keys {
    pub(super) fn new(rules: &[Arc<Rule>]) -> Self {
        let policies = rules.iter().map(|rule| rule.policy.clone()).collect();
        Self { policies, list: Vec::new(), by_rank: Map::default(), by_digest: Map::default() }
    }

    /// The number of a policy's key.
    pub(super) fn id(&mut self, policy: u32, rank: u32, generation: u64) -> u32 {
        let place = (policy, generation, rank);
        if let Some(id) = self.by_rank.get(&place) {
            return *id;
        }
        let id = self.list.len() as u32; // far fewer than that
        let bytes = format!("k{rank}.{generation}").into_bytes().into_boxed_slice();
        let digest = Digest::of(&self.policies[policy as usize], &bytes);
        self.by_rank.insert(place, id);
        self.by_digest.insert(digest.0, id);
        self.list.push(Key { bytes, digest, policy, rank: place });
        id
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn get(&self, id: u32) -> &Key {
        &self.list[id as usize]
    }

    /// The number of a key by its digest.
    pub(super) fn find(&self, digest: Digest) -> u32 {
        self.by_digest[&digest.0]
    }

    /// The policies and numbers of the most popular keys.
    pub(super) fn first(&self, most: usize) -> Vec<(u32, u32)> {
        let mut ranks: Vec<_> = self.list.iter().map(|key| key.rank).zip(0..).collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|((policy, _, _), id)| (policy, id)).take(most).collect()
    }
}
