//! A daemon, a process of its own, whose certificate lapses while it runs: peers let it in no more, it says why, both go on
//! with what they lease from the store, and a new certificate brings it back without a restart.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use rationd::fleet::IdentityFiles;
use support::fleet::Sight;
use support::peers::Authority;
use support::poll::wait_until;
use support::process::Daemon;
use support::server::Server;

/// So long the certificate is right: the daemons meet in the meantime, on a slow machine, too.
const RIGHT: Duration = Duration::from_secs(12);
const FLEET: &str = "lapsed";

fn daemon(store: &str, name: &str, files: &IdentityFiles, seeds: &str) -> Daemon {
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let IdentityFiles { ca, cert, key, .. } = files;
    Daemon::start(&format!(
        "[store]\nurl = {store:?}\n[node]\nname = {name:?}\n[fleet]\nname = {FLEET:?}\nlisten = \"127.0.0.1:0\"\n\
         seeds = [{seeds}]\nca = {ca:?}\ncert = {cert:?}\nkey = {key:?}\n[policy.api]\nlimits = [\"1000/1h fixed\"]\n"
    ))
}

fn sees(daemon: &Daemon, nodes: u64, what: &str) {
    wait_until(what, 60, || Sight::of(&daemon.metrics(), "api").up == nodes);
}

/// Where a check is decided.
fn source(daemon: &Daemon) -> String {
    daemon.ask("RATION.CHECK api u1").items()[9].text()
}

#[test]
fn a_daemon_whose_certificate_lapses_goes_on_alone_until_it_has_a_new_one() {
    let (redis, fleet) = (Server::plain(), Authority::new(FLEET));
    let a = daemon(&redis.url(), "a", &fleet.node("a"), "");
    let files = fleet.node("b");
    fleet.lapsing(RIGHT, "b");
    let b = daemon(&redis.url(), "b", &files, &format!("{:?}", a.fleet_address()));
    for daemon in [&a, &b] {
        sees(daemon, 2, "both see two");
    }
    sees(&a, 1, "the peer is let in no more");
    sees(&b, 1, "it is alone");
    wait_until("it says why", 20, || b.log().contains("certificate has lapsed"));
    assert!(b.metrics().sum("rationd_certificate_remaining_seconds", &[]) < 0.0);
    for daemon in [&a, &b] {
        assert!(["lease", "store"].contains(&source(daemon).as_str()), "both lease");
    }
    fleet.lasting(30, "b");
    fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).expect("it is ours");
    b.signal("HUP");
    for daemon in [&a, &b] {
        sees(daemon, 2, "a new certificate brings it back");
    }
}
