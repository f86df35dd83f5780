//! **bound** of leases and shares together: no more than the limit is admitted, in any window (fixed), over any
//! interval (buckets) or by the estimate (sliding), on tokens that the store lent and on shares together. If a fault
//! cuts the store off from some of the nodes and not from all, up to 95 % of the limit more is allowed, and nothing
//! beyond.

use std::collections::BTreeMap;
use std::sync::Arc;

use rationd::core::call::{Acquire, Call, Op};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::entitled::window_end;
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use super::bound::Bound;
use super::notes::{Answers, Asides, Clocks, Life, Lives, Trips};
use super::sheet::{Exemption, Sheet};
use super::{Found, SAME};
use crate::maps::{Map, Numbered};
use crate::observe::{Checker, Holding, Kind, Moment, Observer, Ran, Request, Seen, Setting, Topic, Violation};
use crate::plan::{Brain, Fault, Plan, What};

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static PARTIAL: Exemption = Exemption::new(
    "two periods of a key of which the store lends to one node while another goes by its share, as a fault takes the store from some of the nodes",
    "Those go on within their shares while others are lent: up to 95 % of the limit more in a window. Where messages are lost at random, nodes are far from the store, or a replica that has to confirm grants stands still for longer than a call may take, so does a node of which a call about the key was not answered, for two periods and two seconds; and of a node that is not run for a while, keys that it holds or has gone by its share of.",
);
static UNAWARE: Exemption = Exemption::new(
    "two periods of a key of which a node is lent that has not gone without the store, or not within 1.25 s, or has not gone by its share for so long, while others go by theirs",
    "It does not know that they owe, or has forgotten: who was asked for nothing so long asks the store as if that had never been away, and who had only a call unanswered since then, and sent it again, goes on to lease. Up to 95 % of the limit more, twice where two windows are at hand.",
);
static APART: Exemption = Exemption::new(
    "two periods of a key of which the store lends after the second that a node waits with the store back, while that of another that goes by its share is not over, or has not begun",
    "Each begins its second when it hears of the store, and the one does not know that the other has yet to pay (kept in simulations/bugs/graces-that-end-apart): up to 95 % of the limit more, twice where two windows are at hand.",
);
static GONE: Exemption = Exemption::new(
    "two periods of a key of which the store lends after a node has left that may have gone by its share",
    "What it owes nobody pays: up to 95 % of the limit more, twice where two windows are at hand.",
);
static UNINFORMED: Exemption = Exemption::new(
    "shares of a node that the store has told nothing of the key, or, where masters' clocks differ, nothing since another clock counts it; and for two periods after that has caught up with the one before",
    "Its windows lie across those of the store: twice the share, on top of leases.",
);
static ALONE: Exemption = Exemption::new(
    "nodes that do not hear of each other",
    "Each goes by the number of nodes that the store last counted, which may be fewer than ask, or has been lent more than its part of a window before it is lost: then all that they have is more than 95 % of the limit. As much more may be admitted, on shares, or on leases of what is left of them when the store is back. Of a bucket each node may admit its part on top of leases.",
);
static FROM_FIRST: Exemption = Exemption::new(
    "shares of windows from the first request",
    "Theirs are aligned, and lie across those of the store, which open anew with whoever is lent something first: twice the share, on top of leases.",
);
static RELEASED: Exemption = Exemption::new(
    "the first quarter of a sliding window's share",
    "It is released when the window begins, while the one before weighs whole.",
);
static EDGES: Exemption =
    Exemption::new("near a boundary", "What is spent of a share within 5 ms of it may be of either window.");

static FORGOTTEN: Exemption = Exemption::new(
    "what is set aside of a key for a node without the store that has not heard of it since that lost something of the key or another clock counts it, and for all until two periods after that has caught up with the one before",
    "The store sets aside anew, and does not know what such a node believes in; and windows of another clock lie across.",
);

static RESET: Exemption = Exemption::new(
    "what was admitted on shares and on what is set aside, in windows at hand, before a client reset the key; and what the node that was asked to has admitted of what is set aside for it until it heard of that",
    "A reset asks for the whole limit anew, and what a share owes is owed no more. What the store had counted bound.rs excuses; this it had not. Nobody can tell whether what is admitted while a reset is under way comes before that or after.",
);

static MIXED: Exemption = Exemption::new(
    "what is set aside of a key for nodes without the store, until two periods after a script of the build before has run on it; and of a node that has not heard of it since; and what of it was admitted in windows at hand",
    "Such a script knows of nothing that is set aside, and lends it: up to 95 % of the limit more.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "joint.rs",
    invariants: &["bound"],
    proves: "What the store lent and what was admitted on shares come to no more than the limit together; where only some nodes have lost the store and nothing is set aside for them, to 95 % of it more.",
    judges: "All algorithms, several limits, whatever goes wrong.",
    exemptions: &[
        &BASELINES,
        &PARTIAL,
        &UNAWARE,
        &APART,
        &GONE,
        &UNINFORMED,
        &ALONE,
        &FROM_FIRST,
        &RELEASED,
        &EDGES,
        &FORGOTTEN,
        &RESET,
        &MIXED,
    ],
    mutant: Some("set-aside-for-nobody"),
};

/// Shares in parts of a million: 95 %.
const MOST_PPM: u64 = 950_000;

/// Tokens spent this near to a boundary may be of either window.
const EDGE: u64 = 5_000;

/// Nodes that find the store again within this time of each other count as finding it together.
const SAME_LOSS: u64 = 1_000_000;

/// How long a node with the store back stays within its share without leasing more.
const GRACE: u64 = 1_000_000;

/// A node asks a store that gave no answer again after a quarter of a second, and takes it for away for a second more.
/// A node that is asked for the key later does not know whether the store still is away.
const REMEMBERED: u64 = 1_250_000;

/// A node whose call was lost has found the store again within this time and two periods.
const FINDS: u64 = 2_000_000;

/// Within this time it has asked the store and has its answer.
const ASKS: u64 = 10_000;

/// Tolerance for the drift of clocks in that second and for a trip.
const DRIFT: u64 = 1_000;

/// The checker.
#[derive(Debug)]
pub(super) struct Joint {
    is_on: bool,
    /// Counts everything that was admitted, and what is excused of leases.
    all: Bound,
    /// The faults that cut the store off from some nodes only, and how long after a fault all of them have found it
    /// again.
    partial: Vec<Partial>,
    settles: u64,
    /// The number of nodes so far.
    nodes: u32,
    /// Whether nodes gossip, and so divide one share between them: windows always, limits with even parts only from
    /// `met` on, in true time, when the nodes count each other.
    gossips: bool,
    met: u64,
    /// Whether masters' clocks differ, so that windows of shares overlap two windows of a store.
    differ: bool,
    lives: Lives,
    /// When a node last left.
    left: u64,
    /// When each call under way that is no acquire was first sent.
    first_sent: Map<(Life, u64), u64>,
    keys: Numbered<Key>,
    places: Map<(Life, u32), Place>,
    /// When the store last lost something of a key, or a former owner executed a call, by the store's clock; and, by
    /// the same clock, when the acquire was executed whose answer last told each node what is set aside for it.
    forgotten: Map<u32, u64>,
    heard: Map<(Life, u32), u64>,
    /// Keys of which tokens set aside were admitted.
    entitled: Map<u32, ()>,
    /// By key: the end of the latest window in which such tokens were admitted, and how many.
    aside: Map<u32, (u64, u64)>,
    /// By node and key: the reset that the store has executed and whose answer has not arrived, and what of those the node
    /// has admitted since.
    resets: Map<(Life, u32), (u64, u64)>,
    asides: Asides,
    clocks: Clocks,
    trips: Trips,
    /// What was excused of the latest admission on a share; and, by hold, of those whose surplus may be given back.
    latest: Option<(u64, Pardon)>,
    pardons: Map<u64, Pardon>,
    /// By key: when a script of the previous build last ran on it, by the store's clock.
    earlier: Map<u32, u64>,
    found: Found,
}

/// A fault that cuts the store off from some nodes only.
#[derive(Debug)]
struct Partial {
    from: u64,
    until: u64,
    /// The nodes that it stops, as bits; all bits if it stops none.
    nodes: u64,
    /// Whether it only loses some calls, so that it concerns only nodes without an answer.
    random: bool,
}

impl Partial {
    /// Whether some node that uses the key may be without the store at `at`.
    fn meets(&self, at: u64, key: &Key) -> bool {
        (self.from..self.until).contains(&at) && self.nodes & key.nodes != 0 && (!self.random || key.misses(at))
    }
}

/// A node, as a bit.
fn bit(node: u32) -> u64 {
    1 << (node % 64)
}

/// One key.
#[derive(Debug, Default)]
struct Key {
    /// The nodes that were lent tokens of it or have used their shares, as bits.
    nodes: u64,
    /// The node that was last lent tokens, and the last other one before it; and when.
    lent: [(u32, u64); 2],
    /// When a node last decided by its share, and since when nodes have done so without a long pause.
    alone: u64,
    since: u64,
    /// Until when, in true time, more is excused, because the store has lent to a node while others used their shares.
    until: u64,
    /// The longest that a limit of it remembers.
    span: u64,
    /// By limit, of the shares of all nodes: what was excused, and what was counted.
    excused: Vec<Excused>,
    counted: Vec<Excused>,
    /// By limit: the parts of nodes that do not hear of each other.
    parts: Vec<Parts>,
    seconds: BTreeMap<Life, Second>,
}

impl Key {
    fn lend(&mut self, node: u32, at: u64) {
        if self.lent[0].0 != node {
            self.lent[1] = self.lent[0];
        }
        self.lent[0] = (node, at);
        self.nodes |= bit(node);
    }

    /// Whether another node may hold tokens that are still open at `at`.
    fn is_lent_beside(&self, node: u32, at: u64) -> bool {
        let others = self.lent.iter().filter(|(of, lent)| *of != node && *lent > 0);
        others.map(|(_, lent)| lent + 2 * self.span + SAME_LOSS).max().is_some_and(|until| at <= until)
    }

    /// Whether some node had a call about it without an answer of late.
    fn misses(&self, at: u64) -> bool {
        let until = |second: &Second| second.lost + 2 * self.span + FINDS;
        self.seconds.values().any(|second| second.lost > 0 && at <= until(second))
    }

    /// Whether another node uses its share.
    fn is_shared_beside(&self, life: Life) -> bool {
        self.seconds.iter().any(|(of, second)| *of != life && second.alone > 0 && second.alone >= self.since)
    }
}

/// The second that a node waits after it has found the store again.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    /// When it last decided by its share.
    alone: u64,
    /// When the store answered again for the first time since the last loss, to an acquire or to another call that was
    /// sent after the loss; 0 while it is lost.
    back: u64,
    /// When it last learned that a call was not answered; the id of that call, and `back` before that.
    lost: u64,
    unanswered: (u64, u64),
    /// When it first decided by its share after that second.
    asked: Option<u64>,
}

impl Second {
    /// Whether it has lost and found the store since `since`, and its second is over.
    fn is_over(&self, since: u64, at: u64) -> bool {
        self.back >= since && self.back > 0 && at + DRIFT >= self.back + GRACE
    }

    fn is_alone(&mut self, at: u64) {
        self.alone = at;
        if at > self.back + GRACE + DRIFT {
            // It decides the first check after its second by its share, too, while it asks the store.
            let asked = *self.asked.get_or_insert(at);
            if at > asked + ASKS {
                self.back = 0;
            }
        }
    }

    /// A call that is no acquire and was sent at `left` was answered.
    fn hears_else(&mut self, at: u64, left: u64) {
        if self.back == 0 && self.lost > 0 && left >= self.lost {
            self.hears(at, 0, true);
        }
    }

    /// Whether it no longer knows that the store is away.
    fn has_forgotten(&self, at: u64) -> bool {
        self.back == 0 && self.lost > 0 && at >= self.lost + REMEMBERED
    }

    /// A call that was not answered is sent again under its id. The node takes the store for away only when all its sendings have
    /// failed, so it has not lost the store, and its second goes on.
    fn sends_again(&mut self, at: u64, id: u64) {
        if self.back == 0 && self.lost == at && self.unanswered.0 == id {
            self.back = self.unanswered.1;
        }
    }

    fn hears(&mut self, at: u64, id: u64, answered: bool) {
        if !answered {
            (self.lost, self.unanswered) = (at, (id, self.back));
        }
        self.asked = None;
        self.back = match self.back {
            _ if !answered => 0,
            0 => at,
            back => back,
        };
    }
}

/// One key at one node.
#[derive(Debug, Default)]
struct Place {
    /// When it last decided by its share.
    alone: u64,
    /// The store's answers, and whether there was any.
    answers: Answers,
    knows: bool,
    /// When the call was sent that the key's owner last answered; and the id of the last call that another server
    /// executed.
    asked: u64,
    stale: u64,
    excused: Vec<Excused>,
}

/// Tokens excused under one limit in the present window, and in the one before.
#[derive(Clone, Copy, Debug, Default)]
struct Excused {
    window: u64,
    used: u64,
    before: u64,
}

impl Excused {
    /// Counts tokens up to `most` in the present window; returns how many that were.
    fn take(&mut self, window: u64, most: u64, tokens: u64) -> u64 {
        if self.window != window {
            let before = if self.window + 1 == window { self.used } else { 0 };
            *self = Self { window, used: 0, before };
        }
        let part = tokens.min(most.saturating_sub(self.used));
        self.used += part;
        part
    }

    /// Takes refunded tokens off again, so that others may be excused.
    fn give_back(&mut self, window: u64, tokens: u64) {
        if self.window == window {
            self.used = self.used.saturating_sub(tokens);
        }
    }
}

/// What was excused of one admission on a share.
#[derive(Debug)]
struct Pardon {
    life: Life,
    key: u32,
    /// By limit: the window, the tokens, and whether they were counted for all nodes together.
    of: Vec<(u64, u64, bool)>,
}

/// What each of the nodes that do not hear of each other may admit under one limit in the present window: its part, or
/// the tokens that it was lent before any node used its part.
#[derive(Debug, Default)]
struct Parts {
    window: u64,
    of: BTreeMap<Life, u64>,
    forgiven: u64,
    /// Tokens lent of the present and the next window, by node.
    lent: BTreeMap<u64, BTreeMap<Life, u64>>,
}

impl Parts {
    fn lend(&mut self, window: u64, life: Life, tokens: u64) {
        if self.window != window {
            self.lent.retain(|of, _| *of + 1 >= window);
            *self.lent.entry(window).or_default().entry(life).or_default() += tokens;
        }
    }

    fn note(&mut self, window: u64, life: Life, part: u64) {
        if self.window != window {
            let of = self.lent.remove(&window).unwrap_or_default();
            *self = Self { window, of, forgiven: 0, lent: std::mem::take(&mut self.lent) };
        }
        let most = self.of.entry(life).or_default();
        *most = part.max(*most);
    }

    /// How much all of them may admit beyond the whole share, as far as it was not forgiven before.
    fn forgive(&mut self, whole: u64) -> u64 {
        let beyond = self.of.values().sum::<u64>().saturating_sub(whole);
        let more = beyond.saturating_sub(self.forgiven);
        self.forgiven += more;
        more
    }
}

/// How long after a fault all nodes have found the store again.
fn settles(plan: &Plan) -> u64 {
    let longest = plan.policies.iter().flat_map(|policy| &policy.limits).filter_map(|text| Limit::parse(text).ok());
    let longest = longest.map(|limit| limit.period.0).max().unwrap_or(0);
    2 * longest + plan.redis.failover.0 + plan.redis.alone.0 + 2_000_000
}

/// Whether a replica that has to confirm grants may stand still for longer than a call may take: those that come meanwhile get no
/// answer in time, and others do.
fn confirms_too_late(plan: &Plan) -> bool {
    let trip = 2 * (plan.network.latency.0 + 3 * plan.network.jitter.0) + plan.redis.script_cost.0;
    let longest = trip + plan.redis.lag.0 + plan.redis.lag_stalls.0;
    plan.daemon.confirm && plan.redis.replica && plan.redis.lag_stalls.0 > 0 && longest > plan.daemon.timeout.0
}

/// The faults of a plan that cut the store off from some of the nodes, until all have found it again. Faults that stop
/// nodes are added when they begin.
fn partial(plan: &Plan) -> Vec<Partial> {
    let is_random = plan.network.loss > 0 || !plan.zones.is_empty() || confirms_too_late(plan);
    let always = Partial { from: 0, until: u64::MAX, nodes: u64::MAX, random: true };
    let is_partial = |what: &What| match what {
        What::Cut { nodes, .. } => !nodes.is_empty(),
        What::Swizzle | What::Isolate { .. } | What::Noise { .. } => true,
        _ => false,
    };
    let faults = plan.faults.iter().filter(|fault| is_partial(&fault.what));
    let until = |fault: &Fault| fault.at.0 + fault.lasts.0 + settles(plan);
    let partial = faults.map(|fault| {
        let random = matches!(fault.what, What::Noise { .. });
        Partial { from: fault.at.0, until: until(fault), nodes: u64::MAX, random }
    });
    partial.chain(is_random.then_some(always)).collect()
}

impl Joint {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            all: Bound::new(setting),
            partial: partial(plan),
            settles: settles(plan),
            nodes: 0,
            gossips: plan.gossip.is_some(),
            met: met(plan),
            differ: plan.redis.skew.0 > SAME,
            lives: Lives::default(),
            left: 0,
            first_sent: Map::default(),
            keys: Numbered::default(),
            places: Map::default(),
            forgotten: Map::default(),
            heard: Map::default(),
            entitled: Map::default(),
            aside: Map::default(),
            resets: Map::default(),
            asides: Asides::default(),
            clocks: Clocks::new(plan),
            trips: Trips::default(),
            latest: None,
            pardons: Map::default(),
            earlier: Map::default(),
            found: Found::default(),
        }
    }

    /// Adds a fault that stops nodes.
    fn stops(&mut self, fault: &Fault) {
        let nodes = match &fault.what {
            What::Freeze { node } => bit(node % self.nodes.max(1)),
            What::Starve { nodes, .. } if nodes.is_empty() => u64::MAX,
            What::Starve { nodes, .. } => nodes.iter().fold(0, |all, node| all | bit(node % self.nodes.max(1))),
            _ => return,
        };
        let until = fault.at.0 + fault.lasts.0 + self.settles;
        self.partial.push(Partial { from: fault.at.0, until, nodes, random: false });
    }

    /// Notes that a node decides by its share.
    fn alone(&mut self, moment: Moment, request: &Request, rule: &Rule) {
        let key = self.keys.of(request.key);
        key.span = key.span.max(rule.limits.iter().map(span).max().unwrap_or(0));
        if key.alone == 0 || moment.at > key.alone + key.span + SAME_LOSS {
            key.since = moment.at;
        }
        key.alone = moment.at;
        key.nodes |= bit(request.node);
        key.seconds.entry(self.lives.of(request.node)).or_default().is_alone(moment.at);
        self.places.entry((self.lives.of(request.node), request.key)).or_default().alone = moment.at;
    }

    /// The store lends tokens. If others may be using their shares, more is excused.
    fn lent(&mut self, moment: Moment, life: Life, key: u32, call: &Call, (now, tokens): (u64, u64)) {
        if call.rule.is_entitled() {
            return;
        }
        let knows = self.places.get(&(life, key)).map_or(0, |place| place.alone);
        let state = self.keys.of(key);
        state.lend(life.0, moment.at);
        if let Op::Acquire(order) = &call.op {
            state.parts.resize_with(call.rule.limits.len(), Parts::default);
            for (limit, parts) in call.rule.limits.iter().zip(&mut state.parts) {
                parts.lend(now / span(limit) + u64::from(order.window.is_next()), life, tokens);
            }
        }
        // Mostly no node uses its share, so the search over all nodes is spared.
        if state.alone == 0 || moment.at > state.alone + state.span + SAME_LOSS {
            return;
        }
        let is_partial = self.partial.iter().any(|partial| partial.meets(moment.at, state));
        let is_over = |second: &Second| second.is_over(state.since, moment.at);
        let goes_on = |second: &Second| second.alone >= state.since && !is_over(second);
        let is_apart = state.seconds.get(&life).is_some_and(is_over) && state.seconds.values().any(goes_on);
        let has_forgotten = state.seconds.get(&life).is_some_and(|second| second.has_forgotten(moment.at));
        // It may have sent a call again at once that got no answer since, without using its share.
        let has_sent_again = state.seconds.get(&life).is_some_and(|second| second.lost > knows);
        let has_forgotten = has_forgotten || has_sent_again && moment.at >= knows + REMEMBERED;
        let is_unpaid = UNAWARE.when(knows < state.since || has_forgotten)
            || APART.when(is_apart)
            || GONE.when(self.left > 0 && self.left >= state.since)
            || PARTIAL.when(is_partial && state.is_shared_beside(life));
        if !is_unpaid {
            return;
        }
        state.until = moment.at + 2 * state.span + SAME_LOSS;
        // Admissions of other nodes so far are excused, too.
        self.excuse_shares(key, now, &call.rule);
    }

    /// Excuses the admissions so far of tokens set aside, in present windows.
    fn excuse_aside(&mut self, why: &Exemption, key: u32, now: u64) {
        let aside = self.aside.remove(&key).filter(|(end, _)| now < *end);
        let (_, tokens) = aside.unwrap_or_default();
        self.all.beside(key, now, |_, _| why.forgives(tokens));
    }

    /// A node that has reset a key hears of it. Excuses what it has admitted since the store executed that of tokens set
    /// aside for it, in present windows.
    fn hears_of_reset(&mut self, life: Life, key: u32, id: u64, now: u64) {
        let Some((_, since)) = self.resets.remove(&(life, key)).filter(|(reset, _)| *reset == id) else { return };
        let Some((_, tokens)) = self.aside.get_mut(&key).filter(|(end, _)| now < *end) else { return };
        *tokens = tokens.saturating_sub(since);
        self.all.beside(key, now, |_, _| RESET.forgives(since));
    }

    /// Excuses the admissions so far on shares, in present windows.
    fn excuse_shares(&mut self, key: u32, now: u64, rule: &Rule) {
        let counted = &mut self.keys.of(key).counted;
        counted.resize(rule.limits.len(), Excused::default());
        self.all.beside(key, now, |index, limit| {
            let most = 2 * whole(limit);
            let Some(book) = counted.get_mut(index) else { return 0 };
            book.take(now / span(limit), most, 0);
            let tokens = book.used + if limit.algorithm == Algorithm::Fixed { 0 } else { book.before };
            (book.used, book.before) = (0, 0);
            tokens.min(most)
        });
    }

    /// What is excused, by limit, of an admission on the share of `life`, which decided it or lent the tokens.
    fn excused(&mut self, moment: Moment, life: Life, request: &Request, rule: &Rule, now: u64) -> Vec<u64> {
        if rule.is_entitled() {
            self.entitled.insert(request.key, ());
            // Tokens set aside are only excused if the store has lost that they are, or has lent them to others.
            let heard = self.heard.get(&(life, request.key)).copied().unwrap_or(0);
            let is_lost = self.forgotten.get(&request.key).is_some_and(|lost| heard <= *lost);
            let asked = self.places.get(&(life, request.key)).map_or(0, |place| place.asked);
            let is_another = goes_by_another(&self.clocks, moment, request.key, asked, span(&rule.limits[0]));
            let ran = |ran: &u64| heard <= *ran || now <= ran + 2 * span(&rule.limits[0]);
            let is_lent = self.earlier.get(&request.key).is_some_and(ran);
            if FORGOTTEN.when(is_lost || is_another) || MIXED.when(is_lent) {
                return vec![request.cost];
            }
            let (end, tokens) = self.aside.entry(request.key).or_default();
            // Admissions of a bucket count for as long as it takes to fill, and those of a sliding window also in the
            // next one.
            let (is_bucket, is_sliding) = (rule.is_entitled_bucket(), rule.is_entitled_sliding());
            let is_from_first = rule.is_entitled_from_first();
            let limit = &rule.limits[0];
            let open = match window_end(limit, Timestamp(now)).0 {
                _ if is_bucket => now + limit.depth().0,
                // The window may open with the admission at the latest.
                _ if is_from_first => now + limit.period.0,
                end if is_sliding => end + limit.period.0,
                end => end,
            };
            let is_same = *end == open || (is_bucket || is_sliding || is_from_first) && now < *end;
            *tokens = if is_same { *tokens + request.cost } else { request.cost };
            *end = open;
            if let Some((_, since)) = self.resets.get_mut(&(life, request.key)) {
                *since = if is_same { *since + request.cost } else { request.cost };
            }
            return vec![0];
        }
        let key = self.keys.of(request.key);
        let place = self.places.entry((life, request.key)).or_default();
        let met = self.partial.iter().any(|partial| partial.meets(moment.at, key));
        let is_partial = PARTIAL.when(met && key.is_lent_beside(request.node, moment.at))
            || moment.at < key.until
            || APART.when(key.seconds.values().any(|second| second.is_over(key.since, moment.at)));
        let is_another = self.differ && goes_by_another(&self.clocks, moment, request.key, place.asked, key.span);
        let is_uninformed = UNINFORMED.when(is_another || !place.knows);
        let (nodes, gossips, has_met) = (place.answers.nodes(), self.gossips, moment.at >= self.met);
        key.excused.resize(rule.limits.len(), Excused::default());
        place.excused.resize(rule.limits.len(), Excused::default());
        key.counted.resize(rule.limits.len(), Excused::default());
        key.parts.resize_with(rule.limits.len(), Parts::default);
        let books = key.excused.iter_mut().zip(&mut place.excused).zip(&mut key.counted).zip(&mut key.parts);
        let limits = rule.limits.iter().zip(books);
        let mut pardon = Pardon { life, key: request.key, of: Vec::with_capacity(rule.limits.len()) };
        let excused = limits
            .map(|(limit, (((all, one), counted), parts))| {
                let is_even = !matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
                let gossips = gossips && (!is_even || has_met);
                let book = if gossips { all } else { one };
                let is_bucket = limit.algorithm == Algorithm::Gcra;
                let (length, passed) = (span(limit), now % limit.period.0);
                // A bucket that is full at first admits its burst, and as much again in the time in which it fills up.
                let (whole, window) = (whole(limit), now / length);
                if EDGES.when(!is_bucket && passed.min(limit.period.0 - passed) < EDGE) {
                    pardon.of.push((window, 0, gossips));
                    return request.cost;
                }
                let times = if is_even || is_uninformed { 2 } else { 1 };
                let is_first = FROM_FIRST.when(limit.algorithm == Algorithm::FixedFromFirst);
                let is_strict = !is_partial && !is_uninformed && !is_first;
                let part_of = |whole: u64| if gossips { whole } else { ALONE.forgives(whole / nodes) };
                let part = part_of(whole);
                if is_strict && !gossips && !is_even {
                    parts.note(window, life, part);
                }
                let strict = if !is_strict {
                    0
                } else {
                    let most = if is_bucket && !gossips { whole } else { u64::MAX };
                    let quarter = if limit.algorithm == Algorithm::Sliding { whole.div_ceil(4) } else { 0 };
                    let taken = counted.take(window, most, request.cost);
                    let before = counted.used - taken;
                    taken - taken.min(RELEASED.forgives(quarter).saturating_sub(before))
                };
                // The part of twice a bucket may be one token more than twice the part, by rounding: 95 % of two tokens
                // are one, and of four three.
                let most = if is_bucket { part_of(share_of(2 * limit.capacity())).max(2) } else { times * part };
                let tokens = book.take(window, most, request.cost - strict);
                pardon.of.push((window, tokens, gossips));
                tokens
            })
            .collect();
        self.latest = Some((request.id, pardon));
        // `all` learns a key's limits with its first admission; before that nothing can exceed them.
        self.all.beside(request.key, now, |index, limit| {
            key.parts.get_mut(index).map_or(0, |parts| parts.forgive(whole(limit)))
        });
        excused
    }

    /// Tokens of a hold are given back to its share, so that as many others may be excused.
    fn given_back(&mut self, hold: u64, cost: u64) {
        let Some(Pardon { life, key, of }) = self.pardons.remove(&hold) else { return };
        for (index, (window, tokens, is_of_all)) in of.into_iter().enumerate() {
            let books = if is_of_all {
                Some(&mut self.keys.of(key).excused)
            } else {
                self.places.get_mut(&(life, key)).map(|place| &mut place.excused)
            };
            if let Some(book) = books.and_then(|books| books.get_mut(index)) {
                book.give_back(window, tokens.min(cost));
            }
        }
    }

    fn admitted(&mut self, moment: Moment, request: &Request, rule: &Arc<Rule>, decision: &Decision, now: u64) {
        let excused = match decision.source {
            Source::Share => self.excused(moment, self.lives.of(request.node), request, rule, now),
            _ => match self.asides.lender(moment, request, decision) {
                Some(lender) => self.excused(moment, lender, request, rule, now),
                None => Vec::new(),
            },
        };
        let excused = |index: usize, _: &Limit| excused.get(index).copied().unwrap_or(0);
        if let Some(beyond) = self.all.admit(request, rule, decision, now, excused) {
            self.found.add("bound", moment, || format!("leases and shares: {beyond}"));
        }
    }
}

/// Whether a node whose last answered call was sent at `asked` may use another clock than the owner's, or admissions by
/// another clock may still count.
fn goes_by_another(clocks: &Clocks, moment: Moment, key: u32, asked: u64, span: u64) -> bool {
    clocks.leapt(key).is_some_and(|leapt| asked <= leapt) || clocks.is_new(moment, key, 2 * span)
}

/// When the nodes of the start know of each other. A node that is missing afterwards is counted for ten minutes more.
fn met(plan: &Plan) -> u64 {
    plan.gossip.map_or(u64::MAX, |gossip| gossip.join.0 + 2 * gossip.tick.0 + SAME_LOSS)
}

/// The tokens of a limit that all shares have together.
fn whole(limit: &Limit) -> u64 {
    share_of(limit.capacity())
}

fn share_of(tokens: u64) -> u64 {
    tokens * MOST_PPM / 1_000_000
}

/// For how long an admission counts under a limit.
fn span(limit: &Limit) -> u64 {
    if limit.algorithm == Algorithm::Gcra { limit.depth().0.max(1) } else { limit.period.0 }
}

impl Observer for Joint {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Asked
    }

    fn ignores(&self, _: Topic) -> bool {
        !self.is_on
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.all.excuse(moment, seen);
        self.lives.see(seen);
        self.clocks.see(moment, seen);
        self.trips.see(moment, seen);
        self.asides.see(moment, seen);
        if let Seen::Executed { key, grant, ran: Ran { is_earlier: true, .. }, .. } = seen {
            self.earlier.insert(*key, grant.now.0);
            self.excuse_aside(&MIXED, *key, grant.now.0);
        }
        if let Seen::Called { node, key, call, sent: true } = seen {
            let life = self.lives.of(*node);
            let second = self.keys.of(*key).seconds.get_mut(&life);
            second.into_iter().for_each(|second| second.sends_again(moment.at, call.id));
        }
        match seen {
            Seen::Joined { node, .. } => self.nodes = self.nodes.max(node + 1),
            Seen::Begins(fault) => self.stops(fault),
            Seen::Lost { key, store } | Seen::Undone { key, store } => {
                self.forgotten.insert(*key, store.0);
                if self.entitled.contains_key(key) {
                    // The store may lend tokens again that were admitted so far.
                    self.all.beside(*key, store.0, |_, limit| FORGOTTEN.forgives(whole(limit)));
                }
            }
            Seen::Executed { node, incarnation, key, call, grant, stale: true, .. } => {
                self.forgotten.insert(*key, grant.now.0);
                self.places.entry(((*node, *incarnation), *key)).or_default().stale = call.id;
            }
            Seen::Executed { node, incarnation, key, call, grant, stale: false, .. }
                if matches!(call.op, Op::Acquire(_)) && grant.granted > 0 && !grant.replayed =>
            {
                self.lent(moment, (*node, *incarnation), *key, call, (grant.now.0, grant.granted));
            }
            Seen::Executed { node, incarnation, key, call, grant, stale: false, .. }
                if call.op == Op::Reset && !grant.replayed && !grant.outdated =>
            {
                self.resets.insert(((*node, *incarnation), *key), (call.id, 0));
                self.excuse_aside(&RESET, *key, grant.now.0);
                // Nor are shares' debts paid any more.
                self.excuse_shares(*key, grant.now.0, &call.rule);
            }
            Seen::Left { .. } => self.left = moment.at,
            Seen::Hold(hold, Holding::Kept { .. }) => {
                if let Some((_, pardon)) = self.latest.take_if(|(request, _)| request == hold) {
                    self.pardons.insert(*hold, pardon);
                }
            }
            Seen::Hold(hold, Holding::Asks(request)) if request.kind == Kind::Refund => {
                self.given_back(*hold, request.cost);
            }
            Seen::Called { node, key, call, .. } if matches!(call.op, Op::Acquire(Acquire { epoch: 0, .. })) => {
                // The node had dropped the key, if it knew it before.
                let place = self.places.entry((self.lives.of(*node), *key)).or_default();
                (place.knows, place.alone, place.answers, place.asked) = (false, 0, Answers::default(), 0);
            }
            Seen::Called { node, call, .. } if !matches!(call.op, Op::Acquire(_)) => {
                self.first_sent.entry((self.lives.of(*node), call.id)).or_insert(moment.at);
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let life = (*node, *incarnation);
                let (seconds, left) = (&mut self.keys.of(*key).seconds, self.first_sent.remove(&(life, call.id)));
                if matches!(call.op, Op::Acquire(_)) || grant.is_none() {
                    seconds.entry(life).or_default().hears(moment.at, call.id, grant.is_some());
                } else if let (Some(left), Some(second)) = (left, seconds.get_mut(&life)) {
                    second.hears_else(moment.at, left);
                }
                let Some(grant) = grant else { return };
                if call.op == Op::Reset {
                    self.hears_of_reset(life, *key, call.id, grant.now.0);
                }
                if matches!(call.op, Op::Acquire(_)) && !grant.outdated {
                    self.heard.insert((life, *key), grant.now.0);
                }
                let place = self.places.entry((life, *key)).or_default();
                place.answers.note(moment, call.id, grant);
                place.knows = true;
                place.asked = if place.stale == call.id { 0 } else { moment.at - self.trips.latest() };
            }
            Seen::Answered { request, rule, decision, store, .. } if request.kind == Kind::Check => {
                if decision.source == Source::Share {
                    self.alone(moment, request, rule);
                }
                let is_counted =
                    matches!(decision.source, Source::Lease | Source::Store | Source::Peer | Source::Share);
                if decision.verdict == Verdict::Allow && is_counted {
                    self.admitted(moment, request, rule, decision, store.0);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Joint {
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
    use crate::plan::{Gossip, Way};
    use crate::span::Span;

    fn cut(nodes: &[u32]) -> What {
        What::Cut { nodes: nodes.to_vec(), masters: Vec::new(), way: Way::Both }
    }

    #[test]
    fn a_replica_that_stands_still_loses_calls_where_it_has_to_confirm_them_in_less_time() {
        let is_random = |confirm: bool, replica: bool, stalls: u64| {
            let mut plan = Plan::default();
            (plan.daemon.confirm, plan.redis.replica, plan.redis.lag_stalls) = (confirm, replica, Span::millis(stalls));
            partial(&plan).iter().any(|partial| partial.random)
        };
        assert!(is_random(true, true, 60), "a call may take 50 ms");
        assert!(!is_random(true, true, 30));
        assert!(!is_random(true, true, 0));
        assert!(!is_random(false, true, 60) && !is_random(true, false, 60), "nobody waits for it");
    }

    /// Three nodes under a fault, with `loss` of a thousand messages lost. Node 0 was lent something before, and node
    /// `lends` just before the returned time.
    fn under_a_fault(what: &What, loss: u32, lends: u32) -> (History, Joint, u64) {
        let mut history = History::new("10/1s fixed");
        let mut setting = history.setting();
        let fault = Fault { at: Span(0), lasts: Span::secs(20), what: what.clone() };
        setting.plan.faults.push(fault.clone());
        setting.plan.gossip = Some(Gossip::default());
        setting.plan.network.loss = loss;
        let mut checker = Joint::new(&setting);
        (0..3).for_each(|node| history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 0 }));
        history.see(&mut checker, 0, &Seen::Begins(&fault));
        let at = 5 * SECOND + SECOND / 10;
        history.executed(&mut checker, 1, 1);
        history.settled(&mut checker, 1, 1, 1);
        history.node = lends;
        history.executed(&mut checker, at - 1, 2);
        (history, checker, at)
    }

    /// How much may be admitted on the share of node 0, under a fault, in a window of ten of which seven were lent.
    /// Node 0 was lent something before, and node `lends` just before.
    fn most_beside_leases(what: &What, lends: u32) -> u64 {
        most_with_losses(what, lends, 0, None)
    }

    /// The same with `loss` of a thousand messages lost, and a call of node 0 lost that long before.
    fn most_with_losses(what: &What, lends: u32, loss: u32, lost: Option<u64>) -> u64 {
        let admitted = |more: u64| {
            let (mut history, mut checker, at) = under_a_fault(what, loss, lends);
            if let Some(before) = lost {
                history.unanswered_in(&mut checker, at - before, [0, 2]);
            }
            history.check(&mut checker, at, 0, Source::Share, true);
            history.check(&mut checker, at + 1, 7, Source::Lease, true);
            history.check(&mut checker, at + 2, more, Source::Share, true);
            checker.violations().is_empty()
        };
        (0..40).take_while(|more| admitted(*more)).last().expect("the limit is enough for seven")
    }

    #[test]
    fn where_all_lost_the_store_leases_and_shares_are_no_more_than_the_limit() {
        assert_eq!(most_beside_leases(&cut(&[]), 1), 3);
    }

    #[test]
    fn where_some_lost_it_they_are_no_more_than_that_and_a_share() {
        assert_eq!(most_beside_leases(&cut(&[0]), 1), 3 + 9);
    }

    #[test]
    fn where_some_lost_it_and_the_store_lends_to_no_other_they_are_no_more_than_the_limit() {
        assert_eq!(most_beside_leases(&cut(&[0]), 0), 3);
    }

    #[test]
    fn what_goes_back_to_a_share_may_be_excused_again() {
        let most = |goes_back: bool| {
            let admitted = |more: u64| {
                let (mut history, mut checker, at) = under_a_fault(&cut(&[0]), 0, 1);
                history.check(&mut checker, at, 0, Source::Share, true);
                let request = Request { cost: 9, ..history.ask(&mut checker, at + 1) };
                history.answer(&mut checker, at + 1, &request, Source::Share, true);
                history.see(&mut checker, at + 1, &Seen::Hold(request.id, Holding::Kept { request: &request, ttl: 0 }));
                let refund = Request { id: request.id + 1, kind: Kind::Refund, ..request };
                if goes_back {
                    history.see(&mut checker, at + 2, &Seen::Hold(request.id, Holding::Asks(&refund)));
                }
                history.check(&mut checker, at + 3, more, Source::Share, true);
                checker.violations().is_empty()
            };
            (0..40).take_while(|more| admitted(*more)).last().expect("the share is enough for nine")
        };
        assert_eq!([most(false), most(true)], [10, 10 + 9]);
    }

    #[test]
    fn a_node_that_is_not_run_excuses_only_what_it_holds_or_goes_by_its_share_of() {
        for (node, most) in [(0, 3 + 9), (1, 3 + 9), (2, 3)] {
            assert_eq!(most_beside_leases(&What::Freeze { node }, 1), most, "{node}");
        }
    }

    /// Two periods and two seconds after a lost call its node has found the store again.
    #[test]
    fn where_messages_are_lost_at_random_only_a_call_that_was_excuses_more() {
        let noise = What::Noise { loss: 5, repeats: 0 };
        for (what, loss) in [(&cut(&[]), 1), (&noise, 0)] {
            let most = |lost: Option<u64>| most_with_losses(what, 1, loss, lost);
            assert_eq!([most(None), most(Some(3_900_000)), most(Some(4_000_001))], [3, 3 + 9, 3], "{what:?}");
        }
    }

    /// Another node has lost the store and uses its share, and so does the one that leases afterwards: it is the first to have an answer.
    fn a_share_beside_another_node(at: u64) -> (History, Joint) {
        let mut history = History::new("10/10s fixed");
        let mut setting = history.setting();
        setting.plan.gossip = Some(Gossip::default());
        let mut checker = Joint::new(&setting);
        history.settled(&mut checker, 1, 1, 1);
        history.check(&mut checker, at, 5, Source::Share, true);
        checker.lives.see(&Seen::Joined { node: 0, incarnation: 1 });
        history.check(&mut checker, at, 0, Source::Share, false);
        (history, checker)
    }

    #[test]
    fn who_has_waited_for_its_second_is_lent_beside_a_share_that_goes_on() {
        let at = 5 * SECOND;
        for (later, seen) in [(SECOND, 0), (SECOND - DRIFT - 1, 1)] {
            let (mut history, mut checker) = a_share_beside_another_node(at);
            history.settled_in(&mut checker, at, [1, 2], 0);
            history.executed(&mut checker, at + later, 2);
            history.check(&mut checker, at + later + 1, 6, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// Its second begins with the answer to a call that is no acquire, if that was sent after the store was lost.
    #[test]
    fn a_second_begins_with_the_first_answer_to_any_call() {
        let at = 5 * SECOND;
        for (left, seen) in [(1, 0), (-1, 1)] {
            let (mut history, mut checker) = a_share_beside_another_node(at);
            history.void_called(&mut checker, at.saturating_add_signed(left), 2);
            history.unanswered_in(&mut checker, at, [1, 1]);
            history.void_settled_in(&mut checker, at + 2, [1, 2]);
            history.executed(&mut checker, at + 2 + SECOND, 4);
            history.check(&mut checker, at + 3 + SECOND, 6, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{left}: {:?}", checker.violations());
        }
    }

    /// Half of its second is over when a call is not answered. It is answered when it is sent again, or another one is.
    #[test]
    fn a_second_goes_on_when_a_call_is_sent_again_and_not_when_another_one_is() {
        let at = 5 * SECOND;
        for (again, later, seen) in [(2, SECOND, 0), (2, SECOND - DRIFT - 1, 1), (3, SECOND, 1)] {
            let (mut history, mut checker) = a_share_beside_another_node(at);
            history.settled_in(&mut checker, at, [1, 1], 0);
            let half = at + SECOND / 2;
            history.check(&mut checker, half - 1, 0, Source::Share, false);
            history.unanswered_in(&mut checker, half, [1, 2]);
            history.called(&mut checker, half, again, 1);
            history.settled_in(&mut checker, half + 1, [1, again], 0);
            history.executed(&mut checker, at + later, 4);
            history.check(&mut checker, at + later + 1, 6, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{again} {later}: {:?}", checker.violations());
        }
    }

    #[test]
    fn who_asks_the_store_after_its_second_and_goes_by_its_share_meanwhile_has_not_lost_it_again() {
        let at = 5 * SECOND;
        for (later, seen) in [(ASKS, 0), (ASKS + 1, 1)] {
            let (mut history, mut checker) = a_share_beside_another_node(at);
            history.settled_in(&mut checker, at, [1, 2], 0);
            for after in [2 * DRIFT, 2 * DRIFT + later] {
                history.check(&mut checker, at + SECOND + after, 0, Source::Share, false);
            }
            history.executed(&mut checker, at + SECOND + 2 * DRIFT + later, 2);
            history.check(&mut checker, at + SECOND + 3 * DRIFT + later, 6, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn parts_that_were_counted_apart_are_forgiven_what_they_are_beyond_the_share_of_one() {
        // Two nodes that each know of one node have 18 of ten, while one share is 9. So nine more than ten may be
        // admitted.
        for (more, nodes, seen) in [(9, 1, 0), (10, 1, 1), (1, 2, 1)] {
            let mut history = History::new("10/10s fixed");
            let mut checker = Joint::new(&history.setting());
            let at = 15 * SECOND;
            history.nodes = nodes;
            for incarnation in [0, 1] {
                checker.lives.see(&Seen::Joined { node: 0, incarnation });
                history.settled_in(&mut checker, at, [incarnation, incarnation + 1], 0);
                history.check(&mut checker, at, 4, Source::Share, true);
            }
            history.check(&mut checker, at + 1, 2, Source::Lease, true);
            assert!(checker.violations().is_empty(), "{:?}", checker.violations());
            history.check(&mut checker, at + 2, more, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{more}: {:?}", checker.violations());
        }
    }

    /// The part is 1.9 at first, and as much again in the time in which it fills up: three in all. A fourth is allowed
    /// by bound.rs for the trip of an answer.
    #[test]
    fn a_part_of_a_small_bucket_is_reckoned_for_both_of_its_fills_at_once() {
        for (cost, seen) in [(4, 0), (5, 1)] {
            let mut history = History::new("1/200ms burst 2");
            let mut checker = Joint::new(&history.setting());
            history.check(&mut checker, 1, 2, Source::Lease, true);
            history.check(&mut checker, 2, cost, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{cost}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_one_node_was_lent_before_is_beside_the_parts_of_others() {
        // One node may admit eight in a window and two others four each: 16, seven more than one share.
        for (window, beyond) in [(1, 7), (2, 0)] {
            let parts = &mut Parts::default();
            parts.lend(window, (0, 0), 8);
            for life in [(1, 0), (2, 0)] {
                parts.note(1, life, 4);
            }
            assert_eq!(parts.forgive(9), beyond, "of window {window}");
            assert_eq!(parts.forgive(9), 0, "once");
            parts.lend(1, (0, 0), 8);
            assert_eq!(parts.forgive(9), 0, "when parts are known, the store counts them");
        }
    }

    #[test]
    fn a_reset_is_forgiven_what_was_admitted_on_what_is_set_aside() {
        // With the token that the store had counted.
        for (resets, after, seen) in [(true, 11, 0), (true, 12, 1), (false, 2, 1)] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = Joint::new(&history.setting());
            let at = SECOND / 10;
            history.executed(&mut checker, 1, 1);
            history.check(&mut checker, at, 9, Source::Share, true);
            if resets {
                history.reset(&mut checker, at + 1, 2);
            }
            history.check(&mut checker, at + 2, after, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{after}: {:?}", checker.violations());
        }
    }

    /// Two tokens set aside are admitted when the store has executed a reset that this node was asked for, or another one.
    #[test]
    fn what_is_admitted_before_a_node_hears_of_its_reset_is_forgiven_when_it_does() {
        for (asked, hears, after, seen) in [(0, true, 11, 0), (0, true, 12, 1), (0, false, 10, 1), (1, true, 10, 1)] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = Joint::new(&history.setting());
            for node in 0..2 {
                history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 1 });
            }
            let at = SECOND / 10;
            history.executed(&mut checker, 1, 1);
            history.node = asked;
            history.reset(&mut checker, at, 2);
            history.check(&mut checker, at + 1, 2, Source::Share, true);
            if hears {
                history.hears_of_reset(&mut checker, at + 2, 2);
            }
            history.check(&mut checker, at + 3, after, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{asked} {hears} {after}: {:?}", checker.violations());
        }
    }

    /// Nine tokens set aside are admitted, and a script of the previous build runs on the key before, after or long
    /// after that, or on another key.
    #[test]
    fn what_is_set_aside_is_excused_where_a_script_of_the_build_before_has_run() {
        let (before, after) = (Some(2), Some(SECOND / 5));
        for (ran, key, at, heard, cost, seen) in [
            (before, 0, SECOND / 10, 0, 10, 0),
            (after, 0, SECOND / 10, 0, 10, 0),
            (None, 0, SECOND / 10, 0, 10, 1),
            (before, 1, SECOND / 10, 0, 10, 1),
            (after, 1, SECOND / 10, 0, 10, 1),
            // Two periods later a node that has heard of the key since is judged.
            (before, 0, 2 * SECOND + SECOND / 10, 0, 10, 0),
            (before, 0, 2 * SECOND + SECOND / 10, SECOND, 10, 1),
            (before, 0, SECOND + SECOND / 10, SECOND, 10, 0),
        ] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = Joint::new(&history.setting());
            let mut events = vec![(at, None)];
            events.extend(ran.map(|ran| (ran, Some(key))));
            events.sort_unstable();
            history.executed(&mut checker, 1, 1);
            for (at, ran) in events {
                match ran {
                    Some(key) => history.ran_earlier(&mut checker, at, key),
                    None => {
                        if heard > 0 {
                            history.settled(&mut checker, heard, 2, 1);
                        }
                        history.check(&mut checker, at, 9, Source::Share, true);
                    }
                }
            }
            history.check(&mut checker, at + SECOND / 5, cost, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{ran:?} {key} {at} {heard}: {:?}", checker.violations());
        }
    }

    #[test]
    fn a_reset_is_forgiven_what_was_admitted_on_shares() {
        // With the token that the store had counted.
        for (resets, after, seen) in [(true, 11, 0), (true, 12, 1), (false, 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Joint::new(&setting);
            let at = SECOND / 10;
            history.executed(&mut checker, at, 1);
            history.settled(&mut checker, at, 1, 1);
            history.check(&mut checker, at + 1, 9, Source::Share, true);
            if resets {
                history.reset(&mut checker, at + 2, 2);
            }
            history.check(&mut checker, at + 3, after, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{after}: {:?}", checker.violations());
        }
    }

    #[test]
    fn what_is_set_aside_is_excused_at_nodes_that_have_not_heard_of_it_since_the_store_has_lost_it() {
        for (lost, heard, seen) in [(None, 1, 1), (Some(2), 1, 0), (Some(2), 3, 1), (Some(4), 3, 0)] {
            let mut history = History::entitled("10/1s fixed");
            let mut checker = Joint::new(&history.setting());
            history.settled(&mut checker, heard * SECOND, 1, 1);
            if let Some(lost) = lost {
                let store = Timestamp(1_800_000_000_000_000 + lost * SECOND);
                history.see(&mut checker, lost * SECOND, &Seen::Lost { key: 0, store });
            }
            history.check(&mut checker, 6 * SECOND + SECOND / 10, 5, Source::Share, true);
            history.check(&mut checker, 6 * SECOND + SECOND / 5, 6, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{lost:?} {heard}: {:?}", checker.violations());
        }
    }

    /// The clock is set back by five seconds in the second second. Judging begins again when it has caught up, two
    /// periods have passed, and the node has heard of it. If the clock always was the key's own, nothing is excused.
    #[test]
    fn leases_and_shares_are_judged_again_when_another_clock_has_counted_the_key_for_long() {
        let rows = [(5, true, 8, 0), (5, true, 9, 1), (5, false, 9, 0), (0, true, 8, 1), (0, false, 8, 1)];
        for ((ahead, is_settled, at, seen), of) in
            rows.into_iter().flat_map(|row| [(row, "shares"), (row, "set aside")])
        {
            let mut history = match of {
                "shares" => History::new("10/1s fixed"),
                _ => History::entitled("10/1s fixed"),
            };
            let mut setting = history.setting();
            setting.plan.redis.skew = Span::secs(5);
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Joint::new(&setting);
            history.lent(&mut checker, 1, ahead * SECOND, 1, 1);
            history.lent(&mut checker, 2 * SECOND, 0, 2, 1);
            if is_settled {
                history.settled(&mut checker, 3 * SECOND, 3, 1);
            }
            let at = at * SECOND + SECOND / 10;
            history.check(&mut checker, at, 0, Source::Share, true);
            history.check(&mut checker, at + 1, 7, Source::Lease, true);
            history.check(&mut checker, at + 2, 4, Source::Share, true);
            assert_eq!(checker.violations().len(), seen, "{of} {ahead} {is_settled} {at}: {:?}", checker.violations());
        }
    }

    #[test]
    fn who_never_was_without_the_store_is_lent_beside_a_share() {
        for (knows, seen) in [(true, 1), (false, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Joint::new(&setting);
            let at = 5 * SECOND + SECOND / 10;
            history.settled(&mut checker, 1, 1, 1);
            history.check(&mut checker, at, 5, Source::Share, true);
            if knows {
                // The node that asks is the one that used its share.
                checker.lives.see(&Seen::Joined { node: 0, incarnation: 1 });
                history.check(&mut checker, at, 0, Source::Share, false);
            }
            history.executed(&mut checker, at + 1, 2);
            history.check(&mut checker, at + 2, 6, Source::Lease, true);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// The number of violations when a node is lent `later` after both used their shares, while the other uses its own,
    /// and a call of the lent node got no answer at `unanswered_at`.
    fn lent_beside_a_share(later: u64, unanswered_at: u64) -> usize {
        let mut history = History::new("10/10s fixed");
        let mut setting = history.setting();
        setting.plan.gossip = Some(Gossip::default());
        let mut checker = Joint::new(&setting);
        history.settled(&mut checker, 1, 1, 1);
        history.check(&mut checker, SHARED_AT, 5, Source::Share, true);
        checker.lives.see(&Seen::Joined { node: 0, incarnation: 1 });
        history.check(&mut checker, SHARED_AT, 0, Source::Share, false);
        history.unanswered_in(&mut checker, unanswered_at, [1, 2]);
        history.executed(&mut checker, SHARED_AT + later, 3);
        history.check(&mut checker, SHARED_AT + later + 1, 6, Source::Lease, true);
        checker.violations().len()
    }

    const SHARED_AT: u64 = 5 * SECOND;

    #[test]
    fn who_was_not_asked_since_a_call_was_lost_is_lent_beside_a_share() {
        for (later, seen) in [(REMEMBERED, 0), (REMEMBERED - 1, 1)] {
            assert_eq!(lent_beside_a_share(later, SHARED_AT), seen, "{later}");
        }
    }

    /// A call got no answer since, and was sent again at once.
    #[test]
    fn who_has_not_gone_by_its_share_for_long_is_lent_beside_that_of_another() {
        for (later, seen) in [(REMEMBERED, 0), (REMEMBERED - 1, 1)] {
            assert_eq!(lent_beside_a_share(later, SHARED_AT + later - SECOND / 10), seen, "{later}");
        }
    }
}
