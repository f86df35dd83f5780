//! `rationd serve`: runs the daemon in the foreground, from reading its configuration to returning its last lease.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::denials_file::DenialsFile;
use super::exit::{Code, ExitError};
use super::globals::Globals;
use super::own_thread::OwnThread;
use super::record_file::{RecordFile, Recorder};
use super::resolve::{Resolved, resolve};
use super::{key_files, log, memory, open_files, service_manager};
use crate::clock::{self, Clock};
use crate::config::{self, Config, DenialKeys, ListenAddress, Loaded, Owner, Sources};
use crate::core::policy::PolicySet;
use crate::core::shard::Settings;
use crate::core::time::Timestamp;
use crate::fleet::{Fleet, FleetError, FleetOptions, IdentityFiles, Incoming, Owning};
use crate::serve::admin::{Access, Admin};
use crate::serve::daemon_status::DaemonStatus;
use crate::serve::denial_log::KeyForm;
use crate::serve::envoy::EnvoyOptions;
use crate::serve::handed::Handed;
use crate::serve::hot_keys::{self, Kind};
use crate::serve::metrics::Scrape;
use crate::serve::process::ProcessUse;
use crate::serve::reload::Reloader;
use crate::serve::socket::SocketError;
use crate::serve::{Backend, Daemon, Limits, ReloadMode, ServerState, StartError, StartOptions, vital};
use crate::store::redis::RedisStore;
use crate::wire::headers::Style;

/// Longest time from the signal to stop until the process ends, without the time that `ENDING` adds.
const DRAIN: Duration = Duration::from_millis(1_750);
/// Longest time for tasks that still run then, and for the last lines of the log, which may have no reader.
const ENDING: Duration = Duration::from_millis(50);
const LAST_LINES: Duration = Duration::from_millis(100);
/// Time for the last lines about denials and the last arrivals if leaving has used all of [`DRAIN`]; otherwise they have what is
/// left of it.
const LAST_OF_FILES: Duration = Duration::from_millis(40);
/// Longest wait for the store before sockets are opened. A check before the first contact would be decided as in an
/// outage.
const FIRST_CONTACT: Duration = Duration::from_secs(1);
/// Bytes of a socket's path at most: the system takes 107, and the daemon binds the socket under a name with its process's number behind
/// it first.
const MOST_SOCKET_PATH: usize = 107 - ".4194304".len();

pub(crate) fn run(globals: &Globals, sources: Sources, force: bool) -> anyhow::Result<ExitCode> {
    // Must happen before threads are started, because it removes variables from the environment.
    let handed = Handed::from_environment().map_err(|problem| ExitError::new(Code::System, problem))?;
    let checked = config::load(&sources).and_then(|loaded| resolve(&loaded).map(|resolved| (loaded, resolved)));
    let (loaded, resolved) = checked.map_err(|errors| ExitError::new(Code::BadConfig, errors))?;
    let exposed = key_files::exposed(&loaded.config);
    if let Some(problem) = exposed.first().filter(|_| !force) {
        return Err(ExitError::new(Code::BadConfig, format!("{problem}, or serve all the same with --force")).into());
    }
    let log = log::start(&loaded.config.log, globals).map_err(|problem| ExitError::new(Code::BadConfig, problem))?;
    let of_abort = log.clone();
    vital::on_abort(move || of_abort.flush(LAST_LINES));
    exposed.iter().for_each(|problem| tracing::warn!("{problem}"));
    // Checks run on threads of their own. This runtime is for administrative commands, and for deadlines where no store has a runtime.
    let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("rationd-control").enable_all().build()?;
    // The fleet and the store each get a runtime of one thread. With one runtime of two threads, a thread to which
    // something comes would wake the other one, too, each second and in vain.
    let store = resolved.store.is_some().then(|| OwnThread::start("rationd-store")).transpose()?;
    let fleet = loaded.config.fleet.is_some().then(|| OwnThread::start("rationd-fleet")).transpose()?;
    let handle = |thread: &Option<OwnThread>| thread.as_ref().map(|thread| thread.handle().clone());
    let runtimes = Runtimes { store: handle(&store), fleet: handle(&fleet) };
    let served = runtime.block_on(serve(sources, loaded, resolved, runtimes, handed, log.clone()));
    runtime.shutdown_timeout(ENDING);
    for thread in [store, fleet].into_iter().flatten() {
        thread.end(ENDING);
    }
    log.flush(LAST_LINES);
    served
}

/// The runtimes beside the control runtime, as far as they are needed.
struct Runtimes {
    store: Option<Handle>,
    fleet: Option<Handle>,
}

async fn serve(
    sources: Sources,
    loaded: Loaded,
    resolved: Resolved,
    runtimes: Runtimes,
    handed: Handed,
    log: log::Started,
) -> anyhow::Result<ExitCode> {
    // Must happen before the socket is visible: from then on, signals may come.
    let mut signals = Signals::new()?;
    let up = tokio::select! {
        up = bring_up(sources, loaded, resolved, runtimes, handed, log) => up?,
        () = signals.end() => return Ok(Code::Ok.into()),
    };
    service_manager::ready(up.facts.state.clone()).await;
    signals.wait_for_the_end(&up.facts.reloader, up.denials.as_ref()).await;
    up.facts.leaving.store(true, Ordering::Relaxed);
    service_manager::stopping().await;
    let clock = Clock::start();
    let asked = clock.now();
    let in_order = leave(up.daemon, &mut signals).await;
    if in_order && (up.denials.is_some() || up.recorder.is_some()) {
        let took = Duration::from_micros(clock.now().since(asked).0);
        let most = DRAIN.saturating_sub(took).max(LAST_OF_FILES);
        let flush = move || {
            up.recorder.inspect(|recorder| recorder.flush(most / 2));
            up.denials.inspect(|denials| denials.flush(most / 2));
        };
        tokio::select! {
            _ = tokio::task::spawn_blocking(flush) => {}
            () = signals.end() => {}
        }
    }
    Ok(Code::Ok.into())
}

/// A running daemon, as the admin address shows it.
struct Up {
    daemon: Daemon,
    facts: Arc<DaemonFacts>,
    denials: Option<DenialsFile>,
    recorder: Option<Recorder>,
}

async fn bring_up(
    sources: Sources,
    loaded: Loaded,
    resolved: Resolved,
    runtimes: Runtimes,
    mut handed: Handed,
    log: log::Started,
) -> anyhow::Result<Up> {
    let config = loaded.config.clone();
    let admin_is_default = loaded.entry("listen.admin").is_some_and(|entry| entry.origin == "default");
    let policies = loaded.policies.iter().count();
    let reloader = Arc::new(Reloader::new(sources, loaded, resolved.remote.clone()));
    let shared = match &resolved.store {
        None => None,
        Some(options) => {
            let _of_store = runtimes.store.as_ref().map(Handle::enter);
            let store =
                RedisStore::new(options, Clock::start()).map_err(|error| ExitError::new(Code::BadConfig, error))?;
            Some(Arc::new(store))
        }
    };
    let admin = bind_admin(&config, admin_is_default, &mut handed).await?;
    let fleet = join(&config, runtimes.fleet).await?;
    if let Some(store) = &shared {
        store.tried(FIRST_CONTACT).await;
    }
    let mut daemon = start(&config, &resolved, shared.clone(), &reloader, handed)?;
    if let (Some((fleet, incoming)), Some(options)) = (fleet, &config.fleet) {
        daemon.join(fleet, incoming, Duration::from_micros(options.tick.0), options.top);
    }
    let denials = write_denials(&config, &daemon)?;
    let recorder = record(&config, &daemon)?;
    let facts = Arc::new(DaemonFacts {
        state: daemon.state().clone(),
        shared,
        reloader: reloader.clone(),
        log,
        leaving: AtomicBool::new(false),
        started: clock::wall(),
    });
    if let Some(admin) = admin {
        tracing::info!("admin address http://{}", admin.address()?);
        let access = Access {
            checks: config.listen.admin_checks,
            keys: config.listen.admin_keys,
            hosts: config.listen.admin_hosts.clone(),
        };
        tokio::spawn(admin.run(facts.clone(), access));
    }
    if let Some(door) = daemon.envoy() {
        announce_envoy(&door, &daemon.policies());
    }
    if let Some(address) = daemon.tcp() {
        announce_tcp(config.listen.tcp_users.is_some(), config.listen.tcp_cert.is_some(), address);
    }
    tracing::info!(
        node = config.node.name,
        store = without_password(&config.store.url),
        policies,
        version = env!("CARGO_PKG_VERSION"),
        "listening on {}",
        daemon.socket().display()
    );
    Ok(Up { daemon, facts, denials, recorder })
}

fn start(
    config: &Config,
    resolved: &Resolved,
    shared: Option<Arc<RedisStore>>,
    reloader: &Arc<Reloader>,
    handed: Handed,
) -> anyhow::Result<Daemon> {
    let listen = &config.listen;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if listen.threads == 0 { cores } else { listen.threads };
    // On a single processor the thread of the store's connections serves clients, too. With a data thread beside it,
    // each turn of one would wake the other, and these switches of threads took a fifth of a cold key's check.
    let is_shared = shared.is_some() && cores.max(threads) == 1;
    let limits = Limits {
        connections: listen.max_connections,
        connections_per_uid: listen.max_connections_per_uid,
        allow_uids: listen.allow_uids.clone().unwrap_or_default(),
        admin_uids: listen.admin_uids.clone(),
        ..Limits::default()
    };
    let again = reloader.clone();
    let options = StartOptions {
        clock: Clock::start(),
        socket: listen.socket.clone(),
        mode: listen.mode,
        group: resolved.group,
        envoy: listen
            .envoy
            .clone()
            .map(|address| EnvoyOptions { address, headers: Style::named(listen.envoy_headers.as_bytes()) }),
        tcp: listen.tcp,
        remote: reloader.remote().clone(),
        limits: open_files::fit(limits, threads, listen),
        threads: if is_shared { 0 } else { threads },
        store: shared.map_or(Backend::Memory, |store| Backend::Remote(store)),
        policies: reloader.policies().clone(),
        in_fleet: config.fleet.is_some(),
        settings: Settings { max_keys: config.node.max_keys, timeout: config.store.timeout, lease_ahead: true },
        digests: resolved.digests,
        reload: Some(Arc::new(move |mode| match mode {
            ReloadMode::Take => again.reload(),
            ReloadMode::DryRun => again.dry_run(),
        })),
    };
    let each_key = if matches!(options.store, Backend::Memory) { memory::EMBEDDED_KEY } else { memory::LEASED_KEY };
    let options = memory::fit(options, memory::budget(config.node.max_memory), each_key);
    Daemon::start_with(options, handed).map_err(|error| {
        let next = match &error {
            StartError::Socket(SocketError::Io { path, error, .. }) => socket_advice(path, error),
            _ => String::new(),
        };
        ExitError::new(Code::System, format!("{error}{next}")).into()
    })
}

/// What to do about a socket that the operating system refuses.
fn socket_advice(path: &Path, error: &std::io::Error) -> String {
    let choose = "choose another with --socket or listen.socket";
    let length = path.as_os_str().len();
    match error.kind() {
        std::io::ErrorKind::InvalidInput => {
            format!("; it has {length} bytes, and a socket's path may have {MOST_SOCKET_PATH}: {choose}")
        }
        std::io::ErrorKind::PermissionDenied
        | std::io::ErrorKind::ReadOnlyFilesystem
        | std::io::ErrorKind::NotFound => {
            let user = rustix::process::geteuid().as_raw();
            format!("; uid {user} has to be able to write its directory: {choose}")
        }
        _ => String::new(),
    }
}

/// Begins to record arrivals, where that is wanted.
fn record(config: &Config, daemon: &Daemon) -> anyhow::Result<Option<Recorder>> {
    let Some(path) = config.record.file.clone() else { return Ok(None) };
    let file = RecordFile { path, size: config.record.size, keys: config.record.keys };
    let recorder = file.start(daemon.state().clone()).map_err(|problem| ExitError::new(Code::System, problem))?;
    Ok(Some(recorder))
}

/// Begins to write lines about denials, where they are wanted.
fn write_denials(config: &Config, daemon: &Daemon) -> anyhow::Result<Option<DenialsFile>> {
    let Some(path) = &config.denials.file else { return Ok(None) };
    let file = DenialsFile::start(path.clone()).map_err(|error| ExitError::new(Code::System, error))?;
    let keys = match config.denials.keys {
        DenialKeys::Clipped => KeyForm::Clipped,
        DenialKeys::Digest => KeyForm::Digest,
    };
    daemon.state().denials.write_to(file.sink(), keys);
    Ok(Some(file))
}

/// Binds the fleet's port and begins to look for peers, on the fleet's runtime. It does not wait for any.
async fn join(config: &Config, of_fleet: Option<Handle>) -> anyhow::Result<Option<(Fleet, mpsc::Receiver<Incoming>)>> {
    let (Some(fleet), Some(runtime)) = (&config.fleet, of_fleet) else { return Ok(None) };
    if config.store.url == "memory:" {
        tracing::warn!("[fleet] without a shared store: every node counts for itself; set store.url");
    }
    let options = FleetOptions {
        fleet: fleet.name.clone(),
        node: config.node.name.as_str().into(),
        incarnation: clock::wall().0 / 1_000,
        listen: fleet.listen,
        advertise: fleet.advertise,
        seeds: fleet.seeds.clone(),
        tick: Duration::from_micros(fleet.tick.0),
        identity: IdentityFiles {
            ca: fleet.ca.clone(),
            cert: fleet.cert.clone(),
            key: fleet.key.clone(),
            crl: fleet.crl.clone(),
        },
        owning: match fleet.owner {
            Owner::Auto => Owning::Auto,
            Owner::Always => Owning::Always,
            Owner::Never => Owning::Never,
        },
    };
    let joined = runtime.spawn(Fleet::start(options)).await?;
    joined.map(Some).map_err(|error| {
        let code = if matches!(error, FleetError::Listen { .. }) { Code::System } else { Code::BadConfig };
        ExitError::new(code, error).into()
    })
}

/// If the default address is in use, the daemon runs without an admin address; if a configured one is, that is an
/// error.
async fn bind_admin(config: &Config, is_default: bool, handed: &mut Handed) -> anyhow::Result<Option<Admin>> {
    let Some(address) = config.listen.admin else { return Ok(None) };
    let bound = match handed.take_tcp(address) {
        Some(listener) => Admin::adopt(listener),
        None => Admin::bind(address).await,
    };
    match bound {
        Ok(admin) => {
            if !address.ip().is_loopback() {
                let may = if config.listen.admin_checks { "read it and spend" } else { "read it" };
                tracing::warn!(%address, "the admin address is not a loopback address: anybody who reaches it may {may}");
            }
            Ok(Some(admin))
        }
        Err(error) if is_default => {
            tracing::warn!(%address, %error, "no metrics: the default admin address cannot be bound; set listen.admin");
            Ok(None)
        }
        Err(error) => {
            let next = "choose another listen.admin, or \"off\"";
            Err(ExitError::new(Code::System, format!("cannot bind the admin address {address}: {error}; {next}"))
                .into())
        }
    }
}

fn announce_envoy(door: &ListenAddress, policies: &PolicySet) {
    tracing::info!("Envoy's rate limit service on {door}");
    if policies.routes().names().next().is_none() {
        tracing::warn!("listen.envoy without [descriptors] limits nothing");
    }
    if let ListenAddress::Address(address) = door
        && !address.ip().is_loopback()
    {
        tracing::warn!(%address, "listen.envoy is not a loopback address: anybody who reaches it may spend");
    }
}

fn announce_tcp(has_users: bool, has_tls: bool, address: SocketAddr) {
    tracing::info!("clients over TCP{} on {address}", if has_tls { " with TLS" } else { "" });
    if !has_users && !has_tls {
        tracing::warn!(%address, "listen.tcp without listen.tcp_users: every program of this host may spend");
    }
}

/// Stops accepting, answers what is in flight, and returns leases. A second signal ends it at once; then this is false.
async fn leave(daemon: Daemon, signals: &mut Signals) -> bool {
    tracing::info!("leaving: answering what has come and giving leases back");
    let drained = tokio::time::timeout(DRAIN, daemon.drain_and_stop());
    tokio::select! {
        drained = drained => match drained {
            Ok(0) => tracing::info!("left: everything is settled"),
            Ok(open) => tracing::warn!(open, "left: store calls without an outcome; their leases lapse by themselves"),
            Err(_) => tracing::warn!("left before everything was settled; open leases lapse by themselves"),
        },
        () = signals.end() => {
            tracing::warn!("left at once, as a second signal asked");
            return false;
        }
    }
    true
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Reloads at each SIGHUP, until a signal asks to stop.
    async fn wait_for_the_end(&mut self, reloader: &Arc<Reloader>, denials: Option<&DenialsFile>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => {
                    denials.into_iter().for_each(DenialsFile::reopen);
                    let reloader = reloader.clone();
                    // The log and the metrics report the outcome.
                    let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
                }
            }
        }
    }
}

struct DaemonFacts {
    state: Arc<ServerState>,
    shared: Option<Arc<RedisStore>>,
    reloader: Arc<Reloader>,
    log: log::Started,
    leaving: AtomicBool,
    started: Timestamp,
}

impl DaemonStatus for DaemonFacts {
    fn metrics(&self) -> String {
        let store = self.shared.as_ref().map(|store| store.snapshot());
        let (fleet, local_limits) = (self.state.fleet_status(), self.state.local_limits());
        let process = ProcessUse::read(self.started);
        let hot = hot_keys::top(self.state.node.hot_keys(self.state.node.clock.now(), Kind::Used), usize::MAX);
        let scrape = Scrape {
            stats: &self.state.stats(),
            store: store.as_ref(),
            fleet: fleet.as_ref(),
            local_limits: &local_limits,
            reload_successful: self.reloader.was_successful(),
            generation: self.reloader.generation(),
            version: env!("CARGO_PKG_VERSION"),
            suppressed: self.log.suppressed(),
            dropped: self.log.dropped(),
            hot: &hot,
            tried: &self.state.node.tried(),
            process: process.as_ref(),
        };
        scrape.render()
    }

    fn not_alive(&self) -> Option<String> {
        self.state.vitals.still(self.state.node.clock.now())
    }

    fn not_ready(&self) -> Option<&'static str> {
        self.leaving.load(Ordering::Relaxed).then_some("leaving")
    }

    fn state(&self) -> &Arc<ServerState> {
        &self.state
    }

    fn summary(&self) -> String {
        let stats = self.state.stats();
        let policies = self.reloader.policies().load().iter().count();
        format!(
            "rationd {}: {policies} policies, {} keys, {} connections",
            env!("CARGO_PKG_VERSION"),
            stats.shards.keys,
            stats.connections
        )
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    rest.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, hosts)| format!("{scheme}://{hosts}"))
}
