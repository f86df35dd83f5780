//! Why a fleet cannot be joined.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a fleet cannot be joined: what was seen, what was wanted, and what to do.
#[derive(Debug)]
pub enum FleetError {
    /// A certificate or key file.
    Identity {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// The address to listen on cannot be bound.
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        source: io::Error,
    },
    /// It is unknown at which address peers can reach this node.
    NoAddress {
        /// The address that this node listens on.
        listen: SocketAddr,
    },
    /// A name that cannot be part of a certificate.
    Name {
        /// The fleet's name.
        fleet: String,
    },
}

impl fmt::Display for FleetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identity { path, problem } => write!(f, "{}: {problem}", path.display()),
            Self::Listen { address, source } => {
                write!(f, "cannot listen for peers on {address}: {source}; choose another fleet.listen")
            }
            Self::NoAddress { listen } => write!(
                f,
                "no route tells which address peers reach this node at: {listen} is every address; \
                 set fleet.advertise, like \"10.0.0.17:{}\"",
                listen.port()
            ),
            Self::Name { fleet } => {
                write!(f, "fleet.name is {fleet:?}: 1 to 63 lower-case letters, digits and inner hyphens were wanted")
            }
        }
    }
}

impl std::error::Error for FleetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. } => Some(source),
            _ => None,
        }
    }
}
