//! **asking**: how often and for how long a node asks peers, and how they answer. A check waits for a peer for half of
//! its timeout at most. A peer that has no store, is leaving, or was late three times in a row is left out for a while;
//! if no other is left, those without a store are tried one after another, with a pause between two trials that grows
//! with the number of nodes per owner. The time that an ask gives its peer is at most the time for which the node
//! waits, less the peer's quickest trip of late. A peer lends nothing to a node that has stopped waiting, nor, under
//! several limits, tokens that end on the way; and a node does not admit on its share in a window in which a peer has
//! lent to it.
//!
//! `lending.rs` judges under which limits a node lends, and to whom.

use rationd::core::ask::{Answer, Ask, Loan, Refusal};
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::Algorithm;
use rationd::core::policy::{OnStoreLoss, Rule};

use super::Found;
use super::notes::{Clocks, Life, Lives, Stops, goes_by};
use super::phased::Pushes;
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::What;

static OFF: Exemption = Exemption::new("runs whose nodes ask no peers", "There is nothing to judge.");
static SHARDS: Exemption = Exemption::new(
    "whom nodes of several shards ask, and how often",
    "Each shard knows for itself which peers would answer it.",
);
static UNSTEADY: Exemption = Exemption::new(
    "that the pause is longer in a large fleet, while nodes leave, stand still or are not heard, until all have heard of all again; and of each node that comes, until they have heard of it",
    "Who is in the fleet nodes learn at different times, and the pause goes by what each of them knows.",
);
static STOPPED: Exemption = Exemption::new(
    "that a peer was late, where the node that asked stands still a second before or after",
    "It learns that an answer is late when it runs again, after what comes before in its queue.",
);
static LEAPS: Exemption = Exemption::new(
    "what a share admits beside a loan, where another clock has counted the key since, or the node goes by one that is two timeouts from the store's",
    "By another clock the window is another.",
);
static PUSHES: Exemption = Exemption::new(
    "the same, of keys whose limits change, from then on until two periods after all nodes know of it",
    "Under other limits the window is another.",
);
static EDGE: Exemption = Exemption::new(
    "the same, within two timeouts of a window's ends",
    "To within a trip a node does not know in which of two windows it is.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "asking.rs",
    invariants: &["asking"],
    proves: "A check waits for a peer for half of its time at most; a peer that has no store, leaves, or was late three times in a row is left out for a while; nobody asks a peer for a key for which it lets another wait; those without a store are tried with a pause between any two, which is as many times longer as there are nodes for each owner; a peer is told that its answer is awaited for less than it is, by its quickest way; nobody lends to who has stopped waiting, nor of several limits what ends on its way; and a share has nothing of a window in which a peer has lent.",
    judges: "All algorithms, several limits. Shares beside loans: one fixed window.",
    exemptions: &[&OFF, &SHARDS, &UNSTEADY, &STOPPED, &LEAPS, &PUSHES, &EDGE],
    mutant: Some("tries-without-pause"),
};

/// Clocks of nodes differ by less than one part in this many.
const DRIFT_PART: u64 = 2_000;

/// How long a peer is left out. One that was late is judged only for `LATE_OUT` of that: it may be given up and
/// discovered again afterwards.
const LEFT_OUT: u64 = 1_000_000;
const LATE_OUT: u64 = 150_000;

/// A peer is left out after this many late answers in a row. A node that gives a peer up and discovers it again starts
/// counting anew; as that takes longer than `KNOWN_AGAIN`, only late answers that follow each other more closely are
/// counted.
const LATE: u32 = 3;
const KNOWN_AGAIN: u64 = 150_000;

/// The pause between two trials, in a fleet of at most `OWNERS` nodes.
const PAUSE: u64 = 100_000;
const OWNERS: usize = 64;

/// A peer's trip is judged once it has answered this often, because a node ignores answers about keys that it has
/// forgotten meanwhile.
const ANSWERS: u32 = 3;

/// A node that is frozen is not judged for this long before and after.
const AROUND: u64 = 1_000_000;

/// An ask that a node waits for.
#[derive(Clone, Copy, Debug)]
struct Open {
    key: u32,
    id: u64,
    peer: Option<Life>,
    sent: u64,
    patience: u64,
}

impl Open {
    /// An answer before this time is surely in time.
    fn surely_until(&self) -> u64 {
        self.sent + self.patience - self.patience.div_ceil(DRIFT_PART)
    }

    /// An answer after this time is surely too late.
    fn at_most_until(&self) -> u64 {
        self.sent + self.patience + self.patience.div_ceil(DRIFT_PART)
    }
}

/// What a node knows of a peer.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// When it said that it has no store or is leaving, if it has lent nothing since.
    refused: Option<u64>,
    /// Whether its last answer was that it has no store.
    has_none: bool,
    /// When it last answered, how often it has, and how long its quickest answer took.
    heard: u64,
    answers: u32,
    quickest: u64,
    /// How many of its answers in a row were late, and when the last of them was due.
    late: u32,
    late_at: u64,
}

impl Peer {
    /// Takes note that its answer was due by `at` and has not come.
    fn note_late(&mut self, at: u64) {
        self.late = if at < self.late_at + KNOWN_AGAIN { self.late + 1 } else { 1 };
        self.late_at = at;
    }
}

/// Who asked, under which id, and until when it waits by the reckoning of the asked node.
type Wait = (Life, u64, u64);

/// Who is in the fleet, and since when all others know that.
#[derive(Debug, Default)]
struct Fleet {
    /// The time after which all nodes have heard of a new one, and it of all.
    known: u64,
    /// When each live node has joined.
    came: Map<u32, u64>,
    /// How many faults are under way during which live nodes do not hear each other, or leave; and when such a fault
    /// last ended, or a node left.
    torn: u32,
    ended: u64,
}

impl Fleet {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Joined { node, .. } => _ = self.came.insert(*node, moment.at),
            Seen::Left { node, .. } => {
                self.came.remove(node);
                self.ended = self.ended.max(moment.at);
            }
            Seen::Begins(fault) if tears(&fault.what) => self.torn += 1,
            Seen::Ends(fault) if tears(&fault.what) => {
                (self.torn, self.ended) = (self.torn.saturating_sub(1), moment.at);
            }
            _ => {}
        }
    }

    /// The least number of nodes per owner that the node has known of from `since` to now.
    fn crowd(&self, life: Life, since: u64, now: u64) -> u64 {
        let knows = |came: &u64| came.saturating_add(self.known) <= since;
        let is_torn = self.torn > 0 || self.ended > 0 && self.ended + self.known > since.min(now);
        if UNSTEADY.when(is_torn || !self.came.get(&life.0).is_some_and(knows)) {
            return 1;
        }
        let nodes = self.came.values().filter(|came| knows(came)).count();
        nodes.div_ceil(OWNERS).max(1) as u64
    }
}

/// The checker.
#[derive(Debug)]
pub(super) struct Asking {
    is_on: bool,
    judges_peers: bool,
    /// By policy: when its limits change.
    pushes: Vec<Pushes>,
    clocks: Clocks,
    timeout: u64,
    fleet: Fleet,
    lives: Lives,
    stops: Stops,
    open: Map<Life, Vec<Open>>,
    peers: Map<(Life, Life), Peer>,
    /// The asks that nodes let wait, by the asked node and the key.
    waits: Map<(Life, u32), Vec<Wait>>,
    /// When a node last tried a peer that has no store.
    tried: Map<Life, u64>,
    /// When a node last decided by its share of a key.
    by_share: Map<(Life, u32), u64>,
    /// When a peer last lent a node tokens of a key: in true time, and by the store's clock.
    lent: Map<(Life, u32), (u64, u64)>,
    found: Found,
}

impl Asking {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let is_on = !OFF.when(!plan.daemon.owners);
        let known = plan.gossip.map_or(u64::MAX, |gossip| gossip.join.0 + 3 * gossip.tick.0);
        Self {
            is_on,
            judges_peers: is_on && !SHARDS.when(plan.daemon.shards > 1),
            pushes: (0..plan.policies.len().max(1)).map(|policy| Pushes::new(plan, policy)).collect(),
            clocks: Clocks::new(plan),
            timeout: plan.daemon.timeout.0,
            fleet: Fleet { known, ..Fleet::default() },
            lives: Lives::default(),
            stops: Stops::default(),
            open: Map::default(),
            peers: Map::default(),
            waits: Map::default(),
            tried: Map::default(),
            by_share: Map::default(),
            lent: Map::default(),
            found: Found::default(),
        }
    }

    fn asks(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, peer: Option<Life>) {
        let patience = ask.awaited.0;
        if patience > self.timeout / 2 + 1 {
            self.found
                .add("asking", moment, || format!("key {key}: {life:?} waits for more than half of its time: {ask:?}"));
        }
        let waits =
            self.waits.get(&(life, key)).and_then(|waits| waits.iter().find(|(_, _, until)| moment.at < *until));
        if let Some((waits, id, _)) = waits {
            self.found.add("asking", moment, || {
                format!("key {key}: {life:?} asks for {ask:?}, and lets {waits:?} wait for {id}")
            });
        }
        self.note_late(moment, life);
        if let Some(peer) = peer.filter(|_| self.judges_peers) {
            self.asks_peer(moment, life, key, ask, peer);
        }
        self.open.entry(life).or_default().push(Open { key, id: ask.id, peer, sent: moment.at, patience });
    }

    fn asks_peer(&mut self, moment: Moment, life: Life, key: u32, ask: &Ask, peer: Life) {
        let known = self.peers.get(&(life, peer)).copied().unwrap_or_default();
        let within = |at: u64, span: u64| moment.at < at + span - span.div_ceil(DRIFT_PART);
        let why = match () {
            () if known.refused.is_some_and(|at| within(at, LEFT_OUT)) => "has said that it has no store, or leaves",
            () if known.late >= LATE && within(known.late_at, LATE_OUT) => "was late three times",
            () => "",
        };
        if !why.is_empty() {
            self.found.add("asking", moment, || {
                format!("key {key}: {life:?} asks {peer:?} for {ask:?}, which {why}: {known:?}")
            });
        }
        // Under several limits the ask gives the peer the whole time, because the peer lends nothing that ends before
        // that.
        let way = known.quickest - known.quickest.div_ceil(DRIFT_PART).min(known.quickest);
        let is_known = known.answers >= ANSWERS && moment.at < known.heard + KNOWN_AGAIN && ask.rule.limits.len() == 1;
        if is_known && ask.terms.patience.0 > (ask.awaited.0.saturating_sub(way) + 1).max(1) {
            self.found.add("asking", moment, || {
                format!("key {key}: {life:?} tells {peer:?} of all the time that it waits, and its answers take {way} us at least: {ask:?}")
            });
        }
        // A trial is an ask beside a check that the share has answered at the same moment.
        if !known.has_none || self.by_share.get(&(life, key)) != Some(&moment.at) {
            return;
        }
        let Some(before) = self.tried.insert(life, moment.at) else { return };
        let pause = PAUSE * self.fleet.crowd(life, before, moment.at);
        if within(before, pause) {
            self.found.add("asking", moment, || {
                format!("key {key}: {life:?} tries {peer:?}, and has tried another at {before}, with {pause} us between any two")
            });
        }
    }

    /// Counts the answers that should have come by now as late.
    fn note_late(&mut self, moment: Moment, life: Life) {
        let Some(open) = self.open.get_mut(&life) else { return };
        let is_stopped = STOPPED.when(self.stops.meet(life.0, moment.at, AROUND));
        let peers = &mut self.peers;
        open.retain(|open| {
            let is_late = open.at_most_until() < moment.at;
            if let Some(peer) = open.peer.filter(|_| is_late) {
                let known = peers.entry((life, peer)).or_default();
                if known.heard <= open.sent && !is_stopped {
                    known.note_late(open.at_most_until());
                }
            }
            !is_late
        });
    }

    fn hears(&mut self, moment: Moment, life: Life, key: u32, (ask, peer): (&Ask, Life), answer: &Answer, store: u64) {
        let open = self.open.entry(life).or_default();
        let Some(at) = open.iter().position(|open| (open.key, open.id) == (key, ask.id)) else { return };
        let open = open.remove(at);
        let known = self.peers.entry((life, peer)).or_default();
        if moment.at > open.at_most_until() {
            if known.heard <= open.sent {
                known.note_late(open.at_most_until());
            }
            return;
        }
        // Near the deadline only the node knows whether it took the answer for late, so the peer is assumed to be in
        // its favour again.
        (known.heard, known.late, known.has_none) = (moment.at, 0, false);
        let trip = moment.at - open.sent;
        known.quickest = if known.answers == 0 { trip } else { known.quickest.min(trip) };
        known.answers += 1;
        let is_in_time = moment.at < open.surely_until();
        known.refused = match answer {
            Err(refusal) if is_in_time && refusal.lasts() => Some(moment.at),
            Err(_) if is_in_time => known.refused,
            _ => None,
        };
        known.has_none = is_in_time && *answer == Err(Refusal::NoStore);
        let loan = answer.as_ref().ok().filter(|loan| loan.tokens > 0 && is_in_time);
        let is_open =
            |loan: &&Loan| loan.lasts.is_none_or(|lasts| open.sent + lasts.0 > moment.at + lasts.0 / DRIFT_PART);
        if loan.filter(is_open).is_some() {
            self.lent.insert((life, key), (moment.at, store));
        }
    }

    /// A node lends to a peer.
    fn lends(&mut self, moment: Moment, life: Life, key: u32, (ask, peer): (&Ask, Life), rule: &Rule, loan: &Loan) {
        let asked = self.open.get(&peer).and_then(|open| open.iter().find(|open| (open.key, open.id) == (key, ask.id)));
        let ends_before = |open: &Open| loan.lasts.is_some_and(|lasts| moment.at + lasts.0 < open.surely_until());
        let of_key = self.waits.get(&(life, key));
        let waits = of_key.and_then(|waits| waits.iter().find(|(by, id, _)| (*by, *id) == (peer, ask.id)));
        let why = match () {
            () if waits.is_some_and(|(_, _, until)| until + 2 * until_margin(ask) < moment.at) => {
                "that has stopped waiting"
            }
            () if rule.limits.len() > 1 && asked.is_some_and(ends_before) => "what ends on its way",
            () => return,
        };
        self.found
            .add("asking", moment, || format!("key {key}: {life:?} lends {loan:?} to {peer:?} for {ask:?}, {why}"));
    }

    /// Judges a check that was decided by the share.
    fn goes_by_its_share(&mut self, moment: Moment, request: &Request, rule: &Rule, decision: &Decision, store: u64) {
        let place = (self.lives.of(request.node), request.key);
        self.by_share.insert(place, moment.at);
        let ([limit], OnStoreLoss::Share) = (&rule.limits[..], rule.on_store_loss) else { return };
        let lent = self.lent.get(&place).filter(|_| decision.verdict == Verdict::Allow);
        let Some((at, lent)) = lent else { return };
        let (period, around) = (limit.period.0, 2 * self.timeout);
        let is_inside = |at: u64| (around..period.saturating_sub(around)).contains(&(at % period));
        let is_another = goes_by(decision).0.abs_diff(store) > around
            || self.clocks.leapt(request.key).is_some_and(|leapt| leapt >= *at);
        let is_excused = EDGE.when(!is_inside(*lent) || !is_inside(store))
            || LEAPS.when(is_another)
            || PUSHES.when(self.pushes[request.policy as usize].meet(moment.at));
        if limit.algorithm == Algorithm::Fixed && store / period == lent / period && !is_excused {
            self.found.add("asking", moment, || {
                format!(
                    "{request:?} was admitted on the share at {store}, in a window in which a peer has lent at {lent}"
                )
            });
        }
    }
}

/// How far off a node's clock may reckon the time for which an ask waits.
fn until_margin(ask: &Ask) -> u64 {
    2 * ask.terms.patience.0.div_ceil(DRIFT_PART)
}

/// Whether during this fault live nodes are taken for gone, or leave (which they announce before they are gone).
fn tears(what: &What) -> bool {
    matches!(
        what,
        What::Part { .. }
            | What::Freeze { .. }
            | What::Starve { .. }
            | What::Roll { .. }
            | What::Scale { .. }
            | What::Restart { .. }
    )
}

impl Observer for Asking {
    fn ignores(&self, topic: Topic) -> bool {
        !self.is_on || matches!(topic, Topic::Called | Topic::Settled)
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.lives.see(seen);
        self.stops.see(seen);
        self.fleet.see(moment, seen);
        self.clocks.see(moment, seen);
        match seen {
            Seen::PeerAsked { node, incarnation, key, ask, peer } => {
                self.asks(moment, (*node, *incarnation), *key, ask, *peer);
            }
            Seen::PeerWaits { node, incarnation, key, peer, ask } => {
                let until = moment.at + ask.terms.patience.0 - until_margin(ask);
                self.waits.entry(((*node, *incarnation), *key)).or_default().push((*peer, ask.id, until));
            }
            Seen::PeerAnswered { node, incarnation, key, peer, ask, answer, rule, .. } => {
                let life = (*node, *incarnation);
                if let Ok(loan) = answer
                    && loan.tokens > 0
                {
                    self.lends(moment, life, *key, (ask, *peer), rule, loan);
                }
                // An ask that came twice waits twice; only the later one is remembered.
                self.waits.entry((life, *key)).or_default().retain(|(by, id, _)| (*by, *id) != (*peer, ask.id));
            }
            Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store } => {
                self.hears(moment, (*node, *incarnation), *key, (ask, *peer), answer, store.0);
            }
            Seen::Answered { request, rule, decision, store, .. }
                if decision.source == Source::Share && request.kind == Kind::Check =>
            {
                self.goes_by_its_share(moment, request, rule, decision, store.0);
            }
            _ => {}
        }
    }
}

impl Checker for Asking {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::limit::Limit;
    use rationd::core::time::{Micros, Timestamp};

    use super::*;
    use crate::checkers::tests::{History, START, loan, peer_ask};

    const PEER: Life = (1, 1);

    fn checker(history: &History, nodes: u32) -> Asking {
        let mut setting = history.setting();
        setting.plan.daemon.owners = true;
        setting.plan.nodes = nodes;
        setting.plan.gossip = Some(crate::plan::Gossip::default());
        Asking::new(&setting)
    }

    fn asks(history: &mut History, checker: &mut Asking, at: u64, ask: &Ask) {
        let (node, incarnation, key, peer) = (0, 0, 0, Some(PEER));
        history.see(checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer });
    }

    fn hears(history: &mut History, checker: &mut Asking, at: u64, ask: &Ask, answer: &Answer) {
        let (node, incarnation, key, peer, store) = (0, 0, 0, PEER, Timestamp(START + at));
        history.see(checker, at, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
    }

    #[test]
    fn who_waits_for_a_peer_for_more_than_half_of_its_time_is_seen() {
        for (patience, seen) in [(25_000, 0), (25_100, 1)] {
            let (mut history, mut ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut checker = checker(&history, 2);
            ask.awaited = Micros(patience);
            asks(&mut history, &mut checker, 5, &ask);
            assert_eq!(checker.violations().len(), seen);
        }
    }

    /// Three answers took 3 ms each, or the first of them 2 ms.
    #[test]
    fn who_tells_a_peer_of_the_time_that_its_answer_needs_is_seen() {
        for (first, patience, answers, after, seen) in [
            (3_000, 2_000, 3, 10_000, 0),
            (3_000, 2_010, 3, 10_000, 1),
            (2_000, 2_010, 3, 10_000, 0),
            (3_000, 5_000, 2, 10_000, 0),
            (3_000, 5_000, 3, 160_000, 0),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history, 2);
            for id in 0..answers {
                let (ask, at) = (peer_ask(id, 1, 1), 1_000 + id * 10_000);
                let mut ask = ask;
                ask.terms.patience = Micros(1);
                asks(&mut history, &mut checker, at, &ask);
                let trip = if id == 0 { first } else { 3_000 };
                hears(&mut history, &mut checker, at + trip, &ask, &loan(1));
            }
            let mut ask = peer_ask(9, 1, 1);
            ask.terms.patience = Micros(patience);
            asks(&mut history, &mut checker, 14_000 + (answers - 1) * 10_000 + after - 10_000, &ask);
            assert_eq!(
                checker.violations().len(),
                seen,
                "{first} {patience} {answers} {after}: {:?}",
                checker.violations()
            );
        }
    }

    #[test]
    fn who_asks_a_peer_again_that_has_just_refused_is_seen() {
        let (none, busy) = (Err(Refusal::NoStore), Err(Refusal::Busy));
        for (answer, after, seen) in [(none, 990_000, 1), (none, 1_000_000, 0), (busy, 10, 0), (loan(1), 10, 0)] {
            let (mut history, ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut checker = checker(&history, 2);
            asks(&mut history, &mut checker, 5, &ask);
            hears(&mut history, &mut checker, 1_000, &ask, &answer);
            asks(&mut history, &mut checker, 1_000 + after, &peer_ask(2, 1, 1));
            assert_eq!(checker.violations().len(), seen, "{answer:?} {after}");
        }
    }

    #[test]
    fn who_asks_a_peer_on_that_was_late_three_times_is_seen() {
        for (late, each, after, seen) in
            [(2, 10_000, 10_000, 0), (3, 10_000, 10_000, 1), (3, 200_000, 10_000, 0), (3, 10_000, 1_000_000, 0)]
        {
            let mut history = History::new("10/1s fixed");
            let mut checker = checker(&history, 2);
            (0..late).for_each(|id| asks(&mut history, &mut checker, each * id, &peer_ask(id + 1, 1, 1)));
            asks(&mut history, &mut checker, each * (late - 1) + after, &peer_ask(9, 1, 1));
            assert_eq!(checker.violations().len(), seen, "{late} {each} {after}");
        }
    }

    /// Violations when a node in a fleet of `nodes`, after `before`, tries one peer and another one `pause` later.
    fn trials(nodes: u32, before: &[(u64, Seen<'_>)], pause: u64) -> usize {
        let mut history = History::new("10/1s fixed");
        let mut checker = checker(&history, nodes);
        (0..nodes).for_each(|node| history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 0 }));
        let (node, incarnation, key, store) = (0, 0, 0, Timestamp(START));
        for (place, peer) in [(1, (1, 1)), (2, (2, 1))] {
            let ask = &peer_ask(place, 1, 1);
            let at = place * 10_000;
            history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
            let answer = &Err(Refusal::NoStore);
            history.see(&mut checker, at + 1, &Seen::PeerHeard { node, incarnation, key, peer, ask, answer, store });
        }
        before.iter().for_each(|(at, seen)| history.see(&mut checker, *at, seen));
        for (place, peer, at) in [(3, (1, 1), 5_000_000), (4, (2, 1), 5_000_000 + pause)] {
            history.check(&mut checker, at, 1, Source::Share, false);
            let ask = &peer_ask(place, 1, 1);
            history.see(&mut checker, at, &Seen::PeerAsked { node, incarnation, key, ask, peer: Some(peer) });
        }
        checker.violations().len()
    }

    #[test]
    fn who_tries_peers_too_often_is_seen() {
        assert_eq!([trials(64, &[], 99_000), trials(64, &[], 100_000)], [1, 0]);
        assert_eq!([trials(65, &[], 199_000), trials(65, &[], 200_000)], [1, 0]);
    }

    /// A fleet is as large as all of its nodes know it to be: nodes that have just joined, are gone, or were frozen
    /// lately do not count.
    #[test]
    fn who_tries_peers_too_often_is_seen_in_a_fleet_that_changes() {
        let fault = crate::plan::Fault {
            at: crate::span::Span(2_000_000),
            lasts: crate::span::Span(100_000),
            what: What::Freeze { node: 7 },
        };
        let [begins, ends] = [Seen::Begins(&fault), Seen::Ends(&fault)];
        let comes = |at| (at, Seen::Joined { node: 64, incarnation: 1 });
        let leaves = |at| (at, Seen::Left { node: 64, drained: true });
        for (nodes, before, seen) in [
            (65, vec![leaves(1_000_000)], 0),
            (65, vec![leaves(1_000_000), comes(1_500_000)], 1),
            (64, vec![comes(4_900_000)], 0),
            (65, vec![(2_000_000, begins), (2_100_000, ends)], 1),
            (65, vec![(2_000_000, begins)], 0),
            (65, vec![(2_000_000, begins), (4_900_000, ends)], 0),
        ] {
            assert_eq!(trials(nodes, &before, 199_000), seen, "{nodes} {before:?}");
        }
    }

    #[test]
    fn who_lends_what_nobody_can_spend_is_seen() {
        // Number of limits, how long the loan lasts, and how long after the peer began to wait it is made.
        for (limits, lasts, after, seen) in [(2, 4_000, 1, 1), (1, 4_000, 1, 0), (2, 6_000, 1, 0), (1, 9_000, 5_100, 1)]
        {
            let (mut history, ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut checker = checker(&history, 2);
            let (node, incarnation, key, peer) = (1, 1, 0, (0, 0));
            asks(&mut history, &mut checker, 10, &ask);
            history.see(&mut checker, 20, &Seen::PeerWaits { node, incarnation, key, ask: &ask, peer });
            let both = ["10/1s fixed", "20/1m fixed"].map(|text| Limit::parse(text).expect("a limit"));
            let rule = Arc::new(Rule::of("p", &both[..limits]));
            let Ok(loan) = loan(1) else { panic!("a loan") };
            let (answer, leaves) = (&Ok(Loan { lasts: Some(Micros(lasts)), ..loan }), false);
            let (rule, ask, store) = (&rule, &ask, Timestamp(START));
            let seen_answer = Seen::PeerAnswered { node, incarnation, key, peer, ask, answer, rule, leaves, store };
            history.see(&mut checker, 20 + after, &seen_answer);
            assert_eq!(checker.violations().len(), seen, "{limits} {lasts} {after}");
        }
    }

    #[test]
    fn who_asks_a_peer_and_lets_another_wait_is_seen() {
        for (at, seen) in [(4_000, 1), (5_100, 0)] {
            let (mut history, ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut checker = checker(&history, 3);
            let waits = Seen::PeerWaits { node: 0, incarnation: 0, key: 0, ask: &ask, peer: (2, 1) };
            history.see(&mut checker, 20, &waits);
            asks(&mut history, &mut checker, at, &peer_ask(2, 1, 1));
            assert_eq!(checker.violations().len(), seen, "{at}");
        }
    }

    #[test]
    fn a_share_of_a_window_in_which_a_peer_lent_is_seen() {
        for (at, ok, seen) in [(600_000, true, 1), (600_000, false, 0), (1_600_000, true, 0), (950_000, true, 0)] {
            let (mut history, ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut checker = checker(&history, 2);
            asks(&mut history, &mut checker, 500_000, &ask);
            hears(&mut history, &mut checker, 501_000, &ask, &loan(1));
            let request = history.ask(&mut checker, at);
            history.answer(&mut checker, at, &request, Source::Share, ok);
            assert_eq!(checker.violations().len(), seen, "{at} {ok}");
        }
    }

    /// Half a second after the loan a share is not judged if another clock counts the key or limits change, nor if the
    /// node's clock is off.
    #[test]
    fn a_share_beside_a_loan_is_judged_in_runs_in_which_clocks_differ_and_limits_change() {
        for (pushed, leaps, ahead, seen) in
            [(20, false, 0, 1), (0, false, 0, 0), (20, true, 0, 0), (20, false, 90_000, 1), (20, false, 110_000, 0)]
        {
            let (mut history, ask) = (History::new("10/1s fixed"), peer_ask(1, 1, 1));
            let mut setting = history.setting();
            setting.plan.daemon.owners = true;
            setting.plan.nodes = 2;
            setting.plan.redis.skew = crate::span::Span::secs(1);
            let what = What::Push { policy: 0, limits: vec!["20/1s fixed".into()] };
            let at = crate::span::Span::secs(pushed);
            setting.plan.faults.push(crate::plan::Fault { at, lasts: crate::span::Span(0), what });
            let mut checker = Asking::new(&setting);
            history.lent(&mut checker, 1, 0, 1, 1);
            asks(&mut history, &mut checker, 500_000, &ask);
            hears(&mut history, &mut checker, 501_000, &ask, &loan(1));
            if leaps {
                history.lent(&mut checker, 550_000, 2_000, 2, 1);
            }
            history.on_share(&mut checker, 600_000, ahead, 1);
            assert_eq!(checker.violations().len(), seen, "{pushed} {leaps} {ahead}: {:?}", checker.violations());
        }
    }
}
