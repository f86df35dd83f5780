//! `rationd leases`: the tokens that the daemon holds, by key.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::args::KeysArgs;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::{keys, output};

pub(crate) fn run(args: &KeysArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let known = keys::all(usize::MAX, socket)?;
    let held = |key: &Value| key["held"].as_u64().unwrap_or(0);
    let mut leases: Vec<Value> = known.into_iter().filter(|key| held(key) > 0).collect();
    leases.sort_by_key(|key| std::cmp::Reverse(held(key)));
    let (count, tokens) = (leases.len(), leases.iter().map(held).sum::<u64>());
    leases.truncate(args.count as usize);
    if globals.output == Output::Json {
        output::data(&Value::Array(leases).to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["POLICY", "KEY", "HELD", "OF", "UNTIL WHOLE"].map(str::to_owned).to_vec()];
    rows.extend(leases.iter().map(|key| {
        let whole = key["reset_after_ms"].as_u64().map_or_else(String::new, |ms| format!("{}s", ms.div_ceil(1_000)));
        let policy = key["policy"].as_str().unwrap_or_default().to_owned();
        vec![policy, keys::name(key), held(key).to_string(), key["limit"].to_string(), whole]
    }));
    output::data(&format!("{}\n{tokens} tokens of {count} keys are held", output::table(&rows)))?;
    Ok(Code::Ok.into())
}
