//! Frames between peers: one per stream, with the channel in the first byte.
//!
//! ```text
//! stream = channel (1 byte) payload (to the end of the stream, at most 65,535 bytes)
//! hello  = 1 (format) incarnation (8, little-endian) name-length (1) name address-length (1) address [abilities (1)] [more]
//! ```
//!
//! Both sides of a connection begin with a hello. A later version may add to its end, which is skipped. Abilities are bits, of
//! which 1 says that the node answers looks (`look.rs`); builds before those say nothing of abilities.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::peer::PeerId;

/// Largest payload of a frame, in bytes.
pub const MAX_FRAME: usize = (64 << 10) - 1;

/// Largest hello, in bytes.
pub(crate) const MAX_HELLO: usize = 512;

/// Longest name of a node, in bytes.
pub(crate) const MAX_NAME: usize = 128;

const FORMAT: u8 = 1;

/// The ability to answer looks.
const SHOWS: u8 = 1;

/// The subject of a frame: its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Channel {
    /// Identifies the sender.
    Hello = 0,
    /// Membership.
    Gossip = 1,
    /// Usage of keys.
    Usage = 2,
    /// What is asked of a peer, and its answers: a stream of its own, see `ask_stream.rs`.
    Ask = 3,
    /// What a peer does now: a stream for each look, see `look.rs`.
    Look = 4,
}

impl Channel {
    /// Splits a frame into its channel and payload; `None` when it is empty, or of a channel that only later versions
    /// know.
    pub(crate) fn split(frame: &Bytes) -> Option<(Self, Bytes)> {
        let channel = match frame.first()? {
            0 => Self::Hello,
            1 => Self::Gossip,
            2 => Self::Usage,
            3 => Self::Ask,
            4 => Self::Look,
            _ => return None,
        };
        Some((channel, frame.slice(1..)))
    }

    /// Makes a frame of this channel; `None` when the payload is too large.
    pub(crate) fn frame(self, payload: &[u8]) -> Option<Bytes> {
        if payload.len() > MAX_FRAME {
            return None;
        }
        let mut frame = BytesMut::with_capacity(1 + payload.len());
        frame.put_u8(self as u8);
        frame.put_slice(payload);
        Some(frame.freeze())
    }
}

/// The first frame of a connection: the sender's identity and address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) id: PeerId,
    pub(crate) address: SocketAddr,
    /// It answers looks.
    pub(crate) shows: bool,
}

impl Hello {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![Channel::Hello as u8, FORMAT];
        bytes.extend(self.id.incarnation.to_le_bytes());
        for text in [&*self.id.name, &self.address.to_string()] {
            let text = &text.as_bytes()[..text.len().min(MAX_NAME)];
            bytes.push(text.len() as u8);
            bytes.extend(text);
        }
        bytes.push(if self.shows { SHOWS } else { 0 });
        bytes
    }

    /// Parses a hello; `None` when it is invalid.
    pub(crate) fn decode(frame: &[u8]) -> Option<Self> {
        let rest = frame.strip_prefix(&[Channel::Hello as u8, FORMAT])?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (name, rest) = text(rest)?;
        let (address, more) = text(rest)?;
        let shows = more.first().is_some_and(|abilities| abilities & SHOWS != 0);
        let id = PeerId { name: Arc::from(name), incarnation: u64::from_le_bytes(*incarnation) };
        let address: SocketAddr = address.parse().ok()?;
        (is_name(name) && is_reachable(address)).then_some(Self { id, address, shows })
    }
}

/// Parses a hello, and writes it again. For `fuzz/`, which has no connection.
#[doc(hidden)]
#[must_use]
pub fn hello_again(frame: &[u8]) -> Option<Vec<u8>> {
    Hello::decode(frame).map(|hello| hello.encode())
}

/// Whether `name` is a valid node name.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic())
}

/// Whether a single node can be reached at this address.
pub(crate) fn is_reachable(address: SocketAddr) -> bool {
    address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
}

fn text(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*len))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        let id = PeerId { name: "app-17".into(), incarnation: 0x0102_0304 };
        Hello { id, address: "10.0.0.1:7946".parse().expect("an address"), shows: true }
    }

    /// These tests are kept forever: older and newer nodes read these bytes.
    const GOLDEN: &[u8] = b"\x00\x01\x04\x03\x02\x01\0\0\0\0\x06app-17\x0d10.0.0.1:7946\x01";

    /// What the builds before looks say, and how they read the bytes above: up to here.
    const BEFORE_LOOKS: &[u8] = GOLDEN.split_at(GOLDEN.len() - 1).0;

    #[test]
    fn a_hello_has_these_bytes() {
        assert_eq!(hello().encode(), GOLDEN);
        assert_eq!(Hello::decode(GOLDEN), Some(hello()));
    }

    #[test]
    fn a_hello_of_before_looks_is_of_a_node_that_answers_none() {
        assert_eq!(Hello::decode(BEFORE_LOOKS), Some(Hello { shows: false, ..hello() }));
        let unable = Hello { shows: false, ..hello() }.encode();
        assert_eq!((&unable[..BEFORE_LOOKS.len()], unable.last()), (BEFORE_LOOKS, Some(&0)));
        let other = [BEFORE_LOOKS, &[0xfe]].concat();
        assert_eq!(Hello::decode(&other).map(|hello| hello.shows), Some(false), "abilities that are not known yet");
    }

    #[test]
    fn what_a_later_version_adds_is_skipped() {
        assert_eq!(Hello::decode(&[GOLDEN, b"more"].concat()), Some(hello()));
    }

    #[test]
    fn a_damaged_hello_is_none() {
        for len in 0..BEFORE_LOOKS.len() {
            assert_eq!(Hello::decode(&GOLDEN[..len]), None, "{len} bytes");
        }
        let nowhere = Hello { address: "0.0.0.0:1".parse().expect("an address"), ..hello() };
        assert_eq!(Hello::decode(&nowhere.encode()), None);
        let unnamed = Hello { id: PeerId { name: "a b".into(), incarnation: 1 }, ..hello() };
        assert_eq!(Hello::decode(&unnamed.encode()), None);
    }

    #[test]
    fn a_frame_is_its_channel_and_its_payload() {
        let frame = Channel::Usage.frame(b"abc").expect("it is small");
        assert_eq!(Channel::split(&frame), Some((Channel::Usage, Bytes::from_static(b"abc"))));
        assert_eq!(Channel::split(&Bytes::new()), None);
        assert_eq!(Channel::split(&Bytes::from_static(&[9, 1])), None);
        assert_eq!(Channel::Usage.frame(&vec![0; MAX_FRAME + 1]), None);
    }
}
