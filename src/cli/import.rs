//! `rationd config import-envoy FILE`: the YAML of envoyproxy/ratelimit as policies and routes of ours.
//!
//! `yaml` reads it with its places, `ratelimit` knows its keys, `translate` writes TOML. What ours cannot say is an
//! error, what only that service's own metrics need is left out with a warning.

mod ratelimit;
mod translate;
mod yaml;

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use super::args::{Globals, Output};
use super::exit::{Code, Stop};
use super::output;
use crate::config::{ConfigErrors, Place, Problem};

/// Largest file that is read.
const MAX_FILE: u64 = 8 << 20;

/// Something that is wrong with a file, or left out of it: where, in characters.
#[derive(Debug, PartialEq, Eq)]
struct Flaw {
    at: Range<usize>,
    message: String,
    hint: Option<String>,
}

impl Flaw {
    fn new(at: &Range<usize>, message: impl Into<String>) -> Self {
        Self { at: at.clone(), message: message.into(), hint: None }
    }

    fn with_hint(self, hint: Option<String>) -> Self {
        Self { hint, ..self }
    }

    fn place(self, path: &Path, text: &str) -> Problem {
        let byte = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(at, _)| at);
        let place = Place::in_file(path, text, byte(self.at.start)..byte(self.at.end));
        Problem { place, message: self.message, hint: self.hint }
    }
}

pub(super) fn run(path: &Path, globals: &Globals) -> anyhow::Result<ExitCode> {
    match imported(path) {
        Ok((text, warnings)) => {
            for warning in warnings.iter().filter(|_| globals.quiet == 0) {
                eprintln!("rationd: {warning}");
            }
            output::data(text.trim_end())?;
            Ok(Code::Ok.into())
        }
        Err(errors) => {
            if globals.output == Output::Json {
                output::data(&super::config::errors_as_json(&errors))?;
            }
            Err(Stop::new(Code::BadConfig, errors).into())
        }
    }
}

/// The file as TOML, and what was left out.
fn imported(path: &Path) -> Result<(String, Vec<Problem>), ConfigErrors> {
    let unreadable = |why: String| {
        let place = Place::Named(path.display().to_string());
        ConfigErrors(vec![Problem { place, message: format!("cannot be read: {why}"), hint: None }])
    };
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > MAX_FILE {
        return Err(unreadable(format!("larger than {} MiB", MAX_FILE >> 20)));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // Marks count from behind it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let placed = |flaws: Vec<Flaw>| flaws.into_iter().map(|flaw| flaw.place(path, text)).collect::<Vec<_>>();
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let told = translate::fragment(text, &name);
    told.map(|(text, warnings)| (text, placed(warnings))).map_err(|flaws| ConfigErrors::in_order(placed(flaws)))
}
