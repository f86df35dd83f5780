//! The policies and the demand of a run of the swarm. They are drawn together, so that limits matter: the demand is
//! from a fifth of what a limit allows up to ten times as much.
//!
//! Cold keys cost a call for each check, so there is less demand for them.

use rationd::core::limit::Limit;

use crate::plan::{Demand, OnStoreLoss, Policy, Shape, Spread};
use crate::random::Random;
use crate::span::Span;

/// Periods of limits in milliseconds.
const PERIODS: [u64; 8] = [200, 250, 400, 500, 1_000, 1_500, 2_000, 3_000];

/// Runs with holds, of a thousand.
const HOLDS: u64 = 200;

/// Runs with a concurrent limit, of a thousand.
const FLIGHTS: u64 = 150;

/// Runs in which several keys are asked at once, of a thousand.
const SEVERAL: u64 = 150;

/// Runs whose checks cost anything up to a third of a limit, of a thousand.
const COSTLY: u64 = 120;

/// How much of a limit is asked for, in thousandths.
const PRESSURES: [u64; 8] = [200, 500, 900, 1_000, 1_200, 2_000, 5_000, 10_000];

/// Policies, and one demand or two for each. `length` of the run in microseconds.
pub(super) fn draw(seed: u64, length: u64, nodes: u32) -> (Vec<Policy>, Vec<Demand>) {
    let mut random = Random::stream(seed, "swarm-demand");
    let mut limits = Random::stream(seed, "swarm-limits");
    // The smaller of two: most runs are short.
    let checks = random.between(2_000, 10_000).min(random.between(2_000, 10_000));
    let count = *random.pick(&[1, 1, 1, 2, 2, 3]);
    let rate = checks * 1_000_000 / length / count;
    let mut policies = Vec::new();
    let mut demands = Vec::new();
    for policy in 0..count as u32 {
        let mut demand = demand(&mut random, rate, nodes);
        demand.policy = policy;
        policies.push(draw_policy(&mut limits, &demand));
        if random.chance(200) {
            demand.rate = demand.rate.div_ceil(2);
            demands.push(Demand { spread: spread(&mut random, nodes), shape: shape(&mut random), ..demand.clone() });
        }
        demands.push(demand);
    }
    draw_holds(seed, &mut demands);
    draw_costs(seed, &policies, &mut demands);
    draw_flights(seed, &mut policies, &mut demands, nodes);
    draw_several(seed, &mut demands);
    (policies, demands)
}

/// Some of the runs without holds ask for several keys at once.
fn draw_several(seed: u64, demands: &mut [Demand]) {
    let mut random = Random::stream(seed, "swarm-several");
    let is_on = random.chance(SEVERAL) && demands.iter().all(|demand| demand.holds == 0);
    for demand in demands.iter_mut().filter(|_| is_on) {
        demand.several = *random.pick(&[0, 30, 100, 300]);
    }
}

/// Some of the runs have a concurrent limit beside the others.
fn draw_flights(seed: u64, policies: &mut Vec<Policy>, demands: &mut Vec<Demand>, nodes: u32) {
    let mut random = Random::stream(seed, "swarm-flights");
    if !random.chance(FLIGHTS) {
        return;
    }
    let (policy, demand) = flights(&mut random, nodes);
    demands.push(Demand { policy: policies.len() as u32, ..demand }); // a handful
    policies.push(policy);
}

/// A concurrent limit, and who takes its slots: from a tenth of them up to eight times as many as there are.
pub(super) fn flights(random: &mut Random, nodes: u32) -> (Policy, Demand) {
    let count = *random.pick(&[random.clone().between(1, 4), 10, random.clone().between(5, 60)]);
    let stays = random.between(20, 1_500);
    let cost = if random.chance(250) { random.between(2, 4).min(count) as u32 } else { 1 }; // at most 4
    let pressure = *random.pick(&[100, 500, 900, 1_200, 3_000, 8_000]);
    // A client stays for about half of the longest.
    let rate = (count * pressure * 2 / stays / u64::from(cost + 1) * 2).clamp(5, 250);
    let period = *random.pick(&[stays / 2 + 50, 2 * stays, 3_000]);
    let on_store_loss = *random.pick(&[OnStoreLoss::Share, OnStoreLoss::Share, OnStoreLoss::Allow, OnStoreLoss::Deny]);
    let policy = Policy { limits: vec![format!("{count}/{period}ms concurrent")], on_store_loss };
    let demand = Demand {
        rate,
        shape: shape(random),
        keys: *random.pick(&[1, 1, 2, 5]),
        spread: spread(random, nodes),
        cost,
        peeks: *random.pick(&[0, 0, 100]),
        stays: Span::millis(stays),
        drops: *random.pick(&[0, 100, 400]),
        ..Demand::default()
    };
    (policy, demand)
}

/// In some of the runs costs are a large part of a limit, and as many tokens are asked for as otherwise.
fn draw_costs(seed: u64, policies: &[Policy], demands: &mut [Demand]) {
    let mut random = Random::stream(seed, "swarm-costs");
    if !random.chance(COSTLY) {
        return;
    }
    for demand in demands {
        let limits = policies[demand.policy as usize].limits.iter().filter_map(|text| Limit::parse(text).ok());
        let smallest = limits.map(|limit| limit.capacity()).min().unwrap_or(1);
        let cost = u32::try_from(smallest / random.between(3, 12)).unwrap_or(u32::MAX);
        if cost > demand.cost {
            demand.rate = (demand.rate * u64::from(demand.cost + 1) / u64::from(cost + 1)).max(20);
            demand.cost = cost;
        }
    }
}

/// Some of the runs have holds. Settling a hold costs requests, too, so the demand is reduced accordingly.
fn draw_holds(seed: u64, demands: &mut [Demand]) {
    let mut random = Random::stream(seed, "swarm-holds");
    if !random.chance(HOLDS) {
        return;
    }
    for demand in demands {
        demand.holds = random.between(50, 400) as u32; // at most 400
        demand.settle = Span::millis(*random.pick(&[30, 150, 500, 1_500]));
        demand.actual = *random.pick(&[500, 1_000, 2_000]);
        demand.cost = demand.cost.max(random.between(1, 6) as u32); // at most 6
        demand.rate -= demand.rate * u64::from(demand.holds) / 1_000;
    }
}

/// The longest period of a policy in microseconds.
pub(super) fn longest_period(policy: &Policy) -> u64 {
    let limits = policy.limits.iter().filter_map(|text| Limit::parse(text).ok());
    limits.map(|limit| limit.period.0).max().unwrap_or(0)
}

fn demand(random: &mut Random, rate: u64, nodes: u32) -> Demand {
    let has_many = random.chance(200);
    let keys = if has_many { random.between(8, 60) } else { random.between(1, 5) } as u32; // at most 60
    let churn = Span::millis(if random.chance(150) { random.between(300, 3_000) } else { 0 });
    // Cold keys cost a script for each check.
    let is_cold = has_many || churn > Span(0);
    let mut sometimes = |share, most| if random.chance(share) { random.between(1, most) as u32 } else { 0 };
    let [refunds, peeks, resets] = [sometimes(200, 150), sometimes(200, 150), sometimes(120, 5)];
    Demand {
        rate: if is_cold { rate.div_ceil(3) } else { rate }.max(20),
        shape: shape(random),
        keys,
        key_skew: *random.pick(&[0, 0, 500, 1_000, 1_500]),
        churn,
        spread: spread(random, nodes),
        cost: if random.chance(250) { random.between(2, 6) as u32 } else { 1 }, // at most 6
        refunds,
        peeks,
        resets,
        patience: Span::millis(*random.pick(&[0, 0, 0, 5, 30])),
        ..Demand::default()
    }
}

fn shape(random: &mut Random) -> Shape {
    let (on, off) = (Span::millis(random.between(50, 800)), Span::millis(random.between(50, 800)));
    match random.below(6) {
        0 => Shape::Steady,
        1..=3 => Shape::Poisson,
        4 => Shape::OnOff { on, off },
        _ => Shape::Diurnal { period: Span::millis(random.between(1_000, 6_000)) },
    }
}

fn spread(random: &mut Random, nodes: u32) -> Spread {
    match random.below(7) {
        0..=2 => Spread::Even,
        3 => Spread::Sticky,
        4 => Spread::Zipf { skew: random.between(500, 2_000) as u32 }, // at most 2000
        5 => Spread::One { node: random.below(nodes.into()) as u32 },  // below `nodes`
        _ => Spread::Wander { stay: Span::millis(random.between(20, 1_000)) },
    }
}

fn draw_policy(random: &mut Random, demand: &Demand) -> Policy {
    let tokens = demand.rate * u64::from(demand.cost + 1) / 2 / u64::from(demand.keys);
    let count = *random.pick(&[1, 1, 1, 1, 2, 2, 3]);
    let limits = (0..count).map(|_| draw_limit(random, tokens)).collect();
    let on_store_loss = *random.pick(&[
        OnStoreLoss::Share,
        OnStoreLoss::Share,
        OnStoreLoss::Share,
        OnStoreLoss::Allow,
        OnStoreLoss::Deny,
    ]);
    Policy { limits, on_store_loss }
}

/// A limit for a key that is asked for so many tokens a second.
fn draw_limit(random: &mut Random, tokens: u64) -> String {
    let (period, pressure) = (*random.pick(&PERIODS), *random.pick(&PRESSURES));
    let fitting = (tokens * period / pressure).max(1); // rounded down
    let small = random.between(1, 6);
    let count = if random.chance(150) { small } else { fitting };
    let burst = *random.pick(&[count, count, 1, count.div_ceil(4), 2 * count]);
    match random.below(4) {
        0 => format!("{count}/{period}ms burst {burst}"),
        1 => format!("{count}/{period}ms fixed"),
        2 => format!("{count}/{period}ms fixed from-first"),
        _ => format!("{count}/{period}ms sliding"),
    }
}
