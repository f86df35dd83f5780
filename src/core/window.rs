//! Arithmetic of the algorithms with windows: aligned, from the first request, and sliding.
//!
//! The three numbers of a [`Counter`] mean what its table says. Pure. Called only by `counter.rs`; `lua/lib.lua` has
//! the same steps line for line. Every function except [`roll_fixed`] and its siblings expects a counter that was
//! rolled to the same `now`.
//!
//! Rounding: only the sliding estimate divides, and what is left of it is rounded down.

use super::call::Counter;
use super::limit::Limit;
use super::time::{Micros, Timestamp};

/// The end of the aligned window that contains `now`.
#[must_use]
pub fn aligned_end(limit: &Limit, now: Timestamp) -> Timestamp {
    aligned_start(limit, now) + limit.period
}

/// The start of the aligned window that contains `now`: rounded down to whole periods.
#[must_use]
pub fn aligned_start(limit: &Limit, now: Timestamp) -> Timestamp {
    Timestamp(now.0 / limit.period.0 * limit.period.0)
}

/// Rolls an aligned window to `now`. Tokens that were lent in advance count as used when their window begins.
pub fn roll_fixed(counter: &mut Counter, limit: &Limit, now: Timestamp) {
    // Each check comes here, most of them within the window, and the end of a window takes a division.
    if counter.at > now + limit.period {
        // The clock has stepped back, or the period was reduced. The count is kept, so that spent tokens stay spent.
        counter.at = aligned_end(limit, now);
    } else if now >= counter.at {
        let end = aligned_end(limit, now);
        let follows = !counter.is_unopened() && counter.at + limit.period == end;
        *counter = Counter { used: if follows { counter.prev } else { 0 }, prev: 0, at: end };
    }
}

/// Rolls a window that opens with its first debit to `now`; `at` is 0 while none is open.
pub fn roll_from_first(counter: &mut Counter, limit: &Limit, now: Timestamp) {
    if now >= counter.at {
        *counter = Counter::default();
    } else {
        counter.at = counter.at.min(now + limit.period);
    }
}

/// Rolls a sliding pair of windows to `now`: the count of the present one becomes that of the earlier one.
pub fn roll_sliding(counter: &mut Counter, limit: &Limit, now: Timestamp) {
    let start = aligned_start(limit, now);
    let end = counter.at + limit.period;
    if end == start {
        (counter.prev, counter.used) = (counter.used, 0);
    } else if end < start {
        (counter.prev, counter.used) = (0, 0);
    }
    counter.at = start;
}

/// Tokens left in a window that is not sliding.
#[must_use]
pub fn left_plain(counter: &Counter, limit: &Limit) -> u64 {
    limit.count.saturating_sub(counter.used)
}

/// The wait until `tokens`, at most the limit, are left in a window that is not sliding: the present one, the next
/// (less what was lent of it in advance), or the one after.
#[must_use]
pub fn wait_plain(counter: &Counter, limit: &Limit, now: Timestamp, tokens: u64) -> Micros {
    if left_plain(counter, limit) >= tokens {
        Micros::ZERO
    } else if limit.count.saturating_sub(counter.prev) >= tokens {
        counter.at.since(now)
    } else {
        (counter.at + limit.period).since(now)
    }
}

/// Tokens left by the sliding estimate. The earlier window counts by the fraction that the sliding one still covers,
/// rounded up, so that what is left is rounded down.
#[must_use]
pub fn left_sliding(counter: &Counter, limit: &Limit, now: Timestamp) -> u64 {
    let covered = (counter.at + limit.period).since(now).0.min(limit.period.0);
    let weighed = (u128::from(counter.prev) * u128::from(covered)).div_ceil(u128::from(limit.period.0));
    let weighed = u64::try_from(weighed).expect("a part of prev, which is a u64");
    left_plain(counter, limit).saturating_sub(weighed)
}

/// The wait until `tokens` are left by the sliding estimate, if nobody else spends; `None` when there are never so
/// many.
#[must_use]
pub fn wait_sliding(counter: &Counter, limit: &Limit, now: Timestamp, tokens: u64) -> Option<Micros> {
    if tokens > limit.count {
        return None;
    }
    if left_sliding(counter, limit, now) >= tokens {
        return Some(Micros::ZERO);
    }
    let end = counter.at + limit.period;
    if let Some(room) = limit.count.checked_sub(counter.used.saturating_add(tokens)) {
        let covered = largest_cover(counter.prev, room, limit);
        if covered > 0 {
            return Some((end - Micros(covered)).since(now));
        }
    }
    let covered = largest_cover(counter.used, limit.count - tokens, limit);
    Some((end + limit.period - Micros(covered)).since(now))
}

/// The longest part of a period over which `count` weighs at most `room`, rounded down.
fn largest_cover(count: u64, room: u64, limit: &Limit) -> u64 {
    if count <= room {
        return limit.period.0;
    }
    let covered = u128::from(room) * u128::from(limit.period.0) / u128::from(count);
    u64::try_from(covered).expect("room is below count, so this is below the period")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    fn at(used: u64, prev: u64, at: u64) -> Counter {
        Counter { used, prev, at: Timestamp(at) }
    }

    #[test]
    fn aligned_window_ends_at_the_boundary_itself() {
        let limit = limit("10/1ms fixed");
        let mut counter = at(4, 3, 5_000);
        roll_fixed(&mut counter, &limit, Timestamp(4_999));
        assert_eq!(counter, at(4, 3, 5_000));
        roll_fixed(&mut counter, &limit, Timestamp(5_000));
        assert_eq!(counter, at(3, 0, 6_000), "what was lent ahead is used now");
    }

    #[test]
    fn what_was_lent_ahead_counts_in_the_next_window_only() {
        let mut counter = at(4, 3, 5_000);
        roll_fixed(&mut counter, &limit("10/1ms fixed"), Timestamp(6_000));
        assert_eq!(counter, at(0, 0, 7_000));
    }

    #[test]
    fn clock_that_steps_back_forgets_nothing_spent() {
        let mut counter = at(4, 0, 9_000);
        roll_fixed(&mut counter, &limit("10/1ms fixed"), Timestamp(4_200));
        assert_eq!(counter, at(4, 0, 5_000));
        let mut counter = at(4, 1, 9_000);
        roll_sliding(&mut counter, &limit("10/1ms sliding"), Timestamp(4_200));
        assert_eq!(counter, at(4, 1, 4_000));
        let mut counter = at(4, 0, 9_000);
        roll_from_first(&mut counter, &limit("10/1ms fixed from-first"), Timestamp(4_200));
        assert_eq!(counter, at(4, 0, 5_200));
    }

    #[test]
    fn sliding_pair_shifts_once_and_then_forgets() {
        let limit = limit("10/1ms sliding");
        let mut counter = at(4, 7, 3_000);
        roll_sliding(&mut counter, &limit, Timestamp(4_000));
        assert_eq!(counter, at(0, 4, 4_000));
        roll_sliding(&mut counter, &limit, Timestamp(6_000));
        assert_eq!(counter, at(0, 0, 6_000));
    }

    #[test]
    fn sliding_estimate_rounds_down() {
        let (limit, counter) = (limit("10/1ms sliding"), at(2, 3, 4_000));
        assert_eq!(left_sliding(&counter, &limit, Timestamp(4_000)), 5);
        assert_eq!(left_sliding(&counter, &limit, Timestamp(4_333)), 5);
        assert_eq!(left_sliding(&counter, &limit, Timestamp(4_334)), 6);
        assert_eq!(left_sliding(&counter, &limit, Timestamp(4_999)), 7);
    }

    #[test]
    fn counts_above_a_lowered_limit_leave_nothing() {
        assert_eq!(left_plain(&at(50, 0, 5_000), &limit("10/1ms fixed")), 0);
        assert_eq!(left_sliding(&at(0, 50, 4_000), &limit("10/1ms sliding"), Timestamp(4_100)), 0);
    }
}
