//! How fast is a check here, in Redis, and in throttlecrab? `cargo bench --bench compare`; with Redis as the store:
//! `cargo bench --bench compare -- --store redis`; and what it costs to be watched: `cargo bench --bench compare -- --watched`
//!
//! One client program (`rationd bench`) loads all of them in turn, round after round, so that what
//! disturbs the machine disturbs all. Medians of the rounds are compared. Servers run on one core
//! and the client on another where `taskset` can arrange it. A gate that is not met is printed, and
//! fails nothing: on a busy machine the same binary may read a tenth.

mod cold;
mod gates;
mod probe;
#[path = "../support/process.rs"]
mod process;
mod servers;
mod watched;

use probe::{Bench, Sample};
use servers::{Servers, rationd};

/// Rounds of each workload.
const ROUNDS: usize = 5;

/// Admitted always: this burst is not spent within the run.
const WIDE: &str = "100000000 30 60";
/// As in docs/start.md; one key spends it at once.
const NARROW: &str = "15 30 60";

/// What is asked of each server.
struct Workload {
    name: &'static str,
    pipeline: u32,
    keys: u64,
    limit: &'static str,
}

const WORKLOADS: [Workload; 4] = [
    Workload { name: "one key, no pipeline", pipeline: 1, keys: 1, limit: WIDE },
    Workload { name: "one key, pipeline 16", pipeline: 16, keys: 1, limit: WIDE },
    Workload { name: "one key denied, pipeline 16", pipeline: 16, keys: 1, limit: NARROW },
    Workload { name: "1M random keys, pipeline 16", pipeline: 16, keys: 1_000_000, limit: NARROW },
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|argument| argument == "--list") {
        return Ok(()); // `cargo test --benches` asks; there is nothing to test here.
    }
    let arguments: Vec<_> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["--store", "memory"] => {}
        ["--store", "redis"] => return Ok(cold::run()?),
        ["--watched"] => return Ok(watched::run(1)?),
        ["--watched", "--seed", seed] => return Ok(watched::run(seed.parse()?)?),
        _ => {
            let wanted = "wanted is nothing, or --store memory, or --store redis, or --watched [--seed NUMBER]";
            return Err(format!("{arguments:?}: {wanted}").into());
        }
    }
    let servers = Servers::start()?;
    let mut gates = gates::Gates::default();
    println!("50 connections, {ROUNDS} rounds each; CPU is the server's own, per command\n");
    for workload in &WORKLOADS {
        if workload.keys > 1 {
            servers.fill(workload.keys, workload.limit)?;
        }
        let medians = measure(&servers, workload)?;
        print_workload(workload, &servers, &medians);
        gates.throughput(workload.name, &medians);
    }
    latency(&servers, &mut gates)?;
    drop(servers);
    memory(&mut gates)?;
    gates.print();
    Ok(())
}

/// The median sample of each server, in their order.
fn measure(servers: &Servers, workload: &Workload) -> Result<Vec<Sample>, process::Failed> {
    let mut samples = vec![Vec::new(); servers.all.len()];
    for _ in 0..ROUNDS {
        for (server, samples) in servers.all.iter().zip(&mut samples) {
            let command = server.command(workload.limit);
            let bench = Bench { pipeline: workload.pipeline, keys: workload.keys, ..Bench::of(&command) };
            samples.push(server.load(&bench)?);
        }
    }
    Ok(samples.iter_mut().map(|samples| probe::median(samples)).collect())
}

fn print_workload(workload: &Workload, servers: &Servers, medians: &[Sample]) {
    println!("{}", workload.name);
    let script = medians[servers::EVALSHA].rate;
    for (server, sample) in servers.all.iter().zip(medians) {
        println!(
            "  {:<22} {:>10.0} /s  {:>6.2} x EVALSHA  {:>6.2} us CPU  p50 {:>7.0} us  p99 {:>7.0} us",
            server.name,
            sample.rate,
            sample.rate / script,
            sample.cpu_us,
            sample.p50_us,
            sample.p99_us
        );
    }
    println!();
}

fn latency(servers: &Servers, gates: &mut gates::Gates) -> Result<(), process::Failed> {
    println!("20,000 commands a second, latency from when each was due");
    let pair = [&servers.all[servers::RATIOND], &servers.all[servers::GET]];
    let mut samples = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (server, samples) in pair.iter().zip(&mut samples) {
            let command = server.command(WIDE);
            samples.push(server.load(&Bench { rate: Some(20_000), seconds: 2.0, ..Bench::of(&command) })?);
        }
    }
    let medians = samples.each_mut().map(|samples| probe::median_by(samples, |sample| sample.p99_us));
    for (server, sample) in pair.iter().zip(&medians) {
        println!(
            "  {:<22} p50 {:>7.0} us  p99 {:>7.0} us  {:>6.2} us CPU",
            server.name, sample.p50_us, sample.p99_us, sample.cpu_us
        );
    }
    println!();
    gates.latency(&medians);
    Ok(())
}

/// Memory of a fresh daemon while a million keys come, and then two million more than it may hold.
fn memory(gates: &mut gates::Gates) -> Result<(), process::Failed> {
    const KEYS: u64 = 1_000_000;
    let server = rationd()?;
    // No key is whole again before the end: none can be forgotten.
    let command = server.command("10 10 36000");
    server.load(&Bench { seconds: 0.5, ..Bench::of(&command) })?;
    let empty = server.resident_bytes();
    let mut grown = Vec::new();
    for keys in [KEYS, 3 * KEYS] {
        server.load(&Bench { keys, pipeline: 16, every_key_once: true, ..Bench::of(&command) })?;
        grown.push(server.resident_bytes().saturating_sub(empty) as f64 / KEYS as f64);
    }
    println!("memory: {:.0} B a key after 1M keys, {:.0} B per key of max_keys after 3M\n", grown[0], grown[1]);
    gates.memory(grown[0], grown[1]);
    Ok(())
}
