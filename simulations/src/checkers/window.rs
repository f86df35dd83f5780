//! Counts what was admitted under one limit, independently of the product: plain windows, sliding pairs, and a bucket
//! that leaks. All arithmetic is in integers that are wide enough.

use rationd::core::limit::{Algorithm, Limit};

/// One limit of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Count {
    /// The window's number, or for `from-first` its end.
    pub(super) window: u64,
    /// Tokens admitted in it, and in the one before.
    pub(super) used: u64,
    pub(super) before: u64,
    /// Tokens that may be admitted beyond the limit in it, and in the one before.
    pub(super) slack: u64,
    slack_before: u64,
    /// For `from-first`: when the window was opened; and of the one before: admissions, slack, and its end.
    opened: u64,
    earlier: (u64, u64),
    earlier_ends: u64,
    /// For `from-first`: whether the store has lost the present window. `later` is the end, the admissions and the
    /// slack of a window that was lost while a node restored an earlier one, and that another node may still restore.
    is_forgotten: bool,
    later: (u64, u64, u64),
    /// Tokens lent of the next window, and how many of them the store has lost count of.
    ahead: u64,
    lost: u64,
    /// Tokens that a former owner has lent: its window from the first request may overlap the owner's until
    /// `beyond_until`.
    beyond: u64,
    beyond_until: u64,
    /// gcra: tokens times the period that have not leaked at the time `at`.
    level: i128,
    at: u64,
    /// gcra: tokens that the store charged long before their answer came, and until when they may be spent.
    late: u64,
    late_until: u64,
    /// gcra: tokens that were set aside by a store that has lost that; until when they may be spent; and admissions
    /// since then, which may be of them.
    aside: u64,
    aside_until: u64,
    admitted_since: u64,
}

impl Count {
    /// A bucket goes on under another limit of the same period. Its tokens leak as they would have under the old limit,
    /// except for `uncharged` ones, which have yet to be charged.
    pub(super) fn change_rate(&mut self, old: &Limit, new: &Limit, uncharged: u64) {
        if old.algorithm == Algorithm::Gcra && old.count > 0 && self.level > 0 {
            let uncharged = (i128::from(uncharged) * i128::from(old.period.0)).min(self.level);
            let charged = self.level - uncharged;
            self.level = charged * i128::from(new.count) / i128::from(old.count) + uncharged;
        }
    }

    /// Counts anew by a clock that shows `now` when the former one shows `before`. Tokens that were charged long ago
    /// may still be spent.
    pub(super) fn after_a_leap(&self, before: u64, now: u64) -> Self {
        let left = self.late_until.saturating_sub(before);
        if left == 0 { Self::default() } else { Self { late: self.late, late_until: now + left, ..Self::default() } }
    }

    /// Brings it to `now`, of the owner's clock.
    pub(super) fn roll(&mut self, limit: &Limit, now: u64) {
        match limit.algorithm {
            Algorithm::Gcra => {
                if self.aside > 0 && now >= self.aside_until {
                    self.leak(limit, self.aside_until);
                    self.end_aside(limit);
                }
                self.leak(limit, now);
                // If the bucket has been full since, it does not matter any more when they were charged.
                if self.level <= 0 && now >= self.late_until {
                    self.late = 0;
                }
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
            // Executions show when one opens.
            Algorithm::FixedFromFirst | Algorithm::Concurrent => {}
        }
    }

    fn leak(&mut self, limit: &Limit, now: u64) {
        let leaked = i128::from(now.saturating_sub(self.at)) * i128::from(limit.count);
        // Forgiven tokens make the level negative; they are used up as a bucket fills.
        self.level = if self.level > 0 { (self.level - leaked).max(0) } else { (self.level + leaked).min(0) };
        self.at = self.at.max(now);
    }

    /// Tokens set aside by a store that has lost that can no longer be spent. Those that were spent while the bucket
    /// had room for them are still in the level, but the store does not know of them and lends as many again.
    fn end_aside(&mut self, limit: &Limit) {
        let spent = i128::from(self.aside.min(self.admitted_since)) * i128::from(limit.period.0);
        self.level -= spent.min(self.level.max(0));
        (self.aside, self.admitted_since) = (0, 0);
    }

    /// The store opened a window `from-first` that ends at `end`. If one was still open, it has been reset or lost, and
    /// the tokens forgiven for that may be admitted in the new one.
    pub(super) fn open(&mut self, end: u64, now: u64) {
        let (later_ends, used, slack) = self.later;
        if end == later_ends && now < end {
            (self.window, self.used, self.slack, self.later) = (end, used, slack, (0, 0, 0));
        } else if self.is_forgotten && now < end && end == self.earlier_ends && end < self.window {
            // Tokens of the later window that were lent and lost may be spent meanwhile.
            let lost = self.slack.saturating_sub(self.earlier.1);
            self.later = (self.window, self.used, self.slack);
            (self.window, self.used, self.slack) = (end, self.earlier.0, self.earlier.1 + lost);
        } else if end > self.window {
            let slack = if now < self.window || self.window == 0 { self.slack } else { 0 };
            let slack = if now < self.beyond_until { slack.max(self.beyond) } else { slack };
            (self.earlier, self.earlier_ends, self.opened) = ((self.used, self.slack), self.window, now);
            (self.window, self.used, self.slack) = (end, 0, slack);
            (self.is_forgotten, self.later) = (false, (0, 0, 0));
        }
    }

    /// Whether `now` is before the present window was opened. A busy server executes a call later than it arrives, but
    /// the execution is seen at the arrival: until it takes place, checks are admitted in the previous window, unless
    /// that has ended. If it has, `now` is by a clock that is a little behind the one that opened the window, as after
    /// a move of the key to another master.
    fn is_earlier(&self, limit: &Limit, now: u64) -> bool {
        limit.algorithm == Algorithm::FixedFromFirst && now < self.opened.min(self.earlier_ends)
    }

    /// A former owner has lent tokens in a window that ends at `until`.
    pub(super) fn lend_beyond(&mut self, tokens: u64, until: u64, now: u64) {
        self.beyond = if now < self.beyond_until { self.beyond + tokens } else { tokens };
        self.beyond_until = self.beyond_until.max(until);
    }

    /// Tokens were charged to a bucket long ago: until `until` they may be spent, or go back to be lent again, as if
    /// they were charged now.
    pub(super) fn charged_long_ago(&mut self, tokens: u64, until: u64) {
        self.late += tokens;
        self.late_until = self.late_until.max(until);
    }

    /// Of the tokens forgiven for a loss, `tokens` had been set aside. As far as they are not admitted yet, they do not
    /// leak: their holders may spend them once, until `until`.
    pub(super) fn forget_aside(&mut self, limit: &Limit, tokens: u64, until: u64) {
        let period = i128::from(limit.period.0);
        let unspent = u64::try_from(-self.level / period).unwrap_or(0).min(tokens);
        self.level += i128::from(unspent) * period;
        self.aside += unspent;
        self.aside_until = self.aside_until.max(until);
    }

    /// Takes admissions beyond the limit to be of those tokens, as far as any are left.
    pub(super) fn spend_aside(&mut self, limit: &Limit, now: u64, beyond: u64) {
        let tokens = if now < self.aside_until { beyond.min(self.aside) } else { 0 };
        self.aside -= tokens;
        self.admitted_since = self.admitted_since.saturating_sub(tokens);
        self.forgive(limit, tokens);
    }

    /// Counts tokens admitted at `now`, of which `beside` do not count.
    pub(super) fn admit_at(&mut self, limit: &Limit, now: u64, tokens: u64, beside: u64) {
        if self.is_earlier(limit, now) {
            self.earlier = (self.earlier.0 + tokens, self.earlier.1 + beside);
        } else {
            self.admit(limit, tokens);
            self.forgive(limit, beside);
        }
    }

    pub(super) fn admit(&mut self, limit: &Limit, tokens: u64) {
        self.used += tokens;
        self.level += i128::from(tokens) * i128::from(limit.period.0);
        if self.aside > 0 {
            self.admitted_since += tokens;
        }
    }

    /// Counts tokens lent of the next window.
    pub(super) fn lend_ahead(&mut self, tokens: u64) {
        self.ahead += tokens;
    }

    /// Notes that `tokens` of those were lent by a former owner, so the owner does not know of them.
    pub(super) fn lose_of_ahead(&mut self, tokens: u64) {
        self.ahead = self.ahead.saturating_sub(tokens);
        self.lost += tokens;
    }

    /// The store has lost everything. Tokens that it lent of the next window are not restored by any node.
    pub(super) fn forget(&mut self) {
        self.is_forgotten = true;
        self.lost += std::mem::take(&mut self.ahead);
    }

    /// Allows `tokens` more.
    pub(super) fn forgive(&mut self, limit: &Limit, tokens: u64) {
        self.slack += tokens;
        self.level -= i128::from(tokens) * i128::from(limit.period.0);
    }

    /// By how much admissions exceed the limit; for gcra `trip` is how much earlier than they were seen they may have
    /// been made.
    pub(super) fn excess(&self, limit: &Limit, now: u64, trip: u64) -> u64 {
        if self.is_earlier(limit, now) {
            return self.earlier.0.saturating_sub(limit.count + self.earlier.1);
        }
        match limit.algorithm {
            Algorithm::Gcra => {
                let period = i128::from(limit.period.0);
                let most =
                    i128::from(limit.burst + 1 + self.late) * period + i128::from(trip) * i128::from(limit.count);
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
    fn a_window_that_is_lost_twice_comes_back_after_the_one_before() {
        let limit = limit("8/10s fixed from-first");
        for (is_lost, excess) in [(true, 1), (false, 9)] {
            let mut count = Count::default();
            // Each window is used up and lost. The first one comes back, then the second.
            for (end, now) in [(10_000_000, 0), (11_000_000, 1_000_000)] {
                count.open(end, now);
                count.admit_at(&limit, now, 8, 0);
                count.forgive(&limit, 8);
                if is_lost {
                    count.forget();
                }
            }
            for (end, now, more) in [(10_000_000, 2_000_000, 8), (11_000_000, 10_000_000, 17)] {
                count.open(end, now);
                count.admit_at(&limit, now, more, 0);
            }
            assert_eq!(count.excess(&limit, 10_000_000, 0), excess, "{is_lost}");
        }
    }

    #[test]
    fn what_was_charged_long_ago_may_be_spent_by_another_clock_as_long_as_by_the_one_before() {
        let limit = limit("10/1s burst 1");
        for (passed, excess) in [(999_999, 0), (1_000_000, 1)] {
            let mut count = Count::default();
            count.charged_long_ago(1, 51_000_000);
            let mut count = count.after_a_leap(50_000_000, 30_000_000);
            count.roll(&limit, 30_000_000 + passed);
            count.admit(&limit, 3);
            assert_eq!(count.excess(&limit, 30_000_000 + passed, 0), excess, "{passed}");
        }
    }

    #[test]
    fn what_is_in_a_bucket_leaks_at_the_rate_at_which_it_was_charged() {
        // Two tokens of eight a second take 250 ms, also when the limit is two a second by then.
        let (old, new) = (limit("8/1s burst 1"), limit("2/1s burst 1"));
        for (later, excess) in [(250_000, 0), (125_000, 1)] {
            let mut count = Count::default();
            count.roll(&old, 1_000_000);
            count.admit(&old, 2);
            count.change_rate(&old, &new, 0);
            count.roll(&new, 1_000_000 + later);
            count.admit(&new, 2);
            assert_eq!(count.excess(&new, 1_000_000 + later, 0), excess, "{later}");
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

    #[test]
    fn what_was_charged_long_ago_counts_until_the_bucket_is_empty() {
        let limit = limit("10/1s burst 5");
        let mut count = Count::default();
        count.roll(&limit, 1_000_000);
        count.charged_long_ago(2, 1_500_000);
        count.admit(&limit, 8);
        assert_eq!(count.excess(&limit, 1_000_000, 0), 0);
        count.admit(&limit, 1);
        assert_eq!(count.excess(&limit, 1_000_000, 0), 1);
        count.roll(&limit, 3_000_000);
        count.admit(&limit, 7);
        assert_eq!(count.excess(&limit, 3_000_000, 0), 1, "it has been empty since");
    }

    #[test]
    fn what_was_set_aside_and_forgotten_is_spent_once_and_in_time() {
        let limit = limit("10/1s burst 5");
        for (now, seen) in [(2_000_000, [0, 1]), (5_000_000, [2, 3])] {
            let mut count = Count::default();
            count.roll(&limit, 1_000_000);
            count.forgive(&limit, 2);
            count.forget_aside(&limit, 2, 5_000_000);
            count.roll(&limit, now);
            for (tokens, seen) in [(8, seen[0]), (1, seen[1])] {
                count.admit(&limit, tokens);
                count.spend_aside(&limit, now, count.excess(&limit, now, 0));
                assert_eq!(count.excess(&limit, now, 0), seen);
            }
        }
    }

    #[test]
    fn what_was_set_aside_and_admitted_before_it_was_forgotten_is_not_spent_again() {
        let limit = limit("10/1s burst 5");
        let mut count = Count::default();
        count.roll(&limit, 1_000_000);
        count.admit(&limit, 2);
        count.forgive(&limit, 3);
        count.forget_aside(&limit, 3, 5_000_000);
        count.roll(&limit, 4_900_000);
        count.admit(&limit, 8);
        count.spend_aside(&limit, 4_900_000, count.excess(&limit, 4_900_000, 0));
        assert_eq!(count.excess(&limit, 4_900_000, 0), 1, "one was held still, and a burst and one fit");
    }

    #[test]
    fn what_was_set_aside_and_spent_in_time_counts_for_nothing_later() {
        let limit = limit("10/1s burst 50");
        for (spent, more) in [(0, 51), (1, 52), (2, 53), (3, 53)] {
            let mut count = Count::default();
            count.roll(&limit, 1_000_000);
            count.forgive(&limit, 2);
            count.forget_aside(&limit, 2, 5_000_000);
            count.roll(&limit, 4_900_000);
            // The bucket has room for all of it, so nothing is beyond the limit.
            count.admit(&limit, spent);
            count.spend_aside(&limit, 4_900_000, count.excess(&limit, 4_900_000, 0));
            // Until it is over one token leaks, of those admitted by then and of the rest.
            count.roll(&limit, 5_000_000);
            count.admit(&limit, more - spent);
            assert_eq!(count.excess(&limit, 5_000_000, 0), 0, "{spent}");
            count.admit(&limit, 2);
            assert!(count.excess(&limit, 5_000_000, 0) > 0, "{spent}");
        }
    }

    #[test]
    fn what_was_admitted_before_a_window_was_opened_is_of_the_one_before() {
        let limit = limit("10/1s fixed from-first");
        let mut count = Count::default();
        count.open(2_000_000, 1_000_000);
        count.admit_at(&limit, 1_500_000, 9, 0);
        // A busy server will open it then.
        count.open(3_005_000, 2_005_000);
        count.admit_at(&limit, 1_999_000, 1, 0);
        assert_eq!(count.excess(&limit, 1_999_000, 0), 0);
        count.admit_at(&limit, 1_999_500, 1, 0);
        assert_eq!(count.excess(&limit, 1_999_500, 0), 1, "eleven of ten in the window before");
        count.admit_at(&limit, 2_005_000, 10, 0);
        assert_eq!(count.excess(&limit, 2_005_000, 0), 0);
        count.admit_at(&limit, 2_006_000, 1, 0);
        assert_eq!(count.excess(&limit, 2_006_000, 0), 1);
    }

    #[test]
    fn a_clock_behind_the_one_that_opened_a_window_admits_in_no_window_that_has_ended() {
        let limit = limit("10/1s fixed from-first");
        let mut count = Count::default();
        count.open(2_000_000, 1_000_000);
        count.admit_at(&limit, 1_500_000, 10, 0);
        count.open(4_000_500, 3_000_500);
        count.admit_at(&limit, 3_000_000, 10, 0);
        assert_eq!(
            count.excess(&limit, 3_000_000, 0),
            0,
            "of the window before, in which all was admitted, nothing is left"
        );
        count.admit_at(&limit, 3_000_400, 1, 0);
        assert_eq!(count.excess(&limit, 3_000_400, 0), 1);
    }

    #[test]
    fn a_window_that_no_owner_opened_reaches_into_the_owners() {
        let limit = limit("10/1s fixed from-first");
        for (until, excess) in [(2_500_000, 0), (1_900_000, 3)] {
            let mut count = Count::default();
            count.lend_beyond(3, until, 1_500_000);
            count.open(3_000_000, 2_000_000);
            count.admit(&limit, 13);
            assert_eq!(count.excess(&limit, 2_000_000, 0), excess);
        }
    }
}
