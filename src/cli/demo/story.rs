//! The story that `--script` plays: a node is killed, others join, the store goes and comes back, for all and for half, and
//! loses everything. At the end stands a figure for each promise.

use std::time::Duration;

use serde_json::{Value, json};

use super::ledger::{Promise, Worst};
use super::stage::{Cut, Stage};

/// The outcome of a run.
pub(super) struct Outcome {
    pub(super) judged: Vec<Worst>,
    /// Somebody ended it early.
    pub(super) is_cut_short: bool,
    pub(super) json: Value,
    pub(super) text: String,
}

/// The faults, and when each comes, in thousandths of the whole time.
const ACTS: [(u64, Act); 8] = [
    (160, Act::Kill),
    (270, Act::Add),
    (380, Act::Cut(Cut::All)),
    (550, Act::Heal),
    (640, Act::Cut(Cut::Half)),
    (720, Act::Heal),
    (820, Act::Flush),
    (1_000, Act::End),
];

#[derive(Clone, Copy)]
enum Act {
    Kill,
    Add,
    Cut(Cut),
    Heal,
    Flush,
    End,
}

/// Plays the story in about `whole`, and calls `print` with a line for each event.
///
/// # Errors
/// A node does not start, or the store does not answer.
pub(super) fn play(
    stage: &mut Stage,
    whole: Duration,
    print: &mut dyn FnMut(&str) -> std::io::Result<()>,
) -> anyhow::Result<Outcome> {
    let mut passed = Duration::ZERO;
    let mut is_cut_short = false;
    print(&line(
        passed,
        &format!("{} nodes serve, and each is asked {} times a second", stage.alive(), Stage::rate()),
    ))?;
    for (at, act) in ACTS {
        let due = whole.mul_f64(at as f64 / 1_000.0);
        if !stage.wait(due.saturating_sub(passed)) {
            is_cut_short = true;
            break;
        }
        passed = due;
        let said = match act {
            Act::Kill => format!("{} is killed", stage.kill().unwrap_or_else(|| "nobody".to_owned())),
            Act::Add => format!("{} nodes join", stage.add(3)?),
            Act::Cut(Cut::All) => format!("the store is cut off from all {} nodes", stage.cut(Cut::All)),
            Act::Cut(Cut::Half) => {
                let cut = stage.cut(Cut::Half);
                format!("the store is cut off from {cut} of {} nodes", stage.alive())
            }
            Act::Heal => {
                stage.heal();
                "the store is back for all".to_owned()
            }
            Act::Flush => {
                stage.flush()?;
                "the store loses everything".to_owned()
            }
            Act::End => "the end".to_owned(),
        };
        let recent = stage.ledger.recent(2, Stage::now_ms());
        let last = recent.front().copied().unwrap_or_default();
        let so_far = format!("{said}; the last window: {} admitted, {} denied", last.admitted, last.denied);
        print(&line(passed, &so_far))?;
    }
    Ok(outcome(stage, is_cut_short))
}

fn line(at: Duration, text: &str) -> String {
    format!("{:5.1} s  {text}", at.as_secs_f64())
}

fn outcome(stage: &Stage, is_cut_short: bool) -> Outcome {
    let judged = stage.ledger.judge(Stage::now_ms());
    let waits = stage.ledger.waits();
    let calls: u64 = stage.sights().iter().map(|sight| sight.calls).sum();
    let per_thousand = if waits.checks == 0 { 0.0 } else { calls as f64 * 1_000.0 / waits.checks as f64 };
    let limit = stage.ledger.limit;
    let verdict = |worst: &Worst| if worst.is_kept() { "kept" } else { "BROKEN" };
    let mut lines = vec![format!("limit {}; admitted in the worst window, of what may be:", Stage::limit())];
    for worst in &judged {
        let Worst { promise, windows, most, bound, .. } = worst;
        lines.push(format!("{:7} {most:4} of {bound:3}, {windows:2} windows  {}", verdict(worst), promise.words()));
    }
    lines.push(format!(
        "{} checks, {:.0} calls to the store per 1000 of them; half waited {} us, 99 % at most {} us, the longest {} us; \
         {} had no answer",
        waits.checks, per_thousand, waits.median_us, waits.p99_us, waits.longest_us, waits.lost
    ));
    let promises = judged.iter().map(|worst| {
        json!({
            "promise": worst.promise.words(),
            "when": format!("{:?}", worst.promise).to_lowercase(),
            "windows": worst.windows,
            "most_admitted": worst.most,
            "least_admitted": worst.least,
            "bound": worst.bound,
            "kept": worst.is_kept(),
        })
    });
    let json = json!({
        "store": stage.store.name,
        "limit": limit,
        "window_ms": stage.ledger.period_ms,
        "nodes": stage.nodes.len(),
        "promises": promises.collect::<Vec<_>>(),
        "not_seen": Promise::ALL.iter().filter(|promise| !judged.iter().any(|worst| worst.promise == **promise))
            .map(|promise| format!("{promise:?}").to_lowercase()).collect::<Vec<_>>(),
        "checks": waits.checks,
        "without_answer": waits.lost,
        "store_calls_per_1000_checks": per_thousand,
        "wait_us": {"median": waits.median_us, "p99": waits.p99_us, "longest": waits.longest_us},
    });
    Outcome { judged, is_cut_short, json, text: lines.join("\n") }
}
