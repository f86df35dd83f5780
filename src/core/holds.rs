//! Estimates that were charged and have yet to be settled, and how they are.
//!
//! A table of holds, bounded, each with an end: a hold that nobody settles stands as charged, and so does
//! what is open when the daemon ends. Settling one is a row of questions to the key's shard, one after
//! another, as its answers come: [`Settling`]. Knows no client, no key and no clock; called by the daemon's
//! requests and by the simulator.

use std::collections::{BTreeMap, BTreeSet};

use super::call::OPEN;
use super::decision::{Decision, Reason, Source, Verdict};
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::rule::Rule;
use super::time::{Instant, Micros, Timestamp};
use super::window;

/// Most holds at a time.
pub const MOST: usize = 100_000;

/// How long a hold can be settled unless the request says.
pub const TTL: Micros = Micros::from_secs(60);

/// The longest that a request may say.
pub const LONGEST: Micros = Micros::from_secs(86_400);

/// What was charged, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Tokens.
    pub tokens: u64,
    /// When, by the store's clock.
    pub at: Timestamp,
    /// When the limit is whole again, as the decision told, and which one that is.
    pub reset_at: Timestamp,
    /// See [`Decision::limit_index`].
    pub limit_index: u8,
    /// What admitted it.
    pub source: Source,
    /// The limits were charged: not where the policy let it pass whatever they say.
    pub is_counted: bool,
}

/// All holds of a daemon. A hold is a charge, and whatever the driver keeps with it.
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
    asked: Asked,
}

/// What its key was asked last.
#[derive(Clone, Copy, Debug)]
enum Asked {
    /// Whether the windows of the charge are open still.
    Look,
    /// All that is missing.
    More,
    /// As much of it as was left.
    Rest(u64),
}

/// What a settling wants done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask the key for so many tokens, 0 for a look, and tell [`Settling::next`] the decision.
    Ask(u64),
    /// It is over.
    End {
        /// Tokens that stand charged.
        stands: u64,
        /// Tokens to be given back to the windows of the charge.
        back: u64,
    },
}

impl<T> Holds<T> {
    /// Whether there is room for one more at `now`.
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

    /// Keeps a charge and what belongs to it until `ends`, under an id that no other hold has. Whoever knows the id
    /// settles it: where clients do not trust each other, it must be one that nobody can guess.
    pub fn keep(&mut self, id: u128, charge: Charge, what: T, ends: Instant) {
        self.holds.insert(id, (ends, charge, what));
        self.by_end.insert((ends, id));
    }

    /// Gives the hold of that id out of hand, once, unless its time is over.
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
    /// So many tokens, as an admission of them charged.
    #[must_use]
    pub fn of(tokens: u64, decision: &Decision) -> Self {
        let Decision { reset_at, limit_index, source, reason, .. } = *decision;
        let is_counted = source != Source::Policy && reason != Reason::Shadow || on(Mutant::FreeHoldBack);
        Self { tokens, at: clock(decision), reset_at, limit_index, source, is_counted }
    }

    /// Of each limit the window that was charged, as its `Counter::at`; of a bucket when it has filled up
    /// since. `None` where that is not known.
    #[must_use]
    pub fn windows(&self, rule: &Rule) -> Option<[Timestamp; MAX_LIMITS]> {
        let mut windows = OPEN;
        if on(Mutant::HoldOutlivesWindow) {
            return Some(windows);
        }
        for (index, limit) in rule.limits.iter().enumerate() {
            let is_told = index == usize::from(self.limit_index);
            windows[index] = match limit.algorithm {
                Algorithm::Gcra if is_told => self.reset_at.min(self.at + limit.depth()),
                Algorithm::Gcra => self.at + limit.depth(),
                Algorithm::Fixed => window::aligned_end(limit, self.at),
                Algorithm::Sliding => window::aligned_start(limit, self.at),
                Algorithm::FixedFromFirst if rule.limits.len() == 1 => self.reset_at,
                // A slot is ended by its release.
                Algorithm::FixedFromFirst | Algorithm::Concurrent => return None,
            };
        }
        Some(windows)
    }

    /// It counts against the limits still, as a later decision shows, so that it can be given back: no
    /// window of `rule` has ended since, and its buckets have not filled up meanwhile.
    #[must_use]
    pub fn counts_still(&self, rule: &Rule, later: &Decision) -> bool {
        let Some(windows) = self.windows(rule) else { return false };
        rule.limits.iter().zip(windows).all(|(limit, window)| match limit.algorithm {
            Algorithm::FixedFromFirst if window.is_some() => later.reset_at == window,
            _ => is_open(limit, clock(later), window),
        })
    }
}

/// Whether a window that was charged (see [`Charge::windows`]) is the one of `now`, as far as the clock says.
/// 0 is any.
pub(super) fn is_open(limit: &Limit, now: Timestamp, window: Timestamp) -> bool {
    match limit.algorithm {
        _ if window.is_none() => true,
        Algorithm::Gcra | Algorithm::FixedFromFirst | Algorithm::Concurrent => now < window,
        Algorithm::Fixed => window::aligned_end(limit, now) == window,
        Algorithm::Sliding => window::aligned_start(limit, now) == window,
    }
}

impl Settling {
    /// What was charged by estimate was `actual` in the end; and what to do first.
    #[must_use]
    pub fn begin(charge: Charge, actual: u64) -> (Self, Step) {
        let more = if on(Mutant::LessIsCharged) {
            actual.abs_diff(charge.tokens)
        } else {
            actual.saturating_sub(charge.tokens)
        };
        let asked = if more > 0 { Asked::More } else { Asked::Look };
        let step = if actual == charge.tokens { Step::stands(actual) } else { Step::Ask(more) };
        (Self { charge, actual, asked }, step)
    }

    /// What is settled.
    #[must_use]
    pub fn charge(&self) -> &Charge {
        &self.charge
    }

    /// What to do as the key decided so. `rule` is what it decided by; `None`: nothing is counted.
    #[must_use]
    pub fn next(&mut self, decision: &Decision, rule: Option<&Rule>) -> Step {
        let estimate = self.charge.tokens;
        match (self.asked, decision.verdict) {
            (Asked::Look, _) => match rule.filter(|_| self.charge.is_counted) {
                None => Step::stands(self.actual),
                Some(rule) if !self.charge.counts_still(rule, decision) => Step::stands(estimate),
                Some(_) if on(Mutant::WholeHoldBack) => Step::End { stands: self.actual, back: estimate },
                Some(_) => Step::End { stands: self.actual, back: estimate - self.actual },
            },
            (Asked::More, Verdict::Allow) => Step::stands(self.actual),
            (Asked::More, Verdict::Deny) => match decision.remaining.min(self.actual.saturating_sub(estimate)) {
                0 => Step::stands(estimate),
                left => {
                    self.asked = Asked::Rest(left);
                    Step::Ask(left)
                }
            },
            (Asked::Rest(left), Verdict::Allow) => Step::stands(estimate + left),
            (Asked::Rest(_), Verdict::Deny) => Step::stands(estimate),
        }
    }
}

impl Step {
    /// The end, and nothing to be given back.
    fn stands(tokens: u64) -> Self {
        Self::End { stands: tokens, back: 0 }
    }
}

/// The store's clock, as a decision was made.
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

    /// All steps of a settling whose key answers so.
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
