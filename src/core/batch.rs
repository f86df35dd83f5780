//! The batch tuner: how many tokens to ask for in one refill, by how many of the last were used.
//!
//! The rate of use is measured at refills. A refill in the background keeps a lease from running dry, so "all tokens
//! are used" would never be seen. Instead, the target is what is used in one refill interval, and the batch
//! approaches it by a factor of at most 4 up and 0.5 down per refill.

use super::gcra;
use super::limit::{Algorithm, Limit};
use super::mutant::{Mutant, on};
use super::rough::Rough;
use super::rule::Rule;
use super::time::{Instant, Micros};

/// The tuner of one key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuner {
    /// Tokens asked for in the latest refill.
    batch: Rough,
    /// The time of that refill.
    since: Instant,
    /// Tokens that were spent since, plus the mean cost for each check that was denied since.
    demand: u64,
    /// Checks that were admitted or denied since; no more than fit.
    checks: u32,
    /// The mean cost of a check, and the highest of late; 0 while unknown.
    cost: Rough,
    dearest: Rough,
    /// Tokens per second, times 1000, as measured at the latest refill.
    rate: Rough,
    /// The rate was measured from enough checks not to be chance.
    sure: bool,
    follows: Follows,
}

/// How often a check follows the one before it so soon that a bucket's token which was kept for it has not been
/// returned yet.
#[derive(Clone, Copy, Debug)]
struct Follows {
    /// In 256ths.
    often: u8,
    /// For how long such a token is kept, in units of [`gcra::UNIT`].
    units: u8,
}

impl Default for Follows {
    /// Begins a little below [`USUAL`], so that one check which follows another makes it usual.
    fn default() -> Self {
        Self { often: USUAL - 1, units: 1 }
    }
}

impl Follows {
    /// A pause is short that takes less than half a period of accounts and half a unit more: two seconds where a period has two, and nine
    /// where it has sixteen. With a whole period, checks that come by chance would count as a visit: eight nodes that each saw a bucket of
    /// `1000/1h burst 50` once in a minute made 1,131 calls per 1000 checks instead of 1,102.
    fn note(&mut self, pause: Micros) {
        self.often = if pause.0 < (u64::from(self.units) + 1) * gcra::UNIT.0 / 2 {
            self.often + (u8::MAX - self.often) / LATEST_PART
        } else {
            self.often - self.often / LATEST_PART
        };
    }

    fn is_usual(self) -> bool {
        self.often >= USUAL
    }
}

/// From so many 256ths on, a check usually follows another: then tokens of a bucket are leased for those that may come. What is
/// left of them goes back by a call, so where fewer checks follow, they would cost more calls than they save. With 136, and periods of
/// accounts of two seconds, seldom-buckets cost 1,117 calls per 1000 checks instead of 1,065; but one node that sees each of its buckets
/// every 1.7 s made 865 instead of 894.
const USUAL: u8 = 160;

/// The latest check counts for such a part of how often one follows another. So a pause after many checks in a row changes little,
/// and a client that comes in visits finds tokens leased ahead from the first check of a visit on.
const LATEST_PART: u8 = 8;

/// Tokens for this few checks are leased for a whole window where there is plenty. A rate that is measured from fewer
/// checks may be chance.
const FEW: u64 = 8;

/// A node that leases for itself asks for at most so many times as much as in its last refill. A rate that was just measured may
/// not last, and what this node takes in vain others lack meanwhile.
const GROWTH: u64 = 4;

/// The same of an owner, which leases a key for all nodes: it takes nothing from anybody, so it may follow a measured rate sooner.
const GROWTH_FOR_ALL: u64 = 16;

/// An owner leases one part in so many more than nodes used of late, and [`FEW`] checks. Checks come by chance: where 20 come in
/// a window on average, every second window has more. With this reserve, one window in thirty needs a second call.
const RESERVE_PART: u64 = 4;

/// A batch shrinks by at most this fraction in one refill: what was used since the last one may have been little by chance, and a
/// batch that is too small costs calls.
const SHRINK_PART: u64 = 2;

/// A rate is measured over at least so many microseconds. Two checks in one moment would else pass for a million a second.
const SHORTEST_MEASURED: u64 = 1_000;

/// Of fewer than [`FEW`] checks this fraction of one counts as chance. If none did, one check soon after a refill would pass for
/// a rate; if all of one did, a key that is checked once between two refills would have no rate at all.
const CHANCE_PART: u64 = 2;

/// A key that surely gets less than one check in so many windows leases nothing for the rest of a window. With one, keys that
/// are checked about once in a window would ask for each check; with more, they would hold tokens that nobody uses.
const SELDOM_WINDOWS: u64 = 2;

/// Where what is left over of a window goes back by a call, a key that surely gets fewer checks in one leases nothing for the rest of it:
/// of a token for one check that may come, a call is saved or another one made. With leases for them, eight nodes that asked for half
/// of `10/1s fixed` and `100/1m fixed` together made 1,099 calls of 1,000 checks, and 1,207 where owners leased for them.
const CHECKS_OF_LEFTOVER: u64 = 2;

/// After so many checks a measurement is good enough to begin another one, so that a new rate shows soon.
const ENOUGH: u64 = 2 * FEW;

/// After fewer checks this fraction of a measurement is kept for the next one. With all of it, a rate that has ended would go on for
/// long; with none, each measurement would again be of few checks.
const KEPT_PART: u32 = 2;

/// Of rare checks a measurement is kept for so many windows at most: fewer would see no more than a check or two, and with more, a
/// rate that has ended goes on for longer.
const LONGEST_WINDOWS: u64 = 4;

/// When a measurement ends, the highest cost of late is taken to be lower by this fraction. Faster, and a lease is too small for the next
/// expensive check; slower, and one such check has a node hold much for long.
const DEAREST_PART: u64 = 8;

/// A window has so many refill intervals. With more of them, a batch is smaller and a window costs more calls; with fewer, tokens are
/// longer at a node that may not use them.
const INTERVALS: u64 = 8;

/// The shortest and the longest refill interval, in microseconds: a call for less than half a second of tokens is not worth its cost,
/// and in an hour's window tokens should not lie idle for minutes.
const INTERVAL_BOUNDS: (u64, u64) = (500_000, 30_000_000);

/// In a window that is shorter than two of the shortest intervals, an interval is this fraction of the window, so that what is used is
/// measured at least twice in it.
const SHORT_WINDOW_PART: u64 = 2;

/// The refill interval of a bucket, which has no window: that of a window of some seconds.
const INTERVAL_OF_BUCKET: Micros = Micros(500_000);

/// Thousandths of a token a second times microseconds, to a token.
const BILLION: u64 = 1_000_000_000;

/// Bounds of one refill.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Tokens that waiters need. Never ask for less.
    pub need: u64,
    /// This node's part of the limit. Never ask for more, except for waiters.
    pub ceiling: u64,
    /// The refill interval.
    pub interval: Micros,
    /// How long the tokens can be spent: until the window ends.
    pub remaining: Micros,
    /// The shortest window.
    pub window: Micros,
    /// Most of the limit is left.
    pub plenty: bool,
    /// How many nodes this one leases for, as the owner of the key: then tokens for more than a few checks may be
    /// leased for a window. 1 if this node leases for itself.
    pub nodes: u64,
    /// What is left over when the window ends lapses, and costs no call.
    pub lapses: bool,
    /// What is left over of the shortest window goes back by a call: it counts in a longer window, or slides.
    pub leftover_goes_back: bool,
    /// How many of [`gcra::UNIT`] a period of accounts has, at the end of which a call hands back what is left over of a bucket; 0 where there
    /// is no account.
    pub account_units: u64,
    /// Where there is plenty, at most so many tokens are asked for beside those that waiters need, for a few checks that may come.
    pub few: u64,
    /// So many tokens of a bucket nobody misses if no check comes for them, nor does a call hand them back.
    pub trifle: u64,
}

impl Bounds {
    /// Whether no other node leases, because peers ask this one.
    fn for_all(&self) -> bool {
        self.nodes > 1
    }
}

impl Tuner {
    /// Records that a check came so long after the one before.
    pub fn came_after(&mut self, pause: Micros) {
        self.follows.note(pause);
    }

    /// Records tokens that one check has spent.
    pub fn spent(&mut self, tokens: u64) {
        self.demand = self.demand.saturating_add(tokens);
        self.checks = self.checks.saturating_add(1);
        if tokens > self.dearest.get() {
            self.dearest = Rough::at_least(tokens);
        }
    }

    /// Records a denied check. It counts with the usual cost, whatever its own is, because clients repeat denied
    /// checks.
    pub fn denied(&mut self) {
        self.demand = self.demand.saturating_add(self.mean_cost());
        self.checks = self.checks.saturating_add(1);
    }

    /// The mean cost of a check; at least 1.
    #[must_use]
    pub fn mean_cost(&self) -> u64 {
        self.cost.get().max(1)
    }

    /// The highest cost of a check of late; at least 1.
    #[must_use]
    pub fn dearest(&self) -> u64 {
        self.dearest.get().max(1)
    }

    /// Tokens for a few checks of the usual size.
    #[must_use]
    pub fn few(&self) -> u64 {
        self.mean_cost().saturating_mul(FEW)
    }

    /// Tokens to ask for at `now`. Begins a new measurement.
    pub fn refill(&mut self, now: Instant, bounds: Bounds) -> u64 {
        let elapsed = now.since(self.since).0.max(SHORTEST_MEASURED);
        let checks = u64::from(self.checks);
        self.cost = self.demand.checked_div(checks).map_or(self.cost, |mean| Rough::at_most(mean.max(1)));
        let by_chance = if checks > 0 && checks < FEW { self.mean_cost() } else { 0 };
        let parts = (u128::from(CHANCE_PART) * u128::from(self.demand)).saturating_sub(by_chance.into());
        self.rate = Rough::at_most(clamp(parts * u128::from(BILLION / CHANCE_PART) / u128::from(elapsed)));
        self.sure = checks >= FEW;
        let slow = if bounds.account_units > 0 {
            self.follows.units = u8::try_from(bounds.account_units).unwrap_or(u8::MAX);
            !self.follows.is_usual()
        } else {
            self.is_slow(Micros(bounds.window.0.saturating_mul(SELDOM_WINDOWS)))
                || bounds.leftover_goes_back && self.expects_fewer(CHECKS_OF_LEFTOVER, bounds.window)
        };
        let rest = if slow { 0 } else { self.used_in(bounds.remaining.min(bounds.window)) };
        let few = if bounds.for_all() { u64::MAX } else { self.few().min(bounds.few.saturating_add(bounds.need)) };
        let spare = match bounds.for_all() {
            true if bounds.lapses && bounds.plenty => self.reserve(rest, bounds.nodes),
            false if bounds.plenty => bounds.trifle.min(few.saturating_sub(bounds.need)),
            _ => 0,
        };
        let small = rest.saturating_add(bounds.need).saturating_add(spare).min(if bounds.plenty { few } else { 0 });
        let target = self.used_in(bounds.interval).max(small);
        let growth = if bounds.for_all() { GROWTH_FOR_ALL } else { GROWTH };
        let before = self.batch.get();
        let (low, high) =
            (before / SHRINK_PART, before.max(1).saturating_mul(growth).max(spare.saturating_add(bounds.need)));
        // A key that is checked about once per interval: tokens for waiters are asked for, and none are held.
        let tuned = if target <= self.mean_cost() { 1 } else { target.clamp(low.min(high), high) };
        let batch = tuned.min(bounds.ceiling).max(bounds.need).max(1);
        self.batch = Rough::at_most(batch);
        // A measurement of rare checks spans several refills.
        let longest = bounds.window.0.saturating_mul(LONGEST_WINDOWS);
        if checks >= ENOUGH || checks == 0 {
            (self.since, self.demand, self.checks) = (now, 0, 0);
            self.dearest = Rough::at_most(self.dearest.get() - self.dearest.get() / DEAREST_PART);
        } else if checks >= FEW || elapsed >= longest {
            self.since = now - Micros(elapsed.min(longest) / u64::from(KEPT_PART));
            (self.demand, self.checks) = (self.demand / u64::from(KEPT_PART), self.checks / KEPT_PART);
        }
        // Near the end of a window, tokens that would be left over are not asked for. The tuned batch stays.
        let useful = self.used_in(bounds.remaining).saturating_add(spare).saturating_add(1).max(bounds.need);
        batch.min(useful)
    }

    /// Tokens asked for in the latest refill.
    #[must_use]
    pub fn batch(&self) -> u64 {
        self.batch.get()
    }

    /// The tokens that an owner leases for so many nodes beyond the measured use. For a new key, that is a check for
    /// each node.
    fn reserve(&self, used: u64, nodes: u64) -> u64 {
        match (self.rate.get(), used) {
            (0, _) if self.batch == Rough::ZERO => self.mean_cost().saturating_mul(nodes - 1),
            (_, 0) => 0,
            _ => (used / RESERVE_PART).saturating_add(self.few()),
        }
    }

    /// The tokens that an owner leases for all nodes and a whole window of that length.
    #[must_use]
    pub fn for_window(&self, length: Micros) -> u64 {
        let used = self.used_in(length);
        used.saturating_add(self.reserve(used, 1))
    }

    /// Tokens that are used in `span` at the measured rate, rounded up.
    #[must_use]
    pub fn used_in(&self, span: Micros) -> u64 {
        let rate = self.rate.get();
        match rate.checked_mul(span.0) {
            Some(product) => product.div_ceil(BILLION),
            None => clamp((u128::from(rate) * u128::from(span.0)).div_ceil(BILLION.into())),
        }
    }

    /// Whether surely less than one check comes in `span`.
    #[must_use]
    pub fn is_slow(&self, span: Micros) -> bool {
        self.expects_fewer(1, span)
    }

    /// Whether surely fewer than so many checks come in `span`.
    #[must_use]
    pub fn expects_fewer(&self, checks: u64, span: Micros) -> bool {
        let tokens = u128::from(self.mean_cost()) * u128::from(checks);
        let rate = self.rate.get();
        rate > 0 && u128::from(rate) * u128::from(span.0) < u128::from(BILLION) * tokens
    }

    /// Whether surely so many tokens are used in `span`.
    #[must_use]
    pub fn uses(&self, tokens: u64, span: Micros) -> bool {
        (self.sure || on(Mutant::ChanceTakenForFlood)) && self.used_in(span) >= tokens
    }

    /// Whether it is worth holding tokens for this key.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.batch() > self.mean_cost()
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// The refill interval of a rule: an eighth of its shortest window, but at least 0.5 s (or half of the window) and at
/// most 30 s. Of a bucket 0.5 s.
#[must_use]
pub fn refill_interval(rule: &Rule) -> Micros {
    rule.limits.iter().map(limit_interval).min().unwrap_or(Micros::from_secs(1))
}

fn limit_interval(limit: &Limit) -> Micros {
    match limit.algorithm {
        Algorithm::Gcra => INTERVAL_OF_BUCKET,
        _ => {
            let (shortest, longest) = INTERVAL_BOUNDS;
            let floor = shortest.min(limit.period.0 / SHORT_WINDOW_PART);
            Micros((limit.period.0 / INTERVALS).clamp(floor, longest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Micros = Micros(500_000);

    fn bounds(need: u64, ceiling: u64) -> Bounds {
        let minute = Micros::from_secs(60);
        Bounds {
            need,
            ceiling,
            interval: HALF,
            remaining: minute,
            window: minute,
            plenty: false,
            nodes: 1,
            lapses: true,
            leftover_goes_back: false,
            account_units: 0,
            few: u64::MAX,
            trifle: 0,
        }
    }

    #[test]
    fn a_cold_key_asks_for_what_waits() {
        let mut tuner = Tuner::default();
        assert_eq!(tuner.refill(Instant(5_000_000), bounds(1, 100)), 1);
        tuner.spent(1);
        assert_eq!(tuner.refill(Instant(25_000_000), bounds(1, 100)), 1);
        assert!(!tuner.is_warm());
    }

    /// Asks for one token every 20 s, and returns the batch of the fourth refill.
    fn seldom(bounds: Bounds) -> u64 {
        let mut tuner = Tuner::default();
        let batches = (1..=4).map(|round| {
            if round > 1 {
                tuner.spent(1);
            }
            tuner.refill(Instant(round * 20_000_000), bounds)
        });
        batches.last().unwrap()
    }

    #[test]
    fn what_would_go_back_by_a_call_is_not_leased_for_a_check_that_may_come() {
        let half = Micros::from_secs(30);
        let plenty = Bounds { plenty: true, remaining: half, window: half, ..bounds(1, 100) };
        assert_eq!(seldom(plenty), 3, "one waits, and two may come until the window ends");
        assert_eq!(seldom(Bounds { leftover_goes_back: true, ..plenty }), 1);
        let minute = Bounds { plenty: true, leftover_goes_back: true, ..bounds(1, 100) };
        assert_eq!(seldom(minute), 4, "of more checks than one or two most come");
    }

    #[test]
    fn a_key_seen_seldom_leases_for_the_window_where_there_is_plenty() {
        let plenty = Bounds { plenty: true, ..bounds(1, 100) };
        assert_eq!(seldom(plenty), 4, "one waits, and three or so will");
        assert_eq!(seldom(Bounds { remaining: Micros::from_secs(5), ..plenty }), 2, "one may come");
        assert_eq!(seldom(bounds(1, 100)), 1);
        assert_eq!(seldom(Bounds { window: Micros::from_secs(1), ..plenty }), 1, "no other in a second");
    }

    /// Checks at these moments, in milliseconds, each of which leases: what the last of them asks for of a bucket.
    fn of_a_bucket(checks: &[u64]) -> u64 {
        let (mut tuner, mut last) = (Tuner::default(), None);
        let bucket = Bounds { plenty: true, account_units: 1, interval: gcra::UNIT, ..bounds(1, 100) };
        let asked = checks.iter().map(|at| {
            let now = Instant(at * 1_000);
            if let Some(last) = last.replace(now) {
                tuner.came_after(now.since(last));
                tuner.spent(1);
            }
            tuner.refill(now, bucket)
        });
        asked.last().unwrap()
    }

    /// A key that is checked every 8 s leased four tokens each time, three of which went back: almost two calls a check.
    #[test]
    fn of_a_bucket_no_token_is_leased_that_would_go_back_unused() {
        let seldom: Vec<u64> = (1..=20).map(|round| round * 8_000).collect();
        assert_eq!(of_a_bucket(&seldom), 1);
        assert_eq!(of_a_bucket(&[1_000, 1_400]), 4, "of a key that is new, one check that follows another is enough");
        assert_eq!(of_a_bucket(&[1_000, 9_000, 9_400]), 1, "one of two did");
        // The mean rate is a check every 8 s here, too, but after each pause several checks follow each other.
        let in_visits: Vec<u64> =
            (1..=5).flat_map(|visit| (0..10).map(move |check| visit * 80_000 + check * 200)).chain([480_000]).collect();
        assert!(of_a_bucket(&in_visits) >= 4, "{}", of_a_bucket(&in_visits));
    }

    #[test]
    fn of_a_bucket_tokens_that_nobody_misses_are_leased_for_a_few_checks_that_may_come() {
        let first = |bounds| Tuner::default().refill(Instant(1_000_000), bounds);
        let bucket = Bounds { plenty: true, account_units: 16, trifle: 10, ..bounds(1, 100) };
        assert_eq!(first(bucket), FEW);
        assert_eq!(
            first(Bounds { need: FEW + 1, ..bucket }),
            FEW + 1,
            "one check asks for more than a few of the usual ones"
        );
        assert_eq!(first(Bounds { trifle: 2, ..bucket }), 3, "others would miss more");
        assert_eq!(first(Bounds { few: 2, ..bucket }), 3);
        assert_eq!(first(Bounds { ceiling: 5, ..bucket }), 5);
        assert_eq!(first(Bounds { plenty: false, ..bucket }), 1);
        assert_eq!(first(Bounds { trifle: 0, ..bucket }), 1);
    }

    #[test]
    fn who_leases_for_all_leases_for_the_window() {
        let mut tuner = Tuner::default();
        let minute = Bounds { plenty: true, nodes: 20, ..bounds(1, 60) };
        let mut refill = |at: u64, checks: u64| {
            (0..checks).for_each(|_| tuner.spent(1));
            let remaining = Micros::from_secs(60 - at % 60);
            tuner.refill(Instant(at * 1_000_000), Bounds { remaining, ..minute })
        };
        // First a check for each node, as nothing is known yet; then what they use, a quarter more, and eight.
        assert_eq!([refill(60, 0), refill(120, 20), refill(180, 20)], [20, 34, 34]);
        assert_eq!(refill(230, 20), 14, "near the end of the window");
    }

    #[test]
    fn who_leases_for_all_leases_no_reserve_that_would_have_to_go_back_or_that_others_lack() {
        let minute = Bounds { plenty: true, nodes: 20, ..bounds(1, 60) };
        let first = |bounds| Tuner::default().refill(Instant(60_000_000), bounds);
        assert_eq!(first(minute), 20);
        assert_eq!(first(Bounds { lapses: false, ..minute }), 1);
        assert_eq!(first(Bounds { plenty: false, ..minute }), 1);
        assert_eq!(first(Bounds { nodes: 1, ..minute }), 1);
        assert_eq!(first(Bounds { ceiling: 5, ..minute }), 5);
    }

    #[test]
    fn a_rate_of_few_checks_is_no_flood() {
        let mut tuner = Tuner::default();
        tuner.refill(Instant(1_000_000), bounds(1, 100));
        (1..FEW).for_each(|_| tuner.spent(1));
        tuner.refill(Instant(1_010_000), bounds(1, 100));
        assert!(tuner.used_in(HALF) > 100 && !tuner.uses(100, HALF));
        (0..FEW).for_each(|_| tuner.spent(1));
        tuner.refill(Instant(1_020_000), bounds(1, 100));
        assert!(tuner.uses(100, HALF));
    }

    #[test]
    fn expects_fewer_checks_than_its_rate_says_in_shorter_spans_only() {
        let mut tuner = Tuner::default();
        assert!(!tuner.expects_fewer(4, Micros(1)), "nothing was measured");
        tuner.refill(Instant(1_000_000), bounds(1, 100));
        (0..10).for_each(|_| tuner.spent(3));
        tuner.refill(Instant(11_000_000), bounds(1, 100)); // a check a second
        assert!(tuner.expects_fewer(4, Micros(3_900_000)) && !tuner.expects_fewer(4, Micros(4_100_000)));
    }

    #[test]
    fn grows_to_what_one_interval_uses() {
        let mut tuner = Tuner::default();
        let mut now = Instant(1_000_000);
        let mut batch = tuner.refill(now, bounds(1, 10_000));
        for _ in 0..12 {
            (0..batch).for_each(|_| tuner.spent(1));
            now = now + Micros(batch * 1_000); // a thousand a second
            batch = tuner.refill(now, bounds(1, 10_000));
        }
        assert_eq!(batch, 500);
    }

    #[test]
    fn grows_at_most_fourfold_and_shrinks_at_most_by_half() {
        let mut tuner = Tuner { batch: Rough::at_most(10), ..Tuner::default() };
        (0..1_000_000).for_each(|_| tuner.spent(1));
        assert_eq!(tuner.refill(Instant(1_000_000), bounds(1, 10_000)), 40);
        (0..5).for_each(|_| tuner.spent(1));
        assert_eq!(tuner.refill(Instant(2_000_000), bounds(1, 10_000)), 20);
    }

    #[test]
    fn never_above_the_share_but_for_what_waits() {
        let mut tuner = Tuner { batch: Rough::at_most(100), ..Tuner::default() };
        (0..1_000).for_each(|_| tuner.spent(1));
        assert_eq!(tuner.refill(Instant(1_000_000), bounds(1, 30)), 30);
        assert_eq!(tuner.refill(Instant(2_000_000), bounds(70, 30)), 70);
    }

    #[test]
    fn near_a_windows_end_it_asks_for_what_can_be_spent() {
        let mut tuner = Tuner { batch: Rough::at_most(100), ..Tuner::default() };
        (0..200).for_each(|_| tuner.spent(1));
        let near = Bounds { remaining: Micros(100_000), ..bounds(1, 1_000) };
        assert_eq!(tuner.refill(Instant(1_000_000), near), 21);
        assert_eq!(tuner.batch(), 100);
    }

    #[test]
    fn refill_interval_is_an_eighth_of_a_window_within_bounds() {
        let interval = |text| limit_interval(&Limit::parse(text).unwrap()).0;
        assert_eq!(interval("1/1s fixed"), 500_000);
        assert_eq!(interval("1/100ms fixed"), 50_000);
        assert_eq!(interval("1/1m fixed"), 7_500_000);
        assert_eq!(interval("1/1h fixed"), 30_000_000);
    }
}
