//! `RATION.KEYS` in pages: every key once, whatever the page's size, within a bound in bytes.

use crate::support;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rationd::core::call::{Call, Grant, StoreError};
use rationd::core::policy::{PolicySet, PolicySpec};
use rationd::core::shard::Settings;
use rationd::core::time::Micros;
use rationd::serve::{Backend, RemoteStore, StartOptions};
use rationd::store::memory::MemoryStore;
use rationd::store::turns::Asker;
use serde_json::Value as Json;
use support::daemon::{Client, TestDaemon, encode, show, until};

/// All pages of so many keys at most, and how many there were.
fn pages(client: &mut Client, count: usize) -> (Vec<Json>, usize) {
    let (mut keys, mut cursor, mut number) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let text = client.ask(&format!("RATION.KEYS CURSOR {cursor} COUNT {count}"));
        let mut page: Json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let Json::Array(part) = page["keys"].take() else { panic!("no keys: {text}") };
        assert!(part.len() <= count && text.len() < 3 << 20, "{} keys, {} bytes", part.len(), text.len());
        keys.extend(part);
        number += 1;
        cursor = page["cursor"].as_str().expect("a cursor").to_owned();
        if cursor == "0" {
            return (keys, number);
        }
        assert!(number < 10_000, "it has no end");
    }
}

fn names(keys: &[Json]) -> BTreeSet<String> {
    keys.iter().map(|key| key["key"].as_str().expect("a name").to_owned()).collect()
}

/// 5,000 keys of counters, and 300 of which something is in flight.
fn fill(client: &mut Client) -> BTreeSet<String> {
    let mut wanted = BTreeSet::new();
    let mut bytes = Vec::new();
    for number in 0..5_000 {
        let key = format!("counted {number}");
        bytes.extend(encode(&[b"CL.THROTTLE", key.as_bytes(), b"9", b"1", b"3600"]));
        wanted.insert(key);
    }
    for number in 0..300 {
        let key = format!("in flight {number}");
        bytes.extend(encode(&[b"RATION.CHECK", b"busy", key.as_bytes()]));
        wanted.insert(key);
    }
    client.send(&bytes);
    (0..5_300).for_each(|_| assert!(show(&client.reply().expect("an answer")).starts_with("0 ")));
    wanted
}

fn daemon(change: impl FnOnce(&mut StartOptions)) -> TestDaemon {
    let spec = PolicySpec { limits: vec!["10/1h concurrent".into()], ..PolicySpec::default() };
    let policies = PolicySet::compile(&[("busy".to_owned(), spec)].into()).expect("a right policy");
    TestDaemon::with(|options| {
        options.policies.store(Arc::new(policies));
        change(options);
    })
}

#[test]
fn pages_show_every_key_once() {
    let daemon = daemon(|_| {});
    let mut client = daemon.client();
    let wanted = fill(&mut client);
    for count in [7, 100, 999, 1_000] {
        let (keys, number) = pages(&mut client, count);
        assert_eq!(keys.len(), wanted.len(), "pages of {count}");
        assert_eq!(names(&keys), wanted, "pages of {count}");
        assert!(number >= wanted.len() / count, "{number} pages of {count}");
    }
}

/// A store in this process that answers at once.
struct Near(Mutex<MemoryStore>);

impl RemoteStore for Near {
    fn call<'a>(
        &'a self,
        _: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>> {
        Box::pin(async move { self.0.lock().unwrap().call(rationd::clock::wall(), "test", call) })
    }
}

fn leasing() -> TestDaemon {
    daemon(|options| {
        options.store = Backend::Remote(Arc::new(Near(Mutex::new(MemoryStore::new(100_000, 7)))));
        options.settings = Settings { timeout: Micros::from_secs(60), ..options.settings };
    })
}

#[test]
fn pages_show_every_leased_key_once() {
    let daemon = leasing();
    let mut client = daemon.client();
    let wanted = fill(&mut client);
    for count in [7, 1_000] {
        let (keys, _) = pages(&mut client, count);
        assert_eq!((keys.len(), names(&keys)), (wanted.len(), wanted.clone()), "pages of {count}");
    }
}

#[test]
fn long_keys_are_shown_by_their_start() {
    let daemon = leasing();
    let mut client = daemon.client();
    for number in 0..300 {
        let key = format!("{number:0>5}{}", "\u{20ac}".repeat(10_000));
        let answer = client.ask_bytes(&[b"CL.THROTTLE", key.as_bytes(), b"9", b"1", b"3600"]);
        assert!(show(&answer).starts_with("0 "));
    }
    let (keys, number) = pages(&mut client, 1_000);
    assert_eq!((keys.len(), number), (300, 1));
    let names = names(&keys);
    assert_eq!(names.len(), 300);
    // A letter that does not fit whole is left out.
    assert!(names.iter().all(|name| name.len() == 5 + 3 * 83 && name.ends_with('\u{20ac}')), "{names:?}");
}

/// Each is asked for while what is unread is below the client's bound, and read in the end: only the last one may
/// lie beyond it.
#[test]
fn unread_pages_are_bounded_in_bytes() {
    const MIB: u64 = 1 << 20;
    let daemon = daemon(|options| (options.limits.kept, options.limits.kept_in_all) = (1 << 20, 8 << 20));
    let mut client = daemon.client();
    fill(&mut client);
    client.send(&b"RATION.KEYS COUNT 1000\r\n".repeat(100));
    client.send(b"PING\r\n");
    until("no further page is asked for", || daemon.daemon().stats().kept >= MIB);
    let mut other = daemon.client();
    for _ in 0..200 {
        assert_eq!(other.ask("PING"), "PONG");
        let kept = daemon.daemon().stats().kept;
        assert!(kept <= MIB + MIB / 2, "{kept} bytes are kept for a client that reads nothing");
    }
    for _ in 0..100 {
        let text = show(&client.reply().expect("an answer"));
        let page: Json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(page.as_array().map(Vec::len), Some(1_000));
    }
    assert_eq!(show(&client.reply().expect("an answer")), "PONG");
}

/// Not even the first of many clients that ask and do not read costs the others anything.
#[test]
fn pages_of_many_clients_are_errors_where_there_is_no_room() {
    let daemon = daemon(|options| (options.limits.kept, options.limits.kept_in_all) = (1 << 20, 2 << 20));
    fill(&mut daemon.client());
    let mut clients: Vec<_> = (0..30).map(|_| daemon.client()).collect();
    clients.iter_mut().for_each(|client| client.send(&b"RATION.KEYS COUNT 1000\r\n".repeat(10)));
    until("pages are kept", || daemon.daemon().stats().kept > 1 << 20);
    let mut other = daemon.client();
    for _ in 0..200 {
        assert_eq!(other.ask("PING"), "PONG");
        let kept = daemon.daemon().stats().kept;
        assert!(kept <= 3 << 20, "{kept} bytes are kept for clients that read nothing");
    }
    for client in &mut clients {
        for _ in 0..10 {
            let page = show(&client.reply().expect("an answer"));
            assert!(page.starts_with('[') || page.starts_with("-ERR too much waits to be sent"), "{page}");
        }
    }
}

#[test]
fn what_is_no_cursor_is_an_error_that_says_what_is_one() {
    let daemon = daemon(|_| {});
    let mut client = daemon.client();
    assert_eq!(
        client.ask("RATION.KEYS CURSOR next"),
        "-ERR CURSOR is 'next': it is 0 for the first page, then what the last page named"
    );
    for line in
        ["RATION.KEYS CURSOR", "RATION.KEYS CURSOR 0 CURSOR 0", "RATION.KEYS FROM 0", "RATION.KEYS COUNT 1 COUNT 2"]
    {
        assert_eq!(client.ask(line), "-ERR syntax error: RATION.KEYS [CURSOR cursor] [COUNT count]", "{line}");
    }
    assert_eq!(
        client.ask("RATION.KEYS CURSOR ffffffffffffffffffffffffffffffff COUNT 0"),
        "{\"cursor\":\"0\",\"keys\":[]}"
    );
}
