//! The file of recorded arrivals: which checks came when, and what was answered. `rationd plan` reads it.
//!
//! A header is followed by a ring of records of one size. Each record has a number that grows by one, so a writer finds
//! where to go on, and a checksum, so that a record that was half written does not count. The records of a thread are
//! written together, so a reader puts them in order by their times. A file that was begun with the same settings is
//! continued.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::core::key::{Digest, DigestKey};
use crate::core::time::Timestamp;

/// The first bytes of a file; the number is the version of the format.
const MAGIC: &[u8; 16] = b"rationd arrive 1";
/// The magic bytes, the size of a record, how many there are at most, and by which key digests are made.
const HEADER: usize = 64;
/// A record without the bytes of its key.
const RECORD: usize = 56;
/// Most bytes of a key that a record has.
pub const KEY: usize = 64;

/// What came, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A check passed.
    Admitted,
    /// A check was denied by a limit. Where its policy only shadows, it passed all the same.
    Denied,
    /// A cost was given back.
    GivenBack,
    /// The key was reset.
    Reset,
}

impl Event {
    /// Every event, in the order of its discriminants.
    pub const ALL: [Self; 4] = [Self::Admitted, Self::Denied, Self::GivenBack, Self::Reset];
}

/// One arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it came.
    pub at: Timestamp,
    /// The digest of policy and key.
    pub digest: Digest,
    /// The policy: see [`policy_tag`].
    pub policy: u64,
    /// Tokens.
    pub cost: u64,
    /// What became of it.
    pub event: Event,
    /// The key's first [`KEY`] bytes; empty where keys are not recorded.
    pub key: Box<[u8]>,
}

/// What a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// In the order in which they came.
    pub arrivals: Vec<Arrival>,
    /// Keys were recorded.
    pub has_keys: bool,
    /// By which key its digests are made: see [`digest_tag`].
    pub digests: u64,
}

/// Why a file cannot be read, or continued.
#[derive(Debug)]
pub enum ArrivalsError {
    /// The operating system says so.
    Io(io::Error),
    /// It is no file of arrivals, or of another version.
    Alien,
}

impl fmt::Display for ArrivalsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Alien => f.write_str("this is no file of arrivals of this version: `record.file` makes them"),
        }
    }
}

impl std::error::Error for ArrivalsError {}

impl From<io::Error> for ArrivalsError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What stands for a policy's name in a record.
#[must_use]
pub fn policy_tag(name: &str) -> u64 {
    Digest::of(name, b"").0 as u64
}

/// What tells files apart whose digests are made by other secrets, and gives no secret away.
#[must_use]
pub fn digest_tag(digests: DigestKey) -> u64 {
    digests.digest("", b"").0 as u64
}

/// A file that is written.
#[derive(Debug)]
pub struct Ring {
    file: File,
    record: usize,
    capacity: u64,
    /// The number of the next record; the first is 1.
    next: u64,
    buffer: Vec<u8>,
}

impl Ring {
    /// Continues the file at `path`, or begins it anew where there is none or it was begun with other settings. It will
    /// take about `bytes` at most, and only its owner can read it.
    ///
    /// # Errors
    /// The operating system refuses, or there is a file of another kind: it is left as it is.
    pub fn open(path: &Path, bytes: u64, with_keys: bool, digests: u64) -> Result<Self, ArrivalsError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let record = RECORD + if with_keys { KEY } else { 0 };
        let capacity = (bytes.saturating_sub(HEADER as u64) / record as u64).max(1);
        let header = header(record, capacity, digests);
        let mut ring = Self { file, record, capacity, next: 1, buffer: Vec::new() };
        if ring.file.metadata()?.len() > 0 {
            let mut known = [0; HEADER];
            if ring.file.read_exact_at(&mut known, 0).is_err() || known[..MAGIC.len()] != *MAGIC {
                return Err(ArrivalsError::Alien);
            }
            if known == header {
                ring.next = ring.last()? + 1;
                return Ok(ring);
            }
        }
        ring.file.set_len(0)?;
        ring.file.write_all_at(&header, 0)?;
        Ok(ring)
    }

    /// The highest number of a record.
    fn last(&self) -> io::Result<u64> {
        let mut last = 0;
        let mut rest = self.file.try_clone()?;
        let mut records = Vec::new();
        io::Seek::seek(&mut rest, io::SeekFrom::Start(HEADER as u64))?;
        rest.read_to_end(&mut records)?;
        for bytes in records.chunks_exact(self.record) {
            last = last.max(decode(bytes).map_or(0, |(number, _)| number));
        }
        Ok(last)
    }

    /// Appends arrivals; the oldest are overwritten when the file is full.
    ///
    /// # Errors
    /// The operating system refuses; they are lost.
    pub fn append(&mut self, arrivals: impl IntoIterator<Item = Arrival>) -> io::Result<()> {
        let mut arrivals = arrivals.into_iter();
        loop {
            let place = (self.next - 1) % self.capacity;
            self.buffer.clear();
            // Up to the end of the ring at once.
            for arrival in arrivals.by_ref().take((self.capacity - place) as usize) {
                encode(self.next, &arrival, self.record, &mut self.buffer);
                self.next += 1;
            }
            if self.buffer.is_empty() {
                return Ok(());
            }
            self.file.write_all_at(&self.buffer, HEADER as u64 + place * self.record as u64)?;
        }
    }
}

/// Whether [`Ring::open`] would take the file that is at `path`.
///
/// # Errors
/// The operating system refuses, or it is no file of arrivals.
pub fn inspect(path: &Path) -> Result<(), ArrivalsError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut magic = [0; MAGIC.len()];
    let is_ours = file.metadata()?.len() == 0 || file.read_exact_at(&mut magic, 0).is_ok() && magic == *MAGIC;
    if is_ours { Ok(()) } else { Err(ArrivalsError::Alien) }
}

/// Reads a file, of which half-written records do not count.
///
/// # Errors
/// The operating system refuses, or it is no file of arrivals.
pub fn read(path: &Path) -> Result<Arrivals, ArrivalsError> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or(ArrivalsError::Alien)
}

/// What a file with these bytes has; `None` when it is no file of arrivals.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Arrivals> {
    let header = bytes.get(..HEADER).filter(|header| header.starts_with(MAGIC))?;
    let record = usize::try_from(word(header, 16)).ok().filter(|size| [RECORD, RECORD + KEY].contains(size))?;
    let mut numbered: Vec<_> = bytes[HEADER..].chunks_exact(record).filter_map(decode).collect();
    // Each shard's were written together.
    numbered.sort_by_key(|(number, arrival)| (arrival.at, *number));
    let arrivals = numbered.into_iter().map(|(_, arrival)| arrival).collect();
    Some(Arrivals { arrivals, has_keys: record > RECORD, digests: word(header, 32) })
}

fn header(record: usize, capacity: u64, digests: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    for (at, value) in [(16, record as u64), (24, capacity), (32, digests)] {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    header
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

fn encode(number: u64, arrival: &Arrival, size: usize, into: &mut Vec<u8>) {
    let begin = into.len();
    let Arrival { at, digest, policy, cost, event, key } = arrival;
    into.extend_from_slice(&number.to_le_bytes());
    into.extend_from_slice(&at.0.to_le_bytes());
    into.extend_from_slice(&digest.0.to_le_bytes());
    into.extend_from_slice(&policy.to_le_bytes());
    into.extend_from_slice(&cost.to_le_bytes());
    let key = &key[..key.len().min(size - RECORD)];
    // At most 64.
    into.extend_from_slice(&[*event as u8, key.len() as u8, 0, 0]);
    into.extend_from_slice(&[0; 4]);
    into.extend_from_slice(key);
    into.resize(begin + size, 0);
    let sum = checksum(&into[begin..]);
    into[begin + RECORD - 4..begin + RECORD].copy_from_slice(&sum.to_le_bytes());
}

/// A record and its number; `None` where there is none, or half of one.
fn decode(bytes: &[u8]) -> Option<(u64, Arrival)> {
    let number = word(bytes, 0);
    let mut blank = [0; RECORD + KEY];
    let blank = &mut blank[..bytes.len()];
    blank.copy_from_slice(bytes);
    blank[RECORD - 4..RECORD].fill(0);
    if number == 0 || checksum(blank).to_le_bytes() != bytes[RECORD - 4..RECORD] {
        return None;
    }
    let event = *Event::ALL.get(usize::from(bytes[48]))?;
    let digest = u128::from(word(bytes, 24)) << 64 | u128::from(word(bytes, 16));
    let arrival = Arrival {
        at: Timestamp(word(bytes, 8)),
        digest: Digest(digest),
        policy: word(bytes, 32),
        cost: word(bytes, 40),
        event,
        key: bytes.get(RECORD..RECORD + usize::from(bytes[49]))?.into(),
    };
    Some((number, arrival))
}

/// Tells a whole record from one of which a part is older. Each word's place counts.
fn checksum(bytes: &[u8]) -> u32 {
    let sum = bytes.chunks_exact(8).fold(0xcbf2_9ce4_8422_2325_u64, |sum, bytes| {
        (sum ^ word(bytes, 0)).wrapping_mul(0x0100_0000_01b3).rotate_left(23)
    });
    (sum >> 32) as u32 ^ sum as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(number: u64) -> Arrival {
        let event = Event::ALL[number as usize % 4];
        let (digest, key) = (Digest::of("p", &number.to_le_bytes()), number.to_string());
        let at = Timestamp(1_800_000_000_000_000 + number);
        Arrival { at, digest, policy: policy_tag("p"), cost: number * 3, event, key: key.as_bytes().into() }
    }

    fn without_key(number: u64) -> Arrival {
        Arrival { key: Box::default(), ..arrival(number) }
    }

    #[test]
    fn a_full_ring_keeps_the_latest_in_order_and_is_continued() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let bytes = (HEADER + 10 * RECORD) as u64;
        let open = || Ring::open(&path, bytes, false, 7).expect("a ring");
        let mut ring = open();
        ring.append((0..7).map(without_key)).expect("written");
        drop(ring);
        let mut ring = open();
        ring.append((7..25).map(without_key)).expect("written");
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), bytes);
        let read = read(&path).expect("arrivals");
        assert_eq!(read.arrivals, (15..25).map(without_key).collect::<Vec<_>>());
        assert_eq!((read.has_keys, read.digests), (false, 7));
    }

    #[test]
    fn keys_are_kept_where_they_are_wanted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let long = Arrival { key: vec![b'x'; 100].into(), ..arrival(9) };
        Ring::open(&path, 1 << 20, true, 7).expect("a ring").append([arrival(1), long]).expect("written");
        let read = read(&path).expect("arrivals");
        assert!(read.has_keys);
        assert_eq!((&*read.arrivals[0].key, read.arrivals[1].key.len()), (&b"1"[..], KEY));
    }

    #[test]
    fn other_settings_begin_anew_and_another_file_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        Ring::open(&path, 1 << 20, false, 7).expect("a ring").append([arrival(1)]).expect("written");
        Ring::open(&path, 1 << 20, true, 7).expect("a ring");
        assert!(read(&path).expect("arrivals").arrivals.is_empty());
        std::fs::write(&path, "my notes").expect("written");
        assert!(matches!(Ring::open(&path, 1 << 20, false, 7), Err(ArrivalsError::Alien)));
        assert_eq!(std::fs::read(&path).expect("a file"), b"my notes");
    }

    #[test]
    fn a_record_that_was_half_written_does_not_count() {
        let mut bytes = header(RECORD, 10, 7).to_vec();
        (0..4).for_each(|number| encode(number + 1, &without_key(number), RECORD, &mut bytes));
        assert_eq!(parse(&bytes).expect("arrivals").arrivals.len(), 4);
        for at in HEADER..HEADER + RECORD {
            let mut torn = bytes.clone();
            torn[at] ^= 0x41;
            assert_eq!(parse(&torn).expect("arrivals").arrivals.len(), 3, "byte {at}");
        }
        assert_eq!(parse(&bytes[..bytes.len() - 1]).expect("arrivals").arrivals.len(), 3);
        assert_eq!(parse(b"rationd"), None);
    }
}
