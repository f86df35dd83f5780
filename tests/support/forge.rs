//! Gossip messages as a liar makes them, byte by byte: what `src/fleet/message.rs` lays down, and no
//! manners.

use std::net::{IpAddr, SocketAddr};

/// Who somebody is said to be.
#[derive(Clone, Debug)]
pub struct Said {
    pub name: String,
    pub incarnation: u64,
    pub address: SocketAddr,
}

impl Said {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = text(&self.name);
        bytes.extend(self.incarnation.to_le_bytes());
        match self.address.ip() {
            IpAddr::V4(ip) => {
                bytes.push(4);
                bytes.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                bytes.push(6);
                bytes.extend(ip.octets());
            }
        }
        bytes.extend(self.address.port().to_le_bytes());
        bytes
    }
}

/// A message that opens a round: so many beats of each.
pub fn syn(fleet: &str, beats: &[(Said, u64)]) -> Vec<u8> {
    let mut bytes = message(0);
    bytes.extend(u16::try_from(beats.len()).expect("few").to_le_bytes());
    for (said, beat) in beats {
        bytes.extend(said.bytes());
        for number in [*beat, 0, 0] {
            bytes.extend(number.to_le_bytes());
        }
    }
    bytes.extend(text(fleet));
    bytes
}

/// A message that closes a round: a delta in one block that is not compressed.
pub fn ack(delta: &[Operation<'_>]) -> Vec<u8> {
    let block: Vec<u8> = delta.iter().flat_map(Operation::bytes).collect();
    let mut bytes = message(2);
    bytes.push(2);
    bytes.extend(u16::try_from(block.len()).expect("short").to_le_bytes());
    bytes.extend(block);
    bytes.push(0);
    bytes
}

/// One operation of a delta.
pub enum Operation<'a> {
    /// What follows is about this node, for those who know it up to this version.
    Of(&'a Said, u64),
    /// A fact: its key, its value, its version.
    Fact(&'a str, &'a str, u64),
    /// This version is the last one.
    Last(u64),
}

impl Operation<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Of(said, from) => [vec![0], said.bytes(), vec![0; 8], from.to_le_bytes().into()].concat(),
            Self::Fact(key, value, version) => {
                [vec![1], text(key), text(value), version.to_le_bytes().into(), vec![0]].concat()
            }
            Self::Last(version) => [vec![2], version.to_le_bytes().into()].concat(),
        }
    }
}

fn message(kind: u8) -> Vec<u8> {
    vec![0x53, 0xb0, 0, kind]
}

fn text(text: &str) -> Vec<u8> {
    [&u16::try_from(text.len()).expect("short").to_le_bytes(), text.as_bytes()].concat()
}
