//! Requests that take more than one decision: several keys, holds, sub-leases, headers, explanations;
//! from a client's side, on the embedded store and on three nodes of a real Redis.

use crate::support;

use std::sync::atomic::{AtomicUsize, Ordering};

use rationd::wire::value::Value;
use support::daemon::{Client, TestDaemon, show};
use support::poll::wait_until;
use support::process::Daemon;
use support::server::Server;

/// The integer at `index` of a reply.
fn number(reply: &Value, index: usize) -> i64 {
    match reply.as_array().map(|values| &values[index]) {
        Some(Value::Integer(number)) => *number,
        other => panic!("an integer was wanted, not {other:?}"),
    }
}

fn text(reply: &Value, index: usize) -> String {
    match reply.as_array().map(|values| &values[index]) {
        Some(Value::Bulk(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("text was wanted, not {other:?}"),
    }
}

fn ask(client: &mut Client, line: &str) -> Value {
    let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    client.ask_bytes(&words)
}

fn remaining(client: &mut Client, policy: &str, key: &str) -> i64 {
    number(&ask(client, &format!("RATION.CHECK {policy} {key} PEEK")), 2)
}

#[test]
fn several_keys_are_charged_all_or_not_at_all() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let passed = ask(&mut client, "RATION.MCHECK 2 api a 2 api acme 30");
    assert_eq!((number(&passed, 0), passed.as_array().unwrap().len()), (0, 3));
    assert_eq!((remaining(&mut client, "api", "a"), remaining(&mut client, "api", "acme")), (3, 1970));
    for line in ["RATION.MCHECK 2 api a 4 api acme 30", "RATION.MCHECK 2 api acme 30 api a 4"] {
        let denied = ask(&mut client, line);
        assert_eq!(number(&denied, 0), 1, "{line}");
        let verdicts: Vec<i64> = denied.as_array().unwrap()[1..].iter().map(|told| number(told, 0)).collect();
        assert_eq!(verdicts.iter().sum::<i64>(), 1, "the one that denied says so: {verdicts:?}");
        assert_eq!(remaining(&mut client, "api", "a"), 3);
        assert!(remaining(&mut client, "api", "acme") >= 1970, "{line}");
    }
    let json: serde_json::Value = serde_json::from_str(&client.ask("RATION.STATS")).unwrap();
    let checks = json["policies"]["api"]["checks"].as_array().unwrap();
    let counted = |verdict: &str| {
        checks.iter().filter(|c| c["verdict"] == verdict).map(|c| c["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((counted("allow"), counted("deny")), (2, 2), "what came to nothing is not counted: {json}");
    // What counts nothing takes part, too; and a policy that only watches denies nothing.
    assert_eq!(number(&ask(&mut client, "RATION.MCHECK 2 api evil 1 api a 1"), 0), 1);
    assert_eq!(remaining(&mut client, "api", "a"), 3);
    assert_eq!(number(&ask(&mut client, "RATION.MCHECK 3 free x 9 watched w 9 api a 1"), 0), 0);
    assert_eq!(remaining(&mut client, "api", "a"), 2);
}

#[test]
fn the_same_key_twice_is_charged_twice_or_not_at_all() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert_eq!(number(&ask(&mut client, "RATION.MCHECK 2 api k 3 api k 3"), 0), 1);
    assert_eq!(remaining(&mut client, "api", "k"), 5);
    assert_eq!(number(&ask(&mut client, "RATION.MCHECK 2 api k 3 api k 2"), 0), 0);
    assert_eq!(remaining(&mut client, "api", "k"), 0);
}

#[test]
fn what_comes_behind_a_request_sees_what_it_did() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let lines = [
        ("RATION.MCHECK 2 api near 2 api far 9", "1 0 5 5 "),
        ("RATION.CHECK api near PEEK", "0 5 5 "),
        ("RATION.HOLD api held 3", "0 5 2 "),
        ("RATION.CHECK api held PEEK", "0 5 2 "),
        ("RATION.LEASE api lent 1", "1 "),
        ("RATION.RETURN api lent 1", "OK"),
        ("RATION.CHECK api lent PEEK", "0 5 5 "),
        ("RATION.HEADERS api told", "0 ratelimit-policy "),
        ("RATION.CHECK api told PEEK", "0 5 4 "),
    ];
    let pipeline = lines.map(|(line, _)| format!("{line}\r\n")).concat();
    client.send(pipeline.as_bytes());
    for (line, wanted) in lines {
        let reply = show(&client.reply().unwrap());
        assert!(reply.starts_with(wanted), "{line}: {reply}");
    }
    for key in ["near", "far", "held", "lent", "told"] {
        assert_eq!(client.ask(&format!("RATION.RESET api {key}")), "OK");
    }
    client.ask("MULTI");
    client.send(pipeline.as_bytes());
    assert!(lines.iter().all(|_| show(&client.reply().unwrap()) == "QUEUED"));
    let replies = ask(&mut client, "EXEC");
    for ((line, wanted), reply) in lines.iter().zip(replies.as_array().unwrap()) {
        assert!(show(reply).starts_with(wanted), "{line} in a transaction: {}", show(reply));
    }
}

#[test]
fn wrong_requests_say_what_was_wanted() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for (line, wanted) in [
        ("RATION.MCHECK 0", "-ERR 0 keys: RATION.MCHECK takes 1 to 64"),
        ("RATION.MCHECK 65", "-ERR 65 keys: RATION.MCHECK takes 1 to 64"),
        (
            "RATION.MCHECK 2 api k 1",
            "-ERR wrong number of arguments for 'ration.mcheck' command: RATION.MCHECK count policy key cost [policy key cost ...]",
        ),
        ("RATION.MCHECK 1 api k x", "-ERR Couldn't parse as integer: x"),
        ("RATION.MCHECK 2 api k 1 apj k 1", "-ERR unknown policy 'apj': did you mean 'api'?"),
        ("RATION.HEADERS api k STYLE y", "-ERR no header style 'y': there are draft, x and github"),
        ("RATION.HOLD api k 1 TTL", "-ERR syntax error: RATION.HOLD policy key cost [TTL ms]"),
        (
            "RATION.HOLD api k",
            "-ERR wrong number of arguments for 'ration.hold' command: RATION.HOLD policy key cost [TTL ms]",
        ),
        (
            "RATION.SETTLE nonsense 1",
            "-ERR no such hold here: it is settled, its time is over, or another node keeps it",
        ),
        ("EVALSHA 0123 1 k", "-NOSCRIPT No matching script. Please use EVAL."),
    ] {
        assert_eq!(client.ask(line), wanted, "{line}");
    }
    assert_eq!(remaining(&mut client, "api", "k"), 5, "a refused request charges nothing");
}

#[test]
fn an_estimate_is_settled_by_what_it_really_was() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let hold = |client: &mut Client, cost: u64| text(&ask(client, &format!("RATION.HOLD api acme {cost}")), 10);
    let settle = |client: &mut Client, id: &str, cost: u64| client.ask(&format!("RATION.SETTLE {id} {cost}"));
    let left = |client: &mut Client| 2_000 - remaining(client, "api", "acme");
    let (first, second) = (hold(&mut client, 500), hold(&mut client, 500));
    assert!((999..=1_000).contains(&left(&mut client)));
    assert_eq!(settle(&mut client, &first, 100), "100");
    assert!((599..=600).contains(&left(&mut client)));
    assert!(settle(&mut client, &first, 100).starts_with("-ERR no such hold"), "it was settled");
    assert_eq!(settle(&mut client, &second, 700), "700");
    assert!((798..=800).contains(&left(&mut client)));
    let third = hold(&mut client, 1_000);
    // More than there is: what is left is charged, and that is said.
    let charged: i64 = settle(&mut client, &third, 9_000).parse().unwrap();
    assert!((1_200..=1_203).contains(&charged), "{charged}");
    assert!(left(&mut client) >= 1_998);
    let denied = ask(&mut client, "RATION.HOLD api acme 1000");
    assert_eq!((number(&denied, 0), text(&denied, 10)), (1, String::new()));
}

#[test]
fn a_client_is_lent_a_part_and_returns_the_rest() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let lent = ask(&mut client, "RATION.LEASE api acme 100000");
    let granted = number(&lent, 0);
    assert_eq!(granted, 500, "a quarter of what is left");
    assert!((1..=500).contains(&number(&lent, 1)), "a bucket's tokens are lent for half a second at most");
    assert!((1_500..=1_501).contains(&remaining(&mut client, "api", "acme")));
    assert_eq!(client.ask("RATION.RETURN api acme 400"), "OK");
    assert!((1_900..=1_901).contains(&remaining(&mut client, "api", "acme")));
    for _ in 0..5 {
        assert_eq!(number(&ask(&mut client, "RATION.LEASE api k 1"), 0), 1);
    }
    let none = ask(&mut client, "RATION.LEASE api k 1");
    assert_eq!((number(&none, 0), number(&none, 1), number(&none, 2)), (0, 0, 1));
}

#[test]
fn headers_are_ready_to_send() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let told = client.ask("RATION.HEADERS api k COST 2");
    let policy = "ratelimit-policy \"100/1h\";q=100;w=3600,\"5/1h fixed\";q=5;w=3600";
    assert!(told.starts_with(&format!("0 {policy} ratelimit \"5/1h fixed\";r=3;t=")), "{told}");
    client.ask("RATION.HEADERS api k COST 3");
    let denied = ask(&mut client, "RATION.HEADERS api k");
    assert_eq!((number(&denied, 0), text(&denied, 5).as_str()), (1, "retry-after"));
    let (limit, wait) = (text(&denied, 4), text(&denied, 6));
    assert!(limit.ends_with(&format!(";t={wait}")), "{limit} and {wait}");
    assert_eq!(client.ask("RATION.HEADERS api root"), "0", "what is not limited has nothing to tell");
    assert!(client.ask("RATION.HEADERS api k STYLE github").contains("x-ratelimit-used 5"));
}

#[test]
fn an_explanation_charges_nothing() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    client.ask("RATION.CHECK api k COST 5");
    let json: serde_json::Value = serde_json::from_str(&client.ask("RATION.EXPLAIN api k")).unwrap();
    assert_eq!((json["limited"].as_bool(), json["reason"].as_str()), (Some(true), Some("rate")), "{json}");
    assert!(json["why"].as_str().unwrap().starts_with("5/1h fixed is spent: there is more in "), "{json}");
    let fresh: serde_json::Value = serde_json::from_str(&client.ask("RATION.EXPLAIN api fresh")).unwrap();
    assert_eq!((fresh["limited"].as_bool(), fresh["remaining"].as_u64()), (Some(false), Some(5)), "{fresh}");
    assert_eq!(remaining(&mut client, "api", "fresh"), 5);
}

#[test]
fn other_libraries_words_are_understood() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    // throttlecrab: 1 is allowed, max_burst is the limit, and the waits stand the other way round.
    assert_eq!(client.ask("THROTTLE k 15 86400 86400"), "1 15 14 14 0");
    assert_eq!(client.ask("THROTTLE k2 15 1 3600 15"), "1 15 0 100800 0");
    assert_eq!(client.ask("THROTTLE k2 15 1 3600"), "0 15 0 100799 3600");
    assert_eq!(client.ask("THROTTLE k2 15 1 3600 16"), "0 15 0 100799 -1");
    assert_eq!(client.ask("THROTTLE fresh 15 1 3600 0"), "1 15 15 46800 0");
    for script in [
        "return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])",
        "return redis.call(\"CL.THROTTLE\", KEYS[1], ARGV[1],ARGV[2],ARGV[3]);\n",
    ] {
        let words: [&[u8]; 7] = [b"EVAL", script.as_bytes(), b"1", script.as_bytes(), b"15", b"30", b"60"];
        assert_eq!(support::daemon::show(&client.ask_bytes(&words)), "0 16 15 -1 2", "{script}");
    }
    let other: [&[u8]; 3] = [b"EVAL", b"return 1", b"0"];
    assert!(support::daemon::show(&client.ask_bytes(&other)).starts_with("-ERR no scripts run here"));
}

#[test]
fn the_one_script_is_called_by_its_hash_once_its_text_came() {
    let daemon = TestDaemon::start();
    let (mut client, mut other) = (daemon.client(), daemon.client());
    let text = "return redis.call('cl.throttle', KEYS[1], ARGV[1], ARGV[2], ARGV[3])";
    let hash = "c305b0c988f72d6d6e22c904bcc0d535ed68b2a4";
    let by_hash = format!("EVALSHA {hash} 1 k 15 30 60");
    assert_eq!(client.ask(&by_hash), "-NOSCRIPT No matching script. Please use EVAL.");
    assert_eq!(show(&client.ask_bytes(&[b"SCRIPT", b"LOAD", text.as_bytes()])), hash);
    assert_eq!(client.ask(&format!("SCRIPT EXISTS {hash} 00")), "1 0");
    assert_eq!(other.ask(&by_hash), "0 16 15 -1 2", "on another connection");
    assert_eq!(other.ask(&format!("EVALSHA {hash} 1 k 15 30 60 4")), "0 16 11 -1 10", "a quantity");
    assert_eq!(other.ask(&format!("EVALSHA {hash} 1 k 15 0 60")), "-ERR Zero rates are not supported");
    assert_eq!(client.ask("SCRIPT FLUSH"), "OK");
    assert!(client.ask(&by_hash).starts_with("-NOSCRIPT "));
    client.ask_bytes(&[b"EVAL", text.as_bytes(), b"1", b"other", b"15", b"30", b"60"]);
    assert_eq!(client.ask(&format!("EVALSHA {hash} 1 other 15 30 60")), "0 16 14 -1 4", "EVAL teaches it as well");
}

/// Ten thousand requests for two keys on three nodes at once; the second key has half of what the first has, so
/// that most are denied by it: what the first is charged must be what was admitted, and no more.
///
/// A node leases of the first key for all that wait, while the second denies most of them. What nodes so hold and cannot
/// spend is denied to the others until it is given back; whoever goes on asking is then served to the last token.
#[test]
fn nothing_is_half_charged_on_three_nodes() {
    const EACH: usize = 834;
    let store = Server::plain();
    // All of a pipeline arrives at once, and what is denied for the time that it takes is not looked at.
    let config = format!(
        "[store]\nurl = \"{}\"\ntimeout = \"5s\"\n[policy.wide]\nlimits = [\"4000/1d fixed from-first\"]\n[policy.narrow]\nlimits = [\"2000/1d fixed from-first\"]\n",
        store.url()
    );
    let daemons: Vec<Daemon> = (0..3).map(|_| Daemon::start(&config)).collect();
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (index, daemon) in daemons.iter().cycle().take(12).enumerate() {
            let (admitted, socket) = (&admitted, daemon.socket());
            scope.spawn(move || {
                let mut client = Client::connect(&socket);
                let orders: [&[u8]; 2] =
                    [b"RATION.MCHECK 2 wide k 1 narrow k 1\r\n", b"RATION.MCHECK 2 narrow k 1 wide k 1\r\n"];
                client.send(&orders[index % 2].repeat(EACH));
                let passed = (0..EACH).filter(|_| number(&client.reply().expect("a reply"), 0) == 0).count();
                admitted.fetch_add(passed, Ordering::Relaxed);
            });
        }
    });
    let mut admitted = admitted.into_inner() as i64;
    let mut clients: Vec<Client> = daemons.iter().map(|daemon| Client::connect(&daemon.socket())).collect();
    wait_until("both keys' 2000 requests are admitted", 60, || {
        for client in &mut clients {
            client.send(&b"RATION.MCHECK 2 wide k 1 narrow k 1\r\n".repeat(16));
            admitted += (0..16).filter(|_| number(&client.reply().expect("a reply"), 0) == 0).count() as i64;
        }
        admitted >= 2_000
    });
    assert_eq!(admitted, 2_000, "admitted of 2000");
    // Each node gives back what it holds when it leaves; the store then knows what was spent.
    let last = Daemon::start(&config);
    let mut seen = (0, 0);
    for mut daemon in daemons {
        assert!(daemon.terminate().success());
    }
    let mut client = Client::connect(&last.socket());
    for _ in 0..200 {
        seen = (4_000 - remaining(&mut client, "wide", "k"), 2_000 - remaining(&mut client, "narrow", "k"));
        if seen == (admitted, admitted) {
            return;
        }
    }
    panic!("{admitted} were admitted, and the store counts {seen:?}");
}
