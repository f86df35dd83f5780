//! Memory that clients can make the daemon keep, counted in bytes.
//!
//! One budget for all of them, and an account for each holder, which gives back what it holds when it is
//! dropped. An account is refused what would leave the others less than it holds itself, so that a few
//! greedy holders leave room to whoever comes next (Choudhury and Hahne, "Dynamic queue length thresholds
//! for shared-memory packet switches", 1998). Knows bytes, not what they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that each account may hold beside the budget, however little is left of it: whoever reads what he
/// is told goes on whatever others do.
pub const FLOOR: usize = 16 << 10;

/// Accounts take and give back whole steps, so that threads seldom meet at the one count.
const STEP: usize = 64 << 10;

/// What all accounts together may hold.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    held: AtomicUsize,
}

/// What one holder holds of a budget.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    most: usize,
    held: usize,
    /// How much of it was asked for before, and granted.
    granted: usize,
}

/// Bytes of a budget that somebody has until this is dropped.
#[derive(Debug)]
pub struct Loan {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    /// A budget of which nothing is held.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, held: AtomicUsize::new(0) }
    }

    /// An account that may hold up to `most` bytes.
    #[must_use]
    pub fn account(self: &Arc<Self>, most: usize) -> Account {
        Account { budget: self.clone(), most, held: 0, granted: 0 }
    }

    /// So many bytes, for as long as what is returned is kept; `None`: that many are not left.
    #[must_use]
    pub fn lend(self: &Arc<Self>, bytes: usize) -> Option<Loan> {
        let taken = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let held = held.saturating_add(bytes);
            (held <= self.most).then_some(held)
        });
        taken.is_ok().then(|| Loan { budget: self.clone(), bytes })
    }

    /// Bytes that are held: in whole steps, and without what accounts hold beside it.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Account {
    /// Whether more may be added to the `bytes` that are held, which are then accounted for.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        bytes < self.most.max(FLOOR) && self.covers(bytes)
    }

    /// Whether the budget has room for `bytes`, which are then accounted for, though they be more than the account may
    /// hold. What was asked for while there was room may be more than that when it comes.
    pub fn covers(&mut self, bytes: usize) -> bool {
        bytes < FLOOR || self.cover(bytes)
    }

    fn cover(&mut self, bytes: usize) -> bool {
        let wanted = steps(bytes);
        if wanted <= self.granted {
            return true;
        }
        let (more, most) = (wanted.saturating_sub(self.held), self.budget.most);
        let taken = self.budget.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let held = held + more;
            (held.saturating_add(wanted) <= most).then_some(held)
        });
        if taken.is_ok() {
            self.held += more;
            self.granted = wanted;
        }
        taken.is_ok()
    }

    /// Notes that `bytes` are held now, be it more than was granted: that is counted, and grants nothing.
    pub fn settle(&mut self, bytes: usize) {
        let wanted = if bytes < FLOOR { 0 } else { steps(bytes) };
        if wanted > self.held {
            self.budget.held.fetch_add(wanted - self.held, Ordering::Relaxed);
        } else if wanted < self.held {
            self.budget.held.fetch_sub(self.held - wanted, Ordering::Relaxed);
        }
        self.held = wanted;
        self.granted = self.granted.min(wanted);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle(0);
    }
}

fn steps(bytes: usize) -> usize {
    bytes.div_ceil(STEP) * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: usize = 32 << 20;

    /// Adds as much as is allowed, and returns how much that was.
    fn fill(account: &mut Account) -> usize {
        let mut bytes = 0;
        while account.has_room(bytes) {
            bytes += 1 << 10;
            account.settle(bytes);
        }
        bytes
    }

    #[test]
    fn one_account_ends_at_its_own_bound() {
        let budget = Arc::new(Budget::new(256 << 20));
        assert_eq!(fill(&mut budget.account(EACH)), EACH);
        assert_eq!(budget.held(), 0, "what is dropped is given back");
    }

    #[test]
    fn greedy_accounts_leave_room_to_the_next_and_stay_within_the_budget() {
        let budget = Arc::new(Budget::new(256 << 20));
        let mut accounts: Vec<_> = (0..200).map(|_| budget.account(EACH)).collect();
        let held: Vec<_> = accounts.iter_mut().map(fill).collect();
        assert!(held[..7].iter().all(|&held| held > 16 << 20), "{held:?}");
        assert!(held[10] > 1 << 20, "the eleventh may have a deep pipeline, too: {held:?}");
        assert!(held.iter().all(|&held| held >= FLOOR), "{held:?}");
        assert!(held.iter().sum::<usize>() <= (256 << 20) + 200 * (FLOOR + STEP), "{held:?}");
        assert!(budget.held() <= (256 << 20) + 200 * STEP, "the floor is counted in steps");
    }

    #[test]
    fn loans_end_with_the_budget_and_come_back_when_they_are_dropped() {
        let budget = Arc::new(Budget::new(1_000));
        let mut loans: Vec<_> = std::iter::from_fn(|| budget.lend(300)).collect();
        assert_eq!((loans.len(), budget.held()), (3, 900));
        loans.pop();
        assert!(budget.lend(401).is_none() && budget.lend(400).is_some());
        loans.clear();
        assert_eq!(budget.held(), 0);
    }

    #[test]
    fn what_is_given_back_can_be_held_again() {
        let budget = Arc::new(Budget::new(1 << 20));
        let (mut first, mut second) = (budget.account(EACH), budget.account(EACH));
        assert!(fill(&mut first) <= (512 << 10) + (1 << 10), "one leaves as much as it holds");
        let before = fill(&mut second);
        first.settle(0);
        assert!(fill(&mut second) > before);
        second.settle(100 << 20);
        assert!(!first.has_room(FLOOR), "what one holds too much of is refused to others");
        assert!(first.has_room(FLOOR - 1));
    }
}
