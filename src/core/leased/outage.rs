//! How a key is decided while its store server is away (`docs/concepts/outages.md`).
//!
//! Held tokens are spent first; then the policy decides: everything is admitted, nothing, or this node's share. Part
//! of `key.rs`; the arithmetic of shares is in `share.rs`.

use super::key::LeasedKey;
use super::peers::{DOUBTED, has_windows};
use super::phase::{Credit, GRACE, Phase};
use crate::core::answer::Resolution;
use crate::core::ask::Payer;
use crate::core::call::{Call, Counter, Grant, Op};
use crate::core::context::Context;
use crate::core::decision::{Decision, Reason, Source};
use crate::core::entitled::{released, released_at, window_end};
use crate::core::fleet::FleetView;
use crate::core::gcra;
use crate::core::limit::{Algorithm, Limit, MAX_LIMITS};
use crate::core::mutant::{Mutant, on};
use crate::core::rule::OnStoreLoss;
use crate::core::share::{FallbackBudget, Lent, WHOLE, share_ppm};
use crate::core::time::{DRIFT_PART, Instant, Micros, StoredTime, Timestamp};
use crate::core::usage::Usage;

/// Time after a failure until a key asks its store server again, so that it does four times in [`GRACE`]. Less, and all keys of a node ask a
/// server that is away more often; more, and some nodes find the store when others lease from it already.
const ASK_AGAIN: Micros = Micros(250_000);

/// A bucket's share that goes on beside leases of other nodes is charged to the store this often: until then others may be lent the same
/// tokens.
const CHARGE_AGAIN: Micros = Micros(50_000);

/// A longer wait for a share is not told to the client, because the store is asked again long before. It is a minute,
/// and the doubt about its end.
const LONG: Micros = Micros(61_000_000);

/// A client that was told to wait may come this much later, and must not meet the end of a window: see
/// [`LeasedKey::past_doubt`].
const LATE: Micros = Micros(10_000);

/// In a short window, a client comes late by this fraction of the window at most.
const LATE_PART: u64 = 16;

/// How old the store's last answer before an outage may be for its counters to be relied on: as old as a quiet key of a long window is
/// remembered for.
const FRESH: Micros = Micros(60_000_000);

/// The store's clock is known only to within a round trip; of a window, this fraction at most counts as in doubt.
/// Otherwise a slow store would take whole windows from their shares.
const DOUBT_PART: u64 = 4;

/// For shares, the drift of two clocks is limited to this many microseconds, however long the outage lasts: else a long one would take whole
/// windows from them.
const MOST_DRIFT: u64 = 1_000;

/// A share of a bucket of which a part is set aside fills more slowly by this fraction: more than two clocks drift apart.
const CLOCKS_PART: u64 = 2_048;

/// Iterations after which the ends of shares and of windows must agree on a wait.
const ROUNDS: usize = 8;

/// When the next call to the store is overdue by this much, the store no longer counts as away: nobody has used the key since, or it would
/// have been asked, so what is known of it is old.
const STALE: Micros = Micros(1_000_000);

/// Within this many rounds of gossip, all peers have heard of a loss and have told the store what they were lent.
const ROUNDS_OF_GOSSIP: u64 = 2;

/// What the store lent before it was lost: see [`Lent`].
pub(super) struct Counted {
    own: [u64; MAX_LIMITS],
    all: Option<[Counter; MAX_LIMITS]>,
}

impl Counted {
    pub(super) fn lent(&self) -> Lent<'_> {
        Lent { own: &self.own, all: self.all.as_ref().map(|all| &all[..]) }
    }
}

impl LeasedKey {
    /// The phase once the store has answered an acquire that needed `need` with `granted` tokens.
    pub(super) fn phase_after(&self, now: Instant, need: u64, granted: u64) -> Phase {
        if self.view.rule().is_entitled() {
            // What others spend without the store is set aside, and what this node owes is paid from its own part.
            return Phase::Connected;
        }
        let is_unpaid =
            self.rare.outage.phase().is_unpaid() && !self.forgets_loss(now) && !on(Mutant::SharesNotAwaited);
        let until = self.rare.outage.phase().lends_from().unwrap_or(now + GRACE);
        // A bucket's share fills up while others pay for theirs, and some may lease from the store already. So it goes on, and
        // the store is charged again and again for what it has admitted meanwhile; of windows beside a bucket, too, because what is
        // left of such a share cannot be charged before it is spent.
        if is_unpaid && self.owes(now) && self.view.has_account() && granted >= need && now < until {
            return Phase::Repaying { retry_at: until.min(now + CHARGE_AGAIN), until };
        }
        // The share goes on only if the store has lent all of it, so that no other node is lent it as well.
        if is_unpaid && self.owes(now) && granted >= self.debt(now) + self.share_left(now) {
            return Phase::Repaid { retry_at: until.max(now), until };
        }
        // Other nodes may have spent their shares of this window already. What was admitted since the call was sent
        // is charged next. Where the store has less than this node needs, its share of this window is over; of the next one,
        // too, others may go by theirs.
        // Who need not wait for that may still have to wait until peers have told the store what it has lost, and no longer: others lease
        // then, and this node would go on with its share beside them.
        let charged = Some(until).filter(|until| self.awaits_others(now) && now < *until);
        if let Some(until) = charged.or(self.rare.outage.repaired_by(now)).filter(|_| is_unpaid) {
            let is_owed = self.owes(now) && granted >= need;
            return Phase::Repaying { retry_at: if is_owed { now } else { until }, until };
        }
        Phase::Connected
    }

    /// Records that the store has answered a call that asks for no tokens. If that was sent after the store was lost,
    /// the store is back, and the time begins in which all nodes charge what they admitted. If only an acquire began
    /// that time, a key that is rarely checked would go on with its share long after the outage. Where there is no share,
    /// nobody has anything to charge; nor does a loss of long ago begin again with that, of which an acquire would not know.
    pub(super) fn note_back(&mut self, now: Instant, sent: Instant) {
        let has_none = !self.view.rule().has_share() && self.rare.outage.budget().is_none();
        let is_old = !self.is_away(now) && !self.owes(now);
        if self.view.rule().is_entitled() || has_none || is_old {
            return self.rare.outage.find(sent);
        }
        self.rare.outage.repay_until(now, sent, now + GRACE);
    }

    /// Whether the key's store server is away, as far as is known. Old knowledge is no reason to do without the
    /// store.
    pub(super) fn is_away(&self, now: Instant) -> bool {
        self.rare.outage.phase().retry_at().is_some_and(|retry_at| now < retry_at + STALE)
    }

    /// Nobody has asked for a key of buckets since the store was lost, for so long that the loss is old knowledge. A bucket's
    /// share is open until it has filled up, which may take an hour: its next check is not decided by that, but charged
    /// together with what is owed. That goes for a bucket beside windows, too, once all windows are over in which the share has admitted
    /// something.
    pub(super) fn forgets_loss(&self, now: Instant) -> bool {
        let (rule, clock) = (self.view.rule(), self.view.clock().latest(now));
        let is_open = || self.rare.outage.budget().is_some_and(|budget| budget.has_open_window(rule, clock));
        !self.is_away(now) && self.view.has_account() && !is_open()
    }

    /// Decides while the key's store server is away.
    pub(super) fn decide_offline(&mut self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.view.rule().on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Resolution::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Entitled if self.view.rule().is_entitled_from_first() => self.decide_by_span(now, cost),
            OnStoreLoss::Share | OnStoreLoss::Entitled => {
                let mut budget = self.rare.outage.take_budget().unwrap_or_else(|| self.late_budget(now));
                let decision = self.ask_share(&mut budget, now, cost, fleet);
                self.rare.outage.put_budget(budget);
                decision
            }
        }
    }

    /// The decision that [`LeasedKey::decide_offline`] would make, without changing anything.
    pub(super) fn peek_offline(&self, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        match self.view.rule().on_store_loss {
            OnStoreLoss::Allow => self.answer(now, cost, Resolution::allow(Source::Policy)),
            OnStoreLoss::Deny => {
                self.answer(now, cost, Resolution::deny(Reason::Store, Source::Policy).after(Micros::from_secs(1)))
            }
            OnStoreLoss::Entitled if self.view.rule().is_entitled_from_first() => self.peek_by_span(now, cost),
            OnStoreLoss::Share | OnStoreLoss::Entitled => {
                let budget = self.rare.outage.budget().cloned().map(Box::new);
                let mut budget = budget.unwrap_or_else(|| self.late_budget(now));
                self.ask_share(&mut budget, now, cost, fleet)
            }
        }
    }

    /// The budget of a key that was unknown when its store server was lost.
    pub(super) fn late_budget(&self, now: Instant) -> Box<FallbackBudget> {
        Box::new(FallbackBudget::open_late(self.view.rule(), self.view.clock().latest(now)))
    }

    /// Spends `cost` of the share, or denies.
    fn ask_share(&self, budget: &mut FallbackBudget, now: Instant, cost: u64, fleet: Option<FleetView>) -> Decision {
        let (clock, rule) = (self.view.clock().latest(now), self.view.rule());
        if rule.is_entitled_bucket() {
            budget.empty_until(rule, self.rare.outage.entitlement().fills_from().unwrap_or(clock));
        }
        let (parts, counted) = (self.parts(budget, now, fleet), self.counted(budget, fleet));
        let lent = counted.lent();
        let is_between = self.is_between_windows(now, clock);
        let is_entitled = rule.is_entitled();
        let is_barred = is_between || is_entitled && parts[0] == 0;
        let is_early = self.released(budget, now).is_some_and(|tokens| tokens < cost);
        if !is_barred && !is_early && budget.spend(rule, &parts, clock, cost, &lent) {
            budget.keep_parts(parts);
            let left = budget.left(rule, clock, &lent).min(self.released(budget, now).unwrap_or(u64::MAX));
            return Decision { remaining: left, ..self.answer(now, cost, Resolution::allow(Source::Share)) };
        }
        let wait = if rule.is_entitled_bucket() && parts[0] == 0 {
            None
        } else if rule.is_entitled_sliding() {
            self.wait_for_release(budget, now, cost)
        } else if is_entitled && parts[0] == 0 {
            let next = self.rare.outage.entitlement().next_window(&rule.limits[0], clock);
            next.map(|begins| self.past_doubt(now + begins.since(clock), begins).since(clock))
        } else {
            self.wait_offline(budget, now, cost, &parts, &lent)
        };
        let left = match self.released(budget, now) {
            _ if is_barred => None,
            released => Some(budget.left(rule, clock, &lent).min(released.unwrap_or(u64::MAX))),
        };
        self.deny_by_share(now, cost, wait, left)
    }

    /// The denial of a check for which this node may admit too little, until after `wait`; `None`: for as long as the store is away. It
    /// has `left` tokens, or, if that is `None`, as many as the store is known to have.
    pub(super) fn deny_by_share(&self, now: Instant, cost: u64, wait: Option<Micros>, left: Option<u64>) -> Decision {
        // The store is asked again before long and may be back, so nobody needs to wait for hours.
        let asked = self.rare.outage.phase().retry_at().map_or(Micros::ZERO, |retry_at| retry_at.since(now));
        let is_restoring = self.rare.outage.phase().is_restoring();
        let most = if is_restoring { asked } else { asked.max(Micros::from_secs(1)) };
        let wait = match wait {
            Some(wait) if !is_restoring && wait <= LONG => wait,
            wait => wait.map_or(most, |wait| wait.min(most)),
        };
        let decision =
            self.answer(now, cost, Resolution::deny(Reason::Share, Source::Share).after(wait.max(Micros(1))));
        let left = left.unwrap_or(decision.remaining);
        Decision { remaining: left.min(cost.saturating_sub(1)), ..decision }
    }

    /// What the store had lent before it was lost. The counts of all nodes can be relied on if the store said shortly
    /// before that this node alone uses the key, and no fleet knows otherwise.
    pub(super) fn counted(&self, budget: &FallbackBudget, fleet: Option<FleetView>) -> Counted {
        let is_fresh = self.view.answered().is_some_and(|at| budget.since() <= self.view.clock().latest(at) + FRESH);
        let is_restoring = self.rare.outage.phase().is_restoring();
        let is_alone = self.view.nodes() == 1 && fleet.is_none() && !budget.is_late() && !is_restoring;
        let all = (is_fresh && is_alone).then(|| self.view.counters());
        Counted { own: self.view.lent_of_each(), all }
    }

    /// The wait after which the share of every limit has `cost`, and no window is in doubt; `None` when no share ever
    /// has as much.
    fn wait_offline(
        &self,
        budget: &FallbackBudget,
        now: Instant,
        cost: u64,
        parts: &[u64],
        lent: &Lent<'_>,
    ) -> Option<Micros> {
        let clock = self.view.clock().latest(now);
        let mut then = clock;
        for _ in 0..ROUNDS {
            let ready = budget.ready(self.view.rule(), parts, [clock, then], cost, lent)?;
            let surely = self.past_doubt(now + ready.since(clock), ready);
            if surely == then {
                break;
            }
            then = surely;
        }
        Some(then.since(clock))
    }

    /// This node's part of each limit, in millionths. In a fleet it is fixed when the share is first spent. Without a
    /// fleet it is an equal part for each node that the store last counted, and does not grow, because a store that
    /// is back counts anew.
    pub(super) fn parts(&self, budget: &FallbackBudget, now: Instant, fleet: Option<FleetView>) -> [u64; MAX_LIMITS] {
        let (kept, lost) = (budget.parts(), budget.since());
        let mut parts = [0; MAX_LIMITS];
        if self.view.rule().is_entitled() {
            parts[0] = self.entitled_part(now);
            return parts;
        }
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

    /// What is set aside for this node of the window that is open, in millionths of the limit.
    fn entitled_part(&self, now: Instant) -> u64 {
        let limit = &self.view.rule().limits[0];
        if self.view.rule().is_entitled_bucket() {
            // A clock that is fast would fill it too soon.
            let part = self.rare.outage.entitlement().believed(self.view.clock().at_most(now));
            return part - part.div_ceil(CLOCKS_PART);
        }
        part_of_window(limit, self.rare.outage.entitlement().of_window(limit, self.view.clock().latest(now)))
    }

    /// Of what is set aside for this node of a sliding window, what it may still admit at `now`: by the part of the window that has surely
    /// passed by the store's clock. `None` for other limits, of which it may admit all at once.
    pub(super) fn released(&self, budget: &FallbackBudget, now: Instant) -> Option<u64> {
        let (rule, clock) = (self.view.rule(), self.view.clock());
        if !rule.is_entitled_sliding() || on(Mutant::SlidingPartAtOnce) {
            return None;
        }
        let (limit, latest) = (&rule.limits[0], clock.latest(now));
        let tokens = self.rare.outage.entitlement().of_window(limit, latest);
        let released = released(limit, tokens, window_end(limit, latest), clock.surely(now));
        Some(released.saturating_sub(budget.admitted(rule, latest)))
    }

    /// The wait until so much more of it is released: in this window, or in the next of which it may spend.
    fn wait_for_release(&self, budget: &FallbackBudget, now: Instant, cost: u64) -> Option<Micros> {
        let (rule, clock, entitlement) = (self.view.rule(), self.view.clock(), self.rare.outage.entitlement());
        let (limit, latest) = (&rule.limits[0], clock.latest(now));
        let (surely, drift) = (clock.surely(now), self.drift(now));
        // The store's clock is known to within a round trip. Tokens are released by the earliest that it can show, so a wait is reckoned from
        // that, and is longer by as much as two clocks drift apart meanwhile. The last token of a window would come as the window ends, when
        // the next one may have begun: a wait that reaches so far is none.
        let wait = |at: Timestamp, wanted: u64| {
            let end = window_end(limit, at);
            let wait = released_at(limit, entitlement.of_window(limit, at), end, wanted)?.since(surely);
            let wait = wait + Micros(wait.0.div_ceil(DRIFT_PART) + 1);
            (latest + wait + drift < end).then_some(wait)
        };
        let next = || wait(entitlement.next_window(limit, latest)?, cost);
        let wait = wait(latest, budget.admitted(rule, latest).saturating_add(cost)).or_else(next)?;
        Some(self.past_doubt(now + wait, latest + wait).since(latest))
    }

    /// Whether two windows may be open, because the store's clock is known only to within a round trip. Then neither
    /// share is spent, since it could be spent twice in one of them. The doubt is at most a quarter of each window,
    /// plus 2 ms for the drift.
    pub(super) fn is_between_windows(&self, now: Instant, latest: Timestamp) -> bool {
        let drift = self.drift(now);
        self.windowed().any(|period| {
            let window = |at: Timestamp| at.0 / period.0;
            window(latest - self.doubt_of(period, drift)) != window(latest + drift)
        })
    }

    /// The first time from `latest` on that is surely within one window of each limit, even for a client that comes a
    /// little late.
    pub(super) fn past_doubt(&self, now: Instant, latest: Timestamp) -> Timestamp {
        let drift = self.drift(now);
        let surely = self.windowed().map(|period| {
            let late = Micros(LATE.0.min(period.0 / LATE_PART));
            let begun = Timestamp((latest + drift + late).0 / period.0 * period.0);
            latest.max(begun + self.doubt_of(period, drift) + drift + Micros(1))
        });
        surely.max().unwrap_or(latest)
    }

    /// Periods of the limits whose shares go by windows.
    fn windowed(&self) -> impl Iterator<Item = Micros> {
        self.view.rule().limits.iter().filter(|limit| limit.algorithm != Algorithm::Gcra).map(|limit| limit.period)
    }

    /// How long after a window of this period has begun the one before may still be open.
    fn doubt_of(&self, period: Micros, drift: Micros) -> Micros {
        let trip = self.view.clock().trip();
        // No window of which tokens are set aside may be taken for another, however slow the store.
        let trip = if self.view.rule().is_entitled() { trip } else { Micros(trip.0.min(period.0 / DOUBT_PART)) };
        trip + drift
    }

    /// How far the store's clock may have drifted from this node's since the last answer.
    pub(super) fn drift(&self, now: Instant) -> Micros {
        let most = if self.view.rule().is_entitled() { u64::MAX } else { MOST_DRIFT };
        self.view.answered().map_or(Micros::ZERO, |at| Micros((now.since(at).0 / DRIFT_PART).min(most)))
    }

    /// The answer to a check for which the store has no time. The first check of a bucket passes.
    pub(super) fn answer_unasked(&mut self, now: Instant, cost: u64, cx: &Context) -> Decision {
        let first = self.let_first_pass(now, cost, cx.settings.timeout, cx.fleet);
        first.unwrap_or_else(|| self.turn_away(now, cost, cx.queue()))
    }

    /// The store's first answer about a bucket is late. So that an unused key is not denied for that, its first check
    /// passes on credit, once; the next grant pays for it. The bound of a bucket has room for it: one token, and what
    /// comes during a round trip to the store, which all nodes share. A node that does not know yet how many nodes there are
    /// has no part of that: of a fleet that grows in an outage each newcomer would let a check pass.
    fn let_first_pass(
        &mut self,
        now: Instant,
        cost: u64,
        timeout: Micros,
        fleet: Option<FleetView>,
    ) -> Option<Decision> {
        let is_stranger = fleet.is_some_and(|fleet| !fleet.has_looked) && !on(Mutant::StrangerTakesAll);
        let is_first = self.view.answered().is_none() && self.rare.outage.credit().is_none();
        let all_buckets = self.view.rule().limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra);
        let is_aside = self.view.rule().is_entitled();
        if !is_first || !all_buckets || is_stranger || is_aside || !self.view.rule().has_share() {
            return None;
        }
        let room = |limit: &Limit| gcra::tokens_in(limit, timeout).saturating_add(1).min(limit.burst);
        let smallest = self.view.rule().limits.iter().map(room).min().unwrap_or(0);
        if cost > smallest / u64::from(self.view.nodes().max(1)) {
            return None;
        }
        self.rare.outage.let_pass(now, cost);
        Some(self.answer(now, cost, Resolution::allow(Source::Share)))
    }

    /// The store gave no answer, so from `since` on this key is on its own. See [`Phase::Lost`] for `noticed`.
    pub(super) fn lose_store(&mut self, now: Instant, since: Instant, noticed: Instant) {
        // A call that gets no answer tells from when on the store may have been away: since that call was sent. An answer to another
        // call that came after that, also to one under limits that no longer apply, shows that it was there for longer.
        let since = match self.view.last_answered().filter(|_| on(Mutant::LossDatedEarly)) {
            Some(answered) => answered,
            None => self.or_last_answer(since),
        };
        let since = self.view.clock().latest(since);
        // A share of a bucket fills at this node's part of the rate. The store may have lent tokens before they trickle in. Whatever the
        // rate brings until the last of them has come was lent already, be it spent or not, so the share begins to fill only then.
        let (clock, to_come) = (self.view.clock().latest(now), self.to_come(now));
        let comes = Some(clock + to_come).filter(|_| to_come > Micros::ZERO);
        let came = self.last_came().map(|came| came.min(clock)).filter(|_| !on(Mutant::ComesTwice));
        if !self.is_away(now) && self.view.rule().has_share() {
            self.rare.outage.open_budget(self.view.rule(), clock, since, came.max(comes));
        }
        self.rare.outage.lose(now + ASK_AGAIN, noticed);
    }

    /// The later of a time, and of that at which the store last answered.
    fn or_last_answer(&self, at: Instant) -> Instant {
        self.view.last_answered().map_or(at, |answered| at.max(answered))
    }

    /// Records when the acquire that was lost was sent. A connection may show late that the store is away: other nodes may have known it
    /// since then, and have spent shares of each window that has begun, which they owe.
    pub(super) fn note_unanswered(&mut self, sent: Instant) {
        let sent = self.view.clock().latest(self.or_last_answer(sent));
        self.rare.outage.note_unanswered(Some(sent));
    }

    /// When the last token that this node was lent of a bucket has come or will.
    fn last_came(&self) -> Option<Timestamp> {
        let buckets =
            self.view.rule().limits.iter().enumerate().filter(|(_, limit)| limit.algorithm == Algorithm::Gcra);
        let came = buckets.map(|(index, limit)| self.view.charged_of(index, 0).at - gcra::depth(limit));
        came.max()
    }

    /// Ends the waits of an outage that are over at `now`.
    pub(super) fn end_waits(&mut self, now: Instant) {
        self.rare.outage.end_waits(now, self.view.rule(), self.view.clock().latest(now));
    }

    /// A share was spent in a window that is still open. If the key were forgotten, the share would be spent again.
    pub(super) fn owes(&self, now: Instant) -> bool {
        self.span_debt(now) > 0 || self.rare.outage.owes(self.view.rule(), self.view.clock().latest(now))
    }

    /// The store must still be charged for checks that passed without it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.debt(now) > 0 || self.level(self.view.clock().latest(now)) > 0 || self.rare.outage.credit().is_some()
    }

    /// The store has only just answered, if at all, and other nodes may not have charged it yet for what they
    /// admitted in the present window. The store would lend those tokens again.
    pub(super) fn awaits_others(&self, now: Instant) -> bool {
        if self.view.rule().is_entitled() {
            return false;
        }
        let is_over = self.rare.outage.phase().lends_from().is_some_and(|until| now >= until);
        let clock = self.view.clock().latest(now);
        let found = clock + GRACE + GRACE;
        // A bucket's share fills all the time, so a node would wait for others after each moment in which the store stood still. Where the store
        // has counted this node alone, it need not.
        let is_alone = self.view.is_of_buckets() && self.view.nodes() == 1;
        self.is_away(now)
            && !is_over
            && !is_alone
            && self.rare.outage.budget().is_some_and(|budget| budget.spans(self.view.rule(), clock, found))
    }

    /// If the key were forgotten, it would have more of a share than it has, or would not wait for what its peers
    /// tell the store.
    pub(in crate::core) fn is_indebted(&self, now: Instant) -> bool {
        let is_restoring = matches!(self.rare.outage.phase(), Phase::Restoring { until } if now < until);
        is_restoring
            || self.owes_credit(now)
            || self.rare.outage.span_budget().is_some_and(|budget| budget.is_open(now))
            || self
                .rare
                .outage
                .budget()
                .is_some_and(|budget| budget.matters(self.view.rule(), self.view.clock().latest(now)))
    }

    /// A check passed on credit, which nothing has paid for, and its tokens have not trickled in again: were it forgotten, the
    /// key's next check would pass on credit, too.
    fn owes_credit(&self, now: Instant) -> bool {
        let is_owed = |limit: &Limit, credit: Credit| now < credit.at + gcra::cost(limit, credit.tokens);
        self.rare
            .outage
            .credit()
            .is_some_and(|credit| self.view.rule().limits.iter().any(|limit| is_owed(limit, credit)))
    }

    /// This window's share was asked for, or `spent` of, for the first time by the check just decided.
    pub(super) fn begins_share(&mut self, now: Instant, spent: bool) -> bool {
        self.rare.outage.begins_share(self.view.rule(), self.view.clock().latest(now), spent)
    }

    /// What is left of the share, where leases count against it, too.
    pub(super) fn share_left(&self, now: Instant) -> u64 {
        if self.view.has_account() {
            return 0;
        }
        let clock = self.view.clock().latest(now);
        let counted = Counted { own: self.view.lent_of_each(), all: None };
        self.rare.outage.budget().map_or(0, |budget| budget.left(self.view.rule(), clock, &counted.lent()))
    }

    /// What the share admitted, and the store was not charged for. Of an entitlement to a bucket a claim says what is owed.
    pub(super) fn debt(&self, now: Instant) -> u64 {
        if self.view.rule().is_entitled_bucket() {
            return 0;
        }
        // A key whose rule has changed in an outage may owe something of either kind.
        let debt = self.rare.outage.debt(self.view.rule(), self.view.clock().latest(now));
        debt.saturating_add(self.span_debt(now))
    }

    /// Whether a bucket's share goes on beside leases of other nodes, and the store was charged for all that it has admitted.
    pub(super) fn has_charged_all(&self, now: Instant) -> bool {
        let goes_on = matches!(self.rare.outage.phase(), Phase::Repaying { until, .. } if now < until);
        goes_on && self.view.has_account() && self.owes(now) && self.debt(now) == 0
    }

    /// The store was charged so much of the debt.
    pub(super) fn pay(&mut self, now: Instant, tokens: u64, by: Payer) {
        let tokens = self.rare.outage.pay_span(tokens);
        self.rare.outage.pay(self.view.rule(), self.view.clock().latest(now), tokens, by);
    }
}

/// So many tokens of a window in millionths of the limit: as much as gives just so many, or, of more than a million, not more.
pub(super) fn part_of_window(limit: &Limit, tokens: u64) -> u64 {
    let millionths = u128::from(tokens) * u128::from(WHOLE);
    let count = u128::from(limit.count);
    let part = if limit.count <= WHOLE { millionths.div_ceil(count) } else { millionths / count };
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// The store answers, but has lost the key's data (`docs/concepts/fleet.md`, "A store that lost its data").
///
/// The next acquire of each node tells the store what it had lent that node, and is granted nothing. The first node
/// to notice tells its peers, which then ask at once. Until they have, the store would lend tokens again that they
/// hold. For that time, a node only spends what it holds, and asks for nothing.
impl LeasedKey {
    /// The store has lost this window's data. Peers know better, and must hear of it.
    pub(super) fn believe_fleet(&mut self) {
        self.rare.peers.note_lost(self.view.windows());
    }

    /// Voids what was lent of windows to come, because the store will lend it again. A window may have begun by the
    /// store's clock although it has not surely begun by this node's. If the call that noticed the loss told the
    /// store what was lent of it, the store counts that again, and it stays.
    pub(super) fn void_ahead(&mut self, now: Instant, call: &Call, grant: &Grant) -> u64 {
        self.view.forget_ahead_of(&grant.counters);
        self.forget_ahead();
        let named = if let Op::Acquire(order) = call.op { order.known[0].at.stored() } else { None };
        let restored = named.map(StoredTime::time).filter(|named| *named == grant.counters[0].at);
        self.holdings.void_ahead(now, restored)
    }

    /// This node has told the store what it was lent, and its peers must do so. A wait for others to charge their
    /// shares may be nearly over; it is extended by as long as they need.
    pub(super) fn wait_for_peers(&mut self, now: Instant, fleet: Option<FleetView>) {
        let Some(lasts) = self.repair_lasts(now, fleet) else { return };
        if self.rare.outage.phase().is_outage() {
            return self.rare.outage.wait_until(now + lasts);
        }
        self.lose_store(now, now, now);
        let since = self.view.clock().latest(now);
        self.rare.outage.reopen_budget(since);
        self.rare.outage.restore_until(now + lasts);
    }

    /// How long peers need to tell the store what it has lost; `None` when there are none, or nothing is to be waited
    /// for.
    fn repair_lasts(&self, now: Instant, fleet: Option<FleetView>) -> Option<Micros> {
        // A key that nobody used in this window has lost nothing.
        let latest = self.view.clock().latest(now);
        let lost = self.view.limits().enumerate().filter(|(index, (limit, counter))| {
            let is_used = || self.rare.peers.window(*index, counter.at).is_some_and(|window| window.peers() > 0);
            has_windows(limit) && (self.view.lent(*index) > 0 || is_used())
        });
        // Peers must report on the last window that is open, even if a shorter one ends soon.
        let left = lost.map(|(_, (limit, counter))| {
            let end = if limit.algorithm == Algorithm::Sliding { counter.at + limit.period } else { counter.at };
            let left = end.since(latest);
            if left > Micros::ZERO { left } else { limit.period }
        });
        let left = left.max().filter(|_| self.rare.peers.is_kept());
        let (fleet, left) = (fleet.filter(|fleet| fleet.live > 1)?, left?);
        let is_awaited = self.view.rule().on_store_loss != OnStoreLoss::Allow && !on(Mutant::LendsBeforeRepair);
        is_awaited.then(|| left.min(Micros(fleet.round.0.saturating_mul(ROUNDS_OF_GOSSIP))))
    }

    /// A peer reports that the store has lost this key, and this node has not told the store yet what it was lent. It
    /// asks the store at most once a second, whatever peers report. If the store is being asked, it is asked once
    /// more.
    pub(super) fn is_recalled(&mut self, now: Instant, usage: &Usage) -> bool {
        let is_news = usage.epoch != 0 && self.view.epoch() != 0 && usage.epoch != self.view.epoch();
        let has_any = self.view.is_lent_any();
        let is_put_off = !self.rare.peers.may_be_recalled(now) || self.rare.outage.phase().waits(now);
        if !is_news || !has_any || is_put_off {
            return false;
        }
        let is_asked = self.rare.calls.is_acquiring();
        self.rare.peers.note_recall(now + DOUBTED, is_asked.then_some(usage.epoch));
        !is_asked
    }
}
