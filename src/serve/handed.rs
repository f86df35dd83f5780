//! Listening sockets that another process bound and hands over at the start, as systemd does (`LISTEN_FDS`).
//!
//! That process keeps them while a daemon is replaced: who connects meanwhile waits in their queues, and nobody is
//! refused. Each must be at a place that the configuration names, so that a slip is an error and no second door.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

/// Sockets that were handed over and are not used yet.
#[derive(Debug, Default)]
pub struct Handed {
    unix: Vec<(PathBuf, UnixListener)>,
    tcp: Vec<(SocketAddr, TcpListener)>,
}

impl Handed {
    /// Takes what the environment tells of: once, before there are threads, because it is taken out of there.
    ///
    /// # Errors
    /// One of them is no listening stream socket at a path or an address.
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

    /// Where one listens that nobody has taken.
    #[must_use]
    pub fn rest(&self) -> Option<String> {
        let unix = self.unix.iter().map(|(path, _)| path.display().to_string());
        unix.chain(self.tcp.iter().map(|(address, _)| address.to_string())).next()
    }
}

/// The path without links: `/var/run` is `/run`.
fn whole(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
