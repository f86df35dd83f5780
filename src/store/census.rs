//! Keeps who asks for a key: the census from which a grant's share is computed, each node's last calls, and under
//! GCRA what each node was lent and has not accounted for.
//!
//! Called by `memory.rs`. The scripts of `lua/` keep the same in the hash fields `c`, `o` and `n:NODE`.

use std::collections::BTreeMap;

use super::aside::{FORMS, Form, Part, Sums};
use crate::core::call::CALL_LIFE;
use crate::core::gcra;
use crate::core::lifetime::{CENSUS, census_period};
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::time::{Micros, Timestamp};

/// Records of nodes that no longer ask are dropped when a key has more than two for each counted node and so many
/// besides, so that a key of few nodes is not searched in each census period.
const SPARE_RECORDS: u64 = 16;

/// A census period whose number is further than this from the present one was counted under other limits, with another
/// length.
const FAR: u64 = 16;

/// How far from now, before or after, a window can begin or end that a call of the last [`CALL_LIFE`] was about, unless
/// all its windows are longer than a census period can be.
const NEAR: Micros = Micros(CENSUS.1.0 + CALL_LIFE.0);

/// Numbers in one record.
pub(super) const RECORD: usize = 6 + MAX_LIMITS;

/// Counts the nodes that asked in this census period and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Census {
    /// The number of the period; `u64::MAX` when nobody was counted.
    cid: u64,
    now: u64,
    before: u64,
    /// Nodes counted in `now` that were not counted in `before`.
    fresh: u64,
}

/// A node's last calls about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// The census period of its last acquire.
    pub(super) cid: u64,
    /// The id of its last acquire.
    pub(super) id: u64,
    /// The tokens that this acquire was granted.
    pub(super) granted: u64,
    /// The id of its last return, refund or reset.
    pub(super) other: u64,
    /// GCRA only: the tokens that the node was lent and has not accounted for, and the GCRA period in which the node
    /// last said so.
    pub(super) lent: u64,
    pub(super) period: u64,
    /// `Counter::at` of each limit after that grant; zero beyond the last limit.
    pub(super) at: [Timestamp; MAX_LIMITS],
}

/// The tokens that all nodes together were lent of a GCRA limit and have not accounted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lent {
    /// Those that nodes reported in this period.
    now: u64,
    /// Those that nodes reported in the period before.
    before: u64,
    /// The number of this period, which is that of its first unit.
    period: u64,
    /// How many units a period has; 0 before the first roll, and where no limit is a bucket.
    units: u64,
    /// The period that was stored with `now`, and how many periods have ended since.
    found: u64,
    over: u64,
}

/// All that is remembered of the nodes that ask for one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Nodes {
    census: Census,
    pub(super) lent: Lent,
    records: BTreeMap<Box<str>, Record>,
    /// What is set aside for nodes that may lose the store, by [`Form`].
    aside: [Option<Box<Entitlements>>; FORMS],
}

/// What is set aside of one key for the nodes that ask for it.
#[derive(Clone, Debug, Default)]
struct Entitlements {
    sums: Sums,
    parts: BTreeMap<Box<str>, Part>,
}

/// The numbers of the scripts' field `c`, in their order.
impl Census {
    pub(super) fn of([cid, now, before, again]: [u64; 4]) -> Self {
        Self { cid, now, before, fresh: again }
    }

    /// `None` when nobody was counted.
    pub(super) fn numbers(&self) -> Option<[u64; 4]> {
        (self.cid != u64::MAX).then_some([self.cid, self.now, self.before, self.fresh])
    }
}

impl Lent {
    pub(super) fn of([now, before, period]: [u64; 3]) -> Self {
        Self { now, before, period, ..Self::default() }
    }

    /// The numbers of the scripts' field `o`. Zeros while nothing is lent, because then periods do not matter and the
    /// scripts may have stored none.
    pub(super) fn numbers(&self) -> [u64; 3] {
        if self.total() == 0 { [0; 3] } else { [self.now, self.before, self.period] }
    }
}

impl Record {
    pub(super) fn of(numbers: &[u64; RECORD]) -> Self {
        let [cid, id, granted, other, lent, period, ..] = *numbers;
        Self { cid, id, granted, other, lent, period, at: std::array::from_fn(|index| Timestamp(numbers[6 + index])) }
    }

    pub(super) fn numbers(&self) -> [u64; RECORD] {
        let mut numbers = [0; RECORD];
        numbers[..6].copy_from_slice(&[self.cid, self.id, self.granted, self.other, self.lent, self.period]);
        for (number, at) in numbers[6..].iter_mut().zip(self.at) {
            *number = at.0;
        }
        numbers
    }
}

impl Record {
    /// Whether its last acquire may be less than [`CALL_LIFE`] old, judged without its census period. That is needed
    /// when the limits of a policy have just changed, perhaps not at all nodes yet: under other limits census periods
    /// have another length, so their numbers say nothing about age. `is_far`: the record's census period has such a
    /// number.
    fn may_be_of(&self, now: Timestamp, is_far: bool) -> bool {
        // Periods of accounts are counted in the same unit for all buckets, so they can be compared.
        if self.period > 0 {
            return (now.0 / gcra::UNIT.0).abs_diff(self.period) < gcra::PERIODS * gcra::LONGEST;
        }
        // If all windows were longer, census periods had their greatest length, so the number can be compared with one
        // of that length.
        let is_of_long_windows = (now.0 / CENSUS.1.0).abs_diff(self.cid) <= 1 + self.kept_longer();
        let is_near = |at: &Timestamp| at.0 > 0 && now.0.abs_diff(at.0) <= NEAR.0;
        is_far && (is_of_long_windows || self.at.iter().any(is_near))
    }
}

impl Record {
    /// Keeps the record for as long as the return, refund or reset that it notes may be repeated. These do not count
    /// their node in the census, so an old record gets the latest census period in which its node is not counted.
    fn remember(&mut self, census: &Census) {
        if self.cid > census.cid || self.cid < census.cid.saturating_sub(2) {
            self.cid = census.cid.saturating_sub(2);
        }
    }

    /// Census periods for which a record is kept after those in which its node is counted.
    fn kept_longer(&self) -> u64 {
        if self.other > 0 { 2 } else { 0 }
    }
}

impl Default for Census {
    fn default() -> Self {
        Self { cid: u64::MAX, now: 0, before: 0, fresh: 0 }
    }
}

impl Census {
    /// The census as it is at `now`.
    pub(super) fn rolled(self, now: Timestamp, period: Micros) -> Self {
        let cid = now.0 / period.0;
        if cid == self.cid {
            return self;
        }
        let before = if self.cid.wrapping_add(1) == cid { self.now } else { 0 };
        Self { cid, now: 0, before, fresh: 0 }
    }

    /// Counts a node, once per period.
    pub(super) fn count(&mut self, record: Option<&Record>) {
        let asked = record.map(|record| record.cid);
        if asked != Some(self.cid) {
            self.now += 1;
            if asked.is_none_or(|asked| asked.wrapping_add(1) != self.cid) {
                self.fresh += 1;
            }
        }
    }

    /// Nodes that asked in this period or the one before; at least 1.
    pub(super) fn nodes(&self) -> u64 {
        (self.before + self.fresh).clamp(1, u32::MAX.into())
    }
}

impl Lent {
    /// The account as it is at `now`. Tokens that were not accounted for during two whole periods of so many units
    /// count as spent at the end of the second, and are passed to `spent`. Other limits, and the scripts of earlier
    /// builds, may have used periods of another length, which begin within one of these. Tokens lent in such a period
    /// count in the present period in which it begins, but keep its number, because the records of nodes refer to it.
    pub(super) fn rolled(self, now: Timestamp, units: u64, mut spent: impl FnMut(u64, Timestamp)) -> Self {
        let unit = now.0 / gcra::UNIT.0;
        let (period, found) = (unit / units * units, self.period);
        if self.total() == 0 || found > unit {
            // Nothing is lent; or the store's clock was set back, and a period that has not begun cannot have lapsed.
            return Self { period, units, found: period, over: 0, ..self };
        }
        if found >= period {
            return Self { units, found, over: 0, ..self };
        }
        let end = |period: u64| Timestamp(period * gcra::UNIT.0);
        spent(self.before, end(period.min(found + units)));
        let over = (period - found) / (2 * units) + 1;
        if over > 1 {
            spent(self.now, end(found + 2 * units));
        }
        Self { now: 0, before: if over > 1 { 0 } else { self.now }, period, units, found, over }
    }

    /// How many units a period has.
    pub(super) fn units(&self) -> u64 {
        self.units.max(1)
    }

    pub(super) fn total(&self) -> u64 {
        self.now + self.before
    }

    /// The number of this period.
    pub(super) fn period(&self) -> u64 {
        self.period
    }

    /// Those that nodes reported in this period.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Counts tokens that were not renewed as lent in the period before, so that they count as spent when this period
    /// is over.
    pub(super) fn let_lapse(&mut self, tokens: u64) {
        self.before = (self.before + tokens).min(MAX_COUNT);
    }

    /// Moves the account that was just opened to the period before, because nothing of it was renewed.
    pub(super) fn backdate(&mut self, record: &mut Record) {
        self.now = self.now.saturating_sub(record.lent);
        self.before = (self.before + record.lent).min(MAX_COUNT);
        record.period = self.period.saturating_sub(1);
    }

    /// Whether the tokens of this record are still counted in `now` or `before`.
    pub(super) fn is_open(&self, record: &Record) -> bool {
        self.periods_ago(record).is_some()
    }

    /// In which of the two its tokens are: 0 for `now`, 1 for `before`; `None` if in neither.
    fn periods_ago(&self, record: &Record) -> Option<u64> {
        let is_own = self.found.is_multiple_of(self.units());
        let last = if is_own { self.units() } else { 1 };
        let ago = self.found.checked_sub(record.period).map(|ago| ago.div_ceil(last) + self.over);
        let is_new = record.lent == 0 && record.period == self.period;
        ago.filter(|ago| *ago <= 1).or(is_new.then_some(0)).filter(|_| record.period > 0)
    }

    /// Closes a node's account, and returns what it was lent and had not accounted for.
    pub(super) fn close(&mut self, record: &Record) -> u64 {
        let Some(ago) = self.periods_ago(record) else { return 0 };
        let place = if ago == 0 { &mut self.now } else { &mut self.before };
        *place = place.saturating_sub(record.lent);
        record.lent
    }

    /// Opens a node's account anew with `tokens`.
    pub(super) fn open(&mut self, record: &mut Record, tokens: u64) {
        let tokens = tokens.min(MAX_COUNT);
        self.now = (self.now + tokens).min(MAX_COUNT);
        (record.lent, record.period) = (tokens, self.period);
    }
}

/// For how many census periods after its last acquire a node may have an open account; and how many a record of a
/// return, refund or reset is kept before those of [`Record::kept_longer`].
fn kept_for(limits: &[Limit], units: u64) -> (u64, u64) {
    let has_accounts = limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
    let accounts = gcra::lease_life(units).0.div_ceil(census_period(limits).0);
    (if has_accounts { accounts } else { 1 }, accounts)
}

impl Nodes {
    /// The records of a key that only `node` has asked for.
    pub(super) fn of(census: Census, lent: Lent, node: &str, record: Option<Record>) -> Self {
        let mut nodes = Self { census, lent, ..Self::default() };
        if let Some(record) = record {
            nodes.records.insert(node.into(), record);
        }
        nodes
    }

    pub(super) fn census(&self) -> Census {
        self.census
    }

    pub(super) fn record(&self, node: &str) -> Option<&Record> {
        self.records.get(node)
    }

    /// Records an acquire. When a new census period begins and there are many records, those of nodes that did not ask
    /// in the last two periods are dropped; under GCRA not before their accounts are closed, because a node that renews
    /// its account without a record would count its tokens as lent once more. Records of nodes that may have asked just
    /// now under other limits, or have returned something, stay as well: without its record, a repeated call would be
    /// executed again.
    pub(super) fn asked(
        &mut self,
        now: Timestamp,
        node: &str,
        census: Census,
        lent: Lent,
        said: Record,
        limits: &[Limit],
    ) {
        let began = census.cid != self.census.cid;
        (self.census, self.lent) = (census, lent);
        let record = self.entry(node);
        *record = Record { cid: census.cid, other: record.other, ..said };
        if began && self.records.len() as u64 > 2 * census.nodes() + SPARE_RECORDS {
            let (kept, accounts) = kept_for(limits, lent.units());
            let recent = |record: &Record| match (census.cid.checked_sub(record.cid), record.kept_longer()) {
                (Some(periods), _) if periods <= kept => true,
                (Some(periods), longer) if longer > 0 && periods <= accounts + longer => true,
                (periods, _) => record.may_be_of(now, periods.is_none_or(|periods| periods > FAR)),
            };
            self.records.retain(|name, record| **name == *node || recent(record));
        }
    }

    /// Records a return or a refund. If it voids an acquire, that acquire counts as answered with nothing from now
    /// on.
    pub(super) fn credited(
        &mut self,
        node: &str,
        id: u64,
        (census, lent): (&Census, Lent),
        account: Option<Record>,
        void: u64,
    ) {
        self.lent = lent;
        let record = self.entry(node);
        record.remember(census);
        if let Some(account) = account {
            (record.lent, record.period) = (account.lent, account.period);
        }
        record.other = id;
        if void != 0 && record.id <= void {
            (record.id, record.granted) = (void, 0);
        }
    }

    /// The records after a reset, with the census as it is then. Earlier acquires of this node that arrive later count as outdated,
    /// and are granted nothing. Each other node that the census counts keeps the period in which it last asked and the id of its last
    /// acquire, so that it is not counted twice and a late repeat of that acquire is lent nothing; all else of it is forgotten.
    pub(super) fn reset(before: Option<&Self>, node: &str, id: u64, census: Census) -> Self {
        let known = before.map(|nodes| &nodes.records).into_iter().flatten();
        let recent = |cid: u64| cid == census.cid || cid.wrapping_add(1) == census.cid;
        let counted = known.clone().filter(|(name, record)| ***name != *node && recent(record.cid));
        let kept = counted.map(|(name, Record { cid, id, .. })| (name.clone(), (*cid, *id, 0)));
        let mut own =
            known.clone().find(|(name, _)| ***name == *node).map_or_else(Record::default, |(_, record)| *record);
        own.remember(&census);
        let all = kept.chain([(node.into(), (own.cid, own.id.max(id), id))]);
        let records = all.map(|(name, (cid, id, other))| (name, Record { cid, id, other, ..Record::default() }));
        let is_counted = before.is_some_and(|nodes| nodes.census.numbers().is_some());
        let census = if is_counted { census } else { Census::default() };
        Self { census, records: records.collect(), ..Self::default() }
    }

    /// What is set aside for all nodes.
    pub(super) fn sums(&self, form: Form) -> Sums {
        self.aside[form as usize].as_ref().map(|aside| aside.sums).unwrap_or_default()
    }

    /// What is set aside for a node.
    pub(super) fn part(&self, form: Form, node: &str) -> Option<Part> {
        self.aside[form as usize].as_ref()?.parts.get(node).copied()
    }

    /// Replaces what is set aside, with the part of one node.
    pub(super) fn put_aside(&mut self, form: Form, node: &str, sums: Sums, part: Option<Part>) {
        let mut entitlements = Entitlements { sums, ..Entitlements::default() };
        if let Some(part) = part {
            entitlements.parts.insert(node.into(), part);
        }
        let is_any = part.is_some() || sums != Sums::default();
        self.aside[form as usize] = is_any.then(|| entitlements.into());
    }

    /// Takes over what was set aside before a reset.
    pub(super) fn keep_aside(&mut self, form: Form, mut before: Self) {
        self.aside[form as usize] = before.aside[form as usize].take();
    }

    /// Records a node's new entitlement. Entitlements that have lapsed are dropped when a generation begins.
    pub(super) fn claimed(&mut self, form: Form, node: &str, sums: Sums, part: Part, begins: bool) {
        let aside = self.aside[form as usize].get_or_insert_default();
        aside.sums = sums;
        aside.parts.insert(node.into(), part);
        if begins {
            aside.parts.retain(|_, part| !part.has_lapsed(&sums));
        }
    }

    fn entry(&mut self, node: &str) -> &mut Record {
        if !self.records.contains_key(node) {
            self.records.insert(node.into(), Record::default());
        }
        self.records.get_mut(node).expect("it was just inserted")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros(1_000_000);

    fn ask(nodes: &mut Nodes, node: &str, seconds: u64) -> u64 {
        ask_under(nodes, node, seconds, "9/1s fixed")
    }

    fn ask_under(nodes: &mut Nodes, node: &str, seconds: u64, limit: &str) -> u64 {
        let limits = &[Limit::parse(limit).expect("a limit")];
        let now = Timestamp(seconds * 1_000_000);
        let mut census = nodes.census().rolled(now, SECOND);
        census.count(nodes.record(node));
        nodes.asked(now, node, census, Lent::default(), Record { id: 1, ..Record::default() }, limits);
        census.nodes()
    }

    #[test]
    fn counts_who_asked_now_and_before_once() {
        let mut nodes = Nodes::default();
        assert_eq!([ask(&mut nodes, "a", 7), ask(&mut nodes, "b", 7), ask(&mut nodes, "a", 7)], [1, 2, 2]);
        assert_eq!([ask(&mut nodes, "a", 8), ask(&mut nodes, "c", 8)], [2, 3]);
        assert_eq!([ask(&mut nodes, "a", 9), ask(&mut nodes, "b", 11), ask(&mut nodes, "b", 12)], [2, 1, 1]);
    }

    #[test]
    fn nodes_that_left_are_dropped_when_there_are_many() {
        let mut nodes = Nodes::default();
        for n in 0..30 {
            ask(&mut nodes, &n.to_string(), 7);
        }
        ask(&mut nodes, "a", 9);
        assert_eq!(nodes.records.len(), 1);
    }

    #[test]
    fn nodes_that_left_are_kept_for_as_long_as_they_may_hold_tokens_of_a_bucket() {
        for (later, kept) in [(4, 31), (5, 1)] {
            let mut nodes = Nodes::default();
            for n in 0..30 {
                ask_under(&mut nodes, &n.to_string(), 7, "9/1s burst 9");
            }
            ask_under(&mut nodes, "a", 7 + later, "9/1s burst 9");
            assert_eq!(nodes.records.len(), kept, "{later} s later");
        }
    }
}
