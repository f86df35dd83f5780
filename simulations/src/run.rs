//! One run, from a plan to an outcome. Connects the world with its listeners.

use crate::checkers;
use crate::ledger::Ledger;
use crate::lua::Scripts;
use crate::observe::{Judged, Observer, Violation};
use crate::outcome::Outcome;
use crate::plan::{Calls, Plan};
use crate::series::Series;
use crate::world::{self, Watch, World};

/// How much is kept of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Figures, violations and the trace's hash.
    Figures,
    /// Also what happened over time, for charts.
    Charts,
}

/// Runs a plan.
///
/// # Errors
/// A limit that cannot be read, or a demand for a policy that is not there.
pub fn run(plan: &Plan, scripts: &mut Scripts, detail: Detail) -> Result<Outcome, String> {
    let setting = world::setting(plan)?;
    let mut checkers = checkers::all(&setting);
    let mut ledger = Ledger::new(&setting);
    let mut series = Series::new(&setting);
    let mut observers: Vec<&mut dyn Observer> = vec![&mut ledger];
    if detail == Detail::Charts {
        observers.push(&mut series);
    }
    observers.extend(checkers.iter_mut().map(|checker| checker.as_mut() as &mut dyn Observer));
    let trace = World::new(&setting, scripts, Watch::new(observers)).run();
    let mut violations = Vec::new();
    for checker in &checkers {
        let by = checker.sheet().file;
        violations.extend(checker.violations().iter().map(|violation| Violation { by, ..violation.clone() }));
    }
    violations.sort_by_key(|violation| violation.at);
    let judged = checkers.iter().map(|checker| checker.judged());
    let judged = judged
        .fold(Judged::default(), |all, one| Judged { answers: all.answers + one.answers, uses: all.uses + one.uses });
    let figures = ledger.figures();
    Ok(Outcome {
        failed: plan.expect.judge(&figures),
        missed: plan.goal.judge(&figures),
        command: command(plan),
        plan: plan.clone(),
        figures,
        series,
        violations,
        judged,
        hash: trace.hash(),
        checkpoints: trace.checkpoints().to_vec(),
    })
}

/// What repeats a run.
#[must_use]
pub fn command(plan: &Plan) -> String {
    let Plan { name, seed, .. } = plan;
    let streams = if plan.network.calls == Calls::Streams { " --streams" } else { "" };
    match name.strip_prefix("swarm-") {
        Some(_) => format!("cargo run --release -p simulations -- swarm --from {seed} --seeds 1{streams}"),
        None => format!("cargo run --release -p simulations -- run {name} --seed {seed}{streams}"),
    }
}
