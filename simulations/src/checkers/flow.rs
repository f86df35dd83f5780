//! Knows whether the store's count of a key can be reconstructed: no call is under way, no call of this window was
//! lost, and no node left with tokens. It judges nothing, and serves `tally.rs`.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};

use crate::maps::Numbered;
use crate::observe::{Moment, Seen};

/// A table with room for fewer keys may have to drop some.
const ROOM: u32 = 100;

/// One key.
#[derive(Clone, Debug, Default)]
struct Key {
    /// Calls under way, by node and id.
    calls: BTreeMap<(u32, u64), ()>,
    /// When tokens of it were last lost, or may have been, in true time.
    lost: u64,
}

/// All keys.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// Whether no key is ever dropped. If one were, its tokens of the next window would lapse.
    is_roomy: bool,
    keys: Numbered<Key>,
    /// When tokens of any key may last have been lost.
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

    /// Notes that tokens of a key were lost.
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
            // The store is charged later for admissions on a share.
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

/// Whether tokens of the call were lost: the store did not take all that was handed back, or did not confirm a grant.
fn is_in_vain(call: &Call, grant: &Grant) -> bool {
    match call.op {
        Op::Return { amount, .. } => grant.granted < amount,
        Op::Refund { amount, .. } => grant.granted < amount,
        Op::Acquire(_) => grant.outdated || !grant.confirmed,
        Op::Peek | Op::Reset | Op::Occupy(_) => false,
    }
}
