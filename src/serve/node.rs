//! The node: shards behind locks, and the ways in and out of them.
//!
//! Finds a key's shard, locks it, asks it, and drains its effects while it is locked: calls for the
//! embedded store are answered in line, all others leave through a channel after the lock is gone;
//! replies go to the mailboxes of those who wait. Knows no protocol and no policy names. Called by
//! sessions (checks), by the refill room (outcomes) and by the alarm (deadlines).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::mailbox::{Answer, Mailbox, Waiter};
use crate::clock::{self, Clock};
use crate::core::call::{Call, Grant, StoreError};
use crate::core::decision::Decision;
use crate::core::shard::{Effect, KeyInfo, Outcome, Request, Settings, Shard, Ticket};
use crate::core::stats::{PolicyStats, ShardStats};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::store::memory::MemoryStore;

/// Shards of a node. Two threads meet at one lock in one of so many checks.
const SHARDS: usize = 64;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Decide and charge, or peek.
    Check,
    /// Take a cost back.
    Refund,
    /// Forget the key.
    Reset,
}

/// What left the shards and has yet to be carried on, once no lock is held. Reused.
#[derive(Debug, Default)]
pub struct Outgoing {
    calls: Vec<Call>,
    replies: Vec<(Waiter, Decision)>,
    alarm: bool,
}

/// Shards, their stores and who waits for them.
#[derive(Debug)]
pub struct Node {
    /// The monotonic clock that everything of this node uses.
    pub clock: Clock,
    name: Arc<str>,
    cells: Box<[Cell]>,
    /// What to add to the monotonic clock to get the embedded store's.
    offset: AtomicU64,
    calls: Option<UnboundedSender<Call>>,
    /// Calls that left and whose outcome has not come back.
    in_flight: AtomicUsize,
    /// When the alarm is set to ring.
    pub(super) alarm: AtomicU64,
    /// Rung when a deadline before `alarm` appears.
    pub(super) bell: Notify,
}

#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    /// The shard's next deadline, readable without its lock.
    due: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    shard: Shard,
    memory: Option<MemoryStore>,
    parked: HashMap<Ticket, Waiter>,
}

impl Node {
    /// A node of empty shards. Calls leave through `calls`; without it each shard has an embedded
    /// store of its own.
    #[must_use]
    pub fn new(name: &str, settings: Settings, calls: Option<UnboundedSender<Call>>) -> Self {
        let clock = Clock::start();
        let (now, wall) = (clock.now(), clock::wall());
        let max_keys = settings.max_keys.div_ceil(SHARDS).max(1);
        let settings = Settings { max_keys, lease_ahead: calls.is_some(), ..settings };
        // Ids grow across restarts: they begin with the wall clock's microseconds.
        let first_id = wall.0;
        let cells = (0..SHARDS as u64).map(|index| {
            let shard = Shard::new(settings, clock::random(), first_id + index, SHARDS as u64, (now, wall));
            let memory = calls.is_none().then(|| embedded(max_keys));
            let inner = Inner { shard, memory, parked: HashMap::new() };
            Cell { due: AtomicU64::new(u64::MAX), inner: Mutex::new(inner) }
        });
        Self {
            clock,
            name: name.into(),
            cells: cells.collect(),
            offset: AtomicU64::new(wall.0.wrapping_sub(now.0)),
            calls,
            in_flight: AtomicUsize::new(0),
            alarm: AtomicU64::new(u64::MAX),
            bell: Notify::new(),
        }
    }

    /// Puts a question to the key's shard: the answer, or `None` when it will come to `mailbox`
    /// under the number `seq`. The caller must [`Self::flush`] afterwards.
    pub fn ask(
        &self,
        now: Instant,
        ask: Ask,
        request: Request<'_>,
        (mailbox, seq): (&Arc<Mailbox>, u64),
        out: &mut Outgoing,
    ) -> Option<Decision> {
        let index = (request.digest.0 >> 64) as usize % SHARDS;
        let cell = &self.cells[index];
        let mut inner = cell.lock();
        let outcome = match ask {
            Ask::Check => inner.shard.check(now, request),
            Ask::Refund => inner.shard.refund(now, request),
            Ask::Reset => inner.shard.reset(now, request),
        };
        let mine = match outcome {
            Outcome::Decided(_) => None,
            Outcome::Parked(ticket) => Some(ticket),
        };
        let answered = self.drain_effects(&mut inner, now, mine, out);
        let decision = match outcome {
            Outcome::Decided(decision) => Some(decision),
            Outcome::Parked(_) => answered,
        };
        if let (Some(ticket), None) = (mine, decision) {
            inner.parked.insert(ticket, Waiter { mailbox: mailbox.clone(), seq });
        }
        self.note_deadline(cell, &inner, out);
        decision
    }

    /// Takes the outcome of a call.
    pub fn handle_outcome(&self, now: Instant, call: &Call, outcome: Result<Grant, StoreError>, out: &mut Outgoing) {
        let cell = &self.cells[(call.digest.0 >> 64) as usize % SHARDS];
        let mut inner = cell.lock();
        inner.shard.handle_outcome(now, call, outcome);
        self.drain_effects(&mut inner, now, None, out);
        self.note_deadline(cell, &inner, out);
        drop(inner);
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Does what is due in all shards.
    pub fn handle_timeouts(&self, now: Instant, out: &mut Outgoing) {
        for cell in &self.cells {
            if cell.due.load(Ordering::SeqCst) <= now.0 {
                let mut inner = cell.lock();
                inner.shard.handle_timeout(now);
                self.drain_effects(&mut inner, now, None, out);
                self.note_deadline(cell, &inner, out);
            }
        }
    }

    /// Hands everything back that is held.
    pub fn drain(&self, now: Instant, out: &mut Outgoing) {
        for cell in &self.cells {
            let mut inner = cell.lock();
            inner.shard.handle_drain(now);
            self.drain_effects(&mut inner, now, None, out);
            self.note_deadline(cell, &inner, out);
        }
    }

    /// Carries on what left the shards. No lock may be held.
    pub fn flush(&self, out: &mut Outgoing) {
        for call in out.calls.drain(..) {
            self.in_flight.fetch_add(1, Ordering::AcqRel);
            let sent = self.calls.as_ref().is_some_and(|calls| calls.send(call).is_ok());
            if !sent {
                // The refill room has closed: the process is ending.
                self.in_flight.fetch_sub(1, Ordering::AcqRel);
            }
        }
        for (waiter, decision) in out.replies.drain(..) {
            waiter.answer(Answer::Decision(decision));
        }
        if std::mem::take(&mut out.alarm) {
            self.bell.notify_one();
        }
    }

    /// The earliest deadline of all shards; `u64::MAX` for none.
    pub(super) fn earliest(&self) -> u64 {
        self.cells.iter().map(|cell| cell.due.load(Ordering::SeqCst)).min().unwrap_or(u64::MAX)
    }

    /// Calls that left and whose outcome has not come back.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// The embedded store's clock: this node's monotonic clock, set once by the wall clock and then
    /// drawn to it by at most `step` a call. A jump of the wall clock is followed slowly, so that it
    /// opens no window early.
    pub(super) fn draw_to_wall(&self, step: Micros) {
        let wanted = clock::wall().0.wrapping_sub(self.clock.now().0) as i64;
        let offset = self.offset.load(Ordering::Relaxed) as i64;
        let step = i64::try_from(step.0).unwrap_or(i64::MAX);
        let drawn = offset.wrapping_add(wanted.wrapping_sub(offset).clamp(-step, step));
        self.offset.store(drawn as u64, Ordering::Relaxed);
    }

    /// Whether the store is embedded.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.calls.is_none()
    }

    /// Counts of all shards together.
    #[must_use]
    pub fn stats(&self) -> (ShardStats, HashMap<Arc<str>, PolicyStats>) {
        let mut total = ShardStats::default();
        let mut policies: HashMap<Arc<str>, PolicyStats> = HashMap::new();
        for cell in &self.cells {
            let inner = cell.lock();
            let stats = inner.shard.stats();
            total.keys += stats.keys;
            total.evicted += stats.evicted;
            total.waiting += stats.waiting;
            total.degraded += stats.degraded;
            total.lost_epochs += stats.lost_epochs;
            total.damaged += stats.damaged;
            for (name, stats) in inner.shard.policy_stats() {
                policies.entry(name.clone()).or_default().add(stats);
            }
        }
        (total, policies)
    }

    /// Up to `most` keys that this node knows.
    #[must_use]
    pub fn keys(&self, now: Instant, most: usize) -> Vec<KeyInfo> {
        let mut keys = Vec::new();
        for cell in &self.cells {
            let left = most - keys.len();
            if left == 0 {
                break;
            }
            let mut part = cell.lock().shard.keys(now, left);
            part.truncate(left);
            keys.append(&mut part);
        }
        keys
    }

    /// Empties the shard's queue of effects. Returns the answer for the ticket `mine`, if it came.
    fn drain_effects(
        &self,
        inner: &mut Inner,
        now: Instant,
        mine: Option<Ticket>,
        out: &mut Outgoing,
    ) -> Option<Decision> {
        let mut answered = None;
        while let Some(effect) = inner.shard.poll_effect() {
            match effect {
                Effect::Call(call) => match &mut inner.memory {
                    Some(memory) => {
                        let at = Timestamp(now.0.wrapping_add(self.offset.load(Ordering::Relaxed)));
                        let outcome = memory.call(at, &self.name, &call);
                        inner.shard.handle_outcome(now, &call, outcome);
                    }
                    None => out.calls.push(call),
                },
                Effect::Reply { ticket, decision } if Some(ticket) == mine => answered = Some(decision),
                Effect::Reply { ticket, decision } => {
                    if let Some(waiter) = inner.parked.remove(&ticket) {
                        out.replies.push((waiter, decision));
                    }
                }
            }
        }
        answered
    }

    fn note_deadline(&self, cell: &Cell, inner: &Inner, out: &mut Outgoing) {
        let due = inner.shard.poll_timeout().map_or(u64::MAX, |at| at.0);
        if cell.due.load(Ordering::Relaxed) != due {
            // Stored before the alarm is read; the alarm is stored before deadlines are read again.
            cell.due.store(due, Ordering::SeqCst);
            out.alarm |= due < self.alarm.load(Ordering::SeqCst);
        }
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held is a bug, but no reason to refuse everybody else.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn embedded(max_keys: usize) -> MemoryStore {
    MemoryStore::new(max_keys, clock::random(), Micros::ZERO)
}
