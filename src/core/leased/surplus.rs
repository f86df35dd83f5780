//! What a node hands back because others need it more.
//!
//! Decides how many of the unspent tokens that is, and whether a key is idle. Knows no store and no peers: `intent.rs` asks it, and
//! `advance.rs` makes the call.

use super::key::LeasedKey;
use super::timers::{closes, remaining};
use crate::core::batch::refill_interval;
use crate::core::time::Instant;

/// This fraction of a limit is not worth a call to return it. At one in ten, idle nodes keep so much that 96 % of
/// idle-holder is used instead of all; at one in 10,000, llm-costs costs 279 calls per 1000 checks instead of 255.
const TRIFLE_PART: u64 = 100;

/// A key is idle when nobody has asked for it for as long as so many checks take at the rate of late. Clients that ask at random
/// pause as long once in fifty times. With a single check, they would once in three times, and tokens would go back just before
/// the next check wants them: small-windows cost 254 calls per 1000 checks instead of 225.
pub(super) const MISSED: u64 = 4;

/// Where fewer tenths of a limit are left in the store than these, an owner hands back what it does not need soon: nodes that ask the store
/// and not the owner find nothing otherwise. With three, as for other nodes, an owner that has leased the rest of a window hands most of it back
/// at once, because its own lease has left little: warm-keys-owners cost 44 calls per 1000 checks instead of 33, and one check in fifty waited
/// for the store. With none, nodes that asked the store while their owner was dead were denied falsely (0.03 % of owner-killed).
const SPENT_TENTHS: u64 = 1;

/// Whether nobody has asked for the key for longer than clients pause.
pub(super) fn is_idle(key: &LeasedKey, now: Instant) -> bool {
    let (tuner, pause) = (key.demand.tuner(), key.demand.idle_for(now));
    let interval = refill_interval(key.view.rule());
    let has_stopped = pause > interval && !tuner.is_slow(interval) && !tuner.expects_fewer(MISSED, pause);
    tuner.used_in(pause) > tuner.few() || has_stopped
}

/// Unspent tokens that other nodes need more: all of them when the key is idle, otherwise those that two refill
/// intervals do not use. Only while the limit is under pressure, and never a trifle.
pub(super) fn surplus(key: &LeasedKey, now: Instant, is_for_all: impl Fn() -> bool) -> u64 {
    // What an acquire under way lends of a bucket is not known here, so a return would report it as spent.
    if key.rare.calls.is_acquiring() && key.view.has_account() {
        return 0;
    }
    if closes(key).has_come(now) {
        return if key.is_trifling(now) { 0 } else { key.holdings.lease().held() };
    }
    // These tokens stand for the rest of this node's share. If they were handed back, the share would release them once more.
    if key.rare.outage.phase().is_repaid() {
        return 0;
    }
    // Callers are waiting for tokens, so none are surplus.
    if !key.rare.line.is_empty() {
        return 0;
    }
    let (tuner, interval) = (key.demand.tuner(), refill_interval(key.view.rule()));
    let (held, is_idle) = (key.holdings.lease().current(now), is_idle(key, now));
    // A node that asks the store for nothing learns only from peers how much is left, and of a bucket it does not learn it.
    let is_pressed = key.is_pressed(now)
        || key.is_pressed_by_fleet()
        || is_idle && (key.is_pressed_by(now) || key.has_much()) && !is_for_all();
    // What an owner holds for all nodes they ask it for. Only those lack it that ask the store, and they find some there.
    let others_find_some = || !is_idle && !key.is_left_less(now, SPENT_TENTHS) && is_for_all();
    if !is_pressed || others_find_some() {
        return 0;
    }
    let few = tuner.used_in(remaining(key, now)).min(tuner.few());
    let kept = tuner.used_in(interval + interval).max(few);
    let spare = if is_idle { held } else { held.saturating_sub(kept) };
    // Tokens that a denied client was told to come back for are kept.
    let promised =
        key.rare.paces.promise().filter(|promise| promise.at + interval > now).map_or(0, |promise| promise.cost);
    let spare = spare.saturating_sub(promised);
    let smallest = key.view.rule().limits.iter().map(|limit| limit.capacity()).min().unwrap_or(1);
    // An idle node keeps at most its part of a trifle, so that many idle nodes together keep no more than one.
    let nodes = if is_idle { u64::from(key.view.nodes().max(1)) } else { 1 };
    let trifle = smallest / TRIFLE_PART / nodes;
    // The call that hands a single token of a bucket back also tells what was spent of it, which counts as lent until then.
    let tells_much = is_idle && key.has_unreported() && key.has_much();
    let least = if tells_much { 1 } else { trifle.max(2) };
    if spare >= least { spare } else { 0 }
}
