//! Locks and atomics of what threads share, under one name: `tests/models/` has another module of that name, with loom's.

pub use std::sync::{Mutex, MutexGuard, PoisonError, atomic};
