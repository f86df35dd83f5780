//! How a key is decided while its part of the store is away (semantics, §5).
//!
//! What is held is spent first; then the policy says: all, none, or this node's share. Part of
//! `key.rs`; the arithmetic of shares is in `share.rs`.

use super::key::LeasedKey;
use super::phase::Phase;
use crate::core::answer::Ending;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::rule::OnStoreLoss;
use crate::core::share::{Lent, ShareBook, share_ppm};
use crate::core::time::{Instant, Micros, Timestamp};

/// How long after a failure a key whose part of the store is away asks again.
const ASK_AGAIN: Micros = Micros(250_000);

/// How long after the store is back a share goes on: all nodes have charged theirs by then.
const GRACE: Micros = Micros(1_000_000);

/// A wait for a share that is longer is not told: the store is asked again long before. A minute, and what is in
/// doubt of its end.
const LONG: Micros = Micros(61_000_000);

/// Who is told to wait may come so much later, and must not meet the end of a window: see [`LeasedKey::past_doubt`].
const LATE: Micros = Micros(10_000);

/// What the store said so long before it was lost still holds.
const FRESH: Micros = Micros(60_000_000);

/// Rounds in which shares and ends of windows come to agree on a wait.
const ROUNDS: usize = 8;

/// A loss of the store that was noticed so long before the next question was due counts no more.
const STALE: Micros = Micros(1_000_000);

impl LeasedKey {
    /// The phase once the store has answered an acquire that needed `need` with `granted` tokens.
    pub(super) fn phase_after(&self, now: Instant, need: u64, granted: u64) -> Phase {
        let is_unpaid = self.phase.is_away() && !matches!(self.phase, Phase::Repaid { .. });
        let until = self.phase.until().unwrap_or(now + GRACE);
        // A share goes on only when the store has lent all of it: then no other node is lent it, too.
        if is_unpaid && self.owes(now) && granted >= self.debt(now) + self.share_left(now) {
            return Phase::Repaid { retry_at: until.max(now), until };
        }
        // Others may have spent theirs of this window already. What was admitted since the call is charged next.
        let is_paid = !self.owes(now) || granted >= need;
        if is_unpaid && self.awaits_others(now) && is_paid && now < until {
            return Phase::Repaying { retry_at: if self.owes(now) { now } else { until }, until };
        }
        Phase::Connected
    }

    /// The key's part of the store is away, as far as is known: what was learned of it long ago is
    /// no reason to do without it.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        self.phase.retry_at().is_some_and(|retry_at| now < retry_at + STALE)
    }

    /// Decides while the key's part of the store is away (semantics, §5).
    pub(super) fn decide_alone(&mut self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.rule.on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Ending::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Share => {
                let mut book = self.share.take().unwrap_or_else(|| self.late_book(now));
                let decision = self.ask_share(&mut book, now, cost, fleet);
                self.share = Some(book);
                decision
            }
        }
    }

    /// What [`LeasedKey::decide_alone`] would say, without a change.
    pub(super) fn look_alone(&self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.rule.on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Ending::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Ending::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Share => {
                let mut book = self.share.clone().unwrap_or_else(|| self.late_book(now));
                self.ask_share(&mut book, now, cost, fleet)
            }
        }
    }

    /// For a key that was not known when its part of the store was lost.
    fn late_book(&self, now: Instant) -> Box<ShareBook> {
        Box::new(ShareBook::open_late(&self.rule, self.clock.latest(now)))
    }

    /// Spends `cost` of the share, or denies.
    fn ask_share(&self, book: &mut ShareBook, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        let (clock, rule) = (self.clock.latest(now), &self.rule);
        let (parts, lent) = (self.parts(book, fleet), self.lent(book, fleet));
        let is_between = self.is_between_windows(now, clock);
        if !is_between && book.spend(rule, &parts, clock, cost, &lent) {
            book.keep_parts(parts);
            let left = book.left(rule, clock, &lent);
            return Decision { remaining: left, ..self.answer(now, cost, Ending::allow(Source::Share)) };
        }
        // The store is asked again before long, and may be back: nobody has to wait for hours.
        let asked = self.phase.retry_at().map_or(Micros::ZERO, |retry_at| retry_at.since(now));
        let is_restoring = matches!(self.phase, Phase::Restoring { .. });
        let most = if is_restoring { asked } else { asked.max(Micros::from_secs(1)) };
        let wait = match self.wait_alone(book, now, cost, &parts, &lent) {
            Some(wait) if !is_restoring && wait <= LONG => wait,
            wait => wait.map_or(most, |wait| wait.min(most)),
        };
        let decision = self.answer(now, cost, Ending::deny(Reason::Share, Source::Share).after(wait.max(Micros(1))));
        let left = if is_between { decision.remaining } else { book.left(rule, clock, &lent) };
        Decision { remaining: left.min(cost.saturating_sub(1)), ..decision }
    }

    /// What the store lent before it was lost. The counts of all are to be relied on where it said so just before that
    /// this node alone uses the key, and no fleet knows better.
    fn lent(&self, book: &ShareBook, fleet: Option<FleetView>) -> Lent<'_> {
        let is_fresh = self.answered.is_some_and(|at| book.since() <= self.clock.latest(at) + FRESH);
        let is_restoring = matches!(self.phase, Phase::Restoring { .. });
        let is_alone = self.nodes == 1 && fleet.is_none() && !book.is_late() && !is_restoring;
        Lent { own: &self.net, all: Some(&*self.counters).filter(|_| is_fresh && is_alone) }
    }

    /// The wait after which every limit's share has `cost` and no window may just be about to end; `None`: no share
    /// ever has as much.
    fn wait_alone(&self, book: &ShareBook, now: Instant, cost: u64, parts: &[u64], lent: &Lent<'_>) -> Option<Micros> {
        let clock = self.clock.latest(now);
        let mut then = clock;
        for _ in 0..ROUNDS {
            let ready = book.ready(&self.rule, parts, [clock, then], cost, lent)?;
            let surely = self.past_doubt(now + ready.since(clock), ready);
            if surely == then {
                break;
            }
            then = surely;
        }
        Some(then.since(clock))
    }

    /// This node's part of each limit, in millionths. A fleet's is fixed when something is first spent of it; without one it
    /// is the even part of those that the store last counted, and grows no more: a store that is back counts anew.
    fn parts(&self, book: &ShareBook, fleet: Option<FleetView>) -> [u64; MAX_LIMITS] {
        let (kept, lost) = (book.parts(), book.since());
        let mut parts = [0; MAX_LIMITS];
        for (index, part) in parts.iter_mut().enumerate().take(self.rule.limits.len()) {
            let kept = kept.map(|kept| kept[index]);
            let drawn = || fleet.map_or(share_ppm(self.nodes), |fleet| self.part_ppm(index, fleet, lost));
            *part = match kept {
                Some(kept) if fleet.is_some() && self.follows_usage(index) => kept,
                _ => kept.map_or_else(drawn, |kept| kept.min(drawn())),
            };
        }
        parts
    }

    /// The store's clock is known to a trip only; where that leaves two windows, neither's share is
    /// spent: it would be spent twice in one of them. At most a quarter of each window, and 2 ms,
    /// whatever the drift.
    fn is_between_windows(&self, now: Instant, latest: Timestamp) -> bool {
        let drift = self.drift(now);
        self.windowed().any(|period| {
            let window = |at: Timestamp| at.0 / period.0;
            window(latest - self.doubt_of(period, drift)) != window(latest + drift)
        })
    }

    /// The first time from `latest` on that is surely not between two windows of any limit, even for somebody who
    /// comes a little late.
    fn past_doubt(&self, now: Instant, latest: Timestamp) -> Timestamp {
        let drift = self.drift(now);
        let surely = self.windowed().map(|period| {
            let late = Micros(LATE.0.min(period.0 / 16));
            let begun = Timestamp((latest + drift + late).0 / period.0 * period.0);
            latest.max(begun + self.doubt_of(period, drift) + drift + Micros(1))
        });
        surely.max().unwrap_or(latest)
    }

    /// Periods of those limits whose shares go by windows.
    fn windowed(&self) -> impl Iterator<Item = Micros> {
        self.rule.limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra).map(|limit| limit.period)
    }

    /// How long after a window of that period began the one before may last still.
    fn doubt_of(&self, period: Micros, drift: Micros) -> Micros {
        Micros(self.clock.trip().0.min(period.0 / 4)) + drift
    }

    /// How far the store's clock may have drifted from this node's since the last answer; at most a millisecond.
    fn drift(&self, now: Instant) -> Micros {
        self.answered.map_or(Micros::ZERO, |at| Micros((now.since(at).0 / 5_000).min(1_000)))
    }

    /// The store's first answer about a bucket is late. Lest a key that nobody has spent of be denied for that,
    /// its first check passes on credit, once; the call under way or the next one pays. The bound of a bucket
    /// has room for it: one token, and what comes during a trip to the store, which all nodes share.
    pub(super) fn let_first_pass(&mut self, now: Instant, cost: u64, timeout: Micros) -> Option<Decision> {
        let is_first = self.answered.is_none() && self.credit == 0;
        let all_buckets = self.rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        if !is_first || !all_buckets || self.rule.on_store_loss != OnStoreLoss::Share {
            return None;
        }
        let room = |limit: &Limit| gcra::tokens_in(limit, timeout).saturating_add(1).min(limit.burst);
        let smallest = self.rule.limits.iter().map(room).min().unwrap_or(0);
        if cost > smallest / u64::from(self.nodes.max(1)) {
            return None;
        }
        (self.credit, self.credited) = (cost, now);
        Some(self.answer(now, cost, Ending::allow(Source::Share)))
    }

    /// The store gave no answer: from `since` on this key is on its own.
    pub(super) fn lose_store(&mut self, now: Instant, since: Instant) {
        // Whatever the store says of since when: an answer came later.
        let since = self.clock.latest(self.answered.map_or(since, |at| at.max(since)));
        if !self.is_away(now) && self.rule.on_store_loss == OnStoreLoss::Share {
            match &mut self.share {
                Some(book) => book.reopen(&self.rule, since),
                None => self.share = Some(Box::new(ShareBook::open(&self.rule, since))),
            }
        }
        self.phase = Phase::Lost { retry_at: now + ASK_AGAIN };
    }

    /// A share was spent in a window that is still open: forgotten, it would be spent again.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.share.as_ref().is_some_and(|book| book.is_open(&self.rule, self.clock.latest(now)))
    }

    /// The store has yet to be charged for checks that passed without it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.debt(now) > 0 || self.credit > 0
    }

    /// The store has only just answered, if at all, and others may have yet to charge what they admitted
    /// on their shares of the window at hand: it would be lent once more.
    pub(super) fn awaits_others(&self, now: Instant) -> bool {
        let is_over = self.phase.until().is_some_and(|until| now >= until);
        let clock = self.clock.latest(now);
        self.is_away(now) && !is_over && self.share.as_ref().is_some_and(|book| book.spans(&self.rule, clock))
    }

    /// Forgotten, it would have more of a share than it has, or would not wait for what its peers tell the store.
    pub(in crate::core) fn is_indebted(&self, now: Instant) -> bool {
        let is_restoring = matches!(self.phase, Phase::Restoring { until } if now < until);
        is_restoring || self.share.as_ref().is_some_and(|book| book.matters(&self.rule, self.clock.latest(now)))
    }

    /// This window's share was asked for, or `spent` of, for the first time by the check just decided.
    pub(super) fn begins_share(&mut self, now: Instant, spent: bool) -> bool {
        let clock = self.clock.latest(now);
        let rule = &self.rule;
        self.share.as_mut().is_some_and(|book| book.begins(rule, clock, spent))
    }

    /// What is left of the share where leases count against it, too.
    pub(super) fn share_left(&self, now: Instant) -> u64 {
        if self.has_account() {
            return 0;
        }
        let clock = self.clock.latest(now);
        let lent = Lent { own: &self.net, all: None };
        self.share.as_ref().map_or(0, |book| book.left(&self.rule, clock, &lent))
    }

    /// What the share admitted and the store has not been charged for.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        self.share.as_ref().map_or(0, |book| book.debt(&self.rule, self.clock.latest(now)))
    }
}
