//! The outcome of one run, for reports, tables and swarms, and the command that repeats the run.

use std::fmt;

use crate::ledger::{Figures, percent, thousandths};
use crate::observe::{Judged, Violation};
use crate::plan::Plan;
use crate::series::Series;
use crate::span::Span;

/// One run that is over.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub plan: Plan,
    /// What it came to.
    pub figures: Figures,
    /// What happened over time; empty where nobody wants charts.
    pub series: Series,
    /// Invariants that did not hold.
    pub violations: Vec<Violation>,
    /// How much of the calm at the end was judged.
    pub judged: Judged,
    /// Expectations of the plan that did not hold, as sentences.
    pub failed: Vec<String>,
    /// Goals beyond them that were not reached.
    pub missed: Vec<String>,
    /// Of everything that was seen, in order.
    pub hash: u64,
    /// The same on the way: where two runs begin to differ.
    pub checkpoints: Vec<u64>,
    /// What repeats it.
    pub command: String,
}

impl Outcome {
    /// Whether everything held.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.failed.is_empty()
    }

    /// The first thing that did not hold, as a sentence.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        let violation = self.violations.first().map(sentence);
        violation.or_else(|| self.failed.first().cloned())
    }
}

impl fmt::Display for Outcome {
    /// `good demand-burst seed 42: 99.87 % used, 7.2 calls per 1000 checks, … — command`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { used, calls_per_million, waits, answer_p99_us, .. } = self.figures;
        let verdict = if self.is_good() { "good" } else { "BAD " };
        write!(f, "{verdict} {} seed {}: ", self.plan.name, self.plan.seed)?;
        match used {
            Some(used) => write!(f, "{} used, ", percent(used))?,
            None => f.write_str("no whole window, ")?,
        }
        let calls = thousandths(calls_per_million);
        let (waits, p99, beyond) = (percent(waits), Span(answer_p99_us), percent(self.figures.beyond()));
        write!(f, "{calls} calls per 1000 checks, {waits} waited, p99 {p99}, {beyond} over")?;
        if let Some(complaint) = self.complaint() {
            write!(f, "; {complaint}")?;
        }
        write!(f, " [{:016x}] — {}", self.hash, self.command)
    }
}

/// A violation as a sentence.
#[must_use]
pub fn sentence(violation: &Violation) -> String {
    format!("{} at {} us: {}", violation.invariant, violation.at, violation.what)
}
