//! Standard output. The reader may stop early, as `head` does in `simulations log FILE | head`. The program then ends
//! with the status that a shell gives to a program that was ended by SIGPIPE.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::process;

const ENDED_BY_SIGPIPE: i32 = 128 + 13;

/// Writes a line.
///
/// # Panics
///
/// When it cannot be written although somebody reads.
#[allow(clippy::disallowed_methods, reason = "a run holds nothing that a drop would save")]
pub(super) fn write_line(line: Arguments<'_>) {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => (),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(ENDED_BY_SIGPIPE),
        Err(error) => panic!("standard output: {error}"),
    }
}

/// Writes a line, as `println` does.
macro_rules! say {
    ($($argument:tt)*) => { $crate::cli::output::write_line(format_args!($($argument)*)) };
}
pub(super) use say;
