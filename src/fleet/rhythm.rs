//! The rhythm of a calm fleet: once a second a node sends its sign of life, and does everything else that it does once
//! a second at the same moment.
//!
//! With a timer for each of these things, each timer would wake the thread, what it sends would need packets of its
//! own, and their acknowledgements would wake the thread again. A beat is a call of `Fleet::broadcast`: it sends a
//! usage digest, of which the sign of life is the empty form. Where no beat comes, gossip rounds and looks go on by
//! their own timers, [`LATE`] after it was due.

use std::time::Duration;

use tokio::sync::Notify;

/// How much longer than a second the others wait for a beat before they go on without one.
pub(crate) const LATE: Duration = Duration::from_millis(100);

/// A beat counts only if the last round was at least this long ago, because usage digests may be sent more often than
/// once a second.
pub(crate) const APART: Duration = Duration::from_millis(900);

/// Notifies those who wait for beats.
#[derive(Debug, Default)]
pub(crate) struct Rhythm {
    /// Membership, which opens its rounds then.
    pub(crate) rounds: Notify,
    /// The task that checks which peers were heard.
    pub(crate) looks: Notify,
}

impl Rhythm {
    /// This node is about to send its sign of life.
    pub(crate) fn beat(&self) {
        self.rounds.notify_one();
        self.looks.notify_one();
    }
}
