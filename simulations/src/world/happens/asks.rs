//! A node asks a peer, and the peer answers, over the gossip network.

use rationd::core::ask::{Answer, Ask};
use rationd::core::shard::{self, AskOutcome, Ticket};
use rationd::core::usage::PeerIndex;

use crate::observe::Seen;
use crate::world::asks::Mail;
use crate::world::event::Event;
use crate::world::node::Phase;
use crate::world::state::World;

impl World<'_> {
    /// A node asks a peer.
    pub(in crate::world) fn ask_peer(&mut self, node: u32, peer: PeerIndex, ask: Ask) {
        let (key, place) = (self.keys.find(ask.digest), &self.nodes[node as usize]);
        let (from, to) = ((node, place.incarnation), place.circle.who(peer));
        self.see(&Seen::PeerAsked { node, incarnation: from.1, key, ask: &ask, peer: to });
        // A peer that has left meanwhile receives nothing.
        if let Some(to) = to {
            self.mail(Mail { from, to, key, ask, answer: None });
        }
    }

    /// A node answers a peer that it has kept waiting.
    pub(in crate::world) fn answer_peer(&mut self, node: u32, ticket: Ticket, answer: Answer) {
        if let Some(mail) = self.nodes[node as usize].asked.remove(&ticket) {
            self.answer_mail(mail, answer);
        }
    }

    fn answer_mail(&mut self, mail: Mail, answer: Answer) {
        let Mail { from, to, key, .. } = mail;
        let place = &self.nodes[to.0 as usize];
        let (rule, leaves) = (place.rules[self.keys.get(key).policy as usize].clone(), place.phase == Phase::Leaving);
        let store = self.cluster.owner_time(self.keys.get(key).digest, self.now);
        let (node, incarnation) = to;
        let ask = &mail.ask;
        let seen =
            Seen::PeerAnswered { node, incarnation, key, peer: from, ask, answer: &answer, rule: &rule, leaves, store };
        self.see(&seen);
        self.mail(Mail { from: to, to: from, answer: Some(answer), ..mail });
    }

    fn mail(&mut self, mail: Mail) {
        let arrivals = self.network.send_between(self.now);
        if self.grapevine.reaches(mail.from.0, mail.to.0) {
            for at in arrivals.into_iter().flatten() {
                self.queue.push(at, Event::Mail(Box::new(mail.clone())));
            }
        }
    }

    /// An ask or an answer arrives.
    pub(in crate::world) fn mailed(&mut self, mail: Mail) {
        let (node, incarnation) = mail.to;
        let thaws = self.thaws_at(node);
        if thaws > self.now {
            return self.queue.push(thaws, Event::Mail(Box::new(mail)));
        }
        let place = &self.nodes[node as usize];
        if place.incarnation != incarnation || !place.is_there() {
            return;
        }
        match mail.answer {
            None => self.asked_by_peer(mail),
            Some(answer) => {
                let (key, ask) = (mail.key, &mail.ask);
                let store = self.cluster.owner_time(ask.digest, self.now);
                self.see(&Seen::PeerHeard { node, incarnation, key, peer: mail.from, ask, answer: &answer, store });
                let place = &mut self.nodes[node as usize];
                let now = place.clock.local(self.now);
                place.limiter.handle_answer(now, ask.digest, ask.id, &answer);
            }
        }
        self.drain(node);
    }

    fn asked_by_peer(&mut self, mail: Mail) {
        let place = &mut self.nodes[mail.to.0 as usize];
        let key = self.keys.get(mail.key);
        let rule = &place.rules[key.policy as usize];
        if self.pushes {
            place.went_by.insert(mail.key, rule.clone());
        }
        let terms = mail.ask.terms;
        let request = shard::Request { rule, digest: key.digest, key: &key.bytes, cost: terms.want, peek: false };
        let now = place.clock.local(self.now);
        match place.limiter.handle_ask(now, request, &terms) {
            AskOutcome::Answered(answer) => self.answer_mail(mail, answer),
            AskOutcome::Parked(ticket) => {
                let ((node, incarnation), key) = (mail.to, mail.key);
                self.see(&Seen::PeerWaits { node, incarnation, key, peer: mail.from, ask: &mail.ask });
                self.nodes[node as usize].asked.insert(ticket, mail);
            }
        }
    }
}
