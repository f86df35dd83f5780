//! Situations that seldom come about by chance: every second seed plays one of these, in turn, with its details drawn.
//!
//! What is drawn freely finds what single faults do to small and busy fleets. It hardly ever holds a lease for an hour,
//! asks at the very microsecond at which a window ends, or lets a fleet grow while its store is away; each of these
//! does one such thing on purpose. Bugs that only they show are why they are here (`simulations mutants`).

use super::faults::everywhere;
use super::traffic;
use crate::plan::{
    Calls, Clocks, Daemon, Demand, Expect, Fault, Gossip, Lie, Network, OnStoreLoss, Plan, Policy, Redis, Shape,
    Spread, Way, What, Zone,
};
use crate::random::Random;
use crate::span::Span;
use crate::world::start_of;

/// One of so many seeds plays a scene.
const EVERY: u64 = 2;

/// One in so many of the seeds without a scene plays a rare scene (about one seed in a thousand would come upon it by
/// chance), and another one a hard scene (none of thousands would). The same holds for the seeds of peers that lend to
/// each other.
const RARELY: u64 = 20;
const HARDLY: u64 = 12;
const LENT_HARDLY: u64 = 16;

/// From this seed on all others play a scene of peers that lend to each other. No commit's own seeds draw
/// it, as `fleet.owner` is `never` by default: the seeds of before stay what they were.
pub(super) const LENT_FROM: u64 = 10_000_000_000_000;

/// Draws a scene for a seed.
type Scene = fn(&mut Random, u64) -> Plan;

/// All scenes: their names and what draws them. A hundred seeds play the first ten three times, and the others twice, so those
/// whose bugs are the hardest to come by stand in front.
const SCENES: [(&str, Scene); 20] = [
    ("torn", torn),
    ("liar", liar),
    ("grown", grown),
    ("brim", brim),
    ("refunds", refunds),
    ("tokens", tokens),
    ("pails", pails),
    ("long", long),
    ("forgotten", forgotten),
    ("edge", edge),
    ("crowded", crowded),
    ("wide", wide),
    ("far", far),
    ("calm", calm),
    ("builds", builds),
    ("starved", starved),
    ("slots", slots),
    ("unheard", unheard),
    ("back", back),
    ("rested", rested),
];

/// Rare scenes, which hardly any other seed comes upon.
const RARE: [(&str, Scene); 2] = [("doubted", doubted), ("chorus", chorus)];

/// Hard scenes, which no other seed comes upon.
const HARD: [(&str, Scene); 3] = [("sole", sole), ("strangers", strangers), ("overdue", overdue)];

/// The scene of peers that lend to each other.
const LENT: (&str, Scene) = ("lent", lent);

/// Scenes of lending that the scene above hardly comes upon.
const LENT_HARD: [(&str, Scene); 4] = [("cold", cold), ("remote", remote), ("nested", nested), ("vast", vast)];

/// The scene that a seed plays; `None`: it is drawn freely.
pub(super) fn draw(seed: u64) -> Option<Plan> {
    let (name, draw) = match seed % EVERY {
        1 => SCENES[(seed / EVERY) as usize % SCENES.len()], // below the number of scenes
        _ if seed >= LENT_FROM && seed % RARELY == LENT_HARDLY => turn(&LENT_HARD, seed),
        _ if seed >= LENT_FROM => LENT,
        _ if seed.is_multiple_of(RARELY) => turn(&RARE, seed),
        _ if is_hard(seed) => turn(&HARD, seed),
        _ => return None,
    };
    let mut random = Random::stream(seed, "swarm-scene");
    let plan = draw(&mut random, seed);
    // Short, so that most of the calm at the end is judged.
    let (failover, alone) = (Span::millis(random.between(200, 500)), Span::millis(random.between(100, 300)));
    Some(Plan {
        name: format!("swarm-{seed}"),
        about: format!("What the swarm makes of seed {seed}: {name}."),
        seed,
        clocks: Clocks { drift_ppm: *random.pick(&[20, 100, 190]), ..plan.clocks },
        daemon: Daemon { confirm: random.chance(600), ..plan.daemon },
        redis: Redis { failover, alone, ..plan.redis },
        calm: plan.calm.max(Span::secs(4)),
        ..plan
    })
}

/// Whether a seed plays a hard scene.
pub(super) fn is_hard(seed: u64) -> bool {
    seed < LENT_FROM && seed % RARELY == HARDLY
}

/// The scene in the list whose turn it is.
fn turn(scenes: &[(&'static str, Scene)], seed: u64) -> (&'static str, Scene) {
    scenes[(seed / RARELY) as usize % scenes.len()] // below the number of scenes
}

/// A source of checks of one key.
fn source(rate: u64, spread: Spread) -> Demand {
    Demand { rate, spread, ..Demand::default() }
}

fn policy(limit: String) -> Policy {
    Policy { limits: vec![limit], ..Policy::default() }
}

fn uneven(random: &mut Random) -> Spread {
    *random.pick(&[Spread::Even, Spread::Zipf { skew: 1_000 }, Spread::Wander { stay: Span::millis(300) }])
}

fn gossip(random: &mut Random) -> Option<Gossip> {
    let (join, dead) = (Span::millis(random.between(200, 800)), Span::millis(random.between(1_000, 2_500)));
    Some(Gossip { tick: Span::millis(*random.pick(&[50, 200, 200])), join, dead })
}

/// A lease of a window of up to an hour is held from its beginning to its end, by clocks that drift.
fn long(random: &mut Random, seed: u64) -> Plan {
    let period = Span::secs(*random.pick(&[60, 600, 600, 3_600]));
    let kind = *random.pick(&["fixed from-first", "fixed from-first", "fixed", "sliding"]);
    let nodes = random.between(3, 8);
    let count = random.between(300, 1_200);
    let end = match kind {
        "fixed from-first" => period.0,
        _ => period.0 - start_of(seed) % period.0,
    };
    let rate = count * 2 / 5;
    // So short a time that most nodes have not heard from the store since they were lent what they spend.
    let from = Span(end.saturating_sub(random.between(5_000, 60_000)));
    let until = Span(end + 400_000);
    Plan {
        span: Span(until.0 + random.between(0, 500_000)),
        nodes: nodes as u32, // at most 8
        policies: vec![policy(format!("{count}/{}s {kind}", period.0 / 1_000_000))],
        demand: vec![
            Demand { until: Span::secs(1), ..source(rate, Spread::Even) },
            Demand { from, until, ..source(5 * rate, uneven(random)) },
        ],
        ..Plan::default()
    }
}

/// Checks arrive at the store at the very microsecond at which a window ends.
fn edge(random: &mut Random, seed: u64) -> Plan {
    let period = *random.pick(&[200_000, 500_000, 1_000_000]);
    let (count, nodes) = (random.between(1, 3), random.between(1, 2) as u32); // at most 2
    let latency = random.between(50, 400);
    let kind = *random.pick(&["fixed", "fixed", "sliding"]);
    let ends = period - start_of(seed) % period;
    // A check that leaves before the run begins cannot arrive at the end of the window at hand.
    let first = if ends < latency { ends + period } else { ends } + period - latency;
    // The first comes one distance after `from`.
    let often = |times: u64| Demand {
        from: Span(first - period / times),
        shape: Shape::Steady,
        ..source(1_000_000 * times / period, Spread::Wander { stay: Span(3 * period) })
    };
    Plan {
        span: Span(period * random.between(8, 20)),
        nodes,
        network: Network { latency: Span(latency), jitter: Span(0), ..Network::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        policies: vec![policy(format!("{count}/{}ms {kind}", period / 1_000))],
        demand: vec![often(1), often(random.between(1, 5))],
        ..Plan::default()
    }
}

/// One hot key of a fleet of 3 to 8, whose store is away for all from the second given on.
fn dark(random: &mut Random, at: u64) -> Plan {
    let count = random.between(100, 300);
    let lasts = Span::millis(random.between(1_500, 4_000));
    Plan {
        nodes: random.between(3, 8) as u32, // at most 8
        gossip: gossip(random),
        span: Span(at + lasts.0 + 500_000),
        calm: Span::secs(5),
        policies: vec![policy(format!("{count}/1s fixed"))],
        demand: vec![source(count * random.between(3, 5) / 2, uneven(random))],
        faults: vec![Fault { at: Span(at), lasts, what: everywhere() }],
        ..Plan::default()
    }
}

/// The store comes back to a fleet that has just grown. The new nodes had no shares, and a bug would lend them at once
/// what the others still owe.
fn back(random: &mut Random, seed: u64) -> Plan {
    let mut plan = grown(random, seed);
    let Fault { at, lasts, .. } = plan.faults[0];
    let ends = at.0 + lasts.0;
    let comes = Span(ends - random.between(1_000_000, 3_000_000));
    plan.faults[1].at = comes;
    plan.faults[1].lasts = Span(ends + 2_500_000 - comes.0);
    plan.span = Span(ends + 3_000_000);
    plan
}

/// The fleet grows while the store is away, so new nodes have not met the others.
fn grown(random: &mut Random, _: u64) -> Plan {
    let mut plan = dark(random, random.clone().between(1_500_000, 3_000_000));
    let nodes = plan.nodes * random.between(2, 3) as u32; // at most 3
    let (dark, grows) = (Span::secs(random.between(4, 8)), Span::secs(random.between(1, 3)));
    plan.faults[0].lasts = dark;
    plan.span = Span(plan.faults[0].at.0 + dark.0 + 500_000);
    let at = Span(plan.faults[0].at.0 + random.between(1_000_000, 2_000_000));
    plan.faults.push(Fault { at, lasts: grows, what: What::Scale { nodes } });
    // Each of those who have come is asked for a large part of the limit.
    plan.demand[0].rate *= random.between(1, 4);
    // Longer than a window, so that newcomers begin a window before they have met anyone.
    plan.gossip = Some(Gossip { join: Span::millis(random.between(800, 2_500)), ..Gossip::default() });
    plan
}

/// The fleet is torn for so long that its parts have given each other up when the store goes away.
fn torn(random: &mut Random, _: u64) -> Plan {
    let begins = 1_000_000;
    let mut plan = dark(random, begins + 3_500_000);
    plan.nodes = random.between(6, 10) as u32; // at most 10
    let count = random.between(200, 800);
    plan.policies = vec![policy(format!("{count}/1s fixed"))];
    plan.demand = vec![source(2 * count, Spread::Zipf { skew: 1_000 })];
    let ends = plan.span.0 - 400_000;
    let nodes = (0..plan.nodes / 2).collect();
    let what = What::Part { nodes, one_way: random.chance(200) };
    plan.faults.push(Fault { at: Span(begins), lasts: Span(ends - begins), what });
    plan
}

/// A node says all the time that everything is spent.
fn liar(random: &mut Random, _: u64) -> Plan {
    let [few, many] = [random.between(50, 300), random.between(600, 3_000)];
    let (nodes, lie) =
        (random.between(6, 12), *random.pick(&[Lie::Huge, Lie::Huge, Lie::Huge, Lie::Huge, Lie::Early, Lie::Stale]));
    let span = Span::secs(13);
    let what = What::Liar { node: random.below(nodes) as u32, lie }; // below `nodes`
    let rate = |count: u64, seconds| count * 2 / seconds;
    Plan {
        nodes: nodes as u32, // at most 12
        gossip: gossip(random),
        span,
        policies: vec![policy(format!("{few}/1s fixed")), policy(format!("{many}/6s fixed"))],
        demand: vec![source(rate(few, 1), Spread::Even), Demand { policy: 1, ..source(rate(many, 6), Spread::Even) }],
        faults: vec![Fault { at: Span::secs(1), lasts: Span(span.0 - 1_000_000), what }],
        warm_up: Span::secs(1),
        expect: Expect { used: Some(99_000), ..Expect::default() },
        ..Plan::default()
    }
}

/// The store loses all data, more than once, and nodes tell each other seldom.
fn forgotten(random: &mut Random, _: u64) -> Plan {
    let (count, seconds) = (random.between(500, 2_000), random.between(2, 5));
    let masters = random.between(1, 3) as u32; // at most 3
    let span = Span::secs(9);
    let mut faults = Vec::new();
    for _ in 0..random.between(1, 3) {
        let at = Span::millis(random.between(1_000, 8_500));
        faults.extend((0..masters).map(|master| Fault { at, lasts: Span(0), what: What::FlushAll { master } }));
    }
    faults.sort_by_key(|fault| fault.at);
    Plan {
        nodes: random.between(3, 8) as u32, // at most 8
        gossip: Some(Gossip { tick: Span::millis(*random.pick(&[200, 500, 1_000])), ..Gossip::default() }),
        span,
        redis: Redis { masters, ..Redis::default() },
        policies: vec![policy(format!("{count}/{seconds}s fixed"))],
        demand: vec![source(2 * count / seconds, uneven(random))],
        faults,
        ..Plan::default()
    }
}

/// Nodes hold tokens of buckets that they are seldom asked for, and some of them do not reach the store for longer than their
/// accounts last: what they hold then counts as spent.
fn pails(random: &mut Random, _: u64) -> Plan {
    let (count, seconds) = (random.between(20, 200), random.between(1, 8));
    let (nodes, keys) = (random.between(2, 6) as u32, random.between(1, 5)); // nodes at most 6
    let some = if random.chance(300) { Vec::new() } else { (0..nodes.div_ceil(2)).collect() };
    let way = *random.pick(&[Way::Both, Way::Both, Way::FromRedis, Way::ToRedis]);
    let (at, lasts) = (Span::millis(random.between(1_000, 4_000)), Span::millis(random.between(4_500, 9_000)));
    Plan {
        nodes,
        gossip: random.chance(500).then(Gossip::default),
        span: Span(at.0 + lasts.0 + 1_000_000),
        calm: Span::secs(6),
        policies: vec![policy(format!("{count}/{seconds}s burst {}", random.between(count, 3 * count)))],
        demand: vec![Demand {
            keys: keys as u32, // at most 5
            ..source((keys * count * random.between(10, 80) / 100 / seconds).max(2), uneven(random))
        }],
        faults: vec![Fault { at, lasts, what: What::Cut { nodes: some, masters: Vec::new(), way } }],
        ..Plan::default()
    }
}

/// More keys than the table holds spend their shares while the store is away.
fn crowded(random: &mut Random, _: u64) -> Plan {
    let mut plan = dark(random, 1_200_000);
    let most = random.between(4, 12);
    let keys = most * random.between(2, 4);
    let count = random.between(10, 40);
    plan.daemon.max_keys = most as u32; // at most 12
    plan.nodes = random.between(1, 3) as u32; // at most 3
    plan.policies = vec![policy(format!("{count}/{}s fixed", random.between(4, 10)))];
    plan.demand[0].keys = keys as u32; // at most 48
    plan.demand[0].churn = Span::millis(*random.pick(&[300, 1_000, 2_000]));
    plan.demand[0].rate = 600;
    plan
}

/// A table that is a little too small, and a store that goes away again and again: a leased key spends its share of the
/// next window, is evicted, and comes back before that window is over.
fn brim(random: &mut Random, _: u64) -> Plan {
    let mut plan = dark(random, 0);
    let most = random.between(5, 12);
    let (period, nodes) = (random.between(400, 1_500), *random.pick(&[1, 1, 2, 3]));
    let keys = most + random.between(1, 2);
    plan.daemon.max_keys = most as u32; // at most 12
    plan.nodes = nodes as u32; // at most 3
    plan.policies = vec![policy(format!("{}/{period}ms fixed", random.between(20, 100)))];
    plan.demand[0].keys = keys as u32; // at most 14
    plan.demand[0].rate = nodes * random.between(60, 240);
    plan.demand[0].spread = Spread::Even;
    // With exact wall clocks, the window is also known of a key about which the store has not answered yet.
    plan.clocks.offset = Span(0);
    let each = 2_000 * random.between(period, 2 * period);
    let dark = |turn| Fault { at: Span(turn * each + each / 2), lasts: Span(each / 2), what: everywhere() };
    plan.faults = (0..4).map(dark).collect();
    plan.span = Span(4 * each + 500_000);
    plan
}

/// Nothing goes wrong, and keys are asked for so seldom that the store drops some, while nodes still remember a spent window of
/// theirs. Such a key begins anew under another epoch, though nothing was lost.
fn rested(random: &mut Random, _: u64) -> Plan {
    let keys = random.between(120, 160);
    let shape = Shape::Diurnal { period: Span::millis(random.between(5_500, 6_500)) };
    Plan {
        nodes: random.between(3, 4) as u32, // at most 4
        gossip: Some(Gossip { tick: Span::millis(500), ..Gossip::default() }),
        span: Span::secs(1),
        calm: Span::secs(20),
        policies: vec![Policy {
            limits: vec![
                format!("1/{}ms fixed", random.between(150, 250)),
                format!("{}/2s fixed from-first", random.between(4, 6)),
            ],
            ..Policy::default()
        }],
        demand: vec![Demand { keys: keys as u32, shape, ..source(keys * 8 / 3, Spread::Even) }], // at most 160
        ..Plan::default()
    }
}

/// Up to 64 nodes and 5,000 keys.
fn wide(random: &mut Random, _: u64) -> Plan {
    let nodes = random.between(16, 64);
    let keys = *random.pick(&[1, 20, 1_000, 5_000]);
    // With a skew, most of so many keys would never be checked.
    let (rate, key_skew) = if keys == 5_000 { (2_000, 0) } else { (600, 1_000) };
    let limit = match random.below(3) {
        0 => format!("{}/2s fixed", random.between(1, 1_000)),
        1 => format!("{}/1s burst {}", random.between(1, 500), random.between(1, 500)),
        _ => format!("{}/3s sliding", random.between(1, 1_000)),
    };
    Plan {
        nodes: nodes as u32, // at most 64
        gossip: Some(Gossip { tick: Span::millis(500), ..Gossip::default() }),
        span: Span::secs(3),
        calm: Span::secs(3),
        policies: vec![policy(limit)],
        demand: vec![Demand { keys, key_skew, ..source(rate, uneven(random)) }],
        faults: vec![Fault {
            at: Span::secs(1),
            lasts: Span::secs(1),
            what: if random.chance(500) { everywhere() } else { What::Roll { crash: true, down: Span::millis(200) } },
        }],
        ..Plan::default()
    }
}

/// Costs of up to 10,000, as of requests to a language model, half of them holds.
fn tokens(random: &mut Random, _: u64) -> Plan {
    let cost = random.between(500, 10_000) as u32; // at most 10000
    let count = u64::from(cost) * random.between(3, 60);
    let seconds = random.between(3, 20);
    let kind = *random.pick(&["", "fixed", "sliding", "fixed from-first"]);
    let rate = (count * 3 / u64::from(cost) / seconds).clamp(20, 400);
    let mut limits = vec![format!("{count}/{seconds}s {kind}").trim_end().to_owned()];
    if random.chance(500) {
        limits.push(format!("{}/{}s fixed", count / 3, seconds.div_ceil(4)));
    }
    // Under `allow`, holds that passed uncounted while the store was away may be settled when it is back.
    let is_open = random.chance(400);
    let (at, lasts) = (Span::millis(random.between(1_500, 4_000)), Span::millis(random.between(1_000, 3_000)));
    let dark = Fault { at, lasts, what: everywhere() };
    Plan {
        nodes: random.between(2, 6) as u32, // at most 6
        gossip: random.chance(500).then(Gossip::default),
        span: Span::secs(8),
        calm: Span::secs(3),
        network: Network { loss: *random.pick(&[0, 30, 150]), ..Network::default() },
        policies: vec![Policy { limits, on_store_loss: if is_open { OnStoreLoss::Allow } else { OnStoreLoss::Share } }],
        faults: if is_open { vec![dark] } else { Vec::new() },
        demand: vec![Demand {
            cost,
            cost_from: *random.pick(&[1, cost / 8, cost]),
            holds: *random.pick(&[0, 500, 1_000]),
            settle: Span::millis(*random.pick(&[150, 1_500])),
            keys: random.between(1, 3) as u32, // at most 3
            refunds: *random.pick(&[0, 100, 300]),
            ..source(rate, uneven(random))
        }],
        ..Plan::default()
    }
}

/// A part of the fleet is further from the store than a check waits.
fn far(random: &mut Random, _: u64) -> Plan {
    let far = Span::millis(*random.pick(&[8, 20, 40, 80, 150]));
    let count = random.between(100, 800);
    let kind = *random.pick(&["fixed", "burst 100", "sliding", "fixed from-first"]);
    Plan {
        nodes: random.between(3, 9) as u32, // at most 9
        gossip: random.chance(700).then(Gossip::default),
        span: Span::secs(6),
        calm: Span::secs(3),
        network: Network { calls: Calls::Streams, ..Network::default() },
        zones: vec![Zone { nodes: random.between(200, 600) as u32, store: far }], // at most 600
        redis: Redis { masters: random.between(1, 3) as u32, ..Redis::default() }, // at most 3
        policies: vec![policy(format!("{count}/{}s {kind}", random.between(1, 3)))],
        demand: vec![source(count, uneven(random))],
        ..Plan::default()
    }
}

/// Nothing goes wrong, and a third of the limit is asked for in bursts that come to one node after the other.
fn calm(random: &mut Random, _: u64) -> Plan {
    let (seconds, count) = (random.between(1, 6), random.between(60, 400));
    let bursts = Shape::OnOff { on: Span::millis(random.between(2, 30)), off: Span::millis(random.between(30, 200)) };
    let Shape::OnOff { on, off } = bursts else { unreachable!("it is one") };
    // `rate` applies to the time while the demand is on.
    let rate = (count * 35 / 100 / seconds * (on.0 + off.0) / on.0).max(1);
    Plan {
        nodes: random.between(3, 10) as u32, // at most 10
        gossip: random.chance(500).then(Gossip::default),
        span: Span::secs(4 * seconds),
        policies: vec![policy(format!("{count}/{seconds}s fixed"))],
        demand: vec![Demand {
            shape: bursts,
            ..source(rate, Spread::Wander { stay: Span::millis(random.between(20, 400)) })
        }],
        ..Plan::default()
    }
}

/// Some nodes are of the build before this one, or after it, when the store goes away.
fn builds(random: &mut Random, _: u64) -> Plan {
    let mut plan = dark(random, 2_500_000);
    let nodes = (0..plan.nodes / 2).collect();
    let what = What::Build { nodes, newer: random.chance(500) };
    plan.faults.push(Fault { at: Span(0), lasts: plan.span, what });
    plan
}

/// Nodes are not run for a while, again and again.
fn starved(random: &mut Random, _: u64) -> Plan {
    let (count, seconds) = (random.between(100, 800), random.between(1, 3));
    let kind = *random.pick(&["fixed", "burst 50", "sliding", "fixed from-first"]);
    let nodes = random.between(2, 8);
    let span = Span::secs(5);
    let who = if random.chance(500) { Vec::new() } else { (0..nodes as u32 / 2).collect() }; // at most 8
    let what = What::Starve { nodes: who, longest: Span::millis(*random.pick(&[5, 30, 100, 400])) };
    Plan {
        nodes: nodes as u32, // at most 8
        gossip: random.chance(500).then(Gossip::default),
        span,
        calm: Span::secs(5),
        policies: vec![policy(format!("{count}/{seconds}s {kind}"))],
        demand: vec![source(count * random.between(1, 4) / 2 / seconds, uneven(random))],
        faults: vec![Fault { at: Span::millis(500), lasts: Span(span.0 - 1_000_000), what }],
        ..Plan::default()
    }
}

/// Two windows of which the second is over when what was charged in both is taken back, while answers are lost. What a hold
/// was too much goes back to the windows in which it was charged, of which one may end on its way.
fn refunds(random: &mut Random, _: u64) -> Plan {
    let short = *random.pick(&[100, 100, 200]);
    // A refund comes a millisecond after its check for each token.
    let cost = random.between(30, 49);
    let (few, many) = (cost * random.between(3, 20), cost * random.between(20, 200));
    let [first, second] = *random.pick(&[["fixed", "fixed"], ["sliding", "fixed"], ["fixed from-first", "fixed"]]);
    let is_held = random.chance(800);
    let latency = if is_held { Span::millis(random.between(10, 18)) } else { Network::default().latency };
    let holds = if is_held { 800 } else { 0 };
    Plan {
        nodes: random.between(2, 5) as u32, // at most 5
        gossip: random.chance(500).then(Gossip::default),
        span: Span::secs(5),
        calm: Span::secs(4),
        network: Network { loss: *random.pick(&[0, 20, 150]), latency, ..Network::default() },
        policies: vec![Policy {
            limits: vec![format!("{many}/3s {first}"), format!("{few}/{short}ms {second}")],
            ..Policy::default()
        }],
        demand: vec![Demand {
            keys: random.between(1, 12) as u32, // at most 12
            cost: cost as u32,                  // at most 49
            cost_from: 20,
            refunds: 700,
            holds,
            settle: Span::millis(random.between(10, short)),
            actual: 500,
            ..source(800, uneven(random))
        }],
        ..Plan::default()
    }
}

/// Clients hold slots of a concurrent limit when the store forgets, fails over or is slow, and nodes die.
pub(super) fn slots(random: &mut Random, _: u64) -> Plan {
    let nodes = random.between(2, 8) as u32; // at most 8
    let (policy, demand) = traffic::flights(random, nodes);
    let some = (0..nodes.div_ceil(2)).collect();
    let (lasts, what) = match random.below(6) {
        0 => (Span(0), What::FlushAll { master: 0 }),
        1 => (Span::secs(3), What::Isolate { master: 0, nodes: some }),
        2 => (Span::secs(4), What::Roll { crash: true, down: Span::millis(*random.pick(&[200, 2_000])) }),
        3 => (Span(0), What::Kill { master: 0 }),
        4 => (Span::secs(2), What::Cut { nodes: some, masters: Vec::new(), way: Way::FromRedis }),
        _ => (Span::secs(1), What::Surge { factor: 2_000 }),
    };
    let at = Span::millis(random.between(1_000, 2_000));
    Plan {
        nodes,
        gossip: random.chance(500).then(Gossip::default),
        span: Span(at.0 + lasts.0 + random.between(2_000_000, 5_000_000)),
        network: Network { latency: Span(*random.pick(&[200, 2_000, 12_000])), ..Network::default() },
        redis: Redis { masters: random.between(1, 2) as u32, ..Redis::default() }, // at most 2
        policies: vec![policy],
        demand: vec![demand],
        faults: vec![Fault { at, lasts, what }],
        ..Plan::default()
    }
}

/// Nodes lend tokens on to each other: keys that each sees seldom, and a store that some do not reach, while peers are lost,
/// late, leave, go by other limits or do not hear each other.
fn lent(random: &mut Random, _: u64) -> Plan {
    let nodes = random.between(3, 9) as u32; // at most 9
    let (seconds, keys) = (random.between(1, 3), random.between(1, 30));
    let kind = *random.pick(&["fixed", "fixed", "burst 20", "sliding", "fixed from-first"]);
    let (few, many) = (random.between(10, 60), random.between(50, 300));
    let (at, lasts) = (Span::millis(random.between(1_500, 3_000)), Span::millis(random.between(500, 3_000)));
    let some: Vec<u32> = (0..nodes / 2).collect();
    let mut faults = Vec::new();
    if random.chance(700) {
        let way = *random.pick(&[Way::Both, Way::Both, Way::FromRedis]);
        let what = What::Cut { nodes: some.clone(), masters: Vec::new(), way };
        faults.push(Fault { at, lasts, what });
    }
    let later = Span(at.0 + random.between(0, lasts.0));
    let node = random.below(u64::from(nodes)) as u32; // below `nodes`
    let limits = vec![format!("{}/{seconds}s {kind}", few * 2)];
    let what = match random.below(9) {
        0 => What::Crash { node },
        1 => What::Restart { node },
        2 => What::Freeze { node },
        3 => What::Part { nodes: some, one_way: false },
        4 => What::Part { nodes: vec![node], one_way: true },
        5 => What::Push { policy: 0, limits },
        6 => What::Scale { nodes: nodes * 2 },
        7 => What::Roll { crash: false, down: Span::millis(300) },
        _ => What::Noise { loss: 200, repeats: 200 },
    };
    faults.push(Fault { at: later, lasts: Span::millis(random.between(500, 2_000)), what });
    faults.sort_by_key(|fault| fault.at);
    let repeats = *random.pick(&[0, 0, 300]);
    Plan {
        nodes,
        gossip: gossip(random),
        span: Span(later.0.max(at.0) + 3_500_000),
        calm: Span::secs(5),
        daemon: Daemon { owners: true, ..Daemon::default() },
        network: Network { latency: Span(*random.pick(&[100, 300, 2_000])), repeats, ..Network::default() },
        redis: Redis { masters: random.between(1, 2) as u32, ..Redis::default() }, // at most 2
        policies: vec![policy(format!("{few}/{seconds}s {kind}")), policy(format!("{many}/1s {kind}"))],
        demand: vec![
            Demand {
                keys: keys as u32,
                cost: *random.pick(&[1, 1, 4]),
                ..source(keys * few / seconds, uneven(random))
            },
            Demand { policy: 1, refunds: *random.pick(&[0, 100]), ..source(many * 3 / 2, uneven(random)) },
        ],
        faults,
        ..Plan::default()
    }
}

/// A node hands out slots of a concurrent limit all the time, is not heard by the store for longer than its lease
/// lasts, and is heard again. The store is far away, so that a lease ends well before it would by the answer's arrival.
pub(super) fn unheard(random: &mut Random, _: u64) -> Plan {
    let nodes = random.between(2, 4) as u32; // at most 4
    let count = random.between(8, 60);
    let on_store_loss = *random.pick(&[OnStoreLoss::Share, OnStoreLoss::Share, OnStoreLoss::Deny]);
    let (at, lasts) = (Span::millis(random.between(1_000, 2_000)), Span::millis(random.between(10_500, 13_000)));
    let some = if random.chance(300) { Vec::new() } else { (0..nodes.div_ceil(2)).collect() };
    let way = *random.pick(&[Way::Both, Way::ToRedis, Way::FromRedis]);
    let stays = random.between(50, 200);
    let part = *random.pick(&[600, 1_500, 2_500]);
    Plan {
        nodes,
        gossip: random.chance(500).then(Gossip::default),
        span: Span(at.0 + lasts.0 + random.between(2_000_000, 4_000_000)),
        network: Network { latency: Span::millis(random.between(5, 18)), ..Network::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        policies: vec![Policy {
            limits: vec![format!("{count}/{}ms concurrent", random.between(100, 1_500))],
            on_store_loss,
        }],
        demand: vec![Demand {
            stays: Span::millis(stays),
            drops: *random.pick(&[0, 50]),
            ..source((count * 2 * part / stays).min(500), Spread::Even)
        }],
        faults: vec![Fault { at, lasts, what: What::Cut { nodes: some, masters: Vec::new(), way } }],
        ..Plan::default()
    }
}

/// At all times, more keys have something to report than a round of gossip has room for.
fn chorus(random: &mut Random, _: u64) -> Plan {
    let (nodes, keys) = (random.between(9, 12), random.between(60, 120));
    let count = random.between(15, 40);
    Plan {
        nodes: nodes as u32, // at most 12
        gossip: Some(Gossip { tick: Span::millis(*random.pick(&[30, 50])), ..Gossip::default() }),
        span: Span::secs(4),
        policies: vec![policy(format!("{count}/1s fixed"))],
        // Each node is asked for each key about once in a window.
        demand: vec![Demand { keys: keys as u32, ..source(nodes * keys, Spread::Even) }], // keys at most 120
        ..Plan::default()
    }
}

/// Answers are late now and then, on connections, so that a node knows the store's clock to within that; and one tells all the time
/// that the next sliding window is spent.
fn doubted(random: &mut Random, _: u64) -> Plan {
    let (nodes, keys, span) = (random.between(5, 9), random.between(15, 30), Span::secs(7));
    let what = What::Liar { node: random.below(nodes) as u32, lie: Lie::Huge }; // below `nodes`
    Plan {
        nodes: nodes as u32, // at most 9
        gossip: Some(Gossip { tick: Span::millis(50), ..Gossip::default() }),
        span,
        daemon: Daemon { timeout: Span::millis(25), ..Daemon::default() },
        network: Network {
            latency: Span::millis(random.between(1, 4)),
            jitter: Span(0),
            loss: 30,
            calls: Calls::Streams,
            ..Network::default()
        },
        policies: vec![policy(format!("{}/1s sliding", random.between(20, 40)))],
        demand: vec![Demand { keys: keys as u32, ..source(nodes * keys * 3 / 2, Spread::Even) }], // keys at most 30
        faults: vec![Fault { at: Span::millis(500), lasts: Span(span.0 - 600_000), what }],
        ..Plan::default()
    }
}

/// A lone daemon whose store goes away again and again, each time for less than two seconds. At first it leases a bucket that is used
/// up as it fills, and nobody else notices a loss before it does: it spends until then what had been lent before it came. Then it
/// leases sliding windows of which it has spent much on its share when the store is back.
fn sole(random: &mut Random, _: u64) -> Plan {
    let burst = random.between(80, 120);
    let rate = 4 * burst * random.between(5, 8) / 4;
    let (count, short) = (random.between(80, 150), random.between(300, 500));
    let sliding = |policy, rate| Demand { policy, from: Span::secs(8), ..source(rate, Spread::Even) };
    let mut faults = Vec::new();
    for turn in 0..3 {
        let at = Span::millis(1_150 + turn * 2_300 + random.between(0, 150));
        faults.push(Fault { at, lasts: Span::millis(random.between(600, 900)), what: everywhere() });
    }
    for turn in 0..3 {
        let at = Span::millis(9_000 + turn * 4_000 + random.between(0, 1_000));
        faults.push(Fault { at, lasts: Span::millis(random.between(1_300, 1_900)), what: everywhere() });
    }
    Plan {
        nodes: 1,
        span: Span::secs(20),
        daemon: Daemon { timeout: Span::millis(25), ..Daemon::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        policies: vec![
            policy(format!("{}/1s burst {burst}", 4 * burst)),
            policy(format!("{count}/1s sliding")),
            policy(format!("{count}/{short}ms sliding")),
        ],
        demand: vec![
            Demand { until: Span::secs(8), ..source(rate, Spread::Even) },
            sliding(1, count * 2),
            sliding(2, count * 2_000 / short),
        ],
        faults,
        // The part of a bucket's share that is spent while a late answer is under way.
        expect: Expect { over: Some(2_000), ..Expect::default() },
        ..Plan::default()
    }
}

/// While the store is away a fleet that has long known itself grows to twice its size: who comes has met nobody, and is asked at
/// once for as much as the others are.
fn strangers(random: &mut Random, _: u64) -> Plan {
    let (nodes, count) = (random.between(4, 6), random.between(200, 400));
    let more = nodes * random.between(20, 28) / 10;
    let lost = Span::millis(random.between(6_500, 7_500));
    let comes = Span(lost.0 + random.between(1_500_000, 2_500_000));
    Plan {
        nodes: nodes as u32, // at most 6
        gossip: Some(Gossip::default()),
        span: Span::secs(16),
        warm_up: Span::secs(6),
        policies: vec![policy(format!("{count}/1s fixed"))],
        demand: vec![source(count * random.between(5, 6) / 2, Spread::Even)],
        faults: vec![
            Fault { at: lost, lasts: Span::secs(7), what: everywhere() },
            Fault { at: comes, lasts: Span::secs(4), what: What::Scale { nodes: more as u32 } }, // at most 16
        ],
        expect: Expect { over: Some(0), ..Expect::default() },
        ..Plan::default()
    }
}

/// Keys that are asked for so seldom that each check is charged by a call of its own, and what it was too much goes back to the
/// store: of two windows the second one may end on the way.
fn overdue(random: &mut Random, _: u64) -> Plan {
    let [many, few] = [random.between(1_000, 2_000), random.between(80, 120)];
    Plan {
        nodes: random.between(4, 6) as u32, // at most 6
        span: Span::secs(5),
        network: Network { latency: Span::millis(random.between(14, 17)), ..Network::default() },
        policies: vec![Policy {
            limits: vec![
                format!("{many}/3s {}", *random.pick(&["sliding", "fixed"])),
                format!("{few}/{}ms fixed", random.between(90, 120)),
            ],
            ..Policy::default()
        }],
        demand: vec![Demand {
            keys: random.between(60, 90) as u32, // at most 90
            cost: 8,
            cost_from: 2,
            holds: 1_000,
            settle: Span::millis(random.between(50, 80)),
            actual: 500,
            ..source(600, Spread::Even)
        }],
        ..Plan::default()
    }
}

/// Keys that each node checks about once in a window, leased by the nodes that own them.
fn cold(random: &mut Random, _: u64) -> Plan {
    let (nodes, keys) = (random.between(11, 14), random.between(80, 120));
    Plan {
        nodes: nodes as u32, // at most 14
        gossip: Some(Gossip::default()),
        span: Span::secs(20),
        warm_up: Span::secs(2),
        daemon: Daemon { owners: true, ..Daemon::default() },
        policies: vec![policy(format!("{}/10s fixed", random.between(50, 80)))],
        demand: vec![Demand { keys: keys as u32, ..source(nodes * keys / 10, Spread::Even) }], // keys at most 120
        // An owner that leased for itself alone would call the store for each check.
        expect: Expect { calls: Some(180), ..Expect::default() },
        ..Plan::default()
    }
}

/// A part of the fleet is further from the store than a check waits, and is lent by peers what buckets have that are never full.
fn remote(random: &mut Random, _: u64) -> Plan {
    let count = random.between(150, 300);
    Plan {
        nodes: random.between(6, 9) as u32, // at most 9
        gossip: Some(Gossip::default()),
        span: Span::secs(12),
        warm_up: Span::secs(4),
        daemon: Daemon { owners: true, ..Daemon::default() },
        zones: vec![Zone { nodes: 334, store: Span::millis(random.between(70, 90)) }],
        redis: Redis { masters: 1, ..Redis::default() },
        policies: vec![policy(format!("{count}/1s burst {count}"))],
        demand: vec![source(2 * count, Spread::Even)],
        // The tokens that shares admit before peers are found are repaid from what the peers lend.
        expect: Expect { over: Some(10_000), ..Expect::default() },
        ..Plan::default()
    }
}

/// Keys of several limits that each node is asked for about once in the shortest window: what is lent at its end is missing in the
/// longest. Nodes come and are not heard by some, so that not all of them agree on who owns a key.
fn nested(random: &mut Random, _: u64) -> Plan {
    let (nodes, keys, few) = (random.between(4, 6) as u32, random.between(8, 14), random.between(6, 12)); // at most 6
    let what = if random.chance(500) {
        What::Scale { nodes: nodes + 4 }
    } else {
        What::Part { nodes: vec![0, 1], one_way: true }
    };
    Plan {
        nodes,
        gossip: gossip(random),
        span: Span::secs(9),
        daemon: Daemon { owners: true, ..Daemon::default() },
        network: Network { latency: Span(*random.pick(&[200, 500, 2_000])), ..Network::default() },
        policies: vec![Policy {
            limits: vec![format!("{few}/1s fixed"), format!("{}/1h fixed", few * 200)],
            ..Policy::default()
        }],
        demand: vec![Demand { keys: keys as u32, ..source(keys * few / 2, Spread::Even) }], // keys at most 14
        faults: vec![Fault { at: Span::secs(3), lasts: Span::secs(4), what }],
        ..Plan::default()
    }
}

/// More nodes than own keys, and a store that is away from all of them.
fn vast(random: &mut Random, _: u64) -> Plan {
    let (nodes, count) = (random.between(80, 130), random.between(1_000, 2_000));
    let what = What::Cut { nodes: Vec::new(), masters: Vec::new(), way: Way::Both };
    Plan {
        nodes: nodes as u32, // at most 130
        gossip: Some(Gossip::default()),
        span: Span::secs(6),
        daemon: Daemon { owners: true, ..Daemon::default() },
        redis: Redis { masters: 1, ..Redis::default() },
        policies: vec![policy(format!("{count}/1s fixed"))],
        // Each node is asked about thirty times a second, and would try a peer as often.
        demand: vec![source(nodes * 30, Spread::Even)],
        faults: vec![Fault { at: Span::secs(2), lasts: Span::millis(random.between(2_000, 3_000)), what }],
        ..Plan::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rationd::core::limit::Limit;

    use super::*;

    #[test]
    fn every_scene_comes_up_within_a_hundred_seeds_and_its_limits_are_limits() {
        let mut seen = BTreeSet::new();
        for plan in (LENT_FROM..LENT_FROM + 100).filter_map(draw) {
            seen.insert(plan.about.rsplit(' ').next().expect("a name").trim_end_matches('.').to_owned());
            for limit in plan.policies.iter().flat_map(|policy| &policy.limits) {
                assert!(Limit::parse(limit).is_ok(), "{}: {limit}", plan.about);
            }
        }
        assert_eq!(seen.len(), SCENES.len() + LENT_HARD.len() + 1, "{seen:?}");
    }

    #[test]
    fn every_rare_scene_comes_up_within_a_hundred_seeds_and_its_limits_are_limits() {
        let mut seen = BTreeSet::new();
        for plan in (1..=100_u64).filter(|seed| seed.is_multiple_of(EVERY)).filter_map(draw) {
            seen.insert(plan.about.rsplit(' ').next().expect("a name").to_owned());
            for limit in plan.policies.iter().flat_map(|policy| &policy.limits) {
                assert!(Limit::parse(limit).is_ok(), "{}: {limit}", plan.about);
            }
        }
        assert_eq!(seen.len(), RARE.len() + HARD.len(), "{seen:?}");
    }

    #[test]
    fn a_check_at_the_edge_reaches_the_store_when_a_window_ends() {
        for seed in 1..=3_000 {
            let plan = edge(&mut Random::stream(seed, "edge"), seed);
            let period = Limit::parse(&plan.policies[0].limits[0]).expect("a limit").period.0;
            for demand in &plan.demand {
                let arrives = start_of(seed) + demand.from.0 + 1_000_000 / demand.rate + plan.network.latency.0;
                assert_eq!(arrives % period, 0, "seed {seed}: {demand:?}");
            }
        }
    }
}
