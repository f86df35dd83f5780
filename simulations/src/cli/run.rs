//! `run`: scenarios by their files, names or directories. `replay`: one file, twice, at length.
//!
//! Each run is a line, and what it was expected to do and did not is below it. With `--report` the
//! pages have charts.

use std::path::{Path, PathBuf};

use clap::Args;

use super::many::Many;
use super::progress::Progress;
use super::runner::Runner;
use super::{Common, Verdict};
use crate::outcome::sentence;
use crate::plan::Plan;
use crate::run::Detail;
use crate::{report, scenario};

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// Files, names of scenarios or bugs, or directories.
    #[arg(required = true, value_name = "FILE|NAME|DIR")]
    what: Vec<String>,
    /// Another seed than the file's.
    #[arg(long)]
    seed: Option<u64>,
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
        let (mut progress, mut bad, mut kept) = (Progress::new(), 0, Vec::new());
        let plan = |place: u64| plans.get(place as usize).cloned();
        progress.show(|| format!("{} scenarios", plans.len()));
        Many { plan: &plan, jobs: self.common.jobs, detail, twice: false }.run(&mut |outcome| {
            progress.print(&outcome);
            outcome.failed.iter().for_each(|failed| progress.print(format_args!("     {failed}")));
            outcome.missed.iter().for_each(|missed| progress.print(format_args!("     short of its goal: {missed}")));
            bad += u64::from(!outcome.is_good());
            if self.common.report.is_some() {
                kept.push(outcome);
            }
        })?;
        if let Some(directory) = &self.common.report {
            report::write(directory, &kept)?;
        }
        Ok(Verdict::of(bad))
    }
}

impl Replay {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let plan = scenario::find(&self.file)?;
        let outcome = Runner::new(Detail::Figures).run_twice(&plan)?;
        println!("{outcome}");
        outcome.violations.iter().for_each(|violation| println!("     {}", sentence(violation)));
        outcome.failed.iter().for_each(|failed| println!("     {failed}"));
        Ok(Verdict::of(u64::from(!outcome.is_good())))
    }
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
