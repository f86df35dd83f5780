//! The decision core: pure, sans-IO, integers only, imports `std` and nothing else.
//!
//! `now` is the first argument of everything that depends on time; randomness comes as a seed.
//! The daemon and the simulator are two drivers of this same code.

mod account;
mod alone;
pub mod answer;
pub mod batch;
pub mod call;
mod concurrent;
pub mod counter;
pub mod decision;
mod desk;
mod errand;
pub mod fleet;
pub mod gcra;
mod gossip;
pub mod holds;
pub mod key;
mod learn;
pub mod lease;
pub mod limit;
pub mod mutant;
mod occupancy;
mod order;
pub mod overrides;
pub mod page;
pub mod places;
pub mod policy;
mod refill;
mod repair;
pub mod route;
mod several;
pub mod shard;
pub mod share;
pub mod skew;
mod slot;
pub mod stats;
pub mod table;
pub mod time;
mod upkeep;
pub mod usage;
pub mod window;
