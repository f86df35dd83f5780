//! How long the store keeps a key that nobody asks for: as long as the key says anything that a missing one would not say.
//!
//! Pure. The scripts have the same rules in `lua/lib.lua` and `lua/tail.lua`. Called by the memory store, and by what a node
//! knows of the store, to tell a key that came to its end from one that the store has lost.

use super::call::Counter;
use super::gcra;
use super::limit::{Algorithm, Limit};
use super::time::{Micros, Timestamp};

/// The shortest and the longest census period, in which the store counts the nodes that use a key. Shorter, and nodes that ask
/// now and then are not counted; longer, and nodes that are gone are counted for long, so that others are lent less.
pub const CENSUS: (Micros, Micros) = (Micros::from_secs(1), Micros::from_secs(60));

/// The time until which a bucket's key is kept is rounded up to this fraction of the time in which the bucket fills.
/// With more steps, more charges have to renew it in Redis; with fewer, the key is kept for longer than it says
/// anything. `lua/lib.lua` has the same (`in_steps`).
const STEPS: u64 = 4;

/// How long one census period lasts under these limits: the shortest of their periods (under GCRA, the time in which
/// an empty bucket fills), but at least 1 s and at most 60 s.
#[must_use]
pub fn census_period(limits: &[Limit]) -> Micros {
    let shortest = limits.iter().map(span).min().unwrap_or_default();
    shortest.clamp(CENSUS.0, CENSUS.1)
}

/// For how long spending counts under a limit.
#[must_use]
pub fn span(limit: &Limit) -> Micros {
    match limit.algorithm {
        Algorithm::Gcra => gcra::depth(limit),
        Algorithm::Fixed | Algorithm::FixedFromFirst | Algorithm::Sliding | Algorithm::Concurrent => limit.period,
    }
}

/// When the store drops a key to which an acquire has given these counters at `now`, unless another call comes.
///
/// It depends on what is stored and not on the time of the call, unless tokens of a bucket are lent. So a call that
/// changes little need not write it.
#[must_use]
pub fn expires_at(limits: &[Limit], counters: &[Counter], now: Timestamp, units: u64) -> Timestamp {
    let census = census_period(limits);
    let each = limits.iter().zip(counters).map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra if counter.used > 0 => {
            counter.at.max(now) + span(limit) + span(limit) + gcra::lease_life(units)
        }
        Algorithm::Gcra => full_in_steps(counter.prev, counter.at) + span(limit),
        Algorithm::Sliding => counter.at + limit.period + limit.period + limit.period,
        _ if counter.is_unopened() => now + limit.period + limit.period,
        _ => counter.at + limit.period,
    });
    let asked = Timestamp(now.0 - now.0 % census.0) + census + census;
    // Redis counts in whole milliseconds, to the end of the last. The scripts round up and add one. This does the same.
    let last = each.fold(asked, Timestamp::max).0.div_ceil(1_000) + 1;
    Timestamp(last.saturating_mul(1_000).saturating_add(now.0 % 1_000))
}

/// Whether the key of one limit lasts, after an acquire that counted nobody anew, as long as before it: nothing has changed
/// by which [`expires_at`] reckons. The counters are the one that was stored, and the one that is stored now. (Of a sliding
/// window only the start is stored, which says nothing of how long it is.)
#[must_use]
pub fn lasts_as_before(limit: &Limit, before: &Counter, after: &Counter) -> bool {
    match limit.algorithm {
        _ if before.is_unopened() => false,
        Algorithm::Gcra => {
            let is_lent = before.used > 0 || after.used > 0;
            let full = |counter: &Counter| full_in_steps(counter.prev, counter.at);
            !is_lent && before.prev == after.prev && full(before) == full(after)
        }
        Algorithm::Fixed | Algorithm::FixedFromFirst => before.at == after.at,
        Algorithm::Sliding | Algorithm::Concurrent => false,
    }
}

/// Whether a key of one limit that is kept until `end` anyway is kept long enough for this counter, if nobody was counted: as
/// long as [`expires_at`] asks for before it rounds up. So most charges of a key need no renewal, and no division to find that out.
#[must_use]
pub fn is_kept(limit: &Limit, counter: &Counter, end: Timestamp) -> bool {
    match limit.algorithm {
        _ if counter.is_unopened() => false,
        Algorithm::Gcra => counter.used == 0 && counter.at + span(limit) <= end,
        Algorithm::Fixed | Algorithm::FixedFromFirst => counter.at + limit.period <= end,
        Algorithm::Sliding => counter.at + limit.period + limit.period + limit.period <= end,
        Algorithm::Concurrent => false,
    }
}

/// When a bucket is full again, rounded up to a quarter of the time in which it fills: by that its key is kept, so that not
/// every charge has to renew the key.
fn full_in_steps(depth: u64, at: Timestamp) -> Timestamp {
    let step = (depth / STEPS).max(1);
    Timestamp((at.0 - at.0 % step).saturating_add(step))
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
        assert_eq!(expires_at(&limits, &ends, Timestamp(11_500_000), 1), Timestamp(30_001_000));
        let of_second = |now| expires_at(&limits[1..], &ends[1..], Timestamp(now), 1);
        assert_eq!(of_second(11_500_000), Timestamp(13_001_000), "or as long as it is known who asked");
        assert_eq!(of_second(11_999_000), of_second(11_000_000), "whenever in that time it was asked for");
    }

    #[test]
    fn a_bucket_is_kept_by_quarters_of_its_depth() {
        let limit = Limit::parse("10/100s").expect("a limit");
        let at = |seconds: u64| Counter { used: 0, prev: 100_000_000, at: Timestamp(seconds * 1_000_000) };
        let kept = |seconds| expires_at(&[limit], &[at(seconds)], Timestamp(1_000_000), 1).0 / 1_000_000;
        assert_eq!((kept(225), kept(249), kept(250)), (350, 350, 375));
        assert!(lasts_as_before(&limit, &at(225), &at(249)) && !lasts_as_before(&limit, &at(225), &at(250)));
        let deeper = Counter { prev: 200_000_000, ..at(225) };
        assert!(!lasts_as_before(&limit, &deeper, &at(225)), "by the depth at which it was charged");
        let lent = Counter { used: 1, ..at(225) };
        assert!(!lasts_as_before(&limit, &lent, &at(225)) && !lasts_as_before(&limit, &at(225), &lent));
    }

    #[test]
    fn what_is_kept_as_long_as_a_charge_asks_for_need_not_be_renewed() {
        for text in ["10/100s", "9/1s fixed", "9/1s fixed from-first", "9/1s sliding"] {
            let (limit, now) = (Limit::parse(text).expect(text), Timestamp(1_000_000_000));
            let mut counter = Counter::default().rolled(&limit, now);
            counter.debit(&limit, now, 1);
            let end = expires_at(&[limit], &[counter], now, 1);
            assert!(is_kept(&limit, &counter, end), "{text}");
            assert!(
                !is_kept(&limit, &Counter { at: counter.at + limit.period + limit.period, ..counter }, end),
                "{text}"
            );
            assert!(!is_kept(&limit, &Counter::default(), end), "{text}: it has no time yet");
        }
        let (limit, lent) = (Limit::parse("10/100s").expect("a limit"), Counter { used: 1, prev: 9, at: Timestamp(1) });
        assert!(!is_kept(&limit, &lent, Timestamp(u64::MAX)), "what is lent comes back at any time");
    }

    #[test]
    fn a_window_lasts_as_before_until_another_begins() {
        let at = |end| Counter { used: end, prev: 0, at: Timestamp(end) };
        for (text, lasts) in [("9/1s fixed", true), ("9/1s fixed from-first", true), ("9/1s sliding", false)] {
            let limit = Limit::parse(text).expect(text);
            assert_eq!(lasts_as_before(&limit, &at(7), &Counter { used: 9, ..at(7) }), lasts, "{text}");
            assert!(!lasts_as_before(&limit, &at(7), &at(8)), "{text}");
        }
    }
}
