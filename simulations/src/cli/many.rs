//! Many runs on some threads, handed over in order.
//!
//! Each thread has scripts of its own, so runs share nothing and their order cannot matter. Called by
//! every subcommand that runs more than one plan.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use super::runner::Runner;
use crate::outcome::Outcome;
use crate::plan::Plan;
use crate::run::Detail;

/// What to run, and how.
#[derive(Clone, Copy)]
pub(super) struct Many<'a> {
    /// The plan of each place from 0 on; `None` ends it.
    pub(super) plan: &'a (dyn Fn(u64) -> Option<Plan> + Sync),
    pub(super) jobs: u16,
    pub(super) detail: Detail,
    pub(super) twice: bool,
}

impl Many<'_> {
    /// Runs all, and gives `take` what came of each in the order of their places, whichever was
    /// ready first. Fails with the first plan that makes no sense.
    pub(super) fn run(self, take: &mut dyn FnMut(Outcome)) -> anyhow::Result<()> {
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for _ in 0..self.jobs {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || self.work(next, &send));
            }
            drop(send);
            let (mut due, mut early) = (0, BTreeMap::new());
            for (place, outcome) in receive {
                early.insert(place, outcome);
                while let Some(outcome) = early.remove(&due) {
                    take(stop_at_errors(outcome, &next)?);
                    due += 1;
                }
            }
            // A place that got no plan, because time was up, holds nobody back.
            early.into_values().try_for_each(|outcome| outcome.map(&mut *take))
        })
    }

    fn work(self, next: &AtomicU64, send: &mpsc::Sender<(u64, anyhow::Result<Outcome>)>) {
        let mut runner = Runner::new(self.detail);
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(plan) = (place < u64::MAX / 2).then(|| (self.plan)(place)).flatten() else { return };
            let outcome = if self.twice { runner.run_twice(&plan) } else { runner.run(&plan) };
            if send.send((place, outcome)).is_err() {
                return;
            }
        }
    }
}

/// After an error no worker takes another place.
fn stop_at_errors(outcome: anyhow::Result<Outcome>, next: &AtomicU64) -> anyhow::Result<Outcome> {
    if outcome.is_err() {
        next.store(u64::MAX / 2, Ordering::Relaxed);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Demand;
    use crate::span::Span;

    /// A small plan whose runs take longer the earlier its place is.
    fn plan(place: u64) -> Option<Plan> {
        let demand = vec![Demand { rate: 4_000 >> place, ..Demand::default() }];
        (place < 6).then(|| Plan { seed: place, span: Span::millis(200), demand, ..Plan::default() })
    }

    #[test]
    fn outcomes_come_in_order_from_any_number_of_threads() {
        let hashes = |jobs| {
            let mut seen = Vec::new();
            let many = Many { plan: &plan, jobs, detail: Detail::Figures, twice: jobs > 2 };
            many.run(&mut |outcome| seen.push((outcome.plan.seed, outcome.hash))).unwrap();
            seen
        };
        let one = hashes(1);
        assert_eq!(one.iter().map(|(seed, _)| *seed).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(one, hashes(3));
    }

    #[test]
    fn plan_that_makes_no_sense_ends_it() {
        let wrong = |place| (place < 100).then(|| Plan { policies: Vec::new(), ..Plan::default() });
        let many = Many { plan: &wrong, jobs: 2, detail: Detail::Figures, twice: false };
        assert!(many.run(&mut |_| ()).is_err());
    }
}
