//! Where tokens are counted once, for all nodes.

pub mod memory;
#[cfg(feature = "daemon")]
pub mod redis;
#[cfg(feature = "daemon")]
pub mod script;
