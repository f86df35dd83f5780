//! One daemon of the demo: a real one, in this process, on a runtime of its own, so that it can be killed.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwap;
use tokio::runtime::{Handle, Runtime};
use tokio::task::AbortHandle;

use super::super::args::NodeArgs;
use super::super::cert;
use super::gate::Gate;
use crate::clock::{self, Clock};
use crate::config::FleetTop;
use crate::core::key::DigestKey;
use crate::core::policy::PolicySet;
use crate::core::shard::Settings;
use crate::core::time::Micros;
use crate::fleet::{Fleet, FleetOptions, IdentityFiles, Owning};
use crate::serve::{Backend, Daemon, Limits, ServerState, StartOptions};
use crate::store::redis::{RedisOptions, RedisStore};

/// The name of the fleet.
pub(super) const FLEET: &str = "demo";
/// Between two rounds of gossip.
const TICK: Duration = Duration::from_millis(200);
/// Longest wait of a check for the store.
pub(super) const TIMEOUT: Duration = Duration::from_millis(50);
/// Longest wait for the store when a node starts.
const FIRST_CONTACT: Duration = Duration::from_secs(1);
/// Longest wait for the threads of a killed node.
const BURIAL: Duration = Duration::from_secs(10);

/// What all nodes need in order to start.
pub(super) struct Ground<'a> {
    /// Files of all nodes; the CA is there, too.
    pub(super) directory: &'a Path,
    /// The store's socket.
    pub(super) store: &'a Path,
    /// The runtime of gates and clients.
    pub(super) runtime: &'a Handle,
    /// Where other nodes may be found.
    pub(super) seeds: Vec<String>,
    pub(super) policies: PolicySet,
}

/// One daemon.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) gate: Gate,
    /// Where peers reach it.
    pub(super) address: SocketAddr,
    pub(super) socket: Arc<Path>,
    store: Arc<RedisStore>,
    state: Arc<ServerState>,
    /// `None` after it was killed.
    life: Option<(Daemon, Runtime)>,
    pub(super) clients: Vec<AbortHandle>,
}

/// The state of a node, for people.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    pub(super) name: String,
    pub(super) is_alive: bool,
    /// Its way to the store is open.
    pub(super) is_connected: bool,
    /// Nodes that it sees, itself among them.
    pub(super) live: u32,
    /// Tokens that it holds.
    pub(super) held: u64,
    /// Calls to the store.
    pub(super) calls: u64,
    /// Keys that it decides without the store.
    pub(super) degraded: u64,
}

impl Node {
    /// Starts a node: certificate, gate, fleet, store, socket.
    ///
    /// # Errors
    /// What keeps it from starting.
    pub(super) fn start(name: &str, ground: Ground<'_>) -> anyhow::Result<Self> {
        let own = ground.directory.join(name);
        let [ca, cert, key] = cert::node_files(&NodeArgs {
            fleet: FLEET.to_owned(),
            name: Some(name.to_owned()),
            any_name: false,
            dir: own.clone(),
            ca_dir: Some(ground.directory.to_owned()),
            days: 1,
        })?;
        let gate_path = own.join("store.sock");
        let gate = Gate::start(ground.runtime, &gate_path, ground.store.to_owned())?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let url = format!("redis+unix://{}", gate_path.display());
        let options = RedisOptions { timeout: TIMEOUT, ..RedisOptions::new(&url, name) };
        let joining = FleetOptions {
            fleet: FLEET.to_owned(),
            node: name.into(),
            incarnation: clock::wall().0 / 1_000,
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            seeds: ground.seeds,
            tick: TICK,
            identity: IdentityFiles { ca, cert, key, crl: None },
            owning: Owning::Never,
        };
        let socket: Arc<Path> = own.join("rationd.sock").into();
        let (daemon, store, address) = runtime.block_on(async {
            let clock = Clock::start();
            let store = Arc::new(RedisStore::new(&options, clock).context("the demo's store")?);
            let (fleet, incoming) = Fleet::start(joining).await.context("the demo's fleet")?;
            store.tried(FIRST_CONTACT).await;
            let address = fleet.advertised();
            let mut daemon = Daemon::start(StartOptions {
                clock,
                socket: socket.to_path_buf(),
                mode: 0o600,
                group: None,
                envoy: None,
                tcp: None,
                remote: Arc::default(),
                limits: Limits::default(),
                threads: 1,
                store: Backend::Remote(store.clone()),
                policies: Arc::new(ArcSwap::from_pointee(ground.policies)),
                in_fleet: true,
                settings: Settings { max_keys: 1_000, timeout: Micros(TIMEOUT.as_micros() as u64), lease_ahead: true },
                digests: DigestKey::default(),
                reload: None,
            })?;
            daemon.join(fleet, incoming, TICK, FleetTop::Keys);
            anyhow::Ok((daemon, store, address))
        })?;
        let state = daemon.state().clone();
        let life = Some((daemon, runtime));
        Ok(Self { name: name.to_owned(), gate, address, socket, store, state, life, clients: Vec::new() })
    }

    /// Whether it was not killed.
    pub(super) fn is_alive(&self) -> bool {
        self.life.is_some()
    }

    /// Ends it without a goodbye: the tokens that it holds are lost, and peers find out by its silence. Its threads are
    /// waited for on `runtime`.
    pub(super) fn kill(&mut self, runtime: &Handle) {
        let Some((daemon, own)) = self.life.take() else { return };
        self.clients.drain(..).for_each(|client| client.abort());
        self.gate.set(false);
        // The connections to the store and to peers end with the runtime, so nothing is announced or returned.
        own.shutdown_background();
        runtime.spawn(async move { tokio::time::timeout(BURIAL, daemon.drain_and_stop()).await });
    }

    /// Its state.
    pub(super) fn sight(&self) -> Sight {
        let calls = self.store.snapshot().calls.iter().map(|(_, _, count)| count).sum();
        Sight {
            name: self.name.clone(),
            is_alive: self.is_alive(),
            is_connected: self.gate.is_open(),
            live: self.state.fleet_status().map_or(1, |fleet| fleet.view.live),
            held: self.state.keys(0, 10).iter().map(|(_, key)| key.held).sum(),
            calls,
            degraded: self.state.stats().shards.degraded,
        }
    }
}
