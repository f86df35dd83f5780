//! Of the client: the purse, from which all threads of an application spend.

use rationd::client::{ClientError, Decision, Reply, WhenAway};

#[path = "../../../../src/client/lease.rs"]
mod lease;
#[path = "../../../../src/client/purse.rs"]
mod purse;

pub(crate) mod spending;
