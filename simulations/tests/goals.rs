//! Goals are a ratchet: what a scenario once expected it expects now, or more, and what was once its goal is asked of it
//! now, as a goal or because it is expected by now.
//!
//! `goals.toml` is held to its own past, too: no row of it is looser than it was in the last release, or in any commit since; and
//! before the first release in no commit at all. So whoever loosens a scenario and its row at once is noticed as well, and what is
//! loosened on purpose has a line that says who is hurt, beside the row as it was.
//!
//! With `GOALS_WRITE=1` in the environment, what scenarios expect and aim at now is written into `goals.toml`, where it is
//! no looser than what stands there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use simulations::plan::{Expect, Plan};
use simulations::scenario;

/// By scenario and bound: who is hurt by its being looser now, and why it is.
type Named = BTreeMap<String, BTreeMap<String, String>>;

/// `goals.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goals {
    /// By scenario.
    expect: BTreeMap<String, Expect>,
    /// By scenario and bound: who is hurt by its being looser now, and why it is.
    looser: Named,
    /// Goals by scenario, of those that have some or had.
    goal: BTreeMap<String, Expect>,
    /// As `looser`, of goals.
    looser_goal: Named,
}

impl Goals {
    /// Of scenarios as they are now, the bounds that are looser than they were, with nobody named who is hurt.
    fn looser(&self, now: &BTreeMap<String, Plan>) -> Vec<String> {
        let expected = self.expect.iter().map(|(name, before)| {
            let expect = now.get(name).map(|plan| plan.expect).unwrap_or_default();
            ("expect", name, expect.looser_than(before), &self.looser)
        });
        let aimed_at = self.goal.iter().map(|(name, before)| {
            let wanted = now.get(name).map(Plan::wanted).unwrap_or_default();
            ("goal", name, wanted.looser_than(before), &self.looser_goal)
        });
        let named = |(kind, name, bounds, named): (_, &String, Vec<_>, &Named)| {
            let is_named = |bound: &&str| named.get(name).is_some_and(|bounds| bounds.contains_key(*bound));
            let others = bounds.into_iter().filter(|bound| !is_named(bound));
            others.map(|bound| format!("{kind} of {name}: {bound}")).collect::<Vec<_>>()
        };
        expected.chain(aimed_at).flat_map(named).collect()
    }
}

/// What rows of the file said before and do not say any more, or say more loosely; `then` is the text of the file as it was.
fn loosened(now: &Goals, then: &str) -> Vec<String> {
    let then: toml::Table = toml::from_str(then).unwrap_or_else(|error| panic!("goals.toml as it was: {error}"));
    let rows = |section: &str| then.get(section).and_then(toml::Value::as_table).cloned().unwrap_or_default();
    let mut found = Vec::new();
    for (section, now) in [("expect", &now.expect), ("goal", &now.goal)] {
        for (name, before) in rows(section) {
            let row = now.get(&name).copied().unwrap_or_default();
            let looser = match before.try_into::<Expect>() {
                Ok(before) => row.looser_than(&before).join(", "),
                Err(error) => format!("nothing is measured any more that it was about: {error}"),
            };
            if !looser.is_empty() {
                found.push(format!("{section} of {name}: {looser}"));
            }
        }
    }
    found
}

/// What git prints in this directory; `None` where there is no git or no history.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The commits whose `goals.toml` counts.
fn versions() -> Option<Vec<String>> {
    let release = git(&["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]).map(|tag| tag.trim().to_owned());
    let since = release.as_ref().map_or_else(|| "HEAD".to_owned(), |tag| format!("{tag}..HEAD"));
    let commits = git(&["log", "--format=%H", &since, "--", "goals.toml"])?;
    Some(commits.lines().map(str::to_owned).chain(release).collect())
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goals.toml")
}

fn text() -> String {
    std::fs::read_to_string(path()).unwrap_or_else(|error| panic!("{}: {error}", path().display()))
}

fn goals() -> Goals {
    toml::from_str(&text()).unwrap_or_else(|error| panic!("{}: {error}", path().display()))
}

/// The bounds of an expectation, by name.
fn bounds(expect: &Expect) -> toml::Table {
    toml::Table::try_from(expect).expect("bounds are plain data")
}

/// All scenarios as they are now.
fn scenarios() -> BTreeMap<String, Plan> {
    let plans = scenario::all(&scenario::scenarios()).unwrap_or_else(|error| panic!("{error}"));
    plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect()
}

#[test]
fn no_scenario_expects_less_than_it_once_has_or_aims_lower() {
    let looser = goals().looser(&scenarios());
    assert!(looser.is_empty(), "looser than in goals.toml, with nobody named who is hurt: {looser:?}");
}

#[test]
fn no_row_is_looser_than_in_the_last_release_or_a_commit_since() {
    let Some(versions) = versions().filter(|versions| !versions.is_empty()) else {
        println!("skipped: what goals.toml said before (no history here); it wants git and a clone with commits");
        return;
    };
    let now = goals();
    for commit in &versions {
        let Some(then) = git(&["show", &format!("{commit}:./goals.toml")]) else { continue };
        let found = loosened(&now, &then);
        assert!(
            found.is_empty(),
            "goals.toml is looser than in {commit}; leave the row as it was then, and say under [looser] or [looser_goal] who is hurt: {found:?}"
        );
    }
}

#[test]
fn a_row_that_is_loosened_with_its_scenario_is_noticed() {
    let (mut now, then) = (goals(), text());
    assert!(loosened(&now, &then).is_empty());
    now.expect.get_mut("swizzle").expect("a row").answer = None;
    now.goal.get_mut("swizzle").expect("a row").over = Some(1);
    assert_eq!(loosened(&now, &then), ["expect of swizzle: answer", "goal of swizzle: over"]);
    now.expect.remove("swizzle");
    assert_eq!(loosened(&now, &then), ["expect of swizzle: over, answer", "goal of swizzle: over"]);
    let of_another_kind = then.replacen("answers-lost = {", "answers-lost = { no_such_figure = 1,", 1);
    assert!(loosened(&goals(), &of_another_kind)[0].starts_with("expect of answers-lost: nothing is measured"));
}

#[test]
fn a_goal_that_is_taken_out_or_lowered_is_noticed() {
    let (goals, mut now) = (goals(), scenarios());
    let swizzle = now.get_mut("swizzle").expect("a scenario");
    swizzle.goal.over = Some(1);
    assert_eq!(goals.looser(&now), ["goal of swizzle: over"]);
    now.get_mut("swizzle").expect("a scenario").goal.over = None;
    assert_eq!(goals.looser(&now), ["goal of swizzle: over"]);
    // Who expects what was a goal once has no need of a goal.
    now.get_mut("swizzle").expect("a scenario").expect.over = Some(0);
    assert!(goals.looser(&now).is_empty());
    now.remove("swizzle");
    assert_eq!(goals.looser(&now), ["expect of swizzle: over", "expect of swizzle: answer", "goal of swizzle: over"]);
}

/// What the file says of a scenario, with what it expects now where that is no looser.
fn tightened(before: Option<&Expect>, now: &Expect) -> toml::Table {
    let mut all = bounds(now);
    if let Some(before) = before {
        let before_bounds = bounds(before);
        all.extend(now.looser_than(before).into_iter().map(|bound| (bound.to_owned(), before_bounds[bound].clone())));
    }
    all
}

/// Of `now`, what the file is behind.
fn behind(
    before: &BTreeMap<String, Expect>,
    now: impl Iterator<Item = (String, Expect)>,
) -> Vec<(String, toml::Table)> {
    now.map(|(name, now)| (tightened(before.get(&name), &now), name))
        .filter(|(all, name)| before.get(name).map(bounds).unwrap_or_default() != *all)
        .map(|(all, name)| (name, all))
        .collect()
}

#[test]
fn the_file_has_what_scenarios_expect_and_aim_at_now() {
    let (goals, now) = (goals(), scenarios());
    let of = |bounds: fn(&Plan) -> Expect| now.iter().map(move |(name, plan)| (name.clone(), bounds(plan)));
    let expect = behind(&goals.expect, of(|plan| plan.expect));
    let goal = behind(&goals.goal, of(|plan| plan.goal));
    if std::env::var_os("GOALS_WRITE").is_none() {
        let cure = "goals.toml is behind its scenarios; write it with GOALS_WRITE=1";
        assert!(expect.is_empty() && goal.is_empty(), "{cure}: {expect:?} {goal:?}");
        return;
    }
    let text = with_rows(&text(), "expect", &goals.expect, expect);
    std::fs::write(path(), with_rows(&text, "goal", &goals.goal, goal)).expect("goals.toml can be written");
}

/// The file's text with these rows of a section, in place of those of `before` or beside them.
fn with_rows(
    text: &str,
    section: &str,
    before: &BTreeMap<String, Expect>,
    behind: Vec<(String, toml::Table)>,
) -> String {
    let mut rows: BTreeMap<_, _> = before.iter().map(|(name, expect)| (name.clone(), bounds(expect))).collect();
    rows.extend(behind);
    let (head, others) = text.split_once(&format!("[{section}]\n")).expect("goals.toml has this section");
    let (_, others) = others.split_once("\n\n").expect("an empty line ends it");
    let rows: String = rows.iter().map(|(name, bounds)| row(name, bounds)).collect();
    format!("{head}[{section}]\n{rows}\n{others}")
}

/// A scenario's line of `[expect]` or `[goal]`.
fn row(name: &str, bounds: &toml::Table) -> String {
    let name = if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() };
    let bounds: Vec<_> = bounds.iter().map(|(bound, value)| format!("{bound} = {value}")).collect();
    format!("{name} = {{ {} }}\n", bounds.join(", "))
}

#[test]
fn every_scenario_is_in_the_file() {
    let goals = goals();
    let missing: Vec<_> = scenarios().into_keys().filter(|name| !goals.expect.contains_key(name)).collect();
    assert!(missing.is_empty(), "not in goals.toml: {missing:?}");
}

#[test]
fn who_is_hurt_is_said_of_what_is_looser_and_of_nothing_else() {
    let (goals, now) = (goals(), scenarios());
    let expect = |name: &str| now.get(name).map(|plan| plan.expect).unwrap_or_default();
    let wanted = |name: &str| now.get(name).map(Plan::wanted).unwrap_or_default();
    let said = |named: &Named, before: &BTreeMap<String, Expect>, now: &dyn Fn(&str) -> Expect| {
        for (name, bounds) in named {
            let before = before.get(name).unwrap_or_else(|| panic!("{name} is not in goals.toml"));
            let looser = now(name).looser_than(before);
            for (bound, why) in bounds {
                assert!(looser.contains(&bound.as_str()), "{name}.{bound} is no looser than it was");
                assert!(why.split_whitespace().count() >= 5, "{name}.{bound}: who is hurt, and why?");
            }
        }
    };
    said(&goals.looser, &goals.expect, &expect);
    said(&goals.looser_goal, &goals.goal, &wanted);
}

#[test]
fn a_goal_asks_for_more_than_is_expected() {
    for (name, plan) in scenarios() {
        let looser = plan.wanted().looser_than(&plan.expect);
        assert!(looser.is_empty(), "{name}: its goal is looser than what is held: {looser:?}");
    }
}
