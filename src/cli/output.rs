//! Printing: data goes to stdout, messages go to stderr, both with colours where they are wanted.

use std::io::{self, IsTerminal, Write};

use serde_json::json;

use super::globals::Color;
use crate::config::ConfigErrors;

/// Whether text is coloured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    on: bool,
}

impl Paint {
    /// Paint for stdout.
    pub(crate) fn stdout(color: Color) -> Self {
        Self::new(color, io::stdout().is_terminal())
    }

    /// Paint for stderr.
    pub(crate) fn stderr(color: Color) -> Self {
        Self::new(color, io::stderr().is_terminal())
    }

    fn new(color: Color, terminal: bool) -> Self {
        let on = match color {
            Color::Auto => terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            Color::Always => true,
            Color::Never => false,
        };
        Self { on }
    }

    /// Whether colours are used.
    pub(crate) fn is_on(self) -> bool {
        self.on
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("31", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes data and a line end to stdout. It is no error when the reader has gone.
pub(crate) fn data(text: &str) -> io::Result<()> {
    is_read(text).map(drop)
}

/// The same for a caller that goes on writing: false when the reader has gone, so that further output is useless.
pub(crate) fn is_read(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true),
    }
}

/// Text of a peer or a client in a form that a terminal may show: control characters, which could move the cursor,
/// are escaped.
pub(crate) fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Columns, each as wide as its widest cell; the last one is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column| {
        rows.iter().filter_map(|row: &Vec<String>| row.get(column)).map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| widest(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The errors of a configuration as JSON, for programs.
pub(super) fn errors_as_json(errors: &ConfigErrors) -> String {
    let list = errors
        .0
        .iter()
        .map(|problem| json!({"place": problem.place.to_string(), "message": problem.message, "hint": problem.hint}));
    json!({"ok": false, "errors": list.collect::<Vec<_>>()}).to_string()
}
