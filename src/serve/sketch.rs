//! A Space-Saving sketch: the keys that are seen most often, of a stream of any length, in bounded memory.
//!
//! Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005): a
//! key without a counter takes over the counter with the lowest count, and counts on from there. Three things differ here,
//! as every check pays for it. The counters are in sets, each a sketch of its own for the keys whose digests lead there, so
//! that a check looks at one cache line. Only every sixteenth check of keys without a counter takes one over. And a check adds
//! one to a counter, be it its key's or that of the keys without one, and looks at nothing else until the counter comes to
//! zero: each begins as far below zero as there is nothing to do. The reported count is what was seen since the key took its
//! counter over, so it is never too high. Knows neither shards nor time.

use std::fmt;
use std::sync::Arc;

use crate::core::key::Digest;

/// Counters of a set, which are compared at once.
const WAYS: usize = 4;
/// Sets of a sketch.
const SETS: usize = 8;
/// Bytes that are kept of a key.
pub const KEY_START: usize = 64;

/// When all counters of a set are taken, only one of so many checks of keys without a counter takes one over. A key
/// that comes often gets one soon all the same, and keys that come once cost little.
const PASSES: u32 = 16;

/// Counters of keys that lead to the same set. It fills one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set {
    /// Parts of digests; 0 where there is none. Filled from the first on.
    tags: [u32; WAYS],
    /// How often each key was seen since it has its counter, above [`UNSEEN`]; and last, the keys without one that are still to pass,
    /// below zero.
    counters: [u32; WAYS + 1],
    /// What the counter had counted for its earlier keys. The sum of both decides which counter is the lowest.
    before: [u32; WAYS],
}

/// Where the counter of a key begins. A key that comes once is never hot, so its name is not written down before it comes again, which is
/// when its counter comes to zero.
const UNSEEN: u32 = 0_u32.wrapping_sub(2);

impl Default for Set {
    fn default() -> Self {
        let mut counters = [UNSEEN; WAYS + 1];
        // The next key takes a counter at once.
        counters[WAYS] = 0_u32.wrapping_sub(1);
        Self { tags: [0; WAYS], counters, before: [0; WAYS] }
    }
}

impl Set {
    /// The place of the counter of a key, or of the keys without one. All are compared, because which it is, no processor foretells.
    #[inline]
    fn place(&self, tag: u32) -> usize {
        (0..WAYS).rev().fold(WAYS, |place, way| if self.tags[way] == tag { way } else { place })
    }

    fn times(&self, way: usize) -> u32 {
        self.counters[way].wrapping_sub(UNSEEN)
    }

    /// The key of this tag takes the counter that has the lowest count.
    #[inline(always)]
    fn take_over(&mut self, tag: u32) {
        // What was counted for the key of a counter and those that had it before.
        let sum = |way: usize| u64::from(self.times(way)) + u64::from(self.before[way]);
        let (mut lowest, mut least) = (0, sum(0));
        for way in 1..WAYS {
            let sum = sum(way);
            (lowest, least) = if sum < least { (way, sum) } else { (lowest, least) };
        }
        self.before[lowest] = u32::try_from(least).unwrap_or(u32::MAX);
        self.take(lowest, tag);
    }

    #[inline(always)]
    fn take(&mut self, way: usize, tag: u32) {
        (self.tags[way], self.counters[way]) = (tag, UNSEEN.wrapping_add(1));
        let passes = if self.tags[WAYS - 1] == 0 { 1 } else { PASSES };
        self.counters[WAYS] = 0_u32.wrapping_sub(passes);
    }
}

/// The beginning of a key's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyStart {
    len: u8,
    bytes: [u8; KEY_START],
}

impl KeyStart {
    /// The start of these bytes.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        let mut start = Self { len: 0, bytes: [0; KEY_START] };
        start.set(key);
        start
    }

    fn set(&mut self, key: &[u8]) {
        let len = key.len().min(KEY_START);
        self.bytes = [0; KEY_START];
        self.bytes[..len].copy_from_slice(&key[..len]);
        self.len = len as u8; // at most KEY_START
    }

    /// The bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for KeyStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.bytes().escape_ascii().to_string())
    }
}

/// A key by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The digest of policy and key.
    pub digest: Digest,
    /// The policy.
    pub policy: Arc<str>,
    /// The key's beginning.
    pub key: KeyStart,
}

/// A key that was seen often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The key.
    pub name: Name,
    /// How often it was seen since it has a counter.
    pub times: u64,
}

/// The sketch.
#[derive(Debug, Default)]
pub struct Sketch {
    sets: Box<[Set; SETS]>,
    /// The name of each counter's key, where it has one; empty until the first key comes.
    names: Vec<Option<Name>>,
}

impl Sketch {
    /// Counts a key. Where there is something to [note](Self::note) of it, its place is returned; most checks save to look up its name.
    #[inline(always)]
    #[must_use]
    pub fn count(&mut self, digest: Digest) -> Option<usize> {
        let set = &mut self.sets[index(digest)];
        let place = set.place(tag(digest));
        set.counters[place] = set.counters[place].wrapping_add(1);
        (set.counters[place] == 0).then_some(place)
    }

    /// A key was [counted](Self::count) at this place, and there is something to note: its name, or that it takes a counter over.
    #[inline(always)]
    pub fn note(&mut self, place: usize, digest: Digest, policy: &Arc<str>, key: &[u8]) {
        let index = index(digest);
        let set = &mut self.sets[index];
        if place < WAYS {
            return self.name(index * WAYS + place, digest, policy, key);
        }
        if set.tags[WAYS - 1] != 0 {
            return set.take_over(tag(digest));
        }
        // There is room, so that what comes once is told of, too.
        let way = set.tags.iter().position(|known| *known == 0).unwrap_or(WAYS - 1);
        set.take(way, tag(digest));
        self.name(index * WAYS + way, digest, policy, key);
    }

    #[inline(never)]
    fn name(&mut self, place: usize, digest: Digest, policy: &Arc<str>, key: &[u8]) {
        if self.names.is_empty() {
            self.names.resize(SETS * WAYS, None);
        }
        match &mut self.names[place] {
            Some(name) if name.digest == digest => {}
            // Most keys of a shard are of few policies.
            Some(name) if Arc::ptr_eq(&name.policy, policy) => {
                name.digest = digest;
                name.key.set(key);
            }
            name => *name = Some(Name { digest, policy: policy.clone(), key: KeyStart::of(key) }),
        }
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        *self.sets = Default::default();
    }

    /// All keys whose names are known, in no particular order.
    pub fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        self.names.iter().enumerate().filter_map(|(place, name)| {
            let (set, way) = (&self.sets[place / WAYS], place % WAYS);
            let name = name.as_ref().filter(|name| set.tags[way] == tag(name.digest))?;
            Some(Seen { name: name.clone(), times: u64::from(set.times(way)) })
        })
    }
}

/// The set of a key: by bits that are the place of its bytes, too.
#[inline]
fn index(digest: Digest) -> usize {
    digest.0 as usize / size_of::<Set>() % SETS
}

/// What a set knows a key by; never 0.
#[inline]
fn tag(digest: Digest) -> u32 {
    (digest.0 >> 32) as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: u64) -> Digest {
        Digest::of("p", &key.to_le_bytes())
    }

    fn count(sketch: &mut Sketch, policy: &Arc<str>, key: u64) {
        if let Some(place) = sketch.count(digest(key)) {
            sketch.note(place, digest(key), policy, &key.to_le_bytes());
        }
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let (mut sketch, policy) = (Sketch::default(), "p".into());
        for key in 0..4_u64 {
            (0..=key).for_each(|_| count(&mut sketch, &policy, key));
        }
        let mut seen: Vec<_> = sketch.seen().map(|seen| (seen.times, seen.name.key)).collect();
        seen.sort_unstable_by_key(|(times, ..)| *times);
        let wanted: Vec<_> = (0..4_u64).map(|key| (key + 1, KeyStart::of(&key.to_le_bytes()))).collect();
        assert_eq!(seen, wanted);
        sketch.clear();
        assert_eq!(sketch.seen().count(), 0);
    }

    #[test]
    fn a_flood_of_keys_that_come_once_displaces_no_hot_key_and_is_not_named() {
        let (mut sketch, policy) = (Sketch::default(), "p".into());
        for round in 0..10_000_u64 {
            count(&mut sketch, &policy, 1);
            count(&mut sketch, &policy, 1_000 + round);
        }
        let seen: Vec<_> = sketch.seen().filter(|seen| seen.times > 2).collect();
        assert_eq!(seen.len(), 1, "{seen:?}");
        assert_eq!((seen[0].name.digest, seen[0].times), (digest(1), 10_000));
    }

    #[test]
    fn where_all_counters_are_taken_a_key_gets_one_when_it_has_come_sixteen_times() {
        let (mut sketch, policy) = (Sketch::default(), "p".into());
        // They all lead to one set.
        let mut times = |key: u64, count: usize| {
            let digest = Digest(u128::from(key) << 32);
            for _ in 0..count {
                if let Some(place) = sketch.count(digest) {
                    sketch.note(place, digest, &policy, &key.to_le_bytes());
                }
            }
            let seen = sketch.seen().find(|seen| seen.name.digest == digest);
            seen.map(|seen| seen.times)
        };
        for key in 0..4 {
            // Keys that differ in more than the bit that no tag has.
            assert_eq!(times(2 * key, 1), Some(1), "there is room for key {key}");
            assert_eq!(times(2 * key, 4 + key as usize), Some(5 + key));
        }
        assert_eq!(times(8, 15), None);
        assert_eq!(times(8, 1), None, "it has a counter, and is named when it comes again");
        assert_eq!(times(8, 1), Some(2));
        assert_eq!((times(0, 0), times(2, 0)), (None, Some(6)), "it is that of the key that came least");
        assert_eq!(times(10, 16), None);
        assert_eq!(
            (times(10, 1), times(2, 0), times(8, 0)),
            (Some(2), None, Some(2)),
            "what was counted before counts"
        );
    }

    #[test]
    fn what_is_told_never_exceeds_what_came() {
        let (mut sketch, policy) = (Sketch::default(), "p".into());
        let mut counts = std::collections::HashMap::new();
        let mut state = 7_u64;
        for _ in 0..100_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = (state >> 33) % (1 + (state >> 50) % 500);
            count(&mut sketch, &policy, key);
            *counts.entry(digest(key).0).or_insert(0) += 1;
        }
        let mut kept = 0;
        for seen in sketch.seen() {
            let came = counts[&seen.name.digest.0];
            assert!(seen.times <= came, "{came}: {seen:?}");
            kept += 1;
        }
        assert!(kept >= SETS / 2, "{kept}");
    }

    #[test]
    fn a_key_is_kept_by_its_beginning() {
        assert_eq!(KeyStart::of(b"user:42").bytes(), b"user:42");
        assert_eq!(KeyStart::of(&[7; 300]).bytes(), [7; KEY_START]);
    }
}
