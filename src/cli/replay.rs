//! Replays arrivals through the core, on virtual time: each node's arrivals go to a shard, and all shards lease from
//! one store.
//!
//! The nodes are shards of the shipped core and the store is the memory store, which answers as the scripts do. The fleet
//! does not gossip here, and the store is never away.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::sync::Arc;

use crate::core::call::{Call, Grant, StoreError};
use crate::core::decision::{Decision, Verdict};
use crate::core::key::{Digest, DigestKey};
use crate::core::overrides::Subject;
use crate::core::policy::{Plan, Policy, PolicySet};
use crate::core::shard::{Effect, Outcome, Request, Settings, Shard, Ticket};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::serve::recording::file::{Arrival, Event, kept, policy_tag};
use crate::store::memory::MemoryStore;

/// Where the monotonic clocks begin, so that nothing is before their beginning.
const BEGIN: u64 = 3_600_000_000;

/// How arrivals are replayed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The number of nodes. A node without a recording replays another node's, a little later.
    pub(super) nodes: usize,
    /// The round trip from a node to the store.
    pub(super) trip: Micros,
    /// How long a check waits for the store.
    pub(super) timeout: Micros,
    /// The key by which the digests were made.
    pub(super) digests: DigestKey,
    /// Calls and waits before this do not count.
    pub(super) counted_from: Timestamp,
}

/// The outcome of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Replayed {
    /// The fate of each arrival, by recording.
    pub(super) fates: Vec<Vec<Fate>>,
    /// Calls to the store.
    pub(super) calls: u64,
    /// Checks that waited for the store.
    pub(super) waits: u64,
}

/// What became of a recorded check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is no check, its policy does not exist, or its limit is concurrent, and releases are not recorded.
    #[default]
    Unknown,
    /// It passed.
    Admitted,
    /// It was denied.
    Denied,
    /// A limit denied it, and it passed because its policy does not deny for its key.
    Shadowed,
}

/// The policies, found by their tags in recordings.
pub(super) struct Policies<'a> {
    by_tag: HashMap<u64, &'a Arc<Policy>>,
    /// Overrides of single keys, by the part of their digests that a recording keeps.
    single: HashMap<Digest, &'a Plan>,
    /// The recordings have keys, so overrides are found by the key's bytes.
    has_keys: bool,
}

impl<'a> Policies<'a> {
    pub(super) fn new(set: &'a PolicySet, digests: DigestKey, has_keys: bool) -> Self {
        let by_tag = set.iter().map(|policy| (policy_tag(&policy.name), policy)).collect();
        let single =
            set.iter().flat_map(|policy| policy.overrides.iter().map(move |(name, plan)| (policy, name, plan)));
        let single = single.filter_map(|(policy, name, plan)| match Subject::parse(name) {
            Ok(Subject::Key(key)) => Some((kept(digests.digest(&policy.name, &key)), plan)),
            _ => None,
        });
        Self { by_tag, single: single.collect(), has_keys }
    }

    /// The policy of an arrival.
    pub(super) fn policy(&self, arrival: &Arrival) -> Option<&'a Arc<Policy>> {
        self.by_tag.get(&arrival.policy).copied()
    }

    fn plan(&self, policy: &'a Policy, arrival: &Arrival) -> &'a Plan {
        let single = self.single.get(&arrival.digest).copied();
        single.unwrap_or_else(|| if self.has_keys { policy.plan(&arrival.key) } else { &policy.plan })
    }
}

/// A node of the replay.
struct Node {
    shard: Shard,
    name: String,
    /// Checks that wait, with the number of their arrival.
    waiting: HashMap<Ticket, usize>,
    /// Which recording it replays, and how much later.
    recording: usize,
    shift: u64,
    next: usize,
    due: Option<Instant>,
}

/// An answer of the store on its way.
struct Answer {
    at: Instant,
    node: usize,
    call: Call,
    outcome: Result<Grant, StoreError>,
}

/// A replay while it runs.
struct Replay<'a> {
    policies: Policies<'a>,
    recordings: &'a [Vec<Arrival>],
    terms: Terms,
    store: MemoryStore,
    nodes: Vec<Node>,
    timers: BTreeSet<(Instant, usize)>,
    /// In order of time, because all answers take equally long.
    answers: VecDeque<Answer>,
    /// The wall clock minus the monotonic clocks.
    offset: u64,
    replayed: Replayed,
}

/// Replays the recordings under these policies.
pub(super) fn replay(set: &PolicySet, recordings: &[Vec<Arrival>], has_keys: bool, terms: Terms) -> Replayed {
    let first = recordings.iter().filter_map(|arrivals| arrivals.first()).map(|arrival| arrival.at.0).min();
    let Some(first) = first else {
        return Replayed { fates: recordings.iter().map(|_| Vec::new()).collect(), ..Replayed::default() };
    };
    let keys: BTreeSet<_> = recordings.iter().flatten().map(|arrival| arrival.digest).collect();
    let settings = Settings { max_keys: keys.len() + 16, timeout: terms.timeout, lease_ahead: true };
    let total = terms.nodes.max(recordings.len());
    let nodes = (0..total).map(|number| {
        let clock = (Instant(BEGIN), Timestamp(first));
        let (recording, lap) = (number % recordings.len(), (number / recordings.len()) as u64);
        Node {
            shard: Shard::new(settings, number as u64 + 1, 1, 1, clock),
            name: format!("n{number}"),
            waiting: HashMap::new(),
            recording,
            shift: gap(&recordings[recording]) * lap / total as u64 + lap,
            next: 0,
            due: None,
        }
    });
    let mut replay = Replay {
        policies: Policies::new(set, terms.digests, has_keys),
        recordings,
        terms,
        store: MemoryStore::new(keys.len() * crate::core::limit::MAX_LIMITS + 16, 7),
        nodes: nodes.collect(),
        timers: BTreeSet::new(),
        answers: VecDeque::new(),
        offset: first - BEGIN.min(first),
        replayed: Replayed {
            fates: recordings.iter().map(|arrivals| vec![Fate::Unknown; arrivals.len()]).collect(),
            ..Replayed::default()
        },
    };
    replay.run();
    replay.replayed
}

/// The median time between two arrivals that did not come at once. Nodes that replay the same recording are shifted
/// against each other by parts of it. The mean would be too long where one pause is longer than everything else: then
/// one node would replay all its arrivals before the next one begins.
fn gap(arrivals: &[Arrival]) -> u64 {
    let gaps = arrivals.windows(2).map(|pair| pair[1].at.0.saturating_sub(pair[0].at.0));
    let mut gaps: Vec<_> = gaps.filter(|gap| *gap > 0).collect();
    let middle = gaps.len() / 2;
    if gaps.is_empty() { 0 } else { *gaps.select_nth_unstable(middle).1 }
}

impl Replay<'_> {
    fn run(&mut self) {
        let mut coming: BinaryHeap<Reverse<(Instant, usize)>> =
            (0..self.nodes.len()).filter_map(|node| Some(Reverse((self.next_arrival(node)?, node)))).collect();
        loop {
            let arrival = coming.peek().map(|Reverse((at, _))| *at);
            // The replay ends when no check waits any more; timers after that are not run.
            if arrival.is_none() && self.nodes.iter().all(|node| node.waiting.is_empty()) {
                return;
            }
            let answer = self.answers.front().map(|answer| answer.at);
            let timer = self.timers.first().map(|(at, _)| *at);
            let Some(now) = [arrival, answer, timer].into_iter().flatten().min() else { return };
            let node = if answer == Some(now) {
                let Some(Answer { node, call, outcome, .. }) = self.answers.pop_front() else { return };
                self.nodes[node].shard.handle_outcome(now, &call, outcome);
                node
            } else if timer == Some(now) {
                let Some((_, node)) = self.timers.pop_first() else { return };
                self.nodes[node].due = None;
                self.nodes[node].shard.handle_timeout(now);
                node
            } else {
                let Some(Reverse((_, node))) = coming.pop() else { return };
                self.arrive(now, node);
                coming.extend(self.next_arrival(node).map(|at| Reverse((at, node))));
                node
            };
            self.carry_out(now, node);
        }
    }

    fn next_arrival(&self, node: usize) -> Option<Instant> {
        let node = &self.nodes[node];
        let arrival = self.recordings[node.recording].get(node.next)?;
        Some(Instant(arrival.at.0.saturating_sub(self.offset) + node.shift))
    }

    fn arrive(&mut self, now: Instant, node: usize) {
        let node = &mut self.nodes[node];
        let (index, is_counted) = (node.next, node.shift == 0);
        node.next += 1;
        let arrival = &self.recordings[node.recording][index];
        let Some(policy) = self.policies.policy(arrival) else { return };
        let fates = &mut self.replayed.fates[node.recording];
        let rule = match self.policies.plan(policy, arrival) {
            Plan::Limited(rule) => rule,
            plan => {
                let is_check = matches!(arrival.event, Event::Admitted | Event::Denied);
                if let Some(decision) = plan.fixed_decision().filter(|_| is_counted && is_check) {
                    fates[index] = fate(policy, arrival, decision);
                }
                return;
            }
        };
        if rule.is_concurrent() {
            return;
        }
        let request = Request { rule, digest: arrival.digest, key: &arrival.key, cost: arrival.cost, peek: false };
        let outcome = match arrival.event {
            Event::Admitted | Event::Denied => node.shard.check(now, request),
            // Nothing waits for the answer to a refund or a reset.
            Event::GivenBack => {
                node.shard.refund(now, request);
                return;
            }
            Event::Reset => {
                node.shard.reset(now, request);
                return;
            }
        };
        match outcome {
            Outcome::Decided(decision) if is_counted => fates[index] = fate(policy, arrival, decision),
            Outcome::Decided(_) => {}
            Outcome::Parked(ticket) => {
                self.replayed.waits += u64::from(Timestamp(now.0 + self.offset) >= self.terms.counted_from);
                node.waiting.insert(ticket, index);
            }
        }
    }

    /// Carries out the effects of the node's shard.
    fn carry_out(&mut self, now: Instant, at: usize) {
        let node = &mut self.nodes[at];
        while let Some(effect) = node.shard.poll_effect() {
            match effect {
                Effect::Call(call) => {
                    let store_time = Timestamp(now.0 + self.offset + self.terms.trip.0 / 2);
                    self.replayed.calls += u64::from(store_time >= self.terms.counted_from);
                    let outcome = self.store.call(store_time, &node.name, &call);
                    let at_node = Answer { at: now + self.terms.trip, node: at, call: *call, outcome };
                    self.answers.push_back(at_node);
                }
                Effect::Reply { ticket, decision } => {
                    if let Some(index) = node.waiting.remove(&ticket).filter(|_| node.shift == 0) {
                        let arrival = &self.recordings[node.recording][index];
                        if let Some(policy) = self.policies.policy(arrival) {
                            self.replayed.fates[node.recording][index] = fate(policy, arrival, decision);
                        }
                    }
                }
                // The shards know no peers, so they never ask or answer one.
                Effect::Ask { .. } | Effect::Answer { .. } => {}
            }
        }
        let due = node.shard.poll_timeout();
        if due != node.due {
            if let Some(before) = node.due {
                self.timers.remove(&(before, at));
            }
            self.timers.extend(due.map(|due| (due, at)));
            node.due = due;
        }
    }
}

fn fate(policy: &Policy, arrival: &Arrival, decision: Decision) -> Fate {
    match (decision.verdict, policy.enforced(arrival.digest, decision).verdict) {
        (Verdict::Allow, _) => Fate::Admitted,
        (Verdict::Deny, Verdict::Deny) => Fate::Denied,
        (Verdict::Deny, Verdict::Allow) => Fate::Shadowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(times: &[u64]) -> Vec<Arrival> {
        let arrival = |at: &u64| Arrival {
            at: Timestamp(*at),
            digest: Digest(1),
            policy: 1,
            cost: 1,
            event: Event::Admitted,
            key: Box::default(),
        };
        times.iter().map(arrival).collect()
    }

    #[test]
    fn a_pause_does_not_part_nodes_that_take_one_recording() {
        assert_eq!(gap(&at(&[0, 50_000, 50_100, 50_200, 50_200, 50_290])), 100);
        assert_eq!((gap(&at(&[7, 7])), gap(&at(&[7])), gap(&[])), (0, 0, 0));
    }
}
