//! Checks of several keys at once, all or nothing, driven as in the daemon's `src/serve/check_request.rs`: the keys are
//! checked one after another in the order that the core gives ([`rationd::core::several`]), leases for later keys are
//! fetched meanwhile, all wait until one deadline, and what was charged is given back when one is denied.
//!
//! Each key has a request of its own. Observers see what is given back as a refund (that of a share as the refund of a
//! hold) and a permit as released, so checkers of single keys need to know nothing of this.

use std::collections::BTreeMap;

use rationd::core::several::{How, Several};
use rationd::core::time::Instant;

use crate::maps::Map;
use crate::observe::Request;

/// One of the keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) key: u32,
    pub(super) policy: u32,
    pub(super) cost: u64,
}

/// The keys of one check.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) items: Vec<Item>,
    /// For each key, the last request about it.
    pub(super) asked: Vec<Option<Request>>,
    pub(super) several: Several,
    pub(super) deadline: Instant,
}

/// All checks of several keys that are under way.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) groups: BTreeMap<u64, Group>,
    /// Which key of which group a request is about, and in which way it asks.
    pub(super) requests: Map<u64, (u64, usize, How)>,
    pub(super) next: u64,
}

impl Groups {
    /// Whether none is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The deadline of a request that is one of several and may wait.
    pub(super) fn deadline(&self, request: u64) -> Option<Instant> {
        let (group, ..) = self.requests.get(&request).filter(|(_, _, how)| *how == How::Check)?;
        self.groups.get(group).map(|group| group.deadline)
    }

    /// Whether a request only reads what the node knows.
    pub(super) fn is_look(&self, request: u64) -> bool {
        self.requests.get(&request).is_some_and(|(_, _, how)| *how == How::Look)
    }
}
