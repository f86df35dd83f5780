//! Every scenario and every kept bug is a plan; what is not a plan is told where.

use std::path::{Path, PathBuf};

use simulations::plan::Plan;
use simulations::{scenario, swarm};

/// A file of this text in the directory that cargo keeps for tests.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a file of a test");
    path
}

fn problem(name: &str, text: &str) -> String {
    let error = scenario::load(&file(name, text)).expect_err("it is wrong").to_string();
    let (_, problem) = error.split_once(&format!("{name}:")).expect("it names the file");
    problem.trim().to_owned()
}

#[test]
fn every_scenario_loads_and_says_what_it_is_for() {
    let scenarios = scenario::all(&scenario::scenarios()).unwrap_or_else(|error| panic!("{error}"));
    assert!(scenarios.len() >= 40, "{}", scenarios.len());
    for plan in &scenarios {
        assert!(!plan.about.is_empty(), "{}: about", plan.name);
        assert!(plan.expect != Default::default(), "{}: expect", plan.name);
        assert!(plan.faults.iter().all(|fault| fault.at < plan.span), "{}: a fault after its span", plan.name);
    }
}

#[test]
fn every_kept_bug_loads() {
    let bugs = scenario::all(&scenario::bugs()).unwrap_or_else(|error| panic!("{error}"));
    assert!(bugs.iter().all(|plan| !plan.about.is_empty()));
}

#[test]
fn unknown_key_is_told_with_its_line() {
    let told = problem("unknown.toml", "about = \"x\"\nnodes = 3\nnods = 4\n");
    assert!(told.starts_with("3: ") && told.contains("`nods`") && told.contains("`nodes`"), "{told}");
    let told = problem("deeper.toml", "nodes = 3\n\n[network]\nlatency = \"1ms\"\nlossy = 4\n");
    assert!(told.starts_with("5: ") && told.contains("`lossy`"), "{told}");
    let told = problem("tagged.toml", "[[faults]]\nat = \"1s\"\n[faults.what]\nkind = \"kill\"\nmastr = 1\n");
    assert!(told.contains("`mastr`"), "{told}");
}

#[test]
fn wrong_value_is_told_with_its_line() {
    let told = problem("value.toml", "nodes = 3\nspan = \"5 parsecs\"\n");
    assert!(told.starts_with("2: ") && told.contains("250ms"), "{told}");
}

#[test]
fn plan_that_makes_no_sense_is_told() {
    for (name, text, word) in [
        ("nobody.toml", "nodes = 0\n", "`nodes`"),
        ("limit.toml", "[[policies]]\nlimits = [\"10 per second\"]\n", "COUNT/PERIOD"),
        ("place.toml", "[[demand]]\npolicy = 1\n", "count from 0"),
        ("push.toml", "[[faults]]\nat = \"1s\"\nwhat = { kind = \"push\", policy = 0, limits = [] }\n", "0 limits"),
    ] {
        let told = problem(name, text);
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn unknown_name_is_answered_with_the_known_ones() {
    let told = scenario::find("nowhere").unwrap_err().to_string();
    assert!(told.contains("minute-1.2x"), "{told}");
    assert_eq!(scenario::find("minute-1.2x").unwrap().name, "minute-1.2x");
}

#[test]
fn saved_plan_is_the_plan() {
    for seed in 1..=50 {
        let plan = swarm::plan(seed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.toml", plan.name));
        scenario::save(&plan, &path, "written by a test").unwrap();
        assert_eq!(scenario::load(&path).unwrap(), plan);
    }
}

#[test]
fn schema_knows_every_key() {
    let schema: serde_json::Value = serde_json::from_str(&scenario::schema()).unwrap();
    let plan = serde_json::to_value(Plan::default()).unwrap();
    for key in plan.as_object().unwrap().keys() {
        assert!(schema["properties"][key].is_object(), "{key}");
    }
    assert_eq!(schema["additionalProperties"], false);
}
