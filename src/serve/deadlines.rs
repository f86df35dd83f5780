//! The deadlines of parts behind locks, and one timer that is set to the earliest of them.
//!
//! Setting a deadline tells whether the timer would fire too late and must be woken; setting the timer tells whether
//! an earlier deadline has come in between. Knows neither a clock nor how to wake a task. Called by the node and by
//! the timer task.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// When one part has something to do next.
#[derive(Debug)]
pub(super) struct Deadline(AtomicU64);

/// When the timer will fire.
#[derive(Debug)]
pub(super) struct Timer(AtomicU64);

impl Deadline {
    /// Without a deadline.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// The time of the deadline; `u64::MAX` for none.
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it; the part must be locked. Returns whether the timer must be woken.
    pub(super) fn set(&self, due: u64, timer: &Timer) -> bool {
        if self.0.load(Ordering::Relaxed) == due {
            return false;
        }
        self.0.store(due, Ordering::Release);
        // The deadline is stored before the timer is read here, and the timer is stored before deadlines are read in
        // [`Timer::set`]. So at least one of two concurrent callers sees the other's change.
        fence(Ordering::SeqCst);
        due < timer.0.load(Ordering::Relaxed)
    }
}

impl Timer {
    /// A timer that is not set.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// Sets the timer to the time that `earliest` reads, and returns it; `None` when an earlier deadline has come
    /// meanwhile, so that it must be set again.
    pub(super) fn set(&self, earliest: impl Fn() -> u64) -> Option<u64> {
        let next = earliest();
        self.0.store(next, Ordering::Release);
        fence(Ordering::SeqCst);
        (earliest() >= next).then_some(next)
    }
}
