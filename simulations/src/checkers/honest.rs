//! **honest**: a client that is denied, waits as long as it was told and asks the same node again is admitted, if no
//! other node was lent tokens of the key meanwhile or since the node last heard of it, and nothing went wrong.
//!
//! Judged when demand is over and one client at a time asks, because others always spend before.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Op};
use rationd::core::decision::{Reason, Verdict};
use rationd::core::limit::{Algorithm, MAX_LIMITS};

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};

static BEHIND: Exemption =
    Exemption::new("others were lent tokens since the node heard of the key", "It could not know.");
static MEANWHILE: Exemption =
    Exemption::new("others were lent tokens of the key meanwhile", "What it was to get they have.");
static CROSSED: Exemption = Exemption::new(
    "a boundary that is crossed while the store is asked",
    "What was lent of a window that is over when it arrives is lost.",
);
static SILENT: Exemption =
    Exemption::new("a store that gave no answer in time", "What is left is the share, of which nothing was told.");
static SLOW: Exemption = Exemption::new("a store that is slower than a check waits", "It turns away.");
static ASIDE: Exemption = Exemption::new(
    "keys of which tokens are set aside for nodes that may lose the store",
    "What others are lent in the next window depends on who has asked in it by then.",
);
static REPORTED: Exemption = Exemption::new(
    "by a bucket, for as long as a call was on its way that told the store what the node had spent",
    "The store charges that as if it had been spent later by the call's trip, as a node knows its clock no better.",
);
static ANOTHER: Exemption =
    Exemption::new("who asks another node, for another cost or too soon", "It was told nothing of that.");

pub(super) static SHEET: Sheet = Sheet {
    file: "honest.rs",
    invariants: &["honest"],
    proves: "Who is denied, waits as long as it was told and asks the same node again is admitted.",
    judges: "All algorithms, several limits, when demand is over and one client at a time asks.",
    exemptions: &[&BEHIND, &MEANWHILE, &CROSSED, &SILENT, &SLOW, &ASIDE, &REPORTED, &ANOTHER],
    mutant: Some("wait-halved"),
};

/// What the last client of a key was told.
#[derive(Clone, Copy, Debug)]
struct Denial {
    node: u32,
    key: u32,
    cost: u64,
    wait: u64,
    at: u64,
    /// The longest trip to the store of an acquire of that node that was executed since.
    trip: u64,
}

/// A node's latest acquire of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Asking {
    id: u64,
    /// When it was first sent.
    sent: u64,
    /// When it was answered; `None` if it is under way.
    answered: Option<u64>,
    /// Since when acquires have followed each other without a pause.
    since: u64,
}

/// An acquire sent less than this long after an answer follows it without a pause.
const AT_ONCE: u64 = 1_000;

/// The checker.
#[derive(Debug)]
pub(super) struct Honest {
    from: u64,
    denials: BTreeMap<u32, Denial>,
    /// Requests of clients that have waited as told, with what they were told.
    patient: BTreeMap<u64, Denial>,
    /// By key and node: when it was last lent tokens, by the store's clock and in true time. The next field: when its
    /// latest answer was given.
    lent: BTreeMap<u32, BTreeMap<u32, (u64, u64)>>,
    heard: Map<(u32, u32), u64>,
    /// When each node's latest acquire was answered; `None` if it was not. A return that leaves before it brings no
    /// tokens.
    answered: Map<(u32, u32), Option<u64>>,
    asking: Map<(u32, u32), Asking>,
    /// Returns that have not been answered, and when the last of them was sent.
    returning: Map<(u32, u32), (u64, u64)>,
    /// When the last two windows of a key's limits ended or will.
    ends: BTreeMap<u32, [[u64; 2]; MAX_LIMITS]>,
    found: Found,
}

impl Honest {
    pub(super) fn new(setting: &Setting) -> Self {
        // Checks that were waiting when demand ended are served before later ones.
        let from = setting.plan.span.0 + setting.plan.calm.0 + setting.plan.daemon.timeout.0;
        Self {
            from,
            denials: BTreeMap::new(),
            patient: BTreeMap::new(),
            lent: BTreeMap::new(),
            heard: Map::default(),
            answered: Map::default(),
            asking: Map::default(),
            returning: Map::default(),
            ends: BTreeMap::new(),
            found: Found::default(),
        }
    }

    /// Takes note of what a node cannot know.
    fn note(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Settled { node, key, call: Call { op: Op::Acquire(_), id, .. }, grant, .. } = seen {
            self.answered.insert((*key, *node), grant.map(|_| moment.at));
            if let Some(asking) =
                self.asking.get_mut(&(*key, *node)).filter(|asking| asking.id == *id && grant.is_some())
            {
                asking.answered = asking.answered.or(Some(moment.at));
            }
        }
        // An acquire that overtook a return is sent again only after that return is answered.
        match seen {
            Seen::Called { node, key, call: Call { op: Op::Return { .. }, id, .. }, .. } => {
                let place = self.returning.entry((*key, *node)).or_default();
                *place = if place.0 == *id { *place } else { (*id, moment.at) };
            }
            Seen::Settled { node, key, call: Call { op: Op::Return { .. }, id, .. }, grant: Some(_), .. } => {
                if self.returning.get(&(*key, *node)).is_some_and(|(last, _)| last == id) {
                    self.returning.remove(&(*key, *node));
                }
                if let Some(asking) = self.asking.get_mut(&(*key, *node)) {
                    asking.answered = asking.answered.map(|_| moment.at);
                }
            }
            _ => {}
        }
        match seen {
            Seen::Called { node, key, call: Call { op: Op::Acquire(_), id, .. }, sent: true } => {
                let asking = self.asking.entry((*key, *node)).or_default();
                if asking.id != *id {
                    let follows = asking.answered.is_none_or(|at| moment.at < at + AT_ONCE) && asking.id > 0;
                    let since = if follows { asking.since } else { moment.at };
                    *asking = Asking { id: *id, sent: moment.at, answered: None, since };
                }
            }
            Seen::Executed { node, key, call: Call { op: Op::Acquire(_), id, .. }, grant, .. } => {
                self.note_trip(moment, [*node, *key], *id);
                if grant.granted > 0 {
                    self.lent.entry(*key).or_default().insert(*node, (grant.now.0, moment.at));
                }
            }
            Seen::Settled { node, key, grant: Some(grant), .. } => {
                self.heard.insert((*key, *node), grant.now.0);
            }
            _ => {}
        }
    }

    /// Notes the trip of an acquire: a client that was told to wait before was not told of this trip.
    fn note_trip(&mut self, moment: Moment, [node, key]: [u32; 2], id: u64) {
        let Some(asking) = self.asking.get(&(key, node)).filter(|asking| asking.id == id) else { return };
        let trip = moment.at - asking.sent;
        for denial in self.denials.get_mut(&key).into_iter().chain(self.patient.values_mut()) {
            if (denial.node, denial.key) == (node, key) {
                denial.trip = denial.trip.max(trip);
            }
        }
    }

    /// Whether others were lent tokens after this node last heard of the key.
    fn is_behind(&self, request: &Request) -> bool {
        let heard = self.heard.get(&(request.key, request.node));
        self.lent_to_others(request).any(|(at, _)| heard.is_none_or(|heard| heard < at))
    }

    fn lent_to_others(&self, request: &Request) -> impl Iterator<Item = &(u64, u64)> {
        let others = self.lent.get(&request.key).into_iter().flatten();
        others.filter(|(node, _)| **node != request.node).map(|(_, lent)| lent)
    }

    /// Whether the store lent the node nothing in time: its last acquire failed, or none was answered since the
    /// request.
    fn is_silent(&self, request: &Request) -> bool {
        let answered = self.answered.get(&(request.key, request.node)).copied().flatten();
        answered.is_none_or(|at| at < request.asked)
    }

    /// Whether acquires were under way all the time and the answer has not come: several trips take longer than a check
    /// waits.
    fn is_slow(&self, request: &Request) -> bool {
        let place = (request.key, request.node);
        let asks = |asking: &Asking| asking.answered.is_none() && asking.since < request.asked + AT_ONCE;
        let returns = |(_, sent): &(u64, u64)| *sent < request.asked + AT_ONCE;
        self.asking.get(&place).is_some_and(asks) || self.returning.get(&place).is_some_and(returns)
    }

    fn asked(&mut self, moment: Moment, request: &Request) {
        let Some(denial) = self.denials.remove(&request.key) else { return };
        // The wait counts by the node's own clock, so by true time it may be over a little early.
        let waited = moment.at - denial.at + denial.wait / 4_000 + 1 >= denial.wait;
        if !ANOTHER.when(denial.node != request.node || denial.cost != request.cost || !waited) {
            self.patient.insert(request.id, denial);
        }
    }
}

impl Observer for Honest {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.note(moment, seen);
        if moment.at < self.from {
            return;
        }
        match seen {
            Seen::Executed { key, call: Call { op: Op::Acquire(_), .. }, grant, .. } => {
                let ends = self.ends.entry(*key).or_default();
                for (end, counter) in ends.iter_mut().zip(&grant.counters).filter(|(end, at)| end[0] != at.at.0) {
                    *end = [counter.at.0, end[0]];
                }
            }
            Seen::Asked(request) if request.kind == Kind::Check => self.asked(moment, request),
            Seen::Answered { request, rule, decision, store, .. } if request.kind == Kind::Check => {
                // Tokens whose window may have ended before they arrived, as far as the node knows, are lost.
                let near = moment.at - request.asked + 1_000;
                let ends = self.ends.get(&request.key).copied().unwrap_or_default();
                let crossed = rule.limits.iter().zip(ends).any(|(limit, end)| {
                    let passed = store.0 % limit.period.0;
                    let by_then = |end: &u64| store.0.abs_diff(*end) < near;
                    passed < near || limit.period.0 - passed < near || end.iter().any(by_then)
                });
                let denial = self.patient.remove(&request.id).filter(|_| !CROSSED.when(crossed));
                // If the store gives no answer in time, the check is decided by the share, which the told wait did not
                // consider, or not at all; if the store is slow, the check times out.
                let alone = match decision.reason {
                    Reason::Share | Reason::Overload => {
                        SILENT.when(self.is_silent(request)) || SLOW.when(self.is_slow(request))
                    }
                    Reason::Store => SLOW.when(self.is_slow(request)),
                    _ => false,
                };
                let denied = decision.verdict == Verdict::Deny && !alone && !ASIDE.when(rule.is_entitled());
                let is_first =
                    |denial: &Denial| !MEANWHILE.when(self.lent_to_others(request).any(|(_, at)| *at >= denial.at));
                let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
                let is_near = |denial: &Denial| decision.retry_after.is_some_and(|wait| wait.0 <= denial.trip);
                let is_first = |denial: &Denial| is_first(denial) && !REPORTED.when(is_bucket && is_near(denial));
                if let Some(denial) = denial.filter(|denial| denied && is_first(denial)) {
                    self.found.add("honest", moment, || {
                        format!("{request:?} waited the {} us it was told, and was told {decision:?}", denial.wait)
                    });
                }
                let sure = decision.reason == Reason::Rate && !BEHIND.when(self.is_behind(request));
                let wait = decision.retry_after.filter(|_| sure);
                if let Some(wait) = wait {
                    let Request { node, key, cost, .. } = **request;
                    self.denials.insert(key, Denial { node, key, cost, wait: wait.0, at: moment.at, trip: 0 });
                }
            }
            _ => {}
        }
    }
}

impl Checker for Honest {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::decision::Source;

    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_promise_that_is_broken_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Honest::new(&history.setting());
        let late = 10 * SECOND;
        history.check(&mut checker, late, 1, Source::Lease, false);
        history.check(&mut checker, late + 10, 1, Source::Lease, false);
        assert!(checker.violations().is_empty(), "it did not wait: {:?}", checker.violations());
        history.check(&mut checker, late + 5 * SECOND / 2, 1, Source::Lease, false);
        assert_eq!(checker.violations()[0].invariant, "honest");
    }

    #[test]
    fn a_promise_is_off_where_another_was_lent_tokens_meanwhile() {
        for (node, seen) in [(0, 1), (1, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Honest::new(&history.setting());
            let late = 10 * SECOND;
            history.check(&mut checker, late, 1, Source::Lease, false);
            history.node = node;
            history.executed(&mut checker, late + SECOND / 2, 1);
            history.check(&mut checker, late + 5 * SECOND / 2, 1, Source::Lease, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The denial names a wait that is a second longer than needed, because no call was under way for less than that.
    #[test]
    fn what_a_bucket_is_charged_when_it_hears_of_it_is_late_by_a_trip_at_most() {
        for (limit, trip, seen) in
            [("10/1s burst 10", SECOND, 0), ("10/1s burst 10", SECOND - 1, 1), ("10/1s fixed", SECOND, 1)]
        {
            let mut history = History::new(limit);
            let mut checker = Honest::new(&history.setting());
            let late = 10 * SECOND;
            history.check(&mut checker, late, 1, Source::Lease, false);
            history.called(&mut checker, late, 1, 1);
            history.executed(&mut checker, late + trip, 1);
            history.check(&mut checker, late + 5 * SECOND / 2, 1, Source::Lease, false);
            assert_eq!(checker.violations().len(), seen, "{limit}, {trip}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_that_denies_while_the_store_is_asked_is_no_lie() {
        for (pause, answers, seen) in [(0, 1, 0), (AT_ONCE, 1, 1), (0, 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Honest::new(&history.setting());
            let late = 10 * SECOND;
            history.check(&mut checker, late, 1, Source::Lease, false);
            let late = late + 7 * SECOND / 5;
            let request = history.ask(&mut checker, late);
            history.called(&mut checker, late, 1, 1);
            history.settled(&mut checker, late + SECOND / 10, 1, 0);
            history.called(&mut checker, late + SECOND / 10 + pause, 2, 1);
            if answers > 1 {
                history.settled(&mut checker, late + SECOND / 5, 2, 0);
            }
            history.answer(&mut checker, late + SECOND / 4, &request, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_that_denies_needs_a_silent_store() {
        for (answered, seen) in [(10 * SECOND, 0), (10 * SECOND + 5 * SECOND / 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Honest::new(&history.setting());
            let late = 10 * SECOND;
            history.check(&mut checker, late, 1, Source::Lease, false);
            history.settled(&mut checker, answered, 1, 0);
            history.check(&mut checker, late + 5 * SECOND / 2, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
