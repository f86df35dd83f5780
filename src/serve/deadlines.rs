//! Deadlines of parts behind locks, and the one alarm that is set to the earliest of them.
//!
//! Who sets a deadline says whether the alarm would come too late, and has to be rung; who sets the alarm is told when
//! an earlier deadline has come meanwhile. Knows neither clock nor bell. Called by the node and by the alarm's task.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// When a part has something to do next.
#[derive(Debug)]
pub(super) struct Deadline(AtomicU64);

/// When the alarm will ring by itself.
#[derive(Debug)]
pub(super) struct Alarm(AtomicU64);

impl Deadline {
    /// None.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// The deadline; `u64::MAX` for none.
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it, while the part is locked. Whether the alarm must be rung.
    pub(super) fn set(&self, due: u64, alarm: &Alarm) -> bool {
        if self.0.load(Ordering::Relaxed) == due {
            return false;
        }
        self.0.store(due, Ordering::Release);
        // Stored before the alarm is read; the alarm is stored before deadlines are read again. One of the two sees
        // what the other has done.
        fence(Ordering::SeqCst);
        due < alarm.0.load(Ordering::Relaxed)
    }
}

impl Alarm {
    /// It does not ring.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// Sets it to what `earliest` reads: when; `None`: an earlier deadline has come meanwhile, set it again.
    pub(super) fn set(&self, earliest: impl Fn() -> u64) -> Option<u64> {
        let next = earliest();
        self.0.store(next, Ordering::Release);
        fence(Ordering::SeqCst);
        (earliest() >= next).then_some(next)
    }
}
