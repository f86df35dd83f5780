//! All counts of a daemon since its start, as one plain value.
//!
//! `server_state` sums them up; `metrics` and `listing` show them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::thread_stats::Durations;
use crate::core::policy::ON_TRIAL;
use crate::core::stats::{PolicyStats, ShardStats};

/// All counts of a daemon since its start.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// By policy. Limits on trial have the name of their policy with [`ON_TRIAL`] behind it.
    pub policies: BTreeMap<Arc<str>, PolicyStats>,
    /// All shards together.
    pub shards: ShardStats,
    /// Commands that were run or refused.
    pub commands: u64,
    /// Error replies.
    pub errors: u64,
    /// How long checks took.
    pub durations: Durations,
    /// Connections open now.
    pub connections: u64,
    /// Connections ever admitted.
    pub accepted: u64,
    /// Connections turned away, because there were too many or the uid may not connect.
    pub refused: u64,
    /// Connections that were closed because their clients did not read.
    pub stalled: u64,
    /// Bytes of replies and transactions that wait for clients.
    pub kept: u64,
    /// Store calls without an outcome yet.
    pub calls_in_flight: u64,
}

impl Stats {
    /// The policies without limits on trial. Those have counts, too, but of checks that are also counted with the
    /// policy itself, so that each check would count twice in a sum.
    pub fn asked(&self) -> impl Iterator<Item = (&Arc<str>, &PolicyStats)> {
        self.policies.iter().filter(|(name, _)| !name.ends_with(ON_TRIAL))
    }
}
