//! The way to the store: calls that left the shards go out, their outcomes come back.
//!
//! Runs on the control runtime, so that a slow store never stands before a check. Bounds what is in
//! flight; beyond the bound a call fails at once, because the store is busy: that is no outage. Where a store
//! carries calls without a task each, none is made here either. Knows nothing of what the calls mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::task::unconstrained;

use super::node::{Node, Outgoing};
use super::turnstile::Turnstile;
use super::vital::{Pulse, Vital, vital};
use crate::core::call::{Call, Grant, StoreError};
use crate::core::time::Micros;
use crate::store::outcomes::Outcomes;
use crate::store::turns::Asker;

/// Most calls in flight. What is at a server, or waits for it, a store bounds more tightly itself; this is
/// for all of its servers together, and for memory.
pub const MAX_IN_FLIGHT: usize = 16_384;

/// After so long a call beyond the bound may try again: when about as many have ended.
const RELIEF: Micros = Micros::from_millis(250);

/// A call that has waited here for one of so many parts of the longest wait of a check is late: this node has more to
/// do than it can.
const LATE: u64 = 4;

/// A store that is somewhere else.
pub trait RemoteStore: Send + Sync + 'static {
    /// Sends one call in the turn of whoever asks, and waits for its outcome, however late that comes while its
    /// connection lives.
    fn call<'a>(
        &'a self,
        asker: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>>;

    /// The same without waiting: `outcomes` learn how it ended. A store that carries calls otherwise than in a task
    /// each says how.
    fn send(self: Arc<Self>, asker: Asker, call: Call, outcomes: Arc<dyn Outcomes>) {
        // Unconstrained: after so many calls the runtime would let no more of them begin in this turn.
        let mut answered = Box::pin(unconstrained(async move {
            let outcome = self.call(asker, &call).await;
            outcomes.handle_outcome(asker, call, outcome);
        }));
        // Begun here, so that calls go out in the order in which they came. When it waits, the task's first turn has it
        // woken.
        if answered.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(vital("a call to the store", answered));
        }
    }
}

/// Where tokens are counted.
#[derive(Clone)]
pub enum AnyStore {
    /// In this process, for this node alone.
    Memory,
    /// Elsewhere, for the whole fleet.
    Remote(Arc<dyn RemoteStore>),
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Memory) { "Memory" } else { "Remote" })
    }
}

/// Carries calls until the node is gone.
pub async fn run(node: Arc<Node>, calls: Arc<Turnstile>, store: Arc<dyn RemoteStore>, pulse: Pulse) {
    const GATHER: usize = 64;
    let home = Arc::new(Home { node: node.clone(), out: AtomicUsize::new(0), spare: Mutex::default() });
    let mut gathered = Vec::with_capacity(GATHER);
    let mut beats = Pulse::timer();
    loop {
        tokio::select! {
            _ = beats.tick() => pulse.beat(node.clock.now()),
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
    }
}

/// Where calls come back.
struct Home {
    node: Arc<Node>,
    /// Calls in flight.
    out: AtomicUsize,
    /// Used again.
    spare: Mutex<Outgoing>,
}

impl Outcomes for Home {
    fn handle_outcome(&self, asker: Asker, call: Call, outcome: Result<Grant, StoreError>) {
        let _watched = Vital::new("a call to the store");
        let node = &self.node;
        let now = node.clock.now();
        match outcome {
            Ok(_) => node.crowd.handle_answer(),
            Err(StoreError::Busy { .. }) => node.crowd.handle_late(now, call.sent_at),
            Err(_) => {}
        }
        let mut out = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        node.handle_outcome(now, asker, &call, outcome, &mut out);
        node.flush(&mut out);
        *self.spare.lock().unwrap_or_else(PoisonError::into_inner) = out;
        self.out.fetch_sub(1, Ordering::AcqRel);
    }
}
