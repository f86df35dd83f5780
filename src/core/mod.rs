//! The decision core: pure, sans-IO, integers only, imports `std` and nothing else.
//!
//! `now` is the first argument of everything that depends on time; randomness comes as a seed.
//! The daemon and the simulator are two drivers of this same code.

pub mod call;
pub mod counter;
pub mod decision;
pub mod gcra;
pub mod key;
pub mod limit;
pub mod policy;
pub mod shard;
pub mod stats;
pub mod table;
pub mod time;
pub mod window;
