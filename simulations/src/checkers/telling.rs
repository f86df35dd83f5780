//! **gossip**: of a window that is open a node tells its peers no more than it has admitted of it. What lapsed
//! counts when the window is over. And its peers read what it tells, be it of their build or the one before or after.
//!
//! For one aligned window, whose decisions tell it. Liars are not judged, they do it on purpose.

use rationd::core::call::Op;
use rationd::core::decision::{Source, Verdict};
use rationd::wire::digest;

use super::notes::Trips;
use super::sheet::{Exemption, Sheet};
use super::{Found, aligned};
use crate::maps::Map;
use crate::observe::{Checker, Kind, Moment, Observer, Seen, Setting, Violation};
use crate::plan::{Brain, What};

static OFF: Exemption = Exemption::new(
    "no gossip, liars, limits that change, slots that move between clocks that differ",
    "Liars do it on purpose; under a change or between clocks what is told has no window of this count. Of these runs nothing is judged.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static SOON_OVER: Exemption = Exemption::new(
    "shortly before a window's end",
    "Tokens lapse a little before it, and count as admitted then: 20 ms and two timeouts, or the longest trip.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "telling.rs",
    invariants: &["gossip"],
    proves: "Of a window that is open a node tells its peers no more than it has admitted of it, and its peers can read it.",
    judges: "One fixed window.",
    exemptions: &[&OFF, &BASELINES, &SOON_OVER],
    mutant: Some("granted-as-admitted"),
};

/// Tokens may lapse so long before their window ends, and as long as the answer that brought them was under way:
/// the store may have read its clock when the call left.
const EDGE: u64 = 20_000;

/// The checker.
#[derive(Debug, Default)]
pub(super) struct Telling {
    is_on: bool,
    /// See `EDGE`.
    edge: u64,
    /// By digest: the key, if its one limit is an aligned window.
    keys: Map<u128, u32>,
    /// What was admitted, by node, key and end of the window; on a share by node and key, as it may not know
    /// which window it is in.
    admitted: Map<(u32, u32, u64), u64>,
    alone: Map<(u32, u32), u64>,
    trips: Trips,
    /// The longest trip of an answer that brought tokens, by node, key and end of the window.
    slowest: Map<(u32, u32, u64), u64>,
    /// How far the clock of a key's owner is ahead of true time.
    skews: Map<u32, u64>,
    found: Found,
}

impl Telling {
    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        // Slots that move between masters whose clocks differ are in two windows at a time.
        let leaps = plan.redis.skew.0 > 0;
        let lies = |what: &What| match what {
            What::Push { .. } | What::Liar { .. } => true,
            What::Reshard { .. } => leaps,
            _ => false,
        };
        let is_honest = !plan.faults.iter().any(|fault| lies(&fault.what));
        let is_off = plan.gossip.is_none() || !is_honest;
        let is_on = !BASELINES.when(plan.brain != Brain::Rationd) && !OFF.when(is_off);
        Self { is_on, edge: EDGE + 2 * plan.daemon.timeout.0, ..Self::default() }
    }

    fn told(&mut self, moment: Moment, from: u32, frame: &[u8]) {
        let heard = digest::decode(frame).unwrap_or_else(|error| {
            self.found.add("gossip", moment, || format!("node {from} told what its peers do not read: {error}"));
            Vec::new()
        });
        for told in heard {
            let Some(key) = self.keys.get(&told.digest.0).copied().filter(|_| told.limit == 0) else { continue };
            let now = moment.store.0.wrapping_add(self.skews.get(&key).copied().unwrap_or(0));
            let slowest = self.slowest.get(&(from, key, told.window.0)).copied().unwrap_or(0);
            if SOON_OVER.when(told.window.0 < now + self.edge.max(EDGE + slowest)) {
                continue;
            }
            let alone = self.alone.get(&(from, key)).copied().unwrap_or(0);
            let admitted = self.admitted.get(&(from, key, told.window.0)).copied().unwrap_or(0) + alone;
            if told.count.net() > admitted {
                self.found.add("gossip", moment, || {
                    format!("node {from} told {told:?} of key {key}, and has admitted {admitted}")
                });
            }
        }
    }
}

impl Observer for Telling {
    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        self.trips.see(moment, seen);
        match seen {
            Seen::Settled { node, key, call, grant: Some(grant), .. } if grant.granted > 0 => {
                let Some(limit) = aligned(&call.rule) else { return };
                let ahead = matches!(call.op, Op::Acquire(order) if order.ahead_of.0 > 0);
                let end = grant.counters[0].at.0 + if ahead { limit.period.0 } else { 0 };
                let slowest = self.slowest.entry((*node, *key, end)).or_default();
                *slowest = self.trips.latest().max(*slowest);
            }
            Seen::Called { key, call, .. } if aligned(&call.rule).is_some() => {
                self.keys.insert(call.digest.0, *key);
            }
            Seen::Told { from, frames, .. } => frames.iter().for_each(|frame| self.told(moment, *from, frame)),
            Seen::Answered { request, decision, store, .. }
                if request.kind == Kind::Check && decision.verdict == Verdict::Allow =>
            {
                self.skews.insert(request.key, store.0.wrapping_sub(moment.store.0));
                let admitted = match decision.source {
                    Source::Share => self.alone.entry((request.node, request.key)).or_default(),
                    _ => self.admitted.entry((request.node, request.key, decision.reset_at.0)).or_default(),
                };
                *admitted += request.cost;
            }
            _ => {}
        }
    }
}

impl Checker for Telling {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use rationd::core::key::Digest;
    use rationd::core::time::Timestamp;
    use rationd::core::usage::{Count, Usage};

    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::plan::Gossip;

    #[test]
    fn a_node_that_tells_of_more_than_it_admitted_is_seen() {
        for (admitted, seen) in [(3, 0), (4, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, 1, 1, 4);
            history.check(&mut checker, 2, 3, Source::Lease, true);
            let window = Timestamp(1_800_000_000_000_000 + SECOND);
            let count = Count { admitted, refunded: 0 };
            let frames = digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]);
            history.see(&mut checker, 3, &Seen::Told { from: 0, to: 1, frames: &frames });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_node_whose_peers_do_not_read_what_it_tells_is_seen() {
        for (version, seen) in [(1, 0), (digest::VERSION, 1), (digest::VERSION + 1, 1), (digest::VERSION + 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.see(&mut checker, 3, &Seen::Told { from: 0, to: 1, frames: &[vec![version, 0, 0]] });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_lapsed_because_its_answer_was_late_may_be_told() {
        for (sent, seen) in [(SECOND / 8, 0), (SECOND / 2, 1)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(Gossip::default());
            let mut checker = Telling::new(&setting);
            history.called(&mut checker, sent, 1, 4);
            history.settled(&mut checker, SECOND * 5 / 8, 1, 4);
            let window = Timestamp(1_800_000_000_000_000 + SECOND);
            let count = Count { admitted: 4, refunded: 0 };
            let frames = digest::encode(&[Usage { digest: Digest(1), limit: 0, window, count, epoch: 0 }]);
            history.see(&mut checker, SECOND * 5 / 8, &Seen::Told { from: 0, to: 1, frames: &frames });
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
