//! Large buckets that fill slowly, beside whatever else a plan has: keys that are asked for seldom, of which a node leases a trifle and
//! reports nothing, and keys of the same policy that are asked for so often that their buckets run low. Decides nothing of what must hold.

use crate::plan::{Demand, Expect, Plan, Policy, Spread};
use crate::random::Random;
use crate::span::Span;

/// Of a thousand plans that may have such a bucket, so many have one.
const SLOW: u64 = 130;

/// The same plan, some of the time with one more policy. A scene that expects figures has none, because they are of its own keys.
pub(super) fn with_slow_bucket(plan: Plan) -> Plan {
    let mut random = Random::stream(plan.seed, "swarm-slow-bucket");
    if !random.chance(SLOW) || plan.expect != Expect::default() {
        return plan;
    }
    let (mut policies, mut demand) = (plan.policies.clone(), plan.demand.clone());
    let seldom = Demand { policy: policies.len() as u32, ..seldom(&mut random) }; // a handful
    policies.push(Policy { limits: vec![limit(&mut random)], ..Policy::default() });
    if random.chance(500) {
        demand.push(hot(&mut random, plan.nodes, &seldom));
    }
    demand.push(seldom);
    Plan { policies, demand, ..plan }
}

/// A bucket that takes 24 s or more to fill. With the shortest of them, accounts of its tokens close after four to eight seconds, so that
/// a run sees what becomes of those.
fn limit(random: &mut Random) -> String {
    let count = *random.pick(&[300, 600, 1_000, 2_000, 5_000]);
    let seconds = *random.pick(&[24, 24, 25, 30, 60]);
    if random.chance(300) {
        format!("{count}/1m burst {}", count * seconds / 60)
    } else {
        format!("{count}/{seconds}s")
    }
}

/// Checks of many keys, some of them asked for more often than others.
fn seldom(random: &mut Random) -> Demand {
    Demand {
        rate: random.between(10, 60),
        keys: random.between(10, 60) as u32, // at most 60
        key_skew: *random.pick(&[0, 500, 1_000, 1_500]),
        spread: spread(random),
        cost: *random.pick(&[1, 1, 1, 2]),
        ..Demand::default()
    }
}

/// Checks of the first key or two, which take more than trickles in.
fn hot(random: &mut Random, nodes: u32, seldom: &Demand) -> Demand {
    Demand {
        rate: random.between(30, 150),
        keys: random.between(1, 2) as u32, // at most 2
        key_skew: 0,
        spread: if random.chance(300) {
            Spread::One { node: random.below(nodes.into()) as u32 }
        } else {
            spread(random)
        },
        cost: *random.pick(&[1, 4, 20]),
        ..seldom.clone()
    }
}

/// A key that one node is asked for has a larger trifle than one that all are asked for.
fn spread(random: &mut Random) -> Spread {
    match random.below(4) {
        0 => Spread::Even,
        1 | 2 => Spread::Sticky,
        _ => Spread::Wander { stay: Span::millis(random.between(200, 3_000)) },
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::gcra;
    use rationd::core::limit::Limit;
    use rationd::core::time::Micros;

    use super::*;
    use crate::swarm;

    /// Whether the last of a plan's policies is such a bucket.
    fn is_slow(policy: &Policy) -> bool {
        let limits: Vec<_> = policy.limits.iter().map(|limit| Limit::parse(limit).unwrap()).collect();
        matches!(limits[..], [limit] if gcra::depth(&limit) >= Micros::from_secs(24) && limit.capacity() >= 120)
    }

    #[test]
    fn about_one_plan_in_eight_has_a_large_bucket_that_fills_slowly() {
        for from in [1, swarm::LENT_FROM, swarm::ENTITLED_FROM] {
            let plans = (from..from + 800).map(swarm::plan);
            let some = plans.filter(|plan| plan.policies.iter().any(is_slow)).count();
            assert!((70..=130).contains(&some), "{some} of 800 from {from}");
        }
    }

    #[test]
    fn a_plan_that_gets_none_stays_as_it_is() {
        let plan = |seed| Plan { seed, ..Plan::default() };
        let same = (1..=100).filter(|seed| with_slow_bucket(plan(*seed)) == plan(*seed)).count();
        assert!((75..100).contains(&same), "{same} of 100");
        let expect = Expect { over: Some(0), ..Expect::default() };
        let scenes = (1..=100).map(|seed| Plan { expect, ..plan(seed) });
        assert!(scenes.clone().all(|scene| with_slow_bucket(scene.clone()) == scene));
    }
}
