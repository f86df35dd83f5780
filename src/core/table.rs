//! The bounded table from a 128-bit digest to a slot: what the core keeps keys in, and the memory
//! store its cells.
//!
//! Items live in a slab of fixed chunks and never move, so a slot number is a stable handle and
//! growth copies no item. The index beside it is open addressing with linear probing: four bytes a
//! place, a slot number and eight bits of the hash. Digests are public, therefore places are chosen
//! by a digest mixed with a secret of the process. Decides nothing about what may be evicted: its
//! owner walks the clock hand ([`Table::step`]) and removes.

use std::ops::{Index, IndexMut};

/// What a [`Table`] holds: an item that knows its digest, which never changes while it is held.
///
/// An item with a spare bit pattern (a reference, a `Box`, a `NonZero`) makes its slot no larger
/// than itself.
pub trait Keyed {
    /// The digest that finds the item.
    fn digest(&self) -> u128;
}

/// The table already holds its maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Items by digest, up to a maximum.
#[derive(Debug)]
pub struct Table<T> {
    /// For each place 0, or `tag << 24 | slot + 1`.
    index: Vec<u32>,
    chunks: Vec<Box<[Option<T>]>>,
    /// Empty slots below `fresh`.
    free: Vec<u32>,
    /// The first slot that was never used.
    fresh: u32,
    len: usize,
    max: usize,
    hand: u32,
    secret: [u64; 2],
}

/// Slots that are allocated at a time. More waste memory of small tables; fewer cost an allocation oftener.
const CHUNK: usize = 256;

/// Bits of an index entry that name a slot. The other eight are of the hash: one place in 256 that is looked at in vain looks right
/// by them, and costs a look at the item.
const SLOT_BITS: u32 = 24;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// Places of the first index.
const FIRST_PLACES: usize = 64;

/// The index grows before more than this fraction of its places is in use. A fuller one takes less memory, but the number of places
/// that a search looks at grows with the square of one over what is free.
const FULL: (usize, usize) = (7, 8);

/// The index grows to so many times its size: from seven eighths full to half full. A larger step leaves more of it empty, and with a
/// smaller one items are inserted again more often.
const GROWTH: (usize, usize) = (7, 4);

/// Most items of one table: an index entry cannot hold larger slot numbers.
pub const MOST_ITEMS: usize = SLOT_MASK as usize;

impl<T: Keyed> Table<T> {
    /// An empty table for at most `max` items (limited to [`MOST_ITEMS`]), which allocates as it grows. `secret`
    /// should be random, because whoever knows it can make digests collide.
    #[must_use]
    pub fn new(max: usize, secret: u128) -> Self {
        Self {
            index: Vec::new(),
            chunks: Vec::new(),
            free: Vec::new(),
            fresh: 0,
            len: 0,
            max: max.clamp(1, MOST_ITEMS),
            hand: 0,
            // Constants of wyhash, so that a poor secret does not make a poor hash of small digests.
            secret: [secret as u64 ^ 0xa076_1d64_78bd_642f, (secret >> 64) as u64 ^ 0xe703_7ed1_a0b4_28db],
        }
    }

    /// Items held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most items held.
    #[must_use]
    pub fn max(&self) -> usize {
        self.max
    }

    /// Slots that were ever used; so many steps are a full turn of the clock hand.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.fresh as usize
    }

    /// Memory of index, slab and free list in bytes, without memory that items own elsewhere.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let slab = self.chunks.len() * (CHUNK * size_of::<Option<T>>() + size_of::<Box<[Option<T>]>>());
        slab + (self.index.capacity() + self.free.capacity()) * size_of::<u32>()
    }

    /// The slot of the item with this digest.
    #[must_use]
    pub fn find(&self, digest: u128) -> Option<u32> {
        if self.index.is_empty() {
            return None;
        }
        let hash = self.hash(digest);
        let mut place = self.home(hash);
        loop {
            let entry = self.index[place];
            if entry == 0 {
                return None;
            }
            let slot = slot_of(entry);
            if tag_of(entry) == tag_of(hash as u32) && self.get(slot).is_some_and(|item| item.digest() == digest) {
                return Some(slot);
            }
            place = self.after(place);
        }
    }

    /// Adds an item whose digest is not held yet.
    ///
    /// # Errors
    /// [`Full`], when `max` items are held.
    pub fn insert(&mut self, item: T) -> Result<u32, Full> {
        debug_assert!(self.find(item.digest()).is_none(), "a digest is held once");
        if self.len == self.max {
            return Err(Full);
        }
        if (self.len + 1) * FULL.1 > self.index.len() * FULL.0 {
            self.grow();
        }
        let hash = self.hash(item.digest());
        let slot = self.free.pop().unwrap_or_else(|| self.fresh_slot());
        *self.slot_mut(slot) = Some(item);
        self.len += 1;
        self.enter(hash, slot);
        Ok(slot)
    }

    /// Removes the item in `slot`.
    ///
    /// # Panics
    /// When the slot is empty.
    pub fn remove(&mut self, slot: u32) -> T {
        let digest = self[slot].digest();
        self.leave(digest, slot);
        self.len -= 1;
        self.free.push(slot);
        self.slot_mut(slot).take().expect("its digest was just read")
    }

    /// The item in `slot`, if there is one.
    #[must_use]
    pub fn get(&self, slot: u32) -> Option<&T> {
        self.chunks.get(slot as usize / CHUNK)?[slot as usize % CHUNK].as_ref()
    }

    /// The item in `slot`, if there is one.
    pub fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        self.chunks.get_mut(slot as usize / CHUNK)?[slot as usize % CHUNK].as_mut()
    }

    /// All items with their slots, in the order of slots.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.iter_from(0)
    }

    /// The items from a slot on, in the order of slots. Slots before it cost nothing, nor do those never used.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, &T)> {
        (first..self.fresh).filter_map(|slot| Some((slot, self.get(slot)?)))
    }

    /// Moves the clock hand by one slot, and returns that slot if it holds an item. [`Table::slots`] steps see every
    /// item once.
    pub fn step(&mut self) -> Option<u32> {
        let slot = if self.hand < self.fresh { self.hand } else { 0 };
        self.hand = slot + 1;
        self.get(slot).map(|_| slot)
    }

    fn slot_mut(&mut self, slot: u32) -> &mut Option<T> {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    fn fresh_slot(&mut self) -> u32 {
        let slot = self.fresh;
        if slot as usize == self.chunks.len() * CHUNK {
            self.chunks.push((0..CHUNK).map(|_| None).collect());
        }
        self.fresh += 1;
        slot
    }

    /// Combines the digest with the secret by a wide multiplication (as in wyhash).
    fn hash(&self, digest: u128) -> u64 {
        let (low, high) = (digest as u64 ^ self.secret[0], (digest >> 64) as u64 ^ self.secret[1]);
        let product = u128::from(low) * u128::from(high);
        product as u64 ^ (product >> 64) as u64
    }

    /// The place where the search for a hash begins: its upper bits, scaled to the size of the index.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.index.len() as u128) >> 64) as usize
    }

    fn after(&self, place: usize) -> usize {
        if place + 1 == self.index.len() { 0 } else { place + 1 }
    }

    fn enter(&mut self, hash: u64, slot: u32) {
        let mut place = self.home(hash);
        while self.index[place] != 0 {
            place = self.after(place);
        }
        self.index[place] = tag_of(hash as u32) | (slot + 1);
    }

    /// Empties the place of an entry, and moves back later entries that would otherwise no longer be found.
    fn leave(&mut self, digest: u128, slot: u32) {
        let mut hole = self.home(self.hash(digest));
        while slot_of(self.index[hole]) != slot {
            hole = self.after(hole);
        }
        let mut place = self.after(hole);
        while self.index[place] != 0 {
            let home = self.home(self.hash(self[slot_of(self.index[place])].digest()));
            if self.distance(home, place) >= self.distance(hole, place) {
                self.index[hole] = self.index[place];
                hole = place;
            }
            place = self.after(place);
        }
        self.index[hole] = 0;
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.index.len() - from }
    }

    /// Makes the index 7/4 as large, so that it is at least half full, and inserts all items again.
    fn grow(&mut self) {
        let most = self.max * FULL.1 / FULL.0 + 1;
        let places = (self.index.len() * GROWTH.0 / GROWTH.1).clamp(FIRST_PLACES, most.max(FIRST_PLACES));
        self.index = Vec::new();
        self.index.resize(places, 0);
        let chunks = std::mem::take(&mut self.chunks);
        for (slot, item) in (0..).zip(chunks.iter().flat_map(|chunk| chunk.iter())) {
            if let Some(item) = item {
                self.enter(self.hash(item.digest()), slot);
            }
        }
        self.chunks = chunks;
    }
}

impl<T: Keyed> Index<u32> for Table<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.get(slot).expect("the slot of an item that was not removed")
    }
}

impl<T: Keyed> IndexMut<u32> for Table<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.get_mut(slot).expect("the slot of an item that was not removed")
    }
}

fn slot_of(entry: u32) -> u32 {
    (entry & SLOT_MASK).wrapping_sub(1)
}

fn tag_of(entry: u32) -> u32 {
    entry & !SLOT_MASK
}

#[cfg(test)]
mod tests;
