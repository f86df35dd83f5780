//! A look at a gossip message before it is unpacked: who it is from, and how much it would unpack to.
//!
//! chitchat believes what it is told and unpacks what it is given: 64 KiB of its compressed blocks become
//! 180 MB, and a member may speak under any name. So this file reads the outer form of a message, without
//! copying any of it, and refuses what no honest node sends. Format of chitchat 0.11.2 (`message.rs`,
//! `digest.rs`, `serialize.rs`), whose version is pinned for that reason:
//!
//! ```text
//! message = magic (2) version (1) kind (1) body       syn = digest cluster-id
//! digest  = count (2) node*                           syn-ack = digest delta      ack = delta
//! node    = name-length (2) name incarnation (8) address heartbeat (8) gc (8) version (8)
//! address = 4 ip (4) port (2) | 6 ip (16) port (2)
//! delta   = (1|2 length (2) bytes)* 0
//! ```

use super::peer::PeerId;

const HEAD: [u8; 3] = [0x53, 0xb0, 0];
/// Most blocks of a delta: honest nodes fill a block with 16 KiB before they begin another.
const MAX_BLOCKS: usize = 32;
/// A heartbeat that no node reaches: one a microsecond for eight years.
const MAX_HEARTBEAT: u64 = 1 << 48;

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has not the form of a message.
    Malformed,
    /// Its sender does not appear in it under its own name.
    NotItself,
    /// It would unpack to more than any fleet has to say.
    TooMuch,
}

/// Judges a message of `from`.
pub(crate) fn inspect(message: &[u8], from: &PeerId) -> Result<(), Refusal> {
    let mut rest = Rest(message.strip_prefix(&HEAD).ok_or(Refusal::Malformed)?);
    match rest.byte()? {
        0 => {
            rest.digest(from)?;
            rest.text().map(|_| ())
        }
        1 => {
            rest.digest(from)?;
            rest.delta()
        }
        2 => rest.delta(),
        3 => Ok(()),
        _ => Err(Refusal::Malformed),
    }
}

/// What is left to read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Refusal::Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        self.take(N)?.try_into().map_err(|_| Refusal::Malformed)
    }

    fn byte(&mut self) -> Result<u8, Refusal> {
        self.array().map(|[byte]| byte)
    }

    fn short(&mut self) -> Result<u16, Refusal> {
        self.array().map(u16::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<&'a [u8], Refusal> {
        let len = self.short()?;
        self.take(usize::from(len))
    }

    fn digest(&mut self, from: &PeerId) -> Result<(), Refusal> {
        let mut itself = false;
        for _ in 0..self.short()? {
            let (name, incarnation) = (self.text()?, self.long()?);
            itself |= name == from.name.as_bytes() && incarnation == from.incarnation;
            match self.byte()? {
                4 => self.take(4 + 2)?,
                6 => self.take(16 + 2)?,
                _ => return Err(Refusal::Malformed),
            };
            if self.long()? >= MAX_HEARTBEAT {
                return Err(Refusal::TooMuch);
            }
            self.take(8 + 8)?;
        }
        if itself { Ok(()) } else { Err(Refusal::NotItself) }
    }

    fn delta(&mut self) -> Result<(), Refusal> {
        for _ in 0..=MAX_BLOCKS {
            match self.byte()? {
                0 => return Ok(()),
                1 | 2 => self.text()?,
                _ => return Err(Refusal::Malformed),
            };
        }
        Err(Refusal::TooMuch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> PeerId {
        PeerId { name: name.into(), incarnation: 7 }
    }

    fn digest(names: &[&str], heartbeat: u64) -> Vec<u8> {
        let mut bytes = (names.len() as u16).to_le_bytes().to_vec();
        for name in names {
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(7_u64.to_le_bytes());
            bytes.extend([4, 127, 0, 0, 1, 1, 0]);
            for number in [heartbeat, 0, 3] {
                bytes.extend(number.to_le_bytes());
            }
        }
        bytes
    }

    fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
        [&HEAD, [kind].as_slice(), &parts.concat()].concat()
    }

    #[test]
    fn a_sender_must_appear_under_its_own_name() {
        let syn = message(0, &[&digest(&["a", "b"], 5), &[1, 0, b'c']]);
        assert_eq!(inspect(&syn, &node("a")), Ok(()));
        assert_eq!(inspect(&syn, &node("c")), Err(Refusal::NotItself));
        assert_eq!(inspect(&syn, &PeerId { incarnation: 8, ..node("a") }), Err(Refusal::NotItself));
    }

    #[test]
    fn a_heartbeat_that_would_never_be_exceeded_is_refused() {
        let syn = message(0, &[&digest(&["a"], u64::MAX), &[0, 0]]);
        assert_eq!(inspect(&syn, &node("a")), Err(Refusal::TooMuch));
    }

    #[test]
    fn a_delta_of_too_many_blocks_is_refused() {
        let block = [1, 1, 0, 0];
        let delta = |blocks: usize| [block.repeat(blocks), vec![0]].concat();
        assert_eq!(inspect(&message(2, &[&delta(MAX_BLOCKS)]), &node("a")), Ok(()));
        assert_eq!(inspect(&message(2, &[&delta(MAX_BLOCKS + 1)]), &node("a")), Err(Refusal::TooMuch));
    }

    #[test]
    fn what_is_cut_short_is_malformed() {
        let whole = message(1, &[&digest(&["a"], 5), &[2, 1, 0, 9, 0]]);
        assert_eq!(inspect(&whole, &node("a")), Ok(()));
        for len in 0..whole.len() {
            assert_eq!(inspect(&whole[..len], &node("a")), Err(Refusal::Malformed), "{len} bytes");
        }
    }
}
