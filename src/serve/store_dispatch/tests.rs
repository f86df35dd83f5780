//! Calls and answers that gather in a turn are handed over at its end, or when there are many.

use std::sync::atomic::AtomicUsize;
use std::task::{Poll, Wake};

use super::*;
use crate::clock::{self, Clock};
use crate::core::key::DigestKey;
use crate::core::policy::{Plan, PolicySet, PolicySpec};
use crate::core::shard::{Request, Settings};
use crate::serve::ask::Ask;
use crate::serve::mailbox::Mailbox;
use crate::store::memory::MemoryStore;

#[derive(Default)]
struct Knocks(AtomicUsize);

impl Wake for Knocks {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A node with a turnstile, one client, and the buffer of its thread.
struct Scene {
    node: Arc<Node>,
    calls: Arc<Turnstile>,
    policies: PolicySet,
    client: Arc<Mailbox>,
    out: Outgoing,
}

impl Scene {
    fn new() -> Self {
        let spec = PolicySpec { limits: vec!["1000/1d fixed".into()], ..PolicySpec::default() };
        let calls = Arc::<Turnstile>::default();
        let settings = Settings { max_keys: 1_000, timeout: Micros::from_secs(60), lease_ahead: true };
        let node = Arc::new(Node::new(settings, DigestKey::default(), Clock::start(), Some(calls.clone())));
        let policies = PolicySet::compile(&[("api".to_owned(), spec)].into()).expect("a policy");
        Self { node, calls, policies, client: Arc::default(), out: Outgoing::default() }
    }

    /// A check of a key that nobody has asked for yet.
    fn check(&mut self, key: usize) {
        let (name, now) = (key.to_string(), self.node.clock.now());
        let Plan::Limited(rule) = self.policies.get("api").expect("the policy").plan(name.as_bytes()) else {
            panic!("no limit")
        };
        let digest = Digest::of("api", name.as_bytes());
        let request = Request { rule, digest, key: name.as_bytes(), cost: 1, peek: false };
        let waiter = (&self.client, key as u64);
        let decision = self.node.ask(now, Ask::Check(now + Micros::from_secs(60)), request, waiter, &mut self.out);
        assert!(decision.is_none(), "it waits for the store: {decision:?}");
        self.node.flush(&mut self.out);
    }

    fn answers(&self) -> usize {
        let mut answers = Vec::new();
        self.client.take(&mut answers);
        answers.len()
    }
}

#[test]
fn a_thread_tells_of_its_calls_at_the_end_of_its_turn_and_of_many_before_it() {
    let mut scene = Scene::new();
    let (knocks, bell) = (Arc::<Knocks>::default(), Arc::<Notify>::default());
    scene.out.ring_at_the_end(bell);
    let (calls, mut gathered) = (scene.calls.clone(), Vec::new());
    let mut passes = Box::pin(calls.pass(&mut gathered, usize::MAX));
    assert!(passes.as_mut().poll(&mut Context::from_waker(&knocks.clone().into())).is_pending());
    let heard = || knocks.0.load(Ordering::SeqCst);
    (1..node::WAKE_AT).for_each(|key| scene.check(key));
    assert_eq!(heard(), 0, "the turn is not over");
    scene.check(node::WAKE_AT);
    assert_eq!(heard(), 1, "so many wait no longer");
    assert_eq!(passes.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
    drop(passes);
    gathered.clear();
    let mut passes = Box::pin(calls.pass(&mut gathered, usize::MAX));
    assert!(passes.as_mut().poll(&mut Context::from_waker(&knocks.clone().into())).is_pending());
    scene.check(100);
    assert_eq!(heard(), 1);
    scene.node.ring(&mut scene.out);
    assert_eq!(heard(), 2, "the turn is over");
}

#[test]
fn clients_learn_of_the_answers_of_a_turn_at_its_end_and_of_many_before_it() {
    let mut scene = Scene::new();
    let home =
        Home { node: scene.node.clone(), out: AtomicUsize::new(0), gathered: Mutex::default(), ended: Notify::new() };
    let mut store = MemoryStore::new(1_000, 7);
    let keys = node::WAKE_AT + 1;
    (0..keys).for_each(|key| scene.check(key));
    let mut gathered = Vec::new();
    assert!(
        Box::pin(scene.calls.pass(&mut gathered, usize::MAX))
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
    );
    assert_eq!(gathered.len(), keys);
    for (place, (asker, call)) in gathered.into_iter().enumerate() {
        let outcome = store.call(clock::wall(), "test", &call);
        home.handle_outcome(asker, call, outcome);
        let delivered = if place + 1 == node::WAKE_AT { node::WAKE_AT } else { 0 };
        assert_eq!(scene.answers(), delivered, "after {} answers", place + 1);
    }
    home.deliver();
    assert_eq!(scene.answers(), 1);
}
