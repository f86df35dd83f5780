//! **conservation** of leases, key by key: a node admits no more of a key than it was lent and has not returned. For
//! windows only tokens of those count that are open by the store's clock, and after a reset only those lent since.
//!
//! Tokens that a node lends on to a peer are spent at that moment. The peer admits no more than those with them, once,
//! when it hears of them, and only while their window is open.
//!
//! Lapsed tokens of buckets are not taken off here; `bucket.rs` judges when they lapse.

use rationd::core::ask::{Ask, Loan};
use rationd::core::call::{Call, Grant, Op};
use rationd::core::decision::{Reason, Source, Verdict};
use rationd::core::entitled::window_end;
use rationd::core::limit::Algorithm;
use rationd::core::policy::Rule;
use rationd::core::time::{Micros, StoredTime, Timestamp};

use super::Found;
use super::notes::{Clocks, Ids, Life, Lives, Refunds};
use super::phased::Pushes;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static LEAPS: Exemption = Exemption::new(
    "what is lent of a key that another clock counts, until two periods, and of a bucket an account's life, after that has caught up with all before",
    "When a window ends is then known by neither clock: what was lent ends never, and begins at once.",
);
static STALE: Exemption = Exemption::new(
    "what a former owner lends whose clock is another",
    "Its windows end by that clock, which counts the key no more: it ends never.",
);
static REFUNDS: Exemption = Exemption::new(
    "what is handed back of a key of which a cost was refunded, or that another clock counts, or of a bucket",
    "Into which window a refund goes is known when the store has taken it, and of a bucket it is lent anew.",
);
static LAPSED: Exemption =
    Exemption::new("what lapses of a bucket", "bucket.rs knows when an account is closed: here it is held for ever.");

pub(super) static SHEET: Sheet = Sheet {
    file: "lease_conservation.rs",
    invariants: &["conservation"],
    proves: "A node admits no more of a key than it was lent and has not handed back, and hands back no more than it has, of windows only while they are open, and after a reset only what was lent since. What it lends on it has spent, and the peer admits no more with it.",
    judges: "All algorithms, several limits.",
    exemptions: &[&BASELINES, &LEAPS, &STALE, &LAPSED, &REFUNDS],
    mutant: Some("lease-crosses-window"),
};

/// Tokens that may be spent at a time of the store's clock.
#[derive(Clone, Copy, Debug)]
struct Lot {
    starts: u64,
    ends: u64,
    tokens: u64,
}

impl Lot {
    fn is_open(&self, now: u64) -> bool {
        self.starts <= now && now < self.ends
    }
}

/// How long the rest of a lot whose first window is over is remembered: the node hands it back if the window of another
/// limit is still open, and does so late if it is frozen meanwhile.
const HANDED_BACK: u64 = 20_000_000;

/// Forgets lots that are used up or ended long ago.
fn forget(lots: &mut Vec<Lot>, now: u64) {
    lots.retain(|lot| now < lot.ends || lot.tokens > 0 && now < lot.ends.saturating_add(HANDED_BACK));
}

/// Tokens that a peer lent on: how many are left, and when the first of their windows ends.
#[derive(Clone, Copy, Debug)]
struct LentOn {
    tokens: u64,
    ends: u64,
    /// How long they last by the peer's answer, which tells two answers apart: an ask that came twice is answered
    /// twice, perhaps from two windows.
    lasts: Option<Micros>,
    /// When the answer was heard, in true time.
    heard: u64,
}

/// The checker.
#[derive(Debug)]
pub(super) struct LeaseConservation {
    /// Baselines keep no leases of this kind.
    leases: bool,
    clocks: Clocks,
    /// How long after a key's clock has caught up with all earlier ones their grants are over.
    lasts: u64,
    /// Keys of which a node had a refund.
    refunded: Set<(Life, u32)>,
    lives: Lives,
    lent: Ids,
    /// Acquires that a former owner has executed, by another clock than the owner's.
    stale: Set<(Life, u64)>,
    returned: Ids,
    /// Refunds that no call has taken along yet: the ends of their windows, and their costs.
    asked: Refunds<(u64, u64)>,
    held: Map<(Life, u32), Vec<Lot>>,
    /// By asking node and ask: loans that have not been heard yet; two if the ask arrived twice.
    sent: Map<(Life, u64), Vec<LentOn>>,
    heard: Ids,
    /// The last loan that a node heard of, by key.
    borrowed: Map<(Life, u32), LentOn>,
    /// The last reset that a node requested: acquires before it bring nothing.
    resets: Map<(Life, u32), u64>,
    found: Found,
}

/// Takes tokens from the lots in their order, and returns how many were missing.
fn take<'a>(lots: impl Iterator<Item = &'a mut Lot>, tokens: u64) -> u64 {
    lots.fold(tokens, |due, lot| {
        let part = due.min(lot.tokens);
        lot.tokens -= part;
        due - part
    })
}

impl LeaseConservation {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            leases: setting.plan.brain == Brain::Rationd,
            clocks: Clocks::new(&setting.plan),
            lasts: Pushes::last_beyond_a_leap(&setting.plan),
            refunded: Set::default(),
            lives: Lives::default(),
            lent: Ids::default(),
            stale: Set::default(),
            returned: Ids::default(),
            asked: Refunds::default(),
            held: Map::default(),
            sent: Map::default(),
            heard: Ids::default(),
            borrowed: Map::default(),
            resets: Map::default(),
            found: Found::default(),
        }
    }

    fn of(&mut self, request: &Request) -> &mut Vec<Lot> {
        self.held.entry((self.lives.of(request.node), request.key)).or_default()
    }

    fn grant(&mut self, moment: Moment, life: Life, key: u32, call: &Call, grant: &Grant) {
        let Op::Acquire(order) = call.op else { return };
        if grant.granted == 0 || !self.lent.is_first(life, call.id) {
            return;
        }
        if self.resets.get(&(life, key)).is_some_and(|reset| call.id < *reset) {
            return;
        }
        // Only rules with one aligned window are ever lent ahead.
        let (ahead, period) = (order.window.is_next(), call.rule.limits[0].period.0);
        let at = grant.counters.map(|counter| counter.at.0 + if ahead { period } else { 0 });
        let is_stale = self.stale.remove(&(life, call.id));
        let ends = if STALE.when(is_stale) { u64::MAX } else { self.ends(moment, key, &call.rule, &at) };
        let starts = if ahead && ends != u64::MAX { ends - period } else { 0 };
        let (tokens, lots) = (grant.granted, self.held.entry((life, key)).or_default());
        match lots.iter_mut().find(|lot| lot.ends == ends) {
            Some(lot) => (lot.tokens, lot.starts) = (lot.tokens + tokens, lot.starts.min(starts)),
            // Lots are sorted by their ends, because those that end first are spent first.
            None => lots.insert(lots.partition_point(|lot| lot.ends <= ends), Lot { starts, ends, tokens }),
        }
    }

    /// When the first window of a rule ends.
    fn ends(&self, moment: Moment, key: u32, rule: &Rule, at: &[u64]) -> u64 {
        let leapt = self.clocks.is_new(moment, key, self.lasts);
        let windows = rule
            .limits
            .iter()
            .zip(at)
            .filter(|(limit, _)| !LAPSED.when(limit.algorithm == Algorithm::Gcra) && !LEAPS.when(leapt));
        let ends = windows.map(|(limit, at)| {
            let starts = limit.algorithm == Algorithm::Sliding;
            at + if starts { limit.period.0 } else { 0 }
        });
        ends.min().unwrap_or(u64::MAX)
    }

    /// Takes tokens off that a node hands back, or that it asks the store to refund.
    fn leave(&mut self, moment: Moment, life: Life, key: u32, call: &Call) {
        match &call.op {
            Op::Return { amount, windows, .. } if self.returned.is_first(life, call.id) => {
                let ends = self.ends(moment, key, &call.rule, &windows.map(StoredTime::number));
                // Tokens of a former owner, which never end here, are taken last.
                let missing = self.take_last(life, key, *amount, ends);
                let missing = self.take_last(life, key, missing, u64::MAX);
                let is_known = !REFUNDS.when(ends == u64::MAX || self.refunded.contains(&(life, key)));
                if missing > 0 && is_known && self.leases {
                    self.found.add("conservation", moment, || {
                        format!(
                            "key {key}: {life:?} hands back {amount} of what ends at {ends}, and {missing} it has not"
                        )
                    });
                }
            }
            // A refund that goes to the store is not in the lease.
            Op::Refund { amount, .. } if self.returned.is_first(life, call.id) => {
                let mut due = *amount;
                for (ends, cost) in self.asked.leave(life, key, |_| true) {
                    self.take_last(life, key, due.min(cost), ends);
                    due = due.saturating_sub(cost);
                }
            }
            _ => {}
        }
    }

    fn take_last(&mut self, life: Life, key: u32, tokens: u64, ends: u64) -> u64 {
        let lots = self.held.entry((life, key)).or_default().iter_mut();
        take(lots.rev().filter(|lot| lot.ends == ends), tokens)
    }

    /// Another clock counts the key: when grants of the former one end is not known, so they never end here.
    fn leap(&mut self, key: u32) {
        for (_, lots) in self.held.iter_mut().filter(|((_, of), _)| *of == key) {
            lots.iter_mut().for_each(|lot| (lot.starts, lot.ends) = (0, u64::MAX));
        }
    }

    fn spend(&mut self, moment: Moment, request: &Request, now: u64) {
        let lots = self.of(request);
        forget(lots, now);
        let missing = take(lots.iter_mut().filter(|lot| lot.is_open(now)), request.cost);
        if missing > 0 {
            let left = lots.clone();
            self.found.add("conservation", moment, || {
                format!("{request:?} was admitted at {now}, and {missing} had not been lent; left are {left:?}")
            });
        }
    }

    /// A node without the store lends tokens that are set aside for it (entitled.rs judges how many). They end with the
    /// window.
    fn lend_aside(&mut self, moment: Moment, key: u32, (peer, ask): (Life, &Ask), loan: &Loan, rule: &Rule, now: u64) {
        let (limit, end) = (&rule.limits[0], window_end(&rule.limits[0], Timestamp(now)).0);
        let at = if limit.algorithm == Algorithm::Sliding { end - limit.period.0 } else { end };
        let ends = self.ends(moment, key, rule, &[at]);
        self.sent.entry((peer, ask.id)).or_default().push(LentOn {
            tokens: loan.tokens,
            ends,
            lasts: loan.lasts,
            heard: 0,
        });
    }

    /// A node lends tokens on to a peer, first those that end first.
    fn lend_on(&mut self, moment: Moment, (life, key): (Life, u32), (peer, ask): (Life, &Ask), loan: &Loan, now: u64) {
        let lots = self.held.entry((life, key)).or_default();
        forget(lots, now);
        let ends = lots.iter().filter(|lot| lot.is_open(now) && lot.tokens > 0).map(|lot| lot.ends).min();
        let missing = take(lots.iter_mut().filter(|lot| lot.is_open(now)), loan.tokens);
        if missing > 0 {
            self.found.add("conservation", moment, || {
                format!("key {key}: {life:?} lends {loan:?} on for {ask:?}, and {missing} had not been lent")
            });
        }
        let sent = self.sent.entry((peer, ask.id)).or_default();
        sent.push(LentOn { tokens: loan.tokens, ends: ends.unwrap_or(u64::MAX), lasts: loan.lasts, heard: 0 });
    }

    /// A node hears a loan. It adopts one answer to each ask.
    fn borrow(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, loan: &Loan) {
        let sent = self.sent.remove(&(life, ask.id)).unwrap_or_default();
        let is_it = |sent: &&LentOn| (sent.tokens, sent.lasts) == (loan.tokens, loan.lasts);
        if self.heard.is_first(life, ask.id)
            && let Some(sent) = sent.iter().find(is_it)
        {
            self.borrowed.insert((life, key), LentOn { heard: moment.at, ..*sent });
        }
    }

    /// Judges a check that is admitted with a loan of a peer.
    fn spend_borrowed(&mut self, moment: Moment, request: &Request, now: u64) {
        let borrowed = self.borrowed.get_mut(&(self.lives.of(request.node), request.key));
        let fits = |lent: &LentOn| lent.heard == moment.at && lent.tokens >= request.cost && now < lent.ends;
        match borrowed {
            Some(lent) if fits(lent) => lent.tokens -= request.cost,
            lent => {
                let lent = lent.copied();
                self.found.add("conservation", moment, || {
                    format!("{request:?} was admitted at {now} by a peer, which had lent {lent:?}")
                });
            }
        }
    }

    /// Refunded tokens may be in the lease again, in any of its windows.
    fn refund(&mut self, request: &Request) {
        let lots = self.of(request);
        let ends = lots.iter().map(|lot| lot.ends).max().unwrap_or(u64::MAX);
        lots.push(Lot { starts: 0, ends, tokens: request.cost });
        self.asked.ask(self.lives.of(request.node), request, (ends, request.cost));
        self.refunded.insert((self.lives.of(request.node), request.key));
    }
}

impl Observer for LeaseConservation {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        self.clocks.see(moment, seen);
        if let Some(key) = seen.key().filter(|key| self.clocks.leapt(*key) == Some(moment.at)) {
            self.leap(key);
        }
        match seen {
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } => {
                let life = (*node, *incarnation);
                if call.op == Op::Reset {
                    self.resets.insert((life, *key), call.id);
                }
                self.grant(moment, life, *key, call, grant);
            }
            Seen::Answered { request, parked: false, .. } if request.kind == Kind::Refund => {
                self.asked.decide(self.lives.of(request.node), request);
            }
            Seen::Answered { request, decision, store, .. } if !BASELINES.when(!self.leases) => match request.kind {
                Kind::Check if decision.verdict == Verdict::Allow => match decision.source {
                    Source::Lease | Source::Store => self.spend(moment, request, store.0),
                    Source::Peer => self.spend_borrowed(moment, request, store.0),
                    _ => {}
                },
                // A reset that the store has not answered yet takes effect when that answer comes.
                Kind::Reset if decision.source == Source::Store && decision.reason != Reason::Store => {
                    self.of(request).clear();
                }
                _ => {}
            },
            Seen::Executed { node, incarnation, key, call, grant, stale: true, .. }
                if grant.granted > 0 && self.clocks.is_another(moment, *key, grant.now.0) =>
            {
                self.stale.insert(((*node, *incarnation), call.id));
            }
            Seen::Called { node, key, call, .. } => {
                let life = self.lives.of(*node);
                self.leave(moment, life, *key, call);
            }
            Seen::PeerAnswered { key, peer, ask, answer: Ok(loan), rule, store, .. }
                if loan.tokens > 0 && loan.aside =>
            {
                self.lend_aside(moment, *key, (*peer, ask), loan, rule, store.0);
            }
            Seen::PeerAnswered { node, incarnation, key, peer, ask, answer: Ok(loan), store, .. }
                if loan.tokens > 0 =>
            {
                self.lend_on(moment, ((*node, *incarnation), *key), (*peer, ask), loan, store.0);
            }
            Seen::PeerHeard { node, incarnation, key, ask, answer: Ok(loan), .. } => {
                self.borrow(moment, (*node, *incarnation), *key, ask, loan);
            }
            Seen::Asked(request) if request.kind == Kind::Refund => self.refund(request),
            _ => {}
        }
    }
}

impl Checker for LeaseConservation {
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
    use crate::checkers::tests::{History, SECOND, START, loan, peer_ask};

    #[test]
    fn more_than_was_lent_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = LeaseConservation::new(&history.setting());
        history.settled(&mut checker, 0, 1, 4);
        history.settled(&mut checker, 1, 1, 4);
        history.check(&mut checker, 2, 4, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 3, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }

    #[test]
    fn what_is_lent_on_is_spent_there_and_admitted_once_and_in_time() {
        // How much of four is lent on, when the peer admits how much with it, and how much is spent here.
        for (tokens, at, cost, own, seen) in
            [(3, 2, 3, 1, 0), (5, 2, 3, 0, 1), (3, 2, 3, 2, 1), (3, 2, 4, 0, 1), (3, 3, 1, 0, 1)]
        {
            let mut history = History::new("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.setting());
            history.settled(&mut checker, 0, 1, 4);
            history.lent_on(&mut checker, 1, "10/1s fixed", tokens, false);
            history.heard_of_loan(&mut checker, 2, tokens);
            let request = Request { node: 1, cost, ..history.ask(&mut checker, 2) };
            history.answer(&mut checker, at, &request, Source::Peer, true);
            history.check(&mut checker, 4, own, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_lent_of_what_is_set_aside_was_not_lent_and_ends_with_its_window() {
        for (at, cost, seen) in [(SECOND - 1, 3, 0), (SECOND - 1, 4, 1), (SECOND, 1, 1)] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.setting());
            history.lent_aside(&mut checker, [SECOND - 9, at], 0, 3);
            let request = Request { node: 1, cost, ..history.ask(&mut checker, at) };
            history.answer(&mut checker, at, &request, Source::Peer, true);
            assert_eq!(checker.violations().len(), seen, "{at} {cost}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_lent_on_of_a_window_ends_with_it() {
        for (at, seen) in [(SECOND - 1, 0), (SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.setting());
            history.settled(&mut checker, 0, 1, 4);
            history.lent_on(&mut checker, SECOND - 9, "10/1s fixed", 3, false);
            history.heard_of_loan(&mut checker, at, 3);
            let request = Request { node: 1, ..history.ask(&mut checker, at) };
            history.answer(&mut checker, at, &request, Source::Peer, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// An ask that came twice was answered at the end of a window and at the beginning of the next, and the node heard
    /// one of the answers.
    #[test]
    fn of_two_answers_to_an_ask_the_one_counts_that_was_heard() {
        for (heard, seen) in [(105, 1), (991_851, 0)] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.setting());
            let (rule, ask) = (&history.setting().rules[0].clone(), &peer_ask(1, 3, 1));
            let answer = |lasts| loan(1).map(|loan| Loan { aside: true, lasts: Some(Micros(lasts)), ..loan });
            let (key, at) = (0, SECOND + 10);
            for (sent, lasts) in [(SECOND - 105, 105), (SECOND + 5, 991_851)] {
                let (node, incarnation, peer, leaves) = (0, 0, (1, 0), false);
                let (answer, store) = (&answer(lasts), Timestamp(START + sent));
                let lent = Seen::PeerAnswered { node, incarnation, key, peer, ask, answer, rule, leaves, store };
                history.see(&mut checker, sent, &lent);
            }
            let (node, incarnation, peer, store) = (1, 0, (0, 0), Timestamp(START + at));
            let answer = &answer(heard);
            history.see(&mut checker, at, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
            let request = Request { node: 1, ..history.ask(&mut checker, at) };
            history.answer(&mut checker, at, &request, Source::Peer, true);
            assert_eq!(checker.violations().len(), seen, "{heard}: {:?}", checker.violations());
        }
    }

    #[test]
    fn handing_back_more_than_is_held_is_seen() {
        for (amount, seen) in [(3, 0), (4, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.setting());
            history.settled(&mut checker, 0, 1, 4);
            history.check(&mut checker, 2, 1, Source::Lease, true);
            history.handed_back(&mut checker, 3, amount, amount);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_over_is_handed_back_once_and_not_spent() {
        let mut history = History::new("10/1s fixed");
        let mut checker = LeaseConservation::new(&history.setting());
        history.settled(&mut checker, 0, 1, 4);
        history.opened = SECOND;
        history.settled(&mut checker, SECOND, 2, 3);
        history.check(&mut checker, SECOND + 1, 3, Source::Lease, true);
        history.opened = 0;
        history.handed_back(&mut checker, SECOND + 2, 4, 4);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, SECOND + 3, 1, Source::Lease, true);
        assert_eq!(checker.violations().len(), 1, "it is over");
    }

    #[test]
    fn what_a_former_owner_lends_by_another_clock_ends_by_that() {
        // How far the clocks of masters may differ, whether a former owner lends, and how many violations there are.
        for (skew, stale, seen) in [(5, true, 0), (5, false, 1), (0, true, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.redis.skew = crate::span::Span::secs(skew);
            let mut checker = LeaseConservation::new(&setting);
            history.stale = stale;
            history.executed(&mut checker, 1, 1);
            history.settled_in(&mut checker, 2, [1, 1], 4);
            let join = Seen::Joined { node: 0, incarnation: 1 };
            history.see(&mut checker, 2, &join);
            history.check(&mut checker, SECOND + 1, 2, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
            history.check(&mut checker, SECOND + 2, 3, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen + 1, "more than was lent");
        }
    }

    #[test]
    fn what_was_lent_of_another_window_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = LeaseConservation::new(&history.setting());
        history.settled(&mut checker, 0, 1, 4);
        history.check(&mut checker, SECOND - 1, 1, Source::Lease, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, SECOND, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }

    /// The clock is set back by five seconds in the second second. No window ends until it has caught up, and two
    /// periods and two seconds have passed.
    #[test]
    fn what_a_clock_lends_that_has_caught_up_with_the_one_before_ends_with_its_window() {
        for (second, seen) in [(10, 0), (11, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = LeaseConservation::new(&history.leaping());
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            history.check(&mut checker, 2 * SECOND, 2, Source::Lease, true);
            history.opened = second * SECOND;
            history.settled(&mut checker, second * SECOND + 1, 3, 4);
            history.check(&mut checker, (second + 1) * SECOND, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{second}: {:?}", checker.violations());
        }
    }
}
