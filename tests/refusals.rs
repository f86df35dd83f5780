//! A store that is there and refuses: for want of a password, a right, memory or a disk, while it loads, while a script
//! runs, or as it has become a replica. Each is brought about in a real Redis under a running daemon, lasts for three
//! seconds, and is put right: every check is answered, none with an error, the log says what Redis said, nothing goes
//! over, and the daemon leases again by itself.

use crate::support;

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;

use redis::{Cmd, Connection, ConnectionLike};
use support::clock::Watch;
use support::poll::wait_until;
use support::process::Daemon;
use support::resp::Reply;
use support::server::{ACL_RULES, Server};

const POLICIES: &str = "
[policy.hot]
limits = [\"1000/1s fixed\"]
[policy.quota]
limits = [\"10/366d fixed\"]
";

/// So long the store refuses.
const REFUSING: Duration = Duration::from_secs(3);

fn daemon(url: &str) -> Daemon {
    Daemon::start(&format!("[store]\nurl = \"{url}\"\n{POLICIES}"))
}

/// Sends commands, each a line, on a connection that stands already.
fn run(redis: &mut Connection, lines: &[&str]) {
    for line in lines {
        let mut command = Cmd::new();
        command.arg(line.split(' ').map(|word| if word == "''" { "" } else { word }).collect::<Vec<_>>());
        let told = redis.req_command(&command).and_then(redis::Value::extract_error);
        told.unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

/// What was answered to some checks: how many were let pass and denied by each source, and the longest wait.
#[derive(Debug, Default)]
struct Answers {
    allowed: BTreeMap<String, u32>,
    denied: BTreeMap<String, u32>,
    longest: Duration,
}

impl Answers {
    fn allowed(&self) -> u32 {
        self.allowed.values().sum()
    }

    fn all(&self) -> u32 {
        self.allowed() + self.denied.values().sum::<u32>()
    }
}

fn check(daemon: &Daemon, policy: &str, key: &str, answers: &mut Answers) {
    let watch = Watch::start();
    let reply = daemon.ask(&format!("RATION.CHECK {policy} {key}"));
    answers.longest = answers.longest.max(watch.elapsed());
    let items = reply.items();
    let by = if items[0] == Reply::Int(0) { &mut answers.allowed } else { &mut answers.denied };
    *by.entry(items[9].text()).or_default() += 1;
}

/// Goes through one refusal: `begins` brings it about, `ends` puts it right.
fn goes_on(word: &str, daemon: &Daemon, begins: impl FnOnce(), ends: impl FnOnce()) {
    let (mut hot, mut quota) = (Answers::default(), Answers::default());
    wait_until("the store lends", 10, || {
        check(daemon, "hot", "k", &mut hot);
        check(daemon, "quota", "k", &mut quota);
        hot.allowed() >= 3 && quota.allowed() >= 3
    });
    begins();
    let (watch, mut refused, mut fresh) = (Watch::start(), Answers::default(), 0);
    while watch.elapsed() < REFUSING {
        check(daemon, "hot", "k", &mut refused);
        check(daemon, "quota", "k", &mut quota);
        // Nothing is held of a key that nobody has asked for, so the store is asked.
        fresh += 1;
        check(daemon, "hot", &format!("fresh{fresh}"), &mut refused);
        watch.pause_until(Duration::from_millis(5) * fresh);
    }
    println!("{word}: {refused:?}; in all {quota:?} of 10");
    assert!(refused.allowed.contains_key("share"), "{word}: the store did not refuse: {refused:?}");
    // Of the window in which it began, and of the next where it began just before that, nothing may be released.
    assert!(refused.allowed() * 4 > refused.all(), "{word}: checks are let pass by leases and shares: {refused:?}");
    let log = daemon.log();
    assert!(log.contains(word), "the log does not say {word}:\n{log}");
    ends();
    let mut probe = 0;
    wait_until("the store lends again", 10, || {
        probe += 1;
        let told = daemon.ask(&format!("RATION.CHECK hot probe{probe}"));
        told.items()[0] == Reply::Int(0) && told.items()[9].text() == "store"
    });
    quota.denied.clear();
    wait_until("the key's limit is spent, and the store says so", 10, || {
        check(daemon, "quota", "k", &mut quota);
        // What was asked for too late is turned away by `policy`, and says nothing about the limit.
        ["lease", "store"].iter().any(|source| quota.denied.contains_key(*source))
    });
    assert_eq!(quota.allowed(), 10, "{word}: neither more nor less than the limit: {quota:?}");
    // Other tests say how long an answer may take; here nobody is to hang.
    assert!(refused.longest < Duration::from_secs(5), "{word}: {refused:?}");
}

#[test]
fn no_password() {
    let server = Server::plain();
    let daemon = daemon(&server.url());
    goes_on(
        "NOAUTH",
        &daemon,
        || {
            run(
                &mut server.connect().expect("it accepts"),
                &["CONFIG SET requirepass secret", "CLIENT KILL TYPE normal"],
            )
        },
        || {
            let client = redis::Client::open(format!("redis://:secret@{}", server.address())).expect("an address");
            run(&mut client.get_connection().expect("the password is right"), &["CONFIG SET requirepass ''"]);
        },
    );
}

#[test]
fn another_password() {
    let server = Server::plain();
    let mut redis = server.connect().expect("it accepts");
    run(&mut redis, &[&format!("ACL SETUSER rationd {ACL_RULES}")]);
    let daemon = daemon(&format!("redis://rationd:secret@{}", server.address()));
    goes_on(
        "WRONGPASS",
        &daemon,
        || {
            let mut redis = server.connect().expect("it accepts");
            run(&mut redis, &["ACL SETUSER rationd resetpass >other", "CLIENT KILL USER rationd"]);
        },
        || run(&mut redis, &["ACL SETUSER rationd resetpass >secret"]),
    );
}

#[test]
fn no_right() {
    let server = Server::plain();
    let mut redis = server.connect().expect("it accepts");
    run(&mut redis, &[&format!("ACL SETUSER rationd {ACL_RULES}")]);
    let daemon = daemon(&format!("redis://rationd:secret@{}", server.address()));
    goes_on(
        "NOPERM",
        &daemon,
        || run(&mut server.connect().expect("it accepts"), &["ACL SETUSER rationd -evalsha -eval"]),
        || run(&mut redis, &["ACL SETUSER rationd +evalsha +eval"]),
    );
}

#[test]
fn no_memory() {
    let server = Server::plain();
    let daemon = daemon(&server.url());
    let set = |line: &str| run(&mut server.connect().expect("it accepts"), &[line]);
    goes_on("OOM", &daemon, || set("CONFIG SET maxmemory 1"), || set("CONFIG SET maxmemory 0"));
}

#[test]
fn no_disk() {
    let server = Server::start(|_, _| ["--dbfilename", "taken.rdb"].map(str::to_owned).to_vec());
    let daemon = daemon(&server.url());
    let set = |line: &[&str]| {
        let mut command = Cmd::new();
        command.arg(line);
        server
            .connect()
            .expect("it accepts")
            .req_command(&command)
            .and_then(redis::Value::extract_error)
            .expect("a setting");
    };
    goes_on(
        "MISCONF",
        &daemon,
        || {
            // A snapshot cannot take the place of a directory with something in it.
            fs::create_dir_all(server.dir.path().join("taken.rdb/inside")).expect("a temporary directory");
            set(&["CONFIG", "SET", "save", "3600 1"]);
            set(&["BGSAVE"]);
            wait_until("the snapshot has failed", 10, || {
                server.info("persistence", "rdb_last_bgsave_status").as_deref() == Some("err")
            });
        },
        || set(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]),
    );
}

#[test]
fn a_replica() {
    let server = Server::plain();
    let daemon = daemon(&server.url());
    let set = |line: &str| run(&mut server.connect().expect("it accepts"), &[line]);
    let nobody = support::server::free_port();
    goes_on("READONLY", &daemon, || set(&format!("REPLICAOF 127.0.0.1 {nobody}")), || set("REPLICAOF NO ONE"));
}

#[test]
fn a_script_that_does_not_end() {
    let server = Server::start(|_, _| ["--busy-reply-threshold", "50"].map(str::to_owned).to_vec());
    let daemon = daemon(&server.url());
    thread::scope(|scope| {
        goes_on(
            "BUSY",
            &daemon,
            || {
                let mut redis = server.connect().expect("it accepts");
                scope.spawn(move || {
                    let mut endless = Cmd::new();
                    endless.arg(&["EVAL", "while true do end", "0"]);
                    // Ended by the other side.
                    drop(redis.req_command(&endless));
                });
            },
            || run(&mut server.connect().expect("it accepts"), &["SCRIPT KILL"]),
        );
    });
}

#[test]
fn a_snapshot_that_loads() {
    let settings = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let mut server = Server::start(|_, _| settings.map(str::to_owned).to_vec());
    let daemon = daemon(&server.url());
    let server = std::cell::RefCell::new(&mut server);
    goes_on(
        "LOADING",
        &daemon,
        || {
            let mut fill = Cmd::new();
            fill.arg(&["EVAL", "for i = 1, 4000 do redis.call('set', 'filler' .. i, i) end", "0"]);
            let mut server = server.borrow_mut();
            server.connect().expect("it accepts").req_command(&fill).expect("it fills");
            run(&mut server.connect().expect("it accepts"), &["SAVE"]);
            server.kill();
            server.restart();
        },
        || {},
    );
}
