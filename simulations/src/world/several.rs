//! Several keys asked at once, all or nothing, as the daemon's `src/serve/check_request.rs` drives it: one key after another
//! as the core says ([`rationd::core::several`]), what later ones lack is leased meanwhile, all of them wait until one
//! deadline, and what was charged goes back when one is denied.
//!
//! Each key is asked by a request of its own. What goes back is told as a refund, that of a share as that of a hold,
//! and a slot as released, so that whoever judges single keys goes on.

use std::collections::BTreeMap;

use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::several::{How, Several};
use rationd::core::shard;
use rationd::core::time::{Instant, Micros};

use super::event::Event;
use super::{Phase, World};
use crate::maps::Map;
use crate::observe::{Holding, Kind, Request, Seen, Together};

/// One of the keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) key: u32,
    pub(super) policy: u32,
    pub(super) cost: u64,
}

/// What is asked at once.
#[derive(Debug)]
pub(super) struct Group {
    node: u32,
    incarnation: u64,
    items: Vec<Item>,
    /// The request that asked each of them last.
    asked: Vec<Option<Request>>,
    several: Several,
    deadline: Instant,
}

/// All that is under way.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: BTreeMap<u64, Group>,
    /// Which key of which group a request is about, and how that is asked.
    requests: Map<u64, (u64, usize, How)>,
    next: u64,
}

impl Groups {
    /// Nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Until when a request waits that is one of several and is asked as the client wants it.
    pub(super) fn deadline(&self, request: u64) -> Option<Instant> {
        let (group, ..) = self.requests.get(&request).filter(|(_, _, how)| *how == How::Check)?;
        self.groups.get(group).map(|group| group.deadline)
    }

    /// Of a request nothing but what the node knows is told.
    pub(super) fn is_look(&self, request: u64) -> bool {
        self.requests.get(&request).is_some_and(|(_, _, how)| *how == How::Look)
    }
}

impl World<'_> {
    /// A client asks a node for several keys, all or nothing.
    pub(super) fn ask_together(&mut self, node: u32, items: Vec<Item>) {
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

    /// One after another is asked until an answer is waited for.
    pub(super) fn go_on(&mut self, id: u64) {
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

    /// A request was answered that may be one of several.
    pub(super) fn answered_together(&mut self, request: &Request, decision: &Decision, parked: bool) {
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

    /// All are answered: what was charged goes back if one was denied.
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
            // The core's own way back says nothing of what became of it: it may have ended by itself.
            let released = place.limiter.release(now, key.digest, permit);
            self.see(&Seen::Released { node, incarnation, key: number, permit, released });
            return self.drain(node);
        }
        let rule = &place.rules[policy as usize];
        let question = shard::Request { rule, digest: key.digest, key: &key.bytes, cost, peek: false };
        let outcome = place.limiter.rollback(now, question, decision);
        match outcome {
            _ if !is_counted => {}
            Some(shard::Outcome::Parked(ticket)) => drop(place.parked.insert(ticket, refund)),
            Some(shard::Outcome::Decided(decision)) => self.answered(&refund, &decision, false),
            None => self.answered(&refund, decision, false),
        }
        self.drain(node);
    }

    /// A node is gone, and those who asked it for several keys with it.
    pub(super) fn drop_groups(&mut self, node: u32) {
        self.groups.groups.retain(|_, group| group.node != node);
    }
}
