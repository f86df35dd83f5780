//! **static-shares**: what one node admits on its share stays below 95 % of each limit, in every
//! window and over every interval.
//!
//! What all nodes together admit depends on how many each of them believes that there are: in this
//! version what the store last counted for the key, which may be less than who ask when it is gone.

use std::collections::{BTreeMap, BTreeSet};

use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::Algorithm;

use super::Found;
use super::window::Count;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};

/// Shares in parts of a million: 95 %.
const MOST_PPM: u64 = 950_000;

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// By key, node and the node's incarnation.
    keys: BTreeMap<(u32, u32, u64), Vec<Count>>,
    incarnations: BTreeMap<u32, u64>,
    /// Who has had an answer of the store about the key, and so knows the windows of its clock.
    informed: BTreeSet<(u32, u32, u64)>,
    /// The clocks of masters agree.
    agree: bool,
    found: Found,
}

impl Shares {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { agree: setting.plan.redis.skew.0 <= 1_000, ..Self::default() }
    }
}

impl Observer for Shares {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Joined { node, incarnation } = seen {
            self.incarnations.insert(*node, *incarnation);
        }
        if let Seen::Settled { node, incarnation, key, grant: Some(_), .. } = seen {
            self.informed.insert((*key, *node, *incarnation));
        }
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        let on_share = decision.source == Source::Share && decision.verdict == Verdict::Allow;
        if request.kind != Kind::Check || !on_share {
            return;
        }
        let incarnation = self.incarnations.get(&request.node).copied().unwrap_or(0);
        let informed = self.agree && self.informed.contains(&(request.key, request.node, incarnation));
        let counts = self.keys.entry((request.key, request.node, incarnation)).or_default();
        counts.resize(rule.limits.len(), Count::default());
        for (limit, count) in rule.limits.iter().zip(counts) {
            if limit.algorithm == Algorithm::FixedFromFirst {
                continue;
            }
            count.roll(limit, store.0);
            count.admit(limit, request.cost);
            let most = limit.capacity() * MOST_PPM / 1_000_000;
            let over = match limit.algorithm {
                Algorithm::Gcra => count.excess(limit, store.0, 0) > 0,
                // A node knows a boundary to a trip or so: what it spends there may be of the next window.
                _ if informed => count.used > most + most / 20 + 2,
                // Its windows lie across those of the store.
                _ => count.used > 2 * most,
            };
            if over {
                let used = count.used;
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: {used} on the share of {limit:?}, wanted {most} at most")
                });
            }
        }
    }
}

impl Checker for Shares {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_share_of_more_is_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = Shares::new(&history.setting());
        checker.informed.insert((0, 0, 0));
        history.check(&mut checker, 1, 95, Source::Share, true);
        history.check(&mut checker, SECOND, 95, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, SECOND + 1, 7, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }
}
