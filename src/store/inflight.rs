//! Concurrent limits of the embedded store. This node has all permits, so no other node need be asked.
//!
//! Part of `embedded.rs`. Who holds a permit until when is decided in `core::permits`.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::answer::Resolution;
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::key::Digest;
use crate::core::page::{self, Place};
use crate::core::permits::{Permits, View};
use crate::core::policy::Rule;
use crate::core::shard::{KeyInfo, Request};
use crate::core::table::Full;
use crate::core::time::{Instant, Micros, Timestamp};

/// The permits that are held, by key. A key without a held permit is not kept.
#[derive(Debug)]
pub(super) struct InFlight {
    keys: BTreeMap<u128, Key>,
    max: usize,
    last_id: u64,
}

#[derive(Debug)]
struct Key {
    bytes: Box<[u8]>,
    rule: Arc<Rule>,
    permits: Permits,
}

impl InFlight {
    /// Starts empty; the ids of permits follow `first`.
    pub(super) fn new(max: usize, first: u64) -> Self {
        Self { keys: BTreeMap::new(), max, last_id: first }
    }

    /// Keys that have a held permit.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Decides a request for one permit.
    ///
    /// # Errors
    /// [`Full`] when too many other keys have held permits.
    pub(super) fn check(&mut self, now: Timestamp, request: &Request<'_>) -> Result<Decision, Full> {
        let digest = request.digest.0;
        if self.keys.len() >= self.max && !self.keys.contains_key(&digest) {
            self.keys.retain(|_, key| key.used(now) > 0);
        }
        let is_full = self.keys.len() >= self.max;
        let limit = request.rule.limits[0];
        let mut none = Permits::default();
        let permits = self.keys.get_mut(&digest).map_or(&mut none, |key| &mut key.permits);
        permits.expire(Instant(now.0));
        let (view, cost) = (Self::view(now, limit.count), request.cost);
        let resolution = if cost > limit.count {
            Resolution::deny(Reason::Cost, Source::Policy)
        } else if cost <= limit.count.saturating_sub(permits.used()) {
            Resolution::allow(Source::Store)
        } else {
            Resolution::deny(Reason::Rate, Source::Store)
        };
        let takes = resolution.verdict == Verdict::Allow && !request.peek && cost > 0;
        if !takes {
            return Ok(permits.decision(&limit, view, cost, resolution));
        }
        if is_full && !self.keys.contains_key(&digest) {
            return Err(Full);
        }
        self.last_id = self.last_id % (1 << 62) + 1;
        let id = NonZeroU64::new(self.last_id).unwrap_or(NonZeroU64::MIN);
        let fresh = || Key { bytes: page::name(request.key), rule: request.rule.clone(), permits: Permits::default() };
        let key = self.keys.entry(digest).or_insert_with(fresh);
        key.rule = request.rule.clone();
        key.permits.take(id, cost, Instant(now.0) + limit.period);
        Ok(Decision { slot: Some(id), ..key.permits.decision(&limit, view, cost, resolution) })
    }

    /// Releases a permit; false when there is no such permit.
    pub(super) fn release(&mut self, now: Timestamp, digest: Digest, id: NonZeroU64) -> bool {
        let Some(key) = self.keys.get_mut(&digest.0) else { return false };
        key.permits.expire(Instant(now.0));
        let released = key.permits.release(id);
        if key.permits.used() == 0 {
            self.keys.remove(&digest.0);
        }
        released
    }

    /// The keys from a digest on, for listings.
    pub(super) fn keys(&self, now: Timestamp, from: u128) -> impl Iterator<Item = (Place, KeyInfo)> {
        self.keys.range(from..).map(move |(digest, key)| {
            let limit = &key.rule.limits[0];
            let view = Self::view(now, limit.count);
            let decision = key.permits.decision(limit, view, 0, Resolution::allow(Source::Store));
            let (bytes, rule) = (Some(key.bytes.clone()), key.rule.clone());
            (Place::behind(*digest), KeyInfo { digest: Digest(*digest), key: bytes, rule, held: 0, decision })
        })
    }

    fn view(now: Timestamp, count: u64) -> View {
        View { now: Instant(now.0), clock: now, most: count, others: 0, slow: Micros::ZERO }
    }
}

impl Key {
    fn used(&mut self, now: Timestamp) -> u64 {
        self.permits.expire(Instant(now.0));
        self.permits.used()
    }
}
