//! Several keys asked at once, all or nothing, and answers that may be awaited.
//!
//! For commands of more than one decision and for doors that are not RESP. Asks each key's shard in the
//! order of their digests, one after another, so that requests that meet at the same keys do not turn each other
//! away; what later ones lack is leased meanwhile; if one is denied, what was charged to the others is given
//! back, in memory as far as their leases are still there. Knows no protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::hub::Hub;
use super::mailbox::{Answer, Mailbox};
use super::node::{Ask, Outgoing};
use crate::core::decision::{Decision, Verdict};
use crate::core::key::Digest;
use crate::core::policy::{Plan, Policy, Rule};
use crate::core::shard::Request;
use crate::core::time::Instant;

/// One of the keys asked about.
#[derive(Clone, Debug)]
pub struct Inquiry {
    /// Its policy.
    pub policy: Arc<Policy>,
    /// Its bytes.
    pub key: Box<[u8]>,
    /// Tokens asked for.
    pub cost: u64,
    /// Charge nothing. A cost of 0 is a peek too.
    pub peek: bool,
}

/// The answer to one of them.
#[derive(Clone, Debug)]
pub struct Told {
    /// As the policy carries it out.
    pub decision: Decision,
    /// The limits behind it; `None`: the policy counts nothing.
    pub rule: Option<Arc<Rule>>,
}

/// Keys that are being asked about.
#[derive(Debug)]
pub struct Asked {
    inquiries: Vec<Inquiry>,
    rules: Vec<Option<Arc<Rule>>>,
    digests: Vec<Digest>,
    /// As the shards decided.
    answers: Vec<Option<Decision>>,
    /// Asked to charge, and not only to look.
    charged: Vec<bool>,
    /// Those yet to be asked, the next one last.
    order: Vec<usize>,
    is_denied: bool,
    mailbox: Arc<Mailbox>,
}

impl Asked {
    /// Asks, as far as answers come at once. The caller must flush `out` before it waits.
    pub fn begin(hub: &Hub, now: Instant, inquiries: Vec<Inquiry>, out: &mut Outgoing) -> Self {
        let digests: Vec<_> = inquiries.iter().map(|inquiry| Digest::of(&inquiry.policy.name, &inquiry.key)).collect();
        let rules = inquiries.iter().map(|inquiry| match inquiry.policy.plan(&inquiry.key) {
            Plan::Limited(rule) => Some(rule.clone()),
            _ => None,
        });
        let fixed = inquiries.iter().map(|inquiry| inquiry.policy.plan(&inquiry.key).fixed_decision());
        let mut order: Vec<usize> = (0..inquiries.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse((digests[index].0, index)));
        let mut asked = Self {
            rules: rules.collect(),
            answers: fixed.collect(),
            charged: vec![false; inquiries.len()],
            mailbox: Arc::new(Mailbox::default()),
            order,
            is_denied: false,
            digests,
            inquiries,
        };
        asked.is_denied = (0..asked.inquiries.len()).any(|index| asked.is_turned_away(index));
        asked.advance(hub, now, out);
        if !asked.is_complete() {
            asked.warm(hub, now, out);
        }
        asked
    }

    /// Asks one after another until an answer is waited for.
    fn advance(&mut self, hub: &Hub, now: Instant, out: &mut Outgoing) {
        while let Some(&index) = self.order.last() {
            if self.answers[index].is_none() {
                let ask = if self.is_denied { Ask::Glance } else { Ask::Check };
                self.charged[index] =
                    ask == Ask::Check && !self.inquiries[index].peek && self.inquiries[index].cost > 0;
                self.answers[index] = self.ask(hub, now, ask, index, out);
                if self.answers[index].is_none() {
                    return;
                }
            }
            self.is_denied |= self.is_turned_away(index);
            self.order.pop();
        }
    }

    /// What later ones lack is leased while an earlier one waits.
    fn warm(&self, hub: &Hub, now: Instant, out: &mut Outgoing) {
        for &index in self.order.iter().rev().skip(1).filter(|&&index| self.answers[index].is_none()) {
            self.ask(hub, now, Ask::Warm, index, out);
        }
    }

    fn ask(&self, hub: &Hub, now: Instant, ask: Ask, index: usize, out: &mut Outgoing) -> Option<Decision> {
        let Inquiry { key, cost, peek, .. } = &self.inquiries[index];
        let rule = self.rules[index].as_ref()?;
        let request = Request { rule, digest: self.digests[index], key, cost: *cost, peek: *peek };
        hub.node.ask(now, ask, request, (&self.mailbox, index as u64), out)
    }

    /// What an answer comes to, as the policy carries it out.
    fn told(&self, index: usize) -> Option<Decision> {
        self.answers[index].map(|decision| self.inquiries[index].policy.enforced(self.digests[index], decision))
    }

    fn is_turned_away(&self, index: usize) -> bool {
        self.told(index).is_some_and(|told| told.verdict == Verdict::Deny)
    }

    /// Whether every answer is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.order.is_empty()
    }

    /// Waits for what is missing, one key's deadline each at most.
    pub async fn complete(&mut self, hub: &Hub) {
        let mut out = Outgoing::default();
        while !self.is_complete() {
            let (index, decision) = self.next_answer().await;
            self.answers[index] = Some(decision);
            self.advance(hub, hub.node.clock.now(), &mut out);
            hub.node.flush(&mut out);
        }
    }

    async fn next_answer(&self) -> (usize, Decision) {
        let mut mail = Vec::new();
        poll_fn(|cx| {
            self.mailbox.listen(cx.waker());
            self.mailbox.take(&mut mail);
            match mail.pop() {
                Some((index, Answer::Decision(decision))) => Poll::Ready((index as usize, decision)),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// The end, once every answer is there: whether one was denied, and then the others are charged nothing.
    pub fn end(self, hub: &Hub, now: Instant, out: &mut Outgoing) -> (bool, Vec<Told>) {
        let count = self.inquiries.len();
        let decisions: Vec<Decision> = (0..count).filter_map(|index| self.told(index)).collect();
        let is_denied = decisions.iter().any(|decision| decision.verdict == Verdict::Deny);
        let mut told: Vec<Told> = decisions
            .into_iter()
            .zip(&self.rules)
            .map(|(decision, rule)| Told { decision, rule: rule.clone() })
            .collect();
        for (index, told) in told.iter_mut().enumerate() {
            let (Some(raw), Inquiry { policy, key, cost, .. }) = (self.answers[index], &self.inquiries[index]) else {
                continue;
            };
            let Some(rule) = &self.rules[index] else {
                hub.aside().count(&policy.name, &told.decision);
                continue;
            };
            if self.charged[index] && raw.verdict == Verdict::Deny && told.decision.verdict == Verdict::Allow {
                hub.aside().enforced(policy, self.digests[index], raw, true);
            }
            if is_denied && self.charged[index] && raw.verdict == Verdict::Allow {
                let request = Request { rule, digest: self.digests[index], key, cost: *cost, peek: false };
                hub.node.undo(now, request, &raw, out);
                told.decision.remaining = told.decision.remaining.saturating_add(*cost).min(told.decision.limit);
            }
        }
        (is_denied, told)
    }
}

/// Questions that are under way, and since when.
#[derive(Debug)]
pub struct Asking {
    asked: Asked,
    begun: Instant,
}

impl Asking {
    /// Asks about all of `inquiries`, as far as answers come at once.
    pub fn begin(hub: &Hub, inquiries: Vec<Inquiry>) -> Self {
        let (mut out, begun) = (Outgoing::default(), hub.node.clock.now());
        let asked = Asked::begin(hub, begun, inquiries, &mut out);
        hub.node.flush(&mut out);
        Self { asked, begun }
    }

    /// Whether nothing has to be waited for.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.asked.is_complete()
    }

    /// The answers: whether one was denied, and then nothing is charged.
    pub async fn end(mut self, hub: &Hub) -> (bool, Vec<Told>) {
        if !self.is_complete() {
            self.asked.complete(hub).await;
        }
        let (mut out, now, count) = (Outgoing::default(), hub.node.clock.now(), self.asked.inquiries.len() as u64);
        let ended = self.asked.end(hub, now, &mut out);
        hub.node.flush(&mut out);
        hub.aside().durations.add(now.since(self.begun), count);
        ended
    }
}

/// Asks about all of `inquiries` and waits for the answers: whether one was denied, and then nothing is charged.
pub async fn decide(hub: &Hub, inquiries: Vec<Inquiry>) -> (bool, Vec<Told>) {
    Asking::begin(hub, inquiries).end(hub).await
}

/// Asks about one key.
pub async fn decide_one(hub: &Hub, inquiry: Inquiry) -> Told {
    let (_, mut told) = decide(hub, vec![inquiry]).await;
    told.pop().expect("one was asked about")
}

impl Inquiry {
    /// The same key, asked for `cost`.
    #[must_use]
    pub fn of(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }
}
