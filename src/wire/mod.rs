//! Bytes to values and back.

pub mod command;
pub mod resp;
