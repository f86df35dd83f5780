//! One key of a concurrent limit: how many permits this node has, who holds them, and who waits for one.
//!
//! The store lends permits for some seconds at a time. A node reports how many its clients hold and how many it would
//! like; each report replaces the one before, so it may be repeated. Permits are given to clients without asking the
//! store; those that were unused for a while are returned. One call per key is under way at a time.
//!
//! Inputs change what is known of the key: a check, a release, an answer of the store, its timer (`renewal.rs`), or the end of the node.
//! Each then calls `advance` (`advance.rs`) with the one [`Wish`] that the state of the key does not show. As of leased keys, `advance` is
//! the only function that calls the store, and that answers those who wait. Part of `concurrent.rs`.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::answer::{Resolution, turned_away};
use crate::core::call::{Call, Grant, Op, StoreError};
use crate::core::calls::{Flight, Waiter};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::key::Digest;
use crate::core::limit::Limit;
use crate::core::line::Line;
use crate::core::mutant::{Mutant, on};
use crate::core::permits::{Permits, View};
use crate::core::request::{KeyInfo, Outcome, Request};
use crate::core::rule::{OnStoreLoss, Rule};
use crate::core::share::{WHOLE, share_ppm};
use crate::core::time::{Due, Instant, Micros};

mod advance;
mod renewal;

/// How long permits stay a node's without another report. Longer, and those of a killed node are missing for longer; shorter, and more
/// reports are needed.
pub(in crate::core) const LEASE: Micros = Micros::from_secs(10);

/// The same where a node that has lost the store goes on within the slots that it was lent ([`Rule::is_entitled_concurrent`]). Longer, and those
/// of a node that was killed are missing for longer; shorter, and a node is without slots sooner in a long outage.
pub(in crate::core) const ENTITLED_LEASE: Micros = Micros::from_secs(600);

/// A node reports again after so long, a third of [`LEASE`], however long its permits are lent. So the store may be away for six seconds
/// before permits end that clients hold. If this were longer, the store could be away for less time; shorter, it would cost more reports.
const RENEW: Micros = Micros(LEASE.0 / 3);

/// A node that may give no more than this fraction of its permits to clients asks for more before anybody must wait. With a larger
/// one, nodes hold what others lack; with a smaller one, more clients wait.
const LOW_PART: u64 = 4;

/// Time after a failure until the store is asked again: the same as for leased keys.
const ASK_AGAIN: Micros = Micros(250_000);

/// When the next call to the store is overdue by this much, the store no longer counts as away: nobody has asked for the key meanwhile,
/// so its present state is unknown.
const STALE: Micros = Micros(1_000_000);

/// How long unused permits are kept where few are left, and elsewhere. Longer, and others lack them for longer; shorter, and clients that come
/// again wait for the store.
const IDLE: (Micros, Micros) = (Micros(50_000), Micros::from_secs(1));

/// What an input wishes of a key that its state does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// Nothing but what is due for whatever reason: the call under way has lost its connection, for example.
    Nothing,
    /// To ask for permits before anybody must wait for them, because a check has just been decided by what is here.
    Ahead,
    /// To ask for permits for the check that has just joined the line.
    Join,
    /// To serve those who wait with what a client has released.
    Released,
    /// To serve and to deny those who wait by what the store has answered, or without the store, which is away.
    Answered,
    /// To ask the store again, which did nothing because it knew a higher id.
    Again,
    /// To turn away all who wait in line, because the call was not sent: too many calls were waiting.
    TurnAway,
    /// To look at everything, because the timer is due.
    Look,
    /// To return the permits that are not in use, because the node leaves or the key is about to be forgotten.
    HandBack,
}

/// The state of one key at this node.
#[derive(Debug)]
pub(in crate::core) struct ConcurrentKey {
    digest: Digest,
    key: Box<[u8]>,
    pub(in crate::core) rule: Arc<Rule>,
    /// Index of the policy's counts in the shard.
    policy: usize,
    pub(in crate::core) permits: Permits,
    /// Permits that the store counts as this node's until `until`, including those that clients hold.
    lent: u64,
    until: Due,
    /// Until when the store may count more than `lent` as this node's, because it may have executed a call that it was not heard to answer.
    /// It matters where a lease is long: others would lack those permits for as long.
    doubt_until: Due,
    /// Permits of all other nodes, and how many nodes have some, as of the store's last answer.
    others: u64,
    nodes: u32,
    answered: Option<Instant>,
    flight: Option<Flight>,
    line: Line,
    /// When to ask the store again, if it does not answer.
    away: Option<Instant>,
    /// The store is known to have no more permits until then.
    denied_until: Due,
    /// Most permits in use since some were last returned or asked for.
    peak: u64,
    /// When unused permits are returned.
    idle_at: Due,
    /// When the store must hear that the permits are still in use.
    renew_at: Due,
    last_check: Instant,
    pub(in crate::core) wake: Due,
}

impl ConcurrentKey {
    pub(in crate::core) fn new(cx: &mut Context, now: Instant, request: &Request<'_>) -> Self {
        Self {
            digest: request.digest,
            key: crate::core::page::name(request.key),
            rule: request.rule.clone(),
            policy: cx.policy(request.rule) as usize,
            permits: Permits::default(),
            lent: 0,
            until: Due::AT_ONCE,
            doubt_until: Due::AT_ONCE,
            others: 0,
            nodes: cx.nodes,
            answered: None,
            flight: None,
            line: Line::default(),
            away: None,
            denied_until: Due::AT_ONCE,
            peak: 0,
            idle_at: Due::NEVER,
            renew_at: Due::NEVER,
            last_check: now,
            wake: Due::NEVER,
        }
    }

    /// The key as listings show it.
    pub(in crate::core) fn listed(&self, cx: &Context, now: Instant) -> KeyInfo {
        KeyInfo {
            digest: self.digest,
            key: Some(self.key.clone()),
            rule: self.rule.clone(),
            held: self.usable(now).saturating_sub(self.permits.used()),
            decision: self.peeked(cx, now, 0),
        }
    }

    /// Applies other limits. Clients keep the permits that they hold.
    pub(in crate::core) fn adopt(&mut self, rule: &Arc<Rule>) {
        if !Arc::ptr_eq(&self.rule, rule) {
            self.rule = rule.clone();
            self.denied_until = Due::AT_ONCE;
        }
    }

    /// Whether the key's store server is away.
    pub(in crate::core) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Returns permits that are not in use.
    pub(in crate::core) fn hand_back(&mut self, cx: &mut Context, now: Instant) {
        self.advance(cx, now, Wish::HandBack);
    }

    /// Releases a permit; false when there is no such permit here.
    pub(in crate::core) fn release(&mut self, cx: &mut Context, now: Instant, id: NonZeroU64) -> bool {
        let released = self.permits.release(id);
        if released {
            self.advance(cx, now, Wish::Released);
        }
        released
    }

    fn limit(&self) -> &Limit {
        &self.rule.limits[0]
    }

    /// Permits that this node may give to clients.
    fn usable(&self, now: Instant) -> u64 {
        if self.would_outlast(now) { 0 } else { self.counted(now).min(self.most()) }
    }

    /// Whether a client could hold a permit for longer than the store keeps it from others, if it were given now. Where it cannot, no
    /// permit that was given within a lease is ever beside one that another node was lent.
    fn would_outlast(&self, now: Instant) -> bool {
        let ends = self.rule.is_entitled_concurrent() && !on(Mutant::PermitsOutlastTheLease);
        ends && self.until.has_come(now + self.limit().period)
    }

    /// For how long the store is asked to keep permits from others.
    fn lease(&self, cx: &Context) -> Micros {
        if !self.rule.is_entitled_concurrent() || on(Mutant::EntitledPermitsLapseSoon) {
            return LEASE;
        }
        // A node that leaves is not there to return what its clients keep. That ends with the last permit that it has given.
        if cx.draining { LEASE.max(self.limit().period.rounded_late()) } else { ENTITLED_LEASE }
    }

    /// Whether the store may count more than `lent` as this node's.
    fn is_in_doubt(&self, now: Instant) -> bool {
        !self.doubt_until.has_come(now)
    }

    /// Whether clients of another process, which had this node's name before, may hold permits of which this one knows nothing.
    fn may_inherit(&self, cx: &Context, now: Instant) -> bool {
        self.rule.is_entitled_concurrent() && now < self.inherited_until(cx) && !on(Mutant::InheritedPermitsForgotten)
    }

    /// When the last permit has ended that such a process can have given.
    fn inherited_until(&self, cx: &Context) -> Instant {
        cx.started() + self.limit().period.rounded_late()
    }

    /// Permits that others lack because the store counts them as this node's: where all nodes together have more than the limit, it may
    /// give fewer to clients, or none.
    fn counted(&self, now: Instant) -> u64 {
        if !self.until.has_come(now) || on(Mutant::PermitsBeyondTheLease) { self.lent } else { 0 }
    }

    /// Most permits that this node may have: the limit, or, if all nodes together had more at the store's last
    /// answer, what the others leave of it. An excess after an outage or a loss of data thus ends as permits are
    /// released, however busy the nodes are.
    fn most(&self) -> u64 {
        let count = self.limit().count;
        let is_over = self.lent > 0 && self.lent + self.others > count && !on(Mutant::PermitsStayOver);
        if is_over { count.saturating_sub(self.others) } else { count }
    }

    pub(in crate::core) fn check(
        &mut self,
        cx: &mut Context,
        now: Instant,
        deadline: Instant,
        request: &Request<'_>,
    ) -> Outcome {
        self.last_check = now;
        self.away = self.away.filter(|retry_at| now < *retry_at + STALE);
        let cost = request.cost;
        if cost > self.limit().count {
            let resolution = Resolution::deny(Reason::Cost, Source::Policy);
            return Outcome::Decided(self.answer(cx, now, cost, resolution));
        }
        if request.peek || cost == 0 {
            let fresh = self.answered.is_some_and(|at| now.since(at) < IDLE.1);
            if fresh || self.away.is_some() {
                return Outcome::Decided(self.peeked(cx, now, cost));
            }
            return self.park(cx, now, deadline, 0);
        }
        if let Some(decision) = self.decide(cx, now, cost, Source::Lease) {
            cx.policies[self.policy].1.count(&decision);
            self.advance(cx, now, Wish::Ahead);
            return Outcome::Decided(decision);
        }
        self.park(cx, now, deadline, cost)
    }

    fn park(&mut self, cx: &mut Context, now: Instant, deadline: Instant, cost: u64) -> Outcome {
        if self.line.is_full() || deadline <= now {
            let decision = self.answer(cx, now, cost, turned_away(&self.rule, cx.queue()));
            if cost > 0 {
                cx.policies[self.policy].1.count(&decision);
            }
            return Outcome::Decided(decision);
        }
        let ticket = cx.ticket();
        self.line.join(Waiter::new(ticket, cost, deadline));
        cx.policies[self.policy].1.parked += 1;
        cx.stats.waiting += 1;
        self.advance(cx, now, Wish::Join);
        Outcome::Parked(ticket)
    }

    /// Decides by what is here; `None` when the store must be asked.
    fn decide(&mut self, cx: &mut Context, now: Instant, cost: u64, source: Source) -> Option<Decision> {
        let used = self.permits.used();
        if used + cost <= self.usable(now) && (self.line.is_empty() || source == Source::Store) {
            return Some(self.take(cx, now, cost, source));
        }
        if self.away.is_some() {
            return Some(match self.rule.on_store_loss {
                OnStoreLoss::Allow => self.take(cx, now, cost, Source::Policy),
                OnStoreLoss::Share | OnStoreLoss::Entitled if used + cost <= self.share(cx) => {
                    self.take(cx, now, cost, Source::Share)
                }
                OnStoreLoss::Share | OnStoreLoss::Entitled => {
                    self.answer(cx, now, cost, Resolution::deny(Reason::Share, Source::Share))
                }
                OnStoreLoss::Deny => {
                    let resolution = Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1));
                    self.answer(cx, now, cost, resolution)
                }
            });
        }
        (!self.denied_until.has_come(now) && !self.fits(cost))
            .then(|| self.answer(cx, now, cost, Resolution::deny(Reason::Rate, source)))
    }

    fn take(&mut self, cx: &mut Context, now: Instant, cost: u64, source: Source) -> Decision {
        let id = NonZeroU64::new(cx.id()).unwrap_or(NonZeroU64::MIN);
        let period = self.limit().period;
        let lasts = if on(Mutant::PermitsOutlastTheirTime) { Micros(period.0 * 1_000) } else { period };
        self.permits.take(id, cost, now + lasts);
        self.peak = self.peak.max(self.permits.used());
        let id = if on(Mutant::PermitGivenTwice) { id | NonZeroU64::MIN } else { id };
        Decision { slot: Some(id), ..self.answer(cx, now, cost, Resolution::allow(source)) }
    }

    /// This node's part of the limit while the store is away. Beside permits that are lent for long there is none.
    fn share(&self, cx: &Context) -> u64 {
        if self.rule.is_entitled_concurrent() && !on(Mutant::ShareBesideEntitledPermits) {
            return 0;
        }
        let nodes = cx.fleet.map_or(self.nodes, |fleet| fleet.largest.max(self.nodes));
        let share = u128::from(self.limit().count) * u128::from(share_ppm(nodes)) / u128::from(WHOLE);
        share as u64 // at most the count
    }

    pub(in crate::core) fn peeked(&self, cx: &Context, now: Instant, cost: u64) -> Decision {
        let left = self.limit().count.saturating_sub(self.others + self.permits.used());
        let fits = cost <= left.max(self.usable(now).saturating_sub(self.permits.used()));
        let resolution = match (cost > self.limit().count, fits) {
            (true, _) => Resolution::deny(Reason::Cost, Source::Policy),
            (_, true) => Resolution::allow(Source::Lease),
            (_, false) => Resolution::deny(Reason::Rate, Source::Lease),
        };
        self.answer(cx, now, cost, resolution)
    }

    fn answer(&self, cx: &Context, now: Instant, cost: u64, resolution: Resolution) -> Decision {
        let most = match self.away {
            Some(_) => self.usable(now).max(self.share(cx)),
            None => self.usable(now),
        };
        let view = View { now, clock: cx.first_clock().latest(now), most, others: self.others, slow: IDLE.1 };
        self.permits.decision(self.limit(), view, cost, resolution)
    }

    /// Whether few permits are left here and the store has more, so that it should be asked before anybody must wait; or whether the store,
    /// which was away, may be back.
    fn is_low(&self, now: Instant) -> bool {
        let (used, lent) = (self.permits.used(), self.usable(now));
        match self.away {
            Some(again) => now >= again,
            None => lent.saturating_sub(used) <= lent / LOW_PART && self.left() > 0 && self.denied_until.has_come(now),
        }
    }

    /// Whether so many more permits fit into the limit, by the store's last answer.
    fn fits(&self, cost: u64) -> bool {
        self.others + self.permits.used() + cost <= self.limit().count
    }

    /// Permits that no node had at the store's last answer.
    fn left(&self) -> u64 {
        self.limit().count.saturating_sub(self.others + self.lent)
    }

    /// Takes the outcome of the call under way.
    pub(in crate::core) fn handle_outcome(
        &mut self,
        cx: &mut Context,
        now: Instant,
        call: &Call,
        outcome: Result<Grant, StoreError>,
    ) {
        let Some(under_way) = self.flight.as_mut().filter(|flight| flight.call.id == call.id) else { return };
        let sent = under_way.sent;
        under_way.is_lost = outcome.as_ref().is_err_and(|error| under_way.is_retried(error));
        if !under_way.is_lost {
            self.flight = None;
        }
        let wish = match outcome {
            Err(_) if self.flight.is_some() => Wish::Nothing,
            Ok(grant) if grant.outdated => {
                if cx.skip_ids() {
                    Wish::Again
                } else {
                    Wish::Nothing
                }
            }
            Ok(grant) => {
                let lease = if let Op::Occupy(ask) = call.op { ask.lease } else { LEASE };
                self.learn(cx, now, (sent, lease), &grant);
                Wish::Answered
            }
            Err(StoreError::Busy { wait }) => {
                cx.note_trip(wait);
                Wish::TurnAway
            }
            Err(_) => {
                self.away = Some(now + ASK_AGAIN);
                Wish::Answered
            }
        };
        self.advance(cx, now, wish);
    }

    /// Learns what the store has answered to a call that was sent then, and asked for permits for so long.
    fn learn(&mut self, cx: &mut Context, now: Instant, (sent, lease): (Instant, Micros), grant: &Grant) {
        if self.answered.is_none() && self.may_inherit(cx, now) {
            self.inherit(cx, grant.counters[0].prev);
        }
        self.lent = grant.granted;
        let sent = if on(Mutant::PermitsFromArrival) { now } else { sent };
        let is_bug = self.rule.is_entitled_concurrent() && on(Mutant::EntitledPermitsLapseSoon);
        let lease = if is_bug { ENTITLED_LEASE } else { lease };
        self.until = Due::at(sent + lease.rounded_early());
        self.others = grant.counters[0].used.saturating_sub(self.lent);
        self.nodes = grant.nodes.max(1);
        self.answered = Some(now);
        self.doubt_until = Due::AT_ONCE;
        self.away = None;
        self.renew_at = Due::at(sent + RENEW);
    }

    /// Counts permits as held that were this node's before its first answer. Another process must have been lent them under its name, and its
    /// clients may go on with them until their time is over. Nobody can release them.
    fn inherit(&mut self, cx: &mut Context, had: u64) {
        if let Some(id) = NonZeroU64::new(cx.id()).filter(|_| had > 0) {
            self.permits.take(id, had, self.inherited_until(cx));
        }
    }
}
