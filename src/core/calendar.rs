//! The timers of a shard's keys, earliest first.
//!
//! Only the earliest timer is ever asked for, and most timers are due within seconds. So only timers of the present
//! slice of time are kept in a heap; those of later slices are in lists, each of which becomes the heap when its time
//! has come. A heap of all timers of many keys would be read from memory all over at each step; the heap of a slice
//! stays in the processor's cache. There is a list for each slice of the present span of time, and one for each of the next spans,
//! whose timers go to the lists of their slices when the span begins. Timers that are due after the last of those spans wait in a heap of
//! their own. Timers leave in the same order as from a single heap. Called by `context.rs`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::Instant;
use super::timer_lists::{Entry, TimerLists};

/// Length of a slice in microseconds: 65 ms, in which a shard of a busy node has some hundred timers.
const SLICE: u64 = 1 << 16;

/// Slices of a span: it lasts 4 s.
const SLICES: u64 = 64;

/// Spans that have a list: for the next 4 minutes, in which all but few timers are due. The account of a bucket closes within 16 s, and
/// a quiet key is remembered for a minute.
const SPANS: u64 = 64;

/// When a timer comes that is due slices before the present one, its slice becomes the present one if there are no more
/// timers than this, which are then moved. Otherwise a single timer that is due in an hour would stretch the present
/// slice to that hour, and all timers until then would be in one heap.
const FEW: usize = 16;

/// The heap of a slice keeps memory for so many times the timers of the next one. A slice may have all timers of a shard, and the next ones few.
const ROOM: usize = 4;

/// The time at which the key with that index is to be looked at.
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

    fn span(self) -> u64 {
        self.slice() / SLICES
    }

    /// The timer of an entry in a list whose time begins then.
    fn of(begin: u64, Entry { after, index }: Entry) -> Self {
        Self { at: Instant(begin + u64::from(after)), index }
    }

    /// Its entry in such a list.
    fn entry(self, begin: u64) -> Entry {
        Entry { after: (self.at.0 - begin) as u32, index: self.index } // a span lasts less than 2^32 µs
    }
}

/// The timers.
#[derive(Debug)]
pub(super) struct Calendar {
    /// The timers of the present slice, and of slices before it. It is empty only when there is no timer at all.
    present: BinaryHeap<Reverse<Timer>>,
    /// The present slice.
    slice: u64,
    /// Those of later slices of the present span, each in the list of its slice modulo [`SLICES`]; then those of the next spans up to
    /// [`SPANS`], each in the list of its span modulo that. The present span's list is empty.
    lists: TimerLists,
    /// How many timers the lists of slices have.
    near: usize,
    /// How many those of spans have.
    far: usize,
    /// Timers of later spans. Some may belong to spans that have a list by now.
    later: BinaryHeap<Reverse<Timer>>,
}

impl Calendar {
    pub(super) fn new() -> Self {
        Self {
            present: BinaryHeap::new(),
            slice: 0,
            lists: TimerLists::new((SLICES + SPANS) as usize), // 128
            near: 0,
            far: 0,
            later: BinaryHeap::new(),
        }
    }

    /// Adds a timer: the key with that index is to be looked at then.
    pub(super) fn push(&mut self, (at, index): (Instant, u32)) {
        let timer = Timer { at, index };
        let slice = timer.slice();
        if self.present.is_empty() || slice < self.slice && self.present.len() + self.near <= FEW {
            self.begin_at(slice);
        }
        self.place(timer);
    }

    /// The time of the earliest.
    pub(super) fn next(&self) -> Option<Instant> {
        self.present.peek().map(|Reverse(timer)| timer.at)
    }

    /// Takes the earliest.
    pub(super) fn pop(&mut self) -> Option<(Instant, u32)> {
        let Reverse(timer) = self.present.pop()?;
        while self.present.is_empty() && self.near + self.far + self.later.len() > 0 {
            self.advance();
        }
        Some((timer.at, timer.index))
    }

    /// The span of the present slice.
    fn span(&self) -> u64 {
        self.slice / SLICES
    }

    /// Puts a timer where it belongs.
    fn place(&mut self, timer: Timer) {
        let (slice, span) = (timer.slice(), timer.span());
        if slice <= self.slice {
            self.present.push(Reverse(timer));
        } else if span == self.span() {
            self.lists.push(list_of_slice(slice), timer.entry(slice * SLICE));
            self.near += 1;
        } else if span - self.span() < SPANS {
            self.lists.push(list_of_span(span), timer.entry(span * SLICES * SLICE));
            self.far += 1;
        } else {
            self.later.push(Reverse(timer));
        }
    }

    /// Makes `slice` the present one: the first of all, or an earlier one.
    fn begin_at(&mut self, slice: u64) {
        let mut moved: Vec<_> = self.present.drain().map(|Reverse(timer)| timer).collect();
        if self.near > 0 {
            for slice in self.slice + 1..(self.span() + 1) * SLICES {
                moved.extend(std::iter::from_fn(|| self.take_near(slice)));
            }
        }
        if self.far > 0 {
            // The lists of these spans will be those of earlier ones.
            for span in (slice / SLICES + SPANS).max(self.span() + 1)..self.span() + SPANS {
                while let Some(timer) = self.take_far(span) {
                    self.later.push(Reverse(timer));
                }
            }
        }
        self.slice = slice;
        for timer in moved {
            self.place(timer);
        }
    }

    /// Makes the slice after the present one that; or, when the present span has no more timers, the first slice of the next span
    /// that has some.
    fn advance(&mut self) {
        if self.near > 0 {
            self.slice += 1;
            let due = self.lists.len(list_of_slice(self.slice));
            self.present.shrink_to(ROOM * due.max(FEW));
            self.present.reserve(due);
            let (lists, begin) = (&mut self.lists, self.slice * SLICE);
            let entries = std::iter::from_fn(|| lists.pop(list_of_slice(self.slice)));
            self.present.extend(entries.map(|entry| Reverse(Timer::of(begin, entry))));
            self.near -= due;
            return;
        }
        let later = self.later.peek().map(|Reverse(timer)| timer.span()).filter(|_| self.far == 0);
        let span = later.unwrap_or(self.span() + 1);
        self.slice = span * SLICES;
        while self.later.peek().is_some_and(|Reverse(timer)| timer.span() < span + SPANS)
            && let Some(Reverse(timer)) = self.later.pop()
        {
            self.place(timer);
        }
        while let Some(timer) = self.take_far(span) {
            self.place(timer);
        }
    }

    /// Takes a timer from the list of that slice.
    fn take_near(&mut self, slice: u64) -> Option<Timer> {
        let entry = self.lists.pop(list_of_slice(slice))?;
        self.near -= 1;
        Some(Timer::of(slice * SLICE, entry))
    }

    /// Takes a timer from the list of that span.
    fn take_far(&mut self, span: u64) -> Option<Timer> {
        let entry = self.lists.pop(list_of_span(span))?;
        self.far -= 1;
        Some(Timer::of(span * SLICES * SLICE, entry))
    }
}

fn list_of_slice(slice: u64) -> usize {
    (slice % SLICES) as usize // below SLICES
}

fn list_of_span(span: u64) -> usize {
    (SLICES + span % SPANS) as usize // below SLICES + SPANS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Timers of the present slice, of all lists and of later spans leave as from one heap, however pushes and
        /// pops are mixed.
        #[test]
        fn timers_leave_in_the_order_of_one_heap(
            steps in prop::collection::vec((0_u8..4, 0..=5 * SPANS * SLICES * SLICE, 0_u32..4), 1..400),
            scale in 0_u32..26,
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
