//! The Envoy door: Rate Limit Service v3, gRPC over a Unix socket or TCP.
//!
//! hyper speaks HTTP/2, `unary` reads and writes gRPC's frames, `service` asks the shards as every other door
//! does. The data threads accept its connections beside their own.

mod answer;
mod counted;
mod door;
mod plain;
pub mod proto;
mod service;
mod unary;

pub use door::{BindError, Door, EnvoyOptions};
pub(crate) use door::{Handle, Listener, Resting, Visitor, serve};
