//! The answers that clients got, by windows of the limit. The demo's verdict is computed from these alone.
//!
//! It counts at the clients and not in the daemons that are judged. Each answer names the end of its window. Faults are
//! noted with their times, which decide the promise that each window is judged by.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hdrhistogram::Histogram;

/// For so many milliseconds after the store is back or was flushed, windows are judged by the looser promise: nodes
/// find the store one after the other, and each then leases nothing for a second.
const GRACE_MS: u64 = 1_500;

/// Windows that are remembered.
const MOST: usize = 4_096;

/// What is promised of a window, depending on the faults in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Promise {
    /// Every node reached the store all the time.
    Whole,
    /// As `Whole`, after a node was killed.
    Killed,
    /// As `Whole`, after nodes joined.
    Joined,
    /// No node reached the store, from before it began until after it ended.
    Away,
    /// The store was found again in it, or shortly before.
    Back,
    /// Some nodes did not reach the store.
    Parted,
    /// The store was flushed.
    Flushed,
    /// As `Whole`, some time after the store was flushed.
    Again,
}

impl Promise {
    /// All of them.
    pub(super) const ALL: [Self; 8] =
        [Self::Whole, Self::Killed, Self::Joined, Self::Away, Self::Back, Self::Parted, Self::Flushed, Self::Again];

    /// The most that a window may admit, in percent of the limit.
    pub(super) const fn percent(self) -> u64 {
        match self {
            Self::Whole | Self::Killed | Self::Joined | Self::Again => 100,
            Self::Away => 95,
            // Shares on top of leases: at most 95 % of the limit more.
            Self::Back | Self::Parted => 195,
            // What was spent before the flush, and the whole limit once more.
            Self::Flushed => 200,
        }
    }

    /// The promise in words.
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::Whole => "a window admits its limit and no more",
            Self::Killed => "a killed node takes its tokens with it: too little, never too much",
            Self::Joined => "nodes that join share the same limit",
            Self::Away => "without the store nodes go on, within 95 % of the limit together",
            Self::Back => "while nodes find the store again: a share beside leases at most",
            Self::Parted => "where some nodes are cut off: a share beside leases at most",
            Self::Flushed => "a store that loses everything counts anew, once",
            Self::Again => "and after that the limit holds again",
        }
    }
}

/// What happened to the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A node was killed.
    Kill,
    /// Nodes joined.
    Join,
    /// No node reaches the store.
    CutAll,
    /// Some nodes do not reach the store.
    CutSome,
    /// The store was flushed.
    Flush,
}

/// The time of a fault in Unix milliseconds; `until` is `None` while it lasts.
#[derive(Clone, Copy, Debug)]
struct Mark {
    fault: Fault,
    from: u64,
    until: Option<u64>,
}

/// Counts of answers about one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) admitted: u64,
    pub(super) denied: u64,
}

/// The ledger: shared by all clients.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Tokens of a window, and its length in milliseconds.
    pub(super) limit: u64,
    pub(super) period_ms: u64,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    /// By the number of the window since the epoch.
    windows: BTreeMap<u64, Window>,
    marks: Vec<Mark>,
    waits: Histogram<u64>,
    /// Checks without an answer, because their node was killed.
    lost: u64,
    /// The counts of each node.
    nodes: Vec<Window>,
}

/// The worst window of those under one promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Worst {
    pub(super) promise: Promise,
    /// Windows that were judged.
    pub(super) windows: u64,
    /// Most and least admitted in one.
    pub(super) most: u64,
    pub(super) least: u64,
    /// The most that may be admitted.
    pub(super) bound: u64,
}

impl Worst {
    /// Whether the promise was kept.
    pub(super) fn is_kept(self) -> bool {
        self.most <= self.bound
    }
}

/// How long clients waited, in microseconds, and what had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits {
    pub(super) checks: u64,
    pub(super) median_us: u64,
    pub(super) p99_us: u64,
    pub(super) longest_us: u64,
    pub(super) lost: u64,
}

impl Ledger {
    /// An empty one for a limit of `limit` tokens in aligned windows of `period_ms`.
    pub(super) fn new(limit: u64, period_ms: u64) -> Self {
        let waits = Histogram::new_with_bounds(1, 60_000_000, 3).expect("the bounds are in order");
        let book = Book { windows: BTreeMap::new(), marks: Vec::new(), waits, lost: 0, nodes: Vec::new() };
        Self { limit, period_ms, book: Mutex::new(book) }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an answer that a client of `node` got after so many microseconds, about the window that ends at
    /// `ends_ms`.
    pub(super) fn handle_answer(&self, node: usize, allowed: bool, ends_ms: u64, waited_us: u64) {
        // Answers round the end up to a millisecond.
        let number = (ends_ms + self.period_ms / 2) / self.period_ms;
        let mut book = self.book();
        book.waits.saturating_record(waited_us.max(1));
        if book.nodes.len() <= node {
            book.nodes.resize(node + 1, Window::default());
        }
        let mut of_node = book.nodes[node];
        let window = book.windows.entry(number).or_default();
        for count in [window, &mut of_node] {
            count.admitted += u64::from(allowed);
            count.denied += u64::from(!allowed);
        }
        book.nodes[node] = of_node;
        while book.windows.len() > MOST {
            book.windows.pop_first();
        }
    }

    /// A check had no answer.
    pub(super) fn handle_loss(&self) {
        self.book().lost += 1;
    }

    /// Notes that a fault begins now; it lasts until [`Self::heal`].
    pub(super) fn begin(&self, fault: Fault, now_ms: u64) {
        self.book().marks.push(Mark { fault, from: now_ms, until: None });
    }

    /// Notes that all nodes reach the store again.
    pub(super) fn heal(&self, now_ms: u64) {
        for mark in &mut self.book().marks {
            if matches!(mark.fault, Fault::CutAll | Fault::CutSome) && mark.until.is_none() {
                mark.until = Some(now_ms);
            }
        }
    }

    /// Judges each window that has ended, and returns the worst one under each promise.
    pub(super) fn judge(&self, now_ms: u64) -> Vec<Worst> {
        let book = self.book();
        let mut worst: BTreeMap<Promise, Worst> = BTreeMap::new();
        // The first window is left out, because clients began to ask in the middle of it.
        for (number, window) in book.windows.iter().skip(1).filter(|(number, _)| **number * self.period_ms < now_ms) {
            let promise = promise(&book.marks, (number - 1) * self.period_ms, number * self.period_ms);
            let bound = self.limit * promise.percent() / 100;
            let entry = worst.entry(promise).or_insert(Worst { promise, windows: 0, most: 0, least: u64::MAX, bound });
            entry.windows += 1;
            entry.most = entry.most.max(window.admitted);
            entry.least = entry.least.min(window.admitted);
        }
        worst.into_values().collect()
    }

    /// The last `count` windows until now, the open one at the end.
    pub(super) fn recent(&self, count: usize, now_ms: u64) -> VecDeque<Window> {
        let book = self.book();
        let open = now_ms / self.period_ms + 1;
        let first = open.saturating_sub(count as u64 - 1);
        (first..=open).map(|number| book.windows.get(&number).copied().unwrap_or_default()).collect()
    }

    /// All answers that clients of a node got.
    pub(super) fn of_node(&self, node: usize) -> Window {
        self.book().nodes.get(node).copied().unwrap_or_default()
    }

    /// How long clients waited.
    pub(super) fn waits(&self) -> Waits {
        let book = self.book();
        Waits {
            checks: book.waits.len(),
            median_us: book.waits.value_at_quantile(0.5),
            p99_us: book.waits.value_at_quantile(0.99),
            longest_us: book.waits.max(),
            lost: book.lost,
        }
    }
}

/// What is promised of the window from `start` to `end`.
fn promise(marks: &[Mark], start: u64, end: u64) -> Promise {
    let meets = |mark: &&Mark| mark.from < end && mark.until.is_none_or(|until| start < until + GRACE_MS);
    let flushed = |mark: &&Mark| mark.fault == Fault::Flush && mark.from < end && start < mark.from + GRACE_MS;
    if marks.iter().any(|mark| flushed(&mark)) {
        return Promise::Flushed;
    }
    let of = |fault: Fault| marks.iter().filter(move |mark| mark.fault == fault);
    if of(Fault::CutSome).any(|mark| meets(&mark)) {
        return Promise::Parted;
    }
    if let Some(mark) = of(Fault::CutAll).find(meets) {
        if mark.until.is_some_and(|until| until < end) {
            return Promise::Back;
        }
        if mark.from <= start {
            return Promise::Away;
        }
        // In the window in which the store goes away, nodes admit only what they were lent, so the limit holds.
    }
    let last =
        marks.iter().rfind(|mark| mark.from < end && matches!(mark.fault, Fault::Kill | Fault::Join | Fault::Flush));
    match last.map(|mark| mark.fault) {
        Some(Fault::Kill) => Promise::Killed,
        Some(Fault::Join) => Promise::Joined,
        Some(Fault::Flush) => Promise::Again,
        _ => Promise::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ledger of 10 in 1,000 ms in which so many were admitted in each window from 1 on.
    fn ledger(admitted: &[u64]) -> Ledger {
        let ledger = Ledger::new(10, 1_000);
        for (index, admitted) in admitted.iter().enumerate() {
            let ends = 1_000 * (index as u64 + 1);
            (0..*admitted).for_each(|_| ledger.handle_answer(0, true, ends, 40));
            ledger.handle_answer(0, false, ends, 40);
        }
        ledger
    }

    fn worst(ledger: &Ledger, promise: Promise) -> Option<(u64, u64, bool)> {
        let judged = ledger.judge(100_000);
        judged.iter().find(|worst| worst.promise == promise).map(|worst| (worst.windows, worst.most, worst.is_kept()))
    }

    #[test]
    fn one_token_too_many_breaks_the_promise() {
        assert_eq!(worst(&ledger(&[10, 10, 9, 10]), Promise::Whole), Some((3, 10, true)));
        assert_eq!(worst(&ledger(&[10, 10, 11, 10]), Promise::Whole), Some((3, 11, false)));
    }

    #[test]
    fn a_window_is_held_to_what_happened_in_it() {
        let ledger = ledger(&[10, 10, 10, 9, 9, 18, 10, 10, 19, 10]);
        ledger.begin(Fault::CutAll, 2_500);
        ledger.heal(5_500);
        ledger.begin(Fault::Flush, 8_100);
        assert_eq!(worst(&ledger, Promise::Whole), Some((3, 10, true)), "before, where it begins, and long after it");
        assert_eq!(worst(&ledger, Promise::Away), Some((2, 9, true)));
        assert_eq!(worst(&ledger, Promise::Back), Some((2, 18, true)), "the last of it, and its grace");
        assert_eq!(worst(&ledger, Promise::Flushed), Some((2, 19, true)));
    }

    #[test]
    fn without_the_store_the_limit_itself_is_too_much() {
        let ledger = ledger(&[10, 10, 10, 10]);
        ledger.begin(Fault::CutAll, 900);
        assert_eq!(worst(&ledger, Promise::Away), Some((3, 10, false)));
    }

    #[test]
    fn kills_and_joins_are_judged_apart_and_no_milder() {
        let ledger = ledger(&[10, 10, 10, 11]);
        ledger.begin(Fault::Kill, 1_500);
        ledger.begin(Fault::Join, 2_500);
        assert_eq!(worst(&ledger, Promise::Killed), Some((1, 10, true)));
        assert_eq!(worst(&ledger, Promise::Joined), Some((2, 11, false)));
    }
}
