//! Arrivals since the last write, for `record.file`: bounded lists that the thread of the file empties.
//!
//! Each deciding thread collects arrivals in a list of its own, which stays in the cache, and hands it over once per
//! batch. A list in each shard, written under the lock under which checks are decided, would cost each check a cache
//! miss: there are 64 shards, and a lock is not released before all writes are in the cache.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use self::file::{Event, KEY, policy_tag};
use self::group::{Common, Groups};
use super::denied::Subject;
use crate::core::time::Instant;

mod compact;
pub mod file;
mod group;

/// Lists that wait for the thread of the file, so that threads seldom meet at one.
const LISTS: usize = 8;

/// When so many arrivals wait in a list, the thread of the file is woken. So many share what it costs to wake it, and they
/// are still in the processor's second cache then, of which they take 150 to 300 KiB.
const FEW: usize = 32_768;

/// Most arrivals of a list that wait. The thread of the file is woken when there are half as many, so that none are lost
/// unless it stalls, and then all lists together hold 16 MiB (with keys up to 49 MiB).
const MOST: usize = 65_536;

/// Arrivals, in the order in which they were decided.
#[derive(Debug, Default)]
pub struct Arrived {
    groups: Groups,
    /// The keys' first bytes, each behind its length; empty where keys are not recorded.
    keys: Vec<u8>,
    /// How many found no room.
    lost: u64,
    /// The last policy and its tag, since most arrivals are of few policies.
    last: Option<(Arc<str>, u64)>,
    /// Where that policy's name is in memory, which `last` keeps there; 0 where there is none, or keys are recorded.
    quick: usize,
    /// To which list it is handed over, so that a thread meets the memory of one list, which nobody else writes.
    home: Option<usize>,
}

/// The lists that wait for the thread of the file.
#[derive(Debug)]
pub struct Recording {
    lists: [Mutex<Arrived>; LISTS],
    /// How many collectors have been given a list.
    homes: AtomicUsize,
    with_keys: bool,
    /// The thread of the file, once it has said that it takes what waits.
    taker: OnceLock<Thread>,
    /// That thread has found nothing and sleeps until something comes.
    rests: AtomicBool,
}

impl Arrived {
    /// How many arrivals there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether there are no arrivals and none were lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.lost == 0
    }

    /// How many arrivals found no room.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// The groups that were handed over, as [`file::Ring::append`] takes them, and their keys' first bytes, each after
    /// its length.
    #[must_use]
    pub fn bytes(&self) -> (&[u8], &[u8]) {
        (self.groups.bytes(), &self.keys)
    }

    /// Empties the list, and keeps its memory.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.keys.clear();
        self.lost = 0;
    }

    fn tag(&mut self, policy: &Arc<str>) -> u64 {
        match &self.last {
            Some((known, tag)) if Arc::ptr_eq(known, policy) => *tag,
            _ => self.last.insert((policy.clone(), policy_tag(policy))).1,
        }
    }

    fn add_key(&mut self, key: &[u8]) {
        let key = &key[..key.len().min(KEY)];
        // At most 64.
        self.keys.push(key.len() as u8);
        self.keys.extend_from_slice(key);
    }
}

impl Recording {
    /// Empty lists.
    #[must_use]
    pub fn new(with_keys: bool) -> Self {
        Self {
            lists: std::array::from_fn(|_| Mutex::default()),
            homes: AtomicUsize::new(0),
            with_keys,
            taker: OnceLock::new(),
            rests: AtomicBool::new(false),
        }
    }

    /// Adds an arrival to a list, which must be [handed over](Self::hand_over).
    #[inline]
    pub fn add<'a>(
        &self,
        arrived: &mut Arrived,
        at: Instant,
        cost: u64,
        event: Event,
        subject: impl Fn() -> Subject<'a>,
    ) {
        // The low half is enough: see `file.rs`.
        let at = at.0 as u32;
        if arrived.groups.takes(at, cost) && arrived.quick == place(subject().policy) {
            arrived.groups.add(subject().digest, event as u32);
        } else {
            self.add_another(arrived, at, cost, event, subject);
        }
    }

    /// Adds an arrival that differs from the last one in more than its key and outcome.
    #[inline(never)]
    fn add_another<'a>(
        &self,
        arrived: &mut Arrived,
        at: u32,
        cost: u64,
        event: Event,
        subject: impl Fn() -> Subject<'a>,
    ) {
        let subject = subject();
        if self.with_keys {
            arrived.add_key(subject.key);
        }
        let policy = arrived.tag(subject.policy);
        arrived.quick = if self.with_keys { 0 } else { place(subject.policy) };
        arrived.groups.push(Common { at, policy, cost }, subject.digest, event as u32);
    }

    /// Moves all of a list to those that wait for the file.
    pub fn hand_over(&self, arrived: &mut Arrived) {
        if arrived.is_empty() {
            return;
        }
        let home = *arrived.home.get_or_insert_with(|| self.homes.fetch_add(1, Ordering::Relaxed));
        let mut is_much = false;
        for turn in 0..LISTS {
            let mut list = lock(&self.lists[home.wrapping_add(turn) % LISTS]);
            let before = list.len();
            if before + arrived.len() <= MOST {
                list.groups.append(&mut arrived.groups);
                if self.with_keys {
                    list.keys.extend_from_slice(&arrived.keys);
                }
                is_much = before < FEW && list.len() >= FEW;
                break;
            }
            if turn + 1 == LISTS {
                list.lost += arrived.len() as u64;
            }
        }
        arrived.clear();
        if is_much || self.rests.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.rests.store(false, Ordering::Relaxed);
        if let Some(taker) = self.taker.get() {
            taker.unpark();
        }
    }

    /// Hands all that waits to `act`, list by list. `arrived` is empty before and after.
    pub fn take(&self, arrived: &mut Arrived, mut act: impl FnMut(&Arrived)) {
        for list in &self.lists {
            let mut list = lock(list);
            // An empty list keeps its memory, so that the few that are used go on in what the cache holds.
            if list.is_empty() {
                continue;
            }
            std::mem::swap(&mut *list, arrived);
            drop(list);
            act(arrived);
            arrived.clear();
        }
    }

    /// Has this thread unparked when much waits, and after [`Self::rest`] as soon as anything does.
    pub fn wake_me(&self) {
        // The first thread remains: a file has one.
        let _ = self.taker.set(std::thread::current());
    }

    /// The next arrival unparks the thread that takes them. It must take once more after this, since earlier arrivals did
    /// not. None is missed in between: taking locks each list, so whoever hands over to a list after that sees that it
    /// has to unpark.
    pub fn rest(&self) {
        self.rests.store(true, Ordering::Relaxed);
    }
}

/// Where a policy's name is in memory.
#[inline]
fn place(policy: &Arc<str>) -> usize {
    Arc::as_ptr(policy).addr()
}

fn lock(list: &Mutex<Arrived>) -> MutexGuard<'_, Arrived> {
    // No code panics while it holds one of these locks.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::file::{Arrival, Ring};
    use super::*;
    use crate::core::key::Digest;
    use crate::core::time::Timestamp;

    fn subject<'a>(policy: &'a Arc<str>, digest: u128, key: &'a [u8]) -> Subject<'a> {
        Subject { policy, rule: None, digest: Digest(digest), key }
    }

    /// What is read of a file into which all that waits was written, and what was lost.
    fn taken(recording: &Recording, now: Instant) -> (Vec<Arrival>, u64) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("arrivals");
        let mut ring = Ring::open(&path, 64 << 20, recording.with_keys, 7).expect("a ring");
        let mut lost = 0;
        recording.take(&mut Arrived::default(), |arrived| {
            let (groups, keys) = arrived.bytes();
            ring.append(groups, keys, (now, Timestamp(now.0 + 7))).expect("written");
            lost += arrived.lost();
        });
        (file::read(&path).expect("arrivals").arrivals, lost)
    }

    #[test]
    fn what_was_added_is_taken_as_it_was() {
        let policies: [Arc<str>; 2] = [Arc::from("p"), Arc::from("q")];
        for with_keys in [false, true] {
            let recording = Recording::new(with_keys);
            let mut arrived = Arrived::default();
            for round in 0..3 {
                let begun = round * 1_000_000;
                let mut wanted: Vec<_> = (0..40_usize)
                    .map(|number| {
                        let at = Instant(begun + number as u64 * 37 % 50);
                        let key = "k".repeat(number * 3);
                        let (policy, event) = (&policies[number / 3 % 2], Event::ALL[number % 4]);
                        let subject = subject(policy, u128::MAX / (number as u128 + 1), key.as_bytes());
                        let (cost, digest) = (number as u64, file::kept(subject.digest));
                        recording.add(&mut arrived, at, cost, event, || subject);
                        let key = if with_keys { &key.as_bytes()[..key.len().min(KEY)] } else { &[] };
                        let at = Timestamp(at.0 + 7);
                        Arrival { at, digest, policy: policy_tag(policy), cost, event, key: key.into() }
                    })
                    .collect();
                wanted.sort_by_key(|arrival| arrival.at);
                recording.hand_over(&mut arrived);
                assert!(arrived.is_empty());
                assert_eq!(taken(&recording, Instant(begun)), (wanted, 0), "round {round}, keys: {with_keys}");
            }
        }
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let (recording, policy) = (Recording::new(false), Arc::from("p"));
        let mut arrived = Arrived::default();
        let most = (LISTS * MOST) as u64;
        for number in 0..most + 5 {
            recording.add(&mut arrived, Instant(number), 1, Event::Admitted, || subject(&policy, 1, b"k"));
            recording.hand_over(&mut arrived);
        }
        let (arrivals, lost) = taken(&recording, Instant(most));
        assert_eq!((arrivals.len() as u64, arrivals[0].at, arrivals[0].key.len(), lost), (most, Timestamp(7), 0, 5));
        assert_eq!(taken(&recording, Instant(most)), (Vec::new(), 0));
    }

    #[test]
    fn whoever_takes_arrivals_is_woken_by_the_first_and_when_there_are_many() {
        let (recording, policy) = (Recording::new(false), Arc::from("p"));
        let mut arrived = Arrived::default();
        let mut come = |many: usize| {
            for number in 0..many {
                recording.add(&mut arrived, Instant(number as u64), 1, Event::Admitted, || subject(&policy, 1, b"k"));
                recording.hand_over(&mut arrived);
            }
        };
        recording.wake_me();
        recording.rest();
        come(1);
        // Each of these would last forever.
        std::thread::park();
        come(FEW - 1);
        std::thread::park();
        assert!(!recording.rests.load(Ordering::Relaxed));
        let mut taken = 0;
        recording.take(&mut Arrived::default(), |arrived| taken += arrived.len());
        assert_eq!(taken, FEW);
    }
}
