//! **early**: while nothing goes wrong and all nodes together are asked for less than 40 % of a window, no check is
//! denied because the limit is spent: no single node holds that much of it.

use std::collections::VecDeque;

use rationd::core::call::Op;
use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::gcra::LEASE_LIFE;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static TROUBLE: Exemption = Exemption::new(
    "from the first fault of a run until all has healed, for two seconds and all that may count by then, runs with losses until then, from then on those in which a clock is set, and always those with clocks that differ or nodes far away",
    "Tokens are then held where nobody asks, and nobody is to blame.",
);
static CONCURRENT: Exemption =
    Exemption::new("concurrent limits", "How long a slot is held is up to the client; permits.rs counts them.");

static ASIDE: Exemption = Exemption::new(
    "keys of which tokens are set aside for nodes that may lose the store",
    "What is set aside for a node nobody else is lent, until that has asked in the window.",
);

static SEVERAL: Exemption = Exemption::new(
    "of other shapes, a key that several nodes were asked of",
    "What is lent to one of them is its own until gossip has told of the other, however little it has used.",
);

static OVERTAKEN: Exemption = Exemption::new(
    "a key of which a node's return was overtaken by its next call, as long as its tokens count",
    "The store takes it for outdated, so what it hands back is lost until the window is over; connections keep the order of calls.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "early.rs",
    invariants: &["early"],
    proves: "While all nodes together are asked for less than 40 % of a window, or of a bucket in the time in which it fills up, nobody is denied because that limit is spent.",
    judges: "One fixed window, and all other shapes of keys that one node is asked of, in runs in which nothing goes wrong.",
    exemptions: &[&BASELINES, &TROUBLE, &CONCURRENT, &ASIDE, &SEVERAL, &OVERTAKEN],
    mutant: None,
};

/// Below this part of a limit, in hundredths, everybody passes.
const PART: u64 = 40;

/// So long after all has healed nodes know of it.
const SETTLED: u64 = 2_000_000;

/// One key's window.
#[derive(Debug)]
struct Window {
    ends: u64,
    count: u64,
    asked: u64,
    /// The first denial.
    denied: Option<(Moment, String)>,
    /// Tokens of it were lost with such a return.
    is_excused: bool,
}

/// A check.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: u64,
    cost: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Early {
    /// Masters' clocks agree, and all nodes are near.
    is_on: bool,
    /// When something goes wrong for the first time, and from when on nothing does any more.
    until: u64,
    from: u64,
    /// Something sets a clock.
    leaps: bool,
    windows: Map<u32, Window>,
    /// What was asked for of a key of another shape.
    asked: Map<u32, VecDeque<Asked>>,
    /// The node that alone was asked of a key; `None`: there were several.
    alone: Map<u32, Option<u32>>,
    /// When the store executed the latest return that was overtaken.
    overtaken: Map<u32, u64>,
    found: Found,
}

/// For so long what was spent counts, and what was asked for may be spent when it is answered.
fn counts_for(limit: &Limit) -> u64 {
    const ANSWERED: u64 = 500_000;
    ANSWERED
        + match limit.algorithm {
            Algorithm::Sliding => 2 * limit.period.0,
            Algorithm::Gcra => limit.depth().0,
            _ => limit.period.0,
        }
}

impl Early {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        // Who is further away than a check may wait is told so.
        let is_near = plan.zones.iter().all(|zone| zone.store < plan.daemon.timeout);
        let is_calm = plan.redis.skew.0 <= SAME && is_near;
        let first = plan.faults.iter().map(|fault| fault.at.0).min().unwrap_or(u64::MAX);
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd) && !TROUBLE.when(!is_calm),
            until: if plan.network.loss == 0 { first } else { 0 },
            leaps: plan.clocks_leap(),
            from: u64::MAX,
            windows: Map::default(),
            asked: Map::default(),
            alone: Map::default(),
            overtaken: Map::default(),
            found: Found::default(),
        }
    }

    /// Of other shapes the limit says how long ago what was asked for may count.
    fn answered(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision) {
        let asked = self.asked.entry(request.key).or_default();
        let longest = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        while asked.front().is_some_and(|asked| asked.at + longest < moment.at) {
            asked.pop_front();
        }
        let is_denied = decision.verdict == Verdict::Deny && decision.reason == Reason::Rate;
        // Accounts of nodes that are gone hold a part of a bucket.
        let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        let counts = longest + if is_bucket { LEASE_LIFE.0 } else { 0 };
        if !is_denied || TROUBLE.when(moment.at >= self.until && moment.at < self.from.saturating_add(counts)) {
            return;
        }
        let limit = &rule.limits[usize::from(decision.limit_index)];
        if CONCURRENT.when(limit.algorithm == Algorithm::Concurrent) {
            return;
        }
        let (most, from) = (limit.burst, moment.at.saturating_sub(counts_for(limit)));
        let mut sum = 0;
        for asked in asked.iter().rev().take_while(|asked| asked.at >= from) {
            sum += asked.cost;
            if sum * 100 >= most * PART {
                return;
            }
        }
        if !SEVERAL.when(self.alone.get(&request.key).is_none_or(|alone| alone.is_none())) {
            self.found.add("early", moment, || {
                format!("{request:?} denied: {decision:?}, and only {sum} of {most} were asked for")
            });
        }
    }

    /// Only at its end is known how much was asked for.
    fn close(&mut self, window: Window) {
        let is_early = !window.is_excused && window.asked * 100 < window.count * PART;
        if let Some((moment, what)) = window.denied.filter(|_| is_early) {
            let Window { asked, count, .. } = window;
            self.found.add("early", moment, || format!("{what}, and only {asked} of {count} were asked for"));
        }
    }
}

impl Observer for Early {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Asked(request) = seen
            && self.is_on
            && request.kind == Kind::Check
        {
            // Who waits is charged before it is answered.
            let asked = Asked { at: moment.at, cost: request.cost };
            self.asked.entry(request.key).or_default().push_back(asked);
            let alone = self.alone.entry(request.key).or_insert(Some(request.node));
            *alone = alone.filter(|node| *node == request.node);
        }
        if matches!(seen, Seen::Calm) && !TROUBLE.when(self.leaps) {
            self.from = moment.at + SETTLED;
        }
        if let Seen::Executed { key, call, grant, .. } = seen
            && grant.outdated
            && matches!(call.op, Op::Return { .. })
        {
            self.overtaken.insert(*key, moment.at);
        }
        let Seen::Answered { request, rule, decision, .. } = seen else { return };
        let counts = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        let is_overtaken = OVERTAKEN.when(self.overtaken.get(&request.key).is_some_and(|at| moment.at < at + counts));
        if !self.is_on || request.kind != Kind::Check || ASIDE.when(rule.is_entitled()) {
            return;
        }
        let Some(limit) = aligned(rule) else {
            if !is_overtaken {
                self.answered(moment, request, rule, decision);
            }
            return;
        };
        self.asked.remove(&request.key);
        let ends = decision.reset_at.0;
        if self.windows.get(&request.key).is_none_or(|window| window.ends < ends) {
            let fresh = Window { ends, count: limit.count, asked: 0, denied: None, is_excused: false };
            if let Some(window) = self.windows.insert(request.key, fresh) {
                self.close(window);
            }
        }
        let (until, from) = (self.until, self.from);
        let is_troubled = |passed: u64| moment.at >= until && moment.at < from.saturating_add(passed);
        let Some(window) = self.windows.get_mut(&request.key).filter(|window| window.ends == ends) else { return };
        window.asked += request.cost;
        window.is_excused |= is_overtaken;
        let is_denied = decision.verdict == Verdict::Deny && decision.reason == Reason::Rate;
        let passed = limit.period.0.saturating_sub(decision.reset_after.0);
        if is_denied && window.denied.is_none() && !TROUBLE.when(is_troubled(passed)) {
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

    #[test]
    fn a_denial_of_another_shape_is_early_while_what_was_asked_for_may_not_count() {
        for (limit, counts) in
            [("100/1s burst 100", 1_500), ("100/1s sliding", 2_500), ("100/1s fixed from-first", 1_500)]
        {
            for (after, seen) in [(counts - 100, 0), (counts + 100, 1)] {
                let mut history = History::new(limit);
                let mut checker = Early::new(&history.setting());
                (0..39).for_each(|_| history.check(&mut checker, 6 * SECOND, 1, Source::Lease, true));
                history.check(&mut checker, 6 * SECOND + after * SECOND / 1_000, 1, Source::Lease, false);
                assert_eq!(checker.violations().len(), seen, "{limit}: {:?}", checker.violations());
            }
        }
    }

    #[test]
    fn what_begins_two_seconds_after_all_has_healed_is_judged_again() {
        for (limit, at, seen) in [
            ("100/1s fixed", 6, 0),
            ("100/1s fixed", 7, 1),
            ("100/1s sliding", 9, 0),
            ("100/1s sliding", 10, 1),
            ("100/1s burst 100", 12, 0),
            ("100/1s burst 100", 13, 1),
        ] {
            let mut history = History::new(limit);
            let mut setting = history.setting();
            let what = crate::plan::What::FlushAll { master: 0 };
            setting.plan.faults =
                vec![crate::plan::Fault { at: crate::span::Span::secs(1), lasts: crate::span::Span(0), what }];
            let mut checker = Early::new(&setting);
            history.see(&mut checker, 5 * SECOND, &Seen::Calm);
            history.check(&mut checker, at * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, (at + 1) * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{limit} {at}: {:?}", checker.violations());
        }
    }
}
