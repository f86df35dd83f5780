//! The operations on a key that the protocols ask for, as plain values. `node` executes them; `check_request`
//! executes those about several keys.

use std::sync::Arc;

use crate::core::holds::Charge;
use crate::core::policy::Policy;
use crate::core::time::Instant;
use crate::store::turns::Asker;

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Decide, and charge unless it is a peek. It may wait for the store until this time.
    Check(Instant),
    /// Peek at what this node knows, without asking the store.
    PeekLocal,
    /// A check will follow, so lease tokens for it. The answer has no meaning.
    Prefetch,
    /// Take back a cost that was spent.
    Refund,
    /// Take back a part of this charge.
    GiveBack(Charge),
    /// Reset the key.
    Reset,
}

/// A request to check one key.
#[derive(Clone, Debug)]
pub struct CheckRequest {
    /// The policy of the key.
    pub policy: Arc<Policy>,
    /// The key's bytes.
    pub key: Box<[u8]>,
    /// Tokens asked for.
    pub cost: u64,
    /// Charge nothing. A cost of 0 means the same.
    pub peek: bool,
    /// For whom calls to the store leave: see [`Asker`].
    pub asker: Asker,
}

impl CheckRequest {
    /// The same request with another cost.
    #[must_use]
    pub fn of(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }
}
