//! Remembers the names of the keys in the embedded store, which counts by digest only: listings show names to people.
//! Part of `embedded.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::policy::Rule;

/// The names of the keys that were created last. Their memory is bounded: the oldest block of names is dropped first.
#[derive(Debug)]
pub(super) struct Names {
    blocks: VecDeque<NameBlock>,
    /// How many names were ever added; the number of the latest name.
    count: u64,
    /// For each policy, the rule that a key was last seen with. Listings use it for ad hoc limits, which no
    /// configuration knows.
    rules: Vec<Arc<Rule>>,
    most: usize,
}

#[derive(Debug)]
struct NameBlock {
    /// The number of the block's first name, counted from 1. The others follow without gaps.
    first: u64,
    bytes: Vec<u8>,
}

/// A name, its number, and the rule that its policy was last seen with.
pub(super) type Name = (u64, Arc<Rule>, Box<[u8]>);

impl Names {
    pub(super) const BLOCK: usize = 16 * 1024;

    pub(super) fn new(bytes: usize) -> Self {
        Self { blocks: VecDeque::new(), count: 0, rules: Vec::new(), most: (bytes / Self::BLOCK).max(1) }
    }

    /// Appends a name: policy (1 byte), length (2 bytes), bytes. Names longer than `LONGEST` are not remembered.
    pub(super) fn push(&mut self, rule: &Arc<Rule>, key: &[u8]) {
        const LONGEST: usize = 256;
        let known = self.rules.iter().position(|known| known.policy == rule.policy);
        let index = known.unwrap_or(self.rules.len());
        match known {
            Some(index) => self.rules[index] = rule.clone(),
            None => self.rules.push(rule.clone()),
        }
        let Ok(index) = u8::try_from(index) else { return };
        if key.len() > LONGEST {
            return;
        }
        self.count += 1;
        if self.blocks.back().is_none_or(|block| block.bytes.len() + key.len() + 3 > Self::BLOCK) {
            if self.blocks.len() == self.most {
                self.blocks.pop_front();
            }
            self.blocks.push_back(NameBlock { first: self.count, bytes: Vec::with_capacity(Self::BLOCK) });
        }
        let block = &mut self.blocks.back_mut().expect("one was just made sure of").bytes;
        block.push(index);
        block.extend_from_slice(&(key.len() as u16).to_le_bytes()); // at most LONGEST
        block.extend_from_slice(key);
    }

    /// The names of one block that came before the name with that number, newest first; empty when there are none.
    pub(super) fn before(&self, number: u64) -> Vec<Name> {
        let Some(block) = self.blocks.iter().rev().find(|block| block.first < number) else { return Vec::new() };
        let mut names = Vec::new();
        let (mut rest, mut next) = (&block.bytes[..], block.first);
        while let [policy, low, high, tail @ ..] = rest {
            if next >= number {
                break;
            }
            let (key, after) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high])));
            names.push((next, self.rules[usize::from(*policy)].clone(), key.into()));
            (rest, next) = (after, next + 1);
        }
        names.reverse();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::Limit;

    #[test]
    fn names_are_bounded() {
        let mut names = Names::new(2 * Names::BLOCK);
        let rule = Arc::new(Rule::of("p", &[Limit::parse("1/1s").unwrap()]));
        for number in 0..100_000_u32 {
            names.push(&rule, &number.to_le_bytes());
        }
        assert!(names.blocks.len() <= 2);
        let newest = names.before(u64::MAX);
        assert_eq!((newest[0].0, &*newest[0].2), (100_000, &99_999_u32.to_le_bytes()[..]));
    }

    #[test]
    fn all_names_are_told_once_from_the_newest_on() {
        let mut names = Names::new(8 * Names::BLOCK);
        let rule = Arc::new(Rule::of("p", &[Limit::parse("1/1s").unwrap()]));
        for number in 0..10_000_u32 {
            names.push(&rule, &number.to_le_bytes());
        }
        let (mut listed, mut before) = (Vec::new(), u64::MAX);
        while let Some(&(last, ..)) = names.before(before).last() {
            listed.extend(names.before(before).into_iter().map(|(number, _, key)| (number, key)));
            before = last;
        }
        let wanted = (0..10_000_u32).rev().map(|number| (u64::from(number) + 1, number.to_le_bytes().into()));
        assert_eq!(listed, wanted.collect::<Vec<(u64, Box<[u8]>)>>());
    }
}
