//! The listener for Envoy: Rate Limit Service v3, gRPC over a Unix socket or TCP.
//!
//! The `h2` crate implements HTTP/2, `connection` drives it, `unary` reads gRPC's frames, and `service` asks the shards. The data
//! threads accept these connections beside those of the daemon's socket.

mod answer;
mod connection;
mod counted;
mod listener;
pub mod proto;
mod service;
mod unary;
mod unvectored;

pub(crate) use listener::{Accepted, Handle, Listener, Resting, serve};
pub use listener::{BindError, BoundListener, EnvoyOptions};
