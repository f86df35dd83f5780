//! Everything a key asks of the store beside leases: peeks, refunds, resets, and handing tokens back.
//!
//! Sent again under the same id like an acquire; tokens leave the node before the call is sent.

use std::sync::Arc;

use super::answer::Ending;
use super::call::{Call, Grant, Op, StoreError, Voided};
use super::decision::{Reason, Source};
use super::desk::Desk;
use super::learn::learn;
use super::lease::Leftover;
use super::limit::{Algorithm, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::policy::Rule;
use super::refill::serve_line;
use super::shard::{Effect, Ticket, peeked};
use super::slot::{Flight, Slot};
use super::time::{Instant, Micros, Timestamp};
use super::upkeep::{ATTEMPTS, flight, send_again, set_timer};

/// Sends a call that is no acquire; its answer comes with the ticket.
pub(super) fn errand(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, op: Op, cost: u64) -> Ticket {
    let ticket = desk.ticket();
    send_errand(slot, desk, now, op, Some(ticket), cost);
    set_timer(index, slot, desk, now);
    ticket
}

fn send_errand(slot: &mut Slot, desk: &mut Desk, now: Instant, op: Op, ticket: Option<Ticket>, cost: u64) {
    let call = slot.call(now, desk.id(), op);
    desk.effects.push_back(Effect::Call(call.clone()));
    slot.errands.push(flight(call, now, desk.settings.timeout, ticket, cost));
}

/// Answers those whose answers from the store had to wait for others', as soon as these have come.
pub(super) fn answer_postponed(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    if slot.flight.is_some() || slot.has_account_under_way() {
        return;
    }
    let is_postponed = |errand: &Flight| errand.is_answered;
    while let Some(position) = slot.errands.iter().position(is_postponed) {
        let errand = slot.errands.swap_remove(position);
        answer_errand(slot, desk, now, &errand);
    }
}

fn answer_errand(slot: &Slot, desk: &mut Desk, now: Instant, errand: &Flight) {
    let Some(ticket) = errand.ticket else { return };
    let decision = if exceeded(errand) {
        slot.answer(now, errand.cost, Ending::deny(Reason::Cost, Source::Policy))
    } else {
        peeked(slot, now, errand.cost, Source::Store, desk.fleet)
    };
    desk.effects.push_back(Effect::Reply { ticket, decision });
}

/// Sends a call under the limits of before, for which nobody waits.
pub(super) fn send_under(slot: &mut Slot, desk: &mut Desk, now: Instant, rule: Arc<Rule>, op: Op) {
    let call = Call { rule, ..slot.call(now, desk.id(), op) };
    desk.effects.push_back(Effect::Call(call.clone()));
    slot.errands.push(flight(call, now, desk.settings.timeout, None, 0));
}

/// Takes the outcome of a peek, refund, reset or return.
pub(super) fn handle_errand(
    index: u32,
    slot: &mut Slot,
    desk: &mut Desk,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let Some(position) = slot.errands.iter().position(|errand| errand.call.id == call.id) else {
        // Nobody waits for it any more, and what it says is news all the same.
        if let Ok(grant) = outcome {
            learn(slot, desk, now, call, &grant);
        }
        return;
    };
    let errand = &mut slot.errands[position];
    match outcome {
        Ok(grant) => {
            let errand = slot.errands.swap_remove(position);
            if grant.outdated {
                desk.skip_ids();
            }
            learn(slot, desk, now, call, &grant);
            note_voided(slot, now, &errand.call.op);
            if errand.call.op == Op::Reset && !on(Mutant::ResetKeepsLeases) {
                let voided = slot.lease.void() + slot.drop_leftovers();
                desk.policy_stats(slot).expired += voided;
                slot.share = None;
                slot.begin_anew();
                slot.drop_orders_before(call.id);
            }
            // The store counts what an acquire before it was lent, and this node has yet to hear of that; or what goes
            // back since, and this node counts that no more.
            let is_behind = slot.flight.as_ref().is_some_and(|acquire| acquire.call.id < errand.call.id);
            if (is_behind || slot.has_account_under_way()) && errand.ticket.is_some() && !slot.is_away(now) {
                slot.errands.push(Flight { is_answered: true, ..errand });
            } else {
                answer_errand(slot, desk, now, &errand);
            }
        }
        Err(StoreError::Unknown) if errand.attempts < ATTEMPTS => send_again(errand, desk, now),
        Err(error) => {
            let errand = slot.errands.swap_remove(position);
            fail_errand(slot, desk, now, &errand);
            keep_doubtful(slot, now, &errand, &error);
        }
    }
    answer_postponed(slot, desk, now);
    if !slot.line.is_empty() && slot.flight.is_none() && !slot.has_account_under_way() {
        serve_line(index, slot, desk, now, Source::Store);
    }
    set_timer(index, slot, desk, now);
}

/// The store has not been told that an order is void: the next return says so.
fn keep_doubtful(slot: &mut Slot, now: Instant, errand: &Flight, error: &StoreError) {
    let Op::Return { voids, .. } = errand.call.op else { return };
    if voids.id == 0 || !slot.is_of_these_limits(&errand.call) {
        return;
    }
    slot.doubtful = Some(voids);
    match error {
        StoreError::Away { since } => slot.lose_store(now, *since),
        StoreError::Unknown => slot.lose_store(now, errand.sent),
        StoreError::Busy { .. } | StoreError::Full => {}
    }
}

/// The store knows now that an order is void, so that it can be asked for more as soon as somebody wants it.
fn note_voided(slot: &mut Slot, now: Instant, op: &Op) {
    if let (Op::Return { voids, .. }, Some(away)) = (op, &mut slot.away)
        && voids.id != 0
        && !away.charged
        && !away.repairs
        && away.back.is_none()
    {
        away.ask_again = away.ask_again.min(now);
    }
}

pub(super) fn fail_errand(slot: &mut Slot, desk: &mut Desk, now: Instant, errand: &Flight) {
    if errand.is_answered {
        return answer_errand(slot, desk, now, errand);
    }
    let Some(ticket) = errand.ticket else { return };
    let ending = match errand.call.op {
        Op::Peek if exceeded(errand) => Ending::deny(Reason::Cost, Source::Policy),
        Op::Peek => {
            let is_known = slot.answered.is_some() || slot.is_away(now);
            let decision = if is_known {
                peeked(slot, now, errand.cost, Source::Lease, desk.fleet)
            } else {
                slot.turn_away(now, errand.cost, desk.queue())
            };
            return desk.effects.push_back(Effect::Reply { ticket, decision });
        }
        _ => Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)),
    };
    let decision = slot.answer(now, errand.cost, ending);
    desk.effects.push_back(Effect::Reply { ticket, decision });
}

/// A check of more than its limits ever have looks and charges nothing: it is not let pass, whatever limits
/// apply when the answer comes.
fn exceeded(errand: &Flight) -> bool {
    errand.call.op == Op::Peek && errand.call.rule.limits.iter().any(|limit| errand.cost > limit.capacity())
}

/// Tokens that can no longer be spent here. A window that is still open under another limit of the
/// policy, or a sliding one, which weighs on, gets them back; otherwise they lapse. Of a bucket they wait for the
/// acquire that is under way: the account that they would close has what it lends, too.
pub(super) fn dispose(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, leftover: Leftover) {
    let limits = &slot.rule.limits;
    let matters = limits.len() > 1 || limits[0].algorithm == Algorithm::Sliding;
    if !matters || slot.is_away(now) {
        // Nobody will spend them: while their window is known to be open, they are left.
        for (limit, counter) in limits.iter().zip(&mut slot.counters) {
            counter.credit_lent(limit, leftover.tokens, leftover.windows[0]);
        }
        desk.policy_stats(slot).expired += leftover.tokens;
    } else if slot.flight.is_some() && slot.has_account() {
        slot.leftovers.push(leftover);
    } else {
        hand_over(index, slot, desk, now, leftover, Voided::default());
    }
}

/// The acquire that was under way is not any more: what waited for that goes back.
pub(super) fn dispose_of_leftovers(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    while let Some(leftover) = slot.leftovers.pop() {
        dispose(index, slot, desk, now, leftover);
    }
}

/// Gives up to `amount` unspent tokens back to the store. They leave here before the call is sent.
pub(super) fn give_back(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, amount: u64) {
    let mut due = amount;
    while due > 0 {
        let Some(leftover) = slot.lease.take(now, due) else { break };
        due -= leftover.tokens;
        hand_over(index, slot, desk, now, leftover, Voided::default());
    }
}

/// Tells the store what was spent of a bucket, before it takes that to have been later; and of an order that is
/// void that whatever it was lent goes back.
pub(super) fn report(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, voids: Voided) {
    let nothing = Leftover { tokens: 0, windows: vec![Timestamp(0); slot.rule.limits.len()].into() };
    hand_over(index, slot, desk, now, nothing, voids);
}

fn hand_over(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, leftover: Leftover, voids: Voided) {
    let mut windows = [Timestamp(0); MAX_LIMITS];
    windows[..leftover.windows.len()].copy_from_slice(&leftover.windows);
    if on(Mutant::ReturnToCurrentWindow) {
        windows.iter_mut().zip(&slot.counters).for_each(|(window, counter)| *window = counter.at);
    }
    let ages = slot.ages(now, leftover.tokens);
    let order = if voids.id == 0 { slot.take_doubtful(now) } else { voids };
    let voids = slot.voided_by_now(order, leftover.tokens);
    // The store is told what was spent of buckets: it is charged there, and no more here.
    slot.charge(leftover.tokens);
    // What is known of the store counts them as back already: nobody is denied for want of them.
    let known = slot.rule.limits.iter().zip(&mut slot.counters).zip(&mut slot.net).zip(windows);
    for (((limit, counter), net), window) in known.filter(|(((limit, _), _), _)| limit.algorithm != Algorithm::Gcra) {
        if counter.at == window {
            *net = net.saturating_sub(leftover.tokens);
        }
        counter.credit_lent(limit, leftover.tokens, window);
    }
    slot.note_returned(leftover.tokens, &windows);
    desk.policy_stats(slot).returned += leftover.tokens;
    let op = Op::Return { amount: leftover.tokens, epoch: slot.epoch, held: slot.held(), ages, windows, voids };
    send_errand(slot, desk, now, op, None, 0);
    set_timer(index, slot, desk, now);
}
