//! What peers are told of a key in a round of gossip, and which of them.
//!
//! Called by `core/shard.rs`, key by key in the order of `core/talkers.rs`.

use std::sync::Arc;

use super::intent::{asks_owner, nodes_served};
use super::key::LeasedKey;
use crate::core::context::Context;
use crate::core::fleet::FleetView;
use crate::core::mutant::{Mutant, on};
use crate::core::talkers::Rank;
use crate::core::time::Instant;
use crate::core::usage::{PeerIndex, Report};

/// Appends what has changed since the last report, or everything when the node leaves. False when nothing is left to report.
pub(in crate::core) fn tell(
    key: &mut LeasedKey,
    cx: &Context,
    now: Instant,
    fleet: FleetView,
    into: &mut Vec<Report>,
) -> bool {
    let before = into.len();
    let more = key.tell(now, fleet, cx.draining, into);
    if into.len() > before {
        let to = hearers(key, cx, now);
        into[before..].iter_mut().for_each(|report| report.to.clone_from(&to));
    }
    more
}

/// The peers that have to hear what this node has admitted of a key; `None`: all.
///
/// A key that is leased for many nodes by its owner is asked of that, and its answers say what is left. So two kinds of peers go by what
/// is reported beside them: those that lease the key themselves, which have reported of it; and the owner and who would own it next, because it
/// reckons with what others were lent. That is so for the owner and for a node that was lent something before it asked the owner.
/// Whoever leases for itself, as of a hot key, reports to all, so that all others that do know it. Everybody has to hear what the store has
/// lost, and what a node that leaves has admitted.
fn hearers(key: &LeasedKey, cx: &Context, now: Instant) -> Option<Arc<[PeerIndex]>> {
    let is_for_all = key.telling() == Rank::Lost || cx.draining;
    let is_of_owner = || nodes_served(key, cx, now) > 1 || asks_owner(key, cx, now);
    if is_for_all || !is_of_owner() || on(Mutant::OwnerTellsAll) {
        return None;
    }
    let mut hearers = key.origins();
    hearers.extend(cx.owners.first_two(now, key.id(), key.view.rule()));
    Some(hearers.into_iter().collect())
}
