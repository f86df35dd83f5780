//! The rationd binary: see [`rationd::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    rationd::cli::run()
}
