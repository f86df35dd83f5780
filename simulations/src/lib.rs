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
//! | [`scenario`], [`swarm`], [`shrink`] | plans: from files, from a seed, from one that fails |
//! | [`set`] | what a design says must be shown, as rows of scenarios |
//! | [`random`], [`maps`] | streams of randomness from a seed; maps that repeat themselves |
//! | [`world`] | everything that is not the product, and the loop that makes things happen |
//! | [`lua`], [`keyspace`] | the shipped scripts, and the part of Redis that they touch |
//! | [`limiter`], [`shards`], [`baseline`], [`brain`] | what decides in a node: the shipped core, several of it, or something to compare it with |
//! | [`observe`], [`frames`] | what can be seen of a run; frames of gossip, and what is read in them |
//! | [`checkers`] | what must hold in every run |
//! | [`ledger`], [`series`] | figures of a run, whole and over time |
//! | [`trace`] | a hash of everything that happened |
//! | [`mutants`] | deliberate bugs of the core and of the scripts |
//! | [`run`], [`outcome`], [`report`] | one run; what came of it; pages of it |
//! | [`cli`] | the command line |

pub mod baseline;
pub mod brain;
pub mod checkers;
pub mod cli;
pub mod earlier;
pub mod frames;
pub mod ledger;
pub mod limiter;
pub mod lua;
pub mod maps;
pub mod mutants;
pub mod observe;
pub mod outcome;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod scenario;
pub mod series;
pub mod set;
pub mod shards;
pub mod shrink;
pub mod span;
pub mod swarm;
pub mod trace;
pub mod world;

pub use redis_model::keyspace;
