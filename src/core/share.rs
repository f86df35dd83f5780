//! What a node may admit on its own while its part of the store is away.
//!
//! A window's share is fixed once, when the node first spends of it in that window, and it only spends
//! what it held in the window (or slice of at most a minute) in which the loss began. Long windows
//! release their share slice by slice. What was admitted here is owed: it is charged to the store
//! as soon as the store is back.

use super::gcra;
use super::limit::{Algorithm, Limit, MAX_LIMITS};
use super::mutant::{Mutant, on};
use super::policy::Rule;
use super::time::{Micros, Timestamp};

/// One millionth parts of a limit that all nodes together admit while the store is away.
pub(super) const SAFE_PPM: u64 = 950_000;

/// Longest slice of a window's share.
const SLICE: u64 = 60_000_000;

/// One key's share while its part of the store is away.
#[derive(Clone, Debug)]
pub struct ShareBook {
    since: Timestamp,
    /// When the store was lost last.
    lost: Timestamp,
    /// A book opened in its place would begin earlier, and with more.
    late: bool,
    /// The window in which a check was first denied or admitted, and that in which one was first admitted.
    begun: [u64; 2],
    /// This node's part of each limit, in millionths, fixed for as long as the loss lasts.
    parts: Option<[u64; MAX_LIMITS]>,
    limits: Box<[Budget]>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// Windows: which one; fixed with `ppm` when something is first spent.
    window: u64,
    ppm: u64,
    spent: u64,
    paid: u64,
    /// gcra: the share's own theoretical arrival time; 0 before its first use.
    tat: Timestamp,
}

/// This node's part of a limit, in millionths, when `nodes` use the key and nothing more is known
/// of how they divide it.
#[must_use]
pub fn share_ppm(nodes: u32) -> u64 {
    SAFE_PPM / u64::from(if on(Mutant::ShareOfOne) { 1 } else { nodes.max(1) })
}

impl ShareBook {
    /// A book for a key whose part of the store has been away since `since`.
    #[must_use]
    pub fn open(rule: &Rule, since: Timestamp) -> Self {
        let limits = vec![Budget::default(); rule.limits.len()].into();
        Self { since, lost: since, late: false, begun: [0; 2], parts: None, limits }
    }

    /// A book for a key whose part of the store has been away for longer: what was spent of it before
    /// `since` is not known any more, so that it begins anew.
    #[must_use]
    pub fn open_late(rule: &Rule, since: Timestamp) -> Self {
        Self { late: true, ..Self::open(rule, since) }
    }

    /// When this loss of the store began.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// This node's part of each limit, in millionths, once something was spent of it.
    #[must_use]
    pub fn parts(&self) -> Option<[u64; MAX_LIMITS]> {
        self.parts
    }

    /// Keeps this node's part of each limit for as long as the loss lasts.
    pub fn keep_parts(&mut self, parts: [u64; MAX_LIMITS]) {
        self.parts = Some(parts);
    }

    /// Spends `cost` of every limit's share, or none and returns the wait after which it may fit.
    /// `ppm` is this node's part of each, in millionths; `lent` is what the store lent this node in each limit's current window: leases and share
    /// together stay within the share.
    ///
    /// # Errors
    /// The wait.
    pub fn spend(&mut self, rule: &Rule, ppm: &[u64], now: Timestamp, cost: u64, lent: &[u64]) -> Result<(), Micros> {
        let mut wait = Micros::ZERO;
        for (((limit, budget), ppm), lent) in rule.limits.iter().zip(&mut self.limits).zip(ppm).zip(lent) {
            budget.enter(limit, *ppm, now);
            wait = wait.max(budget.wait(limit, self.since, now, cost, *lent));
        }
        if wait > Micros::ZERO {
            return Err(wait);
        }
        for (limit, budget) in rule.limits.iter().zip(&mut self.limits) {
            budget.debit(limit, self.since, now, cost);
        }
        Ok(())
    }

    /// What was admitted here in the windows that are still open and is not paid yet.
    #[must_use]
    pub fn debt(&self, rule: &Rule, now: Timestamp) -> u64 {
        let debts = rule.limits.iter().zip(&self.limits);
        debts.map(|(limit, budget)| budget.debt(limit, now)).max().filter(|_| !on(Mutant::DebtNotCharged)).unwrap_or(0)
    }

    /// Tokens that the share has left at `now`.
    #[must_use]
    pub fn left(&self, rule: &Rule, now: Timestamp, lent: &[u64]) -> u64 {
        let budgets = rule.limits.iter().zip(&self.limits).zip(lent);
        budgets.map(|((limit, budget), lent)| budget.left(limit, self.since, now, *lent)).min().unwrap_or(0)
    }

    /// What was admitted here of a limit's aligned window of that number, and is not paid.
    #[must_use]
    pub fn unpaid(&self, index: usize, window: u64) -> u64 {
        let budget = &self.limits[index];
        if budget.window == window { budget.spent.saturating_sub(budget.paid) } else { 0 }
    }

    /// True when a check is the first of one of the rule's windows, or the first that `spent` of its share.
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

    /// Whether a window is open of which shares have been released since the store was lost.
    #[must_use]
    pub fn spans(&self, rule: &Rule, now: Timestamp) -> bool {
        let part = |limit: &Limit, at: Timestamp| (at.0 / limit.period.0, at.0 % limit.period.0 / slice(limit));
        // Those from the first request begin anew with whoever is lent something first.
        let is_aligned = |limit: &&Limit| matches!(limit.algorithm, Algorithm::Fixed | Algorithm::Sliding);
        rule.limits.iter().filter(is_aligned).any(|limit| part(limit, now) > part(limit, self.since))
    }

    /// Takes back up to `cost` that was admitted here and is not paid; how much.
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

    /// Whether forgetting this would free a budget.
    #[must_use]
    pub fn matters(&self, rule: &Rule, now: Timestamp) -> bool {
        let filling = rule.limits.iter().any(|limit| match limit.algorithm {
            Algorithm::Gcra => self.since + gcra::depth(limit) > now,
            _ => self.since.0 / limit.period.0 == now.0 / limit.period.0,
        });
        self.late && filling || self.is_open(rule, now)
    }

    /// Notes that the store has been charged `tokens` of the debt.
    pub fn pay(&mut self, tokens: u64) {
        for budget in &mut self.limits {
            budget.paid = budget.paid.saturating_add(tokens).min(budget.spent);
        }
    }

    /// The store's clock is learned: what was noted as `guess` by an estimate of it is now `known`.
    pub fn rebase(&mut self, rule: &Rule, guess: Timestamp, known: Timestamp) {
        let shift = |at: Timestamp| (at + known.since(guess)) - guess.since(known);
        (self.since, self.lost, self.begun) = (shift(self.since), shift(self.lost), [0; 2]);
        for (limit, budget) in rule.limits.iter().zip(&mut self.limits) {
            if budget.tat.0 > 0 {
                budget.tat = shift(budget.tat);
            }
            if budget.window == guess.0 / limit.period.0 {
                budget.window = known.0 / limit.period.0;
            }
        }
    }

    /// The store answered and was lost again at `since`. Within one period that is the same loss
    /// going on; budgets of open windows stay as they are in any case.
    pub fn reopen(&mut self, rule: &Rule, since: Timestamp) {
        let period = rule.limits.iter().map(|limit| limit.period).min().unwrap_or_default();
        if since.since(self.lost) > period.max(Micros::from_secs(1)) {
            self.begin_anew(since);
        }
        self.lost = since;
    }

    /// Another loss began at `since`, however short a time after the one before: the store has lent meanwhile.
    /// The next one is no part of it.
    pub fn begin_anew(&mut self, since: Timestamp) {
        (self.since, self.lost, self.late, self.parts) = (since, Timestamp(0), false, None);
    }
}

impl Budget {
    fn enter(&mut self, limit: &Limit, ppm: u64, now: Timestamp) {
        if limit.algorithm == Algorithm::Gcra {
            // It shrinks as soon as more nodes are counted, and grows with the next loss only.
            self.ppm = if self.ppm == 0 { ppm.max(1) } else { self.ppm.min(ppm.max(1)) };
            return;
        }
        let window = now.0 / limit.period.0;
        if self.spent == 0 || window != self.window || on(Mutant::ShareRefilledPerCheck) {
            *self = Self { window, ppm: ppm.max(1), ..Self::default() };
        }
        // A store that is back may have counted more nodes than were known.
        self.ppm = self.ppm.min(ppm.max(1));
    }

    /// The wait until `cost` fits; zero when it fits now.
    fn wait(&self, limit: &Limit, since: Timestamp, now: Timestamp, cost: u64, lent: u64) -> Micros {
        if limit.algorithm == Algorithm::Gcra {
            let depth = gcra::depth(limit);
            let arrival = self.arrival(limit, since, now) + self.interval(limit, cost);
            return Micros(arrival.0.saturating_sub(depth.0).saturating_sub(now.0));
        }
        if self.left(limit, since, now, lent) >= cost {
            return Micros::ZERO;
        }
        if self.allowance(limit, u64::MAX / slice(limit)) < cost {
            // No window's share is as much: the store has to come back.
            return Micros(u64::MAX / 2);
        }
        let (start, slice) = (self.window * limit.period.0, slice(limit));
        let open = now.0.saturating_sub(start) / slice + 1;
        let next = (start + open * slice).min(start + limit.period.0);
        Timestamp(next).since(now).max(Micros(1))
    }

    fn left(&self, limit: &Limit, since: Timestamp, now: Timestamp, lent: u64) -> u64 {
        if limit.algorithm == Algorithm::Gcra {
            let room = (now + gcra::depth(limit)).since(self.arrival(limit, since, now));
            let part = u128::from(room.0) * u128::from(self.ppm) / 1_000_000;
            return gcra::tokens_in(limit, Micros(part as u64)); // not more than `room`
        }
        let start = self.window * limit.period.0;
        let slices = |at: Timestamp| at.0.saturating_sub(start) / slice(limit) + 1;
        // Nothing is released before the slice after the one in which the store was lost.
        let begin = if since.0 >= start && !on(Mutant::ShareInSliceOfLoss) { slices(since) } else { 0 };
        let open = slices(now).max(begin);
        let leased = lent.saturating_sub(self.paid);
        (self.allowance(limit, open) - self.allowance(limit, begin)).saturating_sub(self.spent + leased)
    }

    fn debit(&mut self, limit: &Limit, since: Timestamp, now: Timestamp, cost: u64) {
        self.spent += cost;
        if limit.algorithm == Algorithm::Gcra {
            self.tat = self.arrival(limit, since, now) + self.interval(limit, cost);
        }
    }

    fn debt(&self, limit: &Limit, now: Timestamp) -> u64 {
        let open = match limit.algorithm {
            // What a full share bucket still remembers.
            Algorithm::Gcra => gcra::tokens_in(limit, self.tat.since(now)).min(limit.burst),
            _ if self.window == now.0 / limit.period.0 => self.spent,
            _ => 0,
        };
        open.min(self.spent).saturating_sub(self.paid)
    }

    /// Tokens of the share released by the end of the first `slices` slices of the window.
    fn allowance(&self, limit: &Limit, slices: u64) -> u64 {
        let share = u128::from(limit.count) * u128::from(self.ppm) / 1_000_000;
        let released = u128::from(slices.saturating_mul(slice(limit)).min(limit.period.0));
        u64::try_from(share * released / u128::from(limit.period.0)).unwrap_or(u64::MAX)
    }

    /// The share's bucket was empty when the store was lost.
    fn arrival(&self, limit: &Limit, since: Timestamp, now: Timestamp) -> Timestamp {
        let tat = if self.tat.0 == 0 { since + gcra::depth(limit) } else { self.tat };
        tat.max(now)
    }

    /// The emission interval of `cost` tokens at the share's rate, rounded up.
    fn interval(&self, limit: &Limit, cost: u64) -> Micros {
        let whole = u128::from(gcra::cost(limit, cost).0) * 1_000_000;
        Micros(u64::try_from(whole.div_ceil(u128::from(self.ppm.max(1)))).unwrap_or(u64::MAX))
    }
}

/// A share is released by whole windows, long ones by the minute, sliding ones by the quarter.
fn slice(limit: &Limit) -> u64 {
    let longest = if limit.algorithm == Algorithm::Sliding { limit.period.0.div_ceil(4) } else { limit.period.0 };
    longest.clamp(1, SLICE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        Rule::of("p", &[Limit::parse(text).unwrap()])
    }

    fn admitted(book: &mut ShareBook, rule: &Rule, ppm: u64, now: u64) -> u64 {
        (0..1_000_000).take_while(|_| book.spend(rule, &[ppm], Timestamp(now), 1, &[0]).is_ok()).count() as u64
    }

    #[test]
    fn a_lone_node_admits_95_percent_of_each_later_window() {
        let rule = rule("1000/1s fixed");
        let mut book = ShareBook::open(&rule, Timestamp(10_500_000));
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
        let mut book = ShareBook::open(&rule, Timestamp(0));
        assert_eq!(admitted(&mut book, &rule, share_ppm(4), 5_000_000), 237);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 5_000_001), 0);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 6_000_000), 950);
        book.spend(&rule, &[share_ppm(1)], Timestamp(7_000_000), 100, &[0]).unwrap();
        assert_eq!(admitted(&mut book, &rule, share_ppm(4), 7_000_001), 137);
    }

    #[test]
    fn a_long_window_releases_its_share_by_the_minute() {
        let rule = rule("6000/1h fixed");
        let mut book = ShareBook::open(&rule, Timestamp(30_000_000));
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 59_000_000), 0);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 60_000_000), 95);
        assert_eq!(admitted(&mut book, &rule, share_ppm(1), 3_599_000_000), 95 * 58);
    }

    #[test]
    fn gcra_starts_empty_and_refills_at_the_share() {
        let rule = rule("1000/1s burst 500");
        let mut book = ShareBook::open(&rule, Timestamp(10_000_000));
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
        let mut book = ShareBook::open(&rule, Timestamp(0));
        let mut admitted = 0;
        while book.spend(&rule, &[share_ppm(1)], Timestamp(3_000_000), 1, &[250]).is_ok() {
            admitted += 1;
        }
        assert_eq!(admitted, 700);
    }

    #[test]
    fn a_book_opened_by_a_clock_that_was_ahead_is_moved_to_the_stores() {
        let rule = rule("1000/1s burst 500");
        let guess = Timestamp(60_000_000);
        let mut book = ShareBook::open(&rule, guess);
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
        let mut book = ShareBook::open(&rule, Timestamp(0));
        book.spend(&rule, &[share_ppm(1)], Timestamp(2_000_000), 7, &[0]).unwrap();
        assert_eq!(book.debt(&rule, Timestamp(2_100_000)), 7);
        book.pay(5);
        assert_eq!(book.debt(&rule, Timestamp(2_100_000)), 2);
        assert_eq!(book.debt(&rule, Timestamp(3_000_000)), 0);
    }
}
