//! What a reload would change: the difference of two lists of policies, as `RATION.POLICIES` gives them.
//!
//! Works on JSON, so that the command line compares what a daemon tells with what a configuration says.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// The policies that differ: an array of objects with the policy's name, `added`, `removed` or `changed`, and for the last
/// what was and what would be, by setting.
#[must_use]
pub fn between(old: &Value, new: &Value) -> Value {
    let named = |list: &Value, name: &str| list.as_array()?.iter().find(|policy| policy["name"] == name).cloned();
    let names: BTreeSet<&str> = [old, new]
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|policy| policy["name"].as_str())
        .collect();
    let differences = names.into_iter().filter_map(|name| match (named(old, name), named(new, name)) {
        (Some(old), Some(new)) => {
            let settings = settings(&old, &new);
            (!settings.is_empty()).then(|| json!({"policy": name, "change": "changed", "settings": settings}))
        }
        (Some(old), None) => {
            Some(json!({"policy": name, "change": "removed", "settings": settings(&old, &Value::Null)}))
        }
        (None, new) => Some(json!({
            "policy": name,
            "change": "added",
            "settings": settings(&Value::Null, &new.unwrap_or_default()),
        })),
    });
    differences.collect()
}

/// The settings that differ. Each override is a setting of its own.
fn settings(old: &Value, new: &Value) -> Vec<Value> {
    let (old, new) = (flat(old), flat(new));
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differing = names.into_iter().filter(|name| old.get(*name) != new.get(*name));
    differing.map(|name| json!({"setting": name, "old": old.get(name), "new": new.get(name)})).collect()
}

fn flat(policy: &Value) -> Map<String, Value> {
    let mut settings = Map::new();
    for (name, value) in policy.as_object().into_iter().flatten() {
        match value {
            Value::Object(overrides) if name == "overrides" => {
                for (key, plan) in overrides {
                    settings.insert(format!("override {key:?}"), plan.clone());
                }
            }
            _ if name == "name" => {}
            value => drop(settings.insert(name.clone(), value.clone())),
        }
    }
    settings
}

/// The same for people: a line for each policy, and one for each setting below it.
#[must_use]
pub fn text(differences: &Value) -> String {
    let mut lines = Vec::new();
    for policy in differences.as_array().into_iter().flatten() {
        let word = |field: &str| policy[field].as_str().unwrap_or_default().escape_debug().to_string();
        let sign = match policy["change"].as_str() {
            Some("added") => '+',
            Some("removed") => '-',
            _ => '~',
        };
        lines.push(format!("{sign} {} ({})", word("policy"), word("change")));
        for setting in policy["settings"].as_array().into_iter().flatten() {
            let name = setting["setting"].as_str().unwrap_or_default();
            match (&setting["old"], &setting["new"]) {
                (Value::Null, new) => lines.push(format!("    + {name}: {new}")),
                (old, Value::Null) => lines.push(format!("    - {name}: {old}")),
                (old, new) => lines.push(format!("    ~ {name}: {old} -> {new}")),
            }
        }
    }
    if lines.is_empty() {
        return "no policy would change".to_owned();
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old() -> Value {
        json!([
            {"name": "api", "limits": ["100/1s"], "enforce": 100,
                "overrides": {"acme": {"limits": ["5/1s"]}, "evil": {"blocked": true}}},
            {"name": "gone", "unlimited": true, "overrides": {}},
            {"name": "same", "limits": ["1/1h"], "overrides": {}},
        ])
    }

    fn new() -> Value {
        json!([
            {"name": "api", "limits": ["200/1s"], "enforce": 100, "overrides": {"acme": {"limits": ["5/1s"]}}},
            {"name": "fresh", "limits": ["7/1m"], "overrides": {}},
            {"name": "same", "limits": ["1/1h"], "overrides": {}},
        ])
    }

    #[test]
    fn only_what_differs_is_told() {
        let wanted = "~ api (changed)\n    ~ limits: [\"100/1s\"] -> [\"200/1s\"]\n    - override \"evil\": {\"blocked\":true}\n\
            + fresh (added)\n    + limits: [\"7/1m\"]\n- gone (removed)\n    - unlimited: true";
        assert_eq!(text(&between(&old(), &new())), wanted);
    }

    #[test]
    fn the_same_policies_have_no_difference() {
        assert_eq!(between(&old(), &old()), json!([]));
        assert_eq!(text(&json!([])), "no policy would change");
    }
}
