//! One key in a shard: what it holds, what it knows of the store, who waits, what is under way.
//!
//! A key lives only while it is of use: it holds tokens, remembers a denial or a rate of use, owes
//! the store, or somebody waits. A key that is forgotten costs a call, never a token, because the
//! store keeps the count. Decisions for one key are made here; `shard.rs` drives the keys.

use std::sync::Arc;

use super::calls::Calls;
use super::demand::Demand;
use super::holdings::Holdings;
use super::pacing::Pacing;
use super::peer_usage::PeerUsage;
use super::phase::Outage;
use super::store_view::StoreView;
use crate::core::answer::{self, Resolution, Standing, turned_away};
use crate::core::call::Counter;
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::key::Digest;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::line::Line;
use crate::core::mutant::{Mutant, on};
use crate::core::page::name;
use crate::core::request::KeyInfo;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::table::Keyed;
use crate::core::time::{Due, Instant, Micros};
use crate::core::window;

/// Tokens that start so soon are worth waiting for.
pub(super) const PATIENCE: Micros = Micros(10_000);

/// A limit of which less than so many tenths are left is under pressure: leases last for shorter, and what lies idle goes
/// back.
const PRESSED_TENTHS: u64 = 3;

/// A bucket is not under pressure while it has so many checks of the usual size for each node, because it fills up again.
/// With 20 in their place, leases in llm-costs are cut to half a second and handed back at each pause, for 427 calls per
/// 1000 checks in place of 255; with none, 99.1 % of it is used in place of 99.8.
const FEW_CHECKS: u64 = 2;

/// A check is not denied because of tokens that other nodes were seen to hold of a bucket, when the answer that showed it is
/// older than this: they may have handed them back since.
const STALE: Micros = Micros(1_000_000);

/// One key.
#[derive(Debug)]
pub(in crate::core) struct LeasedKey {
    digest: u128,
    /// As much of it as listings show: the digest decides.
    name: Box<[u8]>,
    /// Index of the policy's counts in the shard.
    policy: u32,
    /// What is known of the store.
    pub(super) view: StoreView,
    /// The tokens that are here.
    pub(super) holdings: Holdings,
    /// How much is wanted.
    pub(super) demand: Demand,
    /// Who waits for the store.
    pub(super) line: Line,
    /// What is under way to the store.
    pub(super) calls: Calls,
    /// How its part of the store is doing, and what was admitted without it.
    pub(super) outage: Outage,
    /// What this node and its peers did in the latest windows.
    pub(super) peers: PeerUsage,
    /// When the store is asked though nobody waits.
    pub(super) pacing: Pacing,
    /// When the shard's timer is set for this key.
    wake: Due,
}

impl Keyed for LeasedKey {
    fn digest(&self) -> u128 {
        self.digest
    }
}

impl LeasedKey {
    /// A key that nothing is known of.
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
            name: name(key),
            policy,
            view: StoreView::new(rule, nodes, clock),
            holdings: Holdings::new(),
            demand: Demand::default(),
            line: Line::default(),
            calls: Calls::default(),
            outage: Outage::default(),
            peers: PeerUsage::default(),
            pacing: Pacing::NEW,
            wake: Due::NEVER,
        }
    }

    /// Takes over another rule for the same key: what was spent stays with the store, what is held
    /// stays only where the rule has as many limits of the same kinds.
    pub(super) fn adopt(&mut self, now: Instant, rule: &Arc<Rule>) -> u64 {
        if self.view.rule().limits == rule.limits {
            self.view.rename_rule(rule);
            return 0;
        }
        let voided = self.holdings.void();
        self.outage.change_limits(self.view.rule(), rule, self.view.clock().latest(now));
        self.peers.forget();
        // What trickled in under the limits of before was waited for.
        self.pacing.begin_anew();
        self.view.change_limits(rule);
        voided
    }

    /// Rolls what is known to `now`.
    pub(super) fn roll(&mut self, now: Instant) {
        let latest = self.view.latest_heard(now);
        if self.peers.is_kept() {
            self.note_windows_that_turn(latest);
        }
        // The low-water mark of a new window is measured by what was lent ahead of it.
        if let Some(ahead) = self.view.roll(latest) {
            self.holdings.measure_by(ahead);
        }
    }

    /// Decides from what is held and known; `None` when the store must be asked.
    pub(super) fn decide(
        &mut self,
        now: Instant,
        cost: u64,
        source: Source,
        fleet: Option<FleetView>,
    ) -> Option<Decision> {
        if self.peers.is_bound()
            && let Some(denied) = self.deny_by_fleet(now, cost)
        {
            return Some(denied);
        }
        if self.has_matured(now, cost) && self.holdings.spend(now, cost) {
            self.demand.note_spent(cost);
            self.note_spent(now, cost);
            return Some(self.answer(now, cost, Resolution::allow(source)));
        }
        if self.is_exhausted(now, cost) {
            self.demand.note_denied();
            return Some(self.deny(now, cost, source));
        }
        self.end_waits(now);
        if self.is_away(now) {
            return Some(self.decide_offline(now, cost, fleet));
        }
        let denied = self.deny_by_fleet(now, cost)?;
        self.demand.note_denied();
        Some(denied)
    }

    /// The store is known to have less than what is missing, for now.
    pub(super) fn is_exhausted(&self, now: Instant, cost: u64) -> bool {
        // Tokens on their way back to the store will be there in a moment, and can be lent again.
        self.lacks(now, cost, self.returning())
    }

    /// The same for a look, which the store is not asked for: what is under way back to the store the counters have
    /// already, unless the answer to an acquire may bring older ones.
    pub(super) fn looks_exhausted(&self, now: Instant, cost: u64) -> bool {
        let returning = if self.calls.is_acquiring() { self.returning() } else { self.holdings.waiting_to_return() };
        self.lacks(now, cost, returning)
    }

    fn lacks(&self, now: Instant, cost: u64, returning: u64) -> bool {
        if self.view.answered().is_none() {
            return false;
        }
        let usable = self.about_to_start(now).saturating_add(returning);
        let cost = if on(Mutant::DeniesTheLastToken) { cost + 1 } else { cost };
        if self.pacing.is_paced(now) {
            return usable < cost;
        }
        let (latest, mut counters) = (self.view.clock().latest(now), self.charged());
        if self.view.answered().is_some_and(|at| now.since(at) >= STALE) {
            self.doubt_lent(&mut counters);
        }
        let mut limits = self.view.rule().limits.iter().zip(&counters);
        limits.any(|(limit, counter)| counter.left_beside(limit, latest, usable) < cost)
    }

    /// Tokens that may be spent now, and those of this window that were lent ahead of it: they start as late as the
    /// window may begin by the store's clock, which a call that took long leaves in doubt by a trip.
    pub(super) fn about_to_start(&self, now: Instant) -> u64 {
        let begun = self.view.is_lent_ahead();
        self.holdings.lease().usable_by(now, if begun { now + self.soon() } else { now })
    }

    /// Tokens that start within such a time are there as soon as those that the store is asked for.
    pub(super) fn soon(&self) -> Micros {
        Micros(self.view.trip().0.max(PATIENCE.0))
    }

    /// So much of what is held of buckets has trickled in, as far as that is not certain.
    pub(super) fn has_matured(&self, now: Instant, cost: u64) -> bool {
        if !self.holdings.runs_ahead() || on(Mutant::SpendsBeforeItComes) {
            return true;
        }
        let (earliest, held, counters) = (self.view.clock().surely(now), self.holdings.lease().held(), self.charged());
        let mut buckets =
            self.view.rule().limits.iter().zip(&counters).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.all(|(limit, counter)| counter.left_beside(limit, earliest, held) >= cost)
    }

    /// When what is held will have trickled in for those in line, if all that they want is held: the store has no other.
    pub(super) fn matures(&self, now: Instant) -> Option<Instant> {
        let all_is_held = self.holdings.runs_ahead() && self.holdings.lease().usable(now) >= self.line.wanted();
        let front = self.line.first().filter(|_| all_is_held)?;
        let (earliest, held, counters) = (self.view.clock().surely(now), self.holdings.lease().held(), self.charged());
        let buckets = self.view.rule().limits.iter().zip(counters);
        let waits = buckets.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(limit, mut counter)| {
            counter.release(limit, held);
            counter.wait(limit, earliest, front.cost)
        });
        let wait = waits.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        Some(now + wait).filter(|_| wait <= PATIENCE)
    }

    /// When all that is held of buckets will have trickled in; nothing where none was lent ahead.
    pub(super) fn to_come(&self, now: Instant) -> Micros {
        if !self.holdings.runs_ahead() {
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

    /// Whether the store lent more of a bucket than was there: what comes next it lends to nobody else.
    pub(super) fn note_ahead(&mut self, now: Instant) {
        let earliest = self.view.clock().earliest(now);
        let mut buckets = self.view.limits().filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        let lends_ahead = |(limit, counter): (&Limit, &Counter)| gcra::left(limit, counter.at, earliest) < counter.used;
        self.holdings.note_ahead(buckets.any(lends_ahead));
    }

    /// Tokens on their way back to the store, or about to be.
    fn returning(&self) -> u64 {
        self.calls.returning().saturating_add(self.holdings.waiting_to_return())
    }

    /// An acquire has brought nothing and has overtaken tokens that go back: the next one leaves when those are there.
    pub(super) fn awaits_return(&self) -> bool {
        self.pacing.is_fruitless() && self.returning() > self.holdings.waiting_to_return()
    }

    /// Whether the store is known to have tokens left to lend.
    pub(super) fn has_left(&self, now: Instant) -> bool {
        let latest = self.view.clock().latest(now);
        let counters = self.charged();
        // To a node that is alone with the key it lends what comes soon, too.
        let more = |limit: &Limit| if self.view.nodes() == 1 { gcra::coming(limit) } else { 0 };
        let has_some = |(limit, counter): (&Limit, &Counter)| match limit.algorithm {
            Algorithm::Gcra => gcra::left(limit, counter.at, latest).saturating_add(more(limit)) > counter.used,
            _ => counter.left(limit, latest) > 0,
        };
        self.view.answered().is_none() || self.view.rule().limits.iter().zip(&counters).all(has_some)
    }

    /// Whether the store is known to have enough left for a check of the usual size at each node.
    pub(super) fn has_left_for_all(&self, now: Instant) -> bool {
        let (latest, each) = (self.view.clock().latest(now), self.demand.tuner().mean_cost().max(1));
        let few = each.saturating_mul(u64::from(self.view.nodes()));
        let counters = self.charged();
        self.view.rule().limits.iter().zip(&counters).all(|(limit, counter)| counter.left(limit, latest) >= few)
    }

    /// A window will be under pressure when it ends, if it goes on as it did until the store's last answer.
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

    /// A limit is under pressure, as far as is known.
    pub(super) fn is_pressed(&self, now: Instant) -> bool {
        let latest = self.view.clock().latest(now);
        let few_of_each =
            self.demand.tuner().mean_cost().saturating_mul(FEW_CHECKS * u64::from(self.view.nodes().max(1)));
        self.view.limits().any(|(limit, counter)| {
            let left = counter.left(limit, latest);
            let tenths = left.saturating_mul(10) < limit.capacity().saturating_mul(PRESSED_TENTHS);
            tenths && (limit.algorithm != Algorithm::Gcra || left < few_of_each)
        })
    }

    pub(super) fn deny(&self, now: Instant, cost: u64, source: Source) -> Decision {
        let wait = match self.holdings.lease().ready(cost).filter(|_| !self.holdings.runs_ahead()) {
            Some(ready) => ready.after(now),
            // What is held will not do, or has yet to come. It stays here, and the store has to have the rest.
            None => {
                let (earliest, mut counters) = (self.view.clock().earliest(now), self.charged());
                let held = self.holdings.lease().current(now);
                for (index, (limit, counter)) in self.view.rule().limits.iter().zip(&mut counters).enumerate() {
                    counter.release(limit, held);
                    if limit.algorithm == Algorithm::Fixed {
                        let ahead = self.holdings.lease().held_of(index, counter.at + limit.period);
                        counter.prev = counter.prev.saturating_sub(ahead);
                    }
                }
                let all = self.view.rule().limits.iter().zip(&counters);
                let wait = all.filter_map(|(limit, counter)| counter.wait(limit, earliest, cost)).max();
                wait.unwrap_or_default() + self.drift_margin(now, wait.unwrap_or_default())
            }
        };
        let is_paced = self.pacing.is_paced(now);
        let wait = wait.max(self.pacing.pause(now));
        let wait = if on(Mutant::WaitHalved) { Micros(wait.0 / 2) } else { wait };
        let decision = self.answer(now, cost, Resolution::deny(Reason::Rate, source).after(wait));
        // Tokens that have trickled in since the store was asked may have been lent to others.
        let most = if is_paced { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// Denies a waiter: whenever the store was asked for it, it had less, and what came back meanwhile
    /// went to others.
    pub(super) fn deny_in_line(&self, now: Instant, cost: u64) -> Decision {
        let decision = self.deny(now, cost, Source::Store);
        let remaining = decision.remaining.min(cost.saturating_sub(1));
        let retry_after = decision.retry_after.map(|wait| wait.max(self.view.trip()));
        Decision { remaining, retry_after, ..decision }
    }

    /// The answer that this key waits for should have come long ago, as calls go now: nobody waits for it any
    /// more, since most would wait in vain. It serves who asks after it has come.
    pub(super) fn is_overdue(&self, now: Instant, patience: Micros) -> bool {
        self.calls.is_overdue(now, patience)
    }

    /// Turns a check away because the store has not answered in time. It may be slow, or asked too much: that
    /// is no outage, and nothing is charged.
    pub(super) fn turn_away(&self, now: Instant, cost: u64, wait: Micros) -> Decision {
        let decision = self.answer(now, cost, turned_away(self.view.rule(), wait));
        let most = if decision.verdict == Verdict::Deny { cost.saturating_sub(1) } else { u64::MAX };
        Decision { remaining: decision.remaining.min(most), ..decision }
    }

    /// Fills in the numbers of a decision.
    pub(super) fn answer(&self, now: Instant, cost: u64, ending: Resolution) -> Decision {
        let earliest = self.view.clock().earliest(now);
        if let [_] = &self.view.rule().limits[..] {
            // Most rules have one limit, and every check comes by here: no array of eight is filled for it.
            let shown = self.shown_of(0, now, self.holdings.unspent(), self.releasable(now));
            return answer::decision(self.view.rule(), &[shown], earliest, cost, ending);
        }
        let mut shown = [Counter::default(); MAX_LIMITS];
        answer::decision(self.view.rule(), self.show(now, &mut shown), earliest, cost, ending)
    }

    /// How each limit stands, as far as is known.
    pub(in crate::core) fn standings(&self, now: Instant) -> Vec<Standing> {
        let mut shown = [Counter::default(); MAX_LIMITS];
        answer::standings(self.view.rule(), self.show(now, &mut shown), self.view.clock().earliest(now))
    }

    /// The counters less what this node holds, and with what passed on credit.
    fn show<'a>(&self, now: Instant, into: &'a mut [Counter; MAX_LIMITS]) -> &'a [Counter] {
        let (held, releasable) = (self.holdings.unspent(), self.releasable(now));
        let shown = &mut into[..self.view.rule().limits.len()];
        for (index, counter) in shown.iter_mut().enumerate() {
            *counter = self.shown_of(index, now, held, releasable);
        }
        shown
    }

    /// The counter that is shown of one limit. `held`: all unspent tokens here; `releasable`: those of them that count as left.
    fn shown_of(&self, index: usize, now: Instant, held: u64, releasable: u64) -> Counter {
        let limit = &self.view.rule().limits[index];
        let mut counter = self.view.charged_of(index, held);
        if limit.algorithm == Algorithm::Gcra {
            counter.release(limit, releasable);
            if let Some(credit) = self.outage.credit() {
                counter.debit(limit, self.view.clock().earliest(credit.at), credit.tokens);
            }
            return counter;
        }
        // What is known may run ahead of the window whose tokens are being spent.
        if let Some(at) = self.holdings.lease().window(index, now).filter(|at| *at != counter.at) {
            counter = Counter { used: limit.count, prev: 0, at };
        }
        counter.release(limit, releasable);
        counter
    }

    /// What is held of windows at hand, and so counts as left.
    fn releasable(&self, now: Instant) -> u64 {
        if on(Mutant::CountsNextWindowAsLeft) {
            self.holdings.lease().held()
        } else {
            self.holdings.lease().current(now)
        }
    }

    /// What a check of `cost` would be answered, charging nothing.
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
            // A window may be over that was not looked at since: then all is left.
            if denial.remaining < cost {
                return denial;
            }
        }
        if self.is_away(now) && !is_held {
            return self.peek_offline(now, cost, fleet);
        }
        self.answer(now, cost, Resolution::allow(source))
    }

    /// Whether these are the limits that apply to it.
    pub(in crate::core) fn has_rule(&self, rule: &Rule) -> bool {
        **self.view.rule() == *rule
    }

    /// Whether this is the timer that it waits for: then it waits for none any more.
    pub(in crate::core) fn take_timer(&mut self, at: Instant) -> bool {
        let is_it = self.wake == Due::at(at);
        self.wake = if is_it { Due::NEVER } else { self.wake };
        is_it
    }

    /// Sees to it that the key is looked at by then. When the shard's timer has to be set, if it has to.
    pub(in crate::core) fn wake_by(&mut self, due: Due) -> Option<Instant> {
        if due >= self.wake {
            return None;
        }
        self.wake = due;
        due.time()
    }

    /// The digest that names the key in calls.
    pub(super) fn id(&self) -> Digest {
        Digest(self.digest)
    }

    /// Index of the policy's counts in the shard.
    pub(super) fn policy(&self) -> u32 {
        self.policy
    }

    /// Tokens that were lent to this node and not spent, whether they can be spent now or not.
    pub(in crate::core) fn all_held(&self) -> u64 {
        self.holdings.lease().held() + self.holdings.waiting_to_return()
    }

    /// Tokens that can be spent now.
    pub(in crate::core) fn usable(&self, now: Instant) -> u64 {
        self.holdings.lease().usable_by(now, now)
    }

    /// As listings show it.
    pub(in crate::core) fn listed(&self, now: Instant) -> KeyInfo {
        KeyInfo {
            digest: Digest(self.digest),
            key: Some(self.name.clone()),
            rule: self.view.rule().clone(),
            held: self.holdings.lease().held(),
            decision: self.answer(now, 0, Resolution::allow(Source::Lease)),
        }
    }

    /// Nothing would be lost by forgetting this key, but for a rate of use and denials.
    pub(in crate::core) fn is_quiet(&self) -> bool {
        self.line.is_empty() && self.calls.are_done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon knows millions of keys. What few of them have at a time (calls under way, who waits, an outage, peers)
    /// stands in boxes.
    #[test]
    fn a_key_at_rest_is_small() {
        assert!(size_of::<LeasedKey>() <= 432, "{} bytes", size_of::<LeasedKey>());
    }
}
