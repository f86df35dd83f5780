//! Determines when bytes arrived that a connection has not read yet.
//!
//! A connection that awaits as many answers of the store as it may is not read, and further requests of its client
//! wait in the socket. That wait must count: a check is answered within `store.timeout` of its arrival, or the
//! clients of an overloaded store would wait behind each other without end. So the unread bytes are counted from time
//! to time, and a byte's arrival is the time when it was first counted. Bytes that were never counted, because this
//! process did not run, count as new; and for those that were counted before, the time in which it did not run is no wait: the store had
//! no chance to answer in it. Knows only numbers.

use std::collections::VecDeque;

use crate::core::time::{Instant, Micros};

/// How often unread bytes are counted in the time that a check may wait: an arrival is thus known to an eighth of it.
const COUNTS: u64 = 8;

/// A count that comes late by more than this part of the time that a check may wait shows that this process did not run. What is less may
/// be a busy daemon, whose clients do wait.
const STALLED_PART: u64 = 4;

/// Most counts that are kept; bytes of later counts are taken for younger than they are. Bytes older than a check may
/// wait are used up, so there are hardly ever more than [`COUNTS`].
const KEPT: usize = 64;

/// The bytes of one connection, counted from its first one.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// Bytes that commands have used.
    used: u64,
    /// Counts of the bytes that had arrived; what they say grows from one to the next.
    counted: VecDeque<Count>,
    /// When the unread bytes are to be counted next.
    due: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    /// Bytes in all.
    come: u64,
    /// When they had arrived, later by the time in which this process did not run since.
    at: Instant,
    /// `at` grows no further: a client waits for no more than twice the time that a check may wait, however this process runs.
    latest: Instant,
}

impl Arrivals {
    /// When the unread bytes are to be counted next.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Records that `waiting` bytes are unread now, on a connection whose checks may wait for `patience`.
    pub(super) fn count(&mut self, now: Instant, waiting: u64, patience: Micros) {
        self.excuse(now, patience);
        self.due = now + Micros((patience.0 / COUNTS).max(1_000));
        let come = self.used + waiting;
        let counted = self.counted.back().map_or(self.used, |before| before.come);
        if come > counted && self.counted.len() < KEPT {
            self.counted.push_back(Count { come, at: now, latest: now + patience });
        }
    }

    /// Where the present count is late, this process did not run since it was due.
    pub(super) fn excuse(&mut self, now: Instant, patience: Micros) {
        let late = now.since(self.due);
        if late.0 > patience.0 / STALLED_PART {
            self.counted.iter_mut().for_each(|count| count.at = (count.at + late).min(count.latest));
            self.due = now;
        }
    }

    /// When the byte after the next `after` ones arrived; `None` when it counts as new.
    pub(super) fn came(&self, after: usize) -> Option<Instant> {
        let place = self.used + after as u64;
        self.counted.iter().find(|count| count.come > place).map(|count| count.at)
    }

    /// Whether there are unread bytes that were counted.
    pub(super) fn are_counted(&self) -> bool {
        !self.counted.is_empty()
    }

    /// Commands have used `bytes` more.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.used += bytes as u64;
        while self.counted.front().is_some_and(|count| count.come <= self.used) {
            self.counted.pop_front();
        }
        if self.counted.is_empty() && self.counted.capacity() > 0 {
            self.counted = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_has_come_when_it_was_first_counted() {
        let mut arrivals = Arrivals::default();
        arrivals.pass(1_000);
        assert_eq!(arrivals.came(0), None, "nothing was counted");
        for (at, waiting) in [(10, 100), (20, 100), (30, 250)] {
            arrivals.count(Instant(at), waiting, Micros::from_millis(50));
        }
        let came = |arrivals: &Arrivals, after| arrivals.came(after).map(|at| at.0);
        assert_eq!(
            [0, 99, 100, 249, 250].map(|after| came(&arrivals, after)),
            [Some(10), Some(10), Some(30), Some(30), None]
        );
        arrivals.pass(100);
        assert_eq!([0, 149, 150].map(|after| came(&arrivals, after)), [Some(30), Some(30), None]);
        arrivals.pass(150);
        assert_eq!(came(&arrivals, 0), None);
        assert_eq!(arrivals.counted.capacity(), 0, "nothing is kept of what is used up");
    }

    #[test]
    fn time_in_which_this_process_did_not_run_is_no_wait() {
        let (ms, patience) = (|ms: u64| Instant(ms * 1_000), Micros::from_millis(48));
        let came = |late: &[u64]| {
            let mut arrivals = Arrivals::default();
            arrivals.count(ms(100), 10, patience);
            for late in late {
                let due = arrivals.due();
                arrivals.excuse(due + Micros::from_millis(*late), patience);
                arrivals.count(due + Micros::from_millis(*late), 10, patience);
            }
            arrivals.came(0).expect("it was counted").0 / 1_000
        };
        assert_eq!(came(&[12, 12, 12]), 100, "a busy daemon is late, too");
        assert_eq!(came(&[13]), 113);
        assert_eq!(came(&[13, 1, 20]), 133);
        assert_eq!(came(&[40, 40]), 148, "for no longer than a check may wait");
        assert_eq!(came(&[5_000]), 148);
    }

    #[test]
    fn counts_are_bounded() {
        let mut arrivals = Arrivals::default();
        (1..10_000).for_each(|number| arrivals.count(Instant(number), number, Micros::from_millis(80)));
        assert_eq!(arrivals.counted.len(), KEPT);
        assert_eq!(arrivals.due(), Instant(9_999 + 10_000));
        assert_eq!(arrivals.came(0), Some(Instant(1)));
        assert_eq!(arrivals.came(9_000), None);
    }
}
