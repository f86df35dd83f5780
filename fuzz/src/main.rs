//! Runs fuzz targets over their corpora on stable: first each input as it is, then changed ones for a time.
//!
//! ```text
//! cargo run --example fuzz                          replays all corpora
//! cargo run --example fuzz -- list                  the names of all targets
//! cargo run --example fuzz -- TARGET [FILE|DIR …] [--seconds N] [--seed N]
//! ```
//!
//! What is changed follows from the seed alone. Where something does not hold the input is written down, made smaller,
//! and the exit code is 1. Nothing guides the changes: cargo-fuzz finds more in the same time, see fuzz/README.md.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use rationd::clock::{Clock, random};

#[allow(unreachable_pub, reason = "it is a library for cargo-fuzz")]
#[path = "lib.rs"]
mod targets;

mod mutate;

use mutate::Mutator;
use targets::{TARGETS, Target};

/// Panics anywhere in this process: those of a daemon's threads do not come through a target.
static PANICS: AtomicU64 = AtomicU64::new(0);
/// Inputs that have been begun.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// What all inputs together may add to this process, in bytes.
const GROWTH: u64 = 128 << 20;
/// An input that takes so long hangs.
const HANGS: Duration = Duration::from_secs(300);
/// Most tries to make an input smaller.
const TRIES: usize = 2_000;

/// What was asked for.
struct Task {
    target: Target,
    places: Vec<PathBuf>,
    seconds: u64,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tasks = match tasks(&arguments) {
        Ok(tasks) => tasks,
        Err(problem) => {
            eprintln!("fuzz: {problem}");
            return ExitCode::from(2);
        }
    };
    note_panics();
    std::thread::spawn(watch);
    let failed = tasks.iter().filter(|task| !task.run()).count();
    targets::daemon::end();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tasks(arguments: &[String]) -> Result<Vec<Task>, String> {
    let names = || TARGETS.map(|target| target.name).join(" ");
    let (mut words, mut seconds, mut seed) = (Vec::new(), 0, random());
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let mut number = || rest.next().and_then(|text| text.parse().ok()).ok_or(format!("{word} takes a number"));
        match word.as_str() {
            "--seconds" => seconds = number()?,
            "--seed" => seed = number()?,
            _ => words.push(word.as_str()),
        }
    }
    if words == ["list"] {
        println!("{}", names().replace(' ', "\n"));
        return Ok(Vec::new());
    }
    let task = |target: Target, places| Task { target, places, seconds, seed };
    let Some((name, places)) = words.split_first() else {
        return Ok(TARGETS.map(|target| task(target, vec![corpus(target)])).into());
    };
    let target = TARGETS.into_iter().find(|target| target.name == *name);
    let target = target.ok_or_else(|| format!("no target is called {name}; there are: {}", names()))?;
    let places: Vec<PathBuf> = places.iter().map(PathBuf::from).collect();
    Ok(vec![task(target, if places.is_empty() { vec![corpus(target)] } else { places })])
}

fn corpus(target: Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target.name)
}

/// Where inputs are written that something does not hold for.
fn found() -> PathBuf {
    let built = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    built.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target")).join("fuzz-found")
}

/// chitchat's decoder may panic: the transport takes that for a message that makes no sense.
fn note_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_none_or(|place| !place.file().contains("/chitchat-")) {
            PANICS.fetch_add(1, SeqCst);
            before(panic);
        }
    }));
}

/// Ends the process when an input takes too long; it stands in a file.
fn watch() {
    let (never, told) = (Mutex::new(()), Condvar::new());
    let mut guard = never.lock().expect("nobody else has it");
    let mut last = u64::MAX;
    loop {
        guard = told.wait_timeout(guard, HANGS).expect("nobody else has it").0;
        if last == BEGUN.load(SeqCst) {
            eprintln!("fuzz: input {last} takes more than {HANGS:?}: it is in {}", found().display());
            std::process::abort();
        }
        last = BEGUN.load(SeqCst);
    }
}

impl Task {
    /// Whether everything holds.
    fn run(&self) -> bool {
        let name = self.target.name;
        std::fs::create_dir_all(found()).expect("a directory can be made");
        // Two may run at once.
        let at = found().join(format!("{name}-running-{}", std::process::id()));
        let running = File::create(&at).expect("a file can be made");
        let inputs = self.inputs();
        let clock = Clock::start();
        let (mut tried, mut base) = (0_u64, None);
        let mut holds = true;
        for (path, input) in &inputs {
            tried += 1;
            holds &=
                self.holds(&running, input) || self.tell(input, &format!("{} of the corpus", path.display()), None);
        }
        if holds && self.seconds > 0 {
            let corpus: Vec<Vec<u8>> = inputs.into_iter().map(|(_, input)| input).chain([Vec::new()]).collect();
            let mut mutator = Mutator::new(self.seed, self.target.longest, self.target.words);
            while holds && clock.nanos() < self.seconds * 1_000_000_000 {
                let input = mutator.change(&corpus);
                tried += 1;
                holds = self.holds(&running, &input)
                    || self.tell(&input, &format!("input {tried} of seed {}", self.seed), Some(&running));
                if tried.is_multiple_of(1_024) {
                    let held = resident();
                    let grown = held.saturating_sub(*base.get_or_insert(held));
                    assert!(grown <= GROWTH, "{name}: after {tried} inputs {} MiB more are held", grown >> 20);
                }
            }
        }
        let _ = std::fs::remove_file(&at);
        let millis = clock.nanos() / 1_000_000;
        let verdict = if holds { "holds" } else { "DOES NOT HOLD" };
        let rate = tried * 1_000 / millis.max(1);
        println!(
            "{name:<8} seed {} {tried} inputs in {millis} ms ({rate}/s), {} MiB: {verdict}",
            self.seed,
            resident() >> 20
        );
        holds
    }

    /// All inputs of the corpus, in order.
    fn inputs(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        for place in &self.places {
            if place.is_dir() {
                let entries = std::fs::read_dir(place).expect("a directory can be read");
                files.extend(entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file()));
            } else {
                files.push(place.clone());
            }
        }
        files.sort();
        assert!(!files.is_empty(), "{:?} hold no input", self.places);
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            // What was running when a process ended.
            let is_running = path.file_name().is_some_and(|name| name.to_string_lossy().contains("-running-"));
            let length = bytes.first_chunk().filter(|_| is_running).map(|length| u64::from_le_bytes(*length) as usize);
            (path, length.map_or_else(|| bytes.clone(), |length| bytes[8..8 + length].to_vec()))
        };
        files.into_iter().map(read).collect()
    }

    fn holds(&self, running: &File, input: &[u8]) -> bool {
        // Should the process end, it is there to be read: its length and its bytes, as cutting a file costs more than
        // most inputs.
        let length = (input.len() as u64).to_le_bytes();
        running.write_all_at(&length, 0).and_then(|()| running.write_all_at(input, 8)).expect("a file can be written");
        BEGUN.fetch_add(1, SeqCst);
        let before = PANICS.load(SeqCst);
        let ran = catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        ran.is_ok() && PANICS.load(SeqCst) == before
    }

    /// Writes down an input that something does not hold for; always `false`. With a file it is made smaller before.
    fn tell(&self, input: &[u8], whence: &str, running: Option<&File>) -> bool {
        let name = self.target.name;
        let small = running.map_or_else(|| input.to_vec(), |running| self.smaller(running, input));
        let sum = small
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let path = found().join(format!("{name}-{sum:016x}"));
        std::fs::write(&path, &small).expect("a file can be written");
        println!("{name}: {whence} does not hold, {} bytes: {}", small.len(), small.escape_ascii());
        println!("    to repeat it: cargo run --example fuzz -- {name} {}", path.display());
        println!("    once it is cured it belongs into fuzz/corpus/{name}/");
        false
    }

    /// The input without what need not be there.
    fn smaller(&self, running: &File, input: &[u8]) -> Vec<u8> {
        let (mut small, mut part) = (input.to_vec(), input.len() / 2);
        let mut tries = 0;
        while part > 0 && tries < TRIES {
            let (mut at, mut has_changed) = (0, false);
            while at < small.len() && tries < TRIES {
                let without = [&small[..at], &small[(at + part).min(small.len())..]].concat();
                tries += 1;
                if self.holds(running, &without) {
                    at += part;
                } else {
                    (small, has_changed) = (without, true);
                }
            }
            part = if has_changed && part == 1 { 1 } else { part / 2 };
        }
        small
    }
}

/// Memory that this process has now, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}
