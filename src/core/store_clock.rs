//! The relation between the store's clock and this node's, as answers show it.
//!
//! An answer determines it to within its round trip. Pure. Called by `lease.rs` and `leased/key.rs`.

use super::rough::Rough;
use super::time::{DRIFT_PART, Instant, Micros, Timestamp};

/// The relation between the store's clock and this node's, as of one answer. The store has read its clock at some
/// time between the sending of the call and the arrival of the answer.
///
/// Packed, because a daemon keeps one for each of millions of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub struct StoreClock {
    /// The store's time minus the local time at which the call was sent.
    offset: i64,
    /// The round trip in microseconds, from sending to arrival. One of more than a quarter of an hour is rounded up, so that the store's clock
    /// is known a little less well.
    trip: Rough,
    /// The arrival.
    at: Instant,
}

/// Readings that come more often than this are not combined: each combination rounds the drift up to a microsecond, so
/// many of them would only widen the span.
const OFTEN: Micros = Micros(5_000);

impl StoreClock {
    /// The relation that an answer shows. The times are local, except for `store`.
    #[must_use]
    pub fn new(sent: Instant, arrived: Instant, store: Timestamp) -> Self {
        let offset = i64::try_from(i128::from(store.0) - i128::from(sent.0)).unwrap_or(i64::MAX);
        Self { offset, trip: Rough::at_least(arrived.since(sent).0), at: arrived }
    }

    /// The round trip of the answer.
    #[must_use]
    pub fn trip(&self) -> Micros {
        Micros(self.trip.get())
    }

    /// How long ago the answer arrived.
    #[must_use]
    pub fn age(&self, now: Instant) -> Micros {
        now.since(self.at)
    }

    /// The latest time that the store's clock can show at `now`.
    #[must_use]
    pub fn latest(&self, now: Instant) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.offset))
    }

    /// The earliest time that the store's clock can show at `now`.
    #[must_use]
    pub fn earliest(&self, now: Instant) -> Timestamp {
        Timestamp(self.latest(now).0.saturating_sub(self.trip.get()))
    }

    /// The time that the store's clock has surely reached at `now`, with the possible drift since the reading.
    #[must_use]
    pub fn surely(&self, now: Instant) -> Timestamp {
        Timestamp(self.earliest(now).0.saturating_sub(u64::try_from(self.drift(now)).unwrap_or(u64::MAX)))
    }

    /// The latest time that the store's clock can show at `now`, with the possible drift since the reading.
    #[must_use]
    pub fn at_most(&self, now: Instant) -> Timestamp {
        self.latest(now) + Micros(u64::try_from(self.drift(now)).unwrap_or(0))
    }

    /// The local time until which the store's clock has surely not passed `at`.
    #[must_use]
    pub fn before(&self, at: Timestamp) -> Instant {
        Instant(at.0.saturating_add_signed(self.offset.saturating_neg()))
    }

    /// The local time from which on the store's clock has surely passed `at`.
    #[must_use]
    pub fn after(&self, at: Timestamp) -> Instant {
        self.before(at) + self.trip()
    }

    /// The same, with the possible drift since the call was sent.
    #[must_use]
    pub fn surely_after(&self, at: Timestamp) -> Instant {
        let sent = self.at - self.trip();
        sent + self.after(at).since(sent).rounded_late()
    }

    /// Whether both can be readings of one clock, with the possible drift between them.
    #[must_use]
    pub fn agrees(&self, later: &Self) -> bool {
        let drift = self.drift(later.at);
        let starts = |clock: &Self| i128::from(clock.offset) - i128::from(clock.trip.get());
        starts(self) - drift <= i128::from(later.offset) && starts(later) <= i128::from(self.offset) + drift
    }

    /// Whether the later reading is of a clock that was set back, or of another server's that is behind.
    #[must_use]
    pub fn is_set_back(&self, later: &Self) -> bool {
        later.offset < self.offset && !self.agrees(later)
    }

    /// Combines two readings: the more precise one counts, as long as they agree. An answer with a long round trip
    /// says little about when the clock was read.
    #[must_use]
    pub fn refined(self, later: Self) -> Self {
        let closer = i128::from(self.trip.get()) + 2 * self.drift(later.at) < i128::from(later.trip.get());
        if closer && self.agrees(&later) { self } else { later }
    }

    /// The span of times that both readings allow at `now`, with the possible drift since each; `None` if they cannot
    /// be of one clock. So any number of readings moves the clock by no more than it may have drifted.
    #[must_use]
    pub fn narrowed(&self, now: Instant, other: &Self) -> Option<Self> {
        let bounds = |clock: &Self| {
            let (latest, drift) = (i128::from(clock.latest(now).0), clock.drift(now));
            (latest - i128::from(clock.trip.get()) - drift, latest + drift)
        };
        let ((earliest, latest), (others_earliest, others_latest)) = (bounds(self), bounds(other));
        let (earliest, latest) = (earliest.max(others_earliest).max(0), latest.min(others_latest));
        let trip = Rough::at_least(u64::try_from(latest - earliest).ok()?);
        if now.since(self.at) < OFTEN {
            return Some(*self);
        }
        let offset = i64::try_from(latest - i128::from(now.0)).ok()?;
        Some(Self { offset, trip, at: now })
    }

    /// The possible drift between both clocks since the reading: 200 ppm.
    fn drift(&self, now: Instant) -> i128 {
        i128::from(now.since(self.at).0.div_ceil(DRIFT_PART))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000;

    /// A reading with this round trip, in the middle of which the store's clock was read; the store's clock is ahead
    /// by `ahead`.
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
            assert!(!quick.agrees(&slow) && !quick.is_set_back(&slow) && slow.is_set_back(&quick));
            assert_eq!(quick.refined(slow), slow);
        }
    }

    #[test]
    fn readings_narrow_each_other_and_move_nothing() {
        let now = Instant(START + 100_000);
        let known =
            reading(0, 10_000, 70).narrowed(Instant(START + 90_000), &reading(0, 10_000, 70)).expect("the same");
        assert!(known.earliest(now) <= Timestamp(now.0 + 70) && Timestamp(now.0 + 70) <= known.latest(now));
        // A reading that is more precise, and one of another clock.
        let closer = known.narrowed(now, &reading(99_000, 1_000, 4_000)).expect("it may be the same clock");
        assert!(closer.trip() <= Micros(2_000) && closer.latest(now) <= known.latest(now) + Micros(2), "{closer:?}");
        assert!(closer.earliest(now) + Micros(2) >= known.earliest(now));
        assert_eq!(closer.narrowed(now, &known), Some(closer), "another so soon says nothing new");
        assert_eq!(known.narrowed(now, &reading(99_000, 1_000, 1_000_000)), None);
        // A reading with a doubt of an hour changes nothing.
        let vague = StoreClock::new(Instant(0), now, Timestamp(START));
        assert!(known.narrowed(now, &vague).is_some_and(|clock| clock.trip() <= known.trip() + Micros(4)));
    }

    #[test]
    fn what_clocks_that_drift_allow_never_ends_beside_the_truth() {
        // This node's clock is slow by 150 millionths, and the peers' are right, slow and fast by as much.
        let local = |at: u64, ppm: i64| Instant(START + at.saturating_add_signed(at as i64 * ppm / 1_000_000));
        let mut clock = StoreClock::new(local(0, -150), local(1_000, -150), Timestamp(START + 500));
        for second in 1..=60 {
            let at = second * 1_000_000;
            for ppm in [0, -150, 150] {
                // The peer read the store's clock 0.9 s ago, and answers within a millisecond.
                let read = at - 900_000;
                let peer = StoreClock::new(local(read, ppm), local(read + 1_000, ppm), Timestamp(START + read + 500));
                let bounds = [peer.surely(local(at, ppm)), peer.at_most(local(at, ppm))];
                let sent = local(at - 500, -150);
                let said = StoreClock::new(sent - bounds[1].since(bounds[0]), local(at + 500, -150), bounds[0]);
                clock = clock.narrowed(local(at + 500, -150), &said).expect("all tell of one clock");
                let (now, truth) = (local(at + 500, -150), Timestamp(START + at + 500));
                assert!(clock.earliest(now) <= truth && truth <= clock.latest(now), "{clock:?} at {second} s");
            }
        }
    }

    #[test]
    fn ten_thousand_readings_move_the_clock_by_no_more_than_it_drifts() {
        let mut clock = reading(0, 1_000, 0);
        for tenths in 1..10_000 {
            let now = Instant(START + tenths * 100);
            let most = StoreClock::new(now, now, clock.latest(now) + Micros(400));
            clock = clock.narrowed(now, &most).unwrap_or(clock);
        }
        let now = Instant(START + 1_000_000);
        assert!(clock.latest(now) <= Timestamp(now.0 + 1_000 + 1_000), "{clock:?}");
    }

    #[test]
    fn what_was_known_long_ago_is_no_closer() {
        let (quick, late) = (reading(0, 1_000, 70), reading(3_600_000_000, 50_000, 70));
        assert!(quick.agrees(&late));
        assert_eq!(quick.refined(late), late);
    }
}
