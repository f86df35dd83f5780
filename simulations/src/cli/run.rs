//! `run`: scenarios by their files, names or directories. `replay`: one file, twice, at length.
//!
//! Each run gives a line as soon as it ends, and below it the expectations that failed; the longest runs begin first.
//! With `--report` the pages have charts. With `--seeds` only bad runs give a line, and each scenario gives one at the
//! end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;

use super::arguments::{Common, Verdict};
use super::many::{Many, longest_first};
use super::output::say;
use super::progress::Progress;
use super::quoted;
use super::runner::Runner;
use crate::ledger::percent;
use crate::outcome::{Outcome, sentence};
use crate::plan::Plan;
use crate::run::Detail;
use crate::{report, scenario, swarm};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Files, names of scenarios or bugs, or directories.
    #[arg(required = true, value_name = "FILE|NAME|DIR")]
    what: Vec<String>,
    /// Another seed than the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds of each to run, from that one on.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// A page of the docs whose tables quote figures of these scenarios: fail where they are others.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "streams"])]
    quoted: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The file, or its name.
    file: String,
}

impl Run {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let mut plans = plans(&self.what)?;
        plans.iter_mut().for_each(|plan| plan.seed = self.seed.unwrap_or(plan.seed));
        let detail = if self.common.report.is_some() { Detail::Charts } else { Detail::Figures };
        let page = self.quoted.as_ref().map(std::fs::read_to_string).transpose().context("--quoted")?;
        let mut figures = BTreeMap::new();
        let (mut progress, mut bad, mut kept) = (Progress::new(), 0, Vec::new());
        let mut sums = vec![Sum::default(); plans.len()];
        let order = longest_first(&plans);
        let plan = |place: u64| {
            let plan = &plans[*order.get((place / self.seeds) as usize)?];
            Some(self.common.travel.adapt(Plan { seed: plan.seed + place % self.seeds, ..plan.clone() }))
        };
        progress.show(|| format!("{} scenarios", plans.len()));
        let mut ended = 0;
        Many { plan: &plan, jobs: self.common.jobs, detail, twice: false }.run_as_they_end(&mut |place, outcome| {
            let scenario = order[(place / self.seeds) as usize];
            sums[scenario].add(&outcome);
            if page.is_some() {
                figures.insert(outcome.plan.name.clone(), outcome.figures.clone());
            }
            ended += 1;
            progress.show(|| format!("{ended} of {} runs", plans.len() as u64 * self.seeds));
            if self.seeds > 1 && outcome.is_good() {
                return;
            }
            progress.print(&outcome);
            outcome.failed.iter().for_each(|failed| progress.print(format_args!("     {failed}")));
            outcome.missed.iter().for_each(|missed| progress.print(format_args!("     short of its goal: {missed}")));
            bad += u64::from(!outcome.is_good());
            if self.common.report.is_some() {
                kept.push(((scenario, outcome.plan.seed), outcome));
            }
        })?;
        if self.seeds > 1 {
            plans.iter().zip(sums).for_each(|(plan, sum)| progress.print(sum.line(&plan.name)));
        }
        let astray = page.map_or_else(Vec::new, |page| quoted::astray(&page, &figures));
        astray.iter().for_each(|quote| progress.print(format_args!("BAD  page: {quote}")));
        if let Some(directory) = &self.common.report {
            kept.sort_by_key(|(place, _)| *place);
            report::write(directory, &kept.into_iter().map(|(_, outcome)| outcome).collect::<Vec<_>>())?;
        }
        Ok(Verdict::of(bad + astray.len() as u64))
    }
}

/// The sums over the seeds of one scenario.
#[derive(Clone, Debug, Default)]
struct Sum {
    used: Vec<u64>,
    runs: u64,
    bad: u64,
    over: u64,
    slots_over: u64,
}

impl Sum {
    fn add(&mut self, outcome: &Outcome) {
        self.used.extend(outcome.figures.used);
        self.runs += 1;
        self.bad += u64::from(!outcome.is_good());
        self.over = self.over.max(outcome.figures.beyond());
        self.slots_over = self.slots_over.max(outcome.figures.slots_over);
    }

    /// `outage-10s: 1000 seeds, 0 bad, used 85 % at least, 91 % in the median, 0 % over at most, 0 % slots over`.
    fn line(mut self, name: &str) -> String {
        self.used.sort_unstable();
        let part = |place: usize| self.used.get(place).map_or("nothing".to_owned(), |used| percent(*used));
        let (least, median, most) = (part(0), part(self.used.len() / 2), percent(self.over));
        let slots = percent(self.slots_over);
        let Self { runs, bad, .. } = self;
        let used = format!("used {least} at least, {median} in the median");
        format!("{name}: {runs} seeds, {bad} bad, {used}, {most} over at most, {slots} slots over")
    }
}

impl Replay {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let plan = scenario::find(&self.file)?;
        let outcome = Runner::new(Detail::Figures).run_twice(&plan)?;
        say!("{outcome}");
        outcome.violations.iter().for_each(|violation| say!("     {}", sentence(violation)));
        outcome.failed.iter().for_each(|failed| say!("     {failed}"));
        Ok(Verdict::of(u64::from(!outcome.is_good())))
    }
}

/// The plan behind a seed of the swarm, a file or a name.
pub(super) fn plan_of(what: &str) -> anyhow::Result<Plan> {
    Ok(match what.parse() {
        Ok(seed) => swarm::plan(seed),
        Err(_) => scenario::find(what)?,
    })
}

/// The plans behind what the command line names.
pub(super) fn plans(what: &[String]) -> anyhow::Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for name in what {
        match PathBuf::from(name) {
            directory if directory.is_dir() => plans.extend(scenario::all(Path::new(&directory))?),
            _ => plans.push(scenario::find(name)?),
        }
    }
    Ok(plans)
}
