//! **conservation** in the store: a window's count rises by what a call lent, and falls by what one
//! took back, and by nothing else; a node that finds the store without its data adds what it knows,
//! once. And an aligned window is the one that the clock says (**truth**).
//!
//! Buckets are not judged here: what they lend is counted where it is admitted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rationd::core::call::{Call, Counter, Grant, Op};
use rationd::core::limit::{Algorithm, Limit};

use super::Found;
use super::sheet::{Exemption, Sheet};
use crate::observe::{Checker, Moment, Observer, Seen, Setting, Violation};
use crate::plan::What;

static BUCKETS: Exemption = Exemption::new("buckets", "bucket.rs judges them.");
static UNKNOWN: Exemption = Exemption::new(
    "what a failover undid or a former owner did",
    "What the new master counts is not known until its first answer.",
);
static RETURNED: Exemption = Exemption::new(
    "which counter a return lowers",
    "A return may be of the window or of the next: of each counter all of it may go, or none.",
);
static PERIODS: Exemption = Exemption::new("other periods", "Under limits of another period counts begin anew.");

static OTHERS: Exemption = Exemption::new(
    "a key that was forgotten under other limits",
    "A call has the store keep a key for as long as its own limits need: what others charged under limits that it does not have may be gone before.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "store.rs",
    invariants: &["conservation", "truth"],
    proves: "The count of a window rises by what a call lent and falls by what one took back, and by nothing else; and an aligned window is the one that the clock says.",
    judges: "Fixed, sliding and from-first windows, several limits.",
    exemptions: &[&BUCKETS, &UNKNOWN, &RETURNED, &PERIODS, &OTHERS],
    mutant: Some("window-reopens"),
};

/// Acquires of a node that are remembered for each key.
const ACQUIRES: usize = 4;

/// What the store last showed of one limit.
#[derive(Clone, Copy, Debug)]
struct Shown {
    period: u64,
    counter: Counter,
    epoch: u64,
    /// A call that does not have this limit has come since an acquire under it.
    others: bool,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Store {
    /// Clocks of masters differ, and slots move from one to another.
    leaps: bool,
    /// By key, place and algorithm; `None` where part of it was undone.
    shown: BTreeMap<(u32, usize, u8), Option<Shown>>,
    /// Nodes that have called since the store lost a key.
    since: BTreeMap<u32, BTreeSet<u32>>,
    /// The latest acquires of each node, by key and node: their ids, and what each was lent. Whoever executed them: a
    /// server that is cut off or pauses may own the key again.
    lent: BTreeMap<(u32, u32), VecDeque<(u64, u64)>>,
    found: Found,
}

impl Store {
    pub(super) fn new(setting: &Setting) -> Self {
        let moves = setting.plan.faults.iter().any(|fault| matches!(fault.what, What::Reshard { .. }));
        Self {
            leaps: moves && setting.plan.redis.skew.0 > 0,
            shown: BTreeMap::new(),
            since: BTreeMap::new(),
            lent: BTreeMap::new(),
            found: Found::default(),
        }
    }

    fn executed(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant) {
        let adds = match self.since.get_mut(&key) {
            _ if call.op == Op::Peek || grant.outdated => false,
            Some(nodes) => nodes.insert(node) && !grant.reset,
            None => false,
        };
        if call.op == Op::Reset && !grant.replayed && !grant.outdated {
            self.empty(key);
        }
        // What a node was lent by an order that is void goes back with what it hands back.
        let is_void = |id: &u64| matches!(&call.op, Op::Return { voids, .. } if voids.id == *id);
        let lent = self.lent.get(&(key, node)).into_iter().flatten();
        let freed = lent.rev().find(|(id, _)| is_void(id)).copied();
        let also = Also { adds, freed: freed.map_or(0, |(_, granted)| granted) };
        for ((_, index, algorithm), shown) in self.shown.range_mut((key, 0, 0)..(key + 1, 0, 0)) {
            let has = call.rule.limits.get(*index).is_some_and(|limit| limit.algorithm as u8 == *algorithm);
            shown.iter_mut().for_each(|shown| shown.others |= !has);
        }
        for (index, limit) in call.rule.limits.iter().enumerate() {
            let (counter, period) = (grant.counters[index], limit.period.0);
            if BUCKETS.when(limit.algorithm == Algorithm::Gcra) {
                continue;
            }
            let start = grant.now.0 / period * period;
            let at = match limit.algorithm {
                Algorithm::Fixed => start + period,
                Algorithm::Sliding => start,
                _ => counter.at.0,
            };
            if counter.at.0 != at {
                self.found.add("truth", moment, || format!("key {key}: {counter:?} of {limit:?} at {:?}", grant.now));
            }
            let place = (key, index, limit.algorithm as u8);
            let others = self.shown.get(&place).is_some_and(|shown| shown.is_some_and(|shown| shown.others))
                && !matches!(call.op, Op::Acquire(_));
            let shown = self.shown.insert(place, Some(Shown { period, counter, epoch: grant.epoch, others }));
            if UNKNOWN.when(matches!(shown, Some(None))) {
                continue;
            }
            let before = match shown {
                Some(Some(shown))
                    if !PERIODS.when(shown.period != period)
                        && !OTHERS.when(shown.others && shown.epoch != grant.epoch) =>
                {
                    rolled(shown.counter, limit, counter.at.0)
                }
                _ => continue,
            };
            if !follows(call, index, grant, before, counter, also) {
                self.found.add("conservation", moment, || {
                    format!("key {key}: {before:?} became {counter:?} by {} of {:?}", grant.granted, call.op)
                });
            }
        }
    }

    /// What an acquire was lent, until some others have followed.
    fn lend(&mut self, node: u32, key: u32, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_)) && !grant.replayed && !grant.outdated {
            let lent = self.lent.entry((key, node)).or_default();
            lent.push_back((call.id, grant.granted));
            if lent.len() > ACQUIRES {
                lent.pop_front();
            }
        }
    }

    /// All that was shown of a key is void: it is gone, or not known.
    fn forget(&mut self, key: u32, gone: bool) {
        if gone {
            self.since.insert(key, BTreeSet::new());
        } else {
            self.since.remove(&key);
        }
        if gone {
            self.empty(key);
        } else {
            self.places(key).for_each(|shown| *shown = None);
        }
    }

    /// The store counts nothing of a key, whatever its limits were before.
    fn empty(&mut self, key: u32) {
        self.places(key).flatten().for_each(|shown| shown.counter = Counter::default());
    }

    fn places(&mut self, key: u32) -> impl Iterator<Item = &mut Option<Shown>> {
        self.shown.range_mut((key, 0, 0)..(key + 1, 0, 0)).map(|(_, shown)| shown)
    }
}

/// The counter as it is in the window of `at`.
fn rolled(counter: Counter, limit: &Limit, at: u64) -> Counter {
    let next = counter.at.0 + limit.period.0 == at;
    let (used, prev) = match limit.algorithm {
        _ if counter.at.0 == at => (counter.used, counter.prev),
        Algorithm::Fixed if next => (counter.prev, 0),
        Algorithm::Sliding if next => (0, counter.used),
        _ => (0, 0),
    };
    Counter { used, prev, ..counter }
}

/// What a call does beside what it says.
#[derive(Clone, Copy, Debug)]
struct Also {
    /// The node adds what it knows to a store that lost it.
    adds: bool,
    /// An order of the node is void, which was lent so much.
    freed: u64,
}

/// Whether `after` is what a call makes of `before`.
fn follows(call: &Call, index: usize, grant: &Grant, before: Counter, after: Counter, also: Also) -> bool {
    let granted = grant.granted;
    let limit = &call.rule.limits[index];
    let (used, prev) = (before.used, before.prev);
    let same = (after.used, after.prev) == (used, prev);
    match &call.op {
        _ if grant.replayed || grant.outdated => same,
        Op::Peek => same,
        Op::Reset | Op::Occupy(_) => true,
        Op::Refund { .. } => (after.used, after.prev) == (used.saturating_sub(granted), prev),
        Op::Return { .. } => {
            let all = [0, granted, also.freed, granted.saturating_add(also.freed)];
            let back =
                |from: u64, to: u64| all.iter().any(|tokens| to == from.saturating_sub(RETURNED.forgives(*tokens)));
            back(used, after.used) && back(prev, after.prev)
        }
        Op::Acquire(order) => {
            let known = order.known[index];
            let knows = known.at == after.at && order.epoch != 0 && order.epoch != grant.epoch;
            let restored = if knows { (used + known.used).min(limit.count) } else { used };
            let (lent, ahead) = if order.ahead_of.0 == 0 { (granted, 0) } else { (0, granted) };
            after.prev == prev + ahead && (after.used == restored + lent || after.used == used + lent && !also.adds)
        }
    }
}

impl Observer for Store {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Executed { node, key, call, grant, .. } = seen {
            self.lend(*node, *key, call, grant);
        }
        match seen {
            Seen::Executed { key, stale: true, .. } | Seen::Undone { key, .. } => self.forget(*key, false),
            Seen::Executed { node, key, call, grant, .. } if !self.leaps => {
                self.executed(moment, *node, *key, call, grant);
            }
            Seen::Lost { key, .. } => self.forget(*key, true),
            _ => {}
        }
    }
}

impl Checker for Store {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, SECOND};

    #[test]
    fn a_token_that_is_lent_and_not_counted_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Store::new(&history.setting());
        history.executed(&mut checker, 1, 1);
        history.executed(&mut checker, 2, 2);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.used -= 1;
        history.executed(&mut checker, 3, 3);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }

    #[test]
    fn a_key_that_was_lost_begins_at_nothing() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Store::new(&history.setting());
        history.executed(&mut checker, 1, 1);
        history.see(&mut checker, 2, &Seen::Lost { key: 0, store: Timestamp(0) });
        history.used = 0;
        history.executed(&mut checker, 3, 2);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }

    #[test]
    fn what_a_node_knows_is_added_to_a_store_that_lost_it() {
        for (used, seen) in [(4, 0), (0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Store::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            history.see(&mut checker, 2, &Seen::Lost { key: 0, store: Timestamp(0) });
            (history.used, history.known, history.epoch) = (used, 4, 2);
            history.executed(&mut checker, 3, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_that_is_over_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Store::new(&history.setting());
        history.executed(&mut checker, SECOND, 1);
        assert_eq!(checker.violations()[0].invariant, "truth");
    }

    #[test]
    fn what_a_void_order_was_lent_goes_back_and_no_more() {
        for (used, seen) in [(1, 0), (0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Store::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            history.executed(&mut checker, 2, 2);
            history.used = used;
            history.voided(&mut checker, 3, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_a_server_lent_that_was_cut_off_goes_back_when_it_is_the_owner_again() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Store::new(&history.setting());
        history.stale = true;
        history.executed(&mut checker, 1, 1);
        history.stale = false;
        history.voided(&mut checker, 2, 9);
        history.used = 0;
        history.voided(&mut checker, 3, 1);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }
}
