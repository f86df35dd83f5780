//! The peers that this node has heard from directly, on connections whose certificates name them.
//!
//! It decides which nodes chitchat may believe in. A peer is accepted only by its own messages. It is given up after
//! six seconds in which nothing came from it, unless two other nodes still hear from it: one direction of one
//! connection may be cut, and a single node's word is not enough. What others report of a peer's heartbeat counts as
//! a sign of life once per round, but the number is not believed. Knows no IO; its time passes only while this
//! process runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::message::{InvalidMessage, Known};
use super::peer::PeerId;

/// Silence after which a peer is given up, as a time and in rounds; the longer of both applies where rounds are slow.
const GIVEN_UP: Duration = Duration::from_secs(6);
const GIVEN_UP_ROUNDS: u32 = 8;
/// Silence after which it is recorded who else hears from a peer.
const MISSED: Duration = Duration::from_secs(2);
/// Number of other nodes that must hear from a peer when this node does not.
const VOUCHERS: usize = 2;
/// A fleet counts as calm when for this long no node has come or was missed: then its gossip has nothing to tell.
const CALM: Duration = Duration::from_secs(10);
/// Most such nodes that are recorded for each peer.
const MAX_VOUCHERS: usize = 8;
/// Silence after which a peer is forgotten, as a time and in rounds: later than chitchat forgets it.
const FORGOTTEN: Duration = Duration::from_secs(10 * 60);
const FORGOTTEN_ROUNDS: u32 = 64;
/// Most peers, including ended incarnations, and the bytes they take in a digest, which must fit into a frame.
const MAX_PEERS: usize = 1_000;
const MAX_BYTES: usize = 60_000;
/// Most incarnations of one name that are remembered. A further one must wait.
const MAX_LIVES: usize = 8;
/// How long a further incarnation must wait. Beyond [`MAX_LIVES`] a node that restarts in a loop is thus taken in six
/// times a minute at most.
const NEXT_LIFE: Duration = Duration::from_secs(10);

/// All peers that have spoken for themselves.
#[derive(Debug)]
pub(crate) struct Heard {
    own: PeerId,
    round: Duration,
    /// The time for which this process has run.
    now: Duration,
    peers: BTreeMap<PeerId, Peer>,
    /// When a peer was last added or missed, or this node had something to tell.
    stirred: Duration,
    /// When a peer was last added.
    grew: Duration,
    /// Bytes that the peers take in a digest.
    bytes: usize,
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    /// The last heartbeat that the peer itself has told.
    heartbeat: u64,
    /// The last heartbeat that chitchat was given, and when it was new.
    shown: u64,
    shown_at: Duration,
    came: Duration,
    last: Duration,
    /// Other nodes that hear from the peer: the heartbeat that each reported last, and when it last reported a higher
    /// one.
    vouchers: BTreeMap<Arc<str>, (u64, Option<Duration>)>,
}

/// What this node does about a peer's report of another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heed {
    /// The heartbeat that chitchat is given; `None` when chitchat must not hear of that node.
    pub(crate) shown: Option<u64>,
    /// The address at which that node may be found, if this node does not hear from it.
    pub(crate) hint: Option<SocketAddr>,
}

impl Heard {
    /// Without peers.
    pub(crate) fn new(own: PeerId, round: Duration) -> Self {
        Self {
            own,
            round,
            now: Duration::ZERO,
            peers: BTreeMap::new(),
            stirred: Duration::ZERO,
            grew: Duration::ZERO,
            bytes: 0,
        }
    }

    /// `time` has passed in which peers could have been heard. Forgets those that were silent for too long.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        let (now, given_up, bytes) = (self.now, self.given_up(), &mut self.bytes);
        let forgotten = FORGOTTEN + self.round * FORGOTTEN_ROUNDS;
        self.peers.retain(|id, peer| {
            peer.vouchers.retain(|_, (_, at)| at.is_none_or(|at| now - at < given_up));
            let kept = now - peer.last < forgotten;
            *bytes -= if kept { 0 } else { Known::len(id, peer.address) };
            kept
        });
    }

    /// Takes which peers have sent a frame and how long ago, and then checks whether a peer is missed. The check comes
    /// last because the times before this call are old: in a calm fleet both this call and a peer's sign of life come
    /// once a second, so a live peer was last seen up to two seconds ago, which is [`MISSED`].
    pub(crate) fn look<'a>(&mut self, there: impl Iterator<Item = (&'a PeerId, Duration)>) {
        there.for_each(|(peer, ago)| self.is_there(peer, ago));
        let (now, given_up) = (self.now, self.given_up());
        if self.peers.values().any(|peer| now - peer.last >= MISSED && peer.is_live(now, given_up)) {
            self.stir();
        }
    }

    /// Something has changed, or is about to change: the fleet is not calm for [`CALM`].
    pub(crate) fn stir(&mut self) {
        self.stirred = self.now;
    }

    /// Whether a peer was added within [`CALM`], so that all others have to hear of it.
    pub(crate) fn is_growing(&self) -> bool {
        self.now - self.grew < CALM
    }

    /// How many live peers there are.
    pub(crate) fn count(&self) -> usize {
        self.peers.values().filter(|peer| self.is_peer_live(peer)).count()
    }

    /// Whether the node at `address` is a live peer.
    pub(crate) fn hears(&self, address: SocketAddr) -> bool {
        self.peers.values().any(|peer| peer.address == address && self.is_peer_live(peer))
    }

    /// Whether the fleet is calm, and the node at `address` is a live peer in it.
    pub(crate) fn is_calm(&self, address: SocketAddr) -> bool {
        self.now - self.stirred >= CALM && self.hears(address)
    }

    /// Whether the fleet is calm.
    pub(crate) fn is_all_calm(&self) -> bool {
        self.now - self.stirred >= CALM && self.peers.values().any(|peer| self.is_peer_live(peer))
    }

    /// The time for which this process has run.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Takes a peer's own heartbeat, and returns the one that chitchat is given.
    ///
    /// # Errors
    /// The peer cannot be accepted.
    pub(crate) fn hear(&mut self, from: &PeerId, address: SocketAddr, heartbeat: u64) -> Result<u64, InvalidMessage> {
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(from) {
            if peer.address != address {
                return Err(InvalidMessage::NotItself);
            }
            if heartbeat > peer.heartbeat {
                (peer.heartbeat, peer.shown, peer.shown_at) = (heartbeat, heartbeat.max(peer.shown + 1), now);
            }
            peer.is_heard(now);
            return Ok(peer.shown);
        }
        let bytes = self.bytes + Known::len(from, address);
        if from.name == self.own.name || !self.may_begin(from) || bytes > MAX_BYTES || self.peers.len() >= MAX_PEERS {
            return Err(InvalidMessage::NoPlace);
        }
        let vouchers = BTreeMap::new();
        let peer = Peer { address, heartbeat, shown: heartbeat, shown_at: now, came: now, last: now, vouchers };
        self.peers.insert(from.clone(), peer);
        self.bytes = bytes;
        self.grew = self.now;
        self.stir();
        Ok(heartbeat)
    }

    /// Whether an incarnation may be accepted: no later one of its name is live, and there were not too many.
    fn may_begin(&self, from: &PeerId) -> bool {
        let is_past = |(id, peer): (&PeerId, &Peer)| id.incarnation < from.incarnation || !self.is_peer_live(peer);
        let waited = |at: Duration| self.now - at >= NEXT_LIFE;
        let newest = self.lives(&from.name).map(|(_, peer)| peer.came).max();
        self.lives(&from.name).all(is_past) && (self.lives(&from.name).count() < MAX_LIVES || newest.is_none_or(waited))
    }

    fn lives(&self, name: &Arc<str>) -> impl Iterator<Item = (&PeerId, &Peer)> {
        let life = |incarnation| PeerId { name: name.clone(), incarnation };
        self.peers.range(life(0)..=life(u64::MAX))
    }

    /// Records that some frame came from this peer so long ago, if the peer has sent a heartbeat of its own before.
    pub(crate) fn is_there(&mut self, from: &PeerId, ago: Duration) {
        let at = self.now.saturating_sub(ago);
        if let Some(peer) = self.peers.get_mut(from).filter(|peer| peer.last <= at) {
            peer.is_heard(at);
        }
    }

    /// A peer reports that it knows another node.
    pub(crate) fn heed(&mut self, from: &PeerId, known: &Known) -> Heed {
        if known.id.name == self.own.name || known.id.name == from.name {
            return Heed::default();
        }
        let (now, given_up, round) = (self.now, self.given_up(), self.round);
        let Some(peer) = self.peers.get_mut(&known.id) else {
            let hides = |(id, peer): (&PeerId, &Peer)| id.incarnation > known.id.incarnation && self.is_peer_live(peer);
            let hidden = self.lives(&known.id.name).any(hides);
            return Heed { shown: None, hint: Some(known.address).filter(|_| !hidden) };
        };
        if peer.address != known.address {
            return Heed::default();
        }
        if now - peer.last >= MISSED {
            peer.is_vouched(&from.name, known.heartbeat, now);
        }
        let (is_live, is_news) = (peer.is_live(now, given_up), known.heartbeat > peer.heartbeat);
        if is_live && is_news && now - peer.shown_at >= round {
            (peer.shown, peer.shown_at) = (peer.shown + 1, now);
        }
        // A node that was given up may be back and unaware that this node does not hear from it, so this node dials it.
        Heed { shown: Some(peer.shown), hint: Some(peer.address).filter(|_| !is_live && is_news) }
    }

    /// Whether a peer is live, as far as this node knows.
    pub(crate) fn is_live(&self, id: &PeerId, address: SocketAddr) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.address == address && self.is_peer_live(peer))
    }

    /// The last heartbeat that a peer itself has told.
    pub(crate) fn heartbeat(&self, id: &PeerId, address: SocketAddr) -> Option<u64> {
        self.peers.get(id).filter(|peer| peer.address == address).map(|peer| peer.heartbeat)
    }

    fn is_peer_live(&self, peer: &Peer) -> bool {
        peer.is_live(self.now, self.given_up())
    }

    fn given_up(&self) -> Duration {
        GIVEN_UP.max(self.round * GIVEN_UP_ROUNDS)
    }
}

impl Peer {
    fn is_heard(&mut self, now: Duration) {
        self.last = now;
        self.vouchers.clear();
    }

    fn is_live(&self, now: Duration, given_up: Duration) -> bool {
        let vouched = || self.vouchers.values().filter(|(_, at)| at.is_some_and(|at| now - at < given_up)).count();
        now - self.last < given_up || vouched() >= VOUCHERS
    }

    /// `voucher` reports this heartbeat. The first one that it reports may be old; later ones are not.
    fn is_vouched(&mut self, voucher: &Arc<str>, heartbeat: u64, now: Duration) {
        if let Some((vouched, at)) = self.vouchers.get_mut(voucher) {
            if heartbeat > *vouched {
                (*vouched, *at) = (heartbeat, Some(now));
            }
        } else if self.vouchers.len() < MAX_VOUCHERS {
            self.vouchers.insert(voucher.clone(), (heartbeat, None));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(200);
    const SECOND: Duration = Duration::from_secs(1);

    fn id(name: &str, incarnation: u64) -> PeerId {
        PeerId { name: name.into(), incarnation }
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn known(name: &str, heartbeat: u64) -> Known {
        Known { id: id(name, 1), address: at(9), heartbeat, gc: 0, version: 0 }
    }

    fn heard() -> Heard {
        Heard::new(id("own", 1), ROUND)
    }

    /// A peer tells its heartbeat and the nodes that it knows. Returns the heartbeat that chitchat is given.
    fn speak(heard: &mut Heard, name: &str, heartbeat: u64, others: &[Known]) -> u64 {
        let shown = heard.hear(&id(name, 1), at(9), heartbeat).expect("there is a place");
        for other in others {
            heard.heed(&id(name, 1), other);
        }
        shown
    }

    fn names(heard: &Heard) -> String {
        let live = heard.peers.keys().filter(|id| heard.is_live(id, at(9)));
        live.map(PeerId::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn who_was_not_heard_itself_is_where_to_look() {
        let mut heard = heard();
        speak(&mut heard, "a", 1, &[known("ghost", 1)]);
        assert_eq!(names(&heard), "a@1");
        let hint = Heed { shown: None, hint: Some(at(9)) };
        assert_eq!(heard.heed(&id("a", 1), &known("ghost", 2)), hint);
        assert_eq!(heard.heed(&id("b", 1), &known("own", 2)), Heed::default());
        assert_eq!(heard.hear(&id("a", 1), at(8), 2), Err(InvalidMessage::NotItself));
    }

    #[test]
    fn silence_is_measured_by_frames_of_any_kind() {
        let mut heard = heard();
        speak(&mut heard, "a", 1, &[]);
        speak(&mut heard, "b", 1, &[]);
        for _ in 0..6 {
            heard.pass(SECOND);
            heard.look([(&id("a", 1), Duration::ZERO)].into_iter());
        }
        assert_eq!(names(&heard), "a@1");
        let looked_for = heard.heed(&id("a", 1), &known("b", 2));
        assert_eq!(looked_for, Heed { shown: Some(1), hint: Some(at(9)) });
        heard.pass(FORGOTTEN * 2);
        assert_eq!((heard.peers.len(), heard.bytes), (0, 0));
    }

    #[test]
    fn a_fleet_whose_peers_speak_once_a_second_is_calm_until_one_is_missed() {
        let (mut heard, peer) = (heard(), id("a", 1));
        speak(&mut heard, "a", 1, &[]);
        // Each look comes almost a second after the peer's last sign of life, and right before the next one.
        let mut look_after = |passed: Duration, ago: Duration| {
            heard.pass(passed);
            heard.look([(&peer, ago)].into_iter());
            heard.is_all_calm()
        };
        let looks: Vec<bool> = (0..20).map(|_| look_after(SECOND, SECOND * 9 / 10)).collect();
        assert_eq!(looks, [vec![false; 9], vec![true; 11]].concat());
        assert!(look_after(SECOND / 2, SECOND * 14 / 10) && !look_after(SECOND, SECOND * 24 / 10));
    }

    #[test]
    fn one_alone_vouches_for_nobody_and_two_do() {
        let mut heard = heard();
        for name in ["a", "b", "evil", "gone"] {
            speak(&mut heard, name, 1, &[]);
        }
        let run = |heard: &mut Heard, vouching: &[&str]| {
            for beat in 2..12 {
                heard.pass(SECOND);
                for name in ["a", "b", "evil"] {
                    let vouched = if vouching.contains(&name) { vec![known("gone", beat)] } else { Vec::new() };
                    speak(heard, name, beat, &vouched);
                }
            }
        };
        run(&mut heard, &["a", "b"]);
        assert_eq!(names(&heard), "a@1 b@1 evil@1 gone@1");
        run(&mut heard, &["evil"]);
        assert_eq!(names(&heard), "a@1 b@1 evil@1");
    }

    #[test]
    fn a_heartbeat_that_another_tells_is_one_sign_of_life_in_a_round() {
        let mut heard = heard();
        assert_eq!(speak(&mut heard, "a", 10, &[]), 10);
        let huge = known("a", u64::MAX);
        speak(&mut heard, "evil", 1, &[]);
        assert_eq!(heard.heed(&id("evil", 1), &huge).shown, Some(10), "it was heard in this round");
        heard.pass(ROUND);
        for _ in 0..100 {
            assert_eq!(heard.heed(&id("evil", 1), &huge).shown, Some(11));
        }
        assert_eq!(heard.heartbeat(&id("a", 1), at(9)), Some(10), "nobody else is told of that");
        assert_eq!(speak(&mut heard, "a", 11, &[]), 12, "what it says itself is always news");
        assert_eq!(speak(&mut heard, "a", 50, &[]), 50);
        assert_eq!(heard.heed(&id("b", 1), &known("a", 50)).shown, Some(50), "that is none");
        heard.pass(SECOND * 6);
        assert_eq!(heard.heed(&id("evil", 1), &huge).shown, Some(50), "one that is not heard gives no sign of life");
    }

    #[test]
    fn a_later_life_hides_the_earlier_ones_while_it_lives() {
        let mut heard = heard();
        for (incarnation, taken) in [(2, Ok(1)), (1, Err(InvalidMessage::NoPlace)), (3, Ok(1)), (2, Ok(1))] {
            assert_eq!(heard.hear(&id("a", incarnation), at(9), 1), taken, "{incarnation}");
        }
        assert_eq!(heard.heed(&id("b", 1), &known("a", 9)), Heed::default(), "nobody looks for the first");
        heard.pass(GIVEN_UP);
        assert_eq!(heard.hear(&id("a", 1), at(9), 1), Ok(1), "a clock that was set back keeps nobody out");
    }

    #[test]
    fn lives_and_names_have_bounds() {
        let mut heard = heard();
        let begin = |heard: &mut Heard, from: u64| {
            (from..from + 100).filter(|life| heard.hear(&id("a", *life), at(9), 1).is_ok()).count()
        };
        assert_eq!(begin(&mut heard, 1), MAX_LIVES);
        heard.pass(NEXT_LIFE);
        assert_eq!(begin(&mut heard, 1_000), 1);
        let names = (0..9_000).filter(|name| heard.hear(&id(&format!("n{name}"), 1), at(9), 1).is_ok()).count();
        assert!(names + MAX_LIVES < MAX_PEERS && heard.bytes <= MAX_BYTES, "{names} names, {} bytes", heard.bytes);
        assert_eq!(heard.hear(&id("own", 2), at(9), 1), Err(InvalidMessage::NoPlace), "nobody takes this node's name");
    }
}
