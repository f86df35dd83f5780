//! Frames of gossip on their way to many nodes, decoded by the product once for all of them, because the same bytes
//! decode to the same reports everywhere.

use std::cell::OnceCell;
use std::rc::Rc;

use rationd::core::usage::Usage;
use rationd::wire::digest::{self, BadDigest};

/// The frames that one node sends to all others in a round.
#[derive(Clone, Debug)]
pub struct Frames(Rc<[Frame]>);

/// One of them.
#[derive(Debug)]
pub struct Frame {
    /// The encoded bytes.
    pub bytes: Vec<u8>,
    read: OnceCell<Result<Vec<Usage>, BadDigest>>,
    sum: OnceCell<u64>,
}

impl Frames {
    /// These bytes, a frame each.
    #[must_use]
    pub fn new(frames: Vec<Vec<u8>>) -> Self {
        let frame = |bytes| Frame { bytes, read: OnceCell::new(), sum: OnceCell::new() };
        Self(frames.into_iter().map(frame).collect())
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = &Frame> {
        self.0.iter()
    }

    /// All bytes together.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().map(|frame| frame.bytes.len()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Frame {
    /// The reports in it, as this build decodes them.
    ///
    /// # Errors
    /// What it finds wrong with it.
    pub fn read(&self) -> Result<&[Usage], &BadDigest> {
        self.read.get_or_init(|| digest::decode(&self.bytes)).as_deref()
    }

    /// A number that differs where the bytes do.
    pub(crate) fn sum(&self) -> u64 {
        let add = |sum: u64, byte: &u8| sum.wrapping_mul(31).wrapping_add((*byte).into());
        *self.sum.get_or_init(|| self.bytes.iter().fold(7, add))
    }
}
