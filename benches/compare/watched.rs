//! What it costs a daemon to be watched: `cargo bench --bench compare -- --watched`.
//!
//! Four daemons with their embedded stores: one that nobody watches, one that records what comes, one with everything on
//! (recording, `denials.file`, the status page open, `rationd top`, metrics scraped each second), and another that nobody watches,
//! which shows what the machine makes of two that are alike. They are loaded in turn, the other way round in each second turn. In
//! half of the rounds all checks are admitted, and in the others nearly all are denied.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::probe::{Bench, CLIENT, Door};
use super::process::{Failed, Process, without_settings};
use super::servers::{free_port, start};

const ROUNDS: usize = 60;
const SECONDS: f64 = 0.4;

const POLICIES: &str =
    "[policy.wide]\nlimits = [\"100000000/1s burst 100000000\"]\n\n[policy.tight]\nlimits = [\"5/1h fixed\"]\n";

/// A daemon, and how it was doing in each round: checks a second, and processor time of a check in nanoseconds.
struct Watched {
    name: &'static str,
    process: Process,
    door: Door,
    rounds: Vec<[f64; 2]>,
}

impl Watched {
    fn start(name: &'static str, settings: &str, admin: &str) -> Result<Self, Failed> {
        let (process, socket) = start(&format!("{settings}\n{POLICIES}"), admin)?;
        Ok(Self { name, process, door: Door::Socket(socket), rounds: Vec::new() })
    }

    fn round(&mut self, bench: &Bench<'_>) -> Result<(), Failed> {
        let before = cpu_ns(self.process.id());
        let sample = bench.run(&self.door, self.process.id())?;
        self.rounds.push([sample.rate, (cpu_ns(self.process.id()) - before) / sample.replies]);
        Ok(())
    }

    /// The quartiles of its figure over another's, round by round.
    fn over(&self, other: &Self, figure: usize) -> [f64; 3] {
        let rounds = self.rounds.iter().zip(&other.rounds);
        let mut ratios: Vec<_> = rounds.map(|(this, other)| this[figure] / other[figure]).collect();
        ratios.sort_by(f64::total_cmp);
        [1, 2, 3].map(|quarter| ratios.get(ratios.len() * quarter / 4).copied().unwrap_or(f64::NAN))
    }
}

/// Ended with the run.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run() -> Result<(), Failed> {
    let files = super::process::directory()?;
    let file = |name: &str| files.path().join(name).display().to_string();
    let recording = |name: &str| format!("[record]\nfile = {:?}\n", file(name));
    let everything = format!("{}\n[denials]\nfile = {:?}\n", recording("everything"), file("denials"));
    let port = free_port()?;
    let admin = format!("127.0.0.1:{port}");
    let mut daemons = [
        Watched::start("plain", "", "off")?,
        Watched::start("recording", &recording("arrivals"), "off")?,
        Watched::start("everything on", &everything, &admin)?,
        Watched::start("plain, again", "", "off")?,
    ];
    let _watcher = watch(SocketAddr::from(([127, 0, 0, 1], port)), &daemons[2].door)?;
    println!(
        "50 connections, 100 keys, {ROUNDS} rounds of {SECONDS} s; medians of the rounds' ratios, and their quartiles"
    );
    for pipeline in [16, 1] {
        for daemon in &mut daemons {
            daemon.rounds.clear();
        }
        for round in 0..ROUNDS {
            let command = ["RATION.CHECK wide {key}", "RATION.CHECK tight {key}"][round % 2];
            let bench = Bench { pipeline, keys: 100, seconds: SECONDS, warmup: 0.0, ..Bench::of(command) };
            if round % 4 < 2 {
                daemons.iter_mut().try_for_each(|daemon| daemon.round(&bench))?;
            } else {
                daemons.iter_mut().rev().try_for_each(|daemon| daemon.round(&bench))?;
            }
        }
        println!("\n{pipeline} pipelined");
        let [plain, others @ ..] = &daemons;
        for daemon in others {
            let [rates, times] = [0, 1].map(|figure| daemon.over(plain, figure));
            println!(
                "  {:<14} {:.3} x the checks a second ({:.3} to {:.3})   {:.3} x the processor time ({:.3} to {:.3})",
                daemon.name, rates[1], rates[0], rates[2], times[1], times[0], times[2]
            );
        }
    }
    Ok(())
}

/// Opens the status page, draws `rationd top`, and asks for the metrics each second, until the run ends.
fn watch(admin: SocketAddr, door: &Door) -> Result<Watcher, Failed> {
    let told = |error: std::io::Error| Failed(format!("the admin address {admin}: {error}"));
    let ask = move |path: &str| -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(admin)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {admin}\r\n\r\n")?;
        Ok(stream)
    };
    let mut events = ask("/events").map_err(told)?;
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while events.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
    });
    std::thread::spawn(move || {
        let (_never, timer) = std::sync::mpsc::channel::<()>();
        let mut buffer = [0; 65_536];
        while let Ok(mut metrics) = ask("/metrics") {
            let _ = metrics.set_read_timeout(Some(Duration::from_millis(500)));
            while metrics.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            let _ = timer.recv_timeout(Duration::from_millis(500));
        }
    });
    let Door::Socket(socket) = door else { return Err(Failed("top asks a socket".to_owned())) };
    let mut top = Command::new(CLIENT);
    without_settings(&mut top);
    top.args(["top", "--output", "json", "--socket"]).arg(socket);
    let top = top.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Watcher(top.map_err(told)?))
}

/// Processor time of all threads of a process.
fn cpu_ns(process: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum()
}
