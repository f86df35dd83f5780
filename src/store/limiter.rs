//! Decides how many calls may be at one Redis server at a time, so that none waits there for long. Pure: time is an
//! argument.
//!
//! A server executes one call after another. Calls beyond that wait in the server's queue, where they can be neither
//! turned down nor reordered; if that queue is longer than callers are willing to wait, every answer comes too late.
//! So the window (the calls that may be at the server) follows the length of the queue in time, which is what a reply
//! took less the base latency ("the way": network there and back).
//!
//! Of each round of replies the quickest counts, less the longest time in which no reply came. Such a stall, of the
//! server or of this process, which may not have been scheduled, delays many replies at once and says nothing about
//! the queue: while a server works off a queue, replies keep coming. The window shrinks in proportion when the queue
//! is longer than the goal, grows by an eighth while the queue is shorter than half of the goal, and by one call in
//! between (AIMD around the goal; after Vegas, Brakmo and Peterson 1995).
//!
//! Where replies are late and stalls explain all of it, there are two possible causes: the network has become slower,
//! or the server runs only now and then (a quota of processor time). A trial with a larger window tells them apart,
//! because it brings more replies only in the first case. Called by `redis/gate.rs`, and by simulations.

use crate::core::time::{Instant, Micros};

/// Smallest window. A queue that is seen with so few calls at the server was caused by somebody else.
pub const LEAST: u32 = 4;

/// Largest window.
pub const MOST: u32 = 4_096;

/// The window of a fresh connection.
const FIRST: u32 = 64;

/// Replies to calls that left almost alone, after which the quickest of them becomes the base latency.
const SURE: u32 = 8;

/// Rounds in a row without a queue and without a quick reply, after which the window is doubled on trial. If the
/// network has become slower, twice as many calls bring twice as many replies. A server that runs only now and then
/// answers no more calls than before, and the additional ones only wait there.
const CERTAIN: u32 = 4;

/// Replies that a round takes at most.
const ROUND: u32 = 64;

/// Time after the last call that left almost alone, until calls are held back so that one can. Such calls measure the
/// base latency; without them a queue that never empties would be taken for a part of it.
const LOOK: Micros = Micros::from_secs(30);

/// The right to have one call at the server.
#[derive(Debug)]
#[must_use = "a permit that is not given back is lost"]
pub struct Permit {
    left: Instant,
    /// Calls at the server when this one left, itself included.
    among: u32,
}

/// The window of one server.
#[derive(Debug)]
pub struct Limiter {
    /// The queue length, in time, that the window aims at.
    goal: Micros,
    window: u32,
    /// The part of the window that may be used now. It grows by one with each reply, so that a window that was
    /// enlarged, or was held back for a measurement, is not filled by a burst.
    open: u32,
    /// Calls at the server now.
    out: u32,
    /// The server is in doubt until it has answered a call.
    is_doubted: bool,
    /// The window has never been too large, so it doubles instead of growing by an eighth (slow start).
    young: bool,
    /// The base latency: the time of the quickest reply.
    way: Option<Micros>,
    /// The smoothed time of replies.
    usual: Micros,
    begun: Instant,
    round: Quickest,
    /// The last time that a reply came, or that a call left while none was at the server.
    stirred: Instant,
    /// The longest time in this round in which calls were at the server and no reply came.
    stall: Micros,
    /// In this round a call had to wait because the window was full.
    was_full: bool,
    alone: Quickest,
    /// The quickest reply of consecutive rounds that had no queue, but no reply as quick as the base latency either.
    slow: Quickest,
    /// The number of replies in those rounds.
    seen: Rate,
    trial: Option<Trial>,
    /// When the next trial may begin.
    untried: Instant,
    /// When a call that left almost alone was last answered.
    looked: Instant,
}

/// The quickest of several replies.
#[derive(Clone, Copy, Debug, Default)]
struct Quickest {
    took: Micros,
    replies: u32,
}

/// Number of replies since a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    since: Instant,
    replies: u32,
}

impl Rate {
    fn since(now: Instant) -> Self {
        Self { since: now, replies: 0 }
    }

    /// Whether replies come at least a third more often than in `before`, which ended at `end`.
    fn is_higher(&self, now: Instant, before: &Self, end: Instant) -> bool {
        let [before_lasts, lasts] = [end.since(before.since), now.since(self.since)].map(|time| u128::from(time.0));
        3 * u128::from(self.replies) * before_lasts >= 4 * u128::from(before.replies) * lasts
    }
}

/// A trial: does a window twice as large bring more replies?
#[derive(Clone, Copy, Debug)]
struct Trial {
    window: u32,
    /// The base latency if the trial succeeds.
    way: Micros,
    before: Rate,
    begun: Instant,
    /// Rounds of the trial so far. The first one is not measured, because the window is only being filled.
    rounds: u32,
    during: Rate,
}

impl Quickest {
    fn note(&mut self, took: Micros) {
        self.took = if self.replies == 0 { took } else { self.took.min(took) };
        self.replies += 1;
    }
}

impl Limiter {
    /// A limiter for callers who wait for `patience` at most. The goal for the queue is a quarter of that.
    #[must_use]
    pub fn new(patience: Micros) -> Self {
        Self {
            goal: Micros((patience.0 / 4).max(1)),
            window: FIRST,
            open: FIRST,
            out: 0,
            is_doubted: false,
            young: true,
            way: None,
            usual: Micros::ZERO,
            begun: Instant(0),
            round: Quickest::default(),
            stirred: Instant(0),
            stall: Micros::ZERO,
            was_full: false,
            alone: Quickest::default(),
            slow: Quickest::default(),
            seen: Rate::default(),
            trial: None,
            untried: Instant(0),
            looked: Instant(u64::MAX),
        }
    }

    /// Lets a call leave; `None` when it must wait until another one has ended.
    pub fn admit(&mut self, now: Instant) -> Option<Permit> {
        // The first call starts the time until the next measurement of the base latency.
        self.looked = self.looked.min(now);
        if self.is_looking(now) {
            self.open = LEAST;
        }
        if self.is_doubted && self.out > 0 {
            return None;
        }
        if self.out >= self.open {
            self.was_full = true;
            return None;
        }
        Some(self.admit_again(now))
    }

    /// Lets a call leave even if the window is full. It is for calls that a server has answered with a redirect or
    /// NOSCRIPT: later calls about the same key may have left already, and must not overtake this one by more.
    pub fn admit_again(&mut self, now: Instant) -> Permit {
        if self.out == 0 {
            self.stirred = now;
        }
        self.out += 1;
        Permit { left: now, among: self.out }
    }

    /// The call was answered `took` after it left.
    pub fn handle_answer(&mut self, now: Instant, permit: Permit, took: Micros) {
        let Permit { left, among } = permit;
        self.out = self.out.saturating_sub(1);
        self.is_doubted = false;
        self.way = Some(self.way.map_or(took, |way| way.min(took)));
        self.usual = if self.usual == Micros::ZERO { took } else { Micros((self.usual.0 * 7 + took.0) / 8) };
        if among <= LEAST {
            if self.is_looking(left) {
                // After the measurement, let as many calls leave at once as lengthen the queue by half of the goal.
                self.open = self.worth(Micros(self.goal.0 / 2)).clamp(LEAST, self.window);
            } else if self.window == LEAST {
                // Only a smallest window counts here. In a larger one, the other calls at the server may be why this
                // one took long; and a server that runs only now and then is late for single calls, too.
                self.alone.note(took);
            }
            if self.alone.replies == SURE {
                let quickest = std::mem::take(&mut self.alone).took;
                self.lengthen_way(quickest);
            }
            self.looked = now;
        }
        self.open = (self.open + 1).min(self.window);
        self.stall = self.stall.max(now.since(self.stirred));
        self.stirred = now;
        self.seen.replies += 1;
        if let Some(trial) = &mut self.trial {
            trial.during.replies += 1;
        }
        // A call that left before the window changed says nothing about the present window.
        if left >= self.begun {
            self.round.note(took);
            if self.round.replies >= (self.window / 2).clamp(LEAST, ROUND) {
                self.end_round(now, among);
            }
        }
    }

    /// The call ended without an answer.
    pub fn handle_loss(&mut self, permit: Permit) {
        let Permit { .. } = permit;
        self.out = self.out.saturating_sub(1);
    }

    /// A new connection was made: the base latency of the old one says nothing about it. Calls at the server stay
    /// counted. Where it `is_doubted` that the server executes calls, one leaves before all others.
    pub fn handle_connection(&mut self, now: Instant, is_doubted: bool) {
        let out = self.out;
        *self = Self { out, is_doubted, begun: now, looked: now, ..Self::new(Micros(self.goal.0 * 4)) };
    }

    fn is_looking(&self, now: Instant) -> bool {
        now.since(self.looked) >= LOOK
    }

    /// There is no queue and replies are slow all the same, so the base latency has grown.
    fn lengthen_way(&mut self, quickest: Micros) {
        if self.way.is_some_and(|way| quickest > way + Micros(self.goal.0 / 2)) {
            self.way = Some(quickest);
            self.young = true;
        }
    }

    fn end_round(&mut self, now: Instant, among: u32) {
        let way = self.way.unwrap_or_default().0;
        // A time without replies as long as the base latency is normal; only what is beyond it is a stall.
        let stall = std::mem::take(&mut self.stall).0.saturating_sub(way);
        let late = std::mem::take(&mut self.round).took.0.saturating_sub(way);
        let queue = Micros(late.saturating_sub(stall));
        self.begun = now;
        if self.trial.is_some() {
            self.try_on(now, queue);
            return;
        }
        if queue <= self.goal && late > self.goal.0 {
            self.slow.note(Micros(way + late));
        } else {
            (self.slow, self.seen) = (Quickest::default(), Rate::since(now));
        }
        if self.slow.replies == CERTAIN {
            let (way, before) =
                (std::mem::take(&mut self.slow).took, std::mem::replace(&mut self.seen, Rate::since(now)));
            if self.was_full && now >= self.untried {
                self.trial =
                    Some(Trial { window: self.window, way, before, begun: now, rounds: 0, during: Rate::since(now) });
                self.window = (2 * self.window).min(MOST);
                return;
            }
        }
        let was_full = std::mem::take(&mut self.was_full);
        if !was_full {
            // Calls were fewer than the window allows, so the server's queue has emptied in between, and no
            // measurement with calls held back is needed.
            self.looked = now;
        }
        if queue > self.goal {
            if among > LEAST {
                self.young = false;
                // Calls at the server are either on the network or in the queue, in proportion to the time that each
                // of both takes.
                let fitting = u64::from(self.window) * (way + self.goal.0 / 2) / (way + queue.0);
                let fitting = u32::try_from(fitting).unwrap_or(MOST);
                self.window = fitting.clamp(self.window / 2, self.window).max(LEAST);
                self.open = self.open.min(self.window);
            }
        } else if was_full && late <= self.goal.0 {
            // The window does not grow where a stall explains the delay: only a trial shows whether more calls bring
            // more replies.
            let short = late <= self.goal.0 / 2;
            self.young &= short;
            self.window = (self.window + self.step(short)).min(MOST);
        }
    }

    /// Ends a round of a trial.
    fn try_on(&mut self, now: Instant, queue: Micros) {
        let Some(mut trial) = self.trial.take() else { return };
        trial.rounds += 1;
        if trial.rounds == 1 {
            trial.during = Rate::since(now);
        }
        if queue <= self.goal && trial.rounds <= CERTAIN {
            self.trial = Some(trial);
        } else if queue <= self.goal && trial.during.is_higher(now, &trial.before, trial.begun) {
            self.lengthen_way(trial.way);
        } else {
            self.window = trial.window;
            self.open = self.open.min(self.window);
            self.untried = now + LOOK;
        }
        self.seen = Rate::since(now);
    }

    /// By how many calls the window grows. After slow start it grows by no more than lengthen the queue by an eighth
    /// of the goal.
    fn step(&self, short: bool) -> u32 {
        let eighth = self.window / 8;
        match (short, self.young) {
            (true, true) => self.window,
            (true, false) => eighth.min(self.worth(Micros(self.goal.0 / 8))).max(1),
            (false, _) => 1,
        }
    }

    /// About how many calls a saturated server executes in `time`.
    fn worth(&self, time: Micros) -> u32 {
        u32::try_from(u64::from(self.window) * time.0 / self.usual.0.max(1)).unwrap_or(MOST)
    }

    /// Calls that may be at the server.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Calls at the server.
    #[must_use]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// About how long a call that leaves now waits in the server's queue. The estimate is limited to three times the
    /// goal: replies that a stall delayed say nothing about later ones, and some call must leave to show that the
    /// stall is over.
    #[must_use]
    pub fn queue(&self) -> Micros {
        Micros(self.usual.0.saturating_sub(self.way.unwrap_or(self.usual).0)).min(Micros(3 * self.goal.0))
    }

    /// About how long it takes until `waiting` calls have left; rounded up.
    #[must_use]
    pub fn wait(&self, waiting: usize) -> Micros {
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        Micros(self.usual.0.saturating_mul(waiting).div_ceil(u64::from(self.window)))
    }
}

#[cfg(test)]
mod tests;
