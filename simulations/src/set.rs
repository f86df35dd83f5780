//! Sets: what a design says must be shown, as rows of scenarios with the goals that it asks for and the figures of before.
//!
//! A set is a file of `sets/`, found by its name. `table --set NAME` runs the scenarios and prints what came of each row;
//! `tests/sets.rs` holds that no row is without a scenario, and that no scenario asks for less than its row. Runs nothing.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::plan::Expect;
use crate::scenario::{self, ScenarioError};

/// What a design says must be shown.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// What the design is about.
    pub about: String,
    /// In the order of the design.
    pub rows: Vec<Row>,
}

/// One row of the design's table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What it is about.
    pub what: String,
    /// What no scenario shows of it, and what does instead.
    pub elsewhere: Option<String>,
    /// The scenarios that show it.
    pub cases: Vec<Case>,
}

/// One scenario of a row.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// How it differs from the row's other cases.
    pub what: String,
    /// Its name.
    pub scenario: String,
    /// The invariant that the row is about, if it is about one; its figure is the number of violations.
    pub invariant: Option<String>,
    /// What was measured before the design was built, by the names of the goal's bounds.
    #[serde(default)]
    pub before: BTreeMap<String, String>,
    /// What the design asks for.
    pub goal: Expect,
}

impl Set {
    /// The scenarios of all rows, each once, in their order.
    #[must_use]
    pub fn scenarios(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for case in self.rows.iter().flat_map(|row| &row.cases) {
            if !names.contains(&&*case.scenario) {
                names.push(&case.scenario);
            }
        }
        names
    }
}

/// Reads the set of this name.
///
/// # Errors
/// A name that no set has, and a file that cannot be read or is no set.
pub fn find(name: &str) -> Result<Set, ScenarioError> {
    let names = names();
    if !names.iter().any(|known| known == name) {
        return Err(ScenarioError::Missing { name: name.into(), known: names });
    }
    load(&scenario::home("sets").join(format!("{name}.toml")))
}

/// The names of all sets.
#[must_use]
pub fn names() -> Vec<String> {
    let files = scenario::files(&scenario::home("sets"));
    files.iter().filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect()
}

fn load(path: &Path) -> Result<Set, ScenarioError> {
    let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::File { path: path.into(), source })?;
    toml::from_str(&text).map_err(|error| scenario::parse_error(path, &text, &error))
}
