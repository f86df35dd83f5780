//! How arguments and answers of the scripts are put together: names of fields, and numbers of seven bytes each.
//!
//! Called by `script.rs`, which says what an argument has. Knows no call.

use crate::core::limit::{Algorithm, Limit};

/// The largest integer that the scripts' numbers hold exactly.
pub(super) const EXACT: u64 = (1 << 53) - 1;

/// Bytes of a number in an argument or an answer, lowest first: enough for every number below 2^53.
pub const WIDTH: usize = 7;

/// Bytes of a node's name that the scripts use.
pub(super) const LONGEST_NODE: usize = 255;

/// Room for one argument. None is longer than the name of a node's field: an acquire has most numbers, of a bucket of which tokens are
/// set aside nineteen.
const LONGEST: usize = 2 + LONGEST_NODE;

/// One argument: the name of a field, or a limit's letter and numbers of seven bytes.
pub(super) struct Words {
    text: [u8; LONGEST],
    len: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self { text: [0; LONGEST], len: 0 }
    }
}

impl Words {
    /// Adds these bytes.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        self.text[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Adds what says which limit it is.
    pub(super) fn add_limit(&mut self, limit: &Limit) {
        self.write(letter(limit).as_bytes());
        self.add_all(&numbers(limit));
    }

    /// Adds a number; one that the scripts do not hold exactly is added as the largest that they do.
    pub(super) fn add(&mut self, value: u64) {
        self.write(&value.min(EXACT).to_le_bytes()[..WIDTH]);
    }

    /// Adds each of these numbers.
    pub(super) fn add_all(&mut self, values: &[u64]) {
        for value in values {
            self.add(*value);
        }
    }

    /// Passes the argument to `push`, and begins the next one.
    pub(super) fn push(&mut self, push: &mut dyn FnMut(&[u8])) {
        push(&self.text[..self.len]);
        self.len = 0;
    }
}

fn letter(limit: &Limit) -> &'static str {
    match limit.algorithm {
        Algorithm::Gcra => "g",
        Algorithm::Fixed => "f",
        Algorithm::FixedFromFirst => "o",
        Algorithm::Sliding => "s",
        Algorithm::Concurrent => "c",
    }
}

/// The limit's count, period and burst.
fn numbers(limit: &Limit) -> [u64; 3] {
    if limit.algorithm == Algorithm::Gcra {
        let (period, count) = limit.interval();
        [count, period, limit.burst]
    } else {
        [limit.count, limit.period.0, limit.burst]
    }
}

/// The numbers of an answer; `None` where the text is not made of numbers.
pub fn numbers_in(answer: &[u8]) -> Option<impl ExactSizeIterator<Item = i64>> {
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte));
    answer.len().is_multiple_of(WIDTH).then(|| answer.chunks_exact(WIDTH).map(number))
}

/// The text of an answer that says these numbers, as the scripts write it.
#[must_use]
pub fn text_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(WIDTH)).collect()
}
