//! What a key knows of one limit in the store: its counter, and what the store has lent this node of it.
//!
//! Kept by `store_view.rs` for each limit of a key.

use crate::core::call::Counter;
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit};
use crate::core::time::{Instant, Micros, StoredTime, Timestamp};

/// What is known of one limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitView {
    /// As of the store's last answer, brought to the present time.
    pub(super) counter: Counter,
    /// Tokens of the current window that were lent to this node and not returned. Of a bucket, those that the store
    /// does not know to be spent.
    pub(super) lent: u64,
    past: Past,
}

/// What is known of the time before, which is another thing for a bucket than for windows.
#[derive(Clone, Copy, Debug)]
enum Past {
    /// When a bucket would be full again if only this node spent of it, and only what the store has not been told of.
    Bucket { full_at: Instant },
    /// The window before. It may turn out to be still open, because the store's clock is known only to within a round
    /// trip.
    Windows { before: LentOf },
}

/// What this node was lent of one window.
#[derive(Clone, Copy, Debug)]
pub(super) struct LentOf {
    /// `Counter::at` of the window.
    pub(super) window: Option<StoredTime>,
    pub(super) tokens: u64,
}

impl LimitView {
    /// Nothing was lent of the limit whose counter this is.
    pub(super) fn of(limit: &Limit, counter: Counter) -> Self {
        let past = match limit.algorithm {
            Algorithm::Gcra => Past::Bucket { full_at: Instant::default() },
            _ => Past::Windows { before: LentOf::NONE },
        };
        Self { counter, lent: 0, past }
    }

    /// What was lent of the window before; of a bucket nothing.
    pub(super) fn before(&self) -> LentOf {
        if let Past::Windows { before } = self.past { before } else { LentOf::NONE }
    }

    /// Changes what was lent of the window before. A bucket has none.
    pub(super) fn change_before(&mut self, change: impl FnOnce(&mut LentOf)) {
        if let Past::Windows { before } = &mut self.past {
            change(before);
        }
    }

    /// Changes when a bucket would be full again. Windows never are.
    pub(super) fn change_full_at(&mut self, change: impl FnOnce(Instant) -> Instant) {
        if let Past::Bucket { full_at } = &mut self.past {
            *full_at = change(*full_at);
        }
    }

    /// The time at which `spent` tokens of a bucket would have been spent in one go with the same result: not before
    /// the first of them was spent, nor after the last. A bucket that is charged at this time is charged at least
    /// what each check would have charged it in its turn, whatever others spend of it. An earlier time could charge
    /// less.
    pub(super) fn spent_at(&self, limit: &Limit, spent: u64) -> Instant {
        self.charged_at(gcra::cost(limit, spent))
    }

    /// The same for tokens that cost so much.
    pub(super) fn charged_at(&self, cost: Micros) -> Instant {
        let full_at = if let Past::Bucket { full_at } = self.past { full_at } else { Instant::default() };
        full_at - cost
    }
}

impl LentOf {
    /// Nothing was lent of any.
    pub(super) const NONE: Self = Self { window: None, tokens: 0 };

    /// The tokens, if they are of `window`.
    pub(super) fn of(self, window: Timestamp) -> u64 {
        if self.window == window.stored() { self.tokens } else { 0 }
    }

    /// Adds tokens, if they are of the same window.
    pub(super) fn add(&mut self, window: Option<StoredTime>, tokens: u64) {
        if self.window == window {
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }

    /// Removes tokens, if they are of the same window.
    pub(super) fn take(&mut self, window: Option<StoredTime>, tokens: u64) {
        if self.window == window {
            self.tokens = self.tokens.saturating_sub(tokens);
        }
    }
}
