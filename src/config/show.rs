//! Each key with the value that is used and where it came from, for `config show`.

use figment::value::{Dict, Value};
use serde::Serialize;

use super::layer::{Layer, place_of};
use super::problem::Place;
use super::schema::{DESCRIPTORS, KEYS, OVERRIDE, POLICY, ROUTE};
use super::value::Kind;

/// One key of `config show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The key, like `store.url`.
    pub key: String,
    /// Its value as a file would write it, with passwords masked; `None` when it is unset.
    pub value: Option<String>,
    /// `default`, a variable, a flag, or `file:line`.
    pub origin: String,
}

/// All keys outside of the policies and routes.
pub(crate) fn settings(layers: &[Layer]) -> Vec<Entry> {
    KEYS.iter().map(|key| entry(&[key.section.to_owned(), key.name.to_owned()], key.kind, layers)).collect()
}

/// All that policies set, then the routes.
pub(crate) fn policies_and_routes(layers: &[Layer]) -> Vec<Entry> {
    let mut entries = Vec::new();
    for path in policy_paths(layers) {
        let known = if path.len() > 3 { OVERRIDE } else { POLICY };
        let kind = known.iter().find(|(key, _)| path.last().is_some_and(|last| last == key));
        entries.extend(kind.map(|(_, kind)| entry(&path, *kind, layers)));
    }
    entries.extend(layers.iter().flat_map(routes));
    entries
}

/// One entry for each route, as one table.
fn routes(layer: &Layer) -> Vec<Entry> {
    let Some(Value::Dict(_, domains)) = layer.dict.get(DESCRIPTORS) else { return Vec::new() };
    let lists = domains.iter().filter_map(|(domain, routes)| Some((domain, routes.as_array()?)));
    let route = |domain: &String, index: usize, route: &Value| {
        let path = [DESCRIPTORS.to_owned(), domain.clone(), index.to_string()];
        let table = route.as_dict()?;
        let keys = ROUTE.iter().filter_map(|(key, kind)| Some(format!("{key} = {}", kind.show(table.get(*key)?))));
        let value = format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "));
        Some(Entry { key: write_path(&path), value: Some(value), origin: origin(&path, std::slice::from_ref(layer)) })
    };
    lists
        .flat_map(|(domain, list)| {
            list.iter().enumerate().filter_map(move |(index, value)| route(domain, index, value))
        })
        .collect()
}

fn origin(path: &[String], layers: &[Layer]) -> String {
    match place_of(path, layers) {
        Place::File { path, line, .. } => format!("{}:{line}", path.display()),
        Place::Named(name) => name,
    }
}

fn entry(path: &[String], kind: Kind, layers: &[Layer]) -> Entry {
    let value = layers.iter().rev().find_map(|layer| get(&layer.dict, path));
    let origin = if value.is_none() { "default".to_owned() } else { origin(path, layers) };
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

/// Writes a key as TOML does; parts that are not bare words are quoted.
fn write_path(path: &[String]) -> String {
    let bare =
        |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
    let parts: Vec<_> = path.iter().map(|part| if bare(part) { part.clone() } else { format!("{part:?}") }).collect();
    parts.join(".")
}
