//! Groups in the form that pages of the file hold: fields that repeat an earlier group of the page are left out.
//!
//! Most checks are of few keys, policies and costs, and follow each other soon. A group has a head of five bytes: the
//! number of its arrivals less one, and what it [repeats](Repeats); a bit for each arrival whose digest is written out;
//! the time since the group before it. Then come the fields in which it differs from that one: the tag of the policy
//! with the cost, and the outcomes. Then come the digests. A digest that is written out is remembered at the place that
//! its lowest byte names; a later arrival with the digest at a place is that one byte. If all arrivals of a group are
//! of one key, it is written once. A page begins with empty places, so each page can be read by itself. Only the thread
//! of the file writes this form. For it a written byte costs more than a digest that is looked up, if it is found. If
//! few are found, it looks only in one page of sixteen.

use super::group::{Common, Group, MOST, TAG_BITS};

/// The bits of the head that say which fields are left out.
struct Repeats;

impl Repeats {
    /// All digests are written out, and none is remembered.
    const PLAIN: u8 = 1 << 4;
    /// It has the policy and cost of the group before.
    const KIND: u8 = 1 << 5;
    /// All its outcomes are alike.
    const OUTCOME: u8 = 1 << 6;
    /// All its arrivals are of one key.
    const KEY: u8 = 1 << 7;
}

/// The bits of a cost that is written in one word with the tag of its policy.
const COST_BITS: u32 = u64::BITS - TAG_BITS;
/// Written instead of a cost that has a word of its own.
const LONG: u64 = (1 << COST_BITS) - 1;
/// Written instead of the microseconds since the group before, if they need more than two bytes: the time follows.
const LATE: u16 = u16::MAX;
/// How many pages are written without looking digests up, after one in which three of four were new, because few would
/// be found.
const PLAIN_PAGES: u8 = 15;
/// Bytes of a digest that is written out.
const DIGEST: usize = 8;
/// Most bytes before the digests: the head, the time, the tag and the cost, and the outcomes.
const BEFORE: usize = 3 + 2 + 4 + 8 + 8 + 4;
/// The most bytes of a group of so many arrivals.
pub(super) const fn longest(arrivals: usize) -> usize {
    BEFORE + arrivals * DIGEST
}

/// What is known from the page so far.
#[derive(Debug)]
pub(super) struct Said {
    common: Common,
    digests: [u64; 256],
    /// How many digests were looked up, and how many of them were new.
    looked_up: u32,
    new: u32,
    /// How many pages, with this one, are to be written without looking digests up; only the writer counts them.
    plain: u8,
}

/// A group that is read.
#[derive(Debug)]
pub(super) struct Read {
    /// What its arrivals have in common.
    pub common: Common,
    digests: [u64; MOST],
    outcomes: u32,
    count: usize,
}

impl Read {
    /// How many arrivals it has.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The first half of each arrival's digest, and its outcome.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let outcomes = (0..u32::BITS).step_by(2).map(|place| self.outcomes >> place & 3);
        self.digests[..self.count].iter().copied().zip(outcomes)
    }
}

impl Said {
    /// Nothing yet; times count from `at`.
    pub(super) fn nothing(at: u32) -> Self {
        // A tag of no group, so that the first says its own.
        let common = Common { at, policy: u64::MAX, cost: 0 };
        Self { common, digests: [0; 256], looked_up: 0, new: 0, plain: 0 }
    }

    /// Goes on to an empty page.
    pub(super) fn next_page(&mut self, at: u32) {
        let plain = match self.plain.checked_sub(1) {
            Some(left) => left,
            None if self.looked_up > 0 && self.new > self.looked_up / 4 * 3 => PLAIN_PAGES,
            None => 0,
        };
        *self = Self { plain, ..Self::nothing(at) };
    }

    /// Appends a group to the page.
    pub(super) fn write(&mut self, group: &Group<'_>, page: &mut Vec<u8>) {
        let halves = group.halves();
        // Two that differ are mostly the first two.
        let is_one = halves.windows(2).all(|pair| pair[0] == pair[1]);
        let of_keys = if is_one { &halves[..halves.len().min(1)] } else { halves };
        let Common { at, policy, cost } = group.common;
        let (last, mut repeats) = (self.common, if self.plain > 0 { Repeats::PLAIN } else { 0 });
        self.common = group.common;
        let mut before = Before::default();
        match u16::try_from(at.wrapping_sub(last.at)) {
            Ok(since) if since < LATE => before.push(since.to_le_bytes()),
            _ => {
                before.push(LATE.to_le_bytes());
                before.push(at.to_le_bytes());
            }
        }
        if (policy, cost) == (last.policy, last.cost) {
            repeats |= Repeats::KIND;
        } else {
            before.push((policy << COST_BITS | cost.min(LONG)).to_le_bytes());
            if cost >= LONG {
                before.push(cost.to_le_bytes());
            }
        }
        let outcomes = group.outcomes();
        if outcomes == 0 {
            repeats |= Repeats::OUTCOME;
        } else {
            before.push(outcomes.to_le_bytes());
        }
        if is_one {
            repeats |= Repeats::KEY;
        }
        // At most 15.
        before.bytes[0] = halves.len().saturating_sub(1) as u8 | repeats;
        let begun = page.len();
        page.extend_from_slice(&before.bytes);
        page.truncate(begun + before.end);
        if self.plain > 0 {
            page.extend_from_slice(of_keys.as_flattened());
        } else {
            let written = self.write_digests(of_keys, page);
            if let Some(place) = page.get_mut(begun + 1..begun + 3) {
                place.copy_from_slice(&written.to_le_bytes());
            }
        }
    }

    /// Appends digests, of which those that were said before are one byte; returns which are written out.
    #[inline]
    fn write_digests(&mut self, halves: &[[u8; DIGEST]], page: &mut Vec<u8>) -> u16 {
        let (begun, mut end, mut written) = (page.len(), 0, 0_u32);
        page.extend_from_slice(&[0; (MOST + 1) * DIGEST]);
        let Some(room) = page.last_chunk_mut::<{ (MOST + 1) * DIGEST }>() else { return 0 };
        for half in halves {
            let digest = u64::from_le_bytes(*half);
            let known = &mut self.digests[(digest & 255) as usize];
            let is_new = *known != digest;
            *known = digest;
            // All of it is stored, and of one that is known the lowest byte stays, which comes first. The place is never beyond
            // the last: it is cut so that nothing has to be compared.
            let place = end % (MOST * DIGEST);
            room[place..place + DIGEST].copy_from_slice(half);
            end += 1 + usize::from(is_new) * (DIGEST - 1);
            written = written << 1 | u32::from(is_new);
        }
        page.truncate(begun + end);
        self.looked_up += halves.len() as u32; // at most MOST
        self.new += ((end - halves.len()) / (DIGEST - 1)) as u32; // as many at most
        // A bit for each of MOST, the lowest for the first.
        (written.reverse_bits() >> (u32::BITS - halves.len() as u32)) as u16
    }

    /// Reads the next group of the page; `None` if there is no whole one.
    pub(super) fn read(&mut self, page: &mut &[u8]) -> Option<Read> {
        let [head, written @ ..]: [u8; 3] = take(page)?;
        let (count, written) = (usize::from(head) % MOST + 1, u16::from_le_bytes(written));
        let Common { mut at, mut policy, mut cost } = self.common;
        at = match u16::from_le_bytes(take(page)?) {
            LATE => u32::from_le_bytes(take(page)?),
            since => at.wrapping_add(u32::from(since)),
        };
        if head & Repeats::KIND == 0 {
            let both = u64::from_le_bytes(take(page)?);
            (policy, cost) = (both >> COST_BITS, both & LONG);
            if cost == LONG {
                cost = u64::from_le_bytes(take(page)?);
            }
        }
        let outcomes = if head & Repeats::OUTCOME == 0 { u32::from_le_bytes(take(page)?) } else { 0 };
        let mut digests = [0; MOST];
        let of_keys = if head & Repeats::KEY == 0 { count } else { 1 };
        for (place, digest) in digests[..of_keys].iter_mut().enumerate() {
            if head & Repeats::PLAIN != 0 {
                *digest = u64::from_le_bytes(take(page)?);
                continue;
            }
            *digest = match written >> place & 1 {
                0 => {
                    let [named] = take(page)?;
                    self.digests[usize::from(named)]
                }
                _ => u64::from_le_bytes(take(page)?),
            };
            self.digests[(*digest & 255) as usize] = *digest;
        }
        let one = digests[0];
        digests[of_keys..].fill(one);
        self.common = Common { at, policy, cost };
        Some(Read { common: self.common, digests, outcomes, count })
    }
}

/// The fields before the digests, after room for the head.
#[derive(Debug)]
struct Before {
    bytes: [u8; BEFORE],
    end: usize,
}

impl Default for Before {
    fn default() -> Self {
        Self { bytes: [0; BEFORE], end: 3 }
    }
}

impl Before {
    #[inline]
    fn push<const N: usize>(&mut self, bytes: [u8; N]) {
        if let Some(room) = self.bytes.get_mut(self.end..self.end + N) {
            room.copy_from_slice(&bytes);
            self.end += N;
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use super::super::group::Groups;
    use super::*;
    use crate::core::key::Digest;

    /// An arrival: what it has in common with others, the first half of its digest, and its outcome.
    type One = (Common, u64, u32);

    fn written(arrivals: &[One], began: u32) -> Vec<u8> {
        let mut groups = Groups::default();
        for (common, half, outcome) in arrivals {
            groups.push(*common, Digest(u128::from(*half) << 64 | 77), *outcome);
        }
        groups.close();
        let (mut said, mut page, mut rest) = (Said::nothing(began), Vec::new(), groups.bytes());
        while let Some(group) = Group::first(rest) {
            let before = page.len();
            said.write(&group, &mut page);
            assert!(page.len() - before <= longest(group.len()), "{group:?}");
            rest = &rest[group.bytes.len()..];
        }
        page
    }

    fn read(mut page: &[u8], began: u32) -> Vec<One> {
        let (mut said, mut all) = (Said::nothing(began), Vec::new());
        while let Some(group) = said.read(&mut page) {
            all.extend(group.arrivals().map(|(half, outcome)| (group.common, half, outcome)));
        }
        assert!(page.is_empty());
        all
    }

    #[test]
    fn arrivals_are_read_as_they_were_written() {
        let mut state = 7_u64;
        let mut next = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        for round in 0..300 {
            let keys = [1, 2, 30, 1_000, u64::MAX][round % 5];
            let mut common = Common { at: u32::MAX - 9, policy: (1 << TAG_BITS) - 1, cost: 1 };
            let arrivals: Vec<One> = (0..200)
                .map(|_| {
                    match next(20) {
                        0 => common.at = common.at.wrapping_add(next(70_000) as u32),
                        1 => common.at = common.at.wrapping_sub(next(3) as u32),
                        2 => common.policy = next(3),
                        3 => common.cost = [0, 1, LONG - 1, LONG, LONG + 1, u64::MAX][next(6) as usize],
                        _ => {}
                    }
                    // Zero is a digest like others, and some want the same place.
                    let half = (next(keys) % 700) * 0x0001_0000_0000_0080;
                    (common, half, if next(9) == 0 { next(4) as u32 } else { 0 })
                })
                .collect();
            assert_eq!(read(&written(&arrivals, 5), 5), arrivals, "round {round}");
        }
    }

    /// Files are read by other builds than the one that wrote them, so that the bytes change with the format's number alone.
    #[test]
    fn what_is_written_is_the_same_to_the_byte() {
        let mut state = 7_u64;
        let mut next = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let (mut said, mut all, mut arrived) = (Said::nothing(5), 0, 0);
        for page in 0..60_u64 {
            let mut groups = Groups::default();
            let mut common = Common { at: 9 + page as u32, policy: 5, cost: 1 };
            for _ in 0..300 {
                match next(30) {
                    0 => common.at += next(70_000) as u32,
                    1 => common.policy = next(3),
                    2 => common.cost = [0, 1, LONG, u64::MAX][next(4) as usize],
                    _ => {}
                }
                // Pages of one key, of few, and of keys that are new.
                let half = next([1, 90, u64::MAX][page as usize / 20]).wrapping_mul(0x0012_3456_7890_0081);
                groups.push(common, Digest(u128::from(half) << 64), if next(9) == 0 { next(4) as u32 } else { 0 });
                arrived += 1;
            }
            groups.close();
            let (mut bytes, mut rest) = (Vec::new(), groups.bytes());
            while let Some(group) = Group::first(rest) {
                said.write(&group, &mut bytes);
                rest = &rest[group.bytes.len()..];
            }
            said.next_page(page as u32);
            all = Digest::of(&format!("{all}"), &bytes).0;
        }
        assert_eq!((arrived, all), (18_000, 92_379_327_348_752_806_151_517_045_874_225_397_293));
    }

    #[test]
    fn the_largest_group_has_room() {
        let common = |cost| Common { at: 1 << 20, policy: (1 << TAG_BITS) - 1, cost };
        let arrivals: Vec<One> = (0..32).map(|number| (common(u64::MAX - number / 16), u64::MAX - number, 3)).collect();
        assert_eq!(read(&written(&arrivals, 0), 0), arrivals);
    }

    #[test]
    fn what_was_said_before_is_short() {
        let at = |at| Common { at, policy: 5, cost: 1 };
        let all = |count: u32, key: fn(u32) -> u64| -> usize {
            written(&(0..count).map(|number| (at(number / 16), key(number), 0)).collect::<Vec<_>>(), 0).len()
        };
        // The first group has all fields, and each further group of sixteen only repeats them.
        assert_eq!(all(16 * 101, |_| 9) - all(16, |_| 9), 100 * 6);
        let few =
            all(16 * 101, |number| u64::from(number * 7 % 100)) - all(16 * 7, |number| u64::from(number * 7 % 100));
        assert_eq!(few, 94 * (5 + 16));
        // A key that is new in the page takes nine bytes and less than one more.
        assert!(all(16 * 100, |number| u64::from(number) << 20) <= 1_600 * 9, "no more than before");
    }

    #[test]
    fn where_few_digests_come_again_they_are_not_looked_for() {
        // So many bytes of a page, of keys that are new or of one of ten.
        fn page(said: &mut Said, first: u64, are_new: bool) -> usize {
            let key = |number: u64| if are_new { first + number * 0x0123_4567_89ab } else { number % 10 };
            let mut groups = Groups::default();
            for number in 0..320 {
                groups.push(Common { at: 7, policy: 5, cost: 1 }, Digest(u128::from(key(number)) << 64), 0);
            }
            groups.close();
            let (mut bytes, mut rest) = (Vec::new(), groups.bytes());
            while let Some(group) = Group::first(rest) {
                said.write(&group, &mut bytes);
                rest = &rest[group.bytes.len()..];
            }
            let wanted: Vec<_> = (0..320).map(key).collect();
            assert_eq!(read(&bytes, 0).iter().map(|(_, half, _)| *half).collect::<Vec<_>>(), wanted);
            said.next_page(0);
            bytes.len()
        }
        let mut said = Said::nothing(0);
        let few = page(&mut said, 0, false);
        assert!(few < 600, "{few}");
        assert_eq!(page(&mut said, 1, false), few, "they are looked for again");
        let new = page(&mut said, 1, true);
        for number in 0..PLAIN_PAGES {
            assert!(page(&mut said, 2, false) > 2_560, "page {number} after one of new keys");
        }
        assert_eq!(page(&mut said, 3, false), few, "and the next is as ever");
        assert_eq!(page(&mut said, 4, true), new);
        assert_eq!(page(&mut said, 5, true), new, "no digest is longer for it");
    }

    #[test]
    fn half_a_group_is_none() {
        let arrivals: Vec<One> = (0..20).map(|number| (Common { at: 9, policy: 1, cost: 3 }, number, 1)).collect();
        let page = written(&arrivals, 0);
        for end in 0..page.len() {
            let (mut said, mut rest) = (Said::nothing(0), &page[..end]);
            let mut groups = 0;
            while said.read(&mut rest).is_some() {
                groups += 1;
            }
            assert!(groups < 2, "{end}");
        }
    }
}
