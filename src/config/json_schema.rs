//! The schema as JSON Schema, so that editors complete a configuration and mark what is wrong in it.
//!
//! It is made from the list that checking uses, but checks less than that: JSON Schema cannot express the grammar of
//! limits, for example. The comments of the sample say what each key is for.

use serde_json::{Map, Value, json};

use super::schema::{DESCRIPTORS, FLEET, FLEET_NEEDS, KEYS, OVERRIDE, POLICY, ROUTE, sections};
use super::value::Kind;

/// The whole schema of a file.
#[must_use]
pub fn json_schema() -> Value {
    let mut tables = Map::new();
    for section in sections() {
        let keys = KEYS.iter().filter(|key| key.section == section);
        let keys = keys.map(|key| (key.name, key.kind, key.default));
        let mut table = object(keys);
        if section == FLEET {
            table["required"] = FLEET_NEEDS.iter().map(|(name, _)| *name).collect();
        }
        tables.insert(section.to_owned(), table);
    }
    let plain = |keys: &'static [(&'static str, Kind)]| object(keys.iter().map(|(name, kind)| (*name, *kind, None)));
    let mut policy = plain(POLICY);
    policy["properties"]["override"] = json!({"type": "object", "additionalProperties": plain(OVERRIDE)});
    tables.insert("policy".to_owned(), json!({"type": "object", "additionalProperties": policy}));
    let routes = json!({"type": "array", "items": plain(ROUTE)});
    tables.insert(DESCRIPTORS.to_owned(), json!({"type": "object", "additionalProperties": routes}));
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "rationd's configuration",
        "type": "object",
        "additionalProperties": false,
        "properties": tables,
    })
}

/// A table with these keys and no others, each with its type and its default.
fn object<'a>(keys: impl Iterator<Item = (&'a str, Kind, Option<&'a str>)>) -> Value {
    let properties: Map<String, Value> = keys
        .map(|(name, kind, default)| {
            let mut taken = taken(kind);
            taken["description"] = json!(kind.wanted().trim_end_matches(','));
            if let Some(default) = default {
                taken["default"] = match kind {
                    Kind::Bool | Kind::Count(..) => serde_json::from_str(default).unwrap_or(Value::Null),
                    _ => json!(default),
                };
            }
            (name.to_owned(), taken)
        })
        .collect();
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

/// The type of a key of this kind.
fn taken(kind: Kind) -> Value {
    match kind {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Count(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Kind::Choice(words) => json!({"type": "string", "enum": words}),
        Kind::Uids => json!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}),
        Kind::Texts | Kind::Words | Kind::Seeds => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Size(least, most) => json!({"type": ["string", "integer"], "minimum": least, "maximum": most}),
        Kind::Text
        | Kind::Path
        | Kind::Period(..)
        | Kind::Mode
        | Kind::Address
        | Kind::ListenAddress
        | Kind::Listen
        | Kind::Reach
        | Kind::Url
        | Kind::Prefix
        | Kind::Name
        | Kind::Label
        | Kind::Limit
        | Kind::Seed => json!({"type": "string"}),
    }
}
