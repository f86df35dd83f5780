//! What was admitted of one limit, counted anew and apart from the product: plain windows, sliding
//! pairs, and a bucket that leaks. All in integers wide enough for anything.

use rationd::core::limit::{Algorithm, Limit};

/// One limit of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    /// The window's number, or for `from-first` its end.
    pub(super) window: u64,
    /// Admitted in it, and in the one before.
    pub(super) used: u64,
    pub(super) before: u64,
    /// What may be admitted beyond the limit in it, and in the one before.
    pub(super) slack: u64,
    slack_before: u64,
    /// Lent of the next window, and how much of that the store has lost since.
    ahead: u64,
    lost: u64,
    /// gcra: tokens times the period that have not leaked yet, and when that was.
    level: i128,
    at: u64,
}

impl Count {
    /// Brings it to `now`, of the owner's clock.
    pub(super) fn roll(&mut self, limit: &Limit, now: u64) {
        match limit.algorithm {
            Algorithm::Gcra => {
                let leaked = i128::from(now.saturating_sub(self.at)) * i128::from(limit.count);
                // What was forgiven is below zero, and is forgotten as a bucket fills.
                self.level = if self.level > 0 { (self.level - leaked).max(0) } else { (self.level + leaked).min(0) };
                self.at = self.at.max(now);
            }
            Algorithm::Fixed | Algorithm::Sliding => {
                let window = now / limit.period.0;
                if window > self.window {
                    let next = window == self.window + 1;
                    self.before = if next { self.used } else { 0 };
                    self.slack_before = if next { self.slack } else { 0 };
                    (self.window, self.used, self.slack) = (window, 0, if next { self.lost } else { 0 });
                    (self.ahead, self.lost) = (0, 0);
                }
            }
            // The store says when one opens.
            Algorithm::FixedFromFirst | Algorithm::Concurrent => {}
        }
    }

    /// The store opened a window `from-first` that ends then. One that was still open has been reset
    /// or lost: what was forgiven for that may be admitted now.
    pub(super) fn open(&mut self, end: u64, now: u64) {
        if end > self.window {
            let slack = if now < self.window || self.window == 0 { self.slack } else { 0 };
            (self.window, self.used, self.slack) = (end, 0, slack);
        }
    }

    pub(super) fn admit(&mut self, limit: &Limit, tokens: u64) {
        self.used += tokens;
        self.level += i128::from(tokens) * i128::from(limit.period.0);
    }

    /// So many were lent of the next window.
    pub(super) fn lend_ahead(&mut self, tokens: u64) {
        self.ahead += tokens;
    }

    /// The store has lost what it lent of the next window: nobody restores that.
    pub(super) fn lose_ahead(&mut self) {
        self.lost += std::mem::take(&mut self.ahead);
    }

    /// So many more may be admitted.
    pub(super) fn forgive(&mut self, limit: &Limit, tokens: u64) {
        self.slack += tokens;
        self.level -= i128::from(tokens) * i128::from(limit.period.0);
    }

    /// By how much it is over the limit; for gcra `trip` is how much earlier than it was seen
    /// something may have been admitted.
    pub(super) fn excess(&self, limit: &Limit, now: u64, trip: u64) -> u64 {
        match limit.algorithm {
            Algorithm::Gcra => {
                let period = i128::from(limit.period.0);
                let most = i128::from(limit.burst + 1) * period + i128::from(trip) * i128::from(limit.count);
                u64::try_from(((self.level - most).max(0) + period - 1) / period).unwrap_or(u64::MAX)
            }
            Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Concurrent => {
                self.used.saturating_sub(limit.count + self.slack)
            }
            Algorithm::Sliding => {
                let passed = u128::from(now % limit.period.0);
                let covered = u128::from(limit.period.0) - passed;
                let weighed = u128::from(self.before) * covered / u128::from(limit.period.0); // rounded down
                let most = limit.count + self.slack + self.slack_before;
                (self.used + weighed as u64).saturating_sub(most) // weighed is a part of a u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    #[test]
    fn windows_forget_and_sliding_ones_weigh() {
        let (fixed, sliding) = (limit("10/1s fixed"), limit("10/1s sliding"));
        for (limit, left) in [(&fixed, 0), (&sliding, 5)] {
            let mut count = Count::default();
            count.roll(limit, 7_000_000);
            count.admit(limit, 10);
            assert_eq!(count.excess(limit, 7_000_000, 0), 0);
            count.roll(limit, 8_500_000);
            count.admit(limit, 10);
            assert_eq!(count.excess(limit, 8_500_000, 0), left);
        }
    }

    #[test]
    fn a_bucket_leaks_at_its_rate() {
        let limit = limit("10/1s burst 5");
        let mut count = Count::default();
        count.roll(&limit, 1_000_000);
        count.admit(&limit, 6);
        assert_eq!(count.excess(&limit, 1_000_000, 0), 0, "one for the rounding");
        count.admit(&limit, 1);
        assert_eq!(count.excess(&limit, 1_000_000, 0), 1);
        assert_eq!(count.excess(&limit, 1_000_000, 100_000), 0);
        count.roll(&limit, 1_100_000);
        assert_eq!(count.excess(&limit, 1_100_000, 0), 0);
    }
}
