//! Counts of the traffic between peers.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a fleet since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetStats {
    /// Bytes of frames received.
    pub bytes_in: u64,
    /// Bytes of frames sent.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Frames that were not sent: the peer's queue was full, or it could not be reached.
    pub dropped_out: u64,
    /// Frames that were dropped because they came faster than they were processed.
    pub dropped_in: u64,
    /// Frames above the size limit, sent or received.
    pub oversized: u64,
    /// Frames that could not be decoded.
    pub malformed: u64,
    /// Times that a peer was dialled.
    pub dials: u64,
    /// Failed dials.
    pub dial_failures: u64,
    /// Connections refused: the certificate is not of the fleet's CA, or of another fleet, or of another node.
    pub refused: u64,
    /// Times that the gossip had to be restarted.
    pub gossip_restarts: u64,
    /// Present connections to peers.
    pub connections: u64,
    /// Whole days until the certificate expires; negative after it has expired.
    pub certificate_days_left: i64,
}

/// The counters behind [`FleetStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    pub(crate) frames_in: Counter,
    pub(crate) frames_out: Counter,
    pub(crate) dropped_out: Counter,
    pub(crate) dropped_in: Counter,
    pub(crate) oversized: Counter,
    pub(crate) malformed: Counter,
    pub(crate) dials: Counter,
    pub(crate) dial_failures: Counter,
    pub(crate) refused: Counter,
    pub(crate) gossip_restarts: Counter,
}

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    /// The counts; fields that are no counts are zero.
    pub(crate) fn snapshot(&self) -> FleetStats {
        FleetStats {
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
            frames_in: self.frames_in.get(),
            frames_out: self.frames_out.get(),
            dropped_out: self.dropped_out.get(),
            dropped_in: self.dropped_in.get(),
            oversized: self.oversized.get(),
            malformed: self.malformed.get(),
            dials: self.dials.get(),
            dial_failures: self.dial_failures.get(),
            refused: self.refused.get(),
            gossip_restarts: self.gossip_restarts.get(),
            connections: 0,
            certificate_days_left: 0,
        }
    }
}
