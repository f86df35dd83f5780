//! Delivers the outcome of a call to the component that handed the call to a store.
//!
//! A store that answers later (Redis) calls this from whichever task learns the outcome. Components that hand calls
//! to such a store implement it.

use super::turns::Asker;
use crate::core::call::{Call, Grant, StoreError};

/// A component that hands calls to a store and learns their outcomes.
pub trait Outcomes: Send + Sync {
    /// Takes the outcome of a call that was sent in the turn of `asker`. It is called once per call, and possibly
    /// before the function that sends the call has returned.
    fn handle_outcome(&self, asker: Asker, call: Box<Call>, outcome: Result<Grant, StoreError>);
}
