//! The tokens that a node holds for one key, and when each may be spent.
//!
//! A lease is a short line of segments, one per grant, oldest first. A segment's tokens are bound to
//! the windows that lent them; under gcra each token is an emission slot that matures and lapses.
//! What must end early is counted from the sending of the call, what must begin late from the
//! arrival of its answer. Knows nothing of the store, of waiters or of tuning.

use std::collections::VecDeque;

use super::gcra;
use super::limit::{Algorithm, Limit};
use super::mutant::{Mutant, on};
use super::policy::Rule;
use super::time::{Instant, Micros, Timestamp};

/// Segments a lease may have; older ones make room. Only gcra ever has more than two.
const MAX_SEGMENTS: usize = 6;

/// How the store's clock stands to this node's, as of one answer: the store read its clock somewhere
/// between the sending of the call and the arrival of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreClock {
    /// The store's time less the local time at the sending.
    offset: i64,
    /// From the sending to the arrival.
    trip: u64,
}

impl StoreClock {
    /// The relation shown by a call sent and answered at these local times.
    #[must_use]
    pub fn new(sent: Instant, arrived: Instant, store: Timestamp) -> Self {
        let offset = i64::try_from(i128::from(store.0) - i128::from(sent.0)).unwrap_or(i64::MAX);
        Self { offset, trip: arrived.since(sent).0 }
    }

    /// From the sending of the call to the arrival of its answer.
    #[must_use]
    pub fn trip(&self) -> Micros {
        Micros(self.trip)
    }

    /// The latest that the store's clock can read at `now`.
    #[must_use]
    pub fn latest(&self, now: Instant) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.offset))
    }

    /// The earliest that the store's clock can read at `now`.
    #[must_use]
    pub fn earliest(&self, now: Instant) -> Timestamp {
        Timestamp(self.latest(now).0.saturating_sub(self.trip))
    }

    /// The local time by which the store's clock has surely not passed `at`.
    #[must_use]
    pub fn before(&self, at: Timestamp) -> Instant {
        Instant(at.0.saturating_add_signed(self.offset.saturating_neg()))
    }

    /// The local time by which the store's clock has surely passed `at`.
    #[must_use]
    pub fn after(&self, at: Timestamp) -> Instant {
        self.before(at) + Micros(self.trip)
    }
}

/// Tokens of one grant.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Unspent tokens.
    pub left: u32,
    /// Tokens spent since the last one lapsed: those just before the first unspent.
    spent: u32,
    /// When the call that brought them was first sent.
    sent: Instant,
    /// Not to be spent before.
    pub starts: Instant,
    /// Not to be spent from here on.
    pub ends: Instant,
    clock: StoreClock,
    /// `Counter::at` per limit right after the grant: the window, or gcra's TAT.
    pub windows: Box<[Timestamp]>,
}

/// Tokens that left a lease unspent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// How many.
    pub tokens: u32,
    /// `Counter::at` per limit as they were lent.
    pub windows: Box<[Timestamp]>,
}

/// All that a node holds for one key.
#[derive(Clone, Debug, Default)]
pub struct Lease {
    segments: VecDeque<Segment>,
}

impl Segment {
    /// The tokens of a grant. `ahead` of the current window: they start where it ends.
    #[must_use]
    pub fn new(rule: &Rule, tokens: u32, sent: Instant, clock: StoreClock, windows: &[Timestamp], ahead: bool) -> Self {
        let windows: Box<[Timestamp]> = windows[..rule.limits.len()].into();
        let mut starts = Instant(0);
        let mut ends = Instant(u64::MAX);
        for (limit, at) in rule.limits.iter().zip(&windows) {
            let end = match limit.algorithm {
                Algorithm::Gcra => continue,
                Algorithm::Fixed | Algorithm::FixedFromFirst => *at,
                Algorithm::Sliding => *at + limit.period,
            };
            let begin = if ahead { end - limit.period } else { Timestamp(0) };
            starts = starts.max(if ahead { late(clock.after(begin), sent) } else { Instant(0) });
            if on(Mutant::LeaseCrossesWindow) {
                continue;
            }
            let last = if on(Mutant::ExpiryFromArrival) { clock.after(end) } else { clock.before(end) };
            ends = ends.min(early(last, sent));
        }
        Self { left: tokens, spent: 0, sent, starts, ends, clock, windows }
    }

    /// Unspent tokens that may be spent at `now`.
    fn usable(&self, rule: &Rule, now: Instant) -> u32 {
        if now < self.starts || now >= self.ends {
            return 0;
        }
        let mut usable = self.left;
        for (limit, base) in self.slots(rule) {
            let clock = if on(Mutant::MaturityFromSending) { self.clock.latest(now) } else { self.clock.earliest(now) };
            let reach = clock + gcra::depth(limit);
            usable = usable.min(clamp(gcra::tokens_in(limit, reach.since(base))));
        }
        usable
    }

    /// Unspent tokens whose time has passed at `now`.
    fn lapsed(&self, rule: &Rule, now: Instant) -> u32 {
        if now >= self.ends {
            return self.left;
        }
        let mut lapsed = 0;
        for (limit, base) in self.slots(rule) {
            let life = gcra_life(limit).rounded_early();
            if now.since(self.sent) < life || on(Mutant::GcraLivesOn) {
                continue;
            }
            let matured = self.clock.latest(now) - life + gcra::depth(limit);
            lapsed = lapsed.max(clamp(gcra::tokens_in(limit, matured.since(base))));
        }
        lapsed.min(self.left)
    }

    /// The gcra limits with the slot of the first unspent token.
    fn slots<'a>(&'a self, rule: &'a Rule) -> impl Iterator<Item = (&'a Limit, Timestamp)> {
        let all = rule.limits.iter().zip(&self.windows);
        all.filter(|(limit, _)| limit.algorithm == Algorithm::Gcra)
            .map(|(limit, at)| (limit, *at - gcra::cost(limit, u64::from(self.left))))
    }

    /// When the first of the unspent tokens lapses.
    fn first_lapse(&self, rule: &Rule) -> Instant {
        let lapses = self.slots(rule).map(|(limit, base)| {
            let slot = base + gcra::cost(limit, 1);
            let mature = self.clock.before(Timestamp(slot.0.saturating_sub(gcra::depth(limit).0)));
            mature.max(self.sent) + gcra_life(limit).rounded_early()
        });
        lapses.min().unwrap_or(Instant(u64::MAX)).min(self.ends)
    }

    /// When the first `tokens` of the unspent ones are all mature.
    fn matures(&self, rule: &Rule, tokens: u32) -> Instant {
        let mature = self.slots(rule).map(|(limit, base)| {
            let slot = base + gcra::cost(limit, u64::from(tokens));
            self.clock.after(Timestamp(slot.0.saturating_sub(gcra::depth(limit).0)))
        });
        mature.max().unwrap_or(Instant(0)).max(self.starts)
    }
}

impl Lease {
    /// Adds the tokens of a grant. Returns what had to make room.
    pub fn add(&mut self, rule: &Rule, segment: Segment) -> Option<Leftover> {
        if segment.left == 0 {
            return None;
        }
        let gcra = rule.limits.iter().any(|limit| limit.algorithm == Algorithm::Gcra);
        if let Some(last) = self.segments.back_mut()
            && !gcra
            && last.windows == segment.windows
        {
            last.left = last.left.saturating_add(segment.left);
            last.ends = last.ends.min(segment.ends);
            last.starts = last.starts.max(segment.starts);
            return None;
        }
        self.segments.push_back(segment);
        self.segments.retain(|segment| segment.left > 0);
        let full = self.segments.len() > MAX_SEGMENTS;
        full.then(|| self.segments.pop_front()).flatten().map(Leftover::from)
    }

    /// Drops what has ended or lapsed; each is reported.
    pub fn settle(&mut self, rule: &Rule, now: Instant, mut gone: impl FnMut(Leftover)) {
        if on(Mutant::ExpiredNotSettled) {
            return;
        }
        for segment in &mut self.segments {
            let lapsed = segment.lapsed(rule, now);
            if lapsed > 0 {
                gone(Leftover { tokens: lapsed, windows: segment.windows.clone() });
                segment.left -= lapsed;
                segment.spent = 0;
            }
        }
        if self.segments.front().is_some_and(|segment| now >= segment.ends) {
            self.segments.retain(|segment| now < segment.ends);
        }
    }

    /// Tokens that may be spent at `now`.
    #[must_use]
    pub fn usable(&self, rule: &Rule, now: Instant) -> u64 {
        let mut usable = 0;
        for segment in &self.segments {
            let part = segment.usable(rule, now);
            usable += u64::from(part);
            if part < segment.left {
                break;
            }
        }
        usable
    }

    /// Spends `cost`, oldest tokens first, if that much is usable; otherwise nothing.
    #[must_use]
    pub fn spend(&mut self, rule: &Rule, now: Instant, cost: u64) -> bool {
        if self.usable(rule, now) < cost {
            return false;
        }
        let mut due = cost;
        for segment in &mut self.segments {
            let part = due.min(u64::from(segment.left)) as u32; // at most `left`
            segment.left -= part;
            segment.spent = segment.spent.saturating_add(part);
            due -= u64::from(part);
            if due == 0 {
                break;
            }
        }
        true
    }

    /// Takes back up to `tokens` that were spent from what is still held; returns how many.
    pub fn refund(&mut self, rule: &Rule, now: Instant, tokens: u64) -> u64 {
        let spent_last = self.segments.iter_mut().rev().find(|segment| segment.spent > 0 && now < segment.ends);
        let Some(segment) = spent_last else { return 0 };
        let back = tokens.min(u64::from(segment.spent)) as u32; // at most `spent`
        segment.left += back;
        if segment.lapsed(rule, now) > 0 {
            segment.left -= back;
            return 0;
        }
        segment.spent -= back;
        u64::from(back)
    }

    /// Tokens held, mature or not, whose window has begun or will.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.left)).sum()
    }

    /// Tokens held that belong to the current windows: all but those lent ahead.
    #[must_use]
    pub fn current(&self, now: Instant) -> u64 {
        self.segments.iter().filter(|segment| segment.starts <= now).map(|segment| u64::from(segment.left)).sum()
    }

    /// When `cost` will be usable from what is held; `None` when less is held, or when the first of
    /// these tokens lapses before the last matures.
    #[must_use]
    pub fn matures(&self, rule: &Rule, cost: u64) -> Option<Instant> {
        let mut due = cost;
        let (mut ready, mut lapse) = (Instant(0), Instant(u64::MAX));
        for segment in &self.segments {
            let part = due.min(u64::from(segment.left)) as u32; // at most `left`
            if part > 0 {
                ready = ready.max(segment.matures(rule, part));
                lapse = lapse.min(segment.first_lapse(rule));
            }
            due -= u64::from(part);
            if due == 0 {
                return (ready < lapse).then_some(ready);
            }
        }
        None
    }

    /// When tokens lent ahead may be spent, if any are held.
    #[must_use]
    pub fn starts(&self, now: Instant) -> Option<Instant> {
        self.segments.iter().find(|segment| segment.starts > now && segment.left > 0).map(|segment| segment.starts)
    }

    /// `Counter::at` of one limit as the tokens at hand were lent.
    #[must_use]
    pub fn window(&self, index: usize, now: Instant) -> Option<Timestamp> {
        let live = self.segments.iter().find(|segment| segment.starts <= now && now < segment.ends);
        live.map(|segment| segment.windows[index])
    }

    /// When the first segment ends.
    #[must_use]
    pub fn ends(&self) -> Option<Instant> {
        self.segments.iter().map(|segment| segment.ends).min()
    }

    /// Hands out up to `tokens` unspent ones of the newest segment of a current window, to be
    /// returned to the store.
    pub fn take(&mut self, rule: &Rule, now: Instant, tokens: u64) -> Option<Leftover> {
        let newest = self.segments.iter_mut().rev().find(|segment| segment.left > 0 && segment.starts <= now)?;
        let part = tokens.min(u64::from(newest.left)) as u32; // at most `left`
        let leftover = Leftover { tokens: part, windows: newest.windows.clone() };
        newest.left -= part;
        // gcra hands back the last slots of the grant, so the rest now ends before them.
        for (limit, at) in rule.limits.iter().zip(&mut newest.windows) {
            if limit.algorithm == Algorithm::Gcra {
                *at = *at - gcra::cost(limit, u64::from(part));
            }
        }
        if newest.left == 0 {
            self.segments.retain(|segment| segment.left > 0);
        }
        (part > 0).then_some(leftover)
    }

    /// Drops everything held.
    pub fn void(&mut self) -> u64 {
        let held = self.held();
        self.segments.clear();
        held
    }
}

impl From<Segment> for Leftover {
    fn from(segment: Segment) -> Self {
        Self { tokens: segment.left, windows: segment.windows }
    }
}

/// How long a gcra token may be spent after it matured (or was lent, if that is later): a twentieth
/// of the burst, at least one token's interval, within [2 ms, 1 s].
/// Admitted in any interval T is then at most `burst + rate * (T + life) + 1`.
#[must_use]
pub fn gcra_life(limit: &Limit) -> Micros {
    let tokens = (limit.burst / 20).max(1);
    Micros(gcra::cost(limit, tokens).0.clamp(2_000, 1_000_000))
}

/// `at`, less the drift that this clock may have had since `sent`.
fn early(at: Instant, sent: Instant) -> Instant {
    if on(Mutant::DriftMarginMissing) { at } else { sent + at.since(sent).rounded_early() }
}

/// `at`, and the drift that this clock may have had since `sent`.
fn late(at: Instant, sent: Instant) -> Instant {
    if on(Mutant::DriftMarginMissing) { at } else { sent + at.since(sent).rounded_late() }
}

fn clamp(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
