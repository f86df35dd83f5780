//! The socket, from a client's side: what is written here is what users see.

use crate::support;

use rationd::wire::value::Value;
use support::daemon::{TestDaemon, encode, flood, show, until};

/// Recorded answers of redis-cell on fresh keys.
#[test]
fn throttle_answers_as_redis_cell_does() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for (line, wanted) in [
        ("CL.THROTTLE user:42 15 30 60", "0 16 15 -1 2"),
        ("CL.THROTTLE user:42 15 30 60", "0 16 14 -1 4"),
        ("CL.THROTTLE user:42 15 30 60 20", "1 16 14 -1 4"),
        ("CL.THROTTLE user:42 15 30 60 0", "0 16 14 -1 4"),
        ("CL.THROTTLE fresh 15 30 60 0", "0 16 16 -1 0"),
        ("cl.throttle one 0 1 60", "0 1 0 -1 60"),
        ("cl.throttle one 0 1 60", "1 1 0 60 60"),
        ("CL.THROTTLE all 15 30 60 16", "0 16 0 -1 32"),
        ("CL.THROTTLE all 15 30 60 1", "1 16 0 2 32"),
        ("CL.THROTTLE user:42 15 30 60 -1", "0 16 15 -1 2"),
        ("CL.THROTTLE user:42 15 30 60 -100", "0 16 16 -1 0"),
        ("CL.THROTTLE never 15 30 60 -5", "0 16 16 -1 0"),
        ("CL.THROTTLE k 15 0 60", "-ERR Zero rates are not supported"),
        ("CL.THROTTLE k 15 30 x", "-ERR Couldn't parse as integer: x"),
        ("CL.THROTTLE k 15", "-ERR Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"),
    ] {
        assert_eq!(client.ask(line), wanted, "{line}");
    }
}

#[test]
fn numbers_of_one_key_may_change() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert_eq!(client.ask("CL.THROTTLE k 15 30 60 16"), "0 16 0 -1 32");
    // Four times the rate: what has been spent stays spent.
    assert!(client.ask("CL.THROTTLE k 15 120 60").starts_with("1 16 0 "), "a changed limit gave a fresh budget");
}

#[test]
fn a_high_rate_without_burst_limits() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let line = encode(&[b"CL.THROTTLE", b"k", b"0", b"100000", b"1"]);
    client.send(&line.repeat(1_000));
    let replies: Vec<String> = (0..1_000).map(|_| show(&client.reply().unwrap())).collect();
    assert!(replies.iter().any(|reply| reply.starts_with("1 1 0 1 ")), "{:?}", &replies[..5]);
    assert!(replies.iter().all(|reply| !reply.starts_with("1 1 0 0")), "retry in nothing");
}

#[test]
fn check_answers_a_decision() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let first = client.ask_bytes(&[b"RATION.CHECK", b"api", b"k"]);
    let fields = first.as_array().unwrap();
    assert_eq!(fields.len(), 10);
    assert_eq!(show(&Value::Array(fields[..4].to_vec())), "0 5 4 -1", "the tightest limit fills the numbers");
    assert_eq!((show(&fields[5]), show(&fields[7]), show(&fields[8])), ("-1".into(), "ok".into(), "5/1h fixed".into()));
    let (reset_s, reset_at) = (fields[4].as_integer().unwrap(), fields[6].as_integer().unwrap());
    assert!((1..=3_600).contains(&reset_s) && reset_at % 3_600_000 == 0, "{first:?}");
    assert!(client.ask("RATION.CHECK api k COST 4").starts_with("0 5 0 -1 "));
    let denied = client.ask("RATION.CHECK api k");
    assert!(denied.starts_with("1 5 0 ") && denied.contains(" rate 5/1h fixed "), "{denied}");
    assert!(client.ask("RATION.CHECK api k COST 6").contains(" -1 "), "never passes");
    assert!(client.ask("RATION.CHECK api k COST 6").contains(" cost "));
}

#[test]
fn peek_charges_nothing_and_refund_and_reset_give_back() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for _ in 0..3 {
        assert!(client.ask("RATION.CHECK api k COST 2 PEEK").starts_with("0 5 5 -1 "), "a peek charged");
    }
    assert!(client.ask("RATION.CHECK api k COST 3").starts_with("0 5 2 -1 "));
    assert_eq!(client.ask("RATION.REFUND api k 2"), "OK");
    assert!(client.ask("RATION.CHECK api k COST 0").starts_with("0 5 4 -1 "));
    assert_eq!(client.ask("RATION.REFUND api k 1000"), "OK");
    assert!(client.ask("RATION.CHECK api k COST 0").starts_with("0 5 5 -1 "), "refunds clamp at full");
    let spent = client.ask("RATION.CHECK api k COST 5");
    assert!(spent.starts_with("0 5 0 -1 "), "{spent}");
    assert_eq!(client.ask("RATION.RESET api k"), "OK");
    assert!(client.ask("RATION.CHECK api k").starts_with("0 5 4 -1 "));
}

#[test]
fn overrides_and_shadows_apply() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert!(client.ask("RATION.CHECK api acme").starts_with("0 2000 1999 -1 "));
    let blocked = client.ask("RATION.CHECK api evil");
    assert!(blocked.starts_with("1 0 0 -1 0 -1 0 blocked  policy"), "{blocked}");
    assert!(client.ask("RATION.CHECK api root").contains(" ok  policy"));
    assert!(client.ask("RATION.CHECK free k COST 99").starts_with("0 "));
    assert!(client.ask("RATION.CHECK watched k").contains(" ok "));
    let shadow = client.ask("RATION.CHECK watched k");
    assert!(shadow.starts_with("0 1 0 -1 ") && shadow.contains(" shadow "), "{shadow}");
    assert!(client.ask("RATION.CHECK watched k PEEK").contains(" shadow "));
    let stats = daemon.daemon().stats();
    let counts: Vec<_> = stats.policies["watched"].checks().map(|(v, r, _, n)| (v.as_str(), r.as_str(), n)).collect();
    assert_eq!(counts, [("allow", "ok", 1), ("allow", "shadow", 1)], "a denial that is not carried out is no denial");
}

#[test]
fn an_unknown_policy_names_those_like_it() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert_eq!(client.ask("RATION.CHECK apii k"), "-ERR unknown policy 'apii': did you mean 'api'?");
    assert_eq!(client.ask("RATION.RESET zzz k"), "-ERR unknown policy 'zzz': there are 'api', 'free', 'watched'");
}

#[test]
fn handshakes_of_clients_are_answered() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let version = env!("CARGO_PKG_VERSION");
    let hello = |proto, id| {
        format!("server rationd version {version} proto {proto} id {id} mode standalone role master modules ")
    };
    let id = client.ask("CLIENT ID");
    for (line, wanted) in [
        ("HELLO", hello(2, &id)),
        ("HELLO 2 AUTH default secret SETNAME me", hello(2, &id)),
        ("CLIENT GETNAME", "me".into()),
        ("HELLO 4", "-NOPROTO unsupported protocol version: HELLO 2 and HELLO 3 are understood".into()),
        ("CLIENT SETINFO LIB-NAME redis-py", "OK".into()),
        ("CLIENT SETNAME you", "OK".into()),
        ("CLIENT GETNAME", "you".into()),
        ("CLIENT NO-EVICT ON", "OK".into()),
        ("CLIENT NO-TOUCH ON", "OK".into()),
        ("CLIENT TRACKING OFF", "OK".into()),
        ("PING", "PONG".into()),
        ("PING hi", "hi".into()),
        ("ECHO hi", "hi".into()),
        ("READONLY", "OK".into()),
        ("AUTH secret", "OK".into()),
        ("SELECT 0", "OK".into()),
        ("SELECT 1", "-ERR DB index is out of range: 0 is the only one".into()),
        ("CONFIG GET save", "save ".into()),
        ("CONFIG GET appendonly", "appendonly no".into()),
        ("CONFIG GET other", "".into()),
        ("COMMAND COUNT", rationd::wire::command_table::COMMANDS.len().to_string()),
        ("COMMAND INFO ping none", "ping -1 fast 0 0 0 nil".into()),
        ("RESET", "RESET".into()),
        ("CLIENT GETNAME", "nil".into()),
        ("FOO bar", "-ERR unknown command 'FOO', with args beginning with: 'bar' (COMMAND LIST names all there are)".into()),
        (
            "SLOWDOWN k 15 30 60",
            "-ERR unknown command 'SLOWDOWN', with args beginning with: 'k' '15' '30' '60' (COMMAND LIST names all there are)".into(),
        ),
    ] {
        assert_eq!(client.ask(line), wanted, "{line}");
    }
    assert!(client.ask("INFO").contains("loading:0\r\n"));
    assert!(client.ask("COMMAND DOCS cl.throttle").contains("max_burst"));
    assert_eq!(client.ask("QUIT"), "OK");
    assert!(client.is_closed());
}

#[test]
fn resp3_has_maps_and_nothing_but_decisions_stay_flat() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let hello = client.ask_bytes(&[b"HELLO", b"3", b"SETNAME", b"me"]);
    assert!(matches!(&hello, Value::Map(pairs) if pairs.len() == 7), "{hello:?}");
    assert!(show(&hello).contains("proto=3"));
    assert!(matches!(client.ask_bytes(&[b"CONFIG", b"GET", b"save"]), Value::Map(_)));
    assert!(matches!(client.ask_bytes(&[b"COMMAND", b"DOCS"]), Value::Map(_)));
    assert!(
        matches!(client.ask_bytes(&[b"CL.THROTTLE", b"k", b"1", b"1", b"1"]), Value::Array(five) if five.len() == 5)
    );
    assert!(matches!(client.ask_bytes(&[b"RATION.CHECK", b"api", b"k"]), Value::Array(ten) if ten.len() == 10));
    client.ask("RESET");
    client.send(b"CLIENT GETNAME\r\n");
    assert_eq!(client.reply(), Some(Value::Null));
}

#[test]
fn a_pipeline_of_a_thousand_is_answered_in_order() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let mut bytes = Vec::new();
    for number in 0..1_000 {
        bytes.extend(encode(&[b"ECHO", number.to_string().as_bytes()]));
        bytes.extend(encode(&[b"CL.THROTTLE", b"k", b"999", b"1", b"3600"]));
    }
    client.send(&bytes);
    for number in 0..1_000 {
        assert_eq!(show(&client.reply().unwrap()), number.to_string());
        assert!(show(&client.reply().unwrap()).starts_with(&format!("0 1000 {} -1 ", 999 - number)));
    }
    assert!(client.ask("CL.THROTTLE k 999 1 3600").starts_with("1 1000 0 "));
}

#[test]
fn transactions_queue_and_run_in_order() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    for (line, wanted) in [
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("CL.THROTTLE k 15 30 60", "QUEUED"),
        ("CL.THROTTLE k 15 30 60", "QUEUED"),
        ("RATION.CHECK none k", "QUEUED"),
        ("EXEC", "0 16 15 -1 2 0 16 14 -1 4 -ERR unknown policy 'none': there are 'api', 'free', 'watched'"),
        ("MULTI", "OK"),
        ("CL.THROTTLE k 15 30 60", "QUEUED"),
        ("DISCARD", "OK"),
        ("MULTI", "OK"),
        ("CL.THROTTLE k 15 30 60", "QUEUED"),
        ("NONSENSE", "-ERR unknown command 'NONSENSE', with args beginning with: (COMMAND LIST names all there are)"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("CL.THROTTLE k 15 30 60", "0 16 13 -1 6"),
        ("MULTI", "OK"),
        ("EXEC", ""),
    ] {
        assert_eq!(client.ask(line), wanted, "{line}");
    }
}

#[test]
fn inline_commands_work_for_people() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    client.send(b"\r\nCL.THROTTLE \"user 42\" 15 30 60\r\nCL.THROTTLE 'user 42' 15 30 60\nPING\r\n");
    assert_eq!(show(&client.reply().unwrap()), "0 16 15 -1 2");
    assert_eq!(show(&client.reply().unwrap()), "0 16 14 -1 4");
    assert_eq!(show(&client.reply().unwrap()), "PONG");
}

#[test]
fn malformed_input_closes_only_its_own_connection() {
    let daemon = TestDaemon::start();
    let mut healthy = daemon.client();
    assert_eq!(healthy.ask("PING"), "PONG");
    for (bytes, wanted) in [
        (&b"*x\r\n"[..], "-ERR Protocol error: invalid multibulk length: 1 to 1024 arguments are understood"),
        (b"*1\r\n+PING\r\n", "-ERR Protocol error: expected '$', got '+'"),
        (b"*1\r\n$1048577\r\n", "-ERR Protocol error: invalid bulk length: a request has 1048576 bytes at most"),
        (b"*1025\r\n", "-ERR Protocol error: invalid multibulk length: 1 to 1024 arguments are understood"),
        (b"ECHO \"a\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        (b"GET / HTTP/1.1\r\n", "-ERR Protocol error: HTTP on a connection that speaks RESP: open another"),
    ] {
        let mut broken = daemon.client();
        broken.send(b"PING\r\n");
        assert_eq!(show(&broken.reply().unwrap()), "PONG");
        broken.send(bytes);
        assert_eq!(show(&broken.reply().unwrap()), wanted);
        assert!(broken.is_closed());
    }
    assert_eq!(healthy.ask("PING"), "PONG");
    until("all broken connections are gone", || daemon.daemon().stats().connections == 1);
}

#[test]
fn keys_are_bytes_up_to_their_bound() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let keys: [&[u8]; 4] = [b"\xff\xfe\x00", b"a\r\nb", b"", &vec![0x80; 65_536]];
    for key in keys {
        let answer = client.ask_bytes(&[b"CL.THROTTLE", key, b"15", b"30", b"60"]);
        assert_eq!(show(&answer), "0 16 15 -1 2");
        let answer = client.ask_bytes(&[b"CL.THROTTLE", key, b"15", b"30", b"60"]);
        assert_eq!(show(&answer), "0 16 14 -1 4");
    }
    let answer = client.ask_bytes(&[b"CL.THROTTLE", &vec![0x80; 65_537], b"15", b"30", b"60"]);
    assert_eq!(show(&answer), "-ERR the key has 65537 bytes: at most 65536 are allowed");
    assert_eq!(client.ask("PING"), "PONG");
}

#[test]
fn fragments_make_whole_commands() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let bytes = encode(&[b"CL.THROTTLE", b"k", b"15", b"30", b"60"]);
    for byte in &bytes {
        client.send(&[*byte]);
    }
    assert_eq!(show(&client.reply().unwrap()), "0 16 15 -1 2");
    let long = vec![b'x'; 900_000];
    assert_eq!(client.ask_bytes(&[b"ECHO", &long]), Value::Bulk(long));
}

#[test]
fn the_last_words_of_a_half_closed_client_are_answered() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    client.send(b"CL.THROTTLE k 15 30 60\r\nPING\r\nPI");
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(show(&client.reply().unwrap()), "0 16 15 -1 2");
    assert_eq!(show(&client.reply().unwrap()), "PONG");
    assert!(client.is_closed());
}

#[test]
fn a_half_closed_client_is_told_what_did_not_fit_at_once() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let long = vec![b'x'; 900_000];
    client.send(&encode(&[b"ECHO", &long]));
    client.send(&encode(&[b"ECHO", &long]));
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(daemon.client().ask("PING"), "PONG");
    for _ in 0..2 {
        assert!(matches!(client.reply(), Some(Value::Bulk(text)) if text == long));
    }
    assert!(client.is_closed());
}

#[test]
fn a_slow_reader_hurts_nobody_and_loses_nothing() {
    let daemon = TestDaemon::with(|options| options.limits.kept = 256 << 10);
    let mut slow = daemon.client();
    let line = encode(&[b"ECHO", &[b'x'; 1_000]]);
    let written = flood(&mut slow, &line);
    assert!(written < 4 << 20, "{written} bytes were read for a client that reads nothing");
    let mut other = daemon.client();
    for _ in 0..100 {
        assert_eq!(other.ask("PING"), "PONG");
    }
    // The client begins to read: everything whole that it sent is answered.
    for _ in 0..written / line.len() {
        assert!(matches!(slow.reply(), Some(Value::Bulk(text)) if text.len() == 1_000));
    }
}

/// Each command is read alone, so the daemon stops reading between two of them when too many replies wait. When the
/// client has read enough, the daemon writes all that waits at once: nothing is left to write, whose end would tell it
/// to read on.
#[test]
fn a_client_whose_replies_all_fit_at_once_is_read_again() {
    let daemon = TestDaemon::with(|options| options.limits.kept = 20_000);
    let (mut slow, mut other) = (daemon.client(), daemon.client());
    let line = encode(&[b"ECHO", &[b'x'; 1_000]]);
    for _ in 0..150 {
        slow.send(&line);
        assert_eq!(other.ask("PING"), "PONG");
    }
    for _ in 0..150 {
        assert!(matches!(slow.reply(), Some(Value::Bulk(text)) if text.len() == 1_000));
    }
}

#[test]
fn small_requests_with_large_replies_are_held_too() {
    let daemon = TestDaemon::with(|options| options.limits.kept = 256 << 10);
    let mut slow = daemon.client();
    let line = b"COMMAND DOCS\r\n";
    let written = flood(&mut slow, line);
    assert!(written < 2 << 20, "{written} bytes were read for a client that reads nothing");
    let mut other = daemon.client();
    assert_eq!(other.ask("PING"), "PONG");
    for _ in 0..written / line.len() {
        assert!(slow.reply().is_some());
    }
}

#[test]
fn connections_are_bounded() {
    let daemon = TestDaemon::with(|options| options.limits.connections = 2);
    let (mut first, mut second) = (daemon.client(), daemon.client());
    assert_eq!((first.ask("PING"), second.ask("PING")), ("PONG".into(), "PONG".into()));
    let mut third = daemon.client();
    assert_eq!(third.reply(), Some(Value::Error("ERR max number of clients reached".into())));
    assert!(third.is_closed());
    drop(first);
    until("a place is free again", || daemon.daemon().stats().connections == 1);
    assert_eq!(daemon.client().ask("PING"), "PONG");
    assert_eq!(daemon.daemon().stats().refused, 1);
}

#[test]
fn only_listed_uids_may_connect() {
    let daemon = TestDaemon::with(|options| options.limits.allow_uids = vec![u32::MAX - 1]);
    let mut client = daemon.client();
    assert!(show(&client.reply().unwrap()).starts_with("-NOPERM"));
    assert!(client.is_closed());
    let daemon = TestDaemon::with(|options| options.limits.connections_per_uid = 1);
    let mut first = daemon.client();
    assert_eq!(first.ask("PING"), "PONG");
    assert!(show(&daemon.client().reply().unwrap()).starts_with("-ERR max number"));
}

#[test]
fn the_command_line_is_answered_in_json() {
    let daemon = TestDaemon::with(|options| options.reload = Some(std::sync::Arc::new(|_| Err("line 3".into()))));
    let mut client = daemon.client();
    client.ask("RATION.CHECK api k");
    client.ask_bytes(&[b"RATION.CHECK", b"free", b"k"]);
    let json = |text: String| serde_json::from_str::<serde_json::Value>(&text).expect("JSON");
    let keys = json(client.ask("RATION.KEYS COUNT 10"));
    assert_eq!((&keys[0]["policy"], &keys[0]["key"]), (&"api".into(), &"k".into()), "{keys}");
    let policies = json(client.ask("RATION.POLICIES"));
    assert_eq!(policies.as_array().unwrap().len(), 3);
    let stats = json(client.ask("RATION.STATS"));
    assert_eq!(stats["policies"]["api"]["checks"][0]["count"], 1, "{stats}");
    assert_eq!(stats["policies"]["free"]["checks"][0]["source"], "policy", "{stats}");
    assert_eq!(client.ask("RATION.RELOAD"), "-ERR line 3");
    // Later replies stand behind an answer that takes longer.
    client.send(b"RATION.STATS\r\nPING\r\n");
    assert!(show(&client.reply().unwrap()).starts_with('{'));
    assert_eq!(show(&client.reply().unwrap()), "PONG");
}

#[test]
fn a_reload_applies_to_the_next_check_and_keeps_what_was_spent() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert!(client.ask("RATION.CHECK api k COST 5").starts_with("0 5 0 "));
    let spec = rationd::core::policy::PolicySpec { limits: vec!["7/1h fixed".into()], ..Default::default() };
    let policies = rationd::core::policy::PolicySet::compile(&[("api".to_owned(), spec)].into()).unwrap();
    daemon.daemon().reload(policies);
    assert!(client.ask("RATION.CHECK free k").starts_with("-ERR unknown policy"));
    assert!(client.ask("RATION.CHECK api k PEEK").starts_with("0 7 "));
}

#[test]
fn stopping_answers_what_has_come_and_removes_the_socket() {
    let mut daemon = TestDaemon::start();
    let mut client = daemon.client();
    assert_eq!(client.ask("PING"), "PONG");
    client.send(&encode(&[b"CL.THROTTLE", b"k", b"15", b"30", b"60"]).repeat(3));
    assert_eq!(daemon.stop(), 0);
    for left in [15, 14, 13] {
        assert!(show(&client.reply().expect("answered before the end")).starts_with(&format!("0 16 {left} ")));
    }
    assert!(client.is_closed());
    assert!(!daemon.socket.exists());
}

#[test]
fn a_living_daemons_socket_is_not_taken() {
    use rationd::serve::socket::{Socket, SocketError};
    let daemon = TestDaemon::start();
    assert!(matches!(Socket::bind(&daemon.socket, 0o600, None), Err(SocketError::InUse(_))));
    assert_eq!(daemon.client().ask("PING"), "PONG");
    let directory = tempfile::tempdir().unwrap();
    let stale = directory.path().join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    drop(Socket::bind(&stale, 0o660, None).expect("a dead daemon's file is replaced"));
    let file = directory.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(matches!(Socket::bind(&file, 0o600, None), Err(SocketError::Occupied(_))));
    use std::os::unix::fs::PermissionsExt;
    let socket = Socket::bind(&directory.path().join("made/for/it.sock"), 0o640, None).unwrap();
    assert_eq!(std::fs::metadata(socket.path()).unwrap().permissions().mode() & 0o777, 0o640);
}

/// Whichever thread accepts a connection. Without that, the thread that is awake anyway takes nearly all of them.
#[test]
fn connections_are_served_by_the_thread_that_has_the_fewest() {
    const THREADS: usize = 3;
    const EACH: usize = 4;
    let daemon = TestDaemon::with(|options| options.threads = THREADS);
    let state = daemon.daemon().state().clone();
    let mut clients: Vec<_> = (0..THREADS * EACH).map(|_| daemon.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        for _ in 0..5 {
            assert!(client.ask(&format!("CL.THROTTLE {number} 15 30 60")).starts_with("0 16 "));
        }
    }
    assert_eq!(state.admission.seated(), [EACH; THREADS]);
    assert_eq!(state.commands_of_threads(), [5 * EACH as u64; THREADS], "they run where they are counted");
    // Who goes leaves room: those who come next fill it, and nobody is moved.
    clients.drain(..THREADS);
    until("they have gone", || state.admission.open() == THREADS * (EACH - 1));
    clients.extend((0..THREADS).map(|_| daemon.client()));
    for client in &mut clients {
        assert_eq!(client.ask("PING"), "PONG");
    }
    assert_eq!(state.admission.seated(), [EACH; THREADS]);
}
