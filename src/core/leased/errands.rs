//! Everything a key asks of the store beside leases: peeks, refunds, resets, and handing tokens back.
//!
//! Sent again under the same id like an acquire; tokens leave the node before the call is sent. What clients ask for
//! waits while its like is under way, and whoever asks for the same meanwhile has it done by the call that leaves
//! next. Everything is done in the order in which it was asked for.

use std::sync::Arc;

use super::key::LeasedKey;
use super::phase::Phase;
use super::timers::set_timer;
use super::view::learn;
use crate::core::answer::Ending;
use crate::core::call::{Call, Grant, Op, StoreError, Voided};
use crate::core::calls::{ATTEMPTS, Flight, Waiter, flight, send_again};
use crate::core::context::Context;
use crate::core::decision::{Reason, Source};
use crate::core::lease::Leftover;
use crate::core::limit::{Algorithm, MAX_COUNT, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::request::{Effect, MAX_LINE, Ticket};
use crate::core::rule::Rule;
use crate::core::time::{Instant, Micros, Timestamp};

/// So many errands are under way at a time, unless an acquire has to come after more of them.
const MOST: usize = 64;

/// Whether as many wait for this key's errands as may.
pub(super) fn is_full(key: &LeasedKey) -> bool {
    key.awaited >= MAX_LINE as u32
}

/// Sends a call that is no acquire, or has it done by one that leaves later; the answer comes with the ticket.
/// `None`: too many wait.
pub(super) fn errand(key: &mut LeasedKey, cx: &mut Context, now: Instant, op: Op, cost: u64) -> Option<Ticket> {
    if is_full(key) {
        return None;
    }
    let ticket = cx.ticket();
    let waiter = Waiter { ticket, cost, deadline: now + cx.settings.timeout, answers: 0 };
    key.awaited += 1;
    match key.errand_for(&op) {
        Some(errand) => errand.waiters.push(waiter),
        None => {
            let call = key.call(now, 0, op);
            key.queued.push_back(Flight { attempts: 0, waiters: vec![waiter], ..flight(call, now) });
        }
    }
    send_queued(key, cx, now);
    set_timer(key, cx, now);
    Some(ticket)
}

impl LeasedKey {
    /// The errand that was asked for last, if it does this, too: then it is made to.
    ///
    /// What a reset or a refund takes back may have been spent since one left. A peek joins one that has left: what
    /// this node did since it knows itself.
    fn errand_for(&mut self, op: &Op) -> Option<&mut Flight> {
        let is_asked = |errand: &&mut Flight| !matches!(errand.call.op, Op::Return { .. });
        let last = match self.queued.back_mut() {
            None => self.errands.iter_mut().rev().find(is_asked),
            last => last,
        };
        let last = last.filter(|errand| Arc::ptr_eq(&errand.call.rule, &self.rule))?;
        last.takes_in(op).then_some(last)
    }
}

impl Flight {
    fn takes_in(&mut self, op: &Op) -> bool {
        let has_left = self.attempts > 0;
        match (&mut self.call.op, op) {
            (Op::Peek, Op::Peek) => !self.is_answered,
            (Op::Reset, Op::Reset) => !has_left,
            (Op::Refund { amount, windows }, Op::Refund { amount: more, windows: others }) => {
                let sum = amount.saturating_add(*more);
                let is_same = !has_left && windows == others && sum <= MAX_COUNT;
                *amount = if is_same { sum } else { *amount };
                is_same
            }
            _ => false,
        }
    }
}

/// Refunds of other windows are no like: they cannot be one call.
fn is_alike(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Refund { windows, .. }, Op::Refund { windows: others, .. }) => windows == others,
        _ => std::mem::discriminant(one) == std::mem::discriminant(other),
    }
}

/// Sends what waits, in order, up to the first whose like is under way.
fn send_queued(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(next) = key.queued.front() {
        let mut under_way = key.errands.iter().filter(|errand| !errand.is_answered);
        let is_one_of_many = under_way.clone().count() >= MOST;
        if is_one_of_many || under_way.any(|errand| is_alike(&errand.call.op, &next.call.op)) {
            return;
        }
        send_next(key, cx, now);
    }
}

/// Sends all that waits: what is sent after it comes after it.
pub(super) fn send_all_queued(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while !key.queued.is_empty() {
        send_next(key, cx, now);
    }
}

fn send_next(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let Some(Flight { call, waiters, .. }) = key.queued.pop_front() else { return };
    let call = Call { id: cx.id(), sent_at: now, ..call };
    cx.effects.push_back(Effect::Call(call.clone()));
    key.errands.push(Flight { waiters, ..flight(call, now) });
}

/// Answers those whose answers from the store had to wait for others', as soon as these have come.
pub(super) fn answer_postponed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.flight.is_some() || key.has_account_under_way() {
        return;
    }
    while let Some(position) = key.errands.iter().position(|errand| errand.is_answered) {
        let Flight { call, waiters, .. } = key.errands.remove(position);
        answer_waiters(key, cx, now, &call, &waiters);
    }
}

/// Answers those who waited for an errand that is done.
pub(super) fn answer_waiters(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, waiters: &[Waiter]) {
    for &Waiter { ticket, cost, .. } in waiters {
        let decision = if exceeds(call, cost) {
            key.answer(now, cost, Ending::deny(Reason::Cost, Source::Policy))
        } else {
            key.peeked(now, cost, Source::Store, cx.fleet)
        };
        cx.effects.push_back(Effect::Reply { ticket, decision });
    }
    key.awaited -= waiters.len() as u32;
}

/// Sends a call under the limits of before, for which nobody waits.
pub(super) fn send_under(key: &mut LeasedKey, cx: &mut Context, now: Instant, rule: Arc<Rule>, op: Op) {
    let call = Call { rule, ..key.call(now, cx.id(), op) };
    cx.effects.push_back(Effect::Call(call.clone()));
    key.errands.push(flight(call, now));
}

/// Takes the outcome of a peek, refund, reset or return; false: it was not under way any more.
pub(super) fn handle_errand(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) -> bool {
    let Ok(position) = key.errands.binary_search_by_key(&call.id, |errand| errand.call.id) else {
        // Nobody waits for it any more, and what it says is news all the same.
        if let Ok(grant) = outcome {
            learn(key, cx, now, call, &grant);
        }
        return false;
    };
    let errand = &mut key.errands[position];
    match outcome {
        Ok(grant) => {
            let errand = key.errands.remove(position);
            if grant.outdated {
                cx.skip_ids();
            }
            learn(key, cx, now, call, &grant);
            note_voided(key, now, &call.op);
            if call.op == Op::Reset && !on(Mutant::ResetKeepsLeases) {
                let voided = key.lease.void() + key.drop_leftovers();
                cx.policy_stats(key.policy).expired += voided;
                key.share = None;
                key.begin_anew();
                key.drop_orders_before(call.id);
            }
            // The store counts what an acquire before it was lent, and this node has yet to hear of that; or what goes
            // back since, and this node counts that no more.
            let is_behind = key.flight.as_ref().is_some_and(|acquire| acquire.call.id < call.id);
            let is_early = is_behind || key.has_account_under_way();
            if is_early && !errand.waiters.is_empty() && !key.is_away(now) {
                key.errands.insert(position, Flight { is_answered: true, ..errand });
            } else {
                answer_waiters(key, cx, now, call, &errand.waiters);
            }
        }
        Err(StoreError::Unknown) if errand.attempts < ATTEMPTS => {
            send_again(errand, cx, now);
            key.errands.sort_by_key(|errand| errand.call.id);
        }
        Err(error) => {
            let errand = key.errands.remove(position);
            end(key, cx, now, &errand, &errand.waiters, Some(&error));
            keep_doubtful(key, now, &errand, &error);
        }
    }
    answer_postponed(key, cx, now);
    send_queued(key, cx, now);
    true
}

/// The store has not been told that an order is void: the next return says so.
fn keep_doubtful(key: &mut LeasedKey, now: Instant, errand: &Flight, error: &StoreError) {
    let Op::Return { voids, .. } = errand.call.op else { return };
    if voids.id == 0 || !key.is_of_these_limits(&errand.call) {
        return;
    }
    key.doubtful = Some(voids);
    match error {
        StoreError::Away { since } => key.lose_store(now, *since),
        StoreError::Unknown => key.lose_store(now, errand.sent),
        StoreError::Busy { .. } | StoreError::Full => {}
    }
}

/// The store knows now that an order is void, so that it can be asked for more as soon as somebody wants it.
fn note_voided(key: &mut LeasedKey, now: Instant, op: &Op) {
    if let (Op::Return { voids, .. }, Phase::Lost { retry_at }) = (op, &mut key.phase)
        && voids.id != 0
    {
        *retry_at = (*retry_at).min(now);
    }
}

/// Answers those whose errands have been under way as long as they may wait. What they asked for may be
/// done yet.
pub(super) fn answer_in_time(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let mut late = Vec::new();
    for errand in &mut key.errands {
        late.extend(errand.take_late(now));
    }
    key.errands.retain(|errand| !(errand.is_answered && errand.waiters.is_empty()));
    // Who asked first is late first.
    for errand in &mut key.queued {
        if errand.waiters.first().is_some_and(|waiter| waiter.deadline > now) {
            break;
        }
        late.extend(errand.take_late(now));
    }
    for (errand, waiters) in late {
        end(key, cx, now, &errand, &waiters, None);
    }
}

impl Flight {
    /// Those who have waited as long as they may, and for what: they wait no more.
    fn take_late(&mut self, now: Instant) -> Option<(Self, Vec<Waiter>)> {
        let late = self.waiters.partition_point(|waiter| waiter.deadline <= now);
        let late: Vec<_> = self.waiters.drain(..late).collect();
        let (call, sent, attempts, is_answered) = (self.call.clone(), self.sent, self.attempts, self.is_answered);
        (!late.is_empty()).then(|| (Self { call, sent, attempts, is_answered, waiters: Vec::new() }, late))
    }
}

/// Answers those who waited for an errand that was not done in time, if at all; or that was, and its answer waits for
/// others'.
fn end(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    errand: &Flight,
    waiters: &[Waiter],
    error: Option<&StoreError>,
) {
    let call = &errand.call;
    if errand.is_answered {
        return answer_waiters(key, cx, now, call, waiters);
    }
    for &Waiter { ticket, cost, .. } in waiters {
        let decision = match (call.op, error) {
            (Op::Peek, _) if exceeds(call, cost) => key.answer(now, cost, Ending::deny(Reason::Cost, Source::Policy)),
            (Op::Peek, _) if key.answered.is_some() || key.is_away(now) => {
                key.peeked(now, cost, Source::Lease, cx.fleet)
            }
            // It has not left: the store is asked too much, and that is no outage.
            (Op::Peek, _) | (_, Some(StoreError::Busy { .. })) => key.turn_away(now, cost, cx.queue()),
            _ => {
                // What has left may have been done, or be done yet: that is not for this node to say.
                let is_undone =
                    errand.attempts == 1 && matches!(error, Some(StoreError::Away { .. } | StoreError::Full));
                let source = if is_undone { Source::Policy } else { Source::Store };
                key.answer(now, cost, Ending::deny(Reason::Store, source).after(Micros::from_secs(1)))
            }
        };
        cx.effects.push_back(Effect::Reply { ticket, decision });
    }
    key.awaited -= waiters.len() as u32;
}

/// A check of more than its limits ever have looks and charges nothing: it is not let pass, whatever limits
/// apply when the answer comes.
fn exceeds(call: &Call, cost: u64) -> bool {
    call.op == Op::Peek && call.rule.limits.iter().any(|limit| cost > limit.capacity())
}

/// Tokens that can no longer be spent here. A window that is still open under another limit of the
/// policy, or a sliding one, which weighs on, gets them back; otherwise they lapse. Of a bucket they wait for the
/// acquire that is under way: the account that they would close has what it lends, too.
pub(super) fn dispose(key: &mut LeasedKey, cx: &mut Context, now: Instant, leftover: Leftover) {
    let limits = &key.rule.limits;
    let matters = limits.len() > 1 || limits[0].algorithm == Algorithm::Sliding;
    if !matters || key.is_away(now) {
        // Nobody will spend them: while their window is known to be open, they are left.
        for (limit, counter) in limits.iter().zip(&mut key.counters) {
            counter.credit_lent(limit, leftover.tokens, leftover.windows[0]);
        }
        cx.policy_stats(key.policy).expired += leftover.tokens;
    } else if key.flight.is_some() && key.has_account() {
        key.leftovers.push(leftover);
    } else {
        let leftover = key.take_leftovers(leftover);
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// The acquire that was under way is not any more: what waited for that goes back.
pub(super) fn dispose_of_leftovers(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(leftover) = key.leftovers.pop() {
        dispose(key, cx, now, leftover);
    }
}

/// Gives up to `amount` unspent tokens back to the store. They leave here before the call is sent.
pub(super) fn give_back(key: &mut LeasedKey, cx: &mut Context, now: Instant, amount: u64) {
    let mut due = amount;
    while due > 0 {
        let Some(leftover) = key.lease.take(now, due) else { break };
        due -= leftover.tokens;
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// Gives back what was lent for a window that has not begun: this node will not be here then, or not know of it.
pub(super) fn give_back_ahead(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(leftover) = key.lease.take_ahead(now) {
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// Tells the store what was spent of a bucket, before it takes that to have been later; and of an order that is
/// void that whatever it was lent goes back.
pub(super) fn report(key: &mut LeasedKey, cx: &mut Context, now: Instant, voids: Voided) {
    let nothing = Leftover { tokens: 0, windows: vec![Timestamp(0); key.rule.limits.len()].into() };
    hand_over(key, cx, now, nothing, voids);
}

fn hand_over(key: &mut LeasedKey, cx: &mut Context, now: Instant, leftover: Leftover, voids: Voided) {
    let mut windows = [Timestamp(0); MAX_LIMITS];
    windows[..leftover.windows.len()].copy_from_slice(&leftover.windows);
    if on(Mutant::ReturnToCurrentWindow) {
        windows.iter_mut().zip(&key.counters).for_each(|(window, counter)| *window = counter.at);
    }
    let ages = key.ages(now, leftover.tokens);
    let order = if voids.id == 0 { key.take_doubtful(now) } else { voids };
    let voids = key.voided_by_now(order, leftover.tokens);
    // The store is told what was spent of buckets: it is charged there, and no more here.
    key.charge(leftover.tokens);
    // What is known of the store counts them as back already: nobody is denied for want of them.
    let known = key.rule.limits.iter().zip(&mut key.counters).zip(&mut key.net).zip(windows);
    for (((limit, counter), net), window) in known.filter(|(((limit, _), _), _)| limit.algorithm != Algorithm::Gcra) {
        if counter.at == window {
            *net = net.saturating_sub(leftover.tokens);
        }
        counter.credit_lent(limit, leftover.tokens, window);
    }
    key.note_returned(leftover.tokens, &windows);
    cx.policy_stats(key.policy).returned += leftover.tokens;
    let op = Op::Return { amount: leftover.tokens, epoch: key.epoch, held: key.held(), ages, windows, voids };
    let call = key.call(now, cx.id(), op);
    cx.effects.push_back(Effect::Call(call.clone()));
    key.errands.push(flight(call, now));
    set_timer(key, cx, now);
}
