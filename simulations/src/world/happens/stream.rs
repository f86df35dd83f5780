//! Sends calls and answers in order on connections, which break, fall silent and are given up.

use std::collections::BTreeSet;

use rationd::core::call::StoreError;
use rationd::store::breaker::{Breaker, Fault};

use crate::world::cluster::Standing;
use crate::world::event::Event;
use crate::world::message::Reply;
use crate::world::network::Heading;
use crate::world::state::World;
use crate::world::stream::{DOUBLINGS, Link, Parcel, Pipe, RESEND, SILENCE, Streams};

impl World<'_> {
    /// Writes a call to the connection that its pass is for, and awaits the answer.
    pub(in crate::world) fn write_call(&mut self, id: u64) {
        let Some(letter) = self.letters.get_mut(&id) else { return };
        letter.copies += 1;
        let (node, server, generation) = (letter.node, letter.server, letter.pass.generation);
        let link = self.link(node, server, generation);
        self.letters.get_mut(&id).expect("looked up above").link = link;
        let ran = self.ran(node);
        let state = self.streams.links.get_mut(&link).expect("it is the latest");
        if state.awaited.is_empty() {
            state.heard = ran;
        }
        state.awaited.insert(id);
        if !std::mem::replace(&mut state.watched, true) {
            self.queue.push(self.now + SILENCE, Event::Silence { link });
        }
        self.write(link, Heading::ToRedis, Parcel::Call(id));
    }

    /// Writes an answer; it is dropped if the node has given the connection up.
    pub(in crate::world) fn write_answer(&mut self, id: u64, reply: Reply) {
        let Some(letter) = self.letters.get(&id) else { return };
        let (link, server) = (letter.link, letter.server);
        // A crashed server sends nothing but the end of its connections.
        if self.cluster.server(server).standing == Standing::Dead && !matches!(reply, Reply::Lost) {
            return;
        }
        if self.streams.links.get(&link).is_some_and(|state| !state.closed) {
            self.write(link, Heading::FromRedis, Parcel::Answer(id, reply));
        }
    }

    /// The connection of that generation between a node's present incarnation and a server.
    fn link(&mut self, node: u32, server: u32, generation: u64) -> u64 {
        let incarnation = self.nodes[node as usize].incarnation;
        let Streams { links, latest, next } = &mut self.streams;
        let known = latest.get(&(node, server)).copied().filter(|link| {
            let same = |state: &Link| (state.incarnation, state.generation) == (incarnation, generation);
            links.get(link).is_some_and(|state| !state.closed && same(state))
        });
        known.unwrap_or_else(|| {
            *next += 1;
            let link = Link {
                node,
                incarnation,
                server,
                generation,
                awaited: BTreeSet::new(),
                heard: 0,
                watched: false,
                closed: false,
                calls: Pipe::default(),
                answers: Pipe::default(),
            };
            links.insert(*next, link);
            latest.insert((node, server), *next);
            *next
        })
    }

    fn write(&mut self, link: u64, heading: Heading, parcel: Parcel) {
        let Some(state) = self.streams.links.get_mut(&link) else { return };
        let pipe = state.pipe(heading);
        let waits = !pipe.parcels.is_empty();
        pipe.parcels.push_back(parcel);
        if !waits {
            pipe.losses = 0;
            self.send_segment(link, heading);
        }
    }

    /// Sends the first segment of one direction, with those that wait behind it.
    pub(in crate::world) fn send_segment(&mut self, link: u64, heading: Heading) {
        let Some(state) = self.streams.links.get(&link) else { return };
        let (node, server) = (state.node, state.server);
        let arrives = self.arrival(node, server, heading);
        let Some(state) = self.streams.links.get_mut(&link) else { return };
        let pipe = state.pipe(heading);
        if pipe.parcels.is_empty() {
            return;
        }
        let Some(at) = arrives else {
            let wait = RESEND << pipe.losses.min(DOUBLINGS);
            pipe.losses += 1;
            return self.queue.push(self.now + wait, Event::Resend { link, heading });
        };
        pipe.losses = 0;
        pipe.last = pipe.last.max(at);
        let (at, parcels) = (pipe.last, std::mem::take(&mut pipe.parcels));
        for parcel in parcels {
            let event = match parcel {
                Parcel::Call(letter) => Event::AtServer { letter, server },
                Parcel::Answer(letter, reply) => Event::AtNode { letter, reply: Box::new(reply) },
            };
            self.queue.push(at, event);
        }
        self.forget(link);
    }

    /// When a segment sent now arrives; `None` when it is lost.
    fn arrival(&mut self, node: u32, server: u32, heading: Heading) -> Option<u64> {
        let master = self.cluster.server(server).master;
        let [at, _] = self.network.send(self.now, node, master, heading);
        at.filter(|_| !self.cluster.is_apart(node, server))
    }

    /// Something came from a server.
    pub(in crate::world) fn heard(&mut self, id: u64) {
        let Some(letter) = self.letters.get(&id) else { return };
        let ran = self.ran(letter.node);
        if let Some(state) = self.streams.links.get_mut(&letter.link) {
            state.awaited.remove(&id);
            state.heard = ran;
        }
    }

    /// Checks whether a server has been silent for too long.
    pub(in crate::world) fn silence(&mut self, link: u64) {
        let Some(state) = self.streams.links.get(&link) else { return };
        let (node, heard) = (state.node, state.heard);
        let is_there = self.nodes[node as usize].incarnation == state.incarnation;
        if state.closed || state.awaited.is_empty() || !is_there {
            self.streams.links.get_mut(&link).expect("looked up above").watched = false;
            return;
        }
        // A node that was frozen first reads what has come meanwhile.
        if self.thaws_at(node) > self.now {
            return self.queue.push(self.thaws_at(node) + 1, Event::Silence { link });
        }
        let (ran, due) = (self.ran(node), heard + SILENCE);
        if ran < due {
            return self.queue.push(self.now + due - ran, Event::Silence { link });
        }
        self.give_up(link, Fault::Silent);
    }

    /// How long a node has run so far. A server is not silent to a node that does not run.
    fn ran(&self, node: u32) -> u64 {
        self.now.saturating_sub(self.nodes[node as usize].stood)
    }

    /// A connection is reset, if the node hears of it.
    pub(in crate::world) fn reset(&mut self, link: u64) {
        let Some(state) = self.streams.links.get(&link) else { return };
        let node = state.node;
        if self.thaws_at(node) > self.now {
            return self.queue.push(self.thaws_at(node), Event::Reset { link });
        }
        self.give_up(link, Fault::Lost);
    }

    /// Resets all connections to a server that has crashed, after its last answers. Nodes that cannot be reached hear
    /// nothing.
    pub(in crate::world) fn reset_all(&mut self, server: u32) {
        let mut links: Vec<_> = self.streams.latest.iter().filter(|((_, to), _)| *to == server).collect();
        links.sort_unstable();
        let links: Vec<u64> = links.into_iter().map(|(_, link)| *link).collect();
        for link in links {
            let Some(node) = self.streams.links.get(&link).map(|state| state.node) else { continue };
            let Some(at) = self.arrival(node, server, Heading::FromRedis) else { continue };
            let Some(state) = self.streams.links.get_mut(&link) else { continue };
            if state.answers.parcels.is_empty() {
                let at = at.max(state.answers.last);
                self.queue.push(at, Event::Reset { link });
            }
        }
    }

    /// Closes connections to a crashed server on which nothing was ever sent, or which are not modelled as streams.
    /// Nodes hear of it, as an idle daemon does.
    pub(in crate::world) fn close_idle(&mut self, server: u32) {
        for node in 0..self.nodes.len() as u32 {
            let place = &self.nodes[node as usize];
            let (incarnation, generation) = (place.incarnation, place.client.generation(server));
            let Some(generation) = generation.filter(|_| place.is_there()) else { continue };
            if self.streams.latest.contains_key(&(node, server)) {
                continue;
            }
            // A node that does not hear of it asks the server about its replicas each second, and notices the silence
            // after another one.
            let at = self.arrival(node, server, Heading::FromRedis).unwrap_or(self.now + 2 * SILENCE);
            self.queue.push(at, Event::Closed { node, incarnation, server, generation });
        }
    }

    /// A node hears that a server has closed its connection.
    pub(in crate::world) fn closed(&mut self, node: u32, incarnation: u64, server: u32, generation: u64) {
        let thaws = self.thaws_at(node);
        let place = &mut self.nodes[node as usize];
        if place.incarnation != incarnation || !place.is_there() {
            return;
        }
        if thaws > self.now {
            return self.queue.push(thaws, Event::Closed { node, incarnation, server, generation });
        }
        let now = place.clock.local(self.now);
        let opened = place.client.failed(now, server, Breaker::on_behalf_of(generation), Fault::Lost);
        self.probe_from(node, server, opened);
    }

    /// The node gives a connection up, with all calls that are under way on it.
    pub(in crate::world) fn give_up(&mut self, link: u64, fault: Fault) {
        let Some(state) = self.streams.links.get_mut(&link).filter(|state| !state.closed) else { return };
        state.closed = true;
        state.answers.parcels.clear();
        let (node, server, incarnation) = (state.node, state.server, state.incarnation);
        let (awaited, pass) = (std::mem::take(&mut state.awaited), Breaker::on_behalf_of(state.generation));
        self.forget(link);
        let place = &mut self.nodes[node as usize];
        if place.incarnation != incarnation || !place.is_there() {
            return;
        }
        let now = place.clock.local(self.now);
        let opened = place.client.failed(now, server, pass, fault);
        self.probe_from(node, server, opened);
        for id in awaited {
            if self.letters.get(&id).is_some_and(|letter| !letter.settled) && self.is_alive(id) {
                self.settle(id, Err(StoreError::Unknown));
            }
        }
    }

    /// Drops a connection that is no longer in use.
    fn forget(&mut self, link: u64) {
        if self.streams.links.get(&link).is_some_and(|state| state.closed && state.calls.parcels.is_empty()) {
            self.streams.links.remove(&link);
        }
    }
}
