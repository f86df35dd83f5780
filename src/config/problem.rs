//! Errors of a configuration with their places, and their text for people.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Longest part of a line that an excerpt shows, in characters.
const WIDEST: usize = 120;

/// The place of a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A place in a file; lines and columns are counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The character in the line.
        column: usize,
        /// The line itself, with passwords masked.
        excerpt: String,
        /// Characters to underline, at least 1.
        width: usize,
    },
    /// The name of an environment variable, of a flag, of a whole file, or of a default.
    Named(String),
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its place.
    pub place: Place,
    /// What was seen, and what was expected.
    pub message: String,
    /// What to do about it, if there is a likely answer.
    pub hint: Option<String>,
}

/// All errors of a configuration. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<Problem>);

/// The positions of the lines in a text. They are counted once, because a configuration of many policies asks for the
/// places of all its keys.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The position after the end of each line, in order: all lines but the first begin there.
    begins: Vec<usize>,
}

impl Lines {
    /// The lines of `text`.
    pub(crate) fn of(text: &str) -> Self {
        #[cfg(test)]
        counted::LOOKED_AT.with(|bytes| bytes.set(bytes.get() + text.len()));
        Self { begins: text.match_indices('\n').map(|(at, _)| at + 1).collect() }
    }

    /// The number of the line that contains byte `at`, counted from 1, and the position where the line begins.
    fn line_of(&self, at: usize) -> (usize, usize) {
        let before = self.begins.partition_point(|begin| *begin <= at);
        (before + 1, before.checked_sub(1).map_or(0, |last| self.begins[last]))
    }
}

impl Problem {
    pub(crate) fn named(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: Place::Named(name.into()), message: message.into(), hint: None }
    }

    pub(crate) fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }
}

impl ConfigErrors {
    /// Sorts problems as a reader meets them: those in files by line, then the others.
    pub(crate) fn in_order(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match &problem.place {
            Place::File { path, line, column, .. } => (0, path.clone(), *line, *column),
            Place::Named(_) => (1, PathBuf::new(), 0, 0),
        });
        Self(problems)
    }
}

impl Place {
    /// The place of the bytes `span` in `text`. It counts lines each time; use [`Self::in_lines`] for several places
    /// of one text.
    pub(crate) fn in_file(path: &Path, text: &str, span: Range<usize>) -> Self {
        Self::in_lines(path, text, &Lines::of(text), span)
    }

    /// The place of the bytes `span` in `text`, whose lines are `lines`.
    pub(crate) fn in_lines(path: &Path, text: &str, lines: &Lines, span: Range<usize>) -> Self {
        let start = floor_boundary(text, span.start);
        let end = floor_boundary(text, span.end.max(start));
        let (number, line_start) = lines.line_of(start);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line = text[line_start..line_end].trim_end_matches('\r');
        let column = text[line_start..start].chars().count() + 1;
        let width = text[start..end.min(line_end).max(start)].trim_end().chars().count().max(1);
        let visible = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
        Self::File {
            path: path.to_owned(),
            line: number,
            column,
            excerpt: mask_password(line).chars().map(visible).collect(),
            width,
        }
    }
}

impl fmt::Display for Place {
    /// `file:line:column`, or the name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column, .. } => write!(f, "{}:{line}:{column}", path.display()),
            Self::Named(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)?;
        let Place::File { line, column, excerpt, width, .. } = &self.place else {
            return self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " ({hint})"));
        };
        // A long line is shown from shortly before the error.
        let skipped = if column + width > WIDEST { column.saturating_sub(20) } else { 0 };
        let shown: String = excerpt.chars().skip(skipped).take(WIDEST).collect();
        let before = column - 1 - skipped;
        let pad: String = shown.chars().take(before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let room = shown.chars().count().saturating_sub(before).max(1);
        let carets = "^".repeat((*width).min(room));
        let gutter = line.to_string();
        write!(f, "\n  {gutter} | {shown}\n  {:gap$} | {pad}{carets}", "", gap = gutter.len())?;
        self.hint.as_ref().map_or(Ok(()), |hint| write!(f, " {hint}"))
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// Replaces the password in a URL by `***`.
///
/// A password may contain any character but a line break, and `text` may be no valid URL. So everything is masked
/// between the first colon (after a scheme, if there is one) and the last `@`.
pub(crate) fn mask_password(text: &str) -> String {
    let Some(at) = text.rfind('@') else { return text.to_owned() };
    let start = text[..at].find("://").map_or(0, |scheme| scheme + 3);
    match text[start..at].find(':') {
        Some(colon) => format!("{}:***{}", &text[..start + colon], &text[at..]),
        None if start > 0 => format!("{}***{}", &text[..start], &text[at..]),
        None => text.to_owned(),
    }
}

/// The one of `known` that is nearest to `seen`, if it is near enough to be a slip.
pub(crate) fn nearest<'a>(seen: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let most = (seen.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(seen, word), word))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, word)| word)
}

pub(crate) fn did_you_mean(word: Option<&str>) -> Option<String> {
    word.map(|word| format!("did you mean `{word}`?"))
}

/// Counts the work of finding lines, for tests; a clock would measure the machine.
#[cfg(test)]
pub(super) mod counted {
    use std::cell::Cell;

    thread_local! {
        /// Bytes of texts whose lines were counted on this thread.
        pub(crate) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_only_the_password() {
        assert_eq!(mask_password(r#"url = "redis://bob:p@ss@h:1" # x"#), r#"url = "redis://bob:***@h:1" # x"#);
        assert_eq!(mask_password("redis://h:1/0"), "redis://h:1/0");
        assert_eq!(mask_password("url = \"redis://bob:hun'ter 2\\\"3@h\""), "url = \"redis://bob:***@h\"");
        assert_eq!(mask_password("redis://secret@h"), "redis://***@h");
        for slip in ["redis:/bob:hunter2@h", "redis//bob:hunter2@h", "bob:hunter2@h", "postgres://bob:hunter2@h"] {
            assert!(!mask_password(slip).contains("hunter2") && mask_password(slip).ends_with("***@h"), "{slip}");
        }
    }

    #[test]
    fn points_at_the_span_after_tabs_and_wide_letters() {
        let text = "a = 1\n\té = oops\n";
        let start = text.find("oops").expect("it is there");
        let place = Place::in_file(Path::new("f"), text, start..start + 4);
        let shown = Problem { place, message: "m".into(), hint: None }.to_string();
        assert_eq!(shown, "f:2:6: m\n  2 | \té = oops\n    | \t    ^^^^");
    }

    #[test]
    fn every_byte_is_in_the_line_that_counting_finds() {
        for text in ["", "\n", "a", "a\n", "a\nb", "\n\na = 1\r\n\nb\n\n"] {
            let lines = Lines::of(text);
            for at in 0..=text.len() {
                let head = &text[..at];
                let counted = (head.matches('\n').count() + 1, head.rfind('\n').map_or(0, |end| end + 1));
                assert_eq!(lines.line_of(at), counted, "byte {at} of {text:?}");
            }
        }
    }

    #[test]
    fn a_span_past_the_end_is_the_end() {
        let place = Place::in_file(Path::new("f"), "é", 1..99);
        assert!(matches!(place, Place::File { line: 1, .. }), "{place:?}");
    }
}
