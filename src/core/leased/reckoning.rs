//! The numbers of a key's decisions: whether the store lacks what is missing, how long a denied client waits, and what is left.
//!
//! Each begins with the counters as charged: what the store will count once it hears what was spent here. Part of `key.rs`, which asks for
//! all of them about a check that it denies.

use super::key::LeasedKey;
use super::store_view::{Charged, Reckoning};
use crate::core::answer::{self, Resolution, Standing};
use crate::core::call::Counter;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::limit::{Algorithm, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros};

/// An answer of the store shows how many tokens of a bucket other nodes hold. Once it is older than this, they may have returned them
/// (an idle node that has many does so within an eighth of a second), and a check is no longer denied because of them.
const STALE: Micros = Micros(1_000_000);

impl LeasedKey {
    /// Reckons the key's limits as charged. What is reckoned counts until tokens are spent, lent or returned.
    pub(super) fn reckon(&self) -> Reckoning {
        self.view.reckon(self.unspent())
    }

    /// Whether the store is known to have fewer tokens than are missing, beside so many that are being returned to it.
    pub(super) fn lacks(&self, reckoning: &Reckoning, now: Instant, cost: u64, returning: u64) -> bool {
        if self.view.answered().is_none() {
            return false;
        }
        let usable = self.about_to_start(now).saturating_add(returning);
        let cost = if on(Mutant::DeniesTheLastToken) { cost + 1 } else { cost };
        if self.is_paced(now) {
            return usable < cost;
        }
        let (latest, held) = (self.view.clock().latest(now), reckoning.unspent());
        let doubts = self.view.answered().is_some_and(|at| now.since(at) >= STALE);
        // Each denial comes here, so no array for eight limits is filled.
        self.view.rule().limits.iter().enumerate().any(|(index, limit)| {
            let mut counter = reckoning.of(&self.view, index).counter;
            // Other nodes no longer hold tokens of buckets.
            if doubts && limit.algorithm == Algorithm::Gcra {
                counter.used = counter.used.min(held);
            }
            counter.left_beside(limit, latest, usable) < cost
        })
    }

    pub(super) fn deny(&self, now: Instant, cost: u64, source: Source) -> Decision {
        self.deny_by(&self.reckon(), now, cost, source)
    }

    pub(super) fn deny_by(&self, reckoning: &Reckoning, now: Instant, cost: u64, source: Source) -> Decision {
        let wait = match self.holdings.lease().ready(cost).filter(|_| !self.view.runs_ahead()) {
            Some(ready) => ready.after(now),
            // What is held does not suffice, or has yet to trickle in. It stays here, so the store must have the
            // rest.
            None => {
                let (earliest, held) = (self.view.clock().earliest(now), self.holdings.lease().current(now));
                let mut spent_at = None;
                let waits = self.view.rule().limits.iter().enumerate().filter_map(|(index, limit)| {
                    let Charged { mut counter, spent_at: at } = reckoning.of(&self.view, index);
                    // The earliest of all.
                    spent_at = at.into_iter().chain(spent_at).min();
                    counter.release(limit, held);
                    if limit.algorithm == Algorithm::Fixed {
                        let ahead = self.holdings.lease().held_of(index, counter.at + limit.period);
                        counter.prev = counter.prev.saturating_sub(ahead);
                    }
                    counter.wait(limit, earliest, cost)
                });
                let wait = waits.max().unwrap_or_default();
                wait + self.drift_margin(now, wait, spent_at) + self.report_margin()
            }
        };
        let pause = self.pause(now);
        let (is_paced, wait) = (pause > Micros::ZERO, wait.max(pause));
        let wait = if on(Mutant::WaitHalved) { Micros(wait.0 / 2) } else { wait };
        let decision = self.answer_by(reckoning, now, cost, Resolution::deny(Reason::Rate, source).after(wait));
        // Tokens that have trickled in since the store was asked may have been lent to other nodes.
        let most = if is_paced { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// Denies a waiter. Whenever the store was asked for it, the store had less, and what was returned meanwhile went
    /// to other nodes.
    pub(super) fn deny_in_line(&self, now: Instant, cost: u64) -> Decision {
        let decision = self.deny(now, cost, Source::Store);
        let remaining = decision.remaining.min(cost.saturating_sub(1));
        let retry_after = decision.retry_after.map(|wait| wait.max(self.view.trip()));
        Decision { remaining, retry_after, ..decision }
    }

    /// Fills in the numbers of a decision.
    pub(super) fn answer(&self, now: Instant, cost: u64, resolution: Resolution) -> Decision {
        if let [_] = &self.view.rule().limits[..] {
            // Most rules have one limit, and every check comes here, so no array for eight limits is filled for it.
            return self.answer_one(self.view.charged_of(0, self.unspent()), now, cost, resolution);
        }
        self.answer_several(now, cost, resolution)
    }

    fn answer_by(&self, reckoning: &Reckoning, now: Instant, cost: u64, resolution: Resolution) -> Decision {
        match reckoning.one() {
            Some(one) => self.answer_one(one.counter, now, cost, resolution),
            None => self.answer_several(now, cost, resolution),
        }
    }

    /// The same under one limit, of which this is the counter as charged.
    fn answer_one(&self, charged: Counter, now: Instant, cost: u64, resolution: Resolution) -> Decision {
        let shown = self.shown_of(charged, 0, now, self.releasable(now));
        self.decision(&[shown], now, cost, resolution)
    }

    fn answer_several(&self, now: Instant, cost: u64, resolution: Resolution) -> Decision {
        let mut shown = [Counter::default(); MAX_LIMITS];
        self.decision(self.show(now, &mut shown), now, cost, resolution)
    }

    fn decision(&self, shown: &[Counter], now: Instant, cost: u64, resolution: Resolution) -> Decision {
        let (earliest, epoch) = (self.view.clock().earliest(now), self.view.epoch());
        Decision { epoch, ..answer::decision(self.view.rule(), shown, earliest, cost, resolution) }
    }

    /// How each limit stands, as far as is known.
    pub(in crate::core) fn standings(&self, now: Instant) -> Vec<Standing> {
        let mut shown = [Counter::default(); MAX_LIMITS];
        answer::standings(self.view.rule(), self.show(now, &mut shown), self.view.clock().earliest(now))
    }

    /// The counters less what this node holds, and with what passed on credit.
    pub(super) fn show<'a>(&self, now: Instant, into: &'a mut [Counter; MAX_LIMITS]) -> &'a [Counter] {
        let (unspent, releasable) = (self.unspent(), self.releasable(now));
        let shown = &mut into[..self.view.rule().limits.len()];
        for (index, counter) in shown.iter_mut().enumerate() {
            *counter = self.shown_of(self.view.charged_of(index, unspent), index, now, releasable);
        }
        shown
    }

    /// The counter of one limit as a decision shows it, from that as charged. `releasable` are those of the unspent tokens here that
    /// count as left.
    #[inline]
    fn shown_of(&self, charged: Counter, index: usize, now: Instant, releasable: u64) -> Counter {
        let limit = &self.view.rule().limits[index];
        let mut counter = charged;
        if limit.algorithm == Algorithm::Gcra {
            counter.release(limit, if on(Mutant::OwnCountsTwice) { 2 * releasable } else { releasable });
            if let Some(credit) = self.rare.outage.credit() {
                counter.debit(limit, self.view.clock().earliest(credit.at), credit.tokens);
            }
            return counter;
        }
        // The known counter may be of a later window than the tokens that are being spent.
        if let Some(at) = self.holdings.lease().window(index, now).filter(|at| *at != counter.at) {
            counter = Counter { used: limit.count, prev: 0, at };
        }
        counter.release(limit, releasable);
        counter
    }

    /// Held tokens of the present windows, which count as left.
    fn releasable(&self, now: Instant) -> u64 {
        if on(Mutant::CountsNextWindowAsLeft) {
            self.holdings.lease().held()
        } else {
            self.holdings.lease().current(now)
        }
    }
}
