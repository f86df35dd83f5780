//! A node's monotonic clock as a function of true time: it starts at any value, and runs a little fast or slow.

use rationd::core::time::Instant;

const SECOND: u64 = 1_000_000;

/// One node's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeClock {
    /// The true time at which it showed `start`.
    born: u64,
    start: u64,
    /// Its microseconds in a second.
    rate: u64,
}

impl NodeClock {
    /// `ppm`: by how many millionths it runs fast.
    pub(super) fn new(born: u64, start: u64, ppm: i64) -> Self {
        Self { born, start, rate: SECOND.saturating_add_signed(ppm) }
    }

    /// The clock's time at `now`, rounded down.
    pub(super) fn local(&self, now: u64) -> Instant {
        Instant(self.start + scaled(now - self.born, self.rate, 0, SECOND))
    }

    /// The first true time at which the clock shows `local` or more.
    pub(super) fn when(&self, local: Instant) -> u64 {
        self.born.saturating_add(scaled(local.0.saturating_sub(self.start), SECOND, self.rate - 1, self.rate))
    }
}

/// (a * b + more) / c. Mostly all of that has 64 bits, of which a division takes a third of the time.
fn scaled(a: u64, b: u64, more: u64, c: u64) -> u64 {
    let sum = a.checked_mul(b).and_then(|product| product.checked_add(more));
    sum.map_or_else(
        || u64::try_from((u128::from(a) * u128::from(b) + u128::from(more)) / u128::from(c)).unwrap_or(u64::MAX),
        |sum| sum / c,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_when_its_time_is_shown_and_not_before() {
        for ppm in [-200, -1, 0, 3, 200] {
            let clock = NodeClock::new(1_000, 77, ppm);
            for local in [77, 78, 1_000, 123_456_789, 1 << 60] {
                let when = clock.when(Instant(local));
                assert!(clock.local(when) >= Instant(local), "{ppm} ppm, {local}");
                assert!(when == 1_000 || clock.local(when - 1) < Instant(local), "{ppm} ppm, {local}");
            }
        }
    }
}
