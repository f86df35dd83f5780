//! The command line of the simulations: `cargo run --release -p simulations -- help`.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    simulations::cli::main()
}
