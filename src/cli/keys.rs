//! `rationd keys`: lists keys that the daemon knows, and the tokens they have left.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::args::KeysArgs;
use super::ask::ask_json;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::output;

pub(crate) fn run(args: &KeysArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = all(args.count as usize, socket)?;
    if globals.output == Output::Json {
        output::data(&Value::Array(answer).to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["POLICY", "KEY", "REMAINING", "LIMIT", "HELD", "WHOLE IN"].map(str::to_owned).to_vec()];
    for key in &answer {
        let text = |field: &str| key[field].as_str().map(str::to_owned);
        let number = |field: &str| key[field].to_string();
        // The daemon may have forgotten a key's name; then its digest is shown.
        let name = text("key").or_else(|| text("digest").map(|digest| format!("#{digest}"))).unwrap_or_default();
        let name: String = name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        let whole = key["reset_after_ms"].as_u64().map_or_else(String::new, |ms| format!("{}s", ms.div_ceil(1_000)));
        rows.push(vec![
            text("policy").unwrap_or_default(),
            name,
            number("remaining"),
            number("limit"),
            number("held"),
            whole,
        ]);
    }
    output::data(&output::table(&rows))?;
    Ok(Code::Ok.into())
}

/// Up to `count` keys, read page by page.
fn all(count: usize, socket: &Path) -> anyhow::Result<Vec<Value>> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    while keys.len() < count {
        let left = (count - keys.len()).to_string();
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
