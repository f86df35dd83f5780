//! Lists of timers in blocks of one size, which the lists of a shard share.
//!
//! A list that were a vector of its own would have room for up to twice its timers. It would also leave memory behind each time that it grows: pieces
//! of many sizes, of which the allocator returns none to the system. A block that a list no longer needs is the next one of any other
//! list. Knows nothing of time. Called by `calendar.rs`.

/// What a list knows of one timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// How much later than the list begins the timer is due, in microseconds.
    pub(super) after: u32,
    /// The position of its key in the shard's table.
    pub(super) index: u32,
}

/// Entries of a block. With more, there is more room for nothing in the last block of each list; with fewer, the number of the next block
/// weighs more.
const ENTRIES: u32 = 16;

/// Blocks that are allocated at a time: 4 kB.
const CHUNK: usize = 32;

/// No block: more than the entries of a shard need.
const NONE: u32 = u32::MAX;

/// Lists, which are known by their numbers from 0 on.
#[derive(Debug)]
pub(super) struct TimerLists {
    chunks: Vec<Box<[Block]>>,
    /// The first of the blocks that no list has.
    free: u32,
    lists: Box<[List]>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    /// The block with its last entries.
    last: u32,
    len: u32,
}

#[derive(Clone, Debug)]
struct Block {
    entries: [Entry; ENTRIES as usize],
    /// The block with the entries before these, or the next free one.
    next: u32,
}

impl TimerLists {
    /// So many empty lists.
    pub(super) fn new(lists: usize) -> Self {
        Self { chunks: Vec::new(), free: NONE, lists: vec![List { last: NONE, len: 0 }; lists].into() }
    }

    /// How many entries a list has.
    pub(super) fn len(&self, list: usize) -> usize {
        self.lists[list].len as usize
    }

    /// Adds an entry to a list.
    pub(super) fn push(&mut self, list: usize, entry: Entry) {
        let List { last, len } = self.lists[list];
        let place = len % ENTRIES;
        let block = if place == 0 { self.take_block(last) } else { last };
        self.block(block).entries[place as usize] = entry;
        self.lists[list] = List { last: block, len: len + 1 };
    }

    /// Takes the last entry of a list.
    pub(super) fn pop(&mut self, list: usize) -> Option<Entry> {
        let List { last, len } = self.lists[list];
        let len = len.checked_sub(1)?;
        let place = len % ENTRIES;
        let free = self.free;
        let block = self.block(last);
        let entry = block.entries[place as usize];
        if place == 0 {
            let before = std::mem::replace(&mut block.next, free);
            self.free = last;
            self.lists[list] = List { last: before, len };
        } else {
            self.lists[list].len = len;
        }
        Some(entry)
    }

    /// A free block, before which `next` stands.
    fn take_block(&mut self, next: u32) -> u32 {
        if self.free == NONE {
            self.allocate();
        }
        let number = self.free;
        self.free = std::mem::replace(&mut self.block(number).next, next);
        number
    }

    fn allocate(&mut self) {
        let first = (self.chunks.len() * CHUNK) as u32; // a shard has fewer than 2^24 keys
        let block = |number| Block { entries: [Entry::default(); ENTRIES as usize], next: number + 1 };
        let mut chunk: Box<[Block]> = (first..first + CHUNK as u32).map(block).collect();
        chunk[CHUNK - 1].next = self.free;
        self.chunks.push(chunk);
        self.free = first;
    }

    fn block(&mut self, number: u32) -> &mut Block {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32) -> Entry {
        Entry { after: index / 2, index }
    }

    #[test]
    fn each_list_has_its_own_entries() {
        let mut lists = TimerLists::new(3);
        (0..300).for_each(|index| lists.push(index as usize % 3, entry(index)));
        for list in [1, 0, 2] {
            assert_eq!(lists.len(list), 100);
            let left: Vec<_> = std::iter::from_fn(|| lists.pop(list)).map(|left| left.index).collect();
            let pushed: Vec<_> = (0..100).rev().map(|turn| 3 * turn + list as u32).collect();
            assert_eq!(left, pushed);
            assert_eq!((lists.len(list), lists.pop(list)), (0, None));
        }
    }

    /// Timers that are set anew for later move from list to list, of which each has had all of them.
    #[test]
    fn a_block_that_one_list_no_longer_needs_serves_another() {
        let mut lists = TimerLists::new(50);
        (0..10_000).for_each(|index| lists.push(0, entry(index)));
        let chunks = lists.chunks.len();
        assert!(chunks * CHUNK * size_of::<Block>() < 10_000 * 9, "{chunks} chunks: hardly more than the entries take");
        for list in 1..50 {
            while let Some(moved) = lists.pop(list - 1) {
                lists.push(list, moved);
            }
        }
        assert_eq!(lists.len(49), 10_000);
        assert!(lists.chunks.len() <= chunks + 1, "{} chunks", lists.chunks.len());
    }
}
