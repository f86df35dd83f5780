//! What is set aside for nodes that cannot reach the store, where they lend it to each other: what this node admits itself first, and what
//! it lends to a peer.
//!
//! A node lends what it could admit: it spends so much of its share, which it owes to the store from then on as if it had admitted it. So all
//! that bounds the share bounds what is lent of it: nothing in a window for which it has sent an acquire, and none that
//! lapses. It keeps what its own clients will want of the window, by what they wanted in the one before.

use super::key::LeasedKey;
use super::outage::part_of_window;
use super::phase::Phase;
use crate::core::decision::{Decision, Verdict};
use crate::core::entitled::{released, window_end};
use crate::core::fleet::FleetView;
use crate::core::limit::Limit;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros, Timestamp};

impl LeasedKey {
    /// Whether this node may lend of what is set aside for it, now or in a window to come before it lapses.
    pub(super) fn lends_aside(&self, now: Instant) -> bool {
        let is_lost = matches!(self.rare.outage.phase(), Phase::Lost { .. }) && self.is_away(now);
        if !is_lost || !self.view.rule().is_entitled_window() {
            return false;
        }
        let (limit, latest) = (&self.view.rule().limits[0], self.view.clock().latest(now));
        let entitlement = self.rare.outage.entitlement();
        entitlement.of_window(limit, latest) > 0 || entitlement.next_window(limit, latest).is_some()
    }

    /// A client of this node has asked for so many tokens.
    pub(super) fn note_wanted(&mut self, now: Instant, tokens: u64) {
        if self.rare.outage.phase().is_outage() && self.view.rule().is_entitled_window() {
            let window = self.window_number(now);
            self.rare.outage.bank_mut().note_wanted(window, tokens);
        }
    }

    /// Admits a check on what is set aside for this node, if there is as much, before any peer is asked.
    pub(super) fn admit_aside(&mut self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Option<Decision> {
        let is_lost = matches!(self.rare.outage.phase(), Phase::Lost { .. });
        if !is_lost || !self.view.rule().is_entitled_window() {
            return None;
        }
        Some(self.decide_offline(now, cost, fleet)).filter(|decision| decision.verdict == Verdict::Allow)
    }

    /// The answer to a check that is admitted with a loan of tokens that are set aside for the peer, of which so many are left. Without the
    /// store nobody knows how much all nodes have used of the window. But it is not empty, so it is whole again only when it has ended.
    pub(super) fn beside_aside(&self, now: Instant, left: u64, decision: Decision) -> Decision {
        let (limit, clock) = (&self.view.rule().limits[0], self.view.clock());
        let end = window_end(limit, clock.latest(now));
        // What was admitted in a sliding window counts until the window after it has ended.
        let whole = if self.view.rule().is_entitled_sliding() { end + limit.period } else { end };
        let reset_at = decision.reset_at.max(whole);
        let reset_after = reset_at.since(clock.earliest(now));
        Decision { remaining: decision.remaining.min(left), reset_at, reset_after, ..decision }
    }

    /// Spends of the share for a peer that wants so many tokens, and at least so many. Returns how many, how long they may be spent, and
    /// after how long there may be more.
    pub(super) fn spend_for_peer(&mut self, now: Instant, want: u64, least: u64) -> (u64, Micros, Micros) {
        let rule = self.view.rule().clone();
        let (limit, clock, window) = (&rule.limits[0], self.view.clock().latest(now), self.window_number(now));
        let mut budget = self.rare.outage.take_budget().unwrap_or_else(|| self.late_budget(now));
        let (mut parts, counted) = (self.parts(&budget, now, None), self.counted(&budget, None));
        if on(Mutant::LendsAfterAcquire) {
            parts[0] = part_of_window(limit, self.rare.outage.entitlement().believed(clock));
        }
        let is_barred = self.is_between_windows(now, clock) || parts[0] == 0;
        // A cost of nothing spends nothing, but the budget goes on to the window that is open now.
        budget.spend(&rule, &parts, clock, 0, &counted.lent());
        let left = if is_barred { 0 } else { budget.left(&rule, clock, &counted.lent()) };
        let left = left.min(self.released(&budget, now).unwrap_or(u64::MAX));
        let measured = self.demand.tuner().used_in(limit.period);
        let wanted = self.rare.outage.bank_mut().wants(window, measured);
        let kept = self.kept(now, left, wanted);
        let spare = left - kept;
        let tokens = if spare >= least { spare.min(want) } else { 0 };
        if tokens > 0 && !on(Mutant::LentAsideNotCounted) {
            budget.spend(&rule, &parts, clock, tokens, &counted.lent());
        }
        self.rare.outage.put_budget(budget);
        self.rare.outage.bank_mut().note_lent(window, tokens);
        let end = window_end(limit, clock);
        // A peer may be admitted with them for as long as the window has surely not ended.
        let most = self.view.clock().at_most(now).max(clock + self.drift(now));
        let lasts = end.since(most);
        let wait = if tokens == want { Micros::ZERO } else { self.wait_for_spare(now, left - tokens, wanted, least) };
        (tokens, lasts, wait)
    }

    /// Of so many tokens that this node could admit now, what it keeps for its own clients, which want so many of the whole window: of a
    /// fixed window what they will want of the rest of it, of a sliding one, of which tokens come little by little, their part of those.
    fn kept(&self, now: Instant, left: u64, wanted: u64) -> u64 {
        let (rule, clock) = (self.view.rule(), self.view.clock());
        let (limit, latest) = (&rule.limits[0], clock.latest(now));
        let end = window_end(limit, latest);
        if rule.is_entitled_sliding() {
            let spare = self.rare.outage.entitlement().of_window(limit, latest).saturating_sub(wanted);
            let lent = self.rare.outage.bank().map_or(0, |bank| bank.lent(number(limit, latest)));
            let come = released(limit, spare, end, clock.surely(now)).saturating_sub(lent);
            return left.saturating_sub(come);
        }
        let rest = end.since(clock.surely(now)).min(limit.period);
        let kept = (u128::from(wanted) * u128::from(rest.0)).div_ceil(u128::from(limit.period.0));
        u64::try_from(kept).unwrap_or(u64::MAX).min(left)
    }

    /// After how long a peer may be lent `least` tokens, if so many are left and this node's clients ask for no more than they are
    /// taken to want.
    fn wait_for_spare(&self, now: Instant, left: u64, wanted: u64, least: u64) -> Micros {
        let (rule, clock) = (self.view.rule(), self.view.clock().latest(now));
        let limit = &rule.limits[0];
        let rest = window_end(limit, clock).since(clock);
        if left >= least && wanted > 0 && !rule.is_entitled_sliding() {
            let then = u128::from(left - least) * u128::from(limit.period.0) / u128::from(wanted);
            let wait = rest.0.saturating_sub(u64::try_from(then).unwrap_or(u64::MAX));
            return Micros(wait.max(1));
        }
        let next = self.rare.outage.entitlement().next_window(limit, clock);
        let next = next.map(|begins| self.past_doubt(now + begins.since(clock), begins).since(clock));
        next.unwrap_or(rest).max(Micros(1))
    }

    fn window_number(&self, now: Instant) -> u64 {
        number(&self.view.rule().limits[0], self.view.clock().latest(now))
    }
}

/// The number of an aligned window.
fn number(limit: &Limit, at: Timestamp) -> u64 {
    at.0 / limit.period.0
}
