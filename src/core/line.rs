//! The checks of a key that wait for the store, in the order in which they came. For leased keys and for keys of
//! concurrent limits.
//!
//! They are served only from the head, so that no check overtakes another: one that wants little does not pass an
//! earlier one that wants much.

use std::collections::VecDeque;

use super::calls::Waiter;
use super::request::MAX_LINE;
use super::time::Instant;

/// The waiters, the first to come first. A key without waiters needs only a pointer.
#[derive(Debug, Default)]
pub(super) struct Line(Option<Box<Waiters>>);

/// Never empty: a line without waiters is `None`. Of most keys one check waits at a time, for which this is one allocation.
#[derive(Debug)]
struct Waiters {
    first: Waiter,
    rest: VecDeque<Waiter>,
}

impl Line {
    /// Nobody waits.
    pub(super) const NEW: Self = Self(None);

    fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.0.iter().flat_map(|waiters| std::iter::once(&waiters.first).chain(&waiters.rest))
    }

    fn waiters_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.0.iter_mut().flat_map(|waiters| std::iter::once(&mut waiters.first).chain(&mut waiters.rest))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether no further check may wait.
    pub(super) fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|waiters| 1 + waiters.rest.len() >= MAX_LINE)
    }

    /// The waiter that came first.
    pub(super) fn first(&self) -> Option<Waiter> {
        self.0.as_ref().map(|waiters| waiters.first)
    }

    /// The waiter that came first, if it has waited for as long as it may.
    pub(super) fn first_late(&self, now: Instant) -> Option<Waiter> {
        self.first().filter(|waiter| waiter.deadline <= now)
    }

    /// The tokens that all waiters want together.
    pub(super) fn wanted(&self) -> u64 {
        self.waiters().map(|waiter| waiter.cost).fold(0, u64::saturating_add)
    }

    /// The tokens that the cheapest waiter lacks when `held` tokens are here. A smaller grant would serve nobody.
    pub(super) fn least_missing(&self, held: u64) -> Option<u64> {
        let least = |waiter: &Waiter| waiter.peer.map_or(waiter.cost, |peer| peer.least.get());
        self.waiters().map(|waiter| least(waiter).saturating_sub(held)).min()
    }

    /// Adds a waiter in the order of deadlines, which is the order of arrival at the daemon. It may differ from the
    /// order of arrival here, because a check of several keys, or one that was read late, reached the daemon earlier.
    pub(super) fn join(&mut self, waiter: Waiter) {
        let Some(waiters) = &mut self.0 else {
            self.0 = Some(Box::new(Waiters { first: waiter, rest: VecDeque::new() }));
            return;
        };
        if waiter.deadline < waiters.first.deadline {
            return waiters.rest.push_front(std::mem::replace(&mut waiters.first, waiter));
        }
        let place = waiters.rest.iter().rposition(|before| before.deadline <= waiter.deadline);
        waiters.rest.insert(place.map_or(0, |place| place + 1), waiter);
    }

    /// Removes the waiter that came first, because it was answered.
    pub(super) fn take_first(&mut self) -> Option<Waiter> {
        let waiters = self.0.as_mut()?;
        match waiters.rest.pop_front() {
            Some(next) => Some(std::mem::replace(&mut waiters.first, next)),
            None => self.0.take().map(|waiters| waiters.first),
        }
    }

    /// Counts answers of the store for all waiters.
    pub(super) fn note_answers(&mut self, answers: u8) {
        for waiter in self.waiters_mut() {
            waiter.answers = waiter.answers.saturating_add(answers);
        }
    }

    /// Forgets the store's answers, which no longer say anything about what the waiters want.
    pub(super) fn forget_answers(&mut self) {
        for waiter in self.waiters_mut() {
            waiter.answers = 0;
        }
    }

    /// Records that a peer was asked for tokens for all waiters.
    pub(super) fn note_ask(&mut self) {
        for waiter in self.waiters_mut() {
            waiter.asks = waiter.asks.saturating_add(1);
        }
    }

    /// Takes that back: the peer's answer says nothing about what the waiters want.
    pub(super) fn forget_ask(&mut self) {
        for waiter in self.waiters_mut() {
            waiter.asks = waiter.asks.saturating_sub(1);
        }
    }

    /// Whether one of the waiters is a peer.
    pub(super) fn has_peers(&self) -> bool {
        self.waiters().any(|waiter| waiter.peer.is_some())
    }

    /// A bug on purpose: nobody who waits is ever answered.
    pub(super) fn drop_all(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::Ticket;

    #[test]
    fn a_line_is_full_with_as_many_as_may_wait() {
        let mut line = Line::default();
        for ticket in 0..MAX_LINE as u64 {
            assert!(!line.is_full());
            line.join(Waiter::new(Ticket(ticket), 1, Instant(ticket)));
        }
        assert!(line.is_full());
        line.take_first();
        assert!(!line.is_full());
    }

    #[test]
    fn who_came_to_the_daemon_before_stands_before() {
        let mut line = Line::default();
        for (ticket, deadline) in [(1, 50), (2, 60), (3, 55), (4, 60), (5, 10)] {
            line.join(Waiter::new(Ticket(ticket), 1, Instant(deadline)));
        }
        assert_eq!(line.waiters().map(|waiter| waiter.ticket.0).collect::<Vec<_>>(), [5, 1, 3, 2, 4]);
        let served: Vec<_> = std::iter::from_fn(|| line.take_first()).map(|waiter| waiter.ticket.0).collect();
        assert_eq!(served, [5, 1, 3, 2, 4]);
        assert!(line.is_empty() && line.first().is_none());
    }
}
