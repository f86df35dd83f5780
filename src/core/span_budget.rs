//! What a node may admit of windows that open with the first request, on what is set aside for it, while its store server is away.
//!
//! The node does not know when the store's windows open. So it admits no more than its entitlement in any time as long as a
//! window, and therefore no more in any window, wherever that lies. Time is divided into slices of a sixteenth of a window;
//! what was admitted in the present slice and in the sixteen before it covers every such time that ends now. Times are
//! this node's own, and slices are longer by as much as two clocks drift apart, so that no setting of the store's clock shortens them.
//!
//! Pure. Stored by a key in an outage (`leased/phase.rs`).

use super::mutant::{Mutant, on};
use super::time::{Instant, Micros};

/// Slices of a window. With more, a node comes closer to its entitlement in each window (to 16 parts of 17 with sixteen),
/// and a key in an outage takes eight bytes more for each.
const PARTS: usize = 16;

/// What was admitted lately.
#[derive(Clone, Debug)]
pub struct SpanBudget {
    /// The length of a slice.
    slice: Micros,
    /// The number of the latest slice in which something was looked at or admitted.
    latest: u64,
    /// Tokens admitted in that slice, and in each before it.
    tokens: [u64; PARTS + 1],
    /// What was admitted before this time the store need not be charged: no window of then is open any more.
    owed_from: Instant,
}

impl SpanBudget {
    /// Nothing was admitted. Windows are `period` long.
    #[must_use]
    pub fn new(period: Micros) -> Self {
        let slice = Micros((period.rounded_late().0 + 1).div_ceil(PARTS as u64).max(1));
        Self { slice, latest: 0, tokens: [0; PARTS + 1], owed_from: Instant(0) }
    }

    /// The budget where windows are `period` long from `now` on. Of what was admitted that counts which the store has yet to be
    /// charged, as if it was admitted now.
    #[must_use]
    pub fn under(&self, now: Instant, period: Micros) -> Self {
        let mut budget = Self { owed_from: self.owed_from, ..Self::new(period) };
        budget.enter(now);
        budget.tokens[0] = self.debt(now);
        budget
    }

    /// How many slices have begun since the latest.
    fn passed(&self, now: Instant) -> usize {
        let slice = now.0 / self.slice.0;
        if on(Mutant::SpansForgotten) && slice / PARTS as u64 != self.latest / PARTS as u64 {
            return PARTS + 1;
        }
        let passed = slice.saturating_sub(self.latest);
        usize::try_from(passed).unwrap_or(usize::MAX).min(PARTS + 1)
    }

    /// What still counts once so many more slices have begun.
    fn counted(&self, passed: usize) -> u64 {
        self.tokens.iter().take(PARTS + 1 - passed.min(PARTS + 1)).fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }

    /// Tokens admitted in the time before `now` that is as long as a window, or a little earlier.
    #[must_use]
    pub fn admitted(&self, now: Instant) -> u64 {
        self.counted(self.passed(now))
    }

    fn enter(&mut self, now: Instant) {
        let passed = self.passed(now);
        self.tokens.rotate_right(passed % (PARTS + 1));
        self.tokens[..passed].fill(0);
        self.latest = self.latest.max(now.0 / self.slice.0);
    }

    /// Admits `cost`, if no more than `most` are admitted then in a time as long as a window. Returns whether it did.
    pub fn spend(&mut self, now: Instant, most: u64, cost: u64) -> bool {
        let fits = self.admitted(now).saturating_add(cost) <= most;
        if fits {
            self.enter(now);
            self.tokens[0] += cost;
        }
        fits
    }

    /// When `cost` fits, if nobody spends; `None` if it never does.
    #[must_use]
    pub fn ready(&self, now: Instant, most: u64, cost: u64) -> Option<Instant> {
        let passed = self.passed(now);
        let more = (0..=PARTS + 1).find(|more| self.counted(passed + more).saturating_add(cost) <= most)?;
        let slice = self.latest.max(now.0 / self.slice.0) + more as u64; // a few
        Some(Instant(slice * self.slice.0).max(now))
    }

    /// The store has answered that none of its windows began before `time` that is open.
    pub fn note_begun(&mut self, time: Instant) {
        self.owed_from = self.owed_from.max(time);
    }

    /// Tokens admitted in slices that have ended after [`Self::note_begun`]: as many at least as in the window that is open.
    #[must_use]
    pub fn debt(&self, now: Instant) -> u64 {
        let passed = self.passed(now);
        let of_window =
            |place: &usize| (self.latest + 1).saturating_sub(*place as u64) * self.slice.0 > self.owed_from.0;
        let owed = (0..PARTS + 1 - passed).filter(of_window);
        owed.fold(0, |sum, place| sum.saturating_add(self.tokens[place]))
    }

    /// The store was charged so many tokens, the latest first. Returns how many of them are left when all is paid.
    pub fn pay(&mut self, tokens: u64) -> u64 {
        let mut left = tokens;
        for of_slice in &mut self.tokens {
            let part = left.min(*of_slice);
            *of_slice -= part;
            left -= part;
        }
        left
    }

    /// Takes back up to `cost` that was admitted `then`. Returns how much. It is taken out of the oldest slices that still count, so
    /// that no more is free at any time than if it had never been admitted.
    pub fn refund(&mut self, now: Instant, then: Instant, cost: u64) -> u64 {
        let is_over = now.since(then).0 > PARTS as u64 * self.slice.0;
        self.enter(now);
        let mut left = if is_over { 0 } else { cost };
        let due = left;
        for of_slice in self.tokens.iter_mut().rev() {
            let part = left.min(*of_slice);
            *of_slice -= part;
            left -= part;
        }
        due - left
    }

    /// Whether something was admitted that still counts.
    #[must_use]
    pub fn is_open(&self, now: Instant) -> bool {
        self.admitted(now) > 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Micros = Micros(1_600_000);

    /// The beginning of a slice, and how long one is.
    fn start() -> (Instant, u64) {
        let slice = SpanBudget::new(PERIOD).slice.0;
        (Instant(1_000 * slice), slice)
    }

    #[test]
    fn no_time_as_long_as_a_window_has_more() {
        let ((now, slice), mut budget) = (start(), SpanBudget::new(PERIOD));
        assert!(budget.spend(now, 3, 2) && !budget.spend(now, 3, 2) && budget.spend(now + Micros(slice), 3, 1));
        let later = |slices: u64| now + Micros(slices * slice);
        assert!(!budget.spend(later(16), 3, 1));
        assert_eq!(budget.ready(later(1), 3, 1), Some(later(17)));
        assert_eq!(budget.ready(later(1), 3, 3), Some(later(18)));
        assert_eq!((budget.ready(later(1), 3, 4), budget.ready(later(30), 3, 3)), (None, Some(later(30))));
        assert!(budget.spend(later(17), 3, 2) && !budget.spend(later(17), 3, 1));
        assert!(budget.is_open(later(33)) && !budget.is_open(later(34)));
    }

    #[test]
    fn the_store_is_charged_for_what_may_be_in_its_window() {
        let ((now, slice), mut budget) = (start(), SpanBudget::new(PERIOD));
        for place in 0..4 {
            assert!(budget.spend(now + Micros(place * slice), 100, 1 << place));
        }
        let last = now + Micros(3 * slice);
        assert_eq!(budget.debt(last), 15);
        budget.note_begun(now + Micros(2 * slice - 1));
        assert_eq!(budget.debt(last), 14, "the slice in which it began counts as a whole");
        budget.note_begun(now + Micros(2 * slice));
        assert_eq!(budget.debt(last), 12);
        budget.note_begun(now);
        assert_eq!(budget.debt(last), 12, "an answer that came late says nothing new");
        let other = budget.under(last, Micros(2 * PERIOD.0));
        assert_eq!(
            (other.debt(last), other.admitted(last + PERIOD)),
            (12, 12),
            "of longer windows it counts for longer"
        );
        assert_eq!(budget.pay(12), 0);
        assert_eq!((budget.debt(last), budget.admitted(last), other.clone().pay(14)), (0, 3, 2));
        assert_eq!(budget.debt(last + Micros(17 * slice)), 0);
    }

    #[test]
    fn what_was_taken_back_is_free_no_sooner_than_if_it_had_not_been_admitted() {
        let ((now, slice), mut budget) = (start(), SpanBudget::new(PERIOD));
        let later = |slices: u64| now + Micros(slices * slice);
        assert!(budget.spend(now, 5, 2) && budget.spend(later(8), 5, 3));
        assert_eq!(budget.refund(later(8), later(8), 3), 3);
        assert_eq!((budget.admitted(later(8)), budget.admitted(later(17))), (2, 2));
        assert_eq!(budget.clone().refund(later(9), later(8), 7), 2, "no more than there is");
        assert_eq!(budget.refund(later(25), later(8), 3), 0);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_no_span_has_more_than_the_most(
            most in 1u64..9,
            checks in prop::collection::vec((0u64..500_000, 1u64..4), 1..60),
        ) {
            let (mut budget, mut now, mut admitted) = (SpanBudget::new(PERIOD), Instant(7_000_000), Vec::new());
            for (passed, cost) in checks {
                now = now + Micros(passed);
                let ready = budget.ready(now, most, cost);
                let is_admitted = budget.spend(now, most, cost);
                prop_assert_eq!(is_admitted, ready == Some(now));
                prop_assert!(ready.is_none_or(|ready| budget.clone().ready(ready, most, 0).is_some()));
                if is_admitted {
                    admitted.push((now, cost));
                }
            }
            for (from, _) in &admitted {
                let span = admitted.iter().filter(|(at, _)| at >= from && *at <= *from + PERIOD);
                prop_assert!(span.map(|(_, cost)| cost).sum::<u64>() <= most);
            }
        }
    }
}
