//! A data thread's own things: buffers and counts, used by one connection at a time, for the length of one batch.
//!
//! Knows neither connections nor what is served: `worker` runs the thread. Its counts are summed by the hub.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::mailbox::Answer;
use super::node::Outgoing;
use super::reveille::Reveille;
use super::rules::Rules;
use super::thread_stats::ThreadStats;

/// Bytes of one read.
const READ: usize = 64 << 10;

/// Bytes that are collected before they are sent or kept.
pub const BATCH: usize = 256 << 10;

/// A data thread's own things.
#[derive(Debug)]
pub struct Worker {
    scratch: Mutex<Scratch>,
    /// Wakes its connections.
    pub(super) reveille: Arc<Reveille>,
}

/// Buffers and counts, used by one connection at a time.
#[derive(Debug)]
pub struct Scratch {
    pub(super) read: Box<[u8]>,
    pub(super) direct: Vec<u8>,
    pub(super) rules: Rules,
    pub(super) outgoing: Outgoing,
    pub(super) tally: ThreadStats,
    pub(super) mail: Vec<(u64, Answer)>,
}

impl Scratch {
    pub(super) fn shrink(&mut self) {
        if self.direct.capacity() > 2 * BATCH {
            self.direct = Vec::with_capacity(READ);
        }
    }
}

impl Worker {
    /// Fresh buffers.
    #[must_use]
    pub fn new() -> Self {
        let scratch = Scratch {
            read: vec![0; READ].into_boxed_slice(),
            direct: Vec::with_capacity(READ),
            rules: Rules::new(),
            outgoing: Outgoing::default(),
            tally: ThreadStats::default(),
            mail: Vec::new(),
        };
        Self { scratch: Mutex::new(scratch), reveille: Arc::default() }
    }

    /// The buffers, for the length of one batch; never across an await.
    pub fn lock(&self) -> MutexGuard<'_, Scratch> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.read.is_empty() {
            // Only after a panic in the middle of a batch.
            scratch.read = vec![0; READ].into_boxed_slice();
        }
        scratch
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}
