//! Several keys asked at once, all or nothing: in which order they are asked, how, and what is given back in the end.
//!
//! The order is that of their digests, one after another, so that requests that meet at the same keys do not turn each
//! other away. Once one is denied the rest is only looked at; what was charged before is given back. Knows no key, no
//! policy and no clock: it counts answers by their places. Called by the daemon's inquiries and by the simulator.

use super::decision::{Decision, Verdict};
use super::key::Digest;
use super::mutant::{Mutant, on};

/// How the next key is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// As the client wants it.
    Check,
    /// What is known of it: nothing is charged, and nobody is asked.
    Look,
}

/// Keys that are being asked.
#[derive(Debug)]
pub struct Several {
    items: Vec<Item>,
    /// Those yet to be asked, the next one last.
    order: Vec<usize>,
    is_denied: bool,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// Its check charges something when it is admitted.
    charges: bool,
    /// As its shard decided.
    answer: Option<Decision>,
    /// Asked to charge, and not only looked at.
    charged: bool,
}

impl Several {
    /// Keys by their digests, and whether each is to be charged. None has been asked.
    #[must_use]
    pub fn new(keys: &[(Digest, bool)]) -> Self {
        let items = keys.iter().map(|&(_, charges)| Item { charges, answer: None, charged: false });
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&index| std::cmp::Reverse((keys[index].0.0, index)));
        Self { items: items.collect(), order, is_denied: false }
    }

    /// The answer about one. `denies`: it turns the whole request away, as its policy carries it out.
    pub fn answered(&mut self, index: usize, decision: Decision, denies: bool) {
        self.items[index].answer = Some(decision);
        self.is_denied |= denies;
    }

    /// The next to be asked, and how; `None` when the answer of all is there. Asked again before it is answered, it
    /// says the same.
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

    /// Those that will be asked after the next one.
    pub fn later(&self) -> impl Iterator<Item = usize> {
        let later = self.order.iter().rev().skip(1).copied();
        later.filter(|&index| self.items[index].answer.is_none())
    }

    /// Whether every answer is there.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.items.iter().all(|item| item.answer.is_some())
    }

    /// Whether one was denied, so that nothing is charged in the end.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// The answer about one, as its shard decided.
    #[must_use]
    pub fn answer(&self, index: usize) -> Option<Decision> {
        self.items[index].answer
    }

    /// Whether one was asked to charge.
    #[must_use]
    pub fn is_charged(&self, index: usize) -> bool {
        self.items[index].charged
    }

    /// Whether what one was charged has to be given back, now that every answer is there.
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
        }
    }

    /// All that is asked of keys with these digests when the one at `denied` is denied.
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
