//! The permits of concurrent limits as `lua/occupy.lua` counts them: how many each node has, and until when.
//!
//! A node reports how many permits its clients hold and how many it would like; its latest report counts. Part of
//! `memory.rs`.

use std::collections::{BTreeMap, HashMap};

use crate::core::call::{Counter, Grant, Occupy};
use crate::core::limit::MAX_LIMITS;
use crate::core::time::Timestamp;

/// The permits of all keys.
#[derive(Debug, Default)]
pub(super) struct Slots {
    keys: HashMap<u128, BTreeMap<Box<str>, Record>>,
}

/// A node's latest report, and the permits that it has.
#[derive(Clone, Copy, Debug)]
struct Record {
    id: u64,
    slots: u64,
    at: Timestamp,
}

impl Slots {
    /// Answers the report `id` of `node` about a limit of `count` permits.
    pub(super) fn occupy(
        &mut self,
        now: Timestamp,
        node: &str,
        (digest, id): (u128, u64),
        count: u64,
        ask: &Occupy,
    ) -> Grant {
        let key = self.keys.entry(digest).or_default();
        key.retain(|name, record| record.at > now || **name == *node);
        let own = key.get(node).copied();
        let others = key.iter().filter(|(name, record)| ***name != *node && record.slots > 0);
        let (live, others) = others.fold((1, 0), |(live, slots), (_, record)| (live + 1, slots + record.slots));
        let had = own.filter(|own| own.at > now).map_or(0, |own| own.slots);
        let answer = |slots: u64, had: u64, at: Timestamp, replayed: bool, outdated: bool| {
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: others + had, prev: 0, at };
            Grant {
                granted: slots,
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
        let part = need.max(left.saturating_sub(used).div_ceil(u64::from(live)));
        let slots = used.max(want.min(had)).max(want.min(left).min(used + part));
        let at = now + lease;
        key.insert(node.into(), Record { id, slots, at });
        answer(slots, slots, at, false, false)
    }
}
