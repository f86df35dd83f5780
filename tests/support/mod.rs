//! What the tests share: a clock and bounded waits, daemons and stores that die with their test, a
//! RESP client of their own, loads and the ledger of what clients saw.

pub mod clock;
pub mod cluster;
pub mod daemon;
pub mod ledger;
pub mod load;
pub mod metrics;
pub mod poll;
pub mod proxy;
pub mod resp;
pub mod server;
