//! The calm at the end: as long as it takes to judge that leases flow again and that limits are used, with no more checks than
//! that takes.

use rationd::core::limit::{Algorithm, Limit};

use super::traffic;
use crate::plan::{Demand, Expect, OnStoreLoss, Plan, Policy, Shape};
use crate::span::Span;

/// Windows that are longer are not waited for.
const JUDGED: u64 = 10_000_000;

/// For longer limits that are not aligned windows, only answers are judged.
const SHORT: u64 = 3_000_000;

/// The use of a limit can be judged on a key whose demand is a fifth above the limit. Chance makes windows uneven: with
/// a demand below this, in tenths of the limit, use is never judged, and with more, in most windows.
const LEAST: u64 = 6;
const PLENTY: u64 = 30;

/// A demand that never reaches its limit is reduced by this factor, because its answers are judged all the same.
const FEWER: u64 = 4;

/// Checks a second at least, as chance makes windows of few checks more uneven.
const FEWEST: u64 = 60;

/// A limit of which the use can be seen, and what it is asked for a second: half as much again.
pub(super) const PLAIN: &str = "20/500ms fixed";
const ASKED: u64 = 60;

/// How long the end of the calm must be watched.
const WATCHED: u64 = 2_500_000;

/// The same plan with a calm in which the use of a limit can be seen: where it can be seen of none of them, one more key is asked for
/// from the calm on. What a scene expects of its figures is of its own keys.
pub(super) fn with_use(plan: Plan) -> Plan {
    if plan.expect != Expect::default() || plan.policies.iter().any(|policy| is_seen(&plan, policy)) {
        return plan;
    }
    let begins = plan.longest_recovery().0 + 1_500_000;
    let calm = Span(plan.calm.0.max(begins + WATCHED));
    let (mut policies, mut demand) = (plan.policies.clone(), plan.demand.clone());
    let from = Span(plan.span.0 + begins);
    demand.push(Demand { policy: policies.len() as u32, rate: ASKED, keys: 1, from, ..Demand::default() }); // a handful
    policies.push(Policy { limits: vec![PLAIN.into()], ..Policy::default() });
    Plan { calm, policies, demand, ..plan }
}

/// Whether one can see that a policy's limits are used, or that its slots are. It cannot be seen where tokens are set
/// aside for nodes that a fault reaches, where each node may hold all tokens, and where windows are longer than the
/// calm.
fn is_seen(plan: &Plan, policy: &Policy) -> bool {
    let limits: Vec<_> = policy.limits.iter().filter_map(|text| Limit::parse(text).ok()).collect();
    let cost = plan.demand.iter().map(|demand| u64::from(demand.cost)).max().unwrap_or(1);
    let room = 4 * cost + 2 * u64::from(plan.nodes);
    let is_large = limits.iter().all(|limit| limit.capacity() > room);
    let is_short = traffic::longest_period(policy) <= SHORT;
    let is_slot = limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrent);
    let is_aside = policy.on_store_loss == OnStoreLoss::Entitled;
    is_slot || is_large && is_short && !is_aside && limits.len() == 1
}

/// The same plan with a calm that is long enough. In what is added to it checks are as many as are judged, because most of a run
/// would be calm otherwise, in which hardly anything goes wrong.
pub(super) fn lengthened(plan: Plan) -> Plan {
    // Until replicas are back, two seconds until leases flow again, and what is judged then.
    let judged = plan.policies.iter().map(judged).max().unwrap_or(0);
    let calm = Span(plan.longest_recovery().0 + 2_000_000 + judged + 500_000);
    if calm <= plan.calm {
        return plan;
    }
    let later = Span(plan.span.0 + plan.calm.0);
    let rate = |demand: &Demand| plan.policies.get(demand.policy as usize).map(|policy| enough(demand, policy));
    let thinned = |demand: &Demand| match rate(demand) {
        Some(rate) if rate < demand.rate => Demand { later, later_rate: rate, ..demand.clone() },
        _ => demand.clone(),
    };
    Plan { calm, demand: plan.demand.iter().map(thinned).collect(), ..plan }
}

/// How long it takes to judge a policy when leases flow again: answers come without shares after two of its longest periods, and
/// within three a window is whole, or three of a shape that has none are watched.
fn judged(policy: &Policy) -> u64 {
    let longest = traffic::longest_period(policy);
    let is_aligned = |text: &String| Limit::parse(text).is_ok_and(|limit| limit.algorithm == Algorithm::Fixed);
    match &policy.limits[..] {
        _ if longest > JUDGED => 0,
        [limit] if is_aligned(limit) => 3 * longest,
        _ if longest > SHORT => 2 * longest,
        _ => 3 * longest,
    }
}

/// Checks a second that are enough to judge a demand: of slots, which are taken for a while, all.
fn enough(demand: &Demand, policy: &Policy) -> u64 {
    let limits: Vec<_> = policy.limits.iter().filter_map(|text| Limit::parse(text).ok()).collect();
    if limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrent) {
        return demand.rate;
    }
    // Thousandths of tokens a second: what comes to a key, and what the hottest one is asked for.
    let comes = limits.iter().map(|limit| limit.count * 1_000_000_000 / limit.period.0).min().unwrap_or(0);
    let cost = u64::from(demand.cost_from.clamp(1, demand.cost.max(1)) + demand.cost.max(1)) / 2; // rounded down
    let on = match demand.shape {
        Shape::OnOff { on, off } => on.0 * 1_000 / (on.0 + off.0).max(1),
        Shape::Steady | Shape::Poisson | Shape::Diurnal { .. } => 1_000,
    };
    let asked = demand.rate * cost.max(1) * hottest(demand) * on / 1_000;
    let enough = match () {
        () if asked * 10 > comes * PLENTY => (demand.rate * comes * PLENTY).div_ceil(asked * 10),
        () if asked * 10 < comes * LEAST => demand.rate / FEWER,
        () => demand.rate,
    };
    enough.max(FEWEST)
}

/// Of a thousand checks, those of the hottest key.
fn hottest(demand: &Demand) -> u64 {
    let weight = |rank: u32| f64::from(rank + 1).powf(-f64::from(demand.key_skew) / 1e3);
    (1e3 / (0..demand.keys.max(1)).map(weight).sum::<f64>()).ceil() as u64 // at most 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(limit: &str, rate: u64, keys: u32) -> Plan {
        Plan {
            span: Span::secs(3),
            calm: Span::secs(4),
            policies: vec![Policy { limits: vec![limit.into()], ..Policy::default() }],
            demand: vec![Demand { rate, keys, ..Demand::default() }],
            ..Plan::default()
        }
    }

    #[test]
    fn three_windows_are_waited_for_and_asked_for_as_much_as_shows_their_use() {
        let plan = lengthened(plan("100/5s fixed", 1_000, 2));
        assert!(plan.calm >= Span::secs(17) && plan.calm < Span::secs(25), "{:?}", plan.calm);
        // 20 a second come to each of two keys.
        assert_eq!((plan.demand[0].later, plan.demand[0].later_rate), (Span::secs(7), 120));
    }

    #[test]
    fn what_never_uses_its_limit_is_asked_for_less() {
        let seldom = lengthened(plan("100/5s fixed", 1_000, 200));
        assert_eq!(seldom.demand[0].later_rate, 250);
        let hot = Demand { key_skew: 1_500, ..plan("100/5s fixed", 1_000, 200).demand[0].clone() };
        let later = lengthened(Plan { demand: vec![hot], ..plan("100/5s fixed", 1_000, 200) }).demand[0].later_rate;
        assert!((120..220).contains(&later), "the hottest key has two checks of five: {later}");
    }

    #[test]
    fn one_more_key_is_asked_for_where_the_use_of_none_can_be_seen() {
        for limit in ["100/1s fixed", "9/1s concurrent", "100/1s burst 50", "100/2s sliding"] {
            assert_eq!(with_use(plan(limit, 100, 1)), plan(limit, 100, 1), "{limit}");
        }
        for limit in ["100/1h fixed", "5/1s sliding", "100/1s burst 5"] {
            let seen = with_use(plan(limit, 100, 1));
            assert_eq!((seen.demand.len(), &seen.policies[1].limits[0][..]), (2, PLAIN), "{limit}");
            assert!(seen.span.0 + seen.calm.0 >= seen.demand[1].from.0 + WATCHED, "{limit}");
        }
        let aside = Policy { on_store_loss: OnStoreLoss::Entitled, ..plan("100/1s fixed", 100, 1).policies[0].clone() };
        assert_eq!(with_use(Plan { policies: vec![aside], ..plan("100/1s fixed", 100, 1) }).demand.len(), 2);
        let expected = Plan { expect: Expect { over: Some(0), ..Expect::default() }, ..plan("100/1h fixed", 100, 1) };
        assert_eq!(with_use(expected.clone()), expected, "a scene expects figures of its own keys");
    }

    #[test]
    fn what_is_just_enough_stays_and_so_does_a_calm_that_is_long_enough() {
        let just = plan("100/5s fixed", 35, 1);
        assert_eq!(lengthened(just.clone()).demand, just.demand);
        let short = Plan { calm: Span::secs(7), ..plan("100/10ms fixed", 100_000, 1) };
        assert_eq!(lengthened(short.clone()), short);
        let slots = plan("9/1s concurrent", 1_000, 2);
        assert_eq!(lengthened(slots.clone()).demand, slots.demand);
    }
}
