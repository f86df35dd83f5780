//! One key of a concurrent limit: how many slots this node has of it, who holds them, who waits for one.
//!
//! The store lends slots for some seconds at a time. A node says how many its clients hold and how many it
//! would like; each word replaces the one before, so it may be said twice. Slots are handed out here without
//! asking; those that nobody has used for a while go back. One call per key at a time. Part of `concurrent.rs`.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::answer::Ending;
use super::call::{Call, Grant, Occupy, Op, StoreError};
use super::decision::{Decision, Reason, Source, Verdict};
use super::desk::Desk;
use super::key::Digest;
use super::limit::Limit;
use super::places::{Places, View};
use super::policy::{OnStoreLoss, Rule};
use super::shard::{Effect, KeyInfo, MAX_LINE, Outcome, Request, turned_away};
use super::share::share_ppm;
use super::slot::{Flight, Waiter};
use super::time::{Instant, Micros};
use super::upkeep::{ATTEMPTS, flight, send_again};

mod upkeep;

/// How long slots are a node's that says nothing more. It says so again after a third.
pub(super) const LEASE: Micros = Micros::from_secs(10);

/// How long after a failure the store is asked again.
const ASK_AGAIN: Micros = Micros(250_000);

/// How long a denial of the store counts.
const DENIED: Micros = Micros(50_000);

/// Unused slots are handed back after so long where few are left, and elsewhere.
const IDLE: (Micros, Micros) = (Micros(50_000), Micros::from_secs(1));

/// What this node knows and has of one key.
#[derive(Debug)]
pub(super) struct Occupancy {
    digest: Digest,
    key: Box<[u8]>,
    pub(super) rule: Arc<Rule>,
    /// Index of the policy's counts in the shard.
    policy: usize,
    pub(super) places: Places,
    /// Slots that this node may hand out, those in clients' hands among them, until `until`.
    lent: u64,
    until: Instant,
    /// Slots of all other nodes, and how many nodes have some, at the store's last answer.
    others: u64,
    nodes: u32,
    answered: Option<Instant>,
    flight: Option<Flight>,
    line: VecDeque<Waiter>,
    /// The store gives no answers; when to ask it again.
    away: Option<Instant>,
    /// Until then the store has no more.
    denied_until: Instant,
    /// Most in use since slots were last handed back or asked for.
    peak: u64,
    idle_at: Instant,
    renew_at: Instant,
    last_check: Instant,
    pub(super) wake: Instant,
}

impl Occupancy {
    pub(super) fn new(desk: &mut Desk, now: Instant, request: &Request<'_>) -> Self {
        Self {
            digest: request.digest,
            key: super::page::name(request.key),
            rule: request.rule.clone(),
            policy: desk.policy(request.rule) as usize,
            places: Places::default(),
            lent: 0,
            until: Instant(0),
            others: 0,
            nodes: desk.nodes,
            answered: None,
            flight: None,
            line: VecDeque::new(),
            away: None,
            denied_until: Instant(0),
            peak: 0,
            idle_at: Instant(u64::MAX),
            renew_at: Instant(u64::MAX),
            last_check: now,
            wake: Instant(u64::MAX),
        }
    }

    /// As listings show it.
    pub(super) fn listed(&self, desk: &Desk, now: Instant) -> KeyInfo {
        KeyInfo {
            digest: self.digest,
            key: Some(self.key.clone()),
            rule: self.rule.clone(),
            held: self.usable(now).saturating_sub(self.places.used()),
            decision: self.peeked(desk, now, 0),
        }
    }

    /// Other limits apply from now on; those who hold slots keep them.
    pub(super) fn adopt(&mut self, rule: &Arc<Rule>) {
        if !Arc::ptr_eq(&self.rule, rule) {
            self.rule = rule.clone();
            self.denied_until = Instant(0);
        }
    }

    /// The key's part of the store gives no answers.
    pub(super) fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Hands back what is not in use.
    pub(super) fn hand_back(&mut self, desk: &mut Desk, now: Instant) {
        if self.lent > self.places.used() && self.flight.is_none() {
            self.ask(desk, now, self.places.used());
        }
    }

    fn limit(&self) -> &Limit {
        &self.rule.limits[0]
    }

    /// Slots that the store has lent this node.
    fn usable(&self, now: Instant) -> u64 {
        if now < self.until { self.lent.min(self.limit().count) } else { 0 }
    }

    pub(super) fn check(&mut self, desk: &mut Desk, now: Instant, request: &Request<'_>) -> Outcome {
        self.last_check = now;
        let cost = request.cost;
        if cost > self.limit().count {
            let ending = Ending::deny(Reason::Cost, Source::Policy);
            return Outcome::Decided(self.answer(desk, now, cost, ending));
        }
        if request.peek || cost == 0 {
            let fresh = self.answered.is_some_and(|at| now.since(at) < IDLE.1);
            if fresh || self.away.is_some() {
                return Outcome::Decided(self.peeked(desk, now, cost));
            }
            return self.park(desk, now, 0);
        }
        if let Some(decision) = self.decide(desk, now, cost, Source::Lease) {
            desk.policies[self.policy].1.count(&decision);
            self.think_ahead(desk, now);
            return Outcome::Decided(decision);
        }
        if self.line.len() >= MAX_LINE {
            let decision = self.answer(desk, now, cost, turned_away(&self.rule, desk.queue()));
            desk.policies[self.policy].1.count(&decision);
            return Outcome::Decided(decision);
        }
        self.park(desk, now, cost)
    }

    fn park(&mut self, desk: &mut Desk, now: Instant, cost: u64) -> Outcome {
        let ticket = desk.ticket();
        self.line.push_back(Waiter { ticket, cost, deadline: now + desk.settings.timeout, answers: 0 });
        desk.policies[self.policy].1.parked += 1;
        desk.stats.waiting += 1;
        if self.flight.is_none() {
            self.ask_for_line(desk, now);
        }
        Outcome::Parked(ticket)
    }

    /// Decides from what is here; `None` when the store must be asked.
    fn decide(&mut self, desk: &mut Desk, now: Instant, cost: u64, source: Source) -> Option<Decision> {
        let used = self.places.used();
        if used + cost <= self.usable(now) && (self.line.is_empty() || source == Source::Store) {
            return Some(self.take(desk, now, cost, source));
        }
        if self.away.is_some() {
            return Some(match self.rule.on_store_loss {
                OnStoreLoss::Allow => self.take(desk, now, cost, Source::Policy),
                OnStoreLoss::Share if used + cost <= self.share(desk) => self.take(desk, now, cost, Source::Share),
                OnStoreLoss::Share => self.answer(desk, now, cost, Ending::deny(Reason::Share, Source::Share)),
                OnStoreLoss::Deny => {
                    let ending = Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1));
                    self.answer(desk, now, cost, ending)
                }
            });
        }
        (now < self.denied_until).then(|| self.answer(desk, now, cost, Ending::deny(Reason::Rate, source)))
    }

    fn take(&mut self, desk: &mut Desk, now: Instant, cost: u64, source: Source) -> Decision {
        let id = NonZeroU64::new(desk.id()).unwrap_or(NonZeroU64::MIN);
        self.places.take(id, cost, now + self.limit().period);
        self.peak = self.peak.max(self.places.used());
        Decision { slot: Some(id), ..self.answer(desk, now, cost, Ending::allow(source)) }
    }

    /// This node's part of the limit while the store is away.
    fn share(&self, desk: &Desk) -> u64 {
        let nodes = desk.fleet.map_or(self.nodes, |fleet| fleet.largest.max(self.nodes));
        let share = u128::from(self.limit().count) * u128::from(share_ppm(nodes)) / 1_000_000;
        share as u64 // at most the count
    }

    pub(super) fn peeked(&self, desk: &Desk, now: Instant, cost: u64) -> Decision {
        let left = self.limit().count.saturating_sub(self.others + self.places.used());
        let fits = cost <= left.max(self.usable(now).saturating_sub(self.places.used()));
        let ending = match (cost > self.limit().count, fits) {
            (true, _) => Ending::deny(Reason::Cost, Source::Policy),
            (_, true) => Ending::allow(Source::Lease),
            (_, false) => Ending::deny(Reason::Rate, Source::Lease),
        };
        self.answer(desk, now, cost, ending)
    }

    fn answer(&self, desk: &Desk, now: Instant, cost: u64, ending: Ending) -> Decision {
        let most = match self.away {
            Some(_) => self.usable(now).max(self.share(desk)),
            None => self.usable(now),
        };
        let view = View { now, clock: desk.first_clock().latest(now), most, others: self.others, slow: IDLE.1 };
        self.places.decision(self.limit(), view, cost, ending)
    }

    /// Few are left here, and the store has more: asks before anybody waits.
    fn think_ahead(&mut self, desk: &mut Desk, now: Instant) {
        let (used, lent) = (self.places.used(), self.usable(now));
        let low = lent.saturating_sub(used) <= lent / 4 && self.left() > 0 && now >= self.denied_until;
        let back = self.away.is_some_and(|at| now >= at);
        if self.flight.is_none() && !desk.draining && (back || low && self.away.is_none()) {
            self.ask(desk, now, 2 * used);
        }
    }

    /// What nobody had at the store's last answer.
    fn left(&self) -> u64 {
        self.limit().count.saturating_sub(self.others + self.lent)
    }

    fn ask_for_line(&mut self, desk: &mut Desk, now: Instant) {
        let waiting: u64 = self.line.iter().map(|waiter| waiter.cost).sum();
        self.ask(desk, now, 2 * (self.places.used() + waiting));
    }

    /// Says how many are in use, and how many it would like.
    fn ask(&mut self, desk: &mut Desk, now: Instant, want: u64) {
        let used = self.places.used();
        let waiting: u64 = self.line.iter().map(|waiter| waiter.cost).sum();
        self.line.iter_mut().for_each(|waiter| waiter.answers = waiter.answers.saturating_add(1));
        let want = want.max(used + waiting).min(self.limit().count.max(used));
        // What it does not want any more is others' from here on.
        self.lent = self.lent.min(want);
        let occupy = Occupy { used, need: waiting, want, lease: LEASE };
        let (id, digest, rule) = (desk.id(), self.digest, self.rule.clone());
        let call = Call { id, digest, rule, op: Op::Occupy(occupy), sent_at: now };
        desk.effects.push_back(Effect::Call(call.clone()));
        self.flight = Some(flight(call, now));
        (self.peak, self.idle_at) = (used, Instant(u64::MAX));
    }

    pub(super) fn handle_outcome(
        &mut self,
        desk: &mut Desk,
        now: Instant,
        call: &Call,
        outcome: Result<Grant, StoreError>,
    ) {
        let Some(under_way) = self.flight.as_mut().filter(|flight| flight.call.id == call.id) else { return };
        match outcome {
            Ok(grant) if grant.outdated => {
                self.flight = None;
                if desk.skip_ids() {
                    self.ask_for_line(desk, now);
                }
            }
            Ok(grant) => {
                let sent = under_way.sent;
                self.flight = None;
                self.land(desk, now, sent, &grant);
            }
            Err(StoreError::Unknown) if under_way.attempts < ATTEMPTS => send_again(under_way, desk, now),
            Err(StoreError::Busy { wait }) => {
                desk.note_trip(wait);
                self.flight = None;
                self.turn_away_until(desk, Instant(u64::MAX), now);
            }
            Err(_) => self.lose_store(desk, now),
        }
    }

    fn land(&mut self, desk: &mut Desk, now: Instant, sent: Instant, grant: &Grant) {
        self.lent = grant.granted;
        self.until = sent + LEASE - Micros(LEASE.0 / 5_000);
        self.others = grant.counters[0].used.saturating_sub(self.lent);
        self.nodes = grant.nodes.max(1);
        self.answered = Some(now);
        self.away = None;
        self.renew_at = sent + Micros(LEASE.0 / 3);
        self.serve_line(desk, now, Source::Store);
        if self.line.front().is_some_and(|waiter| waiter.answers > 0) {
            self.denied_until = now + DENIED + desk.jitter(Micros(DENIED.0 / 4));
        }
        // The store was asked for these, and had fewer.
        while self.line.front().is_some_and(|waiter| waiter.answers > 0) {
            let Some(waiter) = self.line.pop_front() else { break };
            let decision = self.answer(desk, now, waiter.cost, Ending::deny(Reason::Rate, Source::Store));
            self.reply(desk, &waiter, decision);
        }
        if !self.line.is_empty() {
            self.ask_for_line(desk, now);
        }
    }

    /// Serves the line from its head as far as slots go.
    pub(super) fn serve_line(&mut self, desk: &mut Desk, now: Instant, source: Source) {
        while let Some(waiter) = self.line.front().copied() {
            let decision = if waiter.cost == 0 {
                (waiter.answers > 0 || self.away.is_some()).then(|| self.peeked(desk, now, 0))
            } else {
                let fits = self.places.used() + waiter.cost <= self.usable(now);
                let decides = fits || self.away.is_some();
                if decides { self.decide(desk, now, waiter.cost, Source::Store) } else { None }
            };
            let Some(decision) = decision else { break };
            self.line.pop_front();
            let source = if decision.source == Source::Store { source } else { decision.source };
            self.reply(desk, &waiter, Decision { source, ..decision });
        }
    }

    fn reply(&mut self, desk: &mut Desk, waiter: &Waiter, decision: Decision) {
        desk.stats.waiting -= 1;
        if waiter.cost > 0 {
            desk.policies[self.policy].1.count(&decision);
        }
        desk.effects.push_back(Effect::Reply { ticket: waiter.ticket, decision });
    }

    /// Answers those in line whose time is up by `last`: the store has not answered, which is no outage.
    fn turn_away_until(&mut self, desk: &mut Desk, last: Instant, now: Instant) {
        while let Some(waiter) = self.line.front().filter(|waiter| waiter.deadline <= last).copied() {
            self.line.pop_front();
            let decision = match (waiter.cost, turned_away(&self.rule, desk.queue())) {
                (0, _) => self.peeked(desk, now, 0),
                (cost, ending) if ending.verdict == Verdict::Allow => self.take(desk, now, cost, Source::Policy),
                (cost, ending) => {
                    let decision = self.answer(desk, now, cost, ending);
                    Decision { remaining: decision.remaining.min(cost - 1), ..decision }
                }
            };
            self.reply(desk, &waiter, decision);
        }
    }

    fn lose_store(&mut self, desk: &mut Desk, now: Instant) {
        self.flight = None;
        self.away = Some(now + ASK_AGAIN);
        self.serve_line(desk, now, Source::Store);
    }
}
