//! How long the store keeps a key that nobody asks for: as long as the key says anything that a missing one would not say.
//!
//! Pure. The scripts have the same rules in `lua/lib.lua` and `lua/tail.lua`. Called by the memory store, and by what a node
//! knows of the store, to tell a key that came to its end from one that the store has lost.

use super::call::Counter;
use super::gcra;
use super::limit::{Algorithm, Limit};
use super::time::{Micros, Timestamp};

/// How long one census period lasts under these limits: the shortest of their periods (under GCRA, the time in which
/// an empty bucket fills), but at least 1 s and at most 60 s.
#[must_use]
pub fn census_period(limits: &[Limit]) -> Micros {
    let shortest = limits.iter().map(span).min().unwrap_or_default();
    shortest.clamp(Micros::from_secs(1), Micros::from_secs(60))
}

/// How far a limit looks back.
#[must_use]
pub fn span(limit: &Limit) -> Micros {
    match limit.algorithm {
        Algorithm::Gcra => gcra::depth(limit),
        Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Sliding | Algorithm::Concurrent => limit.period,
    }
}

/// When the store drops a key to which an acquire has given these counters at `now`, unless another call comes.
#[must_use]
pub fn expires_at(limits: &[Limit], counters: &[Counter], now: Timestamp) -> Timestamp {
    let census = census_period(limits);
    let each = limits.iter().zip(counters).map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra if counter.used > 0 => counter.at.since(now) + span(limit) + span(limit) + gcra::LEASE_LIFE,
        Algorithm::Gcra => counter.at.since(now) + span(limit),
        Algorithm::Sliding => (counter.at + limit.period + limit.period + limit.period).since(now),
        _ if counter.at.0 == 0 => limit.period + limit.period,
        _ => (counter.at + limit.period).since(now),
    });
    expires_after(now, each.fold(census + census, Micros::max))
}

/// When a key expires that lives for so long. Redis counts lifetimes in whole milliseconds, so the scripts round up and add
/// one. This does the same.
#[must_use]
pub fn expires_after(now: Timestamp, life: Micros) -> Timestamp {
    now + Micros::from_millis(life.as_millis_ceil() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn census_period_is_that_of_the_shortest_limit_within_bounds() {
        let of =
            |texts: &[&str]| census_period(&texts.iter().map(|text| Limit::parse(text).unwrap()).collect::<Vec<_>>());
        assert_eq!(of(&["1/1h fixed", "9/10s sliding"]), Micros::from_secs(10));
        assert_eq!(of(&["1/10ms fixed"]), Micros::from_secs(1));
        assert_eq!(of(&["1/1d fixed"]), Micros::from_secs(60));
        assert_eq!(of(&["10/1s burst 50"]), Micros::from_secs(5));
    }

    #[test]
    fn a_window_is_kept_for_a_period_after_its_end() {
        let limits = [Limit::parse("5/10s fixed").expect("a limit"), Limit::parse("1/1s fixed").expect("a limit")];
        let at = |end| Counter { used: 1, prev: 0, at: Timestamp(end) };
        let ends = [at(20_000_000), at(12_000_000)];
        assert_eq!(expires_at(&limits, &ends, Timestamp(11_500_000)), Timestamp(30_001_000));
        assert_eq!(
            expires_at(&limits[1..], &ends[1..], Timestamp(11_500_000)),
            Timestamp(13_501_000),
            "or two seconds"
        );
    }
}
