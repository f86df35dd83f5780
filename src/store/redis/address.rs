//! Where a Redis server is, and how to dial it: address, credentials, TLS, socket options.
//!
//! Decides nothing about when. Called by `options.rs`, which builds the [`Dialer`], and `link.rs`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};

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

    /// The address of another node as this one names it: an empty or wildcard host means this one's.
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

/// What all servers of one store have in common.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    /// An address of the TLS kind, whose certificates go for all servers; `None` without TLS.
    pub(crate) tls: Option<ConnectionAddr>,
}

impl Dialer {
    /// What the redis crate needs to know to connect to `address`.
    pub(crate) fn info(&self, address: &Address) -> redis::RedisResult<ConnectionInfo> {
        let target = match (address, &self.tls) {
            (Address::Unix(path), _) => ConnectionAddr::Unix(path.to_path_buf()),
            (Address::Tcp(host, port), None) => ConnectionAddr::Tcp(host.to_string(), *port),
            (Address::Tcp(host, port), Some(pattern)) => with_tls(host, *port, pattern.clone()),
        };
        // RESP3, because it tells of a lost connection before the next call runs into it.
        let mut session = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(self.database);
        if let Some(user) = &self.user {
            session = session.set_username(user);
        }
        if let Some(password) = &self.password {
            session = session.set_password(password);
        }
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2));
        let socket = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let socket = socket.set_user_timeout(Duration::from_secs(2));
        Ok(target.into_connection_info()?.set_redis_settings(session).set_tcp_settings(socket))
    }
}

/// `pattern` with another host and port: the certificates in it have a type that cannot be named.
fn with_tls(host: &str, port: u16, pattern: ConnectionAddr) -> ConnectionAddr {
    let tls_params = if let ConnectionAddr::TcpTls { tls_params, .. } = pattern { tls_params } else { None };
    ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("user", &self.user).field("tls", &self.tls.is_some()).finish_non_exhaustive()
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
        // As MOVED writes it.
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
