//! Whom a fault reaches: what a checker needs to know that goes on judging all others through it. Judges nothing.
//!
//! Whatever happens to a master, or on the way to it, shows itself at each key that it reaches: a call about the key is lost,
//! late or not sent, or the store loses something of it. What happens to nodes reaches the keys that they were asked of.

use crate::maps::Map;
use crate::observe::{Moment, Seen};
use crate::plan::{Plan, What};

/// Whom a fault reaches, so that tokens may be held where nobody asks, or be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'a> {
    /// No key.
    Nobody,
    /// Keys of which a call is lost, late or not sent, or of which the store loses something. Which those are, their calls tell.
    Calls,
    /// Keys that a node holds tokens of that is gone. Which node that is, and when, its end tells.
    Ends,
    /// Keys that these nodes were asked of, for as long as it lasts; no nodes: all of them.
    Stops(&'a [u32]),
    /// Keys of one policy, until all nodes know of it and what was lent before is over.
    Policy,
    /// Keys of which something is told that is not so. Which those are, what nodes hear tells.
    Lies,
}

impl Scope<'_> {
    /// Whether it may make calls late, of whatever key.
    pub(super) fn is_wide(self) -> bool {
        matches!(self, Self::Calls | Self::Ends | Self::Stops(_))
    }
}

/// Whom a fault reaches, and why no others.
pub(super) fn scope(what: &What) -> Scope<'_> {
    match what {
        // It is only asked for more.
        What::Surge { .. }
        // No decision goes by a wall clock.
        | What::Jump { .. }
        // The call that misses its script is sent once more with it.
        | What::ScriptFlush { .. }
        // What another build tells beside what is known is passed over, and what it does not tell nobody denies by.
        | What::Build { .. }
        // Who hears of fewer nodes is lent no more for that, because the store counts itself who asks it.
        | What::Part { .. } => Scope::Nobody,
        // A node does not know that its way to a master is cut, clogged or slow before it calls, and calls key by key.
        What::Cut { .. }
        | What::Swizzle
        | What::Clog { .. }
        | What::Slow { .. }
        | What::Noise { .. }
        | What::Refuse { .. }
        // Of what no replica holds nodes are lent less, and it is theirs as ever.
        | What::NoReplica { .. }
        // What a master that is gone had written and its replica had not is told of each key, and so is what a former one lends.
        | What::Kill { .. }
        | What::Pause { .. }
        | What::Isolate { .. }
        // So is each key that is gone.
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

/// What happened to nodes, and of which keys they were asked.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    /// Some fault of the plan stops or ends nodes.
    is_on: bool,
    /// As many nodes as there have been at a time.
    nodes: u32,
    /// Which node was stopped or ended with what it held, from when until when.
    troubles: Vec<(u32, u64, u64)>,
    /// By key and node: when that was last asked of it, or called about it.
    asked: Map<(u32, u32), u64>,
}

impl Reach {
    pub(super) fn new(plan: &Plan) -> Self {
        let is_on = plan.faults.iter().any(|fault| matches!(scope(&fault.what), Scope::Ends | Scope::Stops(_)));
        Self { is_on, nodes: 0, troubles: Vec::new(), asked: Map::default() }
    }

    /// Nodes that leave hand back what they hold, of which no more is known while a call of theirs is under way.
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

    /// Whether a node was stopped or ended that may have held tokens of a key, which count for so long.
    pub(super) fn meets(&self, moment: Moment, key: u32, counts: u64) -> bool {
        let recent = self.troubles.iter().filter(|(_, begins, ends)| *begins <= moment.at && moment.at < ends + counts);
        // What it was lent for the window after the one at hand, too.
        let may_hold = |(node, begins, _): &(u32, u64, u64)| {
            self.asked.get(&(key, *node)).is_some_and(|asked| *begins <= asked + 2 * counts)
        };
        recent.into_iter().any(may_hold)
    }
}
