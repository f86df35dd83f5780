//! What events do to the world, each with all that follows from it at once. Each file is about the part of the world
//! that they happen to.
//!
//! | file | what |
//! |---|---|
//! | `post.rs`, `stream.rs`, `service.rs` | calls and answers travel, also on connections; a server runs a script |
//! | `asks.rs`, `gossip.rs` | nodes ask each other, and hear of each other |
//! | `fault.rs`, `failover.rs`, `fleet.rs` | what goes wrong: in general, with servers, with nodes |
//! | `holds.rs`, `several.rs`, `permits.rs`, `prober.rs` | what clients do |
//! | `census.rs` | a key counted everywhere at once |
//! | `rehearsal.rs` | what scripts would do beside the run: slots without nodes, several keys in one call |

mod asks;
mod census;
mod failover;
mod fault;
mod fleet;
mod gossip;
mod holds;
mod permits;
mod post;
mod prober;
mod rehearsal;
mod service;
mod several;
mod stream;
