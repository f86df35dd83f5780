//! An error in a file that is imported.

use std::ops::Range;
use std::path::Path;

use crate::config::{Place, Problem};

/// An error in a file, or a part of it that cannot be imported, with its range in characters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Flaw {
    pub(super) fn new(at: &Range<usize>, message: impl Into<String>) -> Self {
        Self { at: at.clone(), message: message.into(), hint: None }
    }

    pub(super) fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    pub(super) fn place(self, path: &Path, text: &str) -> Problem {
        let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
        let place = Place::in_file(path, text, byte(self.at.start)..byte(self.at.end));
        Problem { place, message: self.message, hint: self.hint }
    }
}
