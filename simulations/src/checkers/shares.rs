//! **static-shares**: what one node admits on its share stays below 95 % of each limit, in every window and over
//! every interval. For a window it is at most that divided by the nodes that the node last knew of, and nothing in
//! the window in which it lost the store.
//!
//! What all nodes together admit depends on how many nodes each of them believes that there are: here the store's
//! last count for the key, which may be lower than the number of nodes that ask while it is away.

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::{Alone, Life, Lives};
use super::sheet::{Exemption, Sheet};
use super::window::Count;
use super::{Found, trip};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Plan, What};

static SKEWED: Exemption = Exemption::new(
    "clocks of masters that differ",
    "A node goes by the clock of the master that it heard last: windows lie across those of others, and twice the share may be of one.",
);
static UNTOLD: Exemption = Exemption::new(
    "a node that has heard of nobody",
    "Its windows are by its own clock and lie across those of the store, unless all clocks agree: twice the share, of which one may be that of the limits before. The same of a key that it had forgotten, and of the window in which it first hears.",
);
static EDGES: Exemption = Exemption::new(
    "near a boundary",
    "What is spent within 5 ms of it, or a trip to the store and back, may be of either window; and a twentieth and two tokens, where it is a window before or after.",
);
static GOSSIP: Exemption = Exemption::new(
    "the part in a fleet that gossips",
    "A node then follows what peers tell, which changes within a window: less than 95 % of all is asked of it here, and the sum of all nodes in together.rs.",
);
static RELEASED: Exemption = Exemption::new(
    "sliding windows and buckets at a loss",
    "A share of them is released by and by, and no window of a loss can be named.",
);
static ASIDE: Exemption = Exemption::new(
    "keys of which tokens are set aside for nodes that may lose the store",
    "A node goes by what the store has assigned to it, and not by how many nodes there are: entitled.rs judges them.",
);
static PUSHED: Exemption = Exemption::new(
    "a bucket whose limits change",
    "What the one before let pass may be more than this one holds: it begins empty.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "shares.rs",
    invariants: &["static-shares"],
    proves: "What a node admits on its share stays below 95 % of each limit, by those it was told to share it with; and nothing is admitted on it in the window of the loss.",
    judges: "All algorithms, several limits. Each node alone: all of them are together.rs's.",
    exemptions: &[&SKEWED, &UNTOLD, &EDGES, &GOSSIP, &RELEASED, &PUSHED, &ASIDE],
    mutant: Some("share-in-slice-of-loss"),
};

/// Shares in parts of a million: 95 %.
const MOST_PPM: u64 = 950_000;

/// A loss of the store goes on when it comes back for no longer than this, or a period.
const SAME_LOSS: u64 = 1_000_000;

/// What may pass until a node notices.
const NOTICE: u64 = 1_500_000;

/// A node knows a boundary of the store's clock to a trip and so much.
const DOUBT: u64 = 10_000;

/// What is spent so near to a boundary may be of either window, or, far from the store, within a trip.
const EDGE: u64 = 5_000;

/// A key, a node and its incarnation.
type Place = (u32, u32, u64);

/// What a node knows of a key.
#[derive(Debug, Default)]
struct Informed {
    /// The store's clock in the latest answer, and when that came.
    now: u64,
    at: u64,
    /// That clock in the first answer.
    first: u64,
    /// When there was none last before that, and since.
    missed_before: Option<u64>,
    missed: Option<u64>,
    /// Nodes that share the key, as last told; the fewest so far of this window and of the one before.
    nodes: u64,
    fewest: Vec<Fewest>,
}

/// The fewest nodes that one was told of in a limit's window, and in the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Fewest {
    window: u64,
    nodes: u64,
    before: u64,
}

impl Fewest {
    fn note(&mut self, window: u64, nodes: u64) {
        if window > self.window {
            *self = Self { window, nodes, before: self.nodes.min(nodes) };
        }
        self.nodes = self.nodes.min(nodes);
    }
}

/// Time as it passes for a bucket. A node fills its own by the clock that it goes by: where a slot moves
/// to a master whose clock is further back, that does not stand still until the other has caught up.
#[derive(Clone, Copy, Debug, Default)]
struct Passing {
    store: u64,
    at: u64,
    reads: u64,
}

impl Passing {
    fn read(&mut self, store: u64, at: u64) -> u64 {
        let reads = self.reads + store.saturating_sub(self.store).max(at - self.at);
        *self = Self { store, at, reads };
        reads
    }
}

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Shares {
    keys: Map<Place, Vec<Count>>,
    passing: Map<Place, Passing>,
    /// The limits that a key's counts are of; those before, and the store's time when they changed.
    limits: Map<Place, Vec<Limit>>,
    before: Map<Place, (Vec<Limit>, u64)>,
    lives: Lives,
    holds: Alone,
    /// Who has had an answer of the store about the key, and so knows the windows of its clock.
    informed: Map<Place, Informed>,
    /// The clocks of masters agree, and those of nodes with them.
    agree: bool,
    in_time: bool,
    /// Nodes hear of each other: of windows each takes what it used, and `together.rs` adds that up.
    gossips: bool,
    doubt: u64,
    /// What is spent so near to a boundary may be of either window.
    edge: u64,
    found: Found,
}

impl Shares {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            agree: plan.redis.skew.0 <= 1_000 && !plan.clocks_leap(),
            in_time: plan.redis.skew.0 == 0 && !plan.clocks_leap() && keeps_time(plan),
            gossips: plan.gossip.is_some(),
            doubt: plan.daemon.timeout.0 + DOUBT,
            edge: EDGE.max(trip(plan)),
            ..Self::default()
        }
    }

    fn settled(&mut self, moment: Moment, place: Place, call: &Call, grant: Option<&Grant>) {
        let Some(grant) = grant else { return self.missed(moment, place) };
        let informed = self.informed.entry(place).or_default();
        informed.missed_before = informed.missed.take().or(informed.missed_before);
        if informed.now == 0 {
            informed.first = grant.now.0;
        }
        (informed.now, informed.at) = (grant.now.0, moment.at);
        informed.nodes = grant.nodes.max(1).into();
        informed.fewest.resize(call.rule.limits.len(), Fewest::default());
        for (limit, fewest) in call.rule.limits.iter().zip(&mut informed.fewest) {
            fewest.note(grant.now.0 / limit.period.0, informed.nodes);
        }
    }

    /// The store gives no answer.
    fn missed(&mut self, moment: Moment, place: Place) {
        self.informed.entry(place).or_default().missed = Some(moment.at);
    }

    /// The key was forgotten, and with it how many share it and when its windows end.
    fn forgotten(&mut self, place: Place) {
        if let Some(informed) = self.informed.get_mut(&place) {
            informed.now = 0;
            informed.nodes = 1;
            informed.fewest.iter_mut().for_each(|fewest| (fewest.nodes, fewest.before) = (1, 1));
        }
    }

    fn admitted(&mut self, moment: Moment, place: Place, request: &Request, rule: &Rule, store: u64) {
        let (agree, gossips, doubt, in_time, edge) = (self.agree, self.gossips, self.doubt, self.in_time, self.edge);
        let mut informed =
            self.informed.get_mut(&place).filter(|informed| !SKEWED.when(!agree) && !UNTOLD.when(informed.now == 0));
        let passing = self.passing.entry(place).or_default().read(store, moment.at);
        let counts = self.keys.entry(place).or_default();
        let before = self.limits.entry(place).or_insert_with(|| rule.limits.to_vec());
        let changed = *before != *rule.limits;
        if changed {
            let limits = std::mem::replace(before, rule.limits.to_vec());
            self.before.insert(place, (limits, store));
        }
        let earlier = self.before.get(&place);
        counts.resize(rule.limits.len(), Count::default());
        for (index, (limit, count)) in rule.limits.iter().zip(counts).enumerate() {
            let is_bucket = limit.algorithm == Algorithm::Gcra;
            let store = if is_bucket { passing } else { store };
            if PUSHED.when(is_bucket && changed) {
                // What the bucket of before let pass may be more than this one holds: it begins empty.
                *count = Count::default();
            }
            if limit.algorithm == Algorithm::FixedFromFirst {
                // Whatever opens a window in the store, those of a share are aligned.
                let end = (store / limit.period.0 + 1) * limit.period.0;
                if count.window > end {
                    // A clock that is further back counts the key, and this window is another one.
                    *count = Count::default();
                }
                count.open(end, store);
            }
            if count.window > store / limit.period.0 && limit.algorithm != Algorithm::FixedFromFirst {
                // Windows were counted in another way under the limits before.
                *count = Count::default();
            }
            count.roll(limit, store);
            let passed = store % limit.period.0;
            if EDGES.when(!is_bucket && passed.min(limit.period.0 - passed) < edge) {
                continue;
            }
            count.admit(limit, request.cost);
            let (whole, window) = (whole_of(limit), store / limit.period.0);
            let fewest = informed.as_mut().and_then(|informed| informed.fewest(index, window));
            let alone = !GOSSIP.when(gossips) || matches!(limit.algorithm, Algorithm::Gcra | Algorithm::FixedFromFirst);
            let most = whole / fewest.filter(|_| alone).unwrap_or(1);
            let over = match &informed {
                _ if is_bucket => count.excess(limit, store, 0) > 0,
                _ if in_time => count.used > most + EDGES.forgives(most / 20 + 2),
                // Near an end it may be a window before or after.
                Some(informed) if !UNTOLD.when(informed.first / limit.period.0 == window) => {
                    count.used > most + EDGES.forgives(most / 20 + 2)
                }
                // Its windows lie across those of the store.
                _ => {
                    let same = |(limits, at): &&(Vec<Limit>, u64)| {
                        limits.get(index).is_some_and(|other| other.period == limit.period)
                            && at / limit.period.0 == window
                    };
                    let other = earlier.filter(same).map_or(0, |(limits, _)| whole_of(&limits[index]));
                    count.used > most + most.max(other)
                }
            };
            if over {
                let used = count.used;
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: {used} on the share of {limit:?}, wanted {most} at most")
                });
            }
            let at_once = informed.as_ref().filter(|informed| informed.lost_in(limit, store, doubt));
            if let Some(informed) = at_once {
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: on the share of {limit:?} in the window of the loss: {informed:?}")
                });
            }
        }
    }
}

/// By its own clock, too, a node tells windows from each other: what it is off by is within what is near a boundary.
fn keeps_time(plan: &Plan) -> bool {
    let jumps = plan.faults.iter().any(|fault| matches!(fault.what, What::Jump { .. }));
    let drifts = (plan.span.0 + plan.calm.0) * u64::from(plan.clocks.drift_ppm) / 1_000_000;
    !jumps && plan.clocks.offset.0 + drifts <= EDGE && plan.redis.replica_skew.0 == 0
}

/// What shares are of: less than the limit.
fn whole_of(limit: &Limit) -> u64 {
    limit.capacity() * MOST_PPM / 1_000_000
}

impl Shares {
    /// Of a hold that a share admitted then, so much is given back to it.
    fn given_back(&mut self, place: Place, tokens: u64, store: u64) {
        let (Some(counts), Some(limits)) = (self.keys.get_mut(&place), self.limits.get(&place)) else { return };
        for (limit, count) in limits.iter().zip(counts) {
            let number = store / limit.period.0;
            match limit.algorithm {
                Algorithm::Gcra => count.forgive(limit, tokens),
                Algorithm::FixedFromFirst if count.window != (number + 1) * limit.period.0 => {}
                Algorithm::Fixed | Algorithm::Sliding if count.window != number => {}
                _ => count.used = count.used.saturating_sub(tokens),
            }
        }
    }
}

impl Informed {
    fn fewest(&mut self, index: usize, window: u64) -> Option<u64> {
        let fewest = self.fewest.get_mut(index)?;
        fewest.note(window, self.nodes);
        Some(fewest.nodes.min(fewest.before).max(1))
    }

    /// The store was lost in the window that is open: it had answered in it, and not failed for a while
    /// before.
    fn lost_in(&self, limit: &Limit, now: u64, doubt: u64) -> bool {
        // Sliding windows release it quarter by quarter.
        if RELEASED.when(matches!(limit.algorithm, Algorithm::Gcra | Algorithm::Sliding)) {
            return false;
        }
        let window = |at: u64| at / limit.period.0;
        let sure = window(now - doubt) == window(now + doubt) && window(self.now - doubt) == window(now);
        let lasting = limit.period.0.max(SAME_LOSS) + NOTICE;
        sure && self.missed_before.is_none_or(|missed| missed + lasting < self.at)
    }
}

impl Observer for Shares {
    fn ignores(&self, topic: Topic) -> bool {
        topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        let place = |(node, incarnation): Life, key: u32| (key, node, incarnation);
        if let Some((request, store)) = self.holds.gives_back(seen) {
            self.given_back(place(self.lives.of(request.node), request.key), request.cost, store);
        }
        match seen {
            Seen::Settled { node, incarnation, key, call, grant } => {
                self.settled(moment, (*key, *node, *incarnation), call, *grant);
            }
            Seen::Called { node, key, call, sent } => {
                let place = place(self.lives.of(*node), *key);
                if !sent {
                    self.missed(moment, place);
                }
                if matches!(call.op, Op::Acquire(Acquire { epoch: 0, .. })) {
                    self.forgotten(place);
                }
            }
            Seen::Answered { request, rule, decision, store, .. } if decision.source == Source::Share => {
                let place = place(self.lives.of(request.node), request.key);
                let is_judged = request.kind == Kind::Check && !ASIDE.when(rule.is_entitled());
                if is_judged && decision.verdict == Verdict::Allow {
                    self.admitted(moment, place, request, rule, store.0);
                }
                self.missed(moment, place);
            }
            _ => {}
        }
    }
}

impl Checker for Shares {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_share_of_more_is_seen() {
        for (nodes, share) in [(1, 95), (5, 19)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Shares::new(&history.setting());
            history.nodes = nodes;
            history.settled(&mut checker, SECOND / 2, 1, 1);
            for at in [5, 6] {
                history.check(&mut checker, at * SECOND + SECOND / 10, share, Source::Share, true);
            }
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 7, Source::Share, true);
            assert_eq!(checker.violations()[0].invariant, "static-shares");
        }
    }

    #[test]
    fn a_bucket_goes_on_filling_when_a_clock_is_set_back() {
        let mut history = History::new("10/1s burst 2");
        let mut checker = Shares::new(&history.setting());
        let mut spend = |checker: &mut Shares, at: u64, skew: u64| {
            let request = history.ask(checker, at);
            let rule = Arc::new(Rule::of("p0", &[Limit::parse("10/1s burst 2").unwrap()]));
            let life = Life::default();
            checker.admitted(Moment { at, store: Timestamp(at) }, (0, life.0, life.1), &request, &rule, at + skew);
        };
        for tenth in 0..20 {
            spend(&mut checker, tenth * SECOND / 10, if tenth < 5 { 5 * SECOND } else { 0 });
        }
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        (0..4).for_each(|_| spend(&mut checker, 2 * SECOND, 0));
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }

    #[test]
    fn windows_from_the_first_request_begin_anew_when_a_clock_is_set_back() {
        let mut history = History::new("100/1s fixed from-first");
        let mut checker = Shares::new(&history.setting());
        let mut spend = |checker: &mut Shares, store: u64, tokens: u64| {
            let request = Request { cost: tokens, ..history.ask(checker, 10 * SECOND) };
            let rule = Arc::new(Rule::of("p0", &[Limit::parse("100/1s fixed from-first").unwrap()]));
            let moment = Moment { at: 10 * SECOND, store: Timestamp(10 * SECOND) };
            checker.admitted(moment, (0, 0, 0), &request, &rule, store);
        };
        // The node does not know the clock: twice its share may be in one of its windows.
        for store in [9, 5, 6] {
            spend(&mut checker, store * SECOND + SECOND / 2, 190);
        }
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        spend(&mut checker, 6 * SECOND + SECOND / 2, 1);
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }

    #[test]
    fn a_bucket_begins_anew_under_other_limits() {
        let mut checker = Shares::new(&History::new("10/1s burst 30").setting());
        let mut spend = |limit: &str, times: u64, at: u64| {
            let mut history = History::new(limit);
            (0..times).for_each(|_| history.check(&mut checker, at, 1, Source::Share, true));
            checker.violations().len()
        };
        assert_eq!(spend("10/1s burst 30", 30, 10 * SECOND), 0);
        assert_eq!(spend("10/1s burst 3", 3, 10 * SECOND + 1), 0);
        assert_eq!(spend("10/1s burst 3", 2, 10 * SECOND + 2), 1);
    }

    #[test]
    fn a_share_in_the_window_of_the_loss_is_seen() {
        let mut history = History::new("100/1s fixed");
        let mut checker = Shares::new(&history.setting());
        history.settled(&mut checker, SECOND / 4, 1, 1);
        history.check(&mut checker, 3 * SECOND / 2, 1, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.settled(&mut checker, 25 * SECOND / 4, 2, 1);
        history.check(&mut checker, 13 * SECOND / 2, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "static-shares");
    }
}
