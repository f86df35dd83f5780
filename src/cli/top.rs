//! `rationd top`: what a daemon does now. Two answers of `RATION.TOP` make the rates between them.
//!
//! `figures` computes, `tables` words, `screen` draws and takes keys. Of other nodes it shows who is there: nodes tell
//! each other what they admit of keys, and neither names nor policies, so a view of the fleet is one `top` a
//! node. `docs/decisions/0015-top-shows-one-daemon.md` says why that is so.

mod figures;
mod screen;
pub(super) mod sort;
mod tables;

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use self::tables::View;
use super::args::TopArgs;
use super::ask::ask_json;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;

pub(crate) fn run(args: &TopArgs, globals: &Globals, socket: &Path) -> anyhow::Result<ExitCode> {
    let is_json = globals.output == Output::Json;
    if !args.once && !is_json && !std::io::stdout().is_terminal() {
        let message =
            "stdout is no terminal, and the live view wants one; take --once, or -o json for a line each time";
        return Err(ExitError::new(Code::Usage, message).into());
    }
    let every = Duration::from_secs(u64::from(args.interval));
    let view = View { sort: args.sort, filter: args.filter.clone().unwrap_or_default() };
    if !args.once && !is_json {
        screen::show(&|| ask(args, socket), every, view)?;
        return Ok(Code::Ok.into());
    }
    let mut before = ask(args, socket)?;
    loop {
        // The rates are those of this while.
        std::thread::park_timeout(every);
        let after = ask(args, socket)?;
        let figures = figures::between(&before, &after);
        output::data(&if is_json { figures.to_string() } else { view.text(&figures) })?;
        if args.once {
            return Ok(Code::Ok.into());
        }
        before = after;
    }
}

fn ask(args: &TopArgs, socket: &Path) -> Result<Value, ExitError> {
    ask_json(socket, &[b"RATION.TOP", b"COUNT", args.count.to_string().as_bytes()])
}
