//! A node's connections to the store: the daemon's own circuit breakers, over a slot map that may be out of date.
//!
//! Models what `src/store/redis.rs` does with connections: a call goes to the owner of its slot, with at most one MOVED
//! and one ASK; each server has a breaker; the map is read again after a MOVED and while a server is away. Its time is
//! the node's own. It decides only where calls may go; `post.rs` sends them.

use std::collections::BTreeMap;

use rationd::core::time::Instant;
use rationd::store::breaker::{Breaker, BreakerState, Fault, Pass};

use super::cluster::{Cluster, SLOTS};

/// One node's knowledge of the cluster.
#[derive(Debug)]
pub(super) struct Client {
    /// The server of each slot.
    map: Vec<u32>,
    breakers: BTreeMap<u32, Breaker>,
    /// Calls that wait for a trial call of their server, in the order in which they came.
    waiting: BTreeMap<u32, Vec<u64>>,
    /// Servers whose replica did not confirm a write in time, and when. Calls to them do not wait for a replica until
    /// the next check.
    alone: BTreeMap<u32, Instant>,
    /// Whether the map is being read.
    pub(super) reading: bool,
}

impl Client {
    /// The client of a node that starts with a map and without a connection.
    pub(super) fn new() -> Self {
        Self {
            map: vec![0; usize::from(SLOTS)],
            breakers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            alone: BTreeMap::new(),
            reading: false,
        }
    }

    /// Takes over the map that a server knows. Returns the servers that are new to this node.
    pub(super) fn adopt(&mut self, now: Instant, cluster: &Cluster) -> Vec<u32> {
        self.map = (0..SLOTS).map(|slot| cluster.owner(slot)).collect();
        self.breakers.retain(|server, _| cluster.primaries.contains(server));
        let fresh = cluster.primaries.iter().copied().filter(|server| !self.breakers.contains_key(server));
        let fresh: Vec<u32> = fresh.collect();
        for server in &fresh {
            self.breakers.insert(*server, Breaker::new(now));
        }
        fresh
    }

    /// The server of a slot.
    pub(super) fn server(&self, slot: u16) -> u32 {
        self.map[usize::from(slot)]
    }

    /// Lets a call pass, or says since when the server is away.
    pub(super) fn admit(&mut self, server: u32, now: Instant) -> Result<Pass, Instant> {
        self.breakers.entry(server).or_insert_with(|| connected(now)).admit()
    }

    /// Whether a trial call is at the server, so that others wait for its outcome.
    pub(super) fn is_on_trial(&self, server: u32) -> bool {
        self.breakers.get(&server).is_some_and(|breaker| breaker.state() == BreakerState::HalfOpen)
    }

    /// Adds a call that waits for the trial call.
    pub(super) fn wait(&mut self, server: u32, letter: u64) {
        self.waiting.entry(server).or_default().push(letter);
    }

    /// Removes a waiting call; returns whether it was there.
    pub(super) fn stop_waiting(&mut self, server: u32, letter: u64) -> bool {
        let line = self.waiting.entry(server).or_default();
        let before = line.len();
        line.retain(|other| *other != letter);
        line.len() < before
    }

    /// Removes and returns the calls that need not wait any longer.
    pub(super) fn released(&mut self, server: u32) -> Vec<u64> {
        if self.is_on_trial(server) { Vec::new() } else { self.waiting.remove(&server).unwrap_or_default() }
    }

    /// The server answered.
    pub(super) fn answered(&mut self, server: u32, pass: Pass) {
        if let Some(breaker) = self.breakers.get_mut(&server) {
            breaker.handle_answer(pass);
        }
    }

    /// A call failed. Returns the time of the first probe if that opened the breaker.
    pub(super) fn failed(&mut self, now: Instant, server: u32, pass: Pass, fault: Fault) -> Option<Instant> {
        let breaker = self.breakers.get_mut(&server)?;
        breaker.handle_fault(now, pass, fault).then(|| breaker.probe_at()).flatten()
    }

    /// The number of this node's connection to a server.
    pub(super) fn generation(&self, server: u32) -> Option<u64> {
        self.breakers.get(&server).map(|breaker| breaker.next_generation() - 1)
    }

    /// Since when a server has been away.
    pub(super) fn away_since(&self, server: u32) -> Option<Instant> {
        self.breakers.get(&server).and_then(Breaker::away_since)
    }

    /// When a server is to be probed, if it is away.
    pub(super) fn probe_at(&self, server: u32) -> Option<Instant> {
        self.breakers.get(&server).and_then(Breaker::probe_at)
    }

    /// Takes note of whether a probe was answered.
    pub(super) fn probed(&mut self, now: Instant, server: u32, answered: bool, jitter: u64) {
        let Some(breaker) = self.breakers.get_mut(&server) else { return };
        if answered {
            breaker.handle_probe();
            self.alone.remove(&server);
        } else {
            breaker.handle_failed_probe(now, rationd::core::time::Micros(jitter));
        }
    }

    /// Whether any server of the map is away.
    pub(super) fn misses_any(&self) -> bool {
        self.breakers.values().any(|breaker| breaker.away_since().is_some())
    }

    /// One of the servers that are not away: each in turn as `turn` grows.
    pub(super) fn trusted(&self, turn: u64) -> Option<u32> {
        let up = self.breakers.iter().filter(|(_, breaker)| breaker.away_since().is_none());
        let up: Vec<u32> = up.map(|(server, _)| *server).collect();
        up.get((turn % up.len().max(1) as u64) as usize).copied()
    }

    /// Whether it is worth waiting for the server's replica.
    pub(super) fn can_confirm(&mut self, server: u32, now: Instant) -> bool {
        // The monitor looks for the replica each second.
        let look_again = self.alone.get(&server).is_some_and(|since| now.since(*since).0 > 1_000_000);
        if look_again {
            self.alone.remove(&server);
        }
        !self.alone.contains_key(&server)
    }

    /// A WAIT was not answered in time.
    pub(super) fn unconfirmed(&mut self, server: u32, now: Instant) {
        self.alone.insert(server, now);
    }
}

/// The breaker of a server that a MOVED has named: connected, because the daemon waits for the connection before it
/// goes on.
fn connected(now: Instant) -> Breaker {
    let mut breaker = Breaker::new(now);
    breaker.handle_probe();
    breaker
}
