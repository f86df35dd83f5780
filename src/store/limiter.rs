//! How many calls may be at one Redis server at a time, so that none waits there for long. Pure: time comes in.
//!
//! A server takes one call after another. What is sent beyond that waits in its queue, where it can be
//! neither turned down nor left out, and a queue longer than the patience of those who wait serves nobody
//! in time. So the window (calls at the server) follows how long that queue is in time: what a reply took,
//! less the way there and back. Of each round the quickest reply counts, less the longest time in which none
//! came: a stall, of the server or of this node, which may not have been run, delays many replies at once, but
//! while a server works off a queue replies keep coming. The window shrinks in proportion when the queue is longer than the
//! goal, grows by an eighth while it is shorter than half of it, and by one call in between (AIMD around
//! the goal; after Vegas, Brakmo and Peterson 1995). Where replies are late and a stall explains all of it, either the
//! way has become longer or the server is run only now and then (a quota of processor time): a larger window then shows
//! on trial whether it brings more replies. Called by `redis/gate.rs`, and by simulations.

use crate::core::time::{Instant, Micros};

/// Fewest calls at a server. A queue that is seen with so few is not of this node's making.
pub const LEAST: u32 = 4;

/// Most calls at a server.
pub const MOST: u32 = 4_096;

/// The window of a fresh connection.
const FIRST: u32 = 64;

/// Replies to calls that left almost alone, after which the way is what the quickest of them took.
const SURE: u32 = 8;

/// Rounds in a row without a queue and without a quick reply, after which the window is doubled on trial: where the way
/// has become longer, twice as many calls bring twice as many replies. A server that is run only now and then answers as
/// many as before, and the others stand before it for longer.
const CERTAIN: u32 = 4;

/// Replies that a round takes at most.
const ROUND: u32 = 64;

/// So long after a call left almost alone calls wait until one can: a queue that is always there looks like
/// a part of the way.
const LOOK: Micros = Micros::from_secs(30);

/// The right to have one call at the server.
#[derive(Debug)]
#[must_use = "a permit that is not given back is lost"]
pub struct Permit {
    left: Instant,
    /// Calls at the server with this one.
    among: u32,
}

/// The window of one server.
#[derive(Debug)]
pub struct Limiter {
    /// How long the queue may be.
    goal: Micros,
    window: u32,
    /// The part of the window that is open: each reply opens one place more, so that a window that has grown,
    /// or was closed for a look, is not filled by a burst.
    open: u32,
    /// Calls at the server now.
    out: u32,
    /// The window has never been too large: it may double.
    young: bool,
    /// What the quickest reply took.
    way: Option<Micros>,
    /// What replies take, smoothed.
    usual: Micros,
    begun: Instant,
    round: Quickest,
    /// When the last reply came, or a call left while none was out.
    stirred: Instant,
    /// The longest time in this round in which calls were out and no reply came.
    stall: Micros,
    /// Somebody found the window full in this round.
    was_full: bool,
    alone: Quickest,
    /// Of rounds in a row that had no queue, and no reply that the way explains.
    slow: Quickest,
    /// All replies of those rounds.
    seen: Rate,
    trial: Option<Trial>,
    /// No trial before this.
    untried: Instant,
    /// When a call that left almost alone was answered last.
    looked: Instant,
}

/// The quickest of some replies.
#[derive(Clone, Copy, Debug, Default)]
struct Quickest {
    took: Micros,
    replies: u32,
}

/// Replies since a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    since: Instant,
    replies: u32,
}

impl Rate {
    fn since(now: Instant) -> Self {
        Self { since: now, replies: 0 }
    }

    /// Whether replies come a third more often than in `before` at least, which ended at `end`.
    fn is_higher(&self, now: Instant, before: &Self, end: Instant) -> bool {
        let [before_lasts, lasts] = [end.since(before.since), now.since(self.since)].map(|time| u128::from(time.0));
        3 * u128::from(self.replies) * before_lasts >= 4 * u128::from(before.replies) * lasts
    }
}

/// Whether a window twice as large brings more replies.
#[derive(Clone, Copy, Debug)]
struct Trial {
    window: u32,
    /// What the way would be.
    way: Micros,
    before: Rate,
    begun: Instant,
    /// Rounds of it; in the first one the window opens.
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
    /// Of calls whose senders wait for `patience` at most: the queue is kept at about a quarter of it.
    #[must_use]
    pub fn new(patience: Micros) -> Self {
        Self {
            goal: Micros((patience.0 / 4).max(1)),
            window: FIRST,
            open: FIRST,
            out: 0,
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

    /// Lets a call leave; `None`: it must wait until another has ended.
    pub fn admit(&mut self, now: Instant) -> Option<Permit> {
        // The first call ever begins the time until the next look.
        self.looked = self.looked.min(now);
        if self.is_looking(now) {
            self.open = LEAST;
        }
        if self.out >= self.open {
            self.was_full = true;
            return None;
        }
        Some(self.admit_again(now))
    }

    /// Lets a call leave whatever the window: a server that it was at has sent it here, and calls that came after
    /// it may have left.
    pub fn admit_again(&mut self, now: Instant) -> Permit {
        if self.out == 0 {
            self.stirred = now;
        }
        self.out += 1;
        Permit { left: now, among: self.out }
    }

    /// The call was answered; `took` is the time from its leaving to its reply.
    pub fn handle_answer(&mut self, now: Instant, permit: Permit, took: Micros) {
        let Permit { left, among } = permit;
        self.out = self.out.saturating_sub(1);
        self.way = Some(self.way.map_or(took, |way| way.min(took)));
        self.usual = if self.usual == Micros::ZERO { took } else { Micros((self.usual.0 * 7 + took.0) / 8) };
        if among <= LEAST {
            if self.is_looking(left) {
                // As many at once as lengthen the queue by half the goal.
                self.open = self.worth(Micros(self.goal.0 / 2)).clamp(LEAST, self.window);
            } else if self.window == LEAST {
                // In a look others' calls may be what took long; and a server that is run only now and then is late
                // for single calls, too, but its window stays larger.
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
        // What left before the window was changed says nothing about the window.
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

    /// Another connection stands: what was learnt of the old one's way is void. Calls that are out stay so.
    pub fn handle_connection(&mut self, now: Instant) {
        let out = self.out;
        *self = Self { out, begun: now, looked: now, ..Self::new(Micros(self.goal.0 * 4)) };
    }

    fn is_looking(&self, now: Instant) -> bool {
        now.since(self.looked) >= LOOK
    }

    /// No queue, and slow all the same: the way has become longer.
    fn lengthen_way(&mut self, quickest: Micros) {
        if self.way.is_some_and(|way| quickest > way + Micros(self.goal.0 / 2)) {
            self.way = Some(quickest);
            self.young = true;
        }
    }

    fn end_round(&mut self, now: Instant, among: u32) {
        let way = self.way.unwrap_or_default().0;
        // A time as long as the way may pass without a reply, and nothing has stalled.
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
            // Whoever leaves places empty leaves no queue behind that never ends.
            self.looked = now;
        }
        if queue > self.goal {
            if among > LEAST {
                self.young = false;
                // What is out is on its way or in the queue, in proportion to the time that each takes.
                let fitting = u64::from(self.window) * (way + self.goal.0 / 2) / (way + queue.0);
                let fitting = u32::try_from(fitting).unwrap_or(MOST);
                self.window = fitting.clamp(self.window / 2, self.window).max(LEAST);
                self.open = self.open.min(self.window);
            }
        } else if was_full && late <= self.goal.0 {
            // Where only a stall explains what was late, nothing but a trial shows whether more calls bring more replies.
            let short = late <= self.goal.0 / 2;
            self.young &= short;
            self.window = (self.window + self.step(short)).min(MOST);
        }
    }

    /// A round of a trial has ended.
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

    /// How many calls more. Past the first growth no more than lengthen the queue by an eighth of the goal.
    fn step(&self, short: bool) -> u32 {
        let eighth = self.window / 8;
        match (short, self.young) {
            (true, true) => self.window,
            (true, false) => eighth.min(self.worth(Micros(self.goal.0 / 8))).max(1),
            (false, _) => 1,
        }
    }

    /// Calls that a saturated server takes in `time`, about.
    fn worth(&self, time: Micros) -> u32 {
        u32::try_from(u64::from(self.window) * time.0 / self.usual.0.max(1)).unwrap_or(MOST)
    }

    /// Calls that may be at the server.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.window
    }

    /// Calls that are there.
    #[must_use]
    pub fn out(&self) -> u32 {
        self.out
    }

    /// How long a call that leaves now stands in the server's queue, about: no longer than three times the goal, because
    /// replies that a stall delayed say nothing about the next, and some call must leave to show that it is over.
    #[must_use]
    pub fn queue(&self) -> Micros {
        Micros(self.usual.0.saturating_sub(self.way.unwrap_or(self.usual).0)).min(Micros(3 * self.goal.0))
    }

    /// After about how long `waiting` calls have left; rounded up.
    #[must_use]
    pub fn wait(&self, waiting: usize) -> Micros {
        let waiting = u64::try_from(waiting).unwrap_or(u64::MAX);
        Micros(self.usual.0.saturating_mul(waiting).div_ceil(u64::from(self.window)))
    }
}

#[cfg(test)]
mod tests;
