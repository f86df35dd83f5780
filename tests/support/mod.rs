//! What the tests share: a bench and worlds for the core alone; for real processes a clock and
//! bounded waits, daemons and stores that die with their test, a RESP client, loads, and the ledger
//! of what clients saw.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

pub mod bench;
pub mod world;

pub mod clock;
#[cfg(feature = "daemon")]
pub mod cluster;
pub mod demand;
pub mod ledger;
pub mod metrics;
pub mod poll;
#[cfg(feature = "daemon")]
pub mod process;
pub mod proxy;
pub mod resp;
#[cfg(feature = "daemon")]
pub mod server;
