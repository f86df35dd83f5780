//! How many slots of concurrent limits were in clients' hands at once, over all nodes.
//!
//! Every slot that was really given counts, also on a share or after faults. A slot counts from the answer that gives
//! it until its client releases it, whether or not its node still lives, or until its time is over. The death of its
//! node does not end it, since the client may work on. Clocks of nodes drift, so a slot counts until the earliest
//! moment at which it may be over. Called by the ledger, whose other figures count no slots.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use rationd::core::decision::{Decision, Verdict};
use rationd::core::policy::Rule;

use super::judge::ratio;
use super::peak::{WHOLE, part};
use crate::maps::Numbered;
use crate::observe::{Kind, Moment, Request, Seen, Setting};

/// Millionths that a clock runs fast or slow at most.
const DRIFT: u64 = 200;

/// The slots of all keys.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    /// Which policies are concurrent limits.
    policies: Vec<bool>,
    lives: Numbered<u64>,
    keys: BTreeMap<u32, BTreeMap<Slot, Out>>,
    /// The most that were out at once, in thousandths of a percent of the limit.
    peak: u64,
    /// Checks, and those that were denied though there were enough slots that no client had.
    checks: u64,
    false_denials: u64,
    /// The sum over the checks of the part of their limit that was out when they were answered, at most all of it.
    used: u128,
}

/// A slot of a key: its node, that one's incarnation, and its id there.
type Slot = (u32, u64, NonZeroU64);

/// A slot that a client holds.
#[derive(Clone, Copy, Debug)]
struct Out {
    ends: u64,
    cost: u64,
}

impl Slots {
    pub(super) fn new(setting: &Setting) -> Self {
        let policies = setting.rules.iter().map(|rule| rule.is_concurrent()).collect();
        Self {
            policies,
            lives: Numbered::default(),
            keys: BTreeMap::new(),
            peak: 0,
            checks: 0,
            false_denials: 0,
            used: 0,
        }
    }

    /// The most that were out at once of any key, in thousandths of a percent of its limit.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// Of all checks the part, in thousandths of a percent, that were denied though so many slots were in nobody's hands.
    pub(super) fn denied(&self) -> u64 {
        ratio(self.false_denials, self.checks, WHOLE)
    }

    /// How many slots were out when a check was answered, on average, in thousandths of a percent of the limit. `None` without a check. If checks come
    /// by chance, that is the average over time.
    pub(super) fn used(&self) -> Option<u64> {
        let checks = u128::from(self.checks);
        (checks > 0).then(|| (self.used / checks) as u64) // a part of the whole
    }

    /// Counts an event; returns whether it is about a concurrent limit.
    pub(super) fn see(&mut self, moment: Moment, seen: &Seen<'_>, warm: u64) -> bool {
        match seen {
            Seen::Joined { node, incarnation } => *self.lives.of(*node) = *incarnation,
            Seen::Answered { request, rule, decision, .. } if rule.is_concurrent() => {
                self.answer(moment.at, request, rule, decision, warm);
                return true;
            }
            Seen::Keeps { node, incarnation, key, permit, until } => {
                let out = self.keys.get_mut(key).and_then(|out| out.get_mut(&(*node, *incarnation, *permit)));
                if let Some(out) = out {
                    out.ends = out.ends.min(*until);
                }
                return true;
            }
            Seen::Released { node, incarnation, key, permit, .. } => {
                if let Some(out) = self.keys.get_mut(key) {
                    out.remove(&(*node, *incarnation, *permit));
                }
                return true;
            }
            Seen::Called { call, .. } => return call.rule.is_concurrent(),
            Seen::Orphaned(request) => return self.policies.get(request.policy as usize).is_some_and(|is| *is),
            _ => {}
        }
        false
    }

    /// Counts a check by what was out when it was answered.
    fn check(&mut self, at: u64, request: &Request, rule: &Rule, decision: &Decision) {
        let count = rule.limits[0].count;
        let out = self.keys.entry(request.key).or_default();
        out.retain(|_, one| one.ends > at);
        let all: u64 = out.values().map(|one| one.cost).sum();
        self.checks += 1;
        self.used += u128::from(all.min(count)) * u128::from(WHOLE) / u128::from(count);
        self.false_denials += u64::from(decision.verdict == Verdict::Deny && all + request.cost <= count);
    }

    fn answer(&mut self, at: u64, request: &Request, rule: &Rule, decision: &Decision, warm: u64) {
        if at >= warm && request.kind == Kind::Check {
            self.check(at, request, rule, decision);
        }
        let Some(id) = decision.slot.filter(|_| decision.verdict == Verdict::Allow && request.kind == Kind::Check)
        else {
            return;
        };
        let limit = &rule.limits[0];
        let drift = limit.period.0 * DRIFT / 1_000_000 + 2; // rounded down
        let ends = at + limit.period.0.saturating_sub(drift);
        let life = self.lives.get(request.node).copied().unwrap_or(0);
        let out = self.keys.entry(request.key).or_default();
        out.retain(|_, one| one.ends > at);
        out.insert((request.node, life, id), Out { ends, cost: request.cost });
        if at >= warm {
            let all = out.values().map(|one| u128::from(one.cost)).sum();
            self.peak = self.peak.max(part(all, u128::from(limit.count)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rationd::core::decision::{Reason, Source};
    use rationd::core::limit::Limit;
    use rationd::core::time::{Micros, Timestamp};

    use super::*;
    use crate::ledger::Ledger;
    use crate::observe::Observer;
    use crate::plan::{Plan, Policy};

    const LIMIT: &str = "4/1s concurrent";

    /// What clients do with four slots of one second.
    struct Story {
        rule: Arc<Rule>,
        ledger: Ledger,
        requests: u64,
    }

    impl Story {
        fn new() -> Self {
            let rule = Arc::new(Rule::of("p0", &[Limit::parse(LIMIT).expect(LIMIT)]));
            let policies = vec![Policy { limits: vec![LIMIT.into()], ..Policy::default() }];
            let setting = Setting { plan: Plan { policies, ..Plan::default() }, rules: vec![rule.clone()] };
            Self { rule, ledger: Ledger::new(&setting), requests: 0 }
        }

        fn see(&mut self, at: u64, seen: &Seen<'_>) -> [u64; 2] {
            self.ledger.see(Moment { at, store: Timestamp(1_800_000_000_000_000 + at) }, seen);
            let figures = self.ledger.figures();
            [figures.slots_peak, figures.slots_over]
        }

        /// A node gives a slot of that id and cost.
        fn give(&mut self, at: u64, node: u32, id: u64, cost: u64, source: Source) -> [u64; 2] {
            self.answer(at, node, (NonZeroU64::new(id), cost), source)
        }

        /// A node has none.
        fn deny(&mut self, at: u64, cost: u64) {
            self.answer(at, 0, (None, cost), Source::Lease);
        }

        fn answer(&mut self, at: u64, node: u32, (slot, cost): (Option<NonZeroU64>, u64), source: Source) -> [u64; 2] {
            self.requests += 1;
            let request = &Request { id: self.requests, node, key: 0, policy: 0, cost, kind: Kind::Check, asked: at };
            let decision = &Decision {
                verdict: if slot.is_some() { Verdict::Allow } else { Verdict::Deny },
                limit: 4,
                remaining: 0,
                retry_after: None,
                reset_after: Micros(0),
                reset_at: Timestamp(0),
                reason: Reason::Ok,
                source,
                limit_index: 0,
                slot,
                epoch: 0,
            };
            let (rule, store) = (&self.rule.clone(), Timestamp(0));
            self.see(at, &Seen::Answered { request, rule, decision, parked: false, store })
        }

        fn release(&mut self, at: u64, node: u32, id: u64) {
            let permit = NonZeroU64::new(id).expect("an id");
            self.see(at, &Seen::Released { node, incarnation: 0, key: 0, permit, released: true });
        }
    }

    #[test]
    fn slots_of_all_nodes_count_together_on_whatever_grounds() {
        let mut story = Story::new();
        assert_eq!(story.give(1, 0, 1, 2, Source::Lease), [50_000, 0]);
        assert_eq!(story.give(2, 1, 1, 2, Source::Share), [100_000, 0]);
        assert_eq!(story.give(3, 1, 2, 1, Source::Policy), [125_000, 25_000]);
        story.release(4, 1, 2);
        story.release(5, 0, 1);
        assert_eq!(story.give(6, 2, 1, 3, Source::Lease), [125_000, 25_000], "five once more");
        assert_eq!(story.give(7, 2, 2, 1, Source::Lease), [150_000, 50_000]);
        assert_eq!(story.ledger.figures().checks, 0, "no other figure counts them");
    }

    #[test]
    fn a_denial_is_false_while_there_are_slots_that_nobody_has() {
        let mut story = Story::new();
        for (at, cost, is_false) in [(1, 4, true), (3, 3, true), (4, 4, false)] {
            if at == 3 {
                story.give(2, 0, 1, 1, Source::Lease);
            }
            let before = story.ledger.slots.false_denials;
            story.deny(at, cost);
            assert_eq!(story.ledger.slots.false_denials - before, u64::from(is_false), "at {at}");
        }
        let figures = story.ledger.figures();
        // Two of four checks; nothing was out at the first two of them, and a quarter at the others.
        assert_eq!((figures.slots_denied, figures.slots_used), (50_000, Some(12_500)));
    }

    #[test]
    fn a_client_lets_go_though_its_node_does_not_hear_it() {
        for (at, over) in [(499, 25_000), (500, 0)] {
            let mut story = Story::new();
            (1..=4).for_each(|id| _ = story.give(0, 0, id, 1, Source::Lease));
            let permit = NonZeroU64::MIN;
            story.see(0, &Seen::Keeps { node: 0, incarnation: 0, key: 0, permit, until: 500 });
            story.see(10, &Seen::Left { node: 0, drained: false });
            assert_eq!(story.give(at, 1, 1, 1, Source::Lease)[1], over, "at {at}");
        }
    }

    #[test]
    fn a_slot_is_out_until_its_time_is_over_though_its_node_dies() {
        for (at, over) in [(999_700, 25_000), (999_900, 0)] {
            let mut story = Story::new();
            (1..=4).for_each(|id| _ = story.give(0, 0, id, 1, Source::Lease));
            story.see(10, &Seen::Left { node: 0, drained: false });
            story.see(20, &Seen::Joined { node: 0, incarnation: 5 });
            assert_eq!(story.give(at, 0, 1, 1, Source::Lease)[1], over, "at {at}");
        }
    }
}
