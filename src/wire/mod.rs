//! Conversion between bytes and values: RESP as clients and this daemon use it, its commands, and the digests and
//! asks between nodes.
//!
//! Knows the core's types, but no sockets, files or other crates, so that the client can be built on it alone. Called
//! by `serve` for requests, by `client` for replies, and by `fleet` and `serve` for what goes between nodes.

mod arguments;
pub mod command;
pub mod command_error;
pub mod command_table;
#[cfg(feature = "gossip")]
pub mod digest;
pub mod headers;
pub mod help;
mod parse;
#[cfg(feature = "gossip")]
pub mod peer_ask;
pub mod rate;
pub mod ration;
pub mod reply;
pub mod resp;
pub mod throttle;
pub mod value;
