//! Limits on what is in flight, from a client's side: slots taken, released, and ended with their connection;
//! over RESP and HTTP, on the embedded store and on two nodes of a real Redis.

use crate::support;

use support::clock::Watch;
use support::daemon::until;
use support::process::Daemon;
use support::proxy::{Mode, Proxy};
use support::resp::{Connection, Reply};
use support::server::Server;
use support::web;

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const POLICIES: &str = "[policy.slow]\nlimits = [\"3/1h concurrent\"]\n\
                        [policy.one]\nlimits = [\"1/1h concurrent\"]\n[policy.api]\nlimits = [\"5/1h fixed\"]\n";

type Client = Connection<UnixStream>;

fn ask(client: &mut Client, line: &str) -> Reply {
    client.ask_text(line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// The slot that a check took; `None`: it was denied.
fn check(client: &mut Client, policy: &str) -> Option<String> {
    let reply = ask(client, &format!("RATION.CHECK {policy} k"));
    let fields = reply.items();
    assert_eq!(fields.len(), 11, "{reply:?}");
    let slot = fields[10].text();
    assert_eq!((fields[0].int(), fields[7].text() == "ok"), (i64::from(slot.is_empty()), !slot.is_empty()));
    Some(slot).filter(|slot| !slot.is_empty())
}

fn daemon(store: &str) -> Daemon {
    Daemon::start(&format!("{store}{POLICIES}"))
}

#[test]
fn a_slot_is_taken_told_and_released_once() {
    let daemon = daemon("");
    let mut client = daemon.connect().expect("it listens");
    let slots: Vec<_> = (0..4).filter_map(|_| check(&mut client, "slow")).collect();
    assert_eq!(slots.len(), 3);
    let denied = ask(&mut client, "RATION.CHECK slow k");
    let told: Vec<String> = [7, 8, 9].map(|index| denied.items()[index].text()).into();
    assert_eq!(told, ["rate", "3/1h concurrent", "store"]);
    assert!(denied.items()[5].int() > 3_500_000, "when the first of them ends: {denied:?}");
    assert_eq!(ask(&mut client, &format!("RATION.RELEASE slow k {}", slots[1])).text(), "OK");
    let again = ask(&mut client, &format!("RATION.RELEASE slow k {}", slots[1])).text();
    assert!(again.starts_with("ERR no such slot here"), "{again}");
    let other = ask(&mut client, &format!("RATION.RELEASE slow other {}", slots[0])).text();
    assert!(other.starts_with("ERR no such slot here"), "of another key: {other}");
    assert!(check(&mut client, "slow").is_some());
    assert_eq!(ask(&mut client, "RATION.CHECK slow k PEEK").items()[2].int(), 0);
}

#[test]
fn what_was_taken_over_a_connection_ends_with_it() {
    let daemon = daemon("");
    let (mut first, mut second) = (daemon.connect().unwrap(), daemon.connect().unwrap());
    assert!(check(&mut first, "slow").is_some() && check(&mut first, "slow").is_some());
    assert!(check(&mut second, "slow").is_some() && check(&mut second, "slow").is_none());
    drop(first);
    until("the slots are there again", || ask(&mut second, "RATION.CHECK slow k PEEK").items()[2].int() == 2);
}

#[test]
fn several_are_taken_all_or_not_at_all() {
    let daemon = daemon("");
    let mut client = daemon.connect().unwrap();
    let passed = ask(&mut client, "RATION.MCHECK 2 one k 1 api k 2");
    assert_eq!(passed.items()[0].int(), 0, "{passed:?}");
    let slot = passed.items()[1].items()[10].text();
    assert_eq!(passed.items()[2].items().len(), 10);
    // No slot is left for the second, and no token for the third.
    assert_eq!(ask(&mut client, "RATION.MCHECK 2 one k 1 api k 1").items()[0].int(), 1);
    assert_eq!(ask(&mut client, "RATION.CHECK api k PEEK").items()[2].int(), 3);
    assert_eq!(ask(&mut client, &format!("RATION.RELEASE one k {slot}")).text(), "OK");
    let denied = ask(&mut client, "RATION.MCHECK 2 one k 1 api k 4");
    assert_eq!(denied.items()[0].int(), 1);
    assert_eq!(denied.items()[1].items()[10].text(), "", "nothing was taken: {denied:?}");
    assert!(check(&mut client, "one").is_some());
}

#[test]
fn commands_that_know_no_slots_say_what_does() {
    let daemon = daemon("");
    let mut client = daemon.connect().unwrap();
    for line in ["HOLD slow k 1", "LEASE slow k 1", "HEADERS slow k", "REFUND slow k 1", "RESET slow k"] {
        let text = ask(&mut client, &format!("RATION.{line}")).text();
        assert!(text.contains("RATION.CHECK takes a slot, and RATION.RELEASE ends it"), "{line}: {text}");
    }
    assert_eq!(ask(&mut client, "RATION.CHECK slow k PEEK").items()[2].int(), 3, "none of them took one");
    let explained = ask(&mut client, "RATION.EXPLAIN slow k").text();
    assert!(explained.contains("\"limited\":false") && explained.contains("3/1h concurrent"), "{explained}");
}

#[test]
fn over_http_a_slot_is_told_in_the_body() {
    let daemon = daemon("admin_checks = true\n");
    let port = daemon.admin().port();
    let slot = |response: &web::Response| {
        let body: serde_json::Value = serde_json::from_str(&response.body).expect("JSON");
        body["slot"].as_str().map(str::to_owned)
    };
    let taken = web::ask(port, "/v1/check", "policy=one&key=k").unwrap();
    let id = slot(&taken).expect("a slot");
    let denied = web::ask(port, "/v1/check", "policy=one&key=k").unwrap();
    assert_eq!((taken.status, denied.status, slot(&denied)), (200, 429, None));
    let released = web::ask(port, "/v1/release", &format!("policy=one&key=k&id={id}")).unwrap();
    assert_eq!((released.status, released.body.as_str()), (200, "{\"released\":true}"));
    let again = web::ask(port, "/v1/release", &format!("policy=one&key=k&id={id}")).unwrap();
    assert_eq!(again.status, 404, "{}", again.body);
    assert_eq!(web::ask(port, "/v1/check", "policy=one&key=k").unwrap().status, 200);
}

#[test]
fn two_nodes_share_the_slots_of_a_real_redis() {
    let server = Server::plain();
    let store = format!("[store]\nurl = \"{}\"\n", server.url());
    let daemons = [daemon(&store), daemon(&store)];
    let mut clients = [daemons[0].connect().unwrap(), daemons[1].connect().unwrap()];
    let mut slots = [vec![], vec![]];
    for index in 0..12 {
        slots[index % 2].extend(check(&mut clients[index % 2], "slow"));
    }
    assert_eq!(slots[0].len() + slots[1].len(), 3, "{slots:?}");
    let (from, to) = if slots[0].is_empty() { (1, 0) } else { (0, 1) };
    let released = ask(&mut clients[from], &format!("RATION.RELEASE slow k {}", slots[from][0])).text();
    assert_eq!(released, "OK");
    until("it is there for the other", || check(&mut clients[to], "slow").is_some());
    assert!(check(&mut clients[from], "slow").is_none());
    // A daemon that leaves hands all of its own back.
    let [first, second] = daemons;
    let [a, b] = clients;
    let (mut leaving, _staying, mut left) = if from == 0 { (first, second, b) } else { (second, first, a) };
    assert!(leaving.terminate().success());
    for _ in 1..slots[from].len() {
        until("what it had is there", || check(&mut left, "slow").is_some());
    }
    assert!(check(&mut left, "slow").is_none());
}

/// Clients of some nodes that all want slots, and the slots that they have.
struct Wanting {
    daemons: Vec<Daemon>,
    clients: Vec<Client>,
    held: Vec<VecDeque<String>>,
}

/// What was seen of them in some time.
#[derive(Debug, Default)]
struct Seen {
    /// Most slots in all clients' hands at once.
    most: usize,
    /// Slots that each node gave.
    given: Vec<usize>,
}

impl Wanting {
    /// On each node a slot is asked for every 20 ms, and one of its own is released every 60 ms.
    fn go_on(&mut self, length: Duration) -> Seen {
        let (watch, mut due) = (Watch::start(), Duration::ZERO);
        let mut seen = Seen { most: 0, given: vec![0; self.clients.len()] };
        for step in 0_usize.. {
            watch.pause_until(due);
            if due >= length {
                break;
            }
            due += Duration::from_millis(20);
            for (node, client) in self.clients.iter_mut().enumerate() {
                if step % 3 == node
                    && let Some(slot) = self.held[node].pop_front()
                {
                    ask(client, &format!("RATION.RELEASE set k {slot}"));
                }
                if let Some(slot) = check(client, "set") {
                    self.held[node].push_back(slot);
                    seen.given[node] += 1;
                }
            }
            seen.most = seen.most.max(self.held.iter().map(VecDeque::len).sum());
        }
        seen
    }
}

/// A node that cannot reach the store gives the slots that it was lent, and nobody else is lent those.
#[test]
fn of_slots_that_are_entitled_no_more_are_held_where_one_node_is_cut_off() {
    const SLOTS: usize = 20;
    let server = Server::plain();
    let proxy = Proxy::start(server.address().parse().expect("an address"));
    let policy = format!("[policy.set]\nlimits = [\"{SLOTS}/1m concurrent\"]\non_store_loss = \"entitled\"\n");
    let urls = [server.url(), format!("redis://{}", proxy.address())];
    let daemons: Vec<_> =
        urls.iter().map(|url| Daemon::start(&format!("[store]\nurl = \"{url}\"\n{policy}"))).collect();
    let clients = daemons.iter().map(|daemon| daemon.connect().expect("it listens")).collect();
    let mut wanting = Wanting { daemons, clients, held: vec![VecDeque::new(); 2] };
    let before = wanting.go_on(Duration::from_secs(2));
    proxy.set(Mode::Shut);
    // Slots that are not entitled are lent for ten seconds: then others are lent them.
    let during = wanting.go_on(Duration::from_secs(14));
    let is_up = wanting.daemons[1].metrics().sum("rationd_store_server_up", &[]);
    proxy.set(Mode::Pass);
    let after = wanting.go_on(Duration::from_secs(3));
    eprintln!("before {before:?}, one of two cut off {during:?}, and back {after:?}, of {SLOTS}");
    assert_eq!(is_up, 0.0, "it was cut off");
    for seen in [&before, &during, &after] {
        assert!(seen.most <= SLOTS && seen.most * 10 >= SLOTS * 9, "{seen:?} of {SLOTS}");
        assert!(seen.given.iter().all(|given| *given > SLOTS), "{seen:?}");
    }
}

#[test]
fn a_client_of_ours_is_told_its_slot_and_ends_it() {
    let daemon = daemon("");
    let mut client = rationd::client::Client::connect(daemon.socket()).expect("it listens");
    let taken = client.check("one", b"k", 1).unwrap();
    let slot = taken.slot.expect("a slot");
    assert_eq!(client.check("one", b"k", 1).unwrap().slot, None);
    client.release("one", b"k", &slot).unwrap();
    assert!(client.release("one", b"k", &slot).is_err(), "it is released once");
    assert!(client.check("one", b"k", 1).unwrap().slot.is_some());
    assert_eq!(client.check("api", b"k", 1).unwrap().slot, None);
}
