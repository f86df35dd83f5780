//! What a key makes of an answer of the store, whether somebody still waits for it or not. Part of
//! `key.rs`.

use std::sync::Arc;

use super::key::{LeasedKey, Turned};
use crate::core::call::{Call, Grant, Op};
use crate::core::context::Context;
use crate::core::limit::Algorithm;
use crate::core::mutant::{Mutant, on};
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Timestamp};

/// Takes note of any answer, and of what it says about what the store lost: true when the store has told
/// it to an acquire, and knows again what this node had been lent.
pub(super) fn learn(key: &mut LeasedKey, cx: &mut Context, now: Instant, call: &Call, grant: &Grant) -> bool {
    let mut lost = false;
    cx.note_trip(now.since(call.sent_at));
    cx.stats.damaged += u64::from(grant.damaged);
    if key.epoch != 0 && grant.epoch != 0 && grant.epoch != key.epoch && !key.has_overtaken(now, call, grant) {
        if grant.reset && !on(Mutant::ResetKeepsLeases) {
            let voided = key.lease.void() + key.drop_leftovers();
            cx.policy_stats(key.policy).expired += voided;
            key.share = None;
        } else {
            cx.stats.lost_epochs += 1;
            key.believe_fleet();
            let voided = key.void_ahead(now);
            cx.policy_stats(key.policy).expired += voided;
            lost = matches!(call.op, Op::Acquire(_));
        }
        if grant.reset {
            key.begin_anew();
            key.usage = None;
        }
    }
    key.learn(now, call, grant);
    lost
}

impl LeasedKey {
    /// Takes note of an answer: counters, epoch, clock. What a store says that has lost what this
    /// node spent counts when an acquire has restored that, and what was overtaken counts no more.
    pub(super) fn learn(&mut self, now: Instant, call: &Call, grant: &Grant) {
        let lost = self.epoch != 0 && grant.epoch != self.epoch && !grant.reset;
        let overtaken = self.has_overtaken(now, call, grant);
        let guess = self.clock.latest(now);
        let clock = StoreClock::new(call.sent_at, now, grant.now);
        self.clock = if self.answered.is_some() { self.clock.refined(clock) } else { clock };
        if let (None, Some(book)) = (self.answered, &mut self.share) {
            book.rebase(&self.rule, guess, self.clock.latest(now));
        }
        self.trip = clock.trip();
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) {
            self.accounted = self.accounted.max(call.id);
        }
        self.nodes = grant.nodes.max(1);
        self.confirmed = grant.confirmed || on(Mutant::UnconfirmedAsConfirmed);
        if !self.is_of_these_limits(call) {
            return;
        }
        self.answered = Some(now);
        if overtaken || lost && !matches!(call.op, Op::Acquire(_)) {
            return self.roll(now);
        }
        self.heard = grant.now;
        for (index, limit) in self.rule.clone().limits.iter().enumerate() {
            let fresh = grant.counters[index];
            if self.usage.is_some() && self.counters[index].at != fresh.at {
                self.note_window(index);
            }
            if limit.algorithm != Algorithm::Gcra && self.counters[index].at != fresh.at {
                self.net[index] = self.lent_of(index, fresh.at);
            }
            self.counters[index] = fresh;
        }
        if grant.epoch != 0 {
            self.epoch = grant.epoch;
        }
        self.roll(now);
    }

    /// A later answer has come before this one. A clock that is further back is another master's, and so
    /// is that of a call sent since.
    fn has_overtaken(&self, now: Instant, call: &Call, grant: &Grant) -> bool {
        let sent_before = self.answered.is_some_and(|at| call.sent_at < at);
        // A bucket's time may have gone back since, as tokens were taken back.
        let limits = self.rule.limits.iter().zip(self.counters.iter().zip(&grant.counters));
        let mut windows = limits.filter(|(limit, _)| limit.algorithm != Algorithm::Gcra);
        let older =
            grant.now < self.heard && windows.all(|(_, (known, fresh))| fresh.at <= known.at || known.at.0 == 0);
        older && sent_before && self.clock.agrees(&StoreClock::new(call.sent_at, now, grant.now))
    }

    /// What this node was lent of the window of a limit that `Counter::at` says.
    fn lent_of(&self, index: usize, at: Timestamp) -> u64 {
        let Turned { window, lent } = self.turned[index];
        if window == at { lent } else { 0 }
    }

    /// Takes note that tokens of these windows go back: whatever is heard next of which of them is open, they
    /// were not spent.
    pub(super) fn note_returned(&mut self, tokens: u64, windows: &[Timestamp]) {
        for (turned, window) in self.turned.iter_mut().zip(windows) {
            if turned.window == *window {
                turned.lent = turned.lent.saturating_sub(tokens);
            }
        }
        if self.lent_ahead.0 == windows[0] {
            self.lent_ahead.1 = self.lent_ahead.1.saturating_sub(tokens);
        }
    }

    /// The call was sent under the limits that apply now: else its answer counts in other windows, and
    /// what it lends is void like all that was held when the limits changed.
    pub(super) fn is_of_these_limits(&self, call: &Call) -> bool {
        Arc::ptr_eq(&call.rule, &self.rule) || call.rule.limits == self.rule.limits
    }

    /// The store has forgotten what it lent.
    pub(super) fn forget_lent(&mut self) {
        self.net.fill(0);
        self.turned.fill(Turned::default());
        self.filled.fill(Instant(0));
        self.lent_ahead = (Timestamp(0), 0);
    }

    /// The key begins anew: nobody waits for tokens to trickle in.
    pub(super) fn begin_anew(&mut self) {
        self.forget_lent();
        self.credit = 0;
        self.fruitless = 0;
        (self.paced_until, self.probe_at) = (Instant(0), Instant(0));
    }

    /// The key was reset by the call of that id: what orders of before were lent is void, too.
    pub(super) fn drop_orders_before(&mut self, id: u64) {
        self.flight = self.flight.take().filter(|flight| flight.call.id > id);
        self.doubtful = self.doubtful.filter(|order| order.id > id);
    }
}
