//! Who a peer is, and what carries gossip between peers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// One life of one node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    /// The node's name, which its certificate confirms.
    pub name: Arc<str>,
    /// When this life began: Unix milliseconds. A restarted node has a higher one.
    pub incarnation: u64,
}

impl fmt::Display for PeerId {
    /// `name@incarnation`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.name, self.incarnation)
    }
}

/// A gossip message as it came from a peer.
#[derive(Debug)]
pub struct Gossip {
    /// Who sent it.
    pub from: PeerId,
    /// Where an answer reaches the sender.
    pub reply_to: SocketAddr,
    /// The message, at most [`super::MAX_FRAME`] bytes.
    pub frame: Bytes,
    /// Given back when the message has been dealt with: one peer may have so many waiting and no more.
    _slot: Option<OwnedSemaphorePermit>,
}

impl Gossip {
    /// A message of `from`, who is answered at `reply_to`.
    #[must_use]
    pub fn new(from: PeerId, reply_to: SocketAddr, frame: Bytes) -> Self {
        Self { from, reply_to, frame, _slot: None }
    }

    /// The same, holding one of its sender's slots.
    pub(crate) fn holding(self, slot: OwnedSemaphorePermit) -> Self {
        Self { _slot: Some(slot), ..self }
    }
}

/// What carries gossip: connections between nodes, or a test's memory.
pub trait Carrier: Send + Sync + 'static {
    /// Queues a message for the node at `to`, without ever waiting; `false`: it was dropped.
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool;

    /// Whether `peer` can be sent to without dialling first.
    fn is_connected(&self, peer: &PeerId) -> bool;

    /// Whether `peer` has said goodbye.
    fn has_left(&self, peer: &PeerId) -> bool;

    /// Who was heard since this was asked last, by frames of whatever kind; gossip may be left out.
    fn heard(&self) -> Vec<PeerId> {
        Vec::new()
    }

    /// Changes whenever a peer may have connected, disconnected or said goodbye.
    fn changes(&self) -> watch::Receiver<u64>;
}
