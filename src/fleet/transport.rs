//! The transport that chitchat uses: its messages are sent as frames over a [`Carrier`].
//!
//! chitchat awaits `send` in its only loop, drops the future of `recv` at each tick, and ends for good when `recv`
//! fails. So `send` only puts a frame into a queue, `recv` keeps no state between its awaits, and neither ever fails.
//! Each message is validated before chitchat sees it.

use std::net::SocketAddr;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex as SyncMutex};

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc};

use super::frame::MAX_FRAME;
use super::message::Refusal;
use super::peer::{Carrier, Gossip};
use super::stats::Counters;
use super::validate::{Inspector, inspecting};

/// Gives chitchat its socket, and another one after a restart.
pub(crate) struct GossipTransport {
    carrier: Arc<dyn Carrier>,
    inbox: Arc<Mutex<mpsc::Receiver<Gossip>>>,
    inspector: Arc<SyncMutex<Inspector>>,
    hints: mpsc::Sender<SocketAddr>,
    counters: Arc<Counters>,
}

struct GossipSocket {
    carrier: Arc<dyn Carrier>,
    inbox: OwnedMutexGuard<mpsc::Receiver<Gossip>>,
    inspector: Arc<SyncMutex<Inspector>>,
    hints: mpsc::Sender<SocketAddr>,
    counters: Arc<Counters>,
}

impl GossipTransport {
    /// Sends over `carrier`; received messages come from `inbox` through `inspector`. Addresses to dial go into
    /// `hints`.
    pub(crate) fn new(
        carrier: Arc<dyn Carrier>,
        inbox: mpsc::Receiver<Gossip>,
        inspector: Arc<SyncMutex<Inspector>>,
        hints: mpsc::Sender<SocketAddr>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { carrier, inbox: Arc::new(Mutex::new(inbox)), inspector, hints, counters }
    }
}

#[async_trait]
impl Transport for GossipTransport {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        // An earlier socket has been dropped with its loop, or is about to be.
        let inbox = self.inbox.clone().lock_owned().await;
        let (carrier, inspector, hints) = (self.carrier.clone(), self.inspector.clone(), self.hints.clone());
        Ok(Box::new(GossipSocket { carrier, inbox, inspector, hints, counters: self.counters.clone() }))
    }
}

#[async_trait]
impl Socket for GossipSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        // A dropped message is counted by the carrier, and its content is sent again at the next tick.
        let mut bytes = message.serialize_to_vec();
        inspecting(&self.inspector).correct(&mut bytes);
        self.carrier.send(to, bytes.into());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some(gossip) = self.inbox.recv().await else {
                // The node is closing. An error would end chitchat, so it waits forever.
                std::future::pending::<()>().await;
                continue;
            };
            match self.read(&gossip) {
                Ok(message) => return Ok((gossip.reply_to, message)),
                // Messages of an ended incarnation may arrive after the first one of the next.
                Err(Refusal::NoPlace) => {
                    tracing::debug!(peer = %gossip.from, "there is no place for a peer");
                }
                Err(why) => {
                    self.counters.malformed.add(1);
                    tracing::warn!(peer = %gossip.from, ?why, "a gossip message was not taken");
                }
            }
        }
    }
}

impl GossipSocket {
    fn read(&self, gossip: &Gossip) -> Result<ChitchatMessage, Refusal> {
        if gossip.frame.len() > MAX_FRAME {
            return Err(Refusal::TooMuch);
        }
        let inspected = inspecting(&self.inspector).inspect(gossip)?;
        for address in inspected.hints {
            // A hint for which there is no room is repeated in another round.
            let _ = self.hints.try_send(address);
        }
        // The decoder is chitchat's. If it panics, only this message is lost, and the gossip goes on.
        let decoded = catch_unwind(|| ChitchatMessage::deserialize(&mut &inspected.message[..]));
        decoded.ok().and_then(Result::ok).ok_or(Refusal::Malformed)
    }
}
