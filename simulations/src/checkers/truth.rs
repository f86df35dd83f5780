//! **truth**: what a decision says is true. Its numbers fit together; a window's end is the same on all nodes; and a
//! denial has evidence, as the store had shown too little left in that window.

use std::collections::{BTreeSet, VecDeque};

use rationd::core::call::{Counter, Op};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::phased::Pushes;
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME, aligned};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};

static BUCKETS: Exemption =
    Exemption::new("ends of buckets", "When one is full again depends on who asks and when, and on what it holds.");
static TAKEN_BACK: Exemption = Exemption::new(
    "the end of a sliding window in which a cost was taken back, or of the one after it",
    "Where more is taken back than was charged, as of a check that a policy let pass, nothing counts as used: it is whole at once.",
);
static ENDING: Exemption = Exemption::new(
    "the end that is told with a peer's loan near the end of a window",
    "A node that has heard the store's clock from peers only knows it to within their trips, and takes the window for over: for two timeouts, and as long as the loan lasts.",
);
static SHARED: Exemption = Exemption::new(
    "evidence of a peer's denial, where shares have admitted of the key within two of its longest periods",
    "The peer may have heard of that by gossip before the store was charged with it, and its answer does not say so.",
);
static PACED: Exemption = Exemption::new(
    "evidence of what trickles in and several nodes ask for",
    "Under pressure they are denied until enough has come for all of them, though there are a few tokens.",
);
static FIRST: Exemption = Exemption::new(
    "evidence of windows from the first request, for who waited",
    "Which of them a denial is about is not told where the store opens another meanwhile.",
);
static PUSHED: Exemption = Exemption::new(
    "a policy whose limits change, from then on until two periods after all nodes know of it, but for one fixed window; there who waited meanwhile",
    "The answer may be of the old ones, and so may what the store had shown.",
);
static BOUNDARY: Exemption = Exemption::new("a denial near a boundary", "A node may not know of it for two timeouts.");
static LATE: Exemption = Exemption::new(
    "a denial that is late, as its node was not run",
    "It may go by what the store had shown when it was due, and is judged by that, too; where the store has shown the window after the next since, it is not. By then nothing may count any more in a sliding window of which the node has heard nothing since: it is whole at once.",
);
static MOVED: Exemption = Exemption::new(
    "after a slot moved between clocks that differ",
    "What the other clock's windows held is no evidence of this one's: for two periods.",
);

static LEAPT: Exemption = Exemption::new(
    "evidence of buckets after a slot has moved between clocks that differ, until two of the longest periods and five seconds after the clock has caught up with the one before",
    "By a clock that is ahead a bucket is emptier at once. A node goes on by what it has spent itself, until that would have leaked away, and by what was set aside until that has lapsed.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "truth.rs",
    invariants: &["truth", "evidence"],
    proves: "The numbers of a decision fit together; a window's end is the same for everybody; of a denial the store had shown that too little is left.",
    judges: "Numbers: all. Ends: windows of all kinds, several limits. Evidence: the same, and what trickles in where one node alone asks for it.",
    exemptions: &[&BUCKETS, &TAKEN_BACK, &ENDING, &SHARED, &PACED, &FIRST, &PUSHED, &BOUNDARY, &LATE, &MOVED, &LEAPT],
    mutant: Some("denial-outlives-window"),
};

/// How many windows from the first request are remembered.
const WINDOWS: usize = 16;

/// How long a denying node may remember tokens that were set aside of a bucket.
const ASIDE: u64 = 5_000_000;

/// What the store has shown of a key.
#[derive(Debug, Default)]
struct Key {
    limits: Vec<Shown>,
    /// How far the owner's clock is from true time; and until when, in true time, windows are in doubt because another
    /// clock took over.
    skew: Option<u64>,
    moved: u64,
    /// The same for buckets.
    leapt: u64,
    /// The nodes that have called the store about it.
    asked: BTreeSet<u32>,
    /// Until when, by its clock, a refund may count in a sliding window.
    taken_back: u64,
    /// When a share last admitted a check of it.
    shared: Option<u64>,
}

/// What the store has shown of one limit.
#[derive(Debug, Default)]
struct Shown {
    /// The end of an aligned window, the most that was used at any time in it and in the one before, and the most that
    /// was lent ahead of the next.
    window: u64,
    most: u64,
    before: u64,
    ahead: u64,
    /// Windows from the first request: their ends, and the most that was used.
    opened: VecDeque<(u64, u64)>,
    /// A bucket's latest TAT; and the tokens that were lately set aside, and when.
    tat: u64,
    aside: VecDeque<(u64, u64)>,
}

impl Key {
    /// Whether a share has admitted a check of it lately.
    fn is_shared(&self, rule: &Rule, at: u64) -> bool {
        let longest = rule.limits.iter().map(|limit| limit.period.0.max(limit.depth().0)).max().unwrap_or(0);
        self.shared.is_some_and(|shared| at < shared + 2 * longest)
    }

    /// Notices another clock: a slot that moves to such a master is in another window at once.
    fn follow(&mut self, moment: Moment, now: u64, rule: &Rule) {
        let skew = now.wrapping_sub(moment.store.0);
        let known = self.skew.replace(skew).unwrap_or(skew);
        let (behind, ahead) = (known.wrapping_sub(skew), skew.wrapping_sub(known));
        if behind.min(ahead) > SAME {
            let longest = rule.limits.iter().map(|limit| limit.period.0.max(limit.depth().0)).max().unwrap_or(0);
            self.moved = moment.at + 2 * longest;
            let again = if behind < ahead { behind } else { 0 };
            self.leapt = self.leapt.max(moment.at + again + 2 * longest + ASIDE);
            // The new clock may be behind; the former clock's windows are no evidence about its windows.
            self.limits.clear();
        }
    }
}

impl Shown {
    fn show(&mut self, limit: &Limit, counter: &Counter, back: u64, now: u64) {
        // After a return or refund the counter shows less than there was before.
        let used = (counter.used + back).min(limit.capacity());
        match limit.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => {
                let end = counter.at.0 + if limit.algorithm == Algorithm::Sliding { limit.period.0 } else { 0 };
                if end > self.window {
                    let next = self.window + limit.period.0 == end;
                    self.before = if next { self.most } else { 0 };
                    self.most = if next { self.ahead } else { 0 };
                    (self.window, self.ahead) = (end, 0);
                }
                self.most = self.most.max(used);
                if limit.algorithm == Algorithm::Sliding {
                    // `prev` may be more than the limit, if shares admitted beyond it or tokens are set aside in a
                    // window of which as many were lent. All of it counts.
                    self.before = self.before.max((counter.prev + back).min(limit.count)).max(counter.prev);
                } else {
                    self.ahead = self.ahead.max(counter.prev);
                }
            }
            Algorithm::FixedFromFirst if counter.at.0 == 0 => {}
            Algorithm::FixedFromFirst => {
                match self.opened.iter_mut().find(|(at, _)| *at == counter.at.0) {
                    Some((_, most)) => *most = used.max(*most),
                    None => self.opened.push_back((counter.at.0, used)),
                }
                self.opened.drain(..self.opened.len().saturating_sub(WINDOWS));
            }
            Algorithm::Gcra => {
                self.tat = self.tat.max(counter.at.0);
                self.aside.retain(|(_, at)| now < at + ASIDE);
                self.aside.push_back((counter.used + back, now));
            }
            Algorithm::Concurrent => {}
        }
    }

    /// How far `now` is from the nearest end of a window from the first request.
    fn nearest(&self, now: u64) -> u64 {
        self.opened.iter().map(|(at, _)| at.abs_diff(now)).min().unwrap_or(u64::MAX)
    }

    /// The most tokens that a node may have known to be used at `now`, if it knows the time to within `doubt`.
    fn known(&self, limit: &Limit, now: u64, doubt: u64) -> u64 {
        let end = (now / limit.period.0 + 1) * limit.period.0;
        let next = self.window + limit.period.0 == end;
        match limit.algorithm {
            Algorithm::Fixed if self.window == end => self.most,
            Algorithm::Fixed if next => self.ahead,
            Algorithm::Fixed if self.window == end + limit.period.0 => self.before,
            Algorithm::Sliding => {
                let (used, before) = match () {
                    () if self.window == end => (self.most, self.before),
                    () if next => (0, self.most),
                    // How much was used before that is not remembered, so all is assumed.
                    () if self.window == end + limit.period.0 => (self.before, limit.count),
                    () => (0, 0),
                };
                let covered = u128::from((end - now + doubt).min(limit.period.0));
                let weighed = (u128::from(before) * covered).div_ceil(u128::from(limit.period.0));
                used + u64::try_from(weighed).unwrap_or(u64::MAX)
            }
            Algorithm::FixedFromFirst => {
                let open = self.opened.iter().filter(|(at, _)| at + doubt > now);
                open.map(|(_, most)| *most).max().unwrap_or(0)
            }
            Algorithm::Gcra => {
                let charged = u128::from((self.tat + doubt).saturating_sub(now)) * u128::from(limit.count);
                let charged = u64::try_from(charged.div_ceil(u128::from(limit.period.0))).unwrap_or(u64::MAX);
                // One token for the rounding of tokens that were spent in parts.
                charged
                    .saturating_add(1)
                    .saturating_add(self.aside.iter().map(|(tokens, _)| *tokens).max().unwrap_or(0))
            }
            _ => 0,
        }
    }
}

/// The checker.
#[derive(Debug)]
pub(super) struct Truth {
    keys: Numbered<Key>,
    /// How long after a boundary a node may still be unaware of it.
    doubt: u64,
    /// The timeout by which an answer is due.
    timeout: u64,
    /// By policy: when its limits change. Checks that wait meanwhile may be answered under the old ones.
    pushes: Vec<Pushes>,
    /// By node and key: its last ask of a peer, and when that was sent; and until when the loan for it lasts.
    asked: Map<(u32, u32), (u64, u64)>,
    loans: Map<(u32, u32), u64>,
    found: Found,
}

impl Truth {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let pushes = (0..plan.policies.len()).map(|policy| Pushes::new(plan, policy)).collect();
        let timeout = plan.daemon.timeout.0;
        Self {
            keys: Numbered::default(),
            doubt: 2 * timeout,
            timeout,
            pushes,
            asked: Map::default(),
            loans: Map::default(),
            found: Found::default(),
        }
    }

    fn numbers(&mut self, moment: Moment, request: &Request, decision: &Decision) {
        let denied = decision.verdict == Verdict::Deny;
        let waits = decision.retry_after.is_some_and(|wait| wait.0 > 0);
        let fits = if denied { waits || decision.reason == Reason::Cost } else { decision.retry_after.is_none() };
        if decision.remaining > decision.limit || !fits {
            self.found.add("truth", moment, || format!("{request:?}: numbers that do not fit: {decision:?}"));
        }
        if denied && decision.reason == Reason::Rate && decision.remaining >= request.cost.max(1) {
            // The numbers are those of the tightest limit, which has to be the one that denied.
            let wait = decision.retry_after.map_or(0, |wait| wait.0);
            if wait == 0 {
                self.found.add("truth", moment, || format!("{request:?}: denied with enough left: {decision:?}"));
            }
        }
    }

    /// Judges the end of the window and the evidence of a denial.
    fn window(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision, now: u64) {
        let doubt = self.doubt;
        let lasts = self.loans.get(&(request.node, request.key));
        let is_lent = decision.source == Source::Peer && lasts.is_some_and(|until| moment.at < *until);
        let key = self.keys.of(request.key);
        key.follow(moment, now, rule);
        key.limits.resize_with(rule.limits.len(), Shown::default);
        if MOVED.when(moment.at < key.moved) {
            return;
        }
        let Some(limit) = rule.limits.get(usize::from(decision.limit_index)) else { return };
        let sure = |limit: &Limit| {
            let passed = now % limit.period.0;
            let aligned = matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
            !aligned || !BOUNDARY.when(passed <= doubt || limit.period.0 - passed <= doubt)
        };
        let is_denied = decision.verdict == Verdict::Deny;
        let (reset_at, end) = (decision.reset_at.0, (now / limit.period.0 + 1) * limit.period.0);
        let shown = &key.limits[usize::from(decision.limit_index)];
        let is_ending = |is_near: bool| is_lent && ENDING.when(is_near);
        let fits = match limit.algorithm {
            Algorithm::Fixed => reset_at == end || reset_at == end + limit.period.0 && is_ending(end - now <= doubt),
            // A sliding window is whole again when this window or the previous one no longer weighs.
            Algorithm::Sliding => {
                let is_late = is_denied && moment.at > request.asked + self.timeout;
                let is_empty = TAKEN_BACK.when(now < key.taken_back) || LATE.when(is_late);
                let is_empty = is_empty && reset_at.abs_diff(now) <= doubt;
                let is_next = || reset_at == end + 2 * limit.period.0 && is_ending(end - now <= doubt);
                reset_at == end || reset_at == end + limit.period.0 || is_empty || is_next()
            }
            Algorithm::FixedFromFirst => {
                let is_over = reset_at.abs_diff(now).max(shown.nearest(now)) <= doubt;
                shown.opened.iter().any(|(at, _)| *at == reset_at) || is_denied || is_ending(is_over)
            }
            _ => BUCKETS.when(true),
        };
        if !fits && (!is_denied || sure(limit)) {
            self.found.add("truth", moment, || {
                format!("{request:?}: of {limit:?}, whole again at {reset_at}, and {end} is the end: {shown:?}")
            });
        }
        let trickles = rule.limits.iter().any(Limit::trickles);
        let opens = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::FixedFromFirst);
        let is_bucket = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        if !is_denied
            || is_bucket && LEAPT.when(moment.at < key.leapt)
            || FIRST.when(opens && request.asked < moment.at)
            || !rule.limits.iter().all(sure)
            || trickles && PACED.when(key.asked.iter().any(|node| *node != request.node))
            || decision.source == Source::Peer && SHARED.when(key.is_shared(rule, moment.at))
        {
            return;
        }
        let known_at = |at: u64| -> Vec<_> {
            rule.limits.iter().zip(&key.limits).map(|(limit, shown)| shown.known(limit, at, doubt)).collect()
        };
        let is_spent =
            |known: &[u64]| rule.limits.iter().zip(known).any(|(limit, known)| known + request.cost > limit.capacity());
        let (known, late) = (known_at(now), moment.at.saturating_sub(request.asked + self.timeout));
        let was_spent = || {
            let due = now - late;
            let is_over = |(limit, shown): (&Limit, &Shown)| {
                let end = (due / limit.period.0 + 1) * limit.period.0;
                shown.window > end + limit.period.0
            };
            // Near a boundary the node may have used the previous window.
            [due, due - doubt].iter().any(|at| is_spent(&known_at(*at)))
                || rule.limits.iter().zip(&key.limits).any(is_over)
        };
        if !(is_spent(&known) || late > 0 && LATE.when(was_spent())) {
            self.found.add("evidence", moment, || {
                format!("{request:?}: denied, and the store had shown {known:?} of {:?} at most", rule.limits)
            });
        }
    }
}

impl Observer for Truth {
    fn ignores(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Executed { node, key, call, grant, .. } => {
                let state = self.keys.of(*key);
                state.follow(moment, grant.now.0, &call.rule);
                state.limits.resize_with(call.rule.limits.len(), Shown::default);
                let back = if matches!(call.op, Op::Acquire(_)) { 0 } else { grant.granted };
                for ((limit, shown), counter) in call.rule.limits.iter().zip(&mut state.limits).zip(&grant.counters) {
                    shown.show(limit, counter, back, grant.now.0);
                }
                if matches!(call.op, Op::Refund { .. }) && grant.granted > 0 {
                    let sliding = call.rule.limits.iter().filter(|limit| limit.algorithm == Algorithm::Sliding);
                    let until = sliding.map(|limit| (grant.now.0 / limit.period.0 + 2) * limit.period.0).max();
                    state.taken_back = state.taken_back.max(until.unwrap_or(0));
                }
                state.asked.insert(*node);
            }
            Seen::PeerAsked { node, key, ask, .. } => _ = self.asked.insert((*node, *key), (ask.id, moment.at)),
            Seen::PeerHeard { node, key, ask, answer: Ok(loan), .. } => {
                let asked = self.asked.get(&(*node, *key)).filter(|(id, _)| *id == ask.id);
                if let (Some((_, at)), Some(lasts)) = (asked, loan.lasts) {
                    self.loans.insert((*node, *key), at + lasts.0);
                }
            }
            Seen::Answered { request, rule, decision, store, parked } if request.kind == Kind::Check => {
                self.numbers(moment, request, decision);
                if decision.source == Source::Share && decision.verdict == Verdict::Allow {
                    self.keys.of(request.key).shared = Some(moment.at);
                }
                let counted = matches!(decision.reason, Reason::Ok | Reason::Rate)
                    && matches!(decision.source, Source::Lease | Source::Store | Source::Peer);
                let pushes = self.pushes.get(request.policy as usize);
                let changes = pushes.is_some_and(|pushes| pushes.meet(moment.at));
                let sure = !PUSHED.when(changes && (*parked || aligned(rule).is_none()));
                if counted && sure {
                    self.window(moment, request, rule, decision, store.0);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Truth {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::ask::Loan;
    use rationd::core::time::{Micros, Timestamp};

    use super::*;
    use crate::checkers::tests::{History, SECOND, loan, peer_ask};
    use crate::plan::{Fault, What};
    use crate::span::Span;

    #[test]
    fn a_denial_is_believed_when_the_store_had_too_little_and_no_sooner() {
        for limit in ["10/1s fixed", "10/1s fixed from-first", "10/1s sliding", "10/1s"] {
            // Charges of the bucket leak.
            for (lent, seen) in [(10, 0), (if limit == "10/1s" { 2 } else { 9 }, 1)] {
                let mut history = History::new(limit);
                let mut checker = Truth::new(&history.setting());
                history.opened = u64::from(limit == "10/1s sliding").wrapping_mul(SECOND.wrapping_neg());
                for id in 1..=lent {
                    history.executed(&mut checker, id, id);
                }
                history.check(&mut checker, SECOND / 2, 1, Source::Lease, false);
                let found = checker.violations();
                assert_eq!(
                    found.iter().filter(|found| found.invariant == "evidence").count(),
                    seen,
                    "{limit}: {found:?}"
                );
            }
        }
    }

    /// A slot moves to a master whose clock is ahead, two seconds after a limit was used up. For a bucket nothing is
    /// evidence for seven seconds; for a window only the new master's answers are.
    #[test]
    fn a_bucket_is_not_judged_by_another_clock_until_that_is_over() {
        for (limit, ahead, answered, seen) in [
            ("10/1s", 0, 4, 1),
            ("10/1s", SECOND, 4, 0),
            ("10/1s", SECOND, 6, 0),
            ("10/1s", SECOND, 7, 1),
            ("10/1s fixed", SECOND, 4, 1),
        ] {
            let mut history = History::new(limit);
            let mut checker = Truth::new(&history.setting());
            history.lent(&mut checker, 1, 0, 1, 1);
            history.lent(&mut checker, SECOND / 2, ahead, 2, 1);
            history.lent(&mut checker, 4 * SECOND + 1, ahead, 3, 1);
            let at = answered * SECOND + SECOND / 2;
            let request = history.ask(&mut checker, at);
            history.answer_ahead(&mut checker, at, ahead, &request);
            let found = checker.violations();
            let evidence = found.iter().filter(|found| found.invariant == "evidence").count();
            assert_eq!(evidence, seen, "{limit}: {found:?}");
        }
    }

    #[test]
    fn what_the_window_before_had_beyond_the_limit_counts_in_a_sliding_one() {
        // Of 18 at least nine weigh until half of the window is over.
        for (at, seen) in [(2 * SECOND / 5, 0), (3 * SECOND / 4, 1)] {
            let mut history = History::new("10/1s sliding");
            let mut checker = Truth::new(&history.setting());
            (history.opened, history.prev) = (SECOND.wrapping_neg(), 18);
            history.executed(&mut checker, 1, 1);
            history.check(&mut checker, at, 1, Source::Lease, false);
            let found = checker.violations().iter().filter(|found| found.invariant == "evidence");
            assert_eq!(found.count(), seen, "{at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_may_be_taken_for_over_near_its_end_by_a_peers_clock_while_the_loan_lasts() {
        let near = SECOND - 5_000;
        for (at, source, lasts, seen) in [
            (near, Source::Peer, 3_000, 0),
            (near, Source::Peer, 2_000, 1),
            (near, Source::Lease, 3_000, 1),
            (SECOND / 2, Source::Peer, 3_000, 1),
        ] {
            let mut history = History::new("10/1s fixed from-first");
            let mut checker = Truth::new(&history.setting());
            history.executed(&mut checker, 1, 1);
            let (node, incarnation, key, peer, ask) = (0, 0, 0, (1, 1), &peer_ask(9, 1, 1));
            history.see(&mut checker, at - 2_000, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let answer = &loan(1).map(|loan| Loan { lasts: Some(Micros(lasts)), ..loan });
            let heard = Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store: Timestamp(0) };
            history.see(&mut checker, at, &heard);
            history.whole_at_once = true;
            history.check(&mut checker, at, 1, source, true);
            let found = checker.violations().iter().filter(|found| found.what.contains("whole again"));
            assert_eq!(found.count(), seen, "{at} {source:?} {lasts}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_change_of_limits_excuses_no_denial_before_it_or_long_after() {
        // The change takes a second, and after another one all know of it.
        for (at, seen) in [(2 * SECOND - 1, 1), (2 * SECOND, 0), (8 * SECOND - 1, 0), (8 * SECOND, 1)] {
            let mut history = History::new("10/1s");
            let mut setting = history.setting();
            let what = What::Push { policy: 0, limits: vec!["10/1s".into()] };
            setting.plan.faults.push(Fault { at: Span::secs(2), lasts: Span::secs(1), what });
            let mut checker = Truth::new(&setting);
            history.check(&mut checker, at, 1, Source::Lease, false);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_peer_may_deny_by_what_shares_admitted() {
        for (source, shares, seen) in
            [(Source::Peer, true, 0), (Source::Peer, false, 1), (Source::Lease, true, 1), (Source::Lease, false, 1)]
        {
            let mut history = History::new("10/1s fixed");
            let mut checker = Truth::new(&history.setting());
            (1..=8).for_each(|id| history.executed(&mut checker, id, id));
            if shares {
                history.check(&mut checker, SECOND / 4, 1, Source::Share, true);
            }
            history.check(&mut checker, SECOND / 2, 1, source, false);
            let found = checker.violations().iter().filter(|found| found.invariant == "evidence");
            assert_eq!(found.count(), seen, "{source:?} {shares}: {:?}", checker.violations());
        }
    }

    /// A node that was frozen while a check waited denies by earlier answers of the store.
    #[test]
    fn a_denial_that_is_late_may_go_by_what_was_known_when_it_was_due() {
        // Half of what was used in the previous window of a sliding limit is free again half a second later.
        for (due, seen) in [(150_000, 0), (750_000, 1)] {
            let mut history = History::new("10/1s sliding");
            let setting = history.setting();
            let mut checker = Truth::new(&setting);
            history.opened = SECOND.wrapping_neg();
            for id in 1..=10 {
                history.executed(&mut checker, id, id);
            }
            let request = history.ask(&mut checker, SECOND + due - setting.plan.daemon.timeout.0);
            history.answer(&mut checker, SECOND + 800_000, &request, Source::Store, false);
            let found = checker.violations().iter().filter(|found| found.invariant == "evidence");
            assert_eq!(found.count(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_sliding_window_is_empty_only_where_a_cost_was_taken_back() {
        for (is_taken_back, after, seen) in [(true, 1, 0), (true, 2, 1), (false, 1, 1)] {
            let mut history = History::new("10/1s sliding");
            let mut checker = Truth::new(&history.setting());
            history.opened = SECOND.wrapping_neg();
            history.executed(&mut checker, 1, 1);
            if is_taken_back {
                history.refund(&mut checker, 2, 1);
            }
            let at = after * SECOND + SECOND / 2;
            let request = history.ask(&mut checker, at);
            history.whole_at_once = true;
            history.answer(&mut checker, at, &request, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// A node that was frozen while a check waited denies by usage of which nothing counts any more.
    #[test]
    fn a_denial_that_is_late_may_be_of_a_sliding_window_that_is_whole() {
        for (late, ok, seen) in [(1, false, 0), (0, false, 1), (1, true, 1)] {
            let mut history = History::new("10/1s sliding");
            let setting = history.setting();
            let mut checker = Truth::new(&setting);
            history.opened = SECOND.wrapping_neg();
            history.executed(&mut checker, 1, 1);
            let at = 5 * SECOND + SECOND / 2;
            let request = history.ask(&mut checker, at - setting.plan.daemon.timeout.0 - late);
            history.whole_at_once = true;
            history.answer(&mut checker, at, &request, Source::Store, ok);
            let found = checker.violations().iter().filter(|found| found.invariant == "truth");
            assert_eq!(found.count(), seen, "{late} {ok}: {:?}", checker.violations());
        }
    }

    #[test]
    fn an_end_that_the_store_never_showed_is_seen() {
        for (later, seen) in [(0, 0), (1, 1)] {
            let mut history = History::new("10/1s fixed from-first");
            let mut checker = Truth::new(&history.setting());
            history.opened = later;
            history.executed(&mut checker, 1, 1);
            history.check(&mut checker, SECOND / 2, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
