//! **liveness**: as long as nothing has gone wrong, nobody goes by its share: the store answers, and has lost nothing.
//!
//! A key that the store has dropped, because nobody asked for it, begins anew; that is no loss.

use rationd::core::decision::Source;

use super::Found;
use super::notes::{Life, Lives, Stops, UnderWay, leaves_the_store};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static FAULTS: Exemption = Exemption::new(
    "from the first fault on that concerns the store or the way to it, until all has healed",
    "A store may then be late or lost, and nobody knows better; when all has healed liveness.rs judges.",
);
static LATE: Exemption = Exemption::new(
    "a key at a node of which a call of the node was lost, or took more than a fifth of the timeout, from then on for two periods and three seconds",
    "The node cannot tell a store that is late or far, or a message that was lost, from a store that is away.",
);
static STOPS: Exemption = Exemption::new(
    "a node that is not run for a while, from then on for two periods and three seconds",
    "Answers come while it stands still, and it takes them for late.",
);
static PARKED: Exemption = Exemption::new(
    "who has waited for the store",
    "The first check of a bucket passes when a busy store is late, and the next grant pays for it.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "needless.rs",
    invariants: &["liveness"],
    proves: "As long as nothing has gone wrong nobody goes by its share.",
    judges: "All but concurrent limits.",
    exemptions: &[&BASELINES, &FAULTS, &LATE, &STOPS, &PARKED],
    mutant: Some("expiry-taken-for-loss"),
};

/// A store is quick where calls are under way for so small a part of the time that a check waits for it.
const QUICK: u64 = 5;

/// The checker.
#[derive(Debug)]
pub(super) struct Needless {
    /// Until then nothing goes wrong with the store.
    until: u64,
    timeout: u64,
    stops: Stops,
    lives: Lives,
    /// Calls that have no answer yet, and when one had none for long, by node and key.
    calls: UnderWay,
    late: Map<(Life, u32), u64>,
    found: Found,
}

/// See `STOPS`: retries, and the second in which a share goes on.
const AWAKE: u64 = 3_000_000;

impl Needless {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let of_store = plan.faults.iter().filter(|fault| !fault.what.stops_nodes() && !leaves_the_store(&fault.what));
        let first = of_store.map(|fault| fault.at.0).min().unwrap_or(u64::MAX);
        Self {
            until: if BASELINES.when(plan.brain != Brain::Rationd) { 0 } else { first },
            timeout: plan.daemon.timeout.0,
            stops: Stops::default(),
            lives: Lives::default(),
            calls: UnderWay::default(),
            late: Map::default(),
            found: Found::default(),
        }
    }

    /// What takes longer is not quick.
    fn quick(&self) -> u64 {
        self.timeout / QUICK
    }

    /// Whether a node has waited for long for an answer about a key, or has got none, so long before at most.
    fn is_late(&self, moment: Moment, life: Life, key: u32, before: u64) -> bool {
        let waits = self.calls.of(key).any(|(of, left)| of == life && moment.at - left > self.quick());
        waits || self.late.get(&(life, key)).is_some_and(|late| moment.at <= late + before)
    }
}

impl Observer for Needless {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        self.stops.see(seen);
        self.lives.see(seen);
        match seen {
            Seen::Joined { node, .. } | Seen::Left { node, .. } => self.calls.end(*node),
            Seen::Called { node, key, call, sent: true } => {
                self.calls.leave(moment, self.lives.of(*node), *key, call.id);
            }
            Seen::Called { node, key, sent: false, .. } => {
                self.late.insert((self.lives.of(*node), *key), moment.at);
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let life = (*node, *incarnation);
                let took = self.calls.settle(moment, life, *key, call.id).unwrap_or(0);
                if grant.is_none() || took > self.quick() {
                    self.late.insert((life, *key), moment.at);
                }
            }
            Seen::Answered { request, rule, decision, parked, .. } => {
                if request.kind != Kind::Check || decision.source != Source::Share || PARKED.when(*parked) {
                    return;
                }
                let longest = rule.limits.iter().map(|limit| limit.period.0).max().unwrap_or(0);
                let before = 2 * longest + AWAKE;
                let is_late = || self.is_late(moment, self.lives.of(request.node), request.key, before);
                let is_excused = STOPS.when(self.stops.meet(request.node, moment.at, before))
                    || FAULTS.when(moment.at >= self.until)
                    || LATE.when(is_late());
                if !is_excused {
                    self.found
                        .add("liveness", moment, || format!("{request:?}: {decision:?}, and nothing has gone wrong"));
                }
            }
            _ => {}
        }
    }
}

impl Checker for Needless {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::plan::{Fault, What};
    use crate::span::Span;

    #[test]
    fn a_share_without_a_reason_is_seen_and_one_after_a_fault_is_not() {
        for (at, seen) in [(9, 1), (10, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.faults = vec![Fault { at: Span(10), lasts: Span(0), what: What::FlushAll { master: 0 } }];
            let mut checker = Needless::new(&setting);
            history.check(&mut checker, 1, 1, Source::Lease, true);
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    /// A node that stands still is excused, and no other one; a fault that leaves the store alone excuses nobody.
    #[test]
    fn a_fault_of_no_store_excuses_nobody_but_a_node_that_stands_still() {
        let part = What::Part { nodes: vec![0], one_way: false };
        for (what, seen) in [(part, 1), (What::Freeze { node: 0 }, 0), (What::Freeze { node: 1 }, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            let fault = Fault { at: Span(10), lasts: Span(10), what };
            setting.plan.faults = vec![fault.clone()];
            let mut checker = Needless::new(&setting);
            for node in [0, 1] {
                history.see(&mut checker, 0, &Seen::Joined { node, incarnation: 1 });
            }
            history.see(&mut checker, 10, &Seen::Begins(&fault));
            history.check(&mut checker, 15, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{fault:?}: {:?}", checker.violations());
        }
    }

    /// A call that is lost, takes 20 ms or has none yet excuses its key at its node, for two periods and three seconds.
    #[test]
    fn a_call_that_was_late_excuses_its_key_for_a_while() {
        let late = 6 * SECOND;
        for (answered, at, seen) in [
            (Some(9_000), late, 1),
            (Some(20_000), late, 0),
            (Some(20_000), late + 20_001, 1),
            (None, late + 49_000, 0),
            (None, late + 51_000, 1),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.network.loss = 1;
            let mut checker = Needless::new(&setting);
            let sent = SECOND;
            history.called(&mut checker, sent, 1, 1);
            match answered {
                Some(after) => history.settled(&mut checker, sent + after, 1, 1),
                None => history.unanswered_in(&mut checker, sent + 50_000, [0, 1]),
            }
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{answered:?} {at}: {:?}", checker.violations());
        }
        for (at, seen) in [(SECOND + 10_000, 1), (SECOND + 10_001, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Needless::new(&history.setting());
            history.called(&mut checker, SECOND, 1, 1);
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{at}: {:?}", checker.violations());
        }
    }
}
