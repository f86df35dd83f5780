//! A node of an earlier build, as far as membership goes: chitchat as it is, which believes each member about
//! all others. Fleets are never replaced at once, so both must live together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, ChitchatMessage, Deserializable, FailureDetectorConfig, NodeState,
    Serializable, spawn_chitchat,
};
use rationd::fleet::{Carrier, GossipMessage, Member, MemberState, Members, PeerId};
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, watch};

use super::in_memory::{InMemory, Memory, Voice, Wire};
use super::membership_suite::Start;
use super::peers::FLEET;

const TICK: Duration = Duration::from_millis(200);
const REMEMBERED: Duration = Duration::from_secs(8 * 60);

/// What a node of an earlier build says and hears.
pub struct Earlier {
    own: PeerId,
    members: watch::Receiver<Arc<Members>>,
    malformed: Arc<AtomicU64>,
    handle: ChitchatHandle,
}

struct Way {
    wire: Arc<Wire>,
    inbox: Arc<Mutex<mpsc::Receiver<GossipMessage>>>,
    malformed: Arc<AtomicU64>,
}

struct Open {
    wire: Arc<Wire>,
    inbox: OwnedMutexGuard<mpsc::Receiver<GossipMessage>>,
    malformed: Arc<AtomicU64>,
}

#[async_trait]
impl Transport for Way {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let inbox = self.inbox.clone().lock_owned().await;
        Ok(Box::new(Open { wire: self.wire.clone(), inbox, malformed: self.malformed.clone() }))
    }
}

#[async_trait]
impl Socket for Open {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.wire.send(to, message.serialize_to_vec().into());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let Some(gossip) = self.inbox.recv().await else { std::future::pending().await };
            match ChitchatMessage::deserialize(&mut &gossip.frame[..]) {
                Ok(message) => return Ok((gossip.reply_to, message)),
                Err(_) => self.malformed.fetch_add(1, Ordering::Relaxed),
            };
        }
    }
}

impl Earlier {
    /// Starts such a node in a network of memory.
    pub fn start(memory: &Memory, start: Start<'_>) -> InMemory<Self> {
        InMemory::start(memory, start, |wire, messages, runtime| Self::speak(start.seeds, wire, messages, runtime))
    }

    fn speak(seeds: &[SocketAddr], wire: Wire, messages: mpsc::Receiver<GossipMessage>, runtime: &Runtime) -> Self {
        let (own, address) = (wire.own.clone(), wire.address);
        let malformed = Arc::<AtomicU64>::default();
        let inbox = Arc::new(Mutex::new(messages));
        let way = Way { wire: Arc::new(wire), inbox, malformed: malformed.clone() };
        let facts = [("state", "up"), ("version", env!("CARGO_PKG_VERSION")), ("address", &*address.to_string())];
        let facts = facts.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let handle = runtime.block_on(spawn_chitchat(config(&own, address, seeds), facts, &way)).expect("it starts");
        let mut live = runtime.block_on(handle.with_chitchat(|chitchat| chitchat.live_nodes_watcher()));
        let (publish, members) = watch::channel(Arc::default());
        let (id, wire) = (own.clone(), way.wire);
        let mut changed = wire.changes();
        runtime.spawn(async move {
            loop {
                let told = live.borrow_and_update().iter().map(|(id, said)| member_of(id, said)).collect::<Vec<_>>();
                let is_there = |member: &Member| {
                    member.id == id || member.state == MemberState::Up || wire.is_connected(&member.id)
                };
                publish.send_replace(Arc::new(told.into_iter().filter(is_there).collect()));
                tokio::select! {
                    changed = live.changed() => if changed.is_err() { return },
                    Ok(()) = changed.changed() => {}
                }
            }
        });
        Self { own, members, malformed, handle }
    }
}

fn config(own: &PeerId, address: SocketAddr, seeds: &[SocketAddr]) -> ChitchatConfig {
    ChitchatConfig {
        chitchat_id: ChitchatId::new(own.name.to_string(), own.incarnation, address),
        cluster_id: FLEET.into(),
        gossip_interval: TICK,
        listen_addr: address,
        seed_nodes: seeds.iter().map(SocketAddr::to_string).collect(),
        failure_detector_config: FailureDetectorConfig {
            phi_threshold: 30.0,
            sampling_window_size: 100,
            max_interval: TICK * 5,
            initial_interval: TICK,
            dead_node_grace_period: REMEMBERED,
        },
        marked_for_deletion_grace_period: REMEMBERED,
        catchup_callback: None,
        extra_liveness_predicate: None,
    }
}

fn member_of(id: &ChitchatId, said: &NodeState) -> Member {
    let leaving = said.get("state") == Some("leaving");
    Member {
        id: PeerId { name: id.node_id.clone(), incarnation: id.generation_id },
        address: id.gossip_advertise_addr,
        state: if leaving { MemberState::Leaving } else { MemberState::Up },
        version: said.get("version").unwrap_or_default().to_owned(),
        owning: rationd::fleet::Owning::Never,
    }
}

impl Voice for Earlier {
    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members.clone()
    }

    fn malformed(&self) -> u64 {
        self.malformed.load(Ordering::Relaxed)
    }

    fn say_goodbye(&self, runtime: &Runtime) {
        runtime.block_on(async {
            self.handle.with_chitchat(|chitchat| chitchat.self_node_state().set("state", "leaving")).await;
            for member in self.members.borrow().iter().filter(|member| member.id != self.own) {
                let _ = self.handle.gossip(member.address);
            }
            // Two rounds, as a daemon gives it.
            let mut rounds = tokio::time::interval(TICK);
            for _ in 0..3 {
                rounds.tick().await;
            }
        });
    }
}
