//! The shared store: scripts on a Redis server or a Redis Cluster.
//!
//! Decides where a call goes, when it may leave and what its outcome is. Routing, breakers and
//! the watch over the slot map are ours (one connection per master), because a failing master must
//! not delay calls to others and nothing may be executed twice: no call is ever retried here. A
//! MOVED and an ASK are followed once each, a missing script is sent once; all three say that
//! nothing was executed. Repeating an unknown outcome under the same id is up to the caller.
//!
//! A call fails at once while its server is away. One that has left is answered however late, as long as
//! its connection lives: slow is not lost. Called by `serve`, which carries out the core's effects.

mod address;
mod cluster;
pub mod evalsha;
mod failure;
mod gate;
mod health;
mod heart;
mod keeper;
mod link;
mod master;
mod options;
mod reply;
mod server;
mod slots;
mod supervised;
mod tally;
mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use super::breaker::BreakerState;
pub use options::{Confirm, OptionsError, RedisOptions};
pub use reply::refused;
pub use slots::cluster_slots;
pub use tally::{CallOutcome, LATENCY_BOUNDS, OPS, ServerView, Snapshot};

use self::address::Address;
use self::cluster::Cluster;
use self::failure::Failure;
use self::gate::Parcel;
use self::link::{Answer, Letter};
use self::master::Master;
use self::server::Shared;
use self::supervised::supervised;
use self::tally::Tally;
use super::script::{self, Caller};
use super::turns::Asker;
use crate::clock::Clock;
use crate::core::call::{Call, Grant, Op, StoreError};
use crate::core::key::Digest;
use crate::core::time::{Instant, Micros};

/// How long a return may wait until it leaves, at least.
const RETURNING: Micros = Micros::from_secs(1);

/// How long a call waits for the connection to a server that it was sent to: nobody else has its key.
const DIALLING: Duration = Duration::from_secs(1);

/// Makes ring the process's cryptography. Call it before anything else that may use TLS; calling
/// it again does nothing.
pub fn install_crypto() {
    // An error says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A handle on the shared store.
pub struct RedisStore {
    cluster: Arc<Cluster>,
    watch: Option<JoinHandle<()>>,
    node: Box<str>,
    prefix: Box<str>,
    born: Instant,
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl RedisStore {
    /// A store as `options` describe it. Connects in the background: Redis need not be up, and calls
    /// fail as `Away` until it is. Needs a tokio runtime.
    ///
    /// # Errors
    /// The first thing that is wrong with the options.
    pub fn new(options: &RedisOptions, clock: Clock) -> Result<Self, OptionsError> {
        let target = options.target()?;
        if target.dialer.tls.is_some() {
            install_crypto();
        }
        let shared = Shared {
            dialer: target.dialer,
            clock,
            timeout: options.timeout,
            cluster: target.cluster,
            tally: Tally::default(),
            alarm: Notify::new(),
            confirming: match options.confirm {
                Confirm::Auto => target.cluster,
                Confirm::On => true,
                Confirm::Off => false,
            },
            confirm: AtomicBool::new(false),
        };
        let cluster = Arc::new(Cluster::new(Arc::new(shared), target.seeds, options.confirm));
        let watch = target.cluster.then(|| {
            let cluster = cluster.clone();
            tokio::spawn(supervised("the watch over the cluster", move || {
                let cluster = cluster.clone();
                async move { cluster.watch().await }
            }))
        });
        Ok(Self {
            cluster,
            watch,
            node: options.node.as_str().into(),
            prefix: options.prefix.as_str().into(),
            born: clock.now(),
        })
    }

    /// Carries out `call`, however long that takes while its connection lives.
    ///
    /// # Errors
    /// `Unknown` when it may have been executed, `Away` and `Busy` when it surely was not.
    pub async fn call(&self, call: &Call) -> Result<Grant, StoreError> {
        self.call_for(Asker::NODE, call).await
    }

    /// The same in the turn of whoever asks.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_for(&self, asker: Asker, call: &Call) -> Result<Grant, StoreError> {
        let result = self.follow(asker, call).await;
        let outcome = match &result {
            Ok(grant) if grant.replayed || grant.outdated => CallOutcome::Replayed,
            Ok(_) => CallOutcome::Ok,
            Err(StoreError::Unknown) => CallOutcome::Unknown,
            Err(StoreError::Busy { .. }) => CallOutcome::Busy,
            Err(StoreError::Away { .. } | StoreError::Full) => CallOutcome::Away,
        };
        self.tally().count_call(&call.op, outcome);
        result
    }

    /// Waits until every server that takes calls is connected; false when that takes longer than
    /// `within`.
    pub async fn ready(&self, within: Duration) -> bool {
        self.each_is(within, |master| master.away_since().is_none()).await
    }

    /// Waits until every server that takes calls is connected or could not be reached at a first attempt; false when
    /// that takes longer than `within`.
    pub async fn tried(&self, within: Duration) -> bool {
        self.each_is(within, |master| master.away_since().is_none() || master.has_problem()).await
    }

    async fn each_is(&self, within: Duration, so: impl Fn(&Master) -> bool) -> bool {
        let all_are = async {
            loop {
                let map = self.cluster.map();
                if !map.masters.is_empty() && map.masters.iter().all(|master| so(master)) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(within, all_are).await.is_ok()
    }

    /// All counts and what is known of the servers, for metrics.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.tally().snapshot(self.cluster.map().masters.iter().map(|master| master.view()).collect())
    }

    /// The name under which the store keeps a key: what `redis-cli` shows.
    #[must_use]
    pub fn key_of(&self, digest: Digest) -> String {
        script::key(&self.prefix, digest)
    }

    fn tally(&self) -> &Tally {
        &self.cluster.shared.tally
    }

    /// Goes where the call belongs, over at most one MOVED and one ASK.
    async fn follow(&self, asker: Asker, call: &Call) -> Result<Grant, StoreError> {
        let shared = &self.cluster.shared;
        let started = shared.clock.now();
        let away = |since| StoreError::Away { since };
        let key = self.key_of(call.digest);
        let slot = if shared.cluster { slots::slot_of(key.as_bytes()) } else { 0 };
        // Without a map nobody has answered yet; with one, nobody owns the slot for now.
        let unowned = || away(if self.cluster.map().masters.is_empty() { self.born } else { started });
        let mut server = self.cluster.owner(slot).ok_or_else(unowned)?;
        let (mut moved, mut asking, mut with_source) = (false, false, false);
        loop {
            let expects = shared.confirm.load(Relaxed) && matches!(call.op, Op::Acquire(_));
            let parcel = Parcel {
                letter: Letter { command: self.command(call, with_source), asking },
                confirmed: expects && server.can_confirm(),
                asker,
                key: call.digest.0,
                errand: matches!(call.op, Op::Peek | Op::Refund { .. } | Op::Reset),
                again: moved || asking || with_source,
                until: call.sent_at + self.patience(&call.op),
            };
            match server.exchange(parcel).await {
                Ok(answer) => return self.read(call, &answer, expects),
                Err(Failure::Unknown) => return Err(StoreError::Unknown),
                Err(Failure::Away(since)) => return Err(away(since)),
                Err(Failure::Busy(wait)) => return Err(StoreError::Busy { wait }),
                Err(Failure::NoScript) if !with_source => {
                    self.tally().noscript.fetch_add(1, Relaxed);
                    with_source = true;
                }
                Err(Failure::Moved(place)) if !moved => {
                    self.tally().moved.fetch_add(1, Relaxed);
                    shared.alarm.notify_one();
                    server = self.detour(&server, &place).await.ok_or(away(started))?;
                    (moved, asking, with_source) = (true, false, false);
                }
                Err(Failure::Ask(place)) if !asking => {
                    self.tally().ask.fetch_add(1, Relaxed);
                    server = self.detour(&server, &place).await.ok_or(away(started))?;
                    (asking, with_source) = (true, false);
                }
                Err(failure) => {
                    self.tally().rejected.fetch_add(1, Relaxed);
                    tracing::warn!(server = %server.address(), ?failure, %key, "store: call turned down");
                    return Err(away(started));
                }
            }
        }
    }

    /// How long a call may wait until it leaves. Nobody waits for what a return brings, and it is tokens that
    /// are lost if it does not leave.
    fn patience(&self, op: &Op) -> Micros {
        let timeout = u64::try_from(self.cluster.shared.timeout.as_micros()).unwrap_or(u64::MAX);
        match op {
            Op::Return { .. } => Micros(timeout).max(RETURNING),
            // The answer must come in time, too, and take no part in a race against the deadline.
            _ => Micros(timeout - timeout / 8),
        }
    }

    /// The server that `from` sends us to, once it is connected; `None` when that takes too long.
    async fn detour(&self, from: &Master, place: &str) -> Option<Arc<Master>> {
        let address = match (Address::parse(place), place.strip_prefix(':')) {
            (_, Some(port)) => from.address().neighbour("", port.parse().ok()?)?,
            (address, None) => address?,
        };
        let server = self.cluster.master_at(&address);
        timeout(DIALLING, server.connected()).await.ok()?;
        Some(server)
    }

    fn command(&self, call: &Call, with_source: bool) -> redis::Cmd {
        // Tests give scripts the time; in earnest they go by the clock of Redis.
        let caller = Caller { prefix: &self.prefix, node: &self.node, now: None };
        evalsha::command(&caller, call, with_source)
    }

    fn read(&self, call: &Call, answer: &Answer, expects: bool) -> Result<Grant, StoreError> {
        let mut grant = evalsha::grant(call, &answer.value).map_err(|error| {
            self.tally().rejected.fetch_add(1, Relaxed);
            tracing::warn!(%error, "store: reply not understood");
            StoreError::Unknown
        })?;
        if expects {
            // The write of a replayed grant may have left by another connection, which WAIT does not cover.
            grant.confirmed = !grant.replayed && answer.replicas.is_some_and(|replicas| replicas > 0);
            if !grant.confirmed {
                self.tally().unconfirmed.fetch_add(1, Relaxed);
            }
        } else {
            grant.confirmed = true;
        }
        Ok(grant)
    }
}
