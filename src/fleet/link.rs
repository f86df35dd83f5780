//! One connection to one peer: the greeting that opens it, frames in, frames out.
//!
//! A peer is known after its hello, not after the handshake: a dialler's handshake ends before the other
//! side has judged its certificate. Does not know which other connections there are.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadToEndError, RecvStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::frame::{Hello, MAX_FRAME, MAX_HELLO};
use super::identity::holds_name;
use super::names::node_name;
use super::peer::PeerId;
use super::stats::Counters;

/// Longest wait for a hello.
const GREETING: Duration = Duration::from_secs(2);
/// Longest time that one frame may take, in either direction.
const FRAME: Duration = Duration::from_secs(2);
/// Two dials of one moment have ended after this long, a handshake and a greeting each.
const CROSSING: Duration = Duration::from_secs(5);
/// Frames of one connection that may wait, gossip and usage: a member that floods fills no queue but its own.
const SLOTS: (usize, usize) = (16, 64);

/// Why a node closes a connection: the code that its peer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Closing {
    /// It is leaving the fleet.
    Left = 1,
    /// The peer is not who its certificate says, or does not say who it is.
    Refused = 2,
    /// There is a better connection between the same nodes.
    Duplicate = 3,
    /// It has dialled itself.
    Itself = 4,
    /// There are too many.
    Crowded = 5,
}

impl Closing {
    pub(crate) fn code(self) -> VarInt {
        VarInt::from_u32(self as u32)
    }
}

/// A connection whose peer is known.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) peer: PeerId,
    /// Where the peer says it is reached.
    pub(crate) address: SocketAddr,
    /// What this node has dialled, if it has.
    pub(crate) dialled: Option<SocketAddr>,
    /// Room for gossip of this peer that has come and was not yet dealt with.
    pub(crate) gossip_slots: Arc<Semaphore>,
    /// The same for usage.
    pub(crate) usage_slots: Arc<Semaphore>,
    /// Nothing that crossed it can come any more: who connects from now on has lost it.
    settled: AtomicBool,
    /// The same two nodes have connected again since.
    superseded: AtomicBool,
    /// A frame has come since it was asked last.
    spoken: AtomicBool,
}

/// Why a greeting came to nothing.
#[derive(Debug)]
pub(crate) enum GreetingError {
    /// The connection ended, or nothing was said in time.
    Silent(String),
    /// What was said is no hello.
    Malformed,
    /// The peer's certificate does not carry the name that it says.
    FalseName(Arc<str>),
}

impl fmt::Display for GreetingError {
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
    /// Says hello on a fresh connection and hears who the peer is.
    ///
    /// # Errors
    /// The peer does not say who it is, or is not allowed to be it. The connection is closed then.
    pub(crate) async fn greet(
        connection: Connection,
        dialled: Option<SocketAddr>,
        fleet: &str,
        us: &Hello,
    ) -> Result<Self, GreetingError> {
        let heard = match timeout(GREETING, exchange(&connection, us)).await {
            Ok(heard) => heard,
            Err(_) => Err(GreetingError::Silent("it took too long".into())),
        };
        let heard = heard.and_then(|hello| match chain(&connection).and_then(|chain| chain.into_iter().next()) {
            Some(own) if holds_name(&own, &node_name(fleet, &hello.id.name)) => Ok(hello),
            _ => Err(GreetingError::FalseName(hello.id.name)),
        });
        match heard {
            Ok(Hello { id, address }) => {
                let [gossip_slots, usage_slots] = [SLOTS.0, SLOTS.1].map(|slots| Arc::new(Semaphore::new(slots)));
                let [settled, superseded, spoken] = [false; 3].map(AtomicBool::new);
                Ok(Self {
                    connection,
                    peer: id,
                    address,
                    dialled,
                    gossip_slots,
                    usage_slots,
                    settled,
                    superseded,
                    spoken,
                })
            }
            Err(error) => {
                connection.close(Closing::Refused.code(), b"refused");
                Err(error)
            }
        }
    }

    /// The certificates that the peer has proved to own.
    pub(crate) fn chain(&self) -> Option<Vec<CertificateDer<'static>>> {
        chain(&self.connection)
    }

    /// Whether the peer is certainly at the address that it says: it sends from there.
    pub(crate) fn is_proven(&self) -> bool {
        let seen = self.connection.remote_address();
        (seen.ip().to_canonical(), seen.port()) == (self.address.ip().to_canonical(), self.address.port())
    }

    /// Waits until nothing that crossed it can come any more.
    pub(crate) async fn settle(self: Arc<Self>) {
        sleep(CROSSING).await;
        self.settled.store(true, Ordering::Relaxed);
    }

    /// Notes that its peer has connected again. Nobody dials whom it is connected to: where this connection is
    /// settled, the peer has lost it, and it only looks alive here, as after a cut of one direction.
    pub(crate) fn supersede(&self) {
        self.superseded.fetch_or(self.settled.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    /// Notes that a frame has come.
    pub(crate) fn has_spoken(&self) {
        self.spoken.store(true, Ordering::Relaxed);
    }

    /// Whether a frame has come since this was asked last.
    pub(crate) fn was_heard(&self) -> bool {
        self.spoken.swap(false, Ordering::Relaxed)
    }

    /// Sends one frame on a stream of its own; returns when it is on its way, not when it has come.
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
        // As many at once as the peer may open streams.
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

async fn exchange(connection: &Connection, us: &Hello) -> Result<Hello, GreetingError> {
    let silent = |error: &dyn fmt::Display| GreetingError::Silent(error.to_string());
    let mut stream = connection.open_uni().await.map_err(|error| silent(&error))?;
    stream.write_all(&us.encode()).await.map_err(|error| silent(&error))?;
    stream.finish().map_err(|error| silent(&error))?;
    let mut stream = connection.accept_uni().await.map_err(|error| silent(&error))?;
    let bytes = stream.read_to_end(MAX_HELLO).await.map_err(|error| silent(&error))?;
    Hello::decode(&bytes).ok_or(GreetingError::Malformed)
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
            // It may have ended meanwhile: then there is nothing to stop.
            let _ = stream.stop(Closing::Refused.code());
            None
        }
        Ok(Err(ReadToEndError::Read(_))) | Err(_) => None,
    }
}
