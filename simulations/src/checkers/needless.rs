//! **liveness**: as long as nothing has gone wrong, nobody goes by its share: the store answers, and has lost nothing.
//!
//! A key that the store has dropped, because nobody asked for it, begins anew; that is no loss.

use rationd::core::decision::Source;

use super::Found;
use super::notes::{Stops, leaves_the_store};
use super::sheet::{Exemption, Sheet};
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static FAULTS: Exemption = Exemption::new(
    "from the first fault on that concerns the store or the way to it, until all has healed, and runs with losses, stalls or nodes far away",
    "A store may then be late or lost, and nobody knows better; when all has healed liveness.rs judges.",
);
static STOPS: Exemption = Exemption::new(
    "a node that is not run for a while, from then on for two periods and three seconds",
    "Answers come while it stands still, and it takes them for late.",
);
static PARKED: Exemption = Exemption::new(
    "who has waited for the store",
    "The first check of a bucket passes when a busy store is late, and the next grant pays for it.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "needless.rs",
    invariants: &["liveness"],
    proves: "As long as nothing has gone wrong nobody goes by its share.",
    judges: "All but concurrent limits.",
    exemptions: &[&BASELINES, &FAULTS, &STOPS, &PARKED],
    mutant: Some("expiry-taken-for-loss"),
};

/// A store is quick where calls are under way for so small a part of the time that a check waits for it.
const QUICK: u64 = 5;

/// The checker.
#[derive(Debug)]
pub(super) struct Needless {
    /// Until then nothing goes wrong with the store.
    until: u64,
    stops: Stops,
    found: Found,
}

/// See `STOPS`: retries, and the second in which a share goes on.
const AWAKE: u64 = 3_000_000;

impl Needless {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let trip = 2 * (plan.network.latency.0 + plan.network.jitter.0);
        let is_noisy = plan.network.loss + plan.network.repeats + plan.redis.stalls > 0;
        let is_far = !plan.zones.is_empty() || QUICK * trip > plan.daemon.timeout.0;
        let is_on = !BASELINES.when(plan.brain != Brain::Rationd) && !FAULTS.when(is_noisy || is_far);
        let of_store = plan.faults.iter().filter(|fault| !fault.what.stops_nodes() && !leaves_the_store(&fault.what));
        let first = of_store.map(|fault| fault.at.0).min().unwrap_or(u64::MAX);
        Self { until: if is_on { first } else { 0 }, stops: Stops::default(), found: Found::default() }
    }
}

impl Observer for Needless {
    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Executed | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.stops.see(seen);
        let Seen::Answered { request, rule, decision, parked, .. } = seen else { return };
        if request.kind != Kind::Check || decision.source != Source::Share || PARKED.when(*parked) {
            return;
        }
        let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        if STOPS.when(self.stops.meet(request.node, moment.at, 2 * longest + AWAKE)) {
            return;
        }
        if !FAULTS.when(moment.at >= self.until) {
            self.found.add("liveness", moment, || format!("{request:?}: {decision:?}, and nothing has gone wrong"));
        }
    }
}

impl Checker for Needless {
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
    use crate::plan::{Fault, What};
    use crate::span::Span;

    #[test]
    fn a_share_without_a_reason_is_seen_and_one_after_a_fault_is_not() {
        for (at, loss, seen) in [(9, 0, 1), (10, 0, 0), (9, 1, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.network.loss = loss;
            setting.plan.faults = vec![Fault { at: Span(10), lasts: Span(0), what: What::FlushAll { master: 0 } }];
            let mut checker = Needless::new(&setting);
            history.check(&mut checker, 1, 1, Source::Lease, true);
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// A node that stands still is excused, and no other one; a fault that leaves the store alone excuses nobody.
    #[test]
    fn a_fault_of_no_store_excuses_nobody_but_a_node_that_stands_still() {
        let part = What::Part { nodes: vec![0], one_way: false };
        for (what, seen) in [(part, 1), (What::Freeze { node: 0 }, 0), (What::Freeze { node: 1 }, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let fault = Fault { at: Span(10), lasts: Span(10), what };
            setting.plan.faults = vec![fault.clone()];
            let mut checker = Needless::new(&setting);
            for node in [0, 1] {
                history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 1 });
            }
            history.see(&mut checker, 10, &Seen::Begins(&fault));
            history.check(&mut checker, 15, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{fault:?}: {:?}", checker.violations());
        }
    }
}
