//! Where tokens are counted once, for all nodes: the answers to [`crate::core::call::Call`].
//!
//! Two stores of one behaviour. [`memory`] keeps counters in this process: the default, and what
//! one node alone needs. In Redis the scripts of `lua/` are the only writers of shared state;
//! [`script`] turns calls into their arguments and their replies into grants, `redis` carries them,
//! [`pulse`] says when a server counts as lost, [`breaker`] when it is not asked, [`limiter`] how much
//! it is asked at a time, [`turns`] whose letter leaves next.
//! Both answer every sequence of calls alike: `tests/store_parity.rs` compares them.

pub mod breaker;
mod cell;
mod cells;
mod census;
pub mod embedded;
pub mod excerpt;
mod inflight;
pub mod limiter;
pub mod memory;
mod names;
pub mod outcomes;
pub mod pulse;
#[cfg(feature = "daemon")]
pub mod redis;
pub mod script;
mod slots;
pub mod turns;
mod view;
