//! When a key must be looked at again, and for how long a quiet key is remembered.

use super::key::{LeasedKey, PATIENCE};
use crate::core::batch::refill_interval;
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::share;
use crate::core::time::{Due, Instant, Micros};

/// How long after its last check a key is kept that has abandoned an acquire, so that it can tell the store when that
/// is back.
const DOUBTFUL: Micros = Micros::from_secs(600);

/// An account is renewed at least this long before it closes, so that the call has time to wait for its turn at the store.
const CLOSING: Micros = Micros(600_000);

/// By up to this fraction of a period of accounts it is renewed earlier, by a time that the key's digest gives. The accounts of all keys close at
/// the same moments, every two to sixteen seconds. Were all renewed as long before, the store would have nothing to do at most times and at one
/// moment more than it can: of 20,000 keys that one node held, renewals kept checks waiting for 130 ms. An account that closes in more than a
/// period cannot be renewed yet.
const SPREAD_PART: u64 = 2;

/// A node calls so long before it would count as silent: as long as before an account closes, for the same reason.
pub(super) const SILENCE: Micros = Micros(600_000);

/// The store's last answer is old when such a part of a window has passed since: the store may have been lost meanwhile.
const UNHEARD_PART: u64 = 8;

/// Two trips and this time before a part of the next window is leased, the store is asked whether it is there: so its answer is known by then.
const SOUNDING: Micros = Micros(5_000);

/// Where a node uses fewer tokens of a window than so many times a few checks cost, it does not ask so. One call more in each window
/// costs more there than what is lost of one window in an outage: small-calm-entitled cost 1,016 calls per 1000 checks instead of 861.
const SOUNDED_FEW: u64 = 2;

/// How often a key that holds tokens is looked at in a refill interval: more often takes the node's time, and less often leaves idle tokens here
/// for longer, which others may lack.
const LOOKS: u64 = 4;

/// A quiet key is remembered for so many of its periods: what is counted in a sliding window weighs until the next one has ended.
const REMEMBERED_PERIODS: u64 = 2;

/// The shortest and the longest time for which a quiet key is remembered: for less, and a client that pauses finds its key's rate forgotten; for
/// more, and keys that nobody asks for again take memory.
const REMEMBERED: (u64, u64) = (2_000_000, 60_000_000);

/// Whether the store has yet to hear that an acquire was abandoned, and the key is kept until it has.
pub(super) fn has_to_void(key: &LeasedKey, now: Instant) -> bool {
    key.rare.calls.has_doubtful() && key.demand.last_check().is_some_and(|last| now < last + DOUBTFUL)
}

/// When the account of what is held must be renewed, or what is held returned.
pub(super) fn closes(key: &LeasedKey) -> Due {
    // Digests are evenly distributed. A product is found sooner than a rest, and this is asked with most checks.
    let spread = key.view.rule().account_period().0 / SPREAD_PART;
    let part = ((key.id().0 as u64 & u64::from(u32::MAX)) * spread) >> u32::BITS;
    key.holdings.lease().until() - CLOSING - Micros(part)
}

/// Whether what is held may go back before its account closes, without anything that is heard until then.
///
/// Only what others lack goes back. A bucket gets fuller as time passes, so one that is not short of tokens stays so by itself. But
/// while this node has much of one, the others share the rest, and that may run short. (A node holds tokens of many keys that are seldom
/// asked for, and to look at each of them eight times a second took it longer than their checks.)
fn may_give_back(key: &LeasedKey, now: Instant) -> bool {
    !key.view.is_of_buckets() || key.is_pressed(now) || key.has_much()
}

/// How long until a key is looked at whose tokens others may lack. Of a bucket that fills up sooner others ask as soon as it would have, so
/// it is looked at up to twice as often; more often, a node with many such keys would look at them longer than it decides their checks.
fn until_look(key: &LeasedKey) -> Micros {
    let buckets = key.view.rule().limits.iter().filter(|limit| limit.algorithm == Algorithm::Gcra);
    let fills = buckets.map(Limit::depth).min().unwrap_or(Micros::ENDLESS);
    let pause = refill_interval(key.view.rule()).0 / LOOKS;
    Micros(fills.0.clamp(pause / 2, pause))
}

/// When the key must be looked at again in its present state. The shard asks after each input that may have changed
/// it.
pub(in crate::core) fn next_timeout(key: &LeasedKey, now: Instant) -> Due {
    let mut at = key.rare.paces.ahead_at().map_or(Due::NEVER, Due::at);
    at = sounds_at(key).filter(|sounds_at| *sounds_at > now).map_or(at, |sounds_at| at.or(sounds_at));
    if let Some(waiter) = key.rare.line.first() {
        at = at.or(waiter.deadline);
        at = key.holdings.lease().starts(now).map_or(at, |starts| at.or(starts));
        at = key.matures(now).map_or(at, |matures| at.or(matures.max(now + Micros(1))));
    }
    at = key.rare.calls.asking().map_or(at, |asking| at.or(asking.deadline()));
    at = key.rare.calls.next_deadline().map_or(at, |deadline| at.or(deadline));
    at = key.rare.leaving.unclaimed_until().map_or(at, |until| at.or(until));
    if let Some(retry_at) = key.rare.outage.phase().retry_at()
        && key.is_due(now)
    {
        at = at.or(retry_at.max(now + PATIENCE));
    }
    if key.rare.calls.has_doubtful() {
        at = at.or(key.rare.outage.phase().retry_at().unwrap_or(now).max(now + PATIENCE));
    }
    // An acquire under way speaks for all of the account, and what else there is to do about that waits for its answer.
    let is_renewing = key.rare.calls.is_acquiring() && key.view.is_of_buckets();
    if key.has_unreported() && !is_renewing && !key.is_trifling(now) && !on(Mutant::SpendingTimerLost) {
        at = at.min(closes(key).max(Due::at(now + PATIENCE)));
        if key.has_much() {
            at = at.or(now + until_look(key));
        }
    }
    if let Some(silent) = key.silent_from()
        && !key.rare.calls.is_acquiring()
        && !key.rare.outage.phase().is_outage()
    {
        let calls = key.view.clock().before(silent - SILENCE).max(now + PATIENCE);
        at = at.min(Due::at(calls).max(key.rare.paces.crowded_until()));
    }
    if key.holdings.lease().held() > 0 {
        let until = key.holdings.lease().until();
        let is_left = closes(key).has_come(now) && key.is_trifling(now);
        let renews =
            if is_renewing || is_left { until } else { closes(key).max(key.rare.paces.crowded_until().min(until)) };
        at = at.min(renews.max(Due::at(now + PATIENCE)));
        if may_give_back(key, now) {
            at = at.or(now + until_look(key));
        }
    } else if key.is_quiet() {
        // A key that is kept for another reason is looked at once a second, and not every microsecond.
        let is_kept = key.is_indebted(now) || has_to_void(key, now) || key.is_entitled(now);
        let retry = if is_kept { Micros::from_secs(1) } else { Micros(1) };
        at = at.min(keep_until(key, now).max(Due::at(now + retry)));
        if key.is_entitled(now) {
            // What is set aside for a node that no longer uses the key others lack.
            let is_away = key.rare.outage.phase().is_outage();
            let pause = Micros(refill_interval(key.view.rule()).0 / LOOKS);
            at = at.or(now + if is_away { pause.max(Micros::from_secs(1)) } else { pause });
        }
    }
    at
}

/// Whether a look would change nothing and send nothing, because the timer was set for what has happened since.
///
/// The timer of a check that waits for the store stays when the answer comes, since to take it out of the calendar would cost more than to
/// let it pass. So it finds a key that only holds tokens of buckets that others do not lack, before these have to be accounted for: that
/// is every key that is asked for once.
pub(super) fn is_at_rest(key: &LeasedKey, now: Instant) -> bool {
    let lease = key.holdings.lease();
    let holds_on = lease.held() > 0 && !lease.has_ended(now) && !closes(key).has_come(now);
    key.rare.are_none() && holds_on && !may_give_back(key, now)
}

/// When the store is asked about the window that is open, before a part of the next one is leased, because it has answered nothing for a
/// while and may be lost; `None`: it need not be.
///
/// A call that leases of the next window frees what is set aside for this node of that, whatever becomes of the call. Were it the first
/// that goes unanswered, the node could admit nothing in that window.
pub(super) fn sounds_at(key: &LeasedKey) -> Option<Instant> {
    let (rule, trip, tuner) = (key.view.rule(), key.view.trip(), key.demand.tuner());
    let at = key.rare.paces.ahead_at()? - (trip + trip + SOUNDING);
    let period = rule.limits[0].period;
    let is_old = |answered| answered + Micros(period.0 / UNHEARD_PART) <= at;
    let is_worth_it = || tuner.used_in(period) >= tuner.few().saturating_mul(SOUNDED_FEW);
    (rule.is_entitled_window() && key.view.answered().is_none_or(is_old) && is_worth_it()).then_some(at)
}

/// How long a quiet key is remembered: for two of its shortest periods, or of the longest one that is spent, but at
/// least 2 s and at most a minute. A node that is alone with a longer window remembers the key for a minute: if the
/// store goes away, it still knows what is left.
pub(super) fn keep_until(key: &LeasedKey, now: Instant) -> Due {
    let Some(last) = key.demand.last_check() else { return Due::AT_ONCE };
    let shortest = key.view.rule().limits.iter().map(|limit| limit.period).min().unwrap_or_default();
    let counted = key.view.rule().limits.iter().filter(|limit| key.view.nodes() == 1 && share::is_counted(limit));
    let longest = key.view.longest_spent(now).into_iter().chain(counted).map(|limit| limit.period).max();
    let period = longest.unwrap_or(shortest);
    Due::at(last + Micros(period.0.saturating_mul(REMEMBERED_PERIODS).clamp(REMEMBERED.0, REMEMBERED.1)))
}

/// The time until the first window ends; endless where no limit has windows.
pub(super) fn remaining(key: &LeasedKey, now: Instant) -> Micros {
    let latest = key.view.clock().latest(now);
    let windows = key.view.limits().filter_map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra | Algorithm::Concurrent => None,
        Algorithm::Sliding => Some((counter.at + limit.period).since(latest)),
        Algorithm::Fixed | Algorithm::FixedFromFirst => Some(counter.at.since(latest)),
    });
    // A window that has ended or is unknown counts with its whole length.
    windows.filter(|left| *left > Micros::ZERO).min().unwrap_or(Micros::ENDLESS)
}
