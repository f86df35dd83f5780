//! Calls under way and those who wait for their answers: the same for leased keys and for concurrent ones.

use super::call::{Call, Op};
use super::context::Context;
use super::mutant::{Mutant, on};
use super::request::{Effect, Ticket};
use super::time::Instant;

/// Sendings of one call: it is sent again under the same id when the connection broke that it left by.
pub(super) const ATTEMPTS: u8 = 3;

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
    /// The store has answered, and who waits is answered when other calls that bear on it have ended.
    pub(super) is_answered: bool,
    /// Who waits for it, the earliest deadline first; an acquire serves the line instead. They are answered by their
    /// deadlines, and the call goes on.
    pub(super) waiters: Vec<Waiter>,
}

pub(super) fn send_again(flight: &mut Flight, cx: &mut Context, now: Instant) {
    flight.attempts += 1;
    flight.call.sent_at = now;
    let returns = matches!(flight.call.op, Op::Return { .. });
    if on(if returns { Mutant::ReturnUnderNewId } else { Mutant::RetryUnderNewId }) {
        flight.call.id = cx.id();
    }
    cx.effects.push_back(Effect::Call(flight.call.clone()));
}

pub(super) fn flight(call: Call, now: Instant) -> Flight {
    Flight { call, sent: now, attempts: 1, is_answered: false, waiters: Vec::new() }
}
