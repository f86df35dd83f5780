//! What the tests share: a bench and worlds for the core alone; a daemon in this process; for real
//! processes a clock and bounded waits, daemons and stores that die with their test, a RESP client,
//! demand, and the ledger of what clients saw.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

pub mod bench;
#[cfg(feature = "daemon")]
pub mod calls;
pub mod clock;
#[cfg(feature = "daemon")]
pub mod cluster;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod demand;
pub mod ledger;
pub mod metrics;
pub mod poll;
#[cfg(feature = "daemon")]
pub mod process;
pub mod proxy;
#[cfg(feature = "daemon")]
pub mod redis_server;
pub mod resp;
#[cfg(feature = "daemon")]
pub mod server;
pub mod world;
