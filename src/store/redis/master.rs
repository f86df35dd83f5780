//! One Redis server that takes our calls: its connection, its breaker, and what is known of it.
//!
//! A letter never dials and never waits for another server: without a connection it fails at
//! once. It passes the gate (`gate.rs`) and has its answer however late that comes, as long as the
//! connection lives: whoever brings the answer hands it on, so that no letter has a task. The keeper (`keeper.rs`)
//! connects in the background, and the porter sends on who waited at the gate. Knows nothing of slots. Called by
//! `journey.rs` (letters) and `cluster.rs` (which servers there are).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::address::Address;
use super::failure::Failure;
use super::frame::Reply;
use super::gate::{Entry, Gate, Letter, Parcel, Permit};
use super::health::Health;
use super::heart::Lost;
use super::keeper::keep;
use super::reply::{Refusal, refusal};
use super::server::{Inner, Shared, lock};
use super::supervised::supervised;
use super::tally::ServerView;
use super::wire::{Answer, Awaits};
use crate::core::time::{Instant, Micros};
use crate::store::breaker::{Breaker, BreakerState, Fault, Pass};

/// A server and its keeper, which ends with it.
pub(crate) struct Master {
    inner: Arc<Inner>,
    keeper: tokio::task::JoinHandle<()>,
    porter: tokio::task::JoinHandle<()>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.keeper.abort();
        self.porter.abort();
    }
}

impl Master {
    /// A server; its keeper begins to connect. Needs a tokio runtime.
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
        let (of_keeper, of_porter) = (inner.clone(), inner.clone());
        let keeper = tokio::spawn(supervised("the keeper of a server", move || keep(of_keeper.clone())));
        let porter = tokio::spawn(supervised("the porter of a server", move || port(of_porter.clone())));
        Self { inner, keeper, porter }
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

    /// Something kept it from connecting, or ended a connection.
    pub(crate) fn has_problem(&self) -> bool {
        lock(&self.inner.problem).is_some()
    }

    /// Waits until a first connection stands.
    pub(crate) async fn connected(&self) {
        let _ = self.inner.connected.subscribe().wait_for(|connected| *connected).await;
    }

    /// A call that must be confirmed could be confirmed now.
    pub(crate) fn can_confirm(&self) -> bool {
        self.inner.has_replica.load(Relaxed)
    }

    /// Lets the keeper think again about what it watches.
    pub(crate) fn reconsider(&self) {
        self.inner.wake.notify_one();
    }

    /// What is known of the server.
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

    /// Sends a letter when it may leave, and has it answered however long that takes. Returns at once.
    pub(crate) fn dispatch(&self, parcel: Parcel) {
        let inner = &self.inner;
        if let Some(since) = inner.shut_since() {
            return parcel.letter.handle_answer(Err(Failure::Away(since)));
        }
        match inner.gate.enter(parcel) {
            Entry::Leave(permit, parcel) => inner.carry(permit, parcel),
            // The porter has it answered.
            Entry::Wait => {}
            Entry::Full(parcel, wait) => parcel.letter.handle_answer(Err(Failure::Busy(wait))),
        }
    }

    /// Asks this server something outside the calls; `None` when it does not answer.
    pub(crate) async fn ask(&self, question: &Pipeline, patience: Duration) -> Option<Vec<Value>> {
        let link = lock(&self.inner.link).clone()?;
        timeout(patience, link.send_all(question)).await.ok()?.ok()
    }
}

/// Sends those on their way who waited at the gate, and turns down who waited for too long, for ever.
async fn port(inner: Arc<Inner>) {
    loop {
        match inner.gate.due() {
            None => inner.gate.room.notified().await,
            Some(due) => {
                let remaining = Duration::from_micros(due.since(inner.shared.clock.now()).0);
                // Rung or not: look.
                let _ = timeout(remaining, inner.gate.room.notified()).await;
            }
        }
        loop {
            let called = inner.gate.depart();
            let none_left = called.leaving.is_empty();
            for (permit, parcel) in called.leaving {
                inner.carry(permit, parcel);
            }
            turn_down(called.late);
            if none_left {
                break;
            }
        }
        turn_down(inner.gate.expire(inner.shared.clock.now()));
    }
}

fn turn_down(late: Vec<(Parcel, Micros)>) {
    for (parcel, wait) in late {
        parcel.letter.handle_answer(Err(Failure::Busy(wait)));
    }
}

/// A call on its way.
struct Flight {
    inner: Arc<Inner>,
    pass: Pass,
    permit: Permit,
    confirmed: bool,
    started: Instant,
    letter: Box<dyn Letter>,
}

impl Awaits for Flight {
    fn write(&self, line: &mut Vec<u8>) {
        self.letter.write(line);
    }

    fn handle_answer(self: Box<Self>, answer: Result<Answer<'_>, Lost>) {
        let Self { inner, pass, permit, confirmed, started, letter } = *self;
        let Ok(answer) = answer else {
            inner.fail(pass, Fault::Lost, "the connection broke");
            drop(permit);
            return letter.handle_answer(Err(Failure::Unknown));
        };
        permit.answered(answer.took);
        inner.shared.tally.count_latency(inner.shared.clock.now().since(started));
        if confirmed && answer.replicas.is_some_and(|replicas| replicas < 1) {
            inner.has_replica.store(false, Relaxed);
            inner.wake.notify_one();
        }
        letter.handle_answer(inner.judge(pass, answer));
    }
}

impl Inner {
    /// Carries a letter to the server, and its answer back when it comes.
    fn carry(self: &Arc<Self>, permit: Permit, parcel: Parcel) {
        let Parcel { letter, asking, confirmed, .. } = parcel;
        let admitted = lock(&self.breaker).admit();
        let pass = match admitted {
            Ok(pass) => pass,
            Err(since) => return letter.handle_answer(Err(Failure::Away(since))),
        };
        let link = lock(&self.link).clone();
        let Some(link) = link else {
            self.fail(pass, Fault::Lost, "there is no connection");
            return letter.handle_answer(Err(Failure::Away(self.away_since())));
        };
        let started = self.shared.clock.now();
        let flight = Box::new(Flight { inner: self.clone(), pass, permit, confirmed, started, letter });
        if confirmed {
            link.send_confirmed(asking, flight);
        } else {
            link.send(asking, flight);
        }
    }

    /// What an answer is for the call.
    fn judge<'a>(&self, pass: Pass, answer: Answer<'a>) -> Result<Answer<'a>, Failure> {
        let refused = match &answer.reply {
            Reply::Integers(_) => None,
            Reply::Value(value) => refusal(value),
        };
        let failure = match refused {
            Some(Refusal::Away(said)) => {
                self.fail(pass, Fault::Refused, &said);
                return Err(Failure::Away(self.away_since()));
            }
            None => None,
            Some(Refusal::Moved(place)) => Some(Failure::Moved(place)),
            Some(Refusal::Ask(place)) => Some(Failure::Ask(place)),
            Some(Refusal::NoScript) => Some(Failure::NoScript),
            Some(Refusal::Rejected(said)) => Some(Failure::Rejected(said)),
        };
        lock(&self.breaker).handle_answer(pass);
        failure.map_or(Ok(answer), Err)
    }

    /// Since when no call passes, if none does.
    fn shut_since(&self) -> Option<Instant> {
        let breaker = lock(&self.breaker);
        breaker.away_since().filter(|_| breaker.state() == BreakerState::Open)
    }

    fn away_since(&self) -> Instant {
        lock(&self.breaker).away_since().unwrap_or_else(|| self.shared.clock.now())
    }

    /// Takes note of a fault.
    pub(super) fn fail(&self, pass: Pass, fault: Fault, what: &str) {
        let opened = lock(&self.breaker).handle_fault(self.shared.clock.now(), pass, fault);
        if opened {
            if fault != Fault::Refused
                && let Some(link) = lock(&self.link).take()
            {
                link.end();
            }
            let since = self.away_since();
            for parcel in self.gate.turn_away() {
                parcel.letter.handle_answer(Err(Failure::Away(since)));
            }
            tracing::warn!(server = %self.address, reason = what, "store: server is away");
            *lock(&self.problem) = Some(what.to_owned());
            self.shared.tally.breaker_opened.fetch_add(1, Relaxed);
            self.wake.notify_one();
            self.shared.alarm.notify_one();
        }
    }
}
