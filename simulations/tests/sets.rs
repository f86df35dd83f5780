//! What a design says must be shown is shown by scenarios, whose goals are no looser than the design's.

use std::collections::BTreeSet;

use simulations::set::{self, Case, Set};
use simulations::{checkers, scenario};

fn sets() -> Vec<(String, Set)> {
    let find = |name: String| (name.clone(), set::find(&name).unwrap_or_else(|error| panic!("{name}: {error}")));
    set::names().into_iter().map(find).collect()
}

fn cases(set: &Set) -> impl Iterator<Item = &Case> {
    set.rows.iter().flat_map(|row| &row.cases)
}

/// The names of the bounds that a goal has.
fn bounds(case: &Case) -> BTreeSet<String> {
    let table = toml::Table::try_from(case.goal).expect("bounds are plain data");
    table.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn the_design_of_owners_has_all_its_rows() {
    // Of its twelve rows the fourth, of three partial outages, is three here.
    assert_eq!(set::find("owners").unwrap().rows.len(), 14);
    assert!(set::find("nobody").unwrap_err().to_string().contains("owners"));
}

#[test]
fn the_design_of_semantics_has_all_its_rows() {
    assert_eq!(set::find("semantics").unwrap().rows.len(), 11);
}

#[test]
fn no_row_is_without_a_scenario_and_a_goal() {
    for (name, set) in sets() {
        assert!(!set.rows.is_empty() && !set.about.is_empty(), "{name}");
        for row in &set.rows {
            assert!(!row.what.is_empty() && !row.cases.is_empty(), "{name}: {row:?}");
        }
        for case in cases(&set) {
            assert!(!bounds(case).is_empty(), "{name}: {}: no goal", case.scenario);
            let plan = scenario::find(&case.scenario).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(plan.brain == Default::default() && plan.expect != Default::default(), "{name}: {}", plan.name);
        }
    }
}

#[test]
fn no_scenario_asks_for_less_than_its_row() {
    for (name, set) in sets() {
        for case in cases(&set) {
            let wanted = scenario::find(&case.scenario).unwrap_or_else(|error| panic!("{error}")).wanted();
            assert_eq!(wanted.looser_than(&case.goal), Vec::<&str>::new(), "{name}: {}", case.scenario);
        }
    }
}

#[test]
fn what_was_before_is_of_a_bound_of_the_goal() {
    for (name, set) in sets() {
        for case in cases(&set) {
            let before: BTreeSet<_> = case.before.keys().cloned().collect();
            assert!(before.is_subset(&bounds(case)), "{name}: {}: {before:?}", case.scenario);
        }
    }
}

#[test]
fn an_invariant_that_a_row_is_about_is_some_checkers() {
    let known: BTreeSet<_> = checkers::sheets().iter().flat_map(|sheet| sheet.invariants).copied().collect();
    for (name, set) in sets() {
        for case in cases(&set) {
            assert!(case.invariant.as_deref().is_none_or(|it| known.contains(it)), "{name}: {:?}", case.invariant);
        }
    }
}
