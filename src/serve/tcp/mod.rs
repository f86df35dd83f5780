//! The TCP address for clients that cannot open a Unix socket: who may use it, its TLS, and its connections.
//!
//! `access` is what its files say: certificates and users. `listener` accepts; `encrypted` takes TLS off a connection.
//! The data threads serve these connections like those of the daemon's socket.

pub mod access;
mod encrypted;
mod listener;
pub mod users;

pub use access::{RemoteAccess, TcpFiles};
pub(crate) use listener::TcpClients;
pub use listener::{BoundTcp, TcpBindError};
