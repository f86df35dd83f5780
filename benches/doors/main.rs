//! What our doors cost beside other servers: `cargo bench --bench doors`
//!
//! The load asks on 50 connections for 1,000 keys in turn (`load.rs`): our Envoy door beside a bare tonic service with the same
//! messages and, where `LIMITADOR` names its program, beside limitador; our `/v1/check` beside a bare hyper server and beside
//! throttlecrab, which is built once. The bare ones answer a constant. Rounds in turn, medians, ratios. Servers have one thread,
//! on a core of its own where `taskset` can arrange it, and the load has another. A goal that is missed is printed, and fails nothing.

mod bare;
mod load;
#[path = "../support/process.rs"]
mod process;

use std::process::Command;
use std::time::Duration;

use rationd::client::Client;

use load::{KEYS, Kind};
use process::{
    Failed, Process, await_condition, cpu_seconds, directory, free_port, pinned, throttlecrab_server, without_settings,
};

const ROUNDS: usize = 31;
const MEASURED: Duration = Duration::from_millis(500);
/// Long enough for each key to be asked for, so that its lease or its denial is there.
const WARM_UP: Duration = Duration::from_millis(300);

/// Burst and count of what admits every request of the run, and of what denies all but a key's first.
const MUCH: u64 = 4_000_000_000;
const LITTLE: u64 = 1;

const CONFIG: &str = r#"
[policy.bench]
limits = ["4000000000/1d fixed from-first"]

[policy.denied]
limits = ["1/1d fixed from-first"]

[[descriptors.bench]]
match = ["user"]
policy = "bench"
"#;

/// The same for limitador.
const LIMITS: &str = "- namespace: bench
  max_value: 4000000000
  seconds: 86400
  conditions: []
  variables: [\"descriptors[0]['user']\"]
";

/// One server, and where it listens.
struct Target<'a> {
    name: &'static str,
    process: &'a Process,
    address: String,
}

/// Ours beside another, how each is asked, and what ours is to reach of it.
struct Pair<'a> {
    what: &'static str,
    ours: (Target<'a>, Kind),
    theirs: (Target<'a>, Kind),
    goal: f64,
}

/// What a run came to.
#[derive(Clone, Copy)]
struct Sample {
    rate: f64,
    answers: u64,
    cpu_us: f64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return Ok(()); // `cargo test --benches` asks; there is nothing to test here.
    }
    if let Some(served) = bare::serve(&arguments).or_else(|| load::serve(&arguments)) {
        return served;
    }
    let (unix, tcp) = (Daemon::on_sockets()?, Daemon::on_ports()?);
    let (tonic, hyper) = (bare(bare::TONIC)?, bare(bare::HYPER)?);
    let (limitador, throttlecrab) = (limitador()?, throttlecrab());
    if let Err(Failed(why)) = &throttlecrab {
        println!("without throttlecrab: {why}\n");
    }
    let bare = |name, process| Target::at(name, process, path(process, "bare.sock"));
    let mut pairs = Vec::new();
    for (what, streams) in [("Envoy's RLS", 1), ("Envoy's RLS, 16 streams", 16)] {
        let kind = Kind::Rls(streams);
        let others =
            [Some((bare("bare tonic", &tonic), &unix, 0.95)), limitador.as_ref().map(|it| (it.target(), &tcp, 2.0))];
        for (theirs, daemon, goal) in others.into_iter().flatten() {
            pairs.push(Pair { what, ours: (daemon.rls(), kind), theirs: (theirs, kind), goal });
        }
    }
    for (what, policy, ours_say, count, theirs_say) in [
        ("HTTP, admitted", "bench", " 200 ", MUCH, "\"allowed\":true"),
        ("HTTP, denied", "denied", " 429 ", LITTLE, "\"allowed\":false"),
    ] {
        let check = |method| Kind::Check(method, policy, ours_say);
        if count == MUCH {
            let (kind, theirs) = (check("GET"), bare("bare hyper", &hyper));
            pairs.push(Pair { what, ours: (unix.checks(), kind), theirs: (theirs, kind), goal: 0.7 });
        }
        if let Ok(it) = &throttlecrab {
            // A GET charges nothing over TCP.
            let (kind, theirs) = (check("POST"), (it.target(), Kind::Throttle(count, theirs_say)));
            pairs.push(Pair { what, ours: (tcp.checks(), kind), theirs, goal: 1.1 });
        }
    }
    let connections = load::CONNECTIONS;
    println!("{connections} connections, {KEYS} keys, medians of {ROUNDS} rounds in turn, one thread a server\n");
    for pair in &pairs {
        pair.ours.0.load(pair.ours.1.anyhow(), WARM_UP)?;
        pair.theirs.0.load(pair.theirs.1.anyhow(), WARM_UP)?;
        let before = [&unix, &tcp].map(Daemon::checks_so_far);
        let rounds = pair.measure()?;
        let asked: u64 = rounds.iter().map(|[ours, _]| ours.answers).sum();
        let counted: u64 =
            [&unix, &tcp].map(Daemon::checks_so_far).into_iter().zip(before).map(|(now, then)| now - then).sum();
        if counted < asked {
            return Err(format!("{}: {asked} answers, but only {counted} checks were decided", pair.what).into());
        }
        pair.print(&rounds);
    }
    Ok(())
}

impl Pair<'_> {
    /// Both in turn.
    fn measure(&self) -> Result<Vec<[Sample; 2]>, Failed> {
        let round = |_| Ok([self.ours.0.load(self.ours.1, MEASURED)?, self.theirs.0.load(self.theirs.1, MEASURED)?]);
        (0..ROUNDS).map(round).collect()
    }

    /// Ratios are those of each round, so that what disturbs the machine for longer disturbs both sides.
    fn print(&self, rounds: &[[Sample; 2]]) {
        println!("{}", self.what);
        for (side, target) in [&self.ours.0, &self.theirs.0].into_iter().enumerate() {
            let (rate, cpu) = (median(rounds, |round| round[side].rate), median(rounds, |round| round[side].cpu_us));
            println!("  {:<17} {rate:>9.0} /s  {cpu:>6.2} us CPU", target.name);
        }
        let throughput = median(rounds, |[ours, theirs]| ours.rate / theirs.rate);
        // Where the load is the slower side, only the CPU tells how much a door costs.
        let per_cpu = median(rounds, |[ours, theirs]| theirs.cpu_us / ours.cpu_us);
        let goal = self.goal;
        for (what, ratio) in [("throughput", throughput), ("requests per CPU", per_cpu)] {
            println!("  {what:<17} {ratio:>6.2} x  goal >= {goal}  {}", if ratio >= goal { "MET" } else { "MISSED" });
        }
        println!();
    }
}

fn median(rounds: &[[Sample; 2]], of: impl Fn(&[Sample; 2]) -> f64) -> f64 {
    let mut figures: Vec<f64> = rounds.iter().map(of).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn path(process: &Process, name: &str) -> String {
    process.path(name).display().to_string()
}

impl<'a> Target<'a> {
    fn at(name: &'static str, process: &'a Process, address: String) -> Self {
        Self { name, process, address }
    }

    fn load(&self, kind: Kind, length: Duration) -> Result<Sample, Failed> {
        let before = cpu_seconds(self.process.id());
        let (answers, seconds) =
            load::run(kind, &self.address, length).map_err(|Failed(why)| Failed(format!("{}: {why}", self.name)))?;
        let cpu = cpu_seconds(self.process.id()) - before;
        Ok(Sample { rate: answers as f64 / seconds, answers, cpu_us: cpu * 1e6 / answers as f64 })
    }
}

/// A daemon with both doors, and where they are.
struct Daemon {
    process: Process,
    rls: String,
    checks: String,
}

impl Daemon {
    fn on_sockets() -> Result<Self, Failed> {
        let directory = directory()?;
        let [rls, checks] = ["rls.sock", "rationd.sock"].map(|name| directory.path().join(name).display().to_string());
        Self::start(directory, rls, checks, "")
    }

    fn on_ports() -> Result<Self, Failed> {
        let [rls, checks] = [free_port()?, free_port()?].map(|port| format!("127.0.0.1:{port}"));
        let listen = format!("listen.tcp = {checks:?}\n");
        Self::start(directory()?, rls, checks, &listen)
    }

    fn start(directory: tempfile::TempDir, rls: String, checks: String, listen: &str) -> Result<Self, Failed> {
        let (socket, config) = (directory.path().join("rationd.sock"), directory.path().join("rationd.toml"));
        std::fs::write(&config, format!("listen.envoy = {rls:?}\nlisten.threads = 1\n{listen}{CONFIG}"))
            .map_err(|error| Failed(error.to_string()))?;
        let mut command = pinned(env!("CARGO_BIN_EXE_rationd"), 0);
        without_settings(&mut command);
        command.args(["serve", "--admin", "off", "--config"]).arg(config).arg("--socket").arg(&socket);
        let process = Process::start(command, directory)?;
        await_condition("rationd", || Client::connect(&socket).ok()?.command(&[b"PING"]).ok())?;
        Ok(Self { process, rls, checks })
    }

    fn rls(&self) -> Target<'_> {
        Target::at("rationd", &self.process, self.rls.clone())
    }

    fn checks(&self) -> Target<'_> {
        Target::at("rationd", &self.process, self.checks.clone())
    }

    /// Checks that it has decided so far.
    fn checks_so_far(&self) -> u64 {
        let read = || {
            let mut client = Client::connect(self.process.path("rationd.sock")).ok()?;
            let reply = client.command(&[b"RATION.STATS"]).ok()?;
            let stats: serde_json::Value = serde_json::from_slice(reply.as_bytes()?).ok()?;
            let of = |policy: &str| -> u64 {
                let checks = stats["policies"][policy]["checks"].as_array().cloned().unwrap_or_default();
                checks.iter().filter_map(|check| check["count"].as_u64()).sum()
            };
            Some(of("bench") + of("denied"))
        };
        read().unwrap_or(0)
    }
}

/// Another server at a TCP address.
struct Peer {
    name: &'static str,
    process: Process,
    address: String,
}

impl Peer {
    fn start(
        name: &'static str,
        mut command: Command,
        directory: tempfile::TempDir,
        port: u16,
    ) -> Result<Self, Failed> {
        command.env("RUST_LOG", "error");
        let process = Process::start(command, directory)?;
        await_condition(name, || std::net::TcpStream::connect(("127.0.0.1", port)).ok())?;
        Ok(Self { name, process, address: format!("127.0.0.1:{port}") })
    }

    fn target(&self) -> Target<'_> {
        Target::at(self.name, &self.process, self.address.clone())
    }
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

/// limitador with its counters in memory, where `LIMITADOR` names the program.
fn limitador() -> Result<Option<Peer>, Failed> {
    let Some(program) = std::env::var_os("LIMITADOR") else {
        println!("without limitador: LIMITADOR names no limitador-server\n");
        return Ok(None);
    };
    let (directory, port) = (directory()?, free_port()?);
    let limits = directory.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS).map_err(|error| Failed(error.to_string()))?;
    let mut command = pinned(&program.to_string_lossy(), 0);
    command.args(["--rls-ip", "127.0.0.1", "--http-ip", "127.0.0.1", "--rls-port", &port.to_string()]);
    command.args(["--http-port", &free_port()?.to_string()]).arg(&limits).arg("memory");
    Peer::start("limitador", command, directory, port).map(Some)
}

/// throttlecrab's HTTP server.
fn throttlecrab() -> Result<Peer, Failed> {
    let (program, port) = (throttlecrab_server()?, free_port()?);
    let mut command = pinned(&program.to_string_lossy(), 0);
    command.args(["--http", "--http-host", "127.0.0.1", "--log-level", "warn", "--http-port", &port.to_string()]);
    Peer::start("throttlecrab", command, directory()?, port)
}
