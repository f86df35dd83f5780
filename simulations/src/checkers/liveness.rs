//! **liveness**: two seconds after everything has healed no answer comes from a share or for want of
//! the store, and from the next whole window on the limit is used, if it is asked for. A store that
//! needs more than a quarter of the timeout for an answer when all is well is not judged.
//! **livelock**: time goes on, whatever the nodes do.

use std::collections::BTreeMap;

use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::limit::Algorithm;

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};

static SLOW_STORE: Exemption = Exemption::new(
    "a store that needs more than a quarter of the timeout when all is well",
    "Leaving it aside is right then.",
);
static ROOM_LEFT: Exemption = Exemption::new(
    "the use of a quarter, two costs and a token a node",
    "Each node may hold some when the window ends: bursts of one node alone cost that much.",
);
static SHARES_END: Exemption =
    Exemption::new("two of the longest periods", "A share goes on until the window is over in which it was used.");
static SHAPES: Exemption = Exemption::new("the use of other shapes", "Of them a whole window cannot be named.");

pub(super) static SHEET: Sheet = Sheet {
    file: "liveness.rs",
    invariants: &["liveness", "livelock"],
    proves: "Two seconds after everything has healed no answer comes without the store, and the limit is used where it is asked for; time goes on.",
    judges: "Answers: all. Use: one fixed window.",
    exemptions: &[&SLOW_STORE, &ROOM_LEFT, &SHARES_END, &SHAPES],
    mutant: Some("stays-away"),
};

/// After the last fault has healed.
const SETTLED: u64 = 2_000_000;

/// One window of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    number: u64,
    asked: u64,
    admitted: u64,
    most: u64,
    /// It has been watched from its beginning.
    whole: bool,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Liveness {
    /// When leases must flow, when demand ends; nothing in between when there is no calm.
    from: u64,
    until: u64,
    /// The store takes so long, all being well, that leaving it aside is right.
    slow: bool,
    windows: BTreeMap<u32, Window>,
    nodes: u64,
    found: Found,
}

impl Liveness {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        // A replica that is missing, or a failover under way, ends a while after the faults.
        let from = plan.span.0 + plan.redis.failover.0 + plan.redis.alone.0 + SETTLED;
        let trip = 2 * (plan.network.latency.0 + 3 * plan.network.jitter.0) + plan.redis.script_cost.0;
        let trip = trip + plan.zones.iter().map(|zone| zone.store.0).max().unwrap_or(0);
        let confirms = plan.daemon.confirm && plan.redis.replica;
        let slow = trip + if confirms { plan.redis.lag.0 } else { 0 } > plan.daemon.timeout.0 / 4;
        Self {
            from,
            until: plan.span.0 + plan.calm.0,
            slow,
            windows: BTreeMap::new(),
            nodes: 1,
            found: Found::default(),
        }
    }

    fn judge(&mut self, moment: Moment, key: u32, window: Window, count: u64) {
        // Each node may hold some tokens when the window ends, and not know yet that others want them:
        // bursts of one node alone cost that much. What demand that is steady costs, scenarios show.
        let wanted = (count * 3 / 4).saturating_sub(ROOM_LEFT.forgives(window.most * 2 + self.nodes));
        if window.whole && window.asked >= count + count / 5 && window.admitted < wanted {
            self.found
                .add("liveness", moment, || format!("key {key}: {window:?} of {count}: wanted {wanted} at least"));
        }
    }
}

impl Observer for Liveness {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Joined { node, .. } = seen {
            self.nodes = self.nodes.max(u64::from(*node) + 1);
        }
        if matches!(seen, Seen::Stuck) {
            self.found.add("livelock", moment, || "a million events within a millisecond".into());
        }
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        if moment.at < self.from || moment.at >= self.until || SLOW_STORE.when(self.slow) || request.kind != Kind::Check
        {
            return;
        }
        // A share goes on until the window is over in which it was used.
        let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        let back = !SHARES_END.when(moment.at < self.from + 2 * longest);
        let alone = decision.source == Source::Share || matches!(decision.reason, Reason::Share | Reason::Store);
        if back && alone {
            self.found.add("liveness", moment, || format!("{request:?}: still without the store: {decision:?}"));
        }
        let [limit] = &rule.limits[..] else { return };
        if SHAPES.when(limit.algorithm != Algorithm::Fixed) {
            return;
        }
        let number = store.0 / limit.period.0;
        let window = self.windows.entry(request.key).or_insert(Window { number, ..Window::default() });
        let over = (window.number != number).then_some(*window);
        if over.is_some() {
            *window = Window { number, whole: true, ..Window::default() };
        }
        window.asked += request.cost;
        window.most = window.most.max(request.cost);
        window.admitted += if decision.verdict == Verdict::Allow { request.cost } else { 0 };
        if let Some(over) = over.filter(|over| over.number + 1 == number) {
            self.judge(moment, request.key, over, limit.count);
        }
    }
}

impl Checker for Liveness {
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

    fn checker(history: &History) -> Liveness {
        let mut setting = history.setting();
        setting.plan.calm = crate::span::Span::secs(20);
        Liveness::new(&setting)
    }

    #[test]
    fn an_answer_on_a_share_long_after_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        history.check(&mut checker, 5 * SECOND, 1, Source::Share, true);
        assert!(checker.violations().is_empty());
        history.check(&mut checker, 9 * SECOND, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "liveness");
    }

    #[test]
    fn a_limit_that_is_not_used_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        for second in 10..15 {
            for check in 0..20 {
                history.check(&mut checker, second * SECOND + check, 1, Source::Lease, check < 3);
            }
        }
        assert_eq!(checker.violations()[0].invariant, "liveness");
    }
}
