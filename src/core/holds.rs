//! Holds: estimates that were charged and are still to be settled, and how they are settled.
//!
//! A bounded table of holds, each with an end. The charge of a hold that nobody settles stays, and so do those of
//! holds that are open when the daemon ends. Settling a hold is a sequence of requests to the key's shard, one after
//! another as its answers come: [`Settling`]. Knows no client, no key and no clock. Called by the daemon's requests,
//! and by the simulator.

use std::collections::{BTreeMap, BTreeSet};

use super::call::{OPEN, Windows};
use super::decision::{Decision, Reason, Source, Verdict};
use super::limit::{Algorithm, Limit};
use super::mutant::{Mutant, on};
use super::rule::Rule;
use super::time::{Instant, Micros, StoredTime, Timestamp};
use super::window;

/// Most open holds.
pub const MOST: usize = 100_000;

/// How long a hold can be settled, unless the request says otherwise.
pub const TTL: Micros = Micros::from_secs(60);

/// The longest time that a request may ask for.
pub const LONGEST: Micros = Micros::from_secs(86_400);

/// A charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Tokens.
    pub tokens: u64,
    /// The time of the charge, by the store's clock.
    pub at: Timestamp,
    /// When the limit will be whole again, as in the decision; and which limit that is.
    pub reset_at: Timestamp,
    /// See [`Decision::limit_index`].
    pub limit_index: u8,
    /// The source of the admission.
    pub source: Source,
    /// The limits were charged. They were not if the policy admits without counting.
    pub is_counted: bool,
    /// The key's epoch that was charged; 0 where it was not known. A reset begins another, which knows nothing of the charge.
    pub epoch: u64,
}

/// All holds of a daemon. A hold is a charge, and data of the driver.
#[derive(Debug)]
pub struct Holds<T> {
    holds: BTreeMap<u128, (Instant, Charge, T)>,
    by_end: BTreeSet<(Instant, u128)>,
}

impl<T> Default for Holds<T> {
    fn default() -> Self {
        Self { holds: BTreeMap::new(), by_end: BTreeSet::new() }
    }
}

/// A hold that is being settled.
#[derive(Clone, Debug)]
pub struct Settling {
    charge: Charge,
    actual: u64,
    asked: LastRequest,
}

/// The last request to the key.
#[derive(Clone, Copy, Debug)]
enum LastRequest {
    /// A peek: are the windows of the charge still open?
    Look,
    /// A check of all tokens that are missing.
    More,
    /// A check of as many of them as were left.
    Rest(u64),
}

/// What to do next to settle a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the key for so many tokens (0 for a peek), and pass the decision to [`Settling::next`].
    Ask(u64),
    /// The hold is settled.
    End {
        /// Tokens that remain charged.
        stands: u64,
        /// Tokens to give back to the windows of the charge.
        back: u64,
    },
}

impl<T> Holds<T> {
    /// Whether there is room for one more hold at `now`.
    pub fn has_room(&mut self, now: Instant) -> bool {
        while let Some(&(ends, id)) = self.by_end.first().filter(|(ends, _)| *ends <= now) {
            if on(Mutant::ExpiredHoldSettled) {
                break;
            }
            self.by_end.remove(&(ends, id));
            self.holds.remove(&id);
        }
        self.holds.len() < MOST
    }

    /// Stores a charge with its data until `ends`, under an id that no other hold has. Anybody who knows the id can
    /// settle the hold, so where clients do not trust each other it must be unguessable.
    pub fn keep(&mut self, id: u128, charge: Charge, what: T, ends: Instant) {
        self.holds.insert(id, (ends, charge, what));
        self.by_end.insert((ends, id));
    }

    /// Removes the hold with that id, unless its time is over.
    pub fn take(&mut self, id: u128, now: Instant) -> Option<(Charge, T)>
    where
        T: Clone,
    {
        if on(Mutant::HoldSettledTwice) {
            return self
                .holds
                .get(&id)
                .filter(|(ends, ..)| now < *ends)
                .map(|(_, charge, what)| (*charge, what.clone()));
        }
        let (ends, charge, what) = self.holds.remove(&id)?;
        self.by_end.remove(&(ends, id));
        (now < ends || on(Mutant::ExpiredHoldSettled)).then_some((charge, what))
    }
}

impl Charge {
    /// The charge that an admission of `tokens` has made.
    #[must_use]
    pub fn of(tokens: u64, decision: &Decision) -> Self {
        let Decision { reset_at, limit_index, source, reason, epoch, .. } = *decision;
        let is_counted = source != Source::Policy && reason != Reason::Shadow || on(Mutant::FreeHoldBack);
        Self { tokens, at: clock(decision), reset_at, limit_index, source, is_counted, epoch }
    }

    /// The window of each limit that was charged, as its `Counter::at`; for a bucket, when it has filled up since.
    /// `None` where that is unknown.
    #[must_use]
    pub fn windows(&self, rule: &Rule) -> Option<Windows> {
        let mut windows = OPEN;
        if on(Mutant::HoldOutlivesWindow) {
            return Some(windows);
        }
        for (index, limit) in rule.limits.iter().enumerate() {
            let is_told = index == usize::from(self.limit_index);
            let window = match limit.algorithm {
                Algorithm::Gcra if is_told => self.reset_at.min(self.at + limit.depth()),
                Algorithm::Gcra => self.at + limit.depth(),
                Algorithm::Fixed => window::aligned_end(limit, self.at),
                Algorithm::Sliding => window::aligned_start(limit, self.at),
                Algorithm::FixedFromFirst if rule.limits.len() == 1 => self.reset_at,
                // A permit ends with its release.
                Algorithm::FixedFromFirst | Algorithm::Concurrent => return None,
            };
            windows[index] = window.stored();
        }
        Some(windows)
    }

    /// Whether the charge still counts, as a later decision shows, so that it can be given back: no window of `rule`
    /// has ended since, and no bucket has filled up.
    #[must_use]
    pub fn counts_still(&self, rule: &Rule, later: &Decision) -> bool {
        let Some(windows) = self.windows(rule) else { return false };
        rule.limits.iter().zip(windows).all(|(limit, window)| match limit.algorithm {
            Algorithm::FixedFromFirst if window.is_some() => later.reset_at.stored() == window,
            _ => is_open(limit, clock(later), window),
        })
    }
}

/// Whether a window that was charged (see [`Charge::windows`]) is the present one, as far as the clock tells. `None`
/// stands for any window.
pub(super) fn is_open(limit: &Limit, now: Timestamp, window: Option<StoredTime>) -> bool {
    let Some(window) = window.map(StoredTime::time) else { return true };
    match limit.algorithm {
        Algorithm::Gcra | Algorithm::FixedFromFirst | Algorithm::Concurrent => now < window,
        Algorithm::Fixed => window::aligned_end(limit, now) == window,
        Algorithm::Sliding => window::aligned_start(limit, now) == window,
    }
}

impl Settling {
    /// Begins to settle a charge whose actual cost is `actual`, and returns the first step.
    #[must_use]
    pub fn begin(charge: Charge, actual: u64) -> (Self, Step) {
        let more = if on(Mutant::LessIsCharged) {
            actual.abs_diff(charge.tokens)
        } else {
            actual.saturating_sub(charge.tokens)
        };
        let asked = if more > 0 { LastRequest::More } else { LastRequest::Look };
        let step = if actual == charge.tokens { Step::stands(actual) } else { Step::Ask(more) };
        (Self { charge, actual, asked }, step)
    }

    /// The charge of the hold.
    #[must_use]
    pub fn charge(&self) -> &Charge {
        &self.charge
    }

    /// The next step after a decision of the key. `rule` is the rule of the decision; `None` when nothing is counted.
    #[must_use]
    pub fn next(&mut self, decision: &Decision, rule: Option<&Rule>) -> Step {
        let estimate = self.charge.tokens;
        match (self.asked, decision.verdict) {
            (LastRequest::Look, _) => match rule.filter(|_| self.charge.is_counted) {
                None => Step::stands(self.actual),
                Some(rule) if !self.charge.counts_still(rule, decision) => Step::stands(estimate),
                Some(_) if on(Mutant::WholeHoldBack) => Step::End { stands: self.actual, back: estimate },
                Some(_) => Step::End { stands: self.actual, back: estimate - self.actual },
            },
            (LastRequest::More, Verdict::Allow) => Step::stands(self.actual),
            (LastRequest::More, Verdict::Deny) => match decision.remaining.min(self.actual.saturating_sub(estimate)) {
                0 => Step::stands(estimate),
                left => {
                    self.asked = LastRequest::Rest(left);
                    Step::Ask(left)
                }
            },
            (LastRequest::Rest(left), Verdict::Allow) => Step::stands(estimate + left),
            (LastRequest::Rest(_), Verdict::Deny) => Step::stands(estimate),
        }
    }
}

impl Step {
    /// The last step, with nothing to give back.
    fn stands(tokens: u64) -> Self {
        Self::End { stands: tokens, back: 0 }
    }
}

/// The store's clock at the time of a decision.
#[must_use]
pub fn clock(decision: &Decision) -> Timestamp {
    Timestamp(decision.reset_at.0.saturating_sub(decision.reset_after.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    const CHARGE: Charge = Charge {
        tokens: 3,
        at: Timestamp(100 * SECOND),
        reset_at: Timestamp(110 * SECOND),
        limit_index: 0,
        source: Source::Lease,
        is_counted: true,
        epoch: 0,
    };

    fn decision(now: u64, reset: u64, verdict: Verdict, remaining: u64) -> Decision {
        Decision {
            verdict,
            limit: 10,
            remaining,
            retry_after: None,
            reset_after: Micros(reset.saturating_sub(now) * SECOND),
            reset_at: Timestamp(reset.max(now) * SECOND),
            reason: Reason::Ok,
            source: Source::Lease,
            limit_index: 0,
            slot: None,
            epoch: 0,
        }
    }

    fn rule(limit: &str) -> Rule {
        Rule::of("p", &[Limit::parse(limit).unwrap()])
    }

    #[test]
    fn a_hold_is_settled_once_and_in_time() {
        let mut holds = Holds::default();
        let (first, second) = (9, 7);
        holds.keep(first, CHARGE, (), Instant(10));
        holds.keep(second, CHARGE, (), Instant(20));
        assert!(holds.take(first, Instant(9)).is_some() && holds.take(first, Instant(9)).is_none());
        assert!(holds.take(second, Instant(20)).is_none());
        assert!(holds.by_end.is_empty() && holds.holds.is_empty());
    }

    #[test]
    fn what_nobody_settles_is_forgotten_and_the_number_is_bounded() {
        let mut holds = Holds::default();
        for id in 0..MOST as u128 {
            assert!(holds.has_room(Instant(1)));
            holds.keep(id, CHARGE, (), Instant(10));
        }
        assert!(!holds.has_room(Instant(9)));
        assert!(holds.has_room(Instant(10)));
    }

    #[test]
    fn nothing_is_given_back_to_a_later_window() {
        let counts =
            |limit: &str, now, reset| CHARGE.counts_still(&rule(limit), &decision(now, reset, Verdict::Allow, 0));
        assert!(counts("10/10s fixed", 109, 110) && !counts("10/10s fixed", 110, 120));
        assert!(counts("10/10s sliding", 109, 110) && !counts("10/10s sliding", 110, 120));
        assert!(counts("10/10s", 109, 110) && !counts("10/10s", 110, 110));
        assert!(counts("10/10s fixed from-first", 109, 110) && !counts("10/10s fixed from-first", 109, 112));
    }

    #[test]
    fn a_bucket_that_has_filled_up_takes_nothing() {
        let bucket = rule("10/10s");
        let later = |now| decision(now, now + 1, Verdict::Allow, 9);
        let full_soon = Charge { reset_at: Timestamp(103 * SECOND), ..CHARGE };
        assert!(full_soon.counts_still(&bucket, &later(102)) && !full_soon.counts_still(&bucket, &later(103)));
        let told_of_another = Charge { limit_index: 1, ..full_soon };
        assert!(
            told_of_another.counts_still(&bucket, &later(109)) && !told_of_another.counts_still(&bucket, &later(110))
        );
    }

    #[test]
    fn what_was_not_counted_is_not_given_back() {
        let free = [
            Decision { source: Source::Policy, ..decision(100, 110, Verdict::Allow, 9) },
            Decision { reason: Reason::Shadow, ..decision(100, 110, Verdict::Allow, 9) },
        ];
        for decided in free {
            let (mut settling, first) = Settling::begin(Charge::of(3, &decided), 1);
            assert_eq!(first, Step::Ask(0));
            let later = decision(101, 110, Verdict::Allow, 9);
            assert_eq!(settling.next(&later, Some(&rule("10/10s fixed"))), Step::stands(1));
        }
    }

    /// All steps to settle a hold, when the key answers with these decisions.
    fn steps(actual: u64, limit: Option<&str>, answers: &[Decision]) -> Vec<Step> {
        let (mut settling, first) = Settling::begin(CHARGE, actual);
        let rule = limit.map(rule);
        let later = answers.iter().map(|answer| settling.next(answer, rule.as_ref()));
        std::iter::once(first).chain(later).collect()
    }

    #[test]
    fn less_is_given_back_where_it_counts_still() {
        let (in_time, late) = (decision(105, 110, Verdict::Deny, 0), decision(111, 120, Verdict::Allow, 9));
        let limit = Some("10/10s fixed");
        assert_eq!(steps(1, limit, &[in_time]), [Step::Ask(0), Step::End { stands: 1, back: 2 }]);
        assert_eq!(steps(1, limit, &[late]), [Step::Ask(0), Step::stands(3)]);
        assert_eq!(steps(1, None, &[late]), [Step::Ask(0), Step::stands(1)]);
        assert_eq!(steps(3, limit, &[]), [Step::stands(3)]);
    }

    #[test]
    fn more_is_charged_as_far_as_there_is_any() {
        let limit = Some("10/10s fixed");
        let [yes, two, none] = [(Verdict::Allow, 4), (Verdict::Deny, 2), (Verdict::Deny, 0)]
            .map(|(verdict, remaining)| decision(105, 110, verdict, remaining));
        assert_eq!(steps(8, limit, &[yes]), [Step::Ask(5), Step::stands(8)]);
        assert_eq!(steps(8, limit, &[none]), [Step::Ask(5), Step::stands(3)]);
        assert_eq!(steps(8, limit, &[two, yes]), [Step::Ask(5), Step::Ask(2), Step::stands(5)]);
        assert_eq!(steps(8, limit, &[two, none]), [Step::Ask(5), Step::Ask(2), Step::stands(3)]);
    }
}
