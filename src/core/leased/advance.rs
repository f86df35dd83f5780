//! What a key does. From this file, and from no other, calls and replies of a leased key leave.
//!
//! Inputs change what is known of a key: a request (`requests.rs`), an answer of the store (`outcomes.rs`), its timer. Each
//! then calls [`advance`], which looks at the key as it stands, whatever has happened, and does all that is due in one
//! order: what ended is dropped, who can be answered is answered, and what is lacking is asked for in one call. So no input
//! has to know what may follow from it. A check that is decided from memory, and leaves the lease above its low-water mark,
//! advances nothing.
//!
//! One acquire per key is under way at a time. It asks for what waits and for what the tuner wants; those who arrive
//! meanwhile line up behind it, and a partial grant serves the line from its head. Tokens that go back leave the node
//! before the call is sent.

use super::intent::{Intent, Wish, ahead, intend};
use super::key::LeasedKey;
use super::timers::{has_to_tell, keep_until, remaining};
use crate::core::answer::Resolution;
use crate::core::batch::{Bounds, refill_interval};
use crate::core::call::{Acquire, Call, Grant, JUST_NOW, Op, StoreError, Voided};
use crate::core::calls::{Ended, Flight, Waiter};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::gcra;
use crate::core::lease::Leftover;
use crate::core::limit::{Algorithm, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Due, Instant, Micros, Timestamp};

/// While no majority of Redis holds what it lends, a lease is one part in so many of what it would be, because so much can
/// be lost with a master. The simulator's invariant `confirmed` holds nodes to it.
const UNCONFIRMED_PART: u64 = 32;

/// Answers that may leave a waiter unsettled before it is denied.
const ANSWERS: u8 = 4;

/// Answers after which what a waiter wants has been in an order: one may have been under way before.
const ASKED_FOR: u8 = 2;

/// Does what is due for a key as it stands now. `wish` is what its state does not show.
pub(super) fn advance(key: &mut LeasedKey, cx: &mut Context, now: Instant, wish: Wish) {
    key.calls.send_lost(cx, now);
    drop_ended(key, cx, now);
    hand_back_leftovers(key, cx, now);
    answer_errands(key, cx, now);
    if wish == Wish::TurnAway {
        turn_line_away(key, cx, now);
    }
    serve_line(key, cx, now);
    if wish == Wish::Look {
        run_out(key, cx, now);
        answer_in_time(key, cx, now);
    }
    hand_back_unclaimed(key, cx, now);
    if cx.draining && key.line.is_empty() && !key.calls.is_acquiring() {
        give_back(key, cx, now, u64::MAX);
    }
    key.calls.send_queued(cx, now);
    match intend(key, cx, now, wish) {
        Intent::Wait => {}
        Intent::Acquire => acquire(key, cx, now),
        Intent::AcquireAgain => acquire_again(key, cx, now),
        Intent::AcquireAhead(window) => {
            let order = ahead(key, cx, now, window);
            send_acquire(key, cx, now, order);
        }
        Intent::GiveBack(tokens) => give_back(key, cx, now, tokens),
        Intent::Report => report(key, cx, now, Voided::default()),
    }
    key.pacing.drop_plan(now);
}

/// Does what is due by the clock; false when the key is of no more use.
pub(in crate::core) fn handle_timer(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> bool {
    let was_away = key.outage.phase().is_away();
    advance(key, cx, now, Wish::Look);
    cx.note_degraded(was_away, key.outage.phase().is_away());
    is_of_use(key, now)
}

/// Whether something would be lost by forgetting the key.
fn is_of_use(key: &LeasedKey, now: Instant) -> bool {
    let is_busy = !key.is_quiet() || has_to_tell(key, now) || key.holdings.lease().held() > 0;
    is_busy || now < keep_until(key, now) || key.is_indebted(now)
}

// What ended.

/// Drops what has ended and rolls what is known.
pub(super) fn drop_ended(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.roll(now);
    // The store has charged all that this node did not account for in time, also tokens that were not spent. It is told
    // which those are.
    let lapsed =
        key.holdings.lease().until().has_come(now) && key.holdings.lease().held() > 0 && !key.calls.is_acquiring();
    if lapsed {
        give_back(key, cx, now, u64::MAX);
    }
    if !key.holdings.lease().has_ended(now) {
        return;
    }
    let mut gone = Vec::new();
    let voided = key.holdings.drop_ended(now, |leftover| gone.push(leftover));
    cx.policy_stats(key.policy()).expired += voided;
    for leftover in gone {
        dispose(key, cx, now, leftover);
    }
}

/// Tokens that can no longer be spent here. A window that is still open under another limit of the
/// policy, or a sliding one, which weighs on, gets them back; otherwise they lapse. Of a bucket they wait for the
/// acquire that is under way: the account that they would close has what it lends, too.
fn dispose(key: &mut LeasedKey, cx: &mut Context, now: Instant, leftover: Leftover) {
    let limits = &key.view.rule().limits;
    let matters = limits.len() > 1 || limits[0].algorithm == Algorithm::Sliding;
    if !matters || key.is_away(now) {
        // Nobody will spend these tokens. While their window is known to be open, they count as left in it.
        key.view.note_lapsed(leftover.tokens, leftover.windows[0]);
        cx.policy_stats(key.policy()).expired += leftover.tokens;
    } else if key.calls.is_acquiring() && key.view.has_account() {
        key.holdings.return_later(leftover);
    } else {
        let leftover = key.holdings.gather(leftover);
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// Tokens that waited to go back do so, unless they wait for the acquire under way.
fn hand_back_leftovers(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.calls.is_acquiring() && key.view.has_account() {
        return;
    }
    while let Some(leftover) = key.holdings.take_leftover() {
        dispose(key, cx, now, leftover);
    }
}

/// A bucket was charged at once for those who waited. Where they have been answered meanwhile, what they wanted is here
/// unclaimed. When its time has come, it goes back, because spent later it would be spent at another time than it was
/// charged, beyond the burst.
fn hand_back_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.holdings.unclaimed_until() == Due::NEVER {
        return;
    }
    if key.charged_and_held() == 0 {
        key.holdings.keep_unclaimed(Due::NEVER);
    } else if key.holdings.unclaimed_until().has_come(now) {
        give_unclaimed(key, cx, now);
    }
}

// Who waits.

/// Serves the line from its head as far as what is here and known goes. Nobody is denied while an answer is under way
/// that may be for them.
fn serve_line(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let is_settled = !key.calls.is_acquiring() || key.is_away(now);
    if !key.line.first().is_some_and(|waiter| is_settled || key.holdings.lease().usable(now) >= waiter.cost) {
        return;
    }
    while let Some(waiter) = key.line.first() {
        let decision = match key.decide(now, waiter.cost, Source::Store, cx.fleet) {
            Some(decision) => decision,
            None if waiter.answers >= ANSWERS => key.deny_in_line(now, waiter.cost),
            None => break,
        };
        answer_first(key, cx, now, decision);
    }
}

/// Answers those in line who have waited as long as they may. The call that they wait for goes on.
fn run_out(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(waiter) = key.line.first_late(now) {
        let decision = if waiter.answers >= ASKED_FOR || key.is_exhausted(now, waiter.cost) {
            // The store was asked for it, and had less, or has said so since.
            key.deny_in_line(now, waiter.cost)
        } else {
            turn_away(key, cx, now, waiter.cost)
        };
        answer_first(key, cx, now, decision);
    }
}

/// Callers in line have waited as long as the queue to the store allows. The next caller causes a new acquire.
fn turn_line_away(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(waiter) = key.line.first() {
        let decision = turn_away(key, cx, now, waiter.cost);
        answer_first(key, cx, now, decision);
    }
}

/// What a check is answered for which the store has no time: the first of a bucket passes.
pub(super) fn turn_away(key: &mut LeasedKey, cx: &Context, now: Instant, cost: u64) -> Decision {
    let decision = key.let_first_pass(now, cost, cx.settings.timeout);
    decision.unwrap_or_else(|| key.turn_away(now, cost, cx.queue()))
}

/// Answers the first in line.
fn answer_first(key: &mut LeasedKey, cx: &mut Context, now: Instant, decision: Decision) {
    let Some(waiter) = key.line.take_first() else { return };
    cx.stats.waiting -= 1;
    cx.count(key.policy(), waiter.cost, &decision);
    key.pacing.note_promise(now, waiter.cost, &decision);
    cx.reply(waiter.ticket, decision);
}

/// Answers those whose errands have ended. The answer to an errand counts tokens that an earlier acquire was lent, of which
/// this node has yet to hear, or tokens that have gone back since. Until those calls have been answered, its numbers would
/// mislead.
fn answer_errands(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let (is_away, is_behind) = (key.is_away(now), key.has_account_under_way());
    while let Some(errand) = key.calls.take_ended(is_away, is_behind) {
        end(key, cx, now, &errand, &errand.waiters);
    }
}

/// Answers those whose errands have been under way as long as they may wait. What they asked for may be
/// done yet.
fn answer_in_time(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    for (errand, waiters) in key.calls.take_late(now) {
        end(key, cx, now, &errand, &waiters);
    }
}

/// Answers those who waited for an errand that is done, or was not done in time, if at all.
fn end(key: &mut LeasedKey, cx: &mut Context, now: Instant, errand: &Flight, waiters: &[Waiter]) {
    let call = &errand.call;
    let error = match &errand.ended {
        None => None,
        Some(Ended::Failed(error)) => Some(error),
        Some(Ended::Answered) => {
            for &Waiter { ticket, cost, .. } in waiters {
                let decision = if exceeds(call, cost) {
                    key.answer(now, cost, Resolution::deny(Reason::Cost, Source::Policy))
                } else {
                    key.peeked(now, cost, Source::Store, cx.fleet)
                };
                cx.reply(ticket, decision);
            }
            return key.calls.note_served(waiters.len());
        }
    };
    for &Waiter { ticket, cost, .. } in waiters {
        let decision = match (call.op, error) {
            (Op::Peek, _) if exceeds(call, cost) => {
                key.answer(now, cost, Resolution::deny(Reason::Cost, Source::Policy))
            }
            (Op::Peek, _) if key.view.answered().is_some() || key.is_away(now) => {
                key.peeked(now, cost, Source::Lease, cx.fleet)
            }
            // It has not left: the store is asked too much, and that is no outage.
            (Op::Peek, _) | (_, Some(StoreError::Busy { .. })) => key.turn_away(now, cost, cx.queue()),
            _ => {
                // A call that has left may have been executed, or may be yet: then this node cannot say that it was not.
                let is_undone =
                    errand.attempts == 1 && matches!(error, Some(StoreError::Away { .. } | StoreError::Full));
                let source = if is_undone { Source::Policy } else { Source::Store };
                key.answer(now, cost, Resolution::deny(Reason::Store, source).after(Micros::from_secs(1)))
            }
        };
        cx.reply(ticket, decision);
    }
    key.calls.note_served(waiters.len());
}

/// A check of more than its limits ever have looks and charges nothing: it is not let pass, whatever limits
/// apply when the answer comes.
fn exceeds(call: &Call, cost: u64) -> bool {
    call.op == Op::Peek && call.rule.limits.iter().any(|limit| cost > limit.capacity())
}

// What is asked of the store.

/// Asks for tokens, unless what is under way has to be answered before.
fn acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if on(Mutant::StaysAway) && key.outage.phase().is_away() || key.has_account_under_way() {
        return;
    }
    if key.calls.has_doubtful() {
        // Nobody may spend what the order was lent that was given up. The store hears of that first.
        report(key, cx, now, Voided::default());
        if key.view.has_account() {
            return;
        }
    }
    if key.outage.phase().is_restoring() {
        key.end_waits(now);
    }
    let is_to_repay = key.outage.phase().is_unpaid() && (key.owes(now) || key.awaits_others(now));
    let order = if is_to_repay { repayment(key, now) } else { refill(key, cx, now) };
    send_acquire(key, cx, now, order);
}

fn acquire_again(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let outdated = key.calls.end_acquire();
    if let Some(Op::Acquire(order)) = outdated.map(|acquire| acquire.call.op) {
        send_acquire(key, cx, now, order);
    }
}

/// What is asked for on behalf of those in line, of what passed without the store, and of those who come until the next
/// refill.
fn refill(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> Acquire {
    let (debt, held) = (key.debt(now), key.about_to_start(now));
    let need = key.line.wanted().saturating_sub(held).saturating_add(debt).saturating_add(key.outage.credited());
    // A grant that is smaller than what the cheapest check in line lacks would serve nobody.
    let least = if debt > 0 { 1 } else { key.line.least_missing(held).unwrap_or(1).max(1) };
    let ceiling = key.ceiling(cx.fleet);
    let part = if key.view.is_confirmed() { ceiling } else { ceiling.div_ceil(UNCONFIRMED_PART) };
    let plenty = !key.is_pressed(now);
    // An account has to be renewed that often anyway.
    let interval = if plenty && key.view.has_account() { gcra::PERIOD } else { refill_interval(key.view.rule()) };
    let bounds = Bounds {
        need,
        ceiling: part.saturating_sub(held),
        interval: interval.max(refill_interval(key.view.rule())),
        remaining: remaining(key, now),
        window: key.view.rule().limits.iter().map(|limit| limit.period).min().unwrap_or_default(),
        plenty,
    };
    let tuned = key.demand.refill(now, bounds);
    let ahead = cx.settings.lease_ahead && !cx.draining;
    // A flood spends this node's part before it could ask again: it takes it at once.
    let need = if ahead && key.has_left(now) && key.is_flooded(part) { need.max(part) } else { need };
    let want = if ahead { tuned.max(need) } else { need };
    let want = if on(Mutant::BatchUncapped) { u64::MAX } else { want };
    cx.policy_stats(key.policy()).batch = want.max(1);
    Acquire { need, want: want.max(least), least, ..key.order(now) }
}

/// The store may be back: asks for what the share admitted and for what it has left, so that others
/// are lent neither, and for nothing more; for nothing where nobody spent of it here.
fn repayment(key: &LeasedKey, now: Instant) -> Acquire {
    let left = if key.owes(now) { key.share_left(now) } else { 0 };
    let owed = key.debt(now).saturating_add(left);
    // All of it is needed: a node that was lent a part would go on to lease, and take tokens that others owe.
    Acquire { need: owed, want: owed, ..key.order(now) }
}

fn send_acquire(key: &mut LeasedKey, cx: &mut Context, now: Instant, order: Acquire) {
    if key.view.has_account() {
        // What this order says of the account is the last word: nothing lent before it counts any more.
        key.holdings.close_spent();
    }
    // Refunds and resets that were asked for earlier must reach the store first.
    key.calls.send_all_queued(cx, now);
    let call = key.call(now, cx.id(), Op::Acquire(order));
    key.calls.send_acquire(cx, now, call);
}

// What goes back to it.

/// Gives up to `amount` unspent tokens back to the store. They leave here before the call is sent.
pub(super) fn give_back(key: &mut LeasedKey, cx: &mut Context, now: Instant, amount: u64) {
    let mut due = amount;
    while due > 0 {
        let Some(leftover) = key.holdings.take(now, due) else { break };
        due -= leftover.tokens;
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// Gives back what was lent for a window that has not begun: this node will not be here then, or not know of it.
fn give_back_ahead(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(leftover) = key.holdings.take_ahead(now) {
        hand_over(key, cx, now, leftover, Voided::default());
    }
}

/// Hands back what the store has charged for somebody who did not get it.
pub(super) fn give_unclaimed(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.holdings.keep_unclaimed(Due::NEVER);
    // What an acquire under way brings the account cannot be told of yet.
    let is_settled = key.line.is_empty() && !key.calls.is_acquiring();
    let charged = if is_settled { key.charged_and_held() } else { 0 };
    give_back(key, cx, now, charged);
}

/// Tells the store what was spent of a bucket, before it takes that to have been later; and of an order that is
/// void that whatever it was lent goes back.
fn report(key: &mut LeasedKey, cx: &mut Context, now: Instant, voids: Voided) {
    let nothing = Leftover { tokens: 0, windows: vec![Timestamp::NONE; key.view.rule().limits.len()].into() };
    hand_over(key, cx, now, nothing, voids);
}

/// Tells the store what was spent of a bucket, if it has yet to hear of any.
pub(super) fn report_spent(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    if key.has_unreported() {
        report(key, cx, now, Voided::default());
    }
}

fn hand_over(key: &mut LeasedKey, cx: &mut Context, now: Instant, leftover: Leftover, voids: Voided) {
    let mut windows = [Timestamp::NONE; MAX_LIMITS];
    windows[..leftover.windows.len()].copy_from_slice(&leftover.windows);
    if on(Mutant::ReturnToCurrentWindow) {
        windows.iter_mut().zip(key.view.windows()).for_each(|(window, at)| *window = at);
    }
    let ages = key.ages(now, leftover.tokens);
    let order = if voids.id == 0 { key.take_doubtful(now) } else { voids };
    let voids = key.voided_by_now(order, leftover.tokens);
    // The store is told what was spent of buckets: it is charged there, and no more here.
    key.charge(leftover.tokens);
    key.view.note_returned(leftover.tokens, &windows);
    cx.policy_stats(key.policy()).returned += leftover.tokens;
    let op = Op::Return { amount: leftover.tokens, epoch: key.view.epoch(), held: key.held(), ages, windows, voids };
    let call = key.call(now, cx.id(), op);
    key.calls.send(cx, now, call);
}

/// Hands back what was lent under limits that apply no more: under the limits of then.
pub(super) fn give_back_grant(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, grant: &Grant) {
    let windows = std::array::from_fn(|index| match call.rule.limits.get(index) {
        Some(limit) if limit.algorithm != Algorithm::Gcra => grant.counters[index].at,
        _ => Timestamp::NONE,
    });
    let (amount, epoch, voids) = (grant.granted, grant.epoch, Voided::default());
    let op = Op::Return { amount, epoch, held: 0, ages: JUST_NOW, windows, voids };
    let call = Call { rule: call.rule.clone(), ..key.call(now, cx.id(), op) };
    key.calls.send(cx, now, call);
}

/// Other limits are about to apply. Nothing that is held may be spent under them: the store hears what was, and gets the
/// rest, together with what an order under way is lent.
pub(super) fn leave_limits(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.calls.send_all_queued(cx, now);
    let voids = match key.calls.end_acquire() {
        Some(acquire) => key.view.void_order(&acquire.call),
        None => key.calls.take_doubtful().map_or_else(Voided::default, |(order, _)| order),
    };
    if key.has_unreported() || voids.id != 0 {
        report(key, cx, now, voids);
    }
    give_back(key, cx, now, u64::MAX);
    hand_back_leftovers(key, cx, now);
}

/// The node leaves: hands everything back.
pub(in crate::core) fn give_all_back(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    drop_ended(key, cx, now);
    // What an acquire under way lends a bucket the store would take for spent, and charge as much of it as fits. All goes
    // back when the answer comes.
    if !key.calls.is_acquiring() || !key.view.has_account() {
        give_back(key, cx, now, u64::MAX);
    }
    give_back_ahead(key, cx, now);
}

/// The key is about to be forgotten: the store gets what it holds, and hears what was spent.
pub(in crate::core) fn part_with(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    give_back(key, cx, now, u64::MAX);
    give_back_ahead(key, cx, now);
    report_spent(key, cx, now);
    key.calls.forget_errands();
}

/// The key has been forgotten: what it held is nobody's.
pub(in crate::core) fn note_forgotten(key: &LeasedKey, cx: &mut Context) {
    cx.policy_stats(key.policy()).expired += key.all_held();
    cx.stats.evicted += 1;
    cx.note_degraded(key.outage.phase().is_away(), false);
}
