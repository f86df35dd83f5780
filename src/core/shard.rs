//! The state machine of one shard of the key space, with `check`, `handle_*` and `poll_*`.
//!
//! The invariant for drivers: after every call that takes `&mut self`, drain [`Shard::poll_effect`] until it is
//! empty. The shard finds keys, makes room for them and looks at them in time. What happens to one key is in
//! `leased/`, and in `concurrent/` for keys of concurrent limits.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::answer::{self, Resolution, Standing, overload};
use super::ask::{Answer, Refusal, Terms};
use super::call::{Call, Counter, Grant, OPEN, Op, StoreError};
use super::concurrent::Concurrent;
use super::context::Context;
use super::decision::{Decision, Source};
use super::fleet::FleetView;
use super::holds::Charge;
use super::key::Digest;
use super::leased::{self, LeasedKey};
use super::limit::MAX_LIMITS;
use super::mutant::{Mutant, on};
use super::owners::{Candidate, KeyOwner, OwnerName};
use super::page::Place;
pub use super::request::{AskOutcome, Effect, KeyInfo, Outcome, Request, Settings, Ticket};
use super::stats::{PolicyStats, ShardStats};
use super::table::Table;
use super::talkers::Rank;
use super::time::{Instant, Timestamp};
use super::usage::{self, PeerIndex, Report, Usage};

/// Keys that are looked at, at most, for one that may be forgotten. More keep a check longer in a shard whose keys are all in use; with
/// fewer, it is turned away though another key could go.
const LOOK_AT: u32 = 64;

/// One shard. It has no clock, no IO, no thread and no source of randomness.
#[derive(Debug)]
pub struct Shard {
    pub(super) table: Table<LeasedKey>,
    pub(super) cx: Context,
    pub(super) concurrent: Concurrent,
}

impl Shard {
    /// An empty shard. `seed` feeds its jitter and its table's secret; call ids grow from
    /// `first_id` in steps of `id_step`, so that the shards of a node never share one; `clock` is
    /// the wall clock at this moment, a first estimate of the store's.
    #[must_use]
    pub fn new(settings: Settings, seed: u64, first_id: u64, id_step: u64, clock: (Instant, Timestamp)) -> Self {
        let secret = u128::from(seed) << 64 | u128::from(seed.rotate_left(29) ^ 0x5bd1_e995_7b93_a1c7);
        let cx = Context::new(settings, seed, first_id, id_step, clock);
        Self { table: Table::new(settings.max_keys, secret), cx, concurrent: Concurrent::default() }
    }

    /// The same with a separate secret for the table, because clients can observe jitter, which depends on the seed.
    /// Call it while the shard is empty.
    #[must_use]
    pub fn with_secret(self, secret: u128) -> Self {
        Self { table: Table::new(self.cx.settings.max_keys, secret), ..self }
    }

    /// Decides, or parks the check until the store has answered, but at most for the store's timeout. Allocates
    /// nothing for a key that is known.
    pub fn check(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.check_by(now, now + self.cx.settings.timeout, request)
    }

    /// The same for a check that has waited before. It is parked until `deadline` at most, and not at all if that has
    /// passed.
    pub fn check_by(&mut self, now: Instant, deadline: Instant, request: Request<'_>) -> Outcome {
        if request.rule.is_concurrent() {
            if !self.concurrent.knows(request.digest) && self.make_room(now).is_none() {
                return Outcome::Decided(overload(request.rule, now, request.cost));
            }
            return self.concurrent.check(&mut self.cx, now, deadline, &request);
        }
        let Some((index, key, cx)) = self.key(now, &request) else {
            return Outcome::Decided(overload(request.rule, now, request.cost));
        };
        let outcome = leased::check(key, cx, now, deadline, &request);
        // A check that was decided from memory, without effects, does not change when the key must be looked at.
        if matches!(outcome, Outcome::Parked(_)) || self.cx.has_effects() {
            self.set_timer(now, index);
        }
        outcome
    }

    /// The decision by what is known here: nothing is charged, and the store is not asked.
    #[must_use]
    pub fn peek_local(&self, now: Instant, request: Request<'_>) -> Decision {
        let fresh = || {
            let (counters, now) = ([Counter::default(); MAX_LIMITS], self.cx.first_clock().latest(now));
            answer::decision(request.rule, &counters, now, request.cost, Resolution::allow(Source::Lease))
        };
        if request.rule.is_concurrent() {
            return self.concurrent.peek_local(&self.cx, now, &request).unwrap_or_else(fresh);
        }
        match self.table.find(request.digest.0).map(|index| &self.table[index]) {
            Some(key) if key.has_rule(request.rule) => key.peeked(now, request.cost, Source::Lease, self.cx.fleet),
            _ => fresh(),
        }
    }

    /// A check of this key will follow, so what it lacks is leased meanwhile.
    pub fn prefetch(&mut self, now: Instant, request: Request<'_>) {
        if request.rule.is_concurrent() {
            return;
        }
        if let Some((index, key, cx)) = self.key(now, &request) {
            leased::prefetch(key, cx, now, request.cost);
            self.set_timer(now, index);
        }
    }

    /// Takes back an admission whose request was denied by another key, unless a window of it has ended since. Returns an outcome if
    /// the store must be told, for which nobody needs to wait.
    pub fn rollback(&mut self, now: Instant, request: Request<'_>, decision: &Decision) -> Option<Outcome> {
        if let Some(permit) = decision.slot {
            self.release(now, request.digest, permit);
            return None;
        }
        let Some((index, key, cx)) = self.key(now, &request) else {
            // The key was forgotten meanwhile, and there is no room for it, as all others are in use. It sends what it has to, and is not
            // kept: should that be lost, nobody sends it again.
            let mut key = self.unkept(&request);
            leased::rollback(&mut key, &mut self.cx, now, request.cost, decision);
            return None;
        };
        let outcome = leased::rollback(key, cx, now, request.cost, decision);
        self.set_timer(now, index);
        outcome
    }

    /// Takes back a cost that was spent: in the lease as far as it was spent there, and the rest in the store.
    pub fn refund(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.ask(now, &request, |key, cx| leased::take_back(key, cx, now, request.cost, 0, OPEN))
    }

    /// Gives back `request.cost` of a charge, to the windows in which it was charged and that still count: first to
    /// what the share owes, then to the lease, and the rest to the store.
    pub fn give_back(&mut self, now: Instant, request: Request<'_>, charge: &Charge) -> Outcome {
        self.ask(now, &request, |key, cx| leased::give_back_charge(key, cx, now, request.cost, charge))
    }

    /// Releases a permit of a concurrent limit; false when there is no such permit here.
    pub fn release(&mut self, now: Instant, digest: Digest, permit: NonZeroU64) -> bool {
        self.concurrent.release(&mut self.cx, now, digest, permit)
    }

    /// Resets the key in the whole fleet.
    pub fn reset(&mut self, now: Instant, request: Request<'_>) -> Outcome {
        self.ask(now, &request, |key, cx| leased::reset(key, cx, now))
    }

    /// Takes the outcome of an `Effect::Call`.
    pub fn handle_outcome(&mut self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>) {
        if let Op::Occupy(_) = call.op {
            return self.concurrent.handle_outcome(&mut self.cx, now, call, outcome);
        }
        if let Some(index) = self.table.find(call.digest.0) {
            let is_news = leased::handle_outcome(&mut self.table[index], &mut self.cx, now, call, outcome);
            if is_news {
                self.cx.talkers.insert(index, self.table[index].report_rank());
            }
            self.set_timer(now, index);
        }
    }

    /// Handles what is due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.concurrent.handle_timeout(&mut self.cx, now);
        while let Some((at, index)) = self.cx.due(now) {
            let Some(key) = self.table.get_mut(index) else { continue };
            if !key.take_timer(at) {
                continue;
            }
            if leased::handle_timer(key, &mut self.cx, now) {
                self.set_timer(now, index);
            } else {
                self.forget(index);
            }
        }
    }

    /// Returns all tokens because the node leaves, and leases no more. Checks are still answered.
    pub fn handle_drain(&mut self, now: Instant) {
        self.cx.draining = true;
        self.concurrent.handle_drain(&mut self.cx, now);
        let all: Vec<u32> = self.table.iter().map(|(index, _)| index).collect();
        for index in all {
            leased::give_all_back(&mut self.table[index], &mut self.cx, now);
            self.set_timer(now, index);
        }
    }

    /// What the driver must do next.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.cx.next_effect()
    }

    /// When `handle_timeout` must be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.cx.next_timer().into_iter().chain(self.concurrent.next_timer()).min()
    }

    /// Counts of the shard.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        let keys = (self.table.len() + self.concurrent.len()) as u64;
        ShardStats { keys, degraded: self.cx.stats.degraded + self.concurrent.degraded(), ..self.cx.stats }
    }

    /// Counts per policy.
    pub fn policy_stats(&self) -> impl Iterator<Item = (&Arc<str>, &PolicyStats)> {
        self.cx.policies.iter().map(|(name, stats)| (name, stats))
    }

    /// Tokens that all keys hold.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.table.iter().map(|(_, key)| key.all_held()).sum()
    }

    /// Tokens of one key that can be spent now; `None` when the key is unknown.
    #[must_use]
    pub fn held_of(&self, now: Instant, digest: Digest) -> Option<u64> {
        self.table.find(digest.0).map(|index| self.table[index].usable(now))
    }

    /// The state of each limit of one key, as far as is known here; `None` when the key is unknown.
    #[must_use]
    pub fn standings(&self, now: Instant, digest: Digest) -> Option<Vec<Standing>> {
        self.table.find(digest.0).map(|index| self.table[index].standings(now))
    }

    /// Up to `most` keys of the shard from a position on, each with the position after it.
    #[must_use]
    pub fn keys(&self, now: Instant, from: Place, most: usize) -> Vec<(Place, KeyInfo)> {
        let concurrent = from.digest().into_iter().flat_map(|from| self.concurrent.keys(&self.cx, now, from));
        let leased = self.table.iter_from(u32::try_from(from.turn()).unwrap_or(u32::MAX));
        let leased = leased.map(|(index, key)| (Place::at(u64::from(index) + 1), key.listed(now)));
        concurrent.chain(leased).take(most).collect()
    }

    /// Uses this view of the fleet from now on.
    pub fn handle_fleet(&mut self, view: FleetView) {
        self.cx.fleet = Some(view);
        self.cx.nodes = view.live;
    }

    /// These peers may own keys from now on, beside this node, which does under this name. Before that a node asks nobody
    /// but the store.
    pub fn handle_owners(&mut self, own: OwnerName, candidates: &[Candidate]) {
        self.cx.owners.update(own, candidates);
    }

    /// Who owns the key of `request` under its limits, as this node sees it; `None` where nodes ask no peers for it.
    #[must_use]
    pub fn owner(&self, now: Instant, request: &Request<'_>) -> Option<KeyOwner> {
        let owners = Some(&self.cx.owners).filter(|owners| owners.are_there() && !request.rule.is_concurrent())?;
        Some(owners.owner(now, request.digest, request.rule).map_or(KeyOwner::This, KeyOwner::Peer))
    }

    /// Counts up to `most` keys of the shard from a number on, each under its owner as this node sees it. Returns the number
    /// from which on others are to be counted.
    pub fn count_owned(&self, now: Instant, from: u32, most: usize, mut count: impl FnMut(KeyOwner)) -> Option<u32> {
        let mut keys = self.table.iter_from(from);
        for (_, key) in keys.by_ref().take(most) {
            count(leased::owner(key, &self.cx, now).map_or(KeyOwner::This, KeyOwner::Peer));
        }
        keys.next().map(|(index, _)| index)
    }

    /// A peer asks for tokens of a key, to spend them under the limits of `request`; its cost and other terms are those of
    /// `terms`. It is served like a check that waits, from what this node leases.
    pub fn handle_ask(&mut self, now: Instant, request: Request<'_>, terms: &Terms) -> AskOutcome {
        if request.rule.is_concurrent() {
            return AskOutcome::Answered(Err(Refusal::OtherRule));
        }
        let Some((index, key, cx)) = self.key(now, &request) else { return AskOutcome::Answered(Err(Refusal::Busy)) };
        let asked = leased::serve(key, cx, now, terms);
        self.set_timer(now, index);
        asked
    }

    /// Takes the answer of a peer to the ask of that id.
    pub fn handle_answer(&mut self, now: Instant, digest: Digest, id: u64, answer: &Answer) {
        if let Some(index) = self.table.find(digest.0) {
            leased::handle_answer(&mut self.table[index], &mut self.cx, now, id, answer);
            self.set_timer(now, index);
        }
    }

    /// Takes in what a peer tells of the keys of this shard; of those that it does not know, nothing. May ask
    /// the store.
    pub fn handle_usage(&mut self, now: Instant, origin: PeerIndex, usage: &Usage) {
        if let Some(index) = self.table.find(usage.digest.0) {
            leased::handle_usage(&mut self.table[index], &mut self.cx, now, origin, usage);
            if self.cx.has_effects() {
                self.set_timer(now, index);
            }
        }
    }

    /// Appends reports for peers: windows that changed by a step since their last report, and windows that are over;
    /// or everything that changed, when the node is leaving; the most urgent first. Stops once they are as many entries as
    /// `most` reports to all peers are.
    pub fn drain_usage(&mut self, now: Instant, most: usize, into: &mut Vec<Report>) {
        self.drain_losses(now, most, into);
        self.drain_others(now, most, into);
    }

    /// The same of keys that the store has lost alone. Where a node has several shards, all of them come before what else there is.
    pub fn drain_losses(&mut self, now: Instant, most: usize, into: &mut Vec<Report>) {
        self.drain_rank(now, Rank::Lost, most, into);
    }

    /// The same of all other keys.
    pub fn drain_others(&mut self, now: Instant, most: usize, into: &mut Vec<Report>) {
        self.drain_rank(now, Rank::Used, most, into);
    }

    fn drain_rank(&mut self, now: Instant, rank: Rank, most: usize, into: &mut Vec<Report>) {
        let Some(fleet) = self.cx.fleet else { return };
        let peers = u64::from(fleet.live.saturating_sub(1).max(1));
        let most = (most as u64).saturating_mul(peers);
        let mut entries = usage::entries(into, peers);
        for index in self.cx.talkers.turn(rank) {
            if entries >= most {
                break;
            }
            self.cx.talkers.note_turn(rank, index);
            let before = into.len();
            if !leased::report_usage(&mut self.table[index], &self.cx, now, fleet, into) {
                self.cx.talkers.remove(index);
            }
            entries = entries.saturating_add(usage::entries(&into[before..], peers));
        }
    }

    /// Whether a key may have something to report to peers.
    #[must_use]
    pub fn has_reports(&self) -> bool {
        !self.cx.talkers.is_empty()
    }

    /// The key as of `now`. A missing one is created, if necessary in place of a quiet key.
    #[inline]
    fn key(&mut self, now: Instant, request: &Request<'_>) -> Option<(u32, &mut LeasedKey, &mut Context)> {
        let index = match self.table.find(request.digest.0) {
            Some(index) => index,
            None => self.insert(now, request)?,
        };
        let (key, cx) = (&mut self.table[index], &mut self.cx);
        leased::refresh_under(key, cx, now, request.rule);
        Some((index, key, cx))
    }

    /// Runs an operation that may change when the key must be looked at.
    fn ask(
        &mut self,
        now: Instant,
        request: &Request<'_>,
        ask: impl FnOnce(&mut LeasedKey, &mut Context) -> Outcome,
    ) -> Outcome {
        let Some((index, key, cx)) = self.key(now, request) else {
            return Outcome::Decided(overload(request.rule, now, request.cost));
        };
        let outcome = ask(key, cx);
        self.set_timer(now, index);
        outcome
    }

    /// Sets the timer for when the key must be looked at in its present state, and counts it by that.
    fn set_timer(&mut self, now: Instant, index: u32) {
        let key = &mut self.table[index];
        key.recount(&mut self.cx);
        if let Some(at) = key.wake_by(leased::next_timeout(key, now)) {
            self.cx.set_timer(at, index);
        }
    }

    fn insert(&mut self, now: Instant, request: &Request<'_>) -> Option<u32> {
        self.make_room(now)?;
        let key = self.unkept(request);
        self.table.insert(key).ok()
    }

    /// A key of which nothing is known yet.
    fn unkept(&mut self, request: &Request<'_>) -> LeasedKey {
        let policy = self.cx.policy(request.rule);
        let (nodes, clock) = (self.cx.nodes, self.cx.first_clock());
        LeasedKey::new(request.digest.0, request.key, request.rule, policy, nodes, clock)
    }

    /// Makes sure that there is room for one more key of either kind.
    fn make_room(&mut self, now: Instant) -> Option<()> {
        let has_room = self.table.len() + self.concurrent.len() < self.table.max();
        has_room.then_some(()).or_else(|| self.concurrent.forget_one(&mut self.cx, now)).or_else(|| self.evict(now))
    }

    /// Forgets a quiet key among the next [`LOOK_AT`], and returns what it holds. A key that is decided by its share is kept,
    /// or it would get a new budget.
    fn evict(&mut self, now: Instant) -> Option<()> {
        for _ in 0..LOOK_AT {
            let Some(index) = self.table.step() else { continue };
            let key = &mut self.table[index];
            if key.is_quiet() && (!key.is_indebted(now) || on(Mutant::EvictsDebtors)) {
                leased::part_with(key, &mut self.cx, now);
                self.forget(index);
                return Some(());
            }
        }
        None
    }

    fn forget(&mut self, index: u32) {
        let mut key = self.table.remove(index);
        self.cx.talkers.remove(index);
        leased::note_forgotten(&mut key, &mut self.cx);
    }
}
