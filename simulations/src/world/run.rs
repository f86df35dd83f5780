//! The loop that makes things happen, one event after another. Requests go into nodes here, and what a node wants done comes
//! out in `drain`.

use rationd::core::decision::{Decision, Verdict};
use rationd::core::shard::{self, Effect};

use super::cluster::Cluster;
use super::crowd::Crowd;
use super::demand::Demand;
use super::event::{Event, Queue};
use super::gossip::Grapevine;
use super::holds::Holders;
use super::joined::Joining;
use super::keys::Keys;
use super::network::Network;
use super::node::Phase;
use super::permits::Takers;
use super::several::{Groups, Item};
use super::state::World;
use super::stream::Streams;
use super::watch::Watch;
use crate::limiter::Limiter;
use crate::lua::Scripts;
use crate::maps::Map;
use crate::observe::{Kind, Request, Seen, Setting};
use crate::plan;
use crate::random::Random;
use crate::trace::Trace;

/// Time between two audits of the nodes' balances.
const AUDIT: u64 = 100_000;

/// The figures of a node that a refund changes.
pub(super) struct Till {
    spent: u64,
    waiting: u64,
}

impl Till {
    pub(super) fn of(limiter: &dyn Limiter) -> Self {
        Self { spent: limiter.spent(), waiting: limiter.waiting() }
    }
}

impl<'a> World<'a> {
    /// A world at its first moment.
    #[must_use]
    pub fn new(setting: &Setting, scripts: &'a mut Scripts, watch: Watch<'a>) -> Self {
        let plan = setting.plan.clone();
        let demands = plan.demand.iter().enumerate().map(|(index, one)| Demand::new(one, plan.seed, index));
        let mut world = Self {
            pushes: plan.faults.iter().any(|fault| matches!(fault.what, plan::What::Push { .. })),
            now: 0,
            queue: Queue::default(),
            nodes: Vec::new(),
            up: Vec::new(),
            cluster: Cluster::new(&plan.redis, plan.seed),
            network: Network::new(&plan.network, &plan.zones, plan.seed),
            grapevine: Grapevine::new(plan.gossip, plan.seed),
            scripts,
            joining: Joining::default(),
            letters: Map::default(),
            streams: Streams::default(),
            demands: demands.collect(),
            keys: Keys::new(&setting.rules),
            holders: Holders::default(),
            takers: Takers::default(),
            groups: Groups::default(),
            first_rules: setting.rules.clone(),
            prober: None,
            random: Random::stream(plan.seed, "nodes"),
            next_letter: 0,
            next_request: 0,
            next_incarnation: 0,
            watch,
            plan,
        };
        world.watch.crowd = Crowd::new(&world.plan);
        for _ in 0..world.plan.nodes.max(1) {
            world.join();
        }
        world.schedule();
        world
    }

    /// Executes all events, and returns the trace.
    pub fn run(mut self) -> Trace {
        self.rehearse();
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            if self.is_done() {
                break;
            }
            if self.queue.is_stuck() {
                self.see(&Seen::Stuck);
                break;
            }
            self.happen(event);
        }
        self.audit();
        self.see(&Seen::Over);
        self.watch.trace
    }

    pub(super) fn schedule(&mut self) {
        for demand in 0..self.demands.len() as u32 {
            self.arrive_next(demand);
        }
        for (index, fault) in self.plan.faults.iter().enumerate() {
            self.queue.push(fault.at.0, Event::Begin { fault: index as u32 });
            if fault.lasts.0 > 0 {
                self.queue.push((fault.at.0 + fault.lasts.0).min(self.plan.span.0), Event::End { fault: index as u32 });
            }
        }
        self.queue.push(AUDIT, Event::Audit);
        self.queue.push(self.plan.span.0, Event::Calm);
        self.queue.push(self.plan.span.0, Event::Census);
        self.queue.push(self.plan.span.0 + self.plan.calm.0, Event::Quiet);
    }

    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { demand } => self.arrive(demand),
            Event::Come(request) => {
                self.ask(*request);
            }
            Event::Errand(errand) => self.errand(*errand),
            Event::Together { node, items } => self.ask_together(node, items),
            Event::GoOn { group } => self.go_on(group),
            Event::Parting(parting) => self.part_with(*parting),
            Event::AtServer { letter, server } => self.at_server(letter, server),
            Event::Replicated { letter, server, numbers } => self.replicated(letter, server, numbers),
            Event::AtNode { letter, reply } => self.at_node(letter, *reply),
            Event::Leaves { letter, reply } => self.write_answer(letter, *reply),
            Event::Deadline { letter } => self.deadline(letter),
            Event::Resend { link, heading } => self.send_segment(link, heading),
            Event::Silence { link } => self.silence(link),
            Event::Closed { node, incarnation, server, generation } => {
                self.closed(node, incarnation, server, generation);
            }
            Event::Reset { link } => self.reset(link),
            Event::Timer { node, incarnation } => self.timer(node, incarnation),
            Event::Probe { node, incarnation, server } => self.probe(node, incarnation, server),
            Event::Probed { node, incarnation, server, answered } => self.probed(node, incarnation, server, answered),
            Event::ReadMap { node, incarnation } => self.read_map(node, incarnation),
            Event::GotMap { node, incarnation, server } => self.got_map(node, incarnation, server),
            Event::Begin { fault } => self.begin(fault),
            Event::End { fault } => self.end(fault),
            Event::Step(step) => self.step(step),
            Event::Round { node, incarnation } => self.round(node, incarnation),
            Event::Report(report) => self.receive_report(&report),
            Event::Mail(mail) => self.mailed(*mail),
            Event::Audit => {
                self.audit();
                self.queue.push(self.now + AUDIT.max(1_000 * self.nodes.len() as u64), Event::Audit);
            }
            Event::Census => self.census(),
            Event::Calm => self.calm(),
            Event::Quiet => self.quiet(),
            Event::Probation => self.probation(),
        }
    }

    pub(super) fn arrive_next(&mut self, demand: u32) {
        if let Some(at) = self.demands[demand as usize].next()
            && at < self.plan.span.0 + self.plan.calm.0
        {
            self.queue.push(at.max(self.now), Event::Arrive { demand });
        }
    }

    /// Executes a demand's next check, and schedules the one after it.
    pub(super) fn arrive(&mut self, demand: u32) {
        self.arrive_next(demand);
        if self.up.is_empty() {
            return;
        }
        let (source, policy) = (&mut self.demands[demand as usize], self.plan.demand[demand as usize].policy);
        let arrival = source.draw(self.now, self.up.len());
        let key = self.keys.id(policy, arrival.rank, arrival.generation);
        let node = self.up[arrival.node];
        if self.first_rules[policy as usize].is_concurrent() {
            self.watch.in_flight.insert(key);
        }
        if !arrival.others.is_empty() {
            return self.arrive_together(node, Item { key, policy, cost: arrival.cost }, &arrival.others);
        }
        let request = self.request(node, key, policy, arrival.cost, arrival.kind);
        if self.first_rules[policy as usize].is_concurrent() {
            return self.take(demand, &request);
        }
        if let Some(terms) = arrival.hold {
            self.holders.begin(request.id, terms);
        }
        let admitted = self.ask(request);
        if arrival.refund && admitted == Some(Verdict::Allow) {
            let refund = Request { kind: Kind::Refund, ..self.request(node, key, policy, arrival.cost, Kind::Refund) };
            self.queue.push(self.now + 1 + arrival.cost * 997 % 50_000, Event::Come(Box::new(refund)));
        }
        self.come_back(demand, &request, admitted);
    }

    /// Executes a check that asks for further keys.
    pub(super) fn arrive_together(&mut self, node: u32, first: Item, others: &[(u32, u32, u64)]) {
        let mut items = vec![first];
        for &(policy, rank, cost) in others {
            let policy = policy % self.first_rules.len() as u32; // a handful
            let key = self.keys.id(policy, rank, 0);
            if self.first_rules[policy as usize].is_concurrent() {
                self.watch.in_flight.insert(key);
            }
            items.push(Item { key, policy, cost });
        }
        self.ask_together(node, items);
    }

    /// A denied client with patience tries again when it was told to.
    pub(super) fn come_back(&mut self, demand: u32, request: &Request, verdict: Option<Verdict>) {
        let patience = self.plan.demand[demand as usize].patience.0;
        if patience > 0 && verdict == Some(Verdict::Deny) {
            let again = self.now + 1 + patience / 2;
            let request = self.request(request.node, request.key, request.policy, request.cost, Kind::Check);
            self.queue.push(again, Event::Come(Box::new(request)));
        }
    }

    /// A request reaches its node. Returns the verdict, if the node has it at once.
    pub(super) fn ask(&mut self, request: Request) -> Option<Verdict> {
        let request = Request { asked: self.now, ..request };
        let node = &self.nodes[request.node as usize];
        if node.phase != Phase::Up {
            return None;
        }
        if self.thaws_at(request.node) > self.now {
            self.queue.push(self.thaws_at(request.node), Event::Come(Box::new(request)));
            return None;
        }
        self.see(&Seen::Asked(&request));
        let node = &mut self.nodes[request.node as usize];
        let rule = &node.rules[request.policy as usize];
        if self.pushes {
            node.went_by.insert(request.key, rule.clone());
        }
        let key = self.keys.get(request.key);
        let peek = request.kind == Kind::Peek;
        let question = shard::Request { rule, digest: key.digest, key: &key.bytes, cost: request.cost, peek };
        let now = node.clock.local(self.now);
        let before = (request.kind == Kind::Refund).then(|| Till::of(&*node.limiter));
        let outcome = match request.kind {
            Kind::Check | Kind::Peek if let Some(deadline) = self.groups.deadline(request.id) => {
                node.limiter.check_by(now, deadline, question)
            }
            Kind::Peek if self.holders.settles(request.id) || self.groups.is_look(request.id) => {
                node.limiter.peek_local(now, question)
            }
            Kind::Check | Kind::Peek => node.limiter.check(now, question),
            Kind::Refund => match self.holders.charge(request.id) {
                Some(charge) => node.limiter.give_back(now, question, charge),
                None => node.limiter.refund(now, question),
            },
            Kind::Reset => node.limiter.reset(now, question),
        };
        if let Some(before) = before {
            self.taken_back(&request, before);
        }
        let verdict = match outcome {
            shard::Outcome::Decided(decision) => {
                self.answered(&request, &decision, false);
                Some(decision.verdict)
            }
            shard::Outcome::Parked(ticket) => {
                self.nodes[request.node as usize].parked.insert(ticket, request);
                None
            }
        };
        self.drain(request.node);
        verdict
    }

    /// A node has processed a refund: reports to the observers how much of it is back in the node's lease.
    pub(super) fn taken_back(&mut self, request: &Request, before: Till) {
        let node = &self.nodes[request.node as usize];
        let after = Till::of(&*node.limiter);
        let kept = before.spent.checked_sub(after.spent).filter(|_| before.waiting == after.waiting);
        let rule = &node.rules[request.policy as usize];
        let store = self.cluster.owner_time(self.keys.get(request.key).digest, self.now);
        self.watch.see(self.moment(), &Seen::TakenBack { request, rule, kept, store });
    }

    pub(super) fn answered(&mut self, request: &Request, decision: &Decision, parked: bool) {
        let node = &self.nodes[request.node as usize];
        let rule = node.went_by.get(&request.key).unwrap_or(&node.rules[request.policy as usize]);
        let store = self.cluster.owner_time(self.keys.get(request.key).digest, self.now);
        self.watch.see(self.moment(), &Seen::Answered { request, rule, decision, parked, store });
        if self.prober.is_some() {
            self.go_on_probing(request, decision);
        }
        if !self.holders.is_empty() {
            self.concluded(request, decision);
        }
        if !self.takers.is_empty() {
            self.taken(request, decision);
        }
        if !self.groups.is_empty() {
            self.answered_together(request, decision, parked);
        }
    }

    /// Executes the effects that a node asks for; called after every input to the node.
    pub(super) fn drain(&mut self, node: u32) {
        while let Some(effect) = self.nodes[node as usize].limiter.poll_effect() {
            match effect {
                Effect::Call(call) => self.post(node, *call),
                Effect::Ask { peer, ask } => self.ask_peer(node, peer, ask),
                Effect::Answer { ticket, answer } => self.answer_peer(node, ticket, answer),
                Effect::Reply { ticket, decision } => {
                    if let Some(request) = self.nodes[node as usize].parked.remove(&ticket) {
                        self.answered(&request, &decision, true);
                    }
                }
            }
        }
        self.set_timer(node);
    }

    pub(super) fn set_timer(&mut self, node: u32) {
        let place = &mut self.nodes[node as usize];
        let Some(due) = place.limiter.poll_timeout() else { return };
        let at = place.clock.when(due).max(self.now);
        if at < place.timer {
            place.timer = at;
            self.queue.push(at, Event::Timer { node, incarnation: place.incarnation });
        }
    }

    pub(super) fn timer(&mut self, node: u32, incarnation: u64) {
        if self.nodes[node as usize].incarnation != incarnation {
            return;
        }
        if self.thaws_at(node) > self.now {
            // With streams, a node reads what has arrived before it looks at deadlines.
            let later = u64::from(self.is_streams());
            self.queue.push(self.thaws_at(node) + later, Event::Timer { node, incarnation });
            return;
        }
        let place = &mut self.nodes[node as usize];
        if place.timer > self.now {
            return;
        }
        place.timer = u64::MAX;
        let now = place.clock.local(self.now);
        place.limiter.handle_timeout(now);
        self.drain(node);
    }

    pub(super) fn audit(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            let place = &self.nodes[node as usize];
            if !place.is_there() {
                continue;
            }
            let now = place.clock.local(self.now);
            let (balance, keys) = (place.limiter.balance(now), place.limiter.keys());
            let waiting = place.limiter.waiting();
            self.see(&Seen::Audit { node, balance, keys, waiting });
        }
        self.cluster.settle(self.now);
    }
}
