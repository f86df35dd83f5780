//! **no-free-budget** after a loss of data: a call that restores lost counts of a window is lent nothing, and in a
//! fleet its node asks for nothing until its peers could restore theirs, too.
//!
//! That takes a round or two of gossip, or until the window is over.

use rationd::core::call::{Acquire, Call, Grant, Op};
use rationd::core::decision::Source;
use rationd::core::limit::Algorithm;
use rationd::core::policy::OnStoreLoss;

use super::Found;
use super::phased::Phased;
use super::sheet::{Exemption, Sheet};
use crate::maps::{Map, Set};
use crate::observe::{Checker, Moment, Observer, Seen, Setting, Topic, Violation};
use crate::plan::Brain;

static PUSHES: Exemption = Exemption::new(
    "keys whose limits change, from then on until two periods after all nodes know of it",
    "Who learns of other limits asks anew.",
);
static BASELINES: Exemption =
    Exemption::new("baselines", "They are other programs, to compare with: they hold no leases of this kind.");
static BUCKETS: Exemption = Exemption::new(
    "buckets",
    "What a node knows of them is a time, of which the latest counts: nobody waits for that.",
);
static LONELY: Exemption = Exemption::new("a node that heard of no peer within 1.2 s", "There is nobody to wait for.");
static OPEN: Exemption =
    Exemption::new("policies that let pass without the store", "They are lent at once, on purpose.");

static PAYS: Exemption = Exemption::new(
    "what a share has admitted and has left",
    "It is charged to the store at once, and lets pass nothing that the share does not.",
);

pub(super) static SHEET: Sheet = Sheet {
    file: "repair.rs",
    invariants: &["no-free-budget"],
    proves: "Whoever brings back what a store had lost is lent nothing by that call, and asks for nothing for two rounds of gossip.",
    judges: "Windows of all kinds, several limits.",
    exemptions: &[&PUSHES, &BASELINES, &BUCKETS, &LONELY, &OPEN, &PAYS],
    mutant: Some("lends-what-it-lost"),
};

/// How many rounds of gossip a node waits for its peers, less the drift of its clock.
const ROUNDS: u64 = 2;
const DRIFT: u64 = 10_000;

/// A node knows a boundary of the store's clock to within this time and the trip of its call.
const EDGE: u64 = 10_000;

/// A peer that reported less than this long ago is known to live.
const HEARD: u64 = 1_200_000;

/// Until when a node has to wait, and under which epoch.
#[derive(Clone, Copy, Debug)]
struct Wait {
    until: u64,
    epoch: u64,
}

/// The first sending of an acquire: one without an answer is sent again under the same id.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    id: u64,
    at: u64,
    /// Whether a check was decided by the share at that moment.
    on_share: bool,
}

/// The checker.
#[derive(Clone, Debug, Default)]
pub(super) struct Repair {
    is_on: bool,
    repair: u64,
    /// By key and node: the epochs under which the store has executed an acquire. In each epoch it takes restored
    /// counts from a node once.
    epochs: Set<(u32, u32, u64)>,
    waits: Map<(u32, u32), Wait>,
    /// A node's latest acquire of a key.
    asked: Map<(u32, u32), Asked>,
    /// When a check was last decided by a node's share of a key.
    shares: Map<(u32, u32), u64>,
    /// By node: the peer that last reported to it, and when.
    heard: Map<u32, (u32, u64)>,
    found: Found,
}

/// If an acquire restores lost counts: how long their window still lasts.
fn brings(call: &Call, order: &Acquire, grant: &Grant) -> Option<u64> {
    if order.epoch == 0 || order.epoch == grant.epoch || grant.reset || grant.outdated {
        return None;
    }
    let limits = call.rule.limits.iter().enumerate();
    let lost = limits.filter(|(index, limit)| {
        let (known, at) = (order.known[*index], grant.counters[*index].at);
        !BUCKETS.when(limit.algorithm == Algorithm::Gcra) && known.at == at && known.used > 0
    });
    let left = lost.map(|(index, limit)| {
        let lasts = if limit.algorithm == Algorithm::Sliding { limit.period.0 } else { 0 };
        (grant.counters[index].at.0 + lasts).saturating_sub(grant.now.0)
    });
    left.max()
}

impl Repair {
    /// Scoped to keys whose limits do not change, and times at which they do not.
    pub(super) fn phased(setting: &Setting) -> Phased<Self> {
        Phased::new(&PUSHES, setting, Self::new)
    }

    pub(super) fn new(setting: &Setting) -> Self {
        let plan = &setting.plan;
        let round = plan.gossip.map_or(0, |gossip| gossip.tick.0);
        let repair = (ROUNDS * round).saturating_sub(DRIFT);
        Self { is_on: !BASELINES.when(plan.brain != Brain::Rationd), repair, ..Self::default() }
    }

    fn executed(&mut self, moment: Moment, (key, node): (u32, u32), call: &Call, order: &Acquire, grant: &Grant) {
        let is_first = self.epochs.insert((key, node, grant.epoch));
        if is_first && grant.granted > 0 && !grant.replayed && brings(call, order, grant).is_some() {
            self.found.add("no-free-budget", moment, || {
                format!("key {key}, node {node}: {order:?} brings back what was lost, and is lent {}", grant.granted)
            });
        }
    }

    fn settled(&mut self, moment: Moment, (key, node): (u32, u32), call: &Call, order: &Acquire, grant: &Grant) {
        let Some(left) = brings(call, order, grant).filter(|_| grant.granted == 0) else { return };
        let heard = self.heard.get(&node).is_some_and(|(_, at)| moment.at < at + HEARD);
        if !LONELY.when(!heard) && !OPEN.when(call.rule.on_store_loss == OnStoreLoss::Allow) {
            let asked = self.asked.get(&(key, node)).filter(|asked| asked.id == call.id);
            let trip = asked.map_or(0, |asked| moment.at - asked.at);
            let until = moment.at + self.repair.min(left.saturating_sub(EDGE + trip));
            // A repeated answer begins no new wait.
            let wait = self.waits.get(&(key, node)).filter(|wait| wait.epoch == grant.epoch);
            let wait = wait.copied().unwrap_or(Wait { until, epoch: grant.epoch });
            self.waits.insert((key, node), wait);
        }
    }

    fn called(&mut self, moment: Moment, (key, node): (u32, u32), call: &Call, order: &Acquire) {
        let asked = self.asked.entry((key, node)).or_default();
        if asked.id != call.id {
            let on_share = self.shares.get(&(key, node)) == Some(&moment.at);
            *asked = Asked { id: call.id, at: moment.at, on_share };
        }
        let on_share = asked.on_share;
        let wait = self.waits.get(&(key, node)).copied();
        // An acquire for no tokens only checks whether the store is there.
        let asks = order.need.max(order.want) > 0;
        let asks = asks && !PAYS.when(on_share && order.need == order.want);
        if let Some(wait) = wait.filter(|wait| asks && moment.at < wait.until && order.epoch == wait.epoch) {
            self.found.add("no-free-budget", moment, || {
                format!("key {key}, node {node}: {order:?} before its peers told theirs: {wait:?}")
            });
        }
    }
}

impl Observer for Repair {
    fn minds(&self, topic: Topic) -> bool {
        topic == Topic::Reported
    }

    fn ignores(&self, _: Topic) -> bool {
        !self.is_on
    }

    fn see(&mut self, moment: Moment, seen: &Seen<'_>) {
        if !self.is_on {
            return;
        }
        match seen {
            Seen::Answered { request, decision, .. } if decision.source == Source::Share => {
                self.shares.insert((request.key, request.node), moment.at);
            }
            Seen::Reported { from, to, .. } => _ = self.heard.insert(*to, (*from, moment.at)),
            Seen::Left { node, .. } | Seen::Joined { node, .. } => {
                // A new life knows nothing of earlier reports.
                self.heard.retain(|to, (from, _)| to != node && from != node);
                self.waits.retain(|(_, waits), _| waits != node);
            }
            Seen::Executed { node, key, call, grant, stale: false, .. } => {
                if let Op::Acquire(order) = &call.op {
                    self.executed(moment, (*key, *node), call, order, grant);
                }
            }
            Seen::Settled { node, key, call, grant: Some(grant), .. } => {
                if let Op::Acquire(order) = &call.op {
                    self.settled(moment, (*key, *node), call, order, grant);
                }
            }
            Seen::Called { node, key, call, .. } => {
                if let Op::Acquire(order) = &call.op {
                    self.called(moment, (*key, *node), call, order);
                }
            }
            _ => {}
        }
    }
}

impl Checker for Repair {
    fn violations(&self) -> &[Violation] {
        &self.found.list
    }

    fn overlook(&mut self) {
        self.found.list.clear();
    }

    fn sheet(&self) -> &'static Sheet {
        &SHEET
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkers::tests::{History, SECOND};
    use crate::frames::Frames;
    use crate::span::Span;

    #[test]
    fn a_node_that_is_lent_by_the_call_that_brings_back_is_seen() {
        let cases = [(3, 2, 1), (0, 2, 0), (3, 1, 0)];
        let limits = ["10/1s fixed", "10/1s sliding", "10/1s fixed from-first"];
        for ((known, epoch, seen), limit) in cases.into_iter().flat_map(|case| limits.map(|limit| (case, limit))) {
            let mut history = History::new(limit);
            let mut checker = Repair::new(&history.setting());
            (history.known, history.epoch) = (known, epoch);
            history.executed(&mut checker, 1, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn a_node_that_does_not_wait_for_its_peers_is_seen() {
        for (is_reported, later, seen) in [(true, 300_000, 1), (true, 395_000, 0), (false, 300_000, 0)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(crate::plan::Gossip { tick: Span(200_000), ..Default::default() });
            let mut checker = Repair::new(&setting);
            if is_reported {
                history.see(
                    &mut checker,
                    1,
                    &Seen::Reported { from: 1, to: 0, frames: &Frames::new(Vec::new()), lies: false },
                );
            }
            (history.known, history.epoch) = (3, 2);
            history.settled(&mut checker, SECOND / 4, 1, 0);
            history.asks_under = 2;
            history.called(&mut checker, SECOND / 4 + later, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }

    #[test]
    fn what_pays_for_a_share_may_be_sent_again() {
        for (on_share, seen) in [(true, 0), (false, 2)] {
            let mut history = History::new("10/1s fixed");
            let mut setting = history.setting();
            setting.plan.gossip = Some(crate::plan::Gossip { tick: Span(200_000), ..Default::default() });
            let mut checker = Repair::new(&setting);
            let report = Seen::Reported { from: 1, to: 0, frames: &Frames::new(Vec::new()), lies: false };
            history.see(&mut checker, 1, &report);
            (history.known, history.epoch) = (3, 2);
            history.settled(&mut checker, SECOND / 4, 1, 0);
            history.asks_under = 2;
            if on_share {
                history.check(&mut checker, SECOND / 2, 1, Source::Share, true);
            }
            history.called(&mut checker, SECOND / 2, 2, 1);
            history.called(&mut checker, SECOND / 2 + 25_000, 2, 1);
            assert_eq!(checker.violations().len(), seen, "{:?}", checker.violations());
        }
    }
}
