//! For how long a key is kept: its timer, the node that leaves, and the key that makes room for another.

use super::advance::advance;
use super::key::LeasedKey;
use super::timers::{has_to_void, keep_until};
use super::wish::Wish;
use crate::core::context::Context;
use crate::core::time::Instant;

/// Does what is due by the clock. False when the key can be forgotten.
pub(in crate::core) fn handle_timer(key: &mut LeasedKey, cx: &mut Context, now: Instant) -> bool {
    advance(key, cx, now, Wish::Look);
    is_of_use(key, now)
}

/// Whether something would be lost by forgetting the key.
fn is_of_use(key: &LeasedKey, now: Instant) -> bool {
    let is_busy = !key.is_quiet() || has_to_void(key, now) || key.holdings.lease().held() > 0;
    is_busy || !keep_until(key, now).has_come(now) || key.is_indebted(now) || key.is_entitled(now)
}

/// The node leaves, so it returns everything.
pub(in crate::core) fn give_all_back(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    advance(key, cx, now, Wish::Leave);
}

/// The key is about to be forgotten: returns what it holds, and reports what was spent. Nobody takes the answers.
pub(in crate::core) fn part_with(key: &mut LeasedKey, cx: &mut Context, now: Instant) {
    advance(key, cx, now, Wish::MakeRoom);
    key.rare.calls.forget_errands();
}

/// The key was forgotten; what it held is lost until it lapses.
pub(in crate::core) fn note_forgotten(key: &mut LeasedKey, cx: &mut Context) {
    cx.policy_stats(key.policy()).expired += key.all_held();
    cx.stats.evicted += 1;
    key.recount_away(cx, false);
}
