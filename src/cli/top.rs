//! `rationd top`: what a daemon does now. Two answers of `RATION.TOP` make the rates between them.
//!
//! `daemons` asks, `figures` computes rates, `sum` adds those of several daemons, `tables` makes text of them, and
//! `screen` draws it and takes keys. A view of several daemons asks each by its socket, or with `--fleet` one daemon,
//! which asks its peers: `docs/decisions/0017-nodes-tell-totals-while-somebody-looks.md` says how much these tell, and
//! why.

mod daemons;
mod figures;
mod screen;
pub(super) mod sort;
mod sum;
mod tables;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use self::daemons::{Asked, Daemons};
use self::tables::View;
use super::args::TopArgs;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;

/// Runs `top` for the daemons with these sockets.
pub(crate) fn run(args: &TopArgs, globals: &Globals, sockets: Vec<PathBuf>) -> anyhow::Result<ExitCode> {
    let is_json = globals.output == Output::Json;
    if !args.once && !is_json && !std::io::stdout().is_terminal() {
        let message =
            "stdout is no terminal, and the live view wants one; take --once, or -o json for a line each time";
        return Err(ExitError::new(Code::Usage, message).into());
    }
    let every = Duration::from_secs(u64::from(args.interval));
    let view = View { sort: args.sort, filter: args.filter.clone().unwrap_or_default() };
    let asked = match (args.fleet, sockets) {
        (false, sockets) => Asked::Sockets(sockets),
        (true, sockets) => match <[PathBuf; 1]>::try_from(sockets) {
            Ok([socket]) => Asked::Fleet(socket),
            Err(_) => return Err(ExitError::new(Code::Usage, "--fleet asks one daemon: name one socket").into()),
        },
    };
    let mut daemons = Daemons::ask(asked, args.count)?;
    if !args.once && !is_json {
        screen::show(daemons, every, view)?;
        return Ok(Code::Ok.into());
    }
    // A timed receive, because `thread::park_timeout` could return at once: threads that asked daemons may have left a
    // wake-up behind.
    let (_never, timer) = mpsc::channel::<()>();
    loop {
        // Rates are computed over this time.
        let _ = timer.recv_timeout(every);
        let (figures, problem) = daemons.figures()?;
        let is_read = output::is_read(&if is_json { view.json(&figures).to_string() } else { view.text(&figures) })?;
        match problem {
            // The only output is incomplete, so the command must fail.
            Some(problem) if args.once => return Err(problem.into()),
            _ if args.once || !is_read => return Ok(Code::Ok.into()),
            // The next output may be complete, and says itself which daemon is missing.
            _ => {}
        }
    }
}
