//! The state of one data thread: buffers and counts, used by one connection at a time, for one batch.
//!
//! Knows neither connections nor what is served. `worker` runs the thread; `server_state` sums up its counts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ad_hoc_rules::AdHocRules;
use super::mailbox::Answer;
use super::node::Outgoing;
use super::thread_stats::ThreadStats;
use super::wake_list::WakeList;

/// Bytes of one read.
const READ: usize = 64 << 10;

/// Bytes that are collected before they are sent or stored.
pub const BATCH: usize = 256 << 10;

/// The state of a data thread that other threads can reach.
#[derive(Debug)]
pub struct Worker {
    scratch: Mutex<Scratch>,
    /// Wakes the thread's connections.
    pub(super) wake_list: Arc<WakeList>,
}

/// Buffers and counts, used by one connection at a time.
#[derive(Debug)]
pub struct Scratch {
    pub(super) read: Box<[u8]>,
    pub(super) direct: Vec<u8>,
    pub(super) rules: AdHocRules,
    pub(super) outgoing: Outgoing,
    pub(super) stats: ThreadStats,
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
            rules: AdHocRules::new(),
            outgoing: Outgoing::default(),
            stats: ThreadStats::default(),
            mail: Vec::new(),
        };
        Self { scratch: Mutex::new(scratch), wake_list: Arc::default() }
    }

    /// Locks the buffers for one batch; never hold this across an await.
    pub fn lock(&self) -> MutexGuard<'_, Scratch> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.read.is_empty() {
            // The buffer is missing only after a panic in the middle of a batch.
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
