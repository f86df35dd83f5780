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
pub(in crate::core) fn report_usage(
    key: &mut LeasedKey,
    cx: &Context,
    now: Instant,
    fleet: FleetView,
    into: &mut Vec<Report>,
) -> bool {
    let before = into.len();
    let more = key.drain_reports(now, fleet, cx.draining, into);
    if into.len() > before {
        let to = hearers(key, cx, now);
        into[before..].iter_mut().for_each(|report| report.to.clone_from(&to));
    }
    more
}

/// The peers that have to hear what this node has admitted of a key; `None`: all.
///
/// Where an owner leases a key for many nodes, they ask the owner, and its answers say what is left. So few peers go by what is reported beside
/// the answers: those that lease the key themselves, and the key's owner and the peer that would own it next, which reckon with what others were
/// lent. The first are known, because they have reported of the key: a node that leases for itself alone, as of a busy key, reports to all.
/// A node that was lent something before it knew the owner reports to the same few, since it asks the owner from then on. All have
/// to hear what the store has lost, and what a node that leaves has admitted.
fn hearers(key: &LeasedKey, cx: &Context, now: Instant) -> Option<Arc<[PeerIndex]>> {
    let is_for_all = key.report_rank() == Rank::Lost || cx.draining;
    let is_of_owner = || nodes_served(key, cx, now) > 1 || asks_owner(key, cx, now);
    if is_for_all || !is_of_owner() || on(Mutant::OwnerTellsAll) {
        return None;
    }
    let mut hearers = key.origins();
    hearers.extend(cx.owners.first_two(now, key.id(), key.view.rule()));
    Some(hearers.into_iter().collect())
}
