//! Clients for applications: a blocking one of `std` only, without thread or runtime, and one for tokio.
//!
//! Knows the wire and nothing of daemons, configuration or stores. Called by applications (feature
//! `client` alone is enough), by the command line, and by tests.
//!
//! ```no_run
//! use rationd::client::Client;
//!
//! let mut rations = Client::connect("/run/rationd/rationd.sock")?;
//! let decision = rations.check("api", b"user:42", 1)?;
//! if decision.is_allowed() {
//!     // serve the request
//! } else if let Some(wait) = decision.retry_after {
//!     eprintln!("try again in {wait:?}");
//! }
//! # Ok::<(), rationd::client::ClientError>(())
//! ```

mod decision;
mod error;
mod lease;
mod limiter;
mod link;
#[cfg(feature = "client-tokio")]
mod pipelined;
mod purse;
mod request;
mod rest;

#[cfg(test)]
mod tests;

pub use crate::wire::value::Value as Reply;
pub use decision::Decision;
pub use error::ClientError;
pub use limiter::{Limiter, WhenAway};
pub use link::{Client, Patience};
#[cfg(feature = "client-tokio")]
pub use pipelined::{AsyncClient, AsyncLimiter};
pub use request::write_request;
