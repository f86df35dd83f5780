//! How a key is decided while its part of the store is away (semantics, §5).
//!
//! What is held is spent first; then the policy says: all, none, or this node's share. Part of
//! `slot.rs`; the arithmetic of shares is in `share.rs`.

use super::answer::Ending;
use super::decision::{Decision, Reason, Source};
use super::fleet::FleetView;
use super::gcra;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::policy::OnStoreLoss;
use super::share::{ShareBook, share_ppm};
use super::slot::{Away, Slot};
use super::time::{Instant, Micros, Timestamp};

/// How long after a failure a key whose part of the store is away asks again.
const ASK_AGAIN: Micros = Micros(250_000);

/// A wait for a share that is longer is not told: the store is asked again long before.
const LONG: Micros = Micros(60_000_000);

/// A loss of the store that was noticed so long before the next question was due counts no more.
const STALE: Micros = Micros(1_000_000);

impl Slot {
    /// The key's part of the store is away, as far as is known: what was learned of it long ago is
    /// no reason to do without it.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        self.away.is_some_and(|away| now < away.ask_again + STALE)
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

    /// What [`Slot::decide_alone`] would say, without a change.
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
        if let Some(wait) = self.between_windows(now, clock) {
            let decision = self.answer(now, cost, Ending::deny(Reason::Share, Source::Share).after(wait));
            return Decision { remaining: decision.remaining.min(cost.saturating_sub(1)), ..decision };
        }
        let parts = self.parts(book, fleet);
        let ending = match book.spend(rule, &parts, clock, cost, &self.net) {
            Ok(()) => {
                book.keep_parts(parts);
                Ending::allow(Source::Share)
            }
            Err(wait) => {
                // The store is asked again before long, and may be back: nobody has to wait for hours.
                let asked = self.away.map_or(Micros::ZERO, |away| away.ask_again.since(now));
                let repaired = self.away.is_some_and(|away| away.repairs);
                let most = if repaired { asked } else { asked.max(Micros::from_secs(1)) };
                let wait = if repaired || wait > LONG { wait.min(most) } else { wait + self.blur(now) };
                Ending::deny(Reason::Share, Source::Share).after(wait.max(Micros(1)))
            }
        };
        let left = book.left(rule, clock, &self.net);
        Decision { remaining: left, ..self.answer(now, cost, ending) }
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
    fn between_windows(&self, now: Instant, latest: Timestamp) -> Option<Micros> {
        let drift = self.drift(now);
        let trip = self.clock.trip().0;
        self.rule.limits.iter().find_map(|limit| {
            let window = |at: Timestamp| at.0 / limit.period.0;
            let doubt = Micros(trip.min(limit.period.0 / 4)) + drift;
            let doubtful = limit.algorithm != Algorithm::Gcra && window(latest - doubt) != window(latest + drift);
            doubtful.then_some(doubt + drift)
        })
    }

    /// How far the store's clock may have drifted from this node's since the last answer; at most a millisecond.
    fn drift(&self, now: Instant) -> Micros {
        self.answered.map_or(Micros::ZERO, |at| Micros((now.since(at).0 / 5_000).min(1_000)))
    }

    /// How much later than its window begins a share is surely spent of it: see [`Slot::between_windows`].
    fn blur(&self, now: Instant) -> Micros {
        let shortest = self.rule.limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra);
        let trip = shortest.map(|limit| self.clock.trip().0.min(limit.period.0 / 4)).max();
        trip.map_or(Micros::ZERO, |trip| Micros(trip) + self.drift(now) + self.drift(now) + Micros(1))
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
        self.credit = cost;
        let decision = self.answer(now, cost, Ending::allow(Source::Share));
        Some(Decision { remaining: decision.remaining.saturating_sub(cost), ..decision })
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
        self.away = Some(Away { ask_again: now + ASK_AGAIN, charged: false, back: None, repairs: false });
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
        let is_over = self.away.and_then(|away| away.back).is_some_and(|back| now >= back);
        let clock = self.clock.latest(now);
        self.is_away(now) && !is_over && self.share.as_ref().is_some_and(|book| book.spans(&self.rule, clock))
    }

    /// Forgotten, it would have more of a share than it has, or would not wait for what its peers tell the store.
    pub(super) fn is_indebted(&self, now: Instant) -> bool {
        let repairs = self.away.is_some_and(|away| away.repairs && now < away.ask_again);
        repairs || self.share.as_ref().is_some_and(|book| book.matters(&self.rule, self.clock.latest(now)))
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
        self.share.as_ref().map_or(0, |book| book.left(&self.rule, clock, &self.net))
    }

    /// What the share admitted and the store has not been charged for.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        self.share.as_ref().map_or(0, |book| book.debt(&self.rule, self.clock.latest(now)))
    }
}
