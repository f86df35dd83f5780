//! The tokens that a node holds for one key, and when each may be spent.
//!
//! A lease is a short list of segments, one per window, sorted by their ends. The tokens of a segment belong to the
//! windows that lent them. Tokens of a GCRA limit belong to an account instead: the node must report in time what it
//! has spent of them; otherwise they count as spent, and must not be spent. Times that must not be too late are
//! counted from the sending of the call, and times that must not be too early from the arrival of its answer. Knows
//! nothing of the store, of waiters or of tuning.

use super::gcra;
use super::limit::Algorithm;
use super::mutant::{Mutant, on};
use super::per_limit::PerLimit;
use super::rule::Rule;
use super::segments::Segments;
use super::store_clock::StoreClock;
use super::time::{Due, Instant, Micros, StoredTime, Timestamp};

/// Most segments of a lease; older ones make room for new ones. Only policies with several limits, and stores whose clocks
/// are set, ever need more than two.
const MAX_SEGMENTS: usize = 6;

/// Tokens of one window whose ends are no further apart than this form one segment, which ends with the earliest of
/// them. With less, a lease would have a segment for each call where trips to the store differ; with more, tokens lapse
/// that could be spent.
const TOGETHER: Micros = Micros(20_000);

/// Tokens of one grant, or of several of the same windows.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Unspent tokens.
    pub left: u64,
    /// Tokens spent.
    spent: u64,
    span: Span,
}

/// When the tokens of a segment may be spent, and of which windows they are.
#[derive(Clone, Debug)]
enum Span {
    /// Tokens of a bucket, or of a window that has begun, of a rule with one limit. Nearly all segments are of this kind, so it is small.
    Begun {
        /// The tokens may not be spent from here on.
        ends: Due,
        /// `Counter::at` of the limit right after the grant, which identifies the window; `None` for GCRA.
        window: Option<StoredTime>,
    },
    /// Tokens of several limits, and those that were lent before their window began.
    Other(Box<OtherSpan>),
}

#[derive(Clone, Debug)]
struct OtherSpan {
    /// The tokens may not be spent before this.
    starts: Due,
    ends: Due,
    /// The window of each limit.
    windows: PerLimit<Option<StoredTime>>,
}

impl Span {
    fn new(starts: Due, ends: Due, windows: PerLimit<Option<StoredTime>>) -> Self {
        match *windows {
            [window] if starts.is_at_once() => Self::Begun { ends, window },
            _ => Self::Other(Box::new(OtherSpan { starts, ends, windows })),
        }
    }
}

/// Tokens that left a lease unspent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unspent {
    /// How many.
    pub tokens: u64,
    /// `Counter::at` of each limit when the tokens were lent.
    pub windows: PerLimit<Option<StoredTime>>,
}

/// All that a node holds for one key.
#[derive(Clone, Debug)]
pub struct Lease {
    segments: Segments<Segment>,
    /// For GCRA: from here on, no token may be spent, unless the account was renewed.
    until: Due,
}

impl Default for Lease {
    fn default() -> Self {
        Self { segments: Segments::default(), until: Due::NEVER }
    }
}

impl Segment {
    /// The tokens of a grant. If they were lent `ahead`, they start at the end of the present window.
    #[must_use]
    pub fn new(
        rule: &Rule,
        tokens: u64,
        sent: Instant,
        clock: StoreClock,
        windows: &[Option<StoredTime>],
        ahead: bool,
    ) -> Self {
        let mut windows: PerLimit<Option<StoredTime>> = windows[..rule.limits.len()].into();
        let (mut starts, mut ends) = (Due::AT_ONCE, Due::NEVER);
        for (limit, window) in rule.limits.iter().zip(&mut windows) {
            if limit.algorithm == Algorithm::Gcra {
                *window = None;
                continue;
            }
            let at = window.map_or(Timestamp(0), StoredTime::time);
            let end = if limit.algorithm == Algorithm::Sliding { at + limit.period } else { at };
            if ahead {
                starts = starts.max(Due::at(late(clock.after(end - limit.period), sent)));
            }
            if on(Mutant::LeaseCrossesWindow) {
                continue;
            }
            let last = if on(Mutant::ExpiryFromArrival) { clock.after(end) } else { clock.before(end) };
            ends = ends.or(early(last, sent));
        }
        Self { left: tokens, spent: 0, span: Span::new(starts, ends, windows) }
    }

    /// The tokens may not be spent before this.
    fn starts(&self) -> Due {
        if let Span::Other(span) = &self.span { span.starts } else { Due::AT_ONCE }
    }

    /// The tokens may not be spent from here on.
    #[must_use]
    pub fn ends(&self) -> Due {
        match &self.span {
            Span::Begun { ends, .. } => *ends,
            Span::Other(span) => span.ends,
        }
    }

    /// `Counter::at` of each limit right after the grant, which identifies the window; `None` for GCRA.
    fn windows(&self) -> &[Option<StoredTime>] {
        match &self.span {
            Span::Begun { window, .. } => std::slice::from_ref(window),
            Span::Other(span) => &span.windows,
        }
    }

    /// The tokens may be spent from `starts` on if that is earlier, and not from `ends` on if that is.
    fn retime(&mut self, starts: Due, ends: Due) {
        let (starts, ends) = (self.starts().min(starts), self.ends().min(ends));
        self.span = Span::new(starts, ends, self.windows().into());
    }

    /// Whether the tokens were lent before their window began.
    fn is_ahead(&self) -> bool {
        !self.starts().is_at_once()
    }

    /// Unspent tokens that may be spent at `now`.
    fn usable(&self, now: Instant) -> u64 {
        if self.starts().has_come(now) && !self.ends().has_come(now) { self.left } else { 0 }
    }
}

impl Lease {
    /// Adds the tokens of a grant. Returns older ones that must make room.
    pub fn add(&mut self, segment: Segment) -> Option<Unspent> {
        if segment.left == 0 {
            return None;
        }
        // A store whose clock was set back may lend tokens ahead for a window of which it has lent some before. The
        // earlier ones may be spent at once; those that are lent ahead are charged to a window that has not begun by
        // that clock, so they must wait.
        let waits = |held: &Segment| !held.is_ahead() && segment.is_ahead();
        // Tokens of a call that took long end early. In one segment with others, they would make those end early, too.
        let is_apart = |held: &Segment| waits(held) || are_apart(held.ends(), segment.ends());
        let mut same = self.segments.iter_mut().filter(|held| held.windows() == segment.windows());
        if let Some(same) = same.find(|held| !is_apart(held)) {
            same.left = same.left.saturating_add(segment.left);
            same.retime(segment.starts(), segment.ends());
            return None;
        }
        self.segments.retain(|segment| segment.left > 0);
        // Tokens of the next window may be held already, and those of this window are spent before them.
        let place = self.segments.partition_point(|held| held.ends() <= segment.ends());
        self.segments.insert(place, segment);
        let full = self.segments.len() > MAX_SEGMENTS;
        if full { self.segments.take_first().map(Unspent::from) } else { None }
    }

    /// Takes note of a reading of the store's clock, by which tokens that were lent ahead may start earlier. An answer
    /// that waited for replicas shows only to within its long round trip when the window begins. A later reading may
    /// show that the window has surely begun; it counts only if both can be of one clock, because a window begins by
    /// the clock that lent it.
    pub fn note_clock(&mut self, rule: &Rule, clock: &StoreClock) {
        // Under several limits nothing is lent ahead.
        let [limit] = &rule.limits[..] else { return };
        for segment in self.segments.iter_mut().filter(|segment| segment.is_ahead()) {
            let Some(end) = segment.windows()[0] else { continue };
            let begins = end.time() - limit.period;
            let (earliest, surely) = (clock.before(begins), Due::at(clock.surely_after(begins)));
            let may_be_same = Due::at(earliest) <= segment.starts() && segment.ends() - limit.period <= surely;
            if may_be_same {
                segment.retime(surely, Due::NEVER);
            }
        }
    }

    /// Records that the store has heard what is held, by a call that was sent at `sent` and answered at `arrived`.
    /// Its clock showed `store` when it first gave this answer.
    pub fn account(&mut self, rule: &Rule, sent: Instant, arrived: Instant, store: Timestamp) {
        if rule.limits.iter().all(|limit| limit.algorithm != Algorithm::Gcra) || on(Mutant::AccountNeverCloses) {
            return;
        }
        let clock = StoreClock::new(sent, arrived, store);
        let executed = store - arrived.since(sent).rounded_late();
        let period = rule.account_period().0;
        let end = Timestamp((executed.0 / period + gcra::PERIODS) * period);
        self.until = Due::at(early(clock.before(end), sent));
    }

    /// When what is held must be accounted for; never for windows.
    #[must_use]
    pub fn until(&self) -> Due {
        self.until
    }

    /// Whether the store keeps an account for what is held of buckets, in which it awaits a report by [`until`](Self::until).
    #[must_use]
    pub fn has_account(&self) -> bool {
        !self.until.is_never()
    }

    /// Whether some tokens may no longer be spent.
    #[must_use]
    pub fn has_ended(&self, now: Instant) -> bool {
        self.until.has_come(now) || self.segments.iter().any(|segment| segment.ends().has_come(now))
    }

    /// Drops what has ended, and passes it to `gone`. Tokens of a closed account are only counted.
    pub fn drop_ended(&mut self, now: Instant, mut gone: impl FnMut(Unspent)) -> u64 {
        if on(Mutant::ExpiredNotSettled) {
            return 0;
        }
        if self.until.has_come(now) {
            return self.void();
        }
        if self.segments.iter().any(|segment| segment.ends().has_come(now)) {
            for segment in self.segments.iter().filter(|segment| segment.ends().has_come(now) && segment.left > 0) {
                gone(Unspent { tokens: segment.left, windows: segment.windows().into() });
            }
            self.segments.retain(|segment| !segment.ends().has_come(now));
        }
        0
    }

    /// Tokens that may be spent at `now`.
    #[must_use]
    pub fn usable(&self, now: Instant) -> u64 {
        if self.until.has_come(now) {
            return 0;
        }
        let mut usable = 0;
        for segment in self.segments.iter() {
            let part = segment.usable(now);
            usable += part;
            if part < segment.left {
                break;
            }
        }
        usable
    }

    /// How long the tokens that may be spent at `now` can be spent, all of them.
    #[must_use]
    pub fn usable_until(&self, now: Instant) -> Due {
        let usable = self.segments.iter().filter(|segment| segment.usable(now) > 0);
        usable.map(Segment::ends).fold(self.until, Due::min)
    }

    /// Tokens that may be spent at `now` or a little later, by `soon`.
    #[must_use]
    pub fn usable_by(&self, now: Instant, soon: Instant) -> u64 {
        let begun = |segment: &&Segment| segment.starts().has_come(soon) && !segment.ends().has_come(now);
        if self.until.has_come(now) {
            return 0;
        }
        self.segments.iter().filter(begun).map(|segment| segment.left).sum()
    }

    /// Spends `cost`, the oldest tokens first, if so much is usable; otherwise nothing.
    #[must_use]
    pub fn spend(&mut self, now: Instant, cost: u64) -> bool {
        if self.usable(now) < cost {
            return false;
        }
        let mut due = cost;
        for segment in self.segments.iter_mut() {
            let part = due.min(segment.left);
            segment.left -= part;
            segment.spent = segment.spent.saturating_add(part);
            due -= part;
            if due == 0 {
                break;
            }
        }
        true
    }

    /// Takes back up to `tokens` that were spent, from what is still held of those windows (`None` for any). Returns how
    /// many. Under GCRA only until the store has heard of them.
    pub fn refund(&mut self, now: Instant, tokens: u64, windows: &[Option<StoredTime>]) -> u64 {
        let is_of = |segment: &Segment| {
            let mut pairs = segment.windows().iter().zip(windows);
            pairs.all(|(held, charged)| held == charged || held.is_none() || charged.is_none())
        };
        let mut live =
            self.segments.iter_mut().rev().filter(|segment| segment.spent > 0 && !segment.ends().has_come(now));
        let spent_last = live.find(|segment| is_of(segment));
        let Some(segment) = spent_last else { return 0 };
        let back = tokens.min(segment.spent);
        segment.left += back;
        segment.spent -= back;
        back
    }

    /// Adds tokens of a bucket that the store has charged, but that nobody has spent after all.
    pub fn put_back(&mut self, tokens: u64) {
        let span = Span::Begun { ends: Due::NEVER, window: None };
        let none_had_to_go = self.add(Segment { left: tokens, spent: 0, span });
        debug_assert!(none_had_to_go.is_none(), "all tokens of a bucket are one segment");
    }

    /// Records that the store has counted what was spent so far, so that no refund brings it back to the lease.
    pub fn close_spent(&mut self) {
        for segment in self.segments.iter_mut() {
            segment.spent = 0;
        }
    }

    /// Tokens whose window has begun or will begin.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.segments.iter().map(|segment| segment.left).sum()
    }

    /// Tokens of a limit's window with that `Counter::at`.
    #[must_use]
    pub fn held_of(&self, index: usize, at: Timestamp) -> u64 {
        self.segments.iter().filter(|segment| segment.windows()[index] == at.stored()).map(|segment| segment.left).sum()
    }

    /// Tokens of the present windows, which are all but those that were lent ahead.
    #[must_use]
    pub fn current(&self, now: Instant) -> u64 {
        self.segments.iter().filter(|segment| segment.starts().has_come(now)).map(|segment| segment.left).sum()
    }

    /// When `cost` will be usable from what is held; `None` when less is held.
    #[must_use]
    pub fn ready(&self, cost: u64) -> Option<Due> {
        let mut due = cost;
        let mut ready = Due::AT_ONCE;
        for segment in self.segments.iter() {
            ready = ready.max(segment.starts());
            due = due.saturating_sub(segment.left);
            if due == 0 {
                return Some(ready);
            }
        }
        None
    }

    /// When tokens that were lent ahead may be spent, if there are any.
    #[must_use]
    pub fn starts(&self, now: Instant) -> Option<Instant> {
        let ahead = self.segments.iter().find(|segment| !segment.starts().has_come(now) && segment.left > 0);
        ahead.and_then(|segment| segment.starts().time())
    }

    /// `Counter::at` of one limit for the tokens that are spent next; if none are left, for those of the first segment that has not ended. After
    /// the store's clock was set, the next window may have begun by that clock before tokens end by the one that lent them.
    #[must_use]
    pub fn window(&self, index: usize, now: Instant) -> Option<Timestamp> {
        let mut live =
            self.segments.iter().filter(|segment| segment.starts().has_come(now) && !segment.ends().has_come(now));
        let first = live.clone().next();
        live.find(|segment| segment.left > 0)
            .or(first)
            .and_then(|segment| segment.windows()[index])
            .map(StoredTime::time)
    }

    /// Removes up to `tokens` unspent tokens of the newest segment of a present window, to be returned to the store.
    pub fn take(&mut self, now: Instant, tokens: u64) -> Option<Unspent> {
        let newest = self.segments.iter().rposition(|segment| segment.left > 0 && segment.starts().has_come(now))?;
        self.take_of(newest, tokens)
    }

    /// Removes all unspent tokens of a window that has not begun, to be returned to the store.
    pub fn take_ahead(&mut self, now: Instant) -> Option<Unspent> {
        let ahead = self.segments.iter().position(|segment| segment.left > 0 && !segment.starts().has_come(now))?;
        self.take_of(ahead, u64::MAX)
    }

    fn take_of(&mut self, index: usize, tokens: u64) -> Option<Unspent> {
        let segment = &mut self.segments[index];
        let part = tokens.min(segment.left);
        let unspent = Unspent { tokens: part, windows: segment.windows().into() };
        segment.left -= part;
        if segment.left == 0 {
            // What was spent of a segment may still be refunded.
            self.segments.retain(|segment| segment.left > 0 || segment.spent > 0);
        }
        (part > 0).then_some(unspent)
    }

    /// Drops tokens that may not be spent yet, except for those of the window `restored`.
    pub fn void_ahead(&mut self, now: Instant, restored: Option<Timestamp>) -> u64 {
        let held = self.held();
        self.segments.retain(|segment| {
            segment.starts().has_come(now) || restored.is_some_and(|at| segment.windows().first() == Some(&at.stored()))
        });
        held - self.held()
    }

    /// Drops everything held, and with it what there was to account for.
    pub fn void(&mut self) -> u64 {
        let held = self.held();
        self.segments.clear();
        self.until = Due::NEVER;
        held
    }
}

impl From<Segment> for Unspent {
    fn from(segment: Segment) -> Self {
        Self { tokens: segment.left, windows: segment.windows().into() }
    }
}

/// Whether tokens of one window end at times that are far from each other.
fn are_apart(one: Due, other: Due) -> bool {
    one.time().zip(other.time()).is_some_and(|(one, other)| one.since(other).max(other.since(one)) > TOGETHER)
}

/// `at`, minus the possible drift of this clock since `sent`.
fn early(at: Instant, sent: Instant) -> Instant {
    if on(Mutant::DriftMarginMissing) { at } else { sent + at.since(sent).rounded_early() }
}

/// `at`, plus the possible drift of this clock since `sent`.
fn late(at: Instant, sent: Instant) -> Instant {
    if on(Mutant::DriftMarginMissing) { at } else { sent + at.since(sent).rounded_late() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limit::Limit;

    const NOW: Instant = Instant(10_900_000);

    fn segment(tokens: u64, end: u64, ahead: bool) -> Segment {
        let rule = Rule::of("p", &[Limit::parse("10/1s fixed").expect("a limit")]);
        let clock = StoreClock::new(NOW, NOW, Timestamp(NOW.0));
        Segment::new(&rule, tokens, NOW, clock, &[Timestamp(end).stored()], ahead)
    }

    #[test]
    fn tokens_lent_ahead_do_not_bar_those_of_this_window() {
        let mut lease = Lease::default();
        assert_eq!(lease.add(segment(3, 12_000_000, true)), None);
        assert_eq!(lease.add(segment(2, 11_000_000, false)), None);
        assert_eq!((lease.usable(NOW), lease.held()), (2, 5));
        assert!(lease.spend(NOW, 2));
        assert_eq!((lease.usable(NOW), lease.held()), (0, 3));
    }

    #[test]
    fn tokens_lent_of_a_window_show_that_it_has_begun() {
        let mut lease = Lease::default();
        assert_eq!(lease.add(segment(3, 12_000_000, true)), None);
        assert_eq!(lease.usable(NOW), 0);
        assert_eq!(lease.add(segment(2, 12_000_000, false)), None);
        assert_eq!((lease.usable(NOW), lease.held()), (5, 5));
    }

    /// The clock was set back, so the same window begins a second time.
    #[test]
    fn tokens_lent_ahead_by_a_clock_that_was_set_back_wait_for_their_window() {
        let mut lease = Lease::default();
        assert_eq!(lease.add(segment(1, 12_000_000, false)), None);
        assert_eq!(lease.add(segment(2, 11_000_000, false)), None);
        assert_eq!(lease.add(segment(3, 12_000_000, true)), None);
        assert_eq!(lease.add(segment(1, 12_000_000, true)), None);
        assert_eq!((lease.usable(NOW), lease.current(NOW), lease.held()), (3, 3, 7));
        assert!(lease.spend(NOW, 3));
        assert_eq!((lease.usable(NOW), lease.held_of(0, Timestamp(12_000_000))), (0, 4));
    }

    /// The call that brought the first two tokens took a fifth of a second; the other three end as their own call says.
    #[test]
    fn what_a_late_answer_brings_does_not_end_what_others_have_brought() {
        let (rule, mut lease) = (Rule::of("p", &[Limit::parse("10/1s fixed").expect("a limit")]), Lease::default());
        let brought = |tokens: u64, trip: u64| {
            let (sent, windows) = (Instant(NOW.0 - trip), [Timestamp(11_000_000).stored()]);
            // The store's clock is read when the answer leaves.
            let clock = StoreClock::new(sent, NOW, Timestamp(NOW.0 - 300_000));
            Segment::new(&rule, tokens, sent, clock, &windows, false)
        };
        for (tokens, trip) in [(2, 200_000), (2, 1_000), (1, 5_000)] {
            assert_eq!(lease.add(brought(tokens, trip)), None);
        }
        assert_eq!(lease.usable(NOW + Micros(190_000)), 5);
        let later = NOW + Micros(210_000);
        assert_eq!(lease.drop_ended(later, |gone| assert_eq!(gone.tokens, 2)), 0);
        assert_eq!(lease.usable(later), 3);
    }

    /// Ten tokens of the window that begins 100 ms after `NOW`, by an answer that leaves the store at `NOW` and comes 50 ms later.
    fn lent_ahead_by_a_late_answer() -> (Rule, Lease) {
        let (rule, mut lease) = (Rule::of("p", &[Limit::parse("10/1s fixed").expect("a limit")]), Lease::default());
        let clock = StoreClock::new(NOW, NOW + Micros(50_000), Timestamp(NOW.0));
        let windows = [Timestamp(12_000_000).stored()];
        assert_eq!(lease.add(Segment::new(&rule, 10, NOW, clock, &windows, true)), None);
        (rule, lease)
    }

    #[test]
    fn tokens_lent_ahead_start_when_any_answer_shows_that_their_window_has_begun() {
        let (rule, mut lease) = lent_ahead_by_a_late_answer();
        let begins = Instant(11_000_000);
        assert!(lease.usable(begins + Micros(49_999)) == 0 && lease.usable(begins + Micros(50_100)) == 10);
        // A call of 600 us, in the middle of which the store read its clock.
        let sent = NOW + Micros(60_000);
        lease.note_clock(&rule, &StoreClock::new(sent, sent + Micros(600), Timestamp(sent.0 + 300)));
        assert_eq!(lease.usable(begins + Micros(299)), 0, "the clock may have been read when the answer came");
        assert_eq!(lease.usable(begins + Micros(310)), 10);
        let slow = StoreClock::new(sent, sent + Micros(90_000), Timestamp(sent.0));
        lease.note_clock(&rule, &slow);
        assert_eq!(lease.usable(begins + Micros(310)), 10, "one that says less takes nothing back");
    }

    /// After a slot has moved, or after a failover, another server's clock answers.
    #[test]
    fn an_answer_by_another_clock_does_not_begin_a_window() {
        for differs in [-60_000, -1_000_000, 60_000, 1_000_000] {
            let (rule, mut lease) = lent_ahead_by_a_late_answer();
            let sent = NOW + Micros(60_000);
            let store = Timestamp(sent.0.saturating_add_signed(differs));
            lease.note_clock(&rule, &StoreClock::new(sent, sent, store));
            assert_eq!(lease.usable(Instant(11_049_999)), 0, "{differs}");
            assert_eq!(lease.usable(Instant(11_050_100)), 10, "{differs}");
        }
    }

    #[test]
    fn tokens_at_hand_are_of_the_window_of_which_some_are_left() {
        let mut lease = Lease::default();
        assert_eq!(lease.add(segment(1, 11_000_000, false)), None);
        assert!(lease.spend(NOW, 1));
        assert_eq!(lease.window(0, NOW), Some(Timestamp(11_000_000)), "it was the last");
        // A second server lends tokens of a window that has not begun by the first server's clock.
        assert_eq!(lease.add(segment(2, 12_000_000, false)), None);
        assert_eq!(lease.window(0, NOW), Some(Timestamp(12_000_000)));
    }

    #[test]
    fn what_is_void_has_no_account() {
        let (rule, mut lease) = (Rule::of("p", &[Limit::parse("10/1s").expect("a limit")]), Lease::default());
        lease.account(&rule, NOW, NOW, Timestamp(NOW.0));
        assert!(lease.has_account());
        assert_eq!((lease.void(), lease.has_account()), (0, false));
    }

    #[test]
    fn only_what_was_spent_of_a_window_goes_back_to_it() {
        let mut lease = Lease::default();
        assert_eq!(lease.add(segment(5, 11_000_000, false)), None);
        assert!(lease.spend(NOW, 4));
        assert_eq!(lease.refund(NOW, 3, &[Timestamp(12_000_000).stored()]), 0);
        assert_eq!(lease.refund(NOW, 3, &[Timestamp(11_000_000).stored()]), 3);
        assert_eq!((lease.refund(NOW, 3, &[None]), lease.held()), (1, 5));
    }
}
