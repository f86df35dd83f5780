//! Clients that charge an estimate and settle it later: in time, too late, twice, or never.
//!
//! A hold begins as a check like any other. The table of a node's holds and the steps of settling are the shipped
//! ones ([`rationd::core::holds`]); their requests reach the node like any others. When a node is gone, its holds are
//! lost, and their charges stay.

use rationd::core::holds::{Charge, Settling};

use crate::maps::Map;
use crate::observe::Request;

/// What a client will do with a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The actual cost.
    pub(super) actual: u64,
    /// How long it can be settled.
    pub(super) ttl: u64,
    /// How long after the check it is settled, and how often (0 if never).
    pub(super) after: u64,
    pub(super) times: u64,
}

/// The owner of a hold, as a node stores it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The request with which it began.
    pub(super) hold: u64,
    pub(super) key: u32,
    pub(super) policy: u32,
}

/// A request about a hold to one incarnation of a node.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// Settles the hold with this id to its actual cost.
    Settle { id: u64, actual: u64 },
    /// A step of settling.
    Ask(Request),
}

/// The purpose of a request.
#[derive(Debug)]
pub(super) enum Purpose {
    Begin(Terms),
    Settle(Held, Settling),
    GiveBack(Charge),
}

/// Requests about holds, until they are answered.
#[derive(Debug, Default)]
pub(super) struct Holders(pub(super) Map<u64, Purpose>);

impl Holders {
    /// The check with this id begins a hold if it is admitted.
    pub(super) fn begin(&mut self, request: u64, terms: Terms) {
        self.0.insert(request, Purpose::Begin(terms));
    }

    /// The charge that a refund gives a part of back.
    pub(super) fn charge(&self, request: u64) -> Option<&Charge> {
        match self.0.get(&request) {
            Some(Purpose::GiveBack(charge)) => Some(charge),
            _ => None,
        }
    }

    /// Whether the request is a step of settling. As in the daemon, the peek of such a step uses only what the node
    /// knows.
    pub(super) fn settles(&self, request: u64) -> bool {
        matches!(self.0.get(&request), Some(Purpose::Settle(..)))
    }

    /// Whether no request is about a hold.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
