//! The parts of a key that few keys have at a time, in memory of their own.
//!
//! Most keys hold a lease and nothing else: nobody waits, no call is under way, the store answers, and no peer uses the key. A daemon knows
//! millions of them, and each would otherwise have a pointer or two for every one of these parts.

use std::ops::{Deref, DerefMut};

use super::calls::Calls;
use super::leaving::Leaving;
use super::limit_view::LentOf;
use super::pacing::Paces;
use super::peer_usage::PeerUsage;
use super::phase::Outage;
use crate::core::line::Line;

/// The rare parts of one key, as [`RareParts`]. To read them takes no memory. To change them does, also where nothing comes of it, until
/// [`Rare::close`] finds that there is nothing to keep.
#[derive(Debug, Default)]
pub(super) struct Rare(Option<Box<RareParts>>);

/// Each is its own owner, as are the parts that every key has.
#[derive(Debug)]
pub(super) struct RareParts {
    /// The checks that wait for tokens.
    pub(super) line: Line,
    /// The calls to the store that are under way.
    pub(super) calls: Calls,
    /// Whether the key's store server answers, and what was admitted while it did not.
    pub(super) outage: Outage,
    /// What this node and its peers have used in the latest windows.
    pub(super) peers: PeerUsage,
    /// What the store is not asked for yet, and why.
    pub(super) paces: Paces,
    /// The tokens that are about to be returned.
    pub(super) leaving: Leaving,
    /// What was lent of the next window.
    pub(super) ahead: LentOf,
    /// The key is counted among those whose store server is away.
    pub(super) counted_away: bool,
}

static NONE: RareParts = RareParts::NEW;

impl RareParts {
    const NEW: Self = Self {
        line: Line::NEW,
        calls: Calls::NEW,
        outage: Outage::NEW,
        peers: PeerUsage::NEW,
        paces: Paces::NEW,
        leaving: Leaving::NEW,
        ahead: LentOf::NONE,
        counted_away: false,
    };

    /// Whether there is nothing to keep.
    fn is_new(&self) -> bool {
        self.line.is_empty()
            && self.calls.is_new()
            && self.outage.is_new()
            && self.peers.is_new()
            && self.paces.is_new()
            && self.leaving.is_empty()
            && self.ahead.window.is_none()
            && !self.counted_away
    }
}

impl Rare {
    /// The parts, if any of them may have something to keep.
    pub(super) fn there(&mut self) -> Option<&mut RareParts> {
        self.0.as_deref_mut()
    }

    /// Whether none of them has anything to keep.
    pub(super) fn are_none(&self) -> bool {
        self.0.is_none()
    }

    /// Changes the parts, if any of them may have something to keep. Where there is nothing, nothing is to be changed.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut RareParts)) {
        if let Some(parts) = self.there() {
            change(parts);
        }
    }

    /// Frees the memory if there is nothing to keep.
    pub(super) fn close(&mut self) {
        self.0.take_if(|parts| parts.is_new());
    }
}

impl Deref for Rare {
    type Target = RareParts;

    fn deref(&self) -> &RareParts {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for Rare {
    fn deref_mut(&mut self) -> &mut RareParts {
        self.0.get_or_insert_with(|| Box::new(RareParts::NEW))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::calls::Waiter;
    use crate::core::request::Ticket;
    use crate::core::time::Instant;

    #[test]
    fn what_is_empty_takes_no_memory() {
        let mut rare = Rare::default();
        assert!(rare.line.is_empty() && rare.there().is_none(), "reading takes none");
        rare.change(|_| unreachable!("nothing is there"));
        assert!(rare.line.take_first().is_none() && rare.there().is_some(), "what may change does");
        rare.close();
        assert!(rare.there().is_none());
        rare.line.join(Waiter::new(Ticket(1), 1, Instant(1)));
        rare.close();
        assert!(rare.there().is_some(), "somebody waits");
        rare.line.take_first();
        rare.counted_away = true;
        rare.close();
        assert!(rare.there().is_some(), "it is counted");
        rare.counted_away = false;
        rare.close();
        assert!(rare.there().is_none());
    }
}
