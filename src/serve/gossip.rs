//! Rounds of gossip: sends what the shards report to all peers, gives peers' reports to the shards, and turns the
//! list of live nodes into the view from which shares are computed.
//!
//! It is one task on the runtime of its fleet. A node sends its changes to the nodes that have to know them, mostly all, within a
//! bound of bytes; what does not fit is sent in a later round. While there is nothing to send, rounds cease until a shard has news or the
//! next sign of life is due. Knows frames by their codec and peers by their names. Decides nothing about keys.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::lending::{Lending, LendingStats};
use super::node::{Node, Outgoing};
use super::vital::Pulse;
use crate::clock;
use crate::core::fleet::{FleetTracker, FleetView};
use crate::core::owners::{Candidate, OwnerName, name_hash};
use crate::core::time::{Instant, Micros};
use crate::core::usage::{self, PeerIndex};
use crate::fleet::{Fleet, FleetStats, Incoming, Member, MemberState, Members, Owning, PeerId};
use crate::wire::digest;

/// How often a node sends a report to all peers even if it is empty, as its sign of life.
const HEARTBEAT: Micros = Micros(1_000_000);

/// A node whose last sign of life answered a peer's sends its next one unasked so much later than [`HEARTBEAT`]. The
/// peer's next one then comes first and is answered again; a timer set for the same moment would wake this node for
/// nothing.
const AFTER: Micros = Micros(100_000);

/// Up to so many peers, nodes that have nothing to report send their signs of life at the same time. In a larger fleet
/// so many frames at once would be a burst.
const SMALL: u64 = 8;

/// A node's part in its fleet's gossip.
#[derive(Debug)]
pub struct FleetGossip {
    fleet: Fleet,
    tick: Duration,
    /// Asks peers for keys that they own, if this node takes part in that.
    lending: Option<Arc<Lending>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tracker: FleetTracker,
    /// The live nodes when the fleet tracker was last updated; people see them together with the view.
    members: Option<Arc<Members>>,
    /// Peers that the fleet tracker knows, and whether they announced that they leave.
    known: BTreeMap<PeerId, bool>,
    /// The same peers by their numbers.
    ids: HashMap<PeerIndex, PeerId>,
    view: Option<FleetView>,
    /// When the last report was sent.
    reported: Instant,
    /// The last report answered a peer's sign of life.
    has_answered: bool,
    /// From when on a report may have entries: before that, the last ones have taken all bytes that reports may take.
    may_report: Instant,
    bad: u64,
}

/// What a node knows of its fleet, for people and metrics.
#[derive(Clone, Debug)]
pub struct FleetStatus {
    /// All live nodes, including this one, and how long ago each was last heard from.
    pub members: Vec<(Member, Option<Micros>)>,
    /// This node.
    pub own: PeerId,
    /// The view from which shares are computed.
    pub view: FleetView,
    /// How long ago the quietest peer was last heard from.
    pub staleness: Micros,
    /// Digests that could not be decoded.
    pub bad: u64,
    /// Counts of the connections.
    pub stats: FleetStats,
    /// Counts of what peers ask each other for; `None` where this node takes no part in that.
    pub lending: Option<LendingStats>,
}

impl FleetGossip {
    /// Takes part in the gossip of `fleet`, with a round each `tick`, and passes on to `lending`, if there is any, and
    /// to the shards which peers may own keys.
    #[must_use]
    pub fn new(fleet: Fleet, tick: Duration, lending: Option<Arc<Lending>>) -> Self {
        Self { fleet, tick, lending, state: Mutex::default() }
    }

    /// Runs until it is aborted.
    pub async fn run(self: Arc<Self>, node: Arc<Node>, mut incoming: mpsc::Receiver<Incoming>, pulse: Pulse) {
        let mut members = self.fleet.members();
        let mut next = clock::timers();
        let mut rests = false;
        loop {
            let is_round = tokio::select! {
                () = tokio::time::sleep_until(next) => true,
                () = node.news.notified() => rests,
                changed = members.changed() => match changed {
                    Ok(()) => {
                        self.on_members(&node, &members.borrow_and_update().clone());
                        false
                    }
                    Err(_) => return,
                },
                Some(frame) = incoming.recv() => {
                    self.receive(&node, &frame);
                    rests && self.answers(&node)
                }
            };
            pulse.beat(node.clock.now());
            if is_round {
                node.end_rest();
                rests = !self.round(&node) && node.rest();
                let wait = if rests { self.sign_is_due(node.clock.now()) } else { self.tick };
                next = clock::timers() + wait;
            }
        }
    }

    /// One round: sends changes, and updates the view of the fleet. Returns whether something was reported.
    pub fn round(&self, node: &Node) -> bool {
        let now = node.clock.now();
        let peers = self.peers();
        // In a large fleet the entries of one round may have taken the bytes of several.
        let most = if now < self.lock().may_report { 0 } else { digest::most_entries(peers, micros(self.tick)) };
        let reported = peers > 0 && self.report(node, now, most, HEARTBEAT);
        if let Some(lending) = &self.lending {
            lending.handle_tick(now);
        }
        self.look(node, now);
        reported
    }

    /// Updates the view of the fleet.
    fn look(&self, node: &Node, now: Instant) {
        let mut state = self.lock();
        let view = state.tracker.view(now, micros(self.tick));
        state.view = Some(view);
        drop(state);
        node.handle_fleet(view);
    }

    /// Handles a peer's sign of life while this node has nothing to report. It is answered with this node's own if half
    /// of the time until that has passed, so that the nodes of a small fleet come to send at the same time, and each
    /// wakes up once for all of them. Returns whether it was answered. The view of the fleet is updated in any case,
    /// since it says when the quietest peer was last heard.
    fn answers(&self, node: &Node) -> bool {
        let now = node.clock.now();
        self.look(node, now);
        let half = Micros(HEARTBEAT.0 / 2);
        if self.peers() > SMALL || now.since(self.lock().reported) < half {
            return false;
        }
        self.report(node, now, usize::MAX, half);
        self.lock().has_answered = true;
        true
    }

    fn peers(&self) -> u64 {
        self.fleet.members().borrow().len().saturating_sub(1) as u64
    }

    /// How long until the next sign of life is due.
    fn sign_is_due(&self, now: Instant) -> Duration {
        let state = self.lock();
        let (passed, span) =
            (now.since(state.reported), HEARTBEAT + if state.has_answered { AFTER } else { Micros::ZERO });
        drop(state);
        // Without peers no report was sent for longer than that, and none is due.
        let left = if passed >= span { HEARTBEAT.0 } else { (span.0 - passed.0).max(1_000) };
        Duration::from_micros(left)
    }

    /// Sends all reports that are left, because this node leaves.
    pub fn report_all(&self, node: &Node) {
        self.report(node, node.clock.now(), usize::MAX, HEARTBEAT);
    }

    /// Announces to the fleet that this node leaves.
    pub async fn leave(&self) {
        self.fleet.leave().await;
    }

    /// Sends what has changed to the peers that have to know, or to all of them an empty report as a sign of life, if
    /// the last report to all is at least `silence` old. Returns whether something has changed.
    fn report(&self, node: &Node, now: Instant, most: usize, silence: Micros) -> bool {
        let mut reports = Vec::new();
        node.drain_usage(now, most, &mut reports);
        let peers = self.peers();
        let (all, some) = usage::by_hearer(&reports);
        let mut state = self.lock();
        let is_for_all = !all.is_empty() || now.since(state.reported) >= silence;
        if is_for_all {
            (state.reported, state.has_answered) = (now, false);
        }
        if !reports.is_empty() {
            let frames = if all.is_empty() { 0 } else { peers } + some.len() as u64;
            let apart = digest::apart(frames, usage::entries(&reports, peers));
            state.may_report = now + if apart > micros(self.tick) { apart } else { Micros::ZERO };
        }
        let some: Vec<_> =
            some.iter().filter_map(|(peer, usage)| Some((state.ids.get(peer)?.clone(), usage))).collect();
        drop(state);
        if is_for_all {
            digest::encode(&all).into_iter().for_each(|frame| _ = self.fleet.broadcast(Bytes::from(frame)));
        }
        for (peer, usage) in some {
            digest::encode(usage).into_iter().for_each(|frame| _ = self.fleet.send(&peer, Bytes::from(frame)));
        }
        !reports.is_empty()
    }

    fn on_members(&self, node: &Node, members: &Arc<Members>) {
        let now = node.clock.now();
        let mut state = self.lock();
        let State { tracker, known, ids, .. } = &mut *state;
        let own = self.fleet.own();
        let others = members.iter().filter(|member| member.id != *own);
        let live: BTreeMap<PeerId, bool> =
            others.map(|member| (member.id.clone(), member.state == MemberState::Leaving)).collect();
        let numbered = live.keys().map(|peer| (tracker.joined(now, &peer.name, peer.incarnation), peer.clone()));
        *ids = numbered.collect();
        for (peer, leaving) in known.iter().filter(|(peer, _)| !live.contains_key(*peer)) {
            tracker.left(now, &peer.name, peer.incarnation, *leaving || self.fleet.has_left(peer));
        }
        *known = live;
        let owners = self.lending.as_ref().map(|lending| (lending, owners(tracker, now, own, members)));
        let view = tracker.view(now, micros(self.tick));
        (state.view, state.members) = (Some(view), Some(members.clone()));
        drop(state);
        tracing::info!(live = view.live, largest = view.largest, "the fleet has changed");
        node.handle_fleet(view);
        if let Some((lending, (candidates, peers))) = owners {
            lending.handle_peers(peers);
            node.handle_owners(owner_name(own, self.fleet.owning()), &candidates);
        }
    }

    fn receive(&self, node: &Node, incoming: &Incoming) {
        let now = node.clock.now();
        let PeerId { name, incarnation } = &incoming.from;
        let heard = self.lock().tracker.heard(now, name, *incarnation);
        // Reports of nodes that are not in the list of live nodes are ignored.
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
    pub fn fleet_status(&self, now: Instant) -> FleetStatus {
        let state = self.lock();
        let members = state.members.clone().unwrap_or_else(|| self.fleet.members().borrow().clone());
        let heard = |id: &PeerId| {
            let mut peers = state.tracker.peers();
            peers.find(|(name, life, _)| **name == id.name && *life == id.incarnation).map(|(_, _, at)| now.since(at))
        };
        let members: Vec<_> = members.iter().map(|member| (member.clone(), heard(&member.id))).collect();
        let view = state.view.unwrap_or(FleetView::UNKNOWN);
        let staleness = members.iter().filter_map(|(_, heard)| *heard).max().unwrap_or_default();
        let (own, stats) = (self.fleet.own().clone(), self.fleet.stats());
        let lending = self.lending.as_ref().map(|lending| lending.stats());
        FleetStatus { members, own, view, staleness, bad: state.bad, stats, lending }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FleetStatus {
    /// Numbers of nodes by state: up, leaving, and missed, which are those that are gone without having announced it.
    #[must_use]
    pub fn nodes(&self) -> [(&'static str, u64); 3] {
        let count = |state| self.members.iter().filter(|(member, _)| member.state == state).count() as u64;
        let missed = u64::from(self.view.largest.saturating_sub(self.view.live));
        [("up", count(MemberState::Up)), ("leaving", count(MemberState::Leaving)), ("missed", missed)]
    }
}

/// The peers that may own keys, by their numbers.
fn owners(
    tracker: &mut FleetTracker,
    now: Instant,
    own: &PeerId,
    members: &Members,
) -> (Vec<Candidate>, HashMap<PeerIndex, PeerId>) {
    let others = members.iter().filter(|member| member.id != *own && member.state == MemberState::Up);
    let owners = others.filter(|member| member.owning != Owning::Never);
    let numbered = owners.map(|member| (tracker.joined(now, &member.id.name, member.id.incarnation), member));
    numbered
        .map(|(peer, member)| {
            let candidate = Candidate { peer, name: owner_name(&member.id, member.owning) };
            (candidate, (peer, member.id.clone()))
        })
        .unzip()
}

fn owner_name(node: &PeerId, owning: Owning) -> OwnerName {
    OwnerName { hash: name_hash(&node.name), is_always: owning == Owning::Always }
}

fn micros(tick: Duration) -> Micros {
    Micros(u64::try_from(tick.as_micros()).unwrap_or(u64::MAX))
}
