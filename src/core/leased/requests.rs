//! The requests about one key: checks, peeks, prefetches, refunds, resets.

use std::sync::Arc;

use super::advance::advance;
use super::intent::{may_relay, wants_tokens};
use super::key::LeasedKey;
use super::wish::Wish;
use crate::core::answer::{Resolution, overload};
use crate::core::batch::refill_interval;
use crate::core::call::{OPEN, Op, Windows};
use crate::core::calls::Waiter;
use crate::core::context::Context;
use crate::core::decision::{Decision, Source, Verdict};
use crate::core::holds::{Charge, is_open};
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::request::{Outcome, Request, Ticket};
use crate::core::rule::Rule;
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::{PeerIndex, Usage};
use crate::core::window;

/// Brings a key up to date before a request, with the limits that apply now.
pub(in crate::core) fn refresh_under(key: &mut LeasedKey, cx: &mut Context, now: Instant, rule: &Arc<Rule>) {
    if !Arc::ptr_eq(key.view.rule(), rule) && key.view.rule() != rule {
        advance(key, cx, now, Wish::LeaveLimits);
        let voided = key.adopt(now, rule);
        cx.policy_stats(key.policy()).expired += voided;
        advance(key, cx, now, Wish::Nothing);
    }
    advance(key, cx, now, Wish::DropEnded);
}

/// Decides, or parks the check until the store has answered, but at most until `deadline`.
pub(in crate::core) fn check(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    deadline: Instant,
    request: &Request<'_>,
) -> Outcome {
    let cost = request.cost;
    if request.peek || cost == 0 || key.view.rule().limits.iter().any(|limit| cost > limit.capacity()) {
        return peek(key, cx, now, deadline, cost);
    }
    key.demand.note_check(now);
    key.note_wanted(now, cost);
    let decided = if key.rare.line.is_empty() || on(Mutant::BargesPastTheLine) {
        let relays = may_relay(key, cx, now, 0);
        key.decide(now, cost, Source::Lease, cx.fleet, relays)
    } else if key.is_exhausted(now, cost) {
        key.demand.note_denied();
        Some(key.deny(now, cost, Source::Lease))
    } else {
        None
    };
    if let Some(decision) = decided {
        cx.count(key.policy(), cost, &decision);
        key.note_promise(now, cost, &decision);
        if wants_tokens(key, cx, now, &decision) {
            advance(key, cx, now, Wish::Tokens);
        }
        if decision.source == Source::Share && cx.owners.are_there() {
            if decision.verdict == Verdict::Allow && key.view.rule().is_entitled_window() {
                cx.owners.note_own_aside(now);
            }
            advance(key, cx, now, Wish::TryPeer(cost));
        }
        return Outcome::Decided(decision);
    }
    if key.rare.line.is_full() {
        let decision = key.turn_away(now, cost, cx.queue());
        cx.count(key.policy(), cost, &decision);
        return Outcome::Decided(decision);
    }
    if key.is_overdue(now, cx.patience()) {
        let decision = key.answer_unasked(now, cost, cx);
        cx.count(key.policy(), cost, &decision);
        return Outcome::Decided(decision);
    }
    if deadline <= now {
        // This check is too late to wait for the store, so the store is not asked for it: others in line would wait
        // longer behind the call. But if the store has answered for this key before, tokens are leased for the next
        // checks.
        if key.view.answered().is_some() {
            prefetch(key, cx, now, cost);
        }
        let decision = key.turn_away(now, cost, cx.queue());
        cx.count(key.policy(), cost, &decision);
        return Outcome::Decided(decision);
    }
    let ticket = cx.ticket();
    let wish = if key.rare.line.is_empty() { Wish::Wait } else { Wish::Nothing };
    key.rare.line.join(Waiter::new(ticket, cost, deadline));
    cx.policy_stats(key.policy()).parked += 1;
    cx.stats.waiting += 1;
    advance(key, cx, now, wish);
    Outcome::Parked(ticket)
}

fn peek(key: &mut LeasedKey, cx: &mut Context, now: Instant, deadline: Instant, cost: u64) -> Outcome {
    let is_fresh = key.view.answered().is_some_and(|at| now.since(at) < refill_interval(key.view.rule()));
    if is_fresh || key.is_away(now) {
        return Outcome::Decided(key.peeked(now, cost, Source::Lease, cx.fleet));
    }
    let ticket = if deadline <= now { None } else { ask(key, cx, now, deadline, Op::Peek, cost) };
    ticket.map_or_else(|| Outcome::Decided(key.turn_away(now, cost, cx.queue())), Outcome::Parked)
}

/// A check of `cost` will follow, so what it lacks is leased meanwhile.
pub(in crate::core) fn prefetch(key: &mut LeasedKey, cx: &mut Context, now: Instant, cost: u64) {
    let lacks = key.holdings.lease().usable(now) < cost && !key.is_exhausted(now, cost);
    if lacks && key.rare.line.is_empty() && !key.rare.calls.is_acquiring() && !key.is_away(now) && !cx.draining {
        // A key that was never checked would be forgotten when its call ends, also where nobody knows what the store did.
        key.demand.note_check(now);
        // The check does not come where another key denies the request. Of a bucket its tokens then go back soon; of a window they would
        // stay here, where others may lack them.
        let wish = if key.view.has_account() { Wish::TokensFor(cost) } else { Wish::Tokens };
        advance(key, cx, now, wish);
    }
}

/// Takes back an admission whose request was denied by another key, as if it had not been asked for. Where that other key had to ask
/// the store, a window of this one may have ended meanwhile. Then nothing goes back, because the window that is open now never counted
/// the cost, and would admit as much beyond its limit.
pub(in crate::core) fn rollback(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    cost: u64,
    decision: &Decision,
) -> Option<Outcome> {
    cx.policy_stats(key.policy()).uncount(decision);
    let charge = Charge::of(cost, decision);
    match decision.source {
        Source::Policy => None,
        Source::Share => {
            let clock = key.view.clock().latest(now);
            let rule = key.view.rule().clone();
            let back = if rule.is_entitled_from_first() {
                key.rare.outage.refund_span(now, key.view.clock().before(charge.at), cost)
            } else {
                key.rare.outage.refund(&rule, [charge.at, clock], cost)
            };
            key.note_refund(back);
            None
        }
        // The store has forgotten it, together with all else that the key was charged.
        _ if key.view.was_reset_since(decision.epoch) => None,
        _ => {
            let windows = charged_windows(key, now, &charge, end_in_decision(key, decision))?;
            Some(take_back(key, cx, now, cost, decision.epoch, windows))
        }
    }
}

/// The windows of a charge that may go back; `None` when one of them has ended. What was charged at this moment was charged to those
/// that are open. A key that was forgotten meanwhile, for want of room, does not know the store's clock any more: the windows that it
/// names the store judges itself.
fn charged_windows(key: &LeasedKey, now: Instant, charge: &Charge, end: Option<Timestamp>) -> Option<Windows> {
    let clock = key.view.clock().latest(now);
    let mut windows = OPEN;
    if charge.at == clock || on(Mutant::RollbackInAnyWindow) {
        return Some(windows);
    }
    for ((limit, counter), window) in key.view.limits().zip(&mut windows) {
        let charged = match limit.algorithm {
            // A bucket takes back what it was charged, and no more than it holds.
            Algorithm::Gcra | Algorithm::Concurrent => continue,
            Algorithm::Fixed => end.unwrap_or_else(|| window::aligned_end(limit, charge.at)),
            Algorithm::Sliding => window::aligned_start(limit, charge.at),
            // Such a window ends when the store says, and has begun a period before that.
            Algorithm::FixedFromFirst if charge.at + limit.period < counter.at => return None,
            Algorithm::FixedFromFirst => counter.at,
        };
        *window = charged.stored();
        if key.view.heard().is_some() && !is_open(limit, clock, *window) {
            return None;
        }
    }
    Some(windows)
}

/// The end of the one fixed window that was charged, as the decision told it. The time of a charge is the earliest that the store's clock may
/// have shown, which may be in the window before: what was lent ahead is spent once any answer shows that its window has begun, and a later
/// answer can leave that open again. Were the window told by that time, it would have ended, and nothing would go back.
fn end_in_decision(key: &LeasedKey, decision: &Decision) -> Option<Timestamp> {
    let is_in_decision =
        matches!(decision.source, Source::Lease | Source::Store) && decision.reset_after > Micros::ZERO;
    let is_alone = matches!(&key.view.rule().limits[..], [Limit { algorithm: Algorithm::Fixed, .. }]);
    (is_in_decision && is_alone).then_some(decision.reset_at)
}

/// Gives back `cost` of a charge, to the windows in which it was charged and that still count: first to what the
/// share owes, then to the lease, and the rest to the store. Of a charge from before a reset only what the share owes goes
/// back, which is paid after the reset, too: the store has forgotten the rest, and would take it off what others spent since.
pub(in crate::core) fn give_back_charge(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    cost: u64,
    charge: &Charge,
) -> Outcome {
    if key.rare.calls.are_full() {
        return Outcome::Decided(overload(key.view.rule(), now, cost));
    }
    let rule = key.view.rule().clone();
    let (clock, mut due) = (key.view.clock().latest(now), cost);
    let windows = charge.windows(&rule).filter(|windows| {
        let mut counts = rule.limits.iter().zip(windows);
        // As in `charged_windows`, a key that has heard nothing of the store leaves it to the store to judge; of a share the store knows
        // nothing.
        let is_known = key.view.heard().is_some() || charge.source == Source::Share;
        charge.is_counted && (!is_known || counts.all(|(limit, window)| is_open(limit, clock, *window)))
    });
    let Some(windows) = windows else {
        return Outcome::Decided(key.answer(now, 0, Resolution::allow(Source::Lease)));
    };
    if charge.source == Source::Share {
        // The part for which the store was charged already must be refunded there. If the budget is gone, it is
        // unknown whether the store was charged, and nothing is refunded.
        due = if rule.is_entitled_from_first() {
            // Whether the store was charged for the rest, and in which window, is not known.
            due -= key.rare.outage.refund_span(now, key.view.clock().before(charge.at), due);
            key.note_refund(cost - due);
            return Outcome::Decided(key.answer(now, 0, Resolution::allow(Source::Lease)));
        } else if key.rare.outage.budget().is_some() {
            due - key.rare.outage.refund(&rule, [charge.at, clock], due)
        } else {
            0
        };
        key.note_refund(cost - due);
        if charge.epoch == 0 && !rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra) {
            // The store had not answered about the key by then, so this node guessed its clock, and the store may have been charged in
            // another window than the charge names.
            due = 0;
        }
    }
    if key.view.was_reset_since(charge.epoch) {
        return Outcome::Decided(key.answer(now, 0, Resolution::allow(Source::Lease)));
    }
    take_back(key, cx, now, due, charge.epoch, windows)
}

/// Takes back tokens that were spent in those windows, under that epoch: see [`Op::Refund`].
pub(in crate::core) fn take_back(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    cost: u64,
    epoch: u64,
    windows: Windows,
) -> Outcome {
    // If no more calls may wait, the store cannot be asked to take back its part. Then nothing is taken back here
    // either.
    if key.rare.calls.are_full() {
        return Outcome::Decided(overload(key.view.rule(), now, cost));
    }
    if !key.rare.calls.is_acquiring() && key.exceeds_some(now, cost) {
        // The limits were charged differently. The store takes back of each limit what it was charged and no more,
        // which it can only judge when nothing of that is held here.
        // What was spent of a bucket is reported first, because a bucket that looks full takes nothing back.
        advance(key, cx, now, Wish::ReturnAll);
        key.holdings.close_spent();
        key.note_refund_in_store(cost, &windows);
        key.note_unspent(cost);
        let amount = cost - u64::from(on(Mutant::WholeRefundOneLess) && cost > 1);
        return ask_or_refuse(key, cx, now, Op::Refund { amount, epoch, windows }, cost);
    }
    let back = key.holdings.refund(now, cost.min(key.unreported()), &windows);
    key.note_unspent(back);
    key.note_refund(back);
    let stats = cx.policy_stats(key.policy());
    stats.spent = stats.spent.saturating_sub(back);
    let back = if on(Mutant::RefundTwice) { 0 } else { back };
    let amount = (cost - back).min(key.refundable(now));
    if amount == 0 {
        return Outcome::Decided(key.answer(now, 0, Resolution::allow(Source::Lease)));
    }
    key.note_refund_in_store(amount, &windows);
    if cx.settings.lease_ahead && !cx.draining && key.keep_refund(now, amount, windows[0]) {
        let stats = cx.policy_stats(key.policy());
        stats.spent = stats.spent.saturating_sub(amount);
        return Outcome::Decided(key.answer(now, 0, Resolution::allow(Source::Lease)));
    }
    // Tokens of earlier refunds that are kept here may be all that the bucket owes, once the store has taken back
    // this one.
    advance(key, cx, now, Wish::ReturnUnclaimed);
    key.note_unspent(amount);
    // What was spent of a bucket is reported first, because a bucket that looks full takes nothing back.
    if !key.rare.calls.is_acquiring() {
        advance(key, cx, now, Wish::Report);
    }
    let amount = amount - u64::from(on(Mutant::RefundAsksOneLess) && amount > 1);
    ask_or_refuse(key, cx, now, Op::Refund { amount, epoch, windows }, cost)
}

/// Resets the key in the whole fleet.
pub(in crate::core) fn reset(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> Outcome {
    ask_or_refuse(key, cx, now, Op::Reset, 0)
}

/// Asks the store for an errand, which is answered with the ticket by `deadline`. `None` when too many wait.
fn ask(key: &mut LeasedKey, cx: &mut Context, now: Instant, deadline: Instant, op: Op, cost: u64) -> Option<Ticket> {
    if key.rare.calls.are_full() {
        return None;
    }
    let ticket = cx.ticket();
    let call = key.call(now, 0, op);
    key.rare.calls.ask(call, Waiter::new(ticket, cost, deadline), now);
    advance(key, cx, now, Wish::Nothing);
    Some(ticket)
}

/// Asks the store for a refund of `cost` or for a reset, unless too many wait.
fn ask_or_refuse(key: &mut LeasedKey, cx: &mut Context, now: Instant, op: Op, cost: u64) -> Outcome {
    let ticket = ask(key, cx, now, now + cx.settings.timeout, op, 0);
    ticket.map_or_else(|| Outcome::Decided(overload(key.view.rule(), now, cost)), Outcome::Parked)
}

/// Takes a peer's report about the key. This may cause a call to the store.
pub(in crate::core) fn handle_usage(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    origin: PeerIndex,
    usage: &Usage,
) {
    let is_heard = key.hear(now, origin, usage);
    if is_heard && key.is_recalled(now, usage) && !cx.draining {
        advance(key, cx, now, Wish::Restore);
    }
}
