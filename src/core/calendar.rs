//! The timers of a shard's keys, earliest first.
//!
//! Only the earliest timer is ever asked for, and most timers are due within seconds. So only timers of the present
//! slice of time are kept in a heap; those of later slices are in lists, each of which becomes the heap when its time
//! has come. A heap of all timers of many keys would be read from memory all over at each step; the heap of a slice
//! stays in the processor's cache. Timers that are due later than the last list wait in a heap of their own. Timers
//! leave in the same order as from a single heap. Called by `context.rs`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Instant;

/// Length of a slice in microseconds: 65 ms, in which a shard of a busy node has some hundred timers.
const SLICE: u64 = 1 << 16;

/// Lists: for the next 4 s, in which all but few timers are due.
const LISTS: u64 = 64;

/// When a timer comes that is due slices before the present one, its slice becomes the present one if there are no more
/// timers than this, which are then moved. Otherwise a single timer that is due in an hour would stretch the present
/// slice to that hour, and all timers until then would be in one heap.
const FEW: usize = 16;

/// The time at which the key with that index is to be looked at.
///
/// Packed, because nearly each of millions of keys has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(Rust, packed(4))]
struct Timer {
    at: Instant,
    index: u32,
}

impl Timer {
    fn slice(self) -> u64 {
        self.at.0 / SLICE
    }
}

/// The timers.
#[derive(Debug)]
pub(super) struct Calendar {
    /// The timers before the slice `next`. It is empty only when there is no timer at all.
    present: BinaryHeap<Reverse<Timer>>,
    /// The first slice that is not in `present`.
    next: u64,
    /// The slices from `next` on, each at its number modulo [`LISTS`].
    lists: Box<[Vec<Timer>]>,
    /// How many timers the lists have.
    listed: usize,
    /// Timers of later slices. Some may belong to slices that have a list by now.
    later: BinaryHeap<Reverse<Timer>>,
}

impl Calendar {
    pub(super) fn new() -> Self {
        Self {
            present: BinaryHeap::new(),
            next: 0,
            lists: (0..LISTS).map(|_| Vec::new()).collect(),
            listed: 0,
            later: BinaryHeap::new(),
        }
    }

    /// Adds a timer: the key with that index is to be looked at then.
    pub(super) fn push(&mut self, (at, index): (Instant, u32)) {
        let timer = Timer { at, index };
        let slice = timer.slice();
        if self.present.is_empty() || slice.saturating_add(1) < self.next && self.present.len() + self.listed <= FEW {
            self.begin_at(slice);
        }
        if slice < self.next {
            self.present.push(Reverse(timer));
        } else if slice - self.next < LISTS {
            self.list(slice).push(timer);
            self.listed += 1;
        } else {
            self.later.push(Reverse(timer));
        }
    }

    /// The time of the earliest.
    pub(super) fn next(&self) -> Option<Instant> {
        self.present.peek().map(|Reverse(timer)| timer.at)
    }

    /// Takes the earliest.
    pub(super) fn pop(&mut self) -> Option<(Instant, u32)> {
        let Reverse(timer) = self.present.pop()?;
        while self.present.is_empty() && self.listed + self.later.len() > 0 {
            self.advance();
        }
        Some((timer.at, timer.index))
    }

    /// Makes `slice` the present one.
    fn begin_at(&mut self, slice: u64) {
        self.next = slice.saturating_add(1);
        let listed = self.lists.iter_mut().flat_map(|list| list.drain(..)).map(Reverse);
        let known: Vec<_> = self.present.drain().chain(listed).collect();
        self.listed = 0;
        for timer in known {
            let heap = if timer.0.slice() < self.next { &mut self.present } else { &mut self.later };
            heap.push(timer);
        }
    }

    /// Makes the slice `next` the present one, or the first slice with a timer if the lists are empty.
    fn advance(&mut self) {
        if self.listed == 0
            && let Some(Reverse(first)) = self.later.peek()
        {
            self.next = first.slice();
        }
        let end = self.next.saturating_add(LISTS);
        while let Some(&Reverse(timer)) = self.later.peek().filter(|later| later.0.slice() < end) {
            self.later.pop();
            self.list(timer.slice()).push(timer);
            self.listed += 1;
        }
        let due = std::mem::take(self.list(self.next));
        self.listed -= due.len();
        self.present = due.into_iter().map(Reverse).collect();
        self.next = self.next.saturating_add(1);
    }

    fn list(&mut self, slice: u64) -> &mut Vec<Timer> {
        &mut self.lists[(slice % LISTS) as usize] // below LISTS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Timers of the present slice, of all lists and of later slices leave as from one heap, however pushes and
        /// pops are mixed.
        #[test]
        fn timers_leave_in_the_order_of_one_heap(
            steps in prop::collection::vec((0_u8..4, 0..=5 * LISTS * SLICE, 0_u32..4), 1..400),
            scale in 0_u32..20,
        ) {
            let (mut calendar, mut heap, mut now) = (Calendar::new(), BinaryHeap::new(), 1_u64 << 40);
            for (kind, after, index) in steps {
                if kind == 0 {
                    let popped = calendar.pop();
                    prop_assert_eq!(popped, heap.pop().map(|Reverse(timer)| timer));
                    now = popped.map_or(now, |(at, _)| at.0.max(now));
                } else {
                    // One in three may be due already.
                    let at = if kind == 1 { now - after / 2 } else { now + (after >> scale) };
                    calendar.push((Instant(at), index));
                    heap.push(Reverse((Instant(at), index)));
                }
                prop_assert_eq!(calendar.next(), heap.peek().map(|Reverse((at, _))| *at));
            }
            while let Some(Reverse(timer)) = heap.pop() {
                prop_assert_eq!(calendar.pop(), Some(timer));
            }
            prop_assert_eq!(calendar.pop(), None);
        }
    }

    /// A timer at the clock's end (`Instant(u64::MAX)`) can be stored, too.
    #[test]
    fn the_last_time_of_all_has_its_place() {
        let mut calendar = Calendar::new();
        for at in [u64::MAX, 5, u64::MAX - 1, 7] {
            calendar.push((Instant(at), 0));
        }
        let left: Vec<_> = std::iter::from_fn(|| calendar.pop()).map(|(at, _)| at.0).collect();
        assert_eq!(left, [5, 7, u64::MAX - 1, u64::MAX]);
    }
}
