//! Keys are counted under a digest, and who knows what it is computed under may look for two keys with one digest.
//! Daemons that share a secret share counts; one that has another, or none, counts for itself; the secret itself is
//! nowhere to be seen.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rationd::core::key::Digest;
use support::process::{Daemon, without_settings};
use support::server::Server;

const SECRET: &str = "correct horse battery staple";

fn secret(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    path.display().to_string()
}

fn daemon(store: &str, secret: Option<&str>) -> Daemon {
    let secret = secret.map_or(String::new(), |path| format!("digest_secret_file = \"{path}\"\n"));
    Daemon::start(&format!("[store]\nurl = \"{store}\"\n{secret}[policy.quota]\nlimits = [\"10/366d fixed\"]\n"))
}

/// How many of the quota are left after a check of this cost.
fn left(daemon: &Daemon, cost: u64) -> i64 {
    daemon.ask(&format!("RATION.CHECK quota u1 COST {cost}")).items()[2].int()
}

#[test]
fn daemons_with_one_secret_share_counts_and_others_do_not() {
    let (redis, directory) = (Server::plain(), tempfile::tempdir().expect("a directory"));
    let one = secret(directory.path(), "one", &format!("{SECRET}\n"));
    let same = secret(directory.path(), "same", &format!("{SECRET}\r\n"));
    let other = secret(directory.path(), "other", "another secret, as long\n");
    let url = redis.url();
    let daemons =
        [Some(one.as_str()), Some(same.as_str()), Some(other.as_str()), None].map(|secret| daemon(&url, secret));
    // Each asks for so much that nothing is left to be leased ahead.
    let seen = daemons.each_ref().map(|daemon| left(daemon, 5));
    assert_eq!(seen, [5, 0, 5, 5], "left of ten after five, where the first two count together");
    let public = Digest::of("quota", b"u1").to_string();
    for (index, daemon) in daemons.iter().enumerate() {
        let told = daemon.ask("RATION.EXPLAIN quota u1").text().to_owned();
        assert_eq!(told.contains(&public), index == 3, "{told}");
        let keys = daemon.ask("RATION.KEYS").text().to_owned();
        assert!(keys.contains("u1") && keys.contains(&public) == (index == 3), "{keys}");
        assert!(!daemon.log().contains(SECRET), "the secret is in the log");
    }
    let stored = format!("{:?}", redis.ask("KEYS *").expect("it is there"));
    assert_eq!(stored.matches(&public).count(), 1, "{stored}");
}

#[test]
fn embedded_store_lists_and_explains_keys_under_the_secret() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon("memory:", Some(&secret(directory.path(), "one", SECRET)));
    assert_eq!(left(&daemon, 4), 6);
    let keys = daemon.ask("RATION.KEYS").text().to_owned();
    assert!(keys.contains("u1") && !keys.contains(&Digest::of("quota", b"u1").to_string()), "{keys}");
    assert!(daemon.ask("RATION.RESET quota u1").text().contains("OK"));
    assert_eq!(left(&daemon, 1), 9, "what is listed is what is counted");
}

#[test]
fn secrets_that_are_none_are_refused_with_what_was_wanted() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| secret(directory.path(), name, text);
    let nowhere = directory.path().join("nowhere").display().to_string();
    for (path, wanted) in [
        (file("short", "fifteen letters"), "has 15 characters; one line of at least 16 characters was wanted"),
        (
            file("long", "a first line of some length\nand a second"),
            "has 2 lines; one line of at least 16 characters was wanted",
        ),
        (file("empty", "\n"), "has 0 characters"),
        (nowhere, "cannot be read"),
    ] {
        let config = directory.path().join("rationd.toml");
        fs::write(&config, format!("[store]\ndigest_secret_file = \"{path}\"\n")).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        let output = command.arg("-c").arg(&config).arg("serve").output().expect("cargo built it");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{told}");
        assert!(told.contains("store.digest_secret_file") && told.contains(wanted), "{wanted}: {told}");
        assert!(!told.contains("fifteen letters") && !told.contains("and a second"), "{told}");
    }
}
