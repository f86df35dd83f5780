//! When a key of a concurrent limit reports to the store of its own accord, and how many permits it keeps.
//!
//! Part of `concurrent/key.rs`.

use super::{ConcurrentKey, IDLE, RENEW, Wish};
use crate::core::context::Context;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Due, Instant, Micros};

/// Where others have enough, a node keeps this fraction more permits than are in use, so that the next clients need not wait. More
/// would be missed by others sooner; with fewer, each new client waits for the store.
const SPARE_PART: u64 = 8;

/// Where a node goes on with what it was lent while the store is away, it keeps so many times the permits that were in use at most. With fewer,
/// more is denied in an outage that others do not need; with more, others are denied while all is well, for as long as it takes this node to
/// hear that few are left.
const ENTITLED_TIMES: u64 = 2;

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
        (self.has_to_report(now) && self.due(now).has_come(now)).then_some(kept)
    }

    /// Whether the store counts some permits as this node's, or may do so, or should.
    fn has_to_report(&self, now: Instant) -> bool {
        self.permits.used() > 0 || self.counted(now) > 0 || self.is_in_doubt(now)
    }

    /// When the store must be asked, if no call is under way. A key that has no permits, and of which the store counts none, needs nothing.
    fn due(&self, now: Instant) -> Due {
        match self.away {
            _ if !self.has_to_report(now) => Due::at(self.last_check + IDLE.1),
            // A lease that is long is kept through a long outage. Of a key that nobody uses no more calls are made than without one.
            Some(again) if self.rule.is_entitled_concurrent() && self.permits.used() == 0 => Due::at(again + RENEW),
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
        if self.rule.is_entitled_concurrent() {
            return used + self.spare(used);
        }
        if self.is_pressed() { used } else { used + used / SPARE_PART }
    }

    /// Unused permits that a node keeps which may give out no others while the store is away: as many as its clients had at most since its
    /// last report, and as many again, as far as three tenths of the limit are left to others.
    fn spare(&self, used: u64) -> u64 {
        let wanted = ENTITLED_TIMES * self.peak.max(used) - used;
        let for_others = (self.limit().count * PRESSED_TENTHS).div_ceil(10);
        let free = self.lent.saturating_sub(used) + self.left();
        wanted.min(free.saturating_sub(for_others))
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
        self.is_unused() && !self.has_to_report(now) && now >= self.last_check + IDLE.1
    }
}
