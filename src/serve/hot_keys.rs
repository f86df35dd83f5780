//! The keys of one shard that are checked most, and those that are denied most, of the last ten to twenty seconds.
//!
//! Two sketches of each kind take turns, so that keys that are no longer hot make room. `node` calls it for each check,
//! while the shard is locked; `top` merges the sketches of all shards.

use std::sync::Arc;

use super::sketch::{Seen, Sketch};
use crate::core::key::Digest;
use crate::core::time::{Instant, Micros};

/// How long a sketch counts before the next one does. It is kept for as long again.
pub const WINDOW: Micros = Micros::from_secs(10);

/// The hot keys of one shard.
#[derive(Debug, Default)]
// What each check looks at stands together.
#[repr(C)]
pub struct HotKeys {
    /// When `current` has counted for long enough.
    turns_at: Instant,
    current: Window,
    previous: Window,
}

#[derive(Debug, Default)]
#[repr(C)]
struct Window {
    used: Sketch,
    denied: Sketch,
    begun: Instant,
}

impl Window {
    fn begin(&mut self, at: Instant) {
        self.begun = at;
        self.used.clear();
        self.denied.clear();
    }

    #[inline(always)]
    fn of(&mut self, kind: Kind) -> &mut Sketch {
        match kind {
            Kind::Used => &mut self.used,
            Kind::Denied => &mut self.denied,
        }
    }
}

/// What the sketches count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Checks, whatever their outcome.
    Used,
    /// Checks that were denied.
    Denied,
}

/// What there is to note of a key that was counted: something at this place of its sketch, or `OVER`.
#[derive(Clone, Copy, Debug)]
pub struct Note(usize);

/// The window is over, and the key is not counted yet.
const OVER: usize = usize::MAX;

impl HotKeys {
    /// Counts a key, and returns what there is to [note](Self::note) of it, which is seldom anything.
    #[inline(always)]
    #[must_use]
    pub fn count(&mut self, now: Instant, kind: Kind, digest: Digest) -> Option<Note> {
        if now >= self.turns_at {
            return Some(Note(OVER));
        }
        self.current.of(kind).count(digest).map(Note)
    }

    /// Notes it.
    #[cold]
    #[inline(never)]
    pub fn note(
        &mut self,
        now: Instant,
        (kind, Note(place)): (Kind, Note),
        digest: Digest,
        policy: &Arc<str>,
        key: &[u8],
    ) {
        match place {
            OVER => self.count_first(now, kind, digest, policy, key),
            place => self.current.of(kind).note(place, digest, policy, key),
        }
    }

    /// Counts the first key of a window.
    #[cold]
    #[inline(never)]
    fn count_first(&mut self, now: Instant, kind: Kind, digest: Digest, policy: &Arc<str>, key: &[u8]) {
        self.turn(now);
        if let Some(place) = self.current.of(kind).count(digest) {
            self.current.of(kind).note(place, digest, policy, key);
        }
    }

    /// Windows begin at multiples of their length, so that those of all shards cover the same time.
    #[cold]
    #[inline(never)]
    fn turn(&mut self, now: Instant) {
        let begun = Instant(now.0 - now.0 % WINDOW.0);
        if now.since(self.turns_at) < WINDOW {
            std::mem::swap(&mut self.current, &mut self.previous);
        } else {
            self.previous.begin(Instant(begun.0.saturating_sub(WINDOW.0)));
        }
        self.current.begin(begun);
        self.turns_at = begun + WINDOW;
    }

    /// Appends the keys of both windows; a key may come up twice.
    pub fn seen(&mut self, now: Instant, kind: Kind, into: &mut Vec<Seen>) {
        if now >= self.turns_at {
            self.turn(now);
        }
        for window in [&mut self.previous, &mut self.current] {
            into.extend(window.of(kind).seen());
        }
    }
}

/// How long the windows of all shards have counted by `now`, in a node that started at `started`.
#[must_use]
pub fn span(started: Instant, now: Instant) -> Micros {
    let begun = (now.0 - now.0 % WINDOW.0).saturating_sub(WINDOW.0);
    now.since(Instant(begun.max(started.0)))
}

/// The `most` that were seen most often, each once. Ties are in the order of digests.
#[must_use]
pub fn top(mut seen: Vec<Seen>, most: usize) -> Vec<Seen> {
    seen.sort_unstable_by_key(|seen| seen.name.digest.0);
    seen.dedup_by(|later, first| {
        let is_same = later.name.digest == first.name.digest;
        if is_same {
            first.times += later.times;
        }
        is_same
    });
    seen.sort_by_key(|seen| std::cmp::Reverse(seen.times));
    seen.truncate(most);
    seen
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn count(hot: &mut HotKeys, now: Instant, digest: Digest, policy: &Arc<str>, key: &[u8]) {
        if let Some(note) = hot.count(now, Kind::Used, digest) {
            hot.note(now, (Kind::Used, note), digest, policy, key);
        }
    }

    #[test]
    fn a_key_is_hot_for_ten_to_twenty_seconds() {
        let mut hot = HotKeys::default();
        let policy = "p".into();
        let count = |hot: &mut HotKeys, seconds: u64, key: u64| {
            let now = Instant(seconds * 1_000_000);
            super::tests::count(hot, now, Digest::of("p", &key.to_le_bytes()), &policy, b"k");
        };
        (0..5).for_each(|_| count(&mut hot, 101, 1));
        (0..2).for_each(|_| count(&mut hot, 111, 1));
        count(&mut hot, 112, 2);
        let times = |hot: &mut HotKeys, seconds: u64| {
            let mut seen = Vec::new();
            hot.seen(Instant(seconds * 1_000_000), Kind::Used, &mut seen);
            top(seen, 10).iter().map(|seen| seen.times).collect::<Vec<_>>()
        };
        assert_eq!(times(&mut hot, 119), [7, 1]);
        assert_eq!(times(&mut hot, 120), [2, 1]);
        assert_eq!(times(&mut hot, 129), [2, 1]);
        assert_eq!(times(&mut hot, 130), [0_u64; 0]);
        (0..3).for_each(|_| count(&mut hot, 131, 1));
        assert_eq!(times(&mut hot, 500), [0_u64; 0], "nothing was checked for long");
    }

    #[test]
    fn the_span_is_that_of_both_windows() {
        let span = |started: u64, now: u64| span(Instant(started), Instant(now)).0;
        assert_eq!(span(0, 3_000_000), 3_000_000);
        assert_eq!(span(0, 25_000_000), 15_000_000);
        assert_eq!(span(24_000_000, 25_000_000), 1_000_000);
    }

    /// The keys of a service are often distributed by Zipf's law with an exponent near 1.1. Of such keys the twenty
    /// most frequent are found, all of them.
    #[test]
    fn the_top_twenty_of_a_zipf_distribution_are_found() {
        const SHARDS: usize = 64;
        const KEYS: u64 = 100_000;
        let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-1.1));
        let sums: Vec<f64> = weights
            .scan(0.0, |sum, weight| {
                *sum += weight;
                Some(*sum)
            })
            .collect();
        let whole = sums[sums.len() - 1];
        let policy = "p".into();
        for seed in 1..=5_u64 {
            let mut shards: Vec<HotKeys> = (0..SHARDS).map(|_| HotKeys::default()).collect();
            let mut counts: HashMap<u128, u64> = HashMap::new();
            let mut state = seed;
            // The checks run over the turn of a window.
            for check in 0..400_000_u64 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let drawn = (state >> 11) as f64 / (1_u64 << 53) as f64 * whole;
                let rank = sums.partition_point(|sum| *sum < drawn) as u64;
                let digest = Digest::of("p", &rank.to_le_bytes());
                let now = Instant(15_000_000 + check * 25);
                let shard = &mut shards[(digest.0 >> 64) as usize % SHARDS];
                let key = rank.to_le_bytes();
                count(shard, now, digest, &policy, &key);
                *counts.entry(digest.0).or_default() += 1;
            }
            let mut seen = Vec::new();
            shards.iter_mut().for_each(|shard| shard.seen(Instant(24_999_999), Kind::Used, &mut seen));
            let mut wanted: Vec<(u64, u128)> = counts.into_iter().map(|(digest, count)| (count, digest)).collect();
            wanted.sort_unstable_by_key(|(count, digest)| (std::cmp::Reverse(*count), *digest));
            let listed: Vec<(u64, u128)> = top(seen, 20).iter().map(|seen| (seen.times, seen.name.digest.0)).collect();
            let found =
                wanted[..20].iter().filter(|(_, digest)| listed.iter().any(|(_, listed)| listed == digest)).count();
            assert_eq!(found, 20, "seed {seed}: {listed:?} of {:?}", &wanted[..25]);
        }
    }
}
