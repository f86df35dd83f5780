//! The table of the memory store's counters: one 48-byte cell per key, and one more for each limit after the first.
//!
//! A key's first cell, its head, holds the counter that was stored first, and what is known of the key as a whole.
//! The others are side cells, which are created and removed with their head. Cells expire; they are never evicted,
//! because dropping a live counter would admit too much. Knows nothing of calls. Called by `memory.rs` only.

use std::collections::HashMap;

use super::cell::{Cell, ELSEWHERE, SIDE};
use crate::core::call::Counter;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::table::{Full, Table};
use crate::core::time::Timestamp;

/// Slots of the table in which each new key looks for expired cells. `STROLL` spreads the removal of expired cells
/// over all insertions; `SEARCH` bounds it when the table is full.
const STROLL: usize = 2;
const SEARCH: usize = 256;

/// The state of a key beside its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Below 2^53, never 0.
    pub(super) epoch: u64,
    pub(super) reset: bool,
    /// When the key can be dropped, because it says nothing that a missing key would not say.
    pub(super) expires: Timestamp,
}

/// All counters, by key and limit.
#[derive(Debug)]
pub(super) struct Cells {
    table: Table<Cell>,
    /// Epochs that do not fit into a cell. Calls without ids create none.
    epochs: HashMap<u128, u64>,
}

fn number(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::Gcra => 0,
        Algorithm::Fixed => 1,
        Algorithm::FixedFromFirst => 2,
        // Concurrent limits never come here: `lent_permits.rs` counts them.
        Algorithm::Sliding | Algorithm::Concurrent => 3,
    }
}

/// The digest of the side cell of one limit by one algorithm. Digests are random, so multiples of a large odd
/// constant keep side cells away from the digests of other keys.
fn side(digest: u128, index: usize, algorithm: u64) -> u128 {
    const SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    digest ^ (index as u128 * 4 + u128::from(algorithm) + 1).wrapping_mul(SPREAD)
}

impl Cells {
    pub(super) fn new(max: usize, secret: u128) -> Self {
        Self { table: Table::new(max, secret), epochs: HashMap::new() }
    }

    /// Cells in use.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes() + self.epochs.capacity() * size_of::<(u128, u64)>()
    }

    /// The key's head, expired or not.
    pub(super) fn head(&self, digest: u128) -> Option<Head> {
        let cell = &self.table[self.table.find(digest)?];
        let epoch = match cell.epoch() {
            ELSEWHERE => *self.epochs.get(&digest).expect("an epoch that is elsewhere is there"),
            epoch => epoch,
        };
        Some(Head { epoch, reset: cell.is_reset(), expires: cell.expires() })
    }

    fn set_head(&mut self, slot: u32, head: Head) {
        debug_assert!(head.epoch > 0 && head.epoch >> 53 == 0, "an epoch is below 2^53 and never 0");
        let cell = &mut self.table[slot];
        let (digest, had) = (cell.digest, cell.epoch());
        cell.set_epoch(head.epoch.min(ELSEWHERE));
        cell.set_reset(head.reset);
        cell.live_until(head.expires);
        if head.epoch >= ELSEWHERE {
            self.epochs.insert(digest, head.epoch);
        } else if had == ELSEWHERE {
            self.epochs.remove(&digest);
        }
    }

    /// The live cell of a key whose only counter is that of this limit, to be read and written in place; `None` for
    /// every other key.
    pub(super) fn only(&mut self, now: Timestamp, digest: u128, limit: &Limit) -> Option<&mut Cell> {
        let slot = self.table.find(digest)?;
        let cell = &mut self.table[slot];
        // True when the cell's counter is of this algorithm and no limit has a side cell.
        let alone = cell.marks() == number(limit.algorithm);
        (alone && cell.expires() > now).then_some(cell)
    }

    /// The counter of one limit of a key that has a head; zero when it was never stored.
    pub(super) fn counter(&self, digest: u128, index: usize, limit: &Limit) -> Counter {
        self.place(digest, index, limit).map_or_else(Counter::default, |slot| self.table[slot].counter())
    }

    fn place(&self, digest: u128, index: usize, limit: &Limit) -> Option<u32> {
        let slot = self.table.find(digest)?;
        let (head, algorithm) = (&self.table[slot], number(limit.algorithm));
        if index == 0 && head.algorithm() == algorithm {
            return Some(slot);
        }
        head.has_side(index).then(|| self.table.find(side(digest, index, algorithm))).flatten()
    }

    /// Stores the key, its head and a counter for each of its limits, or nothing when there is no room. `forgotten`
    /// is called with each key that is dropped to make room because it has expired.
    pub(super) fn store(
        &mut self,
        now: Timestamp,
        digest: u128,
        head: Head,
        limits: &[Limit],
        counters: &[Counter],
        forgotten: impl FnMut(u128),
    ) -> Result<(), Full> {
        let absent = |&(index, limit): &(usize, &Limit)| self.place(digest, index, limit).is_none();
        let missing = limits.iter().enumerate().filter(absent).count();
        if missing > 0 {
            self.make_room(now, missing, forgotten)?;
        }
        let slot = match self.table.find(digest) {
            Some(slot) => slot,
            None => self.table.insert(Cell::new(digest, number(limits[0].algorithm), 0))?,
        };
        self.set_head(slot, head);
        for (index, (limit, counter)) in limits.iter().zip(counters).enumerate() {
            let place = match self.place(digest, index, limit) {
                Some(place) => place,
                None => {
                    self.table[slot].add_side(index);
                    self.table.insert(Cell::new(side(digest, index, number(limit.algorithm)), 0, SIDE))?
                }
            };
            self.table[place].set(*counter);
        }
        Ok(())
    }

    /// Replaces all that is stored of a key by `head` and the counters that are given. There must be room for it.
    pub(super) fn put(&mut self, digest: u128, head: Head, limits: &[Limit], counters: &[Option<Counter>]) {
        const ROOM: &str = "there is room for this key";
        self.forget(digest);
        let of_first = number(limits[0].algorithm);
        // Without a counter of the first limit, the head is marked with another algorithm, so that it is not taken
        // for one.
        let algorithm = if counters[0].is_some() { of_first } else { (of_first + 1) % 4 };
        let slot = self.table.insert(Cell::new(digest, algorithm, 0)).expect(ROOM);
        self.set_head(slot, head);
        for (index, (limit, counter)) in limits.iter().zip(counters).enumerate() {
            let Some(counter) = counter else { continue };
            let place = self.place(digest, index, limit).unwrap_or_else(|| {
                self.table[slot].add_side(index);
                let cell = Cell::new(side(digest, index, number(limit.algorithm)), 0, SIDE);
                self.table.insert(cell).expect(ROOM)
            });
            self.table[place].set(*counter);
        }
    }

    /// Writes counters that are already stored. Those that are missing, or that a reset made zero, stay as they are.
    pub(super) fn update(&mut self, digest: u128, limits: &[Limit], counters: &[Counter]) {
        for (index, (limit, counter)) in limits.iter().zip(counters).enumerate() {
            let place = self.place(digest, index, limit);
            let stored = |&place: &u32| self.table[place].counter() != Counter::default();
            // A zero counter of a bucket means the same as a missing one, so it can be written.
            if let Some(place) = place.filter(|place| limit.algorithm == Algorithm::Gcra || stored(place)) {
                self.table[place].set(*counter);
            }
        }
    }

    /// Moves the key's expiry to `expires`.
    pub(super) fn live_until(&mut self, digest: u128, expires: Timestamp) {
        if let Some(slot) = self.table.find(digest) {
            self.table[slot].live_until(expires);
        }
    }

    /// Drops a key with all of its counters.
    pub(super) fn forget(&mut self, digest: u128) {
        let Some(slot) = self.table.find(digest) else { return };
        let head = self.table.remove(slot);
        if head.epoch() == ELSEWHERE {
            self.epochs.remove(&digest);
        }
        for index in (0..MAX_LIMITS).filter(|&index| head.has_side(index)) {
            for algorithm in 0..4 {
                if let Some(slot) = self.table.find(side(digest, index, algorithm)) {
                    self.table.remove(slot);
                }
            }
        }
    }

    fn make_room(&mut self, now: Timestamp, cells: usize, mut forgotten: impl FnMut(u128)) -> Result<(), Full> {
        let mut passed = 0;
        while passed < STROLL || self.table.len() + cells > self.table.max() {
            if passed == SEARCH {
                return Err(Full);
            }
            passed += 1;
            let Some(slot) = self.table.step() else { continue };
            let cell = &self.table[slot];
            if cell.expires() <= now {
                let digest = cell.digest;
                self.forget(digest);
                forgotten(digest);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
    const LATER: Timestamp = Timestamp(NOW.0 + 1_000_000);

    fn head(epoch: u64) -> Head {
        Head { epoch, reset: false, expires: LATER }
    }

    fn store(cells: &mut Cells, now: Timestamp, digest: u128, head: Head, texts: &[&str]) -> Result<Vec<u128>, Full> {
        let limits: Vec<_> = texts.iter().map(|text| Limit::parse(text).expect(text)).collect();
        let counters: Vec<_> =
            (0..texts.len() as u64).map(|n| Counter { used: n + head.epoch, prev: n, at: now }).collect();
        let mut gone = Vec::new();
        cells.store(now, digest, head, &limits, &counters, |digest| gone.push(digest)).map(|()| gone)
    }

    #[test]
    fn key_of_one_limit_takes_one_cell_and_of_three_three() {
        let mut cells = Cells::new(10, 7);
        store(&mut cells, NOW, 1, head(1), &["1/1s fixed"]).unwrap();
        assert_eq!(cells.len(), 1);
        store(&mut cells, NOW, 2, head(1), &["1/1s fixed", "1/1s", "1/1s fixed"]).unwrap();
        assert_eq!(cells.len(), 4);
    }

    #[test]
    fn every_algorithm_of_a_limit_has_its_own_counter() {
        let mut cells = Cells::new(10, 7);
        let of = ["1/1s fixed", "1/1s", "1/1s sliding", "1/1s fixed from-first"];
        for (n, text) in (1..).zip(of) {
            store(&mut cells, NOW, 9, head(n), &[text]).unwrap();
        }
        for (n, text) in (1..).zip(of) {
            assert_eq!(cells.counter(9, 0, &Limit::parse(text).unwrap()).used, n, "{text}");
        }
        assert_eq!(cells.head(9), Some(head(4)));
        cells.forget(9);
        assert_eq!(cells.len(), 0);
    }

    #[test]
    fn head_keeps_what_it_is_told() {
        let mut cells = Cells::new(10, 7);
        for epoch in [1, ELSEWHERE - 1, ELSEWHERE, (1 << 53) - 1, 2] {
            let head = Head { epoch, reset: epoch % 2 == 0, expires: Timestamp((1 << 53) - 1) };
            store(&mut cells, NOW, 1, head, &["1/1s sliding", "1/1s"]).unwrap();
            assert_eq!(cells.head(1), Some(head));
        }
        assert!(cells.epochs.is_empty());
    }

    #[test]
    fn counter_keeps_what_it_is_told_whatever_stands_beside() {
        let most = (1 << 53) - 1;
        let limits = [Limit::parse("1/1s sliding").unwrap(), Limit::parse("1/1s sliding").unwrap()];
        let counters = [
            Counter { used: most, prev: 1, at: Timestamp(most - 1) },
            Counter { used: most - 5, prev: most, at: Timestamp(0) },
        ];
        let mut cells = Cells::new(10, 7);
        for (first, second) in [(0, 1), (1, 0)] {
            let head = Head { epoch: 77 << first, reset: first == 0, expires: Timestamp(most) };
            cells.store(NOW, 1, head, &limits, &[counters[first], counters[second]], |_| {}).unwrap();
            assert_eq!(cells.counter(1, 0, &limits[0]), counters[first]);
            assert_eq!(cells.counter(1, 1, &limits[1]), counters[second]);
            assert_eq!(cells.head(1), Some(head));
        }
        assert_eq!(cells.len(), 2);
    }

    #[test]
    fn no_room_means_nothing_was_stored() {
        let mut cells = Cells::new(3, 7);
        store(&mut cells, NOW, 1, head(1), &["1/1s", "1/1s"]).unwrap();
        assert_eq!(store(&mut cells, NOW, 2, head(1), &["1/1s", "1/1s"]), Err(Full));
        assert_eq!((cells.len(), cells.head(2)), (2, None));
        store(&mut cells, NOW, 2, head(1), &["1/1s"]).unwrap();
        assert_eq!(store(&mut cells, NOW, 2, head(5), &["1/1s", "1/1s"]), Err(Full));
        assert_eq!(cells.head(2), Some(head(1)));
    }

    #[test]
    fn expired_keys_make_room_and_live_ones_never() {
        let mut cells = Cells::new(3, 7);
        store(&mut cells, NOW, 1, head(1), &["1/1s", "1/1s"]).unwrap();
        let soon = Head { expires: Timestamp(NOW.0 + 1), ..head(1) };
        store(&mut cells, NOW, 2, soon, &["1/1s"]).unwrap();
        assert_eq!(store(&mut cells, NOW, 3, head(1), &["1/1s"]), Err(Full));
        let gone = store(&mut cells, soon.expires, 3, head(1), &["1/1s"]).unwrap();
        assert_eq!((gone, cells.head(1), cells.head(2)), (vec![2], Some(head(1)), None));
    }

    #[test]
    fn memory_follows_what_lives_when_keys_come_and_go() {
        let mut cells = Cells::new(1_000_000, 7);
        for n in 0..100_000_u64 {
            let now = Timestamp(NOW.0 + n);
            let head = Head { expires: Timestamp(now.0 + 1_000), ..head(1) };
            let digest = u128::from(n) << 64 | u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            store(&mut cells, now, digest, head, &["1/1s"]).unwrap();
        }
        assert!(cells.table.slots() < 4_000, "{} slots for 1,000 live keys", cells.table.slots());
    }
}
