//! A request about several keys, from its first key to its end.

use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::several::{How, Several};
use rationd::core::shard;
use rationd::core::time::Micros;

use crate::observe::{Holding, Kind, Request, Seen, Together};
use crate::world::event::Event;
use crate::world::node::Phase;
use crate::world::run::Till;
use crate::world::several::{Group, Item};
use crate::world::state::World;

impl World<'_> {
    /// A client asks a node for several keys, all or nothing.
    pub(in crate::world) fn ask_together(&mut self, node: u32, items: Vec<Item>) {
        let place = &self.nodes[node as usize];
        if place.phase != Phase::Up {
            return;
        }
        if self.thaws_at(node) > self.now {
            return self.queue.push(self.thaws_at(node), Event::Together { node, items });
        }
        let (deadline, incarnation) =
            (place.clock.local(self.now) + Micros(self.plan.daemon.timeout.0), place.incarnation);
        let keys: Vec<_> = items.iter().map(|item| (self.keys.get(item.key).digest, item.cost > 0)).collect();
        self.groups.next += 1;
        let (id, count) = (self.groups.next, items.len());
        let group =
            Group { node, incarnation, items, asked: vec![None; count], several: Several::new(&keys), deadline };
        self.groups.groups.insert(id, group);
        self.see(&Seen::Together { group: id, node, what: Together::Begins { keys: count } });
        self.go_on(id);
        if let Some(group) = self.groups.groups.get(&id) {
            let later: Vec<Item> = group.several.later().map(|index| group.items[index]).collect();
            later.into_iter().for_each(|item| self.prefetch(node, item));
        }
    }

    /// Checks one key after another until one has to wait for its answer.
    pub(in crate::world) fn go_on(&mut self, id: u64) {
        while let Some(group) = self.groups.groups.get_mut(&id) {
            let (node, incarnation) = (group.node, group.incarnation);
            let place = &self.nodes[node as usize];
            if place.incarnation != incarnation || !place.is_there() {
                return drop(self.groups.groups.remove(&id));
            }
            if place.frozen_until > self.now {
                return self.queue.push(place.frozen_until, Event::GoOn { group: id });
            }
            let Some((index, how)) = group.several.next_to_ask() else { return self.end_together(id) };
            let Item { key, policy, cost } = group.items[index];
            let kind = if how == How::Look || cost == 0 { Kind::Peek } else { Kind::Check };
            let request = self.request(node, key, policy, cost, kind);
            let group = self.groups.groups.get_mut(&id).expect("it was there");
            group.asked[index] = Some(request);
            self.groups.requests.insert(request.id, (id, index, how));
            self.see(&Seen::Together { group: id, node, what: Together::Asks { request: &request } });
            if self.ask(request).is_none() {
                return;
            }
        }
    }

    /// Goes on with the check of several keys that an answered request belongs to, if any.
    pub(in crate::world) fn answered_together(&mut self, request: &Request, decision: &Decision, parked: bool) {
        let Some((id, index, _)) = self.groups.requests.remove(&request.id) else { return };
        let Some(group) = self.groups.groups.get_mut(&id) else { return };
        group.several.answered(index, *decision, decision.verdict == Verdict::Deny);
        if parked {
            self.queue.push(self.now, Event::GoOn { group: id });
        }
        let on_share = decision.source == Source::Share && decision.verdict == Verdict::Allow;
        if request.kind == Kind::Check && on_share {
            self.see(&Seen::Hold(request.id, Holding::Kept { request, ttl: 0 }));
        }
    }

    fn prefetch(&mut self, node: u32, item: Item) {
        let (place, key) = (&mut self.nodes[node as usize], self.keys.get(item.key));
        let rule = &place.rules[item.policy as usize];
        let question = shard::Request { rule, digest: key.digest, key: &key.bytes, cost: item.cost, peek: false };
        place.limiter.prefetch(place.clock.local(self.now), question);
        self.drain(node);
    }

    /// All keys are answered: if one was denied, gives back what was charged.
    fn end_together(&mut self, id: u64) {
        let Some(group) = self.groups.groups.remove(&id) else { return };
        let node = group.node;
        for (index, request) in group.asked.iter().enumerate() {
            let (Some(request), Some(decision)) = (request, group.several.answer(index)) else { continue };
            if group.several.goes_back(index) {
                self.roll_back(id, request, &decision);
            } else if decision.slot.is_some() {
                self.keep_slot(request, &decision);
            }
        }
        let denied = group.several.is_denied();
        self.see(&Seen::Together { group: id, node, what: Together::Ends { denied } });
    }

    fn roll_back(&mut self, id: u64, request: &Request, decision: &Decision) {
        let Request { node, key: number, policy, cost, .. } = *request;
        self.see(&Seen::Together { group: id, node, what: Together::GoesBack { request } });
        let refund = self.request(node, number, policy, cost, Kind::Refund);
        let is_counted = decision.slot.is_none() && decision.source != Source::Policy;
        if is_counted && decision.source == Source::Share {
            self.see(&Seen::Hold(request.id, Holding::Asks(&refund)));
        }
        if is_counted {
            self.see(&Seen::Asked(&refund));
        }
        let (place, key) = (&mut self.nodes[node as usize], self.keys.get(number));
        let (incarnation, now) = (place.incarnation, place.clock.local(self.now));
        if let Some(permit) = decision.slot {
            // The core's rollback does not say whether the permit was still there (it may have ended by itself), so it
            // is released here.
            let released = place.limiter.release(now, key.digest, permit);
            self.see(&Seen::Released { node, incarnation, key: number, permit, released });
            return self.drain(node);
        }
        let rule = &place.rules[policy as usize];
        let question = shard::Request { rule, digest: key.digest, key: &key.bytes, cost, peek: false };
        let before = Till::of(&*place.limiter);
        let outcome = place.limiter.rollback(now, question, decision);
        if is_counted {
            self.taken_back(&refund, before);
        }
        match outcome {
            _ if !is_counted => {}
            Some(shard::Outcome::Parked(ticket)) => {
                self.nodes[node as usize].parked.insert(ticket, refund);
            }
            Some(shard::Outcome::Decided(decision)) => self.answered(&refund, &decision, false),
            None => {
                // A key for which the table has no room calls the store for its refund.
                self.drain(node);
                self.answered(&refund, decision, false);
            }
        }
        self.drain(node);
    }

    /// A node is gone, and its checks of several keys with it.
    pub(in crate::world) fn drop_groups(&mut self, node: u32) {
        self.groups.groups.retain(|_, group| group.node != node);
    }
}
