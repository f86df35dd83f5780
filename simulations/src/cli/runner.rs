//! The one place where the command line runs a plan.
//!
//! A panic of the core or of the world is a violation like any other, so that a seed that panics is
//! counted, printed with its command and shrunk, and the seeds after it still run. A bug on purpose is
//! on for as long as a run lasts, and in its thread only.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::anyhow;
use rationd::core::mutant;

use crate::ledger::Figures;
use crate::lua::Scripts;
use crate::mutants::Bug;
use crate::observe::{Judged, Violation};
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::run::{self, Detail};
use crate::series::Series;

/// Runs plans one after another, with scripts that are loaded once.
pub(super) struct Runner {
    scripts: Scripts,
    detail: Detail,
    bug: Option<Bug>,
}

impl Runner {
    pub(super) fn new(detail: Detail) -> Self {
        Self { scripts: Scripts::new(), detail, bug: None }
    }

    /// With a bug on purpose.
    pub(super) fn with(bug: Bug) -> Self {
        Self { scripts: Scripts::edited(bug.edits()), detail: Detail::Figures, bug: Some(bug) }
    }

    /// Runs a plan. Fails when it makes no sense.
    pub(super) fn run(&mut self, plan: &Plan) -> anyhow::Result<Outcome> {
        mutant::set(self.bug.and_then(|bug| bug.mutant()));
        let ran = catch_unwind(AssertUnwindSafe(|| run::run(plan, &mut self.scripts, self.detail)));
        mutant::set(None);
        match ran {
            Ok(outcome) => outcome.map_err(|problem| anyhow!(problem)),
            Err(panic) => {
                self.scripts = Scripts::edited(self.bug.map_or(&[], |bug| bug.edits()));
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                Ok(broken(plan, text.unwrap_or_default()))
            }
        }
    }

    /// Runs a plan twice; that both runs are the same is one more thing that must hold.
    pub(super) fn run_twice(&mut self, plan: &Plan) -> anyhow::Result<Outcome> {
        let (mut first, second) = (self.run(plan)?, self.run(plan)?);
        if let Some(what) = difference(&first, &second) {
            first.violations.push(Violation { invariant: "reproducible", by: "", at: 0, what });
        }
        Ok(first)
    }
}

/// Says where two runs of one plan begin to differ.
fn difference(first: &Outcome, second: &Outcome) -> Option<String> {
    if first.hash == second.hash && first.checkpoints == second.checkpoints {
        return None;
    }
    let pairs = first.checkpoints.iter().zip(&second.checkpoints);
    let same = pairs.take_while(|(one, other)| one == other).count();
    let (one, other) = (first.hash, second.hash);
    Some(format!("hashes {one:016x} and {other:016x} of two runs, which differ after checkpoint {same}"))
}

/// The outcome of a run that panicked.
fn broken(plan: &Plan, text: String) -> Outcome {
    Outcome {
        plan: plan.clone(),
        figures: Figures::default(),
        series: Series::default(),
        violations: vec![Violation { invariant: "no panic", by: "", at: 0, what: text }],
        judged: Judged::default(),
        failed: Vec::new(),
        missed: Vec::new(),
        hash: 0,
        checkpoints: Vec::new(),
        command: run::command(plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_differ_are_told_from_where() {
        let mut first = broken(&Plan::default(), String::new());
        (first.hash, first.checkpoints) = (4, vec![1, 2, 3]);
        let mut second = first.clone();
        assert_eq!(difference(&first, &second), None);
        (second.hash, second.checkpoints) = (5, vec![1, 2, 9]);
        assert!(difference(&first, &second).unwrap().ends_with("after checkpoint 2"));
    }
}
