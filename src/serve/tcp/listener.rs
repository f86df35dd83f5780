//! The listener of the TCP address, and the connections that it accepts.

use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::access::RemoteAccess;
use super::encrypted;
use crate::serve::handed::Handed;
use crate::serve::stream::Stream;

/// TCP keep-alive: after so long without a byte, the operating system probes the client at this interval and gives it
/// up after so many probes. Without it, the connections of a host that was switched off would count for ever.
const QUIET: Duration = Duration::from_secs(60);
const BETWEEN: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

/// The bound address.
#[derive(Debug)]
pub struct BoundTcp {
    listener: StdTcpListener,
    address: SocketAddr,
}

/// Why the address cannot be bound.
#[derive(Debug)]
pub struct TcpBindError {
    address: SocketAddr,
    error: io::Error,
}

impl std::fmt::Display for TcpBindError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, error } = self;
        write!(f, "cannot bind {address}: {error}; choose another listen.tcp, or \"off\"")
    }
}

impl std::error::Error for TcpBindError {}

impl BoundTcp {
    /// Binds `address`, unless its socket was handed over. With port 0 the operating system chooses a port.
    ///
    /// # Errors
    /// The address is in use, or the operating system refuses.
    pub fn bind(address: SocketAddr, handed: &mut Handed) -> Result<Self, TcpBindError> {
        let listener = match handed.take_tcp(address) {
            Some(listener) => Ok(listener),
            None => StdTcpListener::bind(address),
        };
        let bound = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        });
        bound.map_err(|error| TcpBindError { address, error })
    }

    /// The address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Duplicates the listener, for one more thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn handle(&self) -> io::Result<StdTcpListener> {
        self.listener.try_clone()
    }
}

/// The clients of the TCP address, as one data thread accepts them.
pub(crate) struct TcpClients {
    listener: TcpListener,
    access: Arc<ArcSwap<RemoteAccess>>,
    /// The tasks that take TLS off connections.
    carrying: JoinSet<()>,
}

impl TcpClients {
    /// Attaches the listener to the runtime that this is called in.
    ///
    /// # Errors
    /// The runtime does not accept it.
    pub(crate) fn of(listener: StdTcpListener, access: Arc<ArcSwap<RemoteAccess>>) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::from_std(listener)?, access, carrying: JoinSet::new() })
    }

    /// Accepts the next client. With TLS, its handshake is yet to come. Dropping the future loses no client.
    ///
    /// # Errors
    /// The operating system refuses, most often because no descriptor is left.
    pub(crate) async fn accept(&mut self) -> io::Result<Stream> {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => return self.prepare(accepted?.0),
                Some(_) = self.carrying.join_next() => {}
            }
        }
    }

    fn prepare(&mut self, client: TcpStream) -> io::Result<Stream> {
        // If one of these cannot be set, answers are slower, or a lost client is noticed late.
        let _ = client.set_nodelay(true);
        let _ = keep_alive(&client);
        match &self.access.load().tls {
            None => Ok(Stream::Tcp(client)),
            Some(config) => {
                let (served, carrying) = encrypted::split(client, config.clone())?;
                self.carrying.spawn(carrying);
                Ok(Stream::Unix(served))
            }
        }
    }

    /// Accepts nobody any more, and waits until what was written to clients has left.
    pub(crate) async fn leave(self) {
        let Self { listener, mut carrying, .. } = self;
        drop(listener);
        while carrying.join_next().await.is_some() {}
    }
}

fn keep_alive(client: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(client, true)?;
    sockopt::set_tcp_keepidle(client, QUIET)?;
    sockopt::set_tcp_keepintvl(client, BETWEEN)?;
    sockopt::set_tcp_keepcnt(client, TRIES)?;
    Ok(())
}
