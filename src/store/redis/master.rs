//! One Redis server that takes calls: its connection, its breaker, and what is known of it.
//!
//! A request never dials and never waits for another server: without a connection it fails at once. It waits at the
//! gate (`gate.rs`) until it may leave, and is then answered however late, as long as the connection lives. The task
//! of the connection delivers the answer, so no request needs a task of its own. The monitor (`monitor.rs`) connects
//! in the background, and the dispatcher sends the requests that have waited at the gate. Knows nothing of slots.
//! Called by `routed_call.rs` (requests) and `cluster.rs` (which servers there are).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::address::Address;
use super::failure::Failure;
use super::frame::Reply;
use super::gate::{Entry, Gate, GatePermit, Request, Submission};
use super::health::Health;
use super::heart::ConnectionLost;
use super::joined::Joined;
use super::monitor::monitor_server;
use super::reply::{ServerRefusal, refusal};
use super::server::{Inner, Shared, lock};
use super::stats::ServerView;
use super::supervised::supervised;
use super::wire::{Answer, Pending};
use crate::core::time::{Instant, Micros};
use crate::store::breaker::{Breaker, BreakerState, Fault, Pass};
use crate::store::script::Script;
use crate::store::turns::Asker;

/// A server, with its monitor and dispatcher, which end with it.
pub(crate) struct Master {
    inner: Arc<Inner>,
    monitor: tokio::task::JoinHandle<()>,
    dispatcher: tokio::task::JoinHandle<()>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.monitor.abort();
        self.dispatcher.abort();
    }
}

impl Master {
    /// A server whose monitor begins to connect. Needs a tokio runtime.
    pub(crate) fn new(address: Address, shared: Arc<Shared>) -> Self {
        let patience = Micros(u64::try_from(shared.timeout.as_micros()).unwrap_or(u64::MAX));
        let inner = Arc::new(Inner {
            address,
            breaker: Mutex::new(Breaker::new(shared.clock.now())),
            gate: Arc::new(Gate::new(shared.clock, patience)),
            shared,
            link: Mutex::new(None),
            health: Mutex::new(Health::default()),
            problem: Mutex::new(None),
            has_replica: AtomicBool::new(false),
            wake: Notify::new(),
            connected: watch::Sender::new(false),
        });
        let (of_monitor, of_dispatcher) = (inner.clone(), inner.clone());
        let monitor = tokio::spawn(supervised("the monitor of a server", move || monitor_server(of_monitor.clone())));
        let dispatcher =
            tokio::spawn(supervised("the dispatcher of a server", move || dispatch_waiting(of_dispatcher.clone())));
        Self { inner, monitor, dispatcher }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.inner.address
    }

    pub(crate) fn is_open(&self) -> bool {
        lock(&self.inner.breaker).state() == BreakerState::Open
    }

    pub(crate) fn away_since(&self) -> Option<Instant> {
        lock(&self.inner.breaker).away_since()
    }

    /// Whether an attempt to connect has failed, or a connection has broken.
    pub(crate) fn has_problem(&self) -> bool {
        lock(&self.inner.problem).is_some()
    }

    /// Waits until the first connection is made.
    pub(crate) async fn connected(&self) {
        let _ = self.inner.connected.subscribe().wait_for(|connected| *connected).await;
    }

    /// Whether a replica is there to confirm a call.
    pub(crate) fn can_confirm(&self) -> bool {
        self.inner.has_replica.load(Relaxed)
    }

    /// Makes the monitor check at once what it has to watch.
    pub(crate) fn reconsider(&self) {
        self.inner.wake.notify_one();
    }

    /// The state of the server, for metrics and listings.
    pub(crate) fn view(&self) -> ServerView {
        let (breaker, away_since) = {
            let breaker = lock(&self.inner.breaker);
            (breaker.state(), breaker.away_since())
        };
        let health = lock(&self.inner.health).clone();
        let (window, out, waiting) = self.inner.gate.view();
        ServerView {
            window,
            out,
            waiting,
            address: self.inner.address.to_string(),
            breaker,
            away_since,
            problem: lock(&self.inner.problem).clone().filter(|_| away_since.is_some()),
            replicas: health.replicas,
            maxmemory_policy: health.maxmemory_policy,
            full_coverage: health.full_coverage,
        }
    }

    /// Sends a request at `now`, or as soon as it may leave; it is answered however long that takes. Returns at once.
    pub(crate) fn dispatch(&self, now: Instant, submission: Submission) {
        let inner = &self.inner;
        if let Some(since) = inner.shut_since() {
            return submission.request.handle_answer(Err(Failure::Away(since)));
        }
        match inner.gate.enter(now, submission) {
            Entry::Leave(permit, submission) => inner.carry(permit, submission),
            // The dispatcher will send it or turn it down.
            Entry::Wait => {}
            Entry::Full(submission, wait) => submission.request.handle_answer(Err(Failure::Busy(wait))),
        }
    }

    /// Whether requests wait here.
    pub(crate) fn is_late(&self) -> bool {
        self.inner.gate.is_late()
    }

    /// `asker` waits for what was requested about a key, if that has not left.
    pub(crate) fn hurry(&self, asker: Asker, key: u128) {
        self.inner.gate.hurry(asker, key);
    }

    /// Sends the server commands that are no calls; `None` when it does not answer in time.
    pub(crate) async fn ask(&self, question: &Pipeline, patience: Duration) -> Option<Vec<Value>> {
        let link = lock(&self.inner.link).clone()?;
        timeout(patience, link.send_all(question)).await.ok()?.ok()
    }
}

/// The dispatcher: sends requests that have waited at the gate, and turns down those that have waited for too long.
/// Runs until it is aborted.
async fn dispatch_waiting(inner: Arc<Inner>) {
    loop {
        match inner.gate.due() {
            None => inner.gate.room.notified().await,
            Some(due) => {
                let remaining = Duration::from_micros(due.since(inner.shared.clock.now()).0);
                // Whether notified or timed out, the gate is looked at.
                let _ = timeout(remaining, inner.gate.room.notified()).await;
            }
        }
        loop {
            let called = inner.gate.depart();
            let none_left = called.leaving.is_empty();
            for (permit, submission) in called.leaving {
                inner.carry(permit, submission);
            }
            inner.turn_down(called.late);
            if none_left {
                break;
            }
        }
        inner.turn_down(inner.gate.expire(inner.shared.clock.now()));
    }
}

/// A request that was sent to the server.
struct SentCall {
    inner: Arc<Inner>,
    pass: Pass,
    permit: GatePermit,
    confirmed: bool,
    request: Box<dyn Request>,
}

impl Pending for SentCall {
    fn write(&self, line: &mut Vec<u8>) {
        self.request.write(line);
    }

    fn unusual(&self) -> Option<&'static Script> {
        self.request.unusual()
    }

    fn join(&self, joined: &mut Joined) -> bool {
        self.request.join(joined)
    }

    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, ConnectionLost>) {
        let Self { inner, pass, permit, confirmed, request } = *self;
        let Ok(answer) = answer else {
            inner.fail(pass, Fault::Lost, "the connection broke");
            drop(permit);
            return request.handle_answer(Err(Failure::Unknown));
        };
        let (at, took) = (answer.at, answer.took);
        inner.shared.stats.count_latency(at.since(permit.left()));
        if confirmed && answer.replicas.is_some_and(|replicas| replicas < 1) {
            inner.has_replica.store(false, Relaxed);
            inner.wake.notify_one();
        }
        // The breaker hears of a trial call's answer before those who wait for it may leave.
        let judged = inner.judge(pass, answer);
        permit.answered(at, took);
        request.handle_answer(judged);
    }
}

impl Inner {
    /// Sends a request to the server, unless the breaker stops it.
    fn carry(self: &Arc<Self>, permit: GatePermit, submission: Submission) {
        let Submission { request, asking, confirmed, .. } = submission;
        let admitted = lock(&self.breaker).admit();
        let pass = match admitted {
            Ok(pass) => pass,
            Err(since) => return request.handle_answer(Err(Failure::Away(since))),
        };
        let link = lock(&self.link).clone();
        let Some(link) = link else {
            self.fail(pass, Fault::Lost, "there is no connection");
            return request.handle_answer(Err(Failure::Away(self.away_since())));
        };
        let left = permit.left();
        let in_flight = Box::new(SentCall { inner: self.clone(), pass, permit, confirmed, request });
        if confirmed {
            link.send_confirmed(left, asking, in_flight);
        } else {
            link.send(left, asking, in_flight);
        }
    }

    /// Answers those who have waited at the gate for too long. Where they waited for a trial call, the server is still away.
    fn turn_down(&self, late: Vec<(Submission, Micros)>) {
        for (submission, wait) in late {
            let since = lock(&self.breaker).away_since();
            submission.request.handle_answer(Err(since.map_or(Failure::Busy(wait), Failure::Away)));
        }
    }

    /// Updates the breaker by an answer, and translates refusals into failures.
    fn judge<'a>(&self, pass: Pass, answer: Answer<'a>) -> Result<Answer<'a>, Failure> {
        let refused = match &answer.reply {
            Reply::Text(_) => None,
            Reply::Value(value) => refusal(value),
        };
        let failure = match refused {
            Some(ServerRefusal::Away(said)) => {
                self.fail(pass, Fault::Refused, &said);
                return Err(Failure::Away(self.away_since()));
            }
            None => None,
            Some(ServerRefusal::Moved(place)) => Some(Failure::Moved(place)),
            Some(ServerRefusal::Ask(place)) => Some(Failure::Ask(place)),
            Some(ServerRefusal::NoScript) => Some(Failure::NoScript),
            // The script was stopped at one of several keys, and the calls before it were executed, so the outcome of
            // each is unknown. (Refusals that mean `Away` come before a script's first write.)
            Some(ServerRefusal::Rejected(said)) if answer.is_error_of_several => {
                tracing::warn!(server = %self.address, said, "store: a script for several keys failed");
                Some(Failure::Unknown)
            }
            Some(ServerRefusal::Rejected(said)) => Some(Failure::Rejected(said)),
        };
        lock(&self.breaker).handle_answer(pass);
        failure.map_or(Ok(answer), Err)
    }

    /// Since when the breaker has stopped all calls; `None` while some pass.
    fn shut_since(&self) -> Option<Instant> {
        let breaker = lock(&self.breaker);
        breaker.away_since().filter(|_| breaker.state() == BreakerState::Open)
    }

    fn away_since(&self) -> Instant {
        lock(&self.breaker).away_since().unwrap_or_else(|| self.shared.clock.now())
    }

    /// Reports a fault to the breaker. If that opens it, all waiting requests fail.
    pub(super) fn fail(&self, pass: Pass, fault: Fault, what: &str) {
        let opened = lock(&self.breaker).handle_fault(self.shared.clock.now(), pass, fault);
        if opened {
            if fault != Fault::Refused
                && let Some(link) = lock(&self.link).take()
            {
                link.end();
            }
            let since = self.away_since();
            for submission in self.gate.turn_away() {
                submission.request.handle_answer(Err(Failure::Away(since)));
            }
            tracing::warn!(server = %self.address, reason = what, "store: server is away");
            *lock(&self.problem) = Some(what.to_owned());
            self.shared.stats.breaker_opened.fetch_add(1, Relaxed);
            self.wake.notify_one();
            self.shared.map_stale.notify_one();
        }
    }
}
