//! The byte stream to one Redis server: a socket, or a simulation's replacement for it, with TLS over it if wanted.
//!
//! Knows neither commands nor replies. Called by `link.rs`, which dials, and by `wire.rs`, which reads and writes.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::address::Address;
use super::tls::Tls;

/// A connection to a server, perhaps with TLS over it.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection that is being made.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Stream>>> + Send + 'a>>;

/// The network to the servers: the system's sockets, or a network in the memory of a simulation.
pub trait Network: Send + Sync + fmt::Debug {
    /// Connects to this host and port.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a>;
}

/// The system's sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sockets;

impl Network for Sockets {
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move { Ok(Box::new(connect_tcp(host, port).await?) as Box<dyn Stream>) })
    }
}

/// Connects to the server at `address` over `network`.
pub(super) async fn connect(
    network: &dyn Network,
    address: &Address,
    tls: Option<&Tls>,
) -> io::Result<Box<dyn Stream>> {
    match (address, tls) {
        (Address::Unix(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
        (Address::Tcp(host, port), None) => network.connect(host, *port).await,
        (Address::Tcp(host, port), Some(tls)) => {
            let name = ServerName::try_from(host.to_string()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::new(tls.config()?));
            Ok(Box::new(connector.connect(name, network.connect(host, *port).await?).await?))
        }
    }
}

/// Tries all addresses of the host at once, and takes the first that answers.
async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        attempts.spawn(connect_to(address));
    }
    let mut problem = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(stream) => return Ok(stream),
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

async fn connect_to(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(Duration::from_secs(2)))?;
    Ok(stream)
}
