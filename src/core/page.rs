//! Positions in a listing of keys, which a shard shows page by page in a stable order.
//!
//! Keys of concurrent limits come first, by digest, then all others by a number that the shard gives them. Keys that
//! come or go meanwhile may be missed or shown twice; all others are shown once.

/// A position in a shard's order. The next page begins with the first key at it or after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(u128);

/// Low bits of a digest that are dropped, so that both kinds of positions fit.
const LOST: u32 = 7;

/// The first position of keys with numbers.
const NUMBERED: u128 = 1 << (128 - LOST);

impl Place {
    /// Positions are below two to the power of this.
    pub const BITS: u32 = 128 - LOST + 1;

    /// The position whose [`Self::number`] this is; the last position for larger numbers.
    #[must_use]
    pub fn of(number: u128) -> Self {
        Self(number.min((1 << Self::BITS) - 1))
    }

    /// The position as a number, for a client that asks for the next page.
    #[must_use]
    pub fn number(self) -> u128 {
        self.0
    }

    /// The position after a key of a concurrent limit.
    #[must_use]
    pub fn behind(digest: u128) -> Self {
        Self((digest >> LOST) + 1)
    }

    /// The position of the key with that number.
    #[must_use]
    pub fn at(number: u64) -> Self {
        Self(NUMBERED + u128::from(number))
    }

    /// The digest from which on keys of concurrent limits are still to be shown; `None` when all were.
    #[must_use]
    pub fn digest(self) -> Option<u128> {
        (self.0 < NUMBERED).then_some(self.0 << LOST)
    }

    /// The number from which on the other keys are still to be shown; 0 when none was shown yet.
    #[must_use]
    pub fn turn(self) -> u64 {
        u64::try_from(self.0.saturating_sub(NUMBERED)).unwrap_or(u64::MAX)
    }
}

/// Most bytes of a key that listings show. Keys with the same beginning differ in the digest.
pub const LONGEST_NAME: usize = 256;

/// The part of a key that listings show.
#[must_use]
pub fn name(key: &[u8]) -> Box<[u8]> {
    key[..key.len().min(LONGEST_NAME)].into()
}

/// The part of a key that listings show, as it is stored for each of millions of keys: a short one, as most are, needs
/// no memory of its own.
#[derive(Clone, Debug)]
pub(super) enum KeyName {
    Short(u8, [u8; KeyName::SHORT]),
    Long(Box<[u8]>),
}

impl KeyName {
    /// So many bytes fit into the size of the other variant.
    const SHORT: usize = 22;

    pub(super) fn of(key: &[u8]) -> Self {
        if key.len() > Self::SHORT {
            return Self::Long(name(key));
        }
        let mut bytes = [0; Self::SHORT];
        bytes[..key.len()].copy_from_slice(key);
        Self::Short(key.len() as u8, bytes) // at most SHORT
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_as_listings_show_it() {
        for length in [0, 1, 22, 23, 255, 256, 300] {
            let key: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            assert_eq!(KeyName::of(&key).bytes(), &*name(&key), "{length}");
        }
        assert_eq!(size_of::<KeyName>(), 24);
    }

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
