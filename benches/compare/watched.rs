//! What it costs a daemon to be watched: `cargo bench --bench compare -- --watched`.
//!
//! Daemons with their embedded stores: some that nobody watches, some that record what comes, some with everything on (recording,
//! `denials.file`, the status page open, `rationd top`, metrics scraped twice a second), and others that nobody watches, which show
//! what the machine makes of daemons that are alike. Daemons of one program differ from start to start by as much as is
//! looked for here, so that each figure is of many starts. They are taken in blocks: a block has a fresh daemon of each kind, one
//! after another, in an order of its own, and what one of them does over what the two do that nobody watches is one sample. Each daemon is asked
//! with 16 checks at once and with one at a time, and of both with checks that are all admitted and with checks that are nearly all denied.
//!
//! A daemon lives for a second here, and most of what it does for those who watch it does once a second. So that this
//! is met as often as in a long life, a daemon with everything on is left alone for a random part of a second first, each second
//! block asks in the other order, and a check is denied now and then, so that the second after which denials are taken does not begin
//! with the load.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::probe::{Bench, CLIENT, Door};
use super::process::{Failed, Process, directory, without_settings};
use super::servers::{await_socket, free_port, start};

const BLOCKS: usize = 76;
const SECONDS: f64 = 0.16;
const WARMUP: f64 = 0.03;
const PIPELINES: [u32; 2] = [16, 1];

/// The goal: so much less than the rate of a daemon that nobody watches.
const GOAL: f64 = 0.03;

const POLICIES: &str =
    "[policy.wide]\nlimits = [\"100000000/1s burst 100000000\"]\n\n[policy.tight]\nlimits = [\"5/1h fixed\"]\n";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    Recording,
    Everything,
}

/// The first and the last are those that others are compared with.
const KINDS: [(Kind, &str); 4] = [
    (Kind::Plain, "nobody watches"),
    (Kind::Recording, "recording"),
    (Kind::Everything, "everything on"),
    (Kind::Plain, "nobody watches, again"),
];
const LAST: usize = KINDS.len() - 1;

/// How one start of a daemon did, for each of [`PIPELINES`].
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    /// Checks a second.
    rates: [f64; PIPELINES.len()],
    /// Processor time of a check in nanoseconds.
    times: [f64; PIPELINES.len()],
}

type Figure = fn(&Start) -> [f64; PIPELINES.len()];
const FIGURES: [Figure; 2] = [|start| start.rates, |start| start.times];

/// Ended with its daemon.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn run(seed: u64) -> Result<(), Failed> {
    println!(
        "50 connections, 100 keys; {BLOCKS} starts of each kind, each {SECONDS} s of checks that are admitted and as long of checks that are denied; seed {seed}"
    );
    println!(
        "middles of what they do over what those do that nobody watches, and where these lie with 95 % confidence"
    );
    let mut random = seed;
    let mut blocks = Vec::new();
    for number in 0..BLOCKS {
        let mut block = [Start::default(); KINDS.len()];
        for place in shuffled(&mut random) {
            let phase = Duration::from_millis((next(&mut random) % 1_000) as u64);
            block[place] = one_start(KINDS[place].0, number % 2 == 1, phase)?;
        }
        blocks.push(block);
    }
    for (index, pipeline) in PIPELINES.iter().enumerate() {
        let of_plain = |block: &[Start; KINDS.len()], figure: Figure| {
            (figure(&block[0])[index] + figure(&block[LAST])[index]) / 2.0
        };
        let [rate, time] = FIGURES.map(|figure| middle(blocks.iter().map(|block| of_plain(block, figure)).collect()).0);
        println!(
            "\n{pipeline} at once: {rate:.0} checks a second, {time:.0} ns of processor time each, where nobody watches"
        );
        for (place, (_, name)) in KINDS.iter().enumerate().skip(1) {
            let [(rate, [least, most]), (time, of_time)] = FIGURES.map(|figure| {
                let ratio = |block: &[Start; KINDS.len()]| match place {
                    // It is itself one of the two that the others are compared with.
                    LAST => figure(&block[place])[index] / figure(&block[0])[index],
                    _ => figure(&block[place])[index] / of_plain(block, figure),
                };
                middle(blocks.iter().map(ratio).collect())
            });
            let held = if least >= 1.0 - GOAL {
                "within 3 %"
            } else if most < 1.0 - GOAL {
                "not within 3 %"
            } else {
                "within 3 % or not"
            };
            println!(
                "  {name:<21} {rate:.3} x the checks a second ({least:.3} to {most:.3}: {held})   {time:.3} x the processor time ({:.3} to {:.3})",
                of_time[0], of_time[1]
            );
        }
    }
    Ok(())
}

/// A fresh daemon of a kind, and what it came to; `is_turned`: in the other order.
fn one_start(kind: Kind, is_turned: bool, phase: Duration) -> Result<Start, Failed> {
    let files = directory()?;
    let file = |name: &str| files.path().join(name).display().to_string();
    let mut settings = String::new();
    let mut admin = None;
    if matches!(kind, Kind::Recording | Kind::Everything) {
        settings += &format!("[record]\nfile = {:?}\n", file("arrivals"));
    }
    if matches!(kind, Kind::Everything) {
        settings += &format!("[denials]\nfile = {:?}\n", file("denials"));
        admin = Some(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
    }
    let address = admin.map_or_else(|| "off".to_owned(), |admin| admin.to_string());
    let (process, socket) = start(&format!("{settings}{POLICIES}"), &address)?;
    deny_now_and_then(&socket)?;
    let door = Door::Socket(socket);
    let _watcher = admin.map(|admin| watch(admin, &door)).transpose()?;
    if admin.is_some() {
        pause(phase);
    }
    let mut start = Start::default();
    let mut order: [usize; PIPELINES.len()] = std::array::from_fn(|index| index);
    if is_turned {
        order.reverse();
    }
    for index in order {
        let pipeline = PIPELINES[index];
        let (mut rates, mut time, mut replies) = (0.0, 0.0, 0.0);
        for command in ["RATION.CHECK wide {key}", "RATION.CHECK tight {key}"] {
            let bench = |seconds| Bench { pipeline, keys: 100, seconds, warmup: 0.0, ..Bench::of(command) };
            bench(WARMUP).run(&door, process.id())?;
            let before = cpu_ns(&process);
            let sample = bench(SECONDS).run(&door, process.id())?;
            time += cpu_ns(&process) - before;
            replies += sample.replies;
            rates += sample.rate / 2.0;
        }
        start.rates[index] = rates;
        start.times[index] = time / replies;
    }
    Ok(start)
}

/// Twenty times a second, until the daemon ends.
fn deny_now_and_then(socket: &Path) -> Result<(), Failed> {
    let mut client = await_socket(socket, "rationd")?;
    std::thread::spawn(move || {
        while client.command(&[b"RATION.CHECK", b"tight", b"now and then"]).is_ok() {
            pause(Duration::from_millis(50));
        }
    });
    Ok(())
}

/// The places of all kinds, in an order that only the seed decides.
fn shuffled(random: &mut u64) -> [usize; KINDS.len()] {
    let mut places = std::array::from_fn(|place| place);
    for last in (1..places.len()).rev() {
        places.swap(last, next(random) % (last + 1));
    }
    places
}

fn next(random: &mut u64) -> usize {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 33) as usize
}

/// The middle of some samples, and between which values it lies with 95 % confidence, by Hodges and Lehmann and by Wilcoxon: of the means
/// of all pairs of samples (each with itself, too) the median, and those two of them beyond which their ranks say that it
/// is not. A sample far off moves it no more than it does a median, and fewer samples are needed.
fn middle(samples: Vec<f64>) -> (f64, [f64; 2]) {
    let mut means = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        means.extend(samples[index..].iter().map(|other| (sample + other) / 2.0));
    }
    means.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let deviation = (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let outside = (count * (count + 1.0) / 4.0 - 1.96 * deviation).max(0.0) as usize;
    (means[means.len() / 2], [means[outside], means[means.len() - 1 - outside]])
}

/// Opens the status page, draws `rationd top`, and asks for the metrics twice a second, as long as the daemon lives.
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
        let mut buffer = [0; 65_536];
        while let Ok(mut metrics) = ask("/metrics") {
            let _ = metrics.set_read_timeout(Some(Duration::from_millis(500)));
            while metrics.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            pause(Duration::from_millis(500));
        }
    });
    let Door::Socket(socket) = door else { return Err(Failed("top asks a socket".to_owned())) };
    let mut top = Command::new(CLIENT);
    without_settings(&mut top);
    top.args(["top", "--output", "json", "--socket"]).arg(socket);
    let top = top.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    Ok(Watcher(top.map_err(told)?))
}

fn pause(duration: Duration) {
    let (_never, timer) = std::sync::mpsc::channel::<()>();
    let _ = timer.recv_timeout(duration);
}

/// Processor time of all threads of a process.
fn cpu_ns(process: &Process) -> f64 {
    let threads = fs::read_dir(format!("/proc/{}/task", process.id())).into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<f64>().ok()
    });
    times.sum()
}
