//! What nodes may do alone while the store is away, on real parts: the shares of a fleet never sum to more than a
//! limit, whatever order its nodes were asked in; peeks and explanations say what a check would say; and a wait that
//! is told ends in an admission.

use crate::support;

use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use support::clock::{Watch, wall_us};
use support::demand::{self, Client, Pace};
use support::fleet::{Issuer, Sight};
use support::ledger::{Ledger, word};
use support::poll::wait_until;
use support::process::Daemon;
use support::resp::{Connection, Reply};
use support::served::print;
use support::server::Server;

const NODES: u8 = 5;
const LIMIT: u64 = 300;
/// All shares together, in hundredths.
const SHARES: u64 = 95;
const OUTAGE: Duration = Duration::from_secs(8);
/// The five seconds after which a node trusts what it sees of its fleet, and one more.
const SETTLING: Duration = Duration::from_secs(6);

/// Timing and two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const TRICKLING: &str = "
[policy.bucket]
limits = [\"300/1s\"]
[policy.first]
limits = [\"300/1s fixed from-first\"]
[policy.aligned]
limits = [\"300/1s fixed\"]
[policy.slide]
limits = [\"300/1s sliding\"]
";

/// A fleet that is whole.
fn fleet(redis: &Server, issuer: &Issuer) -> Vec<Daemon> {
    let config = |number: u8, seeds: &[String]| {
        let section = issuer.node(&format!("node-{number}"));
        format!("[store]\nurl = \"{}\"\n{section}\nseeds = {seeds:?}\n{TRICKLING}", redis.url())
    };
    let mut daemons = vec![Daemon::start(&config(0, &[]))];
    let seeds = [daemons[0].fleet_address()];
    daemons.extend((1..NODES).map(|number| Daemon::start(&config(number, &seeds))));
    wait_until("all see all", 20, || {
        daemons.iter().all(|daemon| Sight::of(&daemon.metrics(), "bucket").up == u64::from(NODES))
    });
    daemons
}

/// What all nodes admitted on their shares, in hundredths of the limit per second since the store went away.
fn shared(ledger: &Ledger, policy: &str, away_us: u64) -> (u64, f64) {
    let by_share = |check: &&support::ledger::Check| check.answer.allowed && check.answer.source == word(b"share");
    let admitted = ledger.checks.iter().filter(by_share).count() as u64;
    let last = ledger.checks.iter().map(|check| check.replied_us).max().expect("checks");
    let seconds = (last - away_us) as f64 / 1e6;
    let part = 100.0 * admitted as f64 / (LIMIT as f64 * seconds);
    let nodes: Vec<_> = (0..NODES)
        .map(|node| ledger.checks.iter().filter(by_share).filter(|check| check.node == node).count())
        .collect();
    let sources =
        ["lease", "store", "prefilter", "share", "policy"].map(|source| (source, ledger.count_source(source)));
    print(&format!("{policy}: answered by {sources:?}"));
    print(&format!(
        "{policy}: shares admitted {admitted} in {seconds:.1} s: {part:.0} % of the limit; by node {nodes:?}"
    ));
    (admitted, seconds)
}

#[test]
fn shares_of_nodes_that_were_asked_in_turn_sum_to_less_than_the_limit() {
    let _turn = alone();
    let redis = Server::plain();
    let issuer = Issuer::new("shares");
    let daemons = fleet(&redis, &issuer);
    // Whoever has not looked for the others for so long has no part of anything.
    Watch::start().pause_until(SETTLING);
    let policies = ["bucket", "first", "aligned", "slide"];
    for daemon in &daemons {
        for policy in policies {
            admitted(&mut daemon.connect().expect("the daemon accepts"), policy);
        }
    }
    redis.pause();
    let away_us = wall_us();
    let client = |policy: &str, node: u8| Client {
        node,
        socket: daemons[usize::from(node)].socket(),
        policy: policy.into(),
        key: "k".into(),
        pace: Pace::PerSecond(LIMIT as f64),
    };
    let ledgers = std::thread::scope(|scope| {
        let running = policies.map(|policy| {
            let clients: Vec<_> = (0..NODES).map(|node| client(policy, node)).collect();
            scope.spawn(move || demand::run(&clients, OUTAGE, |_| {}))
        });
        running.map(|one| one.join().expect("a load ended by itself"))
    });
    redis.resume();
    let mut over = Vec::new();
    for (policy, ledger) in policies.iter().zip(&ledgers) {
        assert!(ledger.errors.is_empty() && ledger.unanswered == 0, "{policy}: {:?}", ledger.errors);
        let (admitted, seconds) = shared(ledger, policy, away_us);
        // A window that began before may end within, and one that began within after.
        let windows = if *policy == "bucket" { seconds } else { seconds.ceil() + 1.0 };
        let most = (LIMIT * SHARES / 100) as f64 * windows + f64::from(NODES);
        if admitted as f64 > most {
            over.push(format!("{policy}: {admitted} on shares, {most:.0} allowed"));
        }
        if admitted == 0 {
            over.push(format!("{policy}: nobody went on"));
        }
    }
    assert!(over.is_empty(), "{over:?}");
}

const CASES: [(&str, &str); 6] = [
    ("bucket", "[\"10/1s\"]"),
    ("aligned", "[\"20/1s fixed\"]"),
    ("first", "[\"20/1s fixed from-first\"]"),
    ("slide", "[\"20/1s sliding\"]"),
    ("several", "[\"10/1s\", \"60/3s fixed\", \"1000/1h sliding\"]"),
    ("one", "[\"1/1s\"]"),
];

fn lone(redis: &Server) -> Daemon {
    let mut config = format!("[store]\nurl = \"{}\"\n", redis.url());
    for (name, limits) in CASES {
        config += &format!("[policy.{name}]\nlimits = {limits}\n");
    }
    for choice in ["deny", "allow"] {
        config += &format!("[policy.{choice}]\nlimits = [\"10/1h\"]\non_store_loss = \"{choice}\"\n");
    }
    Daemon::start(&config)
}

/// Verdict, reason and source, and how long to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Said {
    limited: bool,
    reason: String,
    source: String,
    retry_ms: i64,
}

fn asked(connection: &mut Connection<UnixStream>, command: &str) -> Said {
    let reply = connection.ask_text(command).unwrap_or_else(|error| panic!("{command}: {error}"));
    let fields = reply.items();
    Said {
        limited: fields[0] == Reply::Int(1),
        reason: fields[7].text(),
        source: fields[9].text(),
        retry_ms: fields[5].int(),
    }
}

/// Until the store has lent of a key; on a busy machine its first answer may be late.
fn admitted(connection: &mut Connection<UnixStream>, policy: &str) {
    wait_until(&format!("{policy} is lent of"), 10, || !asked(connection, &format!("RATION.CHECK {policy} k")).limited);
}

fn explained(connection: &mut Connection<UnixStream>, policy: &str) -> (Said, serde_json::Value) {
    let reply = connection.ask_text(&format!("RATION.EXPLAIN {policy} k")).expect("an answer");
    let json: serde_json::Value = serde_json::from_str(&reply.text()).expect("JSON");
    let text = |name: &str| json[name].as_str().unwrap_or_else(|| panic!("{name} in {json}")).to_owned();
    let limited = json["limited"].as_bool().expect("a verdict");
    let retry_ms = json["retry_after_ms"].as_i64().unwrap_or(-1);
    (Said { limited, reason: text("reason"), source: text("source"), retry_ms }, json)
}

/// Whether what was foretold is what came so much later: time alone may have let the check pass.
fn fits(foretold: &Said, came: &Said, later: Duration) -> bool {
    let same = foretold.limited == came.limited && foretold.reason == came.reason && foretold.source == came.source;
    let passed = foretold.limited
        && !came.limited
        && foretold.retry_ms >= 0
        && foretold.retry_ms <= i64::try_from(later.as_millis()).expect("a short time") + 1;
    same || passed
}

#[test]
fn peek_and_explanation_foretell_in_an_outage() {
    let _turn = alone();
    let mut redis = Server::plain();
    let daemon = lone(&redis);
    let mut connection = daemon.connect().expect("the daemon accepts");
    let policies: Vec<_> = CASES.iter().map(|(name, _)| *name).chain(["deny", "allow"]).collect();
    for policy in &policies {
        admitted(&mut connection, policy);
    }
    redis.kill();
    let (mut wrong, mut denied) = (Vec::new(), 0);
    for policy in policies {
        for round in 0..40 {
            // Where a window turns or the store is given up between two answers, the next three tell.
            let mut story = Vec::new();
            let foretold = (0..3).any(|_| {
                let watch = Watch::start();
                let peek = asked(&mut connection, &format!("RATION.CHECK {policy} k PEEK"));
                let (explained, _) = explained(&mut connection, policy);
                let came = asked(&mut connection, &format!("RATION.CHECK {policy} k"));
                denied += usize::from(came.limited);
                let later = watch.elapsed();
                let fit = fits(&peek, &came, later) && fits(&explained, &came, later);
                story.push((peek, explained, came));
                fit
            });
            if !foretold {
                wrong.push(format!("{policy}, round {round}: peek, explanation, check: {story:?}"));
                break;
            }
        }
    }
    assert!(denied > 0, "no share was spent");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn who_waits_as_told_in_an_outage_is_admitted() {
    let _turn = alone();
    let mut redis = Server::plain();
    let daemon = lone(&redis);
    let mut connection = daemon.connect().expect("the daemon accepts");
    for (policy, _) in CASES {
        admitted(&mut connection, policy);
    }
    redis.kill();
    let mut wrong = Vec::new();
    for (policy, _) in CASES {
        let check = format!("RATION.CHECK {policy} k");
        let mut waits = Vec::new();
        for _ in 0..5 {
            let told = (0..100).map(|_| asked(&mut connection, &check)).find(|told| told.limited);
            let told = told.unwrap_or_else(|| panic!("{policy}: a hundred on a share"));
            let wait = Duration::from_millis(u64::try_from(told.retry_ms).expect("it will pass some day"));
            waits.push(told.retry_ms);
            assert!(wait <= Duration::from_secs(3), "{policy}: {told:?}");
            Watch::start().pause_until(wait);
            let then = asked(&mut connection, &check);
            if then.limited {
                wrong.push(format!("{policy}: told {told:?}, then {then:?}"));
            }
        }
        print(&format!("{policy}: told to wait {waits:?} ms in an outage"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether some list in an explanation holds an object for this limit, with what is left of it.
fn shows(json: &serde_json::Value, name: &str) -> bool {
    let lists = json.as_object().expect("an object").values().filter_map(serde_json::Value::as_array);
    lists.flatten().filter_map(serde_json::Value::as_object).any(|entry| {
        entry.values().any(|value| value.as_str() == Some(name))
            && entry.get("remaining").is_some_and(|left| left.is_u64())
    })
}

#[test]
fn explanation_shows_every_limit() {
    let redis = Server::plain();
    let stores =
        [lone(&redis), Daemon::start("[policy.several]\nlimits = [\"10/1s\", \"60/3s fixed\", \"1000/1h sliding\"]\n")];
    for daemon in stores {
        let mut connection = daemon.connect().expect("the daemon accepts");
        assert!(!asked(&mut connection, "RATION.CHECK several k COST 3").limited);
        let (_, json) = explained(&mut connection, "several");
        for name in ["10/1s", "60/3s fixed", "1000/1h sliding"] {
            assert!(shows(&json, name), "nothing of {name} in {json}");
        }
    }
}
