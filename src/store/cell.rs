//! One cell of the memory store: a counter, and what is known of its key, in 48 bytes.
//!
//! Counts and times are 53 bits long, as in the scripts; what is left of each word holds the rest. Knows no
//! table and no limits; called by `cells.rs` only.

use std::num::NonZeroU64;

use crate::core::call::Counter;
use crate::core::table::Keyed;
use crate::core::time::Timestamp;

/// One counter, and of the first one of a key what is known beside.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) digest: u128,
    /// 53 bits; of a head: born by a reset (1), algorithm of the counter here (2), limits that have side
    /// cells (8).
    used: u64,
    /// 53 bits; of a head: the lowest of its epoch.
    prev: u64,
    /// 53 bits; of a head: more of its epoch.
    at: u64,
    /// 54 bits, `SIDE` in side cells: they go with their head; of a head: the rest of its epoch. The highest
    /// is always set.
    expires: NonZeroU64,
}

/// Bits of a number, and of what stands above it.
const BITS: u32 = 53;
const NUMBER: u64 = (1 << BITS) - 1;
const ABOVE: u64 = (1 << (64 - BITS)) - 1;

/// Bits of an expiry: the deepest bucket says something for up to three times as long as it takes to fill.
const EXPIRY_BITS: u32 = BITS + 1;
const EXPIRY: u64 = (1 << EXPIRY_BITS) - 1;

/// The expiry of a side cell.
pub(super) const SIDE: u64 = EXPIRY;

/// Stands for this epoch and all above: `cells.rs` keeps them elsewhere.
pub(super) const ELSEWHERE: u64 = (1 << 31) - 1;

/// What makes an empty slot of the table no larger than a cell.
const ALIVE: NonZeroU64 = NonZeroU64::new(1 << 63).expect("a bit is set");

/// The word with another number in it.
fn with_number(word: u64, number: u64) -> u64 {
    word & !NUMBER | number.min(NUMBER)
}

/// The word with something else above its number.
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

    /// The algorithm, and the limits that have side cells.
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

    /// What is here of the epoch: all of it, or `ELSEWHERE`.
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
