//! Listening sockets that another process has bound and hands over at the start, as systemd does (`LISTEN_FDS`).
//!
//! That process keeps the sockets open while a daemon is replaced, so clients that connect meanwhile wait in the
//! queue of the socket and none is refused. Each socket must be at a place that the configuration names: a mistake is
//! then an error, and not an unexpected open port.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

/// Sockets that were handed over and are not in use yet.
#[derive(Debug, Default)]
pub struct Handed {
    unix: Vec<(PathBuf, UnixListener)>,
    tcp: Vec<(SocketAddr, TcpListener)>,
}

impl Handed {
    /// Reads the sockets from the environment and removes the variables. Call it once, before there are threads,
    /// because it changes the environment.
    ///
    /// # Errors
    /// One of the descriptors is no listening stream socket at a path or an address.
    pub fn from_environment() -> Result<Self, String> {
        let (mut handed, mut found) = (Self::default(), ListenFd::from_env());
        for index in 0..found.len() {
            let wanted = "a listening stream socket was wanted";
            if let Ok(Some(listener)) = found.take_unix_listener(index) {
                let address = listener.local_addr().map_err(|error| format!("handed-over socket {index}: {error}"))?;
                let path = address.as_pathname().filter(|_| socket_acceptconn(&listener).unwrap_or(false));
                let path = path.ok_or_else(|| format!("handed-over socket {index}: {wanted}, at a path"))?;
                handed.unix.push((path.to_owned(), listener));
            } else if let Ok(Some(listener)) = found.take_tcp_listener(index) {
                let address = listener.local_addr().map_err(|error| format!("handed-over socket {index}: {error}"))?;
                if !socket_acceptconn(&listener).unwrap_or(false) {
                    return Err(format!("handed-over socket {index} at {address}: {wanted}"));
                }
                handed.tcp.push((address, listener));
            } else {
                return Err(format!("handed-over descriptor {index}: {wanted}"));
            }
        }
        Ok(handed)
    }

    /// The socket at `path`, if it was handed over.
    pub fn take_unix(&mut self, path: &Path) -> Option<UnixListener> {
        let wanted = whole(path);
        let index = self.unix.iter().position(|(path, _)| whole(path) == wanted)?;
        Some(self.unix.swap_remove(index).1)
    }

    /// The socket at `address`, if it was handed over.
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let index = self.tcp.iter().position(|(seen, _)| *seen == address)?;
        Some(self.tcp.swap_remove(index).1)
    }

    /// The place of a socket that nobody has taken, if there is one.
    #[must_use]
    pub fn rest(&self) -> Option<String> {
        let unix = self.unix.iter().map(|(path, _)| path.display().to_string());
        unix.chain(self.tcp.iter().map(|(address, _)| address.to_string())).next()
    }
}

/// The path with symbolic links resolved: `/var/run` is `/run`.
fn whole(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
