//! Large numbers in few bytes, for what is measured and not counted.
//!
//! A daemon knows millions of keys, and each has several such numbers.

use std::fmt;

/// A number that is exact below 2^30. A larger one is kept in units of 2^8, 2^16 or 2^24, which is to within four millionths of it; and
/// 2^54 and more as a little less than that.
///
/// The upper two bits are the unit, the others how many of them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Rough(u32);

const COUNT_BITS: u32 = 30;
const MOST_UNITS: u64 = (1 << COUNT_BITS) - 1;

/// Each unit is so many bits larger than the one before.
const STEP: u32 = 8;

impl Rough {
    pub(super) const ZERO: Self = Self(0);

    /// The number, rounded down.
    pub(super) fn at_most(number: u64) -> Self {
        Self::in_units(number, |unit| number >> unit)
    }

    /// The number, rounded up.
    pub(super) fn at_least(number: u64) -> Self {
        Self::in_units(number, |unit| number.div_ceil(1 << unit))
    }

    /// In the smallest unit of which there are not too many.
    #[inline]
    fn in_units(number: u64, count: impl Fn(u32) -> u64) -> Self {
        if number <= MOST_UNITS {
            return Self(number as u32);
        }
        let fits = |unit: &u32| count(*unit * STEP) <= MOST_UNITS;
        let unit = (1..=3).find(fits).unwrap_or(3);
        Self(unit << COUNT_BITS | count(unit * STEP).min(MOST_UNITS) as u32)
    }

    /// The number that is kept.
    #[inline]
    pub(super) const fn get(self) -> u64 {
        (self.0 as u64 & MOST_UNITS) << ((self.0 >> COUNT_BITS) * STEP)
    }
}

impl fmt::Debug for Rough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_number_to_within_four_millionths(number in 0..1_u64 << 54, bits in 0..54_u32) {
            let number = number >> bits;
            let (low, high) = (Rough::at_most(number).get(), Rough::at_least(number).get());
            prop_assert!(low <= number && high.min(MOST_UNITS << 24) >= number.min(MOST_UNITS << 24));
            prop_assert!(high - low <= number / 4_000_000);
            prop_assert!(number >= 1 << 30 || low == number && high == number);
        }
    }

    #[test]
    fn what_is_larger_is_the_largest() {
        let largest = ((1 << 30) - 1) << 24;
        assert_eq!([Rough::at_most(u64::MAX).get(), Rough::at_least(u64::MAX).get()], [largest; 2]);
        assert_eq!(Rough::at_least((1 << 30) + 1).get(), (1 << 30) + 256);
        assert_eq!((Rough::ZERO, Rough::ZERO.get()), (Rough::default(), 0));
    }
}
