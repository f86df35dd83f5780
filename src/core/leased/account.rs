//! What a call reports to the store of this node's tokens, and how much it may ask for. Part of `key.rs`.
//!
//! The store sets aside what it lends of a bucket, and charges it when the node reports it as spent: that is the
//! node's account. Until the store has heard of it, the node counts as the store will. A call reports the account,
//! and what this node knows of each limit in case the store has lost it; and it asks for an amount that leaves other
//! nodes their part.

use super::entitlement::Entitlement;
use super::key::LeasedKey;
use crate::core::batch::refill_interval;
use crate::core::call::{Acquire, Ages, Call, Claim, Counter, Frees, Grant, Known, Op, Voided, Window};
use crate::core::entitled::{fills_from, generation, lapses, silent_from, window_end};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros, StoredTime, Timestamp};

/// A return that this node sends now may arrive at the store this much later. By then a connection that is stuck has been given up.
const ON_THE_WAY: Micros = Micros::from_secs(5);

/// A refund is kept here only while a bucket owes so many times as much, because other nodes may be refunded a part of their spending
/// meanwhile.
const OWED_TIMES: u64 = 2;

/// A refund that could be kept here for no longer than this goes to the store at once: no check is likely to spend it in so short a time.
const LEAST_KEPT: Micros = Micros(20_000);

/// A node that is alone with a limit asks for at most so many tenths of it, so that a node that joins finds some. Of
/// a window before it begins the store lends no more either. With three tenths, plenty-left costs 279 calls per 1000
/// checks instead of 227.
const ALONE_TENTHS: u64 = 6;

/// That part is rounded down, because others would be denied although less than two fifths of a limit was asked for. Of a limit
/// of fewer tokens it is rounded up: there a token is so large a part that windows of two to four cost up to a seventh more calls.
const FEW: u64 = 10;

/// A key that uses up its lease within this fraction of a refill interval could not get the next lease in time, so it
/// takes this node's whole part at once. If the fraction were a whole interval, nodes would take what others lack:
/// 96.7 % of second-1x would be used instead of 98.9.
const FLOOD_PART: u64 = 8;

/// Tokens that are used up within this time would be gone before several calls in turn could ask for them.
const MOMENT: Micros = Micros(250_000);

impl LeasedKey {
    /// The counters as the store will have them when it hears what is held of buckets: see [`LeasedKey::charge`].
    pub(super) fn charged(&self) -> [Counter; MAX_LIMITS] {
        self.view.charged(self.unspent())
    }

    /// Brings the counters to what the store has once it hears what is held of buckets, when `returned` tokens are
    /// returned.
    pub(super) fn charge(&mut self, returned: u64) {
        self.view.charge(self.unspent(), returned);
    }

    /// Abandons an acquire, and returns what the next return tells the store of it. A return before it may have been lost, too: what
    /// that reported is spent all the same, and the store would take it for free.
    pub(super) fn void_order(&mut self, call: &Call) -> Option<Voided> {
        let order = self.view.void_order(call)?;
        Some(Voided { reported: order.reported.saturating_add(self.rare.calls.reported()).min(MAX_COUNT), ..order })
    }

    /// Takes the abandoned acquire. What a bucket was charged at once for it may only be taken back until the bucket
    /// may have filled up: then the charge has leaked away, and a credit would admit too much.
    pub(super) fn take_doubtful(&mut self, now: Instant) -> Option<Voided> {
        let (order, sent) = self.rare.calls.take_doubtful()?;
        let passed = now.since(sent) + ON_THE_WAY;
        let leaks = |limit: &Limit| gcra::cost(limit, order.need.min(limit.burst)) <= passed;
        let has_leaked = self.view.rule().limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra && leaks(limit));
        Some(if has_leaked { Voided { need: 0, ..order } } else { order })
    }

    /// What the store is told of an abandoned acquire, together with the return of `returned` tokens. Where there is none, what the
    /// return reports is remembered until the store has answered.
    pub(super) fn voided_by_now(&mut self, order: Option<Voided>, returned: u64) -> Option<Voided> {
        let kept = self.unspent().saturating_add(returned);
        if order.is_none() {
            self.rare.calls.note_report(self.view.spent(kept));
        }
        order.map(|order| self.view.voided_by_now(order, kept))
    }

    /// Records that tokens have just left the lease. Those that the store has charged already go first, and need not
    /// be reported.
    pub(super) fn note_spent(&mut self, now: Instant, tokens: u64) {
        if !self.view.has_account() {
            return;
        }
        self.holdings.note_spent(tokens);
        self.view.note_spent(now, tokens, self.unspent().saturating_add(tokens));
    }

    /// Records that tokens are back in the lease that were spent, but not reported.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        self.holdings.note_unspent(tokens);
        self.view.note_unspent(tokens);
    }

    /// How long ago unreported tokens were spent, when `returned` tokens are returned. The store will charge them as
    /// of then.
    pub(super) fn ages(&self, now: Instant, returned: u64) -> Ages {
        self.view.ages(now, self.unspent().saturating_add(returned))
    }

    /// Held tokens, as they are reported to the store.
    pub(super) fn held(&self) -> u64 {
        if on(Mutant::SpendingNotTold) {
            return self.view.lent(0);
        }
        self.unspent()
    }

    /// Held tokens that the store has charged to a bucket already, because a waiter needed them.
    pub(super) fn charged_and_held(&self) -> u64 {
        self.view.charged_and_held(self.unspent())
    }

    /// Keeps a refund here for the next checks, if this node has an open account. The next acquire or return reports
    /// the tokens as held, and the store takes their charge back. A charge leaks away with time, so the refund is
    /// kept only while the bucket is known to owe at least twice as much.
    pub(super) fn keep_refund(&mut self, now: Instant, tokens: u64, filled: Option<StoredTime>) -> bool {
        let rule = self.view.rule().clone();
        let ([limit], [counter, ..]) = (&rule.limits[..], self.charged()) else { return false };
        let is_idle = self.rare.line.is_empty() && !self.rare.calls.is_acquiring() && !self.has_account_under_way();
        let has_account = limit.algorithm == Algorithm::Gcra && self.holdings.lease().has_account();
        let is_known = is_idle && !self.rare.calls.has_doubtful() && !self.has_unreported();
        if !is_known || !has_account || self.view.answered().is_none() || self.is_away(now) {
            return false;
        }
        // If another node spent the tokens, the store must take them back, because this node was never lent them.
        if tokens > self.holdings.spent_here() {
            return false;
        }
        // A bucket whose limit was reduced may owe more than it holds. Then nothing that comes back can be spent yet.
        if counter.at > self.view.clock().earliest(now) + limit.depth() {
            return false;
        }
        let owed =
            counter.at - gcra::cost(limit, self.charged_and_held().saturating_add(tokens.saturating_mul(OWED_TIMES)));
        let until = self.view.clock().before(filled.map_or(owed, |filled| owed.min(filled.time())));
        if self.holdings.lease().until().or(until).has_come(now + LEAST_KEPT) {
            return false;
        }
        self.holdings.put_back(tokens);
        let leaving = &mut self.rare.leaving;
        leaving.keep_unclaimed(Some(leaving.unclaimed_until().map_or(until, |kept| kept.min(until))));
        self.note_unspent(tokens);
        true
    }

    /// Spent tokens that the store still takes to be held, so that they can be held again; the least of all buckets.
    /// Tokens that waiters needed are not among them: the store has charged those already.
    pub(super) fn unreported(&self) -> u64 {
        self.view.unreported(self.unspent())
    }

    /// Whether tokens of a bucket were spent without a report to the store.
    pub(super) fn has_unreported(&self) -> bool {
        self.view.has_account() && self.unreported() > 0
    }

    /// By how much a wait may end too early, because this node's clock drifts from the store's after it was last
    /// read; and by how much later than it was the store will take the last spending of a bucket to have been, when
    /// it hears of it after `wait`. A client that comes a moment too early would be denied once more. `spent_at` is when unreported tokens
    /// were spent of a bucket, the earliest of all.
    pub(super) fn drift_margin(&self, now: Instant, wait: Micros, spent_at: Option<Instant>) -> Micros {
        let age = spent_at.map_or(Micros::ZERO, |at| now.since(at).rounded_early()).min(self.view.rule().lease_life());
        let since = self.view.clock().age(now).max(age);
        let span = since + wait;
        Micros(span.0 - span.rounded_early().0 + 1)
    }

    /// By how much later than it was the store will take spending of a bucket to have been of which it is being told: the
    /// call says how long ago that was, and not for how long it has been under way.
    pub(super) fn report_margin(&self) -> Micros {
        let Some(Op::Acquire(order)) = self.rare.calls.acquire().map(|acquire| &acquire.call.op) else {
            return Micros::ZERO;
        };
        let known = self.view.rule().limits.iter().zip(&order.known);
        let is_reported = known.into_iter().any(|(limit, known)| limit.algorithm == Algorithm::Gcra && known.used > 0);
        if is_reported { self.view.trip() } else { Micros::ZERO }
    }
}

/// An acquire says until when the store may free by it what is set aside for its node. Where a trip to the store takes no more than
/// this fraction of a window, that is the end of the window in which the acquire is sent: a node that loses the store meanwhile
/// may then spend what is set aside from the next window on.
const QUICK_PART: u64 = 16;

/// Where a trip takes longer, the acquire may free it for this fraction of a window after it was sent, or for two trips, whichever
/// is longer: less, and acquires would come too late to be lent anything; more, and a node that has lost the store has to
/// wait for more windows.
const FREES_PART: u64 = 4;

/// The shortest and the longest such time, in microseconds, for the same reasons.
const FREES: (u64, u64) = (100_000, 2_000_000);

/// A node that expects fewer checks in a period of accounts has no part of a bucket: it would often count as silent, and others be lent less,
/// though all is well.
const SELDOM: u64 = 4;

/// How much later a share of a bucket begins to fill than it might, because clocks drift apart until it does.
const FILLS_LATER: Micros = Micros(10_000);

/// What is set aside for this node.
impl LeasedKey {
    /// What an acquire that is sent now says of the tokens that the store sets aside for this node. The acquire frees them for others in the
    /// window in which it is executed, so this node may not spend them any more in this window, nor in any other in which that may be. While
    /// the store is away, the acquire frees nothing and only shows whether the store answers.
    pub(super) fn claim(&mut self, now: Instant, order: &Acquire) -> Option<Claim> {
        if !self.view.rule().is_entitled() {
            return None;
        }
        let (limit, latest) = (self.view.rule().limits[0], self.view.clock().at_most(now));
        let tokens = self.rare.outage.entitlement().believed(self.view.clock().latest(now));
        let believes = self.rare.outage.entitlement().is_known().then_some(tokens);
        if self.rare.outage.phase().is_outage() {
            return Some(Claim { believes, demand: 0, frees: Frees::Never, owes: 0 });
        }
        if self.view.has_account() {
            return Some(self.claim_of_bucket(latest, believes));
        }
        let used = self.demand.tuner().used_in(limit.period);
        let demand = used.max(order.need).clamp(1, limit.count);
        let (trip, end) = (self.view.trip().0, window_end(&limit, latest));
        let life = Micros((limit.period.0 / FREES_PART).max(2 * trip).clamp(FREES.0, FREES.1));
        if limit.algorithm == Algorithm::FixedFromFirst {
            // Such a window may open with the call, so that it names as many windows as it lives long.
            let last = latest + life.min(Micros(FREES.0.max(2 * trip)));
            let frees = if tokens == 0 { Frees::AtAnyTime } else { Frees::Until(last) };
            self.rare.outage.change_entitlement(|entitlement| entitlement.bar(last + limit.period));
            return Some(Claim { believes, demand, frees, owes: 0 });
        }
        let last = if trip * QUICK_PART <= limit.period.0 { end - Micros(1) } else { latest + life };
        let barred = window_end(&limit, last);
        // A node for which nothing is set aside, as far as it knows, can spend nothing of it.
        let frees = if tokens == 0 { Frees::AtAnyTime } else { Frees::Until(last) };
        let ahead = order.window.begins().map_or(barred, |begins| begins + limit.period);
        self.rare.outage.change_entitlement(|entitlement| entitlement.bar(barred.max(ahead)));
        Some(Claim { believes, demand, frees, owes: 0 })
    }

    /// The same of a bucket. A node that calls too seldom to be known to call has no part.
    fn claim_of_bucket(&mut self, latest: Timestamp, believes: Option<u64>) -> Claim {
        let (tuner, period) = (self.demand.tuner(), gcra::UNIT);
        let is_seldom = tuner.expects_fewer(SELDOM, period) || !tuner.is_warm();
        let demand = if is_seldom { 0 } else { tuner.used_in(period).min(u32::MAX.into()) };
        let life = Micros((2 * self.view.trip().0).clamp(FREES.0, FREES.1));
        let end = Timestamp((latest.0 / period.0 + 1) * period.0);
        let last = if latest + life < end { end - Micros(1) } else { latest + life };
        let frees = if believes.unwrap_or(0) == 0 { Frees::AtAnyTime } else { Frees::Until(last) };
        let fills = self.fills_from(last);
        self.rare.outage.change_entitlement(|entitlement| entitlement.bar(fills));
        Claim { believes, demand, frees, owes: self.level(latest) }
    }

    /// When this node's share of a bucket begins to fill, by the latest that the store's clock can show, if its last acquire was executed
    /// at that time of it.
    fn fills_from(&self, executed: Timestamp) -> Timestamp {
        fills_from(executed) + self.doubt_of_clock()
    }

    fn doubt_of_clock(&self) -> Micros {
        self.view.clock().trip() + self.view.trip() + FILLS_LATER
    }

    /// What this node has admitted on its part of a bucket, and the bucket has not forgotten.
    pub(super) fn level(&self, clock: Timestamp) -> u64 {
        let budget = self.rare.outage.budget().filter(|_| self.view.rule().is_entitled_bucket());
        budget.map_or(0, |budget| budget.level(self.view.rule(), clock))
    }

    /// From when on this node would count as silent, if it has a part of a bucket.
    pub(super) fn silent_from(&self) -> Option<Timestamp> {
        let fills = self.rare.outage.entitlement().fills_from().filter(|_| self.view.rule().is_entitled_bucket())?;
        Some(silent_from(fills - self.doubt_of_clock()))
    }

    /// The store has answered an acquire with that claim, which was first sent then.
    pub(super) fn note_claimed(&mut self, sent: Instant, claim: &Claim, window: Window, grant: &Grant) {
        // A call that frees nothing at the time at which it is executed, as it came too late, is answered with what was set aside as of an
        // earlier call.
        if !claim.frees.at(grant.now) {
            return;
        }
        let limit = self.view.rule().limits[0];
        let executed = self.view.clock().surely(sent).min(grant.now);
        if self.view.has_account() {
            let (barred, lapses) = (self.fills_from(grant.now), lapses(generation(executed)));
            self.rare.outage.change_entitlement(|entitlement| entitlement.give(grant.entitled, lapses, barred));
            // The share is empty again, and what it had admitted is charged.
            return self.rare.outage.drop_budget();
        }
        if limit.algorithm == Algorithm::FixedFromFirst {
            // The acquire was executed in the window that the answer names, unless the store answers it once more: then in that one or in one
            // before. Where none has opened, because nothing was wanted, it freed nothing.
            let end = if grant.replayed { grant.now + limit.period } else { grant.counters[0].at.max(grant.now) };
            let lapses = lapses(generation(executed));
            return self.rare.outage.change_entitlement(|entitlement| {
                entitlement.unbar();
                entitlement.give(grant.entitled, lapses, end);
            });
        }
        let end = window_end(&limit, grant.now);
        let barred = window.begins().map_or(end, |begins| end.max(begins + limit.period));
        let lapses = lapses(generation(executed));
        self.rare.outage.change_entitlement(|entitlement| entitlement.give(grant.entitled, lapses, barred));
    }

    /// The acquire that was sent last surely was not executed, and never will be: what it would have freed is still set aside.
    pub(super) fn note_unsent(&mut self, call: &Call) {
        let Op::Acquire(Acquire { claim: Some(claim), .. }) = call.op else { return };
        if claim.frees != Frees::Never {
            self.rare.outage.change_entitlement(Entitlement::unbar);
        }
    }

    /// Whether something is set aside for this node, as far as it knows.
    pub(super) fn is_entitled(&self, now: Instant) -> bool {
        self.view.rule().is_entitled() && self.rare.outage.entitlement().believed(self.view.clock().latest(now)) > 0
    }

    /// The acquire with which this node says that nothing need be set aside for it. What it has spent of that is paid.
    pub(super) fn renouncement(&mut self, now: Instant) -> Acquire {
        self.rare.outage.change_entitlement(Entitlement::renounce);
        let debt = self.debt(now);
        let owes = self.level(self.view.clock().latest(now));
        let claim = Some(Claim { believes: Some(0), demand: 0, frees: Frees::AtAnyTime, owes });
        Acquire { need: debt, want: debt, claim, ..self.order(now) }
    }
}

impl LeasedKey {
    /// What this node knows to be spent or held of each limit: of the present window, or, if nothing of that was
    /// lent, of the one before, as long as that may still be open.
    fn known(&self, now: Instant) -> [Known; MAX_LIMITS] {
        let mut known = self.view.known(now, self.held());
        if on(Mutant::BucketNotBroughtBack) || on(Mutant::FirstLimitBroughtBack) {
            for (index, (limit, known)) in self.view.rule().limits.iter().zip(&mut known).enumerate() {
                let is_bucket = limit.algorithm == Algorithm::Gcra;
                if if on(Mutant::BucketNotBroughtBack) { is_bucket } else { index > 0 } {
                    *known = Known::default();
                }
            }
        }
        known
    }

    /// Most tokens worth asking for: this node's part of the smallest limit. The store counts nodes for a while after
    /// they are gone, so the fleet's number is used if it is known.
    pub(super) fn ceiling(&self, fleet: Option<FleetView>) -> u64 {
        let live = fleet.filter(|fleet| fleet.is_steady).map_or(u32::MAX, |fleet| fleet.live);
        self.ceiling_among(u64::from(self.view.nodes().min(live)))
    }

    /// The same, where so many nodes lease the key.
    pub(super) fn ceiling_among(&self, nodes: u64) -> u64 {
        let smallest = self.smallest();
        if nodes > 1 {
            return smallest.div_ceil(nodes);
        }
        // Of a bucket, a node that is alone is also lent tokens that trickle in soon.
        let coming = |limit: &Limit| if limit.algorithm == Algorithm::Gcra { gcra::coming(limit) } else { 0 };
        let coming = self.view.rule().limits.iter().map(coming).min().unwrap_or(0);
        let part = if smallest < FEW { (smallest * ALONE_TENTHS).div_ceil(10) } else { smallest * ALONE_TENTHS / 10 };
        part.max(coming.min(smallest))
    }

    /// The same where whoever wants some asks this node: all of a limit of few tokens. Of a large one a part stays in the store, for a peer that cannot
    /// reach this node.
    pub(super) fn ceiling_for_all(&self) -> u64 {
        let smallest = self.smallest();
        if smallest < FEW { smallest } else { self.ceiling_among(1) }
    }

    /// Tokens of the smallest limit.
    fn smallest(&self) -> u64 {
        self.view.rule().limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1)
    }

    /// An acquire of nothing, with all that every acquire reports: the account, and what this node knows of each
    /// limit. Until when it may be executed is said when it is sent.
    pub(super) fn order(&self, now: Instant) -> Acquire {
        Acquire {
            need: 0,
            want: 0,
            least: 1,
            window: Window::Current,
            epoch: self.view.epoch(),
            held: self.held(),
            ages: self.ages(now, 0),
            known: self.known(now),
            until: None,
            claim: None,
        }
    }

    /// The call for `op`, to be sent at `now`.
    pub(super) fn call(&self, now: Instant, id: u64, op: Op) -> Call {
        Call { id, digest: self.id(), rule: self.view.rule().clone(), op, sent_at: now }
    }

    /// Upper bound of a refund: what the store has counted, less the tokens still held here. More would credit tokens that
    /// nobody spent.
    pub(super) fn refundable(&self, now: Instant) -> u64 {
        if self.view.answered().is_none() {
            return u64::MAX;
        }
        let most = self.refundable_of_each(now).max().unwrap_or(0);
        // Unspent tokens are no part of a bucket's debt, so a refund can at most empty the debt.
        if self.view.is_of_buckets() && most > 0 { u64::MAX } else { most }
    }

    /// Whether one limit was charged more than `cost` and another less.
    pub(super) fn exceeds_some(&self, now: Instant, cost: u64) -> bool {
        let differ = || self.refundable_of_each(now).any(|charged| charged < cost);
        self.view.rule().limits.len() > 1 && self.view.answered().is_some() && differ() && self.refundable(now) > 0
    }

    fn refundable_of_each(&self, now: Instant) -> impl Iterator<Item = u64> {
        // The result may be too high, because the store takes back no more than a full bucket holds. Too low a result
        // would lose a refund.
        let (earliest, held, counters) =
            (self.view.clock().earliest(now), self.holdings.lease().current(now), self.charged());
        self.view.rule().limits.iter().zip(counters).map(move |(limit, counter)| match limit.algorithm {
            // Other nodes may have spent what they hold.
            Algorithm::Gcra => {
                let owed = counter.at.since(earliest);
                // A part of a token counts as a token: the bucket is full only when that is taken back, too.
                let spent = gcra::tokens_in(limit, owed).saturating_add(u64::from(owed.0 > 0)).min(limit.burst);
                spent.saturating_add(counter.used.saturating_sub(held))
            }
            // What was charged in an earlier window stays charged.
            _ => counter.used.saturating_sub(held),
        })
    }

    /// Whether `part` tokens are surely used up within a small part of a refill interval, and within a moment. Tokens
    /// that last longer can be asked for in a few calls, as they are used. Without this bound, a flood of one second
    /// would take the tokens of ten minutes. Limits whose tokens trickle in are never taken at once.
    pub(super) fn is_flooded(&self, part: u64) -> bool {
        let most = if on(Mutant::ChanceTakenForFlood) { Micros::ENDLESS } else { MOMENT };
        let soon = Micros(refill_interval(self.view.rule()).0 / FLOOD_PART).min(most);
        self.view.is_confirmed()
            && !self.view.rule().limits.iter().any(Limit::trickles)
            && self.demand.tuner().uses(part, soon)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::store_view::StoreView;
    use super::*;
    use crate::core::call::JUST_NOW;
    use crate::core::key::Digest;
    use crate::core::rule::Rule;
    use crate::core::store_clock::StoreClock;

    #[test]
    fn what_an_order_told_counts_once_when_it_is_given_up() {
        let limit = Limit::parse("10/1s burst 10").unwrap();
        let (start, now) = (Instant(0), Timestamp(5_000_000));
        let rule = Arc::new(Rule::of("p", &[limit]));
        let mut view = StoreView::new(&rule, 1, StoreClock::new(start, start, now));
        let order = |held| Acquire {
            need: 0,
            want: 8,
            least: 1,
            window: Window::Current,
            epoch: 1,
            held,
            ages: JUST_NOW,
            known: [Known::default(); MAX_LIMITS],
            until: None,
            claim: None,
        };
        view.note_counter(0, Counter { used: 8, prev: 0, at: now });
        view.note_lent(0, now.stored(), 8, &order(0));
        view.note_spent(start, 6, 8);
        let digest = Digest(0);
        let call = Call { id: 1, digest, rule, op: Op::Acquire(order(2)), sent_at: start };
        assert_eq!(view.void_order(&call).map(|order| order.reported), Some(6));
        view.note_spent(start, 2, 2);
        assert_eq!(view.charged_of(0, 0).left(&limit, now), 2, "eight of ten were spent");
    }
}
