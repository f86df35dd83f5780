//! **bound** of concurrent limits: clients never have more slots at a time than the limit has. **conservation**: what a
//! node reports to the store about its clients' slots is true, each slot is given once, ends when it is released, and
//! can be released until its time is over. **plenty**: no check is denied while many slots are free.
//!
//! A client has a slot from the answer that gives it until it is released or its time is over or, if its node has died,
//! until the store has forgotten that node. Slots that the store lends a node are that node's for the time of a lease.
//! While the store may count a node wrongly, because it lost the node's report, an excess is excused, until the node
//! has reported again and knows the answer.
//!
//! Where a node that has lost the store goes on within what it was lent (`Rule::is_entitled_concurrent`), less is excused: its slots are
//! lent for so long that they have all ended when the store forgets it, it gives none beside them, and a process under its name goes on
//! counting those of the one before.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use rationd::core::call::{Call, Grant, Occupy, Op};
use rationd::core::decision::{Decision, Reason, Source, Verdict};
use rationd::core::policy::Rule;
use rationd::core::time::Micros;

use super::notes::{Life, Lives, Stops};
use super::reach::Reach;
use super::sheet::{Exemption, Sheet};
use super::{Found, has_pushes};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Judged, Kind, Moment, Observer, Request, Seen, Setting, Topic, Violation};
use crate::plan::What;

static ALONE: Exemption = Exemption::new(
    "on a share or by a policy, but for entitled limits",
    "Nothing of it was lent by the store: it is beside what others are lent then, as the guarantees say.",
);
static FORGOTTEN: Exemption = Exemption::new(
    "a store that lost what a node had said, or a former owner",
    "It lends slots again that a node has: until that node has said so again and has the answer, and for those slots.",
);
static UNHEARD: Exemption = Exemption::new(
    "a node that the store has not heard of for 10 s, but for entitled limits",
    "Its lease is over, and its clients go on: until it is heard again, and for those slots.",
);
static SUCCEEDED: Exemption = Exemption::new(
    "slots of a process whose node is back under its name, but for entitled limits, unless it asks by the scripts of the build before",
    "The next process knows nothing of them, and hands them back with its first report.",
);
static MISSING: Exemption = Exemption::new(
    "of entitled limits, slots that were lent to a process that has ended, until its node has reported under its name or the lease has lapsed; and to a node whose report was lost, where a table has no room for all keys",
    "Nobody is lent them, because the store cannot know whether clients still have them.",
);
static CLOCKS: Exemption = Exemption::new(
    "moved to another clock",
    "By a clock that is ahead leases end at once: as a store that lost what nodes had said.",
);
static CHANGES: Exemption = Exemption::new(
    "limits that change",
    "What was lent under another limit is out until its lease and the time of its slots are over: the larger counts.",
);
static DRIFTS: Exemption =
    Exemption::new("the end of a slot", "Clocks of nodes drift: 200 millionths, in which it may be over or not.");
static FROZEN: Exemption = Exemption::new(
    "what a node says that is stopped while it is not run",
    "Its clients have left meanwhile, and it has not read that.",
);
static STRANDED: Exemption = Exemption::new(
    "denials of a key after a call of a node about it was lost, answered with an error or not sent, or the store lost something of what the node had said or counted it by another clock: until 5 s after the node has said so again, for 16 s at most; and for 16 s after a node that it was asked of was killed or stopped",
    "Slots are then with nodes that cannot say so, until their leases have ended and who asks has heard of that. When all has healed for 16 s, they are judged in any case.",
);
static CHANGED: Exemption = Exemption::new(
    "denials while limits change",
    "Some nodes go by a limit of fewer slots than others: from then on until what was lent under another limit is over.",
);
static HALF: Exemption = Exemption::new(
    "denials while half of the slots were out within 5 s, of each node what was most",
    "A node asks for twice of what its clients have, and hands back what it does not use after up to 3.4 s.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "permits.rs",
    invariants: &["bound", "conservation", "plenty"],
    proves: "No more slots of a concurrent limit are in clients' hands at a time than there are, and whoever knows that there are gives out no more; a node tells the store how many its clients have, gives each once and only while its lease lives, and lets go of what is released; nobody is denied while most are free.",
    judges: "Concurrent limits, and no others.",
    exemptions: &[
        &ALONE, &FORGOTTEN, &UNHEARD, &SUCCEEDED, &CLOCKS, &CHANGES, &DRIFTS, &FROZEN, &STRANDED, &CHANGED, &MISSING,
        &HALF,
    ],
    mutant: Some("permits-kept"),
};

/// How long slots that the store lends a node are its own, but for entitled limits.
const LEASE: u64 = 10_000_000;

/// How many millionths a clock runs fast or slow at most.
const DRIFT: u64 = 200;

/// How long unused slots may stay with their node.
const IDLE: u64 = 5_000_000;

/// How long after all faults, or after the last trouble of a key, all slots are where they belong: leases have ended,
/// and denied clients have asked again.
const HEALED: u64 = 16_000_000;

/// How long after all has healed leases flow again.
const SETTLED: u64 = 2_000_000;

/// A slot in a client's hands.
#[derive(Clone, Copy, Debug)]
struct Permit {
    cost: u64,
    /// It ends between these two times, as clocks differ.
    ends: [u64; 2],
    /// Whether it counts against the limit.
    counts: bool,
}

/// What is known of a node in one of its lives, for one key.
#[derive(Clone, Debug, Default)]
struct Lessee {
    /// When the store last executed a report of it, and for how long that asked for slots.
    reported: Option<(u64, u64)>,
    /// When it last knew an answer.
    heard: Option<u64>,
    /// The most slots that an answer showed to have been lent under its name before, and until when it may count them as held.
    inherited: (u64, u64),
    /// When each call that may still be answered was first sent, and when it was last executed.
    calls: BTreeMap<u64, (u64, Option<u64>)>,
    /// The latest end of its lease.
    until: u64,
    /// Since when the store may count it wrongly.
    dirty: Option<u64>,
    /// The slots that the store had lent it, and all others, by the last answer that it knows.
    shown: (u64, u64),
}

/// A node that may have slots that it could not report.
#[derive(Clone, Copy, Debug)]
struct Stranded {
    /// When that was last the case.
    since: u64,
    /// When it knew that the store had its report since.
    heard: Option<u64>,
}

/// What the store counts as a node's.
#[derive(Clone, Copy, Debug)]
struct Record {
    life: Life,
    slots: u64,
    until: u64,
}

/// One key.
#[derive(Debug, Default)]
struct Key {
    policy: usize,
    /// By node: its last report that was executed.
    records: BTreeMap<u32, Record>,
    permits: BTreeMap<(Life, NonZeroU64), Permit>,
    lessees: BTreeMap<Life, Lessee>,
    /// How far the clock that last counted it was ahead.
    clock: Option<i64>,
    /// Nodes that may have slots that they could not report, or that the store has forgotten.
    stranded: BTreeMap<u32, Stranded>,
    /// The nodes and costs of waiting requests.
    waiting: BTreeMap<u64, (u32, u64)>,
    /// By node: how many slots were in use or waited for, and until when, the latest last; kept for a while.
    peaks: BTreeMap<u32, Vec<(u64, u64)>>,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Permits {
    reach: Reach,
    healed: Option<u64>,
    /// By policy: the counts of its limits so far, and until when all of them are excused.
    counts: Vec<(Vec<u64>, u64)>,
    periods: Vec<u64>,
    lives: Lives,
    stops: Stops,
    keys: BTreeMap<u32, Key>,
    given: Set<(Life, NonZeroU64)>,
    /// Which policies are concurrent limits, and which of them are entitled.
    is_concurrent: Vec<bool>,
    is_entitled: Vec<bool>,
    /// When each process joined.
    joined: Map<Life, u64>,
    /// Processes that have ended.
    ended: Set<Life>,
    /// Whether nodes forget keys for want of room.
    is_cramped: bool,
    /// Whether there is none in this run.
    is_idle: bool,
    /// The number of denials, and of those that were judged.
    denials: [u64; 2],
    /// The number of checks, up to one, that had to be admitted when all had healed.
    used: u64,
    found: Found,
}

impl Permits {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            reach: Reach::new(plan),
            healed: None,
            counts: setting.rules.iter().map(|rule| (vec![rule.limits[0].count], 0)).collect(),
            periods: setting.rules.iter().map(|rule| rule.limits[0].period.0).collect(),
            lives: Lives::default(),
            stops: Stops::default(),
            keys: BTreeMap::new(),
            given: Set::default(),
            is_concurrent: setting.rules.iter().map(|rule| rule.is_concurrent()).collect(),
            is_entitled: setting.rules.iter().map(|rule| rule.is_entitled_concurrent()).collect(),
            joined: Map::default(),
            ended: Set::default(),
            is_cramped: plan.keys() > u64::from(plan.daemon.max_keys),
            is_idle: !setting.rules.iter().any(|rule| rule.is_concurrent()) && !has_pushes(plan),
            denials: [0; 2],
            used: 0,
            found: Found::default(),
        }
    }

    /// The limit of a policy, or a larger one that it had a moment ago.
    fn most(&self, policy: usize, now: u64) -> u64 {
        let (counts, until) = &self.counts[policy];
        let last = counts.last().copied().unwrap_or(0);
        if CHANGES.when(now < *until) { counts.iter().copied().max().unwrap_or(last) } else { last }
    }

    /// The same of an entitled key: it is the larger one for as long as a node goes by what it was lent before it could hear of the change.
    fn most_of(&self, key: &Key, now: u64) -> u64 {
        let (counts, until) = &self.counts[key.policy];
        let is_before = |lessee: &Lessee| now < lessee.until && lessee.heard.is_none_or(|heard| heard < *until);
        let is_late = self.is_entitled[key.policy] && counts.len() > 1 && key.lessees.values().any(is_before);
        let largest = counts.iter().copied().max().unwrap_or(0);
        if CHANGES.when(is_late) { largest } else { self.most(key.policy, now) }
    }

    /// Slots of an entitled limit that nobody can be lent.
    fn missing(&self, key: &Key, now: u64) -> u64 {
        if !self.is_entitled[key.policy] {
            return 0;
        }
        let is_lost = |node: u32| key.stranded.get(&node).is_some_and(|stranded| stranded.heard.is_none());
        let is_missing = |record: &Record| {
            let life = self.lives.of(record.life.0);
            life != record.life || self.ended.contains(&life) || self.is_cramped && is_lost(life.0)
        };
        let all = key.records.values().filter(|record| now < record.until && is_missing(record));
        MISSING.forgives(all.map(|record| record.slots).sum())
    }

    fn answered(&mut self, moment: Moment, request: &Request, decision: &Decision, rule: &Rule) {
        let (at, period) = (moment.at, rule.limits[0].period.0);
        let key = self.keys.entry(request.key).or_default();
        key.policy = request.policy as usize;
        key.pass(at);
        key.waiting.remove(&request.id);
        let life = self.lives.of(request.node);
        let takes = decision.verdict == Verdict::Allow && request.kind == Kind::Check;
        // With a full table a check may pass by the policy, without a slot.
        if decision.slot.is_some() != takes && decision.reason != Reason::Overload {
            self.found.add("conservation", moment, || format!("{request:?} was answered {decision:?}"));
        }
        // One such check is enough to say that the use of slots after healing is judged in this run.
        let has_settled = self.healed.is_some_and(|healed| at >= healed + SETTLED);
        if self.used == 0 && has_settled && request.kind == Kind::Check && decision.reason != Reason::Overload {
            self.used = u64::from(self.is_plenty(moment, request)[1]);
        }
        let key = self.keys.entry(request.key).or_default();
        if let Some(permit) = decision.slot {
            if !self.given.insert((life, permit)) {
                self.found.add("conservation", moment, || format!("{request:?}: {permit} was given before"));
            }
            let drift = period * DRIFT / 1_000_000 + 2; // rounded down
            let ends = [at + period - drift.min(period), at + period + drift];
            let is_lent = matches!(decision.source, Source::Lease | Source::Store);
            let counts = rule.is_entitled_concurrent() || !ALONE.when(!is_lent);
            key.permits.insert((life, permit), Permit { cost: request.cost, ends, counts });
            if counts {
                let outlasts = if rule.is_entitled_concurrent() { period - drift.min(period) } else { 0 };
                self.judge(moment, request, decision, (life, outlasts));
            }
        } else if decision.verdict == Verdict::Deny && decision.reason == Reason::Rate && request.kind == Kind::Check {
            self.denied(moment, request, decision);
        }
        if let Some(key) = self.keys.get_mut(&request.key) {
            key.note_peak(at, request.node);
        }
    }

    /// Judges a slot that was given from a lease, of which so much time at least must be left.
    fn judge(&mut self, moment: Moment, request: &Request, decision: &Decision, (life, left): (Life, u64)) {
        let (at, key) = (moment.at, &self.keys[&request.key]);
        let until = key.lessees.get(&life).map_or(0, |lessee| lessee.until);
        if at + left >= until {
            self.found.add("conservation", moment, || {
                format!("{request:?}: {decision:?} of a lease that was over at {until}")
            });
        }
        let (most, out) = (self.most_of(key, at), key.counted(at));
        let is_unheard = !self.is_entitled[key.policy] && key.is_unheard(at);
        let is_over = out > most && !FORGOTTEN.when(key.is_forgotten(at)) && !UNHEARD.when(is_unheard);
        // A node that knows that more is lent than there is may give only what the others leave, whatever is excused
        // above.
        let (lent, others) = key.lessees.get(&life).map_or((0, 0), |lessee| lessee.shown);
        let [own, _] = key.held(life, at);
        let is_known = lent > 0 && lent + others > most && own + others > most;
        if is_over || is_known {
            self.found.add("bound", moment, || {
                let knows = format!("{life:?} has given {own} and knows of {others} beside them");
                format!("key {}: {out} slots of {most} are out, {:?}; {knows}", request.key, key.lessees.keys())
            });
        }
    }

    /// Whether a denial of this request is judged, and whether it would be one in spite of plenty.
    fn is_plenty(&self, moment: Moment, request: &Request) -> [bool; 2] {
        let (at, key) = (moment.at, &self.keys[&request.key]);
        let (most, node) = (self.most(key.policy, at), request.node);
        let has_healed = self.healed.is_some_and(|healed| at >= healed + HEALED);
        let others = key.peaks.iter().filter(|(other, _)| **other != node);
        let others: u64 = others.map(|(_, peaks)| peak(peaks, at.saturating_sub(HEALED))).sum();
        let own = key.out_of(node, at);
        let missing = self.missing(key, at);
        let is_free = has_healed && others == 0 && own + request.cost + missing <= most;
        let each = key.peaks.values().map(|peaks| peak(peaks, at.saturating_sub(IDLE)));
        let wanted = 2 * each.sum::<u64>() + request.cost + missing;
        let is_stranded = key.is_stranded(at) || self.reach.meets(moment, request.key, HEALED);
        let is_excused = STRANDED.when(is_stranded) || CHANGED.when(at < self.counts[key.policy].1);
        let is_judged = !is_excused || has_healed;
        [is_judged, is_free || is_judged && !HALF.when(wanted > most)]
    }

    fn denied(&mut self, moment: Moment, request: &Request, decision: &Decision) {
        let [is_judged, is_plenty] = self.is_plenty(moment, request);
        self.denials[0] += 1;
        self.denials[1] += u64::from(is_judged);
        if is_plenty {
            let (at, key) = (moment.at, &self.keys[&request.key]);
            let (most, own) = (self.most(key.policy, at), key.out_of(request.node, at));
            self.found.add("plenty", moment, || {
                format!("{request:?}: {decision:?}, of {most} {own} were out here and {} in all", key.out(at))
            });
        }
    }

    fn called(&mut self, moment: Moment, (node, number): (u32, u32), call: &Call, ask: &Occupy) {
        let life = self.lives.of(node);
        let key = self.keys.entry(number).or_default();
        key.pass(moment.at);
        let lessee = key.lessees.entry(life).or_default();
        if lessee.calls.contains_key(&call.id) {
            return;
        }
        lessee.calls.insert(call.id, (moment.at, None));
        let inherited = if moment.at < lessee.inherited.1 { lessee.inherited.0 } else { 0 };
        let [least, most] = key.held(life, moment.at);
        if !(least..=most + inherited).contains(&ask.used) && !FROZEN.when(self.stops.meet(node, moment.at, 0)) {
            self.found.add("conservation", moment, || {
                format!("key {number}, node {node}: says that its clients have {}, and they have {least}", ask.used)
            });
        }
    }

    fn executed(&mut self, moment: Moment, (life, number): (Life, u32), call: &Call, grant: &Grant, how: (bool, bool)) {
        let (at, (stale, is_earlier)) = (moment.at, how);
        let (Op::Occupy(ask), is_entitled) = (&call.op, call.rule.is_entitled_concurrent()) else { return };
        let most = self.keys.get(&number).map_or(0, |key| self.most(key.policy, at));
        let key = self.keys.entry(number).or_default();
        if FORGOTTEN.when(stale) {
            key.strand(life.0, at);
            key.lessees.entry(life).or_default().dirty = Some(at);
            return;
        }
        let clock = grant.now.0 as i64 - moment.store.0 as i64; // both are of this century
        let moved = key.clock.is_some_and(|last| last.abs_diff(clock) > super::SAME);
        key.clock = Some(clock);
        if CLOCKS.when(moved) {
            key.dirty_all(at);
        }
        if grant.outdated || grant.replayed {
            return;
        }
        key.records.insert(life.0, Record { life, slots: grant.granted, until: at + ask.lease.0 });
        // A node that is back under its name takes over the slots of its previous life.
        let is_before = |(node, incarnation): &Life| *node == life.0 && *incarnation < life.1;
        if SUCCEEDED.when(!is_entitled || is_earlier) {
            key.permits.retain(|(earlier, _), _| !is_before(earlier));
        }
        let is_lost = key.lessees.iter().any(|(earlier, lessee)| is_before(earlier) && lessee.dirty.is_some());
        if FORGOTTEN.when(is_lost) {
            let before = key.permits.iter_mut().filter(|((earlier, _), _)| is_before(earlier));
            before.for_each(|(_, permit)| permit.counts = false);
        }
        key.lessees.retain(|earlier, _| !is_before(earlier));
        let was_unheard = key.lessees.get(&life).is_some_and(|lessee| lessee.is_unheard(at));
        if was_unheard && !is_entitled {
            key.excuse(life, at, grant, most);
        }
        let lessee = key.lessees.entry(life).or_default();
        lessee.reported = Some((at, ask.lease.0));
        if let Some((_, executed)) = lessee.calls.get_mut(&call.id) {
            *executed = Some(at);
        }
    }

    fn settled(&mut self, moment: Moment, (life, number): (Life, u32), call: &Call, grant: Option<&Grant>) {
        let (at, most) = (moment.at, self.keys.get(&number).map_or(0, |key| self.most(key.policy, moment.at)));
        let Some(key) = self.keys.get_mut(&number) else { return };
        key.pass(at);
        let Some(grant) = grant else { return key.strand(life.0, at) };
        if grant.outdated {
            return;
        }
        if let Some(stranded) = key.stranded.get_mut(&life.0) {
            stranded.heard.get_or_insert(at);
        }
        let Some(lessee) = key.lessees.get_mut(&life) else { return };
        let Some((sent, executed)) = lessee.calls.get(&call.id).copied() else { return };
        lessee.calls.retain(|id, _| *id > call.id);
        let (joined, period) = (self.joined.get(&life).copied().unwrap_or(0), call.rule.limits[0].period.0);
        let until = joined + period + 2 * (period * DRIFT / 1_000_000 + 2);
        if call.rule.is_entitled_concurrent() && at < until {
            lessee.inherited = (grant.counters[0].prev.max(lessee.inherited.0), until);
        }
        lessee.heard = Some(at);
        if let Op::Occupy(ask) = &call.op {
            lessee.until = sent + ask.lease.0;
        }
        lessee.shown = (grant.granted, grant.counters[0].used.saturating_sub(grant.granted));
        if let (Some(since), Some(executed)) = (lessee.dirty, executed)
            && executed >= since
        {
            lessee.dirty = None;
            key.excuse(life, at, grant, most);
        }
    }
}

/// The most that was in use since `since`.
fn peak(peaks: &[(u64, u64)], since: u64) -> u64 {
    let earlier = peaks.iter().rev().skip(1).filter(|(until, _)| *until >= since);
    peaks.last().into_iter().chain(earlier).map(|(_, out)| *out).max().unwrap_or(0)
}

impl Lessee {
    /// Whether the store has forgotten the node's report.
    fn is_unheard(&self, now: u64) -> bool {
        self.reported.is_some_and(|(reported, lease)| now >= reported + lease - lease * DRIFT / 1_000_000)
    }
}

impl Key {
    /// Drops permits whose time is over.
    fn pass(&mut self, now: u64) {
        let over = self.permits.iter().filter(|(_, permit)| permit.ends[1] <= now);
        let mut over: Vec<_> = over.map(|(place, permit)| (permit.ends[1], *place)).collect();
        over.sort_unstable();
        for (ended, place) in over {
            self.permits.remove(&place);
            self.note_peak(ended, (place.0).0);
        }
    }

    /// The slots of one life's clients, at least and at most.
    fn held(&self, life: Life, now: u64) -> [u64; 2] {
        let own = || self.permits.range((life, NonZeroU64::MIN)..=(life, NonZeroU64::MAX)).map(|(_, permit)| permit);
        let sum =
            |bound: usize| own().filter(|permit| !DRIFTS.when(permit.ends[bound] <= now)).map(|one| one.cost).sum();
        [sum(0), sum(1)]
    }

    fn counted(&self, now: u64) -> u64 {
        let live = self.permits.values().filter(|permit| permit.counts && permit.ends[0] > now);
        live.map(|permit| permit.cost).sum()
    }

    /// Slots in use, whichever node gave them.
    fn out(&self, now: u64) -> u64 {
        self.permits.values().filter(|permit| permit.ends[1] > now).map(|permit| permit.cost).sum()
    }

    fn out_of(&self, node: u32, now: u64) -> u64 {
        let own = self.permits.iter().filter(|(((at, _), _), permit)| *at == node && permit.ends[1] > now);
        own.map(|(_, permit)| permit.cost).sum()
    }

    /// Whether the clients of one life have slots.
    fn holds(&self, life: Life) -> bool {
        self.permits.range((life, NonZeroU64::MIN)..=(life, NonZeroU64::MAX)).next().is_some()
    }

    fn is_forgotten(&self, now: u64) -> bool {
        let has = |(life, lessee): (&Life, &Lessee)| now < lessee.until || self.holds(*life);
        self.lessees.iter().any(|(life, lessee)| lessee.dirty.is_some() && has((life, lessee)))
    }

    fn is_unheard(&self, now: u64) -> bool {
        self.lessees.iter().any(|(life, lessee)| lessee.is_unheard(now) && self.holds(*life))
    }

    /// From now on a node may have slots that it cannot report.
    fn strand(&mut self, node: u32, now: u64) {
        self.stranded.insert(node, Stranded { since: now, heard: None });
    }

    /// Whether some node has unreported slots, or had them a short while ago.
    fn is_stranded(&self, now: u64) -> bool {
        let is_recent =
            |Stranded { since, heard }: &Stranded| now < since + HEALED && heard.is_none_or(|heard| now < heard + IDLE);
        self.stranded.values().any(is_recent)
    }

    /// From now on the store may count all nodes wrongly.
    fn dirty_all(&mut self, now: u64) {
        let nodes: Vec<_> = self.lessees.keys().map(|(node, _)| *node).collect();
        nodes.into_iter().for_each(|node| self.strand(node, now));
        self.lessees
            .values_mut()
            .filter(|lessee| lessee.reported.is_some())
            .for_each(|lessee| lessee.dirty = Some(now));
    }

    /// Excuses slots of one life that the store has lent to others meanwhile.
    fn excuse(&mut self, life: Life, now: u64, grant: &Grant, most: u64) {
        let others = grant.counters[0].used.saturating_sub(grant.granted);
        let range = (life, NonZeroU64::MIN)..=(life, NonZeroU64::MAX);
        let own: u64 = self
            .permits
            .range(range.clone())
            .filter(|(_, one)| one.counts && one.ends[0] > now)
            .map(|(_, one)| one.cost)
            .sum();
        let mut over = FORGOTTEN.forgives((others + own).saturating_sub(most));
        for (_, permit) in self.permits.range_mut(range).filter(|(_, permit)| permit.counts) {
            if over == 0 {
                return;
            }
            permit.counts = false;
            over = over.saturating_sub(permit.cost);
        }
    }

    /// Notes that the slots in use now were in use until now.
    fn note_peak(&mut self, now: u64, node: u32) {
        let waiting = self.waiting.values().filter(|(at, _)| *at == node);
        let out = self.out_of(node, now) + waiting.map(|(_, cost)| *cost).sum::<u64>();
        let peaks = self.peaks.entry(node).or_default();
        if let Some(last) = peaks.last_mut() {
            last.0 = now;
        }
        while peaks.last().is_some_and(|(_, lower)| *lower <= out) {
            peaks.pop();
        }
        peaks.push((now, out));
        if peaks.len() > 1_000 {
            peaks.retain(|(until, _)| until + HEALED >= now);
        }
    }
}

impl Observer for Permits {
    fn minds(&self, topic: Topic) -> bool {
        matches!(topic, Topic::Asked | Topic::Permits)
    }

    fn ignores(&self, _: Topic) -> bool {
        self.is_idle
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if self.is_idle {
            return;
        }
        self.lives.see(seen);
        self.stops.see(seen);
        self.reach.see(moment, seen);
        let at = moment.at;
        match seen {
            Seen::Asked(request) if self.is_concurrent[request.policy as usize] && request.kind == Kind::Check => {
                let key = self.keys.entry(request.key).or_default();
                key.policy = request.policy as usize;
                key.waiting.insert(request.id, (request.node, request.cost));
                key.note_peak(at, request.node);
            }
            Seen::Orphaned(request) => {
                if let Some(key) = self.keys.get_mut(&request.key) {
                    key.waiting.remove(&request.id);
                }
            }
            Seen::Answered { request, rule, decision, .. } if rule.is_concurrent() => {
                self.answered(moment, request, decision, rule);
            }
            Seen::Released { node, incarnation, key, permit, released } => {
                let place = ((*node, *incarnation), *permit);
                let Some(key) = self.keys.get_mut(key) else { return };
                let [surely, maybe] =
                    key.permits.remove(&place).map_or([false; 2], |one| one.ends.map(|ends| ends > at));
                if surely && !released || !maybe && *released {
                    self.found.add("conservation", moment, || {
                        format!("{permit} of node {node} was released: {released}, and it was there: {surely}")
                    });
                }
                key.note_peak(at, *node);
            }
            Seen::Called { node, key, call, sent } if let Op::Occupy(ask) = &call.op => {
                self.called(moment, (*node, *key), call, ask);
                if !sent && let Some(key) = self.keys.get_mut(key) {
                    key.strand(*node, at);
                }
            }
            Seen::Executed { node, incarnation, key, call, grant, stale, ran, .. } => {
                self.executed(moment, ((*node, *incarnation), *key), call, grant, (*stale, ran.is_earlier));
            }
            Seen::Settled { node, incarnation, key, call, grant } if let Op::Occupy(_) = call.op => {
                self.settled(moment, ((*node, *incarnation), *key), call, *grant);
            }
            Seen::Undone { key, .. } | Seen::Lost { key, .. } => {
                if let Some(key) = self.keys.get_mut(key) {
                    key.dirty_all(at);
                }
            }
            Seen::Begins(fault) => {
                if let What::Push { policy, limits } = &fault.what {
                    let policy = *policy as usize % self.counts.len();
                    let fresh = limits.first().and_then(|text| rationd::core::limit::Limit::parse(text).ok());
                    let Some(fresh) = fresh else { return };
                    self.periods[policy] = self.periods[policy].max(fresh.period.0);
                    // Longer slots are lent as those of other limits.
                    self.is_entitled[policy] &= fresh.period <= Micros::from_secs(60);
                    let (counts, until) = &mut self.counts[policy];
                    counts.push(fresh.count);
                    *until = (*until).max(at + fault.lasts.0 + 2 * LEASE + self.periods[policy]);
                }
            }
            Seen::Joined { node, incarnation } => _ = self.joined.insert((*node, *incarnation), at),
            Seen::Left { node, .. } => _ = self.ended.insert(self.lives.of(*node)),
            Seen::Calm => self.healed = Some(at),
            _ => {}
        }
    }
}

impl Checker for Permits {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }

    fn judged(&self) -> Judged {
        Judged { answers: 0, uses: self.used }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::call::Counter;
    use rationd::core::key::Digest;
    use rationd::core::limit::MAX_LIMITS;
    use rationd::core::time::{Instant, Timestamp};

    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::lua::Scripts;
    use crate::observe::Ran;
    use crate::swarm;
    use crate::world::{self, Watch, World};

    /// A history of two nodes with a limit of ten slots, for two seconds each.
    struct Story {
        history: History,
        rule: Arc<Rule>,
        checker: Permits,
    }

    impl Story {
        fn new() -> Self {
            let history = History::new("10/2s concurrent");
            let rule = history.setting().rules[0].clone();
            let checker = Permits::new(&history.setting());
            Self { history, rule, checker }
        }

        fn see(&mut self, at: u64, seen: &Seen<'_>) -> usize {
            self.history.see(&mut self.checker, at, seen);
            self.checker.violations().len()
        }

        /// A node reports what its clients have, is lent `granted` slots, and hears of it.
        fn lend(&mut self, at: u64, node: u32, id: u64, used: u64, granted: u64, all: u64) -> usize {
            let op = Op::Occupy(Occupy { used, need: 0, want: granted, lease: Micros(LEASE) });
            let call = Call { id, digest: Digest(1), rule: self.rule.clone(), op, sent_at: Instant(at) };
            let mut counters = [Counter::default(); MAX_LIMITS];
            counters[0] = Counter { used: all, prev: 0, at: Timestamp(0) };
            let now = Timestamp(1_800_000_000_000_000 + at);
            let grant = &Grant {
                granted,
                replayed: false,
                outdated: false,
                late: false,
                confirmed: true,
                damaged: false,
                epoch: 0,
                reset: false,
                nodes: 2,
                now,
                counters,
                entitled: 0,
                not_kept: 0,
            };
            self.see(at, &Seen::Called { node, key: 0, call: &call, sent: true });
            let (incarnation, key, call) = (0, 0, &call);
            let ran = &Ran::default();
            self.see(at, &Seen::Executed { master: 0, node, incarnation, key, call, grant, stale: false, ran });
            self.see(at, &Seen::Settled { node, incarnation, key, call, grant: Some(grant) })
        }

        /// A client asks a node for a slot and is given `slot`, or none.
        fn take(&mut self, at: u64, node: u32, slot: Option<u64>) -> usize {
            let request = Request { id: at, node, key: 0, policy: 0, cost: 1, kind: Kind::Check, asked: at };
            let is_given = slot.is_some();
            let decision = Decision {
                verdict: if is_given { Verdict::Allow } else { Verdict::Deny },
                limit: 10,
                remaining: 0,
                retry_after: None,
                reset_after: Micros(0),
                reset_at: Timestamp(0),
                reason: if is_given { Reason::Ok } else { Reason::Rate },
                source: Source::Lease,
                limit_index: 0,
                slot: slot.and_then(NonZeroU64::new),
                epoch: 0,
            };
            self.see(at, &Seen::Asked(&request));
            let (rule, store) = (&self.rule.clone(), Timestamp(0));
            let (request, decision) = (&request, &decision);
            self.see(at, &Seen::Answered { request, rule, decision, parked: false, store })
        }

        fn release(&mut self, at: u64, node: u32, slot: u64, released: bool) -> usize {
            let permit = NonZeroU64::new(slot).expect("a slot");
            self.see(at, &Seen::Released { node, incarnation: 0, key: 0, permit, released })
        }
    }

    #[test]
    fn one_slot_too_many_is_seen_and_one_that_ended_is_none() {
        let mut story = Story::new();
        story.lend(0, 0, 1, 0, 5, 5);
        story.lend(1, 1, 1, 0, 10, 10);
        assert_eq!((0..5).map(|slot| story.take(10 + slot, 0, Some(1 + slot))).max(), Some(0));
        assert_eq!((0..5).map(|slot| story.take(20 + slot, 1, Some(1 + slot))).max(), Some(0));
        story.release(30, 0, 3, true);
        assert_eq!(story.take(31, 1, Some(6)), 0);
        assert_eq!(story.take(32, 1, Some(7)), 1);
        assert_eq!(story.checker.violations()[0].invariant, "bound");
        assert_eq!(story.take(3 * SECOND, 1, Some(8)), 1, "all others are over");
    }

    #[test]
    fn a_store_that_forgot_excuses_what_was_out_and_no_more() {
        for (forgets, seen) in [(false, 1), (true, 0)] {
            let mut story = Story::new();
            story.lend(0, 0, 1, 0, 10, 10);
            let first: Vec<_> = (0..10).map(|slot| story.take(10 + slot, 0, Some(1 + slot))).collect();
            assert_eq!(first.last(), Some(&0));
            if forgets {
                story.see(50, &Seen::Lost { key: 0, store: Timestamp(0) });
            }
            story.lend(60, 1, 1, 0, 10, 10);
            let found = (0..9).map(|slot| story.take(100 + slot, 1, Some(1 + slot))).max();
            assert_eq!(found > Some(0), !forgets);
            assert_eq!(story.take(110, 1, Some(10)).min(1), seen);
            if !forgets {
                continue;
            }
            // The first node has reported again and knows the answer: its ten do not count, but an eleventh would.
            story.lend(120, 0, 2, 10, 10, 20);
            story.release(130, 1, 10, true);
            assert_eq!(story.take(131, 1, Some(11)), 0);
            assert_eq!(story.take(132, 0, Some(11)), 1);
        }
    }

    #[test]
    fn who_knows_of_an_excess_gives_none_beyond_what_others_leave() {
        for (others, seen) in [(6, 0), (7, 1)] {
            let mut story = Story::new();
            story.lend(0, 0, 1, 0, 10, 10);
            assert_eq!((0..3).map(|slot| story.take(10 + slot, 0, Some(1 + slot))).max(), Some(0));
            story.see(50, &Seen::Lost { key: 0, store: Timestamp(0) });
            // The store has lent seven or more to others meanwhile; the node may give out what they leave of its own
            // ten.
            story.lend(60, 0, 2, 3, 10, 10 + others);
            assert_eq!(story.take(61, 0, Some(4)), seen, "{others}");
        }
    }

    #[test]
    fn a_lease_that_is_over_and_a_slot_given_twice_are_seen() {
        let mut story = Story::new();
        story.lend(0, 0, 1, 0, 5, 5);
        assert_eq!(story.take(LEASE - 1, 0, Some(1)), 0);
        assert_eq!(story.take(LEASE, 0, Some(2)), 1);
        story.lend(LEASE + 1, 0, 2, 2, 5, 5);
        assert_eq!(story.take(LEASE + 2, 0, Some(2)), 2);
    }

    #[test]
    fn what_a_node_says_of_its_clients_and_what_it_knows_of_a_slot_are_compared() {
        let mut story = Story::new();
        story.lend(0, 0, 1, 0, 5, 5);
        story.take(1, 0, Some(1));
        assert_eq!(story.lend(2, 0, 2, 1, 5, 5), 0);
        assert_eq!(story.release(3, 0, 1, true), 0);
        assert_eq!(story.release(4, 0, 1, false), 0);
        assert_eq!(story.release(5, 0, 1, true), 1, "it was released before");
        assert_eq!(story.lend(6, 0, 3, 1, 5, 5), 2, "nobody has one any more");
        story.take(7, 0, Some(2));
        assert_eq!(story.release(8, 0, 2, false), 3, "it was there");
    }

    #[test]
    fn a_denial_is_seen_while_most_are_free_and_when_all_has_healed() {
        for (taken, is_wrong, denied_at, seen) in [
            (3, false, 10_000, 1),
            (4, false, 10_000, 0),
            (3, true, 10_000, 0),
            (9, true, 8 * SECOND, 0),
            (9, true, HEALED + 1_000, 1),
            (10, true, HEALED + 1_000, 0),
        ] {
            let mut story = Story::new();
            story.see(0, &Seen::Calm);
            let at = denied_at - 100;
            story.lend(at, 0, 1, 0, 10, 10);
            assert_eq!((0..taken).map(|slot| story.take(at + 1 + slot, 0, Some(1 + slot))).max(), Some(0));
            if is_wrong {
                story.see(at + 50, &Seen::Lost { key: 0, store: Timestamp(0) });
            }
            assert_eq!(story.take(denied_at, 0, None), seen, "{taken} at {denied_at}");
        }
    }

    /// An event that may leave slots unreported.
    fn lose(story: &mut Story, at: u64, what: &str) {
        let op = Op::Occupy(Occupy { used: 0, need: 0, want: 1, lease: Micros(LEASE) });
        let call = &Call { id: 9, digest: Digest(1), rule: story.rule.clone(), op, sent_at: Instant(at) };
        let (node, incarnation, key) = (0, 0, 0);
        match what {
            "a call is not sent" => _ = story.see(at, &Seen::Called { node, key, call, sent: false }),
            "a call is lost" => {
                story.see(at, &Seen::Called { node, key, call, sent: true });
                story.see(at, &Seen::Settled { node, incarnation, key, call, grant: None });
            }
            "the store loses it" => _ = story.see(at, &Seen::Lost { key, store: Timestamp(0) }),
            "a failover undoes it" => _ = story.see(at, &Seen::Undone { key, store: Timestamp(0) }),
            "a node is killed" => _ = story.see(at, &Seen::Left { node, drained: false }),
            "a node leaves" => _ = story.see(at, &Seen::Left { node, drained: true }),
            "another key is lost" => _ = story.see(at, &Seen::Lost { key: 1, store: Timestamp(0) }),
            other => assert_eq!(other, "nothing"),
        }
    }

    #[test]
    fn a_denial_is_excused_where_slots_may_be_stranded_and_only_until_their_leases_have_ended() {
        for (what, excuses) in [
            ("a call is not sent", true),
            ("a call is lost", true),
            ("the store loses it", true),
            ("a failover undoes it", true),
            ("a node is killed", true),
            ("a node leaves", false),
            ("another key is lost", false),
            ("nothing", false),
        ] {
            let denied = |lost_at: u64, denied_at: u64| {
                let mut story = Story::new();
                // A plan that kills nodes; which nodes that concerns shows when it happens.
                let mut setting = story.history.setting();
                let what_of_plan = What::Roll { crash: true, down: crate::span::Span(0) };
                setting.plan.faults.push(crate::plan::Fault {
                    at: crate::span::Span(SECOND),
                    lasts: crate::span::Span(SECOND),
                    what: what_of_plan,
                });
                story.checker = Permits::new(&setting);
                story.lend(0, 0, 1, 0, 1, 1);
                story.take(1, 0, Some(1));
                story.see(
                    1,
                    &Seen::Released { node: 0, incarnation: 0, key: 0, permit: NonZeroU64::MIN, released: true },
                );
                let request = Request { id: 2, node: 1, key: 1, policy: 0, cost: 1, kind: Kind::Check, asked: 2 };
                story.see(2, &Seen::Asked(&request));
                lose(&mut story, lost_at, what);
                story.take(denied_at, 1, None)
            };
            let wanted = usize::from(!excuses);
            assert_eq!(denied(SECOND, SECOND + 1), wanted, "{what}: at once");
            assert_eq!(denied(SECOND, SECOND + HEALED - 1), wanted, "{what}: a lease and a while later");
            assert_eq!(denied(SECOND, SECOND + HEALED), 1, "{what}: when all leases have ended");
        }
    }

    #[test]
    fn who_has_said_again_what_it_has_is_stranded_no_more() {
        for (what, heard) in [("a call is lost", 1), ("the store loses it", 1), ("nothing is heard", 0)] {
            let denied = |at: u64| {
                let mut story = Story::new();
                story.lend(0, 0, 1, 0, 1, 1);
                lose(&mut story, SECOND, if heard == 0 { "a call is lost" } else { what });
                (0..heard).for_each(|n| _ = story.lend(2 * SECOND + n, 0, 10 + n, 0, 1, 1));
                story.take(at, 1, None)
            };
            assert_eq!(denied(2 * SECOND + IDLE - 1), 0, "{what}");
            assert_eq!(denied(2 * SECOND + IDLE), heard as usize, "{what}");
        }
    }

    /// Those of the first hundred seeds that have a concurrent limit.
    #[test]
    fn denials_are_judged_in_runs_in_which_something_goes_wrong_too() {
        let ([mut all, mut judged], mut of_calm) = ([0; 2], 0);
        for seed in 1..=100 {
            let setting = world::setting(&swarm::plan(seed)).expect("a plan of the swarm");
            let mut checker = Permits::new(&setting);
            if checker.is_idle || !checker.is_concurrent.contains(&true) {
                continue;
            }
            World::new(&setting, &mut Scripts::new(), Watch::new(vec![&mut checker])).run();
            let [denials, of_those] = checker.denials;
            (all, judged) = (all + denials, judged + of_those);
            let network = &setting.plan.network;
            let is_calm = setting.plan.faults.is_empty() && network.loss + network.repeats == 0;
            of_calm += if is_calm && setting.plan.zones.is_empty() { denials } else { 0 };
        }
        // When last counted 1233 of 2664, and 54.
        assert!(judged * 5 > all * 2 && judged > 10 * of_calm, "{judged} of {all}, {of_calm}");
    }

    #[test]
    fn before_anything_goes_wrong_denials_are_judged() {
        let mut story = Story::new();
        story.lend(0, 0, 1, 0, 1, 1);
        assert_eq!(story.take(1, 1, None), 1);
        lose(&mut story, 2, "the store loses it");
        assert_eq!(story.take(3, 1, None), 1, "no other is");
    }

    /// First clients of one node had two slots, then those of another: the store has lent each of them twice as many.
    #[test]
    fn what_nodes_had_one_after_another_they_keep_for_a_while() {
        for (each, seen) in [(1, 1), (3, 0)] {
            let mut story = Story::new();
            for node in 0..2 {
                let at = 1_000 + 100 * u64::from(node);
                story.lend(at, node, u64::from(node) + 1, 0, 10, 10);
                (1..=each).for_each(|slot| _ = story.take(at + slot, node, Some(10 * u64::from(node) + slot)));
                (1..=each).for_each(|slot| _ = story.release(at + 10 + slot, node, 10 * u64::from(node) + slot, true));
            }
            assert_eq!(story.take(2_000, 2, None), seen, "{each}");
        }
    }
}
