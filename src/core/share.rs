//! What a node may admit on its own while its store server is away.
//!
//! The share of a window is fixed once, when the node first spends of it in that window. In the window in which the
//! loss began (or in the first slice of at most a minute), the node only spends what it held. Long windows release
//! their share slice by slice, unless the store said just before it was lost that no other node uses the key; then
//! the node counts on from there. Where the store has set tokens of each window aside for this node, they are there from the
//! window's beginning. What was admitted by the share is owed, and is charged to the store as soon as the store is back.

use super::ask::Payer;
use super::call::Counter;
use super::gcra;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::rule::Rule;
use super::time::{Micros, StoredTime, Timestamp};

/// The part of a limit, in millionths, that all nodes together may admit while the store is away. More would leave less room for what nodes
/// without the store cannot know: how far their clocks have drifted, and who has just come. With less, more is denied in an outage than need be.
pub(super) const SAFE_PPM: u64 = 950_000;

/// All of a limit, in the millionths in which parts of it are counted.
pub(super) const WHOLE: u64 = 1_000_000;

/// The share of a sliding window is released in so many slices. In one it would be free as a whole while the window before still weighs;
/// in more, a slice of a small limit would be less than a token.
const SLIDING_SLICES: u64 = 4;

/// Longest slice of a window's share. Nothing is released in the slice of the loss, so with a longer one more would be denied after that.
const SLICE: u64 = 60_000_000;

/// A share begins with a call to the store in each window; windows shorter than this, in microseconds, count as if they were so long.
/// With less, short windows would ask a store that is away more than twenty times a second for each key.
const SHORTEST_BEGINNING: u64 = 50_000;

/// Iterations after which the waits of all limits must agree; each limit moves the others once or twice at most.
const ROUNDS: usize = 8;

/// What the store lent before it was lost, as far as this node knows.
#[derive(Clone, Copy, Debug)]
pub struct Lent<'a> {
    /// To this node in the present window of each limit. Leases and share together stay within the share.
    pub own: &'a [u64],
    /// The counter of each limit, rolled to now, if no other node uses the key.
    pub all: Option<&'a [Counter]>,
}

impl Lent<'_> {
    /// What was lent of one limit, to this node and to all.
    fn of(&self, index: usize) -> (u64, Option<Counter>) {
        (self.own.get(index).copied().unwrap_or(0), self.all.and_then(|all| all.get(index).copied()))
    }
}

/// The share of one key while its store server is away.
#[derive(Clone, Debug)]
pub struct FallbackBudget {
    since: Timestamp,
    /// When the first call left that the lost store never answered, or `since` where that is earlier. Other nodes may have lost the
    /// store as early, and have gone by their shares since: whether they may owe anything is judged by this time; `None` where it cannot
    /// be known. This node's own share is released by `since`.
    unanswered: Option<Timestamp>,
    /// When the store was last lost. `None`: the next loss counts as another one, however soon it comes.
    lost: Option<Timestamp>,
    /// What was admitted before `since` is forgotten, because this budget was opened late. Were it dropped, and another opened for the same
    /// loss, that other would begin earlier, and release more.
    late: bool,
    /// The window in which a check was first decided by the share, and the one in which one was first admitted.
    begun: [u64; 2],
    /// This node's part of each limit, in millionths, which is fixed for as long as the loss lasts.
    parts: Option<[u64; MAX_LIMITS]>,
    limits: Box<[Budget]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// For windows: the number of the window. It is fixed together with `ppm` when the share is first spent.
    window: u64,
    ppm: u64,
    spent: u64,
    paid: u64,
    /// For windows: what was admitted in the window before and is not paid.
    before: u64,
    /// For sliding windows: what this node was lent in this window and paid for the one before.
    carried: u64,
    /// Of `paid`, what peers had lent.
    by_peers: u64,
    /// For GCRA: the theoretical arrival time of the share, once it is used.
    tat: Option<StoredTime>,
}

/// This node's part of a limit, in millionths, when `nodes` use the key, and nothing more is known of how they use it.
#[must_use]
pub fn share_ppm(nodes: u32) -> u64 {
    SAFE_PPM / u64::from(if on(Mutant::ShareOfOne) { 1 } else { nodes.max(1) })
}

impl FallbackBudget {
    /// The budget of a key whose store server has been away since `since`.
    #[must_use]
    pub fn open(rule: &Rule, since: Timestamp) -> Self {
        let limits = vec![Budget::default(); rule.limits.len()].into();
        Self { since, unanswered: Some(since), lost: Some(since), late: false, begun: [0; 2], parts: None, limits }
    }

    /// The budget of a key whose store server has been away for longer. What was spent before `since` is forgotten, so the budget begins anew.
    #[must_use]
    pub fn open_late(rule: &Rule, since: Timestamp) -> Self {
        Self { late: true, ..Self::open(rule, since) }
    }

    /// The budget under other limits, from `now` on. What was admitted in windows that are still open counts there,
    /// too, and is still owed; a bucket begins empty.
    #[must_use]
    pub fn under(&self, before: &Rule, rule: &Rule, now: Timestamp) -> Self {
        let owed = self.open_debt(before, now);
        let mut budget = Self::open_late(rule, now);
        for (index, (limit, of_limit)) in rule.limits.iter().zip(&mut budget.limits).enumerate() {
            let same = |other: &&Limit| other.algorithm == limit.algorithm && other.period == limit.period;
            *of_limit = match (limit.algorithm, before.limits.get(index).filter(same)) {
                // What is paid already was admitted in that window all the same, and its share has so much less.
                (algorithm, Some(_)) if algorithm != Algorithm::Gcra => self.limits[index],
                _ if owed == 0 => Budget::default(),
                (Algorithm::Gcra, _) => {
                    Budget { spent: owed, tat: (now + gcra::depth(limit)).stored(), ..Budget::default() }
                }
                _ => Budget { window: now.0 / limit.period.0, ppm: SAFE_PPM, spent: owed, ..Budget::default() },
            };
        }
        budget
    }

    /// When this loss of the store began.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// Whether earlier spending is forgotten.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// This node's part of each limit, in millionths, once the share was spent from.
    #[must_use]
    pub fn parts(&self) -> Option<[u64; MAX_LIMITS]> {
        self.parts
    }

    /// Fixes this node's part of each limit for as long as the loss lasts.
    pub fn keep_parts(&mut self, parts: [u64; MAX_LIMITS]) {
        self.parts = Some(parts);
    }

    /// Spends `cost` of the share of every limit, if all have so much. Returns whether it did. `ppm` is this node's
    /// part of each limit, in millionths.
    pub fn spend(&mut self, rule: &Rule, ppm: &[u64], now: Timestamp, cost: u64, lent: &Lent<'_>) -> bool {
        let (mut fits, since) = (true, self.released_since(rule));
        for (index, ((limit, of_limit), ppm)) in limits_of(rule).zip(&mut self.limits).zip(ppm).enumerate() {
            of_limit.enter(&limit, *ppm, now);
            fits &= of_limit.fits(&limit, since, now, cost, lent.of(index));
        }
        for (limit, of_limit) in limits_of(rule).zip(&mut self.limits).filter(|_| fits) {
            of_limit.debit(&limit, self.since, now, cost);
        }
        fits
    }

    /// The first time from `from` on at which the share of every limit has `cost`, if nobody spends; `None` when one
    /// of them never has so much. `lent` is known as of `now`.
    #[must_use]
    pub fn ready(
        &self,
        rule: &Rule,
        ppm: &[u64],
        [now, from]: [Timestamp; 2],
        cost: u64,
        lent: &Lent<'_>,
    ) -> Option<Timestamp> {
        let (mut ready, since) = (from, self.released_since(rule));
        for _ in 0..ROUNDS {
            let mut latest = ready;
            for (index, ((limit, of_limit), ppm)) in rule.limits.iter().zip(&self.limits).zip(ppm).enumerate() {
                let mut of_limit = *of_limit;
                of_limit.enter(limit, *ppm, now);
                latest = latest.max(of_limit.ready(limit, since, ready, cost, lent.of(index))?);
            }
            if latest == ready {
                break;
            }
            ready = latest;
        }
        Some(ready)
    }

    /// What was admitted here and is not paid yet: in windows that are still open, and in the sliding window before as far as it still weighs.
    #[must_use]
    pub fn debt(&self, rule: &Rule, now: Timestamp) -> u64 {
        let debts = limits_of(rule).zip(&self.limits);
        let debts =
            debts.map(|(limit, of_limit)| of_limit.debt(&limit, now).saturating_add(of_limit.carried(&limit, now)));
        debts.max().filter(|_| !on(Mutant::DebtNotCharged)).unwrap_or(0)
    }

    /// The part of it that was admitted in open windows.
    fn open_debt(&self, rule: &Rule, now: Timestamp) -> u64 {
        rule.limits.iter().zip(&self.limits).map(|(limit, of_limit)| of_limit.debt(limit, now)).max().unwrap_or(0)
    }

    /// Tokens that the share has left at `now`.
    #[must_use]
    pub fn left(&self, rule: &Rule, now: Timestamp, lent: &Lent<'_>) -> u64 {
        let budgets = limits_of(rule).zip(&self.limits).enumerate();
        let since = self.released_since(rule);
        let left = budgets.map(|(index, (limit, of_limit))| of_limit.left(&limit, since, now, lent.of(index)));
        left.min().unwrap_or(0)
    }

    /// Since when shares are released. What the store has set aside of a window nobody else is lent, whenever the store was lost: so it is
    /// there from the beginning of each.
    fn released_since(&self, rule: &Rule) -> Timestamp {
        let is_aside = rule.is_entitled() && !rule.is_entitled_bucket();
        if is_aside { Timestamp::default() } else { self.since }
    }

    /// A bucket's share is empty at that time, and fills from then on.
    pub fn empty_until(&mut self, rule: &Rule, from: Timestamp) {
        for (limit, of_limit) in rule.limits.iter().zip(&mut self.limits) {
            if limit.algorithm == Algorithm::Gcra {
                of_limit.tat = of_limit.tat.max((from + gcra::depth(limit)).stored());
            }
        }
    }

    /// Of what a bucket's share has admitted, what the bucket still remembers, if it forgets at this node's part of the rate.
    #[must_use]
    pub fn level(&self, rule: &Rule, now: Timestamp) -> u64 {
        let ([limit], [of_limit]) = (&rule.limits[..], &self.limits[..]) else { return 0 };
        let missing = u128::from(of_limit.filling(now).min(gcra::depth(limit)).0) * u128::from(of_limit.ppm);
        let tokens = missing * u128::from(limit.burst);
        let tokens = tokens.div_ceil(u128::from(gcra::depth(limit).0.max(1)) * u128::from(WHOLE));
        u64::try_from(tokens).unwrap_or(u64::MAX).min(of_limit.spent.saturating_sub(of_limit.paid))
    }

    /// What was admitted here in the aligned window of a limit with that number, and is not paid.
    #[must_use]
    pub fn unpaid(&self, index: usize, window: u64) -> u64 {
        let of_limit = &self.limits[index];
        if of_limit.window == window { of_limit.spent.saturating_sub(of_limit.paid) } else { 0 }
    }

    /// What was admitted here in the window of the first limit that is open then.
    #[must_use]
    pub fn admitted(&self, rule: &Rule, now: Timestamp) -> u64 {
        let of_limit = &self.limits[0];
        if of_limit.window == now.0 / rule.limits[0].period.0 { of_limit.spent } else { 0 }
    }

    /// What this node was lent in the sliding window of a limit with that number and paid for the one before: the store counts it
    /// there, and nobody was admitted with it in that window.
    #[must_use]
    pub fn carried(&self, index: usize, window: u64) -> u64 {
        let of_limit = &self.limits[index];
        if of_limit.window == window { of_limit.carried } else { 0 }
    }

    /// Whether a check is the first in one of the rule's windows, or the first that `spent` of its share.
    pub fn begins(&mut self, rule: &Rule, now: Timestamp, spent: bool) -> bool {
        let shortest = rule.limits.iter().map(|limit| limit.period.0.max(SHORTEST_BEGINNING)).min().unwrap_or(1);
        let window = now.0 / shortest;
        let is_first = self.begun[usize::from(spent)] != window;
        self.begun = if spent { [window; 2] } else { [window, self.begun[1]] };
        is_first
    }

    /// Whether a window is still open in which something was admitted here.
    #[must_use]
    pub fn is_open(&self, rule: &Rule, now: Timestamp) -> bool {
        rule.limits.iter().zip(&self.limits).any(|(limit, of_limit)| match limit.algorithm {
            Algorithm::Gcra => of_limit.filling(now) > Micros::ZERO,
            _ => of_limit.spent > 0 && of_limit.window == now.0 / limit.period.0,
        })
    }

    /// The same, of windows alone; a sliding one is open for as long as it weighs.
    #[must_use]
    pub fn has_open_window(&self, rule: &Rule, now: Timestamp) -> bool {
        rule.limits.iter().zip(&self.limits).any(|(limit, of_limit)| {
            let passed = (now.0 / limit.period.0).saturating_sub(of_limit.window);
            let (weighs, of_before) = if limit.algorithm == Algorithm::Sliding { (1, of_limit.before) } else { (0, 0) };
            let is_open = of_limit.spent > 0 && passed <= weighs || of_before > 0 && passed == 0;
            limit.algorithm != Algorithm::Gcra && is_open
        })
    }

    /// Whether a window is over in which something was admitted here.
    #[must_use]
    pub fn has_turned(&self, rule: &Rule, now: Timestamp) -> bool {
        rule.limits.iter().zip(&self.limits).any(|(limit, of_limit)| {
            limit.algorithm != Algorithm::Gcra && of_limit.spent > 0 && of_limit.window != now.0 / limit.period.0
        })
    }

    /// A call that left then was never answered; `None`: one that left before anything was known of the store.
    pub fn note_unanswered(&mut self, sent: Option<Timestamp>) {
        self.unanswered = self.unanswered.min(sent);
    }

    /// Whether nodes may have admitted something on their shares since the store was lost, and in a window that is still open, or will before they
    /// have found the store, which is at `found` at the latest. A share needs tokens of every limit, so while one of them releases none, nobody
    /// owes anything. Of buckets alone nobody owes anything before all shares together have filled by a token.
    #[must_use]
    pub fn spans(&self, rule: &Rule, now: Timestamp, found: Timestamp) -> bool {
        let part = |limit: &Limit, at: Timestamp| (at.0 / limit.period.0, at.0 % limit.period.0 / slice(limit));
        let has_turned =
            |limit: &Limit, by: Timestamp| self.unanswered.is_none_or(|first| part(limit, by) > part(limit, first));
        // Windows that open with their first request begin anew with the first grant, so nothing is owed of them alone.
        let is_aligned = |limit: &Limit| matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
        let all = Budget { ppm: SAFE_PPM, ..Budget::default() };
        let fills = |limit: &Limit| self.unanswered.is_none_or(|first| first + all.interval(limit, 1) <= found);
        let releases = |limit: &Limit| limit.algorithm == Algorithm::Gcra || has_turned(limit, found);
        let is_owed = match rule.limits.iter().all(|limit| limit.algorithm == Algorithm::Gcra) {
            true => rule.limits.iter().all(fills),
            false => rule.limits.iter().any(|limit| is_aligned(limit) && has_turned(limit, now)),
        };
        is_owed && (rule.limits.iter().all(releases) || on(Mutant::NobodyIsOwed))
    }

    /// Takes back up to `cost` that was admitted here `then` and is not paid. Returns how much. Of limits whose window has ended since
    /// nothing goes back, because the share of the next window never counted it.
    pub fn refund(&mut self, rule: &Rule, [then, now]: [Timestamp; 2], cost: u64) -> u64 {
        let is_same = |limit: &Limit, of_limit: &Budget| {
            limit.algorithm == Algorithm::Gcra
                || of_limit.window == then.0 / limit.period.0
                || on(Mutant::RollbackInAnyWindow)
        };
        let counts = |(limit, of_limit): &(&Limit, &mut Budget)| is_same(limit, of_limit);
        let debts = rule.limits.iter().zip(&mut self.limits).filter(counts);
        let back = cost.min(debts.map(|(limit, of_limit)| of_limit.debt(limit, now)).max().unwrap_or(0));
        for (limit, of_limit) in rule.limits.iter().zip(&mut self.limits).filter(counts) {
            let part = back.min(of_limit.spent.saturating_sub(of_limit.paid));
            of_limit.spent -= part;
            if limit.algorithm == Algorithm::Gcra && part > 0 {
                let tat = StoredTime::number(of_limit.tat).saturating_sub(of_limit.interval(limit, part).0);
                of_limit.tat = StoredTime::read(tat.max(1));
            }
        }
        back
    }

    /// Whether forgetting this would allow spending a budget again.
    #[must_use]
    pub fn matters(&self, rule: &Rule, now: Timestamp) -> bool {
        let filling = rule.limits.iter().any(|limit| match limit.algorithm {
            Algorithm::Gcra => self.since + gcra::depth(limit) > now,
            _ => self.since.0 / limit.period.0 == now.0 / limit.period.0,
        });
        self.late && filling || self.is_open(rule, now) || self.debt(rule, now) > 0
    }

    /// Ends the share of the windows in which something was admitted. It begins anew with the next ones.
    pub fn end_windows(&mut self) {
        for of_limit in &mut self.limits {
            of_limit.ppm = 0;
        }
    }

    /// Records that `tokens` of the debt were paid, so that the store has been charged for them.
    pub fn pay(&mut self, rule: &Rule, now: Timestamp, tokens: u64, by: Payer) {
        for (limit, of_limit) in limits_of(rule).zip(&mut self.limits) {
            of_limit.pay(&limit, now, tokens, by);
        }
    }

    /// Records that the store was charged up to `tokens` of what was admitted in the window of the first limit that was open at `then`, even
    /// if it is over now. Returns how much.
    pub fn pay_in_window(&mut self, rule: &Rule, then: Timestamp, tokens: u64) -> u64 {
        let (of_limit, window) = (&mut self.limits[0], then.0 / rule.limits[0].period.0);
        if window == of_limit.window {
            let paid = tokens.min(of_limit.spent.saturating_sub(of_limit.paid));
            of_limit.paid += paid;
            return paid;
        }
        let paid = if window + 1 == of_limit.window { tokens.min(of_limit.before) } else { 0 };
        of_limit.before -= paid;
        paid
    }

    /// The store's clock is now known, to within `doubt`: what was recorded by the estimate `guess` of it is moved to `known`. What a window
    /// admitted that was over by the estimate is moved, too, where the store's surely goes on, or it would not be paid for.
    pub fn rebase(&mut self, rule: &Rule, [guess, known]: [Timestamp; 2], doubt: Micros) {
        let shift = |at: Timestamp| (at + known.since(guess)) - guess.since(known);
        (self.since, self.lost, self.begun) = (shift(self.since), self.lost.map(shift), [0; 2]);
        self.unanswered = self.unanswered.map(shift);
        for (limit, of_limit) in rule.limits.iter().zip(&mut self.limits) {
            of_limit.tat = of_limit.tat.and_then(|tat| shift(tat.time()).stored());
            let [guessed, window] = [guess, known].map(|now| now.0 / limit.period.0);
            let begun = shift(Timestamp(guessed * limit.period.0));
            let is_sure = known.since(guess).max(guess.since(known)) > doubt;
            let joins = is_sure && begun.0 / limit.period.0 == window && begun.0 % limit.period.0 > 0;
            if joins && of_limit.window == guessed {
                (of_limit.spent, of_limit.before) = (of_limit.spent + of_limit.before, 0);
            }
            if of_limit.window == guessed || joins && of_limit.window + 1 == guessed {
                of_limit.window = window;
            }
        }
    }

    /// The store has answered, and was lost again at `since`. Within one period this continues the same loss. Budgets
    /// of open windows stay as they are in any case. A bucket's share has nothing of what the store has lent meanwhile, the last of
    /// which has come at `came`: it fills up from then on, and from the beginning of another loss.
    pub fn reopen(&mut self, rule: &Rule, now: Timestamp, since: Timestamp, came: Option<Timestamp>) {
        let period = rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default();
        let since = came.map_or(since, |came| since.max(came));
        let goes_on = |lost: Timestamp| since.since(lost) <= period.max(Micros::from_secs(1));
        let is_another = !self.lost.is_some_and(goes_on);
        if is_another {
            self.begin_anew(since);
        }
        if !rule.is_entitled() {
            self.fill_from(rule, now, if is_another { Some(since) } else { came });
        }
        self.lost = Some(since);
    }

    /// Buckets' shares are empty at `from`, or later. What they owe `now` they still owe.
    fn fill_from(&mut self, rule: &Rule, now: Timestamp, from: Option<Timestamp>) {
        let limits = rule.limits.iter().zip(&mut self.limits);
        for (limit, of_limit) in limits.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra) {
            if of_limit.tat.is_some() {
                (of_limit.spent, of_limit.paid) = (of_limit.debt(limit, now), 0);
                of_limit.tat = of_limit.tat.max(from.and_then(|from| (from + gcra::depth(limit)).stored()));
            } else if let Some(from) = from {
                self.since = self.since.max(from);
            }
        }
    }

    /// Another loss began at `since`, however short a time after the last one, because the store has lent meanwhile.
    /// The next one will be another one, too.
    pub fn begin_anew(&mut self, since: Timestamp) {
        (self.since, self.unanswered, self.lost) = (since, Some(since), None);
        (self.late, self.parts) = (false, None);
    }
}

impl Budget {
    fn enter(&mut self, limit: &Limit, ppm: u64, now: Timestamp) {
        if limit.algorithm == Algorithm::Gcra {
            // The part shrinks as soon as more nodes are counted. Once it was spent from, it grows only with the next loss: a
            // node that did not know its fleet yet had none.
            self.ppm = if self.spent == 0 { ppm.max(1) } else { self.ppm.min(ppm.max(1)) };
            return;
        }
        let window = now.0 / limit.period.0;
        if self.spent == 0 || window != self.window || on(Mutant::ShareRefilledPerCheck) {
            *self = Self { ppm: ppm.max(1), ..self.turned(window) };
        }
        // A store that is back may have counted more nodes than were known.
        self.ppm = self.ppm.min(ppm.max(1));
    }

    /// Whether `cost` can be spent now.
    fn fits(&self, limit: &Limit, since: Timestamp, now: Timestamp, cost: u64, lent: (u64, Option<Counter>)) -> bool {
        match limit.algorithm {
            Algorithm::Gcra => {
                self.arrival(limit, since, now) + self.interval(limit, cost) <= now + self.depth(limit, cost)
            }
            _ => self.left(limit, since, now, lent) >= cost,
        }
    }

    /// The first time from `from` on at which `cost` fits; `None` when the share never has so much, so that the store must come back first.
    fn ready(
        &self,
        limit: &Limit,
        since: Timestamp,
        from: Timestamp,
        cost: u64,
        (own, all): (u64, Option<Counter>),
    ) -> Option<Timestamp> {
        if limit.algorithm == Algorithm::Gcra {
            let (arrival, interval) = (self.arrival(limit, since, from), self.interval(limit, cost));
            let depth = self.depth(limit, cost);
            return (interval <= depth).then(|| (arrival + interval - depth).max(from));
        }
        if let Some(counter) = self.counted(limit, all) {
            let reserve = self.reserve(limit);
            return counter.rolled(limit, from).wait(limit, from, cost + reserve).map(|wait| from + wait);
        }
        let (start, taken) = match from.0 / limit.period.0 {
            window if window == self.window => {
                let begun = self.allowance(limit, self.slice_of_loss(limit, since));
                (window * limit.period.0, begun + self.spent + self.leased(own))
            }
            window => (window * limit.period.0, 0),
        };
        // If this window does not release so much, the next one does.
        let (start, slices) = match self.slices(limit, taken.saturating_add(cost)) {
            Some(slices) => (start, slices),
            None => (start + limit.period.0, self.slices(limit, cost)?),
        };
        Some(Timestamp(start + (slices - 1) * slice(limit)).max(from))
    }

    fn left(&self, limit: &Limit, since: Timestamp, now: Timestamp, (own, all): (u64, Option<Counter>)) -> u64 {
        if limit.algorithm == Algorithm::Gcra {
            let room = (now + gcra::depth(limit)).since(self.arrival(limit, since, now));
            let part = u128::from(room.0) * u128::from(self.ppm) / u128::from(WHOLE);
            return gcra::tokens_in(limit, Micros(part as u64)); // not more than `room`
        }
        if let Some(counter) = self.counted(limit, all) {
            return counter.rolled(limit, now).left(limit, now).saturating_sub(self.reserve(limit));
        }
        let begin = self.slice_of_loss(limit, since);
        let open = self.slice_at(limit, now).max(begin);
        (self.allowance(limit, open) - self.allowance(limit, begin)).saturating_sub(self.spent + self.leased(own))
    }

    /// What all nodes were lent of a long window, plus what was admitted here, if no other node uses the key.
    fn counted(&self, limit: &Limit, all: Option<Counter>) -> Option<Counter> {
        let mut counter = all.filter(|_| is_counted(limit))?;
        let end = if limit.algorithm == Algorithm::Fixed { limit.period } else { Micros::ZERO };
        let (spent, before) = self.unpaid((counter.at - end).0 / limit.period.0);
        counter.used = counter.used.saturating_add(spent);
        if limit.algorithm == Algorithm::Sliding {
            counter.prev = counter.prev.saturating_add(before);
        }
        Some(counter)
    }

    /// The part of a limit that belongs to no share.
    fn reserve(&self, limit: &Limit) -> u64 {
        limit.count - self.share(limit).min(limit.count)
    }

    /// The budget in a window of which nothing has been spent.
    fn turned(&self, window: u64) -> Self {
        let carried = if window == self.window { self.carried } else { 0 };
        Self { window, ppm: self.ppm, before: self.unpaid(window).1, carried, ..Self::default() }
    }

    /// Of what this node was lent of the present window, what was for its own checks, and not to pay what its share had admitted.
    fn leased(&self, own: u64) -> u64 {
        own.saturating_sub(self.paid.saturating_sub(self.by_peers).saturating_add(self.carried))
    }

    /// What was admitted and is not paid, in the window and in the one before.
    fn unpaid(&self, window: u64) -> (u64, u64) {
        let unpaid = self.spent.saturating_sub(self.paid);
        match window.saturating_sub(self.window) {
            0 => (unpaid, self.before),
            1 => (0, unpaid),
            _ => (0, 0),
        }
    }

    /// Slices of the window that have begun by that time.
    fn slice_at(&self, limit: &Limit, at: Timestamp) -> u64 {
        at.0.saturating_sub(self.window * limit.period.0) / slice(limit) + 1
    }

    /// Nothing is released before the slice after the one in which the store was lost.
    fn slice_of_loss(&self, limit: &Limit, since: Timestamp) -> u64 {
        let is_lost_here = since.0 >= self.window * limit.period.0 && !on(Mutant::ShareInSliceOfLoss);
        if is_lost_here { self.slice_at(limit, since) } else { 0 }
    }

    fn debit(&mut self, limit: &Limit, since: Timestamp, now: Timestamp, cost: u64) {
        self.spent += cost;
        if limit.algorithm == Algorithm::Gcra {
            self.tat = (self.arrival(limit, since, now) + self.interval(limit, cost)).stored();
        }
    }

    fn debt(&self, limit: &Limit, now: Timestamp) -> u64 {
        let open = match limit.algorithm {
            // What a full bucket of the share still remembers.
            Algorithm::Gcra => gcra::tokens_in(limit, self.filling(now)).min(limit.burst),
            _ if self.window == now.0 / limit.period.0 => self.spent,
            _ => 0,
        };
        open.min(self.spent.saturating_sub(self.paid))
    }

    /// What was admitted in the sliding window before and is not paid, as far as it still weighs, rounded up. The store does
    /// not know of it. Charged to the window at hand it weighs no less from then on, since it does not fade there.
    fn carried(&self, limit: &Limit, now: Timestamp) -> u64 {
        if limit.algorithm != Algorithm::Sliding || on(Mutant::WindowBeforeForgiven) {
            return 0;
        }
        let (_, before) = self.unpaid(now.0 / limit.period.0);
        let left = limit.period.0 - now.0 % limit.period.0;
        let weighs = (u128::from(before) * u128::from(left)).div_ceil(u128::from(limit.period.0));
        u64::try_from(weighs).unwrap_or(u64::MAX)
    }

    /// `tokens` were paid: first for the window before. What a peer lent is no part of what this node was lent, so it is not taken off that.
    fn pay(&mut self, limit: &Limit, now: Timestamp, tokens: u64, by: Payer) {
        let is_lent_here = by == Payer::Store;
        let carried = self.carried(limit, now);
        let part = tokens.min(carried);
        if part > 0 {
            let window = now.0 / limit.period.0;
            if window != self.window {
                *self = self.turned(window);
            }
            let paid = u128::from(self.before) * u128::from(part) / u128::from(carried);
            self.before -= u64::try_from(paid).unwrap_or(self.before);
            self.carried += if is_lent_here { part } else { 0 };
        }
        // What a bucket does not remember any more need not be paid, and what is admitted later has to be.
        let paid = if limit.algorithm == Algorithm::Gcra { self.spent - self.debt(limit, now) } else { self.paid };
        self.paid = paid.saturating_add(tokens - part).min(self.spent);
        self.by_peers += if is_lent_here { 0 } else { self.paid - paid };
    }

    /// This node's part of a window's tokens.
    fn share(&self, limit: &Limit) -> u64 {
        let share = u128::from(limit.count) * u128::from(self.ppm) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Tokens of the share released by the end of the first `slices` slices of the window.
    fn allowance(&self, limit: &Limit, slices: u64) -> u64 {
        let released = u128::from(slices.saturating_mul(slice(limit)).min(limit.period.0));
        let part = u128::from(self.share(limit)) * released / u128::from(limit.period.0);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The fewest slices, at least one, of which the share is so much; `None` when the share of the whole window is less.
    fn slices(&self, limit: &Limit, tokens: u64) -> Option<u64> {
        let (share, period) = (self.share(limit), limit.period.0);
        if tokens > share {
            return None;
        }
        let released = (u128::from(tokens) * u128::from(period)).div_ceil(u128::from(share.max(1)));
        let slices = released.div_ceil(u128::from(slice(limit))).max(1);
        Some(u64::try_from(slices).expect("a part of the period, which is a u64"))
    }

    /// How long it takes until the share's bucket is full.
    fn filling(&self, now: Timestamp) -> Micros {
        self.tat.map_or(Micros::ZERO, |tat| tat.time().since(now))
    }

    /// The share's bucket was empty when the store was lost.
    fn arrival(&self, limit: &Limit, since: Timestamp, now: Timestamp) -> Timestamp {
        let tat = self.tat.map_or(since + gcra::depth(limit), StoredTime::time);
        tat.max(now)
    }

    /// The depth of the share's bucket for a check of that cost: that of the limit. Tokens come more slowly by the
    /// share's rate, so the bucket holds fewer of them, and of a burst of one not even that one. A node that has the
    /// whole shared part admits such a check as soon as the bucket is full.
    fn depth(&self, limit: &Limit, cost: u64) -> Micros {
        let whole = gcra::depth(limit);
        let has_all = u64::from(self.ppm >= SAFE_PPM && cost <= limit.burst);
        whole.max(self.interval(limit, cost * has_all))
    }

    /// The emission interval of `cost` tokens at the share's rate, rounded up.
    fn interval(&self, limit: &Limit, cost: u64) -> Micros {
        let whole = u128::from(gcra::cost(limit, cost).0) * u128::from(WHOLE);
        Micros(u64::try_from(whole.div_ceil(u128::from(self.ppm.max(1)))).unwrap_or(u64::MAX))
    }
}

/// The limits, as what is admitted here counts. Of a sliding window of which tokens are set aside it counts in its window alone: when
/// that is the one before, the store takes all that was set aside as used.
fn limits_of(rule: &Rule) -> impl Iterator<Item = Limit> + '_ {
    let is_plain = rule.is_entitled_sliding();
    rule.limits.iter().map(move |limit| {
        let mut limit = *limit;
        if is_plain {
            limit.algorithm = Algorithm::Fixed;
        }
        limit
    })
}

/// Whether a node that is alone with the key counts on from the store's last answer in this window, which is otherwise released by the minute.
/// Windows that open with their first request are excluded, because they end at other times here than in the store.
pub(super) fn is_counted(limit: &Limit) -> bool {
    limit.period.0 > SLICE && matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding)
}

/// The length of a slice: a share is released by whole windows, of long windows by the minute, and of sliding ones by
/// the quarter.
fn slice(limit: &Limit) -> u64 {
    let is_sliding = limit.algorithm == Algorithm::Sliding;
    let longest = if is_sliding { limit.period.0.div_ceil(SLIDING_SLICES) } else { limit.period.0 };
    longest.clamp(1, SLICE)
}

#[cfg(test)]
mod tests;
