//! Whether the store server that counts a key answers, and what follows when it is back.
//!
//! ```text
//! Connected ─ no answer ─> Lost ─ an answer ─> Repaid ─ the share's window is over ─> Repaying ─> Connected
//!     │                     └──── an answer, and others may owe ──────────────────────┘
//!     └── the store has lost the key ─> Restoring ─ peers had their time ─> Connected
//! ```
//!
//! A node does not lease at once when the store answers again, because the store has yet to be charged for what shares
//! admitted, here and at other nodes: until it has been, it would lend those tokens a second time.
//! Where no share of a window that is still open was spent, a key goes from Lost to Connected with the first answer.

use crate::core::time::Instant;

/// How the key's part of the store is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It answers.
    Connected,
    /// It gives no answers.
    Lost { retry_at: Instant },
    /// It has answered, and has not been charged for all that shares admitted: nothing is leased before `until`,
    /// since others would be lent what this node owes, and this node what they owe.
    Repaying { retry_at: Instant, until: Instant },
    /// It has been charged for what this node's share admitted and for what is left of it. The share goes on until
    /// `retry_at`, so that all nodes have charged theirs before any leases what seems to be left.
    Repaid { retry_at: Instant, until: Instant },
    /// It has lost what it knew: until then peers tell it what it had lent them.
    Restoring { until: Instant },
}

impl Phase {
    /// Whether the key goes on without its part of the store.
    pub(super) fn is_away(self) -> bool {
        self != Self::Connected
    }

    /// When the store is asked again; `None`: it answers.
    pub(super) fn retry_at(self) -> Option<Instant> {
        match self {
            Self::Connected => None,
            Self::Lost { retry_at } | Self::Repaying { retry_at, .. } | Self::Repaid { retry_at, .. } => Some(retry_at),
            Self::Restoring { until } => Some(until),
        }
    }

    /// Since the store answered first: when all nodes have charged what they admitted.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Repaying { until, .. } | Self::Repaid { until, .. } => Some(until),
            Self::Connected | Self::Lost { .. } | Self::Restoring { .. } => None,
        }
    }

    /// Whether the store is to be asked again, and not yet.
    pub(super) fn waits(self, now: Instant) -> bool {
        self.retry_at().is_some_and(|retry_at| now < retry_at)
    }

    /// Whether the store is to be asked again now.
    pub(super) fn asks_again(self, now: Instant) -> bool {
        self.retry_at().is_some_and(|retry_at| now >= retry_at)
    }
}
