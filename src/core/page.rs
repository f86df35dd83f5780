//! Where a listing of keys goes on: a shard shows its keys page by page, in an order that lasts.
//!
//! Keys of concurrent limits come first, by their digests, then all others by a number that the shard gives
//! them. Keys that come and go meanwhile may be missed or shown twice; all others are shown once.

/// A place in a shard's order: the next page begins with the first key at it or behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u128);

/// Digests lose so many of their bits, so that both kinds of places fit.
const LOST: u32 = 7;

/// The first place of those keys that have numbers.
const NUMBERED: u128 = 1 << (128 - LOST);

impl Place {
    /// Places are below two to the power of this.
    pub const BITS: u32 = 128 - LOST + 1;

    /// The place that [`Self::number`] gave; above the last one, the last one.
    #[must_use]
    pub fn of(number: u128) -> Self {
        Self(number.min((1 << Self::BITS) - 1))
    }

    /// As a number, for whoever asks for the next page.
    #[must_use]
    pub fn number(self) -> u128 {
        self.0
    }

    /// Behind a key of a concurrent limit.
    #[must_use]
    pub fn behind(digest: u128) -> Self {
        Self((digest >> LOST) + 1)
    }

    /// At the key of that number.
    #[must_use]
    pub fn at(number: u64) -> Self {
        Self(NUMBERED + u128::from(number))
    }

    /// From which digest on keys of concurrent limits are still to be shown; `None`: all were.
    #[must_use]
    pub fn digest(self) -> Option<u128> {
        (self.0 < NUMBERED).then_some(self.0 << LOST)
    }

    /// The number at which the other keys go on; 0: they have yet to begin.
    #[must_use]
    pub fn turn(self) -> u64 {
        u64::try_from(self.0.saturating_sub(NUMBERED)).unwrap_or(u64::MAX)
    }
}

/// Most bytes of a key that listings show: the digest tells keys apart.
pub const LONGEST_NAME: usize = 256;

/// As much of a key as listings show.
#[must_use]
pub fn name(key: &[u8]) -> Box<[u8]> {
    key[..key.len().min(LONGEST_NAME)].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_stand_in_the_order_of_pages() {
        let first = u128::MAX - 5;
        assert!(
            Place::default() < Place::behind(0) && Place::behind(first) <= Place::at(0) && Place::at(0) < Place::at(9)
        );
        assert_eq!((Place::default().digest(), Place::default().turn()), (Some(0), 0));
        assert!(Place::behind(7 << 100).digest().is_some_and(|next| next > 7 << 100));
        assert_eq!((Place::at(9).digest(), Place::at(9).turn()), (None, 9));
        for place in [Place::default(), Place::behind(3 << 90), Place::at(0), Place::at(u64::MAX)] {
            assert_eq!(Place::of(place.number()), place);
            assert!(place.number() >> Place::BITS == 0);
        }
        assert_eq!(Place::of(u128::MAX).turn(), u64::MAX);
    }
}
