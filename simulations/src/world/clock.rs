//! A node's monotonic clock as a function of true time: it starts at any value, and runs a little fast or slow.

use rationd::core::time::Instant;

/// One node's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeClock {
    /// The true time at which it showed `start`.
    born: u64,
    start: u64,
    /// By how many millionths it runs fast.
    ppm: i64,
}

impl NodeClock {
    pub(super) fn new(born: u64, start: u64, ppm: i64) -> Self {
        Self { born, start, ppm }
    }

    /// The clock's time at `now`, rounded down.
    pub(super) fn local(&self, now: u64) -> Instant {
        let passed = i128::from(now - self.born) * i128::from(1_000_000 + self.ppm) / 1_000_000;
        Instant(self.start + passed as u64) // not negative: a clock does not run backwards
    }

    /// The first true time at which the clock shows `local` or more.
    pub(super) fn when(&self, local: Instant) -> u64 {
        let passed = i128::from(local.0.saturating_sub(self.start));
        let span = (passed * 1_000_000 + i128::from(999_999 + self.ppm)) / i128::from(1_000_000 + self.ppm);
        self.born.saturating_add(u64::try_from(span).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_when_its_time_is_shown_and_not_before() {
        for ppm in [-200, -1, 0, 3, 200] {
            let clock = NodeClock::new(1_000, 77, ppm);
            for local in [77, 78, 1_000, 123_456_789] {
                let when = clock.when(Instant(local));
                assert!(clock.local(when) >= Instant(local), "{ppm} ppm, {local}");
                assert!(when == 1_000 || clock.local(when - 1) < Instant(local), "{ppm} ppm, {local}");
            }
        }
    }
}
