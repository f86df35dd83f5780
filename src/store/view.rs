//! The state of one key during one call to the memory store, and the steps of an acquire on it.
//!
//! The counters are rolled to the call's `now`, and nothing is stored yet. `lua/acquire.lua` has the same steps under
//! the same names. Called by `memory.rs` only.

use super::aside::{Aside, Part};
use super::cells::Head;
use super::census::{Census, Lent, Record};
use super::silent::Silent;
use crate::core::call::{Acquire, Ages, Counter, Grant, JUST_NOW, Voided, Window};
use crate::core::gcra;
use crate::core::lifetime;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::time::{Micros, Timestamp};

/// How the id of a call compares with the last id that the node used for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    New,
    Same,
    Older,
    /// An acquire that came outside of its time: see [`Acquire::until`].
    Late,
}

/// A key during a call.
pub(super) struct View<'a> {
    pub(super) now: Timestamp,
    pub(super) node: &'a str,
    /// 0 means that the call leaves no record.
    pub(super) id: u64,
    pub(super) digest: u128,
    /// `None` when the key is not stored.
    pub(super) head: Option<Head>,
    /// The record of this node's last calls.
    pub(super) record: Option<Record>,
    pub(super) census: Census,
    pub(super) lent: Lent,
    pub(super) limits: &'a [Limit],
    /// One counter per limit; the rest are zero.
    pub(super) counters: [Counter; MAX_LIMITS],
    /// What is set aside for nodes that may lose the store, if anything may be.
    pub(super) aside: Option<Aside>,
    /// The same, of a bucket.
    pub(super) silent: Option<Silent>,
}

impl View<'_> {
    /// The answer to the call.
    pub(super) fn grant(&self, granted: u64, standing: Standing) -> Grant {
        Grant {
            granted,
            replayed: standing == Standing::Same,
            outdated: matches!(standing, Standing::Older | Standing::Late),
            late: standing == Standing::Late,
            confirmed: true,
            damaged: false,
            epoch: self.head.map_or(0, |head| head.epoch),
            reset: self.head.is_some_and(|head| head.reset),
            nodes: u32::try_from(self.census.nodes()).expect("a census is clamped to a u32"),
            now: self.now,
            counters: self.answered(),
            entitled: self.part().map_or(0, |part| part.given),
            not_kept: self.silent.map_or(0, |silent| silent.not_kept),
        }
    }

    fn part(&self) -> Option<Part> {
        self.aside.map(|aside| aside.part).or(self.silent.map(|silent| silent.part))
    }

    /// The counters as an answer reports them: tokens that are set aside for other nodes count as used, because nobody
    /// can be lent them.
    fn answered(&self) -> [Counter; MAX_LIMITS] {
        let mut counters = self.shown();
        if let Some(aside) = &self.aside {
            counters[0] = aside.answered(&counters[0]);
        }
        if let Some(silent) = &self.silent {
            counters[0].used = (counters[0].used + silent.shown()).min(MAX_COUNT);
        }
        counters
    }

    /// The counters as nodes see them: `used` of a bucket is what all nodes are lent of it.
    pub(super) fn shown(&self) -> [Counter; MAX_LIMITS] {
        let mut counters = self.counters;
        for (limit, counter) in self.limits.iter().zip(&mut counters) {
            if limit.algorithm == Algorithm::Gcra {
                counter.used = self.lent.total().min(MAX_COUNT);
            }
        }
        counters
    }

    /// Whether a limit is a bucket.
    pub(super) fn has_gcra(&self) -> bool {
        self.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Counts `tokens` that were lent from buckets as spent, the last of them at `at`.
    pub(super) fn spend(&mut self, tokens: u64, at: Timestamp) {
        for (limit, counter) in self.limits.iter().zip(&mut self.counters) {
            if limit.algorithm == Algorithm::Gcra && tokens > 0 {
                counter.debit(limit, at, tokens.min(gcra::most_lent(limit)));
                counter.roll(limit, self.now);
            }
        }
    }

    /// Closes this node's account. Of what the node was lent it still has or hands back `rest`; it has spent the
    /// remainder, but never more than `most`, and that is debited as if it were spent in one go at the given age. If
    /// `rest` is more than was lent, the difference was charged for a waiter that did not get it, and that charge is
    /// taken back. Returns what the node was lent; `None` when there was no account.
    pub(super) fn close_account(&mut self, rest: u64, ages: &Ages, most: u64) -> Option<u64> {
        let record = self.record.filter(|_| self.has_gcra())?;
        if !self.lent.is_open(&record) {
            return self.take_back_lapsed(&record, rest).then_some(0);
        }
        let account = self.lent.close(&record);
        let (spent, charged) = (account.saturating_sub(rest).min(most), rest.saturating_sub(account).min(MAX_COUNT));
        for ((limit, counter), age) in self.limits.iter().zip(&mut self.counters).zip(ages) {
            if limit.algorithm == Algorithm::Gcra {
                counter.debit(limit, self.now - *age, spent.min(gcra::most_lent(limit)));
                counter.credit(limit, charged);
                counter.roll(limit, self.now);
            }
        }
        Some(account)
    }

    /// Credits an account that lapsed. An account that was not renewed in time was charged as spent. If the node was
    /// only late, it now says that `rest` of it is unspent, and that is credited, unless the bucket may have filled
    /// up since: then the charge has already leaked away, and a credit would admit too much.
    fn take_back_lapsed(&mut self, record: &Record, rest: u64) -> bool {
        if record.lent == 0 || record.period == 0 || rest == 0 {
            return false;
        }
        let (units, began) = (self.lent.units(), record.period - record.period % self.lent.units());
        let charged_at = Timestamp((began + gcra::PERIODS * units) * gcra::UNIT.0);
        for (limit, counter) in self.limits.iter().zip(&mut self.counters) {
            let leaks_until = charged_at + gcra::cost(limit, record.lent.min(limit.burst));
            if limit.algorithm == Algorithm::Gcra && self.now < leaks_until {
                counter.credit(limit, rest.min(record.lent));
            }
        }
        true
    }

    /// Takes back what a voided acquire was lent. Of a bucket that is only the part that was charged at once, since
    /// the rest is in the node's account. If the acquire was never executed, the node's record is brought to what it
    /// would have said. Returns whether the acquire was lent anything, and the most that can have been spent of the
    /// account.
    pub(super) fn take_back_order(&mut self, voids: Option<Voided>) -> (bool, u64) {
        let Some(voids) = voids else { return (false, u64::MAX) };
        let record = self.record.unwrap_or_default();
        // If the account is older than the last answer that the node has, either the store lost a change of it or
        // another process under the node's name opened it. What was reported since is then unknown, and all of the
        // account counts as spent.
        let is_known = record.id == voids.answered || record.id < voids.answered && voids.answered <= record.other;
        let most = if is_known { voids.spent.saturating_add(voids.reported) } else { u64::MAX };
        if record.id > voids.id {
            return (false, most);
        }
        if let Some(known) = &mut self.record {
            // If the acquire arrives after this, it is granted nothing, as if it had been executed before.
            (known.id, known.granted) = (voids.id, 0);
        }
        if record.id < voids.id {
            return (false, most);
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let counter = &mut self.counters[index];
            if limit.algorithm == Algorithm::Gcra {
                counter.credit(limit, record.granted.min(voids.need));
            } else if counter.at == record.at[index] {
                let mut credited = *counter;
                credited.credit(limit, record.granted);
                let needed = record.granted.min(voids.need);
                let aside = self.aside.as_mut().filter(|_| needed > 0);
                if aside.is_none_or(|aside| aside.withhold_again(limit, &credited, self.now)) {
                    *counter = credited;
                } else {
                    counter.credit(limit, record.granted - needed);
                }
            }
        }
        (record.granted > 0, voids.spent)
    }

    /// Compares the call's id with the last id of its kind.
    pub(super) fn standing(&self, last: Option<u64>) -> Standing {
        match last {
            Some(last) if self.id != 0 && self.id == last => Standing::Same,
            Some(last) if self.id != 0 && self.id < last => Standing::Older,
            _ => Standing::New,
        }
    }

    /// The same for a return, a refund or a reset.
    pub(super) fn seen_before(&self) -> Standing {
        self.standing(self.record.map(|record| record.other))
    }

    /// The part of an earlier grant under the same id that can still be spent. None of it can when one of its windows
    /// is over, or when the node's account has been closed since.
    pub(super) fn granted_before(&self, record: &Record, ask: &Acquire) -> u64 {
        let open = self.limits.iter().enumerate().all(|(index, limit)| match limit.algorithm {
            Algorithm::Gcra => self.lent.is_open(record),
            _ => self.counters[index].at == record.at[index],
        });
        if open { record.granted.min(ask.want.max(ask.need)) } else { 0 }
    }

    /// Restores what the store has lost of this node's spending. That happens once, in the node's first acquire under
    /// an epoch that it does not know, unless a reset began the epoch. Returns true when spending of a current window
    /// was restored: other nodes may have spending to report, too, so nothing is lent in this call.
    pub(super) fn restore(&mut self, ask: &Acquire) -> bool {
        let same = self.head.is_some_and(|head| head.epoch == ask.epoch);
        let reset = self.head.is_some_and(|head| head.reset);
        let lost = ask.epoch != 0 && !same && !reset;
        let mut restored = false;
        // A record without an acquire comes from a return or a refund, which restored nothing.
        if lost && self.id != 0 && self.record.is_none_or(|record| record.id == 0) {
            for (index, limit) in self.limits.iter().enumerate() {
                let (counter, known) = (&mut self.counters[index], ask.known[index]);
                counter.restore(limit, self.now, known);
                let has_window = limit.algorithm != Algorithm::Gcra && known.at.0 != 0;
                restored |= has_window && known.used > 0 && known.at == counter.at;
            }
        }
        restored
    }

    /// Counts this node in the census, unless the call leaves no record.
    pub(super) fn count_node(&mut self) {
        if self.id == 0 {
            self.census = Census::default();
        } else {
            self.census.count(self.record.as_ref());
        }
    }

    /// Takes what an acquire says of its node's entitlement.
    pub(super) fn claim(&mut self, ask: &Acquire) {
        if let Some(aside) = &mut self.aside {
            // What the store had lost of a window from the first request has opened that again.
            aside.of_window(self.counters[0].at);
            let is_ahead = ask.window == Window::Next { begins: self.counters[0].at };
            aside.claim(&self.limits[0], self.now, ask.claim.unwrap_or_default(), is_ahead);
        }
        let owes = self.silent.as_mut().map_or(0, |silent| silent.claim(ask.claim.unwrap_or_default()));
        self.spend(owes, self.now);
    }

    /// Charges a bucket with what silent nodes may have spent. Returns the acquire with the ages that its spending has
    /// then.
    pub(super) fn charge_silent(&mut self, ask: &Acquire) -> Acquire {
        let Some(silent) = &mut self.silent else { return *ask };
        let ages = if silent.is_late(self.now) { JUST_NOW } else { ask.ages };
        let frees = ask.claim.unwrap_or_default().frees;
        let (charge, lapsed) = silent.charge(self.now, frees, gcra::lease_life(1));
        let (limit, counter) = (&self.limits[0], &mut self.counters[0]);
        if charge > Micros::ZERO && !counter.is_unopened() {
            counter.at = counter.at + charge;
            counter.roll(limit, self.now);
        }
        self.spend(lapsed, self.now);
        Acquire { ages, ..*ask }
    }

    /// Renews what the node holds of a bucket, as far as silent nodes leave room. `closed` is what the closed account
    /// had. Returns the acquire with the renewed tokens.
    pub(super) fn renew(&mut self, ask: &Acquire, closed: Option<u64>) -> Acquire {
        let Some(silent) = &mut self.silent else { return *ask };
        let is_same =
            self.record.is_some_and(|record| self.lent.is_open(&record) && record.period == self.lent.period());
        let same = is_same.then(|| closed.unwrap_or(0));
        let held = silent.keep(ask.held, self.lent.now(), same);
        self.lent.let_lapse(silent.not_kept);
        Acquire { held, ..*ask }
    }

    /// Notes, for an acquire that is answered once more, how many of the tokens that it holds were not renewed.
    pub(super) fn note_not_kept(&mut self, record: &Record, ask: &Acquire) {
        let kept = record.lent.saturating_sub(record.granted.saturating_sub(record.granted.min(ask.need)));
        if let Some(silent) = self.silent.as_mut().filter(|_| self.lent.is_open(record)) {
            silent.not_kept = ask.held.saturating_sub(kept);
        }
    }

    /// Debits all limits by the tokens that can be lent, and returns how many those are.
    pub(super) fn lend(&mut self, ask: &Acquire) -> u64 {
        let tokens = self.share_of(self.reach(ask, self.left_of_all(ask)), ask);
        for (index, limit) in self.limits.iter().enumerate() {
            if ask.window.is_next() {
                self.counters[index].debit_ahead(tokens);
            } else if limit.algorithm != Algorithm::Gcra {
                self.counters[index].debit(limit, self.now, tokens);
            }
        }
        self.spend(self.at_once(ask, tokens), self.now);
        if self.aside.is_some_and(|aside| aside.opens()) && ask.need + ask.want > 0 {
            // The window opens with the first request also where all there is is set aside for others. If the answer
            // named no window, it would say that nothing is used, and the node would ask again at once.
            let (limit, counter) = (&self.limits[0], &mut self.counters[0]);
            if counter.is_unopened() {
                counter.at = self.now + limit.period;
            }
        }
        tokens
    }

    /// Of tokens lent from a bucket, those that a waiter takes: they count as spent now. The rest goes to the node's
    /// account, and counts when it is spent.
    pub(super) fn at_once(&self, ask: &Acquire, tokens: u64) -> u64 {
        if self.id == 0 { tokens } else { tokens.min(ask.need) }
    }

    fn left_of_all(&self, ask: &Acquire) -> u64 {
        let all = self.limits.iter().zip(&self.counters);
        if let Window::Next { begins } = ask.window {
            let [limit] = self.limits else { return 0 };
            let (counter, left) = (&self.counters[0], self.counters[0].left_ahead(limit, begins));
            self.aside.map_or(left, |aside| left.min(aside.leaves_ahead(limit.count.saturating_sub(counter.prev))))
        } else {
            let lent = self.lent.total().saturating_add(ask.held);
            let left = all.map(|(limit, counter)| match limit.algorithm {
                Algorithm::Gcra => counter.left(limit, self.now).saturating_sub(lent),
                _ => counter.left(limit, self.now),
            });
            let left = left.min().unwrap_or(0);
            let of_first = |aside: Aside| aside.leaves(&self.limits[0], &self.counters[0], self.now);
            let left = self.aside.map_or(left, of_first);
            self.silent.map_or(left, |silent| silent.leaves(left))
        }
    }

    /// How many tokens may be lent, including tokens of a bucket that have yet to trickle in. Only a node that is
    /// alone with the key may have those in advance: it knows from the answer when each token comes, and spends none
    /// before. If another node asks, it finds them lent. Tokens for a waiter are charged at once, so they must
    /// already be there.
    fn reach(&self, ask: &Acquire, left: u64) -> u64 {
        let is_alone = !ask.window.is_next() && self.id != 0 && self.has_gcra() && self.census.nodes() == 1;
        if !is_alone || left < ask.need || self.silent.is_some_and(|silent| silent.is_shared()) {
            return left;
        }
        let lent = self.lent.total().saturating_add(ask.held);
        let all = self.limits.iter().zip(&self.counters);
        let most = all.map(|(limit, counter)| match limit.algorithm {
            Algorithm::Gcra => counter.left(limit, self.now).saturating_add(gcra::coming(limit)).saturating_sub(lent),
            _ => counter.left(limit, self.now),
        });
        most.min().unwrap_or(0).max(left)
    }

    /// Guided self-scheduling: no node is lent more than its part of what is left, except to serve waiters. So lots
    /// shrink as a limit runs out, and the last tokens are spread over nodes.
    fn share_of(&self, left: u64, ask: &Acquire) -> u64 {
        if left < ask.least {
            return 0;
        }
        let nodes = self.census.nodes();
        let capacity = self.limits.iter().map(Limit::capacity).min().unwrap_or(0);
        // A window's lots may become small, because its last tokens are shared one by one. A bucket refills all the
        // time, so it is lent in larger lots.
        let parts = if self.limits.iter().all(Limit::trickles) { 2 } else { 32 };
        let part = ask.need.max(left.div_ceil(nodes)).max(capacity.div_ceil(parts * nodes));
        // What the call has freed of its own entitlement is lent to nobody else.
        let part = part.max(self.aside.map_or(0, |aside| aside.freed));
        ask.want.max(ask.need).min(left).min(part)
    }

    /// `Counter::at` of each limit that has windows.
    pub(super) fn windows(&self) -> [Timestamp; MAX_LIMITS] {
        let used = |index: usize| index < self.limits.len() && self.limits[index].algorithm != Algorithm::Gcra;
        std::array::from_fn(|index| if used(index) { self.counters[index].at } else { Timestamp(0) })
    }

    /// When the store drops the key if no further call comes.
    pub(super) fn expires_at(&self) -> Timestamp {
        self.or_as_aside(lifetime::expires_at(self.limits, &self.shown(), self.now, self.lent.units()))
    }

    /// The later of `expires` and the time until which entitlements keep the key.
    pub(super) fn or_as_aside(&self, expires: Timestamp) -> Timestamp {
        let of_bucket = || self.silent.and_then(|silent| silent.sums.last());
        let last = self.aside.map_or_else(of_bucket, |aside| aside.last());
        last.map_or(expires, |last| expires.max(lifetime::expires_after(self.now, last.since(self.now))))
    }
}
