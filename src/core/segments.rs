//! The list of a lease's segments: one inline, several in memory of their own.
//!
//! Most keys hold tokens of one window, and a daemon knows millions of keys. Called by `lease.rs` only.

use std::ops::{Deref, DerefMut};

/// A short list of segments; a slice.
#[derive(Clone, Debug)]
pub(super) struct Segments<T>(List<T>);

impl<T> Default for Segments<T> {
    fn default() -> Self {
        Self(List::None)
    }
}

#[derive(Clone, Debug, Default)]
enum List<T> {
    #[default]
    None,
    One(T),
    /// Two or more. Boxed, so that this is no larger than a pointer.
    Several(Box<SegmentList<T>>),
}

#[derive(Clone, Debug)]
struct SegmentList<T>(Vec<T>);

impl<T> Segments<T> {
    /// Inserts one at `place`.
    pub(super) fn insert(&mut self, place: usize, segment: T) {
        match &mut self.0 {
            List::Several(several) => several.0.insert(place, segment),
            list => {
                *list = match std::mem::take(list) {
                    List::One(other) if place == 0 => List::of(vec![segment, other]),
                    List::One(other) => List::of(vec![other, segment]),
                    _ => List::One(segment),
                };
            }
        }
    }

    /// Removes the first.
    pub(super) fn take_first(&mut self) -> Option<T> {
        let (first, rest) = match std::mem::take(&mut self.0) {
            List::None => (None, List::None),
            List::One(first) => (Some(first), List::None),
            List::Several(mut several) => (Some(several.0.remove(0)), List::of(several.0)),
        };
        self.0 = rest;
        first
    }

    /// Keeps those of which `keep` is true.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        match &mut self.0 {
            List::None => {}
            List::One(one) if keep(one) => {}
            List::One(_) => self.0 = List::None,
            List::Several(several) => {
                several.0.retain(keep);
                if several.0.len() < 2 {
                    self.0 = List::of(std::mem::take(&mut several.0));
                }
            }
        }
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.0 = List::None;
    }
}

impl<T> List<T> {
    fn of(mut segments: Vec<T>) -> Self {
        match segments.len() {
            0 | 1 => segments.pop().map_or(Self::None, Self::One),
            _ => Self::Several(Box::new(SegmentList(segments))),
        }
    }
}

impl<T> Deref for Segments<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            List::None => &[],
            List::One(one) => std::slice::from_ref(one),
            List::Several(several) => &several.0,
        }
    }
}

impl<T> DerefMut for Segments<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            List::None => &mut [],
            List::One(one) => std::slice::from_mut(one),
            List::Several(several) => &mut several.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_list(steps in prop::collection::vec((0..4_u8, 0..5_usize, 0..4_u8), 0..60)) {
            let (mut segments, mut list) = (Segments::default(), Vec::new());
            for (step, place, number) in steps {
                match step {
                    0 | 1 => {
                        let place = place.min(list.len());
                        segments.insert(place, number);
                        list.insert(place, number);
                    }
                    2 => {
                        segments.retain(|kept| *kept != number);
                        list.retain(|kept| *kept != number);
                    }
                    _ if number == 0 => {
                        segments.clear();
                        list.clear();
                    }
                    _ => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(segments.take_first(), first);
                    }
                }
                segments.iter_mut().for_each(|number| *number ^= 1);
                list.iter_mut().for_each(|number| *number ^= 1);
                prop_assert_eq!(&*segments, &*list);
                prop_assert_eq!(matches!(segments.0, List::Several(_)), list.len() > 1);
            }
        }
    }
}
