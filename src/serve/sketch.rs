//! A Space-Saving sketch: the keys that are seen most often, of a stream of any length, in bounded memory.
//!
//! Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams" (2005): a
//! key without a counter takes over the counter with the lowest count, and counts on from there. Two things differ
//! here, as every check pays for it. The counters are in sets, each a sketch of its own for the keys whose digests lead
//! there, so that a check looks at one cache line. And only every sixteenth check of keys without a counter takes one
//! over. The reported count is what was seen since the key took its counter over, so it is never too high. Knows
//! neither shards nor time.

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
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    /// Parts of digests; 0 where there is none. Filled from the first on.
    tags: [u32; WAYS],
    /// How often each key was seen since it has its counter.
    times: [u32; WAYS],
    /// What the counter had counted for its earlier keys. The sum of both decides which counter is the lowest.
    before: [u32; WAYS],
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
        let mut bytes = [0; KEY_START];
        let len = key.len().min(KEY_START);
        bytes[..len].copy_from_slice(&key[..len]);
        Self { len: len as u8, bytes } // at most KEY_START
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
    /// Keys that passed since one took a counter over.
    passed: u32,
}

impl Sketch {
    /// Counts a key. `name` is called only when a key is to be remembered, so that most checks need not look its policy
    /// and bytes up.
    #[inline]
    pub fn count<'a>(&mut self, digest: Digest, name: impl FnOnce() -> (&'a Arc<str>, &'a [u8])) {
        let (tag, index) = (tag(digest), (digest.0 >> 32) as usize % SETS);
        let set = &mut self.sets[index];
        if let Some(way) = set.tags.iter().position(|known| *known == tag) {
            set.times[way] = set.times[way].wrapping_add(1);
            // A key that comes once is never hot, so its name is not written down before it comes again.
            if set.times[way] == 2 {
                self.name(index * WAYS + way, digest, name);
            }
            return;
        }
        if set.tags[WAYS - 1] != 0 {
            self.passed += 1;
            if self.passed < PASSES {
                return;
            }
        }
        self.take_over(index, digest, name);
    }

    #[cold]
    fn take_over<'a>(&mut self, index: usize, digest: Digest, name: impl FnOnce() -> (&'a Arc<str>, &'a [u8])) {
        self.passed = 0;
        let set = &mut self.sets[index];
        let sum = |set: &Set, way: usize| set.times[way].saturating_add(set.before[way]);
        let lowest = (0..WAYS).min_by_key(|way| sum(set, *way)).unwrap_or(0);
        set.before[lowest] = sum(set, lowest);
        (set.tags[lowest], set.times[lowest]) = (tag(digest), 1);
        // There is a free counter, so even a key that comes once is named.
        if set.before[lowest] == 0 {
            self.name(index * WAYS + lowest, digest, name);
        }
    }

    #[cold]
    fn name<'a>(&mut self, place: usize, digest: Digest, name: impl FnOnce() -> (&'a Arc<str>, &'a [u8])) {
        if self.names.is_empty() {
            self.names.resize(SETS * WAYS, None);
        }
        if self.names[place].as_ref().is_none_or(|name| name.digest != digest) {
            let (policy, key) = name();
            self.names[place] = Some(Name { digest, policy: policy.clone(), key: KeyStart::of(key) });
        }
    }

    /// Forgets all counts.
    pub fn clear(&mut self) {
        *self.sets = Default::default();
        self.passed = 0;
    }

    /// All keys whose names are known, in no particular order.
    pub fn seen(&self) -> impl Iterator<Item = Seen> + '_ {
        self.names.iter().enumerate().filter_map(|(place, name)| {
            let (set, way) = (&self.sets[place / WAYS], place % WAYS);
            let name = name.as_ref().filter(|name| set.tags[way] == tag(name.digest))?;
            Some(Seen { name: name.clone(), times: u64::from(set.times[way]) })
        })
    }
}

/// The part of a digest that distinguishes the keys of a set; never 0.
fn tag(digest: Digest) -> u32 {
    digest.0 as u32 | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: u64) -> Digest {
        Digest::of("p", &key.to_le_bytes())
    }

    fn count(sketch: &mut Sketch, policy: &Arc<str>, key: u64) {
        let bytes = key.to_le_bytes();
        sketch.count(digest(key), || (policy, &bytes));
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
        let mut told = 0;
        for seen in sketch.seen() {
            let came = counts[&seen.name.digest.0];
            assert!(seen.times <= came, "{came}: {seen:?}");
            told += 1;
        }
        assert!(told >= SETS / 2, "{told}");
    }

    #[test]
    fn a_key_is_kept_by_its_beginning() {
        assert_eq!(KeyStart::of(b"user:42").bytes(), b"user:42");
        assert_eq!(KeyStart::of(&[7; 300]).bytes(), [7; KEY_START]);
    }
}
