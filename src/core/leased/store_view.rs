//! What a key knows of the store: the counters of its limits as of the latest answer that counts, and what the store
//! has lent this node.
//!
//! The store sets aside what it lends of a bucket, and charges it when the node reports it as spent. Until then the
//! node counts as the store will: the counters *as charged* are those of the answer, plus what was spent since. Of a
//! window, the store counts all that it lends as used. Knows nothing of waiters, and of held tokens only the sum that
//! callers pass as `held`.

use std::num::NonZero;
use std::sync::Arc;

use super::limit_view::{LentOf, LimitView};
use crate::core::call::{
    Acquire, Ages, CALL_LIFE, Call, Counter, Grant, HALF_CALL_LIFE, JUST_NOW, Known, Op, Voided, Windows,
};
use crate::core::gcra;
use crate::core::lifetime;
use crate::core::limit::{Algorithm, Limit, MAX_COUNT, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::per_limit::PerLimit;
use crate::core::rough::Rough;
use crate::core::rule::Rule;
use crate::core::store_clock::StoreClock;
use crate::core::time::{Instant, Micros, StoredTime, Timestamp};

/// What is known of one key in the store.
#[derive(Debug)]
pub(super) struct StoreView {
    rule: Arc<Rule>,
    /// One for each limit of the rule.
    limits: PerLimit<LimitView>,
    clock: StoreClock,
    /// The round trip of the latest answer in microseconds, of which it takes at least one; 0: there was no answer.
    trip: Rough,
    /// When the store last answered, if it has.
    answered_at: Instant,
    /// About what.
    answered: Answered,
    /// The store's time in the latest answer that counts.
    heard: Option<NonZero<u64>>,
    /// The store's time from which on it has dropped the key by itself, unless another node has asked for it since this one was
    /// last lent something.
    expires: Option<StoredTime>,
    epoch: u64,
    /// A reset began that epoch.
    is_reset: bool,
    /// The id of the last acquire or return that was answered. What is known of this node's account is as of that
    /// call.
    accounted: u64,
    nodes: u32,
    confirmed: Option<bool>,
    /// Some tokens that it has lent of a bucket had yet to trickle in; they were lent in advance because this node is alone with the key.
    runs_ahead: bool,
}

/// One limit of a key as the store will have it when it hears what is held of buckets: see [`StoreView::charge`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Charged {
    pub(super) counter: Counter,
    /// When tokens of a bucket that the store does not know to be spent would have been in one go: see [`LimitView::spent_at`]. `None`: there are
    /// none.
    pub(super) spent_at: Option<Instant>,
}

/// The limits of a key as charged, at a moment of which a check asks several times. One limit, as most rules have, is reckoned once, because that
/// takes a division. Of several each is reckoned whenever it is asked for: room for eight would be filled each time.
#[derive(Debug)]
pub(super) struct Reckoning {
    unspent: u64,
    one: Option<Charged>,
}

impl Reckoning {
    /// Tokens that this node was lent and has not spent.
    pub(super) fn unspent(&self) -> u64 {
        self.unspent
    }

    /// The only limit; `None`: there are several.
    pub(super) fn one(&self) -> Option<Charged> {
        self.one
    }

    /// One limit of the key that this is of.
    pub(super) fn of(&self, view: &StoreView, index: usize) -> Charged {
        self.one.unwrap_or_else(|| view.charged_limit(index, self.unspent))
    }
}

/// What the store has answered about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    Nothing,
    /// The limits before these.
    OtherLimits,
    /// The limits that apply.
    TheseLimits,
    /// The same, and a peer has spoken of them since.
    TheseLimitsByPeer,
}

impl StoreView {
    /// Nothing is known yet but estimates of the clock, and of how many nodes use the key.
    pub(super) fn new(rule: &Arc<Rule>, nodes: u32, clock: StoreClock) -> Self {
        Self {
            rule: rule.clone(),
            limits: unknown(rule),
            clock,
            trip: Rough::ZERO,
            answered_at: Instant::default(),
            answered: Answered::Nothing,
            heard: None,
            expires: None,
            epoch: 0,
            is_reset: false,
            accounted: 0,
            nodes,
            confirmed: None,
            runs_ahead: false,
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

    /// The longest window that is known to be spent.
    pub(super) fn longest_spent(&self, now: Instant) -> Option<&Limit> {
        let (latest, is_known) = (self.clock().latest(now), self.answered().is_some());
        let has_windows = |limit: &Limit| limit.algorithm != Algorithm::Gcra;
        let spent = self.limits().filter(|(limit, counter)| has_windows(limit) && counter.left(limit, latest) == 0);
        spent.filter(|_| is_known).map(|(limit, _)| limit).max_by_key(|limit| limit.period)
    }

    /// The counter of one limit.
    pub(super) fn counter(&self, index: usize) -> Counter {
        self.limits[index].counter
    }

    /// The counter of each limit; zero beyond the last.
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

    /// The same for each limit; zero beyond the last.
    pub(super) fn lent_of_each(&self) -> [u64; MAX_LIMITS] {
        std::array::from_fn(|index| self.limits.get(index).map_or(0, |known| known.lent))
    }

    /// Whether tokens are lent to this node.
    pub(super) fn is_lent_any(&self) -> bool {
        self.limits.iter().any(|known| known.lent > 0)
    }

    /// For each bucket, what is lent and not known to be spent.
    fn buckets(&self) -> impl Iterator<Item = u64> {
        let limits = self.rule.limits.iter().zip(&self.limits);
        limits.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra).map(|(_, known)| known.lent)
    }

    /// The store's clock.
    pub(super) fn clock(&self) -> &StoreClock {
        &self.clock
    }

    /// The latest time that the store's clock can show. This node's clock may be slow, so it is at least the time in
    /// the latest answer.
    pub(super) fn latest_heard(&self, now: Instant) -> Timestamp {
        self.clock.latest(now).max(self.heard().unwrap_or_default())
    }

    /// Until when the store may execute an acquire that is first sent now: see [`Acquire::until`]. Where the store's clock is
    /// known so vaguely that it could not be told whether the time has begun, this time lies around the likeliest. Of a
    /// key of which it has answered nothing yet, `heard` is its clock, which may be that of another master.
    pub(super) fn until(&self, now: Instant, heard: Option<&StoreClock>) -> Option<StoredTime> {
        let is_known = self.trip != Rough::ZERO;
        let clock = if is_known { &self.clock } else { heard? };
        let (earliest, latest) = (clock.surely(now), clock.at_most(now));
        let likeliest = earliest + Micros(latest.since(earliest).0 / 2);
        let around = likeliest - HALF_CALL_LIFE;
        let begins = if is_known { earliest.max(around) } else { around };
        (begins + CALL_LIFE).stored()
    }

    /// The store's time in the latest answer that counts.
    pub(super) fn heard(&self) -> Option<Timestamp> {
        self.heard.map(|heard| Timestamp(heard.get()))
    }

    /// The round trip of the latest answer; zero where there was none.
    pub(super) fn trip(&self) -> Micros {
        Micros(self.trip.get())
    }

    /// When the store last answered about these limits.
    pub(super) fn answered(&self) -> Option<Instant> {
        matches!(self.answered, Answered::TheseLimits | Answered::TheseLimitsByPeer).then_some(self.answered_at)
    }

    /// When it last answered, about these limits or those before.
    pub(super) fn last_answered(&self) -> Option<Instant> {
        (self.answered != Answered::Nothing).then_some(self.answered_at)
    }

    /// The key's epoch; zero when none is known.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether the key was reset after something was charged under that epoch, so that the store counts nothing of it any more.
    /// What a store has lost otherwise it is told again.
    pub(super) fn was_reset_since(&self, epoch: u64) -> bool {
        self.is_reset && epoch != 0 && epoch != self.epoch
    }

    /// How many nodes use the key, as the store last counted.
    pub(super) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Whether a replica has confirmed what the store last lent; `None`: it has said nothing of this key, only peers have.
    pub(super) fn confirmed(&self) -> Option<bool> {
        self.confirmed
    }

    /// The same, and yes as long as the store has said nothing.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed.unwrap_or(true)
    }

    /// Whether a limit is a bucket, of which lent tokens must be accounted for.
    pub(super) fn has_account(&self) -> bool {
        self.rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Whether every limit is a bucket.
    pub(super) fn is_of_buckets(&self) -> bool {
        self.rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra)
    }

    /// Whether that is the present window of the first limit.
    pub(super) fn is_in(&self, window: Option<StoredTime>) -> bool {
        self.limits.first().is_some_and(|known| known.counter.at.stored() == window)
    }

    /// Whether some of the held tokens have yet to trickle in.
    pub(super) fn runs_ahead(&self) -> bool {
        self.runs_ahead
    }

    /// Records whether the store has lent more than had trickled in.
    pub(super) fn note_ahead(&mut self, runs_ahead: bool) {
        self.runs_ahead = runs_ahead;
    }

    /// Whether the call was sent under the limits that apply now. Otherwise the counters in its answer are of other
    /// windows, and what it lends is void, as is all that was held when the limits changed.
    pub(super) fn is_of_these_limits(&self, call: &Call) -> bool {
        Arc::ptr_eq(&call.rule, &self.rule) || call.rule.limits == self.rule.limits
    }

    /// Whether a later answer has come before this one. A clock that is behind is that of another master, and so is
    /// that in the answer to a call that was sent since.
    pub(super) fn has_overtaken(&self, now: Instant, call: &Call, grant: &Grant) -> bool {
        let sent_before = self.answered().is_some_and(|at| call.sent_at < at);
        // A bucket's time may have gone back since, as tokens were taken back.
        let limits = self.limits().zip(&grant.counters);
        let mut windows = limits.filter(|((limit, _), _)| limit.algorithm != Algorithm::Gcra);
        let older = Some(grant.now) < self.heard()
            && windows.all(|((_, known), fresh)| fresh.at <= known.at || known.is_unopened());
        older && sent_before && self.clock.agrees(&StoreClock::new(call.sent_at, now, grant.now))
    }

    /// Takes over a rule with the same limits.
    pub(super) fn rename_rule(&mut self, rule: &Arc<Rule>) {
        self.rule = rule.clone();
    }

    /// Takes over other limits, of which nothing is known yet.
    pub(super) fn change_limits(&mut self, rule: &Arc<Rule>) {
        self.limits = unknown(rule);
        if self.answered().is_some() {
            self.answered = Answered::OtherLimits;
        }
        self.rule = rule.clone();
    }

    /// The store no longer knows what it has lent.
    pub(super) fn forget_lent(&mut self) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            *known = LimitView::of(limit, known.counter);
        }
    }

    /// The same, but only of windows that have not begun according to these counters, even if they have by this
    /// node's clock.
    pub(super) fn forget_ahead_of(&mut self, counters: &[Counter]) {
        let is_aligned = |limit: &Limit| limit.algorithm == Algorithm::Fixed;
        for ((limit, known), fresh) in self.rule.limits.iter().zip(&mut self.limits).zip(counters) {
            if is_aligned(limit) && fresh.at < known.counter.at {
                known.lent = 0;
            }
        }
    }

    /// Brings what is known to that time. If a window has begun, returns what was lent `ahead` of it.
    pub(super) fn roll(&mut self, latest: Timestamp, ahead: impl Fn(Timestamp) -> u64) -> Option<u64> {
        let mut begun = None;
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            let counter = &mut known.counter;
            if on(Mutant::DenialOutlivesWindow) && counter.left(limit, latest) == 0 {
                continue;
            }
            let window = counter.at;
            counter.roll(limit, latest);
            if limit.algorithm != Algorithm::Gcra && counter.at != window {
                let lent = LentOf { window: window.stored(), tokens: known.lent };
                known.change_before(|before| *before = lent);
                let ahead = ahead(known.counter.at);
                known.lent = if on(Mutant::UsageCarriedOver) { known.lent + ahead } else { ahead };
                begun = Some(ahead);
            }
        }
        begun
    }

    /// Records the store's clock in an answer.
    pub(super) fn note_clock(&mut self, clock: StoreClock) {
        self.clock = if self.answered().is_some() { self.clock.refined(clock) } else { clock };
        self.note_trip(clock.trip());
    }

    /// Records what a peer says of the store's clock, as far as that is within what is known of it. Returns whether it can be
    /// the same clock.
    pub(super) fn narrow_clock(&mut self, now: Instant, said: StoreClock) -> bool {
        let Some(clock) = (if self.last_answered().is_some() { self.clock.narrowed(now, &said) } else { Some(said) })
        else {
            return false;
        };
        self.clock = clock;
        self.note_trip(said.trip());
        true
    }

    fn note_trip(&mut self, trip: Micros) {
        self.trip = Rough::at_least(trip.0.max(1));
    }

    /// Records how many nodes use the key, and of which call the account is.
    pub(super) fn note_nodes(&mut self, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_) | Op::Return { .. }) {
            self.accounted = self.accounted.max(call.id);
        }
        self.nodes = grant.nodes.max(1);
        self.confirmed = Some(grant.confirmed || on(Mutant::UnconfirmedAsConfirmed));
    }

    /// Records that the store has answered about these limits, or a peer in its place.
    pub(super) fn note_answered(&mut self, now: Instant, by_peer: bool) {
        let answered = if by_peer { Answered::TheseLimitsByPeer } else { Answered::TheseLimits };
        (self.answered, self.answered_at) = (answered, now);
    }

    /// Whether a peer was the last to say how much is left.
    pub(super) fn was_answered_by_peer(&self) -> bool {
        self.answered == Answered::TheseLimitsByPeer
    }

    /// Records that an answer counts, with its time and epoch. [`StoreView::note_counter`] takes over its counters.
    pub(super) fn note_heard(&mut self, grant: &Grant) {
        self.heard = NonZero::new(grant.now.0);
        if grant.epoch != 0 {
            (self.epoch, self.is_reset) = (grant.epoch, grant.reset);
        }
    }

    /// Records for how long the store keeps the key after an acquire. An answer that is given once more renews nothing.
    pub(super) fn note_kept(&mut self, call: &Call, grant: &Grant) {
        if matches!(call.op, Op::Acquire(_)) && !grant.replayed && !grant.outdated {
            self.expires =
                lifetime::expires_at(&self.rule.limits, &grant.counters, grant.now, self.rule.account_units()).stored();
        }
    }

    /// Whether an answer shows that the store has lost what it knew of the key: another epoch that no reset began. A key that came to
    /// its end as nobody asked for it has another epoch, too; then this node has no tokens of it, and nothing is lost.
    pub(super) fn shows_loss(&self, grant: &Grant) -> bool {
        let is_another = self.epoch != 0 && grant.epoch != self.epoch && !grant.reset;
        let has_expired = self.expires.is_some_and(|expires| grant.now >= expires.time()) && !self.is_lent_any();
        is_another && (!has_expired || on(Mutant::ExpiryTakenForLoss))
    }

    /// Takes over the counter of a limit in an answer that counts.
    pub(super) fn note_counter(&mut self, index: usize, fresh: Counter) {
        let (limit, known) = (&self.rule.limits[index], &mut self.limits[index]);
        if limit.algorithm != Algorithm::Gcra && known.counter.at != fresh.at {
            known.lent = known.before().of(fresh.at);
        }
        known.counter = fresh;
    }

    /// Takes over what a store that has lost the key shows to be used of windows in spite of that: others have been lent so much
    /// since, or have told it what they had been lent before.
    pub(super) fn note_counted_anew(&mut self, counters: &[Counter; MAX_LIMITS]) {
        for ((limit, known), fresh) in self.rule.limits.iter().zip(&mut self.limits).zip(counters) {
            let counter = &mut known.counter;
            if limit.algorithm != Algorithm::Gcra && counter.at == fresh.at {
                (counter.used, counter.prev) = (counter.used.max(fresh.used), counter.prev.max(fresh.prev));
            }
        }
    }

    /// Takes over the counters of windows that are open still, by the clock as an answer shows it, and had been taken for over by
    /// one that was known less well. Later answers have shown more of them, but that was forgotten when they seemed to be over.
    pub(super) fn note_open_again(&mut self, now: Instant, grant: &Grant) {
        let latest = self.latest_heard(now);
        for index in 0..self.rule.limits.len() {
            let (limit, at, fresh) = (&self.rule.limits[index], self.counter(index).at, grant.counters[index]);
            let is_aligned = matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
            let is_open = fresh.at < at && fresh.rolled(limit, latest).at == fresh.at;
            if is_aligned && is_open && grant.epoch == self.epoch {
                self.note_counter(index, fresh);
            }
        }
    }

    /// Records tokens that an acquire was granted of a limit's window.
    pub(super) fn note_lent(&mut self, index: usize, window: Option<StoredTime>, granted: u64, order: &Acquire) {
        let (limit, known) = (&self.rule.limits[index], &mut self.limits[index]);
        if limit.algorithm == Algorithm::Gcra {
            known.lent = order.held + granted.saturating_sub(order.need);
        } else if known.counter.at.stored() == window {
            known.lent += granted;
        } else {
            known.change_before(|before| before.add(window, granted));
        }
    }

    /// Records that all that was spent of buckets was reported to the store, but for `unreported` tokens. From then on only those
    /// are dated by this node's clock. The store dates the others by its own clock, which may have been set, so they must not make
    /// tokens that are spent next look as if they were spent later than they are.
    pub(super) fn note_reported(&mut self, now: Instant, unreported: u64) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            let latest = now + gcra::cost(limit, unreported) + Micros(unreported);
            known.change_full_at(|full_at| full_at.min(latest));
        }
    }

    /// Records that tokens of these windows are returned. From now on they count as being in the store, so that
    /// nobody is denied for want of them; and they are known to be unspent, whichever of these windows the next
    /// answer shows to be open.
    pub(super) fn note_returned(&mut self, tokens: u64, windows: &Windows) {
        for ((limit, known), window) in self.rule.limits.iter().zip(&mut self.limits).zip(windows) {
            if limit.algorithm != Algorithm::Gcra {
                if known.counter.at.stored() == *window {
                    known.lent = known.lent.saturating_sub(tokens);
                }
                known.counter.credit_lent(limit, tokens, *window);
            }
            known.change_before(|before| before.take(*window, tokens));
        }
    }

    /// Records that tokens of that window lapse: they count as left while the window is known to be open.
    pub(super) fn note_lapsed(&mut self, tokens: u64, window: Option<StoredTime>) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            known.counter.credit_lent(limit, tokens, window);
        }
    }

    /// The counters as the store will have them when it hears what is held of buckets: see [`StoreView::charge`].
    pub(super) fn charged(&self, held: u64) -> [Counter; MAX_LIMITS] {
        let mut counters = [Counter::default(); MAX_LIMITS];
        for (index, counter) in counters.iter_mut().enumerate().take(self.limits.len()) {
            *counter = self.charged_of(index, held);
        }
        counters
    }

    /// The counter of one limit, charged the same way.
    pub(super) fn charged_of(&self, index: usize, held: u64) -> Counter {
        self.charged_limit(index, held).counter
    }

    /// All limits charged the same way, until tokens are spent, lent or returned.
    pub(super) fn reckon(&self, unspent: u64) -> Reckoning {
        let has_one = self.limits.len() == 1;
        Reckoning { unspent, one: has_one.then(|| self.charged_limit(0, unspent)) }
    }

    /// One limit charged the same way, and when what it is charged was spent.
    #[inline]
    fn charged_limit(&self, index: usize, held: u64) -> Charged {
        let (limit, known) = (&self.rule.limits[index], &self.limits[index]);
        let (lent, mut charged) = (known.lent, Charged { counter: known.counter, spent_at: None });
        if limit.algorithm == Algorithm::Gcra {
            let (counter, spent) = (&mut charged.counter, lent.saturating_sub(held));
            if spent > 0 {
                let cost = gcra::cost(limit, spent);
                let spent_at = known.charged_at(cost);
                counter.debit_bucket(limit, self.clock.latest(spent_at), cost);
                charged.spent_at = Some(spent_at);
            }
            if held > lent {
                counter.credit(limit, held - lent);
            }
            counter.used = counter.used.saturating_sub(lent).saturating_add(held);
        }
        charged
    }

    /// Brings the counters to what the store has once it hears that `held` tokens of buckets are held, and `returned`
    /// are returned. The rest of what it lent was spent. If more is held than it lent, it had charged the difference
    /// for a waiter who did not get it; it takes that charge back, and sets aside what is held.
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

    /// Abandons an acquire, and returns what the next return tells the store of it, to which it adds what is spent
    /// meanwhile. What the acquire reports of the account counts as reported.
    pub(super) fn void_order(&mut self, call: &Call) -> Option<Voided> {
        let Op::Acquire(order) = call.op else { return None };
        // Of tokens that were lent ahead the store could not tell of which window they were, so they lapse with theirs.
        if order.window.is_next() {
            return None;
        }
        let mut reported = 0;
        for ((limit, known), age) in self.rule.limits.iter().zip(&mut self.limits).zip(&order.ages) {
            if limit.algorithm == Algorithm::Gcra {
                let spent = known.lent.saturating_sub(order.held);
                // What was spent leaks away from its time on, and is no longer set aside as well.
                known.counter.debit(limit, self.clock.latest(call.sent_at - *age), spent);
                // What is held beyond what was lent had been charged for a waiter who did not get it: that charge is taken back.
                known.counter.credit(limit, order.held.saturating_sub(known.lent));
                known.counter.used = known.counter.used.saturating_sub(known.lent).saturating_add(order.held);
                reported = reported.max(spent);
                known.lent = order.held;
            }
        }
        Some(Voided { id: call.id, need: order.need, reported, spent: 0, answered: self.accounted })
    }

    /// What the store is told of an abandoned acquire, when `kept` tokens are held or returned.
    pub(super) fn voided_by_now(&self, order: Voided, kept: u64) -> Voided {
        let spent = order.spent.saturating_add(self.spent(kept)).min(MAX_COUNT);
        Voided { spent, ..order }
    }

    /// Spent tokens of a bucket that the store has not been told of, when `kept` tokens are held or returned; the most of all
    /// buckets.
    pub(super) fn spent(&self, kept: u64) -> u64 {
        self.buckets().map(|lent| lent.saturating_sub(kept)).max().unwrap_or(0)
    }

    /// Records that tokens were spent, of `held` that were there. Those that the store has charged already are spent
    /// first, and need not be reported.
    pub(super) fn note_spent(&mut self, now: Instant, tokens: u64, held: u64) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            let unreported = tokens.saturating_sub(held.saturating_sub(known.lent));
            if limit.algorithm == Algorithm::Gcra && unreported > 0 {
                known.change_full_at(|full_at| full_at.max(now) + gcra::cost(limit, unreported));
            }
        }
    }

    /// Records that tokens are held again that were spent, but not reported.
    pub(super) fn note_unspent(&mut self, tokens: u64) {
        for (limit, known) in self.rule.limits.iter().zip(&mut self.limits) {
            known.change_full_at(|full_at| full_at - gcra::worth(limit, tokens));
        }
    }

    /// How long ago unreported tokens were spent, when `kept` tokens are held or returned. The store will charge them
    /// as of then.
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

    /// Held tokens that the store has charged to a bucket already, because a waiter needed them.
    pub(super) fn charged_and_held(&self, held: u64) -> u64 {
        self.buckets().map(|lent| held.saturating_sub(lent)).max().unwrap_or(0)
    }

    /// Spent tokens that the store still takes to be held, so that they can be held again; the least of all buckets.
    /// Tokens that waiters needed are not among them: the store has charged those already.
    pub(super) fn unreported(&self, held: u64) -> u64 {
        self.buckets().map(|lent| lent.saturating_sub(held)).min().unwrap_or(u64::MAX)
    }

    /// What this node knows to be spent or held of each limit: of the present window, or, if nothing of that was
    /// lent, of the one before, as long as that may still be open.
    pub(super) fn known(&self, now: Instant, held: u64) -> [Known; MAX_LIMITS] {
        let mut known = [Known::default(); MAX_LIMITS];
        if self.answered().is_none() || on(Mutant::KnownNotSent) {
            return known;
        }
        let earliest = self.clock.earliest(now);
        for ((limit, view), known) in self.rule.limits.iter().zip(&self.limits).zip(&mut known) {
            let gcra = limit.algorithm == Algorithm::Gcra;
            // The store knows the reported spending of a bucket by its TAT; and held tokens are no loss.
            let used = if gcra { view.lent.saturating_sub(held) } else { view.lent };
            let before = view.before();
            let known_before = before.window.map(StoredTime::time).filter(|at| {
                let end = if limit.algorithm == Algorithm::Sliding { *at + limit.period } else { *at };
                !gcra && used == 0 && before.tokens > 0 && earliest < end
            });
            *known = match known_before {
                Some(at) => Known { used: before.tokens, at },
                None => Known { used, at: view.counter.at },
            };
        }
        known
    }
}

/// What is known of each limit of a rule before the store has answered.
fn unknown(rule: &Rule) -> PerLimit<LimitView> {
    PerLimit::of_each(&rule.limits, |limit| LimitView::of(limit, Counter::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    /// A bucket of `10/1s` that is looked at then, by the node's clock and the store's.
    fn bucket() -> (Instant, Timestamp, Limit, StoreView) {
        let limit = Limit::parse("10/1s burst 10").unwrap();
        let (start, now) = (Instant(1_000_000), Timestamp(5_000_000));
        let clock = StoreClock::new(start, start, now);
        (start, now, limit, StoreView::new(&Arc::new(Rule::of("p", &[limit])), 1, clock))
    }

    /// Ten tokens of an empty bucket are spent and told. Then the store's clock is set forward by half a second, so half of it is back.
    #[test]
    fn what_the_store_was_told_does_not_delay_what_is_spent_after_its_clock_was_set() {
        let (start, now, limit, mut view) = bucket();
        view.note_answered(start, false);
        view.limits[0].lent = 10;
        view.note_spent(start, 10, 10);
        assert_eq!(view.ages(start, 0)[0], Micros::ZERO);
        // The answer shows a clock that was set ahead by half a second, and lends three.
        let later = now + Micros(500_000);
        view.note_clock(StoreClock::new(start, start, later));
        view.note_reported(start, 0);
        view.note_counter(0, Counter { used: 3, prev: 0, at: now + Micros(1_000_000) });
        view.limits[0].lent = 3;
        assert_eq!(view.charged_of(0, 3).left(&limit, later), 2);
        view.note_spent(start, 1, 3);
        assert_eq!(view.charged_of(0, 2).left(&limit, later), 2, "one that was held was spent");
    }

    /// Of what was spent while the acquire was under way the store knows nothing yet.
    #[test]
    fn what_is_untold_was_spent_by_now() {
        let (start, .., mut view) = bucket();
        view.limits[0].lent = 10;
        view.note_spent(start, 6, 10);
        view.note_spent(start + Micros(1_000), 2, 4);
        view.limits[0].lent = 4;
        view.note_reported(start + Micros(2_000), 2);
        assert_eq!(view.ages(start + Micros(2_000), 2)[0], Micros::ZERO);
        assert_eq!(view.ages(start + Micros(102_000), 2)[0].0 / 1_000, 99, "not later");
    }
}
