//! `mutants`: tests the checkers with deliberate bugs, each of which some checker must notice.
//!
//! A bug runs through the seeds of the swarm until a checker reports something that it does not report for the same
//! seed without the bug; seeds that fail anyway thus count for nothing. Small worlds rarely show bugs in what a whole
//! fleet does, so some scenarios must show those, by a checker or by a failed expectation. Each bug gives one line,
//! in order, with the checker that noticed it first. A bug that was not noticed is a gap in the swarm or in the
//! checkers; those that are known are named with what shows the bug in their place (`GAPS` in `mutants.rs`), and any
//! other one fails.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use anyhow::Context;
use clap::Args;

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

/// Scenarios in which a fleet is what matters, or what it comes to in the end: they are good without any bug.
const DRILLS: [&str; 15] = [
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
];

/// What notices that a run does not come to what its plan expects.
const EXPECTED: &str = "expected";

/// What did not hold in a run, and at last, that it did not come to what its plan expects.
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
    /// Also print what was noticed.
    #[arg(long)]
    explain: bool,
}

impl Mutants {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        let bugs = self.bugs()?;
        let (mut progress, mut found, mut early) = (Progress::new(), 0, [0; EARLY.len()]);
        let (mut known, mut missing) = (Vec::new(), Vec::new());
        let hunt = Hunt { bugs: &bugs, seeds: self.seeds, without: &self.without, ..Hunt::default() };
        progress.print(format_args!("{:28} {:>17}  {:34} {:>9}", "bug", "noticed", "by", "after"));
        hunt.run(self.jobs, &mut |row| {
            progress.print(&row);
            if let Some((place, violation)) = &row.noticed {
                found += 1;
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

/// Where a bug was noticed.
enum Place {
    /// After so many seeds, of those that can show it.
    Seed(u64),
    Drill(&'static str),
}

/// What came of one bug.
struct Row {
    bug: Bug,
    /// Where, and what a checker said.
    noticed: Option<(Place, Violation)>,
    /// The checkers that did not hold in those runs.
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

/// The bugs that are run, and what is known of the seeds without them.
#[derive(Default)]
struct Hunt<'a> {
    bugs: &'a [Bug],
    seeds: u64,
    without: &'a [String],
    /// Invariants that do not hold without any bug, by seed.
    known: Mutex<BTreeMap<u64, BTreeSet<&'static str>>>,
    next: AtomicUsize,
}

impl Hunt<'_> {
    /// Runs all, and gives `take` what came of each in their order.
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
        let (mut runner, progress) = (Runner::with(bug), Progress::new());
        let (mut noticed, mut by) = (None, BTreeSet::new());
        let first = bug.first_seed();
        for seed in first..first + self.seeds {
            let violations = self.heeded(seen(runner.run(&swarm::plan(seed))?));
            by.extend(violations.iter().map(|violation| violation.by));
            // Only now: most seeds are good, with most bugs too.
            if !violations.is_empty() {
                let known = self.known(seed, healthy)?;
                let fresh = violations.into_iter().find(|violation| !known.contains(violation.invariant));
                noticed = fresh.map(|violation| (Place::Seed(seed - first + 1), violation));
            }
            if noticed.is_some() {
                break;
            }
        }
        for name in DRILLS {
            if noticed.is_some() {
                break;
            }
            let violations = self.heeded(seen(runner.run(&scenario::find(name)?)?));
            by.extend(violations.iter().map(|violation| violation.by));
            noticed = violations.into_iter().next().map(|violation| (Place::Drill(name), violation));
        }
        Ok(Row { bug, noticed, by, seeds: self.seeds, millis: progress.millis() })
    }

    /// The violations that count.
    fn heeded(&self, mut violations: Vec<Violation>) -> Vec<Violation> {
        violations.retain(|violation| !self.without.iter().any(|without| without == violation.invariant));
        violations
    }

    /// What does not hold of a seed without any bug.
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
