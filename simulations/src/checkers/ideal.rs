//! One limiter that sees all checks of a key in their order, as a measure of what a fleet has to admit.
//!
//! It begins as if the limit had just been spent, so that it never admits more than the store could have lent by then.

use rationd::core::limit::{Algorithm, Limit};

/// What is left of one limit. A bucket counts parts of a token; a token has as many parts as the limit's period has
/// microseconds.
#[derive(Clone, Copy, Debug)]
enum Left {
    Bucket { parts: u128, at: u64 },
    Window { number: u64, used: u64 },
    FromFirst { ends: u64, used: u64 },
    Sliding { number: u64, before: u64, used: u64 },
}

/// The limiter of one key.
#[derive(Clone, Debug)]
pub(super) struct Ideal {
    limits: Vec<(Limit, Left)>,
}

impl Ideal {
    /// A limiter whose limits are spent at `now` of the clock that counts the key.
    pub(super) fn spent(limits: &[Limit], now: u64) -> Self {
        let left = |limit: &Limit| match limit.algorithm {
            Algorithm::Gcra | Algorithm::Concurrent => Left::Bucket { parts: 0, at: now },
            Algorithm::Fixed => Left::Window { number: now / limit.period.0, used: limit.count },
            Algorithm::FixedFromFirst => Left::FromFirst { ends: now + limit.period.0, used: limit.count },
            Algorithm::Sliding => {
                Left::Sliding { number: now / limit.period.0, before: limit.count, used: limit.count }
            }
        };
        Self { limits: limits.iter().map(|limit| (*limit, left(limit))).collect() }
    }

    /// Whether it has these limits.
    pub(super) fn is_of(&self, limits: &[Limit]) -> bool {
        self.limits.iter().map(|(limit, _)| limit).eq(limits)
    }

    /// The largest burst of its buckets.
    pub(super) fn deepest(&self) -> u64 {
        let buckets = self.limits.iter().filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.map(|(limit, _)| limit.capacity()).max().unwrap_or(0)
    }

    /// Admits a check if all limits have its cost left.
    pub(super) fn admit(&mut self, now: u64, cost: u64) -> bool {
        let admits = self.limits.iter_mut().fold(true, |admits, (limit, left)| {
            left.advance(limit, now);
            admits && left.has(limit, now, cost)
        });
        if admits {
            self.limits.iter_mut().for_each(|(limit, left)| left.take(limit, now, cost));
        }
        admits
    }
}

impl Left {
    fn advance(&mut self, limit: &Limit, now: u64) {
        let period = limit.period.0;
        match self {
            Self::Bucket { parts, at } => {
                let whole = u128::from(limit.capacity()) * u128::from(period);
                let came = u128::from(now.saturating_sub(*at)) * u128::from(limit.count);
                (*parts, *at) = ((*parts + came).min(whole), now.max(*at));
            }
            Self::Window { number, used } if now / period > *number => (*number, *used) = (now / period, 0),
            Self::FromFirst { ends, used } if now >= *ends => (*ends, *used) = (u64::MAX, 0),
            Self::Sliding { number, before, used } if now / period > *number => {
                *before = if now / period == *number + 1 { *used } else { 0 };
                (*number, *used) = (now / period, 0);
            }
            Self::Window { .. } | Self::FromFirst { .. } | Self::Sliding { .. } => {}
        }
    }

    fn has(&self, limit: &Limit, now: u64, cost: u64) -> bool {
        let period = limit.period.0;
        match *self {
            Self::Bucket { parts, .. } => parts >= u128::from(cost) * u128::from(period),
            Self::Window { used, .. } | Self::FromFirst { used, .. } => used + cost <= limit.count,
            Self::Sliding { before, used, .. } => {
                let weighs = u128::from(before) * u128::from(period - now % period);
                weighs.div_ceil(u128::from(period)) + u128::from(used + cost) <= u128::from(limit.count)
            }
        }
    }

    fn take(&mut self, limit: &Limit, now: u64, cost: u64) {
        match self {
            Self::Bucket { parts, .. } => *parts -= u128::from(cost) * u128::from(limit.period.0),
            Self::FromFirst { ends, used } => {
                *ends = (*ends).min(now + limit.period.0);
                *used += cost;
            }
            Self::Window { used, .. } | Self::Sliding { used, .. } => *used += cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// How many checks are admitted of one every tenth of a second, beginning in the middle of a window.
    fn admitted(limits: &[&str], seconds: u64) -> u64 {
        let limits: Vec<Limit> = limits.iter().map(|limit| Limit::parse(limit).expect("a limit")).collect();
        let begun = 1_000 * SECOND + SECOND / 2;
        let mut ideal = Ideal::spent(&limits, begun);
        let checks = (0..seconds * 10).map(|check| begun + check * SECOND / 10);
        checks.filter(|at| ideal.admit(*at, 1)).count() as u64
    }

    #[test]
    fn all_is_spent_at_first_and_then_limits_are_used() {
        // The fixed window that begins after half a second admits its limit, and so do the next two.
        assert_eq!(admitted(&["4/1s fixed"], 3), 12);
        // Nothing for a second, and then four in each window, which begins with its first check.
        assert_eq!(admitted(&["4/1s fixed from-first"], 3), 8);
        assert_eq!(admitted(&["4/1s burst 4"], 3), 11);
        // The previous window weighs as if it had been used up.
        assert!((6..=10).contains(&admitted(&["4/1s sliding"], 3)), "{}", admitted(&["4/1s sliding"], 3));
        assert_eq!(admitted(&["4/1s fixed", "2/1s burst 2"], 3), admitted(&["2/1s burst 2"], 3));
    }

    #[test]
    fn what_is_asked_for_below_the_limit_is_admitted() {
        for limit in ["20/1s fixed", "40/1s burst 3", "40/1s sliding", "20/1s fixed from-first"] {
            assert!(admitted(&[limit], 4) >= 30 && admitted(&[limit], 9) == admitted(&[limit], 4) + 50, "{limit}");
        }
    }

    #[test]
    fn a_check_takes_its_cost_of_all_limits_or_of_none() {
        let limits = ["9/1s fixed", "4/10s fixed"].map(|limit| Limit::parse(limit).expect("a limit"));
        let mut ideal = Ideal::spent(&limits, 0);
        let asked = [(SECOND, 1, false), (10 * SECOND, 5, false), (10 * SECOND, 4, true), (11 * SECOND, 1, false)];
        for (at, cost, admits) in asked {
            assert_eq!(ideal.admit(at, cost), admits, "{cost} at {at}");
        }
        assert!(ideal.is_of(&limits) && !ideal.is_of(&limits[..1]));
    }
}
