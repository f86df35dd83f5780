//! What a node of a large fleet sends and holds: the fleet room with real quinn, rustls, chitchat and congestion control, and the
//! real codec of usage, in one thread on paused time, over a network in memory.
//!
//! It prints, for each node: bytes a second of membership and of usage, in frames and in datagrams, connections, and memory.
//! The goals are those of a thousand nodes: what is missed here is missed there. Alone in its process, as it measures that.
//!
//! `RATIOND_FLEET_NODES=100` runs as many nodes. Their connections, one between any two, are what takes the time and the memory:
//! all handshakes are in this thread. In a debug build 60 nodes take a minute and 100 three, so 200 do not fit into two.

use crate::support;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use rationd::core::key::Digest;
use rationd::core::time::{Micros, Timestamp};
use rationd::core::usage::{Count, Usage};
use rationd::fleet::{Fleet, Owning};
use rationd::wire::digest;
use support::clock::Watch;
use support::ether::{Ether, Weather};
use support::goals::judge;
use support::membership_suite::Start;
use support::memory::resident_of;
use support::peers::Authority;
use support::seeded::draw_from;
use support::served::print;
use tokio::runtime::Builder;
use tokio::time::sleep;

/// Nodes, where nobody says how many.
const NODES: usize = 24;

/// Each node has so many keys of which it could tell in each round.
const KEYS: u64 = 1_000;

/// Between two rounds of usage.
const TICK: Duration = Duration::from_millis(200);

/// Rounds that are measured: of membership alone, and with usage.
const ROUNDS: u32 = 25;

/// Between two nodes that start, and how long it may take until all see all.
const BETWEEN: Duration = Duration::from_millis(50);
const JOIN: Duration = Duration::from_secs(30);

/// After ten seconds without a change a fleet is calm, and its membership slower, if each node shows once a second that it lives.
const CALM: Duration = Duration::from_secs(13);
const SIGN: Duration = Duration::from_secs(1);

/// What a node may send and hold of a thousand: bytes a second of usage and of membership, and connections.
const USAGE: u64 = 32_000;
const MEMBERSHIP: u64 = 70_000;
const CONNECTIONS: u64 = 64;

#[test]
fn what_a_node_of_a_large_fleet_sends_and_holds() {
    let nodes = std::env::var("RATIOND_FLEET_NODES").map_or(NODES, |text| text.parse().expect("a number"));
    let run = move || {
        draw_from(Some(1));
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(live(nodes));
    };
    std::thread::spawn(run).join().expect("the fleet meets");
}

async fn live(nodes: usize) {
    let (watch, before) = (Watch::start(), resident_of(std::process::id()));
    let weather = Weather { delay: Duration::from_millis(1), jitter: Duration::from_millis(1), loss: 0 };
    let ether = Ether::new(1, weather, false);
    let carrying = tokio::spawn(ether.clone().carry());
    let authority = Authority::repeatable("test");
    let mut fleets: Vec<Fleet> = Vec::new();
    for number in 0..nodes {
        let (name, seeds) = (format!("node-{number}"), [address(0), address(1)]);
        let start =
            Start { name: &name, incarnation: 1_000, at: Some(address(number)), seeds: &seeds, owning: Owning::Auto };
        let started = Fleet::start_over(authority.options(start), ether.socket(address(number)));
        let (fleet, mut incoming) = started.expect("it starts");
        tokio::spawn(async move { while incoming.recv().await.is_some() {} });
        fleets.push(fleet);
        sleep(BETWEEN).await;
    }
    let begun = ether.now();
    while fleets.iter().any(|fleet| fleet.members().borrow().len() < nodes) {
        let seen = fleets.iter().map(|fleet| fleet.members().borrow().len()).min();
        assert!(ether.now() - begun < JOIN, "of {nodes} nodes one sees {seen:?} after {JOIN:?}");
        sleep(TICK).await;
    }
    let joined = ether.now() - begun;
    // What was said to those who came last is not what a fleet says that has met.
    sleep(10 * TICK).await;
    let grown = resident_of(std::process::id()).saturating_sub(before) / nodes as u64;
    let (real, quiet) = (watch.elapsed(), measure(&ether, &fleets, false).await);
    let living = tokio::spawn(show_life(fleets.clone()));
    sleep(CALM).await;
    let calm = measure(&ether, &fleets, false).await;
    let busy = measure(&ether, &fleets, true).await;
    living.abort();
    let connections = fleets.iter().map(|fleet| fleet.stats().connections).max().unwrap_or(0);
    let [membership, usage] = [quiet.frames, busy.frames.saturating_sub(calm.frames)];
    let thousand = |bytes: u64| bytes * 999 / (nodes as u64 - 1);
    print(&format!(
        "{nodes} nodes met {joined:.1?} after the last had come ({real:.1?} of real time, {:.1?} for all); a node: \
         membership {} B/s in frames, {} in datagrams, of a calm fleet with its signs of life, and {membership} and {} after the last had come; with usage of {KEYS} keys {} B/s more in frames, {} in datagrams; \
         {connections} connections at most; {} KiB of memory, {} a connection",
        watch.elapsed(),
        calm.frames,
        calm.datagrams,
        quiet.datagrams,
        usage,
        busy.datagrams.saturating_sub(calm.datagrams),
        grown >> 10,
        (grown >> 10) / connections.max(1),
    ));
    for fleet in &fleets {
        let stats = fleet.stats();
        assert_eq!((stats.malformed, stats.oversized, stats.gossip_restarts, stats.refused), (0, 0, 0, 0), "{stats:?}");
        assert_eq!(fleet.members().borrow().len(), nodes, "nobody is lost by what the fleet says");
    }
    assert!(membership > 0 && usage > 0, "something is said");
    judge("usage takes 32 KB/s out of a node at most", format!("{usage} B/s of {nodes} nodes"), usage <= USAGE);
    for (when, bytes) in [("in a calm fleet", calm.frames), ("after nodes have come", membership)] {
        let seen = format!("{bytes} B/s of {nodes} nodes, {} of a thousand if it grows as they do", thousand(bytes));
        judge(&format!("membership takes 70 KB/s out of a node at most, {when}"), seen, bytes <= MEMBERSHIP);
    }
    let seen = format!("{connections} of {nodes} nodes");
    judge("a node that owns nothing has 64 connections at most", seen, connections <= CONNECTIONS);
    carrying.abort();
}

/// Daemons that have nothing to tell send an empty report each second, so that their peers miss nobody; not all at once.
async fn show_life(fleets: Vec<Fleet>) {
    loop {
        for fleet in &fleets {
            digest::encode(&[]).into_iter().for_each(|frame| _ = fleet.broadcast(Bytes::from(frame)));
            sleep(SIGN / fleets.len() as u32).await;
        }
    }
}

/// Bytes a second out of one node, in the mean.
struct Rates {
    /// In frames of the fleet.
    frames: u64,
    /// In datagrams: acknowledgements, and what encryption adds, among them.
    datagrams: u64,
}

/// Some rounds, in which each node tells all others of its usage, or not.
async fn measure(ether: &Ether, fleets: &[Fleet], tells: bool) -> Rates {
    let frames = || fleets.iter().map(|fleet| fleet.stats().bytes_out).sum::<u64>();
    let (frames_before, bytes_before, begun) = (frames(), ether.bytes(), ether.now());
    let (peers, tick) = (fleets.len() as u64 - 1, Micros(TICK.as_micros() as u64));
    let most = digest::most_entries(peers, tick);
    let every = digest::apart(peers, peers * most as u64).0.div_ceil(tick.0);
    for round in 0..u64::from(ROUNDS) {
        for fleet in fleets.iter().filter(|_| tells && round.is_multiple_of(every)) {
            let usage: Vec<_> = (0..most as u64).map(|entry| used(round * most as u64 + entry)).collect();
            digest::encode(&usage).into_iter().for_each(|frame| _ = fleet.broadcast(Bytes::from(frame)));
        }
        sleep(TICK).await;
    }
    let spans = (ether.now() - begun).as_millis() as u64 * fleets.len() as u64;
    Rates {
        frames: (frames() - frames_before) * 1_000 / spans,
        datagrams: (ether.bytes() - bytes_before) * 1_000 / spans,
    }
}

/// What a node tells of one of its keys.
fn used(number: u64) -> Usage {
    Usage {
        digest: Digest::of("api", &(number % KEYS).to_be_bytes()),
        limit: 0,
        window: Timestamp(1_800_000_000_000_000),
        count: Count { admitted: 10 + number, refunded: 0 },
        epoch: 0,
    }
}

fn address(node: usize) -> SocketAddr {
    let [high, low] = (node as u16 + 1).to_be_bytes();
    ([10, 0, high, low], 7946).into()
}
