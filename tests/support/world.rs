//! A small world on virtual time: some nodes with clocks of their own, one memory store, and a
//! network between them that delays, loses and repeats. Runs the shipped core and the shipped store.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use rationd::core::call::{Call, Grant, Op, StoreError};
use rationd::core::decision::{Decision, Reason, Verdict};
use rationd::core::key::Digest;
use rationd::core::page::Place;
use rationd::core::policy::Rule;
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard, Ticket};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;

/// The store's clock at the world's start.
pub const EPOCH: u64 = 1_800_000_000_000_000;

/// How long a connection waits before it sends again what was lost, and for any sign of life.
const RETRANSMISSION: u64 = 200_000;
const SILENCE: u64 = 1_000_000;

/// What happens in a world, drawn from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub nodes: usize,
    /// Checks a second of all nodes together.
    pub rate: u64,
    /// Per mille of the checks that go to node 0, beside its even part.
    pub skew: u64,
    /// Largest cost.
    pub cost: u64,
    /// Mean one-way delay of a message.
    pub delay: Micros,
    /// Per mille of messages that are lost and sent again, and of messages repeated.
    pub loss: u64,
    pub repeats: u64,
    /// Node clocks run at most so many ppm fast or slow.
    pub drift: u64,
    pub span: Micros,
    /// The store answers nothing in this part of the run.
    pub outage: Option<(Micros, Micros)>,
    /// A node dies with its leases at about this interval, and starts anew.
    pub crashes: Option<Micros>,
}

impl Weather {
    pub fn fair(nodes: usize, rate: u64, span: Micros) -> Self {
        let delay = Micros(150);
        Self {
            nodes,
            rate,
            skew: 0,
            cost: 1,
            delay,
            loss: 0,
            repeats: 0,
            drift: 100,
            span,
            outage: None,
            crashes: None,
        }
    }
}

/// One admission.
#[derive(Clone, Copy, Debug)]
pub struct Admission {
    pub at: Timestamp,
    pub tokens: u64,
    pub decision: Decision,
}

/// What clients saw.
#[derive(Debug, Default)]
pub struct Ledger {
    pub admissions: Vec<Admission>,
    pub checks: u64,
    pub parked: u64,
    pub calls: u64,
    pub longest_wait: Micros,
    pub reasons: BTreeMap<&'static str, u64>,
    /// Per node at the end: tokens granted, spent, returned, expired, held.
    pub balances: Vec<[u64; 5]>,
}

#[allow(clippy::large_enum_variant, reason = "a few live at a time")]
enum Event {
    Check,
    AtStore(usize, u64, Call),
    AtNode(usize, u64, Call, Result<Grant, StoreError>),
    Timer(usize),
    Crash,
}

struct Node {
    shard: Shard,
    /// Restarts, so that messages for a dead incarnation are dropped.
    life: u64,
    ppm: i64,
    parked: BTreeMap<Ticket, (u64, u64)>,
    timer: u64,
    /// Its connection to the store was given up.
    lost_at: Option<Instant>,
}

/// The world.
pub struct World {
    weather: Weather,
    rule: Arc<Rule>,
    now: u64,
    nodes: Vec<Node>,
    store: MemoryStore,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    next_event: u64,
    next_life: u64,
    random: u64,
    pub ledger: Ledger,
}

impl World {
    pub fn new(seed: u64, rule: Rule, weather: Weather) -> Self {
        let mut world = Self {
            weather,
            rule: Arc::new(rule),
            now: 0,
            nodes: Vec::new(),
            store: MemoryStore::new(1_000, u128::from(seed)),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_life: 0,
            random: seed,
            ledger: Ledger::default(),
        };
        for _ in 0..weather.nodes {
            let node = world.node();
            world.nodes.push(node);
        }
        world
    }

    fn node(&mut self) -> Node {
        self.next_life += 1;
        let drift = self.weather.drift as i64;
        let ppm = self.below(2 * drift as u64 + 1) as i64 - drift;
        let seed = self.below(u64::MAX);
        let settings = Settings { max_keys: 100, timeout: Micros(50_000), lease_ahead: true };
        let now = local(self.now, ppm);
        let first_id = EPOCH + self.now + self.next_life;
        let shard = Shard::new(settings, seed, first_id, 1, (now, Timestamp(EPOCH + self.now)));
        Node { shard, life: self.next_life, ppm, parked: BTreeMap::new(), timer: u64::MAX, lost_at: None }
    }

    fn below(&mut self, bound: u64) -> u64 {
        super::random::below(&mut self.random, bound)
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.next_event += 1;
        self.queue.push(Reverse((at, self.next_event)));
        self.events.insert(self.next_event, event);
    }

    /// Runs to the end and returns what clients saw.
    pub fn run(mut self) -> Ledger {
        let start = self.below(1_000_000);
        self.now = start;
        self.schedule(start, Event::Check);
        if let Some(interval) = self.weather.crashes {
            self.schedule(start + interval.0, Event::Crash);
        }
        let end = start + self.weather.span.0;
        while let Some(Reverse((at, id))) = self.queue.pop() {
            if at > end {
                break;
            }
            self.now = at;
            let event = self.events.remove(&id).expect("each event happens once");
            self.happen(event);
        }
        for node in &self.nodes {
            let now = local(self.now, node.ppm);
            let held = node.shard.keys(now, Place::default(), 10).iter().map(|(_, key)| key.held).sum();
            for (_, stats) in node.shard.policy_stats() {
                self.ledger.balances.push([stats.granted, stats.spent, stats.returned, stats.expired, held]);
            }
        }
        self.ledger
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Check => self.arrive(),
            Event::AtStore(node, life, call) => self.at_store(node, life, call),
            Event::AtNode(node, life, call, outcome) => {
                if self.nodes[node].life == life {
                    let now = local(self.now, self.nodes[node].ppm);
                    if outcome == Err(StoreError::Unknown) {
                        self.nodes[node].lost_at = Some(now);
                    }
                    self.nodes[node].shard.handle_outcome(now, &call, outcome);
                    self.drain(node);
                }
            }
            Event::Timer(node) => {
                self.nodes[node].timer = u64::MAX;
                let now = local(self.now, self.nodes[node].ppm);
                self.nodes[node].shard.handle_timeout(now);
                self.drain(node);
            }
            Event::Crash => {
                let victim = self.below(self.nodes.len() as u64) as usize;
                self.nodes[victim] = self.node();
                let interval = self.weather.crashes.expect("crashes are planned").0;
                let next = self.now + interval / 2 + self.below(interval);
                self.schedule(next, Event::Crash);
            }
        }
    }

    fn arrive(&mut self) {
        let gap = 2_000_000 / self.weather.rate.max(1);
        let next = self.now + 1 + self.below(gap.max(1));
        self.schedule(next, Event::Check);
        let node = if self.chance(self.weather.skew) { 0 } else { self.below(self.nodes.len() as u64) as usize };
        let cost = 1 + self.below(self.weather.cost);
        let rule = self.rule.clone();
        let request = Request { rule: &rule, digest: Digest::of("p", b"k"), key: b"k", cost, peek: false };
        let now = local(self.now, self.nodes[node].ppm);
        self.ledger.checks += 1;
        match self.nodes[node].shard.check(now, request) {
            Outcome::Decided(decision) => self.answered(cost, decision),
            Outcome::Parked(ticket) => {
                self.ledger.parked += 1;
                let now = self.now;
                self.nodes[node].parked.insert(ticket, (now, cost));
            }
        }
        self.drain(node);
    }

    fn answered(&mut self, cost: u64, decision: Decision) {
        assert!(decision.remaining <= decision.limit, "{decision:?}");
        assert!(decision.retry_after != Some(Micros::ZERO), "{decision:?}");
        *self.ledger.reasons.entry(decision.reason.as_str()).or_default() += 1;
        match decision.verdict {
            Verdict::Allow => {
                let at = Timestamp(EPOCH + self.now);
                self.ledger.admissions.push(Admission { at, tokens: cost, decision });
            }
            Verdict::Deny => assert_ne!(decision.reason, Reason::Ok),
        }
    }

    fn drain(&mut self, node: usize) {
        while let Some(effect) = self.nodes[node].shard.poll_effect() {
            match effect {
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("nobody told it of peers to ask"),
                Effect::Reply { ticket, decision } => {
                    let (asked, cost) = self.nodes[node].parked.remove(&ticket).expect("a ticket is answered once");
                    self.ledger.longest_wait = self.ledger.longest_wait.max(Micros(self.now - asked));
                    self.answered(cost, decision);
                }
                Effect::Call(call) => {
                    self.ledger.calls += 1;
                    let life = self.nodes[node].life;
                    self.send(|at_store| Event::AtStore(node, life, at_store), *call);
                }
            }
        }
        let Node { shard, ppm, timer, .. } = &self.nodes[node];
        if let Some(at) = shard.poll_timeout() {
            let at = global(at, *ppm).max(self.now);
            if at < *timer {
                self.nodes[node].timer = at;
                self.schedule(at, Event::Timer(node));
            }
        }
    }

    /// Delays or repeats a message; a connection sends again what is lost.
    fn send(&mut self, make: impl Fn(Call) -> Event, call: Call) {
        let again = if self.chance(self.weather.loss) { RETRANSMISSION } else { 0 };
        let copies = 1 + u64::from(self.chance(self.weather.repeats));
        for _ in 0..copies {
            let mean = self.weather.delay.0;
            let delay = again + if self.chance(20) { self.below(mean * 40) } else { self.below(mean * 2) };
            self.schedule(self.now + delay, make(call.clone()));
        }
    }

    fn at_store(&mut self, node: usize, life: u64, call: Call) {
        let away = self.weather.outage.is_some_and(|(from, to)| (from.0..to.0).contains(&self.now));
        if away {
            // A connection from which nothing has come for a second is given up, and calls that come
            // after that do not leave.
            let (at, error) = match self.nodes[node].lost_at {
                Some(since) => (self.now, StoreError::Away { since }),
                None => (self.now + SILENCE, StoreError::Unknown),
            };
            return self.schedule(at, Event::AtNode(node, life, call, Err(error)));
        }
        self.nodes[node].lost_at = None;
        let name = format!("node-{node}");
        let outcome = self.store.call(Timestamp(EPOCH + self.now), &name, &call);
        if let Op::Acquire(order) = call.op
            && let Ok(grant) = &outcome
        {
            assert!(grant.granted <= order.want.max(order.need), "{order:?} {grant:?}");
        }
        self.send(move |back| Event::AtNode(node, life, back, outcome.clone()), call);
    }
}

fn local(now: u64, ppm: i64) -> Instant {
    Instant((3_600_000_000 + now).saturating_add_signed(now as i64 / 1_000 * ppm / 1_000))
}

/// The first global time at which the local clock reads at least `at`.
fn global(at: Instant, ppm: i64) -> u64 {
    let mut guess = at.0.saturating_sub(3_600_000_000);
    guess = guess.saturating_add_signed(-(guess as i64 / 1_000 * ppm / 1_000));
    while local(guess, ppm) < at {
        guess += 1;
    }
    guess
}
