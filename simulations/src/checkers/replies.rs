//! **answered**: every request gets one answer, within the store's timeout and a little. **line**: no later check is
//! admitted before the waiting checks of the same key at the same node.

use std::collections::{BTreeMap, VecDeque};

use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;

use super::Found;
use super::notes::Stops;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};
use crate::plan::{Plan, What};

static FROZEN: Exemption = Exemption::new(
    "answers that are due while their node is not run",
    "They are late, whatever it does: until the timeout and 10 ms after it is run again.",
);
static TOO_MUCH: Exemption = Exemption::new("a cost above the limit", "It never joins a line.");
static PUSHES: Exemption = Exemption::new(
    "lines of keys whose limits change, from then on until a second after all nodes know of it",
    "What is above the limit is told apart by other limits: who waited may wait no more, and who asks may not join.",
);

static WAITED: Exemption = Exemption::new(
    "one of several keys",
    "It has waited for others of its request, and stands in line as it came to the daemon: before those who came since.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "replies.rs",
    invariants: &["answered", "line"],
    proves: "Every request gets one answer, within the store's timeout and 10 ms; nobody is admitted before those who waited for the same key at the same node.",
    judges: "All.",
    exemptions: &[&FROZEN, &TOO_MUCH, &PUSHES, &WAITED],
    mutant: Some("waiter-dropped"),
};

/// Tolerance beyond the timeout, because timers are set in whole microseconds of clocks that drift.
const GRACE: u64 = 10_000;

/// How long after a change all nodes know of it and the checks that waited before are answered.
const SETTLES: u64 = 1_000_000;

/// The most that one check may ask for under some limits of a policy.
#[derive(Clone, Copy, Debug)]
struct Most {
    /// When the first node gets these limits, and from when on all use them.
    begins: u64,
    settled: u64,
    tokens: u64,
}

impl Most {
    fn of<'a>(limits: impl Iterator<Item = &'a Limit>, begins: u64, settled: u64) -> Self {
        Self { begins, settled, tokens: limits.map(Limit::capacity).min().unwrap_or(0) }
    }

    /// The values for all limits that a plan gives one policy.
    fn of_policy(plan: &Plan, policy: usize, rule: &Rule) -> Vec<Self> {
        let mut all = vec![Self::of(rule.limits.iter(), 0, 0)];
        for fault in &plan.faults {
            if let What::Push { policy: of, limits } = &fault.what
                && *of as usize % plan.policies.len().max(1) == policy
            {
                let limits: Vec<_> = limits.iter().filter_map(|text| Limit::parse(text).ok()).collect();
                all.push(Self::of(limits.iter(), fault.at.0, fault.at.0 + fault.lasts.0 + SETTLES));
            }
        }
        all.sort_by_key(|most| most.begins);
        all
    }
}

/// The checker.
#[derive(Debug)]
pub(super) struct Replies {
    timeout: u64,
    /// By policy: the most that one check may ask for under its first and later limits. Larger checks never join a
    /// line.
    most: Vec<Vec<Most>>,
    /// Frozen nodes, which answer late.
    stops: Stops,
    /// The latest request, and its number in the order of asking. It is kept apart because most are answered before the
    /// next one.
    latest: Option<(Request, u64)>,
    asked: u64,
    /// Earlier requests that wait for an answer.
    open: BTreeMap<u64, (Request, u64)>,
    /// Requests that are one of several keys, and whether it has waited for others.
    several: Map<u64, bool>,
    /// When each waiting request of several keys began.
    begun: Map<u64, u64>,
    /// By node and key: the numbers of the waiting checks, in the order of asking.
    lines: Map<(u32, u32), VecDeque<u64>>,
    found: Found,
}

impl Replies {
    pub(super) fn new(setting: &Setting) -> Self {
        let rules = setting.rules.iter().enumerate();
        Self {
            timeout: setting.plan.daemon.timeout.0 + GRACE,
            most: rules.map(|(policy, rule)| Most::of_policy(&setting.plan, policy, rule)).collect(),
            stops: Stops::default(),
            latest: None,
            asked: 0,
            open: BTreeMap::new(),
            several: Map::default(),
            begun: Map::default(),
            lines: Map::default(),
            found: Found::default(),
        }
    }

    /// The most that one check may ask for at `at`; `None` if nodes may use other limits.
    fn most(&self, policy: u32, at: u64) -> Option<u64> {
        let begun = || self.most[policy as usize].iter().filter(|most| most.begins <= at);
        let is_settled = begun().all(|most| most.settled <= at);
        begun().next_back().filter(|_| !PUSHES.when(!is_settled)).map(|most| most.tokens)
    }

    /// Moves the latest request to those that wait.
    fn park(&mut self) {
        let Some((request, place)) = self.latest.take() else { return };
        self.open.insert(request.id, (request, place));
        let most = self.most(request.policy, request.asked);
        if request.kind == Kind::Check && most.is_some_and(|most| !TOO_MUCH.when(request.cost > most)) {
            self.lines.entry((request.node, request.key)).or_default().push_back(place);
        }
    }

    /// Whether its node was frozen when the answer was due.
    fn is_delayed(&self, request: &Request, moment: Moment) -> bool {
        self.stops.delay(request.node, request.asked + self.timeout, moment.at, self.timeout)
    }

    /// Removes an answered request; returns its number in the order of asking, if it waited.
    fn close(&mut self, request: &Request) -> Option<u64> {
        if let Some((_, place)) = self.latest.take_if(|(latest, _)| latest.id == request.id) {
            return Some(place);
        }
        let (_, place) = self.open.remove(&request.id)?;
        let at = (request.node, request.key);
        if let Some(line) = self.lines.get_mut(&at) {
            if let Ok(index) = line.binary_search(&place) {
                line.remove(index);
            }
            if line.is_empty() {
                self.lines.remove(&at);
            }
        }
        Some(place)
    }
}

impl Observer for Replies {
    fn minds(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Asked | Topic::Permits)
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.stops.see(seen);
        match seen {
            Seen::Asked(request) => {
                self.park();
                self.asked += 1;
                self.latest = Some((**request, self.asked));
            }
            Seen::Answered { request, decision, .. } => {
                let place = self.close(request);
                if place.is_none() {
                    self.found.add("answered", moment, || format!("{request:?} was not waiting for an answer"));
                }
                let waited = moment.at - request.asked;
                if waited > self.timeout && !FROZEN.when(self.is_delayed(request, moment)) {
                    self.found.add("answered", moment, || format!("{request:?} waited {waited} us"));
                }
                let held = matches!(decision.source, Source::Lease | Source::Store | Source::Peer);
                let first = self.lines.get(&(request.node, request.key)).and_then(VecDeque::front);
                let has_waited = self.several.remove(&request.id).unwrap_or(false);
                let passed = first.filter(|first| place.is_some_and(|place| **first < place));
                let passed = passed.filter(|_| !WAITED.when(has_waited));
                let passed = passed.filter(|_| self.most(request.policy, moment.at).is_some());
                if let (Kind::Check, Verdict::Allow, true, Some(first)) = (request.kind, decision.verdict, held, passed)
                {
                    self.found.add("line", moment, || {
                        format!("{request:?} was admitted before one that waited: the {first}th")
                    });
                }
            }
            Seen::Together { group, what, .. } => match what {
                Together::Begins { .. } => drop(self.begun.insert(*group, moment.at)),
                Together::Asks { request } => {
                    let begun = self.begun.get(group).copied().unwrap_or(moment.at);
                    self.several.insert(request.id, begun < moment.at);
                }
                Together::GoesBack { .. } => {}
                Together::Ends { .. } => drop(self.begun.remove(group)),
            },
            Seen::Orphaned(request) => {
                self.close(request);
            }
            Seen::Over => {
                self.park();
                let late = self.open.values().map(|(request, _)| request).find(|request| {
                    moment.at - request.asked > self.timeout && !FROZEN.when(self.is_delayed(request, moment))
                });
                if let Some(request) = late {
                    self.found.add("answered", moment, || format!("{request:?} was never answered"));
                }
            }
            _ => {}
        }
    }
}

impl Checker for Replies {
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
    use crate::checkers::tests::History;
    use crate::plan::Fault;
    use crate::span::Span;

    #[test]
    fn late_missing_and_double_answers_are_seen() {
        for (answers, seen) in [(&[50_000][..], 0), (&[70_000], 1), (&[], 1), (&[10, 20], 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Replies::new(&history.setting());
            let request = history.ask(&mut checker, 0);
            for at in answers {
                history.answer(&mut checker, *at, &request, Source::Store, true);
            }
            history.see(&mut checker, 90_000, &Seen::Over);
            assert_eq!(checker.violations().len(), seen, "{answers:?}: {:?}", checker.violations());
        }
    }

    #[test]
    fn an_answer_is_late_as_long_as_its_node_stands_still() {
        // Frozen from 40 to 140 ms, in two parts, or another node is; an answer is due after 60 ms.
        let parts = [(40_000, 60_000), (80_000, 60_000)];
        for (node, parts, seen) in [(0, &parts[..], 0), (0, &parts[..1], 1), (1, &parts[..], 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Replies::new(&history.setting());
            (0..2).for_each(|node| history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 1 }));
            let request = history.ask(&mut checker, 0);
            for (at, lasts) in parts {
                let what = What::Freeze { node };
                let fault = Fault { at: Span(*at), lasts: Span(*lasts), what };
                history.see(&mut checker, *at, &Seen::Begins(&fault));
            }
            history.answer(&mut checker, 170_000, &request, Source::Store, true);
            assert_eq!(checker.violations().len(), seen, "{node}: {:?}", checker.violations());
        }
    }

    #[test]
    fn barging_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Replies::new(&history.setting());
        let first = history.ask(&mut checker, 0);
        let second = history.ask(&mut checker, 1);
        history.answer(&mut checker, 2, &second, Source::Lease, true);
        history.answer(&mut checker, 3, &first, Source::Store, true);
        assert_eq!(checker.violations()[0].invariant, "line");
    }

    /// During the first second nodes get other limits: one check may ask for ten tokens, then for three.
    #[test]
    fn barging_is_seen_before_and_after_limits_change() {
        for (at, cost, seen) in
            [(900_000, 4, 1), (1_000_000, 1, 0), (2_999_999, 1, 0), (3_000_000, 4, 0), (3_000_000, 3, 1)]
        {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let what = What::Push { policy: 0, limits: vec!["3/1s fixed".into()] };
            setting.plan.faults = vec![Fault { at: Span::secs(1), lasts: Span::secs(1), what }];
            let mut checker = Replies::new(&setting);
            let first = history.ask_for(&mut checker, at, cost);
            let second = history.ask(&mut checker, at + 1);
            history.answer(&mut checker, at + 2, &second, Source::Lease, true);
            history.answer(&mut checker, at + 3, &first, Source::Store, true);
            assert_eq!(checker.violations().len(), seen, "{at} {cost}: {:?}", checker.violations());
        }
    }
}
