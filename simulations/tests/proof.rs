//! `docs/internals/proof.md` says of each checker what the code says, and the code excuses what the page says.
//!
//! `PROOF_WRITE=1` writes the tables of the page anew.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use simulations::checkers::{Sheet, sheets};
use simulations::lua::Scripts;
use simulations::mutants::{self, Gap};
use simulations::observe::Judged;
use simulations::run::{Detail, run};
use simulations::swarm;

const BEGIN: &str = "<!-- tables: simulations/tests/proof.rs writes them -->\n";
const END: &str = "<!-- end of the tables -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The tables as the code has them.
fn tables() -> String {
    let mut text =
        String::from("| checker | invariant | proves | judges | a bug that it notices |\n|---|---|---|---|---|\n");
    for Sheet { file, invariants, proves, judges, mutant, .. } in sheets() {
        let bug = mutant.map_or("none in 30 seeds: its own test".to_owned(), |bug| format!("`{bug}`"));
        let invariants = invariants.iter().map(|name| format!("**{name}**")).collect::<Vec<_>>().join(", ");
        writeln!(text, "| `{file}` | {invariants} | {proves} | {judges} | {bug} |").expect("a string has room");
    }
    text += "\n## What is excused, and why\n\n| checker | what | why |\n|---|---|---|\n";
    for Sheet { file, exemptions, .. } in sheets() {
        for exemption in *exemptions {
            writeln!(text, "| `{file}` | {} | {} |", exemption.name, exemption.reason).expect("a string has room");
        }
    }
    text
}

/// Runs of a hundred of which it is judged that answers come with the store in the end, and that limits are used then.
const JUDGED: [usize; 2] = [86, 86];

#[test]
fn liveness_is_judged_in_as_many_seeds_as_the_page_says() {
    let mut scripts = Scripts::new();
    let judged = (1..=100).map(|seed| {
        let outcome = run(&swarm::plan(seed), &mut scripts, Detail::Figures);
        outcome.expect("a plan of the swarm").judged
    });
    let judged: Vec<Judged> = judged.collect();
    let answers = judged.iter().filter(|judged| judged.answers > 0).count();
    let uses = judged.iter().filter(|judged| judged.uses > 0).count();
    assert!(answers >= JUDGED[0] && uses >= JUDGED[1], "answers in {answers} of 100, use in {uses}");
}

#[test]
fn page_says_what_the_code_says() {
    let path = root().join("docs/internals/proof.md");
    let page = read(&path);
    let (before, rest) = page.split_once(BEGIN).expect("the page says where its tables begin");
    let (said, after) = rest.split_once(END).expect("the page says where its tables end");
    let wanted = tables();
    if std::env::var_os("PROOF_WRITE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("the page can be written");
        return;
    }
    let missing: Vec<_> = wanted.lines().filter(|line| !said.lines().any(|other| other == *line)).collect();
    let stale: Vec<_> = said.lines().filter(|line| !wanted.lines().any(|other| other == *line)).collect();
    let cure = "PROOF_WRITE=1 cargo test -p simulations --test proof";
    assert!(missing.is_empty() && stale.is_empty(), "the page lacks {missing:#?}\nthe code lacks {stale:#?}\n{cure}");
    assert_eq!(said, wanted, "in another order: {cure}");
}

#[test]
fn every_exemption_is_used_and_every_one_that_is_used_is_on_the_page() {
    for Sheet { file, exemptions, .. } in sheets() {
        let text = read(&root().join("simulations/src/checkers").join(file));
        let names: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("static ")?.split_once(": Exemption").map(|(name, _)| name))
            .collect();
        assert_eq!(names.len(), exemptions.len(), "{file}: all of {names:?} stand in its sheet");
        for name in names {
            let uses = [".when(", ".forgives("].map(|verb| text.contains(&format!("{name}{verb}")));
            let is_handed_on = text.contains(&format!("(&{name}, "));
            assert!(uses.contains(&true) || is_handed_on, "{file} excuses nothing by {name}");
        }
    }
}

/// Numbers in the prose were right once: a bug that is added, or a gap that is closed, must change them.
#[test]
fn pages_say_how_many_bugs_there_are_and_which_are_not_noticed() {
    let (all, page) = (mutants::all().len(), read(&root().join("docs/internals/proof.md")));
    for (file, count) in [
        ("docs/internals/proof.md", format!("of the {all} bugs on purpose")),
        ("docs/internals/simulator.md", format!("# {all} bugs on purpose")),
        ("README.md", format!("of the {all} bugs that were put in on purpose")),
    ] {
        assert!(read(&root().join(file)).contains(&count), "{file} does not say `{count}`");
    }
    for Gap { bug, shown_by, .. } in &mutants::GAPS {
        assert!(mutants::named(bug).is_some(), "{bug} is no bug");
        assert!(page.contains(&format!("`{bug}`")), "the page does not say that {bug} is not noticed");
        assert!(
            shown_by.is_none_or(|file| page.contains(&format!("`{file}`")) && root().join(file).is_file()),
            "{bug}"
        );
    }
}

#[test]
fn every_bug_of_the_page_is_there() {
    for Sheet { file, mutant, .. } in sheets() {
        assert!(mutant.is_none_or(|bug| mutants::named(bug).is_some()), "{file} notices {mutant:?}, which is no bug");
    }
}
