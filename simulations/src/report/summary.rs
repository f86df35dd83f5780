//! The same as data: `summary.json`, for scripts and for comparing two runs.

use serde_json::{Value, json};

use crate::outcome::Outcome;

/// Every run with its plan, its figures, what failed, and the command that replays it.
pub(super) fn json(outcomes: &[Outcome]) -> Value {
    let failed = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    json!({
        "runs": outcomes.len(),
        "failed": failed,
        "outcomes": outcomes.iter().map(run).collect::<Vec<_>>(),
    })
}

fn run(outcome: &Outcome) -> Value {
    let violations = outcome
        .violations
        .iter()
        .map(|violation| json!({ "invariant": violation.invariant, "at_us": violation.at, "what": violation.what }));
    json!({
        "name": outcome.plan.name,
        "seed": outcome.plan.seed,
        "good": outcome.is_good(),
        "command": outcome.command,
        "trace_hash": hex(outcome.hash),
        "checkpoints": outcome.checkpoints.iter().copied().map(hex).collect::<Vec<_>>(),
        "figures": outcome.figures,
        "violations": violations.collect::<Vec<_>>(),
        "failed": outcome.failed,
        "missed": outcome.missed,
        "plan": outcome.plan,
    })
}

/// A hash as text: numbers of 64 bits are not exact in every reader of JSON.
pub(super) fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}
