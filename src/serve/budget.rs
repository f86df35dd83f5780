//! Bounds the memory, in bytes, that clients can make the daemon use.
//!
//! All clients share one budget; each has an account, which returns its bytes when it is dropped. An account is
//! refused more when less would remain for all others than it holds itself. So a few greedy clients leave room for
//! the next (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). Knows
//! bytes, not what they hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that each account may hold outside of the budget. A client that reads its replies can thus continue even
/// when others use all of the budget.
pub const FLOOR: usize = 16 << 10;

/// Accounts take and return whole steps, so that threads seldom contend for the shared counter.
const STEP: usize = 64 << 10;

/// The memory that all accounts may hold together.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    held: AtomicUsize,
}

/// The part of a budget that one client holds.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    most: usize,
    held: usize,
    /// Bytes that were asked for and granted.
    granted: usize,
}

/// Bytes of a budget that are returned when this is dropped.
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
    /// A budget of which no byte is held.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, held: AtomicUsize::new(0) }
    }

    /// An account that may hold up to `most` bytes.
    #[must_use]
    pub fn account(self: &Arc<Self>, most: usize) -> Account {
        Account { budget: self.clone(), most, held: 0, granted: 0 }
    }

    /// Takes `bytes` until the loan is dropped; `None` when that many are not free.
    #[must_use]
    pub fn lend(self: &Arc<Self>, bytes: usize) -> Option<Loan> {
        let taken = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            let held = held.saturating_add(bytes);
            (held <= self.most).then_some(held)
        });
        taken.is_ok().then(|| Loan { budget: self.clone(), bytes })
    }

    /// Bytes that accounts hold: in whole steps, and without the floor of each account.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Account {
    /// Accounts for `bytes` in all, and returns whether more may be added to them.
    pub fn has_room(&mut self, bytes: usize) -> bool {
        bytes < self.most.max(FLOOR) && self.covers(bytes)
    }

    /// Accounts for `bytes` if the budget has room for them, even beyond what this account may hold. It is for
    /// answers: they were asked for while there was room, and may be larger than expected.
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

    /// Records that `bytes` are held now, even if that is more than was granted.
    pub fn note_held(&mut self, bytes: usize) {
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
        self.note_held(0);
    }
}

fn steps(bytes: usize) -> usize {
    bytes.div_ceil(STEP) * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    const EACH: usize = 32 << 20;

    /// Takes as many bytes as are allowed, and returns how many those are.
    fn fill(account: &mut Account) -> usize {
        let mut bytes = 0;
        while account.has_room(bytes) {
            bytes += 1 << 10;
            account.note_held(bytes);
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
        first.note_held(0);
        assert!(fill(&mut second) > before);
        second.note_held(100 << 20);
        assert!(!first.has_room(FLOOR), "what one holds too much of is refused to others");
        assert!(first.has_room(FLOOR - 1));
    }
}
