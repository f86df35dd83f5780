//! The decision core: pure, sans-IO, integers only, imports `std` and nothing else.
//!
//! `now` is the first argument of everything that depends on time; randomness comes as a seed.
//! The daemon and the simulator are two drivers of this same code. What its words mean stands in the
//! [`glossary`](crate::glossary).

pub mod answer;
pub mod ask;
pub mod batch;
mod calendar;
pub mod call;
mod calls;
mod concurrent;
mod context;
pub mod counter;
pub mod decision;
pub mod entitled;
pub mod fleet;
pub mod gcra;
pub mod holds;
pub mod key;
pub mod lease;
mod leased;
pub mod lifetime;
pub mod limit;
mod line;
pub mod mutant;
pub mod overrides;
pub mod owners;
pub mod page;
mod per_limit;
pub mod permits;
pub mod policy;
mod request;
mod rough;
pub mod route;
mod rule;
mod segments;
pub mod several;
pub mod shard;
pub mod share;
pub mod span_budget;
pub mod stats;
pub mod store_clock;
pub mod table;
mod talkers;
pub mod time;
mod timer_lists;
pub mod usage;
pub mod window;
