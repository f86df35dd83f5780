//! The daemon as one value, which can be started with plain options, reloaded, asked for its counts, and stopped.
//!
//! It builds the shards, the path to the store, the timer task and the data threads, and ends them in an order that
//! loses nothing. Does not know configuration files, signals or HTTP; its callers do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::admission::{Admission, Limits};
use super::denial_log::DenialLog;
use super::envoy::{BindError, BoundListener, EnvoyOptions};
use super::fleet_look::FleetLook;
use super::fleet_top::LookedAt;
use super::gossip::FleetGossip;
use super::handed::Handed;
use super::history::History;
use super::lending::Lending;
use super::node::{Node, Outgoing};
use super::observer;
use super::owned::OwnedKeys;
use super::peer_asks::PeerAsks;
use super::seating::Seating;
use super::server_state::{Reload, ServerState};
use super::socket::{Socket, SocketError};
use super::stats::Stats;
use super::store_dispatch::{self, Backend};
use super::stream::Stream;
use super::tcp::{BoundTcp, RemoteAccess, TcpBindError};
use super::thread::Worker;
use super::timer_task;
use super::turnstile::Turnstile;
use super::vital::{Pulse, Vital, Vitals, vital};
use super::worker::{Comers, Listeners};
use crate::clock::Clock;
use crate::config::FleetTop;
use crate::core::fleet::FleetView;
use crate::core::key::DigestKey;
use crate::core::policy::PolicySet;
use crate::core::shard::{KeyInfo, Settings};
use crate::fleet::{AskTaker, Fleet, Incoming, LookTaker, Owning};

/// How long returns may take after the last connection was closed.
const RETURNING: Duration = Duration::from_secs(2);

/// The options of a daemon.
#[derive(Clone)]
pub struct StartOptions {
    /// The source of time.
    pub clock: Clock,
    /// The path of the Unix socket.
    pub socket: PathBuf,
    /// The socket's mode, like `0o660`.
    pub mode: u32,
    /// The socket's group; `None` for that of the process.
    pub group: Option<u32>,
    /// The listener for Envoy's Rate Limit Service, whose socket gets the same mode and group; `None` for none.
    pub envoy: Option<EnvoyOptions>,
    /// The TCP address for clients that cannot open a Unix socket; `None` for none.
    pub tcp: Option<SocketAddr>,
    /// Who may use the TCP address. It is shared, so that a reload replaces it in one step.
    pub remote: Arc<ArcSwap<RemoteAccess>>,
    /// Bounds on connections.
    pub limits: Limits,
    /// Data threads. With 0, the thread of the store's connections serves the clients, too; an embedded store has no
    /// such thread, so there is at least one data thread then.
    pub threads: usize,
    /// Where tokens are counted.
    pub store: Backend,
    /// The policies in force. They are shared, so that a reload replaces them in one step.
    pub policies: Arc<ArcSwap<PolicySet>>,
    /// The daemon will join a fleet. Until it knows the fleet's size, it has no share to spend in an outage.
    pub in_fleet: bool,
    /// The shards' settings. `max_keys` is for the whole node, and `lease_ahead` is replaced by the store's.
    pub settings: Settings,
    /// The key of the digests; all nodes of a store must use the same.
    pub digests: DigestKey,
    /// What `RATION.RELOAD` runs.
    pub reload: Option<Reload>,
}

impl std::fmt::Debug for StartOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StartOptions").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Why a daemon does not start.
#[derive(Debug)]
pub enum StartError {
    /// The Unix socket cannot be bound.
    Socket(SocketError),
    /// The listener for Envoy cannot be bound.
    Envoy(BindError),
    /// The TCP address cannot be bound.
    Tcp(TcpBindError),
    /// A socket that was handed over is not in the configuration.
    Handed(String),
    /// A thread or a descriptor cannot be created.
    Io(std::io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(error) => error.fmt(f),
            Self::Envoy(error) => error.fmt(f),
            Self::Tcp(error) => error.fmt(f),
            Self::Handed(place) => {
                let places = "listen.socket, listen.tcp, listen.envoy or listen.admin";
                write!(
                    f,
                    "a socket was handed over that listens on {place}: it is none of {places}; set one of them to it"
                )
            }
            Self::Io(error) => write!(f, "cannot start the data threads: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running daemon.
pub struct Daemon {
    state: Arc<ServerState>,
    /// The bound socket; `None` where a simulation provides the clients.
    socket: Option<Socket>,
    door: Option<BoundListener>,
    tcp: Option<BoundTcp>,
    stop: watch::Sender<bool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    /// The work of the data threads, where it runs on another runtime and not on threads of its own.
    serving: Vec<JoinHandle<()>>,
    tasks: Vec<JoinHandle<()>>,
    /// Takes the asks of peers. The fleet holds it weakly, so it is kept here.
    asks: Option<Arc<dyn AskTaker>>,
    /// Answers the looks of peers. The fleet holds it weakly, so it is kept here.
    looked_at: Option<Arc<dyn LookTaker>>,
}

impl std::fmt::Debug for Daemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Daemon").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Daemon {
    /// Binds the sockets and starts everything. The calling runtime becomes the control runtime: it runs the commands
    /// of the command line, and the timer task where the store is embedded. With a remote store the timer task runs on
    /// the store's runtime.
    ///
    /// # Errors
    /// The socket cannot be bound, or a thread cannot be started.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(options: StartOptions) -> Result<Self, StartError> {
        Self::start_with(options, Handed::default())
    }

    /// The same with listening sockets that were handed over in place of those it would bind.
    ///
    /// # Errors
    /// As [`Self::start`]; or one of the sockets is not in the options.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_with(options: StartOptions, mut handed: Handed) -> Result<Self, StartError> {
        let socket = match handed.take_unix(&options.socket) {
            Some(listener) => Socket::adopt(listener, &options.socket),
            None => Socket::bind(&options.socket, options.mode, options.group),
        };
        let socket = socket.map_err(StartError::Socket)?;
        let door =
            options.envoy.as_ref().map(|envoy| BoundListener::bind(envoy, options.mode, options.group, &mut handed));
        let door = door.transpose().map_err(StartError::Envoy)?;
        let tcp = options.tcp.map(|address| BoundTcp::bind(address, &mut handed));
        let tcp = tcp.transpose().map_err(StartError::Tcp)?;
        if let Some(place) = handed.rest() {
            return Err(StartError::Handed(place));
        }
        let has_threads = options.threads > 0;
        let mut daemon = Self { socket: Some(socket), door, tcp, ..Self::inside(options) };
        for seating in Seating::of(daemon.state.workers.len()) {
            match daemon.state.store.as_ref().filter(|_| !has_threads).map(|store| store.runtime()) {
                None => daemon.start_thread(seating).map(|thread| daemon.threads.push(thread)),
                Some(runtime) => daemon.start_on(&runtime, seating).map(|task| daemon.serving.push(task)),
            }
            .map_err(StartError::Io)?;
        }
        Ok(daemon)
    }

    /// Starts everything but the sockets. Clients come from `comers`, one for each data thread, and the work of those
    /// threads runs on the calling runtime. For simulations, whose runtime has paused time; the options' socket is
    /// ignored.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_over<C: Comers + 'static>(options: StartOptions, comers: Vec<C>) -> Self {
        let mut daemon = Self::inside(StartOptions { threads: comers.len(), ..options });
        for (comers, seating) in comers.into_iter().zip(Seating::of(daemon.state.workers.len())) {
            let index = seating.own;
            let (state, worker, stop) =
                (daemon.state.clone(), daemon.state.workers[index].clone(), daemon.stop.subscribe());
            let pulse = daemon.thread_pulse(index);
            let serving = vital("a data thread", worker.serve(state, (comers, None), seating, stop, pulse));
            daemon.serving.push(daemon.state.control.spawn(serving));
        }
        daemon
    }

    /// Everything but the sockets and the data threads.
    fn inside(options: StartOptions) -> Self {
        let control = Handle::current();
        let (mut tasks, vitals) = (Vec::new(), Vitals::default());
        let (settings, digests, clock) = (options.settings, options.digests, options.clock);
        let remote = match &options.store {
            Backend::Memory => None,
            Backend::Remote(store) => Some(store.clone()),
        };
        // The timer task runs on the runtime that reads the store's replies, so that replies which came in time are
        // read before their deadlines are handled.
        let way = remote.as_ref().map_or_else(|| control.clone(), |store| store.runtime());
        let node = match options.store {
            Backend::Memory => Arc::new(Node::new(settings, digests, clock, None)),
            Backend::Remote(store) => {
                let calls = Arc::<Turnstile>::default();
                let node = Arc::new(Node::new(settings, digests, clock, Some(calls.clone())));
                let pulse = vitals.expect("the way to the store", node.clock.now());
                let carried = store_dispatch::run(node.clone(), calls, store, pulse);
                tasks.push(way.spawn(vital("the way to the store", carried)));
                node
            }
        };
        if options.in_fleet {
            node.handle_fleet(FleetView::UNKNOWN);
        }
        let pulse = vitals.expect("the alarm", node.clock.now());
        tasks.push(way.spawn(vital("the alarm", timer_task::run(node.clone(), pulse))));
        let workers: Vec<_> = (0..options.threads.max(1)).map(|_| Arc::new(Worker::new())).collect();
        let state = Arc::new(ServerState {
            started: node.clock.now(),
            vitals,
            node,
            policies: options.policies,
            admission: Arc::new(Admission::new(options.limits, workers.len())),
            workers,
            remote: options.remote,
            gossip: OnceLock::new(),
            fleet_look: OnceLock::new(),
            store: remote,
            denials: DenialLog::default(),
            history: History::default(),
            control,
            reload: options.reload,
            holds: Mutex::default(),
            scripts: Mutex::default(),
            control_stats: Mutex::default(),
            owned: OwnedKeys::default(),
            admin_turn: tokio::sync::Mutex::new(()),
        });
        tasks.push(state.control.spawn(observer::run(state.clone())));
        let stop = watch::Sender::new(false);
        let (threads, serving) = (Vec::new(), Vec::new());
        Self { state, socket: None, door: None, tcp: None, stop, threads, serving, tasks, asks: None, looked_at: None }
    }

    fn thread_pulse(&self, index: usize) -> Pulse {
        self.state.vitals.expect(format!("data thread {index}"), self.state.node.clock.now())
    }

    fn start_thread(&self, seating: Seating<Stream>) -> std::io::Result<std::thread::JoinHandle<()>> {
        let index = seating.own;
        let (state, worker, stop) = (self.state.clone(), self.state.workers[index].clone(), self.stop.subscribe());
        let (listeners, pulse) = (self.listeners()?, self.thread_pulse(index));
        std::thread::Builder::new().name(format!("rationd-data-{index}")).spawn(move || {
            let _watched = Vital::new("a data thread");
            if let Err(error) = worker.run(state, listeners, seating, stop, pulse) {
                tracing::error!(%error, "a data thread could not be set up");
            }
        })
    }

    /// The work of a data thread, on a runtime that does other things, too.
    fn start_on(&self, runtime: &Handle, seating: Seating<Stream>) -> std::io::Result<JoinHandle<()>> {
        let index = seating.own;
        let (state, worker, stop) = (self.state.clone(), self.state.workers[index].clone(), self.stop.subscribe());
        let pulse = self.thread_pulse(index);
        let _inside = runtime.enter();
        let comers = self.listeners()?.listen(&state)?;
        Ok(runtime.spawn(vital("a data thread", worker.serve(state, comers, seating, stop, pulse))))
    }

    fn listeners(&self) -> std::io::Result<Listeners> {
        let socket = self.socket.as_ref().expect("threads are started for a socket");
        Ok(Listeners {
            socket: socket.listener()?,
            envoy: self.door.as_ref().map(BoundListener::handle).transpose()?,
            tcp: self.tcp.as_ref().map(BoundTcp::handle).transpose()?,
        })
    }

    /// Joins a fleet's gossip, with a round each `tick`. `detail` says what peers learn that look at this node. Only
    /// the first call has an effect.
    pub fn join(&mut self, fleet: Fleet, incoming: mpsc::Receiver<Incoming>, tick: Duration, detail: FleetTop) {
        let node = &self.state.node;
        let lends = fleet.owning() != Owning::Never && !node.is_embedded();
        let lending = lends.then(|| Arc::new(Lending::new(fleet.clone(), node.clock)));
        let gossip = Arc::new(FleetGossip::new(fleet.clone(), tick, lending.clone()));
        if self.state.gossip.set(gossip.clone()).is_ok() {
            if let Some(lending) = lending {
                node.ask_through(lending.clone());
                let asks = PeerAsks::new(node.clone(), self.state.policies.clone(), lending);
                let asks: Arc<dyn AskTaker> = Arc::new(asks);
                fleet.hand_asks_to(&asks);
                self.asks = Some(asks);
            }
            let _ = self.state.fleet_look.set(FleetLook::new(fleet.clone()));
            let looked_at = LookedAt::new(self.state.clone(), detail, fleet.runtime().clone());
            let looked_at: Arc<dyn LookTaker> = Arc::new(looked_at);
            fleet.show(&looked_at);
            self.looked_at = Some(looked_at);
            let pulse = self.state.vitals.expect("gossip", self.state.node.clock.now());
            let gossiping = gossip.run(self.state.node.clone(), incoming, pulse);
            self.tasks.push(fleet.runtime().spawn(vital("gossip", gossiping)));
        }
    }

    /// The path of the socket; empty where a simulation provides the clients.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.socket.as_ref().map_or(Path::new(""), Socket::path)
    }

    /// The address of Envoy's listener, with the port that was chosen.
    #[must_use]
    pub fn envoy(&self) -> Option<crate::config::ListenAddress> {
        self.door.as_ref().map(BoundListener::place)
    }

    /// The TCP address for clients, with the port that was chosen.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(BoundTcp::address)
    }

    /// Replaces the policies, at once and for all threads.
    pub fn reload(&self, policies: PolicySet) {
        self.state.policies.store(Arc::new(policies));
    }

    /// The policies in force.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.state.policies.load_full()
    }

    /// Everything that is counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// The state that all parts of the daemon share, for an admin server that outlives a borrow of this.
    #[must_use]
    pub fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    /// Up to `most` keys that this node knows.
    #[must_use]
    pub fn keys(&self, most: usize) -> Vec<KeyInfo> {
        self.state.keys(0, most).into_iter().map(|(_, info)| info).collect()
    }

    /// Stops accepting, answers what has come, closes all connections, and returns leases. The result is how many
    /// store calls still had no outcome (0 if all have). Takes about 3 s at most.
    pub async fn drain_and_stop(self) -> usize {
        let Self { state, socket, door, tcp, stop, threads, serving, tasks, asks: _asks, looked_at: _looked_at } = self;
        drop((socket, door, tcp));
        stop.send_replace(true);
        state.admission.stop();
        if !threads.is_empty() {
            let joined = tokio::task::spawn_blocking(move || {
                for thread in threads {
                    if thread.join().is_err() {
                        tracing::error!("a data thread had panicked");
                    }
                }
            });
            let _ = joined.await;
        }
        for served in serving {
            let _ = served.await;
        }
        let node = &state.node;
        let mut out = Outgoing::default();
        node.drain(node.clock.now(), &mut out);
        node.flush(&mut out);
        observer::take_denials(&state);
        let answered = async {
            while node.in_flight() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let _ = tokio::time::timeout(RETURNING, answered).await;
        if let Some(gossip) = state.gossip.get() {
            gossip.report_all(node);
            gossip.leave().await;
        }
        for task in tasks {
            task.abort();
        }
        node.in_flight()
    }
}
