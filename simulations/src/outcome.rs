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
    /// The hash of all events, in order.
    pub hash: u64,
    /// The hash at intervals, to find where two runs begin to differ.
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
    /// `good demand-burst seed 42: 99.87 % used, 7.2 calls per 1000 checks, … — command`. Figures that only some runs
    /// have are left out in others: the first answers of nodes that joined, and the first second after an outage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures { used, calls_per_million, waits, answer_p99_us, answer_p999_us, false_denials, .. } = self.figures;
        let verdict = if self.is_good() { "good" } else { "BAD " };
        write!(f, "{verdict} {} seed {}: ", self.plan.name, self.plan.seed)?;
        match used {
            Some(used) => write!(f, "{} used, ", percent(used))?,
            None => f.write_str("no whole window, ")?,
        }
        let calls = thousandths(calls_per_million);
        let (waits, p99, beyond) = (percent(waits), Span(answer_p99_us), percent(self.figures.beyond()));
        let (p999, false_denials) = (Span(answer_p999_us), percent(false_denials));
        let slots = percent(self.figures.slots_over);
        write!(f, "{calls} calls per 1000 checks, {waits} waited, p99 {p99}, p99.9 {p999}, ")?;
        if self.figures.news_p99_us > 0 {
            write!(f, "news of peers {} old, ", Span(self.figures.news_p99_us))?;
        }
        if self.figures.loans_lost > 0 {
            write!(f, "{} of loans lost, ", percent(self.figures.loans_lost))?;
        }
        write!(f, "{beyond} over, ")?;
        write!(f, "{slots} slots over, ")?;
        if let Some(used) = self.figures.slots_used {
            let denied = percent(self.figures.slots_denied);
            write!(f, "{} of slots used, {denied} of their checks denied falsely, ", percent(used))?;
        }
        write!(f, "{false_denials} denied falsely")?;
        let Figures { first_answer_us, herd_back, .. } = self.figures;
        if first_answer_us > 0 {
            write!(f, ", first answers of nodes in {}", Span(first_answer_us))?;
        }
        if herd_back > 0 {
            write!(f, ", {} times the calls when the store was back", thousandths(herd_back))?;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_each_figure_that_a_design_sets_goals_for() {
        let mut outcome = Outcome {
            plan: Plan { name: "mine".into(), seed: 7, ..Plan::default() },
            figures: Figures {
                answer_p99_us: 1_000,
                answer_p999_us: 20_000,
                false_denials: 1_500,
                ..Figures::default()
            },
            series: Series::default(),
            violations: Vec::new(),
            judged: Judged::default(),
            failed: Vec::new(),
            missed: Vec::new(),
            hash: 1,
            checkpoints: Vec::new(),
            command: "again".into(),
        };
        let line = outcome.to_string();
        let quiet = "good mine seed 7: no whole window, 0 calls per 1000 checks, 0 % waited, p99 1ms, p99.9 20ms, 0 % over, \
                     0 % slots over, 1.5 % denied falsely [0000000000000001] — again";
        assert_eq!(line, quiet);
        outcome.figures = Figures {
            news_p99_us: 350_000,
            loans_lost: 2_500,
            first_answer_us: 2_000,
            herd_back: 1_250,
            burst_over: 3_000,
            slots_over: 12_500,
            ..outcome.figures
        };
        let line = outcome.to_string();
        assert!(
            line.contains("p99.9 20ms, news of peers 350ms old, 2.5 % of loans lost, 3 % over, 12.5 % slots over, 1.5 % denied falsely, first answers of nodes in 2ms, 1.25 times"),
            "{line}"
        );
    }
}
