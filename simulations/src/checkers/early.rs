//! **early**: while nothing goes wrong and all nodes together are asked for less than 40 % of a window,
//! nobody is denied because the limit is spent: no node holds so much of it.

use rationd::core::decision::{Reason, Verdict};

use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static TROUBLE: Exemption = Exemption::new(
    "runs with faults, losses, clocks that differ or nodes far away",
    "Tokens are then held where nobody asks, and nobody is to blame.",
);
static SHAPES: Exemption =
    Exemption::new("other shapes", "Only of an aligned window is the end told, by which what was asked for is summed.");

pub(super) static SHEET: Sheet = Sheet {
    file: "early.rs",
    invariants: &["early"],
    proves: "While all nodes together are asked for less than 40 % of a window, nobody is denied because the limit is spent.",
    judges: "One fixed window, in runs in which nothing goes wrong.",
    exemptions: &[&BASELINES, &TROUBLE, &SHAPES],
    mutant: None,
};

/// Below this part of a limit, in hundredths, everybody passes.
const PART: u64 = 40;

/// One key's window.
#[derive(Debug)]
struct Window {
    ends: u64,
    count: u64,
    asked: u64,
    /// The first denial.
    denied: Option<(Moment, String)>,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Early {
    /// Nothing is lost, and masters' clocks agree.
    is_on: bool,
    windows: Map<u32, Window>,
    found: Found,
}

impl Early {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        // Who is further away than a check may wait is told so.
        let is_near = plan.zones.iter().all(|zone| zone.store < plan.daemon.timeout);
        let is_calm = plan.faults.is_empty() && plan.network.loss == 0 && plan.redis.skew.0 <= SAME && is_near;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd) && !TROUBLE.when(!is_calm),
            windows: Map::default(),
            found: Found::default(),
        }
    }

    /// Only at its end is known how much was asked for.
    fn close(&mut self, window: Window) {
        if let Some((moment, what)) = window.denied.filter(|_| window.asked * 100 < window.count * PART) {
            let Window { asked, count, .. } = window;
            self.found.add("early", moment, || format!("{what}, and only {asked} of {count} were asked for"));
        }
    }
}

impl Observer for Early {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        let Seen::Answered { request, rule, decision, .. } = seen else { return };
        if SHAPES.when(aligned(rule).is_none()) {
            return;
        }
        let Some(limit) = aligned(rule).filter(|_| self.is_on && request.kind == Kind::Check) else { return };
        let ends = decision.reset_at.0;
        if self.windows.get(&request.key).is_none_or(|window| window.ends < ends) {
            let fresh = Window { ends, count: limit.count, asked: 0, denied: None };
            if let Some(window) = self.windows.insert(request.key, fresh) {
                self.close(window);
            }
        }
        let Some(window) = self.windows.get_mut(&request.key).filter(|window| window.ends == ends) else { return };
        window.asked += request.cost;
        if decision.verdict == Verdict::Deny && decision.reason == Reason::Rate && window.denied.is_none() {
            window.denied = Some((moment, format!("{request:?} denied: {decision:?}")));
        }
    }
}

impl Checker for Early {
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
    fn a_denial_below_forty_percent_is_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = Early::new(&history.setting());
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 39, Source::Lease, false);
        history.check(&mut checker, 6 * SECOND + SECOND / 5, 1, Source::Lease, true);
        history.check(&mut checker, 7 * SECOND + SECOND / 5, 39, Source::Lease, false);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 8 * SECOND + SECOND / 5, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "early");
    }
}
