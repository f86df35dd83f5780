//! What is needed to connect to the servers of a store: credentials, TLS, and the network.
//!
//! Decides nothing about when to connect. Built by `url.rs`; `link.rs` dials with it.

use std::fmt;
use std::sync::Arc;

use super::stream::Network;
use super::tls::Tls;

/// The settings that all servers of one store share.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
    /// For all servers; `None` without TLS.
    pub(crate) tls: Option<Tls>,
    /// The network that the servers are on.
    pub(crate) network: Arc<dyn Network>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialer").field("user", &self.user).field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}
