//! Clients with which an application asks a daemon whether a request is admitted, and what is left.
//!
//! | | decides | an answer takes |
//! |---|---|---|
//! | [`Limiter`] | in this process, by tokens of one key that the daemon lent it | a subtraction, as a rule |
//! | [`Client`] | at the daemon, and tells what is left; also takes costs back, and any command | a round trip on the Unix socket |
//! | `AsyncLimiter`, `AsyncClient` | as those, for tokio's tasks, which share one connection | the same |
//!
//! A *policy* is a name that the daemon's configuration gives to one or more limits. A *key* is whom they limit, as up
//! to 64 KiB of bytes: `user:42`. A *cost* is a whole number of tokens, at most 2^53 - 1; most requests cost one.
//!
//! A denial is no error: it is a [`Decision`] like any other. A [`ClientError`] says that there is no decision, because
//! nobody answered ([`ClientError::is_unreachable`]) or because the daemon refused the command. Whether a request
//! passes then is the application's choice; a limiter is told beforehand, by [`OnDaemonLoss`].
//!
//! The examples of these pages ask a daemon that has two policies. `api` gives each key 100 tokens a day, and is
//! written `100/1d fixed from-first`; `jobs` gives each key two slots at a time, `2/30s concurrent`.
//!
//! ```
//! use rationd::client::Client;
//!
//! let socket = "/run/rationd/rationd.sock";
//! # rationd::example::run(|socket| {
//! let mut rations = Client::connect(socket)?;
//! let decision = rations.check("api", "user:42", 1)?;
//! if decision.is_allowed() {
//!     println!("serve it; {} are left", decision.remaining);
//! } else if let Some(wait) = decision.retry_after {
//!     println!("try again in {wait:?}");
//! }
//! # assert_eq!(decision.remaining, 99);
//! # Ok(()) });
//! ```
//!
//! This room knows the wire and nothing of daemons, configuration or stores. The command line and the tests call it,
//! too.

mod backoff;
mod decision;
mod error;
mod lease;
mod limiter;
mod link;
mod local_tokens;
#[cfg(feature = "client-tokio")]
mod pipelined;
mod request;

#[cfg(test)]
mod tests;

pub use crate::wire::value::Value as Reply;
pub use decision::Decision;
pub use error::ClientError;
pub use limiter::{Limiter, OnDaemonLoss};
pub use link::{Client, Timeouts};
#[cfg(feature = "client-tokio")]
pub use pipelined::{AsyncClient, AsyncLimiter};
pub use request::write_request;
