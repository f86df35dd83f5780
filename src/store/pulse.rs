//! Decides when a server counts as silent: nothing came from it for a second while a reply was awaited. Pure.
//!
//! A slow reply is still a sign of life, so the second does not limit how long one call may take; any bytes from the
//! server restart it. The second is counted in ticks, and a late tick counts for no more than its own length: where a
//! tick comes late, this process did not run meanwhile, and what it did not read then says nothing about the server.
//! Knows no connection and no clock. Called by `redis/heart.rs`, and by simulations.

use crate::core::time::{Instant, Micros};

/// Time between two ticks.
pub const TICK: Micros = Micros::from_millis(50);

/// How long a server may send nothing while a reply is awaited.
pub const SILENCE: Micros = Micros::from_secs(1);

/// How late a timer may fire in normal operation. When one fires later than this, the process was suspended or
/// starved of processor time.
pub const LATE: Micros = Micros::from_millis(5);

/// What a tick found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// No reply is awaited. No tick is needed until one is.
    Idle,
    /// A reply is awaited, and the time to give up has not come.
    Alive,
    /// Nothing has come for too long.
    Silent,
}

/// Measures how long nothing has come from a server, or over one of its connections.
#[derive(Debug)]
pub struct Pulse {
    patience: Micros,
    awaited: u32,
    /// Since the last tick bytes came, or the first awaited call left.
    stirred: bool,
    silence: Micros,
    ticked: Instant,
    /// The owner calls [`Self::handle_tick`] regularly.
    ticking: bool,
}

impl Pulse {
    /// A pulse that reports silence after `patience`.
    #[must_use]
    pub fn new(patience: Micros) -> Self {
        let start = Instant(0);
        Self { patience, awaited: 0, stirred: false, silence: Micros::ZERO, ticked: start, ticking: false }
    }

    /// One more reply is awaited. Returns true when ticks must begin; the first is due after [`TICK`].
    pub fn handle_departure(&mut self, now: Instant) -> bool {
        self.stirred |= self.awaited == 0;
        self.awaited += 1;
        let begins = !self.ticking;
        if begins {
            (self.ticking, self.ticked) = (true, now);
        }
        begins
    }

    /// Bytes came from the server.
    pub fn handle_sign(&mut self) {
        self.stirred = true;
    }

    /// One reply fewer is awaited, whether or not it came.
    pub fn handle_end(&mut self) {
        self.awaited = self.awaited.saturating_sub(1);
    }

    /// Judges the time since the last tick. After [`Beat::Idle`] no ticks are needed until a reply is awaited again.
    pub fn handle_tick(&mut self, now: Instant) -> Beat {
        // Beyond one tick's length this process did not run, which says nothing about the server.
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

    /// Ticks until the pulse reports something else than `Alive`, and returns the report and its time.
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
        // A long pause without ticks does not count as silence.
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
        // The process runs for a moment in every tenth of a second. Each of the twenty ticks is a chance to read a
        // reply.
        for _ in 0..18 {
            now = now + Micros::from_millis(100);
            assert_eq!(pulse.handle_tick(now), Beat::Alive);
        }
    }
}
