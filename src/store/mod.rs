//! The store counts tokens once for all nodes, and answers each [`crate::core::call::Call`].
//!
//! There are two stores, and they behave alike: both give the same answers to every sequence of calls, which
//! `tests/store_parity.rs` compares. [`memory`] keeps counters in this process; it is the default, and all that a
//! single node needs. `redis` keeps them in Redis, where the scripts of `lua/` are the only writers of shared state.
//!
//! For Redis, [`script`] turns calls into arguments and replies into grants, and `redis` carries them. Four files
//! decide without doing IO: [`pulse`] when a server counts as silent, [`breaker`] when a server is not asked at all,
//! [`limiter`] how many calls may be at a server at a time, and [`turns`] which waiting call leaves next.

mod aside;
pub mod breaker;
mod cell;
mod cells;
mod census;
pub mod embedded;
pub mod excerpt;
mod form;
mod inflight;
mod lent_permits;
pub mod limiter;
pub mod memory;
mod names;
pub mod outcomes;
pub mod pulse;
#[cfg(feature = "daemon")]
pub mod redis;
pub mod script;
mod silent;
pub mod turns;
mod view;
mod words;
