//! Facts about nodes that several checkers keep: the life that each is in, which calls are seen for the first time, the
//! last answers about a key. It judges nothing.

use std::collections::VecDeque;

use rationd::core::call::Grant;
use rationd::core::decision::{Decision, Source, Verdict};
use rationd::core::limit::{Algorithm, Limit};
use rationd::core::policy::Rule;
use rationd::core::time::Timestamp;

use super::phased::BUSY;
use super::{SAME, trip};
use crate::maps::{Map, Numbered};
use crate::observe::{Holding, Kind, Moment, Request, Seen};
use crate::plan::{Plan, What};

/// How many ids are remembered of a node.
const REMEMBERED: usize = 2_048;

/// How many answers are remembered. A node has adopted at least one of them.
const ANSWERS: usize = 4;

/// A node in one of its lives.
pub(super) type Life = (u32, u64);

/// Which life each node is in.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives(Numbered<u64>);

impl Lives {
    pub(super) fn see(&mut self, seen: &Seen<'_>) {
        if let Seen::Joined { node, incarnation } = seen {
            *self.0.of(*node) = *incarnation;
        }
    }

    pub(super) fn of(&self, node: u32) -> Life {
        (node, self.0.get(node).copied().unwrap_or(0))
    }
}

/// By node and key: the last loan from tokens that are set aside for a peer without the store. A check that is admitted
/// with it, at the moment at which it is heard, counts as admitted on that peer's share.
#[derive(Clone, Debug, Default)]
pub(super) struct Asides(Map<(u32, u32), (u64, Life)>);

impl Asides {
    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if let Seen::PeerHeard { node, key, peer, answer: Ok(loan), .. } = seen {
            if loan.aside && loan.tokens > 0 {
                self.0.insert((*node, *key), (moment.at, *peer));
            } else {
                self.0.remove(&(*node, *key));
            }
        }
    }

    /// The peer from whose share a check was admitted, if it was.
    pub(super) fn lender(&self, moment: Moment, request: &Request, decision: &Decision) -> Option<Life> {
        let (at, lender) = self.0.get(&(request.node, request.key)).filter(|_| decision.source == Source::Peer)?;
        (*at == moment.at).then_some(*lender)
    }
}

/// The ids that were seen, in order. Nodes count upwards, so the lowest is the oldest.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids(Map<Life, VecDeque<u64>>);

impl Ids {
    /// Notes an id; returns whether it was not seen before.
    pub(super) fn is_first(&mut self, life: Life, id: u64) -> bool {
        let ids = self.0.entry(life).or_default();
        let is_latest = ids.back().is_none_or(|last| *last < id);
        let Err(place) = (if is_latest { Err(ids.len()) } else { ids.binary_search(&id) }) else { return false };
        ids.insert(place, id);
        if ids.len() > REMEMBERED {
            ids.pop_front();
        }
        true
    }
}

/// The times at which nodes are frozen.
#[derive(Clone, Debug, Default)]
pub(super) struct Stops {
    /// The number of nodes so far.
    nodes: u32,
    /// In order and without overlaps: a node that is frozen once more while it is frozen goes on when the last freeze
    /// is over.
    stops: Map<u32, Vec<(u64, u64)>>,
}

impl Stops {
    #[inline]
    pub(super) fn see(&mut self, seen: &Seen<'_>) {
        if matches!(seen, Seen::Joined { .. } | Seen::Begins(_)) {
            self.note(seen);
        }
    }

    fn note(&mut self, seen: &Seen<'_>) {
        match seen {
            Seen::Joined { node, .. } => self.nodes = self.nodes.max(node + 1),
            Seen::Begins(fault) => {
                let named = match &fault.what {
                    What::Freeze { node } => vec![*node],
                    What::Starve { nodes, .. } if nodes.is_empty() => (0..self.nodes).collect(),
                    What::Starve { nodes, .. } => nodes.clone(),
                    _ => Vec::new(),
                };
                for node in named {
                    self.stop(node % self.nodes.max(1), fault.at.0, fault.at.0 + fault.lasts.0);
                }
            }
            _ => {}
        }
    }

    fn stop(&mut self, node: u32, begins: u64, ends: u64) {
        let stops = self.stops.entry(node).or_default();
        match stops.last_mut().filter(|(_, last)| begins <= *last) {
            Some((_, last)) => *last = ends.max(*last),
            None => stops.push((begins, ends)),
        }
    }

    fn of(&self, node: u32) -> impl Iterator<Item = &(u64, u64)> {
        self.stops.get(&node).into_iter().flatten()
    }

    /// Whether the node may be frozen at `at`, or was so within `before`.
    pub(super) fn meet(&self, node: u32, at: u64, before: u64) -> bool {
        self.of(node).any(|(begins, ends)| *begins <= at && at <= ends.saturating_add(before))
    }

    /// Whether a freeze excuses the node from doing at `at` what was due at `due`: it has `again` after the freeze.
    pub(super) fn delay(&self, node: u32, due: u64, at: u64, again: u64) -> bool {
        self.of(node).any(|(begins, ends)| *begins <= due && at <= ends.saturating_add(again))
    }
}

/// Notices when another clock counts a key at once.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    /// Whether that may happen in this run.
    is_on: bool,
    /// How much later than it arrived a busy server may execute a call, and show that time.
    busy: u64,
    /// Whether clocks of masters differ.
    differ: bool,
    /// How far each key's clock is ahead of true time, and when it last became another one.
    keys: Numbered<(Option<u64>, Option<u64>)>,
    /// When it shows the latest time that earlier ones have shown.
    caught_up: Map<u32, u64>,
}

impl Clocks {
    pub(super) fn new(plan: &Plan) -> Self {
        // If masters' clocks differ, a late execution cannot be told from a clock that is ahead.
        let differ = plan.redis.skew.0 != 0;
        let is_on = differ || plan.clocks_leap();
        Self {
            is_on,
            busy: if differ { SAME } else { BUSY },
            differ,
            keys: Numbered::default(),
            caught_up: Map::default(),
        }
    }

    #[inline]
    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            _ if !self.is_on => {}
            Seen::Executed { key, grant, stale: false, .. } => self.show(moment, *key, grant.now.0, self.busy),
            Seen::Answered { request, store, .. } => self.show(moment, request.key, store.0, SAME),
            Seen::Census { key, store, .. } => self.show(moment, *key, store.0, SAME),
            _ => {}
        }
    }

    /// Notes the clock that the key's owner shows.
    fn show(&mut self, moment: Moment, key: u32, now: u64, late: u64) {
        let skew = now.wrapping_sub(moment.store.0);
        let (known, leapt) = self.keys.of(key);
        let before = *known.get_or_insert(skew);
        let (behind, ahead) = (before.wrapping_sub(skew), skew.wrapping_sub(before));
        if behind.min(ahead) > if ahead < behind { late } else { SAME } {
            (*known, *leapt) = (Some(skew), Some(moment.at));
            // A clock that is behind passes through earlier windows once more.
            let again = if behind < ahead { behind } else { 0 };
            let caught_up = self.caught_up.entry(key).or_default();
            *caught_up = (moment.at + again).max(*caught_up);
        }
    }

    /// Whether a server whose clock shows `now` may have another clock than the key's owner. While the owner's is not
    /// known, any may be another, if clocks of masters differ.
    pub(super) fn is_another(&self, moment: Moment, key: u32, now: u64) -> bool {
        let skew = now.wrapping_sub(moment.store.0);
        let known = self.keys.get(key).and_then(|(known, _)| *known);
        let differs = |known: u64| known.wrapping_sub(skew).min(skew.wrapping_sub(known)) > SAME;
        self.differ && known.is_none_or(differs)
    }

    /// Whether the present clock of a key has not caught up with all earlier ones, or did so less than `lasts` ago.
    pub(super) fn is_new(&self, moment: Moment, key: u32, lasts: u64) -> bool {
        self.caught_up.get(&key).is_some_and(|caught_up| moment.at < caught_up + lasts)
    }

    /// When the key's clock last became another one.
    pub(super) fn leapt(&self, key: u32) -> Option<u64> {
        self.keys.get(key).and_then(|(_, leapt)| *leapt)
    }
}

/// Refunds that nodes have parked and no call has taken to the store yet: one call may take several of a key.
#[derive(Clone, Debug)]
pub(super) struct Refunds<T>(Map<(Life, u32), Vec<(u64, T)>>);

impl<T> Default for Refunds<T> {
    fn default() -> Self {
        Self(Map::default())
    }
}

impl<T> Refunds<T> {
    /// Adds a requested refund.
    pub(super) fn ask(&mut self, life: Life, request: &Request, note: T) {
        self.0.entry((life, request.key)).or_default().push((request.id, note));
    }

    /// Removes a refund that the node has decided without a call.
    pub(super) fn decide(&mut self, life: Life, request: &Request) {
        if let Some(asked) = self.0.get_mut(&(life, request.key)) {
            asked.retain(|(id, _)| *id != request.id);
        }
    }

    /// A call leaves: removes and returns the refunds that it takes along, or all if it seems to take none.
    pub(super) fn leave(&mut self, life: Life, key: u32, is_for: impl Fn(&T) -> bool) -> Vec<T> {
        let asked = self.0.remove(&(life, key)).unwrap_or_default();
        let (of_it, others): (Vec<_>, Vec<_>) = asked.into_iter().partition(|(_, note)| is_for(note));
        if of_it.is_empty() {
            return others.into_iter().map(|(_, note)| note).collect();
        }
        if !others.is_empty() {
            self.0.insert((life, key), others);
        }
        of_it.into_iter().map(|(_, note)| note).collect()
    }
}

/// Calls that nodes have sent without knowing the outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Map<u32, Vec<(Life, u64, u64)>>);

impl UnderWay {
    /// A node has sent a call or an ask about a key, or has sent it again.
    pub(super) fn leave(&mut self, moment: Moment, life: Life, key: u32, id: u64) {
        let calls = self.0.entry(key).or_default();
        if !calls.iter().any(|(of, sent, _)| (*of, *sent) == (life, id)) {
            calls.push((life, id, moment.at));
        }
    }

    /// The node knows the outcome; returns how long that took, in true time.
    pub(super) fn settle(&mut self, moment: Moment, life: Life, key: u32, id: u64) -> Option<u64> {
        let calls = self.0.get_mut(&key)?;
        let place = calls.iter().position(|(of, sent, _)| (*of, *sent) == (life, id))?;
        Some(moment.at - calls.swap_remove(place).2)
    }

    /// The node is gone or begins anew and waits for no answer any more; returns the keys of its calls.
    pub(super) fn end(&mut self, node: u32) -> Vec<u32> {
        let waited = |calls: &mut Vec<(Life, u64, u64)>| calls.extract_if(.., |((of, _), ..)| *of == node).count() > 0;
        self.0.iter_mut().filter_map(|(key, calls)| waited(calls).then_some(*key)).collect()
    }

    /// The nodes that wait for calls about a key, and since when.
    pub(super) fn of(&self, key: u32) -> impl Iterator<Item = (Life, u64)> {
        self.0.get(&key).into_iter().flatten().map(|(life, _, left)| (*life, *left))
    }
}

/// How long answers were under way, since the sending that their node counts from.
#[derive(Clone, Debug, Default)]
pub(super) struct Trips {
    /// When each call was sent, by node, id and the node's clock.
    sent: Map<(u32, u64, u64), u64>,
    latest: u64,
}

impl Trips {
    #[inline]
    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        match seen {
            Seen::Called { node, call, .. } => {
                self.sent.insert((*node, call.id, call.sent_at.0), moment.at);
            }
            Seen::Settled { node, call, .. } => {
                let sent = self.sent.remove(&(*node, call.id, call.sent_at.0));
                self.latest = sent.map_or(0, |sent| moment.at - sent);
            }
            _ => {}
        }
    }

    /// The trip of the answer that has just come.
    pub(super) fn latest(&self) -> u64 {
        self.latest
    }
}

/// The store's time by which the node decided: the earliest that it reckons with.
pub(super) fn goes_by(decision: &Decision) -> Timestamp {
    Timestamp(decision.reset_at.0.saturating_sub(decision.reset_after.0))
}

/// A trip that is longer than this part of a period leaves in doubt which window is open.
const DOUBT_PART: u64 = 4;

/// The number of the aligned window that a node takes for open when it admits a check on its share, if it knows the
/// store's clock to within `trip`; `None` if it may be either of two. The node reckons with the latest time that the
/// clock may show, and reports the earliest. It admits only if both are in one window or the trip is long.
pub(super) fn window_of_share(rule: &Rule, limit: &Limit, decision: &Decision, trip: u64) -> Option<u64> {
    let (period, clock) = (limit.period.0, goes_by(decision).0);
    let (earliest, latest) = (clock / period, (clock + trip) / period);
    if trip <= period / DOUBT_PART || earliest == latest {
        return Some(earliest);
    }
    let ends = decision.reset_at.0;
    let is_told = rule.limits.len() == 1 && limit.algorithm == Algorithm::Fixed && ends.is_multiple_of(period);
    (ends / period).checked_sub(1).filter(|window| is_told && (earliest..=latest).contains(window))
}

/// How precisely nodes know the store's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Nearness {
    trips: Trips,
    /// The trips of the latest answers about a key, and how many answers there were.
    latest: Map<(Life, u32), ([u64; ANSWERS], usize)>,
    /// The precision of a node that has heard no answer itself.
    vague: u64,
}

impl Nearness {
    pub(super) fn new(plan: &Plan) -> Self {
        const DOUBT: u64 = 10_000;
        Self { vague: (2 * (plan.daemon.timeout.0 + DOUBT)).max(trip(plan)), ..Self::default() }
    }

    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.trips.see(moment, seen);
        if let Seen::Settled { node, incarnation, key, grant: Some(_), .. } = seen {
            let (trips, answers) = self.latest.entry(((*node, *incarnation), *key)).or_default();
            trips[*answers % ANSWERS] = if self.trips.latest() == 0 { self.vague } else { self.trips.latest() };
            *answers += 1;
        }
    }

    /// The node has dropped the key.
    pub(super) fn forget(&mut self, life: Life, key: u32) {
        self.latest.remove(&(life, key));
    }

    /// The node's precision: the longest trip of the latest answers, as it uses one of them.
    pub(super) fn of(&self, life: Life, key: u32) -> u64 {
        let latest = self.latest.get(&(life, key)).map(|(trips, answers)| &trips[..(*answers).min(ANSWERS)]);
        latest.and_then(|trips| trips.iter().max()).copied().unwrap_or(self.vague)
    }
}

/// Holds that were admitted on shares. The surplus of one is given back to the share.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    /// Whether times are by the clocks that nodes use, and not by the owner's.
    by_nodes: bool,
    /// The latest admission: the request, and the time.
    latest: Option<(u64, u64)>,
    holds: Map<u64, u64>,
}

impl Alone {
    pub(super) fn by_nodes() -> Self {
        Self { by_nodes: true, ..Self::default() }
    }

    /// The refund that is given back to a share, if this is one, and the time of the hold's admission.
    pub(super) fn gives_back<'a>(&mut self, seen: &Seen<'a>) -> Option<(&'a Request, u64)> {
        match seen {
            Seen::Answered { request, decision, store, .. } => {
                let on_share = decision.source == Source::Share && decision.verdict == Verdict::Allow;
                let time = if self.by_nodes { goes_by(decision) } else { *store };
                self.latest = on_share.then_some((request.id, time.0));
            }
            Seen::Hold(hold, Holding::Kept { .. }) => {
                if let Some((_, store)) = self.latest.filter(|(request, _)| request == hold) {
                    self.holds.insert(*hold, store);
                }
            }
            Seen::Hold(hold, Holding::Asks(request)) if request.kind == Kind::Refund => {
                return self.holds.remove(hold).map(|store| (*request, store));
            }
            _ => {}
        }
        None
    }
}

/// The store's last answers to a node about a key.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    last: VecDeque<(u64, u32, bool)>,
    /// When the latest of them came.
    latest: u64,
}

impl Answers {
    pub(super) fn note(&mut self, moment: Moment, id: u64, grant: &Grant) {
        // A call that is sent again after a reset is answered anew.
        let answer = (id, grant.nodes, grant.confirmed);
        if !self.last.contains(&answer) {
            self.latest = moment.at;
            self.last.push_back(answer);
            if self.last.len() > ANSWERS {
                self.last.pop_front();
            }
        }
    }

    pub(super) fn latest(&self) -> u64 {
        self.latest
    }

    /// The smallest number of nodes in them.
    pub(super) fn nodes(&self) -> u64 {
        self.last.iter().map(|(_, nodes, _)| u64::from(*nodes)).min().unwrap_or(1).max(1)
    }

    /// Whether there were enough of them and none was confirmed.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.last.len() == ANSWERS && self.last.iter().all(|(_, _, confirmed)| !confirmed)
    }
}
