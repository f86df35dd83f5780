//! What the tests share.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

pub mod bench;
pub mod daemon;
pub mod world;
