//! The gate of one server: decides which request may leave now, and queues the others.
//!
//! The limiter says how many requests may be at the server at a time. The others wait here, where users and their
//! connections take turns (`store/turns.rs`) and where a request can still be turned down: one that could not be
//! answered in time any more fails as busy, and has not left.
//!
//! Errands (peek, refund and reset, which clients ask for beside checks) have a line of their own and may take half
//! of the window, so that one client's errands do not delay everybody's checks. Requests of one key leave in the
//! order in which they came: while the line of errands holds a request of a key, the key's other requests join that
//! line. Knows neither connection nor breaker. Called by `master.rs`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::failure::Failure;
use super::joined::Joined;
use super::wire::Answer;
use crate::clock::Clock;
use crate::core::time::{Instant, Micros};
use crate::store::limiter::{self, Limiter};
use crate::store::pulse;
use crate::store::script::Script;
use crate::store::turns::{Asker, Secret, Turns};

/// Most requests in one line when only one connection has requests in it.
const ALONE: usize = 4_096;

/// Most requests in one line, including the room that is kept for connections that have none in it: see
/// [`Turns::has_room`].
const LINE: usize = 4 * ALONE;

/// Requests that one call of [`Gate::depart`] lets leave at most.
const BATCH: usize = 64;

/// A command to a server, and what takes its answer.
pub(crate) trait Request: Send {
    /// Appends the command.
    fn write(&self, line: &mut Vec<u8>);

    /// The script that it calls, where that is not loaded on every new connection.
    fn unusual(&self) -> Option<&'static Script> {
        None
    }

    /// Adds it to those that will be one command; false where it is none of them.
    fn join(&self, _joined: &mut Joined) -> bool {
        false
    }

    /// Takes the answer, or the reason why there is none.
    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, Failure>);
}

/// A request, and what the gate must know of it.
pub(crate) struct Submission {
    pub(crate) request: Box<dyn Request>,
    /// `ASKING` must be sent before it.
    pub(crate) asking: bool,
    /// The answer must also wait for a replica.
    pub(crate) confirmed: bool,
    /// In whose turn it leaves.
    pub(crate) asker: Asker,
    /// Requests with the same key leave in order.
    pub(crate) key: u128,
    /// It is an errand: see the module's doc.
    pub(crate) errand: bool,
    /// A server has answered it with a redirect or NOSCRIPT. It then leaves at once, because later requests of its
    /// key may have left already.
    pub(crate) again: bool,
    /// The time after which nobody needs the answer.
    pub(crate) until: Instant,
}

/// What happens to a request that comes to the gate.
pub(super) enum Entry {
    /// It leaves at once.
    Leave(GatePermit, Submission),
    /// It waits in a line.
    Wait,
    /// Too many requests wait; it would have to wait this long.
    Full(Submission, Micros),
}

/// A request in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    number: u64,
    errand: bool,
    key: u128,
}

/// When a waiting request must have left. `Reverse` makes the earliest deadline the top of the heap.
type Deadline = Reverse<(Instant, Excused, Spot)>;

/// The first deadline passed while this process did not run, and was extended once.
type Excused = bool;

/// Requests that leave now, and requests that are too late, each with the time for which another one would have to
/// wait.
#[derive(Default)]
pub(super) struct Called {
    pub(super) leaving: Vec<(GatePermit, Submission)>,
    pub(super) late: Vec<(Submission, Micros)>,
}

/// A request in a line.
struct Waiting {
    came: Instant,
    submission: Submission,
}

/// The gate of one server.
pub(super) struct Gate {
    clock: Clock,
    patience: Micros,
    /// Signalled when a waiting request may leave, or when the next deadline has become earlier.
    pub(super) room: Notify,
    lines: Mutex<Lines>,
}

struct Lines {
    limiter: Limiter,
    checks: Turns<Waiting>,
    errands: Turns<Waiting>,
    /// Deadlines of waiting requests, and of some that have left since.
    deadlines: BinaryHeap<Deadline>,
    /// For each key with waiting requests, where they wait.
    places: HashMap<u128, KeyQueue, Secret>,
    /// Requests at the server that count as errands.
    errands_out: u32,
    /// Requests have been taken from a line but may not have been sent yet, so no other request may leave directly.
    departing: bool,
    /// The last request that left from a line was an errand.
    errands_had: bool,
}

/// Where the requests of one key wait, and how many they are.
struct KeyQueue {
    /// They wait in the line of errands.
    errand: bool,
    requests: u32,
}

/// The right to have a request at the server. Dropping it means that the request was lost.
pub(super) struct GatePermit {
    gate: Arc<Gate>,
    inner: Option<limiter::Permit>,
    left: Instant,
    errand: bool,
}

impl GatePermit {
    /// When the request left.
    pub(super) fn left(&self) -> Instant {
        self.left
    }

    /// The server answered at `at`, `took` after the request left.
    pub(super) fn answered(mut self, at: Instant, took: Micros) {
        self.give_back(|limiter, permit| limiter.handle_answer(at, permit, took));
    }

    /// Returns the permit to the limiter, once.
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

impl Drop for GatePermit {
    fn drop(&mut self) {
        self.give_back(Limiter::handle_loss);
    }
}

impl Gate {
    /// The gate of a server whose callers wait for `patience` at most.
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
        };
        Self { clock, patience, room: Notify::new(), lines: Mutex::new(lines) }
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        // No code panics while it holds this lock, and the lines would be consistent even if it did.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request at `now`. If it may leave, the caller must send it before it awaits anything, or requests would
    /// overtake each other.
    pub(super) fn enter(self: &Arc<Self>, now: Instant, submission: Submission) -> Entry {
        let mut lines = self.lock();
        if submission.again {
            let permit = lines.limiter.admit_again(now);
            return Entry::Leave(self.permit(now, permit, false), submission);
        }
        let errand = lines.places.get(&submission.key).map_or(submission.errand, |place| place.errand);
        let is_free = if errand { lines.may_run_errands() } else { lines.checks.is_empty() };
        if is_free
            && !lines.departing
            && let Some(permit) = lines.limiter.admit(now)
        {
            lines.errands_out += u32::from(errand);
            return Entry::Leave(self.permit(now, permit, errand), submission);
        }
        let line = if errand { &lines.errands } else { &lines.checks };
        if !line.has_room(submission.asker, LINE) {
            let wait = lines.wait();
            return Entry::Full(submission, wait);
        }
        let (until, key) = (submission.until, submission.key);
        let number = lines.line_up(Waiting { came: now, submission }, errand);
        let is_first = lines.deadlines.peek().is_none_or(|Reverse((first, ..))| until < *first);
        lines.deadlines.push(Reverse((until, false, Spot { number, errand, key })));
        drop(lines);
        if is_first {
            self.room.notify_one();
        }
        Entry::Wait
    }

    /// `asker` waits for what was requested about a key. It leaves in the turns of that asker, where that is sooner.
    pub(super) fn hurry(&self, asker: Asker, key: u128) {
        let mut lines = self.lock();
        if let Some(errand) = lines.places.get(&key).map(|place| place.errand) {
            lines.line(errand).hurry(asker, key);
        }
    }

    /// The requests that may leave now, in order. The caller must send them before it calls this again.
    pub(super) fn depart(self: &Arc<Self>) -> Called {
        let now = self.clock.now();
        let mut lines = self.lock();
        let mut called = Called::default();
        while called.leaving.len() < BATCH
            && let Some(errand) = lines.whose_turn()
            && let Some(permit) = lines.limiter.admit(now)
        {
            let Some(Waiting { came, submission, .. }) = lines.call_up(errand) else { break };
            if now + lines.limiter.queue() > submission.until {
                // The answer would come too late for this request, so the permit goes to the next one.
                lines.limiter.handle_loss(permit);
                let wait = lines.wait().max(now.since(came));
                called.late.push((submission, wait));
                continue;
            }
            lines.errands_out += u32::from(errand);
            lines.errands_had = errand;
            called.leaving.push((self.permit(now, permit, errand), submission));
        }
        lines.departing = !called.leaving.is_empty();
        called
    }

    /// Removes the requests whose deadline has passed at `now`, each with the time for which another one would have
    /// to wait.
    pub(super) fn expire(&self, now: Instant) -> Vec<(Submission, Micros)> {
        let mut lines = self.lock();
        let mut expired = Vec::new();
        while let Some(Reverse((until, excused, spot))) = lines.deadlines.peek().copied()
            && until <= now
        {
            lines.deadlines.pop();
            let late = now.since(until);
            if late > pulse::LATE && !excused {
                // This process did not run when the deadline passed, so the server had no chance to take the request.
                // It gets its time once more.
                lines.deadlines.push(Reverse((now + late.min(self.patience), true, spot)));
            } else if let Some(waiting) = lines.strike(spot) {
                // The estimate is at least as long as this request has waited, because a server that has stopped
                // leaves no other measure.
                expired.push((waiting.submission, lines.wait().max(now.since(waiting.came))));
            }
        }
        expired
    }

    /// When [`Self::expire`] must be called next; `None` while no request waits.
    pub(super) fn due(&self) -> Option<Instant> {
        let mut lines = self.lock();
        if lines.checks.is_empty() && lines.errands.is_empty() {
            // The lines are empty, so these deadlines are of requests that have left.
            lines.deadlines.clear();
        }
        lines.deadlines.peek().map(|Reverse((first, ..))| *first)
    }

    /// Removes all waiting requests.
    pub(super) fn turn_away(&self) -> Vec<Submission> {
        let mut lines = self.lock();
        lines.places.clear();
        lines.deadlines.clear();
        let mut waiting = [std::mem::take(&mut lines.checks), std::mem::take(&mut lines.errands)];
        drop(lines);
        waiting
            .iter_mut()
            .flat_map(|line| std::iter::from_fn(|| line.pop()))
            .map(|waiting| waiting.submission)
            .collect()
    }

    /// Whether requests wait.
    pub(super) fn is_late(&self) -> bool {
        let lines = self.lock();
        !(lines.checks.is_empty() && lines.errands.is_empty())
    }

    /// A new connection was made. Where it `is_doubted` that the server executes calls, the others wait until one is
    /// answered.
    pub(super) fn handle_connection(&self, is_doubted: bool) {
        self.lock().limiter.handle_connection(self.clock.now(), is_doubted);
    }

    /// The window, the requests at the server, and the waiting requests.
    pub(super) fn view(&self) -> (u32, u32, usize) {
        let lines = self.lock();
        (lines.limiter.window(), lines.limiter.out(), lines.checks.len() + lines.errands.len())
    }

    fn permit(self: &Arc<Self>, left: Instant, permit: limiter::Permit, errand: bool) -> GatePermit {
        GatePermit { gate: self.clone(), inner: Some(permit), left, errand }
    }
}

impl Lines {
    /// No errand waits, and one may leave.
    fn may_run_errands(&self) -> bool {
        self.errands.is_empty() && self.errands_fit()
    }

    fn errands_fit(&self) -> bool {
        self.errands_out < self.limiter.window() / 2
    }

    /// Whether the next request to leave is an errand; `None` when no request may leave. Both kinds take turns when
    /// both wait.
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

    /// Adds a request to a line, and returns its number there.
    fn line_up(&mut self, waiting: Waiting, errand: bool) -> u64 {
        let (asker, key) = (waiting.submission.asker, waiting.submission.key);
        self.places.entry(key).or_insert(KeyQueue { errand, requests: 0 }).requests += 1;
        self.line(errand).push(asker, key, waiting)
    }

    fn call_up(&mut self, errand: bool) -> Option<Waiting> {
        let waiting = self.line(errand).pop()?;
        self.release(waiting.submission.key);
        Some(waiting)
    }

    fn strike(&mut self, Spot { errand, key, number }: Spot) -> Option<Waiting> {
        let waiting = self.line(errand).strike(key, number)?;
        self.release(key);
        Some(waiting)
    }

    fn line(&mut self, errand: bool) -> &mut Turns<Waiting> {
        if errand { &mut self.errands } else { &mut self.checks }
    }

    fn release(&mut self, key: u128) {
        if let Some(place) = self.places.get_mut(&key) {
            place.requests -= 1;
            if place.requests == 0 {
                self.places.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
