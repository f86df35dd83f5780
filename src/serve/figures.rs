//! Figures for people, computed from counts that the daemon keeps anyway.

use crate::core::decision::{Reason, Verdict};
use crate::core::stats::PolicyStats;
use crate::core::time::Micros;
use crate::store::breaker::BreakerState;
use crate::store::redis::ServerView;

/// Checks of a policy by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// Admitted, those in shadow mode included.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// Admitted only because the policy is in shadow mode.
    pub shadowed: u64,
}

impl Verdicts {
    /// The sums of a policy's counts.
    #[must_use]
    pub fn of(stats: &PolicyStats) -> Self {
        stats.checks().fold(Self::default(), |mut sum, (verdict, reason, _, count)| {
            match verdict {
                Verdict::Allow => sum.allowed += count,
                Verdict::Deny => sum.denied += count,
            }
            sum.shadowed += if reason == Reason::Shadow { count } else { 0 };
            sum
        })
    }
}

/// Whether calls to this server pass.
#[must_use]
pub fn is_up(server: &ServerView) -> bool {
    server.breaker == BreakerState::Closed && server.away_since.is_none()
}

/// The duration that so many thousandths of the counted durations do not exceed: the upper bound of its bucket, in
/// microseconds. `None` when nothing was counted, or when it is above all bounds.
#[must_use]
pub fn percentile(counts: &[u64], bounds_us: &[u64], thousandths: u64) -> Option<Micros> {
    let all: u64 = counts.iter().sum();
    let wanted = (all * thousandths).div_ceil(1_000).max(1);
    let mut below = 0;
    let bucket = counts.iter().position(|count| {
        below += count;
        below >= wanted
    });
    bucket.and_then(|bucket| bounds_us.get(bucket)).map(|bound| Micros(*bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_bound_of_the_bucket_that_it_falls_into() {
        let at = |counts: &[u64], thousandths| percentile(counts, &[10, 20, 40], thousandths).map(|found| found.0);
        assert_eq!(at(&[50, 49, 1, 0], 500), Some(10));
        assert_eq!(at(&[50, 49, 1, 0], 990), Some(20));
        assert_eq!(at(&[50, 49, 1, 0], 1_000), Some(40));
        assert_eq!(at(&[0, 0, 0, 5], 500), None, "above all bounds");
        assert_eq!(at(&[0, 0, 0, 0], 500), None);
    }
}
