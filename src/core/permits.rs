//! The permits of one concurrent limit that clients hold at one node.
//!
//! A client holds a permit until it releases it, or until the limit's period is over, so that a forgotten permit is
//! not lost. Knows no store. Called by `concurrent.rs`, and by the embedded store, for which this is all there is to
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use super::answer::Resolution;
use super::decision::{Decision, Reason, Verdict};
use super::limit::Limit;
use super::mutant::{Mutant, on};
use super::time::{Instant, Micros, Timestamp};

/// The permits that clients hold.
#[derive(Clone, Debug, Default)]
pub struct Permits {
    by_id: BTreeMap<NonZeroU64, (Instant, u64)>,
    by_end: BTreeSet<(Instant, NonZeroU64)>,
    used: u64,
}

impl Permits {
    /// How many permits are held.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes `cost` permits under one id, until `ends` at the latest.
    pub fn take(&mut self, id: NonZeroU64, cost: u64, ends: Instant) {
        self.by_id.insert(id, (ends, cost));
        self.by_end.insert((ends, id));
        self.used += cost;
    }

    /// Releases the permits that were taken under an id; false when there are none, or they have ended before.
    pub fn release(&mut self, id: NonZeroU64) -> bool {
        let Some((ends, cost)) = self.by_id.remove(&id) else { return false };
        self.by_end.remove(&(ends, id));
        if !on(Mutant::PermitsKept) {
            self.used -= cost;
        }
        true
    }

    /// Releases permits that were held for too long.
    pub fn expire(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.by_end.first().filter(|(ends, _)| *ends <= now) {
            self.release(id);
        }
    }

    /// When the next permits end by themselves.
    #[must_use]
    pub fn first_end(&self) -> Option<Instant> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// The wait until `cost` fits below `most` if nobody takes more; `None` when these permits alone do not prevent
    /// it.
    fn wait(&self, now: Instant, cost: u64, most: u64) -> Option<Micros> {
        let mut used = self.used;
        self.by_end.iter().find_map(|(ends, id)| {
            used -= self.by_id[id].1;
            (used + cost <= most).then(|| ends.since(now))
        })
    }

    /// The decision of a check with this outcome.
    #[must_use]
    pub fn decision(&self, limit: &Limit, view: View, cost: u64, resolution: Resolution) -> Decision {
        let View { now, clock, most, others, slow } = view;
        let all = limit.period + slow;
        let denied = resolution.verdict == Verdict::Deny && resolution.reason != Reason::Cost;
        let wait = || self.wait(now, cost, most).unwrap_or(all).max(Micros(1));
        let last = self.by_end.last().map_or(Micros::ZERO, |(ends, _)| ends.since(now));
        let reset_after = if others > 0 { all } else { last };
        Decision {
            verdict: resolution.verdict,
            limit: limit.count,
            remaining: limit.count.saturating_sub(others.saturating_add(self.used)),
            retry_after: denied.then(|| resolution.retry_after.unwrap_or_else(wait)),
            reset_after,
            reset_at: clock + reset_after,
            reason: resolution.reason,
            source: resolution.source,
            limit_index: 0,
            slot: None,
            epoch: 0,
        }
    }
}

/// The state of a concurrent limit, as this node knows it.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// The time, by this node's clock.
    pub now: Instant,
    /// The same time by the store's clock.
    pub clock: Timestamp,
    /// Permits that this node may give to clients.
    pub most: u64,
    /// Permits of other nodes, as far as is known.
    pub others: u64,
    /// How long it takes until a permit that ends at another node can be used here.
    pub slow: Micros,
}

#[cfg(test)]
mod tests {
    use super::super::decision::Source;
    use super::*;

    fn id(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    #[test]
    fn a_slot_is_given_back_once() {
        let mut permits = Permits::default();
        permits.take(id(1), 3, Instant(10));
        permits.take(id(2), 1, Instant(20));
        assert_eq!(permits.used(), 4);
        assert!(permits.release(id(1)) && !permits.release(id(1)) && !permits.release(id(9)));
        assert_eq!(permits.used(), 1);
    }

    #[test]
    fn who_forgets_to_release_holds_it_no_longer_than_the_period() {
        let mut permits = Permits::default();
        permits.take(id(1), 3, Instant(10));
        permits.take(id(2), 1, Instant(20));
        permits.expire(Instant(9));
        assert_eq!((permits.used(), permits.first_end()), (4, Some(Instant(10))));
        permits.expire(Instant(10));
        assert_eq!(permits.used(), 1);
        assert!(!permits.release(id(1)));
    }

    #[test]
    fn the_wait_is_until_enough_have_ended() {
        let limit = Limit::parse("4/30s concurrent").unwrap();
        let mut permits = Permits::default();
        for (number, ends) in [(1, 10), (2, 20), (3, 30)] {
            permits.take(id(number), 1, Instant(ends));
        }
        let view = |most, others| View { now: Instant(5), clock: Timestamp(1_000), most, others, slow: Micros(7) };
        let deny = Resolution::deny(Reason::Rate, Source::Lease);
        let seen = |most, others, cost| {
            let decision = permits.decision(&limit, view(most, others), cost, deny);
            (decision.retry_after.unwrap().0, decision.remaining, decision.reset_after.0)
        };
        assert_eq!(seen(3, 0, 1), (5, 1, 25));
        assert_eq!(seen(3, 0, 2), (15, 1, 25));
        assert_eq!(seen(3, 1, 4), (30_000_007, 0, 30_000_007), "others have to give theirs back");
    }
}
