//! The command line: one file per subcommand, or for two related ones.
//!
//! Results go to stdout, one line per run, each with the seed and the command that repeats it; progress goes to
//! stderr. Exit codes: 0 when all is well, 1 when something did not hold, 2 for wrong usage.

mod arguments;
mod log;
mod many;
mod mutants;
mod output;
mod progress;
mod quoted;
mod run;
mod runner;
mod shrink;
mod swarm;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::arguments::Verdict;
use self::output::say;
use crate::scenario;

/// Deterministic simulations of a rationd fleet.
#[derive(Debug, Parser)]
#[command(name = "simulations", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run scenarios: files, names, or whole directories.
    Run(run::Run),
    /// Run a kept bug twice, and print everything that did not hold.
    Replay(run::Replay),
    /// Run what many seeds expand to.
    Swarm(swarm::Swarm),
    /// Run seed after seed for a time.
    Soak(swarm::Soak),
    /// Show that the checkers notice every bug on purpose.
    Mutants(mutants::Mutants),
    /// Make a plan that fails smaller, and keep it.
    Shrink(shrink::Shrink),
    /// Print what was measured beside what is wanted, for all scenarios.
    Table(table::Table),
    /// Print what happened in one run.
    Log(log::Log),
    /// Print the JSON schema of scenario files.
    Schema,
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(run) => run.main(),
        Command::Replay(replay) => replay.main(),
        Command::Swarm(swarm) => swarm.main(),
        Command::Soak(soak) => soak.main(),
        Command::Mutants(mutants) => mutants.main(),
        Command::Shrink(shrink) => shrink.main(),
        Command::Table(table) => table.main(),
        Command::Log(log) => log.main(),
        Command::Schema => {
            say!("{}", scenario::schema());
            Ok(Verdict::Good)
        }
    };
    match done {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Bad) => ExitCode::from(1),
        Err(error) => {
            eprintln!("simulations: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_an_error() {
        for line in ["", "run", "swarm --jobs 0", "soak", "soak --for 8", "mutants --seeds 0", "shrink", "fly"] {
            assert!(Cli::try_parse_from(format!("simulations {line}").split_whitespace()).is_err(), "{line}");
        }
    }
}
