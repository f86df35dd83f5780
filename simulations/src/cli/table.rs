//! `table`: measured figures beside the goals, and those of the baselines in the same runs.
//!
//! Two tables in Markdown. Cells of the first are `measured (goal)`, and `!` where the goal is
//! missed; cells of the second are `used %, calls per 1000, over %`. Rows of the first are printed as
//! their runs end, of which the longest are begun last; the second is in the order of the scenarios.
//!
//! With `--set` it is one table instead: the rows of a design, with its goals beside what was measured before it was
//! built.

use std::collections::BTreeMap;

use clap::Args;

use super::arguments::{Common, Verdict};
use super::many::{Many, longest_last};
use super::output::say;
use super::progress::Progress;
use super::run;
use crate::ledger::{Figures, Measured, thousandths};
use crate::outcome::Outcome;
use crate::plan::{Brain, Expect, Plan};
use crate::run::Detail;
use crate::set::{Case, Row, Set};
use crate::span::Span;
use crate::{report, scenario, set};

/// The baselines to compare with.
const BASELINES: [(&str, Brain); 6] = [
    ("each time", Brain::PerRequest),
    ("remembered", Brain::Remembered),
    ("batch 1", Brain::BatchOne),
    ("batch 1000", Brain::BatchThousand),
    ("×1.5 ÷2", Brain::GrowHalve),
    ("limit / N", Brain::Split),
];

/// Scenarios with more checks than this run without baselines, since these call the store for each check.
const MOST: u64 = 500_000;

/// Arguments of `table`.
#[derive(Debug, Args)]
pub(super) struct Table {
    /// Scenarios; otherwise all.
    #[arg(value_name = "FILE|NAME|DIR")]
    what: Vec<String>,
    /// What a design says must be shown, row by row (simulations/sets).
    #[arg(long, value_name = "NAME", conflicts_with_all = ["what", "baselines", "no_baselines"])]
    set: Option<String>,
    /// Run the baselines, too (the default).
    #[arg(long, overrides_with = "no_baselines")]
    baselines: bool,
    /// Leave them out.
    #[arg(long, overrides_with = "baselines")]
    no_baselines: bool,
    #[command(flatten)]
    common: Common,
}

impl Table {
    pub(super) fn main(self) -> anyhow::Result<Verdict> {
        if let Some(name) = &self.set {
            return self.show(&set::find(name)?);
        }
        let scenarios = match self.what.as_slice() {
            [] => scenario::all(&scenario::scenarios())?,
            what => run::plans(what)?,
        };
        let figures = "used % | calls / 1000 | calls / window | waits % | over % | slots over % | herd | fairness | p99 | p99.9 | longest | p99 of peers | news of peers";
        say!("| scenario | {figures} | first of a node | false denials % | herd after an outage |");
        say!("|---{}|", "|---".repeat(15));
        let outcomes = self.run(&scenarios)?;
        let (own, others): (Vec<_>, Vec<_>) =
            outcomes.into_iter().partition(|outcome| outcome.plan.brain == Brain::Rationd);
        if !others.is_empty() {
            let names: Vec<_> = BASELINES.iter().map(|(name, _)| *name).collect();
            say!("\n| scenario | rationd | {} |\n|---|---|{}", names.join(" | "), "---|".repeat(names.len()));
            own.iter().filter_map(|outcome| compared(outcome, &others)).for_each(|row| say!("{row}"));
        }
        say!("");
        for outcome in &own {
            let name = &outcome.plan.name;
            outcome.missed.iter().for_each(|missed| say!("{name} is short of its goal: {missed}"));
        }
        own.iter().filter(|outcome| !outcome.is_good()).for_each(|outcome| say!("{outcome}"));
        if let Some(directory) = &self.common.report {
            report::write(directory, &own)?;
        }
        Ok(Verdict::of(own.iter().filter(|outcome| !outcome.is_good()).count() as u64))
    }

    fn run(&self, scenarios: &[Plan]) -> anyhow::Result<Vec<Outcome>> {
        let plans: Vec<_> = scenarios.iter().flat_map(|plan| self.brains(plan)).collect();
        let order = longest_last(&plans);
        let (mut progress, mut outcomes) = (Progress::new(), BTreeMap::new());
        let plan = |place: u64| Some(plans[*order.get(place as usize)?].clone());
        let many = Many { plan: &plan, jobs: self.common.jobs, detail: Detail::Figures, twice: false };
        many.run_as_they_end(&mut |place, outcome| {
            if outcome.plan.brain == Brain::Rationd && self.set.is_none() {
                progress.print(row(&outcome));
            }
            outcomes.insert(order[place as usize], outcome);
            progress.show(|| format!("{} of {} runs", outcomes.len(), plans.len()));
        })?;
        progress.clear();
        Ok(outcomes.into_values().collect())
    }

    /// The table of a set. A missed goal is marked and is no failure; a failed expectation of the scenario is one.
    fn show(&self, set: &Set) -> anyhow::Result<Verdict> {
        let names = set.scenarios().into_iter().map(str::to_owned).collect::<Vec<_>>();
        let outcomes = self.run(&run::plans(&names)?)?;
        say!("# {}\n", set.about);
        say!("| what must be shown | scenario | figure | before | goal | now | |");
        say!("|---|---|---|---|---|---|---|");
        let (mut met, mut all) = (0, 0);
        for row in &set.rows {
            for case in &row.cases {
                let outcome = outcomes.iter().find(|outcome| outcome.plan.name == case.scenario);
                let Some(outcome) = outcome else { continue };
                for measured in cells(case, outcome) {
                    (met, all) = (met + u64::from(measured.is_met), all + 1);
                    say!("{}", line(row, case, &measured));
                }
            }
        }
        say!("");
        set.rows.iter().filter_map(|row| Some((&row.what, row.elsewhere.as_ref()?))).for_each(|(what, elsewhere)| {
            say!("{what}: {elsewhere}");
        });
        say!("\n{met} of {all} goals are met.");
        let bad: Vec<_> = outcomes.iter().filter(|outcome| !outcome.is_good()).collect();
        bad.iter().for_each(|outcome| say!("{outcome}"));
        if let Some(directory) = &self.common.report {
            report::write(directory, &outcomes)?;
        }
        Ok(Verdict::of(bad.len() as u64))
    }

    /// A scenario, and the same for each baseline, of which nothing is expected.
    fn brains(&self, plan: &Plan) -> Vec<Plan> {
        let others = BASELINES.iter().map(|(_, brain)| {
            let nothing = Expect::default();
            Plan { brain: *brain, expect: nothing, goal: nothing, ..plan.clone() }
        });
        let is_compared =
            !self.no_baselines && self.set.is_none() && plan.brain == Brain::Rationd && plan.checks() <= MOST;
        std::iter::once(plan.clone()).chain(others.filter(|_| is_compared)).collect()
    }
}

/// The measurements of a case: of its invariant, and of each bound of its goal.
fn cells(case: &Case, outcome: &Outcome) -> Vec<Measured> {
    let broken = |invariant: &String| {
        let broken = outcome.violations.iter().filter(|violation| violation.invariant == invariant).count();
        Measured { name: "broken", wanted: format!("0 × {invariant}"), seen: broken.to_string(), is_met: broken == 0 }
    };
    case.invariant.iter().map(broken).chain(case.goal.measured(&outcome.figures)).collect()
}

/// A line of a set's table.
fn line(row: &Row, case: &Case, measured: &Measured) -> String {
    let what = [&*row.what, &*case.what].into_iter().filter(|what| !what.is_empty()).collect::<Vec<_>>().join(": ");
    let before = case.before.get(measured.name).map_or("–", |before| before);
    let Measured { name, wanted, seen, is_met } = measured;
    let mark = if *is_met { "met" } else { "**missed**" };
    format!("| {what} | {} | {name} | {before} | {wanted} | {seen} | {mark} |", case.scenario)
}

/// A row of the first table.
fn row(outcome: &Outcome) -> String {
    let (figures, expect) = (&outcome.figures, outcome.plan.wanted());
    let goal = |goal: Option<u32>| goal.map(u64::from);
    let cells = [
        figures.used.map_or_else(|| "–".into(), |used| least(used, goal(expect.used), thousandths)),
        most(figures.calls_per_million, goal(expect.calls).map(|calls| calls * 1_000), thousandths),
        most(figures.calls_per_window, goal(expect.calls_per_window), |calls| calls.to_string()),
        most(figures.waits, goal(expect.waits), thousandths),
        most(figures.beyond(), goal(expect.over), thousandths),
        most(figures.slots_over, goal(expect.slots_over), thousandths),
        most(figures.herd, goal(expect.herd), thousandths),
        least(figures.fairness, goal(expect.fairness), thousandths),
        most(figures.answer_p99_us, expect.p99.map(|answer| answer.0), |time| Span(time).to_string()),
        most(figures.answer_p999_us, expect.p999.map(|answer| answer.0), |time| Span(time).to_string()),
        most(figures.answer_longest_us, expect.answer.map(|answer| answer.0), |time| Span(time).to_string()),
        most(figures.peer_answer_p99_us, expect.peer_p99.map(|answer| answer.0), |time| Span(time).to_string()),
        most(figures.news_p99_us, expect.news.map(|age| age.0), |time| Span(time).to_string()),
        most(figures.first_answer_us, expect.first.map(|answer| answer.0), |time| Span(time).to_string()),
        most(figures.false_denials, goal(expect.false_denials), thousandths),
        most(figures.herd_back, goal(expect.herd_back), thousandths),
    ];
    format!("| {} | {} |", outcome.plan.name, cells.join(" | "))
}

/// A row of the second table; `None` for a scenario without baselines.
fn compared(outcome: &Outcome, others: &[Outcome]) -> Option<String> {
    let own: Vec<_> = others.iter().filter(|other| other.plan.name == outcome.plan.name).collect();
    let all = std::iter::once(outcome).chain(own.iter().copied());
    let cells: Vec<_> = all.map(|outcome| short(&outcome.figures)).collect();
    (!own.is_empty()).then(|| format!("| {} | {} |", outcome.plan.name, cells.join(" | ")))
}

/// `99.5, 8, 0`: rounded down to tenths, since the first table has them whole.
fn short(figures: &Figures) -> String {
    let tenths = |thousandths: u64| format!("{}.{}", thousandths / 1_000, thousandths / 100 % 10);
    let used = figures.used.map_or_else(|| "–".into(), tenths);
    format!("{used}, {}, {}", figures.calls_per_1000, tenths(figures.beyond()))
}

fn most(seen: u64, goal: Option<u64>, write: impl Fn(u64) -> String) -> String {
    cell(seen, goal, goal.is_none_or(|goal| seen <= goal), "≤", write)
}

fn least(seen: u64, goal: Option<u64>, write: impl Fn(u64) -> String) -> String {
    cell(seen, goal, goal.is_none_or(|goal| seen >= goal), "≥", write)
}

fn cell(seen: u64, goal: Option<u64>, is_met: bool, sign: &str, write: impl Fn(u64) -> String) -> String {
    let mark = if is_met { "" } else { " !" };
    let goal = goal.map_or_else(String::new, |goal| format!(" ({sign} {}){mark}", write(goal)));
    format!("{}{goal}", write(seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_was_before_beside_what_is_now() {
        let text = "what = 'once'\nscenario = 'cold'\nbefore = { calls = '939' }\ngoal = { calls = 120, waits = 1000 }";
        let case: Case = toml::from_str(text).unwrap();
        let row = Row { what: "Calls".into(), elsewhere: None, cases: Vec::new() };
        let figures = Figures { calls_per_million: 106_400, waits: 1_200, ..Figures::default() };
        let lines: Vec<_> = case.goal.measured(&figures).iter().map(|one| line(&row, &case, one)).collect();
        assert_eq!(
            lines,
            [
                "| Calls: once | cold | calls | 939 | ≤ 120 | 106.4 | met |",
                "| Calls: once | cold | waits | – | ≤ 1 % | 1.2 % | **missed** |",
            ]
        );
    }

    #[test]
    fn cell_tells_what_was_missed() {
        assert_eq!(most(8_500, None, thousandths), "8.5");
        assert_eq!(most(8_500, Some(9_000), thousandths), "8.5 (≤ 9)");
        assert_eq!(most(8_500, Some(8_000), thousandths), "8.5 (≤ 8) !");
        assert_eq!(least(99_400, Some(99_500), thousandths), "99.4 (≥ 99.5) !");
    }
}
