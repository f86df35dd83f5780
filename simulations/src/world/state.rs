//! The parts of the world, and how observers see what happens in it.

use std::sync::Arc;

use rationd::core::policy::Rule;

use super::cluster::Cluster;
use super::demand::Demand;
use super::event::Queue;
use super::gossip::Grapevine;
use super::holds::Holders;
use super::joined::Joining;
use super::keys::Keys;
use super::message::Letter;
use super::network::Network;
use super::node::Node;
use super::permits::Takers;
use super::prober::Prober;
use super::several::Groups;
use super::stream::Streams;
use super::watch::Watch;
use crate::lua::Scripts;
use crate::maps::Map;
use crate::observe::{Kind, Moment, Request, Seen};
use crate::plan::{self, Plan};
use crate::random::Random;

/// How long after the end of demand a run waits for the prober; it has its answers long before.
const LONGEST_PROBE: u64 = 600_000_000;

/// A fleet, a cluster, a network between them, and the clients.
pub struct World<'a> {
    pub(super) plan: Plan,
    /// Whether limits change during the run.
    pub(super) pushes: bool,
    pub(super) now: u64,
    pub(super) queue: Queue,
    pub(super) nodes: Vec<Node>,
    /// The nodes that take requests, in the order of their numbers.
    pub(super) up: Vec<u32>,
    pub(super) cluster: Cluster,
    pub(super) network: Network,
    pub(super) grapevine: Grapevine,
    pub(super) scripts: &'a mut Scripts,
    pub(super) joining: Joining,
    pub(super) letters: Map<u64, Letter>,
    pub(super) streams: Streams,
    pub(super) demands: Vec<Demand>,
    pub(super) keys: Keys,
    pub(super) holders: Holders,
    pub(super) takers: Takers,
    pub(super) groups: Groups,
    pub(super) first_rules: Vec<Arc<Rule>>,
    pub(super) prober: Option<Prober>,
    pub(super) random: Random,
    pub(super) next_letter: u64,
    pub(super) next_request: u64,
    pub(super) next_incarnation: u64,
    pub(super) watch: Watch<'a>,
}

impl World<'_> {
    pub(super) fn moment(&self) -> Moment {
        Moment { at: self.now, store: self.cluster.exact(self.now) }
    }

    pub(super) fn see(&mut self, seen: &Seen<'_>) {
        let moment = self.moment();
        self.watch.see(moment, seen);
    }

    pub(super) fn request(&mut self, node: u32, key: u32, policy: u32, cost: u64, kind: Kind) -> Request {
        self.next_request += 1;
        Request { id: self.next_request, node, key, policy, cost, kind, asked: self.now }
    }

    /// Whether calls travel on connections, which keep their order.
    pub(super) fn is_streams(&self) -> bool {
        self.plan.network.calls == plan::Calls::Streams
    }

    /// When a frozen node goes on.
    pub(super) fn thaws_at(&self, node: u32) -> u64 {
        self.nodes[node as usize].frozen_until
    }

    /// Whether demand has ended.
    pub(super) fn is_over(&self) -> bool {
        self.now >= self.plan.span.0 + self.plan.calm.0
    }

    /// Whether the run is complete: all last questions are answered, or one of them never will be.
    pub(super) fn is_done(&self) -> bool {
        let in_vain = self.now > self.plan.span.0 + self.plan.calm.0 + LONGEST_PROBE;
        self.prober.as_ref().map_or(self.is_over() && self.plan.calm.0 == 0, |prober| {
            prober.is_done() && self.takers.is_done(self.now) || in_vain
        })
    }
}
