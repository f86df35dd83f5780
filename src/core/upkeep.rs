//! What time does to a key: calls sent again, waiters past their deadline, leases of the next window,
//! surplus given back, and when the shard's timer must look at it again.

use super::batch::refill_interval;
use super::call::{Acquire, Call, Op, Voided};
use super::decision::Source;
use super::desk::Desk;
use super::errand::{answer_in_time, give_back, report};
use super::gcra;
use super::limit::{Algorithm, Limit};
use super::mutant::{Mutant, on};
use super::refill::{acquire, give_unclaimed, remaining, serve_line, settle_first, take_off};
use super::shard::Effect;
use super::share;
use super::slot::{Flight, Slot};
use super::time::{Instant, Micros};

/// Tokens that start so soon are worth waiting for.
pub(super) const PATIENCE: Micros = Micros(10_000);

/// Sendings of one call: it is sent again under the same id when the connection broke that it left by.
pub(super) const ATTEMPTS: u8 = 3;

/// Answers after which what a waiter wants has been in an order: one may have been under way before.
const ASKED_FOR: u8 = 2;

/// So long the store's return is awaited, so that it can be told of an order that was given up.
const DOUBTFUL: Micros = Micros::from_secs(600);

/// So long before an account closes it is renewed.
const CLOSING: Micros = Micros(600_000);

/// How long a remembered denial lasts before the store is asked in the background: a quarter of the window that
/// is spent, at most two seconds; where several are, of the longest. Of long windows it lasts longer each time
/// that the store had nothing: an hour that has been spent for a while rarely gets tokens back.
pub(super) fn probe_pause(slot: &Slot, now: Instant) -> Micros {
    let quarter = |limit: &Limit| match limit.algorithm {
        Algorithm::Gcra => 250_000,
        _ => limit.period.0 / 4,
    };
    let clamp = |pause: u64| pause.clamp(50_000, 2_000_000);
    let Some(longest) = longest_spent(slot, now) else {
        return Micros(clamp(slot.rule.limits.iter().map(quarter).min().unwrap_or(250_000)));
    };
    let least = clamp(quarter(longest));
    let most = least.max((longest.period.0 / 64).min(30_000_000));
    Micros((least << slot.fruitless.saturating_sub(3).min(8)).min(most))
}

/// An active key leases a part of the next window shortly before it starts: a trip, 20 ms and up to a
/// quarter of the window, at random, so that a fleet does not ask at one instant.
pub(super) fn plan_ahead(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    let [limit] = &slot.rule.limits[..] else { return };
    let at = slot.counters[0].at;
    let fits = limit.algorithm == Algorithm::Fixed && limit.period >= Micros(250_000);
    if !fits || !desk.settings.lease_ahead || slot.ahead_of == at || !slot.tuner.is_warm() {
        return;
    }
    // The answer has to be there when the window begins.
    let early = slot.trip.min(Micros(limit.period.0 / 2)) + Micros(20_000) + desk.jitter(Micros(limit.period.0 / 4));
    slot.ahead_of = at;
    slot.ahead_at = (slot.clock.before(at) - early).max(now);
}

/// Does what is due for one slot; false when the slot is of no more use.
pub(super) fn handle_timer(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) -> bool {
    if slot.ahead_at <= now {
        lease_next_window(index, slot, desk, now);
    }
    // Nobody is denied while an answer is under way that may be for them.
    let due = slot.flight.is_none() || slot.is_away(now);
    if slot.line.front().is_some_and(|waiter| due || slot.lease.usable(now) >= waiter.cost) {
        serve_line(index, slot, desk, now, Source::Store);
    }
    run_out(slot, desk, now);
    answer_in_time(slot, desk, now);
    if slot.unclaimed_until <= now {
        give_unclaimed(index, slot, desk, now);
    }
    if slot.flight.is_none() && slot.is_due(now) && slot.away.is_some_and(|away| now >= away.ask_again) {
        acquire(index, slot, desk, now);
    }
    if slot.doubtful.is_some() && slot.away.is_none_or(|away| now >= away.ask_again) {
        report(index, slot, desk, now, Voided::default());
    }
    let is_due = closes(slot) <= now || slot.is_quiet() && now >= keep_until(slot, now);
    if slot.has_untold() && slot.lease.held() == 0 && is_due && slot.flight.is_none() {
        report(index, slot, desk, now, Voided::default());
    } else if slot.lease.held() > 0 && desk.settings.lease_ahead {
        // Where there is plenty, whoever pauses for a moment finds what is held when he comes again.
        let pause = if slot.has_account() && !slot.is_pressed(now) { gcra::PERIOD } else { Micros::ZERO };
        let active = now.since(slot.last_check) < refill_interval(&slot.rule).max(pause);
        if closes(slot) <= now && active && slot.flight.is_none() && !slot.is_away(now) {
            acquire(index, slot, desk, now);
        } else {
            let amount = surplus(slot, now);
            give_back(index, slot, desk, now, amount);
        }
    }
    set_timer(index, slot, desk, now);
    let is_told = !has_to_tell(slot, now);
    !(slot.is_quiet() && is_told && slot.lease.held() == 0 && now >= keep_until(slot, now) && !slot.is_indebted(now))
}

/// Whether the store has yet to hear of an order that was given up, and its return is still awaited.
fn has_to_tell(slot: &Slot, now: Instant) -> bool {
    slot.doubtful.is_some() && now < slot.last_check + DOUBTFUL
}

/// Answers those in line who have waited as long as they may. The call that they wait for goes on.
pub(super) fn run_out(slot: &mut Slot, desk: &mut Desk, now: Instant) {
    while let Some(waiter) = slot.line.front().filter(|waiter| waiter.deadline <= now).copied() {
        let decision = if waiter.answers >= ASKED_FOR || slot.is_exhausted(now, waiter.cost) {
            // The store was asked for it, and had less, or has said so since.
            slot.deny_in_line(now, waiter.cost)
        } else if let Some(allowed) = slot.let_first_pass(now, waiter.cost, desk.settings.timeout) {
            allowed
        } else {
            slot.turn_away(now, waiter.cost, desk.queue())
        };
        settle_first(slot, desk, now, decision);
    }
}

fn lease_next_window(index: u32, slot: &mut Slot, desk: &mut Desk, now: Instant) {
    slot.ahead_at = Instant(u64::MAX);
    let recent = now.since(slot.last_check) < refill_interval(&slot.rule);
    let is_busy = slot.flight.is_some() || slot.doubtful.is_some();
    if is_busy || slot.is_away(now) || desk.draining || !recent || !slot.confirmed {
        return;
    }
    // In a flood it is gone before an answer of the store could come: it would only be one call more.
    if slot.is_flooded(slot.ceiling(desk.fleet)) {
        return;
    }
    let window = slot.rule.limits[0].period;
    let few = slot.tuner.used_in(window).min(slot.tuner.few());
    // It has to last until a question that is asked in the window is answered.
    let soon = slot.tuner.used_in(slot.trip + slot.trip);
    let want = (slot.tuner.batch() / 4).max(few).max(soon).clamp(1, slot.ceiling(desk.fleet));
    let (epoch, known) = (slot.epoch, slot.known(now));
    let order = Acquire {
        need: 0,
        want,
        least: 1,
        ahead_of: slot.ahead_of,
        epoch,
        held: slot.held(),
        ages: slot.ages(now, 0),
        known,
    };
    take_off(index, slot, desk, now, order);
}

pub(super) fn send_again(flight: &mut Flight, desk: &mut Desk, now: Instant) {
    flight.attempts += 1;
    flight.call.sent_at = now;
    let returns = matches!(flight.call.op, Op::Return { .. });
    if on(if returns { Mutant::ReturnUnderNewId } else { Mutant::RetryUnderNewId }) {
        flight.call.id = desk.id();
    }
    desk.effects.push_back(Effect::Call(flight.call.clone()));
}

pub(super) fn flight(call: Call, now: Instant) -> Flight {
    Flight { call, sent: now, attempts: 1, is_answered: false, waiters: Vec::new() }
}

/// When the account of what is held must be renewed, or what is held handed back.
fn closes(slot: &Slot) -> Instant {
    Instant(slot.lease.until().0.saturating_sub(CLOSING.0))
}

/// Unspent tokens that others need more: all of them when the key is idle, else what two refill
/// intervals do not use; only while the limit is under pressure, and never a trifle.
fn surplus(slot: &Slot, now: Instant) -> u64 {
    // What an acquire under way lends a bucket's account is not known here: the store would take it for spent.
    if slot.flight.is_some() && slot.has_account() {
        return 0;
    }
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
    let idle = slot.tuner.used_in(pause) > slot.tuner.few() || pause > interval && !slot.tuner.is_slow(interval);
    // Who asks for nothing hears of how much is left from peers only.
    let pressed = slot.is_pressed(now) || slot.is_pressed_by_fleet() || idle && slot.is_pressed_by(now);
    if !pressed {
        return 0;
    }
    let few = slot.tuner.used_in(remaining(slot, now)).min(slot.tuner.few());
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
        at = slot.matures(now).map_or(at, |matures| at.min(matures.max(now + Micros(1))));
    }
    let queued = slot.queued.iter().find_map(|errand| errand.waiters.first());
    for waiter in slot.errands.iter().filter_map(|errand| errand.waiters.first()).chain(queued) {
        at = at.min(waiter.deadline);
    }
    at = at.min(slot.unclaimed_until);
    if let Some(away) = slot.away
        && slot.is_due(now)
    {
        at = at.min(away.ask_again.max(now + PATIENCE));
    }
    if slot.doubtful.is_some() {
        at = at.min(slot.away.map_or(now, |away| away.ask_again).max(now + PATIENCE));
    }
    if slot.has_untold() {
        at = at.min(closes(slot).max(now + PATIENCE));
    }
    if slot.lease.held() > 0 {
        at = at.min(now + Micros(refill_interval(&slot.rule).0 / 4)).min(closes(slot).max(now + PATIENCE));
    } else if slot.is_quiet() {
        // What keeps it longer than that is looked at once a second, and not each microsecond.
        let is_kept = slot.is_indebted(now) || has_to_tell(slot, now);
        let retry = if is_kept { Micros::from_secs(1) } else { Micros(1) };
        at = at.min(keep_until(slot, now).max(now + retry));
    }
    desk.wake(index, slot, at);
}

/// How long a quiet key is remembered: two of its shortest periods, or of the longest that is spent, within
/// [2 s, 1 min]; a minute where the node is alone with a window of more, of which it knows what is left if the store
/// goes away.
fn keep_until(slot: &Slot, now: Instant) -> Instant {
    let shortest = slot.rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default();
    let counted = slot.rule.limits.iter().filter(|limit| slot.nodes == 1 && share::is_counted(limit));
    let longest = longest_spent(slot, now).into_iter().chain(counted).map(|limit| limit.period).max();
    let period = longest.unwrap_or(shortest);
    slot.last_check + Micros(period.0.saturating_mul(2).clamp(2_000_000, 60_000_000))
}

/// The longest window of which the store is known to have nothing left.
fn longest_spent(slot: &Slot, now: Instant) -> Option<&Limit> {
    let latest = slot.clock.latest(now);
    let limits = slot.rule.limits.iter().zip(&slot.counters);
    let spent = limits.filter(|(limit, counter)| {
        limit.algorithm != Algorithm::Gcra && slot.answered.is_some() && counter.left(limit, latest) == 0
    });
    spent.map(|(limit, _)| limit).max_by_key(|limit| limit.period)
}
