//! `swarm`: many seeds, each a configuration of its own. `soak`: the same until a time is over.
//!
//! Only what did not hold is printed, and at the end one line with a hash over all runs, by which two
//! processes or two builds are compared.

use std::{fs, thread};

use clap::Args;
use rationd::clock::Clock;

use super::arguments::{Common, Verdict, span};
use super::many::Many;
use super::output::say;
use super::progress::Progress;
use super::runner::Runner;
use super::shrink;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::run::Detail;
use crate::span::Span;
use crate::{report, swarm};

/// Arguments of `swarm`.
#[derive(Debug, Args)]
pub(super) struct Swarm {
    /// How many.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Run each seed twice, and compare the hashes.
    #[arg(long)]
    twice: bool,
    /// Make each bad seed small, write it among the kept bugs, and print it.
    #[arg(long)]
    keep: bool,
    /// Walk through a map of random order, which `--twice` must notice: a test of that.
    #[arg(long, hide = true)]
    canary: bool,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `soak`.
#[derive(Debug, Args)]
pub(super) struct Soak {
    /// How long.
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    lasts: Span,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    #[command(flatten)]
    common: Common,
}

impl Swarm {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let (from, seeds) = (self.from, self.seeds);
        let plan = |place| {
            let plan = Plan { canary: self.canary, ..swarm::plan(from + place) };
            (place < seeds).then(|| self.common.travel.adapt(plan))
        };
        let (verdict, bad) = work(&plan, &self.common, self.twice, Tally { wanted: Some(seeds), ..Tally::default() })?;
        if self.keep {
            keep(&bad)?;
        }
        Ok(verdict)
    }
}

impl Soak {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let clock = Clock::start();
        let end = clock.now() + self.lasts.micros();
        let plan = |place| (clock.now() < end).then(|| self.common.travel.adapt(swarm::plan(self.from + place)));
        Ok(work(&plan, &self.common, false, Tally::default())?.0)
    }
}

/// Shrinks the bad runs, and keeps the small plans among the bugs. It also prints them, for readers of a log who do not
/// have the files.
fn keep(bad: &[Outcome]) -> anyhow::Result<()> {
    let mut runner = Runner::new(Detail::Figures);
    for outcome in bad {
        let complaint = outcome.complaint().expect("it is bad");
        let path = shrink::keep(&outcome.plan, outcome, &complaint, None, &mut runner)?;
        say!("{}", fs::read_to_string(path)?);
    }
    Ok(())
}

/// The sums of a swarm so far.
#[derive(Debug, Default)]
struct Tally {
    wanted: Option<u64>,
    runs: u64,
    bad: u64,
    checks: u64,
    /// Runs in which liveness was judged: of answers by the store, and of the use of limits.
    answers: u64,
    uses: u64,
    /// Of all runs in order: the same in every process and build.
    hash: u64,
}

/// Runs all, and also returns the bad runs.
fn work(
    plan: &(dyn Fn(u64) -> Option<Plan> + Sync),
    common: &Common,
    twice: bool,
    mut tally: Tally,
) -> anyhow::Result<(Verdict, Vec<Outcome>)> {
    let mut progress = Progress::new();
    let (mut reported, mut bad) = (Vec::new(), Vec::new());
    Many { plan, jobs: common.jobs, detail: Detail::Figures, twice }.run(&mut |outcome| {
        tally.add(&outcome);
        if !outcome.is_good() {
            progress.print(&outcome);
        }
        let millis = progress.millis();
        progress.show(|| format!("{} — seed {}", tally.line(millis), outcome.plan.seed));
        if common.report.is_some() {
            reported.push(outcome.clone());
        }
        if !outcome.is_good() {
            bad.push(outcome);
        }
    })?;
    let millis = progress.millis();
    let (line, rate) = (tally.line(millis), tally.per_core(millis, common.jobs));
    progress.print(format_args!("{line}; {rate}; {}", tally.judged()));
    if let Some(directory) = &common.report {
        report::write(directory, &reported)?;
    }
    Ok((Verdict::of(tally.bad), bad))
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.bad += u64::from(!outcome.is_good());
        self.checks += outcome.figures.checks;
        self.answers += u64::from(outcome.judged.answers > 0);
        self.uses += u64::from(outcome.judged.uses > 0);
        self.hash = (self.hash.rotate_left(5) ^ outcome.hash).wrapping_mul(0x0000_0100_0000_01b3);
    }

    /// `120 of 500 runs, 0 bad, 600000 checks in 9.1 s (13.1 runs/s) [hash]`.
    fn line(&self, millis: u64) -> String {
        let Self { wanted, runs, bad, checks, hash, .. } = self;
        let of = wanted.map_or(String::new(), |wanted| format!(" of {wanted}"));
        let [seconds, rate] = [millis / 100, runs * 10_000 / millis].map(tenths); // rounded down
        format!("{runs}{of} runs, {bad} bad, {checks} checks in {seconds} s ({rate} runs/s) [{hash:016x}]")
    }

    /// `liveness judged in 470 of them, use of limits in 390`.
    fn judged(&self) -> String {
        format!("liveness judged in {} of them, use of limits in {}", self.answers, self.uses)
    }

    /// `6.5 runs/s a core`: of as many cores as there were jobs for, if the machine has them.
    fn per_core(&self, millis: u64, jobs: u16) -> String {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64).min(jobs.into());
        format!("{} runs/s a core", tenths(self.runs * 10_000 / (millis * cores)))
    }
}

/// `13.1` for 131.
fn tenths(tenths: u64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}
