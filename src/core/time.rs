//! Three notions of time, never mixed.
//!
//! [`Instant`] is this node's monotonic clock and decides deadlines and lease ends. [`Timestamp`] is
//! the store's clock and decides windows. The wall clock appears only at the edges, for people.
//! All are whole microseconds, so decisions are integer arithmetic. Nothing here reads a clock:
//! `crate::clock` does, and passes values down.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZero;
use std::ops::{Add, Sub};

/// A length of time in whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// A point on this node's monotonic clock: microseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

/// A point on the store's clock: Unix time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

/// A time of the store's clock that is not its very first, so that there is a single number for it in the arguments of a call: 0 for none.
///
/// It takes no more room than a [`Timestamp`], nor does an `Option` of it, nor an enum of which one variant has it: a store counts to
/// 2^53, so the upper byte of the number says nothing, and the 255 values that are left of that are for the tags of what lies around.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoredTime {
    low: u32,
    middle: u16,
    high: u8,
    upper: Zero,
}

/// A byte that is always 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
enum Zero {
    Zero,
}

/// Clocks of two machines are allowed to drift apart by this fraction: 200 ppm, twice what a quartz that nothing corrects does. More
/// would end every lease earlier than need be; less, and a lease might outlast its window.
pub(super) const DRIFT_PART: u64 = 5_000;

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Longer than anything lasts: the time until something that never happens.
    pub const ENDLESS: Self = Self(u64::MAX);

    /// A length of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A length of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Whole seconds, rounded up: what users are shown.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whole milliseconds, rounded up.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// This length less 200 ppm of clock drift, rounded down: for what must end early.
    #[must_use]
    pub const fn rounded_early(self) -> Self {
        Self(self.0 - self.0.div_ceil(DRIFT_PART))
    }

    /// This length and 200 ppm of clock drift, rounded up: for what must begin late.
    #[must_use]
    pub const fn rounded_late(self) -> Self {
        Self(self.0.saturating_add(self.0.div_ceil(DRIFT_PART)))
    }
}

impl Instant {
    /// The length from `earlier` to this point; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// How much of the clock is left from this point on.
    const fn left(self) -> u64 {
        u64::MAX - self.0
    }
}

/// A time of this node's clock that is kept where there may be none, so that an `Option` of it takes no more room than an [`Instant`].
///
/// It does not hold the time, but how much of the clock is left from then on, which is more than nothing but at the clock's very end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptInstant(NonZero<u64>);

impl KeptInstant {
    /// The last time but one stands for the last, which no clock reaches.
    pub(super) const fn of(at: Instant) -> Self {
        match NonZero::new(at.left()) {
            Some(left) => Self(left),
            None => Self(NonZero::<u64>::MIN),
        }
    }

    /// The time.
    pub(super) const fn time(self) -> Instant {
        Instant(u64::MAX - self.0.get())
    }
}

impl fmt::Debug for KeptInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.time().fmt(f)
    }
}

/// When something is to be done: at a time of this node's clock, at once, or never. Never is later than every time.
///
/// It is no larger than an [`Instant`], because a key has many of them. It stores how much of the clock's range is left
/// after the time, and `None` counts as 0, so one comparison of two numbers tells whether a time has come, also for
/// never.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Due(Option<KeptInstant>);

impl Due {
    /// Due at any time.
    pub const AT_ONCE: Self = Self::at(Instant(0));

    /// Nothing is to be done.
    pub const NEVER: Self = Self(None);

    /// Due from `at` on. The very last instant of the clock counts as never.
    #[must_use]
    pub const fn at(at: Instant) -> Self {
        match NonZero::new(at.left()) {
            Some(left) => Self(Some(KeptInstant(left))),
            None => Self::NEVER,
        }
    }

    /// Whether nothing is to be done.
    #[must_use]
    pub const fn is_never(self) -> bool {
        self.0.is_none()
    }

    /// Whether it is due at any time.
    #[must_use]
    pub fn is_at_once(self) -> bool {
        self == Self::AT_ONCE
    }

    /// Whether its time has come.
    #[must_use]
    pub fn has_come(self, now: Instant) -> bool {
        now.left() <= self.left()
    }

    /// How long it is until then; zero when its time has come.
    #[must_use]
    pub fn after(self, now: Instant) -> Micros {
        Micros(now.left().saturating_sub(self.left()))
    }

    /// The earlier of it and a time.
    #[must_use]
    pub fn or(self, at: Instant) -> Self {
        self.min(Self::at(at))
    }

    /// The time; `None` for never.
    #[must_use]
    pub fn time(self) -> Option<Instant> {
        self.0.map(KeptInstant::time)
    }

    /// How much of the clock is left from its time on.
    fn left(self) -> u64 {
        self.0.map_or(0, |kept| kept.0.get())
    }
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Due").field(&self.time()).finish()
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        other.left().cmp(&self.left())
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A [`Due`] in six bytes, for what a key remembers. The clock begins with the process, and what is due more than eight years after that is
/// due never.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
pub(super) struct KeptDue {
    low: u32,
    high: u16,
}

impl KeptDue {
    /// Due at any time.
    pub(super) const AT_ONCE: Self = Self { low: 0, high: 0 };

    /// Nothing is to be done.
    pub(super) const NEVER: Self = Self { low: u32::MAX, high: u16::MAX };

    /// Keeps it.
    pub(super) fn of(due: Due) -> Self {
        match due.time() {
            Some(Instant(at)) if at < Self::END => Self { low: at as u32, high: (at >> 32) as u16 },
            _ => Self::NEVER,
        }
    }

    /// What is kept.
    pub(super) fn due(self) -> Due {
        let at = u64::from(self.high) << 32 | u64::from(self.low);
        if at == Self::END { Due::NEVER } else { Due::at(Instant(at)) }
    }

    /// The number that stands for never.
    const END: u64 = (1 << 48) - 1;
}

impl fmt::Debug for KeptDue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.due().fmt(f)
    }
}

impl Timestamp {
    /// The same time, for a place that may also hold no time; `None` for 0.
    #[must_use]
    pub const fn stored(self) -> Option<StoredTime> {
        StoredTime::read(self.0)
    }

    /// The length from `earlier` to this point; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// Unix milliseconds, rounded up.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }
}

impl StoredTime {
    /// Reads a number of a call or of the store, in which 0 says that there is no time.
    #[must_use]
    pub const fn read(number: u64) -> Option<Self> {
        if number == 0 {
            return None;
        }
        let number = if number < Self::LAST { number } else { Self::LAST };
        let (low, middle, high) = (number as u32, (number >> 32) as u16, (number >> 48) as u8);
        Some(Self { low, middle, high, upper: Zero::Zero })
    }

    /// Stands for all later times, too.
    const LAST: u64 = (1 << 56) - 1;

    /// The number that stands for it in a call: 0 for none.
    #[must_use]
    pub fn number(time: Option<Self>) -> u64 {
        time.map_or(0, |time| time.time().0)
    }

    /// The time.
    #[must_use]
    pub const fn time(self) -> Timestamp {
        Timestamp((self.high as u64) << 48 | (self.middle as u64) << 32 | self.low as u64)
    }
}

impl fmt::Debug for StoredTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.time().fmt(f)
    }
}

impl Ord for StoredTime {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time().cmp(&other.time())
    }
}

impl PartialOrd for StoredTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Add<Micros> for Instant {
    type Output = Self;
    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Instant {
    type Output = Self;
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Sub<Micros> for Due {
    type Output = Self;
    /// Earlier by `span`; never stays never.
    fn sub(self, span: Micros) -> Self {
        self.time().map_or(Self::NEVER, |at| Self::at(at - span))
    }
}

impl Add<Micros> for Timestamp {
    type Output = Self;
    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Micros> for Timestamp {
    type Output = Self;
    fn sub(self, span: Micros) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl Add for Micros {
    type Output = Self;
    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_in_the_order_of_time_and_never_is_last() {
        let [soon, late] = [Due::at(Instant(5)), Due::at(Instant(6))];
        assert!(Due::AT_ONCE < soon && soon < late && late < Due::NEVER);
        assert_eq!((soon.min(late), soon.max(Due::NEVER)), (soon, Due::NEVER));
        assert_eq!((Due::NEVER.or(Instant(5)), late.or(Instant(5)), soon.or(Instant(6))), (soon, soon, soon));
        assert_eq!([Due::AT_ONCE.time(), late.time(), Due::NEVER.time()], [Some(Instant(0)), Some(Instant(6)), None]);
    }

    #[test]
    fn a_stored_time_is_the_number_that_it_was_read_from() {
        let numbers = [1, 0xffff_ffff, 0x1_0000_0000, 1_800_000_000_000_000, (1 << 53) - 1, (1 << 56) - 1];
        for number in numbers {
            assert_eq!(StoredTime::read(number).map(StoredTime::time), Some(Timestamp(number)));
            assert_eq!(StoredTime::number(Timestamp(number).stored()), number);
        }
        assert!(numbers.map(StoredTime::read).is_sorted() && StoredTime::read(0).is_none());
        assert_eq!(StoredTime::read(u64::MAX).map(StoredTime::time), Some(Timestamp((1 << 56) - 1)));
        assert_eq!(size_of::<Option<Option<StoredTime>>>(), size_of::<Timestamp>());
    }

    #[test]
    fn what_is_due_is_kept_for_eight_years() {
        let years = |years: u64| Due::at(Instant(years * 365 * 86_400 * 1_000_000));
        for due in [Due::AT_ONCE, Due::at(Instant(1)), Due::at(Instant(0x1_2345_6789)), years(1), years(8), Due::NEVER]
        {
            assert_eq!(KeptDue::of(due).due(), due);
        }
        assert!(KeptDue::of(years(9)).due().is_never());
        assert_eq!((KeptDue::AT_ONCE.due(), KeptDue::NEVER.due(), size_of::<KeptDue>()), (Due::AT_ONCE, Due::NEVER, 6));
    }

    #[test]
    fn a_time_comes_and_never_does_not() {
        let due = Due::at(Instant(5));
        assert_eq!([4, 5, 6].map(|now| due.has_come(Instant(now))), [false, true, true]);
        assert_eq!([0, 5, 9].map(|now| due.after(Instant(now))), [Micros(5), Micros(0), Micros(0)]);
        assert!(Due::AT_ONCE.has_come(Instant(0)) && !Due::NEVER.has_come(Instant(u64::MAX - 1)));
        assert_eq!(due - Micros(9), Due::AT_ONCE);
        assert!((Due::NEVER - Micros(9)).is_never() && !due.is_never());
        assert_eq!(size_of::<Due>(), size_of::<Instant>());
    }
}
