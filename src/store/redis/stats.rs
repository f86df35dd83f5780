//! Counts what the shared store does, for metrics: plain atomics, and a [`Snapshot`] of them.
//!
//! Decides nothing. Written by the files of `redis/`, and read by whatever renders metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::core::call::Op;
use crate::core::time::{Instant, Micros};
use crate::store::breaker::BreakerState;

/// Upper bounds of the latency buckets in seconds. One more bucket takes all that is above.
pub const LATENCY_BOUNDS: [f64; 11] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25];

const BOUNDS_US: [u64; 11] = [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000];

/// Names of the operations, as labels.
pub const OPS: [&str; 6] = ["acquire", "return", "peek", "refund", "reset", "occupy"];

/// How a call ended, as metrics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// Answered.
    Ok,
    /// Answered with the result of an earlier execution under the same id.
    Replayed,
    /// It is unknown whether it was executed.
    Unknown,
    /// Surely not executed; includes calls that an open breaker stopped.
    Away,
    /// It never left: too many calls were waiting.
    Busy,
}

impl CallOutcome {
    /// All outcomes.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Replayed, Self::Unknown, Self::Away, Self::Busy];

    /// The outcome as a label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Replayed => "replayed",
            Self::Unknown => "unknown",
            Self::Away => "away",
            Self::Busy => "busy",
        }
    }
}

/// The counters of one store.
#[derive(Debug, Default)]
pub(crate) struct StoreStats {
    calls: [[AtomicU64; CallOutcome::ALL.len()]; 6],
    pub(crate) moved: AtomicU64,
    pub(crate) ask: AtomicU64,
    pub(crate) noscript: AtomicU64,
    pub(crate) unconfirmed: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) refreshes: AtomicU64,
    pub(crate) dials: AtomicU64,
    pub(crate) breaker_opened: AtomicU64,
    latency: [AtomicU64; 12],
    latency_sum_us: AtomicU64,
}

impl StoreStats {
    pub(crate) fn count_call(&self, op: &Op, outcome: CallOutcome) {
        let index = match op {
            Op::Acquire(_) => 0,
            Op::Return { .. } => 1,
            Op::Peek => 2,
            Op::Refund { .. } => 3,
            Op::Reset => 4,
            Op::Occupy(_) => 5,
        };
        self.calls[index][outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts one answered round trip to a server.
    pub(crate) fn count_latency(&self, took: Micros) {
        let bucket = BOUNDS_US.iter().position(|&bound| took.0 <= bound).unwrap_or(BOUNDS_US.len());
        self.latency[bucket].fetch_add(1, Relaxed);
        self.latency_sum_us.fetch_add(took.0, Relaxed);
    }

    pub(crate) fn snapshot(&self, servers: Vec<ServerView>) -> Snapshot {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let calls = OPS.iter().zip(&self.calls).flat_map(|(&op, row)| {
            CallOutcome::ALL.into_iter().zip(row).map(move |(outcome, count)| (op, outcome, count.load(Relaxed)))
        });
        Snapshot {
            calls: calls.collect(),
            moved: read(&self.moved),
            ask: read(&self.ask),
            noscript: read(&self.noscript),
            unconfirmed: read(&self.unconfirmed),
            rejected: read(&self.rejected),
            refreshes: read(&self.refreshes),
            dials: read(&self.dials),
            breaker_opened: read(&self.breaker_opened),
            latency: std::array::from_fn(|bucket| read(&self.latency[bucket])),
            latency_sum: Duration::from_micros(read(&self.latency_sum_us)),
            servers,
        }
    }
}

/// One Redis server that takes calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerView {
    /// `host:port` or the socket's path.
    pub address: String,
    /// Whether calls pass.
    pub breaker: BreakerState,
    /// Since when no calls pass; `None` while they do.
    pub away_since: Option<Instant>,
    /// Why it is away, in the words of the last attempt to reach it.
    pub problem: Option<String>,
    /// Calls that may be at the server at a time, at present.
    pub window: u32,
    /// Calls that are at the server.
    pub out: u32,
    /// Calls that wait to leave.
    pub waiting: usize,
    /// Replicas connected to it, if known.
    pub replicas: Option<u32>,
    /// Its `maxmemory-policy`, if known. Any other than `noeviction` may evict counters.
    pub maxmemory_policy: Option<String>,
    /// Its `cluster-require-full-coverage`, if known. `true` makes all shards refuse calls when one shard fails.
    pub full_coverage: Option<bool>,
}

/// All counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Calls by operation and outcome.
    pub calls: Vec<(&'static str, CallOutcome, u64)>,
    /// MOVED replies.
    pub moved: u64,
    /// ASK replies.
    pub ask: u64,
    /// NOSCRIPT replies, each followed by the script's source.
    pub noscript: u64,
    /// Grants that no replica confirmed in time.
    pub unconfirmed: u64,
    /// Calls that a script or server rejected for their content. That is a defect; the log has details.
    pub rejected: u64,
    /// Times that the slot map was read.
    pub refreshes: u64,
    /// Connections opened or tried.
    pub dials: u64,
    /// Times that a breaker opened.
    pub breaker_opened: u64,
    /// Answered round trips per latency bucket (not cumulative); see [`LATENCY_BOUNDS`].
    pub latency: [u64; 12],
    /// Sum of their latencies.
    pub latency_sum: Duration,
    /// The servers that take calls: one per shard.
    pub servers: Vec<ServerView>,
}

impl Snapshot {
    /// Calls of all operations that ended with this outcome.
    #[must_use]
    pub fn calls_that_ended(&self, outcome: CallOutcome) -> u64 {
        self.calls.iter().filter(|(_, seen, _)| *seen == outcome).map(|(_, _, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_the_same_in_both_units() {
        for (seconds, micros) in LATENCY_BOUNDS.iter().zip(BOUNDS_US) {
            assert_eq!((seconds * 1e6).round() as u64, micros);
        }
    }

    #[test]
    fn latency_on_a_bound_belongs_below_it() {
        let stats = StoreStats::default();
        for took in [100, 101, 9_000_000] {
            stats.count_latency(Micros(took));
        }
        let seen = stats.snapshot(Vec::new());
        assert_eq!((seen.latency[0], seen.latency[1], seen.latency[11]), (1, 1, 1));
        assert_eq!(seen.latency_sum, Duration::from_micros(9_000_201));
    }
}
