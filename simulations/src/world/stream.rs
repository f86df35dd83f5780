//! Connections from nodes to servers. What is written to one arrives in order, and late rather than not at all: as
//! with TCP, a segment that the network loses is sent again after 200 ms, then after twice as long each time, and
//! later ones wait behind it.
//!
//! A node gives a connection up when it is reset, or when nothing has come from the server for a second while an answer
//! was awaited. The outcome of its calls is then unknown. Calls that were written before still arrive, but their
//! answers are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::message::Reply;
use super::network::Heading;
use crate::maps::Map;

/// Time until a lost segment is sent again for the first time.
pub(super) const RESEND: u64 = 200_000;

/// Most doublings of that time.
pub(super) const DOUBLINGS: u32 = 9;

/// If nothing comes for this long while an answer is awaited, the connection is given up.
pub(super) const SILENCE: u64 = 1_000_000;

/// The content of a segment.
#[derive(Debug)]
pub(super) enum Parcel {
    /// A call.
    Call(u64),
    /// The answer to a call.
    Answer(u64, Reply),
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    /// Segments that have not arrived: the first was lost, and the others wait behind it.
    pub(super) parcels: VecDeque<Parcel>,
    /// How often the first was lost.
    pub(super) losses: u32,
    /// When the last one arrives that was not lost.
    pub(super) last: u64,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) server: u32,
    pub(super) generation: u64,
    /// Calls whose answers the node awaits.
    pub(super) awaited: BTreeSet<u64>,
    /// When something last came, or the first answer was awaited, by a clock that stops while the node is frozen.
    pub(super) heard: u64,
    /// A check for silence is scheduled.
    pub(super) watched: bool,
    /// The node has given it up.
    pub(super) closed: bool,
    pub(super) calls: Pipe,
    pub(super) answers: Pipe,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) links: Map<u64, Link>,
    /// The connection that each node writes to, by node and server.
    pub(super) latest: BTreeMap<(u32, u32), u64>,
    pub(super) next: u64,
}

impl Link {
    pub(super) fn pipe(&mut self, heading: Heading) -> &mut Pipe {
        match heading {
            Heading::ToRedis => &mut self.calls,
            Heading::FromRedis => &mut self.answers,
        }
    }
}
