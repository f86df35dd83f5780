//! What a node may admit on its own while its store server is away.
//!
//! The share of a window is fixed once, when the node first spends of it in that window. In the window in which the
//! loss began (or in the first slice of at most a minute), the node only spends what it held. Long windows release
//! their share slice by slice, unless the store said just before it was lost that no other node uses the key; then
//! the node counts on from there. What was admitted by the share is owed, and is charged to the store as soon as the
//! store is back.

use super::call::Counter;
use super::gcra;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::rule::Rule;
use super::time::{Micros, Timestamp};

/// The part of a limit, in millionths, that all nodes together may admit while the store is away.
pub(super) const SAFE_PPM: u64 = 950_000;

/// Longest slice of a window's share.
const SLICE: u64 = 60_000_000;

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
    /// When the store was last lost. `None` means that the next loss will be another one.
    lost: Option<Timestamp>,
    /// A budget that is opened now in its place would begin earlier, and with more.
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
    /// For GCRA: the theoretical arrival time of the share; 0 before it is first used.
    tat: Timestamp,
}

/// This node's part of a limit, in millionths, when `nodes` use the key, and nothing more is known of how they use
/// it.
#[must_use]
pub fn share_ppm(nodes: u32) -> u64 {
    SAFE_PPM / u64::from(if on(Mutant::ShareOfOne) { 1 } else { nodes.max(1) })
}

impl FallbackBudget {
    /// The budget of a key whose store server has been away since `since`.
    #[must_use]
    pub fn open(rule: &Rule, since: Timestamp) -> Self {
        let limits = vec![Budget::default(); rule.limits.len()].into();
        Self { since, lost: Some(since), late: false, begun: [0; 2], parts: None, limits }
    }

    /// The budget of a key whose store server has been away for longer. What was spent before `since` is forgotten,
    /// so the budget begins anew.
    #[must_use]
    pub fn open_late(rule: &Rule, since: Timestamp) -> Self {
        Self { late: true, ..Self::open(rule, since) }
    }

    /// The budget under other limits, from `now` on. What was admitted in windows that are still open counts there,
    /// too, and is still owed; a bucket begins empty.
    #[must_use]
    pub fn under(&self, before: &Rule, rule: &Rule, now: Timestamp) -> Self {
        let owed = self.debt(before, now);
        let mut book = Self::open_late(rule, now);
        for (index, (limit, budget)) in rule.limits.iter().zip(&mut book.limits).enumerate() {
            let same = |other: &&Limit| other.algorithm == limit.algorithm && other.period == limit.period;
            *budget = match (limit.algorithm, before.limits.get(index).filter(same)) {
                _ if owed == 0 => Budget::default(),
                (Algorithm::Gcra, _) => Budget { spent: owed, tat: now + gcra::depth(limit), ..Budget::default() },
                (_, Some(_)) => self.limits[index],
                _ => Budget { window: now.0 / limit.period.0, ppm: SAFE_PPM, spent: owed, ..Budget::default() },
            };
        }
        book
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
        let mut fits = true;
        for (index, ((limit, budget), ppm)) in rule.limits.iter().zip(&mut self.limits).zip(ppm).enumerate() {
            budget.enter(limit, *ppm, now);
            fits &= budget.fits(limit, self.since, now, cost, lent.of(index));
        }
        for (limit, budget) in rule.limits.iter().zip(&mut self.limits).filter(|_| fits) {
            budget.debit(limit, self.since, now, cost);
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
        let mut ready = from;
        for _ in 0..ROUNDS {
            let mut latest = ready;
            for (index, ((limit, budget), ppm)) in rule.limits.iter().zip(&self.limits).zip(ppm).enumerate() {
                let mut budget = *budget;
                budget.enter(limit, *ppm, now);
                latest = latest.max(budget.ready(limit, self.since, ready, cost, lent.of(index))?);
            }
            if latest == ready {
                break;
            }
            ready = latest;
        }
        Some(ready)
    }

    /// What was admitted here in windows that are still open, and is not paid yet.
    #[must_use]
    pub fn debt(&self, rule: &Rule, now: Timestamp) -> u64 {
        let debts = rule.limits.iter().zip(&self.limits);
        debts.map(|(limit, budget)| budget.debt(limit, now)).max().filter(|_| !on(Mutant::DebtNotCharged)).unwrap_or(0)
    }

    /// Tokens that the share has left at `now`.
    #[must_use]
    pub fn left(&self, rule: &Rule, now: Timestamp, lent: &Lent<'_>) -> u64 {
        let budgets = rule.limits.iter().zip(&self.limits).enumerate();
        let left = budgets.map(|(index, (limit, budget))| budget.left(limit, self.since, now, lent.of(index)));
        left.min().unwrap_or(0)
    }

    /// What was admitted here in the aligned window of a limit with that number, and is not paid.
    #[must_use]
    pub fn unpaid(&self, index: usize, window: u64) -> u64 {
        let budget = &self.limits[index];
        if budget.window == window { budget.spent.saturating_sub(budget.paid) } else { 0 }
    }

    /// Whether a check is the first in one of the rule's windows, or the first that `spent` of its share.
    pub fn begins(&mut self, rule: &Rule, now: Timestamp, spent: bool) -> bool {
        let shortest = rule.limits.iter().map(|limit| limit.period.0.max(50_000)).min().unwrap_or(1);
        let window = now.0 / shortest;
        let is_first = self.begun[usize::from(spent)] != window;
        self.begun = if spent { [window; 2] } else { [window, self.begun[1]] };
        is_first
    }

    /// Whether a window is still open in which something was admitted here.
    #[must_use]
    pub fn is_open(&self, rule: &Rule, now: Timestamp) -> bool {
        rule.limits.iter().zip(&self.limits).any(|(limit, budget)| match limit.algorithm {
            Algorithm::Gcra => budget.tat > now,
            _ => budget.spent > 0 && budget.window == now.0 / limit.period.0,
        })
    }

    /// Whether a window is open of which shares were released since the store was lost.
    #[must_use]
    pub fn spans(&self, rule: &Rule, now: Timestamp) -> bool {
        let part = |limit: &Limit, at: Timestamp| (at.0 / limit.period.0, at.0 % limit.period.0 / slice(limit));
        // Windows that open with their first request begin anew with the first grant, so they do not count.
        let is_aligned = |limit: &&Limit| matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
        rule.limits.iter().filter(is_aligned).any(|limit| part(limit, now) > part(limit, self.since))
    }

    /// Takes back up to `cost` that was admitted here and is not paid. Returns how much.
    pub fn refund(&mut self, rule: &Rule, now: Timestamp, cost: u64) -> u64 {
        let back = cost.min(self.debt(rule, now));
        for (limit, budget) in rule.limits.iter().zip(&mut self.limits) {
            let part = back.min(budget.spent.saturating_sub(budget.paid));
            budget.spent -= part;
            if limit.algorithm == Algorithm::Gcra && part > 0 {
                budget.tat = Timestamp(budget.tat.0.saturating_sub(budget.interval(limit, part).0).max(1));
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
        self.late && filling || self.is_open(rule, now)
    }

    /// Records that the store was charged `tokens` of the debt.
    pub fn pay(&mut self, tokens: u64) {
        for budget in &mut self.limits {
            budget.paid = budget.paid.saturating_add(tokens).min(budget.spent);
        }
    }

    /// The store's clock is now known: what was recorded by the estimate `guess` of it is moved to `known`.
    pub fn rebase(&mut self, rule: &Rule, guess: Timestamp, known: Timestamp) {
        let shift = |at: Timestamp| (at + known.since(guess)) - guess.since(known);
        (self.since, self.lost, self.begun) = (shift(self.since), self.lost.map(shift), [0; 2]);
        for (limit, budget) in rule.limits.iter().zip(&mut self.limits) {
            if budget.tat.is_some() {
                budget.tat = shift(budget.tat);
            }
            if budget.window == guess.0 / limit.period.0 {
                budget.window = known.0 / limit.period.0;
            }
        }
    }

    /// The store has answered, and was lost again at `since`. Within one period this continues the same loss. Budgets
    /// of open windows stay as they are in any case.
    pub fn reopen(&mut self, rule: &Rule, since: Timestamp) {
        let period = rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default();
        let goes_on = |lost: Timestamp| since.since(lost) <= period.max(Micros::from_secs(1));
        if !self.lost.is_some_and(goes_on) {
            self.begin_anew(since);
        }
        self.lost = Some(since);
    }

    /// Another loss began at `since`, however short a time after the last one, because the store has lent meanwhile.
    /// The next one will be another one, too.
    pub fn begin_anew(&mut self, since: Timestamp) {
        (self.since, self.lost, self.late, self.parts) = (since, None, false, None);
    }
}

impl Budget {
    fn enter(&mut self, limit: &Limit, ppm: u64, now: Timestamp) {
        if limit.algorithm == Algorithm::Gcra {
            // The part shrinks as soon as more nodes are counted, and grows only with the next loss.
            self.ppm = if self.ppm == 0 { ppm.max(1) } else { self.ppm.min(ppm.max(1)) };
            return;
        }
        let window = now.0 / limit.period.0;
        if self.spent == 0 || window != self.window || on(Mutant::ShareRefilledPerCheck) {
            let (_, before) = self.unpaid(window);
            *self = Self { window, ppm: ppm.max(1), before, ..Self::default() };
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

    /// The first time from `from` on at which `cost` fits; `None` when the share never has so much, so that the store
    /// must come back first.
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
                (window * limit.period.0, begun + self.spent + own.saturating_sub(self.paid))
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
            let part = u128::from(room.0) * u128::from(self.ppm) / 1_000_000;
            return gcra::tokens_in(limit, Micros(part as u64)); // not more than `room`
        }
        if let Some(counter) = self.counted(limit, all) {
            return counter.rolled(limit, now).left(limit, now).saturating_sub(self.reserve(limit));
        }
        let begin = self.slice_of_loss(limit, since);
        let open = self.slice_at(limit, now).max(begin);
        let leased = own.saturating_sub(self.paid);
        (self.allowance(limit, open) - self.allowance(limit, begin)).saturating_sub(self.spent + leased)
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
            self.tat = self.arrival(limit, since, now) + self.interval(limit, cost);
        }
    }

    fn debt(&self, limit: &Limit, now: Timestamp) -> u64 {
        let open = match limit.algorithm {
            // What a full bucket of the share still remembers.
            Algorithm::Gcra => gcra::tokens_in(limit, self.tat.since(now)).min(limit.burst),
            _ if self.window == now.0 / limit.period.0 => self.spent,
            _ => 0,
        };
        open.min(self.spent).saturating_sub(self.paid)
    }

    /// This node's part of a window's tokens.
    fn share(&self, limit: &Limit) -> u64 {
        let share = u128::from(limit.count) * u128::from(self.ppm) / 1_000_000;
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Tokens of the share released by the end of the first `slices` slices of the window.
    fn allowance(&self, limit: &Limit, slices: u64) -> u64 {
        let released = u128::from(slices.saturating_mul(slice(limit)).min(limit.period.0));
        let part = u128::from(self.share(limit)) * released / u128::from(limit.period.0);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The fewest slices, at least one, of which the share is so much; `None` when the share of the whole window is
    /// less.
    fn slices(&self, limit: &Limit, tokens: u64) -> Option<u64> {
        let (share, period) = (self.share(limit), limit.period.0);
        if tokens > share {
            return None;
        }
        let released = (u128::from(tokens) * u128::from(period)).div_ceil(u128::from(share.max(1)));
        let slices = released.div_ceil(u128::from(slice(limit))).max(1);
        Some(u64::try_from(slices).expect("a part of the period, which is a u64"))
    }

    /// The share's bucket was empty when the store was lost.
    fn arrival(&self, limit: &Limit, since: Timestamp, now: Timestamp) -> Timestamp {
        let tat = if self.tat.is_none() { since + gcra::depth(limit) } else { self.tat };
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
        let whole = u128::from(gcra::cost(limit, cost).0) * 1_000_000;
        Micros(u64::try_from(whole.div_ceil(u128::from(self.ppm.max(1)))).unwrap_or(u64::MAX))
    }
}

/// Whether a node that is alone with the key counts on from the store's last answer in this window, which is
/// otherwise released by the minute. Windows that open with their first request are excluded, because they end at
/// other times here than in the store.
pub(super) fn is_counted(limit: &Limit) -> bool {
    limit.period.0 > SLICE && matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding)
}

/// The length of a slice: a share is released by whole windows, of long windows by the minute, and of sliding ones by
/// the quarter.
fn slice(limit: &Limit) -> u64 {
    let longest = if limit.algorithm == Algorithm::Sliding { limit.period.0.div_ceil(4) } else { limit.period.0 };
    longest.clamp(1, SLICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Lent<'static> = Lent { own: &[0; MAX_LIMITS], all: None };

    fn rule(text: &str) -> Rule {
        Rule::of("p", &[Limit::parse(text).unwrap()])
    }

    fn admitted(book: &mut FallbackBudget, rule: &Rule, ppm: u64, now: u64) -> u64 {
        (0..1_000_000).take_while(|_| book.spend(rule, &[ppm], Timestamp(now), 1, &NONE)).count() as u64
    }

    #[test]
    fn a_lone_node_admits_95_percent_of_each_later_window() {
        let rule = rule("1000/1s fixed");
        let mut book = FallbackBudget::open(&rule, Timestamp(10_500_000));
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 10_600_000), 0);
        for window in 11..15 {
            assert_eq!(admitted(&mut book, &rule, share_ppm(1), window * 1_000_000 + 7), 950);
        }
    }

    #[test]
    fn shares_of_all_nodes_sum_to_less_than_the_limit() {
        for nodes in 1..200 {
            assert!(share_ppm(nodes) * u64::from(nodes) <= SAFE_PPM);
        }
    }

    #[test]
    fn a_budget_is_fixed_once_per_window() {
        let rule = rule("1000/1s fixed");
        let mut book = FallbackBudget::open(&rule, Timestamp(0));
        assert_eq!(admitted(&mut book, &rule, share_ppm(4), 5_000_000), 237);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 5_000_001), 0);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 6_000_000), 950);
        assert!(book.spend(&rule, &[share_ppm(1)], Timestamp(7_000_000), 100, &NONE));
        assert_eq!(admitted(&mut book, &rule, share_ppm(4), 7_000_001), 137);
    }

    #[test]
    fn a_long_window_releases_its_share_by_the_minute() {
        let rule = rule("6000/1h fixed");
        let mut book = FallbackBudget::open(&rule, Timestamp(30_000_000));
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 59_000_000), 0);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 60_000_000), 95);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 3_599_000_000), 95 * 58);
    }

    #[test]
    fn gcra_starts_empty_and_refills_at_the_share() {
        let rule = rule("1000/1s burst 500");
        let mut book = FallbackBudget::open(&rule, Timestamp(10_000_000));
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 10_000_000), 0);
        let mut total = 0;
        for step in 1..=100 {
            total += admitted(&mut book, &rule, share_ppm(1), 10_000_000 + step * 10_000);
        }
        assert!((940..=950).contains(&total), "{total}");
    }

    #[test]
    fn leases_and_share_together_stay_within_the_share() {
        let rule = rule("1000/1s fixed");
        let mut book = FallbackBudget::open(&rule, Timestamp(0));
        let mut admitted = 0;
        let lent = Lent { own: &[250], all: None };
        while book.spend(&rule, &[share_ppm(1)], Timestamp(3_000_000), 1, &lent) {
            admitted += 1;
        }
        assert_eq!(admitted, 700);
    }

    #[test]
    fn a_book_opened_by_a_clock_that_was_ahead_is_moved_to_the_stores() {
        let rule = rule("1000/1s burst 500");
        let guess = Timestamp(60_000_000);
        let mut book = FallbackBudget::open(&rule, guess);
        assert!(admitted(&mut book, &rule, share_ppm(1), guess.0 + 100_000) > 0);
        let debt = book.debt(&rule, guess + Micros(100_000));
        let known = Timestamp(3_000_000);
        book.rebase(&rule, guess + Micros(100_000), known);
        assert_eq!(book.debt(&rule, known), debt);
        assert_eq!(book.debt(&rule, known + Micros(600_000)), 0);
    }

    #[test]
    fn debt_is_what_open_windows_admitted() {
        let rule = rule("1000/1s fixed");
        let mut book = FallbackBudget::open(&rule, Timestamp(0));
        assert!(book.spend(&rule, &[share_ppm(1)], Timestamp(2_000_000), 7, &NONE));
        assert_eq!(book.debt(&rule, Timestamp(2_100_000)), 7);
        book.pay(5);
        assert_eq!(book.debt(&rule, Timestamp(2_100_000)), 2);
        assert_eq!(book.debt(&rule, Timestamp(3_000_000)), 0);
    }

    #[test]
    fn a_bucket_of_one_token_has_a_share() {
        let rule = rule("1/1s");
        let mut book = FallbackBudget::open(&rule, Timestamp(10_000_000));
        let times = (0..100).map(|step| 10_000_000 + step * 100_000);
        let total: u64 = times.map(|now| admitted(&mut book, &rule, share_ppm(1), now)).sum();
        assert!((8..=9).contains(&total), "{total}");
        assert_eq!(admitted(&mut book, &rule, share_ppm(2), 100_000_000), 0, "another node may have it");
    }

    #[test]
    fn who_is_alone_counts_on_from_what_the_store_said() {
        let rule = rule("1000/1h fixed");
        let (mut book, now) = (FallbackBudget::open(&rule, Timestamp(30_000_000)), Timestamp(31_000_000));
        let counters = [Counter { used: 600, prev: 0, at: Timestamp(3_600_000_000) }];
        let lent = Lent { own: &[50], all: Some(&counters) };
        let parts = [share_ppm(1)];
        assert_eq!(book.left(&rule, now, &NONE), 0);
        let spent = (0..1_000).filter(|_| book.spend(&rule, &parts, now, 1, &lent)).count();
        assert_eq!((spent, book.left(&rule, now, &lent)), (350, 0), "five in a hundred are nobody's");
        assert_eq!(book.ready(&rule, &parts, [now; 2], 1, &lent), Some(Timestamp(3_600_000_000)));
        assert_eq!(book.ready(&rule, &parts, [now; 2], 951, &lent), None);
    }

    #[test]
    fn who_is_alone_remembers_the_window_before_of_a_sliding_limit() {
        let rule = rule("1000/1h sliding");
        let (mut book, hour, parts) = (FallbackBudget::open(&rule, Timestamp(0)), 3_600_000_000, [share_ppm(1)]);
        let at = |now: u64| [Counter { used: 0, prev: 0, at: Timestamp(now / hour * hour) }];
        let mut spend = |now: u64| {
            let counters = at(now);
            let lent = Lent { own: &[0], all: Some(&counters) };
            (0..1_000).filter(|_| book.spend(&rule, &parts, Timestamp(now), 1, &lent)).count()
        };
        assert_eq!(spend(hour - 1), 950);
        assert_eq!(spend(hour), 0);
        assert_eq!(spend(hour + hour / 2), 475);
        assert_eq!(spend(3 * hour), 950);
    }

    /// Limits with windows of different kinds, some long enough to be released by the minute.
    const SETS: [&[&str]; 7] = [
        &["10/1s"],
        &["1/1s", "7/3s fixed"],
        &["10/1s", "60/3s fixed", "1000/1h sliding"],
        &["3/1h fixed"],
        &["40/7m sliding", "5/2s fixed"],
        &["20/1s sliding", "100/1m fixed from-first"],
        &["100/1m burst 5", "9/10s fixed", "200/1h fixed"],
    ];

    proptest::proptest! {
        #[test]
        fn waiting_as_told_is_enough_and_less_is_not(
            set in 0..SETS.len(),
            nodes in 1..4u32,
            counted in proptest::bool::ANY,
            steps in proptest::collection::vec((0..4_000_000u64, 0..40u32, 1..12u64), 1..30),
        ) {
            let limits: Vec<_> = SETS[set].iter().map(|text| Limit::parse(text).unwrap()).collect();
            let rule = Rule::of("p", &limits);
            let mut now = Timestamp(1_800_000_000_123_457);
            let mut book = FallbackBudget::open(&rule, now);
            let parts = vec![share_ppm(nodes); limits.len()];
            let none = vec![0; limits.len()];
            let counters = |now| limits.iter().map(|limit| Counter::default().rolled(limit, now)).collect::<Vec<_>>();
            for (pause, scale, cost) in steps {
                now = now + Micros(pause << (scale / 4));
                let (this, all) = (now, counters(now));
                let lent = Lent { own: &none, all: Some(&*all).filter(|_| counted) };
                let ready = book.ready(&rule, &parts, [this; 2], cost, &lent);
                let fits = |at: Timestamp| {
                    let all = counters(at);
                    let lent = Lent { own: &none, all: Some(&*all).filter(|_| counted) };
                    book.clone().spend(&rule, &parts, at, cost, &lent)
                };
                match ready {
                    Some(at) => {
                        proptest::prop_assert!(fits(at), "{at:?} of {now:?}");
                        proptest::prop_assert!(at == now || !fits(at - Micros(1)), "{at:?} of {now:?} is late");
                    }
                    None => proptest::prop_assert!(!fits(now)),
                }
                while book.spend(&rule, &parts, now, cost, &lent) {}
            }
        }
    }
}
