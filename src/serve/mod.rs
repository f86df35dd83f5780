//! The running daemon: everything that touches a socket, a clock or a thread, around the core.
//!
//! A check's way: `worker` accepts, `connection` reads and writes, `session` runs commands, `node`
//! asks the key's shard. What must ask a store goes through `refill` and comes back through
//! `mailbox` and `outbox`. `daemon` builds and ends it all.

pub mod admin;
pub mod alarm;
mod arrivals;
pub mod ask;
pub mod budget;
pub mod connection;
pub mod crowd;
pub mod daemon;
mod deadlines;
pub mod doors;
pub mod envoy;
pub mod exposition;
pub mod gossip;
pub mod greeting;
pub mod handed;
pub mod http;
pub mod hub;
pub mod inquiry;
pub mod listing;
pub mod mailbox;
pub mod metrics;
pub mod node;
pub mod outbox;
pub mod parameters;
pub mod refill;
pub mod reload;
mod requests;
mod reveille;
pub mod rights;
pub mod rules;
pub mod scripts;
pub mod session;
mod shared;
pub mod slots;
pub mod socket;
pub mod spool;
pub mod tally;
pub mod transaction;
pub mod turnstile;
pub mod vital;
pub mod worker;

pub use daemon::{Daemon, StartError, StartOptions};
pub use hub::{Hub, Limits, Reload, Stats};
pub use refill::{AnyStore, Remote};
