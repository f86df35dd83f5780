//! `record.file` and `rationd plan`: what daemons record, and what other limits would have done to it.

use crate::support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rationd::serve::recording::file::{self, Event};
use serde_json::Value;
use support::poll::wait_until;
use support::process::{Daemon, without_settings};
use support::server::Server;

/// What a daemon has of `limits`, beside the policy `other` with 100 an hour.
fn config(head: &str, limits: &str) -> String {
    format!(
        "{head}[record]\nfile = \"arrivals\"\n[policy.api]\nlimits = [{limits}]\n\
         [policy.other]\nlimits = [\"100/1h fixed from-first\"]\n"
    )
}

fn recorded(daemon: &Daemon) -> PathBuf {
    daemon.directory().join("arrivals")
}

/// Waits until so many arrivals are in the daemon's file.
fn wait_for(daemon: &Daemon, count: usize) {
    let has = || file::read(&recorded(daemon)).map_or(0, |read| read.arrivals.len());
    wait_until("all is recorded", 10, || has() == count);
}

/// Runs `plan` for a new configuration of `api`'s settings, against what the daemons have recorded.
fn plan(daemons: &[&Daemon], settings: &str, words: &[&str]) -> Output {
    let new = daemons[0].directory().join("new.toml");
    let text = format!("[policy.api]\n{settings}\n[policy.other]\nlimits = [\"100/1h fixed from-first\"]\n");
    std::fs::write(&new, text).expect("a file");
    plan_with(daemons, &new, words)
}

fn plan_with(daemons: &[&Daemon], new: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("--config").arg(daemons[0].config()).arg("plan").arg(new);
    for daemon in daemons {
        command.arg("--from").arg(recorded(daemon));
    }
    command.args(words).output().expect("cargo built it")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Checks each of these keys so often, one after another.
fn check(daemon: &Daemon, policy: &str, times: usize, keys: &[&str]) {
    let mut connection = daemon.connect().expect("it listens");
    for _ in 0..times {
        for key in keys {
            connection.ask(&[b"RATION.CHECK", policy.as_bytes(), key.as_bytes()]).expect("an answer");
        }
    }
}

const FIVE: &str = "\"5/1h fixed from-first\"";

#[test]
fn the_same_configuration_changes_nothing_and_ends_as_it_was_recorded() {
    let daemon = Daemon::start(&config("", FIVE));
    check(&daemon, "api", 8, &["a", "b"]);
    let _ = daemon.ask("RATION.REFUND api a 3");
    check(&daemon, "api", 5, &["a"]);
    let _ = daemon.ask("RATION.RESET api b");
    check(&daemon, "api", 2, &["b"]);
    check(&daemon, "other", 3, &["a"]);
    // A peek charges nothing and is none.
    let _ = daemon.ask("RATION.CHECK api a PEEK");
    wait_for(&daemon, 16 + 1 + 5 + 1 + 2 + 3);
    let told = json(&plan(&[&daemon], &format!("limits = [{FIVE}]"), &["-o", "json", "--max-newly-denied", "0"]));
    let all = &told["all"];
    assert_eq!((&all["checks"], &all["newly_denied"], &all["newly_admitted"]), (&26.into(), &0.into(), &0.into()));
    assert_eq!((&all["denied"], &all["unlike_recorded"]), (&8.into(), &0.into()), "{told}");
    assert_eq!(told["differences"], serde_json::json!([]));
}

#[test]
fn a_tighter_limit_says_whom_it_hits_and_fails_where_that_is_too_much() {
    let daemon = Daemon::start(&config("", FIVE));
    check(&daemon, "api", 5, &["heavy"]);
    check(&daemon, "api", 1, &["light", "lighter"]);
    check(&daemon, "other", 13, &["a"]);
    wait_for(&daemon, 20);
    let three = "limits = [\"3/1h fixed from-first\"]";
    let output = plan(&[&daemon], three, &["-o", "json", "--max-newly-denied", "9.9%"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = json(&output);
    assert_eq!(told["policies"]["api"]["newly_denied"], 2, "{told}");
    assert_eq!(told["policies"]["other"]["newly_denied"], 0);
    assert_eq!((told["keys"].as_array().map(Vec::len), &told["keys"][0]["newly_denied"]), (Some(1), &2.into()));
    assert_eq!(told["differences"][0]["policy"], "api");
    assert_eq!(plan(&[&daemon], three, &["--max-newly-denied", "10%"]).status.code(), Some(0));
    assert_eq!(told["differences"][0]["starts_anew"], serde_json::json!([]), "other numbers");
    let other = plan(&[&daemon], "limits = [\"5/1h fixed\"]", &[]);
    let other = String::from_utf8(other.stdout).expect("text");
    assert!(other.contains("! \"5/1h fixed\" starts anew: in its place was 5/1h fixed from-first\n"), "{other}");
    let looser = json(&plan(&[&daemon], "unlimited = true", &["-o", "json"]));
    assert_eq!((&looser["all"]["newly_denied"], &looser["all"]["checks"]), (&0.into(), &20.into()));
    // A policy in the shadow denies nobody.
    let shadow = json(&plan(&[&daemon], &format!("{three}\nshadow = true"), &["-o", "json"]));
    assert_eq!(shadow["all"]["would_be_denied"], 0, "{shadow}");
    let text = String::from_utf8(plan(&[&daemon], three, &[]).stdout).expect("text");
    assert!(text.contains("api") && text.contains("(digest ") && text.contains("100 %"), "{text}");
}

#[test]
fn overrides_are_found_by_digest_and_patterns_by_recorded_keys() {
    let blocked = format!("limits = [{FIVE}]\n[policy.api.override.bot]\nblocked = true");
    let pattern = format!("limits = [{FIVE}]\n[policy.api.override.\"bot*\"]\nblocked = true");
    let keyless = Daemon::start(&config("", FIVE));
    check(&keyless, "api", 2, &["bot", "bots", "man"]);
    wait_for(&keyless, 6);
    assert_eq!(json(&plan(&[&keyless], &blocked, &["-o", "json"]))["all"]["newly_denied"], 2);
    let output = plan(&[&keyless], &pattern, &["-o", "json"]);
    assert_eq!(json(&output)["all"]["newly_denied"], 0);
    assert!(String::from_utf8_lossy(&output.stderr).is_empty(), "{output:?}");
    let output = plan(&[&keyless], &pattern, &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("record.keys"), "{output:?}");
    let with_keys = Daemon::start(&config("", FIVE).replace("[record]\n", "[record]\nkeys = true\n"));
    check(&with_keys, "api", 2, &["bot", "bots", "man"]);
    wait_for(&with_keys, 6);
    let told = json(&plan(&[&with_keys], &pattern, &["-o", "json"]));
    assert_eq!((&told["all"]["newly_denied"], &told["keys"][0]["key"]), (&4.into(), &"bot".into()), "{told}");
}

/// Two daemons that lease from one Redis: the replay leases, too, so the limit is that of both.
#[test]
fn nodes_that_share_a_store_are_replayed_together() {
    let redis = Server::plain();
    let store = format!("[store]\nurl = \"{}\"\n", redis.url());
    let daemons = [0, 1].map(|_| Daemon::start(&config(&store, "\"20/1h fixed from-first\"")));
    for _ in 0..15 {
        daemons.iter().for_each(|daemon| check(daemon, "api", 1, &["k"]));
    }
    daemons.iter().for_each(|daemon| wait_for(daemon, 15));
    let both = [&daemons[0], &daemons[1]];
    let told = json(&plan(&both, "limits = [\"20/1h fixed from-first\"]", &["-o", "json"]));
    assert_eq!((&told["all"]["denied"], &told["all"]["newly_denied"]), (&10.into(), &0.into()), "{told}");
    let told = json(&plan(&both, "limits = [\"12/1h fixed from-first\"]", &["-o", "json"]));
    assert_eq!((&told["all"]["newly_denied"], &told["recorded"]["nodes"]), (&8.into(), &2.into()), "{told}");
    // One recording stands for two nodes.
    let told = json(&plan(&both[..1], "limits = [\"20/1h fixed from-first\"]", &["-o", "json", "--nodes", "2"]));
    let denied = told["all"]["denied"].as_u64().expect("a number");
    assert!((3..=7).contains(&denied), "of 15 about 10 pass where another node has as many: {told}");
}

/// Limits on trial are counted, whatever the store, and deny nobody; keys with an override have none.
#[test]
fn a_candidate_is_counted_and_denies_nobody() {
    let redis = Server::plain();
    // Where the machine has much else to do the store may take longer than the default, and then no limit decides.
    for store in [String::new(), format!("[store]\nurl = \"{}\"\ntimeout = \"5s\"\n", redis.url())] {
        let daemon = Daemon::start(&format!(
            "{store}[policy.api]\nlimits = [\"10/1h fixed from-first\"]\ncandidate = [\"4/1h fixed from-first\"]\n\
             [policy.api.override.vip]\nunlimited = true\n"
        ));
        check(&daemon, "api", 12, &["a", "vip"]);
        let _ = daemon.ask("RATION.MCHECK 2 api b 3 api c 5");
        let _ = daemon.ask("RATION.CHECK api a PEEK");
        let tried = |verdict| {
            let labels = ["policy=\"api\"", verdict];
            daemon.metrics().sum("rationd_candidate_checks_total", &labels)
        };
        // Of a the first four, and b's three; c's five are more than there is.
        wait_until("all is counted", 5, || tried("verdict=\"allow\"") + tried("verdict=\"deny\"") == 14.0);
        assert_eq!((tried("verdict=\"allow\""), tried("verdict=\"deny\"")), (5.0, 9.0), "{store}");
        let denied = daemon.metrics().sum("rationd_checks_total", &["policy=\"api\"", "verdict=\"deny\""]);
        assert_eq!(denied, 2.0, "{store}");
        // Nobody has asked for what a candidate decides, so that it is in no sum of what was asked for.
        for metric in ["rationd_checks_total", "rationd_checks_waited_total", "rationd_checks_near_limit_total"] {
            let (all, asked) = (daemon.metrics().sum(metric, &[]), daemon.metrics().sum(metric, &["policy=\"api\""]));
            assert_eq!(all, asked, "{metric}: {store}");
        }
        assert!(daemon.ask("RATION.POLICIES").text().contains("\"candidate\":[\"4/1h fixed from-first\"]"));
    }
}

#[test]
fn what_is_no_recording_of_this_configuration_is_refused() {
    let daemon = Daemon::start(&config("", FIVE));
    let new = daemon.config();
    let of_nothing = plan_with(&[&daemon], &new, &[]);
    assert!(String::from_utf8_lossy(&of_nothing.stderr).contains("nothing is recorded"), "{of_nothing:?}");
    check(&daemon, "api", 1, &["k"]);
    wait_for(&daemon, 1);
    assert_eq!(file::read(&recorded(&daemon)).expect("arrivals").arrivals[0].event, Event::Admitted);
    let secret = daemon.directory().join("secret");
    std::fs::write(&secret, "0123456789abcdef").expect("a file");
    let text = std::fs::read_to_string(daemon.config()).expect("a file");
    std::fs::write(daemon.config(), format!("{text}\n[store]\ndigest_secret_file = {secret:?}\n")).expect("a file");
    let other = plan_with(&[&daemon], &new, &[]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("another store.digest_secret_file"), "{other:?}");
    std::fs::write(recorded(&daemon), "a diary").expect("a file");
    let alien = plan_with(&[&daemon], &new, &[]);
    assert!(String::from_utf8_lossy(&alien.stderr).contains("no file of arrivals"), "{alien:?}");
}

/// What came last is still on its way to the file when the daemon is asked to end.
#[test]
fn a_daemon_that_ends_in_order_has_recorded_all() {
    let mut daemon = Daemon::start(&config("", FIVE));
    check(&daemon, "api", 1, &["a"]);
    wait_for(&daemon, 1);
    check(&daemon, "other", 30, &["a", "b"]);
    assert!(daemon.terminate().success());
    assert_eq!(file::read(&recorded(&daemon)).expect("arrivals").arrivals.len(), 61);
}

/// A daemon does not write over what it has not written.
#[test]
fn another_file_is_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let diary = directory.path().join("diary");
    std::fs::write(&diary, "a diary").expect("a file");
    let config = directory.path().join("rationd.toml");
    let socket = directory.path().join("s");
    std::fs::write(&config, format!("[listen]\nsocket = {socket:?}\nadmin = \"off\"\n[record]\nfile = {diary:?}\n"))
        .expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    let ended = command.arg("--config").arg(&config).arg("serve").output().expect("cargo built it");
    assert_eq!(ended.status.code(), Some(71), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("record.file"), "{ended:?}");
    assert_eq!(std::fs::read(&diary).expect("a file"), b"a diary");
}
