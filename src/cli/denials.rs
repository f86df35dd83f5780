//! `rationd denials`: what the daemon has denied of late, by key, limit and reason.

use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::args::DenialsArgs;
use super::ask::ask_json;
use super::exit::Code;
use super::globals::{Globals, Output};
use super::{keys, output};
use crate::clock;

pub(crate) fn run(args: &DenialsArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = ask_json(socket, &[b"RATION.DENIALS"])?;
    let Value::Array(denials) = answer else { return Ok(Code::Ok.into()) };
    let wanted = |denial: &Value, field: &str, wanted: &Option<String>| {
        // The daemon keeps the beginning of a key.
        wanted.as_ref().is_none_or(|wanted| match denial[field].as_str() {
            Some(kept) => kept == wanted || (field == "key" && kept.len() >= 64 && wanted.starts_with(kept)),
            None => false,
        })
    };
    let denials =
        denials.into_iter().filter(|one| wanted(one, "key", &args.key) && wanted(one, "policy", &args.policy));
    let mut merged = merge(denials);
    merged.sort_by_key(|one| std::cmp::Reverse(one["last_ms"].as_u64()));
    merged.truncate(args.count as usize);
    if globals.output == Output::Json {
        output::data(&Value::Array(merged).to_string())?;
        return Ok(Code::Ok.into());
    }
    let now = clock::wall().0 / 1_000;
    let ago = |at: &Value| format!("{}s ago", now.saturating_sub(at.as_u64().unwrap_or(now)) / 1_000);
    let mut rows = vec![["COUNT", "LAST", "FIRST", "REASON", "POLICY", "LIMIT", "KEY"].map(str::to_owned).to_vec()];
    rows.extend(merged.iter().map(|one| {
        let text = |field: &str| output::visible(one[field].as_str().unwrap_or("-"));
        let key =
            if one["digest"].is_null() { "(keys for which there was no room)".to_owned() } else { keys::name(one) };
        let times = [one["count"].to_string(), ago(&one["last_ms"]), ago(&one["first_ms"])];
        times.into_iter().chain(["reason", "policy", "limit"].map(text)).chain([key]).collect()
    }));
    output::data(&output::table(&rows))?;
    Ok(Code::Ok.into())
}

/// Merges the daemon's entries, of which each is about one second, into one for each key, limit and reason.
fn merge(denials: impl Iterator<Item = Value>) -> Vec<Value> {
    let mut merged: Vec<Value> = Vec::new();
    let mut known: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    for one in denials {
        let what = ["policy", "limit", "digest", "reason"].map(|field| one[field].to_string()).join(" ");
        match known.get(&what) {
            Some(&index) => {
                let sum = &mut merged[index];
                let number = |value: &Value| value.as_u64().unwrap_or(0);
                sum["count"] = (number(&sum["count"]) + number(&one["count"])).into();
                sum["first_ms"] = number(&sum["first_ms"]).min(number(&one["first_ms"])).into();
                sum["last_ms"] = number(&sum["last_ms"]).max(number(&one["last_ms"])).into();
            }
            None => {
                known.insert(what, merged.len());
                merged.push(one);
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn denials_of_a_key_are_one_line() {
        let one = |digest: &str, count: u64, at: u64| json!({"policy": "p", "limit": "5/1h", "digest": digest, "reason": "rate", "count": count, "first_ms": at, "last_ms": at});
        let merged = merge([one("a", 3, 10), one("b", 1, 11), one("a", 4, 12)].into_iter());
        assert_eq!(merged.len(), 2);
        assert_eq!(
            (&merged[0]["count"], &merged[0]["first_ms"], &merged[0]["last_ms"]),
            (&json!(7), &json!(10), &json!(12))
        );
    }
}
