//! `rationd config import-envoy PATH`: translates the YAML of envoyproxy/ratelimit into our policies and routes.
//!
//! `yaml` parses it with positions, `ratelimit` knows its keys, and `translate` writes TOML. What our configuration
//! cannot express is an error; what only that service's metrics need is left out with a warning.

mod flaw;
mod ratelimit;
mod translate;
mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use self::flaw::Flaw;
use self::translate::Fragment;
use super::exit::{Code, ExitError};
use super::globals::{Globals, Output};
use super::output;
use crate::config::{ConfigErrors, Place, Problem};

/// Largest file that is read.
const MAX_FILE: u64 = 8 << 20;
/// Most levels of directories.
const MAX_DEPTH: usize = 8;

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
                output::data(&output::errors_as_json(&errors))?;
            }
            Err(ExitError::new(Code::BadConfig, errors).into())
        }
    }
}

/// Translates a text into TOML, or returns all errors with their places. For `fuzz/`, which has no files.
///
/// # Errors
/// Why the text cannot be translated.
#[doc(hidden)]
pub fn import_envoy(text: &str) -> Result<String, Vec<String>> {
    let path = Path::new("limits.yaml");
    let texts = |flaws: Vec<Flaw>| flaws.into_iter().map(|flaw| flaw.place(path, text).to_string()).collect();
    let mut fragment = translate::fragment(text, "limits.yaml").map_err(texts)?;
    let _: Vec<String> = texts(std::mem::take(&mut fragment.warnings));
    Ok(fragment.toml)
}

/// Translates a file, or all files of a directory, and returns what was left out.
fn imported(path: &Path) -> Result<(String, Vec<Problem>), ConfigErrors> {
    let files = files(path).map_err(|problem| ConfigErrors(vec![problem]))?;
    let (mut text, mut warnings, mut errors) = (String::new(), Vec::new(), Vec::new());
    let mut domains: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in files {
        match translated(&file) {
            Ok((fragment, mut left_out)) => {
                warnings.append(&mut left_out);
                if !text.is_empty() {
                    text.push('\n');
                }
                text.push_str(&fragment.toml);
                // envoyproxy/ratelimit, too, allows only one file per domain.
                if let Some(other) = domains.insert(fragment.domain.clone(), file.clone()) {
                    let message = format!("domain {:?} stands in {}, too", fragment.domain, other.display());
                    let hint = Some("write one file for each domain".to_owned());
                    errors.push(Problem { place: Place::Named(file.display().to_string()), message, hint });
                }
            }
            Err(ConfigErrors(mut problems)) => errors.append(&mut problems),
        }
    }
    if errors.is_empty() { Ok((text, warnings)) } else { Err(ConfigErrors::in_order(errors)) }
}

fn unreadable(path: &Path, why: impl std::fmt::Display) -> Problem {
    let place = Place::Named(path.display().to_string());
    Problem { place, message: format!("cannot be read: {why}"), hint: None }
}

/// The file itself, or the YAML files in and below a directory, in order. Names that begin with a dot are skipped,
/// because a mounted ConfigMap keeps its versions under such names.
fn files(path: &Path) -> Result<Vec<PathBuf>, Problem> {
    if !std::fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    collect(path, MAX_DEPTH, &mut found)?;
    if found.is_empty() {
        return Err(unreadable(path, "no .yaml or .yml file is in this directory"));
    }
    Ok(found)
}

fn collect(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Problem> {
    let list = std::fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut paths: Vec<_> =
        list.map_err(|error| unreadable(directory, error))?.into_iter().map(|entry| entry.path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b".")));
    paths.sort();
    for path in paths {
        if path.is_dir() {
            match depth.checked_sub(1) {
                Some(depth) => collect(&path, depth, found)?,
                None => return Err(unreadable(&path, format!("more than {MAX_DEPTH} directories deep"))),
            }
        } else if path.extension().is_some_and(|end| end == "yaml" || end == "yml") {
            found.push(path);
        }
    }
    Ok(())
}

/// Translates one file, and returns what was left out.
fn translated(path: &Path) -> Result<(Fragment, Vec<Problem>), ConfigErrors> {
    let unreadable = |why: String| ConfigErrors(vec![unreadable(path, why)]);
    let length = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > MAX_FILE {
        return Err(unreadable(format!("larger than {} MiB", MAX_FILE >> 20)));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    // A byte order mark is removed; positions are counted without it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let placed = |flaws: Vec<Flaw>| flaws.into_iter().map(|flaw| flaw.place(path, text)).collect::<Vec<_>>();
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    match translate::fragment(text, &name) {
        Ok(mut fragment) => {
            let warnings = placed(std::mem::take(&mut fragment.warnings));
            Ok((fragment, warnings))
        }
        Err(flaws) => Err(ConfigErrors::in_order(placed(flaws))),
    }
}
