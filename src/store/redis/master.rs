//! One Redis server that takes our calls: its connection, its breaker, and what is known of it.
//!
//! An exchange never dials and never waits for another server: without a connection it fails at
//! once. It passes the gate (`gate.rs`) and has its answer however late that comes, as long as the
//! connection lives. Its keeper (`keeper.rs`) connects in the background. Knows nothing of slots. Called by
//! `redis.rs` (exchanges) and `cluster.rs` (which servers there are).

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::task::unconstrained;
use tokio::time::{sleep, timeout};

use super::address::Address;
use super::failure::Failure;
use super::gate::{Entry, Gate, Parcel, Permit};
use super::health::Health;
use super::keeper::keep;
use super::link::Answer;
use super::reply::{Refusal, refusal};
use super::server::{Inner, Shared, lock};
use super::supervised::supervised;
use super::tally::ServerView;
use crate::core::time::{Instant, Micros};
use crate::store::breaker::{Breaker, BreakerState, Fault, Pass};
use crate::store::pulse::LATE;

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

    /// Sends a letter when it may leave, and awaits the answer however long that takes.
    pub(crate) async fn exchange(&self, parcel: Parcel) -> Result<Answer, Failure> {
        let inner = &*self.inner;
        if let Some(since) = inner.shut_since() {
            return Err(Failure::Away(since));
        }
        let mut until = parcel.until;
        let (spot, mut outcome) = match inner.gate.enter(parcel) {
            Entry::Leave(permit, parcel) => return inner.carry(permit, parcel).await,
            Entry::Full(wait) => return Err(Failure::Busy(wait)),
            Entry::Wait(spot, outcome) => (spot, outcome),
        };
        let (mut waits, mut excused) = (true, false);
        loop {
            let remaining = Duration::from_micros(until.since(inner.shared.clock.now()).0);
            tokio::select! {
                biased;
                // Without a word the porter has ended, and with him the store.
                outcome = &mut outcome => return outcome.unwrap_or_else(|_| Err(Failure::Away(inner.away_since()))),
                () = sleep(remaining), if waits => {
                    let late = inner.shared.clock.now().since(until);
                    if late > LATE && !excused {
                        // It was this node that was not run: the server has its time all the same.
                        until = inner.shared.clock.now() + late.min(inner.patience());
                        excused = true;
                    } else if let Some(wait) = inner.gate.withdraw(spot) {
                        return Err(Failure::Busy(wait));
                    } else {
                        waits = false;
                    }
                }
            }
        }
    }

    /// Asks this server something outside the calls; `None` when it does not answer.
    pub(crate) async fn ask(&self, question: &Pipeline, patience: Duration) -> Option<Vec<Value>> {
        let link = lock(&self.inner.link).clone()?;
        timeout(patience, link.send_all(question)).await.ok()?.ok()
    }
}

/// Sends those on their way who waited at the gate, for ever.
async fn port(inner: Arc<Inner>) {
    loop {
        inner.gate.room.notified().await;
        loop {
            let batch = inner.gate.depart();
            if batch.is_empty() {
                break;
            }
            for (permit, parcel, reply) in batch {
                let carrier = inner.clone();
                // Unconstrained: after so many letters the runtime would let no more of them begin in this turn.
                let mut carried = Box::pin(unconstrained(async move {
                    // Whoever asked may be gone.
                    let _ = reply.send(carrier.carry(permit, parcel).await);
                }));
                // Begun here, so that letters go out in the order in which they lined up.
                let begun = poll_fn(|cx| Poll::Ready(carried.as_mut().poll(cx))).await;
                if begun.is_pending() {
                    tokio::spawn(carried);
                }
            }
        }
    }
}

/// A call on its way. One that is dropped without an answer says nothing.
struct Flight<'a> {
    inner: &'a Inner,
    pass: Pass,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            lock(&self.inner.breaker).handle_abandoned(self.pass);
        }
    }
}

impl Flight<'_> {
    fn land(mut self, fault: Fault, what: &str) -> Failure {
        self.landed = true;
        self.inner.fail(self.pass, fault, what);
        Failure::Unknown
    }

    /// There was no connection to leave by.
    fn land_lost(self) -> Failure {
        let inner = self.inner;
        self.land(Fault::Lost, "there is no connection");
        Failure::Away(inner.away_since())
    }

    fn judge(mut self, answer: Answer) -> Result<Answer, Failure> {
        self.landed = true;
        let failure = match refusal(&answer.value) {
            Some(Refusal::Away(said)) => {
                self.inner.fail(self.pass, Fault::Refused, &said);
                return Err(Failure::Away(self.inner.away_since()));
            }
            None => None,
            Some(Refusal::Moved(place)) => Some(Failure::Moved(place)),
            Some(Refusal::Ask(place)) => Some(Failure::Ask(place)),
            Some(Refusal::NoScript) => Some(Failure::NoScript),
            Some(Refusal::Rejected(said)) => Some(Failure::Rejected(said)),
        };
        lock(&self.inner.breaker).handle_answer(self.pass);
        failure.map_or(Ok(answer), Err)
    }
}

impl Inner {
    fn depart(&self) -> Result<Flight<'_>, Failure> {
        let pass = lock(&self.breaker).admit().map_err(Failure::Away)?;
        Ok(Flight { inner: self, pass, landed: false })
    }

    /// Carries a letter to the server and its answer back. Begins to when it is polled first.
    async fn carry(&self, permit: Permit, parcel: Parcel) -> Result<Answer, Failure> {
        let flight = self.depart()?;
        let link = lock(&self.link).clone();
        let Some(link) = link else { return Err(flight.land_lost()) };
        let started = self.shared.clock.now();
        let Parcel { letter, confirmed, .. } = parcel;
        let sent = if confirmed { link.send_confirmed(letter).await } else { link.send(letter).await };
        let Ok(answer) = sent else { return Err(flight.land(Fault::Lost, "the connection broke")) };
        permit.answered(answer.took);
        self.shared.tally.count_latency(self.shared.clock.now().since(started));
        if confirmed && answer.replicas.is_some_and(|replicas| replicas < 1) {
            self.has_replica.store(false, Relaxed);
            self.wake.notify_one();
        }
        flight.judge(answer)
    }

    fn patience(&self) -> Micros {
        Micros(u64::try_from(self.shared.timeout.as_micros()).unwrap_or(u64::MAX))
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
            self.gate.turn_away(self.away_since());
            tracing::warn!(server = %self.address, reason = what, "store: server is away");
            *lock(&self.problem) = Some(what.to_owned());
            self.shared.tally.breaker_opened.fetch_add(1, Relaxed);
            self.wake.notify_one();
            self.shared.alarm.notify_one();
        }
    }
}
