//! Models of what threads share and wake each other by, checked by loom over all ways in which they may meet.
//!
//! The files are the daemon's own, by their paths; only `sync`, where their locks and atomics come from, is loom's. To
//! run all: `tests/run loom`. A model that does not hold panics, with a deadlock where somebody sleeps for ever.
//! loom takes `SeqCst` of a load or a store for `AcqRel`; a fence is what it is.
#![allow(dead_code, unused_imports, reason = "a model uses its part of a file")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rationd::{clock, core, wire};

/// In the place of `rationd::sync`.
mod sync {
    pub(crate) use loom::sync::{Mutex, MutexGuard, atomic};
    pub(crate) use std::sync::PoisonError;
}

mod client;
mod serve;
mod store;

/// What is to hold, how often one thread may be stopped for another (`None`: as often as it can be), and what tries it
/// once.
type Model = (&'static str, Option<usize>, fn());

/// Runs each model, or those whose names hold the argument, in all ways, and says how many these are. With three
/// threads there are too many: those are left out in which threads are stopped more often than a model says.
fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    let all = serve::timer_task::MODELS.iter().chain(serve::answers::MODELS).chain(client::spending::MODELS);
    for (what, stops, model) in all.filter(|(what, ..)| what.contains(&part)) {
        println!("{what}:");
        let ways = Arc::new(AtomicUsize::new(0));
        let (counted, began) = (ways.clone(), clock::Clock::start());
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = *stops;
        builder.check(move || {
            counted.fetch_add(1, Relaxed);
            model();
        });
        println!("    it does, in {} ways, tried in {} ms", ways.load(Relaxed), began.nanos() / 1_000_000);
    }
}
