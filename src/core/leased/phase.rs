//! Whether the store server of a key answers, and what follows when it is back.
//!
//! ```text
//! Connected ─ no answer ─> Lost ─ an answer ─> Repaid ─ the share's window is over ─> Repaying ─> Connected
//!     │                     └──── an answer, and others may owe ──────────────────────┘
//!     └── the store has lost the key ─> Restoring ─ peers had their time ─> Connected
//! ```
//!
//! A node does not lease at once when the store answers again. The store must first be charged for what shares
//! admitted, here and at other nodes; until then it would lend those tokens a second time. If no share was spent of a
//! window that is still open, a key goes from Lost to Connected with the first answer.
//!
//! [`Outage`] stores the phase and what was admitted without the store. `outage.rs` decides by them.

use super::bank::Bank;
use super::entitlement::Entitlement;
use crate::core::ask::Payer;
use crate::core::limit::Algorithm;
use crate::core::mutant::{Mutant, on};
use crate::core::rule::Rule;
use crate::core::share::FallbackBudget;
use crate::core::span_budget::SpanBudget;
use crate::core::time::{Instant, Micros, Timestamp};

/// How long a share goes on after the store is back. By then all nodes have charged what they admitted on theirs, since each asks again every
/// quarter of a second while it is away.
pub(super) const GRACE: Micros = Micros(1_000_000);

/// The phase of a key, what it owes from an outage, and what the store has set aside for one. A key that never had any of it
/// needs only a pointer.
#[derive(Debug)]
pub(super) struct Outage(Option<Box<Loss>>);

#[derive(Debug)]
struct Loss {
    phase: Phase,
    /// Until then peers tell the store what it has lost, while this node also waits for them to charge their shares; `None`: they need not.
    repair: Option<Instant>,
    /// What this node's share admitted. Kept from the first loss of the store on.
    budget: Option<Box<FallbackBudget>>,
    /// The same of windows that open with the first request, of which tokens are set aside for this node.
    span_budget: Option<Box<SpanBudget>>,
    /// What passed before the store had answered about the key at all.
    credit: Option<Credit>,
    /// What the store has set aside for this node.
    entitlement: Entitlement,
    /// What nodes lend each other of that.
    bank: Bank,
}

/// Tokens of a check that passed before the store had answered about the key at all. The next grant pays for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    pub(super) tokens: u64,
    /// When the check passed.
    pub(super) at: Instant,
}

/// The state of the key's store server, as this node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It answers.
    Connected,
    /// It does not answer. An answer shows that it is back only if the call was sent when the loss was noticed, or later: one
    /// that was sent before may have been answered before the loss.
    Lost { retry_at: Instant, noticed: Instant },
    /// It has answered, but was not charged for all that shares admitted. Nothing is leased before `until`, because
    /// otherwise others would be lent what this node owes, and this node what they owe.
    Repaying { retry_at: Instant, until: Instant },
    /// It was charged for what this node's share admitted, and for what is left of the share. The share goes on until
    /// `retry_at`, so that all nodes have charged theirs before any leases what seems to be left.
    Repaid { retry_at: Instant, until: Instant },
    /// It has lost its data. Until that time, nodes tell it what it had lent them, and nothing is leased.
    Restoring { until: Instant },
}

impl Phase {
    /// Whether the store must be charged for what shares admitted before it lends again.
    pub(super) fn is_unpaid(self) -> bool {
        self.is_outage() && !self.is_repaid()
    }

    /// Whether the store was charged for all of this node's share.
    pub(super) fn is_repaid(self) -> bool {
        matches!(self, Self::Repaid { .. })
    }

    /// Whether the store has lost its data, and peers are restoring it.
    pub(super) fn is_restoring(self) -> bool {
        matches!(self, Self::Restoring { .. })
    }

    /// Whether the key is in an outage: its store server has not answered, or not been charged yet. Nobody may have used the key for so
    /// long that this is old knowledge: `LeasedKey::is_away` says whether a check is decided by it.
    pub(super) fn is_outage(self) -> bool {
        self != Self::Connected
    }

    /// When peers have restored what the store has lost, if they are doing so.
    pub(super) fn restored_at(self) -> Option<Instant> {
        if let Self::Restoring { until } = self { Some(until) } else { None }
    }

    /// When the store is asked again; `None` while it answers.
    pub(super) fn retry_at(self) -> Option<Instant> {
        match self {
            Self::Connected => None,
            Self::Lost { retry_at, .. } | Self::Repaying { retry_at, .. } | Self::Repaid { retry_at, .. } => {
                Some(retry_at)
            }
            Self::Restoring { until } => Some(until),
        }
    }

    /// When all nodes have charged what they admitted; known once the store has answered.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Repaying { until, .. } | Self::Repaid { until, .. } => Some(until),
            Self::Connected | Self::Lost { .. } | Self::Restoring { .. } => None,
        }
    }

    /// When nodes without debt lease again, as the others have told the store by then what it must know before it lends: what their
    /// shares admitted, or what it had lent them before it lost its data. Known once the store has answered.
    pub(super) fn lends_from(self) -> Option<Instant> {
        match self {
            Self::Restoring { until } => Some(until),
            phase => phase.until(),
        }
    }

    /// Whether the store will be asked again, but not yet.
    pub(super) fn waits(self, now: Instant) -> bool {
        self.retry_at().is_some_and(|retry_at| now < retry_at)
    }

    /// Whether the store must be asked again now.
    pub(super) fn asks_again(self, now: Instant) -> bool {
        self.retry_at().is_some_and(|retry_at| now >= retry_at)
    }
}

impl Outage {
    /// The store answers, as far as is known.
    pub(super) const NEW: Self = Self(None);

    /// Whether nothing is remembered.
    pub(super) fn is_new(&self) -> bool {
        self.0.is_none()
    }

    fn loss(&mut self) -> &mut Loss {
        let none = Loss {
            phase: Phase::Connected,
            repair: None,
            budget: None,
            span_budget: None,
            credit: None,
            entitlement: Entitlement::default(),
            bank: Bank::default(),
        };
        self.0.get_or_insert_with(|| Box::new(none))
    }

    /// Frees the memory when nothing is left of the outage.
    fn close(&mut self) {
        let is_over = |loss: &mut Box<Loss>| {
            loss.phase == Phase::Connected
                && loss.budget.is_none()
                && loss.span_budget.is_none()
                && loss.credit.is_none()
                && !loss.entitlement.is_known()
        };
        self.0.take_if(is_over);
    }

    /// What the store has set aside for this node.
    pub(super) fn entitlement(&self) -> Entitlement {
        self.0.as_ref().map(|loss| loss.entitlement).unwrap_or_default()
    }

    /// Changes what is known of that.
    pub(super) fn change_entitlement(&mut self, change: impl FnOnce(&mut Entitlement)) {
        let mut entitlement = self.entitlement();
        change(&mut entitlement);
        if entitlement.is_known() {
            self.loss().entitlement = entitlement;
        }
    }

    /// What nodes lend each other of what is set aside, if anything was ever lost.
    pub(super) fn bank(&self) -> Option<&Bank> {
        self.0.as_ref().map(|loss| &loss.bank)
    }

    /// The same, to change it.
    pub(super) fn bank_mut(&mut self) -> &mut Bank {
        &mut self.loss().bank
    }

    fn budget_mut(&mut self) -> Option<&mut FallbackBudget> {
        self.0.as_mut()?.budget.as_deref_mut()
    }

    /// The state of the key's store server.
    pub(super) fn phase(&self) -> Phase {
        self.0.as_ref().map_or(Phase::Connected, |loss| loss.phase)
    }

    /// The store did not answer, and is asked again at `retry_at`. What was sent before `noticed` may have been answered before.
    pub(super) fn lose(&mut self, retry_at: Instant, noticed: Instant) {
        // Peers are telling the store what it has lost. It is not asked before their time is over.
        if !self.phase().is_outage() && self.0.is_some() {
            *self.bank_mut() = Bank::default();
        }
        if !matches!(self.phase(), Phase::Restoring { until } if until > retry_at) {
            self.loss().phase = Phase::Lost { retry_at, noticed };
        }
    }

    /// Sets the phase after an answer: see `LeasedKey::phase_after`.
    pub(super) fn enter(&mut self, phase: Phase) {
        if phase.is_outage() || self.0.is_some() {
            self.loss().phase = phase;
            self.close();
        }
    }

    /// The store has lost its data; peers have until then to tell it.
    pub(super) fn restore_until(&mut self, until: Instant) {
        self.loss().phase = Phase::Restoring { until };
    }

    /// Other nodes need at least until then to tell the store what it has lost.
    pub(super) fn wait_until(&mut self, at: Instant) {
        if let Some(Phase::Repaying { retry_at, until } | Phase::Repaid { retry_at, until }) =
            self.0.as_mut().map(|loss| &mut loss.phase)
        {
            (*retry_at, *until) = ((*retry_at).max(at), (*until).max(at));
            self.loss().repair = Some(at);
        }
    }

    /// Until when peers tell the store what it has lost, while this node also waits for them to charge their shares; `None` when they need
    /// not. They may owe nothing of a window that has opened since, and the store must hear of that loss all the same before it lends.
    pub(super) fn repaired_by(&self, now: Instant) -> Option<Instant> {
        self.phase().until()?;
        self.0.as_ref()?.repair.filter(|repair| now < *repair)
    }

    /// A store that did not answer has answered another call, so it is asked again now at the latest.
    pub(super) fn retry_by(&mut self, now: Instant) {
        if let Some(Phase::Lost { retry_at, .. }) = self.0.as_mut().map(|loss| &mut loss.phase) {
            *retry_at = (*retry_at).min(now);
        }
    }

    /// A store that did not answer has answered a call that lends nothing, which was sent then. If the store had been lost
    /// before, all nodes charge until `until` what they admitted.
    pub(super) fn repay_until(&mut self, now: Instant, sent: Instant, until: Instant) {
        if matches!(self.phase(), Phase::Lost { noticed, .. } if noticed <= sent) {
            self.loss().phase = Phase::Repaying { retry_at: now, until };
        }
    }

    /// A store that did not answer has answered a call that was sent then, and need not be charged before it lends: what other
    /// nodes may spend without it is set aside.
    pub(super) fn find(&mut self, sent: Instant) {
        if matches!(self.phase(), Phase::Lost { noticed, .. } if noticed <= sent) {
            self.enter(Phase::Connected);
        }
    }

    /// Ends the phase if its time is over at `now`, and enters the next one.
    ///
    /// A share ends with its windows once the store is back. Until all nodes surely know that it is, each keeps to
    /// its share in the next window, too. The wait for other nodes ends at its time, whether they had to charge the
    /// store for their shares or to tell it of a loss: then the store answers, and other nodes lease from it. A node
    /// that still waited would go on with its share beside them.
    pub(super) fn end_waits(&mut self, now: Instant, rule: &Rule, clock: Timestamp) {
        let owes = || !rule.is_entitled() && self.owes(rule, clock);
        // Of several limits one may have a new window, of whose share nothing is charged, while the window of another goes on.
        let is_over =
            || !on(Mutant::RepaidForEver) && self.budget().is_some_and(|budget| budget.has_turned(rule, clock));
        let phase = match self.phase() {
            Phase::Repaid { retry_at, until } if now < retry_at && (!owes() || is_over()) => {
                Phase::Repaying { retry_at, until }
            }
            Phase::Repaid { .. } if !owes() => Phase::Connected,
            // Other nodes have had their time, too. A key that sent no calls meanwhile would otherwise deny its next
            // check by a share, although the store answers.
            Phase::Repaying { until, .. } | Phase::Restoring { until } if now >= until && !owes() => Phase::Connected,
            phase => phase,
        };
        if phase != self.phase() {
            self.enter(phase);
        }
    }

    /// What this node's share has admitted, if anything is remembered of it.
    pub(super) fn budget(&self) -> Option<&FallbackBudget> {
        self.0.as_ref()?.budget.as_deref()
    }

    /// A share was spent in a window that is still open. If it were forgotten, it would be spent again.
    pub(super) fn owes(&self, rule: &Rule, clock: Timestamp) -> bool {
        self.budget().is_some_and(|budget| budget.is_open(rule, clock))
    }

    /// What the share has admitted, and the store was not charged for.
    pub(super) fn debt(&self, rule: &Rule, clock: Timestamp) -> u64 {
        self.budget().map_or(0, |budget| budget.debt(rule, clock))
    }

    /// Removes the budget for a check that may spend of it; [`Outage::put_budget`] puts it back.
    pub(super) fn take_budget(&mut self) -> Option<Box<FallbackBudget>> {
        self.0.as_mut()?.budget.take()
    }

    pub(super) fn put_budget(&mut self, budget: Box<FallbackBudget>) {
        self.loss().budget = Some(budget);
    }

    /// What was admitted on what is set aside of windows from the first request, if anything was.
    pub(super) fn span_budget(&self) -> Option<&SpanBudget> {
        self.0.as_ref()?.span_budget.as_deref()
    }

    /// Removes it for a check that may spend of it; [`Outage::put_span_budget`] puts it back.
    pub(super) fn take_span_budget(&mut self) -> Option<Box<SpanBudget>> {
        self.0.as_mut()?.span_budget.take()
    }

    pub(super) fn put_span_budget(&mut self, budget: Box<SpanBudget>) {
        self.loss().span_budget = Some(budget);
    }

    fn span_budget_mut(&mut self) -> Option<&mut SpanBudget> {
        self.0.as_mut()?.span_budget.as_deref_mut()
    }

    /// No window of the store that began before `time` is open any more.
    pub(super) fn note_window_begun(&mut self, time: Instant) {
        if let Some(budget) = self.span_budget_mut() {
            budget.note_begun(time);
        }
    }

    /// The store was charged for so much of what was admitted so. Returns how many of these tokens are left when all is paid.
    pub(super) fn pay_span(&mut self, tokens: u64) -> u64 {
        self.span_budget_mut().map_or(tokens, |budget| budget.pay(tokens))
    }

    /// Windows are as long as these from now on.
    pub(super) fn change_spans(&mut self, now: Instant, rule: &Rule) {
        if let Some(budget) = self.span_budget_mut() {
            *budget = budget.under(now, rule.limits[0].period);
        }
    }

    /// Takes back up to `cost` that was admitted so `then`. Returns how much.
    pub(super) fn refund_span(&mut self, now: Instant, then: Instant, cost: u64) -> u64 {
        self.span_budget_mut().map_or(0, |budget| budget.refund(now, then, cost))
    }

    /// Of the windows in which something was admitted the store has no more to lend: nor has the share.
    pub(super) fn end_share(&mut self) {
        if let Some(budget) = self.budget_mut() {
            budget.end_windows();
        }
    }

    /// The key was reset, so nothing that was admitted without the store matters any more.
    pub(super) fn drop_budget(&mut self) {
        if let Some(loss) = &mut self.0 {
            (loss.budget, loss.span_budget) = (None, None);
        }
        self.close();
    }

    /// The store was lost at `since`, and it is `now`. A share begins with that, or goes on. What the store lent of a bucket has come
    /// at `came`.
    pub(super) fn open_budget(&mut self, rule: &Rule, now: Timestamp, since: Timestamp, came: Option<Timestamp>) {
        match self.budget_mut() {
            Some(budget) => budget.reopen(rule, now, since, came),
            None => self.put_budget(Box::new(FallbackBudget::open(rule, came.map_or(since, |came| since.max(came))))),
        }
    }

    /// A call that left then was not answered before the loss; `None`: one that left before anything is known of the store.
    pub(super) fn note_unanswered(&mut self, sent: Option<Timestamp>) {
        if let Some(budget) = self.budget_mut() {
            budget.note_unanswered(sent);
        }
    }

    /// A loss that is not the one before began at `since`.
    pub(super) fn reopen_budget(&mut self, since: Timestamp) {
        if let Some(budget) = self.budget_mut() {
            budget.begin_anew(since);
        }
    }

    /// Applies the share to other limits, and the credit where a bucket is among them.
    pub(super) fn change_limits(&mut self, before: &Rule, rule: &Rule, clock: Timestamp) {
        if let Some(budget) = self.budget_mut() {
            *budget = budget.under(before, rule, clock);
        }
        // A window counts nothing that a bucket has admitted: paid in one, a credit would take a token there that nobody spends.
        if !rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra) {
            self.forgive_credit();
        }
    }

    /// Replaces an estimate of the store's clock, which is now known to within `doubt`.
    pub(super) fn correct_clock(&mut self, rule: &Rule, clocks: [Timestamp; 2], doubt: Micros) {
        if let Some(budget) = self.budget_mut() {
            budget.rebase(rule, clocks, doubt);
        }
    }

    /// Takes back up to `cost` that the share admitted `then` and the store was not charged for. Returns how much.
    pub(super) fn refund(&mut self, rule: &Rule, [then, clock]: [Timestamp; 2], cost: u64) -> u64 {
        self.budget_mut().map_or(0, |budget| budget.refund(rule, [then, clock], cost))
    }

    /// Records that the store was charged for some of what the share has admitted.
    pub(super) fn pay(&mut self, rule: &Rule, clock: Timestamp, tokens: u64, by: Payer) {
        if let Some(budget) = self.budget_mut() {
            budget.pay(rule, clock, tokens, by);
        }
    }

    /// Records that the store was charged for some of what was admitted in the window that was open then. Returns how much.
    pub(super) fn pay_in_window(&mut self, rule: &Rule, lent_at: Timestamp, tokens: u64) -> u64 {
        self.budget_mut().map_or(0, |budget| budget.pay_in_window(rule, lent_at, tokens))
    }

    /// Whether the check just decided was the first to use this window's share, or, if `spent`, to spend of it.
    pub(super) fn begins_share(&mut self, rule: &Rule, clock: Timestamp, spent: bool) -> bool {
        self.budget_mut().is_some_and(|budget| budget.begins(rule, clock, spent))
    }

    /// The credit of a check that passed before the store had answered about the key at all.
    pub(super) fn credit(&self) -> Option<Credit> {
        self.0.as_ref()?.credit
    }

    /// The tokens of that credit.
    pub(super) fn credited(&self) -> u64 {
        self.credit().map_or(0, |credit| credit.tokens)
    }

    /// Records that a check passes although the store has not answered yet.
    pub(super) fn let_pass(&mut self, now: Instant, tokens: u64) {
        self.loss().credit = Some(Credit { tokens, at: now });
    }

    /// Pays the credit from `granted` tokens. Returns how many that took.
    pub(super) fn pay_credit(&mut self, granted: u64) -> u64 {
        let Some(credit) = self.0.as_mut().and_then(|loss| loss.credit.as_mut()) else { return 0 };
        let paid = credit.tokens.min(granted);
        credit.tokens -= paid;
        if credit.tokens == 0 {
            self.forgive_credit();
        }
        paid
    }

    /// The key begins anew, so the credit need not be paid.
    pub(super) fn forgive_credit(&mut self) {
        if let Some(loss) = &mut self.0 {
            loss.credit = None;
        }
        self.close();
    }
}
