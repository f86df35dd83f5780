//! Which keys the embedded store has seen: it counts digests, and people read names. Part of `embedded.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::policy::Rule;

/// The names of the keys seen last, for listings: bounded, oldest forgotten first, in blocks.
#[derive(Debug)]
pub(super) struct Names {
    blocks: VecDeque<Vec<u8>>,
    /// By policy, the rule of the key seen last: what ad hoc limits are listed with.
    rules: Vec<Arc<Rule>>,
    most: usize,
}

impl Names {
    pub(super) const BLOCK: usize = 16 * 1024;

    pub(super) fn new(bytes: usize) -> Self {
        Self { blocks: VecDeque::new(), rules: Vec::new(), most: (bytes / Self::BLOCK).max(1) }
    }

    /// Appends a name: policy (1 byte), length (2 bytes), bytes. Longer ones are not remembered.
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
        if self.blocks.back().is_none_or(|block| block.len() + key.len() + 3 > Self::BLOCK) {
            if self.blocks.len() == self.most {
                self.blocks.pop_front();
            }
            self.blocks.push_back(Vec::with_capacity(Self::BLOCK));
        }
        let block = self.blocks.back_mut().expect("one was just made sure of");
        block.push(index);
        block.extend_from_slice(&(key.len() as u16).to_le_bytes()); // at most LONGEST
        block.extend_from_slice(key);
    }

    pub(super) fn newest(&self, most: usize) -> Vec<(Arc<Rule>, Box<[u8]>)> {
        let mut found = Vec::new();
        for block in self.blocks.iter().rev() {
            let mut rest = &block[..];
            let mut names = Vec::new();
            while let [policy, low, high, tail @ ..] = rest {
                let (key, next) = tail.split_at(usize::from(u16::from_le_bytes([*low, *high])));
                names.push((self.rules[usize::from(*policy)].clone(), key.into()));
                rest = next;
            }
            found.extend(names.into_iter().rev());
            if found.len() >= most {
                found.truncate(most);
                break;
            }
        }
        found
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
        assert_eq!(&*names.newest(1)[0].1, &99_999_u32.to_le_bytes());
    }
}
