//! Gossip messages about membership, as bytes. They are parsed here before chitchat sees them, and written again with
//! only the parts that may be believed.
//!
//! The format is that of chitchat 0.11.2 (`message.rs`, `digest.rs`, `delta.rs`, `serialize.rs`), whose version is
//! pinned for this reason. A digest is parsed completely; of a delta only the facts of its sender are, and those of
//! other nodes are skipped. Whatever the bytes are, parsing takes at most 1 MiB and never panics.
//!
//! ```text
//! message = magic (2) version (1) kind (1) body       syn = digest fleet      syn-ack = digest delta
//! digest  = count (2) node*                           ack = delta             other-fleet =
//! node    = id heartbeat (8) gc (8) version (8)       id  = name incarnation (8) address
//! address = 4 ip (4) port (2) | 6 ip (16) port (2)    text = length (2) bytes
//! delta   = (1 zstd | 2 plain: length (2) bytes)* 0, which together hold
//!           (0 id gc (8) from (8) | 1 key value version (8) status (1) | 2 version (8))*
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::frame::{is_name, is_reachable};
use super::peer::PeerId;

const HEAD: [u8; 3] = [0x53, 0xb0, 0];
/// Most blocks of a delta. Honest nodes fill a block with 16 KiB before they begin another.
const MAX_BLOCKS: usize = 32;
/// Longest unpacked block; honest nodes begin another one there.
const MAX_BLOCK: usize = 16 << 10;
/// The keys of a node's facts. Others are skipped, so that no node can fill memory with them.
const KEYS: [&str; 4] = ["state", "version", "address", "owner"];
/// Most facts in a message, and the longest fact.
const MAX_FACTS: usize = 64;
const MAX_FACT: usize = 256;
/// A heartbeat that no honest node reaches: one per microsecond for eight years.
const MAX_HEARTBEAT: u64 = 1 << 48;

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidMessage {
    /// It cannot be parsed.
    Malformed,
    /// Its sender is not listed in it under its own name, incarnation and address.
    NotItself,
    /// It would unpack to more than any fleet needs, or has numbers that no honest node reaches.
    TooMuch,
    /// Its sender cannot be accepted: it has this node's name, a later incarnation of it is live, or there are too
    /// many.
    NoPlace,
}

/// A message, as far as it is parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Opens a round with the nodes that the sender knows.
    Syn {
        fleet: String,
        digest: Vec<Known>,
    },
    /// Answers a `Syn`, with the sender's facts if they are new.
    SynAck {
        digest: Vec<Known>,
        facts: Option<Facts>,
    },
    /// Ends the round, with the sender's facts if they are new.
    Ack {
        facts: Option<Facts>,
    },
    OtherFleet,
}

/// One node, as another node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: PeerId,
    pub(crate) address: SocketAddr,
    /// Counts how often the node has spoken; a higher number is a later sign of life.
    pub(crate) heartbeat: u64,
    /// The version up to which it has forgotten facts, and the version of the last fact that is known.
    pub(crate) gc: u64,
    pub(crate) version: u64,
}

/// A node's facts about itself, from a known version on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    address: SocketAddr,
    gc: u64,
    from: u64,
    facts: Vec<Fact>,
    /// The version that is known after them.
    last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fact {
    key: String,
    value: String,
    version: u64,
    status: u8,
}

impl Known {
    /// Bytes of a node in a digest.
    pub(crate) fn len(id: &PeerId, address: SocketAddr) -> usize {
        2 + id.name.len() + 8 + if address.is_ipv4() { 7 } else { 19 } + 24
    }
}

impl Message {
    /// Parses a message of `from`.
    ///
    /// # Errors
    /// Why the message is refused.
    pub(crate) fn decode(bytes: &[u8], from: &PeerId) -> Result<Self, InvalidMessage> {
        let mut rest = Rest(bytes.strip_prefix(&HEAD).ok_or(InvalidMessage::Malformed)?);
        match rest.byte()? {
            0 => {
                let digest = rest.digest(from)?;
                Ok(Self::Syn { fleet: rest.text()?.to_owned(), digest })
            }
            1 => Ok(Self::SynAck { digest: rest.digest(from)?, facts: rest.delta(from)? }),
            2 => Ok(Self::Ack { facts: rest.delta(from)? }),
            3 => Ok(Self::OtherFleet),
            _ => Err(InvalidMessage::Malformed),
        }
    }

    /// The bytes of the message; its facts are those of `from`.
    pub(crate) fn encode(&self, from: &PeerId) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        match self {
            Self::Syn { fleet, digest } => {
                bytes.push(0);
                put_digest(&mut bytes, digest);
                put_text(&mut bytes, fleet);
            }
            Self::SynAck { digest, facts } => {
                bytes.push(1);
                put_digest(&mut bytes, digest);
                put_delta(&mut bytes, from, facts.as_ref());
            }
            Self::Ack { facts } => {
                bytes.push(2);
                put_delta(&mut bytes, from, facts.as_ref());
            }
            Self::OtherFleet => bytes.push(3),
        }
        bytes
    }
}

/// Whether a message opens an exchange.
pub(crate) fn is_syn(message: &[u8]) -> bool {
    message.starts_with(&HEAD) && message.get(HEAD.len()) == Some(&0)
}

/// Whether a message ends an exchange and has no facts.
pub(crate) fn is_empty_ack(message: &[u8]) -> bool {
    message.strip_prefix(&HEAD) == Some(&[2, 0])
}

/// Parses a message of the node with this name and incarnation, and writes it again. For `fuzz/`, which has no
/// connection.
#[doc(hidden)]
#[must_use]
pub fn gossip_again(frame: &[u8], from: &PeerId) -> Option<Vec<u8>> {
    Message::decode(frame, from).ok().map(|message| message.encode(from))
}

/// Replaces heartbeats in the digest of a message where `heartbeat` knows another one.
pub(crate) fn correct(message: &mut [u8], heartbeat: impl Fn(&PeerId, SocketAddr) -> Option<u64>) {
    let _ = Rest(message).heartbeats(&heartbeat).map(|corrections| {
        for (at, beats) in corrections {
            message[at..at + 8].copy_from_slice(&beats.to_le_bytes());
        }
    });
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(u16::try_from(text.len()).expect("it was read behind a length of two bytes").to_le_bytes());
    bytes.extend(text.as_bytes());
}

fn put_id(bytes: &mut Vec<u8>, id: &PeerId, address: SocketAddr) {
    put_text(bytes, &id.name);
    bytes.extend(id.incarnation.to_le_bytes());
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes.push(4);
            bytes.extend(ip.octets());
        }
        IpAddr::V6(ip) => {
            bytes.push(6);
            bytes.extend(ip.octets());
        }
    }
    bytes.extend(address.port().to_le_bytes());
}

fn put_digest(bytes: &mut Vec<u8>, digest: &[Known]) {
    bytes.extend(u16::try_from(digest.len()).expect("it was read behind a count of two bytes").to_le_bytes());
    for known in digest {
        put_id(bytes, &known.id, known.address);
        for number in [known.heartbeat, known.gc, known.version] {
            bytes.extend(number.to_le_bytes());
        }
    }
}

fn put_delta(bytes: &mut Vec<u8>, of: &PeerId, facts: Option<&Facts>) {
    if let Some(state) = facts {
        let mut block = vec![0];
        put_id(&mut block, of, state.address);
        block.extend([state.gc, state.from].map(u64::to_le_bytes).concat());
        for fact in &state.facts {
            block.push(1);
            put_text(&mut block, &fact.key);
            put_text(&mut block, &fact.value);
            block.extend(fact.version.to_le_bytes());
            block.push(fact.status);
        }
        // Skipped facts raise the known version, too.
        if state.facts.last().map_or(0, |fact| fact.version) < state.last {
            block.push(2);
            block.extend(state.last.to_le_bytes());
        }
        bytes.push(2);
        bytes.extend(u16::try_from(block.len()).expect("64 facts of 256 bytes are shorter").to_le_bytes());
        bytes.extend(block);
    }
    bytes.push(0);
}

/// The bytes that are still to be parsed.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], InvalidMessage> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(InvalidMessage::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], InvalidMessage> {
        self.take(N)?.try_into().map_err(|_| InvalidMessage::Malformed)
    }

    fn byte(&mut self) -> Result<u8, InvalidMessage> {
        self.array().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u16, InvalidMessage> {
        self.array().map(u16::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, InvalidMessage> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a str, InvalidMessage> {
        let len = self.short()?;
        std::str::from_utf8(self.take(usize::from(len))?).map_err(|_| InvalidMessage::Malformed)
    }

    fn id(&mut self) -> Result<(PeerId, SocketAddr), InvalidMessage> {
        let (name, incarnation) = (self.text()?, self.long()?);
        let ip: IpAddr = match self.byte()? {
            4 => Ipv4Addr::from(self.array::<4>()?).into(),
            6 => Ipv6Addr::from(self.array::<16>()?).into(),
            _ => return Err(InvalidMessage::Malformed),
        };
        Ok((PeerId { name: Arc::from(name), incarnation }, SocketAddr::new(ip, self.short()?)))
    }

    /// The nodes that the sender knows, without entries that cannot be nodes.
    fn digest(&mut self, from: &PeerId) -> Result<Vec<Known>, InvalidMessage> {
        let mut digest = Vec::new();
        for _ in 0..self.short()? {
            let (id, address) = self.id()?;
            let (heartbeat, gc, version) = (self.long()?, self.long()?, self.long()?);
            if id == *from && heartbeat >= MAX_HEARTBEAT {
                return Err(InvalidMessage::TooMuch);
            }
            if is_name(&id.name) && is_reachable(address) {
                digest.push(Known { id, address, heartbeat, gc, version });
            }
        }
        Ok(digest)
    }

    /// The facts of `from` in a delta.
    fn delta(&mut self, from: &PeerId) -> Result<Option<Facts>, InvalidMessage> {
        let mut unpacked = Vec::new();
        for _ in 0..=MAX_BLOCKS {
            match self.byte()? {
                0 => return Rest(&unpacked).facts(from),
                1 => {
                    let len = self.short()?;
                    unpacked.extend(unpack(self.take(usize::from(len))?)?);
                }
                2 => {
                    let len = self.short()?;
                    unpacked.extend(self.take(usize::from(len))?);
                }
                _ => return Err(InvalidMessage::Malformed),
            }
        }
        Err(InvalidMessage::TooMuch)
    }

    fn facts(&mut self, from: &PeerId) -> Result<Option<Facts>, InvalidMessage> {
        // The node whose facts are being parsed, if any; and the sender's facts.
        let (mut of, mut own): (Option<Facts>, Option<Facts>) = (None, None);
        let mut is_own = false;
        while !self.0.is_empty() {
            match self.byte()? {
                0 => {
                    let (id, address) = self.id()?;
                    let (gc, known) = (self.long()?, self.long()?);
                    let before = of.replace(Facts { address, gc, from: known, facts: Vec::new(), last: 0 });
                    own = own.or(before.filter(|_| is_own));
                    is_own = id == *from;
                    if is_own && own.is_some() {
                        return Err(InvalidMessage::Malformed);
                    }
                }
                1 => {
                    let (key, value, version, status) = (self.text()?, self.text()?, self.long()?, self.byte()?);
                    let of = of.as_mut().ok_or(InvalidMessage::Malformed)?;
                    of.rises(version)?;
                    if is_own {
                        of.push(Fact { key: key.into(), value: value.into(), version, status })?;
                    }
                }
                2 => {
                    let last = self.long()?;
                    of.as_mut().ok_or(InvalidMessage::Malformed)?.rises(last)?;
                }
                _ => return Err(InvalidMessage::Malformed),
            }
        }
        Ok(own.or(of.filter(|_| is_own)))
    }

    /// Positions of heartbeats in a digest that must be replaced, from the start of the message.
    fn heartbeats(
        &mut self,
        heartbeat: &impl Fn(&PeerId, SocketAddr) -> Option<u64>,
    ) -> Result<Vec<(usize, u64)>, InvalidMessage> {
        let whole = self.0.len();
        let mut corrections = Vec::new();
        self.take(HEAD.len())?;
        if self.byte()? > 1 {
            return Ok(corrections);
        }
        for _ in 0..self.short()? {
            let (id, address) = self.id()?;
            corrections.extend(heartbeat(&id, address).map(|beats| (whole - self.0.len(), beats)));
            self.take(8 + 8 + 8)?;
        }
        Ok(corrections)
    }
}

impl Facts {
    /// The address of the node that states the facts.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Checks that the versions of a node's facts only grow, and do not exceed the last one.
    fn rises(&mut self, version: u64) -> Result<(), InvalidMessage> {
        if version <= self.last {
            return Err(InvalidMessage::Malformed);
        }
        self.last = version;
        Ok(())
    }

    fn push(&mut self, fact: Fact) -> Result<(), InvalidMessage> {
        if self.facts.len() == MAX_FACTS || fact.value.len() > MAX_FACT {
            return Err(InvalidMessage::TooMuch);
        }
        if KEYS.contains(&&*fact.key) {
            self.facts.push(fact);
        }
        Ok(())
    }
}

fn unpack(block: &[u8]) -> Result<Vec<u8>, InvalidMessage> {
    // A block that is longer than any honest one does not fit; nothing beyond that is unpacked.
    zstd::bulk::decompress(block, MAX_BLOCK).map_err(|_| InvalidMessage::TooMuch)
}

#[cfg(test)]
mod tests {
    use super::super::frame::MAX_NAME;
    use super::*;

    fn node(name: &str) -> PeerId {
        PeerId { name: name.into(), incarnation: 7 }
    }

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn known(name: &str, heartbeat: u64) -> Known {
        Known { id: node(name), address: at(1), heartbeat, gc: 0, version: 3 }
    }

    fn facts(versions: &[u64]) -> Option<Facts> {
        let fact = |version: &u64| Fact { key: "state".into(), value: "up".into(), version: *version, status: 0 };
        let last = versions.last().copied().unwrap_or_default();
        Some(Facts { address: at(1), gc: 0, from: 0, facts: versions.iter().map(fact).collect(), last })
    }

    fn messages() -> [Message; 4] {
        let six = "[::1]:9".parse().expect("an address");
        let digest = vec![known("a", 5), Known { address: six, ..known("b", 6) }];
        [
            Message::Syn { fleet: "prod".into(), digest: digest.clone() },
            Message::SynAck { digest, facts: facts(&[1, 2]) },
            Message::Ack { facts: None },
            Message::OtherFleet,
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        for message in messages() {
            assert_eq!(Message::decode(&message.encode(&node("a")), &node("a")), Ok(message));
        }
    }

    #[test]
    fn a_message_has_these_bytes() {
        let syn = Message::Syn { fleet: "f".into(), digest: vec![known("a", 5)] };
        let golden = b"\x53\xb0\0\0\x01\0\x01\0a\x07\0\0\0\0\0\0\0\x04\x7f\0\0\x01\x01\0\
                       \x05\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x01\0f";
        assert_eq!(syn.encode(&node("a")), golden);
        assert_eq!(Known::len(&node("a"), at(1)) + HEAD.len() + 1 + 2 + 2 + 1, golden.len());
    }

    #[test]
    fn of_a_delta_its_senders_own_facts_are_read() {
        let message = Message::Ack { facts: facts(&[1, 4]) }.encode(&node("a"));
        assert_eq!(Message::decode(&message, &node("a")), Ok(Message::Ack { facts: facts(&[1, 4]) }));
        for other in [node("b"), PeerId { incarnation: 8, ..node("a") }] {
            assert_eq!(Message::decode(&message, &other), Ok(Message::Ack { facts: None }));
        }
    }

    #[test]
    fn versions_that_fall_are_malformed() {
        for versions in [[2, 2], [2, 1], [1, 0]] {
            let message = Message::Ack { facts: facts(&versions) }.encode(&node("a"));
            assert_eq!(Message::decode(&message, &node("a")), Err(InvalidMessage::Malformed), "{versions:?}");
        }
        let last = |last| Message::Ack { facts: facts(&[3]).map(|facts| Facts { last, ..facts }) };
        let mut message = last(4).encode(&node("a"));
        assert_eq!(Message::decode(&message, &node("a")), Ok(last(4)));
        let at = message.len() - 9;
        message[at] = 2;
        assert_eq!(Message::decode(&message, &node("a")), Err(InvalidMessage::Malformed), "a last one below the facts");
    }

    #[test]
    fn what_no_node_says_of_itself_is_passed_over_and_its_version_known() {
        let mut state = facts(&[1, 2]).expect("some");
        state.facts[1].key = "filling".into();
        let message = Message::Ack { facts: Some(state.clone()) }.encode(&node("a"));
        state.facts.truncate(1);
        assert_eq!(Message::decode(&message, &node("a")), Ok(Message::Ack { facts: Some(state.clone()) }));
        state.facts[0].value = "x".repeat(MAX_FACT + 1);
        let message = Message::Ack { facts: Some(state) }.encode(&node("a"));
        assert_eq!(Message::decode(&message, &node("a")), Err(InvalidMessage::TooMuch));
    }

    #[test]
    fn a_node_that_says_no_fact_is_read_again_as_it_was_written() {
        let message = Message::Ack { facts: facts(&[]) };
        assert_eq!(Message::decode(&message.encode(&node("a")), &node("a")), Ok(message));
    }

    #[test]
    fn who_can_be_nobody_is_left_out() {
        let nobodies = [
            Known { id: node("b c"), ..known("", 1) },
            known("", 1),
            known(&"b".repeat(MAX_NAME + 1), 1),
            Known { address: at(0), ..known("b", 1) },
        ];
        let digest = nobodies.into_iter().chain([known("a", 1)]).collect();
        let message = Message::Syn { fleet: "f".into(), digest }.encode(&node("a"));
        let taken = Message::Syn { fleet: "f".into(), digest: vec![known("a", 1)] };
        assert_eq!(Message::decode(&message, &node("a")), Ok(taken));
    }

    #[test]
    fn a_heartbeat_that_would_never_be_exceeded_is_refused() {
        let message = Message::Syn { fleet: "f".into(), digest: vec![known("a", u64::MAX)] }.encode(&node("a"));
        assert_eq!(Message::decode(&message, &node("a")), Err(InvalidMessage::TooMuch));
        assert!(Message::decode(&message, &node("b")).is_ok(), "that is a lie about another, which counts for nothing");
    }

    #[test]
    fn heartbeats_are_corrected_where_they_stand() {
        let message_with = |beats: [u64; 2]| Message::SynAck {
            digest: vec![known("a", beats[0]), known("b", beats[1])],
            facts: facts(&[1]),
        };
        let mut message = message_with([5, 6]).encode(&node("a"));
        correct(&mut message, |id, _| (*id == node("b")).then_some(4));
        assert_eq!(message, message_with([5, 4]).encode(&node("a")));
        for len in 0..message.len() {
            correct(&mut message[..len], |_, _| Some(1));
        }
    }

    #[test]
    fn a_delta_of_too_many_blocks_or_of_a_bomb_is_refused() {
        let delta = |block: &[u8], blocks: usize| [&HEAD, [2].as_slice(), &block.repeat(blocks), &[0]].concat();
        let empty = [2, 0, 0];
        assert_eq!(Message::decode(&delta(&empty, MAX_BLOCKS), &node("a")), Ok(Message::Ack { facts: None }));
        assert_eq!(Message::decode(&delta(&empty, MAX_BLOCKS + 1), &node("a")), Err(InvalidMessage::TooMuch));
        // A block of 65,535 zeros.
        let bomb = [1, 11, 0, 0x28, 0xb5, 0x2f, 0xfd, 0x60, 0xff, 0xfe, 0xfb, 0xff, 0x07, 0];
        assert_eq!(Message::decode(&delta(&bomb, 1), &node("a")), Err(InvalidMessage::TooMuch));
    }

    #[test]
    fn what_is_cut_short_is_malformed() {
        for message in messages() {
            let whole = message.encode(&node("a"));
            for len in 0..whole.len() {
                assert_eq!(Message::decode(&whole[..len], &node("a")), Err(InvalidMessage::Malformed), "{len} bytes");
            }
        }
    }
}
