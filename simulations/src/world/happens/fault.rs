//! The faults of the plan: how each begins and ends. What happens to servers is in `failover.rs`, what happens to nodes
//! in `fleet.rs`.

use std::sync::Arc;

use rationd::core::policy::Rule;

use crate::observe::Seen;
use crate::plan::{Fault, Policy, What};
use crate::random::Random;
use crate::world::cluster::SLOTS;
use crate::world::event::{Event, Step};
use crate::world::rules::rule;
use crate::world::state::World;

/// How often a link flips within a swizzle.
const FLIPS: u64 = 6;

impl World<'_> {
    /// A fault of the plan begins.
    pub(in crate::world) fn begin(&mut self, index: u32) {
        let fault = self.plan.faults[index as usize].clone();
        self.see(&Seen::Begins(&fault));
        let until = (self.now + fault.lasts.0).min(self.plan.span.0);
        match &fault.what {
            What::Cut { nodes, masters, way } => {
                let (nodes, masters) =
                    (self.places(nodes), masters.iter().map(|one| self.cluster.place(*one)).collect());
                self.network.cut(index, nodes, masters, *way);
            }
            What::Swizzle => self.swizzle(until),
            What::Clog { master } => self.network.clog(self.cluster.place(*master), until),
            What::Slow { master, by } => self.network.slow(self.cluster.place(*master), *by),
            What::Noise { loss, repeats } => self.network.noise(i64::from(*loss), i64::from(*repeats)),
            What::Kill { master } => self.kill(*master),
            What::Pause { master } => self.pause(*master, until),
            What::Isolate { master, nodes } => self.isolate(*master, nodes),
            What::Refuse { master, .. } => self.refuse(*master, true),
            What::NoReplica { master } => self.lose_replica(*master),
            What::ScriptFlush { master } => self.flush_scripts(*master),
            What::Reshard { from, to, part } => self.reshard(*from, *to, *part, until),
            What::FlushAll { master } => self.flush(*master),
            What::Evict { master, part } => self.evict(*master, *part),
            What::Crash { node } => self.leave(self.place(*node), true, Some(until)),
            What::Restart { node } => self.leave(self.place(*node), false, Some(until)),
            What::Freeze { node } => self.stand(self.place(*node), until),
            What::Starve { nodes, longest } => self.starve(index, nodes, longest.0, until),
            What::Roll { crash, down } => self.roll(*crash, down.0, until),
            What::Scale { nodes } => self.scale(*nodes, until),
            What::Push { policy, .. } => self.push(index, *policy, until),
            What::Jump { node, by } => {
                let node = self.place(*node) as usize;
                self.nodes[node].wall += by.0 as i64; // hours at most
            }
            What::Set { master, by, back } => {
                let server = self.cluster.primary(*master);
                let by = by.0 as i64; // hours at most
                self.cluster.set_clock(server, if *back { -by } else { by });
            }
            What::Part { nodes, one_way } => self.grapevine.part(index, self.places(nodes), *one_way),
            What::Liar { node, lie } => self.grapevine.lie(index, self.place(*node), *lie),
            What::Build { nodes, newer } => self.grapevine.build(index, self.places(nodes), *newer),
            What::Surge { factor } => self.surge(u64::from(*factor)),
        }
    }

    /// A fault that lasts ends.
    pub(in crate::world) fn end(&mut self, index: u32) {
        let fault = self.plan.faults[index as usize].clone();
        self.mend(index, &fault);
        self.see(&Seen::Ends(&fault));
    }

    fn mend(&mut self, index: u32, fault: &Fault) {
        match &fault.what {
            What::Cut { .. } => self.network.mend(index),
            What::Swizzle => self.network.heal_links(),
            What::Slow { master, by } => self.network.quicken(self.cluster.place(*master), *by),
            What::Noise { loss, repeats } => self.network.noise(-i64::from(*loss), -i64::from(*repeats)),
            What::Isolate { master, .. } => self.rejoin(*master),
            What::Refuse { master, .. } => self.refuse(*master, false),
            What::NoReplica { master } => self.regain_replica(*master),
            What::Surge { .. } => self.surge(1_000),
            What::Part { .. } | What::Liar { .. } | What::Build { .. } => self.grapevine.mend(index),
            // These end by steps of their own.
            What::Clog { .. }
            | What::Kill { .. }
            | What::Pause { .. }
            | What::ScriptFlush { .. }
            | What::Reshard { .. }
            | What::FlushAll { .. }
            | What::Evict { .. }
            | What::Crash { .. }
            | What::Restart { .. }
            | What::Freeze { .. }
            | What::Starve { .. }
            | What::Roll { .. }
            | What::Scale { .. }
            | What::Push { .. }
            | What::Set { .. }
            | What::Jump { .. } => {}
        }
    }

    /// A later part of a fault.
    pub(in crate::world) fn step(&mut self, step: Step) {
        match step {
            Step::Promote { server } => self.promote(server),
            Step::Replicate { server } => self.cluster.server(server).has_replica = true,
            Step::Resume { server } => self.resume(server),
            Step::Start { node } => self.start(node),
            Step::Leave { node, crash, back } => self.leave(node, crash, back),
            Step::Gone { node, incarnation, back } => self.gone(node, incarnation, false, back),
            Step::Join => self.join(),
            Step::Learn { node, fault } => self.learn(node, fault),
            Step::Move { slot, to, stage } => self.carry_slot(slot, to, stage),
            Step::Flip { node, master } => self.network.flip(node, master),
            Step::Stand { node, until } => self.stand(node, until),
        }
    }

    /// Ends all faults.
    pub(in crate::world) fn calm(&mut self) {
        if self.plan.calm.0 == 0 {
            return;
        }
        self.network.calm();
        self.grapevine.calm();
        for master in 0..self.cluster.primaries.len() as u32 {
            self.rejoin(master);
            self.refuse(master, false);
            self.regain_replica(master);
        }
        for node in &mut self.nodes {
            node.frozen_until = 0;
        }
        self.see(&Seen::Calm);
    }

    /// The indexes of nodes that the plan names.
    pub(in crate::world) fn places(&self, nodes: &[u32]) -> Vec<u32> {
        nodes.iter().map(|node| self.place(*node)).collect()
    }

    /// The index of a node that the plan names.
    pub(in crate::world) fn place(&self, node: u32) -> u32 {
        node % self.nodes.len() as u32
    }

    /// A node does nothing until then.
    fn stand(&mut self, node: u32, until: u64) {
        let (now, place) = (self.now, &mut self.nodes[node as usize]);
        place.stood += until.saturating_sub(place.frozen_until.max(now));
        place.frozen_until = place.frozen_until.max(until);
    }

    /// Nodes stand still again and again, for a third of `longest` up to all of it, and run for a while
    /// in between.
    fn starve(&mut self, fault: u32, nodes: &[u32], longest: u64, until: u64) {
        let mut random = Random::stream(self.plan.seed ^ u64::from(fault), "starve");
        let all: Vec<u32> = (0..self.nodes.len() as u32).collect(); // thousands at most
        for node in if nodes.is_empty() { all } else { self.places(nodes) } {
            let mut at = self.now;
            loop {
                at += random.between(longest / 30, longest);
                let goes_on = (at + random.between(longest / 3, longest)).min(until);
                if at >= until {
                    break;
                }
                self.queue.push(at, Event::Step(Step::Stand { node, until: goes_on }));
                at = goes_on;
            }
        }
    }

    fn swizzle(&mut self, until: u64) {
        let masters = self.cluster.primaries.len() as u64;
        for node in 0..self.nodes.len() as u32 {
            for _ in 0..FLIPS {
                let master = self.random.below(masters) as u32;
                let at = self.random.between(self.now, until);
                self.queue.push(at, Event::Step(Step::Flip { node, master }));
            }
        }
    }

    fn surge(&mut self, factor: u64) {
        for demand in &mut self.demands {
            demand.scale(factor);
        }
    }

    /// Each node learns the new limits at another moment.
    fn push(&mut self, fault: u32, _policy: u32, until: u64) {
        for node in 0..self.nodes.len() as u32 {
            let at = self.random.between(self.now, until);
            self.queue.push(at, Event::Step(Step::Learn { node, fault }));
        }
    }

    /// A node learns the limits of a push, unless it has those of a later one.
    fn learn(&mut self, node: u32, fault: u32) {
        let Some((policy, fresh)) = self.pushed(fault) else { return };
        let at = self.plan.faults[fault as usize].at.0;
        let learnt = self.nodes[node as usize].learnt.entry(policy).or_default();
        if *learnt <= at {
            *learnt = at;
            self.nodes[node as usize].rules[policy] = fresh;
        }
    }

    /// The rule that a push brings.
    pub(in crate::world) fn pushed(&self, fault: u32) -> Option<(usize, Arc<Rule>)> {
        let What::Push { policy, limits } = &self.plan.faults[fault as usize].what else { return None };
        let policy = *policy as usize % self.plan.policies.len();
        let changed = Policy { limits: limits.clone(), ..self.plan.policies[policy].clone() };
        rule(policy, &changed).ok().map(|rule| (policy, rule))
    }

    fn reshard(&mut self, from: u32, to: u32, part: u32, until: u64) {
        let (from, to) = (self.cluster.place(from), self.cluster.place(to));
        let slots: Vec<u16> = (0..SLOTS).filter(|slot| self.cluster.slots[usize::from(*slot)].owner == from).collect();
        let moving = (slots.len() * part as usize).div_ceil(1_000).min(slots.len());
        if from == to || moving == 0 {
            return;
        }
        let each = (until - self.now) / moving as u64;
        for (place, slot) in slots.into_iter().take(moving).enumerate() {
            for stage in 0..3 {
                let at = self.now + each * place as u64 + each * u64::from(stage) / 3;
                self.queue.push(at, Event::Step(Step::Move { slot, to, stage }));
            }
        }
    }
}
