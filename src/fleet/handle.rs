//! A running fleet, as the daemon uses it: its members, frames to and from them, and counts.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quinn::AsyncUdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, spawn_blocking};
use tokio::time::{interval, timeout};

use super::ask_queue::AskQueues;
use super::ask_stream::AskTaker;
use super::connection_pool::{ConnectionPool, Inboxes, Incoming};
use super::error::FleetError;
use super::frame::{Channel, Hello};
use super::identity::{Contents, Identity, IdentityFiles};
use super::look::{self, LookTaker, Unseen};
use super::members::{Members, Owning};
use super::membership::{Membership, MembershipOptions};
use super::names::is_label;
use super::peer::{Carrier, PeerId};
use super::quic::{bind, client_config, endpoint, reachable, server_config};
use super::stats::{Counters, FleetStats};
use super::tls::{Credentials, Judge};
use crate::clock;
use crate::core::time::Micros;

/// Time between two checks of the certificate files.
const LOOK: Duration = Duration::from_secs(5);
/// Checks between two log lines about an expired certificate: an hour.
const LOOKS_PER_WORD: u64 = 720;
/// Received frames that may wait: gossip, and usage.
const WAITING: (usize, usize) = (256, 1_024);
/// Longest wait until peers have noticed that this node has closed.
const CLOSING: Duration = Duration::from_millis(300);

/// The options of a fleet.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// Its name, a DNS label: fleets with different names never mix.
    pub fleet: String,
    /// This node's name, which its certificate must carry.
    pub node: Arc<str>,
    /// When this node was started: Unix milliseconds.
    pub incarnation: u64,
    /// The UDP address to listen on; port 0 for any free one.
    pub listen: SocketAddr,
    /// The address at which peers reach this node. `None` for the one it listens on, or the address of the interface
    /// that leads to its seeds. Port 0 stands for the bound port.
    pub advertise: Option<SocketAddr>,
    /// Addresses of other nodes: `host:port`, resolved again and again.
    pub seeds: Vec<String>,
    /// Time between two rounds of gossip.
    pub tick: Duration,
    /// This node's certificates.
    pub identity: IdentityFiles,
    /// Whether it owns keys for others.
    pub owning: Owning,
}

/// This node's membership of a fleet. Cheap to clone; it ends when the last clone is dropped.
#[derive(Clone)]
pub struct Fleet(Arc<Joined>);

struct Joined {
    options: FleetOptions,
    own: PeerId,
    /// The address at which peers reach it.
    advertised: SocketAddr,
    /// The address it listens on.
    address: SocketAddr,
    endpoint: quinn::Endpoint,
    links: Arc<ConnectionPool>,
    asks: Arc<AskQueues>,
    membership: Membership,
    members: watch::Receiver<Arc<Members>>,
    certificates: Certificates,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Decides when to log that this node's certificate has expired: at once, and then hourly.
#[derive(Debug, Default)]
struct Reminder {
    /// Checks since it has expired.
    looks: u64,
}

impl Reminder {
    /// Whether to log after this check.
    fn is_due(&mut self, has_lapsed: bool) -> bool {
        let looks = std::mem::take(&mut self.looks);
        self.looks = if has_lapsed { looks + 1 } else { 0 };
        has_lapsed && looks.is_multiple_of(LOOKS_PER_WORD)
    }
}

/// The certificates in use.
struct Certificates {
    contents: Mutex<Contents>,
    judge: Mutex<Judge>,
    not_after: AtomicI64,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("own", &self.0.own).field("address", &self.0.advertised).finish_non_exhaustive()
    }
}

impl Fleet {
    /// Binds the port, and begins to look for other nodes. Returns at once, without waiting for any; those that are
    /// found appear in [`Self::members`]. Frames of peers come from the receiver, in no particular order.
    ///
    /// # Errors
    /// The certificates are not this node's or do not fit each other, the port cannot be bound, or the address for
    /// peers is unknown.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(options: FleetOptions) -> Result<(Self, mpsc::Receiver<Incoming>), FleetError> {
        let listen = options.listen;
        Self::open(options, || bind(listen))
    }

    /// The same over an existing socket, such as one of a network in memory.
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_over(
        options: FleetOptions,
        socket: Arc<dyn AsyncUdpSocket>,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), FleetError> {
        Self::open(options, || Ok(socket))
    }

    fn open(
        options: FleetOptions,
        bind: impl FnOnce() -> io::Result<Arc<dyn AsyncUdpSocket>>,
    ) -> Result<(Self, mpsc::Receiver<Incoming>), FleetError> {
        if !is_label(&options.fleet) {
            return Err(FleetError::Name { fleet: options.fleet });
        }
        let contents = Contents::read(&options.identity)?;
        let (identity, credentials) = load(&options, &contents)?;
        let fleet_files = options.identity.clone();
        let listen = |source| FleetError::Listen { address: options.listen, source };
        let socket = bind().map_err(listen)?;
        let bound = socket.local_addr().map_err(listen)?;
        let towards: Vec<_> = options.seeds.iter().filter_map(|seed| seed.parse().ok()).collect();
        let address = reachable(bound, options.advertise, &towards).ok_or(FleetError::NoAddress { listen: bound })?;
        let endpoint = endpoint(socket, identity.endpoint_keys(&address.to_string())).map_err(listen)?;
        endpoint.set_server_config(Some(server_config(&credentials, options.owning)));

        let own = PeerId { name: options.node.clone(), incarnation: options.incarnation };
        let (gossip, gossip_inbox) = mpsc::channel(WAITING.0);
        let (usage, incoming) = mpsc::channel(WAITING.1);
        let counters = Arc::new(Counters::default());
        let links = ConnectionPool::new(
            endpoint.clone(),
            (&options.fleet, Hello { id: own.clone(), address, shows: true }, options.owning),
            client_config(&credentials, options.owning),
            Inboxes { gossip, usage },
            counters.clone(),
        );
        let accepting = tokio::spawn(links.clone().accept()).abort_handle();
        let membership = MembershipOptions {
            fleet: options.fleet.clone(),
            own: own.clone(),
            address,
            seeds: options.seeds.clone(),
            tick: options.tick,
            owning: options.owning,
        };
        let membership = Membership::counting(membership, Arc::new(links.clone()), gossip_inbox, counters);
        let members = membership.members();
        let certificates = Certificates {
            contents: Mutex::new(contents),
            judge: Mutex::new(credentials.judge),
            not_after: AtomicI64::new(credentials.not_after),
        };
        if identity.is_any {
            tracing::warn!(
                cert = %fleet_files.cert.display(),
                "the certificate serves under every name of the fleet: who takes it can be as many members as it \
                 likes; `rationd cert node --name` makes one for this node alone"
            );
        }
        let fleet = Self(Arc::new(Joined {
            options,
            own,
            advertised: address,
            address: bound,
            endpoint,
            links,
            asks: Arc::default(),
            membership,
            members,
            certificates,
            tasks: Mutex::new(vec![accepting]),
        }));
        fleet.look_after_certificates();
        tracing::info!(node = %fleet.0.own, %address, %bound, fleet = fleet.0.options.fleet, "listening for peers");
        Ok((fleet, incoming))
    }

    /// The bound address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// The address at which its peers reach it.
    #[must_use]
    pub fn advertised(&self) -> SocketAddr {
        self.0.advertised
    }

    /// This node's identity among its peers.
    #[must_use]
    pub fn own(&self) -> &PeerId {
        &self.0.own
    }

    /// The runtime of the fleet's connections and tasks: that in which it was started.
    #[must_use]
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.0.links.runtime
    }

    /// Whether this node owns keys for others, and asks them.
    #[must_use]
    pub fn owning(&self) -> Owning {
        self.0.options.owning
    }

    /// The live nodes, including this one, now and after each change.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.0.members.clone()
    }

    /// Queues a frame of up to [`super::MAX_FRAME`] bytes for a member, without waiting. False when it was dropped,
    /// because `to` is no member, its queue is full, or the frame is too large. A queued frame may be lost with its
    /// connection.
    pub fn send(&self, to: &PeerId, frame: Bytes) -> bool {
        let address = self.0.members.borrow().get(to).map(|member| member.address);
        match (address, self.frame(&frame)) {
            (Some(address), Some(frame)) if *to != self.0.own => self.0.links.queue(address, frame),
            _ => false,
        }
    }

    /// Queues a frame for every other member, and returns how many those were.
    pub fn broadcast(&self, frame: Bytes) -> usize {
        let Some(frame) = self.frame(&frame) else { return 0 };
        // Membership is woken first, so that what it has to send leaves in the same packets.
        self.0.membership.beat();
        let members = self.0.members.borrow().clone();
        let others = members.iter().filter(|member| member.id != self.0.own);
        others.filter(|member| self.0.links.queue(member.address, frame.clone())).count()
    }

    /// Hands what peers ask, and what they answer, to `taker` from now on; before that, and once `taker` is gone, asks are
    /// not answered. Only the first call has an effect.
    pub fn hand_asks_to(&self, taker: &Arc<dyn AskTaker>) {
        self.0.links.ask_taker.begin(taker);
    }

    /// Asks a member, without waiting: its answer, if one comes, goes to the taker of [`Self::hand_asks_to`]. False when the ask
    /// was dropped, because `to` is no member, or its queue is full. One that is not sent within `patience` is dropped, and
    /// none is sent twice.
    pub fn ask(&self, to: &PeerId, frame: Bytes, patience: Micros) -> bool {
        let address = self.0.members.borrow().get(to).map(|member| member.address);
        let Some(address) = address.filter(|_| *to != self.0.own) else { return false };
        self.0.asks.ask(&self.0.links, (to, address), frame, patience)
    }

    /// Hands the looks of peers to `taker` from now on; before that, and once `taker` is gone, they are not answered. Only the
    /// first call has an effect.
    pub fn show(&self, taker: &Arc<dyn LookTaker>) {
        self.0.links.looks.begin(taker);
    }

    /// Looks at a member, and waits for its answer for at most `patience`.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn look(&self, to: &PeerId, question: &[u8], patience: Duration) -> Result<Bytes, Unseen> {
        let address = self.0.members.borrow().get(to).map(|member| member.address);
        let address = address.filter(|_| *to != self.0.own).ok_or(Unseen::Gone)?;
        let looking = async {
            let link = self.0.links.reach(to, address).await.ok_or(Unseen::Silent)?;
            look::look(&link, &self.0.links.counters, question).await
        };
        timeout(patience, looking).await.unwrap_or(Err(Unseen::Silent))
    }

    fn frame(&self, payload: &[u8]) -> Option<Bytes> {
        let frame = Channel::Usage.frame(payload);
        self.0.links.counters.oversized.add(usize::from(frame.is_none()));
        frame
    }

    /// Whether a node that is no longer live had announced that it leaves.
    #[must_use]
    pub fn has_left(&self, peer: &PeerId) -> bool {
        self.0.links.has_left(peer)
    }

    /// The counts.
    #[must_use]
    pub fn stats(&self) -> FleetStats {
        let left = self.0.seconds_left();
        FleetStats {
            connections: self.0.links.count() as u64,
            certificate_days_left: left.div_euclid(24 * 60 * 60),
            ..self.0.links.counters.snapshot()
        }
    }

    /// Reads the certificate files again. True when they have changed; new connections use them from now on.
    /// Connections to peers whose certificates are no longer valid are closed: they have expired, or the CA was
    /// replaced or has revoked them. The fleet does this by itself every five seconds.
    ///
    /// # Errors
    /// The files have changed and are not valid; the old certificates stay in use.
    pub fn reload_identity(&self) -> Result<bool, FleetError> {
        self.0.look()
    }

    /// Announces that this node leaves, gives the fleet two ticks (at most a second) to hear it and to take frames
    /// that were sent before, and closes. Frames that are sent after this are dropped.
    pub async fn leave(&self) {
        self.0.membership.leave().await;
        self.0.links.close();
        let _ = timeout(CLOSING, self.0.endpoint.wait_idle()).await;
    }

    fn look_after_certificates(&self) {
        let joined = Arc::downgrade(&self.0);
        let looking = tokio::spawn(async move {
            let mut looks = interval(LOOK);
            let mut reminder = Reminder::default();
            loop {
                looks.tick().await;
                let Some(joined) = joined.upgrade() else { return };
                if reminder.is_due(joined.seconds_left() <= 0) {
                    tracing::error!(
                        "this node's certificate has lapsed: no peer lets it in; make one with `rationd cert node`"
                    );
                }
                match spawn_blocking(move || joined.look()).await {
                    Ok(Ok(true)) => tracing::info!("new certificates are in use"),
                    Ok(Ok(false)) => {}
                    Err(_) => return,
                    Ok(Err(error)) => {
                        tracing::warn!(%error, "the certificates have changed and are not right: the old ones stay")
                    }
                }
            }
        });
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(looking.abort_handle());
    }
}

impl Joined {
    /// Reads the files again, and judges all peers by the credentials that are then in use.
    fn look(&self) -> Result<bool, FleetError> {
        let changed = self.reload();
        let judge = self.certificates.judge.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let now = Duration::from_micros(clock::wall().0);
        self.links.judge(|chain| judge.is_right(chain, now));
        changed
    }

    /// Seconds until the certificate expires; negative after it has expired.
    fn seconds_left(&self) -> i64 {
        let now = i64::try_from(clock::wall().0 / 1_000_000).unwrap_or(i64::MAX);
        self.certificates.not_after.load(Ordering::Relaxed).saturating_sub(now)
    }

    fn reload(&self) -> Result<bool, FleetError> {
        let contents = Contents::read(&self.options.identity)?;
        let mut known = self.certificates.contents.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == contents {
            return Ok(false);
        }
        let (_, credentials) = load(&self.options, &contents)?;
        self.endpoint.set_server_config(Some(server_config(&credentials, self.options.owning)));
        self.links.dial_with(client_config(&credentials, self.options.owning));
        self.certificates.not_after.store(credentials.not_after, Ordering::Relaxed);
        *self.certificates.judge.lock().unwrap_or_else(PoisonError::into_inner) = credentials.judge;
        *known = contents;
        Ok(true)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            task.abort();
        }
        self.links.close();
    }
}

fn load(options: &FleetOptions, contents: &Contents) -> Result<(Identity, Credentials), FleetError> {
    let identity = Identity::parse(&options.identity, contents, &options.fleet, &options.node)?;
    let credentials = Credentials::new(&identity, &options.fleet).map_err(|error| {
        let problem = format!("it does not go with {}: {error}", options.identity.cert.display());
        FleetError::Identity { path: options.identity.key.clone(), problem }
    })?;
    Ok((identity, credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_has_lapsed_is_told_of_at_once_and_then_hourly() {
        let mut reminder = Reminder::default();
        let mut due = |looks: u64, has_lapsed| (0..looks).filter(|_| reminder.is_due(has_lapsed)).count();
        assert_eq!(due(LOOKS_PER_WORD, false), 0);
        assert_eq!(due(1, true), 1);
        assert_eq!(due(LOOKS_PER_WORD - 1, true), 0);
        assert_eq!(due(2 * LOOKS_PER_WORD, true), 2);
        assert_eq!(due(1, false), 0, "there is another one");
        assert_eq!(due(1, true), 1);
    }
}
