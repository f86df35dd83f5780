//! What the admin address and its pages need from the daemon.

use std::sync::Arc;

use super::server_state::ServerState;

/// What the admin address needs from the daemon.
pub trait DaemonStatus: Send + Sync + 'static {
    /// All metrics as Prometheus text. May take locks, never long ones.
    fn metrics(&self) -> String;
    /// What no longer works, so that the daemon should be restarted; `None` when it is healthy.
    fn not_alive(&self) -> Option<String>;
    /// Why no checks should be sent here now; `None` when they are served.
    fn not_ready(&self) -> Option<&'static str>;
    /// The daemon's state in one line, for people.
    fn summary(&self) -> String;
    /// The state that `/v1/…` is answered from.
    fn state(&self) -> &Arc<ServerState>;
}
