//! # rationd: the architecture
//!
//! A rate limiter that runs on every host of a fleet. Local processes ask it over a Unix socket
//! whether a request may pass; it answers from tokens that it already holds. It leases batches of
//! tokens from Redis, spends them without asking, and hands back what it does not use. **The store
//! counts a token once, when it is lent; what is admitted can never exceed what was lent, and what
//! was lent never exceeds the limit.**
//!
//! A pure decision core stands at the ground; everything that touches a socket, a clock or a random
//! number stands above it and passes values down. The daemon and the simulator are two drivers of
//! the same core.
//!
//! ## The way of a check
//!
//! ```text
//! socket ── wire::resp ── wire::command ── core::policy ── serve::node ── core::shard ── reply
//!  one read   parse in      name → typed     key → rule     one lock       decide from     one write
//!  per batch  place         command                                        what is held    per batch
//! ```
//!
//! Nothing on that way waits, allocates or crosses a thread while tokens are held. On a miss the
//! check is parked under a ticket, an acquire leaves for the store, and its grant serves everybody
//! who lined up meanwhile, in order.
//!
//! ## The rooms
//!
//! Direction of imports: `core` ← `wire` ← `store`, `fleet`, `client` ← `serve` ← `cli` ← `main`. `core`
//! imports `std` alone. `tests/tidy.rs` holds the house to it.
//!
//! | room | what it decides or does |
//! |---|---|
//! | [`core::time`], [`core::limit`], [`core::key`], [`core::policy`], [`core::route`], [`core::decision`] | the words |
//! | [`core::counter`] over [`core::gcra`] and [`core::window`] | arithmetic of each algorithm; `lua/lib.lua` is its twin |
//! | [`core::lease`], [`core::batch`], [`core::share`] | what a node holds; how much it asks for; what it may do alone |
//! | [`core::holds`] | estimates that were charged, and how they are settled |
//! | [`core::permits`] | what is in flight under a concurrent limit |
//! | [`core::store_clock`] | how the store's clock stands to this node's |
//! | [`core::usage`], [`core::fleet`] | what nodes tell each other; who is there, and a node's part of a limit |
//! | [`core::call`] | what the core asks of a store and is told, as plain values |
//! | [`core::shard`] | **the state machine**: `check`, `handle_*`, `poll_*` |
//! | [`core::table`] | the bounded table of keys |
//! | [`core::mutant`] | bugs on purpose, for simulations alone: absent from every other build |
//! | [`wire`] | bytes ↔ values: RESP and its commands, digests between nodes |
//! | [`store`] | who counts: `memory` (embedded, the default), `redis` (single and cluster) running `lua/` |
//! | [`client`] | clients for applications: blocking, of `std` only, and for tokio |
#![cfg_attr(
    feature = "daemon",
    doc = "| [`config`] | the config tree, its layers, and errors that point at the line |"
)]
#![cfg_attr(feature = "daemon", doc = "| [`fleet`] | peers: mutual TLS over QUIC, membership, frames between nodes |")]
#![cfg_attr(
    feature = "daemon",
    doc = "| [`serve`] | the running daemon: sockets, [`serve::envoy`], shards behind locks, refills, reload, metrics |"
)]
#![cfg_attr(feature = "daemon", doc = "| [`cli`] | one file a subcommand |")]
//! | [`clock`] | the only reader of time and of the system's randomness |
//!
//! ## What a reader may rely on
//!
//! - The core never blocks and never fails; a store's failure is a value ([`core::call::StoreError`]).
//! - One lock at a time, never across an await.
//! - Every parked check is answered by its deadline.
//! - An unknown outcome is asked again under the same id; it is never guessed.
//! - Integers decide. Time and seeds come in as arguments.
//! - Memory is bounded: keys, connections, requests, output, calls in flight.
//!
//! ## What is deliberately absent
//!
//! There is no second implementation of a decision anywhere:
//! simulations run this core and the shipped scripts.

#![forbid(unsafe_code)]

#[cfg(feature = "daemon")]
pub mod cli;
pub mod client;
pub mod clock;
#[cfg(feature = "daemon")]
pub mod config;
pub mod core;
#[doc(hidden)]
pub mod example;
#[cfg(feature = "daemon")]
pub mod fleet;
#[cfg(feature = "daemon")]
pub mod serve;
pub mod store;
#[doc(hidden)]
pub mod sync;
pub mod wire;
