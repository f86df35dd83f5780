//! From the arguments of the process to a command and an exit code.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use super::args::{Cli, Command, ConfigCommand, ServeArgs, TopArgs};
use super::exit::{Code, ExitError};
use super::globals::Globals;
use super::output::{self, Paint};
use super::{
    bench, cert, check, completions, config, demo, denials, doctor, key, keys, leases, log, peers, plan, policies,
    reload, serve, size, top, version,
};
use crate::clock;
use crate::config::{Override, Sources, load};

/// Runs the command line of this process.
#[must_use]
pub fn run() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    if let Some(text) = version::asked(words) {
        return output::data(&text).map_or(Code::System, |()| Code::Ok).into();
    }
    let cli = Cli::parse();
    let paint = Paint::stderr(cli.globals.color);
    execute(cli).unwrap_or_else(|error| {
        let code = error.downcast_ref::<ExitError>().map_or(Code::System, |stop| stop.code);
        eprintln!("{} {error:#}", paint.bad("rationd:"));
        code.into()
    })
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let globals = &cli.globals;
    let sources = |serve: Option<&ServeArgs>| sources(globals, serve);
    match cli.command {
        Command::Serve(args) => serve::run(globals, sources(Some(&args)), args.force),
        Command::Config(ConfigCommand::Diff) => config::diff(globals, &sources(None), &socket(globals)?),
        Command::Config(command) => config::run(&command, globals, &sources(None)),
        Command::Demo(args) => demo::run(&args, globals),
        Command::Doctor(args) => doctor::run(&args, globals, &sources(None)),
        Command::Cert(command) => cert::run(&command, globals),
        Command::Check(args) => check::run(&args, globals, &socket(globals)?),
        Command::Explain(args) => key::explain(&args, globals, &socket(globals)?),
        Command::Refund(args) => key::refund(&args, globals, &socket(globals)?),
        Command::Reset(args) => key::reset(&args, globals, &socket(globals)?),
        Command::Reload(args) => reload::run(&args, globals, &socket(globals)?),
        Command::Peers => peers::run(globals, &socket(globals)?),
        Command::Top(args) => top::run(&args, globals, sockets(&args, globals)?),
        Command::Denials(args) => denials::run(&args, globals, &socket(globals)?),
        Command::Plan(args) => plan::run(&args, globals, &sources(None)),
        Command::Size(args) => size::run(&args, globals),
        Command::Policies => policies::run(globals, &socket(globals)?),
        Command::Leases(args) => leases::run(&args, globals, &socket(globals)?),
        Command::Completions { shell } => completions::completions(shell),
        Command::Man { dir } => completions::man(dir.as_deref()),
        Command::Keys(args) => keys::run(&args, globals, &socket(globals)?),
        Command::Bench(args) => bench::run(&args, globals, || socket(globals)),
    }
}

/// The sources of the configuration.
fn sources(globals: &Globals, serve: Option<&ServeArgs>) -> Sources {
    let mut flags = Vec::new();
    let mut flag = |origin: &str, key, text: Option<String>| {
        flags.extend(text.map(|text| Override { origin: origin.to_owned(), key, text }));
    };
    let socket = globals.socket.as_ref().map(|path| path.to_string_lossy().into_owned());
    flag(if is_from_variable(globals) { "RATIOND_SOCKET" } else { "--socket" }, "listen.socket", socket);
    if let Some(serve) = serve {
        flag("--store", "store.url", serve.store.clone());
        flag("--admin", "listen.admin", serve.admin.clone());
        flag("--name", "node.name", serve.name.clone());
        flag("--threads", "listen.threads", serve.threads.clone());
    }
    Sources {
        file: globals.config.clone(),
        environment: std::env::vars_os().collect(),
        variables: variables(),
        flags,
        suffix: clock::random() as u32,
    }
}

/// Whether the socket was named by a variable, and not by a flag.
fn is_from_variable(globals: &Globals) -> bool {
    std::env::var_os("RATIOND_SOCKET").is_some_and(|path| Some(path.into()) == globals.socket)
}

/// The daemons that `top` looks at: those that are named, and that of a flag beside them. If none is named, it is the
/// one that all other commands ask.
fn sockets(args: &TopArgs, globals: &Globals) -> Result<Vec<PathBuf>, ExitError> {
    let flag = globals.socket.clone().filter(|_| !is_from_variable(globals));
    let first = if args.sockets.is_empty() { Some(socket(globals)?) } else { flag };
    Ok(first.into_iter().chain(args.sockets.clone()).chain(args.and.clone()).collect())
}

/// The names of variables that are read as flags, and of the log's variable.
fn variables() -> Vec<String> {
    fn visit(command: &clap::Command, names: &mut Vec<String>) {
        let own = command.get_arguments().filter_map(|argument| argument.get_env());
        names.extend(own.map(|name| name.to_string_lossy().into_owned()));
        command.get_subcommands().for_each(|command| visit(command, names));
    }
    let mut names = vec![log::VARIABLE.to_owned()];
    visit(&Cli::command(), &mut names);
    names
}

/// The daemon's socket: the one that a flag names, the configured one, or the default.
///
/// # Errors
/// The configuration is broken. Then its socket may be wrong as well, and another daemon may listen on the default
/// one.
fn socket(globals: &Globals) -> Result<PathBuf, ExitError> {
    if let Some(socket) = &globals.socket {
        return Ok(socket.clone());
    }
    let next = "no daemon was asked: set the configuration right, or name the socket with --socket";
    let loaded = load(&sources(globals, None));
    loaded
        .map(|loaded| loaded.config.listen.socket)
        .map_err(|errors| ExitError::new(Code::BadConfig, format!("{errors}\n{next}")))
}
