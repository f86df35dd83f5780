//! Which keys and nodes a fault reaches, so that a checker can go on judging all others during it. It judges nothing.
//!
//! Trouble of a master, or on the way to it, shows at each key that it reaches: a call about the key is lost, late or
//! not sent, or the store loses data of the key. Trouble of nodes reaches the keys for which they were asked.

use crate::maps::Map;
use crate::observe::{Moment, Seen};
use crate::plan::{Plan, What};

/// The keys of which a fault may cause tokens to be lost, or to be held by nodes that are not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    /// No key.
    Nobody,
    /// Keys of which a call is lost, late or not sent, or of which the store loses data. Their calls show which those
    /// are.
    Calls,
    /// Keys of which a node that is gone held tokens. The end of the node shows which node, and when.
    Ends,
    /// Keys for which these nodes were asked, for as long as the fault lasts; an empty list means all nodes.
    Stops(&'a [u32]),
    /// Keys of one policy, until all nodes know of the change and earlier grants are over.
    Policy,
    /// Keys about which malicious nodes report. Reports that nodes receive show which those are.
    Lies,
}

impl Scope<'_> {
    /// Whether the fault may delay calls about any key.
    pub(super) fn is_wide(self) -> bool {
        matches!(self, Self::Calls | Self::Ends | Self::Stops(_))
    }
}

/// What a fault reaches, and why nothing else.
pub(super) fn scope(what: &What) -> Scope<'_> {
    match what {
        // More is asked for, and nothing else changes.
        What::Surge { .. }
        // No decision depends on a wall clock.
        | What::Jump { .. }
        // The call that misses its script is sent once more with it.
        | What::ScriptFlush { .. }
        // Fields of another build's reports that a node does not know are skipped, and a report that is missing denies
        // no check.
        | What::Build { .. }
        // A node that hears of fewer nodes is lent no more for that, because the store itself counts the nodes that
        // ask.
        | What::Part { .. } => Scope::Nobody,
        // A node does not know that its way to a master is cut, clogged or slow before it calls, and calls key by key.
        What::Cut { .. }
        | What::Swizzle
        | What::Clog { .. }
        | What::Slow { .. }
        | What::Noise { .. }
        | What::Refuse { .. }
        // Without a replica nodes are lent less, but hold their leases as ever.
        | What::NoReplica { .. }
        // Writes that the replica of a lost master lacks are shown key by key, and so are grants of a former master.
        | What::Kill { .. }
        | What::Pause { .. }
        | What::Isolate { .. }
        // So are keys that are lost.
        | What::FlushAll { .. }
        | What::Evict { .. }
        // A key that another clock counts shows that with the next call or answer (`Clocks`).
        | What::Reshard { .. }
        | What::Set { .. } => Scope::Calls,
        What::Crash { .. } | What::Restart { .. } | What::Roll { .. } | What::Scale { .. } => Scope::Ends,
        What::Freeze { node } => Scope::Stops(std::slice::from_ref(node)),
        What::Starve { nodes, .. } => Scope::Stops(nodes),
        What::Push { .. } => Scope::Policy,
        What::Liar { .. } => Scope::Lies,
    }
}

/// The trouble of nodes, and the keys for which they were asked.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// Whether some fault of the plan stops or ends nodes.
    is_on: bool,
    /// The number of nodes so far.
    nodes: u32,
    /// Which node was stopped, or ended with its tokens, from when until when.
    troubles: Vec<(u32, u64, u64)>,
    /// By key and node: when the node was last asked for it, or called the store about it.
    asked: Map<(u32, u32), u64>,
}

impl Reach {
    pub(super) fn new(plan: &Plan) -> Self {
        let is_on = plan.faults.iter().any(|fault| matches!(scope(&fault.what), Scope::Ends | Scope::Stops(_)));
        Self { is_on, nodes: 0, troubles: Vec::new(), asked: Map::default() }
    }

    /// Notes trouble of nodes. A node that leaves hands its tokens back; `drained` says whether all of those calls were
    /// answered.
    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            _ if !self.is_on => {}
            Seen::Joined { node, .. } => self.nodes = self.nodes.max(node + 1),
            Seen::Left { node, drained: false } => self.troubles.push((*node, moment.at, moment.at)),
            Seen::Begins(fault) => {
                let Scope::Stops(nodes) = scope(&fault.what) else { return };
                let all: Vec<u32> = (0..self.nodes).collect();
                let nodes = if nodes.is_empty() { &all } else { nodes };
                let (begins, ends) = (fault.at.0, fault.at.0 + fault.lasts.0);
                let stopped = nodes.iter().map(|node| (node % self.nodes.max(1), begins, ends));
                self.troubles.extend(stopped);
            }
            Seen::Asked(request) => _ = self.asked.insert((request.key, request.node), moment.at),
            Seen::Called { node, key, .. } | Seen::PeerAnswered { node, key, .. } => {
                self.asked.insert((*key, *node), moment.at);
            }
            _ => {}
        }
    }

    /// Whether a node that may have held tokens of a key was stopped or ended less than `counts` ago.
    pub(super) fn meets(&self, moment: Moment, key: u32, counts: u64) -> bool {
        let recent = self.troubles.iter().filter(|(_, begins, ends)| *begins <= moment.at && moment.at < ends + counts);
        // Twice that time, because it may also hold tokens of the next window.
        let may_hold = |(node, begins, _): &(u32, u64, u64)| {
            self.asked.get(&(key, *node)).is_some_and(|asked| *begins <= asked + 2 * counts)
        };
        recent.into_iter().any(may_hold)
    }
}
