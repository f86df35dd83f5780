//! What the keys of a shard share: effects for the driver, timers, ids, jitter and counts.

use std::collections::VecDeque;
use std::sync::Arc;

use super::ask::{Answer, Ask};
use super::calendar::Calendar;
use super::call::Call;
use super::decision::{Decision, Verdict};
use super::fleet::FleetView;
use super::mutant::{Mutant, on};
use super::owners::Owners;
use super::request::{Effect, Settings, Ticket};
use super::rule::Rule;
use super::stats::{PolicyStats, ShardStats};
use super::store_clock::StoreClock;
use super::talkers::Talkers;
use super::time::{Instant, Micros, Timestamp};
use super::usage::PeerIndex;

/// How far ids are advanced when the store first reports that it knows a higher one. Ids begin as microseconds since
/// 1970, so this is a minute.
const FIRST_SKIP: u64 = 60_000_000;

/// The farthest that ids are advanced in one step: a day.
const MOST_SKIP: u64 = 86_400_000_000;

/// Ids beyond this are not advanced; the store accepts them up to 2^53.
const LAST_SKIP: u64 = 8_000_000_000_000_000;

/// For so long after a lease that no replica confirmed, first leases of new keys stay small. A failover takes some
/// seconds, and setting up a new replica some more; until then a new key may be on the master that has no replica.
pub(super) const UNCONFIRMED_FOR: Micros = Micros::from_secs(10);

/// With each quicker answer, the slowest round trip of late is taken to be lower by this fraction. Faster, and a store of which only some
/// answers are slow seems quick in between; slower, and one stall has checks turned away for longer.
const FORGET_PART: u64 = 8;

/// What the keys of a shard share.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) settings: Settings,
    effects: VecDeque<Effect>,
    pub(super) draining: bool,
    pub(super) stats: ShardStats,
    pub(super) policies: Vec<(Arc<str>, PolicyStats)>,
    /// The highest number of nodes that the store has lately counted for any key. A new key is assumed to be used by
    /// so many.
    pub(super) nodes: u32,
    /// When a lease of any key was last left unconfirmed.
    unconfirmed: Option<Instant>,
    /// What is known of the fleet; `None` when this node is alone.
    pub(super) fleet: Option<FleetView>,
    /// The peers that are asked before the store, or in its place.
    pub(super) owners: Owners,
    /// Keys with something to report to peers.
    pub(super) talkers: Talkers,
    timers: Calendar,
    random: u64,
    next_id: u64,
    id_step: u64,
    /// How far to advance the next time that the store knows a higher id.
    skip: u64,
    next_ticket: u64,
    clock: (Instant, Timestamp),
    heard: Option<StoreClock>,
    /// The round trip of the slowest recent answers.
    slowest: Micros,
}

impl Context {
    pub(super) fn new(settings: Settings, seed: u64, first_id: u64, id_step: u64, clock: (Instant, Timestamp)) -> Self {
        Self {
            settings,
            effects: VecDeque::new(),
            draining: false,
            stats: ShardStats::default(),
            policies: Vec::new(),
            nodes: 1,
            unconfirmed: None,
            fleet: None,
            owners: Owners::default(),
            talkers: Talkers::default(),
            timers: Calendar::new(),
            random: seed,
            next_id: if on(Mutant::IdsStartAnew) { 1 } else { first_id },
            id_step,
            skip: FIRST_SKIP,
            next_ticket: 0,
            clock,
            heard: None,
            slowest: Micros::ZERO,
        }
    }

    /// Records whether a replica has confirmed a lease of some key.
    pub(super) fn note_confirmed(&mut self, now: Instant, confirmed: bool) {
        if !confirmed {
            self.unconfirmed = Some(now);
        }
    }

    /// Whether all leases of the last seconds were confirmed, of any key: each master has replicas of its own, and the
    /// core does not know which master has a key.
    pub(super) fn is_confirmed(&self, now: Instant) -> bool {
        self.unconfirmed.is_none_or(|at| now >= at + UNCONFIRMED_FOR)
    }

    /// Records the store's clock in an answer about any key. Each master may have a clock of its own.
    pub(super) fn note_clock(&mut self, clock: StoreClock) {
        self.heard = Some(clock);
    }

    /// The store's clock in the latest answer; `None`: there was none yet.
    pub(super) fn heard_clock(&self) -> Option<&StoreClock> {
        self.heard.as_ref()
    }

    /// When this process began to decide.
    pub(super) fn started(&self) -> Instant {
        self.clock.0
    }

    /// An estimate of the store's clock from the wall clock at the start, for use until the store has answered.
    pub(super) fn first_clock(&self) -> StoreClock {
        StoreClock::new(self.clock.0, self.clock.0, self.clock.1)
    }

    /// Has the driver send a call to the store.
    pub(super) fn send(&mut self, call: &Call) {
        self.effects.push_back(Effect::Call(Box::new(call.clone())));
    }

    /// Has the driver answer a parked request.
    pub(super) fn reply(&mut self, ticket: Ticket, decision: Decision) {
        self.effects.push_back(Effect::Reply { ticket, decision });
    }

    /// Has the driver ask a peer.
    pub(super) fn ask(&mut self, peer: PeerIndex, ask: Ask) {
        self.effects.push_back(Effect::Ask { peer, ask });
    }

    /// Has the driver answer a peer that was parked.
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.effects.push_back(Effect::Answer { ticket, answer });
    }

    /// Whether the driver has something to do.
    pub(super) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// What the driver must do next.
    pub(super) fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// An id that no other call of this node has or will have.
    pub(super) fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += self.id_step;
        id
    }

    /// Records the round trip of a call, including its wait in the queue. A slow one counts for less with each quick
    /// answer after it.
    pub(super) fn note_trip(&mut self, trip: Micros) {
        self.slowest = trip.max(Micros(self.slowest.0 - self.slowest.0 / FORGET_PART));
    }

    /// About how long a call takes now. A client that comes back sooner would wait in vain.
    pub(super) fn queue(&self) -> Micros {
        self.slowest.max(self.settings.timeout)
    }

    /// How long an answer is worth waiting for, by the time that calls take now.
    pub(super) fn patience(&self) -> Micros {
        (self.slowest + self.slowest).max(self.settings.timeout)
    }

    /// The store has seen a higher id, so this node's clock was ahead in an earlier run. The store does not say by
    /// how much, so each step is twice as far as the last, up to a day. False when ids would run out.
    pub(super) fn skip_ids(&mut self) -> bool {
        let more = self.next_id < LAST_SKIP;
        if more {
            self.next_id += self.skip / self.id_step * self.id_step;
            self.skip = (self.skip * 2).min(MOST_SKIP);
        }
        more
    }

    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// A duration from zero to `most`, evenly distributed. Source: splitmix64 (Steele, Lea, Flood, 2014).
    pub(super) fn jitter(&mut self, most: Micros) -> Micros {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        Micros(((u128::from(bits) * u128::from(most.0 + 1)) >> 64) as u64) // below most + 1
    }

    /// Makes sure that the key at this position is looked at by `at`.
    pub(super) fn set_timer(&mut self, at: Instant, index: u32) {
        self.timers.push((at, index));
    }

    /// Counts keys whose store server is away.
    pub(super) fn note_degraded(&mut self, was_away: bool, is_away: bool) {
        self.stats.degraded += u64::from(is_away);
        self.stats.degraded -= u64::from(was_away).min(self.stats.degraded);
    }

    /// The earliest timer.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// A key whose timer is due at `now`. The caller skips stale ones.
    pub(super) fn due(&mut self, now: Instant) -> Option<(Instant, u32)> {
        if self.next_timer()? > now {
            return None;
        }
        self.timers.pop()
    }

    /// The index of a policy's counts.
    pub(super) fn policy(&mut self, rule: &Rule) -> u32 {
        let known = self.policies.iter().position(|(name, _)| *name == rule.policy);
        let index = known.unwrap_or_else(|| {
            self.policies.push((rule.policy.clone(), PolicyStats::default()));
            self.policies.len() - 1
        });
        index as u32 // as many as the configuration names
    }

    pub(super) fn policy_stats(&mut self, policy: u32) -> &mut PolicyStats {
        &mut self.policies[policy as usize].1
    }

    /// Counts a decision, and the tokens it has spent if they were held.
    pub(super) fn count(&mut self, policy: u32, cost: u64, decision: &Decision) {
        use super::decision::Source;
        let stats = self.policy_stats(policy);
        stats.count(decision);
        if decision.verdict == Verdict::Allow && matches!(decision.source, Source::Lease | Source::Store | Source::Peer)
        {
            stats.spent += cost;
        }
    }
}
