//! The gate before one server: which letter may leave now, and who waits in which line.
//!
//! The limiter says how many are at the server at a time; the others wait here, where users and their connections
//! are served in turn (`store/turns.rs`), and where they can still be turned down: whoever could not be answered
//! in time any more is told that the server is busy, and has not left. Errands (what clients ask beside checks) may
//! take half of the window and have a line of their own, so that one client's errands do not stand before everybody's
//! checks. A key that has a letter in that line lines up there with all of them: letters of one key leave in the order in
//! which they came. Knows neither connection nor breaker. Called by `master.rs`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::failure::Failure;
use super::wire::Answer;
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::limiter::{self, Limiter};
use crate::store::pulse;
use crate::store::turns::{Asker, Secret, Turns};

/// Most letters in one line of one who is alone there.
const ALONE: usize = 4_096;

/// Most letters in one line, with the room that is kept for those who have none in it: see [`Turns::has_room`].
const LINE: usize = 4 * ALONE;

/// Letters that leave in one go.
const BATCH: usize = 64;

/// A call on its way.
pub(crate) trait Letter: Send {
    /// Appends its command.
    fn write(&self, line: &mut Vec<u8>);

    /// It was answered, or failed.
    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, Failure>);
}

/// Something to be carried to a server and back.
pub(crate) struct Parcel {
    pub(crate) letter: Box<dyn Letter>,
    /// Send `ASKING` before it.
    pub(crate) asking: bool,
    /// Await a replica, too.
    pub(crate) confirmed: bool,
    /// Whose turn it takes.
    pub(crate) asker: Asker,
    /// What must keep its order among its like.
    pub(crate) key: u128,
    /// Not a check's: see the module's doc.
    pub(crate) errand: bool,
    /// A server has sent it on, or asked for more: it passes those who wait, because letters of its key that came
    /// after it may have left.
    pub(crate) again: bool,
    /// An answer after this is of no use to whoever waits for it.
    pub(crate) until: Instant,
}

/// What becomes of somebody who comes to the gate.
pub(super) enum Entry {
    /// Go on at once.
    Leave(Permit, Parcel),
    /// Wait there.
    Wait,
    /// Too many wait.
    Full(Parcel, Micros),
}

/// Where somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    number: u64,
    errand: bool,
    asker: Asker,
}

/// Until when somebody waits; the earliest is the greatest.
type Deadline = Reverse<(Instant, Excused, Spot)>;

/// This node was not run at the first deadline, and the time was given to them.
type Excused = bool;

/// Those who are let through, and those who are turned down and how long others would need.
#[derive(Default)]
pub(super) struct Called {
    pub(super) leaving: Vec<(Permit, Parcel)>,
    pub(super) late: Vec<(Parcel, Micros)>,
}

/// Somebody who waits.
struct Waiting {
    number: u64,
    came: Instant,
    parcel: Parcel,
}

/// The gate of one server.
pub(super) struct Gate {
    clock: Clock,
    patience: Micros,
    /// Somebody who waits may leave, or must be told earlier than was known that he may not.
    pub(super) room: Notify,
    lines: Mutex<Lines>,
}

struct Lines {
    limiter: Limiter,
    checks: Turns<Waiting>,
    errands: Turns<Waiting>,
    /// Of those who wait, and of some who have left.
    deadlines: BinaryHeap<Deadline>,
    /// Where the letters of a key wait, if any do.
    places: HashMap<u128, Place, Secret>,
    /// Letters from the line of errands, or that could have been, at the server.
    errands_out: u32,
    /// Letters have been taken out of a line and have perhaps not left: nobody passes them by.
    departing: bool,
    /// Errands were served last.
    errands_had: bool,
    last: u64,
}

/// Where letters of one key wait.
struct Place {
    /// In the line of errands.
    errand: bool,
    letters: u32,
}

/// The right to be at the server, given back when it is dropped.
pub(super) struct Permit {
    gate: Arc<Gate>,
    inner: Option<limiter::Permit>,
    errand: bool,
}

impl Permit {
    /// The server has answered, `took` after it was asked.
    pub(super) fn answered(mut self, took: Micros) {
        let now = self.gate.clock.now();
        self.give_back(|limiter, permit| limiter.handle_answer(now, permit, took));
    }

    /// Gives it back, once.
    fn give_back(&mut self, end: impl FnOnce(&mut Limiter, limiter::Permit)) {
        let Some(permit) = self.inner.take() else { return };
        let mut lines = self.gate.lock();
        end(&mut lines.limiter, permit);
        lines.errands_out -= u32::from(self.errand);
        let somebody_waits = !(lines.checks.is_empty() && lines.errands.is_empty());
        drop(lines);
        if somebody_waits {
            self.gate.room.notify_one();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(Limiter::handle_loss);
    }
}

impl Gate {
    /// A gate before a server whose askers wait for `patience`.
    pub(super) fn new(clock: Clock, patience: Micros) -> Self {
        let lines = Lines {
            limiter: Limiter::new(patience),
            checks: Turns::default(),
            errands: Turns::default(),
            deadlines: BinaryHeap::new(),
            places: HashMap::default(),
            errands_out: 0,
            departing: false,
            errands_had: false,
            last: 0,
        };
        Self { clock, patience, room: Notify::new(), lines: Mutex::new(lines) }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // Nothing panics while it is held, and if it did the lines would still be whole.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody comes. Who may leave must do so before he awaits anything.
    pub(super) fn enter(self: &Arc<Self>, parcel: Parcel) -> Entry {
        let now = self.clock.now();
        let mut lines = self.lock();
        if parcel.again {
            let permit = lines.limiter.admit_again(now);
            return Entry::Leave(self.permit(permit, false), parcel);
        }
        let errand = lines.places.get(&parcel.key).map_or(parcel.errand, |place| place.errand);
        let is_free = if errand { lines.may_run_errands() } else { lines.checks.is_empty() };
        if is_free
            && !lines.departing
            && let Some(permit) = lines.limiter.admit(now)
        {
            lines.errands_out += u32::from(errand);
            return Entry::Leave(self.permit(permit, errand), parcel);
        }
        lines.last += 1;
        let number = lines.last;
        let line = if errand { &lines.errands } else { &lines.checks };
        if !line.has_room(parcel.asker, LINE) {
            let wait = lines.wait();
            return Entry::Full(parcel, wait);
        }
        let until = parcel.until;
        let asker = lines.line_up(Waiting { number, came: now, parcel }, errand);
        let is_first = lines.deadlines.peek().is_none_or(|Reverse((first, ..))| until < *first);
        lines.deadlines.push(Reverse((until, false, Spot { number, errand, asker })));
        drop(lines);
        if is_first {
            self.room.notify_one();
        }
        Entry::Wait
    }

    /// Those who may leave now, in order. They must be sent on their way before this is called again.
    pub(super) fn depart(self: &Arc<Self>) -> Called {
        let now = self.clock.now();
        let mut lines = self.lock();
        let mut called = Called::default();
        while called.leaving.len() < BATCH
            && let Some(errand) = lines.whose_turn()
            && let Some(permit) = lines.limiter.admit(now)
        {
            let Some(Waiting { came, parcel, .. }) = lines.call_up(errand) else { break };
            if now + lines.limiter.queue() > parcel.until {
                // Nobody would have the answer in time. The place goes to the next.
                lines.limiter.handle_loss(permit);
                let wait = lines.wait().max(now.since(came));
                called.late.push((parcel, wait));
                continue;
            }
            lines.errands_out += u32::from(errand);
            lines.errands_had = errand;
            called.leaving.push((self.permit(permit, errand), parcel));
        }
        lines.departing = !called.leaving.is_empty();
        called
    }

    /// Those who have waited for too long at `now`: they no longer do. Each with how long those before him need.
    pub(super) fn expire(&self, now: Instant) -> Vec<(Parcel, Micros)> {
        let mut lines = self.lock();
        let mut expired = Vec::new();
        while let Some(Reverse((until, excused, spot))) = lines.deadlines.peek().copied()
            && until <= now
        {
            lines.deadlines.pop();
            let late = now.since(until);
            if late > pulse::LATE && !excused {
                // It was this node that was not run: the server has its time all the same.
                lines.deadlines.push(Reverse((now + late.min(self.patience), true, spot)));
            } else if let Some(waiting) = lines.strike(spot) {
                // At least as long as it has taken so far: of a server that stands still nothing better is known.
                expired.push((waiting.parcel, lines.wait().max(now.since(waiting.came))));
            }
        }
        expired
    }

    /// When [`Self::expire`] has something to do; `None`: nobody waits.
    pub(super) fn due(&self) -> Option<Instant> {
        let mut lines = self.lock();
        if lines.checks.is_empty() && lines.errands.is_empty() {
            // What is left is of those who have left.
            lines.deadlines.clear();
        }
        lines.deadlines.peek().map(|Reverse((first, ..))| *first)
    }

    /// All who wait, who no longer do.
    pub(super) fn turn_away(&self) -> Vec<Parcel> {
        let mut lines = self.lock();
        lines.places.clear();
        lines.deadlines.clear();
        let mut waiting = [std::mem::take(&mut lines.checks), std::mem::take(&mut lines.errands)];
        drop(lines);
        waiting.iter_mut().flat_map(|line| std::iter::from_fn(|| line.pop())).map(|waiting| waiting.parcel).collect()
    }

    /// Another connection stands.
    pub(super) fn handle_connection(&self) {
        self.lock().limiter.handle_connection(self.clock.now());
    }

    /// The window, the letters at the server, and those that wait.
    pub(super) fn view(&self) -> (u32, u32, usize) {
        let lines = self.lock();
        (lines.limiter.window(), lines.limiter.out(), lines.checks.len() + lines.errands.len())
    }

    fn permit(self: &Arc<Self>, permit: limiter::Permit, errand: bool) -> Permit {
        Permit { gate: self.clone(), inner: Some(permit), errand }
    }
}

impl Lines {
    /// Nobody waits with an errand, and there is room for one.
    fn may_run_errands(&self) -> bool {
        self.errands.is_empty() && self.errands_fit()
    }

    fn errands_fit(&self) -> bool {
        self.errands_out < self.limiter.window() / 2
    }

    /// Whether the next to leave is an errand; `None` when nobody may. In turns where both wait.
    fn whose_turn(&self) -> Option<bool> {
        let errand = !self.errands.is_empty() && self.errands_fit();
        match (self.checks.is_empty(), errand) {
            (true, false) => None,
            (true, true) => Some(true),
            (false, false) => Some(false),
            (false, true) => Some(!self.errands_had),
        }
    }

    fn wait(&self) -> Micros {
        self.limiter.wait(self.checks.len() + self.errands.len() + 1)
    }

    /// Lines up, and says in whose line.
    fn line_up(&mut self, waiting: Waiting, errand: bool) -> Asker {
        let (asker, key) = (waiting.parcel.asker, waiting.parcel.key);
        self.places.entry(key).or_insert(Place { errand, letters: 0 }).letters += 1;
        self.line(errand).push(asker, key, waiting)
    }

    fn call_up(&mut self, errand: bool) -> Option<Waiting> {
        let waiting = self.line(errand).pop()?;
        self.release(waiting.parcel.key);
        Some(waiting)
    }

    fn strike(&mut self, Spot { errand, asker, number }: Spot) -> Option<Waiting> {
        let waiting = self.line(errand).strike(asker, number, |waiting| waiting.number)?;
        self.release(waiting.parcel.key);
        Some(waiting)
    }

    fn line(&mut self, errand: bool) -> &mut Turns<Waiting> {
        if errand { &mut self.errands } else { &mut self.checks }
    }

    fn release(&mut self, key: u128) {
        if let Some(place) = self.places.get_mut(&key) {
            place.letters -= 1;
            if place.letters == 0 {
                self.places.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
