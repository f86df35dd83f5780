//! Carries a call from a node to a server and its outcome back, as `src/store/redis/routed_call.rs` does: one MOVED
//! and one ASK are followed, a missing script is sent once, nothing is repeated, and after the timeout the outcome is
//! unknown.

use rationd::core::call::{Call, Grant, Op, StoreError};
use rationd::core::time::{Instant, Micros};
use rationd::store::breaker::{Breaker, Fault};
use rationd::store::script;

use crate::observe::Seen;
use crate::world::cluster::{Standing, slot_of};
use crate::world::event::Event;
use crate::world::message::{Letter, Reply};
use crate::world::network::Heading;
use crate::world::state::World;
use crate::world::stream::SILENCE;

/// How soon a node learns that a call was never sent.
const TURNED_BACK: u64 = 20;

/// A call may wait to be sent for the timeout less this part of it, so that time is left for the answer.
const LEAVES_PART: u64 = 8;

/// Time between two readings of the slot map while a server is away.
const WATCHFUL: u64 = 250_000;

impl World<'_> {
    /// A node sends a call.
    pub(in crate::world) fn post(&mut self, node: u32, call: Call) {
        let key = self.keys.find(call.digest);
        let place = &mut self.nodes[node as usize];
        let started = place.clock.local(self.now);
        let server = place.client.server(slot_of(call.digest));
        let admitted = place.client.admit(server, started);
        let waits_for_trial = admitted.is_err() && place.client.is_on_trial(server);
        let (pass, barred) = match admitted {
            Ok(pass) => (pass, None),
            Err(_) if waits_for_trial => (Breaker::on_behalf_of(0), None),
            Err(since) => (Breaker::on_behalf_of(0), Some(since)),
        };
        let incarnation = place.incarnation;
        let expects = self.plan.daemon.confirm && self.plan.redis.replica && matches!(call.op, Op::Acquire(_));
        let wait = expects && place.client.can_confirm(server, started);
        let patience = self.plan.daemon.timeout.micros();
        let patience = if waits_for_trial { Micros(patience.0 - patience.0 / LEAVES_PART) } else { patience };
        let until = place.clock.when(started + patience);
        self.see(&Seen::Called { node, key, call: &call, sent: barred.is_none() });
        let letter = Letter {
            node,
            incarnation,
            key,
            call,
            server,
            pass,
            started,
            until,
            moved: false,
            asking: false,
            with_source: false,
            expects,
            wait,
            copies: 0,
            executed: false,
            settled: false,
            link: 0,
        };
        self.next_letter += 1;
        let id = self.next_letter;
        self.letters.insert(id, letter);
        if let Some(since) = barred {
            let reply = Box::new(Reply::Barred(since));
            self.queue.push(self.now + TURNED_BACK, Event::AtNode { letter: id, reply });
        } else if waits_for_trial {
            self.nodes[node as usize].client.wait(server, id);
            self.queue.push(until, Event::Deadline { letter: id });
        } else {
            if !self.is_streams() {
                self.queue.push(until, Event::Deadline { letter: id });
            }
            self.dispatch(id);
        }
    }

    /// The outcome of a trial call is known, or another call is the trial now: sends the calls that have waited, or
    /// fails them.
    pub(in crate::world) fn send_waiting(&mut self, node: u32, server: u32) {
        for id in self.nodes[node as usize].client.released(server) {
            if !self.letters.contains_key(&id) || !self.is_alive(id) {
                continue;
            }
            let place = &mut self.nodes[node as usize];
            let now = place.clock.local(self.now);
            let admitted = place.client.admit(server, now);
            let until = place.clock.when(now + self.plan.daemon.timeout.micros());
            match admitted {
                Ok(pass) => {
                    let is_streams = self.is_streams();
                    let letter = self.letters.get_mut(&id).expect("looked up above");
                    (letter.pass, letter.until) = (pass, until);
                    if !is_streams {
                        self.queue.push(until, Event::Deadline { letter: id });
                    }
                    self.dispatch(id);
                }
                Err(since) => self.settle(id, Err(StoreError::Away { since })),
            }
        }
    }

    /// Sends a call to its present destination.
    fn dispatch(&mut self, id: u64) {
        if self.is_streams() {
            return self.write_call(id);
        }
        let Some(letter) = self.letters.get_mut(&id) else { return };
        let (node, server) = (letter.node, letter.server);
        if self.cluster.is_apart(node, server) {
            return;
        }
        let master = self.cluster.server(server).master;
        let mut arrivals = self.network.send(self.now, node, master, Heading::ToRedis);
        // An acquire without an id's end is not recognized by the store when it comes twice (`Acquire::until`), and no
        // connection delivers a call twice.
        if matches!(letter.call.op, Op::Acquire(order) if order.until.is_none()) {
            arrivals[1] = None;
        }
        for at in arrivals.into_iter().flatten() {
            letter.copies += 1;
            self.queue.push(at, Event::AtServer { letter: id, server });
        }
    }

    /// One copy of a call was processed.
    pub(in crate::world) fn shred(&mut self, id: u64) {
        if self.letters.get(&id).is_some_and(|letter| letter.settled && letter.copies == 0) {
            self.letters.remove(&id);
        }
    }

    /// An answer reaches its node.
    pub(in crate::world) fn at_node(&mut self, id: u64, reply: Reply) {
        let Some(letter) = self.letters.get_mut(&id) else { return };
        let (node, server, pass, link) = (letter.node, letter.server, letter.pass, letter.link);
        if letter.settled || !self.is_alive(id) {
            return;
        }
        if self.thaws_at(node) > self.now {
            let at = self.thaws_at(node);
            return self.queue.push(at, Event::AtNode { letter: id, reply: Box::new(reply) });
        }
        let now = self.nodes[node as usize].clock.local(self.now);
        if self.is_streams() {
            self.heard(id);
        }
        match reply {
            Reply::Lost if self.is_streams() => self.lose(id, link),
            Reply::Barred(since) => self.settle(id, Err(StoreError::Away { since })),
            Reply::Lost => {
                self.fault(node, server, id, Fault::Lost);
                self.settle(id, Err(StoreError::Unknown));
            }
            Reply::Refused => {
                self.fault(node, server, id, Fault::Refused);
                let since = self.nodes[node as usize].client.away_since(server).unwrap_or(now);
                self.settle(id, Err(StoreError::Away { since }));
            }
            reply => {
                self.nodes[node as usize].client.answered(server, pass);
                self.send_waiting(node, server);
                self.follow(id, now, reply);
            }
        }
    }

    /// The connection ended at the server, so the answer is lost.
    fn lose(&mut self, id: u64, link: u64) {
        self.give_up(link, Fault::Lost);
        // Another copy may have brought the outcome already.
        if self.letters.get(&id).is_some_and(|letter| !letter.settled) {
            self.settle(id, Err(StoreError::Unknown));
        }
    }

    /// Follows what an answer asks for: a result, a redirect, or the script.
    fn follow(&mut self, id: u64, now: Instant, reply: Reply) {
        let Some(letter) = self.letters.get_mut(&id) else { return };
        let (node, started) = (letter.node, letter.started);
        match reply {
            Reply::Grant { numbers, replicated } => {
                let (server, expects) = (letter.server, letter.expects);
                let outcome = script::grant(&letter.call, &numbers).map_err(|_| StoreError::Unknown);
                if replicated == Some(false) {
                    self.nodes[node as usize].client.unconfirmed(server, now);
                }
                self.settle(
                    id,
                    outcome.map(|grant| Grant {
                        confirmed: !expects || (!grant.replayed && replicated == Some(true)),
                        ..grant
                    }),
                );
            }
            Reply::NoScript if !letter.with_source => {
                letter.with_source = true;
                self.redirect(id, now);
            }
            Reply::Moved(server) if !letter.moved => {
                (letter.moved, letter.asking, letter.with_source, letter.server) = (true, false, false, server);
                self.redirect(id, now);
                self.alarm(node);
            }
            Reply::Ask(server) if !letter.asking => {
                (letter.asking, letter.with_source, letter.server) = (true, false, server);
                self.redirect(id, now);
            }
            _ => self.settle(id, Err(StoreError::Away { since: started })),
        }
    }

    /// Sends a call again, to its present destination.
    fn redirect(&mut self, id: u64, now: Instant) {
        let letter = self.letters.get_mut(&id).expect("it is being followed");
        match self.nodes[letter.node as usize].client.admit(letter.server, now) {
            Ok(pass) => {
                letter.pass = pass;
                self.dispatch(id);
            }
            Err(since) => self.settle(id, Err(StoreError::Away { since })),
        }
    }

    /// The timeout of a call has passed.
    pub(in crate::world) fn deadline(&mut self, id: u64) {
        let Some(letter) = self.letters.get(&id) else { return };
        let (node, server) = (letter.node, letter.server);
        if letter.settled || self.now < letter.until || !self.is_alive(id) {
            return;
        }
        if self.thaws_at(node) > self.now {
            return self.queue.push(self.thaws_at(node), Event::Deadline { letter: id });
        }
        let place = &mut self.nodes[node as usize];
        if place.client.stop_waiting(server, id) {
            let since = place.client.away_since(server).unwrap_or_else(|| place.clock.local(self.now));
            return self.settle(id, Err(StoreError::Away { since }));
        }
        self.fault(node, server, id, Fault::Late);
        self.settle(id, Err(StoreError::Unknown));
    }

    /// Whether the node that sent a call still runs in the same incarnation; if not, the call is dropped.
    pub(in crate::world) fn is_alive(&mut self, id: u64) -> bool {
        let letter = &self.letters[&id];
        let node = &self.nodes[letter.node as usize];
        let alive = node.incarnation == letter.incarnation && node.is_there();
        if !alive {
            self.letters.get_mut(&id).expect("looked up above").settled = true;
            self.shred(id);
        }
        alive
    }

    /// The node learns the outcome of a call.
    pub(in crate::world) fn settle(&mut self, id: u64, outcome: Result<Grant, StoreError>) {
        let letter = self.letters.get_mut(&id).expect("settled once");
        letter.settled = true;
        // `Away` promises that the call is not executed. The network of the simulator may have duplicated the call,
        // though, which no connection does; then another copy may have been executed, or may yet be.
        let may_be_executed = letter.executed || letter.copies > 0;
        let outcome = match outcome {
            Err(StoreError::Away { .. }) if may_be_executed => Err(StoreError::Unknown),
            outcome => outcome,
        };
        let (node, incarnation, key, call) = (letter.node, letter.incarnation, letter.key, letter.call.clone());
        self.see(&Seen::Settled { node, incarnation, key, call: &call, grant: outcome.as_ref().ok() });
        let place = &mut self.nodes[node as usize];
        let now = place.clock.local(self.now);
        place.limiter.handle_outcome(now, &call, outcome);
        self.shred(id);
        self.drain(node);
    }

    /// A call of a node failed; if that opens a breaker, the monitor begins to probe.
    fn fault(&mut self, node: u32, server: u32, id: u64, fault: Fault) {
        let pass = self.letters[&id].pass;
        let place = &mut self.nodes[node as usize];
        let now = place.clock.local(self.now);
        let opened = place.client.failed(now, server, pass, fault);
        self.probe_from(node, server, opened);
    }

    /// Schedules the first probe of a breaker that opened.
    pub(in crate::world) fn probe_from(&mut self, node: u32, server: u32, opened: Option<Instant>) {
        let place = &self.nodes[node as usize];
        if let Some(at) = opened {
            let (at, incarnation) = (place.clock.when(at).max(self.now), place.incarnation);
            self.queue.push(at, Event::Probe { node, incarnation, server });
            self.alarm(node);
        }
        self.send_waiting(node, server);
    }

    /// A node dials a server that is away.
    pub(in crate::world) fn probe(&mut self, node: u32, incarnation: u64, server: u32) {
        let place = &self.nodes[node as usize];
        let Some(due) = place.client.probe_at(server).filter(|_| place.incarnation == incarnation) else { return };
        let due = place.clock.when(due).max(self.thaws_at(node));
        if due > self.now {
            return self.queue.push(due, Event::Probe { node, incarnation, server });
        }
        let (at, answered) = self.ping(node, server);
        self.queue.push(at, Event::Probed { node, incarnation, server, answered });
    }

    /// When a node learns whether a server answers, and whether it does.
    fn ping(&mut self, node: u32, server: u32) -> (u64, bool) {
        let master = self.cluster.server(server).master;
        let there = self.network.send(self.now, node, master, Heading::ToRedis)[0];
        let back = there.and_then(|at| self.network.send(at, node, master, Heading::FromRedis)[0]);
        let streams = self.is_streams();
        let patience = self.plan.daemon.timeout.0.max(if streams { SILENCE } else { 0 });
        let limit = self.now + patience;
        let place = self.cluster.server(server);
        // A paused server answers when it goes on.
        let back = back.map(|at| if streams { at.max(place.paused_until) } else { at });
        let stands = place.paused_until > self.now && !streams;
        let silent = stands || back.is_none_or(|at| at > limit);
        match back {
            _ if self.cluster.is_apart(node, server) || silent => (limit, false),
            Some(at) => {
                let place = self.cluster.server(server);
                (at, place.standing != Standing::Dead && !place.refuses)
            }
            None => (limit, false),
        }
    }

    pub(in crate::world) fn probed(&mut self, node: u32, incarnation: u64, server: u32, answered: bool) {
        let jitter = self.random.below(50_000);
        let place = &mut self.nodes[node as usize];
        if place.incarnation != incarnation {
            return;
        }
        let now = place.clock.local(self.now);
        place.client.probed(now, server, answered, jitter);
        if let Some(at) = place.client.probe_at(server) {
            self.queue.push(place.clock.when(at).max(self.now), Event::Probe { node, incarnation, server });
        }
        self.send_waiting(node, server);
    }

    /// The slot map of a node may be out of date.
    pub(in crate::world) fn alarm(&mut self, node: u32) {
        let place = &mut self.nodes[node as usize];
        if !place.client.reading {
            place.client.reading = true;
            let incarnation = place.incarnation;
            self.queue.push(self.now + 1_000, Event::ReadMap { node, incarnation });
        }
    }

    pub(in crate::world) fn read_map(&mut self, node: u32, incarnation: u64) {
        let turn = self.random.bits();
        let place = &self.nodes[node as usize];
        if place.incarnation != incarnation {
            return;
        }
        // It asks a server that is not known to be away. If there is none, it asks any, because replicas and seeds know
        // the map, too.
        let any = self.cluster.primaries[(turn % self.cluster.primaries.len() as u64) as usize];
        let server = place.client.trusted(turn).unwrap_or(any);
        let (at, answered) = self.ping(node, server);
        let server = if answered { server } else { u32::MAX };
        self.queue.push(at, Event::GotMap { node, incarnation, server });
    }

    pub(in crate::world) fn got_map(&mut self, node: u32, incarnation: u64, server: u32) {
        let place = &mut self.nodes[node as usize];
        if place.incarnation != incarnation {
            return;
        }
        place.client.reading = false;
        // A replica knows the map; a master that is cut off does not.
        let knows = |standing| matches!(standing, Standing::Primary | Standing::Replica);
        let knows = server != u32::MAX && knows(self.cluster.server(server).standing);
        if knows {
            let now = place.clock.local(self.now);
            for fresh in place.client.adopt(now, &self.cluster) {
                self.queue.push(self.now, Event::Probe { node, incarnation, server: fresh });
            }
        }
        let place = &mut self.nodes[node as usize];
        if place.client.misses_any() {
            place.client.reading = true;
            self.queue.push(self.now + WATCHFUL, Event::ReadMap { node, incarnation });
        }
    }
}
