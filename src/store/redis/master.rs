//! One Redis server that takes our calls: its connection, its breaker, and what is known of it.
//!
//! An exchange never dials and never waits for another server: without a connection it fails at
//! once. Its keeper (`keeper.rs`) connects in the background. Knows nothing of slots. Called by `redis.rs` (exchanges) and `cluster.rs` (which servers there are).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::address::{Address, Dialer};
use super::health::Health;
use super::keeper::keep;
use super::link::{Answer, Letter, Link, Lost};
use super::reply::{Refusal, refusal};
use super::tally::{ServerView, Tally};
use crate::clock::Clock;
use crate::core::time::Instant;
use crate::store::breaker::{Breaker, BreakerState, Fault, Pass};

/// What all servers of a store share.
pub(crate) struct Shared {
    pub(crate) dialer: Dialer,
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
    pub(crate) cluster: bool,
    pub(crate) tally: Tally,
    /// Woken when a server fails: the slot map may be out of date.
    pub(crate) alarm: Notify,
    /// Grants may have to be confirmed.
    pub(crate) confirming: bool,
    /// They have to be, now: wherever a replica is in touch.
    pub(crate) confirm: AtomicBool,
}

/// How an exchange failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody knows whether it was executed.
    Unknown,
    /// Surely not executed: the server is away since then.
    Away(Instant),
    /// Surely not executed: go there.
    Moved(String),
    /// Surely not executed: ask there.
    Ask(String),
    /// Surely not executed: send the source.
    NoScript,
    /// Surely not executed: it never will be.
    Rejected(String),
}

/// A server and its keeper, which ends with it.
pub(crate) struct Master {
    inner: Arc<Inner>,
    keeper: tokio::task::JoinHandle<()>,
}

/// A server as its keeper and its callers know it.
pub(super) struct Inner {
    pub(super) address: Address,
    pub(super) shared: Arc<Shared>,
    pub(super) breaker: Mutex<Breaker>,
    pub(super) link: Mutex<Option<Arc<Link>>>,
    pub(super) health: Mutex<Health>,
    pub(super) problem: Mutex<Option<String>>,
    /// A replica was in touch when last looked, and has not failed to confirm since.
    pub(super) has_replica: AtomicBool,
    pub(super) wake: Notify,
    pub(super) connected: watch::Sender<bool>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks, and if it did the value would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Master {
    /// A server; its keeper begins to connect. Needs a tokio runtime.
    pub(crate) fn new(address: Address, shared: Arc<Shared>) -> Self {
        let inner = Arc::new(Inner {
            address,
            breaker: Mutex::new(Breaker::new(shared.clock.now())),
            shared,
            link: Mutex::new(None),
            health: Mutex::new(Health::default()),
            problem: Mutex::new(None),
            has_replica: AtomicBool::new(false),
            wake: Notify::new(),
            connected: watch::Sender::new(false),
        });
        let keeper = tokio::spawn(keep(inner.clone()));
        Self { inner, keeper }
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
        ServerView {
            address: self.inner.address.to_string(),
            breaker,
            away_since,
            problem: lock(&self.inner.problem).clone().filter(|_| away_since.is_some()),
            replicas: health.replicas,
            maxmemory_policy: health.maxmemory_policy,
            full_coverage: health.full_coverage,
        }
    }

    /// Sends `letter` and awaits the answer for as long as `remaining`; `confirmed` awaits a replica.
    pub(crate) async fn exchange(
        &self,
        letter: Letter,
        confirmed: bool,
        remaining: Duration,
    ) -> Result<Answer, Failure> {
        let inner = &*self.inner;
        let flight = inner.depart()?;
        let link = lock(&inner.link).clone();
        let Some(link) = link else { return Err(flight.land_lost()) };
        let started = inner.shared.clock.now();
        let sent = async { if confirmed { link.send_confirmed(letter).await } else { link.send(letter).await } };
        match timeout(remaining, sent).await {
            Err(_) => Err(flight.land(Fault::Silent, "no answer in time")),
            Ok(Err(Lost)) => Err(flight.land(Fault::Lost, "the connection broke")),
            Ok(Ok(answer)) => {
                inner.shared.tally.count_latency(inner.shared.clock.now().since(started));
                if confirmed && answer.replicas.is_some_and(|replicas| replicas < 1) {
                    inner.has_replica.store(false, Relaxed);
                    inner.wake.notify_one();
                }
                flight.judge(answer)
            }
        }
    }

    /// Asks this server something outside the calls; `None` when it does not answer.
    pub(crate) async fn ask(&self, question: &Pipeline, patience: Duration) -> Option<Vec<Value>> {
        let link = lock(&self.inner.link).clone()?;
        timeout(patience, link.send_all(question)).await.ok()?.ok()
    }
}

/// A call on its way. One that is dropped without an answer counts as unanswered.
struct Flight<'a> {
    inner: &'a Inner,
    pass: Pass,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.inner.fail(self.pass, Fault::Silent, "a call was given up");
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

    fn away_since(&self) -> Instant {
        lock(&self.breaker).away_since().unwrap_or_else(|| self.shared.clock.now())
    }

    /// Takes note of a fault.
    pub(super) fn fail(&self, pass: Pass, fault: Fault, what: &str) {
        let opened = lock(&self.breaker).handle_fault(self.shared.clock.now(), pass, fault);
        if opened {
            tracing::warn!(server = %self.address, reason = what, "store: server is away");
            *lock(&self.problem) = Some(what.to_owned());
            self.shared.tally.breaker_opened.fetch_add(1, Relaxed);
            self.wake.notify_one();
            self.shared.alarm.notify_one();
        }
    }
}
