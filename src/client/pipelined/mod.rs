//! The client for tokio: one connection that many tasks share.
//!
//! `line` is the connection, over which requests are sent and answers come back in the same order. `driver` opens it
//! when there is a request, and backs off after failures. `client` and `limiter` are the handles that callers use.
//! The commands and their answers are those of the blocking client.

mod client;
mod driver;
mod limiter;
mod line;

#[cfg(test)]
mod tests;

pub use client::AsyncClient;
pub use limiter::AsyncLimiter;
