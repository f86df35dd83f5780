//! A network of memory for membership: nodes that reach each other through a table.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use rationd::fleet::{Carrier, GossipMessage, Members, Membership, MembershipOptions, PeerId};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::membership_suite::{Node, Start, World};
use super::peers::{FLEET, runtime};

/// Nodes that reach each other through a table.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<HashMap<SocketAddr, Entry>>>);

struct Entry {
    own: PeerId,
    inbox: mpsc::Sender<GossipMessage>,
    changed: watch::Sender<u64>,
}

/// One node's way into it.
pub struct Wire {
    memory: Memory,
    pub own: PeerId,
    pub address: SocketAddr,
    changed: watch::Sender<u64>,
}

/// What a node says and hears, whatever build it is of.
pub trait Voice {
    fn members(&self) -> watch::Receiver<Arc<Members>>;
    fn malformed(&self) -> u64;
    /// Tells the others that it is about to go, and gives them the time to hear so.
    fn say_goodbye(&self, runtime: &Runtime);
}

/// A node in a network of memory.
pub struct InMemory<V> {
    memory: Memory,
    inbox: mpsc::Sender<GossipMessage>,
    own: PeerId,
    address: SocketAddr,
    voice: V,
    runtime: Option<Runtime>,
}

impl Memory {
    fn table(&self) -> MutexGuard<'_, HashMap<SocketAddr, Entry>> {
        self.0.lock().expect("no test has panicked")
    }

    /// Takes a node in: its way to others, what comes to it, and where that is put.
    fn enter(&self, start: Start<'_>) -> (Wire, mpsc::Receiver<GossipMessage>, mpsc::Sender<GossipMessage>) {
        static PORT: AtomicU16 = AtomicU16::new(1);
        let fresh = || ([127, 0, 0, 1], PORT.fetch_add(1, Ordering::Relaxed)).into();
        let address = start.at.unwrap_or_else(fresh);
        let own = PeerId { name: start.name.into(), incarnation: start.incarnation };
        let (inbox, messages) = mpsc::channel(256);
        let changed = watch::channel(0).0;
        let entry = Entry { own: own.clone(), inbox: inbox.clone(), changed: changed.clone() };
        self.table().insert(address, entry);
        (Wire { memory: self.clone(), own, address, changed }, messages, inbox)
    }

    /// Takes a node away, unless another one has come in its place.
    fn vanish(&self, address: SocketAddr, inbox: &mpsc::Sender<GossipMessage>) {
        let mut table = self.table();
        if table.get(&address).is_some_and(|entry| entry.inbox.same_channel(inbox)) {
            table.remove(&address);
        }
    }

    /// Takes a node away, and the others notice.
    fn leave(&self, address: SocketAddr) {
        let mut table = self.table();
        table.remove(&address);
        table.values().for_each(|entry| entry.changed.send_modify(|version| *version += 1));
    }
}

impl Carrier for Wire {
    fn send(&self, to: SocketAddr, frame: Bytes) -> bool {
        let gossip = GossipMessage::new(self.own.clone(), self.address, frame);
        self.memory.table().get(&to).is_some_and(|entry| entry.inbox.try_send(gossip).is_ok())
    }

    fn is_connected(&self, peer: &PeerId) -> bool {
        self.memory.table().values().any(|entry| entry.own == *peer)
    }

    fn has_left(&self, _: &PeerId) -> bool {
        false
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl World for Memory {
    fn start(&self, start: Start<'_>) -> Box<dyn Node> {
        let (seeds, tick) = (start.seeds.iter().map(SocketAddr::to_string).collect(), Duration::from_millis(200));
        let node = InMemory::start(self, start, |wire, messages, runtime| {
            let (own, address) = (wire.own.clone(), wire.address);
            let _inside = runtime.enter();
            let options = MembershipOptions { fleet: FLEET.into(), own, address, seeds, tick, owning: start.owning };
            Membership::start(options, Arc::new(wire), messages)
        });
        Box::new(node)
    }

    fn gossip(&self, to: &dyn Node, messages: &[Bytes]) {
        let from = PeerId { name: "mallory".into(), incarnation: 1 };
        let inbox = self.table()[&to.address()].inbox.clone();
        for frame in messages {
            let gossip = GossipMessage::new(from.clone(), ([127, 0, 0, 1], 9).into(), frame.clone());
            inbox.blocking_send(gossip).expect("the node runs");
        }
    }
}

impl Voice for Membership {
    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.members()
    }

    fn malformed(&self) -> u64 {
        self.malformed()
    }

    fn say_goodbye(&self, runtime: &Runtime) {
        runtime.block_on(self.leave());
    }
}

impl<V> InMemory<V> {
    /// Starts a node that speaks with the voice that `speak` makes.
    pub fn start(
        memory: &Memory,
        start: Start<'_>,
        speak: impl FnOnce(Wire, mpsc::Receiver<GossipMessage>, &Runtime) -> V,
    ) -> Self {
        let (wire, messages, inbox) = memory.enter(start);
        let (own, address, runtime) = (wire.own.clone(), wire.address, runtime());
        let voice = speak(wire, messages, &runtime);
        Self { memory: memory.clone(), inbox, own, address, voice, runtime: Some(runtime) }
    }

    fn stop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        runtime.shutdown_timeout(Duration::from_secs(5));
        self.memory.vanish(self.address, &self.inbox);
    }
}

impl<V: Voice> Node for InMemory<V> {
    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it runs")
    }

    fn own(&self) -> PeerId {
        self.own.clone()
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn members(&self) -> watch::Receiver<Arc<Members>> {
        self.voice.members()
    }

    fn malformed(&self) -> u64 {
        self.voice.malformed()
    }

    fn leave(&self) {
        self.voice.say_goodbye(self.runtime());
        self.memory.leave(self.address);
    }

    fn kill(mut self: Box<Self>) {
        self.stop();
    }
}

impl<V> Drop for InMemory<V> {
    fn drop(&mut self) {
        self.stop();
    }
}
