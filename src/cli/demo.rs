//! `rationd demo`: a fleet in this process that shares one limit, and faults to try on it.
//!
//! The daemons are real: sockets, QUIC with certificates of their own, leases from a store that speaks RESP. Clients
//! ask them, and the ledger counts at the clients. On a terminal a key press causes each fault; `--script` plays a
//! story.

mod gate;
mod ledger;
mod load;
mod node;
mod picture;
mod stage;
pub(super) mod store;
mod story;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use self::ledger::Worst;
use self::stage::Stage;
use super::args::DemoArgs;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;

pub(crate) fn run(args: &DemoArgs, globals: &Globals) -> anyhow::Result<ExitCode> {
    if !args.script && !std::io::stdout().is_terminal() {
        let message = "stdout is no terminal, and the picture wants one; play the story with --script";
        return Err(ExitError::new(Code::Usage, message).into());
    }
    let begun = Stage::begin(args.nodes as usize, args.store);
    let mut stage = begun.map_err(|error| ExitError::new(Code::System, format!("{error:#}")))?;
    if !args.script {
        picture::show(&mut stage)?;
        return Ok(Code::Ok.into());
    }
    let is_json = globals.output == Output::Json;
    if !is_json {
        output::data(&format!("rationd demo: limit {}, one key; the store is {}", Stage::limit(), stage.store.name))?;
    }
    let whole = Duration::from_secs(u64::from(args.seconds));
    let played = story::play(&mut stage, whole, &mut |line| if is_json { Ok(()) } else { output::data(line) })?;
    output::data(&if is_json { played.json.to_string() } else { played.text })?;
    let is_kept = !played.is_cut_short && played.judged.iter().copied().all(Worst::is_kept);
    Ok(if is_kept { Code::Ok } else { Code::No }.into())
}
