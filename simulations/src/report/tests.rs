//! Pages and data of runs that were made up.

use rationd::core::limit::Limit;
use rationd::core::policy::Rule;

use super::*;
use crate::ledger::{Figures, Tokens};
use crate::observe::{Judged, Setting, Violation};
use crate::plan::{Fault, Plan, What};
use crate::series::{Bar, Bucket, Node, Series, Window, label};
use crate::span::Span;

/// A fleet that grows and shrinks, by hand.
fn autoscale(seed: u64) -> Outcome {
    let faults = vec![
        Fault { at: Span::secs(12), lasts: Span::secs(8), what: What::Scale { nodes: 64 } },
        Fault { at: Span::secs(26), lasts: Span(0), what: What::Kill { master: 1 } },
        Fault { at: Span::secs(33), lasts: Span::secs(4), what: What::Pause { master: 0 } },
        Fault { at: Span::secs(44), lasts: Span::secs(12), what: What::Scale { nodes: 8 } },
    ];
    let plan = Plan {
        name: "autoscale <4 & 64>".into(),
        about: "Grows from 4 to 64 nodes and shrinks to 8 within a minute.".into(),
        seed,
        span: Span::secs(60),
        warm_up: Span::secs(3),
        faults,
        ..Plan::default()
    };
    let series = series(&plan);
    let figures = Figures {
        checks: 120_000,
        used: Some(99_620),
        calls: 930,
        calls_per_million: 7_750,
        windows: 57,
        window_peak: 100_000 - seed % 7 * 40,
        tokens: Tokens { granted: 62_000, spent: 60_000, returned: 1_200, expired: 800 },
        fairness: 981,
        answer_longest_us: 1_250,
        nodes: 64,
        ..Figures::default()
    };
    let command = format!("cargo run --release -p simulations -- run scenarios/autoscale.toml --seed {seed}");
    Outcome {
        plan,
        figures,
        series,
        violations: vec![],
        judged: Judged::default(),
        failed: vec![],
        missed: vec![],
        hash: 7,
        checkpoints: vec![1],
        command,
    }
}

fn series(plan: &Plan) -> Series {
    let rule = std::sync::Arc::new(Rule::of("api", &[Limit::parse("1000/1s fixed").unwrap()]));
    let mut series = Series::new(&Setting { plan: plan.clone(), rules: vec![rule] });
    series.buckets = (0..400).map(bucket).collect();
    let window = |second: u64| Window {
        limit: 1_000,
        asked: 2_000,
        wanted: 1_000,
        admitted: if (33..37).contains(&second) { 870 } else { 1_000 - second % 3 },
        fullest: if (33..37).contains(&second) { 87_000 } else { 100_000 - second % 3 * 100 },
    };
    series.tracks[0].windows = (0..60).map(window).collect();
    let bar =
        |fault: &Fault| Bar { label: label(&fault.what), from: fault.at.0, until: Some(fault.at.0 + fault.lasts.0) };
    series.bars = plan.faults.iter().map(bar).collect();
    let node = |number: u64| Node { checks: 1_000, admitted: 480 + number * 7 % 40 };
    series.nodes = (0..64).map(node).collect();
    series
}

fn bucket(index: u64) -> Bucket {
    let nodes = match index {
        0..80 => 4,
        80..133 => 4 + (index - 80) * 60 / 53,
        133..293 => 64,
        293..373 => 64 - (index - 293) * 56 / 80,
        _ => 8,
    };
    let away = (220..247).contains(&index);
    let wave = index * 37 % 23;
    Bucket {
        checks: 290 + wave,
        admitted: 150,
        on_share: if away { 120 } else { 0 },
        waited: u64::from(index.is_multiple_of(9)),
        calls: if away { 0 } else { 1 + nodes / 12 + wave / 12 },
        nodes: nodes as u32,
        share: 1_000 / nodes,
        grants: u64::from(!away),
        tokens: Tokens { granted: 600 / nodes + wave, spent: 140 + wave, returned: wave / 3, expired: wave / 5 },
        largest: 900 / nodes + wave,
    }
}

fn failing(seed: u64) -> Outcome {
    let mut outcome = autoscale(seed);
    outcome.figures.window_peak = 100_800;
    outcome.figures.over = 800;
    let what = "1008 admitted, wanted at most 1000 <script>".to_owned();
    outcome.violations.push(Violation { invariant: "window-bound", by: "", at: 5, what });
    outcome
}

/// The longest paths are data, not words: cut for messages of failed tests.
fn assert_has(html: &str, wanted: &[&str]) {
    for part in wanted {
        assert!(html.contains(part), "{part:?} is not in a page of {} bytes", html.len());
    }
}

#[test]
fn text_of_users_is_escaped() {
    assert_eq!(escape("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
    let html = page::html(&[failing(1)]);
    assert!(!html.contains("<script>") && !html.contains("<4 &"));
    assert_has(&html, &["1000 &lt;script&gt;", "autoscale &lt;4 &amp; 64&gt;"]);
}

#[test]
fn page_of_one_run_has_every_chart_and_the_command() {
    let outcome = autoscale(42);
    let titles = ["Faults", "Admitted against the limit", "Distance to the bound", "Nodes", "Share of one node"];
    let html = page::html(std::slice::from_ref(&outcome));
    assert_has(&html, &titles);
    let titles = ["Store calls as a share of checks", "Checks", "Batch sizes", "What became of lent tokens"];
    assert_has(&html, &titles);
    assert_has(&html, &["Fairness between nodes", "The plan", "seed <b>42</b>", "--seed 42", "scale to 64 nodes"]);
    assert!(!html.contains("NaN") && !html.contains("inf "), "a number is none");
}

#[test]
fn page_needs_nothing_but_itself() {
    let html = page::html(&[autoscale(1), failing(2)]);
    for outside in ["http:", "https:", "src=", "@import", "url(", "<link", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn page_of_many_runs_names_all_and_draws_those_that_fail() {
    let html = page::html(&[autoscale(1), failing(2), autoscale(3)]);
    assert_has(&html, &["1 of 3 runs fail", "Distance to the bound", "window-bound at 5 us", "--seed 1<", "--seed 3<"]);
    assert_eq!(html.matches("<h3>Store calls as a share").count(), 1, "only the failure is drawn");
}

#[test]
fn run_without_series_says_why_there_are_no_charts() {
    let outcome = Outcome { series: Series::default(), ..autoscale(1) };
    assert_has(&page::html(&[outcome]), &["No charts were kept"]);
}

#[test]
fn summary_is_json_with_all_that_repeats_a_run() {
    let text = summary::json(&[autoscale(1), failing(9)]).to_string();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((json["runs"].as_u64(), json["failed"].as_u64()), (Some(2), Some(1)));
    let run = &json["outcomes"][1];
    assert_eq!(run["seed"], 9);
    assert_eq!(run["trace_hash"], "0000000000000007");
    assert_eq!(run["figures"]["used"], 99_620);
    assert_eq!(run["violations"][0]["invariant"], "window-bound");
    let plan: Plan = serde_json::from_value(run["plan"].clone()).unwrap();
    assert_eq!(plan.faults.len(), 4);
}

#[test]
fn both_files_are_written() {
    let dir = std::env::temp_dir().join(format!("rationd-report-{}", std::process::id()));
    let outcomes: Vec<Outcome> = (1..60).map(|seed| if seed == 17 { failing(seed) } else { autoscale(seed) }).collect();
    write(&dir.join("swarm"), &outcomes).unwrap();
    write(&dir.join("run"), &outcomes[..1]).unwrap();
    assert!(dir.join("run/index.html").exists() && dir.join("swarm/summary.json").exists());
    std::fs::remove_dir_all(&dir).unwrap();
}
