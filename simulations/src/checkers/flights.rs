//! **single-flight**: at most one acquire of a key is under way at a time, so a node waits for its tokens instead of
//! asking twice.

use std::sync::Arc;

use rationd::core::call::Op;
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Life, Lives};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static GIVEN_UP: Exemption = Exemption::new(
    "after 9.9 ms",
    "A node that gives up an acquire asks anew, and the world does not tell that it has given up.",
);
static AHEAD: Exemption = Exemption::new(
    "an acquire ahead of a window, under limits that have changed",
    "What it is lent lapses with its window; no return says that it is void, as the store could not tell which window it was of.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "flights.rs",
    invariants: &["single-flight"],
    proves: "One acquire of a key is under way at a time.",
    judges: "All.",
    exemptions: &[&BASELINES, &GIVEN_UP, &AHEAD],
    mutant: Some("two-in-flight"),
};

/// A node gives up no acquire sooner than this.
const PATIENCE: u64 = 9_900;

/// An acquire that was sent and has not been answered.
#[derive(Clone, Debug)]
struct Flight {
    id: u64,
    sent: u64,
    ahead_under: Option<Arc<Rule>>,
}

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Flights {
    is_on: bool,
    lives: Lives,
    flights: Map<(Life, u32), Flight>,
    found: Found,
}

impl Flights {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd), ..Self::default() }
    }
}

impl Observer for Flights {
    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Answered | Topic::Executed)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        match seen {
            Seen::Called { node, key, call, .. }
                if self.is_on
                    && let Op::Acquire(order) = call.op =>
            {
                let place = (self.lives.of(*node), *key);
                let ahead_under = (order.window.is_next()).then(|| call.rule.clone());
                let fresh = Flight { id: call.id, sent: moment.at, ahead_under };
                let flight = self.flights.entry(place).or_insert_with(|| fresh.clone()).clone();
                if flight.id == call.id {
                    return;
                }
                self.flights.insert(place, fresh);
                let is_void = flight.ahead_under.as_ref().is_some_and(|rule| rule.limits != call.rule.limits);
                if !AHEAD.when(is_void) && !GIVEN_UP.when(moment.at >= flight.sent + PATIENCE) {
                    self.found.add("single-flight", moment, || {
                        format!("key {key}, node {node}: {} while {flight:?} was under way", call.id)
                    });
                }
            }
            // After a change of limits an order is declared void before the next acquire.
            Seen::Called { node, key, call, .. } if let Op::Return { voids: Some(voids), .. } = &call.op => {
                let place = (self.lives.of(*node), *key);
                if self.flights.get(&place).is_some_and(|flight| flight.id == voids.id) {
                    self.flights.remove(&place);
                }
            }
            Seen::Settled { node, incarnation, key, call, .. } => {
                let place = ((*node, *incarnation), *key);
                let ended = |flight: &&Flight| flight.id == call.id || call.op == Op::Reset;
                if self.flights.get(&place).as_ref().is_some_and(ended) {
                    self.flights.remove(&place);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Flights {
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

    #[test]
    fn a_second_acquire_beside_the_first_is_seen() {
        for (answered, later, seen) in [(true, 10, 0), (false, 10, 1), (false, 20_000, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Flights::new(&history.setting());
            history.called(&mut checker, 1, 1, 4);
            history.called(&mut checker, 2, 1, 4);
            if answered {
                history.settled(&mut checker, 3, 1, 4);
            }
            history.called(&mut checker, 3 + later, 2, 4);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
