//! rationd.

#[cfg(feature = "daemon")]
pub mod cli;
pub mod client;
pub mod clock;
#[cfg(feature = "daemon")]
pub mod config;
pub mod core;
#[cfg(feature = "daemon")]
pub mod serve;
pub mod store;
pub mod wire;
