//! The command line of the simulations: `cargo run --release -p simulations -- help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    simulations::cli::main()
}
