//! Whole daemons under simulation: `serve`, `store/redis` and `fleet` on paused time, with connections, servers and a
//! network in memory, everything drawn from a seed. A client's bytes go in and bytes come out; Redis runs the shipped
//! scripts; connections break at any byte, on both sides of the daemon.
//!
//! A seed draws how many daemons there are and whether they are a fleet, the store (embedded, a server, a cluster of
//! three), how many bytes a connection carries at a time, which of them break and where, what goes wrong with servers
//! (death, standstill, errors, forgotten scripts, slots that move, a daemon that reaches nobody), and what daemons do:
//! a restart, and new limits, which they read from their configuration file, as they do for a signal; or that file is wrong, is
//! refused, and changes nothing. Clients ask for all that the socket offers, in pipelines and transactions, and keep a ledger.
//! Then all heals, and the ledger judges:
//!
//! - every command gets one answer, in its place and in its form, in time;
//! - no limit is exceeded, by the sum of what clients were told, and no window, and no bucket in any interval;
//! - what the store counts in the end is what clients were told, but for what nobody could know, because a connection
//!   broke: nothing is charged that was not admitted, where nothing broke;
//! - when all has healed answers come from leases and the store again; a daemon leaves with nothing open.
//!
//! Each seed runs in a process of its own, some of them twice: the hash of what happened, with virtual times, must be
//! the same. `RATIOND_DAEMON_SEEDS=10..60` runs other seeds; `RATIOND_DAEMON_TRACES=DIR` keeps what happened there.

#![allow(clippy::disallowed_methods, reason = "the time is tokio's, which the test has paused")]

use crate::support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rationd::clock::Clock;
use rationd::config::{self, Sources};
use rationd::core::key::DigestKey;
use rationd::core::shard::Settings;
use rationd::core::time::{Micros, Timestamp};
use rationd::serve::reload::{REFUSED, Reloader};
use rationd::serve::tcp::RemoteAccess;
use rationd::serve::worker::Comers;
use rationd::serve::{Backend, Daemon, Limits, StartOptions};
use rationd::store::redis::{RedisOptions, RedisStore};
use support::cloud::{Cloud, Exchange, Route};
use support::ether::{Ether, Weather};
use support::membership_suite::Start;
use support::peers::Authority;
use support::pipe::{End, Way, pair};
use support::resp::{Decoder, Reply, encode};
use support::seeded::{Draws, draw_from};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Seeds that run where none are named, and how many of them run twice.
const SEEDS: std::ops::Range<u64> = 1..241;
const TWICE: u64 = 8;
/// Names the seed to a process that runs one, and says which of its runs it is.
const SEED: &str = "RATIOND_DAEMON_SEED";
const RUN: &str = "RATIOND_DAEMON_RUN";
/// What the line of figures begins with.
const MARK: &str = "seeded: ";

/// `store.timeout`.
const PATIENCE: Duration = Duration::from_millis(50);
/// What an answer may take beside that and its ways: README's ten milliseconds.
const SLACK: Duration = Duration::from_millis(10);
/// How long a client waits for what never comes.
const NEVER: Duration = Duration::from_secs(20);
/// How long after all has healed answers must come as if nothing had been, and how long they are looked at.
const HEALING: Duration = Duration::from_millis(4_500);
const CALM: Duration = Duration::from_millis(1_500);
/// An hour after midnight: no day ends within a run.
const WALL: u64 = 1_800_000_000_000_000 / 86_400_000_000 * 86_400_000_000 + 3_600_000_000;

/// The limit of `day`, of which the ledger is exact.
const DAY: u64 = 300;
/// The limit of `tick`, and its window.
const TICK: u64 = 20;
/// The limits of `bucket`, with which it begins.
const BURST: u64 = 50;
const RATE: u64 = 100;
/// The limit of `slots`.
const SLOTS: usize = 5;
/// The limit of `calm`: enough for everybody.
const PLENTY: u64 = 1_000_000;

#[test]
fn daemons_on_paused_time_keep_their_promises() {
    if let Ok(seed) = std::env::var(SEED) {
        return alone(seed.parse().expect("a number"));
    }
    let seeds: Vec<u64> = seeds();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let hashes = Mutex::new(BTreeSet::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let twice = seeds.len() < 24 || seed % (seeds.len() as u64 / TWICE).max(1) == 0;
                    let runs: Vec<_> = (0..=u8::from(twice)).map(|run| figures(seed, run)).collect();
                    let wrong = match &runs[..] {
                        [Ok(one)] => {
                            hashes.lock().expect("nobody panicked").insert(one.clone()).then_some(()).is_none()
                        }
                        [Ok(one), Ok(other)] if one == other => {
                            hashes.lock().expect("nobody panicked").insert(one.clone());
                            false
                        }
                        _ => true,
                    };
                    if wrong {
                        failed.lock().expect("nobody panicked").push(format!("seed {seed}: {runs:#?}"));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panicked");
    let different = hashes.into_inner().expect("nobody panicked").len();
    println!("{MARK}{} seeds, {} bad, {different} different", seeds.len(), failed.len());
    assert!(failed.is_empty(), "{} of {} seeds are bad:\n{}", failed.len(), seeds.len(), failed.join("\n"));
    assert_eq!(different, seeds.len(), "seeds that differ do the same");
}

/// What a conversation has charged when it ends, wherever that is: a check, two that apply together, and one more.
const STEPS: [u64; 4] = [0, 2, 9, 10];

#[test]
fn a_client_may_break_off_at_any_byte() {
    let conversations = alone_with(|| async {
        let mut held = 0;
        for is_remote in [false, true] {
            held += World::of_one(is_remote).await.break_clients().await;
        }
        held
    });
    assert!(conversations > 2_000, "{conversations}");
}

#[test]
fn a_connection_to_the_store_may_break_at_any_byte() {
    let lives = alone_with(|| async { World::of_one(true).await.break_store().await });
    assert!(lives > 600, "{lives}");
}

/// On paused time, in a thread that has drawn nothing yet.
fn alone_with<F: Future<Output = u64> + 'static>(run: impl FnOnce() -> F + Send + 'static) -> u64 {
    let run = move || {
        draw_from(Some(1));
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        LocalSet::new().block_on(&runtime, run())
    };
    std::thread::spawn(run).join().expect("promises are kept")
}

fn seeds() -> Vec<u64> {
    let Ok(text) = std::env::var("RATIOND_DAEMON_SEEDS") else { return SEEDS.collect() };
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?..to.parse().ok()?).collect()));
    ends.unwrap_or_else(|| panic!("RATIOND_DAEMON_SEEDS is {text:?}: like 10..60"))
}

/// The line of figures of a run in a process of its own, or all that it said when it failed.
fn figures(seed: u64, run: u8) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().expect("its path"));
    command.args(["--exact", "daemon_seeded::daemons_on_paused_time_keep_their_promises", "--nocapture"]);
    command.env(SEED, seed.to_string()).env(RUN, run.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().expect("it ran a moment ago");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout);
    let line = printed.lines().find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    line.filter(|_| output.status.success()).ok_or_else(|| printed.clone() + &text(&output.stderr))
}

/// One seed, in a thread that has drawn nothing yet.
fn alone(seed: u64) {
    let run = move || {
        draw_from(Some(seed));
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        LocalSet::new().block_on(&runtime, World::run(seed))
    };
    let line = std::thread::spawn(run).join().expect("the seed keeps its promises");
    println!("\n{MARK}{line}");
}

/// What happened: its hash, and all of it where somebody wants to read it.
#[derive(Clone)]
struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    begun: Instant,
    hash: u64,
    count: u64,
    /// Line by line: whoever finds something wrong ends the process.
    file: Option<fs::File>,
}

impl Trace {
    fn begin(seed: u64) -> Self {
        let run = std::env::var(RUN).unwrap_or_default();
        let file = std::env::var("RATIOND_DAEMON_TRACES").ok();
        let file = file.map(|directory| fs::File::create(format!("{directory}/{seed}-{run}")).expect("a directory"));
        Self(Arc::new(Mutex::new(Lines { begun: Instant::now(), hash: 0xcbf2_9ce4_8422_2325, count: 0, file })))
    }

    fn note(&self, what: &str) {
        let mut lines = self.0.lock().expect("nobody panicked");
        let line = format!("{:>9} {what}\n", lines.begun.elapsed().as_micros());
        for byte in line.bytes() {
            lines.hash = (lines.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        lines.count += 1;
        if let Some(file) = &mut lines.file {
            file.write_all(line.as_bytes()).expect("a file takes a line");
        }
    }
}

/// Where a daemon's clients come from.
struct Callers(mpsc::UnboundedReceiver<(End, u32)>);

impl Comers for Callers {
    type Stream = End;

    async fn next(&mut self) -> (End, Option<u32>) {
        match self.0.recv().await {
            Some((end, uid)) => (end, Some(uid)),
            None => std::future::pending().await,
        }
    }
}

/// Where the clients of a daemon are put in front of it.
type Door = mpsc::UnboundedSender<(End, u32)>;

/// A daemon, and how to reach it; `None`: it is away.
#[derive(Clone, Default)]
struct Place(Arc<Mutex<Option<Door>>>);

impl Place {
    fn connect(&self, way: Way, seed: u64, breaks_at: [Option<u64>; 2]) -> Option<End> {
        let place = self.0.lock().expect("nobody panicked");
        let (theirs, end) = pair(way, seed, breaks_at);
        place.as_ref()?.send((theirs, 0)).ok()?;
        Some(end)
    }
}

struct Running {
    daemon: Daemon,
    reloader: Reloader,
}

struct World {
    seed: u64,
    draws: Draws,
    trace: Trace,
    cloud: Option<(Cloud, Exchange)>,
    /// The store's connections.
    route: Route,
    fleet: Option<(Ether, Authority)>,
    places: Vec<Place>,
    running: Vec<Option<Running>>,
    lives: u64,
    ledger: Arc<Mutex<Ledger>>,
    begun: Instant,
    /// The file that all daemons read.
    configuration: Configuration,
}

/// What a seed draws for all of its clients.
#[derive(Clone, Copy)]
struct Habits {
    way: Way,
    /// One of so many connections breaks; 0: none.
    breaks: u64,
    /// Until when they ask.
    until: Instant,
    /// From when on answers must come as if nothing had been wrong.
    calm_from: Instant,
    /// Nothing goes wrong with the store and its connections.
    store_is_well: bool,
    /// What goes wrong is what a daemon gets over without a word to anybody: forgotten scripts, slots that move,
    /// replicas that confirm nothing.
    gentle: bool,
}

impl World {
    async fn run(seed: u64) -> String {
        let mut draws = Draws::new(seed);
        let begun = Instant::now();
        let micros = Duration::from_micros;
        let way = |draws: &mut Draws, room: &[usize]| Way {
            latency: micros(*draws.one(&[20, 100, 500, 1_500])),
            jitter: micros(*draws.one(&[0, 50, 800])),
            chunk: *draws.one(&[1, 7, 100, 1 << 16]),
            room: *draws.one(room),
        };
        let embedded = draws.one_in(8);
        let masters = *draws.one(&[1, 3]);
        let (breaks_clients, breaks_store) = (*draws.one(&[0, 0, 2, 4]), *draws.one(&[0, 0, 2, 5]));
        let cloud = (!embedded).then(|| Cloud::start(masters, WALL, seed));
        let gentle = draws.one_in(3);
        let breaks_store = if gentle { 0 } else { breaks_store };
        let route = Route { way: way(&mut draws, &[2_000, 1 << 18]), breaks: breaks_store, within: 200_000 };
        let nodes = if embedded { 1 } else { draws.of(1..4) as usize };
        let fleet = (nodes > 1 && draws.one_in(2)).then(|| {
            let weather = Weather { delay: micros(300), jitter: micros(200), loss: *draws.one(&[0, 10]) };
            (Ether::new(seed, weather, false), Authority::repeatable("test"))
        });
        let carrying = fleet.as_ref().map(|(ether, _)| tokio::spawn(ether.clone().carry()));
        let span = Duration::from_millis(draws.of(2_000..6_000));
        let faults = if embedded { 0 } else { *draws.one(&[0, 1, 2, 4]) };
        let client_way = way(&mut draws, &[300, 5_000, 1 << 20]);
        let mut world = Self {
            seed,
            trace: Trace::begin(seed),
            cloud,
            route,
            fleet,
            places: (0..nodes).map(|_| Place::default()).collect(),
            running: Vec::new(),
            lives: 0,
            ledger: Arc::default(),
            begun,
            configuration: Configuration::new(seed),
            draws,
        };
        for node in 0..nodes {
            let running = world.start(node);
            world.running.push(Some(running));
        }
        let habits = Habits {
            way: client_way,
            breaks: breaks_clients,
            until: begun + span + HEALING + CALM,
            calm_from: begun + span + HEALING,
            store_is_well: faults == 0 && breaks_store == 0,
            gentle,
        };
        // The first connections to the store stand before anybody asks: a daemon opens its doors when it has tried to reach its
        // store, or after a second. Loading the scripts, 200 KB, takes a narrow connection longer than 200 ms.
        sleep(Duration::from_secs(1)).await;
        let clients: Vec<_> =
            (0..world.draws.of(2..7)).map(|number| spawn_local(world.client(number, habits))).collect();
        let restarts = world.go_wrong(faults, gentle, span).await;
        world.heal().await;
        for client in clients {
            if let Err(broken) = client.await {
                std::panic::resume_unwind(broken.into_panic());
            }
        }
        let line = world.end(habits, restarts).await;
        if let Some(carrying) = carrying {
            carrying.abort();
        }
        line
    }

    /// One daemon, with an embedded store or one server, whose connections break where they are told to.
    async fn of_one(is_remote: bool) -> Self {
        let mut world = Self {
            seed: 1,
            draws: Draws::new(1),
            trace: Trace::begin(1),
            cloud: is_remote.then(|| Cloud::start(1, WALL, 1)),
            route: Route { way: WIDE, breaks: 0, within: 0 },
            fleet: None,
            places: vec![Place::default()],
            running: Vec::new(),
            lives: 0,
            ledger: Arc::default(),
            begun: Instant::now(),
            configuration: Configuration::new(1),
        };
        let running = world.start(0);
        world.running.push(Some(running));
        sleep(Duration::from_secs(1)).await;
        world
    }

    /// Clients break off behind each byte of what they say, and of what they are answered; how many did.
    async fn break_clients(self) -> u64 {
        let mut number = 0;
        for is_http in [false, true] {
            for way in [0, 1] {
                for byte in 0.. {
                    number += 1;
                    let key = format!("day-{number:05}");
                    let mut breaks_at = [None, None];
                    breaks_at[way] = Some(byte);
                    let mut end = self.places[0].connect(WIDE, number, breaks_at).expect("it runs");
                    let told = if is_http { in_http(&mut end, &key).await } else { in_resp(&mut end, &key).await };
                    let is_whole = told == STEPS[3] && is_there(&mut end, is_http).await;
                    drop(end);
                    sleep(Duration::from_millis(100)).await;
                    let counted = self.counted(&key).await;
                    let half = format!("{key}, byte {byte} of way {way}: {told} told, {counted} counted");
                    assert!(STEPS.contains(&counted) && told <= counted, "{half}");
                    if is_whole {
                        break;
                    }
                }
            }
        }
        number
    }

    /// The daemon's first connection breaks behind each byte of its greeting and of its first calls, and behind one in five
    /// thousand of the scripts between; how often a daemon was started for that.
    async fn break_store(mut self) -> u64 {
        let cloud = self.cloud.as_ref().expect("it is remote").0.clone();
        assert_eq!(self.ask("day-warm", 2).await.as_deref(), Some("ok"));
        // As much as a greeting, the scripts and one call come to, each way.
        let carried = cloud.carried();
        let (mut number, mut in_use) = (0, 0);
        for way in [0, 1] {
            let near = |byte: u64| byte < 60 || byte + 420 > carried[way];
            for byte in (0..carried[way] + 120).filter(|byte| near(*byte) || byte % 4_999 == 0) {
                number += 1;
                self.stop(0).await;
                let mut breaks_at = [None, None];
                // Of the two directions the first is what a daemon reads.
                breaks_at[1 - way] = Some(byte);
                cloud.break_next(breaks_at);
                self.running[0] = Some(self.start(0));
                sleep(Duration::from_secs(1)).await;
                let key = format!("day-{way}-{byte}");
                let (mut told, connections) = (0, cloud.connections());
                for cost in [2, 7] {
                    told += if self.ask(&key, cost).await.as_deref() == Some("ok") { cost } else { 0 };
                }
                in_use += u64::from(cloud.connections() > connections);
                // By then it is told what was given up.
                sleep(Duration::from_secs(3)).await;
                assert_eq!(self.ask(&key, 1).await.as_deref(), Some("ok"), "{key}: the store is there again");
                let counted = self.counted(&key).await;
                assert_eq!(counted, told + 1, "{key}: what was denied is charged nothing");
            }
        }
        println!("of {number} connections {in_use} broke while somebody waited");
        assert!(in_use > 100, "of {number} connections {in_use} broke while somebody waited");
        number
    }

    /// A check on a connection of its own; the reason of its answer, which comes in time.
    async fn ask(&self, key: &str, cost: u64) -> Option<String> {
        let mut end = self.places[0].connect(WIDE, self.seed, [None, None]).expect("it runs");
        let mut bytes = Vec::new();
        encode(&mut bytes, &[b"RATION.CHECK", b"day", key.as_bytes(), b"COST", cost.to_string().as_bytes()]);
        end.write_all(&bytes).await.expect("it is there");
        let reply = timeout(PATIENCE + SLACK, read(&mut end, &mut Decoder::default())).await.expect("in time");
        Some(Answered::read("day", &reply?).reason)
    }

    /// What is counted of a key, as the daemon knows it.
    async fn counted(&self, key: &str) -> u64 {
        let mut end = self.places[0].connect(WIDE, self.seed, [None, None]).expect("it runs");
        let mut bytes = Vec::new();
        encode(&mut bytes, &[b"RATION.CHECK", b"day", key.as_bytes(), b"PEEK"]);
        end.write_all(&bytes).await.expect("it is there");
        let reply = read(&mut end, &mut Decoder::default()).await.expect("an answer");
        DAY - reply.items()[2].int() as u64
    }

    fn since(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Starts a daemon, or starts it again.
    fn start(&mut self, node: usize) -> Running {
        self.lives += 1;
        let (sender, receiver) = mpsc::unbounded_channel();
        let sources = self.configuration.sources();
        let loaded = config::load(&sources).unwrap_or_else(|errors| panic!("{errors}"));
        let reloader = Reloader::new(sources, loaded, RemoteAccess::default());
        let clock = Clock::start_at(Timestamp(WALL + self.since()));
        let store = match &self.cloud {
            None => Backend::Memory,
            Some((cloud, exchange)) => {
                let options =
                    RedisOptions { timeout: PATIENCE, ..RedisOptions::new(&cloud.url(), &format!("node-{node}")) };
                let roads = exchange.roads(node, self.route);
                Backend::Remote(Arc::new(RedisStore::over(&options, clock, roads).expect("good options")))
            }
        };
        let options = StartOptions {
            clock,
            socket: "/nowhere".into(),
            mode: 0o600,
            group: None,
            envoy: None,
            tcp: None,
            remote: Arc::default(),
            limits: Limits::default(),
            threads: 1,
            store,
            policies: reloader.policies().clone(),
            in_fleet: self.fleet.is_some(),
            settings: Settings { max_keys: 10_000, timeout: Micros::from_millis(50), lease_ahead: true },
            digests: DigestKey::default(),
            reload: None,
        };
        let mut daemon = Daemon::start_over(options, vec![Callers(receiver)]);
        if let Some((ether, authority)) = &self.fleet {
            let name = format!("node-{node}");
            let start = Start {
                name: &name,
                incarnation: self.lives,
                at: Some(address(node)),
                seeds: &[address(0)],
                owning: rationd::fleet::Owning::Never,
            };
            let (fleet, incoming) =
                rationd::fleet::Fleet::start_over(authority.options(start), ether.socket(address(node)))
                    .expect("it starts");
            daemon.join(fleet, incoming, Duration::from_millis(200), rationd::config::FleetTop::Totals);
        }
        *self.places[node].0.lock().expect("nobody panicked") = Some(sender);
        self.trace.note(&format!("daemon {node} starts"));
        Running { daemon, reloader }
    }

    /// Stops a daemon in order: the store calls that stay open, and what it says of itself.
    async fn stop(&mut self, node: usize) -> usize {
        let Some(running) = self.running[node].take() else { return 0 };
        *self.places[node].0.lock().expect("nobody panicked") = None;
        // Its connections end, and with them what was taken over them, of which clients may read yet.
        {
            let mut ledger = lock(&self.ledger);
            ledger.slots.values_mut().for_each(|taken| taken.retain(|(at, _), _| *at != node));
            *ledger.ends.entry(node).or_default() += 1;
        }
        let state = running.daemon.state().clone();
        let open = running.daemon.drain_and_stop().await;
        let stats = state.stats();
        assert_eq!((stats.connections, stats.kept), (0, 0), "daemon {node} has left, and somebody is still there");
        self.trace.note(&format!("daemon {node} has left, {open} calls open"));
        open
    }

    /// So many things go wrong within the span, one after another or at once; how many daemons were restarted.
    async fn go_wrong(&mut self, faults: u64, gentle: bool, span: Duration) -> u64 {
        let end = Instant::now() + span;
        let mut restarts = 0;
        for _ in 0..faults {
            sleep(Duration::from_micros(self.draws.of(1..span.as_micros() as u64 / (faults + 1)))).await;
            let Some((cloud, _)) = &self.cloud else { break };
            let cloud = cloud.clone();
            let lasts = Duration::from_millis(*self.draws.one(&[3, 30, 60, 300, 900, 1_500]));
            let server = self.draws.of(0..cloud.masters() as u64) as usize;
            let node = self.draws.of(0..self.places.len() as u64) as usize;
            let which = if gentle { *self.draws.one(&[4, 5, 5, 7]) } else { self.draws.of(0..9) };
            self.trace.note(&format!("fault {which} of server {server}, daemon {node}, for {lasts:?}"));
            match which {
                0 => drop(spawn_local(async move { cloud.kill(server, lasts).await })),
                1 | 2 => drop(spawn_local(async move { cloud.stall(server, lasts).await })),
                3 => {
                    let error =
                        *self.draws.one(&["LOADING wait", "CLUSTERDOWN The cluster is down", "OOM no", "BUSY no"]);
                    drop(spawn_local(async move { cloud.refuse(server, error, lasts).await }));
                }
                4 => cloud.flush_scripts(server),
                5 => {
                    let block = self.draws.of(0..16) as usize;
                    drop(spawn_local(async move { cloud.move_block(block, lasts).await }));
                }
                6 => drop(spawn_local(async move { cloud.cut_off(node, lasts).await })),
                7 => drop(spawn_local(async move { cloud.unconfirm(lasts).await })),
                _ => {
                    restarts += 1;
                    self.stop(node).await;
                    sleep(lasts).await;
                    self.running[node] = Some(self.start(node));
                }
            }
            if self.draws.one_in(3) {
                let others = self.draws.one_in(2);
                self.reload(others);
            }
        }
        sleep_until(end).await;
        restarts
    }

    /// All daemons read their configuration again: first what somebody has not finished, sometimes, and then new limits. They do so between
    /// two other tasks; that no answer waits for it is for tests on real time.
    fn reload(&mut self, others: bool) {
        if let Some(written) = self.configuration.write_half(others) {
            for running in self.running.iter().flatten() {
                let before = running.reloader.policies().load_full();
                let refused = running.reloader.reload().expect_err("it is wrong");
                assert!(refused.starts_with(REFUSED), "{refused}");
                assert!(Arc::ptr_eq(&before, &running.reloader.policies().load_full()), "it was taken all the same");
            }
            self.trace.note(&format!("a configuration of {written} bytes is refused"));
        }
        self.configuration.write(others);
        for running in self.running.iter().flatten() {
            let told = running.reloader.reload().unwrap_or_else(|refused| panic!("{refused}"));
            assert!(told.contains("\"policies\":7"), "{told}");
        }
        self.trace.note("limits of one policy change");
    }

    async fn heal(&mut self) {
        if let Some((cloud, _)) = &self.cloud {
            cloud.heal();
        }
        for node in 0..self.places.len() {
            if self.running[node].is_none() {
                self.running[node] = Some(self.start(node));
            }
        }
        self.trace.note("all has healed");
    }

    /// Stops all daemons and compares what the store counts with the ledger.
    async fn end(&mut self, habits: Habits, restarts: u64) -> String {
        if self.fleet.is_some() {
            for (node, running) in self.running.iter().enumerate() {
                let fleet = running.as_ref().expect("it runs").daemon.state().fleet_status().expect("it is in a fleet");
                let seen: Vec<_> = fleet.members.iter().map(|(member, _)| member.id.to_string()).collect();
                assert_eq!(seen.len(), self.places.len(), "daemon {node} sees {seen:?}");
            }
        }
        // Clients have gone, and with them what they held; where connections to the store break, nodes hear of that when a
        // lease of slots has ended.
        sleep(Duration::from_secs(11)).await;
        self.slots_are_free().await;
        for node in 0..self.places.len() {
            assert_eq!(self.stop(node).await, 0, "daemon {node} left calls open though the store is well");
        }
        let mut shown = String::from("embedded");
        if let Some((cloud, _)) = &self.cloud {
            shown =
                format!("{} masters, {} calls, {} of them with others", cloud.masters(), cloud.calls(), cloud.joined());
            self.running[0] = Some(self.start(0));
            // What a daemon could not give back, because its connections broke, is free by then.
            sleep(Duration::from_secs(11)).await;
            self.compare(habits, restarts).await;
            self.slots_are_free().await;
            self.stop(0).await;
        }
        let ledger = lock(&self.ledger);
        ledger.judge();
        let lines = self.trace.0.lock().expect("nobody panicked");
        format!(
            "seed {:4}, {} daemons{}, {shown}, {} answers, {} broken, {} denied; {} lines, hash {:016x}",
            self.seed,
            self.places.len(),
            if self.fleet.is_some() { " in a fleet" } else { "" },
            ledger.answers,
            ledger.broken,
            ledger.denied,
            lines.count,
            lines.hash,
        )
    }

    /// No client is there any more, so nobody holds a slot.
    async fn slots_are_free(&self) {
        let mut end = self.places[0].connect(WIDE, !self.seed, [None, None]).expect("it runs");
        // What they take goes back with their connection.
        for key in ["slots-0", "slots-1"] {
            let (mut taken, mut tries) = (0, 0);
            while taken < SLOTS {
                let mut bytes = Vec::new();
                encode(&mut bytes, &[b"RATION.CHECK", b"slots", key.as_bytes()]);
                end.write_all(&bytes).await.expect("it is there");
                let reply = read(&mut end, &mut Decoder::default()).await.expect("an answer");
                let told = Answered::read("slots", &reply);
                taken += usize::from(!told.limited);
                tries += 1;
                assert!(tries < 50 && told.reason != "rate", "{key}: {taken} of {SLOTS} are free: {reply:?}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    /// What the store counts of a day, key by key, beside what clients were told.
    async fn compare(&self, habits: Habits, restarts: u64) {
        let mut end = self.places[0].connect(WIDE, self.seed, [None, None]).expect("it runs");
        let books = lock(&self.ledger).days.clone();
        for (key, book) in books {
            let mut bytes = Vec::new();
            let (policy, limit) = exact(&key).expect("it has a book");
            encode(&mut bytes, &[b"RATION.CHECK", policy.as_bytes(), key.as_bytes(), b"PEEK"]);
            let mut tries = 0;
            let reply = loop {
                end.write_all(&bytes).await.expect("it is there");
                let reply = read(&mut end, &mut Decoder::default()).await.expect("an answer");
                if Answered::read(policy, &reply).source == "store" {
                    break reply;
                }
                // Connections to the store still break.
                tries += 1;
                assert!(tries < 50, "{key}: the store does not answer: {reply:?}");
                sleep(Duration::from_millis(100)).await;
            };
            let fields = reply.items();
            let counted = limit - fields[2].int() as u64;
            self.trace.note(&format!("{key}: {counted} counted, {book:?}"));
            assert!(counted + book.perhaps_back >= book.stands(), "{key}: the store counts {counted}, {book:?}");
            // Where nothing broke, nothing is charged that nobody was told of.
            if habits.store_is_well && restarts == 0 {
                let most = book.stands() + book.perhaps;
                assert!(counted <= most, "{key}: the store counts {counted}, and clients know of {most}: {book:?}");
            }
        }
    }

    /// A client that asks until the end, on one connection after another.
    fn client(&mut self, number: u64, habits: Habits) -> impl Future<Output = ()> + use<> {
        let mut draws = Draws::part(self.seed, 1_000 + number);
        let (places, trace, ledger) = (self.places.clone(), self.trace.clone(), self.ledger.clone());
        let begun = self.begun;
        async move {
            let mut client = Client {
                number,
                draws: draws.clone(),
                habits,
                trace,
                ledger,
                held: Vec::new(),
                begun,
                serial: 0,
                taken: Vec::new(),
                breaks: false,
                is_done: false,
                ends: 0,
            };
            while Instant::now() < habits.until {
                let node = draws.of(0..places.len() as u64) as usize;
                let mut breaks_at = [None, None];
                let is_calm = Instant::now() + Duration::from_millis(200) >= habits.calm_from;
                if habits.breaks > 0 && !is_calm && draws.one_in(habits.breaks) {
                    breaks_at[draws.of(0..2) as usize] = Some(draws.of(0..4_000));
                }
                let batches = draws.of(1..30);
                let Some(end) = places[node].connect(habits.way, draws.next(), breaks_at) else {
                    assert!(!is_calm, "daemon {node} is away though all is well");
                    sleep(Duration::from_millis(20)).await;
                    continue;
                };
                client.breaks = breaks_at != [None, None];
                client.ends = lock(&client.ledger).ends.get(&node).copied().unwrap_or(0);
                if draws.one_in(6) {
                    client.converse_in_http(node, end, batches).await;
                } else {
                    client.converse(node, end, batches).await;
                }
                client.end_slots();
            }
        }
    }
}

const WIDE: Way = Way { latency: Duration::from_micros(50), jitter: Duration::ZERO, chunk: 1 << 16, room: 1 << 20 };

fn address(node: usize) -> SocketAddr {
    ([10, 0, 0, 1 + node as u8], 7946).into()
}

/// The configuration file of all daemons, which goes with the run.
struct Configuration {
    path: PathBuf,
    draws: Draws,
}

impl Configuration {
    fn new(seed: u64) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("daemon-seeded-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let configuration = Self { path: Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), draws: Draws::new(!seed) };
        configuration.write(false);
        configuration
    }

    fn sources(&self) -> Sources {
        Sources { file: Some(self.path.clone()), ..Sources::default() }
    }

    /// With `others` one policy has other limits.
    fn text(others: bool) -> String {
        let moody = if others { "70/2s sliding" } else { "90/3s sliding" };
        let policies = [
            ("day", r#"["300/1d fixed"]"#, "deny"),
            ("tick", r#"["20/1s fixed"]"#, "deny"),
            ("bucket", r#"["100/1s burst 50"]"#, "deny"),
            ("slots", r#"["5/60s concurrent"]"#, "deny"),
            ("calm", r#"["1000000/1d fixed"]"#, "deny"),
            ("shared", r#"["200/2s fixed", "5000/1h"]"#, "share"),
            ("moody", &format!(r#"["{moody}"]"#), "deny"),
        ];
        let lines = policies
            .map(|(name, limits, loss)| format!("[policy.{name}]\nlimits = {limits}\non_store_loss = \"{loss}\"\n"));
        lines.concat()
    }

    fn write(&self, others: bool) {
        fs::write(&self.path, Self::text(others)).expect("the directory is there");
    }

    /// Writes a part of it and something that is in no configuration, every other time. Returns how many bytes.
    fn write_half(&mut self, others: bool) -> Option<usize> {
        let mut text = Self::text(others);
        let half = self.draws.of(0..text.len() as u64) as usize;
        if !self.draws.one_in(2) {
            return None;
        }
        text.truncate(half);
        text.push_str("\n[polcy.login]\nlimits = 5\n");
        fs::write(&self.path, &text).expect("the directory is there");
        Some(text.len())
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// The policy of a key whose sum is exact, and its limit.
fn exact(key: &str) -> Option<(&'static str, u64)> {
    [("day", DAY), ("calm", PLENTY)].into_iter().find(|(policy, _)| key.starts_with(policy))
}

/// What clients were told.
#[derive(Default)]
struct Ledger {
    /// Of `day` and `calm`, by key.
    days: BTreeMap<String, Book>,
    /// Of `tick`, admitted by key and end of the window.
    ticks: BTreeMap<(String, i64), u64>,
    /// Of `bucket`, by key: when, and how much.
    buckets: BTreeMap<String, Vec<(Instant, u64)>>,
    /// Of `slots`, by key: those that surely live, by node and id, and since when.
    slots: BTreeMap<String, BTreeMap<(usize, String), Instant>>,
    /// How often a daemon has ended.
    ends: BTreeMap<usize, u64>,
    answers: u64,
    denied: u64,
    broken: u64,
}

/// One key of a limit that is a day's.
#[derive(Clone, Debug, Default)]
struct Book {
    admitted: u64,
    back: u64,
    /// Asked for on connections that broke before the answer.
    perhaps: u64,
    perhaps_back: u64,
}

impl Book {
    fn stands(&self) -> u64 {
        self.admitted - self.back
    }
}

impl Ledger {
    fn judge(&self) {
        for (key, book) in &self.days {
            let least = book.stands().saturating_sub(book.perhaps_back);
            let (_, limit) = exact(key).expect("it has a book");
            assert!(least <= limit, "{key}: {book:?} of {limit} a day");
        }
        for ((key, end), admitted) in &self.ticks {
            assert!(*admitted <= TICK, "{key}: {admitted} of {TICK} in the window until {end}");
        }
        for (key, all) in &self.buckets {
            for (first, (from, _)) in all.iter().enumerate() {
                let mut sum = 0;
                for (at, cost) in &all[first..] {
                    sum += cost;
                    let trip = Duration::from_millis(1_100);
                    let most = BURST + 1 + (RATE * (at.duration_since(*from) + trip).as_millis() as u64) / 1_000;
                    assert!(sum <= most, "{key}: {sum} within {:?}: {most} at most", at.duration_since(*from));
                }
            }
        }
    }
}

/// One of what a client may ask.
#[derive(Clone, Debug)]
enum Ask {
    Check { policy: &'static str, key: String, cost: u64 },
    Peek { policy: &'static str, key: String },
    Many(Vec<(&'static str, String, u64)>),
    Refund { key: String, cost: u64 },
    Hold { key: String, cost: u64 },
    Settle { key: String, id: String, estimate: u64, actual: u64 },
    Lease { key: String, want: u64 },
    Return { key: String, tokens: u64 },
    Release { key: String, id: String },
    Throttle { key: String },
    Headers { key: String },
    Explain { key: String },
    Reset { key: String },
    Echo(String),
    Wrong,
    Multi,
    Queued(Box<Ask>),
    Exec(Vec<Ask>),
}

struct Client {
    number: u64,
    draws: Draws,
    habits: Habits,
    trace: Trace,
    ledger: Arc<Mutex<Ledger>>,
    /// What follows from earlier answers, and which node it has to be asked of.
    held: Vec<(Option<usize>, Ask)>,
    begun: Instant,
    serial: u64,
    /// Slots that were taken on the connection at hand, which end with it.
    taken: Vec<(String, usize, String)>,
    /// That connection breaks some time, which the daemon may notice first: nobody knows how long its slots live.
    breaks: bool,
    /// It has said that nothing more comes on the connection at hand.
    is_done: bool,
    /// How often the daemon at its other end had ended before.
    ends: u64,
}

impl Client {
    async fn converse(&mut self, node: usize, mut end: End, batches: u64) {
        let mut decoder = Decoder::default();
        for _ in 0..batches {
            if Instant::now() >= self.habits.until {
                return;
            }
            if self.draws.one_in(2) {
                sleep(Duration::from_micros(self.draws.of(1..200_000))).await;
            }
            let asks = self.batch(node);
            self.trace.note(&format!("client {} asks {node}: {asks:?}", self.number));
            self.release_slots(node, &asks);
            let replies = self.exchange(&mut end, &mut decoder, &asks).await;
            let is_whole = replies.len() == asks.len();
            self.trace.note(&format!("client {}: {replies:?}", self.number));
            for (index, ask) in asks.iter().enumerate() {
                match replies.get(index) {
                    Some(reply) => self.learn(node, ask, reply),
                    None => self.lose(ask),
                }
            }
            if !is_whole {
                assert!(!self.is_done || self.breaks, "client {}: {asks:?} got {replies:?}, and the end", self.number);
                lock(&self.ledger).broken += 1;
                return;
            }
            if std::mem::take(&mut self.is_done) {
                return;
            }
        }
    }

    /// The same over HTTP, some requests at a time.
    async fn converse_in_http(&mut self, node: usize, mut end: End, batches: u64) {
        let mut input = Vec::new();
        for _ in 0..batches {
            if Instant::now() >= self.habits.until {
                return;
            }
            sleep(Duration::from_micros(self.draws.of(1..100_000))).await;
            let asked: Vec<_> = (0..self.draws.of(1..4)).map(|_| (self.key("day", 4), self.draws.of(1..6))).collect();
            self.trace.note(&format!("client {} asks {node} by HTTP: {asked:?}", self.number));
            let line = |(key, cost): &(String, u64)| {
                format!("GET /v1/check?policy=day&key={key}&cost={cost} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            };
            let requests: String = asked.iter().map(line).collect();
            let is_written = end.write_all(requests.as_bytes()).await.is_ok();
            let mut asked = asked.into_iter();
            while let Some((key, cost)) = asked.as_slice().first().cloned() {
                let answer = timeout(NEVER, status(&mut end, &mut input)).await;
                let status = answer.unwrap_or_else(|_| panic!("no answer over HTTP within {NEVER:?}"));
                let mut ledger = lock(&self.ledger);
                let book = ledger.days.entry(key).or_default();
                match status {
                    Some(200) => book.admitted += cost,
                    Some(429) => {}
                    Some(other) => panic!("a check over HTTP answers {other}"),
                    None => {
                        book.perhaps += cost;
                        for (key, cost) in asked.skip(1) {
                            ledger.days.entry(key).or_default().perhaps += cost;
                        }
                        ledger.broken += 1;
                        return;
                    }
                }
                ledger.answers += 1;
                self.trace.note(&format!("client {}: {status:?}", self.number));
                asked.next();
            }
            assert!(is_written, "all was answered, but not all was taken");
        }
    }

    /// What was taken on the connection that ends may be anybody's from now on.
    fn end_slots(&mut self) {
        let mut ledger = lock(&self.ledger);
        for (key, node, id) in self.taken.drain(..) {
            self.trace.note(&format!("{key}: {id} of {node} ends with its connection"));
            ledger.slots.entry(key).or_default().remove(&(node, id));
        }
    }

    /// Slots that are about to be released may be anybody's.
    fn release_slots(&self, node: usize, asks: &[Ask]) {
        let mut ledger = lock(&self.ledger);
        for ask in asks {
            if let Ask::Release { key, id } = ask {
                self.trace.note(&format!("{key}: {id} of {node} is released"));
                ledger.slots.entry(key.clone()).or_default().remove(&(node, id.clone()));
            }
        }
    }

    /// Sends a batch and reads its answers: as many as come before the connection breaks.
    async fn exchange(&mut self, end: &mut End, decoder: &mut Decoder, asks: &[Ask]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        asks.iter().for_each(|ask| ask.encode(&mut bytes));
        let begun = Instant::now();
        let mut rest = &bytes[..];
        let mut replies = Vec::new();
        while !rest.is_empty() {
            let most = if self.draws.one_in(3) { 1 + self.draws.of(0..rest.len() as u64) as usize } else { rest.len() };
            // Who reads nothing while it writes may have both ways full: half of the clients read.
            let written = timeout(Duration::from_millis(30), end.write(&rest[..most])).await;
            match written {
                Ok(Ok(length)) => rest = &rest[length..],
                Ok(Err(_)) => return replies,
                Err(_) => match timeout(Duration::from_millis(1), read(end, decoder)).await {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => return replies,
                    Err(_) => {}
                },
            }
            if self.draws.one_in(5) {
                sleep(Duration::from_micros(self.draws.of(1..4_000))).await;
            }
        }
        if self.draws.one_in(15) {
            // It has said all: what it asked is answered still.
            let _ = end.shutdown().await;
            self.is_done = true;
            // Its slots end once the daemon has told all, which this client reads later.
            self.end_slots();
        }
        let written = Instant::now();
        let dawdles = self.draws.one_in(10);
        if dawdles {
            sleep(Duration::from_millis(self.draws.of(1..300))).await;
        }
        while replies.len() < asks.len() {
            match timeout(NEVER, read(end, decoder)).await {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => panic!("client {}: no answer to {:?} within {NEVER:?}", self.number, asks[replies.len()]),
            }
        }
        let took = written.elapsed();
        let one_by_one = asks.iter().any(|ask| matches!(ask, Ask::Exec(_)));
        if replies.len() == asks.len() && !dawdles && !one_by_one {
            let ways = 2 * (self.habits.way.latency + self.habits.way.jitter);
            let bound = PATIENCE + SLACK + ways;
            assert!(
                took <= bound || self.habits.way.room < 1_000,
                "client {}: answered {took:?} after it was written (begun {:?}): {asks:?}: {replies:?}",
                self.number,
                begun.duration_since(self.begun),
            );
        }
        replies
    }

    fn key(&mut self, of: &str, count: u64) -> String {
        format!("{of}-{}", self.draws.of(0..count))
    }

    /// What to ask next.
    fn batch(&mut self, node: usize) -> Vec<Ask> {
        let count = *self.draws.one(&[1, 1, 2, 5, 12, 40]);
        let mut asks = Vec::new();
        while asks.len() < count {
            let ask = self.ask();
            if self.draws.one_in(20) {
                let queued: Vec<_> = (0..self.draws.of(1..5)).map(|_| self.ask()).collect();
                // What is wrong ends a transaction before it runs.
                let queued: Vec<_> = queued.into_iter().filter(|ask| !matches!(ask, Ask::Wrong)).collect();
                asks.push(Ask::Multi);
                asks.extend(queued.iter().map(|ask| Ask::Queued(Box::new(ask.clone()))));
                asks.push(Ask::Exec(queued));
            } else {
                asks.push(ask);
            }
            // Each node settles and releases what it gave.
            let next = self.held.iter().position(|(at, _)| at.is_none_or(|at| at == node));
            if let Some(next) = next
                && self.draws.one_in(2)
            {
                asks.push(self.held.remove(next).1);
            }
        }
        asks
    }

    fn ask(&mut self) -> Ask {
        self.serial += 1;
        match self.draws.of(0..22) {
            0..=4 => Ask::Check { policy: "day", key: self.key("day", 4), cost: self.draws.of(1..6) },
            5 | 6 => Ask::Check { policy: "tick", key: self.key("tick", 2), cost: self.draws.of(1..3) },
            7 | 8 => Ask::Check { policy: "bucket", key: self.key("bucket", 2), cost: self.draws.of(1..4) },
            9 | 10 => Ask::Check { policy: "slots", key: self.key("slots", 2), cost: 1 },
            11 => Ask::Check { policy: "calm", key: self.key("calm", 3), cost: 1 },
            12 => Ask::Check { policy: "shared", key: self.key("shared", 3), cost: self.draws.of(1..9) },
            13 => Ask::Check { policy: "moody", key: self.key("moody", 3), cost: 1 },
            14 => Ask::Peek { policy: "day", key: self.key("day", 4) },
            15 => {
                let parts = (0..self.draws.of(1..4)).map(|part| ("day", format!("day-{part}"), self.draws.of(1..4)));
                Ask::Many(parts.chain([("calm", "calm-0".to_owned(), 1)]).collect())
            }
            16 => Ask::Hold { key: self.key("day", 4), cost: self.draws.of(1..30) },
            17 => Ask::Lease { key: self.key("day", 4), want: self.draws.of(1..40) },
            18 => Ask::Throttle { key: self.key("cell", 3) },
            19 => match self.draws.of(0..3) {
                0 => Ask::Headers { key: self.key("shared", 3) },
                1 => Ask::Explain { key: self.key("shared", 3) },
                _ => Ask::Reset { key: self.key("moody", 3) },
            },
            20 => Ask::Wrong,
            _ => Ask::Echo(format!("echo-{}-{}", self.number, self.serial)),
        }
    }
}

impl Ask {
    fn encode(&self, into: &mut Vec<u8>) {
        let text = |words: &[&str], into: &mut Vec<u8>| {
            encode(into, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
        };
        match self {
            Self::Check { policy, key, cost } => text(&["RATION.CHECK", policy, key, "COST", &cost.to_string()], into),
            Self::Peek { policy, key } => text(&["RATION.CHECK", policy, key, "PEEK"], into),
            Self::Many(parts) => {
                let mut words = vec!["RATION.MCHECK".to_owned(), parts.len().to_string()];
                words.extend(
                    parts.iter().flat_map(|(policy, key, cost)| [(*policy).to_owned(), key.clone(), cost.to_string()]),
                );
                text(&words.iter().map(String::as_str).collect::<Vec<_>>(), into);
            }
            Self::Refund { key, cost } => text(&["RATION.REFUND", "day", key, &cost.to_string()], into),
            Self::Hold { key, cost } => text(&["RATION.HOLD", "day", key, &cost.to_string()], into),
            Self::Settle { id, actual, .. } => text(&["RATION.SETTLE", id, &actual.to_string()], into),
            Self::Lease { key, want } => text(&["RATION.LEASE", "day", key, &want.to_string()], into),
            Self::Return { key, tokens } => text(&["RATION.RETURN", "day", key, &tokens.to_string()], into),
            Self::Release { key, id } => text(&["RATION.RELEASE", "slots", key, id], into),
            Self::Throttle { key } => text(&["CL.THROTTLE", key, "15", "30", "60"], into),
            Self::Headers { key } => text(&["RATION.HEADERS", "shared", key], into),
            Self::Explain { key } => text(&["RATION.EXPLAIN", "shared", key], into),
            Self::Reset { key } => text(&["RATION.RESET", "moody", key], into),
            Self::Echo(word) => text(&["ECHO", word], into),
            Self::Wrong => text(&["RATION.CHEK", "day", "x"], into),
            Self::Multi => text(&["MULTI"], into),
            Self::Queued(ask) => ask.encode(into),
            Self::Exec(_) => text(&["EXEC"], into),
        }
    }
}

impl Client {
    /// Takes note of an answer, which must have the form that its command's answers have.
    fn learn(&mut self, node: usize, ask: &Ask, reply: &Reply) {
        let mut ledger = lock(&self.ledger);
        ledger.answers += 1;
        let is_calm = Instant::now() >= self.habits.calm_from + CALM / 3;
        match ask {
            Ask::Check { policy, key, cost } => {
                let told = Answered::read(policy, reply);
                ledger.denied += u64::from(told.limited);
                assert!(!self.habits.gentle || told.reason != "store", "the store is there for {key}: {reply:?}");
                if is_calm && *policy == "calm" {
                    assert!(
                        !told.limited && told.is_of_the_store(),
                        "all is well since long, and {key} gets {reply:?}"
                    );
                }
                if told.limited {
                    return;
                }
                match *policy {
                    "calm" => ledger.days.entry(key.clone()).or_default().admitted += cost,
                    "day" => {
                        ledger.days.entry(key.clone()).or_default().admitted += cost;
                        if self.draws.one_in(5) {
                            let cost = self.draws.of(1..cost + 1);
                            self.held.push((None, Ask::Refund { key: key.clone(), cost }));
                        }
                    }
                    "tick" => *ledger.ticks.entry((key.clone(), told.reset_at)).or_default() += cost,
                    "bucket" => ledger.buckets.entry(key.clone()).or_default().push((Instant::now(), *cost)),
                    "slots" => {
                        let id = id_of(&reply.items()[10]);
                        self.trace.note(&format!("{key}: {id} of {node} is taken"));
                        let Ledger { slots, ends: ledger_ends, .. } = &mut *ledger;
                        let taken = slots.entry(key.clone()).or_default();
                        let ends = ledger_ends.get(&node).copied().unwrap_or(0);
                        if self.breaks || self.is_done || ends != self.ends {
                            return;
                        }
                        assert!(
                            taken.insert((node, id.clone()), Instant::now()).is_none(),
                            "{key}: slot {id} of {node} is given twice"
                        );
                        assert!(taken.len() <= SLOTS, "{key}: {SLOTS} may be in flight: {taken:?}");
                        self.taken.push((key.clone(), node, id.clone()));
                        if self.draws.one_in(2) {
                            self.held.push((Some(node), Ask::Release { key: key.clone(), id }));
                        }
                    }
                    _ => {}
                }
            }
            Ask::Peek { policy, .. } => drop(Answered::read(policy, reply)),
            Ask::Many(parts) => {
                let [first, rest @ ..] = reply.items() else { panic!("RATION.MCHECK answers {reply:?}") };
                let told: Vec<_> =
                    parts.iter().zip(rest).map(|((policy, ..), reply)| Answered::read(policy, reply)).collect();
                assert_eq!(told.len(), parts.len(), "{reply:?}");
                assert_eq!(first.int() == 1, told.iter().any(|told| told.limited), "{reply:?}");
                if first.int() == 0 {
                    for (_, key, cost) in parts {
                        ledger.days.entry(key.clone()).or_default().admitted += cost;
                    }
                }
            }
            Ask::Refund { key, cost } | Ask::Return { key, tokens: cost } => {
                let book = ledger.days.entry(key.clone()).or_default();
                match reply {
                    Reply::Simple(text) => {
                        assert_eq!(text, "OK");
                        book.back += cost;
                    }
                    Reply::Error(error) => {
                        assert!(error.starts_with("ERR the store"), "{error}");
                        book.perhaps_back += cost;
                    }
                    other => panic!("a refund answers {other:?}"),
                }
            }
            Ask::Hold { key, cost } => {
                let told = Answered::read("day", reply);
                let id = reply.items()[10].text();
                assert_eq!(told.limited, id.is_empty(), "{reply:?}");
                if !told.limited {
                    ledger.days.entry(key.clone()).or_default().admitted += cost;
                    let (key, actual) = (key.clone(), self.draws.of(0..2 * cost));
                    self.held.push((Some(node), Ask::Settle { key, id, estimate: *cost, actual }));
                }
            }
            Ask::Settle { key, estimate, actual, .. } => {
                let book = ledger.days.entry(key.clone()).or_default();
                match reply {
                    Reply::Int(stands) => {
                        let stands = *stands as u64;
                        assert!(
                            stands <= *actual.max(estimate) && stands >= *actual.min(estimate),
                            "{ask:?}: {reply:?}"
                        );
                        book.admitted += stands.saturating_sub(*estimate);
                        book.back += estimate.saturating_sub(stands);
                    }
                    Reply::Error(error) => assert!(error.starts_with("ERR no such hold here"), "{error}"),
                    other => panic!("RATION.SETTLE answers {other:?}"),
                }
            }
            Ask::Lease { key, want } => {
                let [granted, life, told @ ..] = reply.items() else { panic!("RATION.LEASE answers {reply:?}") };
                Answered::read("day", &Reply::Array(told.to_vec()));
                let granted = granted.int() as u64;
                assert!(granted <= *want && life.int() >= 0, "{reply:?}");
                ledger.days.entry(key.clone()).or_default().admitted += granted;
                if granted > 0 && self.draws.one_in(2) {
                    let tokens = self.draws.of(1..granted + 1);
                    self.held.push((Some(node), Ask::Return { key: key.clone(), tokens }));
                }
            }
            Ask::Release { .. } => match reply {
                Reply::Simple(text) => assert_eq!(text, "OK"),
                Reply::Error(error) => assert!(error.starts_with("ERR no such slot"), "{error}"),
                other => panic!("RATION.RELEASE answers {other:?}"),
            },
            Ask::Throttle { .. } => {
                let fields = reply.items();
                assert_eq!((fields.len(), fields[1].int()), (5, 16), "{reply:?}");
            }
            Ask::Headers { .. } => assert!(reply.items().len() >= 3, "{reply:?}"),
            Ask::Explain { .. } => assert!(reply.text().starts_with('{'), "{reply:?}"),
            Ask::Reset { .. } => match reply {
                Reply::Simple(text) => assert_eq!(text, "OK"),
                Reply::Error(error) => assert!(error.starts_with("ERR the store"), "{error}"),
                other => panic!("RATION.RESET answers {other:?}"),
            },
            Ask::Echo(word) => assert_eq!(reply, &Reply::Bulk(word.clone().into_bytes())),
            Ask::Wrong => assert!(matches!(reply, Reply::Error(error) if error.contains("RATION.CHECK")), "{reply:?}"),
            Ask::Multi => assert_eq!(reply, &Reply::Simple("OK".into())),
            Ask::Queued(_) => assert_eq!(reply, &Reply::Simple("QUEUED".into())),
            Ask::Exec(asks) => {
                let replies = reply.items();
                assert_eq!(replies.len(), asks.len(), "EXEC of {asks:?} answers {reply:?}");
                drop(ledger);
                for (ask, reply) in asks.iter().zip(replies) {
                    self.learn(node, ask, reply);
                }
            }
        }
    }

    /// Takes note of what got no answer: it may have been done.
    fn lose(&mut self, ask: &Ask) {
        if let Ask::Exec(asks) = ask {
            return asks.iter().for_each(|ask| self.lose(ask));
        }
        let mut ledger = lock(&self.ledger);
        let mut book = |key: &String, perhaps: u64, back: u64| {
            let book = ledger.days.entry(key.clone()).or_default();
            book.perhaps += perhaps;
            book.perhaps_back += back;
        };
        match ask {
            Ask::Check { policy: "day" | "calm", key, cost }
            | Ask::Hold { key, cost }
            | Ask::Lease { key, want: cost } => {
                book(key, *cost, 0);
            }
            Ask::Many(parts) => {
                parts.iter().for_each(|(_, key, cost)| book(key, *cost, 0));
            }
            Ask::Refund { key, cost } | Ask::Return { key, tokens: cost } => book(key, 0, *cost),
            Ask::Settle { key, estimate, actual, .. } => book(key, actual.saturating_sub(*estimate), *estimate),
            _ => {}
        }
    }
}

/// The parts of a decision that the ledger needs.
struct Answered {
    limited: bool,
    reset_at: i64,
    reason: String,
    source: String,
}

impl Answered {
    fn read(policy: &str, reply: &Reply) -> Self {
        let fields = reply.items();
        assert!(fields.len() == 10 || fields.len() == 11, "a decision is {reply:?}");
        let limits: &[u64] = match policy {
            "day" => &[DAY],
            "tick" => &[TICK],
            "bucket" => &[BURST],
            "slots" => &[SLOTS as u64],
            "calm" => &[PLENTY],
            "shared" => &[200, 5_000],
            _ => &[70, 90],
        };
        let limit = fields[1].int() as u64;
        assert!(limits.contains(&limit), "{policy} has {limits:?}, and the answer says {reply:?}");
        assert!(fields[2].int() as u64 <= limit, "{reply:?}");
        let text = |place: usize| fields[place].text();
        Self { limited: fields[0].int() == 1, reset_at: fields[6].int(), reason: text(7), source: text(9) }
    }

    fn is_of_the_store(&self) -> bool {
        self.reason == "ok" && matches!(self.source.as_str(), "lease" | "store")
    }
}

/// A client that has found something wrong holds no lock any more.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status of the next response, whose body is skipped; `None`: the connection has broken.
async fn status(end: &mut End, input: &mut Vec<u8>) -> Option<u16> {
    loop {
        let head = input.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&input[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
            if input.len() >= head + length {
                input.drain(..head + length);
                return text.strip_prefix("http/1.1 ")?.get(..3)?.parse().ok();
            }
        }
        let mut buffer = [0; 1 << 10];
        let length = end.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
        input.extend_from_slice(&buffer[..length]);
    }
}

/// The conversation of every byte in RESP; what was told to be charged of the key.
async fn in_resp(end: &mut End, key: &str) -> u64 {
    let mut bytes = Vec::new();
    let mut say = |words: &[&str]| encode(&mut bytes, &words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>());
    say(&["RATION.CHECK", "day", key, "COST", "2"]);
    say(&["MULTI"]);
    say(&["RATION.CHECK", "day", key, "COST", "3"]);
    say(&["RATION.CHECK", "day", key, "COST", "4"]);
    say(&["EXEC"]);
    say(&["RATION.CHECK", "day", key]);
    // What the daemon has answered before its client broke off can be read yet.
    let _ = end.write_all(&bytes).await;
    let (mut decoder, mut told) = (Decoder::default(), 0);
    let charges = |reply: &Reply, cost| if Answered::read("day", reply).limited { 0 } else { cost };
    for number in 0..6 {
        let Some(reply) = read(end, &mut decoder).await else { return told };
        told += match number {
            0 => charges(&reply, 2),
            4 => reply.items().iter().zip([3, 4]).map(|(reply, cost)| charges(reply, cost)).sum(),
            5 => charges(&reply, 1),
            _ => 0,
        };
    }
    told
}

/// The same over HTTP, where two checks apply together as one.
async fn in_http(end: &mut End, key: &str) -> u64 {
    let line = |cost| format!("GET /v1/check?policy=day&key={key}&cost={cost} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let _ = end.write_all([2, 7, 1].map(line).concat().as_bytes()).await;
    let (mut input, mut told) = (Vec::new(), 0);
    for cost in [2, 7, 1] {
        match status(end, &mut input).await {
            Some(200) => told += cost,
            Some(other) => panic!("{key}: a check over HTTP answers {other}"),
            None => return told,
        }
    }
    told
}

/// Whether the connection is still there.
async fn is_there(end: &mut End, is_http: bool) -> bool {
    if is_http {
        let written = end.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        return written.is_ok() && status(end, &mut Vec::new()).await.is_some();
    }
    let written = end.write_all(b"*1\r\n$4\r\nPING\r\n").await;
    written.is_ok() && read(end, &mut Decoder::default()).await.is_some()
}

fn id_of(reply: &Reply) -> String {
    match reply {
        Reply::Int(id) => id.to_string(),
        other => other.text(),
    }
}

/// The next reply; `None`: the connection has broken.
async fn read(end: &mut End, decoder: &mut Decoder) -> Option<Reply> {
    loop {
        if let Some(reply) = decoder.next() {
            return Some(reply);
        }
        let mut buffer = [0; 1 << 10];
        let length = end.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
        decoder.push(&buffer[..length]);
    }
}
