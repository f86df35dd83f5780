//! **early**: while all nodes together are asked for less than 40 % of a window, no check is denied because the limit
//! is spent: no node may hold so much of the rest that others find nothing. Faults excuse the keys that they reach, and
//! no others.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use rationd::core::call::Op;
use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::usage::Usage;

use super::notes::{Clocks, Lives, UnderWay, goes_by};
use super::phased::Pushes;
use super::reach::{Reach, scope};
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Brain, Plan, Zone};

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static LOST: Exemption = Exemption::new(
    "a key of which a call, or an ask of a peer, was lost, was not sent or took more than a fifth of the timeout, in runs with losses, or from a fault of nodes or of the way to the store on until all has healed, as long as its tokens count; and again when the node that asked is lent something for the first time after that",
    "What it was lent nobody has. Its node has gone by its share since, however long nobody asked it for the key, and asks for what is left of that, so that others are not lent it.",
);
static FORGOTTEN: Exemption = Exemption::new(
    "a key of which the store has lost something, or a former owner lent, as long as its tokens count",
    "What was handed back may count as lent again, and who brings back what the store has lost is lent nothing yet.",
);
static STOPPED: Exemption = Exemption::new(
    "a key that a node was asked of that was then stopped, or ended with what it held, or whose call about it was under way when it left, as long as its tokens count; of a node that is stopped again and again, all of that time",
    "They are held where nobody asks, and nobody tells when such a node runs.",
);
static PUSHED: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "What was lent under other limits counts by these.",
);
static LIES: Exemption = Exemption::new(
    "a key of which a node was told what is not so, of a window that may be open or is to come, as long as its tokens count",
    "Who tells more than was admitted denies others on purpose.",
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
    "a bucket or a sliding window that several nodes were asked of, once a fifth of it is asked for",
    "It comes back all the time, so it is lent in larger lots. What is lent to one node is its own until it hands that back, and a node to which clients go all at once, or that comes to it late, has its part and no more.",
);

static WANDERS: Exemption = Exemption::new(
    "a bucket that more than four nodes were asked of in the life of an account, once a fifth of it is asked for in that time and the one in which it fills up",
    "What it has lent counts until it is handed back or the account closes, and a node to which no client goes any more does not hear that others lack it.",
);

static LEFT: Exemption = Exemption::new(
    "a window from the first request that several nodes were asked of, once a third of it is asked for",
    "A node is lent three fifths beside what it holds of smaller lots, and nodes that clients have left keep theirs.",
);

static NO_GOSSIP: Exemption = Exemption::new(
    "in runs without gossip, a fixed window that several nodes were asked of, once a third of it is asked for",
    "Nobody tells nodes that clients have left that others lack what they hold.",
);

static SMALL: Exemption = Exemption::new(
    "of other shapes than one fixed window, keys of several limits or of less than a hundred tokens that several nodes were asked of",
    "A denial of several limits does not always name the one that is spent, and a few tokens may all be lent to other nodes.",
);

static UNANSWERED: Exemption = Exemption::new(
    "of other shapes than one fixed window, a key that several nodes were asked of and of which a call was not answered or not sent, as long as its tokens count",
    "Its node has gone by its share, and asks for what is left of that when the store is back, so that others are not lent it.",
);

static OVERTAKEN: Exemption = Exemption::new(
    "a key of which a node's return was overtaken by its next call, as long as its tokens count",
    "The store takes it for outdated, so what it hands back is lost until the window is over; connections keep the order of calls.",
);

static UNHEARD: Exemption = Exemption::new(
    "under one fixed window, an answer by a clock that is more than a period from the store's",
    "Its node has heard nothing of the store yet, goes by its own clock, and names a window of that.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "early.rs",
    invariants: &["early"],
    proves: "While all nodes together are asked for less than 40 % of a window, or of a bucket in the time in which it fills up, nobody is denied because that limit is spent.",
    judges: "All algorithms, several limits, whatever goes wrong elsewhere. Of what several nodes are asked of, buckets and sliding windows below a fifth, windows from the first request below a third.",
    exemptions: &[
        &BASELINES,
        &LOST,
        &FORGOTTEN,
        &STOPPED,
        &PUSHED,
        &LIES,
        &FAR,
        &LEAPS,
        &CONCURRENT,
        &ASIDE,
        &SEVERAL,
        &WANDERS,
        &LEFT,
        &NO_GOSSIP,
        &SMALL,
        &UNANSWERED,
        &OVERTAKEN,
        &UNHEARD,
    ],
    mutant: Some("batch-uncapped"),
};

/// While less than this part of a limit is asked for, in hundredths, no check is denied.
const PART: u64 = 40;

/// See `SMALL`.
const LARGE: u64 = 100;

/// The same for limits that trickle (buckets and sliding windows) and are asked for at several nodes.
const PART_OF_SEVERAL: u64 = 20;

/// See `LEFT` and `NO_GOSSIP`.
const PART_OF_LEFT: u64 = 33;

/// See `WANDERS`.
const NODES: usize = 4;

/// How long after all faults have healed nodes know of it.
const SETTLED: u64 = 2_000_000;

/// A report about a window that is this many periods away is about none that is open, by the clock of any master.
const AWAY: u64 = 16;

/// One key's window.
#[derive(Debug)]
struct Window {
    ends: u64,
    count: u64,
    asked: u64,
    /// The first denial.
    denied: Option<(Moment, String)>,
    /// The first node that was asked for it, and whether others were, too.
    node: u32,
    is_shared: bool,
    /// Whether tokens of it were lost, see `Early::spoilt`.
    is_excused: bool,
}

/// A check.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: u64,
    node: u32,
    cost: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Early {
    is_on: bool,
    has_no_gossip: bool,
    plan: Plan,
    /// By policy: when its limits change.
    pushes: Vec<Pushes>,
    /// When the first fault of nodes or of the way to the store began, and when all have healed for long enough.
    begun: u64,
    healed: u64,
    lives: Lives,
    clocks: Clocks,
    calls: UnderWay,
    windows: Map<u32, Window>,
    /// The recent checks of keys whose limits are not one aligned window.
    asked: Map<u32, VecDeque<Asked>>,
    /// The only node that was asked for a key; `None` if there were several.
    alone: Map<u32, Option<u32>>,
    /// When tokens of a key were last lost, with or without a fault: because the store executed a return that an
    /// acquire had overtaken, a call was lost, or a node far from the store was asked.
    spoilt: Map<u32, u64>,
    /// When a call about a key last got no answer or was not sent.
    unanswered: Map<u32, u64>,
    /// Nodes and keys for which nothing was lent since a call was lost.
    by_share: BTreeSet<((u32, u64), u32)>,
    /// When a fault last reached a key, and which nodes it reached.
    reached: Map<u32, u64>,
    reach: Reach,
    /// By digest: the key, and its rule.
    keys: Map<u128, (u32, Arc<Rule>)>,
    found: Found,
}

/// How long a request for tokens of a limit matters: the time until its answer, and the time for which spent tokens
/// count.
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
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            has_no_gossip: plan.gossip.is_none(),
            plan: plan.clone(),
            pushes: (0..plan.policies.len().max(1)).map(|policy| Pushes::new(plan, policy)).collect(),
            begun: u64::MAX,
            healed: u64::MAX,
            lives: Lives::default(),
            clocks: Clocks::new(plan),
            calls: UnderWay::default(),
            windows: Map::default(),
            asked: Map::default(),
            alone: Map::default(),
            spoilt: Map::default(),
            unanswered: Map::default(),
            by_share: BTreeSet::new(),
            reached: Map::default(),
            reach: Reach::new(plan),
            keys: Map::default(),
            found: Found::default(),
        }
    }

    /// Takes note of events by which tokens of a key are lost.
    fn spoil(&mut self, moment: Moment, seen: &Seen<'_>) {
        let key = match seen {
            Seen::Executed { key, call, grant, .. } if grant.outdated && matches!(call.op, Op::Return { .. }) => {
                OVERTAKEN.when(true).then_some(*key)
            }
            Seen::Asked(request) => {
                let zone = Zone::of(&self.plan.zones, request.node);
                // A node whose store is further away than a check may wait gets its tokens too late.
                let is_far = zone.is_some_and(|zone| zone.store >= self.plan.daemon.timeout);
                FAR.when(is_far).then_some(request.key)
            }
            Seen::Called { node, key, call, .. } => {
                self.keys.entry(call.digest.0).or_insert_with(|| (*key, call.rule.clone()));
                self.calls.leave(moment, self.lives.of(*node), *key, call.id);
                None
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let took = self.calls.settle(moment, (*node, *incarnation), *key, call.id).unwrap_or(0);
                let is_lost = grant.is_none() || took > self.quick();
                if LOST.when(is_lost && self.is_faulty(moment)) {
                    self.reach_until(*key, moment.at);
                }
                let excuses = self.is_faulty(moment) || self.plan.network.loss > 0;
                let life = ((*node, *incarnation), *key);
                if LOST.when(grant.is_none() && excuses) {
                    self.by_share.insert(life);
                }
                let is_lent = grant.is_some_and(|grant| grant.granted > 0);
                let is_first = is_lent && self.by_share.remove(&life);
                (LOST.when(is_lost && self.plan.network.loss > 0) || is_first).then_some(*key)
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

    /// Takes note of the keys that faults reach.
    fn reach(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.reach.see(moment, seen);
        if let Seen::Settled { key, grant: None, .. } | Seen::Called { key, sent: false, .. } = seen {
            self.unanswered.insert(*key, moment.at);
        }
        match seen {
            Seen::Begins(fault) if scope(&fault.what).is_wide() => self.begun = self.begun.min(moment.at),
            Seen::Calm => self.healed = moment.at + SETTLED,
            Seen::Joined { node, .. } | Seen::Left { node, .. } => {
                let cut_short = self.calls.end(*node);
                for key in cut_short.into_iter().filter(|_| STOPPED.when(true)) {
                    self.reach_until(key, moment.at);
                }
            }
            Seen::Lost { key, .. } | Seen::Undone { key, .. } | Seen::Executed { key, stale: true, .. }
                if FORGOTTEN.when(true) =>
            {
                self.reach_until(*key, moment.at);
            }
            Seen::Called { key, sent: false, .. } if LOST.when(self.is_faulty(moment)) => {
                self.reach_until(*key, moment.at);
            }
            Seen::Reported { frames, lies: true, .. } => {
                let reported = frames.iter().flat_map(|frame| frame.read().unwrap_or_default());
                // A node remembers the lie until its window comes by the clock of the key's master, and then believes
                // it.
                let behind = self.plan.redis.skew.0;
                let comes = |usage: &Usage| moment.at + usage.window.0.saturating_sub(moment.store.0) + behind;
                let lied = reported.filter_map(|usage| Some((self.is_of_open_window(moment, usage)?, comes(usage))));
                for (key, at) in lied.filter(|_| LIES.when(true)).collect::<Vec<_>>() {
                    self.reach_until(key, at);
                }
            }
            _ => {}
        }
    }

    fn reach_until(&mut self, key: u32, at: u64) {
        let reached = self.reached.entry(key).or_default();
        *reached = at.max(*reached);
    }

    /// Whether a fault of nodes or of the way to the store has begun, and not all have healed.
    fn is_faulty(&self, moment: Moment) -> bool {
        self.begun <= moment.at && moment.at < self.healed
    }

    /// The key of a report, if it claims admissions in a window that may be open.
    fn is_of_open_window(&self, moment: Moment, usage: &Usage) -> Option<u32> {
        let (key, rule) = self.keys.get(&usage.digest.0)?;
        let period = rule.limits.get(usize::from(usage.limit))?.period.0;
        let is_near = usage.window.0.abs_diff(moment.store.0) <= AWAY * period;
        (is_near && usage.count.net() > 0).then_some(*key)
    }

    /// A call that takes longer than this is late.
    fn quick(&self) -> u64 {
        const QUICK: u64 = 5;
        self.plan.daemon.timeout.0 / QUICK
    }

    fn is_waiting(&self, moment: Moment, key: u32) -> bool {
        self.calls.of(key).any(|(_, left)| moment.at > left + self.quick())
    }

    /// Whether tokens of a key were lost less than `counts` ago.
    fn is_spoilt(&self, moment: Moment, key: u32, counts: u64) -> bool {
        let leapt = LEAPS.when(self.clocks.is_new(moment, key, counts));
        let is_waiting = LOST.when(self.plan.network.loss > 0 && self.is_waiting(moment, key));
        leapt || is_waiting || self.spoilt.get(&key).is_some_and(|at| moment.at < at + counts)
    }

    /// Whether a fault has reached the key of a request less than `counts` ago.
    fn is_reached(&self, moment: Moment, request: &Request, counts: u64) -> bool {
        let Request { key, policy, .. } = *request;
        LOST.when(self.is_faulty(moment) && self.is_waiting(moment, key))
            || STOPPED.when(self.reach.meets(moment, key, counts))
            || PUSHED.when(self.pushes[policy as usize % self.pushes.len()].meet(moment.at))
            || self.reached.get(&key).is_some_and(|at| moment.at < at + counts)
    }

    /// Judges an answer under limits that are not one aligned window: all that was asked for in the time for which the
    /// limit counts is summed up.
    fn answered(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision) {
        let asked = self.asked.entry(request.key).or_default();
        let longest = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        let account = rule.lease_life().0;
        let kept = longest + if is_bucket { account } else { 0 };
        while asked.front().is_some_and(|asked| asked.at + kept < moment.at) {
            asked.pop_front();
        }
        let is_denied = decision.verdict == Verdict::Deny && decision.reason == Reason::Rate;
        if !is_denied {
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
        // Nodes that were asked within the life of an account may still hold tokens.
        let of_accounts = asked.iter().rev().take_while(|asked| asked.at + account >= from);
        let cost: u64 = of_accounts.clone().map(|asked| asked.cost).sum();
        let nodes: BTreeSet<u32> = of_accounts.map(|asked| asked.node).collect();
        let is_lent = cost * 100 >= most * PART_OF_SEVERAL && nodes.len() > NODES;
        let wanders = WANDERS.when(limit.algorithm == Algorithm::Gcra && is_lent);
        let is_shared = self.alone.get(&request.key).is_none_or(|alone| alone.is_none());
        let is_much = rule.limits.iter().any(Limit::trickles) && sum * 100 >= most * PART_OF_SEVERAL;
        let is_left = limit.algorithm == Algorithm::FixedFromFirst && sum * 100 >= most * PART_OF_LEFT;
        let is_small = rule.limits.len() > 1 || most < LARGE;
        let is_unanswered = self.unanswered.get(&request.key).is_some_and(|at| moment.at < at + longest);
        if !is_shared
            || !wanders
                && !SEVERAL.when(is_much)
                && !LEFT.when(is_left)
                && !SMALL.when(is_small)
                && !UNANSWERED.when(is_unanswered)
        {
            self.found.add("early", moment, || {
                format!("{request:?} denied: {decision:?}, and only {sum} of {most} were asked for")
            });
        }
    }

    /// Judges a window at its end, when it is known how much was asked for.
    fn close(&mut self, window: Window) {
        let (asked, count) = (window.asked * 100, window.count);
        let is_unheard = self.has_no_gossip && window.is_shared && asked >= count * PART_OF_LEFT;
        let is_early = !window.is_excused && asked < count * PART && !NO_GOSSIP.when(is_unheard);
        if let Some((moment, what)) = window.denied.filter(|_| is_early) {
            let Window { asked, count, .. } = window;
            self.found.add("early", moment, || format!("{what}, and only {asked} of {count} were asked for"));
        }
    }
}

impl Observer for Early {
    fn minds(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Asked | Topic::Reported)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Asked(request) = seen
            && self.is_on
            && request.kind == Kind::Check
        {
            // Checks count from when they are asked, because a waiter is charged before it is answered.
            let asked = Asked { at: moment.at, node: request.node, cost: request.cost };
            self.asked.entry(request.key).or_default().push_back(asked);
            let alone = self.alone.entry(request.key).or_insert(Some(request.node));
            *alone = alone.filter(|node| *node == request.node);
        }
        self.lives.see(seen);
        self.clocks.see(moment, seen);
        self.spoil(moment, seen);
        self.reach(moment, seen);
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        let counts = rule.limits.iter().map(counts_for).max().unwrap_or(0);
        let limit = aligned(rule);
        // Accounts of nodes that are gone hold a part of a bucket.
        let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        let lasts = counts + if is_bucket { rule.lease_life().0 } else { 0 };
        // A window that begins after all has healed is judged like any other.
        let begun = limit.map_or(lasts, |limit| limit.period.0.saturating_sub(decision.reset_after.0));
        let is_spoilt = self.is_spoilt(moment, request.key, counts);
        let has_healed = moment.at >= self.healed.saturating_add(begun);
        let is_reached = !has_healed && self.is_reached(moment, request, lasts);
        if !self.is_on || request.kind != Kind::Check || ASIDE.when(rule.is_entitled()) {
            return;
        }
        let Some(limit) = limit else {
            if !is_spoilt && !is_reached {
                self.answered(moment, request, rule, decision);
            }
            return;
        };
        if let Some(asked) = self.asked.get_mut(&request.key) {
            asked.clear(); // with its room, as the next check of the key is asked as well
        }
        let ends = decision.reset_at.0;
        if UNHEARD.when(goes_by(decision).0.abs_diff(store.0) > limit.period.0) {
            return;
        }
        if self.windows.get(&request.key).is_none_or(|window| window.ends < ends) {
            let (node, count) = (request.node, limit.count);
            let fresh = Window { ends, count, asked: 0, denied: None, node, is_shared: false, is_excused: false };
            if let Some(window) = self.windows.insert(request.key, fresh) {
                self.close(window);
            }
        }
        let Some(window) = self.windows.get_mut(&request.key).filter(|window| window.ends == ends) else { return };
        window.asked += request.cost;
        window.is_shared |= window.node != request.node;
        window.is_excused |= is_spoilt;
        let is_denied = decision.verdict == Verdict::Deny && decision.reason == Reason::Rate;
        if is_reached {
            // A lost call is noticed later than its effects, so earlier denials are excused as well, but none of before
            // the first fault.
            window.denied = window.denied.take().filter(|(denied, _)| denied.at < self.begun);
        } else if is_denied && window.denied.is_none() {
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
    use rationd::core::gcra::lease_life;
    use rationd::core::key::Digest;
    use rationd::core::time::Timestamp;
    use rationd::core::usage::Count;
    use rationd::wire::digest::encode;

    use super::*;
    use crate::checkers::tests::{History, SECOND, START};
    use crate::frames::Frames;
    use crate::plan::{Fault, Gossip, What};
    use crate::span::Span;

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
    fn a_denial_of_a_window_of_several_nodes_that_nobody_tells_anything_is_early_below_a_third() {
        for (gossip, node, asked, seen) in
            [(false, 1, 32, 1), (false, 1, 33, 0), (false, 0, 33, 1), (true, 1, 33, 1), (true, 1, 40, 0)]
        {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = gossip.then(Gossip::default);
            let mut checker = Early::new(&setting);
            history.check(&mut checker, 6 * SECOND + SECOND / 10, asked - 1, Source::Lease, false);
            let request = Request { node, ..history.ask(&mut checker, 6 * SECOND + SECOND / 5) };
            history.answer(&mut checker, 6 * SECOND + SECOND / 5, &request, Source::Lease, false);
            history.check(&mut checker, 8 * SECOND + SECOND / 5, 0, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{gossip} {node} {asked}: {:?}", checker.violations());
        }
    }

    /// A node that uses its own clock has named a window far ahead of the present one.
    #[test]
    fn a_denial_is_early_whatever_window_another_clock_has_named() {
        let mut history = History::new("100/1s fixed");
        let mut checker = Early::new(&history.setting());
        history.on_share(&mut checker, 1, 20_000_000, 1);
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 1, Source::Lease, false);
        history.check(&mut checker, 7 * SECOND + SECOND / 10, 1, Source::Lease, true);
        assert_eq!(checker.violations().len(), 1, "{:?}", checker.violations());
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

    /// Two nodes are asked. Limits that trickle are then judged below a fifth, windows from the first request below a
    /// third, and a key for which a node may have used its share not at all.
    #[test]
    fn a_denial_of_another_shape_is_early_where_several_nodes_are_asked() {
        for (limit, asked, unanswered, seen) in [
            ("100/1s sliding", 19, None, 1),
            ("100/1s sliding", 20, None, 0),
            ("100/1s fixed from-first", 32, None, 1),
            ("100/1s fixed from-first", 33, None, 0),
            ("100/1s burst 100", 19, None, 1),
            ("100/1s burst 100", 20, None, 0),
            ("100/1s sliding", 1, Some(2 * SECOND), 0),
            ("100/1s sliding", 1, Some(3 * SECOND), 1),
        ] {
            let mut history = History::new(limit);
            let mut checker = Early::new(&history.setting());
            let other = Request { node: 1, ..history.ask(&mut checker, 1) };
            history.see(&mut checker, 2, &Seen::Asked(&other));
            if let Some(before) = unanswered {
                history.unanswered_in(&mut checker, 6 * SECOND - before, [0, 1]);
            }
            (1..asked).for_each(|_| history.check(&mut checker, 6 * SECOND, 1, Source::Lease, true));
            history.check(&mut checker, 6 * SECOND, 1, Source::Lease, false);
            assert_eq!(checker.violations().len(), seen, "{limit} {asked} {unanswered:?}: {:?}", checker.violations());
        }
    }

    /// Other nodes were asked for five tokens each, and then no more.
    #[test]
    fn a_bucket_that_clients_wander_through_is_judged_by_what_was_asked_for_while_accounts_last() {
        let (most, counts) = (20 * SECOND, 3 * SECOND / 2);
        for (limit, others, ago, seen) in [
            ("100/1s burst 100", 4, counts + lease_life(1).0, 0),
            ("100/1s burst 100", 4, counts + lease_life(1).0 + 1, 1),
            ("100/1s burst 100", 3, counts + lease_life(1).0, 1),
            ("100/1s fixed from-first", 4, counts + lease_life(1).0, 1),
        ] {
            let mut history = History::new(limit);
            let mut checker = Early::new(&history.setting());
            for node in 1..=others {
                let other = Request { node, cost: 5, ..history.ask(&mut checker, most - ago) };
                history.see(&mut checker, most - ago, &Seen::Asked(&other));
            }
            history.check(&mut checker, most, 1, Source::Lease, false);
            assert_eq!(checker.violations().len(), seen, "{limit} {others} {ago}: {:?}", checker.violations());
        }
    }

    /// The store lost the key just before. A window that begins two seconds after all has healed is judged again all
    /// the same.
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
            let mut checker = Early::new(&history.setting());
            history.see(&mut checker, 5 * SECOND, &Seen::Calm);
            history.see(&mut checker, at * SECOND, &Seen::Lost { key: 0, store: Timestamp(START + at * SECOND) });
            denied_at(&mut history, &mut checker, at * SECOND);
            assert_eq!(checker.violations().len(), seen, "{limit} {at}: {:?}", checker.violations());
        }
    }

    /// A lost call excuses its key for as long as its tokens would count, and no other call does.
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

    /// After a lost call the node decides by its share until it is lent something, at five seconds.
    #[test]
    fn a_key_is_excused_of_which_a_node_is_lent_what_is_left_of_its_share_after_a_call_was_lost() {
        for (is_lost, at, seen) in [(true, 5, 0), (true, 7, 1), (false, 5, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.network.loss = 1;
            let mut checker = Early::new(&setting);
            if is_lost {
                history.called(&mut checker, SECOND, 1, 1);
                history.unanswered_in(&mut checker, SECOND + 50_000, [0, 1]);
            }
            for (id, second) in [(2, 5), (3, 7)] {
                history.called(&mut checker, second * SECOND, id, 99);
                history.settled(&mut checker, second * SECOND + 1, id, 99);
                if second == at {
                    history.check(&mut checker, at * SECOND + SECOND / 4, 1, Source::Lease, false);
                    history.check(&mut checker, (at + 1) * SECOND + SECOND / 4, 1, Source::Lease, true);
                }
            }
            assert_eq!(checker.violations().len(), seen, "{is_lost} {at}: {:?}", checker.violations());
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

    /// The clock is set back by five seconds in the second second. Judging begins again when it has caught up, and a
    /// window and half a second have passed.
    #[test]
    fn a_key_that_another_clock_counts_is_judged_again_when_that_has_caught_up() {
        for (at, seen) in [(7, 0), (9, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Early::new(&history.leaping());
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            history.check(&mut checker, at * SECOND + SECOND / 10, 1, Source::Lease, false);
            history.check(&mut checker, (at + 1) * SECOND + SECOND / 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// Nodes that use the old limits are lent tokens under those, even if others have the new ones.
    #[test]
    fn other_limits_excuse_the_keys_of_their_policy_alone() {
        for (policy, at, seen) in [(0, 4, 0), (0, 6, 1), (1, 4, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.policies.push(setting.plan.policies[0].clone());
            let what = What::Push { policy, limits: vec!["10/1s fixed".into()] };
            setting.plan.faults = vec![Fault { at: Span::secs(1), lasts: Span(0), what }];
            let mut checker = Early::new(&setting);
            denied_at(&mut history, &mut checker, at * SECOND);
            assert_eq!(checker.violations().len(), seen, "{policy} {at}: {:?}", checker.violations());
        }
    }

    /// A check is denied at `at`, and then the next window begins.
    fn denied_at(history: &mut History, checker: &mut Early, at: u64) {
        history.check(checker, at + SECOND / 10, 1, Source::Lease, false);
        history.check(checker, at + SECOND + SECOND / 10, 1, Source::Lease, true);
    }

    #[test]
    fn a_denial_before_any_fault_is_early_whatever_follows_in_its_window() {
        for (denied, seen) in [(SECOND / 10, 1), (SECOND / 3, 0)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Early::new(&history.setting());
            let fault = Fault { at: Span(SECOND / 4), lasts: Span(SECOND), what: What::Swizzle };
            let begins = |history: &mut History, checker: &mut Early| {
                history.see(checker, SECOND / 4, &Seen::Begins(&fault));
            };
            if denied > fault.at.0 {
                begins(&mut history, &mut checker);
            }
            history.check(&mut checker, denied, 1, Source::Lease, false);
            if denied < fault.at.0 {
                begins(&mut history, &mut checker);
            }
            history.called(&mut checker, denied + 1, 1, 1);
            history.unanswered_in(&mut checker, denied + 50_000, [0, 1]);
            history.check(&mut checker, SECOND / 2, 1, Source::Lease, true);
            history.check(&mut checker, SECOND + SECOND / 2, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{denied}: {:?}", checker.violations());
        }
    }

    /// The violations in a run in which node 0 is asked for the key, a fault begins in the first second, and `happens`
    /// takes place in the fourth.
    fn early_after(what: What, lasts: Span, happens: impl Fn(&mut History, &mut Early)) -> Vec<Violation> {
        let mut history = History::new("100/1s fixed");
        let fault = Fault { at: Span::secs(1), lasts, what };
        let mut setting = history.setting();
        setting.plan.faults.push(fault.clone());
        let mut checker = Early::new(&setting);
        (0..2).for_each(|node| history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 0 }));
        history.check(&mut checker, SECOND / 2, 1, Source::Lease, true);
        history.see(&mut checker, SECOND, &Seen::Begins(&fault));
        history.check(&mut checker, 3 * SECOND, 1, Source::Lease, true);
        happens(&mut history, &mut checker);
        denied_at(&mut history, &mut checker, 4 * SECOND);
        checker.found.list
    }

    #[test]
    fn a_fault_excuses_no_key_to_which_nothing_happens() {
        let master = 0;
        for what in [
            What::Surge { factor: 2_000 },
            What::Swizzle,
            What::Kill { master },
            What::FlushAll { master },
            What::Crash { node: 0 },
            What::Part { nodes: vec![0], one_way: false },
            What::Freeze { node: 1 },
        ] {
            assert_eq!(early_after(what.clone(), Span::secs(9), |_, _| ()).len(), 1, "{what:?}");
        }
    }

    #[test]
    fn a_key_is_excused_of_which_a_call_is_lost_or_late_or_not_sent_under_a_fault_of_the_way_to_the_store() {
        let sent = 3 * SECOND;
        let answered = |after: u64| {
            move |history: &mut History, checker: &mut Early| {
                history.called(checker, sent, 1, 1);
                history.settled(checker, sent + after, 1, 1);
            }
        };
        let lost = |history: &mut History, checker: &mut Early| {
            history.called(checker, sent, 1, 1);
            history.unanswered_in(checker, sent + 50_000, [0, 1]);
        };
        for (what, seen) in [(What::Swizzle, 0), (What::Surge { factor: 2_000 }, 1)] {
            assert_eq!(early_after(what.clone(), Span::secs(9), answered(10_000)).len(), 1, "{what:?}");
            assert_eq!(early_after(what.clone(), Span::secs(9), answered(10_001)).len(), seen, "{what:?}");
            assert_eq!(early_after(what, Span::secs(9), lost).len(), seen);
        }
    }

    #[test]
    fn a_node_that_stops_or_ends_excuses_the_keys_that_it_was_asked_of_as_long_as_their_tokens_count() {
        let until = |ends: u64| Span(ends - SECOND);
        for (node, ends, seen) in [(0, 9 * SECOND, 0), (0, 3 * SECOND, 0), (0, 2 * SECOND, 1), (1, 9 * SECOND, 1)] {
            let found = early_after(What::Freeze { node }, until(ends), |_, _| ());
            assert_eq!(found.len(), seen, "{node} {ends}: {found:?}");
        }
        for (node, drained, waits, seen) in
            [(0, false, false, 0), (0, true, false, 1), (0, true, true, 0), (1, false, false, 1)]
        {
            let found = early_after(What::Crash { node }, Span::secs(9), |history, checker| {
                if waits {
                    history.called(checker, 3 * SECOND, 1, 1);
                }
                history.see(checker, 3 * SECOND + 1, &Seen::Left { node, drained });
            });
            assert_eq!(found.len(), seen, "{node} {drained} {waits}: {found:?}");
        }
    }

    /// The node hears of a window that ends at nine seconds, and of another one that is open or may come later by its
    /// master's clock; checks are denied at seven.
    #[test]
    fn a_lie_of_a_window_to_come_excuses_its_key_until_that_is_over() {
        for (ends, skew, seen) in [(9, 0, 0), (4, 0, 1), (4, 3, 0)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.redis.skew = Span::secs(skew);
            let mut checker = Early::new(&setting);
            history.called(&mut checker, 3 * SECOND, 1, 1);
            history.settled(&mut checker, 3 * SECOND + 1, 1, 1);
            let (window, count) = (Timestamp(START + ends * SECOND), Count { admitted: u64::MAX, refunded: 0 });
            let frames = Frames::new(encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, 3 * SECOND + 2, &Seen::Reported { from: 1, to: 0, frames: &frames, lies: true });
            denied_at(&mut history, &mut checker, 7 * SECOND);
            assert_eq!(checker.violations().len(), seen, "{ends} {skew}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_lie_excuses_the_keys_of_which_it_says_that_something_was_admitted_in_a_window_at_hand() {
        let lie = What::Liar { node: 1, lie: crate::plan::Lie::Huge };
        let (huge, negative) = (Count { admitted: u64::MAX, refunded: 0 }, Count { admitted: 0, refunded: u64::MAX });
        for (digest, after, count, seen) in [(1, 5, huge, 0), (2, 5, huge, 1), (1, 100, huge, 1), (1, 5, negative, 1)] {
            let found = early_after(lie.clone(), Span::secs(9), |history, checker| {
                history.called(checker, 3 * SECOND, 1, 1);
                history.settled(checker, 3 * SECOND + 1, 1, 1);
                let window = Timestamp(START + after * SECOND);
                let usage = Usage { digest: Digest(digest), limit: 0, window, count, epoch: 0 };
                let frames = Frames::new(encode(&[usage]));
                history.see(checker, 3 * SECOND + 2, &Seen::Reported { from: 1, to: 0, frames: &frames, lies: true });
            });
            assert_eq!(found.len(), seen, "{digest} {after} {count:?}: {found:?}");
        }
    }
}
