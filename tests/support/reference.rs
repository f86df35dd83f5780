//! What the reference pages of the book say of the code, made from the code: the schema and the comments of the sample,
//! the table of commands, the help of the command line, a scrape that has everything in it, and answers of a daemon.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rationd::config::{Described, SAMPLE};
use rationd::core::fleet::FleetView;
use rationd::core::time::{Micros, Timestamp};
use rationd::fleet::{FleetStats, PeerId};
use rationd::serve::gossip::FleetStatus;
use rationd::serve::hot_keys::{self, Kind};
use rationd::serve::lending::LendingStats;
use rationd::serve::metrics::Scrape;
use rationd::serve::process::ProcessUse;
use rationd::store::redis::{BreakerState, CallOutcome, LATENCY_BOUNDS, ServerView, Snapshot};
use rationd::wire::command_table::{COMMANDS, usage};

use super::daemon::TestDaemon;
use super::process::without_settings;

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// What the comments of the sample say: of tables, and of keys by table and name.
#[derive(Default)]
struct Comments {
    tables: BTreeMap<String, String>,
    keys: BTreeMap<(String, String), String>,
}

impl Comments {
    fn of_sample() -> Self {
        let mut comments = Self::default();
        let (mut table, mut above, mut last) = (String::new(), Vec::new(), String::new());
        for line in SAMPLE.lines() {
            let inner = line.strip_prefix("# ").unwrap_or(line);
            if inner.starts_with('[') && inner.ends_with(']') {
                table = as_described(inner);
                comments.tables.insert(table.clone(), above.join(" "));
                (above, last) = (Vec::new(), String::new());
            } else if let Some(name) = key_of(inner) {
                // A comment stands above all keys that follow it.
                if !above.is_empty() {
                    last = above.join(" ");
                    above.clear();
                }
                comments.keys.entry((table.clone(), name.to_owned())).or_insert_with(|| last.clone());
            } else if line.is_empty() {
                above.clear();
            } else if let Some((choice, about)) = inner.strip_prefix("  ").and_then(|item| item.split_once("  ")) {
                above.push(format!("<br>`{choice}` {}", about.trim()));
            } else {
                above.push(inner.to_owned());
            }
        }
        comments
    }
}

/// The table of the sample as the schema's description calls it.
fn as_described(table: &str) -> String {
    if table.starts_with("[[descriptors.") {
        "[[descriptors.DOMAIN]]".to_owned()
    } else if table.contains(".override.") {
        "[policy.NAME.override.\"KEY\"]".to_owned()
    } else if table.starts_with("[policy.") {
        "[policy.NAME]".to_owned()
    } else {
        table.to_owned()
    }
}

/// The key that a line of the sample sets, if it does.
fn key_of(line: &str) -> Option<&str> {
    let (name, _) = line.split_once(" = ")?;
    name.chars().all(|c| c.is_ascii_lowercase() || c == '_').then_some(name)
}

/// Every table of a configuration with its keys.
///
/// # Panics
/// When the sample says nothing of a key, nor of the table that it stands in.
pub fn configuration() -> String {
    let comments = Comments::of_sample();
    let (mut out, mut table) = (String::new(), String::new());
    for Described { table: of, name, wanted, default } in rationd::config::reference() {
        if of != table {
            table = of;
            let about = comments.tables.get(&table).map_or("", String::as_str);
            let _ = write!(out, "\n## `{table}`\n\n{about}{}", if about.is_empty() { "" } else { "\n\n" });
            out.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
        }
        let about = comments.keys.get(&(table.clone(), name.to_owned())).map_or("", String::as_str);
        let of_table = comments.tables.get(&table).map_or("", String::as_str);
        assert!(!about.is_empty() || !of_table.is_empty(), "the sample says nothing of {table} {name}");
        let default = default.map_or_else(String::new, |default| format!("`{default}`"));
        let _ = writeln!(out, "| `{name}` | {} | {default} | {} |", cell(&wanted), cell(about));
    }
    out
}

/// Every command of the socket.
pub fn commands() -> String {
    let mut out = String::from("| command | what it does |\n|---|---|\n");
    for command in COMMANDS {
        let usage = usage(command.name.as_bytes()).unwrap_or_else(|| command.name.to_uppercase());
        let usage = usage.replace(" HELP says how", " subcommand [argument ...]");
        let _ = writeln!(out, "| `{}` | {} |", cell(&usage), cell(command.summary));
    }
    out
}

/// The help of `rationd` and of each of its commands.
///
/// # Panics
/// When a command has no help.
pub fn command_line() -> String {
    let mut out = String::new();
    let mut todo = vec![Vec::new()];
    while !todo.is_empty() {
        let words: Vec<String> = todo.remove(0);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        let said = command.args(&words).arg("--help").env_remove("COLUMNS").output().expect("cargo built it");
        let said = String::from_utf8(said.stdout).expect("help is text");
        assert!(said.contains("Usage:"), "{words:?}: {said}");
        let title: Vec<&str> = std::iter::once("rationd").chain(words.iter().map(String::as_str)).collect();
        let lines: Vec<&str> = said.lines().map(str::trim_end).collect();
        let _ = write!(out, "\n## `{}`\n\n```text\n{}\n```\n", title.join(" "), lines.join("\n").trim());
        let below = lines.iter().skip_while(|line| **line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let names = below.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
        let below: Vec<_> = names.map(|name| [words.clone(), vec![name.to_owned()]].concat()).collect();
        todo.splice(0..0, below);
    }
    out
}

/// Every check of the doctor, with a link to where to read on.
pub fn doctor() -> String {
    let mut out = String::from("| check | why it matters | what to do |\n|---|---|---|\n");
    for check in rationd::cli::checks() {
        let (why, next) = (cell(check.why), cell(check.next));
        let _ = writeln!(out, "| [`{}`](../{}) | {why} | {next} |", check.id, check.see);
    }
    out
}

/// Every family of a scrape, with the labels of its samples.
pub fn metrics() -> String {
    let mut families: Vec<(String, String, String, Vec<String>)> = Vec::new();
    for line in scrape().lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            families.push((name.to_owned(), help.to_owned(), String::new(), Vec::new()));
        } else if let Some((_, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.last_mut().expect("help comes first").2 = kind.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let names = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
            let seen = &mut families.last_mut().expect("help comes first").3;
            seen.extend(names.filter(|name| name != "le"));
            seen.dedup();
            let mut known: Vec<String> = Vec::new();
            seen.retain(|name| {
                !known.contains(name) && {
                    known.push(name.clone());
                    true
                }
            });
        }
    }
    let mut out = String::from("| metric | type | unit | meaning |\n|---|---|---|---|\n");
    for (name, help, kind, labels) in families {
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "| `{name}{labels}` | {kind} | {} | {} |", unit(&name, &help), cell(&help));
    }
    out
}

/// What a family's values are in: its name ends with a unit, or it counts, or it says yes or no.
fn unit(name: &str, help: &str) -> &'static str {
    let name = name.trim_end_matches("_total");
    let of_name = ["seconds", "bytes", "tokens"].into_iter().find(|unit| name.ends_with(unit));
    let is_choice = ["Whether", "1 where"].iter().any(|start| help.starts_with(start));
    of_name.unwrap_or(if is_choice { "0 or 1" } else { "number" })
}

/// A scrape of a daemon that has decided, whose store has one server, and that is in a fleet.
fn scrape() -> String {
    let mut daemon = TestDaemon::start();
    daemon.client().ask("RATION.CHECK api k");
    let store = Snapshot {
        calls: vec![("acquire", CallOutcome::Ok, 1)],
        moved: 0,
        ask: 0,
        noscript: 0,
        unconfirmed: 0,
        rejected: 0,
        refreshes: 0,
        dials: 0,
        breaker_opened: 0,
        latency: [0; LATENCY_BOUNDS.len() + 1],
        latency_sum: Duration::ZERO,
        servers: vec![ServerView {
            address: "10.0.0.1:6379".to_owned(),
            breaker: BreakerState::Closed,
            away_since: None,
            problem: None,
            window: 0,
            out: 0,
            waiting: 0,
            replicas: Some(0),
            maxmemory_policy: Some("noeviction".to_owned()),
            full_coverage: None,
        }],
    };
    let fleet = FleetStatus {
        members: Vec::new(),
        own: PeerId { name: "app-17".into(), incarnation: 0 },
        view: FleetView::UNKNOWN,
        staleness: Micros(0),
        bad: 0,
        stats: FleetStats::default(),
        lending: Some(LendingStats::default()),
    };
    let process =
        ProcessUse { cpu: Duration::ZERO, resident: 0, open_files: 0, most_open_files: Some(0), started: Timestamp(0) };
    let node = &daemon.daemon().state().node;
    let hot = hot_keys::top(node.hot_keys(node.clock.now(), Kind::Used), usize::MAX);
    let text = Scrape {
        stats: &daemon.daemon().state().stats(),
        store: Some(&store),
        fleet: Some(&fleet),
        local_limits: &[(Arc::from("api"), 1)],
        reload_successful: true,
        generation: 1,
        version: env!("CARGO_PKG_VERSION"),
        suppressed: 0,
        dropped: 0,
        hot: &hot,
        tried: &[(Arc::from("api"), [1, 1])].into(),
        process: Some(&process),
    }
    .render();
    daemon.stop();
    text
}

/// What is wrong with each of these.
const WRONG: [&str; 33] = [
    "RATION.CHEK api k",
    "THROTLE k 15 30 60",
    "GET k",
    "RATION.CHECK apii k",
    "RATION.CHECK api",
    "RATION.CHECK api k COST",
    "RATION.CHECK api k COST x",
    "RATION.CHECK api k COST -1",
    "RATION.HEADERS api k STYLE y",
    "RATION.MCHECK 0",
    "RATION.REFUND api k",
    "RATION.SETTLE 0 1",
    "RATION.KEYS CURSOR x",
    "CL.THROTTLE k 15 30",
    "CL.THROTTLE k 15 0 60",
    "CL.THROTTLE k x 30 60",
    "THROTTLE k x 30 60",
    "THROTTLE k 15 30 60 -1",
    "THROTTLE k 15 0 60",
    "EVAL return_1 0",
    "EVAL x",
    "EVALSHA 0 0 0",
    "SCRIPT KILL",
    "HELLO 4",
    "HELLO x",
    "HELLO 3 NAME",
    "CLIENT",
    "CLIENT KILL",
    "CLIENT REPLY OFF",
    "COMMAND NONE",
    "CONFIG SET a b",
    "SELECT 1",
    "AUTH",
];

/// What a daemon answers to commands that are wrong.
///
/// # Panics
/// When one of them is right.
pub fn errors() -> String {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let mut out = String::from("| command | answer |\n|---|---|\n");
    for line in WRONG {
        let answer = client.ask(line);
        let error = answer.strip_prefix('-').unwrap_or_else(|| panic!("{line}: {answer}"));
        let _ = writeln!(out, "| `{}` | `{}` |", cell(line), cell(error.trim_end()));
    }
    out
}
