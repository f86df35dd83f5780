//! How a test says that it left something out, so that `tests/run` can list it at its end.

use std::io::Write;

/// Says, past the test harness, that `what` was not run for lack of something. `wants` is all that it wants, in words
/// that `tests/run` can look for by itself: names of programs, paths, and those of its function `has`.
pub fn skipped(what: &str, why: &str, wants: &str) {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    writeln!(std::io::stderr(), "skipped: {what} ({why}); it wants {wants}").expect("stderr takes a line");
}
