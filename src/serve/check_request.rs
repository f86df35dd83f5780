//! Checks whose answers may have to be awaited: of one key, and of several, all or nothing.
//!
//! For commands with more than one decision, and for protocols other than RESP. The shards of several keys are asked in
//! the order that [`several`](crate::core::several) defines. While one key waits for the store, tokens for later ones are
//! leased meanwhile. If one is denied, what was charged to the others is given back: in memory, as far as their
//! leases are still held. Knows no protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::ask::{Ask, CheckRequest};
use super::denied::Subject;
use super::mailbox::{Answer, Mailbox};
use super::node::Outgoing;
use super::server_state::ServerState;
use crate::core::decision::{Decision, Verdict};
use crate::core::key::Digest;
use crate::core::policy::{Plan, Rule};
use crate::core::several::{How, Several};
use crate::core::shard::Request;
use crate::core::time::Instant;
use crate::store::turns::Asker;

/// The answer about one key.
#[derive(Clone, Debug)]
pub struct CheckResult {
    /// The decision, after the policy's mode was applied.
    pub decision: Decision,
    /// The rule that decided; `None` when the policy limits nothing.
    pub rule: Option<Arc<Rule>>,
    /// The digest of policy and key.
    pub digest: Digest,
}

/// A check of several keys that is under way.
#[derive(Debug)]
pub struct MultiCheck {
    items: Vec<Item>,
    several: Several,
    /// The deadline of all waits for the store.
    deadline: Instant,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug)]
struct Item {
    check: CheckRequest,
    rule: Option<Arc<Rule>>,
    digest: Digest,
    /// The decision of a policy that counts nothing, such as one that blocks the key.
    fixed: Option<Decision>,
}

impl Item {
    fn new(state: &ServerState, check: CheckRequest) -> Self {
        let plan = check.policy.plan(&check.key);
        let rule = if let Plan::Limited(rule) = plan { Some(rule.clone()) } else { None };
        let (fixed, digests) = (plan.fixed_decision(), state.node.digests);
        let digest = digests.digest(&check.policy.name, &check.key);
        Self { rule, digest, fixed, check }
    }

    /// Turns a shard's answer into the result, after the policy's mode was applied.
    fn enforced(&self, answer: Decision) -> Decision {
        self.check.policy.enforced(self.digest, answer)
    }

    /// Whether an admission of this request charges the key.
    fn charges(&self) -> bool {
        self.fixed.is_none() && !self.check.peek && self.check.cost > 0
    }

    /// Counts the request under the limits that are on trial beside those of its policy, if there are any.
    fn attempt(&self, state: &ServerState, now: Instant, out: &mut Outgoing) {
        let CheckRequest { policy, key, cost, asker, .. } = &self.check;
        if self.charges()
            && let Some(candidate) = policy.candidate_beside(policy.plan(key))
        {
            state.node.attempt(now, (candidate, key, *cost), *asker, out);
        }
    }

    /// Asks the key's shard. `None` when the answer comes later, to the mailbox.
    fn ask(
        &self,
        state: &ServerState,
        now: Instant,
        ask: Ask,
        waiter: (&Arc<Mailbox>, u64),
        out: &mut Outgoing,
    ) -> Option<Decision> {
        let CheckRequest { key, cost, peek, .. } = &self.check;
        let request = Request { rule: self.rule.as_ref()?, digest: self.digest, key, cost: *cost, peek: *peek };
        state.node.ask(now, ask, request, waiter, out)
    }

    /// The result of an answer that stands, which is counted where no shard has counted it. `charged`: the shard was asked to
    /// charge, and not only to look.
    fn end(self, state: &ServerState, now: Instant, raw: Decision, charged: bool) -> CheckResult {
        let decision = self.enforced(raw);
        let Self { check: CheckRequest { policy, key, cost, peek, .. }, rule, digest, .. } = self;
        if rule.is_none() {
            state.control_stats().count(&policy.name, &decision);
            if !peek && cost > 0 {
                let subject = Subject { policy: &policy.name, rule: None, digest, key: &key };
                state.node.note_fixed(now, &subject, cost, &decision);
            }
        } else if charged && raw.verdict == Verdict::Deny && decision.verdict == Verdict::Allow {
            state.control_stats().enforce(&policy, digest, &mut { raw }, true);
        }
        CheckResult { decision, rule, digest }
    }
}

/// A check of one key that is under way. It has no order of keys and gives nothing back, so it costs less than a [`MultiCheck`].
#[derive(Debug)]
pub struct OneCheck {
    item: Item,
    begun: Instant,
    answer: Result<Decision, Arc<Mailbox>>,
}

impl OneCheck {
    /// Begins a check whose deadline counts from `begun`.
    pub fn begin(state: &ServerState, begun: Instant, check: CheckRequest) -> Self {
        Self::begin_at(state, state.node.clock.now(), begun, check)
    }

    /// The same for a check that has just arrived.
    pub fn begin_now(state: &ServerState, check: CheckRequest) -> Self {
        let now = state.node.clock.now();
        Self::begin_at(state, now, now, check)
    }

    fn begin_at(state: &ServerState, now: Instant, begun: Instant, check: CheckRequest) -> Self {
        let item = Item::new(state, check);
        if let Some(decision) = item.fixed {
            return Self { item, begun, answer: Ok(decision) };
        }
        let (mut out, mailbox) = (Outgoing::default(), Arc::new(Mailbox::of(item.check.asker)));
        item.attempt(state, now, &mut out);
        let answer = item.ask(state, now, Ask::Check(begun + state.node.timeout), (&mailbox, 0), &mut out);
        state.node.flush(&mut out);
        Self { item, begun, answer: answer.ok_or(mailbox) }
    }

    /// Whether the answer is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.answer.is_ok()
    }

    /// The answer, for which it waits until the deadline at most.
    pub async fn end(self, state: &ServerState) -> CheckResult {
        let raw = match self.answer {
            Ok(decision) => decision,
            Err(mailbox) => next_answer(&mailbox).await.1,
        };
        let (now, charged) = (state.node.clock.now(), self.item.charges());
        let result = self.item.end(state, now, raw, charged);
        state.control_stats().durations.add(now.since(self.begun), 1);
        result
    }
}

impl MultiCheck {
    /// Asks for all keys whose answers come at once. `came` is when the request arrived. The caller must flush `out`
    /// before it waits.
    pub fn begin(state: &ServerState, came: Instant, checks: Vec<CheckRequest>, out: &mut Outgoing) -> Self {
        let now = state.node.clock.now();
        let mailbox = Arc::new(Mailbox::of(checks.first().map_or(Asker::NODE, |check| check.asker)));
        let items: Vec<Item> = checks.into_iter().map(|check| Item::new(state, check)).collect();
        let keys: Vec<_> = items.iter().map(|item| (item.digest, item.charges())).collect();
        let mut asked = Self { items, several: Several::new(&keys), deadline: came + state.node.timeout, mailbox };
        for index in 0..asked.items.len() {
            if let Some(decision) = asked.items[index].fixed {
                asked.answered(index, decision);
            }
        }
        asked.items.iter().for_each(|item| item.attempt(state, now, out));
        asked.advance(state, now, out);
        if !asked.is_complete() {
            asked.prefetch(state, now, out);
        }
        asked
    }

    /// Asks for one key after another until an answer must be awaited.
    fn advance(&mut self, state: &ServerState, now: Instant, out: &mut Outgoing) {
        while let Some((index, how)) = self.several.next_to_ask() {
            let ask = if how == How::Look { Ask::PeekLocal } else { Ask::Check(self.deadline) };
            let Some(decision) = self.ask(state, now, ask, index, out) else { return };
            self.answered(index, decision);
        }
    }

    fn answered(&mut self, index: usize, decision: Decision) {
        let denies = self.items[index].enforced(decision).verdict == Verdict::Deny;
        self.several.answered(index, decision, denies);
    }

    /// Has tokens leased for the later keys while an earlier one waits.
    fn prefetch(&self, state: &ServerState, now: Instant, out: &mut Outgoing) {
        for index in self.several.later() {
            self.ask(state, now, Ask::Prefetch, index, out);
        }
    }

    fn ask(&self, state: &ServerState, now: Instant, ask: Ask, index: usize, out: &mut Outgoing) -> Option<Decision> {
        self.items[index].ask(state, now, ask, (&self.mailbox, index as u64), out)
    }

    /// Whether all answers are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.several.is_complete()
    }

    /// Waits for the missing answers, at most until the deadline.
    pub async fn complete(&mut self, state: &ServerState) {
        let mut out = Outgoing::default();
        while !self.is_complete() {
            let (index, decision) = next_answer(&self.mailbox).await;
            self.answered(index, decision);
            self.advance(state, state.node.clock.now(), &mut out);
            state.node.flush(&mut out);
        }
    }

    /// Finishes once all answers are there. Returns whether one was denied; if so, nothing is charged to the others.
    pub fn end(self, state: &ServerState, now: Instant, out: &mut Outgoing) -> (bool, Vec<CheckResult>) {
        let Self { items, several, .. } = self;
        let is_denied = several.is_denied();
        let end = |(index, item): (usize, Item)| {
            let raw = several.answer(index)?;
            let Some(rule) = item.rule.as_ref().filter(|_| several.goes_back(index)) else {
                return Some(item.end(state, now, raw, several.is_charged(index)));
            };
            let (mut decision, CheckRequest { key, cost, asker, .. }) = (item.enforced(raw), &item.check);
            let request = Request { rule, digest: item.digest, key, cost: *cost, peek: false };
            state.node.rollback(now, *asker, request, &raw, out);
            decision.remaining = decision.remaining.saturating_add(*cost).min(decision.limit);
            decision.slot = None;
            Some(CheckResult { decision, rule: item.rule, digest: item.digest })
        };
        (is_denied, items.into_iter().enumerate().filter_map(end).collect())
    }
}

/// The next answer that comes to a mailbox, and the number of its request.
async fn next_answer(mailbox: &Mailbox) -> (usize, Decision) {
    let mut mail = Vec::new();
    poll_fn(|cx| {
        mailbox.listen(cx.waker(), None);
        mailbox.take(&mut mail);
        match mail.pop() {
            Some((index, Answer::Decision(decision))) => Poll::Ready((index as usize, decision)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// A check of several keys under way, and when it began.
#[derive(Debug)]
pub struct TimedMultiCheck {
    asked: MultiCheck,
    begun: Instant,
}

impl TimedMultiCheck {
    /// Begins to check all `checks`, which arrived at `begun`.
    pub fn begin(state: &ServerState, begun: Instant, checks: Vec<CheckRequest>) -> Self {
        let mut out = Outgoing::default();
        let asked = MultiCheck::begin(state, begun, checks, &mut out);
        state.node.flush(&mut out);
        Self { asked, begun }
    }

    /// Whether all answers are there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.asked.is_complete()
    }

    /// The answers, and whether one was denied; if so, nothing is charged.
    pub async fn end(mut self, state: &ServerState) -> (bool, Vec<CheckResult>) {
        if !self.is_complete() {
            self.asked.complete(state).await;
        }
        let (mut out, now, count) = (Outgoing::default(), state.node.clock.now(), self.asked.items.len() as u64);
        let ended = self.asked.end(state, now, &mut out);
        state.node.flush(&mut out);
        state.control_stats().durations.add(now.since(self.begun), count);
        ended
    }
}

/// Checks all `checks` and waits for the answers. Returns whether one was denied; if so, nothing is charged.
pub async fn decide(state: &ServerState, checks: Vec<CheckRequest>) -> (bool, Vec<CheckResult>) {
    TimedMultiCheck::begin(state, state.node.clock.now(), checks).end(state).await
}

/// Checks one key.
pub async fn decide_one(state: &ServerState, check: CheckRequest) -> CheckResult {
    OneCheck::begin_now(state, check).end(state).await
}

/// The same, with the deadline counted from `begun`. A command of several steps may thus take no longer than one of a
/// single step.
pub async fn decide_since(state: &ServerState, begun: Instant, check: CheckRequest) -> CheckResult {
    OneCheck::begin(state, begun, check).end(state).await
}

/// Peeks at one key with what this node knows: charges nothing, and does not ask the store.
pub fn peek_local(state: &ServerState, check: &CheckRequest) -> CheckResult {
    let item = Item::new(state, CheckRequest { peek: true, ..check.of(0) });
    let Item { rule, digest, fixed, .. } = &item;
    let known = rule.as_ref().filter(|_| fixed.is_none()).and_then(|rule| {
        let request = Request { rule, digest: *digest, key: &check.key, cost: 0, peek: true };
        let mut out = Outgoing::default();
        let decision = state.node.ask(state.node.clock.now(), Ask::PeekLocal, request, (&Arc::default(), 0), &mut out);
        state.node.flush(&mut out);
        decision
    });
    let answer = known.or(item.fixed).expect("a look answers at once, and what has no rule is answered already");
    CheckResult { decision: item.enforced(answer), rule: item.rule, digest: item.digest }
}
