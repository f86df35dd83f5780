//! What is asked of one key: checks, looks, tokens in advance, and ways back.

use std::sync::Arc;

use super::errands::{self, is_full};
use super::key::LeasedKey;
use super::refill;
use super::timers::set_timer;
use super::upkeep::refresh;
use crate::core::answer::{Ending, overload};
use crate::core::batch::refill_interval;
use crate::core::call::{OPEN, Op, Voided};
use crate::core::calls::Waiter;
use crate::core::context::Context;
use crate::core::decision::{Decision, Source};
use crate::core::holds::{Charge, is_open};
use crate::core::limit::MAX_LIMITS;
use crate::core::mutant::{Mutant, on};
use crate::core::request::{MAX_LINE, Outcome, Request, Ticket};
use crate::core::rule::Rule;
use crate::core::time::{Instant, Timestamp};
use crate::core::usage::{Origin, Usage};

/// Brings a key up to date before it is asked for something, under the limits that apply now.
pub(in crate::core) fn refresh_under(key: &mut LeasedKey, cx: &mut Context, now: Instant, rule: &Arc<Rule>) {
    if !Arc::ptr_eq(&key.rule, rule) && key.rule != *rule {
        refill::change_limits(key, cx, now, rule);
    }
    refresh(key, cx, now);
}

/// Decides, or parks until the store has been asked, and until `deadline` at most.
pub(in crate::core) fn check(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    deadline: Instant,
    request: &Request<'_>,
) -> Outcome {
    let cost = request.cost;
    if request.peek || cost == 0 || key.rule.limits.iter().any(|limit| cost > limit.capacity()) {
        return peek(key, cx, now, deadline, cost);
    }
    key.last_check = now;
    let decided = if key.line.is_empty() || on(Mutant::BargesPastTheLine) {
        key.decide(now, cost, Source::Lease, cx.fleet)
    } else if key.is_exhausted(now, cost) {
        key.tuner.denied();
        Some(key.deny(now, cost, Source::Lease))
    } else {
        None
    };
    if let Some(decision) = decided {
        cx.count(key.policy, cost, &decision);
        key.promise(now, cost, &decision);
        refill::after_decision(key, cx, now, &decision);
        return Outcome::Decided(decision);
    }
    if key.line.len() >= MAX_LINE {
        let decision = key.turn_away(now, cost, cx.queue());
        cx.count(key.policy, cost, &decision);
        return Outcome::Decided(decision);
    }
    if key.is_overdue(now, cx.patience()) {
        let decision = key.let_first_pass(now, cost, cx.settings.timeout);
        let decision = decision.unwrap_or_else(|| key.turn_away(now, cost, cx.queue()));
        cx.count(key.policy, cost, &decision);
        return Outcome::Decided(decision);
    }
    if deadline <= now {
        // The store is not asked for its sake: nobody waits for the answer, and those whose time is not over would
        // wait behind the call. A key that was lent something is leased for the next who asks.
        if key.answered.is_some() {
            prefetch(key, cx, now, cost);
        }
        let decision = key.turn_away(now, cost, cx.queue());
        cx.count(key.policy, cost, &decision);
        return Outcome::Decided(decision);
    }
    let ticket = cx.ticket();
    key.line.push_back(Waiter { ticket, cost, deadline, answers: 0 });
    cx.policy_stats(key.policy).parked += 1;
    cx.stats.waiting += 1;
    refill::ask_for_line(key, cx, now);
    Outcome::Parked(ticket)
}

fn peek(key: &mut LeasedKey, cx: &mut Context, now: Instant, deadline: Instant, cost: u64) -> Outcome {
    let is_fresh = key.answered.is_some_and(|at| now.since(at) < refill_interval(&key.rule));
    if is_fresh || key.is_away(now) {
        return Outcome::Decided(key.peeked(now, cost, Source::Lease, cx.fleet));
    }
    let ticket = if deadline <= now { None } else { errands::errand(key, cx, now, Op::Peek, cost) };
    ticket.map_or_else(|| Outcome::Decided(key.turn_away(now, cost, cx.queue())), Outcome::Parked)
}

/// A check of `cost` is about to come: what it lacks is leased meanwhile.
pub(in crate::core) fn prefetch(key: &mut LeasedKey, cx: &mut Context, now: Instant, cost: u64) {
    let lacks = key.lease.usable(now) < cost && !key.is_exhausted(now, cost);
    if lacks && key.line.is_empty() && key.flight.is_none() && !key.is_away(now) && !cx.draining {
        refill::acquire(key, cx, now);
    }
}

/// Takes back an admission of this moment that came to nothing, as if it had not been asked for.
pub(in crate::core) fn rollback(key: &mut LeasedKey, cx: &mut Context, now: Instant, cost: u64, decision: &Decision) {
    cx.policy_stats(key.policy).uncount(decision);
    match decision.source {
        Source::Policy => {}
        Source::Share => {
            let clock = key.clock.latest(now);
            let rule = key.rule.clone();
            let back = key.share.as_mut().map_or(0, |book| book.refund(&rule, clock, cost));
            key.note_refund(back);
        }
        _ => drop(take_back(key, cx, now, cost, OPEN)),
    }
}

/// Gives `cost` of a charge back that counts still, to the windows that it was charged in and to no others: to what
/// the share owes, to the lease, and the rest to the store.
pub(in crate::core) fn give_back_charge(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    cost: u64,
    charge: &Charge,
) -> Outcome {
    if is_full(key) {
        return Outcome::Decided(overload(&key.rule, now, cost));
    }
    let rule = key.rule.clone();
    let (clock, mut due) = (key.clock.latest(now), cost);
    let windows = charge.windows(&rule).filter(|windows| {
        let counts = rule.limits.iter().zip(windows);
        charge.is_counted && counts.into_iter().all(|(limit, window)| is_open(limit, clock, *window))
    });
    let Some(windows) = windows else {
        return Outcome::Decided(key.answer(now, 0, Ending::allow(Source::Lease)));
    };
    if charge.source == Source::Share {
        // What is not owed any more the store has been paid; what nobody remembers, perhaps not.
        due = match &mut key.share {
            Some(book) => due - book.refund(&rule, clock, due),
            None => 0,
        };
        key.note_refund(cost - due);
    }
    take_back(key, cx, now, due, windows)
}

/// Takes tokens back that were spent of those windows: see [`Op::Refund`].
pub(in crate::core) fn take_back(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    cost: u64,
    windows: [Timestamp; MAX_LIMITS],
) -> Outcome {
    // Nothing is taken back here of what the store could not be asked for, too.
    if is_full(key) {
        return Outcome::Decided(overload(&key.rule, now, cost));
    }
    let awaited = |key: &LeasedKey, ticket: Option<Ticket>| {
        ticket.map_or_else(|| Outcome::Decided(overload(&key.rule, now, cost)), Outcome::Parked)
    };
    if key.flight.is_none() && key.exceeds_some(now, cost) {
        // One limit was charged less than another. The store takes back of each what it was charged and no more,
        // once nothing of that is held here.
        errands::give_back(key, cx, now, u64::MAX);
        // What was spent of a bucket is charged first: a bucket that is full otherwise takes nothing back.
        if key.has_untold() {
            errands::report(key, cx, now, Voided::default());
        }
        key.lease.close_spent();
        key.note_refund(cost);
        key.note_unspent(cost);
        let ticket = errands::errand(key, cx, now, Op::Refund { amount: cost, windows }, 0);
        return awaited(key, ticket);
    }
    let back = key.lease.refund(now, cost.min(key.untold()), &windows);
    key.note_unspent(back);
    key.note_refund(back);
    let stats = cx.policy_stats(key.policy);
    stats.spent = stats.spent.saturating_sub(back);
    let back = if on(Mutant::RefundTwice) { 0 } else { back };
    let amount = (cost - back).min(key.refundable(now));
    if amount == 0 {
        return Outcome::Decided(key.answer(now, 0, Ending::allow(Source::Lease)));
    }
    key.note_refund(amount);
    if cx.settings.lease_ahead && !cx.draining && key.keep_refund(now, amount, windows[0]) {
        let stats = cx.policy_stats(key.policy);
        stats.spent = stats.spent.saturating_sub(amount);
        set_timer(key, cx, now);
        return Outcome::Decided(key.answer(now, 0, Ending::allow(Source::Lease)));
    }
    // What is kept here of refunds before may be all that the bucket owes, once the store has taken back this one.
    refill::give_unclaimed(key, cx, now);
    key.note_unspent(amount);
    // What was spent of a bucket is charged first: a bucket that is full otherwise takes nothing back.
    if key.has_untold() && key.flight.is_none() {
        errands::report(key, cx, now, Voided::default());
    }
    let ticket = errands::errand(key, cx, now, Op::Refund { amount, windows }, 0);
    awaited(key, ticket)
}

/// Forgets the key, fleet-wide.
pub(in crate::core) fn reset(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> Outcome {
    let ticket = errands::errand(key, cx, now, Op::Reset, 0);
    ticket.map_or_else(|| Outcome::Decided(overload(&key.rule, now, 0)), Outcome::Parked)
}

/// Takes in what a peer tells of the key. May ask the store.
pub(in crate::core) fn handle_usage(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    origin: Origin,
    usage: &Usage,
) {
    let is_heard = key.hear(now, origin, usage);
    if is_heard && key.is_recalled(now, usage) && !cx.draining {
        refresh(key, cx, now);
        refill::acquire(key, cx, now);
    }
}
