//! Commands about keys: find the policy, and ask the key's shard.
//!
//! What is answered at once is written at once; the rest becomes a pending reply. Part of `session.rs`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Batch, Session};
use crate::core::decision::Decision;
use crate::core::key::Digest;
use crate::core::policy::{AD_HOC, Plan, Policy, Rule};
use crate::core::shard::Request;
use crate::serve::ask::{Ask, CheckRequest};
use crate::serve::check_request::MultiCheck;
use crate::serve::denied::Subject;
use crate::serve::handshake;
use crate::serve::mailbox::{Answer, Promise, Waiter};
use crate::serve::reply_queue::{ReplyFormat, write_done};
use crate::serve::server_state::ServerState;
use crate::serve::{connection_permits, requests};
use crate::wire::rate::{Dialect, Rate};
use crate::wire::ration::{Part, parts};
use crate::wire::resp::Args;

/// The error for commands that concurrent limits do not support.
const IN_FLIGHT: &str =
    "ERR this policy limits what is in flight: RATION.CHECK takes a slot, and RATION.RELEASE ends it";

/// A request to a key's shard, and how its answer is written.
struct Question<'a> {
    ask: Ask,
    rule: &'a Arc<Rule>,
    digest: Digest,
    key: &'a [u8],
    cost: u64,
    peek: bool,
}

impl Session {
    pub(super) fn throttle(&mut self, batch: &mut Batch<'_>, key: &[u8], rate: Rate, quantity: i64) {
        if let Err(why) = self.caller.may_bring_limits(batch.state) {
            return self.not_granted(batch, why, "limits of its own");
        }
        let rule = match batch.rules.get(rate) {
            Ok(rule) => rule.clone(),
            Err(problem) => return self.error(batch, &format!("ERR {problem}")),
        };
        let question = Question {
            ask: if quantity < 0 { Ask::Refund } else { Ask::Check(batch.deadline()) },
            rule: &rule,
            digest: batch.state.node.digests.digest(AD_HOC, key),
            key,
            cost: quantity.unsigned_abs(),
            peek: quantity == 0,
        };
        match &self.ask(batch, &question) {
            Some(decision) if rate.dialect == Dialect::Throttlecrab => {
                self.writer(batch).throttlecrab(decision, &rule.limits[0])
            }
            Some(decision) => self.writer(batch).throttle(decision),
            None if rate.dialect == Dialect::Throttlecrab => {
                self.replies.park(batch.now, ReplyFormat::Throttlecrab(rule))
            }
            None => self.replies.park(batch.now, ReplyFormat::Throttle),
        }
    }

    pub(super) fn check(&mut self, batch: &mut Batch<'_>, name: &[u8], key: &[u8], cost: u64, peek: bool) {
        let Some(policy) = self.policy(batch, name) else { return };
        let rule = match policy.plan(key) {
            Plan::Limited(rule) => rule,
            plan => {
                let decision = plan.fixed_decision().expect("a plan without limits has a decision");
                let digest = batch.state.node.digests.digest(&policy.name, key);
                let decision = policy.enforced(digest, decision);
                batch.stats.count(&policy.name, &decision);
                if !peek && cost > 0 {
                    let subject = Subject { policy: &policy.name, rule: None, digest, key };
                    batch.state.node.note_fixed(batch.now, &subject, cost, &decision);
                }
                return self.writer(batch).decision(&decision, None);
            }
        };
        if rule.is_concurrent() {
            let check =
                CheckRequest { policy: policy.clone(), key: key.into(), cost, peek, asker: self.mailbox.asker() };
            return self.occupy(batch, check);
        }
        let digest = batch.state.node.digests.digest(&policy.name, key);
        let charged = cost > 0 && !peek;
        if let Some(candidate) = policy.candidate.as_ref().filter(|_| charged)
            && policy.candidate_beside(policy.plan(key)).is_some()
        {
            batch.state.node.attempt(batch.now, (candidate, key, cost), self.mailbox.asker(), batch.outgoing);
        }
        match &mut self.ask(batch, &Question { ask: Ask::Check(batch.deadline()), rule, digest, key, cost, peek }) {
            Some(decision) => {
                batch.stats.enforce(policy, digest, decision, charged);
                self.writer(batch).decision(decision, Some(rule));
            }
            None => {
                let rule = rule.clone();
                self.replies.park(batch.now, ReplyFormat::Decision { policy: policy.clone(), rule, digest, charged });
            }
        }
    }

    /// Checks a concurrent limit. A permit that is granted is remembered, so that it ends with the connection.
    fn occupy(&mut self, batch: &mut Batch<'_>, check: CheckRequest) {
        let asked = MultiCheck::begin(batch.state, batch.came, vec![check], batch.outgoing);
        self.reply_or_spawn(batch, requests::occupy(batch.state.clone(), asked, self.permits.clone()));
    }

    pub(super) fn release(&mut self, batch: &mut Batch<'_>, name: &[u8], key: &[u8], id: &[u8]) {
        let Some(policy) = self.policy(batch, name) else { return };
        let digest = batch.state.node.digests.digest(&policy.name, key);
        match connection_permits::parse(id)
            .filter(|&permit| batch.state.node.release(batch.now, digest, permit, batch.outgoing))
        {
            Some(permit) => {
                self.permits.forget(permit);
                self.writer(batch).simple("OK");
            }
            None => self.error(batch, &format!("ERR {}", connection_permits::UNKNOWN)),
        }
    }

    pub(super) fn refund_or_reset(&mut self, batch: &mut Batch<'_>, ask: Ask, name: &[u8], key: &[u8], cost: u64) {
        let Some(policy) = self.policy(batch, name) else { return };
        if ask == Ask::Refund && !policy.refunds {
            let name = &policy.name;
            let text =
                format!("NOPERM policy '{name}' takes nothing back (refunds = false): what was spent or lent stands");
            return self.error(batch, &text);
        }
        let Plan::Limited(rule) = policy.plan(key) else { return self.writer(batch).simple("OK") };
        if rule.is_concurrent() {
            return self.error(batch, IN_FLIGHT);
        }
        if ask == Ask::Refund && cost == 0 {
            return self.writer(batch).simple("OK");
        }
        let digest = batch.state.node.digests.digest(&policy.name, key);
        match self.ask(batch, &Question { ask, rule, digest, key, cost, peek: false }) {
            Some(decision) => write_done(&mut self.writer(batch), &decision),
            None => self.replies.park(batch.now, ReplyFormat::Done),
        }
    }

    pub(super) fn mcheck(&mut self, batch: &mut Batch<'_>, args: Args<'_>) {
        let mut checks = Vec::new();
        for Part { policy, key, cost } in parts(args) {
            let Some(policy) = self.policy(batch, policy) else { return };
            checks.push(CheckRequest {
                policy: policy.clone(),
                key: key.into(),
                cost,
                peek: false,
                asker: self.mailbox.asker(),
            });
        }
        let asked = MultiCheck::begin(batch.state, batch.came, checks, batch.outgoing);
        self.reply_or_spawn(batch, requests::mcheck(batch.state.clone(), asked, self.permits.clone()));
    }

    /// Answers about one key, in a task of its own if the store must be asked.
    pub(super) fn reply_later<F>(
        &mut self,
        batch: &mut Batch<'_>,
        (policy, key, cost): (&[u8], &[u8], u64),
        answer: impl FnOnce(Arc<ServerState>, CheckRequest) -> F,
    ) where
        F: Future<Output = Vec<u8>> + Send + 'static,
    {
        let Some(policy) = self.policy(batch, policy) else { return };
        let takes = matches!(policy.plan(key), Plan::Limited(rule) if rule.is_concurrent()) && cost > 0;
        if takes {
            return self.error(batch, IN_FLIGHT);
        }
        let check =
            CheckRequest { policy: policy.clone(), key: key.into(), cost, peek: false, asker: self.mailbox.asker() };
        self.reply_or_spawn(batch, answer(batch.state.clone(), check));
    }

    pub(super) fn explain(&mut self, batch: &mut Batch<'_>, policy: &[u8], key: &[u8]) {
        let Some(policy) = self.policy(batch, policy) else { return };
        let check =
            CheckRequest { policy: policy.clone(), key: key.into(), cost: 1, peek: true, asker: self.mailbox.asker() };
        self.reply_or_spawn(batch, requests::explain(batch.state.clone(), check));
    }

    /// Polls the reply once, so that requests reach the shards in the order of the connection's commands. Mostly it
    /// is then ready; otherwise a task continues it.
    pub(super) fn reply_or_spawn(
        &mut self,
        batch: &mut Batch<'_>,
        reply: impl Future<Output = Vec<u8>> + Send + 'static,
    ) {
        let mut reply = Box::pin(reply);
        batch.state.node.flush(batch.outgoing);
        if let Poll::Ready(reply) = reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return self.writer(batch).raw(&reply);
        }
        let promise = Promise::to(Waiter { mailbox: self.mailbox.clone(), seq: self.replies.next_seq() });
        self.replies.park(batch.now, ReplyFormat::Whole);
        tokio::spawn(async move { promise.keep(Answer::Reply(reply.await)) });
    }

    fn ask(&mut self, batch: &mut Batch<'_>, question: &Question<'_>) -> Option<Decision> {
        let Question { ask, rule, digest, key, cost, peek } = *question;
        let request = Request { rule, digest, key, cost, peek };
        let waiter = (&self.mailbox, self.replies.next_seq());
        let decision = batch.state.node.ask(batch.now, ask, request, waiter, batch.outgoing);
        batch.stats.at_once += u64::from(decision.is_some() && matches!(ask, Ask::Check(_)));
        decision
    }

    /// The policy of that name. If there is none, writes an error that lists similar names.
    fn policy<'p>(&mut self, batch: &mut Batch<'p>, name: &[u8]) -> Option<&'p Arc<Policy>> {
        let policies = batch.policies;
        let Some(found) = policies.get(name) else {
            self.error(batch, &handshake::unknown_policy(policies, name));
            return None;
        };
        if let Err(why) = self.caller.may_use(batch.state, &found.name) {
            self.not_granted(batch, why, &format!("policy '{}'", found.name));
            return None;
        }
        Some(found)
    }
}
