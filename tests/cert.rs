//! `rationd cert`: one command makes files that work, and none that exist are lost.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use rationd::config::{Sources, load};
use rationd::fleet::{FleetOptions, IdentityFiles};
use support::membership_suite::{Node, Start, sees};
use support::peers::{Authority, Peer};
use tempfile::TempDir;

/// Runs `rationd cert` in `directory`, without any variable of this environment that it would read.
fn cert(directory: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RATIOND_")) {
        command.env_remove(name);
    }
    command.current_dir(directory).arg("cert").args(words.split(' ')).output().expect("cargo built it")
}

/// What a command that succeeds prints.
fn made(directory: &Path, words: &str) -> String {
    let output = cert(directory, words);
    assert!(output.status.success(), "{words}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The exit code and the message of a command that fails.
fn refused(directory: &Path, words: &str) -> (i32, String) {
    let output = cert(directory, words);
    assert!(!output.status.success() && output.stdout.is_empty(), "{words}: {output:?}");
    (output.status.code().expect("it ended by itself"), String::from_utf8(output.stderr).expect("text"))
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

fn options(directory: &Path, start: Start<'_>) -> FleetOptions {
    let path = |name: &str| directory.join(name);
    let identity = IdentityFiles { ca: path("ca.pem"), cert: path("node.pem"), key: path("node.key"), crl: None };
    FleetOptions { identity, ..Authority::new("prod").options(start) }
}

#[test]
fn two_nodes_with_its_certificates_connect() {
    let root = directory();
    made(root.path(), "ca --fleet prod");
    for (name, words) in [("one", "--name app-17"), ("two", "--any-name")] {
        made(root.path(), &format!("node --fleet prod {words} --ca-dir . --dir {name}"));
        fs::copy(root.path().join("ca.pem"), root.path().join(name).join("ca.pem")).expect("a copy");
    }
    let a = Peer::start(options(&root.path().join("one"), Start::new("app-17", &[])));
    let seeds = [a.address()];
    let b = Peer::start(options(&root.path().join("two"), Start::new("Host_7.example", &seeds)));
    for node in [&a, &b] {
        sees(node, "Host_7.example app-17");
        assert!((363..=365).contains(&node.fleet.stats().certificate_days_left), "{:?}", node.fleet.stats());
    }
}

#[test]
fn what_it_prints_is_a_configuration_that_is_right() {
    let root = directory();
    made(root.path(), "ca --fleet prod");
    let printed = made(root.path(), "node --fleet prod --name app-17");
    let file = root.path().join("rationd.toml");
    fs::write(&file, printed).expect("a file");
    let loaded = load(&Sources { file: Some(file), ..Sources::default() }).unwrap_or_else(|errors| panic!("{errors}"));
    let fleet = loaded.config.fleet.expect("it is set");
    assert_eq!((loaded.config.node.name.as_str(), fleet.name.as_str()), ("app-17", "prod"));
    for path in [&fleet.ca, &fleet.cert, &fleet.key] {
        assert!(path.is_absolute() && path.exists(), "{}", path.display());
    }
}

#[test]
fn keys_are_for_their_owner_alone() {
    let root = directory();
    made(root.path(), "ca --fleet prod");
    made(root.path(), "node --fleet prod --any-name");
    for (name, wanted) in [("ca.pem", 0o644), ("ca.key", 0o600), ("node.pem", 0o644), ("node.key", 0o600)] {
        assert_eq!(mode(&root.path().join(name)) & !0o022, wanted & !0o022, "{name}");
    }
}

#[test]
fn files_that_exist_are_not_written_over() {
    let root = directory();
    made(root.path(), "ca --fleet prod");
    let (code, message) = refused(root.path(), "ca --fleet prod");
    assert_eq!(code, 71);
    assert!(message.contains("ca.pem exists and is not written over: move it away"), "{message}");
    fs::remove_file(root.path().join("ca.pem")).expect("it is there");
    let (_, message) = refused(root.path(), "ca --fleet prod");
    assert!(message.contains("ca.key exists"), "{message}");
    assert!(!root.path().join("ca.pem").exists(), "half of a pair was written");
}

#[test]
fn a_node_needs_a_ca_and_its_key() {
    let (root, other) = (directory(), directory());
    let (code, message) = refused(root.path(), "node --fleet prod --any-name");
    assert_eq!(code, 71);
    assert!(message.contains("make a CA with `rationd cert ca`, or say where it is with --ca-dir"), "{message}");
    made(root.path(), "ca --fleet prod");
    made(other.path(), "ca --fleet prod");
    fs::copy(other.path().join("ca.key"), root.path().join("ca.key")).expect("a copy");
    let (_, message) = refused(root.path(), "node --fleet prod --any-name");
    assert!(message.contains("ca.key is not the key of"), "{message}");
}

#[test]
fn wrong_names_and_words_end_with_2() {
    let root = directory();
    for (words, wanted) in [
        ("ca --fleet Prod", "--fleet is \"Prod\": 1 to 63 lower-case letters"),
        ("node --fleet prod", "--name <NAME>"),
        ("node --fleet prod --name a --any-name", "cannot be used with"),
        ("ca --fleet prod --days 0", "0 is not in 1..=36500"),
        ("ca", "--fleet <NAME>"),
    ] {
        let (code, message) = refused(root.path(), words);
        assert_eq!(code, 2, "{words}");
        assert!(message.contains(wanted), "{words}: {message}");
    }
}

#[test]
fn a_node_lapses_with_its_ca_at_the_latest() {
    let root = directory();
    made(root.path(), "ca --fleet prod --days 10");
    made(root.path(), "node --fleet prod --name a --days 365");
    let a = Peer::start(options(root.path(), Start::new("a", &[])));
    assert!((8..=10).contains(&a.fleet.stats().certificate_days_left), "{:?}", a.fleet.stats());
}

#[test]
fn programs_get_the_paths_as_json() {
    let root = directory();
    let paths: serde_json::Value = serde_json::from_str(&made(root.path(), "ca --fleet prod -o json")).expect("JSON");
    assert_eq!(paths["ca"].as_str(), root.path().join("ca.pem").to_str());
}
