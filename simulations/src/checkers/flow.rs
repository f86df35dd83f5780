//! Whether the store's count of a key can be reconstructed: no call is under way, no call of this window was lost,
//! and no node left with tokens. Notes for `tally.rs`; judges nothing.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};

use crate::maps::Numbered;
use crate::observe::{Moment, Seen};

/// Fewer keys than this may have to make room.
const ROOM: u32 = 100;

/// One key.
#[derive(Clone, Debug, Default)]
struct Key {
    /// Calls under way, by node and id.
    calls: BTreeMap<(u32, u64), ()>,
    /// True time when something of it was lost last, or may have been.
    lost: u64,
}

/// All keys.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// No key has to make room: what was lent to it ahead would lapse.
    is_roomy: bool,
    keys: Numbered<Key>,
    /// The same of all keys.
    lost: u64,
}

impl Flow {
    pub(super) fn new(max_keys: u32) -> Self {
        Self { is_roomy: max_keys >= ROOM, keys: Numbered::default(), lost: 0 }
    }

    /// Since when nothing of the key was lost, if nothing is under way.
    pub(super) fn still_since(&mut self, key: u32) -> Option<u64> {
        let key = self.keys.of(key);
        (self.is_roomy && key.calls.is_empty()).then_some(key.lost.max(self.lost))
    }

    /// What the store counts of a key is not all there.
    pub(super) fn lose(&mut self, key: u32, moment: Moment) {
        self.keys.of(key).lost = moment.at;
    }

    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Called { node, key, call, sent: true } => {
                self.keys.of(*key).calls.insert((*node, call.id), ());
            }
            Seen::Settled { node, key, call, grant, .. } => {
                self.keys.of(*key).calls.remove(&(*node, call.id));
                if grant.is_none_or(|grant| is_in_vain(call, grant)) {
                    self.lose(*key, moment);
                }
            }
            Seen::Executed { key, call, grant, .. } if is_in_vain(call, grant) => self.lose(*key, moment),
            // What a share admitted the store is charged later.
            Seen::Answered { request, decision, .. }
                if decision.source == Source::Share && decision.verdict == Verdict::Allow =>
            {
                self.lose(request.key, moment);
            }
            Seen::Left { .. } | Seen::Joined { .. } | Seen::Begins(_) | Seen::Ends(_) => self.lost = moment.at,
            _ => {}
        }
    }
}

/// The store did not take what a node handed back.
fn is_in_vain(call: &Call, grant: &Grant) -> bool {
    match call.op {
        Op::Return { amount, .. } => grant.granted < amount,
        Op::Refund { amount, .. } => grant.granted < amount,
        Op::Acquire(_) => grant.outdated || !grant.confirmed,
        Op::Peek | Op::Reset | Op::Occupy(_) => false,
    }
}
