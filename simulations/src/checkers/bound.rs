//! **bound**: no more than the limit is admitted in any window (fixed), over any interval (buckets) or by the estimate
//! (sliding).
//!
//! More is allowed only for certain keys and windows: tokens that a former owner of the key lends; unconfirmed grants
//! that were lost in a failover; one more limit when the store lost the key, a client reset it, or its slot moved to a
//! master with another clock; refunds. `shares.rs` judges admissions on shares.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Counter, Grant, OPEN, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit, MAX_LIMITS};
use rationd::core::policy::Rule;

use super::notes::{Asides, Lives, Refunds};
use super::sheet::{Exemption, Sheet};
use super::window::Count;
use super::{Found, SAME, counted};
use crate::maps::{Map, Numbered, Set};
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static SHARES: Exemption = Exemption::new(
    "on a share or by a policy",
    "Nothing of it was lent by the store: shares.rs and fleet.rs count it, and joint.rs both.",
);
static STALE: Exemption = Exemption::new(
    "a former owner",
    "Two masters that both take calls lend twice, and no script can know: so many tokens as the former owner lent, for the windows at hand.",
);
static UNDONE: Exemption = Exemption::new(
    "undone by a failover",
    "What was granted without a confirmation and the new master does not know is lent again: as many tokens as it counts less than the one before did, and no more than were not confirmed.",
);
static LOST: Exemption = Exemption::new(
    "lost, evicted or reset",
    "A store that has forgotten a key lends it again to nodes that had nothing to bring back: for the windows at hand as many tokens as it had counted, a limit at most, once a loss. Of a bucket those that it had set aside may be spent until the accounts of their nodes are over.",
);
static LEAPT: Exemption = Exemption::new(
    "moved to another clock",
    "A slot that moves between masters whose clocks differ is in another window at once: one more limit for two periods, and counted anew.",
);
static REFUNDED: Exemption =
    Exemption::new("refunds", "They are admitted again, in the windows that they were asked in or credited to.");
static PUSHED: Exemption = Exemption::new(
    "limits that change",
    "What was lent under the old limit is spent under the new one: what the old one had more, or a limit where windows are others.",
);
static RAISED: Exemption = Exemption::new(
    "what the store has set aside of a bucket when its rate is raised, once a change, and what it lends by the old limit then, once",
    "It is charged when nodes tell of it, under the limit of then: it leaks away at the new rate, where what was charged before takes as long as under the old one. Whoever goes by the new limit already is lent beside it as if it cost no more than that.",
);
static SLOWER: Exemption = Exemption::new(
    "of a bucket whose limit changes, what the slower of the two limits lets pass by itself, counted from the change on as if all nodes went by it",
    "By the slower limit a token takes longer to leak, so the bucket takes longer to fill: nodes that go by it fill the bucket higher than the others may, who then spend what they were lent before. What a limit with no more burst and no more rate lets pass, the other lets pass, too.",
);
static LATE: Exemption = Exemption::new(
    "answers that come late",
    "A bucket is charged when the store answers: what nobody waits for any more may be spent within a second.",
);
static TRIP: Exemption = Exemption::new(
    "the trip of an answer",
    "What somebody waits for is charged when the store grants it, up to two timeouts before it is seen: of a bucket what trickles in meanwhile.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "bound.rs",
    invariants: &["bound"],
    proves: "In no window, over no interval and by no estimate is more admitted of what the store lent than the limit.",
    judges: "All algorithms, several limits, whatever goes wrong.",
    exemptions: &[&SHARES, &STALE, &UNDONE, &LOST, &LEAPT, &REFUNDED, &PUSHED, &RAISED, &SLOWER, &LATE, &TRIP],
    mutant: Some("one-token-more"),
};

/// If an answer comes after its waiters were denied, its tokens may be spent until this long after the call.
const UNCLAIMED: u64 = 1_000_000;

/// A busy server executes a call at most this long after it arrived.
const BUSY: u64 = 100_000;

/// One key.
#[derive(Debug, Default)]
struct Key {
    rule: Option<Arc<Rule>>,
    counts: Vec<Count>,
    /// By position of the limit: the bucket by the slower of two limits, when one has replaced the other.
    slower: Vec<Option<Slower>>,
    /// Tokens granted since the last failover and not confirmed; and, by node and id, those of grants whose answers
    /// have not arrived.
    unconfirmed: u64,
    pending: BTreeMap<(u32, u64), u64>,
    /// The counters of its owner.
    counted: Counted,
    /// The limits that last raised a rate. Nodes learn of them one after another.
    raised: Option<Arc<Rule>>,
    /// Tokens lent under other limits, to nodes that have yet to learn of these, since the key was last decided under
    /// these.
    lent_by_others: u64,
    /// The owner's clock when it was last seen, and how far it was from true time.
    now: u64,
    skew: Option<u64>,
    /// When the clock that counts the key last became another one, by the new clock.
    leapt: Option<u64>,
    /// By node and id of calls: the windows in which the refunds that they take to the store were requested.
    refunds: BTreeMap<(u32, u64), Vec<u64>>,
}

/// A bucket by the slower of the two limits that its nodes go by since a change, as if all of them went by that.
#[derive(Debug)]
struct Slower {
    limit: Limit,
    count: Count,
}

/// The counters of a key's owner, as its last answer showed them.
#[derive(Debug, Default)]
struct Counted {
    /// The limits and their counters; `None` if unknown.
    shown: Option<(Arc<Rule>, [Counter; MAX_LIMITS])>,
    /// Whether a server that is not the owner has lent since; it may become the owner again.
    stale: bool,
    /// The counters before a failover undid some of them, until the new owner answers.
    undone: Option<Option<(Arc<Rule>, [Counter; MAX_LIMITS])>>,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Bound {
    /// Baselines forget a key at a reset without calling the store.
    resets_alone: bool,
    keys: Numbered<Key>,
    /// Whether grants are confirmed before they are spent.
    confirm: bool,
    /// How much later than it arrived a busy server may execute a call. If the clocks of masters differ, this cannot be
    /// told from another clock, so less is allowed.
    busy: u64,
    /// The timeout of checks. Tokens that the store charged for a check that has timed out come late.
    timeout: u64,
    trip: u64,
    /// When each unanswered acquire was first sent, by node and id.
    sent: Map<(u32, u64), u64>,
    /// Refunds that no call has taken along yet: whether they return the surplus of a hold, and the windows in which
    /// they were requested.
    asked: Refunds<(bool, Vec<u64>)>,
    /// Refund requests that return the surplus of holds, until they reach the node.
    of_holds: Set<u64>,
    lives: Lives,
    asides: Asides,
    found: Found,
}

impl Bound {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let confirm = plan.daemon.confirm && plan.redis.replica;
        // Tokens for a waiter are charged when the store grants them, a trip before the admission is seen.
        let trip = plan.daemon.timeout.0 * 2 + plan.daemon.timeout.0 / 1_000;
        Self {
            resets_alone: plan.brain != Brain::Rationd,
            keys: Numbered::default(),
            confirm,
            busy: if plan.redis.skew.0 == 0 { BUSY } else { SAME },
            timeout: plan.daemon.timeout.0,
            trip: TRIP.forgives(trip),
            sent: Map::default(),
            asked: Refunds::default(),
            of_holds: Set::default(),
            lives: Lives::default(),
            asides: Asides::default(),
            found: Found::default(),
        }
    }

    /// Counts an admitted check, of which `beside` tokens do not count for each limit. Returns a message if a limit is
    /// now exceeded by more than before.
    pub(super) fn admit(
        &mut self,
        request: &Request,
        rule: &Arc<Rule>,
        decision: &Decision,
        now: u64,
        mut beside: impl FnMut(usize, &Limit) -> u64,
    ) -> Option<String> {
        let key = self.keys.of(request.key);
        key.now = key.now.max(now);
        key.adopt(rule);
        let mut beyond = None;
        for (index, (limit, count)) in rule.limits.iter().zip(&mut key.counts).enumerate() {
            count.roll(limit, now);
            // Tokens lent by the former clock end by that clock: with their window, or the next one if they were lent
            // ahead.
            if LEAPT.when(key.leapt.is_some_and(|leapt| now < leapt + 2 * limit.period.0)) {
                count.slack = count.slack.max(whole(rule));
            }
            if limit.algorithm == Algorithm::FixedFromFirst && decision.source == Source::Share && count.window <= now {
                // Windows of shares are aligned, also where the store's begin with the first request.
                count.open((now / limit.period.0 + 1) * limit.period.0, now);
            }
            let before = count.excess(limit, now, self.trip);
            let beside = beside(index, limit);
            count.admit_at(limit, now, request.cost, beside);
            let excess = count.excess(limit, now, self.trip);
            count.spend_aside(limit, now, excess.saturating_sub(before));
            let excess = count.excess(limit, now, self.trip);
            let slower = key.slower.get_mut(index).and_then(Option::as_mut);
            let passes = slower.is_some_and(|slower| slower.admit(now, request.cost, beside, self.trip));
            if excess > before && !SLOWER.when(passes) {
                let used = count.used;
                beyond = Some(format!(
                    "{excess} over {limit:?} with {used} admitted: key {}, node {}, {:?} by {:?}",
                    request.key, request.node, decision.reason, decision.source
                ));
            }
        }
        beyond
    }

    /// Notices that another clock counts the key: after a slot's move to such a master the key is in another window at
    /// once.
    fn follow(&mut self, key: u32, moment: Moment, now: u64, late: u64) {
        let skew = now.wrapping_sub(moment.store.0);
        let state = self.keys.of(key);
        // A busy server executes a call late, but by the same clock.
        let known = *state.skew.get_or_insert(skew);
        let (behind, ahead) = (known.wrapping_sub(skew), skew.wrapping_sub(known));
        if behind.min(ahead) > if ahead < behind { late.max(SAME) } else { SAME } {
            state.skew = Some(skew);
            // The new clock may be behind, so counting begins anew.
            let before = std::mem::replace(&mut state.now, now);
            state.leapt = Some(now);
            state.counts.iter_mut().for_each(|count| *count = count.after_a_leap(before, now));
            state.slower.clear();
            state.counted = Counted::default();
            self.forgive(&LEAPT, key, now, whole);
        }
    }

    /// Counts a requested refund, which goes back to the lease or to the store.
    fn refunded(&mut self, moment: Moment, request: &Request) {
        let skew = self.keys.get(request.key).and_then(|key| key.skew).unwrap_or(0);
        self.forgive(&REFUNDED, request.key, moment.store.0.wrapping_add(skew), |_| request.cost);
    }

    /// Notes which refunds a call takes to the store: those of holds, which name the window of their charge, or those
    /// without a window. If some of them were requested in windows that are over, they are surely credited to other
    /// windows.
    fn leaves(&mut self, node: u32, key: u32, id: u64, is_of_hold: bool) {
        let (life, asked, state) = (self.lives.of(node), &mut self.asked, self.keys.of(key));
        let windows = state.windows();
        state.refunds.entry((node, id)).or_insert_with(|| {
            let asked = asked.leave(life, key, |(of_hold, _)| *of_hold == is_of_hold);
            let are_same = !asked.is_empty() && asked.iter().all(|(_, asked)| *asked == windows);
            if are_same { windows } else { Vec::new() }
        });
    }

    /// Allows for refunds that the store credited to its present windows, if they were requested in other windows.
    fn credited(&mut self, node: u32, key: u32, call: &Call, grant: &Grant, now: u64) {
        // A call that is outdated or repeated changes nothing.
        if grant.outdated || grant.replayed {
            return;
        }
        let key = self.keys.of(key);
        key.now = key.now.max(now);
        let (Some(rule), asked) = (&key.rule, key.refunds.remove(&(node, call.id))) else { return };
        for (index, (limit, count)) in rule.limits.iter().zip(&mut key.counts).enumerate() {
            count.roll(limit, key.now);
            if asked.as_ref().is_none_or(|windows| windows.get(index) != Some(&count.window)) {
                count.forgive(limit, REFUNDED.forgives(grant.granted));
            }
        }
    }

    /// The store charged a bucket at once for a waiter, who had timed out when the answer came. Those tokens may be
    /// spent by other checks within a second of the call, or go back.
    fn charged(&mut self, moment: Moment, took: u64, key: u32, call: &Call, order: &Acquire, grant: &Grant) {
        if took < self.timeout {
            return;
        }
        let key = self.keys.of(key);
        let now = moment.store.0.wrapping_add(key.skew.unwrap_or(0));
        for (limit, count) in call.rule.limits.iter().zip(&mut key.counts) {
            if limit.algorithm == Algorithm::Gcra {
                count.roll(limit, now);
                count.charged_long_ago(
                    LATE.forgives(order.need.min(grant.granted)),
                    now + UNCLAIMED.saturating_sub(took),
                );
            }
        }
    }

    /// The store has lost the key, and with it what it had lent of the next window.
    fn forgotten(&mut self, key: u32, now: u64) {
        let counted = std::mem::take(&mut self.keys.of(key).counted);
        let known = counted.shown.filter(|_| !counted.stale);
        self.forgive_each(&LOST, key, now, |rule, index| {
            let known = known.as_ref().filter(|(of, _)| of == rule);
            known.map_or(whole(rule), |(_, counters)| {
                tokens_in(&counters[index], &rule.limits[index], now).min(whole(rule))
            })
        });
        let state = self.keys.of(key);
        if let Some((rule, counters)) = known.filter(|(of, _)| Some(of) == state.rule.as_ref()) {
            let until = state.now + rule.lease_life().0;
            let buckets = rule.limits.iter().zip(&counters).zip(&mut state.counts);
            for ((limit, counter), count) in buckets.filter(|((limit, _), _)| limit.algorithm == Algorithm::Gcra) {
                count.forget_aside(limit, counter.used, until);
            }
        }
        state.counts.iter_mut().for_each(Count::forget);
        // The store's counters are empty now.
        state.counted.shown = state.rule.clone().map(|rule| (rule, [Counter::default(); MAX_LIMITS]));
    }

    /// An answer of the key's owner shows its counters.
    fn shown(&mut self, key: u32, call: &Call, grant: &Grant) {
        let (state, now) = (self.keys.of(key), grant.now.0);
        let undone = state.counted.undone.take();
        state.counted.shown = Some((call.rule.clone(), grant.counters));
        state.counted.stale = false;
        let Some(before) = undone else { return };
        let unsure = state.unconfirmed + state.pending.values().sum::<u64>();
        (state.unconfirmed, state.pending) = (0, BTreeMap::new());
        let acts = !grant.replayed && !grant.outdated;
        let lent = if acts && matches!(call.op, Op::Acquire(_)) { grant.granted } else { 0 };
        self.forgive_each(&UNDONE, key, now, |rule, index| {
            let limit = &rule.limits[index];
            let missing = match before.as_ref().filter(|(of, _)| *of == call.rule && of == rule) {
                Some((_, counters)) => {
                    // The two counters of a sliding window are compared one by one: a return to the previous window
                    // that was undone makes up for an undone grant only as long as that window weighs.
                    let [after, before_that] = counts_in(&grant.counters[index], limit, now);
                    let [was, was_before] = counts_in(&counters[index], limit, now);
                    was.saturating_sub(after.saturating_sub(lent)) + was_before.saturating_sub(before_that)
                }
                None => whole(rule),
            };
            missing.min(unsure).min(whole(rule))
        });
    }

    /// Allows `tokens` more of each limit in its present window.
    pub(super) fn beside(&mut self, key: u32, now: u64, mut tokens: impl FnMut(usize, &Limit) -> u64) {
        let key = self.keys.of(key);
        key.now = key.now.max(now);
        let Some(rule) = &key.rule else { return };
        for (index, (limit, count)) in rule.limits.iter().zip(&mut key.counts).enumerate() {
            count.roll(limit, key.now);
            count.forgive(limit, tokens(index, limit));
        }
    }

    fn forgive(&mut self, why: &Exemption, key: u32, now: u64, tokens: impl Fn(&Rule) -> u64) {
        self.forgive_each(why, key, now, |rule, _| tokens(rule));
    }

    fn forgive_each(&mut self, why: &Exemption, key: u32, now: u64, tokens: impl Fn(&Arc<Rule>, usize) -> u64) {
        let key = self.keys.of(key);
        key.now = key.now.max(now);
        let Some(rule) = key.rule.clone() else { return };
        let now = key.now;
        for (index, (limit, count)) in rule.limits.iter().zip(&mut key.counts).enumerate() {
            count.roll(limit, now);
            count.forgive(limit, why.forgives(tokens(&rule, index)));
        }
    }
}

impl Key {
    fn windows(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.window).collect()
    }

    /// Goes on to the limits of `rule`. What was admitted is kept if algorithms and periods stay the same.
    fn adopt(&mut self, rule: &Arc<Rule>) {
        let same = |old: &Rule| {
            old.limits.len() == rule.limits.len()
                && old.limits.iter().zip(&rule.limits).all(|(a, b)| a.algorithm == b.algorithm && a.period == b.period)
        };
        match &self.rule {
            Some(old) if Arc::ptr_eq(old, rule) || old == rule => return,
            Some(old) if same(old) => {
                // Nodes learn of a change one after another, so the larger limit is allowed meanwhile.
                let (is_first, mut is_raised) = (self.raised.as_ref() != Some(rule), false);
                let aside = self.counted.shown.as_ref().filter(|(of, _)| of == old);
                let most = if is_first { u64::MAX } else { self.lent_by_others };
                self.slower.resize_with(rule.limits.len(), || None);
                for (index, (old, new)) in old.limits.iter().zip(&rule.limits).enumerate() {
                    let (count, is_higher) = (&mut self.counts[index], new.count > old.count);
                    let aside = aside.filter(|_| is_higher).map_or(0, |(_, counters)| counters[index].used.min(most));
                    is_raised |= is_higher;
                    // Allowance of a bucket leaks from now on. The tokens in it were charged as time, and take as long
                    // to leak as under the old limit.
                    count.roll(old, self.now);
                    let before = count.clone();
                    count.change_rate(old, new, RAISED.forgives(aside));
                    count.forgive(new, PUSHED.forgives(old.capacity().saturating_sub(new.capacity())));
                    // Where nodes take turns, it goes on.
                    let slower = slower(old, new);
                    if self.slower[index].as_ref().map(|known| known.limit) != slower {
                        let from = |limit| Slower { limit, count: if limit == *old { before } else { count.clone() } };
                        self.slower[index] = slower.map(from);
                    }
                }
                if is_raised {
                    (self.raised, self.lent_by_others) = (Some(rule.clone()), 0);
                }
            }
            old => {
                // Tokens lent under the old limit to a waiter are spent under the new one.
                let changed = old.is_some();
                self.slower.clear();
                self.counts = vec![Count::default(); rule.limits.len()];
                for (limit, count) in rule.limits.iter().zip(&mut self.counts).filter(|_| changed) {
                    count.roll(limit, self.now);
                    count.forgive(limit, PUSHED.forgives(whole(rule)));
                }
            }
        }
        self.rule = Some(rule.clone());
    }
}

impl Slower {
    /// Counts what [`Bound::admit`] counts; whether that is no more than this limit lets pass.
    fn admit(&mut self, now: u64, tokens: u64, beside: u64, trip: u64) -> bool {
        self.count.roll(&self.limit, now);
        self.count.admit_at(&self.limit, now, tokens, beside);
        self.count.excess(&self.limit, now, trip) == 0
    }
}

/// The one of two limits of a bucket that never lets pass what the other does not.
fn slower(old: &Limit, new: &Limit) -> Option<Limit> {
    let within = |limit: &Limit, other: &Limit| limit.count <= other.count && limit.burst <= other.burst;
    let of_two = if within(old, new) { Some(*old) } else { Some(*new).filter(|new| within(new, old)) };
    of_two.filter(|limit| limit.algorithm == Algorithm::Gcra)
}

/// The tokens that a counter shows as lent or spent and that still count at `now`.
fn tokens_in(counter: &Counter, limit: &Limit, now: u64) -> u64 {
    let (at, period) = (counter.at.0, limit.period.0);
    match limit.algorithm {
        Algorithm::Gcra => {
            let charged = u128::from(at.saturating_sub(now)) * u128::from(limit.count);
            counter.used + u64::try_from(charged.div_ceil(u128::from(period))).unwrap_or(u64::MAX)
        }
        Algorithm::Sliding => match (now / period * period).checked_sub(at) {
            Some(0) => counter.used + counter.prev,
            Some(passed) if passed == period => counter.used,
            _ => 0,
        },
        Algorithm::Fixed if at <= now && now < at + period => counter.prev,
        _ => {
            if now < at {
                counter.used
            } else {
                0
            }
        }
    }
}

/// The same; for a sliding window separately for the present and the previous window.
fn counts_in(counter: &Counter, limit: &Limit, now: u64) -> [u64; 2] {
    let tokens = tokens_in(counter, limit, now);
    let is_open = limit.algorithm == Algorithm::Sliding && now / limit.period.0 * limit.period.0 == counter.at.0;
    if limit.algorithm != Algorithm::Sliding {
        [tokens, 0]
    } else if is_open {
        [counter.used, counter.prev]
    } else {
        [0, tokens]
    }
}

/// The largest number of tokens that a limit of the rule admits at once.
fn whole(rule: &Rule) -> u64 {
    rule.limits.iter().map(|limit| limit.capacity()).max().unwrap_or(0)
}

impl Bound {
    /// Takes note of events that allow more; it counts no admissions.
    pub(super) fn excuse(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Answered { request, store, .. } = seen {
            self.follow(request.key, moment, store.0, 0);
        }
        self.lives.see(seen);
        match seen {
            Seen::Asked(request) if request.kind == Kind::Refund => {
                self.refunded(moment, request);
                let note = (self.of_holds.remove(&request.id), self.keys.of(request.key).windows());
                self.asked.ask(self.lives.of(request.node), request, note);
            }
            Seen::Hold(_, Holding::Asks(request)) if request.kind == Kind::Refund => {
                self.of_holds.insert(request.id);
            }
            Seen::Answered { request, parked: false, .. } if request.kind == Kind::Refund => {
                self.asked.decide(self.lives.of(request.node), request);
            }
            Seen::Called { node, key, call, .. } => match &call.op {
                Op::Refund { windows: charged, .. } => self.leaves(*node, *key, call.id, *charged != OPEN),
                Op::Acquire(_) => {
                    self.sent.entry((*node, call.id)).or_insert(moment.at);
                }
                _ => {}
            },
            Seen::Answered { request, store, .. } if request.kind == Kind::Reset && self.resets_alone => {
                self.forgive(&LOST, request.key, store.0, whole);
            }
            Seen::Executed { node, key, call, grant, stale, ran, .. } => {
                if *stale {
                    self.keys.of(*key).counted.stale = true;
                } else {
                    self.follow(*key, moment, grant.now.0, self.busy);
                    if matches!(call.op, Op::Acquire(_)) && !grant.replayed {
                        self.keys.of(*key).pending.insert((*node, call.id), grant.granted);
                    }
                }
                // A former owner may have another clock, but windows are judged by the owner's.
                let owners = self.keys.of(*key).skew.map(|skew| moment.store.0.wrapping_add(skew));
                let now = owners.filter(|_| *stale).unwrap_or(grant.now.0);
                if let Op::Refund { .. } = call.op {
                    self.credited(*node, *key, call, grant, now);
                }
                if call.op == Op::Reset && !grant.replayed && !grant.outdated {
                    self.forgotten(*key, now);
                }
                if let Op::Acquire(order) = call.op {
                    let state = self.keys.of(*key);
                    state.now = state.now.max(now);
                    state.adopt(&call.rule);
                    if state.raised.as_ref().is_some_and(|raised| *raised != call.rule) && !grant.replayed {
                        state.lent_by_others += grant.granted;
                    }
                    if order.window.is_next() && !grant.replayed {
                        state.counts[0].roll(&call.rule.limits[0], now);
                        state.counts[0].lend_ahead(grant.granted);
                    }
                    for (index, limit) in call.rule.limits.iter().enumerate() {
                        if limit.algorithm == Algorithm::FixedFromFirst && !stale {
                            state.counts[index].open(grant.counters[index].at.0, now);
                        }
                    }
                    if *stale {
                        let granted = grant.granted;
                        for (limit, (count, counter)) in
                            call.rule.limits.iter().zip(state.counts.iter_mut().zip(&grant.counters))
                        {
                            if limit.algorithm == Algorithm::FixedFromFirst {
                                let lasts = counter.at.0.saturating_sub(grant.now.0);
                                count.lend_beyond(granted, now + lasts, now);
                            }
                        }
                        if order.window.is_next() {
                            // They are spent in the next window, not in this one.
                            let lost = if grant.replayed { 0 } else { granted };
                            state.counts[0].lose_of_ahead(STALE.forgives(lost));
                        } else {
                            self.forgive(&STALE, *key, now, |_| granted);
                        }
                    }
                }
                if !stale {
                    self.shown(*key, call, &counted(call, grant, ran));
                }
            }
            Seen::Settled { node, key, call, grant: Some(grant), .. } => {
                if let (Op::Acquire(order), Some(sent)) = (&call.op, self.sent.remove(&(*node, call.id))) {
                    self.charged(moment, moment.at - sent, *key, call, order, grant);
                }
                let unsure = !self.confirm || !grant.confirmed;
                if unsure && matches!(call.op, Op::Acquire(_)) {
                    self.keys.of(*key).unconfirmed += grant.granted;
                }
                self.keys.of(*key).pending.remove(&(*node, call.id));
            }
            Seen::Undone { key, .. } => {
                let counted = &mut self.keys.of(*key).counted;
                let shown = counted.shown.take();
                counted.undone.get_or_insert(shown);
            }
            Seen::Lost { key, store } => self.forgotten(*key, store.0),
            _ => {}
        }
    }
}

impl Observer for Bound {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.excuse(moment, seen);
        self.asides.see(moment, seen);
        let Seen::Answered { request, rule, decision, store, .. } = seen else { return };
        let is_aside = self.asides.lender(moment, request, decision).is_some();
        let is_lent = matches!(decision.source, Source::Lease | Source::Store | Source::Peer) && !is_aside;
        let is_lent = !SHARES.when(!is_lent);
        if request.kind == Kind::Check
            && decision.verdict == Verdict::Allow
            && is_lent
            && let Some(beyond) = self.admit(request, rule, decision, store.0, |_, _| 0)
        {
            self.found.add("bound", moment, || beyond);
        }
    }
}

impl Checker for Bound {
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
    fn a_window_over_its_limit_is_seen_and_one_at_it_is_not() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Bound::new(&history.setting());
        history.check(&mut checker, 0, 10, Source::Lease, true);
        history.check(&mut checker, SECOND, 10, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, SECOND + 5, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "bound");
    }

    #[test]
    fn a_refund_is_forgiven_once() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Bound::new(&history.setting());
        history.check(&mut checker, 0, 10, Source::Lease, true);
        history.refund(&mut checker, 1, 4);
        history.check(&mut checker, 3, 4, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 4, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "bound");
    }

    /// Both leave together, after the end of the window in which the refund without a window was requested.
    #[test]
    fn a_refund_of_any_window_beside_one_of_a_hold_is_forgiven_where_it_is_credited() {
        for (taken, most) in [(4, 17), (0, 13)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Bound::new(&history.setting());
            history.check(&mut checker, 0, 1, Source::Lease, true);
            history.refund_waits(&mut checker, 1, 4, false);
            history.check(&mut checker, SECOND, 1, Source::Lease, true);
            history.refund_waits(&mut checker, SECOND + 1, 3, true);
            history.refund_leaves(&mut checker, SECOND + 2, 9, Some(2 * SECOND));
            history.refund_leaves(&mut checker, SECOND + 2, 11, None);
            history.refund_runs(&mut checker, SECOND + 3, [11, 4, taken]);
            history.check(&mut checker, SECOND + 4, most - 1, Source::Lease, true);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.check(&mut checker, SECOND + 5, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), 1, "{taken} were credited");
        }
    }

    #[test]
    fn a_refund_that_is_repeated_too_late_is_forgiven_by_nothing() {
        for (replayed, outdated) in [(true, false), (false, true)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Bound::new(&history.setting());
            history.refund(&mut checker, 1, 4);
            history.refund_again(&mut checker, SECOND + 1, 4, [replayed, outdated]);
            history.check(&mut checker, SECOND + 2, 11, Source::Lease, true);
            assert_eq!(checker.violations().len(), 1, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_was_lent_ahead_and_lost_is_excepted_in_the_next_window() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Bound::new(&history.setting());
        let half = crate::checkers::tests::SECOND / 2;
        history.lent_ahead(&mut checker, half, 3);
        history.see(&mut checker, half, &Seen::Lost { key: 0, store: Timestamp(1_800_000_000_500_000) });
        history.check(&mut checker, 3 * half, 13, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 3 * half, 1, Source::Lease, true);
        assert_eq!(checker.violations().len(), 1);
    }

    /// A former owner lends ahead: its tokens may be spent beside the limit in the next window, and not in this one.
    #[test]
    fn what_a_former_owner_lent_ahead_is_excepted_in_the_next_window_only() {
        for (at, most) in [(1, 10), (3, 13)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Bound::new(&history.setting());
            let half = SECOND / 2;
            history.stale = true;
            history.lent_ahead(&mut checker, half, 3);
            history.check(&mut checker, at * half, most, Source::Lease, true);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.check(&mut checker, at * half, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), 1);
        }
    }

    /// How much may be admitted in a window after `lose`, when all 10 of the limit were admitted before.
    fn most_after(lose: impl Fn(&mut History, &mut Bound)) -> u64 {
        most_of("10/1s fixed", lose)
    }

    fn most_of(limit: &str, lose: impl Fn(&mut History, &mut Bound)) -> u64 {
        (0..40)
            .find(|more| {
                let mut history = History::new(limit);
                let mut checker = Bound::new(&history.setting());
                history.check(&mut checker, 0, 10, Source::Lease, true);
                lose(&mut history, &mut checker);
                history.check(&mut checker, 9, more + 1, Source::Lease, true);
                !checker.violations().is_empty()
            })
            .expect("there is a bound")
    }

    #[test]
    fn a_reset_and_a_loss_are_forgiven_what_had_been_counted_and_once() {
        let lost = Seen::Lost { key: 0, store: Timestamp(1_800_000_000_000_002) };
        assert_eq!(most_after(|_, _| ()), 0);
        assert_eq!(most_after(|history, checker| history.see(checker, 1, &lost)), 10, "nobody knows what it counted");
        assert_eq!(
            most_after(|history, checker| {
                for id in 1..=4 {
                    history.executed(checker, 1, id);
                }
                history.see(checker, 2, &lost);
                history.see(checker, 3, &lost);
            }),
            4
        );
        assert_eq!(
            most_after(|history, checker| {
                history.executed(checker, 1, 1);
                history.reset(checker, 2, 2);
            }),
            1
        );
    }

    #[test]
    fn a_failover_is_forgiven_what_it_undid_and_no_later_grant() {
        let undone = Seen::Undone { key: 0, store: Timestamp(1_800_000_000_000_002) };
        assert_eq!(
            most_after(|history, checker| {
                for id in 1..=5 {
                    history.executed(checker, 1, id);
                }
                history.see(checker, 2, &undone);
                history.used -= 3;
                for id in 6..=9 {
                    history.executed(checker, 3, id);
                }
            }),
            3
        );
    }

    /// A failover undoes three grants, and a return of as many tokens to the previous window.
    #[test]
    fn what_a_failover_undid_of_a_sliding_window_is_not_made_up_for_by_the_one_before() {
        let undone = Seen::Undone { key: 0, store: Timestamp(1_800_000_000_000_002) };
        for prev in [0, 3] {
            let most = most_of("10/1s sliding", |history, checker| {
                history.opened = SECOND.wrapping_neg();
                (1..=5).for_each(|id| history.executed(checker, 1, id));
                history.see(checker, 2, &undone);
                (history.used, history.prev) = (history.used - 3, prev);
                history.executed(checker, 3, 6);
            });
            assert_eq!(most, 3, "{prev}");
        }
    }

    /// A bucket of nine tokens, all charged or four of them set aside, has its rate doubled, and some nodes use the old
    /// rate once more. Tokens that were charged take as long to leak as before.
    #[test]
    fn what_is_set_aside_when_a_rate_is_raised_leaks_at_the_new_one() {
        for (aside, most) in [(0, 3), (4, 7)] {
            let rule = |limit| Arc::new(Rule::of("p", &[Limit::parse(limit).expect("a limit")]));
            let (old, new) = (rule("19/2s burst 20"), rule("38/2s burst 20"));
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0].used = aside;
            let counted = Counted { shown: Some((old.clone(), counters)), ..Counted::default() };
            let mut key = Key { rule: Some(old.clone()), counts: vec![Count::default()], counted, ..Key::default() };
            key.now = SECOND;
            key.counts[0].roll(&old.limits[0], SECOND);
            key.counts[0].admit_at(&old.limits[0], SECOND, 9, 0);
            for rule in [&new, &old, &new] {
                key.adopt(rule);
            }
            for beyond in [0, 1] {
                let mut count = key.counts[0].clone();
                count.admit_at(&new.limits[0], SECOND, most + beyond, 0);
                assert_eq!(count.excess(&new.limits[0], SECOND, 0), beyond, "{aside}");
            }
        }
    }

    /// A node that has yet to learn of a doubled rate is lent four more tokens and spends them. Another one that knows
    /// the new rate is lent what the bucket has room for beside them, as if they cost what tokens cost now; then they
    /// are charged at the old rate, once.
    #[test]
    fn what_is_lent_by_the_old_rate_once_it_was_raised_leaks_at_the_new_one() {
        let rule = |limit| Arc::new(Rule::of("p", &[Limit::parse(limit).expect("a limit")]));
        let (old, new) = (rule("19/2s burst 20"), rule("38/2s burst 20"));
        for (lent, most) in [(0, 13), (4, 17)] {
            let mut counters = [Counter::default(); MAX_LIMITS];
            let counted = Counted { shown: Some((old.clone(), counters)), ..Counted::default() };
            let mut key = Key { rule: Some(old.clone()), counts: vec![Count::default()], counted, ..Key::default() };
            key.now = SECOND;
            for rule in [&new, &old] {
                key.adopt(rule);
            }
            key.lent_by_others = lent;
            counters[0].used = 6;
            key.counted.shown = Some((old.clone(), counters));
            key.counts[0].roll(&old.limits[0], SECOND);
            key.counts[0].admit_at(&old.limits[0], SECOND, 4, 0);
            for rule in [&new, &old, &new] {
                key.adopt(rule);
            }
            for beyond in [0, 1] {
                let mut count = key.counts[0].clone();
                count.admit_at(&new.limits[0], SECOND, most + beyond, 0);
                assert_eq!(count.excess(&new.limits[0], SECOND, 0), beyond, "{lent}");
            }
        }
    }

    /// A rate is doubled, and a node that knows of that admits some. Others that do not know of it yet admit more, which
    /// takes as long to leak as twice as many at the new rate, and then the first node spends what it was lent before.
    #[test]
    fn what_the_slower_of_two_limits_lets_pass_by_itself_is_not_too_much_for_the_other() {
        let rule = |limit| Arc::new(Rule::of("p", &[Limit::parse(limit).expect("a limit")]));
        let (old, new) = (rule("45/3s burst 20"), rule("90/3s burst 20"));
        // One more than the burst is for the rounding.
        for (first, slow, last, seen) in [(0, 15, 6, 0), (0, 15, 7, 1), (15, 5, 1, 0), (15, 5, 2, 1), (15, 6, 1, 1)] {
            let mut history = History::new("45/3s burst 20");
            let mut checker = Bound::new(&history.setting());
            checker.trip = 0;
            for (rule, cost) in [(&old, 0), (&new, first), (&old, slow)] {
                history.decided_by(&mut checker, 1, rule, cost, (Source::Lease, 0));
            }
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.decided_by(&mut checker, 1, &new, last, (Source::Lease, 0));
            assert_eq!(checker.violations().len(), seen, "{first} {slow} {last}: {:?}", checker.violations());
        }
    }

    /// Of a rate that is halved, the new one is the slower. What was admitted before the change takes as long to leak as
    /// by the old one. Where each of two limits has more of something, none is the slower.
    #[test]
    fn the_slower_of_two_limits_may_be_either_or_none() {
        let limit = |limit| Limit::parse(limit).expect("a limit");
        let (low, high) = (limit("45/3s burst 20"), limit("90/3s burst 20"));
        assert_eq!((slower(&low, &high), slower(&high, &low)), (Some(low), Some(low)));
        assert_eq!(slower(&low, &limit("90/3s burst 19")), None);
        assert_eq!(slower(&limit("45/3s fixed"), &limit("90/3s fixed")), None, "it is no bucket");
        let rule = |limit| Arc::new(Rule::of("p", &[limit]));
        for (before, last, seen) in [(10, 16, 0), (10, 17, 1)] {
            let mut history = History::new("90/3s burst 20");
            let mut checker = Bound::new(&history.setting());
            checker.trip = 0;
            // Ten by the quicker one are five by the slower one.
            for (limit, cost) in [(high, before), (low, 15), (high, 0)] {
                history.decided_by(&mut checker, 1, &rule(limit), cost, (Source::Lease, 0));
            }
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.decided_by(&mut checker, 1, &rule(high), last - 15, (Source::Lease, 0));
            assert_eq!(checker.violations().len(), seen, "{last}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_share_and_a_lost_key_are_excepted() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Bound::new(&history.setting());
        history.check(&mut checker, 0, 10, Source::Lease, true);
        history.check(&mut checker, 1, 9, Source::Share, true);
        history.see(&mut checker, 2, &Seen::Lost { key: 0, store: Timestamp(1_800_000_000_000_002) });
        history.check(&mut checker, 3, 10, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 4, 1, Source::Lease, true);
        assert_eq!(checker.violations().len(), 1);
    }
}
