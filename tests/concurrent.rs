//! Concurrent limits: what is in flight never exceeds the limit, and slots that end are there again. Nodes
//! on virtual time against the memory store, by its own clock and by a network that delays, loses and repeats.

use crate::support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use rationd::core::call::{Call, Grant, Occupy, Op, StoreError};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::key::Digest;
use rationd::core::limit::Limit;
use rationd::core::policy::{OnStoreLoss, Rule};
use rationd::core::shard::{Effect, Outcome, Request, Settings, Shard, Ticket};
use rationd::core::time::{Instant, Micros, Timestamp};
use rationd::store::memory::MemoryStore;

use support::random::below;

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const EPOCH: u64 = 1_800_000_000_000_000;

/// Nodes, one store between them, and a network.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) rule: Arc<Rule>,
    pub(crate) store: MemoryStore,
    pub(crate) nodes: Vec<Node>,
    pub(crate) mail: BTreeMap<(u64, u64), Mail>,
    sent: u64,
    pub(crate) random: u64,
    pub(crate) weather: Weather,
    pub(crate) calls: u64,
}

pub(crate) struct Node {
    pub(crate) shard: Shard,
    /// Slots in clients' hands, and until when they are theirs at most.
    pub(crate) held: BTreeMap<NonZeroU64, u64>,
    pub(crate) parked: BTreeSet<Ticket>,
    /// Answers in the order in which they came.
    pub(crate) answers: VecDeque<Decision>,
    pub(crate) is_cut: bool,
}

#[allow(clippy::large_enum_variant, reason = "there are few")]
pub(crate) enum Mail {
    ToStore(usize, Call),
    ToNode(usize, Call, Result<Grant, StoreError>),
}

#[derive(Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) delay: u64,
    /// Per mille.
    pub(crate) loss: u64,
    pub(crate) repeats: u64,
}

/// How long a connection waits for what was lost.
const RETRANSMISSION: u64 = 200_000;

pub(crate) const FAIR: Weather = Weather { delay: 0, loss: 0, repeats: 0 };

impl World {
    pub(crate) fn new(limit: &str, nodes: usize, seed: u64, weather: Weather) -> Self {
        let rule = Arc::new(Rule::of("flight", &[Limit::parse(limit).expect(limit)]));
        let settings = Settings { max_keys: 100, timeout: Micros(50_000), lease_ahead: true };
        let node = |index: usize| Node {
            shard: Shard::new(settings, seed + index as u64, EPOCH, 1, (Instant(0), Timestamp(EPOCH))),
            held: BTreeMap::new(),
            parked: BTreeSet::new(),
            answers: VecDeque::new(),
            is_cut: false,
        };
        let (store, random) = (MemoryStore::new(100, 1), seed);
        let nodes = (0..nodes).map(node).collect();
        Self { now: 0, rule, store, nodes, mail: BTreeMap::new(), sent: 0, random, weather, calls: 0 }
    }

    fn post(&mut self, mail: impl Fn() -> Mail) {
        let lost = below(&mut self.random, 1_000) < self.weather.loss;
        let copies = 1 + u64::from(below(&mut self.random, 1_000) < self.weather.repeats);
        // A connection sends again what is lost.
        let again = if lost { RETRANSMISSION } else { 0 };
        for _ in 0..copies {
            self.sent += 1;
            let delay = again + below(&mut self.random, 2 * self.weather.delay + 1);
            self.mail.insert((self.now + delay, self.sent), mail());
        }
    }

    pub(crate) fn drain(&mut self, node: usize) {
        while let Some(effect) = self.nodes[node].shard.poll_effect() {
            match effect {
                Effect::Ask { .. } | Effect::Answer { .. } => panic!("nobody told it of peers to ask"),
                Effect::Call(call) => {
                    self.calls += 1;
                    self.post(|| Mail::ToStore(node, Call::clone(&call)));
                }
                Effect::Reply { ticket, decision } => {
                    assert!(self.nodes[node].parked.remove(&ticket), "answered twice, or never asked");
                    self.answered(node, decision);
                }
            }
        }
    }

    fn answered(&mut self, node: usize, decision: Decision) {
        assert_eq!(decision.slot.is_some(), decision.verdict == Verdict::Allow && decision.reason == Reason::Ok);
        let ends = self.now + self.rule.limits[0].period.0;
        if let Some(slot) = decision.slot {
            assert!(self.nodes[node].held.insert(slot, ends).is_none(), "an id is given once");
        }
        self.nodes[node].answers.push_back(decision);
    }

    /// Asks for a slot; the decision, if there is one at once.
    pub(crate) fn check(&mut self, node: usize) -> Option<Decision> {
        self.check_key(node, b"k")
    }

    fn check_key(&mut self, node: usize, key: &[u8]) -> Option<Decision> {
        let (rule, digest) = (self.rule.clone(), Digest::of("flight", key));
        let request = Request { rule: &rule, digest, key, cost: 1, peek: false };
        match self.nodes[node].shard.check(Instant(self.now), request) {
            Outcome::Decided(decision) => self.answered(node, decision),
            Outcome::Parked(ticket) => drop(self.nodes[node].parked.insert(ticket)),
        }
        self.drain(node);
        self.run(self.now);
        self.nodes[node].answers.pop_front()
    }

    pub(crate) fn allowed(&mut self, node: usize) -> bool {
        self.check(node).expect("an answer at once").verdict == Verdict::Allow
    }

    pub(crate) fn release(&mut self, node: usize, slot: NonZeroU64) {
        let is_held = self.nodes[node].held.remove(&slot).is_some_and(|ends| ends > self.now);
        let released = self.nodes[node].shard.release(Instant(self.now), Digest::of("flight", b"k"), slot);
        assert_eq!(released, is_held);
        self.drain(node);
        self.run(self.now);
    }

    pub(crate) fn release_one(&mut self, node: usize) {
        let slot = *self.nodes[node].held.keys().next().expect("a slot");
        self.release(node, slot);
    }

    /// Everything that happens until then.
    pub(crate) fn run(&mut self, until: u64) {
        loop {
            let timer = self
                .nodes
                .iter()
                .enumerate()
                .filter_map(|(index, node)| node.shard.poll_timeout().map(|at| (at.0.max(self.now), index)));
            let timer = timer.min().filter(|(at, _)| *at <= until);
            let mail = self.mail.keys().next().copied().filter(|(at, _)| *at <= until);
            match (timer, mail) {
                (None, None) => break,
                (Some((at, node)), mail) if mail.is_none_or(|(mail, _)| at < mail) => {
                    self.now = at;
                    self.nodes[node].shard.handle_timeout(Instant(at));
                    self.drain(node);
                }
                (_, Some(key)) => {
                    self.now = key.0;
                    let mail = self.mail.remove(&key).expect("it is there");
                    self.deliver(mail);
                }
                (Some(_), None) => unreachable!("the arm above takes it"),
            }
        }
        self.now = until;
    }

    pub(crate) fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::ToStore(node, call) if self.nodes[node].is_cut => {
                let lost = StoreError::Away { since: Instant(self.now) };
                self.post(|| Mail::ToNode(node, call.clone(), Err(lost.clone())));
            }
            Mail::ToStore(node, call) => {
                let name = format!("node-{node}");
                let outcome = self.store.call(Timestamp(EPOCH + self.now), &name, &call);
                self.post(|| Mail::ToNode(node, call.clone(), outcome.clone()));
            }
            Mail::ToNode(node, call, outcome) => {
                self.nodes[node].shard.handle_outcome(Instant(self.now), &call, outcome);
                self.drain(node);
            }
        }
    }

    pub(crate) fn pass(&mut self, span: u64) {
        self.run(self.now + span);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.nodes.iter().flat_map(|node| node.held.values()).filter(|ends| **ends > self.now).count()
    }
}

#[test]
fn no_more_than_the_limit_are_in_flight_over_all_nodes() {
    let mut world = World::new("5/30s concurrent", 3, 1, FAIR);
    let allowed = (0..30).filter(|index| world.allowed(index % 3)).count();
    assert_eq!((allowed, world.in_flight()), (5, 5));
}

#[test]
fn a_released_slot_is_there_again_here_at_once_and_elsewhere_soon() {
    let mut world = World::new("1/30s concurrent", 2, 1, FAIR);
    assert!(world.allowed(0) && !world.allowed(0) && !world.allowed(1));
    world.release_one(0);
    assert!(world.allowed(0), "it needs nobody's leave");
    world.release_one(0);
    world.pass(200_000);
    assert!(world.allowed(1));
}

#[test]
fn whoever_forgets_to_release_has_it_for_the_period() {
    let mut world = World::new("1/2s concurrent", 2, 1, FAIR);
    assert!(world.allowed(0));
    world.pass(2 * SECOND - 1);
    assert!(!world.allowed(0));
    world.pass(1);
    assert!(world.allowed(0));
}

#[test]
fn whoever_waits_as_told_is_admitted() {
    for node in [0, 1] {
        let mut world = World::new("2/3s concurrent", 2, 7, FAIR);
        assert!(world.allowed(0));
        world.pass(100_000);
        assert!(world.allowed(0));
        world.pass(100_000);
        let denied = world.check(node).expect("decided");
        assert_eq!((denied.verdict, denied.reason, denied.remaining), (Verdict::Deny, Reason::Rate, 0));
        let wait = denied.retry_after.expect("it can pass");
        if node == 0 {
            assert_eq!(wait, Micros(2_800_000), "its own first slot ends then");
        }
        world.pass(wait.0);
        assert!(world.allowed(node), "node {node}");
    }
}

#[test]
fn what_a_node_that_died_had_is_there_again_after_its_lease() {
    let mut world = World::new("4/1h concurrent", 2, 1, FAIR);
    assert!((0..4).all(|_| world.allowed(0)));
    world.nodes[0].shard = World::new("1/1s concurrent", 1, 9, FAIR).nodes.remove(0).shard;
    world.nodes[0].held.clear();
    world.pass(9 * SECOND);
    assert!(!world.allowed(1));
    world.pass(SECOND + 100_000);
    assert!(world.allowed(1));
}

#[test]
fn slots_stay_a_nodes_as_long_as_it_lives() {
    let mut world = World::new("4/1h concurrent", 2, 1, FAIR);
    assert!((0..4).all(|_| world.allowed(0)));
    for _ in 0..100 {
        world.pass(SECOND);
        assert!(!world.allowed(1));
    }
    assert_eq!(world.in_flight(), 4);
}

#[test]
fn most_checks_ask_nobody() {
    let mut world = World::new("100/30s concurrent", 2, 3, FAIR);
    for _ in 0..20 {
        assert!(world.allowed(0));
    }
    world.pass(SECOND);
    let before = world.calls;
    for _ in 0..1_000 {
        world.release_one(0);
        assert!(world.allowed(0));
        world.pass(1_000);
    }
    assert!(world.calls - before <= 3, "{} calls", world.calls - before);
}

#[test]
fn a_node_without_the_store_keeps_what_it_has_and_then_its_share() {
    let mut world = World::new("20/1h concurrent", 2, 3, FAIR);
    assert!((0..4).all(|_| world.allowed(0)) && world.allowed(1));
    world.pass(4 * SECOND);
    world.nodes[0].is_cut = true;
    let before = world.calls;
    world.pass(30 * SECOND);
    assert!(world.calls - before < 140, "four times a second, and node 1: {}", world.calls - before);
    let last = std::iter::repeat_with(|| world.check(0).expect("decided")).find(|told| told.verdict == Verdict::Deny);
    assert_eq!(last.map(|told| (told.reason, told.source)), Some((Reason::Share, Source::Share)));
    assert_eq!(world.nodes[0].held.len(), 9, "95 % of 20, of two nodes");
    world.nodes[0].is_cut = false;
    world.pass(2 * SECOND);
    let mut others = 0;
    for _ in 0..2 {
        while world.allowed(1) {
            others += 1;
        }
        world.pass(4 * SECOND);
    }
    assert_eq!((others, world.in_flight()), (10, 20), "it tells what it gave out meanwhile");
}

/// Slots are released and taken again all the time, so that no node ever says that it has fewer.
#[test]
fn what_a_share_added_ends_when_the_store_is_back_however_busy_the_nodes_are() {
    let mut world = World::new("10/1h concurrent", 2, 3, FAIR);
    assert!((0..10).all(|_| world.allowed(0)) && !world.allowed(1));
    world.nodes[1].is_cut = true;
    world.pass(100_000);
    while world.allowed(1) {}
    assert_eq!(world.in_flight(), 14, "95 % of 10, of two nodes, beside what the other was lent");
    world.nodes[1].is_cut = false;
    world.pass(4 * SECOND);
    for _ in 0..40 {
        for node in [0, 1] {
            if !world.nodes[node].held.is_empty() {
                world.release_one(node);
            }
            while world.allowed(node) {}
        }
        world.pass(50_000);
    }
    assert_eq!(world.in_flight(), 10);
}

/// While the store is away, a policy that allows gives each node more than the limit has. The last to report hears that the others have
/// all of it, so it may give none of its own. The store counts them all the same until the node hands them back.
#[test]
fn what_a_policy_gave_beyond_the_limit_goes_back_when_it_ends() {
    let mut world = World::new("10/2s concurrent", 2, 3, FAIR);
    Arc::get_mut(&mut world.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Allow;
    for node in [0, 1] {
        world.nodes[node].is_cut = true;
        world.check(node);
        world.pass(100_000);
        assert!((0..30).all(|_| world.allowed(node)));
    }
    for node in [0, 1] {
        world.nodes[node].is_cut = false;
        world.pass(SECOND / 2);
    }
    world.pass(3 * SECOND);
    assert_eq!(world.in_flight(), 0, "their time is over");
    assert!((0..10).all(|_| world.allowed(0)), "all of the limit");
}

#[test]
fn on_store_loss_says_what_happens() {
    for (choice, verdict, reason) in
        [(OnStoreLoss::Allow, Verdict::Allow, Reason::Ok), (OnStoreLoss::Deny, Verdict::Deny, Reason::Store)]
    {
        let mut world = World::new("2/30s concurrent", 1, 3, FAIR);
        Arc::get_mut(&mut world.rule).expect("nobody else has it").on_store_loss = choice;
        world.nodes[0].is_cut = true;
        let told: Vec<_> = (0..3).map(|_| world.check(0).expect("decided")).collect();
        assert!(told.iter().all(|told| (told.verdict, told.reason) == (verdict, reason)), "{told:?}");
    }
}

/// A key of which nothing was asked of the store since that was lost knows nothing of the store of now. Its next check was denied by the
/// share, however long the store had been back, because only a check asks for it.
#[test]
fn an_old_loss_decides_no_check() {
    for (halves, wanted) in [(2, (Verdict::Deny, Source::Share)), (3, (Verdict::Allow, Source::Store))] {
        let mut world = World::new("1/30s concurrent", 1, 3, FAIR);
        world.nodes[0].is_cut = true;
        let lost = world.check(0).expect("decided");
        assert_eq!((lost.verdict, lost.reason, lost.source), (Verdict::Deny, Reason::Share, Source::Share));
        world.nodes[0].is_cut = false;
        for _ in 0..halves {
            world.pass(SECOND / 2);
            // What costs more than there ever is needs no store, and keeps the key.
            let (rule, digest) = (world.rule.clone(), Digest::of("flight", b"k"));
            let request = Request { rule: &rule, digest, key: b"k", cost: 2, peek: false };
            let told = world.nodes[0].shard.check(Instant(world.now), request);
            assert!(matches!(told, Outcome::Decided(told) if told.reason == Reason::Cost));
        }
        let told = world.check(0).expect("decided");
        assert_eq!((told.verdict, told.source), wanted, "after {halves} half seconds");
    }
}

#[test]
fn leaving_hands_back_what_is_not_in_use() {
    let mut world = World::new("10/1h concurrent", 2, 3, FAIR);
    assert!((0..6).all(|_| world.allowed(0)));
    world.release_one(0);
    world.release_one(0);
    world.nodes[0].shard.handle_drain(Instant(world.now));
    world.drain(0);
    world.run(world.now);
    let mut others = 0;
    while world.allowed(1) {
        others += 1;
    }
    assert_eq!(others, 6);
}

#[test]
fn a_key_that_makes_room_for_another_hands_back_what_it_has() {
    let mut world = World::new("3/1h concurrent", 2, 1, FAIR);
    let settings = Settings { max_keys: 1, timeout: Micros(50_000), lease_ahead: true };
    world.nodes[0].shard = Shard::new(settings, 9, EPOCH, 1, (Instant(0), Timestamp(EPOCH)));
    assert!(world.allowed(0));
    world.release_one(0);
    assert_eq!(world.check_key(0, b"another").map(|decision| decision.verdict), Some(Verdict::Allow));
    assert!((0..3).all(|_| world.allowed(1)), "nobody uses one, and the node that had some has no room for the key");
}

#[test]
fn a_lowered_limit_is_obeyed_and_a_raised_one_at_once() {
    let mut world = World::new("4/1h concurrent", 1, 3, FAIR);
    assert!((0..3).all(|_| world.allowed(0)));
    world.rule = Arc::new(Rule::of("flight", &[Limit::parse("2/1h concurrent").unwrap()]));
    assert!(!world.allowed(0));
    world.release_one(0);
    assert!(!world.allowed(0), "two are in flight yet");
    world.rule = Arc::new(Rule::of("flight", &[Limit::parse("5/1h concurrent").unwrap()]));
    let allowed = (0..5).filter(|_| world.allowed(0)).count();
    assert_eq!(allowed, 3);
}

#[test]
fn the_bound_holds_in_any_weather_and_slots_come_back() {
    for seed in 0..60 {
        let weather = Weather { delay: 300 + seed % 7 * 900, loss: seed % 4 * 40, repeats: seed % 3 * 60 };
        let limit = 1 + seed % 13;
        let mut world = World::new(&format!("{limit}/3s concurrent"), 4, seed, weather);
        // A share would come on top of what others have.
        Arc::get_mut(&mut world.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Deny;
        let mut most = 0;
        for _ in 0..2_000 {
            let node = below(&mut world.random, 4) as usize;
            let slots: Vec<_> = world.nodes[node].held.keys().copied().collect();
            if below(&mut world.random, 2) == 0 || slots.is_empty() {
                world.check(node);
            } else {
                let slot = slots[below(&mut world.random, slots.len() as u64) as usize];
                world.release(node, slot);
            }
            let step = below(&mut world.random, 4_000);
            world.pass(step);
            world.nodes.iter_mut().for_each(|node| node.answers.clear());
            most = most.max(world.in_flight());
            assert!(world.in_flight() as u64 <= limit, "seed {seed}: {} of {limit}", world.in_flight());
        }
        assert_eq!(most as u64, limit, "seed {seed}: all of it is used");
        // Everything ends, and all of it is there for one.
        world.weather = FAIR;
        world.pass(15 * SECOND);
        world.nodes.iter_mut().for_each(|node| node.answers.clear());
        assert!(world.nodes.iter().all(|node| node.parked.is_empty()), "seed {seed}: everybody is answered");
        let allowed = (0..limit + 3).filter(|_| world.allowed(2)).count();
        assert_eq!(allowed as u64, limit, "seed {seed}");
    }
}

#[test]
fn a_call_that_was_overtaken_changes_nothing() {
    let mut world = World::new("10/1h concurrent", 1, 3, FAIR);
    assert!(world.allowed(0));
    let digest = Digest::of("flight", b"k");
    let occupy = |id: u64, used: u64| Call {
        id,
        digest,
        rule: world.rule.clone(),
        op: Op::Occupy(Occupy { used, need: 0, want: used, lease: Micros(10 * SECOND) }),
        sent_at: Instant(0),
    };
    let (later, earlier) = (occupy(EPOCH + 900, 7), occupy(EPOCH + 800, 1));
    let now = Timestamp(EPOCH + world.now);
    assert_eq!(world.store.call(now, "other", &later).unwrap().granted, 7);
    let answer = world.store.call(now, "other", &earlier).unwrap();
    assert!(answer.outdated && answer.granted == 0);
    let again = world.store.call(now, "other", &later).unwrap();
    assert!(again.replayed && again.granted == 7);
}

#[test]
fn a_node_that_is_cut_off_gives_out_nothing_after_its_lease() {
    let mut world = World::new("10/1h concurrent", 2, 3, FAIR);
    Arc::get_mut(&mut world.rule).expect("nobody else has it").on_store_loss = OnStoreLoss::Deny;
    assert!((0..4).all(|_| world.allowed(0)));
    world.nodes[0].is_cut = true;
    world.release_one(0);
    assert!(world.allowed(0), "what it was lent it has");
    world.pass(9 * SECOND);
    world.release_one(0);
    assert!(world.allowed(0), "to the end");
    world.pass(SECOND);
    world.release_one(0);
    assert!(!world.allowed(0), "others may have it by now");
}

#[test]
fn what_a_node_has_it_keeps_while_it_says_what_it_uses() {
    let mut world = World::new("10/1h concurrent", 1, 3, FAIR);
    let (digest, rule, now) = (Digest::of("flight", b"k"), world.rule.clone(), Timestamp(EPOCH));
    let mut id = EPOCH;
    let mut occupy = |node: &str, used: u64, need: u64, want: u64| {
        id += 1;
        let op = Op::Occupy(Occupy { used, need, want, lease: Micros(10 * SECOND) });
        let call = Call { id, digest, rule: rule.clone(), op, sent_at: Instant(0) };
        world.store.call(now, node, &call).unwrap().granted
    };
    assert_eq!((occupy("a", 0, 8, 8), occupy("b", 0, 5, 5)), (8, 2));
    assert_eq!(occupy("a", 2, 0, 8), 8, "it may have given them out since");
    assert_eq!((occupy("a", 2, 0, 3), occupy("b", 2, 7, 9)), (3, 7));
}

#[test]
fn an_unknown_outcome_is_asked_again_under_the_same_id() {
    let mut world = World::new("10/1h concurrent", 1, 3, FAIR);
    world.nodes[0].is_cut = true;
    let request = Request { rule: &world.rule, digest: Digest::of("flight", b"k"), key: b"k", cost: 1, peek: false };
    let shard = &mut world.nodes[0].shard;
    assert!(matches!(shard.check(Instant(0), request), Outcome::Parked(_)));
    let Some(Effect::Call(first)) = shard.poll_effect() else { panic!("the store is asked") };
    shard.handle_outcome(Instant(1_000), &first, Err(StoreError::Unknown));
    let Some(Effect::Call(second)) = shard.poll_effect() else { panic!("nobody is answered yet") };
    assert_eq!(first.id, second.id);
}
