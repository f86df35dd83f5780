//! The ways in which a round trip to a server can fail.

use crate::core::time::{Instant, Micros};

/// How a round trip failed, and whether the command may have been executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It is unknown whether it was executed.
    Unknown,
    /// Surely not executed: the server has been away since then.
    Away(Instant),
    /// It never left: the requests before it need so long.
    Busy(Micros),
    /// Surely not executed: the slot is at this address.
    Moved(String),
    /// Surely not executed: the key has moved to this address, its slot has not.
    Ask(String),
    /// Surely not executed: the server does not know the script.
    NoScript,
    /// Surely not executed, and repeating it would not help.
    Rejected(String),
}
