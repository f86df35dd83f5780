//! A queue of the calls that have left the shards and wait to be dispatched; askers take turns.
//!
//! However many calls one client causes, those of others pass between them. Filled from any thread, under the lock of
//! the call's shard; emptied by `store_dispatch`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::core::call::Call;
use crate::store::turns::{Asker, Turns};

/// Calls that wait to be dispatched.
#[derive(Debug, Default)]
pub struct Turnstile {
    calls: Mutex<Turns<(Asker, Box<Call>)>>,
    wakeup: Notify,
}

impl Turnstile {
    /// Adds a call. The caller must [`Self::ring`] afterwards, once for all calls that it has added.
    pub fn enter(&self, asker: Asker, call: Box<Call>) {
        self.lock().push(asker, call.digest.0, (asker, call));
    }

    /// Tells the dispatcher that calls were added.
    pub fn ring(&self) {
        self.wakeup.notify_one();
    }

    /// Waits for calls, and appends up to `most` of them. Dropping the future before it is ready takes none.
    pub async fn pass(&self, into: &mut Vec<(Asker, Box<Call>)>, most: usize) {
        loop {
            {
                let mut calls = self.lock();
                into.extend(std::iter::from_fn(|| calls.pop()).take(most));
            }
            if !into.is_empty() {
                return;
            }
            self.wakeup.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns<(Asker, Box<Call>)>> {
        // No code panics while it holds this lock, and the queue would be consistent even if it did.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
