//! The listener for Envoy, on a Unix socket or a TCP address, and the connections that it accepts.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::connection::converse;
use super::counted::Counter;
use super::service::Service;
use crate::config;
use crate::serve::admission::ConnectionGuard;
use crate::serve::handed::Handed;
use crate::serve::server_state::ServerState;
use crate::serve::socket::{Socket, SocketError};
use crate::wire::headers::Style;

/// A TCP connection on which nothing was asked for this long is sent a PING.
const QUIET: Duration = Duration::from_secs(60);

/// The options of the listener.
#[derive(Clone, Debug)]
pub struct EnvoyOptions {
    /// The address.
    pub address: config::ListenAddress,
    /// The header fields that Envoy adds to its responses; `None` for none.
    pub headers: Option<Style>,
}

/// A bound listener. The file of a Unix socket is removed when this is dropped.
#[derive(Debug)]
pub struct BoundListener {
    bound: Bound,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Bound {
    Unix(Socket),
    Tcp(StdTcpListener, SocketAddr),
}

/// Why the listener cannot be bound.
#[derive(Debug)]
pub enum BindError {
    /// The Unix socket cannot be bound.
    Socket(SocketError),
    /// The TCP address cannot be bound.
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        error: io::Error,
    },
}

impl std::fmt::Display for BindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Tcp { address, error } => {
                write!(f, "cannot bind {address}: {error}; choose another listen.envoy, or \"off\"")
            }
        }
    }
}

impl std::error::Error for BindError {}

impl BoundListener {
    /// Binds the listener, unless its socket was handed over. A Unix socket gets `mode` and `group`. With port 0 the
    /// operating system chooses a port.
    ///
    /// # Errors
    /// The address is in use, or the operating system refuses.
    pub fn bind(options: &EnvoyOptions, mode: u32, group: Option<u32>, handed: &mut Handed) -> Result<Self, BindError> {
        let bound = match &options.address {
            config::ListenAddress::Path(path) => {
                let socket = match handed.take_unix(path) {
                    Some(listener) => Socket::adopt(listener, path),
                    None => Socket::bind(path, mode, group),
                };
                Bound::Unix(socket.map_err(BindError::Socket)?)
            }
            config::ListenAddress::Address(address) => {
                let listener = match handed.take_tcp(*address) {
                    Some(listener) => Ok(listener),
                    None => StdTcpListener::bind(address),
                };
                let bound = listener.and_then(prepared);
                let (listener, address) = bound.map_err(|error| BindError::Tcp { address: *address, error })?;
                Bound::Tcp(listener, address)
            }
        };
        Ok(Self { bound, headers: options.headers })
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn place(&self) -> config::ListenAddress {
        match &self.bound {
            Bound::Unix(socket) => config::ListenAddress::Path(socket.path().to_owned()),
            Bound::Tcp(_, address) => config::ListenAddress::Address(*address),
        }
    }

    /// Duplicates the listener, for one more thread.
    pub(crate) fn handle(&self) -> io::Result<Handle> {
        let inner = match &self.bound {
            Bound::Unix(socket) => Inner::Unix(socket.listener()?),
            Bound::Tcp(listener, _) => Inner::Tcp(listener.try_clone()?),
        };
        Ok(Handle { inner, headers: self.headers })
    }
}

fn prepared(listener: StdTcpListener) -> io::Result<(StdTcpListener, SocketAddr)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// The listener of one thread, before it is attached to the runtime.
#[derive(Debug)]
pub(crate) struct Handle {
    inner: Inner,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Inner {
    Unix(std::os::unix::net::UnixListener),
    Tcp(StdTcpListener),
}

/// The listener of one thread.
#[derive(Debug)]
pub(crate) struct Listener {
    accepting: Accepting,
    headers: Option<Style>,
}

#[derive(Debug)]
enum Accepting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) struct Accepted {
    stream: EnvoyStream,
    headers: Option<Style>,
}

#[derive(Debug)]
enum EnvoyStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// An accepted connection that is detached from its runtime.
#[derive(Debug)]
pub(crate) struct Resting {
    inner: RestingEnvoyStream,
    headers: Option<Style>,
}

#[derive(Debug)]
enum RestingEnvoyStream {
    Unix(std::os::unix::net::UnixStream),
    Tcp(std::net::TcpStream),
}

impl Handle {
    /// Attaches the listener to the runtime that this is called in.
    pub(crate) fn listen(self) -> io::Result<Listener> {
        let accepting = match self.inner {
            Inner::Unix(listener) => Accepting::Unix(UnixListener::from_std(listener)?),
            Inner::Tcp(listener) => Accepting::Tcp(TcpListener::from_std(listener)?),
        };
        Ok(Listener { accepting, headers: self.headers })
    }
}

impl Listener {
    /// Accepts the next connection.
    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        let stream = match &self.accepting {
            Accepting::Unix(listener) => EnvoyStream::Unix(listener.accept().await?.0),
            Accepting::Tcp(listener) => EnvoyStream::Tcp(listener.accept().await?.0),
        };
        Ok(Accepted { stream, headers: self.headers })
    }
}

impl Accepted {
    /// Detaches the connection from its runtime, so that another thread's runtime can take it.
    pub(crate) fn rest(self) -> io::Result<Resting> {
        let inner = match self.stream {
            EnvoyStream::Unix(stream) => RestingEnvoyStream::Unix(stream.into_std()?),
            EnvoyStream::Tcp(stream) => RestingEnvoyStream::Tcp(stream.into_std()?),
        };
        Ok(Resting { inner, headers: self.headers })
    }

    /// The peer's uid, if known.
    pub(crate) fn uid(&self) -> Option<u32> {
        match &self.stream {
            // `u32::MAX` is nobody's uid; it stands for a peer whose uid cannot be read.
            EnvoyStream::Unix(stream) => Some(stream.peer_cred().map_or(u32::MAX, |cred| cred.uid())),
            EnvoyStream::Tcp(_) => None,
        }
    }
}

impl Resting {
    /// Attaches the connection to the runtime that this is called in.
    pub(crate) fn resume(self) -> io::Result<Accepted> {
        let stream = match self.inner {
            RestingEnvoyStream::Unix(stream) => EnvoyStream::Unix(UnixStream::from_std(stream)?),
            RestingEnvoyStream::Tcp(stream) => EnvoyStream::Tcp(TcpStream::from_std(stream)?),
        };
        Ok(Accepted { stream, headers: self.headers })
    }
}

/// Serves a connection until it closes.
pub(crate) async fn serve(accepted: Accepted, pass: ConnectionGuard, state: Arc<ServerState>) {
    let counter = Counter::new(state.admission.account());
    let service = Service::new(state, accepted.headers, pass.mailbox.asker());
    match accepted.stream {
        // No PINGs: the operating system reports when the other end of a Unix socket is gone.
        EnvoyStream::Unix(stream) => converse(stream, None, &pass, service, counter).await,
        EnvoyStream::Tcp(stream) => {
            // Without this, Nagle's algorithm delays answers. If it cannot be set, they are just slower.
            let _ = stream.set_nodelay(true);
            converse(stream, Some(QUIET), &pass, service, counter).await;
        }
    }
}
