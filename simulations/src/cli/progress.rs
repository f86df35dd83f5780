//! How far a command is: one line that changes on a terminal, a line now and then elsewhere.
//!
//! It goes to stderr, so that stdout holds results only and can be kept. It reads the clock; no run
//! ever sees that.

use std::io::{IsTerminal, Write};

use rationd::clock::Clock;
use rationd::core::time::{Instant, Micros};

use super::output::say;

/// Between two lines on a terminal, and elsewhere.
const PAUSES: [Micros; 2] = [Micros::from_millis(100), Micros::from_secs(10)];

/// Writes to stderr.
pub(super) struct Progress {
    clock: Clock,
    start: Instant,
    is_terminal: bool,
    next: Instant,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        let clock = Clock::start();
        let start = clock.now();
        Self { clock, start, is_terminal: std::io::stderr().is_terminal(), next: start, is_shown: false }
    }

    /// Milliseconds since the start, at least one.
    pub(super) fn millis(&self) -> u64 {
        (self.clock.now().since(self.start).0 / 1_000).max(1) // rounded down
    }

    /// Shows how far it is, if it is time to.
    pub(super) fn show(&mut self, line: impl FnOnce() -> String) {
        let now = self.clock.now();
        if now < self.next {
            return;
        }
        self.next = now + PAUSES[usize::from(!self.is_terminal)];
        self.clear();
        let end = if self.is_terminal { "" } else { "\n" };
        eprint!("{}{end}", line());
        self.is_shown = self.is_terminal;
        let _ = std::io::stderr().flush(); // a progress line is nobody's result
    }

    /// Clears the line before something else is written.
    pub(super) fn clear(&mut self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
            self.is_shown = false;
        }
    }

    /// Prints a result.
    pub(super) fn print(&mut self, line: impl std::fmt::Display) {
        self.clear();
        say!("{line}");
    }
}
