//! One key in a shard: the tokens it holds, what it knows of the store, who waits, and which calls are under way.
//!
//! A key is kept only while it is of use: it holds tokens, remembers a denial or a rate of use, owes the store, or
//! somebody waits. Forgetting a key costs a call, but never a token, because the store keeps the count. Decisions
//! about one key are made here; `shard.rs` drives the keys.

use std::sync::Arc;

use super::demand::Demand;
use super::entitlement::Entitlement;
use super::holdings::Holdings;
use super::limit_view::LentOf;
use super::pacing::Pacing;
use super::rare::Rare;
use super::store_view::{Reckoning, StoreView};
use crate::core::answer::{Resolution, turned_away};
use crate::core::call::Counter;
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit};
use crate::core::mutant::{Mutant, on};
use crate::core::page::{KeyName, LONGEST_NAME};
use crate::core::request::KeyInfo;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::table::Keyed;
use crate::core::time::{Due, Instant, KeptDue, Micros};
use crate::core::window;

/// Tokens that are held and can be spent within this time are worth waiting for. With more, checks would wait where a call to the store
/// could bring tokens sooner; with less, calls would be made that bring nothing sooner.
pub(super) const PATIENCE: Micros = Micros(10_000);

/// A limit with less than so many tenths of its tokens left is under pressure: leases become shorter, and idle tokens
/// are returned.
const PRESSED_TENTHS: u64 = 3;

/// A bucket with so many checks of the usual size left for each node is not under pressure, because it fills up
/// again. With 20 instead, leases in llm-costs are cut to half a second and returned at each pause, for 427 calls per
/// 1000 checks instead of 255; with none, 99.1 % of its tokens are used instead of 99.8.
const FEW_CHECKS: u64 = 2;

/// A limit is scarce where there are fewer checks of it for each node than this. With four, zipf-200-nodes has 92.8 % of its checks wait
/// instead of 90.7, for as many calls.
const SCARCE_CHECKS: u64 = 3;

/// Where the store counts this fraction of a bucket as lent to a node that clients have left, other nodes may be denied for want of it. With
/// a larger one more would be; with a smaller one, more calls would hand back what nobody lacks.
const MUCH_PART: u64 = 8;

/// Where the store counts so many tenths of a bucket as lent to a node that is alone with it, another node to which its clients go would
/// be lent too little. With five, clients that are on for 0.3 s and off for 0.7 s cost 82 calls per 1000 checks of `100/1s burst 100`
/// instead of 28, and 284 of `10/1s burst 20` instead of 139.
const MOST_TENTHS: u64 = 7;

/// One part in so many of a bucket is a trifle, for all nodes together. A larger one would save more calls; but what of it no check has spent counts
/// as spent, so that others could use less of the bucket.
const TRIFLE_PART: u64 = 100;

/// A single token is no trifle: leased ahead it serves one check more, and an owner with one left would lease anew for all that ask it instead
/// of renewing (seldom-buckets-owners: 173 calls per 1000 checks instead of 152).
const LEAST_TRIFLE: u64 = 2;

/// Nobody misses a trifle where this fraction of the bucket is left. Where less is, the bucket may run out before the trifle has leaked away.
const TRIFLE_LEFT_PART: u64 = 2;

/// What two checks cost, this fraction of [`Tuner::few`](crate::core::batch::Tuner::few), is not worth the call that hands it back.
const FEW_PART: u64 = 4;

/// One key.
#[derive(Debug)]
pub(in crate::core) struct LeasedKey {
    digest: u128,
    /// The key's name as far as listings show it. Decisions go by the digest.
    name: KeyName,
    /// Index of the policy's counts in the shard.
    policy: u32,
    /// What is known of the store.
    pub(super) view: StoreView,
    /// The tokens that this node holds.
    pub(super) holdings: Holdings,
    /// How many tokens are wanted.
    pub(super) demand: Demand,
    /// When the store is asked although nobody waits.
    pub(super) pacing: Pacing,
    /// The parts that few keys have at a time: who waits, what is under way, an outage, peers.
    pub(super) rare: Rare,
    /// The time for which the shard's timer is set for this key.
    wake: KeptDue,
}

impl Keyed for LeasedKey {
    fn digest(&self) -> u128 {
        self.digest
    }
}

impl LeasedKey {
    /// A key of which nothing is known yet.
    pub(in crate::core) fn new(
        digest: u128,
        key: &[u8],
        rule: &Arc<Rule>,
        policy: u32,
        nodes: u32,
        clock: StoreClock,
    ) -> Self {
        Self {
            digest,
            name: KeyName::of(key),
            policy,
            view: StoreView::new(rule, nodes, clock),
            holdings: Holdings::new(),
            demand: Demand::default(),
            pacing: Pacing::NEW,
            rare: Rare::default(),
            wake: KeptDue::NEVER,
        }
    }

    /// Counts the key with those whose store server is away, or no longer. Any input may end an outage, a check among them: so it is
    /// compared with what was counted, and not with what was so before one input.
    pub(in crate::core) fn recount(&mut self, cx: &mut Context) {
        self.recount_away(cx, self.rare.outage.phase().is_outage());
    }

    pub(super) fn recount_away(&mut self, cx: &mut Context, is_away: bool) {
        cx.note_degraded(self.rare.counted_away, is_away);
        if self.rare.counted_away != is_away {
            self.rare.counted_away = is_away;
        }
        self.rare.close();
    }

    /// Whether tokens of a bucket are being returned. An acquire that overtook them would report them as spent.
    pub(super) fn has_account_under_way(&self) -> bool {
        self.view.has_account() && self.rare.calls.has_return_under_way()
    }

    /// Takes over another rule for the same key. What was spent stays counted in the store; what is held stays only
    /// where the rule has as many limits of the same algorithms.
    pub(super) fn adopt(&mut self, now: Instant, rule: &Arc<Rule>) -> u64 {
        if self.view.rule().limits == rule.limits {
            self.view.rename_rule(rule);
            return 0;
        }
        let voided = self.void();
        self.rare.outage.change_limits(self.view.rule(), rule, self.view.clock().latest(now));
        self.rare.outage.change_spans(now, rule);
        // The store may have set aside more than is entitled to this node of these limits.
        self.rare.outage.change_entitlement(Entitlement::renounce);
        self.rare.peers.forget();
        // To those who wait in line, the store has said nothing about these limits.
        self.rare.line.forget_answers();
        // The pause was for tokens trickling in under the former limits.
        self.end_pauses();
        self.forget_ahead();
        self.view.change_limits(rule);
        voided
    }

    /// Brings counters and windows to `now`.
    pub(super) fn roll(&mut self, now: Instant) {
        let latest = self.view.latest_heard(now);
        if self.rare.peers.is_kept() {
            self.note_windows_that_turn(latest);
        }
        // In a new window, the low-water mark is relative to what was lent ahead of it.
        let (view, rare) = (&mut self.view, &self.rare);
        if let Some(ahead) = view.roll(latest, |window| rare.ahead.of(window)) {
            self.holdings.measure_by(ahead);
        }
    }

    /// Decides from what is held and known; `None` when the store must be asked, or where the key `relays` while its part
    /// of the store is away: a peer.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        cost: u64,
        source: Source,
        fleet: Option<FleetView>,
        relays: bool,
    ) -> Option<Decision> {
        if self.rare.peers.is_bound()
            && let Some(denied) = self.deny_by_fleet(now, cost)
        {
            return Some(denied);
        }
        if self.has_matured(now, cost) && self.holdings.spend(now, cost) {
            self.demand.note_spent(cost);
            self.note_spent(now, cost);
            return Some(self.answer(now, cost, Resolution::allow(source)));
        }
        // What is set aside for this node comes before what a peer could lend, because nobody else is lent it.
        if relays && let Some(admitted) = self.admit_aside(now, cost, fleet) {
            return Some(admitted);
        }
        let reckoning = self.reckon();
        if self.is_exhausted_by(&reckoning, now, cost) {
            self.demand.note_denied();
            return Some(self.deny_by(&reckoning, now, cost, source));
        }
        self.end_waits(now);
        if self.is_away(now) {
            if relays {
                return None;
            }
            return Some(self.decide_offline(now, cost, fleet));
        }
        let denied = self.deny_by_fleet(now, cost)?;
        self.demand.note_denied();
        Some(denied)
    }

    /// The store is known to have fewer tokens than are missing, for now.
    pub(super) fn is_exhausted(&self, now: Instant, cost: u64) -> bool {
        self.is_exhausted_by(&self.reckon(), now, cost)
    }

    fn is_exhausted_by(&self, reckoning: &Reckoning, now: Instant, cost: u64) -> bool {
        if self.asks_peer_again(now) {
            return false;
        }
        // Tokens that are being returned will be in the store in a moment, and can be lent again.
        self.lacks(reckoning, now, cost, self.returning())
    }

    /// Whether the next check asks a peer again that has denied a check of this window, now that the pause after that is over, and is not denied
    /// while the store is asked behind it: what the store lent would lie here, and the peer, which lends to all, would lack it. Not where the
    /// store sets tokens aside for this node, which it lends to nobody until this node asks.
    fn asks_peer_again(&self, now: Instant) -> bool {
        let is_over = self.view.was_answered_by_peer() && self.pacing.may_probe(now) && !self.is_away(now);
        let rule = self.view.rule();
        is_over && !rule.is_entitled() && !rule.limits.iter().any(Limit::trickles)
    }

    /// The same for a peek, for which the store is not asked. The counters already include tokens that are being
    /// returned, except while an acquire is under way, whose answer may bring older counters.
    pub(super) fn looks_exhausted(&self, now: Instant, cost: u64) -> bool {
        let returning = if self.rare.calls.is_acquiring() { self.returning() } else { self.rare.leaving.tokens() };
        self.lacks(&self.reckon(), now, cost, returning)
    }

    /// Whether checks are denied until tokens have trickled in.
    pub(super) fn is_paced(&self, now: Instant) -> bool {
        self.pause(now) > Micros::ZERO
    }

    /// How long that will last. A client may have been told to come back before the pause is over, because tokens for it were held. Under
    /// several limits they may be gone by then, with a window that has ended, and then the store is asked when that client comes.
    pub(super) fn pause(&self, now: Instant) -> Micros {
        let (pause, limits) = (self.rare.paces.pause(now), &self.view.rule().limits);
        if pause == Micros::ZERO || limits.len() == 1 {
            return pause;
        }
        let trickles = limits.iter().filter(|limit| limit.trickles()).count();
        let is_of_some = (1..limits.len()).contains(&trickles);
        if is_of_some { self.before_promised(now, now + pause).since(now) } else { pause }
    }

    /// Tokens that can be spent now, and those of this window that were lent ahead of it. The latter start when the
    /// window has surely begun by the store's clock, which is known only to within a round trip.
    pub(super) fn about_to_start(&self, now: Instant) -> u64 {
        let begun = self.view.is_in(self.rare.ahead.window);
        self.holdings.lease().usable_by(now, if begun { now + self.soon() } else { now })
    }

    /// Tokens that start within this time are available as soon as any that the store is asked for.
    pub(super) fn soon(&self) -> Micros {
        Micros(self.view.trip().0.max(PATIENCE.0))
    }

    /// Whether `cost` of the tokens that are held of buckets has surely trickled in.
    pub(super) fn has_matured(&self, now: Instant, cost: u64) -> bool {
        if !self.view.runs_ahead() || on(Mutant::SpendsBeforeItComes) {
            return true;
        }
        let (earliest, held, counters) = (self.view.clock().surely(now), self.holdings.lease().held(), self.charged());
        let mut buckets =
            self.view.rule().limits.iter().zip(&counters).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.all(|(limit, counter)| counter.left_beside(limit, earliest, held) >= cost)
    }

    /// When enough of what is held will have trickled in for those in line, if all that they want is held. The store
    /// has no other tokens for them then.
    pub(super) fn matures(&self, now: Instant) -> Option<Instant> {
        let all_is_held = self.view.runs_ahead() && self.holdings.lease().usable(now) >= self.rare.line.wanted();
        let front = self.rare.line.first().filter(|_| all_is_held)?;
        let (earliest, held, counters) = (self.view.clock().surely(now), self.holdings.lease().held(), self.charged());
        let buckets = self.view.rule().limits.iter().zip(counters);
        let waits = buckets.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(limit, mut counter)| {
            counter.release(limit, held);
            counter.wait(limit, earliest, front.cost)
        });
        let wait = waits.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(now + wait).filter(|_| wait <= PATIENCE)
    }

    /// How long until all that is held of buckets has trickled in; zero if none was lent in advance.
    pub(super) fn to_come(&self, now: Instant) -> Micros {
        if !self.view.runs_ahead() {
            return Micros::ZERO;
        }
        let (earliest, held, counters) = (self.view.clock().surely(now), self.holdings.lease().held(), self.charged());
        let buckets = self.view.rule().limits.iter().zip(counters);
        let waits = buckets.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(limit, mut counter)| {
            counter.release(limit, held);
            counter.wait(limit, earliest, held.min(limit.burst)).unwrap_or(gcra::AHEAD)
        });
        waits.max().unwrap_or(Micros::ZERO)
    }

    /// Notes whether the store lent more of a bucket than had trickled in. What trickles in next is then reserved for
    /// this node.
    pub(super) fn note_ahead(&mut self, now: Instant) {
        let earliest = self.view.clock().earliest(now);
        let runs_ahead = self.view.limits().any(|(limit, counter)| {
            limit.algorithm == Algorithm::Gcra && gcra::left(limit, counter.at, earliest) < counter.used
        });
        self.view.note_ahead(runs_ahead);
    }

    /// Tokens that this node was lent and has not spent, also those that are about to be returned.
    pub(super) fn unspent(&self) -> u64 {
        self.holdings.lease().held().saturating_add(self.rare.leaving.tokens())
    }

    /// Drops everything that is held. Returns how many tokens that was.
    pub(super) fn void(&mut self) -> u64 {
        self.holdings.void() + self.rare.leaving.drop_all()
    }

    /// Drops so many tokens of a bucket, those first that wait to be returned. Returns how many there were.
    pub(super) fn drop_some(&mut self, now: Instant, tokens: u64) -> u64 {
        let due = self.rare.there().map_or(tokens, |rare| rare.leaving.drop_some(tokens));
        tokens - due + self.holdings.drop_some(now, due)
    }

    /// The store no longer knows what it has lent of the next window, and will lend that again.
    pub(super) fn forget_ahead(&mut self) {
        if let Some(rare) = self.rare.there() {
            rare.ahead = LentOf::NONE;
        }
    }

    /// Tokens that are being returned, or soon will be.
    fn returning(&self) -> u64 {
        self.rare.calls.returning().saturating_add(self.rare.leaving.tokens())
    }

    /// An acquire has brought nothing, and was executed before tokens that are being returned. The next one is sent
    /// when those have arrived.
    pub(super) fn awaits_return(&self) -> bool {
        self.rare.paces.is_fruitless() && self.returning() > self.rare.leaving.tokens()
    }

    /// The key begins anew, and no pause for trickling tokens applies. Promises and plans stay.
    pub(super) fn end_pauses(&mut self) {
        self.pacing.probe_at_once();
        self.rare.paces.begin_anew();
    }

    /// Whether a low lease may cause a call.
    pub(super) fn may_refill(&self, now: Instant) -> bool {
        self.pacing.may_probe(now) || self.rare.paces.may_go_on(now)
    }

    /// Starts a pause until `at`, in which the store is not asked; by a peer's word or by the store's. In the background it is asked earlier
    /// by `early`.
    pub(super) fn pause_until(&mut self, at: Instant, early: Micros, is_by_peer: bool) {
        self.rare.paces.pause_until(at, is_by_peer);
        self.pacing.probe_at(at - early);
    }

    /// Records the wait that a client was told.
    pub(super) fn note_promise(&mut self, now: Instant, cost: u64, decision: &Decision) {
        if decision.retry_after.is_some() {
            self.rare.paces.note_promise(now, cost, decision);
        } else if let Some(rare) = self.rare.there() {
            rare.paces.note_promise(now, cost, decision);
        }
    }

    /// Whether the store is known to have tokens left to lend.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        let latest = self.view.clock().latest(now);
        let counters = self.charged();
        // A node that is alone with the key is also lent tokens of a bucket that come soon.
        let more = |limit: &Limit| if self.view.nodes() == 1 { gcra::coming(limit) } else { 0 };
        let has_some = |(limit, counter): (&Limit, &Counter)| match limit.algorithm {
            Algorithm::Gcra => gcra::left(limit, counter.at, latest).saturating_add(more(limit)) > counter.used,
            _ => counter.left(limit, latest) > 0,
        };
        self.view.answered().is_none() || self.view.rule().limits.iter().zip(&counters).all(has_some)
    }

    /// Whether the store is known to have enough tokens left for a check of the usual size at each node.
    pub(super) fn has_left_for_all(&self, now: Instant) -> bool {
        let (latest, each) = (self.view.clock().latest(now), self.demand.tuner().mean_cost().max(1));
        let few = each.saturating_mul(u64::from(self.view.nodes()));
        let counters = self.charged();
        self.view.rule().limits.iter().zip(&counters).all(|(limit, counter)| counter.left(limit, latest) >= few)
    }

    /// Whether a window will be under pressure when it ends, if it is used as it was until the store's last answer.
    pub(super) fn is_pressed_by(&self, now: Instant) -> bool {
        let Some(answered) = self.view.answered().map(|at| self.view.clock().latest(at)) else { return false };
        let (latest, tenths) = (self.view.clock().latest(now), u128::from(10 - PRESSED_TENTHS));
        self.view.limits().any(|(limit, counter)| {
            let (start, capacity) = (window::aligned_start(limit, latest), u128::from(limit.capacity()));
            let passed = u128::from(answered.since(start).0);
            let used = capacity.saturating_sub(counter.left(limit, latest).into());
            limit.algorithm == Algorithm::Fixed && used * u128::from(limit.period.0) * 10 > capacity * passed * tenths
        })
    }

    /// What is left over of a window when it ends is void, and the store need not be told: see `advance::dispose`.
    pub(super) fn lapses(&self) -> bool {
        let limits = &self.view.rule().limits;
        limits.len() == 1 && matches!(limits[0].algorithm, Algorithm::Fixed | Algorithm::FixedFromFirst)
    }

    /// Whether what is left over of the shortest window when that ends goes back, because others can use it: it counts in a longer window
    /// as well, or in a sliding one that is scarce until the next one has ended.
    pub(super) fn hands_leftover_back(&self) -> bool {
        let limits = &self.view.rule().limits;
        limits.len() > 1 || limits[0].algorithm == Algorithm::Sliding && self.is_scarce()
    }

    /// A limit is under pressure, as far as is known.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        self.is_left_less(now, PRESSED_TENTHS)
    }

    /// Of a limit fewer tenths are left than these, as far as is known; and of a bucket too few for a few checks of each node.
    pub(super) fn is_left_less(&self, now: Instant, tenths: u64) -> bool {
        let latest = self.view.clock().latest(now);
        let few_of_each =
            self.demand.tuner().mean_cost().saturating_mul(FEW_CHECKS * u64::from(self.view.nodes().max(1)));
        self.view.limits().any(|(limit, counter)| {
            let left = counter.left(limit, latest);
            let is_less = left.saturating_mul(10) < limit.capacity().saturating_mul(tenths);
            is_less && (limit.algorithm != Algorithm::Gcra || left < few_of_each)
        })
    }

    /// Whether a few checks of each node are more than all of a limit. Then others lack what one node holds for checks that may come.
    pub(super) fn is_scarce(&self) -> bool {
        let nodes = u64::from(self.view.nodes().max(1));
        let few_of_each = self.demand.tuner().mean_cost().saturating_mul(nodes.saturating_mul(SCARCE_CHECKS));
        nodes > 1 && self.view.rule().limits.iter().any(|limit| limit.capacity() < few_of_each)
    }

    /// Whether the store sets so much of a bucket aside for this node that other nodes may lack it: what is held, and what was spent and
    /// not reported yet. A node that is alone with a bucket does not hear when another one comes to it, and that is lent only what is left beside this.
    pub(super) fn has_much(&self) -> bool {
        if on(Mutant::IdleBucketKept) {
            return false;
        }
        let few = self.demand.tuner().few();
        let much = |capacity: u64| match self.view.nodes() {
            0 | 1 => capacity.saturating_mul(MOST_TENTHS).div_ceil(10),
            _ => capacity / MUCH_PART,
        };
        let is_much = |(index, limit): (usize, &Limit)| {
            let aside = self.view.lent(index);
            limit.algorithm == Algorithm::Gcra && aside >= much(limit.capacity()).max(few / FEW_PART)
        };
        self.view.rule().limits.iter().enumerate().any(is_much)
    }

    /// So many tokens of a bucket nobody misses which this node holds and no check spends: its part of a trifle, where at least half of the bucket is
    /// left; 0 elsewhere, also of a bucket that fills up sooner than accounts could be longer, because nodes that use one begin with a burst of it. To hand them back would cost a call, and so would leasing one token after another to have none left over.
    pub(super) fn trifle(&self, now: Instant) -> u64 {
        if !self.view.is_of_buckets() || self.view.rule().account_units() == 1 || self.is_away(now) {
            return 0;
        }
        let (latest, parts) = (self.view.clock().latest(now), TRIFLE_PART * u64::from(self.view.nodes().max(1)));
        let of_each = self.view.limits().map(|(limit, counter)| match limit.capacity() {
            capacity if counter.left(limit, latest) < capacity / TRIFLE_LEFT_PART => 0,
            capacity => capacity / parts,
        });
        of_each.min().filter(|trifle| *trifle >= LEAST_TRIFLE).unwrap_or(0)
    }

    /// Whether the store sets no more than a trifle aside for this node: then no call says what became of it, and it counts as spent when
    /// the account lapses.
    pub(super) fn is_trifling(&self, now: Instant) -> bool {
        let trifle = self.trifle(now);
        let lent = self.view.rule().limits.iter().enumerate().map(|(index, _)| self.view.lent(index)).max();
        trifle > 0 && lent.unwrap_or(0) <= trifle || on(Mutant::AllOfItIsATrifle)
    }

    /// The awaited answer should have come long ago, by the time that calls take now. Nobody waits for it any longer,
    /// since most would wait in vain; when it comes it serves later checks.
    pub(super) fn is_overdue(&self, now: Instant, patience: Micros) -> bool {
        self.rare.calls.is_overdue(now, patience)
    }

    /// Turns a check away because the store has not answered in time. The store may be slow or overloaded, which is
    /// no outage; nothing is charged.
    pub(super) fn turn_away(&self, now: Instant, cost: u64, wait: Micros) -> Decision {
        let decision = self.answer(now, cost, turned_away(self.view.rule(), wait));
        let most = if decision.verdict == Verdict::Deny { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// The decision that a check of `cost` would get, without charging it.
    pub(in crate::core) fn peeked(
        &self,
        now: Instant,
        cost: u64,
        source: Source,
        fleet: Option<FleetView>,
    ) -> Decision {
        if self.view.rule().limits.iter().any(|limit| cost > limit.capacity()) {
            return self.answer(now, cost, Resolution::deny(Reason::Cost, Source::Policy));
        }
        let is_held = cost > 0 && self.has_matured(now, cost) && self.holdings.lease().usable(now) >= cost;
        if cost > 0 && !is_held && self.looks_exhausted(now, cost) {
            let denial = self.deny(now, cost, source);
            // A window may have ended since the key was last rolled; then all of its tokens are left.
            if denial.remaining < cost {
                return denial;
            }
        }
        if self.is_away(now) && !is_held {
            return self.peek_offline(now, cost, fleet);
        }
        self.answer(now, cost, Resolution::allow(source))
    }

    /// Whether `rule` has the limits that this key applies.
    pub(in crate::core) fn has_rule(&self, rule: &Rule) -> bool {
        **self.view.rule() == *rule
    }

    /// Whether the timer for `at` is the one that this key waits for. If so, it no longer waits for one.
    pub(in crate::core) fn take_timer(&mut self, at: Instant) -> bool {
        let is_it = self.wake.due() == Due::at(at);
        self.wake = if is_it { KeptDue::NEVER } else { self.wake };
        is_it
    }

    /// Makes sure that the key is looked at by `due`. Returns the time for which the shard's timer must be set, if it
    /// must.
    pub(in crate::core) fn wake_by(&mut self, due: Due) -> Option<Instant> {
        if due >= self.wake.due() {
            return None;
        }
        self.wake = KeptDue::of(due);
        due.time()
    }

    /// The key's bytes; `None` where some of them may not be kept.
    pub(super) fn whole_name(&self) -> Option<&[u8]> {
        Some(self.name.bytes()).filter(|name| name.len() < LONGEST_NAME)
    }

    /// The digest that names the key in calls.
    pub(super) fn id(&self) -> Digest {
        Digest(self.digest)
    }

    /// Index of the policy's counts in the shard.
    pub(super) fn policy(&self) -> u32 {
        self.policy
    }

    /// Tokens that were lent to this node and are not spent, including those that cannot be spent now.
    pub(in crate::core) fn all_held(&self) -> u64 {
        self.holdings.lease().held() + self.rare.leaving.tokens()
    }

    /// Tokens that can be spent now.
    pub(in crate::core) fn usable(&self, now: Instant) -> u64 {
        self.holdings.lease().usable_by(now, now)
    }

    /// The key as listings show it.
    pub(in crate::core) fn listed(&self, now: Instant) -> KeyInfo {
        KeyInfo {
            digest: Digest(self.digest),
            key: Some(self.name.bytes().into()),
            rule: self.view.rule().clone(),
            held: self.holdings.lease().held(),
            decision: self.answer(now, 0, Resolution::allow(Source::Lease)),
        }
    }

    /// Forgetting this key would lose only its rate of use and its denials.
    pub(in crate::core) fn is_quiet(&self) -> bool {
        self.rare.line.is_empty() && self.rare.calls.are_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon knows millions of keys. What few of them have at a time is in memory of its own: see `rare.rs`.
    #[test]
    fn a_key_at_rest_is_small() {
        assert!(size_of::<LeasedKey>() <= 288, "{} bytes", size_of::<LeasedKey>());
    }
}
