//! One key in a shard: what it holds, what it knows of the store, who waits, what is under way.
//!
//! A slot lives only while it is of use: it holds tokens, remembers a denial or a rate of use, owes
//! the store, or somebody waits. A slot that is forgotten costs a call, never a token, because the
//! store keeps the count. Decisions for one key are made here; `shard.rs` drives the slots.

use std::collections::VecDeque;
use std::sync::Arc;

use super::answer::{self, Ending};
use super::batch::Tuner;
use super::call::{Call, Counter, Grant, Known, Op};
use super::decision::{Decision, Reason, Source};
use super::gcra;
use super::lease::{Lease, StoreClock};
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::policy::{OnStoreLoss, Rule};
use super::shard::Ticket;
use super::share::{ShareBook, share_ppm};
use super::table::Keyed;
use super::time::{Instant, Micros, Timestamp};

/// How long after a failure a key whose part of the store is away asks again.
const ASK_AGAIN: Micros = Micros(250_000);

/// A parked check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) cost: u64,
    pub(super) deadline: Instant,
    /// Answers of the store that did not settle it.
    pub(super) answers: u8,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) call: Call,
    /// When it was first sent.
    pub(super) sent: Instant,
    pub(super) attempts: u8,
    /// Sendings whose outcome is not known yet.
    pub(super) unanswered: u8,
    /// When to send it again under the same id, if no answer has come.
    pub(super) again: Instant,
    /// Who waits for it; an acquire serves the line instead.
    pub(super) ticket: Option<Ticket>,
    pub(super) cost: u64,
    pub(super) deadline: Instant,
}

/// The key's part of the store gives no answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    pub(super) ask_again: Instant,
    /// The store is back and has been charged what the share admitted. Until `ask_again` the share
    /// goes on, so that all nodes have charged theirs before any leases what seems to be left.
    pub(super) charged: bool,
}

/// One key.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) digest: u128,
    pub(super) key: Box<[u8]>,
    pub(super) rule: Arc<Rule>,
    /// Index of the policy's counts in the shard.
    pub(super) policy: u32,
    /// As of the store's last answer, rolled to now.
    pub(super) counters: Box<[Counter]>,
    /// Tokens lent to this node and not handed back, in each limit's current window.
    pub(super) net: Box<[u64]>,
    /// The next window, and what was lent of it already.
    pub(super) lent_ahead: (Timestamp, u64),
    pub(super) clock: StoreClock,
    /// When the store last answered.
    pub(super) answered: Option<Instant>,
    pub(super) epoch: u64,
    pub(super) nodes: u32,
    pub(super) confirmed: bool,
    pub(super) lease: Lease,
    /// Tokens of the latest grants that the low-water mark is measured by.
    pub(super) lot: u64,
    pub(super) tuner: Tuner,
    pub(super) line: VecDeque<Waiter>,
    /// The one acquire under way.
    pub(super) flight: Option<Flight>,
    /// An acquire that was given up; its answer may still come.
    pub(super) late: Option<(u64, Instant)>,
    /// Everything else under way: peeks, refunds, resets, returns.
    pub(super) errands: Vec<Flight>,
    pub(super) away: Option<Away>,
    pub(super) share: Option<Box<ShareBook>>,
    /// A denied check after this asks the store again in the background.
    pub(super) probe_at: Instant,
    /// When to lease ahead of the next window; of which window it has been done.
    pub(super) ahead_at: Instant,
    pub(super) ahead_of: Timestamp,
    pub(super) last_check: Instant,
    /// When the shard's timer is set for this slot.
    pub(super) wake: Instant,
}

impl Keyed for Slot {
    fn digest(&self) -> u128 {
        self.digest
    }
}

impl Slot {
    /// A key that nothing is known of.
    pub(super) fn new(digest: u128, key: &[u8], rule: &Arc<Rule>, policy: u32, nodes: u32, clock: StoreClock) -> Self {
        Self {
            digest,
            key: key.into(),
            rule: rule.clone(),
            policy,
            counters: vec![Counter::default(); rule.limits.len()].into(),
            net: vec![0; rule.limits.len()].into(),
            lent_ahead: (Timestamp(0), 0),
            clock,
            answered: None,
            epoch: 0,
            nodes,
            confirmed: true,
            lease: Lease::default(),
            lot: 0,
            tuner: Tuner::default(),
            line: VecDeque::new(),
            flight: None,
            late: None,
            errands: Vec::new(),
            away: None,
            share: None,
            probe_at: Instant(0),
            ahead_at: Instant(u64::MAX),
            ahead_of: Timestamp(0),
            last_check: Instant(0),
            wake: Instant(u64::MAX),
        }
    }

    /// Takes over another rule for the same key: what was spent stays with the store, what is held
    /// stays only where the rule has as many limits of the same kinds.
    pub(super) fn adopt(&mut self, rule: &Arc<Rule>) -> u64 {
        let kinds = |rule: &Rule| rule.limits.iter().map(|limit| limit.algorithm).collect::<Vec<_>>();
        let mut voided = 0;
        if kinds(&self.rule) != kinds(rule) || self.rule.limits != rule.limits {
            voided = self.lease.void();
            self.counters = vec![Counter::default(); rule.limits.len()].into();
            self.net = vec![0; rule.limits.len()].into();
            self.answered = None;
            self.share = None;
        }
        self.rule = rule.clone();
        voided
    }

    /// Rolls what is known to `now`.
    pub(super) fn roll(&mut self, now: Instant) {
        let latest = self.clock.latest(now);
        for ((limit, counter), net) in self.rule.limits.iter().zip(&mut self.counters).zip(&mut self.net) {
            if on(Mutant::DenialOutlivesWindow) && counter.left(limit, latest, Micros::ZERO) == 0 {
                continue;
            }
            let window = counter.at;
            counter.roll(limit, latest, super::limit::MAX_HORIZON);
            if limit.algorithm != Algorithm::Gcra && counter.at != window {
                // The low-water mark of a new window is measured by what was lent ahead of it.
                self.lot = if counter.at == self.lent_ahead.0 { self.lent_ahead.1 } else { 0 };
                *net = if on(Mutant::UsageCarriedOver) { *net + self.lot } else { self.lot };
            }
        }
    }

    /// Decides from what is held and known; `None` when the store must be asked.
    pub(super) fn decide(&mut self, now: Instant, cost: u64, source: Source) -> Option<Decision> {
        if self.lease.spend(&self.rule, now, cost) {
            self.tuner.spent(cost);
            return Some(self.answer(now, cost, Ending::allow(source)));
        }
        if self.is_exhausted(now, cost) {
            self.tuner.denied();
            return Some(self.deny(now, cost, source));
        }
        // The share's windows are over and the store is back: lease again.
        if self.away.is_some_and(|away| away.charged) && !self.owes(now) {
            self.away = None;
        }
        self.away.is_some().then(|| self.decide_alone(now, cost))
    }

    /// The store is known to have less than what is missing, for now.
    pub(super) fn is_exhausted(&self, now: Instant, cost: u64) -> bool {
        if self.answered.is_none() {
            return false;
        }
        let usable = self.lease.usable(&self.rule, now);
        let cost = if on(Mutant::DeniesTheLastToken) { cost + 1 } else { cost };
        let latest = self.clock.latest(now);
        self.rule
            .limits
            .iter()
            .zip(&self.counters)
            .any(|(limit, counter)| counter.left(limit, latest, Micros::ZERO).saturating_add(usable) < cost)
    }

    /// Whether the store is known to have tokens left to lend.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        let latest = self.clock.latest(now);
        self.answered.is_none()
            || self
                .rule
                .limits
                .iter()
                .zip(&self.counters)
                .all(|(limit, counter)| counter.left(limit, latest, super::limit::MAX_HORIZON) > 0)
    }

    pub(super) fn deny(&self, now: Instant, cost: u64, source: Source) -> Decision {
        let wait = match self.lease.matures(&self.rule, cost) {
            Some(ready) => ready.since(now),
            // What is held will not do: the wait is for the store, and counts nothing held.
            None => {
                let earliest = self.clock.earliest(now);
                let all = self.rule.limits.iter().zip(&self.counters);
                all.filter_map(|(limit, counter)| counter.wait(limit, earliest, cost)).max().unwrap_or_default()
            }
        };
        let wait = if on(Mutant::WaitHalved) { Micros(wait.0 / 2) } else { wait };
        self.answer(now, cost, Ending::deny(Reason::Rate, source).after(wait))
    }

    /// Decides while the key's part of the store is away (semantics, §5).
    pub(super) fn decide_alone(&mut self, now: Instant, cost: u64) -> Decision {
        match self.rule.on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Ending::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Share => {
                let (clock, rule) = (self.clock.latest(now), self.rule.clone());
                if let Some(wait) = self.between_windows(now, clock) {
                    return self.answer(now, cost, Ending::deny(Reason::Share, Source::Share).after(wait));
                }
                let book = self.share.get_or_insert_with(|| Box::new(ShareBook::open(&rule, clock)));
                let ending = match book.spend(&rule, share_ppm(self.nodes), clock, cost, &self.net) {
                    Ok(()) => Ending::allow(Source::Share),
                    Err(wait) => Ending::deny(Reason::Share, Source::Share).after(wait),
                };
                let left = book.left(&rule, clock, &self.net);
                Decision { remaining: left, ..self.answer(now, cost, ending) }
            }
        }
    }

    /// The store's clock is known to so much only; where that leaves two windows, neither's share is
    /// spent. At most 2 ms of each window, whatever the drift.
    fn between_windows(&self, now: Instant, latest: Timestamp) -> Option<Micros> {
        let drift = self.answered.map_or(Micros::ZERO, |at| Micros(now.since(at).0 / 5_000));
        let doubt = Micros((latest.since(self.clock.earliest(now)) + drift).0.min(1_000));
        self.rule.limits.iter().find_map(|limit| {
            let window = |at: Timestamp| at.0 / limit.period.0;
            let doubtful = limit.algorithm != Algorithm::Gcra && window(latest - doubt) != window(latest + doubt);
            doubtful.then_some(doubt + doubt)
        })
    }

    /// The store gave no answer: from `since` on this key is on its own.
    pub(super) fn lose_store(&mut self, now: Instant, since: Instant) {
        // Whatever the store says of since when: an answer came later.
        let since = self.clock.latest(self.answered.map_or(since, |at| at.max(since)));
        if self.away.is_none() && self.rule.on_store_loss == OnStoreLoss::Share {
            match &mut self.share {
                Some(book) => book.reopen(&self.rule, since),
                None => self.share = Some(Box::new(ShareBook::open(&self.rule, since))),
            }
        }
        self.away = Some(Away { ask_again: now + ASK_AGAIN, charged: false });
    }

    /// Fills in the numbers of a decision.
    pub(super) fn answer(&self, now: Instant, cost: u64, ending: Ending) -> Decision {
        let mut counters = [Counter::default(); MAX_LIMITS];
        let held = if on(Mutant::CountsNextWindowAsLeft) { self.lease.held() } else { self.lease.current(now) };
        for (index, (limit, counter)) in self.rule.limits.iter().zip(&self.counters).enumerate() {
            counters[index] = *counter;
            // What is known may run ahead of the window whose tokens are being spent.
            if let Some(at) = self.lease.window(index, now).filter(|at| *at != counter.at)
                && limit.algorithm != Algorithm::Gcra
            {
                counters[index] = Counter { used: limit.count, prev: 0, at };
            }
            counters[index].credit(limit, super::limit::MAX_HORIZON, held);
        }
        answer::decision(&self.rule, &counters[..self.rule.limits.len()], self.clock.earliest(now), cost, ending)
    }

    /// Takes note of an answer: counters, epoch, clock.
    pub(super) fn learn(&mut self, now: Instant, sent: Instant, grant: &Grant) {
        self.clock = StoreClock::new(sent, now, grant.now);
        self.answered = Some(now);
        self.nodes = grant.nodes.max(1);
        self.confirmed = grant.confirmed || on(Mutant::UnconfirmedAsConfirmed);
        for (index, limit) in self.rule.limits.iter().enumerate() {
            let fresh = grant.counters[index];
            if limit.algorithm != Algorithm::Gcra && self.counters[index].at != fresh.at {
                self.net[index] = 0;
            }
            // A replayed grant shows the TAT of its time; what is known may be later.
            let stale = grant.replayed && limit.algorithm == Algorithm::Gcra && fresh.at < self.counters[index].at;
            if !stale {
                self.counters[index] = fresh;
            }
        }
        if grant.epoch != 0 {
            self.epoch = grant.epoch;
        }
        self.roll(now);
    }

    /// What this node knows to be spent or held of each limit.
    pub(super) fn known(&self) -> [Known; MAX_LIMITS] {
        let mut known = [Known::default(); MAX_LIMITS];
        if self.answered.is_some() && !on(Mutant::KnownNotSent) {
            for (index, (counter, net)) in self.counters.iter().zip(&self.net).enumerate() {
                known[index] = Known { used: *net, at: counter.at };
            }
        }
        known
    }

    /// Most tokens worth asking for: this node's part of the smallest limit.
    pub(super) fn ceiling(&self) -> u32 {
        let smallest = self.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
        u32::try_from(smallest.div_ceil(u64::from(self.nodes.max(1)))).unwrap_or(u32::MAX)
    }

    /// The call for `op`, to be sent at `now`.
    pub(super) fn call(&self, now: Instant, id: u64, op: Op) -> Call {
        Call { id, digest: super::key::Digest(self.digest), rule: self.rule.clone(), op, sent_at: now }
    }

    /// Nothing would be lost by forgetting this key, but for a rate of use and denials.
    pub(super) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.flight.is_none() && self.errands.is_empty()
    }

    /// Whether leasing more than what waits can pay: under a slow gcra limit tokens would lapse
    /// before they are spent, and make liars of the waits that clients were told.
    pub(super) fn may_lease_ahead(&self) -> bool {
        const FEW: u64 = 32;
        let slow = |limit: &Limit| gcra::tokens_in(limit, Micros(500_000)) < FEW;
        !self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra && slow(limit))
    }

    /// What the store may have been charged beyond what is held here: more is no cost to take back.
    pub(super) fn refundable(&self, now: Instant) -> u64 {
        if self.answered.is_none() {
            return u64::MAX;
        }
        let (latest, held) = (self.clock.latest(now), self.lease.current(now));
        let charged = self.rule.limits.iter().zip(&self.counters).map(|(limit, counter)| {
            limit.capacity().saturating_sub(counter.left(limit, latest, Micros::ZERO)).saturating_sub(held)
        });
        charged.max().unwrap_or(0)
    }

    /// A share was spent in a window that is still open: forgotten, it would be spent again.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.share.as_ref().is_some_and(|book| book.is_open(&self.rule, self.clock.latest(now)))
    }

    /// Nothing was charged to this window's share before the check just decided. True once a window.
    pub(super) fn begins_share(&mut self, now: Instant) -> bool {
        let clock = self.clock.latest(now);
        let rule = &self.rule;
        self.share.as_mut().is_some_and(|book| book.begins(rule, clock))
    }

    /// What the share admitted and the store has not been charged for.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        self.share.as_ref().map_or(0, |book| book.debt(&self.rule, self.clock.latest(now)))
    }
}
