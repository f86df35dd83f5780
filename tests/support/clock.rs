//! The tests' only clock: measuring, pacing an open-loop load, and the wall clock for comparing with
//! `reset_at`. No test sleeps: what waits for a condition does it with `poll.rs`.

#![allow(clippy::disallowed_methods, reason = "this is the tests' clock")]

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A stopwatch: tests measure with it instead of reading clocks.
#[derive(Clone, Copy, Debug)]
pub struct Watch(Instant);

impl Watch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns when `due` has passed since the start; at once when it already has.
    pub fn pause_until(&self, due: Duration) {
        if let Some(rest) = due.checked_sub(self.elapsed()) {
            thread::sleep(rest);
        }
    }
}

/// Unix time in microseconds.
#[must_use]
pub fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    u64::try_from(since.as_micros()).expect("the clock is before the year 500,000")
}

/// Returns when the wall clock is `before` a whole multiple of `period`, so that a load that starts
/// then covers the next windows whole.
pub fn wait_for_boundary(period: Duration, before: Duration) {
    let period = u64::try_from(period.as_micros()).expect("a short period");
    let before = u64::try_from(before.as_micros()).expect("a short time");
    let start = wall_us() + before;
    Watch::start().pause_until(Duration::from_micros(period - start % period));
}
