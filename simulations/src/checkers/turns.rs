//! **turns**: if there are more keys than one round of gossip has room for, each has its turn. A node reports no key
//! twice while another key waits whose last window is over and was not reported.
//!
//! A window that is over is reported three times, each time after all other keys with something to report. The shards
//! of a node have turns of their own. Under several limits a key's turn is that of all of them, and it waits as long as
//! the window of any has to be reported.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::usage::Usage;

use super::Found;
use super::notes::{Clocks, Trips};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static CROWDED: Exemption = Exemption::new(
    "a node that has been asked for more keys than one of its shards has room for, from then on",
    "A key that made room for another has no turn.",
);
static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "What was told under the limits of before is told no more.",
);
static LEAPS: Exemption = Exemption::new(
    "windows of a key that another clock counts, until two periods after that has caught up with all before",
    "When a window is over is then known by neither.",
);
static LIARS: Exemption =
    Exemption::new("what was to be told when a liar spoke", "It has had its turn, and something else was said.");
static FORGOTTEN: Exemption = Exemption::new(
    "windows that were open when the store lost the key or a client reset it, and the next",
    "Nodes begin anew, and tell of them when they hear of it.",
);
static LOST: Exemption = Exemption::new(
    "a key that a node tells of as of one that the store has lost, and what it tells of such a key until the windows are over that were open then",
    "Such keys are told before all others, out of turn: until peers have heard of them the store lends their tokens again.",
);
static ASIDE: Exemption = Exemption::new(
    "keys of which tokens are set aside for nodes that may lose the store",
    "What is set aside the store shows as used, and a node need not tell of a window of which little is lent.",
);
static SPARSE: Exemption = Exemption::new(
    "a window of which the node has admitted less than a sixteenth, or was lent something last when less than a tenth was used",
    "Nobody would decide otherwise for it, and it need not be told.",
);
static EDGE: Exemption = Exemption::new(
    "what is admitted shortly before a window's end",
    "By the node's clock it may be of the next one: 20 ms and two timeouts.",
);
static HEARD_LATE: Exemption = Exemption::new(
    "what a node hears that it was lent when the window may be over by its clock, and how much of that was used",
    "It goes by the next window then, of which nothing is used yet: of the one before it has no news, and what was used of that is no reason to tell of another limit.",
);
static REPORTED: Exemption = Exemption::new(
    "a window of which the node has told three times all that it has admitted, before it was over",
    "By what it knows of the store's clock it may have been over: then it has had its turns.",
);
static REPORTED_THE_SAME: Exemption = Exemption::new(
    "a sliding window of which the node has told the same three times, before it was over",
    "By what it knows of the store's clock it may have been over: then it has had its turns. What it holds of it then it spends until it is over for sure, and tells of no more.",
);
static OLD: Exemption = Exemption::new(
    "a window that was over four periods ago, and a key of which nobody has asked the node for 1.9 s",
    "A node remembers six windows of a key, and a key for two seconds at least: one that comes back has another place in the order.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "turns.rs",
    invariants: &["turns"],
    proves: "Of more keys than one round of gossip has room for each has its turn: a node tells of no key twice while another one waits whose last window is over.",
    judges: "Fixed and sliding windows, several limits.",
    exemptions: &[
        &BASELINES,
        &CROWDED,
        &PUSHES,
        &LEAPS,
        &LIARS,
        &FORGOTTEN,
        &LOST,
        &ASIDE,
        &SPARSE,
        &EDGE,
        &HEARD_LATE,
        &REPORTED,
        &REPORTED_THE_SAME,
        &OLD,
    ],
    mutant: Some("tells-from-the-first"),
};

/// See `EDGE`.
const LAST: u64 = 20_000;

/// How long after its end a window is over by a node's clock, too.
const OVER: u64 = 1_000;

/// See `SPARSE`: parts of a limit.
const ADMITTED_PART: u64 = 16;
const USED_PART: u64 = 10;

/// See `REPORTED`.
const TURNS: u8 = 3;

/// See `OLD`.
const PERIODS: u64 = 4;
const QUIET: u64 = 1_900_000;

/// What a node has admitted in the open window.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    ends: u64,
    /// The time by which reports name it.
    named: u64,
    period: u64,
    least: u64,
    admitted: u64,
    /// Whether the store has lent tokens of it when a tenth was used; and whether some were admitted by a later round.
    is_news: bool,
    is_talked_of: bool,
    /// How often all admissions so far were reported.
    reported: u8,
    /// The last reported number, and how often it was reported in a row.
    same: (u64, u8),
}

/// A key that waits for its turn.
#[derive(Clone, Copy, Debug)]
struct Due {
    /// Its window, and the first round in which it was over.
    ends: u64,
    since: u64,
    /// When it is no longer judged, by its owner's clock.
    until: u64,
}

/// One node.
#[derive(Clone, Debug, Default)]
struct Reporter {
    rounds: u64,
    /// By key and position of a limit in its policy.
    open: BTreeMap<(u32, usize), Open>,
    due: BTreeMap<(u32, usize), Due>,
    /// The round in which each key was last reported.
    reported: Map<u32, u64>,
    /// When each key was last asked for.
    asked: Map<u32, u64>,
    /// Until when each key is reported out of turn: see `LOST`.
    lost: Map<u32, u64>,
    /// See `CROWDED`.
    is_crowded: bool,
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    is_on: bool,
    shards: u128,
    /// See `EDGE`.
    edge: u64,
    reporters: Numbered<Reporter>,
    /// By digest.
    keys: Map<u128, u32>,
    /// By key: what decides its shard, how far its owner's clock is ahead of true time, and until when windows are not
    /// judged.
    shard: Numbered<u128>,
    skews: Numbered<u64>,
    spoiled: Numbered<u64>,
    /// By key: the longest of its windows.
    longest: Numbered<u64>,
    /// By key: the latest time by which it was counted.
    latest: Numbered<u64>,
    trips: Trips,
    clocks: Clocks,
    found: Found,
}

/// The limits with aligned windows, with their positions.
fn aligned(rule: &Rule) -> impl Iterator<Item = (usize, &Limit)> {
    let is_aligned = |limit: &Limit| matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
    rule.limits.iter().enumerate().filter(move |(_, limit)| is_aligned(limit))
}

/// The end of the window that reports name by `named`.
fn end(limit: &Limit, named: u64) -> u64 {
    named + if limit.algorithm == Algorithm::Sliding { limit.period.0 } else { 0 }
}

impl Open {
    fn of(limit: &Limit, ends: u64) -> Self {
        let named = ends - end(limit, 0);
        Self { ends, named, period: limit.period.0, least: limit.count / ADMITTED_PART, ..Self::default() }
    }

    /// Whether it has to be reported when it is over.
    fn counts(&self) -> bool {
        !SPARSE.when(self.admitted <= self.least || !self.is_news && !self.is_talked_of)
            && !REPORTED.when(self.reported >= TURNS)
            && !REPORTED_THE_SAME.when(self.slides() && self.same.1 >= TURNS)
    }

    /// Whether it is a sliding window, which reports name by its beginning.
    fn slides(&self) -> bool {
        self.named != self.ends
    }

    fn report(&mut self, admitted: u64) {
        if self.admitted <= admitted {
            self.reported = self.reported.saturating_add(1);
        }
        self.same = (admitted, if self.same.0 == admitted { self.same.1.saturating_add(1) } else { 1 });
    }

    fn admit(&mut self, tokens: u64) {
        self.admitted += tokens;
        self.reported = 0;
    }
}

impl Reporter {
    /// The open window of a key's limit, after closing an earlier one.
    fn window(&mut self, key: (u32, usize), limit: &Limit, ends: u64) -> Option<&mut Open> {
        let open = self.open.entry(key).or_insert_with(|| Open::of(limit, ends));
        if open.ends < ends {
            if open.counts() {
                let until = open.ends + PERIODS * open.period;
                self.due.entry(key).or_insert(Due { ends: open.ends, since: self.rounds + 1, until });
            }
            *open = Open::of(limit, ends);
        }
        (open.ends == ends).then_some(open)
    }

    /// Moves windows that are over to those that wait to be reported.
    fn turn(&mut self, now: impl Fn(u32) -> u64) {
        let (rounds, due) = (self.rounds, &mut self.due);
        self.open.retain(|key, open| {
            if open.ends + OVER <= now(key.0) {
                if open.counts() {
                    let until = open.ends + PERIODS * open.period;
                    due.entry(*key).or_insert(Due { ends: open.ends, since: rounds, until });
                }
                return false;
            }
            // A key without admissions when its turn came has no other turn until it is lent something again.
            open.is_talked_of |= open.is_news && open.admitted > 0;
            open.is_news &= open.admitted > 0;
            true
        });
        due.retain(|(key, _), waits| !OLD.when(now(*key) > waits.until));
    }

    fn forget(&mut self, key: u32) {
        self.open.retain(|(of, _), _| *of != key);
        self.due.retain(|(of, _), _| *of != key);
        self.reported.remove(&key);
    }
}

impl Turns {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            shards: plan.daemon.shards.max(1).into(),
            edge: LAST + 2 * plan.daemon.timeout.0,
            reporters: Numbered::default(),
            keys: Map::default(),
            shard: Numbered::default(),
            skews: Numbered::default(),
            spoiled: Numbered::default(),
            longest: Numbered::default(),
            latest: Numbered::default(),
            trips: Trips::default(),
            clocks: Clocks::new(plan),
            found: Found::default(),
        }
    }

    /// A node was asked for a key. This is noted for all limits, because keys whose limits are not judged have turns,
    /// too.
    fn asked(&mut self, moment: Moment, request: &Request) {
        let reporter = self.reporters.of(request.node);
        let asked = reporter.asked.insert(request.key, moment.at);
        if OLD.when(asked.is_some_and(|asked| asked + QUIET < moment.at)) {
            reporter.forget(request.key);
        }
    }

    /// Counts an admitted check.
    fn admitted(&mut self, request: &Request, rule: &Rule, source: Source, store: u64) {
        *self.longest.of(request.key) = aligned(rule).map(|(_, limit)| limit.period.0).max().unwrap_or(0);
        for (place, limit) in aligned(rule) {
            let ends = (store / limit.period.0 + 1) * limit.period.0;
            if self.is_spoiled(request.key, limit, ends) || EDGE.when(ends < store + self.edge) {
                continue;
            }
            if matches!(source, Source::Lease | Source::Store)
                && let Some(open) = self.reporters.of(request.node).window((request.key, place), limit, ends)
            {
                open.admit(request.cost);
            }
        }
    }

    /// Counts a grant.
    fn lent(&mut self, node: u32, key: u32, call: &Call, grant: &Grant) {
        let Op::Acquire(order) = &call.op else { return };
        if ASIDE.when(call.sets_aside()) {
            return;
        }
        if grant.granted == 0 || order.window.is_next() {
            return;
        }
        // The latest time that the store's clock may show when the node hears of the grant.
        let heard = grant.now.0 + self.trips.latest() + OVER;
        let ends = |place: usize, limit: &Limit| end(limit, grant.counters[place].at.0);
        let is_open = |(place, limit): &(usize, &Limit)| !HEARD_LATE.when(heard >= ends(*place, limit));
        let is_much = |(place, limit): (usize, &Limit)| grant.counters[place].used * USED_PART >= limit.count;
        if !aligned(&call.rule).filter(is_open).any(is_much) {
            return;
        }
        for (place, limit) in aligned(&call.rule).filter(is_open) {
            let ends = ends(place, limit);
            if !self.is_spoiled(key, limit, ends)
                && let Some(open) = self.reporters.of(node).window((key, place), limit, ends)
            {
                open.is_news = true;
            }
        }
    }

    /// Judges a round of gossip.
    fn picked(&mut self, moment: Moment, node: u32, usage: &[Usage], lies: bool) {
        let Self { reporters, keys, shard, skews, shards, spoiled, longest, .. } = self;
        let reporter = reporters.of(node);
        let now = |key: u32| moment.store.0.wrapping_add(skews.get(key).copied().unwrap_or(0));
        reporter.rounds += 1;
        for entry in usage {
            let open = keys.get(&entry.digest.0).and_then(|key| reporter.open.get_mut(&(*key, entry.limit.into())));
            if let Some(open) = open.filter(|open| open.named == entry.window.0) {
                open.report(entry.count.admitted);
            }
        }
        reporter.turn(now);
        let Reporter { asked, due, .. } = reporter;
        due.retain(|(key, _), _| !OLD.when(asked.get(key).is_none_or(|asked| asked + QUIET < moment.at)));
        if LIARS.when(lies) || CROWDED.when(reporter.is_crowded) {
            reporter.due.clear();
            reporter.reported.clear();
            return;
        }
        // By shard: the latest earlier round in which a key was reported that is reported again, and that key.
        let mut again: BTreeMap<u128, (u64, u32)> = BTreeMap::new();
        // By reported key: whether it goes before all others because of a loss.
        let mut reported: BTreeMap<u32, bool> = BTreeMap::new();
        let is_lost = |digest| usage.iter().any(|entry| entry.digest == digest && entry.epoch != 0);
        for entry in usage {
            if let Some(key) = keys.get(&entry.digest.0) {
                // The node may report a loss that was not seen here, because the store had dropped the key. Its report
                // then is of windows that are open, or were.
                let open = 2 * longest.get(*key).copied().unwrap_or(0);
                let lost_at = spoiled.get(*key).copied().filter(|at| *at > 0);
                let told_at = Some(now(*key).max(entry.window.0)).filter(|_| is_lost(entry.digest));
                let until = reporter.lost.entry(*key).or_default();
                *until = lost_at.max(told_at).map_or(0, |at| at + open).max(*until);
                *reported.entry(*key).or_default() |= is_lost(entry.digest) || now(*key) < *until;
            }
        }
        for (key, is_lost) in reported {
            reporter.due.retain(|(of, _), _| *of != key);
            if LOST.when(is_lost) {
                continue;
            }
            if let Some(before) = reporter.reported.insert(key, reporter.rounds) {
                let of = shard.get(key).copied().unwrap_or(0) % *shards;
                let latest = again.entry(of).or_insert((before, key));
                *latest = (*latest).max((before, key));
            }
        }
        for ((key, _), due) in &reporter.due {
            let of = shard.get(*key).copied().unwrap_or(0) % *shards;
            if let Some((before, other)) = again.get(&of).filter(|(before, _)| *before >= due.since) {
                self.found.add("turns", moment, || {
                    format!(
                        "node {node} tells of key {other} in its rounds {before} and {}, and not of key {key}, whose window was over at {} and by round {}",
                        reporter.rounds, due.ends, due.since
                    )
                });
            }
        }
        if !again.is_empty() {
            reporter.due.retain(|(key, _), due| {
                let of = shard.get(*key).copied().unwrap_or(0) % *shards;
                again.get(&of).is_none_or(|(before, _)| *before < due.since)
            });
        }
    }

    /// Whether the window, or the one before it, was open when the store lost the key or another clock took over.
    fn is_spoiled(&self, key: u32, limit: &Limit, ends: u64) -> bool {
        FORGOTTEN.when(self.spoiled.get(key).is_some_and(|until| ends < until + 2 * limit.period.0))
    }

    /// Notices when another clock counts a key.
    fn follow(&mut self, moment: Moment, seen: &Seen<'_>) {
        let (key, now) = match seen {
            Seen::Executed { key, grant, stale: false, .. } => (*key, grant.now.0),
            Seen::Answered { request, store, .. } => (request.key, store.0),
            Seen::Census { key, store, .. } => (*key, store.0),
            _ => return,
        };
        let leapt = self.clocks.leapt(key);
        self.clocks.see(moment, seen);
        let latest = self.latest.of(key);
        *latest = now.max(*latest);
        if LEAPS.when(self.clocks.leapt(key) != leapt) {
            let latest = *latest;
            self.spoil(key, latest);
        }
    }

    fn spoil(&mut self, key: u32, store: u64) {
        let spoiled = self.spoiled.of(key);
        *spoiled = store.max(*spoiled);
        self.reporters.iter_mut().for_each(|reporter| reporter.forget(key));
    }
}

impl Observer for Turns {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Picked
    }

    fn ignores(&self, _: Topic) -> bool {
        !self.is_on
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.follow(moment, seen);
        self.trips.see(moment, seen);
        match seen {
            Seen::Answered { request, rule, decision, store, .. } => {
                *self.skews.of(request.key) = store.0.wrapping_sub(moment.store.0);
                // A check that costs more than the limit is denied without looking at the key, so the node does not
                // remember the key for it.
                if request.kind == Kind::Check && decision.reason != Reason::Cost {
                    self.asked(moment, request);
                }
                if request.kind == Kind::Check && decision.verdict == Verdict::Allow {
                    self.admitted(request, rule, decision.source, store.0);
                }
            }
            Seen::Together { node, what: Together::GoesBack { request }, .. } => {
                let open = self.reporters.of(*node).open.range_mut((request.key, 0)..=(request.key, usize::MAX));
                open.for_each(|(_, open)| open.admitted = open.admitted.saturating_sub(request.cost));
            }
            Seen::Called { key, call, .. } => {
                self.keys.insert(call.digest.0, *key);
                // Nodes choose the shard in this way.
                *self.shard.of(*key) = call.digest.0 >> 64;
            }
            Seen::Settled { node, key, call, grant: Some(grant), .. } => self.lent(*node, *key, call, grant),
            Seen::Executed { key, call, grant, .. } if call.op == Op::Reset => self.spoil(*key, grant.now.0),
            Seen::Lost { key, store } | Seen::Undone { key, store } => self.spoil(*key, store.0),
            Seen::Joined { node, .. } | Seen::Left { node, .. } => *self.reporters.of(*node) = Reporter::default(),
            Seen::Crowded { node } => self.reporters.of(*node).is_crowded = true,
            Seen::Picked { node, usage, lies } => self.picked(moment, *node, usage, *lies),
            _ => {}
        }
    }
}

impl Checker for Turns {
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
    use rationd::core::call::Counter;
    use rationd::core::key::Digest;
    use rationd::core::limit::MAX_LIMITS;
    use rationd::core::time::Timestamp;
    use rationd::core::usage::Count;

    use super::*;
    use crate::checkers::tests::{History, SECOND};

    const START: u64 = 1_800_000_000_000_000;

    /// A node that was lent four tokens and has admitted `cost` of them when the window is over.
    fn admitted(cost: u64) -> (History, Turns) {
        let mut history = History::new("10/1s fixed");
        let mut checker = Turns::new(&history.setting());
        history.used = 4;
        history.called(&mut checker, 1, 1, 4);
        history.settled(&mut checker, 1, 1, 4);
        history.check(&mut checker, 2, cost, Source::Lease, true);
        checker.keys.insert(2, 1);
        (history, checker)
    }

    /// A round in which these keys are reported, for the window that was over after a second.
    fn round(history: &mut History, checker: &mut Turns, at: u64, digests: &[u128], lies: bool) {
        let (window, count) = (Timestamp(START + SECOND), Count { admitted: 3, refunded: 0 });
        let usage_of = |digest: &u128| Usage { digest: Digest(*digest), limit: 0, window, count, epoch: 0 };
        let usage: Vec<_> = digests.iter().map(usage_of).collect();
        history.see(checker, at, &Seen::Picked { node: 0, usage: &usage, lies });
    }

    #[test]
    fn a_key_that_is_told_twice_while_another_one_waits_is_seen() {
        // The keys of the second round, and the number of violations.
        for (second, seen) in [(&[2][..], 1), (&[1], 0), (&[1, 2], 0), (&[], 0)] {
            let (mut history, mut checker) = admitted(3);
            round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            round(&mut history, &mut checker, SECOND + 9_000, second, false);
            assert_eq!(checker.violations().len(), seen, "{second:?}: {:?}", checker.violations());
        }
    }

    /// A loss is reported in two rounds, or only in one of them; two more rounds report the same window.
    #[test]
    fn a_key_that_the_store_has_lost_is_told_out_of_turn() {
        for (epochs, seen) in
            [(&[0, 0][..], 1), (&[5, 5], 0), (&[0, 5], 0), (&[5, 0], 0), (&[5, 0, 0], 0), (&[0, 0, 5], 1)]
        {
            let (mut history, mut checker) = admitted(3);
            *checker.longest.of(1) = SECOND;
            for (at, &epoch) in [SECOND + 2_000, SECOND + 9_000, SECOND + 16_000].into_iter().zip(epochs) {
                let (window, count) = (Timestamp(START + SECOND), Count { admitted: 3, refunded: 0 });
                let usage = [Usage { digest: Digest(2), limit: 0, window, count, epoch }];
                history.see(&mut checker, at, &Seen::Picked { node: 0, usage: &usage, lies: false });
            }
            assert_eq!(checker.violations().len(), seen, "{epochs:?}: {:?}", checker.violations());
        }
    }

    /// Of two limits the window of the second is over and waits, and that of the day is open.
    #[test]
    fn a_sliding_window_and_each_of_several_limits_have_their_turns() {
        for (limits, seen) in [
            (&["10/1s sliding"][..], 1),
            (&["1000/1d fixed", "10/1s sliding"], 1),
            (&["10/1s fixed", "1000/1d sliding"], 1),
            (&["10/1s burst 10"], 0),
            (&["1000/1d fixed", "10/1s burst 10"], 0),
        ] {
            let mut history = History::of_several(limits);
            let mut checker = Turns::new(&history.setting());
            (history.used, history.opened) = (4, 0);
            let rule = history.setting().rules[0].clone();
            let mut counters = [Counter::default(); MAX_LIMITS];
            for (counter, limit) in counters.iter_mut().zip(&rule.limits) {
                let ends = (START / limit.period.0 + 1) * limit.period.0;
                *counter = Counter { used: 4, prev: 0, at: Timestamp(ends - end(limit, 0)) };
            }
            history.lent_in(&mut checker, 1, counters, 4);
            history.check(&mut checker, 2, 3, Source::Lease, true);
            checker.keys.insert(2, 1);
            round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{limits:?}: {:?}", checker.violations());
        }
    }

    #[test]
    fn who_waits_since_the_first_round_only_is_overtaken_by_nobody() {
        let (mut history, mut checker) = admitted(3);
        round(&mut history, &mut checker, SECOND - 2_000, &[2], false);
        round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
        assert!(checker.violations().is_empty(), "the one before was told before the window was over");
    }

    /// By the node's knowledge of the store's clock the window was over before its end. Three rounds report all of it,
    /// or two do, or one more token is admitted after them.
    #[test]
    fn what_was_told_three_times_before_its_window_was_over_has_had_its_turns() {
        for (rounds, more, seen) in [(3, 0, 0), (2, 0, 1), (3, 1, 1)] {
            let (mut history, mut checker) = admitted(3 - more);
            checker.keys.insert(1, 0);
            (1..=rounds).for_each(|at| round(&mut history, &mut checker, SECOND / 2 + at, &[1], false));
            if more > 0 {
                history.check(&mut checker, SECOND / 2 + 9, more, Source::Lease, true);
            }
            round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{rounds} {more}: {:?}", checker.violations());
        }
    }

    /// Two tokens are reported, and then one more is spent. A node that takes a fixed window for over could not spend
    /// that.
    #[test]
    fn what_is_spent_of_a_sliding_window_that_was_taken_for_over_need_not_be_told() {
        for (limit, rounds, seen) in [("10/1s sliding", 3, 0), ("10/1s sliding", 2, 1), ("10/1s fixed", 3, 1)] {
            let mut history = History::new(limit);
            let mut checker = Turns::new(&history.setting());
            let named = Timestamp(START + if limit.contains("sliding") { 0 } else { SECOND });
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: 4, prev: 0, at: named };
            history.lent_in(&mut checker, 1, counters, 4);
            history.check(&mut checker, 2, 2, Source::Lease, true);
            checker.keys.insert(1, 0);
            checker.keys.insert(2, 1);
            let tell = |checker: &mut Turns, history: &mut History, at: u64, digest: u128| {
                let count = Count { admitted: 2, refunded: 0 };
                let usage = [Usage { digest: Digest(digest), limit: 0, window: named, count, epoch: 0 }];
                history.see(checker, at, &Seen::Picked { node: 0, usage: &usage, lies: false });
            };
            (1..=rounds).for_each(|at| tell(&mut checker, &mut history, SECOND / 2 + at, 1));
            history.check(&mut checker, SECOND / 2 + 9, 1, Source::Lease, true);
            for at in [SECOND + 2_000, SECOND + 9_000] {
                tell(&mut checker, &mut history, at, 2);
            }
            assert_eq!(checker.violations().len(), seen, "{limit} {rounds}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_need_not_be_told_or_is_not_told_any_more_waits_for_nobody() {
        let told_twice = |history: &mut History, checker: &mut Turns, at: u64, lies: bool| {
            round(history, checker, at, &[2], lies);
            round(history, checker, at + 9_000, &[2], false);
            checker.violations().len()
        };
        let (mut history, mut checker) = admitted(0);
        assert_eq!(told_twice(&mut history, &mut checker, SECOND + 2_000, false), 0, "nothing was admitted");
        let (mut history, mut checker) = admitted(3);
        assert_eq!(told_twice(&mut history, &mut checker, SECOND + 2_000, true), 0, "a liar spoke");
        let (mut history, mut checker) = admitted(3);
        assert_eq!(told_twice(&mut history, &mut checker, 6 * SECOND, false), 0, "it is too old");
        let (mut history, mut checker) = admitted(3);
        let lost = Seen::Lost { key: 0, store: Timestamp(START + 5) };
        history.see(&mut checker, 5, &lost);
        assert_eq!(told_twice(&mut history, &mut checker, SECOND + 2_000, false), 0, "the store has lost it");
    }

    /// The key that is reported twice is asked for under a bucket, which is not judged, and was dropped meanwhile or
    /// not.
    #[test]
    fn a_key_that_was_forgotten_and_comes_back_has_another_place_whatever_its_limits_are() {
        for (quiet, seen) in [(QUIET + 1, 0), (QUIET, 1)] {
            let (mut history, mut checker) = admitted(3);
            let mut bucket = History::new("10/1s burst 20");
            let first = SECOND + 1_000;
            for at in [first, first + quiet] {
                // The node is asked for key 0 meanwhile.
                history.check(&mut checker, at - SECOND / 2, 1, Source::Lease, false);
                let request = Request { key: 1, ..bucket.ask(&mut checker, at) };
                bucket.answer(&mut checker, at, &request, Source::Lease, true);
                history.check(&mut checker, at, 1, Source::Lease, false);
                round(&mut history, &mut checker, at + 1_000, &[2], false);
            }
            assert_eq!(checker.violations().len(), seen, "{quiet}: {:?}", checker.violations());
        }
    }

    /// Another node's keys do not count, nor do those of before a restart.
    #[test]
    fn a_node_is_judged_until_it_is_asked_for_more_keys_than_it_has_room_for() {
        for (crowded, seen) in [(&[1][..], 1), (&[0], 0), (&[], 1)] {
            let (mut history, mut checker) = admitted(3);
            crowded.iter().for_each(|node| history.see(&mut checker, 3, &Seen::Crowded { node: *node }));
            round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{crowded:?}: {:?}", checker.violations());
        }
    }

    /// The call was under way for half a second, and the node hears the answer after the end of the window, or before
    /// it.
    #[test]
    fn what_is_lent_of_a_window_that_is_over_is_no_news() {
        for (left, seen) in [(SECOND / 2, 0), (SECOND / 4, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Turns::new(&history.setting());
            checker.keys.insert(2, 1);
            history.called(&mut checker, 1, 1, 4);
            history.settled(&mut checker, 1, 1, 4);
            history.check(&mut checker, 2, 3, Source::Lease, true);
            history.used = 4;
            history.called(&mut checker, left, 2, 4);
            history.settled(&mut checker, left + SECOND / 4, 2, 4);
            round(&mut history, &mut checker, SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{left}: {:?}", checker.violations());
        }
    }

    /// Much of the second's window was used, and little of the longer one. When the node hears of it the second is
    /// over, or not.
    #[test]
    fn what_was_used_of_a_window_that_is_over_is_no_reason_to_tell_of_another_limit() {
        for (at, seen) in [(SECOND - OVER, 0), (SECOND - OVER - 1, 1)] {
            let mut history = History::of_several(&["40/2s fixed", "10/1s fixed"]);
            let mut checker = Turns::new(&history.setting());
            checker.keys.insert(2, 1);
            let mut counters = [Counter::default(); MAX_LIMITS];
            for (counter, ends) in counters.iter_mut().zip([2 * SECOND, SECOND]) {
                *counter = Counter { used: 3, prev: 0, at: Timestamp(START + ends) };
            }
            history.lent_in(&mut checker, at, counters, 3);
            history.check(&mut checker, at, 3, Source::Lease, true);
            round(&mut history, &mut checker, 2 * SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, 2 * SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// The key was counted by a clock that is two seconds ahead, and then by the former one again. Only windows are
    /// judged that end two periods after the time that the other clock showed.
    #[test]
    fn windows_are_judged_again_when_another_clock_has_caught_up() {
        for (at, seen) in [(3, 0), (4, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Turns::new(&history.leaping());
            checker.keys.insert(2, 1);
            history.lent(&mut checker, 1, 0, 1, 4);
            history.lent(&mut checker, SECOND, 2 * SECOND, 2, 4);
            history.lent(&mut checker, 2 * SECOND, 0, 3, 4);
            (history.used, history.opened) = (4, at * SECOND);
            history.called(&mut checker, at * SECOND + 1, 4, 4);
            history.settled(&mut checker, at * SECOND + 1, 4, 4);
            history.check(&mut checker, at * SECOND + 2, 3, Source::Lease, true);
            round(&mut history, &mut checker, (at + 1) * SECOND + 2_000, &[2], false);
            round(&mut history, &mut checker, (at + 1) * SECOND + 9_000, &[2], false);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }
}
