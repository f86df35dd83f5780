//! The permits of concurrent limits as `lua/occupy.lua` counts them: how many each node has, and until when.
//!
//! A node reports how many permits its clients hold and how many it would like; its latest report counts. Says when the scripts'
//! key ends, and keeps its own. Part of `memory.rs`.

use std::collections::{BTreeMap, HashMap};

use super::excerpt::Occupied;
use super::turns::Secret;
use crate::core::call::{Counter, Grant, Occupy};
use crate::core::limit::{MAX_LIMITS, MAX_SLOTS};
use crate::core::time::Timestamp;

/// The permits of all keys.
#[derive(Debug, Default)]
pub(super) struct LentPermits {
    keys: HashMap<u128, KeyReports, Secret>,
}

/// The reports of all nodes about one key.
#[derive(Debug)]
struct KeyReports {
    records: BTreeMap<Box<str>, NodePermits>,
    /// When Redis forgets the key: with the last lease.
    expires: Timestamp,
}

/// A node's latest report, and the permits that it has.
#[derive(Clone, Copy, Debug)]
struct NodePermits {
    id: u64,
    permits: u64,
    at: Timestamp,
}

impl LentPermits {
    /// Answers the report `id` of `node` about a limit of `count` permits.
    pub(super) fn occupy(
        &mut self,
        now: Timestamp,
        node: &str,
        (digest, id): (u128, u64),
        count: u64,
        ask: &Occupy,
    ) -> Grant {
        let key = self.keys.entry(digest).or_insert_with(|| KeyReports { records: BTreeMap::new(), expires: now });
        key.records.retain(|name, record| record.at > now || **name == *node);
        let own = key.records.get(node).copied();
        let others = key.records.iter().filter(|(name, record)| ***name != *node && record.permits > 0);
        let (live, others) = others.fold((1, 0), |(live, permits), (_, record)| (live + 1, permits + record.permits));
        let had = own.filter(|own| own.at > now).map_or(0, |own| own.permits);
        let answer = |permits: u64, has: u64, at: Timestamp, replayed: bool, outdated: bool| {
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: others + has, prev: had, at };
            Grant {
                granted: permits,
                replayed,
                outdated,
                late: false,
                confirmed: true,
                damaged: false,
                epoch: 0,
                reset: false,
                nodes: live,
                now,
                counters,
                entitled: 0,
                not_kept: 0,
            }
        };
        match own {
            Some(own) if id != 0 && own.id == id => {
                let at = if had > 0 { own.at } else { Timestamp(0) };
                return answer(had, had, at, true, false);
            }
            Some(own) if id != 0 && own.id > id => return answer(0, had, Timestamp(0), false, true),
            _ => {}
        }
        let Occupy { used, need, want, lease } = *ask;
        let left = count.saturating_sub(others);
        let fair = if want < MAX_SLOTS { left.saturating_sub(used).div_ceil(u64::from(live)) } else { 0 };
        let part = need.max(fair);
        let permits = used.max(want.min(had)).max(want.min(left).min(used + part));
        let at = now + lease;
        key.records.insert(node.into(), NodePermits { id, permits, at });
        // Nodes that go by other settings may be lent permits for longer.
        let others = key.records.values().filter(|record| record.permits > 0);
        key.expires = others.map(|record| record.at).fold(at, Timestamp::max);
        answer(permits, permits, at, false, false)
    }

    /// Replaces all that is stored of a key.
    pub(super) fn put(&mut self, digest: u128, occupied: Option<&Occupied>) {
        let Some(occupied) = occupied else { return drop(self.keys.remove(&digest)) };
        let record = |&[id, permits, at]: &[u64; 3]| NodePermits { id, permits, at: Timestamp(at) };
        let records = occupied.nodes.iter().map(|(node, numbers)| (node.clone(), record(numbers))).collect();
        self.keys.insert(digest, KeyReports { records, expires: occupied.expires });
    }

    /// All that is stored of a key.
    pub(super) fn occupied(&self, digest: u128) -> Option<Occupied> {
        let key = self.keys.get(&digest)?;
        let numbers = |record: &NodePermits| [record.id, record.permits, record.at.0];
        let nodes = key.records.iter().map(|(node, record)| (node.clone(), numbers(record))).collect();
        Some(Occupied { expires: key.expires, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::Micros;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
    const LEASE: Micros = Micros(10_000_000);

    fn ask(permits: &mut LentPermits, now: Timestamp, digest: u128, id: u64) -> Grant {
        permits.occupy(now, "a", (digest, id), 5, &Occupy { used: 1, need: 0, want: 1, lease: LEASE })
    }

    #[test]
    fn what_is_put_is_all_that_there_is() {
        let (mut one, mut other) = (LentPermits::default(), LentPermits::default());
        ask(&mut one, NOW, 1, 7);
        let occupied = one.occupied(1);
        assert_eq!(occupied.as_ref().map(|occupied| occupied.expires), Some(NOW + LEASE));
        other.put(1, occupied.as_ref());
        assert_eq!(other.occupied(1), occupied);
        assert!(ask(&mut other, NOW, 1, 7).replayed);
        other.put(1, None);
        assert_eq!(other.occupied(1), None);
    }
}
