//! What the doors ask of a key: plain values. Answered by node, about several keys at once by inquiry.

use std::sync::Arc;

use crate::core::holds::Charge;
use crate::core::policy::Policy;
use crate::core::time::Instant;
use crate::store::turns::Asker;

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

/// One of the keys asked about.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// Its policy.
    pub policy: Arc<Policy>,
    /// Its bytes.
    pub key: Box<[u8]>,
    /// Tokens asked for.
    pub cost: u64,
    /// Charge nothing. A cost of 0 is a peek too.
    pub peek: bool,
    /// In whose turn the store is asked.
    pub asker: Asker,
}

impl CheckRequest {
    /// The same key, asked for `cost`.
    #[must_use]
    pub fn of(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }
}
