//! The single changes that make a plan smaller. One that changes nothing is not tried.
//!
//! No two may undo each other, or a shrinking would go in circles: each change moves a value towards one simplest
//! value, and none moves it away.

use crate::plan::{Clocks, Demand, Expect, Fault, Network, OnStoreLoss, Plan, Redis, Shape, Spread, Way, What};
use crate::span::Span;

/// A change in place.
pub(super) type Change<T> = fn(&mut T);

/// Simpler values, each tried once a round.
pub(super) const SIMPLER: [Change<Plan>; 13] = [
    |plan| plan.calm = Span(0),
    |plan| plan.warm_up = Span(0),
    |plan| plan.expect = Expect::default(),
    |plan| plan.clocks = Clocks { drift_ppm: 0, offset: Span(0) },
    |plan| (plan.network.loss, plan.network.repeats) = (0, 0),
    |plan| plan.network = Network { calls: plan.network.calls, ..Network::default() },
    |plan| plan.zones.clear(),
    |plan| plan.redis.skew = Span(0),
    |plan| plan.redis = Redis { masters: plan.redis.masters, replica: plan.redis.replica, ..Redis::default() },
    |plan| plan.redis.masters = 1,
    |plan| plan.redis.replica = false,
    |plan| plan.daemon.confirm = false,
    |plan| plan.policies.iter_mut().for_each(|policy| policy.on_store_loss = OnStoreLoss::Share),
];

/// Smaller numbers, each tried as long as it helps.
pub(super) const HALVES: [Change<Plan>; 6] = [
    |plan| plan.nodes = half(plan.nodes),
    |plan| {
        halve(&mut plan.span);
        plan.span = plan.span.max(Span::millis(1));
        let span = plan.span;
        plan.faults.retain(|fault| fault.at < span);
        plan.faults.iter_mut().for_each(|fault| fault.lasts = fault.lasts.min(Span(span.0 - fault.at.0)));
    },
    |plan| halve(&mut plan.calm),
    |plan| plan.network.loss /= 2,    // rounded down
    |plan| plan.network.repeats /= 2, // rounded down
    |plan| plan.demand.iter_mut().for_each(|demand| demand.rate = demand.rate.div_ceil(2)),
];

/// Of one source of checks.
pub(super) const DEMAND: [Change<Demand>; 14] = [
    |demand| demand.spread = Spread::Even,
    |demand| demand.shape = Shape::Steady,
    |demand| demand.keys = 1,
    |demand| demand.keys = half(demand.keys),
    |demand| demand.key_skew = 0,
    |demand| demand.churn = Span(0),
    |demand| (demand.cost, demand.cost_from) = (1, 1),
    |demand| (demand.refunds, demand.peeks, demand.resets) = (0, 0, 0),
    |demand| demand.resets = 0,
    |demand| demand.holds = 0,
    |demand| demand.patience = Span(0),
    |demand| demand.until = Span(0),
    |demand| (demand.later, demand.later_rate) = (Span(0), 0),
    |demand| demand.rate = demand.rate.div_ceil(2),
];

/// Of one fault.
pub(super) const FAULT: [Change<Fault>; 2] = [
    |fault| match &mut fault.what {
        What::Cut { way, .. } => *way = Way::Both,
        What::Noise { repeats, .. } => *repeats = 0,
        What::Push { limits, .. } => limits.truncate(1),
        _ => {}
    },
    |fault| match &mut fault.what {
        What::Cut { nodes, .. } | What::Isolate { nodes, .. } | What::Build { nodes, .. } if nodes.len() > 1 => {
            nodes.truncate(nodes.len() / 2);
        }
        What::Slow { by, .. } | What::Jump { by, .. } | What::Set { by, .. } => halve(by),
        What::Noise { loss, .. } => *loss /= 2,
        _ => {}
    },
];

/// Halves in whole milliseconds where there are some; rounded down.
pub(super) fn halve(span: &mut Span) {
    let half = span.0 / 2;
    *span = Span(if half >= 1_000 { half / 1_000 * 1_000 } else { half });
}

/// Half, rounded down, at least one.
fn half(number: u32) -> u32 {
    (number / 2).max(1)
}
