//! What is kept of a hold beside its charge, until it is settled or its time is over.
//!
//! The hub keeps it; `requests` takes it out again.

use std::sync::Arc;

use super::ask::CheckRequest;
use super::budget::Loan;

/// What is kept of a hold beside its charge.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) inquiry: CheckRequest,
    _memory: Arc<Loan>,
}

impl Held {
    pub(super) fn new(inquiry: CheckRequest, memory: Loan) -> Self {
        Self { inquiry, _memory: Arc::new(memory) }
    }
}
