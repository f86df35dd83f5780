//! The node: all shards, each behind a lock.
//!
//! It finds a key's shard, locks it and asks it. With the embedded store a shard is that store itself, and answers at
//! once. With any other store it is the core's state machine, whose effects are taken out while it is locked: calls
//! go to the turnstile, where those of one key stay in order, and once the lock is released, replies go to the
//! mailboxes of those who wait, and asks to peers. Knows no protocol. Called by sessions (checks), by `store_dispatch` (outcomes), by
//! `gossip` and by the timer task (deadlines).

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio::sync::Notify;

use self::watched::Watched;
use super::ask::Ask;
use super::crowd::Crowd;
use super::deadlines::{Deadline, Timer};
use super::denied::{Bell, Denial, Subject};
use super::hot_keys::Kind;
use super::lending::Lending;
use super::mailbox::{Answer, Mailbox, Waiter};
use super::peer_reply::PeerReply;
use super::recording::file::Event;
use super::recording::{Arrived, Recording};
use super::sketch::{KeyStart, Seen};
use super::turnstile::Turnstile;
use super::vital;
use crate::clock::{self, Clock};
use crate::core::ask;
use crate::core::call::{Call, Grant, StoreError};
use crate::core::decision::{Decision, Verdict};
use crate::core::fleet::FleetView;
use crate::core::key::{Digest, DigestKey};
use crate::core::policy::{ON_TRIAL, Rule};
use crate::core::shard::{Effect, Outcome, Request, Settings, Shard, Ticket};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::{PeerIndex, Report, Usage};
use crate::store::embedded::Embedded;
use crate::store::turns::{Asker, Secret};

pub mod asks;
pub mod counts;
mod watched;

/// Number of shards. With two threads that always hold a lock, one check in 64 would find its shard locked by the other
/// thread.
const SHARDS: usize = 64;

/// Calls or answers that gather in a turn are handed over at its end, or as soon as there are so many: then the work
/// that waits is worth the wake-up of the other thread.
pub(super) const WAKE_AT: usize = 16;

/// Effects of the shards that must be carried on once no lock is held. Reused, to avoid allocations.
#[derive(Debug, Default)]
pub struct Outgoing {
    replies: Vec<(Waiter, Decision)>,
    /// Asks of peers, and answers to asks of theirs.
    asks: Vec<(PeerIndex, ask::Ask)>,
    answers: Vec<(PeerReply, ask::Answer)>,
    timer: bool,
    /// Calls that were put into the turnstile since it was last rung.
    calls: usize,
    /// Notified when there are calls, so that the turnstile is rung at the end of the thread's turn; `None` rings it at
    /// once.
    bell: Option<Arc<Notify>>,
    /// The gossip rests, and there is something to report to peers.
    news: bool,
    /// Arrived checks, for `record.file`.
    arrived: Arrived,
}

impl Outgoing {
    /// Whether there are no effects. Arrivals for the record are not counted among them.
    pub(super) fn is_empty(&self) -> bool {
        let Self { replies, asks, answers, timer, calls, bell: _, news, arrived: _ } = self;
        let has_none = replies.is_empty() && asks.is_empty() && answers.is_empty();
        has_none && !(*timer || *calls > 0 || *news)
    }

    /// From now on `bell` is notified of calls that were put into the turnstile; its owner then calls [`Node::ring`].
    pub(super) fn ring_at_the_end(&mut self, bell: Arc<Notify>) {
        self.bell = Some(bell);
    }

    /// How many answers wait to be delivered.
    pub(super) fn replies(&self) -> usize {
        self.replies.len()
    }
}

/// All shards, and what they share.
#[derive(Debug)]
pub struct Node {
    /// The monotonic clock of everything in this node.
    pub clock: Clock,
    /// The key of the digests.
    pub digests: DigestKey,
    /// Limits how many answers of the store connections await.
    pub crowd: Arc<Crowd>,
    /// How long a check waits for a store.
    pub(super) timeout: Micros,
    cells: Box<[Cell]>,
    /// The difference between the embedded store's clock and the monotonic clock.
    offset: AtomicU64,
    calls: Option<Arc<Turnstile>>,
    /// Sends asks to peers; not set where none are asked.
    lending: OnceLock<Arc<Lending>>,
    /// Calls that have left the shards and have no outcome yet.
    in_flight: AtomicUsize,
    /// Counts the rounds of gossip, so that each begins with another shard.
    round: AtomicUsize,
    /// The time that the timer task sleeps until.
    pub(super) timer: Timer,
    /// Wakes the timer task when a deadline before that time is set.
    pub(super) wakeup: Notify,
    /// The gossip rests until its next sign of life is due, or there is news.
    rests: AtomicBool,
    /// Wakes the gossip when there is news.
    pub(super) news: Notify,
    /// Wakes whoever takes denials.
    pub(super) denials: Bell,
    /// Records arrivals for `record.file`; not set without one.
    recording: OnceLock<Recording>,
}

#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    /// The shard's next deadline, which can be read without its lock.
    due: Deadline,
    locked: Mutex<Locked>,
}

/// What the lock of a shard guards.
#[derive(Debug)]
struct Locked {
    engine: Engine,
    watched: Watched,
}

/// What decides for the keys of one shard.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few, and the hot path has one pointer less to follow")]
enum Engine {
    /// The embedded store.
    Embedded(Embedded),
    /// The core, which leases tokens from a remote store.
    Leasing(Leasing),
}

#[derive(Debug)]
struct Leasing {
    shard: Shard,
    parked: HashMap<Ticket, Parked, Secret>,
    /// Peers that wait for an answer.
    asked: BTreeMap<Ticket, PeerReply>,
}

/// A request that waits for its decision.
#[derive(Debug)]
struct Parked {
    /// Where the answer goes; `None` for a check of limits on trial, whose decision is only counted.
    waiter: Option<Waiter>,
    /// The key, if it is a check that charges: a denial of it is counted.
    charged: Option<Box<Charged>>,
}

#[derive(Debug)]
struct Charged {
    rule: Arc<Rule>,
    digest: Digest,
    key: KeyStart,
    cost: u64,
    came: Instant,
}

impl Node {
    /// A node with empty shards, for keys that are digested with `digests`. Calls leave through `calls`; without it,
    /// each shard has an embedded store of its own.
    #[must_use]
    pub fn new(settings: Settings, digests: DigestKey, clock: Clock, calls: Option<Arc<Turnstile>>) -> Self {
        let (now, wall) = (clock.now(), clock.wall());
        let max_keys = settings.max_keys.div_ceil(SHARDS).max(1);
        let settings = Settings { max_keys, lease_ahead: true, ..settings };
        // Ids must grow across restarts, so they begin with the microseconds of the wall clock.
        let first_id = wall.0;
        let cells = (0..SHARDS as u64).map(|index| {
            let engine = match calls {
                None => Engine::Embedded(Embedded::with_digests(max_keys, secret(), digests)),
                Some(_) => {
                    let shard = Shard::new(settings, clock::random(), first_id + index, SHARDS as u64, (now, wall));
                    let shard = shard.with_secret(secret());
                    Engine::Leasing(Leasing { shard, parked: HashMap::default(), asked: BTreeMap::new() })
                }
            };
            Cell { due: Deadline::new(), locked: Mutex::new(Locked { engine, watched: Watched::default() }) }
        });
        Self {
            clock,
            digests,
            crowd: Arc::default(),
            timeout: settings.timeout,
            cells: cells.collect(),
            offset: AtomicU64::new(wall.0.wrapping_sub(now.0)),
            calls,
            lending: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            timer: Timer::new(),
            wakeup: Notify::new(),
            rests: AtomicBool::new(false),
            news: Notify::new(),
            denials: Bell::default(),
            recording: OnceLock::new(),
        }
    }

    /// Asks the key's shard. Returns the answer, or `None` when it will come to `mailbox` under the number `seq`. The
    /// caller must [`Self::flush`] afterwards.
    pub fn ask(
        &self,
        now: Instant,
        ask: Ask,
        request: Request<'_>,
        (mailbox, seq): (&Arc<Mailbox>, u64),
        out: &mut Outgoing,
    ) -> Option<Decision> {
        let cell = self.cell(request.digest);
        let Locked { engine, watched } = &mut *cell.lock();
        let is_charged = matches!(ask, Ask::Check(_)) && !request.peek && request.cost > 0;
        if is_charged && let Some(note) = watched.hot.count(now, Kind::Used, request.digest) {
            watched.hot.note(now, (Kind::Used, note), request.digest, &request.rule.policy, request.key);
        }
        match ask {
            Ask::Refund | Ask::GiveBack(_) => self.undone(now, &request, Event::GivenBack, out),
            Ask::Reset => self.undone(now, &request, Event::Reset, out),
            Ask::Check(_) | Ask::PeekLocal | Ask::Prefetch => {}
        }
        let leasing = match engine {
            Engine::Embedded(embedded) => {
                let at = self.store_time(now);
                let decision = match ask {
                    Ask::Check(_) => embedded.check(at, request),
                    Ask::PeekLocal | Ask::Prefetch => embedded.check(at, Request { peek: true, ..request }),
                    Ask::Refund => embedded.refund(at, request),
                    Ask::GiveBack(charge) => embedded.give_back(at, request, &charge),
                    Ask::Reset => embedded.reset(at, request),
                };
                if is_charged {
                    self.decided(now, watched, (now, request.cost), || subject(&request), &decision, out);
                }
                return Some(decision);
            }
            Engine::Leasing(leasing) => leasing,
        };
        let outcome = match ask {
            Ask::Check(deadline) => leasing.shard.check_by(now, deadline, request),
            Ask::PeekLocal => return Some(leasing.shard.peek_local(now, request)),
            Ask::Prefetch => {
                leasing.shard.prefetch(now, request);
                Outcome::Decided(leasing.shard.peek_local(now, request))
            }
            Ask::Refund => leasing.shard.refund(now, request),
            Ask::GiveBack(charge) => leasing.shard.give_back(now, request, &charge),
            Ask::Reset => leasing.shard.reset(now, request),
        };
        let decision = match outcome {
            Outcome::Decided(decision) => {
                if is_charged {
                    self.decided(now, watched, (now, request.cost), || subject(&request), &decision, out);
                }
                Some(decision)
            }
            Outcome::Parked(ticket) => {
                let Request { rule, digest, key, cost, .. } = request;
                let charged = is_charged
                    .then(|| Box::new(Charged { rule: rule.clone(), digest, key: KeyStart::of(key), cost, came: now }));
                let waiter = Waiter { mailbox: mailbox.clone(), seq };
                leasing.parked.insert(ticket, Parked { waiter: Some(waiter), charged });
                None
            }
        };
        self.drain_effects(now, cell, (leasing, watched), mailbox.asker(), out);
        if decision.is_none()
            && let Some(calls) = &self.calls
        {
            out.calls += usize::from(calls.hurry(mailbox.asker(), request.digest));
        }
        decision
    }

    /// Checks `cost` under limits on trial (`rule`). The decision is counted and not returned. The caller must
    /// [`Self::flush`] afterwards.
    pub fn attempt(&self, now: Instant, (rule, key, cost): (&Arc<Rule>, &[u8], u64), asker: Asker, out: &mut Outgoing) {
        let digest = self.digests.digest(&rule.policy, key);
        let request = Request { rule, digest, key, cost, peek: false };
        let cell = self.cell(digest);
        let Locked { engine, watched } = &mut *cell.lock();
        match engine {
            Engine::Embedded(embedded) => watched.tried(rule, &embedded.check(self.store_time(now), request)),
            Engine::Leasing(leasing) => {
                match leasing.shard.check(now, request) {
                    Outcome::Decided(decision) => watched.tried(rule, &decision),
                    Outcome::Parked(ticket) => {
                        let charged = Charged { rule: rule.clone(), digest, key: KeyStart::of(key), cost, came: now };
                        leasing.parked.insert(ticket, Parked { waiter: None, charged: Some(Box::new(charged)) });
                    }
                }
                self.drain_effects(now, cell, (leasing, watched), asker, out);
            }
        }
    }

    /// What limits on trial have admitted and denied, by the names of their policies.
    #[must_use]
    pub fn tried(&self) -> BTreeMap<Arc<str>, [u64; 2]> {
        let mut all = BTreeMap::<Arc<str>, [u64; 2]>::new();
        for cell in &self.cells {
            for (rule, counts) in &cell.lock().watched.tried {
                let sums = all.entry(rule.strip_suffix(ON_TRIAL).unwrap_or(rule).into()).or_default();
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
        }
        all
    }

    /// Takes back an admission whose request was denied by another key. The caller must [`Self::flush`] afterwards.
    pub fn rollback(&self, now: Instant, asker: Asker, request: Request<'_>, decision: &Decision, out: &mut Outgoing) {
        let cell = self.cell(request.digest);
        let Locked { engine, watched } = &mut *cell.lock();
        self.undone(now, &request, Event::GivenBack, out);
        match engine {
            Engine::Embedded(embedded) => embedded.rollback(self.store_time(now), request, decision),
            Engine::Leasing(leasing) => {
                leasing.shard.rollback(now, request, decision);
                self.drain_effects(now, cell, (leasing, watched), asker, out);
            }
        }
    }

    /// Releases a permit of a concurrent limit; false when there is no such permit here. The caller must
    /// [`Self::flush`] afterwards.
    pub fn release(&self, now: Instant, digest: Digest, permit: NonZeroU64, out: &mut Outgoing) -> bool {
        let cell = self.cell(digest);
        let Locked { engine, watched } = &mut *cell.lock();
        match engine {
            Engine::Embedded(embedded) => embedded.release(self.store_time(now), digest, permit),
            Engine::Leasing(leasing) => {
                let released = leasing.shard.release(now, digest, permit);
                self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
                released
            }
        }
    }

    /// Takes the outcome of a call that left in the turn of `asker`. Calls that follow from it leave in the same
    /// turn.
    pub fn handle_outcome(
        &self,
        now: Instant,
        asker: Asker,
        call: &Call,
        outcome: Result<Grant, StoreError>,
        out: &mut Outgoing,
    ) {
        let cell = self.cell(call.digest);
        if let Locked { engine: Engine::Leasing(leasing), watched } = &mut *cell.lock() {
            leasing.shard.handle_outcome(now, call, outcome);
            self.drain_effects(now, cell, (leasing, watched), asker, out);
        }
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }

    /// Handles the deadlines that have passed in all shards.
    pub fn handle_timeouts(&self, now: Instant, out: &mut Outgoing) {
        for cell in &self.cells {
            if cell.due.get() <= now.0
                && let Locked { engine: Engine::Leasing(leasing), watched } = &mut *cell.lock()
            {
                leasing.shard.handle_timeout(now);
                self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
            }
        }
    }

    /// Uses this view of the fleet from now on.
    pub fn handle_fleet(&self, view: FleetView) {
        self.each_shard(|shard| shard.handle_fleet(view));
    }

    /// Takes a peer's report.
    pub fn handle_usage(&self, now: Instant, origin: PeerIndex, usage: &Usage, out: &mut Outgoing) {
        let cell = self.cell(usage.digest);
        if let Locked { engine: Engine::Leasing(leasing), watched } = &mut *cell.lock() {
            leasing.shard.handle_usage(now, origin, usage);
            self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
        }
    }

    /// Appends reports for peers, as many as make about `most` entries for each; those about what the store has lost
    /// come first. Each call begins with another shard, so that all are served.
    pub fn drain_usage(&self, now: Instant, most: usize, into: &mut Vec<Report>) {
        let first = self.round.fetch_add(1, Ordering::Relaxed) % SHARDS;
        for drain in [Shard::drain_losses, Shard::drain_others] {
            for index in 0..SHARDS {
                if let Engine::Leasing(leasing) = &mut self.cells[(first + index) % SHARDS].lock().engine {
                    drain(&mut leasing.shard, now, most, into);
                }
            }
        }
    }

    /// Lets the gossip rest, until [`Self::news`] wakes it; false when there is something to report already.
    pub(super) fn rest(&self) -> bool {
        // A shard that has news after this line wakes the gossip; one that had some before is seen below.
        self.rests.store(true, Ordering::Relaxed);
        let mut has_news = false;
        self.each_shard(|shard| has_news |= shard.has_reports());
        self.rests.store(!has_news, Ordering::Relaxed);
        !has_news
    }

    /// The gossip is awake; news need not wake it.
    pub(super) fn end_rest(&self) {
        self.rests.store(false, Ordering::Relaxed);
    }

    /// Notes a check that the policy decided, for which no shard was asked.
    pub fn note_fixed(&self, now: Instant, subject: &Subject<'_>, cost: u64, decision: &Decision) {
        if decision.verdict == Verdict::Deny || self.recording.get().is_some() {
            let mut out = Outgoing::default();
            let watched = &mut self.cell(subject.digest).lock().watched;
            self.decided(now, watched, (now, cost), || *subject, decision, &mut out);
            self.hand_over(&mut out);
        }
    }

    /// Records the decision about a check that charges; `came` is when it arrived. Each check pays for this, so it is
    /// inlined into [`Self::ask`], and `subject` is called only where something is recorded.
    #[inline(always)]
    fn decided<'a>(
        &self,
        now: Instant,
        watched: &mut Watched,
        (came, cost): (Instant, u64),
        subject: impl Fn() -> Subject<'a>,
        decision: &Decision,
        out: &mut Outgoing,
    ) {
        let is_denied = decision.verdict == Verdict::Deny;
        if is_denied {
            watched.denied(now, &subject(), decision);
            self.denials.ring();
        }
        if let Some(recording) = self.recording.get() {
            let event = if is_denied { Event::Denied } else { Event::Admitted };
            recording.add(&mut out.arrived, came, cost, event, subject);
        }
    }

    /// Records that a key was reset, or a cost given back.
    #[inline(never)]
    fn undone(&self, now: Instant, request: &Request<'_>, event: Event, out: &mut Outgoing) {
        if let Some(recording) = self.recording.get() {
            recording.add(&mut out.arrived, now, request.cost, event, || subject(request));
        }
    }

    /// Hands recorded arrivals to the thread of `record.file`.
    fn hand_over(&self, out: &mut Outgoing) {
        if let Some(recording) = self.recording.get() {
            recording.hand_over(&mut out.arrived);
        }
    }

    /// Moves what was denied since the last call.
    pub fn take_denials(&self, into: &mut Vec<Denial>) {
        self.cells.iter().for_each(|cell| cell.lock().watched.denied.take(into));
    }

    /// Records arrivals from now on, into [`Self::recording`].
    pub fn record(&self, with_keys: bool) {
        // Once set, it stays as it is: the file is opened once.
        let _ = self.recording.set(Recording::new(with_keys));
    }

    /// The arrivals that were recorded, once [`Self::record`] was called.
    pub fn recording(&self) -> Option<&Recording> {
        self.recording.get()
    }

    /// The keys that all shards have seen often of late; a key may come up twice.
    #[must_use]
    pub fn hot_keys(&self, now: Instant, kind: Kind) -> Vec<Seen> {
        let mut seen = Vec::new();
        self.cells.iter().for_each(|cell| cell.lock().watched.hot.seen(now, kind, &mut seen));
        seen
    }

    fn each_shard(&self, mut act: impl FnMut(&mut Shard)) {
        for cell in &self.cells {
            if let Engine::Leasing(leasing) = &mut cell.lock().engine {
                act(&mut leasing.shard);
            }
        }
    }

    /// Returns all tokens that are held.
    pub fn drain(&self, now: Instant, out: &mut Outgoing) {
        for cell in &self.cells {
            if let Locked { engine: Engine::Leasing(leasing), watched } = &mut *cell.lock() {
                leasing.shard.handle_drain(now);
                self.drain_effects(now, cell, (leasing, watched), Asker::NODE, out);
            }
        }
    }

    /// Asks peers through `lending` from now on. Only the first call has an effect.
    pub fn ask_through(&self, lending: Arc<Lending>) {
        let _ = self.lending.set(lending);
    }

    /// Carries on the effects of the shards. No lock may be held.
    #[inline]
    pub fn flush(&self, out: &mut Outgoing) {
        if !out.arrived.is_empty() {
            self.hand_over(out);
        }
        // A check that was decided from memory has no effects.
        if !out.is_empty() {
            self.carry_on(out);
        }
    }

    fn carry_on(&self, out: &mut Outgoing) {
        for (peer, ask) in out.asks.drain(..) {
            // Always set here: shards learn of owners only after it was set, and ask nobody before that.
            if let Some(lending) = self.lending.get() {
                lending.ask(peer, &ask);
            }
        }
        out.answers.drain(..).for_each(|(reply, answer)| reply.send(&answer));
        for (waiter, decision) in out.replies.drain(..) {
            waiter.answer(Answer::Decision(decision));
        }
        if std::mem::take(&mut out.timer) {
            self.wakeup.notify_one();
        }
        if std::mem::take(&mut out.news) {
            self.news.notify_one();
        }
        match &out.bell {
            Some(bell) if (1..WAKE_AT).contains(&out.calls) => bell.notify_one(),
            _ => self.ring(out),
        }
    }

    /// Rings the turnstile, if calls were put into it.
    pub(super) fn ring(&self, out: &mut Outgoing) {
        if std::mem::take(&mut out.calls) > 0
            && let Some(calls) = &self.calls
        {
            calls.ring();
        }
    }

    /// The earliest deadline of all shards; `u64::MAX` for none.
    pub(super) fn earliest(&self) -> u64 {
        self.cells.iter().map(|cell| cell.due.get()).min().unwrap_or(u64::MAX)
    }

    /// Calls that have left the shards and have no outcome yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Adjusts the embedded store's clock, which is the monotonic clock plus an offset, towards the wall clock, by at
    /// most `step` per call. A jump of the wall clock is thus followed slowly, so that it does not open a window
    /// early.
    pub(super) fn draw_to_wall(&self, step: Micros) {
        let wanted = self.clock.wall().0.wrapping_sub(self.clock.now().0) as i64;
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

    fn cell(&self, digest: Digest) -> &Cell {
        &self.cells[(digest.0 >> 64) as usize % SHARDS]
    }

    /// The embedded store's clock at `now`.
    fn store_time(&self, now: Instant) -> Timestamp {
        Timestamp(now.0.wrapping_add(self.offset.load(Ordering::Relaxed)))
    }

    /// Called while the shard is locked, so that its calls leave in the order of their ids.
    fn send(&self, asker: Asker, call: Box<Call>, out: &mut Outgoing) {
        if let Some(calls) = &self.calls {
            self.in_flight.fetch_add(1, Ordering::AcqRel);
            calls.enter(asker, call);
            out.calls += 1;
        }
    }

    /// Takes the effects out of the shard and stores its deadline. Calls leave in the turn of `asker`.
    fn drain_effects(
        &self,
        now: Instant,
        cell: &Cell,
        (leasing, watched): (&mut Leasing, &mut Watched),
        asker: Asker,
        out: &mut Outgoing,
    ) {
        while let Some(effect) = leasing.shard.poll_effect() {
            match effect {
                Effect::Call(call) => self.send(asker, call, out),
                Effect::Reply { ticket, decision } => {
                    if let Some(Parked { waiter, charged }) = leasing.parked.remove(&ticket) {
                        let Some(waiter) = waiter else {
                            charged.into_iter().for_each(|charged| watched.tried(&charged.rule, &decision));
                            continue;
                        };
                        if let Some(charged) = charged {
                            let Charged { rule, digest, key, cost, came } = &*charged;
                            let subject = || Subject {
                                policy: &rule.policy,
                                rule: Some(rule),
                                digest: *digest,
                                key: key.bytes(),
                            };
                            self.decided(now, watched, (*came, *cost), subject, &decision, out);
                        }
                        out.replies.push((waiter, decision));
                    }
                }
                Effect::Ask { peer, ask } => out.asks.push((peer, ask)),
                Effect::Answer { ticket, answer } => {
                    let reply = leasing.asked.remove(&ticket);
                    out.answers.extend(reply.map(|reply| (reply, answer)));
                }
            }
        }
        out.news |= leasing.shard.has_reports() && self.rests.load(Ordering::Relaxed);
        self.note_deadline(cell, leasing, out);
    }

    fn note_deadline(&self, cell: &Cell, leasing: &Leasing, out: &mut Outgoing) {
        let due = leasing.shard.poll_timeout().map_or(u64::MAX, |at| at.0);
        out.timer |= cell.due.set(due, &self.timer);
    }
}

impl Cell {
    /// Inlined, because every check calls it.
    #[inline(always)]
    fn lock(&self) -> MutexGuard<'_, Locked> {
        // A panic in the middle of a change leaves the shard in an unknown state. It must not go on deciding: it
        // could lend tokens twice.
        self.locked.lock().unwrap_or_else(|_| vital::abort("a shard was left in the middle of a change by a panic"))
    }
}

fn subject<'a>(request: &Request<'a>) -> Subject<'a> {
    let Request { rule, digest, key, .. } = *request;
    Subject { policy: &rule.policy, rule: Some(rule), digest, key }
}

fn secret() -> u128 {
    u128::from(clock::random()) << 64 | u128::from(clock::random())
}
