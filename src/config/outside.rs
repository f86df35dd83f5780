//! Values that are set outside the files: by the environment and by flags, each one a layer of its own.

use std::ffi::OsString;

use figment::value::{Dict, Value};

use super::layers::Layer;
use super::problem::{Place, Problem, did_you_mean, nearest};
use super::schema::{DESCRIPTORS, POLICY, keys_of, sections};
use super::value::{Kind, Seen};

const PREFIX: &str = "RATIOND_";

/// Variables with `__` are keys; others are flags, or a platform's that happen to share our prefix.
pub(crate) fn environment(variables: &[(OsString, OsString)], problems: &mut Vec<Problem>) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (name, text) in variables {
        let Some(name) = name.to_str() else { continue };
        let Some(path) = name.strip_prefix(PREFIX).filter(|rest| rest.contains("__")) else { continue };
        let path: Vec<_> = path.split("__").map(str::to_lowercase).collect();
        match text.to_str() {
            Some(text) => layers.extend(outside(name.to_owned(), &path, text, problems)),
            None => problems.push(Problem::named(name, "not UTF-8")),
        }
    }
    layers
}

/// A layer of one value that was set outside the files.
pub(crate) fn outside(origin: String, path: &[String], text: &str, problems: &mut Vec<Problem>) -> Option<Layer> {
    let kind = match kind_of(path) {
        Ok(kind) => kind,
        Err(problem) => {
            problems.push(Problem { place: Place::Named(origin), ..problem });
            return None;
        }
    };
    let value = match kind.accept(&Seen::from_text(kind, text)) {
        Ok(value) => value,
        Err(faults) => {
            problems.extend(faults.into_iter().map(|fault| {
                let message = fault.message(&path.join("."));
                Problem::named(origin.clone(), message).with_hint(fault.hint)
            }));
            return None;
        }
    };
    let mut dict = Dict::new();
    insert(&mut dict, path, value);
    Some(Layer { name: origin, dict, document: None })
}

/// The kind of the key at `path`, or a problem without a place.
fn kind_of(path: &[String]) -> Result<Kind, Problem> {
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    let (known, seen): (Vec<(&str, Kind)>, &str) = match parts[..] {
        ["policy", name, key] if !name.is_empty() => (POLICY.to_vec(), key),
        [DESCRIPTORS, ..] => return Err(Problem::named("", "[descriptors] can be set in the main file only")),
        [section, key] => {
            let known: Vec<_> = keys_of(section).map(|key| (key.name, key.kind)).collect();
            if known.is_empty() {
                let hint = did_you_mean(nearest(section, sections()));
                return Err(Problem::named("", format!("unknown section `{section}`")).with_hint(hint));
            }
            (known, key)
        }
        _ => return Err(Problem::named("", "names no key: RATIOND_SECTION__KEY was wanted")),
    };
    known.iter().find(|(key, _)| *key == seen).map(|(_, kind)| *kind).ok_or_else(|| {
        let hint = did_you_mean(nearest(seen, known.iter().map(|(key, _)| *key)));
        Problem::named("", format!("unknown key `{seen}` in [{}]", parts[..parts.len() - 1].join("."))).with_hint(hint)
    })
}

/// Puts `value` at `path`, making the tables on the way.
pub(crate) fn insert(dict: &mut Dict, path: &[String], value: Value) {
    let [first, rest @ ..] = path else { return };
    if rest.is_empty() {
        dict.insert(first.clone(), value);
        return;
    }
    let below = dict.entry(first.clone()).or_insert_with(|| Value::from(Dict::new()));
    if let Value::Dict(_, below) = below {
        insert(below, rest, value);
    }
}
