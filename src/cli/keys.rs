//! `rationd keys`: lists keys that the daemon knows, and the tokens they have left.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::args::KeysArgs;
use super::ask::ask_json;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::output;

/// Keys that are asked for at once.
const PAGE: usize = 10_000;

pub(crate) fn run(args: &KeysArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = all(args.count as usize, socket)?;
    if globals.output == Output::Json {
        output::data(&Value::Array(answer).to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["POLICY", "KEY", "REMAINING", "LIMIT", "HELD", "WHOLE IN"].map(str::to_owned).to_vec()];
    for key in &answer {
        let number = |field: &str| key[field].to_string();
        let whole = key["reset_after_ms"].as_u64().map_or_else(String::new, |ms| format!("{}s", ms.div_ceil(1_000)));
        rows.push(vec![
            key["policy"].as_str().unwrap_or_default().to_owned(),
            name(key),
            number("remaining"),
            number("limit"),
            number("held"),
            whole,
        ]);
    }
    output::data(&output::table(&rows))?;
    Ok(Code::Ok.into())
}

/// A key as a terminal may show it. One whose bytes are no longer kept is shown by its digest.
pub(super) fn name(key: &Value) -> String {
    let text = |field: &str| key[field].as_str().map(str::to_owned);
    let name = text("key").or_else(|| text("digest").map(|digest| format!("#{digest}")));
    output::visible(&name.unwrap_or_default())
}

/// Up to `count` keys, fetched page by page.
pub(super) fn all(count: usize, socket: &Path) -> anyhow::Result<Vec<Value>> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    while keys.len() < count {
        let left = (count - keys.len()).min(PAGE).to_string();
        let words: [&[u8]; 5] = [b"RATION.KEYS", b"CURSOR", cursor.as_bytes(), b"COUNT", left.as_bytes()];
        let mut page = ask_json(socket, &words)?;
        if let Some(Value::Array(more)) = page.get_mut("keys").map(Value::take) {
            keys.extend(more);
        }
        match page["cursor"].as_str() {
            None | Some("0") => break,
            Some(next) => cursor = next.to_owned(),
        }
    }
    Ok(keys)
}
