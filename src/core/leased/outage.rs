//! How a key is decided while its part of the store is away (semantics, §5).
//!
//! What is held is spent first; then the policy says: all, none, or this node's share. Part of
//! `key.rs`; the arithmetic of shares is in `share.rs`.

use super::key::LeasedKey;
use super::peers::{DOUBTED, has_windows};
use super::phase::Phase;
use crate::core::answer::Resolution;
use crate::core::call::{Call, Counter, Grant, Op};
use crate::core::decision::{Decision, Reason, Source};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::rule::OnStoreLoss;
use crate::core::share::{FallbackBudget, Lent, share_ppm};
use crate::core::time::{Instant, Micros, Timestamp};
use crate::core::usage::Usage;

/// How long after a failure a key whose part of the store is away asks again.
const ASK_AGAIN: Micros = Micros(250_000);

/// How long after the store is back a share goes on: all nodes have charged theirs by then.
const GRACE: Micros = Micros(1_000_000);

/// A wait for a share that is longer is not told: the store is asked again long before. A minute, and what is in
/// doubt of its end.
const LONG: Micros = Micros(61_000_000);

/// A client that was told to wait may come so much later, and must not meet the end of a window: see
/// [`LeasedKey::past_doubt`].
const LATE: Micros = Micros(10_000);

/// In a short window, a client comes late by this fraction of the window at most.
const LATE_PART: u64 = 16;

/// Counters that the store told at most so long before it was lost are still relied on.
const FRESH: Micros = Micros(60_000_000);

/// The store's clock is in doubt by a trip, and by no more than one part in so many of a window: a store that is slow
/// would otherwise take whole windows of their shares.
const DOUBT_PART: u64 = 4;

/// Two clocks drift apart by one part in so many (200 ppm); of a store that has been away for long by so much at most, as
/// far as shares go.
const DRIFT: (u64, u64) = (5_000, 1_000);

/// Rounds in which shares and ends of windows come to agree on a wait.
const ROUNDS: usize = 8;

/// A key whose next question to the store is overdue by this much is no longer taken to be without the store: nobody has
/// asked for the key meanwhile, so that nothing is known of the store as it is now.
const STALE: Micros = Micros(1_000_000);

/// Within this many rounds of gossip all peers have heard of a loss, and have told the store what they were lent.
const ROUNDS_OF_GOSSIP: u64 = 2;

/// What the store lent before it was lost: see [`Lent`].
struct Counted {
    own: [u64; MAX_LIMITS],
    all: Option<[Counter; MAX_LIMITS]>,
}

impl Counted {
    fn lent(&self) -> Lent<'_> {
        Lent { own: &self.own, all: self.all.as_ref().map(|all| &all[..]) }
    }
}

impl LeasedKey {
    /// The phase once the store has answered an acquire that needed `need` with `granted` tokens.
    pub(super) fn phase_after(&self, now: Instant, need: u64, granted: u64) -> Phase {
        let is_unpaid = self.outage.phase().is_unpaid();
        let until = self.outage.phase().until().unwrap_or(now + GRACE);
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

    /// The store has answered a call that asked for no tokens and was sent then. Where that was after it was lost, it is back,
    /// and the time in which all nodes charge theirs begins: were it to begin with the next acquire alone, a key that
    /// is asked for little would go on by its share long after.
    pub(super) fn note_back(&mut self, now: Instant, sent: Instant) {
        if self.outage.phase().retry_at().is_some_and(|retry_at| retry_at <= sent + ASK_AGAIN) {
            self.outage.repay_until(now, now + GRACE);
        }
    }

    /// The key's part of the store is away, as far as is known: what was learned of it long ago is
    /// no reason to do without it.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        self.outage.phase().retry_at().is_some_and(|retry_at| now < retry_at + STALE)
    }

    /// Decides while the key's part of the store is away (semantics, §5).
    pub(super) fn decide_offline(&mut self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.view.rule().on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Resolution::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Share => {
                let mut book = self.outage.take_book().unwrap_or_else(|| self.late_book(now));
                let decision = self.ask_share(&mut book, now, cost, fleet);
                self.outage.put_book(book);
                decision
            }
        }
    }

    /// What [`LeasedKey::decide_offline`] would say, without a change.
    pub(super) fn peek_offline(&self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.view.rule().on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Resolution::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Share => {
                let book = self.outage.book().cloned().map(Box::new);
                let mut book = book.unwrap_or_else(|| self.late_book(now));
                self.ask_share(&mut book, now, cost, fleet)
            }
        }
    }

    /// The budget of a key that was not known when its part of the store was lost.
    fn late_book(&self, now: Instant) -> Box<FallbackBudget> {
        Box::new(FallbackBudget::open_late(self.view.rule(), self.view.clock().latest(now)))
    }

    /// Spends `cost` of the share, or denies.
    fn ask_share(&self, book: &mut FallbackBudget, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        let (clock, rule) = (self.view.clock().latest(now), self.view.rule());
        let (parts, counted) = (self.parts(book, fleet), self.counted(book, fleet));
        let lent = counted.lent();
        let is_between = self.is_between_windows(now, clock);
        if !is_between && book.spend(rule, &parts, clock, cost, &lent) {
            book.keep_parts(parts);
            let left = book.left(rule, clock, &lent);
            return Decision { remaining: left, ..self.answer(now, cost, Resolution::allow(Source::Share)) };
        }
        // The store is asked again before long, and may be back: nobody has to wait for hours.
        let asked = self.outage.phase().retry_at().map_or(Micros::ZERO, |retry_at| retry_at.since(now));
        let is_restoring = self.outage.phase().is_restoring();
        let most = if is_restoring { asked } else { asked.max(Micros::from_secs(1)) };
        let wait = match self.wait_offline(book, now, cost, &parts, &lent) {
            Some(wait) if !is_restoring && wait <= LONG => wait,
            wait => wait.map_or(most, |wait| wait.min(most)),
        };
        let decision =
            self.answer(now, cost, Resolution::deny(Reason::Share, Source::Share).after(wait.max(Micros(1))));
        let left = if is_between { decision.remaining } else { book.left(rule, clock, &lent) };
        Decision { remaining: left.min(cost.saturating_sub(1)), ..decision }
    }

    /// What the store lent before it was lost. The counts of all are to be relied on where it said so just before that
    /// this node alone uses the key, and no fleet knows better.
    fn counted(&self, book: &FallbackBudget, fleet: Option<FleetView>) -> Counted {
        let is_fresh = self.view.answered().is_some_and(|at| book.since() <= self.view.clock().latest(at) + FRESH);
        let is_restoring = self.outage.phase().is_restoring();
        let is_alone = self.view.nodes() == 1 && fleet.is_none() && !book.is_late() && !is_restoring;
        let all = (is_fresh && is_alone).then(|| self.view.counters());
        Counted { own: self.view.lent_of_each(), all }
    }

    /// The wait after which every limit's share has `cost` and no window may just be about to end; `None`: no share
    /// ever has as much.
    fn wait_offline(
        &self,
        book: &FallbackBudget,
        now: Instant,
        cost: u64,
        parts: &[u64],
        lent: &Lent<'_>,
    ) -> Option<Micros> {
        let clock = self.view.clock().latest(now);
        let mut then = clock;
        for _ in 0..ROUNDS {
            let ready = book.ready(self.view.rule(), parts, [clock, then], cost, lent)?;
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
    fn parts(&self, book: &FallbackBudget, fleet: Option<FleetView>) -> [u64; MAX_LIMITS] {
        let (kept, lost) = (book.parts(), book.since());
        let mut parts = [0; MAX_LIMITS];
        for (index, part) in parts.iter_mut().enumerate().take(self.view.rule().limits.len()) {
            let kept = kept.map(|kept| kept[index]);
            let drawn = || fleet.map_or(share_ppm(self.view.nodes()), |fleet| self.part_ppm(index, fleet, lost));
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
            let late = Micros(LATE.0.min(period.0 / LATE_PART));
            let begun = Timestamp((latest + drift + late).0 / period.0 * period.0);
            latest.max(begun + self.doubt_of(period, drift) + drift + Micros(1))
        });
        surely.max().unwrap_or(latest)
    }

    /// Periods of those limits whose shares go by windows.
    fn windowed(&self) -> impl Iterator<Item = Micros> {
        self.view.rule().limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra).map(|limit| limit.period)
    }

    /// How long after a window of that period began the one before may last still.
    fn doubt_of(&self, period: Micros, drift: Micros) -> Micros {
        Micros(self.view.clock().trip().0.min(period.0 / DOUBT_PART)) + drift
    }

    /// How far the store's clock may have drifted from this node's since the last answer; at most a millisecond.
    fn drift(&self, now: Instant) -> Micros {
        self.view.answered().map_or(Micros::ZERO, |at| Micros((now.since(at).0 / DRIFT.0).min(DRIFT.1)))
    }

    /// The store's first answer about a bucket is late. Lest a key that nobody has spent of be denied for that,
    /// its first check passes on credit, once; the call under way or the next one pays. The bound of a bucket
    /// has room for it: one token, and what comes during a trip to the store, which all nodes share.
    pub(super) fn let_first_pass(&mut self, now: Instant, cost: u64, timeout: Micros) -> Option<Decision> {
        let is_first = self.view.answered().is_none() && self.outage.credit().is_none();
        let all_buckets = self.view.rule().limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        if !is_first || !all_buckets || self.view.rule().on_store_loss != OnStoreLoss::Share {
            return None;
        }
        let room = |limit: &Limit| gcra::tokens_in(limit, timeout).saturating_add(1).min(limit.burst);
        let smallest = self.view.rule().limits.iter().map(room).min().unwrap_or(0);
        if cost > smallest / u64::from(self.view.nodes().max(1)) {
            return None;
        }
        self.outage.let_pass(now, cost);
        Some(self.answer(now, cost, Resolution::allow(Source::Share)))
    }

    /// The store gave no answer: from `since` on this key is on its own.
    pub(super) fn lose_store(&mut self, now: Instant, since: Instant) {
        // Whatever the store says of since when: an answer came later.
        let since = self.view.clock().latest(self.view.answered().map_or(since, |at| at.max(since)));
        // What the store lent of a bucket before it comes takes the time in which a share would fill up.
        let to_come = self.to_come(now);
        let since = if to_come > Micros::ZERO { since.max(self.view.clock().latest(now) + to_come) } else { since };
        if !self.is_away(now) && self.view.rule().on_store_loss == OnStoreLoss::Share {
            self.outage.open_book(self.view.rule(), since);
        }
        self.outage.lose(now + ASK_AGAIN);
    }

    /// The waits of an outage that are over at `now` end.
    pub(super) fn end_waits(&mut self, now: Instant) {
        self.outage.end_waits(now, self.view.rule(), self.view.clock().latest(now));
    }

    /// A share was spent in a window that is still open: forgotten, it would be spent again.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.outage.owes(self.view.rule(), self.view.clock().latest(now))
    }

    /// The store has yet to be charged for checks that passed without it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.debt(now) > 0 || self.outage.credit().is_some()
    }

    /// The store has only just answered, if at all, and others may have yet to charge what they admitted
    /// on their shares of the window at hand: it would be lent once more.
    pub(super) fn awaits_others(&self, now: Instant) -> bool {
        let is_over = self.outage.phase().until().is_some_and(|until| now >= until) || on(Mutant::SharesNotAwaited);
        let clock = self.view.clock().latest(now);
        self.is_away(now) && !is_over && self.outage.book().is_some_and(|book| book.spans(self.view.rule(), clock))
    }

    /// Forgotten, it would have more of a share than it has, or would not wait for what its peers tell the store.
    pub(in crate::core) fn is_indebted(&self, now: Instant) -> bool {
        let is_restoring = matches!(self.outage.phase(), Phase::Restoring { until } if now < until);
        is_restoring
            || self.outage.book().is_some_and(|book| book.matters(self.view.rule(), self.view.clock().latest(now)))
    }

    /// This window's share was asked for, or `spent` of, for the first time by the check just decided.
    pub(super) fn begins_share(&mut self, now: Instant, spent: bool) -> bool {
        self.outage.begins_share(self.view.rule(), self.view.clock().latest(now), spent)
    }

    /// What is left of the share where leases count against it, too.
    pub(super) fn share_left(&self, now: Instant) -> u64 {
        if self.view.has_account() {
            return 0;
        }
        let clock = self.view.clock().latest(now);
        let counted = Counted { own: self.view.lent_of_each(), all: None };
        self.outage.book().map_or(0, |book| book.left(self.view.rule(), clock, &counted.lent()))
    }

    /// What the share admitted and the store has not been charged for.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        self.outage.debt(self.view.rule(), self.view.clock().latest(now))
    }
}

/// The store answers, and has lost what it knew of the key (semantics, §5).
///
/// Each node's next acquire tells the store what it had lent that node, and is lent nothing. Whoever notices first tells its
/// peers, who ask at once; until they have, the store would lend what they hold once more: so long a node spends what it
/// holds, and asks for nothing.
impl LeasedKey {
    /// The store has lost what it knew of this window: peers know better, and hear of it.
    pub(super) fn believe_fleet(&mut self) {
        self.peers.note_lost(self.view.windows());
    }

    /// The store lends again what it has lent of windows to come: that is void. By the store's clock the window may have begun
    /// already that by this node's has not begun for sure. Where the call that hears of the loss told the store what was
    /// lent of it, the store counts that again, and it stays.
    pub(super) fn void_ahead(&mut self, now: Instant, call: &Call, grant: &Grant) -> u64 {
        self.view.forget_ahead_of(&grant.counters);
        let told = if let Op::Acquire(order) = call.op { order.known[0].at } else { Timestamp::NONE };
        let restored = (told != Timestamp::NONE && told == grant.counters[0].at).then_some(told);
        self.holdings.void_ahead(now, restored)
    }

    /// This node has told the store what it was lent; its peers have yet to. A second in which this node waits for what
    /// others owe may be nearly over: it goes on for as long as they need.
    pub(super) fn wait_for_peers(&mut self, now: Instant, fleet: Option<FleetView>) {
        let Some(lasts) = self.repair_lasts(now, fleet) else { return };
        if self.outage.phase().is_away() {
            return self.outage.wait_until(now + lasts);
        }
        self.lose_store(now, now);
        let since = self.view.clock().latest(now);
        self.outage.open_book_anew(since);
        self.outage.restore_until(now + lasts);
    }

    /// How long peers need to tell the store what it has lost; `None`: there are none, or nobody waits for them.
    fn repair_lasts(&self, now: Instant, fleet: Option<FleetView>) -> Option<Micros> {
        // Of a key that nobody asked for in this window there was nothing to lose.
        let latest = self.view.clock().latest(now);
        let lost = self.view.limits().enumerate().filter(|(index, (limit, counter))| {
            let is_used = || self.peers.window(*index, counter.at).is_some_and(|window| window.peers() > 0);
            has_windows(limit) && (self.view.lent(*index) > 0 || is_used())
        });
        // Others have to tell of the last of them that is open, however soon a shorter one ends.
        let left = lost.map(|(_, (limit, counter))| {
            let end = if limit.algorithm == Algorithm::Sliding { counter.at + limit.period } else { counter.at };
            let left = end.since(latest);
            if left > Micros::ZERO { left } else { limit.period }
        });
        let left = left.max().filter(|_| self.peers.is_kept());
        let (fleet, left) = (fleet.filter(|fleet| fleet.live > 1)?, left?);
        let is_awaited = self.view.rule().on_store_loss != OnStoreLoss::Allow && !on(Mutant::LendsBeforeRepair);
        is_awaited.then(|| left.min(Micros(fleet.round.0.saturating_mul(ROUNDS_OF_GOSSIP))))
    }

    /// A peer tells that the store has lost this key, and this node has not told it yet what it was lent:
    /// at most once a second, whatever peers say. Where the store is being asked, it is asked once more.
    pub(super) fn is_recalled(&mut self, now: Instant, usage: &Usage) -> bool {
        let is_news = usage.epoch != 0 && self.view.epoch() != 0 && usage.epoch != self.view.epoch();
        let has_any = self.view.is_lent_any();
        let is_put_off = !self.peers.may_be_recalled(now) || self.outage.phase().waits(now);
        if !is_news || !has_any || is_put_off {
            return false;
        }
        let is_asked = self.calls.is_acquiring();
        self.peers.note_recall(now + DOUBTED, is_asked.then_some(usage.epoch));
        !is_asked
    }
}
