//! Asks, by which nodes ask each other for tokens, and their answers while they travel on the gossip network. Each may
//! be lost or arrive twice, and neither is sent again.

use rationd::core::ask::{Answer, Ask};

/// A node in one of its lives.
pub(super) type Life = (u32, u64);

/// An ask or an answer on its way.
#[derive(Clone, Debug)]
pub(super) struct Mail {
    pub(super) from: Life,
    pub(super) to: Life,
    pub(super) key: u32,
    pub(super) ask: Ask,
    /// `None` if this is the ask itself.
    pub(super) answer: Option<Answer>,
}
