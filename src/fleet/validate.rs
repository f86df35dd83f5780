//! Filters gossip messages before chitchat sees them: of the sender everything passes, of other nodes only what can
//! do no harm.
//!
//! chitchat believes every digest and delta about every node, so a malicious member could make nodes appear or
//! disappear. Therefore messages are written again before chitchat gets them. In a digest stay the members that this
//! node has heard from directly, with heartbeats that it can vouch for; the others become hints of addresses to dial.
//! In a delta stay the sender's own facts. In messages that chitchat sends, heartbeats are replaced by those that
//! each node itself has told this one. Knows no IO.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::heard::Heard;
use super::hints::Hints;
use super::message::{InvalidMessage, Known, Message, correct};
use super::peer::{GossipMessage, PeerId};

/// A round that took longer than so many rounds counts as this many: beyond that the process did not run, and the
/// silence of peers in that time means nothing.
const PAUSE: u32 = 5;

/// Locks the inspector. No code panics while it changes what the lock protects.
pub(crate) fn inspecting(inspector: &Mutex<Inspector>) -> MutexGuard<'_, Inspector> {
    inspector.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Filters all messages that one node receives.
#[derive(Debug)]
pub(crate) struct Inspector {
    fleet: String,
    own: PeerId,
    address: SocketAddr,
    heard: Heard,
    hints: Hints,
    /// The latest incarnation of another node that uses this node's name.
    rival: u64,
    round: Duration,
    /// When time last passed for the peers that were heard.
    passed: Option<Instant>,
    /// Wakes gossip that is held back because the fleet is calm.
    stirred: Arc<Notify>,
    /// This node leaves.
    leaves: bool,
}

/// A filtered message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// The message for chitchat.
    pub(crate) message: Vec<u8>,
    /// Addresses to dial because of it.
    pub(crate) hints: Vec<SocketAddr>,
}

impl Inspector {
    /// An inspector for the node `own` at `address`, whose gossip has a round each `round`.
    pub(crate) fn new(fleet: &str, own: &PeerId, address: SocketAddr, round: Duration) -> Self {
        let (heard, hints) = (Heard::new(own.clone(), round), Hints::new());
        let (fleet, own, stirred) = (fleet.to_owned(), own.clone(), Arc::default());
        Self { fleet, own, address, heard, hints, rival: 0, round, passed: None, stirred, leaves: false }
    }

    /// Lets time pass for the peers that were heard, up to `now`, but never more than [`PAUSE`] rounds.
    pub(crate) fn pass(&mut self, now: Instant) {
        let passed = self.passed.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.passed = Some(now);
        self.heard.pass(passed.min(self.round * PAUSE));
    }

    /// Something has changed that gossip has to tell, so it is not held back for a while.
    pub(crate) fn stir(&mut self) {
        self.heard.stir();
        self.stirred.notify_one();
    }

    /// This node leaves, so exchanges are opened even with peers that it hears.
    pub(crate) fn leave(&mut self) {
        self.leaves = true;
        self.stir();
    }

    /// Whether nothing is lost if no exchange is opened with the node at `address` now.
    pub(crate) fn need_not_hear(&self, address: SocketAddr) -> bool {
        self.heard.hears(address) && !self.leaves
    }

    /// Is notified when gossip must not be held back any longer.
    pub(crate) fn stirred(&self) -> Arc<Notify> {
        self.stirred.clone()
    }

    /// The peers that were heard directly.
    pub(crate) fn heard(&mut self) -> &mut Heard {
        &mut self.heard
    }

    /// Parses a message, and writes it again for chitchat.
    ///
    /// # Errors
    /// No part of the message may be believed.
    pub(crate) fn inspect(&mut self, gossip: &GossipMessage) -> Result<Inspected, InvalidMessage> {
        let from = &gossip.from;
        self.look_at_rival(gossip);
        let (mut message, mut hints) = (Message::decode(&gossip.frame, from)?, Vec::new());
        match &mut message {
            // Members of another fleet are irrelevant here; chitchat answers such a message.
            Message::Syn { fleet, digest } if *fleet != self.fleet => digest.clear(),
            Message::Syn { digest, .. } | Message::SynAck { digest, .. } => hints = self.sift(gossip, digest)?,
            Message::Ack { .. } | Message::OtherFleet => self.heard.is_there(from, Duration::ZERO),
        }
        if let Message::SynAck { facts: Some(facts), .. } | Message::Ack { facts: Some(facts) } = &message
            && facts.address() != gossip.reply_to
        {
            return Err(InvalidMessage::NotItself);
        }
        Ok(Inspected { message: message.encode(from), hints })
    }

    /// Filters a digest, and returns the addresses to dial because of the rest.
    fn sift(&mut self, gossip: &GossipMessage, digest: &mut Vec<Known>) -> Result<Vec<SocketAddr>, InvalidMessage> {
        let (from, address) = (&gossip.from, gossip.reply_to);
        let itself = |known: &&Known| known.id == *from && known.address == address;
        let own = digest.iter().find(itself).ok_or(InvalidMessage::NotItself)?;
        let shown = self.heard.hear(from, address, own.heartbeat)?;
        let (now, mut hints) = (self.heard.now(), Vec::new());
        digest.retain_mut(|known| {
            if known.id == *from && known.address == address {
                known.heartbeat = shown;
                return true;
            }
            if known.id == self.own && known.address == self.address {
                return true;
            }
            let heed = self.heard.heed(from, known);
            let hint = heed.hint.filter(|hint| *hint != self.address);
            hints.extend(hint.filter(|hint| self.hints.take(&from.name, *hint, now)));
            known.heartbeat = heed.shown.unwrap_or_default();
            heed.shown.is_some()
        });
        Ok(hints)
    }

    /// Replaces heartbeats in a message of this node by those that other nodes told it themselves.
    pub(crate) fn correct(&self, message: &mut [u8]) {
        correct(message, |id, address| self.heard.heartbeat(id, address));
    }

    fn look_at_rival(&mut self, gossip: &GossipMessage) {
        let from = &gossip.from;
        if from.name == self.own.name && from.incarnation > self.rival.max(self.own.incarnation) {
            self.rival = from.incarnation;
            tracing::warn!(other = %from, address = %gossip.reply_to, "another node has this node's name: give each its own node.name");
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const ROUND: Duration = Duration::from_millis(200);

    fn id(name: &str) -> PeerId {
        PeerId { name: name.into(), incarnation: 1 }
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn known(name: &str, port: u16, heartbeat: u64) -> Known {
        Known { id: id(name), address: at(port), heartbeat, gc: 0, version: 3 }
    }

    fn syn(digest: Vec<Known>) -> Message {
        Message::Syn { fleet: "f".into(), digest }
    }

    /// Filters a digest of the node called `name` at port 1, and returns it with the addresses to dial.
    fn tell(
        inspector: &mut Inspector,
        name: &str,
        digest: Vec<Known>,
    ) -> Result<(Message, Vec<SocketAddr>), InvalidMessage> {
        let frame = Bytes::from(syn(digest).encode(&id(name)));
        let inspected = inspector.inspect(&GossipMessage::new(id(name), at(1), frame))?;
        Ok((Message::decode(&inspected.message, &id(name)).expect("it was written here"), inspected.hints))
    }

    fn inspector() -> Inspector {
        Inspector::new("f", &id("own"), at(7), ROUND)
    }

    #[test]
    fn a_sender_must_appear_under_its_own_name_and_address() {
        let mut inspector = inspector();
        for digest in [vec![known("b", 1, 5)], vec![known("a", 2, 5)], Vec::new()] {
            assert_eq!(tell(&mut inspector, "a", digest), Err(InvalidMessage::NotItself));
        }
        assert_eq!(tell(&mut inspector, "a", vec![known("a", 1, 5)]), Ok((syn(vec![known("a", 1, 5)]), Vec::new())));
    }

    #[test]
    fn of_others_those_stay_who_were_heard_and_the_rest_is_where_to_dial() {
        let mut inspector = inspector();
        tell(&mut inspector, "b", vec![known("b", 1, 9)]).expect("it is itself");
        let digest = vec![
            known("a", 1, 5),
            known("b", 1, u64::MAX),
            known("ghost", 3, 8),
            known("own", 7, 6),
            known("own", 6, 9),
        ];
        let left = vec![known("a", 1, 5), known("b", 1, 9), known("own", 7, 6)];
        assert_eq!(tell(&mut inspector, "a", digest.clone()), Ok((syn(left.clone()), vec![at(3)])));
        assert_eq!(tell(&mut inspector, "a", digest), Ok((syn(left), Vec::new())), "it was dialled a moment ago");
    }

    #[test]
    fn facts_of_another_address_are_nobodys() {
        let message_from = |port: u16| {
            let port = port.to_le_bytes();
            let node = [b"\0\x01\0a\x01\0\0\0\0\0\0\0\x04\x7f\0\0\x01", port.as_slice(), &[0; 16]].concat();
            let block = [node.as_slice(), b"\x02\x03\0\0\0\0\0\0\0"].concat();
            Bytes::from([b"\x53\xb0\0\x02\x02", [block.len() as u8, 0].as_slice(), &block, &[0]].concat())
        };
        let mut inspector = inspector();
        assert!(inspector.inspect(&GossipMessage::new(id("a"), at(1), message_from(1))).is_ok());
        assert_eq!(
            inspector.inspect(&GossipMessage::new(id("a"), at(1), message_from(2))),
            Err(InvalidMessage::NotItself)
        );
    }

    #[test]
    fn this_node_tells_heartbeats_as_their_nodes_told_them() {
        let mut inspector = inspector();
        tell(&mut inspector, "a", vec![known("a", 1, 5)]).expect("it is itself");
        let mut message = syn(vec![known("a", 1, 77), known("own", 7, 6)]).encode(&id("own"));
        inspector.correct(&mut message);
        assert_eq!(message, syn(vec![known("a", 1, 5), known("own", 7, 6)]).encode(&id("own")));
    }
}
