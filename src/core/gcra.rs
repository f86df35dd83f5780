//! Arithmetic of the token bucket (generic cell rate algorithm) over one number: the TAT.
//!
//! The theoretical arrival time (TAT) is when the bucket will be full again. A token costs the emission interval, `P
//! / C` microseconds. In a bucket that holds `burst` tokens, the TAT may be `depth` ahead of now, which is the cost
//! of `burst` tokens. What is lent to nodes is set aside, and charged when they report it as spent (`counter.rs`).
//! Pure. Called by the memory store and by the core; `lua/lib.lua` has the same steps line for line. Source: ITU-T
//! I.371, Annex A.
//!
//! Rounding: charges are rounded up; credits and what is left are rounded down.

use super::limit::{Algorithm, Limit};
use super::time::{Micros, Timestamp};

/// The shortest period of accounts, and the unit by which periods are numbered: a longer one has the number of its
/// first unit. A lease must be accounted for within the period of the store's clock in which it was opened or the next
/// one; otherwise it counts as spent.
pub const UNIT: Micros = Micros(2_000_000);

/// The longest period has so many units. What a killed node held is missing for two periods at most.
pub const LONGEST: u64 = 8;

/// A period takes no more than this fraction of the time in which the bucket fills. A node calls once in a period, at least, for each bucket
/// that it is asked for; but what a killed node held is missing for up to two of them. With 8, `100/1m` at 90 % cost eight nodes 940 calls
/// per 1000 checks instead of 650; with 5, of a budget for language models (llm-costs) 0.5 % less was used.
pub const DEPTH_PART: u64 = 6;

/// An account is open for so many periods, including the one in which it was opened. With one, an account that was
/// opened at the end of a period would be over at once; with more, what a killed node held is charged later.
pub const PERIODS: u64 = 2;

/// How many units a period of accounts has under these limits, where nothing is set aside for nodes that fall silent.
#[must_use]
pub fn units(limits: &[Limit]) -> u64 {
    let buckets = limits.iter().filter(|limit| limit.algorithm == Algorithm::Gcra);
    let fit = buckets.map(|limit| depth(limit).0 / (DEPTH_PART * UNIT.0)).min();
    fit.unwrap_or(1).clamp(1, LONGEST)
}

/// The longest that tokens can be lent without being accounted for, where a period of accounts has so many units.
#[must_use]
pub const fn lease_life(units: u64) -> Micros {
    Micros(PERIODS * units * UNIT.0)
}

/// A node that is alone with a key is lent tokens that come within this time. It spends none of them before they
/// come.
pub const AHEAD: Micros = Micros(500_000);

/// Tokens that come within [`AHEAD`]; none for limits so large that the scripts' numbers would not be exact.
#[must_use]
pub fn coming(limit: &Limit) -> u64 {
    let (period, count) = limit.interval();
    let coming = tokens_in(limit, AHEAD);
    let most = u128::from(limit.burst) + 2 + u128::from(coming);
    let is_exact = count <= u64::from(u32::MAX)
        && most * u128::from(count) < 1 << 53
        && most * u128::from(period) <= u128::from(count) << 51;
    if is_exact { coming } else { 0 }
}

/// Most tokens of a bucket that a node can have been lent and have spent before it reports.
#[must_use]
pub fn most_lent(limit: &Limit) -> u64 {
    limit.burst.saturating_add(coming(limit))
}

/// The time that `tokens` cost: `tokens * P / C`, rounded up.
#[must_use]
pub fn cost(limit: &Limit, tokens: u64) -> Micros {
    let (period, count) = limit.interval();
    match tokens.checked_mul(period) {
        Some(product) => Micros(product.div_ceil(count)),
        None => narrow((u128::from(tokens) * u128::from(period)).div_ceil(u128::from(count))),
    }
}

/// The time that returned `tokens` are worth: `tokens * P / C`, rounded down.
#[must_use]
pub fn worth(limit: &Limit, tokens: u64) -> Micros {
    let (period, count) = limit.interval();
    match tokens.checked_mul(period) {
        Some(product) => Micros(product / count),
        None => narrow(u128::from(tokens) * u128::from(period) / u128::from(count)),
    }
}

/// How far the TAT may be ahead of now: the cost of the whole burst.
#[must_use]
pub fn depth(limit: &Limit) -> Micros {
    limit.depth()
}

/// Tokens that come within `span`: `span * C / P`, rounded down. The inverse of [`cost`]: the most tokens whose cost
/// is at most `span`.
#[must_use]
pub fn tokens_in(limit: &Limit, span: Micros) -> u64 {
    let (period, count) = limit.interval();
    match span.0.checked_mul(count) {
        Some(product) => product / period,
        None => u64::try_from(u128::from(span.0) * u128::from(count) / u128::from(period)).unwrap_or(u64::MAX),
    }
}

/// The TAT that counts at `now`. It is never further ahead than the depth, or than the depth of the bucket that was
/// `charged`. So a bucket that was reduced keeps its debt, and a clock that stepped back denies nobody for longer
/// than the charged bucket takes to fill.
#[must_use]
pub fn roll(limit: &Limit, tat: Timestamp, now: Timestamp, charged: Micros) -> Timestamp {
    tat.min(now + depth(limit).max(charged))
}

/// The depth that bounds the TAT after tokens are charged at `now`: that of the bucket `charged` before, as long as
/// its debt does not fit into this one.
#[must_use]
pub fn charged(limit: &Limit, tat: Timestamp, now: Timestamp, charged: Micros) -> Micros {
    if tat <= now + depth(limit) { depth(limit) } else { depth(limit).max(charged) }
}

/// Tokens that can be lent at `now`, rounded down.
#[must_use]
pub fn left(limit: &Limit, tat: Timestamp, now: Timestamp) -> u64 {
    let room = (now + depth(limit)).since(tat.max(now));
    // The depth was rounded up: above one token per microsecond, it is worth more than the burst.
    tokens_in(limit, room).min(limit.burst)
}

/// The TAT after `tokens` were lent: each adds its emission interval to the later of TAT and now.
#[must_use]
pub fn debit(limit: &Limit, tat: Timestamp, now: Timestamp, tokens: u64) -> Timestamp {
    if tokens == 0 { tat } else { tat.max(now) + cost(limit, tokens) }
}

/// The TAT after `tokens` came back. If they are more than is owed, the debt becomes zero. A bucket that was reduced
/// may owe more than it holds.
#[must_use]
pub fn credit(limit: &Limit, tat: Timestamp, tokens: u64) -> Timestamp {
    tat - worth(limit, tokens)
}

/// The wait until `tokens` can be spent if nobody else spends; `None` when the bucket is too small.
#[must_use]
pub fn wait(limit: &Limit, tat: Timestamp, now: Timestamp, tokens: u64) -> Option<Micros> {
    let ready = tat.max(now) + cost(limit, tokens);
    (tokens <= limit.burst).then(|| ready.since(now + depth(limit)))
}

fn narrow(micros: u128) -> Micros {
    Micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::limit::{MAX_COUNT, MAX_PERIOD};
    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

    fn limit(text: &str) -> Limit {
        Limit::parse(text).expect(text)
    }

    /// Valid limits, with a preference for extremes and for intervals that do not divide evenly.
    fn limits() -> impl Strategy<Value = Limit> {
        let count = prop_oneof![1..8u64, 1..100_000u64, 1..=u64::from(u32::MAX), 1..=MAX_COUNT];
        let period = prop_oneof![1..50u64, 1..10_000_000u64, 1..31_622_400_000_000u64, 1..=MAX_PERIOD.0];
        (count.clone(), period, count)
            .prop_filter_map("not exact", |(count, period, burst)| Limit::gcra(count, Micros(period), burst).ok())
    }

    proptest! {
        #[test]
        fn cost_and_worth_bracket_the_exact_value(limit in limits(), tokens in 0..=MAX_COUNT) {
            let tokens = tokens.min(limit.burst);
            let (period, count) = limit.interval();
            let exact = u128::from(tokens) * u128::from(period);
            let (up, down) = (u128::from(cost(&limit, tokens).0), u128::from(worth(&limit, tokens).0));
            prop_assert!(down * u128::from(count) <= exact && exact <= up * u128::from(count));
            prop_assert!(up - down <= 1);
        }

        #[test]
        fn tokens_in_is_the_inverse_of_cost(limit in limits(), part in 0..=100u64) {
            let span = depth(&limit).0 / 100 * part;
            let tokens = tokens_in(&limit, Micros(span));
            prop_assert!(cost(&limit, tokens).0 <= span);
            prop_assert!(cost(&limit, tokens + 1).0 > span);
        }

        #[test]
        fn left_can_be_lent_and_no_more(limit in limits(), ahead in 0..1u64 << 52) {
            let tat = roll(&limit, NOW - Micros(1 << 50) + Micros(ahead), NOW, Micros::ZERO);
            let tokens = left(&limit, tat, NOW);
            prop_assert!(tokens <= limit.burst);
            let after = debit(&limit, tat, NOW, tokens);
            prop_assert!(after <= NOW + depth(&limit));
            prop_assert!(left(&limit, after, NOW) <= tokens_in(&limit, Micros(1)) + 1, "a rounding at most");
        }

        #[test]
        fn waiting_as_told_is_enough_and_less_is_not(limit in limits(), ahead in 0..1u64 << 50, part in 1..=100u64) {
            let tokens = (limit.burst / 100 * part).max(1);
            let tat = roll(&limit, NOW + Micros(ahead), NOW, Micros::ZERO);
            let wait = wait(&limit, tat, NOW, tokens).expect("within the burst");
            prop_assert!(left(&limit, tat, NOW + wait) >= tokens);
            if wait > Micros::ZERO {
                prop_assert!(left(&limit, tat, NOW + Micros(wait.0 - 1)) < tokens);
            }
        }

        #[test]
        fn credit_never_returns_more_than_was_charged(limit in limits(), tokens in 0..=MAX_COUNT) {
            let tokens = tokens.min(limit.burst);
            let after = credit(&limit, debit(&limit, NOW, NOW, tokens), tokens);
            prop_assert!(after >= NOW && after <= NOW + Micros(1));
        }
    }

    #[test]
    fn full_bucket_lends_its_burst() {
        let limit = limit("10/1s burst 20");
        assert_eq!(left(&limit, Timestamp(0), NOW), 20);
    }

    #[test]
    fn bucket_of_many_tokens_a_microsecond_never_exceeds_its_burst() {
        let limit = limit("1000/1us burst 1");
        assert_eq!(depth(&limit), Micros(1));
        assert_eq!(left(&limit, Timestamp(0), NOW), 1);
    }

    #[test]
    fn thirds_of_a_second_round_against_the_spender() {
        let limit = limit("3/1s");
        assert_eq!((cost(&limit, 1), worth(&limit, 1)), (Micros(333_334), Micros(333_333)));
        assert_eq!(cost(&limit, 3), Micros::from_secs(1));
    }

    #[test]
    fn tat_of_the_far_future_is_pulled_in() {
        let limit = limit("10/1s");
        assert_eq!(roll(&limit, NOW + Micros::from_secs(900), NOW, Micros::ZERO), NOW + Micros::from_secs(1));
    }

    #[test]
    fn debt_of_a_deeper_bucket_stays_until_it_fits() {
        let (small, deep) = (limit("10/1s"), Micros::from_secs(60));
        let tat = NOW + Micros::from_secs(40);
        assert_eq!(roll(&small, tat, NOW, deep), tat);
        assert_eq!(charged(&small, tat, NOW, deep), deep);
        assert_eq!(charged(&small, tat, NOW + Micros::from_secs(39), deep), Micros::from_secs(1));
        assert_eq!(roll(&small, tat, NOW - Micros::from_secs(900), deep), NOW - Micros::from_secs(840));
    }

    #[test]
    fn cost_above_the_burst_never_comes() {
        assert_eq!(wait(&limit("10/1s"), Timestamp(0), NOW, 11), None);
    }

    #[test]
    fn credit_of_an_absurd_amount_fills_the_bucket() {
        assert_eq!(credit(&limit("10/1s"), NOW, u64::MAX), Timestamp(0));
    }
}
