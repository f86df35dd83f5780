//! What a node says of the tokens that buckets lent it, and what it may promise meanwhile.
//!
//! The store sets aside what it lends of a gcra limit, and charges it when the node says that it was
//! spent. Until then the node counts as the store will. Where tokens come back one by one and many
//! ask, the store is asked at a pace, and clients are told so. Part of `slot.rs`.

use super::call::{Counter, Op};
use super::decision::Decision;
use super::gcra;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::slot::Slot;
use super::time::{Instant, Micros};

impl Slot {
    /// The counters as the store will have them when it is told what was spent of buckets.
    pub(super) fn charged(&self) -> [Counter; MAX_LIMITS] {
        let mut counters = [Counter::default(); MAX_LIMITS];
        counters[..self.counters.len()].copy_from_slice(&self.counters);
        let held = self.lease.held();
        for (index, limit) in
            self.rule.limits.iter().enumerate().filter(|(_, limit)| limit.algorithm == Algorithm::Gcra)
        {
            let spent = self.net[index].saturating_sub(held);
            counters[index].used = counters[index].used.saturating_sub(spent);
            counters[index].debit(limit, self.clock.latest(self.last_spend), spent);
        }
        counters
    }

    /// Takes it that other nodes hold nothing of buckets any more.
    pub(super) fn doubt_lent(&self, counters: &mut [Counter; MAX_LIMITS]) {
        let held = self.lease.held();
        for (limit, counter) in self.rule.limits.iter().zip(counters) {
            if limit.algorithm == Algorithm::Gcra {
                counter.used = counter.used.min(held);
            }
        }
    }

    /// Takes it that the store has been told what was spent of buckets. So many tokens, which are held
    /// no more, go back with that.
    pub(super) fn charge(&mut self, returned: u64) {
        let held = self.lease.held();
        let (limits, last) = (&self.rule.limits, self.clock.latest(self.last_spend));
        let buckets = limits.iter().zip(&mut self.counters).zip(&mut self.net);
        for ((limit, counter), net) in buckets.filter(|((limit, _), _)| limit.algorithm == Algorithm::Gcra) {
            let spent = net.saturating_sub(held + returned);
            counter.used = counter.used.saturating_sub(spent);
            counter.debit(limit, last, spent);
            *net = held;
        }
    }

    /// How long ago the last token was spent.
    pub(super) fn age(&self, now: Instant) -> Micros {
        now.since(self.last_spend).rounded_early()
    }

    /// Tokens held, as the store is told.
    pub(super) fn held(&self) -> u32 {
        if on(Mutant::SpendingNotTold) {
            return u32::try_from(self.net[0]).unwrap_or(u32::MAX);
        }
        u32::try_from(self.lease.held()).unwrap_or(u32::MAX)
    }

    /// A limit is a bucket: what is lent of it has to be accounted for.
    pub(super) fn has_account(&self) -> bool {
        self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Tokens of a bucket are on their way back: an order that overtook them would say of them that
    /// they were spent.
    pub(super) fn has_account_under_way(&self) -> bool {
        self.has_account() && self.errands.iter().any(|errand| matches!(errand.call.op, Op::Return { .. }))
    }

    /// Tokens held that the store has charged to a bucket already, as somebody needed them.
    pub(super) fn charged_and_held(&self) -> u64 {
        let buckets = self.rule.limits.iter().zip(&self.net).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.map(|(_, net)| self.lease.held().saturating_sub(*net)).max().unwrap_or(0)
    }

    /// Tokens spent that the store takes to be held still, so that they can be held again: of every bucket
    /// as many. Those that somebody needed it has charged, and fills up again.
    pub(super) fn untold(&self) -> u64 {
        let held = self.lease.held();
        let buckets = self.rule.limits.iter().zip(&self.net).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.map(|(_, net)| net.saturating_sub(held)).min().unwrap_or(u64::MAX)
    }

    /// Tokens of a bucket were spent that the store has not been told of.
    pub(super) fn has_untold(&self) -> bool {
        self.has_account() && self.untold() > 0
    }

    /// By how much a wait for the store may be over early, as this node's clock drifts; and how much
    /// later than it was the store will take the last spending to have been, when it is told after
    /// `wait`. Nothing where a window ends: both sides go by the boundary then.
    pub(super) fn doubt(&self, now: Instant, wait: Micros) -> Micros {
        let since = if self.has_untold() { self.last_spend } else { self.answered.unwrap_or(now) };
        let span = now.since(since) + wait;
        let trickles = self.rule.limits.iter().any(Limit::trickles);
        if trickles { Micros(span.0 - span.rounded_early().0 + 1) } else { Micros::ZERO }
    }

    /// How long to leave a limit whose tokens trickle in alone: until this node's part is a few. A
    /// bucket loses nothing meanwhile as long as it is not full, a sliding window what nobody takes.
    pub(super) fn pause_of(&self, limit: &Limit) -> Micros {
        let few = if limit.algorithm == Algorithm::Gcra { 12 } else { 10 };
        let lot = gcra::cost(limit, few * u64::from(self.nodes)).0;
        Micros(match limit.algorithm {
            Algorithm::Gcra => lot.clamp(350_000, 2_000_000).min(limit.depth().0 / 2),
            _ => lot.clamp(limit.period.0 / 16, limit.period.0 / 4),
        })
    }

    /// Takes note of what a client was told.
    pub(super) fn promise(&mut self, now: Instant, cost: u64, decision: &Decision) {
        let Some(wait) = decision.retry_after else { return };
        let standing = self.promise.filter(|(at, _)| *at > now);
        self.promise = Some(match standing {
            Some((at, most)) => (at.min(now + wait), most.max(cost)),
            None => (now + wait, cost),
        });
    }
}
