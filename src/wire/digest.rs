//! Usage digests as bytes: what a node reports to its peers in one round of gossip.
//!
//! A frame is a version byte and a body in bincode. The version is outside of the codec, so that the codec can be
//! replaced. The body of a version begins with the body of the version before: a build reads the frames of older
//! versions, and the part that it knows of those of the next one.
//!
//! Frames come from peers. Their size is checked before anything is decoded, the number of entries is bounded, and
//! their content is a claim that the core weighs. This is the only file that names bincode.

use std::fmt;

use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use bincode::{Decode, Encode};

use crate::core::key;
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Micros, Timestamp};
use crate::core::usage::{Count, Usage};

/// The version that this build writes. It reads all versions before it, and the next one.
///
/// Version 1 has the admitted tokens. Version 2 adds the windows whose count the store has lost.
pub const VERSION: u8 = 2;

/// Longest frame, in bytes.
pub const LONGEST: usize = 64 << 10;

/// Most entries of a frame.
pub const MOST: usize = 1_024;

/// Bytes per second that digests may take, to all peers together.
const BYTES_PER_SECOND: u64 = 64 << 10;

/// The most bytes that an entry takes on the wire, and the bytes of a frame beside its entries, both rounded up.
const ENTRY: u64 = 32;
const FRAME: u64 = 64;

/// Least entries of a round, however many peers there are: with fewer, news would take many rounds to reach a large
/// fleet. Where even these take more than the bytes of a round, as in fleets of more than 68 nodes, rounds without
/// entries follow: see [`apart`].
const FEWEST: u64 = 4;

/// The memory that a decoded frame may take: [`MOST`] entries, and some more.
const MEMORY: usize = 128 << 10;

const CODEC: Configuration<LittleEndian, Varint, Limit<MEMORY>> = standard().with_limit::<MEMORY>();

/// Why bytes are no digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadDigest {
    /// It is empty.
    Empty,
    /// It is longer than [`LONGEST`].
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// A version that this build does not read.
    Version {
        /// Its number.
        seen: u8,
    },
    /// It has more than [`MOST`] entries.
    TooMany {
        /// How many.
        entries: usize,
    },
    /// It cannot be decoded.
    Malformed,
}

impl fmt::Display for BadDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "an empty digest"),
            Self::TooLong { bytes } => write!(f, "a digest of {bytes} bytes: {LONGEST} are the most"),
            Self::Version { seen } => write!(f, "a digest of version {seen}: this build reads 1 to {}", VERSION + 1),
            Self::TooMany { entries } => write!(f, "a digest of {entries} entries: {MOST} are the most"),
            Self::Malformed => write!(f, "bytes that are no digest"),
        }
    }
}

impl std::error::Error for BadDigest {}

#[derive(Encode, Decode)]
struct Frame {
    /// The latest of all window starts (us). Entries are relative to it.
    latest: u64,
    entries: Vec<Entry>,
}

/// Follows the frame from version 2 on.
#[derive(Encode, Decode)]
struct Losses(Vec<Loss>);

/// The store has lost the count of an entry's window.
#[derive(Encode, Decode)]
struct Loss {
    /// The position of the entry.
    entry: u16,
    /// The epoch that the store began after the loss.
    epoch: u64,
}

#[derive(Encode, Decode)]
struct Entry {
    key: [u8; 16],
    limit: u8,
    /// Microseconds from the window's start to the latest one.
    before: u64,
    admitted: u64,
    refunded: u64,
}

/// Encodes `usage` as frames. There is at least one, so that peers hear from a node that has nothing to report.
#[must_use]
pub fn encode(usage: &[Usage]) -> Vec<Vec<u8>> {
    if usage.is_empty() {
        return vec![frame(usage)];
    }
    usage.chunks(MOST).map(frame).collect()
}

fn frame(usage: &[Usage]) -> Vec<u8> {
    let latest = usage.iter().map(|one| one.window.0).max().unwrap_or(0);
    let entries = usage.iter().map(|one| Entry {
        key: one.digest.0.to_be_bytes(),
        limit: one.limit,
        before: latest - one.window.0,
        admitted: one.count.admitted,
        refunded: one.count.refunded,
    });
    let mut bytes = vec![VERSION];
    let frame = Frame { latest, entries: entries.collect() };
    let lost = usage.iter().enumerate().filter(|(_, one)| one.epoch != 0);
    // Entries are at most [`MOST`], so their positions fit into 16 bits.
    let losses = Losses(lost.map(|(entry, one)| Loss { entry: entry as u16, epoch: one.epoch }).collect());
    bincode::encode_into_std_write((&frame, &losses), &mut bytes, CODEC).expect("a vector takes all that is written");
    bytes
}

/// Decodes a frame.
///
/// # Errors
/// The bytes are no complete frame of a version that this build reads.
pub fn decode(bytes: &[u8]) -> Result<Vec<Usage>, BadDigest> {
    let (version, body) = bytes.split_first().ok_or(BadDigest::Empty)?;
    if bytes.len() > LONGEST {
        return Err(BadDigest::TooLong { bytes: bytes.len() });
    }
    let read = if on(Mutant::OwnVersionOnly) { VERSION..=VERSION } else { 1..=VERSION + 1 };
    if !read.contains(version) {
        return Err(BadDigest::Version { seen: *version });
    }
    let (frame, rest): (Frame, &[u8]) = part(body)?;
    let (losses, rest) = if *version > 1 { part(rest)? } else { (Losses(Vec::new()), rest) };
    if *version <= VERSION && !rest.is_empty() {
        return Err(BadDigest::Malformed);
    }
    if frame.entries.len() > MOST {
        return Err(BadDigest::TooMany { entries: frame.entries.len() });
    }
    let entries = frame.entries.into_iter().map(|entry| Usage {
        digest: key::Digest(u128::from_be_bytes(entry.key)),
        limit: entry.limit,
        window: Timestamp(frame.latest.saturating_sub(entry.before)),
        count: Count { admitted: entry.admitted, refunded: entry.refunded },
        epoch: 0,
    });
    let mut usage: Vec<_> = entries.collect();
    for loss in losses.0 {
        usage.get_mut(usize::from(loss.entry)).ok_or(BadDigest::Malformed)?.epoch = loss.epoch;
    }
    Ok(usage)
}

/// Decodes a value at the beginning of the bytes, and returns the rest.
fn part<T: Decode<()>>(bytes: &[u8]) -> Result<(T, &[u8]), BadDigest> {
    let (part, used) = bincode::decode_from_slice(bytes, CODEC).map_err(|_| BadDigest::Malformed)?;
    Ok((part, &bytes[used..]))
}

/// How many entries a node reports to each of `peers` peers in a round, at most.
#[must_use]
pub fn most_entries(peers: u64, tick: Micros) -> usize {
    let bytes = BYTES_PER_SECOND * tick.0 / 1_000_000;
    let each = (bytes / peers.max(1)).saturating_sub(FRAME) / ENTRY;
    usize::try_from(each.max(FEWEST)).unwrap_or(usize::MAX)
}

/// How long after a round that sent `frames` and in them `entries` the next round may send entries again, so that all
/// rounds together stay within `BYTES_PER_SECOND`. It is at most one tick where the round had no more than
/// [`most_entries`] allows, unless that was raised to `FEWEST`.
#[must_use]
pub fn apart(frames: u64, entries: u64) -> Micros {
    let bytes = frames.saturating_mul(FRAME).saturating_add(entries.saturating_mul(ENTRY));
    Micros(bytes.saturating_mul(1_000_000) / BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(number: u64) -> Usage {
        Usage {
            digest: key::Digest::of("api", &number.to_be_bytes()),
            limit: (number % 3) as u8,
            window: Timestamp(1_800_000_000_000_000 + number % 5 * 1_000_000),
            count: Count { admitted: number * 7, refunded: number % 2 },
            epoch: 0,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |byte: u8| (byte as char).to_digit(16).expect("a digit") as u8;
        hex.as_bytes().chunks(2).map(|pair| digit(pair[0]) * 16 + digit(pair[1])).collect()
    }

    /// A frame as version 1 wrote it. This test is kept forever.
    #[test]
    fn a_golden_frame_of_version_1_is_read() {
        assert_eq!(decode(&bytes(&format!("01{GOLDEN}"))), Ok(vec![usage(1), usage(300)]));
        assert_eq!(decode(&[1, 0, 0]), Ok(vec![]));
    }
    const GOLDEN: &str = "fd40c2a72817650600028c83b926d24b90aefb57506a77351ff301000701ffe17ee11fd2af678233ed591922775c00fc40420f00fb340800";

    /// A frame of version 2. This test is kept forever: a build that writes another frame cannot talk to older ones.
    #[test]
    fn a_golden_frame_of_version_2_is_written_and_read() {
        let lost = Usage { epoch: 1_800_000_000_000_007, ..usage(300) };
        for (second, losses) in [(usage(300), "00"), (lost, LOST)] {
            let frames = encode(&[usage(1), second]);
            assert_eq!(frames.iter().map(|frame| hex(frame)).collect::<Vec<_>>(), [format!("02{GOLDEN}{losses}")]);
            assert_eq!(decode(&frames[0]), Ok(vec![usage(1), second]));
        }
        assert_eq!(hex(&encode(&[])[0]), "02000000");
    }
    const LOST: &str = "0101fd0780982817650600";

    /// This build reads the part that it knows of a frame of the next version, whatever that adds.
    #[test]
    fn a_frame_of_the_next_version_is_read_as_far_as_it_is_known() {
        let lost = Usage { epoch: 1_800_000_000_000_007, ..usage(300) };
        let next = bytes(&format!("{:02x}{GOLDEN}{LOST}c0ffee", VERSION + 1));
        assert_eq!(decode(&next), Ok(vec![usage(1), lost]));
        assert_eq!(decode(&next[..next.len() - 4]), Err(BadDigest::Malformed));
    }

    #[test]
    fn what_is_told_is_what_is_heard_in_frames_within_bounds() {
        let all: Vec<_> = (0..3_000).map(usage).collect();
        let frames = encode(&all);
        assert_eq!(frames.len(), 3);
        assert!(frames.iter().all(|frame| frame.len() <= LONGEST));
        let heard: Vec<_> = frames.iter().flat_map(|frame| decode(frame).unwrap()).collect();
        assert_eq!(heard, all);
        let largest =
            Usage { window: Timestamp(u64::MAX), count: Count { admitted: u64::MAX, refunded: u64::MAX }, ..usage(1) };
        assert!(encode(&[largest; MOST])[0].len() <= LONGEST);
    }

    #[test]
    fn an_entry_takes_22_bytes() {
        let many: Vec<_> = (0..1_000).map(|number| Usage { window: Timestamp(60_000_000), ..usage(number) }).collect();
        let bytes: usize = encode(&many).iter().map(Vec::len).sum();
        assert!((20_000..=22_500).contains(&bytes), "{bytes}");
    }

    #[test]
    fn claims_of_length_are_refused_before_anything_is_allocated() {
        for claim in [&[0xfc, 0xff, 0xff, 0xff, 0xff][..], &[0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]] {
            let frame = [&[VERSION, 0], claim].concat();
            assert_eq!(decode(&frame), Err(BadDigest::Malformed));
        }
    }

    #[test]
    fn anything_else_is_refused_and_said() {
        let good = encode(&[usage(1)]).remove(0);
        assert_eq!(decode(&[]), Err(BadDigest::Empty));
        assert_eq!(decode(&[0, 0, 0]), Err(BadDigest::Version { seen: 0 }));
        assert_eq!(decode(&[4, 0, 0, 0]), Err(BadDigest::Version { seen: 4 }));
        assert_eq!(decode(&[2, 0, 0, 1, 0, 9]), Err(BadDigest::Malformed), "no such entry");
        assert_eq!(decode(&[&good[..], &[0]].concat()), Err(BadDigest::Malformed));
        for end in 1..good.len() {
            assert!(decode(&good[..end]).is_err(), "cut at {end}");
        }
        assert_eq!(decode(&vec![VERSION; LONGEST + 1]), Err(BadDigest::TooLong { bytes: LONGEST + 1 }));
    }

    #[test]
    fn digests_of_fifty_nodes_stay_within_their_bytes() {
        let tick = Micros::from_millis(200);
        let bytes = |peers: u64| peers * (most_entries(peers, tick) as u64 * ENTRY + FRAME) * 5;
        assert!([1, 4, 49].into_iter().all(|peers| bytes(peers) <= BYTES_PER_SECOND));
        assert_eq!(most_entries(49, tick), 6);
        assert!(most_entries(4, tick) >= 100);
    }

    #[test]
    fn digests_of_any_fleet_stay_within_their_bytes_a_second() {
        let tick = Micros::from_millis(200);
        let apart_at = |peers: u64| apart(peers, peers * most_entries(peers, tick) as u64);
        assert!((1..=68).all(|peers| apart_at(peers) <= tick), "each round may tell");
        assert!(apart_at(69) > tick);
        for peers in [69, 200, 999, 10_000] {
            let bytes = peers * (FEWEST * ENTRY + FRAME);
            assert!(bytes * 1_000_000 / apart_at(peers).0 <= BYTES_PER_SECOND + 1, "{peers}");
        }
        assert_eq!((apart(999, 999 * 4), apart(999, 999)), (Micros(2_926_757), Micros(1_463_378)));
    }
}
