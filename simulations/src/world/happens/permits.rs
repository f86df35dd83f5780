//! Clients take permits of a concurrent limit and give them back, or fail to.

use std::num::NonZeroU64;

use rationd::core::decision::Decision;

use crate::observe::{Kind, Request, Seen};
use crate::world::event::Event;
use crate::world::node::Phase;
use crate::world::permits::{LAST, Leave, Parting, SETTLED, Taker, WIRES, What, Wire};
use crate::world::state::World;

impl World<'_> {
    /// A client asks for a permit.
    pub(in crate::world) fn take(&mut self, demand: u32, request: &Request) {
        if request.kind == Kind::Check {
            let node = request.node;
            let source = &mut self.demands[demand as usize];
            let (stays, drops) = (source.plan.stays.0, source.plan.drops);
            let taker = self.takers.draw(source.partings(), node, stays, drops);
            self.takers.asking.insert(request.id, taker);
        }
        self.ask(*request);
    }

    /// A permit was taken together with other keys, so its client releases it.
    pub(in crate::world) fn keep_slot(&mut self, request: &Request, decision: &Decision) {
        let turn = self.takers.wires.get(&(request.node, WIRES)).map_or(0, |taken| taken.turn);
        let taker =
            Taker { stays: 50_000 + request.id % 7 * 50_000, leave: Leave::Release, wire: Wire { place: WIRES, turn } };
        self.takers.asking.insert(request.id, taker);
        self.taken(request, decision);
    }

    /// Schedules the end of the permit that an answered request has taken, if any.
    pub(in crate::world) fn taken(&mut self, request: &Request, decision: &Decision) {
        let Some(taker) = self.takers.asking.remove(&request.id) else { return };
        let Some(permit) = decision.slot else { return };
        let Taker { stays, leave, wire } = taker;
        let (node, key) = (request.node, request.key);
        let place = &self.nodes[node as usize];
        let (now, period) = (place.clock.local(self.now), place.rules[request.policy as usize].limits[0].period);
        if leave != Leave::Forget {
            let is_gone = self.takers.wires.get(&(node, wire.place)).map_or(0, |taken| taken.turn) != wire.turn;
            let (incarnation, until) = (place.incarnation, self.now + if is_gone { 0 } else { stays });
            self.see(&Seen::Keeps { node, incarnation, key, permit, until });
        }
        let release = What::Release { key, permit };
        let taken = self.takers.wires.entry((node, wire.place)).or_default();
        if leave != Leave::Forget {
            if taken.turn != wire.turn {
                return self.part(node, 0, release);
            }
            taken.slots.retain(|(ends, ..)| *ends > now);
            taken.slots.insert((now + period, permit, key));
        }
        match leave {
            Leave::Release => self.part(node, stays, release),
            Leave::Twice => {
                self.part(node, stays, release);
                self.part(node, stays + stays / 4, release);
            }
            Leave::HangUp => self.part(node, stays, What::HangUp(wire)),
            Leave::Forget => {}
        }
    }

    /// Schedules an event of a permit's end at a node.
    fn part(&mut self, node: u32, after: u64, what: What) {
        let incarnation = self.nodes[node as usize].incarnation;
        self.queue.push(self.now + after, Event::Parting(Box::new(Parting { node, incarnation, what })));
    }

    /// Ends permits at a node, if it still runs.
    pub(in crate::world) fn part_with(&mut self, parting: Parting) {
        let Parting { node, incarnation, what } = parting;
        let place = &self.nodes[node as usize];
        if place.incarnation != incarnation || place.phase != Phase::Up {
            return;
        }
        if place.frozen_until > self.now {
            return self.queue.push(place.frozen_until, Event::Parting(Box::new(parting)));
        }
        match what {
            What::Release { key, permit } => {
                self.takers.wires.iter_mut().filter(|((at, _), _)| *at == node).for_each(|(_, taken)| {
                    taken.slots.retain(|(_, known, _)| *known != permit);
                });
                self.release(node, key, permit);
            }
            What::HangUp(wire) => self.hang_up(node, wire),
            What::Ask(request) => {
                let wire =
                    Wire { place: WIRES, turn: self.takers.wires.get(&(node, WIRES)).map_or(0, |taken| taken.turn) };
                let taker = Taker { stays: 200_000, leave: Leave::Release, wire };
                self.takers.asking.insert(request.id, taker);
                self.ask(request);
            }
        }
    }

    /// A connection closes, and all permits that were taken over it end.
    fn hang_up(&mut self, node: u32, wire: Wire) {
        let Some(taken) = self.takers.wires.get_mut(&(node, wire.place)).filter(|taken| taken.turn == wire.turn) else {
            return;
        };
        taken.turn += 1;
        for (_, permit, key) in std::mem::take(&mut taken.slots) {
            self.release(node, key, permit);
        }
    }

    fn release(&mut self, node: u32, key: u32, permit: NonZeroU64) {
        let digest = self.keys.get(key).digest;
        let place = &mut self.nodes[node as usize];
        let (now, incarnation) = (place.clock.local(self.now), place.incarnation);
        let released = place.limiter.release(now, digest, permit);
        self.see(&Seen::Released { node, incarnation, key, permit, released });
        self.drain(node);
    }

    /// A node that leaves closes its connections.
    pub(in crate::world) fn hang_up_all(&mut self, node: u32) {
        for place in 0..=WIRES {
            let turn = self.takers.wires.get(&(node, place)).map_or(0, |taken| taken.turn);
            self.hang_up(node, Wire { place, turn });
        }
    }

    /// Forgets the connections of a node that has crashed; its permits stay taken until they end.
    pub(in crate::world) fn cut_off(&mut self, node: u32) {
        for (_, taken) in self.takers.wires.range_mut((node, 0)..=(node, WIRES)) {
            taken.turn += 1;
            taken.slots.clear();
        }
    }

    /// At the end, when no client has held a permit for a while, one client takes all permits of a key and asks for one
    /// more; when they are released, it takes one.
    pub(in crate::world) fn take_the_last(&mut self) {
        let keys = self.keys.first(usize::MAX).into_iter();
        let keys: Vec<_> = keys.filter(|(policy, _)| self.first_rules[*policy as usize].is_concurrent()).collect();
        for (policy, key) in keys.into_iter().take(LAST.0) {
            let Some(node) = self.up.get(key as usize % self.up.len().max(1)).copied() else { return };
            let limit = &self.nodes[node as usize].rules[policy as usize].limits[0];
            let (count, at) = (limit.count, SETTLED + limit.period.0);
            let cost = count.div_ceil(LAST.1);
            let times = count / cost; // rounded down
            for time in 0..=times + 1 {
                let request = self.request(node, key, policy, cost, Kind::Check);
                let after = at + time * 1_000 + if time > times { 1_000_000 } else { 0 };
                self.part(node, after, What::Ask(request));
                self.takers.last = self.takers.last.max(self.now + after + 500_000);
            }
        }
    }
}
