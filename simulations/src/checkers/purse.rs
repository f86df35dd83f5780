//! **conservation**, key by key: a node admits no more of a key than it was lent and has not handed
//! back, and after a reset no more than it was lent since.
//!
//! What lapses is not taken off, so this is a bound and no balance; `books.rs` has the balance.

use std::collections::BTreeMap;

use rationd::core::call::Op;
use rationd::core::decision::{Source, Verdict};

use super::Found;
use super::notes::{Ids, Life, Lives};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Violation};
use crate::plan::Brain;

/// The checker.
#[derive(Debug)]
pub(super) struct Purse {
    /// Baselines keep no leases, or none that are called so.
    leases: bool,
    lives: Lives,
    lent: Ids,
    returned: Ids,
    held: BTreeMap<(Life, u32), u64>,
    found: Found,
}

impl Purse {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            leases: setting.plan.brain == Brain::Rationd,
            lives: Lives::default(),
            lent: Ids::default(),
            returned: Ids::default(),
            held: BTreeMap::new(),
            found: Found::default(),
        }
    }

    fn of(&mut self, request: &Request) -> &mut u64 {
        self.held.entry((self.lives.of(request.node), request.key)).or_default()
    }

    fn spend(&mut self, moment: Moment, request: &Request) {
        let held = self.of(request);
        let had = *held;
        *held = had.saturating_sub(request.cost);
        if had < request.cost {
            self.found.add("conservation", moment, || format!("{request:?} was admitted of {had} that were lent"));
        }
    }
}

impl Observer for Purse {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        match seen {
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                let life = (*node, *incarnation);
                let lends = matches!(call.op, Op::Acquire(_)) && grant.granted > 0;
                if lends && self.lent.is_first(life, call.id) {
                    *self.held.entry((life, *key)).or_default() += u64::from(grant.granted);
                }
            }
            Seen::Answered { request, decision, .. } if self.leases => match request.kind {
                Kind::Check if decision.verdict == Verdict::Allow => {
                    if matches!(decision.source, Source::Lease | Source::Store) {
                        self.spend(moment, request);
                    }
                }
                Kind::Reset if decision.source == Source::Store => *self.of(request) = 0,
                _ => {}
            },
            Seen::Called { node, key, call, .. } => {
                let life = self.lives.of(*node);
                // Of a refund, too: what the store takes back is not in the lease.
                let leaves = match call.op {
                    Op::Return { amount, .. } => amount.into(),
                    Op::Refund { amount } => amount,
                    _ => return,
                };
                if self.returned.is_first(life, call.id) {
                    let held = self.held.entry((life, *key)).or_default();
                    *held = held.saturating_sub(leaves);
                }
            }
            Seen::Asked(request) if request.kind == Kind::Refund => *self.of(request) += request.cost,
            _ => {}
        }
    }
}

impl Checker for Purse {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::History;

    #[test]
    fn more_than_was_lent_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Purse::new(&history.setting());
        history.settled(&mut checker, 0, 1, 4);
        history.settled(&mut checker, 1, 1, 4);
        history.check(&mut checker, 2, 4, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 3, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }
}
