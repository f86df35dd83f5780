//! Asks that come from peers, and answers to those of this node: from frames to shards.
//!
//! It finds the limits of a key in this node's own configuration, by the name of the policy and the key's bytes, and hands
//! the ask to the key's shard. So a peer can name no limits, and no key but by its name. Answers leave by `peer_reply`, some
//! of them later. Runs on the fleet's runtime, and never waits.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::lending::Lending;
use super::node::{Node, Outgoing};
use super::peer_reply::PeerReply;
use crate::core::ask::Refusal;
use crate::core::policy::{Plan, PolicySet};
use crate::core::shard::Request;
use crate::fleet::{AskTaker, PeerId, Reply};
use crate::wire::peer_ask::{BadAsk, PeerAsk, decode_answer};

/// Takes what peers ask, and what they answer.
#[derive(Debug)]
pub struct PeerAsks {
    node: Arc<Node>,
    policies: Arc<ArcSwap<PolicySet>>,
    lending: Arc<Lending>,
}

impl PeerAsks {
    /// Serves peers from the shards of `node`, under `policies`.
    #[must_use]
    pub fn new(node: Arc<Node>, policies: Arc<ArcSwap<PolicySet>>, lending: Arc<Lending>) -> Self {
        Self { node, policies, lending }
    }
}

impl AskTaker for PeerAsks {
    fn handle_ask(&self, from: &PeerId, ask: &[u8], reply: Reply) {
        let ask = match PeerAsk::decode(ask) {
            Ok(ask) => ask,
            Err(error) => return warn(from, error),
        };
        let reply = PeerReply::new(ask.id, reply, self.lending.answered.clone());
        let policies = self.policies.load();
        let Some(Plan::Limited(rule)) = policies.get(ask.policy).map(|policy| policy.plan(ask.key)) else {
            return reply.send(&Err(Refusal::OtherRule));
        };
        let digest = self.node.digests.digest(ask.policy, ask.key);
        let request = Request { rule, digest, key: ask.key, cost: ask.terms.want, peek: false };
        let mut out = Outgoing::default();
        self.node.handle_ask(self.node.clock.now(), request, &ask.terms, reply, &mut out);
        self.node.flush(&mut out);
    }

    fn handle_answer(&self, from: &PeerId, answer: &[u8]) {
        let (id, answer) = match decode_answer(answer) {
            Ok(answer) => answer,
            Err(error) => return warn(from, error),
        };
        let now = self.node.clock.now();
        if let Some(digest) = self.lending.take_answer(now, from, id, &answer) {
            let mut out = Outgoing::default();
            self.node.handle_answer(now, digest, id, &answer, &mut out);
            self.node.flush(&mut out);
        }
    }
}

fn warn(from: &PeerId, error: BadAsk) {
    tracing::warn!(peer = %from, %error, "what a peer asks or answers makes no sense");
}
