//! What a key asks of the store, and how much at most. Part of `key.rs`.

use super::key::LeasedKey;
use crate::core::batch::refill_interval;
use crate::core::call::{Call, Known, Op};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros};

impl LeasedKey {
    /// What this node knows to be spent or held of each limit: of the window at hand; where it was lent nothing of
    /// that, of the one before, as long as that may be open yet.
    pub(super) fn known(&self, now: Instant) -> [Known; MAX_LIMITS] {
        let mut known = [Known::default(); MAX_LIMITS];
        if self.answered.is_some() && !on(Mutant::KnownNotSent) {
            let (held, earliest) = (self.held(), self.clock.earliest(now));
            for (index, (counter, net)) in self.counters.iter().zip(&self.net).enumerate() {
                let gcra = self.rule.limits[index].algorithm == Algorithm::Gcra;
                // Of a bucket, what the store has been told is in its TAT, and what is held is no loss.
                let used = if gcra { net.saturating_sub(held) } else { *net };
                let turned = self.turned[index];
                let limit = &self.rule.limits[index];
                let end =
                    if limit.algorithm == Algorithm::Sliding { turned.window + limit.period } else { turned.window };
                let is_before = !gcra && used == 0 && turned.lent > 0 && earliest < end;
                known[index] = if is_before {
                    Known { used: turned.lent, at: turned.window }
                } else {
                    Known { used, at: counter.at }
                };
            }
        }
        known
    }

    /// Most tokens worth asking for: this node's part of the smallest limit. The store remembers nodes
    /// for a while that are gone; the fleet knows.
    pub(super) fn ceiling(&self, fleet: Option<FleetView>) -> u64 {
        let smallest = self.rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
        let live = fleet.filter(|fleet| fleet.is_steady).map_or(u32::MAX, |fleet| fleet.live);
        let nodes = u64::from(self.nodes.min(live));
        if nodes > 1 {
            return smallest.div_ceil(nodes);
        }
        // A bucket lends what comes soon, too.
        let coming = |limit: &Limit| if limit.algorithm == Algorithm::Gcra { gcra::coming(limit) } else { 0 };
        let coming = self.rule.limits.iter().map(coming).min().unwrap_or(0);
        (smallest * 6).div_ceil(10).max(coming.min(smallest))
    }

    /// The call for `op`, to be sent at `now`.
    pub(super) fn call(&self, now: Instant, id: u64, op: Op) -> Call {
        Call { id, digest: Digest(self.digest), rule: self.rule.clone(), op, sent_at: now }
    }

    /// What the store may have been charged beyond what is held here: more is no cost to take back.
    pub(super) fn refundable(&self, now: Instant) -> u64 {
        if self.answered.is_none() {
            return u64::MAX;
        }
        let most = self.refundable_of_each(now).max().unwrap_or(0);
        // Tokens that nobody has spent are no part of a bucket's debt: whatever is taken back empties that at most.
        let is_of_buckets = self.rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        if is_of_buckets && most > 0 { u64::MAX } else { most }
    }

    /// More than some limit of several was charged, and less than another.
    pub(super) fn exceeds_some(&self, now: Instant, cost: u64) -> bool {
        let differ = || self.refundable_of_each(now).any(|charged| charged < cost);
        self.rule.limits.len() > 1 && self.answered.is_some() && differ() && self.refundable(now) > 0
    }

    fn refundable_of_each(&self, now: Instant) -> impl Iterator<Item = u64> {
        // Rather too much than too little: the store takes back no more than a full bucket holds.
        let (earliest, held, counters) = (self.clock.earliest(now), self.lease.current(now), self.charged());
        self.rule.limits.iter().zip(counters).map(move |(limit, counter)| match limit.algorithm {
            // What others hold they may have spent.
            Algorithm::Gcra => {
                let owed = counter.at.since(earliest);
                // A part of a token can be taken back, too: the bucket is whole only then.
                let spent = gcra::tokens_in(limit, owed).saturating_add(u64::from(owed.0 > 0)).min(limit.burst);
                spent.saturating_add(counter.used.saturating_sub(held))
            }
            // What an earlier window was charged stays charged.
            _ => counter.used.saturating_sub(held),
        })
    }

    /// So many tokens are gone in a small part of a refill interval. What trickles is not taken at once.
    pub(super) fn is_flooded(&self, part: u64) -> bool {
        let soon = Micros(refill_interval(&self.rule).0 / 8);
        self.confirmed && !self.rule.limits.iter().any(Limit::trickles) && self.tuner.uses(part, soon)
    }
}
