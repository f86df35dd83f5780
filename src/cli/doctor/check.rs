//! What a check is: what it looks at, why that matters, what to do, and where to read on.

use std::fmt;

use super::patient::Patient;

/// One of the checks.
#[derive(Clone, Copy)]
pub struct Check {
    /// Its name, stable: `store.eviction`.
    pub id: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What to do when something is found.
    pub next: &'static str,
    /// Where to read on: a page of the book below `docs/`, and a heading.
    pub see: &'static str,
    pub(super) look: fn(&Patient) -> Look,
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The finding of a check, with what was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The check does not apply here.
    Apart,
    /// All is well.
    Ok(String),
    /// It works, but something may go wrong, or somebody may be surprised.
    Warning(String),
    /// The daemon does not start, or limits do not hold.
    Fatal(String),
}

impl Look {
    /// Its word.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Apart => "apart",
            Self::Ok(_) => "ok",
            Self::Warning(_) => "warning",
            Self::Fatal(_) => "fatal",
        }
    }

    /// What was seen.
    pub(super) fn seen(&self) -> &str {
        match self {
            Self::Apart => "",
            Self::Ok(seen) | Self::Warning(seen) | Self::Fatal(seen) => seen,
        }
    }

    /// `Ok` if there are no findings, or else what `wrong` makes of them all.
    pub(super) fn none_of(findings: Vec<String>, wrong: fn(String) -> Self, well: impl Into<String>) -> Self {
        if findings.is_empty() { Self::Ok(well.into()) } else { wrong(findings.join("; ")) }
    }
}
