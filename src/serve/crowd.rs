//! How many answers of the store connections may await at a time: whoever awaits many is not read on.
//!
//! What one client asks for is carried for it beside what all others ask for, so that a few who ask without end
//! would fill every way to the store, and this node with calls that leave too late. So as many are awaited in all as
//! leave in time: each eight calls that were answered allow one more, and one that came late to leave halves their
//! number (additive increase, multiplicative decrease: Chiu and Jain 1989). A connection may await one in any
//! case, and more while as many as it awaits are left to the others (as bytes are in `budget.rs`). Knows numbers only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::core::time::Instant;

/// Most answers that all connections await, but for one each; at first, and at least. What is not read waits for longer
/// than `store.timeout` when the store stands still: 64 at least kept two clients waiting who asked 1000 times a second.
const MOST: usize = 2_048;
const FIRST: usize = 512;
const LEAST: usize = 512;

/// Answers that allow one more.
const GROWTH: usize = 8;

/// All who wait.
#[derive(Debug)]
pub struct Crowd {
    waiting: AtomicUsize,
    most: AtomicUsize,
    answered: AtomicUsize,
    /// Somebody would have awaited more since the number grew.
    was_full: AtomicBool,
    /// Calls that left before this say nothing about the number.
    halved: AtomicU64,
}

/// One connection among them; what it awaits is given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    crowd: Arc<Crowd>,
    noted: usize,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(FIRST),
            answered: AtomicUsize::new(0),
            was_full: AtomicBool::new(false),
            halved: AtomicU64::new(0),
        }
    }
}

impl Crowd {
    /// A place in which nothing is awaited.
    #[must_use]
    pub fn place(self: &Arc<Self>) -> Place {
        Place { crowd: self.clone(), noted: 0 }
    }

    /// A call was answered.
    pub fn handle_answer(&self) {
        let due = self.answered.fetch_add(1, Ordering::Relaxed) % GROWTH == GROWTH - 1;
        if due && self.was_full.swap(false, Ordering::Relaxed) {
            let _ =
                self.most.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |most| (most < MOST).then_some(most + 1));
        }
    }

    /// A call that was made at `made` is late to leave, now.
    pub fn handle_late(&self, now: Instant, made: Instant) {
        let halved = self.halved.load(Ordering::Relaxed);
        let is_first = made.0 >= halved
            && self.halved.compare_exchange(halved, now.0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_first {
            let most = self.most.load(Ordering::Relaxed).min(self.waiting.load(Ordering::Relaxed).max(LEAST));
            self.most.store((most / 2).max(LEAST), Ordering::Relaxed);
        }
    }
}

impl Place {
    /// Whether one who awaits so many answers may await one more.
    #[must_use]
    pub fn has_room(&self, awaited: usize) -> bool {
        awaited == 0 || self.crowd_has_room(awaited)
    }

    fn crowd_has_room(&self, awaited: usize) -> bool {
        let others = self.crowd.waiting.load(Ordering::Relaxed).saturating_sub(self.noted);
        let has_room = others + 2 * awaited < self.crowd.most.load(Ordering::Relaxed);
        if !has_room {
            self.crowd.was_full.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Takes note of how many answers are awaited.
    pub fn note(&mut self, awaited: usize) {
        if awaited > self.noted {
            self.crowd.waiting.fetch_add(awaited - self.noted, Ordering::Relaxed);
        } else if awaited < self.noted {
            self.crowd.waiting.fetch_sub(self.noted - awaited, Ordering::Relaxed);
        }
        self.noted = awaited;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.note(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(place: &mut Place) -> usize {
        let mut awaited = 0;
        while place.has_room(awaited) {
            awaited += 1;
            place.note(awaited);
        }
        awaited
    }

    #[test]
    fn one_alone_may_await_half_and_many_leave_room_for_the_next() {
        let crowd = Arc::<Crowd>::default();
        assert_eq!(fill(&mut crowd.place()), FIRST / 2);
        let mut places: Vec<_> = (0..100).map(|_| crowd.place()).collect();
        let awaited: Vec<_> = places.iter_mut().map(fill).collect();
        assert!(awaited.iter().all(|&awaited| awaited >= 1) && awaited.iter().sum::<usize>() <= FIRST + 100);
        assert!(crowd.place().has_room(0));
        places.clear();
        assert_eq!(crowd.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_number_follows_what_leaves_in_time() {
        let crowd = Arc::<Crowd>::default();
        let number = || fill(&mut crowd.place());
        // Nobody who was answered wanted more.
        (0..1_000_000).for_each(|_| crowd.handle_answer());
        assert_eq!(number(), FIRST / 2);
        for _ in 0..20_000 {
            let mut place = crowd.place();
            fill(&mut place);
            crowd.handle_answer();
        }
        assert_eq!(number(), MOST / 2);
        let mut place = crowd.place();
        fill(&mut place);
        // What was made before the number was halved came late for the same cause.
        (0..100).for_each(|_| crowd.handle_late(Instant(1_000), Instant(900)));
        assert_eq!(crowd.most.load(Ordering::Relaxed), MOST / 4);
        (2..100).for_each(|time| crowd.handle_late(Instant(time * 1_000), Instant(time * 1_000)));
        assert_eq!(crowd.most.load(Ordering::Relaxed), LEAST);
    }
}
