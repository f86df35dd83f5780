//! How an exchange with a server fails.

use crate::core::time::{Instant, Micros};

/// How an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody knows whether it was executed.
    Unknown,
    /// Surely not executed: the server is away since then.
    Away(Instant),
    /// It never left: those who waited before it need so long.
    Busy(Micros),
    /// Surely not executed: go there.
    Moved(String),
    /// Surely not executed: ask there.
    Ask(String),
    /// Surely not executed: send the source.
    NoScript,
    /// Surely not executed: it never will be.
    Rejected(String),
}
