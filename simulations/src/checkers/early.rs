//! **early**: while nothing goes wrong and all nodes together are asked for less than 40 % of a window, no check is
//! denied because the limit is spent: no single node holds that much of it.

use std::collections::VecDeque;

use rationd::core::call::Op;
use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::gcra::LEASE_LIFE;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::{Clocks, Lives, UnderWay};
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Brain, Plan, What, Zone};

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static TROUBLE: Exemption = Exemption::new(
    "from the first fault of a run on that is more than demand, a wall clock, scripts that are forgotten, nodes of a newer build or other limits of other keys, until all has healed, for two seconds and all that may count by then",
    "Tokens are then held where nobody asks, and nobody is to blame.",
);
static LOST: Exemption = Exemption::new(
    "a key of which a call, or an ask of a peer, was lost or took more than a fifth of the timeout, in runs with losses, as long as its tokens count",
    "What it was lent nobody has.",
);
static FAR: Exemption = Exemption::new(
    "a key that was asked of a node to which an answer of the store takes longer than a check waits, as long as its tokens count",
    "Who asks such a node is told so, and what it is lent comes too late to be spent.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until that has caught up with all before and what may count by then",
    "What the other clock lent nobody may spend in the windows of this one.",
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
    judges: "One fixed window, and all other shapes of keys that one node is asked of, as long as nothing goes wrong.",
    exemptions: &[&BASELINES, &TROUBLE, &LOST, &FAR, &LEAPS, &CONCURRENT, &ASIDE, &SEVERAL, &OVERTAKEN],
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
    is_on: bool,
    plan: Plan,
    /// By policy: when something goes wrong for the first time with its keys; and from when on nothing does any more.
    until: Vec<u64>,
    from: u64,
    lives: Lives,
    clocks: Clocks,
    calls: UnderWay,
    windows: Map<u32, Window>,
    /// What was asked for of a key of another shape.
    asked: Map<u32, VecDeque<Asked>>,
    /// The node that alone was asked of a key; `None`: there were several.
    alone: Map<u32, Option<u32>>,
    /// When tokens of a key were last lost: the store executed a return that was overtaken, a call was lost, a far node was asked.
    spoilt: Map<u32, u64>,
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

/// Whether no token is held elsewhere, or lost, by that.
fn is_harmless(what: &What) -> bool {
    matches!(what, What::Surge { .. } | What::Jump { .. } | What::ScriptFlush { .. } | What::Build { newer: true, .. })
}

/// When something goes wrong for the first time with keys of a policy. Other limits of one are of no concern to the others.
fn until(plan: &Plan, policy: usize) -> u64 {
    let concerns = |what: &What| match what {
        What::Push { policy: of, .. } => *of as usize % plan.policies.len().max(1) == policy,
        what => !is_harmless(what),
    };
    let faults = plan.faults.iter().filter(|fault| concerns(&fault.what));
    faults.map(|fault| fault.at.0).min().unwrap_or(u64::MAX)
}

impl Early {
    fn until(&self, request: &Request) -> u64 {
        self.until.get(request.policy as usize).copied().unwrap_or(0)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            plan: plan.clone(),
            until: (0..plan.policies.len().max(1)).map(|policy| until(plan, policy)).collect(),
            from: u64::MAX,
            lives: Lives::default(),
            clocks: Clocks::new(plan),
            calls: UnderWay::default(),
            windows: Map::default(),
            asked: Map::default(),
            alone: Map::default(),
            spoilt: Map::default(),
            found: Found::default(),
        }
    }

    /// Takes note of what loses tokens of a key.
    fn spoil(&mut self, moment: Moment, seen: &Seen<'_>) {
        let key = match seen {
            Seen::Joined { node, .. } | Seen::Left { node, .. } => {
                self.calls.end(*node);
                None
            }
            Seen::Executed { key, call, grant, .. } if grant.outdated && matches!(call.op, Op::Return { .. }) => {
                OVERTAKEN.when(true).then_some(*key)
            }
            Seen::Asked(request) => {
                let zone = Zone::of(&self.plan.zones, request.node);
                // Who is further away than a check may wait is told so.
                let is_far = zone.is_some_and(|zone| zone.store >= self.plan.daemon.timeout);
                FAR.when(is_far).then_some(request.key)
            }
            _ if self.plan.network.loss == 0 => None,
            Seen::Called { node, key, call, .. } => {
                self.calls.leave(moment, self.lives.of(*node), *key, call.id);
                None
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let took = self.calls.settle(moment, (*node, *incarnation), *key, call.id).unwrap_or(0);
                LOST.when(grant.is_none() || took > self.quick()).then_some(*key)
            }
            Seen::PeerAnswered { key, peer, ask, answer, .. } if answer.is_ok() => {
                self.calls.leave(moment, *peer, *key, u64::MAX - ask.id);
                None
            }
            Seen::PeerHeard { node, incarnation, key, ask, .. } => {
                self.calls.settle(moment, (*node, *incarnation), *key, u64::MAX - ask.id);
                None
            }
            _ => None,
        };
        if let Some(key) = key {
            self.spoilt.insert(key, moment.at);
        }
    }

    /// A call that takes longer is late.
    fn quick(&self) -> u64 {
        const QUICK: u64 = 5;
        self.plan.daemon.timeout.0 / QUICK
    }

    /// Whether tokens of a key were lost that would count then, for so long.
    fn is_spoilt(&self, moment: Moment, key: u32, counts: u64) -> bool {
        let is_waiting = self.calls.of(key).any(|(_, left)| moment.at > left + self.quick());
        let leapt = LEAPS.when(self.clocks.is_new(moment, key, counts));
        leapt || LOST.when(is_waiting) || self.spoilt.get(&key).is_some_and(|at| moment.at < at + counts)
    }

    /// Of other shapes the limit says how long ago what was asked for may count.
    fn answered(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision) {
        let until = self.until(request);
        let asked = self.asked.entry(request.key).or_default();
        let longest = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        while asked.front().is_some_and(|asked| asked.at + longest < moment.at) {
            asked.pop_front();
        }
        let is_denied = decision.verdict == Verdict::Deny && decision.reason == Reason::Rate;
        // Accounts of nodes that are gone hold a part of a bucket.
        let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        let counts = longest + if is_bucket { LEASE_LIFE.0 } else { 0 };
        if !is_denied || TROUBLE.when(moment.at >= until && moment.at < self.from.saturating_add(counts)) {
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
        if matches!(seen, Seen::Calm) {
            self.from = moment.at + SETTLED;
        }
        self.lives.see(seen);
        self.clocks.see(moment, seen);
        self.spoil(moment, seen);
        let Seen::Answered { request, rule, decision, .. } = seen else { return };
        let counts = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        let is_spoilt = self.is_spoilt(moment, request.key, counts);
        if !self.is_on || request.kind != Kind::Check || ASIDE.when(rule.is_entitled()) {
            return;
        }
        let Some(limit) = aligned(rule) else {
            if !is_spoilt {
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
        let (until, from) = (self.until(request), self.from);
        let is_troubled = |passed: u64| moment.at >= until && moment.at < from.saturating_add(passed);
        let Some(window) = self.windows.get_mut(&request.key).filter(|window| window.ends == ends) else { return };
        window.asked += request.cost;
        window.is_excused |= is_spoilt;
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

    /// A call that is lost excuses its key for as long as what it was lent counts, and no other call does.
    #[test]
    fn a_key_is_excused_whose_call_was_lost_as_long_as_its_tokens_count() {
        for (answered, at, seen) in [(true, 2, 1), (false, 2, 0), (false, 4, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.network.loss = 1;
            let mut checker = Early::new(&setting);
            history.called(&mut checker, SECOND, 1, 1);
            match answered {
                true => history.settled(&mut checker, SECOND + 1, 1, 1),
                false => history.unanswered_in(&mut checker, SECOND + 50_000, [0, 1]),
            }
            history.check(&mut checker, at * SECOND + SECOND / 4, 1, Source::Lease, false);
            history.check(&mut checker, (at + 1) * SECOND + SECOND / 4, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{answered} {at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_key_that_a_near_node_is_asked_for_is_judged_in_a_run_with_far_nodes_and_clocks_that_differ() {
        for (far, seen) in [(0, 1), (1_000, 0)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.redis.skew = crate::span::Span::secs(1);
            setting.plan.zones = vec![Zone { nodes: far, store: crate::span::Span::millis(50) }];
            let mut checker = Early::new(&setting);
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, 7 * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{far}: {:?}", checker.violations());
        }
    }

    /// The clock is five seconds back from the second second on: until it has caught up, and a window and half a second after that.
    #[test]
    fn a_key_that_another_clock_counts_is_judged_again_when_that_has_caught_up() {
        for (at, seen) in [(7, 0), (9, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Early::new(&history.setting());
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            history.check(&mut checker, at * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, (at + 1) * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// They go by the limits of before and are lent tokens under those, whoever else has other limits.
    #[test]
    fn other_limits_excuse_the_keys_of_their_policy_alone() {
        for (policy, seen) in [(0, 0), (1, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.policies.push(setting.plan.policies[0].clone());
            let what = What::Push { policy, limits: vec!["10/1s fixed".into()] };
            let (at, lasts) = (crate::span::Span::secs(1), crate::span::Span(0));
            setting.plan.faults = vec![crate::plan::Fault { at, lasts, what }];
            let mut checker = Early::new(&setting);
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, 7 * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{policy}: {:?}", checker.violations());
        }
    }

    /// More demand holds no tokens elsewhere, and a node that dies with what it holds does.
    #[test]
    fn a_fault_that_loses_nothing_excuses_nothing() {
        for (what, seen) in [(What::Surge { factor: 2_000 }, 1), (What::Crash { node: 0 }, 0)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            let (at, lasts) = (crate::span::Span::secs(1), crate::span::Span(0));
            setting.plan.faults = vec![crate::plan::Fault { at, lasts, what }];
            let mut checker = Early::new(&setting);
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, 7 * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
