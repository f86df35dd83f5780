//! Several keys asked at once, all or nothing, as the daemon's `src/serve/check_request.rs` drives it: one key after another
//! as the core says ([`rationd::core::several`]), what later ones lack is leased meanwhile, all of them wait until one
//! deadline, and what was charged goes back when one is denied.
//!
//! Each key is asked by a request of its own. What goes back is told as a refund, that of a share as that of a hold,
//! and a slot as released, so that whoever judges single keys goes on.

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

/// What is asked at once.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) node: u32,
    pub(super) incarnation: u64,
    pub(super) items: Vec<Item>,
    /// The request that asked each of them last.
    pub(super) asked: Vec<Option<Request>>,
    pub(super) several: Several,
    pub(super) deadline: Instant,
}

/// All that is under way.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) groups: BTreeMap<u64, Group>,
    /// Which key of which group a request is about, and how that is asked.
    pub(super) requests: Map<u64, (u64, usize, How)>,
    pub(super) next: u64,
}

impl Groups {
    /// Nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Until when a request waits that is one of several and is asked as the client wants it.
    pub(super) fn deadline(&self, request: u64) -> Option<Instant> {
        let (group, ..) = self.requests.get(&request).filter(|(_, _, how)| *how == How::Check)?;
        self.groups.get(group).map(|group| group.deadline)
    }

    /// Of a request nothing but what the node knows is told.
    pub(super) fn is_look(&self, request: u64) -> bool {
        self.requests.get(&request).is_some_and(|(_, _, how)| *how == How::Look)
    }
}
