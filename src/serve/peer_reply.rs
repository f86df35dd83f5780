//! Sends one answer to the peer that asked.

use std::sync::Arc;

use super::peer_outcome::{PeerOutcome, PeerOutcomes};
use crate::core::ask::Answer;
use crate::fleet::Reply;
use crate::wire::peer_ask::encode_answer;

/// Answers one ask. If it is dropped, the peer gets no answer, and goes on without one when its patience is over.
#[derive(Debug)]
pub struct PeerReply {
    id: u64,
    reply: Reply,
    outcomes: Arc<PeerOutcomes>,
}

impl PeerReply {
    /// Answers the ask of that id, and counts what became of it.
    #[must_use]
    pub fn new(id: u64, reply: Reply, outcomes: Arc<PeerOutcomes>) -> Self {
        Self { id, reply, outcomes }
    }

    /// Sends the answer, without waiting.
    pub fn send(self, answer: &Answer) {
        self.outcomes.count(PeerOutcome::of(answer));
        self.reply.send(encode_answer(self.id, answer));
    }
}
