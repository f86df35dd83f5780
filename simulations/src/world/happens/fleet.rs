//! What happens to nodes: they join, leave, die, and come back as a new incarnation.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::limit::Algorithm;
use rationd::core::policy::Rule;

use crate::observe::Seen;
use crate::world::event::{Event, Step};
use crate::world::node::Phase;
use crate::world::node::{Node, Place};
use crate::world::state::World;

/// How long a node that leaves waits for the answers to what it handed back.
const DRAIN: u64 = 200_000;

impl World<'_> {
    /// A new node joins.
    pub(in crate::world) fn join(&mut self) {
        // It takes the place of a node that left for good, if there is one.
        let gone = self.nodes.iter().position(|node| node.phase == Phase::Gone);
        let index = gone.unwrap_or(self.nodes.len());
        let offset = self.plan.clocks.offset.0;
        let wall = self.random.between(0, 2 * offset) as i64 - offset as i64;
        let node = self.boot(index as u32, wall);
        if index == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[index] = node;
        }
        self.open(index as u32);
    }

    /// A node that was down is back.
    pub(in crate::world) fn start(&mut self, index: u32) {
        let place = &self.nodes[index as usize];
        if place.phase == Phase::Down {
            let wall = place.wall;
            self.nodes[index as usize] = self.boot(index, wall);
            self.open(index);
        }
    }

    fn boot(&mut self, index: u32, wall: i64) -> Node {
        self.next_incarnation += 1;
        let (now, exact) = (self.now, self.cluster.exact(self.now));
        let (rules, learnt) = self.rules();
        let Self { plan, random, next_incarnation, .. } = self;
        let place = Place { plan, random, index, incarnation: *next_incarnation, wall };
        Node { learnt, ..Node::start(place, now, exact, rules) }
    }

    /// The newest rules, which a node reads when it starts, and when each policy was pushed.
    fn rules(&self) -> (Vec<std::sync::Arc<rationd::core::policy::Rule>>, BTreeMap<usize, u64>) {
        let (mut rules, mut learnt) = (self.first_rules.clone(), BTreeMap::new());
        for (index, fault) in self.plan.faults.iter().enumerate() {
            if fault.at.0 <= self.now
                && let Some((policy, rule)) = self.pushed(index as u32)
            {
                let at = learnt.entry(policy).or_default();
                if *at <= fault.at.0 {
                    (*at, rules[policy]) = (fault.at.0, rule);
                }
            }
        }
        (rules, learnt)
    }

    /// A node that booted connects to its servers and takes requests.
    fn open(&mut self, index: u32) {
        let place = &mut self.nodes[index as usize];
        let (now, incarnation) = (place.clock.local(self.now), place.incarnation);
        for server in place.client.adopt(now, &self.cluster) {
            // The daemon waits for its connections before it opens its socket.
            let serves = self.cluster.serves(server) && !self.cluster.is_apart(index, server);
            if serves {
                self.nodes[index as usize].client.probed(now, server, true, 0);
            } else {
                self.queue.push(self.now, Event::Probe { node: index, incarnation, server });
                self.alarm(index);
            }
        }
        self.count_up();
        self.begin_rounds(index);
        self.see(&Seen::Joined { node: index, incarnation });
    }

    fn count_up(&mut self) {
        let up = self.nodes.iter().enumerate().filter(|(_, node)| node.phase == Phase::Up);
        self.up = up.map(|(index, _)| index as u32).collect();
        if self.plan.canary {
            self.shuffle_up();
        }
        let nodes = self.up.len() as u32;
        for node in &mut self.nodes {
            node.limiter.set_nodes(nodes);
        }
    }

    /// The canary: orders the nodes by a `HashMap`, whose order differs from map to map. If running a seed twice did
    /// not show this, it would show nothing (`tests/reproducible.rs`).
    fn shuffle_up(&mut self) {
        let up: std::collections::HashMap<u32, ()> = self.up.drain(..).map(|index| (index, ())).collect();
        self.up = up.into_keys().collect();
    }

    /// A node dies or drains, and is back at `back`.
    pub(in crate::world) fn leave(&mut self, index: u32, crash: bool, back: Option<u64>) {
        let place = &mut self.nodes[index as usize];
        if place.phase != Phase::Up {
            return;
        }
        let incarnation = place.incarnation;
        if crash {
            place.phase = Phase::Leaving;
            return self.gone(index, incarnation, true, back);
        }
        self.hang_up_all(index);
        let place = &mut self.nodes[index as usize];
        place.phase = Phase::Leaving;
        let now = place.clock.local(self.now);
        place.limiter.drain(now);
        self.talk(index);
        self.count_up();
        self.drain(index);
        self.queue.push(self.now + DRAIN, Event::Step(Step::Gone { node: index, incarnation, back }));
    }

    /// A node is gone; the requests that waited in it get no answer.
    pub(in crate::world) fn gone(&mut self, index: u32, incarnation: u64, crash: bool, back: Option<u64>) {
        let place = &mut self.nodes[index as usize];
        if place.incarnation != incarnation || place.phase != Phase::Leaving {
            return;
        }
        // The permits of a node that dies stay taken until they end, and the balance does not count them.
        let is_of_slots = |rule: &Arc<Rule>| rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrent);
        let has_slots = crash && place.rules.iter().any(is_of_slots);
        let held = place.limiter.balance(place.clock.local(self.now)).held;
        let drained = place.parked.is_empty() && held == 0 && !has_slots;
        place.phase = if back.is_some() { Phase::Down } else { Phase::Gone };
        place.timer = u64::MAX;
        self.cut_off(index);
        self.drop_groups(index);
        self.nodes[index as usize].asked.clear();
        let place = &mut self.nodes[index as usize];
        for request in std::mem::take(&mut place.parked).into_values() {
            self.see(&Seen::Orphaned(&request));
        }
        self.see(&Seen::Left { node: index, drained });
        self.count_up();
        if let Some(back) = back {
            self.queue.push(back.max(self.now + 1), Event::Step(Step::Start { node: index }));
        }
    }

    /// All nodes, one after another.
    pub(in crate::world) fn roll(&mut self, crash: bool, down: u64, until: u64) {
        let each = (until - self.now) / self.up.len().max(1) as u64;
        for (place, node) in self.up.clone().into_iter().enumerate() {
            let at = self.now + each * place as u64;
            self.queue.push(at, Event::Step(Step::Leave { node, crash, back: Some(at + down) }));
        }
    }

    /// The fleet grows or shrinks, evenly until then.
    pub(in crate::world) fn scale(&mut self, nodes: u32, until: u64) {
        let (have, want) = (self.up.len() as u64, u64::from(nodes.max(1)));
        let steps = have.abs_diff(want);
        for step in 0..steps {
            let at = self.now + (until - self.now) * (step + 1) / steps;
            let leaving = self.up.len().checked_sub(step as usize + 1).map(|place| self.up[place]);
            let step = match leaving {
                Some(node) if want < have => Step::Leave { node, crash: false, back: None },
                _ => Step::Join,
            };
            self.queue.push(at, Event::Step(step));
        }
    }
}
