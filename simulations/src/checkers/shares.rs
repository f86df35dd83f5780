//! **static-shares**: what one node admits on its share stays below 95 % of each limit, in every window and over every
//! interval. In a window it is at most that divided by the number of nodes that the node last knew of, and nothing in
//! the window in which it lost the store. Of a bucket it is what comes at 95 % of the rate, divided by that number.
//!
//! Windows are judged by the clock that the node uses, which each decision shows. So it does not matter how far the
//! clocks of masters are apart, nor whether the node has heard one at all.
//!
//! What all nodes together admit depends on how many nodes each of them believes that there are: here the store's
//! last count for the key, which may be lower than the number of nodes that ask while it is away.

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Alone, Life, Lives, Nearness, goes_by, window_of_share};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};

static UNINFORMED: Exemption = Exemption::new(
    "a node that has heard of nobody, or has forgotten the key",
    "It takes itself for the only one: 95 % of all in each window of the clock that it goes by, which may be its own.",
);
static SET: Exemption = Exemption::new(
    "a clock that is set back, or turns out to be behind what the node took it for, and windows that begin again by it",
    "What was admitted of them before was admitted in an earlier window, by the clock of now.",
);
static EDGES: Exemption = Exemption::new(
    "near a boundary, of sliding windows and several limits of which a trip to the store and back is more than a quarter of a period",
    "An answer tells the store's clock to within its trip, and a decision does not tell which of two windows the node takes for open.",
);
static GOSSIP: Exemption = Exemption::new(
    "the part in a fleet that gossips",
    "A node then follows what peers tell, which changes within a window: less than 95 % of all is asked of it here, and the sum of all nodes in fleet.rs.",
);
static BACK: Exemption = Exemption::new(
    "a check in the window of the loss that is answered in the moment in which the store answers about its key",
    "The store was lost long before. The share goes on for a second from then on, until all have paid for theirs.",
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
static CREDIT: Exemption = Exemption::new(
    "the first check of a bucket that passes on a share, or of other limits of it, before the store has answered about them",
    "The store has not answered about these limits. It passes once, on what trickles in meanwhile, and the next grant pays for it.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "shares.rs",
    invariants: &["static-shares"],
    proves: "What a node admits on its share stays below 95 % of each limit, by the clock that it goes by, however far that is from others, and by those it was told to share it with; and nothing is admitted on it in the window of the loss.",
    judges: "All algorithms, several limits. Each node alone: all of them are fleet.rs's.",
    exemptions: &[&UNINFORMED, &SET, &EDGES, &GOSSIP, &RELEASED, &BACK, &PUSHED, &CREDIT, &ASIDE],
    mutant: Some("share-in-slice-of-loss"),
};

/// Shares in parts of a million: 95 %.
const MOST_PPM: u64 = 950_000;

/// A store that comes back for no longer than this, or a period, counts as lost all the time.
const SAME_LOSS: u64 = 1_000_000;

/// How long a node may take to notice a loss.
const NOTICE: u64 = 1_500_000;

/// A node knows a boundary of the store's clock to within a trip and this time.
const DOUBT: u64 = 10_000;

/// A key, a node and its incarnation.
type Place = (u32, u32, u64);

/// What a node knows of a key.
#[derive(Debug, Default)]
struct Informed {
    /// The store's clock in the latest answer, and when that came.
    now: u64,
    at: u64,
    /// When an answer last failed to come, before that answer and since.
    missed_before: Option<u64>,
    missed: Option<u64>,
    /// The number of nodes that share the key by the last answer; and the smallest numbers in the present and the
    /// previous windows.
    nodes: u64,
    fewest: Vec<Fewest>,
    /// The limits that the latest answer was about.
    limits: Vec<Limit>,
}

/// The smallest number of nodes that the store has named in a limit's window, and in the one before.
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

/// Time as it passes for a node's share of a bucket. The share fills by the clock that the node uses, and goes on
/// filling when a slot moves to a master whose clock is behind.
#[derive(Clone, Copy, Debug, Default)]
struct Passing {
    clock: u64,
    at: u64,
    reads: u64,
}

impl Passing {
    fn read(&mut self, clock: u64, at: u64) -> u64 {
        let reads = self.reads + clock.saturating_sub(self.clock).max(at - self.at);
        *self = Self { clock, at, reads };
        reads
    }
}

/// What was admitted on one limit's share.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// The latest window's number, when its first tokens were admitted, and how many were.
    window: u64,
    first: u64,
    used: u64,
    /// For a bucket: when it would be full again if nothing more were admitted.
    full: u64,
}

impl Spent {
    /// Called for a check admitted in the window that begins at `begins`, by a clock that is `ahead` of true time.
    /// Counts anew in a new window, and also if the clock was set back, so that the former admissions were in an
    /// earlier window.
    fn enter(&mut self, window: u64, begins: u64, clock: u64, ahead: u64) {
        let was_before = self.first.wrapping_add(ahead) < begins;
        if self.window != window || SET.when(was_before) {
            *self = Self { window, first: clock.max(begins).wrapping_sub(ahead), used: 0, ..*self };
        }
    }
}

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Shares {
    keys: Map<Place, Vec<Spent>>,
    passing: Map<Place, Passing>,
    /// The limits to which a key's counts belong.
    limits: Map<Place, Vec<Limit>>,
    lives: Lives,
    holds: Alone,
    nearness: Nearness,
    /// Nodes that have had an answer of the store about the key, and so know how many share it.
    informed: Map<Place, Informed>,
    /// Nodes that have let a check of a bucket pass before the store had answered.
    credited: Map<Place, u64>,
    /// Whether nodes gossip; then the parts of windows follow their reports, and `fleet.rs` judges the sum.
    gossips: bool,
    doubt: u64,
    found: Found,
}

impl Shares {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            holds: Alone::by_nodes(),
            nearness: Nearness::new(plan),
            gossips: plan.gossip.is_some(),
            doubt: plan.daemon.timeout.0 + DOUBT,
            ..Self::default()
        }
    }

    fn settled(&mut self, moment: Moment, place: Place, call: &Call, grant: Option<&Grant>) {
        let Some(grant) = grant else { return self.missed(moment, place) };
        let informed = self.informed.entry(place).or_default();
        informed.missed_before = informed.missed.take().or(informed.missed_before);
        (informed.now, informed.at) = (grant.now.0, moment.at);
        informed.nodes = grant.nodes.max(1).into();
        informed.fewest.resize(call.rule.limits.len(), Fewest::default());
        for (limit, fewest) in call.rule.limits.iter().zip(&mut informed.fewest) {
            fewest.note(grant.now.0 / limit.period.0, informed.nodes);
        }
        informed.limits = call.rule.limits.to_vec();
        if self.limits.get(&place).is_none_or(|limits| *limits == informed.limits) {
            self.credited.remove(&place);
        }
    }

    /// Notes that the store gave no answer.
    fn missed(&mut self, moment: Moment, place: Place) {
        self.informed.entry(place).or_default().missed = Some(moment.at);
    }

    /// The node has dropped the key, and with it the number of nodes that share it.
    fn forgotten(&mut self, place: Place) {
        if let Some(informed) = self.informed.get_mut(&place) {
            (informed.now, informed.nodes) = (0, 1);
            informed.fewest.iter_mut().for_each(|fewest| (fewest.nodes, fewest.before) = (1, 1));
        }
    }

    fn admitted(&mut self, moment: Moment, place: Place, request: &Request, rule: &Rule, decision: &Decision) {
        let (gossips, doubt, clock) = (self.gossips, self.doubt, goes_by(decision).0);
        let mut informed = self.informed.get_mut(&place).filter(|informed| !UNINFORMED.when(informed.now == 0));
        let trip = self.nearness.of((place.1, place.2), place.0);
        let passing = self.passing.entry(place).or_default().read(clock, moment.at);
        let spent = self.keys.entry(place).or_default();
        spent.resize(rule.limits.len(), Spent::default());
        let before = self.limits.insert(place, rule.limits.to_vec()).unwrap_or_default();
        let is_first = informed.as_ref().is_none_or(|informed| informed.limits[..] != rule.limits[..]);
        let is_credit = is_first && rule.limits.iter().all(is_bucket);
        if CREDIT.when(is_credit && self.credited.insert(place, moment.at).is_none()) {
            return;
        }
        for (index, (limit, spent)) in rule.limits.iter().zip(spent).enumerate() {
            let is_same = |before: &Limit| match is_bucket(limit) {
                true => !PUSHED.when(before != limit),
                false => (before.algorithm, before.period) == (limit.algorithm, limit.period),
            };
            if !before.get(index).is_some_and(is_same) {
                *spent = Spent::default();
            }
            let (period, ahead) = (limit.period.0, clock.wrapping_sub(moment.at));
            let fewest = informed.as_mut().and_then(|informed| informed.fewest(index, clock / period));
            if is_bucket(limit) {
                let (nodes, times) = (fewest.unwrap_or(1), u128::from(limit.count) * u128::from(MOST_PPM));
                let lasts = |tokens: u64| {
                    let times = u128::from(tokens) * u128::from(period) * u128::from(nodes) * 1_000_000 / times;
                    u64::try_from(times).unwrap_or(u64::MAX)
                };
                spent.full = spent.full.max(passing).saturating_add(lasts(request.cost));
                // A node that alone uses the key may admit a check that costs a whole burst when its share is full.
                let whole = if nodes == 1 && request.cost <= limit.burst { lasts(request.cost) } else { 0 };
                let (over, most) = (spent.full - passing, limit.depth().0.max(whole));
                if over > most + trip {
                    self.found.add("static-shares", moment, || {
                        format!("{request:?}: the share of {limit:?} is full again in {over} us, wanted {most} at most")
                    });
                }
                continue;
            }
            let window = window_of_share(rule, limit, decision, trip);
            let Some(window) = window.filter(|_| !EDGES.when(window.is_none())) else { continue };
            spent.enter(window, window * period, clock, ahead);
            spent.used += request.cost;
            let alone = !GOSSIP.when(gossips) || limit.algorithm == Algorithm::FixedFromFirst;
            let most = limit.capacity() * MOST_PPM / 1_000_000 / fewest.filter(|_| alone).unwrap_or(1);
            let used = spent.used;
            if used > most {
                self.found.add("static-shares", moment, || {
                    format!(
                        "{request:?}: {used} on the share of {limit:?} in its window {window}, wanted {most} at most"
                    )
                });
            }
            let at_once = informed.as_ref().filter(|informed| informed.lost_in(limit, clock, doubt));
            let at_once = at_once.filter(|informed| !BACK.when(informed.at == moment.at));
            if let Some(informed) = at_once {
                self.found.add("static-shares", moment, || {
                    format!("{request:?}: on the share of {limit:?} in the window of the loss: {informed:?}")
                });
            }
        }
    }
}

fn is_bucket(limit: &Limit) -> bool {
    limit.algorithm == Algorithm::Gcra
}

impl Shares {
    /// Gives the surplus of a hold back to the share that admitted it.
    fn given_back(&mut self, place: Place, tokens: u64, clock: u64) {
        let (Some(counts), Some(limits)) = (self.keys.get_mut(&place), self.limits.get(&place)) else { return };
        let nodes = self.informed.get(&place).map_or(1, |informed| informed.nodes.max(1));
        for (limit, spent) in limits.iter().zip(counts) {
            if is_bucket(limit) {
                let times = u128::from(tokens) * u128::from(limit.period.0) * u128::from(nodes) * 1_000_000;
                let lasts = times / (u128::from(limit.count) * u128::from(MOST_PPM));
                spent.full = spent.full.saturating_sub(u64::try_from(lasts).unwrap_or(u64::MAX));
            } else if spent.window == clock / limit.period.0 {
                spent.used = spent.used.saturating_sub(tokens);
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

    /// Whether the store was lost in the open window: it had answered in it, and had not failed for a while before.
    fn lost_in(&self, limit: &Limit, now: u64, doubt: u64) -> bool {
        // A share of a sliding window is released quarter by quarter.
        if RELEASED.when(limit.algorithm == Algorithm::Sliding) {
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
        self.nearness.see(moment, seen);
        let place = |(node, incarnation): Life, key: u32| (key, node, incarnation);
        if let Some((request, clock)) = self.holds.gives_back(seen) {
            self.given_back(place(self.lives.of(request.node), request.key), request.cost, clock);
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
                    self.nearness.forget((place.1, place.2), *key);
                    self.forgotten(place);
                }
            }
            Seen::Answered { request, rule, decision, .. } if decision.source == Source::Share => {
                let place = place(self.lives.of(request.node), request.key);
                let is_judged = request.kind == Kind::Check && !ASIDE.when(rule.is_entitled());
                if is_judged && decision.verdict == Verdict::Allow {
                    self.admitted(moment, place, request, rule, decision);
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
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 1, Source::Share, true);
            assert_eq!(checker.violations()[0].invariant, "static-shares");
        }
    }

    /// Half of it is admitted before the end of the owner's window and the rest after it, in one window of the clock
    /// that the node uses, be it the store's or its own.
    #[test]
    fn a_share_of_more_is_seen_by_whatever_clock() {
        for is_told in [false, true] {
            for (ahead, cost, seen) in [(0, 47, 0), (600_000, 48, 0), (600_000, 49, 1), (-400_000, 49, 1)] {
                let mut history = History::new("100/1s fixed");
                let mut setting = history.setting();
                setting.plan.redis.skew = crate::span::Span::secs(1);
                let mut checker = Shares::new(&setting);
                if is_told {
                    history.settled(&mut checker, SECOND / 2, 1, 1);
                }
                for (at, cost) in [(6_900_000, 47), (7_100_000, cost)] {
                    history.on_share(&mut checker, at, ahead, cost);
                }
                assert_eq!(checker.violations().len(), seen, "{ahead} {cost}: {:?}", checker.violations());
            }
        }
    }

    #[test]
    fn a_window_that_begins_again_by_a_clock_that_is_set_back_has_its_share_again_and_no_more() {
        for (back, cost, seen) in [(0, 1, 1), (200_000, 1, 1), (600_000, 95, 0), (600_000, 96, 1), (SECOND, 95, 0)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Shares::new(&history.setting());
            history.settled(&mut checker, SECOND / 2, 1, 1);
            history.on_share(&mut checker, 6_300_000, 0, 95);
            history.on_share(&mut checker, 6_900_000 + back, -(back as i64), cost);
            assert_eq!(checker.violations().len(), seen, "{back} {cost}: {:?}", checker.violations());
        }
    }

    /// An answer that was under way for half of a window leaves in doubt which one is open, unless the decision names
    /// its end.
    #[test]
    fn a_window_that_is_in_doubt_is_judged_where_the_decision_tells_its_end() {
        for (limit, at, seen) in [
            ("100/1s fixed", 6_100_000, 1),
            ("100/1s fixed", 6_900_000, 1),
            ("100/1s sliding", 6_100_000, 1),
            ("100/1s sliding", 6_900_000, 0),
        ] {
            let mut history = History::new(limit);
            let mut checker = Shares::new(&history.setting());
            history.called(&mut checker, 1, 1, 1);
            history.settled(&mut checker, SECOND / 2, 1, 1);
            history.on_share(&mut checker, at, 0, 96);
            assert_eq!(checker.violations().len(), seen, "{limit} {at}: {:?}", checker.violations());
        }
    }

    /// A token comes every 105 ms, and the store's clock is known to 120 ms.
    #[test]
    fn a_bucket_fills_up_by_so_much_of_its_rate_and_goes_on_when_a_clock_is_set_back() {
        let mut history = History::new("10/1s burst 2");
        let mut checker = Shares::new(&history.setting());
        for tokens in 0..20 {
            history.on_share(&mut checker, tokens * 106_000, if tokens < 5 { 5_000_000 } else { 0 }, 1);
        }
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        (0..3).for_each(|_| history.on_share(&mut checker, 2_100_000, 0, 1));
        assert_eq!(checker.violations()[0].invariant, "static-shares");
        let mut checker = Shares::new(&history.setting());
        (0..60).for_each(|tokens| history.on_share(&mut checker, tokens * 100_000, 0, 1));
        assert!(!checker.violations().is_empty(), "all of the rate");
    }

    #[test]
    fn windows_from_the_first_request_begin_anew_when_a_clock_is_set_back() {
        let mut history = History::new("100/1s fixed from-first");
        let mut checker = Shares::new(&history.setting());
        for (second, ahead) in [(9, 0), (10, -5), (11, -5)] {
            history.on_share(&mut checker, second * SECOND + SECOND / 2, ahead * 1_000_000, 95);
        }
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.on_share(&mut checker, 11 * SECOND + SECOND / 2, -5_000_000, 1);
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
        assert_eq!(spend("10/1s burst 30", 29, 10 * SECOND), 0);
        assert_eq!(spend("10/1s burst 3", 3, 10 * SECOND + 1), 0);
        assert_eq!(spend("10/1s burst 3", 1, 10 * SECOND + 2), 1);
    }

    /// The node has heard nothing of the store: one check passes, whether it has waited or earlier ones still wait.
    #[test]
    fn the_first_check_of_a_bucket_passes_on_credit_once() {
        for (waits, asked, seen) in [(1, 0, 0), (1, 50_000, 0), (2, 0, 1)] {
            let mut history = History::new("1/10s burst 1");
            let mut checker = Shares::new(&history.setting());
            for check in 0..waits {
                let request = history.ask(&mut checker, asked + check);
                history.answer(&mut checker, 50_000, &request, Source::Share, true);
            }
            history.check(&mut checker, 60_000, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The store has answered about other limits, and not about the present ones.
    #[test]
    fn the_first_check_of_other_limits_of_a_bucket_passes_on_credit_once() {
        for (told_of_these, waits, seen) in [(false, 1, 0), (false, 2, 1), (true, 1, 1)] {
            let mut history = History::new("5/200ms burst 2");
            let mut checker = Shares::new(&history.setting());
            history.nodes = 20;
            history.settled(&mut checker, SECOND, 1, 0);
            let mut history = History::new("10/200ms burst 4");
            if told_of_these {
                history.nodes = 20;
                history.settled(&mut checker, SECOND, 1, 0);
            }
            for _ in 0..waits {
                let request = history.ask(&mut checker, 3 * SECOND);
                history.answer(&mut checker, 3 * SECOND + 100_000, &request, Source::Share, true);
            }
            assert_eq!(checker.violations().len(), seen, "{told_of_these} {waits}: {:?}", checker.violations());
        }
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

    /// The store was lost long before, and is back at this moment or was so a moment before.
    #[test]
    fn a_share_in_the_moment_in_which_the_store_is_back_is_none_of_a_loss() {
        for (after, seen) in [(0, 0), (1, 1)] {
            let mut history = History::new("100/1s fixed");
            let mut checker = Shares::new(&history.setting());
            history.settled(&mut checker, 25 * SECOND / 4, 1, 1);
            history.check(&mut checker, 25 * SECOND / 4 + after, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{after}: {:?}", checker.violations());
        }
    }
}
