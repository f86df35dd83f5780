//! chitchat's way to its peers: its messages as frames over a [`Carrier`].
//!
//! chitchat awaits `send` in its only loop, drops `recv` at each tick, and ends for good when `recv` fails.
//! So `send` only puts a frame into a queue, `recv` keeps nothing between its awaits, and neither ever fails.
//! Messages are looked at before they are unpacked, and unpacked one at a time.

use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};

use super::frame::MAX_FRAME;
use super::inspect::inspect;
use super::peer::{Carrier, Gossip};
use super::stats::Counters;

/// Gives chitchat its socket, again after a restart.
pub(crate) struct GossipTransport {
    carrier: Arc<dyn Carrier>,
    inbox: Arc<Mutex<mpsc::Receiver<Gossip>>>,
    counters: Arc<Counters>,
}

struct GossipSocket {
    carrier: Arc<dyn Carrier>,
    inbox: OwnedMutexGuard<mpsc::Receiver<Gossip>>,
    counters: Arc<Counters>,
}

impl GossipTransport {
    /// Sends over `carrier`, and takes what comes from `inbox`.
    pub(crate) fn new(carrier: Arc<dyn Carrier>, inbox: mpsc::Receiver<Gossip>, counters: Arc<Counters>) -> Self {
        Self { carrier, inbox: Arc::new(Mutex::new(inbox)), counters }
    }
}

#[async_trait]
impl Transport for GossipTransport {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        // An earlier socket is gone with its loop, or about to be.
        let inbox = self.inbox.clone().lock_owned().await;
        Ok(Box::new(GossipSocket { carrier: self.carrier.clone(), inbox, counters: self.counters.clone() }))
    }
}

#[async_trait]
impl Socket for GossipSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        // What is dropped is counted there, and said again at the next tick.
        self.carrier.send(to, message.serialize_to_vec().into());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some(gossip) = self.inbox.recv().await else {
                // The node is closing: silence is what chitchat survives.
                std::future::pending::<()>().await;
                continue;
            };
            match decode(&gossip) {
                Ok(message) => return Ok((gossip.reply_to, message)),
                Err(why) => {
                    self.counters.malformed.add(1);
                    tracing::warn!(peer = %gossip.from, why, "a gossip message was not taken");
                }
            }
        }
    }
}

fn decode(gossip: &Gossip) -> Result<ChitchatMessage, String> {
    if gossip.frame.len() > MAX_FRAME {
        return Err(format!("{} bytes: at most {MAX_FRAME} were wanted", gossip.frame.len()));
    }
    inspect(&gossip.frame, &gossip.from).map_err(|refusal| format!("{refusal:?}"))?;
    // The decoder is not ours: should it panic, that is this message's fault and not the gossip's end.
    let decoded = catch_unwind(AssertUnwindSafe(|| ChitchatMessage::deserialize(&mut &gossip.frame[..])));
    match decoded {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its decoder panicked".into()),
    }
}
