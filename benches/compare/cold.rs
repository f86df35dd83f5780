//! How fast is a check whose tokens Redis counts? `cargo bench --bench compare -- --store redis`
//!
//! The daemon with a Redis, redis-cell in a Redis and a plain GCRA script in a Redis take turns, and each turn starts
//! its servers anew, so that nothing of the turn before is still given back or expired. All servers share a core, the
//! client has another one. What a check costs the daemon and what it costs Redis says how fast it would be with a core
//! for each.

use std::collections::BTreeMap;

use rationd::client::{Client, Reply};

use super::probe::{Bench, Door, Sample, median_by};
use super::process::{Failed, cpu_seconds, redis_server};
use super::servers::{await_socket, rationd_beside};

/// Turns of each system with each load.
const ROUNDS: usize = 5;

/// Names the file of redis-cell's module.
const MODULE: &str = "REDIS_CELL";

/// One load.
struct Load {
    name: &'static str,
    pipeline: u32,
    keys: u64,
    /// As Zipf's law has it, and after a first load of the same kind, which is not counted.
    zipf: bool,
    /// Seconds of that first load, of a daemon: what it has leased by then makes it quicker. The others remember nothing.
    lead: f64,
    limit: &'static str,
}

/// So many that none comes twice.
const NEW: u64 = 10_000_000_000;

const LOADS: [Load; 7] = [
    Load { name: "one hot key", pipeline: 1, keys: 1, zipf: false, lead: 2.0, limit: super::WIDE },
    Load { name: "every key new", pipeline: 1, keys: NEW, zipf: false, lead: 0.0, limit: "1000 1000 60" },
    Load {
        name: "every key new, 16 pipelined",
        pipeline: 16,
        keys: NEW,
        zipf: false,
        lead: 0.0,
        limit: "1000 1000 60",
    },
    zipf("Zipf(1.0), 100,000 keys", 1, 2.0),
    zipf("Zipf(1.0), 100,000 keys, 16 pipelined", 16, 2.0),
    zipf("Zipf(1.0), 100,000 keys, 15 s later", 1, 17.0),
    zipf("Zipf(1.0), 100,000 keys, 16 pipelined, 15 s later", 16, 17.0),
];

const fn zipf(name: &'static str, pipeline: u32, lead: f64) -> Load {
    Load { name, pipeline, keys: 100_000, zipf: true, lead, limit: "1000 1000 60" }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Rationd,
    Cell,
    Script,
}

/// One turn of a system.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    sample: Sample,
    /// CPU time of Redis for each reply.
    redis_us: f64,
    /// Script calls for each 1,000 replies.
    calls: f64,
    /// Checks that were denied without the store, of 1,000.
    falsely: f64,
}

/// Measures and prints all of it.
pub(crate) fn run() -> Result<(), Failed> {
    let mut systems = vec![System::Rationd, System::Script];
    if std::env::var_os(MODULE).is_some() {
        systems.insert(1, System::Cell);
    } else {
        println!("without redis-cell: {MODULE} does not name the file of its module (libredis_cell.so)\n");
    }
    println!("50 connections, {ROUNDS} rounds each, medians; servers share a core; us CPU a check\n");
    println!(
        "| | checks/s | x script | x redis-cell | daemon us | Redis us | a core each | p99 us | calls | false denials |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for load in &LOADS {
        let mut turns = vec![Vec::new(); systems.len()];
        for round in 0..ROUNDS {
            for (system, turns) in systems.iter().zip(&mut turns) {
                turns.push(system.turn(load, round as u32)?);
            }
        }
        let medians: Vec<_> = turns.iter().map(|turns| Turn::median(turns)).collect();
        let rate_of = |wanted| systems.iter().position(|system| *system == wanted).map(|at| medians[at].sample.rate);
        for (system, turn) in systems.iter().zip(&medians) {
            let ratio =
                |rival| rate_of(rival).map_or("–".to_owned(), |rate| format!("{:.2}", turn.sample.rate / rate));
            println!(
                "| {}: {system:?} | {:.0} | {} | {} | {:.2} | {:.2} | {:.0} | {:.0} | {:.0} | {:.1} ‰ |",
                load.name,
                turn.sample.rate,
                ratio(System::Script),
                ratio(System::Cell),
                turn.sample.cpu_us,
                turn.redis_us,
                1e6 / turn.sample.cpu_us.max(turn.redis_us),
                turn.sample.p99_us,
                turn.calls,
                turn.falsely,
            );
        }
    }
    Ok(())
}

impl System {
    fn turn(self, load: &Load, round: u32) -> Result<Turn, Failed> {
        let module = std::env::var(MODULE).ok().filter(|_| self == Self::Cell);
        let (redis, socket) = redis_server(module.as_deref())?;
        let mut control = await_socket(&socket, "redis-server")?;
        let daemon = (self == Self::Rationd).then(|| rationd_beside(&socket)).transpose()?;
        let (door, command) = match &daemon {
            Some((_, door)) => (Door::Socket(door.clone()), "CL.THROTTLE {key} {limit}".to_owned()),
            None if self == Self::Cell => (Door::Socket(socket), "CL.THROTTLE {key} {limit}".to_owned()),
            None => {
                let sha = super::servers::load_gcra(&mut control)?;
                (Door::Socket(socket), format!("EVALSHA {sha} 1 {{key}} {{limit}}"))
            }
        };
        let command = command.replace("{limit}", load.limit);
        let mut bench = Bench {
            pipeline: load.pipeline,
            keys: load.keys,
            zipf: load.zipf,
            seconds: 2.0,
            warmup: 0.0,
            seed: 1 + 2 * round,
            ..Bench::of(&command)
        };
        let process = daemon.as_ref().map(|(daemon, _)| daemon.id());
        if load.zipf || load.keys == 1 {
            let counted = bench.seconds;
            bench.seconds = if daemon.is_some() { load.lead } else { counted };
            bench.run(&door, redis.id())?;
            (bench.seconds, bench.seed) = (counted, bench.seed + 1);
        }
        let before = Counts::read(&mut control, daemon.as_ref().map(|(_, door)| door))?;
        let redis_before = cpu_seconds(redis.id());
        let mut sample = bench.run(&door, process.unwrap_or(redis.id()))?;
        let redis_us = (cpu_seconds(redis.id()) - redis_before) * 1e6 / sample.replies;
        let after = Counts::read(&mut control, daemon.as_ref().map(|(_, door)| door))?;
        if daemon.is_none() {
            sample.cpu_us = 0.0;
        }
        let per_thousand = |count: u64| count as f64 * 1e3 / sample.replies;
        Ok(Turn {
            sample,
            redis_us,
            calls: per_thousand(after.scripts - before.scripts),
            falsely: per_thousand(after.falsely - before.falsely),
        })
    }
}

impl Turn {
    fn median(turns: &[Self]) -> Self {
        let mut samples: Vec<_> = turns.iter().map(|turn| turn.sample).collect();
        let sample = median_by(&mut samples, |sample| sample.rate);
        let middle = |by: fn(&Self) -> f64| {
            let mut values: Vec<_> = turns.iter().map(by).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            sample: Sample {
                cpu_us: middle(|turn| turn.sample.cpu_us),
                p99_us: middle(|turn| turn.sample.p99_us),
                ..sample
            },
            redis_us: middle(|turn| turn.redis_us),
            calls: middle(|turn| turn.calls),
            // The worst turn: none is expected.
            falsely: turns.iter().map(|turn| turn.falsely).fold(0.0, f64::max),
        }
    }
}

/// What Redis and the daemon have counted.
struct Counts {
    scripts: u64,
    falsely: u64,
}

impl Counts {
    fn read(redis: &mut Client, daemon: Option<&std::path::PathBuf>) -> Result<Self, Failed> {
        let info = text(redis, &[b"INFO", b"commandstats"])?;
        let scripts = info
            .lines()
            .filter(|line| ["cmdstat_eval", "cmdstat_fcall"].iter().any(|name| line.starts_with(name)))
            .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok())
            .sum();
        let Some(socket) = daemon else { return Ok(Self { scripts, falsely: 0 }) };
        let mut client = await_socket(socket, "rationd")?;
        let stats = text(&mut client, &[b"RATION.STATS"])?;
        let stats: serde_json::Value =
            serde_json::from_str(&stats).map_err(|error| Failed(format!("{error}: {stats}")))?;
        let policies: BTreeMap<String, serde_json::Value> =
            serde_json::from_value(stats["policies"].clone()).map_err(|error| Failed(error.to_string()))?;
        let falsely = policies
            .values()
            .flat_map(|policy| policy["checks"].as_array().cloned().unwrap_or_default())
            .filter(|checks| {
                checks["verdict"] == "deny" && (checks["source"] == "share" || checks["source"] == "policy")
            })
            .filter_map(|checks| checks["count"].as_u64())
            .sum();
        Ok(Self { scripts, falsely })
    }
}

fn text(client: &mut Client, command: &[&[u8]]) -> Result<String, Failed> {
    let reply: Reply = client.command(command).map_err(|error| Failed(error.to_string()))?;
    let bytes = reply.as_bytes().ok_or_else(|| Failed(format!("no text: {reply:?}")))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}
