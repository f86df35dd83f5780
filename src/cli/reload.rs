//! `rationd reload`: the daemon reads its policies again, whole or not at all; or says what that would change.

use std::path::Path;
use std::process::ExitCode;

use super::args::ReloadArgs;
use super::ask::ask_json;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;
use crate::serve::policy_diff;
use crate::serve::reload::{REFUSED, WOULD_BE_REFUSED};

pub(crate) fn run(args: &ReloadArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let words: &[&[u8]] = if args.dry_run { &[b"RATION.RELOAD", b"DRYRUN"] } else { &[b"RATION.RELOAD"] };
    let answer = ask_json(socket, words).map_err(|stop| {
        if [REFUSED, WOULD_BE_REFUSED].iter().any(|words| stop.message.starts_with(words)) {
            ExitError::new(Code::BadConfig, stop.message)
        } else {
            stop
        }
    })?;
    if globals.output == Output::Json {
        output::data(&answer.to_string())?;
        return Ok(Code::Ok.into());
    }
    if args.dry_run {
        output::data(&policy_diff::text(&answer["policies"]))?;
        if answer["descriptors_changed"] == true {
            output::data("~ descriptors (changed)")?;
        }
    } else {
        output::data(&format!("reloaded: {} policies, generation {}", answer["policies"], answer["generation"]))?;
    }
    let waiting: Vec<_> =
        answer["waiting_for_restart"].as_array().into_iter().flatten().filter_map(|key| key.as_str()).collect();
    if !waiting.is_empty() {
        eprintln!("rationd: changed, but waiting for a restart: {}", waiting.join(", "));
    }
    Ok(Code::Ok.into())
}
