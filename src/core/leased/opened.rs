//! What is set aside for this node of windows that open with the first request, and how it is admitted while the store is away.
//!
//! The store's windows may open at any time, and only it knows when. So a node admits no more than its entitlement in any
//! time as long as a window (`span_budget.rs`), and nothing for as long as a window may be open in which the store has
//! executed an acquire of it. When the store answers again, the node pays for what it has admitted since the window began that is open then.

use super::key::LeasedKey;
use crate::core::answer::Resolution;
use crate::core::call::Grant;
use crate::core::decision::{Decision, Source};
use crate::core::mutant::{Mutant, on};
use crate::core::span_budget::SpanBudget;
use crate::core::time::{Instant, Timestamp};

impl LeasedKey {
    /// A budget of which nothing is admitted.
    fn new_span_budget(&self) -> Box<SpanBudget> {
        Box::new(SpanBudget::new(self.view.rule().limits[0].period))
    }

    /// Decides a check by what is set aside for this node.
    pub(super) fn decide_by_span(&mut self, now: Instant, cost: u64) -> Decision {
        let mut budget = self.rare.outage.take_span_budget().unwrap_or_else(|| self.new_span_budget());
        let decision = self.ask_span(&mut budget, now, cost);
        // Most keys are denied everything for as long as nothing is set aside for them.
        if budget.is_open(now) {
            self.rare.outage.put_span_budget(budget);
        }
        decision
    }

    /// The same decision, without changing anything.
    pub(super) fn peek_by_span(&self, now: Instant, cost: u64) -> Decision {
        let budget = self.rare.outage.span_budget().cloned().map(Box::new);
        self.ask_span(&mut budget.unwrap_or_else(|| self.new_span_budget()), now, cost)
    }

    /// Admits a check and counts it in the budget, or denies it.
    fn ask_span(&self, budget: &mut SpanBudget, now: Instant, cost: u64) -> Decision {
        let (limit, clock, entitlement) =
            (&self.view.rule().limits[0], self.view.clock(), self.rare.outage.entitlement());
        let most = entitlement.of_span(limit, [clock.surely(now), clock.at_most(now)]);
        if most > 0 && budget.spend(now, most, cost) {
            let left = most.saturating_sub(budget.admitted(now));
            return Decision { remaining: left, ..self.answer(now, cost, Resolution::allow(Source::Share)) };
        }
        let opens = |from: Timestamp| clock.surely_after(from).max(now);
        let wait = match (most, entitlement.next_span(limit, clock.at_most(now))) {
            (0, from) => from.map(opens),
            _ => budget.ready(now, most, cost),
        };
        let left = most.saturating_sub(budget.admitted(now));
        self.deny_by_share(now, cost, wait.map(|at| at.since(now)), Some(left).filter(|_| most > 0))
    }

    /// What was admitted so and may be in the store's window.
    pub(super) fn span_debt(&self, now: Instant) -> u64 {
        let budget = self.rare.outage.span_budget().filter(|_| !on(Mutant::SpanDebtForgotten));
        budget.map_or(0, |budget| budget.debt(now))
    }

    /// The store has answered a call about the key that was sent then: what was admitted before the window began that is open, or before the
    /// call was sent if none is, it need not be charged.
    pub(super) fn note_window_of(&mut self, sent: Instant, now: Instant, grant: &Grant) {
        if self.rare.outage.span_budget().is_none() {
            return;
        }
        let (period, at, clock) = (self.view.rule().limits[0].period, grant.counters[0].at, self.view.clock());
        let began = match at.0 {
            0 => sent,
            // The earliest time at which it can have begun, if clocks have drifted apart since the clock was read.
            _ => clock.before(at - period) - self.drift(now),
        };
        self.rare.outage.note_window_begun(began);
    }
}
