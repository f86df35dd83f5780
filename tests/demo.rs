//! `rationd demo --script`: the story is played, each promise has a figure, and each is kept; with the twin, and with a real
//! redis-server.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::process::{signal, without_settings};

fn demo(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.args(["-o", "json", "demo"]).args(words).output().expect("cargo built it")
}

#[test]
fn a_place_where_no_fleet_can_be_made_is_named() {
    let files = tempfile::tempdir().expect("a directory");
    let long = files.path().join("y".repeat(90));
    std::fs::create_dir(&long).expect("a directory");
    let (missing, long) = (files.path().join("missing"), long.display().to_string());
    let missing = missing.display().to_string();
    for (place, why) in [(&missing, "No such file"), (&long, "too long a path for sockets")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        let output = command.env("TMPDIR", place).args(["demo", "--script"]).output().expect("cargo built it");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!([place, why, "set TMPDIR"].iter().all(|part| told.contains(*part)), "{place}: {output:?}");
        assert_eq!(output.status.code(), Some(71), "{output:?}");
    }
}

/// Plays the story in `seconds` and checks its figures.
fn play(store: &str, seconds: &str) -> Value {
    let output = demo(&["--script", "--store", store, "--seconds", seconds]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let promises = told["promises"].as_array().expect("a list");
    let seen = |when: &str| {
        promises.iter().find(|promise| promise["when"] == when).unwrap_or_else(|| panic!("no {when} in {told:#}"))
    };
    let number = |promise: &Value, field: &str| promise[field].as_u64().unwrap_or_else(|| panic!("{field}: {told:#}"));
    let limit = told["limit"].as_u64().expect("a number");
    // The judge of the figures is the test: what the demo says of itself has to say the same.
    let bounds = [
        ("whole", limit),
        ("killed", limit),
        ("joined", limit),
        ("away", limit * 95 / 100),
        ("back", limit * 195 / 100),
        ("parted", limit * 195 / 100),
        ("flushed", limit * 2),
        ("again", limit),
    ];
    for (when, bound) in bounds {
        let promise = seen(when);
        let most = number(promise, "most_admitted");
        assert!(most <= bound, "{when}: {most} of {bound}: {told:#}");
        assert_eq!((promise["kept"].as_bool(), number(promise, "bound")), (Some(true), bound), "{when}: {told:#}");
    }
    assert!(number(seen("away"), "most_admitted") > 0, "nodes go on without the store: {told:#}");
    // How much of it is made use of is the machine's to say, which may run the clients rarely.
    assert!(number(seen("whole"), "most_admitted") > 0, "the limit is made use of: {told:#}");
    assert!(told["not_seen"].as_array().expect("a list").is_empty(), "{told:#}");
    assert!(told["store_calls_per_1000_checks"].as_f64().expect("a number") < 500.0, "nodes lease: {told:#}");
    assert_eq!((output.status.code(), told["nodes"].as_u64()), (Some(0), Some(6)), "{told:#}");
    told
}

#[test]
fn the_story_keeps_each_promise_with_the_twin() {
    let told = play("twin", "20");
    assert!(told["store"].as_str().expect("text").contains("twin"), "{told:#}");
}

#[test]
fn the_story_keeps_each_promise_with_a_redis_server() {
    let told = play("redis", "20");
    assert!(told["store"].as_str().expect("text").starts_with("a redis-server"), "{told:#}");
}

/// A redis-server and its files stayed behind when the terminal of a demo was closed.
#[test]
fn a_demo_that_is_ended_by_a_signal_leaves_nothing_behind() {
    for (name, store) in [("HUP", "redis"), ("TERM", "redis"), ("INT", "twin")] {
        let temporary = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        let words = ["demo", "--script", "--seconds", "120", "--store", store];
        command.args(words).env("TMPDIR", temporary.path()).stdout(Stdio::piped());
        let mut demo = command.spawn().expect("cargo built it");
        let mut told = BufReader::new(demo.stdout.take().expect("a pipe")).lines();
        told.next().expect("it tells which store it has").expect("text");
        let files = || std::fs::read_dir(temporary.path()).expect("a directory").count();
        assert_eq!(files(), 1, "its files lie there");
        signal(demo.id(), name);
        told.for_each(drop);
        assert_eq!(demo.wait().expect("it ends").code(), Some(1), "{name}: the story was cut short");
        assert_eq!(files(), 0, "{name}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output = demo(&[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("--script"), "{output:?}");
}
