//! What our doors cost beside bare ones: `cargo bench --bench doors`
//!
//! h2load (of nghttp2) asks over a Unix socket on 50 connections, one request at a time on each: our Envoy door
//! beside a bare tonic service with the same messages, and our `/v1/check` beside a bare hyper server; the bare ones
//! answer a constant. Rounds in turn, medians, ratios. Servers have one thread, on a core of its own where
//! `taskset` can arrange it, and h2load has another. A gate that is not met is printed, and fails nothing.

mod bare;
#[path = "../support/process.rs"]
mod process;

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use rationd::client::Client;
use rationd::serve::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest, SHOULD_RATE_LIMIT};

use process::{Failed, Process, await_condition, cpu_seconds, directory, output, pinned, without_settings};

const ROUNDS: usize = 31;
const CONNECTIONS: &str = "50";
const MEASURED_MS: u32 = 500;
const WARM_UP_MS: u32 = 100;
/// What a door of ours is to reach of a bare one.
const GATE: f64 = 0.7;

/// Admits every request of the run.
const CONFIG: &str = r#"
[policy.bench]
limits = ["4000000000/1d fixed from-first"]

[[descriptors.bench]]
match = ["user"]
policy = "bench"
"#;

/// One server and how it is asked.
struct Target<'a> {
    name: &'static str,
    socket: PathBuf,
    process: u32,
    arguments: &'a [String],
}

/// What a run came to.
#[derive(Clone, Copy)]
struct Sample {
    rate: f64,
    requests: u64,
    cpu_us: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return Ok(()); // `cargo test --benches` asks; there is nothing to test here.
    }
    if let Some(served) = bare::serve(&arguments) {
        return served;
    }
    if Command::new("h2load").arg("--version").output().is_err() {
        return Err("h2load is not installed: apt-get install nghttp2-client (Debian, Ubuntu), or nghttp2".into());
    }
    let (daemon, tonic, hyper) = (rationd()?, bare(bare::TONIC)?, bare(bare::HYPER)?);
    let body = daemon.path("request");
    std::fs::write(&body, framed(&request()))?;
    let grpc = grpc_arguments(&body);
    let http: Vec<String> = ["--h1", "http://localhost/v1/check?policy=bench&key=k"].map(str::to_owned).into();
    println!("{CONNECTIONS} connections over a Unix socket, medians of {ROUNDS} rounds in turn, one thread a server\n");
    let of = |name, process: &Process, socket, arguments| Target {
        name,
        socket: process.path(socket),
        process: process.id(),
        arguments,
    };
    let pairs = [
        ("Envoy's RLS", [of("rationd", &daemon, "rls.sock", &grpc), of("bare tonic", &tonic, "bare.sock", &grpc)]),
        (
            "HTTP /v1/check",
            [of("rationd", &daemon, "rationd.sock", &http), of("bare hyper", &hyper, "bare.sock", &http)],
        ),
    ];
    for (name, pair) in &pairs {
        let before = admitted(&daemon)?;
        let rounds = measure(pair)?;
        let asked: u64 = rounds.iter().map(|[ours, _]| ours.requests).sum();
        let counted = admitted(&daemon)? - before;
        if counted < asked {
            return Err(format!("{name}: {asked} answers, but only {counted} checks were decided").into());
        }
        print(name, pair, &rounds);
    }
    Ok(())
}

/// Both in turn.
fn measure(pair: &[Target<'_>; 2]) -> Result<Vec<[Sample; 2]>, Failed> {
    (0..ROUNDS).map(|_| Ok([pair[0].load()?, pair[1].load()?])).collect()
}

fn median(rounds: &[[Sample; 2]], of: impl Fn(&[Sample; 2]) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Ratios are those of each round, so that what disturbs the machine for longer disturbs both sides.
fn print(name: &str, pair: &[Target<'_>; 2], rounds: &[[Sample; 2]]) {
    println!("{name}");
    for (side, target) in pair.iter().enumerate() {
        let (rate, cpu) = (median(rounds, |round| round[side].rate), median(rounds, |round| round[side].cpu_us));
        println!("  {:<17} {rate:>9.0} /s  {cpu:>6.2} us CPU", target.name);
    }
    let throughput = median(rounds, |[ours, theirs]| ours.rate / theirs.rate);
    // Where h2load is the slower side, only the CPU tells how much a door costs.
    let per_cpu = median(rounds, |[ours, theirs]| theirs.cpu_us / ours.cpu_us);
    for (what, ratio) in [("throughput", throughput), ("requests per CPU", per_cpu)] {
        println!("  {what:<17} {ratio:>6.2} x  gate >= {GATE}  {}", if ratio >= GATE { "MET" } else { "NOT MET" });
    }
    println!();
}

impl Target<'_> {
    fn load(&self) -> Result<Sample, Failed> {
        let mut command = pinned("h2load", 1);
        command.args(["-c", CONNECTIONS, "-t", "1", "-D", &format!("{MEASURED_MS}ms")]);
        command
            .args(["--warm-up-time", &format!("{WARM_UP_MS}ms"), "-B"])
            .arg(format!("unix:{}", self.socket.display()))
            .args(self.arguments);
        let before = cpu_seconds(self.process);
        let report = output(command)?;
        let cpu = cpu_seconds(self.process) - before;
        read(&report, cpu).ok_or_else(|| Failed(format!("{}: h2load tells\n{report}", self.name)))
    }
}

/// Reads h2load's report; `None`: something failed, or it is no report.
fn read(report: &str, cpu: f64) -> Option<Sample> {
    let line = |start: &str| report.lines().find(|line| line.starts_with(start));
    let before =
        |line: &str, word: &str| line.split(", ").find_map(|part| part.trim().strip_suffix(word)?.parse().ok());
    let rate: f64 = before(line("finished in ")?, " req/s")?;
    let counts = line("requests: ")?;
    let succeeded: f64 = before(counts, " succeeded")?;
    let wrong: f64 = [" failed", " errored", " timeout"].iter().filter_map(|word| before(counts, word)).sum();
    let status: f64 = before(line("status codes: ")?.strip_prefix("status codes: ")?, " 2xx")?;
    // The warm-up cost CPU too, at the same rate.
    let cpu_us = cpu * f64::from(MEASURED_MS) / f64::from(MEASURED_MS + WARM_UP_MS) * 1e6 / succeeded;
    (wrong == 0.0 && status >= succeeded && succeeded > 0.0).then_some(Sample {
        rate,
        requests: succeeded as u64,
        cpu_us,
    })
}

fn request() -> RateLimitRequest {
    let entries = vec![Entry { key: "user".into(), value: "k".into() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    RateLimitRequest { domain: "bench".into(), descriptors, hits_addend: 0 }
}

/// As gRPC sends it: not compressed, the length, the message.
fn framed(request: &RateLimitRequest) -> Vec<u8> {
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).expect("a request is short");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

fn grpc_arguments(body: &Path) -> Vec<String> {
    let body = body.display().to_string();
    let url = format!("http://localhost{SHOULD_RATE_LIMIT}");
    ["-d", &body, "-H", "content-type: application/grpc", "-H", "te: trailers", &url].map(str::to_owned).into()
}

/// A daemon with both doors and one policy.
fn rationd() -> Result<Process, Failed> {
    let directory = directory()?;
    let path = |name: &str| directory.path().join(name);
    let (socket, door, config) = (path("rationd.sock"), path("rls.sock"), path("rationd.toml"));
    std::fs::write(&config, format!("listen.envoy = {door:?}\nlisten.threads = 1\n{CONFIG}"))
        .map_err(|error| Failed(error.to_string()))?;
    let mut command = pinned(env!("CARGO_BIN_EXE_rationd"), 0);
    without_settings(&mut command);
    command.args(["serve", "--admin", "off", "--config"]).arg(config).arg("--socket").arg(&socket);
    let process = Process::start(command, directory)?;
    await_condition("rationd", || Client::connect(&socket).ok()?.command(&[b"PING"]).ok())?;
    Ok(process)
}

/// This program once more.
fn bare(kind: &str) -> Result<Process, Failed> {
    let directory = directory()?;
    let socket = directory.path().join("bare.sock");
    let this = std::env::current_exe().map_err(|error| Failed(error.to_string()))?;
    let mut command = pinned(&this.to_string_lossy(), 0);
    command.arg(kind).arg(&socket);
    let process = Process::start(command, directory)?;
    await_condition(kind, || std::os::unix::net::UnixStream::connect(&socket).ok())?;
    Ok(process)
}

/// Checks that the daemon has admitted so far; fails if it denied any.
fn admitted(daemon: &Process) -> Result<u64, Failed> {
    let failed = |what: &dyn std::fmt::Display| Failed(format!("RATION.STATS: {what}"));
    let mut client = Client::connect(daemon.path("rationd.sock")).map_err(|error| failed(&error))?;
    let reply = client.command(&[b"RATION.STATS"]).map_err(|error| failed(&error))?;
    let stats: serde_json::Value =
        serde_json::from_slice(reply.as_bytes().unwrap_or_default()).map_err(|error| failed(&error))?;
    let checks = stats["policies"]["bench"]["checks"].as_array().cloned().unwrap_or_default();
    let count = |verdict: &str| {
        let of = checks.iter().filter(|check| check["verdict"] == verdict);
        of.filter_map(|check| check["count"].as_u64()).sum::<u64>()
    };
    match count("deny") {
        0 => Ok(count("allow")),
        denied => Err(failed(&format!("{denied} checks were denied"))),
    }
}
