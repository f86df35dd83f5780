//! The book: README.md and its neighbours, and the pages of docs/. Every link leads somewhere, every page is in the
//! table of contents, every block of commands is executed or says why not, and what the reference pages say of the
//! code is what the code says.
//!
//! `RATIOND_BLESS=1 cargo test -p rationd --test all book::` writes the generated parts anew.

mod yaml;

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rationd::config::{Sources, load};
use rationd::core::decision::{Reason, Source};
use rationd::serve::tcp::users::Users;
use rationd::wire::command_table::COMMANDS;
use support::reference;

/// More lines and nobody reads it.
const MOST_LINES_OF_README: usize = 150;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What stands beside README.md for people, and every page of the book, by their paths below the root.
fn pages() -> BTreeMap<String, String> {
    let mut paths: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(|name| root().join(name)).into();
    let mut directories = vec![root().join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    let name = |path: &Path| path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
    let read = |path: PathBuf| (name(&path), fs::read_to_string(path).expect("a page is text"));
    let pages: BTreeMap<_, _> = paths.into_iter().map(read).collect();
    assert!(pages.len() > 30, "the pages were not found: {:?}", pages.keys());
    pages
}

/// The lines of a page outside fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Where the links of a page lead, as they are written.
fn links(page: &str) -> Vec<&str> {
    let targets = prose(page).flat_map(|line| line.split("](").skip(1));
    targets.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).collect()
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let heads = prose(page).filter(|line| line.starts_with('#'));
    let anchor = |head: &str| {
        let kept = head.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    heads.map(anchor).collect()
}

/// `docs/a/../b.md` without the detour.
fn plain(path: &Path) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in path.iter() {
        match part.to_str().expect("a plain name") {
            "." => {}
            ".." => assert!(parts.pop().is_some(), "{} leads out of the repository", path.display()),
            name => parts.push(name.to_owned()),
        }
    }
    parts.join("/")
}

fn assert_none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let (mut findings, mut seen) = (Vec::new(), 0);
    for (name, text) in &pages {
        for target in links(text).into_iter().filter(|target| !target.contains("://")) {
            seen += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let here = Path::new(name).parent().expect("a file is in a directory");
            let there = if path.is_empty() { name.clone() } else { plain(&here.join(path)) };
            if !root().join(&there).exists() {
                findings.push(format!("{name}: {target}: there is no {there}"));
            } else if !anchor.is_empty() && !pages.get(&there).is_some_and(|page| anchors(page).contains(anchor)) {
                findings.push(format!("{name}: {target}: {there} has no such heading"));
            }
        }
    }
    assert!(seen > 100, "{seen} links were found");
    assert_none(&findings, "links that lead nowhere");
}

#[test]
fn every_page_is_in_the_table_of_contents_once() {
    let pages = pages();
    let listed: Vec<_> = links(&pages["docs/SUMMARY.md"]).into_iter().map(|page| format!("docs/{page}")).collect();
    let mut findings: Vec<_> =
        listed.iter().filter(|page| !pages.contains_key(*page)).map(|page| format!("{page} is no page")).collect();
    for page in pages.keys().filter(|page| page.starts_with("docs/") && *page != "docs/SUMMARY.md") {
        let times = listed.iter().filter(|listed| *listed == page).count();
        if times != 1 {
            findings.push(format!("{page} is there {times} times"));
        }
    }
    assert_none(&findings, "docs/SUMMARY.md lists each page once");
}

/// `src/lib.rs` shows the page as a module, of which the compiler demands that it is there, and rustdoc that links find it.
#[test]
fn rustdoc_has_the_glossary_and_links_to_it() {
    let text = |path: &str| fs::read_to_string(root().join(path)).expect("a source");
    let page = fs::read_to_string(root().join("docs/concepts/glossary.md")).expect("the glossary");
    assert!(
        text("src/lib.rs").contains("#[doc = include_str!(\"../docs/concepts/glossary.md\")]\npub mod glossary {}")
    );
    for (path, link) in [
        ("src/lib.rs", "[`glossary`]"),
        ("src/core/mod.rs", "[`glossary`](crate::glossary)"),
        ("src/core/leased/mod.rs", "[`glossary`](crate::glossary)"),
    ] {
        assert!(text(path).lines().any(|line| line.starts_with("//!") && line.contains(link)), "{path} has no {link}");
    }
    assert_eq!(links(&page), [""; 0], "links between pages of the book lead nowhere in rustdoc");
    let words = prose(&page).filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split_once(" | "));
    let words: Vec<_> = words.flat_map(|(words, _)| words.split(", ")).filter(|word| *word != "word").collect();
    let doubled: Vec<_> = words.iter().filter(|word| words.iter().filter(|other| other == word).count() > 1).collect();
    assert!(words.len() > 50 && doubled.is_empty(), "a word has one row: {doubled:?} of {}", words.len());
}

#[test]
fn readme_is_short() {
    let lines = pages()["README.md"].lines().count();
    assert!(lines <= MOST_LINES_OF_README, "README.md has {lines} lines: what is more belongs into the book");
}

#[test]
fn every_block_of_commands_is_executed_or_says_why_not() {
    let (mut findings, mut run) = (Vec::new(), 0);
    for (name, text) in pages() {
        let mut above = "";
        for line in text.lines() {
            if ["```sh", "```python"].iter().any(|fence| line.starts_with(fence)) {
                let is_run = above == "<!-- run -->" || above.starts_with("<!-- run with ");
                run += usize::from(is_run);
                if !((is_run || above.starts_with("<!-- not run: ")) && above.ends_with(" -->")) {
                    findings.push(format!("{name}: below {above:?}"));
                }
            }
            if !line.is_empty() {
                above = line;
            }
        }
    }
    assert!(run >= 10, "{run} blocks are executed");
    assert_none(
        &findings,
        "a block of commands stands under `<!-- run -->`, `<!-- run with PROGRAMS -->` or `<!-- not run: why -->`",
    );
}

#[test]
fn every_block_of_rust_is_compiled() {
    let crate_page = fs::read_to_string(root().join("src/lib.rs")).expect("the crate's page");
    let (mut findings, mut blocks) = (Vec::new(), 0);
    for (name, text) in pages() {
        for head in text.lines().filter(|line| line.trim_start().starts_with("```rust")) {
            blocks += 1;
            let is_included = crate_page.contains(&format!("#[doc = include_str!(\"../{name}\")]"));
            // A block that is ignored, or said to fail, would not be held to the client.
            if !is_included || !["```rust", "```rust,no_run"].contains(&head) {
                findings.push(format!("{name}: {head}"));
            }
        }
    }
    assert!(blocks >= 2, "{blocks} blocks of Rust were found");
    assert_none(&findings, "src/lib.rs includes each page with blocks of Rust, for `cargo test --doc`");
}

/// Or a file of users. Templates are none, because a play of Ansible has yet to fill them in.
#[test]
fn every_block_of_toml_is_a_configuration() {
    let (mut findings, mut blocks) = (Vec::new(), 0);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("rationd.toml");
    for (name, text) in pages() {
        let inner = text.split("```toml\n").skip(1).filter_map(|rest| rest.split_once("```")).map(|(inner, _)| inner);
        for inner in inner.filter(|inner| !inner.contains("{{")) {
            blocks += 1;
            if inner.contains("password_sha256") {
                let users = Users::parse(&inner.replace('…', &"0".repeat(64)));
                findings.extend(users.err().map(|error| format!("{name}: {error}")));
                continue;
            }
            fs::write(&file, inner).expect("a file");
            if let Err(errors) = load(&Sources { file: Some(file.clone()), ..Sources::default() }) {
                findings.push(format!("{name}: {errors}"));
            }
        }
    }
    assert!(blocks >= 6, "{blocks} blocks of TOML were found");
    assert_none(&findings, "what a page shows as a configuration is one");
}

/// The words in the first column of the table that stands first behind that heading.
fn first_column(page: &str, heading: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(page)).expect("a page");
    let (_, behind) = text.split_once(heading).unwrap_or_else(|| panic!("{page} has no {heading:?}"));
    let rows =
        behind.lines().skip_while(|line| !line.starts_with("|---")).skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split(", "));
    cells.map(|word| word.trim().trim_matches('`').to_owned()).collect()
}

/// Their meanings are written by hand, but none is missing, and none is there that the daemon does not know.
#[test]
fn every_reason_source_and_command_of_ours_has_its_row() {
    let words = |all: &[&str]| all.iter().map(|word| (*word).to_owned()).collect::<BTreeSet<_>>();
    let (reasons, sources) = (Reason::ALL.map(Reason::as_str), Source::ALL.map(Source::as_str));
    assert_eq!(first_column("docs/reference/errors.md", "## Reasons of a decision\n"), words(&reasons));
    assert_eq!(first_column("docs/reference/errors.md", "## Sources of a decision\n"), words(&sources));
    let ours = ["RATION.", "CL.", "THROTTLE"];
    let commands = COMMANDS.iter().map(|command| command.name.to_uppercase());
    let commands: BTreeSet<_> = commands.filter(|name| ours.iter().any(|start| name.starts_with(start))).collect();
    assert_eq!(first_column("docs/reference/commands.md", "# Commands on the socket\n"), commands);
}

#[test]
fn every_page_begins_with_its_only_title() {
    let mut findings = Vec::new();
    for (name, text) in pages() {
        let titles = prose(&text).filter(|line| line.starts_with("# ")).count();
        if !text.starts_with("# ") || (titles != 1 && name != "docs/SUMMARY.md") {
            findings.push(format!("{name}: {titles} titles"));
        }
    }
    assert_none(&findings, "a page begins with its title");
}

/// Compares what stands between the marks of `page` with `wanted`, or writes it there.
fn assert_generated(page: &str, mark: &str, wanted: &str) {
    let path = root().join(page);
    let text = fs::read_to_string(&path).expect("a page");
    let begin = format!("<!-- generated: {mark} -->\n");
    let (head, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("{page} has no {begin}"));
    let (seen, tail) = rest.split_once("<!-- end -->\n").unwrap_or_else(|| panic!("{page} has no <!-- end -->"));
    let wanted = format!("\n{}\n\n", wanted.trim());
    if std::env::var_os("RATIOND_BLESS").is_some() {
        fs::write(&path, format!("{head}{begin}{wanted}<!-- end -->\n{tail}")).expect("the page is written");
        return;
    }
    let differs = seen.lines().zip(wanted.lines()).find(|(seen, wanted)| seen != wanted);
    assert!(
        seen == wanted,
        "{page} is not what the code says; `RATIOND_BLESS=1 cargo test -p rationd --test all book::` writes it anew\n\
         {differs:#?}"
    );
}

#[test]
fn the_configuration_is_described_as_it_is() {
    assert_generated("docs/reference/config.md", "config", &reference::configuration());
}

#[test]
fn the_commands_are_described_as_they_are() {
    assert_generated("docs/reference/commands.md", "commands", &reference::commands());
}

#[test]
fn the_command_line_is_described_as_it_is() {
    assert_generated("docs/reference/command-line.md", "command-line", &reference::command_line());
}

#[test]
fn the_checks_of_the_doctor_are_described_as_they_are() {
    assert_generated("docs/operate/doctor.md", "doctor", &reference::doctor());
}

#[test]
fn the_metrics_are_described_as_they_are() {
    assert_generated("docs/reference/metrics.md", "metrics", &reference::metrics());
}

#[test]
fn the_errors_are_described_as_they_are() {
    assert_generated("docs/reference/errors.md", "errors", &reference::errors());
}
