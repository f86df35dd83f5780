//! Who asks, as the mailbox knows it.

#[path = "../../../../src/store/turns.rs"]
pub mod turns;
