//! How many keys each node owns, for viewers that ask every second.
//!
//! Counting goes through all keys that this node knows, however many, and takes each shard's lock meanwhile. So the
//! counts are kept for [`PART`] times as long as counting took. Called by `server_state`; knows neither keys nor
//! owners.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::core::time::{Instant, Micros};

/// Keys by the name of the node that owns them.
pub(super) type Counts = BTreeMap<Arc<str>, u64>;

/// Counts are kept for so many times as long as counting took, so that counting takes at most half a percent of a
/// processor.
const PART: u64 = 200;

/// The last counts.
#[derive(Debug, Default)]
pub(super) struct OwnedKeys(Mutex<Option<LastCounts>>);

#[derive(Debug)]
struct LastCounts {
    counts: Counts,
    fresh_until: Instant,
}

impl OwnedKeys {
    /// The last counts, or new ones from `count` if those are too old. `clock` is read before and after counting.
    pub(super) fn counts(&self, clock: impl Fn() -> Instant, count: impl FnOnce() -> Counts) -> Counts {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = clock();
        if let Some(counted) = last.as_ref().filter(|counted| begun < counted.fresh_until) {
            return counted.counts.clone();
        }
        let counts = count();
        let ended = clock();
        let took = ended.since(begun);
        *last = Some(LastCounts { counts: counts.clone(), fresh_until: ended + Micros(took.0.saturating_mul(PART)) });
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_took_long_to_count_is_counted_seldom() {
        let (now, counted) = (Cell::new(Instant(1_000_000)), Cell::new(0));
        let owned = OwnedKeys::default();
        let ask = |takes: u64| {
            let count = || {
                now.set(now.get() + Micros(takes));
                counted.set(counted.get() + 1);
                Counts::from([("a".into(), counted.get())])
            };
            owned.counts(|| now.get(), count)["a"]
        };
        assert_eq!(ask(10_000), 1);
        now.set(now.get() + Micros(1_999_999));
        assert_eq!(ask(0), 1, "two seconds are not over");
        now.set(now.get() + Micros(1));
        assert_eq!(ask(0), 2);
        assert_eq!(ask(0), 3, "what takes no time is counted for everybody who asks");
    }
}
