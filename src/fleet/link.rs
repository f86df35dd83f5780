//! One connection to one peer: the two hellos that open it, and frames in both directions.
//!
//! A peer is known after its hello, not after the handshake, because the dialling side's handshake ends before the
//! other side has judged its certificate. Does not know which other connections there are.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadToEndError, RecvStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use super::frame::{Hello, MAX_FRAME, MAX_HELLO};
use super::identity::holds_name;
use super::names::node_name;
use super::peer::PeerId;
use super::stats::Counters;
use crate::clock;

/// Longest wait for a hello.
const GREETING: Duration = Duration::from_secs(2);
/// Longest time that one frame may take, in either direction.
const FRAME: Duration = Duration::from_secs(2);
/// Two dials that began at the same moment have both ended after this long: a handshake (2 s) and two hellos
/// (2 s) for each.
const CROSSING: Duration = Duration::from_secs(5);
/// Received frames of one connection that may wait, of gossip and of usage. A member that floods fills no queue but
/// its own.
const SLOTS: (usize, usize) = (16, 64);

/// Why a node closes a connection, as a code for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Closing {
    /// The node leaves the fleet.
    Left = 1,
    /// The peer has not stated its identity, or its certificate does not have that name.
    Refused = 2,
    /// There is a better connection between the two nodes.
    Duplicate = 3,
    /// The node has dialled itself.
    Itself = 4,
    /// The node has too many connections.
    Crowded = 5,
}

impl Closing {
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }
}

/// A connection to a peer whose identity is known.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) peer: PeerId,
    /// The address that the peer reports for itself.
    pub(crate) address: SocketAddr,
    /// The address that this node has dialled; `None` when the peer has dialled.
    pub(crate) dialled: Option<SocketAddr>,
    /// Permits for received gossip of this peer that was not processed yet.
    pub(crate) gossip_slots: Arc<Semaphore>,
    /// Permits for received usage of this peer that was not processed yet.
    pub(crate) usage_slots: Arc<Semaphore>,
    /// The peer answers looks.
    pub(crate) shows: bool,
    /// Held while a look of this peer is answered, so that they are answered one at a time.
    pub(crate) look_turn: Arc<Semaphore>,
    /// A dial that crossed this connection has ended by now. If the peer connects again from here on, it has lost
    /// this connection.
    uncrossed: AtomicBool,
    /// The same two nodes have connected again since.
    superseded: AtomicBool,
    /// When this connection began, and the milliseconds from then to the last frame that came since the last call of
    /// [`Self::was_heard`]; [`u64::MAX`] for none.
    began: Instant,
    spoken: AtomicU64,
}

/// Why two nodes have not said hello to each other.
#[derive(Debug)]
pub(crate) enum HelloError {
    /// The connection ended, or no hello came in time.
    Silent(String),
    /// The first frame was no hello.
    Malformed,
    /// The peer's certificate does not have the name in its hello.
    FalseName(Arc<str>),
}

impl fmt::Display for HelloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(why) => write!(f, "no hello: {why}"),
            Self::Malformed => write!(f, "its hello makes no sense"),
            Self::FalseName(name) => {
                write!(f, "it calls itself {name:?}, which its certificate does not name: see `rationd cert node`")
            }
        }
    }
}

impl Link {
    /// Sends a hello on a new connection, and waits for the peer's.
    ///
    /// # Errors
    /// The peer does not state its identity, or its certificate does not have that name. The connection is closed.
    pub(crate) async fn greet(
        connection: Connection,
        dialled: Option<SocketAddr>,
        fleet: &str,
        us: &Hello,
    ) -> Result<Self, HelloError> {
        let heard = match timeout(GREETING, say_hello(&connection, us)).await {
            Ok(heard) => heard,
            Err(_) => Err(HelloError::Silent("it took too long".into())),
        };
        let heard = heard.and_then(|hello| match chain(&connection).and_then(|chain| chain.into_iter().next()) {
            Some(own) if holds_name(&own, &node_name(fleet, &hello.id.name)) => Ok(hello),
            _ => Err(HelloError::FalseName(hello.id.name)),
        });
        match heard {
            Ok(Hello { id, address, shows }) => {
                let [gossip_slots, usage_slots] = [SLOTS.0, SLOTS.1].map(|slots| Arc::new(Semaphore::new(slots)));
                let [uncrossed, superseded] = [false; 2].map(AtomicBool::new);
                let (began, spoken) = (clock::timers(), AtomicU64::new(u64::MAX));
                Ok(Self {
                    connection,
                    peer: id,
                    address,
                    dialled,
                    gossip_slots,
                    usage_slots,
                    shows,
                    look_turn: Arc::new(Semaphore::new(1)),
                    uncrossed,
                    superseded,
                    began,
                    spoken,
                })
            }
            Err(error) => {
                connection.close(Closing::Refused.code(), b"refused");
                Err(error)
            }
        }
    }

    /// The peer's certificates, which it has proved to own.
    pub(crate) fn chain(&self) -> Option<Vec<CertificateDer<'static>>> {
        chain(&self.connection)
    }

    /// Whether the peer's address is verified: its packets come from the address that it reports.
    pub(crate) fn is_proven(&self) -> bool {
        let seen = self.connection.remote_address();
        (seen.ip().to_canonical(), seen.port()) == (self.address.ip().to_canonical(), self.address.port())
    }

    /// Waits until a dial that crossed this connection must have ended.
    pub(crate) async fn outlast_dials(self: Arc<Self>) {
        sleep(CROSSING).await;
        self.uncrossed.store(true, Ordering::Relaxed);
    }

    /// Records that the same peer has connected again. A node does not dial a peer that it is connected to. So if
    /// no dial crosses this connection any more, the peer has lost it, and it only looks alive on this side, as it does
    /// after a cut of one direction.
    pub(crate) fn supersede(&self) {
        self.superseded.fetch_or(self.uncrossed.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Records that a frame has come.
    pub(crate) fn has_spoken(&self) {
        self.spoken.store(self.age_ms(), Ordering::Relaxed);
    }

    /// How long ago the last frame came, if any has since the last call.
    pub(crate) fn was_heard(&self) -> Option<Duration> {
        let spoken = self.spoken.swap(u64::MAX, Ordering::Relaxed);
        (spoken != u64::MAX).then(|| Duration::from_millis(self.age_ms().saturating_sub(spoken)))
    }

    fn age_ms(&self) -> u64 {
        u64::try_from((clock::timers() - self.began).as_millis()).unwrap_or(u64::MAX - 1)
    }

    /// Sends one frame on a stream of its own. Returns when the frame is sent, not when it was received.
    ///
    /// # Errors
    /// The peer does not take it, or is gone.
    pub(crate) async fn send(&self, frame: &Bytes) -> Result<(), String> {
        let sending = async {
            let mut stream = self.connection.open_uni().await.map_err(|error| error.to_string())?;
            stream.write_all(frame).await.map_err(|error| error.to_string())?;
            stream.finish().map_err(|error| error.to_string())
        };
        timeout(FRAME, sending).await.unwrap_or_else(|_| Err("it took too long".into()))
    }

    /// Hands every frame that comes to `take`, until the connection ends; returns why it did.
    pub(crate) async fn receive(
        &self,
        counters: &Arc<Counters>,
        take: impl Fn(Bytes) + Clone + Send + 'static,
    ) -> ConnectionError {
        // Bounded by the number of streams that the peer may open.
        let mut reading = JoinSet::new();
        loop {
            tokio::select! {
                stream = self.connection.accept_uni() => match stream {
                    Ok(stream) => {
                        let (counters, take) = (counters.clone(), take.clone());
                        reading.spawn(async move {
                            if let Some(frame) = read(stream, &counters).await {
                                take(frame);
                            }
                        });
                    }
                    Err(error) => return error,
                },
                Some(_) = reading.join_next() => {}
            }
        }
    }
}

async fn say_hello(connection: &Connection, us: &Hello) -> Result<Hello, HelloError> {
    let silent = |error: &dyn fmt::Display| HelloError::Silent(error.to_string());
    let mut stream = connection.open_uni().await.map_err(|error| silent(&error))?;
    stream.write_all(&us.encode()).await.map_err(|error| silent(&error))?;
    stream.finish().map_err(|error| silent(&error))?;
    let mut stream = connection.accept_uni().await.map_err(|error| silent(&error))?;
    let bytes = stream.read_to_end(MAX_HELLO).await.map_err(|error| silent(&error))?;
    Hello::decode(&bytes).ok_or(HelloError::Malformed)
}

fn chain(connection: &Connection) -> Option<Vec<CertificateDer<'static>>> {
    connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok().map(|chain| *chain)
}

/// One frame, if it comes whole, in time and within its size. No more than that size is ever held.
async fn read(mut stream: RecvStream, counters: &Counters) -> Option<Bytes> {
    match timeout(FRAME, stream.read_to_end(1 + MAX_FRAME)).await {
        Ok(Ok(frame)) => {
            counters.frames_in.add(1);
            counters.bytes_in.add(frame.len());
            Some(frame.into())
        }
        Ok(Err(ReadToEndError::TooLong)) => {
            counters.oversized.add(1);
            // Fails when the stream has ended already, which is what this is for.
            let _ = stream.stop(Closing::Refused.code());
            None
        }
        Ok(Err(ReadToEndError::Read(_))) | Err(_) => None,
    }
}
