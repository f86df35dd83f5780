//! What the tests share.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses its part")]

pub mod bench;
pub mod calls;
pub mod daemon;
pub mod poll;
pub mod redis_server;
pub mod store_suite;
pub mod world;
