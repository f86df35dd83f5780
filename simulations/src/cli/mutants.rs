//! `mutants`: tests the checkers with deliberate bugs, each of which some checker must notice.
//!
//! A bug runs through the seeds of the swarm until a checker reports something that it does not report for the same
//! seed without the bug; seeds that fail anyway thus count for nothing. Small worlds rarely show bugs in what a whole
//! fleet does, so some scenarios are run for those, and a checker or a failed expectation must notice them. Each bug
//! gives one line, in order, with the checker that noticed it first. A bug that was not noticed is a gap in the swarm
//! or in the checkers; those that are known are named with what shows the bug in their place (`GAPS` in `mutants.rs`),
//! and any other one fails.
//!
//! The search takes minutes, and what it finds is kept in `simulations/noticed.toml`: the seed or the scenario that shows each bug.
//! With `--recall` each bug runs through that first, and is searched for only when nobody notices it there any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};

use super::arguments::Verdict;
use super::progress::Progress;
use super::runner::Runner;
use crate::mutants::{self, Bug};
use crate::observe::Violation;
use crate::outcome::{Outcome, sentence};
use crate::run::Detail;
use crate::{scenario, swarm};

/// Seeds within which most bugs are to be noticed, and how many of a hundred are most; of fewer seeds nothing is asked.
const EARLY: [(u64, usize); 2] = [(20, 80), (100, 95)];

/// Scenarios about whole fleets, or about figures of whole runs. Without a bug all of them pass.
const DRILLS: [&str; 18] = [
    "lost-in-mid-window",
    "lone-bucket",
    "parted-outage",
    "outage-scale-up",
    "liar",
    "slow-clocks",
    "to-the-microsecond",
    "small-limits",
    "mixed-versions",
    "outage-and-back",
    "data-lost-slow-gossip",
    "answers-lost",
    "half-cut-relay",
    "cold-keys-owners",
    "far-zone-buckets-relay",
    "wandering-bucket",
    "stalls-two-limits",
    "a-share-that-gets-back-what-another-window-was-charged",
];

/// What `simulations/noticed.toml` says, by bug.
type Noticed = BTreeMap<String, Shown>;

/// The run that shows a bug.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(untagged)]
enum Shown {
    /// The seed after so many of those that can show it.
    Seed(u64),
    /// A scenario.
    Drill(String),
}

/// The head of the file.
const HEADER: &str = "# What showed each bug on purpose when they were all searched for: the seed of so many, or a scenario. `mutants --recall` looks there
# first. Written by: cargo run --release -p simulations -- mutants --seeds 100 --jobs 2 --write
";

/// The invariant under which a failed expectation is reported.
const EXPECTED: &str = "expected";

/// The violations of a run; a failed expectation of its plan counts as one more.
fn seen(outcome: Outcome) -> Vec<Violation> {
    let short = outcome.failed.into_iter().next();
    let short = short.map(|what| Violation { invariant: EXPECTED, by: "", at: 0, what });
    outcome.violations.into_iter().chain(short).collect()
}

/// Arguments of `mutants`.
#[derive(Debug, Args)]
pub(super) struct Mutants {
    /// Most seeds for each.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// Bugs at a time.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    jobs: u16,
    /// Only these.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// What these notice counts for nothing: what would notice it if they were not there.
    #[arg(long, value_name = "INVARIANT", num_args = 1..)]
    without: Vec<String>,
    /// Try first what showed each bug when they were last searched for, and search for none of the known gaps.
    #[arg(long, conflicts_with = "write")]
    recall: bool,
    /// Keep what shows each bug, for `--recall`.
    #[arg(long, conflicts_with_all = ["only", "without"])]
    write: bool,
    /// Also print what was noticed.
    #[arg(long)]
    explain: bool,
}

impl Mutants {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let bugs = self.bugs()?;
        let (mut progress, mut found, mut early) = (Progress::new(), 0, [0; EARLY.len()]);
        let (mut known, mut missing) = (Vec::new(), Vec::new());
        let mut noticed = Noticed::new();
        let recalled = if self.recall { Some(recalled()?) } else { None };
        let hunt = Hunt { bugs: &bugs, seeds: self.seeds, without: &self.without, recalled, ..Hunt::default() };
        progress.print(format_args!("{:28} {:>17}  {:34} {:>9}", "bug", "noticed", "by", "after"));
        hunt.run(self.jobs, &mut |row| {
            progress.print(&row);
            if let Some((place, violation)) = &row.noticed {
                found += 1;
                noticed.insert(row.bug.name().into(), place.into());
                for (early, (seeds, _)) in early.iter_mut().zip(EARLY) {
                    *early += usize::from(matches!(place, Place::Seed(seed) if *seed <= seeds));
                }
                if self.explain {
                    let by: Vec<_> = row.by.iter().copied().collect();
                    progress.print(format_args!("    {}\n    {}", row.bug.about(), sentence(violation)));
                    progress.print(format_args!("    noticed by {}", by.join(", ")));
                }
            } else {
                let name = row.bug.name();
                match mutants::gap(name, self.seeds) {
                    Some(gap) => known.push(format!("{name}, which wants {}", gap.wants)),
                    None => missing.push(name),
                }
            }
        })?;
        if self.write {
            write(&noticed)?;
        }
        let of = bugs.len();
        let within = early.iter().zip(EARLY).map(|(early, (seeds, _))| format!("{early} within {seeds} seeds"));
        progress.print(format_args!("{found} of {of} caught, {}", within.collect::<Vec<_>>().join(", ")));
        if !known.is_empty() {
            progress.print(format_args!("not noticed, as is known: {}", known.join("; ")));
        }
        if !missing.is_empty() {
            progress.print(format_args!("nobody noticed {}", missing.join(", ")));
        }
        let are_most = |(early, (seeds, most)): (&usize, (u64, usize))| self.seeds < seeds || early * 100 >= of * most;
        let is_good = missing.is_empty() && early.iter().zip(EARLY).all(are_most);
        Ok(Verdict::of(u64::from(!is_good)))
    }

    fn bugs(&self) -> anyhow::Result<Vec<Bug>> {
        if self.only.is_empty() {
            return Ok(mutants::all());
        }
        let named = |name: &String| mutants::named(name).with_context(|| format!("there is no bug `{name}`"));
        self.only.iter().map(named).collect()
    }
}

/// Reads what showed each bug when they were last searched for.
fn recalled() -> anyhow::Result<Noticed> {
    toml::from_str(include_str!("../../noticed.toml")).context("simulations/noticed.toml")
}

/// Keeps what shows each bug now.
fn write(noticed: &Noticed) -> anyhow::Result<()> {
    let file = scenario::bugs().with_file_name("noticed.toml");
    let text = [HEADER, &toml::to_string(noticed)?].concat();
    fs::write(&file, text).with_context(|| file.display().to_string())
}

impl From<&Place> for Shown {
    fn from(place: &Place) -> Self {
        match place {
            Place::Seed(seed) => Self::Seed(*seed),
            Place::Drill(name) => Self::Drill((*name).into()),
        }
    }
}

/// Where a bug was noticed.
enum Place {
    /// After so many seeds, of those that can show it.
    Seed(u64),
    Drill(&'static str),
}

/// The result for one bug.
struct Row {
    bug: Bug,
    /// Where it was noticed, and the violation.
    noticed: Option<(Place, Violation)>,
    /// The checkers that reported violations in those runs.
    by: BTreeSet<&'static str>,
    seeds: u64,
    millis: u64,
}

impl fmt::Display for Row {
    /// `one-token-more   at seed 1  bound (bound.rs)   0.1 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (when, by) = match &self.noticed {
            Some((Place::Seed(seed), violation)) => (format!("at seed {seed}"), who(violation)),
            Some((Place::Drill(name), violation)) => ((*name).to_owned(), who(violation)),
            None => (format!("not in {}", self.seeds), "-".to_owned()),
        };
        let (seconds, tenths) = (self.millis / 1_000, self.millis / 100 % 10); // rounded down
        write!(f, "{:28} {when:>17}  {by:34} {seconds:>5}.{tenths} s", self.bug.name())
    }
}

/// The invariant that does not hold, and the file of the checker that says so, where one does.
fn who(violation: &Violation) -> String {
    let Violation { invariant, by, .. } = violation;
    if by.is_empty() { (*invariant).to_owned() } else { format!("{invariant} ({by})") }
}

/// The search for one bug.
struct Search<'a> {
    bug: Bug,
    runner: Runner,
    healthy: &'a mut Runner,
    /// The checkers that have reported violations.
    by: BTreeSet<&'static str>,
}

/// The bugs to run, and the violations of seeds without a bug.
#[derive(Default)]
struct Hunt<'a> {
    bugs: &'a [Bug],
    seeds: u64,
    without: &'a [String],
    /// What showed each bug before, if that is to be tried first.
    recalled: Option<Noticed>,
    /// Invariants that do not hold without any bug, by seed.
    known: Mutex<BTreeMap<u64, BTreeSet<&'static str>>>,
    next: AtomicUsize,
}

impl Hunt<'_> {
    /// Runs all, and gives `take` the results in the order of the bugs.
    fn run(&self, jobs: u16, take: &mut dyn FnMut(Row)) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for _ in 0..jobs {
                let send = send.clone();
                scope.spawn(move || self.work(&send));
            }
            drop(send);
            let (mut due, mut early) = (0, BTreeMap::new());
            for row in receive {
                let (place, row) = row?;
                early.insert(place, row);
                while let Some(row) = early.remove(&due) {
                    take(row);
                    due += 1;
                }
            }
            Ok(())
        })
    }

    fn work(&self, send: &mpsc::Sender<anyhow::Result<(usize, Row)>>) {
        let mut healthy = Runner::new(Detail::Figures);
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(bug) = self.bugs.get(place) else { return };
            let row = self.hunt(*bug, &mut healthy).map(|row| (place, row));
            if send.send(row).is_err() {
                return;
            }
        }
    }

    fn hunt(&self, bug: Bug, healthy: &mut Runner) -> anyhow::Result<Row> {
        let (mut search, progress) =
            (Search { bug, runner: Runner::with(bug), healthy, by: BTreeSet::new() }, Progress::new());
        let mut noticed = None;
        if let Some(recalled) = &self.recalled {
            noticed = match recalled.get(bug.name()) {
                Some(Shown::Seed(seed)) => self.at_seed(&mut search, *seed)?,
                Some(Shown::Drill(name)) => DRILLS
                    .into_iter()
                    .find(|drill| drill == name)
                    .map_or(Ok(None), |name| self.in_drill(&mut search, name))?,
                None => None,
            };
        }
        // The search for a known gap finds nothing, and takes as long as the search for twenty other bugs.
        let is_sought = self.recalled.is_none() || mutants::gap(bug.name(), self.seeds).is_none();
        let mut places = (1..=self.seeds).map(Ok).chain(DRILLS.into_iter().map(Err)).filter(|_| is_sought);
        while noticed.is_none()
            && let Some(place) = places.next()
        {
            noticed = match place {
                Ok(seed) => self.at_seed(&mut search, seed)?,
                Err(name) => self.in_drill(&mut search, name)?,
            };
        }
        Ok(Row { bug, noticed, by: search.by, seeds: self.seeds, millis: progress.millis() })
    }

    /// Whether the bug is noticed in the seed after so many that can show it.
    fn at_seed(&self, search: &mut Search<'_>, place: u64) -> anyhow::Result<Option<(Place, Violation)>> {
        let seed = search.bug.first_seed() + place - 1;
        let violations = self.heeded(seen(search.runner.run(&swarm::plan(seed))?));
        search.by.extend(violations.iter().map(|violation| violation.by));
        if violations.is_empty() {
            return Ok(None);
        }
        // Run only after a violation, because most seeds pass with most bugs, too.
        let known = self.known(seed, search.healthy)?;
        let fresh = violations.into_iter().find(|violation| !known.contains(violation.invariant));
        Ok(fresh.map(|violation| (Place::Seed(place), violation)))
    }

    /// The same in a scenario.
    fn in_drill(&self, search: &mut Search<'_>, name: &'static str) -> anyhow::Result<Option<(Place, Violation)>> {
        let violations = self.heeded(seen(search.runner.run(&scenario::find(name)?)?));
        search.by.extend(violations.iter().map(|violation| violation.by));
        Ok(violations.into_iter().next().map(|violation| (Place::Drill(name), violation)))
    }

    /// The violations that count.
    fn heeded(&self, mut violations: Vec<Violation>) -> Vec<Violation> {
        violations.retain(|violation| !self.without.iter().any(|without| without == violation.invariant));
        violations
    }

    /// The invariants that a seed violates without any bug.
    fn known(&self, seed: u64, healthy: &mut Runner) -> anyhow::Result<BTreeSet<&'static str>> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(&seed) {
            return Ok(known.clone());
        }
        let violations = seen(healthy.run(&swarm::plan(seed))?);
        let known: BTreeSet<_> = violations.iter().map(|violation| violation.invariant).collect();
        lock().insert(seed, known.clone());
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each bug but the known gaps has a seed or a scenario that shows it.
    #[test]
    fn what_shows_each_bug_is_kept() {
        let recalled = recalled().expect("it is read");
        let of_drill = |shown: &Shown| matches!(shown, Shown::Drill(name) if !DRILLS.contains(&name.as_str()));
        assert!(!recalled.values().any(of_drill), "{recalled:?}");
        let sought = mutants::all().into_iter().map(|bug| bug.name()).filter(|bug| mutants::gap(bug, 100).is_none());
        let cure = "mutants --seeds 100 --write writes it";
        assert_eq!(recalled.keys().map(String::as_str).collect::<BTreeSet<_>>(), sought.collect(), "{cure}");
    }
}
