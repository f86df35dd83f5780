//! `rationd doctor`: each check finds the fault that it is for, planted in real files, servers and daemons, and finds
//! nothing where all is well. What no server of ours can be made to say is planted in the unit tests of `src/cli/doctor/`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::cluster::RedisCluster;
use crate::support::fleet::Issuer;
use crate::support::poll::{wait_for, wait_until};
use crate::support::process::{Daemon, without_settings};
use crate::support::server::{ACL_RULES, Server, free_port};

const POLICY: &str = "[policy.api]\nlimits = [\"100/1s burst 200\"]\n";

/// A configuration in a directory of its own, and no daemon.
struct Site {
    directory: TempDir,
}

impl Site {
    /// `config` begins with keys of `[listen]`.
    fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("rationd.sock");
        let file = directory.path().join("rationd.toml");
        fs::write(&file, format!("[listen]\nsocket = {socket:?}\n{config}")).expect("a file");
        Self { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn report(&self, words: &[&str]) -> Report {
        Report::of(&self.path("rationd.toml"), words)
    }
}

/// What the doctor says.
struct Report {
    code: i32,
    json: Value,
}

impl Report {
    fn of(config: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
        without_settings(&mut command);
        command.arg("--config").arg(config).args(["-o", "json", "doctor"]).args(words);
        Self::read(&command.output().expect("cargo built it"))
    }

    fn read(output: &Output) -> Self {
        let json = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        Self { code: output.status.code().expect("it ends by itself"), json }
    }

    fn checks(&self) -> &[Value] {
        self.json["checks"].as_array().expect("a list")
    }

    /// The word and what was seen; "apart" where the check is not told of.
    fn said(&self, id: &str) -> (&str, &str) {
        let found = self.checks().iter().find(|check| check["id"] == id);
        let text = |field: &str| found.and_then(|check| check[field].as_str());
        (text("verdict").unwrap_or("apart"), text("seen").unwrap_or_default())
    }

    /// The check says this word, and of what it saw this part.
    #[track_caller]
    fn assert(&self, id: &str, word: &str, part: &str) {
        let (said, seen) = self.said(id);
        assert!(said == word && seen.contains(part), "{id}: {word} with {part:?} was wanted: {:#}", self.json);
        assert_eq!(self.json["ok"], self.json["fatal"] == 0);
        assert!(word != "fatal" || self.code != 0, "something fatal ends with {}", self.code);
    }
}

#[test]
fn where_all_is_well_it_says_so_and_ends_with_0() {
    let server = Server::start(|_, _| vec!["--appendonly".into(), "yes".into()]);
    let daemon = Daemon::start(&format!("[store]\nurl = {:?}\n{POLICY}", server.url()));
    let report = Report::of(&daemon.config(), &[]);
    let bad = report.checks().iter().filter(|check| check["verdict"] != "ok");
    // What this machine is like is not the test's to say.
    let bad: Vec<_> = bad.filter(|check| !check["id"].as_str().is_some_and(|id| id.starts_with("machine."))).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!(report.code, 0);
    assert!(report.checks().len() >= 25, "{:#}", report.json);
    assert_eq!(server.text("DBSIZE"), "0", "it leaves nothing in the store");
}

#[test]
fn for_people_it_says_why_and_what_to_do() {
    let site = Site::new(&format!("mode = \"0666\"\nadmin = \"off\"\n{POLICY}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("--config").arg(site.path("rationd.toml")).arg("doctor");
    let output = command.output().expect("cargo built it");
    let text = String::from_utf8(output.stdout).expect("text");
    let line = text.lines().position(|line| line.starts_with("warning  socket.mode")).expect("the check is there");
    let below: Vec<_> = text.lines().skip(line + 1).take(3).map(str::trim_start).collect();
    assert!(below[0].starts_with("why  Every program"), "{text}");
    assert!(below[1].starts_with("do   Set listen.mode"), "{text}");
    assert!(below[2].starts_with("read docs/operate/deploy.md#"), "{text}");
    assert_eq!(output.status.code(), Some(0), "warnings alone");
    let strict = command.arg("--strict").output().expect("cargo built it");
    assert_eq!(strict.status.code(), Some(1), "warnings count with --strict");
}

#[test]
fn faults_of_the_configuration_are_found() {
    let site = Site::new("sokcet = \"x\"\n");
    let report = site.report(&[]);
    report.assert("config.valid", "fatal", "did you mean `socket`?");
    assert_eq!((report.code, report.checks().len()), (78, 1), "nothing else can be looked at");
    Site::new("").report(&[]).assert("config.policies", "warning", "nothing is limited");

    let site = Site::new(&format!("[store]\nurl = \"redis://127.0.0.1:1\"\npassword_file = \"secret\"\n{POLICY}"));
    fs::write(site.path("secret"), "hunter2\n").expect("a file");
    for (mode, word) in [(0o644, "fatal"), (0o640, "ok")] {
        fs::set_permissions(site.path("secret"), fs::Permissions::from_mode(mode)).expect("it is ours");
        site.report(&[]).assert("config.secrets", word, "");
    }
    let site = Site::new(&format!("[store]\nurl = \"redis://u:hunter2@127.0.0.1:1\"\n{POLICY}"));
    for (mode, word) in [(0o644, "warning"), (0o640, "ok")] {
        fs::set_permissions(site.path("rationd.toml"), fs::Permissions::from_mode(mode)).expect("it is ours");
        let report = site.report(&[]);
        report.assert("config.password", word, "");
        assert!(!report.json.to_string().contains("hunter2"), "{:#}", report.json);
    }
}

#[test]
fn doors_that_are_too_wide_are_found() {
    let site = Site::new(&format!(
        "mode = \"0666\"\nadmin = \"0.0.0.0:1\"\nadmin_checks = true\nenvoy = \"0.0.0.0:2\"\n{POLICY}"
    ));
    let report = site.report(&[]);
    report.assert("socket.mode", "warning", "0666");
    report.assert("doors.addresses", "warning", "0.0.0.0:1: whoever reaches it reads it and spends; listen.envoy");
    report.assert("doors.envoy", "warning", "nothing is limited");
    for (mode, word) in [(0o777, "fatal"), (0o1777, "warning"), (0o755, "ok")] {
        fs::set_permissions(site.directory.path(), fs::Permissions::from_mode(mode)).expect("it is ours");
        site.report(&[]).assert("socket.directory", word, "");
    }
}

#[test]
fn a_tcp_address_for_everybody_and_a_certificate_that_lapses_are_found() {
    let report = Site::new(&format!("tcp = \"127.0.0.1:1\"\n{POLICY}")).report(&[]);
    report.assert("doors.tcp", "warning", "127.0.0.1:1: every program of this machine may spend");
    // Any certificate serves: here that of a node, for a year, for a day, and of one that is over.
    let issuer = Issuer::new("prod");
    let with = |section: &str| {
        let file = |key: &str| {
            let line = section.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")));
            line.expect("the command prints it").to_owned()
        };
        let tcp = format!("tcp = \"127.0.0.1:1\"\ntcp_cert = {}\ntcp_key = {}", file("cert"), file("key"));
        Site::new(&format!("{tcp}\ntcp_ca = {}\n{POLICY}", file("ca"))).report(&[])
    };
    let report = with(&issuer.node("a"));
    report.assert("doors.tcp", "ok", "for who has a certificate");
    report.assert("doors.certificate", "ok", "good for 36");
    with(&issuer.node_for("a", 1)).assert("doors.certificate", "warning", "lapses in");
}

#[test]
fn a_place_where_nothing_can_be_recorded_is_found() {
    let site = |place: &str, size: &str| Site::new(&format!("[record]\nfile = {place:?}\nsize = {size:?}\n{POLICY}"));
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    site(&path("arrivals"), "1MiB").report(&[]).assert("machine.record", "ok", "1 MiB at most");
    site(&path("nowhere/arrivals"), "1MiB").report(&[]).assert("machine.record", "fatal", "No such file");
    // In memory, of which no machine has so much.
    site("/dev/shm/arrivals", "1TiB").report(&[]).assert("machine.record", "warning", "are free");
    fs::write(path("notes.txt"), "somebody's notes, longer than the beginning of a file of ours").expect("a file");
    site(&path("notes.txt"), "1MiB").report(&[]).assert("machine.record", "fatal", "no file of arrivals");
}

#[test]
fn a_place_where_denials_cannot_be_told_is_found() {
    let site = |place: &str| Site::new(&format!("[denials]\nfile = {place:?}\n{POLICY}"));
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    site(&path("denials.ndjson")).report(&[]).assert("machine.denials", "ok", "denials.ndjson");
    site(&path("nowhere/denials.ndjson")).report(&[]).assert("machine.denials", "warning", "No such file");
    site(&path("")).report(&[]).assert("machine.denials", "warning", "is a directory");
    assert!(!directory.path().join("denials.ndjson").exists(), "it leaves nothing behind");
}

#[test]
fn a_machine_that_is_too_small_is_found() {
    let site = Site::new(&format!("[node]\nmax_memory = \"32MiB\"\n{POLICY}"));
    site.report(&[]).assert("machine.memory", "warning", "node.max_keys is 1000000");
    let mut command = Command::new("sh");
    without_settings(&mut command);
    command.args(["-c", "ulimit -n 256 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_rationd"), "-o", "json", "doctor"]);
    let output = command.arg("--config").arg(site.path("rationd.toml")).output().expect("there is a shell");
    Report::read(&output).assert("machine.files", "warning", "at most 256 open files");
}

#[test]
fn a_store_that_cannot_be_used_is_found() {
    let at = |url: &str| Site::new(&format!("[store]\nurl = {url:?}\n{POLICY}")).report(&[]);
    let report = at(&format!("redis://127.0.0.1:{}", free_port()));
    report.assert("store.reachable", "fatal", "refused");
    assert_eq!(report.code, 1);
    let mut server = Server::plain();
    at(&server.url().replace("redis://", "redis://u:wrong@")).assert("store.reachable", "fatal", "WRONGPASS");
    at(&server.url().replace("redis://", "redis-cluster://")).assert("store.kind", "fatal", "a single server");
    let clustered = Server::start(|_, _| {
        let port = free_port().to_string();
        ["--cluster-enabled", "yes", "--cluster-port", &port].map(str::to_owned).to_vec()
    });
    at(&clustered.url()).assert("store.kind", "fatal", "a server of a cluster");
    let address = server.address().replace(':', " ");
    let replica = Server::start(|_, _| vec!["--replicaof".into(), address.clone()]);
    wait_until("it is a replica", 10, || replica.info("replication", "role").as_deref() == Some("slave"));
    at(&replica.url()).assert("store.role", "fatal", "a replica of 127.0.0.1");
    server.pause();
    at(&server.url()).assert("store.reachable", "fatal", "no answer");
    server.resume();
    server.kill();
}

#[test]
fn a_store_that_may_lose_counts_is_found() {
    let server = Server::plain();
    let site = Site::new(&format!("[store]\nurl = {:?}\n{POLICY}", server.url()));
    site.report(&[]).assert("store.persistence", "warning", "nothing is kept on disk");
    let set = |line: &str| assert_eq!(server.text(&format!("CONFIG SET {line}")), "OK");
    server.ask_words(&["CONFIG", "SET", "save", "60 1"].map(str::to_owned)).expect("CONFIG SET");
    set("maxmemory-policy allkeys-lru");
    let report = site.report(&[]);
    report.assert("store.persistence", "warning", "snapshots only");
    report.assert("store.eviction", "warning", "allkeys-lru, as soon as");
    set("maxmemory 100mb");
    site.report(&[]).assert("store.eviction", "fatal", "allkeys-lru");
    set("maxmemory-policy noeviction");
    site.report(&[]).assert("store.eviction", "ok", "");
    set("maxmemory 1");
    let report = site.report(&[]);
    report.assert("store.memory", "warning", "of maxmemory");
    report.assert("store.writes", "fatal", "OOM");
}

#[test]
fn a_user_with_too_few_rights_is_found() {
    let server = Server::plain();
    let url = server.url().replace("redis://", "redis://rationd:secret@");
    let site = |prefix: &str| Site::new(&format!("[store]\nurl = {url:?}\nprefix = {prefix:?}\n{POLICY}"));
    server.ask(&format!("ACL SETUSER rationd {ACL_RULES}")).expect("ACL SETUSER");
    site("ration").report(&[]).assert("store.rights", "ok", "");
    server.assert_nothing_was_denied();
    site("other").report(&[]).assert("store.rights", "fatal", "EVAL: NOPERM");
    server.ask("ACL SETUSER rationd -hset -wait").expect("ACL SETUSER");
    let report = site("ration").report(&[]);
    report.assert("store.rights", "fatal", "WAIT");
    report.assert("store.rights", "fatal", "HSET");
    report.assert("store.writes", "ok", "");
}

#[test]
fn faults_of_a_cluster_are_found() {
    let mut cluster = RedisCluster::start();
    let site = Site::new(&format!("[store]\nurl = {:?}\n{POLICY}", cluster.url()));
    let report = site.report(&[]);
    for id in
        ["store.reachable", "store.rights", "store.writes", "cluster.slots", "cluster.replicas", "cluster.coverage"]
    {
        report.assert(id, "ok", "");
    }
    report.assert("cluster.node-timeout", "ok", "");
    for server in &cluster.servers {
        server.ask("CONFIG SET cluster-node-timeout 15000").expect("CONFIG SET");
        server.ask("CONFIG SET cluster-require-full-coverage yes").expect("CONFIG SET");
    }
    let report = site.report(&[]);
    report.assert("cluster.node-timeout", "warning", "15000");
    report.assert("cluster.coverage", "warning", "yes");
    cluster.servers[3].kill();
    wait_until("the master misses its replica", 20, || {
        cluster.servers[0].info("replication", "connected_slaves").as_deref() == Some("0")
    });
    let report = site.report(&[]);
    report.assert("cluster.replicas", "warning", "without a replica");
    report.assert("store.reachable", "warning", &cluster.servers[3].address());
    for server in cluster.servers.iter().enumerate().filter(|(index, _)| *index != 3).map(|(_, server)| server) {
        server.ask("CLUSTER DELSLOTS 0 1").expect("CLUSTER DELSLOTS");
    }
    site.report(&[]).assert("cluster.slots", "fatal", "2 of 16384");
}

#[test]
fn faults_of_a_fleet_are_found() {
    let issuer = Issuer::new("prod");
    let (section, other) = (issuer.node("a"), issuer.node("b"));
    let report = Site::new(&format!("{section}\n{POLICY}")).report(&[]);
    report.assert("fleet.store", "fatal", "memory:");
    report.assert("fleet.certificate", "ok", "good for 36");
    report.assert("fleet.port", "ok", "is free");
    report.assert("fleet.address", "warning", "127.0.0.1");
    report.assert("fleet.seeds", "warning", "empty");
    let file = |section: &str, key: &str| {
        let line = section.lines().find(|line| line.starts_with(&format!("{key} = "))).expect("the command prints it");
        line.to_owned()
    };
    let with = |key: &str, line: &str| {
        Site::new(&format!("{}\n{POLICY}", section.replace(&file(&section, key), line))).report(&[])
    };
    with("cert", &file(&other, "cert")).assert("fleet.certificate", "fatal", "does not name a");
    with("key", &file(&other, "key")).assert("fleet.certificate", "fatal", "is it the key of");
    let stranger = Issuer::new("prod");
    with("ca", &file(&stranger.node("a"), "ca")).assert("fleet.certificate", "fatal", "(its CA is");
    with("ca", "ca = \"nowhere.pem\"").assert("fleet.certificate", "fatal", "nowhere.pem");
    let soon = issuer.node_for("a", 1);
    with("cert", &file(&soon, "cert")).assert("fleet.certificate", "fatal", "is it the key of");
    Site::new(&format!("{soon}\n{POLICY}")).report(&[]).assert("fleet.certificate", "warning", "lapses in");
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let report = with("listen", &format!("listen = {address:?}\nseeds = [\"nowhere.invalid:7946\"]"));
    report.assert("fleet.port", "fatal", "in use");
    report.assert("fleet.seeds", "warning", "nowhere.invalid");
}

#[test]
fn a_fleet_that_is_not_whole_is_found() {
    let server = Server::plain();
    let store = format!("[store]\nurl = {:?}\n", server.url());
    let issuer = Issuer::new("prod");
    let daemon = Daemon::start(&format!("{}\n{store}{POLICY}", issuer.node("a")));
    Report::of(&daemon.config(), &[]).assert("fleet.peers", "ok", "1 of 1");
    let report = Report::of(&daemon.config(), &["--nodes", "3"]);
    report.assert("fleet.peers", "warning", "1 of 3 nodes");
    report.assert("fleet.versions", "ok", env!("CARGO_PKG_VERSION"));
    report.assert("fleet.clocks", "ok", "no node began in the future");
    report.assert("fleet.port", "ok", "the daemon listens");
}

#[test]
fn policies_that_do_not_fit_what_is_asked_of_them_are_found() {
    let small = "[policy.small]\nlimits = [\"10/1s\"]\non_store_loss = \"deny\"\n\
                 [policy.api.override.\"acct:acme\"]\nlimits = [\"5/1s fixed\"]\n";
    let site = Site::new(&format!("[store]\nurl = \"redis://127.0.0.1:1\"\n{POLICY}{small}"));
    let report = site.report(&["--cost", "11", "--nodes", "8"]);
    report.assert("policies.burst", "warning", "api of \"acct:acme\": 5/1s fixed; small: 10/1s");
    report.assert("policies.nodes", "warning", "api of \"acct:acme\": 5/1s fixed");
    report.assert("policies.store-loss", "warning", "small denies all");
    site.report(&["--cost", "5"]).assert("policies.burst", "ok", "");
}

#[test]
fn faults_of_a_running_daemon_are_found() {
    let site = Site::new(POLICY);
    site.report(&[]).assert("daemon.answers", "warning", "there is no such socket");

    let daemon = Daemon::start("[policy.api]\nlimits = [\"3/1h fixed\"]\n");
    let report = Report::of(&daemon.config(), &[]);
    for id in ["daemon.answers", "daemon.version", "daemon.policies", "daemon.new-policies", "daemon.costs"] {
        report.assert(id, "ok", "");
    }
    let text = fs::read_to_string(daemon.config()).expect("its file");
    fs::write(daemon.config(), format!("{}[policy.web]\nlimits = [\"1/1s\"]\n", text.replace("3/1h", "4/1h")))
        .expect("a file");
    let _ = daemon.ask("RATION.CHECK api k COST 9");
    let report = Report::of(&daemon.config(), &[]);
    report.assert("daemon.policies", "warning", "\"api\" is another in the daemon; \"web\" is not loaded");
    report.assert("daemon.new-policies", "warning", "\"web\" is new");
    report.assert("daemon.costs", "warning", "1 checks");
}

#[test]
fn a_daemon_without_its_store_is_found() {
    let url = format!("redis://127.0.0.1:{}", free_port());
    let daemon = Daemon::start(&format!("[store]\nurl = {url:?}\n[policy.api]\nlimits = [\"3/1h fixed\"]\n"));
    let said = wait_for("a key is decided without the store", 10, || {
        let _ = daemon.ask("RATION.CHECK api k");
        let report = Report::of(&daemon.config(), &[]);
        (report.said("daemon.store").0 != "ok").then_some(report)
    });
    said.assert("daemon.store", "warning", "1 keys are decided without it now");
}

#[test]
fn counts_that_the_store_has_lost_are_found() {
    let server = Server::plain();
    // By default a store on a machine with much else to do may answer too late, and what was never lent cannot be lost.
    let store = format!("[store]\nurl = {:?}\ntimeout = \"5s\"\n", server.url());
    let daemon = Daemon::start(&format!("{store}[policy.api]\nlimits = [\"1000/1h fixed\"]\n"));
    let lent = daemon.ask("RATION.CHECK api k");
    assert_eq!(lent.items()[7].text(), "ok", "{lent:?}");
    server.ask("FLUSHALL").expect("FLUSHALL");
    let report = wait_for("the daemon finds counts gone", 20, || {
        let _ = daemon.ask("RATION.CHECK api k COST 50");
        let report = Report::of(&daemon.config(), &[]);
        (report.said("daemon.lost").0 != "ok").then_some(report)
    });
    report.assert("daemon.lost", "warning", "found gone");
}

#[test]
fn every_check_has_a_fault_that_it_finds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut planted = include_str!("doctor.rs").to_owned();
    for entry in fs::read_dir(root.join("src/cli/doctor")).expect("a directory") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("text");
        planted.push_str(text.split_once("#[cfg(test)]").map_or("", |(_, tests)| tests));
    }
    // Text is read without the ends of its lines, because a long call is broken.
    let planted: String = planted.split_whitespace().collect::<Vec<_>>().join(" ");
    let found = |id: &str| ["warning", "fatal"].iter().any(|word| planted.contains(&format!("\"{id}\", \"{word}\"")));
    // Their words stand in a table beside them.
    let in_loop = ["config.secrets", "config.password", "socket.directory", "fleet.versions", "fleet.clocks"];
    let missing: Vec<_> =
        rationd::cli::checks().map(|check| check.id).filter(|id| !found(id) && !in_loop.contains(id)).collect();
    assert!(missing.is_empty(), "no test plants the fault that these are for: {missing:?}");
    assert!(rationd::cli::checks().count() >= 25);
}
