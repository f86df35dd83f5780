//! How late members of a fleet know of each other: what the swarm draws, in milliseconds.
//!
//! `tests/fleet_seeded.rs`, which includes this file, measures the real chitchat and fails when a time that it took lies
//! outside of these.

use std::ops::RangeInclusive;

/// From a node's start until all others know of it.
pub const JOIN_MS: RangeInclusive<u64> = 200..=2_700;

/// From the moment at which a node was heard last until all others have given it up.
pub const DEAD_MS: RangeInclusive<u64> = 1_000..=6_500;
