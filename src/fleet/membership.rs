//! Membership: which nodes are in the fleet, by gossip (chitchat).
//!
//! It decides how soon a silent node is given up, and what members report about themselves. A member is live when
//! chitchat says so and this node has heard from it directly; `validate.rs` decides what chitchat gets to see. Does
//! not know what transports the gossip: QUIC in a daemon, memory in a test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, Heartbeat, NodeState, spawn_chitchat,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::members::{Member, MemberState, Members, Owning};
use super::peer::{Carrier, GossipMessage, PeerId};
use super::rhythm::{APART, LATE, Rhythm};
use super::seeds;
use super::stats::Counters;
use super::transport::GossipTransport;
use super::validate::{Inspector, inspecting};
use crate::clock;

/// How long a dead node is remembered, so that late gossip does not bring it back.
const REMEMBERED: Duration = Duration::from_secs(8 * 60);
/// Silence, in milliseconds, after which a node is given up where rounds are rarest.
const GIVEN_UP_MS: u128 = 6_000;
/// Time before the gossip is restarted.
const RESTART: Duration = Duration::from_millis(100);
/// Hints of addresses that may wait to be dialled.
const HINTS: usize = 256;
/// Time between two checks of who was heard, while the fleet is calm. They come with this node's signs of life, or
/// [`LATE`] after one was due.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait until the fleet has heard that this node leaves.
const FAREWELL: Duration = Duration::from_secs(1);
/// Most peers that are told directly that this node leaves.
const FAREWELLS: usize = 64;

/// The options of a membership.
#[derive(Clone, Debug)]
pub struct MembershipOptions {
    /// The fleet's name; nodes of other fleets are ignored.
    pub fleet: String,
    /// This node.
    pub own: PeerId,
    /// The address at which peers reach this node.
    pub address: SocketAddr,
    /// Addresses of other nodes: `host:port`.
    pub seeds: Vec<String>,
    /// Time between two rounds of gossip.
    pub tick: Duration,
    /// Whether this node owns keys for others.
    pub owning: Owning,
}

/// A running membership; it ends when this is dropped.
#[derive(Debug)]
pub struct Membership {
    members: watch::Receiver<Arc<Members>>,
    leaving: Arc<Notify>,
    rhythm: Arc<Rhythm>,
    tick: Duration,
    counters: Arc<Counters>,
    tasks: [AbortHandle; 2],
}

impl Membership {
    /// Starts gossip over `carrier`; received messages come from `inbox`.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn start(options: MembershipOptions, carrier: Arc<dyn Carrier>, inbox: mpsc::Receiver<GossipMessage>) -> Self {
        Self::counting(options, carrier, inbox, Arc::default())
    }

    pub(crate) fn counting(
        options: MembershipOptions,
        carrier: Arc<dyn Carrier>,
        inbox: mpsc::Receiver<GossipMessage>,
        counters: Arc<Counters>,
    ) -> Self {
        let alone = Arc::new(Members::new(member(&options, MemberState::Up), []));
        let (publish, members) = watch::channel(alone);
        let (found, seeds) = mpsc::channel(1);
        let seeking = seeds::run(options.seeds.clone(), options.address, members.clone(), found);
        let (tick, leaving) = (options.tick, Arc::new(Notify::new()));
        let inspector = Inspector::new(&options.fleet, &options.own, options.address, tick);
        let inspector = Arc::new(Mutex::new(inspector));
        let (hint, hints) = mpsc::channel(HINTS);
        let rhythm = Arc::<Rhythm>::default();
        let transport =
            GossipTransport::new(carrier.clone(), inbox, (inspector.clone(), rhythm.clone()), hint, counters.clone());
        let gossiping = Gossiping {
            options,
            carrier,
            transport,
            inspector,
            publish,
            seeds,
            hints,
            leaving: leaving.clone(),
            rhythm: rhythm.clone(),
            state: MemberState::Up,
            heartbeat: None,
            counters: counters.clone(),
        };
        let tasks = [tokio::spawn(seeking).abort_handle(), tokio::spawn(gossiping.run()).abort_handle()];
        Self { members, leaving, rhythm, tick, counters, tasks }
    }

    /// The live nodes, now and after each change.
    #[must_use]
    pub fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.clone()
    }

    /// Gossip messages that could not be parsed.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.counters.snapshot().malformed
    }

    /// Called when the node is about to send its sign of life. In a calm fleet, membership does then what it does once
    /// a second.
    pub(crate) fn beat(&self) {
        self.rhythm.beat();
    }

    /// Announces that this node leaves, and gives the fleet two rounds, but at most a second, to hear it.
    pub async fn leave(&self) {
        self.leaving.notify_one();
        sleep((self.tick * 2).min(FAREWELL)).await;
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

struct Gossiping {
    options: MembershipOptions,
    carrier: Arc<dyn Carrier>,
    transport: GossipTransport,
    inspector: Arc<Mutex<Inspector>>,
    publish: watch::Sender<Arc<Members>>,
    seeds: mpsc::Receiver<SocketAddr>,
    /// Addresses to dial, which other nodes have named.
    hints: mpsc::Receiver<SocketAddr>,
    leaving: Arc<Notify>,
    rhythm: Arc<Rhythm>,
    state: MemberState,
    /// The last heartbeat of gossip that has ended. A restarted one must continue from it, because peers ignore lower
    /// heartbeats.
    heartbeat: Option<Heartbeat>,
    counters: Arc<Counters>,
}

impl Gossiping {
    async fn run(mut self) {
        loop {
            match spawn_chitchat(config(&self.options), self.facts(), &self.transport).await {
                Ok(handle) => {
                    let handle = AbortOnDrop(handle);
                    self.resume(&handle.0).await;
                    self.follow(&handle.0).await;
                    let last = handle.0.with_chitchat(|chitchat| chitchat.self_node_state().heartbeat()).await;
                    self.heartbeat = Some(last);
                }
                Err(error) => tracing::error!(%error, "gossip cannot be started; it is tried again"),
            }
            self.counters.gossip_restarts.add(1);
            sleep(RESTART).await;
        }
    }

    /// This node's facts about itself.
    fn facts(&self) -> Vec<(String, String)> {
        let facts = [
            ("state", self.state.as_str().to_owned()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("address", self.options.address.to_string()),
        ];
        let owning = Some(self.options.owning).filter(|owning| *owning != Owning::Never);
        let owning = owning.map(|owning| ("owner", owning.as_str().to_owned()));
        facts.into_iter().chain(owning).map(|(key, value)| (key.to_owned(), value)).collect()
    }

    async fn resume(&self, handle: &ChitchatHandle) {
        let Some(last) = self.heartbeat else { return };
        handle.with_chitchat(|chitchat| chitchat.self_node_state().try_set_heartbeat(last)).await;
    }

    /// Publishes the list of live nodes until the gossip ends, which should not happen.
    async fn follow(&mut self, handle: &ChitchatHandle) {
        let mut live = handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()).await;
        let mut connected = self.carrier.changes();
        let mut passed = clock::timers();
        let mut next = passed;
        let mut ended = std::pin::pin!(handle.termination_watcher());
        loop {
            self.publish(live.borrow_and_update().iter());
            tokio::select! {
                changed = live.changed() => if changed.is_err() { return },
                Ok(()) = connected.changed() => {}
                () = sleep_until(next) => {
                    passed = clock::timers();
                    next = passed + self.pass(passed);
                }
                () = self.rhythm.looks.notified() => {
                    let now = clock::timers();
                    if now - passed >= APART {
                        passed = now;
                        next = passed + self.pass(passed);
                    }
                }
                Some(address) = self.seeds.recv() => {
                    let _ = handle.gossip(address);
                }
                Some(address) = self.hints.recv() => {
                    inspecting(&self.inspector).stir();
                    let _ = handle.gossip(address);
                }
                () = self.leaving.notified() => self.say_goodbye(handle).await,
                why = &mut ended => {
                    tracing::error!(?why, "gossip has ended; it is started again");
                    return;
                }
            }
        }
    }

    /// Records that a round has passed, and which peers were heard in it. Returns how long the next one takes: longer
    /// while the fleet is calm.
    fn pass(&self, now: Instant) -> Duration {
        let there = self.carrier.heard();
        let mut inspector = inspecting(&self.inspector);
        inspector.pass(now);
        inspector.heard().look(there.iter().map(|(peer, ago)| (peer, *ago)));
        if inspector.heard().is_all_calm() { self.options.tick.max(LOOK + LATE) } else { self.options.tick }
    }

    async fn say_goodbye(&mut self, handle: &ChitchatHandle) {
        self.state = MemberState::Leaving;
        inspecting(&self.inspector).leave();
        let word = self.state.as_str();
        handle.with_chitchat(|chitchat| chitchat.self_node_state().set("state", word)).await;
        let members = self.publish.borrow().clone();
        for member in members.iter().filter(|member| member.id != self.options.own).take(FAREWELLS) {
            let _ = handle.gossip(member.address);
        }
    }

    fn publish<'a>(&self, live: impl Iterator<Item = (&'a ChitchatId, &'a NodeState)>) {
        let others: Vec<_> = {
            let mut inspector = inspecting(&self.inspector);
            // Until a node's own facts have come, nothing but its address is known, so it is no member yet.
            let members = live.filter(|(_, said)| said.max_version() > 0).map(|(id, said)| member_of(id, said));
            members.filter(|member| inspector.heard().is_live(&member.id, member.address)).collect()
        };
        let others = others.into_iter().filter(|member| {
            let gone = member.state == MemberState::Leaving && !self.carrier.is_connected(&member.id);
            !gone && !self.carrier.has_left(&member.id)
        });
        let members = Members::new(member(&self.options, self.state), others);
        self.publish.send_if_modified(|known| {
            let modified = **known != members;
            if modified {
                *known = Arc::new(members);
            }
            modified
        });
    }
}

/// Ends the gossip when it is dropped.
struct AbortOnDrop(ChitchatHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn member(options: &MembershipOptions, state: MemberState) -> Member {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Member { id: options.own.clone(), address: options.address, state, version, owning: options.owning }
}

/// A node as a member, by its facts.
fn member_of(id: &ChitchatId, said: &NodeState) -> Member {
    let leaving = said.get("state") == Some(MemberState::Leaving.as_str());
    Member {
        id: PeerId { name: id.node_id.clone(), incarnation: id.generation_id },
        address: id.gossip_advertise_addr,
        state: if leaving { MemberState::Leaving } else { MemberState::Up },
        version: said.get("version").unwrap_or_default().chars().take(64).collect(),
        owning: Owning::reported(said.get("owner")),
    }
}

fn config(options: &MembershipOptions) -> ChitchatConfig {
    ChitchatConfig {
        chitchat_id: ChitchatId::new(options.own.name.clone(), options.own.incarnation, options.address),
        cluster_id: options.fleet.clone(),
        gossip_interval: options.tick,
        listen_addr: options.address,
        // `seeds.rs` resolves names; here, a slow resolution would delay the start.
        seed_nodes: options.seeds.iter().filter(|seed| seed.parse::<SocketAddr>().is_ok()).cloned().collect(),
        failure_detector_config: failure_detector(options.tick),
        marked_for_deletion_grace_period: REMEMBERED,
        catchup_callback: None,
        extra_liveness_predicate: None,
    }
}

/// The failure detector. A node is given up when its silence is longer than its usual one by a factor.
///
/// The usual silence is at most a tick, since each round carries a heartbeat; between a few nodes it is half of that
/// or less, since answers carry one, too. At a tick of 200 ms the factor is 30, so a node is given up after at most 6
/// s, and after 3 s or more in a small fleet. With a lower factor, a pause of a busy machine would be taken for a
/// death. The times are the same with faster ticks, and longer with slower ones.
fn failure_detector(tick: Duration) -> FailureDetectorConfig {
    let factor = (GIVEN_UP_MS / tick.as_millis().max(1)).clamp(8, 120);
    FailureDetectorConfig {
        phi_threshold: factor as f64,
        sampling_window_size: 100,
        // A longer silence was a pause, and is not counted among the usual ones.
        max_interval: tick * 5,
        // The detector starts as if it had seen five silences of this length.
        initial_interval: tick,
        dead_node_grace_period: REMEMBERED,
    }
}
