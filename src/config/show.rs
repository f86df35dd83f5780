//! Each key with the value that counts and where it came from.

use figment::value::{Dict, Value};
use serde::Serialize;

use super::layers::{Layer, place_of};
use super::problem::Place;
use super::schema::{KEYS, OVERRIDE, POLICY};
use super::value::Kind;

/// One key of `config show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The key, like `store.url`.
    pub key: String,
    /// Its value as a file would write it, passwords masked; `None`: unset.
    pub value: Option<String>,
    /// `default`, a variable, a flag, or `file:line`.
    pub origin: String,
}

/// All keys outside the policies, then all that policies set.
pub(crate) fn entries(layers: &[Layer]) -> Vec<Entry> {
    let mut entries: Vec<_> =
        KEYS.iter().map(|key| entry(&[key.section.to_owned(), key.name.to_owned()], key.kind, layers)).collect();
    for path in policy_paths(layers) {
        let known = if path.len() > 3 { OVERRIDE } else { POLICY };
        let kind = known.iter().find(|(key, _)| path.last().is_some_and(|last| last == key));
        entries.extend(kind.map(|(_, kind)| entry(&path, *kind, layers)));
    }
    entries
}

fn entry(path: &[String], kind: Kind, layers: &[Layer]) -> Entry {
    let value = layers.iter().rev().find_map(|layer| get(&layer.dict, path));
    let origin = match place_of(path, layers) {
        _ if value.is_none() => "default".to_owned(),
        Place::File { path, line, .. } => format!("{}:{line}", path.display()),
        Place::Named(name) => name,
    };
    Entry { key: write_path(path), value: value.map(|value| kind.show(value)), origin }
}

fn policy_paths(layers: &[Layer]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for layer in layers {
        if let Some(Value::Dict(_, policies)) = layer.dict.get("policy") {
            collect(policies, &["policy".to_owned()], &mut paths);
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

fn collect(dict: &Dict, path: &[String], paths: &mut Vec<Vec<String>>) {
    for (key, value) in dict {
        let mut path = path.to_vec();
        path.push(key.clone());
        match value {
            Value::Dict(_, below) => collect(below, &path, paths),
            _ => paths.push(path),
        }
    }
}

fn get<'a>(dict: &'a Dict, path: &[String]) -> Option<&'a Value> {
    let [first, rest @ ..] = path else { return None };
    match dict.get(first)? {
        Value::Dict(_, below) if !rest.is_empty() => get(below, rest),
        value => rest.is_empty().then_some(value),
    }
}

/// The path as TOML writes a key: parts that are not bare words in quotes.
fn write_path(path: &[String]) -> String {
    let bare =
        |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
    let parts: Vec<_> = path.iter().map(|part| if bare(part) { part.clone() } else { format!("{part:?}") }).collect();
    parts.join(".")
}
