//! **landing**: a node holds what the store lends it, however late the answer comes: it decides the next check of that
//! key by the grant, and not by its share or policy.
//!
//! Judged for windows that stay open for a while, if the node owes nothing for a share.

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::{Decision, Reason, Source};
use rationd::core::limit::Algorithm;

use super::Found;
use super::notes::{Life, Lives};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Under other limits what was lent is void.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods after that has caught up with the one before",
    "By another clock what was lent is void.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static BUCKETS: Exemption = Exemption::new(
    "buckets",
    "What a node that is alone was lent before it came may not be spent yet, and what nobody waits for goes back.",
);
static OWING: Exemption = Exemption::new("a node that owes for its share", "That is paid first.");
static SHORT: Exemption =
    Exemption::new("a window that is soon over", "What was lent of it may be over when it arrives.");

pub(super) static SHEET: Sheet = Sheet {
    file: "landing.rs",
    invariants: &["landing"],
    proves: "What the store lends, a node holds: its next check of that key passes by it.",
    judges: "Windows of all kinds, several limits.",
    exemptions: &[&PUSHES, &LEAPS, &BASELINES, &BUCKETS, &OWING, &SHORT],
    mutant: None,
};

/// After this time a grant may have been handed back, or its window may be over.
const SOON: u64 = 20_000;

/// For this long after an admission on a share a grant first pays for that.
const OWES: u64 = 2_000_000;

/// A grant that has just come.
#[derive(Clone, Copy, Debug)]
struct Lent {
    tokens: u64,
    at: u64,
}

/// One key at one node.
#[derive(Clone, Debug, Default)]
struct Place {
    latest: u64,
    /// The latest acquire that was answered; a second answer brings nothing.
    landed: u64,
    epoch: u64,
    lent: Option<Lent>,
    /// When its share was last spent from.
    alone: Option<u64>,
}

/// The checker.
#[derive(Clone, Debug, Default)]
pub(super) struct Landing {
    is_on: bool,
    /// How long an answer is under way at most, as a node sees it.
    timeout: u64,
    lives: Lives,
    places: Map<(Life, u32), Place>,
    found: Found,
}

impl Landing {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
            .until_leaps(&LEAPS, setting.plan.clocks_leap())
            .again(setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let is_on = !BASELINES.when(plan.brain != Brain::Rationd);
        Self { is_on, timeout: plan.daemon.timeout.0, ..Self::default() }
    }

    fn settled(&mut self, moment: Moment, place: (Life, u32), call: &Call, order: &Acquire, grant: &Grant) {
        let timeout = self.timeout;
        let place = self.places.entry(place).or_default();
        let is_known = grant.epoch == place.epoch || place.epoch == 0;
        place.epoch = grant.epoch;
        if call.id <= place.landed {
            return;
        }
        place.landed = call.id;
        let is_bucket = call.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        if BUCKETS.when(is_bucket) {
            return;
        }
        let ends = call.rule.limits.iter().zip(&grant.counters).map(|(limit, counter)| {
            counter.at.0 + if limit.algorithm == Algorithm::Sliding { limit.period.0 } else { 0 }
        });
        let left = ends.min().unwrap_or(0).saturating_sub(grant.now.0);
        let longest = call.rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        let owes = place.alone.is_some_and(|at| moment.at < at + OWES + 2 * longest);
        let is_sure = is_known && !OWING.when(owes) && !SHORT.when(left <= 2 * timeout + 2 * SOON);
        if call.id == place.latest && grant.granted > 0 && !order.window.is_next() && is_sure {
            place.lent = Some(Lent { tokens: grant.granted, at: moment.at });
        }
    }

    fn answered(&mut self, moment: Moment, place: (Life, u32), request: &Request, decision: &Decision) {
        let place = self.places.entry(place).or_default();
        let lent = place.lent.take().filter(|lent| moment.at < lent.at + SOON && request.cost <= lent.tokens);
        let alone = matches!(decision.source, Source::Share | Source::Policy) && decision.reason != Reason::Overload;
        if decision.source == Source::Share {
            place.alone = Some(moment.at);
        }
        if let Some(lent) = lent.filter(|_| alone) {
            self.found.add("landing", moment, || format!("{request:?}: {decision:?}, and {lent:?}"));
        }
    }
}

impl Observer for Landing {
    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on || topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Called { node, key, call, .. } => {
                let place = self.places.entry((self.lives.of(*node), *key)).or_default();
                // Tokens that the call hands back are not held.
                place.lent = None;
                if let Op::Acquire(order) = &call.op {
                    place.latest = place.latest.max(call.id);
                    place.epoch = order.epoch;
                }
            }
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                if let Op::Acquire(order) = &call.op {
                    self.settled(moment, ((*node, *incarnation), *key), call, order, grant);
                }
            }
            Seen::Answered { request, decision, .. } if request.kind == Kind::Check && request.cost > 0 => {
                let place = (self.lives.of(request.node), request.key);
                self.answered(moment, place, request, decision);
            }
            _ => {}
        }
    }
}

impl Checker for Landing {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn overlook(&mut self) {
        self.found.list.clear();
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_late_answer_that_nobody_holds_is_seen() {
        let cases = [(2, Source::Share, 1), (2, Source::Lease, 0), (0, Source::Share, 0)];
        let limits = ["10/1s fixed", "10/1s sliding", "10/1s fixed from-first"];
        for ((lent, source, seen), limit) in cases.into_iter().flat_map(|case| limits.map(|limit| (case, limit))) {
            let mut history = History::new(limit);
            let mut checker = Landing::new(&history.setting());
            history.called(&mut checker, SECOND / 10, 1, 2);
            history.settled(&mut checker, SECOND / 5, 1, lent);
            history.check(&mut checker, SECOND / 5 + 9, 1, source, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
