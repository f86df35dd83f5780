//! `rationd explain`, `refund` and `reset`: commands about one key.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use super::args::{KeyArgs, RefundArgs};
use super::ask::{ask, ask_json, without_code};
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output::{self, Paint};
use crate::wire::value::Value;

pub(crate) fn explain(args: &KeyArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = ask_json(socket, &[b"RATION.EXPLAIN", args.policy.as_bytes(), args.key.as_bytes()])?;
    let limited = answer["limited"].as_bool().unwrap_or(false);
    match globals.output {
        Output::Json => output::data(&answer.to_string())?,
        Output::Text => output::data(&text(&answer, limited, Paint::stdout(globals.color)))?,
    }
    Ok(if limited { Code::No } else { Code::Ok }.into())
}

/// The verdict with its reason, then one line for each known fact.
fn text(answer: &serde_json::Value, limited: bool, paint: Paint) -> String {
    let verdict = if limited { paint.bad("limited") } else { paint.good("allowed") };
    let mut lines = vec![format!("{verdict}: {}", answer["why"].as_str().unwrap_or("?"))];
    let limits: Vec<_> = answer["limits"].as_array().into_iter().flatten().filter_map(|limit| limit.as_str()).collect();
    if !limits.is_empty() {
        let which = match answer["override"].as_str() {
            Some(name) => format!("of override {name:?}"),
            None => "of the policy".to_owned(),
        };
        lines.push(format!("limits    {} ({which})", limits.join(", ")));
    }
    for each in answer["each"].as_array().into_iter().flatten().filter(|_| limits.len() > 1) {
        let (name, left) = (each["limit_name"].as_str().unwrap_or("?"), &each["remaining"]);
        let whole = each["reset_after_ms"].as_u64().unwrap_or(0).div_ceil(1_000);
        lines.push(format!("          {name}: {left} of {} left, whole in {whole} s", each["limit"]));
    }
    if let Some(percent) = answer["enforce"].as_u64().filter(|percent| *percent < 100) {
        lines.push(format!("enforced  for {percent} % of keys"));
    }
    let facts = [
        ("held", "held", " tokens on this node"),
        ("nodes", "fleet", " nodes"),
        ("owner", "owner", ""),
        ("digest", "digest", ""),
    ];
    for (field, name, unit) in facts {
        match &answer[field] {
            serde_json::Value::Null => {}
            serde_json::Value::String(text) => lines.push(format!("{name:9} {}{unit}", output::visible(text))),
            other => lines.push(format!("{name:9} {other}{unit}")),
        }
    }
    lines.join("\n")
}

pub(crate) fn refund(args: &RefundArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let cost = args.cost.to_string();
    let (policy, key) = (args.key.policy.as_bytes(), args.key.key.as_bytes());
    done(globals, &ask(socket, &[b"RATION.REFUND", policy, key, cost.as_bytes()])?, "given back")
}

pub(crate) fn reset(args: &KeyArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    done(globals, &ask(socket, &[b"RATION.RESET", args.policy.as_bytes(), args.key.as_bytes()])?, "forgotten")
}

fn done(globals: &Globals, reply: &Value, what: &str) -> anyhow::Result<ExitCode> {
    if let Value::Error(problem) = reply {
        let away = problem.contains("store is away");
        return Err(
            ExitError::new(if away { Code::StoreUnreachable } else { Code::Usage }, without_code(problem)).into()
        );
    }
    match globals.output {
        Output::Json => output::data(&serde_json::json!({"ok": true}).to_string())?,
        Output::Text => output::data(what)?,
    }
    Ok(Code::Ok.into())
}
