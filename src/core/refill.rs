//! One key's traffic with the store: when to acquire, how much, and what an answer or its absence
//! does to those who wait.
//!
//! One acquire per key is under way at a time. It asks for what waits and for what the tuner wants;
//! those who arrive meanwhile line up behind it, and a partial grant serves the line from its head.
//! An unknown outcome is asked again under the same id, three times in all, never guessed.

use super::answer::Ending;
use super::batch::{Bounds, refill_interval};
use super::call::{Acquire, Call, Grant, Op, StoreError};
use super::decision::{Decision, Reason, Source, Verdict};
use super::desk::Desk;
use super::gcra;
use super::lease::{Leftover, Segment, gcra_life};
use super::limit::{Algorithm, MAX_LIMITS};
use super::policy::OnStoreLoss;
use super::shard::{Effect, Ticket, peeked, turned_away};
use super::slot::{Away, Flight, Slot};
use super::time::{Instant, Micros, Timestamp};

/// A call is sent again under the same id when no answer has come in this time.
const PATIENCE: Micros = Micros(10_000);

/// How long after the store is back a share goes on: all nodes have charged theirs by then.
const GRACE: Micros = Micros(1_000_000);

/// Sendings of one call.
const ATTEMPTS: u8 = 3;

/// Answers that may leave a waiter unsettled before it is turned away.
const ANSWERS: u8 = 4;

/// After a check has been decided from memory: refill at the low-water mark, ask again in the
/// background after a denial or while the store is away.
pub(super) fn after_decision(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, decision: &Decision) {
    if slot.flight.is_some() || desk.draining {
        return;
    }
    let due = match slot.away {
        // In each window the share begins with a question: the store may be back.
        Some(away) => (decision.source == Source::Share && slot.begins_share(now)) || now >= away.ask_again,
        None if decision.verdict == Verdict::Deny => now >= slot.probe_at && desk.settings.lease_ahead,
        None => desk.settings.lease_ahead && is_low(slot, now) && slot.has_left(now),
    };
    if due {
        acquire(index, slot, desk, now);
    }
}

/// A quarter of the lot is left, or what is used in 3 ms (at most three quarters of the lot).
fn is_low(slot: &Slot, now: Instant) -> bool {
    let mark = slot.tuner.used_in(Micros(3_000)).clamp(slot.lot / 4, slot.lot - slot.lot / 4);
    slot.tuner.is_warm() && slot.lease.current(now) <= mark
}

/// Somebody has joined the line: ask the store, unless an acquire is under way or tokens lent ahead
/// are about to start.
pub(super) fn ask_for_line(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    if slot.flight.is_none() && slot.lease.starts(now).is_none_or(|starts| starts > now + PATIENCE) {
        acquire(index, slot, desk, now);
    }
    set_timer(index, slot, desk, now);
}

fn acquire(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    if slot.away.is_some_and(|away| !away.charged) && slot.owes(now) {
        return charge(index, slot, desk, now);
    }
    let debt = slot.debt(now);
    let waiting: u64 = slot.line.iter().map(|waiter| waiter.cost).sum();
    let need = u32::try_from(waiting.saturating_add(debt)).unwrap_or(u32::MAX);
    let smallest = slot.line.iter().map(|waiter| waiter.cost).min();
    let least = if debt > 0 { 1 } else { smallest.map_or(1, |cost| u32::try_from(cost).unwrap_or(u32::MAX)) };
    let bounds =
        Bounds { need, ceiling: slot.ceiling(), interval: interval(slot, now), remaining: remaining(slot, now) };
    let tuned = slot.tuner.refill(now, bounds);
    // While Redis has no replica to hold what it lends, it lends only what waits.
    let want = if desk.settings.lease_ahead && slot.confirmed && !desk.draining { tuned } else { need };
    desk.policy_stats(slot).batch = u64::from(want.max(1));
    let (epoch, known) = (slot.epoch, slot.known());
    let order = Acquire { need, want: want.max(least), least, ahead_of: Timestamp(0), epoch, known };
    take_off(index, slot, desk, now, order);
}

/// The store may be back: asks for what the share admitted, and for nothing more.
fn charge(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let debt = u32::try_from(slot.debt(now)).unwrap_or(u32::MAX);
    let (epoch, known) = (slot.epoch, slot.known());
    let order = Acquire { need: debt, want: debt, least: 1, ahead_of: Timestamp(0), epoch, known };
    take_off(index, slot, desk, now, order);
}

fn take_off(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, order: Acquire) {
    let call = slot.call(now, desk.id(), Op::Acquire(order));
    desk.effects.push_back(Effect::Call(call.clone()));
    slot.flight = Some(flight(call, now, desk.settings.timeout, None, 0));
    set_timer(index, slot, desk, now);
}

fn flight(call: Call, now: Instant, timeout: Micros, ticket: Option<Ticket>, cost: u64) -> Flight {
    Flight { call, sent: now, attempts: 1, unanswered: 1, again: now + PATIENCE, ticket, cost, deadline: now + timeout }
}

/// Slots of a saturated gcra bucket mature at the limit's rate, whatever this node's own rate is:
/// of a longer run than this some would lapse before they are spent.
fn longest_run(slot: &Slot, now: Instant) -> u32 {
    let mut longest = u64::MAX;
    for (limit, counter) in slot.rule.limits.iter().zip(&slot.counters) {
        if limit.algorithm != Algorithm::Gcra || counter.left(limit, slot.clock.latest(now), Micros::ZERO) > 0 {
            continue;
        }
        let second = Micros::from_secs(1);
        let (own, whole) = (slot.tuner.used_in(second), gcra::tokens_in(limit, second));
        if own < whole {
            let spare = u128::from(slot.tuner.used_in(gcra_life(limit))) * u128::from(whole) / u128::from(whole - own);
            longest = longest.min(u64::try_from(spare).unwrap_or(u64::MAX));
        }
    }
    u32::try_from(longest).unwrap_or(u32::MAX).max(1)
}

/// How long the tokens of an acquire are meant to last.
fn interval(slot: &Slot, now: Instant) -> Micros {
    let mut interval = refill_interval(&slot.rule);
    for (limit, counter) in slot.rule.limits.iter().zip(&slot.counters) {
        // Slots of a bucket that is not empty are all mature, and lapse together.
        if limit.algorithm == Algorithm::Gcra && counter.left(limit, slot.clock.latest(now), Micros::ZERO) > 0 {
            interval = interval.min(gcra_life(limit));
        }
    }
    interval
}

/// What is left of the first window to end.
fn remaining(slot: &Slot, now: Instant) -> Micros {
    let latest = slot.clock.latest(now);
    let windows = slot.rule.limits.iter().zip(&slot.counters).filter_map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra => None,
        Algorithm::Sliding => Some((counter.at + limit.period).since(latest)),
        Algorithm::Fixed | Algorithm::FixedFromFirst => Some(counter.at.since(latest)),
    });
    // A window that is over or not known leaves its whole length.
    windows.filter(|left| *left > Micros::ZERO).min().unwrap_or(Micros(u64::MAX))
}

/// Takes the outcome of an acquire.
pub(super) fn handle_acquire(
    index: u32,
    slot: &mut Slot,
    desk: &mut Desk,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let current = slot.flight.as_ref().is_some_and(|flight| flight.call.id == call.id);
    if !current {
        // Given up, yet merely late: held, if its window is still open.
        if let (Some((id, sent)), Ok(grant)) = (slot.late, outcome)
            && id == call.id
        {
            slot.late = None;
            land(index, slot, desk, now, sent, call, &grant);
        }
        return;
    }
    match outcome {
        Ok(grant) => {
            let sent = slot.flight.take().map_or(now, |flight| flight.sent);
            land(index, slot, desk, now, sent, call, &grant);
        }
        Err(error) => miss(index, slot, desk, now, &error),
    }
    set_timer(index, slot, desk, now);
}

fn land(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, sent: Instant, call: &Call, grant: &Grant) {
    learn(slot, desk, now, call.sent_at, grant);
    slot.away = match slot.away {
        Some(away) if !away.charged && slot.owes(now) => Some(Away { ask_again: now + GRACE, charged: true }),
        _ => None,
    };
    let Op::Acquire(order) = call.op else { return };
    let ahead = order.ahead_of.0 != 0;
    desk.policy_stats(slot).granted += u64::from(grant.granted);
    let paid = if ahead { 0 } else { pay_debt(slot, desk, now, grant.granted) };
    let mut windows = [Timestamp(0); MAX_LIMITS];
    for (position, limit) in slot.rule.limits.iter().enumerate() {
        let at = grant.counters[position].at;
        windows[position] = if ahead { at + limit.period } else { at };
        if !ahead && limit.algorithm != Algorithm::Gcra && slot.counters[position].at == at {
            slot.net[position] += u64::from(grant.granted);
        }
    }
    let segment = Segment::new(&slot.rule, grant.granted - paid, sent, slot.clock, &windows, ahead);
    if segment.ends <= now {
        // A late answer for a window that is over.
        desk.policy_stats(slot).expired += u64::from(segment.left);
    } else if let Some(leftover) = slot.lease.add(&slot.rule, segment) {
        dispose(index, slot, desk, now, leftover);
    }
    if !ahead {
        slot.lot = slot.lease.current(now);
        let pause = probe_pause(slot);
        let last = slot.lease.matures(&slot.rule, slot.lease.current(now)).filter(|last| *last > now);
        let planned = last.unwrap_or(now + pause + desk.jitter(Micros(pause.0 / 4)));
        slot.probe_at = planned.clamp(now + Micros(pause.0 / 8), now + pause + pause);
        plan_ahead(slot, desk, now);
    }
    for waiter in &mut slot.line {
        waiter.answers += 1;
    }
    serve_line(index, slot, desk, now, Source::Store);
    if desk.draining && slot.line.is_empty() {
        give_back(index, slot, desk, now, u64::MAX);
    }
}

/// Takes note of any answer, and of what it says about what the store lost.
fn learn(slot: &mut Slot, desk: &mut Desk, now: Instant, sent: Instant, grant: &Grant) {
    desk.stats.damaged += u64::from(grant.damaged);
    if slot.epoch != 0 && grant.epoch != 0 && grant.epoch != slot.epoch {
        if grant.reset {
            let voided = slot.lease.void();
            desk.policy_stats(slot).expired += voided;
            slot.share = None;
        } else {
            desk.stats.lost_epochs += 1;
        }
        if grant.reset {
            slot.net.fill(0);
        }
    }
    slot.learn(now, sent, grant);
}

/// What was admitted on the share is charged first.
fn pay_debt(slot: &mut Slot, desk: &mut Desk, now: Instant, granted: u32) -> u32 {
    let paid = slot.debt(now).min(u64::from(granted));
    if let (true, Some(book)) = (paid > 0, &mut slot.share) {
        book.pay(paid);
        desk.policy_stats(slot).spent += paid;
    }
    paid as u32 // at most `granted`
}

/// Serves the line from its head as far as the answer goes, and asks again for the rest.
fn serve_line(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, source: Source) {
    while let Some(waiter) = slot.line.front().copied() {
        let decision = match slot.decide(now, waiter.cost, source) {
            Some(decision) => decision,
            None if waiter.answers >= ANSWERS => slot.answer(now, waiter.cost, turned_away(&slot.rule)),
            None => break,
        };
        slot.line.pop_front();
        desk.stats.waiting -= 1;
        desk.count(slot, waiter.cost, &decision);
        desk.effects.push_back(Effect::Reply { ticket: waiter.ticket, decision });
    }
    if !slot.line.is_empty() {
        ask_for_line(index, slot, desk, now);
    }
}

/// One sending of the acquire failed.
fn miss(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, error: &StoreError) {
    let Some(flight) = &mut slot.flight else { return };
    flight.unanswered = flight.unanswered.saturating_sub(1);
    if *error == StoreError::Unknown && flight.attempts < ATTEMPTS {
        send_again(flight, desk, now);
        return;
    }
    if flight.unanswered > 0 {
        return;
    }
    give_up(index, slot, desk, now, error);
}

fn give_up(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, error: &StoreError) {
    let Some(flight) = slot.flight.take() else { return };
    let since = match error {
        StoreError::Away { since } => *since,
        StoreError::Unknown | StoreError::Full => flight.sent,
    };
    if *error == StoreError::Unknown || flight.attempts > 1 {
        slot.late = Some((flight.call.id, flight.sent));
    }
    slot.lose_store(now, since);
    serve_line(index, slot, desk, now, Source::Store);
}

fn send_again(flight: &mut Flight, desk: &mut Desk, now: Instant) {
    flight.attempts += 1;
    flight.unanswered += 1;
    flight.again = now + PATIENCE;
    flight.call.sent_at = now;
    desk.effects.push_back(Effect::Call(flight.call.clone()));
}

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

/// Takes the outcome of a peek, refund, reset or return.
pub(super) fn handle_errand(
    index: u32,
    slot: &mut Slot,
    desk: &mut Desk,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let Some(position) = slot.errands.iter().position(|errand| errand.call.id == call.id) else { return };
    let errand = &mut slot.errands[position];
    errand.unanswered = errand.unanswered.saturating_sub(1);
    match outcome {
        Ok(grant) => {
            let errand = slot.errands.swap_remove(position);
            learn(slot, desk, now, call.sent_at, &grant);
            if errand.call.op == Op::Reset {
                let voided = slot.lease.void();
                desk.policy_stats(slot).expired += voided;
                slot.net.fill(0);
                slot.share = None;
            }
            if let Some(ticket) = errand.ticket {
                let decision = peeked(slot, now, errand.cost, Source::Store);
                desk.effects.push_back(Effect::Reply { ticket, decision });
            }
        }
        Err(StoreError::Unknown) if errand.attempts < ATTEMPTS => send_again(errand, desk, now),
        Err(_) if errand.unanswered > 0 => {}
        Err(_) => {
            let errand = slot.errands.swap_remove(position);
            fail_errand(slot, desk, now, &errand);
        }
    }
    set_timer(index, slot, desk, now);
}

fn fail_errand(slot: &mut Slot, desk: &mut Desk, now: Instant, errand: &Flight) {
    let Some(ticket) = errand.ticket else { return };
    let ending = match (errand.call.op, slot.rule.on_store_loss) {
        (Op::Peek, OnStoreLoss::Allow) => Ending::allow(Source::Policy),
        (Op::Peek, OnStoreLoss::Share) => Ending::allow(Source::Share),
        _ => Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)),
    };
    let decision = slot.answer(now, errand.cost, ending);
    desk.effects.push_back(Effect::Reply { ticket, decision });
}

/// Tokens that can no longer be spent here. Where a policy has several limits, a window that is
/// still open gets them back; otherwise they lapse.
pub(super) fn dispose(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, leftover: Leftover) {
    if slot.rule.limits.len() == 1 || slot.away.is_some() {
        desk.policy_stats(slot).expired += u64::from(leftover.tokens);
        return;
    }
    hand_over(index, slot, desk, now, leftover);
}

/// Gives up to `amount` unspent tokens back to the store. They leave here before the call is sent.
pub(super) fn give_back(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, amount: u64) {
    let mut due = amount;
    while due > 0 {
        let Some(leftover) = slot.lease.take(&slot.rule, now, due) else { break };
        due -= u64::from(leftover.tokens);
        hand_over(index, slot, desk, now, leftover);
    }
}

fn hand_over(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant, leftover: Leftover) {
    let mut windows = [Timestamp(0); MAX_LIMITS];
    windows[..leftover.windows.len()].copy_from_slice(&leftover.windows);
    for (position, counter) in slot.counters.iter().enumerate() {
        if counter.at == windows[position] {
            slot.net[position] = slot.net[position].saturating_sub(u64::from(leftover.tokens));
        }
    }
    desk.policy_stats(slot).returned += u64::from(leftover.tokens);
    let op = Op::Return { amount: leftover.tokens, epoch: slot.epoch, windows };
    send_errand(slot, desk, now, op, None, 0);
    set_timer(index, slot, desk, now);
}

/// How long a remembered denial lasts before the store is asked in the background.
fn probe_pause(slot: &Slot) -> Micros {
    let quarter = |limit: &super::limit::Limit| match limit.algorithm {
        Algorithm::Gcra => 250_000,
        _ => limit.period.0 / 4,
    };
    let shortest = slot.rule.limits.iter().map(quarter).min().unwrap_or(250_000);
    Micros(shortest.clamp(50_000, 2_000_000))
}

/// An active key leases a part of the next window shortly before it starts: 20 ms and up to a
/// twentieth of the window, at random, so that a fleet does not ask at one instant.
fn plan_ahead(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let [limit] = &slot.rule.limits[..] else { return };
    let at = slot.counters[0].at;
    let fits = limit.algorithm == Algorithm::Fixed && limit.period >= Micros(250_000);
    if !fits || !desk.settings.lease_ahead || slot.ahead_of == at || !slot.tuner.is_warm() {
        return;
    }
    let early = Micros(20_000) + desk.jitter(Micros(limit.period.0 / 20));
    slot.ahead_of = at;
    slot.ahead_at = (slot.clock.before(at) - early).max(now);
}

fn lease_next_window(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    slot.ahead_at = Instant(u64::MAX);
    let recent = now.since(slot.last_check) < refill_interval(&slot.rule);
    if slot.flight.is_some() || slot.away.is_some() || desk.draining || !recent || !slot.confirmed {
        return;
    }
    let want = (slot.tuner.batch() / 4).clamp(1, slot.ceiling());
    let (epoch, known) = (slot.epoch, slot.known());
    let order = Acquire { need: 0, want, least: 1, ahead_of: slot.ahead_of, epoch, known };
    take_off(index, slot, desk, now, order);
}

/// Does what is due for one slot; false when the slot is of no more use.
pub(super) fn handle_timer(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) -> bool {
    if slot.ahead_at <= now {
        lease_next_window(index, slot, desk, now);
    }
    if slot.line.front().is_some_and(|waiter| waiter.deadline <= now) && slot.away.is_none() {
        let since = slot.flight.as_ref().map_or(now, |flight| flight.sent);
        slot.lose_store(now, since);
    }
    if !slot.line.is_empty() {
        serve_line(index, slot, desk, now, Source::Store);
    }
    resend(index, slot, desk, now);
    if slot.flight.is_none() && slot.debt(now) > 0 && slot.away.is_some_and(|away| now >= away.ask_again) {
        acquire(index, slot, desk, now);
    }
    if slot.lease.held() > 0 && desk.settings.lease_ahead {
        let amount = surplus(slot, now);
        give_back(index, slot, desk, now, amount);
    }
    set_timer(index, slot, desk, now);
    !(slot.is_quiet() && slot.lease.held() == 0 && now >= keep_until(slot) && !slot.owes(now))
}

fn resend(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let given_up = slot.flight.as_mut().is_some_and(|flight| !keep_asking(flight, desk, now));
    if given_up {
        give_up(index, slot, desk, now, &StoreError::Unknown);
    }
    let mut position = 0;
    while position < slot.errands.len() {
        if keep_asking(&mut slot.errands[position], desk, now) {
            position += 1;
        } else {
            let errand = slot.errands.swap_remove(position);
            fail_errand(slot, desk, now, &errand);
        }
    }
}

/// False when a call has been sent often enough and waited for long enough.
fn keep_asking(flight: &mut Flight, desk: &mut Desk, now: Instant) -> bool {
    if flight.again > now {
        return true;
    }
    if flight.attempts < ATTEMPTS {
        send_again(flight, desk, now);
        return true;
    }
    flight.again = flight.deadline;
    now < flight.deadline
}

/// Unspent tokens that others need more: all of them when the key is idle, else what two refill
/// intervals do not use; only while the limit is under pressure, and never a trifle.
fn surplus(slot: &Slot, now: Instant) -> u64 {
    let latest = slot.clock.latest(now);
    let pressed = slot.rule.limits.iter().zip(&slot.counters).any(|(limit, counter)| {
        counter.left(limit, latest, Micros::ZERO).saturating_mul(10) < limit.capacity().saturating_mul(3)
    });
    if !pressed {
        return 0;
    }
    let pause = now.since(slot.last_check);
    let interval = refill_interval(&slot.rule);
    let held = slot.lease.current(now);
    let idle = slot.tuner.used_in(pause) > 8 || pause > interval;
    let spare = if idle { held } else { held.saturating_sub(slot.tuner.used_in(interval + interval)) };
    let smallest = slot.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
    if spare >= (smallest / 100).max(2) { spare } else { 0 }
}

fn set_timer(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let mut at = slot.ahead_at;
    if let Some(waiter) = slot.line.front() {
        at = at.min(waiter.deadline);
        at = slot.lease.starts(now).map_or(at, |starts| at.min(starts));
    }
    for flight in slot.flight.iter().chain(&slot.errands) {
        at = at.min(flight.again);
    }
    if let Some(away) = slot.away
        && slot.debt(now) > 0
    {
        at = at.min(away.ask_again.max(now + PATIENCE));
    }
    if slot.lease.held() > 0 {
        at = at.min(now + Micros(refill_interval(&slot.rule).0 / 4));
    } else if slot.is_quiet() {
        let retry = if slot.owes(now) { Micros::from_secs(1) } else { Micros(1) };
        at = at.min(keep_until(slot).max(now + retry));
    }
    desk.wake(index, slot, at);
}

/// How long a quiet key is remembered: two of its shortest periods within [2 s, 1 min].
fn keep_until(slot: &Slot) -> Instant {
    let shortest = slot.rule.limits.iter().map(|limit| limit.period.0).min().unwrap_or(0);
    slot.last_check + Micros(shortest.saturating_mul(2).clamp(2_000_000, 60_000_000))
}
