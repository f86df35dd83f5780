//! `shrink`: from a seed or a file that fails to a small file that fails in the same way.
//!
//! The small plan is written out completely, so that it stays the same when the swarm changes.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;

use super::arguments::{Travel, Verdict};
use super::output::say;
use super::progress::Progress;
use super::run::plan_of;
use super::runner::Runner;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::run::Detail;
use crate::{scenario, shrink};

/// Arguments of `shrink`.
#[derive(Debug, Args)]
pub(super) struct Shrink {
    /// A seed of the swarm, or a file.
    #[arg(value_name = "SEED|FILE")]
    what: String,
    /// Where the small plan goes; otherwise into the bugs.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    travel: Travel,
}

impl Shrink {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let plan = self.travel.adapt(plan_of(&self.what)?);
        let mut runner = Runner::new(Detail::Figures);
        let first = runner.run(&plan)?;
        let Some(complaint) = first.complaint() else {
            bail!("everything holds in {} seed {}: there is nothing to shrink", plan.name, plan.seed);
        };
        say!("{first}");
        keep(&plan, &first, &complaint, self.out, &mut runner)?;
        Ok(Verdict::Good)
    }
}

/// Shrinks a plan that failed, and writes the small one to `out`, or among the bugs.
pub(super) fn keep(
    plan: &Plan,
    first: &Outcome,
    complaint: &str,
    out: Option<PathBuf>,
    runner: &mut Runner,
) -> anyhow::Result<PathBuf> {
    let (mut progress, mut runs) = (Progress::new(), 0_u64);
    let mut fails = |smaller: &Plan| {
        runs += 1;
        progress.show(|| format!("{runs} runs, {} faults, {}", smaller.faults.len(), smaller.span));
        runner.run(smaller).is_ok_and(|outcome| is_alike(first, &outcome))
    };
    let mut small = shrink::shrink(plan, &mut fails);
    progress.clear();
    small.about = format!("Shrunk from {} seed {}: {complaint}", plan.name, plan.seed);
    // Renamed, because `swarm-N` is the name of the seed's whole plan.
    let name = plan.name.replace("swarm-", "seed-");
    let (out, shown) = match out {
        Some(out) => (out.clone(), out.display().to_string()),
        None => (scenario::bugs().join(format!("{name}.toml")), name),
    };
    let comment = format!("cargo run --release -p simulations -- replay {shown}");
    scenario::save(&small, &out, &comment)?;
    say!("{}: {} faults of {}, after {runs} runs", out.display(), small.faults.len(), plan.faults.len());
    Ok(out)
}

/// Whether a run fails as the first one did: another failure would lead the search astray.
fn is_alike(first: &Outcome, other: &Outcome) -> bool {
    match first.violations.first() {
        Some(one) => other.violations.iter().any(|violation| violation.invariant == one.invariant),
        None => !other.failed.is_empty(),
    }
}
