//! The swarm: a seed expands to a whole configuration, small enough for thousands of runs.
//!
//! Swarm testing (Groce et al., 2012): first a subset of the kinds of faults is drawn, then their details, because runs
//! with a bit of everything hide what single faults show. Every kind draws from a stream of its own, so that leaving
//! one out does not change the others. About a tenth of the runs have no faults. Every second seed plays a scene
//! instead (`scenes.rs`), a situation that hardly comes about by chance. Decides nothing of what must hold: the
//! checkers do.

mod calm;
mod entitled;
mod faults;
pub mod membership;
mod scenes;
mod slow;
mod traffic;

use std::ops::RangeInclusive;

use self::faults::Scene;
use self::membership::{DEAD_MS, JOIN_MS};
use crate::plan::{Clocks, Daemon, Expect, Gossip, Network, Plan, Redis};
use crate::random::Random;
use crate::span::Span;

/// Runs without any fault, of a thousand.
const QUIET: u64 = 100;

/// A table of fewer keys belongs to one shard.
const FEW_KEYS: u32 = 1_000;

/// From this seed on every second seed plays peers that lend to each other, and the others play what they would play
/// otherwise.
pub const LENT_FROM: u64 = scenes::LENT_FROM;

/// The number of runs with entitlements in a thousand of all other seeds.
const ENTITLED: u64 = 100;

/// From this seed on tokens are set aside for nodes that may lose the store, in all runs.
pub const ENTITLED_FROM: u64 = entitled::FROM;

/// The configuration of a seed.
#[must_use]
pub fn plan(seed: u64) -> Plan {
    let plan = match seed.checked_sub(ENTITLED_FROM) {
        Some(number) => entitled::draw(seed, number, scenes::draw(number).unwrap_or_else(|| freely(number))),
        None => {
            let plan = scenes::draw(seed).unwrap_or_else(|| freely(seed));
            // Hard scenes keep their own limits, because shares and several limits are what they are about.
            let is_entitled = Random::stream(seed, "swarm-is-entitled").chance(ENTITLED) && !scenes::is_hard(seed);
            if is_entitled { entitled::change(seed, plan) } else { plan }
        }
    };
    let shards = shards(&mut Random::stream(seed, "swarm-shards"), &plan.daemon);
    // When a replica stalls, answers are late and unconfirmed, which costs calls: peers do not wait for them, and
    // owners lease little. So replicas do not stall in scenes that bound the number of calls.
    let stalls_of_scene = plan.expect.calls.is_some().then_some(plan.redis.lag_stalls);
    let varied = varying(&mut Random::stream(seed, "swarm-redis-varies"), plan.redis);
    let redis = Redis { lag_stalls: stalls_of_scene.unwrap_or(varied.lag_stalls), ..varied };
    // A scene's bound on late tokens assumes that answers do not wait for stalled replicas.
    let over = plan.expect.over.filter(|over| *over == 0 || redis.lag_stalls.0 == 0);
    let expect = Expect { over, ..plan.expect };
    let plan = Plan { daemon: Daemon { shards, ..plan.daemon }, redis, expect, ..plan };
    // A table of a few keys has no room for those of one more policy.
    let plan = if plan.daemon.max_keys < FEW_KEYS { plan } else { slow::with_slow_bucket(plan) };
    calm::with_use(calm::lengthened(plan))
}

/// In a fifth of the runs the lag of replicas varies, and in a fifth the cost of scripts.
fn varying(random: &mut Random, redis: Redis) -> Redis {
    let (stalls, script_cost_varies) = (random.chance(200), random.chance(200));
    let longest = Span::millis(random.between(1, 250));
    let lag_stalls = if stalls && redis.replica { longest } else { redis.lag_stalls };
    Redis { lag_stalls, script_cost_varies, ..redis }
}

/// Draws a plan without a scene.
fn freely(seed: u64) -> Plan {
    let stream = |name| Random::stream(seed, name);
    let mut random = stream("swarm-fleet");
    let span = Span::millis(random.between(2_000, 6_000));
    let calm = Span::millis(random.between(4_000, 6_000));
    let nodes = random.between(2, 12) as u32; // at most 12
    let redis = redis(&mut stream("swarm-redis"));
    let (policies, demand) = traffic::draw(seed, span.0 + calm.0, nodes);
    let is_quiet = stream("swarm-quiet").chance(QUIET);
    let mut network = network(&mut stream("swarm-network"));
    let gossip = gossip(&mut stream("swarm-gossip"));
    let scene = Scene { seed, span, nodes, redis: &redis, gossip, policies: &policies };
    let faults = if is_quiet { Vec::new() } else { faults::draw(&scene) };
    if is_quiet {
        (network.loss, network.repeats) = (0, 0);
    }
    Plan {
        name: format!("swarm-{seed}"),
        about: format!("What the swarm makes of seed {seed}."),
        seed,
        span,
        calm,
        nodes,
        daemon: daemon(&mut stream("swarm-daemon")),
        clocks: clocks(&mut stream("swarm-clocks")),
        network,
        redis,
        gossip,
        policies,
        demand,
        faults,
        ..Plan::default()
    }
}

fn daemon(random: &mut Random) -> Daemon {
    let timeout = *random.pick(&[50, 50, 50, 25, 100]);
    let max_keys = if random.chance(100) { random.between(1, 12) as u32 } else { 1_000 }; // at most 12
    Daemon { timeout: Span::millis(timeout), max_keys, confirm: random.chance(600), ..Daemon::default() }
}

/// In two runs of five nodes have several shards. A table of a few keys is not divided, because no shard would have
/// room for any.
fn shards(random: &mut Random, daemon: &Daemon) -> u32 {
    let drawn = *random.pick(&[1, 1, 1, 2, 5]);
    if daemon.max_keys < FEW_KEYS { 1 } else { drawn }
}

fn clocks(random: &mut Random) -> Clocks {
    let drift_ppm = *random.pick(&[0, 20, 100, 190]);
    Clocks { drift_ppm, offset: Span::millis(*random.pick(&[0, 1, 50, 1_000, 60_000, 3_600_000])) }
}

fn network(random: &mut Random) -> Network {
    let latency = Span(*random.pick(&[50, 150, 250, 500, 1_000, 3_000]));
    let jitter = Span(*random.pick(&[0, 20, 100, 500, 2_000]));
    let (is_noisy, is_bad) = (random.chance(300), random.chance(300));
    let (loss, repeats) = (random.between(1, 20) as u32, random.between(0, 50) as u32); // small
    match (is_noisy, is_bad) {
        (false, _) => Network { latency, jitter, loss: 0, repeats: 0, ..Network::default() },
        (true, false) => Network { latency, jitter, loss, repeats, ..Network::default() },
        (true, true) => Network { latency, jitter, loss: loss * 15, repeats: repeats * 10, ..Network::default() },
    }
}

/// Most fleets gossip.
fn gossip(random: &mut Random) -> Option<Gossip> {
    let tick = Span::millis(*random.pick(&[50, 200, 200, 500]));
    let millis =
        |random: &mut Random, drawn: RangeInclusive<u64>| Span::millis(random.between(*drawn.start(), *drawn.end()));
    let (join, dead) = (millis(random, JOIN_MS), millis(random, DEAD_MS));
    random.chance(750).then_some(Gossip { tick, join, dead })
}

fn redis(random: &mut Random) -> Redis {
    Redis {
        masters: random.between(1, 4) as u32, // at most 4
        replica: random.chance(750),
        lag: Span(*random.pick(&[100, 1_000, 10_000, 50_000])),
        failover: Span::millis(random.between(200, 2_000)),
        alone: Span::millis(random.between(100, 2_000)),
        skew: Span::millis(*random.pick(&[0, 0, 2, 100, 5_000])),
        script_cost: Span(random.between(5, 30)),
        replica_skew: Span::millis(*random.pick(&[0, 0, 0, 2, 1_000])),
        stalls: *random.pick(&[0, 0, 0, 1, 10]),
        ..Redis::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rationd::core::limit::{Algorithm, Limit};
    use rationd::core::time::Micros;

    use super::*;
    use crate::plan::{Calls, Demand, OnStoreLoss, Policy, What};

    const SEEDS: u64 = 300;

    /// How many of the plans that are drawn freely have each kind of a thing.
    fn census(kinds: impl Fn(&Plan) -> Vec<String>) -> BTreeMap<String, u64> {
        let mut census = BTreeMap::new();
        for seed in 1..=SEEDS {
            let mut seen = kinds(&freely(seed));
            seen.sort_unstable();
            seen.dedup();
            seen.into_iter().for_each(|kind| *census.entry(kind).or_default() += 1);
        }
        census
    }

    /// The `kind` of something in its written form.
    fn kind(value: &impl serde::Serialize) -> String {
        serde_json::to_value(value).unwrap()["kind"].as_str().unwrap().to_owned()
    }

    #[test]
    fn same_seed_is_the_same_plan() {
        assert_eq!(plan(5), plan(5));
        assert_ne!(plan(5), plan(6));
    }

    #[test]
    fn every_fault_comes_up_and_is_off_in_most_runs() {
        let census = census(|plan| plan.faults.iter().map(|fault| kind(&fault.what)).collect());
        let names: BTreeSet<_> = faults::CLASSES.iter().map(|class| class.0.to_owned()).collect();
        assert_eq!(census.keys().cloned().collect::<BTreeSet<_>>(), names);
        for (name, runs) in census {
            assert!((10..SEEDS * 6 / 10).contains(&runs), "{name} is in {runs} of {SEEDS} runs");
        }
    }

    #[test]
    fn every_algorithm_shape_and_spread_comes_up() {
        let seen = census(|plan| plan.demand.iter().map(|demand| kind(&demand.shape)).collect());
        assert_eq!(seen.len(), 4, "{seen:?}");
        let seen = census(|plan| plan.demand.iter().map(|demand| kind(&demand.spread)).collect());
        assert_eq!(seen.len(), 5, "{seen:?}");
        let algorithm = |text: &String| format!("{:?}", Limit::parse(text).unwrap().algorithm);
        let seen = census(|plan| plan.policies.iter().flat_map(|policy| &policy.limits).map(algorithm).collect());
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["Concurrent", "Fixed", "FixedFromFirst", "Gcra", "Sliding"]);
    }

    #[test]
    fn nodes_of_some_runs_have_several_shards() {
        let several = (1..=SEEDS).filter(|seed| plan(*seed).daemon.shards > 1).count() as u64;
        assert!((SEEDS / 4..SEEDS / 2).contains(&several), "{several} of {SEEDS}");
    }

    /// Whether a plan has something.
    type Has = fn(&Plan) -> bool;

    /// Situations that designs want in the swarm, each with a test of whether a plan has it.
    const WORLD: [(&str, Has); 25] = [
        ("calls on streams", |plan| plan.network.calls == Calls::Streams),
        ("zones far from the store", |plan| plan.zones.iter().any(|zone| zone.store.0 > 0)),
        ("a master's clock that is set", |plan| has(plan, |what| matches!(what, What::Set { .. }))),
        ("masters whose clocks differ", |plan| plan.redis.masters > 1 && plan.redis.skew.0 > 0),
        ("a replica with a clock of its own that takes over", |plan| {
            plan.redis.replica && plan.redis.replica_skew.0 > 0 && has(plan, What::stops_masters)
        }),
        ("a replica that lags now more and now less", |plan| plan.redis.replica && plan.redis.lag_stalls.0 > 0),
        ("scripts that cost now more and now less", |plan| plan.redis.script_cost_varies),
        ("scripts that stall", |plan| plan.redis.stalls > 0),
        ("a node that is not run", |plan| has(plan, |what| matches!(what, What::Starve { .. } | What::Freeze { .. }))),
        ("several shards of a node", |plan| plan.daemon.shards > 1),
        ("concurrent limits", |plan| limits(plan).any(|limit| limit.algorithm == Algorithm::Concurrent)),
        ("two limits of a policy", |plan| plan.policies.iter().any(|policy| policy.limits.len() > 1)),
        ("holds", |plan| plan.demand.iter().any(|demand| demand.holds > 0)),
        ("several keys at once", |plan| plan.demand.iter().any(|demand| demand.several > 0)),
        ("refunds", |plan| plan.demand.iter().any(|demand| demand.refunds > 0)),
        ("resets", |plan| plan.demand.iter().any(|demand| demand.resets > 0)),
        ("a window of an hour", |plan| limits(plan).any(|limit| limit.period == Micros::from_secs(3_600))),
        ("a bucket that takes 24 s to fill", |plan| {
            let is_slow = |limit: &Limit| limit.algorithm == Algorithm::Gcra && limit.depth() >= Micros::from_secs(24);
            limits(plan).any(|limit| is_slow(&limit) && limit.capacity() >= 1_000)
        }),
        ("costs of more than 9,000", |plan| plan.demand.iter().any(|demand| demand.cost > 9_000)),
        ("more than 55 nodes", |plan| plan.nodes > 55),
        ("5,000 keys that are asked for twice", |plan| {
            let seconds = (plan.span.0 + plan.calm.0) / 1_000_000;
            let asks = |demand: &Demand| demand.key_skew == 0 && demand.rate * seconds >= 2 * u64::from(demand.keys);
            plan.demand.iter().any(|demand| demand.keys == 5_000 && asks(demand))
        }),
        ("a table too small for its keys", |plan| {
            plan.demand.iter().map(|demand| demand.keys).max() > Some(plan.daemon.max_keys)
        }),
        ("nodes that come and go", |plan| has(plan, |what| matches!(what, What::Scale { .. }))),
        ("nodes of several builds", |plan| has(plan, |what| matches!(what, What::Build { .. }))),
        ("tokens set aside", |plan| plan.policies.iter().any(|policy| policy.on_store_loss == OnStoreLoss::Entitled)),
    ];

    fn has(plan: &Plan, is: fn(&What) -> bool) -> bool {
        plan.faults.iter().any(|fault| is(&fault.what))
    }

    fn limits(plan: &Plan) -> impl Iterator<Item = Limit> {
        plan.policies.iter().flat_map(|policy| &policy.limits).map(|limit| Limit::parse(limit).unwrap())
    }

    /// Without this test, nobody would notice a scene that is no longer drawn or a range that has shrunk.
    #[test]
    fn the_seeds_that_every_run_of_tests_plays_have_all_of_the_world() {
        let mut counts = WORLD.map(|(what, _)| (what, 0));
        for seed in 1..=500 {
            let plan = plan(seed);
            counts.iter_mut().zip(WORLD).for_each(|((_, count), (_, is))| *count += u32::from(is(&plan)));
        }
        let none: Vec<_> = counts.iter().filter(|(_, count)| *count == 0).collect();
        assert!(none.is_empty(), "of {counts:?} none: {none:?}");
    }

    #[test]
    fn some_runs_set_tokens_aside() {
        let is_entitled = |policy: &Policy| policy.on_store_loss == OnStoreLoss::Entitled;
        let some = (1..=SEEDS).filter(|seed| plan(*seed).policies.iter().any(is_entitled)).count() as u64;
        assert!((SEEDS / 30..SEEDS / 5).contains(&some), "{some} of {SEEDS}");
    }

    #[test]
    fn tenth_of_the_runs_is_free_of_faults() {
        let quiet = census(|plan| vec![(plan.faults.is_empty() && plan.network.loss == 0).to_string()]);
        assert!((SEEDS / 20..SEEDS / 4).contains(&quiet["true"]), "{quiet:?}");
    }

    #[test]
    fn faults_end_with_the_fault_phase() {
        for seed in 1..=SEEDS {
            let plan = plan(seed);
            assert!(plan.calm > Span(0));
            assert!(plan.faults.iter().all(|fault| fault.at.0 + fault.lasts.0 <= plan.span.0), "seed {seed}");
        }
    }

    #[test]
    fn plan_survives_being_written() {
        for seed in 1..=SEEDS {
            let plan = plan(seed);
            let text = toml::to_string(&plan).unwrap();
            assert_eq!(toml::from_str::<Plan>(&text).unwrap(), plan, "seed {seed}");
        }
    }
}
