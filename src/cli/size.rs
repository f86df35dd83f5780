//! `rationd size`: estimates the load of a fleet on its store before either exists.
//!
//! Keys do not influence each other, so a part of them is enough: keys that are asked for about equally often form a
//! group, some of each group are replayed through the core at all nodes, and what they cost stands for the group.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde_json::json;

use super::args::SizeArgs;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;
use super::replay::{Fate, Terms, replay};
use crate::core::key::{Digest, DigestKey};
use crate::core::limit::parse_period;
use crate::core::policy::{Plan, PolicySet, PolicySpec, Rule};
use crate::core::time::{Micros, Timestamp};
use crate::serve::recording::file::{Arrival, Event, policy_tag};

/// The policy that all keys belong to.
const POLICY: &str = "size";

/// The time at which replays begin: any time at which a window of a day begins.
const START: u64 = 1_800_057_600_000_000;

/// The least keys of a group that are replayed, and the most, which groups with few checks per key come to.
const KEYS: [u64; 2] = [6, 4_000];

/// Checks of a group after which no further key is replayed, and the most checks of a single key.
const CHECKS: [f64; 2] = [3_000.0, 200_000.0];

/// How many seconds are replayed before anything counts, and how many then: one period and three periods of the longest
/// limit, within these bounds.
const WARM_UP: [f64; 2] = [5.0, 60.0];
const SPAN: [f64; 2] = [15.0, 180.0];

/// How long a check waits for the store by default.
const TIMEOUT: Micros = Micros::from_millis(50);

/// Bytes in Redis of a key with one limit that one node leases, and of each further node, as `MEMORY USAGE` of Redis 7
/// says. A further limit takes about as much as a node.
const REDIS_KEY: u64 = 200;
const REDIS_NODE: u64 = 48;

/// Keys that are asked for about equally often.
struct Group {
    /// The ranks of its keys, from 1.
    ranks: std::ops::RangeInclusive<u64>,
    /// Checks a second to all of them.
    rate: f64,
}

/// The estimate, for all nodes together.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    /// Calls a second, then checks that wait and checks that are denied.
    calls: f64,
    waits: f64,
    denied: f64,
    /// Bytes in Redis, at most: all keys at all nodes that ask for them.
    redis_bytes: f64,
}

/// What one group costs, per check.
struct Cost {
    calls: f64,
    waits: f64,
    denied: f64,
    /// How many nodes ask for one of its keys within the limits' longest period, on average.
    nodes: f64,
}

pub(crate) fn run(args: &SizeArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    let wrong = |text: String| ExitError::new(Code::Usage, text);
    if !(0.0..=3.0).contains(&args.zipf) {
        return Err(wrong(format!("--zipf {}: a number from 0 to 3 was wanted", args.zipf)).into());
    }
    let trip = parse_period(&args.trip).map_err(|error| wrong(format!("--trip {}: {error}", args.trip)))?;
    let spec = PolicySpec { limits: args.limit.clone(), ..PolicySpec::default() };
    let policies = PolicySet::compile(&BTreeMap::from([(POLICY.to_owned(), spec)]))
        .map_err(|errors| wrong(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")))?;
    let plan = policies.get(POLICY).map(|policy| &policy.plan);
    let Some(Plan::Limited(rule)) = plan.filter(|plan| matches!(plan, Plan::Limited(rule) if !rule.is_concurrent()))
    else {
        return Err(
            wrong("a concurrent limit is not reckoned: its calls follow how long what it counts lasts".into()).into()
        );
    };
    let size = reckon(args, &policies, rule, trip);
    let rate = args.rate as f64;
    let summary = json!({
        "nodes": args.nodes,
        "checks_per_second": args.rate,
        "store_calls_per_second": size.calls.round(),
        "store_calls_per_1000_checks": (size.calls / rate * 10_000.0).round() / 10.0,
        "waits_for_the_store_per_1000_checks": (size.waits / rate * 10_000.0).round() / 10.0,
        "denied_per_1000_checks": (size.denied / rate * 10_000.0).round() / 10.0,
        "redis_bytes_at_most": size.redis_bytes.round(),
    });
    if globals.output == Output::Json {
        output::data(&summary.to_string())?;
        return Ok(Code::Ok.into());
    }
    let per_1000 = |value: f64| format!("{:.1}", value / rate * 1_000.0);
    let rows = [
        ("checks a second".to_owned(), args.rate.to_string(), format!("{:.0} a node", rate / f64::from(args.nodes))),
        (
            "store calls a second".into(),
            format!("{:.0}", size.calls),
            format!("{:.1} a node", size.calls / f64::from(args.nodes)),
        ),
        ("store calls per 1000 checks".into(), per_1000(size.calls), "1000 without leases".into()),
        ("waits for the store per 1000 checks".into(), per_1000(size.waits), format!("of {} each", args.trip)),
        ("denied per 1000 checks".into(), per_1000(size.denied), String::new()),
        (
            "memory of Redis, at most".into(),
            format!("{:.0} MiB", (size.redis_bytes / 1_048_576.0).ceil()),
            String::new(),
        ),
    ];
    let rows: Vec<_> = rows.into_iter().map(|(what, number, note)| vec![what, number, note]).collect();
    output::data(&output::table(&rows))?;
    Ok(Code::Ok.into())
}

fn reckon(args: &SizeArgs, policies: &PolicySet, rule: &Rule, trip: Micros) -> Size {
    let mut size = Size::default();
    for group in groups(args) {
        let cost = replay_group(&group, args, policies, rule, trip);
        size.calls += cost.calls * group.rate;
        size.waits += cost.waits * group.rate;
        size.denied += cost.denied * group.rate;
        let keys = (group.ranks.end() - group.ranks.start() + 1) as f64;
        let extra = cost.nodes + rule.limits.len() as f64 - 2.0;
        size.redis_bytes += keys * (REDIS_KEY as f64 + REDIS_NODE as f64 * extra.max(0.0));
    }
    size
}

/// The keys by how often they are asked for: each group has about twice as many as the one before.
fn groups(args: &SizeArgs) -> Vec<Group> {
    let mut groups = Vec::new();
    let mut first = 1;
    while first <= args.keys {
        let last = (2 * first - 1).min(args.keys);
        groups.push(Group { ranks: first..=last, rate: weight(first..=last, args.zipf) });
        first = last + 1;
    }
    let all: f64 = groups.iter().map(|group| group.rate).sum();
    groups.iter_mut().for_each(|group| group.rate *= args.rate as f64 / all);
    groups
}

/// The sum of the weights of these ranks. A long range is cut into 64 parts, and the middle of each stands for its
/// part.
fn weight(ranks: std::ops::RangeInclusive<u64>, zipf: f64) -> f64 {
    let (first, count) = (*ranks.start() as f64, (ranks.end() - ranks.start() + 1) as f64);
    let parts = count.min(64.0);
    let of = |part: f64| (first - 0.5 + (part + 0.5) * count / parts).powf(-zipf) * count / parts;
    (0..parts as u32).map(|part| of(f64::from(part))).sum()
}

fn replay_group(group: &Group, args: &SizeArgs, policies: &PolicySet, rule: &Rule, trip: Micros) -> Cost {
    let period = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(1) as f64 / 1e6;
    let keys = group.ranks.end() - group.ranks.start() + 1;
    let per_key = group.rate / keys as f64;
    let warm_up = period.clamp(WARM_UP[0], WARM_UP[1]);
    let span = (3.0 * period).clamp(SPAN[0], SPAN[1]).min((CHECKS[1] / per_key - warm_up).max(SPAN[0]));
    let wanted = (CHECKS[0] / (per_key * span)).ceil().clamp(KEYS[0] as f64, KEYS[1] as f64) as u64;
    let sample = wanted.min(keys);
    let mut recordings: Vec<Vec<Arrival>> = (0..args.nodes).map(|_| Vec::new()).collect();
    let mut draws = Draws(*group.ranks.start());
    for number in 0..sample {
        // The replayed keys are spread evenly over the group's ranks, and each has the rate of its rank.
        let rank = group.ranks.start() + (2 * number + 1) * keys / (2 * sample);
        let share = (rank as f64).powf(-args.zipf) / weight(group.ranks.clone(), args.zipf);
        arrive(rank, group.rate * share, warm_up + span, &mut draws, &mut recordings);
    }
    recordings.iter_mut().for_each(|arrivals| arrivals.sort_by_key(|arrival| arrival.at));
    let counted_from = Timestamp(START + (warm_up * 1e6) as u64);
    let terms = Terms { nodes: recordings.len(), trip, timeout: TIMEOUT, digests: DigestKey::default(), counted_from };
    let replayed = replay(policies, &recordings, false, terms);
    let counted = || {
        let both = recordings.iter().flatten().zip(replayed.fates.iter().flatten());
        both.filter(|(arrival, _)| arrival.at >= counted_from)
    };
    let checks = (counted().count() as f64).max(1.0);
    let denied = counted().filter(|(_, fate)| **fate == Fate::Denied).count() as f64;
    // The probability that a node asks for a key within a period: checks come as a Poisson process and go to random
    // nodes.
    let asks = 1.0 - (-per_key * period / f64::from(args.nodes)).exp();
    Cost {
        calls: replayed.calls as f64 / checks,
        waits: replayed.waits as f64 / checks,
        denied: denied / checks,
        nodes: f64::from(args.nodes) * asks,
    }
}

/// Checks of one key at random nodes: a Poisson process of `rate` a second, for so many seconds.
fn arrive(rank: u64, rate: f64, seconds: f64, draws: &mut Draws, into: &mut [Vec<Arrival>]) {
    let (digest, policy) = (Digest::of(POLICY, &rank.to_le_bytes()), policy_tag(POLICY));
    let mut at = 0.0;
    loop {
        at -= (1.0 - draws.unit()).ln() / rate;
        if at >= seconds {
            return;
        }
        let node = (draws.unit() * into.len() as f64) as usize % into.len();
        let at = Timestamp(START + (at * 1e6) as u64);
        into[node].push(Arrival { at, digest, policy, cost: 1, event: Event::Admitted, key: Box::default() });
    }
}

/// Pseudo-random numbers: SplitMix64 (Steele, Lea and Flood 2014).
struct Draws(u64);

impl Draws {
    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
