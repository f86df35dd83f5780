//! A node's rounds of gossip: it looks for other nodes, reports its usage, and receives reports.

use std::collections::BTreeMap;

use rationd::core::fleet::FleetView;
use rationd::core::key::Digest;
use rationd::core::owners::{Candidate, OwnerName, name_hash};
use rationd::core::time::Micros;
use rationd::core::usage::{self, Count, PeerIndex, Usage};
use rationd::wire::digest::{apart, most_entries};

use crate::frames::Frames;
use crate::observe::Seen;
use crate::plan::{Gossip, Lie};
use crate::world::event::Event;
use crate::world::gossip::{HEARTBEAT, Other, SentReport};
use crate::world::node::Phase;
use crate::world::state::World;

impl World<'_> {
    /// A node's first round is at a random time within a tick.
    pub(in crate::world) fn begin_rounds(&mut self, node: u32) {
        let Some(plan) = self.grapevine.plan else { return };
        let place = &mut self.nodes[node as usize];
        place.limiter.handle_fleet(FleetView::UNKNOWN);
        if self.now == 0 {
            // Nodes of the start have known each other for longer than the tracker waits for a new node.
            place.circle.tracker.view(place.clock.local(0) - Micros::from_secs(6), plan.tick.micros());
        }
        let incarnation = place.incarnation;
        let at = self.now + self.grapevine.random.below(plan.tick.0.max(1));
        self.queue.push(at, Event::Round { node, incarnation });
    }

    /// One round of a node: it looks for other nodes, and sends reports.
    pub(in crate::world) fn round(&mut self, node: u32, incarnation: u64) {
        let Some(plan) = self.grapevine.plan else { return };
        let place = &self.nodes[node as usize];
        if place.incarnation != incarnation || !place.is_there() {
            return;
        }
        let next = self.now.max(self.thaws_at(node)) + plan.tick.0.max(1);
        self.queue.push(next, Event::Round { node, incarnation });
        if self.thaws_at(node) > self.now {
            return;
        }
        self.look_around(node, plan);
        self.talk(node);
    }

    /// The model of a membership protocol: a node becomes known some time after it can be heard, and is given up some
    /// time after it was last heard. A node that leaves announces it. That a node lives is no report: the tracker has
    /// heard a peer when its reports come, as in the daemon.
    fn look_around(&mut self, node: u32, plan: Gossip) {
        let mut circle = std::mem::take(&mut self.nodes[node as usize].circle);
        let now = self.nodes[node as usize].clock.local(self.now);
        for (index, other) in self.nodes.iter().enumerate() {
            let index = index as u32;
            let heard = index != node && other.is_there() && other.frozen_until <= self.now;
            if heard && self.grapevine.reaches(index, node) {
                let fresh = Other { first: self.now, last: self.now, joined: None, leaving: false };
                let known = circle.others.entry((index, other.incarnation)).or_insert(fresh);
                known.last = self.now;
                known.leaving = other.phase == Phase::Leaving;
                if known.joined.is_none() && known.first + plan.join.0 <= self.now && !known.leaving {
                    known.joined = Some(circle.tracker.joined(now, &other.name, other.incarnation));
                }
            }
        }
        let (at, nodes) = (self.now, &self.nodes);
        let tracker = &mut circle.tracker;
        circle.others.retain(|(index, incarnation), other| {
            let gone = other.leaving && at >= other.last + plan.tick.0 || at >= other.last + plan.dead.0;
            if gone && other.joined.is_some() {
                tracker.left(now, &nodes[*index as usize].name, *incarnation, other.leaving);
            }
            !gone
        });
        let view = circle.tracker.view(now, plan.tick.micros());
        let name = |index: u32| OwnerName { hash: name_hash(&self.nodes[index as usize].name), is_always: false };
        let own = name(node);
        let there = circle.others.iter().filter(|(_, other)| self.plan.daemon.owners && !other.leaving);
        let candidate = |((index, _), other): (&(u32, u64), &Other)| {
            other.joined.map(|peer| Candidate { peer, name: name(*index) })
        };
        let candidates: Vec<Candidate> = there.filter_map(candidate).collect();
        let place = &mut self.nodes[node as usize];
        place.circle = circle;
        place.limiter.handle_fleet(view);
        if self.plan.daemon.owners {
            place.limiter.handle_owners(own, &candidates);
        }
    }

    /// Sends reports to the live nodes that need them: in a round as much as the daemon's bound of bytes allows, and
    /// everything when the node leaves.
    pub(in crate::world) fn talk(&mut self, node: u32) {
        let Some(plan) = self.grapevine.plan else { return };
        let place = &mut self.nodes[node as usize];
        let now = place.clock.local(self.now);
        let peers = place.circle.others.values().filter(|other| other.joined.is_some()).count() as u64;
        let leaves = place.phase == Phase::Leaving || peers == 0;
        let tick = plan.tick.micros();
        let most = match (leaves, self.now < place.circle.may_report) {
            (true, _) => usize::MAX,
            (false, true) => 0,
            (false, false) => most_entries(peers, tick),
        };
        let mut reports = Vec::new();
        place.limiter.drain_usage(now, most, &mut reports);
        let (mut all, mut some) = usage::by_hearer(&reports);
        let is_due = self.now >= place.circle.reported + HEARTBEAT;
        if !reports.is_empty() {
            let frames = if all.is_empty() { 0 } else { peers } + some.len() as u64;
            let apart = apart(frames, usage::entries(&reports, peers));
            if apart > tick {
                place.circle.may_report = self.now + apart.0;
            }
        }
        let mut picked: Vec<_> = reports.into_iter().map(|report| report.usage).collect();
        let lie = self.grapevine.lie_of(node);
        if let Some(lie) = lie {
            picked = self.lies(lie);
            (all, some) = (picked.clone(), BTreeMap::new());
        }
        let moment = self.moment();
        self.watch.see(moment, &Seen::Picked { node, usage: &picked, lies: lie.is_some() });
        if !all.is_empty() || is_due {
            self.nodes[node as usize].circle.reported = self.now;
            self.send_reports(node, None, all, lie.is_some());
        }
        for (peer, usage) in some {
            self.send_reports(node, Some(peer), usage, false);
        }
    }

    /// Sends what a node reports to one peer, or to all.
    fn send_reports(&mut self, node: u32, to: Option<PeerIndex>, usage: Vec<Usage>, lies: bool) {
        let frames = self.grapevine.build_of(node).encode(usage);
        let frames: Vec<_> = frames.into_iter().map(|frame| Frames::new(vec![frame])).collect();
        let place = &self.nodes[node as usize];
        let life = place.incarnation;
        let is_hearer = |other: &Other| other.joined.is_some_and(|peer| to.is_none_or(|to| peer == to));
        let hearers = place.circle.others.iter().filter(|(_, other)| is_hearer(other));
        for (to, incarnation) in hearers.map(|(to, _)| *to).collect::<Vec<_>>() {
            for frames in &frames {
                self.grapevine.bytes += frames.len() as u64;
                // A full queue at a peer has the same effect as a lost frame.
                let arrivals = self.network.send_frame(self.now, &mut self.grapevine.random);
                if !self.grapevine.reaches(node, to) {
                    continue;
                }
                for at in arrivals.into_iter().flatten() {
                    let report = SentReport { from: node, life, to, incarnation, frames: frames.clone(), lies };
                    self.queue.push(at, Event::Report(Box::new(report)));
                }
            }
        }
    }

    /// A node receives reports of another one.
    pub(in crate::world) fn receive_report(&mut self, report: &SentReport) {
        let thaws = self.thaws_at(report.to);
        if thaws > self.now {
            self.queue.push(thaws, Event::Report(Box::new(report.clone())));
            return;
        }
        let build = self.grapevine.build_of(report.to);
        let name = self.nodes[report.from as usize].name.clone();
        let place = &mut self.nodes[report.to as usize];
        if place.incarnation != report.incarnation || !place.is_there() {
            return;
        }
        let now = place.clock.local(self.now);
        let Some(origin) = place.circle.tracker.heard(now, &name, report.life) else { return };
        for usage in report.frames.iter().flat_map(|frame| build.read(frame)) {
            place.limiter.handle_usage(now, origin, &usage);
        }
        // Observers see the report before its effects, because it may deny waiting requests at once.
        let SentReport { from, to, ref frames, lies, .. } = *report;
        let moment = self.moment();
        self.watch.see(moment, &Seen::Reported { from, to, frames, lies });
        self.drain(to);
    }

    /// What a malicious node reports about every key.
    fn lies(&mut self, lie: Lie) -> Vec<Usage> {
        let store = self.cluster.exact(self.now);
        let mut usage = Vec::new();
        for key in 0..self.keys.len().min(64) as u32 {
            let known = self.keys.get(key);
            let (digest, rule): (Digest, _) = (known.digest, &self.first_rules[known.policy as usize]);
            for (index, limit) in rule.limits.iter().enumerate() {
                let start = store.0 / limit.period.0 * limit.period.0;
                let window = match lie {
                    Lie::Huge | Lie::Negative => start + limit.period.0,
                    Lie::Stale => start.saturating_sub(100 * limit.period.0),
                    Lie::Early => start + 1_000_000 * limit.period.0,
                };
                let count = match lie {
                    Lie::Negative => Count { admitted: 0, refunded: u64::MAX },
                    _ => Count { admitted: u64::MAX, refunded: 0 },
                };
                let window = rationd::core::time::Timestamp(window);
                // A reported loss makes nodes that believe it ask the store once.
                usage.push(Usage { digest, limit: index as u8, window, count, epoch: store.0 });
            }
        }
        usage
    }
}
