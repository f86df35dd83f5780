//! The state of one server, shared by its monitor and its callers.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::address::Address;
use super::dialer::Dialer;
use super::gate::Gate;
use super::health::Health;
use super::link::Link;
use super::stats::StoreStats;
use crate::clock::Clock;
use crate::store::breaker::Breaker;

/// What all servers of a store share.
pub(crate) struct Shared {
    pub(crate) dialer: Dialer,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) cluster: bool,
    pub(crate) stats: StoreStats,
    /// Notified when a server fails, because the slot map may be out of date.
    pub(crate) map_stale: Notify,
    /// The options allow that grants are confirmed by replicas.
    pub(crate) confirming: bool,
    /// Grants are confirmed wherever a replica is connected. Under `Confirm::Auto` this becomes true with the first
    /// replica that is seen.
    pub(crate) confirm: AtomicBool,
}

/// The state of one server, shared by its monitor and its callers.
pub(super) struct Inner {
    pub(super) address: Address,
    pub(super) shared: Arc<Shared>,
    pub(super) breaker: Mutex<Breaker>,
    pub(super) link: Mutex<Option<Arc<Link>>>,
    pub(super) gate: Arc<Gate>,
    pub(super) health: Mutex<Health>,
    pub(super) problem: Mutex<Option<String>>,
    /// A replica was connected at the last check, and has confirmed in time since.
    pub(super) has_replica: AtomicBool,
    pub(super) wake: Notify,
    pub(super) connected: watch::Sender<bool>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks, and the value would be consistent even if it did.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
