//! Calls under way and the requests that wait for their answers, for leased keys and for keys of concurrent limits.

use std::num::NonZeroU64;

use super::call::{Call, Op, StoreError};
use super::context::Context;
use super::mutant::{Mutant, on};
use super::request::Ticket;
use super::time::Instant;

/// How often one call may be sent. When the connection breaks over which it was sent, it is sent again under the same
/// id.
const ATTEMPTS: u8 = 3;

/// A parked request: a check, a peer that asks for tokens, or who waits for an errand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) cost: u64,
    pub(super) deadline: Instant,
    /// Answers of the store that did not decide it.
    pub(super) answers: u8,
    /// Asks of peers that were made for it.
    pub(super) asks: u8,
    /// The peer's terms if it is an ask; `None` for a client's check.
    pub(super) peer: Option<WaitingPeer>,
}

/// The terms of a peer that waits for the answer to its ask, beside the tokens that it wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingPeer {
    /// The fewest tokens that are of any use to it.
    pub(super) least: NonZeroU64,
    /// Until then it waits for the answer. Its place in the line is that of a check that came when it did, so its turn may come
    /// too late for it.
    pub(super) until: Instant,
    /// It may be lent what is set aside for this node.
    pub(super) aside: bool,
}

impl Waiter {
    /// A check that has just come.
    pub(super) fn new(ticket: Ticket, cost: u64, deadline: Instant) -> Self {
        Self { ticket, cost, deadline, answers: 0, asks: 0, peer: None }
    }
}

/// A call under way.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) call: Call,
    /// When it was first sent.
    pub(super) sent: Instant,
    /// How often it was sent; 0 when it waits to be sent.
    pub(super) attempts: u8,
    /// Its connection broke, and it will be sent again.
    pub(super) is_lost: bool,
    /// How it has ended, while its waiters must still be answered.
    pub(super) ended: Option<Ended>,
    /// The requests that wait for it, sorted by deadline; those that wait for an acquire are in the key's line. They
    /// are answered by their deadlines, but the call goes on.
    pub(super) waiters: Vec<Waiter>,
}

/// How a call has ended.
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

    /// A call that waits to be sent, because others must be sent before it.
    pub(super) fn queued(call: Call, now: Instant, waiter: Waiter) -> Self {
        Self { call, sent: now, attempts: 0, is_lost: false, ended: None, waiters: vec![waiter] }
    }

    /// Whether it must be sent again after this error: it is unknown whether the store has executed it, and the
    /// answer to another attempt may tell.
    pub(super) fn is_retried(&self, error: &StoreError) -> bool {
        *error == StoreError::Unknown && self.attempts < ATTEMPTS
    }

    /// Sends it again under the same id, so that the store executes it only once.
    pub(super) fn send_again(&mut self, cx: &mut Context, now: Instant) {
        self.attempts += 1;
        self.is_lost = false;
        self.call.sent_at = now;
        if let Op::Acquire(order) = &mut self.call.op {
            *order = order.repeated();
        }
        let returns = matches!(self.call.op, Op::Return { .. });
        if on(if returns { Mutant::ReturnUnderNewId } else { Mutant::RetryUnderNewId }) {
            self.call.id = cx.id();
        }
        cx.send(&self.call);
    }
}
