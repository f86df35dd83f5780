//! The backoff of clients: how long a daemon is left alone after a connection to it has failed.

use std::io;
use std::time::Duration;

use crate::clock;

/// The backoff after the first failure, on average; jitter makes it half to one and a half of that.
const FIRST: Duration = Duration::from_millis(50);
/// How often it doubles.
const DOUBLINGS: u32 = 3;

/// The backoff after `failures` failures in a row. Its jitter keeps the many clients of one daemon from coming back
/// at once.
pub(super) fn backoff(failures: u32) -> Duration {
    let span = FIRST * 2_u32.pow(failures.saturating_sub(1).min(DOUBLINGS));
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    span / 2 + Duration::from_micros(clock::random() % micros)
}

/// A copy of an error, which [`io::Error`] itself does not offer.
pub(super) fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_to_a_bound_and_differ() {
        for (failures, least) in [(1, 25), (2, 50), (3, 100), (4, 200), (5, 200), (u32::MAX, 200)] {
            let spans: Vec<Duration> = (0..50).map(|_| backoff(failures)).collect();
            let bounds = Duration::from_millis(least)..Duration::from_millis(3 * least);
            assert!(spans.iter().all(|span| bounds.contains(span)), "{failures}: {spans:?}");
            assert!(spans.iter().any(|span| *span != spans[0]), "{failures}: no jitter");
        }
    }
}
