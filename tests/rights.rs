//! Who may do what: commands that concern other clients, holds of others, and what may be given back.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rationd::core::policy::{PolicySet, PolicySpec};
use support::daemon::{Client, TestDaemon, until};
use support::skip::skipped;

const OTHERS: [&str; 5] = ["RATION.RESET api k", "RATION.RELOAD", "RATION.KEYS", "RATION.TOP", "RATION.DENIALS"];

fn left(client: &mut Client, key: &str) -> String {
    let told = client.ask(&format!("RATION.CHECK api {key} PEEK"));
    told.split(' ').nth(2).map(str::to_owned).unwrap_or(told)
}

#[test]
fn what_concerns_others_is_for_administrators() {
    let daemon = TestDaemon::with(|options| options.limits.admin_uids = Some(vec![u32::MAX - 1]));
    let mut client = daemon.client();
    assert!(client.ask("RATION.CHECK api k COST 2").starts_with("0 "));
    for line in OTHERS {
        let name = line.split(' ').next().unwrap();
        let refused = client.ask(&line.to_lowercase());
        assert!(refused.starts_with(&format!("-NOPERM {name} is for administrators: uid ")), "{refused}");
        assert!(refused.contains(" is not in listen.admin_uids"), "{refused}");
        assert_eq!(client.ask("MULTI"), "OK");
        assert_eq!(client.ask(line), "QUEUED");
        assert!(client.ask("EXEC").starts_with("-NOPERM"), "{line} in a transaction");
    }
    assert_eq!(left(&mut client, "k"), "3", "nobody has forgotten it");
    for line in ["RATION.STATS", "RATION.POLICIES", "RATION.EXPLAIN api k"] {
        assert!(client.ask(line).starts_with(['{', '[']), "{line} is for everybody");
    }
    assert_eq!(client.ask("RATION.REFUND api k 1"), "OK");
}

#[test]
fn the_daemons_own_user_is_an_administrator() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert!(client.ask("RATION.CHECK api k COST 2").starts_with("0 "));
    assert_eq!(client.ask("RATION.RESET api k"), "OK");
    assert_eq!(left(&mut client, "k"), "5");
    assert!(client.ask("RATION.KEYS").starts_with(['{', '[']));
}

/// A command of the shipped program, as that user.
fn run_as(uid: u32, program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env_clear().uid(uid).gid(uid).args(words);
    command.output().expect("the program can be run")
}

#[test]
fn another_user_is_no_administrator_unless_listed() {
    let (daemons, others) = (65_533, 65_532);
    let directory = tempfile::tempdir().expect("a directory");
    if directory.path().metadata().map(|seen| seen.uid()).ok() != Some(0) {
        return skipped("rights of other users", "only root can be other users", "root");
    }
    // Where these users can reach it.
    let (program, socket) = (directory.path().join("rationd"), directory.path().join("rationd.sock"));
    fs::copy(env!("CARGO_BIN_EXE_rationd"), &program).expect("the program can be copied");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    chown(directory.path(), Some(daemons), Some(daemons)).expect("root may");
    let file = directory.path().join("rationd.toml");
    let serve = |admins: &str| {
        let listen = format!("[listen]\nsocket = {socket:?}\nmode = \"0666\"\nadmin = \"off\"\n{admins}\n");
        fs::write(&file, listen + "[policy.api]\nlimits = [\"5/1h fixed\"]\n").expect("a file");
        let mut command = Command::new(&program);
        command.env_clear().uid(daemons).gid(daemons).arg("-q").arg("-c").arg(&file).arg("serve");
        let child = command.spawn().expect("the program can be run");
        until("it listens", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        child
    };
    let place = socket.to_str().expect("a plain path");
    let ask = |uid: u32, words: &[&str]| run_as(uid, &program, &[&["-s", place], words].concat());
    let may = |uid: u32| {
        let outputs = [&["reset", "api", "k"][..], &["reload"], &["keys"]].map(|words| ask(uid, words));
        let refused = |output: &Output| String::from_utf8_lossy(&output.stderr).contains("is for administrators");
        let count = outputs.iter().filter(|output| output.status.success()).count();
        assert!(outputs.iter().all(|output| output.status.success() != refused(output)), "{outputs:?}");
        count
    };
    let mut daemon = serve("");
    let seen = [0, daemons, others].map(may);
    let passed = ask(others, &["check", "api", "k"]);
    daemon.kill().expect("it runs");
    daemon.wait().expect("it was ours");
    assert_eq!(seen, [3, 3, 0]);
    assert!(passed.status.success(), "checks are for everybody: {passed:?}");
    let mut daemon = serve(&format!("admin_uids = [{others}]"));
    let seen = [0, daemons, others].map(may);
    daemon.kill().expect("it runs");
    daemon.wait().expect("it was ours");
    assert_eq!(seen, [0, 0, 3]);
}

/// The id of a fresh hold of one token.
fn hold(client: &mut Client) -> String {
    let told = client.ask("RATION.HOLD api acme 1 TTL 60000");
    let id = told.rsplit(' ').next().expect("an id");
    assert_eq!(id.len(), 32, "{told}");
    id.to_owned()
}

#[test]
fn ids_of_holds_cannot_be_guessed() {
    let daemon = TestDaemon::start();
    let (mut client, mut neighbour) = (daemon.client(), daemon.client());
    let mut ids: Vec<u128> = (0..200).map(|_| u128::from_str_radix(&hold(&mut client), 16).expect("hex")).collect();
    let own = hold(&mut neighbour);
    let number = u128::from_str_radix(&own, 16).expect("hex");
    for guess in (1..100).flat_map(|step| [number.wrapping_sub(step), number.wrapping_add(step)]) {
        let told = neighbour.ask(&format!("RATION.SETTLE {guess:032x} 0"));
        assert!(told.starts_with("-ERR no such hold here"), "{told}");
    }
    ids.sort_unstable();
    let nearest = ids.windows(2).map(|pair| pair[1] - pair[0]).min().expect("there are 200");
    assert!(nearest > 1 << 64, "200 of 2^128 are that near by chance once in 2^49 runs: {nearest:x}");
    assert_eq!(neighbour.ask(&format!("RATION.SETTLE {own} 0")), "0");
}

#[test]
fn a_policy_may_take_nothing_back() {
    let spec = |refunds| PolicySpec { limits: vec!["5/1h fixed".into()], refunds, ..PolicySpec::default() };
    let specs = BTreeMap::from([("api".to_owned(), spec(Some(false))), ("open".to_owned(), spec(None))]);
    let policies = PolicySet::compile(&specs).expect("they are right");
    let daemon = TestDaemon::with(|options| options.policies = Arc::new(ArcSwap::from_pointee(policies)));
    let mut client = daemon.client();
    assert!(client.ask("RATION.CHECK api k COST 2").starts_with("0 "));
    for line in ["RATION.REFUND api k 1", "RATION.RETURN api k 1"] {
        let refused = client.ask(line);
        assert!(refused.starts_with("-NOPERM policy 'api' takes nothing back (refunds = false)"), "{refused}");
    }
    assert_eq!(left(&mut client, "k"), "3");
    let told = client.ask("RATION.HOLD api k 3");
    let id = told.rsplit(' ').next().expect("an id");
    assert_eq!((client.ask(&format!("RATION.SETTLE {id} 1")), left(&mut client, "k")), ("1".into(), "2".into()));
    assert!(client.ask("RATION.CHECK open k COST 2").starts_with("0 "));
    assert_eq!(client.ask("RATION.REFUND open k 1"), "OK");
}
