//! A fleet over real QUIC connections: who is let in, who is heard, and that nobody can hurt the others.
//! The suite of `support/membership_suite.rs` runs over memory and over QUIC.

use crate::support;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{FleetOptions, FleetStats, IdentityFiles, MAX_FRAME, PeerId};
use support::clock::Watch;
use support::in_memory::Memory;
use support::membership_suite::{self, Node, Start, World, sees, wait};
use support::peers::{Authority, FLEET, Peer, Stranger, anywhere, runtime};
use support::poll::wait_until;
use support::skip::skipped;

const ALPN: &str = "rationd/1/test";

// The suite, twice.

/// Nodes over QUIC on loopback.
struct Quic(Authority);

impl World for Quic {
    fn start(&self, start: Start<'_>) -> Box<dyn Node> {
        Box::new(self.0.start(start))
    }

    fn gossip(&self, to: &dyn Node, messages: &[Bytes]) {
        let files = self.0.node("mallory");
        to.runtime().block_on(async {
            let mallory = Stranger::connect(&files, ALPN, to.address()).await.expect("it has a certificate");
            mallory.hello("mallory").await;
            for message in messages {
                mallory.send(&[&[1], message]).await;
            }
        });
    }
}

#[test]
fn membership_behaves_in_memory() {
    membership_suite::run(&Memory::default());
}

#[test]
fn membership_behaves_over_quic() {
    membership_suite::run(&Quic(Authority::new(FLEET)));
}

// Who is let in.

/// Waits until `stats` of a node satisfy the test.
fn counts(node: &Peer, what: &str, holds: impl Fn(FleetStats) -> bool) {
    wait_until(what, 20, || holds(node.fleet.stats()));
}

#[test]
fn a_node_without_the_fleets_ca_changes_nothing_and_is_counted() {
    let (fleet, foreign) = (Authority::new(FLEET), Authority::new(FLEET));
    let a = fleet.start(Start::new("a", &[]));
    let b = fleet.start(Start::new("b", &[a.address()]));
    let stranger = foreign.start(Start::new("c", &[a.address()]));
    sees(&a, "a b");
    counts(&a, "the stranger is counted", |stats| stats.refused >= 2);
    counts(&stranger, "the stranger has failed", |stats| stats.dial_failures >= 2);
    for (node, names) in [(&a, "a b"), (&b, "a b"), (&stranger, "c")] {
        sees(node, names);
    }
    assert_eq!(a.fleet.stats().connections, 1);
}

/// Its own CA is right, but it trusts another's certificate: the dialler's connect succeeds first.
#[test]
fn a_certificate_of_another_ca_is_refused_though_the_dial_succeeds() {
    let (fleet, foreign) = (Authority::new(FLEET), Authority::new(FLEET));
    let a = fleet.start(Start::new("a", &[]));
    let files = IdentityFiles { ca: fleet.ca(), ..foreign.node("c") };
    let options = FleetOptions { identity: files, ..fleet.options(Start::new("c", &[a.address()])) };
    let stranger = Peer::start(options);
    counts(&a, "the stranger is counted", |stats| stats.refused >= 1);
    counts(&stranger, "the stranger has failed", |stats| stats.dial_failures >= 1);
    assert_eq!((a.fleet.stats().connections, stranger.fleet.stats().connections), (0, 0));
}

#[test]
fn another_fleets_name_is_refused() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let files = fleet.node("c");
    let refused = a.runtime().block_on(Stranger::connect(&files, "rationd/1/other", a.address()));
    assert!(refused.is_err(), "it was let in");
    counts(&a, "it is counted", |stats| stats.refused >= 1);
    let let_in = a.runtime().block_on(Stranger::connect(&files, ALPN, a.address()));
    assert!(let_in.is_ok(), "the name was not the reason");
}

#[test]
fn a_name_that_is_not_in_the_certificate_is_refused() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let files = fleet.node("c");
    a.runtime().block_on(async {
        let liar = Stranger::connect(&files, ALPN, a.address()).await.expect("its certificate is right");
        liar.hello("b").await;
        let why = liar.connection.closed().await;
        assert!(matches!(why, quinn::ConnectionError::ApplicationClosed(_)), "{why}");
    });
    counts(&a, "it is counted", |stats| stats.refused == 1);
    assert_eq!(a.fleet.stats().connections, 0);
}

#[test]
fn a_certificate_for_any_node_serves_under_every_name() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let seeds = [a.address()];
    let named = |name| FleetOptions { identity: fleet.any_node(), ..fleet.options(Start::new(name, &seeds)) };
    let (b, c) = (Peer::start(named("Host_7.example")), Peer::start(named("c")));
    for node in [&a, &b, &c] {
        sees(node, "Host_7.example a c");
    }
}

#[test]
fn a_node_whose_own_certificate_names_another_does_not_start() {
    let fleet = Authority::new(FLEET);
    let options = FleetOptions { identity: fleet.node("b"), ..fleet.options(Start::new("a", &[])) };
    let error = Peer::try_start(options).err().expect("it is another's").to_string();
    assert!(error.contains("make one with `rationd cert node --fleet test --name a`"), "{error}");
}

#[test]
fn changed_certificates_serve_new_connections_and_old_ones_end_with_their_ca() {
    let (old, new) = (Authority::new(FLEET), Authority::new(FLEET));
    // A CA file of its own: the others of its fleet keep theirs.
    let ca = old.ca().with_file_name("ca-of-a.pem");
    std::fs::copy(old.ca(), &ca).expect("a copy");
    let options = old.options(Start::new("a", &[]));
    let files = IdentityFiles { ca: ca.clone(), ..options.identity.clone() };
    let a = Peer::start(FleetOptions { identity: files.clone(), ..options });
    let b = old.start(Start::new("b", &[a.address()]));
    sees(&a, "a b");
    old.node("a");
    assert!(a.fleet.reload_identity().expect("they are right"), "made anew");
    assert!(!a.fleet.reload_identity().expect("they are right"), "nothing has changed since");

    std::fs::write(&files.key, "garbage").expect("a file");
    let error = a.fleet.reload_identity().expect_err("it is no key").to_string();
    assert!(error.contains("no private key in PEM"), "{error}");

    let theirs = new.node("a");
    std::fs::copy(&theirs.cert, &files.cert).expect("a copy");
    std::fs::copy(&theirs.key, &files.key).expect("a copy");
    let cas = [&old.ca(), &theirs.ca].map(|ca| std::fs::read_to_string(ca).expect("a CA"));
    std::fs::write(&ca, cas.concat()).expect("a file");
    assert!(a.fleet.reload_identity().expect("they are right"));
    let c = new.start(Start::new("c", &[a.address()]));
    // Each speaks for itself: who trusts the old CA alone and who trusts the new one do not hear each other.
    sees(&a, "a b c");
    sees(&c, "a c");
    sees(&b, "a b");
    assert!(c.fleet.stats().certificate_days_left > 0);

    std::fs::copy(&theirs.ca, &ca).expect("a copy");
    assert!(a.fleet.reload_identity().expect("they are right"));
    sees(&a, "a c");
    sees(&b, "b");
    sees(&c, "a c");
}

#[test]
fn connections_end_with_their_certificates() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let seeds = [a.address()];
    let options = fleet.options(Start::new("b", &seeds));
    fleet.lapsing(Duration::from_secs(12), "b");
    let b = Peer::start(options);
    sees(&a, "a b");
    wait_until("the connection has ended", 60, || a.fleet.stats().connections == 0);
    wait_until("the node knows why", 20, || b.fleet.stats().certificate_days_left < 0);
    sees(&a, "a");
}

#[test]
fn a_certificate_that_is_revoked_lets_nobody_in() {
    let fleet = Authority::new(FLEET);
    let crl = fleet.revoke(&["mallory"]);
    let options = fleet.options(Start::new("a", &[]));
    let a =
        Peer::start(FleetOptions { identity: IdentityFiles { crl: Some(crl), ..options.identity.clone() }, ..options });
    let seeds = [a.address()];
    let b = fleet.start(Start::new("b", &seeds));
    let _mallory = fleet.start(Start::new("mallory", &seeds));
    sees(&a, "a b");
    counts(&a, "the revoked one is refused", |stats| stats.refused > 0);
    fleet.revoke(&["mallory", "b"]);
    assert!(a.fleet.reload_identity().expect("it is a list"));
    counts(&a, "the connection has ended", |stats| stats.connections == 0);
    sees(&a, "a");
    drop(b);
}

#[test]
fn a_member_that_floods_with_usage_fills_no_queue_but_its_own() {
    let fleet = Authority::new(FLEET);
    let mut a = fleet.start(Start::new("a", &[]));
    let b = fleet.start(Start::new("b", &[a.address()]));
    sees(&b, "a b");
    let (files, runtime) = (fleet.node("mallory"), runtime());
    let flood = async {
        let mallory = Stranger::connect(&files, ALPN, a.address()).await.expect("it has a certificate");
        mallory.hello("mallory").await;
        for _ in 0..1_200 {
            mallory.send(&[&[2], b"flood"]).await;
        }
        mallory
    };
    let _mallory = runtime.block_on(flood);
    assert!(b.fleet.send(a.fleet.own(), Bytes::from_static(b"still heard")));
    let mut floods = 0;
    while a.receive().from != *b.fleet.own() {
        floods += 1;
    }
    assert!(floods <= 64, "{floods} frames of one peer waited");
}

#[test]
fn changed_certificates_are_noticed_without_being_told() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let before = a.fleet.stats().certificate_days_left;
    fleet.lasting(5, "a");
    counts(&a, "the new certificate is in use", |stats| stats.certificate_days_left < 6);
    assert!(before > 6, "{before}");
}

// One connection for two nodes.

#[test]
fn nodes_that_dial_each_other_at_once_end_with_one_connection_and_lose_no_frame() {
    let fleet = Authority::new(FLEET);
    let (at_a, at_b) = (free_port(), free_port());
    let (seeds_a, seeds_b) = ([at_b], [at_a]);
    // It dials while nobody listens there yet, and its dial comes through after the other's.
    let mut a = fleet.start(Start { at: Some(at_a), ..Start::new("a", &seeds_a) });
    counts(&a, "it dials", |stats| stats.dials > 0);
    let mut b = fleet.start(Start { at: Some(at_b), ..Start::new("b", &seeds_b) });
    sees(&a, "a b");
    sees(&b, "a b");
    let most = Cell::new(0);
    let settled = |node: &Peer| {
        let now = node.fleet.stats().connections;
        most.set(now.max(most.get()));
        most.get() == 2 && now == 1
    };
    wait_until("one connection is left of two", 20, || {
        exchange(&mut a, &mut b);
        exchange(&mut b, &mut a);
        settled(&a) && settled(&b)
    });
    exchange(&mut a, &mut b);
    assert_eq!((a.fleet.stats().dropped_out, b.fleet.stats().dropped_out), (0, 0));
}

/// One frame there. The next is sent when it has come.
fn exchange(from: &mut Peer, to: &mut Peer) {
    let text = format!("{}", rationd::clock::random());
    assert!(from.fleet.send(to.fleet.own(), Bytes::from(text.clone())));
    assert_eq!(to.receive().frame, text);
}

/// A port that was free a moment ago.
fn free_port() -> SocketAddr {
    let socket = std::net::UdpSocket::bind(anywhere()).expect("a port");
    socket.local_addr().expect("it is bound")
}

#[test]
fn connections_of_a_life_that_ended_are_noticed_before_they_are_idle() {
    let fleet = Authority::new(FLEET);
    let mut a = fleet.start(Start::new("a", &[]));
    let seeds = [a.address()];
    let b = fleet.start(Start::new("b", &seeds));
    sees(&a, "a b");
    // Its certificates stay the same, as a restarted daemon's do.
    let options =
        FleetOptions { incarnation: 2_000, listen: b.address(), ..fleet.options_kept(Start::new("b", &seeds)) };
    Box::new(b).kill();
    let watch = Watch::start();
    let mut again = Peer::start(options);
    sees(&again, "a b");
    wait(&a, "the new life", |members| members.get(again.fleet.own()).is_some());
    exchange(&mut a, &mut again);
    counts(&a, "the old connection is gone", |stats| stats.connections == 1);
    assert!(watch.elapsed() < Duration::from_secs(8), "it idled out: {:?}", watch.elapsed());
    println!("the old connection was gone after {} ms", watch.elapsed().as_millis());
}

#[test]
fn a_node_that_is_its_own_seed_does_not_dial_itself() {
    let fleet = Authority::new(FLEET);
    let port = free_port();
    let own = [port];
    let options = FleetOptions {
        advertise: Some(([127, 0, 0, 2], port.port()).into()),
        ..fleet.options(Start { at: Some(([0, 0, 0, 0], port.port()).into()), ..Start::new("a", &own) })
    };
    let a = Peer::start(options);
    counts(&a, "it knows its own address", |stats| stats.dropped_out > 9);
    assert_eq!(a.fleet.stats().dials, 0);
    assert_eq!((a.fleet.stats().connections, a.fleet.members().borrow().len()), (0, 1));
}

#[test]
fn a_seed_may_be_a_host_name_and_one_that_is_nobodys_hurts_nothing() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let seeds = vec!["nobody.invalid:1".to_owned(), format!("localhost:{}", a.address().port())];
    let b = Peer::start(FleetOptions { seeds, ..fleet.options(Start::new("b", &[])) });
    sees(&b, "a b");
    sees(&a, "a b");
}

#[test]
fn a_node_that_listens_on_both_families_is_reached_over_either() {
    if std::net::UdpSocket::bind("[::]:0").is_err() {
        return skipped("a node on both families", "this machine has no IPv6", "ipv6");
    }
    let fleet = Authority::new(FLEET);
    let port = free_port().port();
    let at = Some(([0_u16; 8], port).into());
    let reached = SocketAddr::from(([127, 0, 0, 1], port));
    let advertise = Some(reached);
    let mut a = Peer::start(FleetOptions { advertise, ..fleet.options(Start { at, ..Start::new("a", &[]) }) });
    assert_eq!(a.fleet.advertised(), reached);
    let seeds = [reached];
    let mut b = fleet.start(Start::new("b", &seeds));
    sees(&a, "a b");
    sees(&b, "a b");
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
}

// Frames.

#[test]
fn a_frame_reaches_a_member_under_its_senders_name() {
    let fleet = Authority::new(FLEET);
    let mut a = fleet.start(Start::new("a", &[]));
    let mut b = fleet.start(Start::new("b", &[a.address()]));
    sees(&a, "a b");
    sees(&b, "a b");
    assert!(b.fleet.send(a.fleet.own(), Bytes::from(vec![7; MAX_FRAME])));
    let seen = a.receive();
    assert_eq!((&seen.from, seen.frame.len()), (b.fleet.own(), MAX_FRAME));
    assert_eq!(a.fleet.broadcast(Bytes::from_static(b"to all")), 1);
    assert_eq!(b.receive().frame, "to all");
}

#[test]
fn what_cannot_be_sent_is_dropped_at_once() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let nobody = PeerId { name: "nobody".into(), incarnation: 1 };
    assert!(!a.fleet.send(&nobody, Bytes::from_static(b"x")));
    assert!(!a.fleet.send(a.fleet.own(), Bytes::from_static(b"x")));
    assert_eq!(a.fleet.broadcast(Bytes::from(vec![0; MAX_FRAME + 1])), 0);
    assert_eq!(a.fleet.stats().oversized, 1);
}

#[test]
fn a_frame_that_is_too_large_is_refused_and_its_peer_stays() {
    let fleet = Authority::new(FLEET);
    let mut a = fleet.start(Start::new("a", &[]));
    let files = fleet.node("c");
    let to = a.address();
    let (runtime, stranger) = (runtime(), Stranger::connect(&files, ALPN, to));
    let stranger = runtime.block_on(stranger).expect("it has a certificate");
    let huge = vec![0; 64 << 20];
    runtime.block_on(async {
        stranger.hello("c").await;
        for channel in [1, 2, 9] {
            stranger.send(&[&[channel], &huge]).await;
        }
    });
    counts(&a, "each is counted", |stats| stats.oversized == 3);
    assert_eq!(a.fleet.stats().bytes_in, 0, "nothing of them was taken");
    let moved = stranger.connection.stats().udp_tx.bytes;
    assert!(moved < 4 << 20, "{moved} bytes went out of 192 MiB: the windows did not hold them back");
    runtime.block_on(stranger.send(&[&[2], b"still here"]));
    assert_eq!(a.receive().frame, "still here");
    assert_eq!(a.fleet.stats().connections, 1);
}

#[test]
fn a_peer_that_takes_nothing_delays_nobody_else() {
    let fleet = Authority::new(FLEET);
    let a = fleet.start(Start::new("a", &[]));
    let mut b = fleet.start(Start::new("b", &[a.address()]));
    let mut c = fleet.start(Start::new("c", &[a.address()]));
    for node in [&a, &b, &c] {
        sees(node, "a b c");
    }
    // It ends without a word, so that its peers still believe that it is there.
    let deaf = c.fleet.own().clone();
    c.stop();
    let frame = Bytes::from(vec![0; 8 << 10]);
    wait_until("its queue is full", 8, || !a.fleet.send(&deaf, frame.clone()));
    assert!(a.fleet.send(b.fleet.own(), Bytes::from_static(b"prompt")));
    let watch = Watch::start();
    assert_eq!(b.receive().frame, "prompt");
    assert!(watch.elapsed() < Duration::from_secs(1), "it took {:?}", watch.elapsed());
    assert!(a.fleet.stats().dropped_out > 0);
}
