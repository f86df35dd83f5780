//! What a node says of the tokens that buckets lent it, and what it may promise meanwhile.
//!
//! The store sets aside what it lends of a gcra limit, and charges it when the node says that it was
//! spent. Until then the node counts as the store will. Where tokens come back one by one and many
//! ask, the store is asked at a pace, and clients are told so. Part of `key.rs`.

use super::key::LeasedKey;
use crate::core::call::{Ages, Call, Counter, JUST_NOW, Op, Voided};
use crate::core::decision::Decision;
use crate::core::gcra;
use crate::core::lease::Leftover;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::time::{Instant, Micros, Timestamp};

/// So long a return may be under way to the store.
const ON_THE_WAY: Micros = Micros::from_secs(5);

/// A refund that could not be kept for so long goes to the store at once.
const LEAST_KEPT: Micros = Micros(20_000);

impl LeasedKey {
    /// Tokens that this node was lent and has not spent.
    pub(super) fn unspent(&self) -> u64 {
        self.lease.held().saturating_add(self.waiting_to_return())
    }

    /// Of those, what goes back once the acquire under way has been answered.
    pub(super) fn waiting_to_return(&self) -> u64 {
        self.leftovers.iter().map(|leftover| leftover.tokens).sum()
    }

    /// What waits of the same windows goes back with `leftover`: of two calls that leave together the later may come
    /// first, and what the other brings is then out of date.
    pub(super) fn take_leftovers(&mut self, mut leftover: Leftover) -> Leftover {
        self.leftovers.retain(|other| {
            let is_same = other.windows == leftover.windows;
            leftover.tokens += if is_same { other.tokens } else { 0 };
            !is_same
        });
        leftover
    }

    /// What waited to go back lapses; how much.
    pub(super) fn drop_leftovers(&mut self) -> u64 {
        let dropped = self.waiting_to_return();
        self.leftovers.clear();
        dropped
    }

    /// The counters as the store will have them when it is told what is held of buckets: see [`LeasedKey::charge`].
    pub(super) fn charged(&self) -> [Counter; MAX_LIMITS] {
        let mut counters = [Counter::default(); MAX_LIMITS];
        let held = self.unspent();
        for (index, counter) in counters.iter_mut().enumerate().take(self.counters.len()) {
            *counter = self.charged_of(index, held);
        }
        counters
    }

    /// One of them, where so much is held.
    pub(super) fn charged_of(&self, index: usize, held: u64) -> Counter {
        let (limit, net, mut counter) = (&self.rule.limits[index], self.net[index], self.counters[index]);
        if limit.algorithm == Algorithm::Gcra {
            let spent = net.saturating_sub(held);
            if spent > 0 {
                counter.debit(limit, self.clock.latest(self.spent_at(index, spent)), spent);
            }
            if held > net {
                counter.credit(limit, held - net);
            }
            counter.used = counter.used.saturating_sub(net).saturating_add(held);
        }
        counter
    }

    /// Takes it that other nodes hold nothing of buckets any more.
    pub(super) fn doubt_lent(&self, counters: &mut [Counter; MAX_LIMITS]) {
        let held = self.unspent();
        for (limit, counter) in self.rule.limits.iter().zip(counters) {
            if limit.algorithm == Algorithm::Gcra {
                counter.used = counter.used.min(held);
            }
        }
    }

    /// Takes it that the store has been told what is held of buckets, `returned` tokens less than before: the
    /// rest of what it lent was spent. What is there beyond that it had charged for somebody who did not get
    /// it; it takes that charge back, and sets aside what is held.
    pub(super) fn charge(&mut self, returned: u64) {
        let held = self.unspent();
        let rule = self.rule.clone();
        for (index, limit) in rule.limits.iter().enumerate().filter(|(_, limit)| limit.algorithm == Algorithm::Gcra) {
            let (net, there) = (self.net[index], held.saturating_add(returned));
            let spent = net.saturating_sub(there);
            let at = self.clock.latest(self.spent_at(index, spent));
            let counter = &mut self.counters[index];
            counter.debit(limit, at, spent);
            counter.credit(limit, there.saturating_sub(net));
            counter.used = counter.used.saturating_sub(net).saturating_add(held);
            self.net[index] = held;
        }
    }

    /// Nobody waits for the answer to an order any more: what the store is told of it with the next return, which adds
    /// what was spent meanwhile. What the order says of the account counts as told.
    pub(super) fn void_order(&mut self, call: &Call) -> Voided {
        let Op::Acquire(order) = call.op else { return Voided::default() };
        // Of what is lent ahead the store could not tell whether this window had it or the next: it ends with that.
        if order.ahead_of.0 != 0 {
            return Voided::default();
        }
        let mut told = 0;
        for (limit, net) in self.rule.limits.iter().zip(&mut self.net) {
            if limit.algorithm == Algorithm::Gcra {
                told = told.max(net.saturating_sub(order.held));
                *net = order.held;
            }
        }
        Voided { id: call.id, need: order.need, told, spent: 0, answered: self.accounted }
    }

    /// The order that was given up. What a bucket was charged at once is only taken back while the bucket cannot have
    /// filled up since: a charge that has leaked away is worth nothing any more.
    pub(super) fn take_doubtful(&mut self, now: Instant) -> Voided {
        let Some(order) = self.doubtful.take() else { return Voided::default() };
        let passed = now.since(self.doubted) + ON_THE_WAY;
        let leaks = |limit: &Limit| gcra::cost(limit, order.need.min(limit.burst)) <= passed;
        let has_leaked = self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra && leaks(limit));
        if has_leaked { Voided { need: 0, ..order } } else { order }
    }

    /// What the store is told of a void order together with the return of so many tokens.
    pub(super) fn voided_by_now(&self, order: Voided, returned: u64) -> Voided {
        let kept = self.unspent().saturating_add(returned);
        let buckets = self.rule.limits.iter().zip(&self.net).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        let spent = buckets.map(|(_, net)| net.saturating_sub(kept)).max().unwrap_or(0);
        let spent = order.spent.saturating_add(spent).min(MAX_COUNT);
        if order.id == 0 { order } else { Voided { spent, ..order } }
    }

    /// Takes note that so many tokens have just left the lease. Those that the store has charged already
    /// go first, and need not be told.
    pub(super) fn note_spent(&mut self, now: Instant, tokens: u64) {
        if !self.has_account() {
            return;
        }
        self.spent_here = self.spent_here.saturating_add(tokens);
        let held = self.unspent().saturating_add(tokens);
        for (index, limit) in self.rule.limits.iter().enumerate() {
            let untold = tokens.saturating_sub(held.saturating_sub(self.net[index]));
            if limit.algorithm == Algorithm::Gcra && untold > 0 {
                self.filled[index] = self.filled[index].max(now) + gcra::cost(limit, untold);
            }
        }
    }

    /// Takes note that so many tokens are back in the lease that were spent, and not told.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        self.spent_here = self.spent_here.saturating_sub(tokens);
        for (limit, filled) in self.rule.limits.iter().zip(&mut self.filled) {
            *filled = *filled - gcra::worth(limit, tokens);
        }
    }

    /// When `spent` tokens of a bucket would have been spent in one go to leave it as it is: not before the
    /// first of them was, nor after the last. A bucket that is charged so is charged what it would have been
    /// by each check in its turn, whoever else spends of it: a later charge is never less, an earlier one could be.
    fn spent_at(&self, index: usize, spent: u64) -> Instant {
        self.filled[index] - gcra::cost(&self.rule.limits[index], spent)
    }

    /// How long ago what the store has not been told of was spent, once `returned` tokens are back: as it will
    /// be charged.
    pub(super) fn ages(&self, now: Instant, returned: u64) -> Ages {
        let kept = self.unspent().saturating_add(returned);
        let mut ages = JUST_NOW;
        for (index, limit) in self.rule.limits.iter().enumerate() {
            let untold = self.net[index].saturating_sub(kept);
            if limit.algorithm == Algorithm::Gcra && untold > 0 {
                ages[index] = now.since(self.spent_at(index, untold)).rounded_early();
            }
        }
        ages
    }

    /// Tokens held, as the store is told.
    pub(super) fn held(&self) -> u64 {
        if on(Mutant::SpendingNotTold) {
            return self.net[0];
        }
        self.unspent()
    }

    /// A limit is a bucket: what is lent of it has to be accounted for.
    pub(super) fn has_account(&self) -> bool {
        self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Tokens of a bucket are on their way back: an order that overtook them would say of them that
    /// they were spent.
    pub(super) fn has_account_under_way(&self) -> bool {
        self.has_account() && self.errands.iter().any(|errand| matches!(errand.call.op, Op::Return { .. }))
    }

    /// Tokens held that the store has charged to a bucket already, as somebody needed them.
    pub(super) fn charged_and_held(&self) -> u64 {
        let buckets = self.rule.limits.iter().zip(&self.net).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.map(|(_, net)| self.unspent().saturating_sub(*net)).max().unwrap_or(0)
    }

    /// Keeps a refund of what the store has charged here, for the next checks, where this node has an account that
    /// is open: the next order or return says that it is held, and the store takes the charge back. A charge
    /// leaks away as time goes by; the refund is kept as long as the bucket is known to owe twice as much.
    pub(super) fn keep_refund(&mut self, now: Instant, tokens: u64, filled: Timestamp) -> bool {
        let rule = self.rule.clone();
        let ([limit], [counter, ..]) = (&rule.limits[..], self.charged()) else { return false };
        let is_idle = self.line.is_empty() && self.flight.is_none() && !self.has_account_under_way();
        let has_account = limit.algorithm == Algorithm::Gcra && self.lease.until() != Instant(u64::MAX);
        let is_settled = is_idle && self.doubtful.is_none() && !self.has_untold();
        if !is_settled || !has_account || self.answered.is_none() || self.is_away(now) {
            return false;
        }
        // What another node spent the store takes back: this one was never lent it.
        if tokens > self.spent_here {
            return false;
        }
        // A bucket that shrank may owe more than it holds: then nothing that comes back can be spent yet.
        if counter.at > self.clock.earliest(now) + limit.depth() {
            return false;
        }
        // Twice as much, because others may be given back a part of theirs meanwhile.
        let owed = counter.at - gcra::cost(limit, self.charged_and_held().saturating_add(tokens.saturating_mul(2)));
        let until = self.clock.before(if filled.0 == 0 { owed } else { owed.min(filled) });
        if until.min(self.lease.until()) <= now + LEAST_KEPT {
            return false;
        }
        self.lease.put_back(tokens);
        self.note_unspent(tokens);
        self.unclaimed_until = self.unclaimed_until.min(until);
        true
    }

    /// Tokens spent that the store takes to be held still, so that they can be held again: of every bucket
    /// as many. Those that somebody needed it has charged, and fills up again.
    pub(super) fn untold(&self) -> u64 {
        let held = self.unspent();
        let buckets = self.rule.limits.iter().zip(&self.net).filter(|(limit, _)| limit.algorithm == Algorithm::Gcra);
        buckets.map(|(_, net)| net.saturating_sub(held)).min().unwrap_or(u64::MAX)
    }

    /// Tokens of a bucket were spent that the store has not been told of.
    pub(super) fn has_untold(&self) -> bool {
        self.has_account() && self.untold() > 0
    }

    /// By how much a wait for the store may be over early, as this node's clock drifts; and how much
    /// later than it was the store will take the last spending to have been, when it is told after
    /// `wait`. Nothing where a window ends: both sides go by the boundary then.
    pub(super) fn doubt(&self, now: Instant, wait: Micros) -> Micros {
        let silent = self.answered.map_or(Micros::ZERO, |at| now.since(at));
        let age = self.ages(now, 0).into_iter().max().unwrap_or(silent).min(gcra::LEASE_LIFE);
        let since = if self.has_untold() { age } else { silent };
        let span = since + wait;
        let trickles = self.rule.limits.iter().any(Limit::trickles);
        if trickles { Micros(span.0 - span.rounded_early().0 + 1) } else { Micros::ZERO }
    }

    /// How long to leave a limit whose tokens trickle in alone: until this node's part is a few. A
    /// bucket loses nothing meanwhile as long as it is not full, a sliding window what nobody takes.
    pub(super) fn pause_of(&self, limit: &Limit) -> Micros {
        let few = if limit.algorithm == Algorithm::Gcra { 12 } else { 10 };
        let lot = gcra::cost(limit, self.tuner.mean_cost().saturating_mul(few * u64::from(self.nodes))).0;
        Micros(match limit.algorithm {
            Algorithm::Gcra => lot.clamp(350_000, 2_000_000).min(limit.depth().0 / 2),
            _ => lot.clamp(limit.period.0 / 16, limit.period.0 / 4),
        })
    }

    /// Takes note of what a client was told.
    pub(super) fn promise(&mut self, now: Instant, cost: u64, decision: &Decision) {
        let standing = self.promise.filter(|(at, _)| *at > now);
        let Some(wait) = decision.retry_after else {
            // What was there for who came back has been spent.
            self.promise = standing;
            return;
        };
        self.promise = Some(match standing {
            Some((at, most)) => (at.min(now + wait), most.max(cost)),
            None => (now + wait, cost),
        });
    }
}
