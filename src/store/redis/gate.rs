//! The gate before one server: which letter may leave now, and who waits in which line.
//!
//! The limiter says how many are at the server at a time; the others wait here, where users and their connections
//! are served in turn (`store/turns.rs`), and where they can still be turned down: whoever could not be answered
//! in time any more is told that the server is busy, and has not left. Errands (what clients ask beside checks) may
//! take half of the window and have a line of their own, so that one client's errands do not stand before everybody's
//! checks. A key that has a letter in that line lines up there with all of them: letters of one key leave in the order in
//! which they came. Knows neither connection nor breaker. Called by `master.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::failure::Failure;
use super::link::{Answer, Letter};
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::limiter::{self, Limiter};
use crate::store::turns::{Asker, Turns};

/// Most letters in one line of one who is alone there.
const ALONE: usize = 4_096;

/// Most letters in one line, with the room that is kept for those who have none in it: see [`Turns::has_room`].
const LINE: usize = 4 * ALONE;

/// Letters that leave in one go.
const BATCH: usize = 64;

/// Something to be carried to a server and back.
pub(crate) struct Parcel {
    pub(crate) letter: Letter,
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

pub(super) type Reply = oneshot::Sender<Result<Answer, Failure>>;

/// What becomes of somebody who comes to the gate.
pub(super) enum Entry {
    /// Go on at once.
    Leave(Permit, Parcel),
    /// Wait there.
    Wait(Spot, oneshot::Receiver<Result<Answer, Failure>>),
    /// Too many wait.
    Full(Micros),
}

/// Where somebody waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    errand: bool,
    asker: Asker,
    number: u64,
}

/// Somebody who waits.
struct Waiting {
    number: u64,
    came: Instant,
    parcel: Parcel,
    reply: Reply,
}

/// The gate of one server.
pub(super) struct Gate {
    clock: Clock,
    /// Somebody who waits may leave.
    pub(super) room: Notify,
    lines: Mutex<Lines>,
}

struct Lines {
    limiter: Limiter,
    checks: Turns<Waiting>,
    errands: Turns<Waiting>,
    /// Where the letters of a key wait, if any do.
    places: HashMap<u128, Place>,
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
        if let Some(permit) = self.inner.take() {
            let now = self.gate.clock.now();
            self.gate.lock().limiter.handle_answer(now, permit, took);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut lines = self.gate.lock();
        if let Some(permit) = self.inner.take() {
            lines.limiter.handle_loss(permit);
        }
        lines.errands_out -= u32::from(self.errand);
        let somebody_waits = !(lines.checks.is_empty() && lines.errands.is_empty());
        drop(lines);
        if somebody_waits {
            self.gate.room.notify_one();
        }
    }
}

impl Gate {
    /// A gate before a server whose askers wait for `patience`.
    pub(super) fn new(clock: Clock, patience: Micros) -> Self {
        let lines = Lines {
            limiter: Limiter::new(patience),
            checks: Turns::default(),
            errands: Turns::default(),
            places: HashMap::new(),
            errands_out: 0,
            departing: false,
            errands_had: false,
            last: 0,
        };
        Self { clock, room: Notify::new(), lines: Mutex::new(lines) }
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
            return Entry::Full(lines.wait());
        }
        let (reply, answer) = oneshot::channel();
        let asker = lines.line_up(Waiting { number, came: now, parcel, reply }, errand);
        Entry::Wait(Spot { errand, asker, number }, answer)
    }

    /// Those who may leave now, in order. They must be sent on their way before this is called again.
    pub(super) fn depart(self: &Arc<Self>) -> Vec<(Permit, Parcel, Reply)> {
        let now = self.clock.now();
        let mut lines = self.lock();
        let mut batch = Vec::new();
        while batch.len() < BATCH
            && let Some(errand) = lines.whose_turn()
            && let Some(permit) = lines.limiter.admit(now)
        {
            let Some(Waiting { came, parcel, reply, .. }) = lines.call_up(errand) else { break };
            let is_late = now + lines.limiter.queue() > parcel.until;
            if is_late || reply.is_closed() {
                // Nobody would have the answer in time. The place goes to the next.
                lines.limiter.handle_loss(permit);
                let _ = reply.send(Err(Failure::Busy(lines.wait().max(now.since(came)))));
                continue;
            }
            lines.errands_out += u32::from(errand);
            lines.errands_had = errand;
            batch.push((self.permit(permit, errand), parcel, reply));
        }
        lines.departing = !batch.is_empty();
        batch
    }

    /// Somebody no longer waits: how long those before him need, or `None` when he has left.
    pub(super) fn withdraw(&self, spot: Spot) -> Option<Micros> {
        let now = self.clock.now();
        let mut lines = self.lock();
        let waiting = lines.strike(spot)?;
        // At least as long as it has taken so far: of a server that stands still nothing better is known.
        Some(lines.wait().max(now.since(waiting.came)))
    }

    /// Turns away all who wait: the server is away since then.
    pub(super) fn turn_away(&self, since: Instant) {
        let mut lines = self.lock();
        lines.places.clear();
        let mut waiting = [std::mem::take(&mut lines.checks), std::mem::take(&mut lines.errands)];
        drop(lines);
        for line in &mut waiting {
            while let Some(waiting) = line.pop() {
                let _ = waiting.reply.send(Err(Failure::Away(since)));
            }
        }
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
