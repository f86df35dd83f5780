//! The words of the page: one run with everything about it, or a table of many runs with the charts
//! of those that failed.

use std::fmt::Write as _;

use super::html::{escape, folded, list, page, table, verdict};
use super::scale::{grouped, time};
use super::summary::hex;
use super::{charts, runs};
use crate::ledger::{percent, thousandths};
use crate::outcome::{Outcome, sentence};

/// Runs that hold and are listed; all that fail are.
const ROWS: usize = 500;

/// Failed runs whose charts are shown.
const DRAWN: usize = 12;

/// The page of these runs.
pub(super) fn html(outcomes: &[Outcome]) -> String {
    match outcomes {
        [one] => page(&format!("{} · seed {}", one.plan.name, one.plan.seed), &single(one)),
        many => page(&format!("{} simulated runs", many.len()), &several(many)),
    }
}

fn single(outcome: &Outcome) -> String {
    let mut html = format!("<h1>{}</h1>\n", escape(&outcome.plan.name));
    let _ = writeln!(html, "<p class=\"soft\">{}</p>", escape(&outcome.plan.about));
    html += &run(outcome);
    html += "<h2>Over time</h2>\n";
    html += &charts_or_why(outcome);
    html += "<h2>The rest</h2>\n";
    html += &folded("All figures", &serde_json::to_string_pretty(&outcome.figures).unwrap_or_default());
    html + &folded("The plan", &plan(outcome))
}

fn several(outcomes: &[Outcome]) -> String {
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.is_good()).collect();
    let checks: u64 = outcomes.iter().map(|outcome| outcome.figures.checks).sum();
    let mut html = format!("<h1>{} simulated runs</h1>\n", grouped(outcomes.len() as u64));
    let _ = writeln!(
        html,
        "<p>{}: {} of {} runs fail, {} checks in all.</p>",
        verdict(failed.is_empty()),
        failed.len(),
        outcomes.len(),
        grouped(checks)
    );
    let _ = writeln!(html, "<div class=\"charts\">\n{}{}</div>", runs::distance(outcomes), runs::used(outcomes));
    html += "<h2>Runs</h2>\n";
    html += &rows(outcomes);
    for outcome in failed.iter().take(DRAWN) {
        let _ = writeln!(html, "<h2>{} · seed {}</h2>", escape(&outcome.plan.name), outcome.plan.seed);
        html += &run(outcome);
        html += &charts_or_why(outcome);
        html += &folded("The plan", &plan(outcome));
    }
    if failed.len() > DRAWN {
        let _ = writeln!(html, "<p>{} more runs fail: see the table.</p>", failed.len() - DRAWN);
    }
    html
}

/// Verdict, command, what failed, and the figures of one run.
fn run(outcome: &Outcome) -> String {
    let mut html = format!(
        "<p>{} · seed <b>{}</b> · trace hash <code>{}</code></p>\n<code class=\"replay\">{}</code>\n",
        verdict(outcome.is_good()),
        outcome.plan.seed,
        hex(outcome.hash),
        escape(&outcome.command)
    );
    html += &list("bad", &outcome.violations.iter().map(sentence).collect::<Vec<_>>());
    html += &list("bad", &outcome.failed);
    html += &list("soft", &outcome.missed);
    html + &tiles(outcome)
}

fn tiles(outcome: &Outcome) -> String {
    let (figures, expect) = (&outcome.figures, &outcome.plan.expect);
    let at_most = |most: Option<u32>, say: fn(u64) -> String| {
        most.map_or(String::new(), |most| format!(" · at most {}", say(u64::from(most))))
    };
    let at_least = |least: Option<u32>, say: fn(u64) -> String| {
        least.map_or(String::new(), |least| format!(" · at least {}", say(u64::from(least))))
    };
    let whole = |value: u64| value.to_string();
    let used = figures.used.map_or("–".to_owned(), percent);
    let longest = expect.answer.map_or(String::new(), |most| format!(" · at most {}", time(most.0)));
    let tiles = [
        (used, format!("used of what was possible{}", at_least(expect.used, percent))),
        (percent(figures.beyond()), format!("over a limit{}", at_most(expect.over, percent))),
        (percent(figures.slots_over), format!("slots over a limit{}", at_most(expect.slots_over, percent))),
        (thousandths(figures.calls_per_million), format!("store calls per 1000{}", at_most(expect.calls, whole))),
        (
            grouped(figures.calls_per_window),
            format!("calls, window and node{}", at_most(expect.calls_per_window, whole)),
        ),
        (percent(figures.waits), format!("waited for the store{}", at_most(expect.waits, percent))),
        (percent(figures.peer_waits), "waited for a peer".into()),
        (percent(figures.shares), format!("decided by a share{}", at_most(expect.shares, percent))),
        (
            percent(figures.false_denials),
            format!("denied though there were tokens{}", at_most(expect.false_denials, percent)),
        ),
        (time(figures.answer_p99_us), "answered, 99 % of the checks".to_owned()),
        (time(figures.answer_longest_us), format!("longest answer{longest}")),
        (thousandths(figures.herd), format!("× mean calls in 10 ms{}", at_most(expect.herd, thousandths))),
        (thousandths(figures.fairness), format!("fairness (Jain){}", at_least(expect.fairness, thousandths))),
        (grouped(figures.checks), "checks".to_owned()),
        (grouped(figures.calls), "store calls".to_owned()),
        (grouped(figures.nodes), "nodes at most".to_owned()),
    ];
    let mut html = String::from("<div class=\"tiles\">\n");
    for (value, name) in tiles {
        let _ = writeln!(html, "<div class=\"tile\"><b>{}</b><span>{}</span></div>", escape(&value), escape(&name));
    }
    html + "</div>\n"
}

fn charts_or_why(outcome: &Outcome) -> String {
    if outcome.series.is_empty() {
        return "<p class=\"soft\">No charts were kept of this run: replay it with a report.</p>\n".into();
    }
    charts::of_run(outcome)
}

/// Every run that fails and the first that hold.
fn rows(outcomes: &[Outcome]) -> String {
    let head = ["", "run", "seed", "used", "over", "calls / 1000", "waited", "p99", "replay"];
    let (failed, good): (Vec<&Outcome>, Vec<&Outcome>) = outcomes.iter().partition(|outcome| !outcome.is_good());
    let rows: Vec<Vec<String>> = failed.iter().chain(good.iter().take(ROWS)).map(|outcome| row(outcome)).collect();
    let mut html = table(&head, &rows);
    if good.len() > ROWS {
        let more = good.len() - ROWS;
        let _ = writeln!(html, "<p class=\"soft\">{more} more runs hold: they are in summary.json.</p>");
    }
    html
}

fn row(outcome: &Outcome) -> Vec<String> {
    let figures = &outcome.figures;
    let complaint = outcome.complaint().map(|complaint| format!("<div class=\"why\">{}</div>", escape(&complaint)));
    vec![
        verdict(outcome.is_good()).to_owned(),
        escape(&outcome.plan.name),
        outcome.plan.seed.to_string(),
        figures.used.map_or("–".to_owned(), percent),
        percent(figures.beyond()),
        thousandths(figures.calls_per_million),
        percent(figures.waits),
        time(figures.answer_p99_us),
        format!("<code>{}</code>{}", escape(&outcome.command), complaint.unwrap_or_default()),
    ]
}

/// The plan as a scenario file.
fn plan(outcome: &Outcome) -> String {
    toml::to_string(&outcome.plan).unwrap_or_else(|error| format!("cannot be written: {error}"))
}
