//! Clients that take permits of a concurrent limit, and how they give them back: in time, twice, by the end of their
//! connection, or not at all.
//!
//! As the daemon does (`src/serve/connection_permits.rs`), a node ends the permits that were taken over a connection
//! when that closes; an answer for a closed connection is given back at once. A node that leaves closes its connections
//! before it returns its leases; a node that crashes returns nothing. The core and the store count the permits.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use rationd::core::time::Instant;

use crate::maps::Map;
use crate::observe::Request;
use crate::random::Random;

/// Connections per node.
pub(super) const WIRES: u64 = 4;

/// Keys whose permits are taken once more at the end, and the most permits of each.
pub(super) const LAST: (usize, u64) = (2, 40);

/// After this time no node has permits that its clients do not use, because all unused leases have ended, also those of
/// crashed nodes.
pub(super) const SETTLED: u64 = 16_000_000;

/// How a client gives a permit back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Release,
    Twice,
    HangUp,
    Forget,
}

/// A client that asks for a permit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    pub(super) stays: u64,
    pub(super) leave: Leave,
    pub(super) wire: Wire,
}

/// A connection: its position at a node, and how many were there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wire {
    pub(super) place: u64,
    pub(super) turn: u64,
}

/// A permit: its latest end, its id and its key.
pub(super) type Slot = (Instant, NonZeroU64, u32);

/// The permits of one connection.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) turn: u64,
    pub(super) slots: BTreeSet<Slot>,
}

/// All clients that have asked for permits, and the permits of connections.
#[derive(Debug, Default)]
pub(super) struct Takers {
    pub(super) asking: Map<u64, Taker>,
    pub(super) wires: BTreeMap<(u32, u64), Taken>,
    /// When the last client asks at the end.
    pub(super) last: u64,
}

/// A release, a closed connection or a last request that reaches one incarnation of a node.
#[derive(Debug)]
pub(super) struct Parting {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    /// The client of this permit releases it.
    Release { key: u32, permit: NonZeroU64 },
    /// A connection closes.
    HangUp(Wire),
    /// A client asks for a permit at the end of the run.
    Ask(Request),
}

impl Takers {
    /// No client has asked for a permit.
    pub(super) fn is_empty(&self) -> bool {
        self.asking.is_empty()
    }

    /// No client will ask for one at the end.
    pub(super) fn is_done(&self, now: u64) -> bool {
        now > self.last
    }

    /// Draws the next client, and how it gives its permit back.
    pub(super) fn draw(&self, random: &mut Random, node: u32, stays: u64, drops: u32) -> Taker {
        let place = random.below(WIRES);
        let turn = self.wires.get(&(node, place)).map_or(0, |taken| taken.turn);
        let leave = if random.chance(drops.into()) {
            *random.pick(&[Leave::Twice, Leave::HangUp, Leave::HangUp, Leave::Forget])
        } else {
            Leave::Release
        };
        Taker { stays: random.between(stays / 20, stays), leave, wire: Wire { place, turn } }
    }
}
