//! Entitlements: the tokens of a window that the store sets aside for a node, and that the node may admit when it has lost
//! the store.
//!
//! Pure arithmetic, which the core and the memory store share; the scripts have the same in `lua/entitled.lua`. Why the sum
//! of what nodes without the store admit and of what others are lent stays within the limit is said in
//! `docs/decisions/0013-entitlements.md`.

use super::gcra::UNIT;
use super::limit::Limit;
use super::time::{Micros, Timestamp};

/// Entitlements are counted by generations of this length, so that a script keeps two sums and never searches for nodes. Longer,
/// and what is set aside for a node that was killed lies idle for longer; shorter, and a node has no entitlement to a key
/// that it is asked for every few minutes.
pub const GENERATION: Micros = Micros::from_secs(300);

/// An entitlement that no call renews is in force for so many generations, including the one in which it was given.
/// With one, a node that called at the end of a generation would have none a moment later.
const IN_FORCE: u64 = 2;

/// A node counts as silent about a bucket when so many periods of accounts have begun since its last acquire. In the
/// first of them its account is still open, and it may call in time to renew it.
const SILENT_AFTER: u64 = 2;

/// All of a bucket: parts are given in millionths of its rate and burst.
pub const WHOLE: u64 = 1_000_000;

/// The most of a bucket that all nodes together are entitled to: 95 %, as with shares
/// ([`share_ppm`](super::share::share_ppm)).
pub const MOST_PPM: u64 = 950_000;

/// The same for the tokens of a window, as a fraction whose terms are so small that products with them are exact in
/// `lua/acquire.lua`.
const MOST: (u64, u64) = (19, 20);

/// The most tokens of a window that are set aside for one node, as a multiple of what it uses in one. `lua/acquire.lua` has it, too.
///
/// Without it a node that is alone with a key is entitled to 95 % of the limit, and nodes that come later are lent only
/// the rest in each window until that node has called. In small-calm-entitled, 2.3 % of the checks were then denied
/// although there were tokens; with four it is 0.7 %. The smaller it is, the less can a node's demand grow while the
/// store is away.
pub const USES: u64 = 4;

/// The number of the generation at that time of the store's clock.
#[must_use]
pub const fn generation(at: Timestamp) -> u64 {
    at.0 / GENERATION.0
}

/// When an entitlement lapses that was given in this generation.
#[must_use]
pub const fn lapses(generation: u64) -> Timestamp {
    Timestamp((generation + IN_FORCE) * GENERATION.0)
}

/// The most tokens of a window that are set aside for all nodes together: 95 %.
#[must_use]
pub const fn most(limit: &Limit) -> u64 {
    limit.count * MOST.0 / MOST.1
}

/// When the part of a bucket of a node whose last acquire was executed at that time begins to fill. In the second
/// period of accounts after the acquire the node counts as silent: from then on the store lends and renews only what
/// leaves room for the node's part. When that period is over, accounts that were not renewed have been charged, so that
/// the room is there.
#[must_use]
pub const fn fills_from(executed: Timestamp) -> Timestamp {
    Timestamp((executed.0 / UNIT.0 + SILENT_AFTER + 1) * UNIT.0)
}

/// When a node begins to count as silent whose part of a bucket begins to fill at `fills`: a period of accounts before.
#[must_use]
pub const fn silent_from(fills: Timestamp) -> Timestamp {
    Timestamp(fills.0.saturating_sub(UNIT.0))
}

/// The end of the fixed or sliding window that is open at that time. For a fixed one that is its `Counter::at`.
#[must_use]
pub const fn window_end(limit: &Limit, at: Timestamp) -> Timestamp {
    Timestamp((at.0 / limit.period.0 + 1) * limit.period.0)
}

/// How many of the tokens of a sliding window that are set aside for a node it may have admitted by `at`; the window
/// ends at `end`. They are released in proportion to the time that has passed of the window, because the window before
/// weighs less in the same proportion.
#[must_use]
pub const fn released(limit: &Limit, tokens: u64, end: Timestamp, at: Timestamp) -> u64 {
    let left = end.0.saturating_sub(at.0);
    let passed = limit.period.0.saturating_sub(left);
    (tokens as u128 * passed as u128 / limit.period.0 as u128) as u64 // no more than `tokens`
}

/// When `wanted` tokens are released; `None` if they never are.
#[must_use]
pub fn released_at(limit: &Limit, tokens: u64, end: Timestamp, wanted: u64) -> Option<Timestamp> {
    if wanted > tokens {
        return None;
    }
    let passed = (u128::from(wanted) * u128::from(limit.period.0)).div_ceil(u128::from(tokens.max(1)));
    Some(end - limit.period + Micros(u64::try_from(passed).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_sliding_window_is_released_by_the_part_that_has_passed() {
        let limit = Limit::parse("100/1s sliding").expect("a limit");
        let end = Timestamp(6_000_000);
        let at = |at| released(&limit, 7, end, Timestamp(at));
        assert_eq!(
            [at(4_000_000), at(5_000_000), at(5_142_857), at(5_142_858), at(5_999_999), at(6_000_000)],
            [0, 0, 0, 1, 6, 7]
        );
        for wanted in 1..=7 {
            let then = released_at(&limit, 7, end, wanted).expect("there are as many");
            assert_eq!(
                [released(&limit, 7, end, then - Micros(1)), released(&limit, 7, end, then)],
                [wanted - 1, wanted]
            );
        }
        assert_eq!(released_at(&limit, 7, end, 8), None);
        assert_eq!(released_at(&limit, 0, end, 1), None);
    }
}
