//! What the memory store knows of one key during one call, and the steps of an acquire on it.
//!
//! Everything here is rolled to the call's `now` and nothing is stored yet. The same steps, by the
//! same names, are in `lua/acquire.lua`. Called by `memory.rs` only.

use super::cells::Head;
use super::census::{self, Census, Lent, Record};
use crate::core::call::{Acquire, Ages, Counter, Grant, Voided, Window};
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::time::{Micros, Timestamp};

/// How an id stands to the last one that the node used for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    New,
    Same,
    Older,
}

/// A key during a call.
pub(super) struct View<'a> {
    pub(super) now: Timestamp,
    pub(super) node: &'a str,
    /// 0: remember nothing.
    pub(super) id: u64,
    pub(super) digest: u128,
    /// `None`: nothing is stored.
    pub(super) head: Option<Head>,
    /// This node's last calls.
    pub(super) record: Option<Record>,
    pub(super) census: Census,
    pub(super) lent: Lent,
    pub(super) limits: &'a [Limit],
    /// One per limit; the rest are zero.
    pub(super) counters: [Counter; MAX_LIMITS],
}

impl View<'_> {
    /// The answer to the call.
    pub(super) fn grant(&self, granted: u64, standing: Standing) -> Grant {
        Grant {
            granted,
            replayed: standing == Standing::Same,
            outdated: standing == Standing::Older,
            confirmed: true,
            damaged: false,
            epoch: self.head.map_or(0, |head| head.epoch),
            reset: self.head.is_some_and(|head| head.reset),
            nodes: u32::try_from(self.census.nodes()).expect("a census is clamped to a u32"),
            now: self.now,
            counters: self.shown(),
        }
    }

    /// The counters as nodes see them: a bucket's with what is lent of it.
    fn shown(&self) -> [Counter; MAX_LIMITS] {
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

    /// What was lent from buckets was spent, the last of it at that time.
    pub(super) fn spend(&mut self, tokens: u64, at: Timestamp) {
        for (limit, counter) in self.limits.iter().zip(&mut self.counters) {
            if limit.algorithm == Algorithm::Gcra && tokens > 0 {
                counter.debit(limit, at, tokens.min(gcra::most_lent(limit)));
                counter.roll(limit, self.now);
            }
        }
    }

    /// The account is closed: what this node was lent, less the `rest` that it still has or hands back, it
    /// has spent, as if in one go so long ago; but never more than `most`. What it has beyond the account was charged for somebody at the
    /// node who did not get it: that charge is taken back. What it was lent; `None` where nothing was said
    /// of an account.
    pub(super) fn settle_account(&mut self, rest: u64, ages: &Ages, most: u64) -> Option<u64> {
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

    /// An account that was not renewed in time has been charged as spent. A node that was only late says now what
    /// it has not spent of it, and that is credited, as long as the bucket cannot have filled up since: a
    /// charge that has leaked away is worth nothing any more.
    fn take_back_lapsed(&mut self, record: &Record, rest: u64) -> bool {
        if record.lent == 0 || record.period == 0 || rest == 0 {
            return false;
        }
        let charged_at = Timestamp((record.period + 2) * gcra::PERIOD.0);
        for (limit, counter) in self.limits.iter().zip(&mut self.counters) {
            let leaks_until = charged_at + gcra::cost(limit, record.lent.min(limit.burst));
            if limit.algorithm == Algorithm::Gcra && self.now < leaks_until {
                counter.credit(limit, rest.min(record.lent));
            }
        }
        true
    }

    /// Takes back what an order was lent that nobody waits for any more: of a bucket what it was charged at once,
    /// since the rest is in the account. Where it was not executed, this says what it would have told. Says
    /// whether it was lent any, and the most that was spent of the account.
    pub(super) fn take_back_order(&mut self, voids: &Voided) -> (bool, u64) {
        if voids.id == 0 {
            return (false, u64::MAX);
        }
        let record = self.record.unwrap_or_default();
        // An account of before the last answer is one that the store lost a change of, or that another process of this
        // node opened: what was told since is not known here, and all of it counts as spent.
        let is_known = record.id == voids.answered || record.id < voids.answered && voids.answered <= record.other;
        let most = if is_known { voids.spent.saturating_add(voids.told) } else { u64::MAX };
        if record.id > voids.id {
            return (false, most);
        }
        if let Some(known) = &mut self.record {
            // If it comes later, it is lent nothing, as if it had been before.
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
                counter.credit(limit, record.granted);
            }
        }
        (record.granted > 0, voids.spent)
    }

    /// How the call's id stands to the last one of its kind.
    pub(super) fn standing(&self, last: Option<u64>) -> Standing {
        match last {
            Some(last) if self.id != 0 && self.id == last => Standing::Same,
            Some(last) if self.id != 0 && self.id < last => Standing::Older,
            _ => Standing::New,
        }
    }

    /// The same for a return, refund or reset.
    pub(super) fn seen_before(&self) -> Standing {
        self.standing(self.record.map(|record| record.other))
    }

    /// What was granted under this id, as far as it can still be spent: a window that is over took
    /// its tokens with it, and so did an account that was closed for this node.
    pub(super) fn granted_before(&self, record: &Record, ask: &Acquire) -> u64 {
        let open = self.limits.iter().enumerate().all(|(index, limit)| match limit.algorithm {
            Algorithm::Gcra => self.lent.is_open(record),
            _ => self.counters[index].at == record.at[index],
        });
        if open { record.granted.min(ask.want.max(ask.need)) } else { 0 }
    }

    /// Restores what the store has lost of this node's spending: once, in its first acquire under
    /// an epoch that it does not know, unless that epoch began with a reset. True when that was
    /// some of a window: others may have as much to tell, and nothing is lent yet.
    pub(super) fn restore(&mut self, ask: &Acquire) -> bool {
        let same = self.head.is_some_and(|head| head.epoch == ask.epoch);
        let reset = self.head.is_some_and(|head| head.reset);
        let lost = ask.epoch != 0 && !same && !reset;
        let mut restored = false;
        // What the node took back meanwhile is no acquire.
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

    /// Counts this node in the census, unless the call is not to be remembered.
    pub(super) fn count_node(&mut self) {
        if self.id == 0 {
            self.census = Census::default();
        } else {
            self.census.count(self.record.as_ref());
        }
    }

    /// Debits what can be lent of all limits, and says how much that is.
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
        tokens
    }

    /// Of tokens lent from a bucket, those that somebody waits for: they are spent now. The rest is
    /// set aside, and counts when it is spent.
    pub(super) fn at_once(&self, ask: &Acquire, tokens: u64) -> u64 {
        if self.id == 0 { tokens } else { tokens.min(ask.need) }
    }

    fn left_of_all(&self, ask: &Acquire) -> u64 {
        let all = self.limits.iter().zip(&self.counters);
        if let Window::Next { begins } = ask.window {
            if let [limit] = self.limits { self.counters[0].left_ahead(limit, begins) } else { 0 }
        } else {
            let lent = self.lent.total().saturating_add(ask.held);
            let left = all.map(|(limit, counter)| match limit.algorithm {
                Algorithm::Gcra => counter.left(limit, self.now).saturating_sub(lent),
                _ => counter.left(limit, self.now),
            });
            left.min().unwrap_or(0)
        }
    }

    /// A node that is alone with a key may be lent tokens of a bucket before they have trickled in: it knows from
    /// the answer when each of them comes, and spends none before. Another node finds them lent. What
    /// somebody waits for is charged at once, and has to be there.
    fn reach(&self, ask: &Acquire, left: u64) -> u64 {
        let is_alone = !ask.window.is_next() && self.id != 0 && self.has_gcra() && self.census.nodes() == 1;
        if !is_alone || left < ask.need {
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

    /// Guided self-scheduling: nobody takes more than its part of what is left, beyond what waits.
    fn share_of(&self, left: u64, ask: &Acquire) -> u64 {
        if left < ask.least {
            return 0;
        }
        let nodes = self.census.nodes();
        let capacity = self.limits.iter().map(Limit::capacity).min().unwrap_or(0);
        // A window's tail is shared to the last; what trickles in is handed out by the lot.
        let parts = if self.limits.iter().all(Limit::trickles) { 2 } else { 32 };
        let part = ask.need.max(left.div_ceil(nodes)).max(capacity.div_ceil(parts * nodes));
        ask.want.max(ask.need).min(left).min(part)
    }

    /// `Counter::at` of each limit that has windows.
    pub(super) fn windows(&self) -> [Timestamp; MAX_LIMITS] {
        let used = |index: usize| index < self.limits.len() && self.limits[index].algorithm != Algorithm::Gcra;
        std::array::from_fn(|index| if used(index) { self.counters[index].at } else { Timestamp(0) })
    }

    /// See [`lifetime`].
    pub(super) fn lifetime(&self) -> Micros {
        lifetime(self.limits, &self.shown(), self.now)
    }
}

/// How long a key with these counters says anything that a missing one would not.
pub(super) fn lifetime(limits: &[Limit], counters: &[Counter], now: Timestamp) -> Micros {
    let census = census::period(limits);
    let each = limits.iter().zip(counters).map(|(limit, counter)| match limit.algorithm {
        Algorithm::Gcra if counter.used > 0 => {
            counter.at.since(now) + census::span(limit) + census::span(limit) + gcra::LEASE_LIFE
        }
        Algorithm::Gcra => counter.at.since(now) + census::span(limit),
        Algorithm::Sliding => (counter.at + limit.period + limit.period + limit.period).since(now),
        _ if counter.at.0 == 0 => limit.period + limit.period,
        _ => (counter.at + limit.period).since(now),
    });
    each.fold(census + census, Micros::max)
}
