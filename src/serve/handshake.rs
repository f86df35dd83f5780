//! Answers to what client libraries ask on connecting: `HELLO`, `INFO`, `CONFIG GET`. Also the error texts, with the
//! next step, for unknown policies and commands. Called by sessions.

use super::server_state::ServerState;
use crate::core::policy::PolicySet;
use crate::core::time::Instant;
use crate::wire::command_error::CommandError;
use crate::wire::command_table::{self, COMMANDS};
use crate::wire::reply::{Protocol, Writer};

/// The version that `HELLO` and `INFO` report. Client libraries enable features by it.
const REDIS_VERSION: &str = "7.2.0";

/// Writes the answer to `HELLO`.
pub fn write_hello(writer: &mut Writer<'_>, id: u64, protocol: Protocol) {
    writer.map(7);
    for (field, text) in [("server", "rationd"), ("version", env!("CARGO_PKG_VERSION"))] {
        writer.bulk(field.as_bytes());
        writer.bulk(text.as_bytes());
    }
    writer.bulk(b"proto");
    writer.integer(if protocol == Protocol::Three { 3 } else { 2 });
    writer.bulk(b"id");
    writer.count(id);
    for (field, text) in [("mode", "standalone"), ("role", "master")] {
        writer.bulk(field.as_bytes());
        writer.bulk(text.as_bytes());
    }
    writer.bulk(b"modules");
    writer.array(0);
}

/// The answer to `INFO`.
#[must_use]
pub fn info(state: &ServerState, now: Instant) -> String {
    let uptime = now.since(state.started).0 / 1_000_000;
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nrationd_version:{}\r\n\
         process_id:{}\r\nuptime_in_seconds:{uptime}\r\n\r\n# Clients\r\nconnected_clients:{}\r\n\r\n\
         # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n",
        env!("CARGO_PKG_VERSION"),
        std::process::id(),
        state.admission.open(),
    )
}

/// Writes the answer to `CONFIG GET`: the settings that benchmark programs ask for, and no others.
pub fn write_config<'n>(writer: &mut Writer<'_>, names: impl Iterator<Item = &'n [u8]>) {
    const KNOWN: [(&str, &str); 2] = [("save", ""), ("appendonly", "no")];
    let found: Vec<_> =
        names.filter_map(|name| KNOWN.iter().find(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))).collect();
    writer.map(found.len());
    for (name, value) in found {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
}

/// The error for a command that could not be parsed, with the next step: a command with a similar name, or the right
/// usage.
#[must_use]
pub fn error_text(name: &[u8], problem: &CommandError<'_>) -> String {
    match problem {
        CommandError::Unknown(_) => {
            let seen = String::from_utf8_lossy(&name[..name.len().min(128)]).to_lowercase();
            let likeness = |known: &str| (1e3 * strsim::jaro_winkler(&seen, known)) as u32;
            let near = COMMANDS.iter().max_by_key(|command| likeness(command.name));
            match near.filter(|command| likeness(command.name) > 900) {
                Some(command) => format!("{problem}(did you mean {}?)", command.name.to_uppercase()),
                None => format!("{problem}(COMMAND LIST names all there are)"),
            }
        }
        // For `THROTTLE` exactly throttlecrab's text, because its clients know it.
        CommandError::Arity(_) if name.eq_ignore_ascii_case(b"throttle") => problem.to_string(),
        CommandError::Arity(_) | CommandError::Syntax => match command_table::usage(name) {
            Some(usage) => format!("{problem}: {usage}"),
            None => problem.to_string(),
        },
        _ => problem.to_string(),
    }
}

/// The error for an unknown policy, with similar names, or with all names when there are few.
#[must_use]
pub fn unknown_policy(policies: &PolicySet, name: &[u8]) -> String {
    let seen = String::from_utf8_lossy(&name[..name.len().min(128)]).into_owned();
    let mut near: Vec<(f64, &str)> =
        policies.iter().map(|policy| (strsim::jaro_winkler(&seen, &policy.name), &*policy.name)).collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let close: Vec<String> =
        near.iter().filter(|(likeness, _)| *likeness > 0.75).take(3).map(|(_, name)| format!("'{name}'")).collect();
    if !close.is_empty() {
        return format!("ERR unknown policy '{seen}': did you mean {}?", close.join(" or "));
    }
    let mut all: Vec<String> = near.iter().map(|(_, name)| format!("'{name}'")).collect();
    all.sort();
    match all.len() {
        0 => format!("ERR unknown policy '{seen}': none is configured; write [policy.NAME] with limits = [\"100/1s\"]"),
        1..=10 => format!("ERR unknown policy '{seen}': there are {}", all.join(", ")),
        many => format!("ERR unknown policy '{seen}': {many} others are configured, see RATION.POLICIES"),
    }
}
