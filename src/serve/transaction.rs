//! Commands queued between `MULTI` and `EXEC`.
//!
//! Keeps their bytes, since the input they came in is gone by then. Bounded.

use std::ops::Range;

use crate::wire::resp::{Args, MAX_REQUEST};

/// Most commands queued.
const MOST: usize = 1_024;

/// One connection's queue.
#[derive(Debug, Default)]
pub struct Transaction {
    bytes: Vec<u8>,
    ranges: Vec<Range<u32>>,
    /// Behind which range each command ends.
    ends: Vec<usize>,
    spoilt: bool,
}

impl Transaction {
    /// Queues a command. Where there is no room for it, the whole transaction is spoilt.
    pub fn queue(&mut self, args: Args<'_>) -> bool {
        let size: usize = args.iter().map(<[u8]>::len).sum();
        if self.ends.len() >= MOST || self.bytes.len() + size > MAX_REQUEST || self.ranges.len() > 16 * MOST {
            self.spoilt = true;
            return false;
        }
        for arg in args.iter() {
            let start = self.bytes.len() as u32; // at most MAX_REQUEST
            self.bytes.extend_from_slice(arg);
            self.ranges.push(start..self.bytes.len() as u32);
        }
        self.ends.push(self.ranges.len());
        true
    }

    /// One of the commands was refused: `EXEC` will run none.
    pub fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// Whether a command was refused.
    #[must_use]
    pub fn is_spoilt(&self) -> bool {
        self.spoilt
    }

    /// How many commands are queued.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether none is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Calls `run` for each command in order.
    pub fn each(&self, mut run: impl FnMut(Args<'_>)) {
        let mut start = 0;
        for &end in &self.ends {
            run(Args::new(&self.bytes, &self.ranges[start..end]));
            start = end;
        }
    }
}
