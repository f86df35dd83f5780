//! Maps for what is looked up at every check: by anything, and by numbers that count from 0.
//!
//! Whatever is iterated over belongs into a `BTreeMap`. A [`Map`] has the same order in each run, because its hasher
//! has no secret, but that order means nothing.

use std::hash::BuildHasherDefault;

use rustc_hash::FxHasher;

/// A map that is never iterated over.
pub type Map<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<FxHasher>>;

/// A set that is never iterated over.
pub type Set<K> = std::collections::HashSet<K, BuildHasherDefault<FxHasher>>;

/// A value for each number, such as that of a key or of a node; the default where none was set.
#[derive(Clone, Debug, Default)]
pub struct Numbered<T>(Vec<T>);

impl<T: Default> Numbered<T> {
    /// The value of a number, which is created if it is missing.
    pub fn of(&mut self, number: u32) -> &mut T {
        let place = number as usize;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, T::default);
        }
        &mut self.0[place]
    }

    /// All values, up to the highest number that was ever asked for.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }

    /// The value of a number, unless neither it nor a higher one was ever asked for.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.0.get(number as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_values() {
        let mut numbered = Numbered::<u64>::default();
        *numbered.of(2) = 7;
        assert_eq!([0, 2, 3].map(|number| numbered.get(number).copied()), [Some(0), Some(7), None]);
    }
}
