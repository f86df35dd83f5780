//! A daemon that may run on a single processor: the thread of the store's connections serves its clients, too.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;

use support::poll::wait_until;
use support::process::Daemon;
use support::resp::{Decoder, encode};
use support::server::{Place, Server};

/// Where processes share the first of the processors that this one may run on.
fn one_processor() -> Place {
    let status = fs::read_to_string("/proc/self/status").expect("proc is mounted");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list");
    let first: String = allowed.trim().chars().take_while(char::is_ascii_digit).collect();
    Place { way: ["taskset", "-c", &first].map(str::to_owned).into(), ..Place::here() }
}

/// The names of a process's threads.
fn threads(daemon: &Daemon) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.id())).expect("it runs");
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(|task| name(task).trim().to_owned()).collect()
}

fn has_data_thread(daemon: &Daemon) -> bool {
    threads(daemon).iter().any(|name| name.starts_with("rationd-data"))
}

/// With a timeout that is long enough for five hundred first checks where one slow processor runs daemon, store and client,
/// and shorter than the second of silence after which a store is taken for lost.
fn with_store(server: &Server, rest: &str) -> String {
    format!("[store]\nurl = {:?}\ntimeout = \"800ms\"\n{rest}\n[policy.api]\nlimits = [\"5/1h fixed\"]\n", server.url())
}

/// Checks these keys, all at once: how many were admitted or not, and by what that was decided.
fn check(daemon: &Daemon, keys: &[String]) -> BTreeMap<(bool, String), usize> {
    let mut stream = UnixStream::connect(daemon.socket()).expect("it listens");
    let mut request = Vec::new();
    keys.iter().for_each(|key| encode(&mut request, &[b"RATION.CHECK", b"api", key.as_bytes()]));
    stream.write_all(&request).expect("it reads");
    let mut decoder = Decoder::default();
    let mut next = || loop {
        if let Some(reply) = decoder.next() {
            return (reply.items()[0].int() == 0, reply.items()[9].text());
        }
        assert!(decoder.fill(&mut stream).expect("it writes"), "it hung up: {}", daemon.log());
    };
    let mut decided = BTreeMap::new();
    keys.iter().for_each(|_| *decided.entry(next()).or_default() += 1);
    decided
}

fn keys(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name}{number}")).collect()
}

#[test]
fn no_data_thread_runs_beside_the_one_of_the_store() {
    let (server, place) = (Server::plain(), one_processor());
    let daemon = Daemon::start_at(&place, &with_store(&server, ""));
    assert!(!has_data_thread(&daemon), "{:?}", threads(&daemon));
    // Without a store there is no such thread, and what somebody asks for is done.
    assert!(has_data_thread(&Daemon::start_at(&place, "")));
    assert!(has_data_thread(&Daemon::start_at(&place, &format!("threads = 2\n{}", with_store(&server, "")))));
}

/// Many keys at once, a store that answers none of them, and an end that hands back what was leased.
#[test]
fn what_it_leases_it_gives_and_hands_back_and_a_store_that_stands_still_keeps_nobody_waiting() {
    let (server, place) = (Server::plain(), one_processor());
    let config = with_store(&server, "");
    let mut daemon = Daemon::start_at(&place, &config);
    let (leased, new) = (keys("leased", 500), keys("new", 500));
    let all = |is_admitted, by: &str| BTreeMap::from([((is_admitted, by.to_owned()), 500)]);
    assert_eq!(check(&daemon, &leased), all(true, "store"));
    server.pause();
    assert_eq!(check(&daemon, &new), all(false, "policy"), "alone, and without a store: {}", daemon.log());
    assert_eq!(daemon.ask("PING").text(), "PONG");
    server.resume();
    let is_back = |daemon: &Daemon| check(daemon, &keys("newer", 1)).into_keys().all(|(is_admitted, _)| is_admitted);
    wait_until("the store is asked again", 20, || is_back(&daemon));
    assert_eq!(daemon.terminate().code(), Some(0), "{}", daemon.log());

    // One was spent of each, and the other four are there.
    let next = Daemon::start_at(&place, &config);
    let admitted = |decided: BTreeMap<(bool, String), usize>| -> usize {
        decided.into_iter().filter(|((is_admitted, _), _)| *is_admitted).map(|(_, count)| count).sum()
    };
    let left: Vec<_> = (0..5).map(|_| admitted(check(&next, &leased))).collect();
    assert_eq!(left, [500, 500, 500, 500, 0]);
}
