//! The monitor of one Redis server: a task that connects, probes, and checks the server's health.
//!
//! It decides when to dial; the breaker decides how often, and whether calls may pass. It records its findings in the
//! server's `Inner`. Started by `master.rs`, and ends with the server.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::evalsha;
use super::health::{self, Health};
use super::heart::ConnectionLost;
use super::link::{CONNECT_TIMEOUT, DialOptions, Link};
use super::reply::{ServerRefusal, refusal, text};
use super::server::{Inner, Shared, lock};
use crate::clock;
use crate::core::time::Micros;
use crate::store::breaker::{Breaker, Fault};

/// Time between two checks of a server's health, which people set and rarely change.
const CHECKUP: Duration = Duration::from_secs(60);

/// Time between two checks for replicas, where grants may have to be confirmed: until one is seen, leases are small.
const REPLICA_CHECK: Duration = Duration::from_secs(1);

/// How many different problems of one outage are logged, each once. A server that restarts has several: it refuses
/// connections, then loads its data, and may then want another password.
const MOST_WARNINGS: usize = 8;

/// Monitors one server until the task is aborted.
pub(super) async fn monitor_server(inner: Arc<Inner>) {
    let mut warned: Vec<String> = Vec::new();
    let mut looks = 0;
    loop {
        let due = lock(&inner.breaker).probe_at();
        let Some(due) = due else {
            warned.clear();
            let pause = if inner.shared.confirming { REPLICA_CHECK } else { CHECKUP };
            if timeout(pause, inner.wake.notified()).await.is_err() {
                looks += 1;
                if pause * looks >= CHECKUP {
                    looks = 0;
                    inner.checkup().await;
                } else {
                    inner.look_for_replicas().await;
                }
            }
            continue;
        };
        let now = inner.shared.clock.now();
        sleep(Duration::from_micros(due.since(now).0)).await;
        match inner.probe().await {
            Ok(()) => tracing::info!(server = %inner.address, "store: connected"),
            Err(problem) => {
                if warned.len() < MOST_WARNINGS && !warned.contains(&problem) {
                    tracing::warn!(server = %inner.address, problem, "store: cannot connect, will go on trying");
                    warned.push(problem.clone());
                }
                *lock(&inner.problem) = Some(problem);
                let jitter = Micros(clock::random() % 50_000);
                lock(&inner.breaker).handle_failed_probe(inner.shared.clock.now(), jitter);
            }
        }
    }
}

impl Inner {
    /// Updates whether a replica can confirm grants. It can once it is in step, and from then on a replica is always
    /// expected. It no longer can when it disconnects; a replica that merely lags is noticed by a `WAIT` that it does
    /// not answer in time.
    fn handle_replicas(&self, in_step: u32, connected: u32) {
        if in_step > 0 && self.shared.confirming {
            self.shared.confirm.store(true, Relaxed);
        }
        if in_step > 0 || connected == 0 {
            self.has_replica.store(in_step > 0, Relaxed);
        }
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
        self.handle_replicas(health.replicas.unwrap_or(0), health.connected.unwrap_or(0));
        *known = health;
    }

    /// Dials, and checks the server's health. Calls pass only when both are answered.
    async fn probe(self: &Arc<Self>) -> Result<(), String> {
        let generation = lock(&self.breaker).next_generation();
        let gone = Arc::new(AtomicBool::new(false));
        let (weak, noted) = (Arc::downgrade(self), gone.clone());
        let on_loss = move |fault, what: &'static str| {
            noted.store(true, SeqCst);
            lost(&weak, generation, fault, what);
        };
        self.shared.stats.dials.fetch_add(1, Relaxed);
        let Shared { dialer, clock, timeout: patience, confirming, .. } = &*self.shared;
        let confirming = confirming.then_some(*patience);
        let options = DialOptions { dialer, clock: *clock, generation, confirming };
        let link = Link::dial(options, &self.address, on_loss).await?;
        let answers = timeout(CONNECT_TIMEOUT, link.send_all(&health::questions(self.shared.cluster))).await;
        let answers = answers.map_err(|_| "no answer in time")?.map_err(|ConnectionLost| "the connection broke")?;
        if let Some(refused) = answers.first().filter(|pong| text(pong).is_none_or(|pong| pong != "PONG")) {
            return Err(match refusal(refused) {
                Some(ServerRefusal::Away(said) | ServerRefusal::Rejected(said)) => said,
                _ => format!("PING was answered by {refused:?}"),
            });
        }
        let health = health::read(&answers);
        let is_single = health.is_single;
        self.handle_health(health);
        // Loading the scripts may fail: an ACL may forbid it. A failover may lose them later. In both cases calls
        // send the source.
        let learnt = timeout(CONNECT_TIMEOUT, link.send_all(&evalsha::introduction())).await;
        let learnt = learnt.map_err(|_| "no answer in time")?.map_err(|ConnectionLost| "the connection broke")?;
        evalsha::check_introduction(&learnt)?;
        link.set_joins(is_single && evalsha::have_loaded(&learnt));
        *lock(&self.link) = Some(Arc::new(link));
        let is_doubted = lock(&self.breaker).is_doubtful();
        self.gate.handle_connection(is_doubted);
        lock(&self.breaker).handle_probe();
        self.connected.send_replace(true);
        if gone.load(SeqCst) {
            // The connection broke before the breaker knew of it.
            self.fail(Breaker::on_behalf_of(generation), Fault::Lost, "the connection was closed");
        }
        Ok(())
    }

    /// Checks whether replicas have joined or left a server that answers.
    async fn look_for_replicas(&self) {
        let Some(link) = lock(&self.link).clone() else { return };
        match link.send_all(&health::replica_question()).await {
            Ok(answers) => {
                if let Some((in_step, connected)) = health::read_replicas(&answers) {
                    lock(&self.health).replicas = Some(in_step);
                    self.handle_replicas(in_step, connected);
                }
            }
            Err(ConnectionLost) => {
                self.fail(Breaker::on_behalf_of(link.generation), Fault::Lost, "the connection broke")
            }
        }
    }

    /// Checks the health of a server that answers.
    async fn checkup(&self) {
        let Some(link) = lock(&self.link).clone() else { return };
        match link.send_all(&health::questions(self.shared.cluster)).await {
            Ok(answers) => {
                let health = health::read(&answers);
                let may_join = health.is_single && !link.joins();
                self.handle_health(health);
                // A call about several keys has failed, perhaps because somebody has flushed the scripts.
                if may_join && let Ok(learnt) = link.send_all(&evalsha::of_many()).await {
                    link.set_joins(evalsha::have_loaded(&learnt));
                }
            }
            // Silence, too, ends a link: `heart.rs` decides when.
            Err(ConnectionLost) => {
                self.fail(Breaker::on_behalf_of(link.generation), Fault::Lost, "the connection broke")
            }
        }
    }
}

/// A connection broke, perhaps while no call used it.
fn lost(inner: &Weak<Inner>, generation: u64, fault: Fault, what: &'static str) {
    if let Some(inner) = inner.upgrade() {
        inner.fail(Breaker::on_behalf_of(generation), fault, what);
    }
}
