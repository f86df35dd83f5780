//! # rationd
//!
//! Rate limits that the processes of many hosts share: requests per user, logins per address, tokens per customer. Each
//! host runs the daemon `rationd`, which leases tokens from Redis and answers from those it holds. This crate is the
//! client that a Rust application asks it with, and the daemon itself.
//!
//! ```
//! use rationd::client::{Client, Limiter, OnDaemonLoss};
//!
//! // The daemon has a policy `api` with the limit "100/1d fixed from-first": 100 tokens a day for each key.
//! let socket = "/run/rationd/rationd.sock";
//! # rationd::example::run(|socket| {
//!
//! // Decides in this process, by tokens that the daemon lends it some at a time.
//! let limiter = Limiter::new(socket, "api", "user:42", OnDaemonLoss::LastShare);
//! let passed = (0..1_000).filter(|_| limiter.allow(1)).count();
//! assert_eq!(passed, 100);
//!
//! // Asks the daemon each time, and learns what is left.
//! let mut rations = Client::connect(socket)?;
//! let decision = rations.check("api", "user:43", 5)?;
//! assert!(decision.is_allowed());
//! assert_eq!((decision.limit, decision.remaining), (100, 95));
//! # Ok(()) });
//! ```
//!
//! | an application wants | it uses |
//! |---|---|
//! | most decisions to be one subtraction | [`Limiter`](client::Limiter): it spends tokens that were lent to this process |
//! | numbers, refunds, concurrent limits, any command | [`Client`](client::Client): a connection to the socket, of `std` only |
#![cfg_attr(
    feature = "client-tokio",
    doc = "| the same for tokio's tasks | [`AsyncLimiter`](client::AsyncLimiter), [`AsyncClient`](client::AsyncClient) |"
)]
//! | to go on while no daemon answers | [`OnDaemonLoss`](client::OnDaemonLoss), [`is_unreachable`](client::ClientError::is_unreachable) |
//!
//! [`client`] explains keys, costs and errors. `examples/` has whole programs: a web server, workers that are tasks,
//! and a budget for a language model. Other languages ask the same socket with any Redis client.
//!
//! ## Features
//!
//! | feature | brings | other crates |
//! |---|---|---|
//! | `client` | [`Limiter`](client::Limiter), [`Client`](client::Client) | none |
//! | `client-tokio` (default) | `AsyncLimiter`, `AsyncClient`; implies `client` | tokio, and four that it needs |
//! | `daemon` (default) | the program `rationd` and the rooms it is made of; implies `client` and `gossip` | tokio, hyper, quinn, rustls, redis and more |
//! | `gossip` | the digests that nodes tell each other, for the simulator | bincode |
//! | `mutants` | bugs on purpose, for the simulator | none |
//!
//! An application wants `default-features = false, features = ["client"]`, or `["client-tokio"]`. The modules beside
//! [`client`] are public for the daemon, its tests and the simulator; they change with any version.
//!
//! ## Architecture
//!
//! **The store counts a token once, when it is lent; what is admitted can never exceed what was lent, and what was lent
//! never exceeds the limit.** A pure decision core stands at the ground; everything that touches a socket, a clock or a
//! random number stands above it and passes values down. The daemon and the simulator are two drivers of the same core.
//!
//! Read [`core::shard`] first, and then `serve::node`, which drives it. `docs/internals/architecture.md` draws the way
//! of a check from the socket to the decision, those of an answer, of a timer, of a call to Redis and of an ask of a
//! peer, and lists what a reader may rely on. The [`glossary`] says what each word means, here as in the book.
//!
//! ### The rooms
//!
//! Direction of imports: `core` ← `clock`, `wire`, `config` ← `store`, `fleet`, `client` ← `serve` ← `cli` ← `main`.
//! `core` imports `std` alone. `tests/tidy.rs` holds the house to it.
//!
//! | room | what it decides or does |
//! |---|---|
//! | [`core::time`], [`core::limit`], [`core::key`], [`core::policy`], [`core::overrides`], [`core::route`], [`core::decision`], `core/rule` | the words |
//! | [`core::counter`] over [`core::gcra`] and [`core::window`] | arithmetic of each algorithm; `lua/lib.lua` is its twin |
//! | [`core::answer`] | the numbers of a decision |
//! | [`core::lease`], [`core::batch`], [`core::share`], [`core::span_budget`] | what a node holds; how much it asks for; what it may do alone |
//! | [`core::owners`], [`core::ask`] | which peer a node asks for tokens before the store, or in its place; what is asked and answered |
//! | [`core::entitled`] | what the store sets aside for nodes that lose it; `lua/entitled.lua` and `lua/silent.lua` have the same |
//! | [`core::lifetime`] | how long the store keeps a key |
//! | [`core::holds`] | estimates that were charged, and how they are settled |
//! | [`core::permits`] | what is in flight under a concurrent limit |
//! | [`core::store_clock`] | how the store's clock stands to this node's |
//! | [`core::usage`], [`core::fleet`] | what nodes tell each other; who is there, and a node's part of a limit |
//! | [`core::call`] | what the core asks of a store and is told, as plain values |
//! | [`core::shard`] | **the state machine**: `check`, `handle_*`, `poll_*` |
//! | `core/leased`, `core/concurrent` | what one key does: of leased tokens, of a concurrent limit |
//! | `core/context`, `core/calendar`, `core/timer_lists`, `core/talkers`, `core/request`, `core/calls`, `core/line` | what keys share: effects, timers and their lists, whose turn it is to tell peers, requests, calls under way, who waits |
//! | `core/per_limit`, `core/segments` | short lists that need no memory of their own for one item |
//! | `core/rough` | measured numbers in few bytes |
//! | [`core::several`] | requests about several keys: all or nothing |
//! | [`core::table`], [`core::page`], [`core::stats`] | the bounded table of keys; how it is listed, and counted |
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
/// The page of the book, `docs/concepts/glossary.md`: here it is documentation and no code.
#[cfg(doc)]
#[doc = include_str!("../docs/concepts/glossary.md")]
pub mod glossary {}
#[cfg(feature = "daemon")]
pub mod serve;
pub mod store;
#[doc(hidden)]
pub mod sync;
pub mod wire;

/// The page of the book whose blocks are Rust: `cargo test --doc` compiles them.
#[cfg(all(doctest, feature = "client-tokio"))]
#[doc = include_str!("../docs/clients/rust.md")]
struct PageOfRust;
