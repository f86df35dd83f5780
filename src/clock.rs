//! The only reader of system time and of the operating system's randomness.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::core::time::{Instant, Timestamp};

/// This process's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose origin is one hour ago, so that subtracting from an early instant is exact.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The monotonic time.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Instant {
        const HEAD_START: u64 = 3_600_000_000;
        Instant(HEAD_START + u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - HEAD_START))
    }

    /// Nanoseconds since the clock was started: for measuring.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn nanos(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The wall clock, Unix time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Sixty-four bits from the operating system's source of randomness.
#[must_use]
pub fn random() -> u64 {
    // std seeds each RandomState's keys from the operating system; hashing nothing shows the keys.
    RandomState::new().build_hasher().finish()
}

/// A number that nobody can guess who has seen others: each half is what a keyed hash makes of another key.
#[must_use]
pub fn unguessable() -> u128 {
    u128::from(random()) << 64 | u128::from(random())
}
