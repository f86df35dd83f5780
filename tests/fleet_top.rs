//! What one daemon shows of its whole fleet: `rationd top --fleet` on three real daemons with QUIC between them.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use support::clock::Watch;
use support::fleet::{Issuer, Sight, Sights};
use support::process::{Daemon, without_settings};
use support::server::Server;

const POLICIES: &str = "[policy.api]\nlimits = [\"1000000/1h fixed\"]\n[policy.tight]\nlimits = [\"3/1h fixed\"]\n";
const PATIENCE: Duration = Duration::from_secs(20);
/// What an ask of all takes at most: a second for those that hang, and a machine that is used by others.
const IN_TIME: Duration = Duration::from_secs(3);

struct Fleet {
    daemons: Vec<Daemon>,
    _redis: Server,
}

impl Fleet {
    /// A node for each line of `[fleet]`, called `a`, `b` and so on, when each sees all.
    fn start(lines: &[&str]) -> Self {
        let (redis, issuer) = (Server::plain(), Issuer::new("prod"));
        let mut seeds = String::new();
        let mut daemons = Vec::new();
        for (name, line) in ["a", "b", "c", "d"].into_iter().zip(lines) {
            let section = issuer.node(name);
            let store = format!("[store]\nurl = \"redis://127.0.0.1:{}\"\n", redis.port);
            daemons.push(Daemon::start(&format!("{section}{seeds}{line}\n{store}{POLICIES}")));
            seeds = format!("seeds = [{:?}]\n", daemons[0].fleet_address());
        }
        let whole = Sight::of_whole(lines.len() as u64, 1_000_000_u64.div_ceil(lines.len() as u64));
        let seen = Sights::new("api").until(&daemons, whole, PATIENCE);
        assert!(seen.is_some(), "the fleet has not come together");
        Self { daemons, _redis: redis }
    }

    /// What node `a` says of all.
    fn look(&self) -> Value {
        let told = self.daemons[0].ask("RATION.TOP FLEET").text();
        serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"))
    }
}

fn rationd(daemon: &Daemon, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rationd"));
    without_settings(&mut command);
    command.arg("--socket").arg(daemon.socket()).args(words).output().expect("cargo built it")
}

fn figures(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn check(daemon: &Daemon, policy: &str, key: &str, times: usize) {
    let mut client = daemon.connect().expect("it listens");
    for _ in 0..times {
        client.ask_text(&format!("RATION.CHECK {policy} {key}")).expect("an answer");
    }
}

fn listed(list: &Value) -> &[Value] {
    list.as_array().map_or(&[], Vec::as_slice)
}

/// What the node called so has told.
fn node<'a>(told: &'a Value, name: &str) -> &'a Value {
    listed(&told["nodes"]).iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("no {name} in {told}"))
}

fn row<'a>(figures: &'a Value, name: &str) -> &'a Value {
    let rows = listed(&figures["by_daemon"]);
    rows.iter().find(|row| row["node"] == name).unwrap_or_else(|| panic!("no {name} in {figures}"))
}

/// A count of a policy, of an answer of `RATION.TOP`.
fn count(top: &Value, policy: &str, field: &str) -> u64 {
    let policy = listed(&top["policies"]).iter().find(|known| known["name"] == policy);
    policy.and_then(|policy| policy[field].as_u64()).unwrap_or_else(|| panic!("{top}"))
}

fn keys(list: &Value) -> Vec<String> {
    listed(list).iter().filter_map(|key| key["key"].as_str().map(str::to_owned)).collect()
}

#[test]
fn what_a_fleet_does_is_the_sum_of_what_each_node_says_itself() {
    let fleet = Fleet::start(&["top = \"keys\"", "top = \"keys\"", "top = \"keys\""]);
    for (index, daemon) in fleet.daemons.iter().enumerate() {
        check(daemon, "api", "shared", 40 + index);
        check(daemon, "tight", &format!("own-{index}"), 10);
    }
    let told = fleet.look();
    for (name, daemon) in ["a", "b", "c"].into_iter().zip(&fleet.daemons) {
        let itself: Value = serde_json::from_str(&daemon.ask("RATION.TOP").text()).expect("JSON");
        let of_it = &node(&told, name)["top"];
        for (policy, field) in [("api", "allowed"), ("api", "denied"), ("tight", "allowed"), ("tight", "denied")] {
            assert_eq!(count(of_it, policy, field), count(&itself, policy, field), "{name}: {told}");
        }
        assert_eq!(count(of_it, "tight", "denied"), 7, "{told}");
        assert!(of_it["store"]["calls"].as_u64().is_some_and(|calls| calls > 0), "{told}");
    }
    assert_eq!(told["missed"], 0, "{told}");

    let ended = AtomicBool::new(false);
    let (by_fleet, by_sockets) = std::thread::scope(|scope| {
        for daemon in &fleet.daemons {
            let ended = &ended;
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    check(daemon, "api", "shared", 10);
                    check(daemon, "tight", "greedy", 5);
                }
            });
        }
        let sockets = fleet.daemons.iter().map(|daemon| daemon.socket().display().to_string());
        let sockets: Vec<String> = sockets.collect();
        let by_fleet = rationd(&fleet.daemons[0], &["-o", "json", "top", "--once", "--fleet"]);
        let words =
            [&["-o", "json", "top", "--once"], &sockets.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat();
        let by_sockets = rationd(&fleet.daemons[0], &words);
        ended.store(true, Ordering::Relaxed);
        (by_fleet, by_sockets)
    });
    assert!(by_fleet.status.success(), "{by_fleet:?}");
    let (by_fleet, by_sockets) = (figures(&by_fleet), figures(&by_sockets));
    assert_eq!((&by_fleet["daemons"], &by_sockets["daemons"]), (&3.into(), &3.into()), "{by_fleet}");
    let sum =
        |of: &Value, field: &str| listed(&of["by_daemon"]).iter().filter_map(|row| row[field].as_f64()).sum::<f64>();
    for field in ["checks_per_s", "denied_per_s"] {
        let rates = listed(&by_fleet["policies"]).iter().map(|policy| {
            let of = |field: &str| policy[field].as_f64().unwrap_or(0.0);
            if field == "checks_per_s" { of("allowed_per_s") + of("denied_per_s") } else { of("denied_per_s") }
        });
        let (whole, rows) = (rates.sum::<f64>(), sum(&by_fleet, field));
        assert!(
            whole > 3.0 && (whole - rows).abs() <= 6.0,
            "{field}: {whole} of {rows}: rates are rounded: {by_fleet}"
        );
    }
    assert_eq!(by_fleet["hot"]["used"][0]["key"], "shared", "{by_fleet}");
    assert_eq!(by_fleet["hot"]["denied"][0]["key"], "greedy", "{by_fleet}");
    // The same path makes both: what is told differs by who told it alone.
    let fields = |of: &Value| of.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
    assert_eq!(fields(&by_fleet), fields(&by_sockets));
    assert_eq!(listed(&by_fleet["fleet"]["peers"]).len(), 3, "{by_fleet}");
    let text = String::from_utf8(rationd(&fleet.daemons[0], &["top", "--once", "--fleet"]).stdout).expect("text");
    assert!(text.starts_with("3 daemons of rationd "), "{text}");
}

#[test]
fn each_node_decides_what_the_others_are_told() {
    let fleet = Fleet::start(&["top = \"off\"", "top = \"keys\"", "", "top = \"off\""]);
    for (daemon, key) in fleet.daemons.iter().zip(["of-a", "of-b", "of-c", "of-d"]) {
        check(daemon, "api", key, 20);
        check(daemon, "tight", key, 20);
    }
    let output = rationd(&fleet.daemons[0], &["-o", "json", "top", "--once", "--fleet"]);
    let seen = figures(&output);
    for kind in ["used", "denied"] {
        let mut told = keys(&seen["hot"][kind]);
        told.sort();
        told.dedup();
        assert_eq!(told, ["of-a", "of-b"], "{seen}");
    }
    assert_eq!(seen["daemons"], 3, "{seen}");
    let off = row(&seen, "d");
    assert_eq!(off["away"], false, "{off}");
    assert!(off["problem"].as_str().is_some_and(|problem| problem.contains("fleet.top is \"off\"")), "{off}");
    assert_eq!(
        output.status.code(),
        Some(69),
        "whoever takes it for the whole fleet must see that it is not: {output:?}"
    );
    // Totals are told by default, and so they are by one that tells keys.
    let told = fleet.look();
    assert_eq!((&node(&told, "c")["told"], &node(&told, "b")["told"]), (&"totals".into(), &"keys".into()), "{told}");
    assert_eq!(count(&node(&told, "c")["top"], "tight", "denied"), 17, "{told}");
    assert!(!node(&told, "c").to_string().contains("of-c"), "{told}");
}

#[test]
fn who_does_not_answer_keeps_nobody_waiting() {
    let mut fleet = Fleet::start(&["", "", "", ""]);
    fleet.daemons.iter().for_each(|daemon| check(daemon, "api", "k", 10));
    fleet.daemons[2].signal("STOP");
    fleet.daemons[1].kill();
    let watch = Watch::start();
    let told = fleet.look();
    let took = watch.elapsed();
    let output = rationd(&fleet.daemons[0], &["-o", "json", "top", "--once", "--fleet"]);
    let text = String::from_utf8(rationd(&fleet.daemons[0], &["top", "--once", "--fleet"]).stdout).expect("text");
    fleet.daemons[2].signal("CONT");
    assert!(took < IN_TIME, "it took {took:?}: {told}");
    for name in ["b", "c"] {
        let silent = node(&told, name);
        assert_eq!((&silent["away"], &silent["top"]), (&true.into(), &Value::Null), "{told}");
    }
    for name in ["a", "d"] {
        assert_eq!(count(&node(&told, name)["top"], "api", "allowed"), 10, "{told}");
    }
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let seen = figures(&output);
    assert_eq!(seen["daemons"], 2, "{seen}");
    assert!(text.starts_with("2 OF 4 daemons") && text.contains("AWAY"), "{text}");
}

#[test]
fn a_node_that_went_without_a_word_is_told_of() {
    let mut fleet = Fleet::start(&["", "", ""]);
    fleet.daemons[1].kill();
    let watch = Watch::start();
    // Until gossip has given it up it has a row of its own.
    let told = loop {
        let told = fleet.look();
        if told["missed"] == 1 || watch.elapsed() > PATIENCE {
            break told;
        }
        watch.pause_until(watch.elapsed() + Duration::from_millis(200));
    };
    assert_eq!((&told["missed"], listed(&told["nodes"]).len()), (&1.into(), 2), "{told}");
    let seen = figures(&rationd(&fleet.daemons[0], &["-o", "json", "top", "--once", "--fleet"]));
    assert_eq!(row(&seen, "(1 more)")["away"], true, "{seen}");
}

/// The totals of each node are on the page while somebody looks at it, and names of their policies and keys are not.
#[test]
fn the_status_page_has_the_sums_of_each_node() {
    let fleet = Fleet::start(&["top = \"keys\"", "top = \"keys\"", "top = \"off\""]);
    check(&fleet.daemons[1], "api", "of-b", 40);
    check(&fleet.daemons[1], "tight", "of-b", 10);
    let mut stream = TcpStream::connect(fleet.daemons[0].admin()).expect("the admin address accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out is not zero");
    stream.write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("a request goes out");
    let (mut text, mut part) = (String::new(), [0; 4096]);
    let told = loop {
        let len = stream.read(&mut part).expect("more comes");
        assert_ne!(len, 0, "it has ended: {text}");
        text.push_str(&String::from_utf8_lossy(&part[..len]));
        let event = text.split_once("event: fleet\ndata: ").and_then(|(_, event)| event.split_once("\n\n"));
        if let Some((event, _)) = event {
            break event.to_owned();
        }
    };
    let nodes: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
    let of = |name: &str| listed(&nodes).iter().find(|node| node["node"] == name).unwrap_or_else(|| panic!("{told}"));
    assert_eq!(
        (&of("b")["allowed"], &of("b")["denied"], &of("b")["keys"]),
        (&43.into(), &7.into(), &2.into()),
        "{told}"
    );
    assert_eq!((&of("b")["store_up"], &of("a")["allowed"]), (&true.into(), &0.into()), "{told}");
    assert!(of("c")["problem"].as_str().is_some_and(|problem| problem.contains("off")), "{told}");
    assert!(!told.contains("of-b") && !told.contains("tight"), "{told}");
}

#[test]
fn a_node_alone_has_no_fleet_to_show() {
    let daemon = Daemon::start(POLICIES);
    let output = rationd(&daemon, &["top", "--once", "--fleet"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("this node is alone"), "{output:?}");
    let socket = daemon.socket().display().to_string();
    let two = rationd(&daemon, &["top", "--once", "--fleet", &socket]);
    assert_eq!(two.status.code(), Some(2), "{two:?}");
}
