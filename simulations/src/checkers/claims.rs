//! **no-free-budget**: what a node's calls claim about itself is true. A store that lost its data restores it from
//! these claims: so the tokens that a node says it was lent of a window are no more and no less than the store has lent
//! it, and what it says of a bucket is no less than the store has shown and the node has spent since. When the store is
//! back, a node first asks for what it admitted on its share; and it declares an acquire that it has given up void
//! before it asks for more.

use std::collections::BTreeMap;

use rationd::core::call::{Acquire, Call, Grant, Known, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::gcra;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::StoredTime;

use super::Found;
use super::notes::{Ids, Life, Lives, Stops, Trips};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Numbered, Set};
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Brain, Plan, What};

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Who learns of other limits begins anew.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static FORGETS: Exemption = Exemption::new(
    "a node that has been asked for more keys than one of its shards has room for, from then on, and one that is not run, until two periods later; and an acquire that was given up, where its node has the store look at the key two seconds later or more",
    "A slot that is forgotten, or a call that is late, may say too little; never too much. By that look a node learns the epoch of a key that it has forgotten.",
);
static BUCKETS: Exemption = Exemption::new(
    "too much of a bucket; and too little of what was lent of it before the present period of accounts, and of as much as may have been credited to it since the store has shown it, or as a peer that lends has not heard of",
    "What is known of it is a time, which bucket.rs judges where it is charged. What lapses counts as spent, who takes a cost back brings that time forward, and who is lent some by a peer goes by what that knows.",
);
static DOUBT_EDGE: Exemption = Exemption::new(
    "near a boundary",
    "Which window is open is not known to a timeout or a trip, and to how far clocks have drifted apart since the last answer: too little is not judged there.",
);

static UNSEEN: Exemption = Exemption::new(
    "what was lent before all nodes knew of a change of limits, until its window is over by any clock",
    "It is not looked at, and of a window that a clock set back opens again a node says once more what it was lent.",
);

static TWO_VOID: Exemption = Exemption::new(
    "two acquires in a row that were given up",
    "A node remembers one: where the store has not answered that the first is void, the second may be forgotten, and what it was lent is lost.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "claims.rs",
    invariants: &["no-free-budget"],
    proves: "What a node says that it was lent of a window, which a store that lost its data counts again, is no more and no less than it was lent; what it says of a bucket is no less than the store has shown and it has spent since; what it admitted on its share it asks for first; an acquire that it has given up it says to be void before it asks for more.",
    judges: "All algorithms, several limits; what is owed of a share: the longest of the windows, but for those from the first request of which tokens are set aside, which entitled.rs judges.",
    exemptions: &[&PUSHES, &BASELINES, &FORGETS, &BUCKETS, &DOUBT_EDGE, &UNSEEN, &TWO_VOID],
    mutant: Some("known-not-sent"),
};

/// A node knows the store's clock to within the longest trip and this much more.
const DOUBT: u64 = 10_000;

/// Clocks drift by one part in 5,000 at most, and a node allows for twice that.
const DRIFTS: u64 = 2_500;

/// How many windows of each limit of a key are remembered. If the new clock of a key is five seconds behind the old
/// one, many short windows have been counted since the one that is open again.
const WINDOWS: usize = 64;

/// The tokens of one window that the store has lent a node: at most, and surely.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    most: u64,
    sure: u64,
    /// When it last lent some, in true time, because clocks leap.
    at: u64,
}

/// A node remembers a key for at least this long.
const REMEMBERED: u64 = 2_000_000;

/// The latest acquire of a key, and what its node knows of its outcome.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    id: u64,
    /// How often it was sent, and whether it left. The store may have executed one that was sent again; one that was
    /// not sent again was refused.
    sendings: u32,
    left: bool,
    /// When it was sent last.
    sent: u64,
    /// It was answered, or the store was told that it is void.
    is_settled: bool,
}

/// The least that a node has to claim about a bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Owes {
    /// The TAT that the store has shown, and the tokens that may have been credited to it since.
    at: u64,
    credited: u64,
}

/// A key in one life of a node.
#[derive(Clone, Debug, Default)]
struct Account {
    /// By position of a bucket's limit; and when the store gave the latest of the answers that have arrived.
    buckets: BTreeMap<usize, Owes>,
    shown_at: u64,
    /// The tokens of buckets that the store takes the node to hold, and until when all of them count, by the store's
    /// clock.
    open: Option<(u64, u64)>,
    order: Order,
    /// The order that was declared void by a call without an answer yet; 0 if there is none.
    voiding: u64,
    /// By limit, and `Counter::at` of the window.
    lent: BTreeMap<(usize, u64), Lent>,
    /// The latest acquire.
    latest: u64,
    /// When the store gave the latest of the answers that have arrived, and the epoch in it.
    epoch: (u64, u64),
    /// The window in which the share was last spent from, and how much of that is not paid.
    owes: (u64, u64),
    /// How long the latest answer was under way, and when it came: the node knows the store's clock to within that trip
    /// and the drift since.
    trip: u64,
    answered: u64,
    /// How far the store's clock, by the last answer that the node heard, is ahead of true time.
    skew: Option<u64>,
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Claims {
    is_on: bool,
    /// Nodes that may have dropped keys to make room for others.
    crowded: Set<u32>,
    stops: Stops,
    /// Whether the clocks of masters differ and slots move from one to another.
    leaps: bool,
    /// When this checker began to see events, in true time; 0 if at the start. And by how much clocks are set back in
    /// all.
    blind: u64,
    back: u64,
    /// Whether the clocks of nodes and of the store agree.
    keeps_time: bool,
    doubt: u64,
    lives: Lives,
    trips: Trips,
    sent: Ids,
    settled: Ids,
    accounts: Map<(Life, u32), Account>,
    /// Holds that a share admitted, with the node and key that owe them, and the window (0 if not known).
    holds: Map<u64, ((Life, u32), u64)>,
    alone: Option<((Life, u32), u64)>,
    /// How far the clock of a key's owner is ahead of true time, by the latest decision; before the first one, by the
    /// store's first answer, to within its trip.
    skews: Numbered<Option<u64>>,
    found: Found,
}

impl Account {
    /// The window of a limit that is open by any clock, and the tokens lent of it.
    fn surely_open(&self, index: usize, limit: &Limit, now: u64, doubt: u64) -> Option<(u64, Lent)> {
        let of = |at: u64| self.lent.get(&(index, at)).map(|lent| (at, *lent));
        match limit.algorithm {
            Algorithm::Fixed => window(now, doubt, limit.period.0).and_then(of),
            Algorithm::Sliding => window(now, doubt, limit.period.0).and_then(|end| of(end - limit.period.0)),
            _ => {
                let mut windows = self.lent.range((index, 0)..(index + 1, 0)).map(|((_, at), lent)| (*at, *lent));
                windows.rfind(|(at, lent)| now + doubt < *at && lent.sure > 0)
            }
        }
    }

    /// What is wrong with a node's claim about a bucket, if anything. It has to name the TAT that the store has shown
    /// or a later one, and the tokens that it holds and has spent since have to be all that it was lent.
    fn bucket(&self, index: usize, limit: &Limit, order: &Acquire, known: Known, by: u64) -> Option<String> {
        let owes = self.buckets.get(&index)?;
        let least = owes.at.saturating_sub(gcra::cost(limit, owes.credited).0);
        let lent = self.open.filter(|(_, until)| by < *until).map_or(0, |(lent, _)| lent);
        let is_wrong = known.at.0 < least || known.used.saturating_add(order.held) < lent;
        is_wrong.then(|| format!("holds {}, and has {owes:?} and was lent {lent}", order.held))
    }

    /// Notes the counters of buckets in an answer. A node surely adopts only the answer to its latest acquire, and only
    /// under the epoch with which it asked.
    fn shown(&mut self, call: &Call, grant: &Grant) {
        let order = if let Op::Acquire(order) = &call.op { Some(order) } else { None };
        let order = order.filter(|order| order.epoch == grant.epoch || order.epoch == 0);
        let is_overtaken = grant.now.0 < self.shown_at;
        let counts = order.filter(|_| self.latest == call.id && !grant.replayed && !grant.outdated && !is_overtaken);
        self.shown_at = self.shown_at.max(grant.now.0);
        for (index, limit) in call.rule.limits.iter().enumerate() {
            if limit.algorithm != Algorithm::Gcra {
                continue;
            }
            let at = grant.counters[index].at.0;
            match (self.buckets.get_mut(&index), counts) {
                (None, None) => {}
                (Some(owes), None) => owes.at = owes.at.min(at),
                (_, Some(_)) => _ = self.buckets.insert(index, Owes { at, credited: 0 }),
            }
        }
        if let Op::Acquire(order) = &call.op {
            let period = call.rule.account_period().0;
            let until = (grant.now.0 / period + 1) * period;
            let held = order.held.saturating_sub(grant.not_kept);
            self.open = counts.map(|_| (held + grant.granted.saturating_sub(order.need), until));
        }
    }

    /// Notes that `tokens` may be credited to buckets.
    fn credit(&mut self, tokens: u64) {
        self.buckets.values_mut().for_each(|owes| owes.credited += tokens);
    }
}

impl Claims {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new).from(|checker, sees| checker.blind = sees)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd),
            crowded: Set::default(),
            stops: Stops::default(),
            leaps: setting.plan.clocks_leap(),
            blind: 0,
            back: set_back(&setting.plan),
            keeps_time: setting.plan.clocks.offset.0 == 0
                && setting.plan.redis.skew.0 == 0
                && !setting.plan.clocks_leap(),
            doubt: setting.plan.daemon.timeout.0 + DOUBT,
            lives: Lives::default(),
            trips: Trips::default(),
            sent: Ids::default(),
            settled: Ids::default(),
            accounts: Map::default(),
            holds: Map::default(),
            alone: None,
            skews: Numbered::default(),
            found: Found::default(),
        }
    }

    fn account(&mut self, life: Life, key: u32) -> &mut Account {
        self.accounts.entry((life, key)).or_default()
    }

    /// The time by the clock of a key's owner; where another clock may count the key at once, by the clock that the
    /// node last heard.
    fn now(&self, moment: Moment, life: Life, key: u32) -> u64 {
        let heard = self.accounts.get(&(life, key)).and_then(|account| account.skew).filter(|_| self.leaps);
        moment.store.0.wrapping_add(heard.or(self.skews.get(key).copied().flatten()).unwrap_or(0))
    }

    /// A node uses the clock of this answer from now on. It has forgotten windows that were over by its previous clock,
    /// and its share is in another window.
    fn heard(&mut self, moment: Moment, life: Life, key: u32, call: &Call, grant: &Grant) {
        let (over, fresh) = (self.now(moment, life, key) + self.doubt, grant.now.0.wrapping_sub(moment.store.0));
        let doubt = self.doubt;
        let account = self.account(life, key);
        for ((index, at), lent) in &mut account.lent {
            let limit = call.rule.limits.get(*index).filter(|limit| limit.algorithm == Algorithm::Sliding);
            if at + limit.map_or(0, |limit| limit.period.0) <= over {
                lent.sure = 0;
            }
        }
        let known = account.skew.replace(fresh).unwrap_or(fresh);
        if known.wrapping_sub(fresh).min(fresh.wrapping_sub(known)) > doubt {
            account.owes = (0, 0);
        }
    }

    /// Notes that this order was answered or declared void.
    fn settle(&mut self, life: Life, key: u32, id: u64) {
        let order = &mut self.account(life, key).order;
        order.is_settled |= order.id == id;
    }

    fn order(&mut self, moment: Moment, life: Life, key: u32, call: &Call, order: &Acquire) {
        let (now, doubt) = (self.now(moment, life, key), self.doubt);
        let longest = call.rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        let stopped = FORGETS.when(self.stops.meet(life.0, moment.at, 2 * longest + doubt));
        let forgets = stopped || FORGETS.when(self.crowded.contains(&life.0));
        let (is_blind, unseen) = (self.blind > 0, now - moment.at + self.blind + self.back);
        let account = self.account(life, key);
        let doubt = doubt.max(account.trip + DOUBT) + (moment.at - account.answered) / DRIFTS;
        account.latest = call.id;
        if order.epoch == 0 {
            // The node had dropped the key, as nothing used it any more.
            account.lent.clear();
            (account.skew, account.open, account.shown_at) = (None, None, 0);
            account.buckets.clear();
            // By the clock that it went by until now. By the store's next one that window may be open again.
            if account.owes.0 <= now + doubt {
                account.owes = (0, 0);
            }
        }
        // An acquire ahead is not declared void, as the store could not tell the window of its tokens.
        let is_remembered = !order.window.is_next() && !TWO_VOID.when(account.voiding != 0);
        let id = if is_remembered { call.id } else { 0 };
        let before = std::mem::replace(&mut account.order, Order { id, ..Order::default() });
        // A node that had dropped the key knows nothing of earlier acquires.
        let unsaid = before.left && before.sendings > 1 && !before.is_settled && order.epoch != 0;
        let mut wrong =
            unsaid.then(|| format!("key {key}: {life:?} asks again and has not said that {before:?} is void"));
        for (index, limit) in call.rule.limits.iter().enumerate() {
            let known = order.known[index];
            if BUCKETS.when(limit.algorithm == Algorithm::Gcra) {
                let too_little = if forgets { None } else { account.bucket(index, limit, order, known, now + doubt) };
                wrong = too_little
                    .map(|least| format!("key {key}: {life:?} says {known:?} of a bucket, {least}"))
                    .or(wrong);
                continue;
            }
            let lent = account.lent.get(&(index, known.at.0)).copied().unwrap_or_default();
            let length = if limit.algorithm == Algorithm::Sliding { 0 } else { limit.period.0 };
            let is_unseen = UNSEEN.when(is_blind && known.at.0 < unseen + length);
            let too_much = known.used > lent.most && !is_unseen;
            let end = if limit.algorithm == Algorithm::Sliding { known.at + limit.period } else { known.at };
            let too_little = known.used < lent.sure && !forgets && !DOUBT_EDGE.when(now + doubt >= end.0);
            // If the claim names another window or none, it is compared with the one that is surely open.
            let unsaid = account.surely_open(index, limit, now, doubt).filter(|(at, _)| *at != known.at.0);
            let silent = !forgets && unsaid.is_some_and(|(_, lent)| lent.sure > 0);
            if too_much || too_little || silent {
                wrong = Some(format!("key {key}: {life:?} says {known:?} and has {lent:?} {unsaid:?}"));
            }
        }
        // If these tokens were charged for a waiter who did not get them, that charge is taken back.
        account.credit(order.held);
        let open = windowed(&call.rule).and_then(|period| window(now, doubt, period));
        let (owed_in, owed) = account.owes;
        // A probe only checks whether the store answers; the node pays with its next grant.
        let is_probe = order.claim.is_some_and(|claim| claim.is_probe());
        if !order.window.is_next() && !is_probe && open == Some(owed_in) && order.need < owed {
            wrong = Some(format!("key {key}: {life:?} owes {owed} of {owed_in}: {order:?}"));
        }
        if let Some(wrong) = wrong {
            self.found.add("no-free-budget", moment, || wrong);
        }
    }

    fn lent(&mut self, moment: Moment, life: Life, key: u32, call: &Call, order: &Acquire, grant: &Grant) {
        let first = self.settled.is_first(life, call.id);
        let account = self.account(life, key);
        if !first || grant.granted == 0 {
            return;
        }
        let (ahead, granted) = (order.window.is_next(), grant.granted);
        for (index, limit) in call.rule.limits.iter().enumerate() {
            if limit.algorithm == Algorithm::Gcra {
                continue;
            }
            let at = grant.counters[index].at.0 + if ahead { limit.period.0 } else { 0 };
            let lent = account.lent.entry((index, at)).or_default();
            (lent.most, lent.at) = (lent.most + granted, moment.at);
            // If another acquire has left since, this one may have been given up. And tokens lent before a loss or a
            // reset of which the node has heard are void.
            let void = ahead || account.latest != call.id || account.epoch.1 != grant.epoch;
            lent.sure += if void { 0 } else { granted };
            let windows = account.lent.range((index, 0)..(index + 1, 0));
            if windows.clone().count() > WINDOWS {
                let oldest = windows.min_by_key(|(_, lent)| lent.at).map(|(window, _)| *window);
                oldest.and_then(|oldest| account.lent.remove(&oldest));
            }
        }
        account.owes.1 = account.owes.1.saturating_sub(granted);
    }

    /// A node forgets what it was lent of a window when it is lent tokens of another one; where slots move between
    /// clocks, any answer may name another window, and so may that of a master whose replica has opened one meanwhile with
    /// the first request that it saw.
    fn shown(&mut self, life: Life, key: u32, call: &Call, grant: &Grant) {
        let is_acquire = matches!(call.op, Op::Acquire(_)) || self.leaps;
        let account = self.account(life, key);
        for ((index, at), lent) in &mut account.lent {
            let is_first =
                |limit: &Limit| limit.algorithm == Algorithm::FixedFromFirst && grant.counters[*index].at.0 != 0;
            if !is_acquire && !call.rule.limits.get(*index).is_some_and(is_first) {
                continue;
            }
            if call.rule.limits.get(*index).is_some() && grant.counters[*index].at.0 != *at {
                lent.sure = 0;
            }
        }
    }

    fn returned(&mut self, life: Life, key: u32, call: &Call, amount: u64) {
        let Op::Return { windows, .. } = &call.op else { return };
        let account = self.account(life, key);
        for (index, window) in windows.iter().enumerate().take(call.rule.limits.len()) {
            if let Some(lent) = account.lent.get_mut(&(index, StoredTime::number(*window))) {
                lent.sure = lent.sure.saturating_sub(amount);
            }
        }
    }

    /// Notes a check that was admitted on the share.
    fn alone(&mut self, moment: Moment, request: &Request, rule: &Rule) {
        let (life, doubt) = (self.lives.of(request.node), self.doubt);
        let now = self.now(moment, life, request.key);
        // Near a boundary it may be owed in either window; a refund of it then reduces what is owed at that time.
        self.alone = Some(((life, request.key), 0));
        if rule.is_entitled_from_first() {
            return;
        }
        let Some(end) = windowed(rule).and_then(|period| window(now, doubt, period)) else { return };
        let keeps_time = self.keeps_time;
        let account = self.account(life, request.key);
        // A node without any answer uses its own clock.
        if account.lent.is_empty() && !keeps_time {
            return;
        }
        if account.owes.0 != end {
            account.owes = (end, 0);
        }
        account.owes.1 += request.cost;
        self.alone = Some(((life, request.key), end));
    }

    /// The surplus of a hold that a share admitted is not owed.
    fn hold(&mut self, id: u64, holding: &Holding<'_>) {
        match holding {
            Holding::Kept { .. } => {
                let Some(alone) = self.alone else { return };
                self.holds.insert(id, alone);
            }
            Holding::Asks(request) if request.kind == Kind::Refund => {
                let Some(((life, key), end)) = self.holds.remove(&id) else { return };
                let account = self.account(life, key);
                if account.owes.0 == end || end == 0 {
                    account.owes.1 = account.owes.1.saturating_sub(request.cost);
                }
            }
            _ => {}
        }
    }

    fn forget(&mut self, life: Life, key: u32) {
        let account = self.account(life, key);
        account.buckets.clear();
        account.open = None;
        account.lent.values_mut().for_each(|lent| lent.sure = 0);
        (account.owes, account.order) = ((0, 0), Order::default());
    }
}

/// By how much clocks of masters are set back in all.
fn set_back(plan: &Plan) -> u64 {
    let back = plan.faults.iter().map(|fault| match fault.what {
        What::Set { by, back: true, .. } => by.0,
        _ => 0,
    });
    back.sum()
}

/// The longest period among a rule's limits that are windows. Debts of shares are kept in aligned windows of this
/// length, whatever kind of window the store counts.
fn windowed(rule: &Rule) -> Option<u64> {
    let windows = rule.limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra);
    windows.map(|limit| limit.period.0).max()
}

/// The end of the aligned window that is open by any clock, if it is one.
fn window(now: u64, doubt: u64, period: u64) -> Option<u64> {
    let end = |now: u64| (now / period + 1) * period;
    (end(now - doubt) == end(now + doubt)).then(|| end(now))
}

impl Observer for Claims {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn ignores(&self, topic: Topic) -> bool {
        topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        self.stops.see(seen);
        self.trips.see(moment, seen);
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Crowded { node } => _ = self.crowded.insert(*node),
            Seen::Joined { node, .. } => _ = self.crowded.remove(node),
            Seen::Called { node, key, call, sent } => {
                let life = self.lives.of(*node);
                if let Op::Return { voids: Some(voids), .. } = call.op {
                    self.settle(life, *key, voids.id);
                    self.account(life, *key).voiding = voids.id;
                }
                match (&call.op, self.sent.is_first(life, call.id)) {
                    (Op::Acquire(order), true) => self.order(moment, life, *key, call, order),
                    (Op::Return { amount, held, .. }, true) => {
                        self.returned(life, *key, call, *amount);
                        let account = self.account(life, *key);
                        account.open = account.open.map(|(lent, until)| (lent.min(*held), until));
                        account.credit(amount + held);
                    }
                    (Op::Refund { amount, .. }, true) => self.account(life, *key).credit(*amount),
                    (Op::Peek, true) => {
                        let is_crowded = self.crowded.contains(node);
                        let order = &mut self.account(life, *key).order;
                        order.is_settled |= FORGETS.when(is_crowded || order.sent + REMEMBERED <= moment.at);
                    }
                    _ => {}
                }
                let order = &mut self.account(life, *key).order;
                if order.id == call.id {
                    (order.sendings, order.left, order.sent) = (order.sendings + 1, order.left || *sent, moment.at);
                }
            }
            // A loan first pays for what the share has admitted.
            Seen::PeerHeard { node, incarnation, key, answer: Ok(loan), .. } => {
                let account = self.account((*node, *incarnation), *key);
                account.owes.1 = account.owes.1.saturating_sub(loan.tokens);
                // A loan shows what the peer knows, which may be older, and the node adopts it.
                for (index, owes) in &mut account.buckets {
                    owes.at = owes.at.min(loan.counters[*index].at.0);
                }
            }
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                let life = (*node, *incarnation);
                self.skews.of(*key).get_or_insert(grant.now.0.wrapping_sub(moment.store.0));
                self.settle(life, *key, call.id);
                if matches!(call.op, Op::Return { voids: Some(_), .. }) {
                    self.account(life, *key).voiding = 0;
                }
                if grant.reset || call.op == Op::Reset {
                    self.forget(life, *key);
                }
                if self.leaps {
                    self.heard(moment, life, *key, call, grant);
                }
                let (trip, fresh) = (self.trips.latest(), (grant.now.0, grant.epoch));
                let may_go_back = (self.leaps && grant.reset).then_some(self.doubt);
                let account = self.account(life, *key);
                // If the store's clock was set back, the epoch of a reset is smaller than the one before.
                let is_back = may_go_back.is_some_and(|doubt| fresh.0 + doubt < account.epoch.0);
                account.epoch = if is_back { fresh } else { account.epoch.max(fresh) };
                (account.trip, account.answered) = (trip, moment.at);
                self.shown(life, *key, call, grant);
                self.account(life, *key).shown(call, grant);
                if let Op::Acquire(order) = &call.op {
                    self.lent(moment, life, *key, call, order, grant);
                }
            }
            Seen::Asked(request) if request.kind == Kind::Refund => {
                let life = self.lives.of(request.node);
                self.account(life, request.key).credit(request.cost);
            }
            Seen::Hold(id, holding) => self.hold(*id, holding),
            Seen::Answered { request, rule, decision, store, .. } => {
                *self.skews.of(request.key) = Some(store.0.wrapping_sub(moment.store.0));
                self.alone = None;
                let on_share = decision.source == Source::Share && decision.verdict == Verdict::Allow;
                if request.kind == Kind::Check && on_share {
                    self.alone(moment, request, rule);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Claims {
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
    use rationd::core::limit::MAX_LIMITS;
    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, SECOND, START};
    use crate::span::Span;

    #[test]
    fn saying_nothing_and_saying_too_much_are_seen() {
        for (known, seen) in [(4, 0), (3, 1), (5, 1), (0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            history.called(&mut checker, SECOND / 3, 1, 4);
            history.settled(&mut checker, SECOND / 3, 1, 4);
            history.known = known;
            history.called(&mut checker, SECOND / 2, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{known}: {:?}", checker.violations());
        }
    }

    /// A node was lent tokens of a window that is surely open, of each kind, and claims nothing of it or names another
    /// one.
    #[test]
    fn saying_nothing_of_a_window_of_any_kind_is_seen() {
        for (limit, at) in [("10/1s fixed", SECOND), ("10/1s sliding", 0), ("10/1s fixed from-first", SECOND)] {
            for (known, named, seen) in [(4, START + at, 0), (0, 0, 1), (4, START + at + 7 * SECOND, 1)] {
                let mut history = History::new(limit);
                let mut checker = Claims::new(&history.setting());
                history.opened = at.wrapping_sub(SECOND);
                history.called(&mut checker, SECOND / 3, 1, 4);
                history.settled(&mut checker, SECOND / 3, 1, 4);
                (history.known, history.known_at) = (known, named);
                checker.blind = if known > 0 && seen > 0 { 10 * SECOND } else { 0 };
                history.called(&mut checker, SECOND / 2, 2, 1);
                assert_eq!(checker.violations().len(), seen, "{limit}, {known}: {:?}", checker.violations());
            }
        }
    }

    /// By its owner's clock the window is over. The node has heard that clock with its grant, before it decided
    /// anything.
    #[test]
    fn a_window_is_open_by_the_clock_of_the_keys_owner() {
        for (ahead, seen) in [(0, 1), (SECOND / 2, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            history.called(&mut checker, SECOND / 2, 1, 4);
            history.lent(&mut checker, SECOND / 2, ahead, 1, 4);
            history.called(&mut checker, SECOND * 5 / 8, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{ahead}: {:?}", checker.violations());
        }
    }

    /// An hour after the last answer a node knows the store's clock only to more than a second and a half.
    #[test]
    fn a_window_that_may_be_over_by_clocks_that_drifted_need_not_be_named() {
        for (before, seen) in [(SECOND, 0), (2 * SECOND, 1)] {
            let mut history = History::new("10/1h fixed from-first");
            let mut checker = Claims::new(&history.setting());
            history.opened = 3_599 * SECOND;
            history.called(&mut checker, SECOND / 3, 1, 4);
            history.settled(&mut checker, SECOND / 3, 1, 4);
            history.called(&mut checker, 3_600 * SECOND - before, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{before}: {:?}", checker.violations());
        }
    }

    #[test]
    fn saying_nothing_of_one_of_two_limits_is_seen() {
        for (limits, seen) in [(2, 0), (1, 1)] {
            let mut history = History::of_several(&["10/1s fixed", "20/1s fixed"]);
            let mut checker = Claims::new(&history.setting());
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[..2].fill(Counter { used: 4, prev: 0, at: Timestamp(START + SECOND) });
            history.lent_in(&mut checker, SECOND / 3, counters, 4);
            (history.known, history.known_limits) = (4, limits);
            history.called(&mut checker, SECOND / 2, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{limits}: {:?}", checker.violations());
        }
    }

    /// A node was lent four tokens of a bucket beside the one that a waiter needed, and spends three. It may name a TAT
    /// that is earlier by a tenth of a second for each token that may have gone back since.
    #[test]
    fn saying_too_little_of_a_bucket_is_seen() {
        let full = START + SECOND;
        let (say, tenth) = (|used, at| (used, at), SECOND / 10);
        for ((used, at), holds, back, seen) in [
            (say(3, full), 1, 0, 0),
            (say(3, full + tenth), 1, 0, 0),
            (say(2, full), 1, 0, 1),
            (say(3, full - 1), 1, 0, 1),
            (say(3, full - tenth), 1, 1, 0),
            (say(3, full - 2 * tenth), 1, 1, 1),
            (say(0, 0), 4, 0, 1),
        ] {
            let mut history = History::new("10/1s");
            let mut checker = Claims::new(&history.setting());
            history.called(&mut checker, SECOND / 3, 1, 5);
            history.settled(&mut checker, SECOND / 3, 1, 5);
            if back > 0 {
                let request = history.ask(&mut checker, SECOND / 2);
                let refund = Request { kind: Kind::Refund, cost: back, ..request };
                history.see(&mut checker, SECOND / 2, &Seen::Asked(&refund));
            }
            (history.known, history.known_at) = (used, at);
            history.called_holding(&mut checker, SECOND / 2, 2, [1, holds]);
            assert_eq!(checker.violations().len(), seen, "{used} {at} {holds}: {:?}", checker.violations());
        }
    }

    /// An answer that was given before another one but comes after it shows a TAT that the node does not adopt.
    #[test]
    fn what_an_overtaken_answer_shows_of_a_bucket_need_not_be_said() {
        for (given, seen) in [(SECOND / 3, 1), (SECOND / 5, 0)] {
            let mut history = History::new("10/1s");
            let mut checker = Claims::new(&history.setting());
            history.called(&mut checker, SECOND / 5, 1, 1);
            history.opened = 0_u64.wrapping_sub(SECOND / 10);
            history.settled(&mut checker, SECOND / 4, 0, 1);
            history.opened = 0;
            history.settled(&mut checker, given, 1, 1);
            (history.known, history.known_at) = (1, START + SECOND * 9 / 10);
            history.called(&mut checker, SECOND / 2, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{given}: {:?}", checker.violations());
        }
    }

    #[test]
    fn too_much_of_a_window_that_began_before_it_looked_is_not_judged() {
        for (blind, seen) in [(0, 1), (1, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            checker.blind = blind;
            history.known = 5;
            history.called(&mut checker, SECOND / 2, 1, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn an_acquire_that_was_given_up_and_is_not_said_to_be_void_is_seen() {
        for (says, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            history.asks_under = 1;
            history.called(&mut checker, 1, 1, 4);
            history.called(&mut checker, 2, 1, 4);
            if says {
                history.void_called(&mut checker, 2, 1);
            }
            history.called(&mut checker, 3, 2, 4);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The node peeks at the key in the store before it asks again.
    #[test]
    fn a_key_that_was_forgotten_says_of_no_acquire_that_it_is_void() {
        // A node whose table is too small for its keys may have dropped this one earlier.
        let looked = |at| Some(at + REMEMBERED);
        for (looks, crowded, seen) in
            [(None, false, 1), (looked(2), false, 0), (looked(1), false, 1), (None, true, 1), (looked(1), true, 0)]
        {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            history.asks_under = 1;
            history.called(&mut checker, 1, 1, 4);
            history.called(&mut checker, 2, 1, 4);
            if crowded {
                history.see(&mut checker, 3, &Seen::Crowded { node: 0 });
            }
            if let Some(at) = looks {
                history.looked(&mut checker, at, 7);
            }
            history.called(&mut checker, 3 + REMEMBERED, 2, 4);
            let found = checker.violations().iter().filter(|found| found.what.contains("is void")).count();
            assert_eq!(found, seen, "{looks:?} {crowded}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_debt_that_is_not_asked_for_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Claims::new(&history.setting());
        history.called(&mut checker, 1, 1, 4);
        history.settled(&mut checker, 2, 1, 4);
        history.check(&mut checker, 5 * SECOND / 4, 3, Source::Share, true);
        history.called(&mut checker, 3 * SECOND / 2, 2, 2);
        assert_eq!(checker.violations()[0].invariant, "no-free-budget");
    }

    /// A share admitted three tokens by a clock that is a second ahead. The node drops the key when the window is over by
    /// that clock, or earlier, and then hears a clock by which the window is open still, or again.
    #[test]
    fn a_debt_of_a_window_that_a_clock_behind_opens_again_is_owed_by_who_dropped_it_while_it_was_open() {
        for (dropped, is_seen) in [(9 * SECOND / 4, false), (3 * SECOND / 2, true)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.leaping());
            history.opened = SECOND;
            history.called(&mut checker, SECOND / 3, 1, 4);
            history.lent(&mut checker, SECOND / 3, SECOND, 1, 4);
            history.check(&mut checker, 5 * SECOND / 4, 3, Source::Share, true);
            history.asks_under = 0;
            history.called(&mut checker, dropped, 2, 1);
            history.lent(&mut checker, dropped, 0, 2, 0);
            history.called(&mut checker, 5 * SECOND / 2, 3, 1);
            assert_eq!(!checker.violations().is_empty(), is_seen, "{dropped}: {:?}", checker.violations());
        }
    }

    /// A node claims nothing of what it was lent. The node without room for its keys is this one, another one, or this
    /// one in its previous life.
    #[test]
    fn too_little_is_seen_until_the_node_is_asked_for_more_keys_than_it_has_room_for() {
        let (none, other, own) = (&[][..], &[Seen::Crowded { node: 1 }][..], Seen::Crowded { node: 0 });
        let again = Seen::Joined { node: 0, incarnation: 0 };
        for (before, seen) in [(none, 1), (other, 1), (&[own][..], 0), (&[Seen::Crowded { node: 0 }, again][..], 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.daemon.max_keys = 8;
            let mut checker = Claims::new(&setting);
            before.iter().for_each(|what| history.see(&mut checker, 0, what));
            history.called(&mut checker, 1, 1, 4);
            history.settled(&mut checker, 2, 1, 4);
            history.called(&mut checker, SECOND / 2, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{before:?}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_debt_of_a_key_without_an_answer_is_known_where_clocks_are_right() {
        for (offset, seen) in [(0, 1), (SECOND, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.clocks.offset = Span(offset);
            let mut checker = Claims::new(&setting);
            history.check(&mut checker, 5 * SECOND / 4, 3, Source::Share, true);
            history.called(&mut checker, 3 * SECOND / 2, 1, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_a_hold_gave_back_to_the_share_is_not_owed() {
        for (back, seen) in [(2, 0), (1, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Claims::new(&history.setting());
            history.called(&mut checker, 1, 1, 4);
            history.settled(&mut checker, 2, 1, 4);
            history.check(&mut checker, 5 * SECOND / 4, 3, Source::Share, true);
            let request = history.ask(&mut checker, 5 * SECOND / 4);
            let refund = Request { kind: Kind::Refund, cost: back, ..request };
            for holding in [Holding::Kept { request: &request, ttl: SECOND }, Holding::Asks(&refund)] {
                history.see(&mut checker, 5 * SECOND / 4, &Seen::Hold(request.id, holding));
            }
            history.called(&mut checker, 3 * SECOND / 2, 2, 2);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_that_a_clock_set_back_opens_is_remembered() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Claims::new(&history.setting());
        for window in 0..=WINDOWS as u64 {
            history.opened = (WINDOWS as u64 - window) * SECOND;
            history.called(&mut checker, window, window + 1, 4);
            history.settled(&mut checker, window, window + 1, 4);
        }
        history.known = 4;
        history.called(&mut checker, SECOND / 2, 20, 1);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }
}
