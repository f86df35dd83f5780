//! The embedded store: the calls of a core, answered from a bounded table in this process.
//!
//! Answers exactly as the scripts in `lua/` do. Keys expire when they say nothing any more that a
//! missing key would not, and are never evicted before: a table full of live keys refuses new ones.
//! A call with id 0 is not remembered, and allocates nothing for a key that is already there. Knows
//! no clock; called by the node that owns it, or by the simulator.

use std::collections::HashMap;

use super::cells::{Cells, Head};
use super::census::{self, Census, Nodes};
use super::view::{View, lifetime};
use crate::core::call::{Acquire, Call, Counter, Grant, Op, StoreError};
use crate::core::key::Digest;
use crate::core::limit::{Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::table::Full;
use crate::core::time::{Micros, Timestamp};

/// Ids and epochs stay below 2^53, as in the scripts.
const MAX_ID: u64 = (1 << 53) - 1;

/// Counters in this process's memory.
#[derive(Debug)]
pub struct MemoryStore {
    cells: Cells,
    nodes: HashMap<u128, Nodes>,
    horizon: Micros,
}

impl MemoryStore {
    /// An empty store of at most `max_cells` cells: a key takes one for each of its limits. `secret`
    /// should be random; `horizon` is how far a gcra lease may reach ahead (0 when the owner asks
    /// for each check, else `MAX_HORIZON`).
    #[must_use]
    pub fn new(max_cells: usize, secret: u128, horizon: Micros) -> Self {
        Self { cells: Cells::new(max_cells, secret), nodes: HashMap::new(), horizon }
    }

    /// Cells in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory of the cells and their index, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.cells.bytes()
    }

    /// When the key will be forgotten if nobody acquires.
    #[must_use]
    pub fn expires_at(&self, digest: Digest) -> Option<Timestamp> {
        self.cells.head(digest.0).map(|head| head.expires)
    }

    /// Answers a call of `node` at `now`.
    ///
    /// # Errors
    /// [`StoreError::Full`] when the call needs room for a new key, or a new limit of one, and all
    /// cells are live.
    pub fn call(&mut self, now: Timestamp, node: &str, call: &Call) -> Result<Grant, StoreError> {
        let view = self.view(now, node, call);
        match call.op {
            Op::Acquire(ask) => self.acquire(view, &ask).map_err(|Full| StoreError::Full),
            Op::Return { amount, epoch, windows } => Ok(self.take_back(view, amount, epoch, &windows)),
            Op::Peek => Ok(view.grant(0, false)),
            Op::Refund { amount } => Ok(self.refund(view, amount)),
            Op::Reset => self.reset(view).map_err(|Full| StoreError::Full),
        }
    }

    /// An acquire of just `tokens` under the id 0, for a known key of one limit, in place: whether
    /// they were lent, and the counter after it. What is not lent is not written. `None`: ask by
    /// [`MemoryStore::call`].
    pub fn spend(&mut self, now: Timestamp, digest: Digest, limits: &[Limit], tokens: u64) -> Option<(bool, Counter)> {
        let [limit] = limits else { return None };
        let horizon = self.horizon;
        let cell = self.cells.only(now, digest.0, limit)?;
        let mut counter = cell.counter();
        counter.roll(limit, now, horizon);
        let lent = counter.left(limit, now, horizon) >= tokens;
        if lent {
            counter.debit(limit, now, tokens);
            cell.set(counter);
            cell.live_until(expiry(now, lifetime(limits, &[counter], now)));
        }
        Some((lent, counter))
    }

    /// Loads the key, and forgets it when it has expired.
    fn view<'a>(&mut self, now: Timestamp, node: &'a str, call: &'a Call) -> View<'a> {
        let digest = call.digest.0;
        let mut head = self.cells.head(digest);
        if head.is_some_and(|head| head.expires <= now) {
            self.cells.forget(digest);
            self.nodes.remove(&digest);
            head = None;
        }
        let limits = &call.rule.limits[..];
        let mut counters = [Counter::default(); MAX_LIMITS];
        for (index, limit) in limits.iter().enumerate() {
            if head.is_some() {
                counters[index] = self.cells.counter(digest, index, limit);
            }
            counters[index].roll(limit, now, self.horizon);
        }
        let period = census::period(limits);
        let nodes = if self.nodes.is_empty() { None } else { self.nodes.get(&digest) };
        let census = nodes.map(Nodes::census).unwrap_or_default().rolled(now, period);
        let record = nodes.and_then(|nodes| nodes.record(node)).copied();
        let id = call.id.min(MAX_ID);
        View { now, node, id, digest, horizon: self.horizon, head, record, census, limits, counters }
    }

    fn acquire(&mut self, mut view: View<'_>, ask: &Acquire) -> Result<Grant, Full> {
        if let Some(record) = view.record.filter(|record| view.id != 0 && view.id <= record.id) {
            let granted = if view.id == record.id { view.granted_before(&record, ask) } else { 0 };
            return Ok(view.grant(granted, true));
        }
        view.restore(ask);
        view.count_node();
        let granted = view.lend(ask);
        let epoch = view.head.map_or(view.id.max(1), |head| head.epoch);
        let reset = view.head.is_some_and(|head| head.reset);
        let head = Head { epoch, reset, expires: expiry(view.now, view.lifetime()) };
        self.save(&view, head, view.limits)?;
        view.head = Some(head);
        if view.id != 0 {
            let nodes = self.nodes.entry(view.digest).or_default();
            nodes.asked(view.node, view.census, view.id, granted, view.windows());
        }
        Ok(view.grant(granted, false))
    }

    fn save(&mut self, view: &View<'_>, head: Head, limits: &[Limit]) -> Result<(), Full> {
        let nodes = &mut self.nodes;
        self.cells.store(view.now, view.digest, head, limits, &view.counters, |expired| {
            nodes.remove(&expired);
        })
    }

    fn take_back(&mut self, mut view: View<'_>, amount: u32, epoch: u64, windows: &[Timestamp; MAX_LIMITS]) -> Grant {
        if view.is_repeated() {
            return view.grant(0, true);
        }
        if view.head.is_none_or(|head| head.epoch != epoch) {
            return view.grant(0, false);
        }
        let mut taken = false;
        for (index, limit) in view.limits.iter().enumerate() {
            taken |= view.counters[index].credit_lent(limit, self.horizon, amount.into(), windows[index]);
        }
        if taken {
            self.save_credit(&view);
        }
        view.grant(if taken { amount } else { 0 }, false)
    }

    fn refund(&mut self, mut view: View<'_>, amount: u64) -> Grant {
        if view.is_repeated() {
            return view.grant(0, true);
        }
        if view.head.is_none() {
            return view.grant(0, false);
        }
        let amount = u32::try_from(amount.min(MAX_COUNT)).expect("MAX_COUNT is a u32");
        for (index, limit) in view.limits.iter().enumerate() {
            view.counters[index].credit(limit, self.horizon, amount.into());
        }
        self.save_credit(&view);
        view.grant(amount, false)
    }

    fn save_credit(&mut self, view: &View<'_>) {
        self.cells.update(view.digest, view.limits, &view.counters);
        if view.id != 0 {
            self.nodes.entry(view.digest).or_default().credited(view.node, view.id);
        }
    }

    fn reset(&mut self, mut view: View<'_>) -> Result<Grant, Full> {
        if view.is_repeated() {
            return Ok(view.grant(0, true));
        }
        let Some(old) = view.head else { return Ok(view.grant(0, false)) };
        let following = if old.epoch < MAX_ID { old.epoch + 1 } else { 1 };
        let epoch = if view.id != 0 && view.id != old.epoch { view.id } else { following };
        let longest = view.limits.iter().map(census::span).max().unwrap_or_default();
        let life = (longest + longest).max(Micros::from_secs(2));
        let head = Head { epoch, reset: true, expires: expiry(view.now, life) };
        self.cells.forget(view.digest);
        self.nodes.remove(&view.digest);
        view.counters = [Counter::default(); MAX_LIMITS];
        // One cell, and one at least was just given up.
        self.save(&view, head, &view.limits[..1])?;
        if view.id != 0 {
            let asked = view.record.map_or(0, |record| record.id);
            self.nodes.insert(view.digest, Nodes::reset(view.node, view.id, asked));
        }
        for (index, limit) in view.limits.iter().enumerate() {
            view.counters[index].roll(limit, view.now, self.horizon);
        }
        (view.head, view.census) = (Some(head), Census::default());
        Ok(view.grant(0, false))
    }
}

/// Redis counts lifetimes in whole milliseconds: the scripts round up and add one.
fn expiry(now: Timestamp, life: Micros) -> Timestamp {
    now + Micros::from_millis(life.as_millis_ceil() + 1)
}
