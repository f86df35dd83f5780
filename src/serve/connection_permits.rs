//! The permits of concurrent limits that were taken over one connection, and end with it.
//!
//! An answer may come after the connection has closed; the permit that it grants is then released at once. Called by
//! sessions, and by the tasks that answer for them.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::check_request::CheckResult;
use super::node::Outgoing;
use super::server_state::ServerState;
use crate::core::key::Digest;
use crate::core::time::Instant;

/// The error for an unknown permit.
pub const UNKNOWN: &str = "no such slot here: it was released, its time is over, or another node gave it";

/// Parses the id of a permit as decisions show it.
#[must_use]
pub fn parse(id: &[u8]) -> Option<NonZeroU64> {
    std::str::from_utf8(id).ok().and_then(|id| u64::from_str_radix(id, 16).ok()).and_then(NonZeroU64::new)
}

/// The permits, by the latest time at which they end; `None` once the connection has closed.
#[derive(Debug)]
pub struct ConnectionPermits(Mutex<Option<BTreeSet<(Instant, NonZeroU64, Digest)>>>);

impl Default for ConnectionPermits {
    fn default() -> Self {
        Self(Mutex::new(Some(BTreeSet::new())))
    }
}

impl ConnectionPermits {
    /// Remembers the permit in a decision about a key, if there is one.
    pub fn keep(&self, state: &ServerState, now: Instant, result: &CheckResult) {
        let (Some(permit), Some(rule)) = (result.decision.slot, &result.rule) else { return };
        if let Some(held) = &mut *self.lock() {
            while held.first().is_some_and(|(ends, ..)| *ends <= now) {
                held.pop_first();
            }
            held.insert((now + rule.limits[0].period, permit, result.digest));
            return;
        }
        release(state, [(result.digest, permit)]);
    }

    /// A permit was released.
    pub fn forget(&self, permit: NonZeroU64) {
        if let Some(held) = &mut *self.lock() {
            held.retain(|(_, known, _)| *known != permit);
        }
    }

    /// The connection has closed: releases all permits.
    pub fn end(&self, state: &ServerState) {
        let held = self.lock().take().unwrap_or_default();
        release(state, held.into_iter().map(|(_, permit, digest)| (digest, permit)));
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeSet<(Instant, NonZeroU64, Digest)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn release(state: &ServerState, permits: impl IntoIterator<Item = (Digest, NonZeroU64)>) {
    let (now, mut out) = (state.node.clock.now(), Outgoing::default());
    for (digest, permit) in permits {
        state.node.release(now, digest, permit, &mut out);
    }
    state.node.flush(&mut out);
}
