//! **conservation** in the store: the count of a window grows only by what a call has lent, and shrinks only by what
//! one took back; and a node that finds the store without its data adds what it knows, once. An aligned window is the
//! one that the clock is in (**truth**).
//!
//! Buckets are not judged here, but in `bucket.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rationd::core::call::{Call, Counter, Grant, Op};
use rationd::core::entitled::generation;
use rationd::core::limit::{Algorithm, Limit, MAX_LIMITS};
use rationd::core::time::{StoredTime, Timestamp};

use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, counted};
use crate::observe::{Checker, Moment, Observer, Ran, Seen, Setting, Topic, Violation};

static BUCKETS: Exemption = Exemption::new("buckets", "bucket.rs judges them.");
static UNKNOWN: Exemption = Exemption::new(
    "what a failover undid or a former owner did",
    "What the new master counts is not known until its first answer.",
);
static VOID: Exemption = Exemption::new(
    "what an order was lent that is void, after a failover or beside a former owner",
    "Whether the master at hand knows of that order is not known: it goes back whole, or not at all.",
);
static PERIODS: Exemption = Exemption::new("other periods", "Under limits of another period counts begin anew.");

static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods after that has caught up with the one before; for good where its limits change",
    "By another clock other windows are open at once. Of an order that is void nothing is known until its node has asked once more.",
);
static OTHERS: Exemption = Exemption::new(
    "a key that was forgotten under other limits",
    "A call has the store keep a key for as long as its own limits need: what others charged under limits that it does not have may be gone before.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "store.rs",
    invariants: &["conservation", "truth"],
    proves: "The count of a window rises by what a call lent and falls by what one took back, and by nothing else (of an order that is void what it needed stays charged where what it freed cannot be set aside again); of what is handed back that takes all in which it was lent, or nothing where that is over; and an aligned window is the one that the clock says.",
    judges: "Fixed, sliding and from-first windows, several limits.",
    exemptions: &[&BUCKETS, &UNKNOWN, &VOID, &PERIODS, &LEAPS, &OTHERS],
    mutant: Some("window-reopens"),
};

/// The prefix of a node's record in a hash, before its name.
const RECORD: &str = "n:";

/// How many acquires of a node are remembered for each key.
const ACQUIRES: usize = 4;

/// What the store last showed of one limit.
#[derive(Clone, Copy, Debug)]
struct Shown {
    period: u64,
    counter: Counter,
    epoch: u64,
    /// Whether a call without this limit has come since an acquire under it.
    others: bool,
}

/// An acquire as the store remembers it.
#[derive(Clone, Copy, Debug)]
struct Order {
    id: u64,
    granted: u64,
    /// `Counter::at` of each limit when it was executed.
    at: [Timestamp; MAX_LIMITS],
}

/// The latest acquires of a node.
#[derive(Clone, Debug, Default)]
struct Orders {
    latest: VecDeque<Order>,
    /// Whether the key's owner may not know the latest of them, because a failover undid it or a former owner executed
    /// it.
    unsure: bool,
}

impl Orders {
    /// The tokens that go back in the window of `at` with a void order, by the owner's record: the least and the most.
    fn freed(&self, void: u64, index: usize, at: Timestamp) -> [u64; 2] {
        let of = |order: &Order| if order.at[index] == at { order.granted } else { 0 };
        let known = self.latest.iter().rev().find(|order| order.id == void);
        let last = self.latest.back().filter(|order| order.id == void);
        if VOID.when(self.unsure) { [0, known.map_or(0, of)] } else { [last.map_or(0, of); 2] }
    }
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Store {
    /// Whether it begins in the middle of a run, and so does not know what nodes were lent before their first acquires.
    midway: bool,
    /// By key, position of the limit and algorithm; `None` if part of it was undone.
    shown: BTreeMap<(u32, usize, u8), Option<Shown>>,
    /// Nodes that have called since the store lost a key.
    since: BTreeMap<u32, BTreeSet<u32>>,
    /// The latest acquires of each node, by key and node, also those that a former owner executed: a server that is cut
    /// off or paused may own the key again.
    orders: BTreeMap<(u32, u32), Orders>,
    /// Nodes by their names in the store.
    names: BTreeMap<String, u32>,
    found: Found,
}

impl Store {
    /// Scoped to keys that one clock counts.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        let phased = Phased::always(setting, Self::new).until_leaps(&LEAPS, setting.plan.clocks_leap());
        phased.again(setting, Self::midway).unless_limits_change(setting)
    }

    fn midway(setting: &Setting) -> Self {
        Self { midway: true, ..Self::new(setting) }
    }

    pub(super) fn new(_: &Setting) -> Self {
        Self {
            midway: false,
            shown: BTreeMap::new(),
            since: BTreeMap::new(),
            orders: BTreeMap::new(),
            names: BTreeMap::new(),
            found: Found::default(),
        }
    }

    fn executed(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant, ran: &Ran) {
        let adds = match self.since.get_mut(&key) {
            _ if call.op == Op::Peek || grant.outdated => false,
            Some(nodes) => nodes.insert(node) && !grant.reset,
            None => false,
        };
        if call.op == Op::Reset && !grant.replayed && !grant.outdated {
            self.empty(key);
        }
        let is_unknown = LEAPS.when(self.midway && !self.orders.contains_key(&(key, node)));
        if !is_unknown {
            self.returned(moment, node, key, call, grant);
        }
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
            if is_unknown || UNKNOWN.when(matches!(shown, Some(None))) {
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
            // A return also gives the tokens of a void order back.
            let orders = self.orders.get(&(key, node));
            let freed = match (&call.op, orders) {
                (Op::Return { voids: Some(voids), .. }, Some(orders)) => orders.freed(voids.id, index, counter.at),
                _ => [0, 0],
            };
            let freed = freed.map(|lent| lent - stays_charged(call, grant, ran, before, counter.at, lent));
            let also = Also { adds, freed };
            if !follows(call, index, grant, before, counter, also) {
                self.found.add("conservation", moment, || {
                    format!("key {key}: {before:?} became {counter:?} by {} of {:?}", grant.granted, call.op)
                });
            }
        }
    }

    /// Judges a return: the store takes all of it in the window in which it was lent, or nothing.
    fn returned(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant) {
        let Op::Return { amount, windows, voids, .. } = call.op else { return };
        if grant.replayed || grant.outdated || call.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra) {
            return;
        }
        let counters = call.rule.limits.iter().zip(&grant.counters).zip(windows);
        let taken =
            knows(call, grant) && counters.into_iter().any(|((limit, at), of)| lent_by(limit, at.at, of).is_some());
        let void = voids.map(|voids| voids.id);
        let orders = self.orders.get(&(key, node)).filter(|_| void.is_some() && knows(call, grant));
        // The tokens of a void order go back even if some of their windows are over.
        let last = orders.and_then(|orders| orders.latest.back()).filter(|order| Some(order.id) == void);
        let freed = last.is_some_and(|order| order.granted > 0);
        let is_unsure = VOID.when(orders.is_some_and(|orders| orders.unsure));
        let wanted = if taken || freed { amount } else { 0 };
        if grant.granted != wanted && !(is_unsure && [0, amount].contains(&grant.granted)) {
            self.found.add("conservation", moment, || {
                format!("key {key}: {:?} was answered by {}, where {wanted} go back", call.op, grant.granted)
            });
        }
    }

    /// Remembers the latest acquires.
    fn remember(&mut self, node: u32, key: u32, call: &Call, grant: &Grant, stale: bool) {
        let is_unknown = self.midway && !self.orders.contains_key(&(key, node));
        if grant.replayed || grant.outdated || is_unknown && !matches!(call.op, Op::Acquire(_)) {
            return;
        }
        let orders = self.orders.entry((key, node)).or_default();
        match call.op {
            Op::Acquire(_) => {
                let at = grant.counters.map(|counter| counter.at);
                orders.latest.push_back(Order { id: call.id, granted: grant.granted, at });
                if orders.latest.len() > ACQUIRES {
                    orders.latest.pop_front();
                }
                orders.unsure = stale;
            }
            // A void order goes back once, and is lent nothing if it arrives later.
            Op::Return { voids: Some(voids), .. } if !stale && !orders.unsure && knows(call, grant) => {
                orders.latest.retain(|order| order.id > voids.id);
            }
            _ => {}
        }
    }

    /// Notes that the owner has dropped the records of some nodes.
    fn drop_records(&mut self, key: u32, ran: &Ran) {
        for dropped in &ran.dropped {
            if let Some(orders) = dropped
                .record
                .strip_prefix(RECORD)
                .and_then(|name| self.names.get(name))
                .and_then(|node| self.orders.get_mut(&(key, *node)))
            {
                orders.latest.clear();
            }
        }
    }

    /// Nothing is known of a key's counters any more, or they are gone.
    fn forget(&mut self, key: u32, gone: bool) {
        if gone {
            self.orders.retain(|(of, _), _| *of != key);
        }
        let orders = self.orders.range_mut((key, 0)..(key + 1, 0));
        orders.for_each(|(_, orders)| orders.unsure = true);
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

    /// The store's counters of a key are empty, under whatever limits.
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

/// What a call changes beside what it says.
#[derive(Clone, Copy, Debug)]
struct Also {
    /// Whether the node restores what it knows in a store that lost it.
    adds: bool,
    /// The tokens of the window that a void order of the node was lent: at least and at most.
    freed: [u64; 2],
}

/// Whether a return is of the present epoch. A node that never had an answer knows no epoch, and returns something only
/// with a void order.
fn knows(call: &Call, grant: &Grant) -> bool {
    let Op::Return { epoch, voids, .. } = call.op else { return false };
    grant.epoch != 0 && (epoch == grant.epoch || epoch == 0 && voids.is_some())
}

/// Which counter of a limit in the window of `at` the tokens of `of` were lent from: 0 is that of the window, 1 that of
/// the next or, for a sliding window, of the previous one, which still weighs.
fn lent_by(limit: &Limit, at: Timestamp, of: Option<StoredTime>) -> Option<usize> {
    let of = of?.time();
    let beside = match limit.algorithm {
        Algorithm::Fixed => of == at + limit.period,
        Algorithm::Sliding => of + limit.period == at,
        _ => false,
    };
    if of == at { Some(0) } else { beside.then_some(1) }
}

/// How many of the tokens that a void order was lent stay charged: those for its waiters, if it has freed what was set
/// aside for its node in this window and others were lent so much meanwhile that this cannot be set aside again.
fn stays_charged(call: &Call, grant: &Grant, ran: &Ran, before: Counter, at: Timestamp, lent: u64) -> u64 {
    let Op::Return { amount, windows, voids, .. } = &call.op else { return 0 };
    let (limit, needed) = (&call.rule.limits[0], lent.min(voids.map_or(0, |voids| voids.need)));
    let Some(found) = ran.hash[0].as_ref().filter(|_| call.rule.owes_store_alone() && !ran.is_earlier) else {
        return 0;
    };
    let Some([of, held, _, _, called]) = found.part else { return 0 };
    let (is_sliding, next) = (call.rule.is_entitled_sliding(), at.0 + limit.period.0);
    let is_ahead = limit.algorithm == Algorithm::Fixed && called == next;
    if !is_ahead && called != at.0 {
        return 0;
    }
    let [since, latest, earlier, _, _, window, in_this, beside, ..] = found.aside;
    let this = generation(grant.now);
    let held = if of + 1 >= this { held } else { 0 };
    let in_force = match this - since.min(this) {
        0 => latest + earlier,
        1 => latest,
        _ => 0,
    };
    let [in_this, beside] = match window {
        window if window == at.0 => [in_this, beside],
        window if limit.algorithm == Algorithm::Fixed && window + limit.period.0 == at.0 => [beside, 0],
        _ => [0, 0],
    };
    let aside = |called: u64| in_force.saturating_sub(called.saturating_sub(held));
    let back = |of| if lent_by(limit, at, windows[0]) == Some(of) { *amount } else { 0 };
    let (used, prev) = (before.used.saturating_sub(back(0)).saturating_sub(lent), before.prev.saturating_sub(back(1)));
    let weighs = if is_sliding { (prev + beside).saturating_sub(aside(in_this)) } else { 0 };
    let fits = Counter { used, prev: weighs, at }.left(limit, grant.now) >= aside(in_this)
        && !(is_ahead && prev + aside(beside) > limit.count);
    if fits { 0 } else { needed }
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
        Op::Return { amount, windows, .. } if knows(call, grant) => {
            let place = lent_by(limit, after.at, windows[index]);
            let back = |of| if place == Some(of) { *amount } else { 0 };
            let kept = used.saturating_sub(back(0));
            let is_freed = |freed: &u64| after.used == kept.saturating_sub(*freed);
            after.prev == prev.saturating_sub(back(1)) && also.freed.iter().any(is_freed)
        }
        Op::Return { .. } => same,
        Op::Acquire(order) => {
            let known = order.known[index];
            let knows = known.at == after.at && order.epoch != 0 && order.epoch != grant.epoch;
            let restored = if knows { (used + known.used).min(limit.count) } else { used };
            let (lent, ahead) = if !order.window.is_next() { (granted, 0) } else { (0, granted) };
            after.prev == prev + ahead && (after.used == restored + lent || after.used == used + lent && !also.adds)
        }
    }
}

impl Observer for Store {
    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Answered | Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Executed { node, key, call, grant, stale: true, .. } => {
                self.remember(*node, *key, call, grant, true);
                self.forget(*key, false);
            }
            Seen::Undone { key, .. } => self.forget(*key, false),
            Seen::Executed { node, key, call, grant, ran, .. } => {
                if !self.names.contains_key(&*ran.node) {
                    self.names.insert(ran.node.to_string(), *node);
                }
                self.executed(moment, *node, *key, call, &counted(call, grant, ran), ran);
                self.remember(*node, *key, call, grant, false);
                self.drop_records(*key, ran);
                if call.op == Op::Reset && !grant.replayed && !grant.outdated {
                    self.orders.retain(|(of, _), _| of != key);
                }
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

    fn overlook(&mut self) {
        self.found.list.clear();
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND, START};
    use rationd::store::excerpt::Excerpt;

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

    /// The clock is five seconds ahead from the first second on. Judging begins again two periods and two seconds after
    /// that.
    #[test]
    fn a_window_that_is_over_is_seen_by_another_clock_too() {
        for (at, seen) in [(5 * SECOND - 1, 0), (5 * SECOND, 2)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Store::phased(&history.leaping());
            history.lent(&mut checker, 1, 0, 1, 1);
            history.lent(&mut checker, SECOND, 5 * SECOND, 2, 1);
            history.lent(&mut checker, at, 5 * SECOND, 3, 1);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// Tokens that it was lent before may go back with that acquire, or are in its account.
    #[test]
    fn a_node_is_judged_from_its_first_acquire_on_where_another_clock_counts_the_key() {
        for (midway, asks, seen) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
            let mut history = History::new("10/1s fixed");
            let setting = history.setting();
            let mut checker = if midway { Store::midway(&setting) } else { Store::new(&setting) };
            (history.node, history.used) = (1, 5);
            history.executed(&mut checker, 1, 1);
            history.node = 0;
            if asks {
                history.executed(&mut checker, 2, 2);
            }
            history.used -= 2;
            history.executed(&mut checker, 3, 3);
            assert_eq!(checker.violations().len(), seen, "{midway} {asks}: {:?}", checker.violations());
        }
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
    fn what_is_handed_back_is_taken_whole() {
        for (used, taken, seen) in [(1, 2, 0), (2, 2, 1), (0, 2, 1), (3, 0, 2)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Store::new(&history.setting());
            (1..=3).for_each(|id| history.executed(&mut checker, id, id));
            history.used = used;
            history.handed_back(&mut checker, 4, 2, taken);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
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

    /// An order of ten tokens, some of them for waiters, has freed the twenty of its node. Forty are set aside for
    /// others, and some of the hundred are lent by now.
    #[test]
    fn what_a_void_order_needed_stays_charged_where_what_it_freed_was_lent_to_others() {
        for (lent, need, used, seen) in [(50, 4, 40, 0), (50, 4, 44, 1), (51, 4, 45, 0), (51, 4, 41, 1), (51, 0, 41, 0)]
        {
            let mut history = History::entitled("100/1s fixed");
            let mut checker = Store::new(&history.setting());
            let (end, now) = (START + SECOND, START + 3);
            history.used = lent - 10 - 1;
            history.executed(&mut checker, 1, 1);
            history.used += 10;
            history.lent(&mut checker, 2, 0, 2, 10);
            let this = generation(Timestamp(now));
            let aside = [this, 60, 0, 0, 0, end, 20, 0, 0, 0, 0];
            history.found = Some(Excerpt {
                epoch: 1,
                reset: false,
                expires: Timestamp(now + SECOND),
                counters: [None; MAX_LIMITS],
                census: None,
                lent: [0; 3],
                record: None,
                aside,
                part: Some([this, 20, 20, 0, end]),
            });
            (history.used, history.needed) = (used, need);
            history.voided(&mut checker, 3, 2);
            assert_eq!(checker.violations().len(), seen, "{lent} {need} {used}: {:?}", checker.violations());
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
