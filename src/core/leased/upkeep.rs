//! What time does to a key: calls sent again, waiters past their deadline, leases of the next window,
//! surplus given back, and when the shard's timer must look at it again.

use super::errands::{answer_in_time, dispose, give_back, give_back_ahead, report};
use super::key::LeasedKey;
use super::phase::Phase;
use super::refill::{acquire, answer_first, give_unclaimed, send_acquire, serve_line};
use super::timers::{closes, has_to_tell, keep_until, remaining, set_timer};
use crate::core::batch::refill_interval;
use crate::core::call::{Acquire, Voided};
use crate::core::context::Context;
use crate::core::decision::Source;
use crate::core::gcra;
use crate::core::time::{Instant, Micros};

/// Answers after which what a waiter wants has been in an order: one may have been under way before.
const ASKED_FOR: u8 = 2;

/// Does what is due for one key; false when the key is of no more use.
pub(in crate::core) fn handle_timer(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> bool {
    let was_away = key.phase.is_away();
    refresh(key, cx, now);
    if key.ahead_at <= now {
        lease_next_window(key, cx, now);
    }
    // Nobody is denied while an answer is under way that may be for them.
    let due = key.flight.is_none() || key.is_away(now);
    if key.line.front().is_some_and(|waiter| due || key.lease.usable(now) >= waiter.cost) {
        serve_line(key, cx, now, Source::Store);
    }
    run_out(key, cx, now);
    answer_in_time(key, cx, now);
    if key.unclaimed_until <= now {
        give_unclaimed(key, cx, now);
    }
    if key.flight.is_none() && key.is_due(now) && key.phase.asks_again(now) {
        acquire(key, cx, now);
    }
    if key.doubtful.is_some() && !key.phase.waits(now) {
        report(key, cx, now, Voided::default());
    }
    let is_due = closes(key) <= now || key.is_quiet() && now >= keep_until(key, now);
    if key.has_untold() && key.lease.held() == 0 && is_due && key.flight.is_none() {
        report(key, cx, now, Voided::default());
    } else if key.lease.held() > 0 && cx.settings.lease_ahead {
        // Where there is plenty, whoever pauses for a moment finds what is held when he comes again.
        let pause = if key.has_account() && !key.is_pressed(now) { gcra::PERIOD } else { Micros::ZERO };
        let active = now.since(key.last_check) < refill_interval(&key.rule).max(pause);
        if closes(key) <= now && active && key.flight.is_none() && !key.is_away(now) {
            acquire(key, cx, now);
        } else {
            let amount = surplus(key, now);
            give_back(key, cx, now, amount);
        }
    }
    set_timer(key, cx, now);
    cx.note_degraded(was_away, key.phase.is_away());
    let is_told = !has_to_tell(key, now);
    !(key.is_quiet() && is_told && key.lease.held() == 0 && now >= keep_until(key, now) && !key.is_indebted(now))
}

/// Answers those in line who have waited as long as they may. The call that they wait for goes on.
pub(super) fn run_out(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    while let Some(waiter) = key.line.front().filter(|waiter| waiter.deadline <= now).copied() {
        let decision = if waiter.answers >= ASKED_FOR || key.is_exhausted(now, waiter.cost) {
            // The store was asked for it, and had less, or has said so since.
            key.deny_in_line(now, waiter.cost)
        } else if let Some(allowed) = key.let_first_pass(now, waiter.cost, cx.settings.timeout) {
            allowed
        } else {
            key.turn_away(now, waiter.cost, cx.queue())
        };
        answer_first(key, cx, now, decision);
    }
}

fn lease_next_window(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.ahead_at = Instant(u64::MAX);
    let recent = now.since(key.last_check) < refill_interval(&key.rule);
    let is_busy = key.flight.is_some() || key.doubtful.is_some();
    if is_busy || key.is_away(now) || cx.draining || !recent || !key.confirmed {
        return;
    }
    // In a flood it is gone before an answer of the store could come: it would only be one call more.
    if key.is_flooded(key.ceiling(cx.fleet)) {
        return;
    }
    let window = key.rule.limits[0].period;
    let few = key.tuner.used_in(window).min(key.tuner.few());
    // It has to last until a question that is asked in the window is answered.
    let soon = key.tuner.used_in(key.trip + key.trip);
    let want = (key.tuner.batch() / 4).max(few).max(soon).clamp(1, key.ceiling(cx.fleet));
    let (epoch, known) = (key.epoch, key.known(now));
    let order = Acquire {
        need: 0,
        want,
        least: 1,
        ahead_of: key.ahead_of,
        epoch,
        held: key.held(),
        ages: key.ages(now, 0),
        known,
    };
    send_acquire(key, cx, now, order);
}

/// Unspent tokens that others need more: all of them when the key is idle, else what two refill
/// intervals do not use; only while the limit is under pressure, and never a trifle.
fn surplus(key: &LeasedKey, now: Instant) -> u64 {
    // What an acquire under way lends a bucket's account is not known here: the store would take it for spent.
    if key.flight.is_some() && key.has_account() {
        return 0;
    }
    if closes(key) <= now {
        return key.lease.held();
    }
    // They are what is left of the share, which would have them once more.
    if matches!(key.phase, Phase::Repaid { .. }) {
        return 0;
    }
    // Whoever waits in line wants what is held, and more.
    if !key.line.is_empty() {
        return 0;
    }
    let pause = now.since(key.last_check);
    let interval = refill_interval(&key.rule);
    let held = key.lease.current(now);
    let idle = key.tuner.used_in(pause) > key.tuner.few() || pause > interval && !key.tuner.is_slow(interval);
    // Who asks for nothing hears of how much is left from peers only.
    let pressed = key.is_pressed(now) || key.is_pressed_by_fleet() || idle && key.is_pressed_by(now);
    if !pressed {
        return 0;
    }
    let few = key.tuner.used_in(remaining(key, now)).min(key.tuner.few());
    let kept = key.tuner.used_in(interval + interval).max(few);
    let spare = if idle { held } else { held.saturating_sub(kept) };
    // Whoever was told to come back finds what there is.
    let promised = key.promise.filter(|(at, _)| *at + interval > now).map_or(0, |(_, cost)| cost);
    let spare = spare.saturating_sub(promised);
    let smallest = key.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
    let trifle = if idle { smallest / 100 / u64::from(key.nodes.max(1)) } else { smallest / 100 };
    if spare >= trifle.max(2) { spare } else { 0 }
}

/// Drops what has ended and rolls what is known.
pub(super) fn refresh(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    key.roll(now);
    // The store has charged what this node did not account for in time, spent or not: it hears what was not.
    let lapsed = now >= key.lease.until() && key.lease.held() > 0 && key.flight.is_none();
    if lapsed {
        give_back(key, cx, now, u64::MAX);
    }
    if !key.lease.has_ended(now) {
        return;
    }
    let mut gone = Vec::new();
    let voided = key.lease.drop_ended(now, |leftover| gone.push(leftover));
    cx.policy_stats(key.policy).expired += voided;
    for leftover in gone {
        dispose(key, cx, now, leftover);
    }
}

/// The node leaves: hands everything back.
pub(in crate::core) fn give_all_back(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    refresh(key, cx, now);
    give_back(key, cx, now, u64::MAX);
    give_back_ahead(key, cx, now);
}

/// The key is about to be forgotten: the store gets what it holds, and hears what was spent.
pub(in crate::core) fn part_with(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    give_back(key, cx, now, u64::MAX);
    give_back_ahead(key, cx, now);
    if key.has_untold() {
        report(key, cx, now, Voided::default());
    }
    key.errands.clear();
}

/// The key has been forgotten: what it held is nobody's.
pub(in crate::core) fn note_forgotten(key: &LeasedKey, cx: &mut Context) {
    cx.policy_stats(key.policy).expired += key.all_held();
    cx.stats.evicted += 1;
    cx.note_degraded(key.phase.is_away(), false);
}
