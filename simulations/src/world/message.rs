//! The messages between a node and a server: calls and answers.

use rationd::core::call::Call;
use rationd::core::time::Instant;
use rationd::store::breaker::Pass;

/// A call under way. It exists until its node knows the outcome and no copy travels any more.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) key: u32,
    pub(super) call: Call,
    /// Its present destination.
    pub(super) server: u32,
    pub(super) pass: Pass,
    pub(super) started: Instant,
    /// When the node gives up waiting: for the answer, or for a trial call that goes before it.
    pub(super) until: u64,
    /// Whether a MOVED has redirected it; one MOVED and one ASK are followed.
    pub(super) moved: bool,
    pub(super) asking: bool,
    /// The script's source is sent with it.
    pub(super) with_source: bool,
    /// A grant counts as confirmed only if a replica has it.
    pub(super) expects: bool,
    /// A WAIT is sent after it.
    pub(super) wait: bool,
    /// Copies that have not reached a server.
    pub(super) copies: u8,
    /// A server has executed it.
    pub(super) executed: bool,
    /// The node knows the outcome.
    pub(super) settled: bool,
    /// The connection to which it was last written, where calls travel in streams.
    pub(super) link: u64,
}

/// An answer of a server.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// The script's integers; and whether a replica has the write, if that was waited for.
    Grant { numbers: Vec<i64>, replicated: Option<bool> },
    /// The slot is at this server now.
    Moved(u32),
    /// The key is at this server already.
    Ask(u32),
    /// The script is not loaded.
    NoScript,
    /// The server cannot serve now.
    Refused,
    /// The connection broke because the server is down.
    Lost,
    /// It was never sent, because the breaker has been open since this time.
    Barred(Instant),
}
