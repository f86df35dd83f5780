//! The part of a Redis server that rationd's scripts touch, in memory and on a clock that is passed in: a keyspace,
//! and an interpreter that runs the scripts on it.
//!
//! Two programs use it: the fleet simulator beside it, and `tests/daemon_seeded.rs`, which puts a server with
//! connections around it. It depends on nothing of rationd, so that both can. `simulations/tests/differential` holds it
//! to a real server.

#![forbid(unsafe_code)]

pub mod keyspace;
pub mod scripts;
