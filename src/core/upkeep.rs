//! What time does to a key: calls sent again, waiters past their deadline, leases of the next window,
//! surplus given back, and when the shard's timer must look at it again.

use super::batch::{SMALL, refill_interval};
use super::call::{Acquire, Call, Op, StoreError};
use super::decision::Source;
use super::desk::Desk;
use super::errand::{fail_errand, give_back, report};
use super::limit::{Algorithm, Limit};
use super::mutant::{Mutant, on};
use super::refill::{acquire, give_up, remaining, serve_line, settle_first, take_off};
use super::shard::{Effect, Ticket};
use super::slot::{Flight, Slot, Waiter};
use super::time::{Instant, Micros};

/// A call is sent again under the same id when no answer has come in this time.
pub(super) const PATIENCE: Micros = Micros(10_000);

/// Sendings of one call.
pub(super) const ATTEMPTS: u8 = 3;

/// Answers after which what a waiter wants has been in an order: one may have been under way before.
const ASKED_FOR: u8 = 2;

/// So long before an account closes it is renewed.
const CLOSING: Micros = Micros(300_000);

/// How long a remembered denial lasts before the store is asked in the background.
pub(super) fn probe_pause(slot: &Slot) -> Micros {
    let quarter = |limit: &Limit| match limit.algorithm {
        Algorithm::Gcra => 250_000,
        _ => limit.period.0 / 4,
    };
    let shortest = slot.rule.limits.iter().map(quarter).min().unwrap_or(250_000);
    Micros(shortest.clamp(50_000, 2_000_000))
}

/// An active key leases a part of the next window shortly before it starts: 20 ms and up to a
/// quarter of the window, at random, so that a fleet does not ask at one instant.
pub(super) fn plan_ahead(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let [limit] = &slot.rule.limits[..] else { return };
    let at = slot.counters[0].at;
    let fits = limit.algorithm == Algorithm::Fixed && limit.period >= Micros(250_000);
    if !fits || !desk.settings.lease_ahead || slot.ahead_of == at || !slot.tuner.is_warm() {
        return;
    }
    let early = Micros(20_000) + desk.jitter(Micros(limit.period.0 / 4));
    slot.ahead_of = at;
    slot.ahead_at = (slot.clock.before(at) - early).max(now);
}

/// Does what is due for one slot; false when the slot is of no more use.
pub(super) fn handle_timer(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) -> bool {
    if slot.ahead_at <= now {
        lease_next_window(index, slot, desk, now);
    }
    if slot.line.front().is_some_and(|waiter| waiter.deadline <= now) && !slot.is_away(now) {
        run_out(slot, desk, now);
    }
    // Nobody is denied while an answer is under way that may be for them.
    let due = slot.flight.is_none() || slot.is_away(now);
    if slot.line.front().is_some_and(|waiter| due || slot.lease.usable(now) >= waiter.cost) {
        serve_line(index, slot, desk, now, Source::Store);
    }
    resend(index, slot, desk, now);
    if slot.flight.is_none() && slot.debt(now) > 0 && slot.away.is_some_and(|away| now >= away.ask_again) {
        acquire(index, slot, desk, now);
    }
    if slot.has_untold() && slot.lease.held() == 0 && closes(slot) <= now {
        report(index, slot, desk, now);
    } else if slot.lease.held() > 0 && desk.settings.lease_ahead {
        let active = now.since(slot.last_check) < refill_interval(&slot.rule);
        if closes(slot) <= now && active && slot.flight.is_none() && !slot.is_away(now) {
            acquire(index, slot, desk, now);
        } else {
            let amount = surplus(slot, now);
            give_back(index, slot, desk, now, amount);
        }
    }
    set_timer(index, slot, desk, now);
    !(slot.is_quiet() && slot.lease.held() == 0 && now >= keep_until(slot) && !slot.is_indebted(now))
}

/// The first in line has waited as long as it may.
fn run_out(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let is_known = |slot: &Slot, waiter: &Waiter| waiter.answers >= ASKED_FOR || slot.is_exhausted(now, waiter.cost);
    while let Some(waiter) = slot.line.front().filter(|waiter| waiter.deadline <= now && is_known(slot, waiter)) {
        // The store was asked for it, and had less, or has said so since: that is no silence.
        let decision = slot.deny_in_line(now, waiter.cost);
        settle_first(slot, desk, now, decision);
    }
    if slot.line.front().is_some_and(|waiter| waiter.deadline <= now) {
        let since = slot.flight.as_ref().map_or(now, |flight| flight.sent);
        slot.lose_store(now, since);
    }
}

fn lease_next_window(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    slot.ahead_at = Instant(u64::MAX);
    let recent = now.since(slot.last_check) < refill_interval(&slot.rule);
    if slot.flight.is_some() || slot.is_away(now) || desk.draining || !recent || !slot.confirmed {
        return;
    }
    // In a flood it is gone before an answer of the store could come: it would only be one call more.
    if slot.is_flooded(slot.ceiling(desk.fleet)) {
        return;
    }
    let window = slot.rule.limits[0].period;
    let few = slot.tuner.used_in(window).min(SMALL.into());
    let want = (slot.tuner.batch() / 4).max(few as u32).clamp(1, slot.ceiling(desk.fleet));
    let (epoch, known) = (slot.epoch, slot.known());
    let order = Acquire {
        need: 0,
        want,
        least: 1,
        ahead_of: slot.ahead_of,
        epoch,
        held: slot.held(),
        age: slot.age(now),
        known,
    };
    take_off(index, slot, desk, now, order);
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

pub(super) fn send_again(flight: &mut Flight, desk: &mut Desk, now: Instant) {
    flight.attempts += 1;
    flight.unanswered += 1;
    flight.again = now + PATIENCE;
    flight.call.sent_at = now;
    let returns = matches!(flight.call.op, Op::Return { .. });
    if on(if returns { Mutant::ReturnUnderNewId } else { Mutant::RetryUnderNewId }) {
        flight.call.id = desk.id();
    }
    desk.effects.push_back(Effect::Call(flight.call.clone()));
}

pub(super) fn flight(call: Call, now: Instant, timeout: Micros, ticket: Option<Ticket>, cost: u64) -> Flight {
    Flight { call, sent: now, attempts: 1, unanswered: 1, again: now + PATIENCE, ticket, cost, deadline: now + timeout }
}

/// When the account of what is held must be renewed, or what is held handed back.
fn closes(slot: &Slot) -> Instant {
    Instant(slot.lease.until().0.saturating_sub(CLOSING.0))
}

/// Unspent tokens that others need more: all of them when the key is idle, else what two refill
/// intervals do not use; only while the limit is under pressure, and never a trifle.
fn surplus(slot: &Slot, now: Instant) -> u64 {
    if closes(slot) <= now {
        return slot.lease.held();
    }
    // They are what is left of the share, which would have them once more.
    if slot.away.is_some_and(|away| away.charged) {
        return 0;
    }
    // Whoever waits in line wants what is held, and more.
    if !slot.line.is_empty() {
        return 0;
    }
    let pause = now.since(slot.last_check);
    let interval = refill_interval(&slot.rule);
    let held = slot.lease.current(now);
    let idle = slot.tuner.used_in(pause) > 8 || pause > interval && !slot.tuner.is_slow(interval);
    // Who asks for nothing hears of how much is left from peers only.
    let pressed = slot.is_pressed(now) || slot.is_pressed_by_fleet() || idle && slot.is_pressed_by(now);
    if !pressed {
        return 0;
    }
    let few = slot.tuner.used_in(remaining(slot, now)).min(SMALL.into());
    let kept = slot.tuner.used_in(interval + interval).max(few);
    let spare = if idle { held } else { held.saturating_sub(kept) };
    // Whoever was told to come back finds what there is.
    let promised = slot.promise.filter(|(at, _)| *at + interval > now).map_or(0, |(_, cost)| cost);
    let spare = spare.saturating_sub(promised);
    let smallest = slot.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
    let trifle = if idle { smallest / 100 / u64::from(slot.nodes.max(1)) } else { smallest / 100 };
    if spare >= trifle.max(2) { spare } else { 0 }
}

pub(super) fn set_timer(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
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
    if slot.has_untold() {
        at = at.min(closes(slot).max(now + PATIENCE));
    }
    if slot.lease.held() > 0 {
        at = at.min(now + Micros(refill_interval(&slot.rule).0 / 4)).min(closes(slot).max(now + PATIENCE));
    } else if slot.is_quiet() {
        let retry = if slot.is_indebted(now) { Micros::from_secs(1) } else { Micros(1) };
        at = at.min(keep_until(slot).max(now + retry));
    }
    desk.wake(index, slot, at);
}

/// How long a quiet key is remembered: two of its shortest periods within [2 s, 1 min].
fn keep_until(slot: &Slot) -> Instant {
    let shortest = slot.rule.limits.iter().map(|limit| limit.period.0).min().unwrap_or(0);
    slot.last_check + Micros(shortest.saturating_mul(2).clamp(2_000_000, 60_000_000))
}
