//! Waiting for conditions, with a bound and a reason.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests watch real processes by the real clock")]

use std::time::{Duration, Instant};

/// Waits until `condition` gives a value; panics with `what` after `seconds`.
pub fn wait_for<T>(what: &str, seconds: u64, mut condition: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "after {seconds} s still not: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `condition` holds; panics with `what` after `seconds`.
pub fn wait_until(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    wait_for(what, seconds, || condition().then_some(()));
}

/// The same, where `again` is done whenever that has not helped for `every` seconds.
pub fn wait_and_repeat(
    what: &str,
    seconds: u64,
    every: u64,
    mut again: impl FnMut(),
    mut condition: impl FnMut() -> bool,
) {
    let mut last = Instant::now();
    wait_until(what, seconds, || {
        if condition() {
            return true;
        }
        if last.elapsed() >= Duration::from_secs(every) {
            again();
            last = Instant::now();
        }
        false
    });
}
