//! **liveness**: two seconds after everything has healed no check is decided without the store any more, and from then
//! on the fleet admits three quarters of what one limiter that sees all checks would admit if all limits were spent
//! when it begins. Runs whose store needs more than half of the timeout for an answer when all is well are not judged.
//! **livelock**: time goes on, whatever the nodes do.

use std::collections::BTreeMap;

use rationd::core::call::Op;
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;

use super::ideal::Ideal;
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Judged, Kind, Moment, Observer, Request, Seen, Setting, Together, Topic, Violation};
use crate::plan::Plan;

static SLOW_STORE: Exemption = Exemption::new(
    "a store that needs more than half of the timeout when all is well",
    "Leaving it aside is right then.",
);
static ROOM_LEFT: Exemption = Exemption::new(
    "the use of a quarter, two costs and a token a node",
    "Each node may hold some when the window ends: bursts of one node alone cost that much.",
);
static SHARES_END: Exemption = Exemption::new(
    "answers within two of the longest periods",
    "A share goes on until the window is over in which it was used.",
);
static LATER: Exemption = Exemption::new(
    "answers of a node about a key within a second and two of the longest periods after the first answer of the store about it since it was lost there",
    "For a second from then on other nodes may still have to pay for what they admitted. Where a key is seldom asked for, that begins later than all has healed.",
);
static BURSTS: Exemption = Exemption::new(
    "the use of a fixed window that several nodes were asked for, and in its second half too little",
    "A node that was told that nothing is left asks again after a quarter of the window and a jitter: of what another one has handed back meanwhile it is lent some if it is asked for it still.",
);
static FEW: Exemption = Exemption::new(
    "the use of buckets and sliding windows that hold no more than two costs and a token for each node of the fleet",
    "All that such a limit holds may lie with nodes that nobody asks just now, until they hand it back or their accounts close.",
);
static STALLS: Exemption = Exemption::new(
    "where scripts stall, a node for two seconds after a call of it was not answered in time",
    "Two stalls in a row last longer than a short timeout.",
);
static CRAMPED: Exemption = Exemption::new(
    "the use in windows in which somebody was turned away where a table has no room for all keys",
    "One that holds slots of a concurrent limit makes no room for others.",
);

static LAST_OF_SEVERAL: Exemption = Exemption::new(
    "the first check of a bucket that is one of several keys, where the time of its request was over before it had waited for half of the timeout",
    "The keys of a request wait one after another, until one deadline: the store had less time than it needs, and the check passes on credit.",
);

static ASKED_PEER: Exemption = Exemption::new(
    "the first check of a bucket for which a peer was asked in vain, where a replica that has to confirm grants stands still, and the store was asked later than a trip and half of the timeout before the end of the check",
    "A peer is waited for during half of the timeout, and then the store waits for its replica for as long: its answer comes too late, and the check passes on credit.",
);

static HALF: Exemption = Exemption::new(
    "of several limits the use of one half instead of a quarter",
    "Each of them lets lapse what nodes hold when its window ends.",
);

static LEFT: Exemption = Exemption::new(
    "of buckets that several nodes were asked of, also in the second before, once what they hold",
    "A node that clients have left keeps what it was lent until it knows that, and a small part of a bucket until its account closes.",
);

static ASIDE: Exemption = Exemption::new(
    "the use of keys of which tokens are set aside for nodes that may lose the store, where messages are lost, anything goes wrong, or a table has no room for all keys; where all is well, as far as they are set aside for nodes that are not asked in each quarter of a period",
    "What is set aside for a node that was killed, has not heard of it, or has dropped the key for want of room, nobody is lent until it lapses, five to ten minutes later.",
);

static MOVED: Exemption = Exemption::new(
    "the use of keys of which tokens are set aside for nodes that may lose the store, in windows in which a node is not asked, or not for a quarter of it, that was before",
    "Nobody else is lent its part of the window until it gives that up: where clients go from node to node in short windows, that can be most of one.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "liveness.rs",
    invariants: &["liveness", "livelock"],
    proves: "Two seconds after everything has healed no answer comes without the store, and of what one limiter that sees all checks would admit three quarters are admitted; time goes on.",
    judges: "All algorithms, several limits.",
    exemptions: &[
        &SLOW_STORE,
        &ROOM_LEFT,
        &SHARES_END,
        &LATER,
        &BURSTS,
        &FEW,
        &STALLS,
        &CRAMPED,
        &LAST_OF_SEVERAL,
        &ASKED_PEER,
        &HALF,
        &LEFT,
        &ASIDE,
        &MOVED,
    ],
    mutant: Some("stays-away"),
};

/// How long after the last fault has healed judging begins.
const SETTLED: u64 = 2_000_000;

/// How long a node with the store back stays within its share.
const GRACE: u64 = 1_000_000;

/// One window of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    number: u64,
    asked: u64,
    admitted: u64,
    most: u64,
    /// Whether it was watched from its beginning.
    whole: bool,
    /// The nodes that were asked in it, as bits, and in the two before.
    nodes: u64,
    before: [u64; 2],
    /// Tokens asked for in its second half, the node that was asked first, and whether others were, too.
    late: u64,
    node: u32,
    several: bool,
    /// Whether a node that was asked in it was then not asked for a quarter of it.
    is_left: bool,
}

/// See `MOVED`.
const QUARTER: u64 = 4;

/// Rules of any shape are watched for at least this many of the longest periods, and longer until something has to be
/// admitted.
const PERIODS: u64 = 3;

/// See `LEFT`.
const LEAVES: u64 = 1_000_000;

/// How far clocks drift at most while a request waits.
const DRIFT: u64 = 1_000;

/// The last stretch ends this long before the run, if it was watched for at least half of its time.
const LAST: u64 = 300_000;

/// What was asked for and admitted of a key in a stretch of time.
#[derive(Clone, Debug)]
struct Stretch {
    begun: u64,
    /// A limiter that sees all checks, and how much it has admitted.
    ideal: Ideal,
    due: u64,
    admitted: u64,
    most: u64,
    /// The nodes that were asked; the number of the present quarter of the longest period with the nodes asked in it;
    /// the fewest that were asked in an earlier quarter.
    nodes: Set<u32>,
    now: (u64, Set<u32>),
    fewest: u64,
    /// Whether another node was asked shortly before it began.
    is_left: bool,
    /// Whether a check was denied because a table was full.
    turned: bool,
}

impl Stretch {
    fn new(at: u64, limits: &[Limit], store: u64, is_left: bool) -> Self {
        let ideal = Ideal::spent(limits, store);
        Self {
            begun: at,
            ideal,
            due: 0,
            admitted: 0,
            most: 0,
            nodes: Set::default(),
            now: (0, Set::default()),
            fewest: u64::MAX,
            is_left,
            turned: false,
        }
    }

    /// A node is asked in this quarter.
    fn ask(&mut self, node: u32, quarter: u64) {
        if self.now.0 < quarter {
            let asked = self.now.1.len() as u64;
            self.fewest = self.fewest.min(if quarter == self.now.0 + 1 { asked } else { 0 });
            self.now = (quarter, Set::default());
        }
        self.nodes.insert(node);
        self.now.1.insert(node);
    }

    /// How much has to be admitted by now. If tokens are set aside for nodes, only the part of those counts that are
    /// asked all the time.
    fn wanted(&self, aside: Option<u64>, is_half: bool) -> u64 {
        let asked = self.nodes.len() as u64;
        let due = match aside.map(|known| known.max(asked)) {
            Some(known) if ASIDE.when(self.fewest < known) => self.due * self.fewest / known,
            _ => self.due,
        };
        let due = if HALF.when(is_half) { due / 2 } else { due * 3 / 4 };
        let left = LEFT.forgives(if asked > 1 || self.is_left { self.ideal.deepest() } else { 0 });
        due.saturating_sub(ROOM_LEFT.forgives(self.room()) + left)
    }

    /// The tokens that nodes may hold.
    fn room(&self) -> u64 {
        self.most * 2 + self.nodes.len() as u64
    }
}

/// The checker.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Whether messages are lost or faults happen.
    loses: bool,
    /// From when on leases must flow, and when demand ends; there is nothing in between in a plan without calm.
    from: u64,
    until: u64,
    /// Whether the store is so slow, even when all is well, that nodes rightly do without it.
    slow: bool,
    /// Whether scripts stall.
    stalls: bool,
    /// Whether there are more keys than a table holds.
    cramped: bool,
    /// Calls that were sent; and, by node whose call got no answer, until when that is excused.
    sent: Set<(u32, u64)>,
    unheard: BTreeMap<u32, u64>,
    /// By node and key whose call got no answer: when the next call was answered, or `None` if none was yet.
    found_again: Map<(u32, u32), Option<u64>>,
    windows: BTreeMap<u32, Window>,
    /// By policy: how much later clients that are denied at once ask again, once. And by the time at which one will: its node, key and cost,
    /// and whether the limiter that sees all checks has admitted the first of the two.
    returns: Map<u32, Vec<u64>>,
    again: BTreeMap<u64, Vec<(Repeat, bool)>>,
    /// By key with tokens set aside: when each node was last asked for it, by its owner's clock.
    asked: Map<u32, BTreeMap<u32, u64>>,
    stretches: BTreeMap<u32, Stretch>,
    /// By key: the node that was last asked, and when. `left`: when another node was last asked.
    last: BTreeMap<u32, (u32, u64)>,
    left: BTreeMap<u32, u64>,
    /// By key: the largest number of nodes that the store has counted.
    known: Map<u32, u64>,
    nodes: u64,
    timeout: u64,
    /// When each request of several keys that has not ended began, and to which of them a check belongs.
    groups: Map<u64, u64>,
    of_group: Map<u64, u64>,
    /// For how long a grant is under way while a replica that has to confirm it stands still; `None` where none does.
    confirms_in: Option<u64>,
    /// By node and key: when a peer was last asked, and when the store was asked first after that.
    peers: Map<(u32, u32), (u64, Option<u64>)>,
    judged: Judged,
    found: Found,
}

/// The node, the key and the cost of a check.
type Repeat = (u32, u32, u64);

fn of(request: &Request) -> Repeat {
    (request.node, request.key, request.cost)
}

/// By policy: how long after a denial clients with patience ask again.
fn returns(plan: &Plan) -> Map<u32, Vec<u64>> {
    let mut returns: Map<u32, Vec<u64>> = Map::default();
    for demand in plan.demand.iter().filter(|demand| demand.patience.0 > 0) {
        let (later, of_policy) = (1 + demand.patience.0 / 2, returns.entry(demand.policy).or_default());
        if !of_policy.contains(&later) {
            of_policy.push(later);
        }
    }
    returns
}

impl Liveness {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        // Replicas and failovers recover only a while after the faults have ended.
        let from = plan.span.0 + plan.recovery().0 + SETTLED;
        let trip = 2 * (plan.network.latency.0 + 3 * plan.network.jitter.0) + plan.redis.script_cost.0;
        let trip = trip + plan.zones.iter().map(|zone| zone.store.0).max().unwrap_or(0);
        let confirms = plan.daemon.confirm && plan.redis.replica;
        let slow = trip + if confirms { plan.redis.lag.0 } else { 0 } > plan.daemon.timeout.0 / 2;
        let stands_still = confirms && plan.daemon.owners && plan.redis.lag_stalls.0 > 0;
        Self {
            loses: setting.plan.network.loss > 0 || !setting.plan.faults.is_empty(),
            from,
            until: plan.span.0 + plan.calm.0,
            slow,
            stalls: plan.redis.stalls > 0,
            cramped: plan.keys() > u64::from(plan.daemon.max_keys),
            sent: Set::default(),
            unheard: BTreeMap::new(),
            found_again: Map::default(),
            windows: BTreeMap::new(),
            returns: returns(plan),
            again: BTreeMap::new(),
            asked: Map::default(),
            stretches: BTreeMap::new(),
            last: BTreeMap::new(),
            left: BTreeMap::new(),
            known: Map::default(),
            nodes: 1,
            timeout: plan.daemon.timeout.0,
            groups: Map::default(),
            of_group: Map::default(),
            confirms_in: stands_still.then_some(trip + plan.daemon.timeout.0 / 2),
            peers: Map::default(),
            judged: Judged::default(),
            found: Found::default(),
        }
    }

    fn judge(&mut self, moment: Moment, key: u32, window: Window, count: u64) {
        // Each node may hold some tokens at the window's end without knowing yet that others want them. Bursts at one
        // node cost that much; scenarios show how much steady demand costs.
        let wanted = (count * 3 / 4).saturating_sub(ROOM_LEFT.forgives(window.most * 2 + self.nodes));
        let is_burst = BURSTS.when(window.several && window.late * 2 < count + count / 5);
        if !window.whole || is_burst || wanted == 0 || window.asked < count + count / 5 {
            return;
        }
        self.judged.uses += 1;
        if window.admitted < wanted {
            self.found
                .add("liveness", moment, || format!("key {key}: {window:?} of {count}: wanted {wanted} at least"));
        }
    }
}

impl Liveness {
    /// Takes note of requests of several keys.
    fn together(&mut self, at: u64, group: u64, what: &Together<'_>) {
        match what {
            Together::Begins { .. } => _ = self.groups.insert(group, at),
            Together::Asks { request } => _ = self.of_group.insert(request.id, group),
            Together::GoesBack { .. } => {}
            Together::Ends { .. } => {
                self.groups.remove(&group);
                self.of_group.retain(|_, of| *of != group);
            }
        }
    }

    /// Whether a check of a bucket had less than half of the timeout, because others of the same request had waited before it.
    fn had_no_time(&self, at: u64, request: &Request, rule: &Rule) -> bool {
        let begun = self.of_group.get(&request.id).and_then(|group| self.groups.get(group));
        let is_over = begun.is_some_and(|begun| at + DRIFT >= begun + self.timeout);
        let is_of_buckets = rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        is_over && is_of_buckets && at - request.asked < self.timeout / 2
    }

    /// Whether the store was asked about a bucket so late, because a peer had been asked before, that its answer came too late where it waited
    /// for a replica.
    fn was_asked_late(&self, at: u64, request: &Request, rule: &Rule) -> bool {
        let is_of_buckets = rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        let is_over = at + DRIFT >= request.asked + self.timeout;
        let asked = self.peers.get(&(request.node, request.key)).filter(|(peer, _)| *peer >= request.asked);
        let (Some(confirms_in), Some((_, store))) = (self.confirms_in, asked) else { return false };
        is_of_buckets
            && is_over
            && store.is_none_or(|store| store + confirms_in + DRIFT >= request.asked + self.timeout)
    }

    /// Whether a client asks again with this check, which was denied and asked the same a moment ago. The one limiter that sees all checks
    /// would not see both of them where it admits the first: then `Some(true)`.
    fn repeats(&mut self, request: &Request) -> Option<bool> {
        let due = self.again.get_mut(&request.asked)?;
        let place = due.iter().position(|(repeat, _)| *repeat == of(request))?;
        Some(due.swap_remove(place).1)
    }

    /// Notes that a client which was denied at once will ask again.
    fn expect(&mut self, at: u64, request: &Request, by_ideal: bool) {
        // Who comes again may wait for the store.
        self.again = self.again.split_off(&at.saturating_sub(2 * self.timeout));
        for later in self.returns.get(&request.policy).into_iter().flatten() {
            self.again.entry(at + later).or_default().push((of(request), by_ideal));
        }
    }

    /// Counts a check under a rule of any shape, for the comparison with one limiter that sees all checks. Returns whether that has admitted it.
    /// `is_seen`: it has not admitted the same check a moment ago.
    fn watch(
        &mut self,
        moment: Moment,
        request: &Request,
        rule: &Rule,
        decision: &Decision,
        (store, is_seen): (u64, bool),
    ) -> bool {
        let span = PERIODS * rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(1);
        let (node, asked) = self.last.insert(request.key, (request.node, moment.at)).unwrap_or((request.node, 0));
        if node != request.node {
            self.left.insert(request.key, asked);
        }
        let left = self.left.get(&request.key).is_some_and(|left| moment.at <= left + LEAVES);
        let fresh = || Stretch::new(moment.at, &rule.limits, store, left);
        let mut stretch = self.stretches.remove(&request.key).filter(|stretch| stretch.ideal.is_of(&rule.limits));
        let aside = rule.is_entitled().then(|| self.known.get(&request.key).copied().unwrap_or(0));
        let is_over =
            |begun: u64| moment.at >= begun + span || moment.at + LAST >= self.until && moment.at >= begun + span / 2;
        let wanted = |stretch: &Stretch| stretch.wanted(aside, rule.limits.len() > 1);
        if let Some(over) = stretch.take_if(|over| is_over(over.begun) && (wanted(over) > 0 || over.turned)) {
            self.judge_stretch(moment, request.key, rule, &over, wanted(&over));
        }
        let mut stretch = stretch.unwrap_or_else(fresh);
        stretch.most = stretch.most.max(request.cost);
        stretch.ask(request.node, (moment.at - stretch.begun) * PERIODS * QUARTER / span);
        stretch.turned |= CRAMPED.when(self.cramped && decision.reason == Reason::Overload);
        let is_due = is_seen && stretch.ideal.admit(store, request.cost);
        stretch.due += if is_due { request.cost } else { 0 };
        stretch.admitted += if decision.verdict == Verdict::Allow { request.cost } else { 0 };
        self.stretches.insert(request.key, stretch);
        is_due
    }

    fn judge_stretch(&mut self, moment: Moment, key: u32, rule: &Rule, stretch: &Stretch, wanted: u64) {
        // A node that was asked earlier may also hold all of the limit.
        let few = stretch.most * 2 + self.nodes;
        let is_of_few = |limit: &Limit| limit.trickles() && limit.capacity() <= few;
        if stretch.turned || FEW.when(rule.limits.iter().any(is_of_few)) {
            return;
        }
        self.judged.uses += 1;
        if stretch.admitted < wanted {
            self.found.add("liveness", moment, || {
                format!("key {key}: {stretch:?} of {:?}: wanted {wanted} at least", rule.limits)
            });
        }
    }
}

impl Observer for Liveness {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Permits
    }

    fn ignores(&self, topic: Topic) -> bool {
        !self.stalls && self.confirms_in.is_none() && topic == Topic::Called || topic == Topic::Executed
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::Joined { node, .. } = seen {
            self.nodes = self.nodes.max(u64::from(*node) + 1);
        }
        if matches!(seen, Seen::Stuck) {
            self.found.add("livelock", moment, || "a million events within a millisecond".into());
        }
        match seen {
            Seen::Called { node, call, sent: true, .. } if self.stalls => _ = self.sent.insert((*node, call.id)),
            Seen::Settled { node, call, grant, .. } if self.sent.remove(&(*node, call.id)) && grant.is_none() => {
                self.unheard.insert(*node, moment.at + SETTLED);
            }
            _ => {}
        }
        if let Seen::Settled { node, key, grant, .. } = seen {
            if let Some(grant) = grant {
                let known = self.known.entry(*key).or_default();
                *known = u64::from(grant.nodes).max(*known);
            }
            match grant {
                None => _ = self.found_again.insert((*node, *key), None),
                Some(_) => {
                    if let Some(found) = self.found_again.get_mut(&(*node, *key)) {
                        found.get_or_insert(moment.at);
                    }
                }
            }
        }
        if let Seen::Together { group, what, .. } = seen {
            self.together(moment.at, *group, what);
        }
        match seen {
            Seen::PeerAsked { node, key, .. } if self.confirms_in.is_some() => {
                self.peers.insert((*node, *key), (moment.at, None));
            }
            Seen::Called { node, key, call, sent: true } if matches!(call.op, Op::Acquire(_)) => {
                if let Some((_, store)) = self.peers.get_mut(&(*node, *key)) {
                    store.get_or_insert(moment.at);
                }
            }
            _ => {}
        }
        let Seen::Answered { request, rule, decision, parked, store } = seen else { return };
        if moment.at < self.from || moment.at >= self.until || SLOW_STORE.when(self.slow) || request.kind != Kind::Check
        {
            return;
        }
        // A share goes on until the window in which it was used is over.
        let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
        let back = !SHARES_END.when(moment.at < self.from + 2 * longest);
        let alone = decision.source == Source::Share || matches!(decision.reason, Reason::Share | Reason::Store);
        let is_unheard = self.unheard.get(&request.node).is_some_and(|until| moment.at < *until);
        let found = self.found_again.get(&(request.node, request.key)).copied().flatten();
        let waits = found.is_some_and(|found| moment.at < found + GRACE + 2 * longest);
        let is_judged = back && !STALLS.when(is_unheard) && !LATER.when(waits);
        self.judged.answers += u64::from(is_judged);
        let is_late = || {
            LAST_OF_SEVERAL.when(self.had_no_time(moment.at, request, rule))
                || ASKED_PEER.when(decision.verdict == Verdict::Allow && self.was_asked_late(moment.at, request, rule))
        };
        if is_judged && alone && !(decision.source == Source::Share && is_late()) {
            self.found.add("liveness", moment, || format!("{request:?}: still without the store: {decision:?}"));
        }
        // permits.rs judges whether concurrent limits are used.
        if rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Concurrent) {
            return;
        }
        let is_aside = ASIDE.when(rule.is_entitled() && (self.loses || self.cramped));
        let repeats = self.repeats(request);
        let is_seen = repeats != Some(true);
        let by_ideal = !is_aside && self.watch(moment, request, rule, decision, (store.0, is_seen));
        if decision.verdict == Verdict::Deny && !parked && repeats.is_none() {
            self.expect(moment.at, request, by_ideal);
        }
        let Some(limit) = aligned(rule) else { return };
        let (number, passed) = (store.0 / limit.period.0, store.0 % limit.period.0);
        let fresh = Window { number, node: request.node, ..Window::default() };
        let window = self.windows.entry(request.key).or_insert(fresh);
        let mut over = (window.number != number).then_some(*window);
        if over.is_some() {
            let before = over.map_or([0; 2], |over| [over.nodes, over.before[0]]);
            *window = Window { whole: !is_aside, before, ..fresh };
        }
        if rule.is_entitled() {
            let asked = self.asked.entry(request.key).or_default();
            let quarter = limit.period.0 / QUARTER;
            let is_left = |last: u64, by: u64| last / limit.period.0 == by / limit.period.0 && last + quarter < by;
            let last = asked.insert(request.node, store.0);
            window.is_left |= last.is_some_and(|last| is_left(last, store.0));
            if let Some(over) = &mut over {
                let end = (over.number + 1) * limit.period.0 - 1;
                over.is_left |= last.into_iter().chain(asked.values().copied()).any(|last| is_left(last, end));
            }
        }
        window.nodes |= 1 << (request.node % 64);
        // A client that asks for the same again wants it once.
        let wants = if repeats.is_some() { 0 } else { request.cost };
        window.asked += wants;
        window.late += if passed * 2 >= limit.period.0 { wants } else { 0 };
        window.several |= window.node != request.node;
        window.most = window.most.max(request.cost);
        window.whole &= !CRAMPED.when(self.cramped && decision.reason == Reason::Overload);
        window.admitted += if decision.verdict == Verdict::Allow { request.cost } else { 0 };
        let moved = |over: &Window| over.is_left || (over.before[0] | over.before[1]) & !over.nodes != 0;
        if let Some(over) =
            over.filter(|over| over.number + 1 == number && !MOVED.when(rule.is_entitled() && moved(over)))
        {
            self.judge(moment, request.key, over, limit.count);
        }
    }
}

impl Checker for Liveness {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }

    fn judged(&self) -> Judged {
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND, peer_ask};
    use crate::plan::Demand;

    fn checker(history: &History) -> Liveness {
        let mut setting = history.setting();
        setting.plan.calm = crate::span::Span::secs(20);
        Liveness::new(&setting)
    }

    #[test]
    fn an_answer_on_a_share_long_after_is_seen() {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history);
        history.check(&mut checker, 5 * SECOND, 1, Source::Share, true);
        assert!(checker.violations().is_empty());
        history.check(&mut checker, 9 * SECOND, 1, Source::Share, true);
        assert_eq!(checker.violations()[0].invariant, "liveness");
    }

    #[test]
    fn a_share_goes_on_for_a_second_after_the_first_answer_about_its_key() {
        for (later, seen) in [(3 * SECOND - 1, 0), (3 * SECOND, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            history.unanswered_in(&mut checker, SECOND, [0, 1]);
            // The second of grace begins with the first answer, however many follow.
            history.settled(&mut checker, 10 * SECOND, 2, 1);
            history.settled(&mut checker, 11 * SECOND, 3, 1);
            history.check(&mut checker, 10 * SECOND + later, 1, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{later}: {:?}", checker.violations());
        }
    }

    /// A request of several keys that waits for 50 ms began some time ago, and a check of it was asked some time ago.
    #[test]
    fn the_last_of_several_keys_may_have_had_no_time() {
        for (limit, began, asked, seen) in [
            ("10/1s burst 10", 50_000, 24_999, 0),
            ("10/1s burst 10", 50_000, 25_000, 1),
            ("10/1s burst 10", 48_999, 24_999, 1),
            ("10/1s fixed", 50_000, 24_999, 1),
        ] {
            let mut history = History::new(limit);
            let mut checker = checker(&history);
            checker.timeout = 50_000;
            let at = 9 * SECOND;
            let see = |history: &mut History, checker: &mut Liveness, at, what| {
                history.see(checker, at, &Seen::Together { group: 1, node: 0, what });
            };
            see(&mut history, &mut checker, at - began, Together::Begins { keys: 2 });
            let request = history.ask(&mut checker, at - asked);
            see(&mut history, &mut checker, at - asked, Together::Asks { request: &request });
            history.answer(&mut checker, at, &request, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{limit} {began} {asked}: {:?}", checker.violations());
        }
    }

    /// A check asks a peer for 25 ms of its 50, and then the store, which waits for its replica for 25 ms.
    #[test]
    fn where_a_peer_was_asked_first_a_replica_that_stands_still_may_be_too_slow() {
        for (limit, stalls, called, answered, seen) in [
            ("10/1s burst 10", 100, Some(25_000), 50_000, 0),
            ("10/1s burst 10", 100, None, 50_000, 0),
            ("10/1s burst 10", 0, Some(25_000), 50_000, 1),
            ("10/1s burst 10", 100, Some(15_000), 50_000, 1),
            ("10/1s burst 10", 100, Some(25_000), 48_000, 1),
            ("10/1s fixed", 100, Some(25_000), 50_000, 1),
        ] {
            let mut history = History::new(limit);
            let mut setting = history.setting();
            setting.plan.calm = crate::span::Span::secs(20);
            (setting.plan.daemon.owners, setting.plan.daemon.confirm) = (true, true);
            (setting.plan.redis.replica, setting.plan.redis.lag_stalls) = (true, crate::span::Span::millis(stalls));
            let mut checker = Liveness::new(&setting);
            assert!(!checker.slow && checker.timeout == 50_000);
            let at = 15 * SECOND;
            let request = history.ask(&mut checker, at);
            let (ask, peer) = (peer_ask(1, 1, 1), Some((1, 0)));
            let asked = Seen::PeerAsked { node: 0, incarnation: 0, key: 0, ask: &ask, peer };
            history.see(&mut checker, at, &asked);
            if let Some(called) = called {
                history.called(&mut checker, at + called, 1, 1);
            }
            history.answer(&mut checker, at + answered, &request, Source::Share, true);
            let seen_by = checker.violations().len();
            assert_eq!(seen_by, seen, "{limit} {stalls} {called:?} {answered}: {:?}", checker.violations());
        }
    }

    /// Who asked no peer has the store's answer in time, also where the peer was asked for an earlier check.
    #[test]
    fn a_peer_that_an_earlier_check_asked_excuses_nothing() {
        let mut history = History::new("10/1s burst 10");
        let mut setting = history.setting();
        setting.plan.calm = crate::span::Span::secs(20);
        (setting.plan.daemon.owners, setting.plan.daemon.confirm) = (true, true);
        (setting.plan.redis.replica, setting.plan.redis.lag_stalls) = (true, crate::span::Span::millis(100));
        let mut checker = Liveness::new(&setting);
        let (at, ask) = (15 * SECOND, peer_ask(1, 1, 1));
        let asked = Seen::PeerAsked { node: 0, incarnation: 0, key: 0, ask: &ask, peer: Some((1, 0)) };
        history.see(&mut checker, at - 1, &asked);
        let request = history.ask(&mut checker, at);
        history.called(&mut checker, at + 25_000, 1, 1);
        history.answer(&mut checker, at + 50_000, &request, Source::Share, true);
        assert_eq!(checker.violations().len(), 1);
    }

    /// One check every twentieth of a second, of which `admitted` are admitted each second.
    fn asked(limit: &str, admitted: u64) -> Liveness {
        let mut history = History::new(limit);
        let mut checker = checker(&history);
        for step in 0..100 {
            let at = 10 * SECOND + step * SECOND / 20;
            history.check(&mut checker, at, 1, Source::Lease, step % 20 < admitted);
        }
        checker
    }

    /// Of 100 tokens a second clients want 95, and get 70. Those that are denied ask again 2.5 ms later, so that 120 checks come: more than the
    /// limit has. The same where all of them are checks of different clients.
    #[test]
    fn who_asks_again_wants_no_more_than_before() {
        for (patience, is_seen) in [(5, false), (0, true)] {
            let mut history = History::new("100/1s fixed");
            let mut setting = history.setting();
            setting.plan.calm = crate::span::Span::secs(20);
            setting.plan.demand = vec![Demand { patience: crate::span::Span::millis(patience), ..Demand::default() }];
            let mut checker = Liveness::new(&setting);
            for step in 0..5 * 95 {
                let (at, is_admitted) = (10 * SECOND + step / 95 * SECOND + step % 95 * 10_000, step % 95 < 70);
                history.check(&mut checker, at, 1, Source::Lease, is_admitted);
                if !is_admitted {
                    history.check(&mut checker, at + 2_501, 1, Source::Lease, false);
                }
            }
            assert_eq!(!checker.violations().is_empty(), is_seen, "{patience}: {:?}", checker.violations());
        }
    }

    #[test]
    fn limits_of_all_shapes_that_are_not_used_are_seen() {
        for limit in ["10/1s fixed", "10/1s sliding", "10/1s fixed from-first", "10/1s burst 20", "10/1s burst 4"] {
            for (used, seen) in [(8, false), (2, true)] {
                let checker = asked(limit, used);
                assert_eq!(!checker.violations().is_empty(), seen, "{limit}: {:?}", checker.violations());
                assert!(checker.judged().answers == 100 && checker.judged().uses > 0, "{limit}");
            }
        }
    }

    /// Under a limit that is never spent, three quarters of what is asked for have to be admitted.
    #[test]
    fn what_is_asked_for_below_a_limit_has_to_be_admitted() {
        for limit in ["100/1s fixed", "100/1s sliding", "100/1s fixed from-first", "100/1s burst 20"] {
            for (used, seen) in [(20, false), (15, false), (7, true)] {
                let checker = asked(limit, used);
                assert_eq!(!checker.violations().is_empty(), seen, "{limit} {used}: {:?}", checker.violations());
            }
        }
    }

    /// One token a window is no more than a node may hold: three windows prove nothing, and more do.
    #[test]
    fn what_little_comes_of_is_watched_until_something_has_to_be_admitted() {
        for (limit, uses) in
            [("1/200ms fixed", true), ("1/1s fixed", false), ("3/200ms burst 3", false), ("3/200ms burst 4", true)]
        {
            let checker = asked(limit, 20);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            assert_eq!(checker.judged().uses > 0, uses, "{limit}");
        }
    }

    #[test]
    fn of_several_limits_half_has_to_be_admitted() {
        for (used, seen) in [(7, false), (3, true)] {
            let mut history = History::of_several(&["10/1s fixed", "20/2s burst 20"]);
            let mut checker = checker(&history);
            for step in 0..140 {
                history.check(&mut checker, 10 * SECOND + step * SECOND / 20, 1, Source::Lease, step % 20 < used);
            }
            assert_eq!(!checker.violations().is_empty(), seen, "{used}: {:?}", checker.violations());
        }
    }

    /// Two of the four nodes that the store knows are asked, and the parts of the others are lent to none.
    #[test]
    fn what_is_set_aside_for_nodes_that_are_not_asked_is_not_wanted() {
        for (known, admitted, seen) in [(4, 4, false), (4, 0, true), (2, 2, true), (2, 8, false)] {
            let mut history = History::entitled("10/1s sliding");
            let mut checker = checker(&history);
            checker.known.insert(0, known);
            checker.loses = false;
            for step in 0..160 {
                let at = 10 * SECOND + step * SECOND / 20;
                let request = Request { node: step as u32 % 2, ..history.ask(&mut checker, at) };
                history.answer(&mut checker, at, &request, Source::Lease, step % 20 < admitted);
            }
            assert_eq!(!checker.violations().is_empty(), seen, "{known} {admitted}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_set_aside_for_a_node_that_is_not_asked_any_more_nobody_uses() {
        let (share, entitled) = (History::new as fn(&str) -> History, History::entitled as fn(&str) -> History);
        for (history, nodes, seen) in [(entitled, 2, false), (entitled, 1, true), (share, 2, true)] {
            let mut history = history("10/1s fixed");
            let mut checker = checker(&history);
            for second in 10..15 {
                for check in 0..20 {
                    let at = second * SECOND + check * SECOND / 20;
                    let request = Request { node: second as u32 % nodes, ..history.ask(&mut checker, at) };
                    history.answer(&mut checker, at, &request, Source::Lease, check < 3);
                }
            }
            assert_eq!(!checker.violations().is_empty(), seen, "{nodes}: {:?}", checker.violations());
        }
    }

    /// Two nodes are asked in turns, or one after the other in each window: the tokens set aside for the first are not
    /// lent to the other until the first gives them up.
    #[test]
    fn what_is_set_aside_for_a_node_that_is_left_within_a_window_nobody_uses() {
        let (share, entitled) = (History::new as fn(&str) -> History, History::entitled as fn(&str) -> History);
        for (history, stays, seen) in [(entitled, 1, true), (entitled, 10, false), (share, 10, true)] {
            let mut history = history("10/1s fixed");
            let mut checker = checker(&history);
            for second in 10..15 {
                for check in 0..20 {
                    let at = second * SECOND + check * SECOND / 20;
                    let node = (check / stays % 2) as u32;
                    let request = Request { node, ..history.ask(&mut checker, at) };
                    history.answer(&mut checker, at, &request, Source::Lease, check < 3);
                }
            }
            assert_eq!(!checker.violations().is_empty(), seen, "{stays}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_limit_that_is_not_used_is_seen() {
        // One node, two that are asked all the time, and two that are asked at the beginning of each window, whose
        // windows are not judged one by one.
        for (nodes, apart, windows) in [(1, 1, 3), (2, SECOND / 20, 3), (2, 1, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history);
            for second in 10..15 {
                for check in 0..20 {
                    let at = second * SECOND + check * apart;
                    let request = Request { node: check as u32 % nodes, ..history.ask(&mut checker, at) };
                    history.answer(&mut checker, at, &request, Source::Lease, check < 3);
                }
            }
            let [stretches, of_windows] = [true, false].map(|is| {
                checker.violations().iter().filter(|violation| violation.what.contains("Stretch") == is).count()
            });
            assert_eq!((stretches, of_windows), (1, windows), "{nodes}, {apart}: {:?}", checker.violations());
        }
    }
}
