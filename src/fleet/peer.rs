//! The identity of a peer, and the trait of what transports gossip between peers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// One incarnation of a node: a start of its process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    /// The node's name, which its certificate must have.
    pub name: Arc<str>,
    /// When this incarnation was started, in Unix milliseconds. A restart has a higher number.
    pub incarnation: u64,
}

impl fmt::Display for PeerId {
    /// `name@incarnation`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.incarnation)
    }
}

/// A gossip message that was received from a peer.
#[derive(Debug)]
pub struct GossipMessage {
    /// Who sent it.
    pub from: PeerId,
    /// The address for answers to the sender.
    pub reply_to: SocketAddr,
    /// The message, at most [`super::MAX_FRAME`] bytes.
    pub frame: Bytes,
    /// Limits how many messages of one peer may wait; it is returned when the message was processed.
    _slot: Option<OwnedSemaphorePermit>,
}

impl GossipMessage {
    /// A message of `from`, whose address for answers is `reply_to`.
    #[must_use]
    pub fn new(from: PeerId, reply_to: SocketAddr, frame: Bytes) -> Self {
        Self { from, reply_to, frame, _slot: None }
    }

    /// The same, with one of its sender's permits.
    pub(crate) fn holding(self, slot: OwnedSemaphorePermit) -> Self {
        Self { _slot: Some(slot), ..self }
    }
}

/// Transports gossip: connections between nodes, or memory in a test.
pub trait Carrier: Send + Sync + 'static {
    /// Queues a message for the node at `to` without waiting; false when it was dropped.
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool;

    /// Whether there is a connection to `peer`.
    fn is_connected(&self, peer: &PeerId) -> bool;

    /// Whether `peer` has announced that it leaves.
    fn has_left(&self, peer: &PeerId) -> bool;

    /// The peers from which any frame came since the last call, and how long ago the last one of each did; a transport
    /// may leave out those of gossip.
    fn heard(&self) -> Vec<(PeerId, Duration)> {
        Vec::new()
    }

    /// Changes whenever a peer may have connected, disconnected or announced that it leaves.
    fn changes(&self) -> watch::Receiver<u64>;
}
