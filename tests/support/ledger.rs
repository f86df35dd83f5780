//! What the clients saw: one line a check, and the sums that the promises are about.
//!
//! An admitted check belongs to the window that its own reply names (`reset_at`); the ledger also
//! checks that the reply named a window that the check was really in, by the clients' clock (the
//! same machine's as the store's).

use std::collections::BTreeMap;
use std::time::Duration;

/// One check and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Which daemon answered.
    pub node: u8,
    /// Just before the request was written, Unix microseconds.
    pub sent_us: u64,
    /// Just after the reply was read, Unix microseconds.
    pub replied_us: u64,
    /// What it said.
    pub answer: Answer,
}

/// The parts of a decision that the ledger needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Field 0 was 0.
    pub allowed: bool,
    /// End of the window.
    pub reset_at_ms: u64,
    /// Reason, by its first letters: enough to tell apart, and no allocation.
    pub reason: Word,
    /// Source.
    pub source: Word,
}

/// The first eight bytes of a word.
pub type Word = [u8; 8];

/// The word as an `Answer` holds it.
#[must_use]
pub const fn word(text: &[u8]) -> Word {
    let mut word = [0; 8];
    let mut at = 0;
    while at < text.len() && at < 8 {
        word[at] = text[at];
        at += 1;
    }
    word
}

/// Everything that one run's clients saw of one key.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Answered checks.
    pub checks: Vec<Check>,
    /// Error replies.
    pub errors: Vec<String>,
    /// Requests that never got a reply: their daemon died.
    pub unanswered: u64,
    /// The latest that a paced client sent a request after it was due: when that is long, the
    /// machine stood still, and what the daemons did then says little of them.
    pub late: Duration,
}

/// The sums of one window.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Checks answered in it.
    pub checks: u64,
    /// Admitted with tokens that the store lent.
    pub lent: u64,
    /// Admitted on a node's share, per node.
    pub shared: BTreeMap<u8, u64>,
}

impl Window {
    /// All that was admitted.
    #[must_use]
    pub fn admitted(&self) -> u64 {
        self.lent + self.shared.values().sum::<u64>()
    }
}

impl Ledger {
    /// Adds what another client saw.
    pub fn merge(&mut self, other: Self) {
        self.checks.extend(other.checks);
        self.errors.extend(other.errors);
        self.unanswered += other.unanswered;
        self.late = self.late.max(other.late);
    }

    /// Sums per window, by its end.
    #[must_use]
    pub fn windows(&self) -> BTreeMap<u64, Window> {
        let mut windows: BTreeMap<u64, Window> = BTreeMap::new();
        for check in &self.checks {
            let window = windows.entry(check.answer.reset_at_ms).or_default();
            window.checks += 1;
            if check.answer.allowed && check.answer.source == word(b"share") {
                *window.shared.entry(check.node).or_default() += 1;
            } else if check.answer.allowed {
                window.lent += 1;
            }
        }
        windows
    }

    /// The windows that the load covered whole: all but the first and the last.
    #[must_use]
    pub fn full_windows(&self) -> Vec<Window> {
        let windows: Vec<_> = self.windows().into_values().collect();
        if windows.len() < 3 { Vec::new() } else { windows[1..windows.len() - 1].to_vec() }
    }

    /// The most that was admitted in any window, partly covered ones included.
    #[must_use]
    pub fn worst(&self) -> u64 {
        self.windows().values().map(Window::admitted).max().unwrap_or(0)
    }

    /// Admitted in full windows, as a part of what the limit would have let pass.
    #[must_use]
    pub fn utilisation(&self, limit: u64) -> f64 {
        self.utilisation_after(0, limit)
    }

    /// The same of full windows after the first so many.
    #[must_use]
    pub fn utilisation_after(&self, first: usize, limit: u64) -> f64 {
        let all = self.full_windows();
        let full = &all[first.min(all.len())..];
        let admitted: u64 = full.iter().map(Window::admitted).sum();
        admitted as f64 / (limit * full.len() as u64) as f64
    }

    /// Checks admitted on leases that were not in the window that their reply named: sent after its
    /// end, or answered before its beginning. A share goes by the node's guess of the store's clock.
    #[must_use]
    pub fn misplaced(&self, period_ms: u64) -> usize {
        let placed = |check: &Check| {
            let end_us = check.answer.reset_at_ms * 1_000;
            check.sent_us < end_us && check.replied_us + 1_000 >= end_us - period_ms * 1_000
        };
        let lent = |check: &&Check| check.answer.allowed && check.answer.source != word(b"share");
        self.checks.iter().filter(lent).filter(|check| !placed(check)).count()
    }

    /// Windows in which the store lent more than `lent`, or nodes admitted more than `shared` on their shares. Each holds
    /// however late anything is: that makes nodes take a store for lost that is not, never leases of more.
    #[must_use]
    pub fn excesses(&self, lent: u64, shared: u64) -> Vec<String> {
        let windows = self.windows().into_iter();
        let over = windows.filter(|(_, window)| window.lent > lent || window.admitted() - window.lent > shared);
        over.map(|(end, window)| {
            format!("{window:?} in the window until {end}: {lent} may be lent, and shares {shared}")
        })
        .collect()
    }

    /// The longest wait for a reply in microseconds, and the 99th percentile.
    #[must_use]
    pub fn waits_us(&self) -> (u64, u64) {
        let mut waits: Vec<_> = self.checks.iter().map(|check| check.replied_us - check.sent_us).collect();
        waits.sort_unstable();
        let at = |index: usize| waits.get(index).copied().unwrap_or(0);
        (at(waits.len().saturating_sub(1)), at(waits.len() * 99 / 100))
    }

    /// How many answers had this reason.
    #[must_use]
    pub fn count_reason(&self, reason: &str) -> usize {
        self.checks.iter().filter(|check| check.answer.reason == word(reason.as_bytes())).count()
    }

    /// How many answers had this source.
    #[must_use]
    pub fn count_source(&self, source: &str) -> usize {
        self.checks.iter().filter(|check| check.answer.source == word(source.as_bytes())).count()
    }
}
