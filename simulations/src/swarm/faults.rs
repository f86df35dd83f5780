//! What goes wrong in a run of the swarm: one class for each kind of [`What`], each with a stream of
//! its own.
//!
//! All of them begin and end within the fault phase, and none is drawn that makes no sense in its
//! scene: without a replica no master dies.

use rationd::core::limit::{Algorithm, Limit};

use crate::plan::{Fault, Gossip, Lie, Policy, Redis, Way, What};
use crate::random::Random;
use crate::span::Span;

/// What the faults happen to.
pub(super) struct Scene<'a> {
    pub(super) seed: u64,
    pub(super) span: Span,
    pub(super) nodes: u32,
    pub(super) redis: &'a Redis,
    pub(super) gossip: Option<Gossip>,
    pub(super) policies: &'a [Policy],
}

/// How one class draws a fault; `None` where it makes no sense.
type Draw = fn(&mut Random, &Scene<'_>) -> Option<What>;

/// One class of faults: its name, the longest that one lasts in milliseconds (0: a moment), the
/// most of them in a run, and how one is drawn.
type Class = (&'static str, u64, u64, Draw);

/// All classes.
pub(super) const CLASSES: [Class; 25] = [
    ("cut", 3_000, 2, cut),
    ("swizzle", 4_000, 1, |_, _| Some(What::Swizzle)),
    ("clog", 800, 2, |random, scene| Some(What::Clog { master: scene.master(random) })),
    ("slow", 3_000, 2, slow),
    ("noise", 3_000, 2, noise),
    ("kill", 0, 1, kill),
    ("pause", 3_000, 2, |random, scene| Some(What::Pause { master: scene.master(random) })),
    ("isolate", 3_000, 1, isolate),
    ("refuse", 3_000, 2, refuse),
    ("no-replica", 3_000, 1, no_replica),
    ("script-flush", 0, 3, |random, scene| Some(What::ScriptFlush { master: scene.master(random) })),
    ("reshard", 2_000, 2, reshard),
    ("flush-all", 0, 1, |random, scene| Some(What::FlushAll { master: scene.master(random) })),
    ("evict", 0, 2, evict),
    ("crash", 2_000, 3, |random, scene| Some(What::Crash { node: scene.node(random) })),
    ("freeze", 2_000, 2, |random, scene| Some(What::Freeze { node: scene.node(random) })),
    ("restart", 1_000, 3, |random, scene| Some(What::Restart { node: scene.node(random) })),
    ("roll", 4_000, 1, roll),
    ("scale", 3_000, 2, |random, _| Some(What::Scale { nodes: random.between(1, 16) as u32 })), // at most 16
    ("push", 1_000, 2, push),
    ("jump", 0, 2, jump),
    ("part", 4_000, 2, part),
    ("liar", 3_000, 1, liar),
    ("surge", 1_500, 2, |random, _| Some(What::Surge { factor: random.between(0, 3_000) as u32 })), // at most 3000
    ("set", 0, 2, set),
];

/// The faults of a run, in the order of their beginning.
pub(super) fn draw(scene: &Scene<'_>) -> Vec<Fault> {
    let mut subset = Random::stream(scene.seed, "swarm-subset");
    let share = *subset.pick(&[60, 150, 150, 350]);
    let mut faults = Vec::new();
    for (name, longest, most, draw) in CLASSES {
        let is_on = subset.chance(share);
        let mut random = Random::stream(scene.seed, &format!("swarm-{name}"));
        let count = if is_on { random.between(1, most) } else { 0 };
        for _ in 0..count {
            let (at, lasts) = scene.time(&mut random, longest);
            faults.extend(draw(&mut random, scene).map(|what| Fault { at, lasts, what }));
        }
    }
    faults.extend(drill(scene));
    faults.sort_by_key(|fault| fault.at);
    faults
}

/// Faults that seldom come together by chance: a partition so long that the parts of the fleet have given each other up
/// when the store goes away, a liar for the whole run, and a long loss of the store, all under high demand.
fn drill(scene: &Scene<'_>) -> Vec<Fault> {
    let mut random = Random::stream(scene.seed, "swarm-drill");
    let Some(dead) = scene.gossip.map(|gossip| gossip.dead) else { return Vec::new() };
    let from = |at: u64, what| Fault { at: Span(at), lasts: Span(scene.span.0 - at), what };
    let dark = |at: u64| from(at, everywhere());
    let surge = from(100_000, What::Surge { factor: 3_000 });
    let away = dead.0 + 500_000;
    match random.below(10) {
        0 if away + 500_000 < scene.span.0 => {
            let nodes = (0..scene.nodes / 2).collect();
            vec![from(100_000, What::Part { nodes, one_way: false }), dark(away), surge]
        }
        1 => vec![from(100_000, What::Liar { node: scene.node(&mut random), lie: Lie::Huge }), surge],
        2 => vec![dark(scene.span.0 / 3), surge],
        _ => Vec::new(),
    }
}

/// No node reaches any master.
pub(super) fn everywhere() -> What {
    What::Cut { nodes: Vec::new(), masters: Vec::new(), way: Way::Both }
}

impl Scene<'_> {
    fn master(&self, random: &mut Random) -> u32 {
        random.below(self.redis.masters.into()) as u32 // below `masters`
    }

    fn node(&self, random: &mut Random) -> u32 {
        random.below(self.nodes.into()) as u32 // below `nodes`
    }

    /// Some of the nodes, half of them on average.
    fn some_nodes(&self, random: &mut Random) -> Vec<u32> {
        (0..self.nodes).filter(|_| random.chance(500)).collect()
    }

    /// Beginning and length in whole milliseconds, within the fault phase.
    fn time(&self, random: &mut Random, longest: u64) -> (Span, Span) {
        let span = self.span.0 / 1_000;
        let lasts = if longest == 0 { 0 } else { random.between(20, longest.min(span)) };
        (Span::millis(random.between(0, span - lasts)), Span::millis(lasts))
    }
}

fn cut(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let nodes = if random.chance(300) { Vec::new() } else { scene.some_nodes(random) };
    let masters = if random.chance(400) { Vec::new() } else { vec![scene.master(random)] };
    let way = *random.pick(&[Way::Both, Way::Both, Way::ToRedis, Way::FromRedis]);
    Some(What::Cut { nodes, masters, way })
}

fn slow(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let by = Span::millis(*random.pick(&[2, 8, 12, 30, 60, 200]));
    Some(What::Slow { master: scene.master(random), by })
}

fn noise(random: &mut Random, _: &Scene<'_>) -> Option<What> {
    let (loss, repeats) = (random.between(0, 300), random.between(0, 500));
    Some(What::Noise { loss: loss as u32, repeats: repeats as u32 }) // both below 1000
}

fn part(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let (nodes, one_way) = (scene.some_nodes(random), random.chance(300));
    scene.gossip.is_some().then_some(What::Part { nodes, one_way })
}

fn liar(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let (node, lie) =
        (scene.node(random), *random.pick(&[Lie::Huge, Lie::Huge, Lie::Negative, Lie::Stale, Lie::Early]));
    scene.gossip.is_some().then_some(What::Liar { node, lie })
}

/// Without a replica nobody would take over.
fn kill(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let master = scene.master(random);
    scene.redis.replica.then_some(What::Kill { master })
}

fn isolate(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let (master, nodes) = (scene.master(random), scene.some_nodes(random));
    scene.redis.replica.then_some(What::Isolate { master, nodes })
}

fn refuse(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let error = *random.pick(&["CLUSTERDOWN", "LOADING", "READONLY", "OOM", "BUSY", "TRYAGAIN"]);
    Some(What::Refuse { master: scene.master(random), error: error.into() })
}

fn no_replica(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let master = scene.master(random);
    scene.redis.replica.then_some(What::NoReplica { master })
}

fn reshard(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let (from, part) = (scene.master(random), random.between(10, 1_000) as u32); // at most 1000
    let to = (from + 1) % scene.redis.masters;
    (to != from).then_some(What::Reshard { from, to, part })
}

fn evict(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let part = random.between(10, 1_000) as u32; // at most 1000
    Some(What::Evict { master: scene.master(random), part })
}

fn roll(random: &mut Random, _: &Scene<'_>) -> Option<What> {
    Some(What::Roll { crash: random.chance(500), down: Span::millis(random.between(10, 400)) })
}

/// As NTP does now and then.
fn set(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let (master, by) = (scene.master(random), Span::millis(*random.pick(&[2, 50, 300, 1_000, 5_000])));
    let back = random.chance(500);
    random.chance(500).then_some(What::Set { master, by, back })
}

fn jump(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let by = Span::millis(*random.pick(&[1, 1_000, 60_000, 3_600_000]));
    Some(What::Jump { node: scene.node(random), by })
}

/// Counts are multiplied; now and then a limit goes by another algorithm, too.
fn push(random: &mut Random, scene: &Scene<'_>) -> Option<What> {
    let policy = random.below(scene.policies.len() as u64) as u32; // below a length
    let (times, by) = *random.pick(&[(1, 4), (1, 2), (3, 4), (3, 2), (2, 1), (5, 1)]);
    let other = *random.pick(&[Algorithm::Gcra, Algorithm::Fixed, Algorithm::Sliding, Algorithm::FixedFromFirst]);
    let is_other = random.chance(250);
    let scaled = |text: &String| {
        let limit = Limit::parse(text).ok()?;
        // A concurrent limit stays a concurrent limit.
        let is_other = is_other && limit.algorithm != Algorithm::Concurrent;
        let algorithm = if is_other { other } else { limit.algorithm };
        let [count, burst] = [limit.count, limit.burst].map(|tokens| (tokens * times).div_ceil(by));
        Limit::new(count, limit.period, algorithm, burst).ok().map(|limit| limit.to_string())
    };
    let limits: Vec<String> = scene.policies[policy as usize].limits.iter().filter_map(scaled).collect();
    Some(What::Push { policy, limits })
}
