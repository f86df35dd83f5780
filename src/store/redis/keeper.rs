//! The keeper of one Redis server: a task that connects, probes and asks after its health.
//!
//! Decides when to dial and whether calls may pass; how often is the breaker's to say. What it finds
//! out it leaves in the server's `Inner`. Started by `master.rs`, ends with the server.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::evalsha;
use super::health::{self, Health};
use super::heart::Lost;
use super::link::{CONNECT_TIMEOUT, Link, Making};
use super::reply::{Refusal, refusal, text};
use super::server::{Inner, Shared, lock};
use crate::clock;
use crate::core::time::Micros;
use crate::store::breaker::{Breaker, Fault};

/// Between two looks at a server's health.
const CHECKUP: Duration = Duration::from_secs(60);

/// Between two looks for replicas where grants may have to be confirmed.
const REPLICA_CHECK: Duration = Duration::from_secs(1);

/// Of the problems of one outage so many are told, each once: a server that is restarted refuses connections, then
/// loads, and may want another password after that.
const TOLD: usize = 8;

/// The keeper of one server.
pub(super) async fn keep(inner: Arc<Inner>) {
    let mut told: Vec<String> = Vec::new();
    let mut looks = 0;
    loop {
        let due = lock(&inner.breaker).probe_at();
        let Some(due) = due else {
            told.clear();
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
                if told.len() < TOLD && !told.contains(&problem) {
                    tracing::warn!(server = %inner.address, problem, "store: cannot connect, will go on trying");
                    told.push(problem.clone());
                }
                *lock(&inner.problem) = Some(problem);
                let jitter = Micros(clock::random() % 50_000);
                lock(&inner.breaker).handle_failed_probe(inner.shared.clock.now(), jitter);
            }
        }
    }
}

impl Inner {
    /// A replica that is in step begins to confirm, and from then on one is expected for good. It ceases to when it
    /// goes away; one that merely lags ceases when it has not confirmed in time, which a `WAIT` tells.
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

    /// Dials and asks after the server's health; both must be answered for calls to pass.
    async fn probe(self: &Arc<Self>) -> Result<(), String> {
        let generation = lock(&self.breaker).next_generation();
        let gone = Arc::new(AtomicBool::new(false));
        let (weak, noted) = (Arc::downgrade(self), gone.clone());
        let told = move |fault, what: &'static str| {
            noted.store(true, SeqCst);
            lost(&weak, generation, fault, what);
        };
        self.shared.tally.dials.fetch_add(1, Relaxed);
        let Shared { dialer, clock, timeout: patience, confirming, .. } = &*self.shared;
        let confirming = confirming.then_some(*patience);
        let making = Making { dialer, clock: *clock, generation, confirming };
        let link = Link::dial(making, &self.address, told).await?;
        let answers = timeout(CONNECT_TIMEOUT, link.send_all(&health::questions(self.shared.cluster))).await;
        let answers = answers.map_err(|_| "no answer in time")?.map_err(|Lost| "the connection broke")?;
        if let Some(refused) = answers.first().filter(|pong| text(pong).is_none_or(|pong| pong != "PONG")) {
            return Err(match refusal(refused) {
                Some(Refusal::Away(said) | Refusal::Rejected(said)) => said,
                _ => format!("PING was answered by {refused:?}"),
            });
        }
        self.handle_health(health::read(&answers));
        // Where an ACL forbids it, or a failover brings a server that has lost them, calls send the source.
        let learnt = timeout(CONNECT_TIMEOUT, link.send_all(&evalsha::introduction())).await;
        let learnt = learnt.map_err(|_| "no answer in time")?.map_err(|Lost| "the connection broke")?;
        evalsha::check_introduction(&learnt)?;
        *lock(&self.link) = Some(Arc::new(link));
        self.gate.handle_connection();
        lock(&self.breaker).handle_probe();
        self.connected.send_replace(true);
        if gone.load(SeqCst) {
            // It went before the breaker knew of it.
            self.fail(Breaker::on_behalf_of(generation), Fault::Lost, "the connection was closed");
        }
        Ok(())
    }

    /// Looks whether replicas have joined or left a server that answers.
    async fn look_for_replicas(&self) {
        let Some(link) = lock(&self.link).clone() else { return };
        match link.send_all(&health::replica_question()).await {
            Ok(answers) => {
                if let Some((in_step, connected)) = health::read_replicas(&answers) {
                    lock(&self.health).replicas = Some(in_step);
                    self.handle_replicas(in_step, connected);
                }
            }
            Err(Lost) => self.fail(Breaker::on_behalf_of(link.generation), Fault::Lost, "the connection broke"),
        }
    }

    /// Looks after a server that answers.
    async fn checkup(&self) {
        let Some(link) = lock(&self.link).clone() else { return };
        match link.send_all(&health::questions(self.shared.cluster)).await {
            Ok(answers) => self.handle_health(health::read(&answers)),
            // Silence, too, ends a link: its heart says when.
            Err(Lost) => self.fail(Breaker::on_behalf_of(link.generation), Fault::Lost, "the connection broke"),
        }
    }
}

/// The connection has gone, perhaps while nobody used it.
fn lost(inner: &Weak<Inner>, generation: u64, fault: Fault, what: &'static str) {
    if let Some(inner) = inner.upgrade() {
        inner.fail(Breaker::on_behalf_of(generation), fault, what);
    }
}
