//! `rationd policies`: lists the policies in force.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::ask::ask_json;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::output;

pub(crate) fn run(globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = ask_json(socket, &[b"RATION.POLICIES"])?;
    if globals.output == Output::Json {
        output::data(&answer.to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["POLICY", "KEY", "ENFORCED", "WITHOUT STORE", "LIMITS"].map(str::to_owned).to_vec()];
    for policy in answer.as_array().into_iter().flatten() {
        let name = policy["name"].as_str().unwrap_or("?");
        let enforced = format!("{}%", policy["enforce"]);
        rows.push(row(name, "*", &enforced, policy));
        for (key, part) in policy["overrides"].as_object().into_iter().flatten() {
            rows.push(row(name, key, &enforced, part));
        }
    }
    output::data(&output::table(&rows))?;
    Ok(Code::Ok.into())
}

fn row(name: &str, key: &str, enforced: &str, part: &Value) -> Vec<String> {
    let limits: Vec<_> = part["limits"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let limits = match (part["unlimited"].as_bool(), part["blocked"].as_bool()) {
        (Some(true), _) => "unlimited".to_owned(),
        (_, Some(true)) => "blocked".to_owned(),
        _ => limits.join(", "),
    };
    let lost = part["on_store_loss"].as_str().unwrap_or("-");
    [name, key, enforced, lost, &limits].map(str::to_owned).to_vec()
}
