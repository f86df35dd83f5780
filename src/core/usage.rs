//! What nodes tell each other of a key: how much each has admitted in a window.
//!
//! Both counters of a [`Count`] only grow within a window, so merging is a maximum per origin (a
//! G-counter): loss, repeats and reordering are harmless, and what is known is never more than what
//! was. What was granted is never merged: tokens handed back would make it shrink. Knows no clock, no
//! peer by name and no wire. Kept by a key (`leased/peers.rs`).

use std::collections::VecDeque;

use super::key::Digest;
use super::limit::Limit;
use super::mutant::{Mutant, on};
use super::time::{Instant, Micros, Timestamp};

/// Windows of one limit that are remembered: the one at hand, and five to take a share from.
const WINDOWS: usize = 6;

/// Nodes that one window remembers.
const MOST_ORIGINS: usize = 4_096;

/// An open window is told of in so many steps of time at most.
const STEPS: u64 = 6;

/// How often it is told what a window came to: whoever missed one hears the next.
const FINALS: u8 = 3;

/// One node in one of its lives, as the fleet room numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin(pub u32);

/// What one node did in one window. Tokens; both only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Tokens of checks that were admitted.
    pub admitted: u64,
    /// Tokens that were taken back of those.
    pub refunded: u64,
}

impl Count {
    /// Tokens that stay admitted.
    #[must_use]
    pub fn net(self) -> u64 {
        self.admitted.saturating_sub(self.refunded)
    }

    /// The later of two states of the same counters.
    #[must_use]
    pub fn max_of(self, other: Self) -> Self {
        Self { admitted: self.admitted.max(other.admitted), refunded: self.refunded.max(other.refunded) }
    }
}

/// What one node tells of one limit of one key in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The key.
    pub digest: Digest,
    /// The limit's place in its rule.
    pub limit: u8,
    /// `Counter::at` of the window.
    pub window: Timestamp,
    /// What the node did in it.
    pub count: Count,
    /// 0, or the epoch that the store began when it had lost what it knew of the window.
    pub epoch: u64,
}

/// One window of one limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    pub(super) at: Timestamp,
    /// What this node did in it: final once the window has turned; before, what it refunded.
    pub(super) own: Count,
    /// What it told of that, when, and how often since the window turned.
    pub(super) told: Count,
    pub(super) told_at: Instant,
    pub(super) finals: u8,
    peers: Vec<(Origin, Count)>,
    /// Of all peers together.
    sum: u64,
    /// The store lent when all was spent, as peers told: they are not believed again.
    pub(super) refuted: bool,
    /// The store has lost what it knew of this window: its word is no proof against theirs.
    pub(super) lost: bool,
    /// The store has been asked whether it is as they tell.
    pub(super) asked: bool,
}

impl Window {
    /// Tokens that peers are known to have admitted.
    pub(super) fn peers(&self) -> u64 {
        self.sum
    }

    /// Nodes that told of it.
    pub(super) fn origins(&self) -> usize {
        self.peers.len()
    }

    /// What this node did in it has moved far enough to be told.
    pub(super) fn is_due(&self, terms: &ReportTerms<'_>, open: bool) -> bool {
        if !open {
            return self.will_be_due(terms, false);
        }
        let (own, told) = (self.own, self.told);
        let far = own.admitted.saturating_sub(told.admitted) >= terms.part(16).max(1);
        let late = terms.now.since(self.told_at) >= Micros(terms.limit.period.0 / STEPS);
        own != told && (terms.pressing || late && (far || own.refunded != told.refunded))
    }

    /// It will have to be told, now or later; what is less than a small part of a share never.
    pub(super) fn will_be_due(&self, terms: &ReportTerms<'_>, open: bool) -> bool {
        let least = if open { 0 } else { terms.part(64) };
        self.own.admitted > least && (open || self.finals < FINALS)
    }

    /// It is told now.
    pub(super) fn mark_reported(&mut self, now: Instant, open: bool) {
        self.finals += u8::from(!open);
        (self.told, self.told_at) = (self.own, now);
    }

    fn merge(&mut self, origin: Origin, count: Count) {
        let place = match self.peers.binary_search_by_key(&origin, |(origin, _)| *origin) {
            Ok(place) => place,
            Err(_) if self.peers.len() == MOST_ORIGINS => return,
            Err(place) => {
                self.peers.insert(place, (origin, Count::default()));
                place
            }
        };
        let known = &mut self.peers[place].1;
        let sum = Count { admitted: known.admitted + count.admitted, refunded: known.refunded + count.refunded };
        let merged = if on(Mutant::MergeAdds) { sum } else { known.max_of(count) };
        self.sum = self.sum.saturating_sub(known.net()).saturating_add(merged.net());
        *known = merged;
    }
}

/// When and under what a window may be told of.
#[derive(Debug)]
pub(super) struct ReportTerms<'a> {
    pub(super) now: Instant,
    pub(super) limit: &'a Limit,
    /// Nodes that live.
    pub(super) nodes: u32,
    /// Others wait to hear of it: all is spent, or this node leaves.
    pub(super) pressing: bool,
}

impl ReportTerms<'_> {
    /// One `parts`th of a node's even part of the limit, rounded down.
    fn part(&self, parts: u64) -> u64 {
        self.limit.count / (parts * u64::from(self.nodes.max(1)))
    }
}

/// The latest windows of one limit, the newest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    windows: VecDeque<Window>,
}

impl History {
    /// The window, if it is remembered.
    pub(super) fn get(&self, at: Timestamp) -> Option<&Window> {
        self.windows.iter().find(|window| window.at == at)
    }

    /// The window, remembered from here on; `None` when it is older than all that are.
    pub(super) fn enter(&mut self, at: Timestamp) -> Option<&mut Window> {
        let place = self.windows.iter().position(|window| window.at <= at).unwrap_or(self.windows.len());
        if self.windows.get(place).is_none_or(|window| window.at != at) {
            if place == WINDOWS {
                return None;
            }
            self.windows.insert(place, Window { at, ..Window::default() });
            self.windows.truncate(WINDOWS);
        }
        self.windows.get_mut(place)
    }

    /// Takes in what a peer tells of a window of a limit with this capacity: nobody admits more.
    pub(super) fn merge(&mut self, origin: Origin, at: Timestamp, count: Count, capacity: u64) {
        let refunded = count.refunded.min(capacity.saturating_mul(2));
        // Whoever refunds admits again: net is what is bounded.
        let count = Count { admitted: count.admitted.min(capacity.saturating_add(refunded)), refunded };
        if let Some(window) = self.enter(at) {
            window.merge(origin, count);
        }
    }

    /// All windows, the newest first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Window> {
        self.windows.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Timestamp = Timestamp(10);

    fn count(admitted: u64, refunded: u64) -> Count {
        Count { admitted, refunded }
    }

    #[test]
    fn repeats_loss_and_order_of_tellings_do_not_matter() {
        let tellings = [(1, count(3, 0)), (2, count(5, 1)), (1, count(9, 2)), (2, count(5, 1)), (1, count(3, 0))];
        let sum = |order: &[usize]| {
            let mut history = History::default();
            for index in order {
                let (origin, count) = tellings[*index];
                history.merge(Origin(origin), AT, count, 100);
            }
            history.get(AT).map(Window::peers)
        };
        assert_eq!(sum(&[0, 1, 2, 3, 4]), Some(11));
        assert_eq!(sum(&[4, 2, 3]), Some(11));
        assert_eq!(sum(&[2, 1, 0]), Some(11));
    }

    #[test]
    fn nobody_admits_more_than_the_limit() {
        let mut history = History::default();
        history.merge(Origin(1), AT, count(u64::MAX, 0), 100);
        assert_eq!(history.get(AT).map(Window::peers), Some(100));
        history.merge(Origin(2), AT, count(u64::MAX, u64::MAX), 100);
        assert_eq!(history.get(AT).map(Window::peers), Some(200));
    }

    #[test]
    fn old_windows_make_room_and_do_not_come_back() {
        let mut history = History::default();
        for at in 1..=8 {
            history.merge(Origin(1), Timestamp(at), count(1, 0), 100);
        }
        assert!(history.get(Timestamp(2)).is_none());
        assert!(history.enter(Timestamp(2)).is_none());
        assert_eq!(history.iter_mut().map(|window| window.at.0).collect::<Vec<_>>(), [8, 7, 6, 5, 4, 3]);
    }

    #[test]
    fn a_window_remembers_a_bounded_number_of_nodes() {
        let mut history = History::default();
        for origin in 0..5_000 {
            history.merge(Origin(origin), AT, count(1, 0), 10_000);
        }
        assert_eq!(history.get(AT).map(|window| (window.origins(), window.peers())), Some((4_096, 4_096)));
    }
}
