//! What nodes without the store lend each other of what is set aside for them: how much of it this node needs itself, and which peers have
//! nothing to lend now.
//!
//! Knows no store, no fleet, and not what was spent.

use crate::core::time::{Instant, Micros};
use crate::core::usage::PeerIndex;

/// So many peers are remembered that have nothing to lend of a key now. When there are so many, none is asked until the first of them may
/// have some again: so a node asks no more often for a key of which nobody has anything, however large the fleet.
const MOST_DRY: usize = 8;

/// A node that has nothing to lend is asked again after this fraction of a window at the earliest.
const DRY_PART: u64 = 8;

/// So many windows have to be seen until one of them was seen from its beginning to its end, and has ended: the first began before
/// the store was lost.
const SEEN: u8 = 3;

/// What a node wants of one key without the store, what it has lent of it, and who had nothing to lend.
#[derive(Clone, Debug, Default)]
pub(super) struct Bank {
    /// The number of the window that was seen last, and how many were, up to [`SEEN`].
    window: u64,
    seen: u8,
    /// Tokens that this node's own clients have asked for in that window, and in the one before.
    wanted: u64,
    before: u64,
    /// Tokens that were lent to peers in that window.
    lent: u64,
    /// Peers that have nothing to lend before these times.
    dry: Vec<(PeerIndex, Instant)>,
}

impl Bank {
    fn enter(&mut self, window: u64) {
        if window != self.window {
            let follows = window == self.window + 1;
            let before = if follows { self.wanted } else { 0 };
            // A window in which nobody came has been seen as a whole.
            let seen = if self.seen == 0 || follows { (self.seen + 1).min(SEEN) } else { SEEN };
            (self.window, self.seen, self.wanted, self.before, self.lent) = (window, seen, 0, before, 0);
        }
    }

    /// A client of this node has asked for so many tokens in the window with this number.
    pub(super) fn note_wanted(&mut self, window: u64, tokens: u64) {
        self.enter(window);
        self.wanted = self.wanted.saturating_add(tokens);
    }

    /// So many tokens were lent in the window with this number.
    pub(super) fn note_lent(&mut self, window: u64, tokens: u64) {
        self.enter(window);
        self.lent = self.lent.saturating_add(tokens);
    }

    /// Tokens that were lent in the window with this number.
    pub(super) fn lent(&self, window: u64) -> u64 {
        if window == self.window { self.lent } else { 0 }
    }

    /// Tokens that this node's own clients are taken to want of the whole window with this number: what they wanted in the one before, or
    /// more if they have asked for more by now. `measured` is what they used before the store was lost, where the window before
    /// was not seen as a whole.
    pub(super) fn wants(&mut self, window: u64, measured: u64) -> u64 {
        self.enter(window);
        let most = self.before.max(self.wanted);
        if self.seen < SEEN { most.max(measured) } else { most }
    }

    /// A peer had less than was wanted, and may have more after so long, of windows of that length.
    pub(super) fn note_dry(&mut self, now: Instant, peer: PeerIndex, wait: Micros, period: Micros) {
        self.dry.retain(|(other, until)| *other != peer && now < *until);
        let wait = wait.max(Micros(period.0 / DRY_PART));
        if self.dry.len() < MOST_DRY {
            self.dry.push((peer, now + wait));
        }
    }

    /// Whether a peer may have something to lend.
    pub(super) fn may_lend(&self, now: Instant, peer: PeerIndex) -> bool {
        let mut open = self.dry.iter().filter(|(_, until)| now < *until);
        self.dry.is_empty() || open.clone().count() < MOST_DRY && open.all(|(other, _)| *other != peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_wants_what_it_wanted_in_the_window_before_and_no_less_than_by_now() {
        let mut bank = Bank::default();
        bank.note_wanted(7, 3);
        assert_eq!(bank.wants(7, 40), 40, "the store was there when that window began");
        bank.note_wanted(8, 20);
        assert_eq!(bank.wants(8, 40), 40, "and in a part of the one before");
        assert_eq!(bank.wants(9, 40), 20);
        bank.note_wanted(9, 25);
        assert_eq!(bank.wants(9, 40), 25);
        assert_eq!(bank.wants(11, 40), 0, "nobody has asked in the whole window before");
        let mut bank = Bank::default();
        bank.note_wanted(7, 3);
        assert_eq!(bank.wants(9, 40), 0, "so it is of one that is soon after the store was lost");
    }

    #[test]
    fn what_was_lent_counts_in_its_window() {
        let mut bank = Bank::default();
        bank.note_lent(7, 3);
        bank.note_lent(7, 2);
        assert_eq!((bank.lent(7), bank.lent(8)), (5, 0));
        bank.note_lent(8, 1);
        assert_eq!((bank.lent(7), bank.lent(8)), (0, 1));
    }

    #[test]
    fn who_has_nothing_is_not_asked_for_a_while_and_of_many_nobody_is() {
        let (mut bank, now, period) = (Bank::default(), Instant(5_000_000), Micros(1_000_000));
        bank.note_dry(now, PeerIndex(1), Micros(500_000), period);
        bank.note_dry(now, PeerIndex(2), Micros(1), period);
        let may = |bank: &Bank, after| [1, 2, 3].map(|peer| bank.may_lend(now + Micros(after), PeerIndex(peer)));
        assert_eq!(may(&bank, 0), [false, false, true]);
        assert_eq!(may(&bank, 125_000), [false, true, true], "an eighth of the window later at the earliest");
        assert_eq!(may(&bank, 500_000), [true; 3]);
        (3..20).for_each(|peer| bank.note_dry(now, PeerIndex(peer), Micros(900_000), period));
        assert_eq!(bank.dry.len(), MOST_DRY);
        assert!((0..30).all(|peer| !bank.may_lend(now, PeerIndex(peer))), "so many have nothing");
        assert!(bank.may_lend(now + Micros(125_000), PeerIndex(2)));
    }
}
