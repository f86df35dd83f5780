//! **reported**: a node reports the tokens of a bucket that it has spent to the store before its account is over.
//! Tokens that it does not report are charged at the end of the account, later than they were spent, so that the bucket
//! stays full for longer than it should.

use std::collections::BTreeMap;

use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::Algorithm;
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Clocks, Life, Lives, Stops};
use super::phased::Pushes;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static TROUBLE: Exemption = Exemption::new(
    "an account in whose life its node had no answer of the store, of whatever key, was not run, or had limits that changed",
    "It takes the store for lost, or is late, or begins anew.",
);
static LEAPS: Exemption = Exemption::new(
    "an account in whose life another clock has come to count its key",
    "By that it ends at another time.",
);
static STALE: Exemption = Exemption::new(
    "an account of a key of which a former owner, or a master that the call reached late, may know",
    "What it says of it the owner does not know.",
);
static CHARGED: Exemption = Exemption::new(
    "what was needed by who waited, and what the store has not renewed of an account",
    "The store has charged that when it lent it, whoever has spent it, or charges it by itself when the account of before is over.",
);
static BACK: Exemption =
    Exemption::new("a cost that was taken back", "It is back in the lease, or the store was asked to take it back.");
static TRIFLE: Exemption = Exemption::new(
    "in policies of buckets alone whose accounts last longer than two seconds, an account of one hundredth of the smallest bucket or less, divided by the nodes that the store counts",
    "No call is made for so little where half of the bucket is left. It counts as spent when the account is over.",
);
static RESET: Exemption = Exemption::new(
    "accounts of a key that a client reset",
    "The bucket is full from then on, and what was spent of it before is asked back by nobody.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "reporting.rs",
    invariants: &["reported"],
    proves: "What a node has spent of a bucket it tells the store before its account is over and all of it counts as spent.",
    judges: "Policies of which some limit is a bucket.",
    exemptions: &[&BASELINES, &TROUBLE, &LEAPS, &STALE, &CHARGED, &BACK, &TRIFLE, &RESET],
    mutant: Some("spending-timer-lost"),
};

/// How many periods before its end trouble may concern an account: it lives for two at most, and trouble one period
/// earlier may still delay its calls.
const CONCERNS: u64 = 3;

/// One part in so many of a bucket is a trifle.
const TRIFLE_PART: u64 = 100;

/// The tokens of a bucket that a node was lent and has not reported.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// When it is over, in true time.
    ends: u64,
    period: u64,
    charged: u64,
    used: u64,
    is_trifle: bool,
}

/// Whether so many tokens that are set aside for one of so many nodes are a trifle.
fn is_trifle(rule: &Rule, aside: u64, nodes: u32) -> bool {
    let is_plain = rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra) && rule.account_units() > 1;
    let smallest = rule.limits.iter().map(|limit| limit.capacity()).min().unwrap_or(0);
    let trifle = smallest / (TRIFLE_PART * u64::from(nodes.max(1)));
    is_plain && trifle > 1 && aside <= trifle
}

/// The checker.
#[derive(Debug)]
pub(super) struct Reporting {
    is_on: bool,
    /// By policy, when its limits change.
    pushes: Vec<Pushes>,
    /// When a call of each node last got no answer; and when nodes were frozen.
    unanswered: Numbered<Option<u64>>,
    stops: Stops,
    clocks: Clocks,
    lives: Lives,
    accounts: Map<(Life, u32), Account>,
    ends: BTreeMap<u64, Vec<(Life, u32)>>,
    found: Found,
}

impl Reporting {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            pushes: (0..plan.policies.len()).map(|policy| Pushes::new(plan, policy)).collect(),
            unanswered: Numbered::default(),
            stops: Stops::default(),
            clocks: Clocks::new(plan),
            lives: Lives::default(),
            accounts: Map::default(),
            ends: BTreeMap::new(),
            found: Found::default(),
        }
    }

    /// The store has executed a call, which closes the account; it may have opened another one.
    fn executed(&mut self, moment: Moment, place: (Life, u32), call: &Call, grant: &Grant) {
        if !call.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra) || grant.replayed || grant.outdated
        {
            return;
        }
        let (kept, needed) = match &call.op {
            Op::Acquire(order) => {
                let kept = order.held.saturating_sub(grant.not_kept).saturating_add(grant.granted);
                (kept, grant.granted.min(order.need))
            }
            Op::Return { held, .. } => (*held, 0),
            Op::Reset => return self.accounts.retain(|(_, key), _| !RESET.when(*key == place.1)),
            _ => return,
        };
        self.accounts.remove(&place);
        if kept > 0 {
            let period = call.rule.account_period().0;
            let ends = moment.at + (grant.now.0 / period + 2) * period - grant.now.0;
            let is_trifle = is_trifle(&call.rule, kept.saturating_sub(needed), grant.nodes);
            // What of the account the store did not renew it charges by itself when that is over.
            let charged = grant.not_kept + needed;
            self.accounts.insert(place, Account { ends, period, charged, used: 0, is_trifle });
            self.ends.entry(ends).or_default().push(place);
        }
    }

    fn account(&mut self, request: &Request) -> Option<&mut Account> {
        self.accounts.get_mut(&(self.lives.of(request.node), request.key))
    }

    /// Counts a refund. If its tokens were spent from an earlier account, the store has charged them already, and
    /// spending them again need not be reported.
    fn back(&mut self, request: &Request) {
        if let Some(account) = self.account(request) {
            let of_this = account.used.min(BACK.forgives(request.cost));
            account.used -= of_this;
            account.charged += BACK.forgives(request.cost - of_this);
        }
    }

    /// Whether trouble during an account's life, or shortly before, kept its node from reporting in time.
    fn is_excused(&self, ((node, _), key): (Life, u32), Account { ends, period, .. }: Account) -> bool {
        let lasts = CONCERNS * period;
        let concerns = |at: Option<u64>| at.is_some_and(|at| at + lasts >= ends);
        let is_pushed = self.pushes.iter().any(|pushes| pushes.meet(ends) || pushes.meet(ends.saturating_sub(lasts)));
        let is_unanswered = concerns(self.unanswered.get(node).copied().flatten());
        TROUBLE.when(is_unanswered || is_pushed || self.stops.meet(node, ends, lasts))
            || LEAPS.when(concerns(self.clocks.leapt(key)))
    }

    /// Judges accounts that are over.
    fn end(&mut self, moment: Moment) {
        while let Some(entry) = self.ends.first_entry().filter(|entry| *entry.key() < moment.at) {
            let (ends, places) = entry.remove_entry();
            for place in places {
                let Some(account) = self.accounts.get(&place).copied().filter(|account| account.ends == ends) else {
                    continue;
                };
                self.accounts.remove(&place);
                if self.is_excused(place, account) {
                    continue;
                }
                if account.used > CHARGED.forgives(account.charged) && !TRIFLE.when(account.is_trifle) {
                    self.found.add("reported", moment, || {
                        format!("{:?} has told the store nothing of key {} since it used {account:?}", place.0, place.1)
                    });
                }
            }
        }
    }
}

impl Observer for Reporting {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        self.end(moment);
        self.stops.see(seen);
        self.clocks.see(moment, seen);
        match seen {
            Seen::Settled { node, grant: None, .. } => *self.unanswered.of(*node) = Some(moment.at),
            Seen::Executed { node, incarnation, key, stale: true, .. } => {
                // The owner does not know what was reported to a former owner.
                self.accounts.retain(|place, _| !STALE.when(*place == ((*node, *incarnation), *key)));
            }
            Seen::Executed { node, incarnation, key, call, grant, .. } => {
                self.executed(moment, ((*node, *incarnation), *key), call, grant);
            }
            // A report counts from when its call is sent, because the store may be late.
            Seen::Called { node, key, call, .. } if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) => {
                self.accounts.remove(&(self.lives.of(*node), *key));
            }
            Seen::Answered { request, decision, .. }
                if request.kind == Kind::Check
                    && decision.verdict == Verdict::Allow
                    && matches!(decision.source, Source::Lease | Source::Store) =>
            {
                if let Some(account) = self.account(request) {
                    account.used += request.cost;
                }
            }
            Seen::Asked(request) if request.kind == Kind::Refund => self.back(request),
            Seen::Together { what: Together::GoesBack { request }, .. } => self.back(request),
            Seen::Left { node, .. } => {
                let life = self.lives.of(*node);
                self.accounts.retain(|(of, _), _| *of != life);
            }
            Seen::Lost { key, .. } | Seen::Undone { key, .. } => self.accounts.retain(|(_, of), _| of != key),
            _ => {}
        }
    }
}

impl Checker for Reporting {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::plan::{Fault, What};
    use crate::span::Span;

    /// A node is lent a token without a waiter, is asked for `cost`, and calls again at `again`, if ever; in the end
    /// something else happens.
    fn lent(history: &mut History, checker: &mut Reporting, cost: u64, again: Option<u64>) -> usize {
        history.see(checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
        history.executed(checker, 1, 1);
        history.check(checker, 2, cost, Source::Lease, true);
        if let Some(at) = again {
            history.called(checker, at, 2, 1);
        }
        history.check(checker, 5 * SECOND, 1, Source::Share, true);
        checker.violations().len()
    }

    #[test]
    fn what_is_not_reported_in_time_is_seen() {
        // The first token was lent for a waiter.
        for (cost, again, seen) in [(2, None, 1), (1, None, 0), (2, Some(3 * SECOND), 0), (2, Some(9 * SECOND / 2), 1)]
        {
            let mut history = History::new("10/10s");
            let mut checker = Reporting::new(&history.setting());
            assert_eq!(lent(&mut history, &mut checker, cost, again), seen, "{:?}", checker.violations());
        }
    }

    /// Four tokens, of which one was needed by a waiter: three are set aside, which is a hundredth of a bucket of 300.
    #[test]
    fn of_a_trifle_nothing_need_be_reported() {
        for (limit, seen) in [("300/1m", 0), ("299/1m", 1), ("600/1m", 0), ("300/10s", 1), ("300/1m fixed", 0)] {
            let mut history = History::new(limit);
            let mut checker = Reporting::new(&history.setting());
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 0 });
            history.lent(&mut checker, 1, 0, 1, 4);
            history.check(&mut checker, 2, 2, Source::Lease, true);
            history.check(&mut checker, 50 * SECOND, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{limit}: {:?}", checker.violations());
        }
        let rule = |limit: &str| Rule::of("api", &[rationd::core::limit::Limit::parse(limit).unwrap()]);
        assert!(is_trifle(&rule("600/1m"), 3, 2) && !is_trifle(&rule("600/1m"), 4, 2));
        assert!(!is_trifle(&rule("199/1m"), 0, 1), "a single token is none");
    }

    /// A fault alone excuses none, and a call without an answer excuses its node.
    #[test]
    fn who_had_no_answer_of_late_is_excused() {
        for (node, seen) in [(None, 1), (Some(0), 0), (Some(1), 1)] {
            let mut history = History::new("10/10s");
            let mut setting = history.setting();
            let what = What::FlushAll { master: 0 };
            setting.plan.faults = vec![Fault { at: Span(0), lasts: Span(0), what }];
            let mut checker = Reporting::new(&setting);
            if let Some(node) = node {
                *checker.unanswered.of(node) = Some(1);
            }
            assert_eq!(lent(&mut history, &mut checker, 2, None), seen, "{node:?}: {:?}", checker.violations());
        }
    }

    /// Six seconds of trouble are over before the end of an account that is opened after ten.
    #[test]
    fn who_has_answers_again_is_judged_in_time() {
        for (opened, seen) in [(1, 0), (10, 1)] {
            let mut history = History::new("10/10s");
            let mut checker = Reporting::new(&history.setting());
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            history.unanswered_in(&mut checker, SECOND / 2, [1, 1]);
            history.executed(&mut checker, opened * SECOND, 2);
            history.check(&mut checker, opened * SECOND + 1, 2, Source::Lease, true);
            history.check(&mut checker, (opened + 5) * SECOND, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{opened}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_cost_that_was_taken_back_is_excused() {
        let mut history = History::new("10/10s");
        let mut checker = Reporting::new(&history.setting());
        history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
        history.executed(&mut checker, 1, 1);
        history.check(&mut checker, 2, 2, Source::Lease, true);
        let request = Request { kind: Kind::Refund, cost: 1, ..history.ask(&mut checker, 3) };
        history.see(&mut checker, 3, &Seen::Asked(&request));
        history.check(&mut checker, 5 * SECOND, 1, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }

    #[test]
    fn what_an_account_before_was_charged_for_is_spent_again_and_not_told() {
        for (cost, seen) in [(4, 0), (5, 1)] {
            let mut history = History::new("10/10s");
            let mut checker = Reporting::new(&history.setting());
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            history.executed(&mut checker, 1, 1);
            let request = Request { kind: Kind::Refund, cost: 3, ..history.ask(&mut checker, 2) };
            history.see(&mut checker, 2, &Seen::Asked(&request));
            history.check(&mut checker, 3, cost, Source::Lease, true);
            history.check(&mut checker, 5 * SECOND, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{cost}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_was_used_before_a_reset_is_excused_and_nothing_after_it() {
        for (again, seen) in [(false, 0), (true, 1)] {
            let mut history = History::new("10/10s");
            let mut checker = Reporting::new(&history.setting());
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            history.executed(&mut checker, 1, 1);
            history.check(&mut checker, 2, 2, Source::Lease, true);
            history.reset(&mut checker, 3, 9);
            if again {
                history.executed(&mut checker, 4, 10);
                history.check(&mut checker, 5, 2, Source::Lease, true);
            }
            history.check(&mut checker, 5 * SECOND, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
