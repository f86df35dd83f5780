//! One cell of the memory store: a counter in 48 bytes, and in a key's first cell also what is known of the key.
//!
//! Counts and times take 53 bits, as in the scripts; the upper 11 bits of each 64-bit word hold the rest. Knows
//! neither the table nor limits. Called by `cells.rs` only.

use std::num::NonZeroU64;

use crate::core::call::Counter;
use crate::core::table::Keyed;
use crate::core::time::Timestamp;

/// One counter. A key's first cell, its head, also holds the key's epoch, reset flag and the list of its other cells.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) digest: u128,
    /// Low 53 bits: `Counter::used`. Above them, in a head: whether a reset created the key (1 bit), the algorithm of
    /// the counter in this cell (2), and which limits have side cells (8).
    used: u64,
    /// Low 53 bits: `Counter::prev`. Above them, in a head: the lowest 11 bits of the epoch.
    prev: u64,
    /// Low 53 bits: `Counter::at`. Above them, in a head: the next 11 bits of the epoch.
    at: u64,
    /// Low 54 bits: the expiry; `SIDE` in a side cell, which lives as long as its head. Above them, in a head: the
    /// remaining 9 bits of the epoch. The top bit is always set, which makes the word non-zero.
    expires: NonZeroU64,
}

/// Bits of a number; the 11 bits above it are free for other data.
const BITS: u32 = 53;
const NUMBER: u64 = (1 << BITS) - 1;
const ABOVE: u64 = (1 << (64 - BITS)) - 1;

/// Bits of an expiry. It needs one more than a time: the deepest bucket is remembered for up to three times as long
/// as it takes to fill.
const EXPIRY_BITS: u32 = BITS + 1;
const EXPIRY: u64 = (1 << EXPIRY_BITS) - 1;

/// The expiry of a side cell.
pub(super) const SIDE: u64 = EXPIRY;

/// Stands for an epoch that does not fit into a head's 31 bits. `cells.rs` keeps such epochs in a map.
pub(super) const ELSEWHERE: u64 = (1 << 31) - 1;

/// The bit that is always set in `expires`: with it, `Option<Cell>` takes no more room than `Cell`.
const ALIVE: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a bit is set");

/// Replaces the number in a word.
fn with_number(word: u64, number: u64) -> u64 {
    word & !NUMBER | number.min(NUMBER)
}

/// Replaces the bits above the number in a word.
fn with_above(word: u64, above: u64) -> u64 {
    word & NUMBER | above << BITS
}

impl Keyed for Cell {
    fn digest(&self) -> u128 {
        self.digest
    }
}

impl Cell {
    pub(super) fn new(digest: u128, algorithm: u64, expires: u64) -> Self {
        let expires = ALIVE | expires;
        Self { digest, used: algorithm << (BITS + 1), prev: 0, at: 0, expires }
    }

    pub(super) fn counter(&self) -> Counter {
        Counter { used: self.used & NUMBER, prev: self.prev & NUMBER, at: Timestamp(self.at & NUMBER) }
    }

    pub(super) fn set(&mut self, counter: Counter) {
        self.used = with_number(self.used, counter.used);
        self.prev = with_number(self.prev, counter.prev);
        self.at = with_number(self.at, counter.at.0);
    }

    pub(super) fn expires(&self) -> Timestamp {
        Timestamp(self.expires.get() & EXPIRY)
    }

    pub(super) fn live_until(&mut self, expires: Timestamp) {
        self.expires = ALIVE | self.expires.get() & !EXPIRY | expires.0.min(EXPIRY);
    }

    /// The algorithm of this cell's counter, and the set of limits that have side cells.
    pub(super) fn marks(&self) -> u64 {
        self.used >> (BITS + 1)
    }

    pub(super) fn algorithm(&self) -> u64 {
        self.marks() & 3
    }

    pub(super) fn has_side(&self, index: usize) -> bool {
        self.marks() >> (2 + index) & 1 == 1
    }

    pub(super) fn add_side(&mut self, index: usize) {
        self.used |= 1 << (BITS as usize + 3 + index);
    }

    pub(super) fn is_reset(&self) -> bool {
        self.used >> BITS & 1 == 1
    }

    /// The epoch as far as it is stored here: all of it, or `ELSEWHERE`.
    pub(super) fn epoch(&self) -> u64 {
        let rest = (self.expires.get() & !ALIVE.get()) >> EXPIRY_BITS;
        self.prev >> BITS | (self.at >> BITS) << 11 | rest << 22
    }

    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.prev = with_above(self.prev, epoch & ABOVE);
        self.at = with_above(self.at, epoch >> 11 & ABOVE);
        self.expires = ALIVE | self.expires.get() & EXPIRY | epoch >> 22 << EXPIRY_BITS;
    }

    pub(super) fn set_reset(&mut self, reset: bool) {
        self.used = self.used & !(1 << BITS) | u64::from(reset) << BITS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_takes_forty_eight_bytes() {
        assert_eq!(size_of::<Option<Cell>>(), 48);
    }
}
