//! What nodes that hear of each other may do together.
//!
//! **static-shares**: what all of them admit on their shares in one window stays below the limit, however the fleet is
//! partitioned. **prefilter**: no check is denied because of peers' reports if the store would have admitted it. So at
//! a denial the fleet has admitted all of the limit in the window, or the store has lent all of it (lapsed tokens
//! count, returned ones do not); and if the store has lent in that window in spite of a denial, the node does not deny
//! so again, unless the store had lost data.

use std::collections::VecDeque;
use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::StoredTime;

use super::notes::{Alone, Life, Lives, Nearness, goes_by, window_of_share};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned, trip};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};

static OFF: Exemption = Exemption::new(
    "runs without gossip",
    "Nodes that do not hear of each other know nobody to share with: shares.rs judges each of them, and joint.rs all.",
);
static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Under a change limits are not the same.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods after that has caught up with the one before",
    "By clocks that differ windows are not the same.",
);
static SET: Exemption = Exemption::new(
    "a clock that is set back, or turns out to be behind what a node took it for, and windows that begin again by it",
    "What the node admitted of them before it admitted in earlier windows, by the clock of now.",
);
static EDGES: Exemption = Exemption::new(
    "shares near a boundary, of sliding windows and several limits of which a trip to the store and back is more than a quarter of a period",
    "An answer tells the store's clock to within its trip, and a decision does not tell which of two windows the node takes for open.",
);
static LAPSED: Exemption = Exemption::new(
    "denials before the end of an aligned window, within 5 ms of it or a trip to the store and back",
    "What a node was lent of the window and may not spend any more, as that may be over, counts as admitted until it is.",
);
static SHAPES: Exemption = Exemption::new(
    "buckets and windows from the first request",
    "A share of them has no window that is common to all nodes.",
);
static LIARS_OWN: Exemption = Exemption::new(
    "what a liar admits on its own share, until four periods and two seconds after it has last lied",
    "The others go by what it tells, which is not what it goes by itself: what they admit together is judged.",
);
static LIARS: Exemption = Exemption::new(
    "denials by a node that a liar has told of the window",
    "What it tells is not so, and denies others on purpose: of the windows that it names, whenever they begin by the store's clock.",
);
static FORGETFUL: Exemption = Exemption::new(
    "a key that the store has forgotten, for two periods",
    "It lends again what peers know to be spent: all that it lent of the window counts, before and since, or the most that it showed, and that it has lent refutes nobody.",
);
static ASIDE: Exemption = Exemption::new(
    "what is set aside of a key for nodes without the store, once that has lost something of the key, or another clock counts it",
    "It sets aside anew, and does not know what nodes believe in: until each of them has heard anew what is set aside for it.",
);
static TURNS: Exemption = Exemption::new(
    "near a boundary, where limits are several or begin with the first request",
    "A node goes by the window before for as long as an answer may be under way: what was spent of that counts, too.",
);
static LOANS: Exemption = Exemption::new(
    "denials in a window of which nodes have lent to peers, as far as they did, where what the store shows and what shares admitted are all of the limit",
    "What a peer lent and was lost on its way it tells as admitted, as nobody can tell that it was not; shares are told beside it.",
);
static NO_WINDOWS: Exemption =
    Exemption::new("denials under buckets", "They have no windows, and nobody tells of them.");

pub(super) static SHEET: Sheet = Sheet {
    file: "fleet.rs",
    invariants: &["static-shares", "prefilter"],
    proves: "What all nodes together admit on shares in one window, each by the clock that it goes by, stays below 95 % of the limit; and nobody is denied by what peers told of a window of which the store had more.",
    judges: "Shares: fixed and sliding windows, several limits. Denials by peers: windows of all kinds, several limits.",
    exemptions: &[
        &OFF,
        &PUSHES,
        &LEAPS,
        &SET,
        &EDGES,
        &LAPSED,
        &SHAPES,
        &LIARS_OWN,
        &LIARS,
        &FORGETFUL,
        &ASIDE,
        &TURNS,
        &LOANS,
        &NO_WINDOWS,
    ],
    mutant: Some("merge-adds"),
};

/// Shares in parts of a million: 95 %.
const MOST_PPM: u64 = 950_000;

/// What a node was lent of a window it may not spend any more so near to its end.
const EDGE: u64 = 5_000;

/// How many windows of a node are remembered. A node's guess of the store's clock may be ahead by as many.
const WINDOWS: usize = 64;

/// A key, the position of a limit, and the number of a window (the end of one from the first request).
type Place = (u32, usize, u64);

/// How much longer than the timeout an answer may be under way, during which a node may use the previous window.
const DOUBT: u64 = 10_000;

/// How long after the end of a fault all nodes have reported and heard reports again.
const HEARS: u64 = 2_000_000;

/// How many windows from the first request are remembered of a key: each reset by a client opens another one, while
/// nodes that have not heard of it use theirs.
const OPENED: usize = 32;

/// What one node has admitted on its share in one window of the clock that it uses.
#[derive(Clone, Copy, Debug)]
struct Part {
    window: u64,
    /// When the first of it was admitted, in true time; at the earliest when the window began.
    first: u64,
    used: u64,
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct FleetShares {
    /// Whether nodes gossip.
    is_on: bool,
    /// Whether it begins in the middle of a run, and so does not know what nodes were told before.
    midway: bool,
    /// How long a node may use a window that is over.
    doubt: u64,
    /// What a node was lent of a window it may not spend any more so near to its end.
    edge: u64,
    lives: Lives,
    nearness: Nearness,
    /// Windows about which a node heard lies: node, digest, position of the limit, `Counter::at`.
    lied: Set<(u32, u128, usize, u64)>,
    /// When a node last sent lies.
    liars: Map<u32, u64>,
    digests: Map<u32, u128>,
    /// Tokens admitted on shares: by windows of the owner's clock, by windows of the clocks that nodes use, and each
    /// node's part of the latter.
    shared: Map<Place, u64>,
    summed: Map<Place, u64>,
    parts: Map<(Life, u32, usize), VecDeque<Part>>,
    holds: Alone,
    holds_of_nodes: Alone,
    /// The limits of each policy.
    rules: Vec<Arc<Rule>>,
    /// Tokens admitted by windows; and the tokens that the store has shown as used, in its last answer and at most.
    admitted: Map<Place, u64>,
    shown: Map<Place, (u64, u64)>,
    /// Tokens that nodes have lent to peers, by windows.
    loans: Map<Place, u64>,
    /// Tokens that the store has lent and not got back, by windows, even if it has lost that since.
    lent: Map<Place, u64>,
    /// By key and position: the latest ends of windows from the first request.
    opened: Map<(u32, usize), VecDeque<u64>>,
    /// By node: windows in which it has denied because of peers' reports, and whether the store has lent in them since.
    refuted: Map<(u32, Place), bool>,
    /// When the store last lost data about a key, a reset included.
    forgot: Map<u32, u64>,
    /// When it last lost data without a reset, by its clock; and when it executed the latest acquire of which each node
    /// has heard the answer.
    lost: Map<u32, u64>,
    heard: Map<(Life, u32), u64>,
    found: Found,
}

impl FleetShares {
    /// Scoped to keys whose limits do not change and that one clock counts.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
            .until_leaps(&LEAPS, setting.plan.clocks_leap())
            .again(setting, Self::midway)
    }

    fn midway(setting: &Setting) -> Self {
        Self { midway: true, ..Self::new(setting) }
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !OFF.when(plan.gossip.is_none()),
            midway: false,
            doubt: plan.daemon.timeout.0 + DOUBT,
            edge: EDGE.max(trip(plan)),
            lives: Lives::default(),
            nearness: Nearness::new(plan),
            lied: Set::default(),
            liars: Map::default(),
            digests: Map::default(),
            shared: Map::default(),
            summed: Map::default(),
            parts: Map::default(),
            holds: Alone::default(),
            holds_of_nodes: Alone::by_nodes(),
            rules: setting.rules.clone(),
            admitted: Map::default(),
            shown: Map::default(),
            loans: Map::default(),
            lent: Map::default(),
            opened: Map::default(),
            refuted: Map::default(),
            forgot: Map::default(),
            lost: Map::default(),
            heard: Map::default(),
            found: Found::default(),
        }
    }

    fn share(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision, store: u64) {
        let life = self.lives.of(request.node);
        let heard = self.heard.get(&(life, request.key)).copied().unwrap_or(0);
        let is_lost = self.lost.get(&request.key).is_some_and(|lost| heard <= *lost) || self.midway && heard == 0;
        if ASIDE.when(rule.is_entitled() && is_lost) {
            return;
        }
        let (clock, trip) = (goes_by(decision).0, self.nearness.of(life, request.key));
        for (index, limit) in rule.limits.iter().enumerate() {
            if SHAPES.when(!matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding)) {
                continue;
            }
            *self.shared.entry((request.key, index, store / limit.period.0)).or_default() += request.cost;
            let again = HEARS + 4 * limit.period.0;
            let lied = self.liars.get(&request.node);
            if LIARS_OWN.when(lied.is_some_and(|lied| moment.at < lied + again)) {
                continue;
            }
            let window = window_of_share(rule, limit, decision, trip);
            let Some(window) = window.filter(|_| !EDGES.when(window.is_none())) else { continue };
            let (begins, ahead) = (window * limit.period.0, clock.wrapping_sub(moment.at));
            self.set_back((life, request.key, index), window, begins, ahead);
            let parts = self.parts.entry((life, request.key, index)).or_default();
            if parts.back().is_none_or(|part| part.window != window) {
                let first = clock.max(begins).wrapping_sub(ahead);
                parts.push_back(Part { window, first, used: 0 });
                parts.drain(..parts.len().saturating_sub(WINDOWS));
            }
            parts.back_mut().expect("it was just put there").used += request.cost;
            let summed = self.summed.entry((request.key, index, window)).or_default();
            *summed += request.cost;
            let summed = *summed;
            if summed > limit.count * MOST_PPM / 1_000_000 {
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: {summed} on the shares of all nodes of {limit:?} in window {window}")
                });
            }
        }
    }

    /// Called when a node admits a check in a window that begins at `begins` by its clock, which is `ahead` of true
    /// time. If that clock was set back, earlier admissions in this window or later ones were in earlier windows by the
    /// present clock, and are taken off.
    fn set_back(&mut self, (life, key, index): (Life, u32, usize), window: u64, begins: u64, ahead: u64) {
        let Some(parts) = self.parts.get_mut(&(life, key, index)) else { return };
        let was_before = |part: &Part| part.window > window || part.first.wrapping_add(ahead) < begins;
        while let Some(part) = parts.back().copied().filter(|part| part.window >= window && SET.when(was_before(part)))
        {
            parts.pop_back();
            if let Some(summed) = self.summed.get_mut(&(key, index, part.window)) {
                *summed = summed.saturating_sub(part.used);
            }
        }
    }

    /// Gives the surplus of a hold back to the share that admitted it.
    fn given_back(&mut self, request: &Request, store: u64) {
        for (index, limit) in self.rules[request.policy as usize].limits.iter().enumerate() {
            if let Some(shared) = self.shared.get_mut(&(request.key, index, store / limit.period.0)) {
                *shared = shared.saturating_sub(request.cost);
            }
        }
    }

    /// The same, in windows of the clock that its node uses.
    fn given_back_by_node(&mut self, request: &Request, clock: u64) {
        let life = self.lives.of(request.node);
        for (index, limit) in self.rules[request.policy as usize].limits.iter().enumerate() {
            let window = clock / limit.period.0;
            let parts = self.parts.get_mut(&(life, request.key, index));
            let Some(part) = parts.into_iter().flatten().find(|part| part.window == window) else { continue };
            let tokens = request.cost.min(part.used);
            part.used -= tokens;
            if let Some(summed) = self.summed.get_mut(&(request.key, index, window)) {
                *summed = summed.saturating_sub(tokens);
            }
        }
    }

    /// The window of a limit by its `Counter::at`.
    fn place(key: u32, index: usize, limit: &Limit, at: u64) -> Option<Place> {
        let number = match limit.algorithm {
            Algorithm::Fixed => (at / limit.period.0).checked_sub(1)?,
            Algorithm::Sliding => at / limit.period.0,
            Algorithm::FixedFromFirst => Some(at).filter(|at| *at > 0)?,
            Algorithm::Gcra | Algorithm::Concurrent => return None,
        };
        Some((key, index, number))
    }

    /// Whether a malicious node has reported about the window to this node.
    fn is_lied(&self, node: u32, limit: &Limit, (key, index, number): Place) -> bool {
        let at = match limit.algorithm {
            Algorithm::Fixed => (number + 1) * limit.period.0,
            Algorithm::Sliding => number * limit.period.0,
            _ => number,
        };
        self.digests.get(&key).is_some_and(|digest| self.lied.contains(&(node, *digest, index, at)))
    }

    /// The windows of a limit that are open at `now` of the owner's clock, or were so when the node's latest answer may
    /// have been given. If `reset` tells the end of the window that the node used, it is only that one.
    fn open(&self, key: u32, index: usize, limit: &Limit, now: u64, reset: Option<u64>) -> Vec<Place> {
        let then = if TURNS.when(reset.is_none()) { now - self.doubt } else { now };
        let numbers = match (limit.algorithm, reset) {
            (Algorithm::Fixed, Some(end)) => [end / limit.period.0 - 1; 2],
            (Algorithm::Fixed | Algorithm::Sliding, _) => [now / limit.period.0, then / limit.period.0],
            (Algorithm::FixedFromFirst, _) => {
                let opened = self.opened.get(&(key, index)).into_iter().flatten();
                return opened.filter(|end| **end > then).map(|end| (key, index, *end)).collect();
            }
            _ => return Vec::new(),
        };
        let places = numbers.map(|number| (key, index, number));
        if places[0] == places[1] { vec![places[0]] } else { places.into() }
    }

    /// Notes the counters that an execution shows.
    fn executed(&mut self, moment: Moment, key: u32, call: &Call, grant: &Grant) {
        for (index, (limit, counter)) in call.rule.limits.iter().zip(&grant.counters).enumerate() {
            self.moved(key, (index, limit), counter.at.0, call, grant);
            let Some(place) = Self::place(key, index, limit, counter.at.0) else { continue };
            let (last, most) = self.shown.entry(place).or_default();
            (*last, *most) = (counter.used, counter.used.max(*most));
            if limit.algorithm == Algorithm::FixedFromFirst {
                let opened = self.opened.entry((key, index)).or_default();
                if !opened.contains(&counter.at.0) {
                    opened.push_back(counter.at.0);
                    opened.drain(..opened.len().saturating_sub(OPENED));
                }
            }
        }
        if call.op == Op::Reset {
            self.forgot.insert(key, moment.at);
        }
    }

    /// Counts what the store lends or takes back in the window of `at`.
    fn moved(&mut self, key: u32, (index, limit): (usize, &Limit), at: u64, call: &Call, grant: &Grant) {
        let at = match &call.op {
            Op::Acquire(order) if order.window.is_next() => at + limit.period.0,
            Op::Return { windows, .. } => StoredTime::number(windows[index]),
            _ => at,
        };
        let Some(place) = Self::place(key, index, limit, at).filter(|_| !grant.replayed && !grant.outdated) else {
            return;
        };
        let lent = self.lent.entry(place).or_default();
        *lent = match call.op {
            Op::Acquire(_) => *lent + grant.granted,
            Op::Return { .. } | Op::Refund { .. } => lent.saturating_sub(grant.granted),
            _ => *lent,
        };
    }

    /// Notes that the store has lent in windows in which checks were denied because of peers' reports.
    fn lent(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant) {
        let Op::Acquire(order) = call.op else { return };
        if order.epoch != 0 && grant.epoch != order.epoch {
            self.forgot.insert(key, moment.at);
            if !grant.reset {
                self.lost.insert(key, grant.now.0);
            }
        }
        if grant.granted == 0 || grant.replayed || order.window.is_next() {
            return;
        }
        for (index, (limit, counter)) in call.rule.limits.iter().zip(&grant.counters).enumerate() {
            let place = Self::place(key, index, limit, counter.at.0);
            if let Some(refuted) = place.and_then(|place| self.refuted.get_mut(&(node, place))) {
                *refuted = true;
            }
        }
    }

    /// Judges a denial because of peers' reports: some window of the limits has to be spent, and the store must not
    /// have lent in it since an earlier such denial.
    fn denied(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision, store: u64) {
        let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        let lately = |at: Option<&u64>| at.is_some_and(|at| moment.at < at + 2 * longest + HEARS);
        let forgot = FORGETFUL.when(lately(self.forgot.get(&request.key)));
        let reset = aligned(rule).map(|_| decision.reset_at.0);
        let (mut is_spent, mut is_refuted, mut places) = (false, false, Vec::new());
        for (index, limit) in rule.limits.iter().enumerate() {
            if NO_WINDOWS.when(limit.algorithm == Algorithm::Gcra) {
                continue;
            }
            let is_aligned = matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
            if LAPSED.when(is_aligned && limit.period.0 - store % limit.period.0 < self.edge) {
                return;
            }
            // By the node's clock the next window may have begun.
            let soon = self.open(request.key, index, limit, store + self.doubt, reset);
            let open = self.open(request.key, index, limit, store, reset);
            if LIARS.when(soon.iter().chain(&open).any(|place| self.is_lied(request.node, limit, *place))) {
                return;
            }
            for place in open {
                let admitted = self.admitted.get(&place).copied().unwrap_or(0);
                let (last, most) = self.shown.get(&place).copied().unwrap_or_default();
                // After a loss the store shows less than it has lent, but peers know of all of it.
                let lent = self.lent.get(&place).copied().unwrap_or(0);
                let shown = if forgot { most.max(lent) } else { last };
                let shared = self.shared.get(&place).copied().unwrap_or(0);
                let loaned = self.loans.get(&place).copied().unwrap_or(0);
                let is_shown = shown >= limit.count
                    || LOANS.when(loaned > 0 && admitted + loaned >= limit.count && shown + shared >= limit.count);
                if admitted >= limit.count || is_shown {
                    // A denial under several limits names the one that lasts longest; only of that is it known that it
                    // denied.
                    if index == usize::from(decision.limit_index) {
                        self.refuted.entry((request.node, place)).or_default();
                    }
                    let refuted = self.refuted.get(&(request.node, place)).is_some_and(|refuted| *refuted) && !forgot;
                    is_refuted |= refuted;
                    is_spent |= !refuted;
                }
                places.push((place, admitted, shown));
            }
        }
        if !is_spent {
            self.found.add("prefilter", moment, || match is_refuted {
                true => format!("{request:?}: denied by what the store has refuted"),
                false => format!("{request:?}: denied by what peers told, and there were admitted and lent {places:?}"),
            });
        }
    }
}

impl Observer for FleetShares {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Reported
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Executed { key, call, grant, stale, .. } => {
                self.executed(moment, *key, call, grant);
                if *stale {
                    self.forgot.insert(*key, moment.at);
                    self.lost.insert(*key, grant.now.0);
                }
            }
            Seen::Lost { key, store } | Seen::Undone { key, store } => {
                self.forgot.insert(*key, moment.at);
                self.lost.insert(*key, store.0);
            }
            Seen::Reported { from, to, frames, lies: true } => {
                self.liars.insert(*from, moment.at);
                let reported = frames.iter().flat_map(|frame| frame.read().unwrap_or_default());
                self.lied.extend(
                    reported.map(|reported| (*to, reported.digest.0, reported.limit.into(), reported.window.0)),
                );
            }
            Seen::Called { key, call, .. } => drop(self.digests.insert(*key, call.digest.0)),
            // Tokens lent from what is set aside are reported by the lender as admitted on its share.
            Seen::PeerAnswered { key, answer: Ok(loan), rule, store, .. } if loan.aside => {
                let window = store.0 / rule.limits[0].period.0;
                *self.shared.entry((*key, 0, window)).or_default() += loan.tokens;
            }
            _ => {}
        }
        if let Seen::PeerAnswered { key, answer: Ok(loan), rule, store, .. } = seen {
            for (index, limit) in rule.limits.iter().enumerate() {
                for place in self.open(*key, index, limit, store.0, None) {
                    *self.loans.entry(place).or_default() += loan.tokens;
                }
            }
        }
        self.lives.see(seen);
        self.nearness.see(moment, seen);
        match seen {
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                if matches!(call.op, Op::Acquire(_)) && !grant.outdated {
                    self.heard.insert(((*node, *incarnation), *key), grant.now.0);
                }
                self.lent(moment, *node, *key, call, grant);
            }
            // The node had dropped the key.
            Seen::Called { node, key, call, .. } if matches!(call.op, Op::Acquire(Acquire { epoch: 0, .. })) => {
                self.nearness.forget(self.lives.of(*node), *key);
            }
            _ => {}
        }
        if let Some((request, store)) = self.holds.gives_back(seen) {
            self.given_back(request, store);
        }
        if let Some((request, clock)) = self.holds_of_nodes.gives_back(seen) {
            self.given_back_by_node(request, clock);
        }
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        if OFF.when(!self.is_on) || request.kind != Kind::Check {
            return;
        }
        if decision.verdict == Verdict::Allow {
            if decision.source == Source::Share {
                self.share(moment, request, rule, decision, store.0);
            }
            let reset = aligned(rule).map(|_| decision.reset_at.0);
            for (index, limit) in rule.limits.iter().enumerate() {
                // Tokens spent near a boundary may be of either window and are counted in both, so that the checker
                // finds too little rather than too much.
                for place in self.open(request.key, index, limit, store.0, reset) {
                    *self.admitted.entry(place).or_default() += request.cost;
                }
            }
        } else if decision.source == Source::Prefilter {
            self.denied(moment, request, rule, decision, store.0);
        }
    }
}

impl Checker for FleetShares {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn overlook(&mut self) {
        self.found.list.clear();
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::key::Digest;
    use rationd::core::time::Timestamp;
    use rationd::core::usage::{Count, Usage};
    use rationd::wire::digest;

    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::frames::Frames;
    use crate::observe::Holding;
    use crate::plan::Gossip;

    fn checker(history: &History) -> FleetShares {
        let mut setting = history.setting();
        setting.plan.gossip = Some(Gossip::default());
        FleetShares::new(&setting)
    }

    #[test]
    fn shares_that_sum_to_more_than_the_limit_are_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = checker(&history);
        history.settled(&mut checker, SECOND, 1, 1);
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 95, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 6 * SECOND + SECOND / 5, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }

    /// The clock is set back by five seconds in the second second. Judging begins again when it has caught up, and two
    /// periods and two seconds have passed.
    #[test]
    fn shares_are_judged_again_when_another_clock_has_counted_the_key_for_long() {
        for (at, seen) in [(10, 0), (11, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.leaping();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = FleetShares::phased(&setting);
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            history.check(&mut checker, at * SECOND + SECOND / 10, 96, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// Half of the share is spent before the end of the owner's window and the rest after it, but by the clocks of both
    /// nodes in one window.
    #[test]
    fn shares_are_judged_by_the_clocks_that_nodes_go_by() {
        for (ahead, cost, seen) in [(0, 47, 0), (600_000, 48, 0), (600_000, 49, 1), (-400_000, 49, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            setting.plan.redis.skew = crate::span::Span(SECOND);
            let mut checker = FleetShares::new(&setting);
            for (at, cost) in [(6_900_000, 47), (7_100_000, cost)] {
                history.on_share(&mut checker, at, ahead, cost);
            }
            assert_eq!(checker.violations().len(), seen, "{ahead} {cost}: {:?}", checker.violations());
        }
    }

    /// The share is spent, and then the clock is set back by half a window or more, or turns out later to have been
    /// behind.
    #[test]
    fn a_window_that_begins_again_by_a_clock_that_is_set_back_has_its_share_again_and_no_more() {
        for (at, back, cost, seen) in [
            (6_800_000, 0, 1, 1),
            (6_800_000, 200_000, 1, 1),
            (7_500_000, 600_000, 95, 0),
            (7_500_000, 600_000, 96, 1),
            (9_500_000, 3_000_000, 95, 0),
            (9_500_000, 3_000_000, 96, 1),
        ] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.on_share(&mut checker, 6_300_000, 0, 95);
            history.on_share(&mut checker, at, -back, cost);
            assert_eq!(checker.violations().len(), seen, "{at} {back} {cost}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_set_aside_is_judged_of_who_has_heard_where_another_clock_counts_the_key() {
        for (midway, hears, seen) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
            let mut history = History::entitled("100/1s fixed");
            let mut checker = FleetShares { midway, ..checker(&history) };
            if hears {
                history.settled(&mut checker, SECOND, 1, 1);
            }
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 96, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{midway} {hears}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_set_aside_sums_to_more_until_nodes_have_heard_since_the_store_has_lost_it() {
        for (is_lost, hears, seen) in [(false, false, 1), (true, false, 0), (true, true, 1)] {
            let mut history = History::entitled("100/1s fixed");
            let mut checker = checker(&history);
            history.settled(&mut checker, SECOND, 1, 1);
            if is_lost {
                let store = Timestamp(1_800_000_000_000_000 + 2 * SECOND);
                history.see(&mut checker, 2 * SECOND, &Seen::Lost { key: 0, store });
            }
            if hears {
                history.settled(&mut checker, 3 * SECOND, 2, 1);
            }
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 96, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_was_handed_back_is_no_reason_to_deny() {
        for (used, seen) in [(100, 0), (99, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.used = 99;
            history.executed(&mut checker, SECOND / 10, 1);
            history.used = used - 1;
            history.executed(&mut checker, SECOND / 5, 2);
            history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The store had shown 60 of 100 when it lost them. Whether it has lent 100 in all depends on what it lent since,
    /// less what came back.
    #[test]
    fn what_was_lent_before_a_loss_and_since_is_a_reason_to_deny() {
        for (since, back, seen) in [(40, 0, 0), (39, 0, 1), (50, 10, 0), (50, 11, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.lent(&mut checker, SECOND / 10, 0, 1, 60);
            let store = Timestamp(1_800_000_000_000_000 + SECOND / 5);
            history.see(&mut checker, SECOND / 5, &Seen::Lost { key: 0, store });
            history.lent(&mut checker, SECOND / 4, 0, 2, since);
            history.handed_back(&mut checker, SECOND / 3, back, back);
            history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
            assert_eq!(checker.violations().len(), seen, "{since} {back}: {:?}", checker.violations());
        }
    }

    #[test]
    fn denials_by_peers_are_judged_of_windows_of_all_kinds() {
        for limit in ["100/1s sliding", "100/1s fixed from-first"] {
            for (used, seen) in [(100, 0), (99, 1)] {
                let mut history = History::new(limit);
                let mut checker = checker(&history);
                history.opened = if limit.ends_with("sliding") { 0_u64.wrapping_sub(SECOND) } else { 0 };
                history.used = used - 1;
                history.executed(&mut checker, SECOND / 10, 1);
                history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
                assert_eq!(checker.violations().len(), seen, "{limit}: {:?}", checker.violations());
            }
        }
    }

    #[test]
    fn only_the_windows_that_a_liar_names_are_excused() {
        for (window, seen) in [(1, 0), (2, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.called(&mut checker, SECOND / 10, 1, 1);
            let usage = Usage {
                digest: Digest(*checker.digests.get(&0).expect("a call was seen")),
                limit: 0,
                window: Timestamp(1_800_000_000_000_000 + window * SECOND),
                count: Count { admitted: 100, refunded: 0 },
                epoch: 0,
            };
            let frames = Frames::new(digest::encode(&[usage]));
            history.see(&mut checker, SECOND / 5, &Seen::Reported { from: 1, to: 0, frames: &frames, lies: true });
            history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_of_before_two_resets_is_still_spent() {
        let mut history = History::new("100/1s fixed from-first");
        let mut checker = checker(&history);
        for (opened, used) in [(0, 100), (SECOND / 10, 1), (SECOND / 5, 1)] {
            (history.opened, history.used) = (opened, used - 1);
            history.executed(&mut checker, opened + SECOND / 20, opened + 1);
        }
        history.check(&mut checker, SECOND / 2, 1, Source::Prefilter, false);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }

    #[test]
    fn a_denial_by_peers_below_the_limit_is_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = checker(&history);
        history.check(&mut checker, 6 * SECOND + SECOND / 10, 100, Source::Lease, true);
        history.check(&mut checker, 6 * SECOND + SECOND / 5, 1, Source::Prefilter, false);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 7 * SECOND + SECOND / 5, 1, Source::Prefilter, false);
        assert_eq!(checker.violations()[0].invariant, "prefilter");
    }

    /// All tokens of the limit per second are admitted in half a second. A denial names the limit of the half second,
    /// if that is spent, or else the other; then the store lends. The next denial names the limit of the second.
    #[test]
    fn what_the_store_lends_refutes_only_the_window_that_a_denial_named() {
        for (named, second, seen) in [(1, "100/500ms fixed", 0), (0, "200/500ms fixed", 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            let limits = ["100/1s fixed", second].map(|limit| Limit::parse(limit).expect(limit));
            let rule = Arc::new(Rule::of("p0", &limits));
            let at = SECOND * 9 / 10;
            history.decided_by(&mut checker, at, &rule, 100, (Source::Lease, 0));
            for limit_index in [named, 0] {
                history.decided_by(&mut checker, at, &rule, 1, (Source::Prefilter, limit_index));
                history.lent_by(&mut checker, at, &rule, 1);
            }
            assert_eq!(checker.violations().len(), seen, "{named}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_denial_by_peers_in_the_last_moment_of_a_window_is_not() {
        for (before_its_end, seen) in [(4_000, 0), (6_000, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = checker(&history);
            history.check(&mut checker, 7 * SECOND - before_its_end, 1, Source::Prefilter, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_a_hold_gave_back_to_its_share_is_not_spent() {
        for (back, seen) in [(3, 0), (2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = FleetShares::new(&setting);
            let at = SECOND / 2;
            history.settled(&mut checker, 1, 1, 1);
            let request = Request { cost: 5, ..history.ask(&mut checker, at) };
            history.answer(&mut checker, at, &request, Source::Share, true);
            let refund = Request { kind: Kind::Refund, cost: back, ..request };
            for holding in [Holding::Kept { request: &request, ttl: SECOND }, Holding::Asks(&refund)] {
                history.see(&mut checker, at, &Seen::Hold(request.id, holding));
            }
            history.check(&mut checker, at, 7, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
