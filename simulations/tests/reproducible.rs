//! A plan is a run: twice in one process and in two processes everything happens in the same order.
//!
//! With the canary the world walks through a `HashMap` once, and the same double runs must notice that.

use std::process::{Command, Output};

use simulations::lua::Scripts;
use simulations::plan::Plan;
use simulations::run::{Detail, run};
use simulations::swarm;

/// Seeds of the swarm: with faults and without, of many nodes and of few.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=6;

/// The hash of everything that happens, for each of the seeds.
fn hashes(canary: bool) -> Vec<u64> {
    // Interpreters of their own, as in another process.
    let mut scripts = Scripts::new();
    SEEDS
        .map(|seed| Plan { canary, ..swarm::plan(seed) })
        .map(|plan| run(&plan, &mut scripts, Detail::Figures).expect("a plan of the swarm").hash)
        .collect()
}

fn swarm_in_a_process(more: &[&str]) -> Output {
    let seeds = SEEDS.end().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_simulations"));
    command.args(["swarm", "--seeds", &seeds, "--jobs", "1"]).args(more).output().expect("simulations runs")
}

/// The hash over all runs, in the last line: `6 of 6 runs, ... [hash]; ...`.
fn hash_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let hash = text.rsplit_once('[').and_then(|(_, rest)| rest.split_once(']'));
    hash.unwrap_or_else(|| panic!("no hash: {output:?}")).0.to_owned()
}

#[test]
fn two_runs_of_one_process_are_the_same() {
    assert_eq!(hashes(false), hashes(false));
}

#[test]
fn runs_of_two_processes_are_the_same() {
    let (first, second) = (swarm_in_a_process(&[]), swarm_in_a_process(&["--twice"]));
    assert!(first.status.success() && second.status.success(), "{first:?} {second:?}");
    assert_eq!(hash_of(&first), hash_of(&second));
}

#[test]
fn two_runs_of_one_process_with_the_canary_differ() {
    assert_ne!(hashes(true), hashes(true));
}

#[test]
fn runs_of_two_processes_with_the_canary_differ() {
    assert_ne!(hash_of(&swarm_in_a_process(&["--canary"])), hash_of(&swarm_in_a_process(&["--canary"])));
}

#[test]
fn running_twice_with_the_canary_tells_of_it_and_fails() {
    let output = swarm_in_a_process(&["--canary", "--twice"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && text.contains("reproducible"), "{output:?}");
}
