//! Goals are a ratchet: what a scenario expected at the last release it expects now, or more.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use simulations::plan::{Expect, Plan};
use simulations::scenario;

/// `goals.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goals {
    /// By scenario.
    expect: BTreeMap<String, Expect>,
    /// By scenario and bound: who is hurt by its being looser now, and why it is.
    looser: BTreeMap<String, BTreeMap<String, String>>,
}

fn goals() -> Goals {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("goals.toml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    toml::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All scenarios as they are now.
fn scenarios() -> BTreeMap<String, Plan> {
    let plans = scenario::all(&scenario::scenarios()).unwrap_or_else(|error| panic!("{error}"));
    plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect()
}

#[test]
fn no_scenario_expects_less_than_at_the_last_release() {
    let (goals, now) = (goals(), scenarios());
    let mut looser = Vec::new();
    for (name, before) in &goals.expect {
        let expect = now.get(name).map(|plan| plan.expect).unwrap_or_default();
        let is_named = |bound: &str| goals.looser.get(name).is_some_and(|bounds| bounds.contains_key(bound));
        looser
            .extend(expect.looser_than(before).into_iter().filter(|bound| !is_named(bound)).map(|bound| (name, bound)));
    }
    assert!(looser.is_empty(), "looser than in goals.toml, with nobody named who is hurt: {looser:?}");
}

#[test]
fn every_scenario_is_in_the_file() {
    let goals = goals();
    let missing: Vec<_> = scenarios().into_keys().filter(|name| !goals.expect.contains_key(name)).collect();
    assert!(missing.is_empty(), "not in goals.toml: {missing:?}");
}

#[test]
fn who_is_hurt_is_said_of_what_is_looser_and_of_nothing_else() {
    let (goals, now) = (goals(), scenarios());
    for (name, bounds) in &goals.looser {
        let before = goals.expect.get(name).unwrap_or_else(|| panic!("{name} is not in goals.toml"));
        let expect = now.get(name).map(|plan| plan.expect).unwrap_or_default();
        let looser = expect.looser_than(before);
        for (bound, why) in bounds {
            assert!(looser.contains(&bound.as_str()), "{name}.{bound} is no looser than it was");
            assert!(why.split_whitespace().count() >= 5, "{name}.{bound}: who is hurt, and why?");
        }
    }
}

#[test]
fn a_goal_asks_for_more_than_is_expected() {
    for (name, plan) in scenarios() {
        let looser = plan.wanted().looser_than(&plan.expect);
        assert!(looser.is_empty(), "{name}: its goal is looser than what is held: {looser:?}");
    }
}
