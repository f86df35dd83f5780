//! **conservation** and **bound** of buckets in the store. Lent tokens are either set aside or charged, and their sum
//! decreases only by what a call took back; a grant fits into the bucket; and no node spends tokens of an account that
//! the store has closed.
//!
//! All of that is judged by one sum: the theoretical arrival time (TAT), plus the time that the tokens set aside will
//! cost.

use std::collections::BTreeMap;

use rationd::core::call::{Acquire, Call, Grant, JUST_NOW, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::gcra::AHEAD;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::{Life, Lives};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, counted};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Ran, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "A bucket of other numbers is charged in another way.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods and an account's life after that has caught up with the one before; and a node's account of such a key, or of one whose limits have changed, until the node has asked for it once more",
    "By a clock that is further back a bucket may have filled that by the other was full, and what it lent is spent meanwhile. What a node was lent before nobody has seen who judges from then on, and it may be handed back.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static UNKNOWN: Exemption = Exemption::new(
    "what the store lost or undid, or a former owner did",
    "What is charged is not known until the next answer.",
);
static OWES: Exemption = Exemption::new(
    "too much charged of a bucket that owed all that it can show",
    "It may owe more than its depth, where accounts of several nodes were charged at the end of a period: it goes on to show that until what is beyond has trickled in.",
);
static FULL: Exemption = Exemption::new(
    "a full bucket",
    "It holds no more and loses what is put on top: a sum that falls there is no loss, and neither is one that does not fall by what came back.",
);
static LATER: Exemption = Exemption::new(
    "what is charged after the bucket was full",
    "It costs what it would have at the moment at which it was spent, or at which its account lapsed: as much as trickled in until then, and was lost.",
);
static LAPSED: Exemption = Exemption::new(
    "an account that had lapsed, or that the store has lost or may not know",
    "It counts as spent, which may have leaked away: what its node says that it has of it is set aside anew.",
);
static OVERTAKEN: Exemption = Exemption::new(
    "a return that an acquire has overtaken",
    "That has said of what is on its way back that it was spent.",
);
static SILENT: Exemption = Exemption::new(
    "what a bucket is charged for nodes that may live on their parts of it",
    "They may have spent that without the store: their part of the rate for as long as they were silent.",
);
static MIXED: Exemption = Exemption::new(
    "too much charged of a bucket of which a node of the build before asks, for the two lives of an account after that",
    "Its scripts take accounts that last for more than four seconds for lapsed when those are over: what this build's node has spent since is then charged twice.",
);
static ALONE: Exemption =
    Exemption::new("a node that is alone with a key", "It is lent what trickles in within half a second.");

pub(super) static SHEET: Sheet = Sheet {
    file: "bucket.rs",
    invariants: &["conservation", "bound"],
    proves: "What was lent of a bucket is set aside or charged, once, and falls by what a call took back, no more and no less; what is lent fits into it; no node spends of an account that is closed.",
    judges: "Buckets, several limits.",
    exemptions: &[
        &PUSHES, &LEAPS, &BASELINES, &UNKNOWN, &OWES, &FULL, &LATER, &LAPSED, &OVERTAKEN, &ALONE, &SILENT, &MIXED,
    ],
    mutant: Some("set-aside-lent-again"),
};

/// Costs are rounded up to whole microseconds.
const ROUNDED: i128 = 2;

/// The prefix of a node's record in a hash, before its name.
const RECORD: &str = "n:";

/// The most charges that one call makes, each of which may be rounded: for two account periods that have ended, for
/// what its node has spent, and for waiters.
const CHARGES: i128 = 4;

/// One limit as the store last showed it.
#[derive(Clone, Copy, Debug)]
struct Shown {
    limit: Limit,
    /// TAT and tokens set aside at the time `now` of the store's clock.
    tat: u64,
    aside: u64,
    now: u64,
    /// The latest time at which some of them may have been set aside.
    opened: u64,
}

/// The tokens of a bucket that a node has been lent, after its latest call.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// The latest acquire, the tokens that it charged at once, and those set aside for the node.
    order: u64,
    at_once: u64,
    open: u64,
    /// The time of the latest call by the store's clock.
    at: u64,
}

/// How many earlier states of an account are kept, which a failover may bring back.
const PAST: usize = 4;

/// A node's account of a key.
#[derive(Clone, Debug, Default)]
struct Accounts {
    /// The account by the owner's calls; and as it is if calls to a former owner count as well, or if those that a
    /// failover undid do not.
    now: [Account; 2],
    /// Its states before the latest calls.
    past: [Account; PAST],
    /// Whether the owner's record may differ, because a failover undid the latest calls or a former owner executed
    /// some.
    unsure: bool,
}

impl Accounts {
    fn remember(&mut self) {
        self.past.rotate_right(1);
        self.past[0] = self.now[0];
    }

    /// A failover has undone an unknown number of the latest calls: the earlier state from which most goes back is
    /// possible, too.
    fn undo(&mut self) {
        // `max_by_key` takes the last of equal ones, which is the latest state in this order.
        let most = self.past.iter().rev().max_by_key(|account| account.open + account.at_once);
        self.now[1] = most.copied().unwrap_or_default();
    }
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    /// Baselines keep no accounts.
    accounts: bool,
    /// Whether it begins in the middle of a run, and so does not know what nodes were lent before their first acquires.
    midway: bool,
    lives: Lives,
    /// By key and position of the limit.
    shown: BTreeMap<(u32, usize), Shown>,
    /// By key: when any server last set something aside.
    opened: Map<u32, u64>,
    /// By key: until when, by the store's clock, there may be accounts that scripts of the previous build have taken
    /// for lapsed.
    mixed: Map<u32, u64>,
    /// When the store closes the account that it last opened, by its clock.
    open: Map<(Life, u32), u64>,
    /// By key and node.
    lent: BTreeMap<(u32, u32), Accounts>,
    /// Nodes by their names in the store.
    names: BTreeMap<String, u32>,
    found: Found,
}

impl Shown {
    /// TAT and tokens set aside as one number: microseconds times the count of the limit.
    fn sum(&self) -> i128 {
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period.0));
        i128::from(self.tat) * count + i128::from(self.aside) * period
    }

    /// Whether all of it has leaked by `now`, whenever it was charged.
    fn is_over(&self, now: u64, rule: &Rule) -> bool {
        let last = if self.aside > 0 { closes(self.opened, rule).max(self.tat) } else { self.tat };
        let more = i128::from(last - self.tat) * i128::from(self.limit.count);
        self.sum() + more <= i128::from(now) * i128::from(self.limit.count)
    }
}

impl Shown {
    /// The highest sum that a call of a node with this account may lead to.
    fn most(&self, index: usize, call: &Call, grant: &Grant, account: &Account, acts: bool) -> i128 {
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period.0));
        let now = grant.now.0;
        // Tokens in accounts that lapsed were charged at that time.
        let lasts = call.rule.account_period().0;
        let lapsed = if self.aside > 0 && now / lasts > self.now / lasts { now / lasts * lasts } else { 0 };
        let is_over = account.at == 0 || now >= closes(account.at, &call.rule);
        let (mut latest, mut tokens) = (lapsed, change(call, grant, acts));
        // Tokens that come back into a full bucket.
        let mut back = 0;
        match call.op {
            Op::Acquire(order) if acts => {
                let spent = now.saturating_sub(order.ages[index].0);
                latest = latest.max(spent).max(if order.need > 0 && grant.granted > 0 { now } else { 0 });
                back = order.held;
                if LAPSED.when(is_over) {
                    tokens += i128::from(order.held);
                }
                if order.epoch != 0 && order.epoch != grant.epoch {
                    let known = order.known[index];
                    (latest, tokens) = (latest.max(known.at.0).max(now), tokens + i128::from(known.used));
                }
            }
            Op::Return { amount, held, ages, .. } if acts => {
                latest = latest.max(now.saturating_sub(ages[index].0));
                back = held.saturating_add(amount);
                if LAPSED.when(is_over) {
                    tokens += i128::from(back);
                }
                if OVERTAKEN.when(call.id <= account.order) {
                    tokens += i128::from(grant.granted);
                }
            }
            Op::Refund { .. } if acts => back = grant.granted,
            _ => {}
        }
        let tat = i128::from(self.tat) * count;
        let full = i128::from(LATER.forgives(latest)) * count + i128::from(FULL.forgives(back)) * period;
        tat.max(full) + (i128::from(self.aside) + tokens) * period + CHARGES * count
    }
}

/// When an account that was opened at `now` is closed.
fn closes(now: u64, rule: &Rule) -> u64 {
    let period = rule.account_period().0;
    (now / period + 2) * period
}

impl Account {
    /// The tokens that go back with a void order: those that the order was lent, and those of the account that the node
    /// says were not spent, because a return that took them along may never have arrived.
    fn freed(&mut self, call: &Call, grant: &Grant) -> u64 {
        match call.op {
            Op::Acquire(order) => {
                let at_once = grant.granted.min(order.need);
                let open = order.held.saturating_sub(grant.not_kept) + (grant.granted - at_once);
                *self = Self { order: call.id, at_once, open, at: grant.now.0 };
                0
            }
            // A key that has begun anew has no such account, so the store ignores the call.
            Op::Return { voids, epoch, .. } if epoch != grant.epoch && (epoch != 0 || voids.is_none()) => {
                *self = Self::default();
                0
            }
            Op::Return { voids, held, .. } => {
                let before = *self;
                *self = Self { open: held, at: grant.now.0, ..before };
                let Some(voids) = voids.filter(|voids| before.order <= voids.id) else { return 0 };
                (self.order, self.at_once) = (voids.id, 0);
                let (back, reported) = if before.order == voids.id { (before.at_once, 0) } else { (0, voids.reported) };
                let kept = [reported, voids.spent, held, grant.granted].into_iter().fold(0, u64::saturating_add);
                (before.open + back).saturating_sub(kept)
            }
            _ => 0,
        }
    }
}

impl Bucket {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
            .from(|checker, _| checker.midway = true)
            .until_leaps(&LEAPS, setting.plan.clocks_leap())
            .again(setting, Self::midway)
    }

    fn midway(setting: &Setting) -> Self {
        Self { midway: true, ..Self::new(setting) }
    }

    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            midway: false,
            accounts: !BASELINES.when(setting.plan.brain != Brain::Rationd),
            lives: Lives::default(),
            shown: BTreeMap::new(),
            opened: Map::default(),
            mixed: Map::default(),
            open: Map::default(),
            lent: BTreeMap::new(),
            names: BTreeMap::new(),
            found: Found::default(),
        }
    }

    /// The tokens that go back, once, with an order that a node declares void, beside what the call says. A server that
    /// was cut off and becomes the owner again has what it lent meanwhile: so each node has an account with and without
    /// that, and the one from which more goes back counts.
    fn freed(&mut self, node: u32, key: u32, call: &Call, grant: &Grant, stale: bool) -> u64 {
        if grant.replayed || grant.outdated {
            return 0;
        }
        let accounts = self.lent.entry((key, node)).or_default();
        if !stale {
            accounts.remember();
        }
        accounts.unsure = stale || accounts.unsure && !matches!(call.op, Op::Acquire(_));
        let kept = if stale { &mut accounts.now[1..] } else { &mut accounts.now[..] };
        kept.iter_mut().map(|account| account.freed(call, grant)).max().unwrap_or(0)
    }

    fn executed(&mut self, moment: Moment, node: u32, key: u32, call: &Call, grant: &Grant, ran: &Ran) {
        let kept = counted(call, grant, ran);
        let known = self.lent.get(&(key, node)).filter(|accounts| !accounts.unsure);
        let account = known.map_or(Account::default(), |accounts| accounts.now[0]);
        let is_unknown = self.midway && self.lent.get(&(key, node)).is_none_or(|accounts| accounts.now[0].order == 0);
        let freed = self.freed(node, key, call, grant, false);
        if ran.is_earlier && call.rule.account_units() > 1 {
            self.mixed.insert(key, grant.now.0 + 2 * call.rule.lease_life().0);
        }
        for (index, limit) in call.rule.limits.iter().enumerate() {
            if limit.algorithm != Algorithm::Gcra {
                continue;
            }
            let (counter, now) = (kept.counters[index], grant.now.0);
            // If the previous state is not known, it is at least known when anything of the key was last set aside.
            let latest = || self.opened.get(&key).copied().unwrap_or(now);
            let before = self.shown.get(&(key, index)).filter(|_| !opens(call, grant));
            let opened = before.map_or_else(latest, |before| before.opened);
            let after = Shown { limit: *limit, tat: counter.at.0, aside: counter.used, now, opened };
            let before = self.shown.insert((key, index), after).filter(|before| before.limit == *limit);
            let acts = !grant.replayed && !grant.outdated;
            let lends = acts && matches!(call.op, Op::Acquire(_)) && grant.granted > 0;
            // A node that alone uses a key is also lent tokens that are soon to come; other checkers judge whether it
            // waits for them.
            let soon = if ALONE.when(grant.nodes == 1) { AHEAD.0 } else { 0 };
            // Tokens that silent nodes may hold have to fit into the bucket, too.
            let beside = Shown { aside: grant.counters[index].used, ..after };
            if lends && level(&beside) > i128::from(limit.depth().0) + i128::from(soon) + ROUNDED {
                self.found.add("bound", moment, || format!("key {key}: lent {} into {after:?}", grant.granted));
            }
            let is_known = call.op != Op::Reset && !LEAPS.when(is_unknown);
            let Some(before) = before.filter(|before| is_known && !before.is_over(now, &call.rule)) else { continue };
            let least = before.sum() + (change(call, grant, acts) - i128::from(freed)) * i128::from(limit.period.0);
            // A full bucket loses refunds for which it has no room.
            let taken = if acts && matches!(call.op, Op::Refund { .. }) { grant.granted } else { 0 };
            let worth = u128::from(taken) * u128::from(limit.period.0) / u128::from(limit.count) + 1;
            let is_full = u128::from(after.tat) + worth >= u128::from(now + limit.depth().0);
            if after.sum() < least && !FULL.when(is_full) {
                self.found.add("conservation", moment, || {
                    format!("key {key}: {before:?} became {after:?} by {} of {:?}", grant.granted, call.op)
                });
            }
            let most = before.most(index, &late(limit, call, grant, ran), grant, &account, acts);
            let most = most + silence(limit, call, grant, ran);
            let owed_all = before.tat >= before.now + limit.depth().0;
            let is_mixed = self.mixed.get(&key).is_some_and(|until| now < *until);
            if after.sum() > most && !OWES.when(owed_all) && !MIXED.when(is_mixed) {
                let much = (after.sum() - most) / i128::from(limit.period.0) + 1;
                self.found.add("conservation", moment, || {
                    format!(
                        "key {key}: {before:?} became {after:?} by {} of {:?}: {much} too many are charged, {account:?}",
                        grant.granted, call.op
                    )
                });
            }
        }
    }

    /// Notes that the store has dropped the records of some nodes, or of all.
    fn drop_records(&mut self, node: u32, key: u32, call: &Call, grant: &Grant, ran: &Ran) {
        if !self.names.contains_key(&*ran.node) {
            self.names.insert(ran.node.to_string(), node);
        }
        let dropped = ran.dropped.iter().filter_map(|dropped| self.names.get(dropped.record.strip_prefix(RECORD)?));
        for of in dropped {
            self.lent.entry((key, *of)).or_default().unsure = true;
        }
        if call.op == Op::Reset && !grant.replayed && !grant.outdated {
            self.lent.range_mut((key, 0)..=(key, u32::MAX)).for_each(|(_, accounts)| accounts.unsure = true);
        }
    }

    /// Notes until when the node's account is open.
    fn account(&mut self, life: Life, key: u32, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) && has_bucket(&call.rule) {
            let open = self.open.entry((life, key)).or_default();
            *open = (*open).max(closes(grant.now.0, &call.rule));
        }
    }
}

/// Whether the call leaves tokens set aside for the node: those that it holds or is lent.
fn opens(call: &Call, grant: &Grant) -> bool {
    match call.op {
        Op::Acquire(order) => order.held > 0 || grant.granted > 0,
        Op::Return { held, .. } => held > 0,
        _ => false,
    }
}

/// How full the bucket is, in microseconds.
fn level(shown: &Shown) -> i128 {
    let aside = i128::from(shown.aside) * i128::from(shown.limit.period.0) / i128::from(shown.limit.count);
    i128::from(shown.tat.saturating_sub(shown.now)) + aside
}

/// The call as the store counts it: if nodes are silent or were so lately, tokens that it reports as spent count as
/// spent now.
fn late(limit: &Limit, call: &Call, grant: &Grant, ran: &Ran) -> Call {
    let hash = ran.hash[0].as_ref().filter(|_| call.sets_aside() && !ran.is_earlier);
    let is_late = hash.is_some_and(|hash| hash.silence(limit, grant.now).2);
    let mut call = call.clone();
    if let (true, Op::Acquire(Acquire { ages, .. }) | Op::Return { ages, .. }) = (is_late, &mut call.op) {
        *ages = JUST_NOW;
    }
    call
}

/// The charges for silent nodes and for what the calling node says that it owes.
fn silence(limit: &Limit, call: &Call, grant: &Grant, ran: &Ran) -> i128 {
    let Some(hash) = ran.hash[0].as_ref().filter(|_| call.sets_aside() && !ran.is_earlier) else { return 0 };
    let (charge, tokens, _) = hash.silence(limit, grant.now);
    let owes = match call.op {
        Op::Acquire(Acquire { claim: Some(claim), .. }) => claim.owes.min(limit.burst),
        _ => 0,
    };
    let tokens = i128::from(tokens) + i128::from(owes);
    i128::from(SILENT.forgives(charge.0)) * i128::from(limit.count) + tokens * i128::from(limit.period.0)
}

/// Only buckets have accounts.
fn has_bucket(rule: &Rule) -> bool {
    rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
}

/// The least number of tokens by which the sum rises.
fn change(call: &Call, grant: &Grant, acts: bool) -> i128 {
    match call.op {
        Op::Acquire(_) if acts => grant.granted.into(),
        Op::Return { .. } | Op::Refund { .. } if acts => -i128::from(grant.granted),
        _ => 0,
    }
}

impl Observer for Bucket {
    fn ignores(&self, topic: Topic) -> bool {
        !self.accounts && topic == Topic::Answered || matches!(topic, Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        match seen {
            Seen::Executed { node, incarnation, key, call, grant, stale, ran, .. } => {
                self.account((*node, *incarnation), *key, call, grant);
                if opens(call, grant) {
                    let opened = self.opened.entry(*key).or_default();
                    *opened = (*opened).max(grant.now.0);
                }
                if UNKNOWN.when(*stale) {
                    self.freed(*node, *key, call, grant, true);
                    self.shown.retain(|(other, _), _| other != key);
                } else {
                    self.executed(moment, *node, *key, call, grant, ran);
                    self.drop_records(*node, *key, call, grant, ran);
                }
            }
            Seen::Undone { key, .. } | Seen::Lost { key, .. } => {
                self.shown.retain(|(other, _), _| other != key);
                let undone = matches!(seen, Seen::Undone { .. });
                if undone && self.midway {
                    // Accounts of before this checker's beginning may be back.
                    self.lent.retain(|(other, _), _| other != key);
                }
                let accounts = self.lent.range_mut((*key, 0)..=(*key, u32::MAX));
                accounts.for_each(|(_, accounts)| {
                    accounts.unsure = true;
                    if undone {
                        accounts.undo();
                    }
                });
            }
            Seen::PeerAnswered { node, incarnation, key, answer: Ok(loan), rule, store, .. } if self.accounts => {
                let open = self.open.get(&((*node, *incarnation), *key));
                let is_lent = loan.tokens > 0 && has_bucket(rule);
                if let Some(open) = open.filter(|open| is_lent && store.0 > **open) {
                    self.found.add("conservation", moment, || {
                        format!("key {key}: node {node} lent {loan:?} on of an account that was closed at {open}")
                    });
                }
            }
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

    fn overlook(&mut self) {
        self.found.list.clear();
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
    use crate::plan::{Fault, What};
    use crate::span::Span;

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

    /// The clock is five seconds ahead from the first second on. Judging begins again after that: twice the three
    /// seconds in which the bucket fills up, two more, and the four of an account.
    #[test]
    fn more_than_the_bucket_holds_is_seen_by_another_clock_too() {
        for (at, seen) in [(13 * SECOND - 1, 0), (13 * SECOND, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::phased(&history.leaping());
            history.used = 1;
            history.lent(&mut checker, 1, 0, 1, 1);
            history.used = 50;
            history.lent(&mut checker, SECOND, 5 * SECOND, 2, 1);
            history.lent(&mut checker, at, 5 * SECOND, 3, 1);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    /// Tokens of an acquire before the change may be handed back after it.
    #[test]
    fn a_node_is_judged_from_its_first_acquire_on_after_a_change_of_limits() {
        for (changes, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut setting = history.setting();
            if changes {
                let what = What::Push { policy: 0, limits: vec!["10/1s burst 30".into()] };
                setting.plan.faults = vec![Fault { at: Span::secs(1), lasts: Span(0), what }];
            }
            let mut checker = Bucket::phased(&setting);
            (history.node, history.used) = (1, 5);
            history.executed(&mut checker, 11 * SECOND, 1);
            history.node = 0;
            history.used -= 2;
            history.executed(&mut checker, 11 * SECOND + 1, 3);
            assert_eq!(checker.violations().len(), seen, "{changes}: {:?}", checker.violations());
        }
    }

    /// Tokens that it was lent before may go back with that acquire, or are in its account.
    #[test]
    fn a_node_is_judged_from_its_first_acquire_on_where_another_clock_counts_the_key() {
        for (midway, asks, seen) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
            let mut history = History::new("10/1s burst 30");
            let setting = history.setting();
            let mut checker = if midway { Bucket::midway(&setting) } else { Bucket::new(&setting) };
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
    fn tokens_that_are_charged_twice_are_seen() {
        for (more, seen) in [(0, 0), (1, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            history.used += more;
            history.executed(&mut checker, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The bucket shows the largest debt that it can show, or a thousandth less; a millisecond later it shows the same,
    /// so its TAT has moved by a millisecond.
    #[test]
    fn a_bucket_that_owes_more_than_it_shows_may_show_that_for_longer() {
        for (short, seen) in [(0, 0), (3_000, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::new(&history.setting());
            for at in [1, 1_001] {
                history.opened = 2 * SECOND + at - short;
                history.handed_back(&mut checker, at, 0, 0);
            }
            assert_eq!(checker.violations().len(), seen, "{short}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_handed_back_is_taken_whole() {
        for (used, seen) in [(1, 0), (2, 1), (0, 1)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::new(&history.setting());
            (1..=3).for_each(|id| history.executed(&mut checker, id, id));
            history.used = used;
            history.handed_back(&mut checker, 4, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
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
    fn what_a_failover_undid_goes_back_once_more() {
        // Without a failover the same is a violation: set aside twice and taken back twice.
        for (undone, seen) in [(true, 0), (false, 2)] {
            let mut history = History::new("10/1s burst 30");
            let mut checker = Bucket::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            history.executed(&mut checker, 2, 2);
            history.used = 1;
            history.voided(&mut checker, 3, 2);
            history.used = 2;
            if undone {
                history.see(&mut checker, 4, &Seen::Undone { key: 0, store: Timestamp(4) });
            }
            history.repeated(&mut checker, 5, 2);
            history.used = 1;
            history.voided(&mut checker, 6, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn more_than_the_bucket_holds_is_seen() {
        let mut history = History::new("10/1s");
        let mut checker = Bucket::new(&history.setting());
        // The bucket is already charged with one second's tokens.
        history.executed(&mut checker, SECOND, 1);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        // A node that is alone may be lent the tokens of the next half second, and no more.
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
