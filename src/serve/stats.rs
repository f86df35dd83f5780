//! What a daemon has counted since it began, as one plain value.
//!
//! The hub sums it; `metrics` and `listing` show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::thread_stats::Durations;
use crate::core::stats::{PolicyStats, ShardStats};

/// What a daemon has counted since it began.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Per policy.
    pub policies: BTreeMap<Arc<str>, PolicyStats>,
    /// All shards together.
    pub shards: ShardStats,
    /// Commands understood or refused.
    pub commands: u64,
    /// Error replies.
    pub errors: u64,
    /// How long checks took.
    pub durations: Durations,
    /// Connections open now.
    pub connections: u64,
    /// Connections ever let in.
    pub accepted: u64,
    /// Connections turned away: too many, or a uid that may not.
    pub refused: u64,
    /// Connections closed since their clients read nothing.
    pub stalled: u64,
    /// Bytes of replies and transactions that wait for clients.
    pub kept: u64,
    /// Store calls in flight.
    pub calls_in_flight: u64,
}
