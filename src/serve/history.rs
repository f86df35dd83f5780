//! The last fifteen minutes in figures, for the charts of the status page: a sample each five seconds.
//!
//! Taken by `observer`, from the counts that metrics show.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::figures::{Verdicts, is_up, percentile};
use super::stats::Stats;
use super::thread_stats::{DURATION_BOUNDS, Durations};
use crate::core::time::{Instant, Micros};
use crate::store::redis::Snapshot;

/// Samples that are kept: fifteen minutes.
const MOST: usize = 180;

/// Counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    at: Instant,
    allowed: u64,
    denied: u64,
    calls: u64,
    durations: Durations,
}

/// Rates and states over one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// Milliseconds since the daemon's clock began.
    at_ms: u64,
    allowed_per_s: u64,
    denied_per_s: u64,
    calls_per_s: u64,
    p99: Option<Micros>,
    /// Keys that are decided without the store.
    degraded: u64,
    /// Servers of the store to which no calls pass.
    away: u64,
}

/// The samples, oldest first.
#[derive(Debug, Default)]
pub struct History {
    inner: Mutex<(Counts, VecDeque<Sample>)>,
}

impl History {
    /// Takes a sample.
    pub fn sample(&self, at: Instant, stats: &Stats, store: Option<&Snapshot>) {
        let mut now = Counts { at, durations: stats.durations, ..Counts::default() };
        for (_, counts) in stats.asked() {
            let verdicts = Verdicts::of(counts);
            now.allowed += verdicts.allowed;
            now.denied += verdicts.denied;
        }
        let mut away = 0;
        if let Some(store) = store {
            now.calls = store.calls.iter().map(|(_, _, count)| count).sum();
            away = store.servers.iter().filter(|server| !is_up(server)).count() as u64;
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, samples) = &mut *inner;
        let sample = between(before, &now, stats.shards.degraded, away);
        *before = now;
        if samples.len() == MOST {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// The samples as arrays of `[at_ms, allowed/s, denied/s, calls/s, p99 in us or null, degraded, away]`.
    #[must_use]
    pub fn json(&self) -> Value {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = inner.1.iter().map(|sample| {
            let p99 = sample.p99.map(|span| span.0);
            let Sample { at_ms, allowed_per_s, denied_per_s, calls_per_s, degraded, away, .. } = sample;
            json!([at_ms, allowed_per_s, denied_per_s, calls_per_s, p99, degraded, away])
        });
        rows.collect()
    }
}

fn between(before: &Counts, now: &Counts, degraded: u64, away: u64) -> Sample {
    let millis = (now.at.since(before.at).0 / 1_000).max(1);
    let rate = |before: u64, now: u64| now.saturating_sub(before) * 1_000 / millis;
    let mut took = now.durations.counts;
    took.iter_mut().zip(before.durations.counts).for_each(|(count, before)| *count = count.saturating_sub(before));
    let bounds = DURATION_BOUNDS.map(|bound| (bound * 1e6).round() as u64);
    Sample {
        at_ms: now.at.0 / 1_000,
        allowed_per_s: rate(before.allowed, now.allowed),
        denied_per_s: rate(before.denied, now.denied),
        calls_per_s: rate(before.calls, now.calls),
        p99: percentile(&took, &bounds, 990),
        degraded,
        away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_what_happened_meanwhile_by_the_second() {
        let mut durations = Durations::default();
        durations.add(Micros(20), 500);
        let before = Counts { at: Instant(10_000_000), allowed: 500, denied: 0, calls: 7, durations };
        durations.add(Micros(400), 1_000);
        let now = Counts { at: Instant(15_000_000), allowed: 1_300, denied: 200, calls: 57, durations };
        let sample = between(&before, &now, 3, 1);
        let wanted = Sample {
            at_ms: 15_000,
            allowed_per_s: 160,
            denied_per_s: 40,
            calls_per_s: 10,
            p99: Some(Micros(500)),
            degraded: 3,
            away: 1,
        };
        assert_eq!(sample, wanted);
    }
}
