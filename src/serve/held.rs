//! What is stored of a hold beside its charge, until the hold is settled or expires.
//!
//! The server state stores it; `requests` removes it.

use std::sync::Arc;

use super::ask::CheckRequest;
use super::budget::Loan;

/// The request that a hold was charged for.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) check: CheckRequest,
    _memory: Arc<Loan>,
}

impl Held {
    pub(super) fn new(check: CheckRequest, memory: Loan) -> Self {
        Self { check, _memory: Arc::new(memory) }
    }
}
