//! The admissions of one key, compared with its limits and with an exact counter.
//!
//! The exact counter is the core's own [`Counter`], asked for each check as if one place decided
//! alone: what it admits is what could have been admitted. Windows go by the clock of the key's
//! owner, and like the store's they never go back when that clock does. The ledger holds a book a
//! key, and closes it when nothing of it counts any more.

use std::sync::Arc;

use rationd::core::call::Counter;
use rationd::core::decision::Decision;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::{Micros, Timestamp};

use super::peak::Peaks;

/// One key's book.
#[derive(Clone, Debug)]
pub(super) struct Book {
    rule: Arc<Rule>,
    lines: Box<[Line]>,
    /// The line whose windows `used` is computed over; none when all limits are gcra.
    main: Option<usize>,
    /// What was and could be admitted in the main line's window that is open.
    used: Used,
    /// True and owner's time of the last entry.
    last: (u64, Timestamp),
}

/// One limit of the key.
#[derive(Clone, Debug)]
struct Line {
    exact: Counter,
    /// The same counter, charged with what was really admitted.
    real: Counter,
    /// Windows: what was admitted in the one that is open. Gcra: what is missing in the bucket,
    /// in tokens times the interval's numerator.
    spent: u128,
    /// Windows: where the open one ends. Gcra: up to when the bucket was filled.
    at: Timestamp,
    /// The largest count since the window opened: a config push changes it.
    count: u64,
    /// The window opened after the warm-up, and no reset was in it.
    counts: bool,
}

/// Tokens that were admitted, and that an exact counter would have admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// By the fleet.
    pub(super) admitted: u64,
    /// By the exact counter.
    pub(super) possible: u64,
}

/// What is summed over all keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) used: Used,
    pub(super) peaks: Peaks,
}

/// An entry: what was answered, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'a> {
    /// True microseconds since the start.
    pub(super) at: u64,
    /// The owner's clock.
    pub(super) store: Timestamp,
    /// The warm-up's end, in true microseconds.
    pub(super) warm: u64,
    /// What the node went by.
    pub(super) rule: &'a Arc<Rule>,
    pub(super) decision: &'a Decision,
    pub(super) cost: u64,
}

impl Entry<'_> {
    /// Whether a window that began at `start` on the owner's clock began after the warm-up.
    fn is_warm_since(&self, start: Timestamp) -> bool {
        self.at >= self.warm.saturating_add(self.store.since(start).0)
    }
}

impl Book {
    /// An empty book.
    pub(super) fn new(rule: &Arc<Rule>) -> Self {
        let line = |limit: &Limit| Line {
            exact: Counter::default(),
            real: Counter::default(),
            spent: 0,
            at: Timestamp(0),
            count: limit.count,
            counts: false,
        };
        Self {
            rule: rule.clone(),
            lines: rule.limits.iter().map(line).collect(),
            main: longest_window(rule),
            used: Used::default(),
            last: (0, Timestamp(0)),
        }
    }

    /// Enters an answered check. Returns whether it was denied although there were tokens.
    pub(super) fn check(&mut self, entry: &Entry<'_>, admitted: bool, sums: &mut Sums) -> bool {
        self.roll(entry, sums);
        let mut lines = self.lines.iter().zip(&self.rule.limits);
        let is_false = !admitted && lines.all(|(line, limit)| line.real.left(limit, entry.store) >= entry.cost);
        let possible = self.ask_exact(entry);
        self.used.possible += if possible { entry.cost } else { 0 };
        if admitted {
            self.used.admitted += entry.cost;
            self.spend(entry, sums);
        }
        if self.main.is_none() {
            let used = std::mem::take(&mut self.used);
            sums.used.add(used, entry.at >= entry.warm);
        }
        is_false
    }

    /// Enters a cost that was taken back.
    pub(super) fn refund(&mut self, entry: &Entry<'_>, sums: &mut Sums) {
        self.roll(entry, sums);
        for (line, limit) in self.lines.iter_mut().zip(&self.rule.limits) {
            line.exact.credit(limit, entry.cost);
            line.real.credit(limit, entry.cost);
            line.spent = line.spent.saturating_sub(line.amount(limit, entry.cost));
        }
        self.used.admitted = self.used.admitted.saturating_sub(entry.cost);
        self.used.possible = self.used.possible.saturating_sub(entry.cost);
    }

    /// Enters a reset: the counts begin anew, and the open windows are left out of the sums.
    pub(super) fn reset(&mut self, entry: &Entry<'_>, sums: &mut Sums) {
        self.roll(entry, sums);
        for line in &mut self.lines {
            (line.exact, line.real, line.spent, line.counts) = (Counter::default(), Counter::default(), 0, false);
        }
    }

    /// Adds the open windows to the sums, if they are whole at the true time `end`.
    pub(super) fn close(&self, end: u64, sums: &mut Sums) {
        for (index, (line, limit)) in self.lines.iter().zip(&self.rule.limits).enumerate() {
            if limit.algorithm != Algorithm::Gcra {
                line.fold(sums);
            }
            let whole = end.saturating_sub(self.last.0) >= line.at.since(self.last.1).0;
            if self.main == Some(index) {
                sums.used.add(self.used, line.counts && whole);
            }
        }
    }

    /// Whether a new book would say the same at the true time `now`.
    pub(super) fn is_over(&self, now: u64) -> bool {
        let store = self.last.1 + Micros(now.saturating_sub(self.last.0));
        self.lines.iter().zip(&self.rule.limits).all(|(line, limit)| {
            let full = match limit.algorithm {
                Algorithm::Gcra => self.last.1 + limit.period + limit.depth(),
                _ => line.at + limit.period,
            };
            full < store && line.exact.whole_at(limit, store) <= store
        })
    }

    /// Closes the windows that are over, and fills the buckets.
    fn roll(&mut self, entry: &Entry<'_>, sums: &mut Sums) {
        if !Arc::ptr_eq(&self.rule, entry.rule) && self.rule != *entry.rule {
            self.change_rule(entry, sums);
        }
        for (index, (line, limit)) in self.lines.iter_mut().zip(&self.rule.limits).enumerate() {
            line.exact.roll(limit, entry.store);
            line.real.roll(limit, entry.store);
            if limit.algorithm == Algorithm::Gcra {
                line.fill(limit, entry.store);
            } else if line.at <= entry.store {
                line.fold(sums);
                if self.main == Some(index) {
                    sums.used.add(std::mem::take(&mut self.used), line.counts);
                }
                line.open(limit, index, entry);
            } else {
                // If the clock steps back by more than a window, this window must not become longer.
                line.at = line.at.min(entry.store + limit.period);
            }
        }
        self.last = (entry.at, entry.store);
    }

    /// Applies pushed limits: lines of the same algorithm go on, and the open window is left out of `used`.
    fn change_rule(&mut self, entry: &Entry<'_>, sums: &mut Sums) {
        let same = |a: &Limit, b: &Limit| a.algorithm == b.algorithm && a.period == b.period;
        let (old, new) = (&self.rule.limits, &entry.rule.limits);
        if old.len() != new.len() || !old.iter().zip(new).all(|(a, b)| same(a, b)) {
            self.close(0, sums);
            *self = Self::new(entry.rule);
            return;
        }
        let before = std::mem::replace(&mut self.rule, entry.rule.clone());
        let limits = before.limits.iter().zip(&self.rule.limits);
        for (line, (old, new)) in self.lines.iter_mut().zip(limits) {
            line.count = line.count.max(new.count);
            line.counts = false;
            line.spent = (line.spent * line.amount(new, 1)).div_ceil(line.amount(old, 1));
        }
    }

    /// Asks the exact counter, which charges all limits or none.
    fn ask_exact(&mut self, entry: &Entry<'_>) -> bool {
        let mut lines = self.lines.iter().zip(&self.rule.limits);
        let fits = lines.all(|(line, limit)| line.exact.left(limit, entry.store) >= entry.cost);
        if fits {
            for (line, limit) in self.lines.iter_mut().zip(&self.rule.limits) {
                line.exact.debit(limit, entry.store, entry.cost);
            }
        }
        fits
    }

    /// Charges every line with what was admitted.
    fn spend(&mut self, entry: &Entry<'_>, sums: &mut Sums) {
        for (line, limit) in self.lines.iter_mut().zip(&self.rule.limits) {
            let amount = line.amount(limit, entry.cost);
            let before = line.spent;
            line.spent += amount;
            line.real.debit(limit, entry.store, entry.cost);
            if limit.algorithm == Algorithm::Gcra && entry.at >= entry.warm {
                let depth = u128::from(limit.burst) * u128::from(limit.interval().0);
                sums.peaks.see_bucket(before, line.spent, depth);
            }
        }
    }
}

impl Line {
    /// Tokens in the unit of `spent`.
    fn amount(&self, limit: &Limit, tokens: u64) -> u128 {
        let unit = if limit.algorithm == Algorithm::Gcra { limit.interval().0 } else { 1 };
        u128::from(tokens) * u128::from(unit)
    }

    /// Adds the tokens that have come back by `now`.
    fn fill(&mut self, limit: &Limit, now: Timestamp) {
        let back = u128::from(now.since(self.at).0) * u128::from(limit.interval().1);
        self.spent = self.spent.saturating_sub(back);
        self.at = self.at.max(now);
    }

    /// Opens the window of an entry.
    fn open(&mut self, limit: &Limit, index: usize, entry: &Entry<'_>) {
        self.at = match limit.algorithm {
            Algorithm::FixedFromFirst => first_end(limit, index, entry),
            _ => Timestamp((entry.store.0 / limit.period.0 + 1) * limit.period.0), // the aligned end
        };
        self.spent = 0;
        self.count = limit.count;
        self.counts = entry.is_warm_since(self.at - limit.period);
    }

    /// Takes the window into the peaks.
    fn fold(&self, sums: &mut Sums) {
        if self.counts {
            sums.peaks.see_window(self.spent, self.count);
        }
    }
}

impl Used {
    fn add(&mut self, more: Self, counts: bool) {
        if counts {
            self.admitted += more.admitted;
            self.possible += more.possible;
        }
    }
}

/// The end of a window that opens with the first request: the decision's, if that is about this limit and plausible.
fn first_end(limit: &Limit, index: usize, entry: &Entry<'_>) -> Timestamp {
    let latest = entry.store + limit.period;
    let reset_at = entry.decision.reset_at;
    let is_told = usize::from(entry.decision.limit_index) == index && reset_at > entry.store && reset_at <= latest;
    if is_told { reset_at } else { latest }
}

/// The windowed limit with the longest period.
fn longest_window(rule: &Rule) -> Option<usize> {
    let windows = rule.limits.iter().enumerate().filter(|(_, limit)| limit.algorithm != Algorithm::Gcra);
    windows.max_by_key(|(_, limit)| limit.period).map(|(index, _)| index)
}
