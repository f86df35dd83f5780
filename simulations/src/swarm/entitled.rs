//! Runs in which tokens are set aside for nodes that may lose the store: what other seeds play, under limits of which that is
//! possible; and what takes minutes to come about. Decides nothing of what must hold.

use rationd::core::limit::{Algorithm, Limit};

use super::{scenes, traffic};
use crate::plan::{Clocks, Demand, Expect, Fault, Gossip, OnStoreLoss, Plan, Policy, Spread, Way, What};
use crate::random::Random;
use crate::span::Span;

/// From this seed on all do.
pub(super) const FROM: u64 = 20_000_000_000_000;

/// One run in so many is about situations that take minutes.
const EVERY: u64 = 10;

/// Longer windows are not entitled.
const LONGEST: u64 = 60_000_000;

/// The plan of the seed with this number among those from [`FROM`] on; `plan` is what the seed would play otherwise.
pub(super) fn draw(seed: u64, number: u64, plan: Plan) -> Plan {
    let mut random = Random::stream(seed, "swarm-entitled");
    match number % EVERY {
        5 => return lapsing(&mut random, seed),
        7 | 8 => return of_slots(&mut random, seed, plan),
        _ => {}
    }
    let opened = Random::stream(seed, "swarm-entitled-opened");
    with_slots(change_with(seed, Plan { name: format!("swarm-{seed}"), ..plan }, Some(opened)))
}

/// Most concurrent limits of a plan become entitled.
fn with_slots(mut plan: Plan) -> Plan {
    let mut random = Random::stream(plan.seed, "swarm-entitled-slots");
    for policy in plan.policies.iter_mut().filter(|policy| algorithm(&policy.limits) == Some(Algorithm::Concurrent)) {
        if random.chance(850) {
            policy.on_store_loss = OnStoreLoss::Entitled;
        }
    }
    plan
}

/// Clients take slots while nodes lose the store or die: in a plan that has others beside them, in a scene, or for minutes.
fn of_slots(random: &mut Random, seed: u64, plan: Plan) -> Plan {
    let scene = match random.below(8) {
        0 => return with_slots(lapsing_slots(random, seed)),
        1 | 2 => scenes::slots(random, seed),
        3 => scenes::unheard(random, seed),
        _ => {
            let (policy, demand) = traffic::flights(random, plan.nodes);
            let of = plan.policies.len() as u32; // a handful
            let (mut policies, mut demands) = (plan.policies, plan.demand);
            policies.push(policy);
            demands.push(Demand { policy: of, ..demand });
            Plan { policies, demand: demands, ..plan }
        }
    };
    let about = format!("What the swarm makes of seed {seed}: slots.");
    let clocks = Clocks { drift_ppm: *random.pick(&[20, 100, 190]), ..scene.clocks };
    let calm = scene.calm.max(Span::secs(4));
    with_slots(change(seed, Plan { name: format!("swarm-{seed}"), about, clocks, calm, ..scene }))
}

/// The same plan with tokens set aside, of windows that are aligned or slide, and of buckets.
pub(super) fn change(seed: u64, plan: Plan) -> Plan {
    change_with(seed, plan, None)
}

/// The same, also of windows that open with the first request, if `opened` says so.
fn change_with(seed: u64, plan: Plan, mut opened: Option<Random>) -> Plan {
    let mut random = Random::stream(seed, "swarm-entitled");
    let mut buckets = Random::stream(seed, "swarm-entitled-buckets");
    let mut sliding = Random::stream(seed, "swarm-entitled-sliding");
    // The plan's expectations are dropped, because tokens that are set aside for nodes which do not call are not used.
    let mut plan = Plan { seed, expect: Expect::default(), ..plan };
    plan.about = format!("{} With entitlements.", plan.about);
    for policy in &mut plan.policies {
        // A policy with several limits stays as it is.
        let kind = kind(&mut buckets, &mut sliding, opened.as_mut(), &policy.limits);
        if random.chance(850) && set(&mut policy.limits, kind) {
            policy.on_store_loss = OnStoreLoss::Entitled;
        }
    }
    let of = plan.policies.len();
    for fault in &mut plan.faults {
        if let What::Push { policy, limits } = &mut fault.what
            && let Policy { limits: now, on_store_loss: OnStoreLoss::Entitled } = &plan.policies[*policy as usize % of]
        {
            set(limits, algorithm(now).unwrap_or(Algorithm::Fixed));
        }
    }
    let cuts = random.chance(700);
    if cuts && plan.nodes > 1 {
        cut(&mut random, &mut plan);
    }
    plan
}

fn algorithm(limits: &[String]) -> Option<Algorithm> {
    limits.first().and_then(|text| Limit::parse(text).ok()).map(|limit| limit.algorithm)
}

/// Most buckets stay buckets, most sliding windows slide, and most windows from the first request stay so; some other limits become some.
/// The rest are fixed windows.
fn kind(buckets: &mut Random, sliding: &mut Random, opened: Option<&mut Random>, limits: &[String]) -> Algorithm {
    let most = |kind: Algorithm, others: u64| if algorithm(limits) == Some(kind) { 800 } else { others };
    let is_bucket = buckets.chance(most(Algorithm::Gcra, 150));
    let is_sliding = sliding.chance(most(Algorithm::Sliding, 150));
    let is_opened = opened.is_some_and(|opened| opened.chance(most(Algorithm::FixedFromFirst, 250)));
    match () {
        () if is_opened => Algorithm::FixedFromFirst,
        () if is_bucket => Algorithm::Gcra,
        () if is_sliding => Algorithm::Sliding,
        () => Algorithm::Fixed,
    }
}

/// Makes one limit of that kind of them, if they are none of slots.
fn set(limits: &mut Vec<String>, kind: Algorithm) -> bool {
    let first = limits.first().and_then(|text| Limit::parse(text).ok());
    let Some(limit) = first.filter(|limit| limit.algorithm != Algorithm::Concurrent) else { return false };
    if kind == Algorithm::Gcra {
        let (count, period) = (limit.count.min(1 << 20), (limit.period.0 / 1_000).max(1));
        *limits = vec![format!("{count}/{period}ms burst {}", limit.burst.clamp(1, 1 << 20))];
        return Limit::parse(&limits[0]).is_ok();
    }
    let period = limit.period.0.clamp(20_000, LONGEST) / 1_000;
    let name = match kind {
        Algorithm::Sliding => "sliding",
        Algorithm::FixedFromFirst => "fixed from-first",
        _ => "fixed",
    };
    *limits = vec![format!("{}/{period}ms {name}", limit.count.min(1 << 20))];
    true
}

/// Some of the nodes lose the store, in one way or another.
fn cut(random: &mut Random, plan: &mut Plan) {
    let span = plan.span.0;
    for _ in 0..random.between(1, 3) {
        let some = (0..plan.nodes).filter(|_| random.chance(500)).collect::<Vec<_>>();
        let nodes = if some.is_empty() { vec![0] } else { some };
        let at = random.between(span / 10, span * 8 / 10);
        let lasts = random.between(50_000, (span - at).max(100_000));
        let way = *random.pick(&[Way::Both, Way::Both, Way::ToRedis, Way::FromRedis]);
        plan.faults.push(Fault {
            at: Span(at),
            lasts: Span(lasts),
            what: What::Cut { nodes, masters: Vec::new(), way },
        });
    }
    plan.faults.sort_by_key(|fault| fault.at);
}

/// Half of the nodes are cut off for longer than what is set aside for them lasts, while the others ask for all there is.
fn lapsing(random: &mut Random, seed: u64) -> Plan {
    let (nodes, count) = (random.between(2, 4), random.between(10, 30));
    let at = random.between(3_000, 300_000);
    let cut: Vec<_> = (0..nodes as u32 / 2).collect(); // a few
    let lasts = random.between(610_000, 660_000);
    let period = random.between(2, 9);
    let is_bucket = Random::stream(seed, "swarm-entitled-buckets").chance(500);
    let is_sliding = Random::stream(seed, "swarm-entitled-sliding").chance(500);
    let limit = match is_bucket {
        true => format!("{count}/{period}s burst {count}"),
        false if Random::stream(seed, "swarm-entitled-opened").chance(300) => {
            format!("{count}/{period}s fixed from-first")
        }
        false => format!("{count}/{period}s {}", if is_sliding { "sliding" } else { "fixed" }),
    };
    Plan {
        seed,
        name: format!("swarm-{seed}"),
        about: format!("What the swarm makes of seed {seed}: lapsing."),
        span: Span::millis(at + lasts),
        nodes: nodes as u32, // a few
        gossip: random.chance(500).then(Gossip::default),
        policies: vec![Policy { limits: vec![limit], on_store_loss: OnStoreLoss::Entitled }],
        demand: vec![Demand { rate: random.between(4, 12), spread: Spread::Even, ..Demand::default() }],
        faults: vec![Fault {
            at: Span::millis(at),
            lasts: Span::millis(lasts),
            what: What::Cut { nodes: cut, masters: Vec::new(), way: Way::Both },
        }],
        ..Plan::default()
    }
}

/// The same of slots: the lease of half of the nodes ends while they are cut off, and clients hold slots to the end of their time.
fn lapsing_slots(random: &mut Random, seed: u64) -> Plan {
    let (nodes, count) = (random.between(2, 4) as u32, random.between(4, 20)); // a few
    let (at, lasts) = (random.between(3_000, 30_000), random.between(610_000, 660_000));
    let period = *random.pick(&[3_000, 20_000, 60_000]);
    let stays = random.between(period / 3, period * 2);
    let pressure = *random.pick(&[500, 1_500, 3_000]);
    Plan {
        seed,
        name: format!("swarm-{seed}"),
        about: format!("What the swarm makes of seed {seed}: lapsing slots."),
        span: Span::millis(at + lasts),
        nodes,
        clocks: Clocks { drift_ppm: *random.pick(&[20, 100, 190]), ..Clocks::default() },
        gossip: random.chance(500).then(Gossip::default),
        policies: vec![Policy { limits: vec![format!("{count}/{period}ms concurrent")], ..Policy::default() }],
        demand: vec![Demand {
            rate: (count * 2 * pressure / stays).clamp(1, 40),
            stays: Span::millis(stays),
            drops: *random.pick(&[0, 100]),
            spread: Spread::Even,
            ..Demand::default()
        }],
        faults: vec![Fault {
            at: Span::millis(at),
            lasts: Span::millis(lasts),
            what: What::Cut { nodes: (0..nodes / 2).collect(), masters: Vec::new(), way: Way::Both },
        }],
        ..Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swarm;

    #[test]
    fn most_policies_are_entitled_and_all_limits_are_limits() {
        let (mut entitled, mut all, mut lapse, mut slots) = (0, 0, 0, 0);
        for seed in FROM..FROM + 100 {
            let plan = swarm::plan(seed);
            assert!(crate::scenario::check(&plan).is_ok() && plan.seed == seed, "{plan:?}");
            lapse += u64::from(plan.about.ends_with("lapsing."));
            slots += u64::from(plan.about.ends_with("lapsing slots."));
            all += plan.policies.iter().filter(|policy| policy.limits[0] != crate::swarm::calm::PLAIN).count();
            entitled += plan.policies.iter().filter(|policy| policy.on_store_loss == OnStoreLoss::Entitled).count();
        }
        assert!(
            entitled * 10 > all * 7 && entitled < all && lapse == 10 && slots > 1,
            "{entitled} of {all}, {lapse}, {slots}"
        );
    }
}
