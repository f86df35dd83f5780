//! Estimates that were charged and have yet to be settled.
//!
//! Remembers until its time is over what was charged, to whom and in which windows. Bounded; lives and ends
//! with the daemon: a hold that nobody settles stands as charged. Called by requests.

use std::collections::{BTreeSet, HashMap};

use super::inquiry::Inquiry;
use crate::core::limit::Algorithm;
use crate::core::policy::Rule;
use crate::core::time::{Instant, Micros, Timestamp};

/// Most holds at a time.
pub const MOST: usize = 100_000;

/// How long a hold can be settled unless the request says.
pub const TTL: Micros = Micros::from_secs(60);

/// The longest that a request may say.
pub const LONGEST: Micros = Micros::from_secs(86_400);

/// An estimate that was charged.
#[derive(Clone, Debug)]
pub struct Hold {
    /// What was charged.
    pub charged: Inquiry,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// When the limit is whole again, as the decision told.
    pub reset_at: Timestamp,
}

/// All holds of a daemon.
#[derive(Debug)]
pub struct Holds {
    holds: HashMap<u64, (Instant, Hold)>,
    by_end: BTreeSet<(Instant, u64)>,
    next: u64,
}

impl Holds {
    /// None yet; ids follow `first`.
    #[must_use]
    pub fn new(first: u64) -> Self {
        Self { holds: HashMap::new(), by_end: BTreeSet::new(), next: first }
    }

    /// Whether there is room for one more at `now`.
    pub fn has_room(&mut self, now: Instant) -> bool {
        while let Some(&(ends, id)) = self.by_end.first().filter(|(ends, _)| *ends <= now) {
            self.by_end.remove(&(ends, id));
            self.holds.remove(&id);
        }
        self.holds.len() < MOST
    }

    /// Keeps `hold` until `ends`, and returns its id.
    pub fn keep(&mut self, hold: Hold, ends: Instant) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.holds.insert(self.next, (ends, hold));
        self.by_end.insert((ends, self.next));
        self.next
    }

    /// Gives the hold of that id out of hand, once, unless its time is over.
    pub fn take(&mut self, id: u64, now: Instant) -> Option<Hold> {
        let (ends, hold) = self.holds.remove(&id)?;
        self.by_end.remove(&(ends, id));
        (now < ends).then_some(hold)
    }
}

impl Hold {
    /// What was charged counts against the limits still, so that it can be given back: no window of `rule` has
    /// ended since, and its buckets have not filled up meanwhile.
    #[must_use]
    pub fn counts_still(&self, rule: &Rule, now: Timestamp, reset_at: Timestamp) -> bool {
        rule.limits.iter().all(|limit| match limit.algorithm {
            Algorithm::Gcra => now.since(self.at) < limit.depth(),
            Algorithm::Fixed | Algorithm::Sliding => now.0 / limit.period.0 == self.at.0 / limit.period.0,
            // It ends by RATION.RELEASE.
            Algorithm::Concurrent => false,
            Algorithm::FixedFromFirst => rule.limits.len() == 1 && reset_at == self.reset_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::limit::Limit;
    use crate::core::policy::{Plan, Policy};

    const SECOND: u64 = 1_000_000;

    fn hold() -> Hold {
        let policy = Policy { name: "p".into(), plan: Plan::Unlimited, overrides: Default::default(), enforce: 100 };
        Hold {
            charged: Inquiry { policy: Arc::new(policy), key: (*b"k").into(), cost: 3, peek: false },
            at: Timestamp(100 * SECOND),
            reset_at: Timestamp(110 * SECOND),
        }
    }

    #[test]
    fn a_hold_is_settled_once_and_in_time() {
        let mut holds = Holds::new(7);
        let (first, second) = (holds.keep(hold(), Instant(10)), holds.keep(hold(), Instant(20)));
        assert!(holds.take(first, Instant(9)).is_some() && holds.take(first, Instant(9)).is_none());
        assert!(holds.take(second, Instant(20)).is_none());
        assert!(holds.by_end.is_empty() && holds.holds.is_empty());
    }

    #[test]
    fn what_nobody_settles_is_forgotten_and_the_number_is_bounded() {
        let mut holds = Holds::new(0);
        for _ in 0..MOST {
            assert!(holds.has_room(Instant(1)));
            holds.keep(hold(), Instant(10));
        }
        assert!(!holds.has_room(Instant(9)));
        assert!(holds.has_room(Instant(10)));
    }

    #[test]
    fn nothing_is_given_back_to_a_later_window() {
        let counts = |limits: &str, now: u64, reset: u64| {
            let rule = Rule::of("p", &[Limit::parse(limits).unwrap()]);
            hold().counts_still(&rule, Timestamp(now * SECOND), Timestamp(reset * SECOND))
        };
        assert!(counts("10/10s fixed", 109, 110) && !counts("10/10s fixed", 110, 120));
        assert!(counts("10/10s sliding", 109, 110) && !counts("10/10s sliding", 110, 120));
        assert!(counts("10/10s", 109, 0) && !counts("10/10s", 110, 0));
        assert!(counts("10/10s fixed from-first", 109, 110) && !counts("10/10s fixed from-first", 109, 112));
    }
}
