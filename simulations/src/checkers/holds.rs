//! **conservation** of holds, as their clients see them. The final charge of a hold is the estimate plus what was
//! charged later, or minus what was given back, and the client is told exactly that. No more is given back than the
//! estimate was too high, and no more is charged than it was too low. **at-most-once**: a hold is settled once, and not
//! after its time is over.
//!
//! `tally.rs` judges into which windows tokens go back.

use rationd::core::decision::{Source, Verdict};

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Seen, Setting, Topic, Violation};

static FREE: Exemption = Exemption::new("a hold that a policy let pass", "Nothing was charged, and nothing goes back.");
static DRIFTS: Exemption = Exemption::new("the end of a hold", "Clocks of nodes drift: 200 millionths.");

pub(super) static SHEET: Sheet = Sheet {
    file: "holds.rs",
    invariants: &["conservation", "at-most-once"],
    proves: "What stands charged of a hold in the end is the estimate, and what was charged more or less what was given back; a hold is settled once and in time.",
    judges: "All, as clients see it; into which window it goes is tally.rs's.",
    exemptions: &[&FREE, &DRIFTS],
    mutant: Some("hold-settled-twice"),
};

/// Clocks drift by at most this many millionths, and count whole microseconds.
const DRIFT: u64 = 200;

/// One hold.
#[derive(Clone, Copy, Debug, Default)]
struct Hold {
    estimate: u64,
    /// Whether the policy let it pass without the store: then nothing was charged, and nothing goes back.
    is_free: bool,
    /// When its time is over.
    ends: u64,
    actual: Option<u64>,
    /// Tokens charged and given back since.
    more: u64,
    back: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Holds {
    is_on: bool,
    holds: Map<u64, Hold>,
    /// By request that may charge more: the hold that it is about.
    asked: Map<u64, u64>,
    /// Whether the latest admission was the policy's, without the store.
    is_free: bool,
    found: Found,
}

impl Holds {
    pub(super) fn new(setting: &Setting) -> Self {
        let is_on = setting.plan.demand.iter().any(|demand| demand.holds > 0);
        Self { is_on, holds: Map::default(), asked: Map::default(), is_free: false, found: Found::default() }
    }

    fn hold(&mut self, moment: Moment, id: u64, holding: &Holding<'_>) {
        if let Holding::Kept { request, ttl } = holding {
            let ends = moment.at + ttl + DRIFTS.forgives(1 + (ttl * DRIFT).div_ceil(1_000_000));
            self.holds.insert(id, Hold { estimate: request.cost, is_free: self.is_free, ends, ..Hold::default() });
            return;
        }
        let Some(hold) = self.holds.get_mut(&id) else {
            return self.found.add("conservation", moment, || format!("{holding:?} of a hold that nobody has: {id}"));
        };
        match holding {
            Holding::Kept { .. } => {}
            Holding::Settles { actual } => {
                let before = hold.actual.replace(*actual);
                if before.is_some() || moment.at > hold.ends {
                    let hold = *hold;
                    self.found.add("at-most-once", moment, || format!("{hold:?} was settled, and before {before:?}"));
                }
            }
            Holding::Asks(request) if request.kind == Kind::Check => {
                self.asked.insert(request.id, id);
            }
            Holding::Asks(request) if request.kind == Kind::Refund => {
                hold.back += request.cost;
                if hold.back > hold.estimate.saturating_sub(hold.actual.unwrap_or(hold.estimate)) {
                    let hold = *hold;
                    self.found.add("at-most-once", moment, || format!("{hold:?}: too much is given back"));
                }
            }
            Holding::Asks(_) => {}
            Holding::Stands(tokens) => {
                let free = if FREE.when(hold.is_free) {
                    hold.estimate.saturating_sub(hold.actual.unwrap_or(u64::MAX))
                } else {
                    0
                };
                let (hold, stands) = (*hold, (hold.estimate + hold.more).saturating_sub(hold.back + free));
                if *tokens != stands || hold.more > hold.actual.unwrap_or(0).saturating_sub(hold.estimate) {
                    self.found.add("conservation", moment, || format!("{hold:?}: {tokens} were told to stand"));
                }
            }
        }
    }
}

impl Observer for Holds {
    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on && topic == Topic::Answered || matches!(topic, Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Hold(id, holding) if self.is_on => self.hold(moment, *id, holding),
            Seen::Answered { request, decision, .. } if self.is_on && request.kind == Kind::Check => {
                self.is_free = decision.source == Source::Policy;
                let Some(id) = self.asked.remove(&request.id) else { return };
                if let Some(hold) = self.holds.get_mut(&id)
                    && decision.verdict == Verdict::Allow
                {
                    hold.more += request.cost;
                }
            }
            _ => {}
        }
    }
}

impl Checker for Holds {
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
    use crate::observe::Request;

    /// The violations when a hold of ten is settled to seven: `back` tokens go back, the client is told `told`, it is
    /// settled `times` times, at `at`.
    fn seen(back: u64, stands: u64, times: u64, at: u64) -> Vec<&'static str> {
        let mut history = History::new("100/1s fixed");
        let mut checker = Holds { is_on: true, ..Holds::new(&history.setting()) };
        let request = Request { cost: 10, ..history.ask(&mut checker, 0) };
        history.answer(&mut checker, 0, &request, Source::Lease, true);
        let kept = Holding::Kept { request: &request, ttl: SECOND };
        history.see(&mut checker, 0, &Seen::Hold(request.id, kept));
        for _ in 0..times {
            let refund = Request { id: 77, kind: Kind::Refund, cost: back, ..request };
            for holding in [Holding::Settles { actual: 7 }, Holding::Asks(&refund), Holding::Stands(stands)] {
                history.see(&mut checker, at, &Seen::Hold(request.id, holding));
            }
        }
        checker.violations().iter().map(|violation| violation.invariant).collect()
    }

    #[test]
    fn what_is_too_much_untrue_twice_or_too_late_is_seen() {
        assert!(seen(3, 7, 1, SECOND).is_empty());
        assert_eq!(seen(4, 6, 1, 5), ["at-most-once"]);
        assert_eq!(seen(3, 8, 1, 5), ["conservation"]);
        assert_eq!(seen(3, 7, 2, 5)[0], "at-most-once");
        assert_eq!(seen(3, 7, 1, SECOND + 300), ["at-most-once"]);
    }

    #[test]
    fn more_than_it_was_is_seen() {
        for (more, stands, violations) in [(5, 15, 0), (6, 16, 1), (5, 10, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Holds { is_on: true, ..Holds::new(&history.setting()) };
            let request = Request { cost: 10, ..history.ask(&mut checker, 0) };
            let kept = Holding::Kept { request: &request, ttl: SECOND };
            let rest = Request { id: 77, cost: more, ..request };
            for holding in [kept, Holding::Settles { actual: 15 }, Holding::Asks(&rest)] {
                history.see(&mut checker, 1, &Seen::Hold(request.id, holding));
            }
            history.answer(&mut checker, 2, &rest, Source::Lease, true);
            history.see(&mut checker, 2, &Seen::Hold(request.id, Holding::Stands(stands)));
            assert_eq!(checker.violations().len(), violations, "{more}: {:?}", checker.violations());
        }
    }
}
