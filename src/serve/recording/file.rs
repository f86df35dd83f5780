//! The file of recorded arrivals: which checks came when, and what was answered. `rationd plan` reads it.
//!
//! A header is followed by a ring of pages of one size. Each page has a number that grows by one, so a writer finds
//! where to go on, and a checksum, so that a page that was half written does not count. It holds groups of arrivals as
//! the deciding threads made them (`group.rs`), without fields that the page has already (`compact.rs`). A group has
//! the low half of a moment of the process, and its page says which time of day that is. The last page is written again
//! as it fills. The groups of a thread are written together, so a reader sorts all by their times. A file that was
//! begun with the same settings is continued.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::compact::{Said, longest};
pub use super::group::kept;
use super::group::{Common, Group, TAG_BITS, of_half};
use crate::core::key::{Digest, DigestKey};
use crate::core::time::{Instant, Micros, Timestamp};

/// The first bytes of a file; the number is the version of the format.
const MAGIC: &[u8; 16] = b"rationd arrive 5";
/// The same for the previous format, whose pages hold groups in the form of `group.rs`. It is still read.
const MAGIC_4: &[u8; 16] = b"rationd arrive 4";
/// What files of all versions begin with.
const ANY_MAGIC: &[u8] = MAGIC.split_at(MAGIC.len() - 1).0;
/// The magic bytes, the bytes of a key, how many pages there are at most, and by which key digests are made. It is as
/// large as a page, so that pages of the file are pages of the system.
const HEADER: usize = PAGE;
/// Bytes of a page.
const PAGE: usize = 4096;
/// A page's number, the time of day and the moment of the process that it counts from, where its groups end, its checksum.
const PAGE_HEADER: usize = 32;
/// Where the checksum of a page is.
const SUM: usize = 24;
/// Most bytes of a key that are kept.
pub const KEY: usize = 64;
/// The bytes of a key after its group, with its length.
const KEY_AND_LENGTH: usize = KEY + 1;

/// How long a page takes groups. The low bits of a moment tell half an hour before it from half an hour after it.
const PAGE_AGE: Micros = Micros::from_secs(600);
/// A clock that was set by more than this gets a new page.
const CLOCK_STEP: u64 = 100_000;

/// What was requested, and with which outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A check passed.
    Admitted,
    /// A check was denied by a limit. If the policy only shadows, it passed all the same.
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
    /// The digest of policy and key, as far as it is [kept].
    pub digest: Digest,
    /// The policy: see [`policy_tag`].
    pub policy: u64,
    /// Tokens.
    pub cost: u64,
    /// The outcome.
    pub event: Event,
    /// The key's first [`KEY`] bytes; empty if keys are not recorded.
    pub key: Box<[u8]>,
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// In the order in which they came.
    pub arrivals: Vec<Arrival>,
    /// Whether keys were recorded.
    pub has_keys: bool,
    /// The key with which its digests were made: see [`digest_tag`].
    pub digests: u64,
}

/// Why a file cannot be read, or continued.
#[derive(Debug)]
pub enum ArrivalsError {
    /// The operating system reports an error.
    Io(io::Error),
    /// It is no file of arrivals.
    Alien,
    /// It is of a format that this version does not know: the number of the format, as written in the file.
    Format(u8),
}

impl fmt::Display for ArrivalsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Alien => f.write_str("this is no file of arrivals: `record.file` makes them"),
            Self::Format(format) => write!(
                f,
                "this is a file of arrivals of format {}, and this version of rationd reads formats 4 and 5: read it with the version \
                 that wrote it",
                format.escape_ascii()
            ),
        }
    }
}

impl std::error::Error for ArrivalsError {}

impl From<io::Error> for ArrivalsError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The number that stands for a policy's name.
#[must_use]
pub fn policy_tag(name: &str) -> u64 {
    Digest::of(name, b"").0 as u64 & ((1 << TAG_BITS) - 1)
}

/// A number that differs between files whose digests are made with different secrets, without giving a secret away.
#[must_use]
pub fn digest_tag(digests: DigestKey) -> u64 {
    digests.digest("", b"").0 as u64
}

/// A file that is written.
#[derive(Debug)]
pub struct Ring {
    file: File,
    /// The bytes of a key; 0 if keys are not recorded.
    key: usize,
    pages: u64,
    /// The number of the page that has room; the first is 1.
    number: u64,
    /// A moment and its time of day, from which the times in that page are counted.
    began: (Instant, Timestamp),
    /// That page so far; empty if the next arrival begins a new one. During a long append full pages stand before it.
    buffer: Vec<u8>,
    /// Where it begins in there.
    start: usize,
    /// What is known from that page.
    said: Said,
}

impl Ring {
    /// Continues the file at `path`, or begins it anew if there is none or it was begun with other settings or by
    /// another version. It will take about `bytes` at most, and only its owner can read it.
    ///
    /// # Errors
    /// The operating system refuses, or there is a file of another kind, which is left as it is.
    pub fn open(path: &Path, bytes: u64, with_keys: bool, digests: u64) -> Result<Self, ArrivalsError> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let key = if with_keys { KEY_AND_LENGTH } else { 0 };
        let pages = (bytes.saturating_sub(HEADER as u64) / PAGE as u64).max(1);
        let header = header(key, pages, digests);
        let began = (Instant(0), Timestamp(0));
        let said = Said::nothing(0);
        let mut ring = Self { file, key, pages, number: 0, began, buffer: Vec::new(), start: 0, said };
        if ring.file.metadata()?.len() > 0 {
            if !is_ours(&ring.file) {
                return Err(ArrivalsError::Alien);
            }
            let mut known = [0; HEADER];
            if ring.file.read_exact_at(&mut known, 0).is_ok() && known == header {
                ring.number = ring.last()?;
                return Ok(ring);
            }
        }
        ring.file.set_len(0)?;
        ring.file.write_all_at(&header, 0)?;
        Ok(ring)
    }

    /// The highest number of a page.
    fn last(&self) -> io::Result<u64> {
        let mut last = 0;
        let mut rest = self.file.try_clone()?;
        let mut pages = Vec::new();
        io::Seek::seek(&mut rest, io::SeekFrom::Start(HEADER as u64))?;
        rest.read_to_end(&mut pages)?;
        for page in pages.as_chunks().0 {
            last = last.max(if is_whole(page) { word(page, 0) } else { 0 });
        }
        Ok(last)
    }

    /// Appends groups, which span half an hour at most; the oldest of the file are overwritten when it is full. `keys`
    /// are their arrivals' keys, each after its length; they are left out if the file has none. `at` is now, with its
    /// time of day.
    ///
    /// # Errors
    /// The operating system refuses; the groups are lost.
    pub fn append(&mut self, mut groups: &[u8], mut keys: &[u8], at: (Instant, Timestamp)) -> io::Result<()> {
        if self.buffer.is_empty() || !self.counts_from(at) {
            self.buffer.clear();
            self.begin_page(at);
        }
        let first = self.number;
        while let Some(group) = Group::first(groups) {
            // The longest group fits into a page that has none.
            if self.start + PAGE < self.buffer.len() + longest(group.len()) + group.len() * self.key {
                self.seal();
                self.begin_page(at);
            }
            self.said.write(&group, &mut self.buffer);
            if self.key > 0 {
                self.fill_with_keys(group.len(), &mut keys);
            }
            groups = &groups[group.bytes.len()..];
        }
        let end = self.buffer.len();
        self.seal();
        let written = self.write(first);
        self.buffer.truncate(end);
        self.buffer.drain(..self.start);
        self.start = 0;
        written
    }

    /// Appends a group's keys after it, in fields of one size.
    fn fill_with_keys(&mut self, count: usize, keys: &mut &[u8]) {
        for _ in 0..count {
            let key = keys.split_off_first().and_then(|length| keys.split_off(..usize::from(*length)));
            let key = key.unwrap_or_default();
            let end = self.buffer.len() + KEY_AND_LENGTH;
            // At most 64.
            self.buffer.push(key.len() as u8);
            self.buffer.extend_from_slice(key);
            self.buffer.resize(end, 0);
        }
    }

    fn begin_page(&mut self, at: (Instant, Timestamp)) {
        (self.number, self.began, self.start) = (self.number + 1, at, self.buffer.len());
        self.buffer.extend_from_slice(&[0; PAGE_HEADER]);
        self.said.next_page(at.0.0 as u32);
    }

    /// Whether moments of the process near `now` can be computed from the page's own moment.
    fn counts_from(&self, (now, wall): (Instant, Timestamp)) -> bool {
        let (began, began_wall) = self.began;
        let age = now.since(began);
        age < PAGE_AGE && (began_wall + age).0.abs_diff(wall.0) < CLOCK_STEP
    }

    /// Completes the page: pads it and writes its header.
    fn seal(&mut self) {
        let (taken, (now, wall)) = (self.buffer.len() - self.start, self.began);
        self.buffer.resize(self.start + PAGE, 0);
        let Some(page) = self.buffer.last_chunk_mut::<PAGE>() else { return };
        page[..8].copy_from_slice(&self.number.to_le_bytes());
        page[8..16].copy_from_slice(&wall.0.to_le_bytes());
        page[16..20].copy_from_slice(&(now.0 as u32).to_le_bytes());
        // At most 4096.
        page[20..24].copy_from_slice(&(taken as u32).to_le_bytes());
        page[SUM..SUM + 4].fill(0);
        let sum = checksum(page);
        page[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes all pages of the buffer; `number` is that of the first one.
    fn write(&self, mut number: u64) -> io::Result<()> {
        let mut rest = &self.buffer[..];
        while !rest.is_empty() {
            // Up to the end of the ring at once.
            let place = (number - 1) % self.pages;
            let pages = ((rest.len() / PAGE) as u64).min(self.pages - place);
            let (now, later) = rest.split_at(pages as usize * PAGE);
            self.file.write_all_at(now, HEADER as u64 + place * PAGE as u64)?;
            (number, rest) = (number + pages, later);
        }
        Ok(())
    }
}

/// Whether [`Ring::open`] would take the file that is at `path`.
///
/// # Errors
/// The operating system refuses, or it is no file of arrivals.
pub fn inspect(path: &Path) -> Result<(), ArrivalsError> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    if file.metadata()?.len() == 0 || is_ours(&file) { Ok(()) } else { Err(ArrivalsError::Alien) }
}

/// Whether it is a file of arrivals, of whatever version.
fn is_ours(file: &File) -> bool {
    let mut magic = [0; ANY_MAGIC.len()];
    file.read_exact_at(&mut magic, 0).is_ok() && magic == *ANY_MAGIC
}

/// Reads a file, of which half-written pages do not count.
///
/// # Errors
/// The operating system refuses, or it is no file of arrivals.
pub fn read(path: &Path) -> Result<Arrivals, ArrivalsError> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    parse(&bytes)
}

/// What a file with these bytes has.
///
/// # Errors
/// It is no file of arrivals, or of a format that this version does not know.
pub fn parse(bytes: &[u8]) -> Result<Arrivals, ArrivalsError> {
    let magic = bytes.first_chunk().ok_or(ArrivalsError::Alien)?;
    let arrivals_of = match magic {
        MAGIC => arrivals_of,
        MAGIC_4 => arrivals_of_4,
        [before @ .., format] if before == ANY_MAGIC => return Err(ArrivalsError::Format(*format)),
        _ => return Err(ArrivalsError::Alien),
    };
    let header = bytes.get(..HEADER).ok_or(ArrivalsError::Alien)?;
    let key = usize::try_from(word(header, 16)).ok().filter(|size| [0, KEY_AND_LENGTH].contains(size));
    let key = key.ok_or(ArrivalsError::Alien)?;
    let mut pages: Vec<_> = bytes[HEADER..].as_chunks().0.iter().filter(|page| is_whole(page)).collect();
    pages.sort_by_key(|page| word(*page, 0));
    let mut arrivals: Vec<_> = pages.into_iter().flat_map(|page| arrivals_of(page, key)).collect();
    // Each thread's arrivals were written together.
    arrivals.sort_by_key(|arrival| arrival.at);
    Ok(Arrivals { arrivals, has_keys: key > 0, digests: word(header, 32) })
}

fn header(key: usize, pages: u64, digests: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..MAGIC.len()].copy_from_slice(MAGIC);
    for (at, value) in [(16, key as u64), (24, pages), (32, digests)] {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    header
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes)
}

/// Whether a page was written completely.
fn is_whole(page: &[u8; PAGE]) -> bool {
    let mut blank = *page;
    blank[SUM..SUM + 4].fill(0);
    word(page, 0) > 0 && checksum(&blank).to_le_bytes() == page[SUM..SUM + 4]
}

/// The arrivals of a page, in which each key takes so many bytes.
fn arrivals_of(page: &[u8; PAGE], key: usize) -> Vec<Arrival> {
    let mut rest = groups_of(page);
    let mut said = Said::nothing(word(page, 16) as u32);
    let mut arrivals = Vec::new();
    while let Some(group) = said.read(&mut rest) {
        let Some(keys) = rest.split_off(..group.len() * key) else { break };
        arrivals.extend(arrivals_of_group(page, group.common, group.arrivals(), keys));
    }
    arrivals
}

/// The same for a page of format 4.
fn arrivals_of_4(page: &[u8; PAGE], key: usize) -> Vec<Arrival> {
    let mut rest = groups_of(page);
    let mut arrivals = Vec::new();
    while let Some(group) = Group::first(rest) {
        let Some((keys, later)) = rest[group.bytes.len()..].split_at_checked(group.len() * key) else { break };
        arrivals.extend(arrivals_of_group(page, group.common, group.arrivals(), keys));
        rest = later;
    }
    arrivals
}

fn groups_of(page: &[u8; PAGE]) -> &[u8] {
    let end = ((word(page, 16) >> 32) as usize).min(PAGE);
    page.get(PAGE_HEADER..end).unwrap_or_default()
}

/// The arrivals of a group of this page, with their keys if they are recorded.
fn arrivals_of_group<'a>(
    page: &[u8; PAGE],
    common: Common,
    arrivals: impl Iterator<Item = (u64, u32)> + 'a,
    keys: &'a [u8],
) -> impl Iterator<Item = Arrival> + 'a {
    let Common { at, policy, cost } = common;
    // Some arrivals came before the page was begun.
    let after = i64::from(at.wrapping_sub(word(page, 16) as u32) as i32);
    let at = Timestamp(word(page, 8).saturating_add_signed(after));
    let mut keys = keys.as_chunks::<KEY_AND_LENGTH>().0.iter();
    arrivals.map(move |(half, outcome)| {
        let key = keys.next().map_or(&[][..], |place| &place[1..][..KEY.min(usize::from(place[0]))]);
        Arrival { at, digest: of_half(half), policy, cost, event: Event::ALL[outcome as usize], key: key.into() }
    })
}

/// Differs between a whole page and one of which a part is older. Each pair of words counts by its place. There are
/// four independent sums, because each step of one has to wait for its last step.
fn checksum(page: &[u8; PAGE]) -> u32 {
    let mut sums = [0xcbf2_9ce4_8422_2325_u64, 0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    for words in page.as_chunks::<64>().0 {
        for (index, sum) in sums.iter_mut().enumerate() {
            let [one, other] = [0, 8].map(|at| word(words, index * 16 + at));
            *sum = step(*sum, one.wrapping_add(other.rotate_left(32)));
        }
    }
    let sum = sums.into_iter().fold(0, step);
    (sum >> 32) as u32 ^ sum as u32
}

#[cfg(test)]
mod tests {
    use super::super::group::Groups;
    use super::*;

    const BEGAN: u64 = 1_800_000_000_000_000;
    /// Bytes of a group of one arrival whose cost is another than that of the one before: the least and the most, as for [`arrival`].
    const ALONE: [usize; 2] = [21, 25];

    fn arrival(number: u64) -> Arrival {
        let event = Event::ALL[number as usize % 4];
        let (digest, key) = (kept(Digest::of("p", &number.to_le_bytes())), number.to_string());
        let at = Timestamp(BEGAN + number);
        Arrival { at, digest, policy: policy_tag("p"), cost: number * 3, event, key: key.as_bytes().into() }
    }

    fn without_key(number: u64) -> Arrival {
        Arrival { key: Box::default(), ..arrival(number) }
    }

    /// Appends them in a process that began at [`BEGAN`] and is `age` old.
    fn append(ring: &mut Ring, age: u64, arrivals: impl IntoIterator<Item = Arrival>) {
        let (mut groups, mut keys) = (Groups::default(), Vec::new());
        for Arrival { at, digest, policy, cost, event, key } in arrivals {
            groups.push(Common { at: (at.0 - BEGAN) as u32, policy, cost }, digest, event as u32);
            keys.push(key.len() as u8);
            keys.extend_from_slice(&key);
        }
        groups.close();
        ring.append(groups.bytes(), &keys, (Instant(age), Timestamp(BEGAN + age))).expect("written");
    }

    #[test]
    fn a_full_ring_keeps_the_latest_in_order_and_is_continued() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let [most, least] = ALONE.map(|bytes| ((PAGE - PAGE_HEADER) / bytes) as u64);
        let pages = 4;
        let bytes = (HEADER + 4 * PAGE) as u64;
        let open = || Ring::open(&path, bytes, false, 7).expect("a ring");
        let mut ring = open();
        (0..7).for_each(|number| append(&mut ring, number, [without_key(number)]));
        assert_eq!(read(&path).expect("arrivals").arrivals, (0..7).map(without_key).collect::<Vec<_>>());
        drop(ring);
        let (mut ring, last) = (open(), 20 * most);
        append(&mut ring, 8, (7..10).map(without_key));
        assert_eq!(read(&path).expect("arrivals").arrivals, (0..10).map(without_key).collect::<Vec<_>>());
        append(&mut ring, last, (10..last).map(without_key));
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), bytes);
        let read = read(&path).expect("arrivals");
        let kept = read.arrivals.len() as u64;
        assert!(kept > (pages - 1) * (least - 1) && kept <= pages * most, "{kept}");
        assert_eq!(read.arrivals, (last - kept..last).map(without_key).collect::<Vec<_>>());
        assert_eq!((read.has_keys, read.digests), (false, 7));
    }

    #[test]
    fn keys_are_kept_where_they_are_wanted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let mut wanted: Vec<_> = (0..100).map(arrival).collect();
        wanted[9].key = vec![b'x'; KEY].into();
        wanted[10].key = Box::default();
        let mut ring = Ring::open(&path, 1 << 20, true, 7).expect("a ring");
        append(&mut ring, 9, wanted.clone());
        let read = read(&path).expect("arrivals");
        assert!(read.has_keys);
        assert_eq!(read.arrivals, wanted);
    }

    /// What comes at once stands in groups, which are kept whole, so a page may end early.
    #[test]
    fn groups_of_many_are_kept_however_they_are_appended() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let alike =
            |number: u64| Arrival { at: Timestamp(BEGAN + number / 37), cost: number / 1_000, ..arrival(number) };
        for with_keys in [false, true] {
            let wanted: Vec<_> = (0..3_000)
                .map(|number| if with_keys { alike(number) } else { Arrival { key: Box::default(), ..alike(number) } })
                .collect();
            for parts in [1, 7, 300, 3_000] {
                let _ = std::fs::remove_file(&path);
                let mut ring = Ring::open(&path, 1 << 20, with_keys, 7).expect("a ring");
                wanted.chunks(3_000 / parts).for_each(|part| append(&mut ring, 9, part.iter().cloned()));
                assert_eq!(read(&path).expect("arrivals").arrivals, wanted, "{parts} parts, keys: {with_keys}");
            }
        }
    }

    #[test]
    fn all_there_is_to_tell_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let policy = (1 << TAG_BITS) - 1;
        let most = Arrival { policy, cost: u64::MAX, ..without_key(3) };
        let mut ring = Ring::open(&path, 1 << 20, false, 7).expect("a ring");
        append(&mut ring, 5, [most.clone(), without_key(3), most.clone()]);
        assert_eq!(read(&path).expect("arrivals").arrivals, [most.clone(), without_key(3), most]);
    }

    /// A record has the low half of its microsecond alone.
    #[test]
    fn times_are_those_of_the_day_for_however_long_a_process_runs() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let mut ring = Ring::open(&path, 1 << 20, false, 7).expect("a ring");
        // Each is written some time after it came, or before what the process takes for now.
        let wanted: Vec<_> = (1..40).map(|round| without_key(round * 293_000_000)).collect();
        for (round, arrival) in wanted.iter().enumerate() {
            append(&mut ring, arrival.at.0 - BEGAN + round as u64 % 3 * 900_000 - 5, [arrival.clone()]);
        }
        assert_eq!(read(&path).expect("arrivals").arrivals, wanted);
        // The clock of the day is set forward by an hour.
        let mut groups = Groups::default();
        groups.push(Common { at: 12_000_000_000_u64 as u32, policy: 1, cost: 1 }, Digest(1), 0);
        groups.close();
        let at = Timestamp(BEGAN + 15_600_000_000);
        ring.append(groups.bytes(), &[], (Instant(12_000_000_000), at)).expect("written");
        assert_eq!(read(&path).expect("arrivals").arrivals.last().map(|arrival| arrival.at), Some(at));
    }

    #[test]
    fn other_settings_begin_anew_and_another_file_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        append(&mut Ring::open(&path, 1 << 20, false, 7).expect("a ring"), 1, [arrival(1)]);
        Ring::open(&path, 1 << 20, true, 7).expect("a ring");
        assert!(read(&path).expect("arrivals").arrivals.is_empty());
        // Of an earlier version, whose header was shorter.
        std::fs::write(&path, "rationd arrive 1 and what follows").expect("written");
        assert!(matches!(read(&path), Err(ArrivalsError::Format(b'1'))));
        append(&mut Ring::open(&path, 1 << 20, false, 7).expect("a ring"), 1, [without_key(1)]);
        assert_eq!(read(&path).expect("arrivals").arrivals, [without_key(1)]);
        std::fs::write(&path, "my notes").expect("written");
        assert!(matches!(Ring::open(&path, 1 << 20, false, 7), Err(ArrivalsError::Alien)));
        assert_eq!(std::fs::read(&path).expect("a file"), b"my notes");
    }

    /// Groups as they are made, with whatever keys there are behind each.
    fn file_of_4(key: usize, groups: &[u8]) -> Vec<u8> {
        let mut file = header(key, 1, 7).to_vec();
        file[..MAGIC.len()].copy_from_slice(MAGIC_4);
        let mut page = [0; PAGE];
        let end = PAGE_HEADER + groups.len();
        for (at, value) in [(0, 1), (8, BEGAN + 500), (16, 500 | (end as u64) << 32)] {
            page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        page[PAGE_HEADER..end].copy_from_slice(groups);
        let sum = checksum(&page);
        page[SUM..SUM + 4].copy_from_slice(&sum.to_le_bytes());
        file.extend_from_slice(&page);
        file
    }

    /// This test is kept as long as files of format 4 are read.
    #[test]
    fn files_of_the_format_before_are_read() {
        let mut groups = Groups::default();
        for number in [499, 500, 500, 70_000] {
            let Arrival { digest, policy, cost, event, .. } = arrival(number);
            groups.push(Common { at: number as u32, policy, cost }, digest, event as u32);
        }
        groups.close();
        let wanted = [499, 500, 500, 70_000].map(without_key);
        assert_eq!(parse(&file_of_4(0, groups.bytes())).expect("it is known").arrivals, wanted);
        let mut alone = Groups::default();
        alone.push(Common { at: 3, policy: policy_tag("p"), cost: 9 }, arrival(3).digest, Event::Reset as u32);
        alone.close();
        let key = [&[1][..], b"3", &[0; KEY - 1]].concat();
        let read = parse(&file_of_4(KEY_AND_LENGTH, &[alone.bytes(), &key].concat())).expect("it is known");
        assert_eq!((read.has_keys, read.digests, read.arrivals), (true, 7, vec![arrival(3)]));
        // In bytes: when and what came of it, the policy with the cost, and the digest.
        let bytes = [&b"\x04\0\0\0\0\0\0\0"[..], &[3, 0, 0, 7, 0, 0, 0, 0], &[9; 8]].concat();
        let arrivals = parse(&file_of_4(0, &bytes)).expect("it is known").arrivals;
        assert_eq!(
            (arrivals.len(), arrivals[0].at, arrivals[0].cost, arrivals[0].policy),
            (1, Timestamp(BEGAN + 4), 3, 7)
        );
        assert_eq!((arrivals[0].digest, arrivals[0].event), (of_half(0x0909_0909_0909_0909), Event::Admitted));
    }

    #[test]
    fn a_file_of_a_later_format_is_told_by_its_number() {
        let mut file = file_of_4(0, &[]);
        file[15] = b'6';
        let problem = parse(&file).expect_err("it is not known").to_string();
        assert!(problem.contains("format 6") && problem.contains("reads formats 4 and 5"), "{problem}");
        assert!(matches!(parse(b"my notes, which are long"), Err(ArrivalsError::Alien)));
    }

    #[test]
    fn a_page_that_was_half_written_does_not_count() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        append(&mut Ring::open(&path, 1 << 20, false, 7).expect("a ring"), 9, (0..250).map(without_key));
        let bytes = std::fs::read(&path).expect("a file");
        let count = |bytes: &[u8]| parse(bytes).expect("arrivals").arrivals.len();
        let of_page = count(&bytes[..HEADER + PAGE]);
        assert!((150..250).contains(&of_page), "{of_page}");
        assert_eq!(count(&bytes), 250);
        for at in HEADER..HEADER + PAGE {
            let mut torn = bytes.clone();
            torn[at] ^= 0x41;
            assert_eq!(count(&torn), 250 - of_page, "byte {at}");
        }
        assert_eq!(count(&bytes[..bytes.len() - 1]), of_page);
        assert!(matches!(parse(b"rationd"), Err(ArrivalsError::Alien)));
    }
}
