//! What nodes that hear of each other may do together.
//!
//! **static-shares**: what all of them admit on their shares in one window stays below the limit, in
//! whatever way the fleet is torn. **prefilter**: nobody is denied by what peers told of a window whom
//! the store would have admitted: the fleet had admitted all of the limit in it, or the store had lent
//! all of it (what was lent and lapsed counts there, and what was handed back does not); and not again in a window in which the store has
//! lent in spite of it, unless it had lost what it knew.

use std::sync::Arc;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::Alone;
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Violation};
use crate::plan::What;

static OFF: Exemption = Exemption::new(
    "no gossip, clocks that differ, or limits that change",
    "Nodes that do not hear of each other know nobody to share with; by clocks that differ windows are not the same, and under a change limits are not. Of these runs nothing is judged.",
);
static EDGES: Exemption = Exemption::new("near a boundary", "What is spent within 5 ms of it may be of either window.");
static SHAPES: Exemption = Exemption::new(
    "buckets and windows from the first request",
    "A share of them has no window that is common to all nodes.",
);
static LIARS: Exemption = Exemption::new("runs with a liar", "What it tells is not so, and denies others on purpose.");
static FORGETFUL: Exemption = Exemption::new(
    "a store that forgets",
    "It lends again what peers know to be spent: the most that it showed counts, and that it has lent refutes nobody.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "together.rs",
    invariants: &["static-shares", "prefilter"],
    proves: "What all nodes together admit on shares in one window stays below the limit; and nobody is denied by what peers told of a window of which the store had more.",
    judges: "Shares: fixed and sliding windows, several limits. Denials by peers: one fixed window.",
    exemptions: &[&OFF, &EDGES, &SHAPES, &LIARS, &FORGETFUL],
    mutant: Some("merge-adds"),
};

/// What is spent so near to a boundary may be of either window.
const EDGE: u64 = 5_000;

/// A key, a limit's place, and a window's number.
type Place = (u32, usize, u64);

/// The checker.
#[derive(Debug)]
pub(super) struct Together {
    /// Nodes hear of each other, masters' clocks agree and limits stay as they are.
    is_on: bool,
    lies: bool,
    shared: Map<Place, u64>,
    holds: Alone,
    /// The limits of each policy.
    rules: Vec<Arc<Rule>>,
    /// By the end of an aligned window, as decisions told it.
    admitted: Map<(u32, u64), u64>,
    /// What the store has shown to be used, by the same: in its last answer, and the most.
    shown: Map<(u32, u64), (u64, u64)>,
    /// By key, node and end of the window: the store lent after peers had told that all was spent.
    refuted: Map<(u32, u32, u64), bool>,
    /// Windows of which the store has lost what it knew.
    forgetful: Set<(u32, u64)>,
    /// The store forgets nothing.
    remembers: bool,
    found: Found,
}

impl Together {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let has = |wanted: fn(&What) -> bool| plan.faults.iter().any(|fault| wanted(&fault.what));
        let is_on =
            plan.gossip.is_some() && plan.redis.skew.0 <= SAME && !has(|what| matches!(what, What::Push { .. }));
        let lies = has(|what| matches!(what, What::Liar { .. }));
        let remembers = !has(|what| {
            matches!(
                what,
                What::FlushAll { .. }
                    | What::Evict { .. }
                    | What::Kill { .. }
                    | What::Pause { .. }
                    | What::Isolate { .. }
            )
        });
        Self {
            is_on,
            lies,
            shared: Map::default(),
            holds: Alone::default(),
            rules: setting.rules.clone(),
            admitted: Map::default(),
            shown: Map::default(),
            refuted: Map::default(),
            forgetful: Set::default(),
            remembers,
            found: Found::default(),
        }
    }

    fn share(&mut self, moment: Moment, request: &Request, rule: &Rule, store: u64) {
        for (index, limit) in rule.limits.iter().enumerate() {
            let passed = store % limit.period.0;
            let plain = matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
            if SHAPES.when(!plain) || EDGES.when(passed.min(limit.period.0 - passed) < EDGE) {
                continue;
            }
            let shared = self.shared.entry((request.key, index, store / limit.period.0)).or_default();
            *shared += request.cost;
            let shared = *shared;
            if shared > limit.count {
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: {shared} on the shares of all nodes of {limit:?}")
                });
            }
        }
    }

    /// Of a hold that a share admitted then, so much is given back to it.
    fn given_back(&mut self, request: &Request, store: u64) {
        for (index, limit) in self.rules[request.policy as usize].limits.iter().enumerate() {
            if let Some(shared) = self.shared.get_mut(&(request.key, index, store / limit.period.0)) {
                *shared = shared.saturating_sub(request.cost);
            }
        }
    }

    /// Of a window whose checks were denied by what peers told, the store has lent.
    fn lent(&mut self, node: u32, key: u32, call: &Call, grant: &Grant) {
        let Op::Acquire(order) = call.op else { return };
        let remembers = order.epoch == 0 || grant.epoch == order.epoch;
        let refutes = grant.granted > 0 && !grant.replayed && order.ahead_of.0 == 0;
        if !remembers {
            self.forgetful.insert((key, grant.counters[0].at.0));
        }
        if let Some(refuted) = self.refuted.get_mut(&(key, node, grant.counters[0].at.0)).filter(|_| refutes) {
            *refuted = true;
        }
    }

    fn denied(&mut self, moment: Moment, request: &Request, limit: &Limit, decision: &Decision) {
        let place = (request.key, request.node, decision.reset_at.0);
        let forgot = self.forgetful.contains(&(request.key, decision.reset_at.0));
        if *self.refuted.entry(place).or_default() && !FORGETFUL.when(!self.remembers || forgot) {
            self.found.add("prefilter", moment, || format!("{request:?}: denied by what the store has refuted"));
        }
        if LIARS.when(self.lies) {
            return;
        }
        let admitted = self.admitted.get(&(request.key, decision.reset_at.0)).copied().unwrap_or(0);
        let (last, most) = self.shown.get(&(request.key, decision.reset_at.0)).copied().unwrap_or_default();
        // A store that forgets shows less than there was; peers know of that.
        let shown = if FORGETFUL.when(!self.remembers || forgot) { most } else { last };
        if admitted.max(shown) < limit.count {
            self.found.add("prefilter", moment, || {
                format!("{request:?}: denied by what peers told, and {admitted} of {} had been admitted", limit.count)
            });
        }
    }
}

impl Observer for Together {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Executed { key, call, grant, .. } = seen {
            let counter = grant.counters[0];
            let (last, most) = self.shown.entry((*key, counter.at.0)).or_default();
            (*last, *most) = (counter.used, counter.used.max(*most));
            if call.op == Op::Reset {
                self.forgetful.insert((*key, counter.at.0));
            }
        }
        if let Seen::Settled { node, key, call, grant: Some(grant), .. } = seen {
            self.lent(*node, *key, call, grant);
        }
        if let Some((request, store)) = self.holds.gives_back(seen) {
            self.given_back(request, store);
        }
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        if OFF.when(!self.is_on) || request.kind != Kind::Check {
            return;
        }
        if decision.verdict == Verdict::Allow {
            if decision.source == Source::Share {
                self.share(moment, request, rule, store.0);
            }
            if aligned(rule).is_some() {
                *self.admitted.entry((request.key, decision.reset_at.0)).or_default() += request.cost;
            }
        } else if decision.source == Source::Prefilter
            && let Some(limit) = aligned(rule)
        {
            self.denied(moment, request, limit, decision);
        }
    }
}

impl Checker for Together {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::observe::Holding;
    use crate::plan::Gossip;

    fn checker(history: &History) -> Together {
        let mut setting = history.setting();
        setting.plan.gossip = Some(Gossip::default());
        Together::new(&setting)
    }

    #[test]
    fn shares_that_sum_to_more_than_the_limit_are_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = checker(&history);
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 100, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 6 * SECOND + SECOND / 5, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }

    #[test]
    fn what_was_handed_back_is_no_reason_to_deny() {
        for (used, seen) in [(100, 0), (99, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.used = 99;
            history.executed(&mut checker, SECOND / 10, 1);
            history.used = used - 1;
            history.executed(&mut checker, SECOND / 5, 2);
            history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_denial_by_peers_below_the_limit_is_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = checker(&history);
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 100, Source::Lease, true);
        history.check(&mut checker, 6 * SECOND + SECOND / 5, 1, Source::Prefilter, false);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 7 * SECOND + SECOND / 5, 1, Source::Prefilter, false);
        assert_eq!(checker.violations()[0].invariant, "prefilter");
    }

    #[test]
    fn what_a_hold_gave_back_to_its_share_is_not_spent() {
        for (back, seen) in [(3, 0), (2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Together::new(&setting);
            let at = SECOND / 2;
            let request = Request { cost: 5, ..history.ask(&mut checker, at) };
            history.answer(&mut checker, at, &request, Source::Share, true);
            let refund = Request { kind: Kind::Refund, cost: back, ..request };
            for holding in [Holding::Kept { request: &request, ttl: SECOND }, Holding::Asks(&refund)] {
                history.see(&mut checker, at, &Seen::Hold(request.id, holding));
            }
            history.check(&mut checker, at, 8, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
