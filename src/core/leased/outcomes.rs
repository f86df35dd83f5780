//! An answer of the store, or its absence, comes back to a key.

use super::errands::handle_errand;
use super::key::LeasedKey;
use super::refill::{handle_acquire, serve_line};
use super::timers::set_timer;
use super::upkeep::refresh;
use crate::core::call::{Call, Grant, Op, StoreError};
use crate::core::context::Context;
use crate::core::decision::Source;
use crate::core::time::Instant;

/// Takes the outcome of a call that this key has sent.
pub(in crate::core) fn handle_outcome(
    key: &mut LeasedKey,
    cx: &mut Context,
    now: Instant,
    call: &Call,
    outcome: Result<Grant, StoreError>,
) {
    let was_away = key.phase.is_away();
    refresh(key, cx, now);
    if let Op::Acquire(_) = call.op {
        handle_acquire(key, cx, now, call, outcome);
    } else if handle_errand(key, cx, now, call, outcome) {
        if !key.line.is_empty() && key.flight.is_none() && !key.has_account_under_way() {
            serve_line(key, cx, now, Source::Store);
        }
        set_timer(key, cx, now);
    }
    if cx.fleet.is_none() {
        cx.nodes = cx.nodes.max(key.nodes);
    }
    cx.note_degraded(was_away, key.phase.is_away());
}
