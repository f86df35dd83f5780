//! A server as its keeper and its callers know it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::address::Address;
use super::dialer::Dialer;
use super::gate::Gate;
use super::health::Health;
use super::link::Link;
use super::tally::Tally;
use crate::clock::Clock;
use crate::store::breaker::Breaker;

/// What all servers of a store share.
pub(crate) struct Shared {
    pub(crate) dialer: Dialer,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) cluster: bool,
    pub(crate) tally: Tally,
    /// Woken when a server fails: the slot map may be out of date.
    pub(crate) alarm: Notify,
    /// Grants may have to be confirmed.
    pub(crate) confirming: bool,
    /// They have to be, now: wherever a replica is in touch.
    pub(crate) confirm: AtomicBool,
}

/// A server as its keeper and its callers know it.
pub(super) struct Inner {
    pub(super) address: Address,
    pub(super) shared: Arc<Shared>,
    pub(super) breaker: Mutex<Breaker>,
    pub(super) link: Mutex<Option<Arc<Link>>>,
    pub(super) gate: Arc<Gate>,
    pub(super) health: Mutex<Health>,
    pub(super) problem: Mutex<Option<String>>,
    /// A replica was in touch when last looked, and has not failed to confirm since.
    pub(super) has_replica: AtomicBool,
    pub(super) wake: Notify,
    pub(super) connected: watch::Sender<bool>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks, and if it did the value would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
