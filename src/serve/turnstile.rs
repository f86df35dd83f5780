//! Where calls that left the shards wait for the refill room: those of each asker in turn.
//!
//! However many calls one client makes, those of others pass between them. Filled from any thread, under the lock
//! of the call's shard; emptied by the refill room.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::core::call::Call;
use crate::store::turns::{Asker, Turns};

/// Calls on their way to the refill room.
#[derive(Debug, Default)]
pub struct Turnstile {
    calls: Mutex<Turns<(Asker, Call)>>,
    bell: Notify,
}

impl Turnstile {
    /// A call comes. Whoever brings it must [`Self::ring`] afterwards, once for all that he brings.
    pub fn enter(&self, asker: Asker, call: Call) {
        self.lock().push(asker, call.digest.0, (asker, call));
    }

    /// Calls have come.
    pub fn ring(&self) {
        self.bell.notify_one();
    }

    /// Waits for calls, and appends up to `most` of them. What is not awaited to its end takes none.
    pub async fn pass(&self, into: &mut Vec<(Asker, Call)>, most: usize) {
        loop {
            {
                let mut calls = self.lock();
                into.extend(std::iter::from_fn(|| calls.pop()).take(most));
            }
            if !into.is_empty() {
                return;
            }
            self.bell.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Turns<(Asker, Call)>> {
        // Nothing panics while it is held, and if it did the lines would still be whole.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
