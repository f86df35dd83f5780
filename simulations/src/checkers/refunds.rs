//! **conservation** of refunds: each refunded token goes back to the lease of its node, or the store is asked to take
//! it back; no token more, and none less as far as the node has admitted as many that still count.
//!
//! How much goes back into the lease is taken from the node's own balance, which `books.rs` judges. What the store does
//! with refunds is judged by the checkers of calls.

use std::collections::VecDeque;
use std::sync::Arc;

use rationd::core::call::Op;
use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::notes::{Clocks, Ids, Life, Lives};
use super::sheet::{Exemption, Sheet};
use super::{Found, trip};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static SERVED: Exemption = Exemption::new(
    "a refund with which somebody who waited is served at once, until the next one that is answered",
    "The node's books tell both in one sum.",
);
static LATE: Exemption = Exemption::new(
    "refunds of a key after one that was not answered in time, until the next one that is",
    "Its call leaves later, or never, and nobody is told that it was executed.",
);
static UNKNOWN: Exemption = Exemption::new(
    "too little of a key that the store has lost something of, a client has reset, or a former owner has counted, until two of the longest periods and two seconds later",
    "What was charged before is not known any more, and goes back to nobody.",
);
static LEAPS: Exemption = Exemption::new(
    "too little of a key that another clock counts, until two of the longest periods and two seconds after that has caught up with the one before",
    "What was charged by the other clock stands in other windows.",
);
static OTHERS: Exemption = Exemption::new(
    "too little, beyond what the node has admitted from leases under these limits and has not taken back",
    "What another node, a share, a peer or a policy has admitted it does not know to be charged: it asks for as much as it knows of.",
);
static VAIN: Exemption = Exemption::new(
    "too little by as much as was taken back of the key, by whatever node, beyond what that had admitted in the windows at hand, until two of the longest periods and two seconds later",
    "It takes what is charged for others, or what is charged until its call arrives: the node is shown less than it has admitted.",
);
static OVER: Exemption = Exemption::new(
    "too little of a window that is over, or begins or ends within 20 ms and a trip to the store and back, or of what may have leaked out of a bucket meanwhile",
    "A full limit takes nothing back, and which window is open a node knows to within a trip. Tokens of a bucket that checks waited for are charged when they are lent, and leak from then on, though the answer came when others spent them.",
);
static FROM_FIRST: Exemption = Exemption::new(
    "too little of windows from the first request, of holds, of several keys, and where limits are several",
    "No decision tells into which of them it was charged.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "refunds.rs",
    invariants: &["conservation"],
    proves: "Of what a client takes back each token is in its node's lease again or asked back of the store, no token more or less.",
    judges: "All but concurrent limits, several limits, holds, several keys.",
    exemptions: &[&BASELINES, &SERVED, &LATE, &UNKNOWN, &LEAPS, &OTHERS, &VAIN, &OVER, &FROM_FIRST],
    mutant: Some("refund-asks-one-less"),
};

/// A node knows the boundary of a window to within this time and a trip to the store and back.
const EDGE: u64 = 20_000;

/// Every node has heard of a loss or a reset by this time and two of the longest periods after it.
const HEARS: u64 = 2_000_000;

/// How many admissions are remembered of a key and node.
const REMEMBERED: usize = 512;

/// How many admissions are remembered in all, by the ids of their checks.
const HOLDS: usize = 100_000;

/// A check that was admitted from a lease.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    /// When it was charged, by the clock of the key's owner: at its admission, or earlier for tokens of a bucket that
    /// it waited for.
    at: u64,
    /// When the limit is whole again, by the decision.
    whole: u64,
    /// Tokens that have not been refunded.
    left: u64,
}

/// A refund that its node knows and has not answered.
#[derive(Clone, Copy, Debug)]
struct Parked {
    id: u64,
    /// How many tokens the store has to be asked for because of it, at least and at most; and at least for all refunds
    /// up to it.
    least: u64,
    most: u64,
    sum: u64,
}

/// A key at a node.
#[derive(Clone, Debug, Default)]
struct Key {
    rule: Option<Arc<Rule>>,
    admitted: VecDeque<Admitted>,
    /// Tokens of a bucket that were lent for waiters and are not spent; and when they were charged.
    waited_for: (u64, u64),
    parked: VecDeque<Parked>,
    /// Since no refund was parked: tokens that the store has to be asked for at least and at most, and those that it
    /// was asked for.
    least: u64,
    most: u64,
    asked: u64,
    /// Whether the calls cannot be assigned to refunds, so that too little is known to judge.
    is_unsure: bool,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Refunds {
    is_on: bool,
    edge: u64,
    lives: Lives,
    clocks: Clocks,
    ids: Ids,
    keys: Map<(Life, u32), Key>,
    /// By key: refunds beyond what the node had admitted, and when.
    vain: Map<u32, VecDeque<(u64, u64)>>,
    /// By key: the time before which charges are not known.
    void: Numbered<u64>,
    /// By id of checks admitted from leases: when they were admitted, and when their limit is whole again.
    charges: Map<u64, [u64; 2]>,
    order: VecDeque<u64>,
    /// By id of refunds of such a check: its times.
    of_charges: Map<u64, Option<[u64; 2]>>,
    /// A check of several keys that is about to be refunded.
    going_back: Option<u64>,
    found: Found,
}

impl Key {
    /// Goes on to these limits.
    fn go_by(&mut self, rule: &Arc<Rule>) {
        if self.rule.as_ref().is_none_or(|known| known.limits != rule.limits) {
            self.rule = Some(rule.clone());
            self.admitted.clear();
        }
    }

    /// The charges at `now` that can be refunded by the node's knowledge: admissions from leases in windows that are
    /// surely open, or that have surely not leaked.
    fn charged(&self, rule: &Rule, now: u64, edge: u64) -> u64 {
        rule.limits.iter().map(|limit| self.charged_of(rule, limit, now, edge)).max().unwrap_or(0)
    }

    /// The least that it has admitted in any of the open windows. Refunds beyond that reduce charges of other nodes, or
    /// later ones.
    fn present(&self, rule: &Rule, now: u64) -> u64 {
        let sum = |limit: &Limit| {
            let is_of = |admitted: &&Admitted| admitted.at / limit.period.0 == now / limit.period.0;
            self.admitted.iter().filter(is_of).map(|admitted| admitted.left).sum()
        };
        rule.limits.iter().map(sum).min().unwrap_or(0)
    }

    fn charged_of(&self, rule: &Rule, limit: &Limit, now: u64, edge: u64) -> u64 {
        let sum = |is_of: &dyn Fn(&Admitted) -> bool| {
            self.admitted.iter().filter(|admitted| is_of(admitted)).map(|admitted| admitted.left).sum()
        };
        match limit.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => match window(limit, now, edge) {
                Some(open) => sum(&|admitted| admitted.at / limit.period.0 == open),
                None => 0,
            },
            Algorithm::FixedFromFirst if FROM_FIRST.when(rule.limits.len() > 1) => 0,
            Algorithm::FixedFromFirst => {
                let last = self.admitted.back().map_or(0, |admitted| admitted.whole);
                let is_open = !OVER.when(last < now + edge);
                if is_open { sum(&|admitted| admitted.whole == last) } else { 0 }
            }
            Algorithm::Gcra => {
                let each = limit.period.0 / limit.count + 1;
                let mut owed = (0_u64, 0_u64);
                for admitted in &self.admitted {
                    let passed = admitted.at.saturating_sub(owed.1);
                    let cost = admitted.left.saturating_mul(limit.period.0) / limit.count;
                    let leaked = owed.1.saturating_sub(admitted.at);
                    owed = (owed.0.saturating_sub(passed) + cost.saturating_sub(leaked), owed.1.max(admitted.at));
                }
                let leaked = now.saturating_sub(owed.1).saturating_add(edge);
                (owed.0.saturating_sub(OVER.forgives(leaked)) / each).min(limit.burst)
            }
            Algorithm::Concurrent => 0,
        }
    }

    /// When the tokens of a check admitted at `now` were charged: tokens that were lent for waiters are spent first.
    fn charged_at(&mut self, rule: &Rule, cost: u64, now: u64) -> u64 {
        let (left, at) = self.waited_for;
        self.waited_for.0 = left.saturating_sub(cost);
        let are_buckets = rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        if left > 0 && are_buckets { at.min(now) } else { now }
    }

    /// The store has lent tokens for waiters.
    fn lend(&mut self, needed: u64, now: u64) {
        let (left, at) = self.waited_for;
        self.waited_for = (left + needed, if left > 0 { at } else { now });
    }

    /// Takes refunded tokens off, the latest admissions first.
    fn take_back(&mut self, tokens: u64) {
        let mut due = tokens;
        for admitted in self.admitted.iter_mut().rev() {
            let part = due.min(admitted.left);
            (admitted.left, due) = (admitted.left - part, due - part);
        }
    }

    /// No refund is parked any more, and all of them are known to have been asked for.
    fn begin_anew(&mut self) {
        (self.least, self.most, self.asked, self.is_unsure) = (0, 0, 0, false);
    }
}

/// The number of the aligned window that is surely open at `now`.
fn window(limit: &Limit, now: u64, edge: u64) -> Option<u64> {
    let (period, begun) = (limit.period.0, now % limit.period.0);
    (!OVER.when(begun <= edge || begun + edge >= period)).then_some(now / period)
}

impl Refunds {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let far = plan.zones.iter().map(|zone| zone.store.0).max().unwrap_or(0);
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            edge: EDGE + trip(plan) + 2 * far,
            lives: Lives::default(),
            clocks: Clocks::new(plan),
            ids: Ids::default(),
            keys: Map::default(),
            vain: Map::default(),
            void: Numbered::default(),
            charges: Map::default(),
            order: VecDeque::new(),
            of_charges: Map::default(),
            going_back: None,
            found: Found::default(),
        }
    }

    fn admitted(&mut self, request: &Request, rule: &Arc<Rule>, store: u64, whole: u64) {
        let key = self.keys.entry((self.lives.of(request.node), request.key)).or_default();
        key.go_by(rule);
        let at = key.charged_at(rule, request.cost, store);
        key.admitted.push_back(Admitted { at, whole, left: request.cost });
        if key.admitted.len() > REMEMBERED {
            key.admitted.pop_front();
        }
        self.charges.insert(request.id, [store, whole]);
        self.order.push_back(request.id);
        if self.order.len() > HOLDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.charges.remove(&oldest);
        }
    }

    /// The least number of tokens of a refund that have to be taken back.
    fn least(&mut self, moment: Moment, request: &Request, rule: &Arc<Rule>, kept: u64, store: u64) -> u64 {
        let of_charge = self.of_charges.remove(&request.id);
        let longest = rule.limits.iter().map(|limit| limit.period.0.max(limit.depth().0)).max().unwrap_or(0);
        let lasts = 2 * longest + HEARS;
        let is_void = self.void.get(request.key).is_some_and(|void| *void > 0 && moment.at < void + lasts);
        if UNKNOWN.when(is_void) || LEAPS.when(self.clocks.is_new(moment, request.key, lasts)) {
            return 0;
        }
        let edge = self.edge;
        // A refund of a known charge goes back to the same windows, or not at all.
        let is_open = |limit: &Limit, [at, whole]: [u64; 2]| match limit.algorithm {
            Algorithm::Fixed | Algorithm::Sliding => {
                let [then, now] = [at, store].map(|time| window(limit, time, edge));
                then.is_some() && then == now
            }
            Algorithm::Gcra => !OVER.when(whole.min(at + limit.depth().0) < store + edge),
            Algorithm::FixedFromFirst | Algorithm::Concurrent => !FROM_FIRST.when(true),
        };
        match of_charge {
            Some(None) => return 0,
            Some(Some(charge)) if !rule.limits.iter().all(|limit| is_open(limit, charge)) => return 0,
            _ => {}
        }
        let Some(key) = self.keys.get(&(self.lives.of(request.node), request.key)) else { return 0 };
        let is_of_these = key.rule.as_ref().is_some_and(|known| known.limits == rule.limits);
        if OTHERS.when(!is_of_these) {
            return 0;
        }
        let vain = self.vain.get(&request.key).into_iter().flatten();
        let vain = vain.filter(|(at, _)| moment.at < at + lasts).map(|(_, tokens)| tokens).sum();
        let charged = key.charged(rule, store, edge).saturating_sub(VAIN.forgives(vain));
        // Under buckets alone the whole cost can be refunded if they owe any more than what is back in the lease.
        match rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra) {
            true if charged > kept => request.cost,
            true => 0,
            false => charged.min(request.cost),
        }
    }

    fn taken_back(&mut self, moment: Moment, request: &Request, rule: &Arc<Rule>, kept: Option<u64>, store: u64) {
        let least = self.least(moment, request, rule, kept.unwrap_or(0), store);
        let key = self.keys.entry((self.lives.of(request.node), request.key)).or_default();
        key.is_unsure |= SERVED.when(kept.is_none());
        let kept = kept.unwrap_or(0);
        if kept > request.cost {
            self.found.add("conservation", moment, || format!("{request:?}: {kept} are back in the lease"));
        }
        let (least, most) = (least.saturating_sub(kept), request.cost.saturating_sub(kept));
        (key.least, key.most) = (key.least + least, key.most + most);
        key.parked.push_back(Parked { id: request.id, least, most, sum: key.least });
        let vain = request.cost.saturating_sub(key.present(rule, store));
        key.take_back(request.cost);
        if vain > 0 {
            let all = self.vain.entry(request.key).or_default();
            all.push_back((moment.at, vain));
            all.drain(..all.len().saturating_sub(REMEMBERED));
        }
    }

    fn answered(&mut self, moment: Moment, request: &Request, is_granted: bool, parked: bool) {
        let place = (self.lives.of(request.node), request.key);
        let Some(key) = self.keys.get_mut(&place) else { return };
        let Some(at) = key.parked.iter().position(|parked| parked.id == request.id) else { return };
        let Some(Parked { least, most, sum, .. }) = key.parked.remove(at) else { return };
        let is_last = at == key.parked.len();
        let is_sure = !key.is_unsure;
        // A refund that is answered at once causes no call, unless the node has no room for the key.
        let has_left = parked || key.asked + most > key.most;
        if !has_left {
            (key.least, key.most) = (key.least - least, key.most - most);
            if is_granted && is_sure && least > 0 {
                self.found.add("conservation", moment, || {
                    format!("{request:?}: {least} are neither back in the lease nor asked back of the store")
                });
            }
        } else if is_granted && is_sure && key.asked < sum {
            let asked = key.asked;
            self.found.add("conservation", moment, || {
                format!("{request:?}: of {sum} that are not back in the lease {asked} are asked back of the store")
            });
        }
        key.is_unsure |= LATE.when(parked && !is_granted);
        if key.parked.is_empty() && is_last && is_granted && (has_left || key.asked == key.most) {
            key.begin_anew();
        }
    }

    fn called(&mut self, moment: Moment, node: u32, key: u32, id: u64, amount: u64) {
        let life = self.lives.of(node);
        if !self.ids.is_first(life, id) {
            return;
        }
        let state = self.keys.entry((life, key)).or_default();
        state.asked += amount;
        if state.asked > state.most && !state.is_unsure {
            let Key { asked, most, .. } = *state;
            self.found.add("conservation", moment, || {
                format!("key {key}, node {node}: {asked} are asked back of the store where {most} are to go back")
            });
        }
    }
}

impl Observer for Refunds {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.lives.see(seen);
        self.clocks.see(moment, seen);
        match seen {
            Seen::Answered { request, rule, decision, store, .. } if request.kind == Kind::Check => {
                let is_lent = matches!(decision.source, Source::Lease | Source::Store);
                if decision.verdict == Verdict::Allow && is_lent && request.cost > 0 {
                    self.admitted(request, rule, store.0, decision.reset_at.0);
                }
            }
            Seen::Answered { request, decision, parked, .. } if request.kind == Kind::Refund => {
                // A refund that is rejected because a table or a line is full is answered by the policy, even if that
                // allows.
                let is_granted = decision.verdict == Verdict::Allow && decision.source != Source::Policy;
                self.answered(moment, request, is_granted, *parked);
            }
            Seen::TakenBack { request, rule, kept, store } => {
                if let Some(check) = self.going_back.take() {
                    self.of_charges.insert(request.id, self.charges.get(&check).copied());
                }
                self.taken_back(moment, request, rule, *kept, store.0);
            }
            Seen::Hold(hold, Holding::Asks(request)) if request.kind == Kind::Refund => {
                self.of_charges.insert(request.id, self.charges.get(hold).copied());
            }
            Seen::Together { what: Together::GoesBack { request }, .. } => self.going_back = Some(request.id),
            Seen::Called { node, key, call, .. } => {
                if let Op::Refund { amount, .. } = call.op {
                    self.called(moment, *node, *key, call.id, amount);
                }
            }
            Seen::Executed { key, stale: true, .. } | Seen::Undone { key, .. } | Seen::Lost { key, .. } => {
                *self.void.of(*key) = moment.at.max(1);
            }
            Seen::Executed { key, call, .. } if call.op == Op::Reset => *self.void.of(*key) = moment.at.max(1),
            Seen::Executed { node, key, call, grant, .. } if !grant.replayed => {
                if let Op::Acquire(order) = &call.op {
                    let key = self.keys.entry((self.lives.of(*node), *key)).or_default();
                    key.lend(grant.granted.min(order.need), grant.now.0);
                }
            }
            _ => {}
        }
    }

    fn ignores(&self, topic: Topic) -> bool {
        topic == Topic::Settled
    }
}

impl Checker for Refunds {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::time::Timestamp;

    use super::*;
    use crate::checkers::tests::{History, SECOND, START};

    /// The violations when a node has admitted `admitted` tokens, a client refunds `cost`, `kept` are back in the
    /// lease, and the store is asked for `asked`.
    fn seen(limits: &[&str], [admitted, cost, kept, asked]: [u64; 4]) -> usize {
        let mut history = History::of_several(limits);
        let setting = history.setting();
        let mut checker = Refunds::new(&setting);
        let at = SECOND / 2;
        history.check(&mut checker, at, admitted, Source::Lease, true);
        let request = Request { kind: Kind::Refund, cost, ..history.ask(&mut checker, at) };
        let (rule, store) = (&setting.rules[0], Timestamp(START + at));
        history.see(&mut checker, at, &Seen::TakenBack { request: &request, rule, kept: Some(kept), store });
        if asked > 0 {
            history.refund_leaves_of(&mut checker, at, asked);
        }
        history.answered_in_turn(&mut checker, at, &request, asked > 0);
        checker.violations().len()
    }

    #[test]
    fn a_token_more_or_less_is_seen_of_every_algorithm() {
        let shapes: [&[&str]; 6] = [
            &["10/1s fixed"],
            &["10/1s sliding"],
            &["10/1s fixed from-first"],
            &["10/10s burst 10"],
            &["10/1s fixed", "20/1m sliding"],
            &["10/10s burst 10", "20/1s fixed"],
        ];
        for limits in shapes {
            for ([admitted, cost, kept, asked], violations) in [
                ([3, 3, 3, 0], 0),
                ([3, 3, 1, 2], 0),
                ([3, 3, 0, 3], 0),
                ([3, 3, 1, 3], 1),
                ([3, 3, 4, 0], 1),
                ([3, 3, 1, 1], 1),
                ([3, 3, 1, 0], 1),
            ] {
                let found = seen(limits, [admitted, cost, kept, asked]);
                assert_eq!(found, violations, "{limits:?}: {cost} of {admitted}, {kept} kept, {asked} asked");
            }
        }
    }

    /// Four tokens of a bucket of ten a second are lent for waiters, and the answer comes 300 ms later, when one other
    /// check is left: its two tokens have leaked since they were charged. Without waiters, or if the answer comes at
    /// once, they are charged when they are spent.
    #[test]
    fn what_was_waited_for_leaks_from_when_it_was_lent() {
        for (need, after, violations) in [(4, 300_000, 0), (0, 300_000, 1), (4, 10_000, 1)] {
            let mut history = History::of_several(&["10/1s burst 10"]);
            let setting = history.setting();
            let mut checker = Refunds::new(&setting);
            let (lent, at) = (SECOND / 2, SECOND / 2 + after);
            (1..=need).for_each(|id| history.lent(&mut checker, lent, 0, id, 1));
            history.check(&mut checker, at, 2, Source::Lease, true);
            let request = Request { kind: Kind::Refund, cost: 1, ..history.ask(&mut checker, at) };
            let (rule, store) = (&setting.rules[0], Timestamp(START + at));
            history.see(&mut checker, at, &Seen::TakenBack { request: &request, rule, kept: Some(0), store });
            history.answered_in_turn(&mut checker, at, &request, false);
            assert_eq!(checker.violations().len(), violations, "{need} {after}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_nobody_admitted_here_need_not_be_asked_back() {
        assert_eq!(seen(&["10/1s fixed"], [1, 3, 1, 0]), 0);
        assert_eq!(seen(&["10/1s fixed"], [2, 3, 1, 0]), 1, "one more was admitted");
    }
}
