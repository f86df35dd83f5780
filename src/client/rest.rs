//! How long a daemon that could not be connected to is left alone.

use std::io;
use std::time::Duration;

use crate::clock;

/// After the first failure, half of it at least and at most one and a half.
const FIRST: Duration = Duration::from_millis(50);
/// How often it doubles.
const DOUBLINGS: u32 = 3;

/// A rest after so many failures in a row, with jitter: many clients of one daemon do not come back at once.
pub(super) fn rest(failures: u32) -> Duration {
    let span = FIRST * 2_u32.pow(failures.saturating_sub(1).min(DOUBLINGS));
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    span / 2 + Duration::from_micros(clock::random() % micros)
}

/// The same error once more: the operating system's cannot be copied.
pub(super) fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_to_a_bound_and_differ() {
        for (failures, least) in [(1, 25), (2, 50), (3, 100), (4, 200), (5, 200), (u32::MAX, 200)] {
            let spans: Vec<Duration> = (0..50).map(|_| rest(failures)).collect();
            let bounds = Duration::from_millis(least)..Duration::from_millis(3 * least);
            assert!(spans.iter().all(|span| bounds.contains(span)), "{failures}: {spans:?}");
            assert!(spans.iter().any(|span| *span != spans[0]), "{failures}: no jitter");
        }
    }
}
