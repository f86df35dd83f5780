//! Bytes to values and back: RESP as clients and this daemon speak it, and the commands on top.
//!
//! Knows the core's words and nothing of sockets, files or other crates: the client room is built
//! on it alone. Called by `serve` for requests and by `client` for replies.

mod arguments;
pub mod command;
pub mod command_table;
#[cfg(feature = "gossip")]
pub mod digest;
pub mod headers;
pub mod help;
mod parse;
pub mod rate;
pub mod ration;
pub mod refusal;
pub mod reply;
pub mod resp;
pub mod throttle;
pub mod value;
