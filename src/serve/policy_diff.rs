//! What a reload would change: the difference of two lists of policies, as `RATION.POLICIES` gives them.
//!
//! Works on JSON, so that the command line compares what a daemon tells with what a configuration says.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::core::counter::goes_on;
use crate::core::limit::{Limit, MAX_LIMITS};
use crate::core::overrides::{Overrides, Subject};
use crate::core::policy::{Plan, Rule};

/// The policies that differ: an array of objects with the policy's name, `added`, `removed` or `changed`, and what was and
/// what would be, by setting. Of those that changed `starts_anew` lists the limits whose count would not go on.
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
            (!settings.is_empty()).then(|| {
                let anew = starting_anew(&old, &new);
                json!({"policy": name, "change": "changed", "settings": settings, "starts_anew": anew})
            })
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

/// The limits of a policy whose count would begin anew, for keys without an override and for those of each override. What an
/// override is added to, or taken from, was or will be limited by whatever else the policy says of it.
fn starting_anew(old: &Value, new: &Value) -> Vec<Value> {
    let names = |policy: &Value| policy["overrides"].as_object().into_iter().flat_map(Map::keys).cloned().collect();
    let (of_old, of_new): (BTreeSet<String>, BTreeSet<String>) = (names(old), names(new));
    let (before, after) = (Plans::of(old), Plans::of(new));
    let mut list = anew(None, &before.plan, &after.plan);
    for name in of_old.union(&of_new) {
        list.extend(anew(Some(name), before.plan(name), after.plan(name)));
    }
    list
}

/// What a policy says of its keys.
struct Plans {
    plan: Plan,
    overrides: Overrides,
}

impl Plans {
    fn of(policy: &Value) -> Self {
        let overrides = policy["overrides"].as_object().into_iter().flatten();
        let overrides = overrides
            .filter_map(|(name, part)| Some((Subject::parse(name).ok()?, name.clone(), plan(part))))
            .collect::<Vec<_>>();
        Self { plan: plan(policy), overrides: Overrides::new(overrides) }
    }

    /// What applies to the keys of the override of this name, or to all other keys without one.
    fn plan(&self, name: &str) -> &Plan {
        if let Some((_, plan)) = self.overrides.iter().find(|(known, _)| *known == name) {
            return plan;
        }
        let plan = match Subject::parse(name) {
            Ok(Subject::Key(bytes) | Subject::Beginning(bytes) | Subject::End(bytes)) => self.overrides.get(&bytes),
            Err(_) => None,
        };
        plan.unwrap_or(&self.plan)
    }
}

fn plan(part: &Value) -> Plan {
    let texts = part["limits"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let limits: Vec<Limit> = texts.filter_map(|text| Limit::parse(text).ok()).take(MAX_LIMITS).collect();
    match limits[..] {
        [] => Plan::Unlimited,
        _ => Plan::Limited(Rule::of("", &limits).into()),
    }
}

/// The limits of a plan that start anew after another one; none where that one counted nothing.
fn anew(key: Option<&str>, old: &Plan, new: &Plan) -> Vec<Value> {
    let limits = |plan: &Plan| match plan {
        Plan::Limited(rule) => rule.limits.to_vec(),
        Plan::Unlimited | Plan::Blocked => Vec::new(),
    };
    let old = limits(old);
    let counted = limits(new).into_iter().enumerate().filter(|_| !old.is_empty());
    let differing = counted.filter_map(|(place, limit)| {
        let why = match old.get(place) {
            None => "no limit was in its place".to_owned(),
            Some(before) if goes_on(before, &limit) => return None,
            Some(before) if before.algorithm == limit.algorithm => "its windows get shorter".to_owned(),
            Some(before) => format!("in its place was {before}"),
        };
        Some(json!({"limit": limit.to_string(), "override": key, "why": why}))
    });
    differing.collect()
}

/// The same for people: a line for each policy, and below it one for each setting and for each limit that starts anew.
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
        lines.extend(policy["starts_anew"].as_array().into_iter().flatten().map(|anew| {
            let whose = anew["override"].as_str().map(|key| format!(" for {key:?}")).unwrap_or_default();
            let why = anew["why"].as_str().unwrap_or_default().escape_debug();
            format!("    ! {}{whose} starts anew: {why}", anew["limit"])
        }));
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

    /// What is told of limits that start anew when a policy with these settings gets those.
    fn anew(old: Value, new: Value) -> Vec<String> {
        let with_name = |mut policy: Value| {
            policy["name"] = json!("api");
            json!([policy])
        };
        let text = text(&between(&with_name(old), &with_name(new)));
        text.lines().filter_map(|line| line.strip_prefix("    ! ")).map(str::to_owned).collect()
    }

    #[test]
    fn other_numbers_go_on_counting() {
        assert!(anew(json!({"limits": ["100/1s"]}), json!({"limits": ["5/1h burst 50"]})).is_empty());
        assert!(anew(json!({"limits": ["9/1h fixed", "1/1s"]}), json!({"limits": ["1/1m fixed"]})).is_empty());
        assert!(anew(json!({"limits": ["9/1m sliding"]}), json!({"limits": ["9/1h sliding"]})).is_empty());
        assert!(anew(json!({"limits": ["9/1m"]}), json!({"unlimited": true})).is_empty());
    }

    #[test]
    fn another_algorithm_another_place_and_shorter_sliding_windows_start_anew() {
        assert_eq!(
            anew(
                json!({"limits": ["100/1s", "9/1h sliding"]}),
                json!({"limits": ["100/1s fixed", "9/1m sliding", "1/1d"]})
            ),
            [
                "\"100/1s fixed\" starts anew: in its place was 100/1s",
                "\"9/1m sliding\" starts anew: its windows get shorter",
                "\"1/1d\" starts anew: no limit was in its place",
            ]
        );
    }

    #[test]
    fn an_override_starts_anew_beside_what_applied_to_its_keys() {
        let old = json!({"limits": ["100/1s"], "overrides": {
            "acct:*": {"limits": ["9/1h fixed"]}, "gone": {"limits": ["3/1h fixed"]}, "same": {"blocked": true},
        }});
        let new = json!({"limits": ["100/1s"], "overrides": {
            "acct:*": {"limits": ["9/1h fixed"]}, "acct:7": {"limits": ["1/1h fixed"]}, "fresh": {"limits": ["1/1h fixed"]},
            "slower": {"limits": ["1/1s"]}, "same": {"blocked": true},
        }});
        assert_eq!(
            anew(old, new),
            [
                "\"1/1h fixed\" for \"fresh\" starts anew: in its place was 100/1s",
                "\"100/1s\" for \"gone\" starts anew: in its place was 3/1h fixed",
            ]
        );
    }

    #[test]
    fn the_same_policies_have_no_difference() {
        assert_eq!(between(&old(), &old()), json!([]));
        assert_eq!(text(&json!([])), "no policy would change");
    }
}
