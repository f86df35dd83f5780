//! Plans as files: read with errors that name the file and the line, written, and found by name.
//!
//! Scenarios are in `scenarios/`, and failures that the swarm found and the shrinker reduced are in `bugs/`. Both are
//! TOML, and are run forever. Called by the command line and by tests; runs nothing.

use std::fmt;
use std::path::{Path, PathBuf};

use rationd::core::limit::{Limit, MAX_LIMITS};

use crate::plan::{Plan, Shape, Spread, What};
use crate::span::Span;

/// What is wrong with a file.
#[derive(Debug)]
pub enum ScenarioError {
    /// It cannot be read or written.
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not a plan.
    Parse {
        /// Which.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// What was seen and what was wanted.
        problem: String,
    },
    /// It is a plan that makes no sense.
    Plan {
        /// Which.
        path: PathBuf,
        /// What was seen and what was wanted.
        problem: String,
    },
    /// There is no file of that name.
    Missing {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Parse { path, line, problem } => write!(f, "{}:{line}: {problem}", path.display()),
            Self::Plan { path, problem } => write!(f, "{}: {problem}", path.display()),
            Self::Missing { name, known } => {
                write!(f, "`{name}` is no file and no scenario: there are {}", known.join(", "))
            }
        }
    }
}

impl std::error::Error for ScenarioError {}

/// Where scenarios are.
#[must_use]
pub fn scenarios() -> PathBuf {
    home("scenarios")
}

/// Where shrunk failures are.
#[must_use]
pub fn bugs() -> PathBuf {
    home("bugs")
}

/// Reads a file; the plan is called as the file is.
///
/// # Errors
/// A file that cannot be read, that is no plan, or a plan that makes no sense.
pub fn load(path: &Path) -> Result<Plan, ScenarioError> {
    let text = std::fs::read_to_string(path).map_err(|source| ScenarioError::File { path: path.into(), source })?;
    let mut plan: Plan = toml::from_str(&text).map_err(|error| parse_error(path, &text, &error))?;
    if let Some(stem) = path.file_stem() {
        plan.name = stem.to_string_lossy().into_owned();
    }
    check(&plan).map_err(|problem| ScenarioError::Plan { path: path.into(), problem })?;
    Ok(plan)
}

/// Where in a file the text is that cannot be read, and why.
pub(crate) fn parse_error(path: &Path, text: &str, error: &toml::de::Error) -> ScenarioError {
    let before = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = 1 + text.as_bytes()[..before].iter().filter(|byte| **byte == b'\n').count();
    ScenarioError::Parse { path: path.into(), line, problem: error.message().trim().replace('\n', ", ") }
}

/// Reads a file by its path, or by its name among the scenarios and the bugs.
///
/// # Errors
/// As [`load`], and a name that nobody has.
pub fn find(name: &str) -> Result<Plan, ScenarioError> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "toml") {
        return load(path);
    }
    let all: Vec<_> = [scenarios(), bugs()].iter().flat_map(|directory| files(directory)).collect();
    let stem = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match all.iter().find(|path| stem(path) == name) {
        Some(path) => load(path),
        None => Err(ScenarioError::Missing { name: name.into(), known: all.iter().map(stem).collect() }),
    }
}

/// The plans of a directory by their names; none if there is no such directory.
///
/// # Errors
/// The first file that is wrong.
pub fn all(directory: &Path) -> Result<Vec<Plan>, ScenarioError> {
    files(directory).iter().map(|path| load(path)).collect()
}

/// Writes a plan, and a comment of one line above it.
///
/// # Errors
/// A file that cannot be written, or a seed beyond TOML's 63 bits.
pub fn save(plan: &Plan, path: &Path, comment: &str) -> Result<(), ScenarioError> {
    let text =
        toml::to_string(plan).map_err(|error| ScenarioError::Plan { path: path.into(), problem: error.to_string() })?;
    let failed = |source| ScenarioError::File { path: path.into(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    std::fs::write(path, format!("# {comment}\n{text}")).map_err(failed)
}

/// The JSON schema of a file.
#[must_use]
pub fn schema() -> String {
    serde_json::to_string_pretty(&schemars::schema_for!(Plan)).expect("a schema is plain data")
}

/// Whether a plan makes sense.
///
/// # Errors
/// What was seen and what was wanted.
pub fn check(plan: &Plan) -> Result<(), String> {
    let wrong = |is_wrong: bool, problem: &str| if is_wrong { Err(problem.to_owned()) } else { Ok(()) };
    wrong(plan.daemon.shards == 0, "`daemon.shards` is 0: wanted at least one")?;
    wrong(plan.nodes == 0, "`nodes` is 0: wanted at least one")?;
    wrong(plan.redis.masters == 0, "`redis.masters` is 0: wanted at least one")?;
    wrong(plan.span.0 == 0, "`span` is 0: wanted some time for the run to take")?;
    wrong(plan.warm_up >= plan.span, "`warm_up` takes the whole `span`: wanted some time to measure")?;
    let zoned: u64 = plan.zones.iter().map(|zone| u64::from(zone.nodes)).sum();
    wrong(zoned > 1_000, "`zones` of more nodes than there are: wanted 1000 in all, in thousandths of them")?;
    wrong(plan.policies.is_empty(), "no `policies`: wanted at least one")?;
    for policy in &plan.policies {
        limits(&policy.limits)?;
    }
    let policies = plan.policies.len();
    for demand in &plan.demand {
        place(demand.policy, policies)?;
        wrong(demand.keys == 0, "a demand with 0 `keys`: wanted at least one")?;
        wrong(demand.cost == 0, "a demand with `cost` 0: wanted at least one")?;
        let stands_still = match (demand.shape, demand.spread) {
            (Shape::OnOff { on, .. }, _) => on.0 == 0,
            (Shape::Diurnal { period }, _) => period.0 == 0,
            (_, Spread::Wander { stay }) => stay.0 == 0,
            _ => false,
        };
        wrong(stands_still, "a `shape` or `spread` whose span is 0: wanted some time")?;
    }
    for fault in &plan.faults {
        if let What::Push { policy, limits: pushed } = &fault.what {
            place(*policy, policies)?;
            limits(pushed)?;
        }
        let starves = |longest: Span| longest < Span::millis(1);
        let is_moment = matches!(fault.what, What::Starve { longest, .. } if starves(longest));
        wrong(is_moment, "nodes that starve for less than `1ms` at a time: wanted `longest` of that at least")?;
        wrong(matches!(fault.what, What::Scale { nodes: 0 }), "a scaling to 0 nodes: wanted at least one")?;
    }
    Ok(())
}

fn limits(texts: &[String]) -> Result<(), String> {
    if !(1..=MAX_LIMITS).contains(&texts.len()) {
        return Err(format!("a policy with {} limits: wanted 1 to {MAX_LIMITS}", texts.len()));
    }
    texts.iter().try_for_each(|text| Limit::parse(text).map(drop).map_err(|error| format!("limit `{text}`: {error}")))
}

fn place(policy: u32, policies: usize) -> Result<(), String> {
    let wrong = || format!("policy {policy} where there are {policies}: they count from 0");
    ((policy as usize) < policies).then_some(()).ok_or_else(wrong)
}

/// Next to the sources, wherever the command is called from.
pub(crate) fn home(directory: &str) -> PathBuf {
    let below = Path::new("simulations").join(directory);
    if below.is_dir() { below } else { Path::new(env!("CARGO_MANIFEST_DIR")).join(directory) }
}

/// The TOML files of a directory by their names.
pub(crate) fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}
