//! What a key knows of the store: its limits as of the latest answer that counts, and what the store lent this node.
//!
//! The store sets aside what it lends of a bucket, and charges it when the node says that it was spent. Until then the
//! node counts as the store will: the counters *as charged* are those of the answer, with what was spent since. Of
//! windows the store counts all that it lends as used. Knows nothing of who waits, and of what is held only the sum
//! that callers pass as `held`.

use std::sync::Arc;

use crate::core::call::{Acquire, Ages, Call, Counter, Grant, JUST_NOW, Known, Op, Voided};
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Micros, Timestamp};

/// What the store is known to have counted under one key.
#[derive(Debug)]
pub(super) struct StoreView {
    rule: Arc<Rule>,
    /// One for each limit of the rule.
    limits: Box<[LimitView]>,
    /// What was lent of the next window already.
    ahead: LentOf,
    clock: StoreClock,
    /// How long the latest answer was under way.
    trip: Micros,
    /// When the store last answered.
    answered: Option<Instant>,
    /// The store's time in the latest answer that counts.
    heard: Timestamp,
    epoch: u64,
    /// The id of the last acquire or return that was answered: what is known of this node's account is as of then.
    accounted: u64,
    nodes: u32,
    confirmed: bool,
}

/// What is known of one limit.
#[derive(Clone, Copy, Debug, Default)]
struct LimitView {
    /// As of the store's last answer, rolled to now.
    counter: Counter,
    /// Tokens lent to this node and not handed back, in the current window; of a bucket, those that the store does not
    /// know to be spent.
    lent: u64,
    /// The window before: it is over as far as is known, and is not after all when an answer says so, because a call that
    /// took long leaves the store's clock in doubt by as much.
    before: LentOf,
    /// When a bucket would be full again if nobody but this node spent of it: where the spending that the store has not
    /// been told of leads.
    full_at: Instant,
}

/// What this node was lent of one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LentOf {
    /// `Counter::at`; zero: none.
    pub(super) window: Timestamp,
    pub(super) tokens: u64,
}

impl LentOf {
    /// Of that window.
    fn of(self, window: Timestamp) -> u64 {
        if self.window == window { self.tokens } else { 0 }
    }

    /// So many more tokens are lent of that window, if that is the one.
    fn add(&mut self, window: Timestamp, tokens: u64) {
        if self.window == window {
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }

    /// So many fewer tokens are lent of that window, if that is the one.
    fn take(&mut self, window: Timestamp, tokens: u64) {
        if self.window == window {
            self.tokens = self.tokens.saturating_sub(tokens);
        }
    }
}

impl StoreView {
    /// Nothing is known, but for an estimate of the clock and of the nodes that use the key.
    pub(super) fn new(rule: &Arc<Rule>, nodes: u32, clock: StoreClock) -> Self {
        Self {
            rule: rule.clone(),
            limits: vec![LimitView::default(); rule.limits.len()].into(),
            ahead: LentOf::default(),
            clock,
            trip: Micros::ZERO,
            answered: None,
            heard: Timestamp::NONE,
            epoch: 0,
            accounted: 0,
            nodes,
            confirmed: true,
        }
    }

    /// The limits that apply.
    pub(super) fn rule(&self) -> &Arc<Rule> {
        &self.rule
    }

    /// Each limit, and its counter as of the store's last answer, rolled to now.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&Limit, &Counter)> {
        self.rule.limits.iter().zip(self.limits.iter().map(|known| &known.counter))
    }

    /// The counter of one limit.
    pub(super) fn counter(&self, index: usize) -> Counter {
        self.limits[index].counter
    }

    /// The counter of each; zero beyond.
    pub(super) fn counters(&self) -> [Counter; MAX_LIMITS] {
        std::array::from_fn(|index| self.limits.get(index).map_or(Counter::default(), |known| known.counter))
    }

    /// `Counter::at` of each limit.
    pub(super) fn windows(&self) -> impl Iterator<Item = Timestamp> {
        self.limits.iter().map(|known| known.counter.at)
    }

    /// Tokens of a limit that are lent to this node: see `LimitView::lent`.
    pub(super) fn lent(&self, index: usize) -> u64 {
        self.limits[index].lent
    }

    /// The same of each limit; zero beyond.
    pub(super) fn lent_of_each(&self) -> [u64; MAX_LIMITS] {
        std::array::from_fn(|index| self.limits.get(index).map_or(0, |known| known.lent))
    }

    /// Whether this node was lent anything.
    pub(super) fn is_lent_any(&self) -> bool {
        self.limits.iter().any(|known| known.lent > 0)
    }

    /// Of each bucket, what is lent and not known to be spent.
    fn buckets(&self) -> impl Iterator<Item = u64> {
        let limits = self.rule.limits.iter().zip(&self.limits);
        limits.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(_, known)| known.lent)
    }

    /// The store's clock.
    pub(super) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// The latest that the store's clock can read. This node's clock may be slower: the store's is not back where it was
    /// already.
    pub(super) fn latest_heard(&self, now: Instant) -> Timestamp {
        self.clock.latest(now).max(self.heard)
    }

    /// The store's time in the latest answer that counts.
    pub(super) fn heard(&self) -> Timestamp {
        self.heard
    }

    /// How long the latest answer was under way.
    pub(super) fn trip(&self) -> Micros {
        self.trip
    }

    /// When the store last answered.
    pub(super) fn answered(&self) -> Option<Instant> {
        self.answered
    }

    /// The key's epoch; zero: none is known.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Nodes that use the key, as the store last counted.
    pub(super) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Whether a majority held what the store last lent.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// A limit is a bucket: what is lent of it has to be accounted for.
    pub(super) fn has_account(&self) -> bool {
        self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Whether the window at hand is one of which tokens were lent before it began.
    pub(super) fn is_lent_ahead(&self) -> bool {
        self.limits.first().is_some_and(|known| known.counter.at == self.ahead.window)
    }

    /// The call was sent under the limits that apply now: else its answer counts in other windows, and
    /// what it lends is void like all that was held when the limits changed.
    pub(super) fn is_of_these_limits(&self, call: &Call) -> bool {
        Arc::ptr_eq(&call.rule, &self.rule) || call.rule.limits == self.rule.limits
    }

    /// A later answer has come before this one. A clock that is further back is another master's, and so
    /// is that of a call sent since.
    pub(super) fn has_overtaken(&self, now: Instant, call: &Call, grant: &Grant) -> bool {
        let sent_before = self.answered.is_some_and(|at| call.sent_at < at);
        // A bucket's time may have gone back since, as tokens were taken back.
        let limits = self.limits().zip(&grant.counters);
        let mut windows = limits.filter(|((limit, _), _)| limit.algorithm != Algorithm::Gcra);
        let older =
            grant.now < self.heard && windows.all(|((_, known), fresh)| fresh.at <= known.at || known.at.is_none());
        older && sent_before && self.clock.agrees(&StoreClock::new(call.sent_at, now, grant.now))
    }

    /// Takes over a rule of the same limits.
    pub(super) fn rename_rule(&mut self, rule: &Arc<Rule>) {
        self.rule = rule.clone();
    }

    /// Takes over other limits, of which nothing is known.
    pub(super) fn change_limits(&mut self, rule: &Arc<Rule>) {
        self.limits = vec![LimitView::default(); rule.limits.len()].into();
        (self.ahead, self.answered) = (LentOf::default(), None);
        self.rule = rule.clone();
    }

    /// The store has forgotten what it lent.
    pub(super) fn forget_lent(&mut self) {
        for known in &mut self.limits {
            *known = LimitView { counter: known.counter, ..LimitView::default() };
        }
        self.forget_ahead();
    }

    /// The store lends again what it has lent of the next window.
    pub(super) fn forget_ahead(&mut self) {
        self.ahead = LentOf::default();
    }

    /// The same, by an answer that counts in these windows: one that is further on by this node's clock has yet to begin.
    pub(super) fn forget_ahead_of(&mut self, counters: &[Counter]) {
        let is_aligned = |limit: &Limit| limit.algorithm == Algorithm::Fixed;
        for ((limit, known), fresh) in self.rule.limits.iter().zip(&mut self.limits).zip(counters) {
            if is_aligned(limit) && fresh.at < known.counter.at {
                known.lent = 0;
            }
        }
        self.forget_ahead();
    }

    /// Rolls what is known to that time. Where a window began, what was lent ahead of it.
    pub(super) fn roll(&mut self, latest: Timestamp) -> Option<u64> {
        let mut begun = None;
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            let counter = &mut known.counter;
            if on(Mutant::DenialOutlivesWindow) && counter.left(limit, latest) == 0 {
                continue;
            }
            let window = counter.at;
            counter.roll(limit, latest);
            if limit.algorithm != Algorithm::Gcra && counter.at != window {
                known.before = LentOf { window, tokens: known.lent };
                let ahead = self.ahead.of(counter.at);
                known.lent = if on(Mutant::UsageCarriedOver) { known.lent + ahead } else { ahead };
                begun = Some(ahead);
            }
        }
        begun
    }

    /// An answer shows the store's clock.
    pub(super) fn note_clock(&mut self, clock: StoreClock) {
        self.clock = if self.answered.is_some() { self.clock.refined(clock) } else { clock };
        self.trip = clock.trip();
    }

    /// What any answer says of the nodes, and of what this one has told.
    pub(super) fn note_nodes(&mut self, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) {
            self.accounted = self.accounted.max(call.id);
        }
        self.nodes = grant.nodes.max(1);
        self.confirmed = grant.confirmed || on(Mutant::UnconfirmedAsConfirmed);
    }

    /// The store has answered about these limits.
    pub(super) fn note_answered(&mut self, now: Instant) {
        self.answered = Some(now);
    }

    /// An answer counts that was given then, under that epoch: [`StoreView::note_counter`] takes over its counters.
    pub(super) fn note_heard(&mut self, store: Timestamp, epoch: u64) {
        self.heard = store;
        if epoch != 0 {
            self.epoch = epoch;
        }
    }

    /// The counter of a limit in an answer that counts.
    pub(super) fn note_counter(&mut self, index: usize, fresh: Counter) {
        let (limit, known) = (&self.rule.limits[index], &mut self.limits[index]);
        if limit.algorithm != Algorithm::Gcra && known.counter.at != fresh.at {
            known.lent = known.before.of(fresh.at);
        }
        known.counter = fresh;
    }

    /// An acquire has been granted so many tokens of a limit's window.
    pub(super) fn note_lent(&mut self, index: usize, window: Timestamp, granted: u64, order: &Acquire) {
        let (limit, known) = (&self.rule.limits[index], &mut self.limits[index]);
        if limit.algorithm == Algorithm::Gcra {
            known.lent = order.held + granted.saturating_sub(order.need);
        } else if known.counter.at == window {
            known.lent += granted;
        } else {
            known.before.add(window, granted);
        }
    }

    /// So many tokens are lent of the window after the one at hand.
    pub(super) fn note_lent_ahead(&mut self, window: Timestamp, tokens: u64) {
        self.ahead = LentOf { window, tokens };
    }

    /// Tokens of these windows go back: what is known of the store counts them as back already, so that nobody is denied
    /// for want of them; and whatever is heard next of which of them is open, they were not spent.
    pub(super) fn note_returned(&mut self, tokens: u64, windows: &[Timestamp; MAX_LIMITS]) {
        for ((limit, known), window) in self.rule.limits.iter().zip(&mut self.limits).zip(windows) {
            if limit.algorithm != Algorithm::Gcra {
                if known.counter.at == *window {
                    known.lent = known.lent.saturating_sub(tokens);
                }
                known.counter.credit_lent(limit, tokens, *window);
            }
            known.before.take(*window, tokens);
        }
        self.ahead.take(windows[0], tokens);
    }

    /// Tokens of that window lapse: while it is known to be open, they are left.
    pub(super) fn note_lapsed(&mut self, tokens: u64, window: Timestamp) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            known.counter.credit_lent(limit, tokens, window);
        }
    }

    /// The counters as the store will have them when it is told what is held of buckets: see [`StoreView::charge`].
    pub(super) fn charged(&self, held: u64) -> [Counter; MAX_LIMITS] {
        let mut counters = [Counter::default(); MAX_LIMITS];
        for (index, counter) in counters.iter_mut().enumerate().take(self.limits.len()) {
            *counter = self.charged_of(index, held);
        }
        counters
    }

    /// The counter of one limit, charged the same way.
    pub(super) fn charged_of(&self, index: usize, held: u64) -> Counter {
        let (limit, known) = (&self.rule.limits[index], &self.limits[index]);
        let (lent, mut counter) = (known.lent, known.counter);
        if limit.algorithm == Algorithm::Gcra {
            let spent = lent.saturating_sub(held);
            if spent > 0 {
                counter.debit(limit, self.clock.latest(known.spent_at(limit, spent)), spent);
            }
            if held > lent {
                counter.credit(limit, held - lent);
            }
            counter.used = counter.used.saturating_sub(lent).saturating_add(held);
        }
        counter
    }

    /// Takes it that the store has been told what is held of buckets, `returned` tokens less than before: the
    /// rest of what it lent was spent. What is there beyond that it had charged for somebody who did not get
    /// it; it takes that charge back, and sets aside what is held.
    pub(super) fn charge(&mut self, held: u64, returned: u64) {
        let limits = self.rule.limits.iter().zip(&mut self.limits);
        for (limit, known) in limits.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra) {
            let (lent, there) = (known.lent, held.saturating_add(returned));
            let spent = lent.saturating_sub(there);
            let at = self.clock.latest(known.spent_at(limit, spent));
            known.counter.debit(limit, at, spent);
            known.counter.credit(limit, there.saturating_sub(lent));
            known.counter.used = known.counter.used.saturating_sub(lent).saturating_add(held);
            known.lent = held;
        }
    }

    /// Nobody waits for the answer to an order any more: what the store is told of it with the next return, which adds
    /// what was spent meanwhile. What the order says of the account counts as told.
    pub(super) fn void_order(&mut self, call: &Call) -> Voided {
        let Op::Acquire(order) = call.op else { return Voided::default() };
        // Of what is lent ahead the store could not tell whether this window had it or the next: it ends with that.
        if order.window.is_next() {
            return Voided::default();
        }
        let mut told = 0;
        for ((limit, known), age) in self.rule.limits.iter().zip(&mut self.limits).zip(&order.ages) {
            if limit.algorithm == Algorithm::Gcra {
                let spent = known.lent.saturating_sub(order.held);
                // It leaks away like all that was spent: were it set aside yet, what is spent next would be counted on
                // top of both.
                known.counter.debit(limit, self.clock.latest(call.sent_at - *age), spent);
                known.counter.used = known.counter.used.saturating_sub(spent);
                told = told.max(spent);
                known.lent = order.held;
            }
        }
        Voided { id: call.id, need: order.need, told, spent: 0, answered: self.accounted }
    }

    /// What the store is told of a void order when so many tokens are kept here or go back.
    pub(super) fn voided_by_now(&self, order: Voided, kept: u64) -> Voided {
        let spent = self.buckets().map(|lent| lent.saturating_sub(kept)).max().unwrap_or(0);
        let spent = order.spent.saturating_add(spent).min(MAX_COUNT);
        if order.id == 0 { order } else { Voided { spent, ..order } }
    }

    /// So many tokens have just been spent, of `held` that were there. Those that the store has charged already
    /// go first, and need not be told.
    pub(super) fn note_spent(&mut self, now: Instant, tokens: u64, held: u64) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            let unreported = tokens.saturating_sub(held.saturating_sub(known.lent));
            if limit.algorithm == Algorithm::Gcra && unreported > 0 {
                known.full_at = known.full_at.max(now) + gcra::cost(limit, unreported);
            }
        }
    }

    /// So many tokens are held again that were spent, and not told.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            known.full_at = known.full_at - gcra::worth(limit, tokens);
        }
    }

    /// How long ago what the store has not been told of was spent, when so many tokens are kept here or go back: as it
    /// will be charged.
    pub(super) fn ages(&self, now: Instant, kept: u64) -> Ages {
        let mut ages = JUST_NOW;
        for ((limit, known), age) in self.rule.limits.iter().zip(&self.limits).zip(&mut ages) {
            let unreported = known.lent.saturating_sub(kept);
            if limit.algorithm == Algorithm::Gcra && unreported > 0 {
                *age = now.since(known.spent_at(limit, unreported)).rounded_early();
            }
        }
        ages
    }

    /// Tokens held that the store has charged to a bucket already, as somebody needed them.
    pub(super) fn charged_and_held(&self, held: u64) -> u64 {
        self.buckets().map(|lent| held.saturating_sub(lent)).max().unwrap_or(0)
    }

    /// Tokens spent that the store takes to be held still, so that they can be held again: of every bucket
    /// as many. Those that somebody needed it has charged, and fills up again.
    pub(super) fn unreported(&self, held: u64) -> u64 {
        self.buckets().map(|lent| lent.saturating_sub(held)).min().unwrap_or(u64::MAX)
    }

    /// What this node knows to be spent or held of each limit: of the window at hand; where it was lent nothing of
    /// that, of the one before, as long as that may be open yet.
    pub(super) fn known(&self, now: Instant, held: u64) -> [Known; MAX_LIMITS] {
        let mut known = [Known::default(); MAX_LIMITS];
        if self.answered.is_none() || on(Mutant::KnownNotSent) {
            return known;
        }
        let earliest = self.clock.earliest(now);
        for ((limit, view), known) in self.rule.limits.iter().zip(&self.limits).zip(&mut known) {
            let gcra = limit.algorithm == Algorithm::Gcra;
            // Of a bucket, what the store has been told is in its TAT, and what is held is no loss.
            let used = if gcra { view.lent.saturating_sub(held) } else { view.lent };
            let before = view.before;
            let end = if limit.algorithm == Algorithm::Sliding { before.window + limit.period } else { before.window };
            let is_before = !gcra && used == 0 && before.tokens > 0 && earliest < end;
            *known = if is_before {
                Known { used: before.tokens, at: before.window }
            } else {
                Known { used, at: view.counter.at }
            };
        }
        known
    }
}

impl LimitView {
    /// When `spent` tokens of a bucket would have been spent in one go to leave it as it is: not before the
    /// first of them was, nor after the last. A bucket that is charged so is charged what it would have been
    /// by each check in its turn, whoever else spends of it: a later charge is never less, an earlier one could be.
    fn spent_at(&self, limit: &Limit, spent: u64) -> Instant {
        self.full_at - gcra::cost(limit, spent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::call::Window;

    #[test]
    fn what_an_order_told_counts_once_when_it_is_given_up() {
        let limit = Limit::parse("10/1s burst 10").unwrap();
        let rule = Arc::new(Rule::of("p", &[limit]));
        let (start, now) = (Instant(0), Timestamp(5_000_000));
        let mut view = StoreView::new(&rule, 1, StoreClock::new(start, start, now));
        let order = |held| Acquire {
            need: 0,
            want: 8,
            least: 1,
            window: Window::Current,
            epoch: 1,
            held,
            ages: JUST_NOW,
            known: [Known::default(); MAX_LIMITS],
        };
        view.note_counter(0, Counter { used: 8, prev: 0, at: now });
        view.note_lent(0, now, 8, &order(0));
        view.note_spent(start, 6, 8);
        let digest = crate::core::key::Digest(0);
        let call = Call { id: 1, digest, rule: rule.clone(), op: Op::Acquire(order(2)), sent_at: start };
        assert_eq!(view.void_order(&call).told, 6);
        view.note_spent(start, 2, 2);
        assert_eq!(view.charged_of(0, 0).left(&limit, now), 2, "eight of ten were spent");
    }
}
