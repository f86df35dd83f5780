//! How the store's clock stands to this node's, as answers show it.
//!
//! An answer bounds it by the length of its trip. Pure: called by `lease.rs` and `leased/key.rs`.

use super::time::{Instant, Micros, Timestamp};

/// How the store's clock stands to this node's, as of one answer: the store read its clock somewhere
/// between the sending of the call and the arrival of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreClock {
    /// The store's time less the local time at the sending.
    offset: i64,
    /// From the sending to the arrival.
    trip: u64,
    /// The arrival.
    at: Instant,
}

impl StoreClock {
    /// The relation shown by a call sent and answered at these local times.
    #[must_use]
    pub fn new(sent: Instant, arrived: Instant, store: Timestamp) -> Self {
        let offset = i64::try_from(i128::from(store.0) - i128::from(sent.0)).unwrap_or(i64::MAX);
        Self { offset, trip: arrived.since(sent).0, at: arrived }
    }

    /// From the sending of the call to the arrival of its answer.
    #[must_use]
    pub fn trip(&self) -> Micros {
        Micros(self.trip)
    }

    /// How long ago it was read.
    #[must_use]
    pub fn age(&self, now: Instant) -> Micros {
        now.since(self.at)
    }

    /// The latest that the store's clock can read at `now`.
    #[must_use]
    pub fn latest(&self, now: Instant) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.offset))
    }

    /// The earliest that the store's clock can read at `now`.
    #[must_use]
    pub fn earliest(&self, now: Instant) -> Timestamp {
        Timestamp(self.latest(now).0.saturating_sub(self.trip))
    }

    /// The time that the store's clock has surely reached at `now`, as far as both may have drifted apart since.
    #[must_use]
    pub fn surely(&self, now: Instant) -> Timestamp {
        Timestamp(self.earliest(now).0.saturating_sub(u64::try_from(self.drift(now)).unwrap_or(u64::MAX)))
    }

    /// The local time by which the store's clock has surely not passed `at`.
    #[must_use]
    pub fn before(&self, at: Timestamp) -> Instant {
        Instant(at.0.saturating_add_signed(self.offset.saturating_neg()))
    }

    /// The local time by which the store's clock has surely passed `at`.
    #[must_use]
    pub fn after(&self, at: Timestamp) -> Instant {
        self.before(at) + Micros(self.trip)
    }

    /// Both may be readings of one clock, as far as it drifts between them.
    #[must_use]
    pub fn agrees(&self, later: &Self) -> bool {
        let drift = self.drift(later.at);
        let starts = |clock: &Self| i128::from(clock.offset) - i128::from(clock.trip);
        starts(self) - drift <= i128::from(later.offset) && starts(later) <= i128::from(self.offset) + drift
    }

    /// What is known of the clock after a later reading: the closer of the two, as long as they agree. An
    /// answer that was long under way says little of when it was given.
    #[must_use]
    pub fn refined(self, later: Self) -> Self {
        let closer = i128::from(self.trip) + 2 * self.drift(later.at) < i128::from(later.trip);
        if closer && self.agrees(&later) { self } else { later }
    }

    /// How far this node's clock and the store's may have drifted apart since: 200 ppm.
    fn drift(&self, now: Instant) -> i128 {
        i128::from(now.since(self.at).0.div_ceil(5_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// A call of that trip, answered in the middle of it by a clock that is so much ahead.
    fn reading(sent: u64, trip: u64, ahead: u64) -> StoreClock {
        StoreClock::new(Instant(START + sent), Instant(START + sent + trip), Timestamp(START + sent + trip / 2 + ahead))
    }

    #[test]
    fn a_slow_answer_does_not_blur_what_a_quick_one_showed() {
        let quick = reading(0, 1_000, 70);
        assert_eq!(quick.refined(reading(9_000, 50_000, 70)), quick);
        let other = reading(9_000, 400, 70);
        assert_eq!(quick.refined(other), other);
    }

    #[test]
    fn a_clock_that_was_set_is_believed() {
        let quick = reading(0, 1_000, 70);
        for ahead in [40_000, 1_000_000] {
            let slow = reading(9_000, 50_000, ahead);
            assert!(!quick.agrees(&slow));
            assert_eq!(quick.refined(slow), slow);
        }
    }

    #[test]
    fn what_was_known_long_ago_is_no_closer() {
        let (quick, late) = (reading(0, 1_000, 70), reading(3_600_000_000, 50_000, 70));
        assert!(quick.agrees(&late));
        assert_eq!(quick.refined(late), late);
    }
}
