//! Of the client: the tokens, from which all threads of an application spend.

use rationd::client::{ClientError, Decision, Reply, OnDaemonLoss};

#[path = "../../../../src/client/lease.rs"]
mod lease;
#[path = "../../../../src/client/local_tokens.rs"]
mod local_tokens;

pub(crate) mod spending;
