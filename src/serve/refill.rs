//! The way to the store: calls that left the shards go out, their outcomes come back.
//!
//! Runs on the control runtime, so that a slow store never stands before a check. Bounds what is in
//! flight; beyond the bound a call fails at once, because the store is busy: that is no outage. Knows
//! nothing of what the calls mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;
use tokio::task::unconstrained;

use super::node::{Node, Outgoing};
use super::turnstile::Turnstile;
use super::vital::{Pulse, vital};
use crate::core::call::{Call, Grant, StoreError};
use crate::core::time::Micros;
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
pub trait Remote: Send + Sync + 'static {
    /// Sends one call in the turn of whoever asks, and waits for its outcome, however late that comes while its
    /// connection lives.
    fn call<'a>(
        &'a self,
        asker: Asker,
        call: &'a Call,
    ) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>>;
}

/// Where tokens are counted.
#[derive(Clone)]
pub enum AnyStore {
    /// In this process, for this node alone.
    Memory,
    /// Elsewhere, for the whole fleet.
    Remote(Arc<dyn Remote>),
}

impl std::fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Memory) { "Memory" } else { "Remote" })
    }
}

/// Carries calls until the node is gone.
pub async fn run(node: Arc<Node>, calls: Arc<Turnstile>, store: Arc<dyn Remote>, pulse: Pulse) {
    const GATHER: usize = 64;
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
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
            let (node, store) = (node.clone(), store.clone());
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                settle(&node, asker, &call, Err(StoreError::Busy { wait: RELIEF }));
                continue;
            };
            // Unconstrained: after so many calls the runtime would let no more of them begin in this turn.
            let mut answered = Box::pin(unconstrained(async move {
                let outcome = store.call(asker, &call).await;
                settle(&node, asker, &call, outcome);
                drop(permit);
            }));
            // Begun here, so that calls go out in the order in which they came.
            let begun = std::future::poll_fn(|cx| Poll::Ready(answered.as_mut().poll(cx)));
            if begun.await.is_pending() {
                tokio::spawn(vital("a call to the store", answered));
            }
        }
    }
}

fn settle(node: &Node, asker: Asker, call: &Call, outcome: Result<Grant, StoreError>) {
    let (now, mut out) = (node.clock.now(), Outgoing::default());
    match outcome {
        Ok(_) => node.crowd.handle_answer(),
        Err(StoreError::Busy { .. }) => node.crowd.handle_late(now, call.sent_at),
        Err(_) => {}
    }
    node.handle_outcome(now, asker, call, outcome, &mut out);
    node.flush(&mut out);
}
