//! When a key of a concurrent limit reports to the store of its own accord, and how many permits it keeps.
//!
//! Part of `concurrent/key.rs`.

use super::{ConcurrentKey, IDLE, Wish};
use crate::core::context::Context;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Due, Instant, Micros};

/// Where others have enough, a node keeps this fraction more permits than are in use, so that the next clients need not wait. More
/// would be missed by others sooner; with fewer, each new client waits for the store.
const SPARE_PART: u64 = 8;

/// A limit of which less than so many tenths were left is under pressure: nodes keep no permits that are not in use. So it is of
/// leased keys, too.
const PRESSED_TENTHS: u64 = 3;

impl ConcurrentKey {
    /// Does what is due by the clock.
    pub(in crate::core) fn handle_timer(&mut self, cx: &mut Context, now: Instant) {
        self.advance(cx, now, Wish::Look);
    }

    /// How many permits the node keeps from now on, if it is time to report that; `None`: it is not.
    pub(super) fn renewal(&self, now: Instant) -> Option<u64> {
        let is_idle = self.away.is_none() && self.idle_at < self.renew_at;
        let kept = if is_idle { self.kept() } else { self.peak.max(self.kept()) };
        let has_some = self.permits.used() > 0 || self.counted(now) > 0;
        (has_some && self.due(now).has_come(now)).then_some(kept)
    }

    /// When the store must be asked, if no call is under way. A key that has no permits, and of which the store counts none, needs nothing.
    fn due(&self, now: Instant) -> Due {
        match self.away {
            _ if self.permits.used() == 0 && self.counted(now) == 0 => Due::at(self.last_check + IDLE.1),
            Some(again) => Due::at(again),
            None => self.idle_at.min(self.renew_at),
        }
    }

    /// Permits that the node would keep: those in use, and an eighth more if others have enough.
    pub(super) fn kept(&self) -> u64 {
        let used = self.permits.used();
        if on(Mutant::PermitsNotHandedBack) {
            return self.lent.max(used);
        }
        if self.is_pressed() { used } else { used + used / SPARE_PART }
    }

    /// Whether less than three tenths were left at the store's last answer.
    fn is_pressed(&self) -> bool {
        self.left() * 10 < self.limit().count * PRESSED_TENTHS
    }

    /// Records which permits are unused, and returns when the key must be looked at next.
    pub(in crate::core) fn rest(&mut self, now: Instant) -> Due {
        let spare = self.counted(now).saturating_sub(self.kept());
        if spare == 0 || self.flight.is_some() {
            self.idle_at = Due::NEVER;
        } else if self.idle_at.is_never() {
            self.idle_at = Due::at(now + if self.is_pressed() { IDLE.0 } else { IDLE.1 });
        }
        let asks = if self.flight.is_some() { Due::NEVER } else { self.due(now) };
        let ends = self.permits.first_end().map_or(asks, |end| asks.or(end));
        let due = self.line.first().map_or(ends, |waiter| ends.or(waiter.deadline));
        due.max(Due::at(now + Micros(1)))
    }

    /// Whether nothing would be lost by forgetting the key.
    pub(in crate::core) fn is_unused(&self) -> bool {
        self.permits.used() == 0 && self.line.is_empty() && self.flight.is_none()
    }

    pub(in crate::core) fn is_done(&self, now: Instant) -> bool {
        self.is_unused() && self.counted(now) == 0 && now >= self.last_check + IDLE.1
    }
}
