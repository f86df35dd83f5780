//! Many runs on some threads, handed over in order, or as they end.
//!
//! Each thread has scripts of its own, so runs share nothing and their order cannot matter. Called by
//! every subcommand that runs more than one plan.

use std::cmp::Reverse;
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
    /// Runs all, and gives `take` the outcomes in the order of their places, whichever was ready first. Fails with the
    /// first plan that makes no sense.
    pub(super) fn run(self, take: &mut dyn FnMut(Outcome)) -> anyhow::Result<()> {
        let (mut due, mut early) = (0, BTreeMap::new());
        self.run_as_they_end(&mut |place, outcome| {
            early.insert(place, outcome);
            while let Some(outcome) = early.remove(&due) {
                take(outcome);
                due += 1;
            }
        })?;
        // If time was up, a place got no plan; the outcomes after it are taken all the same.
        early.into_values().for_each(take);
        Ok(())
    }

    /// Runs all, and gives `take` each outcome with its place as soon as it is ready. Fails with the first plan that
    /// makes no sense.
    pub(super) fn run_as_they_end(self, take: &mut dyn FnMut(u64, Outcome)) -> anyhow::Result<()> {
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            let (send, receive) = mpsc::channel();
            for _ in 0..self.jobs {
                let (send, next) = (send.clone(), &next);
                scope.spawn(move || self.work(next, &send));
            }
            drop(send);
            for (place, outcome) in receive {
                take(place, stop_at_errors(outcome, &next)?);
            }
            Ok(())
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

/// The places of these plans, the longest runs first: a long run that is begun last would run alone at the end.
pub(super) fn longest_first(plans: &[Plan]) -> Vec<usize> {
    let mut places: Vec<_> = (0..plans.len()).collect();
    places.sort_by_key(|place| Reverse(plans[*place].weight()));
    places
}

/// The places of these plans, the longest runs last, so that most rows are printed soon.
pub(super) fn longest_last(plans: &[Plan]) -> Vec<usize> {
    let mut places: Vec<_> = (0..plans.len()).collect();
    places.sort_by_key(|place| plans[*place].weight());
    places
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
    fn as_they_end_each_place_is_told_once() {
        let mut seen = BTreeMap::new();
        let many = Many { plan: &plan, jobs: 3, detail: Detail::Figures, twice: false };
        many.run_as_they_end(&mut |place, outcome| assert_eq!(seen.insert(place, outcome.plan.seed), None)).unwrap();
        assert_eq!(seen, (0..6).map(|place| (place, place)).collect());
    }

    #[test]
    fn longest_begins_or_ends() {
        let plans: Vec<_> = [3, 0, 4].into_iter().filter_map(plan).collect();
        assert_eq!(longest_first(&plans), [1, 0, 2]);
        assert_eq!(longest_last(&plans), [2, 0, 1]);
    }

    #[test]
    fn plan_that_makes_no_sense_ends_it() {
        let wrong = |place| (place < 100).then(|| Plan { policies: Vec::new(), ..Plan::default() });
        let many = Many { plan: &wrong, jobs: 2, detail: Detail::Figures, twice: false };
        assert!(many.run(&mut |_| ()).is_err());
    }
}
