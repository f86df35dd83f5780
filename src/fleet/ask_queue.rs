//! The queue of asks to each peer: asking never waits, and a slow peer delays no other.
//!
//! An ask is dropped when the queue is full, or when its `until` has passed before it is sent. Called by the fleet's
//! handle.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::ask_stream::{Waiting, ask};
use super::connection_pool::ConnectionPool;
use super::peer::PeerId;
use crate::core::time::Micros;

/// Most asks that wait for one peer.
const DEPTH: usize = 256;
/// Most peers that have a queue at a time.
const MOST_PEERS: usize = 256;
/// A queue that is not used for this long ends.
const IDLE: Duration = Duration::from_secs(60);
/// Time between two tries to reach a peer.
const PAUSE: Duration = Duration::from_millis(100);

/// The queues to all peers that are asked.
#[derive(Debug, Default)]
pub(crate) struct AskQueues(Mutex<BTreeMap<PeerId, mpsc::Sender<Waiting>>>);

impl AskQueues {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<PeerId, mpsc::Sender<Waiting>>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Queues an ask for the peer at `address`, whose answer is awaited for so long; false when it was dropped.
    pub(crate) fn ask(
        self: &Arc<Self>,
        links: &Arc<ConnectionPool>,
        (to, address): (&PeerId, SocketAddr),
        frame: Bytes,
        patience: Micros,
    ) -> bool {
        let waiting = Waiting { frame, until: links.clock.now() + patience };
        let is_queued = self.with(|queues| {
            if let Some(queue) = queues.get(to) {
                return queue.try_send(waiting).is_ok();
            }
            if queues.len() >= MOST_PEERS {
                return false;
            }
            let (send, queue) = mpsc::channel(DEPTH);
            let is_queued = send.try_send(waiting).is_ok();
            queues.insert(to.clone(), send);
            links.runtime.spawn(run(self.clone(), links.clone(), to.clone(), address, queue));
            is_queued
        });
        links.counters.dropped_out.add(usize::from(!is_queued));
        is_queued
    }

    /// Ends a queue, unless an ask has come meanwhile.
    fn retire(&self, to: &PeerId, queue: &mpsc::Receiver<Waiting>) -> bool {
        self.with(|queues| queue.is_empty() && queues.remove(to).is_some())
    }
}

/// Sends the asks queued for one peer, until none has come for [`IDLE`].
async fn run(
    queues: Arc<AskQueues>,
    links: Arc<ConnectionPool>,
    to: PeerId,
    address: SocketAddr,
    mut queue: mpsc::Receiver<Waiting>,
) {
    loop {
        let first = match timeout(IDLE, queue.recv()).await {
            Ok(Some(first)) => first,
            Ok(None) => return,
            Err(_) if queues.retire(&to, &queue) => return,
            Err(_) => continue,
        };
        if let Some(link) = links.reach(&to, address).await {
            ask(&link, &links.ask_taker, &links.counters, links.clock, first, &mut queue).await;
        }
        // Asks that come before the pause is over are dropped: most checks do not wait for so long.
        sleep(PAUSE).await;
        while queue.try_recv().is_ok() {
            links.counters.dropped_out.add(1);
        }
    }
}
