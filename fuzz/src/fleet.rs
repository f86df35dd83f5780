//! Gossip as members send it, into a membership with chitchat behind it, in virtual time.
//!
//! Holds: nobody is in the live set but this node, an honest peer and who has sent something, each where it is; what this
//! node sends fits into a frame; and an honest peer and this node still find each other.
//!
//! An input is messages: who sends it (one byte), its length (two, little-endian), and its bytes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{Carrier, GossipMessage, MAX_FRAME, Members, Membership, MembershipOptions, PeerId};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

/// What messages are made of.
pub const WORDS: &[&[u8]] = super::hello::WORDS;

/// The node that is sent to, and an honest one.
const OWN: u16 = 1;
const HONEST: u16 = 2;
/// Where they live who send inputs: under one address each, two of them in two lives.
const STRANGERS: [(&str, u64, u16); 4] = [("mallory", 1, 9), ("mallory", 2, 9), ("eve", 1, 8), ("own", 7, 7)];

/// Longest wait for honest nodes to find each other, in virtual time.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Table(Mutex<HashMap<SocketAddr, (PeerId, mpsc::Sender<GossipMessage>)>>);

struct Wire {
    table: Arc<Table>,
    own: PeerId,
    address: SocketAddr,
    changed: watch::Sender<u64>,
}

fn at(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

impl Carrier for Wire {
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool {
        assert!(frame.len() <= MAX_FRAME, "a frame of {} bytes", frame.len());
        let table = self.table.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gossip = GossipMessage::new(self.own.clone(), self.address, frame);
        table.get(&to).is_some_and(|(_, inbox)| inbox.try_send(gossip).is_ok())
    }

    fn is_connected(&self, peer: &PeerId) -> bool {
        let table = self.table.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.values().any(|(id, _)| id == peer)
    }

    fn has_left(&self, _: &PeerId) -> bool {
        false
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

fn start(table: &Arc<Table>, name: &str, port: u16, seeds: &[u16]) -> (Membership, mpsc::Sender<GossipMessage>) {
    let own = PeerId { name: name.into(), incarnation: 1_000 };
    let (inbox, messages) = mpsc::channel(1 << 14);
    table.0.lock().unwrap_or_else(PoisonError::into_inner).insert(at(port), (own.clone(), inbox.clone()));
    let wire = Wire { table: table.clone(), own: own.clone(), address: at(port), changed: watch::channel(0).0 };
    let options = MembershipOptions {
        fleet: "test".into(),
        own,
        address: at(port),
        seeds: seeds.iter().map(|port| at(*port).to_string()).collect(),
        tick: Duration::from_millis(200),
        owning: rationd::fleet::Owning::Auto,
    };
    (Membership::start(options, Arc::new(wire), messages), inbox)
}

/// See the module.
pub fn run(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(hear(input));
}

async fn hear(mut input: &[u8]) {
    let table = Arc::new(Table::default());
    let (own, inbox) = start(&table, "own", OWN, &[]);
    let mut senders = vec![(PeerId { name: "own".into(), incarnation: 1_000 }, at(OWN))];
    senders.push((PeerId { name: "honest".into(), incarnation: 1_000 }, at(HONEST)));
    // Each after what the one before has led to.
    sleep(Duration::from_millis(1)).await;
    while let Some((&[who, low, high], rest)) = input.split_first_chunk() {
        let (name, incarnation, port) = STRANGERS[usize::from(who) % STRANGERS.len()];
        let (frame, rest) = rest.split_at(rest.len().min(usize::from(low) | usize::from(high) << 8));
        let from = PeerId { name: name.into(), incarnation };
        let gossip = GossipMessage::new(from.clone(), at(port), Bytes::copy_from_slice(frame));
        senders.push((from, at(port)));
        inbox.try_send(gossip).expect("there is room for as many messages as an input has");
        sleep(Duration::from_millis(if who < 128 { 1 } else { 201 })).await;
        only(&own.members().borrow(), &senders);
        input = rest;
    }
    let (honest, _) = start(&table, "honest", HONEST, &[OWN]);
    for (membership, other) in [(&own, "honest"), (&honest, "own")] {
        let sees = |members: &Arc<Members>| {
            only(members, &senders);
            members.iter().any(|member| &*member.id.name == other && member.id.incarnation == 1_000)
        };
        let mut members = membership.members();
        let found = timeout(PATIENCE, members.wait_for(sees)).await;
        assert!(found.is_ok(), "{other} is not found any more");
    }
}

fn only(members: &Members, senders: &[(PeerId, SocketAddr)]) {
    for member in members.iter() {
        let is_known = senders.iter().any(|(id, address)| *id == member.id && *address == member.address);
        assert!(is_known, "nobody has sent anything as {} from {}", member.id, member.address);
    }
}
