//! Where the outcome of a call goes that was handed to a store which answers later.
//!
//! Called by stores, from whichever task learns the outcome; implemented by whoever hands calls to them.

use super::turns::Asker;
use crate::core::call::{Call, Grant, StoreError};

/// Whoever hands over calls.
pub trait Outcomes: Send + Sync {
    /// How a call ended that left in the turn of `asker`: told once, perhaps before it is handed over wholly.
    fn handle_outcome(&self, asker: Asker, call: Call, outcome: Result<Grant, StoreError>);
}
