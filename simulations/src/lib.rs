//! Deterministic simulations: a fleet in one thread, the shipped core, the shipped scripts.
//!
//! Nothing of the product is written a second time. A node is [`rationd::core::shard::Shard`], what
//! it asks is answered by the scripts of `lua/` in a Lua 5.1 interpreter, and between them stand the
//! daemon's own circuit breaker and codec of calls. Modelled is only the world: clocks, network,
//! Redis servers and their failovers, and those who ask.
//!
//! | module | what |
//! |---|---|
//! | [`plan`], [`span`] | a run, written out whole |
//! | [`swarm`] | a seed expands to a plan |
//! | [`limiter`], [`baseline`] | what decides in a daemon: the core, or a baseline |
//! | [`scenario`] | plans as files |
//! | [`shrink`] | from a plan that fails to a smaller one |
//! | [`random`] | streams of randomness from a seed |
//! | [`observe`] | what can be seen of a run |

pub mod baseline;
pub mod limiter;
pub mod observe;
pub mod plan;
pub mod random;
pub mod scenario;
pub mod shrink;
pub mod span;
pub mod swarm;
