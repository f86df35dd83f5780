//! **conservation** and **bound** of buckets, as the store keeps them: what was lent is either set
//! aside or charged, and falls by what a call took back and by nothing else; what is lent fits into
//! the bucket; and no node spends of an account that the store has closed.
//!
//! One sum says it: the theoretical arrival time, and the time that the tokens set aside will cost.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::gcra::{AHEAD, PERIOD};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::{Life, Lives};
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};
use crate::plan::{Brain, What};

static PUSHES: Exemption =
    Exemption::new("runs in which limits change", "A bucket of other numbers is charged in another way.");
static LEAPS: Exemption = Exemption::new(
    "slots that move between clocks that differ",
    "By a clock that is further back a bucket may have filled that by the other was full.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static UNKNOWN: Exemption = Exemption::new(
    "what the store lost or undid, or a former owner did",
    "What is charged is not known until the next answer.",
);
static FULL: Exemption = Exemption::new(
    "a full bucket",
    "It holds no more and loses what is put on top, so that a sum that falls there is no loss.",
);
static ABOVE: Exemption = Exemption::new(
    "a sum that rises by more",
    "Judged is that it falls by no more than was taken back: a double charge is not seen here, the second opinion sees it in the store.",
);
static ALONE: Exemption =
    Exemption::new("a node that is alone with a key", "It is lent what trickles in within half a second.");

pub(super) static SHEET: Sheet = Sheet {
    file: "bucket.rs",
    invariants: &["conservation", "bound"],
    proves: "What was lent of a bucket is set aside or charged, and falls by what a call took back; what is lent fits into it; no node spends of an account that is closed.",
    judges: "Buckets, several limits.",
    exemptions: &[&PUSHES, &LEAPS, &BASELINES, &UNKNOWN, &FULL, &ABOVE, &ALONE],
    mutant: Some("set-aside-lent-again"),
};

/// Costs are rounded up to whole microseconds.
const ROUNDED: i128 = 2;

/// One limit as the store last showed it.
#[derive(Clone, Copy, Debug)]
struct Shown {
    limit: Limit,
    /// Theoretical arrival time, and tokens set aside, as of that time of the store's clock.
    tat: u64,
    aside: u64,
    now: u64,
    /// When some of that was set aside last, at the latest.
    opened: u64,
    /// How far that clock is ahead of true time.
    skew: u64,
}

/// What a node was lent of a bucket, as its calls left it.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// The latest acquire, what that charged at once, and what is set aside for the node.
    order: u64,
    at_once: u64,
    open: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Under other limits, accounts may not be told of.
    is_on: bool,
    /// Baselines keep no accounts; clocks that differ close them at other times.
    accounts: bool,
    /// Clocks of masters differ, and slots move from one to another.
    leaps: bool,
    lives: Lives,
    /// By key and place.
    shown: BTreeMap<(u32, usize), Shown>,
    /// When the store closes what it last opened, on its clock.
    open: Map<(Life, u32), u64>,
    /// By key and node.
    lent: BTreeMap<(u32, u32), [Account; 2]>,
    found: Found,
}

impl Shown {
    /// Both in one number: microseconds times the count of the limit.
    fn sum(&self) -> i128 {
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period.0));
        i128::from(self.tat) * count + i128::from(self.aside) * period
    }

    /// By then all of it has leaked, whenever it is charged.
    fn is_over(&self, now: u64) -> bool {
        let last = if self.aside > 0 { closes(self.opened).max(self.tat) } else { self.tat };
        let more = i128::from(last - self.tat) * i128::from(self.limit.count);
        self.sum() + more <= i128::from(now) * i128::from(self.limit.count)
    }
}

/// When an account of then is closed.
fn closes(now: u64) -> u64 {
    (now / PERIOD.0 + 2) * PERIOD.0
}

impl Account {
    /// What goes back with a void order: what it was lent, and whatever else the account has that by the node's word was
    /// not spent, as a return that took it along may never have arrived.
    fn freed(&mut self, call: &Call, grant: &Grant) -> u64 {
        match call.op {
            Op::Acquire(order) => {
                let at_once = grant.granted.min(order.need);
                *self = Self { order: call.id, at_once, open: order.held + (grant.granted - at_once) };
                0
            }
            Op::Return { voids, held, .. } => {
                let before = *self;
                *self = Self { open: held, order: before.order.max(voids.id), ..before };
                if voids.id == 0 || before.order > voids.id {
                    return 0;
                }
                self.at_once = 0;
                let (back, told) = if before.order == voids.id { (before.at_once, 0) } else { (0, voids.told) };
                let kept = [told, voids.spent, held, grant.granted].into_iter().fold(0, u64::saturating_add);
                (before.open + back).saturating_sub(kept)
            }
            _ => 0,
        }
    }
}

impl Bucket {
    pub(super) fn new(setting: &Setting) -> Self {
        let has = |what: fn(&What) -> bool| setting.plan.faults.iter().any(|fault| what(&fault.what));
        let leaps = has(|what| matches!(what, What::Reshard { .. })) && setting.plan.redis.skew.0 > 0;
        Self {
            is_on: !PUSHES.when(has(|what| matches!(what, What::Push { .. }))),
            accounts: !BASELINES.when(setting.plan.brain != Brain::Rationd) && !LEAPS.when(leaps),
            leaps,
            lives: Lives::default(),
            shown: BTreeMap::new(),
            open: Map::default(),
            lent: BTreeMap::new(),
            found: Found::default(),
        }
    }

    /// What goes back, once, with an order that a node says is void, beside what the call says. A server that was cut off
    /// and is the owner again has what it lent meanwhile: each node has an account with and without that, and the one of
    /// which more goes back counts.
    fn freed(&mut self, node: u32, key: u32, call: &Call, grant: &Grant, stale: bool) -> u64 {
        if grant.replayed || grant.outdated {
            return 0;
        }
        let accounts = self.lent.entry((key, node)).or_default();
        let kept = if stale { &mut accounts[1..] } else { &mut accounts[..] };
        kept.iter_mut().map(|account| account.freed(call, grant)).max().unwrap_or(0)
    }

    fn executed(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant) {
        let freed = self.freed(node, key, call, grant, false);
        for (index, limit) in call.rule.limits.iter().enumerate() {
            if limit.algorithm != Algorithm::Gcra {
                continue;
            }
            let (counter, now) = (grant.counters[index], grant.now.0);
            let skew = now.wrapping_sub(moment.store.0);
            // What a node neither has nor is lent is set aside for nobody.
            let opens = match call.op {
                Op::Acquire(order) => order.held > 0 || grant.granted > 0,
                Op::Return { held, .. } => held > 0,
                _ => false,
            };
            let opened = self.shown.get(&(key, index)).filter(|_| !opens).map_or(now, |before| before.opened);
            let after = Shown { limit: *limit, tat: counter.at.0, aside: counter.used, now, opened, skew };
            // By a clock that is further back a bucket may fill that by the other one was full, and gone.
            let moved = |before: &Shown| {
                LEAPS.when(self.leaps) && skew.wrapping_sub(before.skew).min(before.skew.wrapping_sub(skew)) > SAME
            };
            let before =
                self.shown.insert((key, index), after).filter(|before| before.limit == *limit && !moved(before));
            let acts = !grant.replayed && !grant.outdated;
            let lends = acts && matches!(call.op, Op::Acquire(_)) && grant.granted > 0;
            // A node that is alone with a key is lent what comes soon; whether it waits for that is for other
            // checkers to see.
            let soon = if ALONE.when(grant.nodes == 1) { AHEAD.0 } else { 0 };
            if lends && level(&after) > i128::from(limit.depth().0) + i128::from(soon) + ROUNDED {
                self.found.add("bound", moment, || format!("key {key}: lent {} into {after:?}", grant.granted));
            }
            let Some(before) = before.filter(|before| call.op != Op::Reset && !before.is_over(now)) else { continue };
            let least = before.sum() + (change(call, grant, acts) - i128::from(freed)) * i128::from(limit.period.0);
            // A full bucket holds no more, and loses what is put on top.
            let taken = if acts && matches!(call.op, Op::Refund { .. }) { grant.granted } else { 0 };
            let worth = u128::from(taken) * u128::from(limit.period.0) / u128::from(limit.count) + 1;
            let is_full = u128::from(after.tat) + worth >= u128::from(now + limit.depth().0);
            if !ABOVE.when(after.sum() >= least) && !FULL.when(is_full) {
                self.found.add("conservation", moment, || {
                    format!("key {key}: {before:?} became {after:?} by {} of {:?}", grant.granted, call.op)
                });
            }
        }
    }

    /// What is open of a node's account from here on.
    fn account(&mut self, life: Life, key: u32, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) && has_bucket(&call.rule) {
            let open = self.open.entry((life, key)).or_default();
            *open = (*open).max(closes(grant.now.0));
        }
    }
}

/// Microseconds that are charged or set aside.
fn level(shown: &Shown) -> i128 {
    let aside = i128::from(shown.aside) * i128::from(shown.limit.period.0) / i128::from(shown.limit.count);
    i128::from(shown.tat.saturating_sub(shown.now)) + aside
}

/// Only buckets have accounts.
fn has_bucket(rule: &Rule) -> bool {
    rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
}

/// By how many tokens the sum rises at least.
fn change(call: &Call, grant: &Grant, acts: bool) -> i128 {
    match call.op {
        Op::Acquire(_) if acts => grant.granted.into(),
        Op::Return { .. } | Op::Refund { .. } if acts => -i128::from(grant.granted),
        _ => 0,
    }
}

impl Observer for Bucket {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Executed { node, incarnation, key, call, grant, stale, .. } => {
                self.account((*node, *incarnation), *key, call, grant);
                if UNKNOWN.when(*stale) {
                    self.freed(*node, *key, call, grant, true);
                    self.shown.retain(|(other, _), _| other != key);
                } else {
                    self.executed(moment, *node, *key, call, grant);
                }
            }
            Seen::Undone { key, .. } | Seen::Lost { key, .. } => self.shown.retain(|(other, _), _| other != key),
            Seen::Answered { request, rule, decision, store, .. } if self.accounts => {
                let from_lease = decision.verdict == Verdict::Allow && decision.source == Source::Lease;
                if request.kind != Kind::Check || !from_lease || request.cost == 0 || !has_bucket(rule) {
                    return;
                }
                let open = self.open.get(&(self.lives.of(request.node), request.key));
                if let Some(open) = open.filter(|open| store.0 > **open) {
                    self.found.add("conservation", moment, || {
                        format!("{request:?} was admitted of an account that was closed at {open}")
                    });
                }
            }
            _ => {}
        }
    }
}

impl Checker for Bucket {
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
    fn tokens_that_are_neither_set_aside_nor_charged_are_seen() {
        let mut history = History::new("10/1s burst 30");
        let mut checker = Bucket::new(&history.setting());
        history.executed(&mut checker, 1, 1);
        history.executed(&mut checker, 2, 2);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.used -= 2;
        history.executed(&mut checker, 3, 3);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }

    #[test]
    fn what_a_void_order_was_lent_goes_back_once_and_no_more() {
        for (used, seen) in [(1, 0), (0, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            history.executed(&mut checker, 2, 2);
            history.used = used;
            history.voided(&mut checker, 3, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
            history.used = 0;
            history.voided(&mut checker, 4, 2);
            assert_eq!(checker.violations().len(), 1, "once: {:?}", checker.violations());
        }
    }

    #[test]
    fn more_than_the_bucket_holds_is_seen() {
        let mut history = History::new("10/1s");
        let mut checker = Bucket::new(&history.setting());
        // The bucket is charged for a second already.
        history.executed(&mut checker, SECOND, 1);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        // A node that is alone may be lent what comes within half a second, and no more.
        history.used = 16;
        history.executed(&mut checker, SECOND, 2);
        assert_eq!(checker.violations()[0].invariant, "bound");
    }

    #[test]
    fn spending_of_a_closed_account_is_seen() {
        let mut history = History::new("10/1s burst 30");
        let mut checker = Bucket::new(&history.setting());
        history.executed(&mut checker, 1, 1);
        checker.lives.see(&Seen::Joined { node: 0, incarnation: 1 });
        history.check(&mut checker, 4 * SECOND, 1, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 4 * SECOND + 1, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }
}
