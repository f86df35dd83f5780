//! The keys of a shard with something to report to peers, in the order in which they report.
//!
//! A round of gossip has room for some of them. Keys whose windows the store has lost come first, because until peers
//! hear of the loss, the store lends again what they hold. Within a rank keys take turns.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::mutant::{Mutant, on};

/// How urgent it is that peers hear of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The store has lost the key.
    Lost,
    /// Any other.
    Used,
}

impl Rank {
    /// Both, the more urgent first.
    const ALL: [Self; 2] = [Self::Lost, Self::Used];
}

/// The positions of these keys in the shard's table, by rank.
#[derive(Debug, Default)]
pub(super) struct Talkers([Queue; 2]);

#[derive(Debug, Default)]
struct Queue {
    keys: BTreeSet<u32>,
    /// The last key that has reported.
    last: u32,
}

impl Talkers {
    /// Adds the key at `index`, or changes its rank.
    pub(super) fn insert(&mut self, index: u32, rank: Rank) {
        for (queue, of) in self.0.iter_mut().zip(Rank::ALL) {
            if of == rank {
                queue.keys.insert(index);
            } else {
                queue.keys.remove(&index);
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        for queue in &mut self.0 {
            queue.keys.remove(&index);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|queue| queue.keys.is_empty())
    }

    /// The keys of a rank, beginning with the one after the last that has reported.
    pub(super) fn turn(&self, rank: Rank) -> Vec<u32> {
        let Queue { keys, last } = &self.0[rank as usize];
        let last = if on(Mutant::TellsFromTheFirst) { u32::MAX } else { *last };
        keys.range((Excluded(last), Unbounded)).chain(keys.range(..=last)).copied().collect()
    }

    /// Records that the key has had its turn.
    pub(super) fn note_turn(&mut self, rank: Rank, index: u32) {
        self.0[rank as usize].last = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that report in a round with room for `most` entries, if each has one entry.
    fn round(talkers: &mut Talkers, most: usize) -> Vec<u32> {
        let mut reported = Vec::new();
        for rank in Rank::ALL {
            for index in talkers.turn(rank) {
                if reported.len() >= most {
                    break;
                }
                talkers.note_turn(rank, index);
                reported.push(index);
            }
        }
        reported
    }

    #[test]
    fn what_is_lost_comes_first_and_the_others_in_turns() {
        let mut talkers = Talkers::default();
        (10..17).for_each(|index| talkers.insert(index, Rank::Used));
        talkers.insert(15, Rank::Lost);
        let rounds: Vec<_> = (0..3).map(|_| round(&mut talkers, 4)).collect();
        assert_eq!(rounds, [[15, 10, 11, 12], [15, 13, 14, 16], [15, 10, 11, 12]]);
        (30..36).for_each(|index| talkers.insert(index, Rank::Lost));
        assert_eq!([(); 2].map(|()| round(&mut talkers, 4)), [[30, 31, 32, 33], [34, 35, 15, 30]]);
    }

    #[test]
    fn a_key_has_one_rank_the_last_that_it_was_given() {
        let mut talkers = Talkers::default();
        assert!(talkers.is_empty());
        talkers.insert(7, Rank::Lost);
        talkers.insert(7, Rank::Used);
        assert_eq!(Rank::ALL.map(|rank| talkers.turn(rank)), [vec![], vec![7]]);
        talkers.remove(7);
        assert!(talkers.is_empty());
    }
}
