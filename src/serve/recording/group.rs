//! Arrivals in few bytes: those that differ only in key and outcome form one group.
//!
//! A group has a head of two words: the low half of a microsecond and the outcome of each arrival, two bits each from
//! the lowest on; then the policy's tag, how many arrivals there are less one, and their cost. A cost that is too large
//! for the head has a word behind it. The first halves of the arrivals' digests follow, which are enough to tell keys
//! apart. What one connection sends at once comes at one time, so a group saves what most of its arrivals would repeat.
//! The deciding threads write this form; the thread of the file makes it shorter (`compact.rs`). Files of format 4 have
//! groups as they are here.

use crate::core::key::Digest;

/// The bits of a policy's tag.
pub(super) const TAG_BITS: u32 = 40;
/// The bits of how many arrivals a group has, less one.
const COUNT_BITS: u32 = 4;
/// The bits of a cost in a head.
const COST_BITS: u32 = u64::BITS - TAG_BITS - COUNT_BITS;
/// Written instead of a cost that has a word of its own.
const LONG: u64 = (1 << COST_BITS) - 1;

/// Most arrivals of a group: their outcomes are half a word.
pub(super) const MOST: usize = 1 << COUNT_BITS;

const WORD: usize = 8;
/// Bytes that are kept of a digest.
const DIGEST: usize = 8;

/// The fields that the arrivals of a group have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Common {
    /// The low half of the microsecond at which they came.
    pub at: u32,
    /// The tag of their policy.
    pub policy: u64,
    /// What each costs.
    pub cost: u64,
}

/// Groups that are being written. The last takes further arrivals until it is [closed](Self::close). It is kept in an
/// array apart from the others, so that storing an arrival needs no check for room.
#[derive(Debug, Default)]
pub(super) struct Groups {
    bytes: Vec<u8>,
    common: Common,
    halves: [[u8; DIGEST]; MOST],
    outcomes: u32,
    /// How many arrivals the last group has; 0 if there is no such group yet.
    count: usize,
    /// How many the others have.
    closed: usize,
}

impl Groups {
    /// Appends an arrival; `outcome` is less than 4.
    #[inline]
    pub(super) fn push(&mut self, common: Common, digest: Digest, outcome: u32) {
        if !self.takes(common.at, common.cost) || self.common.policy != common.policy {
            // Mostly there is none yet.
            if self.count > 0 {
                self.close();
            }
            self.common = common;
        }
        self.add(digest, outcome);
    }

    /// Whether the last group takes another arrival of that time and cost, if it is of the same policy.
    #[inline]
    pub(super) fn takes(&self, at: u32, cost: u64) -> bool {
        // A full group counts like none.
        !self.count.is_multiple_of(MOST) && self.common.at == at && self.common.cost == cost
    }

    /// Appends an arrival that the last group [takes](Self::takes).
    #[inline]
    pub(super) fn add(&mut self, digest: Digest, outcome: u32) {
        let place = self.count % MOST;
        self.halves[place] = first_half(digest).to_le_bytes();
        self.outcomes |= outcome << (2 * place);
        self.count = place + 1;
    }

    /// How many arrivals there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.closed + self.count
    }

    /// Finishes the last group.
    pub(super) fn close(&mut self) {
        self.closed += self.count;
        let mut bytes = std::mem::take(&mut self.bytes);
        self.move_last(&mut bytes);
        self.bytes = bytes;
    }

    /// Appends the last group to `bytes`, and begins another.
    fn move_last(&mut self, bytes: &mut Vec<u8>) {
        let Common { at, policy, cost } = self.common;
        if let Some(less_one) = self.count.checked_sub(1) {
            let when = u64::from(self.outcomes) << 32 | u64::from(at);
            let what = policy << (COUNT_BITS + COST_BITS) | (less_one as u64) << COST_BITS | cost.min(LONG);
            bytes.extend_from_slice(&(u128::from(what) << 64 | u128::from(when)).to_le_bytes());
            if cost >= LONG {
                bytes.extend_from_slice(&cost.to_le_bytes());
            }
            // As many as there can be are copied sooner than as many as there are.
            let end = bytes.len() + self.count * DIGEST;
            bytes.extend_from_slice(self.halves.as_flattened());
            bytes.truncate(end);
        }
        (self.outcomes, self.count) = (0, 0);
    }

    /// All that are closed.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Moves all of `others` behind these, after closing the last one.
    pub(super) fn append(&mut self, others: &mut Self) {
        self.closed += others.len();
        // Most lists that are handed over are one group.
        if !others.bytes.is_empty() {
            self.bytes.extend_from_slice(&others.bytes);
        }
        others.move_last(&mut self.bytes);
        others.clear();
    }

    /// Forgets all, and keeps the room.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.outcomes, self.count, self.closed) = (0, 0, 0);
    }
}

/// A group that is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group<'a> {
    /// What its arrivals have in common.
    pub common: Common,
    outcomes: u32,
    halves: &'a [[u8; DIGEST]],
    /// The whole of it.
    pub bytes: &'a [u8],
}

impl<'a> Group<'a> {
    /// The first of these groups; `None` if there is no whole one.
    #[inline]
    pub(super) fn first(bytes: &'a [u8]) -> Option<Self> {
        let (when, rest) = word(bytes)?;
        let (what, rest) = word(rest)?;
        let count = (what >> COST_BITS) as usize % MOST + 1;
        let cost = what & LONG;
        let (cost, rest) = if cost == LONG { word(rest)? } else { (cost, rest) };
        let halves = rest.as_chunks().0.get(..count)?;
        let whole = bytes.len() - rest.len() + count * DIGEST;
        let common = Common { at: when as u32, policy: what >> (COUNT_BITS + COST_BITS), cost };
        Some(Self { common, outcomes: (when >> 32) as u32, halves, bytes: &bytes[..whole] })
    }

    /// How many arrivals it has.
    pub(super) fn len(&self) -> usize {
        self.halves.len()
    }

    /// The first halves of the arrivals' digests, lowest bytes first.
    pub(super) fn halves(&self) -> &'a [[u8; DIGEST]] {
        self.halves
    }

    /// The arrivals' outcomes, two bits each.
    pub(super) fn outcomes(&self) -> u32 {
        self.outcomes
    }

    /// The first half of each arrival's digest, and its outcome.
    pub(super) fn arrivals(self) -> impl Iterator<Item = (u64, u32)> + use<'a> {
        let outcomes = (0..u32::BITS).step_by(2).map(move |place| self.outcomes >> place & 3);
        self.halves.iter().map(|half| u64::from_le_bytes(*half)).zip(outcomes)
    }
}

/// What is kept of a digest.
fn first_half(digest: Digest) -> u64 {
    (digest.0 >> u64::BITS) as u64
}

/// A digest as it is read: with its second half as zeros.
#[must_use]
pub fn kept(digest: Digest) -> Digest {
    of_half(first_half(digest))
}

/// The digest whose first half is this, as it is read.
pub(super) fn of_half(half: u64) -> Digest {
    Digest(u128::from(half) << u64::BITS)
}

fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<WORD>()?;
    Some((u64::from_le_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut bytes: &[u8]) -> Vec<(usize, Common, Digest, u32)> {
        let mut read = Vec::new();
        while let Some(group) = Group::first(bytes) {
            let len = group.len();
            read.extend(group.arrivals().map(|(half, outcome)| (len, group.common, of_half(half), outcome)));
            bytes = &bytes[group.bytes.len()..];
        }
        assert!(bytes.is_empty());
        read
    }

    #[test]
    fn arrivals_are_read_as_they_were_written() {
        let most = Common { at: u32::MAX, policy: (1 << TAG_BITS) - 1, cost: u64::MAX };
        let others = [LONG - 1, LONG, LONG + 1, 0].map(|cost| Common { cost, ..most });
        let commons = [most, Common::default(), Common { at: 1, ..most }, Common { policy: 1, ..most }];
        let mut groups = Groups::default();
        let mut wanted = Vec::new();
        for (number, common) in commons.into_iter().chain(others).enumerate() {
            for place in 0..number * 9 {
                let (digest, outcome) = (Digest(u128::MAX / (place as u128 + 1)), place as u32 % 4);
                groups.push(common, digest, outcome);
                let of_group = (number * 9 - place / 16 * 16).min(16);
                wanted.push((of_group, common, kept(digest), outcome));
            }
        }
        groups.close();
        groups.close();
        assert_eq!(read(groups.bytes()), wanted);
        let bytes = groups.bytes().len();
        let mut others = Groups::default();
        groups.push(most, Digest(3), 2);
        wanted.push((1, most, kept(Digest(3)), 2));
        assert_eq!((groups.len(), groups.bytes().len()), (wanted.len(), bytes), "the last is not closed");
        others.append(&mut groups);
        assert_eq!((others.len(), groups.len(), groups.bytes().len()), (wanted.len(), 0, 0));
        others.push(most, Digest(4), 1);
        others.close();
        wanted.push((1, most, kept(Digest(4)), 1));
        assert_eq!((read(others.bytes()), others.len()), (wanted.clone(), wanted.len()));
        let bytes = others.bytes().len();
        let groups = &mut others;
        assert!(
            (0..bytes)
                .all(|end| Group::first(&groups.bytes()[end..]).is_none_or(|group| end + group.bytes.len() <= bytes))
        );
        groups.clear();
        assert!(Group::first(groups.bytes()).is_none());
    }

    #[test]
    fn what_comes_at_once_takes_little_room() {
        let mut groups = Groups::default();
        (0..16).for_each(|number| groups.push(Common { at: 1, policy: 2, cost: 3 }, Digest(number), 0));
        groups.close();
        assert_eq!(groups.bytes().len(), 16 * 9);
    }
}
