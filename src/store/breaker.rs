//! Decides when to stop asking one Redis server, and when to try again. Pure: time is an argument, nothing is read.
//!
//! A lost connection, a refusal or silence (defined in `pulse.rs`) opens the breaker at once. Where calls have
//! deadlines, [`SILENCES`] late calls in a row open it too. While it is open every call fails without leaving the
//! process, and the server's monitor probes in the background. After silence or a refusal one trial call goes before
//! the others, because a server that answers PING may still be unable to run scripts. Other calls should wait for its
//! outcome: `redis/gate.rs` lets them wait, and a call that came here before the outcome would fail. Called by
//! `redis/master.rs` and `redis/monitor.rs`, and by simulations.

use crate::core::time::{Instant, Micros};

/// Late calls in a row that open the breaker, so that a single slow call does not.
pub const SILENCES: u32 = 3;

/// Wait between probes. It is doubled once `PATIENCE` of them have failed, so that a server that is away for long is
/// not dialled four times a second by every node.
pub const PAUSE: Micros = Micros::from_millis(250);

/// Failed probes before the wait between them doubles.
const PATIENCE: u32 = 8;

/// Whether calls pass, as metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// One trial call decides.
    HalfOpen,
    /// Calls fail at once.
    Open,
}

/// What went wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is gone.
    Lost,
    /// Nothing came from the server for too long while something was awaited.
    Silent,
    /// This call was not answered by its own deadline, whatever else came. The daemon's calls have none.
    Late,
    /// The server said that it cannot serve now.
    Refused,
}

/// The right to make one call. It names the connection, so that a late fault of an earlier connection is not taken
/// for a fault of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The connection, counted from 1.
    pub generation: u64,
    trial: bool,
}

/// The breaker of one Redis server.
#[derive(Debug)]
pub struct Breaker {
    state: BreakerState,
    since: Instant,
    generation: u64,
    silences: u32,
    /// A call may still fail although the server answered a probe: a trial call must go first.
    doubtful: bool,
    trial_out: bool,
    probe_at: Instant,
    probes: u32,
}

impl Breaker {
    /// A breaker that is open until the first connection is made.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            state: BreakerState::Open,
            since: now,
            generation: 0,
            silences: 0,
            doubtful: false,
            trial_out: false,
            probe_at: now,
            probes: 0,
        }
    }

    /// Whether calls pass.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// The time since which the server has not answered; `None` while it answers.
    pub fn away_since(&self) -> Option<Instant> {
        (self.state != BreakerState::Closed).then_some(self.since)
    }

    /// When the next probe is due; `None` while none is needed.
    pub fn probe_at(&self) -> Option<Instant> {
        (self.state == BreakerState::Open).then_some(self.probe_at)
    }

    /// Whether a trial call must go first once a probe is answered.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Lets a call pass, or says since when the server is away.
    pub fn admit(&mut self) -> Result<Pass, Instant> {
        match self.state {
            BreakerState::Closed => Ok(Pass { generation: self.generation, trial: false }),
            BreakerState::HalfOpen if !self.trial_out => {
                self.trial_out = true;
                Ok(Pass { generation: self.generation, trial: true })
            }
            BreakerState::HalfOpen | BreakerState::Open => Err(self.since),
        }
    }

    /// The server answered the call with anything but a refusal.
    pub fn handle_answer(&mut self, pass: Pass) {
        if pass.generation != self.generation {
            return;
        }
        self.silences = 0;
        if pass.trial && self.state == BreakerState::HalfOpen {
            self.state = BreakerState::Closed;
            self.doubtful = false;
        }
    }

    /// The call failed. Returns true when that opened the breaker.
    pub fn handle_fault(&mut self, now: Instant, pass: Pass, fault: Fault) -> bool {
        // A call of an earlier connection says nothing about the present one.
        if pass.generation != self.generation || self.state == BreakerState::Open {
            return false;
        }
        if fault == Fault::Late && !pass.trial {
            self.silences += 1;
            if self.silences < SILENCES {
                return false;
            }
        }
        self.open(now, fault);
        true
    }

    /// The caller gave the call up, which says nothing about the server. If it was the trial call, another call may
    /// be the trial.
    pub fn handle_abandoned(&mut self, pass: Pass) {
        if pass.trial && pass.generation == self.generation {
            self.trial_out = false;
        }
    }

    fn open(&mut self, now: Instant, fault: Fault) {
        if self.state == BreakerState::Closed {
            self.since = now;
        }
        self.state = BreakerState::Open;
        self.doubtful |= fault != Fault::Lost;
        self.probes = 0;
        self.probe_at = if fault == Fault::Lost { now } else { now + PAUSE };
    }

    /// A probe over a new connection was answered: calls use that connection from now on.
    pub fn handle_probe(&mut self) {
        self.generation += 1;
        self.silences = 0;
        self.trial_out = false;
        self.state = if self.doubtful { BreakerState::HalfOpen } else { BreakerState::Closed };
    }

    /// A probe failed. `jitter` is added to the wait, so that the nodes of a fleet do not all probe at the same
    /// moment.
    pub fn handle_failed_probe(&mut self, now: Instant, jitter: Micros) {
        self.probes += 1;
        let pause = if self.probes > PATIENCE { Micros(PAUSE.0 * 2) } else { PAUSE };
        self.probe_at = now + pause + jitter;
    }

    /// The generation that the next connection will have.
    pub fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// A pass for a fault that concerns connection `generation` as a whole, and no single call.
    pub fn on_behalf_of(generation: u64) -> Pass {
        Pass { generation, trial: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant(10_000_000);

    fn closed() -> Breaker {
        let mut breaker = Breaker::new(NOW);
        breaker.handle_probe();
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker
    }

    #[test]
    fn nothing_passes_before_the_first_connection() {
        assert_eq!(Breaker::new(NOW).admit(), Err(NOW));
    }

    #[test]
    fn opens_after_three_late_calls_in_a_row_only() {
        let mut breaker = closed();
        for fault in 0..2 {
            let pass = breaker.admit().expect("closed");
            assert!(!breaker.handle_fault(NOW, pass, Fault::Late), "call {fault}");
        }
        let pass = breaker.admit().expect("closed");
        breaker.handle_answer(pass);
        for _ in 0..2 {
            assert!(!breaker.handle_fault(NOW, pass, Fault::Late));
        }
        assert!(breaker.handle_fault(NOW, pass, Fault::Late));
        assert_eq!(breaker.admit(), Err(NOW));
        assert_eq!(breaker.probe_at(), Some(NOW + PAUSE));
    }

    #[test]
    fn silence_opens_at_once_and_needs_a_trial() {
        let mut breaker = closed();
        assert!(breaker.handle_fault(NOW, Breaker::on_behalf_of(1), Fault::Silent));
        assert_eq!(breaker.probe_at(), Some(NOW + PAUSE));
        breaker.handle_probe();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
    }

    #[test]
    fn abandoned_trial_makes_room_for_another() {
        let mut breaker = closed();
        breaker.handle_fault(NOW, Breaker::on_behalf_of(1), Fault::Silent);
        breaker.handle_probe();
        let trial = breaker.admit().expect("the trial");
        breaker.handle_abandoned(trial);
        let other = breaker.admit().expect("another trial");
        breaker.handle_answer(other);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn one_refusal_opens_and_one_trial_closes() {
        let mut breaker = closed();
        let pass = breaker.admit().expect("closed");
        assert!(breaker.handle_fault(NOW, pass, Fault::Refused));
        breaker.handle_probe();
        let trial = breaker.admit().expect("the trial");
        assert_eq!(breaker.admit(), Err(NOW), "only one trial");
        breaker.handle_answer(trial);
        assert!(breaker.admit().is_ok());
    }

    #[test]
    fn failed_trial_keeps_the_first_since() {
        let mut breaker = closed();
        let pass = breaker.admit().expect("closed");
        breaker.handle_fault(NOW, pass, Fault::Refused);
        breaker.handle_probe();
        let trial = breaker.admit().expect("the trial");
        assert!(breaker.handle_fault(NOW + PAUSE, trial, Fault::Silent));
        assert_eq!(breaker.away_since(), Some(NOW));
    }

    #[test]
    fn lost_connection_is_probed_at_once_and_needs_no_trial() {
        let mut breaker = closed();
        let pass = breaker.admit().expect("closed");
        assert!(breaker.handle_fault(NOW, pass, Fault::Lost));
        assert_eq!(breaker.probe_at(), Some(NOW));
        breaker.handle_probe();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    #[test]
    fn faults_of_an_earlier_connection_do_not_count() {
        let mut breaker = closed();
        let old = breaker.admit().expect("closed");
        breaker.handle_fault(NOW, old, Fault::Lost);
        breaker.handle_probe();
        assert!(!breaker.handle_fault(NOW, old, Fault::Lost));
        assert!(breaker.admit().is_ok());
    }
}
