//! `rationd check POLICY KEY`: one check, whose verdict is the exit code.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use super::args::CheckArgs;
use super::ask::{ask, without_code};
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output::{self, Paint};
use crate::wire::value::Value;

/// The fields of a decision.
struct Answer {
    limited: bool,
    limit: i64,
    remaining: i64,
    reset_after_s: i64,
    retry_after_ms: i64,
    reset_at_ms: i64,
    reason: String,
    limit_name: String,
    source: String,
}

pub(crate) fn run(args: &CheckArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let cost = args.cost.to_string();
    let key = args.key.as_bytes();
    let mut words: Vec<&[u8]> = vec![b"RATION.CHECK", args.policy.as_bytes(), key, b"COST", cost.as_bytes()];
    if args.peek {
        words.push(b"PEEK");
    }
    let reply = ask(socket, &words)?;
    if let Value::Error(problem) = &reply {
        return Err(ExitError::new(Code::Usage, without_code(problem)).into());
    }
    let answer = Answer::read(&reply).ok_or_else(|| {
        ExitError::new(Code::DaemonUnreachable, "the answer is no decision: is this a rationd of this version?")
    })?;
    match globals.output {
        Output::Json => output::data(&answer.json())?,
        Output::Text => output::data(&answer.text(Paint::stdout(globals.color)))?,
    }
    Ok(answer.code().into())
}

impl Answer {
    fn read(reply: &Value) -> Option<Self> {
        let fields = reply.as_array()?;
        let number = |index: usize| fields.get(index).and_then(Value::as_integer);
        let word = |index: usize| Some(String::from_utf8_lossy(fields.get(index)?.as_bytes()?).into_owned());
        Some(Self {
            limited: number(0)? == 1,
            limit: number(1)?,
            remaining: number(2)?,
            reset_after_s: number(4)?,
            retry_after_ms: number(5)?,
            reset_at_ms: number(6)?,
            reason: word(7)?,
            limit_name: word(8)?,
            source: word(9)?,
        })
    }

    fn code(&self) -> Code {
        match (self.limited, self.reason.as_str()) {
            (false, _) => Code::Ok,
            (true, "store") => Code::StoreUnreachable,
            (true, _) => Code::No,
        }
    }

    fn json(&self) -> String {
        json!({
            "verdict": if self.limited { "deny" } else { "allow" },
            "limit": self.limit,
            "remaining": self.remaining,
            "retry_after_ms": (self.retry_after_ms >= 0).then_some(self.retry_after_ms),
            "reset_after_s": self.reset_after_s,
            "reset_at_unix_ms": self.reset_at_ms,
            "reason": self.reason,
            "limit_name": self.limit_name,
            "source": self.source,
        })
        .to_string()
    }

    fn text(&self, paint: Paint) -> String {
        let verdict = if self.limited { paint.bad("limited") } else { paint.good("allowed") };
        let mut text =
            format!("{verdict}: {} of {} left, whole again in {}s", self.remaining, self.limit, self.reset_after_s);
        if self.limited && self.retry_after_ms >= 0 {
            text += &format!(", retry in {}.{:03}s", self.retry_after_ms / 1_000, self.retry_after_ms % 1_000);
        } else if self.limited {
            text += ", never passes";
        }
        let name = if self.limit_name.is_empty() { "-" } else { &self.limit_name };
        text + &paint.faint(&format!(" (limit {name}, reason {}, source {})", self.reason, self.source))
    }
}
