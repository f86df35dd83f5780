//! Begins holds, and settles them by the product's own steps.

use rationd::core::decision::{Decision, Verdict};
use rationd::core::holds::{Charge, Settling, Step};
use rationd::core::time::Micros;

use crate::observe::{Holding, Kind, Request, Seen};
use crate::world::event::Event;
use crate::world::holds::{Errand, Held, Purpose, Terms, What};
use crate::world::node::Phase;
use crate::world::state::World;

impl World<'_> {
    /// Goes on with the hold that an answered request was about, if any.
    pub(in crate::world) fn concluded(&mut self, request: &Request, decision: &Decision) {
        match self.holders.0.remove(&request.id) {
            Some(Purpose::Begin(terms)) if decision.verdict == Verdict::Allow => self.hold(request, decision, terms),
            Some(Purpose::Settle(held, mut settling)) => {
                let place = &self.nodes[request.node as usize];
                let rule = place.went_by.get(&request.key).unwrap_or(&place.rules[request.policy as usize]);
                let step = settling.next(decision, Some(rule));
                self.take_step(request.node, held, settling, step);
            }
            _ => {}
        }
    }

    fn hold(&mut self, request: &Request, decision: &Decision, terms: Terms) {
        let Request { id: hold, node, key, policy, cost, .. } = *request;
        let place = &mut self.nodes[node as usize];
        let (now, incarnation) = (place.clock.local(self.now), place.incarnation);
        if !place.holds.has_room(now) {
            return;
        }
        let ends = now + Micros(terms.ttl);
        place.holds.keep(u128::from(hold), Charge::of(cost, decision), Held { hold, key, policy }, ends);
        self.see(&Seen::Hold(hold, Holding::Kept { request, ttl: terms.ttl }));
        for time in 0..terms.times {
            let what = What::Settle { id: hold, actual: terms.actual };
            let at = self.now + 1 + terms.after + time * terms.after / 4;
            self.queue.push(at, Event::Errand(Box::new(Errand { node, incarnation, what })));
        }
    }

    /// Sends a node a request about a hold, if the node still runs.
    pub(in crate::world) fn errand(&mut self, errand: Errand) {
        let Errand { node, incarnation, ref what } = errand;
        let place = &mut self.nodes[node as usize];
        if place.incarnation != incarnation || place.phase != Phase::Up {
            return;
        }
        if place.frozen_until > self.now {
            return self.queue.push(place.frozen_until, Event::Errand(Box::new(errand)));
        }
        match *what {
            What::Settle { id, actual } => self.settle_hold(node, id, actual),
            What::Ask(request) => {
                self.ask(request);
            }
        }
    }

    fn settle_hold(&mut self, node: u32, id: u64, actual: u64) {
        let place = &mut self.nodes[node as usize];
        let now = place.clock.local(self.now);
        let Some((charge, held)) = place.holds.take(u128::from(id), now) else { return };
        self.see(&Seen::Hold(held.hold, Holding::Settles { actual }));
        let (settling, step) = Settling::begin(charge, actual);
        self.take_step(node, held, settling, step);
    }

    fn take_step(&mut self, node: u32, held: Held, settling: Settling, step: Step) {
        match step {
            Step::Ask(cost) => {
                let kind = if cost == 0 { Kind::Peek } else { Kind::Check };
                self.ask_about(node, held, cost, kind, Purpose::Settle(held, settling));
            }
            Step::End { stands, back } => {
                if back > 0 {
                    self.ask_about(node, held, back, Kind::Refund, Purpose::GiveBack(*settling.charge()));
                }
                self.see(&Seen::Hold(held.hold, Holding::Stands(stands)));
            }
        }
    }

    fn ask_about(&mut self, node: u32, held: Held, cost: u64, kind: Kind, purpose: Purpose) {
        let request = self.request(node, held.key, held.policy, cost, kind);
        self.see(&Seen::Hold(held.hold, Holding::Asks(&request)));
        self.holders.0.insert(request.id, purpose);
        let incarnation = self.nodes[node as usize].incarnation;
        let what = What::Ask(request);
        self.queue.push(self.now, Event::Errand(Box::new(Errand { node, incarnation, what })));
    }
}
