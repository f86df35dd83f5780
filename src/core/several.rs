//! What requests of several keys and of several steps need beside checks: a look, tokens in advance, and
//! ways back.
//!
//! Part of `shard.rs`.

use super::answer::{self, Ending};
use super::call::{Counter, Op, Voided};
use super::decision::{Decision, Source};
use super::holds::{Charge, is_open};
use super::limit::MAX_LIMITS;
use super::mutant::{Mutant, on};
use super::shard::{Outcome, Request, Shard, overload, peeked};
use super::time::{Instant, Timestamp};
use super::upkeep::set_timer;
use super::{errand, refill};

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
            Some(slot) if slot.rule == *request.rule => peeked(slot, now, request.cost, Source::Lease, self.desk.fleet),
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

    /// Gives `request.cost` of a charge back that counts still, to the windows that it was charged in and to no
    /// others: to what the share owes, to the lease, and the rest to the store.
    pub fn give_back(&mut self, now: Instant, request: Request<'_>, charge: &Charge) -> Outcome {
        let Some((_, slot, _)) = self.slot(now, &request).filter(|(_, slot, _)| !errand::is_full(slot)) else {
            return Outcome::Decided(overload(&request, now));
        };
        let (clock, mut due) = (slot.clock.latest(now), request.cost);
        let windows = charge.windows(request.rule).filter(|windows| {
            let counts = request.rule.limits.iter().zip(windows);
            charge.is_counted && counts.into_iter().all(|(limit, window)| is_open(limit, clock, *window))
        });
        let Some(windows) = windows else {
            return Outcome::Decided(slot.answer(now, 0, Ending::allow(Source::Lease)));
        };
        if charge.source == Source::Share {
            // What is not owed any more the store has been paid; what nobody remembers, perhaps not.
            due = match &mut slot.share {
                Some(book) => due - book.refund(request.rule, clock, due),
                None => 0,
            };
            slot.note_refund(request.cost - due);
        }
        self.take_back(now, Request { cost: due, ..request }, windows)
    }

    /// Takes tokens back that were spent of those windows: see [`Op::Refund`].
    pub(super) fn take_back(
        &mut self,
        now: Instant,
        request: Request<'_>,
        windows: [Timestamp; MAX_LIMITS],
    ) -> Outcome {
        // Nothing is taken back here of what the store could not be asked for, too.
        let Some((index, slot, desk)) = self.slot(now, &request).filter(|(_, slot, _)| !errand::is_full(slot)) else {
            return Outcome::Decided(overload(&request, now));
        };
        if slot.flight.is_none() && slot.exceeds_some(now, request.cost) {
            // One limit was charged less than another. The store takes back of each what it was charged and no more,
            // once nothing of that is held here.
            errand::give_back(index, slot, desk, now, u64::MAX);
            // What was spent of a bucket is charged first: a bucket that is full otherwise takes nothing back.
            if slot.has_untold() {
                errand::report(index, slot, desk, now, Voided::default());
            }
            slot.lease.close_spent();
            slot.note_refund(request.cost);
            slot.note_unspent(request.cost);
            let op = Op::Refund { amount: request.cost, windows };
            let ticket = errand::errand(index, slot, desk, now, op, 0);
            return ticket.map_or_else(|| Outcome::Decided(overload(&request, now)), Outcome::Parked);
        }
        let back = slot.lease.refund(now, request.cost.min(slot.untold()), &windows);
        slot.note_unspent(back);
        slot.note_refund(back);
        let stats = desk.policy_stats(slot);
        stats.spent = stats.spent.saturating_sub(back);
        let back = if on(Mutant::RefundTwice) { 0 } else { back };
        let amount = (request.cost - back).min(slot.refundable(now));
        if amount == 0 {
            return Outcome::Decided(slot.answer(now, 0, Ending::allow(Source::Lease)));
        }
        slot.note_refund(amount);
        if desk.settings.lease_ahead && !desk.draining && slot.keep_refund(now, amount, windows[0]) {
            let stats = desk.policy_stats(slot);
            stats.spent = stats.spent.saturating_sub(amount);
            set_timer(index, slot, desk, now);
            return Outcome::Decided(slot.answer(now, 0, Ending::allow(Source::Lease)));
        }
        // What is kept here of refunds before may be all that the bucket owes, once the store has taken back this one.
        refill::give_unclaimed(index, slot, desk, now);
        slot.note_unspent(amount);
        // What was spent of a bucket is charged first: a bucket that is full otherwise takes nothing back.
        if slot.has_untold() && slot.flight.is_none() {
            errand::report(index, slot, desk, now, Voided::default());
        }
        let ticket = errand::errand(index, slot, desk, now, Op::Refund { amount, windows }, 0);
        ticket.map_or_else(|| Outcome::Decided(overload(&request, now)), Outcome::Parked)
    }
}
