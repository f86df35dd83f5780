//! The tokens of a key that this node holds and may spend, now or later.

use crate::core::lease::{Lease, Segment, Unspent};
use crate::core::rough::Rough;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, StoredTime, Timestamp};

/// What this node was lent and may still spend.
#[derive(Debug)]
pub(super) struct Holdings {
    lease: Lease,
    /// Tokens of the latest grants. The low-water mark is a part of them.
    last_grant: Rough,
    /// Tokens of a bucket that were spent here and not refunded, as far as they fit. A refund keeps at most so many here, because what
    /// another node spent was never lent to this one; where this is less than was spent here, more goes to the store.
    spent_here: u32,
}

impl Holdings {
    /// Nothing is held.
    pub(super) fn new() -> Self {
        Self { lease: Lease::default(), last_grant: Rough::ZERO, spent_here: 0 }
    }

    /// The tokens that may be spent, now or later.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Spends `cost` if so much may be spent now. Returns whether it did.
    pub(super) fn spend(&mut self, now: Instant, cost: u64) -> bool {
        self.lease.spend(now, cost)
    }

    /// Adds a grant. Returns older tokens that must make room for it.
    pub(super) fn add(&mut self, segment: Segment) -> Option<Unspent> {
        self.lease.add(segment)
    }

    /// Takes note of a reading of the store's clock: see [`Lease::note_clock`].
    pub(super) fn note_clock(&mut self, rule: &Rule, clock: &StoreClock) {
        self.lease.note_clock(rule, clock);
    }

    /// Records that the store has heard what is held of buckets: see [`Lease::account`].
    pub(super) fn account(&mut self, rule: &Rule, sent: Instant, arrived: Instant, store: Timestamp) {
        self.lease.account(rule, sent, arrived, store);
    }

    /// What was spent so far is counted in the store, so no refund brings it back to the lease.
    pub(super) fn close_spent(&mut self) {
        self.lease.close_spent();
    }

    /// Takes back up to `tokens` that were spent, from what is still held of those windows. Returns how many.
    pub(super) fn refund(&mut self, now: Instant, tokens: u64, windows: &[Option<StoredTime>]) -> u64 {
        self.lease.refund(now, tokens, windows)
    }

    /// Adds refunded tokens of a bucket that the store has charged.
    pub(super) fn put_back(&mut self, tokens: u64) {
        self.lease.put_back(tokens);
    }

    /// Removes up to `tokens` of a present window, to be returned.
    pub(super) fn take(&mut self, now: Instant, tokens: u64) -> Option<Unspent> {
        self.lease.take(now, tokens)
    }

    /// Drops so many tokens of a bucket. Returns how many there were.
    pub(super) fn drop_some(&mut self, now: Instant, tokens: u64) -> u64 {
        let mut due = tokens;
        while due > 0 {
            let Some(unspent) = self.lease.take(now, due) else { break };
            due -= unspent.tokens;
        }
        tokens - due
    }

    /// Removes all tokens of a window that has not begun, to be returned.
    pub(super) fn take_ahead(&mut self, now: Instant) -> Option<Unspent> {
        self.lease.take_ahead(now)
    }

    /// Drops what has ended, and passes it to `gone`. Returns how many tokens an account had that was closed.
    pub(super) fn drop_ended(&mut self, now: Instant, gone: impl FnMut(Unspent)) -> u64 {
        self.lease.drop_ended(now, gone)
    }

    /// Drops tokens that may not be spent yet, except for those of the window `restored`. Returns how many.
    pub(super) fn void_ahead(&mut self, now: Instant, restored: Option<Timestamp>) -> u64 {
        self.lease.void_ahead(now, restored)
    }

    /// Drops all of it. Returns how many tokens that was.
    pub(super) fn void(&mut self) -> u64 {
        self.lease.void()
    }

    /// Tokens of the latest grants.
    pub(super) fn last_grant(&self) -> u64 {
        self.last_grant.get()
    }

    /// Sets the number of tokens of which the low-water mark is a part.
    pub(super) fn measure_by(&mut self, last_grant: u64) {
        self.last_grant = Rough::at_most(last_grant);
    }

    /// Tokens of a bucket that were spent here and not refunded.
    pub(super) fn spent_here(&self) -> u64 {
        self.spent_here.into()
    }

    /// Records that tokens of a bucket were spent.
    pub(super) fn note_spent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_add(fitting(tokens));
    }

    /// Records that spent tokens were taken back.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_sub(fitting(tokens));
    }

    /// The store counts nothing any more of what was spent so far, so no refund of it is kept here.
    pub(super) fn forget_spent(&mut self) {
        self.spent_here = 0;
    }
}

/// So many tokens, or as many as fit.
fn fitting(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
