//! The shrinker: from a plan that fails to a smaller one that still does.
//!
//! Greedy delta debugging (Zeller and Hildebrandt, 2002): lists lose halves, then single entries; numbers are halved;
//! values are replaced by simpler ones. A change stays when the run still fails, and all is tried again until nothing
//! helps or the budget of runs is spent. The caller decides whether a run fails in the same way. The seed stays, so
//! what is found replays.

mod changes;

use self::changes::{Change, DEMAND, FAULT, HALVES, SIMPLER, halve};
use crate::plan::{Plan, What};

/// Most runs that a shrinking may take.
const BUDGET: u32 = 1_500;

/// The smallest plan found that still `fails`. Returns `plan` itself if nothing smaller does.
#[must_use]
pub fn shrink(plan: &Plan, fails: &mut dyn FnMut(&Plan) -> bool) -> Plan {
    let mut search = Search { best: plan.clone(), fails, budget: BUDGET };
    loop {
        let before = search.best.clone();
        search.drop_entries();
        search.simplify();
        if search.best == before || search.budget == 0 {
            return search.best;
        }
    }
}

struct Search<'a> {
    best: Plan,
    fails: &'a mut dyn FnMut(&Plan) -> bool,
    budget: u32,
}

impl Search<'_> {
    /// Keeps a change if the run still fails with it.
    fn attempt(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut smaller = self.best.clone();
        change(&mut smaller);
        if smaller == self.best || self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let stays = (self.fails)(&smaller);
        if stays {
            self.best = smaller;
        }
        stays
    }

    fn drop_entries(&mut self) {
        self.thin(0, |plan| &mut plan.faults);
        self.thin(1, |plan| &mut plan.demand);
        for policy in (0..self.best.policies.len()).rev() {
            self.attempt(|plan| drop_policy(plan, policy));
        }
        for policy in 0..self.best.policies.len() {
            for limit in (0..self.best.policies[policy].limits.len()).rev() {
                self.attempt(|plan| drop_limit(plan, policy, limit));
            }
        }
    }

    /// Drops all of a list, halves, quarters, at last single entries; `least` of them stay.
    fn thin<T>(&mut self, least: usize, list: fn(&mut Plan) -> &mut Vec<T>) {
        let mut part = list(&mut self.best).len();
        while part > 0 {
            let mut at = 0;
            while at < list(&mut self.best).len() {
                let len = list(&mut self.best).len();
                let end = len.min(at + part);
                let may = len - (end - at) >= least;
                if !may || !self.attempt(|plan| drop(list(plan).drain(at..end))) {
                    at = end;
                }
            }
            part /= 2; // ends below one
        }
    }

    fn simplify(&mut self) {
        for change in SIMPLER {
            self.attempt(change);
        }
        for half in HALVES {
            while self.attempt(half) {}
        }
        for index in 0..self.best.demand.len() {
            self.repeat(&DEMAND, |plan| &mut plan.demand[index]);
        }
        for index in 0..self.best.faults.len() {
            self.repeat(&FAULT, |plan| &mut plan.faults[index]);
            while self.attempt(|plan| halve(&mut plan.faults[index].lasts)) {}
            while self.attempt(|plan| halve(&mut plan.faults[index].at)) {}
        }
    }

    /// Each change of a list as long as it helps.
    fn repeat<T>(&mut self, changes: &[Change<T>], part: impl Fn(&mut Plan) -> &mut T) {
        for change in changes {
            while self.attempt(|plan| change(part(plan))) {}
        }
    }
}

/// Drops a policy that nobody asks about; the places of those behind it move up.
fn drop_policy(plan: &mut Plan, gone: usize) {
    let gone = gone as u32; // an index of a list that is written by hand
    if plan.policies.len() < 2 || plan.demand.iter().any(|demand| demand.policy == gone) {
        return;
    }
    plan.policies.remove(gone as usize);
    plan.faults.retain(|fault| !matches!(fault.what, What::Push { policy, .. } if policy == gone));
    let demanded = plan.demand.iter_mut().map(|demand| &mut demand.policy);
    let pushed = plan.faults.iter_mut().filter_map(|fault| match &mut fault.what {
        What::Push { policy, .. } => Some(policy),
        _ => None,
    });
    demanded.chain(pushed).filter(|policy| **policy > gone).for_each(|policy| *policy -= 1);
}

/// Drops one of several limits, also where the policy is pushed.
fn drop_limit(plan: &mut Plan, policy: usize, limit: usize) {
    let limits = &mut plan.policies[policy].limits;
    if limits.len() < 2 {
        return;
    }
    limits.remove(limit);
    for fault in &mut plan.faults {
        if let What::Push { policy: pushed, limits } = &mut fault.what
            && *pushed as usize == policy
            && limits.len() > limit
            && limits.len() > 1
        {
            limits.remove(limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Fault, Network, Shape, Spread};
    use crate::span::Span;
    use crate::{scenario, swarm};

    /// A plan of the swarm with at least so many faults.
    fn busy(faults: usize) -> Plan {
        (1..).map(swarm::plan).find(|plan| plan.faults.len() >= faults).expect("one comes")
    }

    #[test]
    fn one_fault_of_many_is_found() {
        let plan = busy(8);
        let single = |fault: &&Fault| !matches!(fault.what, What::Push { .. });
        let culprit = plan.faults.iter().rfind(single).expect("one of eight").what.clone();
        let small = shrink(&plan, &mut |plan| plan.faults.iter().any(|fault| fault.what == culprit));
        assert_eq!(small.faults.len(), 1);
        assert_eq!((small.nodes, small.demand.len(), small.policies.len()), (1, 1, 1));
        assert_eq!((small.faults[0].at, small.faults[0].lasts, small.calm), (Span(0), Span(0), Span(0)));
    }

    #[test]
    fn two_faults_that_need_each_other_stay() {
        let plan = busy(8);
        let pair = [plan.faults[1].what.clone(), plan.faults[7].what.clone()];
        let mut fails = |plan: &Plan| pair.iter().all(|what| plan.faults.iter().any(|fault| fault.what == *what));
        assert_eq!(shrink(&plan, &mut fails).faults.len(), 2);
    }

    #[test]
    fn numbers_end_just_above_what_still_fails() {
        let plan = Plan { nodes: 20, ..busy(1) };
        let small = shrink(&plan, &mut |plan| plan.nodes >= 3 && plan.span >= Span::millis(700));
        assert!((3..6).contains(&small.nodes), "{}", small.nodes);
        assert!((Span::millis(700)..Span::millis(1_400)).contains(&small.span), "{}", small.span);
        assert_eq!((small.faults.len(), small.network), (0, Network::default()));
        assert_eq!((small.demand[0].shape, small.demand[0].spread), (Shape::Steady, Spread::Even));
    }

    #[test]
    fn demand_keeps_its_policy_when_others_go() {
        let plan = (1..).map(swarm::plan).find(|plan| plan.policies.len() == 3).expect("one comes");
        let wanted = plan.policies[2].limits[0].clone();
        let asked = |plan: &Plan| {
            plan.demand.iter().any(|demand| plan.policies[demand.policy as usize].limits.contains(&wanted))
        };
        let small = shrink(&plan, &mut |plan| asked(plan));
        assert_eq!((small.policies.len(), &small.policies[0].limits), (1, &vec![wanted.clone()]));
    }

    #[test]
    fn whatever_is_tried_is_a_plan() {
        for seed in 1..=30 {
            let plan = swarm::plan(seed);
            let mut tried = 0;
            let _ = shrink(&plan, &mut |plan| {
                tried += 1;
                scenario::check(plan).unwrap();
                tried % 3 > 0
            });
            assert!(tried <= BUDGET && tried > 20, "{tried}");
        }
    }
}
