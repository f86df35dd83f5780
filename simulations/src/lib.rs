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
//! | [`random`] | streams of randomness from a seed |
//! | [`observe`] | what can be seen of a run |
//! | [`lua`], [`keyspace`] | a Redis server: its scripts and its keys |

pub mod keyspace;
pub mod lua;
pub mod observe;
pub mod plan;
pub mod random;
pub mod span;
