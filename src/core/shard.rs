//! The state machine: one shard of the key space. `check`, `handle_*`, `poll_*`.
//!
//! The one invariant for drivers: after every call that takes `&mut self`, drain
//! [`Shard::poll_effect`] until it is empty. What happens to one key is in `slot.rs` (decisions) and
//! `refill.rs` (its traffic with the store).

use std::num::NonZeroU64;
use std::sync::Arc;

use super::answer::{self, Ending, Standing};
use super::call::{Call, Counter, Grant, OPEN, Op, StoreError, Voided};
use super::concurrent::Concurrent;
use super::decision::{Decision, Reason, Source, Verdict};
use super::desk::Desk;
use super::fleet::FleetView;
use super::key::Digest;
use super::limit::MAX_LIMITS;
use super::mutant::{Mutant, on};
use super::policy::{OnStoreLoss, Rule};
use super::slot::{Slot, Waiter};
use super::stats::{PolicyStats, ShardStats};
use super::table::Table;
use super::time::{Instant, Micros, Timestamp};
use super::{errand, refill, upkeep};

/// Checks that may wait for one key; more are turned away as overload.
pub(super) const MAX_LINE: usize = 8_192;

/// A shard's bounds and habits.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most keys held.
    pub max_keys: usize,
    /// Longest wait of a check for the store.
    pub timeout: Micros,
    /// Lease more than what waits, refill in the background, give back.
    pub lease_ahead: bool,
}

/// One question about one key.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The limits that apply.
    pub rule: &'a Arc<Rule>,
    /// `Digest::of(rule.policy, key)`.
    pub digest: Digest,
    /// The key's bytes, kept (within bounds) for listings only.
    pub key: &'a [u8],
    /// Tokens asked for; of a refund, tokens given back.
    pub cost: u64,
    /// Report and charge nothing. A cost of 0 is a peek too.
    pub peek: bool,
}

/// A parked request. Unique within a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The immediate outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Here is the answer.
    Decided(Decision),
    /// The answer comes as `Effect::Reply` with this ticket, by the deadline.
    Parked(Ticket),
}

/// What the driver must do.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a few wait at a time, until the driver drains them")]
pub enum Effect {
    /// Ask the store; report with [`Shard::handle_outcome`].
    Call(Call),
    /// Answer a parked request.
    Reply {
        /// Which one.
        ticket: Ticket,
        /// The answer. For a refund or reset that the store did not take, `reason` is `store`.
        decision: Decision,
    },
}

/// What a shard knows of one key, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The digest.
    pub digest: Digest,
    /// The key's first bytes, when they are still remembered.
    pub key: Option<Box<[u8]>>,
    /// The limits that applied last.
    pub rule: Arc<Rule>,
    /// Tokens held.
    pub held: u64,
    /// What a peek would answer.
    pub decision: Decision,
}

/// One shard. Owns no clock, no IO, no thread, no source of randomness.
#[derive(Debug)]
pub struct Shard {
    pub(super) table: Table<Slot>,
    pub(super) desk: Desk,
    pub(super) concurrent: Concurrent,
}

impl Shard {
    /// An empty shard. `seed` feeds its jitter and its table's secret; call ids grow from
    /// `first_id` in steps of `id_step`, so that the shards of a node never share one; `clock` is
    /// the wall clock at this moment, a first estimate of the store's.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, first_id: u64, id_step: u64, clock: (Instant, Timestamp)) -> Self {
        let secret = u128::from(seed) << 64 | u128::from(seed.rotate_left(29) ^ 0x5bd1_e995_7b93_a1c7);
        let desk = Desk::new(settings, seed, first_id, id_step, clock);
        Self { table: Table::new(settings.max_keys, secret), desk, concurrent: Concurrent::default() }
    }

    /// With a secret of its table's own: jitter is seen from outside, and tells of the seed. To be called while it is
    /// empty.
    #[must_use]
    pub fn with_secret(self, secret: u128) -> Self {
        Self { table: Table::new(self.desk.settings.max_keys, secret), ..self }
    }

    /// Decides, or parks until the store has been asked. Allocates nothing on a key it knows.
    pub fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        if request.rule.is_concurrent() {
            let outcome = self.concurrent.check(&mut self.desk, now, &request);
            return outcome.unwrap_or_else(|| Outcome::Decided(overload(&request, now)));
        }
        let Some((index, slot, desk)) = self.slot(now, &request) else {
            return Outcome::Decided(overload(&request, now));
        };
        if request.peek || request.cost == 0 || exceeds(&request) {
            return peek(index, slot, desk, now, request.cost);
        }
        slot.last_check = now;
        let cost = request.cost;
        let decided = if slot.line.is_empty() || on(Mutant::BargesPastTheLine) {
            slot.decide(now, cost, Source::Lease, desk.fleet)
        } else if slot.is_exhausted(now, cost) {
            slot.tuner.denied();
            Some(slot.deny(now, cost, Source::Lease))
        } else {
            None
        };
        if let Some(decision) = decided {
            desk.count(slot, cost, &decision);
            slot.promise(now, cost, &decision);
            refill::after_decision(index, slot, desk, now, &decision);
            return Outcome::Decided(decision);
        }
        if slot.line.len() >= MAX_LINE {
            let decision = slot.turn_away(now, cost, desk.queue());
            desk.count(slot, cost, &decision);
            return Outcome::Decided(decision);
        }
        if slot.is_overdue(now, desk.patience()) {
            let decision = slot.let_first_pass(now, cost, desk.settings.timeout);
            let decision = decision.unwrap_or_else(|| slot.turn_away(now, cost, desk.queue()));
            desk.count(slot, cost, &decision);
            return Outcome::Decided(decision);
        }
        let ticket = desk.ticket();
        slot.line.push_back(Waiter { ticket, cost, deadline: now + desk.settings.timeout, answers: 0 });
        desk.policy_stats(slot).parked += 1;
        desk.stats.waiting += 1;
        refill::ask_for_line(index, slot, desk, now);
        Outcome::Parked(ticket)
    }

    /// Takes back a cost that was spent: from what is still held as far as it was spent here, the
    /// rest in the store.
    pub fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.take_back(now, request, OPEN)
    }

    /// Ends a slot of a concurrent limit; false when there is no such slot here.
    pub fn release(&mut self, now: Instant, digest: Digest, slot: NonZeroU64) -> bool {
        self.concurrent.release(&mut self.desk, now, digest, slot)
    }

    /// Forgets the key, fleet-wide.
    pub fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        let Some((index, slot, desk)) = self.slot(now, &request) else {
            return Outcome::Decided(overload(&request, now));
        };
        let ticket = errand::errand(index, slot, desk, now, Op::Reset, 0);
        ticket.map_or_else(|| Outcome::Decided(overload(&request, now)), Outcome::Parked)
    }

    /// Takes the outcome of an `Effect::Call`.
    pub fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        if let Op::Occupy(_) = call.op {
            return self.concurrent.handle_outcome(&mut self.desk, now, call, outcome);
        }
        let Some(index) = self.table.find(call.digest.0) else { return };
        let (slot, desk) = (&mut self.table[index], &mut self.desk);
        let was_away = slot.away.is_some();
        settle(index, slot, desk, now);
        match call.op {
            Op::Acquire(_) => refill::handle_acquire(index, slot, desk, now, call, outcome),
            _ => errand::handle_errand(index, slot, desk, now, call, outcome),
        }
        if desk.fleet.is_none() {
            desk.nodes = desk.nodes.max(slot.nodes);
        }
        let is_away = slot.away.is_some();
        desk.stats.degraded += u64::from(is_away);
        desk.stats.degraded -= u64::from(was_away).min(desk.stats.degraded);
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.concurrent.handle_timeout(&mut self.desk, now);
        while let Some((at, index)) = self.desk.due(now) {
            let Some(slot) = self.table.get_mut(index) else { continue };
            if slot.wake != at {
                continue;
            }
            slot.wake = Instant(u64::MAX);
            let was_away = slot.away.is_some();
            settle(index, slot, &mut self.desk, now);
            let keep = upkeep::handle_timer(index, slot, &mut self.desk, now);
            self.desk.stats.degraded += u64::from(slot.away.is_some());
            self.desk.stats.degraded -= u64::from(was_away).min(self.desk.stats.degraded);
            if !keep {
                self.forget(index);
            }
        }
    }

    /// Leaving: hands everything back, lends nothing more. Checks are still answered.
    pub fn handle_drain(&mut self, now: Instant) {
        self.desk.draining = true;
        self.concurrent.handle_drain(&mut self.desk, now);
        let all: Vec<u32> = self.table.iter().map(|(index, _)| index).collect();
        for index in all {
            let slot = &mut self.table[index];
            settle(index, slot, &mut self.desk, now);
            errand::give_back(index, slot, &mut self.desk, now, u64::MAX);
        }
    }

    /// What the driver must do next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.desk.effects.pop_front()
    }

    /// When `handle_timeout` wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.desk.next_timer().into_iter().chain(self.concurrent.next_timer()).min()
    }

    /// Counts of the shard.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        let keys = (self.table.len() + self.concurrent.len()) as u64;
        ShardStats { keys, degraded: self.desk.stats.degraded + self.concurrent.degraded(), ..self.desk.stats }
    }

    /// Counts per policy.
    pub fn policy_stats(&self) -> impl Iterator<Item = (&Arc<str>, &PolicyStats)> {
        self.desk.policies.iter().map(|(name, stats)| (name, stats))
    }

    /// Tokens held, of all keys.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.table.iter().map(|(_, slot)| slot.lease.held() + slot.waiting_to_return()).sum()
    }

    /// Tokens held of one key that can be spent now; `None`: it is not known.
    #[must_use]
    pub fn held_of(&self, now: Instant, digest: Digest) -> Option<u64> {
        self.table.find(digest.0).map(|index| self.table[index].lease.usable_by(now, now))
    }

    /// How each limit of one key stands, as far as is known here; `None`: it is not known.
    #[must_use]
    pub fn standings(&self, now: Instant, digest: Digest) -> Option<Vec<Standing>> {
        self.table.find(digest.0).map(|index| self.table[index].standings(now))
    }

    /// The key's slot, settled at `now`; makes one, if need be in the place of a quiet key.
    pub(super) fn slot(&mut self, now: Instant, request: &Request<'_>) -> Option<(u32, &mut Slot, &mut Desk)> {
        let index = match self.table.find(request.digest.0) {
            Some(index) => index,
            None => self.insert(now, request)?,
        };
        let (slot, desk) = (&mut self.table[index], &mut self.desk);
        if !Arc::ptr_eq(&slot.rule, request.rule) && slot.rule != *request.rule {
            refill::change_limits(index, slot, desk, now, request.rule);
        }
        settle(index, slot, desk, now);
        Some((index, slot, desk))
    }

    fn insert(&mut self, now: Instant, request: &Request<'_>) -> Option<u32> {
        if self.table.len() == self.table.max() {
            self.evict(now)?;
        }
        let policy = self.desk.policy(request.rule);
        let (nodes, clock) = (self.desk.nodes, self.desk.first_clock());
        let slot = Slot::new(request.digest.0, request.key, request.rule, policy, nodes, clock);
        self.table.insert(slot).ok()
    }

    /// Makes room: a quiet key among the next few is forgotten, and what it holds handed back.
    /// A key that lives on its share is kept, or it would get a fresh budget.
    fn evict(&mut self, now: Instant) -> Option<()> {
        const LOOK_AT: u32 = 64;
        for _ in 0..LOOK_AT {
            let Some(index) = self.table.step() else { continue };
            let slot = &mut self.table[index];
            if slot.is_quiet() && (!slot.is_indebted(now) || on(Mutant::EvictsDebtors)) {
                errand::give_back(index, slot, &mut self.desk, now, u64::MAX);
                if slot.has_untold() {
                    errand::report(index, slot, &mut self.desk, now, Voided::default());
                }
                slot.errands.clear();
                self.forget(index);
                return Some(());
            }
        }
        None
    }

    fn forget(&mut self, index: u32) {
        let slot = self.table.remove(index);
        self.desk.talkers.remove(&index);
        self.desk.policy_stats(&slot).expired += slot.lease.held() + slot.waiting_to_return();
        self.desk.stats.evicted += 1;
        self.desk.stats.degraded -= u64::from(slot.away.is_some()).min(self.desk.stats.degraded);
    }
}

/// Drops what has ended and rolls what is known.
pub(super) fn settle(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    slot.roll(now);
    let mut gone = Vec::new();
    // The store has charged what this node did not account for in time, spent or not: it hears what was not.
    let lapsed = now >= slot.lease.until() && slot.lease.held() > 0 && slot.flight.is_none();
    if lapsed {
        errand::give_back(index, slot, desk, now, u64::MAX);
    }
    let voided = slot.lease.settle(now, |leftover| gone.push(leftover));
    desk.policy_stats(slot).expired += voided;
    for leftover in gone {
        errand::dispose(index, slot, desk, now, leftover);
    }
}

fn peek(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, cost: u64) -> Outcome {
    let fresh = slot.answered.is_some_and(|at| now.since(at) < super::batch::refill_interval(&slot.rule));
    if fresh || slot.is_away(now) {
        return Outcome::Decided(peeked(slot, now, cost, Source::Lease, desk.fleet));
    }
    let ticket = errand::errand(index, slot, desk, now, Op::Peek, cost);
    ticket.map_or_else(|| Outcome::Decided(slot.turn_away(now, cost, desk.queue())), Outcome::Parked)
}

/// What a check of `cost` would be answered, charging nothing.
pub(super) fn peeked(slot: &Slot, now: Instant, cost: u64, source: Source, fleet: Option<FleetView>) -> Decision {
    if slot.rule.limits.iter().any(|limit| cost > limit.capacity()) {
        return slot.answer(now, cost, Ending::deny(Reason::Cost, Source::Policy));
    }
    let is_held = cost > 0 && slot.has_matured(now, cost) && slot.lease.usable(now) >= cost;
    if cost > 0 && !is_held && slot.looks_exhausted(now, cost) {
        return slot.deny(now, cost, source);
    }
    if slot.is_away(now) && !is_held {
        return slot.look_alone(now, cost, fleet);
    }
    slot.answer(now, cost, Ending::allow(source))
}

fn exceeds(request: &Request<'_>) -> bool {
    request.rule.limits.iter().any(|limit| request.cost > limit.capacity())
}

/// The ending of a check that a bound of this node turns away, for that long.
pub(super) fn turned_away(rule: &Rule, wait: Micros) -> Ending {
    match rule.on_store_loss {
        OnStoreLoss::Allow => Ending { reason: Reason::Overload, ..Ending::allow(Source::Policy) },
        _ => Ending::deny(Reason::Overload, Source::Policy).after(wait),
    }
}

pub(super) fn overload(request: &Request<'_>, now: Instant) -> Decision {
    let counters = [Counter::default(); MAX_LIMITS];
    let ending = turned_away(request.rule, Micros::from_secs(1));
    let mut decision = answer::decision(request.rule, &counters, Timestamp(now.0), request.cost, ending);
    if decision.verdict == Verdict::Deny {
        decision.remaining = 0;
    }
    decision
}
