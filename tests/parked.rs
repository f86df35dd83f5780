//! Checks that must wait for a store that is somewhere else: order, patience, and giving back.

use crate::support;

use std::future::Future;
use std::io::{Read, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rationd::config::ListenAddress;
use rationd::core::call::{Call, Grant, Op, StoreError};
use rationd::core::key::Digest;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::route::{RouteSet, RouteSpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::envoy::EnvoyOptions;
use rationd::serve::envoy::proto::{Entry, RateLimitDescriptor, RateLimitRequest};
use rationd::serve::{Backend, RemoteStore};
use rationd::store::memory::MemoryStore;
use rationd::store::turns::Asker;
use support::daemon::{TestDaemon, encode, show, until};
use support::envoy::Rls;
use tokio::sync::Semaphore;

/// A store in this process that answers when it is let.
struct Gated {
    store: Mutex<MemoryStore>,
    gate: Semaphore,
    calls: Mutex<Vec<Call>>,
}

impl Gated {
    fn closed() -> Arc<Self> {
        let store = Mutex::new(MemoryStore::new(10_000, 7));
        Arc::new(Self { store, gate: Semaphore::new(0), calls: Mutex::default() })
    }

    fn open(&self) {
        self.gate.add_permits(1_000_000);
    }

    fn used(&self, policy: &str, key: &[u8]) -> u64 {
        let mut call = self.calls.lock().unwrap()[0].clone();
        call.id = 0;
        call.op = Op::Peek;
        call.digest = Digest::of(policy, key);
        let grant = self.store.lock().unwrap().call(rationd::clock::wall(), "test", &call).unwrap();
        grant.counters[0].used
    }
}

impl RemoteStore for Gated {
    fn call<'a>(
        &'a self,
        _: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        self.calls.lock().unwrap().push(call.clone());
        Box::pin(async move {
            let _pass = self.gate.acquire().await.expect("the gate is never closed");
            self.store.lock().unwrap().call(rationd::clock::wall(), "test", call)
        })
    }
}

fn daemon(store: &Arc<Gated>, timeout: Micros) -> TestDaemon {
    let limited = PolicySpec { limits: vec!["1000/1d fixed".into()], ..PolicySpec::default() };
    let deny = PolicySpec { on_store_loss: rationd::core::policy::OnStoreLoss::Deny, ..limited.clone() };
    let policies = PolicySet::compile(&[("api".to_owned(), limited), ("strict".to_owned(), deny)].into()).unwrap();
    let route = RouteSpec { patterns: vec!["user".into()], policy: Some("api".into()), ..RouteSpec::default() };
    let routes = RouteSet::compile(&[("edge".to_owned(), vec![route])].into(), |_| None).unwrap();
    TestDaemon::with(|options| {
        let door = ListenAddress::Path(options.socket.with_file_name("rls.sock"));
        options.envoy = Some(EnvoyOptions { address: door, headers: None });
        options.store = Backend::Remote(store.clone());
        options.settings = Settings { timeout, ..options.settings };
        options.policies.store(Arc::new(policies.with_routes(routes)));
    })
}

const PATIENT: Micros = Micros::from_secs(60);

/// The client writes all of it before it reads.
#[test]
fn a_deep_pipeline_behind_a_check_that_waits_keeps_its_order() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let mut client = daemon.client();
    client.send(&encode(&[b"RATION.CHECK", b"api", b"k"]));
    let lines = (0..100_000).map(|number| format!("ECHO {number}\r\n"));
    client.send(lines.collect::<String>().as_bytes());
    until("the first has asked the store", || !store.calls.lock().unwrap().is_empty());
    store.open();
    assert!(show(&client.reply().unwrap()).starts_with("0 1000 999 -1 "));
    for number in 0..100_000 {
        assert_eq!(show(&client.reply().unwrap()), number.to_string());
    }
}

#[test]
fn replies_stay_in_order_while_checks_wait() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let mut client = daemon.client();
    let mut bytes = Vec::new();
    for key in 0..100 {
        bytes.extend(encode(&[b"RATION.CHECK", b"api", key.to_string().as_bytes()]));
        bytes.extend(encode(&[b"ECHO", key.to_string().as_bytes()]));
    }
    client.send(b"PING\r\n");
    client.send(&bytes);
    assert_eq!(show(&client.reply().unwrap()), "PONG");
    until("all hundred have asked the store at once", || store.calls.lock().unwrap().len() >= 100);
    let mut other = daemon.client();
    assert_eq!(other.ask("PING"), "PONG", "another connection waits for nobody");
    store.open();
    for key in 0..100 {
        let decision = show(&client.reply().unwrap());
        assert!(decision.starts_with("0 1000 999 -1 "), "{decision}");
        assert_eq!(show(&client.reply().unwrap()), key.to_string());
    }
}

/// While a connection awaits as much as it may, the rest of its pipeline waits in its socket, and that counts: what has
/// waited there for `store.timeout` is turned away, and the store is not asked for it.
#[test]
fn what_waits_unread_waits_no_longer_than_what_is_read() {
    const CHECKS: usize = 2_000;
    let store = Gated::closed();
    let daemon = daemon(&store, Micros::from_millis(300));
    let mut client = daemon.client();
    let check = |key: usize| encode(&[b"RATION.CHECK", b"strict", key.to_string().as_bytes()]);
    client.send(&(0..CHECKS).flat_map(check).collect::<Vec<_>>());
    for key in 0..CHECKS {
        let decision = show(&client.reply().unwrap());
        assert!(decision.starts_with("1 ") && decision.contains(" overload "), "{key}: {decision}");
    }
    let asked = store.calls.lock().unwrap().len();
    assert!(asked <= 512, "the store was asked for {asked}");
}

/// What is told late and what asks the store however late it is, in one pipeline: each has its answer, in its place.
#[test]
fn what_is_late_keeps_its_place_among_what_is_not_told_late() {
    let store = Gated::closed();
    let daemon = daemon(&store, Micros::from_millis(100));
    let mut client = daemon.client();
    let check = |key: usize| encode(&[b"RATION.CHECK", b"strict", key.to_string().as_bytes()]);
    let reset = encode(&[b"RATION.RESET", b"strict", b"0"]);
    let all = [b"MULTI\r\n".to_vec(), check(1), reset.clone(), b"EXEC\r\nPING\r\n".to_vec()].concat();
    for from in (0..3_000).step_by(1_000) {
        client.send(&(from..from + 1_000).flat_map(check).collect::<Vec<_>>());
        client.send(&reset);
        client.send(&all);
    }
    for _ in 0..3 {
        for _ in 0..1_000 {
            assert!(show(&client.reply().unwrap()).contains(" overload "));
        }
        let answer = show(&client.reply().unwrap());
        assert!(answer.starts_with("-ERR the store has not answered in time"), "{answer}");
        for queued in ["OK", "QUEUED", "QUEUED"] {
            assert_eq!(show(&client.reply().unwrap()), queued);
        }
        let executed = show(&client.reply().unwrap());
        assert!(executed.contains(" overload ") && executed.contains("-ERR the store"), "{executed}");
        assert_eq!(show(&client.reply().unwrap()), "PONG");
    }
}

/// One connection of Envoy's after another has as many requests under way as the door takes.
#[test]
fn requests_of_envoy_await_no_more_answers_than_commands_do() {
    for descriptors in [1, 64] {
        let store = Gated::closed();
        let daemon = daemon(&store, PATIENT);
        let all = [0; 4].map(|_| Rls::connect(&daemon.daemon().envoy().expect("it was asked for")));
        let request = |connection: usize, number: usize| {
            let user = |index| {
                let value = format!("{connection}-{number}-{index}");
                RateLimitDescriptor { entries: vec![Entry { key: "user".into(), value }], ..Default::default() }
            };
            RateLimitRequest {
                domain: "edge".into(),
                descriptors: (0..descriptors).map(user).collect(),
                hits_addend: 0,
            }
        };
        std::thread::scope(|scope| {
            let ask = |(connection, rls): (usize, _)| {
                let requests = (0..256).map(|number| request(connection, number)).collect();
                scope.spawn(move || Rls::ask_all(rls, requests))
            };
            let asking: Vec<_> = all.iter().enumerate().map(ask).collect();
            let asked = || store.calls.lock().unwrap().len();
            until("they have asked", || asked() >= 320);
            // The one data thread has seen more of them when it answers.
            let mut other = daemon.client();
            (0..100).for_each(|_| assert_eq!(other.ask("PING"), "PONG"));
            let awaited = asked();
            store.open();
            for answers in asking {
                let answers = answers.join().expect("no panic");
                assert_eq!(answers.iter().find(|answer| answer.is_err()).map(|answer| format!("{answer:?}")), None);
            }
            assert!(awaited <= 512 + 4 * descriptors, "{awaited} awaited at once");
        });
    }
}

#[test]
fn what_http_awaits_leaves_less_to_others() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let ask = |number| {
        let mut client = daemon.client();
        client.send(format!("GET /v1/check?policy=api&key=h{number} HTTP/1.1\r\nhost: a\r\n").as_bytes());
        client.send(b"connection: close\r\n\r\n");
        client
    };
    let http: Vec<_> = (0..112).map(ask).collect();
    let asked = || store.calls.lock().unwrap().len();
    until("all have asked", || asked() == 112);
    let mut client = daemon.client();
    let checks = (0..300).map(|number| format!("RATION.CHECK api r{number}\r\n"));
    client.send(checks.collect::<String>().as_bytes());
    until("it has asked", || asked() > 112);
    assert_eq!(daemon.client().ask("PING"), "PONG");
    assert_eq!(asked() - 112, (512 - 112) / 2, "a connection awaits as many as are left to the others");
    store.open();
    (0..300).for_each(|_| assert!(show(&client.reply().unwrap()).starts_with("0 1000 999 -1 ")));
    for mut client in http {
        let mut text = String::new();
        client.stream.read_to_string(&mut text).expect("a response");
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    }
}

#[test]
fn checks_in_a_transaction_may_wait() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let mut client = daemon.client();
    client.send(b"MULTI\r\nRATION.CHECK api a\r\nRATION.CHECK api b\r\nPING\r\nEXEC\r\nPING\r\n");
    until("both have asked", || store.calls.lock().unwrap().len() >= 2);
    store.open();
    let replies: Vec<String> = (0..6).map(|_| show(&client.reply().unwrap())).collect();
    assert_eq!(replies[..4], ["OK", "QUEUED", "QUEUED", "QUEUED"]);
    assert_eq!(replies[4].matches("0 1000 999 -1 ").count(), 2, "{replies:?}");
    assert!(replies[4].ends_with(" PONG") && replies[5] == "PONG", "{replies:?}");
}

#[test]
fn a_store_that_never_answers_keeps_nobody_waiting() {
    let store = Gated::closed();
    let daemon = daemon(&store, Micros::from_millis(50));
    let mut client = daemon.client();
    let shared = client.ask("RATION.CHECK api k");
    assert!(shared.starts_with("1 1000 ") && shared.contains(" overload "), "slow is not lost: {shared}");
    let denied = client.ask("RATION.CHECK strict k");
    assert!(denied.starts_with("1 1000 ") && denied.contains(" overload "), "{denied}");
    // It has left, and may be done yet.
    assert!(client.ask("RATION.RESET api k").starts_with("-ERR the store has not answered in time"));
    let flood = encode(&[b"CL.THROTTLE", b"k", b"15", b"30", b"60"]);
    client.send(&flood.repeat(50));
    for _ in 0..50 {
        assert!(client.reply().is_some());
    }
}

#[test]
fn a_check_of_a_closed_connection_harms_nobody() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let mut gone = daemon.client();
    gone.send(b"RATION.CHECK api k\r\n");
    until("it has asked", || !store.calls.lock().unwrap().is_empty());
    drop(gone);
    until("its connection has ended or waits for its answer", || daemon.daemon().stats().connections <= 1);
    let mut client = daemon.client();
    client.send(b"RATION.CHECK api k\r\n");
    store.open();
    assert!(show(&client.reply().unwrap()).starts_with("0 1000 "));
    until("the closed one is gone", || daemon.daemon().stats().connections == 1);
}

/// Whoever has said all that he will say still reads.
#[test]
fn a_half_closed_client_is_told_what_the_store_answers() {
    let store = Gated::closed();
    let daemon = daemon(&store, PATIENT);
    let (mut client, mut other) = (daemon.client(), daemon.client());
    client.send(b"RATION.CHECK api k\r\nPING\r\n");
    until("it has asked", || !store.calls.lock().unwrap().is_empty());
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    // The one data thread has seen the end of the other connection when it answers.
    assert_eq!(other.ask("PING"), "PONG");
    assert!(client.is_silent(), "it is not closed");
    store.open();
    let decision = show(&client.reply().expect("whoever waits is answered"));
    assert!(decision.starts_with("0 1000 999 -1 "), "{decision}");
    assert_eq!(show(&client.reply().expect("and what stands behind it")), "PONG");
    assert!(client.is_closed());
}

/// The store answers only when the daemon stops already: whoever asks for nothing has been told to leave, and
/// whoever asked before is still there.
#[test]
fn stopping_answers_who_waits_and_gives_leases_back() {
    let store = Gated::closed();
    let mut daemon = daemon(&store, PATIENT);
    let mut idle = daemon.client();
    assert_eq!(idle.ask("PING"), "PONG");
    let mut parked = [daemon.client(), daemon.client()];
    for client in &mut parked {
        client.send(b"PING\r\n");
        client.send(&encode(&[b"RATION.CHECK", b"api", b"k"]).repeat(100));
        assert_eq!(show(&client.reply().unwrap()), "PONG");
    }
    until("all wait", || daemon.daemon().stats().shards.waiting == 200);
    let unsettled = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| daemon.stop());
        assert!(idle.is_closed(), "nobody stays who waits for nothing");
        for client in &mut parked {
            assert!(client.is_silent(), "nobody is answered before the store has");
        }
        store.open();
        for client in &mut parked {
            for _ in 0..100 {
                let decision = show(&client.reply().expect("whoever waits is answered"));
                assert!(decision.starts_with("0 1000 ") && decision.ends_with(" store"), "{decision}");
            }
            assert!(client.is_closed(), "and then told to leave");
        }
        stopping.join().expect("it stops")
    });
    assert_eq!(unsettled, 0, "every call has its outcome");
    assert_eq!(store.used("api", b"k"), 200, "what was lent and not spent is back");
}

/// A store over a socket, whose replies take two hops through the runtime; for the key `stop` its caller is not
/// run for a while.
struct Starved {
    store: Mutex<MemoryStore>,
    /// Where replies come from.
    replies: Mutex<Option<std::os::unix::net::UnixStream>>,
    /// Where they are put in.
    inlet: Mutex<std::os::unix::net::UnixStream>,
    asked: std::sync::atomic::AtomicBool,
}

impl Starved {
    fn new() -> Arc<Self> {
        let (inlet, replies) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        replies.set_nonblocking(true).expect("a socket");
        let store = Mutex::new(MemoryStore::new(10_000, 7));
        Arc::new(Self { store, replies: Some(replies).into(), inlet: inlet.into(), asked: false.into() })
    }
}

impl RemoteStore for Starved {
    fn call<'a>(
        &'a self,
        _: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        Box::pin(async move {
            if call.digest == Digest::of("api", b"stop") {
                // The reply to the other call comes, and for longer than that waits nobody is run who could read it.
                self.inlet.lock().unwrap().write_all(b"+").expect("a socket");
                support::clock::Watch::start().pause_until(std::time::Duration::from_millis(1_500));
                return Err(StoreError::Away { since: call.sent_at });
            }
            let replies = self.replies.lock().unwrap().take();
            self.asked.store(true, std::sync::atomic::Ordering::SeqCst);
            let Some(replies) = replies else { return std::future::pending().await };
            let (told, reply) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let replies = tokio::net::UnixStream::from_std(replies).expect("a socket");
                replies.readable().await.expect("a socket");
                let _ = told.send(());
            });
            reply.await.expect("a reply");
            self.store.lock().unwrap().call(rationd::clock::wall(), "test", call)
        })
    }
}

#[test]
fn a_reply_that_came_while_the_node_was_not_run_is_in_time() {
    for _ in 0..5 {
        let store = Starved::new();
        let limited = PolicySpec { limits: vec!["1000/1d fixed".into()], ..PolicySpec::default() };
        let policies = PolicySet::compile(&[("api".to_owned(), limited)].into()).unwrap();
        let daemon = TestDaemon::with(|options| {
            options.store = Backend::Remote(store.clone());
            // Long enough that a busy machine makes the other call in this time.
            options.settings = Settings { timeout: Micros::from_millis(500), ..options.settings };
            options.policies.store(Arc::new(policies));
        });
        let (mut first, mut other) = (daemon.client(), daemon.client());
        first.send(b"RATION.CHECK api k\r\n");
        until("it has asked", || store.asked.load(std::sync::atomic::Ordering::SeqCst));
        other.send(b"RATION.CHECK api stop\r\n");
        let decision = show(&first.reply().unwrap());
        assert!(decision.starts_with("0 1000 999 -1 ") && decision.ends_with(" store"), "{decision}");
        assert!(other.reply().is_some());
    }
}

#[test]
fn calls_are_few_when_a_key_repeats() {
    let store = Gated::closed();
    store.open();
    let daemon = daemon(&store, PATIENT);
    let mut client = daemon.client();
    for _ in 0..600 {
        assert!(client.ask("RATION.CHECK api hot").starts_with("0 "));
    }
    let calls = store.calls.lock().unwrap().len();
    assert!(calls < 60, "{calls} calls for 600 checks of one key");
}
