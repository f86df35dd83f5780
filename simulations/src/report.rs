//! Reports of runs: `summary.json` for machines and one `index.html` for people.
//!
//! The page needs nothing but itself: the charts are inline SVG by our own small code, the colours
//! follow the reader's light or dark mode, and the width may be that of a phone. It decides nothing:
//! what failed was found by checkers and by [`crate::plan::Expect::judge`] before.

mod chart;
mod charts;
mod html;
mod lanes;
mod page;
mod runs;
mod scale;
mod summary;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

pub use self::html::escape;
use crate::outcome::Outcome;

/// Writes both files into a directory, which is made if it is not there. One outcome gets a page
/// with charts; of many there is a table, and charts of those that failed.
///
/// # Errors
/// What the file system says.
pub fn write(dir: &Path, outcomes: &[Outcome]) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let summary = serde_json::to_string_pretty(&summary::json(outcomes))?;
    std::fs::write(dir.join("summary.json"), summary + "\n")?;
    std::fs::write(dir.join("index.html"), page::html(outcomes))
}
