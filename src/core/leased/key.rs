//! One key in a shard: what it holds, what it knows of the store, who waits, what is under way.
//!
//! A key lives only while it is of use: it holds tokens, remembers a denial or a rate of use, owes
//! the store, or somebody waits. A key that is forgotten costs a call, never a token, because the
//! store keeps the count. Decisions for one key are made here; `shard.rs` drives the keys.

use std::collections::VecDeque;
use std::sync::Arc;

use super::phase::Phase;
use crate::core::answer::{self, Ending, Standing, turned_away};
use crate::core::batch::Tuner;
use crate::core::call::{Counter, Op, Voided};
use crate::core::calls::{Flight, Waiter};
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::key::Digest;
use crate::core::lease::{Lease, Leftover};
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::page::name;
use crate::core::request::KeyInfo;
use crate::core::rule::Rule;
use crate::core::share::ShareBook;
use crate::core::store_clock::StoreClock;
use crate::core::table::Keyed;
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::History;
use crate::core::window;

/// A window that is over as far as is known, and is not after all when an answer says so: a call that took long
/// leaves the store's clock in doubt by as much.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turned {
    /// `Counter::at`; 0: none.
    pub(super) window: Timestamp,
    /// What this node was lent of it.
    pub(super) lent: u64,
}

impl Turned {
    /// Takes note that so much was lent of the window that ends then, though it seems to be over.
    pub(super) fn note_lent(&mut self, at: Timestamp, tokens: u64) {
        if self.window == at {
            self.lent = self.lent.saturating_add(tokens);
        }
    }
}

/// Tokens that start so soon are worth waiting for.
pub(super) const PATIENCE: Micros = Micros(10_000);

/// What others hold of a bucket may have come back: after so long it denies nobody.
const STALE: Micros = Micros(1_000_000);

/// One key.
#[derive(Debug)]
pub(in crate::core) struct LeasedKey {
    pub(super) digest: u128,
    /// Its place in the shard's table.
    pub(in crate::core) index: u32,
    /// As much of it as listings show: the digest decides.
    pub(super) name: Box<[u8]>,
    pub(super) rule: Arc<Rule>,
    /// Index of the policy's counts in the shard.
    pub(super) policy: u32,
    /// As of the store's last answer, rolled to now.
    pub(super) counters: Box<[Counter]>,
    /// Tokens lent to this node and not handed back, in each limit's current window; of a bucket,
    /// those that the store does not know to be spent.
    pub(super) net: Box<[u64]>,
    /// Per limit, the window before.
    pub(super) turned: Box<[Turned]>,
    /// The next window, and what was lent of it already.
    pub(super) lent_ahead: (Timestamp, u64),
    pub(super) clock: StoreClock,
    /// How long the latest answer was under way.
    pub(super) trip: Micros,
    /// When the store last answered.
    pub(super) answered: Option<Instant>,
    /// The store's time in the latest answer that counts.
    pub(super) heard: Timestamp,
    pub(super) epoch: u64,
    /// The id of the last acquire or return that was answered: what is known of this node's account is as of then.
    pub(super) accounted: u64,
    pub(super) nodes: u32,
    pub(super) confirmed: bool,
    pub(super) lease: Lease,
    /// Some of what is held of a bucket has yet to trickle in: this node is alone with the key.
    pub(super) runs_ahead: bool,
    /// Tokens of the latest grants that the low-water mark is measured by.
    pub(super) lot: u64,
    pub(super) tuner: Tuner,
    pub(super) line: VecDeque<Waiter>,
    /// The one acquire under way.
    pub(super) flight: Option<Flight>,
    /// An acquire that was given up without an answer. Nobody knows whether the store executed it; the next return
    /// says that it is void.
    pub(super) doubtful: Option<Voided>,
    /// When that was first sent.
    pub(super) doubted: Instant,
    /// What an acquire under way bars from going back: see `errands::dispose`.
    pub(super) leftovers: Vec<Leftover>,
    /// Everything else under way, by id: peeks, refunds, resets, returns.
    pub(super) errands: Vec<Flight>,
    /// Those that have yet to leave: see `errands.rs`.
    pub(super) queued: VecDeque<Flight>,
    /// How many wait for either.
    pub(super) awaited: u32,
    /// How its part of the store is doing.
    pub(super) phase: Phase,
    pub(super) share: Option<Box<ShareBook>>,
    /// Per limit, what this node and its peers did in the latest windows; only in a fleet.
    pub(super) usage: Option<Box<[History]>>,
    /// The store has lost what it knew of a window at hand: what peers tell of it binds.
    pub(super) is_bound: bool,
    /// Peers that tell of such a loss are not obeyed before; the epoch that one told while the store was asked.
    pub(super) recall_at: Instant,
    pub(super) recalled: Option<u64>,
    /// Answers in a row that brought nothing.
    pub(super) fruitless: u8,
    /// A denied check after this asks the store again in the background.
    pub(super) probe_at: Instant,
    /// Tokens trickle in, and the store had few: it is not asked before, so that there are some.
    pub(super) paced_until: Instant,
    /// Tokens that a check was let pass with before the store had answered about the key at all: the next
    /// grant pays for them.
    pub(super) credit: u64,
    /// When they were.
    pub(super) credited: Instant,
    /// Tokens of a bucket that were spent here and not taken back: so many at most are kept when they are refunded.
    pub(super) spent_here: u64,
    /// When what the store has charged for somebody who did not get it goes back.
    pub(super) unclaimed_until: Instant,
    /// The earliest time that a denied client was told, and the largest cost it may come with.
    pub(super) promise: Option<(Instant, u64)>,
    /// When to lease ahead of the next window; of which window it has been done.
    pub(super) ahead_at: Instant,
    pub(super) ahead_of: Timestamp,
    pub(super) last_check: Instant,
    /// Per bucket, when it would be full again if nobody but this node spent of it: where the spending that
    /// the store has not been told of leads.
    pub(super) filled: Box<[Instant]>,
    /// When the shard's timer is set for this key.
    pub(super) wake: Instant,
}

impl Keyed for LeasedKey {
    fn digest(&self) -> u128 {
        self.digest
    }
}

impl LeasedKey {
    /// A key that nothing is known of.
    pub(in crate::core) fn new(
        digest: u128,
        key: &[u8],
        rule: &Arc<Rule>,
        policy: u32,
        nodes: u32,
        clock: StoreClock,
    ) -> Self {
        Self {
            digest,
            index: 0,
            name: name(key),
            rule: rule.clone(),
            policy,
            counters: vec![Counter::default(); rule.limits.len()].into(),
            net: vec![0; rule.limits.len()].into(),
            turned: vec![Turned::default(); rule.limits.len()].into(),
            lent_ahead: (Timestamp(0), 0),
            clock,
            trip: Micros::ZERO,
            answered: None,
            heard: Timestamp(0),
            epoch: 0,
            accounted: 0,
            nodes,
            confirmed: true,
            lease: Lease::default(),
            runs_ahead: false,
            lot: 0,
            tuner: Tuner::default(),
            line: VecDeque::new(),
            flight: None,
            doubtful: None,
            doubted: Instant(0),
            leftovers: Vec::new(),
            errands: Vec::new(),
            queued: VecDeque::new(),
            awaited: 0,
            phase: Phase::Connected,
            share: None,
            usage: None,
            is_bound: false,
            recall_at: Instant(0),
            recalled: None,
            fruitless: 0,
            probe_at: Instant(0),
            paced_until: Instant(0),
            credit: 0,
            credited: Instant(0),
            spent_here: 0,
            unclaimed_until: Instant(u64::MAX),
            promise: None,
            ahead_at: Instant(u64::MAX),
            ahead_of: Timestamp(0),
            last_check: Instant(0),
            filled: vec![Instant(0); rule.limits.len()].into(),
            wake: Instant(u64::MAX),
        }
    }

    /// Takes over another rule for the same key: what was spent stays with the store, what is held
    /// stays only where the rule has as many limits of the same kinds.
    pub(super) fn adopt(&mut self, now: Instant, rule: &Arc<Rule>) -> u64 {
        let kinds = |rule: &Rule| rule.limits.iter().map(|limit| limit.algorithm).collect::<Vec<_>>();
        let mut voided = 0;
        if kinds(&self.rule) != kinds(rule) || self.rule.limits != rule.limits {
            voided = self.lease.void() + self.drop_leftovers();
            self.counters = vec![Counter::default(); rule.limits.len()].into();
            self.net = vec![0; rule.limits.len()].into();
            self.turned = vec![Turned::default(); rule.limits.len()].into();
            self.filled = vec![Instant(0); rule.limits.len()].into();
            self.forget_lent();
            self.answered = None;
            let latest = self.clock.latest(now);
            self.share = self.share.take().map(|book| Box::new(book.under(&self.rule, rule, latest)));
            self.usage = None;
        }
        self.rule = rule.clone();
        voided
    }

    /// Rolls what is known to `now`.
    pub(super) fn roll(&mut self, now: Instant) {
        // This node's clock may be slower: the store's is not back where it was already.
        let latest = self.clock.latest(now).max(self.heard);
        if self.usage.is_some() {
            self.note_windows_that_turn(latest);
        }
        let known = self.counters.iter_mut().zip(&mut self.net).zip(&mut self.turned);
        for (limit, ((counter, net), turned)) in self.rule.limits.iter().zip(known) {
            if on(Mutant::DenialOutlivesWindow) && counter.left(limit, latest) == 0 {
                continue;
            }
            let window = counter.at;
            counter.roll(limit, latest);
            if limit.algorithm != Algorithm::Gcra && counter.at != window {
                *turned = Turned { window, lent: *net };
                // The low-water mark of a new window is measured by what was lent ahead of it.
                self.lot = if counter.at == self.lent_ahead.0 { self.lent_ahead.1 } else { 0 };
                *net = if on(Mutant::UsageCarriedOver) { *net + self.lot } else { self.lot };
            }
        }
    }

    /// Decides from what is held and known; `None` when the store must be asked.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        cost: u64,
        source: Source,
        fleet: Option<FleetView>,
    ) -> Option<Decision> {
        if self.is_bound
            && let Some(denied) = self.deny_by_fleet(now, cost)
        {
            return Some(denied);
        }
        if self.has_matured(now, cost) && self.lease.spend(now, cost) {
            self.tuner.spent(cost);
            self.note_spent(now, cost);
            return Some(self.answer(now, cost, Ending::allow(source)));
        }
        if self.is_exhausted(now, cost) {
            self.tuner.denied();
            return Some(self.deny(now, cost, source));
        }
        // The share's windows are over and the store is back: lease again.
        // Until all nodes surely know, each keeps to its share in the next window, too.
        self.phase = match self.phase {
            Phase::Repaid { retry_at, until } if !self.owes(now) && now < retry_at => {
                Phase::Repaying { retry_at, until }
            }
            Phase::Repaid { .. } if !self.owes(now) => Phase::Connected,
            Phase::Restoring { until } if now >= until && !self.owes(now) => Phase::Connected,
            phase => phase,
        };
        if self.is_away(now) {
            return Some(self.decide_alone(now, cost, fleet));
        }
        let denied = self.deny_by_fleet(now, cost)?;
        self.tuner.denied();
        Some(denied)
    }

    /// The store is known to have less than what is missing, for now.
    pub(super) fn is_exhausted(&self, now: Instant, cost: u64) -> bool {
        // What goes back to the store will be there in a moment.
        self.lacks(now, cost, self.returning())
    }

    /// The same for a look, which the store is not asked for: what is under way back to the store the counters have
    /// already, unless the answer to an acquire may bring older ones.
    pub(super) fn looks_exhausted(&self, now: Instant, cost: u64) -> bool {
        let returning = if self.flight.is_some() { self.returning() } else { self.waiting_to_return() };
        self.lacks(now, cost, returning)
    }

    fn lacks(&self, now: Instant, cost: u64, returning: u64) -> bool {
        if self.answered.is_none() {
            return false;
        }
        // What was lent ahead of this window is about to start.
        let begun = self.counters.first().is_some_and(|counter| counter.at == self.lent_ahead.0);
        let usable = self.lease.usable_by(now, if begun { now + PATIENCE } else { now });
        let usable = usable.saturating_add(returning);
        let cost = if on(Mutant::DeniesTheLastToken) { cost + 1 } else { cost };
        if now < self.paced_until {
            return usable < cost;
        }
        let (latest, mut counters) = (self.clock.latest(now), self.charged());
        if self.answered.is_some_and(|at| now.since(at) >= STALE) {
            self.doubt_lent(&mut counters);
        }
        self.rule.limits.iter().zip(&counters).any(|(limit, counter)| counter.left_beside(limit, latest, usable) < cost)
    }

    /// So much of what is held of buckets has trickled in, as far as that is not certain.
    pub(super) fn has_matured(&self, now: Instant, cost: u64) -> bool {
        if !self.runs_ahead || on(Mutant::SpendsBeforeItComes) {
            return true;
        }
        let (earliest, held, counters) = (self.clock.surely(now), self.lease.held(), self.charged());
        let mut buckets =
            self.rule.limits.iter().zip(&counters).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.all(|(limit, counter)| counter.left_beside(limit, earliest, held) >= cost)
    }

    /// When what is held will have trickled in for those in line, if all that they want is held: the store has no other.
    pub(super) fn matures(&self, now: Instant) -> Option<Instant> {
        let waiting = self.line.iter().map(|waiter| waiter.cost).fold(0, u64::saturating_add);
        let front = self.line.front().filter(|_| self.runs_ahead && self.lease.usable(now) >= waiting)?;
        let (earliest, held, counters) = (self.clock.surely(now), self.lease.held(), self.charged());
        let buckets = self.rule.limits.iter().zip(counters);
        let waits = buckets.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(limit, mut counter)| {
            counter.release(limit, held);
            counter.wait(limit, earliest, front.cost)
        });
        let wait = waits.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(now + wait).filter(|_| wait <= PATIENCE)
    }

    /// Whether the store lent more of a bucket than was there: what comes next it lends to nobody else.
    pub(super) fn note_ahead(&mut self, now: Instant) {
        let earliest = self.clock.earliest(now);
        let mut buckets =
            self.rule.limits.iter().zip(&self.counters).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        self.runs_ahead = buckets.any(|(limit, counter)| gcra::left(limit, counter.at, earliest) < counter.used);
    }

    /// Tokens on their way back to the store, or about to be.
    fn returning(&self) -> u64 {
        let amount = |errand: &Flight| if let Op::Return { amount, .. } = errand.call.op { amount } else { 0 };
        self.errands.iter().map(amount).sum::<u64>().saturating_add(self.waiting_to_return())
    }

    /// An acquire has brought nothing and has overtaken tokens that go back: the next one leaves when those are there.
    pub(super) fn awaits_return(&self) -> bool {
        self.fruitless > 0 && self.returning() > self.waiting_to_return()
    }

    /// Whether the store is known to have tokens left to lend.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        let latest = self.clock.latest(now);
        let counters = self.charged();
        // To a node that is alone with the key it lends what comes soon, too.
        let more = |limit: &Limit| if self.nodes == 1 { gcra::coming(limit) } else { 0 };
        let has_some = |(limit, counter): (&Limit, &Counter)| match limit.algorithm {
            Algorithm::Gcra => gcra::left(limit, counter.at, latest).saturating_add(more(limit)) > counter.used,
            _ => counter.left(limit, latest) > 0,
        };
        self.answered.is_none() || self.rule.limits.iter().zip(&counters).all(has_some)
    }

    /// Whether the store is known to have enough left for a check of the usual size at each node.
    pub(super) fn has_left_for_all(&self, now: Instant) -> bool {
        let (latest, each) = (self.clock.latest(now), self.tuner.mean_cost().max(1));
        let few = each.saturating_mul(u64::from(self.nodes));
        let counters = self.charged();
        self.rule.limits.iter().zip(&counters).all(|(limit, counter)| counter.left(limit, latest) >= few)
    }

    /// Less than three tenths of a window's limit will be left when it ends, if it goes on as it did
    /// until the store's last answer.
    pub(super) fn is_pressed_by(&self, now: Instant) -> bool {
        let Some(answered) = self.answered.map(|at| self.clock.latest(at)) else { return false };
        let latest = self.clock.latest(now);
        self.rule.limits.iter().zip(&self.counters).any(|(limit, counter)| {
            let (start, capacity) = (window::aligned_start(limit, latest), u128::from(limit.capacity()));
            let passed = u128::from(answered.since(start).0);
            let used = capacity.saturating_sub(counter.left(limit, latest).into());
            limit.algorithm == Algorithm::Fixed && used * u128::from(limit.period.0) * 10 > capacity * passed * 7
        })
    }

    /// Less than three tenths of a limit are left, as far as is known; of a bucket, which fills up again, also less
    /// than a few checks of each node.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        let latest = self.clock.latest(now);
        let few_of_each = self.tuner.mean_cost().saturating_mul(2 * u64::from(self.nodes.max(1)));
        self.rule.limits.iter().zip(&self.counters).any(|(limit, counter)| {
            let left = counter.left(limit, latest);
            let tenths = left.saturating_mul(10) < limit.capacity().saturating_mul(3);
            tenths && (limit.algorithm != Algorithm::Gcra || left < few_of_each)
        })
    }

    pub(super) fn deny(&self, now: Instant, cost: u64, source: Source) -> Decision {
        let wait = match self.lease.ready(cost).filter(|_| !self.runs_ahead) {
            Some(ready) => ready.since(now),
            // What is held will not do, or has yet to come. It stays here, and the store has to have the rest.
            None => {
                let (earliest, mut counters) = (self.clock.earliest(now), self.charged());
                let held = self.lease.current(now);
                for (index, (limit, counter)) in self.rule.limits.iter().zip(&mut counters).enumerate() {
                    counter.release(limit, held);
                    if limit.algorithm == Algorithm::Fixed {
                        let ahead = self.lease.held_of(index, counter.at + limit.period);
                        counter.prev = counter.prev.saturating_sub(ahead);
                    }
                }
                let all = self.rule.limits.iter().zip(&counters);
                let wait = all.filter_map(|(limit, counter)| counter.wait(limit, earliest, cost)).max();
                wait.unwrap_or_default() + self.doubt(now, wait.unwrap_or_default())
            }
        };
        let is_paced = now < self.paced_until;
        let wait = wait.max(self.paced_until.since(now));
        let wait = if on(Mutant::WaitHalved) { Micros(wait.0 / 2) } else { wait };
        let decision = self.answer(now, cost, Ending::deny(Reason::Rate, source).after(wait));
        // What has trickled in since the store was asked is as much the others'.
        let most = if is_paced { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// Denies a waiter: whenever the store was asked for it, it had less, and what came back meanwhile
    /// went to others.
    pub(super) fn deny_in_line(&self, now: Instant, cost: u64) -> Decision {
        let decision = self.deny(now, cost, Source::Store);
        let remaining = decision.remaining.min(cost.saturating_sub(1));
        let retry_after = decision.retry_after.map(|wait| wait.max(self.trip));
        Decision { remaining, retry_after, ..decision }
    }

    /// The answer that this key waits for should have come long ago, as calls go now: nobody waits for it any
    /// more, since most would wait in vain. It serves who asks after it has come.
    pub(super) fn is_overdue(&self, now: Instant, patience: Micros) -> bool {
        self.flight.as_ref().is_some_and(|flight| now.since(flight.sent) > patience)
    }

    /// Turns a check away because the store has not answered in time. It may be slow, or asked too much: that
    /// is no outage, and nothing is charged.
    pub(super) fn turn_away(&self, now: Instant, cost: u64, wait: Micros) -> Decision {
        let decision = self.answer(now, cost, turned_away(&self.rule, wait));
        let most = if decision.verdict == Verdict::Deny { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// Fills in the numbers of a decision.
    pub(super) fn answer(&self, now: Instant, cost: u64, ending: Ending) -> Decision {
        let earliest = self.clock.earliest(now);
        if let [_] = &self.rule.limits[..] {
            // Most rules have one limit, and every check comes by here: no array of eight is filled for it.
            let shown = self.shown_of(0, now, self.unspent(), self.releasable(now));
            return answer::decision(&self.rule, &[shown], earliest, cost, ending);
        }
        answer::decision(&self.rule, &self.shown(now)[..self.rule.limits.len()], earliest, cost, ending)
    }

    /// How each limit stands, as far as is known.
    pub(in crate::core) fn standings(&self, now: Instant) -> Vec<Standing> {
        answer::standings(&self.rule, &self.shown(now), self.clock.earliest(now))
    }

    /// The counters less what this node holds, and with what passed on credit.
    fn shown(&self, now: Instant) -> [Counter; MAX_LIMITS] {
        let (held, releasable) = (self.unspent(), self.releasable(now));
        let mut counters = [Counter::default(); MAX_LIMITS];
        for (index, counter) in counters.iter_mut().enumerate().take(self.counters.len()) {
            *counter = self.shown_of(index, now, held, releasable);
        }
        counters
    }

    /// One of them, where so much is held, and so much of that is of windows at hand.
    fn shown_of(&self, index: usize, now: Instant, held: u64, releasable: u64) -> Counter {
        let limit = &self.rule.limits[index];
        let mut counter = self.charged_of(index, held);
        if limit.algorithm == Algorithm::Gcra {
            counter.release(limit, releasable);
            if self.credit > 0 {
                counter.debit(limit, self.clock.earliest(self.credited), self.credit);
            }
            return counter;
        }
        // What is known may run ahead of the window whose tokens are being spent.
        if let Some(at) = self.lease.window(index, now).filter(|at| *at != counter.at) {
            counter = Counter { used: limit.count, prev: 0, at };
        }
        counter.release(limit, releasable);
        counter
    }

    /// What is held of windows at hand, and so counts as left.
    fn releasable(&self, now: Instant) -> u64 {
        if on(Mutant::CountsNextWindowAsLeft) { self.lease.held() } else { self.lease.current(now) }
    }

    /// What a check of `cost` would be answered, charging nothing.
    pub(in crate::core) fn peeked(
        &self,
        now: Instant,
        cost: u64,
        source: Source,
        fleet: Option<FleetView>,
    ) -> Decision {
        if self.rule.limits.iter().any(|limit| cost > limit.capacity()) {
            return self.answer(now, cost, Ending::deny(Reason::Cost, Source::Policy));
        }
        let is_held = cost > 0 && self.has_matured(now, cost) && self.lease.usable(now) >= cost;
        if cost > 0 && !is_held && self.looks_exhausted(now, cost) {
            return self.deny(now, cost, source);
        }
        if self.is_away(now) && !is_held {
            return self.look_alone(now, cost, fleet);
        }
        self.answer(now, cost, Ending::allow(source))
    }

    /// Whether these are the limits that apply to it.
    pub(in crate::core) fn has_rule(&self, rule: &Rule) -> bool {
        *self.rule == *rule
    }

    /// Whether this is the timer that it waits for: then it waits for none any more.
    pub(in crate::core) fn take_timer(&mut self, at: Instant) -> bool {
        let is_it = self.wake == at;
        self.wake = if is_it { Instant(u64::MAX) } else { self.wake };
        is_it
    }

    /// Tokens that were lent to this node and not spent, whether they can be spent now or not.
    pub(in crate::core) fn all_held(&self) -> u64 {
        self.lease.held() + self.waiting_to_return()
    }

    /// Tokens that can be spent now.
    pub(in crate::core) fn usable(&self, now: Instant) -> u64 {
        self.lease.usable_by(now, now)
    }

    /// As listings show it.
    pub(in crate::core) fn listed(&self, now: Instant) -> KeyInfo {
        KeyInfo {
            digest: Digest(self.digest),
            key: Some(self.name.clone()),
            rule: self.rule.clone(),
            held: self.lease.held(),
            decision: self.answer(now, 0, Ending::allow(Source::Lease)),
        }
    }

    /// Nothing would be lost by forgetting this key, but for a rate of use and denials.
    pub(in crate::core) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.flight.is_none() && self.errands.is_empty() && self.queued.is_empty()
    }
}
