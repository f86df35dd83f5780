//! The transport that chitchat uses: its messages are sent as frames over a [`Carrier`].
//!
//! chitchat awaits `send` in its only loop, drops the future of `recv` at each tick, and ends for good when `recv`
//! fails. So `send` only puts a frame into a queue, `recv` keeps no state between its awaits, and neither ever fails.
//! Each message is validated before chitchat sees it.
//!
//! While the fleet is calm, chitchat's rounds would wake up every node some hundred times a second to tell each other
//! nothing. chitchat has no slower rounds for that, but it awaits `send` in its only loop: so in a calm fleet the message
//! that opens a round is held until this node tells its peers that it lives, which it does once a second, or there is something to
//! read or to tell. Then both leave in one packet. Of two nodes one opens, and the empty message that ends the exchange is left out.
//!
//! A message that opens an exchange names every node, and so does the answer. In a fleet of some fifty nodes or more all rounds
//! would take more than a node may send, so fewer exchanges are opened there: see [`SendBudget`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex as SyncMutex};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard, mpsc};
use tokio::time::{Instant, sleep_until};

use super::frame::MAX_FRAME;
use super::message::{InvalidMessage, is_empty_ack, is_syn};
use super::peer::{Carrier, GossipMessage};
use super::rhythm::{APART, LATE, Rhythm};
use super::stats::Counters;
use super::validate::{Inspector, inspecting};
use crate::clock;

/// Time between two rounds of gossip in a calm fleet. They leave with this node's signs of life, or [`LATE`] after one
/// was due.
const CALM_ROUND: Duration = Duration::from_secs(1);
/// Messages that leave within this time belong to one round.
const ONE_ROUND: Duration = Duration::from_millis(50);
/// How long this node opens no exchange with a peer that has opened one with it: for a peer of a higher address, and
/// for one of a lower address. The two differ because with one value, two nodes whose rounds begin at the same time
/// would both open an exchange, or each would leave it to the other. Less than a round (1 s) means that this node opens
/// the next one, and more that the peer does.
const OPENED: [Duration; 2] = [Duration::from_millis(900), Duration::from_millis(1_200)];
/// Most exchanges that are opened in a round of a calm fleet: as many as chitchat opens.
const EXCHANGES: usize = 4;

/// Bytes that gossip may send in a second: in general, and while nodes join, since only exchanges make them known. All
/// of it may leave at once when nothing was sent for a second.
const BYTES_PER_SECOND: [i64; 2] = [64 << 10, 256 << 10];

/// What gossip may send now. Answers leave in any case, and so do exchanges with nodes that this one does not hear yet,
/// and those that announce that this node leaves. Their bytes are then taken from exchanges with peers that this node
/// hears anyway, for a second at most.
struct SendBudget {
    left: i64,
    at: Instant,
}

impl SendBudget {
    fn new(now: Instant) -> Self {
        Self { left: BYTES_PER_SECOND[1], at: now }
    }

    /// Whether an exchange with a peer that is heard anyway may be opened.
    fn has_some(&mut self, now: Instant, is_growing: bool) -> bool {
        let passed = now.saturating_duration_since(self.at).as_micros().min(1_000_000) as i64;
        let most = BYTES_PER_SECOND[usize::from(is_growing)];
        self.left = self.left.saturating_add(most * passed / 1_000_000).clamp(-most, most);
        self.at = now;
        self.left > 0
    }

    fn spend(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes as i64); // a frame, at most
    }
}

/// Gives chitchat its socket, and another one after a restart.
pub(crate) struct GossipTransport {
    carrier: Arc<dyn Carrier>,
    inbox: Arc<Mutex<mpsc::Receiver<GossipMessage>>>,
    inspector: Arc<SyncMutex<Inspector>>,
    rhythm: Arc<Rhythm>,
    hints: mpsc::Sender<SocketAddr>,
    counters: Arc<Counters>,
}

struct GossipSocket {
    carrier: Arc<dyn Carrier>,
    inbox: OwnedMutexGuard<mpsc::Receiver<GossipMessage>>,
    inspector: Arc<SyncMutex<Inspector>>,
    hints: mpsc::Sender<SocketAddr>,
    counters: Arc<Counters>,
    /// A message that came while a round was held.
    came: Option<GossipMessage>,
    calm: Calm,
    budget: SendBudget,
}

/// The rounds of a calm fleet.
struct Calm {
    own: SocketAddr,
    /// Wakes a round that is held.
    stirred: Arc<Notify>,
    rhythm: Arc<Rhythm>,
    /// When the latest round began, and with whom exchanges were opened in it.
    began: Instant,
    opened: Vec<SocketAddr>,
    /// The next round is due.
    is_due: bool,
    /// When peers have opened exchanges with this node.
    asked: HashMap<SocketAddr, Instant>,
}

/// When an exchange may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opens {
    Now,
    /// With the next round.
    Next,
    /// Not in this round, which has one with this peer; perhaps with another peer.
    Not,
    /// With nobody in this round: it has an exchange with each peer, or as many as it may have.
    Full,
}

/// Why a message is held no longer.
enum Held {
    /// There is something to tell.
    Stirred,
    /// There is something to read.
    Came,
    /// The next round is due.
    Due,
}

impl Calm {
    fn new(own: SocketAddr, stirred: Arc<Notify>, rhythm: Arc<Rhythm>) -> Self {
        let (began, opened, asked) = (clock::timers(), Vec::new(), HashMap::new());
        Self { own, stirred, rhythm, began, opened, is_due: false, asked }
    }

    /// When an exchange with `to` may be opened; this node has `peers` live peers.
    fn opens(&self, to: SocketAddr, peers: usize, now: Instant) -> Opens {
        if now.duration_since(self.began) >= ONE_ROUND {
            return if self.is_due { Opens::Now } else { Opens::Next };
        }
        match self.opened.contains(&to) {
            _ if self.opened.len() >= EXCHANGES.min(peers) => Opens::Full,
            true => Opens::Not,
            false => Opens::Now,
        }
    }

    /// Counts an exchange with `to` in the round that has just begun, or begins one. Returns false when the exchange
    /// need not be opened because the peer has opened one lately.
    fn open(&mut self, to: SocketAddr, now: Instant) -> bool {
        if now.duration_since(self.began) >= ONE_ROUND {
            (self.began, self.is_due) = (now, false);
            self.opened.clear();
            self.asked.retain(|_, at| now.duration_since(*at) < OPENED[1]);
        }
        self.opened.push(to);
        let lasts = OPENED[usize::from(to < self.own)];
        self.asked.get(&to).is_none_or(|at| now.duration_since(*at) >= lasts)
    }
}

impl GossipTransport {
    /// Sends over `carrier`; received messages come from `inbox` through `inspector`. Addresses to dial go into
    /// `hints`.
    pub(crate) fn new(
        carrier: Arc<dyn Carrier>,
        inbox: mpsc::Receiver<GossipMessage>,
        (inspector, rhythm): (Arc<SyncMutex<Inspector>>, Arc<Rhythm>),
        hints: mpsc::Sender<SocketAddr>,
        counters: Arc<Counters>,
    ) -> Self {
        Self { carrier, inbox: Arc::new(Mutex::new(inbox)), inspector, rhythm, hints, counters }
    }
}

#[async_trait]
impl Transport for GossipTransport {
    async fn open(&self, listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        // An earlier socket has been dropped with its loop, or is about to be.
        let inbox = self.inbox.clone().lock_owned().await;
        let (carrier, inspector, hints) = (self.carrier.clone(), self.inspector.clone(), self.hints.clone());
        let calm = Calm::new(listen, inspecting(&inspector).stirred(), self.rhythm.clone());
        let (counters, budget) = (self.counters.clone(), SendBudget::new(clock::timers()));
        Ok(Box::new(GossipSocket { carrier, inbox, inspector, hints, counters, came: None, calm, budget }))
    }
}

#[async_trait]
impl Socket for GossipSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        // A dropped message is counted by the carrier, and its content is sent again at the next tick.
        let mut bytes = message.serialize_to_vec();
        let is_needless =
            if is_syn(&bytes) { !self.may_open(to).await } else { is_empty_ack(&bytes) && self.is_calm(to) };
        if is_needless {
            return Ok(());
        }
        inspecting(&self.inspector).correct(&mut bytes);
        self.budget.spend(bytes.len());
        self.carrier.send(to, bytes.into());
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let gossip = match self.came.take() {
                Some(gossip) => Some(gossip),
                None => self.inbox.recv().await,
            };
            let Some(gossip) = gossip else {
                // The node is closing. An error would end chitchat, so it waits forever.
                std::future::pending::<()>().await;
                continue;
            };
            if is_syn(&gossip.frame) {
                self.calm.asked.insert(gossip.reply_to, clock::timers());
            }
            match self.read(&gossip) {
                Ok(message) => return Ok((gossip.reply_to, message)),
                // Messages of an ended incarnation may arrive after the first one of the next.
                Err(InvalidMessage::NoPlace) => {
                    tracing::debug!(peer = %gossip.from, "there is no place for a peer");
                }
                Err(why) => {
                    self.counters.malformed.add(1);
                    tracing::warn!(peer = %gossip.from, ?why, "a gossip message was not taken");
                }
            }
        }
    }
}

impl GossipSocket {
    fn is_calm(&self, peer: SocketAddr) -> bool {
        inspecting(&self.inspector).heard().is_calm(peer)
    }

    /// Whether an exchange with `to` is opened. While the fleet is calm, it waits for the next round first.
    async fn may_open(&mut self, to: SocketAddr) -> bool {
        let (is_growing, is_heard, peers) = {
            let mut inspector = inspecting(&self.inspector);
            (inspector.heard().is_growing(), inspector.need_not_hear(to), inspector.heard().count())
        };
        if !self.budget.has_some(clock::timers(), is_growing) && is_heard {
            return false;
        }
        if !self.is_calm(to) {
            return true;
        }
        match self.calm.opens(to, peers, clock::timers()) {
            Opens::Now => {}
            Opens::Next => match self.hold().await {
                Held::Stirred => return true,
                Held::Came => return false,
                Held::Due => {}
            },
            Opens::Not => return false,
            // This message belongs to a further round of chitchat's own, in which there is nothing to do. If `send`
            // returned at once, chitchat would wake up for yet another round after a tick; held here, it begins the
            // next one when a round of the calm fleet is due.
            Opens::Full => {
                let held = self.hold().await;
                self.calm.is_due |= matches!(held, Held::Due);
                return matches!(held, Held::Stirred);
            }
        }
        self.calm.open(to, clock::timers())
    }

    /// Waits until the next round is due, or until there is something to tell or to read.
    async fn hold(&mut self) -> Held {
        // chitchat reads what has come as soon as `send` returns.
        if self.came.is_some() {
            return Held::Came;
        }
        let due = self.calm.began + CALM_ROUND + LATE;
        loop {
            tokio::select! {
                biased;
                () = self.calm.stirred.notified() => return Held::Stirred,
                // An exchange that a peer has opened comes first, because then none is opened with that peer.
                Some(gossip) = self.inbox.recv() => {
                    self.came = Some(gossip);
                    return Held::Came;
                }
                () = self.calm.rhythm.rounds.notified() => {
                    if clock::timers() - self.calm.began >= APART {
                        return Held::Due;
                    }
                }
                () = sleep_until(due) => return Held::Due,
            }
        }
    }

    fn read(&self, gossip: &GossipMessage) -> Result<ChitchatMessage, InvalidMessage> {
        if gossip.frame.len() > MAX_FRAME {
            return Err(InvalidMessage::TooMuch);
        }
        let mut inspector = inspecting(&self.inspector);
        inspector.pass(clock::timers());
        let inspected = inspector.inspect(gossip)?;
        drop(inspector);
        for address in inspected.hints {
            // A hint for which there is no room is repeated in another round.
            let _ = self.hints.try_send(address);
        }
        // The decoder is chitchat's. If it panics, only this message is lost, and the gossip goes on.
        let decoded = catch_unwind(|| ChitchatMessage::deserialize(&mut &inspected.message[..]));
        decoded.ok().and_then(Result::ok).ok_or(InvalidMessage::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use tokio::sync::watch;
    use tokio::time::sleep;

    use super::*;
    use crate::fleet::Owning;
    use crate::fleet::membership::{Membership, MembershipOptions};
    use crate::fleet::peer::PeerId;

    /// Nodes by address, and how many messages and bytes they have sent.
    #[derive(Clone, Default)]
    struct Network(
        Arc<SyncMutex<HashMap<SocketAddr, mpsc::Sender<GossipMessage>>>>,
        Arc<AtomicUsize>,
        Arc<AtomicUsize>,
    );

    struct Wire(Network, PeerId, SocketAddr, watch::Sender<u64>);

    impl Carrier for Wire {
        fn send(&self, to: SocketAddr, frame: Bytes) -> bool {
            self.0.1.fetch_add(1, Ordering::Relaxed);
            self.0.2.fetch_add(frame.len(), Ordering::Relaxed);
            let table = self.0.0.lock().unwrap();
            // A node that was taken off the network sends nothing, either.
            let to = table.get(&to).filter(|_| table.contains_key(&self.2));
            to.is_some_and(|inbox| inbox.try_send(GossipMessage::new(self.1.clone(), self.2, frame)).is_ok())
        }

        fn is_connected(&self, _: &PeerId) -> bool {
            true
        }

        fn has_left(&self, _: &PeerId) -> bool {
            false
        }

        fn changes(&self) -> watch::Receiver<u64> {
            self.3.subscribe()
        }
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    impl Network {
        fn start(&self, port: u16) -> Membership {
            let (inbox, messages) = mpsc::channel(64);
            self.0.lock().unwrap().insert(at(port), inbox);
            let own = PeerId { name: format!("n{port}").into(), incarnation: 1 };
            let wire = Wire(self.clone(), own.clone(), at(port), watch::channel(0).0);
            let (seeds, tick) = (vec![at(1).to_string()], Duration::from_millis(200));
            let options =
                MembershipOptions { fleet: "f".into(), own, address: at(port), seeds, tick, owning: Owning::Never };
            Membership::start(options, Arc::new(wire), messages)
        }

        /// Messages that all nodes together send in ten seconds.
        async fn messages(&self) -> usize {
            let before = self.1.load(Ordering::Relaxed);
            sleep(Duration::from_secs(10)).await;
            self.1.load(Ordering::Relaxed) - before
        }
    }

    /// How long it takes until all nodes see as many members.
    async fn until(nodes: &[Membership], members: usize) -> Duration {
        let began = clock::timers();
        while nodes.iter().any(|node| node.members().borrow().len() != members) {
            sleep(Duration::from_millis(50)).await;
            assert!(clock::timers() - began < Duration::from_secs(60), "they do not see {members} members");
        }
        clock::timers() - began
    }

    #[tokio::test(start_paused = true)]
    async fn a_calm_fleet_says_little_and_notices_who_comes_and_who_dies_as_soon() {
        let network = Network::default();
        let mut nodes: Vec<_> = (1..=3).map(|port| network.start(port)).collect();
        until(&nodes, 3).await;
        let busy = network.messages().await;
        sleep(Duration::from_secs(5)).await;
        let calm = network.messages().await;
        // Three pairs exchange two messages a second.
        assert!((40..=80).contains(&calm) && busy > 5 * calm, "{calm} messages when calm, {busy} before");
        nodes.push(network.start(4));
        assert!(until(&nodes, 4).await < Duration::from_secs(2));
        sleep(Duration::from_secs(20)).await;
        assert!(network.messages().await < 160);
        assert_eq!(until(&nodes, 4).await, Duration::ZERO, "nobody was lost while it was calm");
        network.0.lock().unwrap().remove(&at(2));
        let dead = nodes.remove(1);
        let noticed = until(&nodes, 3).await;
        assert!((Duration::from_secs(5)..=Duration::from_millis(6_500)).contains(&noticed), "{noticed:?}");
        drop(dead);
    }

    /// These peers send nothing but gossip, so they are missed again and again and the fleet is never calm, which is
    /// when gossip sends most.
    #[tokio::test(start_paused = true)]
    async fn a_large_fleet_says_no_more_than_its_bytes_and_loses_nobody() {
        const NODES: u16 = 60;
        let network = Network::default();
        let mut nodes: Vec<_> = (1..=NODES).map(|port| network.start(port)).collect();
        until(&nodes, NODES.into()).await;
        sleep(Duration::from_secs(13)).await;
        let before = network.2.load(Ordering::Relaxed);
        sleep(Duration::from_secs(5)).await;
        let each = (network.2.load(Ordering::Relaxed) - before) / usize::from(NODES) / 5;
        let most = BYTES_PER_SECOND[0] as usize;
        assert!((most / 2..=most + most / 20).contains(&each), "{each} bytes a second out of a node");
        nodes.push(network.start(NODES + 1));
        let came = until(&nodes, nodes.len()).await;
        assert!(came < Duration::from_secs(4), "{came:?}");
        network.0.lock().unwrap().remove(&at(2));
        let dead = nodes.remove(1);
        // A peer that is heard each second is given up six seconds after it was heard last. Here a node hears of most
        // peers by others, at intervals that chance decides, and the others report the dead node's last heartbeat for a
        // while: half of the nodes need as long as in a small fleet, and the last of them much longer.
        let left = nodes.len();
        let began = clock::timers();
        let mut noticed = Vec::new();
        while noticed.len() < left {
            sleep(Duration::from_millis(50)).await;
            let blind = nodes.iter().filter(|node| node.members().borrow().len() != left).count();
            noticed.resize(left - blind, clock::timers() - began);
            assert!(clock::timers() - began < Duration::from_secs(60), "{blind} nodes do not see that one is gone");
        }
        let (half, last) = (noticed[left / 2], noticed[left - 1]);
        assert!((Duration::from_secs(4)..=Duration::from_secs(8)).contains(&half), "half of them after {half:?}");
        assert!((Duration::from_secs(6)..=Duration::from_secs(18)).contains(&last), "the last after {last:?}");
        drop(dead);
    }

    #[tokio::test(start_paused = true)]
    async fn a_calm_fleet_says_all_when_its_nodes_show_that_they_live() {
        let network = Network::default();
        let nodes: Vec<_> = (1..=3).map(|port| network.start(port)).collect();
        let beating = async {
            loop {
                sleep(Duration::from_millis(1_000)).await;
                nodes.iter().for_each(Membership::beat);
            }
        };
        let seen = async {
            until(&nodes, 3).await;
            sleep(Duration::from_secs(25)).await;
            let parks = || tokio::runtime::Handle::current().metrics().worker_park_count(0);
            let before = parks();
            let messages = network.messages().await;
            (messages, parks() - before)
        };
        let (messages, wake_ups) = tokio::select! {
            seen = seen => seen,
            () = beating => unreachable!("it goes on"),
        };
        assert!((54..=66).contains(&messages), "three pairs exchange two messages a second, not {messages} in ten");
        assert!(wake_ups <= 40, "{wake_ups} in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn who_leaves_a_calm_fleet_is_heard_at_once() {
        let network = Network::default();
        let nodes: Vec<_> = (1..=3).map(|port| network.start(port)).collect();
        until(&nodes, 3).await;
        sleep(Duration::from_secs(20)).await;
        nodes[1].leave().await;
        let is_leaving = |node: &Membership| {
            let members = node.members().borrow().clone();
            members.iter().any(|member| member.state == crate::fleet::MemberState::Leaving)
        };
        assert!(is_leaving(&nodes[0]) && is_leaving(&nodes[2]));
    }
}
