//! **truth** of the remaining tokens, for rules other than one fixed window (which `remaining.rs` judges): for the
//! limit that a decision names, no more remain than the store had left by one of its last answers, projected to the
//! time of the decision, plus what the node holds.
//!
//! That is what the node could know; others may have taken tokens since.

use std::collections::VecDeque;
use std::sync::Arc;

use rationd::core::call::{Counter, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit, MAX_LIMITS};
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use super::notes::{Ids, Life, Lives, goes_by};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned, trip};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "What remains is then of another limit.",
);
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods, and of a bucket an account's life, after that has caught up with the one before",
    "What was lent by the other clock is spent first.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static OTHERS: Exemption =
    Exemption::new("what others took since", "Known is what the node was shown: one of its last answers counts.");
static WHOLE: Exemption = Exemption::new(
    "a decision that says that the limit is whole",
    "All of it remains then, and that it is whole truth.rs judges; such a decision does not tell its node's clock.",
);
static LOANS: Exemption = Exemption::new(
    "a bucket of which a peer has told a node, until the store has answered that three times since",
    "What the peer holds of it counts as left, and its counters show that as lent.",
);
static ASIDE: Exemption = Exemption::new(
    "keys of which tokens are set aside for nodes that may lose the store",
    "What is set aside for a node it may spend beside what is left for all.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "left.rs",
    invariants: &["truth"],
    proves: "What a decision says to remain is no more than the store had left by one of its last answers, reckoned on to the time of the decision, and what the node holds.",
    judges: "All but one fixed window: buckets, sliding windows, windows from the first request, several limits.",
    exemptions: &[&PUSHES, &LEAPS, &BASELINES, &OTHERS, &WHOLE, &LOANS, &ASIDE],
    mutant: Some("own-counts-twice"),
};

/// How many answers are remembered of a key.
const ANSWERS: usize = 3;

/// Tokens that a node may hold, and until when at most, in true time.
#[derive(Clone, Copy, Debug)]
struct Held {
    until: u64,
    tokens: u64,
}

/// The counters of an answer, and how many of the lent tokens in them were lent to this node.
#[derive(Clone, Copy, Debug)]
struct Shown {
    counters: [Counter; MAX_LIMITS],
    own: u64,
}

/// What a node was shown and lent of a key.
#[derive(Clone, Debug, Default)]
struct Known {
    rule: Option<Arc<Rule>>,
    shown: VecDeque<Shown>,
    held: VecDeque<Held>,
    refunded: VecDeque<Held>,
    /// How well the node knows the store's clock by a peer's loan, until the store itself has answered about the key.
    doubt: u64,
}

impl Known {
    fn show(&mut self, counters: &[Counter; MAX_LIMITS], own: u64) {
        self.shown.push_back(Shown { counters: *counters, own });
        self.shown.drain(..self.shown.len().saturating_sub(ANSWERS));
    }

    /// Removes tokens, the oldest first.
    fn let_go(&mut self, tokens: u64) {
        let mut due = tokens;
        for held in &mut self.held {
            let part = due.min(held.tokens);
            held.tokens -= part;
            due -= part;
        }
    }

    /// The node's own tokens, which count as left. For a bucket these are all that it had been lent when the store
    /// answered, because tokens that it has spent since may have trickled in again.
    fn own(&self, now: u64, limit: &Limit) -> u64 {
        let sum =
            |all: &VecDeque<Held>| -> u64 { all.iter().filter(|held| held.until > now).map(|held| held.tokens).sum() };
        match limit.algorithm {
            Algorithm::Gcra => self.shown.iter().map(|shown| shown.own).max().unwrap_or(0) + sum(&self.refunded),
            _ => sum(&self.held),
        }
    }

    /// The most that may be left of a limit by a clock that shows `clock`, or up to `doubt` more.
    fn most(&self, index: usize, limit: &Limit, clock: u64, doubt: u64) -> u64 {
        let left = |counter: &Counter, at: u64| {
            let at = Timestamp(at);
            counter.rolled(limit, at).left(limit, at)
        };
        let lefts = self.shown.iter().map(|shown| &shown.counters[index]);
        let lefts = lefts.map(|counter| left(counter, clock).max(left(counter, clock + doubt)));
        OTHERS.forgives(lefts.max().unwrap_or(u64::MAX))
    }
}

/// Adds tokens that are held until `until`, and drops those that are over.
fn hold(all: &mut VecDeque<Held>, now: u64, until: u64, tokens: u64) {
    all.retain(|held| held.until > now);
    all.push_back(Held { until, tokens });
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Left {
    is_on: bool,
    doubt: u64,
    lives: Lives,
    settled: Ids,
    /// The ask of a peer that a node waits for, and when that was sent.
    asked: Map<(Life, u32), (u64, u64)>,
    known: Map<(Life, u32), Known>,
    found: Found,
}

/// How long a node may hold a grant.
fn lasts(rule: &Rule) -> u64 {
    let of = |limit: &Limit| match limit.algorithm {
        Algorithm::Gcra => rule.lease_life().0 + limit.depth().0,
        _ => 2 * limit.period.0,
    };
    rule.limits.iter().map(of).max().unwrap_or(0)
}

impl Left {
    /// Limited to keys and times without a change of limits or of the clock that counts the key.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
            .until_leaps(&LEAPS, setting.plan.clocks_leap())
            .again(setting, Self::new)
    }

    fn new(setting: &Setting) -> Self {
        Self {
            is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd),
            doubt: trip(&setting.plan),
            lives: Lives::default(),
            settled: Ids::default(),
            asked: Map::default(),
            known: Map::default(),
            found: Found::default(),
        }
    }

    fn known(&mut self, life: Life, key: u32, rule: &Arc<Rule>) -> &mut Known {
        let known = self.known.entry((life, key)).or_default();
        if known.rule.as_ref().is_none_or(|of| of.limits != rule.limits) {
            *known = Known { rule: Some(rule.clone()), ..Known::default() };
        }
        known
    }

    fn admitted(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision) {
        let (life, doubt) = (self.lives.of(request.node), self.doubt);
        let Some(known) = self.known.get_mut(&(life, request.key)) else { return };
        if decision.source != Source::Peer {
            known.let_go(request.cost);
        }
        let index = usize::from(decision.limit_index);
        let Some(limit) = rule.limits.get(index) else { return };
        if WHOLE.when(decision.reset_after.0 == 0) || known.shown.is_empty() {
            return;
        }
        let doubt = doubt.max(known.doubt);
        let most = known.most(index, limit, goes_by(decision).0, doubt).saturating_add(known.own(moment.at, limit));
        if decision.remaining > most {
            self.found.add("truth", moment, || format!("{request:?}: {decision:?}, and {known:?} leaves {most}"));
        }
    }
}

impl Observer for Left {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on || topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } if aligned(&call.rule).is_none() => {
                let life = (*node, *incarnation);
                let is_first = self.settled.is_first(life, call.id);
                let until = moment.at + lasts(&call.rule);
                let known = self.known(life, *key, &call.rule);
                // An answer to a call that was not executed still shows the counters, but leaves the node's tokens as
                // they were.
                let held = match &call.op {
                    Op::Acquire(order) if !grant.outdated => order.held + grant.granted,
                    Op::Return { held, .. } if !grant.outdated => *held,
                    _ => known.shown.back().map_or(0, |shown| shown.own),
                };
                known.show(&grant.counters, held);
                known.doubt = 0;
                match call.op {
                    Op::Acquire(_) if is_first => hold(&mut known.held, moment.at, until, grant.granted),
                    // Tokens that it hands back count as left from then on, so until the answer they may as well count
                    // as held.
                    Op::Return { amount, .. } if is_first => known.let_go(amount),
                    _ => {}
                }
            }
            Seen::PeerAsked { node, incarnation, key, ask, .. } => {
                self.asked.insert(((*node, *incarnation), *key), (ask.id, moment.at));
            }
            // Answers that are repeated or too late are ignored.
            Seen::PeerHeard { node, incarnation, key, ask, answer: Ok(loan), .. } if aligned(&ask.rule).is_none() => {
                let life = (*node, *incarnation);
                if let Some((_, sent)) = self.asked.get(&(life, *key)).copied().filter(|(id, _)| *id == ask.id) {
                    self.asked.remove(&(life, *key));
                    let known = self.known(life, *key, &ask.rule);
                    // The peer read the store's clock to within this, at some time while the ask was under way.
                    let [earliest, latest] = loan.clock;
                    known.doubt = latest.since(earliest).0 + (moment.at - sent);
                    let burst = ask.rule.limits.iter().map(|limit| limit.burst).max().unwrap_or(0);
                    known.show(&loan.counters, LOANS.forgives(burst));
                }
            }
            Seen::Asked(request) if request.kind == Kind::Refund => {
                let life = self.lives.of(request.node);
                if let Some(known) = self.known.get_mut(&(life, request.key))
                    && let Some(rule) = &known.rule
                {
                    let until = moment.at + lasts(rule);
                    hold(&mut known.held, moment.at, until, request.cost);
                    hold(&mut known.refunded, moment.at, until, request.cost);
                }
            }
            Seen::Answered { request, rule, decision, .. } if request.kind == Kind::Check => {
                let counts = matches!(decision.source, Source::Lease | Source::Store | Source::Peer);
                let is_judged = aligned(rule).is_none() && !ASIDE.when(rule.is_entitled());
                if counts && is_judged && decision.verdict == Verdict::Allow {
                    self.admitted(moment, request, rule, decision);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Left {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn overlook(&mut self) {
        self.found.list.clear();
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::ask::{Ask, Loan};

    use super::*;
    use crate::checkers::tests::{History, SECOND, START, loan, peer_ask};

    /// The store has shown six as used or lent, including the two that it has just lent to the node. The node spends
    /// one, and says that `remaining` remain.
    fn found(limit: &str, opened: u64, at: u64, remaining: u64) -> usize {
        let mut history = History::new(limit);
        let mut checker = Left::new(&history.setting());
        (history.used, history.opened) = (6, opened.wrapping_sub(SECOND));
        history.settled(&mut checker, 1, 1, 2);
        history.remaining = remaining;
        history.check(&mut checker, at, 1, Source::Lease, true);
        checker.violations().len()
    }

    #[test]
    fn more_than_the_store_had_left_and_the_node_holds_is_seen() {
        for (limit, opened, most) in [
            ("10/1s sliding", 0, 4 + 1),
            ("10/1s fixed from-first", SECOND, 4 + 1),
            // Tokens that it has spent may have trickled in again.
            ("10/1s burst 10", 0, 4 + 2),
        ] {
            assert_eq!(found(limit, opened, SECOND / 2, most), 0, "{limit}");
            assert_eq!(found(limit, opened, SECOND / 2, most + 1), 1, "{limit}");
        }
    }

    /// A window that is over is whole again; a sliding one weighs half in the middle of the next.
    #[test]
    fn what_comes_back_with_time_is_left() {
        for (limit, opened, most) in [("10/1s sliding", 0, 7 + 1), ("10/1s fixed from-first", SECOND, 10 + 1)] {
            assert_eq!(found(limit, opened, SECOND + SECOND / 2, most), 0, "{limit}");
            assert_eq!(found(limit, opened, SECOND + SECOND / 2, most + 1), 1, "{limit}");
        }
    }

    #[test]
    fn what_a_peer_holds_of_a_bucket_may_be_left() {
        for (limit, opened, seen) in [("10/1s burst 10", 0, 0), ("10/1s fixed from-first", SECOND, 1)] {
            let mut history = History::new(limit);
            let mut checker = Left::new(&history.setting());
            let (node, incarnation, key, peer) = (0, 0, 0, (1, 1));
            let ask = &Ask { rule: history.setting().rules[0].clone(), ..peer_ask(1, 1, 1) };
            history.see(&mut checker, 1, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: 6, prev: 0, at: Timestamp(START + opened) };
            let answer = &loan(1).map(|loan| Loan { counters, ..loan });
            let store = Timestamp(START);
            history.see(&mut checker, 2, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
            history.remaining = 5;
            history.check(&mut checker, SECOND / 2, 1, Source::Peer, true);
            assert_eq!(checker.violations().len(), seen, "{limit}: {:?}", checker.violations());
        }
    }

    /// A window ends 8 ms after the earliest time that the store's clock may show. The peer knew that clock to within 5 ms, and its
    /// answer was under way for 4, or for 2: only in the first case may the node take the next window for open, until the store has
    /// answered.
    #[test]
    fn who_knows_the_clock_by_a_peer_alone_may_take_the_next_window_for_open() {
        for (trip, is_answered, seen) in [(4_000, false, 0), (2_000, false, 1), (4_000, true, 1)] {
            let mut history = History::new("10/1s sliding");
            let mut checker = Left::new(&history.setting());
            let (node, incarnation, key, peer) = (0, 0, 0, (1, 1));
            let ask = &Ask { rule: history.setting().rules[0].clone(), ..peer_ask(1, 1, 1) };
            let at = SECOND - 8_000;
            history.see(&mut checker, at - trip, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: 4, prev: 9, at: Timestamp(START) };
            let clock = [Timestamp(START + at), Timestamp(START + at + 5_000)];
            let answer = &loan(1).map(|loan| Loan { counters, clock, ..loan });
            let store = Timestamp(START + at);
            history.see(&mut checker, at, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
            if is_answered {
                (history.used, history.prev, history.opened) = (4, 9, SECOND.wrapping_neg());
                history.settled(&mut checker, at, 1, 0);
            }
            // Of the window at hand five are left, beside one that the one before still takes; of the next one six.
            history.remaining = 6;
            history.check(&mut checker, at, 1, Source::Peer, true);
            assert_eq!(checker.violations().len(), seen, "{trip} {is_answered}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_the_node_has_handed_back_it_does_not_hold_once_the_store_has_answered() {
        for (is_answered, seen) in [(false, 0), (true, 1)] {
            let mut history = History::new("10/1s sliding");
            let mut checker = Left::new(&history.setting());
            (history.used, history.opened) = (6, SECOND.wrapping_neg());
            history.settled(&mut checker, 1, 1, 2);
            history.hands_back(&mut checker, 2, 1, is_answered);
            history.remaining = 5;
            history.check(&mut checker, SECOND / 2, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{is_answered}: {:?}", checker.violations());
        }
    }
}
