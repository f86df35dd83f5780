//! Goals are a ratchet: what a scenario once expected it expects now, or more.
//!
//! With `GOALS_WRITE=1` in the environment, what scenarios expect now is written into `goals.toml`, where it is no looser
//! than what stands there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goals.toml")
}

fn text() -> String {
    std::fs::read_to_string(path()).unwrap_or_else(|error| panic!("{}: {error}", path().display()))
}

fn goals() -> Goals {
    toml::from_str(&text()).unwrap_or_else(|error| panic!("{}: {error}", path().display()))
}

/// The bounds of an expectation, by name.
fn bounds(expect: &Expect) -> toml::Table {
    toml::Table::try_from(expect).expect("bounds are plain data")
}

/// All scenarios as they are now.
fn scenarios() -> BTreeMap<String, Plan> {
    let plans = scenario::all(&scenario::scenarios()).unwrap_or_else(|error| panic!("{error}"));
    plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect()
}

#[test]
fn no_scenario_expects_less_than_it_once_has() {
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

/// What the file says of a scenario, with what it expects now where that is no looser.
fn tightened(before: Option<&Expect>, now: &Expect) -> toml::Table {
    let mut all = bounds(now);
    if let Some(before) = before {
        let before_bounds = bounds(before);
        all.extend(now.looser_than(before).into_iter().map(|bound| (bound.to_owned(), before_bounds[bound].clone())));
    }
    all
}

#[test]
fn the_file_has_what_scenarios_expect_now() {
    let (goals, now) = (goals(), scenarios());
    let behind: Vec<_> = now
        .iter()
        .map(|(name, plan)| (name, tightened(goals.expect.get(name), &plan.expect)))
        .filter(|(name, all)| goals.expect.get(*name).map(bounds).as_ref() != Some(all))
        .collect();
    if std::env::var_os("GOALS_WRITE").is_none() {
        assert!(behind.is_empty(), "goals.toml is behind its scenarios; write it with GOALS_WRITE=1: {behind:?}");
        return;
    }
    let mut rows: BTreeMap<_, _> = goals.expect.iter().map(|(name, expect)| (name, bounds(expect))).collect();
    rows.extend(behind);
    let text = text();
    let (head, others) = text.split_once("[expect]\n").expect("goals.toml has [expect]");
    let (_, others) = others.split_once("\n\n").expect("an empty line ends [expect]");
    let rows: String = rows.iter().map(|(name, bounds)| row(name, bounds)).collect();
    std::fs::write(path(), format!("{head}[expect]\n{rows}\n{others}")).expect("goals.toml can be written");
}

/// A scenario's line of `[expect]`.
fn row(name: &str, bounds: &toml::Table) -> String {
    let name = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let bounds: Vec<_> = bounds.iter().map(|(bound, value)| format!("{bound} = {value}")).collect();
    format!("{name} = {{ {} }}\n", bounds.join(", "))
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
