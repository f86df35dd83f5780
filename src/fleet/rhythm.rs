//! The rhythm of a calm fleet: once a second a node tells its peers that it lives, and what else it does once a second it does then.
//!
//! Each of these things had a timer of its own. A timer wakes the thread, what leaves at another moment needs packets of its own, and
//! their acknowledgements wake the thread again. A node beats when it tells its usage (`Fleet::broadcast`), of which the sign of life is
//! the shortest form. Where it does not, both go on by their own timers, a little later.

use std::time::Duration;

use tokio::sync::Notify;

/// So much longer than a second is waited for a beat before something is done without.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// What is done at a beat is done if it was last done this long ago. Usage may be told more often.
pub(crate) const APART: Duration = Duration::from_millis(900);

/// Who waits for beats.
#[derive(Debug, Default)]
pub(crate) struct Rhythm {
    /// Membership, which opens its rounds then.
    pub(crate) rounds: Notify,
    /// Whoever sees which peers were heard.
    pub(crate) looks: Notify,
}

impl Rhythm {
    /// This node is about to tell its peers that it lives.
    pub(crate) fn beat(&self) {
        self.rounds.notify_one();
        self.looks.notify_one();
    }
}
