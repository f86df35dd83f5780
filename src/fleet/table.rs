//! The connections of a node by the addresses of their peers, and the choice between several to one peer.
//!
//! Usually there is one connection per pair of nodes. Two nodes that dial each other at the same moment have two for a
//! second; then the one that the node with the lower name has dialled wins, on both sides. A connection that comes
//! after that wins over all earlier ones, because its peer no longer knows those. Knows no IO.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::link::Link;
use super::peer::PeerId;

/// Most connections at once, and most queues.
const MAX_LINKS: usize = 4_096;
/// Most connections of peers with one name: two that crossed, and as many of the previous incarnation.
const MAX_OF_ONE_NAME: usize = 4;
/// Most announcements of leaving that are remembered.
const MAX_LEFT: usize = 4_096;
/// Most addresses of this node that are remembered.
const MAX_SELVES: usize = 64;

/// Connections and queues, and what was learned from connections that have ended.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// In the order in which they were made.
    links: HashMap<SocketAddr, Vec<Arc<Link>>>,
    /// Addresses that were dialled, and the address that the peer there reported for itself.
    aliases: HashMap<SocketAddr, SocketAddr>,
    lanes: HashMap<SocketAddr, mpsc::Sender<Bytes>>,
    left: VecDeque<PeerId>,
    selves: BTreeSet<SocketAddr>,
    closed: bool,
}

impl Table {
    /// Adds a connection; false when there are too many.
    pub(crate) fn add(&mut self, link: Arc<Link>) -> bool {
        let of_name = self.all().filter(|known| known.peer.name == link.peer.name).count();
        if self.closed || self.len() >= MAX_LINKS || of_name >= MAX_OF_ONE_NAME {
            return false;
        }
        // A peer that only claims its address does not replace one that was verified to be there.
        let same = self.all().filter(|known| known.peer == link.peer && known.is_proven() <= link.is_proven());
        same.for_each(|known| known.supersede());
        if let Some(dialled) = link.dialled.filter(|dialled| *dialled != link.address) {
            self.aliases.insert(dialled, link.address);
        }
        self.links.entry(link.address).or_default().push(link);
        true
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(&mut self, link: &Arc<Link>) {
        if let Some(links) = self.links.get_mut(&link.address) {
            links.retain(|known| !Arc::ptr_eq(known, link));
            if links.is_empty() {
                self.links.remove(&link.address);
                self.aliases.retain(|_, address| *address != link.address);
            }
        }
    }

    /// The connection to use for the node at `to`.
    ///
    /// A peer whose address is verified is preferred to one that only claims it, and its latest incarnation to
    /// earlier ones.
    pub(crate) fn best(&self, us: &PeerId, to: SocketAddr) -> Option<Arc<Link>> {
        let links = self.links.get(self.aliases.get(&to).unwrap_or(&to))?;
        let there = links.iter().max_by_key(|link| (link.is_proven(), link.peer.incarnation))?;
        let same = links.iter().filter(|link| link.peer == there.peer);
        same.max_by_key(|link| rank(us, link)).cloned()
    }

    /// Connections that this node has dialled and that are not used, because the peer of `link` has a better one.
    pub(crate) fn losers(&self, us: &PeerId, link: &Link) -> Vec<Arc<Link>> {
        let same: Vec<_> =
            self.links.get(&link.address).into_iter().flatten().filter(|other| other.peer == link.peer).collect();
        let Some(winner) = same.iter().max_by_key(|link| rank(us, link)) else { return Vec::new() };
        same.iter()
            .filter(|other| other.dialled.is_some() && !Arc::ptr_eq(other, winner))
            .map(|loser| (*loser).clone())
            .collect()
    }

    pub(crate) fn is_connected(&self, peer: &PeerId) -> bool {
        self.all().any(|link| link.peer == *peer)
    }

    /// The peers from which frames have come since the last call, and how long ago the last one did.
    pub(crate) fn heard(&self) -> Vec<(PeerId, Duration)> {
        self.all().filter_map(|link| Some((link.peer.clone(), link.was_heard()?))).collect()
    }

    /// Number of connections.
    pub(crate) fn len(&self) -> usize {
        self.links.values().map(Vec::len).sum()
    }

    /// The queue to `to`. A new one comes with its receiving end, which must be served. `None` when there can be no
    /// queue.
    pub(crate) fn lane(
        &mut self,
        to: SocketAddr,
        depth: usize,
    ) -> Option<(&mpsc::Sender<Bytes>, Option<mpsc::Receiver<Bytes>>)> {
        if self.closed || self.selves.contains(&to) {
            return None;
        }
        let fresh = if self.lanes.contains_key(&to) {
            None
        } else if self.lanes.len() < MAX_LINKS {
            let (sender, receiver) = mpsc::channel(depth);
            self.lanes.insert(to, sender);
            Some(receiver)
        } else {
            return None;
        };
        self.lanes.get(&to).map(|lane| (lane, fresh))
    }

    /// Ends the queue to `to`, unless a frame was added meanwhile.
    pub(crate) fn retire(&mut self, to: SocketAddr, queue: &mpsc::Receiver<Bytes>) -> bool {
        let idle = queue.is_empty();
        if idle {
            self.lanes.remove(&to);
        }
        idle
    }

    /// Remembers that `address` is this node's own, so that it is not dialled again.
    pub(crate) fn is_self(&mut self, address: SocketAddr) {
        self.lanes.remove(&address);
        if self.selves.len() < MAX_SELVES {
            self.selves.insert(address);
        }
    }

    /// Remembers that a peer has announced that it leaves.
    pub(crate) fn has_said_goodbye(&mut self, peer: PeerId) {
        if self.left.len() == MAX_LEFT {
            self.left.pop_front();
        }
        self.left.push_back(peer);
    }

    pub(crate) fn has_left(&self, peer: &PeerId) -> bool {
        self.left.contains(peer)
    }

    /// Ends all queues, and takes no more connections.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.lanes.clear();
    }

    /// All connections.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.values().flatten()
    }
}

fn rank(us: &PeerId, link: &Link) -> (bool, bool) {
    (!link.is_superseded(), wins(us, link))
}

/// Whether the connection was dialled by the node with the lower name. Both nodes get the same answer.
fn wins(us: &PeerId, link: &Link) -> bool {
    link.dialled.is_some() == (*us < link.peer)
}
