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
        match self.table.find(request.digest.0).map(|index| &self.table[index]) {
            Some(slot) if slot.rule == *request.rule => peeked(slot, now, request.cost, Source::Lease),
            _ => {
                let (counters, now) = ([Counter::default(); MAX_LIMITS], self.desk.first_clock().latest(now));
                answer::decision(request.rule, &counters, now, request.cost, Ending::allow(Source::Lease))
            }
        }
    }

    /// A check of this key is about to come: what it lacks is leased meanwhile.
    pub fn warm(&mut self, now: Instant, request: Request<'_>) {
        let Some((index, slot, desk)) = self.slot(now, &request) else { return };
        let lacks = slot.lease.usable(now) < request.cost && !slot.is_exhausted(now, request.cost);
        if lacks && slot.line.is_empty() && slot.flight.is_none() && !slot.is_away(now) && !desk.draining {
            refill::acquire(index, slot, desk, now);
        }
    }

    /// Takes back an admission of this moment that came to nothing, as if it had not been asked for.
    pub fn undo(&mut self, now: Instant, request: Request<'_>, decision: &Decision) {
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
