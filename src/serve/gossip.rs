//! Rounds of gossip: what the shards have to tell goes out to all peers, what peers tell goes into the
//! shards, and who lives becomes the view that shares are made from.
//!
//! One task on the control runtime. Every node tells every other one what moved, within a bound of bytes;
//! what does not fit goes out in a later round. Knows frames by their codec and peers by their names;
//! decides nothing about keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::node::{Node, Outgoing};
use super::vital::Pulse;
use crate::core::fleet::{FleetTracker, FleetView};
use crate::core::time::{Instant, Micros};
use crate::fleet::{Fleet, FleetStats, Incoming, Member, MemberState, Members, PeerId};
use crate::wire::digest;

/// How often peers are told that there is nothing to tell.
const HEARTBEAT: Micros = Micros(1_000_000);

/// A node's part in its fleet's gossip.
#[derive(Debug)]
pub struct Gossip {
    fleet: Fleet,
    tick: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    roster: FleetTracker,
    /// Who lived when the roster was told last: what people see goes with the view.
    members: Option<Arc<Members>>,
    /// Peers that are in the roster, and whether they said that they go.
    known: BTreeMap<PeerId, bool>,
    view: Option<FleetView>,
    /// When something was told last.
    told: Instant,
    bad: u64,
}

/// What a node knows of its fleet, for people and metrics.
#[derive(Clone, Debug)]
pub struct FleetStatus {
    /// All that live, this node among them, and how long ago each was heard last.
    pub members: Vec<(Member, Option<Micros>)>,
    /// This node.
    pub own: PeerId,
    /// What shares are made from.
    pub view: FleetView,
    /// How long ago the quietest of them was heard.
    pub staleness: Micros,
    /// Digests that made no sense.
    pub bad: u64,
    /// What the connections count.
    pub stats: FleetStats,
}

impl Gossip {
    /// Takes part in the gossip of `fleet`, a round each `tick`.
    #[must_use]
    pub fn new(fleet: Fleet, tick: Duration) -> Self {
        Self { fleet, tick, state: Mutex::default() }
    }

    /// Runs until it is aborted.
    pub async fn run(self: Arc<Self>, node: Arc<Node>, mut incoming: mpsc::Receiver<Incoming>, pulse: Pulse) {
        let mut beats = Pulse::timer();
        let mut members = self.fleet.members();
        let mut rounds = tokio::time::interval(self.tick);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = rounds.tick() => self.round(&node),
                _ = beats.tick() => pulse.beat(node.clock.now()),
                changed = members.changed() => match changed {
                    Ok(()) => self.meet(&node, &members.borrow_and_update().clone()),
                    Err(_) => return,
                },
                Some(frame) = incoming.recv() => self.hear(&node, &frame),
            }
        }
    }

    /// Tells what has moved and looks at the fleet.
    pub fn round(&self, node: &Node) {
        let now = node.clock.now();
        let peers = self.fleet.members().borrow().len().saturating_sub(1) as u64;
        if peers > 0 {
            self.tell(node, now, digest::most_entries(peers, micros(self.tick)));
        }
        let mut state = self.lock();
        let view = state.roster.view(now, micros(self.tick));
        state.view = Some(view);
        drop(state);
        node.handle_fleet(view);
    }

    /// Tells everything that is left to tell: this node goes.
    pub fn tell_all(&self, node: &Node) {
        self.tell(node, node.clock.now(), usize::MAX);
    }

    /// Leaves the fleet in order.
    pub async fn leave(&self) {
        self.fleet.leave().await;
    }

    fn tell(&self, node: &Node, now: Instant, most: usize) {
        let mut usage = Vec::new();
        node.drain_usage(now, most, &mut usage);
        let mut state = self.lock();
        if usage.is_empty() && now.since(state.told) < HEARTBEAT {
            return;
        }
        state.told = now;
        drop(state);
        for frame in digest::encode(&usage) {
            self.fleet.broadcast(Bytes::from(frame));
        }
    }

    fn meet(&self, node: &Node, members: &Arc<Members>) {
        let now = node.clock.now();
        let mut state = self.lock();
        let State { roster, known, .. } = &mut *state;
        let own = self.fleet.own();
        let others = members.iter().filter(|member| member.id != *own);
        let live: BTreeMap<PeerId, bool> =
            others.map(|member| (member.id.clone(), member.state == MemberState::Leaving)).collect();
        for peer in live.keys() {
            roster.joined(now, &peer.name, peer.incarnation);
        }
        for (peer, leaving) in known.iter().filter(|(peer, _)| !live.contains_key(*peer)) {
            roster.left(now, &peer.name, peer.incarnation, *leaving || self.fleet.has_left(peer));
        }
        *known = live;
        let view = roster.view(now, micros(self.tick));
        (state.view, state.members) = (Some(view), Some(members.clone()));
        drop(state);
        tracing::info!(live = view.live, largest = view.largest, "the fleet has changed");
        node.handle_fleet(view);
    }

    fn hear(&self, node: &Node, incoming: &Incoming) {
        let now = node.clock.now();
        let PeerId { name, incarnation } = &incoming.from;
        let heard = self.lock().roster.heard(now, name, *incarnation);
        // Whoever is not known to live is not believed.
        let Some(origin) = heard else { return };
        match digest::decode(&incoming.frame) {
            Ok(usage) => {
                let mut out = Outgoing::default();
                usage.iter().for_each(|usage| node.handle_usage(now, origin, usage, &mut out));
                node.flush(&mut out);
            }
            Err(error) => {
                self.lock().bad += 1;
                tracing::warn!(peer = %incoming.from, %error, "a peer's digest makes no sense");
            }
        }
    }

    /// The fleet as it is seen at `now`.
    #[must_use]
    pub fn circle(&self, now: Instant) -> FleetStatus {
        let state = self.lock();
        let members = state.members.clone().unwrap_or_else(|| self.fleet.members().borrow().clone());
        let heard = |id: &PeerId| {
            let mut peers = state.roster.peers();
            peers.find(|(name, life, _)| **name == id.name && *life == id.incarnation).map(|(_, _, at)| now.since(at))
        };
        let members: Vec<_> = members.iter().map(|member| (member.clone(), heard(&member.id))).collect();
        let view = state.view.unwrap_or(FleetView::UNKNOWN);
        let staleness = members.iter().filter_map(|(_, heard)| *heard).max().unwrap_or_default();
        let (own, stats) = (self.fleet.own().clone(), self.fleet.stats());
        FleetStatus { members, own, view, staleness, bad: state.bad, stats }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FleetStatus {
    /// Nodes by what they are: up, leaving, and missed, who are gone without having left.
    #[must_use]
    pub fn nodes(&self) -> [(&'static str, u64); 3] {
        let count = |state| self.members.iter().filter(|(member, _)| member.state == state).count() as u64;
        let missed = u64::from(self.view.largest.saturating_sub(self.view.live));
        [("up", count(MemberState::Up)), ("leaving", count(MemberState::Leaving)), ("missed", missed)]
    }
}

fn micros(tick: Duration) -> Micros {
    Micros(u64::try_from(tick.as_micros()).unwrap_or(u64::MAX))
}
