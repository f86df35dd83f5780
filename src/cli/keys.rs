//! `rationd keys`: some of the keys that the daemon knows, and what they have left.

use std::path::Path;
use std::process::ExitCode;

use super::args::{Globals, KeysArgs, Output};
use super::ask::ask_json;
use super::exit::Code;
use super::output;

pub(crate) fn run(args: &KeysArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let count = args.count.to_string();
    let answer = ask_json(socket, &[b"RATION.KEYS", b"COUNT", count.as_bytes()])?;
    if globals.output == Output::Json {
        output::data(&answer.to_string())?;
        return Ok(Code::Ok.into());
    }
    let mut rows = vec![["POLICY", "KEY", "REMAINING", "LIMIT", "HELD", "WHOLE IN"].map(str::to_owned).to_vec()];
    for key in answer.as_array().into_iter().flatten() {
        let text = |field: &str| key[field].as_str().map(str::to_owned);
        let number = |field: &str| key[field].to_string();
        // A key whose bytes are no longer kept is shown by its digest.
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
