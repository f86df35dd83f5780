//! One Redis server that takes our calls: its connection, its breaker, and what is known of it.
//!
//! An exchange never dials and never waits for another server: without a connection it fails at
//! once. The keeper, a task per server, dials, probes and asks after the server's health. Knows
//! nothing of slots. Called by `redis.rs` (exchanges) and `cluster.rs` (which servers there are).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::address::{Address, Dialer};
use super::breaker::{Breaker, BreakerState, Fault, Pass};
use super::health::{self, Health};
use super::link::{Answer, CONNECT_TIMEOUT, Letter, Link, Lost};
use super::reply::{Refusal, refusal, text};
use super::tally::{ServerView, Tally};
use crate::clock::{self, Clock};
use crate::core::time::{Instant, Micros};

/// Between two looks at a server's health.
const CHECKUP: Duration = Duration::from_secs(60);

/// Between two looks for a replica while one is missed.
const REPLICA_CHECK: Duration = Duration::from_secs(1);

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

struct Inner {
    address: Address,
    shared: Arc<Shared>,
    breaker: Mutex<Breaker>,
    link: Mutex<Option<Arc<Link>>>,
    health: Mutex<Health>,
    problem: Mutex<Option<String>>,
    /// A replica was in touch when last looked, and has not failed to confirm since.
    has_replica: AtomicBool,
    wake: Notify,
    connected: watch::Sender<bool>,
}

impl Drop for Master {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

    fn fail(&self, pass: Pass, fault: Fault, what: &str) {
        let opened = lock(&self.breaker).handle_fault(self.shared.clock.now(), pass, fault);
        if opened {
            tracing::warn!(server = %self.address, reason = what, "store: server is away");
            *lock(&self.problem) = Some(what.to_owned());
            self.shared.tally.breaker_opened.fetch_add(1, Relaxed);
            self.wake.notify_one();
            self.shared.alarm.notify_one();
        }
    }

    /// Whether a replica is expected to confirm and none is in touch.
    fn misses_replica(&self) -> bool {
        self.shared.confirm.load(Relaxed) && !self.has_replica.load(Relaxed)
    }

    fn handle_health(&self, health: Health) {
        let mut known = lock(&self.health);
        if let Some(policy) = health.maxmemory_policy.as_deref().filter(|policy| *policy != "noeviction")
            && known.maxmemory_policy.as_deref() != Some(policy)
        {
            tracing::warn!(
                server = %self.address, policy,
                "store: counters may be evicted, and limits admitted anew: set maxmemory-policy noeviction"
            );
        }
        if health.full_coverage == Some(true) && known.full_coverage != Some(true) {
            tracing::warn!(
                server = %self.address,
                "store: all shards stop when one does: set cluster-require-full-coverage no"
            );
        }
        self.has_replica.store(health.replicas.unwrap_or(0) > 0, Relaxed);
        *known = health;
    }

    /// Dials and asks after the server's health; both must be answered for calls to pass.
    async fn probe(self: &Arc<Self>) -> Result<(), String> {
        let generation = lock(&self.breaker).next_generation();
        let weak = Arc::downgrade(self);
        let told = move || lost(&weak, generation);
        self.shared.tally.dials.fetch_add(1, Relaxed);
        let Shared { dialer, timeout: patience, confirming, .. } = &*self.shared;
        let link = Link::dial(dialer, &self.address, generation, *patience, *confirming, told);
        let link = link.await.map_err(|error| error.to_string())?;
        // By the calls' own deadline: a server that cannot meet it would only make them time out.
        let answers = timeout(self.shared.timeout, link.send_all(&health::questions(self.shared.cluster))).await;
        let answers = answers.map_err(|_| "no answer in time")?.map_err(|Lost| "the connection broke")?;
        if let Some(refused) = answers.first().filter(|pong| text(pong).is_none_or(|pong| pong != "PONG")) {
            return Err(match refusal(refused) {
                Some(Refusal::Away(said) | Refusal::Rejected(said)) => said,
                _ => format!("PING was answered by {refused:?}"),
            });
        }
        self.handle_health(health::read(&answers));
        *lock(&self.link) = Some(Arc::new(link));
        lock(&self.breaker).handle_probe();
        self.connected.send_replace(true);
        Ok(())
    }

    /// Looks after a server that answers.
    async fn checkup(&self) {
        let Some(link) = lock(&self.link).clone() else { return };
        match timeout(CONNECT_TIMEOUT, link.send_all(&health::questions(self.shared.cluster))).await {
            Ok(Ok(answers)) => self.handle_health(health::read(&answers)),
            Ok(Err(Lost)) => self.fail(Breaker::on_behalf_of(link.generation), Fault::Lost, "the connection broke"),
            // Five deadlines of a call: as good as a refusal.
            Err(_) => self.fail(Breaker::on_behalf_of(link.generation), Fault::Refused, "no answer to INFO in time"),
        }
    }
}

/// The connection has gone, perhaps while nobody used it.
fn lost(inner: &Weak<Inner>, generation: u64) {
    if let Some(inner) = inner.upgrade() {
        inner.fail(Breaker::on_behalf_of(generation), Fault::Lost, "the connection was closed");
    }
}

/// The keeper of one server.
async fn keep(inner: Arc<Inner>) {
    let mut complained = false;
    loop {
        let due = lock(&inner.breaker).probe_at();
        let Some(due) = due else {
            complained = false;
            let pause = if inner.misses_replica() { REPLICA_CHECK } else { CHECKUP };
            if timeout(pause, inner.wake.notified()).await.is_err() {
                inner.checkup().await;
            }
            continue;
        };
        let now = inner.shared.clock.now();
        sleep(Duration::from_micros(due.since(now).0)).await;
        match inner.probe().await {
            Ok(()) => tracing::info!(server = %inner.address, "store: connected"),
            Err(problem) => {
                if !complained {
                    tracing::warn!(server = %inner.address, problem, "store: cannot connect, will go on trying");
                    complained = true;
                }
                *lock(&inner.problem) = Some(problem);
                let jitter = Micros(clock::random() % 50_000);
                lock(&inner.breaker).handle_failed_probe(inner.shared.clock.now(), jitter);
                inner.shared.alarm.notify_one();
            }
        }
    }
}
