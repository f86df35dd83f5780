//! What the doors ask of a key. Answered by node.

use crate::core::holds::Charge;
use crate::core::time::Instant;

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Decide and charge, or peek; whoever waits for the store does so until then.
    Check(Instant),
    /// Tell what is known here, and ask nobody.
    PeekLocal,
    /// A check will follow: lease for it. What it answers means nothing.
    Prefetch,
    /// Take a cost back.
    Refund,
    /// Take a part of this charge back.
    GiveBack(Charge),
    /// Forget the key.
    Reset,
}
