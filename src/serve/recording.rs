//! What came to one shard since it was last asked, for `record.file`: a bounded list that the thread of the file takes.

use std::sync::Arc;

use self::file::{Event, KEY, policy_tag};
use crate::core::key::Digest;
use crate::core::time::Instant;

pub mod file;

/// Most arrivals of a shard that wait. They are taken fifty times a second, so one shard may take 400,000 in a second
/// until some are lost, and all shards together hold 32 MiB when the file stalls.
const MOST: usize = 8_192;

/// One arrival at a shard.
#[derive(Debug)]
pub struct Arrived {
    /// When it came.
    pub at: Instant,
    /// The digest of policy and key.
    pub digest: Digest,
    /// See [`policy_tag`].
    pub policy: u64,
    /// Tokens.
    pub cost: u64,
    /// What became of it.
    pub event: Event,
    /// The key's first bytes; empty where keys are not recorded.
    pub key: Box<[u8]>,
}

/// The arrivals of one shard.
#[derive(Debug)]
pub struct Recording {
    arrived: Vec<Arrived>,
    /// Those for which there was no room.
    lost: u64,
    with_keys: bool,
    /// The last policy and what stands for it, since most arrivals are of few policies.
    last: Option<(Arc<str>, u64)>,
}

impl Recording {
    /// An empty list.
    #[must_use]
    pub fn new(with_keys: bool) -> Self {
        Self { arrived: Vec::new(), lost: 0, with_keys, last: None }
    }

    /// Adds an arrival.
    pub fn add(&mut self, at: Instant, policy: &Arc<str>, (digest, key): (Digest, &[u8]), cost: u64, event: Event) {
        if self.arrived.len() >= MOST {
            self.lost += 1;
            return;
        }
        let policy = match &self.last {
            Some((known, tag)) if Arc::ptr_eq(known, policy) => *tag,
            _ => self.last.insert((policy.clone(), policy_tag(policy))).1,
        };
        let key = if self.with_keys { key[..key.len().min(KEY)].into() } else { Box::default() };
        self.arrived.push(Arrived { at, digest, policy, cost, event, key });
    }

    /// Moves all arrivals, and returns how many were lost.
    pub fn take(&mut self, into: &mut Vec<Arrived>) -> u64 {
        into.append(&mut self.arrived);
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        let (mut recording, policy) = (Recording::new(false), Arc::from("p"));
        for number in 0..MOST as u64 + 5 {
            recording.add(Instant(number), &policy, (Digest(1), b"k"), 1, Event::Admitted);
        }
        let mut taken = Vec::new();
        assert_eq!(recording.take(&mut taken), 5);
        assert_eq!((taken.len(), taken[0].at, taken[0].key.len()), (MOST, Instant(0), 0));
        assert_eq!(recording.take(&mut taken), 0);
    }
}
