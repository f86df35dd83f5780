//! What is made from the command line and the schema for others: completions that shells take, manual pages that `man` reads,
//! a JSON Schema, and `rationd leases`.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::process::{Daemon, without_settings};
use crate::support::server::Server;
use crate::support::skip::skipped;

fn rationd(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    let output = command.args(words).output().expect("cargo built it");
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

fn text(words: &[&str]) -> String {
    String::from_utf8(rationd(words).stdout).expect("text")
}

/// Whether a program is on PATH.
fn has(program: &str) -> bool {
    Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

#[test]
fn each_shell_gets_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = text(&["completions", shell]);
        for word in ["explain", "import-envoy", "doctor", "cost"] {
            assert!(script.contains(word), "{shell} is not told of {word}");
        }
    }
}

#[test]
fn bash_completes_a_command() {
    let script = text(&["completions", "bash"]);
    let asked = "COMP_WORDS=(rationd doc); COMP_CWORD=1; _rationd rationd doc rationd; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["-c", &format!("{script}\n{asked}")]).output().expect("there is a bash");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "doctor", "{output:?}");
}

/// What each shell is asked has it read the whole script, and say how a word goes on or that it knows the command. elvish completes on a
/// terminal only, so there it is handed a completer's place to put one into. PowerShell is not there for the tests.
#[test]
fn other_shells_take_what_is_written_for_them() {
    for (shell, asked, told) in [
        ("zsh", "autoload -Uz compinit; fpath=($PWD $fpath); compinit -u -d dump; echo $_comps[rationd]", "_rationd"),
        ("fish", "source _rationd; complete -C 'rationd doc'", "doctor\tLook at configuration"),
        ("elvish", "", "doctor"),
    ] {
        if !has(shell) {
            skipped(&format!("completions of {shell} are read by {shell}"), "it is not installed", shell);
            continue;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut script = text(&["completions", shell]);
        let mut asked = asked.to_owned();
        if shell == "elvish" {
            script = script.replace("edit:completion:arg-completer", "completers");
            script = script.replace("edit:complex-candidate", "candidate");
            asked = format!(
                "var completers = [&]; fn candidate {{|word &display=''| put $word }}\n{script}\n\
                 $completers[rationd] rationd '' | to-lines"
            );
        }
        fs::write(directory.path().join("_rationd"), &script).expect("a file");
        let mut command = Command::new(shell);
        command.args(if shell == "zsh" { &["-fc"][..] } else { &["-c"] }).arg(asked).current_dir(directory.path());
        let output = command.env("HOME", directory.path()).output().expect("it is there");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(told), "{shell}: {output:?}");
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let said = text(&["man", "--dir", directory.path().to_str().expect("a plain path")]);
    let mut names: Vec<_> = fs::read_dir(directory.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    names.sort();
    for name in ["rationd.1", "rationd-serve.1", "rationd-cert-ca.1", "rationd-config-import-envoy.1"] {
        assert!(names.iter().any(|known| known == name), "{name} is not among {names:?}");
    }
    assert!(said.starts_with(&format!("{} pages", names.len())), "{said}");
    for name in &names {
        let page = fs::read_to_string(directory.path().join(name)).expect("a page");
        assert!(page.contains(".TH ") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    assert_eq!(
        text(&["man"]).trim_end(),
        fs::read_to_string(directory.path().join("rationd.1")).expect("a page").trim_end()
    );
    if has("man") {
        let path = directory.path().join("rationd-doctor.1");
        let output = Command::new("man").args(["--warnings", "-l"]).arg(&path).env("MANPAGER", "cat").output();
        let output = output.expect("it is there");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    } else {
        skipped("man reads a manual page", "it is not installed", "man");
    }
}

#[test]
fn the_schema_knows_each_key_and_its_default() {
    let schema: Value = serde_json::from_str(&text(&["config", "schema"])).expect("JSON");
    let tables = &schema["properties"];
    for described in rationd::config::reference() {
        let table = match described.table.trim_matches(['[', ']']) {
            "policy.NAME" => &tables["policy"]["additionalProperties"],
            "policy.NAME.override.\"KEY\"" => {
                &tables["policy"]["additionalProperties"]["properties"]["override"]["additionalProperties"]
            }
            "descriptors.DOMAIN" => &tables["descriptors"]["additionalProperties"]["items"],
            section => &tables[section],
        };
        let key = &table["properties"][described.name];
        assert!(key["type"].is_string() || key["type"].is_array(), "{described:?}: {key}");
        let default = described.default.map(|default| match key["type"].as_str() {
            Some("boolean" | "integer") => serde_json::from_str(default).expect("a number or a truth value"),
            _ => Value::from(default),
        });
        assert_eq!(key.get("default").cloned(), default, "{described:?}");
        assert_eq!(table["additionalProperties"], false, "a slip is marked: {described:?}");
    }
    assert_eq!(tables["store"]["properties"]["confirm"]["enum"], serde_json::json!(["auto", "on", "off"]));
}

#[test]
fn leases_are_listed_the_largest_first() {
    let server = Server::plain();
    let policies = "[policy.api]\nlimits = [\"1000/1d fixed\"]\n[policy.few]\nlimits = [\"3/1d fixed\"]\n";
    let daemon = Daemon::start(&format!("[store]\nurl = {:?}\n{policies}", server.url()));
    // The second check finds tokens that the first one has leased beside its own, or has them leased.
    for command in ["RATION.CHECK few k", "RATION.CHECK api k", "RATION.CHECK api k", "RATION.CHECK api k"] {
        let _ = daemon.ask(command);
    }
    let socket = daemon.socket();
    let socket = socket.to_str().expect("a plain path");
    let listed: Value = serde_json::from_str(&text(&["-s", socket, "-o", "json", "leases"])).expect("JSON");
    let held: Vec<_> =
        listed.as_array().expect("a list").iter().map(|key| key["held"].as_u64().expect("a number")).collect();
    assert!(!held.is_empty() && held.iter().all(|held| *held > 0) && held.is_sorted_by(|a, b| a >= b), "{listed:#}");
    let table = text(&["-s", socket, "leases", "--count", "1"]);
    let sum: u64 = held.iter().sum();
    assert!(table.ends_with(&format!("{sum} tokens of {} keys are held\n", held.len())), "{table}");
    assert_eq!(table.lines().count(), 3, "{table}");
}
