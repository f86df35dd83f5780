//! **truth** of the remaining tokens: no more than the store had left when it last answered, plus what the node was
//! lent of that window and has not spent.
//!
//! Judged for one aligned window, by what the node could know; others may have taken tokens since.

use std::collections::VecDeque;

use rationd::core::ask::Loan;
use rationd::core::call::{Call, Counter, Grant, Op, Window};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::{StoredTime, Timestamp};

use super::notes::{Ids, Life, Lives};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "What remains is then of another limit.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static SHAPES: Exemption = Exemption::new("other shapes", "What remains of them changes with the time.");
static OTHERS: Exemption =
    Exemption::new("what others took since", "Known is what the node was shown: one of its last answers counts.");
static OLDER: Exemption = Exemption::new(
    "after a slot moved between clocks that differ, or a clock was set",
    "What was lent by the other clock is spent first: for two periods, and what was spent of it then counts as held until the window of then \
     is over. What the clock of now has lent ahead counts beside it once that window has begun.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "remaining.rs",
    invariants: &["truth"],
    proves: "What a decision says to remain is no more than the store had left when it last answered and what the node holds.",
    judges: "One fixed window.",
    exemptions: &[&PUSHES, &BASELINES, &SHAPES, &OTHERS, &OLDER],
    mutant: Some("counts-next-window-as-left"),
};

/// How many answers are remembered of a window.
const ANSWERS: usize = 2;

/// The answers and grants about a key that a node had.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The end of the window, the tokens used by the latest answers that came, and (`held`) the node's own tokens.
    window: u64,
    used: [Option<u64>; ANSWERS],
    /// The tokens used by the answer that the store gave last, which may have come before those.
    newest: Option<u64>,
    heard: Timestamp,
    held: u64,
    /// How far the clock of that answer was ahead of true time.
    skew: Option<u64>,
    /// Tokens used and held of the next window, which are lent ahead.
    next: u64,
    ahead: u64,
    /// If clocks differ: the grants of the last two periods; and the tokens (`older`) that it may still hold until
    /// `until` by a former clock.
    lent: VecDeque<(u64, u64)>,
    older: u64,
    until: u64,
    /// Admissions that may have been of those older tokens instead of the held ones.
    perhaps_older: u64,
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Remaining {
    is_on: bool,
    /// Whether a key may be counted by another clock at once: masters' clocks differ and slots move, or clocks are set.
    leaps: bool,
    /// If so: how far the clock of each answer is ahead of true time, by receiver, the call's id and that clock.
    skews: Map<(Life, u64, u64), u64>,
    lives: Lives,
    settled: Ids,
    returned: Ids,
    /// The ask of a peer that a node waits for.
    asked: Map<(Life, u32), u64>,
    known: Map<(Life, u32), Known>,
    found: Found,
}

impl Known {
    /// Goes on to a later window.
    fn enter(&mut self, window: u64, period: u64) {
        if window > self.window {
            let follows = self.window + period == window;
            let (used, held) = if follows { (self.next, self.ahead) } else { (0, 0) };
            (self.window, self.used, self.held) = (window, [None, Some(used)], held);
            self.newest = None;
            (self.next, self.ahead, self.perhaps_older) = (0, 0, 0);
        }
    }

    /// Another clock counts the key: the node has forgotten the answers about windows that come again or are skipped.
    /// Its tokens end by the former clock, with their window, or the next one if they were lent ahead; it spends them
    /// first.
    fn leap(&mut self, now: u64, period: u64) -> Self {
        let lent = std::mem::take(&mut self.lent);
        let older = lent.iter().filter(|(at, _)| at + 2 * period > now).map(|(_, tokens)| tokens).sum();
        Self { lent, older, until: now + 2 * period, ..Self::default() }
    }

    fn lend(&mut self, now: u64, period: u64, tokens: u64) {
        self.lent.push_back((now, tokens));
        while self.lent.front().is_some_and(|(at, _)| at + 2 * period <= now) {
            self.lent.pop_front();
        }
    }

    /// Tokens of another window than the one that a decision names. While tokens by the former clock are left, the
    /// decision names their window; by the present clock the next window may have begun meanwhile, and a check can
    /// spend both.
    fn beside(&self, moment: Moment) -> u64 {
        let has_begun = self.skew.is_some_and(|skew| moment.store.0.wrapping_add(skew) >= self.window);
        self.older + if has_begun { self.ahead } else { 0 }
    }

    /// Tokens that a node hands back count as returned at once.
    fn give_back(&mut self, tokens: u64) {
        self.held = self.held.saturating_sub(tokens);
        self.used.iter_mut().chain([&mut self.newest]).flatten().for_each(|used| *used = used.saturating_sub(tokens));
    }

    /// Adds an answer; the node has adopted at least one of the last few.
    fn show(&mut self, counter: &Counter) {
        self.used.rotate_left(1);
        self.used[ANSWERS - 1] = Some(counter.used);
        self.next = counter.prev;
    }
}

impl Remaining {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            leaps: setting.plan.clocks_leap(),
            skews: Map::default(),
            is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd),
            lives: Lives::default(),
            settled: Ids::default(),
            returned: Ids::default(),
            asked: Map::default(),
            known: Map::default(),
            found: Found::default(),
        }
    }

    fn settled(&mut self, moment: Moment, life: Life, key: u32, call: &Call, grant: &Grant) {
        let Some(limit) = aligned(&call.rule) else { return };
        let counter = &grant.counters[0];
        let known = self.known.entry((life, key)).or_default();
        let follows = (known.window..=known.window + limit.period.0).contains(&counter.at.0);
        // A clock that is set by little stays in the window or gets into the next.
        let skew = self.skews.remove(&(life, call.id, grant.now.0)).or(known.skew);
        let differ = |(one, other): (u64, u64)| one.wrapping_sub(other).min(other.wrapping_sub(one)) > SAME;
        let is_other = known.skew.zip(skew).is_some_and(differ);
        if self.leaps && (!follows || is_other) {
            *known = known.leap(moment.at, limit.period.0);
        }
        known.skew = skew;
        known.enter(counter.at.0, limit.period.0);
        if known.window != counter.at.0 {
            // A grant of the next window was answered when that window had begun.
            let ahead = matches!(&call.op, Op::Acquire(order) if order.window == Window::Next { begins: counter.at });
            if ahead && counter.at.0 + limit.period.0 == known.window && self.settled.is_first(life, call.id) {
                known.held += grant.granted;
            }
            // An answer about the previous window shows how much of this one was lent ahead.
            let is_of_last = counter.at.0 + limit.period.0 == known.window;
            if is_of_last && grant.now > known.heard {
                known.used.rotate_left(1);
                known.used[ANSWERS - 1] = Some(counter.prev);
                known.heard = grant.now;
            }
            return;
        }
        // A repeated answer lends nothing more, but its counters are news unless a later answer came first.
        let first = self.settled.is_first(life, call.id);
        if first || grant.now > known.heard {
            known.show(counter);
        }
        if grant.now > known.heard {
            known.newest = Some(counter.used);
        }
        known.heard = known.heard.max(grant.now);
        if let (true, Op::Acquire(order)) = (first, &call.op) {
            if self.leaps {
                known.lend(moment.at, limit.period.0, grant.granted);
            }
            *(if !order.window.is_next() { &mut known.held } else { &mut known.ahead }) += grant.granted;
        }
    }

    /// Adds the counters of a loan: they show what the peer knows of the window, with the tokens that it holds counted
    /// as left.
    fn hear_loan(&mut self, life: Life, key: u32, rule: &Rule, loan: &Loan) {
        let (Some(limit), counter) = (aligned(rule), &loan.counters[0]) else { return };
        let known = self.known.entry((life, key)).or_default();
        known.enter(counter.at.0, limit.period.0);
        if known.window == counter.at.0 {
            // A node ignores what a loan says of a window that is over when it hears of it.
            let next = known.next;
            known.show(counter);
            known.next = known.next.min(next);
        }
    }

    fn admitted(&mut self, moment: Moment, request: &Request, limit: &Limit, decision: &Decision) {
        let life = self.lives.of(request.node);
        let Some(known) = self.known.get_mut(&(life, request.key)) else { return };
        known.enter(decision.reset_at.0, limit.period.0);
        if known.window != decision.reset_at.0 {
            return;
        }
        let own = if decision.source == Source::Peer { 0 } else { request.cost };
        known.held = known.held.saturating_sub(own);
        let used = known.used.iter().chain([&known.newest]).flatten().copied().min().unwrap_or(0);
        let most = OTHERS.forgives(limit.count.saturating_sub(used)) + known.held;
        let is_other = OLDER.when(moment.at < known.until);
        if is_other {
            known.perhaps_older = known.older.min(known.perhaps_older + own);
        }
        let most = most + if is_other { known.beside(moment) } else { OLDER.forgives(known.perhaps_older) };
        if decision.remaining > most {
            self.found.add("truth", moment, || format!("{request:?}: {decision:?}, and {known:?} leaves {most}"));
        }
    }
}

impl Observer for Remaining {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on || !self.leaps && topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Executed { node, incarnation, call, grant, .. } if self.leaps => {
                let skew = grant.now.0.wrapping_sub(moment.store.0);
                self.skews.insert(((*node, *incarnation), call.id, grant.now.0), skew);
            }
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                self.settled(moment, (*node, *incarnation), *key, call, grant);
            }
            Seen::PeerAsked { node, incarnation, key, ask, .. } => {
                self.asked.insert(((*node, *incarnation), *key), ask.id);
            }
            // Answers that are repeated or too late are ignored.
            Seen::PeerHeard { node, incarnation, key, ask, answer, .. } => {
                let life = (*node, *incarnation);
                if self.asked.get(&(life, *key)) == Some(&ask.id) {
                    self.asked.remove(&(life, *key));
                    // A peer that cannot reach the store, either, knows no more than before the outage, so its counters
                    // are ignored.
                    if let Ok(loan) = answer
                        && !loan.aside
                    {
                        self.hear_loan(life, *key, &ask.rule, loan);
                    }
                }
            }
            Seen::Called { node, key, call, .. } => {
                let Op::Return { amount, windows, .. } = &call.op else { return };
                let life = self.lives.of(*node);
                let Some(known) = self.known.get_mut(&(life, *key)) else { return };
                if known.window == StoredTime::number(windows[0]) && self.returned.is_first(life, call.id) {
                    known.give_back(*amount);
                }
            }
            Seen::Asked(request) if request.kind == Kind::Refund => {
                let life = self.lives.of(request.node);
                if let Some(known) = self.known.get_mut(&(life, request.key)) {
                    known.held += request.cost;
                }
            }
            Seen::Answered { request, rule, decision, .. } if request.kind == Kind::Check => {
                let counts = matches!(decision.source, Source::Lease | Source::Store | Source::Peer);
                if SHAPES.when(aligned(rule).is_none()) {
                    return;
                }
                if let (true, Verdict::Allow, Some(limit)) = (counts, decision.verdict, aligned(rule)) {
                    self.admitted(moment, request, limit, decision);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Remaining {
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
    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::plan::Fault;
    use crate::plan::What;
    use crate::span::Span;

    #[test]
    fn what_is_held_by_another_clock_is_spent_first() {
        let mut history = History::new("10/1s fixed");
        let mut setting = history.setting();
        setting.plan.redis.skew = Span::secs(5);
        let what = What::Reshard { from: 0, to: 1, part: 500 };
        setting.plan.faults.push(Fault { at: Span::secs(0), lasts: Span::secs(1), what });
        let mut checker = Remaining::new(&setting);
        for (id, tokens, later) in [(1, 4, 0), (2, 3, 3)] {
            (history.used, history.opened) = (tokens, later * SECOND);
            history.settled(&mut checker, id, id, tokens);
        }
        // It holds seven and spends the older four.
        let at = 3 * SECOND + 1;
        (history.remaining, history.opened) = (10, 0);
        history.check(&mut checker, at, 4, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
    }

    #[test]
    fn what_is_held_by_a_clock_that_was_set_by_little_is_spent_first() {
        for (set, seen) in [(0, 1), (SECOND / 10, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let what = What::Set { master: 0, by: Span::millis(100), back: false };
            setting.plan.faults.push(Fault { at: Span::millis(1), lasts: Span::secs(0), what });
            let mut checker = Remaining::new(&setting);
            history.used = 4;
            history.lent(&mut checker, 0, 0, 1, 4);
            // It is of the next window by either clock.
            (history.used, history.opened) = (5, SECOND);
            for (id, tokens) in [(2, 3), (3, 0)] {
                history.lent(&mut checker, SECOND + id, set, id, tokens);
            }
            history.remaining = 9;
            history.check(&mut checker, SECOND + 10, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_was_spent_of_another_clocks_is_held_of_this_ones_until_the_window_is_over() {
        for (remaining, seen) in [(9, 0), (10, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Remaining::new(&history.leaping());
            history.used = 2;
            history.lent(&mut checker, 0, 0, 1, 2);
            history.lent(&mut checker, SECOND / 2, SECOND / 10, 2, 0);
            for (id, later, used, tokens) in [(3, 1, 2, 0), (4, 2, 5, 5), (5, 2, 5, 0)] {
                (history.used, history.opened) = (used, later * SECOND);
                history.lent(&mut checker, later * SECOND + id, SECOND / 10, id, tokens);
            }
            history.remaining = 10;
            history.check(&mut checker, 2 * SECOND + SECOND / 4, 1, Source::Lease, true);
            assert!(checker.violations().is_empty(), "the one that it spends is older: {:?}", checker.violations());
            history.remaining = remaining;
            history.check(&mut checker, 2 * SECOND + 3 * SECOND / 4, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{remaining}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_lent_ahead_counts_beside_what_another_clock_lent_once_its_window_has_begun() {
        let begins = SECOND - SECOND / 10;
        for (at, remaining, seen) in [(begins, 5, 0), (begins, 6, 1), (begins - 1, 2, 0), (begins - 1, 3, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Remaining::new(&history.leaping());
            history.used = 10;
            history.lent(&mut checker, 0, 0, 1, 2);
            // By a clock that is 100 ms ahead.
            history.lent(&mut checker, 1, SECOND / 10, 2, 0);
            history.lent_ahead_by(&mut checker, 2, SECOND / 10, 3, 3);
            history.remaining = remaining;
            history.check(&mut checker, at, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{at} {remaining}: {:?}", checker.violations());
        }
    }

    /// Seven of this window were used; an answer about the previous window says so, or says four, or was given earlier.
    #[test]
    fn an_answer_about_the_window_before_shows_what_is_used_of_this_one() {
        for (prev, executed, seen) in [(7, 3, 1), (4, 3, 0), (4, 0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Remaining::new(&history.setting());
            (history.used, history.opened) = (7, SECOND);
            history.settled(&mut checker, 2, 1, 0);
            history.settled(&mut checker, 2, 2, 0);
            (history.used, history.prev, history.opened) = (9, prev, 0);
            history.settled(&mut checker, executed, 3, 0);
            history.remaining = 6;
            history.check(&mut checker, SECOND + 3, 0, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{prev} {executed}: {:?}", checker.violations());
        }
    }

    #[test]
    fn the_answer_that_was_given_last_counts_though_others_have_come_since() {
        for (remaining, seen) in [(6, 0), (7, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Remaining::new(&history.setting());
            for (executed, id, used) in [(3, 1, 4), (1, 2, 7), (2, 3, 7)] {
                history.used = used;
                history.settled(&mut checker, executed, id, 0);
            }
            history.remaining = remaining;
            history.check(&mut checker, 4, 0, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{remaining}: {:?}", checker.violations());
        }
    }

    #[test]
    fn more_than_is_left_and_held_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Remaining::new(&history.setting());
        history.used = 6;
        for (id, tokens) in [(1, 3), (2, 0), (3, 0)] {
            history.settled(&mut checker, 1, id, tokens);
        }
        history.remaining = 6;
        history.check(&mut checker, 2, 1, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 3, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "truth");
    }
}
