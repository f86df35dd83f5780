//! The only reader of system time and of the operating system's randomness.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

// The daemon's timers and its clock both read tokio's time, so a test that pauses tokio's time pauses both. Without the
// daemon, std's instant is used.
#[cfg(not(feature = "daemon"))]
use std::time::Instant as SystemInstant;
#[cfg(feature = "daemon")]
use tokio::time::Instant as SystemInstant;

use crate::core::time::{Instant, Micros, Timestamp};

/// The time of a clock when it is started: one hour, so that a subtraction from an early instant does not go below
/// zero.
const HEAD_START: Micros = Micros::from_secs(3_600);

/// This process's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: SystemInstant,
    /// The time of the wall clock at the start; `None` when the system's wall clock is used.
    wall: Option<Timestamp>,
}

impl Clock {
    /// The system's clocks; the monotonic one begins now.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn start() -> Self {
        Self { origin: SystemInstant::now(), wall: None }
    }

    /// The same with a wall clock that shows `wall` now and advances with the monotonic clock. For simulations, whose
    /// time is not the system's.
    #[must_use]
    pub fn start_at(wall: Timestamp) -> Self {
        Self { wall: Some(wall), ..Self::start() }
    }

    /// The monotonic time.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn now(&self) -> Instant {
        let since = u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX - HEAD_START.0);
        Instant(HEAD_START.0 + since)
    }

    /// The wall clock, Unix time.
    #[must_use]
    pub fn wall(&self) -> Timestamp {
        self.wall.map_or_else(wall, |wall| wall + self.now().since(Instant(HEAD_START.0)))
    }

    /// Nanoseconds since the clock was started, for measurements shorter than a microsecond.
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn nanos(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The time that timers go by.
#[cfg(feature = "daemon")]
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn timers() -> SystemInstant {
    SystemInstant::now()
}

/// The wall clock, Unix time.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this is the clock")]
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// 64 bits from the operating system's source of randomness.
#[must_use]
pub fn random() -> u64 {
    // std seeds the keys of each RandomState from the operating system, and the hash of nothing depends on them.
    RandomState::new().build_hasher().finish()
}

/// A number that cannot be guessed from earlier ones: each half is a hash under a fresh key.
#[must_use]
pub fn unguessable() -> u128 {
    u128::from(random()) << 64 | u128::from(random())
}
