//! All connections of a node: dialled when there is something to send, accepted, watched, and closed.
//!
//! Received frames are delivered by channels; those that are not taken in time are dropped and counted. Frames to
//! send are not known here: `send_queue` has them, and asks for connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, Incoming as Arriving};
use rustls::pki_types::CertificateDer;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{sleep, timeout};

use super::ask_stream::AskTakerCell;
use super::frame::{Channel, Hello};
use super::handshakes::Handshakes;
use super::link::{Closing, Link};
use super::look::Looks;
use super::members::Owning;
use super::names::fleet_name;
use super::peer::{GossipMessage, PeerId};
use super::quic::is_own;
use super::stats::Counters;
use super::streams::{Answerers, answer};
use super::table::Table;
use crate::clock::Clock;

/// Longest handshake. An unreachable peer sends nothing back, so only this ends the attempt.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long a connection that is no longer used stays open for frames in flight.
const FAREWELL: Duration = Duration::from_secs(1);

/// A frame of the usage channel, which was received from a peer.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The sender; the name is that of its certificate.
    pub from: PeerId,
    /// The payload.
    pub frame: Bytes,
    /// Limits how many frames of one peer may wait; it is returned when the frame was processed.
    _slot: Arc<OwnedSemaphorePermit>,
}

/// The channels for received frames.
#[derive(Debug)]
pub(crate) struct Inboxes {
    pub(crate) gossip: mpsc::Sender<GossipMessage>,
    pub(crate) usage: mpsc::Sender<Incoming>,
}

/// The connections of one node.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    endpoint: Endpoint,
    fleet: String,
    us: Hello,
    dialling: Mutex<ClientConfig>,
    table: Mutex<Table>,
    changed: watch::Sender<u64>,
    inboxes: Inboxes,
    pub(crate) counters: Arc<Counters>,
    /// Whether peers ask this node.
    owning: Owning,
    /// Takes the asks of peers, and their answers to asks of this node.
    pub(crate) ask_taker: Arc<AskTakerCell>,
    /// Answers the looks of peers.
    pub(crate) looks: Arc<Looks>,
    pub(super) clock: Clock,
    pub(super) runtime: Handle,
}

impl ConnectionPool {
    /// Connections over `endpoint`, which must be able to accept. [`Self::accept`] does so.
    pub(crate) fn new(
        endpoint: Endpoint,
        (fleet, us, owning): (&str, Hello, Owning),
        dialling: ClientConfig,
        inboxes: Inboxes,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            fleet: fleet.to_owned(),
            us,
            dialling: Mutex::new(dialling),
            table: Mutex::default(),
            changed: watch::channel(0).0,
            inboxes,
            counters,
            owning,
            ask_taker: Arc::default(),
            looks: Arc::default(),
            clock: Clock::start(),
            runtime: Handle::current(),
        })
    }

    /// Accepts connections until the endpoint is closed.
    pub(crate) async fn accept(self: Arc<Self>) {
        let handshakes = Arc::<Handshakes>::default();
        while let Some(arriving) = self.endpoint.accept().await {
            // Validates the address first: a client that cannot receive at the address it sends from causes nothing
            // but this answer.
            if !arriving.remote_address_validated() && arriving.may_retry() {
                let _ = arriving.retry();
                continue;
            }
            let Some(place) = handshakes.enter(arriving.remote_address().ip()) else {
                self.counters.refused.add(1);
                arriving.refuse();
                continue;
            };
            let links = self.clone();
            self.runtime.spawn(async move {
                links.welcome(arriving).await;
                drop(place);
            });
        }
    }

    async fn welcome(self: &Arc<Self>, arriving: Arriving) {
        let remote = arriving.remote_address();
        let greeted = match shake(arriving.accept()).await {
            Ok(connection) => self.greet(connection, None).await,
            Err(why) => Err(why),
        };
        if let Err(why) = greeted {
            self.counters.refused.add(1);
            tracing::warn!(%remote, why, "a connection from another node was refused");
        }
    }

    /// Dials `to`; false when that failed.
    pub(crate) async fn dial(self: Arc<Self>, to: SocketAddr) -> bool {
        self.counters.dials.add(1);
        let config = self.dialling.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let greeted = match self.endpoint.connect_with(config, to, &fleet_name(&self.fleet)) {
            Ok(connecting) => match shake(Ok(connecting)).await {
                Ok(connection) => self.greet(connection, Some(to)).await,
                Err(why) => Err(why),
            },
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = &greeted {
            self.counters.dial_failures.add(1);
            tracing::debug!(%to, why, "a peer could not be reached");
        }
        greeted.is_ok()
    }

    async fn greet(self: &Arc<Self>, connection: Connection, dialled: Option<SocketAddr>) -> Result<(), String> {
        let link = match Link::greet(connection, dialled, &self.fleet, &self.us).await {
            Ok(link) => Arc::new(link),
            Err(error) => return Err(error.to_string()),
        };
        if link.peer == self.us.id {
            if let Some(own) = dialled {
                self.table().is_self(own);
            }
            link.connection.close(Closing::Itself.code(), b"this is the same node");
            return Ok(());
        }
        if !self.table().add(link.clone()) {
            link.connection.close(Closing::Crowded.code(), b"too many connections");
            return Err("there are too many connections".into());
        }
        self.changed.send_modify(|version| *version += 1);
        tracing::debug!(peer = %link.peer, address = %link.address, dialled = dialled.is_some(), "connected");
        for loser in self.table().losers(&self.us.id, &link) {
            self.runtime.spawn(async move {
                sleep(FAREWELL).await;
                loser.connection.close(Closing::Duplicate.code(), b"there is another connection");
            });
        }
        self.runtime.spawn(link.clone().outlast_dials());
        let asks = (self.owning != Owning::Never).then(|| self.ask_taker.clone());
        let answerers = Answerers { asks, looks: self.looks.clone() };
        self.runtime.spawn(answer(link.clone(), answerers, self.counters.clone()));
        self.runtime.spawn(self.clone().serve(link));
        Ok(())
    }

    async fn serve(self: Arc<Self>, link: Arc<Link>) {
        let links = self.clone();
        let from = link.clone();
        let why = link.receive(&self.counters, move |frame| links.hand_on(&from, &frame)).await;
        tracing::debug!(peer = %link.peer, %why, "disconnected");
        {
            let mut table = self.table();
            table.remove(&link);
            if matches!(&why, ConnectionError::ApplicationClosed(close) if close.error_code == Closing::Left.code()) {
                table.has_said_goodbye(link.peer.clone());
            }
        }
        self.changed.send_modify(|version| *version += 1);
    }

    fn hand_on(&self, from: &Link, frame: &Bytes) {
        from.has_spoken();
        let taken = match Channel::split(frame) {
            Some((Channel::Gossip, frame)) => {
                let gossip = GossipMessage::new(from.peer.clone(), from.address, frame);
                let slot = from.gossip_slots.clone().try_acquire_owned();
                slot.is_ok_and(|slot| self.inboxes.gossip.try_send(gossip.holding(slot)).is_ok())
            }
            Some((Channel::Usage, frame)) => {
                let slot = from.usage_slots.clone().try_acquire_owned();
                slot.is_ok_and(|slot| {
                    let incoming = Incoming { from: from.peer.clone(), frame, _slot: Arc::new(slot) };
                    self.inboxes.usage.try_send(incoming).is_ok()
                })
            }
            // A later version may send frames that this one does not know.
            Some((Channel::Hello | Channel::Ask | Channel::Look, _)) | None => {
                self.counters.malformed.add(1);
                true
            }
        };
        self.counters.dropped_in.add(usize::from(!taken));
    }

    /// The connection to use for the node at `to`, if there is one.
    pub(crate) fn best(&self, to: SocketAddr) -> Option<Arc<Link>> {
        self.table().best(&self.us.id, to)
    }

    /// A connection to this incarnation of a peer: an existing one, or one that is dialled now.
    pub(crate) async fn reach(self: &Arc<Self>, to: &PeerId, address: SocketAddr) -> Option<Arc<Link>> {
        let is_its = |link: &Arc<Link>| link.peer == *to;
        if let Some(link) = self.best(address).filter(is_its) {
            return Some(link);
        }
        // Runs in a task of its own: if both nodes dial at once, neither must give its dial up because its caller has
        // stopped waiting.
        let _ = self.runtime.spawn(self.clone().dial(address)).await;
        self.best(address).filter(is_its)
    }

    /// Waits for a connection to `to`.
    pub(crate) async fn connected(&self, to: SocketAddr) -> Arc<Link> {
        let mut changed = self.changes();
        loop {
            if let Some(link) = self.best(to) {
                return link;
            }
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Changes whenever a connection was made or has ended.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether `to` leads back to this node. If so, it is remembered and never dialled.
    pub(crate) fn is_own(&self, to: SocketAddr) -> bool {
        let own = self.endpoint.local_addr().is_ok_and(|bound| is_own(bound, to));
        if own {
            self.table().is_self(to);
        }
        own
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        self.table().len()
    }

    /// Uses other credentials for new connections. Existing ones stay.
    pub(crate) fn dial_with(&self, config: ClientConfig) {
        *self.dialling.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// Closes each connection whose peer would not be accepted now.
    pub(crate) fn judge(&self, is_right: impl Fn(&[CertificateDer<'static>]) -> bool) {
        let links: Vec<_> = self.table().all().cloned().collect();
        for link in links.iter().filter(|link| !link.chain().is_some_and(|chain| is_right(&chain))) {
            tracing::warn!(peer = %link.peer, "its certificate is not right any more: the connection ends");
            self.counters.refused.add(1);
            link.connection.close(Closing::Refused.code(), b"the certificate is not right any more");
        }
    }

    /// Announces to all peers that this node leaves, and takes no more connections.
    pub(crate) fn close(&self) {
        self.table().close();
        self.endpoint.close(Closing::Left.code(), b"leaving");
    }

    /// Locks the table. No code panics while it changes what the lock protects.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Completes a handshake within the time limit.
async fn shake(connecting: Result<quinn::Connecting, ConnectionError>) -> Result<Connection, String> {
    let connecting = connecting.map_err(|error| error.to_string())?;
    match timeout(HANDSHAKE, connecting).await {
        Ok(connected) => connected.map_err(|error| error.to_string()),
        Err(_) => Err("the handshake took too long".into()),
    }
}
