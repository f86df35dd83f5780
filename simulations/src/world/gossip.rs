//! The gossip between nodes: who is live, learned as late and as wrongly as by a real membership protocol; and usage
//! reports, in the shipped frames, over a network of their own that can be partitioned.
//!
//! Only the membership protocol is a model. The tracker of the fleet, the view, the merge and the codec are the
//! product's.

use std::collections::BTreeMap;

use rationd::core::fleet::FleetTracker;
use rationd::core::usage::PeerIndex;

use super::build::Build;
use crate::frames::Frames;
use crate::plan::{Gossip, Lie};
use crate::random::Random;

/// How often a node without reports sends a sign of life.
pub(super) const HEARTBEAT: u64 = 1_000_000;

/// The gossip network: partitions, malicious nodes, and nodes of another build.
#[derive(Debug)]
pub(super) struct Grapevine {
    pub(super) plan: Option<Gossip>,
    pub(super) random: Random,
    /// By fault: nodes that the others do not hear; if the flag is set, they do not hear the others either.
    pub(super) parts: Vec<(u32, Vec<u32>, bool)>,
    pub(super) liars: Vec<(u32, u32, Lie)>,
    pub(super) builds: Vec<(u32, Vec<u32>, Build)>,
    /// Bytes sent, for the figures.
    pub(super) bytes: u64,
}

/// What a node knows of the others.
#[derive(Debug, Default)]
pub(super) struct Circle {
    pub(super) tracker: FleetTracker,
    pub(super) others: BTreeMap<(u32, u64), Other>,
    pub(super) reported: u64,
    /// When it may report again: its last reports have used up the bytes that may be sent until then.
    pub(super) may_report: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Other {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) joined: Option<PeerIndex>,
    pub(super) leaving: bool,
}

impl Circle {
    /// The node with this index, and its incarnation.
    pub(super) fn who(&self, origin: PeerIndex) -> Option<(u32, u64)> {
        self.others.iter().find(|(_, other)| other.joined == Some(origin)).map(|(life, _)| *life)
    }
}

impl Grapevine {
    pub(super) fn new(plan: Option<Gossip>, seed: u64) -> Self {
        let random = Random::stream(seed, "gossip");
        Self { plan, random, parts: Vec::new(), liars: Vec::new(), builds: Vec::new(), bytes: 0 }
    }

    pub(super) fn part(&mut self, fault: u32, nodes: Vec<u32>, one_way: bool) {
        self.parts.push((fault, nodes, one_way));
    }

    pub(super) fn lie(&mut self, fault: u32, node: u32, lie: Lie) {
        self.liars.push((fault, node, lie));
    }

    pub(super) fn build(&mut self, fault: u32, nodes: Vec<u32>, newer: bool) {
        self.builds.push((fault, nodes, if newer { Build::Newer } else { Build::Older }));
    }

    pub(super) fn mend(&mut self, fault: u32) {
        self.parts.retain(|(index, ..)| *index != fault);
        self.liars.retain(|(index, ..)| *index != fault);
        self.builds.retain(|(index, ..)| *index != fault);
    }

    pub(super) fn calm(&mut self) {
        self.parts.clear();
        self.liars.clear();
        self.builds.clear();
    }

    pub(super) fn reaches(&self, from: u32, to: u32) -> bool {
        self.parts.iter().all(|(_, nodes, one_way)| {
            let (cut_from, cut_to) = (nodes.contains(&from), nodes.contains(&to));
            cut_from == cut_to || *one_way && cut_to
        })
    }

    pub(super) fn lie_of(&self, node: u32) -> Option<Lie> {
        self.liars.iter().find(|(_, liar, _)| *liar == node).map(|(_, _, lie)| *lie)
    }

    pub(super) fn build_of(&self, node: u32) -> Build {
        self.builds.iter().find(|(_, nodes, _)| nodes.contains(&node)).map_or(Build::Ours, |(.., build)| *build)
    }
}

/// A frame on its way from one incarnation of a node to another node.
#[derive(Clone, Debug)]
pub(super) struct SentReport {
    pub(super) from: u32,
    pub(super) life: u64,
    pub(super) to: u32,
    pub(super) incarnation: u64,
    pub(super) frames: Frames,
    pub(super) lies: bool,
}
