//! Requests about several keys, all or nothing: the order in which keys are asked, how each is asked, and what is
//! given back at the end.
//!
//! Keys are asked one after another in the order of their digests, so that two requests about the same keys do not
//! deny each other. Once one is denied, the rest is only peeked at, and earlier charges are given back. Knows no key,
//! no policy and no clock: it refers to keys by position. Called by the daemon's `check_request`, and by the
//! simulator.

use super::decision::{Decision, Verdict};
use super::key::Digest;
use super::mutant::{Mutant, on};

/// How the next key is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As the client has asked.
    Check,
    /// With a local peek: nothing is charged, and the store is not asked.
    Look,
}

/// A request about several keys.
#[derive(Debug)]
pub struct Several {
    items: Vec<Item>,
    /// Keys that were not asked yet, the next one last.
    order: Vec<usize>,
    is_denied: bool,
}

/// One of the keys.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// An admission of this key charges it.
    charges: bool,
    /// The decision of its shard.
    answer: Option<Decision>,
    /// It was asked to charge, and not only peeked at.
    charged: bool,
}

impl Several {
    /// The digests of the keys, and whether each is to be charged. None is asked yet.
    #[must_use]
    pub fn new(keys: &[(Digest, bool)]) -> Self {
        let items = keys.iter().map(|&(_, charges)| Item { charges, answer: None, charged: false });
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse((keys[index].0.0, index)));
        Self { items: items.collect(), order, is_denied: false }
    }

    /// Records the decision about one key. `denies` tells whether it denies the whole request, after the policy's
    /// mode was applied.
    pub fn answered(&mut self, index: usize, decision: Decision, denies: bool) {
        self.items[index].answer = Some(decision);
        self.is_denied |= denies;
    }

    /// The next key to ask, and how; `None` when all have answered. It stays the same until that key has answered.
    pub fn next_to_ask(&mut self) -> Option<(usize, How)> {
        while let Some(&index) = self.order.last() {
            let item = &mut self.items[index];
            if item.answer.is_none() {
                let looks = self.is_denied && !on(Mutant::SeveralChargedAfterDenial);
                item.charged = item.charges && !looks;
                return Some((index, if looks { How::Look } else { How::Check }));
            }
            self.order.pop();
        }
        None
    }

    /// The keys that will be asked after the next one.
    pub fn later(&self) -> impl Iterator<Item = usize> {
        let later = self.order.iter().rev().skip(1).copied();
        later.filter(|&index| self.items[index].answer.is_none())
    }

    /// Whether all keys have answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.items.iter().all(|item| item.answer.is_some())
    }

    /// Whether one key was denied, so that nothing will be charged.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// The decision about one key, as its shard made it.
    #[must_use]
    pub fn answer(&self, index: usize) -> Option<Decision> {
        self.items[index].answer
    }

    /// Whether one key was asked to charge.
    #[must_use]
    pub fn is_charged(&self, index: usize) -> bool {
        self.items[index].charged
    }

    /// Whether the charge of one key must be given back. All keys must have answered.
    #[must_use]
    pub fn goes_back(&self, index: usize) -> bool {
        let item = &self.items[index];
        let admitted = item.answer.is_some_and(|answer| answer.verdict == Verdict::Allow);
        self.is_denied && item.charged && admitted && !(on(Mutant::SeveralKeepsTheFirst) && index == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decision::{Reason, Source};
    use super::super::time::{Micros, Timestamp};
    use super::*;

    fn decision(verdict: Verdict) -> Decision {
        Decision {
            verdict,
            limit: 10,
            remaining: 1,
            retry_after: None,
            reset_after: Micros(1),
            reset_at: Timestamp(1),
            reason: Reason::Ok,
            source: Source::Lease,
            limit_index: 0,
            slot: None,
            epoch: 0,
        }
    }

    /// All requests to keys with these digests, when the one at `denied` is denied.
    fn ask(digests: &[u128], denied: usize) -> (Vec<(usize, How)>, Several) {
        let keys: Vec<_> = digests.iter().map(|digest| (Digest(*digest), true)).collect();
        let mut several = Several::new(&keys);
        let mut asked = Vec::new();
        while let Some((index, how)) = several.next_to_ask() {
            asked.push((index, how));
            let verdict = if index == denied { Verdict::Deny } else { Verdict::Allow };
            several.answered(index, decision(verdict), index == denied);
        }
        (asked, several)
    }

    #[test]
    fn keys_are_asked_by_their_digests_and_looked_at_after_a_denial() {
        let (asked, several) = ask(&[30, 10, 20, 40], 2);
        assert_eq!(asked, [(1, How::Check), (2, How::Check), (0, How::Look), (3, How::Look)]);
        assert!(several.is_complete() && several.is_denied());
        assert_eq!((0..4).filter(|&index| several.goes_back(index)).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn nothing_goes_back_when_all_are_admitted() {
        let (asked, several) = ask(&[1, 1, 2], 9);
        assert_eq!(asked.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(!several.is_denied() && (0..3).all(|index| !several.goes_back(index)));
    }

    #[test]
    fn one_that_waits_is_asked_once_and_the_rest_is_later() {
        let mut several = Several::new(&[(Digest(2), true), (Digest(1), false), (Digest(3), true)]);
        assert_eq!(several.next_to_ask(), Some((1, How::Check)));
        assert_eq!(several.later().collect::<Vec<_>>(), [0, 2]);
        assert!(!several.is_charged(1), "it is a peek");
        several.answered(1, decision(Verdict::Allow), false);
        assert_eq!(several.next_to_ask(), Some((0, How::Check)));
    }
}
