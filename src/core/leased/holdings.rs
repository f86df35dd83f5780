//! The tokens of a key that are here: those that may be spent, and those that are about to go back.

use crate::core::lease::{Lease, Leftover, Segment};
use crate::core::rule::Rule;
use crate::core::time::{Due, Instant, Timestamp};

/// What this node was lent and has not spent, and how it may be spent.
#[derive(Debug)]
pub(super) struct Holdings {
    lease: Lease,
    /// Tokens that cannot be spent here any more and wait to go back until the acquire under way has been answered: see
    /// `advance::dispose`.
    leftovers: Vec<Leftover>,
    /// Some of what is held of a bucket has yet to trickle in, because this node is alone with the key.
    runs_ahead: bool,
    /// Tokens of the latest grants; the low-water mark is a part of them.
    last_grant: u64,
    /// Tokens of a bucket that were spent here and not taken back. No more than these are kept when they are refunded,
    /// because what another node spent was never lent to this one.
    spent_here: u64,
    /// When what the store has charged for somebody who did not get it goes back.
    unclaimed_until: Due,
}

impl Holdings {
    /// Nothing is held.
    pub(super) fn new() -> Self {
        Self {
            lease: Lease::default(),
            leftovers: Vec::new(),
            runs_ahead: false,
            last_grant: 0,
            spent_here: 0,
            unclaimed_until: Due::NEVER,
        }
    }

    /// What may be spent, now or later.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Tokens that this node was lent and has not spent.
    pub(super) fn unspent(&self) -> u64 {
        self.lease.held().saturating_add(self.waiting_to_return())
    }

    /// Of those, what goes back once the acquire under way has been answered.
    pub(super) fn waiting_to_return(&self) -> u64 {
        self.leftovers.iter().map(|leftover| leftover.tokens).sum()
    }

    /// Spends `cost`, if so much may be spent now; whether it was.
    pub(super) fn spend(&mut self, now: Instant, cost: u64) -> bool {
        self.lease.spend(now, cost)
    }

    /// Adds what the store has lent. Returns what had to make room.
    pub(super) fn add(&mut self, segment: Segment) -> Option<Leftover> {
        self.lease.add(segment)
    }

    /// The store has been told what is held of buckets: see [`Lease::account`].
    pub(super) fn account(&mut self, rule: &Rule, sent: Instant, arrived: Instant, store: Timestamp) {
        self.lease.account(rule, sent, arrived, store);
    }

    /// What was spent up to here counts in the store: no refund brings it back to the lease.
    pub(super) fn close_spent(&mut self) {
        self.lease.close_spent();
    }

    /// Takes back up to `tokens` that were spent from what is still held of those windows; how many.
    pub(super) fn refund(&mut self, now: Instant, tokens: u64, windows: &[Timestamp]) -> u64 {
        self.lease.refund(now, tokens, windows)
    }

    /// Keeps tokens of a bucket that were refunded and that the store has charged, until that time at most.
    pub(super) fn keep_refunded(&mut self, tokens: u64, until: Instant) {
        self.lease.put_back(tokens);
        self.unclaimed_until = self.unclaimed_until.or(until);
    }

    /// Hands out up to `tokens` of a window at hand, to go back.
    pub(super) fn take(&mut self, now: Instant, tokens: u64) -> Option<Leftover> {
        self.lease.take(now, tokens)
    }

    /// Hands out all tokens of a window that has not begun, to go back.
    pub(super) fn take_ahead(&mut self, now: Instant) -> Option<Leftover> {
        self.lease.take_ahead(now)
    }

    /// Drops what has ended; each is reported. Returns how much an account had that was closed.
    pub(super) fn drop_ended(&mut self, now: Instant, gone: impl FnMut(Leftover)) -> u64 {
        self.lease.drop_ended(now, gone)
    }

    /// Drops what may not be spent yet, but for what is of the window `restored`; how much.
    pub(super) fn void_ahead(&mut self, now: Instant, restored: Option<Timestamp>) -> u64 {
        self.lease.void_ahead(now, restored)
    }

    /// Drops everything; how much.
    pub(super) fn void(&mut self) -> u64 {
        self.lease.void() + self.drop_leftovers()
    }

    /// Tokens wait to go back.
    pub(super) fn return_later(&mut self, leftover: Leftover) {
        self.leftovers.push(leftover);
    }

    /// Takes one of those that wait to go back, to hand it back now.
    pub(super) fn take_leftover(&mut self) -> Option<Leftover> {
        self.leftovers.pop()
    }

    /// Adds to `leftover` all that waits to go back to the same windows, so that it leaves in one call. Of two calls that
    /// leave together the later may reach the store first, and the store then takes the other for outdated.
    pub(super) fn gather(&mut self, mut leftover: Leftover) -> Leftover {
        self.leftovers.retain(|other| {
            let is_same = other.windows == leftover.windows;
            leftover.tokens += if is_same { other.tokens } else { 0 };
            !is_same
        });
        leftover
    }

    /// What waited to go back lapses; how much.
    pub(super) fn drop_leftovers(&mut self) -> u64 {
        let dropped = self.waiting_to_return();
        self.leftovers.clear();
        dropped
    }

    /// Whether some of what is held has yet to trickle in.
    pub(super) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// The store has lent more than was there, or no more than that.
    pub(super) fn note_ahead(&mut self, runs_ahead: bool) {
        self.runs_ahead = runs_ahead;
    }

    /// Tokens of the latest grants.
    pub(super) fn last_grant(&self) -> u64 {
        self.last_grant
    }

    /// The low-water mark is measured by so many tokens from now on.
    pub(super) fn measure_by(&mut self, last_grant: u64) {
        self.last_grant = last_grant;
    }

    /// Tokens of a bucket that were spent here and not taken back.
    pub(super) fn spent_here(&self) -> u64 {
        self.spent_here
    }

    /// So many tokens of a bucket have been spent.
    pub(super) fn note_spent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_add(tokens);
    }

    /// So many of the tokens spent have been taken back.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_sub(tokens);
    }

    /// When what the store has charged for somebody who did not get it goes back.
    pub(super) fn unclaimed_until(&self) -> Due {
        self.unclaimed_until
    }

    /// Until then other checks may spend what nobody has claimed.
    pub(super) fn keep_unclaimed(&mut self, until: Due) {
        self.unclaimed_until = until;
    }
}
