//! Redis servers in memory: the shipped scripts, run on `redis-model`'s keyspace, behind connections that are slow and
//! break, in one thread and on tokio's paused time. A single server, or a cluster with slots that move and masters that
//! fail over.
//!
//! What a server has executed it keeps, whatever becomes of it: a failover loses nothing here, so that a bound is a
//! bound. Losses of acknowledged writes are the fleet simulator's.

#![allow(clippy::disallowed_methods, reason = "the time is tokio's, which the test has paused")]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rationd::store::redis::{Connecting, Network, Stream, evalsha};
use rationd::store::script;
use redis_model::keyspace::Keyspace;
use redis_model::scripts::Scripts;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use super::opinion;
use super::pipe::{End, Mender, Way, pair};
use super::seeded::Draws;

/// Slots are owned in blocks, and a block of so many moves at a time.
const BLOCK: u16 = 1_024;
const BLOCKS: usize = 16;

/// The first master's port; the others follow.
pub const PORT: u16 = 7_000;

/// Where the replica of a master is said to be: nobody answers there.
const REPLICA: u16 = 50;

/// A master that takes over listens so much higher.
const SUCCESSOR: u16 = 100;

/// What a connection to a server meets with.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub way: Way,
    /// One of so many connections breaks; 0: none.
    pub breaks: u64,
    /// It does so behind so many bytes at most, either way.
    pub within: u64,
}

/// The servers. Cheap to clone; stays in its thread.
#[derive(Clone)]
pub struct Cloud(Rc<RefCell<Servers>>, Arc<Mutex<Gates>>);

struct Servers {
    scripts: Scripts,
    servers: Vec<Server>,
    owners: [usize; BLOCKS],
    /// The block that is moving, and where to.
    moving: Option<(usize, usize)>,
    /// Servers are a cluster, each with a replica.
    is_cluster: bool,
    /// Replicas confirm nothing.
    unconfirmed: bool,
    begun: Instant,
    /// What the servers' clocks showed then, Unix microseconds.
    clock: u64,
    draws: Draws,
    pub calls: u64,
    /// Those of them that came with others in one command.
    joined: u64,
    /// What the memory store has against what a script has answered or left.
    objections: Vec<String>,
    /// How many connections there were, and the bytes that the latest of them brought and took back.
    connections: u64,
    carried: [u64; 2],
}

struct Server {
    port: u16,
    keyspace: Keyspace,
    /// Hashes of scripts that it knows.
    known: BTreeSet<String>,
    /// Its life: who is connected is told when it ends.
    life: watch::Sender<u64>,
    /// It does nothing.
    stalled: watch::Sender<bool>,
    /// It answers each command with this.
    refusal: Option<&'static str>,
}

/// Whom a dial reaches: what the networks of the daemons share with the servers.
struct Gates {
    /// Ports that somebody listens on.
    open: BTreeSet<u16>,
    /// Daemons that reach nobody, by their numbers.
    cut: BTreeSet<usize>,
    /// Connections of each daemon, to break them.
    lines: BTreeMap<usize, watch::Sender<u64>>,
    /// Where the next connection breaks, whatever is drawn for others.
    next_breaks_at: Option<[Option<u64>; 2]>,
    /// Of all connections, until everything is well; `None` from then on, when none breaks of its own any more.
    menders: Option<Vec<Mender>>,
    draws: Draws,
}

/// A daemon's way to the servers.
pub struct Roads {
    daemon: usize,
    route: Route,
    gates: Arc<Mutex<Gates>>,
    dials: mpsc::UnboundedSender<(u16, usize, End)>,
}

impl fmt::Debug for Roads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Roads").field("daemon", &self.daemon).finish_non_exhaustive()
    }
}

impl Network for Roads {
    fn connect<'a>(&'a self, _: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            sleep(self.route.way.latency).await;
            let end = {
                let mut gates = self.gates.lock().expect("nobody panicked");
                if !gates.open.contains(&port) || gates.cut.contains(&self.daemon) {
                    return Err(io::ErrorKind::ConnectionRefused.into());
                }
                let Route { way, breaks, within } = self.route;
                let is_well = gates.menders.is_none();
                let draws = &mut gates.draws;
                let mut breaks_at = [None, None];
                if breaks > 0 && draws.one_in(breaks) && !is_well {
                    // Small numbers as often as large ones: a greeting is short, and the scripts are long.
                    let most = draws.of(1..u64::from(64 - within.leading_zeros()) + 1);
                    breaks_at[draws.of(0..2) as usize] = Some(draws.of(0..1 << most).min(within));
                }
                let breaks_at = gates.next_breaks_at.take().unwrap_or(breaks_at);
                let draws = &mut gates.draws;
                let (end, servers) = pair(way, draws.next(), breaks_at);
                if let Some(menders) = &mut gates.menders {
                    menders.push(end.mender());
                }
                // Without a receiver the world has ended.
                let _ = self.dials.send((port, self.daemon, servers));
                end
            };
            sleep(self.route.way.latency).await;
            Ok(Box::new(end) as Box<dyn Stream>)
        })
    }
}

/// Where daemons dial.
pub struct Exchange {
    gates: Arc<Mutex<Gates>>,
    dials: mpsc::UnboundedSender<(u16, usize, End)>,
}

impl Exchange {
    /// The way of one daemon to the servers.
    pub fn roads(&self, daemon: usize, route: Route) -> Arc<Roads> {
        let (gates, dials) = (self.gates.clone(), self.dials.clone());
        Arc::new(Roads { daemon, route, gates, dials })
    }
}

impl Cloud {
    /// So many masters, in a cluster if there are several, whose clocks show `clock` now. To be called in a `LocalSet`.
    pub fn start(masters: usize, clock: u64, seed: u64) -> (Self, Exchange) {
        let texts = script::all().map(|script| (script.name, script.text.to_owned()));
        let server = |index: usize| Server {
            port: PORT + index as u16,
            keyspace: Keyspace::default(),
            known: BTreeSet::new(),
            life: watch::Sender::new(0),
            stalled: watch::Sender::new(false),
            refusal: None,
        };
        let servers = Servers {
            scripts: Scripts::read(&texts).expect("the scripts are Lua"),
            servers: (0..masters).map(server).collect(),
            owners: std::array::from_fn(|block| block % masters),
            moving: None,
            is_cluster: masters > 1,
            unconfirmed: false,
            begun: Instant::now(),
            clock,
            draws: Draws::part(seed, 77),
            calls: 0,
            joined: 0,
            objections: Vec::new(),
            connections: 0,
            carried: [0; 2],
        };
        let gates = Gates {
            open: servers.servers.iter().map(|server| server.port).collect(),
            cut: BTreeSet::new(),
            lines: BTreeMap::new(),
            next_breaks_at: None,
            menders: Some(Vec::new()),
            draws: Draws::part(seed, 78),
        };
        let (dials, mut dialled) = mpsc::unbounded_channel();
        let cloud = Self(Rc::new(RefCell::new(servers)), Arc::new(Mutex::new(gates)));
        let exchange = Exchange { gates: cloud.1.clone(), dials };
        let own = cloud.clone();
        spawn_local(async move {
            while let Some((port, daemon, end)) = dialled.recv().await {
                spawn_local(own.clone().serve(port, daemon, end));
            }
        });
        (cloud, exchange)
    }

    /// The next connection breaks behind so many bytes of what a daemon is answered, or of what it writes.
    pub fn break_next(&self, breaks_at: [Option<u64>; 2]) {
        self.gates().next_breaks_at = Some(breaks_at);
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u64 {
        self.0.borrow().connections
    }

    /// Bytes that the latest connection has brought, and taken back.
    pub fn carried(&self) -> [u64; 2] {
        self.0.borrow().carried
    }

    /// Kills a master: its connections break and nobody listens there. After `away` its replica takes over elsewhere, or
    /// a single server is back where it was, with all that was executed.
    pub async fn kill(&self, index: usize, away: Duration) {
        let (port, successor) = {
            let mut servers = self.0.borrow_mut();
            let is_cluster = servers.is_cluster;
            let server = &mut servers.servers[index];
            server.life.send_modify(|life| *life += 1);
            server.known.clear();
            let port = server.port;
            self.gates().open.remove(&port);
            (port, if is_cluster { port + SUCCESSOR } else { port })
        };
        sleep(away).await;
        // Another kill may have come first.
        if self.0.borrow().servers[index].port == port {
            self.0.borrow_mut().servers[index].port = successor;
            self.gates().open.insert(successor);
        }
    }

    /// A server does nothing for so long.
    pub async fn stall(&self, index: usize, time: Duration) {
        self.0.borrow().servers[index].stalled.send_replace(true);
        sleep(time).await;
        self.0.borrow().servers[index].stalled.send_replace(false);
    }

    /// A server answers all commands with an error for so long.
    pub async fn refuse(&self, index: usize, error: &'static str, time: Duration) {
        self.0.borrow_mut().servers[index].refusal = Some(error);
        sleep(time).await;
        self.0.borrow_mut().servers[index].refusal = None;
    }

    /// A server forgets its scripts.
    pub fn flush_scripts(&self, index: usize) {
        self.0.borrow_mut().servers[index].known.clear();
    }

    /// Replicas confirm nothing for so long.
    pub async fn unconfirm(&self, time: Duration) {
        self.0.borrow_mut().unconfirmed = true;
        sleep(time).await;
        self.0.borrow_mut().unconfirmed = false;
    }

    /// Moves a block of slots to the next master within so long: first some of its keys, then the rest.
    pub async fn move_block(&self, block: usize, time: Duration) {
        let to = {
            let mut servers = self.0.borrow_mut();
            let to = (servers.owners[block] + 1) % servers.servers.len();
            if servers.moving.is_some() || to == servers.owners[block] {
                return;
            }
            servers.moving = Some((block, to));
            servers.carry(block, to, |key| slot_of(key.as_bytes()).is_multiple_of(2));
            to
        };
        sleep(time).await;
        let mut servers = self.0.borrow_mut();
        servers.carry(block, to, |_| true);
        (servers.owners[block], servers.moving) = (to, None);
    }

    /// A daemon reaches no server for so long, and its connections break.
    pub async fn cut_off(&self, daemon: usize, time: Duration) {
        {
            let mut gates = self.gates();
            gates.cut.insert(daemon);
            gates.lines.entry(daemon).or_default().send_modify(|life| *life += 1);
        }
        sleep(time).await;
        self.gates().cut.remove(&daemon);
    }

    /// Ends whatever goes wrong.
    pub fn heal(&self) {
        let mut servers = self.0.borrow_mut();
        for server in &mut servers.servers {
            server.refusal = None;
            server.stalled.send_replace(false);
        }
        servers.unconfirmed = false;
        let mut gates = self.gates();
        gates.cut.clear();
        gates.menders.take().into_iter().flatten().for_each(|mender| mender.mend());
        gates.open.extend(servers.servers.iter().map(|server| server.port));
    }

    /// Scripts that were executed, each as the memory store would have.
    pub fn calls(&self) -> u64 {
        let objections = &self.0.borrow().objections;
        assert!(objections.is_empty(), "{} objections of the memory store: {}", objections.len(), objections[0]);
        self.0.borrow().calls
    }

    /// Those of them that came with others in one command.
    pub fn joined(&self) -> u64 {
        self.0.borrow().joined
    }

    /// Where to dial.
    pub fn url(&self) -> String {
        let servers = self.0.borrow();
        let all: Vec<_> = servers.servers.iter().map(|server| format!("h:{}", server.port)).collect();
        let scheme = if servers.is_cluster { "redis-cluster" } else { "redis" };
        format!("{scheme}://{}", all.join(","))
    }

    pub fn masters(&self) -> usize {
        self.0.borrow().servers.len()
    }

    fn gates(&self) -> std::sync::MutexGuard<'_, Gates> {
        self.1.lock().expect("nobody panicked")
    }

    /// Serves one connection until it breaks or its server dies.
    async fn serve(self, port: u16, daemon: usize, mut end: End) {
        let found = self.0.borrow().servers.iter().position(|server| server.port == port);
        let Some(index) = found else { return end.reset() };
        let mut life = self.0.borrow().servers[index].life.subscribe();
        let mut line = self.gates().lines.entry(daemon).or_default().subscribe();
        tokio::select! {
            biased;
            _ = life.changed() => {}
            _ = line.changed() => {}
            _ = self.converse(index, &mut end) => return,
        }
        end.reset();
    }

    async fn converse(&self, index: usize, end: &mut End) -> io::Result<()> {
        let (mut input, mut used) = (Vec::new(), 0);
        let mut asking = false;
        {
            let mut servers = self.0.borrow_mut();
            (servers.connections, servers.carried) = (servers.connections + 1, [0; 2]);
        }
        loop {
            let mut replies = Vec::new();
            while let Some((words, length)) = command(&input[used..]) {
                used += length;
                let mut stalled = self.0.borrow().servers[index].stalled.subscribe();
                let _ = stalled.wait_for(|stalled| !stalled).await;
                match self.answer(index, &words, &mut asking, &mut replies) {
                    Then::GoOn => {}
                    Then::Wait(time, replicas) => {
                        // Nothing more is read from whoever waits, and what stands before is answered first.
                        end.write_all(&std::mem::take(&mut replies)).await?;
                        sleep(time).await;
                        replies = format!(":{replicas}\r\n").into_bytes();
                    }
                }
            }
            self.0.borrow_mut().carried[1] += replies.len() as u64;
            end.write_all(&replies).await?;
            input.drain(..used);
            used = 0;
            let mut buffer = [0; 4 << 10];
            let length = end.read(&mut buffer).await?;
            if length == 0 {
                return Ok(());
            }
            self.0.borrow_mut().carried[0] += length as u64;
            input.extend_from_slice(&buffer[..length]);
        }
    }

    fn answer(&self, index: usize, words: &[Vec<u8>], asking: &mut bool, out: &mut Vec<u8>) -> Then {
        let mut servers = self.0.borrow_mut();
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        let rest: Vec<_> = words[1..].iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let reply = match (name.as_str(), &rest[..]) {
            ("HELLO", _) => "%1\r\n+server\r\n+redis\r\n".to_owned(),
            (_, _) if servers.servers[index].refusal.is_some() => {
                format!("-{}\r\n", servers.servers[index].refusal.expect("it is there"))
            }
            ("PING", _) => "+PONG\r\n".to_owned(),
            ("INFO", [section]) if section == "memory" => bulk("# Memory\r\nmaxmemory_policy:noeviction\r\n"),
            ("INFO", [section]) if section == "server" => bulk("# Server\r\nredis_mode:standalone\r\n"),
            ("INFO", _) if servers.is_cluster => bulk(
                "# Replication\r\nrole:master\r\nconnected_slaves:1\r\n\
                 slave0:ip=h,port=1,state=online,offset=9,lag=0\r\n",
            ),
            ("INFO", _) => bulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"),
            ("CONFIG", _) => format!("%1\r\n{}{}", bulk("cluster-require-full-coverage"), bulk("no")),
            ("CLUSTER", _) => servers.slots(),
            ("ASKING", _) => {
                *asking = true;
                out.extend_from_slice(b"+OK\r\n");
                return Then::GoOn;
            }
            ("WAIT", [_, millis]) => {
                let most = Duration::from_millis(millis.parse().expect("a number of milliseconds"));
                if servers.unconfirmed {
                    return Then::Wait(most, 0);
                }
                return Then::Wait(Duration::from_micros(servers.draws.of(100..3_000)), 1);
            }
            ("SCRIPT", [_, text]) => {
                let hash = evalsha::hash(text);
                servers.servers[index].known.insert(hash.clone());
                bulk(&hash)
            }
            ("EVAL", [text, keys, ..]) if keys == "0" => {
                assert!(text.contains("2 ^ 52"), "an unknown script without a key: {text}");
                bulk("4503599627370496")
            }
            ("EVALSHA", [hash, keys, ..]) if keys != "1" => {
                let keys: usize = keys.parse().expect("a number of keys");
                out.extend_from_slice(&servers.run_many(index, hash, &rest[2..2 + keys], words));
                return Then::GoOn;
            }
            ("EVAL" | "EVALSHA", [which, _, key, ..]) => {
                let hash = if name == "EVAL" { evalsha::hash(which) } else { which.clone() };
                if name == "EVAL" {
                    servers.servers[index].known.insert(hash.clone());
                }
                let reply = servers.run(index, &hash, key, words, *asking);
                *asking = false;
                out.extend_from_slice(&reply);
                return Then::GoOn;
            }
            _ => format!("-ERR unknown command '{name}'\r\n"),
        };
        *asking = false;
        out.extend_from_slice(reply.as_bytes());
        Then::GoOn
    }
}

/// What follows a command.
enum Then {
    GoOn,
    /// So much later: so many replicas have it.
    Wait(Duration, i64),
}

impl Servers {
    fn now(&self) -> u64 {
        self.clock + self.begun.elapsed().as_micros() as u64
    }

    fn run(&mut self, index: usize, hash: &str, key: &str, words: &[Vec<u8>], asking: bool) -> Vec<u8> {
        if !self.servers[index].known.contains(hash) {
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec();
        }
        let slot = slot_of(key.as_bytes());
        let block = usize::from(slot / BLOCK);
        let now = self.now();
        let has_it = self.servers[index].keyspace.look(key, now).is_some();
        if self.owners[block] == index {
            if let Some((moving, to)) = self.moving
                && moving == block
                && !has_it
            {
                return format!("-ASK {slot} h:{}\r\n", self.servers[to].port).into_bytes();
            }
        } else if !(asking && self.moving == Some((block, index))) {
            return format!("-MOVED {slot} h:{}\r\n", self.servers[self.owners[block]].port).into_bytes();
        }
        let script = script::all().into_iter().find(|script| evalsha::sha(script) == hash).expect("it is known");
        self.calls += 1;
        let keyspace = &mut self.servers[index].keyspace;
        let found = opinion::found(keyspace, now, words);
        let ran = self.scripts.run(keyspace, script.name, key, now, |push| {
            words[4..].iter().for_each(|argument| push(argument));
        });
        // Nothing is ever undone here.
        keyspace.settle_before(now);
        match ran {
            Ok(numbers) => {
                let keyspace = &self.servers[index].keyspace;
                let objection =
                    |(found, key): (_, String)| opinion::objection(found, keyspace.look(&key, now), &numbers, now);
                self.objections.extend(found.into_iter().filter_map(objection));
                let numbers: Vec<_> = numbers.into_iter().map(|number| number.try_into().expect("a count")).collect();
                let text = script::text_of(&numbers);
                [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat()
            }
            Err(error) => format!("-{error}\r\n").into_bytes(),
        }
    }

    /// Calls about several keys, which only a single server is sent.
    fn run_many(&mut self, index: usize, hash: &str, keys: &[String], words: &[Vec<u8>]) -> Vec<u8> {
        assert!(!self.is_cluster, "keys of a cluster have slots of their own: {keys:?}");
        if !self.servers[index].known.contains(hash) {
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n".to_vec();
        }
        let script = script::all().into_iter().find(|script| evalsha::sha(script) == hash).expect("it is known");
        let (now, names) = (self.now(), keys.iter().map(String::as_str).collect::<Vec<_>>());
        self.calls += keys.len() as u64;
        self.joined += keys.len() as u64;
        let keyspace = &mut self.servers[index].keyspace;
        let found = opinion::found(keyspace, now, words);
        let ran = self.scripts.run_many(keyspace, script.name, &names, now, |push| {
            words[3 + keys.len()..].iter().for_each(|argument| push(argument));
        });
        keyspace.settle_before(now);
        let told = match ran.and_then(|each| each.into_iter().collect::<Result<Vec<_>, _>>()) {
            Ok(each) => {
                let keyspace = &self.servers[index].keyspace;
                for ((found, key), told) in found.into_iter().zip(&each) {
                    let numbers = script::answer_alone(told).expect("seven numbers");
                    self.objections.extend(opinion::objection(found, keyspace.look(&key, now), &numbers, now));
                }
                each.concat()
            }
            Err(error) => return format!("-{error}\r\n").into_bytes(),
        };
        [format!("${}\r\n", told.len()).as_bytes(), &told, b"\r\n"].concat()
    }

    /// The reply to `CLUSTER SLOTS`.
    fn slots(&self) -> String {
        let node = |port: u16| format!("*3\r\n$1\r\nh\r\n:{port}\r\n$2\r\nid\r\n");
        let mut reply = format!("*{BLOCKS}\r\n");
        for (block, owner) in self.owners.iter().enumerate() {
            let (first, port) = (block as u16 * BLOCK, self.servers[*owner].port);
            let last = first + BLOCK - 1;
            reply += &format!("*4\r\n:{first}\r\n:{last}\r\n{}{}", node(port), node(port + REPLICA));
        }
        reply
    }

    /// Carries those keys of a block that are `chosen` to another server.
    fn carry(&mut self, block: usize, to: usize, chosen: impl Fn(&str) -> bool) {
        let from = self.owners[block];
        let of_block = |key: &str| usize::from(slot_of(key.as_bytes()) / BLOCK) == block;
        let keys: Vec<_> =
            self.servers[from].keyspace.keys().filter(|key| of_block(key) && chosen(key)).cloned().collect();
        for key in keys {
            if let Some(entry) = self.servers[from].keyspace.take(&key) {
                self.servers[to].keyspace.put(key, entry);
            }
        }
    }
}

/// The slot of a key with a hash tag: CRC16-XMODEM of what stands in the braces.
fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|byte| *byte == b'{').expect("every key has a tag");
    let close = key.iter().position(|byte| *byte == b'}').expect("every key has a tag");
    let crc = key[open + 1..close].iter().fold(0_u16, |crc, &byte| {
        (0..8)
            .fold(crc ^ (u16::from(byte) << 8), |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 })
    });
    crc % 16_384
}

/// The first whole command in `input`, and its length.
fn command(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let count = header(input, &mut at, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = header(input, &mut at, b'$')?;
        words.push(input.get(at..at + length)?.to_vec());
        input.get(at + length..at + length + 2)?;
        at += length + 2;
    }
    Some((words, at))
}

fn header(input: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let line = input[*at..].windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(input[*at], kind, "the daemon speaks RESP");
    let number = std::str::from_utf8(&input[*at + 1..*at + line]).expect("digits").parse().expect("a length");
    *at += line + 2;
    Some(number)
}
