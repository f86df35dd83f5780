//! Who a peer is, and what carries gossip between peers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

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
#[derive(Clone, Debug)]
pub struct Gossip {
    /// Who sent it.
    pub from: PeerId,
    /// Where an answer reaches the sender.
    pub reply_to: SocketAddr,
    /// The message, at most [`super::MAX_FRAME`] bytes.
    pub frame: Bytes,
}

/// What carries gossip: connections between nodes, or a test's memory.
pub trait Carrier: Send + Sync + 'static {
    /// Queues a message for the node at `to`, without ever waiting; `false`: it was dropped.
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool;

    /// Whether `peer` can be sent to without dialling first.
    fn is_connected(&self, peer: &PeerId) -> bool;

    /// Whether `peer` has said goodbye.
    fn has_left(&self, peer: &PeerId) -> bool;

    /// Changes whenever an answer of the two questions above may have changed.
    fn changes(&self) -> watch::Receiver<u64>;
}
