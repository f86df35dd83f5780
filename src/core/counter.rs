//! The meaning of a [`Counter`] under a [`Limit`]: one interface to all algorithms.
//!
//! Everything except [`Counter::roll`] expects a counter that was rolled to the same `now`. Knows nothing of keys,
//! leases or stores. Called by the memory store, and by the core for what it knows of a store.

use super::call::{Counter, Known};
use super::limit::{Algorithm, Limit};
use super::time::{Micros, StoredTime, Timestamp};
use super::{gcra, window};

/// So many fifths of a window are not lent before it begins, so that a node that asks in it finds some. A node that is
/// alone with a limit leaves as much to one that joins it. `lua/acquire.lua` has the same.
const KEPT_FIFTHS: u64 = 2;

impl Counter {
    /// Rolls the counter to `now`: closes windows that are over, and limits times that are further ahead than
    /// allowed.
    pub fn roll(&mut self, limit: &Limit, now: Timestamp) {
        match limit.algorithm {
            Algorithm::Gcra => self.at = gcra::roll(limit, self.at, now, Micros(self.prev)),
            Algorithm::Fixed => window::roll_fixed(self, limit, now),
            Algorithm::FixedFromFirst => window::roll_from_first(self, limit, now),
            Algorithm::Sliding => window::roll_sliding(self, limit, now),
            Algorithm::Concurrent => {}
        }
    }

    /// The counter as it is at `now`.
    #[must_use]
    pub fn rolled(mut self, limit: &Limit, now: Timestamp) -> Self {
        self.roll(limit, now);
        self
    }

    /// Tokens that can be lent at `now`.
    #[must_use]
    pub fn left(&self, limit: &Limit, now: Timestamp) -> u64 {
        match limit.algorithm {
            Algorithm::Gcra => gcra::left(limit, self.at, now).saturating_sub(self.used),
            Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Concurrent => window::left_plain(self, limit),
            Algorithm::Sliding => window::left_sliding(self, limit, now),
        }
    }

    /// Tokens that a node can spend at `now`, if `own` of the tokens that this counter shows as lent were lent to it.
    #[must_use]
    pub fn left_beside(&self, limit: &Limit, now: Timestamp, own: u64) -> u64 {
        match limit.algorithm {
            // Some of the lent tokens may not have trickled in yet, so they are not simply added.
            Algorithm::Gcra => gcra::left(limit, self.at, now).saturating_sub(self.used.saturating_sub(own)),
            _ => self.left(limit, now).saturating_add(own),
        }
    }

    /// Tokens that can be lent of the window after the one that ends at `end`. They are 0 unless that is the present
    /// window of an aligned limit. Some are kept for nodes that ask in that window.
    #[must_use]
    pub fn left_ahead(&self, limit: &Limit, end: Timestamp) -> u64 {
        let next_is_known = self.at == end && self.at.0.is_multiple_of(limit.period.0);
        let allowed = limit.algorithm == Algorithm::Fixed && next_is_known;
        let most = limit.count - (KEPT_FIFTHS * limit.count).div_ceil(5);
        if allowed { most.saturating_sub(self.prev) } else { 0 }
    }

    /// Lends `tokens` to a node that will account for them. Under GCRA they are set aside, and count when they are
    /// spent.
    pub fn lend(&mut self, limit: &Limit, now: Timestamp, tokens: u64) {
        match limit.algorithm {
            Algorithm::Gcra => self.used = self.used.saturating_add(tokens),
            _ => self.debit(limit, now, tokens),
        }
    }

    /// Spends `tokens`.
    pub fn debit(&mut self, limit: &Limit, now: Timestamp, tokens: u64) {
        match limit.algorithm {
            Algorithm::Gcra if tokens == 0 => {}
            Algorithm::Gcra => self.debit_bucket(limit, now, gcra::cost(limit, tokens)),
            Algorithm::FixedFromFirst if self.is_unopened() && tokens > 0 => {
                *self = Self { used: tokens, prev: 0, at: now + limit.period };
            }
            Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Sliding | Algorithm::Concurrent => {
                self.used = self.used.saturating_add(tokens);
            }
        }
    }

    /// Spends tokens of a bucket, at least one, that cost so much together.
    pub fn debit_bucket(&mut self, limit: &Limit, now: Timestamp, cost: Micros) {
        self.prev = gcra::charged(limit, self.at, now, Micros(self.prev)).0;
        self.at = self.at.max(now) + cost;
    }

    /// Lends `tokens` of the next window (see [`Counter::left_ahead`]).
    pub fn debit_ahead(&mut self, tokens: u64) {
        self.prev = self.prev.saturating_add(tokens);
    }

    /// Takes back `tokens` that were lent, but not spent.
    pub fn release(&mut self, limit: &Limit, tokens: u64) {
        match limit.algorithm {
            Algorithm::Gcra => self.used = self.used.saturating_sub(tokens),
            _ => self.credit(limit, tokens),
        }
    }

    /// Takes back `tokens` that were spent, into the present window or bucket, but no more than are missing there.
    pub fn credit(&mut self, limit: &Limit, tokens: u64) {
        match limit.algorithm {
            Algorithm::Gcra => {
                self.at = gcra::credit(limit, self.at, tokens);
                // A bucket without a debt is stored like one that was never charged.
                if self.is_unopened() {
                    self.prev = 0;
                }
            }
            Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Sliding | Algorithm::Concurrent => {
                self.used = self.used.saturating_sub(tokens);
            }
        }
    }

    /// Takes back unspent `tokens` into the window that lent them, whose [`Counter::at`] was `window`. That may be
    /// the present window; for `fixed` also the next one, and for `sliding` the one before. For GCRA they return to
    /// what was set aside. Returns whether they were taken.
    pub fn credit_lent(&mut self, limit: &Limit, tokens: u64, window: Option<StoredTime>) -> bool {
        if limit.algorithm == Algorithm::Gcra {
            self.release(limit, tokens);
            return true;
        }
        let Some(window) = window.map(StoredTime::time) else { return false };
        if self.at == window {
            self.credit(limit, tokens);
            return true;
        }
        let beside = match limit.algorithm {
            Algorithm::Fixed => self.at + limit.period == window,
            Algorithm::Sliding => window + limit.period == self.at,
            Algorithm::Gcra | Algorithm::FixedFromFirst | Algorithm::Concurrent => false,
        };
        if beside {
            self.prev = self.prev.saturating_sub(tokens);
        }
        beside
    }

    /// Adds what one node has spent or holds and the store has lost; never above the limit. Under GCRA, it takes the
    /// latest TAT that the node knows, and adds what the node has spent since.
    pub fn restore(&mut self, limit: &Limit, now: Timestamp, known: Known) {
        if limit.algorithm == Algorithm::Gcra {
            self.at = self.at.max(gcra::roll(limit, known.at, now, Micros::ZERO));
            self.debit(limit, now, known.used.min(gcra::most_lent(limit)));
            return self.roll(limit, now);
        }
        let unopened = limit.algorithm == Algorithm::FixedFromFirst && self.is_unopened();
        if unopened && known.at > now && known.at <= now + limit.period {
            self.at = known.at;
        }
        if known.has_window() && known.at == self.at {
            self.used = self.used.saturating_add(known.used).min(limit.count);
        }
    }

    /// When the limit will be whole again if nobody spends; `now` when it is whole.
    #[must_use]
    pub fn whole_at(&self, limit: &Limit, now: Timestamp) -> Timestamp {
        match limit.algorithm {
            Algorithm::Gcra => gcra::debit(limit, self.at.max(now), now, self.used.min(limit.burst)),
            // The end of the window, whatever `now` is.
            Algorithm::Fixed | Algorithm::FixedFromFirst if !self.is_unopened() => self.at,
            Algorithm::Fixed | Algorithm::FixedFromFirst => now,
            Algorithm::Sliding if self.used > 0 => self.at + limit.period + limit.period,
            Algorithm::Sliding if self.prev > 0 => self.at + limit.period,
            Algorithm::Sliding => now,
            Algorithm::Concurrent if self.used > 0 => now + limit.period,
            Algorithm::Concurrent => now,
        }
    }

    /// The wait until `tokens` can be spent if nobody else spends; `None` when the limit is smaller than that.
    #[must_use]
    pub fn wait(&self, limit: &Limit, now: Timestamp, tokens: u64) -> Option<Micros> {
        match limit.algorithm {
            Algorithm::Gcra if tokens.saturating_add(self.used) <= limit.burst => {
                gcra::wait(limit, self.at, now, tokens + self.used)
            }
            // So many tokens are lent that some must be returned or spent first.
            Algorithm::Gcra => {
                let spent = (now + gcra::lease_life(gcra::units(std::slice::from_ref(limit)))).max(self.at)
                    + gcra::cost(limit, self.used.min(limit.burst));
                gcra::wait(limit, spent, now, tokens)
            }
            Algorithm::Sliding => window::wait_sliding(self, limit, now, tokens),
            Algorithm::Concurrent => (tokens <= limit.count).then_some(limit.period),
            Algorithm::Fixed | Algorithm::FixedFromFirst => {
                (tokens <= limit.count).then(|| window::wait_plain(self, limit, now, tokens))
            }
        }
    }
}

/// Whether a count that was kept under `before` goes on under `limit`, in the same place of the rule for the same key.
/// Under another algorithm it begins anew, because each algorithm has counters of its own. Under the same one it goes
/// on: an open window stays open until it or a window of the new length ends, and a bucket keeps its debt. Sliding
/// windows that get shorter are the exception. Their counts are those of aligned windows and do not say when in the
/// window tokens were spent, so they cannot be assigned to shorter windows.
#[must_use]
pub fn goes_on(before: &Limit, limit: &Limit) -> bool {
    let is_cut = limit.algorithm == Algorithm::Sliding && limit.period < before.period;
    limit.algorithm == before.algorithm && !is_cut
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_123_457);
    const NONE: Micros = Micros::ZERO;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    /// Small limits of every algorithm, with periods that do not divide evenly.
    fn limits() -> impl Strategy<Value = Limit> {
        let algorithm = prop_oneof![
            Just(Algorithm::Gcra),
            Just(Algorithm::Fixed),
            Just(Algorithm::FixedFromFirst),
            Just(Algorithm::Sliding)
        ];
        (1..40u64, 1_000..9_000u64, algorithm, 1..60u64)
            .prop_map(|(count, period, algorithm, burst)| Limit::new(count, Micros(period), algorithm, burst).unwrap())
    }

    /// Steps in time, in eighths of a period or to a microsecond around a boundary; and debits.
    fn steps() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
        prop::collection::vec((0..20u64, 0..3u64, 0..30u64), 1..60)
    }

    fn step(limit: &Limit, now: Timestamp, (eighths, mode, _): (u64, u64, u64)) -> Timestamp {
        let boundary = window::aligned_end(limit, now);
        match mode {
            0 => now + Micros(limit.period.0 * eighths / 8),
            1 => boundary,
            _ => (boundary - Micros(1)).max(now),
        }
    }

    /// What was lent and when. The model counts it again for every question, in i128.
    #[derive(Default)]
    struct Model {
        lent: Vec<(i128, i128)>,
    }

    impl Model {
        fn sum(&self, from: i128, to: i128) -> i128 {
            self.lent.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, tokens)| tokens).sum()
        }

        fn left(&self, limit: &Limit, now: Timestamp) -> i128 {
            let (now, period, count) = (i128::from(now.0), i128::from(limit.period.0), i128::from(limit.count));
            let start = now - now % period;
            let this = self.sum(start, start + period);
            match limit.algorithm {
                Algorithm::Fixed => count - this,
                Algorithm::Concurrent => count - self.sum(0, i128::MAX),
                Algorithm::Sliding => {
                    let covered = period - (now - start);
                    let weighed = self.sum(start - period, start) * covered;
                    count - this - (weighed + period - 1) / period
                }
                Algorithm::FixedFromFirst => {
                    let mut open = None;
                    for &(at, _) in &self.lent {
                        open = open.filter(|first| at < first + period).or(Some(at));
                    }
                    let open = open.filter(|first| now < first + period);
                    count - open.map_or(0, |first| self.sum(first, i128::MAX))
                }
                Algorithm::Gcra => {
                    let (period, tokens) = limit.interval();
                    let (period, tokens) = (i128::from(period), i128::from(tokens));
                    let cost = |n: i128| (n * period + tokens - 1) / tokens;
                    let depth = i128::from(limit.depth().0);
                    let tat = self.lent.iter().fold(0, |tat: i128, (at, n)| tat.max(*at) + cost(*n));
                    let free = |n: i128| now.max(tat) + cost(n) <= now + depth;
                    (0..=i128::from(limit.burst)).rev().find(|n| free(*n)).unwrap_or(0)
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn left_equals_a_naive_count(limit in limits(), steps in steps()) {
            let (mut counter, mut model, mut now) = (Counter::default(), Model::default(), NOW);
            for what in steps {
                now = step(&limit, now, what);
                counter.roll(&limit, now);
                let left = counter.left(&limit, now);
                prop_assert_eq!(i128::from(left), model.left(&limit, now).max(0));
                let lent = what.2.min(left);
                counter.debit(&limit, now, lent);
                if lent > 0 {
                    model.lent.push((i128::from(now.0), i128::from(lent)));
                }
            }
        }

        #[test]
        fn waiting_as_told_is_enough_and_less_is_not(limit in limits(), steps in steps(), tokens in 1..60u64) {
            let (mut counter, mut now) = (Counter::default(), NOW);
            for what in steps {
                now = step(&limit, now, what);
                counter.roll(&limit, now);
                counter.debit(&limit, now, what.2.min(counter.left(&limit, now)));
                let Some(wait) = counter.wait(&limit, now, tokens) else {
                    prop_assert!(tokens > limit.capacity());
                    continue;
                };
                let left_at = |at| counter.rolled(&limit, at).left(&limit, at);
                prop_assert!(left_at(now + wait) >= tokens);
                prop_assert!(wait == NONE || left_at(now + wait - Micros(1)) < tokens);
            }
        }

        #[test]
        fn limit_is_whole_when_told_and_not_before(limit in limits(), steps in steps()) {
            let (mut counter, mut now) = (Counter::default(), NOW);
            for what in steps {
                now = step(&limit, now, what);
                counter.roll(&limit, now);
                counter.debit(&limit, now, what.2.min(counter.left(&limit, now)));
                let whole = counter.whole_at(&limit, now);
                prop_assert_eq!(counter.rolled(&limit, whole).left(&limit, whole), limit.capacity());
            }
        }

        #[test]
        fn rolling_twice_is_rolling_once(limit in limits(), used in 0..50u64, prev in 0..50u64, at in 0..40_000u64) {
            let near = Timestamp(NOW.0 - 20_000 + at);
            for at in [near, Timestamp(0), window::aligned_end(&limit, near)] {
                let once = Counter { used, prev, at }.rolled(&limit, NOW);
                prop_assert_eq!(once.rolled(&limit, NOW), once);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn a_count_goes_on_under_other_numbers_as_is_said(
            before in limits(), other in limits(), since in 0..9_000u64, spent in 1..60u64,
        ) {
            let limit = Limit::new(other.count, other.period, before.algorithm, other.burst).unwrap();
            let mut counter = Counter::default().rolled(&before, NOW);
            let spent = spent.min(counter.left(&before, NOW));
            counter.debit(&before, NOW, spent);
            // A moment before the window in which it was spent ends, or before the bucket is full again.
            let whole = if before.algorithm == Algorithm::Sliding { counter.at + before.period } else { counter.whole_at(&before, NOW) };
            let now = (NOW + Micros(since)).min(whole - Micros(1));
            let was = counter.rolled(&before, now);
            let is = was.rolled(&limit, now);
            if goes_on(&before, &limit) {
                match limit.algorithm {
                    Algorithm::Gcra => prop_assert_eq!(is.at, was.at),
                    _ => prop_assert_eq!(is.used, spent),
                }
            } else if was.at + limit.period + limit.period <= now {
                prop_assert_eq!((is.used, is.prev), (0, 0));
            }
        }
    }

    #[test]
    fn another_algorithm_begins_anew_and_so_do_shorter_sliding_windows() {
        let goes_on = |before: &str, after: &str| super::goes_on(&limit(before), &limit(after));
        for (before, after) in [
            ("10/1s", "20/1m burst 5"),
            ("10/1h fixed", "20/1m fixed"),
            ("10/1m fixed from-first", "10/1h fixed from-first"),
            ("10/1m sliding", "20/1h sliding"),
            ("10/1m sliding", "20/1m sliding"),
        ] {
            assert!(goes_on(before, after), "{before} -> {after}");
        }
        for (before, after) in
            [("10/1s", "10/1s fixed"), ("10/1h fixed", "10/1h fixed from-first"), ("10/1h sliding", "10/1m sliding")]
        {
            assert!(!goes_on(before, after), "{before} -> {after}");
        }
    }

    #[test]
    fn known_usage_is_added_to_the_window_it_is_about_and_no_other() {
        let limit = limit("10/1s fixed");
        let mut counter = Counter::default().rolled(&limit, NOW);
        counter.restore(&limit, NOW, Known { used: 7, at: counter.at - limit.period });
        assert_eq!(counter.used, 0);
        counter.restore(&limit, NOW, Known { used: 3, at: counter.at });
        counter.restore(&limit, NOW, Known { used: 4, at: counter.at });
        assert_eq!(counter.used, 7, "what two nodes spent adds up");
        counter.restore(&limit, NOW, Known { used: 700, at: counter.at });
        assert_eq!(counter.used, 10, "never above the limit");
    }

    #[test]
    fn known_window_from_first_is_opened_again() {
        let limit = limit("10/1s fixed from-first");
        let mut counter = Counter::default();
        counter.restore(&limit, NOW, Known { used: 7, at: NOW });
        counter.restore(&limit, NOW, Known { used: 7, at: NOW + limit.period + Micros(1) });
        assert_eq!(counter, Counter::default());
        counter.restore(&limit, NOW, Known { used: 7, at: NOW + limit.period });
        assert_eq!((counter.used, counter.at), (7, NOW + limit.period));
    }

    #[test]
    fn known_tat_is_clamped_like_a_stored_one() {
        let limit = limit("10/1s");
        let mut counter = Counter::default();
        counter.restore(&limit, NOW, Known { used: 0, at: Timestamp(u64::MAX) });
        assert_eq!(counter.at, NOW + Micros::from_secs(1));
    }

    #[test]
    fn unspent_tokens_go_back_into_their_own_window_only() {
        let limit = limit("10/1s fixed");
        let mut counter = Counter { used: 5, prev: 4, at: window::aligned_end(&limit, NOW) };
        let (this, next) = (counter.at, counter.at + limit.period);
        assert!(!counter.credit_lent(&limit, 3, (this - limit.period).stored()));
        assert!(!counter.credit_lent(&limit, 3, None));
        assert!(counter.credit_lent(&limit, 3, this.stored()));
        assert!(counter.credit_lent(&limit, 1, next.stored()));
        assert_eq!((counter.used, counter.prev), (2, 3));
        let limit = self::limit("10/1s sliding");
        let mut counter = Counter { used: 5, prev: 4, at: window::aligned_start(&limit, NOW) };
        let this = counter.at;
        assert!(!counter.credit_lent(&limit, 1, (this + limit.period).stored()));
        assert!(!counter.credit_lent(&limit, 1, (this - limit.period - limit.period).stored()));
        assert!(counter.credit_lent(&limit, 1, (this - limit.period).stored()));
        assert!(counter.credit_lent(&limit, 2, this.stored()));
        assert_eq!((counter.used, counter.prev), (3, 3));
    }

    #[test]
    fn what_is_lent_from_a_bucket_is_set_aside_until_it_is_back() {
        let limit = limit("10/1s");
        let mut counter = Counter::default();
        counter.lend(&limit, NOW, 4);
        assert_eq!((counter.left(&limit, NOW), counter.at), (6, Timestamp(0)));
        assert!(counter.credit_lent(&limit, 3, None));
        assert_eq!(counter.left(&limit, NOW), 9);
        assert_eq!(counter.whole_at(&limit, NOW), NOW + Micros(100_000));
    }

    #[test]
    fn a_wait_allows_for_what_is_lent() {
        let limit = limit("10/1s");
        let counter = Counter { used: 8, prev: 0, at: Timestamp(0) };
        assert_eq!(counter.wait(&limit, NOW, 2), Some(NONE));
        assert_eq!(counter.wait(&limit, NOW, 3), Some(gcra::lease_life(1) + Micros(100_000)));
        assert_eq!(counter.wait(&limit, NOW, 11), None);
    }

    #[test]
    fn the_end_of_a_window_is_the_same_by_a_clock_that_is_fast() {
        for limit in [limit("10/1s fixed"), limit("10/1s fixed from-first")] {
            let counter = Counter { used: 3, prev: 0, at: NOW };
            assert_eq!(counter.whole_at(&limit, NOW + Micros(200)), NOW);
        }
        assert_eq!(Counter::default().whole_at(&limit("10/1s fixed from-first"), NOW), NOW, "none is open");
    }

    #[test]
    fn only_an_aligned_window_at_hand_lends_ahead() {
        let limit = limit("10/1s fixed");
        let mut counter = Counter::default().rolled(&limit, NOW);
        assert_eq!(counter.left_ahead(&limit, counter.at - Micros(1)), 0);
        assert_eq!(counter.left_ahead(&limit, counter.at), 6);
        counter.debit_ahead(4);
        let next = counter.at;
        assert_eq!(counter.left_ahead(&limit, next), 2);
        assert_eq!(counter.rolled(&limit, next).left(&limit, next), 6);
    }
}
