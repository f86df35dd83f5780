//! The shared store: scripts on a Redis server or a Redis Cluster.
//!
//! It decides where a call goes, when it may leave, and what its outcome is. Routing, breakers and the watch over the
//! slot map are our own instead of the redis crate's `ClusterConnection`, for two reasons: a failing master must not
//! delay calls to others, and nothing may be executed twice. So no call is retried here. One MOVED and one ASK are
//! followed, and a missing script is sent once, because these three replies say that nothing was executed. Repeating
//! a call with an unknown outcome, under the same id, is up to the caller.
//!
//! A call fails at once while its server is away. A call that has left is answered however late, as long as its
//! connection lives: a slow server is not a lost one. Called by `serve`, which carries out the core's effects.

mod address;
mod cluster;
mod dialer;
pub mod evalsha;
mod failure;
mod frame;
mod gate;
mod health;
mod heart;
mod joined;
mod link;
mod master;
mod monitor;
mod options;
mod reply;
mod routed_call;
mod server;
mod slots;
mod stats;
mod stream;
mod supervised;
mod survey;
mod tls;
mod twin;
mod url;
mod wire;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use super::breaker::BreakerState;
pub use options::{Confirm, OptionsError, RedisOptions};
pub use reply::refused;
pub use slots::cluster_slots;
pub use stats::{CallOutcome, LATENCY_BOUNDS, OPS, ServerView, Snapshot};
pub use stream::{Connecting, Network, Stream};
pub use survey::{Survey, Surveyed, survey};
pub use twin::Twin;

use self::cluster::Cluster;
use self::master::Master;
use self::routed_call::{CallContext, RoutedCall};
use self::server::Shared;
use self::stats::StoreStats;
use self::supervised::supervised;
use self::url::Target;
use super::outcomes::Outcomes;
use super::script;
use super::turns::Asker;
use crate::clock::Clock;
use crate::core::call::{Call, Grant, StoreError};
use crate::core::key::Digest;

/// Makes ring the cryptography of this process. Call it before anything else that may use TLS; calling it again does
/// nothing.
pub fn install_crypto() {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A handle on the shared store.
pub struct RedisStore {
    context: Arc<CallContext>,
    watch: Option<JoinHandle<()>>,
    runtime: Handle,
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
        Ok(Self::start(options, clock, options.target()?))
    }

    /// The same over another network than the system's sockets, for simulations.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn over(options: &RedisOptions, clock: Clock, network: Arc<dyn Network>) -> Result<Self, OptionsError> {
        let mut target = options.target()?;
        target.dialer.network = network;
        Ok(Self::start(options, clock, target))
    }

    fn start(options: &RedisOptions, clock: Clock, target: Target) -> Self {
        if target.dialer.tls.is_some() {
            install_crypto();
        }
        let shared = Shared {
            dialer: target.dialer,
            clock,
            timeout: options.timeout,
            cluster: target.cluster,
            stats: StoreStats::default(),
            map_stale: Notify::new(),
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
        let (node, prefix) = (script::name_in_keys(&options.node).into(), options.prefix.as_str().into());
        let context = CallContext { cluster, node, prefix, born: clock.now() };
        Self { context: Arc::new(context), watch, runtime: Handle::current() }
    }

    /// Where its connections live: the runtime in which it was created.
    #[must_use]
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Carries out `call`, however long that takes while its connection lives.
    ///
    /// # Errors
    /// `Unknown` when it may have been executed, `Away` and `Busy` when it surely was not.
    pub async fn call(&self, call: &Call) -> Result<Grant, StoreError> {
        self.call_for(Asker::NODE, call).await
    }

    /// The same, but the call waits in the line of `asker`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_for(&self, asker: Asker, call: &Call) -> Result<Grant, StoreError> {
        let (sender, outcome) = oneshot::channel();
        self.send(asker, Box::new(call.clone()), Arc::new(Alone(Mutex::new(Some(sender)))));
        // The sender is dropped without an outcome only when the store has ended.
        outcome.await.unwrap_or(Err(StoreError::Unknown))
    }

    /// Sends `call`, which waits in the line of `asker` if it must; `outcomes` learns how it ended. Returns at once.
    pub fn send(&self, asker: Asker, call: Box<Call>, outcomes: Arc<dyn Outcomes>) {
        RoutedCall::begin(&self.context, asker, call, outcomes);
    }

    /// Waits until every server that takes calls is connected; false when that takes longer than
    /// `within`.
    pub async fn ready(&self, within: Duration) -> bool {
        self.each_is(within, |master| master.away_since().is_none()).await
    }

    /// Waits until every server that takes calls is connected, or a first attempt to reach it has failed; false when
    /// that takes longer than `within`.
    pub async fn tried(&self, within: Duration) -> bool {
        self.each_is(within, |master| master.away_since().is_none() || master.has_problem()).await
    }

    async fn each_is(&self, within: Duration, so: impl Fn(&Master) -> bool) -> bool {
        let all_are = async {
            loop {
                let map = self.context.cluster.map();
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
        self.stats().snapshot(self.context.cluster.map().masters.iter().map(|master| master.view()).collect())
    }

    /// Whether calls wait here until they may go to their servers.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.context.cluster.map().masters.iter().any(|master| master.is_late())
    }

    /// `asker` waits for what was asked about a key: if that waits here, it leaves in the turns of that asker, where they
    /// come sooner.
    pub fn hurry(&self, asker: Asker, digest: Digest) {
        self.context.hurry(asker, digest);
    }

    /// The name under which the store keeps a key: what `redis-cli` shows.
    #[must_use]
    pub fn key_of(&self, digest: Digest) -> String {
        script::key(&self.context.prefix, digest)
    }

    fn stats(&self) -> &StoreStats {
        &self.context.cluster.shared.stats
    }
}

/// Delivers the outcome of one call to the future that waits for it.
struct Alone(Mutex<Option<oneshot::Sender<Result<Grant, StoreError>>>>);

impl Outcomes for Alone {
    fn handle_outcome(&self, _: Asker, _: Box<Call>, outcome: Result<Grant, StoreError>) {
        if let Some(sender) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The future that waits may have been dropped.
            let _ = sender.send(outcome);
        }
    }
}
