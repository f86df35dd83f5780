//! How many tokens are asked of a key, and when it was last checked.

use crate::core::batch::{Bounds, Tuner};
use crate::core::time::{Instant, KeptInstant, Micros};

/// What clients want of a key.
#[derive(Debug, Default)]
pub(super) struct Demand {
    tuner: Tuner,
    last_check: Option<KeptInstant>,
}

impl Demand {
    /// What is known of the rate at which tokens are wanted.
    pub(super) fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// Records a check of the key.
    pub(super) fn note_check(&mut self, now: Instant) {
        if let Some(last) = self.last_check {
            self.tuner.came_after(now.since(last.time()));
        }
        self.last_check = Some(KeptInstant::of(now));
    }

    /// The time of the latest check.
    pub(super) fn last_check(&self) -> Option<Instant> {
        self.last_check.map(KeptInstant::time)
    }

    /// The time since the latest check.
    pub(super) fn idle_for(&self, now: Instant) -> Micros {
        self.last_check().map_or(Micros::ENDLESS, |last| now.since(last))
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
