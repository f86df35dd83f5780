//! The keys of a run, numbered in the order in which they are first asked about.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rationd::core::key::Digest;
use rationd::core::policy::Rule;

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) bytes: Box<[u8]>,
    pub(super) digest: Digest,
}

/// All keys so far.
#[derive(Debug)]
pub(super) struct Keys {
    policies: Vec<Arc<str>>,
    list: Vec<Key>,
    by_rank: BTreeMap<(u32, u64, u32), u32>,
    /// Looked up, never walked through.
    by_digest: HashMap<u128, u32>,
}

impl Keys {
    pub(super) fn new(rules: &[Arc<Rule>]) -> Self {
        let policies = rules.iter().map(|rule| rule.policy.clone()).collect();
        Self { policies, list: Vec::new(), by_rank: BTreeMap::new(), by_digest: HashMap::new() }
    }

    /// The number of a policy's key.
    pub(super) fn id(&mut self, policy: u32, rank: u32, generation: u64) -> u32 {
        if let Some(id) = self.by_rank.get(&(policy, generation, rank)) {
            return *id;
        }
        let id = self.list.len() as u32; // far fewer than that
        let bytes = format!("k{rank}.{generation}").into_bytes().into_boxed_slice();
        let digest = Digest::of(&self.policies[policy as usize], &bytes);
        self.by_rank.insert((policy, generation, rank), id);
        self.by_digest.insert(digest.0, id);
        self.list.push(Key { bytes, digest });
        id
    }

    pub(super) fn get(&self, id: u32) -> &Key {
        &self.list[id as usize]
    }

    /// The number of a key by its digest.
    pub(super) fn find(&self, digest: Digest) -> u32 {
        self.by_digest[&digest.0]
    }

    /// The policy and number of the first keys.
    pub(super) fn first(&self, most: usize) -> Vec<(u32, u32)> {
        self.by_rank.iter().map(|((policy, _, _), id)| (*policy, *id)).take(most).collect()
    }
}
