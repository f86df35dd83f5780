//! The tokens of a key that are about to leave this node: those that wait to be returned, and those that nobody has claimed.

use crate::core::lease::Unspent;
use crate::core::time::Instant;

/// Tokens that can no longer be spent here, and are returned once the acquire under way is answered: see `advance::dispose`; and until
/// when others are kept that nobody has claimed. A key without any needs only a pointer.
#[derive(Debug)]
pub(super) struct Leaving(Option<Box<Waiting>>);

#[derive(Debug)]
struct Waiting {
    list: Vec<Unspent>,
    /// When tokens of the lease are returned that the store has charged for a waiter who did not take them; `None` where there are
    /// none.
    unclaimed_until: Option<Instant>,
}

impl Leaving {
    /// There are none.
    pub(super) const NEW: Self = Self(None);

    /// Whether there are none, and nothing is to be remembered of any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn waiting(&mut self) -> &mut Waiting {
        self.0.get_or_insert_with(|| Box::new(Waiting { list: Vec::new(), unclaimed_until: None }))
    }

    /// Frees the memory when nothing is left to remember.
    fn close(&mut self) {
        self.0.take_if(|waiting| waiting.list.is_empty() && waiting.unclaimed_until.is_none());
    }

    /// How many tokens wait to be returned.
    pub(super) fn tokens(&self) -> u64 {
        let list: &[Unspent] = self.0.as_ref().map_or(&[], |waiting| &waiting.list);
        list.iter().map(|unspent| unspent.tokens).sum()
    }

    /// Stores tokens to be returned later.
    pub(super) fn return_later(&mut self, unspent: Unspent) {
        self.waiting().list.push(unspent);
    }

    /// Removes one batch of the tokens that wait to be returned.
    pub(super) fn take(&mut self) -> Option<Unspent> {
        let unspent = self.0.as_mut()?.list.pop();
        self.close();
        unspent
    }

    /// Drops up to so many of the tokens that wait to be returned. Returns how many are left to be dropped.
    pub(super) fn drop_some(&mut self, tokens: u64) -> u64 {
        let mut due = tokens;
        while due > 0 {
            let Some(mut unspent) = self.take() else { break };
            let part = due.min(unspent.tokens);
            (unspent.tokens, due) = (unspent.tokens - part, due - part);
            if unspent.tokens > 0 {
                self.return_later(unspent);
            }
        }
        due
    }

    /// Adds to `unspent` all tokens that wait to be returned to the same windows, so that they are sent in one call.
    /// Of two calls that are sent at once, the second may reach the store first, and the store would then take the
    /// first for outdated.
    pub(super) fn gather(&mut self, mut unspent: Unspent) -> Unspent {
        if let Some(waiting) = &mut self.0 {
            waiting.list.retain(|other| {
                let is_same = other.windows == unspent.windows;
                unspent.tokens += if is_same { other.tokens } else { 0 };
                !is_same
            });
        }
        self.close();
        unspent
    }

    /// Drops the tokens that wait to be returned. Returns how many.
    pub(super) fn drop_all(&mut self) -> u64 {
        let dropped = self.tokens();
        if let Some(waiting) = &mut self.0 {
            waiting.list.clear();
        }
        self.close();
        dropped
    }

    /// When tokens are returned that the store has charged for a waiter who did not take them; `None`: it has charged none.
    pub(super) fn unclaimed_until(&self) -> Option<Instant> {
        self.0.as_ref()?.unclaimed_until
    }

    /// Until then, other checks may spend tokens that their waiter did not take; `None`: there are none.
    pub(super) fn keep_unclaimed(&mut self, until: Option<Instant>) {
        if until.is_some() {
            self.waiting().unclaimed_until = until;
        } else if let Some(waiting) = &mut self.0 {
            waiting.unclaimed_until = None;
            self.close();
        }
    }
}
