//! **liveness**: no node uses its share of a key as long as the store answers and has lost nothing of it.
//!
//! A key that the store has dropped because it was not used begins anew, which is no loss.

use rationd::core::decision::Source;

use super::Found;
use super::notes::{Life, Lives, Stops, UnderWay};
use super::sheet::{Exemption, Sheet};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static LOSSES: Exemption = Exemption::new(
    "a key of which the store has lost something, or a former owner has counted, at a node that hears of that by another epoch, from then on for two periods and three seconds",
    "The store lends nothing of it until those who know have told what it has lost.",
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
    proves: "Nobody goes by its share of a key whose calls the store has answered, and of which it has lost nothing.",
    judges: "All but concurrent limits.",
    exemptions: &[&BASELINES, &LOSSES, &LATE, &STOPS, &PARKED],
    mutant: Some("expiry-taken-for-loss"),
};

/// A store is quick if calls take at most this part of the time for which checks wait.
const QUICK: u64 = 5;

/// What a node knows of a key: its epoch, when the store last named that, and when another epoch last showed a loss.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    epoch: u64,
    at: u64,
    lost: Option<u64>,
}

/// The checker.
#[derive(Debug)]
pub(super) struct Needless {
    is_on: bool,
    timeout: u64,
    stops: Stops,
    lives: Lives,
    /// Calls without an answer yet; and, by node and key, when one last was late.
    calls: UnderWay,
    late: Map<(Life, u32), u64>,
    /// When the store last lost something of a key.
    losses: Map<u32, u64>,
    known: Map<(Life, u32), Known>,
    found: Found,
}

/// See `STOPS`: retries, and the second in which a share goes on.
const AWAKE: u64 = 3_000_000;

impl Needless {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        Self {
            is_on: !BASELINES.when(plan.brain != Brain::Rationd),
            timeout: plan.daemon.timeout.0,
            stops: Stops::default(),
            lives: Lives::default(),
            calls: UnderWay::default(),
            late: Map::default(),
            losses: Map::default(),
            known: Map::default(),
            found: Found::default(),
        }
    }

    /// A call that takes longer than this is late.
    fn quick(&self) -> u64 {
        self.timeout / QUICK
    }

    /// Whether a node waits long for an answer about a key, or had a late one or none within `before`.
    fn is_late(&self, moment: Moment, life: Life, key: u32, before: u64) -> bool {
        let waits = self.calls.of(key).any(|(of, left)| of == life && moment.at - left > self.quick());
        waits || self.late.get(&(life, key)).is_some_and(|late| moment.at <= late + before)
    }
}

impl Observer for Needless {
    fn ignores(&self, _: Topic) -> bool {
        !self.is_on
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.stops.see(seen);
        self.lives.see(seen);
        match seen {
            Seen::Joined { node, .. } | Seen::Left { node, .. } => drop(self.calls.end(*node)),
            Seen::Called { node, key, call, sent: true } => {
                self.calls.leave(moment, self.lives.of(*node), *key, call.id);
            }
            Seen::Called { node, key, sent: false, .. } => {
                self.late.insert((self.lives.of(*node), *key), moment.at);
            }
            Seen::Lost { key, .. } | Seen::Undone { key, .. } | Seen::Executed { key, stale: true, .. } => {
                self.losses.insert(*key, moment.at);
            }
            Seen::Settled { node, incarnation, key, call, grant } => {
                let life = (*node, *incarnation);
                let took = self.calls.settle(moment, life, *key, call.id).unwrap_or(0);
                if let Some(grant) = grant {
                    let known = self.known.entry((life, *key)).or_default();
                    let is_lost = self.losses.get(key).is_some_and(|at| at + 2 * self.timeout >= known.at);
                    if known.epoch != 0 && known.epoch != grant.epoch && is_lost {
                        known.lost = Some(moment.at);
                    }
                    (known.epoch, known.at) = (grant.epoch, moment.at);
                }
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
                let lost = self.known.get(&(self.lives.of(request.node), request.key)).and_then(|known| known.lost);
                let is_excused = STOPS.when(self.stops.meet(request.node, moment.at, before))
                    || LATE.when(is_late())
                    || LOSSES.when(lost.is_some_and(|lost| moment.at <= lost + before));
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
    fn a_share_without_a_reason_is_seen_and_one_after_a_loss_is_not() {
        // Whether the store has lost the key, under which epoch it answers then, and when the share admits, which it
        // may for two periods and three seconds. A key that was dropped because it was not used has another epoch, too.
        for (loses, epoch, at, seen) in [
            (false, 1, 2 * SECOND, 1),
            (false, 2, 2 * SECOND, 1),
            (true, 1, 2 * SECOND, 1),
            (true, 2, 2 * SECOND, 0),
            (true, 2, 6 * SECOND, 0),
            (true, 2, 6 * SECOND + 1, 1),
        ] {
            let mut history = History::new("10/1s fixed");
            let mut checker = Needless::new(&history.setting());
            history.settled(&mut checker, 1, 1, 1);
            if loses {
                let store = rationd::core::time::Timestamp(crate::checkers::tests::START + 2);
                history.see(&mut checker, 2, &Seen::Lost { key: 0, store });
            }
            history.epoch = epoch;
            history.settled(&mut checker, SECOND, 2, 1);
            history.check(&mut checker, at, 1, Source::Share, false);
            assert_eq!(checker.violations().len(), seen, "{loses} {epoch} {at}: {:?}", checker.violations());
        }
    }

    /// A frozen node is excused, and no other one; a fault alone excuses none.
    #[test]
    fn a_fault_excuses_nobody_but_a_node_that_stands_still() {
        for (what, seen) in
            [(What::FlushAll { master: 0 }, 1), (What::Freeze { node: 0 }, 0), (What::Freeze { node: 1 }, 1)]
        {
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

    /// A call that is lost, takes 20 ms or has no answer yet excuses its key at its node, for two periods and three
    /// seconds.
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
