//! Calls under way and those who wait for their answers: the same for leased keys and for concurrent ones.

use super::call::{Call, Op, StoreError};
use super::context::Context;
use super::mutant::{Mutant, on};
use super::request::Ticket;
use super::time::Instant;

/// Sendings of one call: it is sent again under the same id when the connection broke that it left by.
const ATTEMPTS: u8 = 3;

/// A parked request: a check, or who waits for an errand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) cost: u64,
    pub(super) deadline: Instant,
    /// Answers of the store that did not settle it.
    pub(super) answers: u8,
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) call: Call,
    /// When it was first sent.
    pub(super) sent: Instant,
    /// Sendings of it; 0: it has yet to leave.
    pub(super) attempts: u8,
    /// Its connection broke, and it is about to be sent again.
    pub(super) is_lost: bool,
    /// What has come of it, as long as those who wait for it have yet to be answered.
    pub(super) ended: Option<Ended>,
    /// Who waits for it, the earliest deadline first; an acquire serves the line instead. They are answered by their
    /// deadlines, and the call goes on.
    pub(super) waiters: Vec<Waiter>,
}

/// What has come of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The store has answered it.
    Answered,
    /// The store has not answered, and will not.
    Failed(StoreError),
}

impl Flight {
    /// Sends a call for the first time.
    pub(super) fn send(cx: &mut Context, call: Call, now: Instant) -> Self {
        cx.send(&call);
        Self { call, sent: now, attempts: 1, is_lost: false, ended: None, waiters: Vec::new() }
    }

    /// A call that has yet to leave, as others have to come before it.
    pub(super) fn queued(call: Call, now: Instant, waiter: Waiter) -> Self {
        Self { call, sent: now, attempts: 0, is_lost: false, ended: None, waiters: vec![waiter] }
    }

    /// Whether it is to be sent again after this: nobody knows whether the store has executed it, and another try may
    /// tell.
    pub(super) fn is_retried(&self, error: &StoreError) -> bool {
        *error == StoreError::Unknown && self.attempts < ATTEMPTS
    }

    /// Sends it again under the same id, so that the store executes it once.
    pub(super) fn send_again(&mut self, cx: &mut Context, now: Instant) {
        self.attempts += 1;
        self.is_lost = false;
        self.call.sent_at = now;
        let returns = matches!(self.call.op, Op::Return { .. });
        if on(if returns { Mutant::ReturnUnderNewId } else { Mutant::RetryUnderNewId }) {
            self.call.id = cx.id();
        }
        cx.send(&self.call);
    }
}
