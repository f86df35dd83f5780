//! When a key must be looked at again, and how long what is known of it lasts.

use super::key::{LeasedKey, PATIENCE};
use crate::core::batch::refill_interval;
use crate::core::context::Context;
use crate::core::limit::{Algorithm, Limit};
use crate::core::share;
use crate::core::time::{Instant, Micros};

/// So long the store's return is awaited, so that it can be told of an order that was given up.
const DOUBTFUL: Micros = Micros::from_secs(600);

/// So long before an account closes it is renewed.
const CLOSING: Micros = Micros(600_000);

/// How long a remembered denial lasts before the store is asked in the background: a quarter of the window that
/// is spent, at most two seconds; where several are, of the longest. Of long windows it lasts longer each time
/// that the store had nothing: an hour that has been spent for a while rarely gets tokens back.
pub(super) fn probe_pause(key: &LeasedKey, now: Instant) -> Micros {
    let quarter = |limit: &Limit| match limit.algorithm {
        Algorithm::Gcra => 250_000,
        _ => limit.period.0 / 4,
    };
    let clamp = |pause: u64| pause.clamp(50_000, 2_000_000);
    let Some(longest) = longest_spent(key, now) else {
        return Micros(clamp(key.rule.limits.iter().map(quarter).min().unwrap_or(250_000)));
    };
    let least = clamp(quarter(longest));
    let most = least.max((longest.period.0 / 64).min(30_000_000));
    Micros((least << key.fruitless.saturating_sub(3).min(8)).min(most))
}

/// An active key leases a part of the next window shortly before it starts: a trip, 20 ms and up to a
/// quarter of the window, at random, so that a fleet does not ask at one instant.
pub(super) fn plan_ahead(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let [limit] = &key.rule.limits[..] else { return };
    let at = key.counters[0].at;
    let fits = limit.algorithm == Algorithm::Fixed && limit.period >= Micros(250_000);
    if !fits || !cx.settings.lease_ahead || key.ahead_of == at || !key.tuner.is_warm() {
        return;
    }
    // The answer has to be there when the window begins.
    let early = key.trip.min(Micros(limit.period.0 / 2)) + Micros(20_000) + cx.jitter(Micros(limit.period.0 / 4));
    key.ahead_of = at;
    key.ahead_at = (key.clock.before(at) - early).max(now);
}

/// Whether the store has yet to hear of an order that was given up, and its return is still awaited.
pub(super) fn has_to_tell(key: &LeasedKey, now: Instant) -> bool {
    key.doubtful.is_some() && now < key.last_check + DOUBTFUL
}

/// When the account of what is held must be renewed, or what is held handed back.
pub(super) fn closes(key: &LeasedKey) -> Instant {
    Instant(key.lease.until().0.saturating_sub(CLOSING.0))
}

pub(super) fn set_timer(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    let mut at = key.ahead_at;
    if let Some(waiter) = key.line.front() {
        at = at.min(waiter.deadline);
        at = key.lease.starts(now).map_or(at, |starts| at.min(starts));
        at = key.matures(now).map_or(at, |matures| at.min(matures.max(now + Micros(1))));
    }
    let queued = key.queued.iter().find_map(|errand| errand.waiters.first());
    for waiter in key.errands.iter().filter_map(|errand| errand.waiters.first()).chain(queued) {
        at = at.min(waiter.deadline);
    }
    at = at.min(key.unclaimed_until);
    if let Some(retry_at) = key.phase.retry_at()
        && key.is_due(now)
    {
        at = at.min(retry_at.max(now + PATIENCE));
    }
    if key.doubtful.is_some() {
        at = at.min(key.phase.retry_at().unwrap_or(now).max(now + PATIENCE));
    }
    if key.has_untold() {
        at = at.min(closes(key).max(now + PATIENCE));
    }
    if key.lease.held() > 0 {
        at = at.min(now + Micros(refill_interval(&key.rule).0 / 4)).min(closes(key).max(now + PATIENCE));
    } else if key.is_quiet() {
        // What keeps it longer than that is looked at once a second, and not each microsecond.
        let is_kept = key.is_indebted(now) || has_to_tell(key, now);
        let retry = if is_kept { Micros::from_secs(1) } else { Micros(1) };
        at = at.min(keep_until(key, now).max(now + retry));
    }
    if at < key.wake {
        key.wake = at;
        cx.set_timer(at, key.index);
    }
}

/// How long a quiet key is remembered: two of its shortest periods, or of the longest that is spent, within
/// [2 s, 1 min]; a minute where the node is alone with a window of more, of which it knows what is left if the store
/// goes away.
pub(super) fn keep_until(key: &LeasedKey, now: Instant) -> Instant {
    let shortest = key.rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default();
    let counted = key.rule.limits.iter().filter(|limit| key.nodes == 1 && share::is_counted(limit));
    let longest = longest_spent(key, now).into_iter().chain(counted).map(|limit| limit.period).max();
    let period = longest.unwrap_or(shortest);
    key.last_check + Micros(period.0.saturating_mul(2).clamp(2_000_000, 60_000_000))
}

/// The longest window of which the store is known to have nothing left.
fn longest_spent(key: &LeasedKey, now: Instant) -> Option<&Limit> {
    let latest = key.clock.latest(now);
    let limits = key.rule.limits.iter().zip(&key.counters);
    let spent = limits.filter(|(limit, counter)| {
        limit.algorithm != Algorithm::Gcra && key.answered.is_some() && counter.left(limit, latest) == 0
    });
    spent.map(|(limit, _)| limit).max_by_key(|limit| limit.period)
}

/// What is left of the first window to end.
pub(super) fn remaining(key: &LeasedKey, now: Instant) -> Micros {
    let latest = key.clock.latest(now);
    let windows = key.rule.limits.iter().zip(&key.counters).filter_map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra | Algorithm::Concurrent => None,
        Algorithm::Sliding => Some((counter.at + limit.period).since(latest)),
        Algorithm::Fixed | Algorithm::FixedFromFirst => Some(counter.at.since(latest)),
    });
    // A window that is over or not known leaves its whole length.
    windows.filter(|left| *left > Micros::ZERO).min().unwrap_or(Micros(u64::MAX))
}
