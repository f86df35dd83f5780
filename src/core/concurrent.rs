//! The keys of concurrent limits in one shard.
//!
//! It finds the key, releases permits that were held for too long, and makes sure that each key is looked at when
//! something is due. What happens to one key is in `concurrent/key.rs`. Part of `shard.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use self::key::ConcurrentKey;
use super::call::{Call, Grant, StoreError};
use super::context::Context;
use super::decision::Decision;
use super::key::Digest;
use super::page::Place;
use super::request::{KeyInfo, Outcome, Request};
use super::time::{Due, Instant};

mod key;

/// All keys of concurrent limits in a shard.
#[derive(Debug, Default)]
pub(super) struct Concurrent {
    keys: BTreeMap<u128, ConcurrentKey>,
    timers: BTreeSet<(Due, u128)>,
}

impl Concurrent {
    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is a key with this digest.
    pub(super) fn knows(&self, digest: Digest) -> bool {
        self.keys.contains_key(&digest.0)
    }

    /// Forgets a key of which clients hold no permits, to make room, and returns what it has: otherwise nobody could use
    /// that before the node's lease ends.
    pub(super) fn forget_one(&mut self, cx: &mut Context, now: Instant) -> Option<()> {
        let (digest, key) = self.keys.iter_mut().find(|(_, key)| key.is_unused())?;
        key.hand_back(cx, now);
        let digest = *digest;
        self.keys.remove(&digest);
        Some(())
    }

    /// Keys whose store server is away.
    pub(super) fn degraded(&self) -> u64 {
        self.keys.values().filter(|key| key.is_away()).count() as u64
    }

    /// When something is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.first().and_then(|(at, _)| at.time())
    }

    /// Decides, or parks the check until the store has answered, but at most until `deadline`.
    pub(super) fn check(
        &mut self,
        cx: &mut Context,
        now: Instant,
        deadline: Instant,
        request: &Request<'_>,
    ) -> Outcome {
        let key = self.keys.entry(request.digest.0).or_insert_with(|| ConcurrentKey::new(cx, now, request));
        key.adopt(request.rule);
        key.permits.expire(now);
        let outcome = key.check(cx, now, deadline, request);
        let at = key.rest(now);
        self.set_timer(request.digest.0, at);
        outcome
    }

    /// The decision by what is known here.
    pub(super) fn peek_local(&self, cx: &Context, now: Instant, request: &Request<'_>) -> Option<Decision> {
        let key = self.keys.get(&request.digest.0).filter(|key| key.rule == *request.rule)?;
        Some(key.peeked(cx, now, request.cost))
    }

    /// Releases a permit; false when there is no such permit here.
    pub(super) fn release(&mut self, cx: &mut Context, now: Instant, digest: Digest, id: NonZeroU64) -> bool {
        let Some(key) = self.keys.get_mut(&digest.0) else { return false };
        key.permits.expire(now);
        let released = key.release(cx, now, id);
        if released {
            let at = key.rest(now);
            self.set_timer(digest.0, at);
        }
        released
    }

    /// Takes the outcome of a call.
    pub(super) fn handle_outcome(
        &mut self,
        cx: &mut Context,
        now: Instant,
        call: &Call,
        outcome: Result<Grant, StoreError>,
    ) {
        let Some(key) = self.keys.get_mut(&call.digest.0) else { return };
        key.permits.expire(now);
        key.handle_outcome(cx, now, call, outcome);
        let at = key.rest(now);
        self.set_timer(call.digest.0, at);
    }

    /// Handles what is due.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context, now: Instant) {
        while let Some(&(at, digest)) = self.timers.first().filter(|(at, _)| at.has_come(now)) {
            self.timers.remove(&(at, digest));
            let Some(key) = self.keys.get_mut(&digest).filter(|key| key.wake == at) else { continue };
            key.wake = Due::NEVER;
            key.permits.expire(now);
            key.handle_timer(cx, now);
            if key.is_done(now) {
                self.keys.remove(&digest);
                continue;
            }
            let at = key.rest(now);
            self.set_timer(digest, at);
        }
    }

    /// Returns permits that are not in use, because the node leaves.
    pub(super) fn handle_drain(&mut self, cx: &mut Context, now: Instant) {
        for key in self.keys.values_mut() {
            key.hand_back(cx, now);
        }
    }

    /// The keys from a digest on, for listings.
    pub(super) fn keys(&self, cx: &Context, now: Instant, from: u128) -> impl Iterator<Item = (Place, KeyInfo)> {
        self.keys.range(from..).map(move |(digest, key)| (Place::behind(*digest), key.listed(cx, now)))
    }

    fn set_timer(&mut self, digest: u128, at: Due) {
        let Some(key) = self.keys.get_mut(&digest) else { return };
        if at != key.wake {
            self.timers.remove(&(key.wake, digest));
            key.wake = at;
            self.timers.insert((at, digest));
        }
    }
}
