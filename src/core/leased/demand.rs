//! How much is asked of a key, and when it was asked for last.

use crate::core::batch::{Bounds, Tuner};
use crate::core::time::{Instant, Micros};

/// What clients want of a key.
#[derive(Debug, Default)]
pub(super) struct Demand {
    tuner: Tuner,
    last_check: Instant,
}

impl Demand {
    /// What is known of the rate at which tokens are wanted.
    pub(super) fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// Somebody checks the key.
    pub(super) fn note_check(&mut self, now: Instant) {
        self.last_check = now;
    }

    /// When somebody did so last.
    pub(super) fn last_check(&self) -> Instant {
        self.last_check
    }

    /// How long ago the latest check was.
    pub(super) fn idle_for(&self, now: Instant) -> Micros {
        now.since(self.last_check)
    }

    /// A check has spent tokens that were held.
    pub(super) fn note_spent(&mut self, cost: u64) {
        self.tuner.spent(cost);
    }

    /// A check was denied: it wanted what the usual one does.
    pub(super) fn note_denied(&mut self) {
        self.tuner.denied();
    }

    /// Tokens to ask for now; begins to measure anew.
    pub(super) fn refill(&mut self, now: Instant, bounds: Bounds) -> u64 {
        self.tuner.refill(now, bounds)
    }
}
