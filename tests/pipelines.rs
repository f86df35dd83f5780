//! Deep pipelines: clients that write all of one before they read, those that never read, and what both cost.

use crate::support;

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::wire::value::Value;
use support::clock::Watch;
use support::daemon::{Client, TestDaemon, encode, flood, show, until};
use support::memory::{peak_of, resident_of};
use support::poll::wait_until;
use support::process::Daemon;

const MIB: u64 = 1 << 20;

/// A daemon whose policy `deep` no test spends, with these bounds.
fn daemon(kept: usize, kept_in_all: usize, stall_after: Duration) -> TestDaemon {
    let spec = PolicySpec { limits: vec!["1000000/1h fixed from-first".into()], ..PolicySpec::default() };
    let policies = PolicySet::compile(&[("deep".to_owned(), spec)].into()).expect("a right policy");
    TestDaemon::with(|options| {
        options.policies.store(std::sync::Arc::new(policies));
        options.limits.kept = kept;
        options.limits.kept_in_all = kept_in_all;
        options.limits.stall_after = stall_after;
    })
}

fn default_daemon() -> TestDaemon {
    daemon(32 << 20, 256 << 20, Duration::from_secs(10))
}

/// What the `number`th check of a key is answered begins with.
fn assert_charged(reply: &Value, number: i64) {
    let fields = reply.as_array().unwrap_or_else(|| panic!("{number}: {reply:?}"));
    let seen: Vec<_> = fields[..3].iter().map(|field| field.as_integer()).collect();
    assert_eq!(seen, [Some(0), Some(1_000_000), Some(1_000_000 - number)], "the {number}th check");
}

#[test]
fn a_whole_pipeline_may_be_written_before_it_is_read() {
    let daemon = default_daemon();
    for count in [1_000, 20_000, 100_000] {
        let mut client = daemon.client();
        let key = count.to_string();
        client.send(&encode(&[b"RATION.CHECK", b"deep", key.as_bytes()]).repeat(count));
        (1..=count as i64).for_each(|number| assert_charged(&client.reply().expect("an answer"), number));
        assert_eq!(client.ask("PING"), "PONG");
    }
    until("nothing is kept any more", || daemon.daemon().stats().kept == 0);
}

#[test]
fn a_whole_transaction_may_be_written_before_it_is_read() {
    let daemon = default_daemon();
    for count in [1_000, 20_000, 100_000] {
        let mut client = daemon.client();
        let key = count.to_string();
        client.send(b"MULTI\r\n");
        client.send(&encode(&[b"RATION.CHECK", b"deep", key.as_bytes()]).repeat(count));
        client.send(b"EXEC\r\nPING\r\n");
        assert_eq!(show(&client.reply().expect("an answer")), "OK");
        (0..count).for_each(|_| assert_eq!(show(&client.reply().expect("an answer")), "QUEUED"));
        assert_eq!(client.array(), count);
        (1..=count as i64).for_each(|number| assert_charged(&client.reply().expect("an answer"), number));
        assert_eq!(show(&client.reply().expect("an answer")), "PONG");
    }
    until("nothing is kept any more", || daemon.daemon().stats().kept == 0);
}

#[test]
fn exec_stops_where_too_much_waits_and_goes_on_when_it_is_read() {
    let daemon = daemon(MIB as usize, 8 << 20, Duration::from_secs(60));
    let mut client = daemon.client();
    client.send(b"MULTI\r\n");
    client.send(&b"COMMAND DOCS\r\n".repeat(1_000));
    client.send(b"EXEC\r\nPING\r\n");
    until("answers are kept", || daemon.daemon().stats().kept > MIB / 2);
    let mut other = daemon.client();
    for _ in 0..100 {
        assert_eq!(other.ask("PING"), "PONG");
        let kept = daemon.daemon().stats().kept;
        assert!(kept <= MIB + (64 << 10), "{kept} bytes are kept for a client that reads nothing");
    }
    assert_eq!(show(&client.reply().expect("an answer")), "OK");
    (0..1_000).for_each(|_| assert_eq!(show(&client.reply().expect("an answer")), "QUEUED"));
    assert_eq!(client.array(), 1_000);
    let first = client.reply().expect("an answer");
    assert!(show(&first).contains("ration.check"), "{first:?}");
    (1..1_000).for_each(|_| assert_eq!(client.reply().as_ref(), Some(&first)));
    assert_eq!(show(&client.reply().expect("an answer")), "PONG");
}

#[test]
fn a_transaction_for_which_there_is_no_room_is_told_so_and_runs_nothing() {
    let daemon = daemon(MIB as usize, 8 << 20, Duration::from_secs(60));
    let mut client = daemon.client();
    client.send(b"MULTI\r\nRATION.CHECK deep k\r\n");
    client.send(&encode(&[b"ECHO", &[b'x'; 1_000]]).repeat(1_500));
    client.send(b"EXEC\r\n");
    assert_eq!(show(&client.reply().expect("an answer")), "OK");
    let answers: Vec<_> = (0..1_501).map(|_| show(&client.reply().expect("an answer"))).collect();
    let errors: Vec<_> = answers.iter().filter(|answer| *answer != "QUEUED").collect();
    assert_eq!(errors, ["-ERR there is no memory for so long a transaction: EXEC will discard it"]);
    let end = show(&client.reply().expect("an answer"));
    assert_eq!(end, "-EXECABORT Transaction discarded because of previous errors.");
    assert_charged(&client.ask_bytes(&[b"RATION.CHECK", b"deep", b"k"]), 1);
    assert_eq!(daemon.daemon().stats().kept, 0);
}

/// They read nothing, and leave room for those who do.
#[test]
fn many_greedy_clients_stay_within_the_budget_of_all() {
    let daemon = daemon(2 << 20, 4 << 20, Duration::from_secs(2));
    let line = encode(&[b"RATION.CHECK", b"deep", b"k"]);
    let mut greedy: Vec<_> = (0..20).map(|_| daemon.client()).collect();
    for client in &mut greedy {
        flood(client, &line);
    }
    let kept = daemon.daemon().stats().kept;
    assert!(kept <= 4 * MIB + 20 * (64 << 10), "{kept} bytes are kept for twenty clients that read nothing");
    let mut other = daemon.client();
    other.send(&encode(&[b"RATION.CHECK", b"deep", b"other"]).repeat(2_000));
    (1..=2_000).for_each(|number| assert_charged(&other.reply().expect("an answer"), number));
    // Where one is closed, there is room for what others have written: with less than a MiB unread they may stay.
    until("those who let the most wait are closed", || daemon.daemon().stats().stalled >= 2);
    let kept = daemon.daemon().stats().kept;
    assert!(kept <= 4 * MIB + 20 * (64 << 10), "{kept} bytes are kept for twenty clients that read nothing");
    drop(greedy);
    until("nothing is kept any more", || daemon.daemon().stats().kept == 0);
    assert_eq!(other.ask("PING"), "PONG");
}

/// Where memory is short a long answer that charges nothing is an error, and all else goes on.
#[test]
fn long_answers_are_refused_where_there_is_no_room() {
    let daemon = daemon(2 << 20, 64 << 10, Duration::from_secs(60));
    // Long keys, so that a list of them is a long answer.
    let mut client = daemon.client();
    for number in 0..1_000 {
        let key = format!("{number:0200}");
        assert_charged(&client.ask_bytes(&[b"RATION.CHECK", b"deep", key.as_bytes()]), 1);
    }
    let mut greedy = daemon.client();
    flood(&mut greedy, &encode(&[b"RATION.CHECK", b"deep", b"k"]));
    let refused = client.ask_bytes(&[b"RATION.KEYS", b"COUNT", b"1000"]);
    assert!(show(&refused).starts_with("-ERR too much waits to be sent"), "{refused:?}");
    assert_charged(&client.ask_bytes(&[b"RATION.CHECK", b"deep", b"other"]), 1);
    assert_eq!(client.ask_bytes(&[b"ECHO", &[b'x'; 10_000]]), Value::Bulk(vec![b'x'; 10_000]));
}

/// A request that is half when memory is short ends its connection: what it would need could not be kept.
#[test]
fn a_long_request_that_is_half_is_ended_where_there_is_no_room() {
    let daemon = daemon(2 << 20, 64 << 10, Duration::from_secs(60));
    let mut greedy = daemon.client();
    flood(&mut greedy, &encode(&[b"RATION.CHECK", b"deep", b"k"]));
    let (mut long, mut other) = (daemon.client(), daemon.client());
    long.send(&encode(&[b"ECHO", &vec![b'x'; 300_000]])[..20_000]);
    let told = show(&long.reply().expect("a last word"));
    assert!(told.starts_with("-ERR") && told.contains("no memory is left for so long a request"), "{told}");
    assert!(long.reply().is_none(), "it is closed");
    assert_charged(&other.ask_bytes(&[b"RATION.CHECK", b"deep", b"other"]), 1);
}

/// Many clients write a pipeline to its end before they read, and on a busy machine that takes them long.
#[test]
fn who_still_writes_its_pipeline_is_not_closed() {
    let stall_after = Duration::from_millis(300);
    let daemon = daemon(32 << 20, 256 << 20, stall_after);
    let (mut client, mut other) = (daemon.client(), daemon.client());
    let check = encode(&[b"RATION.CHECK", b"deep", b"k"]);
    client.send(&check.repeat(40_000));
    until("more than a MiB is kept", || daemon.daemon().stats().kept > 2 * MIB);
    let (mut written, watch) = (40_000, Watch::start());
    while watch.elapsed() < 4 * stall_after {
        client.send(&check);
        written += 1;
        assert_eq!(other.ask("PING"), "PONG");
    }
    (1..=written).for_each(|number| assert_charged(&client.reply().expect("an answer"), number));
    assert_eq!(daemon.daemon().stats().stalled, 0);
}

#[test]
fn who_reads_slowly_is_not_closed() {
    let daemon = daemon(32 << 20, 256 << 20, Duration::from_secs(2));
    let mut client = daemon.client();
    client.send(&encode(&[b"RATION.CHECK", b"deep", b"k"]).repeat(40_000));
    until("more than a MiB is kept", || daemon.daemon().stats().kept > 2 * MIB);
    // Five seconds of a little each 100 ms: the socket takes more only when a part of it is free.
    let mut number = 0;
    for _ in 0..50 {
        std::thread::park_timeout(Duration::from_millis(100));
        for _ in 0..200 {
            number += 1;
            assert_charged(&client.reply().expect("an answer"), number);
        }
    }
    (number + 1..=40_000).for_each(|number| assert_charged(&client.reply().expect("an answer"), number));
    assert_eq!((client.ask("PING").as_str(), daemon.daemon().stats().stalled), ("PONG", 0));
}

/// Writes `begin` and then `again` for ever, and never reads, until the daemon has closed.
fn write_until_closed(stream: &mut UnixStream, begin: &[u8], again: &[u8]) {
    stream.set_write_timeout(Some(Duration::from_secs(40))).expect("a time-out is not zero");
    let mut result = stream.write_all(begin);
    while result.is_ok() {
        result = stream.write_all(again);
    }
    let error = result.expect_err("the loop has ended");
    assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "not closed: {error}");
}

/// A real process for each, with all defaults: what it takes of memory is what one client that never reads costs.
#[test]
fn one_that_never_reads_costs_forty_mib_and_is_closed_with_a_line_in_the_log() {
    let check = encode(&[b"RATION.CHECK", b"deep", b"k"]);
    let transaction = [b"MULTI\r\n", &check.repeat(400_000)[..], b"EXEC\r\n"].concat();
    let cases: [(&str, &[u8], &[u8]); 3] =
        [("checks", b"", &check), ("long answers", b"", b"COMMAND DOCS\r\n"), ("EXEC", &transaction, b"PING\r\n")];
    let run = |(name, begin, again): (&str, &[u8], &[u8])| {
        let daemon = Daemon::start("[policy.deep]\nlimits = [\"1000000/1h\"]\n");
        let mut other = Client::connect(&daemon.socket());
        other.ask("PING");
        let before = resident_of(daemon.id());
        let mut stream = UnixStream::connect(daemon.socket()).expect("it listens");
        write_until_closed(&mut stream, begin, again);
        assert_eq!(other.ask("PING"), "PONG");
        let cost = peak_of(daemon.id()).saturating_sub(before);
        assert!(cost <= 40 * MIB, "{name}: a client that never reads costs {} MiB", cost >> 20);
        let told = |log: &str| log.lines().filter(|line| line.contains("a client is closed")).count();
        wait_until("the log tells of it", 5, || told(&daemon.log()) > 0);
        let log = daemon.log();
        let lines = told(&log);
        assert!(lines == 1 && log.contains("for 10s"), "{name}: {log}");
        let stalled = || daemon.metrics().sum("rationd_connections_total", &["outcome=\"stalled\""]);
        wait_until("the closed one is counted", 5, || stalled() == 1.0);
        println!("{name}: {:.1} MiB", cost as f64 / MIB as f64);
    };
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || run(case));
        }
    });
}
