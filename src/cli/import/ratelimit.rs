//! The configuration of envoyproxy/ratelimit, typed: its keys and their values.
//!
//! Source: `src/config/config_impl.go` of that project (commit f2fb157, July 2026). Keys are checked by their
//! position, which is stricter than the original: it ignores, for example, a `unit` beside a `key`.

use std::ops::Range;

use super::flaw::Flaw;
use super::yaml::{Kind, Node};
use crate::config::{did_you_mean, nearest};

/// One configuration file.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) domain: String,
    pub(super) descriptors: Vec<Descriptor>,
}

/// An entry that a descriptor may have, and the entries that may follow it.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) at: Range<usize>,
    pub(super) key: String,
    /// `None` for any value.
    pub(super) value: Option<String>,
    pub(super) limit: Option<Limit>,
    pub(super) shadow: bool,
    /// All values that a wildcard matches share one counter.
    pub(super) shares: bool,
    pub(super) descriptors: Vec<Descriptor>,
}

/// `rate_limit`.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<(Range<usize>, String)>,
    /// `None` for unlimited. Otherwise the count, and the period as our limits write it.
    pub(super) rate: Option<(u32, &'static str)>,
}

const ROOT: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "share_threshold",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const UNITS: [(&str, &str); 7] = [
    ("second", "1s"),
    ("minute", "1m"),
    ("hour", "1h"),
    ("day", "1d"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

/// Errors, and parts that cannot be imported.
#[derive(Debug, Default)]
pub(super) struct Flaws {
    pub(super) errors: Vec<Flaw>,
    pub(super) warnings: Vec<Flaw>,
}

/// Reads a document, and adds its errors to `flaws`.
pub(super) fn read(node: &Node, flaws: &mut Flaws) -> Root {
    let table = Table::read(node, "a file", ROOT, flaws);
    let domain = table.text("domain", flaws).unwrap_or_default();
    if domain.is_empty() {
        flaws.errors.push(Flaw::new(&node.at, "`domain` is missing: whose descriptors are these?"));
    }
    Root { domain, descriptors: descriptors(&table, flaws) }
}

/// The known keys of a mapping.
struct Table<'n> {
    at: Range<usize>,
    entries: Vec<(&'n str, &'n Node)>,
}

impl<'n> Table<'n> {
    fn read(node: &'n Node, what: &str, known: &[&str], flaws: &mut Flaws) -> Self {
        let mut table = Self { at: node.at.clone(), entries: Vec::new() };
        let Kind::Map(pairs) = &node.kind else {
            flaws.errors.push(Flaw::new(&node.at, format!("{what} is a mapping of keys to values")));
            return table;
        };
        for (key, value) in pairs {
            let Kind::Scalar(name, _) = &key.kind else {
                flaws.errors.push(Flaw::new(&key.at, "a key is a plain word"));
                continue;
            };
            if table.entries.iter().any(|(seen, _)| seen == name) {
                flaws.errors.push(Flaw::new(&key.at, format!("`{name}` stands twice")));
            } else if known.contains(&name.as_str()) {
                table.entries.push((name, value));
            } else {
                let places = [(ROOT, "the top"), (DESCRIPTOR, "a descriptor"), (LIMIT, "rate_limit")];
                let elsewhere = places.iter().find(|(keys, _)| keys.contains(&name.as_str()));
                let elsewhere = elsewhere.map(|(_, place)| format!("it belongs in {place}"));
                let hint = elsewhere.or_else(|| did_you_mean(nearest(name, known.iter().copied())));
                flaws.errors.push(Flaw::new(&key.at, format!("unknown key `{name}` in {what}")).with_hint(hint));
            }
        }
        table
    }

    /// The value of a key, unless it is null.
    fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(name, _)| *name == key).map(|(_, node)| *node).filter(|node| !node.is_null())
    }

    fn text(&self, key: &str, flaws: &mut Flaws) -> Option<String> {
        let node = self.get(key)?;
        match &node.kind {
            Kind::Scalar(text, _) => Some(text.clone()),
            _ => {
                flaws.errors.push(Flaw::new(&node.at, format!("`{key}` is a text")));
                None
            }
        }
    }

    fn flag(&self, key: &str, flaws: &mut Flaws) -> bool {
        let Some(node) = self.get(key) else { return false };
        let word = if let Kind::Scalar(text, true) = &node.kind { text.to_ascii_lowercase() } else { String::new() };
        match word.as_str() {
            // As in YAML 1.1, which that project's parser follows.
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                flaws.errors.push(Flaw::new(&node.at, format!("`{key}` is true or false")));
                false
            }
        }
    }

    fn list(&self, key: &str, flaws: &mut Flaws) -> &'n [Node] {
        match self.get(key).map(|node| (node, &node.kind)) {
            None => &[],
            Some((_, Kind::List(parts))) => parts,
            Some((node, _)) => {
                flaws.errors.push(Flaw::new(&node.at, format!("`{key}` is a list")));
                &[]
            }
        }
    }
}

fn descriptors(table: &Table<'_>, flaws: &mut Flaws) -> Vec<Descriptor> {
    let mut list: Vec<Descriptor> = Vec::new();
    for node in table.list("descriptors", flaws) {
        let Some(found) = descriptor(node, flaws) else { continue };
        if list.iter().any(|seen| (&seen.key, &seen.value) == (&found.key, &found.value)) {
            let value = found.value.as_ref().map_or_else(String::new, |value| format!(", value {value:?}"));
            let message = format!("a second descriptor of key {:?}{value}", found.key);
            flaws.errors.push(Flaw::new(&found.at, message));
        }
        list.push(found);
    }
    list
}

fn descriptor(node: &Node, flaws: &mut Flaws) -> Option<Descriptor> {
    let table = Table::read(node, "a descriptor", DESCRIPTOR, flaws);
    if !matches!(node.kind, Kind::Map(_)) {
        return None;
    }
    let key = table.text("key", flaws).filter(|key| !key.is_empty());
    let value = table.text("value", flaws).filter(|value| !value.is_empty());
    let limit = table.get("rate_limit").and_then(|node| limit(node, flaws));
    let shares = table.flag("share_threshold", flaws);
    let at = |name: &str| table.get(name).map_or_else(|| table.at.clone(), |node| node.at.clone());
    if shares && !value.as_ref().is_some_and(|value| value.contains('*')) {
        flaws.errors.push(Flaw::new(&at("share_threshold"), "`share_threshold` needs a value with a *"));
    }
    if table.flag("quota_mode", flaws) {
        let message = "`quota_mode` has no counterpart: every descriptor that is over its limit denies";
        flaws.errors.push(Flaw::new(&at("quota_mode"), message));
    }
    for name in ["detailed_metric", "value_to_metric"] {
        if table.flag(name, flaws) {
            let message = format!("`{name}` is left out: metrics are by policy, and none holds a value");
            flaws.warnings.push(Flaw::new(&at(name), message));
        }
    }
    if table.get("metadata").is_some() {
        let message = "`metadata` is left out: dynamic metadata is policy, reason, source and limit";
        flaws.warnings.push(Flaw::new(&at("metadata"), message));
    }
    let (shadow, below) = (table.flag("shadow_mode", flaws), descriptors(&table, flaws));
    let Some(key) = key else {
        flaws.errors.push(Flaw::new(&table.at, "a descriptor needs a `key`"));
        return None;
    };
    if key.contains(['=', '*']) {
        flaws.errors.push(Flaw::new(&at("key"), format!("{key:?}: a route cannot have = or * in a key")));
    }
    Some(Descriptor { at: table.at.clone(), key, value, limit, shadow, shares, descriptors: below })
}

fn limit(node: &Node, flaws: &mut Flaws) -> Option<Limit> {
    let table = Table::read(node, "rate_limit", LIMIT, flaws);
    let name = table.text("name", flaws).filter(|name| !name.is_empty());
    let mut replaces = Vec::new();
    for part in table.list("replaces", flaws) {
        let names = Table::read(part, "an element of `replaces`", &["name"], flaws);
        match names.text("name", flaws).filter(|name| !name.is_empty()) {
            Some(replaced) if Some(&replaced) == name.as_ref() => {
                flaws.errors.push(Flaw::new(&part.at, "a limit cannot replace itself"));
            }
            Some(replaced) => replaces.push((part.at.clone(), replaced)),
            None => flaws.errors.push(Flaw::new(&part.at, "an element of `replaces` needs a `name`")),
        }
    }
    let unlimited = table.flag("unlimited", flaws);
    let unit = table.text("unit", flaws);
    let (before, at) = (flaws.errors.len(), |name: &str| table.get(name).map_or(&table.at, |node| &node.at));
    let period = unit.as_ref().and_then(|unit| {
        let found = UNITS.iter().find(|(name, _)| unit.eq_ignore_ascii_case(name)).map(|(_, period)| *period);
        if found.is_none() {
            let hint = did_you_mean(nearest(&unit.to_ascii_lowercase(), UNITS.iter().map(|(name, _)| *name)));
            let names: Vec<_> = UNITS.iter().map(|(name, _)| *name).collect();
            let message = format!("`unit` is {unit:?}: there are {}", names.join(", "));
            flaws.errors.push(Flaw::new(at("unit"), message).with_hint(hint));
        }
        found
    });
    if unlimited {
        if unit.is_some() {
            flaws.errors.push(Flaw::new(at("unit"), "`unit` and `unlimited` exclude each other"));
        }
        return Some(Limit { name, replaces, rate: None });
    }
    if unit.is_none() {
        flaws.errors.push(Flaw::new(&table.at, "rate_limit needs a `unit`"));
    }
    let count = table.text("requests_per_unit", flaws);
    let number = count.as_ref().map_or(Ok(0), |text| text.replace('_', "").parse::<u32>());
    if number.is_err() {
        let message = format!("`requests_per_unit` is a whole number from 0 to {}", u32::MAX);
        flaws.errors.push(Flaw::new(at("requests_per_unit"), message));
    }
    match (period, number) {
        (Some(period), Ok(count)) if flaws.errors.len() == before => {
            if table.get("requests_per_unit").is_none() {
                let message = "`requests_per_unit` is missing, which there means 0: nothing passes";
                flaws.warnings.push(Flaw::new(&table.at, message));
            }
            Some(Limit { name, replaces, rate: Some((count, period)) })
        }
        _ => None,
    }
}
