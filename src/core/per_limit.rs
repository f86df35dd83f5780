//! What is kept of each limit of a rule: one item inline, several in memory of their own.
//!
//! Most rules have one limit, and a daemon knows millions of keys. Knows nothing of limits. Called by the lease and by what
//! a key knows of the store.

use std::ops::{Deref, DerefMut};

/// One item for each limit of a rule, read as a slice.
#[derive(Clone)]
pub struct PerLimit<T>(Items<T>);

#[derive(Clone)]
enum Items<T> {
    One([T; 1]),
    /// The box is of a box, so that this is no larger than a pointer: few rules have several limits.
    Several(Box<ItemList<T>>),
}

#[derive(Clone)]
struct ItemList<T>(Box<[T]>);

impl<T: Copy> From<&[T]> for PerLimit<T> {
    fn from(items: &[T]) -> Self {
        Self(match items {
            [one] => Items::One([*one]),
            _ => Items::Several(Box::new(ItemList(items.into()))),
        })
    }
}

impl<T: Copy> PerLimit<T> {
    /// An item for each of these.
    #[must_use]
    pub fn of_each<L>(limits: &[L], mut item: impl FnMut(&L) -> T) -> Self {
        match limits {
            [one] => Self(Items::One([item(one)])),
            _ => limits.iter().map(item).collect::<Vec<_>>().as_slice().into(),
        }
    }
}

impl<T> Deref for PerLimit<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::One(one) => one,
            Items::Several(several) => &several.0,
        }
    }
}

impl<T> DerefMut for PerLimit<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Items::One(one) => one,
            Items::Several(several) => &mut several.0,
        }
    }
}

impl<'a, T> IntoIterator for &'a mut PerLimit<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<'a, T> IntoIterator for &'a PerLimit<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq for PerLimit<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for PerLimit<T> {}

impl<T: std::fmt::Debug> std::fmt::Debug for PerLimit<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_inline_and_several_are_a_slice_all_the_same() {
        for count in 0..4_usize {
            let wanted: Vec<u64> = (0..count as u64).map(|index| 7 + index).collect();
            let mut items = PerLimit::of_each(&wanted, |number| *number - 7);
            items.iter_mut().for_each(|item| *item += 7);
            assert_eq!(*items, *wanted);
            assert_eq!(items, PerLimit::from(&wanted[..]));
        }
        assert_eq!(size_of::<PerLimit<u64>>(), 16);
    }
}
