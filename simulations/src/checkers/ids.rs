//! **at-most-once**: however often a call arrives, its id lends once, credits once and refunds once, as long as the
//! store keeps its state; and a node hands back no more than it was lent. A repeated grant belongs to the windows in
//! which it was lent. No node uses an id again in another life. **no-free-budget**: nothing of an older epoch is
//! credited, and a reset begins a new one.

use std::collections::BTreeMap;

use rationd::core::call::{Acquire, Call, Counter, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::gcra;
use rationd::core::limit::{Algorithm, Limit, MAX_LIMITS};
use rationd::core::time::Timestamp;

use super::Found;
use super::notes::Lives;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Numbered, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Topic, Violation};

static FORGOTTEN: Exemption = Exemption::new(
    "a store that lost its state, or a former owner",
    "It has lost its memory of ids with it; that a node hands back more than it was lent is judged again of what it is lent under another epoch and what it brings back, which of a policy's only bucket is all that this owes.",
);

static UNCHARGED: Exemption = Exemption::new(
    "of a key of which a policy let checks pass without the store, as much as clients take back of those",
    "Nothing was charged for them, which no node remembers: what is taken back it holds like a token that it was lent.",
);

static EXPIRED: Exemption = Exemption::new(
    "a key of windows that are over and of full buckets of which nothing is lent, which nobody called for as long as the store keeps it",
    "It is forgotten, and with it who called last. An acquire that says until when it may be executed is judged for ever.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "ids.rs",
    invariants: &["at-most-once", "no-free-budget"],
    proves: "A call's id lends, credits and refunds once; a node hands back no more than it was lent; nothing of an older epoch is credited, and a reset begins one.",
    judges: "All.",
    exemptions: &[&FORGOTTEN, &UNCHARGED, &EXPIRED],
    mutant: Some("acquire-executed-again"),
};

/// The store keeps keys for whole milliseconds.
const ROUNDED: u64 = 1_000;

/// How many ids are remembered of each key.
const REMEMBERED: usize = 10_000;

/// One key: what was executed under which id, and the tokens by node.
#[derive(Debug, Default)]
struct Key {
    done: BTreeMap<(u32, u64, u64), Done>,
    /// By node, its life and the epoch: tokens lent, and tokens handed back.
    lent: Map<(u32, u64, u64), (u64, u64)>,
    /// Epochs during which the store lost some of its state: how much was lent under them is not known any more.
    blurred: Set<u64>,
    epoch: u64,
    /// When the store may drop it, by its clock.
    until: u64,
}

impl Key {
    /// The store has lost its memory of ids, and how much it lent under the epochs so far.
    fn lose(&mut self) {
        let lent = self.lent.keys().map(|(.., epoch)| *epoch);
        let blurred = std::mem::take(&mut self.blurred).into_iter().chain(lent).chain([self.epoch]).collect();
        *self = Self { blurred, ..Self::default() };
    }
}

/// How often something was executed, and in which windows.
#[derive(Debug, Default)]
struct Done {
    times: u32,
    windows: [u64; MAX_LIMITS],
    /// Whether the call says until when it may be executed.
    is_bounded: bool,
}

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Ids {
    keys: Numbered<Key>,
    lives: Lives,
    /// The life in which a node used an id.
    used: Map<(u32, u64), u64>,
    /// By node, its life and key: tokens of checks that a policy let pass uncharged, and how many of those were
    /// refunded.
    uncharged: Map<(u32, u64, u32), (u64, u64)>,
    found: Found,
}

/// The time by which the store has dropped a key without further calls, as `lua/tail.lua` says. Buckets with lent
/// tokens count here as never dropped, as those tokens are not bound to a window.
fn forgotten_by(call: &Call, grant: &Grant) -> u64 {
    let limits = call.rule.limits.iter();
    // A bucket's census period depends on the time in which it fills up, not on its period.
    let span = |limit: &Limit| if limit.algorithm == Algorithm::Gcra { limit.depth().0 } else { limit.period.0 };
    let shortest = limits.clone().map(span).min().unwrap_or(0);
    let ends = |(limit, counter): (&Limit, &Counter)| match limit.algorithm {
        // The bucket is full again, and no tokens are lent.
        Algorithm::Gcra if counter.used == 0 => counter.at.0,
        Algorithm::Gcra | Algorithm::Concurrent => u64::MAX,
        Algorithm::Sliding => counter.at.0 + 3 * limit.period.0,
        // A window that has not begun.
        _ if counter.at.0 == 0 => grant.now.0 + 2 * limit.period.0,
        Algorithm::Fixed | Algorithm::FixedFromFirst => counter.at.0 + limit.period.0,
    };
    let census = shortest.clamp(1_000_000, 60_000_000);
    let ends = limits.zip(&grant.counters).map(ends).max().unwrap_or(u64::MAX);
    ends.max(grant.now.0 + 2 * census).saturating_add(ROUNDED)
}

/// The tokens of an earlier epoch that a node may hand back, because its acquire has restored them in a store that had
/// lost them. For a policy with one bucket those are all that the bucket owes: the store counts them again, and the
/// node may have spent any part of them and have it back by a refund of a client, which it then hands back with its
/// lease.
fn brought_back(limits: &[Limit], order: &Acquire, now: Timestamp) -> u64 {
    let used = order.known.iter().map(|known| known.used).max().unwrap_or(0);
    let owed = match limits {
        [limit] if limit.algorithm == Algorithm::Gcra => {
            let span = order.known[0].at.since(now).min(limit.depth());
            let whole = gcra::tokens_in(limit, span);
            // A part of a token is handed back as a whole one.
            (whole + u64::from(gcra::cost(limit, whole) < span)).min(limit.burst)
        }
        _ => 0,
    };
    used + owed + order.held
}

impl Ids {
    /// Judges a repeated grant: it has to name the windows in which it was lent.
    fn repeated(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant) {
        let Some(done) = self.keys.get(key).and_then(|state| state.done.get(&(node, call.id, grant.epoch))) else {
            return;
        };
        let limits = call.rule.limits.iter().zip(&grant.counters).zip(&done.windows);
        let is_another = |((limit, counter), at): ((&Limit, &Counter), &u64)| {
            limit.algorithm != Algorithm::Gcra && counter.at.0 != *at
        };
        if grant.granted > 0 && limits.into_iter().any(is_another) {
            let windows = done.windows;
            self.found.add("at-most-once", moment, || {
                format!("key {key}, node {node}: {call:?} was lent of {windows:?}, and again as {grant:?}")
            });
        }
    }

    fn epoch(&mut self, moment: Moment, key: u32, call: &Call, grant: &Grant) {
        let state = self.keys.of(key);
        let before = std::mem::replace(&mut state.epoch, grant.epoch);
        if grant.replayed || grant.outdated {
            return;
        }
        let wrong = match call.op {
            Op::Return { epoch, .. } => grant.granted > 0 && epoch != grant.epoch,
            Op::Reset => grant.epoch != 0 && grant.epoch == before,
            _ => false,
        };
        if wrong {
            self.found.add("no-free-budget", moment, || format!("key {key}: {:?} under {}", call.op, grant.epoch));
        }
    }
}

impl Observer for Ids {
    fn ignores(&self, topic: Topic) -> bool {
        topic == Topic::Settled
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        match seen {
            Seen::Answered { request, decision, .. } if decision.verdict == Verdict::Allow => {
                let (node, life) = self.lives.of(request.node);
                let place = (node, life, request.key);
                match (request.kind, decision.source) {
                    (Kind::Check, Source::Policy) => self.uncharged.entry(place).or_default().0 += request.cost,
                    (Kind::Refund, Source::Lease) => {
                        if let Some((passed, back)) = self.uncharged.get_mut(&place) {
                            let tokens = request.cost.min(*passed);
                            (*passed, *back) = (*passed - tokens, *back + tokens);
                        }
                    }
                    _ => {}
                }
            }
            Seen::Called { node, call, .. } if call.id != 0 => {
                let (_, life) = self.lives.of(*node);
                let used = *self.used.entry((*node, call.id)).or_insert(life);
                if used != life {
                    self.found.add("at-most-once", moment, || {
                        format!("node {node} used the id {} in its life {used} and in {life}", call.id)
                    });
                }
            }
            Seen::Executed { node, incarnation, key, call, grant, stale: false, .. } => {
                self.epoch(moment, *key, call, grant);
                let state = self.keys.of(*key);
                if EXPIRED.when(state.until > 0 && grant.now.0 > state.until) {
                    state.done.retain(|_, done| done.is_bounded);
                }
                state.until = state.until.max(forgotten_by(call, grant));
                if let Op::Acquire(order) = call.op
                    && (1..).contains(&order.epoch)
                    && order.epoch != grant.epoch
                    && !(grant.replayed || grant.reset)
                {
                    // The store counts the tokens again that the node says it was lent and still holds.
                    let (lent, _) = state.lent.entry((*node, *incarnation, grant.epoch)).or_default();
                    *lent += brought_back(&call.rule.limits, &order, grant.now);
                }
                if grant.replayed {
                    self.repeated(moment, *node, *key, call, grant);
                }
                if grant.granted == 0 || grant.replayed || call.id == 0 {
                    return;
                }
                let state = self.keys.of(*key);
                let done = state.done.entry((*node, call.id, grant.epoch)).or_default();
                done.times += 1;
                done.is_bounded = matches!(call.op, Op::Acquire(order) if order.until.is_some());
                done.windows = std::array::from_fn(|index| grant.counters[index].at.0);
                if done.times > 1 {
                    self.found.add("at-most-once", moment, || format!("key {key}, node {node}: {call:?} ran again"));
                }
                if state.done.len() > REMEMBERED {
                    state.done.pop_first();
                }
                let (lent, back) = state.lent.entry((*node, *incarnation, grant.epoch)).or_default();
                match call.op {
                    Op::Acquire(_) => *lent += grant.granted,
                    Op::Return { .. } => *back += grant.granted,
                    _ => {}
                }
                let (lent, back) = (*lent, *back);
                let taken_back = || self.uncharged.get(&(*node, *incarnation, *key)).map_or(0, |(_, back)| *back);
                if back > lent
                    && !FORGOTTEN.when(state.blurred.contains(&grant.epoch))
                    && !UNCHARGED.when(back <= lent + taken_back())
                {
                    self.found.add("at-most-once", moment, || {
                        format!("key {key}: node {node} was lent {lent} and handed back {back}")
                    });
                }
            }
            Seen::Undone { key, .. } | Seen::Lost { key, .. } => self.keys.of(*key).lose(),
            Seen::Executed { key, grant, stale: true, .. } => {
                let state = self.keys.of(*key);
                state.lose();
                state.blurred.insert(grant.epoch);
            }
            _ => {}
        }
    }
}

impl Checker for Ids {
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
    use crate::observe::Request;

    #[test]
    fn an_id_of_another_life_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Ids::default();
        history.called(&mut checker, 0, 1, 1);
        history.called(&mut checker, 1, 1, 1);
        history.see(&mut checker, 2, &Seen::Joined { node: 0, incarnation: 7 });
        history.called(&mut checker, 3, 2, 1);
        assert!(checker.violations().is_empty());
        history.called(&mut checker, 4, 1, 1);
        assert_eq!(checker.violations()[0].invariant, "at-most-once");
    }

    #[test]
    fn a_loss_excuses_what_is_handed_back_under_the_epochs_before_it() {
        for (epoch, seen) in [(1, 0), (2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Ids::default();
            history.executed(&mut checker, 0, 1);
            history.see(&mut checker, 1, &Seen::Lost { key: 0, store: Timestamp(0) });
            history.epoch = epoch;
            history.asks_under = epoch;
            history.executed(&mut checker, 2, 2);
            history.handed_back(&mut checker, 3, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{epoch}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_a_node_brings_back_it_may_hand_back() {
        for (known, seen) in [(1, 0), (0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Ids::default();
            history.executed(&mut checker, 0, 1);
            history.see(&mut checker, 1, &Seen::Lost { key: 0, store: Timestamp(0) });
            (history.epoch, history.known) = (2, known);
            history.executed(&mut checker, 2, 2);
            history.handed_back(&mut checker, 3, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{known}: {:?}", checker.violations());
        }
    }

    /// A policy let a check pass without the store, and its client refunds it when the store is back.
    #[test]
    fn what_is_taken_back_of_checks_that_passed_uncharged_may_be_handed_back() {
        for (passed, seen) in [(1, 0), (0, 1)] {
            let mut history = History::new("10/1s burst 10");
            let mut checker = Ids::default();
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            (0..passed).for_each(|at| history.check(&mut checker, at, 1, Source::Policy, true));
            history.executed(&mut checker, 2, 1);
            let request = Request { kind: Kind::Refund, ..history.ask(&mut checker, 3) };
            history.answer(&mut checker, 3, &request, Source::Lease, true);
            history.handed_back(&mut checker, 4, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{passed}: {:?}", checker.violations());
        }
    }

    /// A node restores a token that it has spent and what it knows of the bucket, which owes ten tokens one second
    /// after the start. Then it is lent one.
    #[test]
    fn what_a_bucket_owes_that_a_node_brings_back_it_may_hand_back() {
        for (limit, at, most) in [
            ("10/1s burst 10", 500_000, 7),
            ("10/1s burst 10", 499_999, 8),
            ("10/1s burst 3", 500_000, 5),
            ("10/1s burst 10", 1_500_000, 2),
            ("10/1s fixed", 500_000, 2),
        ] {
            for (amount, seen) in [(most, 0), (most + 1, 1)] {
                let mut history = History::new(limit);
                let mut checker = Ids::default();
                history.executed(&mut checker, 0, 1);
                history.see(&mut checker, 1, &Seen::Lost { key: 0, store: Timestamp(0) });
                (history.epoch, history.known) = (2, 1);
                history.executed(&mut checker, at, 2);
                history.handed_back(&mut checker, at + 1, amount, amount);
                assert_eq!(checker.violations().len(), seen, "{limit} {at} {amount}: {:?}", checker.violations());
            }
        }
    }

    #[test]
    fn a_repeat_in_another_window_is_seen() {
        let mut history = History::new("10/1s fixed from-first");
        let mut checker = Ids::default();
        history.executed(&mut checker, 0, 1);
        history.repeated(&mut checker, 1, 1);
        assert!(checker.violations().is_empty());
        history.opened = 1;
        history.repeated(&mut checker, 2, 1);
        assert_eq!(checker.violations()[0].invariant, "at-most-once");
    }

    #[test]
    fn a_reset_without_a_new_epoch_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Ids::default();
        history.executed(&mut checker, 0, 1);
        history.epoch = 2;
        history.reset(&mut checker, 1, 2);
        assert!(checker.violations().is_empty());
        history.reset(&mut checker, 2, 3);
        assert_eq!(checker.violations()[0].invariant, "no-free-budget");
    }

    /// The window ends a second after it began, and the key is kept for another second, or for two after the last call.
    #[test]
    fn a_call_that_comes_again_when_its_key_is_forgotten_is_another() {
        for (again, seen) in [(2_000_900, 1), (2_001_100, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Ids::default();
            history.executed(&mut checker, 0, 1);
            history.opened = again / 1_000_000 * 1_000_000;
            history.executed(&mut checker, again, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The bucket is full again after a second at the latest. The store keeps it for twice the time in which it fills
    /// up, or for two seconds.
    #[test]
    fn a_bucket_is_forgotten_by_the_time_in_which_it_fills_up() {
        for (limit, again, seen) in [
            ("10/30s burst 1", 6_001_000, 1),
            ("10/30s burst 1", 6_001_001, 0),
            ("100/30s burst 1", 2_001_000, 1),
            ("100/30s burst 1", 2_001_001, 0),
        ] {
            let mut history = History::new(limit);
            let mut checker = Ids::default();
            history.lent(&mut checker, 0, 0, 1, 1);
            history.lent(&mut checker, again, 0, 1, 1);
            assert_eq!(checker.violations().len(), seen, "{limit} {again}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_call_that_lends_twice_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Ids::default();
        history.executed(&mut checker, 0, 1);
        history.executed(&mut checker, 1, 2);
        assert!(checker.violations().is_empty());
        history.executed(&mut checker, 2, 2);
        assert_eq!(checker.violations()[0].invariant, "at-most-once");
    }
}
