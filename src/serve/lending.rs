//! Asks on their way to peers: takes them from the shards, sends them, and knows which answers are awaited from which
//! peer.
//!
//! The core decides who owns a key and what is asked; this turns a peer's number into its name, and an ask into a
//! frame. An answer counts once, if it comes in time from the peer that was asked, and offers what was asked for.
//! Called by the node (asks), by `peer_asks` (answers) and by `gossip` (who is there).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::peer_outcome::{PeerOutcome, PeerOutcomes};
use super::thread_stats::Durations;
use crate::clock::Clock;
use crate::core::ask::{Answer, Ask, Terms};
use crate::core::key::Digest;
use crate::core::time::Instant;
use crate::core::usage::PeerIndex;
use crate::fleet::{Fleet, PeerId};
use crate::wire::peer_ask::PeerAsk;

/// Most asks that await an answer. Further ones are not sent, and the store is asked.
const MOST_OPEN: usize = 16_384;

/// The asks of this node.
#[derive(Debug)]
pub struct Lending {
    fleet: Fleet,
    clock: Clock,
    /// Who may be asked.
    peers: Mutex<HashMap<PeerIndex, PeerId>>,
    open: Mutex<Open>,
    /// What came of asks of this node.
    asked: PeerOutcomes,
    /// What came of asks of its peers.
    pub(super) answered: Arc<PeerOutcomes>,
}

#[derive(Debug, Default)]
struct Open {
    asks: HashMap<u64, AwaitedAsk>,
    durations: Durations,
}

/// An ask whose answer is awaited.
#[derive(Debug)]
struct AwaitedAsk {
    peer: PeerId,
    digest: Digest,
    terms: Terms,
    sent: Instant,
    until: Instant,
}

impl AwaitedAsk {
    fn is_late(&self, now: Instant) -> bool {
        self.until <= now
    }

    /// Whether the answer is one to this ask.
    fn is_answered_by(&self, answer: &Answer) -> bool {
        answer.is_err()
            || answer.is_ok_and(|loan| loan.tokens == 0 || (self.terms.least..=self.terms.want).contains(&loan.tokens))
    }
}

/// What is counted of asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LendingStats {
    /// What came of asks of this node, in the order of [`PeerOutcome::ALL`].
    pub asked: [u64; PeerOutcome::ALL.len()],
    /// What came of asks of its peers.
    pub answered: [u64; PeerOutcome::ALL.len()],
    /// How long answers took.
    pub durations: Durations,
}

impl Lending {
    /// Asks members of `fleet`.
    #[must_use]
    pub fn new(fleet: Fleet, clock: Clock) -> Self {
        Self {
            fleet,
            clock,
            peers: Mutex::default(),
            open: Mutex::default(),
            asked: PeerOutcomes::default(),
            answered: Arc::default(),
        }
    }

    /// This node's name.
    pub(super) fn own(&self) -> &Arc<str> {
        &self.fleet.own().name
    }

    /// The name of a peer that may be asked.
    pub(super) fn name_of(&self, peer: PeerIndex) -> Option<Arc<str>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner).get(&peer).map(|peer| peer.name.clone())
    }

    /// Only these peers may be asked from now on.
    pub(super) fn handle_peers(&self, peers: HashMap<PeerIndex, PeerId>) {
        *self.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// Sends an ask, without waiting.
    pub(super) fn ask(&self, peer: PeerIndex, ask: &Ask) {
        let frame = PeerAsk { id: ask.id, policy: &ask.rule.policy, key: &ask.key, terms: ask.terms }.encode();
        let peer = self.peers.lock().unwrap_or_else(PoisonError::into_inner).get(&peer).cloned();
        let now = self.clock.now();
        let is_sent = peer.zip(frame).is_some_and(|(peer, frame)| {
            let awaited = AwaitedAsk {
                peer: peer.clone(),
                digest: ask.digest,
                terms: ask.terms,
                sent: now,
                until: now + ask.awaited,
            };
            // Registered before the ask is sent, because the answer may come at once.
            let is_open = self.await_answer(now, ask.id, awaited);
            let is_sent = is_open && self.fleet.ask(&peer, Bytes::from(frame), ask.terms.patience);
            if is_open && !is_sent {
                self.open().asks.remove(&ask.id);
            }
            is_sent
        });
        if !is_sent {
            self.asked.count(PeerOutcome::Unsent);
        }
    }

    fn await_answer(&self, now: Instant, id: u64, awaited: AwaitedAsk) -> bool {
        let mut open = self.open();
        if open.asks.len() >= MOST_OPEN {
            self.drop_late(&mut open, now);
        }
        let has_room = open.asks.len() < MOST_OPEN;
        if has_room {
            open.asks.insert(id, awaited);
        }
        has_room
    }

    /// The key to which an answer of this peer belongs, if it is awaited.
    pub(super) fn take_answer(&self, now: Instant, from: &PeerId, id: u64, answer: &Answer) -> Option<Digest> {
        let mut open = self.open();
        let awaited = open.asks.get(&id).filter(|awaited| awaited.peer == *from && awaited.is_answered_by(answer))?;
        let (is_late, digest, trip) = (awaited.is_late(now), awaited.digest, now.since(awaited.sent));
        open.asks.remove(&id);
        if is_late {
            self.asked.count(PeerOutcome::Late);
            return None;
        }
        open.durations.add(trip, 1);
        self.asked.count(PeerOutcome::of(answer));
        Some(digest)
    }

    /// Gives up the answers that are late, and counts them.
    pub(super) fn handle_tick(&self, now: Instant) {
        self.drop_late(&mut self.open(), now);
    }

    fn drop_late(&self, open: &mut Open, now: Instant) {
        open.asks.retain(|_, awaited| {
            let is_late = awaited.is_late(now);
            if is_late {
                self.asked.count(PeerOutcome::Late);
            }
            !is_late
        });
    }

    /// What is counted.
    #[must_use]
    pub fn stats(&self) -> LendingStats {
        let durations = self.open().durations;
        LendingStats { asked: self.asked.counts(), answered: self.answered.counts(), durations }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
