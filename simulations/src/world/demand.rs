//! Draws requests: when, about which key, and at which node.
//!
//! Each demand of the plan draws from a stream of its own. Popularity is in tables that are computed once, and all
//! draws of a run are of integers, so a run repeats exactly on every machine.

use std::collections::BTreeMap;

use super::holds::Terms;
use crate::observe::Kind;
use crate::plan::{Demand as DemandPlan, SEVERAL_OF, Shape, Spread};
use crate::random::Random;

/// Draws ranks by Zipf's law.
#[derive(Clone, Debug)]
struct Popularity {
    /// Sums of the weights up to each rank.
    sums: Vec<u64>,
}

impl Popularity {
    /// `skew` is the exponent in thousandths.
    fn new(ranks: u32, skew: u32) -> Self {
        let mut sum = 0_u64;
        let weight = |rank: u32| (1e9 / f64::from(rank + 1).powf(f64::from(skew) / 1e3)) as u64; // at most 1e9
        let sums = (0..ranks.max(1)).map(|rank| {
            sum += weight(rank).max(1);
            sum
        });
        Self { sums: sums.collect() }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let drawn = random.below(*self.sums.last().expect("at least one rank"));
        self.sums.partition_point(|sum| *sum <= drawn) as u32 // below the number of ranks
    }
}

/// One arriving request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The key's rank, and which generation of keys it is of.
    pub(super) rank: u32,
    pub(super) generation: u64,
    /// An index into the nodes that are up.
    pub(super) node: usize,
    pub(super) cost: u64,
    pub(super) kind: Kind,
    /// It will be refunded if it is admitted.
    pub(super) refund: bool,
    /// A check that is settled afterwards, if it is admitted.
    pub(super) hold: Option<Terms>,
    /// What is checked with it, all or nothing: policies, ranks and costs.
    pub(super) others: Vec<(u32, u32, u64)>,
}

/// One demand.
#[derive(Debug)]
pub(super) struct Demand {
    pub(super) plan: DemandPlan,
    random: Random,
    /// Draws holds alone, so that a plan without holds draws everything else as before.
    holds: Random,
    partings: Random,
    together: Random,
    keys: Popularity,
    /// For `Spread::Zipf`, by the number of nodes.
    nodes: BTreeMap<usize, Popularity>,
    /// When the next one is due, in nanoseconds.
    next: u64,
    /// Thousandths.
    factor: u64,
}

impl Demand {
    pub(super) fn new(plan: &DemandPlan, seed: u64, index: usize) -> Self {
        Self {
            plan: plan.clone(),
            random: Random::stream(seed, &format!("demand {index}")),
            holds: Random::stream(seed, &format!("holds {index}")),
            together: Random::stream(seed, &format!("together {index}")),
            partings: Random::stream(seed, &format!("partings {index}")),
            keys: Popularity::new(plan.keys, plan.key_skew),
            nodes: BTreeMap::new(),
            next: plan.from.0.saturating_mul(1_000),
            factor: 1_000,
        }
    }

    /// When the next check comes, in microseconds; `None` when there is none any more.
    pub(super) fn next(&mut self) -> Option<u64> {
        let is_later = self.plan.later.0 > 0 && self.next / 1_000 >= self.plan.later.0;
        let rate = if is_later { self.plan.later_rate } else { self.plan.rate };
        if rate == 0 || self.factor == 0 {
            return None;
        }
        let mean = 1_000_000_000_000 / (rate * self.factor).max(1); // nanoseconds
        match self.plan.shape {
            Shape::Steady => self.next += mean,
            Shape::Poisson => self.next += self.random.exponential(mean),
            Shape::OnOff { on, off } => {
                self.next += self.random.exponential(mean);
                let (on, cycle) = (on.0 * 1_000, (on.0 + off.0).max(1) * 1_000);
                let place = self.next % cycle;
                self.next += if place >= on { cycle - place } else { 0 };
            }
            Shape::Diurnal { period } => self.next_diurnal(mean, period.0.max(1) * 1_000),
        }
        let at = self.next / 1_000;
        (self.plan.until.0 == 0 || at < self.plan.until.0).then_some(at)
    }

    /// Thinned from 1.9 times the rate: a triangle between 0.1 and 1.9 of it.
    fn next_diurnal(&mut self, mean: u64, period: u64) {
        loop {
            self.next += self.random.exponential(mean * 10 / 19);
            let place = self.next % period * 2;
            let height = if place < period { place } else { 2 * period - place };
            if self.random.below(1_900) < 100 + (u128::from(height) * 1_800 / u128::from(period)) as u64 {
                return;
            }
        }
    }

    /// Sets the rate to so many thousandths of what was planned.
    pub(super) fn scale(&mut self, factor: u64) {
        self.factor = factor;
    }

    /// Draws how clients of a concurrent limit give their permits back.
    pub(super) fn partings(&mut self) -> &mut Random {
        &mut self.partings
    }

    /// Draws what arrives at `now`, with so many nodes up.
    pub(super) fn draw(&mut self, now: u64, nodes: usize) -> Arrival {
        let rank = self.keys.draw(&mut self.random);
        let generation = now.checked_div(self.plan.churn.0).unwrap_or(0);
        let node = self.node(now, rank, nodes.max(1));
        let least = self.plan.cost_from.clamp(1, self.plan.cost.max(1));
        let cost = self.random.between(least.into(), self.plan.cost.max(1).into());
        let kind = match self.random.below(1_000) {
            drawn if drawn < u64::from(self.plan.resets) => Kind::Reset,
            drawn if drawn < u64::from(self.plan.resets + self.plan.peeks) => Kind::Peek,
            _ => Kind::Check,
        };
        let refund = self.random.chance(self.plan.refunds.into());
        let hold = if self.plan.holds > 0 && kind == Kind::Check { self.hold(cost) } else { None };
        let is_one = self.plan.several == 0 || kind != Kind::Check || hold.is_some();
        let others = if is_one { Vec::new() } else { self.others() };
        Arrival { rank, generation, node, cost, kind, refund: refund && hold.is_none(), hold, others }
    }

    /// One to four other keys, seldom the same one twice.
    fn others(&mut self) -> Vec<(u32, u32, u64)> {
        let (random, plan) = (&mut self.together, &self.plan);
        if !random.chance(plan.several.into()) {
            return Vec::new();
        }
        let rank = |random: &mut Random| random.below(plan.keys.min(SEVERAL_OF).into()) as u32; // less than `SEVERAL_OF`
        let count = random.between(1, 4);
        (0..count).map(|_| (random.below(64) as u32, rank(random), random.between(0, plan.cost.into()))).collect()
    }

    /// Whether a check is a hold, and what becomes of it: an eighth comes too late, an eighth not at all, an
    /// eighth twice; a fifth is settled as it was estimated.
    fn hold(&mut self, estimate: u64) -> Option<Terms> {
        let (random, settle) = (&mut self.holds, self.plan.settle.0);
        if !random.chance(self.plan.holds.into()) {
            return None;
        }
        let drawn = random.between(0, estimate * u64::from(self.plan.actual) / 1_000); // rounded down
        let actual = if random.chance(200) { estimate } else { drawn };
        let times = *random.pick(&[0, 1, 1, 1, 1, 1, 1, 2]);
        Some(Terms { actual, ttl: settle - settle / 8, after: random.below(settle), times })
    }

    fn node(&mut self, now: u64, rank: u32, nodes: usize) -> usize {
        let place = u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let shifted = |by: u64| (by % nodes as u64) as usize; // below `nodes`
        match self.plan.spread {
            Spread::Even => shifted(self.random.below(nodes as u64)),
            Spread::Sticky => shifted(place),
            Spread::One { node } => shifted(node.into()),
            Spread::Wander { stay } => {
                let turn = now.checked_div(stay.0).unwrap_or(0).wrapping_add(place);
                shifted(Random::stream(turn, "wander").bits())
            }
            Spread::Zipf { skew } => {
                let table = self.nodes.entry(nodes).or_insert_with(|| Popularity::new(nodes as u32, skew));
                shifted(place + u64::from(table.draw(&mut self.random)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Span;

    fn count(shape: Shape, rate: u64, seconds: u64) -> usize {
        let mut demand = Demand::new(&DemandPlan { rate, shape, ..DemandPlan::default() }, 3, 0);
        std::iter::from_fn(|| demand.next().filter(|at| *at < seconds * 1_000_000)).count()
    }

    #[test]
    fn every_shape_has_its_rate() {
        assert_eq!(count(Shape::Steady, 1_000, 10), 9_999);
        for (shape, wanted) in [
            (Shape::Poisson, 10_000),
            (Shape::OnOff { on: Span::millis(300), off: Span::millis(700) }, 3_000),
            (Shape::Diurnal { period: Span::secs(2) }, 10_000),
        ] {
            let seen = count(shape, 1_000, 10);
            assert!(seen.abs_diff(wanted) < wanted / 20, "{shape:?}: {seen}");
        }
    }

    #[test]
    fn another_rate_counts_later() {
        let plan = DemandPlan { rate: 1_000, later: Span::secs(4), later_rate: 100, ..DemandPlan::default() };
        let mut demand = Demand::new(&plan, 3, 0);
        let times: Vec<u64> = std::iter::from_fn(|| demand.next().filter(|at| *at < 10_000_000)).collect();
        let before = times.iter().filter(|at| **at < 4_000_000).count();
        assert!(before.abs_diff(4_000) < 200, "{before}");
        assert!((times.len() - before).abs_diff(600) < 80, "{} later", times.len() - before);
    }

    #[test]
    fn popularity_falls_by_its_exponent() {
        let mut demand = Demand::new(&DemandPlan { keys: 100, key_skew: 1_000, ..DemandPlan::default() }, 3, 0);
        let drawn: Vec<u32> = (0..50_000).map(|_| demand.draw(0, 4).rank).collect();
        let of = |rank| drawn.iter().filter(|one| **one == rank).count();
        assert!((of(0) as f64 / of(9) as f64 - 10.0).abs() < 1.5, "{} {}", of(0), of(9));
    }

    #[test]
    fn a_sticky_key_stays_and_a_wandering_one_moves() {
        let mut sticky = Demand::new(&DemandPlan { spread: Spread::Sticky, ..DemandPlan::default() }, 3, 0);
        let first = sticky.draw(0, 7).node;
        assert!((0..100).all(|at| sticky.draw(at * 1_000_000, 7).node == first));
        let spread = Spread::Wander { stay: Span::secs(1) };
        let mut wandering = Demand::new(&DemandPlan { spread, ..DemandPlan::default() }, 3, 0);
        let places: Vec<_> = (0..50).map(|at| wandering.draw(at * 500_000, 7).node).collect();
        assert!(places.chunks(2).all(|pair| pair[0] == pair[1]));
        assert!(places.iter().any(|place| *place != places[0]));
    }
}
