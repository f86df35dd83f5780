//! **conservation** of windows: the store counts everything that clients are told is charged. The count of an aligned
//! window is never below the admissions in it minus refunds; and a hold is given back to the window that it was charged
//! in, and to no other.
//!
//! It may be higher by tokens that nodes hold, by loans with which no check was admitted, and by tokens that were lost
//! on the way or lapsed. When a key is counted everywhere at once, no call of it is under way and nothing of the window
//! was lost, the count is the sum of what stands charged and what nodes hold (`flow.rs`). Not judged are buckets, whose
//! tokens leak (`bucket.rs`), windows from the first request, and windows in which the store lost the key or a client
//! reset it. Refunds without a hold go to the windows that are open at the moment.
//!
//! Under several limits each one with aligned windows is judged by itself.

use rationd::core::call::{Call, Counter, Grant, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::{Micros, StoredTime, Timestamp};

use super::flow::Flow;
use super::notes::{Asides, Lives, Refunds, Trips, goes_by};
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use super::{Found, counted};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Brain, What};

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static LEAPS: Exemption = Exemption::new(
    "a key that another clock counts, until two periods after that has caught up with the one before",
    "They are in two windows at a time.",
);
static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Windows of before and after have no common number.",
);
static SHAPES: Exemption = Exemption::new(
    "buckets, windows from the first request",
    "Tokens of a bucket leak, and a window that each request may open has no number.",
);
static VOID: Exemption = Exemption::new(
    "windows in which the store lost the key, or a former owner counted",
    "What stands is then not what it counts.",
);
static EDGES: Exemption = Exemption::new(
    "near a boundary",
    "Nodes may still spend of the one window, or not yet of the other: 20 ms, or the longest trip.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "tally.rs",
    invariants: &["conservation"],
    proves: "What clients are told to stand charged the store counts, window by window; a hold goes back to the window that it was charged in.",
    judges: "Fixed and sliding windows, several limits. That it is no more: one fixed window.",
    exemptions: &[&BASELINES, &LEAPS, &PUSHES, &SHAPES, &VOID, &EDGES],
    mutant: Some("hold-outlives-window"),
};

/// This near to a boundary nodes may still spend tokens of the previous window, or not yet of the next.
const EDGE: u64 = 20_000;

/// How far clocks drift at most while an answer is under way.
const DRIFT: u64 = 1_000;

/// How many windows of a key are remembered. Holds are given back only to open windows.
const WINDOWS: usize = 4;

/// One window of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    number: u64,
    /// The store's count.
    used: u64,
    admitted: u64,
    back: u64,
    /// Refunds of it beyond the node's admissions in it: charges of earlier windows do not go back to later ones.
    vain: u64,
    /// Refunds of it that did not name the window of their charge; a hold may then find less to take back.
    unnamed: u64,
    /// Tokens of it that peers lent on and no check was admitted with so far.
    on_loan: u64,
    /// The longest trip of an answer with tokens of it: they lapse that long before its end.
    slowest: u64,
    /// Whether the store has lost some of it.
    void: bool,
}

/// One key.
#[derive(Clone, Debug, Default)]
struct Key {
    windows: [Window; WINDOWS],
    period: u64,
    /// The limit of the last decision about it.
    limit: Option<Limit>,
    /// How far the owner's clock is ahead of true time.
    skew: u64,
    /// The last window that is not judged.
    void: u64,
}

/// A hold: its window, and whether the store lent its tokens (those of a share it charges later). `None` if a policy
/// let it pass uncharged.
type Held = Option<(u64, bool)>;

/// A refund.
#[derive(Clone, Copy, Debug)]
struct Asked {
    is_hold: bool,
    /// The window of the hold, or that in which a refund without a hold was requested.
    number: u64,
    cost: u64,
}

impl Asked {
    /// Whether the call takes this refund along, by the limit at this position.
    fn is_of(&self, call: &Call, place: usize) -> bool {
        let (Op::Refund { windows, .. }, Some(limit)) = (call.op, limit(&call.rule, place)) else { return true };
        let (window, begun) = (windows[place], u64::from(limit.algorithm == Algorithm::Fixed));
        let number = (StoredTime::number(window) / limit.period.0).checked_sub(begun);
        if self.is_hold { number == Some(self.number) } else { window.is_none() }
    }
}

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    is_on: bool,
    /// By position of a limit in its policy.
    limits: Vec<Book>,
    found: Found,
}

/// The charges of limits at one position in their policies.
#[derive(Clone, Debug)]
struct Book {
    place: usize,
    keys: Numbered<Key>,
    /// By key and node: its latest window, and its admissions in it less refunds.
    spent: Map<(u32, u32), (u64, u64)>,
    /// The window of the latest admission.
    latest: Held,
    holds: Map<u64, Held>,
    /// Refund requests of holds.
    asked: Map<u64, Held>,
    /// By node and id of a refund call: the refunds in it.
    calls: Map<(u32, u64), Vec<Asked>>,
    /// Refunds that no call has taken along yet.
    refunds: Refunds<Asked>,
    /// The latest refund without a hold, with its window and its node's admissions as they were before it.
    counted_back: Option<(u64, Window, (u64, u64))>,
    lives: Lives,
    flow: Flow,
    trips: Trips,
    asides: Asides,
    found: Found,
}

/// The limit of a rule at this position, if it has aligned windows.
fn limit(rule: &Rule, place: usize) -> Option<&Limit> {
    let limit = rule.limits.get(place)?;
    let is_judged = matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
    (!SHAPES.when(!is_judged)).then_some(limit)
}

impl Key {
    fn window(&mut self, number: u64) -> &mut Window {
        let window = &mut self.windows[(number % WINDOWS as u64) as usize];
        if window.number < number {
            *window = Window { number, void: number <= self.void, ..Window::default() };
        }
        window
    }
}

impl Tally {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
            .until_leaps(&LEAPS, setting.plan.clocks_leap())
            .again(setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let pushed = plan.faults.iter().filter_map(|fault| match &fault.what {
            What::Push { limits, .. } => Some(limits.len()),
            _ => None,
        });
        let most = setting.rules.iter().map(|rule| rule.limits.len()).chain(pushed).max().unwrap_or(0);
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            limits: (0..most).map(|place| Book::new(place, plan.daemon.max_keys)).collect(),
            found: Found::default(),
        }
    }
}

impl Book {
    fn new(place: usize, max_keys: u32) -> Self {
        Self {
            place,
            keys: Numbered::default(),
            spent: Map::default(),
            latest: None,
            asides: Asides::default(),
            holds: Map::default(),
            asked: Map::default(),
            calls: Map::default(),
            refunds: Refunds::default(),
            counted_back: None,
            lives: Lives::default(),
            flow: Flow::new(max_keys),
            trips: Trips::default(),
            found: Found::default(),
        }
    }

    fn admitted(&mut self, moment: Moment, request: &Request, number: u64) {
        self.keys.of(request.key).window(number).admitted += request.cost;
        let spent = self.spent.entry((request.key, request.node)).or_default();
        *spent = (number, if spent.0 == number { spent.1 + request.cost } else { request.cost });
        self.judge(moment, request.key, number);
    }

    fn judge(&mut self, moment: Moment, key: u32, number: u64) {
        let window = *self.keys.of(key).window(number);
        if window.number == number && !VOID.when(window.void) && window.used + window.back < window.admitted {
            self.keys.of(key).window(number).void = true;
            self.found.add("conservation", moment, || format!("key {key}: {window:?}: more stands than is counted"));
        }
    }

    fn executed(&mut self, moment: Moment, (node, key): (u32, u32), limit: &Limit, call: &Call, grant: &Grant) {
        let (counter, number) = (grant.counters[self.place], grant.now.0 / limit.period.0);
        let asked = self.calls.get(&(node, call.id)).filter(|_| matches!(call.op, Op::Refund { .. }));
        if let (Some(asked), true) = (asked, grant.granted > 0) {
            let others = asked.iter().filter(|asked| asked.number != number);
            if let Some(Asked { number: of, .. }) = others.clone().find(|asked| asked.is_hold) {
                self.found.add("conservation", moment, || {
                    format!("key {key}: {} of window {of} given back to {number}", grant.granted)
                });
            }
            // A refund without a hold goes to the window that is open when it arrives, as far as something is charged
            // there.
            let late = others.map(|asked| asked.cost).sum::<u64>().min(grant.granted);
            let window = self.keys.of(key).window(number);
            window.back += late.min(window.used);
        }
        let state = self.keys.of(key);
        state.period = limit.period.0;
        state.window(number).used = counter.used;
        if limit.algorithm == Algorithm::Fixed {
            state.window(number + 1).used = counter.prev;
        } else if state.window(number - 1).number == number - 1 {
            state.window(number - 1).used = counter.prev;
        }
        self.judge(moment, key, number);
    }

    /// Judges a count of a key at one moment.
    fn counted(&mut self, moment: Moment, key: u32, held: u64, counter: Counter, store: u64) {
        let Some(since) = self.flow.still_since(key) else { return };
        let state = self.keys.of(key);
        let Some(number) = store.checked_div(state.period) else { return };
        let (began, period) = (store % state.period, state.period);
        let window = *state.window(number);
        // Nodes stop spending a little before a window's end, and begin to spend tokens lent ahead a little after its
        // beginning: both by as long as the answer that brought the tokens was under way.
        let edge = EDGE.max(window.slowest + DRIFT);
        let is_sure = !EDGES.when(began <= edge || began + edge >= period) && since + began + period < moment.at;
        let stands = window.admitted + window.on_loan + held;
        let counted = counter.used + window.back;
        if is_sure && !VOID.when(window.void) && !(counted - window.vain.min(counted)..=counted).contains(&stands) {
            self.found.add("conservation", moment, || {
                format!("key {key}: {counter:?} where {window:?} and {held} are held: they sum up to {stands}")
            });
        }
    }

    /// The store loses some of what it has counted until `store`.
    fn forget(&mut self, key: u32, store: u64) {
        let state = self.keys.of(key);
        if let Some(number) = store.checked_div(state.period) {
            state.void = number + 1;
            state.windows.iter_mut().for_each(|window| window.void = true);
        }
    }

    fn hold(&mut self, id: u64, holding: &Holding<'_>) {
        match holding {
            Holding::Kept { .. } => {
                self.holds.insert(id, self.latest);
            }
            Holding::Asks(request) if request.kind == Kind::Refund => {
                let held = self.holds.get(&id).copied().flatten();
                self.asked.insert(request.id, held);
            }
            _ => {}
        }
    }

    /// Counts a requested refund.
    fn refunds(&mut self, moment: Moment, request: &Request) {
        let key = self.keys.of(request.key);
        let Some(number) = moment.store.0.wrapping_add(key.skew).checked_div(key.period) else { return };
        let (is_hold, number, counts) = match self.asked.remove(&request.id) {
            Some(Some((number, counts))) => (true, number, counts),
            // A policy let the hold pass, so nothing was charged.
            Some(None) => (true, u64::MAX, false),
            None => (false, number, true),
        };
        self.refunds.ask(self.lives.of(request.node), request, Asked { is_hold, number, cost: request.cost });
        if !counts {
            return;
        }
        let window = self.keys.of(request.key).window(number);
        if window.number == number {
            let spent = self.spent.entry((request.key, request.node)).or_default();
            self.counted_back = (!is_hold).then_some((request.id, *window, *spent));
            let of_it = if spent.0 == number { spent.1.min(request.cost) } else { 0 };
            spent.1 -= of_it;
            // A refund without a hold may have taken back charges of an earlier window here; then less is left to take
            // back for a hold of this window.
            window.vain += if is_hold { (request.cost - of_it).min(window.unnamed) } else { request.cost - of_it };
            window.unnamed += if is_hold { 0 } else { of_it };
            window.back += request.cost;
        }
    }

    /// A node has answered a refund without a call. If its answer names the end of a window that is over by the store's
    /// clock, nothing was taken back in the open one: either the node still takes the former for open, or the refund
    /// belongs to a check of several keys that was charged there and whose other keys were denied after that window's
    /// end.
    fn refunded_at_once(&mut self, request: &Request, rule: &Rule, decision: &Decision, store: Timestamp) {
        let counted = self.counted_back.take().filter(|(id, ..)| *id == request.id);
        let ([limit], Some((_, before, spent))) = (&rule.limits[..], counted) else { return };
        // An unused window is reported as whole at once, without an end.
        let tells_an_end = decision.reset_after > Micros::ZERO;
        if limit.algorithm == Algorithm::Fixed && tells_an_end && decision.reset_at <= store {
            *self.keys.of(request.key).window(before.number) = before;
            self.spent.insert((request.key, request.node), spent);
        }
    }
}

impl Observer for Tally {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        for book in &mut self.limits {
            book.see(moment, seen);
            self.found.list.append(&mut book.found.list);
        }
    }
}

impl Book {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.flow.see(moment, seen);
        self.trips.see(moment, seen);
        self.lives.see(seen);
        self.asides.see(moment, seen);
        match seen {
            Seen::Settled { key, call, grant: Some(grant), .. } if grant.granted > 0 => {
                if let (Some(limit), Op::Acquire(order)) = (limit(&call.rule, self.place), &call.op) {
                    let number = grant.now.0 / limit.period.0 + u64::from(order.window.is_next());
                    let window = self.keys.of(*key).window(number);
                    window.slowest = window.slowest.max(self.trips.latest());
                }
            }
            // Only keys with one limit are counted.
            Seen::Census { key, held, counter, store } if self.place == 0 => {
                self.counted(moment, *key, *held, *counter, store.0)
            }
            Seen::Asked(request) if request.kind == Kind::Refund => self.refunds(moment, request),
            Seen::Answered { request, rule, decision, store, parked: false, .. } if request.kind == Kind::Refund => {
                self.latest = None;
                self.refunds.decide(self.lives.of(request.node), request);
                self.refunded_at_once(request, rule, decision, *store);
            }
            Seen::Answered { request, rule, decision, store, .. } => {
                self.latest = None;
                let Some(limit) = limit(rule, self.place) else { return };
                let key = self.keys.of(request.key);
                (key.period, key.skew) = (limit.period.0, store.0.wrapping_sub(moment.store.0));
                key.limit = Some(*limit);
                let is_aside = self.asides.lender(moment, request, decision).is_some();
                let counts = matches!(decision.source, Source::Lease | Source::Store | Source::Peer) && !is_aside;
                let number = store.0 / limit.period.0;
                // A node admits on its share in the window that it takes for open, which may be by its own clock, and
                // pays for that window.
                let named = goes_by(decision).0 / limit.period.0;
                let is_told = decision.source == Source::Share;
                if request.kind == Kind::Check && decision.verdict == Verdict::Allow {
                    let of = if is_told { named } else { number };
                    self.latest = (counts || is_aside || decision.source == Source::Share).then_some((of, counts));
                }
                if counts && self.latest.is_some() {
                    if decision.source == Source::Peer {
                        let window = self.keys.of(request.key).window(number);
                        window.on_loan = window.on_loan.saturating_sub(request.cost);
                    }
                    self.admitted(moment, request, number);
                }
            }
            // Loans from tokens that are set aside are paid for by the lender, if it finds the store again in time.
            Seen::PeerAnswered { key, answer: Ok(loan), rule, store, .. } if !loan.aside => {
                if let Some(limit) = limit(rule, self.place) {
                    self.keys.of(*key).window(store.0 / limit.period.0).on_loan += loan.tokens;
                }
            }
            Seen::Hold(id, holding) => self.hold(*id, holding),
            Seen::Called { node, key, call, .. } if matches!(call.op, Op::Refund { .. }) => {
                let (life, refunds) = (self.lives.of(*node), &mut self.refunds);
                // A call that is sent again has the same refunds.
                let place = self.place;
                let asked = || refunds.leave(life, *key, |asked| asked.is_of(call, place));
                self.calls.entry((*node, call.id)).or_insert_with(asked);
            }
            Seen::Executed { key, grant, call, stale, .. } if *stale || call.op == Op::Reset => {
                if let Some(limit) = limit(&call.rule, self.place) {
                    self.keys.of(*key).period = limit.period.0;
                }
                self.forget(*key, grant.now.0);
            }
            Seen::Executed { node, key, call, grant, ran, .. } => {
                // A call that was under way during a change of limits shows windows of the former limits, in which
                // nothing is counted any more.
                let is_former =
                    |limit: &&Limit| self.keys.get(*key).and_then(|key| key.limit).is_some_and(|now| now != **limit);
                if let Some(limit) = limit(&call.rule, self.place).filter(|limit| !is_former(limit)) {
                    self.executed(moment, (*node, *key), limit, call, &counted(call, grant, ran));
                }
            }
            Seen::Undone { key, store } | Seen::Lost { key, store } => self.forget(*key, store.0),
            _ => {}
        }
    }
}

impl Checker for Tally {
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
    use rationd::core::decision::Reason;

    use super::*;
    use crate::checkers::tests::{History, SECOND};

    fn checker(history: &History) -> Tally {
        Tally { is_on: true, ..Tally::new(&history.setting()) }
    }

    /// Two lent tokens are spent, and a client refunds one of them.
    fn history(checker: &mut Tally) -> History {
        let mut history = History::new("10/1s fixed");
        history.executed(checker, 1, 1);
        history.executed(checker, 2, 2);
        history.check(checker, 3, 2, Source::Lease, true);
        history
    }

    #[test]
    fn more_than_the_store_counts_is_seen() {
        let mut checker = checker(&History::new("10/1s fixed"));
        let mut history = history(&mut checker);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.check(&mut checker, 4, 1, Source::Lease, true);
        assert_eq!(checker.violations()[0].invariant, "conservation");
    }

    /// The store has counted what it lent in the first limit, and shows nothing of it in the second.
    #[test]
    fn each_of_several_limits_is_counted() {
        for (second, violations) in
            [("20/1s fixed", 1), ("20/1s sliding", 1), ("20/1s burst 20", 0), ("20/1s fixed from-first", 0)]
        {
            let mut history = History::of_several(&["10/1s fixed", second]);
            let mut checker = checker(&history);
            history.executed(&mut checker, 1, 1);
            history.check(&mut checker, 3, 1, Source::Lease, true);
            assert_eq!(checker.violations().len(), violations, "{second}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_was_lost_before_anybody_was_answered_is_not_judged() {
        for (lost, violations) in [(true, 0), (false, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.executed(&mut checker, 1, 1);
            if lost {
                history.see(&mut checker, 2, &Seen::Lost { key: 0, store: Timestamp(1_800_000_000_000_002) });
            }
            history.check(&mut checker, 3, 2, Source::Lease, true);
            assert_eq!(checker.violations().len(), violations, "{:?}", checker.violations());
        }
    }

    /// A window takes back what was charged in it and no more.
    #[test]
    fn what_is_refunded_in_vain_is_no_gap() {
        for (charged, used, violations) in [(1, 0, 0), (1, 1, 1), (2, 2, 1), (0, 0, 0), (0, 1, 1), (1, 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let at = 2 * SECOND + SECOND / 4;
            checker.limits[0].keys.of(0).period = SECOND;
            checker.limits[0].keys.of(0).window(1_800_000_002).admitted = charged;
            checker.limits[0].spent.insert((0, 0), (1_800_000_002, charged));
            let refund = Request { kind: Kind::Refund, ..history.ask(&mut checker, at) };
            history.see(&mut checker, at, &Seen::Asked(&refund));
            let counter = Counter { used, prev: 0, at: Timestamp(1_800_000_003_000_000) };
            let store = Timestamp(1_800_000_000_000_000 + at);
            history.see(&mut checker, at, &Seen::Census { key: 0, held: 0, counter, store });
            assert_eq!(checker.violations().len(), violations, "{charged} {used}: {:?}", checker.violations());
        }
    }

    /// One token was charged in the window and is refunded. The answer names the end of that window or of the one
    /// before, or says that the window is whole.
    #[test]
    fn what_is_answered_by_a_window_that_is_over_was_not_taken_back_of_the_one_that_is_open() {
        let at = 2 * SECOND + SECOND / 4;
        for (end, left, used, violations) in [
            (3 * SECOND, 1, 0, 0),
            (3 * SECOND, 1, 1, 1),
            (2 * SECOND, 1, 1, 0),
            (2 * SECOND, 1, 0, 1),
            (at, 0, 0, 0),
            (at, 0, 1, 1),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            checker.limits[0].keys.of(0).period = SECOND;
            checker.limits[0].keys.of(0).window(1_800_000_002).admitted = 1;
            checker.limits[0].spent.insert((0, 0), (1_800_000_002, 1));
            let refund = Request { kind: Kind::Refund, ..history.ask(&mut checker, at) };
            let (start, store) = (1_800_000_000_000_000, Timestamp(1_800_000_000_000_000 + at));
            history.see(&mut checker, at, &Seen::Asked(&refund));
            let decision = Decision {
                verdict: Verdict::Allow,
                limit: 10,
                remaining: 10,
                retry_after: None,
                reset_after: Micros(left),
                reset_at: Timestamp(start + end),
                reason: Reason::Ok,
                source: Source::Lease,
                limit_index: 0,
                slot: None,
                epoch: 0,
            };
            let rule = history.setting().rules[0].clone();
            let seen = Seen::Answered { request: &refund, rule: &rule, decision: &decision, parked: false, store };
            history.see(&mut checker, at, &seen);
            let counter = Counter { used, prev: 0, at: Timestamp(start + 3 * SECOND) };
            history.see(&mut checker, at, &Seen::Census { key: 0, held: 0, counter, store });
            assert_eq!(checker.violations().len(), violations, "{end} {used}: {:?}", checker.violations());
        }
    }

    /// Its answer was under way for 51 ms, and the node may know that much later that the window has begun.
    #[test]
    fn what_was_lent_ahead_is_held_when_its_window_has_begun_for_sure() {
        for (began, violations) in [(22_000, 0), (51_000, 0), (60_000, 1), (SECOND - 60_000, 1), (SECOND - 51_000, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            let at = 2 * SECOND + began;
            checker.limits[0].keys.of(0).period = SECOND;
            *checker.limits[0].keys.of(0).window(1_800_000_002) =
                Window { number: 1_800_000_002, used: 1, slowest: 51_000, ..Window::default() };
            let counter = Counter { used: 1, prev: 0, at: Timestamp(1_800_000_003_000_000) };
            let store = Timestamp(1_800_000_000_000_000 + at);
            history.see(&mut checker, at, &Seen::Census { key: 0, held: 0, counter, store });
            assert_eq!(checker.violations().len(), violations, "{began}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_refund_that_is_credited_twice_is_seen() {
        for (used, violations) in [(1, 0), (0, 1)] {
            let mut checker = checker(&History::new("10/1s fixed"));
            let mut history = history(&mut checker);
            history.used = used;
            history.refund(&mut checker, 4, 1);
            assert_eq!(checker.violations().len(), violations, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_hold_that_goes_back_to_another_window_is_seen() {
        for (at, violations) in [(5, 0), (SECOND + 5, 1)] {
            let mut checker = checker(&History::new("10/1s fixed"));
            let mut history = history(&mut checker);
            let request = history.ask(&mut checker, 4);
            let kept = Holding::Kept { request: &request, ttl: SECOND };
            checker.limits[0].latest = Some((1_800_000_000, true));
            history.see(&mut checker, 4, &Seen::Hold(request.id, kept));
            let refund = Request { id: request.id + 1, kind: Kind::Refund, ..request };
            history.see(&mut checker, at, &Seen::Hold(request.id, Holding::Asks(&refund)));
            history.opened = at / SECOND * SECOND;
            history.used = 2 - 1;
            history.refund(&mut checker, at, 1);
            assert_eq!(checker.violations().len(), violations, "{:?}", checker.violations());
        }
    }
}
