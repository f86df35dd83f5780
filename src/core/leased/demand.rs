//! How many tokens are asked of a key, and when it was last checked.

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

    /// Records a check of the key.
    pub(super) fn note_check(&mut self, now: Instant) {
        if self.last_check > Instant::default() {
            self.tuner.came_after(now.since(self.last_check));
        }
        self.last_check = now;
    }

    /// The time of the latest check.
    pub(super) fn last_check(&self) -> Instant {
        self.last_check
    }

    /// The time since the latest check.
    pub(super) fn idle_for(&self, now: Instant) -> Micros {
        now.since(self.last_check)
    }

    /// Records that a check has spent held tokens.
    pub(super) fn note_spent(&mut self, cost: u64) {
        self.tuner.spent(cost);
    }

    /// Records that a check was denied. It counts with the usual cost.
    pub(super) fn note_denied(&mut self) {
        self.tuner.denied();
    }

    /// Tokens to ask for now. Begins a new measurement.
    pub(super) fn refill(&mut self, now: Instant, bounds: Bounds) -> u64 {
        self.tuner.refill(now, bounds)
    }
}
