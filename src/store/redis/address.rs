//! The address of a Redis server, as configurations and Redis itself write it.
//!
//! Knows nothing of credentials and TLS, which `dialer.rs` has. Called by all that name a server.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// One Redis server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Address {
    /// A host name or IP address (IPv6 without brackets), and a port.
    Tcp(Arc<str>, u16),
    /// A Unix socket.
    Unix(Arc<Path>),
}

impl Address {
    pub(crate) fn tcp(host: &str, port: u16) -> Self {
        Self::Tcp(host.into(), port)
    }

    /// Parses `host:port`, `[v6]:port`, `v6:port` as Redis writes it, or `host` alone.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, port.parse().ok()?),
            _ => (text, 6379),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (!host.is_empty()).then(|| Self::tcp(host, port))
    }

    /// The address of another node as this node reports it. An empty or wildcard host means the host of this node.
    pub(crate) fn neighbour(&self, host: &str, port: u16) -> Option<Self> {
        if !matches!(host, "" | "0.0.0.0" | "::") {
            return Some(Self::tcp(host, port));
        }
        match self {
            Self::Tcp(host, _) => Some(Self::Tcp(host.clone(), port)),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_it_prints() {
        for text in ["127.0.0.1:7000", "redis-a.example:6379", "[::1]:7000"] {
            assert_eq!(Address::parse(text).expect(text).to_string(), text);
        }
        // MOVED writes IPv6 addresses without brackets.
        assert_eq!(Address::parse("fe80::1:7000"), Some(Address::tcp("fe80::1", 7000)));
        assert_eq!(Address::parse("h"), Some(Address::tcp("h", 6379)));
        assert_eq!(Address::parse("h:x"), None);
        assert_eq!(Address::parse(":7000"), None);
    }

    #[test]
    fn a_host_left_out_is_the_one_that_spoke() {
        let me = Address::tcp("a", 1);
        assert_eq!(me.neighbour("", 2), Some(Address::tcp("a", 2)));
        assert_eq!(me.neighbour("b", 2), Some(Address::tcp("b", 2)));
    }
}
