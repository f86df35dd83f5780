//! What requests of several keys need beside checks: a look, tokens in advance, and a way back.
//!
//! Part of `shard.rs`.

use super::answer::{self, Ending};
use super::call::Counter;
use super::decision::{Decision, Source};
use super::limit::MAX_LIMITS;
use super::refill;
use super::shard::{Request, Shard, peeked};
use super::time::Instant;

impl Shard {
    /// What a check would be answered as far as is known here: nothing is charged, and nobody is asked.
    #[must_use]
    pub fn glance(&self, now: Instant, request: Request<'_>) -> Decision {
        let fresh = || {
            let (counters, now) = ([Counter::default(); MAX_LIMITS], self.desk.first_clock().latest(now));
            answer::decision(request.rule, &counters, now, request.cost, Ending::allow(Source::Lease))
        };
        if request.rule.is_concurrent() {
            return self.concurrent.glance(&self.desk, now, &request).unwrap_or_else(fresh);
        }
        match self.table.find(request.digest.0).map(|index| &self.table[index]) {
            Some(slot) if slot.rule == *request.rule => peeked(slot, now, request.cost, Source::Lease),
            _ => fresh(),
        }
    }

    /// A check of this key is about to come: what it lacks is leased meanwhile.
    pub fn warm(&mut self, now: Instant, request: Request<'_>) {
        if request.rule.is_concurrent() {
            return;
        }
        let Some((index, slot, desk)) = self.slot(now, &request) else { return };
        let lacks = slot.lease.usable(now) < request.cost && !slot.is_exhausted(now, request.cost);
        if lacks && slot.line.is_empty() && slot.flight.is_none() && !slot.is_away(now) && !desk.draining {
            refill::acquire(index, slot, desk, now);
        }
    }

    /// Takes back an admission of this moment that came to nothing, as if it had not been asked for.
    pub fn undo(&mut self, now: Instant, request: Request<'_>, decision: &Decision) {
        if let Some(slot) = decision.slot {
            self.release(now, request.digest, slot);
            return;
        }
        let Some((_, slot, desk)) = self.slot(now, &request) else { return };
        desk.policy_stats(slot).uncount(decision);
        match decision.source {
            Source::Policy => {}
            Source::Share => {
                let clock = slot.clock.latest(now);
                let back = slot.share.as_mut().map_or(0, |book| book.refund(request.rule, clock, request.cost));
                slot.note_refund(back);
            }
            _ => drop(self.refund(now, request)),
        }
    }
}
