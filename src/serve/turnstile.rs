//! A queue of the calls that have left the shards and wait to be dispatched; askers take turns.
//!
//! However many calls one client causes, those of others pass between them. Filled from any thread, under the lock of
//! the call's shard; emptied by `store_dispatch`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::core::call::Call;
use crate::core::key::Digest;
use crate::store::turns::{Asker, Turns};

/// Calls that wait to be dispatched.
#[derive(Debug, Default)]
pub struct Turnstile {
    calls: Mutex<Turns<(Asker, Box<Call>)>>,
    /// Askers that wait for a call about a key which another asker caused.
    hurried: Mutex<Vec<(Asker, Digest)>>,
    /// Calls that were dispatched may still wait on this side of the store.
    is_late: AtomicBool,
    wakeup: Notify,
}

impl Turnstile {
    /// Adds a call. The caller must [`Self::ring`] afterwards, once for all calls that it has added.
    pub fn enter(&self, asker: Asker, call: Box<Call>) {
        self.lock().push(asker, call.digest.0, (asker, call));
    }

    /// `asker` waits for a call about a key that another asker caused. If the call waits, it leaves in the turns of
    /// whichever of them comes sooner. The caller must [`Self::ring`] afterwards, if this returns true.
    #[must_use]
    pub fn hurry(&self, asker: Asker, digest: Digest) -> bool {
        if !self.is_late.load(Ordering::Relaxed) {
            return false;
        }
        self.lock().hurry(asker, digest.0);
        lock(&self.hurried).push((asker, digest));
        true
    }

    /// Takes the hurried askers, whose calls may have been dispatched already. `is_late` says whether dispatched calls
    /// wait on this side of the store.
    pub fn take_hurried(&self, is_late: bool) -> Vec<(Asker, Digest)> {
        self.is_late.store(is_late, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.hurried))
    }

    /// Wakes the dispatcher because calls were added.
    pub fn ring(&self) {
        self.wakeup.notify_one();
    }

    /// Waits for calls, or for somebody who is in a hurry, and appends up to `most` calls. Dropping the future before it is
    /// ready takes none.
    pub async fn pass(&self, into: &mut Vec<(Asker, Box<Call>)>, most: usize) {
        loop {
            {
                let mut calls = self.lock();
                into.extend(std::iter::from_fn(|| calls.pop()).take(most));
            }
            if !into.is_empty() || !lock(&self.hurried).is_empty() {
                return;
            }
            self.wakeup.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns<(Asker, Box<Call>)>> {
        lock(&self.calls)
    }
}

fn lock<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds one of these locks, and the queue would be consistent even if it did.
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}
