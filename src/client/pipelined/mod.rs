//! The client for tokio: one connection that many tasks share.
//!
//! `line` is the connection: requests out, answers in the same order in; `driver` opens one when there is something to
//! ask, and rests after failures; `client` is what callers hold. What is asked and what answers mean is the
//! blocking client's.

mod client;
mod driver;
mod limiter;
mod line;

#[cfg(test)]
mod tests;

pub use client::AsyncClient;
pub use limiter::AsyncLimiter;
