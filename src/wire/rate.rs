//! The rate in `CL.THROTTLE` and `THROTTLE`, and the limit that it means.
//!
//! Knows how the numbers of redis-cell and throttlecrab differ; does not know arguments. Called by sessions.

use crate::core::limit::{self, Limit, LimitError, MAX_COUNT, MAX_PERIOD};
use crate::core::time::Micros;

/// The server whose command it is. redis-cell and throttlecrab take the same numbers, but mean different limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `CL.THROTTLE`: `max_burst` is what may come at once above the first.
    RedisCell,
    /// `THROTTLE`: `max_burst` is all that may come at once.
    Throttlecrab,
}

/// The numbers of `CL.THROTTLE` or `THROTTLE`. They are positive, except that redis-cell allows a burst of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// The server whose command it is.
    pub dialect: Dialect,
    /// The burst, as it was written.
    pub max_burst: u64,
    /// Tokens per period.
    pub count: u64,
    /// The period in seconds.
    pub period_s: u64,
}

impl Rate {
    /// The token bucket that redis-cell or throttlecrab makes of these numbers.
    ///
    /// # Errors
    /// A number is out of range; the error uses the names and units of the request.
    pub fn limit(&self) -> Result<Limit, LimitError> {
        let longest = MAX_PERIOD.0 / 1_000_000;
        let first = u64::from(self.dialect == Dialect::RedisCell);
        let range = |what, seen: u64, wanted| Err(LimitError::Range { what, seen: seen.to_string(), wanted });
        if self.count > MAX_COUNT {
            return range("count", self.count, format!("1 to {MAX_COUNT} (2^53 - 1)"));
        }
        if self.period_s > longest {
            return range("period", self.period_s, format!("1 to {longest} (seconds, of ten years)"));
        }
        if self.max_burst > MAX_COUNT - first {
            let wanted = format!("{} to {} (below 2^53)", 1 - first, MAX_COUNT - first);
            return range("max_burst", self.max_burst, wanted);
        }
        let (period, burst) = (Micros::from_secs(self.period_s), self.max_burst + first);
        let deepest = limit::deepest(self.count, period);
        if burst > deepest {
            let wanted = format!(
                "{} at most, or 71 years would not fill the bucket at {} per {} s",
                deepest - first,
                self.count,
                self.period_s
            );
            return range("max_burst", self.max_burst, wanted);
        }
        Limit::gcra(self.count, period, burst)
    }
}
