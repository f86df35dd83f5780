//! The memory store: answers a core's calls from a bounded table in this process.
//!
//! It answers exactly as the scripts in `lua/` do. A key expires when it says nothing that a missing key would not
//! say, and is never evicted before, so a table full of live keys refuses new ones. A call with id 0 leaves no record
//! of its node, and allocates nothing for a key that is already stored. Knows no clock. Called by the node that owns
//! it, or by the simulator.

use std::collections::HashMap;

use super::aside::{Aside, Form, Part, Sums};
use super::cells::{Cells, Head};
use super::census::{Census, Lent, Nodes, Record};
use super::excerpt::{Excerpt, Occupied};
use super::lent_permits::LentPermits;
use super::silent::Silent;
use super::turns::Secret;
use super::view::{Standing, View};
use crate::core::call::{Acquire, Call, Counter, Grant, JUST_NOW, Op, StoreError, Windows};
use crate::core::gcra;
use crate::core::key::Digest;
use crate::core::lifetime;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::table::Full;
use crate::core::time::{Micros, StoredTime, Timestamp};

/// Ids and epochs stay below 2^53, as in the scripts.
const MAX_ID: u64 = (1 << 53) - 1;

/// Counters in this process's memory.
#[derive(Debug)]
pub struct MemoryStore {
    cells: Cells,
    nodes: HashMap<u128, Nodes, Secret>,
    permits: LentPermits,
}

/// What [`MemoryStore::spend`] did.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// The tokens were lent.
    pub lent: bool,
    /// The counter afterwards.
    pub counter: Counter,
    /// The key's epoch.
    pub epoch: u64,
}

impl MemoryStore {
    /// An empty store of at most `max_cells` cells: a key takes one for each of its limits. `secret`
    /// should be random.
    #[must_use]
    pub fn new(max_cells: usize, secret: u128) -> Self {
        Self { cells: Cells::new(max_cells, secret), nodes: HashMap::default(), permits: LentPermits::default() }
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

    /// Replaces all that is stored of a key by `excerpt`, for calls of one node under these limits. There must be
    /// room for it.
    pub fn put(&mut self, digest: Digest, node: &str, limits: &[Limit], excerpt: Option<&Excerpt>) {
        self.nodes.remove(&digest.0);
        let Some(excerpt) = excerpt else { return self.cells.forget(digest.0) };
        let head = Head { epoch: excerpt.epoch, reset: excerpt.reset, expires: excerpt.expires };
        self.cells.put(digest.0, head, limits, &excerpt.counters);
        let census = excerpt.census.map(Census::of).unwrap_or_default();
        let record = excerpt.record.as_ref().map(Record::of);
        let mut nodes = Nodes::of(census, Lent::of(excerpt.lent), node, record);
        nodes.put_aside(Form::of(limits), node, Sums::of(excerpt.aside), excerpt.part.map(Part::of));
        self.nodes.insert(digest.0, nodes);
    }

    /// The state of a key, as far as it affects calls of one node under these limits.
    #[must_use]
    pub fn excerpt(&self, digest: Digest, node: &str, limits: &[Limit]) -> Option<Excerpt> {
        let Head { epoch, reset, expires } = self.cells.head(digest.0)?;
        let mut counters = [None; MAX_LIMITS];
        for (index, limit) in limits.iter().enumerate() {
            counters[index] = Some(self.cells.counter(digest.0, index, limit));
        }
        let (nodes, form) = (self.nodes.get(&digest.0), Form::of(limits));
        Some(Excerpt {
            epoch,
            reset,
            expires,
            counters,
            census: nodes.and_then(|nodes| nodes.census().numbers()),
            lent: nodes.map(|nodes| nodes.lent.numbers()).unwrap_or_default(),
            record: nodes.and_then(|nodes| nodes.record(node)).map(Record::numbers),
            aside: nodes.map(|nodes| nodes.sums(form).numbers()).unwrap_or_default(),
            part: nodes.and_then(|nodes| nodes.part(form, node)).map(|part| part.numbers()),
        })
    }

    /// Replaces all that is stored of the permits of a key of concurrent limits.
    pub fn put_occupied(&mut self, digest: Digest, occupied: Option<&Occupied>) {
        self.permits.put(digest.0, occupied);
    }

    /// All that is stored of the permits of a key of concurrent limits.
    #[must_use]
    pub fn occupied(&self, digest: Digest) -> Option<Occupied> {
        self.permits.occupied(digest.0)
    }

    /// Answers a call of `node` at `now`.
    ///
    /// # Errors
    /// [`StoreError::Full`] when the call needs room for a new key, or a new limit of one, and all
    /// cells are live.
    pub fn call(&mut self, now: Timestamp, node: &str, call: &Call) -> Result<Grant, StoreError> {
        if let Op::Occupy(ask) = call.op {
            let id = (call.digest.0, call.id.min(MAX_ID));
            return Ok(self.permits.occupy(now, node, id, call.rule.limits[0].count, &ask));
        }
        let view = self.view(now, node, call);
        match call.op {
            Op::Acquire(ask) => self.acquire(view, &ask).map_err(|Full| StoreError::Full),
            Op::Return { .. } => Ok(self.take_back(view, &call.op)),
            Op::Peek | Op::Occupy(_) => Ok(view.grant(0, Standing::New)),
            Op::Refund { amount, epoch, windows } => Ok(self.refund(view, amount, epoch, &windows)),
            Op::Reset => self.reset(view).map_err(|Full| StoreError::Full),
        }
    }

    /// The fast path of a check: acquires exactly `tokens` in place, for a stored key with one limit, and leaves no
    /// record of the node. Nothing is written when they were not lent. `None` means that [`MemoryStore::call`] must
    /// decide.
    pub fn spend(&mut self, now: Timestamp, digest: Digest, limits: &[Limit], tokens: u64) -> Option<Spent> {
        let [limit] = limits else { return None };
        let cell = self.cells.only(now, digest.0, limit)?;
        let mut counter = cell.counter();
        counter.roll(limit, now);
        let lent = counter.left(limit, now) >= tokens;
        if lent {
            counter.debit(limit, now, tokens);
            cell.set(counter);
            if !lifetime::is_kept(limit, &counter, cell.expires()) {
                cell.live_until(expires_at(limits, counter, now));
            }
        }
        Some(Spent { lent, counter, epoch: cell.epoch() })
    }

    /// Loads the key's state; drops the key first if it has expired.
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
            counters[index].roll(limit, now);
        }
        let period = lifetime::census_period(limits);
        let nodes = if self.nodes.is_empty() { None } else { self.nodes.get(&digest) };
        let census = nodes.map(Nodes::census).unwrap_or_default().rolled(now, period);
        let record = nodes.and_then(|nodes| nodes.record(node)).copied();
        let id = call.id.min(MAX_ID);
        let lent = nodes.map(|nodes| nodes.lent).unwrap_or_default();
        let form = Form::of(limits);
        let part = nodes.and_then(|nodes| nodes.part(form, node)).unwrap_or_default();
        let sums = nodes.map(|nodes| nodes.sums(form)).unwrap_or_default();
        let is_window = call.sets_aside() && form != Form::Bucket;
        let aside = is_window.then(|| Aside::new(sums, part, &limits[0], now, counters[0].at));
        let silent = None;
        let mut view = View { now, node, id, digest, head, record, census, lent, limits, counters, aside, silent };
        if view.has_gcra() {
            let units = if call.sets_aside() { 1 } else { gcra::units(limits) };
            view.lent = lent.rolled(now, units, |tokens, end| view.spend(tokens, end));
            if call.sets_aside() {
                let charged = (view.counters[0].at, view.lent.total());
                view.silent = Some(Silent::new(sums, part, &limits[0], now, view.lent.period(), charged));
            }
        }
        view
    }

    fn acquire(&mut self, mut view: View<'_>, ask: &Acquire) -> Result<Grant, Full> {
        let [need, want, least, held] = [ask.need, ask.want, ask.least, ask.held].map(|tokens| tokens.min(MAX_COUNT));
        let ask = &Acquire { need, want, least, held, ..*ask };
        match (view.standing(view.record.map(|record| record.id)), view.record) {
            (Standing::Same, Some(record)) => {
                view.note_not_kept(&record, ask);
                return Ok(view.grant(view.granted_before(&record, ask), Standing::Same));
            }
            (Standing::Older, _) => return Ok(view.grant(0, Standing::Older)),
            (_, record) if record.is_none_or(|record| record.id == 0) && ask.is_late(view.now) => {
                return Ok(view.grant(0, Standing::Late));
            }
            _ => {}
        }
        let restored = view.restore(ask);
        view.count_node();
        let ask = &view.charge_silent(ask);
        let closed = view.close_account(ask.held, &ask.ages, u64::MAX);
        view.claim(ask);
        let ask = &view.renew(ask, closed);
        let granted = if restored { 0 } else { view.lend(ask) };
        if let Some(aside) = &mut view.aside {
            aside.has_opened(view.counters[0].at);
        }
        let mut said = Record { id: view.id, granted, at: view.windows(), ..Record::default() };
        if view.id != 0 && view.has_gcra() {
            let aside = granted - view.at_once(ask, granted);
            view.lent.open(&mut said, ask.held.saturating_add(aside));
            let (at, lent) = (view.counters[0].at, view.lent.total());
            if let Some(silent) = &mut view.silent {
                silent.note_room(view.now, at, lent);
            }
        }
        // Nodes draw ids independently, so the new epoch could equal the one that was lost. The node would then not
        // notice the loss.
        let fresh = if view.id == ask.epoch { view.id.saturating_sub(1) } else { view.id };
        let epoch = view.head.map_or(fresh.max(1), |head| head.epoch);
        let reset = view.head.is_some_and(|head| head.reset);
        let head = Head { epoch, reset, expires: self.expires(&view, ask) };
        self.save(&view, head, view.limits)?;
        view.head = Some(head);
        if view.id != 0 {
            let nodes = self.nodes.entry(view.digest).or_default();
            nodes.asked(view.now, view.node, view.census, view.lent, said, view.limits);
            if let Some(aside) = view.aside.filter(Aside::is_changed) {
                nodes.claimed(Form::of(view.limits), view.node, aside.sums, aside.part, aside.begins);
            }
            if let Some(silent) = view.silent.filter(Silent::is_claimed) {
                nodes.claimed(Form::Bucket, view.node, silent.sums, silent.part, silent.begins);
            }
        }
        Ok(view.grant(granted, Standing::New))
    }

    /// Until when the key is kept after an acquire. The scripts write the expiry only when the census or something that
    /// it is computed from has changed, so otherwise it stays as it was here, too.
    fn expires(&self, view: &View<'_>, ask: &Acquire) -> Timestamp {
        let stored = match (view.head, view.limits, self.nodes.get(&view.digest)) {
            (Some(head), [limit], Some(nodes))
                if view.id != 0
                    && view.aside.is_none_or(|aside| aside.keeps(&nodes.sums(Form::of(view.limits))))
                    && view.silent.is_none_or(|silent| silent.sums.keeps(&nodes.sums(Form::Bucket)))
                    && !ask.window.is_next()
                    && nodes.census() == view.census =>
            {
                let before = Counter { used: nodes.lent.total(), ..self.cells.counter(view.digest, 0, limit) };
                // Entitlements keep the key for longer than a window lasts, so the expiry is the same for all calls in one
                // window, and of windows from the first request while none is open. A sliding window is known by its start,
                // because its length is not stored.
                let is_kept = match limit.algorithm {
                    Algorithm::Sliding => !before.is_unopened(),
                    algorithm => algorithm == Algorithm::FixedFromFirst,
                };
                let is_same = view.aside.is_some() && is_kept && before.at == view.counters[0].at;
                (is_same || lifetime::lasts_as_before(limit, &before, &view.shown()[0])).then_some(head.expires)
            }
            _ => None,
        };
        stored.unwrap_or_else(|| view.expires_at())
    }

    fn save(&mut self, view: &View<'_>, head: Head, limits: &[Limit]) -> Result<(), Full> {
        let nodes = &mut self.nodes;
        self.cells.store(view.now, view.digest, head, limits, &view.counters, |expired| {
            nodes.remove(&expired);
        })
    }

    fn take_back(&mut self, mut view: View<'_>, op: &Op) -> Grant {
        let Op::Return { amount, epoch, held, ages, windows, voids } = *op else {
            return view.grant(0, Standing::New);
        };
        let seen = view.seen_before();
        if seen != Standing::New {
            return view.grant(0, seen);
        }
        // A node that never had an answer for this key knows no epoch. Its return counts all the same if it voids its
        // own acquire, whose answer was lost.
        let knows = |head: Head| head.epoch == epoch || epoch == 0 && voids.is_some();
        if !view.head.is_some_and(knows) {
            return view.grant(0, Standing::New);
        }
        let amount = amount.min(MAX_COUNT);
        let mut taken = false;
        for (index, limit) in view.limits.iter().enumerate().filter(|(_, limit)| limit.algorithm != Algorithm::Gcra) {
            taken |= view.counters[index].credit_lent(limit, amount, windows[index]);
        }
        let (of_order, most) = view.take_back_order(voids);
        taken |= of_order;
        let mut account = None;
        // An acquire that the node sent after this return has already reported what the node holds.
        let void = voids.map_or(0, |voids| voids.id);
        let latest = view.record.map_or(0, |record| record.id).max(void);
        if view.has_gcra() && view.id > latest {
            let rest = amount.saturating_add(held.min(MAX_COUNT));
            let is_late = view.silent.is_some_and(|silent| silent.is_late(view.now));
            let was = view.record.map_or(0, |record| record.period);
            let before = view.close_account(rest, if is_late { &JUST_NOW } else { &ages }, most);
            taken |= before.is_some_and(|account| account > 0 || rest > 0);
            let mut record = Record::default();
            // This return credited an account that had lapsed. Tokens that the node keeps of it may still be spent,
            // so they are lent again.
            view.lent.open(&mut record, before.map_or(0, |_| held.min(MAX_COUNT)));
            // While other nodes are silent, a return renews no account; no node relies on it to do so.
            if view.silent.is_some_and(|silent| silent.is_any()) && was + 1 == view.lent.period() {
                view.lent.backdate(&mut record);
            }
            account = Some(record);
        }
        if taken || voids.is_some() {
            if account.is_some_and(|account| account.lent > 0) {
                // The key must last as long as this node holds tokens of it.
                self.cells.live_until(view.digest, view.expires_at());
            }
            self.save_credit(&view, account, void);
            if let Some(aside) = view.aside.filter(Aside::is_changed) {
                let nodes = self.nodes.entry(view.digest).or_default();
                nodes.claimed(Form::of(view.limits), view.node, aside.sums, aside.part, aside.begins);
            }
        }
        view.grant(if taken { amount } else { 0 }, Standing::New)
    }

    fn refund(&mut self, mut view: View<'_>, amount: u64, epoch: u64, windows: &Windows) -> Grant {
        let seen = view.seen_before();
        if seen != Standing::New {
            return view.grant(0, seen);
        }
        let charges = |(limit, (counter, charged)): (&Limit, (&Counter, &Option<StoredTime>))| {
            let Some(charged) = charged.map(StoredTime::time) else { return true };
            if limit.algorithm == Algorithm::Gcra { view.now < charged } else { counter.at == charged }
        };
        let charged = view.limits.iter().zip(view.counters.iter().zip(windows)).all(charges);
        let forgot = |head: Head| head.reset && epoch != 0 && epoch != head.epoch;
        if view.head.is_none_or(forgot) || !charged {
            return view.grant(0, Standing::New);
        }
        let amount = amount.min(MAX_COUNT);
        for (index, limit) in view.limits.iter().enumerate() {
            view.counters[index].credit(limit, amount);
        }
        self.save_credit(&view, None, 0);
        view.grant(amount, Standing::New)
    }

    fn save_credit(&mut self, view: &View<'_>, account: Option<Record>, void: u64) {
        self.cells.update(view.digest, view.limits, &view.counters);
        if view.id != 0 {
            self.nodes.entry(view.digest).or_default().credited(
                view.node,
                view.id,
                (&view.census, view.lent),
                account,
                void,
            );
        }
    }

    fn reset(&mut self, mut view: View<'_>) -> Result<Grant, Full> {
        let seen = view.seen_before();
        if seen != Standing::New {
            return Ok(view.grant(0, seen));
        }
        let Some(old) = view.head else { return Ok(view.grant(0, Standing::New)) };
        let following = if old.epoch < MAX_ID { old.epoch + 1 } else { 1 };
        // The new epoch differs from every earlier one, because earlier calls of other nodes may arrive yet, and must see another
        // epoch than theirs.
        let epoch = if view.id > old.epoch { view.id } else { following };
        let longest = view.limits.iter().map(lifetime::span).max().unwrap_or_default();
        let life = (longest + longest).max(Micros::from_secs(2));
        let expires = view.or_as_aside(lifetime::expires_after(view.now, life));
        let head = Head { epoch, reset: true, expires };
        self.cells.forget(view.digest);
        let nodes = self.nodes.remove(&view.digest);
        view.counters = [Counter::default(); MAX_LIMITS];
        // The key was dropped above, so at least one cell is free.
        self.save(&view, head, &view.limits[..1])?;
        if view.id != 0 {
            let mut after = Nodes::reset(nodes.as_ref(), view.node, view.id, view.census);
            if let Some(nodes) = nodes.filter(|_| view.aside.is_some() || view.silent.is_some()) {
                // A node that has lost the store does not learn of the reset and goes on within its entitlement, so
                // that stays set aside.
                after.keep_aside(Form::of(view.limits), nodes);
            }
            self.nodes.insert(view.digest, after);
        }
        for (index, limit) in view.limits.iter().enumerate() {
            view.counters[index].roll(limit, view.now);
        }
        if let Some(aside) = &mut view.aside {
            // If the limit was changed, the open window may be another one.
            aside.of_window(view.counters[0].at);
        }
        (view.head, view.lent) = (Some(head), Default::default());
        Ok(view.grant(0, Standing::New))
    }
}

/// Until when a key of one limit is kept of which nothing is leased.
#[cold]
fn expires_at(limits: &[Limit], counter: Counter, now: Timestamp) -> Timestamp {
    lifetime::expires_at(limits, &[counter], now, gcra::units(limits))
}
