//! The Rust that Cargo.toml asks for is new enough for all that the daemon is built from.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// A version's numbers; what is not written is 0.
fn version(text: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = text.split('.').map(|number| number.parse().expect("a version")).collect();
    numbers.resize(3, 0);
    numbers
}

fn text<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    value[name].as_str()
}

#[test]
fn dependencies_ask_for_no_newer_rust_than_this_package_does() {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline", "--all-features"]);
    let told = cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]).output();
    let told = told.expect("cargo runs");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let metadata: Value = serde_json::from_slice(&told.stdout).expect("it is JSON");
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let by_id = |all: &Value| -> BTreeMap<String, Value> {
        list(all).into_iter().map(|one| (text(&one, "id").expect("an id").to_owned(), one)).collect()
    };
    let (packages, nodes) = (by_id(&metadata["packages"]), by_id(&metadata["resolve"]["nodes"]));
    let ours = packages.iter().find(|(_, package)| text(package, "name") == Some(env!("CARGO_PKG_NAME")));
    let (root, ours) = ours.expect("this package");
    let ours = version(text(ours, "rust_version").expect("rust-version is set"));
    let (mut reached, mut to_visit) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(id) = to_visit.pop() {
        if !reached.insert(id.clone()) {
            continue;
        }
        for dependency in list(&nodes[&id]["deps"]) {
            // What only tests want may be newer.
            let is_built = list(&dependency["dep_kinds"]).iter().any(|kind| text(kind, "kind") != Some("dev"));
            to_visit.extend(text(&dependency, "pkg").filter(|_| is_built).map(str::to_owned));
        }
    }
    assert!(reached.len() > 100, "{} packages", reached.len());
    let newer = reached.iter().filter_map(|id| {
        let wanted = text(&packages[id], "rust_version").filter(|wanted| version(wanted) > ours)?;
        Some(format!("{id} wants {wanted}"))
    });
    let newer: Vec<_> = newer.collect();
    assert!(newer.is_empty(), "rust-version must be raised, or these held back: {newer:#?}");
}
