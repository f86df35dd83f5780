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
use crate::store::turns::Asker;

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
    /// In whose turn the store is asked.
    pub asker: Asker,
}

/// The answer to one of them.
#[derive(Clone, Debug)]
pub struct Told {
    /// As the policy carries it out.
    pub decision: Decision,
    /// The limits behind it; `None`: the policy counts nothing.
    pub rule: Option<Arc<Rule>>,
    /// Of the policy and the key.
    pub digest: Digest,
}

/// Keys that are being asked about.
#[derive(Debug)]
pub struct Asked {
    items: Vec<Item>,
    /// Those yet to be asked, the next one last.
    order: Vec<usize>,
    is_denied: bool,
    /// All of them wait for the store until then.
    deadline: Instant,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug)]
struct Item {
    inquiry: Inquiry,
    rule: Option<Arc<Rule>>,
    digest: Digest,
    /// As the shard decided.
    answer: Option<Decision>,
    /// Asked to charge, and not only to look.
    charged: bool,
}

impl Item {
    fn new(hub: &Hub, inquiry: Inquiry) -> Self {
        let plan = inquiry.policy.plan(&inquiry.key);
        let rule = if let Plan::Limited(rule) = plan { Some(rule.clone()) } else { None };
        let (answer, digests) = (plan.fixed_decision(), hub.node.digests);
        let digest = digests.digest(&inquiry.policy.name, &inquiry.key);
        Self { rule, digest, answer, charged: false, inquiry }
    }

    /// What the answer comes to, as the policy carries it out.
    fn told(&self) -> Option<Decision> {
        self.answer.map(|decision| self.inquiry.policy.enforced(self.digest, decision))
    }

    fn is_turned_away(&self) -> bool {
        self.told().is_some_and(|told| told.verdict == Verdict::Deny)
    }
}

impl Asked {
    /// Asks, as far as answers come at once; who asks has come at `came`. The caller must flush `out` before it waits.
    pub fn begin(hub: &Hub, came: Instant, inquiries: Vec<Inquiry>, out: &mut Outgoing) -> Self {
        let now = hub.node.clock.now();
        let mailbox = Arc::new(Mailbox::of(inquiries.first().map_or(Asker::NODE, |inquiry| inquiry.asker)));
        let items: Vec<Item> = inquiries.into_iter().map(|inquiry| Item::new(hub, inquiry)).collect();
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse((items[index].digest.0, index)));
        let is_denied = items.iter().any(Item::is_turned_away);
        let mut asked = Self { items, order, is_denied, deadline: came + hub.node.timeout, mailbox };
        asked.advance(hub, now, out);
        if !asked.is_complete() {
            asked.prefetch(hub, now, out);
        }
        asked
    }

    /// Asks one after another until an answer is waited for.
    fn advance(&mut self, hub: &Hub, now: Instant, out: &mut Outgoing) {
        while let Some(&index) = self.order.last() {
            if self.items[index].answer.is_none() {
                let ask = if self.is_denied { Ask::PeekLocal } else { Ask::Check(self.deadline) };
                let Inquiry { cost, peek, .. } = self.items[index].inquiry;
                self.items[index].charged = !self.is_denied && !peek && cost > 0;
                self.items[index].answer = self.ask(hub, now, ask, index, out);
                if self.items[index].answer.is_none() {
                    return;
                }
            }
            self.is_denied |= self.items[index].is_turned_away();
            self.order.pop();
        }
    }

    /// What later ones lack is leased while an earlier one waits.
    fn prefetch(&self, hub: &Hub, now: Instant, out: &mut Outgoing) {
        for &index in self.order.iter().rev().skip(1).filter(|&&index| self.items[index].answer.is_none()) {
            self.ask(hub, now, Ask::Prefetch, index, out);
        }
    }

    fn ask(&self, hub: &Hub, now: Instant, ask: Ask, index: usize, out: &mut Outgoing) -> Option<Decision> {
        let Item { inquiry: Inquiry { key, cost, peek, .. }, rule, digest, .. } = &self.items[index];
        let request = Request { rule: rule.as_ref()?, digest: *digest, key, cost: *cost, peek: *peek };
        hub.node.ask(now, ask, request, (&self.mailbox, index as u64), out)
    }

    /// Whether every answer is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.order.is_empty()
    }

    /// Waits for what is missing, until the deadline of all at most.
    pub async fn complete(&mut self, hub: &Hub) {
        let mut out = Outgoing::default();
        while !self.is_complete() {
            let (index, decision) = self.next_answer().await;
            self.items[index].answer = Some(decision);
            self.advance(hub, hub.node.clock.now(), &mut out);
            hub.node.flush(&mut out);
        }
    }

    async fn next_answer(&self) -> (usize, Decision) {
        let mut mail = Vec::new();
        poll_fn(|cx| {
            self.mailbox.listen(cx.waker(), None);
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
        let is_denied = self.items.iter().any(Item::is_turned_away);
        let end = |item: Item| {
            let (raw, mut decision) = item.answer.zip(item.told())?;
            let Item { inquiry: Inquiry { policy, key, cost, asker, .. }, rule, digest, charged, .. } = item;
            match &rule {
                None => hub.aside().count(&policy.name, &decision),
                Some(_) if charged && raw.verdict == Verdict::Deny && decision.verdict == Verdict::Allow => {
                    hub.aside().enforced(&policy, digest, raw, true);
                }
                Some(rule) if charged && raw.verdict == Verdict::Allow && is_denied => {
                    let request = Request { rule, digest, key: &key, cost, peek: false };
                    hub.node.rollback(now, asker, request, &raw, out);
                    decision.remaining = decision.remaining.saturating_add(cost).min(decision.limit);
                    decision.slot = None;
                }
                Some(_) => {}
            }
            Some(Told { decision, rule, digest })
        };
        (is_denied, self.items.into_iter().filter_map(end).collect())
    }
}

/// Questions that are under way, and since when.
#[derive(Debug)]
pub struct Asking {
    asked: Asked,
    begun: Instant,
}

impl Asking {
    /// Asks about all of `inquiries`, which came at `begun`, as far as answers come at once.
    pub fn begin(hub: &Hub, begun: Instant, inquiries: Vec<Inquiry>) -> Self {
        let mut out = Outgoing::default();
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
        let (mut out, now, count) = (Outgoing::default(), hub.node.clock.now(), self.asked.items.len() as u64);
        let ended = self.asked.end(hub, now, &mut out);
        hub.node.flush(&mut out);
        hub.aside().durations.add(now.since(self.begun), count);
        ended
    }
}

/// Asks about all of `inquiries` and waits for the answers: whether one was denied, and then nothing is charged.
pub async fn decide(hub: &Hub, inquiries: Vec<Inquiry>) -> (bool, Vec<Told>) {
    Asking::begin(hub, hub.node.clock.now(), inquiries).end(hub).await
}

/// Asks about one key.
pub async fn decide_one(hub: &Hub, inquiry: Inquiry) -> Told {
    let (_, mut told) = decide(hub, vec![inquiry]).await;
    told.pop().expect("one was asked about")
}

/// What is known of one key here: nothing is charged, and nobody is asked.
pub fn look(hub: &Hub, inquiry: &Inquiry) -> Told {
    let item = Item::new(hub, Inquiry { peek: true, ..inquiry.of(0) });
    let Item { rule, digest, answer, .. } = &item;
    let known = rule.as_ref().filter(|_| answer.is_none()).and_then(|rule| {
        let request = Request { rule, digest: *digest, key: &inquiry.key, cost: 0, peek: true };
        let mut out = Outgoing::default();
        let decision = hub.node.ask(hub.node.clock.now(), Ask::PeekLocal, request, (&Arc::default(), 0), &mut out);
        hub.node.flush(&mut out);
        decision
    });
    let item = Item { answer: known.or(item.answer), ..item };
    let decision = item.told().expect("a look answers at once, and what has no rule is answered already");
    Told { decision, rule: item.rule, digest: item.digest }
}

impl Inquiry {
    /// The same key, asked for `cost`.
    #[must_use]
    pub fn of(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }
}
