//! `rationd size`: what it reckons is what the simulator shows.

use crate::support;

use std::process::{Command, Output};

use serde_json::Value;
use support::process::without_settings;

fn size(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("size").args(words).output().expect("cargo built it")
}

fn reckoned(words: &[&str]) -> Value {
    let output = size(&[&["-o", "json"], words].concat());
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Store calls per 1000 checks in a scenario of the simulator.
fn simulated(scenario: &str) -> f64 {
    let path = format!("simulations/scenarios/{scenario}.toml");
    let simulator = ["run", "-q", "-p", "simulations", "--profile", "simulate", "--locked", "--", "run", &path];
    let ran = Command::new(env!("CARGO")).args(simulator).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let ran = ran.expect("cargo is there");
    let said = String::from_utf8_lossy(&ran.stdout);
    let before = said.split(" calls per 1000 checks").next().and_then(|text| text.rsplit(' ').next());
    before.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{scenario}: {ran:?}"))
}

/// The arguments say of each scenario what its file does.
#[test]
fn calls_are_within_a_tenth_of_what_the_simulator_shows() {
    let two = ["--limit", "10/1s fixed", "--limit", "100/1m fixed"];
    let two = [&["--nodes", "8", "--keys", "40", "--rate", "33", "--zipf", "0"], &two[..]].concat();
    let cases: [(&str, &[&str]); 12] = [
        ("small-windows", &["--nodes", "3", "--keys", "1000", "--rate", "2000", "--limit", "60/10s fixed"]),
        ("zipf-200-nodes", &["--nodes", "200", "--keys", "50000", "--rate", "3000", "--limit", "600/4s fixed"]),
        ("cold-keys", &["--nodes", "20", "--keys", "1000", "--rate", "333", "--limit", "100/1m fixed", "--zipf", "0"]),
        ("warm-keys", &["--nodes", "20", "--keys", "300", "--rate", "300", "--limit", "100/1m fixed", "--zipf", "0"]),
        ("second-0.5x", &["--nodes", "20", "--keys", "1", "--rate", "500", "--limit", "1000/1s fixed"]),
        ("sliding-2x", &["--nodes", "20", "--keys", "1", "--rate", "2000", "--limit", "1000/1s sliding"]),
        (
            "denied-sliding",
            &["--nodes", "8", "--keys", "2", "--rate", "400", "--limit", "100/1m sliding", "--zipf", "0"],
        ),
        (
            "seldom-windows",
            &["--nodes", "8", "--keys", "48", "--rate", "40", "--limit", "100/1m sliding", "--zipf", "0"],
        ),
        ("gcra-0.5x", &["--nodes", "20", "--keys", "1", "--rate", "500", "--limit", "1000/1s burst 1000"]),
        ("gcra-2x", &["--nodes", "20", "--keys", "1", "--rate", "2000", "--limit", "1000/1s burst 1000"]),
        ("seldom-buckets", &["--nodes", "8", "--keys", "48", "--rate", "40", "--limit", "100/1m", "--zipf", "0"]),
        ("seldom-two-windows", &two),
    ];
    let mut far = Vec::new();
    for (scenario, words) in cases {
        let told = reckoned(words);
        let calls = told["store_calls_per_1000_checks"].as_f64().expect("a number");
        let wanted = simulated(scenario);
        println!("{scenario}: {calls} reckoned, {wanted} simulated");
        if (calls / wanted - 1.0).abs() > 0.1 {
            far.push(format!("{scenario}: {calls} reckoned, {wanted} simulated: {told}"));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn what_it_cannot_reckon_is_said() {
    for (words, seen) in [
        (&["--limit", "5/1s slding"][..], "slding"),
        (&["--limit", "5/1m concurrent"], "concurrent"),
        (&["--zipf", "9"], "from 0 to 3"),
        (&["--trip", "soon"], "--trip soon"),
    ] {
        let output = size(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(seen), "{words:?}: {output:?}");
    }
    let text = String::from_utf8(size(&["--rate", "100", "--keys", "10"]).stdout).expect("text");
    assert!(text.contains("store calls per 1000 checks"), "{text}");
}
