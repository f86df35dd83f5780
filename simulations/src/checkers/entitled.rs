//! **entitled**: the tokens that the store has set aside for nodes that may lose their connection to it.
//!
//! At every moment, the tokens that all nodes believe to be set aside for them in a window are 95 % of the limit at
//! most. A node admits no more on them than were set aside for it, only before they lapse, and none in a window in
//! which the store has executed an acquire of that node that freed them. In a sliding window they become usable as the
//! window passes. Where windows open with the first request, a node admits no more in any time as long as a window. In a
//! bucket they are a part of the rate and of the burst: a node's share is empty until other nodes
//! have made room for it, and then fills at that part of the rate.

use rationd::core::call::{Acquire, Call, Claim, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::entitled::{MOST_PPM, fills_from, generation, lapses, most, released, window_end};
use rationd::core::limit::Limit;
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use std::collections::VecDeque;
use std::sync::Arc;

use super::Found;
use super::notes::{Alone, Life, Lives};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Violation};

static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods after that has caught up with the one before and its node has heard anew what is set aside for it; for good where its limits change",
    "By clocks that differ windows are not the same, and entitlements lapse at other times.",
);
static FORGOTTEN: Exemption = Exemption::new(
    "a key, once the store has lost something of it",
    "It sets aside anew, and does not know what nodes believe in: until each of them has heard anew what is set aside for it.",
);

static MIXED: Exemption = Exemption::new(
    "a key that a node of the build before has called, and that has come to its end since",
    "Its scripts know of nothing that is set aside, and keep the key for less long than that is in force: as if the store had lost it.",
);
static LOWERED: Exemption = Exemption::new(
    "what was set aside of a larger limit",
    "A node that is not asked for the key does not know that the limit is lower, and the store keeps that set aside for it.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "entitled.rs",
    invariants: &["entitled"],
    proves: "What is set aside of a window for all nodes is at every moment 95 % of the limit at most, as far as nodes believe in it; a node admits and lends no more on it, not when it may have lapsed, and nothing in a window in which it has been freed, of a sliding window by the part of it that has passed, where windows open with the first request no more in any time as long as one, and nothing before others have made room in a bucket.",
    judges: "One window of any kind, or one bucket, of which tokens are set aside.",
    exemptions: &[&LEAPS, &FORGOTTEN, &MIXED, &LOWERED],
    mutant: Some("share-after-acquire"),
};

/// When an acquire was executed: by the store's clock, and after how many events of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Execution {
    at: u64,
    seen: u64,
}

/// What a node has spent at one time, and the store has yet to be charged.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    at: u64,
    tokens: u64,
}

/// What one node believes to be set aside for it of one key, and what it has spent of it.
#[derive(Clone, Debug, Default)]
struct Place {
    /// The latest acquire that it has sent.
    latest: u64,
    /// When the acquire was executed whose answer set aside `tokens`.
    answer: Execution,
    tokens: u64,
    lapses: u64,
    /// The latest window in which an acquire of the node has freed the tokens.
    freed: u64,
    /// When the window `window` began, which the node last spent from. `spent` is how much, `most` how much it could
    /// spend.
    begun: u64,
    /// For a bucket: how many millionths of a token (`micros`) its share had at `filled`.
    filled: u64,
    micros: u64,
    window: u64,
    spent: u64,
    most: u64,
    /// Where windows open with the first request: what it has spent lately.
    lately: VecDeque<Spent>,
    /// The epoch of the key as the node knows it, and the store's time in the answer that said so.
    epoch: (u64, u64),
}

/// The checker.
#[derive(Clone, Debug, Default)]
pub(super) struct Entitled {
    /// Whether it begins in the middle of a run, and so does not know what nodes were told before.
    midway: bool,
    lives: Lives,
    /// By key and node.
    places: Map<u32, Map<Life, Place>>,
    /// When acquires were executed, by node and id.
    executed: Map<(Life, u64), Execution>,
    /// When the store last lost something of a key.
    forgotten: Map<u32, u64>,
    /// How many events were seen.
    seen: u64,
    /// Keys about which a node of the previous build has called.
    earlier: Set<u32>,
    /// The epoch of each key in the store's last answer.
    epochs: Map<u32, u64>,
    /// The rule by which a key was last decided.
    rules: Map<u32, Arc<Rule>>,
    /// The most that could ever be set aside of a key, under the largest of its limits so far.
    largest: Map<u32, u64>,
    holds: Alone,
    /// Refunds that have been counted as the surplus of a hold.
    back: Set<u64>,
    found: Found,
}

impl Entitled {
    /// Scoped to keys that one clock counts.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        let phased = Phased::always(setting, |_| Self::default()).until_leaps(&LEAPS, setting.plan.clocks_leap());
        // If a limit was lowered, a checker that begins later does not know how much was set aside under the former
        // one.
        phased.again(setting, |_| Self::midway()).unless_limits_change(setting)
    }

    fn midway() -> Self {
        Self { midway: true, ..Self::default() }
    }

    /// Whether the store has lost something of the key since it gave the answer `answer`.
    fn is_forgotten(&self, key: u32, answer: Execution) -> bool {
        FORGOTTEN.when(self.forgotten.get(&key).is_some_and(|lost| answer.seen < *lost))
            || LEAPS.when(self.midway && answer.seen == 0)
    }

    /// When the answer was executed that last told a node what is set aside for it.
    fn last_answer(&self, key: u32, life: Life) -> Execution {
        self.places.get(&key).and_then(|of| of.get(&life)).map(|place| place.answer).unwrap_or_default()
    }

    /// Judges the claim in a call: a node may have given up some of what was set aside, and never has more than it was
    /// told.
    fn called(&mut self, moment: Moment, life: Life, key: u32, call: &Call, claim: &Claim) {
        let place = self.places.entry(key).or_default().entry(life).or_default();
        place.latest = place.latest.max(call.id);
        let known = place.tokens;
        place.tokens = known.min(claim.tokens());
        let answer = place.answer;
        if claim.tokens() > known && !self.is_forgotten(key, answer) {
            self.found.add("entitled", moment, || format!("key {key}: {life:?} was told {known}, and says {claim:?}"));
        }
    }

    /// Notices that a key has expired, by the new epoch under which it begins again.
    fn ended(&mut self, key: u32, grant: &Grant) {
        if grant.epoch == 0 || grant.replayed || grant.outdated {
            return;
        }
        let known = self.epochs.insert(key, grant.epoch);
        let is_anew = known.is_some_and(|known| known != grant.epoch) && !grant.reset;
        if MIXED.when(is_anew && self.earlier.remove(&key)) {
            // It counts as lost also for the call that shows it: at its execution the store did not know what others
            // believe.
            self.forgotten.insert(key, self.seen + 1);
        }
    }

    /// Whether an answer is of an earlier epoch than one that the node has already heard of. The node adopts nothing of
    /// such an answer.
    fn is_of_before(&mut self, life: Life, key: u32, grant: &Grant) -> bool {
        let place = self.places.entry(key).or_default().entry(life).or_default();
        let (epoch, heard) = place.epoch;
        if grant.now.0 >= heard {
            place.epoch = (grant.epoch, grant.now.0);
        }
        grant.now.0 < heard && grant.epoch != epoch
    }

    fn executed(&mut self, moment: Moment, life: Life, key: u32, call: &Call, claim: &Claim, grant: &Grant) {
        if grant.replayed || grant.outdated || !claim.frees.at(grant.now) {
            return;
        }
        self.executed.insert((life, call.id), Execution { at: grant.now.0, seen: self.seen });
        let place = self.places.entry(key).or_default().entry(life).or_default();
        // A node that claims nothing has nothing set aside, even if an earlier life of it had.
        if claim.tokens() == 0 && place.lately.is_empty() {
            return;
        }
        let freed = match call.rule.is_entitled_from_first() {
            true => {
                let (at, period) = (grant.counters[0].at.0, call.rule.limits[0].period.0);
                let owed = place.lately.iter().filter(|spent| spent.at + period > at).map(|spent| spent.tokens).sum();
                let Op::Acquire(Acquire { need, .. }) = call.op else { return };
                if at > 0 && need < owed && !self.is_forgotten(key, self.last_answer(key, life)) {
                    let wrong = || format!("key {key}: {life:?} owes {owed} of the window until {at}: {call:?}");
                    self.found.add("entitled", moment, wrong);
                }
                let place = self.places.entry(key).or_default().entry(life).or_default();
                if at > 0 {
                    // The store was charged for what is of this window, and the node spends nothing before it has ended.
                    place.lately.clear();
                }
                place.freed.max(at)
            }
            false => window_end(&call.rule.limits[0], grant.now).0,
        };
        let place = self.places.entry(key).or_default().entry(life).or_default();
        place.freed = freed;
        if call.rule.is_entitled_bucket() {
            (place.freed, place.filled, place.micros) = (fills_from(grant.now).0, fills_from(grant.now).0, 0);
        }
    }

    fn settled(&mut self, moment: Moment, life: Life, key: u32, call: &Call, grant: &Grant) {
        let is_of_before = self.is_of_before(life, key, grant);
        let Some(answer) = self.executed.remove(&(life, call.id)) else { return };
        let place = self.places.entry(key).or_default().entry(life).or_default();
        // A node does not adopt answers that are repeated or too late.
        let is_late = matches!(&call.op, Op::Acquire(Acquire { claim: Some(claim), .. }) if !claim.frees.at(grant.now));
        if call.id < place.latest || grant.outdated || is_late || is_of_before {
            return;
        }
        (place.tokens, place.lapses) = (grant.entitled, lapses(generation(Timestamp(answer.at))).0);
        place.answer = answer;
        let now = grant.now.0;
        let of_key = self.places.get(&key).into_iter().flat_map(Map::values);
        let counts = |place: &&Place| now < place.lapses && !self.is_forgotten(key, place.answer);
        let all: u64 = of_key.filter(counts).map(|place| place.tokens).sum();
        let largest = self.largest.entry(key).or_default();
        let is_bucket = call.rule.is_entitled_bucket();
        *largest = (if is_bucket { MOST_PPM } else { most(&call.rule.limits[0]) }).max(*largest);
        let most = LOWERED.forgives(*largest);
        if all > most {
            self.found.add("entitled", moment, || format!("key {key}: {all} are set aside for all nodes, of {most}"));
        }
    }

    /// A refund gives tokens back to the share on which they were admitted.
    fn refunded(&mut self, request: &Request, rule: &Rule, store: u64) {
        let place = self.places.entry(request.key).or_default().entry(self.lives.of(request.node)).or_default();
        if rule.is_entitled_bucket() {
            place.micros += request.cost.saturating_mul(1_000_000);
            return;
        }
        if rule.is_entitled_from_first() {
            let mut left = request.cost;
            for spent in &mut place.lately {
                let part = left.min(spent.tokens);
                spent.tokens -= part;
                left -= part;
            }
            return;
        }
        if place.begun <= store && store < place.window {
            place.spent = place.spent.saturating_sub(request.cost);
        }
    }

    fn admitted(&mut self, moment: Moment, request: &Request, rule: &Rule, store: u64) {
        let life = self.lives.of(request.node);
        if rule.is_entitled_bucket() {
            if !self.is_forgotten(request.key, self.last_answer(request.key, life)) {
                self.admitted_of_bucket(moment, request, &rule.limits[0], store);
            }
            return;
        }
        self.spent(moment, (life, request.key), (request.cost, rule), store, &|| format!("{request:?} is admitted"));
    }

    /// Judges tokens set aside in a window that a node has admitted or lent to a peer.
    fn spent(
        &mut self,
        moment: Moment,
        (life, key): (Life, u32),
        (cost, rule): (u64, &Rule),
        store: u64,
        what: &dyn Fn() -> String,
    ) {
        if self.is_forgotten(key, self.last_answer(key, life)) {
            return;
        }
        if rule.is_entitled_from_first() {
            return self.spent_of_span(moment, (life, key), (cost, rule.limits[0].period.0), store, what);
        }
        let window = window_end(&rule.limits[0], Timestamp(store)).0;
        let place = self.places.entry(key).or_default().entry(life).or_default();
        if place.window != window {
            (place.window, place.spent, place.most) = (window, 0, 0);
            place.begun = window - rule.limits[0].period.0;
        }
        place.spent += cost;
        place.most = place.most.max(place.tokens);
        let come = match rule.is_entitled_sliding() {
            true => released(&rule.limits[0], place.most, Timestamp(window), Timestamp(store)),
            false => place.most,
        };
        let wrong = match () {
            () if place.freed == window => "of which an acquire has freed it",
            () if place.lapses < window => "before whose end it lapses",
            () if place.spent > place.most => "of which less is set aside for it",
            () if place.spent > come => "of which less has come by then",
            () => return,
        };
        let seen = format!("{} on what is set aside of the window until {window}, {wrong}: {place:?}", what());
        self.found.add("entitled", moment, || seen);
    }
}

impl Entitled {
    /// The same where windows open with the first request, and are `period` long.
    fn spent_of_span(
        &mut self,
        moment: Moment,
        (life, key): (Life, u32),
        (cost, period): (u64, u64),
        store: u64,
        what: &dyn Fn() -> String,
    ) {
        let place = self.places.entry(key).or_default().entry(life).or_default();
        place.lately.push_back(Spent { at: store, tokens: cost });
        while place.lately.front().is_some_and(|spent| spent.at + period < store) {
            place.lately.pop_front();
        }
        let spent: u64 = place.lately.iter().map(|spent| spent.tokens).sum();
        let wrong = match () {
            () if store < place.freed => "of which an acquire has freed it",
            () if place.lapses < store + period => "before whose end it may lapse",
            () if spent > place.tokens => "of which less is set aside for it",
            () => return,
        };
        let seen =
            format!("{} on what is set aside of the window that may be open at {store}, {wrong}: {place:?}", what());
        self.found.add("entitled", moment, || seen);
    }
}

/// How much earlier than reckoned here a share of a bucket may fill: costs are rounded, and the clock is known to
/// within a trip.
const EARLY: u64 = 1_000;

impl Entitled {
    /// Judges a check admitted on a node's share of a bucket. The share is empty when the node's last acquire may have
    /// taken effect everywhere, and fills at its part of the rate.
    fn admitted_of_bucket(&mut self, moment: Moment, request: &Request, limit: &Limit, store: u64) {
        let place = self.places.entry(request.key).or_default().entry(self.lives.of(request.node)).or_default();
        let part = u128::from(place.tokens);
        let passed = u128::from((store + EARLY).saturating_sub(place.filled));
        let comes = part * u128::from(limit.count) * passed / u128::from(limit.period.0);
        let micros = (u128::from(place.micros) + comes).min(part * u128::from(limit.burst));
        let cost = request.cost.saturating_mul(1_000_000);
        let wrong = match () {
            () if store < place.freed => "before it fills",
            () if place.lapses <= store => "after it has lapsed",
            () if micros < u128::from(cost) => "which has not so much",
            () => {
                place.micros = u64::try_from(micros).unwrap_or(u64::MAX) - cost;
                place.filled = store + EARLY;
                return;
            }
        };
        let seen = format!("{request:?} is admitted on its node's part of a bucket at {store}, {wrong}: {place:?}");
        self.found.add("entitled", moment, || seen);
    }
}

impl Observer for Entitled {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.seen += 1;
        self.lives.see(seen);
        if let Some((request, store)) = self.holds.gives_back(seen) {
            let rule = self.rules.get(&request.key).cloned();
            if let Some(rule) = rule {
                self.refunded(request, &rule, store);
            }
            self.back.insert(request.id);
        }
        match seen {
            Seen::Joined { node, .. } => {
                // The earlier life of the node has ended, with what it believed.
                let life = self.lives.of(*node);
                self.places
                    .values_mut()
                    .for_each(|of| of.retain(|(of, incarnation), _| *of != *node || *incarnation == life.1));
            }
            Seen::Lost { key, .. } | Seen::Undone { key, .. } | Seen::Executed { key, stale: true, .. } => {
                self.forgotten.insert(*key, self.seen);
            }
            Seen::Called { node, key, call, .. } if call.sets_aside() => {
                let Op::Acquire(Acquire { claim: Some(claim), .. }) = &call.op else { return };
                self.called(moment, self.lives.of(*node), *key, call, claim);
            }
            Seen::Executed { node, incarnation, key, call, grant, ran, .. } if call.sets_aside() => {
                self.ended(*key, grant);
                if ran.is_earlier {
                    self.earlier.insert(*key);
                }
                let Op::Acquire(Acquire { claim: Some(claim), .. }) = &call.op else { return };
                self.executed(moment, (*node, *incarnation), *key, call, claim, grant);
            }
            Seen::Settled { node, incarnation, key, call, grant: Some(grant) } if call.sets_aside() => {
                self.settled(moment, (*node, *incarnation), *key, call, grant);
            }
            Seen::PeerAnswered { node, incarnation, key, peer, answer: Ok(loan), rule, store, .. }
                if loan.aside && loan.tokens > 0 =>
            {
                let what = || format!("key {key}: {peer:?} is lent {loan:?} by {:?}", (*node, *incarnation));
                self.spent(moment, ((*node, *incarnation), *key), (loan.tokens, rule), store.0, &what);
            }
            Seen::Answered { request, rule, decision, store, .. }
                if rule.is_entitled() && decision.source == Source::Share && decision.verdict == Verdict::Allow =>
            {
                self.rules.insert(request.key, (*rule).clone());
                match request.kind {
                    Kind::Check => self.admitted(moment, request, rule, store.0),
                    Kind::Refund if !self.back.remove(&request.id) => self.refunded(request, rule, store.0),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}

impl Checker for Entitled {
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

    /// A node is told, by an acquire in the first window, that `tokens` of a hundred are set aside for it.
    fn set_aside(tokens: u64) -> (History, Entitled) {
        set_aside_of("100/1s fixed", tokens)
    }

    fn set_aside_of(limit: &str, tokens: u64) -> (History, Entitled) {
        let (mut history, mut checker) = (History::entitled(limit), Entitled::default());
        history.entitled = tokens;
        history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
        history.called(&mut checker, SECOND / 4, 1, 1);
        history.executed(&mut checker, SECOND / 4, 1);
        history.settled_in(&mut checker, SECOND / 3, [1, 1], 1);
        (history, checker)
    }

    #[test]
    fn what_is_lent_of_what_is_set_aside_its_lender_does_not_admit() {
        // Seven are set aside; some are lent in a window and some admitted; none may be after an acquire has freed
        // them.
        for (frees, lent, own, seen) in [(false, 3, 4, 0), (false, 3, 5, 1), (false, 8, 0, 1), (true, 1, 0, 1)] {
            let (mut history, mut checker) = set_aside(7);
            let at = SECOND + SECOND / 2;
            if frees {
                history.believes = Some(7);
                history.called(&mut checker, at - 2, 2, 1);
                history.executed(&mut checker, at - 1, 2);
            }
            history.lent_aside(&mut checker, [at, at + 1], 1, lent);
            if own > 0 {
                history.check(&mut checker, at + 2, own, Source::Share, true);
            }
            assert_eq!(checker.violations().len(), seen, "{frees} {lent} {own}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_node_is_judged_from_what_it_hears_on_where_another_clock_counts_the_key() {
        for (midway, hears, seen) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
            let mut history = History::entitled("100/1s fixed");
            let mut checker = if midway { Entitled::midway() } else { Entitled::default() };
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            if hears {
                history.called(&mut checker, SECOND / 4, 1, 1);
                history.executed(&mut checker, SECOND / 4, 1);
                history.settled_in(&mut checker, SECOND / 3, [1, 1], 1);
            }
            history.believes = Some(7);
            history.called(&mut checker, SECOND / 2, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{midway} {hears}: {:?}", checker.violations());
        }
    }

    /// The clock is set back by five seconds in the second second. Judging begins again when it has caught up, and two
    /// periods and two seconds have passed.
    #[test]
    fn what_is_set_aside_is_judged_again_when_another_clock_has_counted_the_key_for_long() {
        for (at, seen) in [(9, 0), (11, 1)] {
            let mut history = History::entitled("100/1s fixed");
            let mut checker = Entitled::phased(&history.leaping());
            history.see(&mut checker, 0, &Seen::Joined { node: 0, incarnation: 1 });
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.check(&mut checker, 2 * SECOND, 1, Source::Lease, true);
            history.entitled = 7;
            history.called(&mut checker, 3 * SECOND, 2, 1);
            history.executed(&mut checker, 3 * SECOND, 2);
            history.settled_in(&mut checker, 3 * SECOND, [1, 2], 1);
            history.check(&mut checker, at * SECOND + SECOND / 2, 8, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn more_than_is_set_aside_is_seen() {
        let (mut history, mut checker) = set_aside(7);
        history.check(&mut checker, 3 * SECOND / 2, 7, Source::Share, true);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 3 * SECOND / 2, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "entitled");
    }

    const FROM_FIRST: &str = "100/1s fixed from-first";

    /// The window in which the node was lent something ends after a second.
    #[test]
    fn more_in_a_time_as_long_as_a_window_from_the_first_request_is_seen() {
        // Checks at so many tenths of a second.
        let checks: [(&[(u64, u64)], usize); 4] =
            [(&[(10, 3), (15, 4)], 0), (&[(10, 3), (15, 5)], 1), (&[(14, 7), (25, 7)], 0), (&[(14, 7), (23, 1)], 1)];
        for (checks, seen) in checks {
            let (mut history, mut checker) = set_aside_of(FROM_FIRST, 7);
            for (tenth, cost) in checks {
                history.check(&mut checker, tenth * SECOND / 10, *cost, Source::Share, true);
            }
            assert_eq!(checker.violations().len(), seen, "{checks:?}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_from_the_first_request_that_is_not_paid_is_seen() {
        // The window began so many tenths of a second after the start, and the acquire that comes then pays for one.
        for (began, cost, seen) in [(12, 2, 1), (12, 1, 0), (15, 2, 0)] {
            let (mut history, mut checker) = set_aside_of(FROM_FIRST, 7);
            history.check(&mut checker, 14 * SECOND / 10, cost, Source::Share, true);
            (history.believes, history.opened) = (Some(7), began * SECOND / 10);
            history.called(&mut checker, 16 * SECOND / 10, 2, 1);
            history.executed(&mut checker, 16 * SECOND / 10, 2);
            assert_eq!(checker.violations().len(), seen, "{began} {cost}: {:?}", checker.violations());
        }
    }

    #[test]
    fn an_entitlement_that_has_lapsed_is_seen() {
        for (at, seen) in [(SECOND + 1, 0), (900 * SECOND, 1)] {
            let (mut history, mut checker) = set_aside(7);
            history.check(&mut checker, at, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn an_entitlement_to_more_than_all_share_is_seen() {
        for (tokens, seen) in [(95, 0), (96, 1)] {
            let (_, checker) = set_aside(tokens);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_window_of_which_an_acquire_has_freed_it_is_seen() {
        for limit in ["100/1s fixed", FROM_FIRST] {
            let (mut history, mut checker) = set_aside_of(limit, 7);
            history.believes = Some(7);
            history.executed(&mut checker, 3 * SECOND / 4, 2);
            history.check(&mut checker, 4 * SECOND / 5, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), 1, "{limit}: {:?}", checker.violations());
        }
    }

    #[test]
    fn an_answer_of_before_a_reset_is_not_taken_over() {
        for (epoch, at, seen) in [(2, SECOND / 2, 1), (1, SECOND / 4, 0)] {
            let (mut history, mut checker) = set_aside(7);
            history.epoch = 2;
            history.settled_in(&mut checker, SECOND / 3, [1, 2], 0);
            // The store has lowered what is set aside, by a call that was executed before the reset or after it.
            (history.entitled, history.epoch, history.believes) = (5, epoch, Some(7));
            history.called(&mut checker, SECOND / 3, 3, 1);
            history.executed(&mut checker, at, 3);
            history.settled_in(&mut checker, at, [1, 3], 0);
            history.called(&mut checker, SECOND / 2, 4, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_loss_excuses_who_has_not_heard_since() {
        for (hears, seen) in [(false, 0), (true, 1)] {
            let (mut history, mut checker) = set_aside(7);
            history.see(&mut checker, SECOND / 2, &Seen::Lost { key: 0, store: Timestamp(0) });
            if hears {
                (history.believes, history.epoch) = (Some(7), 2);
                history.called(&mut checker, SECOND / 2, 2, 1);
                history.executed(&mut checker, SECOND / 2, 2);
                history.settled_in(&mut checker, SECOND / 2, [1, 2], 1);
            }
            history.check(&mut checker, 3 * SECOND / 2, 8, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_key_that_the_build_before_has_cut_short_is_as_if_lost() {
        for (mixed, seen) in [(true, 0), (false, 1)] {
            let (mut history, mut checker) = set_aside(7);
            if mixed {
                checker.earlier.insert(0);
            }
            history.epoch = 2;
            (history.entitled, history.believes) = (96, Some(7));
            history.executed(&mut checker, SECOND / 2, 2);
            history.settled_in(&mut checker, SECOND / 2, [1, 2], 0);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn who_says_more_than_it_was_told_is_seen() {
        for (believes, seen) in [(7, 0), (8, 1)] {
            let (mut history, mut checker) = set_aside(7);
            history.believes = Some(believes);
            history.called(&mut checker, SECOND / 2, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
