//! **fairness**: no node takes more than its part, beyond what its waiters need. A node asks for at most the limit
//! divided by the number of nodes that ask, less the tokens that it holds of the window, and the store lends at most
//! the rest of the limit divided by that number. It counts the nodes that asked in this census period or the last, and
//! no others. While no replica confirms grants, leases are small (**confirmed**).

use std::collections::BTreeMap;

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::{Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::Found;
use super::notes::{Answers, Clocks, Ids, Life, Lives};
use super::phased::{Phased, Pushes};
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Kind, Moment, Observer, Ran, Seen, Setting, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Under other limits census periods are others.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static ALONE: Exemption =
    Exemption::new("a node on its share", "It leases what is left of that, whatever its part is now.");
static SHAPES: Exemption = Exemption::new(
    "what is lent of other shapes",
    "A sliding window and a bucket tell what is left only at the moment of the call: the second opinion computes it again.",
);
static LEAPS: Exemption = Exemption::new(
    "the census of a key that another clock counts, until two periods, and of a bucket an account's life, after that has caught up with all before",
    "Periods are by the owner's clock.",
);
static GROWN: Exemption = Exemption::new(
    "what is asked for where the store counts more nodes than the fleet has heard of",
    "The store counts nodes for a while that are gone, so the fewer count: those that it knows, or those of the fleet. A newcomer is known to the store first.",
);

static OWNERS: Exemption = Exemption::new(
    "what a node that may own the key asks for of it before the store has told it anything of that key",
    "A key's owner leases for all, and has not heard how many nodes lease it. What it is lent of it is judged.",
);

static FORGOTTEN: Exemption = Exemption::new(
    "what a node that may own the key asks for of it once it has forgotten it, ten seconds after the store has left a lease of it unconfirmed",
    "With the key it has forgotten that its master had no replica, and goes by what was confirmed of other keys of late.",
);

static HELD: Exemption = Exemption::new(
    "what a node holds of several limits or a bucket, or of a window that begins or ends within 20 ms and two timeouts, or of a key that another clock counts, for as long as its census",
    "What it can spend by its own clock when the call arrives nobody else knows so nearly.",
);

static LATE: Exemption = Exemption::new(
    "what a call has brought that was under way for longer than two timeouts",
    "A node counts a lease from when its call left: what such a call brings ends so much earlier than its window.",
);

static OWED: Exemption = Exemption::new(
    "what a node is lent of a window, as far as it has admitted so much on its share in the same window, or of a sliding one in that before",
    "It pays for that before anything of it is held.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "fairness.rs",
    invariants: &["fairness", "confirmed"],
    proves: "No node asks for more than its part, less what it holds, the store lends nobody more than its part, and counts those who asked in this census period or the last and nobody else; unconfirmed leases are small.",
    judges: "What is asked for: all. What is held: one window. What is lent: one fixed or from-first window. The census: all.",
    exemptions: &[&PUSHES, &BASELINES, &ALONE, &OWNERS, &FORGOTTEN, &HELD, &LATE, &OWED, &SHAPES, &LEAPS, &GROWN],
    mutant: Some("census-counts-calls"),
};

/// Unconfirmed leases are smaller than others by this factor; and it is the part of the limit below which a grant is
/// not cut near the end of the limit.
const SMALL: u64 = 32;

/// See `HELD`.
const EDGE: u64 = 20_000;

/// How long a node surely remembers that its leases were not confirmed, whatever its clock does.
const REMEMBERED: u64 = 9_900_000;

/// The checker.
#[derive(Clone, Debug)]
pub(super) struct Fairness {
    is_on: bool,
    /// When each live node has joined, and how long after that the others have heard of it; `None` without gossip.
    came: Map<u32, u64>,
    heard_after: Option<u64>,
    lives: Lives,
    sent: Ids,
    answers: Map<(Life, u32), Answers>,
    /// Nodes that admit on their shares: such a node leases what is left of its share, whatever its part is now.
    shares: Map<(Life, u32), Share>,
    /// The least that each node can still spend of a window; and the calls whose grants were counted.
    held: Map<(Life, u32), Held>,
    lent: Ids,
    /// When each acquire that is under way was sent.
    left: Map<(Life, u64), u64>,
    /// See `HELD`, and `LATE`.
    edge: u64,
    late: u64,
    /// By key: how far its owner's clock is ahead of true time.
    skews: Numbered<Option<u64>>,
    /// By key.
    asked: Numbered<Asked>,
    /// Whether nodes ask peers.
    owners: bool,
    /// Notices when another clock counts a key.
    clocks: Clocks,
    /// How long after a key's clock has caught up with all earlier ones their grants are over.
    lasts: u64,
    found: Found,
}

/// What a node admits of a key on its share.
#[derive(Clone, Debug, Default)]
struct Share {
    /// Whether the node decides by its share, and no acquire has been answered since.
    alone: bool,
    /// When the windows in which it was spent are over. Until then the node uses its share again as soon as an acquire
    /// fails.
    until: u64,
    /// The latest acquire that was answered, and whether a later one has failed.
    answered: u64,
    failed: bool,
    /// Tokens that it has admitted and not been lent since, and until when some of their windows may be open: see
    /// `OWED`.
    owed: u64,
    owed_until: u64,
}

impl Share {
    fn settled(&mut self, id: u64, is_answered: bool) {
        if is_answered {
            *self = Self { alone: false, answered: self.answered.max(id), failed: false, ..*self };
        } else {
            self.failed |= id > self.answered;
        }
    }

    fn admit(&mut self, now: u64, rule: &Rule, tokens: u64) {
        let longest = |algorithm: &dyn Fn(&Limit) -> u64| rule.limits.iter().map(algorithm).max().unwrap_or(0);
        self.until = now + longest(&span);
        if now >= self.owed_until {
            self.owed = 0;
        }
        self.owed += tokens;
        let weighs = |limit: &Limit| if limit.algorithm == Algorithm::Sliding { 2 * span(limit) } else { span(limit) };
        self.owed_until = now + longest(&weighs);
    }

    /// How much of a grant pays for what the share has admitted.
    fn pay(&mut self, now: u64, lent: u64) -> u64 {
        let paid = if now < self.owed_until { self.owed.min(lent) } else { 0 };
        self.owed -= paid;
        OWED.forgives(paid)
    }

    fn is_gone_by(&self, now: u64) -> bool {
        self.alone || self.failed && now < self.until
    }
}

/// The least that a node holds of one window of a key: refunds are not added.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    epoch: u64,
    begins: u64,
    ends: u64,
    tokens: u64,
}

impl Held {
    /// Adds a grant.
    fn lend(&mut self, lent: Self) {
        if (self.epoch, self.begins, self.ends) == (lent.epoch, lent.begins, lent.ends) {
            self.tokens += lent.tokens;
        } else {
            *self = lent;
        }
    }

    /// The tokens that it can spend at `now` of the owner's clock and within `edge` before and after.
    fn open(&self, now: u64, edge: u64) -> u64 {
        let is_open = self.begins + edge <= now && now + edge < self.ends;
        if HELD.when(!is_open) { 0 } else { self.tokens }
    }
}

/// When the window of a grant begins and ends, if the rule has one window.
fn window(call: &Call, order: &Acquire, grant: &Grant) -> Option<(u64, u64)> {
    let [limit] = &call.rule.limits[..] else { return None };
    let (period, at) = (limit.period.0, grant.counters[0].at.0);
    let at = if order.window.is_next() { at + period } else { at };
    match limit.algorithm {
        Algorithm::Fixed => Some((at.saturating_sub(period), at)),
        Algorithm::FixedFromFirst => Some((0, at)),
        Algorithm::Sliding => Some((at, at + period)),
        Algorithm::Gcra | Algorithm::Concurrent => None,
    }
}

/// The census period, by the owner's clock, in which each node last asked for a key.
#[derive(Clone, Debug, Default)]
struct Asked {
    last: Numbered<Option<u64>>,
    /// How many nodes asked last in which period.
    nodes: BTreeMap<u64, usize>,
}

impl Asked {
    fn note(&mut self, node: u32, period: u64) {
        let before = self.last.of(node).replace(period);
        if before == Some(period) {
            return;
        }
        *self.nodes.entry(period).or_default() += 1;
        if let Some(before) = before {
            let left = self.nodes.entry(before).or_default();
            *left -= 1;
            if *left == 0 {
                self.nodes.remove(&before);
            }
        }
    }

    /// The number of nodes that asked last in this period or later.
    fn since(&self, period: u64) -> usize {
        self.nodes.range(period..).map(|(_, nodes)| nodes).sum()
    }
}

impl Fairness {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            is_on: !BASELINES.when(setting.plan.brain != Brain::Rationd),
            came: Map::default(),
            heard_after: setting.plan.gossip.map(|gossip| gossip.join.0 + 2 * gossip.tick.0),
            lives: Lives::default(),
            sent: Ids::default(),
            answers: Map::default(),
            shares: Map::default(),
            held: Map::default(),
            lent: Ids::default(),
            left: Map::default(),
            edge: EDGE + 2 * setting.plan.daemon.timeout.0,
            late: 2 * setting.plan.daemon.timeout.0,
            skews: Numbered::default(),
            asked: Numbered::default(),
            owners: setting.plan.daemon.owners,
            clocks: Clocks::new(&setting.plan),
            lasts: Pushes::last_beyond_a_leap(&setting.plan),
            found: Found::default(),
        }
    }

    /// Judges what a node asks for.
    fn order(&mut self, moment: Moment, life: Life, key: u32, call: &Call, order: &Acquire) {
        let on_share = self.shares.get(&(life, key)).is_some_and(|share| share.is_gone_by(moment.at));
        let Some(answers) = self.answers.get(&(life, key)).filter(|_| !ALONE.when(on_share)) else { return };
        let smallest = call.rule.limits.iter().map(Limit::capacity).min().unwrap_or(0);
        let is_new = order.epoch == 0;
        let nodes = if OWNERS.when(self.owners && is_new) { 1 } else { self.known(moment).min(answers.nodes()) };
        let part = smallest.div_ceil(nodes);
        let waits = order.need.max(order.least);
        let is_forgotten = is_new && moment.at >= answers.latest() + REMEMBERED;
        let (name, most) = match answers.is_unconfirmed() && !FORGOTTEN.when(self.owners && is_forgotten) {
            true => ("confirmed", part.div_ceil(SMALL)),
            false => ("fairness", part),
        };
        // The check for which it asks may just have been admitted from the lease, though that is seen only later.
        let held = if order.window.is_next() { 0 } else { self.held(moment, life, key).min(order.held) };
        if order.want > most.saturating_sub(held).max(waits).max(1) {
            self.found.add(name, moment, || {
                format!("key {key}: {life:?} wants more than {most}, and holds {held}: {order:?}")
            });
        }
    }

    /// The least that a node holds of the open window.
    fn held(&self, moment: Moment, life: Life, key: u32) -> u64 {
        let skew = self.skews.get(key).copied().flatten();
        let (Some(skew), false) = (skew, HELD.when(self.clocks.is_new(moment, key, self.lasts))) else { return 0 };
        let now = moment.store.0.wrapping_add(skew);
        self.held.get(&(life, key)).map_or(0, |held| held.open(now, self.edge))
    }

    /// Counts a grant as held.
    fn hold(&mut self, moment: Moment, life: Life, key: u32, call: &Call, grant: &Grant) {
        let Op::Acquire(order) = &call.op else { return };
        let share = self.shares.get_mut(&(life, key)).filter(|_| !order.window.is_next());
        let left = self.left.remove(&(life, call.id)).unwrap_or(moment.at);
        let held = self.held.entry((life, key)).or_default();
        if held.epoch != grant.epoch {
            *held = Held { epoch: grant.epoch, ..Held::default() };
        }
        if grant.granted > 0
            && self.lent.is_first(life, call.id)
            && let Some((begins, ends)) = window(call, order, grant)
        {
            let paid = share.map_or(0, |share| share.pay(moment.at, grant.granted));
            let is_late = LATE.when(moment.at - left > self.late);
            let tokens = if is_late { 0 } else { grant.granted - paid };
            held.lend(Held { epoch: grant.epoch, begins, ends, tokens });
        }
    }

    /// Removes tokens that the node no longer holds.
    fn let_go(&mut self, life: Life, key: u32, tokens: u64) {
        if let Some(held) = self.held.get_mut(&(life, key)) {
            held.tokens = held.tokens.saturating_sub(tokens);
        }
    }

    /// Notes the clock of a key's owner.
    fn follow(&mut self, moment: Moment, key: u32, now: u64) {
        let skew = now.wrapping_sub(moment.store.0);
        *self.skews.of(key) = Some(skew);
    }

    /// The number of live nodes of which all others have heard; without gossip there is no bound.
    fn known(&self, moment: Moment) -> u64 {
        let Some(after) = self.heard_after else { return u64::MAX };
        let known = self.came.values().filter(|at| **at + after <= moment.at).count();
        if GROWN.when(known > 0) { known as u64 } else { u64::MAX }
    }

    /// Judges a grant of the store.
    fn lent(&mut self, moment: Moment, key: u32, call: &Call, order: &Acquire, grant: &Grant, ran: &Ran) {
        let [limit] = &call.rule.limits[..] else { return };
        if SHAPES.when(!matches!(limit.algorithm, Algorithm::Fixed | Algorithm::FixedFromFirst)) || grant.replayed {
            return;
        }
        let (counter, nodes) = (&grant.counters[0], u64::from(grant.nodes.max(1)));
        let used = if !order.window.is_next() { counter.used } else { counter.prev };
        let left = (limit.count + grant.granted).saturating_sub(used);
        let part = left.div_ceil(nodes).max(limit.capacity().div_ceil(SMALL * nodes)).max(order.need);
        // Tokens set aside for the node could not be lent to others.
        let own = ran.hash[1].filter(|_| call.sets_aside()).map_or(0, |hash| hash.entitled());
        let part = part.max(own);
        if grant.granted > part {
            self.found.add("fairness", moment, || {
                format!("key {key}: {} of {left} for one of {nodes} nodes, {part} at most: {order:?}", grant.granted)
            });
        }
    }

    /// Counts a node that asked. A call to a former owner (`stale`) only adds: its census stays if the server becomes
    /// the owner again, and takes nothing from that of a new owner. Calls that the store did not execute do not count.
    fn count(&mut self, key: u32, node: u32, call: &Call, grant: &Grant, stale: bool) {
        if !matches!(call.op, Op::Acquire(_)) || grant.replayed || grant.outdated {
            return;
        }
        let (asked, period) = (self.asked.of(key), grant.now.0 / census_period(call));
        if !stale || asked.last.get(node).copied().flatten().is_none_or(|last| last < period) {
            asked.note(node, period);
        }
    }

    fn census(&mut self, moment: Moment, key: u32, call: &Call, grant: &Grant) {
        let now = grant.now.0 / census_period(call);
        let most = self.asked.of(key).since(now.saturating_sub(1)).max(1);
        if grant.nodes as usize > most {
            self.found.add("fairness", moment, || {
                format!("key {key}: {} nodes counted, and {most} asked: {:?}", grant.nodes, call.op)
            });
        }
    }
}

/// The census period of a call's rule.
fn census_period(call: &Call) -> u64 {
    call.rule.limits.iter().map(span).min().unwrap_or(0).clamp(1_000_000, 60_000_000)
}

/// How long a limit remembers.
fn span(limit: &Limit) -> u64 {
    if limit.algorithm == Algorithm::Gcra { limit.depth().0 } else { limit.period.0 }
}

impl Observer for Fairness {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.lives.see(seen);
        if !self.is_on {
            return;
        }
        self.clocks.see(moment, seen);
        match seen {
            Seen::Joined { node, .. } => _ = self.came.insert(*node, moment.at),
            Seen::Left { node, .. } => _ = self.came.remove(node),
            Seen::Called { node, key, call, .. } => {
                let life = self.lives.of(*node);
                match &call.op {
                    Op::Return { amount, .. } => self.let_go(life, *key, *amount),
                    Op::Reset => _ = self.held.remove(&(life, *key)),
                    _ => {}
                }
                if let (Op::Acquire(order), true) = (&call.op, self.sent.is_first(life, call.id)) {
                    self.left.insert((life, call.id), moment.at);
                    self.order(moment, life, *key, call, order);
                }
            }
            Seen::Executed { node, key, call, grant, stale: true, .. } => self.count(*key, *node, call, grant, true),
            Seen::Executed { node, key, call, grant, ran, .. } => {
                if let Op::Acquire(order) = &call.op {
                    self.lent(moment, *key, call, order, grant, ran);
                }
                self.count(*key, *node, call, grant, false);
                if !LEAPS.when(self.clocks.is_new(moment, *key, self.lasts)) {
                    self.census(moment, *key, call, grant);
                }
            }
            Seen::PeerAnswered { node, incarnation, key, answer: Ok(loan), .. } => {
                self.let_go((*node, *incarnation), *key, loan.tokens);
            }
            Seen::Answered { request, decision, store, .. }
                if matches!(decision.source, Source::Lease | Source::Store) =>
            {
                self.follow(moment, request.key, store.0);
                if decision.verdict == Verdict::Allow && request.kind == Kind::Check {
                    self.let_go(self.lives.of(request.node), request.key, request.cost);
                }
            }
            Seen::Answered { request, rule, decision, .. } if decision.source == Source::Share => {
                let share = self.shares.entry((self.lives.of(request.node), request.key)).or_default();
                share.alone = true;
                if decision.verdict == Verdict::Allow {
                    share.admit(moment.at, rule, if request.kind == Kind::Check { request.cost } else { 0 });
                }
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let place = ((*node, *incarnation), *key);
                // An outdated answer does not count, because the node asks the same again under another id.
                let share = self.shares.get_mut(&place).filter(|_| !grant.is_some_and(|grant| grant.outdated));
                if let (Op::Acquire(_), Some(share)) = (&call.op, share) {
                    share.settled(call.id, grant.is_some());
                }
                if let Some(grant) = grant {
                    self.hold(moment, (*node, *incarnation), *key, call, grant);
                    self.answers.entry(place).or_default().note(moment, call.id, grant);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Fairness {
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
    use crate::span::Span;

    #[test]
    fn a_lease_of_more_than_its_part_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Fairness::new(&history.setting());
        history.settled(&mut checker, 0, 1, 4);
        history.called(&mut checker, 1, 2, 10);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.called(&mut checker, 2, 3, 11);
        assert_eq!(checker.violations()[0].invariant, "fairness");
    }

    /// It was lent six in the middle of a window, and has admitted some tokens on its share in that window or in an
    /// earlier one.
    #[test]
    fn what_pays_for_a_share_is_not_held() {
        for (admitted, before, seen) in [(6, 0, 0), (5, 0, 1), (0, 0, 1), (6, SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Fairness::new(&history.setting());
            history.opened = 2 * SECOND;
            let middle = 2 * SECOND + SECOND / 2;
            history.settled(&mut checker, middle - before - 2, 1, 0);
            for _ in 0..admitted {
                history.check(&mut checker, middle - before - 1, 1, Source::Share, true);
            }
            // A denial from memory shows the clock that it uses.
            history.settled(&mut checker, middle, 2, 6);
            history.check(&mut checker, middle, 1, Source::Lease, false);
            history.called_holding(&mut checker, middle + 1, 3, [10, 6]);
            assert_eq!(checker.violations().len(), seen, "{admitted} {before}: {:?}", checker.violations());
        }
    }

    /// The call that brought six tokens of a window was sent more than two timeouts before, or less.
    #[test]
    fn what_a_late_call_has_brought_may_have_ended() {
        for (trip, seen) in [(100_001, 0), (100_000, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Fairness::new(&history.setting());
            history.opened = 2 * SECOND;
            let middle = 2 * SECOND + SECOND / 2;
            history.settled(&mut checker, 2 * SECOND, 1, 0);
            history.called(&mut checker, middle - trip, 2, 6);
            history.settled(&mut checker, middle, 2, 6);
            history.check(&mut checker, middle, 1, Source::Lease, false);
            history.called_holding(&mut checker, middle + 1, 3, [10, 6]);
            assert_eq!(checker.violations().len(), seen, "{trip}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_large_lease_of_a_master_that_was_unconfirmed_a_moment_ago_is_seen() {
        for (owners, asks_under, at, seen) in
            [(true, 0, SECOND, 1), (true, 0, 12 * SECOND, 0), (true, 1, 12 * SECOND, 1), (false, 0, 12 * SECOND, 1)]
        {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.daemon.owners = owners;
            let mut checker = Fairness::new(&setting);
            history.confirmed = false;
            (1..=4).for_each(|id| history.settled(&mut checker, id, id, 1));
            history.asks_under = asks_under;
            history.called(&mut checker, at, 9, 10);
            let found = checker.violations().iter().filter(|found| found.invariant == "confirmed");
            assert_eq!(found.count(), seen, "{owners} {asks_under} {at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_node_goes_by_the_nodes_that_it_has_heard_of() {
        for (came, seen) in [(4 * SECOND, 0), (0, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(crate::plan::Gossip { join: Span(SECOND), ..Default::default() });
            let mut checker = Fairness::new(&setting);
            for (node, at) in [(0, 0), (1, came)] {
                history.see(&mut checker, at, &Seen::Joined { node, incarnation: 0 });
            }
            history.nodes = 2;
            history.settled(&mut checker, 4 * SECOND, 1, 2);
            history.called(&mut checker, 4 * SECOND + 1, 2, 10);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn nodes_that_have_left_have_no_part() {
        for (left, seen) in [(true, 0), (false, 1)] {
            let mut history = History::new("12/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(crate::plan::Gossip { join: Span(SECOND), ..Default::default() });
            let mut checker = Fairness::new(&setting);
            for node in 0..3 {
                history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 0 });
            }
            if left {
                history.see(&mut checker, 3 * SECOND, &Seen::Left { node: 2, drained: true });
            }
            history.nodes = 3;
            history.settled(&mut checker, 4 * SECOND, 1, 2);
            history.called(&mut checker, 4 * SECOND + 1, 2, 6);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
            history.called(&mut checker, 4 * SECOND + 2, 3, 7);
            assert_eq!(checker.violations().len(), seen + 1, "it is half of it for two");
        }
    }

    /// The slot of one key moves to another clock, that of the other does not.
    #[test]
    fn nodes_of_a_key_are_counted_until_another_clock_counts_it() {
        for (ahead, seen) in [(0, 1), (5 * SECOND, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Fairness::new(&history.leaping());
            history.lent(&mut checker, 1, 0, 1, 1);
            history.nodes = 2;
            history.lent(&mut checker, 2, ahead, 2, 1);
            let counted = checker.violations().iter().filter(|found| found.what.contains("nodes counted"));
            assert_eq!(counted.count(), seen, "{ahead}: {:?}", checker.violations());
        }
    }

    #[test]
    fn nodes_that_nobody_saw_are_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Fairness::new(&history.setting());
        history.executed(&mut checker, 0, 1);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.nodes = 2;
        history.executed(&mut checker, 1, 2);
        assert_eq!(checker.violations()[0].invariant, "fairness");
    }

    /// A node that the present owner has counted asks the former one once more, whose clock is five seconds behind.
    #[test]
    fn a_former_owner_takes_no_node_from_the_census() {
        let mut history = History::new("10/1s fixed");
        let mut checker = Fairness::new(&history.setting());
        history.opened = 6 * SECOND;
        history.lent(&mut checker, 6 * SECOND, 0, 1, 1);
        history.stale = true;
        history.executed(&mut checker, SECOND, 2);
        (history.stale, history.node, history.nodes) = (false, 1, 2);
        history.executed(&mut checker, 6 * SECOND + 1, 3);
        assert!(checker.violations().is_empty(), "{:?}", checker.violations());
        history.nodes = 3;
        history.executed(&mut checker, 6 * SECOND + 2, 4);
        assert_eq!(checker.violations().len(), 1);
    }

    /// The clock is set back by five seconds in the second second. Judging begins again when it has caught up, and two
    /// periods and two seconds have passed.
    #[test]
    fn the_census_of_a_key_that_another_clock_counts_is_judged_again() {
        for (at, seen) in [(10, 0), (11, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Fairness::new(&history.leaping());
            history.lent(&mut checker, 1, 5 * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            history.nodes = 3;
            history.executed(&mut checker, at * SECOND, 3);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }
}
