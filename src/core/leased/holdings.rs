//! The tokens of a key that this node holds: those that may be spent, and those that are about to be returned.

use crate::core::lease::{Lease, Segment, Unspent};
use crate::core::rough::Rough;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, StoredTime, Timestamp};

/// What this node was lent and has not spent.
#[derive(Debug)]
pub(super) struct Holdings {
    lease: Lease,
    /// Tokens that can no longer be spent here. They are returned once the acquire under way is answered: see
    /// `advance::dispose`.
    unspent: UnspentTokens,
    /// Some tokens that are held of a bucket have yet to trickle in; they were lent in advance because this node is
    /// alone with the key.
    runs_ahead: bool,
    /// Tokens of the latest grants. The low-water mark is a part of them.
    last_grant: Rough,
    /// Tokens of a bucket that were spent here and not refunded. A refund keeps at most so many here, because what
    /// another node spent was never lent to this one.
    spent_here: u64,
}

/// Tokens that wait to be returned, and until when others are kept that nobody has claimed. A key without any, as most keys are
/// at most times, needs only a pointer.
#[derive(Debug, Default)]
struct UnspentTokens(Option<Box<Waiting>>);

#[derive(Debug)]
struct Waiting {
    list: Vec<Unspent>,
    /// When tokens of the lease are returned that the store has charged for a waiter who did not take them; `None` where there are
    /// none.
    unclaimed_until: Option<Instant>,
}

impl UnspentTokens {
    fn list(&self) -> &[Unspent] {
        self.0.as_ref().map_or(&[], |waiting| &waiting.list)
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.0.get_or_insert_with(|| Box::new(Waiting { list: Vec::new(), unclaimed_until: None }))
    }

    /// Frees the memory when nothing is left to remember.
    fn close(&mut self) {
        self.0.take_if(|waiting| waiting.list.is_empty() && waiting.unclaimed_until.is_none());
    }
}

impl Holdings {
    /// Nothing is held.
    pub(super) fn new() -> Self {
        Self {
            lease: Lease::default(),
            unspent: UnspentTokens::default(),
            runs_ahead: false,
            last_grant: Rough::ZERO,
            spent_here: 0,
        }
    }

    /// The tokens that may be spent, now or later.
    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Tokens that this node was lent and has not spent.
    pub(super) fn unspent(&self) -> u64 {
        self.lease.held().saturating_add(self.waiting_to_return())
    }

    /// Those of them that are returned once the acquire under way is answered.
    pub(super) fn waiting_to_return(&self) -> u64 {
        self.unspent.list().iter().map(|unspent| unspent.tokens).sum()
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

    /// Keeps refunded tokens of a bucket that the store has charged, at most until that time.
    pub(super) fn keep_refunded(&mut self, tokens: u64, until: Instant) {
        self.lease.put_back(tokens);
        self.keep_unclaimed(Some(self.unclaimed_until().map_or(until, |kept| kept.min(until))));
    }

    /// Removes up to `tokens` of a present window, to be returned.
    pub(super) fn take(&mut self, now: Instant, tokens: u64) -> Option<Unspent> {
        self.lease.take(now, tokens)
    }

    /// Drops so many tokens of a bucket, those first that wait to be returned. Returns how many those were.
    pub(super) fn drop_some(&mut self, now: Instant, tokens: u64) -> u64 {
        let mut due = tokens;
        while due > 0 {
            let Some(mut unspent) = self.take_unspent() else { break };
            let part = due.min(unspent.tokens);
            (unspent.tokens, due) = (unspent.tokens - part, due - part);
            if unspent.tokens > 0 {
                self.return_later(unspent);
            }
        }
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

    /// Drops everything. Returns how many tokens that was.
    pub(super) fn void(&mut self) -> u64 {
        self.lease.void() + self.drop_unspent()
    }

    /// Stores tokens to be returned later.
    pub(super) fn return_later(&mut self, unspent: Unspent) {
        self.unspent.waiting().list.push(unspent);
    }

    /// Removes one batch of the tokens that wait to be returned.
    pub(super) fn take_unspent(&mut self) -> Option<Unspent> {
        let unspent = self.unspent.0.as_mut()?.list.pop();
        self.unspent.close();
        unspent
    }

    /// Adds to `unspent` all tokens that wait to be returned to the same windows, so that they are sent in one call.
    /// Of two calls that are sent at once, the second may reach the store first, and the store would then take the
    /// first for outdated.
    pub(super) fn gather(&mut self, mut unspent: Unspent) -> Unspent {
        if let Some(waiting) = &mut self.unspent.0 {
            waiting.list.retain(|other| {
                let is_same = other.windows == unspent.windows;
                unspent.tokens += if is_same { other.tokens } else { 0 };
                !is_same
            });
        }
        self.unspent.close();
        unspent
    }

    /// Drops the tokens that wait to be returned. Returns how many.
    pub(super) fn drop_unspent(&mut self) -> u64 {
        let dropped = self.waiting_to_return();
        if let Some(waiting) = &mut self.unspent.0 {
            waiting.list.clear();
        }
        self.unspent.close();
        dropped
    }

    /// Whether some of the held tokens have yet to trickle in.
    pub(super) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Records whether the store has lent more than had trickled in.
    pub(super) fn note_ahead(&mut self, runs_ahead: bool) {
        self.runs_ahead = runs_ahead;
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
        self.spent_here
    }

    /// Records that tokens of a bucket were spent.
    pub(super) fn note_spent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_add(tokens);
    }

    /// Records that spent tokens were taken back.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_sub(tokens);
    }

    /// The store counts nothing any more of what was spent so far, so no refund of it is kept here.
    pub(super) fn forget_spent(&mut self) {
        self.spent_here = 0;
    }

    /// When tokens are returned that the store has charged for a waiter who did not take them; `None`: it has charged none.
    pub(super) fn unclaimed_until(&self) -> Option<Instant> {
        self.unspent.0.as_ref()?.unclaimed_until
    }

    /// Until then, other checks may spend tokens that their waiter did not take; `None`: there are none.
    pub(super) fn keep_unclaimed(&mut self, until: Option<Instant>) {
        if until.is_some() {
            self.unspent.waiting().unclaimed_until = until;
        } else if let Some(waiting) = &mut self.unspent.0 {
            waiting.unclaimed_until = None;
            self.unspent.close();
        }
    }
}
