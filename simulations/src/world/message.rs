//! What travels between a node and a server: letters with calls, and answers.

use rationd::core::call::Call;
use rationd::core::time::Instant;
use rationd::store::breaker::Pass;

/// A call on its way. It exists until its node knows the outcome and no copy is under way any more.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) key: u32,
    pub(super) call: Call,
    /// Where it goes now.
    pub(super) server: u32,
    pub(super) pass: Pass,
    pub(super) started: Instant,
    /// One MOVED and one ASK are followed.
    pub(super) moved: bool,
    pub(super) asking: bool,
    /// The script's source goes with it.
    pub(super) with_source: bool,
    /// A grant counts as confirmed only if a replica has it.
    pub(super) expects: bool,
    /// A WAIT stands behind it.
    pub(super) wait: bool,
    /// Copies that have not reached a server.
    pub(super) copies: u8,
    /// The node knows the outcome.
    pub(super) settled: bool,
    /// The connection that it was written to last, where calls are streams.
    pub(super) link: u64,
}

/// An answer of a server.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// The script's integers, and whether a replica has the write where that was waited for.
    Grant { numbers: Vec<i64>, replicated: Option<bool> },
    /// The slot is there now.
    Moved(u32),
    /// The key is there already.
    Ask(u32),
    /// The script is not loaded.
    NoScript,
    /// The server cannot serve now.
    Refused,
    /// The connection broke: nobody is there.
    Lost,
    /// It never left: the breaker has been open since then.
    Barred(Instant),
}
