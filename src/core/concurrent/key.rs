//! One key of a concurrent limit: how many permits this node has, who holds them, and who waits for one.
//!
//! The store lends permits for some seconds at a time. A node reports how many its clients hold and how many it would
//! like; each report replaces the one before, so it may be repeated. Permits are given to clients without asking the
//! store; those that were unused for a while are returned. One call per key is under way at a time. Part of
//! `concurrent.rs`.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::answer::{Resolution, turned_away};
use crate::core::call::{Call, Grant, Occupy, Op, StoreError};
use crate::core::calls::{Flight, Waiter};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source, Verdict};
use crate::core::key::Digest;
use crate::core::limit::Limit;
use crate::core::line::Line;
use crate::core::mutant::{Mutant, on};
use crate::core::permits::{Permits, View};
use crate::core::request::{KeyInfo, Outcome, Request};
use crate::core::rule::{OnStoreLoss, Rule};
use crate::core::share::{WHOLE, share_ppm};
use crate::core::time::{Due, Instant, Micros};

mod renewal;

/// How long permits stay a node's without another report. Longer, and those of a killed node are missing for longer; shorter, and more
/// reports are needed.
pub(in crate::core) const LEASE: Micros = Micros::from_secs(10);

/// A node reports again after this fraction of [`LEASE`]. So the store may be away for six seconds before permits end
/// that clients hold. With a smaller divisor the store may be away for less time, and a larger one costs more reports.
const RENEW_PART: u64 = 3;

/// A node that may give no more than this fraction of its permits to clients asks for more before anybody must wait. With a larger
/// one, nodes hold what others lack; with a smaller one, more clients wait.
const LOW_PART: u64 = 4;

/// A node asks for so many times the permits that are in use or wanted, so that demand may double until the answer to
/// the next call.
const WANT_TIMES: u64 = 2;

/// A denial is remembered for longer by up to this fraction, at random, so that nodes that were denied together do not ask together.
const JITTER_PART: u64 = 4;

/// Time after a failure until the store is asked again: the same as for leased keys.
const ASK_AGAIN: Micros = Micros(250_000);

/// When the next call to the store is overdue by this much, the store no longer counts as away: nobody has asked for the key meanwhile,
/// so its present state is unknown.
const STALE: Micros = Micros(1_000_000);

/// How long a denial by the store is remembered. Longer, and a permit that is released elsewhere stays unused for longer; shorter, and denied
/// clients make more calls.
const DENIED: Micros = Micros(50_000);

/// How long unused permits are kept where few are left, and elsewhere. Longer, and others lack them for longer; shorter, and clients that come
/// again wait for the store.
const IDLE: (Micros, Micros) = (Micros(50_000), Micros::from_secs(1));

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
        if self.lent > self.permits.used() && self.flight.is_none() {
            self.ask(cx, now, self.permits.used());
        }
    }

    fn limit(&self) -> &Limit {
        &self.rule.limits[0]
    }

    /// Permits that this node may give to clients.
    fn usable(&self, now: Instant) -> u64 {
        self.counted(now).min(self.most())
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
            self.think_ahead(cx, now);
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
        if self.flight.is_none() {
            self.ask_for_line(cx, now);
        }
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

    /// This node's part of the limit while the store is away.
    fn share(&self, cx: &Context) -> u64 {
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

    /// When few permits are left here and the store has more, asks before anybody must wait.
    fn think_ahead(&mut self, cx: &mut Context, now: Instant) {
        let (used, lent) = (self.permits.used(), self.usable(now));
        let low = lent.saturating_sub(used) <= lent / LOW_PART && self.left() > 0 && self.denied_until.has_come(now);
        let back = self.away.is_some_and(|at| now >= at);
        if self.flight.is_none() && !cx.draining && (back || low && self.away.is_none()) {
            self.ask(cx, now, WANT_TIMES * used);
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

    fn ask_for_line(&mut self, cx: &mut Context, now: Instant) {
        self.ask(cx, now, WANT_TIMES * (self.permits.used() + self.line.wanted()));
    }

    /// Reports how many permits are in use, and how many this node would like.
    fn ask(&mut self, cx: &mut Context, now: Instant, want: u64) {
        let used = self.permits.used();
        let waiting = self.line.wanted();
        self.line.note_answers(1);
        let want = want.max(used + waiting).min(self.most().max(used));
        // Permits that this node no longer wants belong to others from now on.
        self.lent = self.lent.min(want);
        let used = if on(Mutant::PermitsNotTold) { 0 } else { used };
        let occupy = Occupy { used, need: waiting, want, lease: LEASE };
        let (id, digest, rule) = (cx.id(), self.digest, self.rule.clone());
        let call = Call { id, digest, rule, op: Op::Occupy(occupy), sent_at: now };
        self.flight = Some(Flight::send(cx, call, now));
        (self.peak, self.idle_at) = (used, Due::NEVER);
    }

    pub(in crate::core) fn handle_outcome(
        &mut self,
        cx: &mut Context,
        now: Instant,
        call: &Call,
        outcome: Result<Grant, StoreError>,
    ) {
        let Some(under_way) = self.flight.as_mut().filter(|flight| flight.call.id == call.id) else { return };
        match outcome {
            Ok(grant) if grant.outdated => {
                self.flight = None;
                if cx.skip_ids() {
                    self.ask_for_line(cx, now);
                }
            }
            Ok(grant) => {
                let sent = under_way.sent;
                self.flight = None;
                self.apply_grant(cx, now, sent, &grant);
            }
            Err(error) if under_way.is_retried(&error) => under_way.send_again(cx, now),
            Err(StoreError::Busy { wait }) => {
                cx.note_trip(wait);
                self.flight = None;
                self.turn_away(cx, now, |_| true);
            }
            Err(_) => self.lose_store(cx, now),
        }
    }

    fn apply_grant(&mut self, cx: &mut Context, now: Instant, sent: Instant, grant: &Grant) {
        self.lent = grant.granted;
        let sent = if on(Mutant::PermitsFromArrival) { now } else { sent };
        self.until = Due::at(sent + LEASE.rounded_early());
        self.others = grant.counters[0].used.saturating_sub(self.lent);
        self.nodes = grant.nodes.max(1);
        self.answered = Some(now);
        self.away = None;
        self.renew_at = Due::at(sent + Micros(LEASE.0 / RENEW_PART));
        self.serve_line(cx, now, Source::Store);
        // The store was asked for these permits and had fewer; or it had more than this node knew, and is asked
        // again.
        let is_denied =
            |key: &Self| key.line.first().is_some_and(|waiter| waiter.answers > 0 && !key.fits(waiter.cost));
        if is_denied(self) {
            self.denied_until = Due::at(now + DENIED + cx.jitter(Micros(DENIED.0 / JITTER_PART)));
        }
        while is_denied(self) {
            let Some(waiter) = self.line.take_first() else { break };
            let decision = self.answer(cx, now, waiter.cost, Resolution::deny(Reason::Rate, Source::Store));
            self.reply(cx, &waiter, decision);
            // The first waiter may have asked for more than those behind it.
            self.serve_line(cx, now, Source::Store);
        }
        if !self.line.is_empty() {
            self.ask_for_line(cx, now);
        }
    }

    /// Serves the line from its head, as far as permits suffice.
    pub(in crate::core) fn serve_line(&mut self, cx: &mut Context, now: Instant, source: Source) {
        while let Some(waiter) = self.line.first() {
            let decision = if waiter.cost == 0 {
                (waiter.answers > 0 || self.away.is_some()).then(|| self.peeked(cx, now, 0))
            } else {
                let fits = self.permits.used() + waiter.cost <= self.usable(now);
                let decides = fits || self.away.is_some();
                if decides { self.decide(cx, now, waiter.cost, Source::Store) } else { None }
            };
            let Some(decision) = decision else { break };
            self.line.take_first();
            let source = if decision.source == Source::Store { source } else { decision.source };
            self.reply(cx, &waiter, Decision { source, ..decision });
        }
    }

    fn reply(&mut self, cx: &mut Context, waiter: &Waiter, decision: Decision) {
        cx.stats.waiting -= 1;
        if waiter.cost > 0 {
            cx.policies[self.policy].1.count(&decision);
        }
        cx.reply(waiter.ticket, decision);
    }

    /// Denies the waiters from the head of the line on that have to go, up to the first that may wait longer. The store
    /// has not answered them in time, which is no outage.
    fn turn_away(&mut self, cx: &mut Context, now: Instant, has_to_go: impl Fn(&Waiter) -> bool) {
        while let Some(waiter) = self.line.first().filter(&has_to_go) {
            self.line.take_first();
            let decision = match (waiter.cost, turned_away(&self.rule, cx.queue())) {
                (0, _) => self.peeked(cx, now, 0),
                (cost, resolution) if resolution.verdict == Verdict::Allow => self.take(cx, now, cost, Source::Policy),
                (cost, resolution) => {
                    let decision = self.answer(cx, now, cost, resolution);
                    Decision { remaining: decision.remaining.min(cost - 1), ..decision }
                }
            };
            self.reply(cx, &waiter, decision);
        }
    }

    fn lose_store(&mut self, cx: &mut Context, now: Instant) {
        self.flight = None;
        self.away = Some(now + ASK_AGAIN);
        self.serve_line(cx, now, Source::Store);
    }
}
