//! The fleet room with real quinn, rustls and chitchat at ten nodes, on paused time, over a network in memory,
//! everything drawn from a seed: who joins, dies, comes back, is parted, is heard by nobody, and leaves.
//!
//! Each seed runs twice, in two processes, and both must do the same: the hash of a trace says so, which has
//! each datagram and each change of a view with its virtual time. For that,
//!
//! - time is tokio's, paused: quinn, chitchat and the fleet read no other. Only the validity of certificates
//!   and the age of a retry token, 15 s at most, are measured by the wall clock;
//! - `getrandom` is support/seeded.rs's: it seeds the hash maps, `rand` (chitchat, quinn) and tokio's choices. ring
//!   asks the kernel itself (`syscall`), so keys and with them the bytes of datagrams differ between two
//!   runs. Their sizes and times do not, with Ed25519: the sizes of ECDSA signatures vary;
//! - it takes two processes, because tokio draws with a count of all runtimes of a process.
//!
//! A third run of the first seed leaves `getrandom` to the system: it must differ, or nothing of this was shown.
//!
//! The fleet's simulator has a model in the place of chitchat, which knows of the others as late as it has drawn. That it
//! draws what chitchat takes is shown here: each time is one of `simulations/src/swarm/membership.rs`.
//!
//! `RATIOND_FLEET_SEEDS=10..60` runs other seeds; `RATIOND_FLEET_TRACES=DIR` keeps the traces there.

use crate::support;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{Fleet, FleetOptions, MemberState, Members, Owning, PeerId};
use support::clock::Watch;
use support::ether::{Ether, Weather};
use support::membership_suite::Start;
use support::peers::Authority;
use support::seeded::draw_from;
use tokio::runtime::Builder;
use tokio::task::AbortHandle;
use tokio::time::sleep;

#[path = "../simulations/src/swarm/membership.rs"]
mod membership;

use membership::{DEAD_MS, JOIN_MS};

const NODES: usize = 10;
/// Seeds that run where none are named. Seed 3 found that a window full of lost datagrams holds back
/// acknowledgements (congestion.rs), seed 10 that a connection which one end had given up was used by the other. A hello has a byte more since, so
/// each seed is another run: in that of seed 10 nodes know of each other after 2.3 s, the longest of these. Seed 18 has as many losses.
const SEEDS: [u64; 5] = [1, 3, 4, 10, 18];
/// Names the seed to a process that runs one.
const SEED: &str = "RATIOND_FLEET_SEED";
/// Says which of a seed's runs a process is, and the one that draws from the system.
const RUN: &str = "RATIOND_FLEET_RUN";
const CANARY: &str = "canary";
/// What a line of figures begins with.
const MARK: &str = "seeded: ";
/// Between two looks at all views.
const LOOK: Duration = Duration::from_millis(10);

/// How long the living may take to see who has come, who has died, and who is back after a cut.
const JOIN: Duration = Duration::from_secs(3);
const DEATH: Duration = Duration::from_secs(10);
const HEALED: Duration = Duration::from_secs(15);
const LEFT: Duration = Duration::from_millis(1_500);
/// How long it may take until what each says in a round reaches all others, and between two rounds: after a
/// cut a node waits up to two seconds before it dials, and may have begun a handshake of two seconds before.
const TOLD: Duration = Duration::from_secs(5);
const ROUND: Duration = Duration::from_millis(200);
/// How long one way between two nodes stays cut, while nobody may be missed.
const ONE_WAY: Duration = Duration::from_secs(12);

#[test]
fn ten_nodes_on_paused_time_do_what_their_seed_says() {
    if let Ok(seed) = std::env::var(SEED) {
        return alone(seed.parse().expect("a number"));
    }
    let mut hashes = BTreeSet::new();
    let seeds = seeds();
    let canary = figures(spawn(seeds[0], CANARY));
    for &seed in &seeds {
        let watch = Watch::start();
        let runs = ["1", "2"].map(|run| spawn(seed, run)).map(figures);
        let [Ok(one), Ok(other)] = runs else { panic!("seed {seed}: {runs:?}") };
        let line = format!("{one}; twice in {:.1} s", watch.elapsed().as_secs_f64());
        writeln!(std::io::stderr(), "{line}").expect("stderr takes a line");
        assert_eq!(one, other, "seed {seed} does not repeat itself");
        assert_ne!(Ok(&one), canary.as_ref(), "the run that was not seeded does the same");
        hashes.insert(one.rsplit(' ').next().map(str::to_owned));
    }
    assert_eq!(hashes.len(), seeds.len(), "seeds that differ do the same");
}

fn seeds() -> Vec<u64> {
    let Ok(text) = std::env::var("RATIOND_FLEET_SEEDS") else { return SEEDS.into() };
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?..to.parse().ok()?).collect()));
    ends.unwrap_or_else(|| panic!("RATIOND_FLEET_SEEDS is {text:?}: like 10..60"))
}

/// Runs a seed in a process of its own.
fn spawn(seed: u64, run: &str) -> Child {
    let own = std::env::current_exe().expect("its path");
    let mut command = Command::new(own);
    command.args(["--exact", "fleet_seeded::ten_nodes_on_paused_time_do_what_their_seed_says", "--nocapture"]);
    command.env(SEED, seed.to_string()).env(RUN, run);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it ran a moment ago")
}

/// The line of figures that a process printed, or all that it said when it failed.
fn figures(child: Child) -> Result<String, String> {
    let output = child.wait_with_output().expect("it is our child");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout);
    let line = printed.lines().find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
    line.filter(|_| output.status.success()).ok_or_else(|| printed.clone() + &text(&output.stderr))
}

/// One seed, in a thread that has drawn nothing yet.
fn alone(seed: u64) {
    let run = move || {
        draw_from(Some(seed).filter(|_| std::env::var(RUN).as_deref() != Ok(CANARY)));
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(World::run(seed))
    };
    let line = std::thread::spawn(run).join().expect("the seed keeps its promises");
    println!("\n{MARK}{line}");
}

/// Keeps the trace, however the run ends.
struct Kept {
    ether: Ether,
    file: String,
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, self.ether.trace().text.unwrap_or_default());
    }
}

struct Node {
    name: String,
    address: SocketAddr,
    incarnation: u64,
    /// `None`: it does not run.
    fleet: Option<Fleet>,
    /// Who sent a frame of usage, and what.
    heard: Arc<Mutex<Vec<(PeerId, Bytes)>>>,
    tasks: Vec<AbortHandle>,
}

struct World {
    ether: Ether,
    authority: Authority,
    nodes: Vec<Node>,
    /// Per mille of datagrams that are lost.
    loss: u64,
    figures: String,
}

impl World {
    async fn run(seed: u64) -> String {
        let loss = [0, 10, 30, 50][(seed % 4) as usize];
        let millis = |count| Duration::from_millis(count);
        let weather = Weather { delay: millis(1 + seed % 3), jitter: millis(1 + seed * 7 % 20), loss };
        let traces = std::env::var("RATIOND_FLEET_TRACES").ok();
        let ether = Ether::new(seed, weather, traces.is_some());
        let run = std::env::var(RUN).unwrap_or_default();
        let _kept = traces.map(|directory| Kept { ether: ether.clone(), file: format!("{directory}/{seed}-{run}") });
        let figures = format!("seed {seed:3}, {:?}+{:?}, {loss:2} ‰ lost:", weather.delay, weather.jitter);
        let authority = Authority::repeatable("test");
        let mut world = Self { ether: ether.clone(), authority, nodes: Vec::new(), loss, figures };
        let carrying = tokio::spawn(ether.clone().carry());
        world.live().await;
        carrying.abort();
        let trace = ether.trace();
        format!("{} {} datagrams, {} lines, hash {:016x}", world.figures, ether.count(), trace.lines, trace.hash)
    }

    async fn live(&mut self) {
        for number in 0..NODES {
            self.start(number, 1_000);
            sleep(Duration::from_millis(self.ether.below(300))).await;
        }
        self.until("join", JOIN, |_| (0..NODES).collect()).await;
        self.gossip_with_all().await;

        let victim = 1 + self.ether.below(NODES as u64 - 1) as usize;
        self.crash(victim);
        self.until("crash", DEATH, |_| (0..NODES).filter(|node| *node != victim).collect()).await;
        self.start(victim, 2_000);
        self.until("rebirth", JOIN, |_| (0..NODES).collect()).await;

        self.cut(&[0, 1, 2, 3, 4], &[5, 6, 7, 8, 9]);
        self.until("parted", DEATH, |node| if node < 5 { (0..5).collect() } else { (5..NODES).collect() }).await;
        self.ether.heal();
        self.until("healed", HEALED, |_| (0..NODES).collect()).await;

        // The deaf end gives its connection up after ten seconds, the dumb one believes in it for ten more.
        (0..NODES).step_by(2).for_each(|dumb| self.one_way(&[dumb], &[dumb + 1]));
        self.stays(ONE_WAY).await;
        self.ether.heal();
        self.gossip_with_all().await;

        let dumb = self.ether.below(NODES as u64) as usize;
        let others: Vec<_> = (0..NODES).filter(|node| *node != dumb).collect();
        self.one_way(&[dumb], &others);
        // What the one that nobody hears sees meanwhile is its own affair.
        let seen = others.clone();
        self.until("unheard", DEATH, move |node| if node == dumb { Vec::new() } else { seen.clone() }).await;
        self.ether.heal();
        self.until("healed", HEALED, |_| (0..NODES).collect()).await;
        self.gossip_with_all().await;

        let leaver = &mut self.nodes[3];
        let fleet = leaver.fleet.take().expect("it runs");
        self.ether.note("node-3 leaves");
        let leaving = tokio::spawn(async move { fleet.leave().await });
        // A goodbye is one datagram: where it is lost, the silence says so, as after a crash.
        let bound = if self.loss == 0 { LEFT } else { DEATH };
        self.until("left", bound, |_| (0..NODES).filter(|node| *node != 3).collect()).await;
        leaving.await.expect("it left");

        for node in &self.nodes {
            let Some(stats) = node.fleet.as_ref().map(Fleet::stats) else { continue };
            assert_eq!((stats.malformed, stats.oversized, stats.gossip_restarts), (0, 0, 0), "{stats:?}");
        }
    }

    /// Starts a node, or starts it again; the first one is everybody's seed.
    fn start(&mut self, number: usize, incarnation: u64) {
        let (name, address) = (format!("node-{number}"), address(number));
        let start =
            Start { name: &name, incarnation, at: Some(address), seeds: &[self::address(0)], owning: Owning::Never };
        let options: FleetOptions = self.authority.options(start);
        self.ether.note(&format!("{name}@{incarnation} starts"));
        let (fleet, mut incoming) = Fleet::start_over(options, self.ether.socket(address)).expect("it starts");
        let heard: Arc<Mutex<Vec<_>>> = Arc::default();
        let (ether, to, inbox) = (self.ether.clone(), name.clone(), heard.clone());
        let hearing = tokio::spawn(async move {
            while let Some(frame) = incoming.recv().await {
                ether.note(&format!("{to} hears {} bytes of {}", frame.frame.len(), frame.from));
                inbox.lock().expect("nobody panicked").push((frame.from, frame.frame));
            }
        });
        let (ether, of, mut members) = (self.ether.clone(), name.clone(), fleet.members());
        let following = tokio::spawn(async move {
            while members.changed().await.is_ok() {
                let seen = show(&members.borrow_and_update());
                ether.note(&format!("{of} sees {}", seen.join(" ")));
            }
        });
        let tasks = vec![hearing.abort_handle(), following.abort_handle()];
        let node = Node { name, address, incarnation, fleet: Some(fleet), heard, tasks };
        if number == self.nodes.len() {
            self.nodes.push(node);
        } else {
            self.nodes[number] = node;
        }
    }

    /// Ends a node without a word to anybody.
    fn crash(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        self.ether.note(&format!("{} crashes", node.name));
        self.ether.unplug(node.address);
        node.fleet = None;
        node.tasks.drain(..).for_each(|task| task.abort());
    }

    /// Cuts both ways.
    fn cut(&self, some: &[usize], others: &[usize]) {
        self.one_way(some, others);
        self.one_way(others, some);
    }

    /// Cuts the way from these to those.
    fn one_way(&self, from: &[usize], to: &[usize]) {
        let addresses = |nodes: &[usize]| nodes.iter().map(|node| address(*node)).collect::<Vec<_>>();
        self.ether.note(&format!("nothing gets from {from:?} to {to:?}"));
        self.ether.cut(&addresses(from), &addresses(to));
    }

    /// Waits until each node sees exactly whom it should, and notes how long that took.
    async fn until(&mut self, what: &str, bound: Duration, wanted: impl Fn(usize) -> Vec<usize>) {
        let begun = self.ether.now();
        while let Some(wrong) = self.wrong(&wanted) {
            let waited = self.ether.now() - begun;
            assert!(waited < bound, "{what}: not within {bound:?}: {wrong}; until then {}", self.figures);
            sleep(LOOK).await;
        }
        let took = self.ether.now() - begun;
        if let Some(drawn) = drawn(what) {
            assert!(drawn.contains(&(took.as_millis() as u64)), "{what}: {took:?}, and simulations draw {drawn:?} ms");
        }
        self.ether.note(what);
        self.figures += &format!(" {what} {:.2},", took.as_secs_f64());
    }

    /// Demands that every node sees all others for so long.
    async fn stays(&self, length: Duration) {
        let begun = self.ether.now();
        while self.ether.now() - begun < length {
            let wrong = self.wrong(&|_| (0..NODES).collect());
            assert_eq!(wrong, None, "after {:?} with one way cut", self.ether.now() - begun);
            sleep(LOOK).await;
        }
    }

    /// The first node that does not see exactly whom it should, if it should see anybody.
    fn wrong(&self, wanted: &impl Fn(usize) -> Vec<usize>) -> Option<String> {
        self.nodes.iter().enumerate().find_map(|(number, node)| {
            let (fleet, wanted) = (node.fleet.as_ref()?, wanted(number));
            let name = |other: usize| format!("node-{other}@{}", self.nodes[other].incarnation);
            let wanted: Vec<_> = wanted.into_iter().map(name).collect();
            let seen = show(&fleet.members().borrow());
            (!wanted.is_empty() && seen != wanted).then(|| format!("{} sees {seen:?}, not {wanted:?}", node.name))
        })
    }

    /// Each node tells all others something in each round, until a round came to all of them, and nothing came
    /// twice. Frames may be lost with a connection: after a cut that takes more than one round.
    async fn gossip_with_all(&mut self) {
        let begun = self.ether.now();
        for round in 0_usize.. {
            for node in &self.nodes {
                let fleet = node.fleet.as_ref().expect("all run");
                let to = fleet.broadcast(Bytes::from(format!("round {round} of {}", node.name)));
                self.ether.note(&format!("{} tells {to} others", node.name));
            }
            sleep(ROUND).await;
            let took = self.ether.now() - begun;
            if let Some(whole) = (0..=round).find(|round| self.nodes.iter().all(|node| node.has_heard(*round))) {
                self.figures += &format!(" told {:.1} (round {whole}),", took.as_secs_f64());
                break;
            }
            let misses = self.nodes.iter().filter(|node| !node.has_heard(round.saturating_sub(1)));
            let misses: Vec<_> = misses.map(|node| node.name.as_str()).collect();
            assert!(took < TOLD, "no round came to all within {TOLD:?}: the last but one not to {misses:?}");
        }
        for node in &self.nodes {
            let mut heard = node.heard.lock().expect("nobody panicked");
            let different: BTreeSet<_> = heard.iter().collect();
            assert_eq!(different.len(), heard.len(), "{} heard something twice: {heard:?}", node.name);
            heard.clear();
        }
    }
}

impl Node {
    /// Whether it has heard a round from all others.
    fn has_heard(&self, round: usize) -> bool {
        let said = |from: &PeerId| format!("round {round} of {}", from.name);
        let heard = self.heard.lock().expect("nobody panicked");
        heard.iter().filter(|(from, frame)| **frame == *said(from).as_bytes()).count() == NODES - 1
    }
}

fn address(node: usize) -> SocketAddr {
    ([10, 0, 0, 1 + node as u8], 7946).into()
}

/// What the fleet's simulator draws for it, in milliseconds.
fn drawn(what: &str) -> Option<RangeInclusive<u64>> {
    match what {
        "join" | "rebirth" | "healed" => Some(JOIN_MS),
        "crash" | "parted" | "unheard" => Some(DEAD_MS),
        _ => None,
    }
}

/// Who is seen, those that leave marked.
fn show(members: &Members) -> Vec<String> {
    let mark = |state| if state == MemberState::Up { "" } else { " (leaving)" };
    members.iter().map(|member| format!("{}{}", member.id, mark(member.state))).collect()
}
