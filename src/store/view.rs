//! What the memory store knows of one key during one call, and the steps of an acquire on it.
//!
//! Everything here is rolled to the call's `now` and nothing is stored yet. The same steps, by the
//! same names, are in `lua/acquire.lua`. Called by `memory.rs` only.

use super::cells::Head;
use super::census::{self, Census, Lent, Record};
use crate::core::call::{Acquire, Counter, Grant};
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
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
    pub(super) fn grant(&self, granted: u32, standing: Standing) -> Grant {
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
                counter.used = self.lent.total();
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
                counter.debit(limit, at, tokens.min(limit.burst));
                counter.roll(limit, self.now);
            }
        }
    }

    /// Counts what this node has spent of what it was lent: all but what it holds or hands back.
    /// It spent the last of them that long ago.
    pub(super) fn close_account(&mut self, rest: u64, age: Micros) -> u64 {
        let Some(record) = self.record.filter(|_| self.has_gcra()) else { return 0 };
        let account = self.lent.close(&record);
        self.spend(account.saturating_sub(rest), self.now - age);
        account
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
    pub(super) fn granted_before(&self, record: &Record, ask: &Acquire) -> u32 {
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
        if lost && self.id != 0 && self.record.is_none() {
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
    pub(super) fn lend(&mut self, ask: &Acquire) -> u32 {
        let tokens = self.share_of(self.left_of_all(ask), ask);
        for (index, limit) in self.limits.iter().enumerate() {
            if ask.ahead_of.0 != 0 {
                self.counters[index].debit_ahead(tokens.into());
            } else if limit.algorithm != Algorithm::Gcra {
                self.counters[index].debit(limit, self.now, tokens.into());
            }
        }
        self.spend(self.at_once(ask, tokens), self.now);
        tokens
    }

    /// Of tokens lent from a bucket, those that somebody waits for: they are spent now. The rest is
    /// set aside, and counts when it is spent.
    pub(super) fn at_once(&self, ask: &Acquire, tokens: u32) -> u64 {
        if self.id == 0 { tokens.into() } else { tokens.min(ask.need).into() }
    }

    fn left_of_all(&self, ask: &Acquire) -> u64 {
        let all = self.limits.iter().zip(&self.counters);
        if ask.ahead_of.0 == 0 {
            let lent = self.lent.total() + u64::from(ask.held);
            let left = all.map(|(limit, counter)| match limit.algorithm {
                Algorithm::Gcra => counter.left(limit, self.now).saturating_sub(lent),
                _ => counter.left(limit, self.now),
            });
            left.min().unwrap_or(0)
        } else if self.limits.len() == 1 {
            self.counters[0].left_ahead(&self.limits[0], ask.ahead_of)
        } else {
            0
        }
    }

    /// Guided self-scheduling: nobody takes more than its part of what is left, beyond what waits.
    fn share_of(&self, left: u64, ask: &Acquire) -> u32 {
        if left < ask.least.into() {
            return 0;
        }
        let nodes = self.census.nodes();
        let capacity = self.limits.iter().map(Limit::capacity).min().unwrap_or(0);
        // A window's tail is shared to the last; what trickles in is handed out by the lot.
        let parts = if self.limits.iter().all(Limit::trickles) { 2 } else { 32 };
        let part = u64::from(ask.need).max(left.div_ceil(nodes)).max(capacity.div_ceil(parts * nodes));
        let granted = u64::from(ask.want.max(ask.need)).min(left).min(part);
        u32::try_from(granted).expect("at most what was asked for")
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
