//! **gossip**: a node reports to its peers no more of an open window than it has admitted in it or lent on. Lapsed
//! tokens count when the window is over. And its peers can read its reports, be they of the same build or the one
//! before or after.
//!
//! Buckets have no windows, and are not reported. Malicious nodes are not judged.

use std::collections::VecDeque;
use std::sync::Arc;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::{Algorithm, MAX_LIMITS};
use rationd::core::policy::Rule;
use rationd::core::time::StoredTime;

use super::notes::{Ids, Lives, Trips};
use super::phased::{BUSY, Phased};
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME};
use crate::frames::Frame;
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static OFF: Exemption = Exemption::new("runs without gossip", "Nobody tells anything.");
static LIARS: Exemption = Exemption::new("what liars tell", "They do it on purpose.");
static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "What is told under a change has no window of this count.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, or of which a former owner with another clock has lent, until two periods and two seconds after that has caught up with the one before",
    "What is told has no window of this count.",
);
static LENDERS: Exemption = Exemption::new(
    "the window of what is admitted while a slot moves between clocks that differ by a few milliseconds",
    "It is that of the clock that lent it or that of the present owner: it counts in both.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static SEVERAL: Exemption = Exemption::new(
    "of several limits, what was lent in windows of another one that are over, or before accounts of buckets were closed, and was not admitted; of windows alone, less what was handed back of it",
    "Tokens lapse with the first window that ends, and count as admitted in the others, which are open still.",
);
static SOON_OVER: Exemption = Exemption::new(
    "shortly before a window's end",
    "Tokens lapse a little before it, and count as admitted then: 20 ms and two timeouts, or the longest trip.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "telling.rs",
    invariants: &["gossip"],
    proves: "Of a window that is open a node tells its peers no more than it has admitted of it, and its peers can read it.",
    judges: "Windows of all kinds, several limits.",
    exemptions: &[&OFF, &LIARS, &PUSHES, &LEAPS, &LENDERS, &BASELINES, &SEVERAL, &SOON_OVER],
    mutant: Some("granted-as-admitted-of-several"),
};

/// Tokens may lapse this long before their window ends, and earlier by as long as the answer that brought them was
/// under way, as the store may have read its clock when the call left.
const EDGE: u64 = 20_000;

/// How long after the end of a window no node reports it any more.
const HEARS: u64 = 2_000_000;

/// How many windows from the first request are remembered of a key: those of a former owner may be open beside the
/// owner's, and each reset by a client opens another one, while nodes that have not heard of it spend tokens of theirs.
const SHOWN: usize = 32;

/// A node, a key, the position of a limit, and `Counter::at` of its window.
type Window = (u32, u32, usize, u64);

/// Tokens that a node was lent under several limits while the same windows of all of them were open.
#[derive(Clone, Debug, Default)]
struct Lot {
    /// `Counter::at` of each; 0 for buckets.
    windows: [u64; MAX_LIMITS],
    /// When the first of the windows ends or an account may be closed, by the clock that lent the tokens.
    ends: u64,
    lent: u64,
    /// Tokens of it that were admitted; for buckets, those admitted while this lot was the latest.
    admitted: u64,
}

impl Lot {
    /// A lot of the windows in a grant, or of the next ones.
    fn of(call: &Call, grant: &Grant, is_next: bool) -> Self {
        let mut lot = Self { ends: u64::MAX, ..Self::default() };
        for (index, limit) in call.rule.limits.iter().enumerate() {
            let at = grant.counters[index].at.0 + if is_next { limit.period.0 } else { 0 };
            let ends = match limit.algorithm {
                Algorithm::Gcra => {
                    let lasts = call.rule.account_period().0;
                    (grant.now.0 / lasts + ACCOUNTS) * lasts
                }
                Algorithm::Sliding => at + limit.period.0,
                _ => at,
            };
            lot.windows[index] = if limit.algorithm == Algorithm::Gcra { 0 } else { at };
            lot.ends = lot.ends.min(ends);
        }
        lot
    }

    /// Whether all of its windows are open at `store`.
    fn is_open(&self, rule: &Rule, store: u64) -> bool {
        rule.limits.iter().zip(self.windows).all(|(limit, at)| match limit.algorithm {
            Algorithm::Fixed => (at - limit.period.0..at).contains(&store),
            Algorithm::Sliding => (at..at + limit.period.0).contains(&store),
            Algorithm::FixedFromFirst => store < at,
            Algorithm::Gcra | Algorithm::Concurrent => true,
        })
    }
}

/// How many periods after the beginning of the one in which it was opened an account of a bucket is closed.
const ACCOUNTS: u64 = 2;

/// The checker.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling {
    is_on: bool,
    /// Whether the clocks of masters differ and slots move from one to another.
    leaps: bool,
    /// See `EDGE`.
    edge: u64,
    /// By digest: the key, and its limits.
    keys: Map<u128, (u32, Arc<Rule>)>,
    /// By key and limit: the windows from the first request that the store has shown lately.
    shown: Map<(u32, usize), VecDeque<u64>>,
    /// Tokens of a window that were admitted or lent on to peers. Those on a share are in `alone`, by node and key,
    /// because their window is not known for sure.
    admitted: Map<Window, u64>,
    /// By node and key under several limits, in the order in which they were lent.
    lots: Map<(u32, u32), Vec<Lot>>,
    returned: Ids,
    alone: Map<(u32, u32), u64>,
    trips: Trips,
    lives: Lives,
    settled: Ids,
    /// The longest trip of an answer with tokens of a window.
    slowest: Map<Window, u64>,
    /// How far the clock of a key's owner is ahead of true time.
    skews: Map<u32, u64>,
    /// The same by the last call that the owner executed, which may have waited at a busy server.
    executed: Map<u32, u64>,
    /// By key: when another clock took over or, if that was behind, caught up.
    leapt: Map<u32, u64>,
    found: Found,
}

impl Telling {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let is_on = !BASELINES.when(plan.brain != Brain::Rationd) && !OFF.when(plan.gossip.is_none());
        Self { is_on, leaps: plan.clocks_leap(), edge: EDGE + 2 * plan.daemon.timeout.0, ..Self::default() }
    }

    fn follow(&mut self, moment: Moment, key: u32, now: u64) {
        let skew = now.wrapping_sub(moment.store.0);
        let known = self.skews.insert(key, skew).unwrap_or(skew);
        let executed = self.executed.get(&key).copied().unwrap_or(skew);
        if differ(known, skew) > SAME || differ(executed, skew) > BUSY {
            self.leap(moment, key, [known, executed], skew);
        }
    }

    /// Notices another clock at an execution: tokens may be lent by one clock before any check is answered by another.
    fn executed(&mut self, moment: Moment, key: u32, now: u64) {
        let skew = now.wrapping_sub(moment.store.0);
        let executed = self.executed.insert(key, skew).unwrap_or(skew);
        let known = self.skews.get(&key).copied().unwrap_or(skew);
        if differ(executed, skew).max(differ(known, skew)) > BUSY {
            self.leap(moment, key, [known, executed], skew);
        }
    }

    /// A former owner has lent by its own clock, which it had before it was cut off.
    fn executed_by_former(&mut self, moment: Moment, key: u32, now: u64) {
        let former = now.wrapping_sub(moment.store.0);
        let known = self.skews.get(&key).copied().unwrap_or(0);
        if differ(former, known) > BUSY {
            self.leap(moment, key, [former; 2], known);
        }
    }

    fn leap(&mut self, moment: Moment, key: u32, before: [u64; 2], skew: u64) {
        let behind = |before: u64| Some(before.wrapping_sub(skew)).filter(|behind| *behind < skew.wrapping_sub(before));
        let again = before.into_iter().filter_map(behind).max().unwrap_or(0);
        let leapt = self.leapt.entry(key).or_default();
        *leapt = (*leapt).max(moment.at + again);
    }

    fn judge_report(&mut self, moment: Moment, from: u32, frame: &Frame, lies: bool) {
        let heard = frame.read().unwrap_or_else(|error| {
            self.found.add("gossip", moment, || format!("node {from} told what its peers do not read: {error}"));
            &[]
        });
        // Lies about any key are not judged.
        if LIARS.when(lies) {
            return;
        }
        for usage in heard {
            let Some((key, rule)) = self.keys.get(&usage.digest.0).cloned() else { continue };
            let Some(limit) = rule.limits.get(usize::from(usage.limit)) else { continue };
            let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
            let leapt = self.leapt.get(&key).map(|leapt| leapt + 2 * longest + HEARS);
            if LEAPS.when(leapt.is_some_and(|until| moment.at < until)) {
                continue;
            }
            let now = moment.store.0.wrapping_add(self.skews.get(&key).copied().unwrap_or(0));
            let window = (from, key, usage.limit.into(), usage.window.0);
            let slowest = self.slowest.get(&window).copied().unwrap_or(0);
            let end = usage.window.0 + if limit.algorithm == Algorithm::Sliding { limit.period.0 } else { 0 };
            if SOON_OVER.when(end < now + self.edge.max(EDGE + slowest)) {
                continue;
            }
            let alone = self.alone.get(&(from, key)).copied().unwrap_or(0);
            let admitted = self.admitted.get(&window).copied().unwrap_or(0) + alone;
            let soon = now + self.edge.max(EDGE + slowest);
            let over = self.lots.get(&(from, key)).into_iter().flatten();
            let over = over.filter(|lot| lot.windows[window.2] == window.3 && lot.ends < soon);
            let lapsed = SEVERAL.forgives(over.map(|lot| lot.lent.saturating_sub(lot.admitted)).sum());
            if usage.count.net() > admitted + lapsed {
                self.found.add("gossip", moment, || {
                    format!(
                        "node {from} told {usage:?} of key {key}, and has admitted {admitted}, and {lapsed} may have lapsed"
                    )
                });
            }
        }
    }
}

/// How far two clocks are apart, given how far each is ahead of true time.
fn differ(one: u64, other: u64) -> u64 {
    one.wrapping_sub(other).min(other.wrapping_sub(one))
}

impl Telling {
    /// Counts tokens that a node has admitted or lent on at `store` of the owner's clock. The node uses the clock that
    /// lent it the tokens, which may be a former owner's, by which another window is open; then they count in both.
    fn admit(&mut self, moment: Moment, node: u32, key: u32, rule: &Rule, tokens: u64, store: u64) {
        let lots = self.lots.get_mut(&(node, key)).into_iter().flatten().rev();
        lots.filter(|lot| lot.is_open(rule, store)).take(1).for_each(|lot| lot.admitted += tokens);
        let lender = self.executed.get(&key).map(|skew| moment.store.0.wrapping_add(*skew));
        let lender = lender.filter(|lender| LENDERS.when(self.leaps && differ(*lender, store) > SAME)).unwrap_or(store);
        for (index, limit) in rule.limits.iter().enumerate() {
            let [start, other] = [store, lender].map(|at| at / limit.period.0 * limit.period.0);
            let shown = self.shown.get(&(key, index));
            let mut admit = |at| *self.admitted.entry((node, key, index, at)).or_default() += tokens;
            if other != start && limit.algorithm != Algorithm::FixedFromFirst {
                admit(if limit.algorithm == Algorithm::Fixed { other + limit.period.0 } else { other });
            }
            match limit.algorithm {
                Algorithm::Fixed => admit(start + limit.period.0),
                Algorithm::Sliding => admit(start),
                _ => shown.into_iter().flatten().filter(|at| **at > store).for_each(|at| admit(*at)),
            }
        }
    }
}

impl Telling {
    /// A node hands tokens of windows back, which are then neither admitted nor lapsed. Those of a bucket may have been
    /// reported meanwhile, as the return waits for its answer.
    fn returns(&mut self, node: u32, key: u32, call: &Call) {
        let Op::Return { amount, windows, .. } = call.op else { return };
        let is_of_windows = call.rule.limits.iter().all(|limit| limit.algorithm != Algorithm::Gcra);
        if amount == 0 || !is_of_windows || !self.returned.is_first((node, self.lives.of(node).1), call.id) {
            return;
        }
        let windows = windows.map(StoredTime::number);
        let lots = self.lots.get_mut(&(node, key)).into_iter().flatten();
        lots.filter(|lot| lot.windows == windows).for_each(|lot| lot.lent = lot.lent.saturating_sub(amount));
    }
}

impl Observer for Telling {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Reported
    }

    fn ignores(&self, _: Topic) -> bool {
        !self.is_on
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.trips.see(moment, seen);
        self.lives.see(seen);
        if let Seen::Answered { request, store, .. } = seen {
            self.follow(moment, request.key, store.0);
        }
        match seen {
            Seen::Executed { key, grant, stale: false, .. } => self.executed(moment, *key, grant.now.0),
            Seen::Executed { key, grant, stale: true, .. } => self.executed_by_former(moment, *key, grant.now.0),
            _ => {}
        }
        match seen {
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } if grant.granted > 0 => {
                let Op::Acquire(order) = call.op else { return };
                let is_first = self.settled.is_first((*node, *incarnation), call.id);
                for (index, limit) in call.rule.limits.iter().enumerate() {
                    let at = grant.counters[index].at.0 + if order.window.is_next() { limit.period.0 } else { 0 };
                    let slowest = self.slowest.entry((*node, *key, index, at)).or_default();
                    *slowest = self.trips.latest().max(*slowest);
                }
                if is_first && call.rule.limits.len() > 1 {
                    let lots = self.lots.entry((*node, *key)).or_default();
                    let lot = Lot::of(call, grant, order.window.is_next());
                    match lots.iter_mut().find(|known| (known.windows, known.ends) == (lot.windows, lot.ends)) {
                        Some(known) => known.lent += grant.granted,
                        None => lots.push(Lot { lent: grant.granted, ..lot }),
                    }
                }
            }
            Seen::Executed { key, call, grant, .. } => {
                for (index, limit) in call.rule.limits.iter().enumerate() {
                    if limit.algorithm == Algorithm::FixedFromFirst {
                        let (shown, at) = (self.shown.entry((*key, index)).or_default(), grant.counters[index].at.0);
                        if at > 0 && !shown.contains(&at) {
                            shown.push_back(at);
                            shown.drain(..shown.len().saturating_sub(SHOWN));
                        }
                    }
                }
            }
            Seen::Called { node, key, call, .. } => {
                self.keys.insert(call.digest.0, (*key, call.rule.clone()));
                self.returns(*node, *key, call);
            }
            Seen::Reported { from, frames, lies, .. } => {
                frames.iter().for_each(|frame| self.judge_report(moment, *from, frame, *lies));
            }
            Seen::Answered { request, rule, decision, store, .. }
                if request.kind == Kind::Check && decision.verdict == Verdict::Allow =>
            {
                if decision.source == Source::Peer {
                    // The lending peer reports these tokens.
                    return;
                }
                if decision.source == Source::Share {
                    *self.alone.entry((request.node, request.key)).or_default() += request.cost;
                    return;
                }
                self.admit(moment, request.node, request.key, rule, request.cost, store.0);
            }
            Seen::PeerAnswered { node, key, answer: Ok(loan), .. } if loan.aside => {
                *self.alone.entry((*node, *key)).or_default() += loan.tokens;
            }
            Seen::PeerAnswered { node, key, answer: Ok(loan), rule, store, .. } => {
                self.admit(moment, *node, *key, rule, loan.tokens, store.0);
            }
            _ => {}
        }
    }
}

impl Checker for Telling {
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
    use rationd::core::time::Timestamp;
    use rationd::core::usage::{Count, Usage};
    use rationd::wire::digest;

    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::frames::Frames;
    use crate::plan::Gossip;

    #[test]
    fn a_node_that_tells_of_more_than_it_admitted_is_seen() {
        for (admitted, seen) in [(3, 0), (4, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, 1, 1, 4);
            history.check(&mut checker, 2, 3, Source::Lease, true);
            let window = Timestamp(1_800_000_000_000_000 + SECOND);
            let count = Count { admitted, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, 3, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The clock is five seconds ahead from the first second on. Judging begins again two periods and two seconds after
    /// that.
    #[test]
    fn what_is_told_is_judged_again_when_another_clock_has_counted_the_key_for_long() {
        for (at, seen) in [(5 * SECOND - 1, 0), (5 * SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, 1, 1, 4);
            let request = history.ask(&mut checker, 1);
            history.answer_ahead(&mut checker, 1, 0, &request);
            history.answer_ahead(&mut checker, SECOND, 5 * SECOND, &request);
            let window = Timestamp(1_800_000_000_000_000 + 12 * SECOND);
            let count = Count { admitted: 4, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, at, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// A node was lent four tokens of a window by a former owner whose clock is a second ahead. Judging begins again
    /// two periods and two seconds after the owner's clock has caught up.
    #[test]
    fn what_a_former_owner_with_another_clock_has_lent_may_be_told() {
        for (stale, ahead, at, seen) in [
            (true, SECOND, 5 * SECOND, 0),
            (true, SECOND, 5 * SECOND + 1, 1),
            (true, 0, 2 * SECOND, 1),
            (false, 0, 2 * SECOND, 1),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, 1, 1, 4);
            history.stale = stale;
            history.lent(&mut checker, 1, ahead, 1, 4);
            let window = Timestamp(1_800_000_000_000_000 + 12 * SECOND);
            let count = Count { admitted: 4, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, at, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{stale} {ahead} {at}: {:?}", checker.violations());
        }
    }

    /// A peer that was frozen hears the lie long after the fault.
    #[test]
    fn a_lie_is_excused_whenever_it_arrives_and_the_truth_never() {
        for (lies, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, 1, 1, 4);
            let window = Timestamp(1_800_000_000_000_000 + 5 * SECOND);
            let count = Count { admitted: u64::MAX, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, 4 * SECOND, &Seen::Reported { from: 0, to: 1, frames: &frames, lies });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn windows_of_all_kinds_are_judged() {
        for (limit, at) in [("10/1s sliding", 0), ("10/1s fixed from-first", SECOND)] {
            for (admitted, seen) in [(3, 0), (4, 1)] {
                let mut history = History::new(limit);
                let mut setting = history.setting();
                setting.plan.gossip = Some(Gossip::default());
                let mut checker = Telling::new(&setting);
                history.called(&mut checker, 1, 1, 4);
                history.executed(&mut checker, 1, 1);
                history.check(&mut checker, 2, 3, Source::Lease, true);
                let window = Timestamp(1_800_000_000_000_000 + at);
                let count = Count { admitted, refunded: 0 };
                let frames =
                    Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
                history.see(&mut checker, 3, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
                assert_eq!(checker.violations().len(), seen, "{limit}: {:?}", checker.violations());
            }
        }
    }

    /// Clients reset the key again and again, of which the node has yet to hear.
    #[test]
    fn a_node_spends_of_a_window_that_others_have_reset() {
        let mut history = History::new("10/1s fixed from-first");
        let mut setting = history.setting();
        setting.plan.gossip = Some(Gossip::default());
        let mut checker = Telling::new(&setting);
        history.called(&mut checker, 1, 1, 4);
        for reset in 0..6 {
            history.opened = 10 * reset;
            history.executed(&mut checker, 10 * reset, reset + 1);
        }
        history.check(&mut checker, 61, 3, Source::Lease, true);
        for (admitted, seen) in [(3, 0), (4, 1)] {
            let window = Timestamp(1_800_000_000_000_000 + SECOND);
            let count = Count { admitted, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, 62, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// Six tokens are lent under a limit per second and one per minute, and four of them are admitted. When the second
    /// is over, the other two may be reported as admitted in the minute, unless they were handed back; they may not
    /// before that, nor ever in the second.
    #[test]
    fn of_several_limits_what_is_told_was_admitted_or_has_lapsed() {
        for (place, at, back, reported, seen) in [
            (0, SECOND / 2, 0, 4, 0),
            (0, SECOND / 2, 0, 5, 1),
            (1, SECOND / 2, 0, 4, 0),
            (1, SECOND / 2, 0, 5, 1),
            (1, SECOND + 1, 0, 6, 0),
            (1, SECOND + 1, 0, 7, 1),
            (1, SECOND + 1, 2, 4, 0),
            (1, SECOND + 1, 2, 5, 1),
        ] {
            let mut history = History::of_several(&["10/1s fixed", "100/1m fixed"]);
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            let ends = [SECOND, 60 * SECOND].map(|end| Timestamp(1_800_000_000_000_000 + end));
            let mut counters = [Counter::default(); MAX_LIMITS];
            (counters[0].at, counters[1].at) = (ends[0], ends[1]);
            history.lent_in(&mut checker, 1, counters, 6);
            history.check(&mut checker, 2, 4, Source::Lease, true);
            history.returns_of(&mut checker, SECOND / 2, ends, back);
            let count = Count { admitted: reported, refunded: 0 };
            let usage = Usage { digest: Digest(1), limit: place as u8, window: ends[place], count, epoch: 0 };
            let frames = Frames::new(digest::encode(&[usage]));
            history.see(&mut checker, at, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{place} {at} {back} {reported}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_node_whose_peers_do_not_read_what_it_tells_is_seen() {
        for (version, seen) in [(1, 0), (digest::VERSION, 1), (digest::VERSION + 1, 1), (digest::VERSION + 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            let frames = Frames::new(vec![vec![version, 0, 0]]);
            history.see(&mut checker, 3, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_lapsed_because_its_answer_was_late_may_be_told() {
        for (sent, seen) in [(SECOND / 8, 0), (SECOND / 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, sent, 1, 4);
            history.settled(&mut checker, SECOND * 5 / 8, 1, 4);
            let window = Timestamp(1_800_000_000_000_000 + SECOND);
            let count = Count { admitted: 4, refunded: 0 };
            let frames = Frames::new(digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]));
            history.see(&mut checker, SECOND * 5 / 8, &Seen::Reported { from: 0, to: 1, frames: &frames, lies: false });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
