//! Decides what a reply of Redis means for a call: an answer, a redirect, or a refusal. Pure.
//!
//! Called by `master.rs` and `redis.rs`.

use redis::{ServerError, Value};

/// Why the server did not run the script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerRefusal {
    /// The slot is at this `host:port` now. An empty host means the host of the server that answered.
    Moved(String),
    /// The key has already moved to this `host:port`, but its slot has not.
    Ask(String),
    /// The script is not loaded.
    NoScript,
    /// The server cannot serve any call now, for this reason.
    Away(String),
    /// The server cannot serve this call, for this reason; it can serve others.
    Rejected(String),
}

/// Error codes of a server that cannot serve now, or not this client. With any of them the script was surely not run.
const AWAY: [&str; 13] = [
    "TRYAGAIN",
    "CLUSTERDOWN",
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "NOREPLICAS",
    "OOM",
    "BUSY",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "UNBLOCKED",
];

/// The refusal in `value`, if it is one.
pub(crate) fn refusal(value: &Value) -> Option<ServerRefusal> {
    let Value::ServerError(error) = value else { return None };
    Some(classify(error))
}

/// A refusal in words, if the reply is one. For `fuzz/`, which has no connection.
#[doc(hidden)]
#[must_use]
pub fn refused(value: &Value) -> Option<String> {
    refusal(value).map(|refusal| format!("{refusal:?}"))
}

fn classify(error: &ServerError) -> ServerRefusal {
    let detail = error.details().unwrap_or("");
    // In "MOVED 3999 127.0.0.1:6381" the code has been cut off already.
    let place = || detail.split_ascii_whitespace().nth(1).unwrap_or("").to_owned();
    match error.code() {
        "MOVED" => ServerRefusal::Moved(place()),
        "ASK" => ServerRefusal::Ask(place()),
        "NOSCRIPT" => ServerRefusal::NoScript,
        code if AWAY.contains(&code) || is_away_inside(detail) => ServerRefusal::Away(format!("{code} {detail}")),
        code => ServerRefusal::Rejected(format!("{code} {detail}")),
    }
}

/// Redis before 7 wraps what stopped a script: `ERR Error running script …: -READONLY You can't …`.
fn is_away_inside(detail: &str) -> bool {
    AWAY.iter().any(|code| detail.contains(&format!(": -{code} ")))
}

/// The text of a reply like that to `INFO` or `PING`.
pub(crate) fn text(value: &Value) -> Option<std::borrow::Cow<'_, str>> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes)),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str) -> Value {
        redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply")
    }

    #[test]
    fn detours_name_the_place() {
        assert_eq!(refusal(&error("MOVED 3999 127.0.0.1:6381")), Some(ServerRefusal::Moved("127.0.0.1:6381".into())));
        assert_eq!(refusal(&error("ASK 3999 :6381")), Some(ServerRefusal::Ask(":6381".into())));
    }

    #[test]
    fn a_server_that_cannot_serve_is_away() {
        for line in [
            "CLUSTERDOWN The cluster is down",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica. script: abc, on @user_script:1.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "BUSY Redis is busy running a script.",
            "NOREPLICAS Not enough good replicas to write.",
            "NOPERM User x has no permissions to run the 'evalsha' command",
            "ERR Error running script (call to f_a): @user_script:1: -READONLY You can't write",
        ] {
            assert!(matches!(refusal(&error(line)), Some(ServerRefusal::Away(_))), "{line}");
        }
    }

    #[test]
    fn an_error_of_the_script_concerns_its_call_only() {
        assert!(matches!(refusal(&error("ERR rationd: count is 0")), Some(ServerRefusal::Rejected(_))));
        assert_eq!(refusal(&Value::Int(1)), None);
    }
}
