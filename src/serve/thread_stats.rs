//! The counts of a data thread: plain integers under the thread's own lock, which are summed up when they are read.

use std::collections::HashMap;
use std::sync::Arc;

use crate::core::decision::{Decision, Verdict};
use crate::core::key::Digest;
use crate::core::policy::Policy;
use crate::core::stats::PolicyStats;
use crate::core::time::Micros;

/// Upper bounds of the buckets of [`Durations`], in microseconds.
const BOUNDS_US: [u64; 12] = [25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000];

/// The same in seconds.
pub const DURATION_BOUNDS: [f64; 12] =
    [0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1];

/// How long checks took, from reading their bytes to writing their answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Checks per bucket; the last bucket is for all above the bounds.
    pub counts: [u64; 13],
    /// The sum of all durations, in microseconds.
    pub sum_us: u64,
}

impl Durations {
    /// Records that `count` checks took `span` each.
    pub fn add(&mut self, span: Micros, count: u64) {
        let bucket = BOUNDS_US.iter().position(|bound| span.0 <= *bound).unwrap_or(BOUNDS_US.len());
        self.counts[bucket] += count;
        self.sum_us = self.sum_us.saturating_add(span.0.saturating_mul(count));
    }

    /// Adds the durations of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }
}

/// Counts of one thread.
#[derive(Debug, Default)]
pub struct ThreadStats {
    /// Commands that were run or refused.
    pub commands: u64,
    /// Error replies.
    pub errors: u64,
    /// Checks of the present batch that were answered at once.
    pub at_once: u64,
    /// How long checks took.
    pub durations: Durations,
    /// Decisions for which no shard was asked: unlimited and blocked keys.
    pub policies: HashMap<Arc<str>, PolicyStats>,
    /// Denials that shards counted and policies in shadow mode did not enforce.
    pub shadows: HashMap<Arc<str>, PolicyStats>,
}

impl ThreadStats {
    /// Counts a decision for which no shard was asked.
    pub fn count(&mut self, policy: &Arc<str>, decision: &Decision) {
        count(&mut self.policies, policy, decision);
    }

    /// Turns a shard's `decision` into what the policy's mode makes of it; counts it if that differs. An admission stays
    /// as it is, and is not copied: it was written a moment ago, and a copy would wait until all of it is in the cache.
    pub fn enforce(&mut self, policy: &Policy, digest: Digest, decision: &mut Decision, charged: bool) {
        if decision.verdict == Verdict::Allow {
            return;
        }
        let enforced = policy.enforced(digest, *decision);
        if charged && enforced.reason != decision.reason {
            count(&mut self.shadows, &policy.name, decision);
        }
        *decision = enforced;
    }
}

fn count(stats: &mut HashMap<Arc<str>, PolicyStats>, policy: &Arc<str>, decision: &Decision) {
    match stats.get_mut(policy) {
        Some(stats) => stats.count(decision),
        None => stats.entry(policy.clone()).or_default().count(decision),
    }
}
