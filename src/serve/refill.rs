//! The way to the store: calls that left the shards go out, their outcomes come back.
//!
//! Runs on the control runtime, so that a slow store never stands before a check. Bounds what is in
//! flight; beyond the bound a call fails at once as if the store were away, and the core goes on as
//! it does then. Knows nothing of what the calls mean.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;

use super::node::{Node, Outgoing};
use crate::core::call::{Call, Grant, StoreError};

/// Most calls in flight.
pub const MAX_IN_FLIGHT: usize = 4_096;

/// A store that is somewhere else.
pub trait Remote: Send + Sync + 'static {
    /// Sends one call and waits for its outcome, within the store's own deadline.
    fn call<'a>(&'a self, call: &'a Call) -> Pin<Box<dyn Future<Output = Result<Grant, StoreError>> + Send + 'a>>;
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
pub async fn run(node: Arc<Node>, mut calls: UnboundedReceiver<Call>, store: Arc<dyn Remote>) {
    const GATHER: usize = 64;
    let permits = Arc::new(Semaphore::new(MAX_IN_FLIGHT));
    let mut gathered = Vec::with_capacity(GATHER);
    while calls.recv_many(&mut gathered, GATHER).await > 0 {
        for call in gathered.drain(..) {
            let (node, store) = (node.clone(), store.clone());
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                let now = node.clock.now();
                settle(&node, &call, Err(StoreError::Away { since: now }));
                continue;
            };
            let mut answered = Box::pin(async move {
                let outcome = store.call(&call).await;
                settle(&node, &call, outcome);
                drop(permit);
            });
            // Begun here, so that calls go out in the order in which they came.
            let begun = std::future::poll_fn(|cx| Poll::Ready(answered.as_mut().poll(cx)));
            if begun.await.is_pending() {
                tokio::spawn(answered);
            }
        }
    }
}

fn settle(node: &Node, call: &Call, outcome: Result<Grant, StoreError>) {
    let mut out = Outgoing::default();
    node.handle_outcome(node.clock.now(), call, outcome, &mut out);
    node.flush(&mut out);
}
