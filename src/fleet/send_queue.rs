//! The queue of frames to each address: sending never waits, and a slow peer delays no other.
//!
//! Frames that do not fit into a queue are dropped. Called by the fleet's handle for usage, and through [`Carrier`]
//! for gossip.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::connection_pool::ConnectionPool;
use super::frame::Channel;
use super::link::Link;
use super::peer::{Carrier, PeerId};
use crate::clock;

/// Frames that wait for one peer.
const DEPTH: usize = 16;

/// A queue that is not used for this long ends.
const IDLE: Duration = Duration::from_secs(60);
/// Longest wait before a peer is dialled again.
const MAX_WAIT_MS: u64 = 2_000;
/// Longest wait after the first failure.
const MIN_WAIT_MS: u64 = 100;

impl ConnectionPool {
    /// Queues a whole frame for the node at `to`; false when it was dropped.
    pub(crate) fn queue(self: &Arc<Self>, to: SocketAddr, frame: Bytes) -> bool {
        let mut table = self.table();
        let queued = match table.lane(to, DEPTH) {
            None => false,
            Some((lane, fresh)) => {
                let queued = lane.try_send(frame);
                if let Some(queue) = fresh {
                    self.runtime.spawn(run(self.clone(), to, queue));
                }
                !matches!(queued, Err(TrySendError::Full(_) | TrySendError::Closed(_)))
            }
        };
        self.counters.dropped_out.add(usize::from(!queued));
        queued
    }
}

impl Carrier for Arc<ConnectionPool> {
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool {
        match Channel::Gossip.frame(&frame) {
            Some(frame) => self.queue(to, frame),
            None => {
                self.counters.oversized.add(1);
                false
            }
        }
    }

    fn is_connected(&self, peer: &PeerId) -> bool {
        self.table().is_connected(peer)
    }

    fn has_left(&self, peer: &PeerId) -> bool {
        self.table().has_left(peer)
    }

    fn heard(&self) -> Vec<(PeerId, Duration)> {
        self.table().heard()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        ConnectionPool::changes(self)
    }
}

/// Sends the frames queued for `to`, and dials when there is no connection, until the queue is idle or closed.
async fn run(links: Arc<ConnectionPool>, to: SocketAddr, mut queue: mpsc::Receiver<Bytes>) {
    if links.is_own(to) {
        return;
    }
    let mut wait = MIN_WAIT_MS;
    loop {
        let frame = match timeout(IDLE, queue.recv()).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
            Err(_) if links.table().retire(to, &queue) => return,
            Err(_) => continue,
        };
        match reach(&links, to).await {
            Some(link) => {
                wait = MIN_WAIT_MS;
                send(&links, &link, &frame).await;
            }
            None => {
                links.counters.dropped_out.add(1);
                pause(&links, to, &mut queue, wait).await;
                wait = (wait * 2).min(MAX_WAIT_MS);
            }
        }
    }
}

/// The connection to `to`: an existing one, one that is dialled, or one that the peer dials meanwhile.
async fn reach(links: &Arc<ConnectionPool>, to: SocketAddr) -> Option<Arc<Link>> {
    if let Some(link) = links.best(to) {
        return Some(link);
    }
    // Runs in a task of its own: if both nodes dial at once, neither must give its dial up because of the other's.
    let mut dial = tokio::spawn(links.clone().dial(to));
    tokio::select! {
        link = links.connected(to) => Some(link),
        _ = &mut dial => links.best(to),
    }
}

async fn send(links: &ConnectionPool, link: &Link, frame: &Bytes) {
    match link.send(frame).await {
        Ok(()) => {
            links.counters.frames_out.add(1);
            links.counters.bytes_out.add(frame.len());
        }
        Err(why) => {
            links.counters.dropped_out.add(1);
            tracing::debug!(peer = %link.peer, why, "a frame was not sent");
        }
    }
}

/// Waits before the next dial, unless the peer connects. Frames that were queued meanwhile are stale and dropped;
/// gossip and usage are repeated at the next tick.
async fn pause(links: &ConnectionPool, to: SocketAddr, queue: &mut mpsc::Receiver<Bytes>, wait: u64) {
    let jittered = Duration::from_millis(wait / 2 + clock::random() % (wait / 2 + 1));
    tokio::select! {
        _ = links.connected(to) => {}
        () = sleep(jittered) => {
            while queue.try_recv().is_ok() {
                links.counters.dropped_out.add(1);
            }
        }
    }
}
