//! The house rules that no compiler knows: which room may import which, what may be named where, how
//! long a file may be, and what every file has. Plain text is enough to see them; `clippy.toml`
//! bans the calls that text cannot see reliably.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::imports::Imports;

/// Longest source file, tests included.
const MAX_LINES: usize = 700;

/// Each room and the rooms it may import beside itself. Lower floors know nothing of higher ones,
/// and rooms on one floor do not know each other.
const ROOMS: [(&str, &[&str]); 12] = [
    ("core", &[]),
    ("sync", &[]),
    ("clock", &["core"]),
    ("config", &["core"]),
    ("wire", &["core"]),
    ("store", &["core", "wire", "clock"]),
    ("fleet", &["core", "wire", "clock"]),
    ("client", &["core", "wire", "clock", "sync"]),
    ("serve", &["core", "wire", "clock", "sync", "config", "store", "fleet", "client"]),
    ("cli", &["core", "wire", "clock", "config", "store", "fleet", "client", "serve"]),
    ("main", &["cli"]),
    // A daemon for the examples of the documentation.
    ("example", &["core", "clock", "serve"]),
];

/// Words that only some files may say: the word, where it may stand (prefixes of paths), and why.
const HOMES: [(&str, &[&str], &str); 32] = [
    ("Instant::now", &["src/clock.rs"], "only the clock reads system time"),
    ("SystemTime", &["src/clock.rs"], "only the clock reads system time"),
    (".elapsed(", &["src/clock.rs"], "only the clock reads system time"),
    ("RandomState", &["src/clock.rs"], "only the clock asks for randomness"),
    ("thread_rng", &[], "randomness comes as a seed"),
    ("rand::", &[], "randomness comes as a seed"),
    ("thread::sleep", &[], "nothing sleeps: timers are effects with a deadline"),
    (
        "HashMap",
        &["src/store", "src/fleet", "src/client", "src/serve", "src/cli", "src/config"],
        "its order is random: the core must repeat itself",
    ),
    (
        "HashSet",
        &["src/store", "src/fleet", "src/client", "src/serve", "src/cli", "src/config"],
        "its order is random: the core must repeat itself",
    ),
    ("println!", &["src/cli", "src/main.rs"], "stdout belongs to the command line"),
    ("print!(", &["src/cli", "src/main.rs"], "stdout belongs to the command line"),
    ("dbg!(", &[], "a left-over"),
    ("todo!(", &[], "a left-over"),
    ("unimplemented!(", &[], "a left-over"),
    ("process::exit", &["src/main.rs"], "only main ends the process"),
    ("unsafe ", &[], "it is forbidden"),
    ("bincode", &["src/wire/digest.rs"], "one file names it, so that it can be replaced"),
    ("redis::", &["src/store/"], "one room names the crate, so that it can be replaced"),
    ("quinn", &["src/fleet/"], "one room names the crate, so that it can be replaced"),
    (
        "chitchat",
        &["src/fleet/membership.rs", "src/fleet/transport.rs"],
        "two files name it, so that it can be replaced",
    ),
    ("tonic", &["src/serve/envoy/"], "one room names the crate, so that it can be replaced"),
    ("prost", &["src/serve/envoy/"], "one room names the crate, so that it can be replaced"),
    ("saphyr", &["src/cli/import/"], "one room names the crate, so that it can be replaced"),
    ("rcgen", &["src/cli/cert"], "certificates are made by a command, never by a daemon"),
    (
        "cx.reply(",
        &["src/core/leased/advance.rs", "src/core/concurrent/key/advance.rs"],
        "inputs change what is known of a key, and one file does what follows",
    ),
    ("cx.answer(", &["src/core/leased/advance.rs"], "the same"),
    ("calls.send", &["src/core/leased/advance.rs"], "the same"),
    ("cx.ask(", &["src/core/leased/calls.rs"], "the same: what is under way is sent by its own file, for that one"),
    ("cx.send(", &["src/core/calls.rs"], "the same"),
    ("Flight::send(", &["src/core/leased/calls.rs", "src/core/concurrent/key/advance.rs"], "the same"),
    (
        ".send_again(",
        &["src/core/leased/calls.rs", "src/core/concurrent/key/advance.rs"],
        "the same: a call that was lost is sent again where others are sent",
    ),
    // chitchat's trait is written with it.
    (
        "anyhow",
        &["src/cli", "src/main.rs", "src/fleet/transport.rs"],
        "elsewhere errors are enums that carry what the caller needs",
    ),
];

/// One source file.
struct Source {
    /// Relative to the root of the repository.
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or("");
        inside.split(['/', '.']).next().unwrap_or("")
    }

    /// Lines of code, numbered from 1, with comments and doc comments cut off.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().enumerate();
        lines.map(|(index, line)| (index + 1, line.split("//").next().unwrap_or("")))
    }

    /// The same up to the unit tests.
    fn shipped(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.path.ends_with("/tests.rs");
        self.code().take_while(move |(_, line)| !tests && line.trim() != "#[cfg(test)]")
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `directory`, without what is built or fetched.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry")).collect();
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (name, kind) = (entry.file_name(), entry.file_type().expect("a type"));
        if ["target", ".git", "node_modules"].iter().any(|skipped| name == *skipped) {
            continue;
        }
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// Every text file of the repository.
fn texts() -> Vec<Source> {
    let mut found = Vec::new();
    files(root(), &mut found);
    let relative = |path: &PathBuf| path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
    found
        .iter()
        .filter_map(|path| Some(Source { path: relative(path), text: fs::read_to_string(path).ok()? }))
        .collect()
}

fn sources(below: &str) -> Vec<Source> {
    let sources: Vec<_> =
        texts().into_iter().filter(|file| file.path.starts_with(below) && file.path.ends_with(".rs")).collect();
    assert!(!sources.is_empty(), "no source file below {below}");
    sources
}

/// Fails with all findings at once.
fn assert_none(findings: &[String], rule: &str) {
    let mut list = String::new();
    for finding in findings {
        let _ = writeln!(list, "  {finding}");
    }
    assert!(findings.is_empty(), "{rule}\n{list}");
}

/// The names right behind each `prefix` in a line, also of `prefix{a, b}`.
fn names_behind<'a>(line: &'a str, prefix: &str) -> Vec<&'a str> {
    let word = |text: &'a str| {
        let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        &text[..end]
    };
    let mut names = Vec::new();
    for (at, _) in line.match_indices(prefix) {
        let whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        let rest = &line[at + prefix.len()..];
        match rest.strip_prefix('{') {
            _ if !whole => {}
            Some(group) => {
                names.extend(group.split([',', '}']).map(|part| word(part.trim())).filter(|name| !name.is_empty()))
            }
            None => names.push(word(rest)),
        }
    }
    names
}

#[test]
fn rooms_import_downwards_only() {
    let mut findings = Vec::new();
    for source in sources("src/") {
        let room = source.room();
        if room == "lib" {
            continue;
        }
        let Some((_, allowed)) = ROOMS.iter().find(|(name, _)| *name == room) else {
            findings.push(format!("{}: no room of the architecture", source.path));
            continue;
        };
        // `super::super` in `src/core/lease.rs` is the crate; in `src/core/lease/line.rs` it is the room.
        let depth = source.path.matches('/').count() + usize::from(!source.path.ends_with("mod.rs")) - 1;
        let climb = "super::".repeat(depth.max(1));
        for (number, line) in source.shipped() {
            let climbed = if depth > 1 { names_behind(line, &climb) } else { Vec::new() };
            for name in names_behind(line, "crate::").into_iter().chain(names_behind(line, "rationd::")).chain(climbed)
            {
                let is_room = ROOMS.iter().any(|(known, _)| *known == name);
                if is_room && name != room && !allowed.contains(&name) {
                    findings.push(format!("{}:{number}: {room} must not know {name}", source.path));
                }
            }
        }
    }
    assert_none(&findings, "core <- wire <- store, fleet, client <- serve <- cli <- main");
}

/// Names of the third-party crates in Cargo.toml, as code writes them.
fn third_party() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let names = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let names = names.take_while(|line| !line.starts_with('['));
    let names = names.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.replace('-', "_"));
    let names: Vec<_> = names.filter(|name| !name.starts_with('#')).collect();
    assert!(names.iter().any(|name| name == "tokio"), "the dependencies were not found: {names:?}");
    names
}

#[test]
fn core_and_wire_import_std_only() {
    let crates = third_party();
    let mut findings = Vec::new();
    for source in sources("src/").iter().filter(|source| matches!(source.room(), "core" | "wire" | "client" | "clock"))
    {
        // `itoa` writes replies and `bincode` digests: wire alone, under the daemon's feature. The client for tokio
        // has a feature of its own. The daemon's clock is tokio's, so that tests can pause it: by its feature alone.
        let allowed: &[&str] = match source.room() {
            "wire" => &["itoa", "bincode"],
            "clock" => &["tokio"],
            "client" if source.path.starts_with("src/client/pipelined/") => &["tokio"],
            _ => &[],
        };
        for (number, line) in source.shipped() {
            let named = crates.iter().find(|name| !names_behind(line, &format!("{name}::")).is_empty());
            if let Some(name) = named.filter(|name| !allowed.contains(&name.as_str())) {
                findings.push(format!("{}:{number}: names {name}", source.path));
            }
        }
    }
    assert_none(&findings, "what applications embed names no third-party crate");
}

#[test]
fn words_stay_in_their_homes() {
    let mut findings = Vec::new();
    for source in sources("src/") {
        for (word, homes, reason) in HOMES {
            // Where our own `store::redis` is imported, `redis::` means that.
            let ours = word == "redis::" && source.text.contains("use crate::store::redis");
            if ours || homes.iter().any(|home| source.path.starts_with(home)) {
                continue;
            }
            for (number, line) in source.shipped() {
                let named = line.match_indices(word).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
                        && !line[..at].ends_with("store::")
                        && !line[..at].ends_with("super::")
                        && !line[..at].ends_with("self::")
                });
                if named {
                    findings.push(format!("{}:{number}: `{word}`: {reason}", source.path));
                }
            }
        }
    }
    assert_none(&findings, "some words belong to one place");
}

/// Words that only `advance.rs` may name (`HOMES`) would not help if other files could call whichever of its functions sends.
#[test]
fn one_function_sends_what_leaves_a_key() {
    for (path, sends) in [
        ("src/core/leased/advance.rs", ["calls.send", "cx.reply("]),
        ("src/core/concurrent/key/advance.rs", ["Flight::send(", "cx.reply("]),
    ] {
        let source = sources(path).remove(0);
        let code: Vec<_> = source.shipped().map(|(_, line)| line.trim_start()).collect();
        let visible: Vec<_> = code.iter().filter(|line| line.starts_with("pub")).collect();
        assert!(
            matches!(visible[..], [line] if line.starts_with("pub(super) fn advance(")),
            "{path}: inputs call `advance` with a wish, and no other function of the file: {visible:#?}"
        );
        for word in sends {
            assert!(
                code.iter().any(|line| line.contains(word)),
                "{path}: `{word}` is not there: HOMES names another file"
            );
        }
    }
}

#[test]
fn shipped_code_states_why_it_cannot_fail() {
    let mut findings = Vec::new();
    for source in sources("src/") {
        for (number, line) in source.shipped() {
            if line.contains(".unwrap()") || line.contains(".expect(\"\")") {
                findings.push(format!("{}:{number}", source.path));
            }
        }
    }
    assert_none(&findings, "write expect(\"why this is impossible\") or handle it");
}

#[test]
fn files_import_downwards_only() {
    let mut findings = Vec::new();
    for (root, least) in [("src/", 100), ("simulations/src/", 100)] {
        let sources = sources(root);
        let shipped = |source: &Source| source.shipped().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        let module = |path: &str| {
            let inside =
                path.strip_prefix(root).and_then(|path| path.strip_suffix(".rs")).expect("a source of its root");
            inside.strip_suffix("/mod").unwrap_or(inside).replace('/', "::")
        };
        let all = sources.iter().map(|source| (module(&source.path), shipped(source)));
        let modules: BTreeMap<_, _> = all.filter(|(name, _)| name != "lib" && name != "main").collect();
        assert!(modules.len() > least, "{root} was not read");
        let circles = Imports::read(&modules).circles();
        findings.extend(circles.iter().map(|circle| format!("{root}: {}", circle.join(", "))));
    }
    assert_none(&findings, "files import downwards: what two of them need goes into a third below both");
}

#[test]
fn imports_are_seen_however_they_are_written() {
    let circles = |modules: [(&str, &str); 2]| {
        Imports::read(&modules.map(|(name, text)| (name.to_owned(), text.to_owned())).into()).circles().len()
    };
    for (high, low) in [
        ("use super::low::Thing;", "use crate::high;"),
        ("pub use crate::{low::{Thing, other}};", "fn f() -> super::high::Thing {}"),
        ("pub(in crate::low) fn f() {}", "use super::{\n    high::Thing,\n};"),
    ] {
        assert_ne!(circles([("high", high), ("low", low)]), 0, "{high} {low}");
        assert_eq!(circles([("high", high), ("low", "use std::high; fn low::high() {}")]), 0, "{high}");
    }
    let part = ("high::part", "use super::Thing;");
    assert_ne!(circles([("high", "mod part; fn f() { part::g() }"), part]), 0);
    assert_eq!(circles([("high", "mod part; fn f() { Thing::g() }"), part]), 0);
}

#[test]
fn files_are_short() {
    let long = sources("src/").into_iter().filter(|source| source.text.lines().count() > MAX_LINES);
    let findings: Vec<_> =
        long.map(|source| format!("{}: {} lines", source.path, source.text.lines().count())).collect();
    assert_none(&findings, "a file holds one meaning; with so many lines it rarely does");
}

#[test]
fn every_file_begins_with_what_it_is_about() {
    let code = sources("src/").into_iter().chain(sources("tests/")).chain(sources("simulations/"));
    let findings: Vec<_> = code.filter(|source| !source.text.starts_with("//! ")).map(|source| source.path).collect();
    assert_none(&findings, "a file begins with a module doc");
}

#[test]
fn every_public_item_of_the_client_has_an_example() {
    let (mut findings, mut seen) = (Vec::new(), 0);
    for source in sources("src/client/").iter().filter(|source| !source.path.ends_with("/tests.rs")) {
        let mut example = false;
        for (number, line) in source.text.lines().enumerate() {
            let line = line.trim_start();
            if ["pub fn ", "pub async fn ", "pub struct ", "pub enum "].iter().any(|item| line.starts_with(item)) {
                seen += 1;
                if !example {
                    findings.push(format!("{}:{}", source.path, number + 1));
                }
            }
            example = line.starts_with("///") && (example || line.contains("```")) || line.starts_with('#') && example;
        }
    }
    assert!(seen > 20, "{seen} items were found");
    assert_none(&findings, "an application copies examples: each is run by cargo test --doc");
}

#[test]
fn every_file_of_tests_is_run() {
    let main = texts().into_iter().find(|source| source.path == "tests/main.rs").expect("the program of all tests");
    let files = || sources("tests/").into_iter().filter(|source| source.path.matches('/').count() == 1);
    let name = |source: &Source| source.path["tests/".len()..source.path.len() - ".rs".len()].to_owned();
    let apart = ["main", "allocation"];
    let names: Vec<_> = files().map(|source| name(&source)).filter(|name| !apart.contains(&name.as_str())).collect();
    let mut findings = Vec::new();
    for name in &names {
        if !main.text.lines().any(|line| line == format!("mod {name};")) {
            findings.push(format!("tests/{name}.rs is no module of tests/main.rs"));
        }
        // `tests/run` asks for the tests whose path holds `FILE::`.
        let other = names.iter().filter(|other| *other != name && other.ends_with(name.as_str()));
        findings.extend(other.map(|other| format!("tests/{other}.rs would run as a part of tests/{name}.rs")));
    }
    assert!(names.len() > 50, "few files of tests were found: {names:?}");
    assert_none(&findings, "tests/run runs each file of tests, and each once");
}

#[test]
fn tests_that_docs_name_are_there() {
    let texts = texts();
    let docs = texts.iter().filter(|source| source.path.starts_with("docs/")).map(|source| source.text.as_str());
    let docs: String = docs.collect();
    let code = |path: String| texts.iter().find(|source| source.path == path).map_or("", |source| source.text.as_str());
    let (mut findings, mut named) = (Vec::new(), 0);
    for word in docs.split('`').skip(1).step_by(2) {
        let is_there = if let Some((file, test)) = word.split_once("::").filter(|(file, _)| !file.contains([' ', ':']))
        {
            file == "file" || code(format!("tests/{file}.rs")).contains(&format!("fn {test}("))
        } else if word.starts_with("scenarios/") && word.ends_with(".toml") {
            texts.iter().any(|source| source.path == format!("simulations/{word}"))
        } else {
            continue;
        };
        named += 1;
        if !is_there {
            findings.push(word.to_owned());
        }
    }
    assert!(named > 80, "{named} tests are named in docs/");
    assert_none(&findings, "a test that docs/ names is there");
}

#[test]
fn mod_files_hold_no_code() {
    let mut findings = Vec::new();
    for source in sources("src/").into_iter().filter(|source| source.path.ends_with("/mod.rs")) {
        let mut in_use = false;
        for (number, line) in source.code() {
            let line = line.trim();
            let declares = ["mod ", "pub mod ", "pub(crate) mod ", "#[cfg(", "#[allow(", "#![allow("]
                .iter()
                .any(|start| line.starts_with(start));
            in_use |= ["pub use ", "pub(crate) use ", "pub(super) use "].iter().any(|start| line.starts_with(start));
            if !(line.is_empty() || declares || in_use) {
                findings.push(format!("{}:{number}: {line}", source.path));
            }
            in_use &= !line.ends_with(';');
        }
    }
    assert_none(&findings, "mod.rs holds docs, mod and pub use only");
}

#[test]
fn the_map_of_rooms_has_every_module_of_the_core() {
    let texts = texts();
    let text = |path: &str| texts.iter().find(|source| source.path == path).expect("a source").text.as_str();
    let map: String = text("src/lib.rs").lines().filter(|line| line.starts_with("//! |")).collect();
    let modules = text("src/core/mod.rs").lines().filter_map(|line| line.strip_suffix(';'));
    // Links of the crate's page can lead to what is public only.
    let modules = modules.filter_map(|line| match line.strip_prefix("pub mod ") {
        Some(name) => Some(format!("[`core::{name}`]")),
        None => line.strip_prefix("mod ").map(|name| format!("`core/{name}`")),
    });
    let modules: Vec<_> = modules.collect();
    assert!(modules.len() > 30, "src/core/mod.rs was not read");
    let missing: Vec<_> = modules.into_iter().filter(|name| !map.contains(name)).collect();
    assert_none(&missing, "the table in src/lib.rs says what each module of the core is for");
}

#[test]
fn no_module_is_a_drawer() {
    let drawers = ["utils", "util", "common", "types", "helpers", "misc"];
    let named = |source: &Source| {
        let path = Path::new(&source.path);
        path.iter()
            .any(|part| drawers.iter().any(|drawer| Path::new(part).file_stem().is_some_and(|stem| stem == *drawer)))
    };
    let findings: Vec<_> = sources("src/").into_iter().filter(named).map(|source| source.path).collect();
    assert_none(&findings, "a module is named after its concept");
}

#[test]
fn no_path_of_a_machine_is_written_down() {
    let places = ["work", "root", "home", "Users"].map(|name| format!("/{name}/"));
    let mut findings = Vec::new();
    for source in texts().iter().filter(|source| !source.path.ends_with(".lock")) {
        for (index, line) in source.text.lines().enumerate() {
            if places.iter().any(|place| line.contains(place.as_str())) {
                findings.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    assert_none(&findings, "a repository names no place of the machine it was written on");
}

#[test]
fn every_package_takes_the_workspace_lints() {
    let manifests = texts().into_iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let without = manifests.filter(|file| !file.text.contains("[lints]\nworkspace = true"));
    let findings: Vec<_> = without.map(|file| file.path).collect();
    assert_none(&findings, "unsafe code and missing docs are forbidden by the workspace's lints");
}
