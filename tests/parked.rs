//! Checks that must wait for a store that is somewhere else: order, patience, and giving back.

mod support;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rationd::core::call::{Call, Grant, Op, StoreError};
use rationd::core::key::Digest;
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::{AnyStore, Remote};
use rationd::store::memory::MemoryStore;
use support::daemon::{TestDaemon, encode, show, until};
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

impl Remote for Gated {
    fn call<'a>(&'a self, call: &'a Call) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
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
    TestDaemon::with(|options| {
        options.store = AnyStore::Remote(store.clone());
        options.settings = Settings { timeout, ..options.settings };
        options.policies.store(Arc::new(policies));
    })
}

const PATIENT: Micros = Micros::from_secs(60);

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
    assert!(shared.ends_with(" share"), "{shared}");
    let denied = client.ask("RATION.CHECK strict k");
    assert!(denied.starts_with("1 1000 ") && denied.contains(" store "), "{denied}");
    assert!(client.ask("RATION.RESET api k").starts_with("-ERR the store is away"));
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

#[test]
fn stopping_answers_who_waits_and_gives_leases_back() {
    let store = Gated::closed();
    let mut daemon = daemon(&store, PATIENT);
    store.open();
    let mut client = daemon.client();
    client.send(&encode(&[b"RATION.CHECK", b"api", b"k"]).repeat(200));
    for _ in 0..200 {
        assert!(show(&client.reply().unwrap()).starts_with("0 "));
    }
    let stats = daemon.daemon().stats();
    assert_eq!(stats.policies["api"].spent, 200);
    assert_eq!(daemon.stop(), 0, "every call has its outcome");
    assert_eq!(store.used("api", b"k"), 200, "what was lent and not spent is back");
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
