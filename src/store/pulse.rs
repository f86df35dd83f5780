//! When a server counts as silent: nothing came from it for a second while something was awaited. Pure.
//!
//! A slow reply is a sign of life, so what counts is not how long one call takes but whether anything at
//! all comes. The second is counted in ticks, and each counts for no more than its own length: where a tick
//! comes late, this node was not run meanwhile, and what it did not read then says nothing about the
//! server. Knows no connection and no clock. Called by `redis/heart.rs`, and by simulations.

use crate::core::time::{Instant, Micros};

/// Between two ticks.
pub const TICK: Micros = Micros::from_millis(50);

/// So long a server may send nothing while something is awaited of it.
pub const SILENCE: Micros = Micros::from_secs(1);

/// A timer that rings later than this was not late by chance: this node was not run.
pub const LATE: Micros = Micros::from_millis(5);

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing is awaited: no tick is needed before something is.
    Idle,
    /// Something is awaited, and the time to give up has not come.
    Alive,
    /// Nothing has come for too long.
    Silent,
}

/// How long nothing has come.
#[derive(Debug)]
pub struct Pulse {
    patience: Micros,
    awaited: u32,
    /// Something came, or the first of what is awaited left, since the last tick.
    stirred: bool,
    silence: Micros,
    ticked: Instant,
    /// Ticks come.
    ticking: bool,
}

impl Pulse {
    /// Of somebody who may be silent for as long as `patience`.
    #[must_use]
    pub fn new(patience: Micros) -> Self {
        let start = Instant(0);
        Self { patience, awaited: 0, stirred: false, silence: Micros::ZERO, ticked: start, ticking: false }
    }

    /// Something is awaited from now on. True when ticks must begin: the first after [`TICK`].
    pub fn handle_departure(&mut self, now: Instant) -> bool {
        self.stirred |= self.awaited == 0;
        self.awaited += 1;
        let begins = !self.ticking;
        if begins {
            (self.ticking, self.ticked) = (true, now);
        }
        begins
    }

    /// Something came.
    pub fn handle_sign(&mut self) {
        self.stirred = true;
    }

    /// Something is no longer awaited, whether or not it came.
    pub fn handle_end(&mut self) {
        self.awaited = self.awaited.saturating_sub(1);
    }

    /// Judges the time since the last tick. After [`Beat::Idle`] ticks end until something is awaited again.
    pub fn handle_tick(&mut self, now: Instant) -> Beat {
        // What is beyond a tick's own length, this node was not run: it says nothing about the server.
        let passed = now.since(self.ticked).min(TICK);
        self.ticked = now;
        if self.awaited == 0 && !self.stirred {
            (self.ticking, self.silence) = (false, Micros::ZERO);
            return Beat::Idle;
        }
        if std::mem::take(&mut self.stirred) || self.awaited == 0 {
            self.silence = Micros::ZERO;
            return Beat::Alive;
        }
        self.silence = self.silence + passed;
        if self.silence < self.patience { Beat::Alive } else { Beat::Silent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(10_000_000);

    /// Ticks until something else than `Alive` is found: what, and when.
    fn tick(pulse: &mut Pulse, from: Instant) -> (Beat, Micros) {
        let mut now = from;
        loop {
            now = now + TICK;
            let beat = pulse.handle_tick(now);
            if beat != Beat::Alive {
                return (beat, now.since(from));
            }
        }
    }

    #[test]
    fn who_says_nothing_for_a_second_is_silent() {
        let mut pulse = Pulse::new(SILENCE);
        assert!(pulse.handle_departure(NOW));
        let (beat, after) = tick(&mut pulse, NOW);
        assert_eq!(beat, Beat::Silent);
        assert!(after >= SILENCE && after <= SILENCE + TICK, "{after:?}");
    }

    #[test]
    fn any_reply_is_a_sign_of_life() {
        let mut pulse = Pulse::new(SILENCE);
        pulse.handle_departure(NOW);
        let mut now = NOW;
        for _ in 0..10 {
            for _ in 0..19 {
                now = now + TICK;
                assert_eq!(pulse.handle_tick(now), Beat::Alive);
            }
            pulse.handle_sign();
        }
    }

    #[test]
    fn who_is_asked_nothing_is_not_silent() {
        let mut pulse = Pulse::new(SILENCE);
        pulse.handle_departure(NOW);
        pulse.handle_sign();
        pulse.handle_end();
        let (beat, _) = tick(&mut pulse, NOW);
        assert_eq!(beat, Beat::Idle);
        // A long pause without ticks counts for nothing.
        let later = NOW + Micros::from_secs(60);
        assert!(pulse.handle_departure(later), "ticks begin anew");
        let (beat, after) = tick(&mut pulse, later);
        assert_eq!(beat, Beat::Silent);
        assert!(after >= SILENCE, "{after:?}");
    }

    #[test]
    fn the_second_counts_from_the_first_that_is_awaited() {
        let mut pulse = Pulse::new(SILENCE);
        pulse.handle_departure(NOW);
        pulse.handle_sign();
        pulse.handle_end();
        assert_eq!(pulse.handle_tick(NOW + TICK), Beat::Alive);
        let asked = NOW + TICK + Micros(1);
        pulse.handle_departure(asked);
        let (_, after) = tick(&mut pulse, NOW + TICK);
        assert!(after >= SILENCE, "{after:?}");
    }

    #[test]
    fn a_node_that_was_not_run_declares_nobody_silent() {
        let mut pulse = Pulse::new(SILENCE);
        pulse.handle_departure(NOW);
        let mut now = NOW + TICK;
        assert_eq!(pulse.handle_tick(now), Beat::Alive);
        now = now + Micros::from_secs(30);
        assert_eq!(pulse.handle_tick(now), Beat::Alive, "one late tick");
        // Run for a moment in every tenth of a second: twenty ticks are twenty chances to read.
        for _ in 0..18 {
            now = now + Micros::from_millis(100);
            assert_eq!(pulse.handle_tick(now), Beat::Alive);
        }
    }
}
