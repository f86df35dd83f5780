//! `rationd reload`: the daemon reads its policies again, whole or not at all.

use std::path::Path;
use std::process::ExitCode;

use super::ask::ask_json;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;
use crate::serve::reload::REFUSED;

pub(crate) fn run(globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let answer = ask_json(socket, &[b"RATION.RELOAD"]).map_err(|stop| {
        if stop.message.starts_with(REFUSED) { ExitError::new(Code::BadConfig, stop.message) } else { stop }
    })?;
    if globals.output == Output::Json {
        output::data(&answer.to_string())?;
        return Ok(Code::Ok.into());
    }
    output::data(&format!("reloaded: {} policies, generation {}", answer["policies"], answer["generation"]))?;
    let waiting: Vec<_> =
        answer["waiting_for_restart"].as_array().into_iter().flatten().filter_map(|key| key.as_str()).collect();
    if !waiting.is_empty() {
        eprintln!("rationd: changed, but waiting for a restart: {}", waiting.join(", "));
    }
    Ok(Code::Ok.into())
}
