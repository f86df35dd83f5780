//! **all-or-nothing**: of several keys that are checked at once all are charged or none is. If one is denied, what was
//! charged to the others goes back, all of it and once, before the client has its answer; if none is, all are admitted.
//! **answered**: there is one answer, within the store's timeout and 10 ms.
//!
//! Whether what goes back is there again is judged key by key, by the checkers of refunds.

use std::collections::BTreeMap;

use rationd::core::decision::Verdict;

use super::Found;
use super::notes::Stops;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};

static FROZEN: Exemption = Exemption::new(
    "answers that are due while their node is not run",
    "They are late, whatever it does: until the timeout and 10 ms after it is run again.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "several.rs",
    invariants: &["all-or-nothing", "answered"],
    proves: "Of several keys that are asked at once all are charged or none is, and there is one answer, within the store's timeout and 10 ms.",
    judges: "All.",
    exemptions: &[&FROZEN],
    mutant: Some("several-keeps-the-first"),
};

/// Tolerance beyond the timeout, because timers are set in whole microseconds of clocks that drift.
const GRACE: u64 = 10_000;

/// A check of several keys.
#[derive(Clone, Debug, Default)]
struct Group {
    node: u32,
    begun: u64,
    keys: usize,
    answers: usize,
    denied: usize,
    /// Requests that were admitted and charged, and whether that has gone back.
    charged: BTreeMap<u64, bool>,
}

/// The checker.
#[derive(Debug)]
pub(super) struct SeveralKeys {
    timeout: u64,
    stops: Stops,
    groups: BTreeMap<u64, Group>,
    /// By request about one of the keys: the check of several keys that it belongs to.
    requests: Map<u64, u64>,
    found: Found,
}

impl SeveralKeys {
    pub(super) fn new(setting: &Setting) -> Self {
        let stops = Stops::default();
        let timeout = setting.plan.daemon.timeout.0 + GRACE;
        Self { timeout, stops, groups: BTreeMap::new(), requests: Map::default(), found: Found::default() }
    }

    fn answered(&mut self, moment: Moment, request: &Request, verdict: Verdict) {
        let Some(id) = self.requests.remove(&request.id) else { return };
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.answers += 1;
        let was_denied = group.denied > 0;
        group.denied += usize::from(verdict == Verdict::Deny);
        if verdict == Verdict::Allow && request.kind == Kind::Check && request.cost > 0 {
            group.charged.insert(request.id, false);
            if was_denied {
                self.found.add("all-or-nothing", moment, || format!("{request:?} was charged after a denial"));
            }
        }
    }

    fn ended(&mut self, moment: Moment, id: u64, denied: bool) {
        let Some(group) = self.groups.remove(&id) else {
            return self.found.add("answered", moment, || format!("{id} was answered twice, or never asked"));
        };
        let kept = group.charged.values().filter(|back| !**back).count();
        let is_whole = group.answers == group.keys && denied == (group.denied > 0);
        let is_even = if denied { kept == 0 } else { kept == group.charged.len() };
        if !is_whole || !is_even {
            self.found.add("all-or-nothing", moment, || format!("{group:?} ended, denied: {denied}"));
        }
        self.is_late(moment, &group);
    }

    fn is_late(&mut self, moment: Moment, group: &Group) {
        let waited = moment.at - group.begun;
        let is_delayed = self.stops.delay(group.node, group.begun + self.timeout, moment.at, self.timeout);
        if waited > self.timeout && !FROZEN.when(is_delayed) {
            self.found.add("answered", moment, || format!("{group:?} waited {waited} us"));
        }
    }
}

impl Observer for SeveralKeys {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Permits
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.stops.see(seen);
        match *seen {
            Seen::Together { group, node, what } => match what {
                Together::Begins { keys } => {
                    self.groups.insert(group, Group { node, begun: moment.at, keys, ..Group::default() });
                }
                Together::Asks { request } => drop(self.requests.insert(request.id, group)),
                Together::GoesBack { request } => {
                    let charged = self.groups.get_mut(&group).and_then(|group| group.charged.get_mut(&request.id));
                    if charged.is_none_or(|back| std::mem::replace(back, true)) {
                        self.found
                            .add("all-or-nothing", moment, || format!("{request:?} goes back and is not charged"));
                    }
                }
                Together::Ends { denied } => self.ended(moment, group, denied),
            },
            Seen::Answered { request, decision, .. } => self.answered(moment, request, decision.verdict),
            Seen::Left { node, .. } => self.groups.retain(|_, group| group.node != node),
            Seen::Over => {
                let open = std::mem::take(&mut self.groups);
                open.values().for_each(|group| self.is_late(moment, group));
            }
            _ => {}
        }
    }
}

impl Checker for SeveralKeys {
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
    use crate::checkers::tests::History;

    /// The violations of a check of two keys: the verdict on the first is given, that on the second is a denial if
    /// `denied`.
    fn seen(first: bool, goes_back: usize, denied: bool, at: u64) -> Vec<&'static str> {
        let mut history = History::new("10/1s fixed");
        let mut checker = SeveralKeys::new(&history.setting());
        let request = |id| Request { id, node: 0, key: 0, policy: 0, cost: 1, kind: Kind::Check, asked: 0 };
        let requests = [request(1), request(2)];
        let asks = requests.iter().map(|request| Together::Asks { request });
        for what in std::iter::once(Together::Begins { keys: 2 }).chain(asks) {
            history.see(&mut checker, 0, &Seen::Together { group: 1, node: 0, what });
        }
        history.answer(&mut checker, 2, &requests[0], Source::Lease, first);
        history.answer(&mut checker, 3, &requests[1], Source::Lease, false);
        for _ in 0..goes_back {
            let what = Together::GoesBack { request: &requests[0] };
            history.see(&mut checker, 4, &Seen::Together { group: 1, node: 0, what });
        }
        history.see(&mut checker, at, &Seen::Together { group: 1, node: 0, what: Together::Ends { denied } });
        checker.violations().iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn half_of_several_keys_is_seen_and_so_is_an_answer_that_is_late() {
        assert_eq!(seen(true, 1, true, 10), Vec::<&str>::new());
        assert_eq!(seen(false, 0, true, 10), Vec::<&str>::new());
        assert_eq!(seen(true, 0, true, 10), ["all-or-nothing"], "the first stays charged");
        assert_eq!(seen(true, 2, true, 10), ["all-or-nothing"], "it goes back twice");
        assert_eq!(seen(true, 1, false, 10), ["all-or-nothing"], "one was denied");
        assert_eq!(seen(true, 1, true, 70_000), ["answered"]);
    }
}
