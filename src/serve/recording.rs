//! What came to this node since it was last asked, for `record.file`: bounded lists that the thread of the file takes.
//!
//! Whoever decides about checks collects them in a list of its own, which lies in the cache, and hands it over once for all
//! of a batch. Lists of the shards, under whose locks checks are decided, would cost each check the time of a cache miss:
//! there are 64 of them, and a lock is not released before all that was written is in the cache.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::file::{Arrival, Event, KEY, policy_tag};
use crate::core::key::Digest;
use crate::core::time::{Instant, Timestamp};

pub mod file;

/// Lists that wait for the thread of the file, so that threads seldom meet at one.
const LISTS: usize = 8;

/// Most arrivals of a list that wait. They are taken fifty times a second, so that some are lost from three million a second
/// on, and all lists together hold 20 MiB when the file stalls (with keys up to 50 MiB).
const MOST: usize = 65_536;

/// Arrivals, in the order in which they were decided.
#[derive(Debug, Default)]
pub struct Arrived {
    list: Vec<Packed>,
    /// The keys' first bytes, each behind its length; empty where keys are not recorded.
    keys: Vec<u8>,
    /// Those for which there was no room.
    lost: u64,
    /// The last policy and what stands for it, since most arrivals are of few policies.
    last: Option<(Arc<str>, u64)>,
}

/// One arrival.
#[derive(Clone, Copy, Debug)]
struct Packed {
    digest: [u64; 2],
    policy: u64,
    cost: u64,
    /// Four times the microsecond at which it came, and the number of the event.
    at_and_event: u64,
}

/// What waits for the thread of the file.
#[derive(Debug)]
pub struct Recording {
    lists: [Mutex<Arrived>; LISTS],
    with_keys: bool,
}

impl Arrived {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none, and none were lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.lost == 0
    }

    /// How many there were no room for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// All of them; `wall` says which time of day a moment of this process was.
    pub fn arrivals(&self, wall: impl Fn(Instant) -> Timestamp) -> impl Iterator<Item = Arrival> {
        let mut keys = &self.keys[..];
        self.list.iter().map(move |packed| {
            let key = keys.split_off_first().and_then(|length| keys.split_off(..usize::from(*length)));
            Arrival {
                at: wall(Instant(packed.at_and_event >> 2)),
                digest: Digest(u128::from(packed.digest[0]) << 64 | u128::from(packed.digest[1])),
                policy: packed.policy,
                cost: packed.cost,
                event: Event::ALL[packed.at_and_event as usize & 3],
                key: key.unwrap_or_default().into(),
            }
        })
    }

    /// Forgets them, and keeps the room that they took.
    pub fn clear(&mut self) {
        self.list.clear();
        self.keys.clear();
        self.lost = 0;
    }

    fn tag(&mut self, policy: &Arc<str>) -> u64 {
        match &self.last {
            Some((known, tag)) if Arc::ptr_eq(known, policy) => *tag,
            _ => self.last.insert((policy.clone(), policy_tag(policy))).1,
        }
    }
}

impl Recording {
    /// Nothing yet.
    #[must_use]
    pub fn new(with_keys: bool) -> Self {
        Self { lists: std::array::from_fn(|_| Mutex::default()), with_keys }
    }

    /// Adds an arrival to a list, which must be [handed over](Self::hand_over).
    pub fn add(
        &self,
        arrived: &mut Arrived,
        at: Instant,
        policy: &Arc<str>,
        (digest, key): (Digest, &[u8]),
        cost: u64,
        event: Event,
    ) {
        if self.with_keys {
            let key = &key[..key.len().min(KEY)];
            // At most 64.
            arrived.keys.push(key.len() as u8);
            arrived.keys.extend_from_slice(key);
        }
        let policy = arrived.tag(policy);
        let digest = [(digest.0 >> 64) as u64, digest.0 as u64];
        arrived.list.push(Packed { digest, policy, cost, at_and_event: at.0 << 2 | event as u64 });
    }

    /// Moves all of a list to those that wait for the file.
    pub fn hand_over(&self, arrived: &mut Arrived) {
        let Some(first) = arrived.list.first() else { return };
        let mut list = lock(&self.lists[first.digest[1] as usize % LISTS]);
        if list.len() + arrived.len() <= MOST {
            list.list.extend_from_slice(&arrived.list);
            list.keys.extend_from_slice(&arrived.keys);
        } else {
            list.lost += arrived.len() as u64;
        }
        drop(list);
        arrived.clear();
    }

    /// Hands all that waits to `act`, list by list. `arrived` is empty before and after.
    pub fn take(&self, arrived: &mut Arrived, mut act: impl FnMut(&Arrived)) {
        for list in &self.lists {
            std::mem::swap(&mut *lock(list), arrived);
            if !arrived.is_empty() {
                act(arrived);
                arrived.clear();
            }
        }
    }
}

fn lock(list: &Mutex<Arrived>) -> MutexGuard<'_, Arrived> {
    // No code panics while it holds one of these locks.
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(at: Instant) -> Timestamp {
        Timestamp(at.0 + 7)
    }

    fn taken(recording: &Recording) -> (Vec<Arrival>, u64) {
        let (mut all, mut lost) = (Vec::new(), 0);
        recording.take(&mut Arrived::default(), |arrived| {
            all.extend(arrived.arrivals(wall));
            lost += arrived.lost();
        });
        (all, lost)
    }

    #[test]
    fn what_was_added_is_taken_as_it_was() {
        let policies: [Arc<str>; 2] = [Arc::from("p"), Arc::from("q")];
        for with_keys in [false, true] {
            let recording = Recording::new(with_keys);
            let mut arrived = Arrived::default();
            for round in 0..3 {
                let wanted: Vec<_> = (0..40_usize)
                    .map(|number| {
                        let at = Instant(round * 1_000_000 + number as u64 * 37 % 50);
                        let key = "k".repeat(number * 3);
                        let digest = Digest(u128::MAX / (number as u128 + 1));
                        let (policy, event) = (&policies[number / 3 % 2], Event::ALL[number % 4]);
                        let cost = if number == 7 { u64::MAX } else { number as u64 };
                        recording.add(&mut arrived, at, policy, (digest, key.as_bytes()), cost, event);
                        let key = if with_keys { &key.as_bytes()[..key.len().min(KEY)] } else { &[] };
                        Arrival { at: wall(at), digest, policy: policy_tag(policy), cost, event, key: key.into() }
                    })
                    .collect();
                recording.hand_over(&mut arrived);
                assert!(arrived.is_empty());
                assert_eq!(taken(&recording), (wanted, 0), "round {round}, keys: {with_keys}");
            }
        }
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let (recording, policy) = (Recording::new(false), Arc::from("p"));
        let mut arrived = Arrived::default();
        for number in 0..MOST as u64 + 5 {
            recording.add(&mut arrived, Instant(number), &policy, (Digest(1), b"k"), 1, Event::Admitted);
            recording.hand_over(&mut arrived);
        }
        let (arrivals, lost) = taken(&recording);
        assert_eq!((arrivals.len(), arrivals[0].at, arrivals[0].key.len(), lost), (MOST, wall(Instant(0)), 0, 5));
        assert_eq!(taken(&recording), (Vec::new(), 0));
    }
}
