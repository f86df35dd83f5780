//! Dispatches calls to the store: takes them from the turnstile, sends them, and delivers their outcomes to the node.
//!
//! It runs where the store's connections do, so that a slow store never delays a check, and a call wakes one thread on its way. It
//! bounds the calls in flight; beyond the bound a call fails at once as busy, which does not count as an outage. For a store that
//! carries calls without a task each, none is created here either.
//!
//! The outcomes of one turn of the runtime are delivered together at its end. Waking a data thread costs more than
//! deciding a check; and if it shares a core with this thread, it would run after the first answer, and the other
//! answers would wait for its next turn. Knows nothing of what the calls mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::unconstrained;

use super::node::{self, Node, Outgoing};
use super::turnstile::Turnstile;
use super::vital::{Pulse, Vital, vital};
use crate::core::call::{Call, Grant, StoreError};
use crate::core::key::Digest;
use crate::core::time::Micros;
use crate::store::outcomes::Outcomes;
use crate::store::redis::Snapshot;
use crate::store::turns::Asker;

/// Most calls in flight, at all servers of the store together. It bounds memory; a store has tighter bounds for each
/// server.
pub const MAX_IN_FLIGHT: usize = 16_384;

/// When a call that was refused may try again: about as many calls will have ended by then.
const RELIEF: Micros = Micros::from_millis(250);

/// A call that has waited here for this part of a check's longest wait counts as late: the node has more to do than
/// it can.
const LATE: u64 = 4;

/// A store outside of this process.
pub trait RemoteStore: Send + Sync + 'static {
    /// Sends one call in the turn of `asker`, and waits for its outcome, however late that comes while its connection
    /// lives.
    fn call<'a>(
        &'a self,
        asker: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>>;

    /// The same without waiting; `outcomes` learns how it ended. The default runs a task for each call.
    fn send(self: Arc<Self>, asker: Asker, call: Box<Call>, outcomes: Arc<dyn Outcomes>) {
        // Unconstrained, because after some number of calls tokio's cooperative budget would keep the rest from being
        // sent in this turn.
        let mut answered = Box::pin(unconstrained(async move {
            let outcome = self.call(asker, &call).await;
            outcomes.handle_outcome(asker, call, outcome);
        }));
        // Polled once here, so that calls are sent in the order in which they came. If the call waits, the new task
        // polls it again and registers its own waker.
        if answered.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(vital("a call to the store", answered));
        }
    }

    /// Whether calls wait here until they may go to the store.
    fn is_late(&self) -> bool {
        false
    }

    /// `asker` waits for a call about a key. If the call still waits here, it leaves in the turns of that asker, too.
    fn hurry(&self, asker: Asker, digest: Digest) {
        let _ = (asker, digest);
    }

    /// The runtime of its connections. Calls and outcomes are dispatched on it, so that no other thread needs to be
    /// woken.
    fn runtime(&self) -> Handle {
        Handle::current()
    }

    /// The counts of its client, if it has any.
    fn snapshot(&self) -> Option<Snapshot> {
        None
    }
}

/// The store that counts tokens.
#[derive(Clone)]
pub enum Backend {
    /// In this process, for this node alone.
    Memory,
    /// Outside of this process, for the whole fleet.
    Remote(Arc<dyn RemoteStore>),
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Memory) { "Memory" } else { "Remote" })
    }
}

/// Dispatches calls until the node is gone.
pub async fn run(node: Arc<Node>, calls: Arc<Turnstile>, store: Arc<dyn RemoteStore>, pulse: Pulse) {
    const GATHER: usize = 64;
    let home = Arc::new(Home {
        node: node.clone(),
        out: AtomicUsize::new(0),
        gathered: Mutex::default(),
        ended: Notify::new(),
    });
    let mut gathered = Vec::with_capacity(GATHER);
    let mut beats = Pulse::timer();
    loop {
        tokio::select! {
            _ = beats.tick() => pulse.beat(node.clock.now()),
            () = home.ended.notified() => home.deliver(),
            () = calls.pass(&mut gathered, GATHER) => {}
        }
        let begun = node.clock.now();
        for (asker, call) in gathered.drain(..) {
            if begun.since(call.sent_at) > Micros(node.timeout.0 / LATE) {
                node.crowd.handle_late(begun, call.sent_at);
            }
            if home.out.fetch_add(1, Ordering::AcqRel) < MAX_IN_FLIGHT {
                store.clone().send(asker, call, home.clone());
            } else {
                home.handle_outcome(asker, call, Err(StoreError::Busy { wait: RELIEF }));
            }
        }
        for (asker, digest) in calls.take_hurried(store.is_late()) {
            store.hurry(asker, digest);
        }
    }
}

/// Delivers outcomes to the node.
struct Home {
    node: Arc<Node>,
    /// Calls in flight.
    out: AtomicUsize,
    /// The effects of the outcomes of this turn, and the notification to deliver them at the turn's end.
    gathered: Mutex<Outgoing>,
    ended: Notify,
}

impl Home {
    /// Delivers the effects that have gathered.
    fn deliver(&self) {
        let out = std::mem::take(&mut *self.lock());
        self.carry_on(out);
    }

    fn carry_on(&self, mut out: Outgoing) {
        self.node.flush(&mut out);
        // The buffers are used again.
        let mut gathered = self.lock();
        if gathered.is_empty() {
            *gathered = out;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outgoing> {
        // A panic in a shard does not damage the effects that were gathered before.
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outcomes for Home {
    fn handle_outcome(&self, asker: Asker, call: Box<Call>, outcome: Result<Grant, StoreError>) {
        let _watched = Vital::new("a call to the store");
        let node = &self.node;
        let now = node.clock.now();
        match outcome {
            Ok(_) => node.crowd.handle_answer(),
            Err(StoreError::Busy { .. }) => node.crowd.handle_late(now, call.sent_at),
            Err(_) => {}
        }
        let ready = {
            let mut out = self.lock();
            node.handle_outcome(now, asker, &call, outcome, &mut out);
            (out.replies() >= node::WAKE_AT).then(|| std::mem::take(&mut *out))
        };
        self.out.fetch_sub(1, Ordering::AcqRel);
        match ready {
            Some(out) => self.carry_on(out),
            None => self.ended.notify_one(),
        }
    }
}

#[cfg(test)]
mod tests;
